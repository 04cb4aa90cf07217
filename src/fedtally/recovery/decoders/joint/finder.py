"""Find the heavy candidates of a large range from their cells, without a look at each candidate.

A look at all candidates costs the same whether few or many of them stand out. Where few cells are
heavy, it is cheaper to begin with these cells: `kernels.Halves` gives the ids that lie in them. The
found ids are judged by the same numbers as in a look, so both ways find the same ids. The cost of a
search is counted beforehand, and the search is given up if a look costs less.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.recovery.linear_system import F64, I64, U64, Candidates, Decoder, Landed

F32 = npt.NDArray[np.float32]

# With more batches there are more patterns of signs than ids in a bucket: a look costs less.
MOST_BATCHES = 3
_MOST_ROWS = 16  # the prepared words take rows^2 times 256 kB
# To prepare the search takes about as long as a look at this number of candidates for each row.
_PREPARED = 1 << 19
_MOST = 1 << 32  # candidates: a bound on the memory of the prepared words
# `Halves.find` takes this many times longer for each value of a cell that it reads than a look
# does.
_PER_VALUE = 2.8
# What a search saves, in looks at all candidates. It is less than 1: without searches, about half
# of the looks would go over the list of an earlier look only (`joint.Kept`).
_SPARED = 0.5
# The first try for the largest items looks at no more than _FIRST_TRY ids. From the share that a
# try finds of what is needed follows how many ids the next try looks at: those that should be
# enough, times _SPARE.
_FIRST_TRY, _SPARE = 1 << 20, 1.15
_GROWTH = (1.25, 3.0)  # the least and the most factor from one try to the next
_LEAST_TRY = 1 << 18
_HIGHEST = 1e6  # times the lowest floor: the search for a floor ends here
_STEPS = 6  # of the bisection for the least floor that a try can afford
_ROUNDING = float(np.finfo(np.float32).eps)


class Finder:
    """Finds the candidates whose cells add up to much, or are heavy in half of the rows.

    A look at all candidates would find the same ones.

    Args:
        landed: the sums, whose batches share locations.
        candidates: the candidates, a range and a few more.
    """

    def __init__(self, landed: Landed, candidates: Candidates) -> None:
        self._landed, self._candidates = landed, candidates
        self._rows = landed.spec.rows
        self._tries: dict[int, float] = {}  # by `need`: how many ids the next first try looks at
        # All in looks. `_credit` is the time that a search may take: what earlier searches saved,
        # at most one look. `_taken` is the time that all searches took, in `_calls` calls.
        self._credit, self._taken, self._calls = 1.0, 0.0, 0
        batches = len(landed.weights)
        bits = (np.arange(1 << batches) >> np.arange(batches)[:, None]) & 1
        self._signs = 1.0 - 2.0 * bits  # [batches, patterns]

    @staticmethod
    def suits(landed: Landed, candidates: Candidates) -> bool:
        """Return whether the search by cells can be used at all."""
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
        """The mean time that a search took, in looks at all candidates.

        A search that was given up counts as one look more, which had to follow.
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

        These are all such candidates, unless fewer are enough: then they hold the `most` largest.

        Args:
            landed: the sums, weighted.
            residual: the sums less what is fitted, float64 [rows, width, batches].
            medians: gives the medians of the residual.
            floor: a value above 0.
            without: positions of candidates that the caller treats apart.
            most: the number of other candidates that are needed, the largest ones.

        Returns:
            int64 [n]; None where a look at all candidates costs less.
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

        Let b be an item's share (`joint.LeaveOneOut`). The square root is concave: sqrt(b) is at
        least the mean of the roots of the shares of an item's cells. So if an item's z exceeds t,
        this sum over its cells is positive: the value of the cell, less t * scale * sqrt(share of
        the cell). One number for each cell thus tells which items may stand out.

        Args:
            landed: sums as for `high`.
            residual: residual as for `high`.
            means: gives the mean residuals.
            root: scale * sqrt(share) of each cell, float64 [rows, width], or a little less.
            floor: a mean residual.
            lowest: the lowest z that is asked for.
            share: a function that returns the share of the needed candidates that some positions
                hold. The positions hold all candidates whose z is above the second argument. None:
                all are needed.

        Returns:
            int64 [n], all candidates whose z is above `lowest`, unless fewer are enough; None where
            a look at all candidates costs less.
        """
        cells, each = (residual * landed.weights) @ self._signs, root[..., None]
        usual = float(root.mean())

        def values(at: float) -> F64:  # of two bounds the one that usually says more
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
            values: a function that returns one number for each cell, given a floor: float64 [rows,
                width, patterns], falling in the floor. An id is above the floor if the sum of its
                cells is positive, or if `need` of its cells are.
            need: number of rows as for `kernels.Halves.find`.
            floor: the lowest floor.
            share: a function that returns the share of the needed candidates that some positions
                hold. The positions hold all candidates above the floor in the second argument, and
                a few more. None: all are needed.

        Returns:
            Positions, rising, with a few that do not reach the floor; None where a look at all
            candidates costs less.
        """
        # `Halves.find` drops an id once the rows left cannot make it heavy, or its sum is too
        # small. A sum that rises as often as it falls stays positive for about the square root of
        # the number of rows.
        read = self._rows - need + 1 if need else self._rows**0.5
        look = self._candidates.listed_range[1] * self._rows / (read * _PER_VALUE)
        if share is None:
            at = self._affordable(values, need, floor, _SPARED * look)
            return self._find(values(floor), need) if at == floor else None
        left = self._credit * look
        budget = self._tries.get(need, min(left, _FIRST_TRY))
        # About half of the rows must be heavy. So with `times` as many ids looked at, the number of
        # found candidates grows by the factor `times` to the power 1 / `power`.
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
        """Return about the lowest floor at which at most `budget` ids are looked at.

        It is at least `floor`. None: even the highest floor that is tried takes more.
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
        return self._landed.halves(*self._candidates.listed_range)  # prepared when it is needed

    def _find(self, values: F64, need: int) -> I64:
        cells, slack = self._rounded(values)
        found: U64 = self._halves.find(cells, need, -slack)
        return (found - np.uint64(self._candidates.listed_range[0])).astype(np.int64)

    def _rounded(self, values: F64) -> tuple[F32, float]:
        """Return values in single precision, and by how much their sums may then be too small."""
        cells = values.astype(np.float32)
        return cells, self._rows**2 * _ROUNDING * float(np.abs(cells).max())
