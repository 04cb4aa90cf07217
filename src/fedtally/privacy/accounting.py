"""What a campaign releases, described; and what that costs: (epsilon, delta), proven from above.

An `Event` describes the noised sums that a campaign opens, never a number of privacy: a ledger stores events. Three
methods bound what a list of events costs together; of those that apply, the smallest bound is returned and named:

| method                      | holds for                                       | above the exact value by            |
|-----------------------------|-------------------------------------------------|-------------------------------------|
| `analytic-gaussian`         | rounded Gaussian noise alone                    | what rounding to integers gains     |
| `privacy-loss-distribution` | integer noise, no clip that matters             | 1e-4 of it; 1e-3 if variance < 1    |
| `renyi-bound`               | all noise; Skellam with a clip has nothing else | 8 % at epsilon 1, 20 to 50 % at 8   |

Loss distributions take up to 2^18 rows times openings and a Skellam variance up to 1e7; beyond, a weaker bound is left.

Proofs: docs/privacy-proofs/. What the accountant does not know is an error. No amplification by sampling, shuffling or
the choice of cohorts is ever credited: whoever sees who takes part would not be fooled by it.

Arithmetic is in floating point, with margins: 1e-8 of epsilon, and 1e-15 of delta for every convolution, ten times what
was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from decimal import ROUND_CEILING, Context
from enum import StrEnum
from functools import reduce
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.special import ive, log_ndtr, ndtr

from fedtally import _validate
from fedtally.errors import InvalidInputError

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
SCHEMA = "fedtally-event/1"
SECURE_SUM_DELTA = 2.0**-40  # of one secure sum: docs/protocol.md
MAX_PARTICIPATIONS = 2**20
_LARGEST_SKELLAM = 1e7  # variance: beyond it the Bessel functions lose digits
_ROUNDING_MATTERS = 1e4  # variance: beyond it rounding a Gaussian changes epsilon by less than 1e-5 of it
_STEPS = 100  # grid steps in one standard deviation of a privacy loss
_LONGEST_GRID = 2**20
_NEGLIGIBLE = 1e-20
_VANISHING = 1e-290
_CONVOLUTION_ERROR = 1e-15
_MOST_FOLDS = 2**18
_ORDERS = sorted({*range(2, 65), *np.geomspace(64, 2**24, 250).astype(int).tolist()})


_OPTIONAL = ("variance", "clip_norm", "honest_survivors", "collisions")  # None, and left out of an event's record


class _Named(StrEnum):
    @classmethod
    def parse(cls, name: str) -> Self:
        """Return the member of that name."""
        try:
            return cls(name)
        except ValueError:
            kind = cls.__name__.lower()
            raise InvalidInputError(f"{kind} must be one of {', '.join(cls)}, got {name!r}") from None


class Mechanism(_Named):
    """The closed list of mechanisms.

    `ROUNDED_GAUSSIAN`: a trusted aggregator adds it once to what it opens. `SKELLAM`: every client adds a share of it
    before secure summation.
    """

    ROUNDED_GAUSSIAN = "rounded-gaussian"
    SKELLAM = "skellam"

    @property
    def trust(self) -> str:
        """Whom the number trusts: `central`, an aggregator that sees the sums, or `distributed`, honest clients."""
        return "central" if self is Mechanism.ROUNDED_GAUSSIAN else "distributed"


class Relation(_Named):
    """Which two data sets shall look alike.

    `ZERO_OUT`: one client's contribution is replaced by zeros. `REPLACE_ONE`: it is replaced by any other. In both, who
    takes part in which round is public, the same in both data sets, and must not depend on the data: a client that
    moves to another round is not covered. `ADD_REMOVE`: the client is there or not; every opening then holds the number
    of its clients as one more counter, with the same noise.
    """

    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"
    ADD_REMOVE = "add-remove"


class Method(_Named):
    """How a bound was computed."""

    ANALYTIC_GAUSSIAN = "analytic-gaussian"
    LOSS_DISTRIBUTION = "privacy-loss-distribution"
    RENYI = "renyi-bound"


class Collisions(NamedTuple):
    """How two candidate items may meet under the public hashes: from `certify`.

    Attributes:
        opposite: the most rows in which two items share a cell with opposite signs.
        excess: the most such rows less the rows in which the same two share a cell with the same sign; at least 0.
    """

    opposite: int
    excess: int


@dataclass(frozen=True)
class Event:
    """What one client's contribution to a campaign, or to a pilot, is exposed to.

    Args:
        mechanism: the noise, or its name.
        rows: L; an item adds +1 or -1 to one counter of each row.
        relation: the neighbouring relation, or its name; `add-remove` with rounded Gaussian noise alone.
        variance: of the noise in one counter of one opening; None: still to be found, by `calibrate`.
        max_items: the most distinct items of one client in one round.
        clip_norm: the largest Euclidean norm of one client's sketch in one round, which the client enforces; None: no
            such bound, and all items may share their cells.
        participations: the most rounds that hold a contribution of one client; the client counts them.
        per_opening: the most of these whose rounds are added up before anything is opened. 1: every round is opened;
            `participations`: only their total is.
        honest_survivors: n_h, the honest clients whose shares make up `variance`, min_survivors - C; for Skellam noise.
        collisions: certified for the hashes of all rounds, for replace-one over a closed domain, clients of one item
            and rounds opened one by one. None: any two items may collide in all rows.
        total_variation: between the noise as drawn and the ideal law, over all draws of one opening together.

    Raises:
        InvalidInputError: a value is out of bounds, or two do not fit each other.

    >>> event = Event("rounded-gaussian", rows=16, relation="zero-out", participations=4)
    >>> event.l2_sensitivity, replace(event, per_opening=4).l2_sensitivity
    (8.0, 16.0)
    >>> Event.from_dict(event.to_dict()) == event
    True
    """

    mechanism: Mechanism
    rows: int
    relation: Relation
    variance: float | None = None
    max_items: int = 1
    clip_norm: float | None = None
    participations: int = 1
    per_opening: int = 1
    honest_survivors: int | None = None
    collisions: Collisions | None = None
    total_variation: float = 0.0

    def __post_init__(self) -> None:
        def keep(**checked: Any) -> None:
            for name, value in checked.items():
                object.__setattr__(self, name, value)

        keep(mechanism=Mechanism.parse(self.mechanism), relation=Relation.parse(self.relation))
        keep(rows=_validate.integer(1, 1024, rows=self.rows))
        keep(max_items=_validate.integer(1, 2**20, max_items=self.max_items))
        keep(participations=_validate.integer(1, MAX_PARTICIPATIONS, participations=self.participations))
        keep(per_opening=_validate.integer(1, self.participations, per_opening=self.per_opening))
        keep(total_variation=_validate.real(0.0, 1.0, total_variation=self.total_variation))
        for name, most in (("variance", 1e18), ("clip_norm", 1e9)):
            if getattr(self, name) is not None:
                keep(**{name: _validate.real(1e-9, most, **{name: getattr(self, name)})})
        if self.mechanism is Mechanism.SKELLAM:
            keep(honest_survivors=_validate.integer(1, honest_survivors=self.honest_survivors))
        elif self.honest_survivors is not None:
            raise InvalidInputError("honest_survivors belongs to skellam: rounded-gaussian noise is drawn at once")
        if self.relation is Relation.ADD_REMOVE and self.mechanism is Mechanism.SKELLAM:
            raise InvalidInputError(
                "add-remove needs the number of clients with noise, which a secure sum reveals: "
                "choose zero-out or replace-one, or rounded-gaussian noise"
            )
        if self.collisions is not None:
            keep(collisions=self._checked_collisions(self.collisions))

    def _checked_collisions(self, collisions: Collisions) -> Collisions:
        if self.relation is not Relation.REPLACE_ONE or self.max_items > 1 or self.per_opening > 1:
            raise InvalidInputError(
                "collisions are certified for replace-one, max_items 1 and per_opening 1, "
                f"not for {self.relation}, {self.max_items} and {self.per_opening}: leave them out"
            )
        opposite, excess = _pair(collisions)
        opposite = _validate.integer(0, self.rows, opposite=opposite)
        return Collisions(opposite, _validate.integer(0, opposite, excess=excess))

    @property
    def openings(self) -> list[tuple[int, int]]:
        """The worst openings for a client, as (participations in it, number of such openings)."""
        full, rest = divmod(self.participations, self.per_opening)
        return [(self.per_opening, full), *([(rest, 1)] if rest else [])]

    @property
    def num_openings(self) -> int:
        """How many openings that holds."""
        return sum(number for _, number in self.openings)

    @property
    def l2_sensitivity(self) -> float:
        """The largest distance of what neighbours add to all openings: docs/privacy-proofs/sensitivity.md."""
        return math.sqrt(self._round_square * sum(number * r * r for r, number in self.openings))

    @property
    def is_clipped(self) -> bool:
        """Whether the clip bounds more than the number of items does."""
        return self.clip_norm is not None and self.clip_norm < self.max_items * math.sqrt(self.rows)

    @property
    def _round_square(self) -> float:
        """The square of the l2 sensitivity of one participation."""
        if self.collisions is not None:
            return 2.0 * (self.rows + self.collisions.excess)
        own = min(self.max_items**2 * self.rows, math.inf if self.clip_norm is None else self.clip_norm**2)
        return {Relation.ZERO_OUT: own, Relation.REPLACE_ONE: 4 * own, Relation.ADD_REMOVE: own + 1}[self.relation]

    @property
    def _shifts(self) -> Counter[int]:
        """How often the law of a counter is shifted by how much, at worst: docs/privacy-proofs/sensitivity.md."""
        shifts: Counter[int] = Counter()
        worlds = 2 if self.relation is Relation.REPLACE_ONE else 1
        for r, number in self.openings:
            if self.collisions is None:
                shifts[worlds * self.max_items * r] += self.rows * number
            else:
                shifts[2] += self.collisions.opposite * number
                shifts[1] += 2 * (self.rows - self.collisions.opposite) * number
            if self.relation is Relation.ADD_REMOVE:
                shifts[r] += number
        return +shifts

    @property
    def noise_variance(self) -> float:
        """The variance; an error where it is still to be found."""
        if self.variance is None:
            raise InvalidInputError("the event has no variance yet: find one with calibrate")
        return self.variance

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-able values."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        values |= {"mechanism": str(self.mechanism), "relation": str(self.relation)}
        if self.collisions is not None:
            values["collisions"] = list(self.collisions)
        return {"schema": SCHEMA, **values}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Event:
        """Return the event that `to_dict` described.

        Raises:
            InvalidInputError: another schema, an unknown or missing entry, or a value out of bounds.
        """
        if not isinstance(values, Mapping) or values.get("schema") != SCHEMA:
            raise InvalidInputError(f"an event is a table of schema {SCHEMA!r}, got {values!r}")
        found = {name: value for name, value in values.items() if name != "schema"}
        known = [field.name for field in fields(cls)]
        wrong = [name for name in found if name not in known]
        wrong += [name for name in known if name not in found and name not in _OPTIONAL]
        if wrong:
            raise InvalidInputError(f"unknown or missing entries of an event: {', '.join(map(str, wrong))}")
        if "collisions" in found:
            found["collisions"] = _pair(found["collisions"])
        return cls(**found)


def _pair(collisions: Any) -> Collisions:
    if not isinstance(collisions, list | tuple) or len(collisions) != 2:
        raise InvalidInputError(f"collisions must be two integers, got {collisions!r}")
    return Collisions(*collisions)


@dataclass(frozen=True)
class Guarantee:
    """A proven statement: the events together are (epsilon, delta)-differentially private.

    Attributes:
        epsilon: an upper bound.
        delta: an upper bound, everything included.
        method: how the number was found.
        relation: the neighbouring relation that it holds for.
        trust: `central`, `distributed`, or `central and distributed`: every party named must be trusted.
    """

    epsilon: float
    delta: float
    method: Method
    relation: Relation
    trust: str

    def __str__(self) -> str:
        up = Context(prec=4, rounding=ROUND_CEILING).create_decimal_from_float
        return (
            f"epsilon {float(up(self.epsilon)):g} at delta {float(up(self.delta)):g} "
            f"({self.relation}, {self.trust} trust, {self.method})"
        )


# ---- sensitivity ----


def default_clip_norm(rows: int, width: int, max_items: int) -> float:
    """Return a clip that hardly ever binds: sqrt(k L (1 + 4 sqrt(2 / (L W)))) for k items.

    The squared norm of a sketch of k items has mean k L and, relative to it, a standard deviation of
    sqrt(2 (1 - 1/k) / (L W)): this is four of them above. Any clip is private; a smaller one drops items.

    >>> round(default_clip_norm(5, 1000, 20), 3)
    10.392
    """
    rows, width = _validate.integer(1, rows=rows), _validate.integer(1, width=width)
    max_items = _validate.integer(1, max_items=max_items)
    return math.sqrt(max_items * rows * (1 + 4 * math.sqrt(2 / (rows * width))))


def certify(hashes: Iterable[tuple[npt.NDArray[np.integer[Any]], I64]]) -> Collisions:
    """Return how any two of the candidate items collide at worst, over all rounds: exact, by enumeration.

    Two items that share cells in opposite signs in o rows and in equal signs in s are sqrt(2 L + 2 (o - s)) apart in a
    sketch. Pairs with o >= 2 are found by the cells of two rows together; where there is none, one row decides. Time:
    O(L^2 d log d), and the pairs that meet in two rows, about L^2 d^2 / (2 W)^2.

    Args:
        hashes: for each round (locations, signs): integers [L, d], cells of a row and +1 or -1.

    Raises:
        InvalidInputError: no rounds, or other shapes.

    >>> certify([(np.zeros((3, 2), np.int64), np.array([[1, -1], [1, -1], [1, 1]]))])
    Collisions(opposite=2, excess=1)
    """
    found = [_certify_round(np.asarray(locations), np.asarray(signs)) for locations, signs in hashes]
    if not found:
        raise InvalidInputError("hashes must hold at least one round, got none")
    return Collisions(max(one.opposite for one in found), max(one.excess for one in found))


def _certify_round(locations: npt.NDArray[np.integer[Any]], signs: I64) -> Collisions:
    if locations.ndim != 2 or locations.shape != signs.shape or not locations.size:
        raise InvalidInputError(
            f"locations and signs must be [rows, items] of one shape, got {locations.shape} and {signs.shape}"
        )
    rows, cells = len(locations), locations.astype(np.int64)
    cells_of, signs_of = cells.T.copy(), signs.T.copy()
    opposite, excess = 0, 0

    def consider(first: I64, second: I64) -> None:
        nonlocal opposite, excess
        meet = cells_of[first] == cells_of[second]
        differ = (meet & (signs_of[first] != signs_of[second])).sum(axis=1)
        opposite = max(opposite, int(differ.max(initial=0)))
        excess = max(excess, int((2 * differ - meet.sum(axis=1)).max(initial=0)))

    for a in range(rows):
        for b in range(a + 1, rows):
            alike = (signs[a] == signs[b]).astype(np.int64)  # where both signs differ, their products are equal
            key = (cells[a] * (int(cells[b].max()) + 1) + cells[b]) * 2 + alike
            for pair in _opposite_pairs(key, signs[a]):
                consider(*pair)
            if excess == rows:
                return Collisions(opposite, excess)
    for a in range(rows):
        for pair in _opposite_pairs(cells[a], signs[a]):
            if excess >= 1:  # more than 1 takes two rows: all such pairs were met above
                return Collisions(opposite, excess)
            consider(*pair)
    return Collisions(opposite, excess)


def _opposite_pairs(key: I64, sign: I64) -> Iterator[tuple[I64, I64]]:
    """Yield all pairs of items of equal key and opposite sign, in blocks of at most as many as items."""
    order = np.argsort(key, kind="stable")
    key = key[order]
    for step in range(1, len(key)):
        start = np.flatnonzero(key[step:] == key[:-step])
        if not len(start):
            return
        first, second = order[start], order[start + step]
        differ = sign[first] != sign[second]
        yield first[differ], second[differ]


# ---- what events cost ----


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return z: Gaussian noise of standard deviation z times the l2 sensitivity is (epsilon, delta)-private.

    The analytic Gaussian mechanism (Balle and Wang 2018, Theorem 8): necessary and sufficient.

    >>> round(noise_multiplier(1.0, 1e-6), 4)
    4.2247
    """
    from dp_accounting import get_sigma_gaussian

    epsilon, delta = _validate.real(1e-6, 1e3, epsilon=epsilon), _checked_delta(delta)
    return float(get_sigma_gaussian(epsilon, delta)) * (1 + 1e-8)  # it is found by search, to about 1e-9


def epsilon(events: Event | Sequence[Event], delta: float) -> Guarantee:
    """Return the least proven epsilon at which the events together are (epsilon, delta)-private.

    Args:
        events: all that one client may be exposed to, pilots included.
        delta: in (0, 1), for all events together; 2^-40 for every secure sum, and what the sampler of the noise lacks,
            come out of it.

    Raises:
        InvalidInputError: no events, one without variance, several relations, or a delta that is used up before.

    >>> print(epsilon(Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2), 1e-6))
    epsilon 0.9999 at delta 1e-06 (zero-out, central trust, privacy-loss-distribution)
    """
    return _guarantee(_checked(events), _checked_delta(delta))


def _guarantee(events: Sequence[Event], delta: float) -> Guarantee:
    fixed, variation = _slack(events)
    if delta <= fixed + 2 * variation:
        raise InvalidInputError(
            f"delta must exceed {fixed + 2 * variation:.3g}, which secure sums and the sampler of the noise use up, "
            f"got {delta:g}"
        )
    best = min((_solve(bound, delta - fixed, variation), bound.method) for bound in _bounds(events))
    return Guarantee(best[0], delta, best[1], events[0].relation, _trust(events))


def delta(events: Event | Sequence[Event], epsilon: float) -> Guarantee:
    """Return the least proven delta at which the events together are (epsilon, delta)-private; see `epsilon`.

    >>> print(delta(Event("skellam", 5, "zero-out", variance=89.24, honest_survivors=100), 1.0))
    epsilon 1 at delta 9.083e-07 (zero-out, distributed trust, privacy-loss-distribution)
    """
    events, epsilon = _checked(events), _validate.real(0.0, 1e3, epsilon=epsilon)
    fixed, variation = _slack(events)
    value, method = min((bound.delta(epsilon), bound.method) for bound in _bounds(events))
    total = value + fixed + (1 + math.exp(min(epsilon, 700.0))) * variation
    return Guarantee(epsilon, min(1.0, total), method, events[0].relation, _trust(events))


def calibrate(event: Event, epsilon: float, delta: float, *, others: Sequence[Event] = ()) -> float:
    """Return a variance at which the event and the others are (epsilon, delta)-private, found by bisection to 1e-6.

    It is the least one wherever the cost falls with the variance. It does not where noise is so little that its
    integers show (variances below 1), nor where a method reaches its limits; the target is met all the same.

    Args:
        event: its own variance is not looked at.
        epsilon: the target.
        delta: the target, for all together.
        others: what the client was or will be exposed to besides, such as a pilot.

    Raises:
        InvalidInputError: as `epsilon`; or the others alone leave nothing.

    >>> event = Event("skellam", 5, "zero-out", honest_survivors=100)
    >>> round(calibrate(event, 1.0, 1e-6) ** 0.5 / (5**0.5 * noise_multiplier(1.0, 1e-6)), 4)
    0.9954
    """
    target = _validate.real(1e-6, 1e3, epsilon=epsilon)
    delta = _checked_delta(delta)
    if others and _guarantee(_checked(others), delta).epsilon >= target:
        raise InvalidInputError(f"the other events alone reach epsilon {target:g} at delta {delta:g}: nothing is left")

    def suffices(variance: float) -> bool:
        return _guarantee(_checked([*others, replace(event, variance=variance)]), delta).epsilon <= target

    guess = min(max((event.l2_sensitivity * noise_multiplier(target, delta)) ** 2, 1e-8), 1e16)
    low, high = 0.9 * guess, 1.1 * guess
    while not suffices(high):
        low, high = high, 2 * high
        if high > 1e18:
            raise InvalidInputError(f"no noise reaches epsilon {target:g} at delta {delta:g}; raise either")
    while low > 1e-8 and suffices(low):
        low, high = low / 2, low
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def realised(event: Event, survivors: int, corrupt: int) -> Event:
    """Return the event with the noise that a round really had: for information, never for a ledger.

    What is charged is the promise, made for `honest_survivors`; more of them add more noise.

    Args:
        event: with Skellam noise.
        survivors: of the round, at least one more than corrupt.
        corrupt: C, the clients whose shares do not count.

    >>> event = Event("skellam", 5, "zero-out", variance=90.0, honest_survivors=100)
    >>> realised(event, survivors=130, corrupt=10).variance
    108.0
    """
    if event.honest_survivors is None:
        raise InvalidInputError(
            "only skellam noise comes in shares: rounded-gaussian noise is what it was planned to be"
        )
    corrupt = _validate.integer(0, corrupt=corrupt)
    honest = _validate.integer(corrupt + 1, survivors=survivors) - corrupt
    return replace(event, variance=event.noise_variance * honest / event.honest_survivors, honest_survivors=honest)


def _checked(events: Event | Sequence[Event]) -> list[Event]:
    found = [events] if isinstance(events, Event) else list(events)
    if not found or not all(isinstance(event, Event) for event in found):
        raise InvalidInputError(f"events must be one or more Event, got {found!r}")
    relations = sorted({str(event.relation) for event in found})
    if len(relations) > 1:
        raise InvalidInputError(f"events of several relations do not compose, got {' and '.join(relations)}")
    for event in found:
        _ = event.noise_variance
    return found


def _checked_delta(delta: float) -> float:
    delta = _validate.real(0.0, 1.0, delta=delta)
    if not 0.0 < delta < 1.0:
        raise InvalidInputError(f"delta must lie between 0 and 1, exclusive, got {delta:g}")
    return delta


def _trust(events: Sequence[Event]) -> str:
    return " and ".join(sorted({event.mechanism.trust for event in events}))


def _slack(events: Sequence[Event]) -> tuple[float, float]:
    """Return what secure sums add to delta, and the total variation, of which (1 + e^epsilon) times is added."""
    sums = sum(event.participations for event in events if event.mechanism is Mechanism.SKELLAM)
    return sums * SECURE_SUM_DELTA, sum(event.participations * event.total_variation for event in events)


class _Bound(NamedTuple):
    """A curve of (epsilon, delta), from above, in both directions."""

    method: Method
    epsilon: Callable[[float], float]
    delta: Callable[[float], float]


def _solve(bound: _Bound, delta: float, variation: float) -> float:
    """Return an epsilon, from above, with bound.delta(epsilon) + (1 + e^epsilon) variation <= delta."""
    least = 0.0
    for _ in range(100):
        left = delta - (1 + math.exp(min(least, 700.0))) * variation
        found = bound.epsilon(left) if left > 0 else math.inf
        if found <= least:
            return least
        least = found * (1 + 1e-12)
    return math.inf


def _bounds(events: Sequence[Event]) -> list[_Bound]:
    """Return the bounds that apply, at least one."""
    skellam = [event for event in events if event.mechanism is Mechanism.SKELLAM]
    bounds = [_renyi(events) if skellam else _analytic_gaussian(events)]
    if not any(event.is_clipped or event.noise_variance > _LARGEST_SKELLAM for event in skellam):
        folds = _folds(events)
        composed = _loss_distribution(folds) if any(isinstance(pair, _Integer) for pair in folds) else None
        bounds += [composed] if composed else []
    return bounds


def _margin(epsilon: float) -> float:
    return epsilon and epsilon * (1 + 1e-8) + 1e-11


# ---- Gaussian noise ----


def _analytic_gaussian(events: Sequence[Event]) -> _Bound:
    """Rounding is post-processing, and Gaussians compose to one (Dong, Roth and Su 2022, Corollary 3.3)."""
    from dp_accounting import get_epsilon_gaussian

    mu = math.sqrt(sum(event.l2_sensitivity**2 / event.noise_variance for event in events))
    return _Bound(
        Method.ANALYTIC_GAUSSIAN,
        lambda delta: _margin(float(get_epsilon_gaussian(1 / mu, delta))),
        # Both terms nearly cancel where mu is small: their difference is known to about 1e-16 / mu of itself.
        lambda epsilon: float(_gaussian_delta(mu, np.array([epsilon]))[0]) * (1 + 1e-9 + 1e-13 / mu) + 1e-15,
    )


def _gaussian_delta(mu: float, epsilon: F64) -> F64:
    """Return Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
    upper, lower = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    delta: F64 = np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))
    return delta


# ---- Renyi ----


def _renyi(events: Sequence[Event]) -> _Bound:
    """The curve of the Skellam mechanism (Agarwal, Kairouz and Liu 2021, Corollary 4.1), at integer orders."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta, compute_epsilon

    orders = np.array(_ORDERS, dtype=np.float64)
    curve = np.sum([_renyi_curve(event, orders) for event in events], axis=0)
    return _Bound(
        Method.RENYI,
        lambda delta: _margin(float(compute_epsilon(_ORDERS, curve, delta)[0])),
        lambda epsilon: float(compute_delta(_ORDERS, curve, epsilon)[0]) * (1 + 1e-9),
    )


def _renyi_curve(event: Event, orders: F64) -> F64:
    """Return the divergence of one event at integer orders: with l2 <= d2 and, of integers, l1 <= min(d1, d2^2)."""
    variance, curve = event.noise_variance, np.zeros_like(orders)
    small, large = np.zeros_like(orders), 0.0
    absolute = (2 if event.relation is Relation.REPLACE_ONE else 1) * event.max_items * event.rows
    # With several openings of several rounds each, only what is linear or convex in the rounds of an opening is known
    # to be worst where they are concentrated.
    is_mixed = 1 < event.per_opening < event.participations
    for r, number in event.openings:
        square = event._round_square * r * r
        curve += number * orders * square / (2 * variance)
        total = absolute * r if is_mixed else min(absolute * r, square)
        small += number * ((2 * orders - 1) * square + 6 * total) / (4 * variance**2)
        large += number * 3 * total / (2 * variance)
    return curve + (np.minimum(small, large) if event.mechanism is Mechanism.SKELLAM else 0.0)


# ---- privacy loss distributions ----


class _Integer(NamedTuple):
    """Integer noise of this law and variance, shifted by so much."""

    mechanism: Mechanism
    variance: float
    shift: int


class _Normal(NamedTuple):
    """A Gaussian shifted by mu standard deviations."""

    mu: float


class _Loss(NamedTuple):
    """The privacy loss of a pair of laws: its standard deviation, a bound with negligible mass beyond, its deltas."""

    deviation: float
    largest: float
    deltas: Callable[[F64], F64]


def _folds(events: Sequence[Event]) -> Counter[_Integer | _Normal]:
    """Return the pairs of laws that the events compose at worst, and how often each."""
    folds: Counter[_Integer | _Normal] = Counter()
    for event in events:
        variance = event.noise_variance
        if event.mechanism is Mechanism.ROUNDED_GAUSSIAN and (event.is_clipped or variance > _ROUNDING_MATTERS):
            folds[_Normal(event.l2_sensitivity / math.sqrt(variance))] += 1
        else:
            for shift, number in event._shifts.items():
                folds[_Integer(event.mechanism, variance, shift)] += number
    return folds


def _loss_distribution(folds: Counter[_Integer | _Normal]) -> _Bound | None:
    """Compose the pairs on one grid, each from above by connecting the dots (Doroshenko et al. 2022).

    That adds at most h^2 / 4 to the variance of a loss, for steps h: 1/100 of a standard deviation, on average over all
    pairs, adds less than 2.5e-5 of the variance of the total. None: the grid would be too long.
    """
    from dp_accounting.pld import pld_pmf

    count = folds.total()
    losses = {pair: _normal_loss(pair) if isinstance(pair, _Normal) else _integer_loss(pair) for pair in folds}
    step = math.sqrt(sum(n * losses[pair].deviation ** 2 for pair, n in folds.items()) / count) / _STEPS
    if count > _MOST_FOLDS or max(loss.largest for loss in losses.values()) > _LONGEST_GRID * step:
        return None

    def composed(pair: _Integer | _Normal, number: int) -> Any:
        ends = max(1, math.ceil(losses[pair].largest / step))
        deltas: F64 = np.clip(losses[pair].deltas(step * np.arange(-ends, ends + 1.0)), 0.0, 1.0)
        falling = np.minimum.accumulate(deltas)  # but for rounding they fall
        one = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, -ends, ends, falling).to_dense_pmf()
        return one.self_compose(number) if number > 1 else one

    total = reduce(lambda a, b: a.compose(b, _CONVOLUTION_ERROR), (composed(*fold) for fold in folds.items()))
    error = count * _CONVOLUTION_ERROR

    def epsilon(delta: float) -> float:
        return _margin(float(total.get_epsilon_for_delta(delta - error))) if delta > error else math.inf

    def delta(epsilon: float) -> float:
        return min(1.0, float(total.get_delta_for_epsilon(epsilon)) + error)

    return _Bound(Method.LOSS_DISTRIBUTION, epsilon, delta)


def _normal_loss(pair: _Normal) -> _Loss:
    return _Loss(pair.mu, pair.mu**2 / 2 + 10 * pair.mu, lambda epsilon: _gaussian_delta(pair.mu, epsilon))


def _integer_loss(pair: _Integer) -> _Loss:
    """The loss of a log-concave law against itself shifted: it rises, so that its deltas are differences of tails."""
    law, shift = _law(pair.mechanism, pair.variance), pair.shift
    tail = np.append(np.cumsum(law[::-1])[::-1], 0.0)  # [j]: at least the j-th outcome
    overlap = len(law) - shift
    if overlap <= 0 or tail[overlap] > 0.5:  # so little noise that the two laws hardly meet
        return _Loss(0.0, math.inf, np.ones_like)
    loss = np.maximum.accumulate(np.log(law[:overlap]) - np.log(law[shift:]))  # at the outcomes from the shift-th on
    mean = np.average(loss, weights=law[:overlap])
    deviation = math.sqrt(np.average((loss - mean) ** 2, weights=law[:overlap]))
    negligible = int(np.argmax(tail < _NEGLIGIBLE))
    largest = max(float(loss[min(negligible, len(loss) - 1)]), deviation)

    def deltas(epsilon: F64) -> F64:
        first = np.searchsorted(loss, epsilon, side="right")
        delta: F64 = tail[first] - np.exp(epsilon) * tail[first + shift]
        return delta

    return _Loss(deviation, largest, deltas)


def _law(mechanism: Mechanism, variance: float) -> F64:
    """Return the probabilities of the integers around 0, symmetric, as far as they do not vanish."""
    deviation = math.sqrt(variance)
    k = np.arange(math.ceil(38 * deviation) + 250, dtype=np.float64)
    gaussian = mechanism is Mechanism.ROUNDED_GAUSSIAN
    rounded = ndtr((0.5 - k) / deviation) - ndtr((-0.5 - k) / deviation)
    half = np.asarray(rounded if gaussian else ive(k, variance), np.float64)
    half = half[: int(np.argmin(np.append(half[1:], 0.0) > _VANISHING)) + 1]
    return np.concatenate([half[:0:-1], half])
