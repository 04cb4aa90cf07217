"""The candidates that surely stand above noise, and the line below which nobody can tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedtally.answer.estimates import Estimate, with_doubts

if TYPE_CHECKING:  # who shows a plan needs no decoder
    from fedtally.answer.answer import Answer
    from fedtally.recovery.linear_system import F64

MOST = 1 << 20  # candidates that are looked at once more: seconds


@dataclass(frozen=True)
class Standing:
    """All estimates of a result, and the ones that stand above noise.

    An estimate stands above noise if its limits exclude 0, where the limits of all candidates hold
    at once. So no candidate that nobody holds is among them, with the confidence of the limits.

    Attributes:
        frequencies: float64 [candidates], largest first.
        above: int64 [n], positions of the candidates above noise, largest estimate first.
        shares: float64 [n], their estimates.
        confidence: the probability, 0 to 1, that somebody holds each of them.
        is_exact: whether the estimates are the counts themselves, without noise.
    """

    frequencies: F64
    above: np.ndarray[tuple[int], np.dtype[np.int64]]
    shares: F64
    confidence: float
    is_exact: bool

    @property
    def floor(self) -> float:
        """The share that as many estimates exceed as stand above noise; 0 where there is none.

        It lies between two estimates, since limits differ a little from item to item.
        """
        number = len(self.above)
        if self.is_exact or not 0 < number < len(self.frequencies):
            return 0.0
        upper, lower = self.frequencies[number - 1 : number + 1].tolist()
        return float(np.sqrt(upper * lower)) if lower > 0 else upper / 2


def standing(result: Answer) -> Standing | None:
    """Return which candidates stand above noise; None where nobody can say so.

    Nobody can where there are no intervals, where too many candidates would have to be decoded
    again, or where an open domain has no list of candidates.

    >>> import fedtally
    >>> found = standing(fedtally.estimate(["tea"] * 9, domain=["tea", "milk"], seed=1))
    >>> found.above.tolist(), found.shares.tolist()
    ([0], [1.0])
    """
    if result.domain.size > MOST or result.above_noise([]) is None:
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
    """Return the estimates of a list, with the lower limit 0 where an item may be nobody's.

    All that terminals and pages say of an item that cannot be told from 0 they say of these.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 900, domain=["tea", "milk"], seed=1)
    >>> [one.low for one in doubted(result, result.estimates(["tea", "milk"]))]
    [1.0, 0.0]
    """
    return with_doubts(listed, result.above_noise(listed))
