"""Geometric noise, or discrete Laplace noise: an aggregator adds it, and it needs no delta.

Proof: docs/privacy-proofs/geometric.md.
"""

from __future__ import annotations

import math

import numpy as np

from fedtally.privacy import geometric
from fedtally.privacy.bounds import F64
from fedtally.privacy.events import Event
from fedtally.privacy.gaussian import bound_of_pure
from fedtally.privacy.geometric import Geometric, rate_of, variance_of
from fedtally.privacy.laws.law import REACH, VANISHING, WIDE, Law, Total, exceeded, summed


class DiscreteLaplace(Law):
    """Geometric noise: a counter that changes by k has a privacy loss of -k r to k r, for rate r.

    >>> event = Event("geometric", 1, "replace-one", variance=8, encoding="histogram")
    >>> [(round(loss, 3), number) for loss, number in DiscreteLaplace().pure_losses(event)]
    [(0.495, 2)]
    """

    words = "geometric noise (discrete Laplace)"
    least_variance = 2.0**-20
    normal_from = 1e6  # above it tables would be too long, since their tails are long

    def at_once(self, variance: float) -> Geometric:
        """Return geometric noise of a variance."""
        return Geometric(variance)

    def draws(self, counters: int, clients: int) -> int:
        """Return 0, since no draw is from a table."""
        return 0

    def half(self, variance: float) -> F64:
        """Return the probabilities of 0, 1, ... until they vanish: float64 [k]."""
        rate = float(rate_of(variance))
        half: F64 = np.exp(-rate * np.arange(math.floor(-math.log(VANISHING) / rate)))
        return half * math.tanh(rate / 2)

    def total(self, variance: float, number: int) -> Total:
        """Return the distribution of a sum of draws of geometric noise."""
        stddev = math.sqrt(number * variance)
        if stddev > WIDE:
            return Total(stddev, None)
        # tails are longer than those of a normal distribution: a mass of at most 2^-60 is beyond
        reach = geometric.half(variance, 2.0**-60)
        beyond = geometric.exceeded(variance, np.arange(reach + 1.0))
        if number == 1:
            return Total(stddev, np.append(beyond, 0.0))
        one = np.append(1.0 - beyond[0], -0.5 * np.diff(beyond))
        masses = summed(one, number, len(one) + math.ceil(REACH * stddev))
        return Total(stddev, exceeded(masses))

    def square(self, event: Event) -> float:
        """Return mu^2 of a Gaussian mechanism that dominates the noise in all counters together."""
        return sum(number * bound_of_pure(loss) ** 2 for loss, number in self.pure_losses(event))

    def pure_losses(self, event: Event) -> list[tuple[float, int]]:
        """Return the largest privacy losses of the counters that a client changes: see `Law`."""
        rate = rate_of(event.noise_variance)
        # a float rounds to nearest: one step up is an upper bound
        return [
            (math.nextafter(float(rate * shift), math.inf), number)
            for shift, number in event.shifts.items()
        ]

    def rho(self, event: Event) -> float:
        """Return the sum over counters of epsilon^2 / 2, or of mu^2 / 2 where that is less."""
        return sum(
            number * min(loss, bound_of_pure(loss)) ** 2 / 2
            for loss, number in self.pure_losses(event)
        )

    def bend(self, variance: float, k: int, shift: int) -> float:
        """Return 0, since probabilities fall by the same factor everywhere."""
        return 0.0

    def atoms(self, variance: float, shift: int, loss: F64, mass: F64) -> tuple[F64, F64]:
        """Return the distinct losses, rate (2 j - shift) for j = 0 .. shift, and their masses."""
        rate = float(rate_of(variance))
        step = np.rint((loss / rate + shift) / 2).astype(np.int64)
        mass = np.bincount(step, mass, minlength=shift + 1).astype(np.float64)
        return rate * (2.0 * np.arange(len(mass), dtype=np.float64) - shift), mass

    def guess(self, event: Event, epsilon: float, delta: float) -> float:
        """Return a first guess of the variance at which an event is private at delta 0."""
        return variance_of(epsilon / sum(shift * k for shift, k in event.shifts.items()))
