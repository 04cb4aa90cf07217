"""The way to sum the vectors of a round: by a trusted server, in cohorts, or by two servers.

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
    """The way to sum the vectors of a round, and what follows from it.

    Args:
        terms: the terms of the secure sum; None: a trusted server sums, without a protocol.
        max_round_clients: the number of clients in the largest round.

    Attributes:
        kind: "ideal" (a trusted server), "secagg" (in cohorts) or "two-server".
    """

    terms: Terms | None
    max_round_clients: int
    kind: Kind = field(init=False)

    def __post_init__(self) -> None:
        kind = "ideal" if self.terms is None else str(self.terms.method)
        object.__setattr__(self, "kind", cast("Kind", kind))

    def check(self, clients: Clients) -> None:
        """Refuse clients that are silos, if two servers sum.

        Args:
            clients: the kind of clients: persons or silos.

        Raises:
            InvalidInputError: the clients are silos, and two servers sum.
        """
        if clients.kind == "silos" and self.servers is not None:
            raise InvalidInputError(
                "silos (people above 1) are not summed by two servers yet: use the secure sum"
                " secagg, or an ideal one"
            )

    @property
    def cohorts(self) -> SecAggConfig | None:
        """The terms of secure aggregation in cohorts; None for other methods.

        A cohort is a group of clients whose vectors are summed together.
        """
        return cast("SecAggConfig", self.terms) if self.kind == "secagg" else None

    @property
    def servers(self) -> TwoServerConfig | None:
        """The terms of the protocol with two servers; None for other methods."""
        return cast("TwoServerConfig", self.terms) if self.kind == "two-server" else None

    def of_cohorts(self) -> SecAggConfig:
        """Return the terms of secure aggregation in cohorts; refuse other methods.

        It is for callers that can run only this method.

        Raises:
            InvalidInputError: another method sums.
        """
        if self.cohorts is None:
            raise InvalidInputError(
                "this plan is not summed by secure aggregation between clients: plan it with"
                f" {opt.secure_sum('secagg')}"
            )
        return self.cohorts

    def of_servers(self) -> TwoServerConfig:
        """Return the terms of the protocol with two servers; refuse other methods.

        It is for callers that can run only this method.

        Raises:
            InvalidInputError: another method sums.
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
        """The fewest clients with which a sum may begin.

        Of the clients of a cohort, some may drop out later.
        """
        return 1 if self.terms is None else self.terms.least_clients

    @property
    def fewest_summed(self) -> int | None:
        """The fewest clients whose vectors are in an opened sum.

        None: a trusted server sums, and opens any sum.
        """
        match self.kind:
            case "ideal":
                return None
            case "secagg":
                return self.of_cohorts().parameters.min_survivors
            case _:
                return self.of_servers().min_batch

    @property
    def honest_clients(self) -> int:
        """The fewest honest clients that are sure to be in one sum.

        If a trusted server sums, the plan does not state this number. The result is then only an
        upper bound: the number of clients in the largest round.
        """
        return self.max_round_clients if self.terms is None else self.terms.honest_survivors

    @property
    def is_listed(self) -> bool:
        """Whether only clients on an allow-list (a list of public keys) may take part.

        If so, `terms.corrupt` limits the corrupt clients on the whole list, and not only in each
        sum: a server that lies may choose which clients sum together.
        """
        return self.terms is not None and "allow_list" in self.terms.needed_keys

    @property
    def missing_keys(self) -> tuple[str, ...]:
        """The names of the public keys that the protocol needs and the plan does not have yet."""
        return () if self.terms is None else self.terms.missing_keys

    def sums(self, rounds: Sequence[int], releases: Sequence[range]) -> list[int]:
        """Return the number of clients of each sum; rounds without clients have no sum.

        A round is split into as few cohorts as possible, whose sizes differ by at most 1. Two
        servers instead sum all rounds of a release together.

        Args:
            rounds: the number of clients of each round.
            releases: the rounds of each release (a sum that is opened).
        """
        if self.servers is not None:
            rounds = [sum(rounds[release.start : release.stop]) for release in releases]
        if self.cohorts is None:
            return [size for size in rounds if size]
        most = self.most_clients
        return [part for size in rounds if size for part in shared_out(size, -(-size // most))]

    def opened_together(self, releases: list[range]) -> list[range]:
        """Return the releases whose rounds the servers open only as a total.

        With two servers these are all `releases`. With other methods the result is empty: the sum
        of each round is opened by itself.
        """
        return [] if self.servers is None else releases


def shared_out(clients: int, parts: int) -> list[int]:
    """Return `parts` sizes that add up to `clients` and differ by at most 1, the larger ones first.

    >>> shared_out(11, 3)
    [4, 4, 3]
    """
    small, larger = divmod(clients, parts)
    return [small + 1] * larger + [small] * (parts - larger)
