"""Intervals around the estimates of the paper's decoder.

They do not assume normal errors. The median over rows rarely has a large error: mostly if the item
shares cells with heavy items in half of the rows. The limits come from ids that no client holds,
since these have the same collisions. docs/recovery.md describes the method and its measured
coverage.
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

# Up to this confidence, limits that are not simultaneous are a quantile of the errors of phantoms
# (ids that no client holds). With a higher confidence too few phantoms lie beyond the quantile, and
# the distribution is computed instead.
_BY_PHANTOMS = 0.999
# Under schedule "fresh", or for several results, the estimate is a sum of medians. To compute its
# distribution, absolute values are rounded to multiples of a step. The largest possible sum is this
# number of steps.
_GRID = 1 << 16
# Unless the schedule is "fresh", the distribution of a row uses the sums of its cells under all
# patterns of signs. If these are more than this number, too many to sort, then only some patterns
# are used, which give about this number of sums.
_SIGNED_SUMS = 1 << 20
# The number of phantoms for the limits of a list. It is larger than NUM_PHANTOMS, since these
# limits depend on rarer events than those of a named item.
_LIST_PHANTOMS = 1 << 18


class MedianIntervals(UsualIntervals):
    """Intervals around medians over rows, all of one width for items that were named in advance.

    The width comes from phantoms: ids that no client holds. Up to a confidence of .999, pointwise
    intervals use a quantile of the phantoms' estimates. With a higher confidence, and in
    simultaneous intervals, rarer events matter. Then the exact distribution of a phantom's estimate
    given the sums is used, or with many batches a close approximation: in each row the phantom has
    a random cell and random signs. For an even number of rows, an upper bound on this
    distribution's tail is used. If items were chosen because their estimates reached a threshold,
    their lower limits use the distribution of an estimate given that it reached the threshold.

    Args:
        decoders: the decoder of one result, or of several results whose counts are added.
        landed: the sums of each result.
        domain: the candidate items.
        confidence: the confidence of the intervals, above 0 and below 1.
        kind: the kind of intervals, as in `make_intervals`.
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
        """The median of the largest error; an upper bound on it if the number of rows is even."""
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
        """Return intervals for the frequencies in several results together.

        Quantiles of the median's errors cannot be added, since these errors are rare and large. So
        a phantom's estimates in all results are added up. The width comes from the distribution of
        this total: from a quantile over the same phantoms in all results, or from the exact
        distribution. The class says when the exact distribution is used.

        Returns None unless all `others` are `MedianIntervals`, too.
        """
        medians = [self, *(one for one in others if isinstance(one, MedianIntervals))]
        if len(medians) <= len(others):
            return None
        decoders = [decoder for one in medians for decoder in one.decoders]
        landed = [part for one in medians for part in one.landed]
        return MedianIntervals(decoders, landed, domain, confidence, kind)

    @cached_property
    def _errors(self) -> F64:
        """The absolute estimates of phantoms, as frequencies, ascending: float64 [n]."""
        rng = generator(self.landed[0].spec.seed, b"list")
        drawn = Candidates(self._domain).fresh_ids(rng, _LIST_PHANTOMS)
        errors: F64 = np.sort(np.abs(self._values(drawn)))
        return errors

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return limits of items that were chosen by their estimates; see `Intervals.listed`.

        Collisions with heavy items make the tails of the errors long and uneven; `listed_lows`
        allows for this.
        """
        low, high = self.at(ids)
        if self._kind != "auto" or not len(ids):
            return Limits(low, high)
        values = (low + high) / 2
        # Only lower limits change: items are in the list because their estimates are large.
        given, anyhow = list_tails(self._alpha / 2, len(ids), self._size, threshold)
        least = values - max(self._distribution.exceeded_with(2.0 * anyhow), self.half) - ROUNDING
        if threshold is None:
            return Limits(least, high)
        return Limits(listed_lows(values, least, low, threshold, given, self._at_least), high)

    def _at_least(self, x: F64) -> F64:
        """Return the probability that an error is at least x, for each x."""
        # The signs are symmetric, so half of the errors of each size are positive.
        beyond = 1.0 - np.searchsorted(self._errors, np.abs(x) - ROUNDING) / len(self._errors)
        return np.where(x > 0, beyond / 2, 1.0 - beyond / 2)


class _MedianLaw:
    """The distribution of a phantom's estimated frequency, given the sums of the results.

    A phantom, an id that no client holds, has random cells and signs. If there are several results
    with different hashes, its estimated frequency is the sum of its estimated counts in all
    results, divided by the number of clients of all results.
    """

    def __init__(self, results: Sequence[Landed]) -> None:
        self._num_clients = sum(landed.num_clients for landed in results)
        # For each result (under schedule "fresh": for each of its batches) and each row: the
        # absolute values of the cells, ascending. A binary search counts those above a value.
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
        """Return the median of the largest of `size` independent absolute estimates."""
        return or_none(self.exceeded_with(1.0 - 0.5 ** (1.0 / size)), self._num_clients)

    def exceeded_with(self, probability: float) -> float:
        """Return the size, a frequency, that an absolute estimate exceeds with this probability."""
        if len(self._sizes) > 1:
            return float(self._grid[np.argmax(self._tail <= probability)])
        low, high = 0.0, max(float(row[-1]) for row in self._sizes[0])
        for _ in range(60):  # halves the range to below the precision of float64
            middle = (low + high) / 2
            beyond = float(self._beyond(self._sizes[0], np.array([middle]))[0]) > probability
            low, high = (middle, high) if beyond else (low, middle)
        return high

    def _beyond(self, sizes: list[F64], x: F64) -> F64:
        """Return the probability that the absolute median over rows exceeds x, for each x.

        It is the probability that at least half of the rows exceed x on the same side. For an even
        number of rows, this is an upper bound.

        Args:
            sizes: for each row the absolute values of its cells, ascending.
            x: sizes, at least 0.
        """
        need = (len(sizes) + 1) // 2
        # reached[i]: the probability that i rows are above x; the last: `need` or more rows.
        reached = np.zeros((need + 1, len(x)))
        reached[0] = 1.0
        for row in sizes:
            above = 0.5 * (1.0 - np.searchsorted(row, x, side="right") / len(row))
            # The probability differs between rows, so the number of rows above x is not binomial.
            up = reached[:-1] * above
            reached[:-1] -= up
            reached[1:] += up
        both: F64 = np.minimum(2.0 * reached[-1], 1.0)
        return both

    def _convolved(self) -> tuple[F64, F64]:
        """Return sizes, and the probability that the absolute sum of the medians exceeds each.

        The medians of rounds or results are independent, so the Fourier transforms of their
        distributions are multiplied. If there are more than a hundred of them, only about a hundred
        are transformed, each standing for several, to bound the time.
        """
        step = (
            float(max(sum(max(float(row[-1]) for row in sizes) for sizes in self._sizes), 1e-300))
            / _GRID
        )
        edges: F64 = step * (np.arange(_GRID + 1.0) + 0.5)
        reach = _GRID + len(self._sizes) + 1
        size = fft.next_fast_len(2 * reach, real=True)  # other lengths may take six times as long
        transform = np.ones(size // 2 + 1)
        alike = -(-len(self._sizes) // 100)
        for start in range(0, len(self._sizes), alike):
            stood_for = self._sizes[start : start + alike]
            tails = self._beyond(stood_for[-1], edges)
            # Sizes are rounded to multiples of the step. This is the probability of each multiple
            # with one sign.
            masses = -np.diff(tails) / 2
            signed = np.zeros(size)
            signed[0] = 1.0 - tails[0]
            signed[1 : _GRID + 1] = masses
            # Negative sums are at the end of the array, since the transform wraps around.
            signed[-1 : -_GRID - 1 : -1] = masses
            # The transform is real, since the distribution is symmetric. It may be negative, so
            # only integer powers exist.
            transform *= fft.rfft(signed).real ** len(stood_for)
        # Rounding leaves tiny negative probabilities; with them the tail could rise.
        density = np.maximum(fft.irfft(transform, size)[1 : reach + 1], 0.0)
        every: F64 = step * (np.arange(reach + 1.0) + 1.0)
        return every, np.append(2.0 * np.cumsum(density[::-1])[::-1], 0.0)


def _signed_sums(row: F64, rng: np.random.Generator) -> F64:
    """Return absolute sums over batches of sign * value, for a row's cells, ascending.

    All patterns of signs are used if they are few, otherwise random ones.

    Args:
        row: float64 [width, batches], the values of a row's cells.
        rng: draws the patterns.
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
