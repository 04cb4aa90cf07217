"""How many items of each frequency: what a pilot recovers item by item, deconvolved.

Frequencies are mixed: an item of frequency f occurs Poisson(n f) times among n clients, and joint
recovery tells that count but for a normal error, or does not fit the item. How many items there are
of each frequency, nu, is what makes the values of the fitted items likely, as a Poisson process,

    sum over items log sum_f nu(f) P(value | f) - sum_f nu(f) P(seen | f),

by expectation maximisation (Kiefer and Wolfowitz 1956; Laird 1978; of truncated data Dempster,
Laird and Rubin 1977): every round spreads each value over the frequencies that it may come from,
and adds what would not have been seen. Two sums are known besides, and every round keeps them: the
mass, and, within its error, what mean squares the unseen items leave in the cells. A start that is
smooth stays as it is where values are silent. The rounds are few: the maximum is at a few points
(Lindsay 1983), which says more than there is to know, and stopping early is the usual way out.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc, ndtr

from fedtally.base.roots import root

F64 = npt.NDArray[np.float64]
# more fit flat tables better, and steep distributions, of which few items are seen, worse
_ROUNDS = 20
_RATIO = 1.05  # frequencies within this ratio are taken together
_EXACT = 0.05  # clients: errors are no smaller, so that counts that are told exactly have a density
_STEPS = 4  # of counts in one standard deviation of an error that is large
_REACH = 6.0  # standard deviations


class Seen(NamedTuple):
    """What a pilot shows of the items that do not stand out, in clients.

    Attributes:
        clients: n.
        values: float64 [k], of items that are clearly fitted, and do not stand out.
        errors: float64 [k], their standard deviations.
        error: standard deviation of an item's value, fitted or not.
        least: the value from which items are clearly fitted.
        most: the frequency from which they stand out, above `least` or not.
        mass: sum of the expected counts of items that do not stand out.
        squares: sum of the squared counts that each batch holds of the others, those below `least`.
        squares_error: its standard error.
        same: how much of a squared count there is in it, beyond the count; the heterogeneity of
            batches.
        sampled: how often the count itself; the number of batches, or 0 where it is not known what
            clients hold.
    """

    clients: int
    values: F64
    errors: F64
    error: float
    least: float
    most: float
    mass: float
    squares: float
    squares_error: float
    same: float
    sampled: float


def deconvolved(frequencies: F64, numbers: F64, seen: Seen) -> tuple[F64, F64]:
    """Return frequencies, and how many items that do not stand out have each.

    Args:
        frequencies: float64 [m], above 0, in any order: those that there may be.
        numbers: float64 [m], how many items are taken to have each, where nothing says otherwise.
        seen: what the pilot shows.

    >>> f = np.geomspace(1e-4, 0.02, 100)
    >>> counts = np.random.default_rng(0).poisson(5.0, 200) * 1.0  # 200 items of 0.005
    >>> counts = counts[counts > 0]
    >>> seen = Seen(1000, counts, 0 * counts, 0.0, 0.5, 30.0, 1000.0, 0.0, 0.0, 1.0, 1.0)
    >>> found, number = deconvolved(f, 0.1 / f, seen)
    >>> near = number[(found > 0.003) & (found < 0.008)]
    >>> round(float(number @ found), 6), bool(170 < near.sum() < 210)
    (1.0, True)
    """
    f, number = _grouped(frequencies, numbers)
    expected, error = f * seen.clients, max(seen.error, _EXACT)
    step = max(1.0, math.floor(seen.error / _STEPS))
    top = max(seen.most, seen.least, float(expected[-1]))
    count = np.arange(0.0, top + _REACH * (error + math.sqrt(top)) + step, step)
    # P(fewer than k) of a Poisson count, at the whole numbers k between the counts looked at.
    fewer = gammaincc(np.ceil(count[1:] - step / 2), expected[:, None])
    drawn = np.diff(np.column_stack([np.zeros(len(f)), fewer, np.ones(len(f))]))
    below, out = ndtr((seen.least - count) / error), ndtr((count - seen.most) / error)
    stands_out = drawn @ out
    unseen = drawn @ np.minimum(below + out, 1.0)
    errors = np.maximum(seen.errors, _EXACT)
    likely = drawn @ (np.exp(-0.5 * ((seen.values - count[:, None]) / errors) ** 2) / errors)
    held = expected * (1 - stands_out)
    squares = drawn @ (
        np.minimum(below, 1 - out) * (seen.same * (count * count - count) + seen.sampled * count)
    )
    for _ in range(_ROUNDS):
        shares = number[:, None] * likely
        fitted = (shares / np.maximum(shares.sum(axis=0), 1e-300)).sum(axis=1)
        number = _with_sum(
            fitted + number * unseen, squares, seen.squares, max(seen.squares_error, 0.5)
        )
        number = _with_sum(number, held, seen.mass, 0.0)
    return f, number * (1 - stands_out)


def _with_sum(number: F64, weights: F64, total: float, error: float) -> F64:
    """Return the likeliest numbers whose weighted sum is a total, within its error.

    `number` is what is expected of them.

    The stationary point of sum number log nu - nu - (weights nu - total)^2 / (2 error^2).
    """
    matters = (number > 1e-12) & (weights > 0)
    if not matters.any() or (total <= 0 and error == 0):
        return number
    n, w = number[matters], weights[matters]

    def excess(x: float) -> float:
        return float((n * w / (1 + x * w)).sum()) - total - x * error**2

    now = excess(0.0)
    if now > 0:
        bounds = [n.sum() / total] if total > 0 else []
        bounds += [now / error**2] if error > 0 else []
        low, high = 0.0, 1.001 * min(bounds)
    else:
        low, high = -(1 - 1e-9) / float(w.max()), 0.0
        if excess(low) < 0:
            return number
    x = root(excess, low, high) if now else 0.0
    return number / (1 + x * weights)


def _grouped(frequencies: F64, numbers: F64) -> tuple[F64, F64]:
    """Return rising frequencies, and their numbers.

    Frequencies within a ratio of each other are taken together.
    """
    group = np.floor(np.log(frequencies / frequencies.min()) / math.log(_RATIO)).astype(np.int64)
    number = np.bincount(group, numbers).astype(np.float64)
    used = number > 0
    return np.bincount(group, frequencies * numbers)[used] / number[used], number[used]
