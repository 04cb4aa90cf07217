"""The exact (epsilon, delta) curve of the Gaussian mechanism, and its inverse."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np

from fedtally.base import validate
from fedtally.privacy import library
from fedtally.privacy.bounds import F64, Bound, Method, checked_delta, with_margin


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the noise multiplier z at which Gaussian noise is (epsilon, delta)-private.

    z is the standard deviation divided by the l2 sensitivity. This is the analytic Gaussian
    mechanism (Balle and Wang 2018, Theorem 8), whose condition is necessary and sufficient.

    >>> round(noise_multiplier(1.0, 1e-6), 4)
    4.2247
    """
    return _multiplier(validate.real(1e-6, 1e3, epsilon=epsilon), checked_delta(delta))


@cache  # it takes some 50 ms, and a planner asks for the same numbers dozens of times
def _multiplier(epsilon: float, delta: float) -> float:
    # imported where it is used: dp-accounting takes about a second, and most commands need none
    from dp_accounting import get_sigma_gaussian

    # The library's search is exact to about 1e-9. Ten times that is added, so that an error makes
    # the noise too large, never too small.
    return float(get_sigma_gaussian(epsilon, delta)) * (1 + 1e-8)


def bound_of_pure(epsilon: float) -> float:
    """Return the least mu of a Gaussian mechanism that dominates every mechanism of pure epsilon.

    mu is the shift of the Gaussian in standard deviations.

    >>> round(bound_of_pure(1.0), 4), round(bound_of_pure(1000.0), 1)
    (1.232, 89.4)
    """
    if epsilon > 500:  # 1 - p is no float any more; Phi(-x) <= exp(-x^2 / 2) bounds its quantile
        return 2 * math.sqrt(2 * epsilon)
    # 2 p - 1 = tanh(epsilon / 2) for p = e^epsilon / (1 + e^epsilon) keeps the digits of a small
    # epsilon, and 1 - p those of a large one
    at = library.special()
    mu = (
        2 * math.sqrt(2) * float(at.erfinv(math.tanh(epsilon / 2)))
        if epsilon < 1
        else -2 * float(at.ndtri(at.expit(-epsilon)))
    )
    return mu * (1 + 1e-8)


# Cached, and its epsilons too: a planner calibrates the noise for several widths. Their events
# differ only in the total variation of the sampler, so that mu is the same.
@lru_cache(maxsize=16)
def gaussian_curve(mu: float, method: Method) -> Bound:
    """Return the (epsilon, delta) curve of a Gaussian against itself shifted by mu deviations.

    >>> gaussian_curve(0.25, Method.ANALYTIC_GAUSSIAN).epsilon(1e-6) > 1
    True
    """
    curve = library.gaussian()
    return Bound(
        method,
        lru_cache(maxsize=16)(
            lambda delta: with_margin(float(curve.get_epsilon_gaussian(1 / mu, delta)))
        ),
        # The two terms of `gaussian_delta` nearly cancel where mu is small: the relative error of
        # their difference is about 1e-16 / mu. The margins are a thousand times that.
        lambda epsilons: gaussian_delta(mu, epsilons) * (1 + 1e-9 + 1e-13 / mu) + 1e-15,
    )


def gaussian_delta(mu: float, epsilon: F64) -> F64:
    """Return the delta of a Gaussian against itself shifted by mu standard deviations.

    It is Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

    >>> gaussian_delta(1.0, np.array([0.0])).round(4)
    array([0.3829])
    """
    # in logarithms: e^epsilon overflows from 710 on, while the Phi it is multiplied with is near 0
    log_ndtr = library.special().log_ndtr
    upper, lower = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    delta: F64 = np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))
    return delta
