"""`Decoder`: estimates many ids from sums of sketches, with tables that are computed once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.kernels.arguments import (
    F32,
    F64,
    I64,
    MAX_ROWS,
    MAX_WIDTH,
    U8,
    U32,
    U64,
    check_ids,
    range_ids,
)
from fedtally.kernels.backends import (
    PARALLEL_FROM,
    backend,
    blocks,
    in_threads,
    native,
    num_threads,
)

_SPARE = 1e-6  # added to a code (see `_codes`) before it is rounded up: above any rounding error
# A row whose tables have at most this many values fits into registers. Then `range` is faster than
# `above`.
_HELD = 64
# float32 is exact for integers up to 2^24. Sums below this number are stored as float32, which
# takes half the memory of float64.
_FLOAT32_EXACT = 1 << 24
# The time of a gather (memory read), by the bytes of all tables of a row. In each pair, the first
# number is the most bytes for which the second number holds. The second number is the time of a
# gather divided by the time of a gather from the first-level cache. Measured with
# benchmarks/kernels.py.
GATHER_COSTS = (
    (1 << 15, 1.0),
    (1 << 16, 1.2),
    (1 << 18, 1.8),
    (1 << 19, 2.4),
    (1 << 20, 3.5),
    (1 << 21, 5.0),
    (1 << 22, 12.0),
    (1 << 26, 20.0),
    (1 << 62, 40.0),
)


@dataclass(frozen=True)
class Subtable:
    """Some consecutive batches whose sums, under all patterns of signs, are in one table.

    A batch is a group of rounds with the same signs. The table has, for each cell (counter), the
    2^bits sums over these batches of sign * counter: one for each pattern of signs.

    Attributes:
        group: the index of the hash group, whose words hold the signs of 8 batches.
        shift: which bit of a word is the sign of the first of these batches.
        bits: the number of batches, 1 to 8.
    """

    group: int
    shift: int
    bits: int


class Decoder:
    """Estimates the counts of ids from the sums of sketches.

    A batch is a group of rounds with the same signs. The value of an id in a row is the sum over
    batches of sign * counter. An estimate is the median or the mean of these values over the rows.
    The median of an even number of rows is the mean of the two middle values.

    With compiled kernels, the constructor computes tables that serve all later calls: for each cell
    (counter), the sums of several batches under all patterns of signs. An id then costs one gather
    (memory read) for each table and row, instead of one for each batch and row. Sums of integers
    are added in float32 if no intermediate value can reach 2^24, and otherwise in float64. In
    float64, medians are exact up to 2^53. A table whose batches have only sums of 0 is left out,
    unless it is the first one.

    Args:
        sums: the sums of the sketches of each batch, int64, float64 or float32 [batches, rows,
            width]. Compiled kernels add float32 sums in single precision.
        tables: the hash tables, uint32 [groups, rows, 8, 256], with the signs of 8 batches in a
            group. In the words of group b // 8, bit b % 8 is the sign of batch b. The words of
            group 0 give the cells.
        expected: about how many ids will be estimated in all; a small number makes the tables
            smaller and faster to compute.
        fold: how the values of the rows are combined: "median" or "mean".
        signed: whether signs are used. If False, there must be one batch, and the value of an id in
            a row is the counter in its cell.

    Raises:
        InvalidInputError: a dtype, a shape or `fold` is wrong, there are several batches without
            signs, or there are too many batches for the width.
    """

    def __init__(
        self,
        sums: I64 | F64 | F32,
        tables: U32,
        expected: int = 1 << 20,
        fold: Literal["median", "mean"] = "median",
        signed: bool = True,
    ) -> None:
        if sums.dtype not in (np.int64, np.float64, np.float32) or tables.dtype != np.uint32:
            raise InvalidInputError(
                f"sums must be int64, float64 or float32 and tables uint32, got {sums.dtype} and"
                f" {tables.dtype}"
            )
        if fold not in ("median", "mean"):
            raise InvalidInputError(f"fold must be median or mean, got {fold!r}")
        self._tables = np.ascontiguousarray(tables, np.uint32)
        self._fold, self._signed = fold, signed
        if sums.ndim != 3 or 0 in sums.shape:
            raise InvalidInputError(
                "sums must be [batches, rows, width] with at least one each, got shape"
                f" {sums.shape}"
            )
        batches, rows, width = sums.shape
        if self._tables.shape != (-(-batches // 8), rows, 8, 256):
            raise InvalidInputError(
                f"tables must have shape {(-(-batches // 8), rows, 8, 256)}, got {tables.shape}"
            )
        if not signed and batches != 1:
            raise InvalidInputError(f"values without signs must be of one batch, got {batches}")
        validate.integer(1, MAX_ROWS, rows=rows)
        validate.integer(1, MAX_WIDTH, width=width)
        # Stored, since the tables are made for this implementation.
        self._level = backend()
        self._rows, self._width = rows, width
        self._sums: Any  # only NumPy reads them after the constructor
        self._values: Any
        self._sieve: tuple[float, U8] | None = None  # the last floor, and its `_codes`
        if self._level == "numpy":
            self._sums = sums
        else:
            self._prepare(sums, expected)

    def at(self, ids: U64) -> F64:
        """Return the estimates of `ids`, uint64 [n], as float64 [n]."""
        ids = check_ids(ids)
        if self._level == "numpy":
            return reference.decode(self._sums, self._tables, ids, self._fold, self._signed)
        return self._run(len(ids), ids, 0)

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimates of `count` ids from `first_id` on (mod 2^64): float64 [count]."""
        first_id, count = validate.integer(first_id=first_id), validate.integer(0, count=count)
        if self._level == "numpy":
            parts = [
                self.at(range_ids(first_id + p.start, p.stop - p.start))
                for p in blocks(count, reference.BLOCK)
            ]
            return np.concatenate(parts) if parts else np.empty(0)
        return self._run(count, None, first_id)

    def above(self, first_id: int, count: int, floor: float) -> tuple[I64, F64] | None:
        """Search a range of ids for those with an estimate above `floor`.

        Args:
            first_id: the first id of the range.
            count: the number of ids in the range.
            floor: a value that few estimates exceed. If many do, this is slower than `range`.

        Returns:
            The index in the range of each id with an estimate above `floor`, ascending, int64 [n],
            and its estimate, float64 [n]. Or None: nothing was searched, and the caller must use
            `range`. Each of these is a reason: `floor` is 0 or less; no compiled kernel is used;
            there are several tables (`Subtable`); the tables are not float32; the tables are so
            small that `range` is faster.
        """
        if self._level == "numpy" or self._values.dtype != np.float32 or len(self._layout) > 1:
            return None
        if floor <= 0 or self._values[0].size <= _HELD:
            return None
        if self._sieve is None or self._sieve[0] != floor:
            self._sieve = floor, self._codes(floor)
        codes = self._sieve[1]
        found: dict[int, tuple[I64, F64]] = {}

        def one(part: slice) -> None:
            places = np.empty(part.stop - part.start, np.int64)
            values = np.empty(len(places))
            number = native.sift(
                self._level,
                self._tables,
                self._width,
                self._layout,
                self._values,
                self._fold == "mean",
                codes,
                (first_id + part.start) % 2**64,
                places,
                values,
            )
            few = values[:number] > floor
            found[part.start] = places[:number][few] + part.start, values[:number][few]

        self._in_parts(one, count)
        parts = [found[start] for start in sorted(found)]
        if not parts:
            return np.empty(0, np.int64), np.empty(0)
        return np.concatenate([p for p, _ in parts]), np.concatenate([v for _, v in parts])

    def _codes(self, floor: float) -> U8:
        """Return small integers that can replace `_values` in the search of `above`: uint8.

        `_values` are the numbers in the tables. The codes have the shape of `_values`. If the
        estimate of an id exceeds the floor, the codes of its cells add up to 255 or more over the
        rows. The codes of other ids may reach 255, too: `above` then checks the estimates. The
        search reads the codes, since they take one byte each and fit into the nearest cache.
        """
        rows = len(self._values)
        if self._fold == "median":
            # The median can exceed the floor only if the values of this many rows exceed it.
            need = (rows + 1) // 2
            # In an array of one: NumPy rounds a float of Python to float32, and NumPy 1 every
            # scalar. The rounded floor can be larger, and an estimate just above it be missed.
            exceed = self._values > np.array([floor], np.float64)
            codes: U8 = np.where(exceed, -(-255 // need), 0).astype(np.uint8)
            return codes
        # Values below `low` are raised to `low`, and codes are rounded up. Both can only increase
        # the sum of an id's codes, so no id above the floor is missed.
        low = -3.0 * float(np.sqrt(np.mean(np.square(self._values, dtype=np.float64))))
        step = rows * (floor - low) / 255
        steps: F64 = np.ceil((self._values.astype(np.float64) - low) / step + _SPARE)
        return np.clip(steps, 0, 255).astype(np.uint8)

    def _run(self, count: int, ids: U64 | None, first_id: int) -> F64:
        estimates = np.empty(count)
        mean = self._fold == "mean"

        def one(part: slice) -> None:
            asked = None if ids is None else ids[part]
            first = (first_id + part.start) % 2**64
            native.decode(
                self._level,
                self._tables,
                self._width,
                self._layout,
                self._values,
                mean,
                asked,
                first,
                estimates[part],
            )

        self._in_parts(one, count)
        return estimates

    def _in_parts(self, one: Callable[[slice], None], count: int) -> None:
        """Call `one` in threads, on slices that together cover the indices 0 .. count - 1."""
        # One slice for each thread. Threads share the tables and write to different places.
        threads = min(num_threads(), max(1, count * self._rows // PARALLEL_FROM))
        in_threads(one, blocks(count, -(-count // threads) if count else 1), threads)

    def _prepare(self, sums: Any, expected: int) -> None:
        batches, rows, width = sums.shape
        dtype = np.float32 if self._fits_float32(sums) else np.float64
        if not self._signed:  # a cell has one value, since there are no patterns of signs
            self._values = np.ascontiguousarray(sums[0], dtype)[..., None]
            self._layout = np.zeros((1, 3), np.uint32)
            return
        planned = plan_subtables(sums.shape, np.dtype(dtype).itemsize, expected)
        if width * sum(1 << s.bits for s in planned) > 2**32:
            raise InvalidInputError(
                f"{batches} batches of rows of {width} counters are more than a decoder can hold"
            )
        # Adding a table of zeros changes no estimate, so it is left out. The first table is
        # kept, since its words also give the cells.
        subtables = [s for s in planned if s is planned[0] or _batches_of(s, sums).any()]
        # All values of a cell are next to each other, so that they share cache lines.
        offsets = np.cumsum([0, *(1 << s.bits for s in subtables)]).tolist()
        self._values = np.empty((rows, width, offsets[-1]), dtype)
        for s, offset in zip(subtables, offsets, strict=False):
            native.fill_patterns(_batches_of(s, sums), offset, self._values)
        self._layout = np.array([(s.group, s.shift, s.bits) for s in subtables], np.uint32)

    @staticmethod
    def _fits_float32(sums: Any) -> bool:
        """Return whether the tables are to be float32; if not, they are float64.

        Sums of integers use float32 if it holds every partial sum exactly. Sums in floating point
        keep their own precision.
        """
        if sums.dtype.kind == "f":
            return bool(sums.dtype == np.float32)
        largest = sum(max(int(batch.max()), -int(batch.min())) for batch in sums)
        # For an even number of rows, the median first adds the two middle values.
        return largest * (2 if sums.shape[1] % 2 == 0 else 1) < _FLOAT32_EXACT


def _batches_of(subtable: Subtable, sums: Any) -> Any:
    """Return the sums of a subtable's batches: [bits, rows, width]."""
    return sums[8 * subtable.group + subtable.shift :][: subtable.bits]


def plan_subtables(shape: tuple[int, ...], itemsize: int, expected: int) -> list[Subtable]:
    """Choose how many batches share a table, so that decoding takes the least time.

    A large table serves more batches with one read; smaller tables fit into faster caches. All
    tables together take at most 64 MiB. If 16 bytes for each value of the sums are more, this is
    the bound.

    Args:
        shape: the shape of the sums: batches, rows, width.
        itemsize: the bytes of a value in a table.
        expected: about how many ids will be estimated.

    Returns:
        The tables, in the order of their batches: each batch is in one table.
    """
    batches, rows, width = shape
    allowed = max(1 << 26, 2 * 8 * batches * rows * width)

    def split(bits: int) -> list[Subtable]:
        return [
            Subtable(group, shift, min(bits, in_group - shift))
            for group, in_group in enumerate(
                min(8, batches - start) for start in range(0, batches, 8)
            )
            for shift in range(0, in_group, bits)
        ]

    def cost(bits: int) -> float:
        subtables = split(bits)
        cells = sum(width << s.bits for s in subtables)
        size = cells * itemsize
        gather = next(cost for bound, cost in GATHER_COSTS if size <= bound)
        # The unit is the time of a gather from the first-level cache. Filling one value of a table
        # takes about 2 units.
        return len(subtables) * gather * expected + 2.0 * cells

    def fits(bits: int) -> bool:
        return bits == 1 or sum(width << s.bits for s in split(bits)) * rows * itemsize <= allowed

    return split(min(filter(fits, range(1, min(8, batches) + 1)), key=cost))
