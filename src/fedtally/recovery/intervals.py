"""Confidence intervals for estimates, and a simultaneous band for all of them.

What they cover: the frequency of an item among the clients that took part, for an item fixed in
advance, or for all candidates of a kind, over the hash seed; the data must not depend on the seed.
A list chosen by its estimates suffers the winner's curse, and has limits of its own. The sampling
of those clients from a wider population is separate: `sampling_error`.

The error of an estimate comes from who else lies in the item's cells, and fresh ids, held by nobody
and drawn here (*phantoms*), suffer the same. docs/recovery.md has the construction and its measured
coverage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, log_ndtr, ndtr, ndtri

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.joint import NUM_PHANTOMS, Fit, JointDecoder, LeaveOneOut, generator
from fedtally.recovery.linear_system import F64, U64, Candidates, Ids, Landed, ask
from fedtally.recovery.median import MedianDecoder
from fedtally.sketch import CountSketch

KINDS = ("auto", "pointwise", "simultaneous", "order")
# where it is not measured: one batch of rounds, five or more; the upper end of what was measured
KAPPA = (1.25, 1.06)
_SPIKED = 0.03  # items added to measure kappa, as a share of one sketch's cells; at most 300
_SPIKES = (8, 300)  # at least, at most
_ALL_SPIKES = 150  # in all, at least, but for ...
_MOST_REPEATS = 16
_LEAST_SPIKES = 60
_NOTHING = 0.01  # clients: below so much noise the floor of one client rules every interval
# standard deviations from which an item that is not fitted counts for the largest error
_NEARLY = 2.5
_UNSTABLE = 1.2  # by how much larger kappa is taken then
_TIPPED = 1.3  # growth of the noise by which added items show that they spoil the fit
_MOST_CANDIDATES = 1 << 26  # more would make the re-decodes felt
_ALL_CANDIDATES = 1 << 18  # in a larger domain only those that stand out by ...
# ... so many standard deviations are candidates when it is decoded again: kappa differs by its
# noise
_CONTENDERS = 1.5
_BAND_SLACK = 1.06  # measured on other seeds than those it is checked on (experiments band)
# how many sd above its value an item off the support may lie, at most: rarer ones are given up ...
_REACH = 3.5
_BEYOND = 1.54  # ... or so many past the symmetric limit, if that is more
_BY_PHANTOMS = 0.999  # confidence up to which phantoms are enough
_GRID = 1 << 16  # sizes at which the distribution of the paper's estimate is known, for fresh
_SIGNED_SUMS = 1 << 20  # sums under chosen signs that stand for a row, for hybrid
_ROUNDING = 1e-12  # by which an exact answer may miss the truth
_NORMAL_MAX = 8.0  # sd from the threshold beyond which selection no longer matters
# of a list's error below: for limits that hold however it was chosen; the rest given how it was
# chosen
_ANYHOW = 0.1
# ids held by nobody that stand for the distribution of the paper's estimate in a list
_LIST_PHANTOMS = 1 << 18
_STEPS = 200  # lower limits tried for each item of a list, ...
_AT_ONCE = 4096  # so many items at once


class Limits(NamedTuple):
    """Lower and upper limits of frequencies: float64 [n] each."""

    low: F64
    high: F64


class Intervals(Protocol):
    """What gives every id an interval.

    Attributes:
        about: what was computed, in words; "" where there is nothing to say, since recovery is
            exact.
    """

    about: str

    @property
    def predicted_linf(self) -> float:
        """The median of the largest error of all candidates' frequencies."""

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, named beforehand, in frequencies."""

    def centres(self, ids: Ids) -> F64 | None:
        """Return the values whose errors the limits bound, in frequencies; None where these are not normal.

        Normal errors of independent results add up in squares; quantiles of others do not.
        """

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies; those of kind "auto" are valid for such a list.

        Args:
            ids: uint64 [n], the whole list.
            threshold: the frequency that an estimate had to reach for its item to be listed; None:
                not known.
        """


def make_intervals(
    decoder: MedianDecoder | JointDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float = 0.95,
    kind: str = "pointwise",
) -> Intervals:
    """Return intervals for the frequencies that a decoder estimates.

    Args:
        decoder: the decoder of these sketches.
        sketches: the landed sums.
        domain: the candidate items.
        confidence: above 0 and below 1.
        kind: "auto": "pointwise", but lists have limits that allow for the choice of their items;
            "pointwise": each interval of an item named beforehand holds with this confidence;
            "simultaneous": all candidates' do at once; "order": pointwise by order statistics of
            the rows, wide, but assuming nothing beyond random signs.

    Raises:
        InvalidInputError: a level outside (0, 1), an unknown kind, or too few rows for order
            statistics.
    """
    check_confidence(confidence)
    if kind not in KINDS:
        raise InvalidInputError(
            f"intervals must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {kind!r}"
        )
    if isinstance(decoder, JointDecoder) and decoder.fallback is None and kind != "order":
        return JointIntervals(decoder.fit, confidence, domain.size, kappa_of(decoder.fit), kind)
    landed = Landed(decoder.spec, sketches)
    if kind == "order":
        return OrderIntervals(landed, confidence, domain.size)
    median = (
        decoder
        if isinstance(decoder, MedianDecoder)
        else MedianDecoder(sketches, expected=domain.size)
    )
    return MedianIntervals([median], [landed], domain, confidence, kind)


def merged_intervals(
    made: Sequence[Intervals], shares: Sequence[float], domain: Domain, confidence: float, kind: str
) -> Intervals | None:
    """Return intervals of frequencies in several results together; None where they are not all of the median.

    Quantiles of rare and large errors do not add up. So ids that nobody holds are asked of all
    results, and what they are given in the sum has its own quantile.

    Args:
        made: of results with different hashes.
        shares: of each result in the contributions of all.
        domain: that they have in common.
        confidence: that they have in common.
        kind: that they have in common.
    """
    noise = [
        share * one.relative if isinstance(one, NoisyNumberIntervals) else 0.0
        for one, share in zip(made, shares, strict=True)
    ]
    plain = [one.intervals if isinstance(one, NoisyNumberIntervals) else one for one in made]
    medians = [one for one in plain if isinstance(one, MedianIntervals)]
    if len(medians) < len(made):
        return None
    decoders = [decoder for one in medians for decoder in one.decoders]
    landed = [each for one in medians for each in one.landed]
    merged = MedianIntervals(decoders, landed, domain, confidence, kind)
    relative = float(np.hypot.reduce(noise))
    return NoisyNumberIntervals(merged, relative, confidence) if relative else merged


class NoisyNumberIntervals:
    """Intervals of frequencies where the number of clients, by which counts are divided, has noise too.

    A frequency f is too large by f times the relative error of that number: half-widths add as
    squares.

    Args:
        intervals: of frequencies of the number as it was released.
        relative: standard deviation of the number, divided by it.
        confidence: of the intervals.
    """

    def __init__(self, intervals: Intervals, relative: float, confidence: float) -> None:
        self.intervals, self.relative = intervals, relative
        self._share = float(-ndtri((1.0 - confidence) / 2)) * relative
        noise = f"the noise of the number of clients, {100 * relative:.2g} % of it, is in them"
        self.about = f"{intervals.about}; {noise}" if intervals.about else noise

    @property
    def predicted_linf(self) -> float:
        """The median of the largest error, the number of clients taken as exact."""
        return self.intervals.predicted_linf

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        return self._widened(self.intervals.at(ids))

    def centres(self, ids: Ids) -> F64 | None:
        """Return the values whose errors the limits bound, in frequencies; None where these are not normal."""
        return self.intervals.centres(ids)

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies."""
        return self._widened(self.intervals.listed(ids, threshold))

    def _widened(self, limits: Limits) -> Limits:
        low, high = limits
        middle, half = (low + high) / 2, (high - low) / 2
        more = np.sqrt(half**2 + (self._share * middle) ** 2) - half
        return Limits(low - more, high + more)


def check_confidence(confidence: float) -> float:
    """Return a level above 0 and below 1.

    >>> check_confidence(0.95)
    0.95
    """
    confidence = _validate.real(confidence=confidence)
    if not 0 < confidence < 1:
        raise InvalidInputError(f"confidence must be above 0 and below 1, got {confidence}")
    return confidence


class MedianIntervals:
    """Intervals around the paper's estimates, of one width for all items named beforehand.

    Pointwise, from phantoms: the quantile of what they are given. Simultaneous, from the exact
    distribution of a phantom given
    the sums: rows are independent, each a uniform cell with uniform signs. For an even number of
    rows its tail is bounded, by that of the upper of the two middle rows. In a list, from phantoms
    too: the distribution of an estimate given that it reached the list.

    Args:
        decoders: of one result, or of several whose counts are added.
        landed: the sums of each.
        domain: the candidate items.
        confidence: of each interval, above 0 and below 1.
        kind: as for `make_intervals`, but "order".
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
        if kind == "simultaneous":
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
        """Return estimated frequencies."""
        counts: F64 = np.sum([ask(decoder, ids) for decoder in self.decoders], axis=0)
        return counts / self._num_clients

    @cached_property
    def predicted_linf(self) -> float:
        """The median of the largest error; an upper bound of it for an even number of rows."""
        return self._distribution.largest_of(self._size)

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        values = self._values(ids)
        return Limits(values - self.half - _ROUNDING, values + self.half + _ROUNDING)

    def centres(self, ids: Ids) -> None:
        """Return None: errors are rare and large, and not normal."""

    @cached_property
    def _errors(self) -> F64:
        """Sizes of what ids held by nobody are given, rising."""
        rng = generator(self.landed[0].spec.seed, b"list")
        drawn = Candidates(self._domain).fresh_ids(rng, _LIST_PHANTOMS)
        errors: F64 = np.sort(np.abs(self._values(drawn)))
        return errors

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies.

        The distribution of the errors has long tails, where collisions with heavy items lie, so a
        value below which each
        frequency is implausible may have plausible ones below it: frequencies are tried one by one,
        from the least that is plausible however the list was chosen.
        """
        low, high = self.at(ids)
        if self._kind != "auto" or not len(ids):
            return Limits(low, high)
        values = (low + high) / 2
        given, anyhow = list_tails(self._alpha / 2, len(ids), self._size, threshold)
        least = values - max(self._distribution.exceeded_with(2.0 * anyhow), self.half) - _ROUNDING
        if threshold is None:
            return Limits(least, high)
        found = np.empty(len(values))
        for part in (slice(start, start + _AT_ONCE) for start in range(0, len(values), _AT_ONCE)):
            tried = least[part, None] + (low - least)[part, None] * np.linspace(0.0, 1.0, _STEPS)
            plausible = self._at_least(values[part, None] - tried) >= given * self._at_least(
                threshold - tried
            )
            plausible[:, -1] = True
            found[part] = np.take_along_axis(tried, plausible.argmax(axis=1)[:, None], axis=1)[:, 0]
        return Limits(found, high)

    def _at_least(self, x: F64) -> F64:
        """Return the probability that an error is at least x."""
        beyond = 1.0 - np.searchsorted(self._errors, np.abs(x) - _ROUNDING) / len(self._errors)
        return np.where(x > 0, beyond / 2, 1.0 - beyond / 2)


class OrderIntervals:
    """Intervals from order statistics of the rows: distribution-free.

    An item's row estimates are independent and symmetric about its frequency, under random signs.
    So the k-th smallest and the k-th largest of L rows enclose it with probability at least 1 - 2
    P(Bin(L, 1/2) < k).
    """

    def __init__(self, landed: Landed, confidence: float, size: int) -> None:
        rows = landed.spec.rows
        self._k, level = order_statistic(rows, confidence)
        self._rows, self._landed, self._size = landed.rows(), landed, size
        self.about = (
            f"order statistics {self._k} and {rows + 1 - self._k} of {rows} rows, level {level:.4g}"
        )

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        estimates = np.stack([ask(row, ids) for row in self._rows])
        ends = (self._k - 1, len(self._rows) - self._k)
        ordered = np.partition(estimates, ends, axis=0)
        return Limits(ordered[ends[0]] - _ROUNDING, ordered[ends[1]] + _ROUNDING)

    def centres(self, ids: Ids) -> None:
        """Return None: nothing is assumed of the errors but random signs."""

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of any ids, in frequencies: those of items named beforehand."""
        return self.at(ids)

    @cached_property
    def predicted_linf(self) -> float:
        """The median of the largest error of the medians; an upper bound of it for an even number of rows."""
        return _MedianLaw([self._landed]).largest_of(self._size)


def order_statistic(rows: int, confidence: float) -> tuple[int, float]:
    """Return the largest k whose k-th smallest and largest of `rows` values hold with `confidence`, and their level.

    >>> order_statistic(9, 0.9)
    (2, 0.9609375)

    Raises:
        InvalidInputError: too few rows.
    """
    levels = [1.0 - 2.0 * float(bdtr(k - 1, rows, 0.5)) for k in range(1, rows // 2 + 1)]
    sound = [k for k, level in enumerate(levels, start=1) if level >= confidence]
    if not sound:
        needed = int(np.ceil(1.0 - np.log2(1.0 - confidence)))
        best = f"; {rows} rows give at most {levels[0]:.4g}" if levels else ""
        raise InvalidInputError(
            f"order statistics need at least {needed} rows for a confidence of {confidence:.12g},"
            f" the sketches have {rows}{best}: lower the confidence, or take another kind of"
            " interval"
        )
    return sound[-1], levels[sound[-1] - 1]


class _MedianLaw:
    """The distribution of the paper's estimate of an id held by nobody, over its cells and signs; the sums are fixed.

    Of several results with hashes of their own it is that of the estimate from all their clients.
    """

    def __init__(self, results: Sequence[Landed]) -> None:
        self._num_clients = sum(landed.num_clients for landed in results)
        # Of each result, and for fresh of each of its rounds: by row, what a cell gives, rising.
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
        """Return the median of the largest of so many."""
        return _or_none(self.exceeded_with(1.0 - 0.5 ** (1.0 / size)), self._num_clients)

    def exceeded_with(self, probability: float) -> float:
        """Return the size that is exceeded with this probability."""
        if len(self._sizes) > 1:
            return float(self._grid[np.argmax(self._tail <= probability)])
        low, high = 0.0, max(float(row[-1]) for row in self._sizes[0])
        for _ in range(60):
            middle = (low + high) / 2
            beyond = float(self._beyond(self._sizes[0], np.array([middle]))[0]) > probability
            low, high = (middle, high) if beyond else (low, middle)
        return high

    def _beyond(self, sizes: list[F64], x: F64) -> F64:
        """Return the probability that the median exceeds x in size: at least half of the rows do, on one side."""
        need = (len(sizes) + 1) // 2
        # probability of so many rows above x, the last: or more
        reached = np.zeros((need + 1, len(x)))
        reached[0] = 1.0
        for row in sizes:
            above = 0.5 * (1.0 - np.searchsorted(row, x, side="right") / len(row))
            up = reached[:-1] * above
            reached[:-1] -= up
            reached[1:] += up
        both: F64 = np.minimum(2.0 * reached[-1], 1.0)
        return both

    def _convolved(self) -> tuple[F64, F64]:
        """Return sizes, and the probability that the sum of the medians, of rounds or results, exceeds each.

        Of more than a hundred a hundred stand for all.
        """
        step = (
            float(max(sum(max(float(row[-1]) for row in sizes) for sizes in self._sizes), 1e-300))
            / _GRID
        )
        edges: F64 = step * (np.arange(_GRID + 1.0) + 0.5)
        reach = _GRID + len(self._sizes) + 1
        transform = np.ones(reach + 1, complex)
        taken = self._sizes[:: -(-len(self._sizes) // 100)]
        for sizes in taken:
            tails = self._beyond(sizes, edges)
            # of each size, taken as the nearest multiple of the step, on either side
            masses = -np.diff(tails) / 2
            signed = np.zeros(2 * reach)
            signed[0] = 1.0 - tails[0]
            signed[1 : _GRID + 1] = masses
            signed[-1 : -_GRID - 1 : -1] = masses
            transform *= np.fft.rfft(signed)
        transform = (
            transform.real ** (len(self._sizes) / len(taken))
            if len(taken) < len(self._sizes)
            else transform
        )
        density = np.maximum(np.fft.irfft(transform, 2 * reach)[1 : reach + 1], 0.0)
        every: F64 = step * (np.arange(reach + 1.0) + 1.0)
        return every, np.append(2.0 * np.cumsum(density[::-1])[::-1], 0.0)


def _signed_sums(row: F64, rng: np.random.Generator) -> F64:
    """Return the sizes of sums over batches under all signs, or many random ones, of every cell: rising."""
    width, batches = row.shape
    patterns = 1 << (batches - 1)
    if batches - 1 > 20 or patterns * width > _SIGNED_SUMS:
        signs = rng.choice(np.array([-1.0, 1.0]), (batches, max(1, _SIGNED_SUMS // width)))
    else:
        bits = np.arange(patterns) >> np.arange(batches)[:, None] & 1
        signs = 1.0 - 2.0 * bits
    sizes: F64 = np.sort(np.abs(row @ signs).reshape(-1))
    return sizes


class Kappa(NamedTuple):
    """The scale of fitted items' errors over that of phantoms, and where it comes from; "" where nothing is left."""

    value: float
    source: str


class JointIntervals:
    """Intervals around the leave-one-out values of a joint fit.

    An item's leave-one-out value e = f + error, with an error of standard deviation scale /
    sqrt(b). Three corrections: heavy items see kappa times the scale that phantoms see, since whom
    to fit was chosen to make the residual small; an item was fitted because its e was large (or
    not, because it was small), so its limits are those of a normal variable given that; and below
    one client nothing is claimed. In a list an item's e was larger still, and the lower limit is
    that of a normal variable given that, no lower than one that holds however the list was chosen.

    Attributes:
        fit: the joint fit.
        kappa: the scale of fitted items' errors over that of phantoms.

    Args:
        fit: the joint fit.
        confidence: level of each interval, above 0 and below 1.
        size: number of candidates.
        kappa: the scale of fitted items over that of phantoms.
        kind: as for `make_intervals`, but "order".
    """

    def __init__(
        self, fit: Fit, confidence: float, size: int, kappa: Kappa, kind: str = "pointwise"
    ) -> None:
        self.fit, self._alpha = fit, 1.0 - confidence
        self.kappa = kappa.value
        self._kind, self._size = kind, size
        self._one_client = 1.0 / fit.landed.num_clients + _ROUNDING
        about = ["all intervals hold at once"] if kind == "simultaneous" else []
        if kappa.source:
            about.append(
                f"errors of fitted items are {kappa.value:.3g} times those of ids held by nobody"
                f" ({kappa.source})"
            )
        self.about = "; ".join(about)
        distribution = self._distribution = _PhantomLaw(fit)
        # tails heavier than normal, at high confidence
        self._stretch = distribution.excess(self._alpha / 2)
        tail = self._alpha / (2 * size)
        self._band = (
            _BAND_SLACK
            * kappa.value
            * float(np.std(fit.null))
            * float(-ndtri(tail))
            * distribution.excess(tail)
        )
        self.predicted_linf = self._largest_error(distribution, size)

    def _largest_error(self, distribution: _PhantomLaw, size: int) -> float:
        """Return the size that an expected ln 2 errors exceed: the median of the largest.

        It is most often that of a light item that stood out by chance, and was fitted: then nothing
        is left of it in the residual. On the low side, and among the fitted items, there is no such
        selection. An item that nearly stood out, and was not fitted, lacks what is absorbed of it.
        """
        fit = self.fit
        share = float(fit.share.mean())
        low = 1.0 if fit.shrinks else share
        own = np.sqrt(fit.own_shares) / (self.kappa * fit.scale)
        _, items, z = fit.standing_out(_NEARLY)
        nearly = ~items.fitted & (z > _NEARLY)
        lacking = (items.values - items.estimate)[nearly]
        spread = fit.scale / np.sqrt(items.share[nearly])

        def more_than_half(x: float) -> float:
            light = (
                (size - len(own))
                * (distribution.beyond(x * low) + distribution.beyond(x * share / self.kappa))
                / 2
            )
            unfitted = float(ndtr((lacking - x) / spread).sum())
            return light + unfitted + 2.0 * float(ndtr(-x * own).sum()) - float(np.log(2.0))

        most = (
            60.0 * distribution.sd / share
            + 10 / max(own.min(initial=np.inf), 1e-300)
            + 10 * spread.max(initial=0.0)
        )
        return _or_none(
            _solve(more_than_half, most + lacking.max(initial=0.0)), fit.landed.num_clients
        )

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        return self._limits(self.fit.leave_one_out(ids))

    def centres(self, ids: Ids) -> F64:
        """Return the leave-one-out values, in frequencies."""
        return self.fit.leave_one_out(ids).values

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies."""
        items = self.fit.leave_one_out(ids)
        low, high = self._limits(items)
        if self._kind != "auto" or not len(ids):
            return Limits(low, high)
        # Off the support an estimate is e, or b e: what e had to reach for it to be listed.
        shrunk = np.where(items.fitted | (not self.fit.shrinks), 1.0, items.share)
        sd = self.fit.scale / np.sqrt(items.share)
        reached = None if threshold is None else threshold / shrunk / sd
        given, anyhow = list_tails(self._alpha / 2, len(ids), self._size, threshold)
        most = float(-ndtri(anyhow)) * self._distribution.excess(anyhow)
        z = items.values / sd
        below = list_lows(z, items.fitted, self.fit.threshold, self.kappa, given, most, reached)
        return Limits(np.minimum(low, items.values + (below - z) * sd), high)

    def _limits(self, items: LeaveOneOut) -> Limits:
        root = np.sqrt(items.share)
        if self._kind == "simultaneous":
            half = np.maximum(self._band / root, self._one_client)
            return Limits(items.values - half, items.values + half)
        sd = self.fit.scale / root
        z = items.values / sd
        low, high = selective_limits(z, items.fitted, self.fit.threshold, self.kappa, self._alpha)
        low, high = (
            items.values + self._stretch * (low - z) * sd,
            items.values + self._stretch * (high - z) * sd,
        )
        one = self._one_client
        return Limits(np.minimum(low, items.values - one), np.maximum(high, items.values + one))


def kappa_of(fit: Fit) -> Kappa:
    """Return the scale of fitted items' errors over that of phantoms, by adding known items to the sums.

    Fresh ids get values as the support has them, Poisson in every round, and the whole decoding is
    repeated. Their errors are compared with what the same ids, held by nobody, are given by the fit
    itself. Where the added items spoil the fit, fewer are added; in domains too large to be decoded
    again, a constant is taken.
    """
    landed = fit.landed
    one, many = KAPPA
    constant = many + (one - many) * max(0.0, (5.0 - landed.effective) / 4.0)
    if fit.candidates.size > _MOST_CANDIDATES:
        return Kappa(constant, "a constant, not measured here")
    if fit.scale * landed.num_clients < _NOTHING:
        return Kappa(1.0, "")
    rng = generator(landed.spec.seed, b"kappa")
    z = fit.fitted * np.sqrt(fit.own_shares) / fit.scale
    pool = fit.fitted[z > fit.threshold + 3]
    if len(pool) < 20:
        sd = max(fit.scale / float(np.sqrt(fit.share.mean())), 2.0 / landed.num_clients)
        pool = np.append(pool, np.linspace(fit.threshold + 4, fit.threshold + 20, 20) * sd)
    only = None
    if fit.candidates.size > _ALL_CANDIDATES:
        only = fit.candidates.ids(fit.standing_out(_CONTENDERS)[0])
    number = int(np.clip(_SPIKED * landed.cells, *_SPIKES))
    repeats = int(np.clip(-(-_ALL_SPIKES // number), 2, _MOST_REPEATS))
    errors: list[F64] = []
    nulls: list[F64] = []
    for _ in range(repeats):
        ids = fit.candidates.fresh_ids(rng, number)
        counts = rng.poisson(rng.choice(pool, number)[:, None] * landed.clients)
        spiked = landed.with_items(ids, counts / np.maximum(landed.clients, 1.0))
        again = Fit(
            spiked, fit.candidates.with_extra(ids, only), fit.most + number, rng, fit.selected
        )
        if again.scale > _TIPPED * fit.scale:
            number = max(1, number // 2)
            continue
        after, before = again.leave_one_out(ids), fit.leave_one_out(ids)
        errors.append(
            (after.values - counts.sum(axis=1) / landed.num_clients) * np.sqrt(after.share)
        )
        nulls.append(before.values * np.sqrt(before.share))
    if sum(map(len, nulls)) < _LEAST_SPIKES:
        return Kappa(_UNSTABLE * constant, "a constant: added items spoil the fit")
    most = 4.0 * fit.scale
    seen, null = (
        float(np.sqrt(np.mean(np.clip(np.concatenate(v), -most, most) ** 2)))
        for v in (errors, nulls)
    )
    added = f"{sum(map(len, nulls))} known items were added, and decoded again"
    return Kappa(max(1.0, seen / null) if null > 0 else 1.0, added)


def selective_limits(
    z: F64, fitted: npt.NDArray[np.bool_], threshold: float, kappa: float, alpha: float
) -> tuple[F64, F64]:
    """Return limits, in standard deviations, of a mean of which z is seen, fitted exactly when above the threshold.

    Args:
        z: float64 [n], values over their standard deviation.
        fitted: bool [n].
        threshold: c, in the same unit.
        kappa: what the unit is too small by at and above the threshold; 1 for light items, linear
            between.
        alpha: probability of error, half on each side.
    """
    grow = _growth(z, threshold, kappa)
    z, c = z / grow, threshold / grow
    half = float(-ndtri(alpha / 2))
    low, high = z - half, z + half
    gaps, below, above = _selection_table(alpha / 2)
    gap = z - c
    near = fitted & (gap < _NORMAL_MAX)
    reached = np.interp(np.maximum(gap[near], gaps[0]), gaps, below) + c[near]
    low[near] = np.minimum(low[near], np.maximum(reached, np.minimum(low[near], 0.0)))
    near = ~fitted & (gap > -_NORMAL_MAX)
    reached = np.interp(np.maximum(-gap[near], gaps[0]), gaps, above) + c[near]
    high[near] = np.maximum(high[near], np.minimum(reached, z[near] + max(_REACH, half + _BEYOND)))
    return low * grow, high * grow


def list_tails(tail: float, listed: int, size: int, threshold: float | None) -> tuple[float, float]:
    """Return with which probability a lower limit of a list may be too high: given the threshold, and however chosen.

    However a list of R of d items was chosen, each limit with probability `tail` R / d is enough
    for a share `tail` of wrong ones (Benjamini and Yekutieli 2005). The two parts add up to that
    share.

    >>> list_tails(0.025, 20, 1000, None)
    (0.0, 0.0005)
    >>> [f"{tail:.3g}" for tail in list_tails(0.025, 20, 1000, 0.1)]
    ['0.0225', '5e-05']
    """
    if threshold is None:
        return 0.0, tail * min(1.0, listed / size)
    return tail * (1.0 - _ANYHOW), tail * _ANYHOW * min(1.0, listed / size)


def list_lows(
    z: F64,
    fitted: npt.NDArray[np.bool_],
    threshold: float,
    kappa: float,
    tail: float,
    most: float,
    reached: F64 | None,
) -> F64:
    """Return lower limits, in standard deviations, of means whose z are seen because they are large.

    Args:
        z: float64 [n], values over their standard deviation.
        fitted: bool [n]: these exceed the threshold of the fit, too.
        threshold: that of the fit, in the same unit.
        kappa: as for `selective_limits`.
        tail: probability of a limit that is too high, given what z reached.
        most: how far below z a limit lies at most.
        reached: float64 [n], the least z that is seen; None: not known.
    """
    grow = _growth(z, threshold, kappa)
    z = z / grow
    if reached is None:
        return (z - most) * grow
    cut = np.where(fitted, np.maximum(reached, threshold), reached) / grow
    gaps, below, _ = _selection_table(tail)
    gap = z - cut
    low = np.where(gap < _NORMAL_MAX, np.interp(gap, gaps, below) + cut, z + ndtri(tail))
    return np.maximum(low, z - most) * grow


def _growth(z: F64, threshold: float, kappa: float) -> F64:
    grown: F64 = 1.0 + (kappa - 1.0) * np.clip((z - 1.0) / (threshold - 1.0), 0.0, 1.0)
    return grown


def _selection_table(tail: float) -> tuple[F64, F64, F64]:
    """Return distances from the threshold, and the one-sided limits, less the threshold, of the mean there.

    Fitted at distance g above: the mean lam with P(Z >= g | Z >= 0) = tail for Z ~ N(lam, 1). Not
    fitted at g below: the mean with P(Z <= -g | Z <= 0) = tail; by symmetry it is the negative of
    the first.
    """
    gaps = np.linspace(0.005, _NORMAL_MAX, 600)
    low, high = np.full(gaps.shape, -2000.0), np.full(gaps.shape, 20.0)
    for _ in range(70):
        middle = (low + high) / 2
        rare = log_ndtr(middle - gaps) - log_ndtr(middle) < np.log(tail)
        low, high = np.where(rare, middle, low), np.where(rare, high, middle)
    below = (low + high) / 2
    return gaps, below, -below


class _PhantomLaw:
    """The distribution of the mean residual that an id held by nobody is given, over its cells and signs, sums fixed.

    Rows are independent, each a uniform cell with uniform signs: the cumulant function is exact,
    and the tail follows by the saddlepoint approximation of Lugannani and Rice (1980).
    """

    def __init__(self, fit: Fit) -> None:
        landed = fit.landed
        r = fit.residual * landed.weights / landed.spec.rows  # [rows, width, batches]
        self.sd = max(float(np.sqrt(np.mean(r**2, axis=1).sum())), 1e-300)
        size = np.abs(r[:, :: max(1, r.size // (1 << 17))]) / self.sd
        t = np.linspace(0.0, 16.0, 100)[1:]
        cumulants = np.empty(len(t))
        for i, value in enumerate(t):
            each = value * size + np.log1p(np.exp(-2.0 * value * size)) - np.log(2.0)  # log cosh
            if not landed.fresh:
                each = each.sum(axis=2)
            peak = each.max(axis=1, keepdims=True)
            cumulants[i] = (np.log(np.exp(each - peak).mean(axis=1)) + peak[:, 0]).sum()
        slope = np.gradient(cumulants, t)
        curve = np.gradient(slope, t)
        kept = (curve > 0) & (t * slope > cumulants)
        t, slope, curve, cumulants = t[kept], slope[kept], curve[kept], cumulants[kept]
        w = np.sqrt(2.0 * (t * slope - cumulants))
        u = t * np.sqrt(curve)
        density = np.exp(-(w**2) / 2) / np.sqrt(2 * np.pi)
        tails = ndtr(-w) + density * (1.0 / u - 1.0 / w)
        sound = (tails > 0) & (w > 0.5)
        if sound.sum() > 1:
            self._x, self._log_tail = slope[sound], np.minimum.accumulate(np.log(tails[sound]))
        else:  # nothing, or next to nothing, is left in any cell
            self._x = np.linspace(0.5, 16.0, 100)
            self._log_tail = log_ndtr(-self._x)

    def beyond(self, x: float) -> float:
        """Return the probability that a phantom's value exceeds x in size."""
        return float(2.0 * np.exp(np.interp(x / self.sd, self._x, self._log_tail, right=-np.inf)))

    def excess(self, tail: float) -> float:
        """Return the value exceeded with probability `tail`, over that of a normal distribution of the same
        variance: >= 1.
        """
        if tail > 0.05:  # the approximation is one of tails
            return 1.0
        x = np.interp(-np.log(tail), -self._log_tail, self._x)
        return max(1.0, float(x / -ndtri(tail)))


def _or_none(error: float, num_clients: int) -> float:
    """Return an error, or 0 where it is below a thousandth of a client: rounding."""
    return error if error * num_clients >= 1e-3 else 0.0


def _solve(falling: Callable[[float], float], high: float) -> float:
    """Return where a falling function passes zero, by bisection on [0, high]."""
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return float((low + high) / 2)


def sampling_error(frequency: F64, num_clients: int, confidence: float) -> F64:
    """Return how far the share of a wider population may be: the further limit of Wilson's interval (1927).

    The clients that took part are seen as a uniform sample: about z sqrt(f (1 - f) / n), f cut to 0
    .. 1, and z^2 / n for shares next to 0 and 1.

    >>> float(np.round(sampling_error(np.array([0.5]), 10_000, 0.95), 4)[0])
    0.0098
    """
    _validate.integer(1, num_clients=num_clients)
    check_confidence(confidence)
    f = np.clip(frequency, 0.0, 1.0)
    z, n = float(-ndtri((1.0 - confidence) / 2)), num_clients
    half = z * np.sqrt(f * (1.0 - f) / n + z**2 / (4.0 * n**2))
    further: F64 = (half + np.abs(0.5 - f) * z**2 / n) / (1.0 + z**2 / n)
    return further
