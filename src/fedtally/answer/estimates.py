"""The estimate of one item, its limits, and how far off it may be for a wider population."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from fedtally.recovery.limits import Limits
from fedtally.recovery.linear_system import F64


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated frequency of one item, with its limits.

    Attributes:
        item: the label of the item.
        frequency: the estimated share of the clients that took part, each counted in every round
            that it is in. It may be below 0.
        low: the lower limit of that share, 0 to 1; None where no interval was asked for.
        high: the upper limit, 0 to 1; None as for `low`.
        count: the estimated number of clients; of contributions, where a client may be in several
            rounds.
        sampling_error: a half-width that `low` and `high` leave out. At the same confidence, the
            share in a wider population differs by so much from the share among these clients, if
            the clients are a uniform sample of it.
        population_low: the lower limit of the share in that population, 0 to 1: what `low` and
            `sampling_error` say together (`uncertainty`); None where no interval was asked for.
        population_high: the upper limit, 0 to 1; None as for `population_low`.
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
    """How far off estimates may be, at the confidence of their limits: float64 [n] each.

    Attributes:
        clients: the share among the clients that took part is no further away than this: the
            distance to the further limit.
        sampling: how far the share in a wider population may be from that among the clients.
        population: both together, the distance to the share in the population. The two are
            independent, so their variances add: the root of the sum of the squares, where an
            estimate lies within its limits. It is never less than `clients`.
        limits: of the share in the population, within 0 and 1.
    """

    clients: F64
    sampling: F64
    population: F64
    limits: Limits


def uncertainty(frequencies: F64, limits: Limits, sampling: F64) -> Uncertainty:
    """Return how far off estimates are, among the clients, by sampling, and by both.

    It assumes that the clients are a simple random sample of a population that is much larger.
    Then an item's share among n of them has the variance f (1 - f) / n, however many items each
    holds. Where a client's items are drawn, the share is of clients for whom the item was drawn,
    here and there. People of one silo are often alike: then the sampling error is larger than this.
    The errors that `limits` bound, of hashes and of noise, do not depend on who was sampled.

    Both parts are of the confidence of `limits`. The sampling error is that of an item that was
    named beforehand, also where limits allow for the choice of a list, or hold for all at once.

    Args:
        frequencies: float64 [n].
        limits: of the share among the clients.
        sampling: float64 [n], half-widths, of `sampling_error`.

    >>> found = uncertainty(np.array([0.5]), Limits(np.array([0.47]), np.array([0.52])),
    ...                     np.array([0.04]))
    >>> [round(float(part[0]), 3) for part in (*found[:3], *found.limits)]
    [0.03, 0.04, 0.05, 0.45, 0.545]
    """
    # An estimate may lie outside limits that allow for its choice, or for its shrinkage.
    centre = np.clip(frequencies, *limits)
    below, above = centre - limits.low, limits.high - centre
    reached = Limits(centre - np.hypot(below, sampling), centre + np.hypot(above, sampling))
    clients, population = (
        np.maximum(frequencies - ends.low, ends.high - frequencies) for ends in (limits, reached)
    )
    return Uncertainty(clients, sampling, population, clip_limits(reached))


def is_told_from_zero(estimate: Estimate) -> bool:
    """Return whether an estimate's interval, if it has one, excludes 0.

    >>> [is_told_from_zero(Estimate("tea", 0.1, low, 0.2, 10.0)) for low in (0.0, 0.01, None)]
    [False, True, True]
    """
    is_exact = estimate.low == estimate.high == estimate.frequency  # then it may be known to be 0
    return estimate.low is None or estimate.low > 0 or is_exact


def with_doubts(estimates: Sequence[Estimate], above: Sequence[bool] | None) -> list[Estimate]:
    """Return the estimates of a list, with the lower limit 0 where an item may be nobody's.

    The limits of a list hold on average over its items, so that an item of a long list may be noise
    although its own limits exclude 0. What a reader takes for sure holds for all items at once.

    Args:
        estimates: the list.
        above: whether each of them stands above noise (`Tabular.above_noise`); None: unknown.

    >>> [one.low for one in with_doubts([Estimate("tea", 0.1, 0.01, 0.2, 9.0)], [False])]
    [0.0]
    """
    return [
        one if is_above or one.low is None else replace(one, low=0.0)
        for one, is_above in zip(estimates, above or [True] * len(estimates), strict=True)
    ]


def largest_uncertainty(estimates: Sequence[Estimate]) -> tuple[float, float] | None:
    """Return how far off estimates that can be told from 0 may be at most, for two readings.

    Returns:
        the largest distance from the share among the clients, and from the share in a population
        that they stand for. None where no interval was asked for, or none can be told from 0.

    >>> largest_uncertainty([Estimate("tea", 0.5, 0.25, 0.75, 500.0, 0.0)])
    (0.25, 0.25)
    """
    off = uncertainty_of([estimate for estimate in estimates if is_told_from_zero(estimate)])
    return None if off is None else (float(off.clients.max()), float(off.population.max()))


def uncertainty_of(estimates: Sequence[Estimate]) -> Uncertainty | None:
    """Return how far off each of these estimates may be; None where no interval was asked for.

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
    """Return limits of frequencies, clipped to 0 and 1.

    >>> clip_limits(Limits(np.array([-0.1, 0.5]), np.array([0.2, 1.1])))
    Limits(low=array([0. , 0.5]), high=array([0.2, 1. ]))
    """
    return Limits(np.clip(limits.low, 0.0, 1.0), np.clip(limits.high, 0.0, 1.0))
