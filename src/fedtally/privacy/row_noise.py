"""A bound on the noise in each row of a secure sum.

A server cannot see the noise by itself. `campaign.server.check_plausible` adds the bound to the
most that the clients' items can add to a row, and refuses a sum with a row above this total.

The claim: let X_i be the noise in the W counters of a row. In every row of a sum, the |X_i| add up
to at most the bound, except with probability 2^-40 for all rows together.

The proof: the X_i are independent, with one distribution. For every s > 0, by Markov's inequality
for e^(s sum |X_i|) (Chernoff 1952), P[sum |X_i| >= b] <= E[e^(s |X|)]^W e^(-s b). With b = (W ln
E[e^(s |X|)] + ln(2^41 rows)) / s the right side is 2^-41 / rows, and 2^-41 for all rows together.
So every s gives a valid bound b; the code takes the smallest b over a grid of s. E[e^(s |X|)] is
summed over the table of the noise. All terms are positive, so that the relative rounding error is
below 2^-20; the bound is raised by this factor. Of the 2^-40 of the claim, another 2^-41 is left
for two things: the tails that tables leave out, and the total variation of all draws of a sum. Both
together are below 2^-60 (docs/privacy-proofs/table_sampler.md).

If clients add the noise, X is Skellam noise with the variance of all clients' shares. With fewer
clients the bound still holds: for independent Y and symmetric unimodal X, |X + Y| is stochastically
at least |X|, since P[|X + y| <= c] is largest at y = 0. If two servers add the noise, X is the sum
of two draws, U + V. By symmetry E[e^(s |U + V|)] = 2 E[e^(s (U + V)); U + V >= 0] - P[U + V = 0].

An example: the bound, and the expected sum of the |X_i|:

>>> from fedtally.privacy.config import propose
>>> terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=1000, trust="distributed")
>>> stddev = terms.largest_stddev(1000)
>>> row_noise_bound((terms.noise(),) * 2, stddev, 5, 1000), round(1000 * 0.7979 * stddev)
(12709, 10655)
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fedtally.privacy.mechanism import Noise

F64 = npt.NDArray[np.float64]
FAILURE_BITS = 40  # honest noise exceeds the bound with at most probability 2^-40
_ROUNDING = 2.0**-20  # far above the rounding errors of all sums below


@lru_cache(maxsize=64)
def row_noise_bound(draws: tuple[Noise, ...], stddev: float, rows: int, width: int) -> int:
    """Return a bound on the sum of the absolute values of the noise in a row's counters.

    The bound holds in all rows together, except with probability 2^-40.

    Args:
        draws: the noise in one counter, as a sum of independent draws with one distribution. One
            draw stands for all clients together; two draws stand for two servers.
        stddev: the standard deviation of the sum of these draws.
        rows: the number of rows of the sketch.
        width: the number of counters in a row.
    """
    noise, moment = draws[0], _MOMENTS[len(draws)]
    pmf = noise.pmf()
    sizes, chances = np.arange(-noise.largest, noise.largest + 1.0), np.zeros(2 * noise.largest + 1)
    chances[np.fromiter(pmf, np.int64) + noise.largest] = np.fromiter(pmf.values(), np.float64)
    log_odds = (FAILURE_BITS + 1) * math.log(2) + math.log(rows)
    # the rates s: eight for each factor of two, around 1 / stddev, so that one is close to the best
    rates = np.exp2(np.arange(-80, 41) / 8) / stddev
    least = min((width * moment(rate, sizes, chances) + log_odds) / rate for rate in rates.tolist())
    return math.ceil(float(least) * (1 + _ROUNDING))


def _log_moment(rate: float, sizes: F64, chances: F64) -> float:
    """Return ln E[e^(s |X|)] for one draw X of the noise.

    Args:
        rate: s, above 0.
        sizes: float64 [n], the possible values of X, -m .. m.
        chances: float64 [n], the probability of each value in `sizes`.
    """
    # the largest exponent is subtracted, or e^ could overflow
    top = rate * float(sizes[-1])
    return float(top + np.log(np.sum(chances * np.exp(rate * np.abs(sizes) - top))))


def _log_moment_of_two(rate: float, sizes: F64, chances: F64) -> float:
    """Return ln E[e^(s |U + V|)] for two independent draws U and V; for Args see `_log_moment`."""
    top = rate * float(sizes[-1])
    weights = chances * np.exp(rate * sizes - top)  # terms of E[e^(s U)], divided by e^(s m)
    from_here_up = np.cumsum(weights[::-1])  # entry u + m: the sum over all V >= -u
    not_negative = float(np.sum(weights * from_here_up))
    return 2 * top + math.log(2 * not_negative - float(np.sum(chances**2)) * math.exp(-2 * top))


_MOMENTS = {1: _log_moment, 2: _log_moment_of_two}  # the key is the number of draws in a counter
