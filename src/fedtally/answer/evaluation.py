"""The true counts that a simulation knows, and the errors of an answer compared with them."""

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
# Two factors of `NameEvaluation.threshold`. Precision judges only names whose estimate is at least
# _SHOWN times the threshold. A name is right if the true share of its string is at least _HELD
# times the threshold.
_SHOWN, _HELD = 0.75, 0.5


class Evaluation(NamedTuple):
    """How far estimates of all candidates are from the true frequencies among the clients.

    Attributes:
        linf: the largest absolute error of a frequency.
        l2: the root of the sum of squared errors of frequencies.
        coverage: the share of all candidates whose limits contain the true frequency; None if there
            are no limits. The limits hold for items named beforehand, and do not allow for
            selection.
        k: the length of two lists: the k largest estimates, and the k largest true counts. A list
            is shorter if fewer items have an estimate of at least half a client, or a true count of
            at least 1.
        precision_at_k: the share of the first list that belongs in the second: items whose true
            count is at least the k-th largest true count, and at least 1. So all items that tie for
            the k-th place count as right.
        recall_at_k: the share of the second list that is also in the first. For the second list,
            ties for the k-th place are resolved by position.
    """

    linf: float
    l2: float
    coverage: float | None
    k: int
    precision_at_k: float
    recall_at_k: float


class NameEvaluation(NamedTuple):
    """How far the names and frequencies of an open domain are from the clients' strings.

    Attributes:
        threshold: the frequency from which names should be found: twice the plan's target for the
            largest error; without a target, the smallest frequency among the top items.
        strings: the number of strings whose true frequency is above the threshold.
        recall: the share of these strings that were named; None if there are no such strings.
        precision: the share of right names, among the names whose estimate is at least three
            quarters of the threshold. A name is right if the true share of its string is at least
            half the threshold. None if there are no such names.
        named: the number of names that were read.
        wrong: the number of wrong names. A name is wrong if nobody holds the string, or if fewer
            than half of the clients with its hash hold it.
        linf: the largest absolute error of a frequency, over all hashes that some client's string
            has or that stand out from the noise. Strings with the same hash are counted together.
        l2: the root of the sum of squared errors, over the same hashes as `linf`.
        coverage: the share of named hashes whose limits contain the true frequency; None if there
            are no limits or no names. The limits hold for items named beforehand.
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
    """The true counts of items, which only a simulation knows.

    Attributes:
        positions: the positions in the domain of the items that somebody holds, sorted, int64 [n].
            All other items have the count 0. In an open domain, hashes instead of positions.
        counts: the number of contributions that hold each of these items, int64 [n]. A contribution
            is what one client adds in one round.
        fingerprints: in an open domain, fingerprints of the strings that somebody holds, sorted,
            uint64 [m]; else None.
        held: in an open domain, the number of contributions that hold each of these strings, int64
            [m]; else None.
    """

    positions: I64
    counts: I64
    fingerprints: U64 | None = None
    held: I64 | None = None

    def at(self, positions: I64) -> I64:
        """Return the true counts at these positions (in an open domain: hashes), int64 [n].

        A count is a number of contributions. It is 0 for an item that nobody holds.
        """
        return _looked_up(self.positions, self.counts, positions)

    def of_strings(self, fingerprints: U64) -> I64:
        """Return the true counts of the strings with these fingerprints, int64 [n].

        A fingerprint is a second, longer hash of a string. It tells strings apart that have the
        same hash in the sketch (`OpenStrings.fingerprints`). A count is 0 for a string that nobody
        holds. Call this only if the domain is open.
        """
        assert self.fingerprints is not None
        assert self.held is not None
        return _looked_up(self.fingerprints, self.held, fingerprints)

    def within(self, start: int, stop: int) -> F64:
        """Return the true counts at the positions start .. stop - 1, float64 [stop - start].

        Call this only if the domain is not open.
        """
        dense = np.zeros(stop - start)
        part = slice(*np.searchsorted(self.positions, [start, stop]))
        dense[self.positions[part] - start] = self.counts[part]
        return dense


def _looked_up(keys: npt.NDArray[Any], values: I64, wanted: npt.NDArray[Any]) -> I64:
    """Return the value of each wanted key, int64 [wanted]; 0 for a key that is not in `keys`.

    Args:
        keys: the known keys, ascending.
        values: the value of each known key.
        wanted: the keys to look up, in any order.
    """
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
    """Compare the estimates of all candidates, and the list of the k largest, with the truth.

    Args:
        truth: the true counts.
        domain: the candidates.
        blocks: triples of a block's first position, its ids and its estimated counts, which cover
            all candidates in order. The candidates come in blocks since all at once may not fit in
            memory.
        intervals: the intervals that give items their limits; None: no coverage is computed.
        listed: the k largest estimates.
        num_contributions: the number of contributions that frequencies are shares of.
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
    """Compare the names that were read, and the frequencies, with the clients' strings.

    Args:
        truth: the true counts.
        domain: the open domain.
        decoder: the decoder of the sums.
        intervals: the intervals that give items their limits; None: there are none.
        names: the names that were read, by hash.
        found: the hashes that stand out from the noise, int64.
        num_contributions: the number of contributions that frequencies are shares of.
        threshold: the frequency from which names should be found.
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
    """Return precision and recall of the k largest estimates (see `Evaluation`).

    Both are 0 if k is 0 or nobody holds an item.

    Args:
        truth: the true counts.
        domain: the candidates.
        listed: the k largest estimates, or fewer.
        k: the length of the two lists that are compared.
    """
    if not k:
        return 0.0, 0.0
    estimated = domain.locate([estimate.item for estimate in listed])
    best = np.lexsort((truth.positions, -truth.counts))[:k]
    if not len(best):
        return 0.0, 0.0
    # If fewer than k items have a true count above 0, each of them is a right answer. Items that
    # nobody holds are never right.
    floor = truth.counts[best].min() if len(best) == k else 1
    good = truth.positions[truth.counts >= floor]
    return float(np.isin(estimated, good).sum() / max(1, len(estimated))), float(
        np.isin(truth.positions[best], estimated).mean()
    )
