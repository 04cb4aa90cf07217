"""A search for the ids with large values in many of their cells, without testing each id.

The method is called meet in the middle. An id has one cell (counter) in each row of a sketch. A
cell is heavy if its value is large. `Halves.find` says which ids are found.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.kernels.arguments import F32, MAX_ROWS, MAX_WIDTH, U32, U64, check_tables
from fedtally.kernels.backends import backend, blocks, in_threads, native, num_threads

LOW_BITS = 16  # the number of bits of y in an id x * 2^16 + y
# The number of bits by which a key is longer than it must be if the width is no power of two. A key
# has the upper bits of a hash word, which give the cell, and the bits of the signs. If the width is
# no power of two, the words with one key may belong to two cells. With a longer key this is rarer,
# and the search tests fewer ids that are not in a heavy cell.
_FINER = 2
_PAD = 16  # extra words at the end, because the kernel may read past the last id
_TILE = 16  # the kernel tests ids in groups of 16; a smaller group takes the time of 16
_ROOM = 1 << 16  # the most ids that one call of the kernel returns; if there are more, call again


class _Row(NamedTuple):
    """The numbers y below 2^16, grouped by their keys in one row (native/kernels.h, `Halves`).

    An id is x * 2^16 + y. A key is made of the upper bits of a hash word, which give the cell, and
    of the bits of the signs.

    Attributes:
        starts: where each key begins in `places`, uint32 [keys + 1].
        places: the numbers y, sorted by key, uint32 [2^16].
        words: the hash words of `places` in all rows, this row first, uint32 [rows, 2^16 + _PAD].
    """

    starts: U32
    places: U32
    words: U32


class Halves:
    """A range of ids, prepared for fast searches of the ids in heavy cells.

    Write an id as x * 2^16 + y. Its hash word is the XOR of a word of x and a word of y, and gives
    the id's cell and signs. For each x, a table lists the y for which the id is in a given cell. So
    the search reads only the ids in heavy cells: cells whose value is large (see `find`).

    Args:
        tables: the hash tables, uint32 [rows, 8, 256], with at least two rows.
        width: the number of cells in a row, 2 to 2^20.
        bits: the number of batches, 1 to 8; their signs are the lowest bits of a word.
        first_id: the first id of the range.
        count: the number of ids in the range, at least 1; the last id is below 2^64.

    Raises:
        InvalidInputError: `tables` has a wrong dtype or shape, or another argument is outside its
            bounds.

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
        """Estimate how many tests of an id in one row `find` would make with these arguments.

        The arguments are as in `find`. The time of `find` is about proportional to this number. Ids
        with equal cells and signs are tested in groups of 16. A smaller group takes the time of 16
        ids, and is counted as 16 ids.
        """
        if self._level == "numpy":
            return float(self._count * self._rows)
        buckets = 0
        for row in self._starting(need):
            buckets += int(np.count_nonzero(self._tops(values[row]) > least))
        each = 2.0 ** (LOW_BITS - (32 - self._top + self._bits))
        return buckets * self._count / (1 << LOW_BITS) * max(each + _TILE / 2, _TILE)

    def find(self, values: F32, need: int = 0, least: float = 0.0) -> U64:
        """Return the ids of the range whose values are large, ascending: uint64 [n].

        An id has a value in each row: the entry of `values` for its cell and its signs there. If
        `need` is above 0, an id is returned if its value exceeds `least` in at least `need` rows.
        If `need` is 0, it is returned if the sum of its values over the rows exceeds `least`. Sums
        are computed in single precision, so a sum very close to `least` may be on either side.

        Args:
            values: the value that an id has in each cell, for each pattern of signs (the signs of
                all batches, as the bits of one number): float32 [rows, width, 2^bits].
            need: the least number of rows in which the value must exceed `least`, 0 .. rows; 0: the
                sum of the values must exceed `least`.
            least: the value to exceed; at most 0 if `need` is 0.

        Raises:
            InvalidInputError: `values` has a wrong dtype or shape, `need` is not in 0 .. rows, or
                `least` is above 0 and `need` is 0.
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
        # Not `np.unique`, which takes several times as long.
        ids: U64 = np.sort(np.concatenate([np.empty(0, np.uint64), *found]))
        ids = ids[np.append(True, ids[1:] != ids[:-1])[: len(ids)]]
        inside: U64 = ids[(ids >= self._first) & (ids - np.uint64(self._first) < self._count)]
        return inside

    def _starting(self, need: int) -> range:
        """Return the rows in which the search begins.

        Each id to be found has a value above `least` in one or more of these rows. `least` and
        `need` are the arguments of `find`. If `need` is above 0, the first of an id's heavy rows
        has at least `need` - 1 rows after it. So the last `need` - 1 rows are left out. If `need`
        is 0, all rows are returned: if a sum of numbers is positive, some rotation of them has only
        positive partial sums (cycle lemma), and the search follows this rotation.
        """
        return range(self._rows - need + 1 if need else self._rows)

    def _tops(self, values: F32) -> F32:
        """Return for each key an upper bound on the values that ids with this key have in a row.

        Args:
            values: the values of the row, float32 [width, patterns of signs].

        Returns:
            float32 [blocks, patterns of signs]. A block is a range of hash words with the same
            upper bits. A block and a pattern make a key.
        """
        first = np.arange(1 << (32 - self._top), dtype=np.uint64) << np.uint64(self._top - 8)
        last = first + np.uint64((1 << (self._top - 8)) - 1)
        # the words of a block are in the cells `low` and `high`, which may be equal
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
        """Return the ids to be found that have one of `keys` in a row: an array for each thread.

        Ids outside the range may be among them, since the search takes all y for every x.

        Args:
            row: the number of the row in which the search begins.
            values: the argument of `find`.
            keys: the keys in this row whose bound exceeds `least`, ascending, uint32 [n].
            tops: the bound of each of these keys (`_tops`), float32 [n].
            need: the argument of `find`.
            least: the argument of `find`.
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
