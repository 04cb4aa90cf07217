"""The truth that a simulation knows, and the errors of an answer against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.answer.estimates import clip_limits
from fedtally.domain import OpenStrings
from fedtally.errors import InvalidInputError, opt

if TYPE_CHECKING:
    from fedtally.answer.result import Result

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
_SHOWN, _HELD = 0.75, 0.5  # of the threshold: estimates that count, and shares that make them right


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


class NameEvaluation(NamedTuple):
    """Names and frequencies of an open domain, against the strings of the clients that took part.

    Attributes:
        threshold: the frequency from which names are looked for: twice the error that the plan is
            for, or without a target the smallest frequency of the list.
        strings: how many strings more clients hold than that.
        recall: the share of them that are named; None where there are none.
        precision: of the names with an estimate of at least three quarters of the threshold, the
            share of strings that at least half of the threshold hold; None where there are none.
        named: how many names were given.
        wrong: how many of them are of strings that fewer than half of the clients with that hash
            hold. Then most of what the hash counts is of another string.
        linf: the largest absolute error of a frequency, over all strings that somebody holds or
            that stand out. Strings of one hash count together, here and below.
        l2: the root of the sum of the squared errors of these.
        coverage: the share of the named strings whose interval holds the truth, each interval as of
            an item named beforehand; None without intervals or names.
    """

    threshold: float
    strings: int
    recall: float | None
    precision: float | None
    named: int
    wrong: int
    linf: float
    l2: float
    coverage: float | None


class Truth(NamedTuple):
    """The true counts, which only a simulation knows.

    Attributes:
        positions: the places of the items in the domain, sorted, int64 [n]. Other items are 0.
        counts: the number of contributions of each, int64 [n].
        fingerprints: where the domain is open, those of the strings, sorted, uint64 [m]; their
            hashes are the positions.
        held: the number of contributions of each of these strings, int64 [m].
    """

    positions: I64
    counts: I64
    fingerprints: U64 | None = None
    held: I64 | None = None

    def at(self, positions: I64) -> I64:
        """Return the true counts at the given positions, int64."""
        return _looked_up(self.positions, self.counts, positions)

    def of_strings(self, fingerprints: U64) -> I64:
        """Return the true counts of strings of an open domain, int64."""
        assert self.fingerprints is not None
        assert self.held is not None
        return _looked_up(self.fingerprints, self.held, fingerprints)

    def within(self, start: int, stop: int) -> F64:
        """Return the true counts at the positions start .. stop-1, float64."""
        dense = np.zeros(stop - start)
        part = slice(*np.searchsorted(self.positions, [start, stop]))
        dense[self.positions[part] - start] = self.counts[part]
        return dense


def _looked_up(keys: npt.NDArray[Any], values: I64, wanted: npt.NDArray[Any]) -> I64:
    """Return the values of some of the sorted keys, 0 for those that are not there."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[found] == wanted, values[found], 0)


def evaluate(result: Result, k: int) -> Evaluation | NameEvaluation:
    """Return the errors of all estimates of a result, and how its k largest overlap the true ones.

    Of an open domain: how the names overlap the frequent strings.

    Raises:
        InvalidInputError: the truth is not known.
    """
    if result.truth is None:
        raise InvalidInputError(
            f"the truth is not known here: run estimate with {opt.evaluate(True)}"
        )
    if isinstance(result.domain, OpenStrings):
        return _evaluate_names(result, result.domain, result.truth, k)
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


def _evaluate_names(result: Result, domain: OpenStrings, truth: Truth, k: int) -> NameEvaluation:
    target, clients = result.plan.target, result.num_contributions
    if target is not None:
        threshold = 2 * target.linf
    else:
        threshold = min((each.frequency for each in result.top(k)), default=0.0)
    hashes = np.array(sorted(result.names), np.uint64)
    names = domain.fingerprints([result.names[h] for h in hashes.tolist()])
    held, with_hash = truth.of_strings(names), truth.at(hashes.astype(np.int64))
    estimates = result.decoder.at(hashes) / clients
    shown = estimates >= _SHOWN * threshold
    assert truth.fingerprints is not None
    assert truth.held is not None
    frequent = truth.fingerprints[truth.held > threshold * clients]
    compared = np.union1d(truth.positions, result.found).astype(np.int64)
    of_hashes = truth.at(compared) / clients
    errors = result.decoder.at(compared.view(np.uint64)) / clients - of_hashes
    coverage = None
    if result.intervals is not None and len(hashes):
        low, high = clip_limits(result.intervals.at(hashes))
        true = with_hash / clients
        coverage = float(((low <= true) & (true <= high)).mean())
    return NameEvaluation(
        threshold,
        len(frequent),
        float(np.isin(frequent, names).mean()) if len(frequent) else None,
        float((held[shown] >= _HELD * threshold * clients).mean()) if shown.any() else None,
        len(hashes),
        int(((held == 0) | (2 * held < with_hash)).sum()),
        float(np.abs(errors).max(initial=0.0)),
        float(np.sqrt(errors @ errors)),
        coverage,
    )


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
