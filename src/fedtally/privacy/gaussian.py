"""Gaussian noise, and the Gaussian that dominates other noise: their curves are known exactly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
from scipy.special import erfinv, i0e, log_ndtr

from fedtally import _validate
from fedtally.privacy.bounds import F64, Bound, Method, checked_delta, checked_events, with_margin
from fedtally.privacy.events import Event, Mechanism


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the z at which Gaussian noise is (epsilon, delta)-private.

    Its standard deviation is z times the l2 sensitivity. This is the analytic Gaussian mechanism
    (Balle and Wang 2018, Theorem 8), whose condition is necessary and sufficient.

    >>> round(noise_multiplier(1.0, 1e-6), 4)
    4.2247
    """
    return _multiplier(_validate.real(1e-6, 1e3, epsilon=epsilon), checked_delta(delta))


@cache  # it takes some 50 ms, and a planner asks for the same numbers dozens of times
def _multiplier(epsilon: float, delta: float) -> float:
    # imported where it is used: dp-accounting takes about a second, and most commands need none
    from dp_accounting import get_sigma_gaussian

    # The search behind it is exact to about 1e-9. Ten times that is added, so that an error makes
    # the noise too large, never too small.
    return float(get_sigma_gaussian(epsilon, delta)) * (1 + 1e-8)


def gaussian_bound(events: Event | Sequence[Event]) -> float:
    """Return the mu of a Gaussian mechanism that dominates the events.

    All that the events show is a function of one Gaussian that is shifted by mu standard
    deviations. So the events are mu-Gaussian differentially private (Dong, Roth and Su 2022),
    however later events were chosen in view of earlier ones.

    For rounded Gaussian noise mu is the distance over the standard deviation. For Skellam noise of
    variance v it is the distance times 2 Phi^-1((1 + p) / 2), where p = e^-v I_0(v) is the
    probability of 0: about (1 + 1 / (6 v)) / sqrt(v). It holds for every integer vector of that
    Euclidean length, and no smaller mu holds for a vector of one 1.
    Proof: docs/privacy-proofs/skellam.md.

    >>> event = Event("skellam", 5, "zero-out", variance=500.0, honest_survivors=90)
    >>> round(gaussian_bound(event) / (5 / 500) ** 0.5, 5)
    1.00033
    """
    found = checked_events(events)
    # Shifts in independent Gaussians are one shift in a rotated Gaussian, so lengths add in squares
    return math.sqrt(sum((event.l2_sensitivity * _unit(event)) ** 2 for event in found))


def _unit(event: Event) -> float:
    """Return mu for a distance of 1."""
    match event.mechanism:
        case Mechanism.ROUNDED_GAUSSIAN:
            return 1 / math.sqrt(event.noise_variance)
        case Mechanism.SKELLAM:
            # Phi^-1((1 + p) / 2) is sqrt(2) erfinv(p). The inverse error function keeps all digits
            # of a small p, while (1 + p) / 2 would round them away. Where p is close to 1, it is
            # known to 3e-9 of itself; the factor covers that.
            return 2 * math.sqrt(2) * float(erfinv(i0e(event.noise_variance))) * (1 + 1e-8)


# cached, with what was asked of it: a planner calibrates the noise of several widths, whose events
# differ in the distance of the sampler alone
@lru_cache(maxsize=16)
def gaussian_curve(mu: float, method: Method) -> Bound:
    """Return the curve of one Gaussian that is shifted by mu standard deviations.

    >>> gaussian_curve(0.25, Method.ANALYTIC_GAUSSIAN).epsilon(1e-6) > 1
    True
    """
    from dp_accounting import get_epsilon_gaussian

    return Bound(
        method,
        lru_cache(maxsize=16)(
            lambda delta: with_margin(float(get_epsilon_gaussian(1 / mu, delta)))
        ),
        # Both terms nearly cancel where mu is small: their difference is known to about 1e-16 / mu
        # of itself, and the margins are a thousand times that.
        lambda epsilons: gaussian_delta(mu, epsilons) * (1 + 1e-9 + 1e-13 / mu) + 1e-15,
    )


def gaussian_delta(mu: float, epsilon: F64) -> F64:
    """Return Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

    >>> gaussian_delta(1.0, np.array([0.0])).round(4)
    array([0.3829])
    """
    # in logarithms: e^epsilon overflows from 710 on, where Phi of the same term is next to 0
    upper, lower = log_ndtr(mu / 2 - epsilon / mu), epsilon + log_ndtr(-mu / 2 - epsilon / mu)
    delta: F64 = np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0))
    return delta
