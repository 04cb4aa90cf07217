"""The options for summing rounds, as a user requests them.

The terms of the protocol are computed from these options later.

>>> Summation("secagg", max_cohort=1000).sizes(2500), Summation("two-server").sizes(2500)
([834, 833, 833], [2500])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedtally.base import validate
from fedtally.base.shares import whole_share
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.options import MAX_CORRUPT, MIN_DROPOUT
from fedtally.plan.parts.summing import shared_out
from fedtally.plan.rules import Need, check, given, unmet
from fedtally.privacy.events import NoiseBy
from fedtally.secagg.config import SecureSum, Terms, needed_keys
from fedtally.secagg.params import MAX_CLIENTS, Adversary, Validity, corrupt_clients

# The most clients in a cohort, if the user sets no number. It is smaller against an active
# adversary, because a client's cost then grows with its cohort.
MAX_COHORT = {Adversary.SEMI_HONEST: 2000, Adversary.ACTIVE: 200}


@dataclass(frozen=True)
class Summation:
    """The requested options for summing rounds, with the dropouts and corrupt clients to plan for.

    Some methods do not use an option. Only "secagg" may have the adversary "active" or a
    `max_cohort`, only "two-server" a `validity`. For "ideal", `dropout` must be 0.

    Args:
        method: "ideal" (one trusted server), "secagg" (among the clients of a cohort) or
            "two-server"; a `SecureSum` or its name.
        adversary: the adversary that "secagg" resists: "semi-honest" or "active".
        dropout: the share of the clients of each sum that drops out in a simulation, 0 <= dropout <
            1.
        max_corrupt: the share of the clients of a sum that may be corrupt, 0 <= max_corrupt < 1.
        max_cohort: the most clients in a cohort, at least 3; a round with more clients is split.
            None: 2000, or 200 against an active adversary.
        min_cohort: the fewest clients with which a cohort may begin. None: the size of the smallest
            cohort when each round is split evenly.
        validity: whether the reports of "two-server" have proofs that they are valid, a `Validity`
            or its name. None: they have proofs if the plan allows proofs.
        max_dropout: the share of the clients of a sum that may drop out while the sum can still be
            opened, at least `dropout`. None: the larger of `dropout` and 5 %.

    Raises:
        InvalidInputError: a value is out of bounds, or the method may not have it.
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
        """Whether two servers sum; they open only the total of all rounds of a release."""
        return self.method is SecureSum.TWO_SERVER

    @property
    def opens_rounds(self) -> bool:
        """Whether the server gets the sum of each round by itself, once the round is complete.

        Two servers instead open only the total of the rounds of a release.
        """
        return not self.is_two_server

    @property
    def has_cohorts(self) -> bool:
        """Whether a round is split into cohorts, each with its own sum ("secagg")."""
        return self.method is SecureSum.SECAGG

    @property
    def has_identities(self) -> bool:
        """Whether each client needs a registered identity, with which it proves who it is."""
        return "allow_list" in needed_keys(self.method, Adversary.parse(self.adversary))

    @property
    def borne(self) -> float:
        """The share of a sum's clients that may drop out while the sum can still be opened."""
        assert self.max_dropout is not None
        return self.max_dropout

    def sizes(self, num_clients: int) -> list[int]:
        """Return the sizes of the cohorts that a round is split into, the larger ones first.

        The sizes differ by at most 1. Two servers do not split a round. An empty round has no
        cohorts. For a trusted server, which has no cohorts, the result is the same as for secagg.

        Args:
            num_clients: the number of clients of the round.

        >>> Summation("secagg", max_cohort=1000).sizes(2500)
        [834, 833, 833]
        """
        if self.is_two_server:
            return [num_clients] if num_clients else []
        number = -(-num_clients // self.most_clients)
        return shared_out(num_clients, number) if number else []

    def rounds_of_sum(self, releases: Sequence[range]) -> list[int]:
        """Return the different numbers of rounds that a secure sum may add up, smallest first.

        Args:
            releases: the rounds of each release (a sum that is opened).
        """
        return sorted({len(rounds) for rounds in releases}) if self.is_two_server else [1]

    def fits(self, sums: Sequence[int]) -> bool:
        """Return whether the method can make secure sums with these numbers of clients.

        Only two servers have a limit: one run of their protocol sums all clients of a release.

        Args:
            sums: the number of clients of each secure sum, which the method `sums` returned.
        """
        return not self.is_two_server or max(sums) <= MAX_CLIENTS

    def is_split(self, num_clients: int) -> bool:
        """Return whether a round of `num_clients` clients is split into several cohorts."""
        return self.has_cohorts and num_clients > self.most_clients

    def clients_of_sum(self, num_clients: float) -> float:
        """Return the mean number of clients in a sum of a round, if the share `borne` drops out.

        The number is not rounded. If a trusted server sums, nobody drops out.

        Args:
            num_clients: the number of clients of the round.

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

        Two servers sum all rounds of a release together. The other methods sum each round by
        itself.

        Args:
            sizes: the number of clients of each round.
            releases: the rounds of each release (a sum that is opened).
        """
        if not self.is_two_server:
            return list(sizes)
        return [sum(sizes[release.start : release.stop]) for release in releases]

    def extremes(self, least: int, most: int) -> list[int]:
        """Return sizes of a round, within limits, that have the smallest and largest cohorts.

        Every other size of the round between `least` and `most` has cohorts of sizes between these.

        Args:
            least: the fewest clients that the round may have.
            most: the most clients that the round may have.

        Returns:
            The sizes of the round, in rising order.

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
        """Return the fewest honest clients that are sure to be in a sum and to add noise.

        Returns None if the clients add no noise.

        Args:
            noise_by: the party that adds the noise; None: nobody adds noise.
            num_clients: the number of clients of each round.
            agreed: the terms of the secure sum; None: a trusted server sums.
        """
        if noise_by is not NoiseBy.CLIENTS:
            return None
        return self.honest_clients(num_clients) if agreed is None else agreed.honest_survivors

    def honest_clients(self, num_clients: Sequence[int]) -> int:
        """Return the fewest honest clients that are sure to be in a trusted server's sum.

        The trusted server stands for secagg in a simulation. So `max_corrupt` and `max_dropout`
        apply here, too. The sum has the clients of the smallest round. The number of corrupt
        clients is computed from the largest round.

        Args:
            num_clients: the number of clients of each round; empty rounds are ignored.

        Raises:
            InvalidInputError: no honest client is sure to be in the smallest round.
        """
        sizes = [count for count in num_clients if count]
        least, corrupt = min(sizes), corrupt_clients(self.max_corrupt, max(sizes))
        honest = least - whole_share(self.borne, least) - corrupt
        if honest < 1:
            raise InvalidInputError(
                f"a round of {least} clients, of which {corrupt} may be corrupt and"
                f" {self.borne:.0%} may drop out, has no honest client whose noise is sure: use"
                f" fewer or larger rounds, or a smaller {opt.max_corrupt}, or central trust"
            )
        return honest

    @property
    def most_clients(self) -> int:
        """The most clients of a cohort: `max_cohort`, or else the default for the adversary."""
        return self.max_cohort or MAX_COHORT[Adversary.parse(self.adversary)]


def unmet_by(method: SecureSum) -> dict[Need, str]:
    """Return the needs of options that a method of summing does not meet.

    The value of each need is the name of the method, for the error message (`plan.rules.unmet`).
    """
    return unmet(
        secagg=method is not SecureSum.SECAGG and method,
        two_server=method is not SecureSum.TWO_SERVER and method,
        protocol=method is SecureSum.IDEAL and method,
    )
