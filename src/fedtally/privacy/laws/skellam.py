"""Skellam noise: each client adds a share of it before the secure sum."""

from __future__ import annotations

import math

import numpy as np

from fedtally.errors import InvalidInputError
from fedtally.privacy import library
from fedtally.privacy.bounds import F64
from fedtally.privacy.events import Event
from fedtally.privacy.laws.law import REACH, WIDE, Law, Total, cut, exceeded, outcomes, table
from fedtally.privacy.mechanism import Noise, skellam


class Skellam(Law):
    """Skellam noise: the difference of two Poisson variables.

    A sum of independent draws is Skellam noise, too.
    """

    words = "Skellam noise"
    least_variance = 2.0**-16
    normal_from = 1e7  # above it, SciPy's Bessel functions lose digits
    sums_of_part = 1

    def at_once(self, variance: float) -> Noise:
        """Raise InvalidInputError: clients add Skellam noise, in shares."""
        raise InvalidInputError("this noise comes from the clients, in shares")

    def in_shares(self, variance: float) -> Noise:
        """Return the Skellam noise of one or more clients' shares; its variance is `variance`."""
        return table(skellam(variance))

    def draws(self, counters: int, clients: int) -> int:
        """Return the number of draws in a sum: one for each counter of each client."""
        return counters * clients

    def half(self, variance: float) -> F64:
        """Return the probabilities that the noise is 0, 1, ... (see `Law.half`)."""
        return cut(library.special().ive(outcomes(variance), variance))

    def total(self, variance: float, number: int) -> Total:
        """Return the distribution of the sum of `number` draws, which is Skellam noise, too."""
        variance *= number
        stddev = math.sqrt(variance)
        if stddev > WIDE:
            return Total(stddev, None)
        # with a small variance, the tails are longer than a normal distribution's
        reach = math.ceil(REACH * max(stddev, 1.0)) + 20
        masses = np.asarray(library.special().ive(np.arange(reach + 1.0), variance), np.float64)
        return Total(stddev, exceeded(masses))

    def square(self, event: Event) -> float:
        """Return mu^2 of the Gaussian mechanism that dominates the event.

        Proof: docs/privacy-proofs/skellam.md.
        """
        # Phi^-1((1 + p) / 2) is sqrt(2) erfinv(p). erfinv keeps all digits of a small p, while (1 +
        # p) / 2 would round them away. For p close to 1, erfinv has a relative error of 3e-9, which
        # the factor 1 + 1e-8 covers.
        at = library.special()
        unit = 2 * math.sqrt(2) * float(at.erfinv(at.i0e(event.noise_variance))) * (1 + 1e-8)
        return (event.l2_sensitivity * unit) ** 2

    def bend(self, variance: float, k: int, shift: int) -> float:
        """Return a bound on how much faster the probabilities fall further out (see `Law.bend`)."""
        # Amos (1974):
        # v / (k + 1 + hypot(v, k + 1)) <= I_(k+1)(v) / I_k(v) <= v / (k + hypot(v, k + 2))
        return math.asinh((k + shift + 1) / variance) - math.asinh(k / variance)
