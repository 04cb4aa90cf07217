"""Privacy losses of integer noise: (epsilon, delta) curves by convolution, and Renyi divergences.

Each result is rounded upwards, so that it is an upper bound. Proofs: docs/privacy-proofs/skellam.md
and renyi.md.
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

# Grid steps in one standard deviation of a privacy loss. With 100 steps, epsilon is a relative 1e-4
# above the exact value. More steps bring it closer, and make convolutions slower.
_STEPS = 100.0
# Grid steps in one standard deviation of the total loss, if losses have few distinct values
# (atoms). delta then has a kink at each possible sum of losses. A coarser grid would round the
# kinks off, and raise epsilon.
_STEPS_OF_TOTAL = 2000.0
# Grid steps to try, relative to the largest step. The best grid has most atoms at its points: it
# adds least to epsilon.
_CANDIDATES = np.linspace(0.5, 1.0, 500)
_FEW_ATOMS = 64  # with more atoms than this, kinks of delta do not matter
_LONGEST_GRID = 2**17  # the most points on each side of 0 for one loss: bounds memory, time
# The grid ends where the tail of a loss has a mass below this: far below any delta in use.
_NEGLIGIBLE = 1e-20
_MATTERS = 1e-12  # atoms of less mass are ignored when the step is chosen
_MOST_FOLDS = 2**18  # the most pairs: with more, rounding errors would exceed small deltas
_OVERFLOWS = 700.0  # a larger epsilon is taken as 700: beyond 709, e^epsilon is infinite


class _Integer(NamedTuple):
    """A pair of distributions: the integer noise of a mechanism, and this noise plus `shift`."""

    mechanism: Mechanism
    variance: float
    shift: int


class _Normal(NamedTuple):
    """A pair of distributions: a standard Gaussian, and this Gaussian plus `mu`."""

    mu: float


class _Loss(NamedTuple):
    """The privacy loss of a pair of distributions.

    Attributes:
        stddev: the standard deviation of the loss.
        largest: a loss so large that the probability of a larger loss may be ignored. Infinity:
            larger losses can never be ignored, since the two distributions hardly overlap.
        deltas: a function from an array of epsilons to the delta at each.
        atoms: the distinct values of the loss and their probabilities, float64 [n] each; None if
            there are more than 64, or for a Gaussian.
    """

    stddev: float
    largest: float
    deltas: Callable[[F64], F64]
    atoms: tuple[F64, F64] | None = None


def loss_bound(events: Sequence[Event]) -> Bound | None:
    """Return the (epsilon, delta) curve of the events, by composing privacy-loss distributions.

    None if no event enters as integer noise, since Gaussians alone have exact curves. None also if
    there are more than 2^18 pairs of distributions, or if there is so little noise that the two
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
    """Return an upper bound on an event's Renyi divergence between any two neighbours.

    It holds whichever neighbour comes first. It is infinity if no bound is known: with little noise
    or a large order. The divergences of several events add up, even if later events are chosen in
    view of earlier events. Proof: docs/privacy-proofs/renyi.md.

    Args:
        event: the event, with its variance.
        order: the order of the divergence, above 1.

    >>> event = Event("skellam", 1, "zero-out", variance=4, honest_survivors=90)
    >>> round(renyi_divergence(event, 2.0), 4), 2.0 / (2 * 4)
    (0.2457, 0.25)
    """
    return sum(number * _renyi(pair, order) for pair, number in _folds([event]).items())


@lru_cache(maxsize=256)
def _renyi(pair: _Integer | _Normal, order: float) -> float:
    """Return an upper bound on the Renyi divergence between the two distributions of a pair."""
    if isinstance(pair, _Normal):
        return with_margin(order * pair.mu**2 / 2)
    law = LAWS[pair.mechanism]
    if (known := law.divergence(pair.variance, pair.shift, order)) is not None:
        return with_margin(known)
    logs = np.log(_distribution(pair.mechanism, pair.variance))
    overlap = len(logs) - pair.shift
    if overlap <= 0:
        return math.inf
    # the logarithms of the terms of E[e^((order - 1) loss)], one for each outcome of the noise
    terms = logs[:overlap] + (order - 1) * (logs[:overlap] - logs[pair.shift :])
    # Beyond the last term, each term is at most e^factor times the term before: a geometric series.
    last = overlap - 1 - len(logs) // 2  # the outcome of the last term; outcome 0 is in the middle
    bend = law.bend(pair.variance, last, pair.shift)
    factor = float(logs[overlap] - logs[overlap - 1]) + (order - 1) * bend
    if factor >= 0:
        return math.inf
    beyond = terms[-1] + factor - math.log(-math.expm1(factor))
    # Below the first term, losses are negative, so that each term is below its outcome's
    # probability.
    step = float(logs[1] - logs[0])
    below = logs[0] - step - math.log(-math.expm1(-step))
    total = float(library.special().logsumexp(np.append(terms, [beyond, below])))
    return with_margin(max(0.0, total) / (order - 1))


def _folds(events: Sequence[Event]) -> Counter[_Integer | _Normal]:
    """Return the worst pairs of distributions for the events, and how often each pair occurs."""
    folds: Counter[_Integer | _Normal] = Counter()
    for event in events:
        # With a clip, it is not known which vector is worst: the lemma behind `shifts` assumes that
        # only the number of items bounds a vector. So the dominating Gaussian is used.
        if event.is_clipped or event.noise_variance > LAWS[event.mechanism].normal_from:
            folds[_Normal(gaussian_bound(event))] += 1
        else:
            for shift, number in event.shifts.items():
                folds[_Integer(event.mechanism, event.noise_variance, shift)] += number
    return folds


# Cached: a planner calibrates the noise for several widths. Their events differ only in the
# sampler's total variation, so that all have the same pairs.
@lru_cache(maxsize=16)
def _composed(folds: tuple[tuple[_Integer | _Normal, int], ...]) -> Bound | None:
    """Compose pairs of distributions on one grid, and return the (epsilon, delta) curve.

    Each pair's loss is rounded upwards to the grid by connecting the dots (Doroshenko et al. 2022).
    How much the rounding adds to epsilon depends on the step of the grid, which `_step` chooses.

    Args:
        folds: the pairs of distributions, and how often each occurs.

    Returns:
        The curve. None if there are too many pairs, or if the two distributions of a pair hardly
        overlap.
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
        # Delta falls with epsilon. Where rounding makes it rise, a probability would be negative.
        falling = np.minimum.accumulate(deltas)
        one = (
            library.grids()
            .create_pmf_pessimistic_connect_dots_fixed_gap(step, -ends, ends, falling)
            .to_dense_pmf()
        )
        return library.self_composed(one, number) if number > 1 else one

    # `compose` may also cut off tails, of at most this mass
    lost = library.lost_by_convolution()
    total = reduce(lambda a, b: a.compose(b, lost), (composed(*fold) for fold in folds))
    error = count * lost

    @lru_cache(maxsize=16)
    def epsilon(delta: float) -> float:
        # the target must hold in spite of the largest rounding error in delta
        return (
            with_margin(float(total.get_epsilon_for_delta(delta - error)))
            if delta > error
            else math.inf
        )

    def deltas(epsilons: F64) -> F64:
        at = np.minimum(epsilons, _OVERFLOWS)
        # dp-accounting is fast for a number (NumPy) and slow for an array (a Python loop over the
        # grid)
        found = total.get_delta_for_epsilon(at.item() if at.size == 1 else at)
        return np.minimum(1.0, np.full(at.shape, found, np.float64) + error)

    return Bound(Method.LOSS_DISTRIBUTION, epsilon, deltas)


def _step(losses: Sequence[tuple[_Loss, int]]) -> float:
    """Return the step of the grid for the given losses.

    Let a loss lie at a fraction f of a step s. Connecting the dots splits the loss between the two
    ends of the step, which adds a variance of about f (1 - f) s^2. If losses have many values, 100
    steps in a standard deviation are enough. If a loss has few values, delta has kinks at sums of
    losses, and the grid needs a smaller step: at most h, the last entry of `steps`. Of the steps
    between h / 2 and h, the result is then the step that adds the least variance. Most losses then
    lie at points of the grid (docs/privacy-proofs/skellam.md).

    Args:
        losses: each loss, and how often it occurs.
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
    # at least twice the least step, since the choice may be half of this
    steps = max(min(step, total / _STEPS_OF_TOTAL), 2 * least) * _CANDIDATES
    fractions = [np.mod(at / steps[:, None], 1.0) for at, _, _ in few]
    added = sum(
        number * (f * (1 - f)) @ mass for f, (_, mass, number) in zip(fractions, few, strict=True)
    )
    return float(steps[np.argmin(steps**2 * added)])


def _normal_loss(pair: _Normal) -> _Loss:
    # The loss is N(mu^2 / 2, mu^2): beyond ten standard deviations, a mass of 1e-23 is left
    return _Loss(
        pair.mu, pair.mu**2 / 2 + 10 * pair.mu, lambda epsilon: gaussian_delta(pair.mu, epsilon)
    )


def _integer_loss(pair: _Integer) -> _Loss:
    """Return the privacy loss of integer noise against the same noise minus a shift.

    The noise is log-concave, so the loss never falls as the outcome grows, and each delta is a
    difference of two tails.
    """
    distribution, shift = _distribution(pair.mechanism, pair.variance), pair.shift
    tail = np.append(np.cumsum(distribution[::-1])[::-1], 0.0)  # [j]: outcomes from j on
    overlap = len(distribution) - shift
    # So little noise that the two distributions hardly overlap: most outcomes have an infinite
    # loss, and no grid can hold it.
    if overlap <= 0 or tail[overlap] > 0.5:
        return _Loss(0.0, math.inf, np.ones_like)
    # the losses of all outcomes that both distributions have; rounding may make them fall
    loss = np.maximum.accumulate(np.log(distribution[:overlap]) - np.log(distribution[shift:]))
    mean = np.average(loss, weights=distribution[:overlap])
    stddev = math.sqrt(np.average((loss - mean) ** 2, weights=distribution[:overlap]))
    negligible = int(np.argmax(tail < _NEGLIGIBLE))
    largest = max(float(loss[min(negligible, len(loss) - 1)]), stddev)

    def deltas(epsilon: F64) -> F64:
        # delta is about the outcomes with a loss above epsilon: all outcomes from `first` on
        first = np.searchsorted(loss, epsilon, side="right")
        delta: F64 = tail[first] - np.exp(epsilon) * tail[first + shift]
        return delta

    return _Loss(stddev, largest, deltas, _atoms(pair, loss, distribution[:overlap]))


def _atoms(pair: _Integer, loss: F64, mass: F64) -> tuple[F64, F64] | None:
    """Return the distinct values of a pair's loss and their probabilities; None if over 64."""
    loss, mass = LAWS[pair.mechanism].atoms(pair.variance, pair.shift, loss, mass)
    matters = mass > _MATTERS
    return (loss[matters], mass[matters]) if matters.sum() <= _FEW_ATOMS else None


# Cached: a ledger tries many orders (`accounting.filter_order`), and meanwhile others wait for its
# lock.
@lru_cache(maxsize=4)
def _distribution(mechanism: Mechanism, variance: float) -> F64:
    """Return the probabilities that the noise is -n .. n: float64 [2 n + 1].

    n is chosen so that larger noise has only negligible probabilities, see `Law.half`.
    """
    half = LAWS[mechanism].half(variance)
    return np.concatenate([half[:0:-1], half])
