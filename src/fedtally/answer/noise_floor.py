"""The candidates that stand above noise, and the share below which an item may be noise."""

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
    """The estimates of all candidates, and the candidates that stand above noise.

    A candidate stands above noise if the lower limit of its frequency exceeds 0. For this, limits
    are made that hold for all candidates at once. So with the confidence of the limits, there is no
    candidate at all that stands above noise although nobody holds it.

    Attributes:
        frequencies: the estimates of all candidates, float64 [candidates], largest first.
        above: the positions in the domain of the candidates above noise, int64 [n], largest
            estimate first.
        shares: the estimates of the candidates above noise, float64 [n], in the same order.
        confidence: the least probability, 0 to 1, that `above` has no candidate that nobody holds.
        is_exact: whether the estimates are exact counts, without noise.
    """

    frequencies: F64
    above: np.ndarray[tuple[int], np.dtype[np.int64]]
    shares: F64
    confidence: float
    is_exact: bool

    @property
    def floor(self) -> float:
        """The noise floor: the share below which an estimate may be noise alone.

        If n candidates stand above noise, it lies between the n-th largest estimate and the next,
        so that n estimates exceed it, unless the two are equal. The candidates with these n
        estimates may be others than the n candidates above noise, since limits differ a little from
        item to item. The floor is 0 if all or no candidates stand above noise, or if estimates are
        exact.
        """
        number = len(self.above)
        if self.is_exact or not 0 < number < len(self.frequencies):
            return 0.0
        upper, lower = self.frequencies[number - 1 : number + 1].tolist()
        return float(np.sqrt(upper * lower)) if lower > 0 else upper / 2


def standing(result: Answer) -> Standing | None:
    """Return the estimates of all candidates, and which candidates stand above noise.

    Returns None if there are no limits, or if the domain is open (it has no list of candidates
    then). Returns None also for more than `MOST_AGAIN` candidates: to decode them all again would
    take too long.

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
    """Return the listed estimates as terminals and pages show them, in the same order.

    An item that does not stand above noise (`Answer.above_noise`) gets the lower limit 0: perhaps
    nobody holds it. `is_told_from_zero` is then False for it, unless its count is exact. If it is
    unknown which items stand above noise, no estimate changes.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 900, domain=["tea", "milk"], seed=1)
    >>> [one.low for one in doubted(result, result.estimates(["tea", "milk"]))]
    [1.0, 0.0]
    """
    return with_doubts(listed, result.above_noise(listed))
