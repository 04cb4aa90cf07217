"""Privacy losses of integer noise: their distributions on one grid, and their Renyi divergences.

Every step rounds upwards, so that the composed curve lies above the true one. Proofs:
docs/privacy-proofs/skellam.md and renyi.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np

from fedtally.privacy import library
from fedtally.privacy.bounds import F64, Bound, Method, with_margin
from fedtally.privacy.events import Event, Mechanism
from fedtally.privacy.gaussian import gaussian_delta
from fedtally.privacy.laws import LAWS, gaussian_bound

# Steps of the grid in one standard deviation of a privacy loss. More steps make epsilon less
# pessimistic and convolutions slower: with 100 epsilon is 1e-4 above the exact value.
_STEPS = 100.0
# Steps in one standard deviation of the total, where there are few atoms: delta then has a kink at
# every sum of losses, which a coarser grid would cut off.
_STEPS_OF_TOTAL = 2000.0
# Steps to choose from, relative to the largest: a grid on which most losses lie adds least.
_CANDIDATES = np.linspace(0.5, 1.0, 500)
_FEW_ATOMS = 64  # a distribution of more atoms than this has no kinks that matter
_LONGEST_GRID = 2**17  # points of one loss in either direction: bounds memory and time
# A tail below this is rounded up to a loss at the end of the grid: far below any delta in use.
_NEGLIGIBLE = 1e-20
_MATTERS = 1e-12  # the least mass of an atom that has a say in the choice of the step
_MOST_FOLDS = 2**18  # pairs: from there on their errors add up to more than small deltas
_OVERFLOWS = 700.0  # e^epsilon is a finite double up to about 709


class _Integer(NamedTuple):
    """Integer noise of this distribution and variance, against itself shifted."""

    mechanism: Mechanism
    variance: float
    shift: int


class _Normal(NamedTuple):
    """A Gaussian against itself shifted by mu standard deviations."""

    mu: float


class _Loss(NamedTuple):
    """The privacy loss of a pair of distributions.

    Attributes:
        stddev: its standard deviation.
        largest: a loss that is exceeded with negligible probability only.
        deltas: maps epsilons to deltas.
        atoms: the losses and their masses, where they are few.
    """

    stddev: float
    largest: float
    deltas: Callable[[F64], F64]
    atoms: tuple[F64, F64] | None = None


def loss_bound(events: Sequence[Event]) -> Bound | None:
    """Return the curve of the events by their loss distributions.

    It is None where loss distributions gain nothing over Gaussians, since no noise enters as
    integers; where there are too many pairs; and where the noise is so little that the
    distributions of a pair hardly overlap.

    >>> event = Event("skellam", 5, "zero-out", variance=89.24, honest_survivors=100)
    >>> bound = loss_bound([event])
    >>> bound is not None and 0.9 < bound.epsilon(1e-6) < 1.0
    True
    """
    folds = _folds(events)
    if not any(isinstance(pair, _Integer) for pair in folds):
        return None
    return _composed(tuple(folds.items()))


def renyi_divergence(event: Event, order: float) -> float:
    """Return a bound of the Renyi divergence between neighbours of an event, at an order above 1.

    It is that of the pairs of distributions which dominate the event, in either direction, or
    infinity where little noise and a large order leave no bound. Divergences of events add up,
    also of events that are chosen in view of earlier ones. Proof: docs/privacy-proofs/renyi.md.

    >>> event = Event("skellam", 1, "zero-out", variance=4, honest_survivors=90)
    >>> round(renyi_divergence(event, 2.0), 4), 2.0 / (2 * 4)
    (0.2457, 0.25)
    """
    return sum(number * _renyi(pair, order) for pair, number in _folds([event]).items())


@lru_cache(maxsize=256)
def _renyi(pair: _Integer | _Normal, order: float) -> float:
    """Return the Renyi divergence of a pair, from above."""
    if isinstance(pair, _Normal):
        return with_margin(order * pair.mu**2 / 2)
    law = LAWS[pair.mechanism]
    if (known := law.divergence(pair.variance, pair.shift, order)) is not None:
        return with_margin(known)
    logs = np.log(_distribution(pair.mechanism, pair.variance))
    overlap = len(logs) - pair.shift
    if overlap <= 0:
        return math.inf
    # E[e^((order - 1) loss)], outcome by outcome: the loss rises with the outcome
    terms = logs[:overlap] + (order - 1) * (logs[:overlap] - logs[pair.shift :])
    # Beyond the largest outcome a term is at most `factor` times the one before.
    last = overlap - 1 - len(logs) // 2  # the outcome: 0 stands in the middle
    bend = law.bend(pair.variance, last, pair.shift)
    factor = float(logs[overlap] - logs[overlap - 1]) + (order - 1) * bend
    if factor >= 0:
        return math.inf
    beyond = terms[-1] + factor - math.log(-math.expm1(factor))
    # Below the smallest one losses are negative, so that terms are below their probabilities.
    step = float(logs[1] - logs[0])
    below = logs[0] - step - math.log(-math.expm1(-step))
    total = float(library.special().logsumexp(np.append(terms, [beyond, below])))
    return with_margin(max(0.0, total) / (order - 1))


def _folds(events: Sequence[Event]) -> Counter[_Integer | _Normal]:
    """Return the pairs of distributions that the events compose at worst, each with its number."""
    folds: Counter[_Integer | _Normal] = Counter()
    for event in events:
        # With a clip the worst vector of that length is not known: the lemma behind `shifts`
        # assumes that only the number of items bounds it.
        if event.is_clipped or event.noise_variance > LAWS[event.mechanism].normal_from:
            folds[_Normal(gaussian_bound(event))] += 1
        else:
            for shift, number in event.shifts.items():
                folds[_Integer(event.mechanism, event.noise_variance, shift)] += number
    return folds


# Cached: a planner calibrates the noise of several widths, whose events differ in the distance of
# the sampler alone, and so have the same pairs.
@lru_cache(maxsize=16)
def _composed(folds: tuple[tuple[_Integer | _Normal, int], ...]) -> Bound | None:
    """Compose the pairs on one grid; return None if there are too many or one hardly overlaps.

    Args:
        folds: the pairs, each with its number.

    Each pair is put on the grid from above by connecting the dots (Doroshenko et al. 2022). The
    length of the steps decides how much is lost: see `_step`.
    """
    count = sum(number for _, number in folds)
    losses = {
        pair: _normal_loss(pair) if isinstance(pair, _Normal) else _integer_loss(pair)
        for pair, _ in folds
    }
    if count > _MOST_FOLDS or any(math.isinf(loss.largest) for loss in losses.values()):
        return None
    step = _step([(losses[pair], number) for pair, number in folds])

    def composed(pair: _Integer | _Normal, number: int) -> Any:
        ends = max(1, math.ceil(losses[pair].largest / step))
        deltas: F64 = np.clip(losses[pair].deltas(step * np.arange(-ends, ends + 1.0)), 0.0, 1.0)
        # Delta falls with epsilon but for rounding. Where it rose, a probability would be negative.
        falling = np.minimum.accumulate(deltas)
        one = (
            library.grids()
            .create_pmf_pessimistic_connect_dots_fixed_gap(step, -ends, ends, falling)
            .to_dense_pmf()
        )
        return library.self_composed(one, number) if number > 1 else one

    # also the mass of tails that a convolution may cut off
    lost = library.lost_by_convolution()
    total = reduce(lambda a, b: a.compose(b, lost), (composed(*fold) for fold in folds))
    error = count * lost

    @lru_cache(maxsize=16)
    def epsilon(delta: float) -> float:
        # what rounding may add to delta is taken off the target first
        return (
            with_margin(float(total.get_epsilon_for_delta(delta - error)))
            if delta > error
            else math.inf
        )

    def deltas(epsilons: F64) -> F64:
        at = np.minimum(epsilons, _OVERFLOWS)
        # For an array dp-accounting walks over the grid in Python; for a number NumPy does.
        found = total.get_delta_for_epsilon(at.item() if at.size == 1 else at)
        return np.minimum(1.0, np.full(at.shape, found, np.float64) + error)

    return Bound(Method.LOSS_DISTRIBUTION, epsilon, deltas)


def _step(losses: Sequence[tuple[_Loss, int]]) -> float:
    """Return the step of the grid for losses, each with its number.

    Connecting the dots splits a loss that lies at a fraction f of a step h between the ends of that
    step, which adds a variance of about f (1 - f) h^2. Where losses are close to each other, 100
    steps a standard deviation are enough. Where they are few, delta has a kink at every sum of
    them. The grid is finer there: of the steps between h / 2 and h the one is taken that adds
    least, so that most losses lie on the grid (docs/privacy-proofs/skellam.md).
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
    # at least twice the least step, since half of it may be chosen
    steps = max(min(step, total / _STEPS_OF_TOTAL), 2 * least) * _CANDIDATES
    fractions = [np.mod(at / steps[:, None], 1.0) for at, _, _ in few]
    added = sum(
        number * (f * (1 - f)) @ mass for f, (_, mass, number) in zip(fractions, few, strict=True)
    )
    return float(steps[np.argmin(steps**2 * added)])


def _normal_loss(pair: _Normal) -> _Loss:
    # The loss is N(mu^2 / 2, mu^2): beyond ten standard deviations lies a mass of 1e-23
    return _Loss(
        pair.mu, pair.mu**2 / 2 + 10 * pair.mu, lambda epsilon: gaussian_delta(pair.mu, epsilon)
    )


def _integer_loss(pair: _Integer) -> _Loss:
    """Return the loss of a log-concave distribution against itself shifted.

    The loss rises with the outcome, so that its deltas are differences of tails.
    """
    distribution, shift = _distribution(pair.mechanism, pair.variance), pair.shift
    tail = np.append(np.cumsum(distribution[::-1])[::-1], 0.0)  # [j]: at least the j-th outcome
    overlap = len(distribution) - shift
    # The noise is so little that the two distributions hardly meet: most outcomes tell them apart,
    # and no grid holds their losses. Infinity says so.
    if overlap <= 0 or tail[overlap] > 0.5:
        return _Loss(0.0, math.inf, np.ones_like)
    # at the outcomes from the shift-th on; it rises but for rounding
    loss = np.maximum.accumulate(np.log(distribution[:overlap]) - np.log(distribution[shift:]))
    mean = np.average(loss, weights=distribution[:overlap])
    stddev = math.sqrt(np.average((loss - mean) ** 2, weights=distribution[:overlap]))
    negligible = int(np.argmax(tail < _NEGLIGIBLE))
    largest = max(float(loss[min(negligible, len(loss) - 1)]), stddev)

    def deltas(epsilon: F64) -> F64:
        # an outcome counts if its loss is above epsilon, and losses rise: so from one place on
        first = np.searchsorted(loss, epsilon, side="right")
        delta: F64 = tail[first] - np.exp(epsilon) * tail[first + shift]
        return delta

    return _Loss(stddev, largest, deltas, _atoms(pair, loss, distribution[:overlap]))


def _atoms(pair: _Integer, loss: F64, mass: F64) -> tuple[F64, F64] | None:
    """Return the losses of a pair and their masses, where they are few."""
    loss, mass = LAWS[pair.mechanism].atoms(pair.variance, pair.shift, loss, mass)
    matters = mass > _MATTERS
    return (loss[matters], mass[matters]) if matters.sum() <= _FEW_ATOMS else None


# Cached: a ledger chooses one of many orders (`accounting.filter_order`), while it is locked.
@lru_cache(maxsize=4)
def _distribution(mechanism: Mechanism, variance: float) -> F64:
    """Return the probabilities of the integers around 0, symmetric, until they vanish."""
    half = LAWS[mechanism].half(variance)
    return np.concatenate([half[:0:-1], half])
