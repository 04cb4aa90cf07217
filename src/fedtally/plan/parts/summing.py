"""How the vectors of a round are summed: by a trusted server, among cohorts, or by two servers.

>>> ideal = Summing(None, 50)
>>> ideal.kind, ideal.most_clients, ideal.cohorts, ideal.missing_keys
('ideal', 50, None, ())
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, cast

from fedtally.errors import InvalidInputError, opt

if TYPE_CHECKING:
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
        match self.kind:
            case "ideal":
                return 1
            case "secagg":
                return self.of_cohorts().parameters.n_min
            case _:
                return self.of_servers().min_batch

    @property
    def honest_clients(self) -> int:
        """The fewest honest clients that are sure to be in one sum."""
        return self.max_round_clients if self.terms is None else self.terms.honest_survivors

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """The names of the keys that the protocol needs and lacks."""
        return () if self.terms is None else self.terms.missing_keys

    def opened_together(self, releases: list[range]) -> list[range]:
        """Return the rounds that the protocol itself adds up, of all that a plan releases together.

        Two servers open one sum of a whole release; cohorts open a sum of each round.
        """
        return [] if self.servers is None else releases
