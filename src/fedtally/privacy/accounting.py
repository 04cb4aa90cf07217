"""What events cost together: (epsilon, delta), proven from above.

Of the methods that apply, the one with the smallest bound is taken, and named:

| method                      | holds for                                    | above the exact value by      |
|-----------------------------|----------------------------------------------|-------------------------------|
| `analytic-gaussian`         | rounded Gaussian noise                       | what rounding gains           |
| `dominating-gaussian`       | all noise; the clients' with a clip has only | `tools/accountant_gap.py`: 5  |
|                             | this                                         | rows and 2 items 0.23 % at    |
|                             |                                              | epsilon 1, 12 % at 8          |
| `privacy-loss-distribution` | integer noise, no clip that matters          | 1e-4 of it, and 1e-3 up to 20 |
| `gaussian-composition`      | several events, each chosen in view of what  | as `dominating-gaussian`      |
|                             | earlier ones showed                          |                               |

Loss distributions take up to 2^18 rows times releases; Skellam noise of a variance above 1e7, and
whatever is clipped, enters them as the Gaussian that dominates it.

Proofs: docs/privacy-proofs/. What the accountant does not know is an error. No amplification by
sampling, shuffling or the choice of cohorts is ever credited: whoever sees who takes part would not
be fooled by it.

Arithmetic is in floating point, with margins: 1e-8 of epsilon, and 1e-15 of delta for every
convolution, five times what was measured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from enum import StrEnum
from functools import cache, lru_cache, reduce
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.special import erfinv, i0e, ive, log_ndtr, ndtr

from fedtally import _validate
from fedtally.errors import InvalidInputError
from fedtally.privacy.events import Event, Mechanism, Relation

F64 = npt.NDArray[np.float64]
SECURE_SUM_DELTA = 2.0**-40  # of one secure sum: docs/protocol.md
# Variances beyond which noise is taken as the Gaussian that dominates it: rounding a Gaussian
# changes epsilon by less than 1e-5 of it there, and the Bessel functions of Skellam noise lose
# digits.
_AS_GAUSSIAN = {Mechanism.ROUNDED_GAUSSIAN: 1e4, Mechanism.SKELLAM: 1e7}
_STEPS = 100.0  # of the grid, in one standard deviation of a privacy loss
_STEPS_OF_TOTAL = 2000.0  # and in one of the total, where there are few atoms
_CANDIDATES = np.linspace(0.5, 1.0, 500)  # steps to choose from, relative to the largest
_FEW_ATOMS = 64
_LONGEST_GRID = 2**17  # of one loss, in either direction
_NEGLIGIBLE = 1e-20
_MATTERS = 1e-12
_VANISHING = 1e-290
_CONVOLUTION_ERROR = 1e-15
_TYPICAL = 1e-6  # delta
_LEAST_LISTED = 1e-12  # delta, beyond which a loss counts as infinite in a table
_LISTED = 2001  # losses from 0 on in a table
_MOST_FOLDS = 2**18
# epsilon of several campaigns: up to here what their samplers lack fits into what is set aside
MOST_ADAPTIVE = 25.0


class Method(StrEnum):
    """How a bound was computed."""

    ANALYTIC_GAUSSIAN = "analytic-gaussian"
    DOMINATING_GAUSSIAN = "dominating-gaussian"
    LOSS_DISTRIBUTION = "privacy-loss-distribution"
    GAUSSIANS = "gaussian-composition"


@dataclass(frozen=True)
class Guarantee:
    """A proven statement: the events together are (epsilon, delta)-differentially private.

    Attributes:
        epsilon: an upper bound.
        delta: an upper bound, everything included.
        method: how the number was found.
        relation: the neighbouring relation that it holds for.
        trust: `central`, `distributed`, or `central and distributed`: every party named must be
            trusted.
    """

    epsilon: float
    delta: float
    method: Method
    relation: Relation
    trust: str

    def __str__(self) -> str:
        return (
            f"epsilon {rounded_up(self.epsilon):g} at delta {rounded_up(self.delta):g} "
            f"({self.relation}, {self.trust} trust, {self.method})"
        )


def rounded_up(bound: float) -> float:
    """Return an upper bound with four digits, for people: still an upper bound.

    >>> rounded_up(2.1167001)
    2.117
    """
    return float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(repr(float(bound))))


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return z: Gaussian noise of standard deviation z times the l2 sensitivity is (epsilon, delta)-private.

    The analytic Gaussian mechanism (Balle and Wang 2018, Theorem 8): necessary and sufficient.

    >>> round(noise_multiplier(1.0, 1e-6), 4)
    4.2247
    """
    from dp_accounting import get_sigma_gaussian

    epsilon, delta = _validate.real(1e-6, 1e3, epsilon=epsilon), checked_delta(delta)
    # it is found by search, to about 1e-9
    return float(get_sigma_gaussian(epsilon, delta)) * (1 + 1e-8)


def epsilon(events: Event | Sequence[Event], delta: float, *, adaptive: bool = False) -> Guarantee:
    """Return the least proven epsilon at which the events together are (epsilon, delta)-private.

    Proof: docs/privacy-proofs/releases.md.

    Args:
        events: all that one client may be exposed to, pilots included.
        delta: in (0, 1), for all events together; 2^-40 for every secure sum, and what the sampler
            of the noise lacks, come out of it.
        adaptive: whether later events were, or may have been, chosen in view of what earlier ones
            showed: then several compose as the Gaussians that dominate them (`gaussian_bound`),
            since loss distributions do not.

    Raises:
        InvalidInputError: no events, one without variance, several relations, or a delta that is
            used up before.

    >>> print(epsilon(Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2), 1e-6))
    epsilon 0.9999 at delta 1e-06 (zero-out, central trust, privacy-loss-distribution)
    """
    found, delta = _checked(events), checked_delta(delta)
    return (
        Composition.of(found, delta).guarantee
        if adaptive and len(found) > 1
        else _guarantee(found, delta)
    )


def _guarantee(events: Sequence[Event], delta: float) -> Guarantee:
    fixed, variation = _slack(events)
    if delta <= fixed + 2 * variation:
        raise InvalidInputError(
            f"delta must exceed {fixed + 2 * variation:.3g}, which secure sums and the sampler of"
            f" the noise use up, got {delta:g}"
        )
    best = min((_solve(bound, delta - fixed, variation), bound.method) for bound in _bounds(events))
    return Guarantee(best[0], delta, best[1], events[0].relation, _trust(events))


@dataclass(frozen=True)
class Composition:
    """Campaigns of which each may be planned in view of what the earlier ones showed: a running total.

    They compose as Gaussians, at the part of delta that is not set aside (`set_aside`). What is set
    aside, once and for however many campaigns, bears secure sums and samplers: so delta is never
    exceeded. To add a campaign costs the same after a thousand as after one. Made by `of`. Proof:
    docs/privacy-proofs/releases.md, 5.

    Attributes:
        delta: for all campaigns together, fixed before the first.
        relation: of all of them.
        trust: every party that must be trusted.
        campaigns: how many.
        square: the sum of their mu^2.
        lost: of delta, by secure sums.
        variation: between what samplers draw and the ideal distributions.
        alone: the event, if there is but one: it costs what it costs alone.

    >>> event = Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)
    >>> both = Composition.of([event, event], 1e-6)
    >>> print(both.guarantee)
    epsilon 1.456 at delta 1e-06 (zero-out, central trust, gaussian-composition)
    >>> Composition.from_dict(both.to_dict(), event, 1e-6) == both
    True
    """

    delta: float
    relation: Relation
    trust: str
    campaigns: int
    square: float
    lost: float
    variation: float
    alone: Event | None

    @classmethod
    def of(cls, events: Sequence[Event], delta: float) -> Self:
        """Return the composition of one or more campaigns.

        Raises:
            InvalidInputError: as `epsilon`.
        """
        found, delta = _checked(events), checked_delta(delta)
        total = cls(delta, found[0].relation, str(found[0].trust), 0, 0.0, 0.0, 0.0, None)
        for event in found:
            total = total.plus(event)
        return total

    def plus(self, event: Event) -> Self:
        """Return the composition with one more campaign.

        Raises:
            InvalidInputError: the event is of another relation, or without variance.
        """
        _check_relations({str(self.relation), str(event.relation)})
        lost, variation = _slack([event])
        return replace(
            self,
            trust=" and ".join(sorted({*self.trust.split(" and "), str(event.trust)})),
            campaigns=self.campaigns + 1,
            square=_sum_above(self.square, gaussian_bound(event) ** 2),
            lost=_sum_above(self.lost, lost),
            variation=_sum_above(self.variation, variation),
            alone=None if self.campaigns else event,
        )

    @property
    def guarantee(self) -> Guarantee:
        """What the campaigns cost together.

        Raises:
            InvalidInputError: they use up what is set aside of delta.
        """
        if self.alone is not None:
            return _guarantee_alone(self.alone, self.delta)
        aside = set_aside(self.delta)
        found = _gaussian(math.sqrt(self.square), Method.GAUSSIANS).epsilon(self.delta - aside)
        lost = self.lost + (1 + math.exp(min(max(found, MOST_ADAPTIVE), 700.0))) * self.variation
        if lost > aside:
            raise InvalidInputError(
                f"of delta {self.delta:g} {aside:.3g} is set aside for secure sums and samplers of"
                f" noise, and it is used up by what {self.campaigns} campaigns take off it:"
                f" {lost:.3g}"
            )
        return Guarantee(found, self.delta, Method.GAUSSIANS, self.relation, self.trust)

    def to_dict(self) -> dict[str, Any]:
        """Return what `from_dict` needs besides an event and delta, as JSON-able values."""
        return {
            name: getattr(self, name)
            for name in ("campaigns", "square", "lost", "variation", "trust")
        }

    @classmethod
    def from_dict(cls, values: Any, event: Event, delta: float) -> Self:
        """Return the composition that `to_dict` described.

        Args:
            values: of `to_dict`.
            event: of the last of its campaigns.
            delta: of it.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds.
        """
        names = {"campaigns", "square", "lost", "variation", "trust"}
        if (
            not isinstance(values, Mapping)
            or set(values) != names
            or not isinstance(values["trust"], str)
        ):
            raise InvalidInputError(
                f"a composition is a table with {', '.join(sorted(names))}, got {values!r}"
            )
        number = _validate.integer(1, campaigns=values["campaigns"])
        square, lost, variation = (values[name] for name in ("square", "lost", "variation"))
        if not all(
            isinstance(value, float) and 0 <= value < math.inf
            for value in (square, lost, variation)
        ):
            raise InvalidInputError(
                f"the sums of a composition must be numbers of at least 0, got {values!r}"
            )
        alone = event if number == 1 else None
        return cls(delta, event.relation, values["trust"], number, square, lost, variation, alone)


def set_aside(delta: float) -> float:
    """Return the part of delta that campaigns do not compose at: a hundredth and 2^-28, at most a tenth.

    A campaign of clients' shares takes 2^-40 of it for every participation, others next to nothing.

    >>> [float(f"{set_aside(delta):.3g}") for delta in (1e-6, 1e-9)]
    [1.37e-08, 1e-10]
    """
    return min(delta / 10, delta / 100 + 2.0**-28)


@lru_cache(maxsize=256)
def _guarantee_alone(event: Event, delta: float) -> Guarantee:
    return _guarantee([event], delta)


def _sum_above(a: float, b: float) -> float:
    """Return a + b, rounded up: ten thousand sums stay above what they would be exactly."""
    return math.nextafter(a + b, math.inf)


def gaussian_bound(events: Event | Sequence[Event]) -> float:
    """Return mu: whatever the events show is a function of a Gaussian shifted by mu standard deviations.

    So it is mu-Gaussian differentially private (Dong, Roth and Su 2022), however later events were
    chosen in view of earlier ones. For rounded Gaussian noise mu is the distance over the standard
    deviation. For Skellam noise of variance v it is the distance times 2 Phi^-1((1 + p) / 2), p =
    e^-v I_0(v) the probability of 0: about (1 + 1 / (6 v)) / sqrt(v). For every integer vector of
    that Euclidean length, and the least for a vector of one 1.
    Proof: docs/privacy-proofs/skellam.md.

    >>> event = Event("skellam", 5, "zero-out", variance=500.0, honest_survivors=90)
    >>> round(gaussian_bound(event) / (5 / 500) ** 0.5, 5)
    1.00033
    """
    return math.sqrt(sum((event.l2_sensitivity * _unit(event)) ** 2 for event in _checked(events)))


def _unit(event: Event) -> float:
    """Return mu for a distance of 1."""
    if event.mechanism is Mechanism.ROUNDED_GAUSSIAN:
        return 1 / math.sqrt(event.noise_variance)
    # 2 Phi^-1((1 + p) / 2) without its rounding for small p; where p is close to 1 it is known to
    # 3e-9 of itself.
    return 2 * math.sqrt(2) * float(erfinv(i0e(event.noise_variance))) * (1 + 1e-8)


class Concentrated(NamedTuple):
    """A proven statement: but for a part of probability `delta`, what is seen is rho-zero-concentrated private.

    That is, some distributions within total variation `delta` of what is seen have Renyi
    divergences of at most alpha rho
    between neighbours, at every order alpha > 1 (Bun and Steinke 2016). Of events that are seen
    together, also adaptively, both numbers add up.
    """

    rho: float
    delta: float


def concentrated(events: Event | Sequence[Event]) -> Concentrated:
    """Return rho of all events together: mu^2 / 2 of the Gaussian that dominates them (`gaussian_bound`).

    Proof: docs/privacy-proofs/skellam.md.

    >>> round(concentrated(Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)).rho, 5)
    0.02801
    """
    found = _checked(events)
    fixed, variation = _slack(found)
    return Concentrated(gaussian_bound(found) ** 2 / 2, min(1.0, fixed + variation))


def delta(events: Event | Sequence[Event], epsilon: float) -> Guarantee:
    """Return the least proven delta at which the events together are (epsilon, delta)-private; see `epsilon`.

    >>> print(delta(Event("skellam", 5, "zero-out", variance=89.24, honest_survivors=100), 1.0))
    epsilon 1 at delta 9.083e-07 (zero-out, distributed trust, privacy-loss-distribution)
    """
    events, epsilon = _checked(events), _validate.real(0.0, 1e3, epsilon=epsilon)
    fixed, variation = _slack(events)
    at = np.array([epsilon])
    value, method = min((float(bound.deltas(at)[0]), bound.method) for bound in _bounds(events))
    total = value + fixed + (1 + math.exp(min(epsilon, 700.0))) * variation
    return Guarantee(epsilon, min(1.0, total), method, events[0].relation, _trust(events))


class PrivacyLoss(NamedTuple):
    """A distribution of the privacy loss that dominates the true one, on a grid; the same in both directions.

    Attributes:
        loss: float64 [n], rising, equally far apart; the last is infinite.
        probability: float64 [n], of each loss; together 1.
        delta: float64 [n], at epsilon equal to the loss, everything included; 0 for the infinite
            one.
    """

    loss: F64
    probability: F64
    delta: F64


def privacy_loss(events: Event | Sequence[Event]) -> PrivacyLoss:
    """Return the distribution of the privacy loss of all events together, from above.

    Its delta is that of the bound whose epsilon at delta 1e-6 is least, with what secure sums and
    the sampler of the noise add, connected linearly in e^epsilon between the points of the grid
    (docs/privacy-proofs/skellam.md). To compose it with others convolve the probabilities of equal
    grids.

    Raises:
        InvalidInputError: noise so little that nothing is bounded.

    >>> found = privacy_loss(Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2))
    >>> float(np.interp(1.0, found.loss[:-1], found.delta[:-1])) < 1.1e-6, round(float(found.probability.sum()), 9)
    (True, 1.0)
    """
    found = _checked(events)
    fixed, variation = _slack(found)
    bound = min(_bounds(found), key=lambda bound: (bound.epsilon(_TYPICAL), bound.method))
    end = bound.epsilon(_LEAST_LISTED)
    if not 0 < end < 300:
        raise InvalidInputError(
            "the noise is too little, or too much, for a table of its privacy loss"
        )
    loss = np.linspace(0.0, end, _LISTED)
    above = np.minimum(1.0, bound.deltas(loss) + fixed + (1 + np.exp(loss)) * variation)
    below = 1 - np.exp(-loss) * (1 - above)  # both directions are alike, so this is delta at -loss
    loss = np.concatenate([-loss[:0:-1], loss])
    delta = np.minimum.accumulate(np.concatenate([below[:0:-1], above]))
    # delta is the sum of (1 - e^(epsilon - loss)) probability over larger losses: linear in
    # e^epsilon between losses that occur, and a probability is how much its slope there falls.
    slope = np.append(np.diff(delta) / np.diff(np.exp(loss)), 0.0)
    probability = np.append(0.0, np.maximum(0.0, np.diff(slope) * np.exp(loss[1:])))
    probability[0] = max(0.0, 1 - probability.sum() - delta[-1])
    return PrivacyLoss(
        np.append(loss, math.inf), np.append(probability, delta[-1]), np.append(delta, 0.0)
    )


def calibrate(event: Event, epsilon: float, delta: float, *, others: Sequence[Event] = ()) -> float:
    """Return a variance at which the event and the others are (epsilon, delta)-private, found by search to 1e-6.

    It is the least one wherever the cost falls with the variance. It does not where noise is so
    little that its integers show (variances below 1), nor where a method reaches its limits; the
    target is met all the same.

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
    delta = checked_delta(delta)
    if others and _guarantee(_checked(others), delta).epsilon >= target:
        raise InvalidInputError(
            f"the other events alone reach epsilon {target:g} at delta {delta:g}: nothing is left"
        )

    @cache
    def found(variance: float) -> float:
        return _guarantee(_checked([*others, replace(event, variance=variance)]), delta).epsilon

    def suffices(variance: float) -> bool:
        return found(variance) <= target

    guess = min(max((event.l2_sensitivity * noise_multiplier(target, delta)) ** 2, 1e-8), 1e16)
    low, high = 0.9 * guess, 1.1 * guess
    while not suffices(high):
        low, high = high, 2 * high
        if high > 1e18:
            raise InvalidInputError(
                f"no noise reaches epsilon {target:g} at delta {delta:g}; raise either"
            )
    while low > 1e-8 and suffices(low):
        low, high = low / 2, low
    steps = 0
    while high > low * (1 + 1e-6):
        middle, steps = math.sqrt(low * high), steps + 1
        # Epsilon is about a power of the variance: look where that meets the target, a little above
        # and below in turn.
        if steps % 3 and found(high) < found(low) < math.inf and found(high) > 0:
            share = math.log(found(low) / target) / math.log(found(low) / found(high))
            meets = low * (high / low) ** share * (1 + (3e-7 if steps % 3 == 1 else -3e-7))
            middle = meets if low < meets < high else middle
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def realised(event: Event, survivors: int, corrupt: int) -> Event:
    """Return the event with the noise that a round really had: for information, never for a ledger.

    What is charged is the guarantee, made for `honest_survivors`; more of them add more noise:
    docs/privacy-proofs/shares.md.

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
            "only skellam noise comes in shares: rounded-gaussian noise is what it was planned"
            " to be"
        )
    corrupt = _validate.integer(0, corrupt=corrupt)
    honest = _validate.integer(corrupt + 1, survivors=survivors) - corrupt
    return replace(
        event,
        variance=event.noise_variance * honest / event.honest_survivors,
        honest_survivors=honest,
    )


def _checked(events: Event | Sequence[Event]) -> list[Event]:
    found = [events] if isinstance(events, Event) else list(events)
    if not found or not all(isinstance(event, Event) for event in found):
        raise InvalidInputError(f"events must be one or more Event, got {found!r}")
    _check_relations({str(event.relation) for event in found})
    for event in found:
        _ = event.noise_variance
    return found


def _check_relations(relations: set[str]) -> None:
    if len(relations) > 1:
        raise InvalidInputError(
            f"events of several relations do not compose, got {' and '.join(sorted(relations))}: a"
            " population has one, so use that of its first campaign (neighbours)"
        )


def checked_delta(delta: float) -> float:
    """Return delta, if it lies between 0 and 1, exclusive.

    >>> checked_delta(1.0)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: delta must lie between 0 and 1, exclusive, got 1
    """
    delta = _validate.real(0.0, 1.0, delta=delta)
    if not 0.0 < delta < 1.0:
        raise InvalidInputError(f"delta must lie between 0 and 1, exclusive, got {delta:g}")
    return delta


def _trust(events: Sequence[Event]) -> str:
    return " and ".join(sorted({str(event.trust) for event in events}))


def _slack(events: Sequence[Event]) -> tuple[float, float]:
    """Return what secure sums add to delta, and the total variation, of which (1 + e^epsilon) times is added."""
    sums = sum(event.participations for event in events if event.mechanism is Mechanism.SKELLAM)
    return sums * SECURE_SUM_DELTA, sum(
        event.participations * event.total_variation for event in events
    )


class _Bound(NamedTuple):
    """A curve of (epsilon, delta), from above, in both directions."""

    method: Method
    epsilon: Callable[[float], float]
    deltas: Callable[[F64], F64]


def _solve(bound: _Bound, delta: float, variation: float) -> float:
    """Return an epsilon, from above, whose delta by the bound, and (1 + e^epsilon) variation, are at most delta."""
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
    skellam = any(event.mechanism is Mechanism.SKELLAM for event in events)
    bounds = [
        _gaussian(
            gaussian_bound(events),
            Method.DOMINATING_GAUSSIAN if skellam else Method.ANALYTIC_GAUSSIAN,
        )
    ]
    folds = _folds(events)
    composed = (
        _loss_distribution(folds) if any(isinstance(pair, _Integer) for pair in folds) else None
    )
    return [*bounds, composed] if composed else bounds


def _margin(epsilon: float) -> float:
    return epsilon and epsilon * (1 + 1e-8) + 1e-11


# ---- Gaussian noise, and what it dominates ----


def _gaussian(mu: float, method: Method) -> _Bound:
    """What is seen is a function of one Gaussian with this shift (`gaussian_bound`), whose curve is known exactly."""
    from dp_accounting import get_epsilon_gaussian

    return _Bound(
        method,
        lambda delta: _margin(float(get_epsilon_gaussian(1 / mu, delta))),
        # Both terms nearly cancel where mu is small: their difference is known to about 1e-16 / mu
        # of itself.
        lambda epsilons: _gaussian_delta(mu, epsilons) * (1 + 1e-9 + 1e-13 / mu) + 1e-15,
    )


def _gaussian_delta(mu: float, epsilon: F64) -> F64:
    """Return Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
    upper, lower = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    delta: F64 = np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))
    return delta


# ---- privacy loss distributions ----


class _Integer(NamedTuple):
    """Integer noise of this distribution and variance, shifted by so much."""

    mechanism: Mechanism
    variance: float
    shift: int


class _Normal(NamedTuple):
    """A Gaussian shifted by mu standard deviations."""

    mu: float


class _Loss(NamedTuple):
    """The privacy loss of a pair of distributions.

    Attributes:
        stddev: its standard deviation.
        largest: a bound with negligible mass beyond.
        deltas: epsilons -> deltas.
        atoms: the losses and their masses, where they are few.
    """

    stddev: float
    largest: float
    deltas: Callable[[F64], F64]
    atoms: tuple[F64, F64] | None = None


def _folds(events: Sequence[Event]) -> Counter[_Integer | _Normal]:
    """Return the pairs of distributions that the events compose at worst, and how often each."""
    folds: Counter[_Integer | _Normal] = Counter()
    for event in events:
        if event.is_clipped or event.noise_variance > _AS_GAUSSIAN[event.mechanism]:
            folds[_Normal(gaussian_bound(event))] += 1
        else:
            for shift, number in event.shifts.items():
                folds[_Integer(event.mechanism, event.noise_variance, shift)] += number
    return folds


def _loss_distribution(folds: Counter[_Integer | _Normal]) -> _Bound | None:
    """Compose the pairs on one grid, each from above by connecting the dots (Doroshenko et al. 2022).

    Proof: docs/privacy-proofs/skellam.md.

    None: too many pairs, or one that hardly overlaps. How long the steps are decides how much is
    lost: `_step`.
    """
    from dp_accounting.pld import pld_pmf

    count = folds.total()
    losses = {
        pair: _normal_loss(pair) if isinstance(pair, _Normal) else _integer_loss(pair)
        for pair in folds
    }
    if count > _MOST_FOLDS or any(math.isinf(loss.largest) for loss in losses.values()):
        return None
    step = _step([(losses[pair], number) for pair, number in folds.items()])

    def composed(pair: _Integer | _Normal, number: int) -> Any:
        ends = max(1, math.ceil(losses[pair].largest / step))
        deltas: F64 = np.clip(losses[pair].deltas(step * np.arange(-ends, ends + 1.0)), 0.0, 1.0)
        falling = np.minimum.accumulate(deltas)  # but for rounding they fall
        one = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
            step, -ends, ends, falling
        ).to_dense_pmf()
        return one.self_compose(number) if number > 1 else one

    total = reduce(
        lambda a, b: a.compose(b, _CONVOLUTION_ERROR), (composed(*fold) for fold in folds.items())
    )
    error = count * _CONVOLUTION_ERROR

    def epsilon(delta: float) -> float:
        return (
            _margin(float(total.get_epsilon_for_delta(delta - error)))
            if delta > error
            else math.inf
        )

    def deltas(epsilons: F64) -> F64:
        at = np.minimum(epsilons, 700.0)  # where e^epsilon is finite
        return np.minimum(1.0, np.asarray(total.get_delta_for_epsilon(at), np.float64) + error)

    return _Bound(Method.LOSS_DISTRIBUTION, epsilon, deltas)


def _step(losses: Sequence[tuple[_Loss, int]]) -> float:
    """Return the step of the grid for so many of each loss.

    Connecting the dots splits a loss at a fraction f of a step h between its ends, which adds a
    variance of about f (1 - f) h^2. Where losses are close, 100 steps a standard deviation, on
    average over all pairs, will do. Where they are few, delta has a kink at every sum of them: the
    grid is finer there, and of the steps between h / 2 and h the one is taken that adds least, so
    that most losses lie on the grid: docs/privacy-proofs/skellam.md.
    """
    count = sum(number for _, number in losses)
    total = math.sqrt(sum(number * loss.stddev**2 for loss, number in losses))
    step, least = (
        total / math.sqrt(count) / _STEPS,
        max(loss.largest for loss, _ in losses) / _LONGEST_GRID,
    )
    few = [(*loss.atoms, number) for loss, number in losses if loss.atoms is not None]
    if not few:
        return max(step, least)
    steps = max(min(step, total / _STEPS_OF_TOTAL), 2 * least) * _CANDIDATES
    fractions = [np.mod(at / steps[:, None], 1.0) for at, _, _ in few]
    added = sum(
        number * (f * (1 - f)) @ mass for f, (_, mass, number) in zip(fractions, few, strict=True)
    )
    return float(steps[np.argmin(steps**2 * added)])


def _normal_loss(pair: _Normal) -> _Loss:
    return _Loss(
        pair.mu, pair.mu**2 / 2 + 10 * pair.mu, lambda epsilon: _gaussian_delta(pair.mu, epsilon)
    )


def _integer_loss(pair: _Integer) -> _Loss:
    """The loss of a log-concave distribution against itself shifted: it rises, so that its deltas are differences of
    tails.
    """
    distribution, shift = _distribution(pair.mechanism, pair.variance), pair.shift
    tail = np.append(np.cumsum(distribution[::-1])[::-1], 0.0)  # [j]: at least the j-th outcome
    overlap = len(distribution) - shift
    # so little noise that the two distributions hardly meet
    if overlap <= 0 or tail[overlap] > 0.5:
        return _Loss(0.0, math.inf, np.ones_like)
    loss = np.maximum.accumulate(
        np.log(distribution[:overlap]) - np.log(distribution[shift:])
    )  # at the outcomes from the shift-th on
    mean = np.average(loss, weights=distribution[:overlap])
    stddev = math.sqrt(np.average((loss - mean) ** 2, weights=distribution[:overlap]))
    negligible = int(np.argmax(tail < _NEGLIGIBLE))
    largest = max(float(loss[min(negligible, len(loss) - 1)]), stddev)

    def deltas(epsilon: F64) -> F64:
        first = np.searchsorted(loss, epsilon, side="right")
        delta: F64 = tail[first] - np.exp(epsilon) * tail[first + shift]
        return delta

    matters = distribution[:overlap] > _MATTERS
    atoms = (
        (loss[matters], distribution[:overlap][matters]) if matters.sum() <= _FEW_ATOMS else None
    )
    return _Loss(stddev, largest, deltas, atoms)


def _distribution(mechanism: Mechanism, variance: float) -> F64:
    """Return the probabilities of the integers around 0, symmetric, as far as they do not vanish."""
    stddev = math.sqrt(variance)
    k = np.arange(math.ceil(38 * stddev) + 250, dtype=np.float64)
    gaussian = mechanism is Mechanism.ROUNDED_GAUSSIAN
    rounded = ndtr((0.5 - k) / stddev) - ndtr((-0.5 - k) / stddev)
    half = np.asarray(rounded if gaussian else ive(k, variance), np.float64)
    half = half[: int(np.argmin(np.append(half[1:], 0.0) > _VANISHING)) + 1]
    return np.concatenate([half[:0:-1], half])
