"""The requested way to sum rounds, before there are terms of a protocol.

>>> Summation("secagg", max_cohort=1000).sizes(2500), Summation("two-server").sizes(2500)
([834, 833, 833], [2500])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.options import MAX_CORRUPT, MIN_DROPOUT
from fedtally.plan.parts.summing import shared_out
from fedtally.plan.rules import Need, check, given, unmet
from fedtally.privacy.events import NoiseBy
from fedtally.secagg.config import SecureSum, Terms, needed_keys
from fedtally.secagg.params import MAX_CLIENTS, Adversary, Validity, corrupt_clients

# smaller if active: then the cost of each client grows with its cohort
MAX_COHORT = {Adversary.SEMI_HONEST: 2000, Adversary.ACTIVE: 200}


@dataclass(frozen=True)
class Summation:
    """The requested way to sum the rounds of a simulation.

    Args:
        method: the secure sum, a `SecureSum` or its name.
        adversary: the adversary of "secagg": "semi-honest" or "active".
        dropout: the share of every cohort that drops out, 0 to below 1.
        max_corrupt: the share of a cohort that may be corrupt, 0 to below 1.
        max_cohort: the most clients in a cohort; a larger round is split.
        min_cohort: the fewest clients of a cohort: a session opens with these, even if fewer than
            `max_cohort` have come; None: the smallest cohort of an even split of the rounds.
        validity: whether reports of "two-server" have proofs, a `Validity` or its name; None: they
            have proofs if the plan allows proofs.
        max_dropout: the share of a cohort that may drop out without loss of the sum; None:
            `dropout`, at least 5 %.

    Raises:
        InvalidInputError: a value is out of bounds, or does not go with the method.
    """

    method: SecureSum | str = SecureSum.IDEAL
    adversary: Adversary | str = Adversary.SEMI_HONEST
    dropout: float = 0.0
    max_corrupt: float = MAX_CORRUPT
    max_cohort: int | None = None
    max_dropout: float | None = None
    min_cohort: int | None = None
    validity: Validity | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", SecureSum.parse(self.method))
        object.__setattr__(self, "adversary", Adversary.parse(self.adversary))
        if self.validity is not None:
            object.__setattr__(self, "validity", Validity.parse(self.validity))
        if self.max_dropout is None:
            object.__setattr__(self, "max_dropout", max(self.dropout, MIN_DROPOUT))
        for name in ("dropout", "max_corrupt", "max_dropout"):
            if not 0 <= validate.real(**{name: getattr(self, name)}) < 1:
                raise InvalidInputError(
                    f"{arg[name]} must be at least 0 and below 1, got {getattr(self, name)!r}"
                )
        if self.dropout > self.borne:
            raise InvalidInputError(
                f"{arg.max_dropout} must be at least {arg.dropout}, {self.dropout:g}, got"
                f" {self.borne:g}"
            )
        if self.max_cohort is not None:
            object.__setattr__(self, "max_cohort", validate.integer(3, max_cohort=self.max_cohort))
        check(
            given(
                validity=self.validity,
                adversary=self.adversary,
                max_cohort=self.max_cohort,
                dropout=self.dropout or None,
            ),
            unmet_by(SecureSum.parse(self.method)),
        )

    @property
    def is_ideal(self) -> bool:
        """Whether one trusted server sums, without a protocol."""
        return self.method is SecureSum.IDEAL

    @property
    def is_two_server(self) -> bool:
        """Whether two servers sum: they add up the rounds of a release before they open it."""
        return self.method is SecureSum.TWO_SERVER

    @property
    def opens_rounds(self) -> bool:
        """Whether the sum of each round is opened as soon as the round is complete."""
        return not self.is_two_server

    @property
    def has_cohorts(self) -> bool:
        """Whether the clients of a round are summed in cohorts, by secure aggregation."""
        return self.method is SecureSum.SECAGG

    @property
    def has_identities(self) -> bool:
        """Whether clients prove who they are, so that each needs a registered identity."""
        return "allow_list" in needed_keys(self.method, Adversary.parse(self.adversary))

    @property
    def borne(self) -> float:
        """The share of a cohort that may drop out without loss of the sum."""
        assert self.max_dropout is not None
        return self.max_dropout

    def sizes(self, num_clients: int) -> list[int]:
        """Return the sizes of the cohorts that a round is split into.

        >>> Summation("secagg", max_cohort=1000).sizes(2500)
        [834, 833, 833]
        """
        if self.is_two_server:
            return [num_clients] if num_clients else []
        number = -(-num_clients // self.most_clients)
        return shared_out(num_clients, number) if number else []

    def rounds_of_sum(self, releases: Sequence[range]) -> list[int]:
        """Return the different numbers of rounds that one sum may add up, the smallest first.

        Args:
            releases: the rounds of each release.
        """
        return sorted({len(rounds) for rounds in releases}) if self.is_two_server else [1]

    def fits(self, sums: Sequence[int]) -> bool:
        """Return whether the method can make sums of these numbers of clients.

        Only two servers have a limit here: they sum a whole release at once.
        """
        return not self.is_two_server or max(sums) <= MAX_CLIENTS

    def is_split(self, num_clients: int) -> bool:
        """Return whether a round of `num_clients` clients is split into several cohorts."""
        return self.has_cohorts and num_clients > self.most_clients

    def clients_of_sum(self, num_clients: float) -> float:
        """Return the number of clients in one sum of a round, if as many drop out as may.

        If a trusted server sums, nobody drops out. The number is not rounded.

        >>> round(Summation("secagg", max_cohort=1000, max_dropout=0.1).clients_of_sum(2500))
        750
        """
        if self.is_ideal:
            return num_clients
        if self.has_cohorts:
            num_clients /= math.ceil(num_clients / self.most_clients)
        return num_clients * (1 - self.borne)

    def sums(self, sizes: Sequence[int], releases: Sequence[range]) -> list[int]:
        """Return the number of clients of each secure sum, before rounds are split into cohorts.

        Two servers add up the rounds of a release; other methods sum every round by itself.

        Args:
            sizes: the number of clients of each round.
            releases: the rounds of each release.
        """
        if not self.is_two_server:
            return list(sizes)
        return [sum(sizes[release.start : release.stop]) for release in releases]

    def extremes(self, least: int, most: int) -> list[int]:
        """Return round sizes, from `least` to `most`, with the smallest and the largest cohorts.

        All other round sizes in this range have cohorts of sizes between these.

        >>> Summation("secagg", max_cohort=1000).extremes(1990, 2010)
        [1990, 2000, 2001, 2010]
        """
        found = {least, most}
        if self.has_cohorts:
            bound = self.most_clients
            full = range(-(-least // bound) * bound, most + 1, bound)
            found.update(size for number in full for size in (number, number + 1) if size <= most)
        return sorted(found)

    def sharers(
        self, noise_by: NoiseBy | None, num_clients: Sequence[int], agreed: Terms | None = None
    ) -> int | None:
        """Return the fewest honest clients whose noise is surely in a sum; None: clients add none.

        Args:
            noise_by: the parties that add the noise; None: nobody adds noise.
            num_clients: the number of clients of each round.
            agreed: the terms of the secure sum; None: a trusted server sums.
        """
        if noise_by is not NoiseBy.CLIENTS:
            return None
        return self.honest_clients(num_clients) if agreed is None else agreed.honest_survivors

    def honest_clients(self, num_clients: Sequence[int]) -> int:
        """Return the fewest honest clients whose noise is surely in a sum of a trusted server.

        In this simulation the trusted server stands for secagg, with its corrupt clients and
        dropouts.

        Args:
            num_clients: the number of clients of each round; empty rounds are ignored.

        Raises:
            InvalidInputError: no honest client is sure to be in the smallest round.
        """
        sizes = [count for count in num_clients if count]
        least, corrupt = min(sizes), corrupt_clients(self.max_corrupt, max(sizes))
        honest = least - int(self.borne * least) - corrupt
        if honest < 1:
            raise InvalidInputError(
                f"a round of {least} clients, of which {corrupt} may be corrupt and"
                f" {self.borne:.0%} may drop out, has no honest client whose noise is sure: use"
                f" fewer or larger rounds, or a smaller {opt.max_corrupt}, or central trust"
            )
        return honest

    @property
    def most_clients(self) -> int:
        """The most clients of a cohort of secagg."""
        return self.max_cohort or MAX_COHORT[Adversary.parse(self.adversary)]


def unmet_by(method: SecureSum) -> dict[Need, str]:
    """Return the needs of options that a method of summing does not meet; see `plan.rules`."""
    return unmet(
        secagg=method is not SecureSum.SECAGG and method,
        two_server=method is not SecureSum.TWO_SERVER and method,
        protocol=method is SecureSum.IDEAL and method,
    )
