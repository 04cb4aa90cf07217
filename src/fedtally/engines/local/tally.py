"""From batches of rows to each round's histogram of item ids, in memory bounded by the distinct items (and by a spill
to disk for clients).

A sketch is linear, so the sum of a round's client sketches depends on how many clients contribute
each item and on nothing else. The local engine therefore counts first and encodes the counts: the
sums are exactly those of encoding client by client.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.domain import Domain, IntegerSet, Strings, fingerprint_key, fingerprints
from fedtally.domain.columns import as_integers, as_text, text_chunks
from fedtally.errors import InvalidInputError
from fedtally.plan import MAX_CLIENTS
from fedtally.sketch.clip import bound_items_of_each, places_of
from fedtally.sources import Batch

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
MAX_NATURAL_ROUNDS = 1 << 16
_BUCKETS = 64
_ROW_BYTES = 4 * 8


class Members(NamedTuple):
    """The clients of a round, one by one: client i holds ids[starts[i] : starts[i + 1]].

    >>> members = Members(np.array([3, 5, 7], np.uint64), np.array([0, 1, 3]))
    >>> members.num_clients, members.of(1).tolist()
    (2, [5, 7])
    >>> members.tally(np.array([1, 1])).counts.tolist()
    [2, 2]
    """

    ids: U64
    starts: I64

    @property
    def num_clients(self) -> int:
        """How many clients there are."""
        return len(self.starts) - 1

    def of(self, client: int) -> U64:
        """Return a client's ids."""
        return self.ids[self.starts[client] : self.starts[client + 1]]

    def tally(self, clients: I64) -> RoundTally:
        """Return the tally of some of the clients."""
        parts = [self.of(client) for client in clients.tolist()]
        ids, counts = np.unique(
            np.concatenate(parts) if parts else self.ids[:0], return_counts=True
        )
        return RoundTally(len(clients), ids, counts.astype(np.int64, copy=False))


class RoundTally(NamedTuple):
    """One round: its number of clients and how many of them contribute each id (sorted, distinct).

    `members` are these clients one by one, where they were asked for; `names`, uint64
    [num_clients], tell the clients apart in the same order, where one may be in several rounds.
    """

    num_clients: int
    ids: U64
    counts: I64
    members: Members | None = None
    names: U64 | None = None

    def of(self, clients: I64) -> RoundTally:
        """Return the tally of some of the members."""
        assert self.members is not None
        return self.members.tally(clients)._replace(
            names=None if self.names is None else self.names[clients]
        )


class Drawn(NamedTuple):
    """What the bound on a client's items drew away: (client, item) pairs, in each round of the client.

    Attributes:
        clients: how many there are; one counts in each of its natural rounds.
        several: how many of them hold more than one item.
        pairs: distinct pairs before the draw.
        kept: pairs that are counted.
        most: the most items of one client, the bound that keeps all.
    """

    clients: int
    several: int
    pairs: int
    kept: int
    most: int


def attendance(rounds: Sequence[RoundTally]) -> list[int] | None:
    """Return how many clients are in exactly k of the rounds, at place k - 1; None where nobody can be in two.

    >>> parts = [np.array([7, 8], np.uint64), np.array([8, 9], np.uint64)]
    >>> attendance([RoundTally(2, part, np.array([1, 1]), names=part) for part in parts])
    [2, 1]
    """
    names = [part.names for part in rounds if part.names is not None]
    if not names:
        return None
    in_rounds = np.unique(np.concatenate(names), return_counts=True)[1]
    return np.bincount(in_rounds)[1:].tolist() if len(in_rounds) else None


def tally_members(members: Members) -> RoundTally:
    """Return the tally of all members of a round.

    >>> tally_members(Members(np.array([5, 3, 5], np.uint64), np.array([0, 2, 2, 3]))).counts.tolist()
    [1, 2]
    """
    ids, counts = np.unique(members.ids, return_counts=True)
    return RoundTally(members.num_clients, ids, counts.astype(np.int64, copy=False), members)


class Histogram:
    """Counts by id; added piece by piece, merged whenever as much is pending as is known.

    >>> histogram = Histogram()
    >>> histogram.add(np.array([7, 3, 7], np.uint64), np.array([1, 1, 5]))
    >>> [part.tolist() for part in histogram.finish()]
    [[3, 7], [1, 6]]
    """

    def __init__(self) -> None:
        self._ids, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._pending: list[tuple[U64, I64]] = []
        self._waiting = 0

    def add(self, ids: U64, counts: I64 | None) -> None:
        """Add `counts` (one each if None) of ids that may repeat."""
        self._pending.append((ids, np.ones(len(ids), np.int64) if counts is None else counts))
        self._waiting += len(ids)
        if self._waiting > len(self._ids) + (1 << 20):
            self._merge()

    def finish(self) -> tuple[U64, I64]:
        """Return the distinct ids, sorted, and their counts, none of them zero."""
        self._merge()
        held = self._counts > 0
        return self._ids[held], self._counts[held]

    def _merge(self) -> None:
        ids = np.concatenate([self._ids, *(ids for ids, _ in self._pending)])
        counts = np.concatenate([self._counts, *(counts for _, counts in self._pending)])
        self._pending, self._waiting = [], 0
        if not len(ids):
            return
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        first = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
        self._ids, self._counts = ids[first], np.add.reduceat(counts[order], first)


class Declared:
    """Encode by a declared domain; items outside it are an error, or dropped; or whatever cannot be read is outside."""

    def __init__(self, domain: Domain, outside: str, unreadable: bool = False) -> None:
        self._domain = domain
        self._drop = outside == "drop"
        self._inside = domain.inside if unreadable else domain.contains

    def encode(self, items: Any) -> tuple[U64, npt.NDArray[np.bool_] | None]:
        """Return the ids and which rows they come from (None: all)."""
        if not self._drop:
            return self._domain.encode(items), None
        inside = self._inside(items)
        if inside.all():
            return self._domain.encode(items), None
        return self._domain.encode(items.filter(inside)), inside

    def domain(self) -> Domain:
        """Return the domain."""
        return self._domain


class FromInput:
    """Encode what the input itself holds and remember its distinct items: integers by value, text by fingerprint."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._integers: bool | None = None
        self._known = np.empty(0, np.uint64)
        self._pending: list[U64] = []
        self._text: list[Any] = []
        self._text_ids: list[U64] = []

    def encode(self, items: Any) -> tuple[U64, None]:
        """Return the ids of all rows."""
        integers = _is_integer(items)
        if self._integers not in (None, integers):
            raise InvalidInputError(
                "some batches of the input hold integers and some text; give the items one type, or"
                " declare a --domain"
            )
        self._integers = integers
        if integers:
            values, fits = as_integers(items)
            if not fits.all():
                raise InvalidInputError(
                    "an item is an integer beyond 64 bits with sign; write such items as text"
                )
            ids = values.view(np.uint64)
            self._remember(np.unique(ids), None)
            return ids, None
        parts = [self._encode_text(chunk) for chunk in text_chunks(items)]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64), None

    def domain(self) -> Domain:
        """Return the distinct items met so far as a domain that is not public, in order of id."""
        if self._integers:
            return IntegerSet(self._merged().view(np.int64))
        import pyarrow as pa

        ids = np.concatenate(self._text_ids)
        _, first = np.unique(ids, return_index=True)
        return Strings(pa.concat_arrays(self._text).take(pa.array(first)), self._seed)

    def _encode_text(self, chunk: Any) -> U64:
        encoded = chunk.dictionary_encode()
        distinct = as_text(encoded.dictionary)
        ids = fingerprints(distinct, fingerprint_key(self._seed))
        self._remember(ids, distinct)
        rows: U64 = ids[encoded.indices.to_numpy()]
        return rows

    def _remember(self, ids: U64, text: Any) -> None:
        new = np.ones(len(ids), np.bool_)
        if len(self._known):
            where = np.minimum(np.searchsorted(self._known, ids), len(self._known) - 1)
            new = self._known[where] != ids
        if not new.any():
            return
        self._pending.append(ids[new])
        if text is not None:
            self._text.append(text.filter(new))
            self._text_ids.append(ids[new])
        if sum(map(len, self._pending)) > len(self._known) + (1 << 16):
            self._merged()

    def _merged(self) -> U64:
        self._known = np.unique(np.concatenate([self._known, *self._pending]))
        self._pending = []
        return self._known


class Tally:
    """Count a source's batches into rounds.

    Args:
        encoder: items -> ids.
        num_rounds: rounds to split the clients over, each client's drawn uniformly; None where the
            rows name their rounds.
        max_items: the most items that one client contributes, drawn uniformly from its distinct
            items.
        rng: for the draws.
        memory: bytes of client rows held before they go to temporary files.
        keep_itemless: let clients whose items are missing, or outside the domain, take part with
            nothing.
        max_rounds: the most rounds that one client takes part in, drawn uniformly from those that
            its rows name; None: all of them.
    """

    def __init__(
        self,
        encoder: Declared | FromInput,
        num_rounds: int | None,
        max_items: int,
        rng: np.random.Generator,
        memory: int,
        *,
        keep_itemless: bool = False,
        max_rounds: int | None = None,
    ) -> None:
        self._encoder = encoder
        self._num_rounds = num_rounds
        self._max_items = max_items
        self._rng = rng
        self._keep_itemless = keep_itemless
        self._max_rounds = max_rounds
        self._client_key = rng.spawn(1)[0].integers(0, 2**64, 4, np.uint64).tobytes()
        self._labels: dict[Any, int] = {}
        self._histograms: dict[int, Histogram] = {}
        self._itemless: Counter[int] = Counter()  # clients by round
        self._pairs = _ClientRows(memory)
        self._by_client = False
        self.has_counts = False
        self.others: tuple[str, ...] = ()
        self.drawn: Drawn | None = None
        self.missing = self.outside = 0
        self._most_clients = 0.0  # a bound: a client of several rows counts once for each

    @property
    def is_bounded_by_client(self) -> bool:
        """Whether rows name their clients, so that one may be in several natural rounds."""
        return self._by_client

    @property
    def is_natural(self) -> bool:
        """Whether the rows name their rounds."""
        return self._num_rounds is None

    def add(self, batch: Batch) -> None:
        """Count one batch.

        Raises:
            InvalidInputError: counts of more clients than a campaign may have: their sums could
                overflow.
        """
        counts = batch.counts
        self.has_counts, self.others = counts is not None, batch.others
        self._count_clients(
            len(batch.items) if counts is None else float(counts.sum(dtype=np.float64))
        )
        ids, inside = self._encoder.encode(batch.items)
        clients, rounds = batch.clients, batch.rounds
        if inside is not None:
            if self._keep_itemless:
                lost = [
                    None if part is None else part.filter(~inside) for part in (clients, rounds)
                ]
                whole = np.ones(len(inside), np.int64) if counts is None else counts
                self._add_itemless(lost[0], lost[1], whole[~inside])
            self.outside += int(np.sum(~inside) if counts is None else counts[~inside].sum())
            clients, rounds = (
                None if part is None else part.filter(inside) for part in (clients, rounds)
            )
            counts = None if counts is None else counts[inside]
        self.missing += batch.missing
        if batch.itemless is not None and self._keep_itemless:
            bare = batch.itemless
            held = np.ones(bare.number, np.int64) if bare.counts is None else bare.counts()
            self._count_clients(float(held.sum(dtype=np.float64)))
            self._add_itemless(bare.clients, bare.rounds, held)
        labels = None if rounds is None else self._round_numbers(rounds)
        if clients is not None:
            self._by_client = True
            self._pairs.add(
                _client_keys(clients, self._client_key),
                ids,
                np.zeros(len(ids), np.uint64) if labels is None else labels,
            )
        elif labels is None:
            self._histograms.setdefault(0, Histogram()).add(ids, counts)
        else:
            for number in np.unique(labels).tolist():
                mine = labels == number
                self._histograms.setdefault(number, Histogram()).add(
                    ids[mine], None if counts is None else counts[mine]
                )

    def _count_clients(self, number: float) -> None:
        self._most_clients += number
        if self._most_clients > MAX_CLIENTS:
            raise InvalidInputError(
                f"the input has more than {MAX_CLIENTS:,} clients; split it, or scale the counts"
                " down"
            )

    def _add_itemless(self, clients: Any, rounds: Any, counts: I64) -> None:
        """Count clients who hold nothing, or further rows of clients who may hold something."""
        labels = np.zeros(len(counts), np.uint64) if rounds is None else self._round_numbers(rounds)
        if clients is not None:
            self._by_client = True
            self._pairs.add(_client_keys(clients, self._client_key), None, labels)
            return
        for number in np.unique(labels).tolist():
            self._itemless[number] += int(counts[labels == number].sum())

    def finish(self, individuals: bool = False) -> list[RoundTally]:
        """Return the rounds, in the order of their labels where the rows name them.

        Args:
            individuals: also return the members of each round.

        Raises:
            InvalidInputError: more rounds than clients.
        """
        natural = _in_order(self._labels)
        num_rounds = len(natural) if self._num_rounds is None else self._num_rounds
        if (
            self._num_rounds is not None
            and num_rounds > self._most_clients > 0
            and not self._keep_itemless
        ):
            clients = f"{self._most_clients:,.0f} client" + "s" * (self._most_clients > 1)
            raise InvalidInputError(
                f"num_rounds must be at most the number of clients, {clients}, got {num_rounds:,}"
            )
        if self._by_client:
            places = np.zeros(max(1, len(natural)), np.uint64)
            places[[self._labels[label] for label in natural]] = np.arange(len(natural))
            return self._from_clients(num_rounds, places, individuals)
        if self._num_rounds is None:
            rounds = [self._counted(self._labels[label]) for label in natural]
        else:
            rounds = split(self._counted(0), num_rounds, self._rng)
        return (
            [part._replace(members=_one_each(part)) for part in rounds] if individuals else rounds
        )

    def _counted(self, number: int) -> RoundTally:
        return _units(
            *self._histograms.setdefault(number, Histogram()).finish(), self._itemless[number]
        )

    def _from_clients(self, num_rounds: int, places: U64, individuals: bool) -> list[RoundTally]:
        """Return the rounds of bounded clients; `places` says where each round, numbered as met, comes in order."""
        histograms, clients = (
            [Histogram() for _ in range(num_rounds)],
            np.zeros(num_rounds, np.int64),
        )
        held: list[list[tuple[U64, I64]]] = [[] for _ in range(num_rounds)]
        names: list[list[U64]] = [[] for _ in range(num_rounds)]
        drawn = Drawn(0, 0, 0, 0, 0)
        keys = self._rng.integers(0, 2**64, 3, np.uint64)
        for rows in self._pairs.buckets():
            rows[:, 1] = places[rows[:, 1].astype(np.intp)]
            ids, sizes, participants, who, before = _bound_clients(
                rows, self._max_items, keys, self._num_rounds, self._max_rounds
            )
            drawn = Drawn(
                drawn.clients + len(who),
                drawn.several + int((before > 1).sum()),
                drawn.pairs + int(before.sum()),
                drawn.kept + len(ids),
                max(drawn.most, int(before.max(initial=0))),
            )
            clients += np.bincount(participants, minlength=num_rounds)
            rounds = np.repeat(participants, sizes)
            for number in np.unique(participants).tolist():
                mine = ids[rounds == number]
                histograms[number].add(mine, None)
                if individuals:
                    held[number].append((mine, sizes[participants == number]))
                if self.is_natural:
                    names[number].append(who[participants == number])
        self.drawn = drawn
        tallies = [
            RoundTally(int(n), *histogram.finish())
            for n, histogram in zip(clients, histograms, strict=True)
        ]
        if self.is_natural:
            own = [np.concatenate([np.empty(0, np.uint64), *parts]) for parts in names]
            tallies = [tally._replace(names=mine) for tally, mine in zip(tallies, own, strict=True)]
        if not individuals:
            return tallies
        return [
            tally._replace(members=_joined(parts))
            for tally, parts in zip(tallies, held, strict=True)
        ]

    def _round_numbers(self, rounds: Any) -> U64:
        encoded = rounds.dictionary_encode()
        numbers = [
            self._labels.setdefault(label, len(self._labels))
            for label in encoded.dictionary.to_pylist()
        ]
        if len(self._labels) > MAX_NATURAL_ROUNDS:
            raise InvalidInputError(
                f"the round column has more than {MAX_NATURAL_ROUNDS:,} distinct values; is it a"
                " round?"
            )
        labels: U64 = np.array(numbers, np.uint64)[encoded.indices.to_numpy()]
        return labels


def _in_order(labels: Iterable[Any]) -> list[Any]:
    """Return the labels of rounds in order: by number where all are numbers, also as text, else by text.

    >>> _in_order(["10", "9", "1"]), _in_order(["b", "10", "a"])
    (['1', '9', '10'], ['10', 'a', 'b'])
    """
    listed = list(labels)
    if all(isinstance(label, int) or re.fullmatch(r"[+-]?[0-9]{1,18}", label) for label in listed):
        return sorted(listed, key=lambda label: (int(label), str(label)))
    return sorted(listed, key=str)


def split(everybody: RoundTally, num_rounds: int, rng: np.random.Generator) -> list[RoundTally]:
    """Return the rounds of clients of one item each, or of none, every client drawing its round uniformly.

    >>> everybody = RoundTally(9, np.array([3, 5], np.uint64), np.array([4, 5]))
    >>> sum(part.num_clients for part in split(everybody, 3, np.random.default_rng(0)))
    9
    """
    remaining, rounds = (
        np.append(everybody.counts, everybody.num_clients - everybody.counts.sum()),
        [],
    )
    for left in range(num_rounds, 0, -1):
        drawn = remaining if left == 1 else rng.binomial(remaining, 1.0 / left)
        remaining = remaining - drawn
        held, itemless = drawn[:-1], int(drawn[-1])
        rounds.append(_units(everybody.ids[held > 0], held[held > 0], itemless))
    return rounds


def _one_each(tally: RoundTally) -> Members:
    """Return the members of a round of clients that hold one item each, or none."""
    ids = np.repeat(tally.ids, tally.counts)
    return Members(ids, np.minimum(np.arange(tally.num_clients + 1), len(ids)))


def _joined(parts: list[tuple[U64, I64]]) -> Members:
    """Return the members of a round from (ids, how many of them each client holds) of its parts."""
    ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in parts)])
    sizes = np.concatenate([np.zeros(1, np.int64), *(sizes for _, sizes in parts)])
    return Members(ids, np.cumsum(sizes))


def _units(ids: U64, counts: I64, itemless: int) -> RoundTally:
    """Return the tally of clients that hold one item each, and of some that hold none."""
    return RoundTally(int(counts.sum()) + itemless, ids, counts)


def _bound_clients(
    rows: U64, max_items: int, keys: U64, num_rounds: int | None, max_rounds: int | None
) -> tuple[U64, I64, I64, U64, I64]:
    """Bound every client of a bucket to `max_items` distinct items a round, drawn uniformly.

    What is drawn for a client depends on its own rows and the keys alone, not on the order of the
    input, nor on others: one client's items change nothing but its own part, which is what privacy
    rests on.

    Args:
        rows: uint64 [n, 4]: client, round, whether there is an item, its id. A client in two
            natural rounds takes part twice.
        max_items: the bound.
        keys: uint64 [3], uniform.
        num_rounds: draw each client's round from so many, or None to keep the rows' own.
        max_rounds: of the rows' own rounds keep at most so many of each client, drawn uniformly.

    Returns:
        The ids that are contributed, client by client; how many are each client's; the round of
        each client; the client itself; and how many items it has in that round before the draw.
    """
    if not len(rows):
        nothing = np.empty(0, np.int64)
        return np.empty(0, np.uint64), nothing, nothing, np.empty(0, np.uint64), nothing
    rows = rows[np.lexsort((rows[:, 3], rows[:, 2], rows[:, 1], rows[:, 0]))]
    rows = rows[np.concatenate([[True], np.any(rows[1:] != rows[:-1], axis=1)])]
    if max_rounds is not None:
        rows = rows[_in_drawn_rounds(rows, max_rounds, keys[2])]
    first = np.flatnonzero(np.concatenate([[True], np.any(rows[1:, :2] != rows[:-1, :2], axis=1)]))
    who = rows[first, 0]
    if num_rounds is None:
        drawn = rows[first, 1].astype(np.int64)
    else:
        drawn = ((_mixed(keys[1], who) >> np.uint64(11)) * (num_rounds / 2**53)).astype(np.int64)
    has_item = rows[:, 2] > 0
    before = np.add.reduceat(has_item, first, dtype=np.int64)
    items, starts = rows[has_item], np.concatenate([np.zeros(1, np.int64), np.cumsum(before)])

    def words(clients: I64) -> U64:
        own = items[places_of(clients, starts)]
        # one to one in the id: a client's words differ
        return _mixed(keys[0], own[:, 0], own[:, 1], own[:, 3])

    kept = bound_items_of_each(items[:, 3], starts, max_items, words)
    sizes = np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])[starts])
    return items[kept, 3], sizes, drawn, who, before


def _mixed(key: np.uint64, *columns: U64) -> U64:
    """Return 64 bits of every row that look random, given a random key: the finalizer of SplitMix64 after each column.

    Steele, Lea and Flood 2014, with Stafford's constants. Not a cryptographic function: it spreads,
    it does not hide.
    """
    mixed = np.full(len(columns[0]), key)
    for column in columns:
        mixed ^= column
        mixed += np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed ^= mixed >> np.uint64(shift)
            mixed *= np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    return mixed


def _in_drawn_rounds(rows: U64, max_rounds: int, key: np.uint64) -> npt.NDArray[np.bool_]:
    """Return which rows, sorted by client and round, are in one of the rounds that are drawn for their client."""
    starts = np.flatnonzero(np.concatenate([[True], np.any(rows[1:, :2] != rows[:-1, :2], axis=1)]))
    clients = rows[starts, 0]
    # Clients stay together, their rounds are shuffled.
    order = np.lexsort((_mixed(key, clients, rows[starts, 1]), clients))
    first = np.searchsorted(clients, clients)
    kept = np.zeros(len(starts), np.bool_)
    kept[order] = np.arange(len(starts)) - first < max_rounds
    chosen: npt.NDArray[np.bool_] = np.repeat(kept, np.diff([*starts, len(rows)]))
    return chosen


class _ClientRows:
    """Rows (client, round, whether there is an item, its id) in buckets by client, in memory and then in files.

    The files, for what exceeds a bound on memory, have no name where the system allows it: whatever
    ends this process, nothing of them is left.
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._held: list[list[U64]] = [[] for _ in range(_BUCKETS)]
        self._bytes = 0
        self._files: list[IO[bytes]] = []

    def add(self, clients: U64, ids: U64 | None, rounds: U64) -> None:
        """Add rows; None for ids: rows without an item."""
        bucket = (clients * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(
            58
        )  # the golden ratio spreads consecutive numbers
        order = np.argsort(bucket, kind="stable")
        held = np.full(len(clients), ids is not None, np.uint64)
        rows = np.column_stack(
            [clients, rounds, held, np.zeros_like(clients) if ids is None else ids]
        )[order]
        bounds = np.searchsorted(bucket[order], np.arange(_BUCKETS + 1, dtype=np.uint64))
        for b in range(_BUCKETS):
            if bounds[b] < bounds[b + 1]:
                self._held[b].append(rows[bounds[b] : bounds[b + 1]])
        self._bytes += len(rows) * _ROW_BYTES
        if self._bytes > self._memory:
            self._spill()

    def buckets(self) -> Iterator[U64]:
        """Yield every bucket's rows, uint64 [n, 4], and forget them."""
        for b in range(_BUCKETS):
            parts = self._held[b]
            self._held[b] = []
            if self._files:
                with self._files[b] as file:
                    file.seek(0)
                    parts = [np.frombuffer(file.read(), np.uint64).reshape(-1, 4), *parts]
            yield np.concatenate(parts) if parts else np.empty((0, 4), np.uint64)
        self._files = []

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


def _is_integer(items: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(items.type))


def _client_keys(clients: Any, key: bytes) -> U64:
    """Return 64 bits for each client: integers themselves, text by fingerprint under a key that nobody could know."""
    if _is_integer(clients):
        keys: U64 = (
            clients.to_numpy(zero_copy_only=False).astype(np.int64, copy=False).view(np.uint64)
        )
        return keys
    return fingerprints(clients, fingerprint_key(key))
