"""Count rows: a histogram of item ids for each round.

A sketch is linear: the sum of a round's client sketches depends only on how many clients contribute
each item. So a simulation first counts the items, and then encodes the counts. The sums are exactly
the same as if each client were encoded. Memory grows with the number of distinct items, not with
the number of rows. Rows that name their clients go to disk beyond a limit of memory.

If rows name silos (organisations), a client is a person in a silo. The people of a silo are counted
together, and a silo is in a round as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base.dropped import NOTHING, Draw, Dropped
from fedtally.domain.columns import as_text, is_grouped
from fedtally.errors import InvalidInputError, OutsideDomainError, arg
from fedtally.kernels.rows import spread
from fedtally.plan import MAX_CLIENTS
from fedtally.simulation.client_rows import Bounded, ClientRows, bound_clients, hashed_clients
from fedtally.simulation.counted_part import (
    MAX_NATURAL_ROUNDS,
    MOST_SAMPLED,
    Part,
    check_few,
    in_order,
)
from fedtally.simulation.item_ids import Encoded, Encoder, client_keys, is_integer
from fedtally.simulation.round_tally import (
    I64,
    U64,
    Histogram,
    RoundTally,
    joined_members,
    one_each,
    split,
    tally_silos,
    units,
)
from fedtally.sources import Batch, Columns

MAX_SILOS = 1 << 12  # the most silos: a column with more distinct values hardly names silos
# One integer holds the number of a row's round in its low 32 bits, and the number of the row's silo
# in the bits above: the silo's number is shifted by this number of bits.
_SILO_BITS = np.uint64(32)


class Prepared(NamedTuple):
    """A batch of rows, with the ids of its items.

    Attributes:
        batch: the batch.
        found: the ids of the items.
        pairs: the clients and ids of the rows whose items are inside the domain, as
            `kernels.rows.spread` returns them. None if the rows name no clients, or if they name
            rounds or silos, too.
    """

    batch: Batch
    found: Encoded
    pairs: tuple[U64, I64] | None = None


class _Named(NamedTuple):
    """The columns of clients, rounds and silos of some rows; None for a missing column.

    They are Arrow arrays, with one value for each row.
    """

    clients: Any | None
    rounds: Any | None
    silos: Any | None

    def filter(self, mask: npt.NDArray[np.bool_]) -> _Named:
        """Return the columns of the rows in the mask."""
        return _Named(*(None if part is None else part.filter(mask) for part in self))


class _Bucketed:
    """Counts clients into their rounds, bucket by bucket (see `ClientRows`).

    It is for rows that name their clients.

    Args:
        num_rounds: the number of rounds.
        has_members: whether to keep the members of each round.
        has_names: whether to keep the numbers that tell clients apart (`RoundTally.names`).

    Attributes:
        draw: numbers of the clients and their items, before and after `max_items` were drawn.
    """

    def __init__(self, num_rounds: int, *, has_members: bool, has_names: bool) -> None:
        self._histograms = [Histogram() for _ in range(num_rounds)]
        self._clients = np.zeros(num_rounds, np.int64)
        self._members: list[list[tuple[U64, I64]]] | None = None
        self._names: list[list[U64]] | None = None
        if has_members:
            self._members = [[] for _ in range(num_rounds)]
        if has_names:
            self._names = [[] for _ in range(num_rounds)]
        self.draw = Draw()

    def add(self, bucket: Bounded) -> None:
        """Add the clients of a bucket, whose items and rounds are already limited."""
        ids, sizes, participants, who, before = bucket
        self.draw += Draw(
            len(who),
            int((before > 1).sum()),
            int(before.sum()),
            len(ids),
            int(before.max(initial=0)),
        )
        clients = np.bincount(participants, minlength=len(self._clients))
        self._clients += clients
        rounds = np.repeat(participants, sizes)
        for number in np.flatnonzero(clients).tolist():
            own = ids[rounds == number]
            self._histograms[number].add(own, None)
            if self._members is not None:
                self._members[number].append((own, sizes[participants == number]))
            if self._names is not None:
                self._names[number].append(who[participants == number])

    def finish(self) -> Iterator[RoundTally]:
        """Yield the tally of each round, in order."""
        for number, histogram in enumerate(self._histograms):
            tally = RoundTally(int(self._clients[number]), *histogram.finish())
            if self._names is not None:
                names = np.concatenate([np.empty(0, np.uint64), *self._names[number]])
                tally = tally._replace(names=names)
            if self._members is not None:
                tally = tally._replace(members=joined_members(self._members[number]))
            yield tally


class Tally:
    """Counts the rows of a source, batch by batch, into rounds.

    Args:
        encoder: the encoder of items to ids.
        num_rounds: the number of rounds from which each client's round is drawn uniformly; None:
            the rows name their rounds.
        max_items: the most items that one client contributes in a round, drawn uniformly from its
            distinct items.
        rng: the generator of all draws.
        memory: the most bytes of rows that name clients to hold before they go to temporary files.
        keep_itemless: whether clients whose items are missing or outside the domain take part, and
            contribute nothing. Under privacy it must be True: leaving a client out would show what
            the client holds.
        max_rounds: the most rounds that one client takes part in, drawn from the rounds that its
            rows name; None: all of them.
        per_rounds: the number of rounds in a row that `max_rounds` is about; None: it is about all
            rounds.
        silos_per_person: if rows name silos, the most silos that one person is counted in, drawn
            uniformly from the silos that its rows name; None: all of them.

    Attributes:
        has_counts: whether one row may stand for several clients.
        labels: a dict from the names of rounds to their numbers: rounds are numbered in the order
            in which rows first name them. The dict is empty if rows name no rounds.
        columns: the columns of the rows.
        rows: the number of rows so far, including rows that lack an entry.
        headers: the number of rows so far that repeat the table's header.
        dropped: the numbers of rows and items that were left out, by reason. Items above
            `max_items` are counted when the rounds are made (`finish` or `part`).
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
        per_rounds: int | None = None,
        silos_per_person: int | None = None,
    ) -> None:
        self._encoder = encoder
        self._num_rounds = num_rounds
        self._max_items = max_items
        self._rng = rng
        self._keep_itemless = keep_itemless
        self._max_rounds, self._per_rounds = max_rounds, per_rounds
        self._silos_per_person = silos_per_person
        # the key of names' fingerprints: a secret, so that nobody can choose names that collide
        self._client_key = rng.spawn(1)[0].integers(0, 2**64, 4, np.uint64).tobytes()
        self.labels: dict[Any, int] = {}
        self._silos: dict[Any, int] = {}
        self._histograms: dict[int, Histogram] = {}
        self._itemless: Counter[int] = Counter()  # by round, the number of clients without an item
        self._pairs = ClientRows(memory)
        self._by_client = False
        self._has_integer_clients: bool | None = None  # None: no row has named a client so far
        self.has_counts = False
        self.columns = Columns()
        self.dropped = NOTHING
        self.rows = self.headers = 0
        self._most_clients = 0.0  # an upper bound: a client counts once for each of its rows
        self._final: tuple[RoundTally, ...] | None = None  # rounds that `take` got
        self._sample: U64 | None = None  # hashes of clients, only for `part`

    @property
    def is_bounded_by_client(self) -> bool:
        """Whether rows name their clients, so that items are limited for each client."""
        return self._by_client

    @property
    def is_natural(self) -> bool:
        """Whether the rows name their rounds."""
        return self._num_rounds is None

    @property
    def most_clients(self) -> int:
        """An upper bound on the number of clients that take part: as if no two rows shared one.

        It is exact if no row names its client, and either no item is outside the domain or clients
        without an item take part.
        """
        return int(self._most_clients)

    def add(self, batch: Batch) -> None:
        """Count the rows of one batch.

        Raises:
            InvalidInputError: there are more clients, rounds or silos than a campaign may have,
                or an item is refused.
        """
        self.add_prepared(self.prepare(batch))

    def prepare(self, batch: Batch) -> Prepared:
        """Return a batch with the ids of its items: the part of `add` that changes no counts.

        Several threads may call this at a time.
        """
        _check_clients(_number_of(batch))
        is_plain = batch.rounds is None and batch.silos is None
        counted = is_plain and batch.clients is None and batch.counts is None
        try:
            found = self._encoder.look_up(batch.items, counted=counted)
        except OutsideDomainError:
            # The error for distinct items counts items. Raise the error for rows, which counts
            # rows.
            self._encoder.look_up(as_text(batch.items) if is_grouped(batch.items) else batch.items)
            raise
        if batch.clients is None or not is_plain:
            return Prepared(batch, found)
        clients = batch.clients if found.inside is None else batch.clients.filter(found.inside)
        return Prepared(batch, found, spread([client_keys(clients, self._client_key), found.ids]))

    def add_prepared(self, prepared: Prepared) -> None:
        """Count a batch that `prepare` of this tally returned. Call this in the batches' order."""
        batch, found, pairs = prepared
        self._encoder.remember(found)
        self.has_counts, self.columns = batch.counts is not None, batch.columns
        self._count_clients(_number_of(batch))
        named = _Named(batch.clients, batch.rounds, batch.silos)
        counts = batch.counts if found.counts is None else found.counts
        if found.inside is not None:
            self._add_outside(named, counts, ~found.inside)
            named = named.filter(found.inside)
            counts = None if counts is None else counts[found.inside]
        self.rows += len(batch) + batch.dropped.incomplete
        self.dropped += batch.dropped
        self.headers += batch.headers
        if self._keep_itemless:
            self._add_bare(batch)
        if pairs is None:
            self._add_inside(named, found.ids, counts)
        else:
            self._note_clients(named.clients)
            self._pairs.add_spread(*pairs)

    def _add_outside(
        self, named: _Named, counts: I64 | None, outside: npt.NDArray[np.bool_]
    ) -> None:
        """Count in `dropped` the rows of a batch whose items are outside the domain.

        A row with a count is counted that often. With `keep_itemless`, the clients of these rows
        take part as clients without an item.

        Args:
            named: the columns of all rows of the batch.
            counts: the number of clients of each row; None: one client each.
            outside: bool, a mask of the rows with items outside.
        """
        whole = np.ones(len(outside), np.int64) if counts is None else counts
        lost = whole[outside]
        self.dropped += Dropped(outside=int(lost.sum()))
        if self._keep_itemless:
            self._add_itemless(named.filter(outside), lost)

    def _add_bare(self, batch: Batch) -> None:
        """Count the rows of a batch that lack only the item; their clients take part."""
        bare = batch.itemless
        if bare is None:
            return
        counts = np.ones(bare.number, np.int64) if bare.counts is None else bare.counts()
        self._count_clients(float(counts.sum(dtype=np.float64)))
        self._add_itemless(_Named(bare.clients, bare.rounds, bare.silos), counts)

    def _add_inside(self, named: _Named, ids: U64, counts: I64 | None) -> None:
        """Count rows with items inside the domain, by client if the rows name their clients.

        `counts` has the number of clients of each row; None: one client each.
        """
        labels = self._numbers(named)
        if named.clients is not None:
            self._pairs.add(self._keys(named.clients), ids, labels)
        elif labels is None:
            self._histogram(0).add(ids, counts)
        else:
            for number in np.unique(labels).tolist():
                own = labels == number
                self._histogram(number).add(ids[own], None if counts is None else counts[own])

    def _histogram(self, number: int) -> Histogram:
        return self._histograms.setdefault(number, Histogram())

    def _keys(self, clients: Any) -> U64:
        """Return the 64-bit key of each client, and note that rows name their clients."""
        self._note_clients(clients)
        return client_keys(clients, self._client_key)

    def _note_clients(self, clients: Any) -> None:
        self._by_client = True
        if len(clients):
            self._has_integer_clients = is_integer(clients)

    def _count_clients(self, number: float) -> None:
        self._most_clients += number
        _check_clients(self._most_clients)

    def _add_itemless(self, named: _Named, counts: I64) -> None:
        """Count rows without an item.

        A row that names no client stands for clients that hold nothing; `counts` has their number.
        A client that is named may hold items in other rows.
        """
        numbers = self._numbers(named)
        if named.clients is not None:
            self._pairs.add(self._keys(named.clients), None, numbers)
            return
        labels = np.zeros(len(counts), np.uint64) if numbers is None else numbers
        for number in np.unique(labels).tolist():
            self._itemless[number] += int(counts[labels == number].sum())

    def part(self, *, by_client: bool) -> Part:
        """Return the counts, for `take` of another tally; the rows are dropped.

        Args:
            by_client: whether the rows name their clients. Without rows, the tally itself cannot
                know this.
        """
        natural = in_order(self.labels)
        self._sample = np.empty(0, np.uint64)
        if by_client:
            assert self._num_rounds is not None
            rounds = self._from_clients(self._num_rounds, self._places(natural), individuals=False)
        elif self.is_natural:
            rounds = [self._counted(self.labels[label]) for label in natural]
        else:
            rounds = [self._counted(0)]
        return Part(
            tuple(natural),
            tuple(rounds),
            by_client,
            self.has_counts,
            self.rows,
            self.dropped,
            self._most_clients,
            self._sample,
            self._has_integer_clients,
        )

    def take(self, part: Part) -> None:
        """Take the counts of another tally with the same options, its `part`, as this tally's own.

        This tally must count no rows, neither before nor afterwards.
        """
        self._by_client, self.has_counts = part.by_client, part.has_counts
        self.rows, self.dropped = part.rows, part.dropped
        self._count_clients(part.most_clients)
        self.labels = {label: number for number, label in enumerate(part.labels)}
        if part.by_client:
            self._final = part.rounds
            return
        for number, tally in enumerate(part.rounds):
            self._histogram(number).add(tally.ids, tally.counts)
            self._itemless[number] += tally.num_clients - int(tally.counts.sum())

    def finish(self, individuals: bool = False) -> list[RoundTally]:
        """Return the tally of each round, in the order of the rounds' names if rows name them.

        The rows of named clients are dropped, so call this once.

        Args:
            individuals: whether to return the members of each round, too.

        Raises:
            InvalidInputError: a round is drawn for each client or silo, and there are more rounds
                than clients or silos; or `individuals` is True, and `take` got the counts of
                clients that rows named.
        """
        natural = in_order(self.labels)
        num_rounds = len(natural) if self._num_rounds is None else self._num_rounds
        if self._silos:
            return self._from_silos(num_rounds, natural, individuals)
        self._check_rounds(num_rounds)
        if self._final is not None:
            _check_counts_suffice(individuals)
            return list(self._final)
        if self._by_client:
            return self._from_clients(num_rounds, self._places(natural), individuals)
        if self._num_rounds is None:
            rounds = [self._counted(self.labels[label]) for label in natural]
        else:
            rounds = split(self._counted(0), num_rounds, self._rng)
        return [part._replace(members=one_each(part)) for part in rounds] if individuals else rounds

    def _check_rounds(self, num_rounds: int) -> None:
        """Refuse to draw rounds for clients if there are more rounds than clients.

        The number of clients is `most_clients`. Under privacy this number is hidden, and nothing is
        refused.
        """
        is_hidden = self._keep_itemless  # True only under privacy
        if self.is_natural or is_hidden or not num_rounds > self._most_clients > 0:
            return
        clients = f"{self._most_clients:,.0f} client" + "s" * (self._most_clients > 1)
        raise InvalidInputError(
            f"{arg.num_rounds} must be at most the number of clients, {clients}, got {num_rounds:,}"
        )

    def _counted(self, number: int) -> RoundTally:
        return units(*self._histogram(number).finish(), self._itemless[number])

    def _places(self, natural: Sequence[Any]) -> U64:
        """Return, for each round's number, its place in the order of names: uint64 [rounds].

        Rounds are numbered in the order in which rows first name them.
        """
        places = np.zeros(max(1, len(natural)), np.uint64)
        places[[self.labels[label] for label in natural]] = np.arange(len(natural))
        return places

    def _from_silos(
        self, num_rounds: int, natural: Sequence[Any], individuals: bool
    ) -> list[RoundTally]:
        """Return the rounds of silos: the rounds that rows name, or one round drawn for each silo.

        With `keep_itemless`, silos without people take part, too: which silos take part must not
        depend on what anybody holds.

        Raises:
            InvalidInputError: a round is drawn for each silo, and there are more rounds than silos.
        """
        labels = in_order(self._silos)
        if not self.is_natural and num_rounds > len(labels):
            raise InvalidInputError(
                f"{arg.num_rounds} must be at most the number of silos, {len(labels):,}, got"
                f" {num_rounds:,}"
            )
        each = num_rounds if self.is_natural else 1
        rounds = self._places(natural)
        # Each pair of a silo and a round is counted like a round: sorted by silo, then by round.
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
        """Return the rounds of clients that rows name, if the rows name no silos (see `_bounded`).

        Args:
            num_rounds: the number of rounds.
            places: for each round's number, the round's place in the order of names (`_places`).
            individuals: whether to return the members of each round, too.
        """
        return self._bounded(
            num_rounds,
            lambda numbers: places[numbers.astype(np.intp)],
            individuals=individuals,
            max_rounds=self._max_rounds,
            per_rounds=self._per_rounds,
            num_drawn=self._num_rounds,
        )

    def _bounded(
        self,
        num_rounds: int,
        place_of: Callable[[U64], U64],
        *,
        individuals: bool,
        max_rounds: int | None,
        per_rounds: int | None = None,
        num_drawn: int | None = None,
        rounds_each: int = 1,
    ) -> list[RoundTally]:
        """Limit the items and rounds of each client that rows name; return the tally of each round.

        `_from_silos` uses this, too: for it each pair of a silo and a round is a round.

        Args:
            num_rounds: the number of rounds to return.
            place_of: a function from rounds' numbers to the rounds' places in the result.
            individuals: whether to return the members of each round, too.
            max_rounds: see `bound_clients`.
            per_rounds: see `bound_clients`.
            num_drawn: the number of rounds from which each client's round is drawn; None: the rows
                name the rounds.
            rounds_each: see `bound_clients`.
        """
        keys = self._rng.integers(0, 2**64, 3, np.uint64)

        # all rows of a client are in one bucket, so buckets do not depend on each other
        def bound(rows: U64) -> Bounded:
            for labels in rows[2:]:  # twice the round, plus 1 if there is no item
                labels[:] = place_of(labels >> np.uint64(1)) << np.uint64(1) | labels & np.uint64(1)
            return bound_clients(
                rows,
                self._max_items,
                keys,
                num_drawn,
                max_rounds,
                rounds_each=rounds_each,
                per_rounds=per_rounds,
            )

        rounds = _Bucketed(num_rounds, has_members=individuals, has_names=num_drawn is None)
        for bucket in self._pairs.map_buckets(bound):
            rounds.add(bucket)
            if self._sample is not None:
                both = np.concatenate([self._sample, hashed_clients(bucket.clients)])
                self._sample = np.sort(both)[:MOST_SAMPLED]
        self.dropped = self.dropped._replace(over_max_items=rounds.draw)
        return list(rounds.finish())

    def _numbers(self, named: _Named) -> U64 | None:
        """Return one integer for each row, with the numbers of its round and of its silo.

        uint64 [n]; the silo's number is shifted by `_SILO_BITS`. Returns None if rows name neither
        rounds nor silos.
        """
        numbers = None
        if named.rounds is not None:
            numbers = _numbered(named.rounds, self.labels, "round", MAX_NATURAL_ROUNDS)
        if named.silos is not None:
            of_silos = _numbered(named.silos, self._silos, "silo", MAX_SILOS) << _SILO_BITS
            numbers = of_silos if numbers is None else of_silos | numbers
        return numbers


def _check_counts_suffice(individuals: bool) -> None:
    """Refuse to return the members of rounds of which there are only counts."""
    if individuals:
        raise InvalidInputError(
            "this campaign needs the items of each client, and a merged tally has counts"
            " alone: estimate the whole table in one place, or leave out what needs them (a"
            " real secure sum; several items of a client with epsilon or tau; a plan with"
            " epsilon)"
        )


def _number_of(batch: Batch) -> float:
    """Return the number of clients in a batch, if each row has clients of its own.

    If rows have counts, it is a float: the sum of many counts may be too large for an int64.
    """
    counts = batch.counts
    return len(batch.items) if counts is None else float(counts.sum(dtype=np.float64))


def _check_clients(number: float) -> None:
    if number > MAX_CLIENTS:
        raise InvalidInputError(
            f"the input has more than {MAX_CLIENTS:,} clients; split it, or scale the counts down"
        )


def _numbered(column: Any, known: dict[Any, int], what: str, most: int) -> U64:
    """Return the number of each row's value, uint64 [n]: values are numbered as they first come.

    Args:
        column: an Arrow array.
        known: a dict from the values so far to their numbers; new values are added.
        what: the singular noun for what the column names, for the error.
        most: the largest number of distinct values.
    """
    encoded = column.dictionary_encode()
    numbers = [known.setdefault(label, len(known)) for label in encoded.dictionary.to_pylist()]
    check_few(known, what, most)
    labels: U64 = np.array(numbers, np.uint64)[encoded.indices.to_numpy()]
    return labels


def round_labels(tally: Tally) -> list[str] | None:
    """Return the names of the rounds as text, in order; None if rows do not name rounds."""
    return [str(label) for label in in_order(tally.labels)] if tally.is_natural else None
