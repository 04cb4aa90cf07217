"""Intervals around the leave-one-out values of a joint fit (`LeaveOneOut.values`).

The errors of these values are nearly normal. So the limits are those of normal variables, with
corrections. docs/recovery.md has the method and its measured coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from fedtally import kernels
from fedtally.base.roots import root
from fedtally.kernels.backends import in_threads
from fedtally.recovery.decoders.joint.joint import LARGE, Fit, LeaveOneOut, usual_kappa
from fedtally.recovery.limits import ROUNDING, Limits, UsualIntervals, list_tails, or_none
from fedtally.recovery.linear_system import F64, I64, U64, Candidates, Ids, Landed
from fedtally.recovery.phantoms import generator

# Kappa is the ratio of the errors of fitted items to those of phantoms. It is measured by adding
# known items to the sums: about this share of the number of cells. More would spoil the fit.
_SPIKED = 0.03
_SPIKES = (8, 300)  # the fewest and the most items that are added at once, before any halving
_ALL_SPIKES = 150  # how many items all repetitions together should add
_MOST_REPEATS = 16  # the most repetitions; each takes as long as the first decoding
_MOST_AT_ONCE = 4  # the most repetitions that run at the same time
# If fewer items were added in the repetitions that they did not spoil, kappa is a constant.
_LEAST_SPIKES = 60
# In clients. With less noise, all limits have their least distance of one client from the value, so
# kappa does not matter.
_NOTHING = 0.01
# In standard deviations: an unfitted item with a larger value may have the largest error.
_NEARLY = 2.5
_UNSTABLE = 1.2  # the constant kappa is multiplied by this if added items spoil the fit
# Added items spoil the fit if they multiply the noise by more than this.
_TIPPED = 1.3
_MOST_CANDIDATES = 1 << 26  # with more candidates the repetitions would take too long
# With more than _ALL_CANDIDATES candidates, only those that may stand out by _CONTENDERS standard
# deviations are decoded again. Kappa then changes by no more than its noise. A higher bound would
# leave out candidates that share cells with added items. A fit of 2^26 candidates confuses such
# candidates with the added items. So with a bound of 2.3, kappa was too small.
_ALL_CANDIDATES = 1 << 18
_CONTENDERS = 1.5
# A factor on the half-width of the simultaneous band. It was measured on other seeds than those
# that test the band (experiments/band.py).
BAND_SLACK = 1.06
# The upper limit of an unfitted item is at most _REACH standard deviations above the item's value,
# or at most _BEYOND above the symmetric limit if that is more. Larger errors are too rare to be
# covered: otherwise the upper limits of all items just below the threshold would be much higher.
_REACH = 3.5
_BEYOND = 1.54
# In standard deviations: further from the threshold, selection no longer changes the limits.
_NORMAL_MAX = 8.0
# The predicted largest error is a root. Secants find it until they move by less than the share
# _CLOSE of the whole range. Bisection then evaluates the function only within the share _APART of
# the root. The secants use logarithms of expected numbers; smaller numbers than _LEAST_LEVEL are
# replaced by it.
_APART, _CLOSE, _LEAST_LEVEL = 1e-11, 1e-15, 1e-12


class Kappa(NamedTuple):
    """The ratio of the errors of fitted items to those of phantoms: ids that nobody holds.

    Attributes:
        value: the ratio.
        source: how the ratio was obtained, in words; "" if users need not know it, for instance
            because there is no noise.
    """

    value: float
    source: str


class JointIntervals(UsualIntervals):
    """Intervals around the leave-one-out values of a joint fit.

    The leave-one-out value of an item is e = frequency + error. The error has the standard
    deviation scale / sqrt(b), see `LeaveOneOut`. There are three corrections:

    - Fitted items have errors kappa times as large as those of phantoms, because the fitted items
      were chosen to make the residual small.
    - An item was fitted because its e was large, or not fitted because its e was small. Its limits
      are those of a normal variable given this selection.
    - Each limit is at least one client away from e.

    The items of a list were selected once more, by their estimates (`Intervals.listed`). The lower
    limit of such an item is that of a normal variable given that e reached the list's threshold. If
    a limit that holds for any list is higher, the limit for any list is used.

    Simultaneous intervals do not use the selection: they are symmetric around e. Their half-width
    is a normal quantile by Bonferroni's correction, times kappa, `BAND_SLACK` and a factor for wide
    tails (`PhantomLaw.excess`), or one client if that is more.

    Attributes:
        fit: the joint fit.
        kappa: the ratio of the errors of fitted items to those of phantoms.

    Args:
        fit: the joint fit.
        confidence: the confidence of the intervals, above 0 and below 1.
        size: the number of candidates.
        kappa: the ratio, with its source.
        kind: the kind of intervals, as in `make_intervals`.
        largest_error: the predicted largest error, a frequency; None: predict it now.
    """

    def __init__(
        self,
        fit: Fit,
        confidence: float,
        size: int,
        kappa: Kappa,
        kind: str = "pointwise",
        largest_error: float | None = None,
    ) -> None:
        self.fit, self._alpha = fit, 1.0 - confidence
        self.kappa = kappa.value
        self._kind, self._size = kind, size
        self._one_client = 1.0 / fit.landed.num_clients + ROUNDING
        about = ["all intervals hold at once"] if kind == "simultaneous" else []
        if kappa.source:
            about.append(
                f"frequent items have errors {kappa.value:.2f} times as large as rare ones, and the"
                f" intervals allow for that ({kappa.source})"
            )
        self.about = "; ".join(about)
        distribution = self._distribution = PhantomLaw(fit.landed, fit.residual)
        # At high confidence, the tails of the errors are wider than those of a normal distribution.
        self._stretch = distribution.excess(self._alpha / 2)
        tail = self._alpha / (2 * size)  # Bonferroni's correction for `size` intervals
        self._band = (
            BAND_SLACK
            * kappa.value
            * float(np.std(fit.null))
            * float(-ndtri(tail))
            * distribution.excess(tail)
        )
        self.predicted_linf = self.largest_error(0.5) if largest_error is None else largest_error

    def largest_error(self, probability: float) -> float:
        """Return the size, a frequency, that the largest error exceeds with a given probability.

        The largest error is that among all candidates. The number of errors above a size is nearly
        a Poisson variable. So the largest error exceeds a size with probability p if -ln(1 - p)
        errors are expected above it. The largest error is usually that of a rare item that was
        fitted because it stood out by chance: then its whole value is an error. Values that are too
        small, and the errors of heavy items, are not selected by chance in this way. An item that
        nearly stood out but was not fitted has an estimate that is too small, because other items
        absorbed a part of its frequency.

        Args:
            probability: the probability that the largest error is larger, above 0 and below 1. 1/2
                gives the median.
        """
        fit, size, distribution = self.fit, self._size, self._distribution
        share = float(fit.share.mean())
        low = 1.0 if fit.shrinks else share
        own = np.sqrt(fit.own_shares) / (self.kappa * fit.scale)
        _, items, z = fit.standing_out(_NEARLY)
        nearly = ~items.fitted & (z > _NEARLY)
        lacking = (items.values - items.estimate)[nearly]
        spread = fit.scale / np.sqrt(items.share[nearly])

        def excess(x: float) -> float:
            light = (
                (size - len(own))
                * (distribution.beyond(x * low) + distribution.beyond(x * share / self.kappa))
                / 2
            )
            unfitted = float(ndtr((lacking - x) / spread).sum())
            heavy = 2.0 * float(ndtr(-x * own).sum())
            return light + unfitted + heavy + math.log1p(-probability)

        # Above `most` hardly any error is expected: each term is far in the tail of one part.
        most = (
            60.0 * distribution.sd / share
            + 10 / max(own.min(initial=np.inf), 1e-300)
            + 10 * spread.max(initial=0.0)
        )
        # without its last term, `excess` is the expected number of errors, which is positive
        wanted, high = -math.log1p(-probability), most + lacking.max(initial=0.0)
        return or_none(_solve(excess, high, wanted), fit.landed.num_clients)

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        return self._limits(ids, self.fit.leave_one_out(ids))

    def centres(self, ids: Ids) -> F64:
        """Return the leave-one-out value of each id, in frequencies: float64 [n]."""
        return self.fit.leave_one_out(ids).values

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return limits of items that were chosen by their estimates; see `Intervals.listed`."""
        items = self.fit.leave_one_out(ids)
        low, high = self._limits(ids, items)
        if self._kind != "auto" or not len(ids):
            return Limits(low, high)
        # The threshold is for estimates. Off the support an estimate is e or b e. `reached` is the
        # e, in standard deviations, at which the estimate reaches the threshold.
        shrunk = np.where(items.fitted | (not self.fit.shrinks), 1.0, items.share)
        sd = self.fit.scale / np.sqrt(items.share)
        reached = None if threshold is None else threshold / shrunk / sd
        given, anyhow = list_tails(self._alpha / 2, len(ids), self._size, threshold)
        most = float(-ndtri(anyhow)) * self._distribution.excess(anyhow)
        z = items.values / sd
        below = list_lows(z, items.fitted, self.fit.threshold, self.kappa, given, most, reached)
        return Limits(np.minimum(low, items.values + (below - z) * sd), high)

    def _limits(self, ids: Ids, items: LeaveOneOut) -> Limits:
        root = np.sqrt(items.share)
        if self._kind == "simultaneous":
            half = np.maximum(self._band / root, self._one_client)
            return Limits(items.values - half, items.values + half)
        sd = self.fit.scale / root
        z = items.values / sd  # selection depends on the value in standard deviations
        low, high = self._around(ids, z, sd)
        low, high = (
            items.values + self._stretch * (low - z) * sd,
            items.values + self._stretch * (high - z) * sd,
        )
        one = self._one_client
        return Limits(np.minimum(low, items.values - one), np.maximum(high, items.values + one))

    def _around(self, ids: Ids, z: F64, sd: F64) -> tuple[F64, F64]:
        """Return limits for the values z, in standard deviations `sd`, given the selection.

        The items of a window were selected by their values in all batches. A part of the error in
        the window is also a part of the error in all batches: it has the limits of a selected
        value. The rest of the error has the limits of a normal variable.
        """
        fit = self.fit if self.fit.whole is None else self.fit.whole
        items = fit.leave_one_out(ids)
        theirs = fit.scale / np.sqrt(items.share)
        seen = items.values / theirs
        low, high = selective_limits(seen, items.fitted, fit.threshold, self.kappa, self._alpha)
        if self.fit.whole is None:
            return low, high
        half = float(-ndtri(self._alpha / 2)) * np.where(items.fitted, self.kappa, 1.0)
        tied = np.minimum(1.0, theirs / sd) ** 2

        def joined(theirs: F64) -> F64:
            square: F64 = np.maximum(half**2 + tied * (theirs**2 - half**2), half**2 / 4)
            return np.sqrt(square)

        return z - joined(seen - low), z + joined(high - seen)


def kappa_of(fit: Fit) -> Kappa:
    """Measure the ratio of the errors of fitted items to those of phantoms, with known items.

    Ids that no client holds are added to the sums, with frequencies like those of the fitted items
    and Poisson numbers of clients in every batch. The sums are decoded again. The root mean square
    error of these items is divided by that of the same ids in `fit`. A quotient below 1 is raised
    to 1. If the added items spoil the fit, fewer are added. If the fewer items spoil it, too, or if
    the domain is too large to be decoded again, the ratio is a constant. If the domain is not too
    large, and there is hardly any noise, the ratio is 1.
    """
    landed = fit.landed
    constant = usual_kappa(landed)
    if fit.candidates.size > _MOST_CANDIDATES:
        return Kappa(constant, "a constant, not measured here")
    if fit.scale * landed.num_clients < _NOTHING:
        return Kappa(1.0, "")
    z = fit.fitted * np.sqrt(fit.own_shares) / fit.scale
    pool = fit.fitted[z > fit.threshold + 3]
    # Items close above the threshold are not in the pool. Whether the repeated fit finds such an
    # item is chance, and the whole frequency of a missed item would look like an error. If fewer
    # than 20 items are left, evenly spaced values are added.
    if len(pool) < 20:
        sd = max(fit.scale / float(np.sqrt(fit.share.mean())), 2.0 / landed.num_clients)
        pool = np.append(pool, np.linspace(fit.threshold + 4, fit.threshold + 20, 20) * sd)
    candidates = fit.candidates
    if candidates.size > _ALL_CANDIDATES:
        candidates = fit.contenders(_CONTENDERS)
    number = int(np.clip(_SPIKED * landed.cells, *_SPIKES))
    repeats = int(np.clip(-(-_ALL_SPIKES // number), 2, _MOST_REPEATS))
    # Each repetition has its own fit, which takes much memory in a large domain.
    at_once = min(kernels.num_threads(), _MOST_AT_ONCE) if fit.candidates.size < LARGE else 1
    errors: list[F64] = []
    nulls: list[F64] = []
    turn = 0
    # Stop if the repetitions that remain cannot give enough usable items.
    while turn < repeats and sum(map(len, nulls)) + (repeats - turn) * number >= _LEAST_SPIKES:
        turns = range(turn, min(turn + at_once, repeats))
        for again, ids, counts in _decoded_again(fit, candidates, pool, number, turns):
            turn += 1
            # The added items spoiled the fit, so these errors are not those of `fit`: they are
            # dropped. Later repetitions that ran at the same time may be spoiled, too. They are
            # made again, with half as many items.
            if again.scale > _TIPPED * fit.scale:
                number = max(1, number // 2)
                break
            after, before = again.leave_one_out(ids), fit.leave_one_out(ids)
            errors.append(
                (after.values - counts.sum(axis=1) / landed.num_clients) * np.sqrt(after.share)
            )
            nulls.append(before.values * np.sqrt(before.share))
    if sum(map(len, nulls)) < _LEAST_SPIKES:
        return Kappa(_UNSTABLE * constant, "a constant: added items spoil the fit")
    most = 4.0 * fit.scale  # larger errors are cut: one outlier would dominate the mean square
    seen, null = (
        float(np.sqrt(np.mean(np.clip(np.concatenate(v), -most, most) ** 2)))
        for v in (errors, nulls)
    )
    added = f"{sum(map(len, nulls))} known items were added, and decoded again"
    return Kappa(max(1.0, seen / null) if null > 0 else 1.0, added)


def _decoded_again(
    fit: Fit, candidates: Candidates, pool: F64, number: int, turns: range
) -> list[tuple[Fit, U64, I64]]:
    """Add known items to the sums and decode them again, in several repetitions at once.

    The random draws of a repetition depend only on its number, not on which others run at the same
    time.

    Args:
        fit: the fit of the sums.
        candidates: the candidates besides the added items.
        pool: the frequencies from which those of the added items are drawn.
        number: how many items to add.
        turns: the numbers of the repetitions.

    Returns:
        For each repetition: its fit, the ids of the added items, and their clients in each batch,
        int64 [number, batches].
    """
    landed = fit.landed
    found: dict[int, tuple[Fit, U64, I64]] = {}

    def decode(turn: int) -> None:
        rng = generator(landed.spec.seed, b"kappa %d" % turn)
        ids = fit.candidates.fresh_ids(rng, number)
        counts = rng.poisson(rng.choice(pool, number)[:, None] * landed.clients)
        spiked = landed.with_items(ids, counts / np.maximum(landed.clients, 1.0))
        again = Fit(spiked, candidates.with_extra(ids), fit.most + number, rng, fit.selected)
        found[turn] = again, ids, counts

    def alone(turn: int) -> None:
        with kernels.one_thread():  # all threads are busy with repetitions
            decode(turn)

    in_threads(decode if len(turns) == 1 else alone, turns, len(turns))
    return [found[turn] for turn in turns]


def selective_limits(
    z: F64, fitted: npt.NDArray[np.bool_], threshold: float, kappa: float, alpha: float
) -> tuple[F64, F64]:
    """Return the limits of means given their observed values z, all in standard deviations.

    It is assumed that an item is fitted if and only if its z exceeds the threshold. The limits
    allow for this selection. Larger items have larger errors (`_growth`). A lower limit uses the
    error at the observed value. An upper limit uses the error at the limit itself, since a large
    item that has a small value by chance has the errors of a large item.

    Args:
        z: float64 [n], the values divided by their standard deviations.
        fitted: bool [n], whether each item was fitted.
        threshold: the threshold of the fit, in standard deviations.
        kappa: the factor on the standard deviation at the threshold and above. Up to z = 1 the
            factor is 1; between 1 and the threshold it is linear.
        alpha: the probability that the true mean is outside, half of it on each side.
    """
    half = float(-ndtri(alpha / 2))
    grow = _growth(z, threshold, kappa)
    gap = z - threshold
    low = z - half * grow
    # A fitted item near the threshold may be a light one that stood out by chance. So its lower
    # limit is lowered, but not below 0, since no frequency is negative.
    near = fitted & (gap < _NORMAL_MAX * grow)
    gaps, below = _lows_above(alpha / 2)
    reached = (
        np.interp(np.maximum(gap[near] / grow[near], gaps[0]), gaps, below) * grow[near] + threshold
    )
    low[near] = np.minimum(low[near], np.maximum(reached, np.minimum(low[near], 0.0)))
    # An unfitted item near the threshold may be a heavy one with a small value by chance.
    high = _means_above(z, half, threshold, kappa)
    near = ~fitted & (gap > -_NORMAL_MAX)
    gaps, above = _highs_below(alpha / 2, threshold, kappa)
    reached = np.interp(np.maximum(-gap[near], gaps[0]), gaps, above)
    most = _means_above(z[near], max(_REACH, half + _BEYOND), threshold, kappa)
    high[near] = np.maximum(high[near], np.minimum(reached, most))
    return low, high


def list_lows(
    z: F64,
    fitted: npt.NDArray[np.bool_],
    threshold: float,
    kappa: float,
    tail: float,
    most: float,
    reached: F64 | None,
) -> F64:
    """Return lower limits of means whose values z were listed because they are large.

    Args:
        z: float64 [n], the values divided by their standard deviations.
        fitted: bool [n], whether each item was fitted: only if z exceeded the fit's threshold, too.
        threshold: the threshold of the fit, in standard deviations.
        kappa: the factor on the standard deviation, as in `selective_limits`.
        tail: the probability of a limit that is too high, given that the item is listed.
        most: the largest distance of a limit from z, divided by the factor on the standard
            deviation.
        reached: float64 [n], the least z with which an item is listed; None: not known, and each
            limit has the largest distance that `most` allows.

    Returns:
        float64 [n], in standard deviations.
    """
    grow = _growth(z, threshold, kappa)
    z = z / grow
    if reached is None:
        return (z - most) * grow
    cut = np.where(fitted, np.maximum(reached, threshold), reached) / grow
    gaps, below = _lows_above(tail)
    gap = z - cut
    low = np.where(gap < _NORMAL_MAX, np.interp(gap, gaps, below) + cut, z + ndtri(tail))
    return np.maximum(low, z - most) * grow


def _growth(z: F64, threshold: float, kappa: float) -> F64:
    """Return the factor on the standard deviation of each z.

    It is 1 up to z = 1, kappa from the threshold on, and linear between.
    """
    grown: F64 = 1.0 + (kappa - 1.0) * np.clip((z - 1.0) / (threshold - 1.0), 0.0, 1.0)
    return grown


def _means_above(z: F64, distance: float, threshold: float, kappa: float) -> F64:
    """Return the means that lie `distance` standard deviations above z.

    The standard deviation is that of the mean, not of z: `_growth` of the mean.

    >>> _means_above(np.array([-5.0, 0.0, 5.0]), 2.0, 4.0, 1.3).round(9).tolist()
    [-3.0, 2.25, 7.6]
    """
    # The standard deviation is known for means of 1 and of `threshold`, and linear between them.
    last = threshold - distance * kappa
    grown: F64 = np.interp(z, [min(1.0 - distance, last), last], [1.0, kappa])
    return z + distance * grown


def _lows_above(tail: float) -> tuple[F64, F64]:
    """Return distances above the threshold, and the lower limit of the mean at each.

    A limit is one-sided and relative to the threshold. For an item that was fitted with a value g
    above the threshold, it is the mean m with P(Z >= g | Z >= 0) = tail for Z ~ N(m, 1).
    """
    gaps = np.linspace(0.005, _NORMAL_MAX, 600)
    # At the smallest distance the limit is about log(tail) / 0.005. For means far below 0 both
    # probabilities underflow, so logarithms are used.
    return gaps, _crossing(
        lambda mean: np.log(tail) + log_ndtr(mean) - log_ndtr(mean - gaps), len(gaps)
    )


def _highs_below(tail: float, threshold: float, kappa: float) -> tuple[F64, F64]:
    """Return distances below the threshold, and the upper limit of the mean at each.

    For an item that was not fitted, with a value g below the threshold c, the limit is the mean m
    with P(Z <= c - g | Z <= c) = tail. Here Z is normal with the mean m and the standard deviation
    that `_growth` gives for m.
    """
    gaps = np.linspace(0.005, _NORMAL_MAX, 600)

    def excess(mean: F64) -> F64:
        room, deviation = threshold - mean, _growth(mean, threshold, kappa)
        found: F64 = log_ndtr((room - gaps) / deviation) - log_ndtr(room / deviation) - np.log(tail)
        return found

    return gaps, _crossing(excess, len(gaps))


def _crossing(falling: Callable[[F64], F64], number: int) -> F64:
    """Find by bisection where `falling` passes zero in each of its `number` entries."""
    low, high = np.full(number, -2000.0), np.full(number, 4000.0)
    for _ in range(70):
        middle = (low + high) / 2
        above = falling(middle) > 0
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    found: F64 = (low + high) / 2
    return found


class PhantomLaw:
    """The distribution of the mean residual over the cells of an id that no client holds.

    The sums are given, and the id's cells and signs are random. Rows are independent, so the
    cumulant function of the mean is a sum over the rows. The tail is computed from it by the
    saddlepoint approximation of Lugannani and Rice (1980).

    Args:
        landed: the sums.
        residual: the sums minus the fitted items, as frequencies, float64 [rows, width, batches].
    """

    def __init__(self, landed: Landed, residual: F64) -> None:
        r = residual * landed.weights / landed.spec.rows  # [rows, width, batches]
        self.sd = max(float(np.sqrt(np.mean(r**2, axis=1).sum())), 1e-300)
        # In wide rows only some cells are used, some 2^17 to 2^18 in all, to bound the time.
        size = np.abs(r[:, :: max(1, r.size // (1 << 17))]) / self.sd
        t = np.linspace(0.0, 16.0, 100)[1:]
        cumulants = np.empty(len(t))
        for i, value in enumerate(t):
            each = value * size + np.log1p(np.exp(-2.0 * value * size)) - np.log(2.0)  # log cosh
            # An id has the same cell in all batches, unless hashes are fresh in each batch.
            if not landed.fresh:
                each = each.sum(axis=2)
            # The mean of exp(each) is computed with the largest value subtracted, and added back
            # to the logarithm. Otherwise exp would overflow.
            peak = each.max(axis=1, keepdims=True)
            cumulants[i] = (np.log(np.exp(each - peak).mean(axis=1)) + peak[:, 0]).sum()
        slope = np.gradient(cumulants, t)
        curve = np.gradient(slope, t)
        # Far out one cell dominates the sum. Differences vanish and the formula is not valid there.
        kept = (curve > 0) & (t * slope > cumulants)
        t, slope, curve, cumulants = t[kept], slope[kept], curve[kept], cumulants[kept]
        w = np.sqrt(2.0 * (t * slope - cumulants))
        u = t * np.sqrt(curve)
        density = np.exp(-(w**2) / 2) / np.sqrt(2 * np.pi)
        tails = ndtr(-w) + density * (1.0 / u - 1.0 / w)
        sound = (tails > 0) & (w > 0.5)  # near 0 the formula is a difference of large numbers
        if sound.sum() > 1:
            self._x, self._log_tail = slope[sound], np.minimum.accumulate(np.log(tails[sound]))
        else:  # almost nothing is left in any cell: any distribution will do, as sd is almost 0
            self._x = np.linspace(0.5, 16.0, 100)
            self._log_tail = log_ndtr(-self._x)

    def beyond(self, x: float) -> float:
        """Return the probability that a phantom's absolute value exceeds x, a frequency.

        Only the tail is tabulated: for a smaller x the result is the first value of the table, and
        beyond the table it is 0.
        """
        return float(2.0 * np.exp(np.interp(x / self.sd, self._x, self._log_tail, right=-np.inf)))

    def excess(self, tail: float) -> float:
        """Return a quantile, divided by that of a normal distribution of the same variance.

        Both quantiles are exceeded with probability `tail`. If this ratio is below 1, or `tail` is
        above 0.05, the result is 1.
        """
        if tail > 0.05:  # the approximation is good in the tails only
            return 1.0
        x = np.interp(-np.log(tail), -self._log_tail, self._x)
        return max(1.0, float(x / -ndtri(tail)))


def _solve(falling: Callable[[float], float], high: float, lacking: float = 0.0) -> float:
    """Return where a falling function passes zero, by bisection on [0, high].

    A few secants first find points on either side of the root and close to it. Beyond these points
    the sign is known, and the function is not evaluated. The bisection takes the same steps as
    without secants and ends at the same root.

    Args:
        falling: the function.
        high: the right end of the interval.
        lacking: a number such that falling(x) + lacking is positive; the secants use the logarithm
            of this sum. 0: no such number is known, and there are no secants.
    """
    above, below = _around(falling, high, lacking) if lacking > 0 else (0.0, high)
    low = 0.0
    for _ in range(100):
        middle = (low + high) / 2
        if middle in (low, high):  # there is no float between them, so nothing would change
            break
        is_left = middle <= above or (middle < below and falling(middle) > 0)
        low, high = (middle, high) if is_left else (low, middle)
    return float((low + high) / 2)


def _around(falling: Callable[[float], float], high: float, lacking: float) -> tuple[float, float]:
    """Return points on either side of the root of a falling function, very close to it.

    The points differ from the root by the share `_APART` of the root. If the secants do not come
    that close, or if rounding hides the sign of the function there, the points are 0 and `high`.
    The arguments are those of `_solve`; `lacking` is above 0.

    >>> low, high = _around(lambda x: np.exp(-x) - 0.5, 9.0, 0.5)
    >>> low < np.log(2) < high < low + 2e-11
    True
    """
    end = float(high)

    def level(share: float) -> float:
        return math.log(max(float(falling(share * end)) + lacking, _LEAST_LEVEL) / lacking)

    try:
        near = root(level, 0.0, 1.0, within=_CLOSE) * end
    except ValueError:
        return 0.0, end
    left, right = near * (1.0 - _APART), near * (1.0 + _APART)
    return (left, right) if falling(left) > 0 > falling(right) else (0.0, end)
