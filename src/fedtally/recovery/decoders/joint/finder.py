"""Find the heavy candidates of a large range from their cells, without decoding each candidate.

A cell is a counter, and a look decodes all candidates. A look takes the same time however few of
them are heavy. If few cells have large values, it is faster to start from these cells:
`kernels.Halves` returns the ids in them. For these ids, the same decoder as in a look is asked, so
both ways find the same ids. The cost of a search is estimated before it begins. A search for the
largest items is made in several tries. The search is given up if the tries would take too long, and
a look follows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.recovery.linear_system import F64, I64, U64, Candidates, Decoder, Landed

F32 = npt.NDArray[np.float32]

# The most batches. An id has one sign in each batch. With more batches there are more patterns of
# signs than ids that share a cell and a pattern, and a look is faster.
MOST_BATCHES = 3
_MOST_ROWS = 16  # the prepared words take rows^2 * 256 kB
# Preparing the search takes about as long as a look at this number of candidates, for each row.
_PREPARED = 1 << 19
_MOST = 1 << 32  # the most candidates, to bound the memory of the prepared words
# Reading one value of a cell takes this many times longer in `Halves.find` than in a look.
_PER_VALUE = 2.8
# A search saves about this part of the time of a look. It does not save a whole look, since without
# searches about half of the looks would only go over the list of an earlier look (`joint.Kept`).
_SPARED = 0.5
# A search for the largest items is made in tries, each with a lower floor. The first try of the
# first search tests at most _FIRST_TRY ids. The share of the needed items that a try finds tells
# how many ids the next try must test; this number is multiplied by _SPARE.
_FIRST_TRY, _SPARE = 1 << 20, 1.15
# From try to try, the number of ids that may be tested grows by a factor within these bounds.
_GROWTH = (1.25, 3.0)
_LEAST_TRY = 1 << 18  # the first try of a later search may test at least this number of ids
_HIGHEST = 1e6  # the highest floor that is tried, as a multiple of the lowest floor
_STEPS = 6  # steps of the bisection for the lowest floor that is cheap enough
_ROUNDING = float(np.finfo(np.float32).eps)


class Finder:
    """Finds candidates whose cells have a large sum, or large values in at least half of the rows.

    A look at all candidates would find these candidates, too.

    Args:
        landed: the sums; their batches must share locations.
        candidates: the candidates: a range of ids, possibly with extra ids.
    """

    def __init__(self, landed: Landed, candidates: Candidates) -> None:
        self._landed, self._candidates = landed, candidates
        self._rows = landed.spec.rows
        # For each `need`: how many ids the first try of the next search may test.
        self._tries: dict[int, float] = {}
        # These three are about searches with `share`. `_credit` is the time that the next search
        # may take, divided by the time of a look. It starts at 1, falls by the time of each try,
        # and rises by `_SPARED`, up to 1, when a search succeeds. `_calls` is the number of
        # searches. `_taken` is the sum of their times, each divided by the time of a look; a look
        # that followed a search is included.
        self._credit, self._taken, self._calls = 1.0, 0.0, 0
        batches = len(landed.weights)
        bits = (np.arange(1 << batches) >> np.arange(batches)[:, None]) & 1
        self._signs = 1.0 - 2.0 * bits  # [batches, patterns]

    @staticmethod
    def suits(landed: Landed, candidates: Candidates) -> bool:
        """Return whether this kind of search is possible for these sums and candidates.

        The search needs a compiled kernel, 2 to 16 rows of 2 to 2^20 cells, and at most 3 batches,
        which share their locations. The listed candidates must be a range of at least 2^19 ids for
        each row, and at most 2^32 ids in all.
        """
        first, size = candidates.listed_range
        return bool(
            not landed.fresh
            and len(landed.weights) <= MOST_BATCHES
            and 2 <= landed.spec.rows <= _MOST_ROWS
            and 2 <= landed.spec.width <= kernels.MAX_WIDTH >> 4
            and landed.spec.rows * _PREPARED <= size <= _MOST
            and first + size <= 2**64
            and kernels.backend() != "numpy"
        )

    @property
    def looks(self) -> float:
        """The mean time of a search with `share`, divided by the time of a look at all candidates.

        If a search was given up, the look that had to follow is added to its time. The result is 0
        if there was no such search.
        """
        return self._taken / max(self._calls, 1)

    def high(
        self,
        landed: Landed,
        residual: F64,
        medians: Decoder,
        floor: float,
        without: I64,
        most: int,
    ) -> I64 | None:
        """Return the positions of candidates whose medians exceed a floor.

        Either all candidates above the floor are returned, or only the largest of them. Then at
        least `most` candidates are returned that are not in `without`.

        Args:
            landed: the sums, with the weights of their batches.
            residual: the sums minus the fitted items, float64 [rows, width, batches].
            medians: returns the median over rows of the residual, for ids.
            floor: a value above 0.
            without: positions that do not count towards `most`.
            most: how many of the largest candidates outside `without` are needed.

        Returns:
            int64 [n]; None if a look at all candidates is cheaper.
        """
        cells = (residual * landed.weights) @ self._signs

        def share(positions: I64, at: float) -> float:
            found = self._candidates.above(positions, medians, at)
            return float(np.count_nonzero(~np.isin(found, without))) / most

        found = self.largest(lambda at: cells - at, (self._rows + 1) // 2, floor, share)
        return None if found is None else self._candidates.above(found, medians, floor)

    def standing(
        self,
        landed: Landed,
        residual: F64,
        means: Decoder,
        root: F64,
        floor: float,
        lowest: float,
        share: Callable[[I64, float], float] | None,
    ) -> I64 | None:
        """Return the positions of candidates that stand out, with mean residuals above a floor.

        A candidate stands out if z = e sqrt(b) / scale is large (`joint.Fit.standing_out`). The
        candidate's mean residual is b e, and b is the mean share of its cells. Since the square
        root is concave, sqrt(b) is at least the mean of sqrt(share) over the cells. So if z exceeds
        t, the sum over the cells of (value - t * scale * sqrt(share of the cell)) is positive. The
        search finds all candidates with a positive sum.

        Args:
            landed: the sums, as in `high`.
            residual: the residual, as in `high`.
            means: returns the mean residual over rows, for ids.
            root: scale * sqrt(share) of each cell, float64 [rows, width], or slightly less.
            floor: candidates with a mean residual of at most this are left out.
            lowest: the z above which all candidates are returned, unless `share` says earlier that
                the needed ones were found.
            share: a function of some positions and a z. The positions include all candidates above
                this z. It returns the share of the needed candidates that are among them. None: all
                candidates are needed.

        Returns:
            int64 [n]: all candidates with z above `lowest`, or at least the needed ones; other
            candidates may be among them. None if a look at all candidates is cheaper.
        """
        cells, each = (residual * landed.weights) @ self._signs, root[..., None]
        usual = float(root.mean())

        def values(at: float) -> F64:  # by z or by the mean residual: the usually sharper bound
            lacking: F64 = cells - (at * each if at * usual > floor else floor)
            return lacking

        def of_needed(positions: I64, at: float) -> float:
            assert share is not None
            return share(self._candidates.above(positions, means, floor), at)

        found = self.largest(values, 0, lowest, None if share is None else of_needed)
        return None if found is None else self._candidates.above(found, means, floor)

    def largest(
        self,
        values: Callable[[float], F64],
        need: int,
        floor: float,
        share: Callable[[I64, float], float] | None,
    ) -> I64 | None:
        """Return the positions of all candidates above a floor, or of the largest ones.

        Args:
            values: a function of a floor that returns a number for each cell, float64 [rows, width,
                patterns]; the numbers fall as the floor rises. A candidate is above the floor if
                the sum of its numbers is positive or, with `need`, if at least `need` of them are.
            need: a number of rows, or 0, as in `kernels.Halves.find`.
            floor: the lowest floor, above 0.
            share: a function of some positions and a floor. The positions include all candidates
                above this floor. It returns the share of the needed candidates that are among them.
                None: all candidates above the lowest floor are needed.

        Returns:
            The positions, ascending; some candidates slightly below the floor may be among them.
            None if a look at all candidates is cheaper.
        """
        # `Halves.find` stops reading an id when the remaining rows cannot make it heavy, or when
        # its sum gets too small. If values rise and fall equally often, a sum stays positive for
        # about sqrt(rows) rows.
        read = self._rows - need + 1 if need else self._rows**0.5
        look = self._candidates.listed_range[1] * self._rows / (read * _PER_VALUE)
        if share is None:
            at = self._affordable(values, need, floor, _SPARED * look)
            return self._find(values(floor), need) if at == floor else None
        left = self._credit * look
        budget = self._tries.get(need, min(left, _FIRST_TRY))
        # A candidate needs about half of the rows. So if `times` as many ids are tested, the number
        # of found candidates grows by the factor times^(1 / power).
        power = 2.0 / self._rows
        self._calls += 1
        while budget <= left:
            at = self._affordable(values, need, floor, budget)
            if at is None:
                break
            found = self._find(values(at), need)
            left -= budget
            self._taken += budget / look
            part = 1.0
            if at > floor:
                part = share(found, at)
                times = _SPARE * max(part, 1e-9) ** -power
                self._tries[need] = max(_LEAST_TRY, budget * min(times, _GROWTH[1]))
            if part >= 1.0:
                self._credit = min(1.0, left / look + _SPARED)
                return found
            budget *= min(max(times, _GROWTH[0]), _GROWTH[1])
        self._credit = left / look
        self._taken += 1.0
        return None

    def _affordable(
        self, values: Callable[[float], F64], need: int, floor: float, budget: float
    ) -> float | None:
        """Return about the lowest floor from `floor` on at which at most `budget` ids are tested.

        Returns None if even the highest floor that is tried needs more.
        """

        def costs(at: float) -> float:
            cells, slack = self._rounded(values(at))
            return self._halves.looked_at(cells, need, -slack)

        if costs(floor) <= budget:
            return floor
        low, high = floor, 2.0 * floor
        while costs(high) > budget:
            if high > _HIGHEST * floor:
                return None
            low, high = high, 2.0 * high
        for _ in range(_STEPS):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if costs(middle) > budget else (low, middle)
        return high

    @property
    def _halves(self) -> kernels.Halves:
        return self._landed.halves(*self._candidates.listed_range)  # prepared at the first use

    def _find(self, values: F64, need: int) -> I64:
        cells, slack = self._rounded(values)
        found: U64 = self._halves.find(cells, need, -slack)
        return (found - np.uint64(self._candidates.listed_range[0])).astype(np.int64)

    def _rounded(self, values: F64) -> tuple[F32, float]:
        """Return the values in single precision, and a bound on the error of sums over rows."""
        cells = values.astype(np.float32)
        return cells, self._rows**2 * _ROUNDING * float(np.abs(cells).max())
