"""The truth that a simulation knows, and the errors of an answer against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.errors import InvalidInputError
from fedtally.result.estimates import clip_limits

if TYPE_CHECKING:
    from fedtally.result.result import Result

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Evaluation(NamedTuple):
    """Errors of all candidates' frequencies against the true ones of the clients that took part.

    Attributes:
        linf: the largest absolute error.
        l2: the root of the sum of squared errors.
        coverage: the share of all candidates whose interval holds the truth, each interval as of an
            item named beforehand; None where there are no intervals.
        k: the length of the two lists that are compared.
        precision_at_k: the share of the k largest estimates whose true count is at least the k-th
            largest true count, and at least 1. Ties at the k-th place thus count as found.
        recall_at_k: the share of the k largest true counts (ties by position) that are among the k
            largest estimates.
    """

    linf: float
    l2: float
    coverage: float | None
    k: int
    precision_at_k: float
    recall_at_k: float


class Truth(NamedTuple):
    """The true counts, which only a simulation knows.

    Attributes:
        positions: the places of the items in the domain, sorted, int64 [n]. Other items are 0.
        counts: the number of contributions of each, int64 [n].
    """

    positions: I64
    counts: I64

    def at(self, positions: I64) -> I64:
        """Return the true counts at the given positions, int64."""
        if not len(self.positions):
            return np.zeros(len(positions), np.int64)
        found = np.minimum(np.searchsorted(self.positions, positions), len(self.positions) - 1)
        return np.where(self.positions[found] == positions, self.counts[found], 0)

    def within(self, start: int, stop: int) -> F64:
        """Return the true counts at the positions start .. stop-1, float64."""
        dense = np.zeros(stop - start)
        part = slice(*np.searchsorted(self.positions, [start, stop]))
        dense[self.positions[part] - start] = self.counts[part]
        return dense


def evaluate(result: Result, k: int) -> Evaluation:
    """Return the errors of all estimates of a result, and how its k largest overlap the true ones.

    Raises:
        InvalidInputError: the truth is not known.
    """
    if result.truth is None:
        raise InvalidInputError(
            "the truth is not known here: run estimate with evaluate=True (--evaluate)"
        )
    result.check_listed()
    # block by block: the frequencies of all candidates at once may not fit in memory
    largest, squares, covered = 0.0, 0.0, 0
    for start, ids, block in result.blocks():
        truth = result.truth.within(start, start + len(block)) / result.num_contributions
        errors = block / result.num_contributions - truth
        largest = max(largest, float(np.abs(errors).max()))
        squares += float(errors @ errors)
        if result.intervals is not None:
            low, high = clip_limits(result.intervals.at(ids))
            covered += int(((low <= truth) & (truth <= high)).sum())
    k = min(k, result.domain.size)
    precision, recall = _overlap(result, k)
    coverage = None if result.intervals is None else covered / result.domain.size
    return Evaluation(largest, squares**0.5, coverage, k, precision, recall)


def _overlap(result: Result, k: int) -> tuple[float, float]:
    """Return precision and recall of the k largest estimates against the k largest true counts."""
    truth = result.truth
    if truth is None or not k:
        return 0.0, 0.0
    estimated = (  # the domain cannot locate an empty list: it would not know the type of its items
        result.domain.locate([e.item for e in listed])
        if (listed := result.top(k))
        else np.empty(0, np.int64)
    )
    best = np.lexsort((truth.positions, -truth.counts))[:k]
    if not len(best):
        return 0.0, 0.0
    # Fewer than k items are true at all: then any of them is a right answer.
    floor = truth.counts[best].min() if len(best) == k else 1
    good = truth.positions[truth.counts >= floor]
    return float(np.isin(estimated, good).sum() / max(1, len(estimated))), float(
        np.isin(truth.positions[best], estimated).mean()
    )
