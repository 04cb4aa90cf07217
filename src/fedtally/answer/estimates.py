"""The estimate of one item, its limits, and how far it may be off for a wider population."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedtally.recovery.limits import ROUNDING, Limits
from fedtally.recovery.linear_system import F64

_TINY = 1e-12  # replaces a variance of 0 in a denominator


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated frequency of one item, with its limits.

    Attributes:
        item: the label of the item.
        frequency: the estimated share of contributions that hold the item. A contribution is what
            one client adds in one round. The share may be below 0.
        low: the lower limit of this share, 0 to 1; None if no limits were asked for.
        high: the upper limit of this share, 0 to 1; None as for `low`.
        count: the estimated number of contributions that hold the item.
        sampling_error: how far the share in a wider population may be from the share among these
            clients, in either direction, if the clients are a uniform sample of the population.
            `low` and `high` do not include this error, and hold with the same confidence. None as
            for `low`.
        population_low: the lower limit of the share in the wider population, 0 to 1: it combines
            `low` and `sampling_error` (see `uncertainty`); None as for `low`.
        population_high: the upper limit of the share in the wider population, 0 to 1; None as for
            `low`.
    """

    item: str | int
    frequency: float
    low: float | None
    high: float | None
    count: float
    sampling_error: float | None = None
    population_low: float | None = None
    population_high: float | None = None


class Uncertainty(NamedTuple):
    """How far estimates may be from the truth, at the confidence of the limits: float64 [n] each.

    Attributes:
        clients: how far the estimate may be from the share among the clients that took part: the
            distance to the further limit.
        sampling: how far the share among these clients may be from the share in a wider population.
        population: how far the estimate may be from the share in the population. The errors
            `clients` and `sampling` are independent. So this is at least the root of the sum of
            their squares.
        limits: the limits of the share in the population, within 0 and 1.
    """

    clients: F64
    sampling: F64
    population: F64
    limits: Limits


def uncertainty(frequencies: F64, limits: Limits, sampling: F64) -> Uncertainty:
    """Return how far estimates may be off: among the clients, by sampling, and by both together.

    The clients are taken as a simple random sample of a much larger population. If an item has
    frequency f in the population, its share among n clients has the variance f (1 - f) / n, however
    many items each client holds. If a client's items are drawn at random, both shares count the
    clients whose drawn items include the item. People of one silo are often alike; then the true
    sampling error is larger. The errors within `limits`, from hashes and noise, do not depend on
    who was sampled.

    Both errors have the confidence of `limits`. `limits` may hold for a chosen list, or for all
    items at once. The sampling error always holds for a single item that was named beforehand.

    Args:
        frequencies: the estimated frequencies, float64 [n].
        limits: the limits of the share among the clients, float64 [n] each.
        sampling: how far the share among the clients may be from the share in the population, in
            either direction, float64 [n] (`intervals.sampling_error`).

    >>> found = uncertainty(np.array([0.5]), Limits(np.array([0.47]), np.array([0.52])),
    ...                     np.array([0.04]))
    >>> [round(float(part[0]), 3) for part in (*found[:3], *found.limits)]
    [0.03, 0.04, 0.05, 0.45, 0.545]
    """
    # Limits that allow for selection or shrinkage may not contain the estimate. Without clipping, a
    # distance to a limit would be negative.
    centre = np.clip(frequencies, *limits)
    below, above = centre - limits.low, limits.high - centre
    near, far = centre - np.hypot(below, sampling), centre + np.hypot(above, sampling)
    # `sampling` is computed from the estimate. If noise makes the estimate of a rare item too low,
    # `sampling` is too small. So a limit also allows for the sampling error of a share that equals
    # the limit.
    other_near, other_far = _shares_at_the_limit(centre, below, above, sampling)
    reached = Limits(np.minimum(near, other_near), np.maximum(far, other_far))
    clients, population = (
        np.maximum(frequencies - ends.low, ends.high - frequencies) for ends in (limits, reached)
    )
    return Uncertainty(clients, sampling, population, clip_limits(reached))


def _shares_at_the_limit(centre: F64, below: F64, above: F64, sampling: F64) -> tuple[F64, F64]:
    """Return the shares p with (p - centre)^2 = a^2 + w p (1 - p), below and above the centre.

    The squared sampling error of a share p among n clients is w p (1 - p) with w = z^2 / n. The
    distance from the centre to the limit among the clients is a: `below` on the lower side, `above`
    on the upper side. For a = 0, the shares p are Wilson's limits. Then the further one of the two
    shares has the distance `sampling` from the centre, which gives w.
    """
    centre = np.clip(centre, 0.0, 1.0)
    further = np.clip(np.where(centre < 0.5, centre + sampling, centre - sampling), 0.0, 1.0)
    w = sampling**2 / np.maximum(further * (1.0 - further), _TINY)

    def root(a: F64) -> F64:
        found: F64 = np.sqrt(w**2 + 4.0 * w * centre * (1.0 - centre) + 4.0 * a**2 * (1.0 + w))
        return found

    middle, whole = 2.0 * centre + w, 2.0 * (1.0 + w)
    return (middle - root(below)) / whole, (middle + root(above)) / whole


def is_told_from_zero(estimate: Estimate) -> bool:
    """Return whether an estimate can be told from 0: its lower limit is above 0.

    An estimate without limits counts as told from 0. So does an exact count, even a count of 0. A
    count is exact if both limits equal the estimate.

    >>> [is_told_from_zero(Estimate("tea", 0.1, low, 0.2, 10.0)) for low in (0.0, 0.01, None)]
    [False, True, True]
    """
    is_exact = estimate.low == estimate.high == estimate.frequency  # nothing is in doubt, even if 0
    return estimate.low is None or estimate.low > 0 or is_exact


def with_doubts(estimates: Sequence[Estimate], above: Sequence[bool] | None) -> list[Estimate]:
    """Return the estimates, with the lower limit 0 for each item that does not stand above noise.

    Unless they are simultaneous, the limits of a list hold on average over its items: at 95 %, one
    in twenty may be wrong. So in a long list, an item may be pure noise although its own limits
    exclude 0. `above` rests on limits that hold for all items at once. Estimates without limits do
    not change.

    Args:
        estimates: the listed estimates.
        above: for each estimate, whether the item stands above noise (`Tabular.above_noise`); None:
            this is unknown, and no estimate changes.

    >>> [one.low for one in with_doubts([Estimate("tea", 0.1, 0.01, 0.2, 9.0)], [False])]
    [0.0]
    """
    return [
        one if is_above or one.low is None else replace(one, low=0.0)
        for one, is_above in zip(estimates, above or [True] * len(estimates), strict=True)
    ]


def largest_uncertainty(estimates: Sequence[Estimate]) -> tuple[float, float] | None:
    """Return two errors: the largest among these clients, and the largest for a wider population.

    Only estimates that can be told from 0 count.

    Returns:
        the largest distance that an estimate may have from the share among the clients, and from
        the share in the population of which the clients are a sample. None if there are no limits,
        or no estimate can be told from 0.

    >>> largest_uncertainty([Estimate("tea", 0.5, 0.25, 0.75, 500.0, 0.0)])
    (0.25, 0.25)
    """
    off = uncertainty_of([estimate for estimate in estimates if is_told_from_zero(estimate)])
    return None if off is None else (float(off.clients.max()), float(off.population.max()))


def uncertainty_of(estimates: Sequence[Estimate]) -> Uncertainty | None:
    """Return how far each of these estimates may be off: arrays in the order of the estimates.

    Returns None if there are no estimates, or one of them has no limits.

    >>> tea = Estimate("tea", 0.5, 0.47, 0.52, 500.0, 0.04)
    >>> [round(float(part.max()), 3) for part in uncertainty_of([tea])[:3]]
    [0.03, 0.04, 0.05]
    """
    rows = [(e.frequency, e.low, e.high, e.sampling_error) for e in estimates]
    if not rows or any(value is None for row in rows for value in row):
        return None
    frequencies, low, high, sampling = np.array(rows, np.float64).T
    return uncertainty(frequencies, Limits(low, high), sampling)


def clip_limits(limits: Limits) -> Limits:
    """Return the limits of frequencies, clipped to the range 0 to 1.

    A lower limit that rounding alone can have put above 0 is 0: the item is not told from 0.

    >>> clip_limits(Limits(np.array([-0.1, 4e-19, 0.5]), np.array([0.2, 0.3, 1.1])))
    Limits(low=array([0. , 0. , 0.5]), high=array([0.2, 0.3, 1. ]))
    """
    low = np.where(limits.low < ROUNDING, 0.0, np.minimum(limits.low, 1.0))
    return Limits(low, np.clip(limits.high, 0.0, 1.0))
