"""Intervals around the paper's estimates.

The intervals do not assume normal errors. The error of a median over rows is rare and large: it
occurs where the item shares cells with heavy items. The limits come from ids that no client holds,
which suffer the same collisions. docs/recovery.md has the construction and its measured coverage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy import fft

from fedtally.domain import Domain
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.limits import (
    ROUNDING,
    Intervals,
    Limits,
    UsualIntervals,
    list_tails,
    listed_lows,
    or_none,
)
from fedtally.recovery.linear_system import F64, U64, Candidates, Ids, Landed, ask
from fedtally.recovery.phantoms import NUM_PHANTOMS, generator

# The highest confidence whose limits are a quantile of the phantoms' errors. Above it too few
# phantoms lie beyond the quantile, and the exact distribution is used instead.
_BY_PHANTOMS = 0.999
# The number of sizes at which the distribution of the sum of several medians is tabulated (schedule
# "fresh", or several results): a power of two, for the fast Fourier transform.
_GRID = 1 << 16
# The number of sums under chosen signs that stand for a row (schedule "hybrid"). All 2^batches
# patterns of signs for every cell would be too many to sort.
_SIGNED_SUMS = 1 << 20
# The number of phantoms that stand for the distribution of the estimate in a list. It is larger
# than NUM_PHANTOMS because a list's limits depend on rarer events than those of a named item.
_LIST_PHANTOMS = 1 << 18


class MedianIntervals(UsualIntervals):
    """Intervals around the paper's estimates, of one width for all items named beforehand.

    The width comes from ids that no client holds (phantoms). Pointwise intervals use the quantile
    of the phantoms' estimates. Simultaneous ones need rarer events, and use the exact distribution
    of a phantom's estimate given the sums: rows are independent, each a uniform cell with uniform
    signs. For an even number of rows its tail is bounded by that of the upper of the two middle
    rows. In a list the lower limits come from the distribution of an estimate given that it reached
    the list.

    Args:
        decoders: decoders of one result, or of several whose counts are added.
        landed: the sums of each result.
        domain: the candidate items.
        confidence: confidence of each interval, above 0 and below 1.
        kind: kind as for `make_intervals`.
    """

    def __init__(
        self,
        decoders: Sequence[MedianDecoder],
        landed: Sequence[Landed],
        domain: Domain,
        confidence: float,
        kind: str = "pointwise",
    ) -> None:
        self.decoders, self.landed, self._size = decoders, landed, domain.size
        self._num_clients = sum(decoder.num_clients for decoder in decoders)
        self._domain, self._alpha, self._kind = domain, 1.0 - confidence, kind
        if kind == "simultaneous":  # Bonferroni: each of the d intervals may fail with alpha / d
            self.half = self._distribution.exceeded_with((1.0 - confidence) / domain.size)
            self.about = "all intervals hold at once; the exact law of the median given the sums"
        elif confidence > _BY_PHANTOMS:
            self.half = self._distribution.exceeded_with(1.0 - confidence)
            self.about = "one width, from the exact law of the median given the sums"
        else:
            phantoms = Candidates(domain).fresh_ids(
                generator(landed[0].spec.seed, b"median"), NUM_PHANTOMS
            )
            self.half = float(np.quantile(np.abs(self._values(phantoms)), confidence))
            self.about = f"one width, from what {NUM_PHANTOMS:,} ids held by nobody are given"

    @cached_property
    def _distribution(self) -> _MedianLaw:
        return _MedianLaw(self.landed)

    def _values(self, ids: Ids) -> F64:
        """Return the estimated frequencies of ids: float64 [n]."""
        counts: F64 = np.sum([ask(decoder, ids) for decoder in self.decoders], axis=0)
        return counts / self._num_clients

    @cached_property
    def predicted_linf(self) -> float:
        """The median of the largest error; for an even number of rows an upper bound of it."""
        return self._distribution.largest_of(self._size)

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        values = self._values(ids)
        return Limits(values - self.half - ROUNDING, values + self.half + ROUNDING)

    def centres(self, ids: Ids) -> None:
        """Return None: the errors are rare and large, not normal."""

    def merged(
        self, others: Sequence[Intervals], domain: Domain, confidence: float, kind: str
    ) -> MedianIntervals | None:
        """Return intervals of frequencies in several results together.

        The median's errors are rare and large, and the quantiles of such errors cannot be added. So
        ids that no client holds are asked of all results, and the sum of their estimates has its
        own quantile. The answer is None unless the median decoded all results.
        """
        medians = [self, *(one for one in others if isinstance(one, MedianIntervals))]
        if len(medians) <= len(others):
            return None
        decoders = [decoder for one in medians for decoder in one.decoders]
        landed = [part for one in medians for part in one.landed]
        return MedianIntervals(decoders, landed, domain, confidence, kind)

    @cached_property
    def _errors(self) -> F64:
        """The sizes of the estimates of ids that no client holds, rising."""
        rng = generator(self.landed[0].spec.seed, b"list")
        drawn = Candidates(self._domain).fresh_ids(rng, _LIST_PHANTOMS)
        errors: F64 = np.sort(np.abs(self._values(drawn)))
        return errors

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies.

        Collisions with heavy items give the distribution of the errors long and uneven tails, as
        `listed_lows` allows for.
        """
        low, high = self.at(ids)
        if self._kind != "auto" or not len(ids):
            return Limits(low, high)
        values = (low + high) / 2
        # Only low limits change: an item is in the list because its estimate is large.
        given, anyhow = list_tails(self._alpha / 2, len(ids), self._size, threshold)
        least = values - max(self._distribution.exceeded_with(2.0 * anyhow), self.half) - ROUNDING
        if threshold is None:
            return Limits(least, high)
        return Limits(listed_lows(values, least, low, threshold, given, self._at_least), high)

    def _at_least(self, x: F64) -> F64:
        """Return the probability that an error is at least x."""
        # The signs are symmetric, so half of the errors of each size lie on either side.
        beyond = 1.0 - np.searchsorted(self._errors, np.abs(x) - ROUNDING) / len(self._errors)
        return np.where(x > 0, beyond / 2, 1.0 - beyond / 2)


class _MedianLaw:
    """The distribution of the paper's estimate of an id that no client holds, given the sums.

    The id's cells and signs are random. For several results with different hashes it is the
    distribution of the estimate from all their clients.
    """

    def __init__(self, results: Sequence[Landed]) -> None:
        self._num_clients = sum(landed.num_clients for landed in results)
        # For each result (under schedule "fresh": for each of its rounds) and each row: the sizes
        # of the cells' values, rising, so that a search in them counts the cells above a value.
        self._sizes: list[list[F64]] = []
        for landed in results:
            weighted = (
                landed.frequencies * landed.weights * (landed.num_clients / self._num_clients)
            )
            if landed.fresh:
                self._sizes += [
                    list(np.sort(np.abs(weighted[..., m]), axis=1))
                    for m in range(weighted.shape[2])
                ]
            else:
                rng = generator(landed.spec.seed, b"law")
                self._sizes.append([_signed_sums(row, rng) for row in weighted])
        if len(self._sizes) > 1:
            self._grid, self._tail = self._convolved()

    def largest_of(self, size: int) -> float:
        """Return the median of the largest of `size` independent estimates."""
        return or_none(self.exceeded_with(1.0 - 0.5 ** (1.0 / size)), self._num_clients)

    def exceeded_with(self, probability: float) -> float:
        """Return the size, a frequency, that an estimate exceeds with this probability."""
        if len(self._sizes) > 1:
            return float(self._grid[np.argmax(self._tail <= probability)])
        low, high = 0.0, max(float(row[-1]) for row in self._sizes[0])
        for _ in range(60):  # halves the range to below the precision of float64
            middle = (low + high) / 2
            beyond = float(self._beyond(self._sizes[0], np.array([middle]))[0]) > probability
            low, high = (middle, high) if beyond else (low, middle)
        return high

    def _beyond(self, sizes: list[F64], x: F64) -> F64:
        """Return the probability that the median exceeds x in size.

        The median exceeds x if at least half of the rows exceed x on the same side.
        """
        need = (len(sizes) + 1) // 2
        # The probabilities of each number of rows above x; the last stands for `need` or more.
        reached = np.zeros((need + 1, len(x)))
        reached[0] = 1.0
        for row in sizes:
            above = 0.5 * (1.0 - np.searchsorted(row, x, side="right") / len(row))
            # The probability differs between rows, so the number is not binomial: add row by row.
            up = reached[:-1] * above
            reached[:-1] -= up
            reached[1:] += up
        both: F64 = np.minimum(2.0 * reached[-1], 1.0)
        return both

    def _convolved(self) -> tuple[F64, F64]:
        """Return sizes, and the probability that the sum of the medians exceeds each of them.

        The medians of rounds or results are independent, so the transforms of their distributions
        are multiplied. If there are more than a hundred, about a hundred of them stand for all, to
        bound the time.
        """
        step = (
            float(max(sum(max(float(row[-1]) for row in sizes) for sizes in self._sizes), 1e-300))
            / _GRID
        )
        edges: F64 = step * (np.arange(_GRID + 1.0) + 0.5)
        reach = _GRID + len(self._sizes) + 1
        size = fft.next_fast_len(2 * reach, real=True)  # others may take six times as long
        transform = np.ones(size // 2 + 1)
        alike = -(-len(self._sizes) // 100)
        for start in range(0, len(self._sizes), alike):
            stood_for = self._sizes[start : start + alike]
            tails = self._beyond(stood_for[-1], edges)
            # The probability of each size, rounded to a multiple of the step, on one side.
            masses = -np.diff(tails) / 2
            signed = np.zeros(size)
            signed[0] = 1.0 - tails[0]
            signed[1 : _GRID + 1] = masses
            # Negative sums stand at the end of the array, as the transform wraps around.
            signed[-1 : -_GRID - 1 : -1] = masses
            # The transform is real, since both sides are equal. It may be negative: only whole
            # powers exist.
            transform *= fft.rfft(signed).real ** len(stood_for)
        # Rounding leaves tiny negative probabilities, which would make the tail rise.
        density = np.maximum(fft.irfft(transform, size)[1 : reach + 1], 0.0)
        every: F64 = step * (np.arange(reach + 1.0) + 1.0)
        return every, np.append(2.0 * np.cumsum(density[::-1])[::-1], 0.0)


def _signed_sums(row: F64, rng: np.random.Generator) -> F64:
    """Return the sizes of every cell's sums over batches under many signs, rising.

    All patterns of signs are taken where these are few, random ones otherwise.
    """
    width, batches = row.shape
    patterns = 1 << (batches - 1)  # the first sign is fixed: its flip changes no size
    if batches - 1 > 20 or patterns * width > _SIGNED_SUMS:
        signs = rng.choice(np.array([-1.0, 1.0]), (batches, max(1, _SIGNED_SUMS // width)))
    else:
        bits = np.arange(patterns) >> np.arange(batches)[:, None] & 1
        signs = 1.0 - 2.0 * bits
    sizes: F64 = np.sort(np.abs(row @ signs).reshape(-1))
    return sizes
