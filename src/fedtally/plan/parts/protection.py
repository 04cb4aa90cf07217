"""Who adds the noise of a campaign: nobody, an aggregator, the clients or two servers.

A *release* is a sum that is opened, of one or several rounds.

1. The noise is drawn once for each release, or each client adds a share of it.
2. Nothing that anybody sees may depend on a sum without its noise (`Sums.SECRET`).
3. Each release is charged to the privacy budget before its noise is drawn and before it is opened.

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
    """The state of a sum at the moment when it is opened.

    `PUBLIC`: the sum is exact, and anybody may see it. `SECRET`: the sum is exact, and nobody may
    see it before an aggregator adds the noise. `NOISED`: the sum holds noise, which came with the
    clients' vectors or from two servers.
    """

    PUBLIC = "public"
    SECRET = "secret"  # noqa: S105  # no password
    NOISED = "noised"


def releases_by(by: str, schedule: Schedule, num_rounds: int) -> list[range]:
    """Return the rounds of each release: their sums are added up before the total is opened.

    An aggregator, or two servers, first add up the rounds that share their hashes, because the
    total needs noise only once.

    Args:
        by: the party that adds the noise, as `Protection.by`.
        schedule: the hashes of each round.
        num_rounds: the number of planned rounds.
    """
    match by:
        case "nobody" | "clients":
            return [range(round, round + 1) for round in range(num_rounds)]
        case _:
            return schedule.batches_of(num_rounds)


@dataclass(frozen=True)
class Protection:
    """The party that adds the noise of a campaign, and what follows from this.

    Args:
        terms: the privacy of the plan; None: the plan has none, or has none yet.
        schedule: the hashes of each round.
        num_rounds: the number of planned rounds.
        has_secure_sum: whether a protocol sums the vectors, and not a trusted server.
        by: the party that adds the noise; if `terms` are given, their party replaces it.
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
        return cast("PrivacyConfig", self.terms)  # where `by` is somebody

    @property
    def is_charged(self) -> bool:
        """Whether releases are charged to a privacy budget: somebody adds noise."""
        return self.by != "nobody"

    @property
    def is_once(self) -> bool:
        """Whether noise is added once to each sum that is opened, and not by each client.

        Then it is better to add up rounds before they are opened.
        """
        return self.by in ("aggregator", "servers")

    @property
    def is_in_sums(self) -> bool:
        """Whether a secure sum itself holds noise, of its clients or of two servers.

        The modulus of the sum must then have room for this noise.
        """
        return self.by in ("clients", "servers")

    @property
    def sums(self) -> Sums:
        """The state of sums when they are opened."""
        match self.by:
            case "nobody":
                return Sums.PUBLIC
            case "aggregator":
                return Sums.SECRET
            case _:  # a trusted server sums without noise, and adds the noise at the release
                return Sums.NOISED if self.has_secure_sum else Sums.SECRET

    @property
    def is_secret(self) -> bool:
        """Whether sums are exact, and must not be seen before an aggregator has noised them."""
        return self.sums is Sums.SECRET

    def leaves_exact(self, vector: Vector) -> bool:
        """Return whether the answer is exact: items share no counters, and nobody adds noise.

        Args:
            vector: the kind of a client's vector.
        """
        return not vector.shares_counters and self.by == "nobody"

    @property
    def releases(self) -> list[range]:
        """The rounds of each release: their sums are added up before the total is opened."""
        return releases_by(self.by, self.schedule, self.num_rounds)

    @property
    def participations(self) -> int:
        """The most rounds that one client takes part in.

        If the terms have `per_rounds`, it is the most of any `per_rounds` rounds in a row.
        """
        return 1 if self.terms is None else self.terms.event.participations

    @property
    def lifetime(self) -> int:
        """The most rounds that one client takes part in, in the whole campaign."""
        return 1 if self.terms is None else self.terms.event.lifetime

    def allows(self, taken: Collection[int], round: int) -> bool:
        """Return whether a client may take part in a round.

        Args:
            taken: the rounds in which the client takes part already.
            round: the other round that is asked about.
        """
        return not taken if self.terms is None else self.terms.event.allows(taken, round)

    @property
    def clip_norm(self) -> float | None:
        """The bound on the l2 norm of a client's sketch; None: the norm is not bounded."""
        return None if self.terms is None else self.terms.event.clip_norm

    def mark(self, fingerprint: str) -> NoiseMark | None:
        """Return the mark of sums that hold the noise of a plan; None: they are exact."""
        return None if self.terms is None else NoiseMark(self.by, fingerprint)

    def of_client(self) -> Noise | None:
        """Return the noise that each client adds to its vector; None: clients add none."""
        return self._noise.share() if self.by == "clients" else None

    def of_server(self) -> Noise | Geometric | None:
        """Return the noise that each of two servers adds to a sum; None: they add none."""
        return self._noise.noise() if self.by == "servers" else None

    def of_release(self) -> Noise | Geometric | None:
        """Return the noise that an aggregator adds to a release; None: it adds none."""
        return self._noise.noise() if self.by == "aggregator" else None

    def of_sum(self, clients: int) -> list[Noise | Geometric]:
        """Return the noise draws that are in a released sum; all clients' shares count as one draw.

        Args:
            clients: the number of clients (persons or silos) in the sum.
        """
        match self.by:
            case "nobody":
                return []
            case "aggregator":
                return [self._noise.noise()]
            case "clients":
                return [self._noise.share(clients)]
            case _:  # each of two servers adds all of the noise, since the other may add none
                return [self._noise.noise()] * 2

    def stddev(self, clients: int, sums: int = 1) -> float:
        """Return the standard deviation of the noise in a counter of the total of released sums.

        Args:
            clients: the number of clients in all of these sums, without any that dropped out.
            sums: the number of released sums.
        """
        match self.by:
            case "nobody":
                return 0.0
            case "clients":  # shares add up, over clients and over sums
                return self._noise.largest_stddev(clients)
            case _:
                return self._noise.largest_stddev(clients) * float(sums**0.5)

    def bound(self, counters: int, clients: int) -> int:
        """Return a bound on the absolute noise in any counter of a secure sum.

        It is exceeded with a probability of at most 2^-40. An aggregator adds its noise after the
        secure sum: then the bound is 0.

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
        # here, so that a plan without a secure sum loads no cryptography
        from fedtally.secagg import params

        return params.noise_bound(self.stddev(clients), counters, law) + rounding

    def row_bound(self, rows: int, width: int, clients: int) -> int:
        """Return a bound on the l1 norm of the noise in any row of a secure sum.

        The probability that any row exceeds it is at most 2^-40.

        Args:
            rows: the number of rows of the sketch, including the rows that spell names.
            width: the number of counters of a row.
            clients: the most clients in a sum.
        """
        if not self.is_in_sums:
            return 0
        from fedtally.privacy.row_noise import row_noise_bound

        draws = cast("list[Noise]", self.of_sum(clients))  # geometric noise is never in sums
        return row_noise_bound(tuple(draws), self.stddev(clients), rows, width)
