"""Batches of rows, counted into a histogram of item ids for each round.

A sketch is linear, so the sum of a round's client sketches depends only on how many clients
contribute each item. A simulation therefore counts first and encodes the counts: the sums are
exactly those of encoding client by client. Memory grows with the distinct items, not with the rows;
rows of named clients beyond a bound go to disk.

Where rows name silos, a client is a person of a silo. The people of a silo are counted together,
and a silo is in a round as a whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set, Sized
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.domain.columns import as_text, is_grouped
from fedtally.errors import InvalidInputError, OutsideDomainError, arg
from fedtally.kernels.rows import group, spread
from fedtally.plan import MAX_CLIENTS
from fedtally.simulation.client_rows import ClientRows, bound_clients, hashed_clients, is_new
from fedtally.simulation.item_ids import Encoded, Encoder, client_keys, is_integer
from fedtally.sources import Batch, Columns

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
# A column with more values is hardly one of rounds. Each value costs a histogram and a sketch.
MAX_NATURAL_ROUNDS = 1 << 16
MAX_SILOS = 1 << 12  # as well, of silos
# A row keeps the numbers of its round and of its silo in one integer.
_SILO_BITS = np.uint64(32)
MOST_SAMPLED = 1 << 16  # clients of a part that are kept to see whether another has them too


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
        """The number of clients."""
        return len(self.starts) - 1

    def of(self, client: int) -> U64:
        """Return a client's ids."""
        return self.ids[self.starts[client] : self.starts[client + 1]]

    def some(self, clients: I64) -> Members:
        """Return some of the clients; one may be there several times.

        >>> members = Members(np.array([3, 5, 7], np.uint64), np.array([0, 1, 3]))
        >>> members.some(np.array([1, 1, 0])).ids.tolist()
        [5, 7, 5, 7, 3]
        """
        sizes = np.diff(self.starts)[clients]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[clients] - starts[:-1], sizes)
        return Members(self.ids[places], starts)

    def tally(self, clients: I64) -> RoundTally:
        """Return the tally of some of the clients."""
        parts = [self.of(client) for client in clients.tolist()]
        ids, counts = np.unique(
            np.concatenate(parts) if parts else self.ids[:0], return_counts=True
        )
        return RoundTally(len(clients), ids, counts.astype(np.int64, copy=False))


class RoundTally(NamedTuple):
    """The counts of one round.

    Attributes:
        num_clients: the number of clients, with those that hold nothing.
        ids: the ids that somebody contributes, sorted and distinct.
        counts: the number of clients that contribute each id.
        members: the clients one by one, where they were asked for.
        names: a number for each client, in the order of `members`, uint64 [num_clients]. It tells
            clients apart where one may be in several rounds.
        silos: the tallies of the silos that are in the round, whose people are the clients; empty
            where clients are no silos.
        silo: the number of the silo, the same in all rounds, where this is the tally of one.
    """

    num_clients: int
    ids: U64
    counts: I64
    members: Members | None = None
    names: U64 | None = None
    silos: tuple[RoundTally, ...] = ()
    silo: int = 0

    @property
    def num_vectors(self) -> int:
        """The number of vectors that are summed: of the silos, or of the clients."""
        return len(self.silos) or self.num_clients

    def of(self, clients: I64) -> RoundTally:
        """Return the tally of some of the members, or of some of the silos."""
        if self.silos:
            return tally_silos([self.silos[place] for place in clients.tolist()])
        assert self.members is not None
        return self.members.tally(clients)._replace(
            names=None if self.names is None else self.names[clients]
        )


class Drawn(NamedTuple):
    """The effect of the bound on a client's items, in pairs of a client and an item of it.

    Attributes:
        clients: the number of clients; one counts in each of its natural rounds.
        several: the number of them that hold more than one item.
        pairs: the number of distinct pairs before the draw.
        kept: the number of pairs that are counted.
        most: the most items of one client: with that bound all pairs would count.
    """

    clients: int
    several: int
    pairs: int
    kept: int
    most: int

    @classmethod
    def sum(cls, parts: Sequence[Drawn]) -> Drawn:
        """Return the effect on the clients of all parts, of which no two have the same."""
        clients, several, pairs, kept, most = zip(*parts, strict=True)
        return cls(sum(clients), sum(several), sum(pairs), sum(kept), max(most))


class Part(NamedTuple):
    """What was counted of a part of the rows: numbers that add up over the parts.

    Attributes:
        labels: the natural rounds, in order; empty where the rows name none.
        rounds: the tally of each of them; else those of the rounds that were drawn for named
            clients; else one, of all clients.
        by_client: whether the rows name their clients. Then `rounds` are bounded, and final.
        has_counts: whether the rows stand for several clients.
        rows: the rows that were read, with those that lack something.
        missing: the rows that lack an item, a client or a round.
        outside: the clients whose items are outside the domain.
        most_clients: an upper bound on the number of clients.
        drawn: as in `Tally`.
        sample: hashes of named clients, uint64: the least of all, at most 2^16. The same client has
            the same hash in all parts.
        has_integer_clients: whether clients are named by integers, or by text; None: by neither.
    """

    labels: tuple[str | int, ...]
    rounds: tuple[RoundTally, ...]
    by_client: bool
    has_counts: bool
    rows: int
    missing: int
    outside: int
    most_clients: float
    drawn: Drawn | None
    sample: U64
    has_integer_clients: bool | None = None

    @classmethod
    def sum(cls, parts: Sequence[Part]) -> Part:
        """Return what was counted of all parts together, at least one.

        Raises:
            InvalidInputError: clients or rounds are integers in one part and text in another; there
                are too many rounds; or a client is in two parts, as far as the samples show.

        >>> tea = RoundTally(2, np.array([7], np.uint64), np.array([2]))
        >>> part = Part((), (tea,), False, False, 2, 0, 0, 2.0, None, np.empty(0, np.uint64))
        >>> Part.sum([part, part]).rounds[0].counts.tolist()
        [4]
        """
        named_by = {part.has_integer_clients for part in parts} - {None}
        _check_one_kind("clients", named_by)
        _check_one_kind(
            "rounds", {isinstance(label, int) for part in parts for label in part.labels}
        )
        sample = np.sort(np.concatenate([part.sample for part in parts]))
        if np.any(sample[1:] == sample[:-1]):
            raise InvalidInputError(
                "a client is in two partitions: bring all rows of a client into one (shuffle the"
                " table by client), or its bound is not kept"
            )
        found: dict[str | int, list[RoundTally]] = {}
        for part in parts:
            for label, tally in zip(
                part.labels or range(len(part.rounds)), part.rounds, strict=True
            ):
                found.setdefault(label, []).append(tally)
        labels = tuple(_in_order({label for part in parts for label in part.labels}))
        _check_few(labels, "round", MAX_NATURAL_ROUNDS)
        drawn = [part.drawn for part in parts if part.drawn is not None]
        return cls(
            labels,
            tuple(_added_up(found[label]) for label in labels or range(len(found))),
            any(part.by_client for part in parts),
            any(part.has_counts for part in parts),
            sum(part.rows for part in parts),
            sum(part.missing for part in parts),
            sum(part.outside for part in parts),
            sum(part.most_clients for part in parts),
            Drawn.sum(drawn) if drawn else None,
            sample[:MOST_SAMPLED],
            next(iter(named_by), None),
        )


def _check_one_kind(what: str, kinds: Set[object]) -> None:
    """Refuse integers in one part and text in another: 8 and "8" would be two."""
    if len(kinds) > 1:
        raise InvalidInputError(
            f"the {what} of some partitions are integers and of some text, so that 8 and '8' are"
            " two: give their column one type in all partitions (pandas makes floats of integers"
            " where a value is missing; its type Int64 does not)"
        )


def _added_up(tallies: Sequence[RoundTally]) -> RoundTally:
    histogram = Histogram()
    for tally in tallies:
        histogram.add(tally.ids, tally.counts)
    return RoundTally(sum(tally.num_clients for tally in tallies), *histogram.finish())


def attendance(rounds: Sequence[RoundTally]) -> list[int] | None:
    """Return the number of clients in exactly k of the rounds, at place k - 1.

    It is None where no client can be in two rounds.

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

    >>> members = Members(np.array([5, 3, 5], np.uint64), np.array([0, 2, 2, 3]))
    >>> tally_members(members).counts.tolist()
    [1, 2]
    """
    ids, counts = np.unique(members.ids, return_counts=True)
    return RoundTally(members.num_clients, ids, counts.astype(np.int64, copy=False), members)


def tally_silos(silos: Sequence[RoundTally]) -> RoundTally:
    """Return the tally of a round of silos.

    >>> silo = RoundTally(3, np.array([3, 5], np.uint64), np.array([1, 2]))
    >>> both = tally_silos([silo, silo])
    >>> both.num_clients, both.counts.tolist(), both.num_vectors
    (6, [2, 4], 2)
    """
    histogram = Histogram()
    for silo in silos:
        histogram.add(silo.ids, silo.counts)
    named = [silo.names for silo in silos if silo.names is not None]
    return RoundTally(
        sum(silo.num_clients for silo in silos),
        *histogram.finish(),
        names=np.concatenate(named) if named else None,
        silos=tuple(silos),
    )


def bound_silos(
    rounds: Sequence[RoundTally], people: int, rng: np.random.Generator | None
) -> list[RoundTally]:
    """Return the rounds with at most so many people in each silo.

    Args:
        rounds: the rounds of silos, with their members if there is a generator.
        people: the most people of a silo.
        rng: draws the people that stay, uniformly; None: too many are an error.

    Raises:
        InvalidInputError: a silo has more people, and none are drawn.
    """
    largest = largest_silo(rounds)
    if largest <= people:
        return list(rounds)
    if rng is None:
        raise InvalidInputError(
            f"{arg.people} must be at least {largest:,}, those of the largest silo, got {people:,}:"
            " allow more, or leave people out"
        )

    def bounded(silo: RoundTally) -> RoundTally:
        assert silo.members is not None
        if silo.num_clients <= people:
            return silo
        kept = np.sort(rng.permutation(silo.num_clients)[:people])
        ids = [silo.members.of(person) for person in kept.tolist()]
        sizes = np.array([0, *map(len, ids)], np.int64)
        tally = tally_members(Members(np.concatenate(ids), np.cumsum(sizes)))
        return tally._replace(silo=silo.silo)

    return [tally_silos([bounded(silo) for silo in tally.silos]) for tally in rounds]


def largest_silo(rounds: Sequence[RoundTally]) -> int:
    """Return the people of the largest silo in a round; 0 if there is none."""
    return max((silo.num_clients for tally in rounds for silo in tally.silos), default=0)


def number_of_silos(rounds: Sequence[RoundTally]) -> int:
    """Return the number of silos in some round, each counted once; 0 where clients are no silos."""
    return len({silo.silo for tally in rounds for silo in tally.silos})


class Histogram:
    """Counts by id, added piece by piece.

    Pieces are merged when as many ids are pending as are known. So the cost of sorting stays in
    proportion to the rows, however many pieces there are.

    >>> histogram = Histogram()
    >>> histogram.add(np.array([7, 3, 7], np.uint64), np.array([1, 1, 5]))
    >>> histogram.add(np.array([9, 7], np.uint64), None)
    >>> [part.tolist() for part in histogram.finish()]
    [[3, 7, 9], [1, 7, 1]]
    """

    def __init__(self) -> None:
        self._ids, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._counted: list[tuple[U64, I64]] = []
        self._single: list[U64] = []  # ids that count once each
        self._waiting = 0

    def add(self, ids: U64, counts: I64 | None) -> None:
        """Add `counts` (one each if None) of ids that may repeat."""
        if counts is None:
            self._single.append(ids)
        else:
            self._counted.append((ids, counts))
        self._waiting += len(ids)
        # a million on top: merging a few at a time is not worth a sort
        if self._waiting > len(self._ids) + (1 << 20):
            self._merge()

    def finish(self) -> tuple[U64, I64]:
        """Return the distinct ids, sorted, and their counts, none of them zero."""
        self._merge()
        held = self._counts > 0
        return self._ids[held], self._counts[held]

    def _merge(self) -> None:
        if self._single:
            # a hash table takes a fraction of the time of a sort
            ids = np.concatenate(self._single)
            first, counts = group(ids)
            self._counted.append((ids[first], counts))
        parts = [(self._ids, self._counts), *self._counted]
        self._counted, self._single, self._waiting = [], [], 0
        ids, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        if not len(ids):
            return
        order = np.argsort(ids)
        ids = ids[order]
        first = np.flatnonzero(is_new(ids))
        self._ids, self._counts = ids[first], np.add.reduceat(counts[order], first)


class Prepared(NamedTuple):
    """A batch, the ids of its items, and its rows as `spread` leaves them.

    The last is None where the rows name no clients, or also name rounds or silos.
    """

    batch: Batch
    found: Encoded
    pairs: tuple[U64, I64] | None = None


class Tally:
    """The counts of a source's batches, by round.

    Args:
        encoder: the encoder of items to ids.
        num_rounds: the number of rounds to split the clients over, each client's drawn uniformly;
            None where the rows name their rounds.
        max_items: the most items that one client contributes, drawn uniformly from its distinct
            items.
        rng: the generator of these draws.
        memory: the bytes of client rows that are held before they go to temporary files.
        keep_itemless: let clients whose items are missing, or outside the domain, take part with
            nothing. Under privacy they must: who is left out would show.
        max_rounds: the most rounds that one client takes part in, drawn uniformly from those that
            its rows name; None: all of them.
        silos_per_person: where rows name silos, the most silos of a person, drawn uniformly from
            those that its rows name; None: all of them.
    """

    def __init__(
        self,
        encoder: Encoder,
        num_rounds: int | None,
        max_items: int,
        rng: np.random.Generator,
        memory: int,
        *,
        keep_itemless: bool = False,
        max_rounds: int | None = None,
        silos_per_person: int | None = None,
    ) -> None:
        self._encoder = encoder
        self._num_rounds = num_rounds
        self._max_items = max_items
        self._rng = rng
        self._keep_itemless = keep_itemless
        self._max_rounds = max_rounds
        self._silos_per_person = silos_per_person
        # keys the fingerprints of clients' names: nobody can choose names that collide
        self._client_key = rng.spawn(1)[0].integers(0, 2**64, 4, np.uint64).tobytes()
        self._labels: dict[Any, int] = {}
        self._silos: dict[Any, int] = {}
        self._histograms: dict[int, Histogram] = {}
        self._itemless: Counter[int] = Counter()  # clients by round
        self._pairs = ClientRows(memory)
        self._by_client = False
        self._has_integer_clients: bool | None = None  # the type of their column, once it has rows
        self.has_counts = False
        self.columns = Columns()
        self.drawn: Drawn | None = None
        self.rows = self.missing = self.outside = self.headers = 0
        self._most_clients = 0.0  # an upper bound: a client of several rows counts once for each
        self._final: tuple[RoundTally, ...] | None = None  # rounds that a `Part` brought
        self._sample: U64 | None = None  # of the clients, where it is asked for

    @property
    def is_bounded_by_client(self) -> bool:
        """Whether rows name their clients, so that one may be in several natural rounds."""
        return self._by_client

    @property
    def is_natural(self) -> bool:
        """Whether the rows name their rounds."""
        return self._num_rounds is None

    @property
    def most_clients(self) -> int:
        """An upper bound on the clients of all rows: their number, where no row names its client.

        A client of several rows counts once for each.
        """
        return int(self._most_clients)

    def add(self, batch: Batch) -> None:
        """Count one batch.

        Raises:
            InvalidInputError: counts of more clients than a campaign may have: their sums could
                overflow.
        """
        self.add_prepared(self.prepare(batch))

    def prepare(self, batch: Batch) -> Prepared:
        """Do what `add` does to a batch by itself; other threads may prepare others meanwhile."""
        _check_clients(_number_of(batch))
        is_plain = batch.rounds is None and batch.silos is None
        counted = is_plain and batch.clients is None and batch.counts is None
        try:
            found = self._encoder.look_up(batch.items, counted=counted)
        except OutsideDomainError:
            # raises, too, and says how many rows are outside
            self._encoder.look_up(as_text(batch.items) if is_grouped(batch.items) else batch.items)
            raise
        if batch.clients is None or not is_plain:
            return Prepared(batch, found)
        clients = batch.clients if found.inside is None else batch.clients.filter(found.inside)
        return Prepared(batch, found, spread([client_keys(clients, self._client_key), found.ids]))

    def add_prepared(self, prepared: Prepared) -> None:
        """Count a batch that was prepared here."""
        batch, found, pairs = prepared
        self._encoder.remember(found)
        self.has_counts, self.columns = batch.counts is not None, batch.columns
        self._count_clients(_number_of(batch))
        clients, rounds, silos = batch.clients, batch.rounds, batch.silos
        counts = batch.counts if found.counts is None else found.counts
        ids, inside = found.ids, found.inside
        if inside is not None:
            if self._keep_itemless:
                lost = [
                    None if part is None else part.filter(~inside)
                    for part in (clients, rounds, silos)
                ]
                whole = np.ones(len(inside), np.int64) if counts is None else counts
                self._add_itemless(lost[0], lost[1], lost[2], whole[~inside])
            self.outside += int(np.sum(~inside) if counts is None else counts[~inside].sum())
            clients, rounds, silos = (
                None if part is None else part.filter(inside) for part in (clients, rounds, silos)
            )
            counts = None if counts is None else counts[inside]
        self.rows += len(batch) + batch.missing
        self.missing += batch.missing
        self.headers += batch.headers
        if batch.itemless is not None and self._keep_itemless:
            bare = batch.itemless
            held = np.ones(bare.number, np.int64) if bare.counts is None else bare.counts()
            self._count_clients(float(held.sum(dtype=np.float64)))
            self._add_itemless(bare.clients, bare.rounds, bare.silos, held)
        labels = self._numbers(rounds, silos)
        if pairs is not None:
            self._note_clients(clients)
            self._pairs.add_spread(*pairs)
        elif clients is not None:
            self._pairs.add(self._keys(clients), ids, labels)
        elif labels is None:
            self._histograms.setdefault(0, Histogram()).add(ids, counts)
        else:
            for number in np.unique(labels).tolist():
                mine = labels == number
                self._histograms.setdefault(number, Histogram()).add(
                    ids[mine], None if counts is None else counts[mine]
                )

    def _keys(self, clients: Any) -> U64:
        """Return 64 bits for each named client."""
        self._note_clients(clients)
        return client_keys(clients, self._client_key)

    def _note_clients(self, clients: Any) -> None:
        self._by_client = True
        if len(clients):
            self._has_integer_clients = is_integer(clients)

    def _count_clients(self, number: float) -> None:
        self._most_clients += number
        _check_clients(self._most_clients)

    def _add_itemless(self, clients: Any, rounds: Any, silos: Any, counts: I64) -> None:
        """Count rows without an item: each is a client that holds nothing, unless it is named.

        A named client may hold an item in another row.
        """
        numbers = self._numbers(rounds, silos)
        if clients is not None:
            self._pairs.add(self._keys(clients), None, numbers)
            return
        labels = np.zeros(len(counts), np.uint64) if numbers is None else numbers
        for number in np.unique(labels).tolist():
            self._itemless[number] += int(counts[labels == number].sum())

    def part(self, *, by_client: bool) -> Part:
        """Return what was counted, which `take` gives to another tally. The rows are dropped.

        Args:
            by_client: whether the rows name their clients. Without rows nothing else tells it.
        """
        natural = _in_order(self._labels)
        self._sample = np.empty(0, np.uint64)
        if by_client:
            assert self._num_rounds is not None
            rounds = self._from_clients(self._num_rounds, self._places(natural), individuals=False)
        elif self.is_natural:
            rounds = [self._counted(self._labels[label]) for label in natural]
        else:
            rounds = [self._counted(0)]
        return Part(
            tuple(natural),
            tuple(rounds),
            by_client,
            self.has_counts,
            self.rows,
            self.missing,
            self.outside,
            self._most_clients,
            self.drawn,
            self._sample,
            self._has_integer_clients,
        )

    def take(self, part: Part) -> None:
        """Take what another tally, of the same options, has counted; instead of batches."""
        self._by_client, self.has_counts, self.drawn = part.by_client, part.has_counts, part.drawn
        self.rows, self.missing, self.outside = part.rows, part.missing, part.outside
        self._count_clients(part.most_clients)
        self._labels = {label: number for number, label in enumerate(part.labels)}
        if part.by_client:
            self._final = part.rounds
            return
        for number, tally in enumerate(part.rounds):
            self._histograms.setdefault(number, Histogram()).add(tally.ids, tally.counts)
            self._itemless[number] += tally.num_clients - int(tally.counts.sum())

    def finish(self, individuals: bool = False) -> list[RoundTally]:
        """Return the rounds, in the order of their labels where the rows name them.

        Args:
            individuals: also return the members of each round.

        Raises:
            InvalidInputError: more rounds than clients; or members are asked for of rounds that a
                `Part` brought.
        """
        natural = _in_order(self._labels)
        num_rounds = len(natural) if self._num_rounds is None else self._num_rounds
        if self._silos:
            return self._from_silos(num_rounds, natural, individuals)
        if (
            self._num_rounds is not None
            and num_rounds > self._most_clients > 0
            and not self._keep_itemless
        ):
            clients = f"{self._most_clients:,.0f} client" + "s" * (self._most_clients > 1)
            raise InvalidInputError(
                f"{arg.num_rounds} must be at most the number of clients, {clients}, got"
                f" {num_rounds:,}"
            )
        if self._final is not None:
            if individuals:
                raise InvalidInputError(
                    "this campaign needs the items of each client, and a merged tally has counts"
                    " alone: estimate the whole table in one place, or leave out what needs them (a"
                    " real secure sum; several items of a client with epsilon or tau; a plan with"
                    " epsilon)"
                )
            return list(self._final)
        if self._by_client:
            return self._from_clients(num_rounds, self._places(natural), individuals)
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

    def _places(self, natural: Sequence[Any]) -> U64:
        """Return the place in order of each round, which are numbered as they were met."""
        places = np.zeros(max(1, len(natural)), np.uint64)
        places[[self._labels[label] for label in natural]] = np.arange(len(natural))
        return places

    def _from_silos(
        self, num_rounds: int, natural: Sequence[Any], individuals: bool
    ) -> list[RoundTally]:
        """Return the rounds of silos: the natural ones, or one that is drawn for each silo.

        A silo without anybody takes part where clients without items do: which silos take part must
        not depend on what anybody holds.
        """
        labels = _in_order(self._silos)
        if not self.is_natural and num_rounds > len(labels):
            raise InvalidInputError(
                f"{arg.num_rounds} must be at most the number of silos, {len(labels):,}, got"
                f" {num_rounds:,}"
            )
        each = num_rounds if self.is_natural else 1
        rounds = self._places(natural)
        # A part of its own for each silo and each of its rounds: silo by silo, round by round.
        places = np.array([self._silos[label] for label in labels]).argsort().astype(np.uint64)
        parts = self._bounded(
            len(labels) * each,
            lambda numbers: (
                places[(numbers >> _SILO_BITS).astype(np.intp)] * np.uint64(each)
                + rounds[(numbers & np.uint64(2**32 - 1)).astype(np.intp)]
            ),
            individuals=individuals,
            max_rounds=self._silos_per_person,
            rounds_each=each,
        )
        parts = [part._replace(silo=place // each) for place, part in enumerate(parts)]
        if self.is_natural:
            own = [parts[round::each] for round in range(num_rounds)]
        else:
            drawn = self._rng.integers(0, num_rounds, len(labels))
            own = [[parts[i] for i in np.flatnonzero(drawn == n)] for n in range(num_rounds)]
        return [
            tally_silos([part for part in silos if part.num_clients or self._keep_itemless])
            for silos in own
        ]

    def _from_clients(self, num_rounds: int, places: U64, individuals: bool) -> list[RoundTally]:
        """Return the rounds of named clients, each bounded to its items and rounds.

        Args:
            num_rounds: the number of rounds.
            places: the place in order of each round, which are numbered as they were met.
            individuals: also return the members of each round.
        """
        return self._bounded(
            num_rounds,
            lambda numbers: places[numbers.astype(np.intp)],
            individuals=individuals,
            max_rounds=self._max_rounds,
            num_drawn=self._num_rounds,
        )

    def _bounded(
        self,
        num_rounds: int,
        place_of: Callable[[U64], U64],
        *,
        individuals: bool,
        max_rounds: int | None,
        num_drawn: int | None = None,
        rounds_each: int = 1,
    ) -> list[RoundTally]:
        """Return the rounds of named clients, each bounded to its items and rounds.

        Args:
            num_rounds: the number of rounds.
            place_of: returns the places in order of rounds, which are numbered as they were met.
            individuals: also return the members of each round.
            max_rounds: as in `bound_clients`.
            num_drawn: the number of rounds that each client's is drawn from; None: the rows name
                them.
            rounds_each: as in `bound_clients`.
        """
        histograms, clients = (
            [Histogram() for _ in range(num_rounds)],
            np.zeros(num_rounds, np.int64),
        )
        held: list[list[tuple[U64, I64]]] = [[] for _ in range(num_rounds)]
        names: list[list[U64]] = [[] for _ in range(num_rounds)]
        drawn = Drawn(0, 0, 0, 0, 0)
        keys = self._rng.integers(0, 2**64, 3, np.uint64)

        # all rows of a client are in one bucket, so each bucket can be bounded by itself
        def bound(rows: U64) -> tuple[U64, I64, I64, U64, I64]:
            for labels in rows[2:]:  # twice the round, and whether there is no item
                labels[:] = place_of(labels >> np.uint64(1)) << np.uint64(1) | labels & np.uint64(1)
            return bound_clients(
                rows, self._max_items, keys, num_drawn, max_rounds, rounds_each=rounds_each
            )

        for ids, sizes, participants, who, before in self._pairs.map_buckets(bound):
            drawn = Drawn(
                drawn.clients + len(who),
                drawn.several + int((before > 1).sum()),
                drawn.pairs + int(before.sum()),
                drawn.kept + len(ids),
                max(drawn.most, int(before.max(initial=0))),
            )
            if self._sample is not None:
                both = np.concatenate([self._sample, hashed_clients(who)])
                self._sample = np.sort(both)[:MOST_SAMPLED]
            of_round = np.bincount(participants, minlength=num_rounds)
            clients += of_round
            rounds = np.repeat(participants, sizes)
            for number in np.flatnonzero(of_round).tolist():
                mine = ids[rounds == number]
                histograms[number].add(mine, None)
                if individuals:
                    held[number].append((mine, sizes[participants == number]))
                if num_drawn is None:
                    names[number].append(who[participants == number])
        self.drawn = drawn
        tallies = [
            RoundTally(int(n), *histogram.finish())
            for n, histogram in zip(clients, histograms, strict=True)
        ]
        if num_drawn is None:
            own = [np.concatenate([np.empty(0, np.uint64), *parts]) for parts in names]
            tallies = [tally._replace(names=mine) for tally, mine in zip(tallies, own, strict=True)]
        if not individuals:
            return tallies
        return [
            tally._replace(members=_joined(parts))
            for tally, parts in zip(tallies, held, strict=True)
        ]

    def _numbers(self, rounds: Any, silos: Any) -> U64 | None:
        """Return the number of each row's round, and of its silo; None where rows name neither."""
        found = None
        if rounds is not None:
            found = _numbered(rounds, self._labels, "round", MAX_NATURAL_ROUNDS)
        if silos is not None:
            of_silos = _numbered(silos, self._silos, "silo", MAX_SILOS) << _SILO_BITS
            found = of_silos if found is None else of_silos | found
        return found


def _number_of(batch: Batch) -> float:
    """Return the number of clients that a batch stands for, if no row shares its client."""
    counts = batch.counts
    return len(batch.items) if counts is None else float(counts.sum(dtype=np.float64))


def _check_clients(number: float) -> None:
    if number > MAX_CLIENTS:
        raise InvalidInputError(
            f"the input has more than {MAX_CLIENTS:,} clients; split it, or scale the counts down"
        )


def _numbered(column: Any, known: dict[Any, int], what: str, most: int) -> U64:
    """Return the number of each value of a column, in the order in which values were met."""
    encoded = column.dictionary_encode()
    numbers = [known.setdefault(label, len(known)) for label in encoded.dictionary.to_pylist()]
    _check_few(known, what, most)
    labels: U64 = np.array(numbers, np.uint64)[encoded.indices.to_numpy()]
    return labels


def _check_few(labels: Sized, what: str, most: int) -> None:
    if len(labels) > most:
        raise InvalidInputError(
            f"the {what} column has more than {most:,} distinct values; is it a {what}?"
        )


def _in_order(labels: Iterable[Any]) -> list[Any]:
    """Return the labels of rounds in order: by number if all are numbers, else by text.

    Numbers may be written as text.

    >>> _in_order(["10", "9", "1"]), _in_order(["b", "10", "a"])
    (['1', '9', '10'], ['10', 'a', 'b'])
    """
    listed = list(labels)
    if all(isinstance(label, int) or re.fullmatch(r"[+-]?[0-9]{1,18}", label) for label in listed):
        return sorted(listed, key=lambda label: (int(label), str(label)))
    return sorted(listed, key=str)


def split(everybody: RoundTally, num_rounds: int, rng: np.random.Generator) -> list[RoundTally]:
    """Return the rounds of clients that hold at most one item, each client's round drawn uniformly.

    >>> everybody = RoundTally(9, np.array([3, 5], np.uint64), np.array([4, 5]))
    >>> sum(part.num_clients for part in split(everybody, 3, np.random.default_rng(0)))
    9
    """
    remaining, rounds = (
        np.append(everybody.counts, everybody.num_clients - everybody.counts.sum()),
        [],
    )
    for left in range(num_rounds, 0, -1):
        # Of the clients not yet in a round, each is in this one with probability 1 / left. Clients
        # of one item cannot be told apart, so their number in the round is all there is to draw.
        drawn = remaining if left == 1 else rng.binomial(remaining, 1.0 / left)
        remaining = remaining - drawn
        held, itemless = drawn[:-1], int(drawn[-1])
        rounds.append(_units(everybody.ids[held > 0], held[held > 0], itemless))
    return rounds


def split_clients(
    everybody: RoundTally, num_rounds: int, rng: np.random.Generator
) -> list[RoundTally]:
    """Return the rounds of clients, each client's drawn uniformly.

    Clients of several items must be there one by one, as members.
    """
    if everybody.members is None:
        return split(everybody, num_rounds, rng)
    return split_members(everybody.members, np.arange(everybody.num_clients), num_rounds, rng)


def split_members(
    members: Members, clients: I64, num_rounds: int, rng: np.random.Generator
) -> list[RoundTally]:
    """Return the rounds of some of the members, each one's drawn uniformly.

    Args:
        members: all of them.
        clients: int64 [n], the places of those that take part; one may be there several times.
        num_rounds: the number of rounds.
        rng: the generator of the draws.
    """
    drawn = rng.integers(0, num_rounds, len(clients))
    bounds = np.cumsum(np.bincount(drawn, minlength=num_rounds))[:-1]
    return [
        tally_members(members.some(part))
        for part in np.split(clients[np.argsort(drawn, kind="stable")], bounds)
    ]


def _one_each(tally: RoundTally) -> Members:
    """Return the members of a round of clients that hold one item each, or none."""
    ids = np.repeat(tally.ids, tally.counts)
    return Members(ids, np.minimum(np.arange(tally.num_clients + 1), len(ids)))


def _joined(parts: list[tuple[U64, I64]]) -> Members:
    """Return the members of a round from its parts: (ids, the number of them for each client)."""
    ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in parts)])
    sizes = np.concatenate([np.zeros(1, np.int64), *(sizes for _, sizes in parts)])
    return Members(ids, np.cumsum(sizes))


def _units(ids: U64, counts: I64, itemless: int) -> RoundTally:
    """Return the tally of clients that hold one item each, and of some that hold none."""
    return RoundTally(int(counts.sum()) + itemless, ids, counts)
