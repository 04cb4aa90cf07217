"""Joint recovery: a decoder that fits all heavy items together, which removes their collisions.

A *cell* is a counter of the sketch. *Heavy* items are the frequent ones. The decoders of the paper
(Wu and others 2023, see `median`) treat everything that shares a cell with an item as noise. But
much of this noise often comes from other heavy items, which the same sums reveal. The fit repeats
three steps. First, it decodes the *residual*: the part of the sums that the fitted items do not
explain. Second, it chooses the items that stand out: the *support*. Third, it fits the frequencies
of these items in every batch to all cells at once. The repetitions use falling thresholds: this is
the *ladder*. A few *polishes* follow. A polish chooses the support again, by a sharper test, and
fits it. In the end the residual holds mostly the rare items and the privacy noise.

Joint recovery only processes released sums. So it costs no communication, and does not change a
guarantee of differential privacy. Without differential privacy there is no such guarantee: joint
recovery then reveals rare items that the noise of the paper's decoders hides. Secure summation does
not protect these items.

Related methods are matching pursuit with refitting (CoSaMP), simultaneous sparse recovery and
Counter Braids. docs/recovery.md states the differences, and the reasons for each step.

The comments use two symbols of that page. b is the share of an item's own frequency that is in the
residual if all other items are fitted and this item is not. e is the value that the fit gives an
item if it is fitted together with all others.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.domain import Domain
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.joint.finder import Finder
from fedtally.recovery.decoders.kind import FittedDecoder, Measured, Progress
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.found import FoundFit
from fedtally.recovery.linear_system import (
    F64,
    I64,
    U64,
    Bools,
    Candidates,
    Decoder,
    Ids,
    Landed,
    ask,
    check_landed,
)
from fedtally.recovery.phantoms import NUM_PHANTOMS, generator
from fedtally.recovery.quantiles import median, quantile, quantiles
from fedtally.recovery.shrinkage import NORMAL, NORMAL_95, Noisy
from fedtally.sketch import CountSketch

# The thresholds of the ladder, in robust standard deviations of the estimates. High ones come
# first: a false item that is fitted early spoils the estimates of the items that share its cells.
# The last threshold is used twice, since the second pass sees a residual without the items of the
# first pass.
THRESHOLDS = (32.0, 16.0, 8.0, 6.0, 5.0, 4.0, 4.0)
SWEEPS = 6  # sweeps of the fit over the support, for each threshold of the ladder
# A polish chooses the support by the values e (see `LeaveOneOut`). There are at least POLISHES of
# them. More follow, up to MOST_POLISHES in all, while each multiplies the noise by at most
# IMPROVES. Near exact recovery the noise falls step by step to 0.
POLISHES = 3
MOST_POLISHES = 12
IMPROVES = 0.9
POLISH_SWEEPS = 8  # sweeps of the fit over the support, in each polish
# A polish chooses only items whose value e is more than SELECTED of its own standard deviations. In
# a large domain the bound is higher: then about FALSE_ITEMS of the candidates that nobody holds are
# fitted.
SELECTED = 4.0
FALSE_ITEMS = 4
# The number of phantoms (ids that nobody holds) that measure the noise while the support is chosen.
_FEW_PHANTOMS = 4096
PROBE_SWEEPS = 12  # sweeps of the fit over the support, in each probe
# A probe fills all cells with random numbers and fits them. It shows which share of a cell the fit
# leaves in the residual. All probes together fill at least this number of cells, but there are at
# most 64 probes. The first number is for one batch of rounds, the second for several batches
# (`Landed.several` is the index).
PROBED_CELLS = (80_000, 200_000)
_GROUPS = 10  # cells are grouped by load; the share that is left is interpolated between groups
# If the shares b average at least this, unfitted items are estimated by b e, otherwise by e. With
# b e the squared error is smaller, and the largest error is the same.
_SHRUNK_FROM = 0.7
# The largest support, as a share of the cells of one sketch. The second number is for several
# batches of rounds, which distinguish items better (`Landed.several` is the index).
LARGEST_SUPPORT = (0.3, 0.6)
SMALLER_SUPPORTS = (0.2, 0.1, 0.05)  # tried one by one as long as the fit is ill-conditioned
# Each fitted item has a share b: the part of its frequency that would be in the residual if only
# this item left the support. A fit is well-conditioned if every b is at least this number.
WELL_CONDITIONED = 0.5
# Kappa is the ratio of the errors of fitted items to those of phantoms. These numbers are used if
# it is not measured: the first for one batch of rounds, the second for five or more. Both are the
# upper ends of the ranges in experiments.
KAPPA = (1.25, 1.06)
_TO_SIGMA = 1.4826  # for a normal x with mean 0: its standard deviation / the median of |x|
_TINY = 1e-300  # replaces a scale of 0, by which values are divided
_ROUNDING = 1e-6  # in clients: smaller noise, or a smaller distance from an integer, is rounding
# With one batch and at most this many cells, matrices fit all probes at once, which is faster.
_FEW_CELLS = 400
_SINGLE = 1e-4  # a relative margin, larger than the rounding error of single precision
# A domain with at least LARGE candidates is large. There, a look at all candidates also makes a
# list of those above a low floor, which only the share _KEPT_SHARE of the phantoms exceeds. A later
# look with a higher floor may use only this list, if since then the values of at least the share
# _STILL of the phantoms changed by less than the difference of the floors (see `Kept`).
LARGE = 1 << 20
# How many looks at a large domain usually go over all candidates, measured on open domains of 2^26
# hashes. Only the planner uses it.
LOOKS_AT_LARGE = 6
_KEPT_SHARE = 1 / 64
_STILL = 0.999
# If a look at all candidates takes the time 1, a look at a list of contenders takes this time. Its
# share of the time for making the list is included. `contenders` makes the list if a search of the
# finder takes longer.
_LISTED_LOOKS = 0.35


@dataclass
class Support:
    """The fitted items.

    Attributes:
        positions: int64 [n], their positions among the candidates.
        ids: uint64 [n], their ids.
        values: float64 [n, batches], their frequencies in each batch; `kernels.refit` changes them.
        shrinkage: float64 [n, batches]. The fit moves the frequency in a batch towards the item's
            mean over all batches. This share of the distance remains; 1: the frequency is not
            moved.
    """

    positions: I64
    ids: U64
    values: F64
    shrinkage: F64


class LeaveOneOut(NamedTuple):
    """The values of items if each is fitted together with all other items of the support.

    Each field has one entry for each item. Values and estimates are frequencies. For items off the
    support no new fit is made: e is computed from the residual.

    Attributes:
        values: e, the value that the fit gives the item on the support: its frequency plus an
            error. float64 [n].
        share: b, the share of the item's own frequency that the fit of the others leaves in the
            residual. The standard deviation of the error is proportional to 1 / sqrt(b). float64
            [n].
        fitted: whether the item is on the support, bool [n].
        estimate: the estimate that users get, float64 [n]. For fitted items it is e. For other
            items it is the mean residual, b * e. But if the b of phantoms average less than
            _SHRUNK_FROM, the fit absorbs most of an unfitted item: then the estimate is e.
    """

    values: F64
    share: F64
    fitted: npt.NDArray[np.bool_]
    estimate: F64


class Kept(NamedTuple):
    """A list that a look at all candidates of a large domain leaves for later looks.

    A candidate that is not on the list had a value of at most `floor`. The residual changes from
    look to look, and with it all values. A later look searches for values above a higher floor. The
    list is enough if no other value rose by more than the difference of the floors. Phantoms, ids
    that nobody holds, show how much values change. If 999 of 1,000 phantoms changed by less than
    this difference, only the list is searched. This misses about one in a thousand of the items
    that hardly stand out, which are found by chance anyway.

    Attributes:
        floor: the floor of the look; candidates with larger values are on the list.
        positions: int64 [n], the list: these candidates' positions, and those of the items that
            were fitted then.
        phantoms: float64 [NUM_PHANTOMS], the values of the phantoms in this look.
    """

    floor: float
    positions: I64
    phantoms: F64


class Fit:
    """One run of the ladder and the polishes; the constructor makes the fit.

    The sums of rounds that took place are called landed sums.

    Args:
        landed: the landed sums, by batches of rounds.
        candidates: the items that may be fitted.
        most: the largest number of fitted items.
        rng: draws phantoms and probes.
        threshold: the number of standard deviations by which an item must stand out to be fitted;
            None: it is derived from the number of candidates.
        progress: called with the number of candidates that were decoded, and about the number to
            decode in all. A candidate is counted once for each pass over the candidates. Each fit
            counts from 0.
        found: the result of the same fit, made before; None: make the fit now.

    Attributes:
        support: the fitted items.
        residual: the sums minus the fitted items, as frequencies, float64 [rows, width, batches].
        phantoms: ids that no client holds, uint64 [n].
        share: the b of each measured phantom, float64 [n].
        null: e sqrt(b) of each measured phantom, float64 [n].
        scale: the standard deviation of `null`, judged by its .95 quantile, a frequency. The error
            of an item with the share b has the standard deviation scale / sqrt(b).
        own_shares: the b of each fitted item, float64 [support].
        shrinks: whether the estimate of an unfitted item is b e; otherwise it is e.
        error: the frequency that the absolute estimate of one phantom in a thousand exceeds.
        least_own_share: the smallest of `own_shares`; 1 if no item is fitted.
        worst: the largest standard deviation of a fitted item, a frequency.
        threshold: the number of standard deviations by which an item must stand out to be fitted.
        selected: the threshold with which the fit began.
        whole: for a window, the fit of all batches; None: this is the fit of all batches.
    """

    def __init__(
        self,
        landed: Landed,
        candidates: Candidates,
        most: int,
        rng: np.random.Generator,
        threshold: float | None = None,
        progress: Progress | None = None,
        found: FoundFit | None = None,
    ) -> None:
        self.landed, self.candidates, self.most = landed, candidates, max(1, most)
        self.whole: Fit | None = None
        self._looked, self._progress = 0, progress
        self._kept: dict[str, Kept] = {}  # by how rows are folded: "median" or "mean"
        suits = candidates.size >= LARGE and Finder.suits(landed, candidates)
        self._finder = Finder(landed, candidates) if suits else None
        self._rng = rng
        self.phantoms = candidates.fresh_ids(rng, NUM_PHANTOMS)
        self.residual = landed.frequencies.copy()
        batches = len(landed.clients)
        self.support = Support(
            np.empty(0, np.int64),
            np.empty(0, np.uint64),
            np.empty((0, batches)),
            np.empty((0, batches)),
        )
        self._places = landed.places(self.support.ids)
        if threshold is None:
            threshold = max(
                SELECTED, -NormalDist().inv_cdf(min(0.5, FALSE_ITEMS / candidates.size))
            )
        # `_raise_threshold` may raise `threshold`. A repetition of this fit starts from `selected`.
        self.selected = self.threshold = threshold
        if found is None:
            self._search()
        else:
            self._restore(found)
        self._calibrate(self.phantoms)
        self._settle()
        if found is None:
            self._raise_threshold()

    def _search(self) -> None:
        """Find the support: run the ladder, then the polishes."""
        # The ladder chooses items by the paper's estimates. A polish chooses them by e, in units of
        # each item's own standard deviation.
        for rung in THRESHOLDS:
            self._climb(max(rung, self.threshold))
        # The loop ends after a probe and a calibration: later steps need both for the last support.
        scale = np.inf
        for polish in range(MOST_POLISHES + 1):
            self._probe()
            self._calibrate(self.phantoms[:_FEW_PHANTOMS])
            if polish == MOST_POLISHES or (polish >= POLISHES and self.scale > IMPROVES * scale):
                break
            scale = self.scale
            self._polish()

    @property
    def found(self) -> FoundFit:
        """The result of this fit, from which the fit can be restored."""
        return FoundFit(
            self.most,
            self.selected,
            self.threshold,
            self.support.positions,
            self.support.values,
            self.support.shrinkage,
            self.residual,
            self._draws,
        )

    def _restore(self, found: FoundFit) -> None:
        """Restore an earlier result of the same fit, and repeat its last probe."""
        self.selected, self.threshold = found.selected, found.threshold
        ids = self.candidates.ids(found.positions)
        self.support = Support(found.positions, ids, found.values, found.shrinkage)
        self._places = self.landed.places(ids)
        self.residual = found.residual
        self._rng.bit_generator.state = found.draws
        self._probe()

    # ---- windows ----

    def window(self, chosen: Bools, fitted_there: bool) -> Fit:
        """Return this fit with values that are measured in some of its batches.

        Args:
            chosen: bool [batches], which batches are in the window.
            fitted_there: whether to fit also items that stand out only in the window.
        """
        found = self._measured_in(chosen)
        if not fitted_there:
            return found
        positions, items, z = found.standing_out(self.threshold)
        new = (z > self.threshold) & ~items.fitted & (items.values > found.landed.half_a_client)
        room = self.most - len(self.support.positions)
        if not new.any() or room <= 0:
            return found
        joined = positions[new][np.argsort(-z[new], kind="stable")[:room]]
        larger = copy.copy(self)
        larger.residual = self.residual.copy()
        larger._rng = generator(self.landed.spec.seed, b"window")
        larger._fit(np.concatenate([self.support.positions, joined]), POLISH_SWEEPS)
        larger._probe()
        larger._calibrate(self.phantoms)
        larger._settle()
        return larger._measured_in(chosen)

    def _measured_in(self, chosen: Bools) -> Fit:
        other = copy.copy(self)
        other.whole, other._kept = self, {}
        other.landed = self.landed.weighted(chosen)
        other._share_out()
        other._calibrate(self.phantoms)
        other._settle()
        return other

    # ---- the ladder ----

    def _climb(self, threshold: float) -> None:
        """Choose a new support, by medians above a threshold, and fit it.

        Args:
            threshold: a number of robust standard deviations.
        """
        medians = self.landed.decoder(self.residual, "median", self.candidates.size)
        sigma = _TO_SIGMA * median(np.abs(medians.at(self.phantoms[:_FEW_PHANTOMS])))
        # At least half a client: after an exact recovery the noise is 0, and without this bound
        # rounding errors would stand out.
        floor = max(threshold * sigma, self.landed.half_a_client)
        found = None
        # If no median of the residual can reach the floor, `_above` needs no look.
        if self._finder is not None and floor <= self.landed.largest_median(self.residual):
            found = self._finder.high(
                self.landed, self.residual, medians, floor, self.support.positions, self.most
            )
        if found is None:
            found = self._above(medians, "median", floor)
        else:
            self._report(self.candidates.size)
        off = found[~np.isin(found, self.support.positions)]
        # The residual holds only the unexplained part of a fitted item. So its fitted value is
        # added before it is compared with the floor.
        own = medians.at(self.support.ids) + self.fitted
        on = own > floor
        found = np.concatenate([off, self.support.positions[on]])
        found_totals = np.concatenate([medians.at(self.candidates.ids(off)), own[on]])
        ids, ties = self.candidates.ids(found), np.zeros(len(found))
        # With a small width many medians are equal. Items with equal medians are ordered by the
        # mean over all rows, and then by id, so that the result depends neither on the machine nor
        # on the order of the candidates.
        _, which, times = np.unique(found_totals, return_inverse=True, return_counts=True)
        tied = np.flatnonzero(times[which] > 1)
        if len(tied):
            ties[tied] = self.landed.decoder(self.residual, "mean", len(tied)).at(ids[tied])
            # The mean residual holds only the unexplained part of a fitted item, too.
            fitted = np.zeros(len(found))
            fitted[len(off) :] = self.fitted[on]
            ties[tied] += fitted[tied]
        self._fit(found[np.lexsort((ids, -ties, -found_totals))[: self.most]], SWEEPS)

    def _above(self, decoder: Decoder, fold: str, floor: float) -> I64:
        """Return the positions of the candidates whose values exceed a floor.

        In a large domain a few may be missing (see `Kept`).

        Args:
            decoder: computes the values from the present residual.
            fold: how `decoder` combines rows: "median" or "mean".
            floor: the value to exceed.
        """
        size = self.candidates.size
        if fold == "median" and floor > (1 + _SINGLE) * self.landed.largest_median(self.residual):
            self._report(size)  # no median of the residual reaches the floor: no look is needed
            return np.empty(0, np.int64)
        if size < LARGE:
            return self._look(decoder, floor)[0]
        phantoms, kept = decoder.at(self.phantoms), self._kept.get(fold)
        if kept is not None and floor - kept.floor > quantile(
            np.abs(phantoms - kept.phantoms), _STILL
        ):
            self._report(size)
            listed = kept.positions
            return listed[decoder.at(self.candidates.ids(listed)) > floor]
        least = quantile(phantoms, 1.0 - _KEPT_SHARE)
        above, listed = self._look(decoder, floor, least)
        self._kept[fold] = Kept(least, _merged(listed, self.support.positions), phantoms)
        return above

    def _look(self, decoder: Decoder, *floors: float) -> list[I64]:
        """Decode all candidates; return for each floor the positions of those with values above it.

        The progress is reported. The values are not returned, because millions of candidates may be
        above a low floor.
        """
        found: list[list[I64]] = [[] for _ in floors]
        least = min(floors)
        for number, above, values in self.candidates.decoded_above(decoder, least):
            for floor, positions in zip(floors, found, strict=True):
                higher = above if floor == least else above[values > floor]
                positions.append(self.candidates.may_be_heavy(higher))
            self._report(number)
        return [np.concatenate(positions) for positions in found]

    def _report(self, candidates: int) -> None:
        """Report that this number of candidates was decoded since the last report."""
        self._looked += candidates
        if self._progress is not None:
            # Polishes beyond the first POLISHES are not foreseen: progress then stays at its end.
            total = (len(THRESHOLDS) + POLISHES) * self.candidates.size
            self._progress(min(self._looked, total), total)

    def _fit(self, positions: I64, sweeps: int) -> None:
        """Make these candidates the support, and fit them in this order.

        An item that was already fitted starts from its old value, a new item from 0.

        Args:
            positions: int64 [n], the positions of the candidates.
            sweeps: the number of sweeps over the items.
        """
        old = self.support
        order = np.argsort(old.positions)
        values = np.zeros((len(positions), old.values.shape[1]))
        shrinkage, leaving = np.ones_like(values), np.ones(len(old.positions), bool)
        if len(order):
            at = order[
                np.minimum(np.searchsorted(old.positions, positions, sorter=order), len(order) - 1)
            ]
            stays = old.positions[at] == positions
            values[stays] = old.values[at[stays]]
            leaving[at[stays]] = False
        # What was fitted to items that leave the support returns to the residual.
        if leaving.any():
            cells, signs = self._places
            self.landed.add(self.residual, cells[leaving], signs[leaving], old.values[leaving])
        self.support = Support(positions, self.candidates.ids(positions), values, shrinkage)
        self._places = self.landed.places(self.support.ids)
        # changes residual, values and shrinkage in place, and `self.support` holds these arrays
        kernels.refit(*self._places, self.landed.clients, self.residual, values, shrinkage, sweeps)

    # ---- the polish ----

    def _probe(self) -> None:
        """Estimate for each cell which share of an unfitted item stays in the residual.

        With a given shrinkage the fit is linear: residual = (1 - H) * sums, with a matrix H. The
        share of a cell is the cell's diagonal entry of 1 - H. If the cells hold independent normal
        numbers g, this entry is the mean of g * (1 - H) g. A probe draws such numbers.
        """
        landed, support = self.landed, self.support
        cells, signs = self._places
        batches = len(landed.weights)
        # Stored, since `_restore` repeats the last probe from this state of the generator.
        self._draws = dict(self._rng.bit_generator.state)
        # How much an item's value moves if y, its value before shrinkage, changes by 1 in one batch
        # only. The mean over batches changes by the batch's weight w, and y - mean by 1 - w. With
        # shrinkage s the value is mean + s (y - mean). So it moves by
        # w + s (1 - w) = s + (1 - s) w.
        self._moved = support.shrinkage + (1.0 - support.shrinkage) * landed.weights
        self._probes = int(
            np.clip(-(-PROBED_CELLS[landed.several] // landed.frequencies.size), 1, 64)
        )
        probed = self._rng.standard_normal((self._probes, *landed.frequencies.shape))
        if batches == 1 and landed.cells <= _FEW_CELLS:
            drawn = probed.reshape(self._probes, landed.cells).T
            left = (drawn * left_by(cells[..., 0], signs[..., 0], drawn)).sum(axis=1)
            self._left = left.reshape(1, *landed.frequencies.shape)
        else:
            self._left = probed
            for drawn in probed:
                left = drawn.copy()
                values = np.zeros_like(support.values)
                kernels.refit(
                    cells,
                    signs,
                    landed.clients,
                    left,
                    values,
                    support.shrinkage,
                    PROBE_SWEEPS,
                    frozen=True,
                )
                drawn *= left
        self._share_out()

    def _share_out(self) -> None:
        """Compute from the probes which share of an unfitted item stays in the residual.

        The result is a share for each cell and one for each fitted item, with the weights of the
        batches. The share of a cell depends almost only on its load: how much of the fitted items
        lies in the cell. Cells are grouped by load, so that few probes are enough.
        """
        landed, support, moved = self.landed, self.support, self._moved
        cells, weights = self._places[0], landed.weights
        batches = len(weights)
        load = np.zeros(landed.frequencies.shape if landed.fresh else landed.frequencies.shape[:2])
        if landed.fresh:
            np.add.at(load.reshape(-1), cells, moved[:, None, :])
        else:
            # All batches have the same locations, so `load` is [rows, width]. An item adds the mean
            # of `moved` over the batches, weighted by clients. `cells` are indices into [rows,
            # width, batches].
            np.add.at(load.reshape(-1), cells[..., 0] // batches, (moved @ weights)[:, None])
        kept = np.zeros(load.shape)
        for left in self._left:
            kept += left if landed.fresh else left @ weights
        # `loads` and `shares` are a short table, interpolated for any load.
        loads, shares = _falling(load.reshape(-1), kept.reshape(-1) / self._probes)
        self._least_share = float(shares.min())
        self._cell_shares = np.interp(load, loads, shares)
        self._shares = landed.cell_mean(self._cell_shares)
        # The b of a fitted item is the share in its cells if only this item left the support. So
        # the item's own part is subtracted from the load.
        if landed.fresh:
            own = np.interp(
                np.maximum(load.reshape(-1)[cells] - moved[:, None, :], 0.0), loads, shares
            )
            self.own_shares = own.mean(axis=1) @ weights
        else:
            own = load.reshape(-1)[cells[..., 0] // batches] - (moved @ weights)[:, None]
            self.own_shares = np.interp(np.maximum(own, 0.0), loads, shares).mean(axis=1)
        # `leave_one_out`, `estimates` and `_find` use these until the next fit.
        self._means = landed.decoder(self.residual, "mean", self.candidates.size)
        self._order = np.argsort(support.ids)

    def _calibrate(self, phantoms: U64) -> None:
        """Measure the scale of the errors with ids that no client holds.

        Such ids are called phantoms. With this scale, the .95 quantile of their absolute values, in
        standard deviations, is that of a normal variable.
        """
        self.share = self._shares.at(phantoms)
        # The mean residual of an id is b e, so this is e sqrt(b).
        self.null = self._means.at(phantoms) / np.sqrt(self.share)
        self.scale = max(quantile(np.abs(self.null), 0.95) / NORMAL_95, _TINY)
        self.shrinks = float(self.share.mean()) >= _SHRUNK_FROM

    def leave_one_out(self, ids: Ids) -> LeaveOneOut:
        """Return the values that the `LeaveOneOut` class describes, for any ids."""
        left, share = ask(self._means, ids), ask(self._shares, ids)
        places, index = self._find(ids)
        values = left / share
        estimates = left if self.shrinks else values.copy()
        # Items off the support are done. For fitted items, e and the estimate are both the fitted
        # value plus the mean residual.
        estimates[places] = left[places] + self.fitted[index]
        values[places] = estimates[places]
        share[places] = self.own_shares[index]
        fitted = np.zeros(len(ids), bool)
        fitted[places] = True
        return LeaveOneOut(values, share, fitted, estimates)

    def estimates(self, ids: Ids) -> F64:
        """Return the estimate that users get for each id: frequencies, float64 [n]."""
        if not self.shrinks:
            return self.leave_one_out(ids).estimate
        # Here the estimates do not need b, so the decoder of b is not run over all ids.
        found = ask(self._means, ids)
        places, index = self._find(ids)
        found[places] += self.fitted[index]
        return found

    @property
    def fitted(self) -> F64:
        """The frequencies of the fitted items over all batches, float64 [support]."""
        fitted: F64 = self.support.values @ self.landed.weights
        return fitted

    def _find(self, ids: Ids) -> tuple[I64, I64]:
        """Return the indices in `ids` of fitted items, and the items' indices in the support."""
        known = self.support.ids
        if isinstance(ids, range):
            # A subtraction mod 2^64 gives the indices without an array of all ids.
            offsets = known - np.uint64(ids.start % 2**64)
            index = np.flatnonzero(offsets < np.uint64(len(ids)))
            return offsets[index].astype(np.int64), index
        if not len(known):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        order = self._order
        index = order[np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)]
        places = np.flatnonzero(known[index] == ids)
        return places, index[places]

    def standing_out(
        self,
        least: float,
        lowest: float | None = None,
        share: Callable[[LeaveOneOut, F64, float], float] | None = None,
    ) -> tuple[I64, LeaveOneOut, F64]:
        """Return all fitted items, and the candidates whose z = e sqrt(b) / scale exceeds `least`.

        Candidates with a smaller z may be among them. With `share`, only the needed candidates are
        sure to be there. Besides, two kinds of candidates may be missing: those with e below half a
        client, which are never fitted, and in a large domain a few that hardly stand out (see
        `Kept`).

        Args:
            least: a number of standard deviations.
            lowest: the lowest z of further candidates that the caller can use; None: the caller can
                use none.
            share: a function of the values and z of some candidates, and of a z. The candidates
                include all that exceed this z. It returns the share of the needed candidates that
                is among them. None: all candidates with z > `least` are needed.

        Returns:
            The positions of these items and candidates, ascending, their values, and their z.
        """

        def told(found: I64) -> tuple[I64, LeaveOneOut, F64]:
            positions = _merged(found, self.support.positions)
            items = self.leave_one_out(self.candidates.ids(positions))
            return positions, items, items.values * np.sqrt(items.share) / self.scale

        def of_needed(found: I64, at: float) -> float:
            assert share is not None
            return share(*told(found)[1:], at)

        floor, found = self._least_mean(least), None
        if self._finder is not None:
            root = (1.0 - _SINGLE) * self.scale * np.sqrt(self._cell_shares)
            asked = floor, least if lowest is None else lowest
            found = self._finder.standing(
                *(self.landed, self.residual, self._means, root, *asked),
                None if share is None else of_needed,
            )
        if found is None:
            found = self._above(self._means, "mean", floor)
        else:
            self._report(self.candidates.size)
        return told(found)

    def _least_mean(self, least: float) -> float:
        """Return a bound that the mean residual of every candidate with z > `least` exceeds.

        Candidates with e below half a client are ignored, since they are never fitted.

        The mean residual b e of such a candidate exceeds least * scale * sqrt(b). Each candidate
        has its own b. The bound uses the smallest b of all, so that b must be computed only for the
        few candidates above it.
        """
        bound: float = max(
            least * self.scale * self._least_share**0.5,
            self.landed.half_a_client * self._least_share,
        )
        return bound

    def contenders(self, least: float) -> Candidates:
        """Return candidates for a repeated fit, in which only *contenders* may be heavy.

        Contenders are the fitted items, and the items with a mean residual so large that z may
        exceed `least` and e may reach half a client. Either only contenders are listed, or all
        candidates keep their positions, and a test lets only contenders pass
        (`Candidates.passing`).
        """
        means, fitted, floor = self._means, self.support.ids, self._least_mean(least)
        # If searches are slow, looks at a list of the contenders are faster.
        if self._finder is None or self._finder.looks > _LISTED_LOOKS:
            # The finder must not make the list: its sharper test would leave out some contenders.
            listed = _merged(self._above(means, "mean", floor), self.support.positions)
            return self.candidates.with_extra(np.empty(0, np.uint64), self.candidates.ids(listed))
        return self.candidates.passing(lambda ids: (means.at(ids) > floor) | np.isin(ids, fitted))

    def _polish(self) -> None:
        """Choose a new support, by z (see `standing_out`), and fit it, the largest e first."""

        def share(items: LeaveOneOut, z: F64, at: float) -> float:
            chosen = (z > at) & (items.values > self.landed.half_a_client)
            return float(np.count_nonzero(chosen)) / self.most

        positions, items, z = self.standing_out(self.threshold, share=share)
        ids = self.candidates.ids(positions)
        chosen = np.flatnonzero((z > self.threshold) & (items.values > self.landed.half_a_client))
        if len(chosen) > self.most:
            chosen = chosen[np.lexsort((ids[chosen], -z[chosen]))[: self.most]]
        chosen = chosen[np.lexsort((ids[chosen], -items.values[chosen]))]
        self._fit(positions[chosen], POLISH_SWEEPS)

    def _settle(self) -> None:
        """Measure how good the fit is: set `error`, `least_own_share` and `worst`."""
        # `null` is e sqrt(b) of each phantom (for e and b see this module). The estimate of an
        # unfitted item is b e = null * sqrt(b) if the fit shrinks, and otherwise
        # e = null / sqrt(b).
        root = np.sqrt(self.share)
        self.error = quantile(np.abs(self.null * root if self.shrinks else self.null / root), 0.999)
        # The absolute estimate of one phantom in a thousand exceeds `error`. `worst` is the largest
        # standard deviation of a fitted item.
        self.least_own_share = float(self.own_shares.min()) if len(self.own_shares) else 1.0
        self.worst = self.scale / self.least_own_share**0.5

    def _raise_threshold(self) -> None:
        """Raise the threshold if items above it were not fitted because the support was full.

        The threshold that was really applied lies between the fitted items and the items that were
        kept out.
        """
        # at least 98 % of the bound counts as full
        if len(self.support.positions) < 0.98 * self.most:
            return

        def share(items: LeaveOneOut, z: F64, at: float) -> float:
            return float((z[~items.fitted] > at).any())

        # If no item above the threshold was kept out, items just below it are considered, too.
        lowest = self.threshold * self._least_share**0.5
        _, items, z = self.standing_out(self.threshold, lowest, share)
        on, off = z[items.fitted], z[~items.fitted]
        if len(off):
            self.threshold = max(self.threshold, float(on.min() + off.max()) / 2)


class JointDecoder(FittedDecoder):
    """Estimates counts from the landed sums of a campaign, by joint recovery.

    The rounds of a batch (under schedule "shared": all rounds) are added up. Rounds may be missing,
    and may have different numbers of clients: a batch with n of the N clients has the weight n / N.
    Noise in the sums needs no option, since the decoder measures it in the sums. Its random draws
    follow from the seed of the sketches, so the same sums give the same estimates.

    Args:
        sketches: landed sums, all of one spec, at most one per round.
        domain: the candidate items; only these can be heavy.
        progress: a callback, as in `Fit`.
        found: the `found` of an earlier decoder of the same sums. It is ignored if it does not fit
            these sums.

    Attributes:
        spec: the spec of the sketches.
        num_clients: the number of clients in all batches.
        batches: the numbers of the landed batches, ascending.
        clients: float64 [batches], the number of clients in each batch.
        fit: the fit of the sums.
        fallback: the paper's decoder, if it answers because the fit is worse; otherwise None.
        kappa: see `FoundFit.kappa`; None until intervals measure it.
        largest_error: see `FoundFit.largest_error`; None until intervals predict it.

    Raises:
        InvalidInputError: there is no sketch, two sketches are of one round, no client took part,
            or there are fewer than 3 rows.
        IncompatibleError: the specs differ.

    >>> from fedtally.domain import IntegerRange
    >>> from fedtally.sketch import SketchSpec
    >>> spec = SketchSpec(rows=3, width=64, schedule="shared", num_rounds=1, seed=bytes(32))
    >>> sketch = CountSketch(spec, 0)
    >>> counts = np.array([900, 700, 500, 400, 300, 200, 100, 50])
    >>> sketch.add(np.arange(1, 9, dtype=np.uint64), counts)
    >>> decoder = JointDecoder([sketch], IntegerRange(1, 1000))
    >>> np.rint(decoder.range(1, 8)).astype(int).tolist()
    [900, 700, 500, 400, 300, 200, 100, 50]
    """

    recovery = Recovery.JOINT

    def __init__(
        self,
        sketches: Sequence[CountSketch],
        domain: Domain,
        progress: Progress | None = None,
        found: FoundFit | None = None,
    ) -> None:
        self.spec = check_landed(sketches)
        self.recovery.check_rows(self.spec.rows)
        landed = Landed(self.spec, sketches)
        self.num_clients = landed.num_clients
        self.batches, self.clients = landed.batches, landed.clients
        candidates = Candidates(domain)
        self.kappa: tuple[float, str] | None = None
        self.largest_error: float | None = None
        if found is not None and found.fits(landed, candidates):
            rng = generator(landed.spec.seed, b"fit")
            self.fit = Fit(landed, candidates, found.most, rng, found.selected, found=found)
            self.kappa, self.largest_error = found.kappa, found.largest_error
        else:
            self.fit = _best_fit(landed, candidates, progress)
        # A phantom's frequency is 0, so its absolute estimate is its error.
        median_errors = (
            np.abs(MedianDecoder(sketches, expected=NUM_PHANTOMS).at(self.fit.phantoms))
            / self.num_clients
        )
        # The paper's decoder answers if the fit has errors that are larger by more than half a
        # client, for the same phantoms.
        self.fallback = None
        if self.fit.error > quantile(median_errors, 0.999) + 0.5 / self.num_clients:
            self.fallback = MedianDecoder(sketches, expected=domain.size)

    @property
    def found(self) -> FoundFit:
        """The fit and what was measured with it; they make a later decoder of these sums faster."""
        return replace(self.fit.found, kappa=self.kappa, largest_error=self.largest_error)

    @property
    def heavy_ids(self) -> U64:
        """The ids of the fitted items: uint64 [n]."""
        return self.fit.support.ids

    @property
    def support_size(self) -> int:
        """The number of fitted items."""
        return len(self.fit.support.positions)

    def at(self, ids: U64) -> F64:
        """Return the estimated count of each id, candidate or not: float64 [n]."""
        return self._counts(ids) if self.fallback is None else self.fallback.at(ids)

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimated counts of the ids from `first_id` on (mod 2^64): float64 [count]."""
        if self.fallback is not None:
            return self.fallback.range(first_id, count)
        return self._counts(range(first_id, first_id + count))

    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the leave-one-out values and the noise of each, which is treated as normal.

        If the paper's decoder answers, its estimates and its noise are returned.
        """
        if self.fallback is not None:
            return self.fallback.noisy(candidates)
        fit, noise = self.fit, self.fit.scale * self.num_clients

        def standard(ids: Ids) -> tuple[F64, F64]:
            items = fit.leave_one_out(ids)
            root = np.sqrt(items.share)
            return items.values * root / fit.scale, noise / root

        return Noisy(noise, NORMAL, standard)

    @property
    def has_fit(self) -> bool:
        """Whether the fit answers; False if the paper's decoder, the median over rows, answers."""
        return self.fallback is None

    def measured(self, ids: Ids) -> Measured:
        """Return the leave-one-out values of any ids, and the standard deviations of their errors.

        Both are in clients. The standard deviations of fitted items are multiplied by `kappa`, or
        by `usual_kappa` if kappa was not measured.
        """
        items = self.fit.leave_one_out(ids)
        fit = self.fit if self.fit.whole is None else self.fit.whole
        kappa = usual_kappa(fit.landed) if self.kappa is None else self.kappa[0]
        grown = np.where(items.fitted, kappa, 1.0)
        stddev = grown * self.fit.scale / np.sqrt(items.share)
        return Measured(items.values * self.num_clients, stddev * self.num_clients)

    def window(self, chosen: Bools, learned: bool = True) -> FittedDecoder:
        """Return a decoder of the counts in some batches that uses the fit of all batches.

        If `learned`, items that stand out only in the window are fitted, too. The new decoder's
        `num_clients` counts the window; its `batches` and `clients` stay those of all batches.
        """
        other = copy.copy(self)
        other.fit = self.fit.window(chosen, fitted_there=learned)
        other.num_clients = other.fit.landed.num_clients
        other.largest_error = None
        return other

    def notes(self) -> Iterator[str]:
        """Yield a note if the paper's decoder answered, with the reason."""
        if self.fallback is not None:
            yield (
                "nothing stands out of the noise: the paper's decoder is better here, and answered"
                " instead"
            )

    def _counts(self, ids: Ids) -> F64:
        """Return the estimated count of each id: float64 [n].

        If the residual holds only rounding errors, counts within `_ROUNDING` of an integer are
        rounded to it.
        """
        counts = self.fit.estimates(ids)
        counts *= self.num_clients
        if self.fit.scale * self.num_clients > _ROUNDING:
            return counts
        whole = np.rint(counts)
        return np.where(np.abs(counts - whole) < _ROUNDING, whole, counts)


def usual_kappa(landed: Landed) -> float:
    """Return the kappa that is used if it was not measured.

    Kappa is the ratio of the errors of fitted items to those of phantoms. It is interpolated, by
    the effective number of batches, between the two numbers in `KAPPA`.
    """
    one, many = KAPPA
    return many + (one - many) * max(0.0, (5.0 - landed.effective) / 4.0)


def _merged(one: I64, other: I64) -> I64:
    """Return the positions that are in at least one of two arrays: ascending, each once.

    Args:
        one: int64 [n], ascending, each position once; there may be millions.
        other: int64 [m], in any order.

    >>> _merged(np.array([2, 5]), np.array([3, 2])).tolist()
    [2, 3, 5]
    """
    # Inserting a few positions into many sorted ones is faster than sorting all.
    other = np.unique(other)
    places = np.searchsorted(one, other)
    new = places == len(one)
    new[~new] = one[places[~new]] != other[~new]
    if not new.any():
        return one
    merged: I64 = np.insert(one, places[new], other[new])
    return merged


def _best_fit(landed: Landed, candidates: Candidates, progress: Progress | None) -> Fit:
    """Return the best of one or several fits, with smaller and smaller supports.

    With few rows and many rare items, false items may fill the support. The fit then hardly
    distinguishes some fitted items from others that share their cells, and the shares b of these
    items are small. A smaller support has fewer false items. So sizes are tried from the largest
    on, until a fit is well-conditioned. The best of these fits has the smallest `Fit.worst`.
    """
    best: Fit | None = None
    for most in (LARGEST_SUPPORT[landed.several], *SMALLER_SUPPORTS):
        rng = generator(landed.spec.seed, b"fit")
        fit = Fit(landed, candidates, int(most * landed.cells), rng, progress=progress)
        if best is None or fit.worst < best.worst:
            best = fit
        if fit.least_own_share >= WELL_CONDITIONED:
            break
    assert best is not None
    return best


def left_by(cells: I64, signs: npt.NDArray[np.int8], drawn: F64) -> F64:
    """Return what a fit leaves of many draws: random numbers in the cells of one batch.

    It computes the same as `kernels.refit`, with matrices. With one batch there is no shrinkage. A
    sweep sets the values x of the items one by one: each gets what the other items leave of the
    draw. The items before it already have their new values, and the items after it have their old
    values. Let L + 1 + U be the Gram matrix, with L below the diagonal and U above it. Let c be the
    mean of each item's signed cells. Then x_new = c - L x_new - U x_old.

    Args:
        cells: int64 [n, rows], the index of each item's cell in each row, in the order of the
            sweep.
        signs: int8 [n, rows], the item's sign in each row.
        drawn: float64 [all cells, draws], the draws.

    Returns:
        float64 [all cells, draws].
    """
    rows = cells.shape[1]
    design = np.zeros((len(cells), len(drawn)))
    np.put_along_axis(design, cells, signs.astype(np.float64), axis=1)
    gram = design @ design.T / rows
    inverse = np.linalg.inv(np.tril(gram))
    step, start = inverse @ np.triu(gram, 1), inverse @ (design @ drawn) / rows
    values = start  # the values after the first sweep, which begins with values of 0
    for _ in range(PROBE_SWEEPS - 1):
        values = start - step @ values
    left: F64 = drawn - design.T @ values
    return left


def _falling(loads: F64, kept: F64) -> tuple[F64, F64]:
    """Group cells by load; return the mean load and the mean kept share of each group.

    There are at most eleven groups, in the order of the load. A cell with more load should keep a
    smaller share. A share that rises with the load is due to the noise of the probes, and is
    replaced by that of the group before.
    """
    # In a batch without clients, shrinkage may leave nothing of an item's value. Such an item only
    # adds rounding errors to the load of its cells, which must not form a group.
    loaded = loads > 1e-12
    if not loaded.any():
        return np.zeros(1), np.ones(1)
    edges = np.unique(quantiles(loads[loaded], np.linspace(0, 1, _GROUPS + 1)[1:]))
    group = np.searchsorted(edges, loads[loaded])
    size = np.maximum(np.bincount(group, minlength=len(edges) + 1), 1)
    used = np.flatnonzero(np.bincount(group, minlength=len(edges) + 1))
    means = (np.bincount(group, loads[loaded], len(edges) + 1) / size)[used]
    shares = (np.bincount(group, kept[loaded], len(edges) + 1) / size)[used]
    # The first group has no load and keeps everything. A share of at least 0.02 is returned, since
    # errors are divided by it.
    return np.append(0.0, means), np.clip(np.minimum.accumulate(np.append(1.0, shares)), 0.02, 1.0)
