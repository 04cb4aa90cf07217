"""A search for the ids of a range with heavy cells, without testing each id: meet in the middle.

A heavy cell is a cell with a large value. `Halves.find` says how many cells of an id must be heavy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.kernels.arguments import F32, MAX_ROWS, MAX_WIDTH, U32, U64, check_tables
from fedtally.kernels.backends import backend, blocks, in_threads, native, num_threads

LOW_BITS = 16  # an id is x 2^16 + y: the number of bits of y
# Bits of a key (the upper bits of a word) beyond those that the number of cells needs. If the width
# is no power of two, a block of words with one key may have two cells. Smaller blocks help: fewer
# ids are then in the block of a heavy cell.
_FINER = 2
_PAD = 16  # extra words at the end, which the kernel may read
_TILE = 16  # the kernel tests the ids of a bucket 16 at a time, even if there are fewer
_ROOM = 1 << 16  # ids that one call of the kernel can return; more need a second call


class _Row(NamedTuple):
    """The ids below 2^16, grouped by their keys in one row (native/kernels.h, `Halves`)."""

    starts: U32
    places: U32
    words: U32


class Halves:
    """The ids of a range, prepared for fast searches of ids with heavy cells.

    An id is x 2^16 + y. Its hash word is the XOR of a word of x and a word of y, and gives both
    cell and signs. So, for each x and each heavy cell of a row, a table gives the y with this cell:
    other ids cost no time.

    Args:
        tables: the hash tables, uint32 [rows, 8, 256], with at least two rows.
        width: the number of cells in a row, 2 to 2^20.
        bits: the number of batches, 1 to 8; their signs are the lowest bits of a word.
        first_id: the first id.
        count: the number of ids, at least 1; the last one is below 2^64.

    Raises:
        InvalidInputError: an argument is outside its bounds.

    >>> tables = np.random.default_rng(0).integers(0, 2**32, (3, 8, 256), dtype=np.uint32)
    >>> halves = Halves(tables, 50, 1, 1000, 100_000)
    >>> values = np.full((3, 50, 2), -1, np.float32)
    >>> [[word]] = [[int(w) for w in np.bitwise_xor.reduce(
    ...     [tables[:, b, (77_777 >> 8 * b) & 255] for b in range(8)], axis=0)[:1]]]
    >>> values[0, (word >> 8) * 50 >> 24, word & 1] = 3
    >>> 77_777 in halves.find(values)
    True
    """

    def __init__(self, tables: U32, width: int, bits: int, first_id: int, count: int) -> None:
        self._tables = check_tables(tables)
        self._rows = validate.integer(2, MAX_ROWS, rows=len(tables))
        self._width = validate.integer(2, MAX_WIDTH >> 4, width=width)
        self._bits = validate.integer(1, 8, bits=bits)
        self._first = validate.integer(0, 2**64 - 1, first_id=first_id)
        self._count = validate.integer(1, 2**64 - first_id, count=count)
        self._level = backend()
        cells = (width - 1).bit_length()
        self._top = 32 - cells - (_FINER if width != 1 << cells else 0)
        if self._level != "numpy":
            self._prepare()

    def looked_at(self, values: F32, need: int = 0, least: float = 0.0) -> float:
        """Return about how many ids `find` would test, each in one row.

        A bucket (the ids with one key) of few ids counts like one of 16, since it takes as long.
        """
        if self._level == "numpy":
            return float(self._count * self._rows)
        buckets = 0
        for row in self._starting(need):
            buckets += int(np.count_nonzero(self._tops(values[row]) > least))
        each = 2.0 ** (LOW_BITS - (32 - self._top + self._bits))
        return buckets * self._count / (1 << LOW_BITS) * max(each + _TILE / 2, _TILE)

    def find(self, values: F32, need: int = 0, least: float = 0.0) -> U64:
        """Return the ids of the range with heavy cells, ascending: uint64 [n].

        Sums are rounded to single precision. An id whose sum is within this rounding error of
        `least` may be in the result or not.

        Args:
            values: the value of each cell under each pattern of signs, float32 [rows, width,
                2^bits].
            need: the number of rows in which the value of an id must exceed `least`; 0: the sum of
                its values must exceed `least`, which is at most 0.
            least: the value to exceed.
        """
        shape = (self._rows, self._width, 1 << self._bits)
        if values.dtype != np.float32 or values.shape != shape:
            raise InvalidInputError(
                f"values must be float32 {list(shape)}, got {values.dtype} with shape"
                f" {values.shape}"
            )
        validate.integer(0, self._rows, need=need)
        if not need and least > 0:
            raise InvalidInputError(f"least must be at most 0 for a sum, got {least}")
        values = np.ascontiguousarray(values)
        if self._level == "numpy":
            return reference.heavy(self._tables, values, need, least, self._first, self._count)
        found: list[U64] = []
        for row in self._starting(need):
            tops = self._tops(values[row]).reshape(-1)
            keys = np.flatnonzero(tops > least).astype(np.uint32)
            if len(keys):
                found += self._meet(row, values, keys, tops[keys], need, least)
        # `np.unique` uses hashing, which takes several times as long.
        ids: U64 = np.sort(np.concatenate([np.empty(0, np.uint64), *found]))
        ids = ids[np.append(True, ids[1:] != ids[:-1])[: len(ids)]]
        inside: U64 = ids[(ids >= self._first) & (ids - np.uint64(self._first) < self._count)]
        return inside

    def _starting(self, need: int) -> range:
        """Return the rows of which at least one must be heavy: the search begins in each of them.

        Without `need`: if a sum of numbers is positive, one of their rotations has only positive
        partial sums (cycle lemma). With `need`: the first of `need` heavy rows has `need` - 1 rows
        after it.
        """
        return range(self._rows - need + 1 if need else self._rows)

    def _tops(self, values: F32) -> F32:
        """Return the largest value that an id with each key can have in a row.

        Args:
            values: the values of the row, float32 [width, patterns of signs].

        Returns:
            float32 [blocks of words, patterns of signs]: a block and a pattern make a key.
        """
        first = np.arange(1 << (32 - self._top), dtype=np.uint64) << np.uint64(self._top - 8)
        last = first + np.uint64((1 << (self._top - 8)) - 1)
        # The words of a block have at most two cells.
        low, high = ((at * np.uint64(self._width)) >> np.uint64(24) for at in (first, last))
        tops: F32 = np.maximum(values[low], values[high])
        return tops

    def _prepare(self) -> None:
        y = np.arange(1 << LOW_BITS, dtype=np.uint64)
        low = reference.hash_words(self._tables, y)
        self._first_x = self._first >> LOW_BITS
        last = (self._first + self._count - 1) >> LOW_BITS
        x = np.arange(self._first_x, last + 1, dtype=np.uint64) << np.uint64(LOW_BITS)
        self._uppers = np.ascontiguousarray((reference.hash_words(self._tables, x) ^ low[:, :1]).T)
        keys = 1 << (32 - self._top + self._bits)
        mask = np.uint32((1 << self._bits) - 1)
        self._index = []
        for row in range(self._rows):
            key = (low[row] >> np.uint32(self._top)) << np.uint32(self._bits) | (low[row] & mask)
            places = np.argsort(key, kind="stable")
            starts = np.append(0, np.cumsum(np.bincount(key, minlength=keys)))
            words = np.zeros((self._rows, (1 << LOW_BITS) + _PAD), np.uint32)
            words[:, : 1 << LOW_BITS] = np.roll(low, -row, axis=0)[:, places]
            self._index.append(_Row(starts.astype(np.uint32), places.astype(np.uint32), words))

    def _meet(
        self, row: int, values: F32, keys: U32, tops: F32, need: int, least: float
    ) -> list[U64]:
        """Return the heavy ids that have one of the keys in a row, as one array for each thread.

        Some ids may be outside the range, since the search takes all y of every x.
        """
        found: list[U64] = []

        def one(part: slice) -> None:
            uppers, room = self._uppers[part], _ROOM
            while True:
                out = np.empty(room, np.uint64)
                number = native.meet(
                    self._level,
                    *self._index[row],
                    row,
                    self._top,
                    values,
                    keys,
                    tops,
                    need,
                    least,
                    self._first_x + part.start,
                    uppers,
                    out,
                )
                if number <= room:
                    break
                room = number
            found.append(out[:number].copy())

        size = -(-len(self._uppers) // num_threads())
        in_threads(one, blocks(len(self._uppers), size), num_threads())
        return found
