"""The error that a plan will have, predicted before it runs: from the frequencies, the sketch and the noise alone.

**Joint recovery.** What an item sees of the others is noise of one variance per batch of rounds (M
batches, one for shared), since hashes are random: what the others leave in a cell, averaged over L
rows,

    M s^2 = tau = (noise + sum of all items' errors / W) / L,         (1)

where s is the standard deviation of a fitted item's error, after the average over batches, and
errors are mean squares, per batch. An item's error is its whole frequency if it is not fitted; if
it is, normal of standard deviation s. It is fitted when its frequency plus that error exceeds 4 s
(more for domains beyond about 10^5 items), half a client, and what the bound on the support admits:
so (1) is an equation in s alone, with sums over items of normal tails. In every batch a fitted
item's deviation from its mean, of Poisson variance v = f M / N, is kept in part: k = v / (v + r), r
the noise that the residual shows, and leaves k^2 tau + (1 - k)^2 v; of an item that is not fitted,
v. The decoder comes from above, with a falling threshold, and stays where it cannot fall: at the
largest s for which (1) returns as much or more. It is looked for on a fine grid from above, then by
halving. As a plan grows, it may jump, from bad to nearly exact recovery.

The residual shows less noise than there is: its own standard deviation is b' s, where 1 - b' is the
mean response of the fit to its cells: a fitted item counts 1 + (M - 1) k of the L W M cells, and an
item near the threshold, whose selection responds too, threshold / s times its density there.
Without that last term it is b, the share of its mass that an item off the support keeps; b / b' is
the kappa of docs/recovery.md, which here follows and is not measured.

The largest error: the number of items beyond it is taken as Poisson, so its mean is ln 2 where half
of all campaigns exceed it. An item that is not fitted is released as b' (f + error). Tails are
those of the noise: what is not fitted is few and large in a cell, where rows are few, so every size
has its normal equivalent by the saddlepoint approximation (Barndorff-Nielsen's r*) of a compound
Poisson sum.

**The paper's decoder.** The error of a light item in one row has the characteristic function (after
Minton and Price 2014)

    exp(-noise t^2 / 2) prod_i [1 - (1 - c_i(t)) / W],  c_i(t) = (Re exp(f_i N / M (e^{it} - 1)))^M

in counts, for Poisson rounds of equal size, exactly for random hashes. Fourier inversion on a
lattice gives the distribution of
one row, of the median of L, and for fresh of the sum over rounds. The largest error is exceeded by
one of d independent items, with probability one half or what is asked for.

**Batches of unequal size.** An estimate is a sum of counts, so batch m weighs by its share w_m of
the clients. The median's c_i is the product of the batches' own, and for fresh the rounds'
distributions are convolved: as exact as before. The
collisions that joint recovery sees are f^2 sum w_m^2: M becomes 1 / sum w_m^2 throughout, exactly
for items that are not fitted, whose mean square is f^2 sum w_m^2 + (1 - sum w_m^2) f / N.

**Rounds of different distributions.** h >= 1 is the mean over rounds of the squared norm of f^(m),
over that of their mean f. Of
batches it is `heterogeneity_of_batches`; of one, shared, always 1. With signs of their own,
collisions of an item come to sum w_m^2 (f^(m))^2 = f^2 h / M, as if it occurred in M / h of the
batches alone. So for hybrid c_i is that of M / h batches (all equal but one, which is smaller); for
fresh a round holds the h-th part of the items, each h times as often; for joint recovery an item
varies between batches by f^2 (h - 1) more than Poisson counts do, which the decoder knows of fitted
items where it is clear. All three are exact for items that each occur in one round alone, h = M.

**Clients of several items.** Signs are independent, so items of one client in one cell have no
covariance: the row's distribution, given the counts, is the same. Counts of different items depend
on each other a little, which is left out; each is binomial, as before. Only the sum of frequencies
may be larger.

**What it assumes.** The frequencies of the population from which the clients are drawn, known, and
h; random hashes. No constant was fitted to simulations; one choice, that an item enters at 4 s
rather than 4 s / kappa, was confirmed on synthetic distributions. `python -m experiments
error_model` compares with simulations of these, and of real tables, on which no choice rests.

**Where it fails.** (a) At the edge of exact recovery it is off by one or two clients, in either
direction. (b) For one batch and up to about 1,000 cells, campaigns differ: some find a way down
that others miss. There the typical largest error may be twice what is predicted; with three rows
and many candidates it may be any. Where the error jumps with the width, from many items to few, it
does so up to a quarter wider than predicted, also for several batches: just there the error may be
ten times as large. (c) One h stands for all items, but between months or hours of real check-ins it
is 1.1 to 1.2 for all below 1 %, 1.5 to 2 for the rarest. Joint recovery leaves just these: with the
former its scale is predicted a fifth too small, and up to two fifths where batches are of
consecutive rounds that drift, which differ more than if they were assigned at random. (d) For the
median all items are taken as light, and as independent; but items of one campaign depend on the
same few heavy ones, so that for five rows its largest error differs by a factor of two between
campaigns. The scale does not. (e) With an even number of rows, half of which fail, the median's
error is halved, while with one row less it may vanish: one more row does not always help the
median.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.signal import fftconvolve
from scipy.special import betainc, gammaln, ndtr, ndtri, xlogy

from fedtally import _validate
from fedtally.errors import InvalidInputError
from fedtally.recovery.joint import (
    FALSE_ITEMS,
    LARGEST_SUPPORT,
    SELECTED,
    SMALLER_SUPPORTS,
    WELL_CONDITIONED,
)
from fedtally.sketch import Recovery, Schedule, ScheduleKind

F64 = npt.NDArray[np.float64]
_MANY = 60.0  # clients from which an item's count is taken as its expectation
_GROUP = 1.03  # items within this ratio are taken together
_WIDE_GROUP = 1.1
_ALONE = 60  # heaviest items that the median's distribution takes one by one
_ALIKE = 1.01  # batches whose clients are within this ratio are taken together, ...
_SIZES = 12  # ... or more, so that the median's distribution sees about so many sizes
# standard errors by which an item's rounds must differ for the decoder to see more than Poisson
# noise
_CLEARLY = 3.0
_SCALES = 240
_BLOCK = 24  # scales that are looked at together
_EXACT = 1e-3  # clients: a smaller scale is taken as none
_LATTICE = 4096
_STEPS = 48  # lattice steps to the size that is asked for
_BLUR = 1.2  # steps: keeps the lattice smooth where it is coarser than counts
_NORMAL_95 = 1.959964
_NORMAL_STEP = 0.005  # of a lattice of normals, which then reaches 10 standard deviations


@dataclass(frozen=True)
class Prediction:
    """What a plan will do, in frequencies.

    Attributes:
        scale: error of one item, as a standard deviation: of a fitted item for joint recovery; for
            the median the .95 quantile of any item's error over 1.96, since its tails are not
            normal. 0 if recovery is exact.
        support: how many items joint recovery fits; 0 for the median.
        linf: the largest error of all candidates, exceeded in half of all campaigns, or with the
            probability asked for.
    """

    scale: float
    support: float
    linf: float


class _Plan(NamedTuple):
    """Sizes: batches are sets of signs; noise is the variance of one counter of the sum over all rounds.

    Attributes:
        sizes: float64 [batches], in proportion to the clients of each.
        heterogeneity: of the batches, from 1 to their effective number.
    """

    rows: int
    width: int
    sizes: F64
    fresh: bool
    clients: int
    noise: float
    candidates: int
    heterogeneity: float

    @property
    def batches(self) -> float:
        """The effective number of batches: so many of equal size spread the clients as much."""
        return _effective(self.sizes)

    @property
    def cancelling(self) -> float:
        """M': in how many batches of equal size an item would have to occur for its collisions to cancel as they do."""
        return self.batches / self.heterogeneity


def _effective(sizes: F64) -> float:
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def heterogeneity_of_batches(heterogeneity: float, batches: float, num_rounds: float) -> float:
    """Return the heterogeneity of batches of rounds: 1 + (h - 1) (B - 1) / (M - 1).

    A batch's distribution is the mean of its rounds'. If these are assigned at random, the variance
    of the mean of k = M / B of
    M rounds is the (M - k) / (k (M - 1))-th part of that of one. Exact for items that each occur in
    one round alone: B.

    Args:
        heterogeneity: h of the rounds, at least 1; no more than M is used.
        batches: B, their effective number, at least 1.
        num_rounds: M, effective, at least B.

    >>> [heterogeneity_of_batches(10.0, batches, 10) for batches in (1, 4, 10)]
    [1.0, 4.0, 10.0]
    """
    if num_rounds <= 1.0 + 1e-9:
        return 1.0
    return 1.0 + (min(heterogeneity, num_rounds) - 1.0) * (batches - 1.0) / (num_rounds - 1.0)


def predict(
    frequencies: npt.ArrayLike,
    *,
    rows: int,
    width: int,
    schedule: Schedule | str,
    num_rounds: int,
    num_clients: int | None = None,
    noise: float = 0.0,
    recovery: str = "joint",
    candidates: int | None = None,
    numbers: npt.ArrayLike | None = None,
    round_sizes: Sequence[int] | None = None,
    heterogeneity: float = 1.0,
    max_items: int = 1,
    probability: float = 0.5,
) -> Prediction:
    """Predict the error of a campaign.

    Args:
        frequencies: [d], expected frequencies in any order, in [0, 1], together at most
            `max_items`.
        rows: of the sketch, at least 1, for joint recovery 3.
        width: of the sketch, at least 1.
        schedule: shared, fresh, hybrid or batched:B.
        num_rounds: at least 1.
        num_clients: of all rounds together, at least 1; may be left out where `round_sizes` are
            given.
        noise: standard deviation of the noise in each counter of each round's sum, in counts.
        recovery: "joint" or "median".
        candidates: size of the domain where it is larger than d; the others are held by nobody.
        numbers: [d], how many items have each frequency; one if absent.
        round_sizes: [num_rounds], clients of each round, at least 1; of equal size if absent.
        heterogeneity: h, at least 1: the mean over rounds of the squared l2 norm of the tail's
            frequencies, over that of their mean distribution's; more than the number of rounds
            counts as that. 1: rounds of one distribution.
        max_items: the most items of one client.
        probability: in (0, 1), that the largest error exceeds linf.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> distribution = np.arange(1, 100_001.0) ** -1.1
    >>> plan = {"rows": 5, "width": 1000, "schedule": "hybrid", "num_rounds": 10, "num_clients": 1_000_000}
    >>> for recovery in ("joint", "median"):
    ...     print(f"{predict(distribution / distribution.sum(), **plan, recovery=recovery).linf:.1e}")
    4.6e-05
    1.7e-03
    """
    known, number = _known(frequencies, numbers, _validate.integer(1, max_items=max_items))
    rounds = _rounds(Schedule.parse(schedule), num_rounds, num_clients, round_sizes, heterogeneity)
    plan = _plan(rows, width, rounds, num_rounds, noise, recovery, _candidates(number, candidates))
    if not 0.0 < _validate.real(probability=probability) < 1.0:
        raise InvalidInputError(f"probability must be above 0 and below 1, got {probability}")
    return MODELS[Recovery(recovery)].predict(
        known[known > 0], plan, number[known > 0], probability
    )


def failure(
    frequencies: npt.ArrayLike,
    tau: float,
    *,
    rows: int,
    width: int,
    schedule: Schedule | str,
    num_rounds: int,
    num_clients: int | None = None,
    noise: float = 0.0,
    recovery: str = "joint",
    candidates: int | None = None,
    numbers: npt.ArrayLike | None = None,
    round_sizes: Sequence[int] | None = None,
    heterogeneity: float = 1.0,
    max_items: int = 1,
) -> float:
    """Predict the probability that the largest error of a campaign exceeds a size.

    Args:
        frequencies: as in `predict`, like all that follows tau.
        tau: the size, a frequency, above 0.
        rows: of the sketch.
        width: of the sketch.
        schedule: shared, fresh, hybrid or batched:B.
        num_rounds: at least 1.
        num_clients: of all rounds together.
        noise: standard deviation in each counter of each round's sum, in counts.
        recovery: "joint" or "median".
        candidates: size of the domain.
        numbers: [d], how many items have each frequency.
        round_sizes: [num_rounds], clients of each round.
        heterogeneity: h of the rounds.
        max_items: the most items of one client.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> distribution = np.arange(1, 10_001.0) ** -1.1
    >>> plan = {"rows": 15, "schedule": "shared", "num_rounds": 1, "num_clients": 10_000, "recovery": "median"}
    >>> [round(failure(distribution / distribution.sum(), 0.01, width=width, **plan), 2) for width in (50, 75, 100)]
    [0.69, 0.07, 0.01]
    """
    known, number = _known(frequencies, numbers, _validate.integer(1, max_items=max_items))
    rounds = _rounds(Schedule.parse(schedule), num_rounds, num_clients, round_sizes, heterogeneity)
    plan = _plan(rows, width, rounds, num_rounds, noise, recovery, _candidates(number, candidates))
    if _validate.real(0.0, tau=tau) == 0.0:
        raise InvalidInputError(f"tau must be above 0, got {tau}")
    return MODELS[Recovery(recovery)].failure(known[known > 0], plan, number[known > 0], tau)


def exceedance(
    frequencies: npt.ArrayLike,
    size: float,
    *,
    rows: int,
    width: int,
    schedule: Schedule | str,
    num_rounds: int,
    num_clients: int,
    noise: float = 0.0,
) -> float:
    """Predict the share of light items that the paper's decoder misses by more than a size.

    Args:
        frequencies: as in `predict`, like all that follows the size.
        size: a frequency, above 0.
        rows: of the sketch.
        width: of the sketch.
        schedule: shared, fresh, hybrid or batched:B.
        num_rounds: at least 1.
        num_clients: of all rounds together.
        noise: standard deviation in each counter of each round's sum, in counts.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> distribution = np.arange(1, 10_001.0) ** -1.1
    >>> plan = {"rows": 5, "width": 100, "schedule": "shared", "num_rounds": 1, "num_clients": 10_000}
    >>> [round(exceedance(distribution / distribution.sum(), size, **plan), 4) for size in (0.002, 0.01, 0.05)]
    [0.1376, 0.0032, 0.0]
    """
    known, number = _known(frequencies, None, 1)
    rounds = _rounds(Schedule.parse(schedule), num_rounds, num_clients, None, 1.0)
    plan = _plan(rows, width, rounds, num_rounds, noise, Recovery.MEDIAN, max(len(known), 1))
    if _validate.real(0.0, size=size) == 0.0:
        raise InvalidInputError(f"size must be above 0, got {size}")
    return _item_exceeds(known[known > 0], plan, number[known > 0], size)


class _Rounds(NamedTuple):
    """What a plan says of its rounds: as in `_Plan`."""

    sizes: F64
    fresh: bool
    clients: int
    heterogeneity: float


def _rounds(
    schedule: Schedule,
    num_rounds: int,
    num_clients: int | None,
    round_sizes: Sequence[int] | None,
    heterogeneity: float,
) -> _Rounds:
    rounds = np.ones(_validate.integer(1, num_rounds=num_rounds))
    if round_sizes is not None:
        if len(round_sizes) != num_rounds:
            raise InvalidInputError(
                f"round_sizes must be {num_rounds}, one of each round, got {len(round_sizes)}"
            )
        rounds = np.array(
            [_validate.integer(1, round_sizes=size) for size in round_sizes], dtype=np.float64
        )
        total = int(rounds.sum())
        if num_clients is None:
            num_clients = total
        elif num_clients != total:
            raise InvalidInputError(
                f"num_clients must be the sum of round_sizes, {total}, got {num_clients}"
            )
    elif num_clients is None:
        raise InvalidInputError("num_clients or round_sizes must be given, got neither")
    sizes = np.array(
        [rounds[batch.start : batch.stop].sum() for batch in schedule.batches_of(num_rounds)]
    )
    spread = heterogeneity_of_batches(
        _validate.real(1.0, heterogeneity=heterogeneity), _effective(sizes), _effective(rounds)
    )
    clients = _validate.integer(1, num_clients=num_clients)
    return _Rounds(sizes, schedule.kind is ScheduleKind.FRESH, clients, spread)


def _plan(
    rows: int,
    width: int,
    rounds: _Rounds,
    num_rounds: int,
    noise: float,
    recovery: str,
    candidates: int,
) -> _Plan:
    decoder, rows = Recovery.parse(recovery), _validate.integer(1, rows=rows)
    decoder.check_rows(rows)
    return _Plan(
        rows,
        _validate.integer(1, width=width),
        rounds.sizes,
        rounds.fresh,
        rounds.clients,
        _validate.real(0.0, noise=noise) ** 2 * num_rounds,
        candidates,
        rounds.heterogeneity,
    )


def _candidates(number: F64, candidates: int | None) -> int:
    """Return how many candidates there are, at least as many as have a frequency."""
    items = math.ceil(float(number.sum()) * (1 - 1e-9))
    size = items if candidates is None else _validate.integer(candidates=candidates)
    if size < max(items, 1):
        raise InvalidInputError(
            f"candidates must be at least 1 and the number of frequencies, {items}, got {size}"
        )
    return size


def _known(
    frequencies: npt.ArrayLike, numbers: npt.ArrayLike | None, max_items: int
) -> tuple[F64, F64]:
    """Return checked frequencies, rising, and how many items have each."""
    known = _numbers(frequencies=frequencies)
    each = np.ones_like(known) if numbers is None else _numbers(numbers=numbers)
    if len(each) != len(known):
        raise InvalidInputError(
            f"numbers must be {len(known)}, one of each frequency, got {len(each)}"
        )
    total = float(known @ each)
    if total > max_items * (1 + 1e-9):
        way_out = (
            "divide them by their sum"
            if max_items == 1
            else "divide counts by the number of clients"
        )
        raise InvalidInputError(
            f"frequencies must sum to at most {max_items}, got {total:.6g}: {way_out}"
        )
    if known.max(initial=0.0) > 1 + 1e-9:
        raise InvalidInputError(f"frequencies must each be at most 1, got {known.max():.6g}")
    order = np.argsort(known)
    return known[order], each[order]


def _numbers(**named: npt.ArrayLike) -> F64:
    """Return the named numbers, in one dimension, finite and at least 0."""
    [(name, values)] = named.items()
    try:
        known = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be numbers in one dimension") from None
    if known.ndim != 1:
        raise InvalidInputError(f"{name} must be in one dimension, got {known.ndim}")
    if not np.isfinite(known).all() or (known < 0).any():
        raise InvalidInputError(f"{name} must be finite and at least 0")
    return known


def _grouped(values: F64, numbers: F64, ratio: float) -> tuple[F64, F64]:
    """Return means and sizes of groups of positive rising values, so many of each, within a ratio of each other."""
    if not len(values):
        return np.empty(0), np.empty(0)
    group = np.floor((np.log(values) - np.log(values[0])) / np.log(ratio)).astype(np.int64)
    sizes = np.bincount(group, numbers).astype(np.float64)
    sums = np.bincount(group, values * numbers)
    return sums[sizes > 0] / sizes[sizes > 0], sizes[sizes > 0]


# ---- joint recovery ----


def _drawn(frequencies: F64, plan: _Plan, number: F64 | float = 1.0) -> tuple[F64, F64]:
    """Return frequencies among the drawn clients, and how many items are expected to have each, 0 first."""
    expected, number = frequencies * plan.clients, np.broadcast_to(number, frequencies.shape)
    few = expected <= _MANY
    rare, sizes = _grouped(expected[few], number[few], _GROUP)
    counts = np.arange(1.0, _MANY + 10 * _MANY**0.5)
    poisson = np.exp(xlogy(counts, rare[:, None]) - rare[:, None] - gammaln(counts + 1))
    frequent, others = _grouped(expected[~few], number[~few], _GROUP)
    numbers = np.concatenate([sizes @ poisson, others])
    zero = max(plan.candidates - float(numbers.sum()), 0.0)
    return np.concatenate([[0.0], counts, frequent]) / plan.clients, np.append(zero, numbers)


class _State(NamedTuple):
    """What the decoder makes of scales: float64 [scales]; `implied` is what (1) returns, `left` is b'."""

    implied: F64
    threshold: F64
    left: F64
    support: F64


class _Ladder:
    """Equation (1), for a bound on the support as a share of the cells."""

    def __init__(self, f: F64, number: F64, plan: _Plan, largest: float) -> None:
        self.f, self.number, self.plan = f, number, plan
        self.cells = plan.rows * plan.width
        self.most = max(1, int(largest * self.cells))
        self.selected = max(SELECTED, -float(ndtri(min(0.5, FALSE_ITEMS / plan.candidates))))

    def _support(self, threshold: F64, s: F64) -> F64:
        support: F64 = (self.number * ndtr((self.f - threshold) / s)).sum(axis=1, keepdims=True)
        return support

    def _threshold(self, s: F64) -> F64:
        """Return the least thresholds of the decoder that leave no more items than may be fitted: [scales, 1]."""
        low = np.maximum(self.selected * s, 0.5 / self.plan.clients)
        full = np.flatnonzero(self._support(low, s) > self.most)
        if len(full):
            least, most, scales = low[full], self.f[-1] + 40 * s[full], s[full]
            for _ in range(40):
                middle = (least + most) / 2
                over = self._support(middle, scales) > self.most
                least, most = np.where(over, middle, least), np.where(over, most, middle)
            low[full] = most
        return low

    def at(self, scale: F64) -> _State:
        """Return what the decoder makes of scales, float64 [scales], positive."""
        plan, f, number = self.plan, self.f, self.number
        s = scale[:, None]
        # Between batches an item varies as Poisson counts do, and as its distribution does; the
        # decoder sees the latter where it
        # is clear.
        tau, v = plan.batches * s * s, f * plan.batches / plan.clients
        more = f * f * (plan.heterogeneity - 1) / max(1 - 1 / plan.batches, 1e-9)
        limit = _CLEARLY * math.sqrt(2 / max(plan.batches - 1, 1e-9))
        threshold = self._threshold(s)
        gap = (threshold - f) / s
        fitted = ndtr(-gap)
        density = np.exp(-(gap**2) / 2) / np.sqrt(2 * np.pi)
        selection = (number * density * threshold / s).sum(axis=1, keepdims=True)
        # A smaller b' means larger shares kept, and these a smaller b': from 1 it falls to the
        # largest solution.
        left = np.ones_like(s)
        for _ in range(100):
            shown = left**2 * tau
            seen = v + np.where(more > limit * (v + shown), more, 0.0)
            kept = seen / (seen + shown)
            used = (number * fitted * (1 + (plan.batches - 1) * kept)).sum(axis=1, keepdims=True)
            before, left = (
                left,
                np.maximum(1 - (used + selection) / (self.cells * plan.batches), 0.02),
            )
            if np.abs(before - left).max() < 1e-6:
                break
        mean = s * s * (fitted + gap * density) + f * f * (1 - fitted)
        stddev = fitted * (kept**2 * tau + (1 - kept) ** 2 * (v + more)) + (1 - fitted) * (v + more)
        errors = (number * (mean + (1 - 1 / plan.batches) * stddev)).sum(axis=1)
        noise = plan.noise * plan.batches / plan.clients**2
        implied = np.sqrt((noise + errors / plan.width) / (plan.rows * plan.batches))
        return _State(implied, threshold[:, 0], left[:, 0], (number * fitted).sum(axis=1))

    def largest_scale(self) -> float:
        """Return the largest scale that (1) returns at least as large; 0 if there is none."""
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
        # implied >= scale at the low end, < at the high end: halving keeps it so.
        low, high = float(scales[first]), float(scales[first - 1])
        while high > low * (1 + 1e-6):
            middle = (low * high) ** 0.5
            if self.at(np.array([middle])).implied[0] >= middle:
                low = middle
            else:
                high = middle
        return low

    def _first_that_stays(self, scales: F64) -> int | None:
        """Return the place of the first scale, from above, that (1) returns at least as large."""
        for start in range(0, len(scales), _BLOCK):  # mostly it is among the largest
            some = scales[start : start + _BLOCK]
            stays = np.flatnonzero(self.at(some).implied >= some)
            if len(stays):
                return start + int(stays[0])
        return None


class _Fitted(NamedTuple):
    """What joint recovery is expected to come to; `beyond`: how many items have an error above a size, in scales."""

    scale: float
    support: float
    largest: float
    beyond: Callable[[float], float]


def _joint(
    frequencies: F64, plan: _Plan, number: F64 | float = 1.0, probability: float = 0.5
) -> Prediction:
    found = _fitted(frequencies, plan, number)
    many = -math.log1p(-probability)
    linf = (
        found.scale * _zero(lambda x: found.beyond(x) - many, found.largest + 100.0)
        if found.scale
        else 0.0
    )
    return Prediction(found.scale, found.support, linf)


def _failure_of_joint(frequencies: F64, plan: _Plan, number: F64, tau: float) -> float:
    found = _fitted(frequencies, plan, number)
    return -math.expm1(-found.beyond(tau / found.scale)) if found.scale else 0.0


def _fitted(frequencies: F64, plan: _Plan, number: F64 | float) -> _Fitted:
    f, number = _drawn(frequencies, plan, number)
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
    normal = _normal_equivalent(size, number * ndtr(gap), plan)
    tail: Callable[[F64], F64] = lambda z: ndtr(-normal(z))  # noqa: E731

    def beyond(x: float) -> float:
        """Return the expected number of items whose error exceeds x s in size."""
        # errors of an item not fitted
        high, low = ((side * x + (1 - left) * size) / left for side in (1, -1))
        fitted_high = tail(np.maximum(gap, x))
        fitted_low = np.maximum(tail(gap) - tail(np.maximum(gap, -x)), 0.0)
        other_high = np.maximum(tail(high) - tail(gap), 0.0)
        other_low = tail(-np.minimum(gap, low))
        return float((number * (fitted_high + fitted_low + other_high + other_low)).sum())

    return _Fitted(s, float(state.support[0]), float(size[-1]), beyond)


def _normal_equivalent(size: F64, number: F64, plan: _Plan) -> Callable[[F64], F64]:
    """Return what gives a size of the noise, in its standard deviations, the normal size with the same tail.

    Args:
        size: float64 [groups], frequencies of items that are not fitted, in standard deviations of
            the noise.
        number: float64 [groups], how many.
        plan: the sizes.
    """
    energy = number * size**2
    matters = energy > 1e-9 * energy.sum()
    size, number = size[matters], number[matters]
    batches = plan.cancelling
    # of the variance; the rest: normal
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


def _zero(falling: Callable[[float], float], high: float) -> float:
    """Return where a falling function passes zero, by halving [0, high]."""
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


# ---- the paper's decoder ----


def _median(frequencies: F64, plan: _Plan, number: F64, probability: float) -> Prediction:
    drawn = _expected(frequencies, plan, number)
    any_item = _exceeded_with(0.05, *drawn, plan)
    largest = _exceeded_with(-math.expm1(math.log1p(-probability) / plan.candidates), *drawn, plan)
    return Prediction(any_item / _NORMAL_95 / plan.clients, 0.0, largest / plan.clients)


def _failure_of_median(frequencies: F64, plan: _Plan, number: F64, tau: float) -> float:
    """Return the probability that one of so many independent items errs by more than tau."""
    exceeds = _item_exceeds(frequencies, plan, number, tau)
    return -math.expm1(plan.candidates * math.log1p(-min(exceeds, 1 - 1e-15)))


def _item_exceeds(frequencies: F64, plan: _Plan, number: F64, tau: float) -> float:
    """Return the probability that one light item errs by more than tau."""
    counts = tau * plan.clients
    step = max(1.0, counts / _STEPS)
    sizes, tails = _tails(step, *_expected(frequencies, plan, number), plan)
    if step == 1.0:
        return float(tails[np.searchsorted(sizes, counts * (1 + 1e-9), side="right") - 1])
    # An error is a whole number of counts, of even rows of halves: half way from the last that does
    # not exceed tau.
    unit = 1.0 if plan.rows % 2 else 0.5
    between = (math.floor(counts / unit * (1 + 1e-9)) + 0.5) * unit
    return math.exp(
        float(np.interp(between, sizes + sizes[1] / 2, np.log(np.maximum(tails, 1e-300))))
    )


def _expected(frequencies: F64, plan: _Plan, number: F64) -> tuple[F64, F64]:
    """Return expected counts, the heaviest one by one, and how many items have each."""
    if plan.fresh:  # a round holds the h-th part of the items, each h times as often
        frequencies, number = frequencies * plan.heterogeneity, number / plan.heterogeneity
    light, numbers = _grouped(frequencies[:-_ALONE] * plan.clients, number[:-_ALONE], _WIDE_GROUP)
    return np.append(light, frequencies[-_ALONE:] * plan.clients), np.append(
        numbers, number[-_ALONE:]
    )


def _alike(plan: _Plan) -> list[tuple[float, int]]:
    """Return groups of batches of about equal size: the clients of all over those of one, and how many."""
    cancelling = plan.cancelling
    if plan.heterogeneity > 1.0 and not plan.fresh:
        # The sizes of an item's own batches: all equal but the last, so that their effective number
        # is M'.
        many = math.ceil(cancelling - 1e-9)
        if many == 1:
            return [(1.0, 1)]
        more = math.sqrt(max(1 / cancelling - 1 / many, 0.0) / (many * (many - 1)))
        last = 1 / many - (many - 1) * more
        return [(1 / (1 / many + more), many - 1)] + ([(1 / last, 1)] if last > 1e-9 else [])
    sizes = np.sort(plan.sizes)
    ratio = max(_ALIKE, (sizes[-1] / sizes[0]) ** (1 / _SIZES))
    return [
        (float(sizes.sum() / size), int(many))
        for size, many in zip(*_grouped(sizes, np.ones_like(sizes), ratio), strict=True)
    ]


def _exceeded_with(probability: float, expected: F64, numbers: F64, plan: _Plan) -> float:
    """Return the error, in counts, that a light item exceeds in size with a probability.

    From a lattice that holds everything to ever finer ones, until the answer is many steps long, or
    a step one count.
    """
    reach = (
        float(expected.max(initial=0.0)) + float((numbers * expected**2).sum() + plan.noise) ** 0.5
    )
    step = max(1.0, 8 * reach / _LATTICE)
    while True:
        sizes, tails = _tails(step, expected, numbers, plan)
        found = float(sizes[np.argmax(np.append(tails[:-1], 0.0) <= probability)])
        if step == 1.0:
            return found  # counts: an exact lattice
        if found >= _STEPS / 2 * step:
            return float(
                np.interp(
                    -np.log(probability), -np.log(np.maximum(tails, 1e-300)), sizes + sizes[1] / 2
                )
            )
        step = max(1.0, max(found, step) / _STEPS)


def _tails(step: float, expected: F64, numbers: F64, plan: _Plan) -> tuple[F64, F64]:
    """Return sizes on a lattice, counts, and the probability that an estimate's error exceeds each."""
    t = _angles(step)
    blur = 0.0 if step == 1.0 else (_BLUR * step) ** 2
    items = tuple(expected.tolist())

    def median(noise: float, groups: list[tuple[float, int]]) -> tuple[F64, float]:
        """Return the distribution of the median over rows of batches that share locations, and its step."""
        less: F64 = np.minimum(_less(step, items, tuple(groups)) / plan.width, 1 - 1e-12)
        log = -(noise + blur) * t * t / 2
        log += np.log1p(-less).T @ numbers
        row = np.fft.fftshift(np.maximum(np.fft.irfft(np.exp(log), _LATTICE), 0.0))
        return _law_of_median(row / row.sum(), plan.rows, step)

    groups = _alike(plan)
    if plan.fresh and len(plan.sizes) > 1:
        waves = []
        for all, many in groups:
            distribution, found = median(plan.noise / len(plan.sizes), [(all, 1)])
            waves.append(np.fft.rfft(np.fft.ifftshift(distribution)) ** many)
        distribution = np.fft.fftshift(
            np.maximum(np.fft.irfft(math.prod(waves), len(distribution)), 0.0)
        )
    else:
        distribution, found = median(plan.noise, groups)
    step = found
    half = len(distribution) // 2
    above = np.append(
        np.cumsum(distribution[:half:-1])[::-1], 0.0
    )  # above each size from 0 on; the distribution is symmetric
    tails: F64 = np.minimum(2 * above[:half], 1.0)
    return step * np.arange(float(half)), tails


def _angles(step: float) -> F64:
    t: F64 = np.arange(_LATTICE / 2 + 1) * (2 * np.pi / (_LATTICE * step))
    return t


@lru_cache(maxsize=8)
def _less(step: float, expected: tuple[float, ...], groups: tuple[tuple[float, int], ...]) -> F64:
    """Return 1 - c_i(t), the same for all rows and widths: float64 [items, angles].

    Args:
        step: of the lattice.
        expected: counts of items.
        groups: batches, as of `_alike`.
    """
    t = _angles(step)
    less, phase = 2 * np.sin(t / 2) ** 2, np.sin(t)
    found = np.ones((len(expected), len(t)))
    for all, many in groups:
        means = np.array(expected)[:, None] / all
        found *= _power(np.exp(-means * less) * np.cos(means * phase), many)
    return 1 - found


def _power(base: F64, exponent: int) -> F64:
    """Return base**exponent, exponent at least 1, by squaring, which is much faster than numpy's."""
    found = base if exponent % 2 else np.ones_like(base)
    while exponent := exponent // 2:
        base = base * base
        if exponent % 2:
            found = found * base
    return found


def median_of_normals(rows: int) -> tuple[F64, F64]:
    """Return sizes, rising, and the distribution on them of the median of so many independent standard normals.

    The normals are rounded to steps of 1/200, which changes quantiles by less than 2e-4 of
    themselves for up to 100 rows, by less than 2e-3 for up to 1,024.

    >>> sizes, distribution = median_of_normals(3)
    >>> round(float(distribution @ sizes**2), 4), round(1 - 3**0.5 / np.pi, 4)
    (0.4487, 0.4487)
    """
    edges = _NORMAL_STEP * (np.arange(-_LATTICE // 2, _LATTICE // 2 + 1) - 0.5)
    distribution, step = _law_of_median(np.diff(ndtr(edges)), rows, _NORMAL_STEP)
    return step * (np.arange(float(len(distribution))) - len(distribution) // 2), distribution


def _law_of_median(row: F64, rows: int, step: float) -> tuple[F64, float]:
    """Return the distribution of the median of rows, and its step; for even rows the mean of the two middle, on half
    steps.

    Args:
        row: float64 [n], the distribution of one row on a lattice, 0 at n // 2.
        rows: how many.
        step: of the lattice.
    """
    below = np.clip(np.append(0.0, np.cumsum(row)), 0.0, 1.0)
    k = (rows + 1) // 2
    of_kth: F64 = np.diff(betainc(k, rows + 1 - k, below))  # the k-th smallest
    if rows % 2:
        return of_kth, step
    # The k-th at a, the next at b > a: so many ways times (F(a)^k - F(a-)^k) (G(b-)^k - G(b)^k), G
    # = 1 - F.
    above = np.clip(np.append(np.cumsum(row[::-1])[::-1], 0.0), 0.0, 1.0)
    ways = np.exp((gammaln(rows + 1) - 2 * gammaln(k + 1)) / 2)
    low, high = ways * np.diff(below**k), ways * -np.diff(above**k)
    distribution = _pairs(low, high)
    distribution[::2] += np.maximum(of_kth - low * ways * above[1:] ** k, 0.0)
    return np.append(distribution, 0.0), step / 2


def _pairs(low: F64, high: F64) -> F64:
    """Return, at each s, the sum of low[a] high[b] over a + b = s, a < b: float64 [2 n - 1]."""
    size = len(low)
    if size <= 64:
        index = np.add.outer(np.arange(size), np.arange(size))
        weights = np.triu(np.outer(low, high), 1).reshape(-1)
        few: F64 = np.bincount(index.reshape(-1), weights, 2 * size - 1).astype(np.float64)
        return few
    half = size // 2
    distribution = np.zeros(2 * size - 1)
    distribution[: 2 * half - 1] += _pairs(low[:half], high[:half])
    distribution[2 * half :] += _pairs(low[half:], high[half:])
    distribution[half : half + size - 1] += np.maximum(fftconvolve(low[:half], high[half:]), 0.0)
    return distribution


class ErrorModel(NamedTuple):
    """How the error of a decoder is predicted, from rising frequencies, the plan, and how many items have each.

    Attributes:
        predict: the prediction, also given the probability with which the largest error exceeds its
            `linf`.
        failure: the probability that the largest error exceeds a size, which is also given, above
            0.
    """

    predict: Callable[[F64, _Plan, F64, float], Prediction]
    failure: Callable[[F64, _Plan, F64, float], float]


MODELS = {
    Recovery.JOINT: ErrorModel(_joint, _failure_of_joint),
    Recovery.MEDIAN: ErrorModel(_median, _failure_of_median),
}
