"""What the owner of a client demands of every campaign, whatever its plan and its server say."""

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
# The domain of all strings, which shows texts that nobody listed: only an owner can allow it.
OPEN = "open"
_NAMED = (*KINDS, OPEN)


@dataclass(frozen=True, kw_only=True)
class AgentPolicy:
    """The demands of an owner; `refusals` compares a plan with them.

    Args:
        sums: the demands on the secure sum. Its adversary is the least that the owner demands:
            `semi-honest` also takes plans against an active server. Its known clients are looked
            for in the allow-list of a plan, too.
        cap: the most that everything in the record may cost together, and so any single plan. None:
            plans without differential privacy are taken, too, and nothing is counted. With
            `per_days` it bounds what any such days cost, and so any single part.
        central: whether a server may see exact sums and add the noise itself.
        domains: the candidates that may be asked about: kinds out of `KINDS`, or whole ranges and
            grids as `fedtally.domain.parse` reads them; or "open", for any text of this client.
        max_items: the most items of this client that one sketch may hold.
        sessions_a_day: the most sessions that this client begins; one counts until a day after its
            end.

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
        """Return the demands on the secure sum of a plan."""
        terms = plan.summing.cohorts
        if terms is not None and self.sums.adversary is Adversary.SEMI_HONEST:
            # who trusts a server to follow the protocol is also served by a plan that need not
            return dataclasses.replace(self.sums, adversary=terms.parameters.adversary)
        return self.sums

    def refusals(
        self, plan: Plan, allow_list: AllowList | None, own: bytes | None
    ) -> Iterator[str]:
        """Yield every reason, in words, not to take part in a plan.

        Args:
            plan: the plan.
            allow_list: the identities that may take part, if the plan names a list.
            own: the identity of this client, which is none of the clients that it knows.
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
            # with the rest of the demands: the trust was held against the entry that an owner knows
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
            # Sooner than in a session, where the client looks for them in the roster and the sum.
            try:
                self.sums.check_known(self.known_in(allow_list, own), "in the allow-list")
            except InvalidInputError as error:
                yield error.in_shell

    @property
    def reports(self) -> BatchPolicy:
        """The demands on a report to two servers, where `refusals` has none."""
        sums = self.sums
        return BatchPolicy(
            min_honest=sums.min_honest, corrupt=sums.corrupt, max_length=sums.max_length
        )

    def known_in(self, allow_list: AllowList, own: bytes | None) -> list[bytes]:
        """Return the known clients of a list, but for this client itself."""
        return [key for key in self.sums.known if key in allow_list and key != own]

    def _allows(self, plan: Plan) -> bool:
        return plan.domain["kind"] in self.domains or any(
            plan.has_domain(domain.parse(text).describe())
            for text in self.domains
            if text not in _NAMED
        )


def _of_servers(sums: ClientPolicy, servers: TwoServerConfig) -> Iterator[str]:
    """Yield why an owner's demands on sums refuse two servers.

    Each of the two may lie, so they are as good as a server that is active. A report costs its
    client the same in a batch of any size, so `max_clients` says nothing of it.
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
    """Yield why exact sums of an open domain show what single clients hold, if they do."""
    from fedtally.plan.rare_names import of_plan  # the planner, for such plans alone

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
    """Return the domain of a plan as its owner would write it, or its kind."""
    try:
        return str(domain.load(plan.domain, {}))
    except InvalidInputError:  # its candidates are not in the plan
        return str(plan.domain["kind"])
