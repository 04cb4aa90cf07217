"""The exact (epsilon, delta) curve of the Gaussian mechanism, and its inverse."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np

from fedtally.base import validate
from fedtally.privacy import library
from fedtally.privacy.bounds import F64, Bound, Method, checked_delta, with_margin


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the noise multiplier z with which Gaussian noise is (epsilon, delta)-private.

    z is the noise's standard deviation divided by the l2 sensitivity. The result is exact but for a
    relative margin of 1e-8 (the analytic Gaussian mechanism of Balle and Wang 2018, Theorem 8).

    Args:
        epsilon: 1e-6 to 1000.
        delta: above 0 and below 1.

    >>> round(noise_multiplier(1.0, 1e-6), 4)
    4.2247
    """
    return _multiplier(validate.real(1e-6, 1e3, epsilon=epsilon), checked_delta(delta))


@cache  # a call takes about 50 ms, and the planner repeats the same call dozens of times
def _multiplier(epsilon: float, delta: float) -> float:
    # imported here: importing dp-accounting takes about a second, and most commands do not need it
    from dp_accounting import get_sigma_gaussian

    # The library's search has a relative error of about 1e-9. Adding 1e-8 makes the noise too large
    # by a little; without it, the noise could be too small.
    return float(get_sigma_gaussian(epsilon, delta)) * (1 + 1e-8)


def bound_of_pure(epsilon: float) -> float:
    """Return a mu such that a Gaussian mechanism dominates every mechanism with this pure epsilon.

    The Gaussian mechanism shifts a Gaussian by mu standard deviations. It *dominates*: what it
    shows is at least as easy to tell apart. Up to epsilon 500 mu is the least such number, but for
    a margin of 1e-8; above, it is a simple upper bound.

    >>> round(bound_of_pure(1.0), 4), round(bound_of_pure(1000.0), 1)
    (1.232, 89.4)
    """
    # mu is twice the normal quantile of p = e^epsilon / (1 + e^epsilon). For a very large epsilon
    # 1 - p would become 0, so the bound Phi(-x) <= exp(-x^2 / 2) is used.
    if epsilon > 500:
        return 2 * math.sqrt(2 * epsilon)
    # To lose no digits, an epsilon below 1 uses 2 p - 1 = tanh(epsilon / 2). A larger epsilon uses
    # 1 - p.
    at = library.special()
    mu = (
        2 * math.sqrt(2) * float(at.erfinv(math.tanh(epsilon / 2)))
        if epsilon < 1
        else -2 * float(at.ndtri(at.expit(-epsilon)))
    )
    return mu * (1 + 1e-8)


# Cached, and so are the epsilons of each curve: a planner calibrates the noise for several widths.
# Their events differ only in the sampler's total variation, so that all have the same mu.
@lru_cache(maxsize=16)
def gaussian_curve(mu: float, method: Method) -> Bound:
    """Return the (epsilon, delta) curve of the Gaussian mechanism with a shift of mu.

    Args:
        mu: the shift between the two neighbours, in standard deviations of the noise.
        method: the method to name in the result.

    >>> gaussian_curve(0.25, Method.ANALYTIC_GAUSSIAN).epsilon(1e-6) > 1
    True
    """
    curve = library.gaussian()
    return Bound(
        method,
        lru_cache(maxsize=16)(
            lambda delta: with_margin(float(curve.get_epsilon_gaussian(1 / mu, delta)))
        ),
        # The two terms of `gaussian_delta` nearly cancel where mu is small. Their difference has a
        # relative error of about 1e-16 / mu; the margin 1e-13 / mu is a thousand times larger.
        lambda epsilons: gaussian_delta(mu, epsilons) * (1 + 1e-9 + 1e-13 / mu) + 1e-15,
    )


def gaussian_delta(mu: float, epsilon: F64) -> F64:
    """Return the delta of the Gaussian mechanism with a shift of mu, at each epsilon.

    It is Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), without a margin for rounding.

    Args:
        mu: the shift between the two neighbours, in standard deviations of the noise.
        epsilon: an array of epsilons.

    >>> gaussian_delta(1.0, np.array([0.0])).round(4)
    array([0.3829])
    """
    # in logarithms: e^epsilon overflows from 710 on, although its product with Phi is small
    log_ndtr = library.special().log_ndtr
    upper, lower = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    delta: F64 = np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))
    return delta
