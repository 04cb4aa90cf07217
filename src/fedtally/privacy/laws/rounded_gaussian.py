"""Gaussian noise, rounded to integers: rounding cannot weaken the guarantee of the Gaussian."""

from __future__ import annotations

import math

import numpy as np

from fedtally.privacy import library
from fedtally.privacy.bounds import F64, Method
from fedtally.privacy.events import Event, Trust
from fedtally.privacy.laws.law import (
    REACH,
    WIDE,
    Law,
    Total,
    cut,
    exceeded,
    outcomes,
    summed,
    table,
)
from fedtally.privacy.mechanism import MIN_GAUSSIAN_VARIANCE, Noise, rounded_gaussian

# With at most this probability, one of two servers draws noise that does not fit into a counter,
# and stops. The noise of opened sums is then not the ideal noise
# (docs/privacy-proofs/two_servers.md).
_REFUSED = 2.0**-80


class RoundedGaussian(Law):
    """A Gaussian, rounded to the nearest integer. An aggregator adds it, or each of two servers."""

    words = "rounded Gaussian noise"
    least_variance = MIN_GAUSSIAN_VARIANCE
    normal_from = 1e4  # above it, rounding changes epsilon by a relative 1e-5 at most
    method = Method.ANALYTIC_GAUSSIAN

    def at_once(self, variance: float) -> Noise:
        """Return rounded Gaussian noise; `variance` is its variance before rounding."""
        return table(rounded_gaussian(variance))

    def draws(self, counters: int, clients: int) -> int:
        """Return the number of draws of the party that adds the noise: one for each counter."""
        return counters

    def refused(self, trust: Trust) -> float:
        """Return the probability that one of two servers stops; 0 for an aggregator."""
        return _REFUSED if trust is Trust.DISTRIBUTED else 0.0

    def half(self, variance: float) -> F64:
        """Return the probabilities that the noise is 0, 1, ... (see `Law.half`)."""
        stddev, k = math.sqrt(variance), outcomes(variance)
        at = library.special()
        return cut(at.ndtr((0.5 - k) / stddev) - at.ndtr((-0.5 - k) / stddev))

    def stddev(self, variance: float) -> float:
        """Return the standard deviation of one draw; `variance` is the variance before rounding."""
        half = self.half(variance)
        return math.sqrt(2.0 * float(half @ np.arange(len(half), dtype=np.float64) ** 2))

    def total(self, variance: float, number: int) -> Total:
        """Return the distribution of the sum of `number` Gaussians, each rounded by itself."""
        stddev = math.sqrt(variance)
        # From a variance of 1 on, rounding adds 1/12 up to a relative 1e-8.
        own = variance + 1 / 12 if variance >= 1 else self.stddev(variance) ** 2
        whole = math.sqrt(number * own)
        if whole > WIDE:
            return Total(whole, None)
        edges = np.arange(math.ceil(REACH * stddev) + 2) + 0.5
        # ndtr(-x), not 1 - ndtr(x), which is 0 in the far tails
        upper = library.special().ndtr(-edges / stddev)
        one = np.append(1.0 - 2.0 * upper[0], -np.diff(upper))
        return Total(whole, exceeded(summed(one, number, math.ceil(REACH * whole) + 2)))

    def square(self, event: Event) -> float:
        """Return mu^2 of the Gaussian before rounding, which dominates the rounded noise."""
        return (event.l2_sensitivity * (1 / math.sqrt(event.noise_variance))) ** 2

    def divergence(self, variance: float, shift: int, order: float) -> float:
        """Return the Renyi divergence of the Gaussian before rounding, which is an upper bound."""
        return order * shift**2 / (2 * variance)
