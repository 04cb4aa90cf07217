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

KINDS = ("range", "integers", "dictionary", "grid")  # the domains that an agent can rebuild
# The domain of all strings. It reveals texts that nobody listed, so an owner must allow it.
OPEN = "open"
_NAMED = (*KINDS, OPEN)


@dataclass(frozen=True, kw_only=True)
class AgentPolicy:
    """The demands of an owner; `refusals` compares a plan with them.

    Args:
        sums: the demands on the secure sum. Its adversary is a minimum: `semi-honest` also accepts
            plans against an active server. At least `least_known` of its known clients must also be
            in a plan's allow-list.
        cap: the bound on the total privacy cost of all participation in the record, and so of each
            plan. With `per_days` it bounds only the cost within each period of that length, and so
            of each participation. None: plans without differential privacy are accepted as well,
            and nothing is counted.
        central: whether a server may see exact sums and add the noise itself.
        domains: the allowed domains of a plan: kinds out of `KINDS`; or whole ranges and grids as
            `fedtally.domain.parse` reads them; or "open", for any text of this client.
        max_items: the most items of this client that one sketch may hold.
        sessions_a_day: the most sessions that this client begins within a day; a session counts
            until a day after its end.

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
        """The demands on the privacy of one plan; None: there are none."""
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
        """Return the demands on the secure sum, adapted to the adversary of a plan."""
        terms = plan.summing.cohorts
        if terms is not None and self.sums.adversary is Adversary.SEMI_HONEST:
            # an owner who accepts semi-honest servers also accepts plans against active ones
            return dataclasses.replace(self.sums, adversary=terms.parameters.adversary)
        return self.sums

    def refusals(
        self, plan: Plan, allow_list: AllowList | None, own: bytes | None
    ) -> Iterator[str]:
        """Yield every reason, in words, not to take part in a plan.

        Args:
            plan: the plan.
            allow_list: the identities that may take part; None: the plan names no list, or it is
                not known.
            own: the public key of this client, which does not count as a known client; None: it
                has none.
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
            # The trust was checked above, with the name of the owner's entry in the message. So
            # the check of the other demands accepts any trust.
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
            # A session checks the known clients again, in the roster and the sum. Refuse earlier.
            try:
                self.sums.check_known(self.known_in(allow_list, own), "in the allow-list")
            except InvalidInputError as error:
                yield error.in_shell

    @property
    def reports(self) -> BatchPolicy:
        """The demands on a report to two servers, for a plan that `refusals` does not refuse."""
        sums = self.sums
        return BatchPolicy(
            min_honest=sums.min_honest, corrupt=sums.corrupt, max_length=sums.max_length
        )

    def known_in(self, allow_list: AllowList, own: bytes | None) -> list[bytes]:
        """Return the public keys of the known clients in an allow-list, without this client's."""
        return [key for key in self.sums.known if key in allow_list and key != own]

    def _allows(self, plan: Plan) -> bool:
        return plan.domain["kind"] in self.domains or any(
            plan.has_domain(domain.parse(text).describe())
            for text in self.domains
            if text not in _NAMED
        )


def _of_servers(sums: ClientPolicy, servers: TwoServerConfig) -> Iterator[str]:
    """Yield every reason why an owner's demands on sums refuse a plan that two servers sum.

    The plan withstands one lying server, so it meets a demand for an active adversary.
    `max_clients` is not checked, because a client's cost does not grow with the batch.
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
    """Yield the reason why the exact sums of an open domain reveal single clients' items, if so."""
    from fedtally.plan.rare_names import of_plan  # loads the planner, which other plans do not need

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
    """Return the text of a plan's domain as an owner writes it in agent.toml, or its kind."""
    try:
        return str(domain.load(plan.domain, {}))
    except InvalidInputError:  # the plan holds only a digest of the candidates
        return str(plan.domain["kind"])
