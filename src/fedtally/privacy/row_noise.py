"""The most noise that a row of a secure sum can hold, by which a landed sum is checked.

The claim: in no row of a sum do the sizes |X_i| of the noise in its W counters add up to more than
the bound, but for a probability of 2^-40 over all rows.

The proof: the X_i are independent and of one distribution. For every s > 0, by Markov's inequality
for e^(s sum |X_i|) (Chernoff 1952), P[sum |X_i| >= b] <= E[e^(s |X|)]^W e^(-s b). With b = (W ln
E[e^(s |X|)] + ln(2^41 rows)) / s that is 2^-41 / rows, and 2^-41 for all rows together. The s on a
grid with the least b is taken; each of them is a proof. E[e^(s |X|)] is summed over the table of
the noise, all terms positive, so that rounding is relative and below the 2^-20 that the bound is
raised by. The parts that tables leave out, and the distance of all draws of a sum from their
distribution, are below 2^-60 (docs/privacy-proofs/table_sampler.md): within the other 2^-41.

Where clients add the noise, X is Skellam with the variance of all of them. Fewer clients add less:
X + Y is at least as large in size as X, for independent Y and symmetric unimodal X, since P[|X + y|
<= c] is largest at y = 0. Where two servers add it, X is the sum of two draws, U + V. By symmetry
E[e^(s |U + V|)] = 2 E[e^(s (U + V)); U + V >= 0] - P[U + V = 0].

The bound, and the mean of the sizes:

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
FAILURE_BITS = 40  # an honest sum is refused with a probability of 2^-40
_ROUNDING = 2.0**-20  # far above the rounding of all floating-point sums below


@lru_cache(maxsize=64)
def row_noise_bound(draws: tuple[Noise, ...], stddev: float, rows: int, width: int) -> int:
    """Return the most that the sizes of the noise add up to in any row, but for 2^-40 in all.

    Args:
        draws: the draws of one distribution that are in a counter: one of all clients together, or
            two of two servers.
        stddev: the standard deviation of all of them together.
        rows: the rows of the sketch.
        width: the counters in a row.
    """
    noise, moment = draws[0], _MOMENTS[len(draws)]
    pmf = noise.pmf()
    sizes, chances = np.arange(-noise.largest, noise.largest + 1.0), np.zeros(2 * noise.largest + 1)
    chances[np.fromiter(pmf, np.int64) + noise.largest] = np.fromiter(pmf.values(), np.float64)
    log_odds = (FAILURE_BITS + 1) * math.log(2) + math.log(rows)
    # eight to a doubling, around one over the standard deviation: the best rate is among them
    rates = np.exp2(np.arange(-80, 41) / 8) / stddev
    least = min((width * moment(rate, sizes, chances) + log_odds) / rate for rate in rates.tolist())
    return math.ceil(float(least) * (1 + _ROUNDING))


def _log_moment(rate: float, sizes: F64, chances: F64) -> float:
    """Return ln E[e^(s |X|)]."""
    # the largest exponent is taken out first, so that nothing overflows
    top = rate * float(sizes[-1])
    return float(top + np.log(np.sum(chances * np.exp(rate * np.abs(sizes) - top))))


def _log_moment_of_two(rate: float, sizes: F64, chances: F64) -> float:
    """Return ln E[e^(s |U + V|)] of two independent draws, each of which is -m .. m."""
    top = rate * float(sizes[-1])
    weights = chances * np.exp(rate * sizes - top)  # e^(s U) without e^(s m)
    from_here_up = np.cumsum(weights[::-1])  # entry u + m: over all V >= -u
    not_negative = float(np.sum(weights * from_here_up))
    return 2 * top + math.log(2 * not_negative - float(np.sum(chances**2)) * math.exp(-2 * top))


_MOMENTS = {1: _log_moment, 2: _log_moment_of_two}  # by the number of draws in a counter
