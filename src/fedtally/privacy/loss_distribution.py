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
# Steps in one standard deviation of the total loss, where losses have few values (atoms): delta
# then has a kink at every sum of losses, which a coarser grid would cut off.
_STEPS_OF_TOTAL = 2000.0
# Candidates for the step, relative to the largest one. A grid on which most losses lie adds least
# to epsilon.
_CANDIDATES = np.linspace(0.5, 1.0, 500)
_FEW_ATOMS = 64  # a distribution of more atoms than this has no kinks that matter
_LONGEST_GRID = 2**17  # points of one loss in either direction: bounds memory and time
# A tail below this is rounded up to a loss at the end of the grid: far below any delta in use.
_NEGLIGIBLE = 1e-20
_MATTERS = 1e-12  # atoms of less mass are ignored when the step is chosen
_MOST_FOLDS = 2**18  # the most pairs: with more, rounding errors add up to more than small deltas
_OVERFLOWS = 700.0  # e^epsilon is a finite double up to about 709


class _Integer(NamedTuple):
    """A pair of distributions: integer noise of a mechanism and variance, and the same shifted."""

    mechanism: Mechanism
    variance: float
    shift: int


class _Normal(NamedTuple):
    """A pair of distributions: a Gaussian, and the same shifted by mu standard deviations."""

    mu: float


class _Loss(NamedTuple):
    """The privacy loss of a pair of distributions.

    Attributes:
        stddev: the standard deviation of the loss.
        largest: a loss that is exceeded with negligible probability; infinity if there is no bound.
        deltas: maps epsilons to deltas.
        atoms: the values of the loss and their probabilities, float64 [n] each; None if there are
            many.
    """

    stddev: float
    largest: float
    deltas: Callable[[F64], F64]
    atoms: tuple[F64, F64] | None = None


def loss_bound(events: Sequence[Event]) -> Bound | None:
    """Return the (epsilon, delta) curve of events, by composing their loss distributions.

    None: no event has integer noise, so that loss distributions gain nothing over Gaussians; or
    there are too many pairs of distributions; or the noise is so little that the two distributions
    of a pair hardly overlap.

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
    """Return an upper bound on the Renyi divergence between neighbours, at an order above 1.

    It is the divergence of the pairs of distributions that dominate the event, for both orders of
    the neighbours. It is infinity where the noise is too little, or the order too large, for a
    bound. Divergences of events add up, also if later events are chosen in view of earlier ones.
    Proof: docs/privacy-proofs/renyi.md.

    >>> event = Event("skellam", 1, "zero-out", variance=4, honest_survivors=90)
    >>> round(renyi_divergence(event, 2.0), 4), 2.0 / (2 * 4)
    (0.2457, 0.25)
    """
    return sum(number * _renyi(pair, order) for pair, number in _folds([event]).items())


@lru_cache(maxsize=256)
def _renyi(pair: _Integer | _Normal, order: float) -> float:
    """Return an upper bound on the Renyi divergence of a pair of distributions."""
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
    # Beyond the largest outcome, a term is at most e^factor times the term before.
    last = overlap - 1 - len(logs) // 2  # the largest outcome: 0 stands in the middle of `logs`
    bend = law.bend(pair.variance, last, pair.shift)
    factor = float(logs[overlap] - logs[overlap - 1]) + (order - 1) * bend
    if factor >= 0:
        return math.inf
    beyond = terms[-1] + factor - math.log(-math.expm1(factor))
    # Below the smallest outcome losses are negative, so that a term is below its probability.
    step = float(logs[1] - logs[0])
    below = logs[0] - step - math.log(-math.expm1(-step))
    total = float(library.special().logsumexp(np.append(terms, [beyond, below])))
    return with_margin(max(0.0, total) / (order - 1))


def _folds(events: Sequence[Event]) -> Counter[_Integer | _Normal]:
    """Return the worst pairs of distributions for the events, with the number of each."""
    folds: Counter[_Integer | _Normal] = Counter()
    for event in events:
        # With a clip, the worst vector of the clip's length is not known: the lemma behind `shifts`
        # assumes that only the number of items bounds the vector.
        if event.is_clipped or event.noise_variance > LAWS[event.mechanism].normal_from:
            folds[_Normal(gaussian_bound(event))] += 1
        else:
            for shift, number in event.shifts.items():
                folds[_Integer(event.mechanism, event.noise_variance, shift)] += number
    return folds


# Cached: a planner calibrates the noise for several widths. Their events differ only in the total
# variation of the sampler, so that their pairs are the same.
@lru_cache(maxsize=16)
def _composed(folds: tuple[tuple[_Integer | _Normal, int], ...]) -> Bound | None:
    """Compose pairs of distributions on one grid; return their (epsilon, delta) curve.

    Each pair is put on the grid from above by connecting the dots (Doroshenko et al. 2022). The
    step of the grid decides how much this adds to epsilon: see `_step`.

    Args:
        folds: the pairs, each with its number.

    Returns:
        the curve; None if there are too many pairs, or the distributions of one hardly overlap.
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
        # Delta falls with epsilon, up to rounding. If it rose, a probability would be negative.
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
        # the largest rounding error of delta is subtracted from the target first
        return (
            with_margin(float(total.get_epsilon_for_delta(delta - error)))
            if delta > error
            else math.inf
        )

    def deltas(epsilons: F64) -> F64:
        at = np.minimum(epsilons, _OVERFLOWS)
        # For an array, dp-accounting loops over the grid in Python; for one number it uses NumPy.
        found = total.get_delta_for_epsilon(at.item() if at.size == 1 else at)
        return np.minimum(1.0, np.full(at.shape, found, np.float64) + error)

    return Bound(Method.LOSS_DISTRIBUTION, epsilon, deltas)


def _step(losses: Sequence[tuple[_Loss, int]]) -> float:
    """Return the step of the grid for losses, each given with its number.

    Let a loss lie at a fraction f of a step h. Connecting the dots splits it between the two ends
    of the step, which adds a variance of about f (1 - f) h^2. Where a loss has many values, 100
    steps in a standard deviation are enough. Where it has few, delta has a kink at every sum of
    losses, and the grid must be finer. Then the step is the one between h / 2 and h that adds the
    least variance, so that most losses lie on the grid (docs/privacy-proofs/skellam.md).
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
    # The noise is so little that the two distributions hardly overlap: most outcomes tell them
    # apart, and no grid holds their losses. `largest` is then infinite.
    if overlap <= 0 or tail[overlap] > 0.5:
        return _Loss(0.0, math.inf, np.ones_like)
    # the losses of the outcomes from the shift-th on; they rise, up to rounding
    loss = np.maximum.accumulate(np.log(distribution[:overlap]) - np.log(distribution[shift:]))
    mean = np.average(loss, weights=distribution[:overlap])
    stddev = math.sqrt(np.average((loss - mean) ** 2, weights=distribution[:overlap]))
    negligible = int(np.argmax(tail < _NEGLIGIBLE))
    largest = max(float(loss[min(negligible, len(loss) - 1)]), stddev)

    def deltas(epsilon: F64) -> F64:
        # Outcomes with a loss above epsilon count. Losses rise, so these are all from one place on.
        first = np.searchsorted(loss, epsilon, side="right")
        delta: F64 = tail[first] - np.exp(epsilon) * tail[first + shift]
        return delta

    return _Loss(stddev, largest, deltas, _atoms(pair, loss, distribution[:overlap]))


def _atoms(pair: _Integer, loss: F64, mass: F64) -> tuple[F64, F64] | None:
    """Return the values of a pair's loss and their probabilities; None if there are many."""
    loss, mass = LAWS[pair.mechanism].atoms(pair.variance, pair.shift, loss, mass)
    matters = mass > _MATTERS
    return (loss[matters], mass[matters]) if matters.sum() <= _FEW_ATOMS else None


# Cached: a ledger tries many orders (`accounting.filter_order`) while it holds its lock.
@lru_cache(maxsize=4)
def _distribution(mechanism: Mechanism, variance: float) -> F64:
    """Return the probabilities of the integers -n .. n, until they vanish: float64 [2 n + 1]."""
    half = LAWS[mechanism].half(variance)
    return np.concatenate([half[:0:-1], half])
