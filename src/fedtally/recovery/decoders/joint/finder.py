"""Heavy candidates of a large range, found by their cells and not by a look at each.

A look at all candidates costs as much whether few or many of them stand out. Where few cells are
heavy it is cheaper to begin with these: `kernels.Halves` gives the ids that lie in them. What is
found is judged by the same numbers as in a look, so that both find the same. The work is counted
before it is done, and is given up where a look costs less.
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
_LEAST = 1 << 20  # candidates; of fewer a look takes milliseconds
_MOST = 1 << 32  # candidates, for the memory of what is prepared
# A look takes about as long for this many candidates as `Halves.find` for one that it looks at, in
# one row each.
_PER_LOOK = 16
# The first try for the largest items looks at so many ids at most, and the next ones at three times
# as many as the one before.
_FIRST_TRY, _NEXT_TRY = 1 << 20, 3
_HIGHEST = 1e6  # times the lowest floor: cells that are heavy there are heavy anyway
_STEPS = 6  # of the bisection for the least floor that a try can afford
_ROUNDING = float(np.finfo(np.float32).eps)


class Finder:
    """Finds the candidates whose cells add up to much, or are heavy in half of the rows.

    What it finds is what a look at all candidates would find.

    Args:
        landed: the sums, whose batches share locations.
        candidates: the candidates, a range and a few more.
    """

    def __init__(self, landed: Landed, candidates: Candidates) -> None:
        self._landed, self._candidates = landed, candidates
        self._rows = landed.spec.rows
        self._budget = candidates.listed_range[1] * self._rows / _PER_LOOK
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
            and _LEAST <= size <= _MOST
            and first + size <= 2**64
            and kernels.backend() != "numpy"
        )

    def high(
        self,
        landed: Landed,
        residual: F64,
        medians: Decoder,
        floor: float,
        without: I64,
        most: int,
    ) -> I64 | None:
        """Return the positions of the candidates whose medians exceed a floor.

        Args:
            landed: the sums, weighted.
            residual: what is left of them, float64 [rows, width, batches].
            medians: gives the medians of the residual.
            floor: a value above 0.
            without: positions of candidates that the caller treats apart.
            most: number of the others that are needed, the largest ones.

        Returns:
            int64 [n]; None where a look at all candidates costs less.
        """
        cells = (residual * landed.weights) @ self._signs

        def enough(positions: I64, at: float) -> bool:
            found = self._candidates.above(positions, medians, at)
            return int(np.count_nonzero(~np.isin(found, without))) >= most

        found = self.largest(lambda at: cells - at, (self._rows + 1) // 2, floor, enough)
        return None if found is None else self._candidates.above(found, medians, floor)

    def standing(
        self,
        landed: Landed,
        residual: F64,
        means: Decoder,
        root: F64,
        floor: float,
        lowest: float,
        enough: Callable[[I64, float], bool],
    ) -> I64 | None:
        """Return the positions of candidates that stand out, with mean residuals above a floor.

        The square root is concave: sqrt(b) is at least the mean of the roots of the shares of an
        item's cells. If z > t, the sum of its cells, each less t * scale * sqrt(its share), is
        positive. So one number for each cell tells what may stand out.

        Args:
            landed: sums as for `high`.
            residual: residual as for `high`.
            means: gives the mean residuals.
            root: scale * sqrt(share) of each cell, float64 [rows, width], or a little less.
            floor: a mean residual.
            lowest: the lowest z that is asked for.
            enough: whether candidates at these positions, with all whose z is above its second
                argument, are enough.

        Returns:
            int64 [n], with all whose z is above `lowest` unless fewer were enough; None where a
            look at all candidates costs less.
        """
        cells, each = (residual * landed.weights) @ self._signs, root[..., None]
        usual = float(root.mean())

        def values(at: float) -> F64:  # of two bounds the one that usually says more
            lacking: F64 = cells - (at * each if at * usual > floor else floor)
            return lacking

        def are_enough(positions: I64, at: float) -> bool:
            return enough(self._candidates.above(positions, means, floor), at)

        found = self.largest(values, 0, lowest, are_enough)
        return None if found is None else self._candidates.above(found, means, floor)

    def largest(
        self,
        values: Callable[[float], F64],
        need: int,
        floor: float,
        enough: Callable[[I64, float], bool],
    ) -> I64 | None:
        """Return the positions of all candidates above a floor, or of the largest ones.

        Args:
            values: gives, for a floor, what must be positive: the sum of an id's cells, or `need`
                of them; float64 [rows, width, patterns], falling in the floor.
            need: number of rows as for `kernels.Halves.find`.
            floor: the lowest floor.
            enough: whether candidates at these positions, which are all above the floor that it is
                given and a few more, are all that are needed.

        Returns:
            Positions, rising, with a few that do not reach the floor; None where a look at all
            candidates costs less.
        """
        budget = float(_FIRST_TRY)
        while True:
            budget = min(budget, self._budget)
            at = self._affordable(values, need, floor, budget)
            if at is None:
                return None
            found = self._find(values(at), need)
            if at <= floor or enough(found, at):
                return found
            if budget >= self._budget:
                return None
            budget *= _NEXT_TRY

    def _affordable(
        self, values: Callable[[float], F64], need: int, floor: float, budget: float
    ) -> float | None:
        """Return about the lowest floor at which at most `budget` ids are looked at."""

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
