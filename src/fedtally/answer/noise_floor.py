"""The candidates that surely stand above noise, and the share below which an item may be noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedtally.answer.answer_rows import MOST_AGAIN
from fedtally.answer.estimates import Estimate, with_doubts

if TYPE_CHECKING:  # commands that show only a plan must not load decoders
    from fedtally.answer.answer import Answer
    from fedtally.recovery.linear_system import F64


@dataclass(frozen=True)
class Standing:
    """All estimates of a result, and the candidates that surely stand above noise.

    An estimate stands above noise if its limits exclude 0, where the limits of all candidates hold
    at once. So, with the confidence of the limits, somebody holds each of these candidates.

    Attributes:
        frequencies: the estimates of all candidates, float64 [candidates], largest first.
        above: the positions in the domain of the candidates above noise, int64 [n], largest
            estimate first.
        shares: the estimates of the n candidates above noise, float64 [n].
        confidence: the probability, 0 to 1, that somebody holds every candidate in `above`.
        is_exact: whether the estimates are the counts themselves, without noise.
    """

    frequencies: F64
    above: np.ndarray[tuple[int], np.dtype[np.int64]]
    shares: F64
    confidence: float
    is_exact: bool

    @property
    def floor(self) -> float:
        """A share that exactly n estimates exceed, where n candidates stand above noise; else 0.

        It lies between the n-th and the next estimate. It is an approximation, since limits differ
        a little from item to item. It is 0 if all or no candidates stand above noise, or estimates
        are exact.
        """
        number = len(self.above)
        if self.is_exact or not 0 < number < len(self.frequencies):
            return 0.0
        upper, lower = self.frequencies[number - 1 : number + 1].tolist()
        return float(np.sqrt(upper * lower)) if lower > 0 else upper / 2


def standing(result: Answer) -> Standing | None:
    """Return all estimates, and the candidates that stand above noise; None if that is unknown.

    It is unknown without intervals, in an open domain (which has no list of candidates), and if
    there are more than `MOST_AGAIN` candidates to decode again.

    >>> import fedtally
    >>> found = standing(fedtally.estimate(["tea"] * 9, domain=["tea", "milk"], seed=1))
    >>> found.above.tolist(), found.shares.tolist()
    ([0], [1.0])
    """
    if result.domain.size > MOST_AGAIN or result.above_noise([]) is None:
        return None
    limits = result.limits(kind="simultaneous")
    assert limits is not None
    frequencies = result.frequencies()
    order = np.argsort(-frequencies, kind="stable")
    above = order[(limits.low > 0)[order]]
    return Standing(
        frequencies[order], above, frequencies[above], result.confidence, result.is_exact
    )


def doubted(result: Answer, listed: Sequence[Estimate]) -> list[Estimate]:
    """Return the estimates, with the lower limit 0 for each item that perhaps nobody holds.

    Terminals and pages show these estimates. A lower limit of 0 marks an item that cannot be told
    from 0.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 900, domain=["tea", "milk"], seed=1)
    >>> [one.low for one in doubted(result, result.estimates(["tea", "milk"]))]
    [1.0, 0.0]
    """
    return with_doubts(listed, result.above_noise(listed))
