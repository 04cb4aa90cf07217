"""The audit behind `fedtally audit`: is what a plan's campaigns release as noisy as the plan says?

Whole campaigns of the plan are run (`campaign.run`) on clients that are made up, so that the exact
sums are known. A release less its exact sum is noise, and noise must look like independent draws of
the plan's distribution in every way that `noise_checks` and `dependence_checks` have.
Besides, some clients hold something or not by the toss of a coin: what an attacker who knows
everything else tells of the coin bounds epsilon from below.

Every population is used twice, so that noise that follows from plan and data is seen to repeat.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import _validate, kernels
from fedtally.domain import IntegerRange
from fedtally.engines.local import campaign
from fedtally.engines.local.simulation import Simulation
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.planner.privacy import worst_pair
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.events import Relation, Trust
from fedtally.result import Progress, Result
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.sketch import CountSketch
from fedtally.sources import from_items
from fedtally.studies.dependence_checks import dependence_checks
from fedtally.studies.noise_checks import (
    Check,
    Distribution,
    Ranks,
    campaigns_to_see_unchanging,
    checks_of,
    detectable_scale,
    epsilon_bound,
    reordered,
    shared_with,
    unchanging,
    weighted_tail,
)

FALSE_ALARM = 1e-6  # that a sound engine fails an audit: all checks together
_COUNTERS = 12_000  # of each release, over all campaigns: noise 10 % too small is seen
_MOST_CAMPAIGNS = 1000
# campaigns that are run to see one counter without noise; enough but for very little noise
_MOST_FOR_A_COUNTER = 40
_CROWD = 1024  # clients of a round that hold too much, where the plan leaves it open
_STARTS = 16  # items with which a crowd's choice begins
_CHOICES = 1024  # of an item, about, for all releases
_MOST_OF_CROWDS = 16  # campaigns of each kind of crowd
_SEEN = 10.0  # standard deviations by which a crowd without its bound moves a release
_SURE = FALSE_ALARM / 1000  # the level of each check is above it
_CANDIDATES = 4096  # stand-ins for those of the plan
_CLIENTS = 64  # of a round, where the plan leaves it open
_COINS = 512  # clients with a coin in a campaign, at most
# standard deviations from the middle between the two worlds
_THRESHOLDS = (-2.0, -1.0, 0.0, 1.0, 2.0)
_DISTANCE_MARGIN = 1e-9
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Audit:
    """What is audited.

    Args:
        plan: with differential privacy.
        campaigns: how many are run, each population in two of them; None: as many as show noise
            that is 10 % too small in each release, at most 1,000, and a counter without noise, at
            most 40. An odd number is rounded up.
        dropout: of a real secure sum, the share of clients that drop out. Then all clients hold the
            same, so that the exact sum follows from their number, and epsilon is not bounded.
        clients: in each round; None: as few as the plan takes, or 64 where it leaves that open. Not
            used where their number is hidden.

    Raises:
        InvalidInputError: the plan has no privacy, or a value is out of bounds.
    """

    plan: Plan
    campaigns: int | None = None
    dropout: float = 0.0
    clients: int | None = None

    def __post_init__(self) -> None:
        if self.plan.privacy is None:
            raise InvalidInputError(
                "the plan has no differential privacy, so there is no noise to audit: make one with"
                " epsilon (fedtally plan --epsilon E)"
            )
        if self.campaigns is not None:
            _validate.integer(1, 1 << 20, campaigns=self.campaigns)
        if self.clients is not None:
            _validate.integer(1, self.plan.max_round_clients, clients=self.clients)

    @property
    def runs(self) -> int:
        """How many campaigns are run."""
        needed = math.ceil(_COUNTERS / (self.plan.rows * self.plan.width))
        terms = _terms(self.plan)
        distribution = law_of(terms, terms.event.honest_survivors or 1)
        counters = self.plan.rows * self.plan.width * len(self.plan.releases)
        unchanging = min(
            campaigns_to_see_unchanging(counters, distribution, _SURE), _MOST_FOR_A_COUNTER
        )
        number = self.campaigns or min(max(unchanging, needed), _MOST_CAMPAIGNS)
        return number + number % 2


class Release(NamedTuple):
    """What was measured of one of the plan's releases, over all campaigns.

    Attributes:
        rounds: that are added up in it, from 0.
        counters: how many were looked at.
        planned: root of the mean square of the planned noise.
        measured: root of the mean square of what was released less the exact sums.
        positive: the share of positive noise, of all that is not 0.
        correlation: the largest, in absolute value, with another release of the same campaign; of a
            plan of one release, with that of the next campaign.
    """

    rounds: range
    counters: int
    planned: float
    measured: float
    positive: float
    correlation: float


class Detection(NamedTuple):
    """What single clients gave away.

    Attributes:
        bound: epsilon is at least this; 0 where nothing was told.
        guaranteed: by the plan.
        clients: single clients with and without their items, in all campaigns.
        distance: the largest that one of these clients made, in all releases together (l2).
        sensitivity: what the plan allows for.
    """

    bound: float
    guaranteed: float
    clients: int
    distance: float
    sensitivity: float


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
        audit: what was audited.
        clients: in each round, or in all where their number is hidden.
        releases: one for each of the plan's.
        checks: all that were made.
        detection: what single clients gave away; None where none could be told apart.
        detectable: the deviation of the noise, as a share of the planned, that would be seen 99
            times in 100 in one release if it were smaller by this.
        bounds: on a client, that clients who hold too much were tested by: "items", "clip"; in how
            many campaigns.
    """

    audit: Audit
    clients: int
    releases: tuple[Release, ...]
    checks: tuple[Check, ...]
    detection: Detection | None
    detectable: float | None
    bounds: Mapping[str, int]

    @property
    def false_alarm(self) -> float:
        """The probability that the audit of a sound engine fails."""
        return FALSE_ALARM

    @property
    def level(self) -> float:
        """The probability below which a check fails."""
        return _level(len(self.checks))

    @property
    def failures(self) -> list[str]:
        """What is wrong, in words; nothing for a sound engine, but once in a million audits."""
        found = [check.failure for check in self.checks if check.probability < self.level]
        if (seen := self.detection) is not None:
            if seen.bound > seen.guaranteed:
                found.append(
                    f"epsilon is at least {seen.bound:.4g}, and {seen.guaranteed:.4g} is guaranteed"
                )
            if seen.distance > seen.sensitivity + _DISTANCE_MARGIN:
                found.append(
                    f"one client moves the releases by {seen.distance:.4g}, and the noise is for"
                    f" {seen.sensitivity:.4g}"
                )
        return found

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return not self.failures


def run(audit: Audit, progress: Progress | None = None) -> AuditResult:
    """Run the campaigns and check what they release. Nothing is charged to any ledger.

    Args:
        audit: what is audited.
        progress: called as ("audit", campaigns done, of all).

    Raises:
        InvalidInputError: no clients can be made up that the plan takes.

    >>> import fedtally
    >>> plan = fedtally.estimate([1, 2, 3], domain="range:1..9", epsilon=1.0, rows=3, width=64).plan
    >>> run(Audit(plan)).failures
    []
    """
    report = progress or (lambda *_: None)
    rng = np.random.default_rng(secrets.randbits(128))
    plan, domain = _stand_in(audit.plan)
    asked = Simulation.of(
        plan=plan, domain=domain, confidence=0.0, recovery="median", dropout=audit.dropout
    )
    design = _Design(plan, rng, audit)
    evidence = _Evidence(plan, design, rng)
    crowds = design.crowds(rng)
    total = audit.runs + sum(crowd.campaigns for crowd in crowds)
    for run_number in range(audit.runs):
        if run_number % 2 == 0:
            population = design.population(rng)
        evidence.add(population, campaign.run(population.source(), asked))
        report("audit", run_number + 1, total)
    done = audit.runs
    for crowd in crowds:
        for _ in range(crowd.campaigns):
            evidence.add_crowd(crowd, campaign.run(crowd.population.source(), asked))
            done += 1
            report("audit", done, total)
    return evidence.result(audit)


def _stand_in(plan: Plan) -> tuple[Plan, IntegerRange]:
    """Return the plan over integers as candidates, which no noise depends on; as few as keep its certificate."""
    said = None if plan.privacy is None else plan.privacy.event.collisions
    size = _CANDIDATES
    while size > 2 and said is not None:
        found = worst_pair(plan.spec, IntegerRange(1, size), lambda *_: None)
        if found.opposite <= said.opposite and found.excess <= said.excess:
            break
        size //= 2
    domain = IntegerRange(1, size)
    return replace(plan, domain=domain.describe()), domain


# ---- who takes part ----


class _Client(NamedTuple):
    """A client that is made up.

    Attributes:
        rounds: that it is in.
        held: its items, if its coin says yes.
        other: its items, if its coin says no.
        direction: by how much the one moves the releases from the other; nothing for a client
            without a coin.
    """

    rounds: tuple[int, ...]
    held: tuple[int, ...]
    other: tuple[int, ...]
    direction: tuple[_Moved, ...] = ()


class _Moved(NamedTuple):
    """Which counters of a release are moved, and by how much: int64 [moved] each."""

    release: int
    counters: I64
    by: I64

    @property
    def square(self) -> float:
        """The squared length."""
        return float(self.by @ self.by)


class _Crowd(NamedTuple):
    """Clients that all hold more than they may contribute, so that what they move a release by shows.

    Attributes:
        bound: which one they exceed: "items", or "clip".
        population: all of them.
        towards: of each release, the direction in which they would move it without that bound:
            int64 [rows * width].
        most: of each release, the largest product of one client's contribution with that direction.
        campaigns: in which a missing bound is seen.
    """

    bound: str
    population: _Population
    towards: Sequence[I64]
    most: Sequence[float]
    campaigns: int


class _Population(NamedTuple):
    """The clients of a campaign, and the coins of those that have one.

    Attributes:
        names_rounds: whether rows name their rounds.
        is_hidden: whether who takes part is secret: a client whose coin says no is not there.
        outside: an item that is no candidate. Every other client that holds nothing holds this.
    """

    clients: Sequence[_Client]
    coins: npt.NDArray[np.bool_]
    names_rounds: bool
    is_hidden: bool
    outside: int

    def holding(self) -> Iterator[tuple[int, _Client, tuple[int, ...]]]:
        """Yield everybody who takes part, with what it holds."""
        for i, (client, coin) in enumerate(zip(self.clients, self.coins.tolist(), strict=True)):
            if coin or not (self.is_hidden and client.direction):
                yield i, client, client.held if coin else client.other

    def source(self) -> Any:
        """Return the rows: one for each item, and one for a client that has none."""
        rows = [
            (item, i, round)
            for i, client, items in self.holding()
            for round in client.rounds
            for item in items or (self.outside if i % 2 else None,)
        ]
        items, clients, rounds = (list(column) for column in zip(*rows, strict=True))
        return from_items(items, clients=clients, rounds=rounds if self.names_rounds else None)


class _Design:
    """Clients for the campaigns of a plan: as many as it takes, in rounds that are known.

    Clients with a coin share no counter with each other, so that they are independent observations
    of the noise.
    """

    def __init__(self, plan: Plan, rng: np.random.Generator, audit: Audit) -> None:
        self.plan, self.terms = plan, _terms(plan)
        self._asked, self._dropout, self.alike = audit.clients, audit.dropout, audit.dropout > 0
        self.is_hidden = self.terms.event.relation.hides_number
        self._releases_of_plan = plan.releases
        self._release_of = {
            round: k for k, rounds in enumerate(self._releases_of_plan) for round in rounds
        }
        self._ids = np.arange(1, plan.domain_size + 1, dtype=np.uint64)
        self._hashes: dict[int, tuple[I64, I64]] = {}
        places = self._places()
        self.num_clients = len(places) if self.is_hidden else sum(0 in rounds for rounds in places)
        self.clients = self._clients(places, rng)

    def population(self, rng: np.random.Generator) -> _Population:
        """Toss the coins; those without one hold what they hold."""
        coins = rng.integers(0, 2, len(self.clients)).astype(np.bool_)
        coins |= np.array([not client.direction for client in self.clients])
        return _Population(
            self.clients, coins, not self.is_hidden, self.is_hidden, len(self._ids) + 1
        )

    def exact(self, population: _Population) -> list[I64]:
        """Return the sums of every release without noise: int64 [rows * width] each."""
        held: dict[int, list[int]] = {}
        for _, client, items in population.holding():
            for round in client.rounds:
                held.setdefault(round, []).extend(items)
        totals = [
            np.zeros(self.plan.rows * self.plan.width, np.int64) for _ in self._releases_of_plan
        ]
        for round, everything in held.items():
            totals[self._release_of[round]] += self.sketch(round, everything)
        return totals

    def sketch(self, round: int, items: Sequence[int]) -> I64:
        """Return the counters of some items in a round: int64 [rows * width]."""
        sketch = CountSketch(self.plan.spec, round)
        sketch.add(np.array(items, np.uint64))
        return sketch.counters.reshape(-1)

    def crowds(self, rng: np.random.Generator) -> list[_Crowd]:
        """Return crowds that exceed the bounds on a client; none for a bound that they could not show to be missing."""
        if self.is_hidden and len(self._releases_of_plan) > 1:  # nobody knows their rounds
            return []
        event = self.terms.event
        more = event.max_items + 1
        # the fewest that show it
        numbers = [more] if event.is_clipped else [more << i for i in range(9)]
        found = next(filter(None, (self._crowd("items", number, rng) for number in numbers)), None)
        clip = self._crowd("clip", event.max_items, rng) if event.is_clipped else None
        return [crowd for crowd in (found, clip) if crowd is not None]

    def _crowd(self, bound: str, number: int, rng: np.random.Generator) -> _Crowd | None:
        """Return clients of so many items each, or None if too few or too short to be seen."""
        if number > len(self._ids):
            return None
        held = [
            self._together(rounds.start, number, 1 if bound == "clip" else -1, rng)
            for rounds in self._releases_of_plan
        ]
        towards = [
            self.sketch(rounds.start, own)
            for rounds, own in zip(self._releases_of_plan, held, strict=True)
        ]
        places = self._places(_CROWD)
        clients = [
            _Client(rounds, own, own)
            for rounds in places
            for own in (held[self._release_of[rounds[0]]],)
        ]
        sets = [
            {
                held[self._release_of[rounds[0]]]
                for rounds in places
                if any(self._release_of[r] == k for r in rounds)
            }
            for k in range(len(self._releases_of_plan))
        ]
        most = [
            max(self._product(k, vector, own) for own in sets[k])
            for k, vector in enumerate(towards)
        ]
        norm = math.sqrt(self._square())
        needed = 0
        for k, vector in enumerate(towards):
            length = math.sqrt(float(vector @ vector))
            # What a client without this bound, but with the other one, contributes: all that it
            # holds.
            passes = bound == "clip" or not self.terms.event.is_clipped or length <= norm
            gap = length**2 - most[k] if passes else 0.0
            number_there = sum(self._release_of[r] == k for rounds in places for r in rounds)
            noise = length * math.sqrt(law_of(self.terms, number_there).variance)
            if gap * number_there * math.sqrt(_MOST_OF_CROWDS) < _SEEN * noise:
                return None
            needed = max(needed, math.ceil((_SEEN * noise / (gap * number_there)) ** 2))
        population = _Population(
            clients,
            np.ones(len(clients), np.bool_),
            not self.is_hidden,
            self.is_hidden,
            len(self._ids) + 1,
        )
        return _Crowd(bound, population, towards, most, needed)

    def _square(self) -> int:
        """Return the largest square of the norm of one contribution to a round, by the plan: items and clip."""
        event = self.terms.event
        most = event.max_items**2 * self.plan.rows
        return (
            most
            if event.clip_norm is None
            else min(most, max(1, math.floor(Fraction(event.clip_norm) ** 2)))
        )

    def _product(self, release: int, towards: I64, held: Sequence[int]) -> float:
        """Return the largest product with a direction that the plan lets a client contribute of what it holds."""
        cells, signs = self._hash(self._releases_of_plan[release].start)
        places = np.array(held, np.intp) - 1
        rows = np.arange(self.plan.rows)[:, None]
        each = (towards.reshape(self.plan.rows, -1)[rows, cells[:, places]] * signs[:, places]).sum(
            axis=0
        )
        best = np.sort(each[each > 0])[::-1][: self.terms.event.max_items]
        # Cauchy and Schwarz
        return min(float(best.sum()), math.sqrt(self._square() * float(towards @ towards)))

    def _together(
        self, round: int, number: int, sense: int, rng: np.random.Generator
    ) -> tuple[int, ...]:
        """Return so many items whose sketch is long (`sense` 1) or short (-1): the best of some greedy choices."""
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
                lengths[np.array(found) - 1] = -(1 << 40)
                found.append(int(lengths.argmax()) + 1)
                away += self.sketch(round, found[-1:])
            square = sense * int(away @ away)
            if square > best_square:
                best, best_square = tuple(found), square
        return best

    def _places(self, most_usual: int = _CLIENTS) -> list[tuple[int, ...]]:
        """Return the rounds of each client; `most_usual` of them in a round where the plan leaves it open."""
        plan, together = self.plan, self.terms.event.participations
        # so many that noise does not take the number to 0; they are drawn where nobody sees it
        if self.is_hidden:
            most = 24 * self.terms.stddev * math.sqrt(len(self._releases_of_plan))
            return [(0,)] * (_CLIENTS + math.ceil(most))
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
        number = plan.num_rounds
        return [
            tuple(sorted((first + i) % number for i in range(together)))
            for first in range(number)
            for _ in range(starting)
        ]

    def _fewest(self) -> int:
        """Return the fewest clients of a round that the plan takes."""
        agreed = self.plan.secure_sum
        if isinstance(agreed, SecAggConfig):
            return agreed.parameters.n_min
        if isinstance(agreed, TwoServerConfig):
            return -(-agreed.min_batch // min(map(len, self._releases_of_plan)))
        return self.terms.event.honest_survivors or 1

    def _clients(self, places: list[tuple[int, ...]], rng: np.random.Generator) -> list[_Client]:
        # nobody knows their rounds: none holds anything
        if self.is_hidden and len(self._releases_of_plan) > 1:
            return [_Client(rounds, (), ()) for rounds in places]
        pool, used = (
            len(self._ids),
            np.zeros((len(self._releases_of_plan), self.plan.rows, self.plan.width), np.bool_),
        )
        if self.alike:
            common = self._worst(range(self.plan.num_rounds), None, np.ones(pool, np.bool_))
            return [_Client(rounds, common, common) for rounds in places]
        found, left = [], dict.fromkeys(places, -(-_COINS // len(set(places))))
        for rounds in places:
            told = self._told_apart(rounds, used, rng) if left[rounds] else None
            left[rounds] = 0 if told is None else left[rounds] - 1
            usual = (int(rng.integers(1, pool + 1)),)
            found.append(told or _Client(rounds, usual, usual))
        return found

    def _told_apart(
        self, rounds: tuple[int, ...], used: Any, rng: np.random.Generator
    ) -> _Client | None:
        """Return a client with a coin, in counters that no other such client uses; None if there are too few."""
        free = np.ones(len(self._ids), np.bool_)
        rows = np.arange(self.plan.rows)[:, None]
        for round in rounds:
            free &= ~used[self._release_of[round]][rows, self._hash(round)[0]].any(axis=0)
        # another half for each: not always the same items
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
            moved[k] = moved.get(k, 0) + difference
            for items in (held, other):
                cells = self._hash(round)[0][:, np.array(items, np.intp) - 1]
                used[k][rows, cells] = True
        parts = ((k, np.flatnonzero(vector), vector) for k, vector in moved.items())
        return _Client(
            rounds,
            held,
            other,
            tuple(_Moved(k, where, vector[where]) for k, where, vector in parts),
        )

    def _worst(
        self, rounds: Sequence[int], against: tuple[int, ...] | None, free: Any
    ) -> tuple[int, ...]:
        """Return items of one client that make its sketch, less that of `against`, long; within the clip in all rounds.

        One by one the item is taken that adds the most; of equal ones the first.
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
        """Return the cell and the sign of every candidate in a round: [rows, candidates]."""
        if round not in self._hashes:
            own = self.plan.spec.round_hash(round)
            cells = kernels.locations(kernels.hash_words(own.location, self._ids), self.plan.width)
            self._hashes[round] = (
                cells,
                kernels.signs(kernels.hash_words(own.sign, self._ids), own.sign_bit),
            )
        return self._hashes[round]


# ---- what they release ----


class _Evidence:
    """What all campaigns released, less the exact sums."""

    def __init__(self, plan: Plan, design: _Design, rng: np.random.Generator) -> None:
        self._plan, self._design, self._rng = plan, design, rng
        self._terms = _terms(plan)
        self._releases = len(plan.releases)
        self._residuals: list[list[I64]] = [[] for _ in range(self._releases)]
        self._exact: list[list[I64]] = [[] for _ in range(self._releases)]
        self._clients: list[list[int]] = [[] for _ in range(self._releases)]
        self._numbers: list[int] = []
        self._told: list[tuple[int | None, bool, F64]] = []
        self._shown: list[Any] = []
        self._crowds: dict[str, list[tuple[_Crowd, list[float], list[Distribution]]]] = {}

    def add_crowd(self, crowd: _Crowd, result: Result) -> None:
        """Add a campaign of clients that hold too much: by how much they move each release too far."""
        found = {sketch.round: sketch for sketch in result.sketches}
        excess, distributions = [], []
        for rounds, towards, most in zip(
            self._plan.releases, crowd.towards, crowd.most, strict=True
        ):
            sketch = found[rounds.start]
            number = len(crowd.population.clients) if self._design.is_hidden else sketch.num_clients
            excess.append(float(sketch.counters.reshape(-1) @ towards) - number * most)
            distributions.append(self._distribution(number))
        self._crowds.setdefault(crowd.bound, []).append((crowd, excess, distributions))

    def _bounds(self) -> list[Check]:
        """Check that no crowd moves a release by more than the plan lets its clients."""
        checks = []
        for bound, seen in self._crowds.items():
            crowd = seen[0][0]
            tails = [
                weighted_tail(
                    sum(excess[k] for _, excess, _ in seen),
                    towards,
                    [distributions[k] for _, _, distributions in seen],
                )
                for k, towards in enumerate(crowd.towards)
            ]
            failure = (
                f"clients that hold too much ({bound}) move a release by more than the plan says"
                " one client may"
            )
            checks.append(Check(f"bounds, {bound}", len(tails) * min(tails), failure))
        return checks

    def add(self, population: _Population, result: Result) -> None:
        """Add a campaign."""
        found = {sketch.round: sketch for sketch in result.sketches}
        exact = self._exact_sums(population, result)
        for k, rounds in enumerate(self._plan.releases):
            sketch = found[rounds.start]
            self._residuals[k].append(sketch.counters.reshape(-1) - exact[k])
            self._exact[k].append(exact[k])
            self._clients[k].append(sketch.num_clients)
        there = sum(1 for _ in population.holding())
        self._numbers.append(sum(sketch.num_clients for sketch in result.sketches) - there)
        self._shown.append(_shown(result, self._design.is_hidden))
        self._tell(population)

    def _exact_sums(self, population: _Population, result: Result) -> list[I64]:
        if not self._design.alike:
            return self._design.exact(population)
        held, numbers = (
            population.clients[0].held,
            {s.round: s.num_clients for s in result.sketches},
        )
        starts = [rounds.start for rounds in self._plan.releases]
        return [numbers[start] * self._design.sketch(start, held) for start in starts]

    def _tell(self, population: _Population) -> None:
        """Note what an attacker sees of each coin: about 1 where it says yes, and 0 where no."""
        variances = [self._distribution(clients[-1]).variance for clients in self._clients]
        for client, coin in zip(population.clients, population.coins.tolist(), strict=True):
            joint = np.zeros(2)
            for moved in client.direction:
                k = moved.release
                own = (
                    np.array([self._residuals[k][-1][moved.counters] @ moved.by, moved.square])
                    / variances[k]
                )
                self._told.append((k, coin, np.array([own[0] / own[1] + coin, own[1]])))
                joint += own
            if client.direction:
                self._told.append((None, coin, np.array([joint[0] / joint[1] + coin, joint[1]])))

    def _distribution(self, clients: int) -> Distribution:
        return law_of(self._terms, clients)

    def result(self, audit: Audit) -> AuditResult:
        """Check everything."""
        ranks = [
            Ranks.joined(
                [
                    Ranks.of(noise, self._distribution(n), self._rng)
                    for noise, n in zip(own, numbers, strict=True)
                ]
            )
            for own, numbers in zip(self._residuals, self._clients, strict=True)
        ]
        checks = checks_of(ranks, [np.stack(own) for own in self._exact], self._plan.rows)
        checks.append(
            reordered(
                [noise for own in self._residuals for noise in own],
                self._distribution(self._clients[0][0]),
            )
        )
        distributions = [
            [self._distribution(number) for number in numbers] for numbers in self._clients
        ]
        noise = [np.stack(own) for own in self._residuals]
        checks.append(unchanging(noise, distributions))
        checks += dependence_checks(noise, distributions, self._plan.rows, self._rng)
        checks += self._checks_of_the_rest(ranks)
        checks += self._bounds()
        counters = len(ranks[0].side) * ranks[0].side.shape[1]
        return AuditResult(
            audit,
            self._design.num_clients,
            tuple(map(self._release, range(self._releases), _correlations(self._residuals))),
            tuple(checks),
            self._detection(FALSE_ALARM / 2),
            detectable_scale(counters, _level(len(checks))),
            {bound: len(seen) for bound, seen in self._crowds.items()},
        )

    def _checks_of_the_rest(self, ranks: list[Ranks]) -> list[Check]:
        """Check what is shown besides the sums, the number of clients first."""
        if self._design.alike:  # how many drop out, and when, shows
            return []
        same = all(shown == self._shown[0] for shown in self._shown)
        failure = "what is said of a campaign depends on what clients hold"
        found = [Check("shown", 1.0 if same else 0.0, failure)]
        if self._design.is_hidden:
            number = Ranks.of(
                np.array(self._numbers), self._distribution(0).times(self._releases), self._rng
            )
            failure = "the number of clients has the noise of a counter"
            return [
                *found,
                *number.checks("the number of clients"),
                shared_with(number.side[0], ranks, failure),
            ]
        same = len(set(self._numbers)) == 1
        return [
            *found,
            Check(
                "clients", 1.0 if same else 0.0, "the number of clients depends on what they hold"
            ),
        ]

    def _release(self, k: int, correlation: float) -> Release:
        noise = np.stack(self._residuals[k]).astype(np.float64)
        planned = np.mean([self._distribution(clients).variance for clients in self._clients[k]])
        positive, negative = int((noise > 0).sum()), int((noise < 0).sum())
        return Release(
            self._plan.releases[k],
            noise.size,
            math.sqrt(planned),
            math.sqrt(float(np.mean(noise**2))),
            positive / max(1, positive + negative),
            correlation,
        )

    def _detection(self, false_alarm: float) -> Detection | None:
        if not self._told:
            return None
        groups = [None, *range(self._releases)] if self._releases > 1 else [None]
        share = false_alarm / (2 * len(groups) * len(_THRESHOLDS))
        delta, best = self._terms.delta, 0.0
        for group in groups:
            seen = [(coin, told) for k, coin, told in self._told if k == group]
            if not seen:
                continue
            yes = np.array([told[0] for coin, told in seen if coin])
            no = np.array([told[0] for coin, told in seen if not coin])
            spread = 1 / math.sqrt(float(np.median([told[1] for _, told in seen])))
            for step in _THRESHOLDS:
                threshold = 0.5 + step * spread
                above, below = (
                    (yes > threshold, no > threshold),
                    (no <= threshold, yes <= threshold),
                )
                best = max(best, *(epsilon_bound(*pair, delta, share) for pair in (above, below)))
        longest = max(
            sum(moved.square for moved in client.direction) for client in self._design.clients
        )
        if self._design.is_hidden:
            longest += 1  # the number of clients, one more counter
        number = sum(k is None for k, _, _ in self._told)
        return Detection(
            best, self._terms.epsilon, number, math.sqrt(longest), self._terms.event.l2_sensitivity
        )


def law_of(terms: PrivacyConfig, clients: int) -> Distribution:
    """Return the distribution that a plan says the noise of a release has, from the plan's numbers alone.

    Args:
        terms: of the plan.
        clients: in the release.
    """
    event = terms.event
    if event.honest_survivors is not None:
        return Distribution.skellam(event.noise_variance * clients / event.honest_survivors)
    return Distribution.rounded_gaussian(event.noise_variance).times(
        2 if event.trust is Trust.DISTRIBUTED else 1
    )


def _level(checks: int) -> float:
    """Return below which probability one of so many checks fails; the other half is for the bound on epsilon."""
    return FALSE_ALARM / (2 * checks)


def _shown(result: Result, is_hidden: bool) -> Any:
    """Return what a result says besides its sums; all of it is to be the same whatever clients hold."""
    number = None if is_hidden else result.num_clients
    found = (
        number,
        len(result.sketches),
        result.warnings,
        result.missing,
        result.secure_sum,
        result.sizing,
    )
    return found if result.not_private else (*found, result.timings)


def _correlations(residuals: Sequence[Sequence[I64]]) -> list[float]:
    """Return the largest correlation of each release, in absolute value: see `Release`."""
    flat = np.stack([np.concatenate(own) for own in residuals]).astype(np.float64)
    if len(flat) == 1:
        flat = np.concatenate([flat, np.roll(flat, len(residuals[0][0]), axis=1)])
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1.0)
    products = flat @ flat.T
    np.fill_diagonal(products, 0.0)
    largest: list[float] = products[np.arange(len(flat)), np.abs(products).argmax(axis=1)].tolist()
    return largest[: len(residuals)]


def _terms(plan: Plan) -> PrivacyConfig:
    assert plan.privacy is not None
    return plan.privacy
