"""Rows that name their clients: gathered by client, then limited in items and rounds."""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import IO, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from fedtally import kernels
from fedtally.errors import InvalidInputError, opt
from fedtally.kernels.reference import GOLDEN
from fedtally.kernels.rows import BUCKETS, distinct_rows, spread
from fedtally.sketch.clip import bound_items_of_each, places_of, sort_order

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Made = TypeVar("Made")
# If all rows take at most this many bytes, they are one piece, which is faster than many buckets.
# A large bucket is cut into pieces of at least about this many bytes.
_FEW_BYTES = 2**20
_COPIES = 4  # copies of a bucket's rows in memory while `work` runs
_ONE = np.uint64(1)


class ClientRows:
    """Rows that name their clients, in buckets: all rows of a client are in one bucket.

    Beyond a limit of memory, rows are kept in files. Where the system allows it, the files have no
    name, so that nothing is left of them however this process ends. A method that cannot write
    these files raises an `InvalidInputError`.

    Args:
        memory: the most bytes of rows to hold before they go to files. `map_buckets` also needs
            about this memory, for the rows in work and their copies. It needs more in four cases:
            buckets differ much in size; the rows of one client take a large part of `memory`; all
            rows together take over 64 times `memory`; or `memory` is only a few MiB.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._held: list[list[U64]] = [[] for _ in range(BUCKETS)]
        self._bytes = self._bytes_of_all = 0
        self._files: list[IO[bytes]] = []

    def add(self, clients: U64, ids: U64 | None, rounds: U64 | None) -> None:
        """Add rows, each with its client, its item and its round.

        Args:
            clients: uint64 [n], the clients.
            ids: uint64 [n], the ids of the items; None if these rows have no item.
            rounds: uint64 [n], the rounds, below 2^63; None: all rows are in round 0.
        """
        columns = [clients, np.zeros_like(clients) if ids is None else ids]
        if ids is None or rounds is not None:
            own = np.zeros_like(clients) if rounds is None else rounds
            columns.append(own << _ONE | np.uint64(ids is None))
        self.add_spread(*spread(columns))

    def add_spread(self, rows: U64, bounds: I64) -> None:
        """Add rows that `kernels.rows.spread` has sorted by bucket.

        Args:
            rows: uint64 [2 or 3, n], the columns of `bound_clients`.
            bounds: int64 [buckets + 1], where the rows of each bucket begin and end.
        """
        for b in range(BUCKETS):
            if bounds[b] < bounds[b + 1]:
                self._held[b].append(rows[:, bounds[b] : bounds[b + 1]])
        self._bytes += rows.nbytes
        self._bytes_of_all += rows.nbytes
        if self._bytes > self._memory:
            self._spill()

    def map_buckets(self, work: Callable[[U64], Made]) -> Iterator[Made]:
        """Yield `work(rows)` for each bucket, in the order of the buckets, and drop the rows.

        The rows have the columns of `bound_clients`. Two kinds of rows do not come bucket by
        bucket. If all rows are in memory and take at most 1 MiB, `work` is called once with all of
        them. A bucket that does not fit into memory comes in several pieces, each with whole
        clients, in the order of the clients.

        Threads work on up to four buckets at a time, or on fewer if memory or cores are few. One
        more result waits for the caller. A second call finds no rows.
        """
        from concurrent.futures import Future, ThreadPoolExecutor

        if self._bytes <= _FEW_BYTES and not self._files:
            yield work(_joined([part for bucket in range(BUCKETS) for part in self._taken(bucket)]))
            return
        if self._files:
            self._spill()  # rows still in memory: the buckets in work need the room
            _return_memory()
        fitting = self._memory * BUCKETS // (_COPIES * self._bytes_of_all)
        threads = max(1, min(kernels.num_threads(), 4, fitting - 1))
        with ThreadPoolExecutor(threads) as pool:
            begun: deque[Future[Made]] = deque()
            for load in self._loads():
                begun.append(pool.submit(lambda own: work(own()), load))
                if len(begun) > threads:
                    yield begun.popleft().result()
            while begun:
                yield begun.popleft().result()
        self._files = []

    def _loads(self) -> Iterator[Callable[[], U64]]:
        """Yield functions that return the rows of each bucket, or of pieces of a large bucket."""
        size = self._bytes_of_all // BUCKETS
        for bucket in range(BUCKETS):
            # room for two buckets: one in work, and one whose result waits
            if 2 * _COPIES * size <= self._memory:
                yield partial(self._whole, bucket)
                continue
            parts = self._taken(bucket)
            whole = sum(part.nbytes for part in parts)
            room = max(_FEW_BYTES, (self._memory - whole) // (2 * _COPIES))
            for piece in _pieces(parts, -(-whole // room)):
                yield partial(np.asarray, piece)

    def _whole(self, bucket: int) -> U64:
        return _joined(self._taken(bucket))

    def _taken(self, bucket: int) -> list[U64]:
        """Return the rows of a bucket as a list of arrays, and drop them."""
        parts, self._held[bucket] = self._held[bucket], []
        if self._files:
            with self._files[bucket] as file:
                end = file.tell()
                file.seek(0)
                while file.tell() < end:
                    parts.append(np.load(file))
        return parts

    def _spill(self) -> None:
        try:
            self._files = self._files or [_unnamed_file() for _ in range(BUCKETS)]
            for b, parts in enumerate(self._held):
                np.save(self._files[b], _joined(parts))
                self._files[b].flush()
                self._held[b] = []
        except OSError as error:
            where = tempfile.gettempdir()
            raise InvalidInputError(
                f"cannot keep client rows in {where}: {error.strerror}; free space there, point"
                f" TMPDIR elsewhere, or raise the memory ({opt.memory})"
            ) from error
        self._bytes = 0


def _pieces(parts: list[U64], number: int) -> Iterator[U64]:
    """Yield the rows of a bucket in about `number` pieces of about equal size.

    Each piece has whole clients, and pieces come in the order of the clients.

    Args:
        parts: the rows as a list of arrays, each uint64 [columns, n]. The list is changed.
        number: the number of pieces, at least 1.
    """
    some = np.sort(np.concatenate([part[0, ::64] for part in parts]))
    # A client may have more rows than a piece. Several cuts are then equal, and are made one.
    cuts = np.unique(some[np.arange(1, number) * len(some) // number])
    bounds = []
    for place, part in enumerate(parts):
        piece = np.searchsorted(cuts, part[0], side="right").astype(np.uint16)
        parts[place] = part[:, np.argsort(piece, kind="stable")]
        bounds.append(np.append(0, np.cumsum(np.bincount(piece, minlength=len(cuts) + 1))))
    for first, last in pairwise(range(len(cuts) + 2)):
        yield _joined(
            [part[:, own[first] : own[last]] for part, own in zip(parts, bounds, strict=True)]
        )


def _return_memory() -> None:
    """Give freed memory back to the system. Arrow, and the C library of Linux, would keep it."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):  # glibc
        library.malloc_trim(0)


def _joined(parts: Sequence[U64]) -> U64:
    """Return arrays of rows as one array.

    If only some arrays have the last column, the rows of the others get 0 in this column.
    """
    columns = max(map(len, parts), default=2)
    whole = np.zeros((columns, sum(part.shape[1] for part in parts)), np.uint64)
    done = 0
    for part in parts:
        whole[: len(part), done : done + part.shape[1]] = part
        done += part.shape[1]
    return whole


def _unnamed_file() -> IO[bytes]:
    return tempfile.TemporaryFile(prefix="fedtally-")


class Bounded(NamedTuple):
    """Some clients, each with the items that it contributes.

    The clients are sorted by bucket (see `ClientRows`), and within a bucket by client.

    Attributes:
        ids: uint64, the ids that clients contribute, client by client.
        sizes: int64 [n], the number of ids that each client contributes.
        rounds: int64 [n], the round of each client.
        clients: uint64 [n], the clients. A client has an entry for each round that its rows name
            and that `max_rounds` has not left out.
        before: int64 [n], the number of distinct items that each client holds in its round, before
            `max_items` were drawn.
    """

    ids: U64
    sizes: I64
    rounds: I64
    clients: U64
    before: I64


def bound_clients(
    rows: U64,
    max_items: int,
    keys: U64,
    num_rounds: int | None,
    max_rounds: int | None,
    *,
    rounds_each: int = 1,
    per_rounds: int | None = None,
) -> Bounded:
    """Return the clients of some rows, with their rounds and items limited.

    First, `max_rounds` rounds of each client are drawn, if it has more rounds. Then, in each of
    these rounds, `max_items` of its distinct items are drawn, if it has more items. All draws are
    uniform, except with `per_rounds`: see `_in_rounds_in_a_row`.

    What is drawn for a client depends only on its own rows and the keys. It does not depend on the
    order of the input or on other clients. Privacy needs this: the items of one client must not
    change what another client contributes.

    Args:
        rows: uint64 [2 or 3, n], three columns: the row's client, the id of the row's item, and
            twice the number of the row's round, plus 1 if the row has no item. Without the third
            column, all rows have an item and are in round 0. A client whose rows name two rounds
            takes part twice.
        max_items: the most items that a client contributes in a round.
        keys: uint64 [3], uniform: the key for drawing items, the key for drawing a client's round,
            and the key for drawing some of the rounds that rows name.
        num_rounds: the number of rounds from which each client's round is drawn; None: rows name
            the rounds.
        max_rounds: the most rounds of a client, drawn uniformly from the rounds that its rows name;
            None: all of its rounds.
        rounds_each: the number of consecutive rounds that count as one round for `max_rounds`. With
            3, rounds 0 to 2 count as one round, rounds 3 to 5 as another.
        per_rounds: the number of rounds in a row of which `max_rounds` count, wherever they begin;
            None: all rounds. With it, `rounds_each` must be 1.
    """
    if not rows.shape[1]:
        nothing = np.empty(0, np.int64)
        return Bounded(nothing.view(np.uint64), nothing, nothing, nothing.view(np.uint64), nothing)
    rows = distinct_rows(rows)
    if max_rounds is not None and len(rows) > 2:
        groups = rows[2] >> _ONE
        groups //= np.uint64(rounds_each)
        rows = rows[:, _in_drawn_rounds(rows[0], groups, max_rounds, keys[2], per_rounds)]
    clients, ids = rows[:2]
    rounds = [rows[2] >> _ONE] if len(rows) > 2 else []
    first = np.flatnonzero(is_new(clients, *rounds))
    who = clients[first]
    named = rounds[0][first] if rounds else np.zeros_like(who)
    drawn = named.astype(np.int64) if num_rounds is None else _drawn(who, num_rounds, keys[1])
    before = np.diff(first, append=len(clients))
    if len(rows) > 2:
        has_item = rows[2] & _ONE == 0
        before, ids = np.add.reduceat(has_item, first, dtype=np.int64), ids[has_item]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(before)])

    def words(some: I64) -> U64:
        # Different ids of one client and round get different numbers: with an equal start, `_mixed`
        # maps different ids to different numbers.
        mixed = np.repeat(_mixed(keys[0], who[some], named[some]), before[some])
        own = ids if len(mixed) == len(ids) else ids[places_of(some, starts)]
        return _mixed(mixed, own)

    kept = bound_items_of_each(ids, starts, max_items, words)
    if kept.all():
        return Bounded(ids, before, drawn, who, before)
    sizes = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[starts])
    return Bounded(ids[kept], sizes, drawn, who, before)


def _drawn(clients: U64, num_rounds: int, key: np.uint64) -> I64:
    """Return a round for each client, drawn uniformly: int64 [n].

    Args:
        clients: uint64 [n], the clients.
        num_rounds: the number of rounds.
        key: the key of the draws.
    """
    if num_rounds == 1:
        return np.zeros(len(clients), np.int64)
    # 53 random bits, times num_rounds / 2^53: uniform up to the precision of a float
    return ((_mixed(key, clients) >> np.uint64(11)) * (num_rounds / 2**53)).astype(np.int64)


def is_new(*columns: U64) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows that differ from the row before in some column.

    The first row counts as different. The mask is bool [n], and each column is [n].

    >>> is_new(np.array([3, 3, 5, 5], np.uint64), np.array([1, 1, 1, 2], np.uint64)).tolist()
    [True, False, True, True]
    """
    found = np.zeros(len(columns[0]), np.bool_)
    found[:1] = True
    for column in columns:
        found[1:] |= column[1:] != column[:-1]
    return found


def hashed_clients(clients: U64) -> U64:
    """Return a 64-bit hash of each client, uint64 [n].

    The hashes are in the order of `clients`.
    """
    return _mixed(np.uint64(0), clients)


def _mixed(start: np.uint64 | U64, *columns: U64) -> U64:
    """Return 64 bits for every row, computed from a start and the row's columns.

    The bits look random if the start is random. Each column is added in turn, followed by the
    finalizer of SplitMix64 (Steele, Lea and Flood 2014, with Stafford's constants). This is no
    cryptographic function: it hides nothing.
    """
    mixed = np.zeros_like(columns[0])
    mixed += start
    for column in columns:
        mixed ^= column
        mixed += GOLDEN  # SplitMix64's increment
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _in_drawn_rounds(
    clients: U64, rounds: U64, max_rounds: int, key: np.uint64, per_rounds: int | None
) -> npt.NDArray[np.bool_]:
    """Draw rounds for each client, if it has too many; return a mask of the rows in them: bool [n].

    Args:
        clients: uint64 [n], the clients; the rows of a client are together, sorted by round.
        rounds: uint64 [n], the round of each row.
        max_rounds: the most rounds of a client. A client with no more rounds keeps all of them.
        key: the key of the draws.
        per_rounds: the number of rounds in a row that `max_rounds` is about; None: all rounds.
    """
    starts = np.flatnonzero(is_new(clients, rounds))
    length = len(clients)
    clients, rounds = clients[starts], rounds[starts]
    if per_rounds is None:
        # Each client's rounds are shuffled, and the first `max_rounds` of them are drawn.
        order = sort_order([clients, _mixed(key, clients, rounds)])
        sorted_clients = clients[order]
        first = np.searchsorted(sorted_clients, sorted_clients)
        kept = np.zeros(len(starts), np.bool_)
        kept[order] = np.arange(len(starts)) - first < max_rounds
    else:
        kept = _in_rounds_in_a_row(clients, rounds.astype(np.int64), max_rounds, per_rounds, key)
    chosen: npt.NDArray[np.bool_] = np.repeat(kept, np.diff(starts, append=length))
    return chosen


def _in_rounds_in_a_row(
    clients: U64, rounds: I64, most: int, in_a_row: int, key: np.uint64
) -> npt.NDArray[np.bool_]:
    """Choose rounds for each client, at most `most` of any `in_a_row`; return a mask: bool [n].

    One of the first `in_a_row` rounds is drawn for each client. From there on, the client takes
    part whenever the rule allows it. Then the same is done with earlier rounds, backwards. So a
    client that names all rounds does not always begin with the first one. A client whose rounds
    keep the rule keeps all of them.

    Args:
        clients: uint64 [n], the client of each round; the rounds of a client are together.
        rounds: int64 [n], the rounds; those of a client are distinct and rise.
        most: the most rounds of a client in any `in_a_row` rounds in a row.
        in_a_row: a number of rounds, at least `most`.
        key: the key of the draws.
    """
    first = np.flatnonzero(is_new(clients))
    ends = np.append(first[1:], len(clients))
    begins = (_mixed(key, clients[first]) % np.uint64(in_a_row)).astype(np.int64)
    is_before = rounds < np.repeat(begins, ends - first)
    middle = first + np.add.reduceat(is_before, first, dtype=np.int64)
    kept = np.zeros(len(clients), np.bool_)
    # The rounds that client i has taken so far, rising: taken[low[i] : high[i]].
    taken, low, high = np.zeros_like(rounds), middle.copy(), middle.copy()
    for step in range(int((ends - middle).max())):
        who = np.flatnonzero(middle + step < ends)
        place, last = middle[who] + step, high[who] - most
        is_free = last < low[who]
        fits = is_free | (rounds[place] - taken[np.where(is_free, 0, last)] >= in_a_row)
        who, place = who[fits], place[fits]
        kept[place], taken[high[who]] = True, rounds[place]
        high[who] += 1
    for step in range(int((middle - first).max())):
        who = np.flatnonzero(middle - step > first)
        place, last = middle[who] - step - 1, low[who] + most - 1
        is_free = last >= high[who]
        fits = is_free | (taken[np.where(is_free, 0, last)] - rounds[place] >= in_a_row)
        who, place = who[fits], place[fits]
        low[who] -= 1
        kept[place], taken[low[who]] = True, rounds[place]
    return kept
