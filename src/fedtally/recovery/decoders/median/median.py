"""The paper's decoders: medians over rows.

They are algorithms 1 and 2 and section 3 of Wu, Zhu, Kairouz and Braverman (2023). S_m is the value
of an item's counter in the sum of round m, and sign_m its sign there. Sums over rounds are over the
landed rounds: those that took place. The estimated count of the item is, by schedule:

- shared: median over rows of sign * sum over rounds of S_m;
- fresh: sum over rounds of the median over rows of sign_m * S_m;
- hybrid: median over rows of the sum over rounds of sign_m * S_m;
- batched: as hybrid, with the sums of batches in place of rounds.

A frequency is the estimated count divided by the number of clients in all landed rounds. So unequal
or missing rounds need no correction: it is the frequency among all clients that took part. The
median of an even number of rows is the mean of the two middle values.

The value in a row is exactly unbiased, since signs are pairwise independent. Under fully random
signs its error is symmetric, so the median is unbiased for any number of rows. The signs of
tabulation hashing are only 3-wise independent; `python -m experiments hashing` measures what this
costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.base import validate
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.kind import CampaignDecoder
from fedtally.recovery.linear_system import Candidates, ask, check_landed, landed_batches
from fedtally.recovery.phantoms import NUM_PHANTOMS, generator
from fedtally.recovery.shrinkage import EXACT, NORMAL, NORMAL_95, Noisy, noise_distribution
from fedtally.sketch import CountSketch, ScheduleKind, SketchSpec
from fedtally.sketch.hashing import tables_of_batches

F64 = npt.NDArray[np.float64]
U64 = npt.NDArray[np.uint64]
SCAN_BLOCK = 1 << 18  # ids that `scan` decodes at once, to bound the memory


class MedianDecoder(CampaignDecoder):
    """Estimates counts from the landed sums of a campaign, by medians over rows.

    Args:
        sketches: landed sums, all of one spec, at most one per round. Rounds may be missing, and
            may have different numbers of clients.
        expected: about how many ids will be decoded. For many ids larger tables are prepared, which
            are faster; the estimates are the same.

    Raises:
        InvalidInputError: there is no sketch, two sketches are of one round, or the sketches are
            histograms.
        IncompatibleError: the specs differ.

    >>> spec = SketchSpec(rows=5, width=64, schedule="hybrid", num_rounds=2, seed=bytes(32))
    >>> sums = [CountSketch(spec, 0), CountSketch(spec, 1)]
    >>> sums[0].add(np.array([1, 1, 2], np.uint64))
    >>> sums[1].add(np.array([1], np.uint64))
    >>> decoder = MedianDecoder(sums)
    >>> decoder.num_clients, decoder.at(np.array([1, 2], np.uint64)).tolist()
    (4, [3.0, 1.0])
    """

    recovery = Recovery.MEDIAN

    def __init__(self, sketches: Sequence[CountSketch], expected: int = 1 << 20) -> None:
        self.spec = check_landed(sketches)
        self.recovery.check_encoding(self.spec.encoding)
        self.num_clients = sum(sketch.num_clients for sketch in sketches)
        self._parts = _decoders(self.spec, sketches, expected)

    def at(self, ids: U64) -> F64:
        """Return the estimated count of each id: float64 [n]."""
        return _sum(part.at(ids) for part in self._parts)

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimated counts of the ids from `first_id` on (mod 2^64): float64 [count]."""
        return _sum(part.range(first_id, count) for part in self._parts)

    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the estimates, and their noise, which is measured with ids that nobody holds."""
        rng = generator(self.spec.seed, b"shrinkage")
        phantoms = self.at(candidates.fresh_ids(rng, NUM_PHANTOMS))
        stddev = float(np.quantile(np.abs(phantoms), 0.95)) / NORMAL_95
        law = noise_distribution(phantoms / stddev) if stddev > EXACT else NORMAL
        return Noisy(stddev, law, lambda ids: (ask(self, ids) / stddev, stddev))

    def scan(self, first_id: int, count: int, threshold: float) -> tuple[U64, F64]:
        """Return those ids of a range whose estimated count is at least `threshold`.

        The memory depends on how many ids are found, not on `count`.

        Args:
            first_id: the first id of the range; ids are counted mod 2^64.
            count: the number of ids in the range.
            threshold: the least estimated count.

        Returns:
            The ids, in the order of the range, uint64 [n], and their estimated counts, float64 [n].
        """
        validate.integer(0, count=count)
        found: list[tuple[U64, F64]] = []
        for start, size in _steps(count):
            estimates = self.range(first_id + start, size)
            hits = np.flatnonzero(estimates >= threshold)
            found.append((kernels.range_ids(first_id + start, size)[hits], estimates[hits]))
        if not found:
            return np.empty(0, np.uint64), np.empty(0)
        return np.concatenate([ids for ids, _ in found]), np.concatenate(
            [counts for _, counts in found]
        )


def _sum(parts: Iterator[F64]) -> F64:
    total = next(parts)
    for part in parts:
        total += part
    return total


def _steps(count: int) -> Iterator[tuple[int, int]]:
    for start in range(0, count, SCAN_BLOCK):
        yield start, min(SCAN_BLOCK, count - start)


def _decoders(
    spec: SketchSpec, sketches: Sequence[CountSketch], expected: int
) -> list[kernels.Decoder]:
    """Return decoders whose estimates add up: one for each round under "fresh", otherwise one."""
    if spec.schedule.kind is ScheduleKind.FRESH:
        return [
            kernels.Decoder(s.counters[None], spec.round_hash(s.round).location[None], expected)
            for s in sketches
        ]
    # Sums are exact in int64. If huge weights could overflow int64, float64 is used instead, with
    # 53 bits of precision.
    largest = sum(float(np.abs(sketch.counters.astype(np.float64)).max()) for sketch in sketches)
    batches = landed_batches(spec, sketches)
    place = {batch: index for index, batch in enumerate(batches)}
    sums: npt.NDArray[Any] = np.zeros(
        (len(batches), spec.rows, spec.width), np.int64 if largest < 2**62 else np.float64
    )
    for sketch in sketches:
        sums[place[spec.schedule.batch_of(sketch.round, spec.num_rounds)]] += sketch.counters
    return [kernels.Decoder(sums, tables_of_batches(spec.seed, spec.rows, batches), expected)]
