"""The invented clients of an audit, made for a plan so that every exact sum is known.

Most clients hold arbitrary items. For some clients, a coin decides what they hold. What the
releases reveal about the coins gives a lower bound on epsilon. In a crowd, all clients hold more
than a client may contribute, or name their items twice. This shows whether the bounds on a client
are enforced.

If the clients of the plan are silos (clients with the items of many people), "client" means a
person in the silos here; see `studies.audit_silos`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.events import Mechanism, Relation
from fedtally.sketch import CountSketch
from fedtally.sources import from_items
from fedtally.studies.noise_checks import Distribution

# The clients of a crowd in a round, if neither the plan nor the caller sets their number.
_CROWD = 1024
_STARTS = 16  # how many first items the greedy choice of a crowd's items tries
_CHOICES = 1024  # about the number of steps of the greedy choice for all releases; limits its time
# The most campaigns for each kind of crowd; a crowd that needs more is left out.
_MOST_OF_CROWDS = 16
_FEW = 10  # if a client of a crowd has at most this many items, all sets of them are tried
# If a bound is missing, its crowd must move a release by this many standard deviations of the
# noise.
_SEEN = 10.0
# The clients of a round, if neither the plan nor the caller sets their number.
USUAL_CLIENTS = 64
# The clients with a coin in a campaign, at most. The number is rounded up to be equal for all sets
# of rounds in which clients are. More would reveal little more, and take time.
_COINS = 512
I64 = npt.NDArray[np.int64]


class Client(NamedTuple):
    """An invented client.

    Attributes:
        rounds: the numbers of the rounds in which it takes part.
        held: the ids of its items if its coin says yes, or if it has no coin.
        other: the ids of its items if its coin says no.
        direction: the releases when the coin says yes, less the releases when it says no, without
            noise. One entry for each release that differs; empty: the client has no coin.
        silos: the numbers of the silos that hold its items; empty: the plan has no silos.
    """

    rounds: tuple[int, ...]
    held: tuple[int, ...]
    other: tuple[int, ...]
    direction: tuple[Moved, ...] = ()
    silos: tuple[int, ...] = ()


class Moved(NamedTuple):
    """The counters of one release that a client's coin changes, and by how much.

    Attributes:
        release: the number of the release, from 0.
        counters: the indexes of the counters: int64 [n].
        by: the change of each of these counters: int64 [n].
    """

    release: int
    counters: I64
    by: I64

    @property
    def square(self) -> float:
        """The squared l2 norm of the change."""
        return float(self.by @ self.by)


class Crowd(NamedTuple):
    """Clients that all hold more than a client contributes, so that a missing bound is noticed.

    Attributes:
        bound: the bound that the clients test: "items", "clip", "repeats" or "silos". The
            clients of "repeats" hold no more than they may, and name each item twice. An item
            counts once, so it is known exactly how far they move a release.
        population: the clients.
        towards: for each release, the sketch of one set of items: int64 [rows * width]. All
            clients hold this set in the rounds of this release. If the bound is missing, each of
            them moves the release in this direction.
        most: for each release, the largest inner product of one contribution with this direction if
            the bound is enforced; or, for many items and a clip, an upper bound on it.
        campaigns: the number of campaigns after which a missing bound is noticed practically
            always. With geometric noise more may be needed.
        numbers: for each release, the number of contributions that the clients may make.
    """

    bound: str
    population: Population
    towards: Sequence[I64]
    most: Sequence[float]
    campaigns: int
    numbers: Sequence[int]

    @property
    def is_exact(self) -> bool:
        """Whether sound releases move by exactly `most` for each contribution."""
        return self.bound == "repeats"


class Population(NamedTuple):
    """The clients of a campaign, and the outcomes of their coins.

    Attributes:
        clients: the clients.
        coins: what each client's coin says; True for a client without a coin.
        names_rounds: whether each row of `source` names its round.
        is_hidden: whether it is secret which clients take part. Then a client whose coin says no
            does not take part at all.
        outside: an item that is no candidate. Clients without items hold it instead if their number
            is odd.
        of_round: for each round, the ids that all clients hold in it, in place of what `clients`
            says. Empty: what a client holds does not depend on the round.
        copies: how often a client names each item.
    """

    clients: Sequence[Client]
    coins: npt.NDArray[np.bool_]
    names_rounds: bool
    is_hidden: bool
    outside: int
    of_round: Mapping[int, tuple[int, ...]] = {}  # nobody changes it
    copies: int = 1

    def holding(self) -> Iterator[tuple[int, Client, tuple[int, ...]]]:
        """Yield each client that takes part: its number, the client, and the ids that it holds.

        The client's coin decides which ids these are: `held` or `other` of the client.
        """
        for i, (client, coin) in enumerate(zip(self.clients, self.coins.tolist(), strict=True)):
            if coin or not (self.is_hidden and client.direction):
                yield i, client, client.held if coin else client.other

    def source(self) -> Any:
        """Return a source of the clients that take part: `copies` rows for each item, round and
        silo.

        A client without items has such rows, too. Their item is missing or is no candidate.
        """
        rows = [
            (item, i, round, silo)
            for i, client, items in self.holding()
            for round in client.rounds
            for silo in client.silos or (None,)
            # a missing item and an item outside the domain must give the same sketch
            for item in self.of_round.get(round, items) or (self.outside if i % 2 else None,)
            for _ in range(self.copies)
        ]
        items, clients, rounds, silos = (list(column) for column in zip(*rows, strict=True))
        return from_items(
            items,
            clients=clients,
            silos=None if silos[0] is None else silos,
            rounds=rounds if self.names_rounds else None,
        )


class Design:
    """The invented clients for the campaigns of a plan.

    Each round has a number of clients that the plan accepts. No counter is changed by the coins of
    two clients, so each coin is an independent observation of the noise.

    Args:
        plan: a plan with privacy.
        rng: the random generator that draws the clients and their items.
        clients: the number of clients of a round; None: it follows from the plan.
        dropout: the share of clients that drop out, 0 <= dropout < 1.

    Attributes:
        plan: the plan.
        terms: its privacy terms.
        alike: whether all clients hold the same items, because some of them drop out.
        is_hidden: whether the plan hides the number of clients.
        num_clients: the number of clients in each round, or of silos if the plan is for silos. If
            it is not known which clients are in which round, it is the number in all rounds
            together.
        clients: the clients.

    Raises:
        InvalidInputError: no clients can be invented that the plan accepts.
    """

    def __init__(
        self, plan: Plan, rng: np.random.Generator, *, clients: int | None, dropout: float
    ) -> None:
        self.plan, self.terms = plan, terms_of(plan)
        self._asked, self._dropout = clients, dropout
        # With dropouts, nobody knows whose items are in the sum. If all clients hold the same
        # items, the exact sum follows from the number of clients in it.
        self.alike = dropout > 0
        self.is_hidden = self.terms.event.relation.hides_number
        self._names_rounds = self._are_rounds_named()
        self._releases_of_plan = plan.releases
        self._release_of = {
            round: k for k, rounds in enumerate(self._releases_of_plan) for round in rounds
        }
        self._ids = np.arange(1, plan.domain_size + 1, dtype=np.uint64)
        self._hashes: dict[int, tuple[I64, I64]] = {}
        places = self._places()
        number = len(places) if self.is_hidden else sum(0 in rounds for rounds in places)
        self.num_clients = self._vectors_of(number)
        self.clients = self._clients(places, rng)

    @property
    def are_rounds_known(self) -> bool:
        """Whether it is known which clients are in which release.

        It is known if there is only one release, or if the rows name their rounds.
        """
        return self._names_rounds or len(self._releases_of_plan) == 1

    def population(self, rng: np.random.Generator) -> Population:
        """Toss the coins, and return the clients with the outcomes."""
        coins = rng.integers(0, 2, len(self.clients)).astype(np.bool_)
        coins |= np.array([not client.direction for client in self.clients])
        return Population(
            self.clients, coins, self._names_rounds, self.is_hidden, len(self._ids) + 1
        )

    def exact(self, population: Population) -> list[I64]:
        """Return the exact sum of each release, without noise: a list of int64 [rows * width]."""
        held: dict[int, list[int]] = {}
        for _, client, items in population.holding():
            for round in client.rounds:
                held.setdefault(round, []).extend(items * max(1, len(client.silos)))
        totals = [
            np.zeros(self.plan.rows * self.plan.width, np.int64) for _ in self._releases_of_plan
        ]
        for round, everything in held.items():
            totals[self._release_of[round]] += self.sketch(round, everything)
        return totals

    def sketch(self, round: int, items: Sequence[int]) -> I64:
        """Return the sketch of items in a round: int64 [rows * width].

        Args:
            round: the number of the round.
            items: the ids of the items; an id may be repeated.
        """
        sketch = CountSketch(self.plan.spec, round)
        sketch.add(np.array(items, np.uint64))
        return sketch.counters.reshape(-1)

    def crowds(self, rng: np.random.Generator) -> list[Crowd]:
        """Return a crowd for each bound on a client that the clients of a crowd can test.

        A bound is left out if no crowd could show that it is missing.
        """
        # If the engine draws the rounds of clients, nobody knows which release a client moves.
        if not self.are_rounds_known:
            return []
        event = self.terms.event
        more = event.max_items + 1
        # Few items that show a missing bound are used: their number is doubled until they show it.
        # With a clip, only one item too many is tried: the clip would cut down more items, and so
        # hide that the bound on items is missing.
        numbers = [more] if event.is_clipped else [more << i for i in range(9)]
        found = next(filter(None, (self._crowd("items", number, rng) for number in numbers)), None)
        clip = self._crowd("clip", event.max_items, rng) if event.is_clipped else None
        # with dropouts nobody knows how many contributions are in a sum of silos
        repeats = None if self.alike else self._crowd("repeats", 1, rng)
        return [crowd for crowd in (found, clip, repeats) if crowd is not None]

    def _crowd(self, bound: str, number: int, rng: np.random.Generator) -> Crowd | None:
        """Return a crowd whose clients hold `number` items each, to test a bound.

        For "repeats" they hold as many as they may.

        Returns None if there can be no such crowd, or if it would not show that the bound is
        missing.
        """
        if number > len(self._ids):
            return None
        every, sense = np.ones(len(self._ids), np.bool_), -1 if bound == "items" else 1
        held = [
            self._worst([rounds.start], None, every)
            if bound == "repeats"
            else self._together(rounds.start, number, sense, rng)
            for rounds in self._releases_of_plan
        ]
        towards = [
            self.sketch(rounds.start, own)
            for rounds, own in zip(self._releases_of_plan, held, strict=True)
        ]
        places = self._crowd_places(bound)
        if not places:
            return None
        # Releases differ in their hashes, so a set of items that exceeds the bound by far in one of
        # them does not in another. So clients hold other items in each release.
        clients = [Client(rounds, (), (), silos=silos) for rounds, silos in places]
        most = [self._product(k, vector, held[k]) for k, vector in enumerate(towards)]
        numbers = [self.number_in(clients, k) for k in range(len(towards))]
        needed = [
            self._campaigns(bound, vector, most[k], numbers[k]) for k, vector in enumerate(towards)
        ]
        seen = [number for number in needed if number is not None]
        if len(seen) < len(needed):
            return None
        population = Population(
            clients,
            np.ones(len(clients), np.bool_),
            self._names_rounds,
            self.is_hidden,
            len(self._ids) + 1,
            {round: held[k] for round, k in self._release_of.items()},
            2 if bound == "repeats" else 1,
        )
        return Crowd(bound, population, towards, most, max(seen), numbers)

    # `studies.audit_silos` overrides some of the following methods.

    def _are_rounds_named(self) -> bool:
        """Return whether each row of `Population.source` names its round."""
        return not self.is_hidden

    def _vectors_of(self, number: int) -> int:
        """Return how many vectors the engine sums up if `number` clients take part: one for each
        client.
        """
        return number

    def _crowd_places(self, bound: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the rounds and the silos of each client of a crowd; [] if no crowd is possible.

        A crowd consists of clients that all test one bound, `bound`: "items", "clip", "repeats" or
        "silos".
        """
        return [(rounds, self._silos_of(i)) for i, rounds in enumerate(self._places(_CROWD))]

    def _silos_of(self, number: int) -> tuple[int, ...]:
        """Return the silos of the client `number`; always empty here."""
        return ()

    @property
    def _num_sure(self) -> int:
        """The least number of clients without a coin."""
        return 0

    def _gap(self, bound: str, length: float, most: float) -> float:
        """Return how much farther one client of a crowd moves a release if the bound is missing.

        It is the difference of two inner products with the crowd's direction, `Crowd.towards`. They
        are not divided by the length of the direction.

        Args:
            bound: the bound that the crowd exceeds.
            length: the l2 norm of the sketch of everything that the client holds.
            most: the largest inner product of a contribution within the bound with the crowd's
                direction.
        """
        if bound == "repeats":  # a client that counts twice moves it as far again
            return length**2
        # If only the bound on items is missing, a client contributes everything that it holds, but
        # only if its sketch is within the clip.
        is_whole = not self.terms.event.is_clipped or length <= math.sqrt(self._square())
        return length**2 - most if bound == "clip" or is_whole else 0.0

    def _campaigns(self, bound: str, vector: I64, most: float, number: int) -> int | None:
        """Return after how many campaigns a missing bound is noticed in a release.

        Returns None if more than `_MOST_OF_CROWDS` campaigns would be needed.

        Args:
            bound: the bound that the crowd exceeds.
            vector: the direction in which each client of the crowd would move the release.
            most: the largest inner product of a contribution within the bound with this direction.
            number: the most contributions of the crowd to the release.
        """
        length = math.sqrt(float(vector @ vector))
        gap = self._gap(bound, length, most)
        noise = length * math.sqrt(law_of(self.terms, self._vectors_of(number)).variance)
        # `<=` and not `<`: if the sketches of the items cancel, there is no direction, and both
        # sides are 0.
        if gap * number * math.sqrt(_MOST_OF_CROWDS) <= _SEEN * noise:
            return None
        return math.ceil((_SEEN * noise / (gap * number)) ** 2)

    def number_in(self, clients: Sequence[Client], release: int) -> int:
        """Return how many contributions these clients may make to a release under the plan."""
        each = self.terms.event.silos_per_person
        return each * sum(
            self._release_of[round] == release for client in clients for round in client.rounds
        )

    def number_square(self, client: Client) -> int:
        """Return the squared l2 distance by which one client changes the numbers of clients.

        If a plan hides the number of clients, it publishes this number with noise: one number for
        each release, or one in all if it is not known which clients are in which release. If the
        number is not hidden, the distance is 0.
        """
        if not self.is_hidden:
            return 0
        parts = range(len(self._releases_of_plan)) if self.are_rounds_known else range(1)
        return sum(self.number_in([client], k) ** 2 for k in parts)

    def _square(self) -> int:
        """Return a bound on the squared l2 norm of one contribution to a round under the plan."""
        event = self.terms.event
        most = event.encoding.exposure(self.plan.rows, event.max_items).square
        return (
            most
            if event.clip_norm is None
            else min(most, max(1, math.floor(Fraction(event.clip_norm) ** 2)))
        )

    def _product(self, release: int, towards: I64, held: Sequence[int]) -> float:
        """Return the largest inner product of a client's contribution with `towards`, within all
        bounds; for more than `_FEW` items and a clip, an upper bound on it.

        Args:
            release: the number of the release.
            towards: a direction: int64 [rows * width].
            held: the ids of the client's items.
        """
        cells, signs = self._hash(self._releases_of_plan[release].start)
        places = np.array(held, np.intp) - 1
        rows = np.arange(self.plan.rows)[:, None]
        each = (towards.reshape(self.plan.rows, -1)[rows, cells[:, places]] * signs[:, places]).sum(
            axis=0
        )
        best = np.sort(each[each > 0])[::-1][: self.terms.event.max_items]
        if self.terms.event.is_clipped and len(held) <= _FEW:
            own_cells, own_signs = cells[:, places], signs[:, places]
            meet = own_cells[:, :, None] == own_cells[:, None]
            products = (meet * own_signs[:, :, None] * own_signs[:, None]).sum(axis=0)
            return _most_of_some(each, products, self.terms.event.max_items, self._square())
        # the Cauchy-Schwarz inequality, for a sketch that is clipped
        return min(float(best.sum()), math.sqrt(self._square() * float(towards @ towards)))

    def _together(
        self, round: int, number: int, sense: int, rng: np.random.Generator
    ) -> tuple[int, ...]:
        """Return `number` items whose sketch has a large l2 norm (`sense` 1) or a small one
        (`sense` -1).

        The items are chosen greedily, one after the other. This is repeated with several first
        items, and the best choice is returned.
        """
        cells, signs = self._hash(round)
        rows, best, best_square = np.arange(self.plan.rows)[:, None], (), -math.inf
        starts = max(
            1, min(_STARTS, len(self._ids), _CHOICES // (number * len(self._releases_of_plan)))
        )
        for first in rng.choice(self._ids, starts, replace=False).tolist():
            found = [first]
            away = self.sketch(round, found)
            while len(found) < number:
                lengths = sense * (away.reshape(self.plan.rows, -1)[rows, cells] * signs).sum(
                    axis=0
                )
                lengths[np.array(found) - 1] = -(1 << 40)  # so that no item is chosen twice
                found.append(int(lengths.argmax()) + 1)
                away += self.sketch(round, found[-1:])
            square = sense * int(away @ away)
            if square > best_square:
                best, best_square = tuple(found), square
        return best

    def _places(self, most_usual: int = USUAL_CLIENTS) -> list[tuple[int, ...]]:
        """Return the numbers of the rounds of each client.

        All rounds have equally many clients, and at least as many as the plan requires. If the
        caller requested no number, the number depends on the plan. With a secure sum, each round
        has about the number of clients that the plan requires. Without a secure sum, it has about
        `most_usual` clients, or the nearest number that the plan allows.

        If the plan hides the number of clients, each client has the round 0, which stands for any
        round.

        Raises:
            InvalidInputError: the plan's bounds allow no rounds of equal size.
        """
        plan, together = self.plan, self.terms.event.participations
        # The engine draws the rounds of these clients, so 0 stands for any round. There are so many
        # clients that noise does not bring their number below the number of rounds: a smaller
        # number would be raised to it.
        if self.is_hidden:
            most = 24 * self.terms.stddev * math.sqrt(len(self._releases_of_plan))
            return [(0,)] * (USUAL_CLIENTS + math.ceil(most))
        least = min(plan.max_round_clients, math.ceil(self._fewest() / (1 - self._dropout)))
        usual = min(most_usual, plan.max_round_clients) if plan.secure_sum is None else least
        starting = min(
            -(-max(least, self._asked or usual) // together), plan.max_round_clients // together
        )
        if starting < 1 or starting * together < least:
            raise InvalidInputError(
                f"the plan takes rounds of {least:,} to {plan.max_round_clients:,} clients, each of"
                f" them in {together:,}: no even rounds can be made up; raise max_round_clients"
            )
        # Each client takes part in as many rounds as the plan allows, and all rounds have the same
        # size.
        number = plan.num_rounds
        in_a_row = self.terms.event.per_rounds or number
        return [
            tuple(round for round in range(number) if (round - first) % in_a_row < together)
            for first in range(in_a_row)
            for _ in range(starting)
        ]

    def _fewest(self) -> int:
        """Return the smallest number of clients of a round that the plan accepts."""
        summing, releases = self.plan.summing, self._releases_of_plan
        if self.plan.secure_sum is None:
            return self.terms.event.honest_survivors or 1
        together = summing.opened_together(releases) or [range(1)]
        return -(-summing.least_clients // min(map(len, together)))

    def _clients(self, places: list[tuple[int, ...]], rng: np.random.Generator) -> list[Client]:
        # If it is not known in which rounds clients are, they hold no items: all exact sums are
        # then 0.
        silos = self._silos_of
        if not self.are_rounds_known:
            return [Client(rounds, (), (), silos=silos(i)) for i, rounds in enumerate(places)]
        pool, used = (
            len(self._ids),
            np.zeros((len(self._releases_of_plan), self.plan.rows, self.plan.width), np.bool_),
        )
        if self.alike:
            common = self._worst(range(self.plan.num_rounds), None, np.ones(pool, np.bool_))
            return [
                Client(rounds, common, common, silos=silos(i)) for i, rounds in enumerate(places)
            ]
        found, left = [], dict.fromkeys(places, -(-_COINS // len(set(places))))
        for i, rounds in enumerate(places):
            may = left[rounds] > 0 and i < len(places) - self._num_sure
            told = self._told_apart(rounds, used, rng) if may else None
            left[rounds] = 0 if told is None else left[rounds] - 1
            usual = (int(rng.integers(1, pool + 1)),)
            found.append((told or Client(rounds, usual, usual))._replace(silos=silos(i)))
        return found

    def _told_apart(
        self, rounds: tuple[int, ...], used: Any, rng: np.random.Generator
    ) -> Client | None:
        """Return a client with a coin that changes only counters that no other client's coin
        changes.

        Returns None if no such client is found.

        Args:
            rounds: the rounds of the client.
            used: the counters that coins change: bool [releases, rows, width]. The new ones are
                added.
            rng: the random generator.
        """
        free = np.ones(len(self._ids), np.bool_)
        rows = np.arange(self.plan.rows)[:, None]
        for round in rounds:
            free &= ~used[self._release_of[round]][rows, self._hash(round)[0]].any(axis=0)
        # Each client chooses from another random half of the items. Otherwise clients of different
        # releases would often hold the same items.
        free &= rng.permutation(len(free)) < len(free) / 2
        held = self._worst(rounds, None, free)
        other: tuple[int, ...] = ()
        if self.terms.event.relation is Relation.REPLACE_ONE and held:
            other = self._worst(rounds, held, free)
        if not held or held == other:
            return None
        moved: dict[int, I64] = {}
        for round in rounds:
            k = self._release_of[round]
            difference = self.sketch(round, held) - self.sketch(round, other)
            difference *= self.terms.event.silos_per_person
            moved[k] = moved.get(k, 0) + difference
            for items in (held, other):
                cells = self._hash(round)[0][:, np.array(items, np.intp) - 1]
                used[k][rows, cells] = True
        parts = ((k, np.flatnonzero(vector), vector) for k, vector in moved.items())
        return Client(
            rounds,
            held,
            other,
            tuple(Moved(k, where, vector[where]) for k, where, vector in parts),
        )

    def _worst(
        self, rounds: Sequence[int], against: tuple[int, ...] | None, free: Any
    ) -> tuple[int, ...]:
        """Return items of one client whose sketch has a large l2 distance from the sketch of
        `against`.

        The items are chosen greedily, at most as many as a client may contribute. Each time the
        eight items that add the most are tried. The best one is chosen with which the client's
        sketch stays within the clip in all rounds; among equal ones, the first.

        Args:
            rounds: the rounds of the client; the distance is measured in the first one.
            against: the ids of the items to keep away from; None: a large norm is wanted.
            free: the items that may be chosen: bool [candidates].
        """
        event = self.terms.event
        most = math.inf if event.clip_norm is None else event.clip_norm**2
        first, free = rounds[0], free.copy()
        cells, signs = self._hash(first)
        away = (
            -self.sketch(first, against)
            if against
            else np.zeros(self.plan.rows * self.plan.width, np.int64)
        )
        found: list[int] = []
        for _ in range(event.max_items):
            lengths = (
                away.reshape(self.plan.rows, -1)[np.arange(self.plan.rows)[:, None], cells] * signs
            ).sum(axis=0)
            for place in np.argsort(-np.where(free, lengths, -(1 << 40)), kind="stable")[
                :8
            ].tolist():
                squares = [
                    int((self.sketch(round, [*found, place + 1]) ** 2).sum()) for round in rounds
                ]
                if free[place] and max(squares) <= most:
                    found.append(place + 1)
                    away += self.sketch(first, [place + 1])
                    free[place] = False
                    break
                free[place] = False
        return tuple(found)

    def _hash(self, round: int) -> tuple[I64, I64]:
        """Return the cells and the signs of all candidates in a round: int64 [rows, candidates]
        each.
        """
        if round not in self._hashes:
            self._hashes[round] = self.plan.spec.hashes(round).cells(self._ids, self.plan.width)
        return self._hashes[round]


def _most_of_some(each: I64, products: I64, max_items: int, square: float) -> float:
    """Return the largest sum of `each` over some items whose sketch is within a clip.

    All sets of items are tried.

    Args:
        each: a number for each item: int64 [items].
        products: the inner products of the items' sketches: int64 [items, items].
        max_items: the most items.
        square: the largest squared l2 norm of the sketch of all chosen items.
    """
    chosen = np.arange(1 << len(each))[:, None] >> np.arange(len(each)) & 1
    squares = np.einsum("si,ij,sj->s", chosen, products, chosen)
    fits = (squares <= square) & (chosen.sum(axis=1) <= max_items)
    return float((chosen[fits] @ each).max())


def law_of(terms: PrivacyConfig, clients: int) -> Distribution:
    """Return the distribution that the noise in a counter of a release must have, by the plan's
    terms.

    Args:
        terms: the privacy terms of the plan.
        clients: the number of clients (or silos) in the release. It matters only if clients add the
            noise.
    """
    event = terms.event
    if event.honest_survivors is None:
        variance = event.noise_variance
    else:  # each client adds a share of the noise, and the variances add up
        variance = event.noise_variance * clients / event.honest_survivors
    # Each of two servers adds the full noise, because the other server may be dishonest and add
    # none.
    return _DISTRIBUTIONS[event.mechanism](variance).times(event.draws_of_sum)


# Not computed by the code that draws the noise (`privacy.laws`): the audit would repeat its errors.
_DISTRIBUTIONS = {
    Mechanism.ROUNDED_GAUSSIAN: Distribution.rounded_gaussian,
    Mechanism.SKELLAM: Distribution.skellam,
    Mechanism.GEOMETRIC: Distribution.discrete_laplace,
}


def terms_of(plan: Plan) -> PrivacyConfig:
    """Return the privacy terms of a plan, which must have some."""
    assert plan.privacy is not None
    return plan.privacy
