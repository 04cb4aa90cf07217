"""The invented clients of an audit, made for a plan so that every exact sum is known.

Most clients hold arbitrary items. For some clients a coin decides what they hold: what a release
reveals about the coin gives a lower bound on epsilon. The clients of a crowd hold more than a
client may contribute: they show whether the bounds on a client are enforced.

If the clients of the plan are silos, a "client" here is a person in them (`studies.audit_silos`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
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

_CROWD = 1024  # the clients of a crowd in a round, where the plan sets no limit
_STARTS = 16  # first items to try in the greedy choice of a crowd's items
_CHOICES = 1024  # steps of the greedy choice for all releases, about: bounds its time
_MOST_OF_CROWDS = 16  # campaigns for each kind of crowd; a crowd that needs more is left out
_SEEN = 10.0  # standard deviations by which a crowd must move a release if its bound is missing
USUAL_CLIENTS = 64  # clients of a round, where the plan sets no limit
_COINS = 512  # the most clients with a coin in a campaign: more reveal little and take time
I64 = npt.NDArray[np.int64]


class Client(NamedTuple):
    """An invented client.

    Attributes:
        rounds: the numbers of the rounds that it takes part in.
        held: the ids of its items if its coin says yes, or if it has no coin.
        other: the ids of its items if its coin says no.
        direction: the difference between the releases in the two cases (`Moved`); empty: the client
            has no coin.
        silos: the numbers of the silos that hold its items; empty: the plan has no silos.
    """

    rounds: tuple[int, ...]
    held: tuple[int, ...]
    other: tuple[int, ...]
    direction: tuple[Moved, ...] = ()
    silos: tuple[int, ...] = ()


class Moved(NamedTuple):
    """The counters that a client's coin changes in one release, and by how much.

    Attributes:
        release: the number of the release, from 0.
        counters: the indexes of the counters, int64 [n].
        by: the change of each of them, int64 [n].
    """

    release: int
    counters: I64
    by: I64

    @property
    def square(self) -> float:
        """The squared l2 norm of the change."""
        return float(self.by @ self.by)


class Crowd(NamedTuple):
    """Clients that all hold more than they may contribute, so that a missing bound shows.

    Attributes:
        bound: the bound that the clients exceed, "items", "clip" or "silos".
        population: the clients of the crowd.
        towards: for each release, the direction in which the clients move it if the bound is
            missing: int64 [rows * width].
        most: for each release, the largest inner product of one client's contribution with this
            direction, if the bound is enforced.
        campaigns: the number of campaigns after which a missing bound is detected.
    """

    bound: str
    population: Population
    towards: Sequence[I64]
    most: Sequence[float]
    campaigns: int


class Population(NamedTuple):
    """The clients of a campaign, and the coins of those that have one.

    Attributes:
        names_rounds: whether the rows of the table name their rounds.
        is_hidden: whether it is secret which clients take part. Then a client whose coin says no
            does not take part.
        outside: an item that is no candidate. Half of the clients without items hold this item
            instead.
    """

    clients: Sequence[Client]
    coins: npt.NDArray[np.bool_]
    names_rounds: bool
    is_hidden: bool
    outside: int

    def holding(self) -> Iterator[tuple[int, Client, tuple[int, ...]]]:
        """Yield every client that takes part, as (number, client, ids of its items)."""
        for i, (client, coin) in enumerate(zip(self.clients, self.coins.tolist(), strict=True)):
            if coin or not (self.is_hidden and client.direction):
                yield i, client, client.held if coin else client.other

    def source(self) -> Any:
        """Return the table: a row for each item, and a row for each client without items."""
        rows = [
            (item, i, round, silo)
            for i, client, items in self.holding()
            for round in client.rounds
            for silo in client.silos or (None,)
            # no item, and an item outside the domain, must give the same sketch
            for item in items or (self.outside if i % 2 else None,)
        ]
        items, clients, rounds, silos = (list(column) for column in zip(*rows, strict=True))
        return from_items(
            items,
            clients=clients,
            silos=None if silos[0] is None else silos,
            rounds=rounds if self.names_rounds else None,
        )


class Design:
    """The clients for the campaigns of a plan: a number that it accepts, in known rounds.

    Clients with a coin share no counter, so that they are independent observations of the noise.
    """

    def __init__(
        self, plan: Plan, rng: np.random.Generator, *, clients: int | None, dropout: float
    ) -> None:
        self.plan, self.terms = plan, terms_of(plan)
        self._asked, self._dropout = clients, dropout
        # With real dropouts it is unknown whose items are in the exact sum. If all clients hold the
        # same items, the number of survivors gives the exact sum.
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
        """Whether it is known which clients are in which release."""
        return self._names_rounds or len(self._releases_of_plan) == 1

    def population(self, rng: np.random.Generator) -> Population:
        """Return the clients after a toss of their coins; clients without a coin count as yes."""
        coins = rng.integers(0, 2, len(self.clients)).astype(np.bool_)
        coins |= np.array([not client.direction for client in self.clients])
        return Population(
            self.clients, coins, self._names_rounds, self.is_hidden, len(self._ids) + 1
        )

    def exact(self, population: Population) -> list[I64]:
        """Return the exact sum of every release, without noise: int64 [rows * width] each."""
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
        """Return the counters of the items with these ids in a round: int64 [rows * width]."""
        sketch = CountSketch(self.plan.spec, round)
        sketch.add(np.array(items, np.uint64))
        return sketch.counters.reshape(-1)

    def crowds(self, rng: np.random.Generator) -> list[Crowd]:
        """Return crowds of clients that exceed the bounds on a client.

        A bound has no crowd if no crowd could show that it is missing.
        """
        # If a client's rounds are drawn in secret, the direction of its contribution is unknown.
        if not self.are_rounds_known:
            return []
        event = self.terms.event
        more = event.max_items + 1
        # Use the fewest items that show a missing bound. With a clip, try only one item too many:
        # the clip would cut more items, and hide that the bound on items is missing.
        numbers = [more] if event.is_clipped else [more << i for i in range(9)]
        found = next(filter(None, (self._crowd("items", number, rng) for number in numbers)), None)
        clip = self._crowd("clip", event.max_items, rng) if event.is_clipped else None
        return [crowd for crowd in (found, clip) if crowd is not None]

    def _crowd(self, bound: str, number: int, rng: np.random.Generator) -> Crowd | None:
        """Return a crowd whose clients hold `number` items each.

        It is None if there can be no such crowd, or if it would not show that the bound is missing.
        """
        if number > len(self._ids):
            return None
        held = [
            self._together(rounds.start, number, -1 if bound == "items" else 1, rng)
            for rounds in self._releases_of_plan
        ]
        towards = [
            self.sketch(rounds.start, own)
            for rounds, own in zip(self._releases_of_plan, held, strict=True)
        ]
        places = self._crowd_places(bound)
        if not places:
            return None
        clients = []
        for rounds, silos in places:
            own = held[self._release_of[rounds[0]]]
            clients.append(Client(rounds, own, own, silos=silos))
        sets: list[set[tuple[int, ...]]] = [set() for _ in towards]
        for client in clients:
            for round in client.rounds:
                sets[self._release_of[round]].add(client.held)
        most = [
            max(self._product(k, vector, own) for own in sets[k])
            for k, vector in enumerate(towards)
        ]
        needed = [
            self._campaigns(bound, vector, most[k], self.number_in(clients, k))
            for k, vector in enumerate(towards)
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
        )
        return Crowd(bound, population, towards, most, max(seen))

    # The methods below differ for people in silos: `studies.audit_silos` overrides them.

    def _are_rounds_named(self) -> bool:
        """Return whether the rows of the table name their rounds."""
        return not self.is_hidden

    def _vectors_of(self, number: int) -> int:
        """Return the number of vectors that are sent with `number` contributions: one for each."""
        return number

    def _crowd_places(self, bound: str) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        """Return the rounds and the silos of each client of a crowd; [] if there is no crowd."""
        return [(rounds, self._silos_of(i)) for i, rounds in enumerate(self._places(_CROWD))]

    def _silos_of(self, number: int) -> tuple[int, ...]:
        """Return the silos of the client with this number: none."""
        return ()

    @property
    def _num_sure(self) -> int:
        """The number of clients that take part whatever the coins say."""
        return 0

    def _gap(self, bound: str, length: float, most: float) -> float:
        """Return how much farther a client of a crowd moves a release if its bound is missing.

        Args:
            bound: the bound that the crowd exceeds.
            length: the l2 norm of the sketch of everything that one client holds.
            most: the largest inner product of one contribution within the bound with the crowd's
                direction.
        """
        # If only the bound on items is missing, a client contributes everything that it holds,
        # provided that its sketch is within the clip.
        is_whole = not self.terms.event.is_clipped or length <= math.sqrt(self._square())
        return length**2 - most if bound == "clip" or is_whole else 0.0

    def _campaigns(self, bound: str, vector: I64, most: float, number: int) -> int | None:
        """Return after how many campaigns a missing bound shows in a release; None if never.

        Args:
            bound: the bound that the crowd exceeds.
            vector: the direction in which each client of the crowd would move the release.
            most: the largest inner product of one contribution within the bound with this
                direction.
            number: the most contributions of the crowd to the release.
        """
        length = math.sqrt(float(vector @ vector))
        gap = self._gap(bound, length, most)
        noise = length * math.sqrt(law_of(self.terms, self._vectors_of(number)).variance)
        # <=, not <: if the items' sketches cancel, there is no direction, and both sides are 0.
        if gap * number * math.sqrt(_MOST_OF_CROWDS) <= _SEEN * noise:
            return None
        return math.ceil((_SEEN * noise / (gap * number)) ** 2)

    def number_in(self, clients: Sequence[Client], release: int) -> int:
        """Return the most contributions that these clients may make to a release under the plan."""
        each = self.terms.event.silos_per_person
        return each * sum(
            self._release_of[round] == release for client in clients for round in client.rounds
        )

    def number_square(self, client: Client) -> int:
        """Return the squared l2 norm of one client's change of the hidden numbers of clients.

        It is 0 if the number of clients is not hidden.
        """
        if not self.is_hidden:
            return 0
        parts = range(len(self._releases_of_plan)) if self.are_rounds_known else range(1)
        return sum(self.number_in([client], k) ** 2 for k in parts)

    def _square(self) -> int:
        """Return the largest squared l2 norm of one contribution to a round under the plan."""
        event = self.terms.event
        most = event.encoding.exposure(self.plan.rows, event.max_items).square
        return (
            most
            if event.clip_norm is None
            else min(most, max(1, math.floor(Fraction(event.clip_norm) ** 2)))
        )

    def _product(self, release: int, towards: I64, held: Sequence[int]) -> float:
        """Return the largest inner product of a client's contribution with `towards`.

        The client holds the items with the ids `held`, and the plan's bounds are enforced.
        """
        cells, signs = self._hash(self._releases_of_plan[release].start)
        places = np.array(held, np.intp) - 1
        rows = np.arange(self.plan.rows)[:, None]
        each = (towards.reshape(self.plan.rows, -1)[rows, cells[:, places]] * signs[:, places]).sum(
            axis=0
        )
        best = np.sort(each[each > 0])[::-1][: self.terms.event.max_items]
        # the Cauchy-Schwarz inequality bounds the product of a clipped sketch
        return min(float(best.sum()), math.sqrt(self._square() * float(towards @ towards)))

    def _together(
        self, round: int, number: int, sense: int, rng: np.random.Generator
    ) -> tuple[int, ...]:
        """Return `number` items whose sketch has a large norm (`sense` 1) or a small one (-1).

        They are the best of several greedy choices, each with a different first item.
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
                lengths[np.array(found) - 1] = -(1 << 40)  # no item twice
                found.append(int(lengths.argmax()) + 1)
                away += self.sketch(round, found[-1:])
            square = sense * int(away @ away)
            if square > best_square:
                best, best_square = tuple(found), square
        return best

    def _places(self, most_usual: int = USUAL_CLIENTS) -> list[tuple[int, ...]]:
        """Return the rounds of each client.

        A round has up to `most_usual` clients if neither the plan nor the caller says how many.
        """
        plan, together = self.plan, self.terms.event.participations
        # The engine draws these clients' rounds itself, so 0 stands for any round. There are enough
        # clients that noise does not make their number negative, which would be cut off at 0.
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
        # each client takes part in as many rounds as the plan allows, and rounds have equal sizes
        number = plan.num_rounds
        in_a_row = self.terms.event.per_rounds or number
        return [
            tuple(round for round in range(number) if (round - first) % in_a_row < together)
            for first in range(in_a_row)
            for _ in range(starting)
        ]

    def _fewest(self) -> int:
        """Return the fewest clients of a round that the plan accepts."""
        summing, releases = self.plan.summing, self._releases_of_plan
        if self.plan.secure_sum is None:
            return self.terms.event.honest_survivors or 1
        together = summing.opened_together(releases) or [range(1)]
        return -(-summing.least_clients // min(map(len, together)))

    def _clients(self, places: list[tuple[int, ...]], rng: np.random.Generator) -> list[Client]:
        # If the rounds of clients are unknown, clients hold nothing: then the exact sums are 0.
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
        """Return a client with a coin, which changes counters that no other such client changes.

        Return None if too few counters are left.
        """
        free = np.ones(len(self._ids), np.bool_)
        rows = np.arange(self.plan.rows)[:, None]
        for round in rounds:
            free &= ~used[self._release_of[round]][rows, self._hash(round)[0]].any(axis=0)
        # a random half of the items for each client, so that clients hold different items
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
        """Return items of one client whose sketch, less the sketch of `against`, has a large norm.

        The client's sketch stays within the clip in all rounds. Items are chosen one by one: each
        time the item that adds the most to the norm, the first one among equals.
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
        """Return the cell and the sign of every candidate in a round: [rows, candidates] each."""
        if round not in self._hashes:
            self._hashes[round] = self.plan.spec.hashes(round).cells(self._ids, self.plan.width)
        return self._hashes[round]


def law_of(terms: PrivacyConfig, clients: int) -> Distribution:
    """Return the distribution that the noise of a release must have, from the plan's numbers.

    Args:
        terms: the privacy terms of the plan.
        clients: the number of clients (or silos) in the release.
    """
    event = terms.event
    if event.honest_survivors is None:
        variance = event.noise_variance
    else:  # each client adds a share of the noise, and the variances add up
        variance = event.noise_variance * clients / event.honest_survivors
    # each of two servers adds the full noise, since the other server may add none
    return _DISTRIBUTIONS[event.mechanism](variance).times(event.draws_of_sum)


# Computed independently of the noise code (`privacy.laws`): an audit must not share its errors.
_DISTRIBUTIONS = {
    Mechanism.ROUNDED_GAUSSIAN: Distribution.rounded_gaussian,
    Mechanism.SKELLAM: Distribution.skellam,
    Mechanism.GEOMETRIC: Distribution.discrete_laplace,
}


def terms_of(plan: Plan) -> PrivacyConfig:
    """Return the privacy terms of a plan, which must have some."""
    assert plan.privacy is not None
    return plan.privacy
