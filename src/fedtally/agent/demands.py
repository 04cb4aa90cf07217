"""The owner's policy: what the owner of a client demands of every campaign."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from fedtally import domain
from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.plan import MAX_ITEMS, Plan
from fedtally.privacy.budget import Cap
from fedtally.privacy.events import Trust
from fedtally.privacy.policy import PrivacyPolicy
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.params import Adversary, ClientPolicy
from fedtally.secagg.two_server import BatchPolicy

# The kinds of domains that an agent can rebuild, from the plan or from a file of candidates.
KINDS = ("range", "integers", "dictionary", "grid")
# The kind of the domain of all strings. A plan with it reveals texts that nobody listed before, so
# the owner must allow it explicitly.
OPEN = "open"
_NAMED = (*KINDS, OPEN)


@dataclass(frozen=True, kw_only=True)
class AgentPolicy:
    """The demands of an owner on every plan; `refusals` compares a plan with them.

    Args:
        sums: the demands on the secure sum, by which servers add up vectors without seeing any of
            them. `sums.adversary` is a minimum: an owner who accepts `semi-honest` also accepts
            plans that withstand an active adversary. A plan's allow-list must contain at least
            `sums.least_known` of the clients in `sums.known`, which the owner knows to be honest.
        cap: the bound on the total privacy cost of everything in the client's record. The cost of
            each plan must be within the cap, too. A cap with `per_days` bounds the total cost only
            within each period of `per_days` days. It bounds the cost of taking part once, and not
            the cost of a whole plan. None: plans without differential privacy are accepted as well,
            and costs are not added up.
        central: whether a plan may let a server see exact sums and add the noise itself. If `cap`
            is None, `central` is not compared with the plan.
        domains: the allowed domains of a plan. An entry is a kind out of `KINDS`, or a whole domain
            as `fedtally.domain.parse` reads it, or "open": a plan may then ask for any text of this
            client.
        max_items: the most items of this client that one sketch may count.
        sessions_a_day: the most sessions that this client joins within a day. A session is counted
            until a day after its latest end, which the server announced.

    Raises:
        InvalidInputError: a value is out of bounds.
    """

    sums: ClientPolicy
    cap: Cap | None
    central: bool = False
    domains: tuple[str, ...] = KINDS
    max_items: int = 1
    sessions_a_day: int = 100

    def __post_init__(self) -> None:
        validate.flag(central=self.central)
        for text in self.domains:
            if text not in _NAMED:
                try:
                    domain.parse(text)
                except InvalidInputError as error:
                    raise InvalidInputError(
                        f"{text!r} is no kind of candidates ({', '.join(_NAMED)}): {error}"
                    ) from None
        for name, least, most in (
            ("max_items", 1, MAX_ITEMS),
            ("sessions_a_day", 1, 2**31),
        ):
            value = validate.integer(least, most, **{name: getattr(self, name)})
            object.__setattr__(self, name, value)

    @property
    def privacy(self) -> PrivacyPolicy | None:
        """The demands on the privacy of one plan; None: there are none, because the policy has no
        cap.
        """
        if self.cap is None:
            return None
        return PrivacyPolicy(
            epsilon=self.cap.epsilon,
            delta=self.cap.delta,
            relation=self.cap.relation,
            trust=Trust.CENTRAL if self.central else Trust.DISTRIBUTED,
            per_part=self.cap.per_days is not None,
        )

    def sums_of(self, plan: Plan) -> ClientPolicy:
        """Return the demands on the secure sum, for the comparison with a plan.

        An owner who accepts a semi-honest adversary gets demands with the adversary of the plan.
        """
        terms = plan.summing.cohorts
        if terms is not None and self.sums.adversary is Adversary.SEMI_HONEST:
            # Otherwise a plan that withstands more than the owner demands would be refused.
            return dataclasses.replace(self.sums, adversary=terms.parameters.adversary)
        return self.sums

    def refusals(
        self, plan: Plan, allow_list: AllowList | None, own: bytes | None
    ) -> Iterator[str]:
        """Yield, in words, every reason not to take part in a plan; none if the policy allows the
        plan.

        Args:
            plan: the plan.
            allow_list: the public keys of the clients that may take part. None: the list is not
                checked, because the plan has none or it is not known yet.
            own: the public key of this client, which is not counted as a known client. None: this
                client has no key.
        """
        if (cohorts := plan.summing.cohorts) is not None:
            yield from self.sums_of(plan).refusals(cohorts.parameters)
        elif (servers := plan.summing.servers) is not None:
            yield from _of_servers(self.sums, servers)
        else:
            yield (
                "the sums of the plan are made by a trusted server, and an agent takes part in"
                " none: ask for a plan with --secure-sum secagg or two-server"
            )
        if self.privacy is not None:
            if plan.protection.of_release() is not None and not self.central:
                yield (
                    "under the plan's central trust the server sees exact sums, and this client's"
                    " policy (central) does not allow it"
                )
            # The message above names the entry of agent.toml, `central`. Any trust passes here, so
            # that it is not refused a second time.
            rest = dataclasses.replace(self.privacy, trust=Trust.CENTRAL)
            yield from rest.refusals(plan.privacy)
        if plan.max_items > self.max_items:
            yield (
                f"max_items must be at most {self.max_items} by this client's policy (max_items),"
                f" got {plan.max_items}"
            )
        if not self._allows(plan):
            yield (
                f"the domain must be one of {', '.join(self.domains)} by this client's policy"
                f" (domains), got {_shown(plan)}"
            )
        if plan.is_open and plan.privacy is None:
            yield from _of_rare_names(plan)
        if allow_list is not None:
            # A session would refuse later, when the list of its clients has too few known ones. But
            # the owner should learn it when accepting the plan.
            try:
                self.sums.check_known(self.known_in(allow_list, own), "in the allow-list")
            except InvalidInputError as error:
                yield error.in_shell

    @property
    def reports(self) -> BatchPolicy:
        """What a client demands of the two servers before it makes a report.

        These demands are enough only for a plan that `refusals` does not refuse.
        """
        sums = self.sums
        return BatchPolicy(
            min_honest=sums.min_honest, corrupt=sums.corrupt, max_length=sums.max_length
        )

    def known_in(self, allow_list: AllowList, own: bytes | None) -> list[bytes]:
        """Return the public keys in an allow-list of clients that the owner knows to be honest.

        The key of this client, `own`, is left out.
        """
        return [key for key in self.sums.known if key in allow_list and key != own]

    def _allows(self, plan: Plan) -> bool:
        return plan.domain["kind"] in self.domains or any(
            plan.has_domain(domain.parse(text).describe())
            for text in self.domains
            if text not in _NAMED
        )


def _of_servers(sums: ClientPolicy, servers: TwoServerConfig) -> Iterator[str]:
    """Yield, in words, every demand of an owner on sums that a plan summed by two servers does not
    meet.

    A demand for an active adversary is always met, because such a plan withstands one lying server.
    A plan never breaks `max_clients`: a client's work does not grow with the number of reports in a
    sum.

    Args:
        sums: the demands of the owner.
        servers: the terms of the plan for two servers.
    """
    for name, value, least, demand in (
        ("corrupt", servers.corrupt, sums.corrupt, "corrupt"),
        ("min_batch - corrupt", servers.honest_survivors, sums.min_honest, "min_honest"),
        ("min_batch", servers.min_batch, sums.min_clients, "min_clients"),
    ):
        if value < least:
            yield f"{name} must be at least {least} by this client's policy ({demand}), got {value}"
    if servers.length > sums.max_length:
        yield (
            f"length must be at most {sums.max_length} by this client's policy (max_length), got"
            f" {servers.length}"
        )
    if sums.least_known:
        yield (
            f"at least {sums.least_known} of the known keys must be in the sum by this client's"
            " policy (least_known), and two servers show nobody who is: ask for a plan with"
            " --secure-sum secagg"
        )


def _of_rare_names(plan: Plan) -> Iterator[str]:
    """Yield a reason, in words, if exact sums of an open domain would reveal items of single
    clients.

    An open domain consists of all strings.
    """
    # Imported here, because it loads the planner, which other plans do not need.
    from fedtally.plan.rare_names import of_plan

    sizes = [plan.max_round_clients]
    rare = of_plan(plan, sizes, [size * plan.people for size in sizes])
    if rare is not None:
        try:
            rare.check()
        except InvalidInputError:
            yield (
                "an open domain without privacy must have more clients in a sum than counters by"
                f" this client's policy (domains), got {rare.clients:,} clients and"
                f" {rare.counters:,} counters, which show what single clients hold: ask for a plan"
                " with epsilon, fewer bytes or larger cohorts"
            )


def _shown(plan: Plan) -> str:
    """Return the domain of a plan as text, for a message.

    If the plan holds only a digest of its candidates, the text is the kind of the domain.
    """
    try:
        return str(domain.load(plan.domain, {}))
    except InvalidInputError:  # the plan holds only a digest of the candidates
        return str(plan.domain["kind"])
