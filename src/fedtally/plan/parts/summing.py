"""How the vectors of a round are summed: by a trusted server, among cohorts, or by two servers.

>>> ideal = Summing(None, 50)
>>> ideal.kind, ideal.most_clients, ideal.cohorts, ideal.missing_keys
('ideal', 50, None, ())
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from fedtally.errors import InvalidInputError, opt

if TYPE_CHECKING:
    from fedtally.plan.parts.clients import Clients
    from fedtally.secagg.config import SecAggConfig, Terms, TwoServerConfig

Kind = Literal["ideal", "secagg", "two-server"]


@dataclass(frozen=True)
class Summing:
    """What follows from how the vectors of a round are summed.

    Args:
        terms: the terms of the protocol; None: a trusted server sums.
        max_round_clients: the clients in the largest round.

    Attributes:
        kind: the way to sum, one of `secagg.config.SecureSum`.
    """

    terms: Terms | None
    max_round_clients: int
    kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        kind = "ideal" if self.terms is None else str(self.terms.method)
        object.__setattr__(self, "kind", cast("Kind", kind))

    def check(self, clients: Clients) -> None:
        """Refuse silos whose vectors are summed by two servers.

        Args:
            clients: who sends the vectors.

        Raises:
            InvalidInputError: they are.
        """
        if clients.kind == "silos" and self.servers is not None:
            raise InvalidInputError(
                "silos (people above 1) are not summed by two servers yet: use the secure sum"
                " secagg, or an ideal one"
            )

    @property
    def cohorts(self) -> SecAggConfig | None:
        """The terms of cohorts that sum among themselves; None: there are no cohorts."""
        return cast("SecAggConfig", self.terms) if self.kind == "secagg" else None

    @property
    def servers(self) -> TwoServerConfig | None:
        """The terms of two servers that sum; None: there are no two."""
        return cast("TwoServerConfig", self.terms) if self.kind == "two-server" else None

    def of_cohorts(self) -> SecAggConfig:
        """Return the terms of cohorts, for those who run them alone.

        Raises:
            InvalidInputError: there are no cohorts.
        """
        if self.cohorts is None:
            raise InvalidInputError(
                "this plan is not summed by secure aggregation between clients: plan it with"
                f" {opt.secure_sum('secagg')}"
            )
        return self.cohorts

    def of_servers(self) -> TwoServerConfig:
        """Return the terms of two servers, for those who run them alone.

        Raises:
            InvalidInputError: there are no two.
        """
        if self.servers is None:
            raise InvalidInputError(
                "this plan is not summed by two servers: plan it with"
                f" {opt.secure_sum('two-server')}"
            )
        return self.servers

    @property
    def most_clients(self) -> int:
        """The most clients in one sum."""
        return self.max_round_clients if self.terms is None else self.terms.most_clients

    @property
    def least_clients(self) -> int:
        """The fewest clients in one sum; of cohorts, the fewest that are invited to it."""
        return 1 if self.terms is None else self.terms.least_clients

    @property
    def fewest_summed(self) -> int | None:
        """The fewest clients whose vectors a sum holds; None: a trusted server sums any number."""
        match self.kind:
            case "ideal":
                return None
            case "secagg":
                return self.of_cohorts().parameters.min_survivors
            case _:
                return self.of_servers().min_batch

    @property
    def honest_clients(self) -> int:
        """The fewest honest clients that are sure to be in one sum."""
        return self.max_round_clients if self.terms is None else self.terms.honest_survivors

    @property
    def is_listed(self) -> bool:
        """Whether clients of a list alone take part.

        Against a server that lies `corrupt` counts the whole list: it may pick who sums together.
        """
        return self.terms is not None and "allow_list" in self.terms.needed_keys

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """The names of the keys that the protocol needs and lacks."""
        return () if self.terms is None else self.terms.missing_keys

    def sums(self, rounds: Sequence[int], releases: Sequence[range]) -> list[int]:
        """Return the clients of each sum.

        A round is split into the fewest cohorts that the limit allows, all of about one size. Two
        servers add up the rounds of each release.

        Args:
            rounds: the clients of each round.
            releases: the rounds of each release.
        """
        if self.servers is not None:
            rounds = [sum(rounds[release.start : release.stop]) for release in releases]
        if self.cohorts is None:
            return [size for size in rounds if size]
        most = self.most_clients
        return [part for size in rounds if size for part in shared_out(size, -(-size // most))]

    def opened_together(self, releases: list[range]) -> list[range]:
        """Return the rounds that the protocol itself adds up, of all that a plan releases together.

        Two servers open one sum of a whole release; cohorts open a sum of each round.
        """
        return [] if self.servers is None else releases


def shared_out(clients: int, parts: int) -> list[int]:
    """Return how many clients each of some parts gets, the larger ones first.

    >>> shared_out(11, 3)
    [4, 4, 3]
    """
    small, larger = divmod(clients, parts)
    return [small + 1] * larger + [small] * (parts - larger)
