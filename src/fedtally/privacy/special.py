"""Special functions of the accountant, in NumPy alone: an agent needs no SciPy for its epsilons.

They agree with SciPy to 1e-12 of themselves, where the accountant calls them. `math.erf` and
`math.erfc` have all digits, also in the tails, and most of these follow from them.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_ROOT_2 = math.sqrt(2.0)
_LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
_FAR = -12.0  # below it Mills' ratio has all digits from its series
_SERIES = 20  # terms of an asymptotic series: the next one is below 1e-16 where it is used
_MOST_STEPS = 100  # of Newton's method, which needs less than ten
_LITTLE = 30.0  # up to here the series of a Bessel function is summed, and above the asymptotic one

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def ndtr(x: F64) -> F64:
    """Return the normal distribution function Phi.

    >>> ndtr(np.array([0.0, -10.0]))
    array([5.00000000e-01, 7.61985302e-24])
    """
    found: F64 = _erfc(x / -_ROOT_2) / 2
    return found


def log_ndtr(x: float) -> float:
    """Return the logarithm of Phi, also where Phi is no float.

    >>> round(log_ndtr(-40.0), 6), log_ndtr(40.0)
    (-804.608442, 0.0)
    """
    if x > 0:
        return math.log1p(-math.erfc(x / _ROOT_2) / 2)
    if x > _FAR:
        return math.log(math.erfc(-x / _ROOT_2) / 2)
    return float(_mills(np.array([x]))[0])


def log_ndtr_of(x: F64) -> F64:
    """Return the same of each number of an array.

    >>> log_ndtr_of(np.array([-40.0, 0.0, 40.0])).round(4)
    array([-8.046084e+02, -6.931000e-01, -0.000000e+00])
    """
    tail = _erfc(np.abs(np.maximum(x, _FAR)) / _ROOT_2) / 2
    with np.errstate(divide="ignore"):  # where Phi is no float and is not taken
        found: F64 = np.where(x > 0, np.log1p(-tail), np.log(tail))
    far = x <= _FAR
    found[far] = _mills(x[far])
    return found


def _mills(x: F64) -> F64:
    """Return the logarithm of Phi far below 0: of phi(x) / -x (1 - 1/x^2 + 3/x^4 - ...)."""
    term, total = np.ones_like(x), np.ones_like(x)
    for k in range(1, _SERIES):
        term *= -(2 * k - 1) / (x * x)
        total += term
    return -x * x / 2 - np.log(-x) - _LOG_ROOT_2_PI + np.log(total)


def log_ndtri(log_p: float) -> float:
    """Return the quantile of a probability below 1/2, which is given by its logarithm.

    >>> round(log_ndtri(math.log(0.025)), 6)
    -1.959964
    """
    # Phi is log-concave: from the left Newton's method comes closer with each step, and never
    # steps over.
    x = -math.sqrt(-2 * log_p) - 1
    for _ in range(_MOST_STEPS):
        value = log_ndtr(x)
        step = (value - log_p) * math.exp(value + x * x / 2 + _LOG_ROOT_2_PI)
        x -= step
        if abs(step) <= 1e-15 * abs(x):
            break
    return x


def erfinv(p: float) -> float:
    """Return the inverse error function of a number from 0 to below 1.

    >>> round(erfinv(0.5), 6), erfinv(1e-300) > 0
    (0.476936, True)
    """
    if p > 0.5:
        # erf(x) = 2 Phi(sqrt(2) x) - 1: by the tail, which is known as well as p is
        return -log_ndtri(math.log((1 - p) / 2)) / _ROOT_2 if p < 1 else math.inf
    x = p * math.sqrt(math.pi) / 2
    for _ in range(_MOST_STEPS):
        step = (math.erf(x) - p) * math.sqrt(math.pi) / 2 * math.exp(x * x)
        x -= step
        if abs(step) <= 1e-16 * x:
            break
    return x


def i0e(v: float) -> float:
    """Return e^-v I_0(v), for v of at least 0: what Skellam noise of variance v has at 0.

    >>> round(i0e(1.0), 6), round(i0e(1e7) * math.sqrt(2e7 * math.pi), 6)
    (0.46576, 1.0)
    """
    term, total = 1.0, 1.0
    if v <= _LITTLE:
        for k in range(1, 200):
            term *= v * v / (4.0 * k * k)
            total += term
        return math.exp(-v) * total
    for k in range(1, _SERIES):
        term *= (2 * k - 1) ** 2 / (8 * k * v)
        total += term
    return total / math.sqrt(2 * math.pi * v)


def ive_up_to(n: int, v: float) -> F64:
    """Return e^-v I_k(v) for k = 0 .. n - 1: what Skellam noise of variance v has at k.

    >>> found = ive_up_to(60, 4.0)
    >>> round(float(found[0] + 2 * found[1:].sum()), 12)
    1.0
    """
    # The quotient of neighbours, from far above downwards: each step takes most of the error off.
    further = n + 100 + 4 * math.isqrt(math.ceil(v))
    quotient, quotients = 0.0, np.ones(n)
    for k in range(further, 0, -1):
        quotient = 1 / (2 * k / v + quotient)
        if k < n:
            quotients[k] = quotient
    return np.asarray(i0e(v) * np.cumprod(quotients), np.float64)


def logsumexp(terms: F64, weights: F64 | float = 1.0) -> float:
    """Return the logarithm of a sum of weights times e^terms.

    >>> round(logsumexp(np.array([1000.0, 1000.0])), 6)
    1000.693147
    """
    most = float(terms.max())
    return most + math.log(float(np.sum(weights * np.exp(terms - most))))
