"""The clients of a round, counted by item and, if needed, each client's items.

A sketch is linear: the sum of a round's client sketches depends only on how many clients contribute
each item. If clients are silos, the people of each silo are counted together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.errors import InvalidInputError, arg
from fedtally.kernels.rows import group
from fedtally.simulation.client_rows import is_new

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]


class Members(NamedTuple):
    """The clients of a round, one by one: client i holds ids[starts[i] : starts[i + 1]].

    `ids` is uint64, and `starts` is int64 [clients + 1].

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
        """Return the ids of one client, given by its place."""
        return self.ids[self.starts[client] : self.starts[client + 1]]

    def some(self, clients: I64) -> Members:
        """Return the members at these places, in this order; a place may come several times.

        >>> members = Members(np.array([3, 5, 7], np.uint64), np.array([0, 1, 3]))
        >>> members.some(np.array([1, 1, 0])).ids.tolist()
        [5, 7, 5, 7, 3]
        """
        sizes = np.diff(self.starts)[clients]
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        places = np.arange(starts[-1]) + np.repeat(self.starts[clients] - starts[:-1], sizes)
        return Members(self.ids[places], starts)

    def tally(self, clients: I64) -> RoundTally:
        """Return the tally, without `members`, of the clients at these places: int64 [n]."""
        parts = [self.of(client) for client in clients.tolist()]
        ids, counts = np.unique(
            np.concatenate(parts) if parts else self.ids[:0], return_counts=True
        )
        return RoundTally(len(clients), ids, counts.astype(np.int64, copy=False))


class RoundTally(NamedTuple):
    """The counts of one round, or of one silo in a round.

    Attributes:
        num_clients: the number of clients, including clients that hold no item. If clients are
            silos, `num_clients` and `counts` are numbers of people.
        ids: the ids of the items that somebody contributes, uint64, sorted and distinct.
        counts: the number of clients that contribute each id, int64.
        members: the clients one by one. None if only counts were needed, or if `silos` is not
            empty.
        names: a number for each client, in the order of `members`, uint64 [num_clients]. A client
            has the same number in all rounds. None if they are unknown, or if no client can be in
            several rounds.
        silos: the tally of each silo in the round, whose clients are people; empty if clients are
            not silos.
        silo: if this is the tally of a silo: the number of the silo, the same in all rounds.
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
        """The number of vectors to sum: of the silos or, without silos, of the clients."""
        return len(self.silos) or self.num_clients

    def of(self, clients: I64) -> RoundTally:
        """Return the tally of some members, or of some silos, given by their places: int64 [n].

        Without silos the result has no `members`.
        """
        if self.silos:
            return tally_silos([self.silos[place] for place in clients.tolist()])
        assert self.members is not None
        return self.members.tally(clients)._replace(
            names=None if self.names is None else self.names[clients]
        )


class Histogram:
    """Counts of ids, to which parts can be added.

    Added ids wait until there are a million more of them than merged ids; then they are merged. So
    the cost of sorting stays in proportion to the number of rows, however many parts are added.

    >>> histogram = Histogram()
    >>> histogram.add(np.array([7, 3, 7], np.uint64), np.array([1, 1, 5]))
    >>> histogram.add(np.array([9, 7], np.uint64), None)
    >>> [part.tolist() for part in histogram.finish()]
    [[3, 7, 9], [1, 7, 1]]
    """

    def __init__(self) -> None:
        self._ids, self._counts = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._counted: list[tuple[U64, I64]] = []
        self._single: list[U64] = []  # ids that count 1 each
        self._waiting = 0

    def add(self, ids: U64, counts: I64 | None) -> None:
        """Add counts of ids; an id may repeat.

        Args:
            ids: uint64 [n].
            counts: int64 [n]; None: each id counts 1.
        """
        if counts is None:
            self._single.append(ids)
        else:
            self._counted.append((ids, counts))
        self._waiting += len(ids)
        # A merge sorts all ids. So wait until there are a million more new ids than merged ids.
        if self._waiting > len(self._ids) + (1 << 20):
            self._merge()

    def finish(self) -> tuple[U64, I64]:
        """Return the distinct ids, sorted, and their counts; ids with count 0 are left out."""
        self._merge()
        held = self._counts > 0
        return self._ids[held], self._counts[held]

    def _merge(self) -> None:
        if self._single:
            # a hash table is much faster than a sort
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


def tally_members(members: Members) -> RoundTally:
    """Return the tally of a round from all its members.

    >>> members = Members(np.array([5, 3, 5], np.uint64), np.array([0, 2, 2, 3]))
    >>> tally_members(members).counts.tolist()
    [1, 2]
    """
    ids, counts = np.unique(members.ids, return_counts=True)
    return RoundTally(members.num_clients, ids, counts.astype(np.int64, copy=False), members)


def tally_silos(silos: Sequence[RoundTally]) -> RoundTally:
    """Return the tally of a round from the tallies of its silos.

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
    """Return the rounds, in which each silo has at most `people` people.

    Args:
        rounds: the rounds of silos. If `rng` is given, each silo that is too large needs `members`.
        people: the most people of a silo.
        rng: the generator that draws the people who stay, uniformly. None: too many people are an
            error.

    Raises:
        InvalidInputError: a silo has more than `people` people, and `rng` is None.
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
        names = None if silo.names is None else silo.names[kept]
        return tally._replace(silo=silo.silo, names=names)

    return [tally_silos([bounded(silo) for silo in tally.silos]) for tally in rounds]


def largest_silo(rounds: Sequence[RoundTally]) -> int:
    """Return the number of people in the largest silo of any round; 0 without silos."""
    return max((silo.num_clients for tally in rounds for silo in tally.silos), default=0)


def number_of_silos(rounds: Sequence[RoundTally]) -> int:
    """Return the number of different silos in all rounds; 0 if clients are not silos."""
    return len({silo.silo for tally in rounds for silo in tally.silos})


def attendance(rounds: Sequence[RoundTally]) -> list[int] | None:
    """Return a list whose entry k - 1 is the number of clients that are in exactly k of the rounds.

    Returns None if no client can be in two rounds, or if there are no clients.

    >>> parts = [np.array([7, 8], np.uint64), np.array([8, 9], np.uint64)]
    >>> attendance([RoundTally(2, part, np.array([1, 1]), names=part) for part in parts])
    [2, 1]
    """
    names = [part.names for part in rounds if part.names is not None]
    if not names:
        return None
    in_rounds = np.unique(np.concatenate(names), return_counts=True)[1]
    return np.bincount(in_rounds)[1:].tolist() if len(in_rounds) else None


def split(everybody: RoundTally, num_rounds: int, rng: np.random.Generator) -> list[RoundTally]:
    """Split clients of at most one item over rounds; each client's round is drawn uniformly.

    >>> everybody = RoundTally(9, np.array([3, 5], np.uint64), np.array([4, 5]))
    >>> sum(part.num_clients for part in split(everybody, 3, np.random.default_rng(0)))
    9
    """
    remaining, rounds = (
        np.append(everybody.counts, everybody.num_clients - everybody.counts.sum()),
        [],
    )
    for left in range(num_rounds, 0, -1):
        # Each client that has no round yet is in this round with probability 1 / left. Clients with
        # the same item are alike, so it is enough to draw how many of them are in this round.
        drawn = remaining if left == 1 else rng.binomial(remaining, 1.0 / left)
        remaining = remaining - drawn
        held, itemless = drawn[:-1], int(drawn[-1])
        rounds.append(units(everybody.ids[held > 0], held[held > 0], itemless))
    return rounds


def split_clients(
    everybody: RoundTally, num_rounds: int, rng: np.random.Generator
) -> list[RoundTally]:
    """Split clients over rounds; each client's round is drawn uniformly.

    If clients hold several items, `everybody` needs `members`.
    """
    if everybody.members is None:
        return split(everybody, num_rounds, rng)
    return split_members(everybody.members, np.arange(everybody.num_clients), num_rounds, rng)


def split_members(
    members: Members, clients: I64, num_rounds: int, rng: np.random.Generator
) -> list[RoundTally]:
    """Split some of the members over rounds; the round of each is drawn uniformly.

    Args:
        members: all members.
        clients: int64 [n], the places of the members that take part. A place may come several
            times; a round is drawn for each.
        num_rounds: the number of rounds.
        rng: the generator of the draws.
    """
    drawn = rng.integers(0, num_rounds, len(clients))
    bounds = np.cumsum(np.bincount(drawn, minlength=num_rounds))[:-1]
    return [
        tally_members(members.some(part))
        for part in np.split(clients[np.argsort(drawn, kind="stable")], bounds)
    ]


def one_each(tally: RoundTally) -> Members:
    """Return the members of a round whose clients hold one item or none, from its counts.

    Clients with an item come first, in rising order of id, and clients without an item last.
    """
    ids = np.repeat(tally.ids, tally.counts)
    return Members(ids, np.minimum(np.arange(tally.num_clients + 1), len(ids)))


def joined_members(parts: list[tuple[U64, I64]]) -> Members:
    """Return the members of a round, whose clients come in several parts, one part after another.

    A part is a pair: the ids of its clients, client by client, and the number of ids of each
    client, int64 [clients].
    """
    ids = np.concatenate([np.empty(0, np.uint64), *(ids for ids, _ in parts)])
    sizes = np.concatenate([np.zeros(1, np.int64), *(sizes for _, sizes in parts)])
    return Members(ids, np.cumsum(sizes))


def units(ids: U64, counts: I64, itemless: int) -> RoundTally:
    """Return the tally of clients with one item each, and of `itemless` clients without an item.

    `ids` must be sorted and distinct, and `counts` has the number of clients with each id.
    """
    return RoundTally(int(counts.sum()) + itemless, ids, counts)
