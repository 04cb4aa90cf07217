"""Joint recovery: undo collisions after the fact, by fitting all heavy items together.

A *cell* is a counter of the sketch. The paper's decoders treat everything that shares a cell with
an item as noise. But most of that noise is other heavy items, which the same sums reveal. The fit
repeats three steps. The first step decodes the *residual*, the part of the sums that no fitted item
explains yet. The second step takes the items that stand out into the *support*. The third step fits
the support's values in every round to all cells at once. Each repetition has a lower threshold, or
the same one: this is the *ladder*. A few *polishes* follow. A polish chooses the support once more,
by a sharper test, and fits it. In the end the residual holds mostly the noise of the light items.

Joint recovery is post-processing of released sums, so it costs no bytes, and a guarantee of
differential privacy stays as it is. Without differential privacy there is no such guarantee: joint
recovery then reveals rare items that the paper's decoders hide in noise, and secure summation does
not protect them.

Related methods are matching pursuit with refitting (CoSaMP), simultaneous sparse recovery and
Counter Braids. docs/recovery.md names the differences, and gives the reasons for each step.

This module uses two symbols of that page. For an item, b is the share of its own count that stays
in the residual if all other items are fitted and this item is not. For an item, e is the value that
the fit gives it if it is fitted together with all others.
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

# The rungs of the ladder are falling thresholds, in robust standard deviations of the estimates.
# High ones come first: a false item that is taken in early spoils the estimates of its neighbours.
# The lowest one comes twice: the second pass sees a residual without the items of the first pass.
THRESHOLDS = (32.0, 16.0, 8.0, 6.0, 5.0, 4.0, 4.0)
SWEEPS = 6  # sweeps of the fit over the support, on each rung of the ladder
# A polish chooses the support by the values e (see `LeaveOneOut`). The fit has at least POLISHES
# polishes. Further ones follow, up to MOST_POLISHES in all, as long as each multiplies the noise by
# at most IMPROVES. Near exact recovery the noise falls step by step to nothing.
POLISHES = 3
MOST_POLISHES = 12
IMPROVES = 0.9
POLISH_SWEEPS = 8  # sweeps of the fit over the support, in each polish
# A fitted item stands out by at least SELECTED standard deviations in the end. In a large domain
# the number is higher, so that the support holds about FALSE_ITEMS candidates without a client.
SELECTED = 4.0
FALSE_ITEMS = 4
_FEW_PHANTOMS = 4096  # phantoms that show the scale while the support is being chosen
PROBE_SWEEPS = 12  # sweeps of the fit over the support, in each probe
# A probe fills all cells with random numbers, refits them, and shows the share of a cell that the
# fit leaves. All probes together fill at least this number of cells, unless that takes more than 64
# probes. The first number is for one batch of rounds, the second number for several batches
# (`Landed.several` is the index).
PROBED_CELLS = (80_000, 200_000)
_GROUPS = 10  # groups of cells by load; the share that is left is interpolated between their means
# If the shares b (see the top of this file) average at least this, unfitted items are estimated by
# b e and not by e. The squared error is then smaller, and the largest error is the same.
_SHRUNK_FROM = 0.7
# The largest support, as a share of one sketch's cells, for one batch of rounds, and for several,
# which tell items apart better: `Landed.several` is the index.
LARGEST_SUPPORT = (0.3, 0.6)
SMALLER_SUPPORTS = (0.2, 0.1, 0.05)  # tried one after the other while the fit is ill-conditioned
# Each fitted item has a share b: the part of its mass that the residual would keep if this item
# alone left the support. A fit is well-conditioned if no b is below this number.
WELL_CONDITIONED = 0.5
# The usual kappa: the ratio of fitted items' errors to those of phantoms, where it is not measured.
# The first number is for one batch of rounds, the second for five or more. Both are the upper end
# of what the experiments measured.
KAPPA = (1.25, 1.06)
_TO_SIGMA = 1.4826  # the standard deviation of a normal x, divided by the median of |x|
_TINY = 1e-300  # replaces a scale of 0, by which scores z are divided
_ROUNDING = 1e-6  # in clients: smaller noise, or a smaller distance from a whole count, is rounding
# If there is one batch of at most this many cells, matrices fit all probes at once: this is faster.
_FEW_CELLS = 400
_SINGLE = 1e-4  # a relative margin, larger than the rounding of a decoder in single precision
# A domain with at least LARGE candidates is large. A look at all its candidates also makes a list
# of those above a low floor, which only a share _KEPT_SHARE of the phantoms exceeds. A later look
# with a higher floor may go over this list alone. The condition: since then a share _STILL of the
# phantoms' values moved by less than the difference of the two floors (see `Kept`).
LARGE = 1 << 20
# The number of looks at a large domain that usually go over all candidates. The planner counts with
# it; the fit does not use it. It was measured on open domains of 2^26 hashes.
LOOKS_AT_LARGE = 6
_KEPT_SHARE = 1 / 64
_STILL = 0.999
# The time of a look at a list of contenders, with a part of the time to make the list, as a share
# of the time of a look at all candidates.
_LISTED_LOOKS = 0.35


@dataclass
class Support:
    """The fitted items.

    Attributes:
        positions: int64 [n], the places of the items among the candidates.
        ids: uint64 [n], their ids.
        values: float64 [n, batches], their frequencies in each batch; `kernels.refit` changes them.
        shrinkage: float64 [n, batches]. The fit moves the value of an item in a batch towards the
            item's mean over all batches. This share of the distance remains; 1: nothing is moved.
    """

    positions: I64
    ids: U64
    values: F64
    shrinkage: F64


class LeaveOneOut(NamedTuple):
    """The values that items have if each is fitted together with all others.

    Each field has one entry for each item; values and estimates are frequencies, float64 [n]. Off
    the support, e is computed without a new fit.

    Attributes:
        values: e, the value that the fit gives the item on the support: its frequency plus an
            error.
        share: b, float64 [n], the share of the item's own mass that the fit of the others leaves in
            the residual. The standard deviation of the error is proportional to 1 / sqrt(b).
        fitted: bool [n], whether the item is on the support.
        estimate: the estimate that users get: the fitted value plus the mean residual. Off the
            support the fitted value is 0, and the mean residual is b * e. If the b of ids that
            no client holds average less than _SHRUNK_FROM, the fit absorbs most of their mass:
            every estimate off the support is then e.
    """

    values: F64
    share: F64
    fitted: npt.NDArray[np.bool_]
    estimate: F64


class Kept(NamedTuple):
    """The list that a look at all candidates of a large domain leaves for later looks.

    The residual changes from look to look, and with it the values of all ids. The phantoms, ids
    that no client holds, show by how much. A candidate that is off the list had a value of at most
    `floor`. Such a candidate exceeds a higher floor now only if its value rose by more than the
    difference of the floors. If 999 of 1,000 phantoms moved by less, a look at the list is enough.
    This look misses about one in a thousand of the items that hardly stand out, and chance decides
    about such items anyway.

    Attributes:
        floor: a value; candidates with larger values are on the list.
        positions: int64 [n], the list: the places, among the candidates, of the candidates with
            larger values than `floor`, and of the items that were on the support at that time.
        phantoms: float64 [NUM_PHANTOMS], the values of the phantoms at that time.
    """

    floor: float
    positions: I64
    phantoms: F64


class Fit:
    """One run of the ladder and of the polishes on landed sums, with a bound on the support.

    Args:
        landed: the sums that the server has of its rounds, by batches.
        candidates: the items that may be on the support.
        most: the largest number of items on the support.
        rng: draws phantoms and probes.
        threshold: the number of standard deviations by which a fitted item stands out; if None, it
            follows from the number of candidates.
        progress: called with the number of candidates decoded so far, and with the number to decode
            in all. Both count a candidate once for each pass over the candidates.
        found: the result of the same fit, made before; None: the fit is made now.
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
        # `_raise_threshold` may raise `threshold`; a fit that is repeated starts from `selected`
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
        """Find the support: all rungs of the ladder, and then polishes."""
        # The ladder chooses the support by the paper's estimates. A polish chooses the support by
        # e, in units of each item's own standard deviation.
        for rung in THRESHOLDS:
            self._climb(max(rung, self.threshold))
        # The loop ends after a measurement of the noise, never after a polish.
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
        """The result of this fit, from which it can be restored."""
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
        """Restore the result of the same fit, and measure it as at the end of `_search`."""
        self.selected, self.threshold = found.selected, found.threshold
        ids = self.candidates.ids(found.positions)
        self.support = Support(found.positions, ids, found.values, found.shrinkage)
        self._places = self.landed.places(ids)
        self.residual = found.residual
        self._rng.bit_generator.state = found.draws
        self._probe()

    # ---- windows ----

    def window(self, chosen: Bools, fitted_there: bool) -> Fit:
        """Return this fit, measured in some batches alone.

        Args:
            chosen: batches of the window, bool [batches].
            fitted_there: whether to fit also items that stand out in the window, but not in all
                batches.
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
        """Choose the support anew, by medians of the residual and a threshold, and fit it."""
        medians = self.landed.decoder(self.residual, "median", self.candidates.size)
        sigma = _TO_SIGMA * median(np.abs(medians.at(self.phantoms[:_FEW_PHANTOMS])))
        # The floor is at least half a client. Otherwise, after an exact recovery, every item would
        # stand out from a noise of 0.
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
        # The residual holds only the rest of a fitted item. So a fitted item is judged by this rest
        # plus its fitted value.
        own = medians.at(self.support.ids) + self.fitted
        on = own > floor
        found = np.concatenate([off, self.support.positions[on]])
        found_totals = np.concatenate([medians.at(self.candidates.ids(off)), own[on]])
        ids, ties = self.candidates.ids(found), np.zeros(len(found))
        # With a small width many medians are equal. The mean over all rows tells more, so it orders
        # the items with equal medians, and the ids order the rest. The answer must not depend on
        # the machine, nor on the order of the candidates.
        _, which, times = np.unique(found_totals, return_inverse=True, return_counts=True)
        tied = np.flatnonzero(times[which] > 1)
        if len(tied):
            ties[tied] = self.landed.decoder(self.residual, "mean", len(tied)).at(ids[tied])
            # The mean residual, too, holds only the rest of a fitted item.
            fitted = np.zeros(len(found))
            fitted[len(off) :] = self.fitted[on]
            ties[tied] += fitted[tied]
        self._fit(found[np.lexsort((ids, -ties, -found_totals))[: self.most]], SWEEPS)

    def _above(self, decoder: Decoder, fold: str, floor: float) -> I64:
        """Return the positions of the candidates whose values exceed a floor.

        Args:
            decoder: gives the values, from the residual as it is now.
            fold: how `decoder` folds rows: "median" or "mean".
            floor: a value.
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
        """Return, for each floor, the positions of all candidates with values above it.

        This looks at every candidate, and reports the progress.

        The values are not returned: there may be millions above a low floor.
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
        """Report that this number of further candidates was looked at."""
        self._looked += candidates
        if self._progress is not None:
            # Further polishes are not foreseen: the progress then stays at its end.
            total = (len(THRESHOLDS) + POLISHES) * self.candidates.size
            self._progress(min(self._looked, total), total)

    def _fit(self, positions: I64, sweeps: int) -> None:
        """Make these candidates the support, and fit them in this order.

        An item that was on the support before starts from its old value. A new item starts from 0.
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
        # The mass of the items that leave returns to the residual, for other items to explain.
        if leaving.any():
            cells, signs = self._places
            self.landed.add(self.residual, cells[leaving], signs[leaving], old.values[leaving])
        self.support = Support(positions, self.candidates.ids(positions), values, shrinkage)
        self._places = self.landed.places(self.support.ids)
        # changes residual, values and shrinkage in place, and so the support above
        kernels.refit(*self._places, self.landed.clients, self.residual, values, shrinkage, sweeps)

    # ---- the polish ----

    def _probe(self) -> None:
        """Estimate, for each cell, which share of an unfitted item's mass stays in the residual.

        If the shrinkage is fixed, the fit is linear: residual = (1 - H) sums, for some matrix H.
        The share of a cell is the cell's diagonal entry of 1 - H. This entry is the mean of
        g * (1 - H) g over independent normal cells g, which a probe draws.
        """
        landed, support = self.landed, self.support
        cells, signs = self._places
        batches = len(landed.weights)
        # `_restore` repeats the last probe, from the same state of the generator.
        self._draws = dict(self._rng.bit_generator.state)
        # Suppose that an item's cells change in one batch only. With shrinkage s, the value of the
        # item is mean + s (y - mean), where y is the value without shrinkage. If y changes by 1,
        # the mean over batches changes by the batch's weight w, and y - mean by 1 - w. So the value
        # moves by w + s (1 - w) = s + (1 - s) w.
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
        """Compute the shares of cells and items from the probes, with the weights of the batches.

        The share depends almost only on the cell's load, the amount of the support that lies in the
        cell. So the cells are grouped by load, and few probes are enough.
        """
        landed, support, moved = self.landed, self.support, self._moved
        cells, weights = self._places[0], landed.weights
        batches = len(weights)
        load = np.zeros(landed.frequencies.shape if landed.fresh else landed.frequencies.shape[:2])
        if landed.fresh:
            np.add.at(load.reshape(-1), cells, moved[:, None, :])
        else:
            # All batches have the same locations, so `load` is [rows, width] here. An item adds the
            # mean of `moved` over the batches, weighted by their clients. `cells` are indexes into
            # [rows, width, batches].
            np.add.at(load.reshape(-1), cells[..., 0] // batches, (moved @ weights)[:, None])
        kept = np.zeros(load.shape)
        for left in self._left:
            kept += left if landed.fresh else left @ weights
        # `loads` and `shares` are a short table, which `np.interp` reads for any load.
        loads, shares = _falling(load.reshape(-1), kept.reshape(-1) / self._probes)
        self._least_share = float(shares.min())
        self._cell_shares = np.interp(load, loads, shares)
        self._shares = landed.cell_mean(self._cell_shares)
        # The b of a fitted item is the share that its cells would keep if this item alone left the
        # support. So the item's own part is subtracted from the load.
        if landed.fresh:
            own = np.interp(
                np.maximum(load.reshape(-1)[cells] - moved[:, None, :], 0.0), loads, shares
            )
            self.own_shares = own.mean(axis=1) @ weights
        else:
            own = load.reshape(-1)[cells[..., 0] // batches] - (moved @ weights)[:, None]
            self.own_shares = np.interp(np.maximum(own, 0.0), loads, shares).mean(axis=1)
        # `leave_one_out`, `estimates` and `_find` need these two, which hold until the next fit.
        self._means = landed.decoder(self.residual, "mean", self.candidates.size)
        self._order = np.argsort(support.ids)

    def _calibrate(self, phantoms: U64) -> None:
        """Read the scale of the errors from ids that no client holds.

        The scale makes the .95 quantile of the phantoms' |z| equal to that of a normal variable.
        """
        self.share = self._shares.at(phantoms)
        # The mean residual of an id is b e. So this is e sqrt(b) of the phantoms.
        self.null = self._means.at(phantoms) / np.sqrt(self.share)
        self.scale = max(quantile(np.abs(self.null), 0.95) / NORMAL_95, _TINY)
        self.shrinks = float(self.share.mean()) >= _SHRUNK_FROM

    def leave_one_out(self, ids: Ids) -> LeaveOneOut:
        """Return the leave-one-out values of any ids, candidates or not."""
        left, share = ask(self._means, ids), ask(self._shares, ids)
        places, index = self._find(ids)
        values = left / share
        estimates = left if self.shrinks else values.copy()
        # Off the support `values` and `estimates` are final now. The next lines correct both on the
        # support, where e and the estimate are the fitted value plus the mean residual.
        estimates[places] = left[places] + self.fitted[index]
        values[places] = estimates[places]
        share[places] = self.own_shares[index]
        fitted = np.zeros(len(ids), bool)
        fitted[places] = True
        return LeaveOneOut(values, share, fitted, estimates)

    def estimates(self, ids: Ids) -> F64:
        """Return the estimates that users get, of any ids: float64 [n], frequencies."""
        if not self.shrinks:
            return self.leave_one_out(ids).estimate
        # The estimate needs no b here, so a decoder for b need not run over all ids.
        found = ask(self._means, ids)
        places, index = self._find(ids)
        found[places] += self.fitted[index]
        return found

    @property
    def fitted(self) -> F64:
        """The fitted frequencies, float64 [support]."""
        fitted: F64 = self.support.values @ self.landed.weights
        return fitted

    def _find(self, ids: Ids) -> tuple[I64, I64]:
        """Return the places of fitted items among the ids, and their places on the support."""
        known = self.support.ids
        if isinstance(ids, range):
            # A subtraction mod 2^64 finds the places, without an array of the range's size.
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
        """Return positions, values and z = e sqrt(b) / scale of the candidates that stand out.

        The result has all fitted items and all candidates with z > `least`, and a few more. Two
        kinds of candidates may be missing: those with e below half a client, which are never
        chosen, and in a large domain a few that hardly stand out (see `Kept`).

        Args:
            least: a number of standard deviations.
            lowest: the lowest z of further candidates that the caller needs; None: it needs none.
            share: a function that returns the share of the needed candidates that its arguments
                hold. The arguments are values and z of all candidates with z above the last
                argument, and of a few more. None: all are needed.
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
        """Return a mean residual that every candidate with z above `least` exceeds.

        The mean residual b e of such a candidate exceeds `least` * scale * sqrt(b). Each candidate
        has its own b. With the smallest b of all, one comparison of the mean residual rules most
        candidates out, and only the others need their b.
        """
        bound: float = max(
            least * self.scale * self._least_share**0.5,
            self.landed.half_a_client * self._least_share,
        )
        return bound

    def contenders(self, least: float) -> Candidates:
        """Return candidates for another fit, of which only some can be heavy.

        These are the fitted items, and all items whose mean residual allows a z above `least`.
        """
        means, fitted, floor = self._means, self.support.ids, self._least_mean(least)
        # Where searches take long, a look at a list of the contenders takes less.
        if self._finder is None or self._finder.looks > _LISTED_LOOKS:
            # A search must not make the list: its sharper test would leave some of the contenders
            # out.
            listed = _merged(self._above(means, "mean", floor), self.support.positions)
            return self.candidates.with_extra(np.empty(0, np.uint64), self.candidates.ids(listed))
        return self.candidates.passing(lambda ids: (means.at(ids) > floor) | np.isin(ids, fitted))

    def _polish(self) -> None:
        """Choose the support anew by z, and fit the items with the largest values first."""

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
        # `null` is e sqrt(b) of each phantom (e and b: see the module). A fit that shrinks
        # estimates b e, which is `null` times sqrt(b); else e, which is `null` / sqrt(b).
        root = np.sqrt(self.share)
        self.error = quantile(np.abs(self.null * root if self.shrinks else self.null / root), 0.999)
        # One phantom in a thousand has an estimate whose size exceeds `error`. `worst` is the
        # largest standard deviation of any fitted item.
        self.least_own_share = float(self.own_shares.min()) if len(self.own_shares) else 1.0
        self.worst = self.scale / self.least_own_share**0.5

    def _raise_threshold(self) -> None:
        """Raise the threshold if the bound on the support kept items out.

        The fit then had a higher threshold than the given one: it lies between the items on the
        support and those that were kept out.
        """
        # A support within 2 % of the bound counts as full.
        if len(self.support.positions) < 0.98 * self.most:
            return

        def share(items: LeaveOneOut, z: F64, at: float) -> float:
            return float((z[~items.fitted] > at).any())

        # If no item above the threshold was kept out, the items just below it count, too.
        lowest = self.threshold * self._least_share**0.5
        _, items, z = self.standing_out(self.threshold, lowest, share)
        on, off = z[items.fitted], z[~items.fitted]
        if len(off):
            self.threshold = max(self.threshold, float(on.min() + off.max()) / 2)


class JointDecoder(FittedDecoder):
    """Decodes the landed sums of a campaign jointly.

    Rounds of one batch (under schedule "shared": all rounds) count as one. Rounds may be missing,
    and may have different numbers of clients: batch m with n_m of the N clients weighs n_m / N.
    Noise in the sums needs no option, since the decoder reads the level of the noise from the sums.
    The same sums always give the same estimates.

    Args:
        sketches: landed sums, all of one spec, at most one per round.
        domain: the candidate items; only these can be heavy.
        progress: callback as for `Fit`.
        found: the `JointDecoder.found` of an earlier decoder of the same sums. If it is no fit of
            these sums, it is ignored.

    Attributes:
        spec: the spec of the sketches.
        num_clients: the number of all clients.
        batches: the batches of rounds that landed, rising.
        clients: float64 [batches], the clients of each.
        fit: the fit of the sums.
        fallback: the paper's decoder if it answers in place of the fit; else None.
        kappa: the attribute `FoundFit.kappa`; None until intervals measure it.
        largest_error: the attribute `FoundFit.largest_error`; None until intervals predict it.

    Raises:
        InvalidInputError: no sketch, two of one round, no client in any, or fewer than 3 rows.
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
        # A phantom's frequency is 0, so the size of its estimate is an error.
        median_errors = (
            np.abs(MedianDecoder(sketches, expected=NUM_PHANTOMS).at(self.fit.phantoms))
            / self.num_clients
        )
        # If the fit has larger errors than the paper's decoder, on the same phantoms and by more
        # than half a client, the paper's decoder answers.
        self.fallback = None
        if self.fit.error > quantile(median_errors, 0.999) + 0.5 / self.num_clients:
            self.fallback = MedianDecoder(sketches, expected=domain.size)

    @property
    def found(self) -> FoundFit:
        """The fit and what was measured on it, for a later decoder of the same sums."""
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
        """Return the estimated counts of chosen ids, candidates or not: float64 [n]."""
        return self._counts(ids) if self.fallback is None else self.fallback.at(ids)

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimated counts of the ids from `first_id` on (mod 2^64): float64 [count]."""
        if self.fallback is not None:
            return self.fallback.range(first_id, count)
        return self._counts(range(first_id, first_id + count))

    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the leave-one-out values, whose noise is normal, with its scale for each item."""
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
        """Whether the fit answers, and not the paper's decoder."""
        return self.fallback is None

    def measured(self, ids: Ids) -> Measured:
        """Return the leave-one-out values of any ids, and the standard deviations of their errors.

        The standard deviations of fitted items are multiplied by kappa.
        """
        items = self.fit.leave_one_out(ids)
        fit = self.fit if self.fit.whole is None else self.fit.whole
        kappa = usual_kappa(fit.landed) if self.kappa is None else self.kappa[0]
        grown = np.where(items.fitted, kappa, 1.0)
        stddev = grown * self.fit.scale / np.sqrt(items.share)
        return Measured(items.values * self.num_clients, stddev * self.num_clients)

    def window(self, chosen: Bools, learned: bool = True) -> FittedDecoder:
        """Return a decoder of the counts in some batches, which rests on the fit of all batches."""
        other = copy.copy(self)
        other.fit = self.fit.window(chosen, fitted_there=learned)
        other.num_clients = other.fit.landed.num_clients
        other.largest_error = None
        return other

    def notes(self) -> Iterator[str]:
        """Yield why the paper's decoder answered, where it did."""
        if self.fallback is not None:
            yield (
                "nothing stands out of the noise: the paper's decoder is better here, and answered"
                " instead"
            )

    def _counts(self, ids: Ids) -> F64:
        """Return estimated counts.

        If the residual holds only rounding, counts within `_ROUNDING` of an integer are rounded.
        """
        counts = self.fit.estimates(ids)
        counts *= self.num_clients
        if self.fit.scale * self.num_clients > _ROUNDING:
            return counts
        whole = np.rint(counts)
        return np.where(np.abs(counts - whole) < _ROUNDING, whole, counts)


def usual_kappa(landed: Landed) -> float:
    """Return how many times larger the errors of fitted items are than those of phantoms.

    It is linear in the effective number of batches between the two values that were measured.
    """
    one, many = KAPPA
    return many + (one - many) * max(0.0, (5.0 - landed.effective) / 4.0)


def _merged(one: I64, other: I64) -> I64:
    """Return the positions that are in at least one of two arrays, rising, each once.

    Args:
        one: int64 [n], rising, each once: there may be millions.
        other: int64 [m], in any order.

    >>> _merged(np.array([2, 5]), np.array([3, 2])).tolist()
    [2, 3, 5]
    """
    # A few positions are inserted into many sorted ones, which takes less time than a sort of all.
    other = np.unique(other)
    places = np.searchsorted(one, other)
    new = places == len(one)
    new[~new] = one[places[~new]] != other[~new]
    if not new.any():
        return one
    merged: I64 = np.insert(one, places[new], other[new])
    return merged


def _best_fit(landed: Landed, candidates: Candidates, progress: Progress | None) -> Fit:
    """Return the best of several fits with falling bounds on the support.

    With few rows and a light tail, the support can fill with false items. Then the fit can hardly
    tell some fitted items from others that share their cells, and the own shares of these items are
    small. A smaller bound keeps some false items out. So the bounds are tried one after the other,
    up to the first fit that is well-conditioned. The best fit has the smallest `Fit.worst`.
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
    """Return the residuals of many draws after the fit of one batch.

    This is `kernels.refit` in matrices. With one batch, an item's value is its mean over batches,
    so there is no shrinkage. A sweep sets the items' values x one after the other. Each item gets
    the part of the draw that the other items leave. In an item's turn, the items before it have
    their new values, and the items after it have their old ones. With the Gram matrix
    L + 1 + U, where L lies below the diagonal and U above, and with the mean c of each item's
    signed cells: x_new = c - L x_new - U x_old.

    Args:
        cells: int64 [n, rows], where each item lies among all cells, in the order of the sweep.
        signs: int8 [n, rows].
        drawn: float64 [all cells, draws].

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
    """Return the mean load and the mean kept share of at most eleven groups of cells by load.

    A cell with more load should keep a smaller share. So a share that rises with the load is noise
    of the probes, and gets the value of the group before.
    """
    # In a batch without clients, shrinkage may leave nothing of an item's value. Then the item adds
    # only rounding to the load of its cells, and so small a load counts as none.
    loaded = loads > 1e-12
    if not loaded.any():
        return np.zeros(1), np.ones(1)
    edges = np.unique(quantiles(loads[loaded], np.linspace(0, 1, _GROUPS + 1)[1:]))
    group = np.searchsorted(edges, loads[loaded])
    size = np.maximum(np.bincount(group, minlength=len(edges) + 1), 1)
    used = np.flatnonzero(np.bincount(group, minlength=len(edges) + 1))
    means = (np.bincount(group, loads[loaded], len(edges) + 1) / size)[used]
    shares = (np.bincount(group, kept[loaded], len(edges) + 1) / size)[used]
    # The first group is the cells without load, which keep everything. 0.02 is a lower bound, since
    # errors are divided by the share.
    return np.append(0.0, means), np.clip(np.minimum.accumulate(np.append(1.0, shares)), 0.02, 1.0)
