"""The number of items of each frequency, estimated from the counts that a pilot shows.

The method is deconvolution: it removes the effect of random errors from the counts. An item of
frequency f occurs Poisson(n f) times among n clients. Joint recovery estimates this count with a
normal error, or does not fit the item at all. The estimated count of a fitted item is its value,
and a fitted item is called seen. Let nu(f) be the number of items of frequency f. The values form a
Poisson process, and nu maximises its likelihood:

    sum over items log sum_f nu(f) P(value | f) - sum_f nu(f) P(seen | f).

Expectation maximisation finds nu (Kiefer and Wolfowitz 1956; Laird 1978; for truncated data
Dempster, Laird and Rubin 1977). Each iteration spreads each value over the frequencies that it may
come from. Then it adds the expected number of items that are not fitted. Each iteration also keeps
two known sums. One is the mass of the items. The other is the mean square that items which are not
fitted leave in the counters; it is kept within its error.

If no value says anything about some frequencies, their numbers of items roughly keep the
proportions of the first guess. The iterations are few on purpose. The exact maximum puts all items
at a few frequencies (Lindsay 1983), which is more detail than the data support. To stop early is
the usual remedy.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincc, ndtr

from fedtally.base.roots import root

F64 = npt.NDArray[np.float64]
# The number of iterations. More iterations would suit flat distributions better. They would suit
# steep distributions worse, because few of their items are seen.
_ROUNDS = 20
_RATIO = 1.05  # the frequencies of a group are within this ratio
_EXACT = 0.05  # the least standard error, in clients: an error of 0 would have no density
_STEPS = 4  # the grid of counts has at least this many points per standard error, if that is large
_REACH = 6.0  # the grid of counts ends this many standard deviations above the largest count


class Seen(NamedTuple):
    """What a pilot shows about the items that do not stand out from the noise.

    All values are counts of clients, not frequencies. `fedtally.plan.frequencies.pilot` defines
    "clearly fitted" and "stand out".

    Attributes:
        clients: n, the number of the pilot's clients.
        values: float64 [k], the estimated counts of the items that are clearly fitted but do not
            stand out.
        errors: float64 [k], the standard errors of `values`.
        error: the standard error of the estimated count of any item, whether fitted or not.
        least: the count from which an item is clearly fitted.
        most: the count from which an item stands out; in a pilot it is at least `least`.
        mass: the expected counts of all items that do not stand out, added up.
        squares: a sum over the items that are not clearly fitted, as the counters of the batches
            show it: an item of count c adds same * (c^2 - c) + sampled * c.
        squares_error: the standard error of `squares`.
        same: the factor of c^2 - c in `squares`: the heterogeneity of the batches (how much
            frequencies differ between them; 1 if they do not).
        sampled: the factor of c in `squares`: the number of batches; or 0 if the mass that clients
            hold is not known.
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
    """Return the estimated number of items of each frequency, for items that do not stand out.

    An item stands out if its count is clearly above the noise of the pilot (see `Seen`).

    Args:
        frequencies: float64 [m], above 0, in any order: the frequencies that items may have.
        numbers: float64 [m], the number of items of each frequency, as a first guess.
        seen: what the pilot shows.

    Returns:
        frequencies: float64 [g], rising: the means of groups of frequencies within 5 %.
        numbers: float64 [g], the number of items of each frequency.

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
    # the probability that a Poisson count is below k; each k lies between two grid points `count`
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
    """Return numbers of items near `number` whose weighted sum is near `total`: float64 [g].

    They are the most likely numbers nu: a stationary point of sum(number log nu - nu) - (weights nu
    - total)^2 / (2 error^2).

    Args:
        number: float64 [g], the expected numbers without a condition on their sum.
        weights: float64 [g], the weight of each number in the sum.
        total: the value of the weighted sum.
        error: the standard error of `total`; 0: the weighted sum must be exactly `total`. If this
            is not possible, for example because `total` is 0, `number` is returned unchanged.
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
    """Return frequencies and their numbers of items, with close frequencies put together.

    The frequencies of a group, which are within the ratio `_RATIO`, become their mean, weighted by
    their numbers of items. Groups without items are left out.

    Returns:
        frequencies: float64 [g], rising.
        numbers: float64 [g], the number of items of each frequency.
    """
    group = np.floor(np.log(frequencies / frequencies.min()) / math.log(_RATIO)).astype(np.int64)
    number = np.bincount(group, numbers).astype(np.float64)
    used = number > 0
    return np.bincount(group, frequencies * numbers)[used] / number[used], number[used]
