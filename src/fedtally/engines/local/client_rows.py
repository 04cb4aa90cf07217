"""Rows of named clients: kept together by client, and bounded to so many items and rounds each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, TypeVar

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.errors import InvalidInputError
from fedtally.sketch.clip import bound_items_of_each, places_of, sort_order

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Made = TypeVar("Made")
_BUCKETS = 64  # one is in memory at a time when rows are read back: a 64th of them
_BUCKET_SHIFT = np.uint64(64 - 6)  # the upper 6 bits of a hash number one of 64 buckets
_ROW_BYTES = 4 * 8
# 2^64 over the golden ratio: multiplied by it, consecutive numbers spread over all buckets (Knuth's
# multiplicative hashing)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class ClientRows:
    """Rows (client, round, whether there is an item, its id), in buckets by client.

    Rows beyond a bound on memory go to files. The files have no name where the system allows that,
    so nothing of them is left, however this process ends.

    Args:
        memory: the bytes of rows that are held before they go to files.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._held: list[list[U64]] = [[] for _ in range(_BUCKETS)]
        self._bytes = 0
        self._files: list[IO[bytes]] = []

    def add(self, clients: U64, ids: U64 | None, rounds: U64) -> None:
        """Add rows of clients; `ids` is None where the rows have no item."""
        # a stable sort of bytes counts them, which is faster than comparing
        bucket = ((clients * _GOLDEN) >> _BUCKET_SHIFT).astype(np.uint8)
        order = np.argsort(bucket, kind="stable")
        held = np.full(len(clients), ids is not None, np.uint64)
        rows = np.column_stack(
            [clients, rounds, held, np.zeros_like(clients) if ids is None else ids]
        )[order]
        bounds = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=_BUCKETS))])
        for b in range(_BUCKETS):
            if bounds[b] < bounds[b + 1]:
                self._held[b].append(rows[bounds[b] : bounds[b + 1]])
        self._bytes += len(rows) * _ROW_BYTES
        if self._bytes > self._memory:
            self._spill()

    def map_buckets(self, work: Callable[[U64], Made]) -> Iterator[Made]:
        """Yield what `work` makes of each bucket's rows, uint64 [n, 4], in order of the buckets.

        The rows are dropped: a second call has none. Up to four buckets are worked on at a time.
        """
        from concurrent.futures import ThreadPoolExecutor

        threads = min(kernels.num_threads(), 4)
        with ThreadPoolExecutor(threads) as pool:
            for start in range(0, _BUCKETS, threads):
                some = range(start, min(start + threads, _BUCKETS))
                yield from pool.map(work, [self._taken(bucket) for bucket in some])
        self._files = []

    def _taken(self, bucket: int) -> U64:
        """Return the rows of a bucket, and drop them."""
        parts, self._held[bucket] = self._held[bucket], []
        if self._files:
            with self._files[bucket] as file:
                file.seek(0)
                parts = [np.frombuffer(file.read(), np.uint64).reshape(-1, 4), *parts]
        return np.concatenate(parts) if parts else np.empty((0, 4), np.uint64)

    def _spill(self) -> None:
        try:
            self._files = self._files or [_unnamed_file() for _ in range(_BUCKETS)]
            for b, parts in enumerate(self._held):
                for part in parts:
                    self._files[b].write(part.tobytes())
                self._files[b].flush()
                self._held[b] = []
        except OSError as error:
            where = tempfile.gettempdir()
            raise InvalidInputError(
                f"cannot keep client rows in {where}: {error.strerror}; free space there, point"
                " TMPDIR elsewhere, or raise the memory (--memory)"
            ) from error
        self._bytes = 0


def _unnamed_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="fedtally-")


def bound_clients(
    rows: U64,
    max_items: int,
    keys: U64,
    num_rounds: int | None,
    max_rounds: int | None,
    *,
    rounds_each: int = 1,
) -> tuple[U64, I64, I64, U64, I64]:
    """Bound every client of a bucket to `max_items` distinct items a round, drawn uniformly.

    A client's draw depends only on its own rows and the keys, and not on the order of the input or
    on other clients. Privacy rests on this: one client's items change nothing but its own part.

    Args:
        rows: uint64 [n, 4]: client, round, whether there is an item, its id. A client in two
            natural rounds takes part twice.
        max_items: the most items of a client in a round.
        keys: uint64 [3], uniform.
        num_rounds: the number of rounds to draw each client's round from; None: keep the rounds
            that the rows name.
        max_rounds: the most rounds of a client, drawn uniformly from those that its rows name;
            None: all of them.
        rounds_each: so many consecutive rounds, from 0 on, count as one for `max_rounds`.

    Returns:
        The contributed ids, client by client; the number of them for each client; each client's
        round; the client itself; and its number of items in that round before the draw.
    """
    if not len(rows):
        nothing = np.empty(0, np.int64)
        return np.empty(0, np.uint64), nothing, nothing, np.empty(0, np.uint64), nothing
    columns = np.ascontiguousarray(rows.T)  # each column by itself, for speed
    columns = columns.take(sort_order(list(columns)), axis=1)
    columns = columns[:, _is_new(columns)]  # equal rows are one: a client's items are a set
    if max_rounds is not None:
        groups = columns[:2] // np.array([[1], [rounds_each]], np.uint64)
        columns = columns[:, _in_drawn_rounds(groups, max_rounds, keys[2])]
    first = np.flatnonzero(_is_new(columns[:2]))
    who, named = columns[:2, first]
    if num_rounds is None:
        drawn = named.astype(np.int64)
    else:
        # 53 random bits times num_rounds / 2^53: uniform as far as a float is exact
        drawn = ((_mixed(keys[1], who) >> np.uint64(11)) * (num_rounds / 2**53)).astype(np.int64)
    has_item = columns[2] > 0
    before = np.add.reduceat(has_item, first, dtype=np.int64)
    owners, rounds, _, ids = columns[:, has_item]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(before)])

    def words(clients: I64) -> U64:
        own = places_of(clients, starts)
        # for one client and round this is one to one in the id, so no two items have equal words
        return _mixed(keys[0], owners[own], rounds[own], ids[own])

    kept = bound_items_of_each(ids, starts, max_items, words)
    sizes = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[starts])
    return ids[kept], sizes, drawn, who, before


def _is_new(columns: U64) -> npt.NDArray[np.bool_]:
    """Return which rows differ from the row before them in one of the columns, uint64 [k, n]."""
    is_new = np.zeros(columns.shape[1], np.bool_)
    is_new[0] = True
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    return is_new


def _mixed(key: np.uint64, *columns: U64) -> U64:
    """Return 64 bits of every row that look random if the key is.

    After each column comes the finalizer of SplitMix64 (Steele, Lea and Flood 2014, with Stafford's
    constants). It spreads values and does not hide them: it is no cryptographic function.
    """
    mixed = np.full(len(columns[0]), key)
    for column in columns:
        mixed ^= column
        mixed += _GOLDEN  # the increment of SplitMix64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _in_drawn_rounds(columns: U64, max_rounds: int, key: np.uint64) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows in the rounds that are drawn for their client.

    The columns, uint64 [2, n], are client and round, and the rows are sorted by them.
    """
    starts = np.flatnonzero(_is_new(columns))
    clients, rounds = columns[:, starts]
    # Clients stay together, their rounds are shuffled.
    order = sort_order([clients, _mixed(key, clients, rounds)])
    first = np.searchsorted(clients, clients)
    kept = np.zeros(len(starts), np.bool_)
    kept[order] = np.arange(len(starts)) - first < max_rounds
    chosen: npt.NDArray[np.bool_] = np.repeat(kept, np.diff([*starts, columns.shape[1]]))
    return chosen
