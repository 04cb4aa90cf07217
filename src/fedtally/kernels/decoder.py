"""Estimates of many ids from sums of sketches, with tables that are computed once."""

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

_SPARE = 1e-6  # added before a code is rounded up: larger than any floating-point error
_HELD = 64  # values of a row that fit into registers: then decoding all ids is fastest
# float32 is exact for integers up to 2^24: sums below it need half the memory.
_FLOAT32_EXACT = 1 << 24
# (bytes of all tables of a row, cost of a gather relative to the first-level cache), measured with
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
    """Consecutive batches whose sign patterns share one table.

    Attributes:
        group: the hash group whose word holds the signs.
        shift: the bit of this word that is the sign of the first batch.
        bits: the number of batches.
    """

    group: int
    shift: int
    bits: int


class Decoder:
    """Estimates of ids from sums: tables are computed once, for many requests.

    An estimate is the median, or mean, over rows of the sum over batches of sign * counter. For
    sums of integers every median is exact: single precision is used where no intermediate value can
    exceed 2^24, and otherwise double precision, which is exact below 2^53.

    For each cell, tables hold the sums of several batches under all patterns of signs. Then an id
    costs one gather (memory read) for each table and row, instead of one for each batch and row.

    Args:
        sums: the sums of each batch, int64, float64, or float32 [batches, rows, width]; float32 is
            added in single precision.
        tables: the hash tables, uint32 [groups, rows, 8, 256]. Group 0 gives the location. Bit b %
            8 of the word of group b // 8 is the sign of batch b.
        expected: the approximate number of ids to estimate; preparation is cheaper if it is small.
        fold: how rows are combined: "median" or "mean".
        signed: whether counters have signs. Otherwise there is one batch, and a row's value for an
            id is the counter in the id's cell.
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
        self._sums: Any = sums
        self._tables = np.ascontiguousarray(tables, np.uint32)
        self._fold, self._signed = fold, signed
        if self._sums.ndim != 3 or 0 in self._sums.shape:
            raise InvalidInputError(
                "sums must be [batches, rows, width] with at least one each, got shape"
                f" {sums.shape}"
            )
        batches, rows, width = self._sums.shape
        if self._tables.shape != (-(-batches // 8), rows, 8, 256):
            raise InvalidInputError(
                f"tables must have shape {(-(-batches // 8), rows, 8, 256)}, got {tables.shape}"
            )
        if not signed and batches != 1:
            raise InvalidInputError(f"values without signs must be of one batch, got {batches}")
        validate.integer(1, MAX_ROWS, rows=rows)
        validate.integer(1, MAX_WIDTH, width=width)
        # Store the level: it decides the form of the tables below.
        self._level = backend()
        self._values: Any
        self._sieve: tuple[float, U8] | None = None  # the last floor, and its codes (`_codes`)
        if self._level != "numpy":
            self._prepare(expected)

    def at(self, ids: U64) -> F64:
        """Return the estimate of each id: float64 [n]."""
        ids = check_ids(ids)
        if self._level == "numpy":
            return reference.decode(self._sums, self._tables, ids, self._fold, self._signed)
        return self._run(len(ids), ids, 0)

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimates of the ids from `first_id` on (mod 2^64): float64 [count]."""
        first_id, count = validate.integer(first_id=first_id), validate.integer(0, count=count)
        if self._level == "numpy":
            parts = [
                self.at(range_ids(first_id + p.start, p.stop - p.start))
                for p in blocks(count, reference.BLOCK)
            ]
            return np.concatenate(parts) if parts else np.empty(0)
        return self._run(count, None, first_id)

    def above(self, first_id: int, count: int, floor: float) -> tuple[I64, F64] | None:
        """Return only the ids of a range whose estimates are above a floor, with the estimates.

        Args:
            first_id: the first id.
            count: the number of ids in the range.
            floor: a value that few estimates exceed; otherwise this takes longer than `range`.

        Returns:
            the distance of each such id from `first_id`, ascending: int64 [n], and its estimate:
            float64 [n]. None: use `range` instead, since the search does not support these tables
            or a floor of 0 or less, or would not be faster.
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
                self._sums.shape[2],
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
        """Return uint8 codes whose sum over rows reaches 255 if an id's estimate exceeds the floor.

        The codes have the shape of `_values`. With a byte each they fit into the nearest cache.
        """
        rows = len(self._values)
        if self._fold == "median":
            # The median is above the floor only if at least this number of rows is.
            need = (rows + 1) // 2
            codes: U8 = np.where(self._values > floor, -(-255 // need), 0).astype(np.uint8)
            return codes
        # Values below `low` count as `low`, and codes are rounded up. Both only make the sum of an
        # id's codes larger, so no id above the floor is lost.
        low = -3.0 * float(np.sqrt(np.mean(np.square(self._values, dtype=np.float64))))
        step = rows * (floor - low) / 255
        steps: F64 = np.ceil((self._values.astype(np.float64) - low) / step + _SPARE)
        return np.clip(steps, 0, 255).astype(np.uint8)

    def _run(self, count: int, ids: U64 | None, first_id: int) -> F64:
        estimates = np.empty(count)
        width, mean = self._sums.shape[2], self._fold == "mean"

        def one(part: slice) -> None:
            asked = None if ids is None else ids[part]
            first = (first_id + part.start) % 2**64
            native.decode(
                self._level,
                self._tables,
                width,
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
        """Call a function for slices of 0 .. count, in threads."""
        # One part for each thread: parts are independent, and share the tables.
        rows = self._sums.shape[1]
        threads = min(num_threads(), max(1, count * rows // PARALLEL_FROM))
        in_threads(one, blocks(count, -(-count // threads) if count else 1), threads)

    def _prepare(self, expected: int) -> None:
        batches, rows, width = self._sums.shape
        dtype = np.float32 if self._fits_float32() else np.float64
        if not self._signed:  # no sign bits: the pattern of every cell is empty
            self._values = np.ascontiguousarray(self._sums[0], dtype)[..., None]
            self._layout = np.zeros((1, 3), np.uint32)
            return
        subtables = plan_subtables(self._sums.shape, np.dtype(dtype).itemsize, expected)
        # The tables of a cell are next to each other in memory.
        offsets = np.cumsum([0, *(1 << s.bits for s in subtables)]).tolist()
        if width * offsets[-1] > 2**32:
            raise InvalidInputError(
                f"{batches} batches of rows of {width} counters are more than a decoder can hold"
            )
        self._values = np.empty((rows, width, offsets[-1]), dtype)
        for s, offset in zip(subtables, offsets, strict=False):
            native.fill_patterns(
                self._sums[8 * s.group + s.shift :][: s.bits], offset, self._values
            )
        self._layout = np.array([(s.group, s.shift, s.bits) for s in subtables], np.uint32)

    def _fits_float32(self) -> bool:
        """Return whether to compute in float32.

        For integers: whether float32 holds every partial sum exactly. Sums in floating point keep
        their own precision.
        """
        if self._sums.dtype.kind == "f":
            return bool(self._sums.dtype == np.float32)
        largest = sum(max(int(batch.max()), -int(batch.min())) for batch in self._sums)
        # For an even number of rows the two middle values are added before they are halved.
        return largest * (2 if self._sums.shape[1] % 2 == 0 else 1) < _FLOAT32_EXACT


def plan_subtables(shape: tuple[int, ...], itemsize: int, expected: int) -> list[Subtable]:
    """Return the tables that make decoding cheapest: few large tables, or more that fit caches.

    All tables together take at most twice the memory of the sums (8 bytes each), or 64 MiB if that
    is more.

    Args:
        shape: the shape of the sums: batches, rows, width.
        itemsize: the bytes of a value in a table.
        expected: the approximate number of ids to estimate.
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
        # The unit is a gather from the first-level cache; filling a table's cell costs about two.
        return len(subtables) * gather * expected + 2.0 * cells

    def fits(bits: int) -> bool:
        return bits == 1 or sum(width << s.bits for s in split(bits)) * rows * itemsize <= allowed

    return split(min(filter(fits, range(1, min(8, batches) + 1)), key=cost))
