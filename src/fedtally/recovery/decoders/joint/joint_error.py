"""Predicts the error of joint recovery, by equation (1) of docs/accuracy.md, "The error model"."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import gammaln, ndtr, ndtri, xlogy

from fedtally.base.roots import root
from fedtally.recovery.decoders.joint.joint import (
    FALSE_ITEMS,
    LARGEST_SUPPORT,
    SELECTED,
    SMALLER_SUPPORTS,
    WELL_CONDITIONED,
)
from fedtally.recovery.sums import F64, Prediction, Sums, grouped

_MANY = 60.0  # a larger expected count, in clients, is treated as exact, without Poisson noise
_GROUP = 1.03  # items are treated as equal only if their counts are within this ratio
# The decoder sees the variance between an item's rounds only if it exceeds Poisson noise by this
# number of standard errors.
_CLEARLY = 3.0
_SCALES = 240  # points of the grid on which the largest scale is searched
_BLOCK = 24  # scales that are computed at once
_EXACT = 1e-3  # in clients: a smaller scale is treated as 0
_SAME = 1e-6  # scales with a smaller relative difference are treated as equal
_HALVINGS = 40  # halvings of a range of thresholds; the rest is negligible
_FULL = 1e-12  # a support is full if its relative distance from the bound is smaller
_REMEMBERED = 1024  # a fit is cached if it has at most this many different frequencies


def drawn(frequencies: F64, plan: Sums, number: F64 | float = 1.0) -> tuple[F64, F64]:
    """Return the frequencies that items may have in a campaign, and how many items have each.

    The clients that take part are drawn from a population, so the count of a rare item is a Poisson
    variable.

    Args:
        frequencies: float64 [d], ascending, above 0: the frequencies in the population.
        plan: the sizes and the noise of the sums.
        number: float64 [d], the number of items of each frequency.

    Returns:
        The frequencies and the expected numbers of items: float64 [k] each. First comes 0, then the
        frequencies of the possible counts of rare items, ascending, then the frequent items,
        ascending.
    """
    expected, number = frequencies * plan.clients, np.broadcast_to(number, frequencies.shape)
    few = expected <= _MANY
    rare, sizes = grouped(expected[few], number[few], _GROUP)
    counts = np.arange(1.0, _MANY + 10 * _MANY**0.5)
    poisson = np.exp(xlogy(counts, rare[:, None]) - rare[:, None] - gammaln(counts + 1))
    frequent, others = grouped(expected[~few], number[~few], _GROUP)
    numbers = np.concatenate([sizes @ poisson, others])
    zero = max(plan.candidates - float(numbers.sum()), 0.0)
    return np.concatenate([[0.0], counts, frequent]) / plan.clients, np.append(zero, numbers)


class _State(NamedTuple):
    """The decoder's state, given the scale of its errors: float64 [scales] for each field.

    Attributes:
        implied: the scale that results from equation (1).
        threshold: the frequency above which an estimate is fitted.
        left: b' in equation (1): the share of an unfitted item that the fit leaves in the residual.
        support: the expected number of fitted items.
    """

    implied: F64
    threshold: F64
    left: F64
    support: F64


def _row_sums(values: F64) -> F64:
    """Return the sums over the items, the second axis: [scales, 1]."""
    sums: F64 = np.add.reduce(values, axis=1, keepdims=True)  # `np.sum` has more overhead
    return sums


class _Ladder:
    """Equation (1) (see this module): from an assumed scale of errors it computes another one.

    A scale is a prediction if the equation gives the same scale again.

    Args:
        f: float64 [k], the frequencies that items may have, in the order of `drawn`.
        number: float64 [k], the number of items of each frequency.
        plan: the sizes and the noise of the sums.
        largest: the largest support, as a share of the cells.

    Attributes:
        cells: the number of cells of one sketch.
        batches: the effective number of batches.
        most: the most items that may be fitted.
        selected: the least number of standard deviations by which a fitted item stands out.
    """

    def __init__(self, f: F64, number: F64, plan: Sums, largest: float) -> None:
        self.f, self.number, self.plan = f, number, plan
        self.cells, self.batches = plan.rows * plan.width, plan.batches
        self.most = max(1, int(largest * self.cells))
        self.selected = max(SELECTED, -float(ndtri(min(0.5, FALSE_ITEMS / plan.candidates))))

    def _support(self, threshold: F64, s: F64) -> F64:
        return _row_sums(self.number * ndtr((self.f - threshold) / s))

    def _threshold(self, s: F64) -> F64:
        """Return the lowest thresholds at which no more items stand out than may be fitted.

        Thresholds are also at least half a client, and at least the scale times `selected`.

        Args:
            s: [scales, 1], the scales.

        Returns:
            [scales, 1], frequencies.
        """
        low = np.maximum(self.selected * s, 0.5 / self.plan.clients)
        excess = self._excess(low, s)
        full = np.flatnonzero(excess > 0.0)
        if len(full):
            least, scales = low[full], s[full]
            found, over = self._filled(least, excess[full], scales)
            # If few items remain, a whole range of thresholds leaves the same number of items.
            # Halving finds the lowest of them. It also finds a jump, which regula falsi may miss.
            step = (self._most(scales) - least) / 2**_HALVINGS
            flat = self._excess(found - step, scales) <= 0.0
            missed = np.flatnonzero(flat | (over > 2 * _FULL))
            if len(missed):
                found[missed] = self._halved(least[missed], scales[missed])
            low[full] = found
        return low

    def _most(self, s: F64) -> F64:
        """Return thresholds at which no item stands out: [scales, 1]."""
        most: F64 = self.f[-1] + 40 * s
        return most

    def _excess(self, threshold: F64, s: F64) -> F64:
        """Return log(expected number of fitted items / the most allowed), cut to [-1, 1]."""
        filled: F64 = np.log(np.maximum(self._support(threshold, s) / self.most, 0.1))
        return np.minimum(np.maximum(filled, -1.0), 1.0)

    def _filled(self, least: F64, above: F64, s: F64) -> tuple[F64, F64]:
        """Return thresholds at which the support is just full, and their `_excess`: [scales, 1].

        The method is regula falsi in which an end that stays twice gets half the weight (Illinois).
        It needs a quarter of the steps of halving.

        Args:
            least: [scales, 1], thresholds at which more items would be fitted.
            above: [scales, 1], their `_excess`.
            s: [scales, 1], the scales.
        """
        most, below, was_over = self._most(s), np.full_like(above, -1.0), np.full_like(above, -1.0)
        middle = found = most
        for _ in range(_HALVINGS):
            middle = (least * below - most * above) / (below - above)
            found = self._excess(middle, s)
            if np.maximum.reduce(np.abs(found), axis=None) < _FULL:
                break
            over = found > 0.0
            least, most = np.where(over, middle, least), np.where(over, most, middle)
            stays = np.where(over == was_over, 0.5, 1.0)
            above = np.where(over, found, above * stays)
            below = np.where(over, below * stays, found)
            was_over = over.astype(np.float64)
        return middle, found

    def _halved(self, least: F64, s: F64) -> F64:
        """Find by halving the lowest thresholds at which the support is not too large: [scales, 1].

        Args:
            least: [scales, 1], lower bounds.
            s: [scales, 1], the scales.
        """
        most = self._most(s)
        for _ in range(_HALVINGS):
            middle = (least + most) / 2
            over = self._support(middle, s) > self.most
            least, most = np.where(over, middle, least), np.where(over, most, middle)
        return most

    def at(self, scale: F64) -> _State:
        """Return the state of the decoder for each scale: float64 [scales], above 0."""
        plan, f, number = self.plan, self.f, self.number
        s, batches = scale[:, None], self.batches
        # Between batches an item's count varies by Poisson noise, and because its frequency varies.
        # The decoder sees the second part only if it is clear.
        tau, v = batches * s * s, f * batches / plan.clients
        more = f * f * (plan.heterogeneity - 1) / max(1 - 1 / batches, 1e-9)
        limit = _CLEARLY * math.sqrt(2 / max(batches - 1, 1e-9))
        threshold = self._threshold(s)
        gap = (threshold - f) / s
        fitted = ndtr(-gap)
        density = np.exp(-(gap**2) / 2) / np.sqrt(2 * np.pi)
        selection = _row_sums(number * density * threshold / s)
        many, varies = number * fitted, more.any()
        # A smaller b' makes `kept` larger, and a larger `kept` makes b' smaller. So, starting from
        # 1, b' falls to the largest solution.
        left = np.ones_like(s)
        for _ in range(100):
            shown = left * left * tau
            seen = v + np.where(more > limit * (v + shown), more, 0.0) if varies else v
            kept = seen / (seen + shown)
            used = _row_sums(many * (1 + (batches - 1) * kept))
            before, left = left, np.maximum(1 - (used + selection) / (self.cells * batches), 0.02)
            if np.maximum.reduce(np.abs(before - left), axis=None) < 1e-6:
                break
        spread, rest = v + more if varies else v, 1 - fitted
        mean = s * s * (fitted + gap * density) + f * f * rest
        stddev = fitted * (kept * kept * tau + (1 - kept) ** 2 * spread) + rest * spread
        errors = (number * (mean + (1 - 1 / batches) * stddev)).sum(axis=1)
        noise = plan.noise * batches / plan.clients**2
        implied = np.sqrt((noise + errors / plan.width) / (plan.rows * batches))
        return _State(implied, threshold[:, 0], left[:, 0], many.sum(axis=1))

    def largest_scale(self) -> float:
        """Return the largest scale s for which equation (1) gives at least s, or else 0."""
        f, number, plan = self.f, self.number, self.plan
        alone = (
            number * (f * f / plan.cancelling + f / plan.clients)
        ).sum() / plan.width + plan.noise / plan.clients**2
        low, high = _EXACT / plan.clients, 2 * (alone / plan.rows) ** 0.5
        if high <= low:
            return 0.0
        scales = np.geomspace(high, low, _SCALES)
        first = self._first_that_stays(scales)
        if first is None:
            return 0.0
        if first == 0:
            return float(high)
        # Equation (1) gives at least s at the low end of this step, and less at the high end.
        # `root` needs half the steps of halving.
        low, high = math.log(scales[first]), math.log(scales[first - 1])
        # `at` iterates until all scales of a block have converged. So the result for a single scale
        # may differ a little from that in a block: check the ends first.
        if (at_low := self._rise(low)) <= 0.0:
            return math.exp(low)
        if (at_high := self._rise(high)) >= 0.0:
            return math.exp(high)
        return math.exp(root(self._rise, low, high, ends=(at_low, at_high), within=_SAME))

    def _rise(self, log_scale: float) -> float:
        """Return log(scale from equation (1) / scale)."""
        scale = math.exp(log_scale)
        implied = float(self.at(np.array([scale])).implied[0])
        return math.log(max(implied, 1e-300) / scale)

    def _first_that_stays(self, scales: F64) -> int | None:
        """Return the index of the first scale s for which equation (1) gives at least s.

        Returns None if there is none.

        Args:
            scales: float64 [scales], falling.
        """
        for start in range(0, len(scales), _BLOCK):  # usually one of the largest scales
            some = scales[start : start + _BLOCK]
            stays = np.flatnonzero(self.at(some).implied >= some)
            if len(stays):
                return start + int(stays[0])
        return None


class _Fitted(NamedTuple):
    """The predicted result of joint recovery.

    Attributes:
        scale: the scale of the errors, a frequency; 0: recovery is exact.
        support: the expected number of fitted items.
        largest: the largest frequency of an item, divided by the scale.
        beyond: a function of x that returns the expected number of items with an error above
            x * scale.
    """

    scale: float
    support: float
    largest: float
    beyond: Callable[[float], float]


def predict(
    frequencies: F64, plan: Sums, number: F64 | float = 1.0, probability: float = 0.5
) -> Prediction:
    """Return the predicted error of joint recovery.

    Args:
        frequencies: float64 [k], ascending, above 0.
        plan: the sizes and the noise of the sums.
        number: the number of items of each frequency.
        probability: the probability that the largest error exceeds the result's `linf`.
    """
    found = _fitted(frequencies, plan, number)
    many = -math.log1p(-probability)
    linf = found.scale * _exceeded_by(many, found) if found.scale else 0.0
    return Prediction(found.scale, found.support, linf)


def failure(frequencies: F64, plan: Sums, number: F64, tau: float) -> float:
    """Return the probability that the largest error exceeds tau, a frequency.

    The number of errors above tau is treated as a Poisson variable. The other arguments are as in
    `predict`.
    """
    found = _fitted(frequencies, plan, number)
    return -math.expm1(-found.beyond(tau / found.scale)) if found.scale else 0.0


def _fitted(frequencies: F64, plan: Sums, number: F64 | float) -> _Fitted:
    """Return the predicted result of joint recovery; the arguments are as in `predict`.

    A planner needs several errors for the same sketch one after the other. So results are cached,
    unless there are many frequencies.
    """
    if len(frequencies) > _REMEMBERED:
        return _fit(frequencies, plan, number)
    arrays = frequencies, np.broadcast_to(number, frequencies.shape), plan.sizes
    rows, width, _, *rest = plan
    return _fitted_again(
        *(np.asarray(one, np.float64).tobytes() for one in arrays), rows, width, *rest
    )


@lru_cache(maxsize=4)
def _fitted_again(
    frequencies: bytes, number: bytes, sizes: bytes, rows: int, width: int, *rest: Any
) -> _Fitted:
    f, numbers, of_batches = (np.frombuffer(one) for one in (frequencies, number, sizes))
    return _fit(f, Sums(rows, width, of_batches, *rest), numbers)


def _fit(frequencies: F64, plan: Sums, number: F64 | float) -> _Fitted:
    f, number = drawn(frequencies, plan, number)
    s = np.inf
    for largest in (LARGEST_SUPPORT[plan.batches > 1.5], *SMALLER_SUPPORTS):
        ladder = _Ladder(f, number, plan, largest)
        found = ladder.largest_scale()
        if found == 0.0:
            return _Fitted(0.0, float(number[1:].sum()), 0.0, lambda _: 0.0)
        at = ladder.at(np.array([found]))
        if found < s:
            s, state = found, at
        if at.left[0] >= WELL_CONDITIONED:
            break
    gap, left, size = (float(state.threshold[0]) - f) / s, float(state.left[0]), f / s
    normal = normal_equivalent(size, number * ndtr(gap), plan)
    tail: Callable[[F64], F64] = lambda z: ndtr(-normal(z))  # noqa: E731

    at_gap = tail(gap)

    def beyond(x: float) -> float:
        """Return the expected number of items whose absolute error exceeds x times the scale s."""
        # the noise of an unfitted item with which its error is x or -x, divided by the scale
        high, low = ((side * x + (1 - left) * size) / left for side in (1, -1))
        fitted_high = tail(np.maximum(gap, x))
        fitted_low = np.maximum(at_gap - tail(np.maximum(gap, -x)), 0.0)
        other_high = np.maximum(tail(high) - at_gap, 0.0)
        other_low = tail(-np.minimum(gap, low))
        return float((number * (fitted_high + fitted_low + other_high + other_low)).sum())

    return _Fitted(s, float(state.support[0]), float(size[-1]), beyond)


def normal_equivalent(size: F64, number: F64, plan: Sums) -> Callable[[F64], F64]:
    """Return a function that turns errors into those with the same tail in a normal distribution.

    The error that unfitted items cause has wider tails than a normal variable. Sizes are in
    standard deviations of the noise.

    Args:
        size: float64 [groups], the frequencies of unfitted items.
        number: float64 [groups], the number of items in each group.
        plan: the sizes of the sums.
    """
    energy = number * size**2
    matters = energy > 1e-9 * energy.sum()
    size, number = size[matters], number[matters]
    batches = plan.cancelling
    # `share`: how much of the variance is due to these items; the rest is normal
    share = min(1.0, float(energy.sum()) / (plan.rows * plan.width * batches))
    t = np.linspace(0.0, 14.0, 141)[1:]
    y = t[:, None] * size / (plan.rows * batches)
    log_cosh = y + np.log1p(np.exp(-2 * y)) - np.log(2.0)
    together = 1 if plan.fresh else batches
    each = np.expm1(np.minimum(together * log_cosh, 80.0)) / plan.width
    cumulants = (number * each).sum(axis=1) * plan.rows * batches / together + (
        1 - share
    ) * t**2 / 2
    slope = np.gradient(cumulants, t)
    u, root = (
        t * np.sqrt(np.maximum(np.gradient(slope, t), 0)),
        np.sqrt(np.maximum(2 * (t * slope - cumulants), 0)),
    )
    sound = (u > 0) & (root > 0.3)
    if not sound.any():
        return lambda z: z
    z, root, u = slope[sound], root[sound], u[sound]
    equivalent = np.maximum.accumulate(np.minimum(root + np.log(u / root) / root, z))
    z, equivalent = np.append(0.0, z), np.append(0.0, equivalent)

    def normal(x: F64) -> F64:
        a = np.abs(x)
        found: F64 = np.sign(x) * (np.interp(a, z, equivalent) + np.maximum(a - z[-1], 0.0) / 2)
        return found

    return normal


def _exceeded_by(many: float, fitted: _Fitted) -> float:
    """Return the size of errors, divided by the scale, above which `many` errors are expected."""

    def more(x: float) -> float:
        # The tail falls like exp(-x^2 / 2), so its logarithm is nearly a parabola.
        return math.log(max(fitted.beyond(x), 1e-300) / many)

    low, high = 0.0, fitted.largest + 100.0
    if (at_low := more(low)) <= 0.0:
        return low
    if (at_high := more(high)) > 0.0:
        return high
    # The scale itself is only known to _SAME, so this precision is enough. At jumps and flat parts
    # of the tail, `root` takes more steps, since it halves the interval there.
    return root(more, low, high, ends=(at_low, at_high), within=1e-9)
