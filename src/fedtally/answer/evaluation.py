"""The true counts that a simulation knows, and the errors of an answer against them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.answer.estimates import Estimate, clip_limits
from fedtally.domain import Domain, OpenStrings
from fedtally.recovery.limits import Intervals
from fedtally.recovery.linear_system import Decoder, Ids

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
# Two shares of `NameEvaluation.threshold`. Precision judges the names whose estimate is at least
# _SHOWN of the threshold. A name is right if the true share of its string is at least _HELD of it.
_SHOWN, _HELD = 0.75, 0.5


class Evaluation(NamedTuple):
    """Errors of the frequencies of all candidates, against the clients that took part.

    Attributes:
        linf: the largest absolute error.
        l2: the root of the sum of squared errors.
        coverage: the share of all candidates whose interval holds the truth; None where there are
            no intervals. The intervals are those for items that somebody named beforehand.
        k: the length of the two lists: the k largest estimates and the k largest true counts.
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
    """Errors of the names and frequencies of an open domain, against the clients' strings.

    Attributes:
        threshold: the frequency above which names are looked for: twice the error that the plan is
            for; without a target, the smallest frequency of the list.
        strings: the number of strings whose true frequency is above the threshold.
        recall: the share of these strings that are named; None where there are none.
        precision: the share of right names among names whose estimate is at least three quarters of
            the threshold. A name is right if the true share of its string is at least half the
            threshold. None if there are no such names.
        named: the number of names that were read.
        wrong: the number of wrong names: nobody holds the string, or fewer than half of the clients
            with its hash hold it. Then most of these clients hold other strings.
        linf: the largest absolute error of a frequency, over all strings that somebody holds or
            that stand out. Strings with the same hash count together, here and below.
        l2: the root of the sum of the squared errors of the same frequencies.
        coverage: the share of the named strings whose interval holds the truth; None without
            intervals or names. The intervals are those for items that somebody named beforehand.
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
        positions: the positions in the domain of the items that somebody holds, sorted, int64 [n];
            the counts of all other items are 0.
        counts: the number of contributions that hold each of these items, int64 [n].
        fingerprints: only in an open domain: fingerprints of the strings, sorted, uint64 [m];
            `positions` then holds their hashes.
        held: the number of contributions that hold each of the m strings, int64 [m].
    """

    positions: I64
    counts: I64
    fingerprints: U64 | None = None
    held: I64 | None = None

    def at(self, positions: I64) -> I64:
        """Return the true counts at the given positions, int64."""
        return _looked_up(self.positions, self.counts, positions)

    def of_strings(self, fingerprints: U64) -> I64:
        """Return the true counts of the strings with these fingerprints, int64."""
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
    """Return the values of the wanted keys, 0 for keys that are missing; `keys` is sorted."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[found] == wanted, values[found], 0)


def evaluate(
    truth: Truth,
    domain: Domain,
    blocks: Iterable[tuple[int, Ids, F64]],
    intervals: Intervals | None,
    listed: Sequence[Estimate],
    num_contributions: int,
    k: int,
) -> Evaluation:
    """Return the errors of all candidates' estimates, and the overlap of top k and true top k.

    Args:
        truth: the true counts.
        domain: the candidates.
        blocks: triples of a block's first position, its ids and its estimated counts, for
            consecutive candidates. The frequencies of all candidates at once may not fit in memory.
        intervals: the intervals that give items their limits; None: no coverage is computed.
        listed: the k largest estimates.
        num_contributions: the number of contributions, of which frequencies are shares.
        k: the length of the two lists that are compared.
    """
    largest, squares, covered = 0.0, 0.0, 0
    for start, ids, block in blocks:
        true = truth.within(start, start + len(block)) / num_contributions
        errors = block / num_contributions - true
        largest = max(largest, float(np.abs(errors).max()))
        squares += float(errors @ errors)
        if intervals is not None:
            low, high = clip_limits(intervals.at(ids))
            covered += int(((low <= true) & (true <= high)).sum())
    k = min(k, domain.size)
    precision, recall = _overlap(truth, domain, listed, k)
    coverage = None if intervals is None else covered / domain.size
    return Evaluation(largest, squares**0.5, coverage, k, precision, recall)


def evaluate_names(
    truth: Truth,
    domain: OpenStrings,
    decoder: Decoder,
    intervals: Intervals | None,
    names: Mapping[int, str],
    found: I64,
    num_contributions: int,
    threshold: float,
) -> NameEvaluation:
    """Return how the read names match the frequent strings, and the frequencies' errors.

    Args:
        truth: the true counts.
        domain: the open domain.
        decoder: the decoder of the sums.
        intervals: the intervals that give items their limits; None: there are none.
        names: the names that were read, by hash.
        found: the hashes that stand out from the noise.
        num_contributions: the number of contributions, of which frequencies are shares.
        threshold: the frequency above which names are looked for.
    """
    hashes = np.array(sorted(names), np.uint64)
    fingerprints = domain.fingerprints([names[hash] for hash in hashes.tolist()])
    held, with_hash = truth.of_strings(fingerprints), truth.at(hashes.astype(np.int64))
    estimates = decoder.at(hashes) / num_contributions
    shown = estimates >= _SHOWN * threshold
    assert truth.fingerprints is not None
    assert truth.held is not None
    frequent = truth.fingerprints[truth.held > threshold * num_contributions]
    compared = np.union1d(truth.positions, found).astype(np.int64)
    of_hashes = truth.at(compared) / num_contributions
    errors = decoder.at(compared.view(np.uint64)) / num_contributions - of_hashes
    coverage = None
    if intervals is not None and len(hashes):
        low, high = clip_limits(intervals.at(hashes))
        true = with_hash / num_contributions
        coverage = float(((low <= true) & (true <= high)).mean())
    least = _HELD * threshold * num_contributions
    return NameEvaluation(
        threshold,
        len(frequent),
        float(np.isin(frequent, fingerprints).mean()) if len(frequent) else None,
        float((held[shown] >= least).mean()) if shown.any() else None,
        len(hashes),
        int(((held == 0) | (2 * held < with_hash)).sum()),
        float(np.abs(errors).max(initial=0.0)),
        float(np.sqrt(errors @ errors)),
        coverage,
    )


def _overlap(
    truth: Truth, domain: Domain, listed: Sequence[Estimate], k: int
) -> tuple[float, float]:
    """Return precision and recall of the k largest estimates against the k largest true counts."""
    if not k:
        return 0.0, 0.0
    # the domain cannot locate an empty list: it would not know the type of its items
    items = [estimate.item for estimate in listed]
    estimated = domain.locate(items) if items else np.empty(0, np.int64)
    best = np.lexsort((truth.positions, -truth.counts))[:k]
    if not len(best):
        return 0.0, 0.0
    # If fewer than k items have a true count above 0, each of them is a right answer.
    floor = truth.counts[best].min() if len(best) == k else 1
    good = truth.positions[truth.counts >= floor]
    return float(np.isin(estimated, good).sum() / max(1, len(estimated))), float(
        np.isin(truth.positions[best], estimated).mean()
    )
