"""Geometric (discrete Laplace) noise: an aggregator adds it, and the guarantee needs no delta."""

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
    """Geometric noise of a rate r: a change by k has a privacy loss between -k r and k r.

    >>> event = Event("geometric", 1, "replace-one", variance=8, encoding="histogram")
    >>> [(round(loss, 3), number) for loss, number in DiscreteLaplace().pure_losses(event)]
    [(0.495, 2)]
    """

    words = "geometric noise (discrete Laplace)"
    least_variance = 2.0**-20
    normal_from = 1e6  # above it, tables would be too long: the tails fall slowly

    def at_once(self, variance: float) -> Geometric:
        """Return geometric noise of the given variance."""
        return Geometric(variance)

    def draws(self, counters: int, clients: int) -> int:
        """Return 0: geometric noise is drawn exactly, not from a table."""
        return 0

    def half(self, variance: float) -> F64:
        """Return the probabilities that the noise is 0, 1, ... (see `Law.half`)."""
        rate = float(rate_of(variance))
        half: F64 = np.exp(-rate * np.arange(math.floor(-math.log(VANISHING) / rate)))
        return half * math.tanh(rate / 2)

    def total(self, variance: float, number: int) -> Total:
        """Return the distribution of the sum of `number` draws of geometric noise."""
        stddev = math.sqrt(number * variance)
        if stddev > WIDE:
            return Total(stddev, None)
        # The tails are longer than a normal distribution's. Each draw leaves out at most 2^-60.
        reach = geometric.half(variance, 2.0**-60)
        beyond = geometric.exceeded(variance, np.arange(reach + 1.0))
        if number == 1:
            return Total(stddev, np.append(beyond, 0.0))
        one = np.append(1.0 - beyond[0], -0.5 * np.diff(beyond))
        masses = summed(one, number, len(one) + math.ceil(REACH * stddev))
        return Total(stddev, exceeded(masses))

    def square(self, event: Event) -> float:
        """Return mu^2 of a Gaussian mechanism that dominates the noise in all changed counters."""
        return sum(number * bound_of_pure(loss) ** 2 for loss, number in self.pure_losses(event))

    def pure_losses(self, event: Event) -> list[tuple[float, int]]:
        """Return the largest privacy loss of each counter that a client changes.

        A list of pairs: a loss, and the number of counters that have this largest loss.
        """
        rate = rate_of(event.noise_variance)
        # conversion to float may round down; the next float above is an upper bound
        return [
            (math.nextafter(float(rate * shift), math.inf), number)
            for shift, number in event.shifts.items()
        ]

    def rho(self, event: Event) -> float:
        """Return the sum of min(epsilon^2, mu^2) / 2 over the counters that a client changes.

        epsilon is the largest privacy loss of a counter. mu is the shift of the Gaussian mechanism
        that dominates the noise of this counter (`bound_of_pure`).
        """
        return sum(
            number * min(loss, bound_of_pure(loss)) ** 2 / 2
            for loss, number in self.pure_losses(event)
        )

    def bend(self, variance: float, k: int, shift: int) -> float:
        """Return 0, since the noise's probabilities fall by the same factor everywhere."""
        return 0.0

    def atoms(self, variance: float, shift: int, loss: F64, mass: F64) -> tuple[F64, F64]:
        """Return the losses (2 j - shift) * rate, for j = 0 .. shift, and their probabilities."""
        rate = float(rate_of(variance))
        step = np.rint((loss / rate + shift) / 2).astype(np.int64)
        mass = np.bincount(step, mass, minlength=shift + 1).astype(np.float64)
        return rate * (2.0 * np.arange(len(mass), dtype=np.float64) - shift), mass

    def guess(self, event: Event, epsilon: float, delta: float) -> float:
        """Return the variance with which the event is about epsilon-private at delta 0."""
        return variance_of(epsilon / sum(shift * k for shift, k in event.shifts.items()))
