"""Who adds the noise of a campaign: nobody, an aggregator, the clients or two servers.

A *release* is a sum that is opened, of one or several rounds.

1. Either an aggregator or two servers draw noise once for each release, or each client adds a share
   of the noise.
2. If a sum is exact and needs noise, nothing that anybody sees may depend on this sum before the
   noise is added (`Sums.SECRET`).
3. Each release is charged to the privacy budget before it is opened, and before an aggregator draws
   its noise.

>>> from fedtally.privacy.config import propose
>>> from fedtally.sketch import Schedule
>>> exact = Protection(None, Schedule.parse("shared"), 4, has_secure_sum=False)
>>> exact.by, exact.sums, exact.of_sum(50), len(exact.releases)
('nobody', <Sums.PUBLIC: 'public'>, [], 4)
>>> terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=1000)
>>> central = Protection(terms, Schedule.parse("shared"), 4, has_secure_sum=True)
>>> central.by, central.sums, len(central.of_sum(50)), len(central.releases)
('aggregator', <Sums.SECRET: 'secret'>, 1, 1)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Literal, cast

from fedtally.sketch import NoiseMark

if TYPE_CHECKING:
    from fedtally.plan.parts.vector import Vector
    from fedtally.privacy.config import PrivacyConfig
    from fedtally.privacy.geometric import Geometric
    from fedtally.privacy.mechanism import Noise
    from fedtally.sketch import Schedule

By = Literal["nobody", "aggregator", "clients", "servers"]


class Sums(StrEnum):
    """The state of a sum when the server gets it.

    `PUBLIC`: the sum is exact, and anybody may see it. `SECRET`: the sum is exact, and nobody may
    see it before noise is added, by an aggregator or by the trusted server that sums. `NOISED`: the
    sum already holds noise, added by the clients or by two servers.
    """

    PUBLIC = "public"
    SECRET = "secret"  # noqa: S105  # no password
    NOISED = "noised"


def releases_by(by: str, schedule: Schedule, num_rounds: int) -> list[range]:
    """Return the releases of a campaign: for each opened sum, the range of rounds that it adds up.

    If an aggregator or two servers add the noise, the rounds of a batch (rounds that share all
    hashes and signs) are added up first, because their total needs noise only once. Otherwise each
    round is opened by itself.

    Args:
        by: the party that adds the noise: "nobody", "aggregator", "clients" or "servers".
        schedule: which rounds share their hashes.
        num_rounds: the number of planned rounds.
    """
    match by:
        case "nobody" | "clients":
            return [range(round, round + 1) for round in range(num_rounds)]
        case _:
            return schedule.batches_of(num_rounds)


@dataclass(frozen=True)
class Protection:
    """The party that adds the noise of a campaign, and what follows from it.

    Args:
        terms: the plan's terms of privacy; None: the plan has no privacy, or its terms are not
            known yet.
        schedule: which rounds share their hashes.
        num_rounds: the number of planned rounds.
        has_secure_sum: whether a protocol sums the vectors; False: a trusted server sums.
        by: the party that adds the noise. If `terms` are given, `by` is ignored: the terms name
            the party.
    """

    terms: PrivacyConfig | None
    schedule: Schedule
    num_rounds: int
    has_secure_sum: bool
    by: By = "nobody"

    def __post_init__(self) -> None:
        if self.terms is not None:
            object.__setattr__(self, "by", cast("By", str(self.terms.noised_by)))

    @property
    def _noise(self) -> PrivacyConfig:
        return cast("PrivacyConfig", self.terms)  # callers know that somebody adds noise

    @property
    def is_charged(self) -> bool:
        """Whether somebody adds noise, so that each release is charged to a privacy budget."""
        return self.by != "nobody"

    @property
    def is_once(self) -> bool:
        """Whether the noise is added once to each opened sum, by an aggregator or by two servers.

        If so, rounds are better added up before they are opened: their total needs noise only once.
        """
        return self.by in ("aggregator", "servers")

    @property
    def is_in_sums(self) -> bool:
        """Whether clients or two servers add the noise, so that a secure sum itself holds it.

        If so, the modulus of the sum must be large enough for the noise, too.
        """
        return self.by in ("clients", "servers")

    @property
    def sums(self) -> Sums:
        """The state of a sum when the server gets it."""
        match self.by:
            case "nobody":
                return Sums.PUBLIC
            case "aggregator":
                return Sums.SECRET
            case _:  # a trusted server gets exact vectors, and adds the noise before the release
                return Sums.NOISED if self.has_secure_sum else Sums.SECRET

    @property
    def is_secret(self) -> bool:
        """Whether sums reach the server exact, and must be noised before anybody sees them."""
        return self.sums is Sums.SECRET

    def leaves_exact(self, vector: Vector) -> bool:
        """Return whether estimates are exact: items share no counters, and nobody adds noise.

        Args:
            vector: the kind of vector that a client sends: sketch or histogram.
        """
        return not vector.shares_counters and self.by == "nobody"

    @property
    def releases(self) -> list[range]:
        """The releases: for each sum that is opened, the range of rounds that it adds up."""
        return releases_by(self.by, self.schedule, self.num_rounds)

    @property
    def participations(self) -> int:
        """The most rounds that one client may take part in; 1 without privacy.

        If the terms have `per_rounds`, these are the most among any `per_rounds` rounds in a row.
        """
        return 1 if self.terms is None else self.terms.event.participations

    @property
    def lifetime(self) -> int:
        """The most rounds of the whole campaign that one client may be in; 1 without privacy."""
        return 1 if self.terms is None else self.terms.event.lifetime

    def allows(self, taken: Collection[int], round: int) -> bool:
        """Return whether a client may take part in one more round.

        Without privacy a client may take part in one round only.

        Args:
            taken: the numbers of the rounds that the client has taken part in.
            round: the number of the new round; it may lie before rounds in `taken`.
        """
        return not taken if self.terms is None else self.terms.event.allows(taken, round)

    @property
    def clip_norm(self) -> float | None:
        """The bound on the l2 norm of a client's sketch; None: the norm is not bounded.

        In a plan of silos it is for the sketch of one person.
        """
        return None if self.terms is None else self.terms.event.clip_norm

    def mark(self, fingerprint: str) -> NoiseMark | None:
        """Return the mark of a sum that holds this plan's noise; None without privacy.

        The mark (`NoiseMark`) says who added the noise, and under which plan.

        Args:
            fingerprint: the fingerprint of the plan.
        """
        return None if self.terms is None else NoiseMark(self.by, fingerprint)

    def of_client(self) -> Noise | None:
        """Return the noise that one client adds to each counter; None if clients add no noise."""
        return self._noise.share() if self.by == "clients" else None

    def of_server(self) -> Noise | None:
        """Return the noise that each of two servers adds to each counter; None if they add none."""
        if self.by != "servers":
            return None
        return cast("Noise", self._noise.noise())  # only aggregators add geometric noise

    def of_release(self) -> Noise | Geometric | None:
        """Return the noise that an aggregator adds to each counter; None if it adds no noise."""
        return self._noise.noise() if self.by == "aggregator" else None

    def of_sum(self, clients: int) -> list[Noise | Geometric]:
        """Return the distributions of the noise draws in a counter of one released sum.

        The list is empty without noise. The shares of all clients together count as one draw. Two
        servers make two draws.

        Args:
            clients: the number of clients (persons or silos) whose vectors are in the sum.
        """
        match self.by:
            case "nobody":
                return []
            case "aggregator":
                return [self._noise.noise()]
            case "clients":
                return [self._noise.share(clients)]
            case _:  # each of two servers adds enough noise alone: the other one may add none
                return [self._noise.noise()] * 2

    def stddev(self, clients: int, sums: int = 1) -> float:
        """Return the standard deviation of a counter's noise in the total of released sums.

        Args:
            clients: the number of clients whose vectors are in these sums, all sums together;
                clients that dropped out are not counted.
            sums: the number of released sums that the total adds up.
        """
        match self.by:
            case "nobody":
                return 0.0
            case "clients":  # `clients` counts the shares of all sums, so `sums` is not needed
                return self._noise.largest_stddev(clients)
            case _:
                return self._noise.largest_stddev(clients) * float(sums**0.5)

    def bound(self, counters: int, clients: int) -> int:
        """Return a bound on the absolute value of the noise in every counter of a secure sum.

        The noise in some counter exceeds the bound with a probability of at most 2^-40. The bound
        is 0 if nobody adds noise, or if an aggregator adds it after the secure sum.

        Args:
            counters: the number of entries of a client's vector.
            clients: the most clients in a sum.
        """
        law: Literal["skellam", "discrete-gaussian"]
        match self.by:
            case "nobody" | "aggregator":
                return 0
            case "clients":
                law, rounding = "skellam", 0
            case _:  # each of two servers rounds its noise to integers, by at most 1/2
                law, rounding = "discrete-gaussian", 1
        # imported only here: a plan without a secure sum then loads no cryptography
        from fedtally.secagg import params

        return params.noise_bound(self.stddev(clients), counters, law) + rounding

    def row_bound(self, rows: int, width: int, clients: int) -> int:
        """Return a bound on the sum of the absolute noise values in each row of a secure sum.

        The noise in some row exceeds the bound with a probability of at most 2^-40. The bound is 0
        if the secure sum holds no noise.

        Args:
            rows: the number of rows of the sketch, including the rows that spell names.
            width: the number of counters in a row.
            clients: the most clients in a sum.
        """
        if not self.is_in_sums:
            return 0
        from fedtally.privacy.row_noise import row_noise_bound

        draws = cast("list[Noise]", self.of_sum(clients))  # only aggregators add geometric noise
        return row_noise_bound(tuple(draws), self.stddev(clients), rows, width)
