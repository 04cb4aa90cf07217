"""Confidence intervals for estimates, and a simultaneous band for all of them.

What they cover: the frequency of an item among the clients that took part, for an item fixed in advance, or for all
candidates of a kind, over the hash seed; the data must not depend on the seed. A list chosen by its estimates suffers
the winner's curse. The sampling of those clients from a wider population is separate: `sampling_error`.

The error of an estimate comes from who else lies in the item's cells, and fresh ids, held by nobody and drawn here
(*phantoms*), suffer the same. docs/recovery.md has the construction and its measured coverage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, log_ndtr, ndtr, ndtri

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.joint import NUM_PHANTOMS, Fit, JointDecoder, generator
from fedtally.recovery.landed import F64, Candidates, Ids, Landed, ask
from fedtally.recovery.median import MedianDecoder
from fedtally.sketch import CountSketch

KINDS = ("pointwise", "simultaneous", "order")
KAPPA = (1.2, 1.06)  # where it is not measured: one batch of rounds, several; the upper end of what was measured
_SPIKED = 0.03  # items added to measure kappa, as a share of one sketch's cells; at most 300
_MOST_SPIKES = 300
_LEAST_CELLS = 3200  # fewer give too few added items
_MOST_CANDIDATES = 1 << 26  # more would make the re-decodes felt
_REPEATS = 2
_ALL_CANDIDATES = 1 << 18  # in a larger domain only those that stand out by ...
_CONTENDERS = 1.5  # ... so many standard deviations are candidates when it is decoded again: kappa differs by its noise
_BAND_SLACK = 1.03  # measured on other seeds than those it is checked on (experiments band)
_REACH = 3.5  # how many sd above its value an item off the support may lie, at most: rarer ones are given up ...
_BEYOND = 1.54  # ... or so many past the symmetric limit, if that is more
_GRID = 1 << 16  # sizes at which the law of the paper's estimate is known, for fresh
_SIGNED_SUMS = 1 << 20  # sums under chosen signs that stand for a row, for hybrid
_ROUNDING = 1e-12  # by which an exact answer may miss the truth
_NORMAL_MAX = 8.0  # sd from the threshold beyond which selection no longer matters


class Limits(NamedTuple):
    """Lower and upper limits of frequencies: float64 [n] each."""

    low: F64
    high: F64


class Intervals(Protocol):
    """What gives every id an interval.

    Attributes:
        about: what was computed, in words.
        predicted_linf: the median of the largest error of all candidates' frequencies.
    """

    about: str
    predicted_linf: float

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""


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
        kind: "pointwise": each interval holds with this confidence; "simultaneous": all candidates' do at once;
            "order": pointwise by order statistics of the rows, wide, but assuming nothing beyond random signs.

    Raises:
        InvalidInputError: a level outside (0, 1), an unknown kind, or too few rows for order statistics.
    """
    check_confidence(confidence)
    if kind not in KINDS:
        raise InvalidInputError(f"intervals must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {kind!r}")
    simultaneous = kind == "simultaneous"
    if isinstance(decoder, JointDecoder) and decoder.fallback is None and kind != "order":
        fit = decoder.fit
        if fit.landed.cells < _LEAST_CELLS or domain.size > _MOST_CANDIDATES:
            return JointIntervals(fit, confidence, domain.size, KAPPA[len(fit.landed.clients) > 1], simultaneous, False)
        kappa = measured_kappa(fit)
        return JointIntervals(fit, confidence, domain.size, kappa, simultaneous, True)
    landed = Landed(decoder.spec, sketches)
    if kind == "order":
        return OrderIntervals(landed, confidence, domain.size)
    median = decoder if isinstance(decoder, MedianDecoder) else MedianDecoder(sketches, expected=domain.size)
    return MedianIntervals(median, landed, domain, confidence, simultaneous)


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
    """Intervals around the paper's estimates, of one width for all items.

    Pointwise, from phantoms: the quantile of what they are given. Simultaneous, from the exact law of a phantom given
    the sums: rows are independent, each a uniform cell with uniform signs. For an even number of rows its tail is
    bounded, by that of the upper of the two middle rows.
    """

    def __init__(
        self, decoder: MedianDecoder, landed: Landed, domain: Domain, confidence: float, simultaneous: bool
    ) -> None:
        self._decoder = decoder
        law = _MedianLaw(landed)
        self.predicted_linf = law.exceeded_with(1.0 - 0.5 ** (1.0 / domain.size))
        if simultaneous:
            self.half = law.exceeded_with((1.0 - confidence) / domain.size)
            self.about = "all intervals hold at once; the exact law of the median given the sums"
        else:
            phantoms = Candidates(domain).fresh_ids(generator(landed.spec.seed, b"median"), NUM_PHANTOMS)
            self.half = float(np.quantile(np.abs(decoder.at(phantoms)), confidence)) / decoder.num_clients
            self.about = f"one width, from what {NUM_PHANTOMS:,} ids held by nobody are given"

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        values = ask(self._decoder, ids) / self._decoder.num_clients
        return Limits(values - self.half - _ROUNDING, values + self.half + _ROUNDING)


class OrderIntervals:
    """Intervals from order statistics of the rows: distribution-free.

    An item's row estimates are independent and symmetric about its frequency, under random signs. So the k-th smallest
    and the k-th largest of L rows enclose it with probability at least 1 - 2 P(Bin(L, 1/2) < k).
    """

    def __init__(self, landed: Landed, confidence: float, size: int) -> None:
        rows = landed.spec.rows
        levels = [1.0 - 2.0 * float(bdtr(k - 1, rows, 0.5)) for k in range(1, rows // 2 + 1)]
        sound = [k for k, level in enumerate(levels, start=1) if level >= confidence]
        if not sound:
            best = f"; {rows} rows give at most {levels[0]:.4g}" if levels else ""
            raise InvalidInputError(
                f"order statistics need at least {_rows_needed(confidence)} rows for a confidence of {confidence:g}, "
                f"the sketches have {rows}{best}: lower the confidence, or take another kind of interval"
            )
        self._k = sound[-1]
        self._rows = landed.rows()
        self.predicted_linf = _MedianLaw(landed).exceeded_with(1.0 - 0.5 ** (1.0 / size))
        self.about = (
            f"order statistics {self._k} and {rows + 1 - self._k} of {rows} rows, level {levels[self._k - 1]:.4g}"
        )

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        estimates = np.stack([ask(row, ids) for row in self._rows])
        ends = (self._k - 1, len(self._rows) - self._k)
        ordered = np.partition(estimates, ends, axis=0)
        return Limits(ordered[ends[0]] - _ROUNDING, ordered[ends[1]] + _ROUNDING)


def _rows_needed(confidence: float) -> int:
    return int(np.ceil(1.0 - np.log2(1.0 - confidence)))


class _MedianLaw:
    """The law of the paper's estimate of an id held by nobody, over its cells and signs; the sums are fixed."""

    def __init__(self, landed: Landed) -> None:
        self._sizes: list[list[F64]]  # of each round for fresh, else of all: by row, what a cell gives, rising
        weighted = landed.frequencies * landed.weights
        if landed.fresh:
            self._sizes = [list(np.sort(np.abs(weighted[..., m]), axis=1)) for m in range(weighted.shape[2])]
        else:
            rng = generator(landed.spec.seed, b"law")
            self._sizes = [[_signed_sums(row, rng) for row in weighted]]
        self._need = (landed.spec.rows + 1) // 2
        if landed.fresh and len(self._sizes) > 1:
            self._grid, self._tail = self._convolved()

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
        reached = np.zeros((self._need + 1, len(x)))  # probability of so many rows above x, the last: or more
        reached[0] = 1.0
        for row in sizes:
            above = 0.5 * (1.0 - np.searchsorted(row, x, side="right") / len(row))
            up = reached[:-1] * above
            reached[:-1] -= up
            reached[1:] += up
        both: F64 = np.minimum(2.0 * reached[-1], 1.0)
        return both

    def _convolved(self) -> tuple[F64, F64]:
        """Return sizes, and the probability that the sum of the rounds' medians exceeds each: all rounded outwards."""
        step = float(max(sum(max(float(row[-1]) for row in sizes) for sizes in self._sizes), 1e-300)) / _GRID
        edges: F64 = step * np.arange(_GRID + 1.0)
        reach = _GRID + len(self._sizes) + 1
        transform = np.ones(reach + 1, complex)
        for sizes in self._sizes:
            tails = self._beyond(sizes, edges)
            masses = -np.diff(tails) / 2  # of each size, taken as the upper edge of its step, on either side
            signed = np.zeros(2 * reach)
            signed[0] = 1.0 - tails[0]
            signed[1 : _GRID + 1] = masses
            signed[-1 : -_GRID - 1 : -1] = masses
            transform *= np.fft.rfft(signed)
        density = np.maximum(np.fft.irfft(transform, 2 * reach)[1 : reach + 1], 0.0)
        every: F64 = step * np.arange(reach + 1.0)
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


class JointIntervals:
    """Intervals around the leave-one-out values of a joint fit.

    An item's leave-one-out value e = f + error, with an error of standard deviation scale / sqrt(b). Three corrections:
    heavy items see kappa times the scale that phantoms see, since whom to fit was chosen to make the residual small;
    an item was fitted because its e was large (or not, because it was small), so its limits are those of a normal
    variable given that; and below one client nothing is claimed.

    Args:
        fit: the joint fit.
        confidence: level of each interval, above 0 and below 1.
        size: number of candidates.
        kappa: the scale of fitted items over that of phantoms.
        simultaneous: make all intervals hold at once with this confidence.
        measured: whether kappa is of these sums, for `about`.
    """

    def __init__(
        self, fit: Fit, confidence: float, size: int, kappa: float, simultaneous: bool = False, measured: bool = True
    ) -> None:
        self._fit, self._alpha = fit, 1.0 - confidence
        self.kappa = kappa
        self._simultaneous = simultaneous
        self._one_client = 1.0 / fit.landed.num_clients + _ROUNDING
        known = (
            f"{_REPEATS} x {_spikes(fit)} known items that were added" if measured else "a constant, not measured here"
        )
        self.about = (
            f"{'all intervals hold at once; ' if simultaneous else ''}"
            f"errors of fitted items are {kappa:.3g} times those of ids held by nobody ({known})"
        )
        law = _PhantomLaw(fit)
        tail = self._alpha / (2 * size)
        self._band = _BAND_SLACK * kappa * float(np.std(fit.null)) * float(-ndtri(tail)) * law.excess(tail)
        # The largest error is most often that of a light item that stood out by chance, and was fitted: then nothing is
        # left of it in the residual. On the low side, and among the fitted items, there is no such selection.
        share = float(fit.share.mean())
        own = np.sqrt(fit.own_shares) / (kappa * fit.scale)
        self.predicted_linf = _solve(
            lambda x: (
                (size - len(own)) * (law.beyond(x) + law.beyond(x * share / kappa)) / 2
                + 2.0 * float(ndtr(-x * own).sum())
                - np.log(2.0)
            ),
            60.0 * law.sd + 10 / max(own.min(initial=np.inf), 1e-300),
        )

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        items = self._fit.leave_one_out(ids)
        root = np.sqrt(items.share)
        if self._simultaneous:
            half = np.maximum(self._band / root, self._one_client)
            return Limits(items.values - half, items.values + half)
        sd = self._fit.scale / root
        z = items.values / sd
        low, high = selective_limits(z, items.fitted, self._fit.threshold, self.kappa, self._alpha)
        low, high = low * sd, high * sd
        one = self._one_client
        return Limits(np.minimum(low, items.values - one), np.maximum(high, items.values + one))


def _spikes(fit: Fit) -> int:
    return min(_MOST_SPIKES, int(_SPIKED * fit.landed.cells))


def measured_kappa(fit: Fit) -> float:
    """Return the scale of fitted items' errors over that of phantoms, by adding known items to the sums.

    Fresh ids get values as the support has them, Poisson in every round, and the whole decoding is repeated. Their
    errors are compared with what the same ids, held by nobody, are given by the fit itself.
    """
    landed, number = fit.landed, _spikes(fit)
    rng = generator(landed.spec.seed, b"kappa")
    z = fit.fitted * np.sqrt(fit.own_shares) / fit.scale
    pool = fit.fitted[z > fit.threshold + 3]
    if len(pool) < 20:
        sd = max(fit.scale / float(np.sqrt(fit.share.mean())), 2.0 / landed.num_clients)
        pool = np.append(pool, np.linspace(fit.threshold + 4, fit.threshold + 20, 20) * sd)
    only = None
    if fit.candidates.size > _ALL_CANDIDATES:
        only = fit.candidates.ids(fit.standing_out(_CONTENDERS)[0])
    errors, nulls = [], []
    for _ in range(_REPEATS):
        ids = fit.candidates.fresh_ids(rng, number)
        counts = rng.poisson(rng.choice(pool, number)[:, None] * landed.clients)
        spiked = landed.with_items(ids, counts / np.maximum(landed.clients, 1.0))
        again = Fit(spiked, fit.candidates.with_extra(ids, only), fit.most + number, rng).leave_one_out(ids)
        errors.append((again.values - counts.sum(axis=1) / landed.num_clients) * np.sqrt(again.share))
        before = fit.leave_one_out(ids)
        nulls.append(before.values * np.sqrt(before.share))
    most = 4.0 * fit.scale
    seen, null = (float(np.sqrt(np.mean(np.clip(np.concatenate(v), -most, most) ** 2))) for v in (errors, nulls))
    return max(1.0, seen / null) if null > 0 else 1.0


def selective_limits(
    z: F64, fitted: npt.NDArray[np.bool_], threshold: float, kappa: float, alpha: float
) -> tuple[F64, F64]:
    """Return limits, in standard deviations, of a mean of which z is seen, fitted exactly when above the threshold.

    Args:
        z: float64 [n], values over their standard deviation.
        fitted: bool [n].
        threshold: c, in the same unit.
        kappa: what the unit is too small by at and above the threshold; 1 for light items, linear between.
        alpha: probability of error, half on each side.
    """
    grow = 1.0 + (kappa - 1.0) * np.clip((z - 1.0) / (threshold - 1.0), 0.0, 1.0)
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


def _selection_table(tail: float) -> tuple[F64, F64, F64]:
    """Return distances from the threshold, and the one-sided limits, less the threshold, of the mean there.

    Fitted at distance g above: the mean lam with P(Z >= g | Z >= 0) = tail for Z ~ N(lam, 1). Not fitted at g below:
    the mean with P(Z <= -g | Z <= 0) = tail; by symmetry it is the negative of the first.
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
    """The law of the mean residual that an id held by nobody is given, over its cells and signs, sums fixed.

    Rows are independent, each a uniform cell with uniform signs: the cumulant function is exact, and the tail follows
    by the saddlepoint approximation of Lugannani and Rice (1980).
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
        """Return the value exceeded with probability `tail`, over that of a normal law of the same variance: >= 1."""
        if tail > 0.05:  # the approximation is one of tails
            return 1.0
        x = np.interp(-np.log(tail), -self._log_tail, self._x)
        return max(1.0, float(x / -ndtri(tail)))


def _solve(falling: Callable[[float], float], high: float) -> float:
    """Return where a falling function passes zero, by bisection on [0, high]."""
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return float((low + high) / 2)


def sampling_error(frequency: F64, num_clients: int, confidence: float) -> F64:
    """Return the half-width of the normal interval for the share of a wider population.

    The clients that took part are seen as a uniform sample: standard deviation sqrt(f (1 - f) / n), f cut to 0 .. 1.

    >>> float(np.round(sampling_error(np.array([0.5]), 10_000, 0.95), 4)[0])
    0.0098
    """
    _validate.integer(1, num_clients=num_clients)
    check_confidence(confidence)
    f = np.clip(frequency, 0.0, 1.0)
    result: F64 = -ndtri((1.0 - confidence) / 2) * np.sqrt(f * (1.0 - f) / num_clients)
    return result
