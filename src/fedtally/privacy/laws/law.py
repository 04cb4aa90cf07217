"""`Law`: what a plan and the accountant must know of a mechanism of noise.

All distributions of noise are symmetric, over the integers, and log-concave. So the privacy loss of
a shift rises with the outcome.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from fedtally.errors import InvalidInputError
from fedtally.privacy.bounds import F64, Method
from fedtally.privacy.events import Event, Trust
from fedtally.privacy.gaussian import noise_multiplier

if TYPE_CHECKING:
    from fedtally.privacy.geometric import Geometric
    from fedtally.privacy.mechanism import Noise

# A table of a sum ends at this many standard deviations: less than 2^-60 of the mass is beyond.
REACH = 10.0
# Above this standard deviation, the table of a sum would be long, and the sum is normal up to 1e-9.
WIDE = 1e5
VANISHING = 1e-290  # a probability below it has lost digits, since doubles end at 1e-308
# The total variation of one draw from a table of 2^20 entries; none is longer
# (docs/privacy-proofs/table_sampler.md).
DRAW_VARIATION = 2.0**-108


class Total(NamedTuple):
    """The distribution of a sum of draws of one mechanism: symmetric, over the integers.

    Attributes:
        stddev: the standard deviation of the sum, in counts.
        beyond: float64 [k], the probabilities that the absolute value of the sum exceeds 0, 1, ...,
            k - 1. None: the sum is so wide that it counts as normal.
    """

    stddev: float
    beyond: F64 | None


class Law(ABC):
    """The distribution of the noise of one mechanism.

    Attributes:
        words: the name of the noise in a privacy statement.
        least_variance: the variance below which nearly every draw is 0.
        normal_from: the variance above which the noise enters loss distributions as the Gaussian
            that dominates it.
        method: the accountant's method for the bound by the dominating Gaussian.
        sums_of_part: the number of secure sums for one contribution of a client; each costs a delta
            of its own.
    """

    words: ClassVar[str]
    least_variance: ClassVar[float]
    normal_from: ClassVar[float]
    method: ClassVar[Method] = Method.DOMINATING_GAUSSIAN
    sums_of_part: ClassVar[int] = 0

    # ---- draws ----

    @abstractmethod
    def at_once(self, variance: float) -> Noise | Geometric:
        """Return the noise that an aggregator, or each of two servers, adds to every counter.

        Raises:
            InvalidInputError: the noise comes in shares.
        """

    def in_shares(self, variance: float) -> Noise:
        """Return the noise of one or more shares of clients, with their total variance.

        Raises:
            InvalidInputError: the noise is drawn at once.
        """
        raise InvalidInputError("this noise is drawn at once, not in shares of the clients")

    @abstractmethod
    def draws(self, counters: int, clients: int) -> int:
        """Return the most draws from tables in a sum; 0 where draws are exact.

        Args:
            counters: the counters of the sum.
            clients: the most clients in the sum.
        """

    def refused(self, trust: Trust) -> float:
        """Return the probability that a party refuses its draws, which changes their distribution.

        Args:
            trust: the parties that the noise trusts.
        """
        return 0.0

    def total_variation(self, trust: Trust, counters: int, clients: int) -> float:
        """Return a bound on the total variation of all draws of one release from the ideal noise.

        Proof: docs/privacy-proofs/table_sampler.md.

        Args:
            trust: the parties that the noise trusts.
            counters: the counters of a client's vector.
            clients: the most clients in the sum.
        """
        draws = self.draws(counters + 1, clients)  # one more for the number of clients
        if not draws:
            return 0.0
        # Rounded up to a power of two, so that a small change of a plan does not change the bound.
        return DRAW_VARIATION * 2.0 ** math.ceil(math.log2(draws)) + self.refused(trust)

    # ---- what it costs ----

    @abstractmethod
    def half(self, variance: float) -> F64:
        """Return the probabilities that the noise is 0, 1, ...: float64 [k].

        It ends where they are about `VANISHING`. Noise is symmetric, so this is half of it.
        """

    @abstractmethod
    def total(self, variance: float, number: int) -> Total:
        """Return the distribution of a sum of independent draws.

        Args:
            variance: the variance of one draw; for rounded Gaussian noise, before rounding.
            number: the number of draws, at least 1.
        """

    @abstractmethod
    def square(self, event: Event) -> float:
        """Return mu^2, for the mu of the Gaussian mechanism that dominates an event."""

    def pure_losses(self, event: Event) -> list[tuple[float, int]] | None:
        """Return the largest privacy losses of the counters that a client changes.

        A list of pairs: a loss, and the number of counters that have it. None: losses have no
        bound.
        """
        return None

    def rho(self, event: Event) -> float:
        """Return the rho of an event's zero-concentrated differential privacy."""
        mu = math.sqrt(self.square(event))  # as `gaussian_bound` rounds it
        return mu**2 / 2

    def divergence(self, variance: float, shift: int, order: float) -> float | None:
        """Return the Renyi divergence between the noise and the noise shifted; None: no formula.

        Args:
            variance: the variance of the noise.
            shift: the change of a counter, 1 or more.
            order: the order of the divergence, above 1.
        """
        return None

    def bend(self, variance: float, k: int, shift: int) -> float:
        """Return a bound on how much faster probabilities p fall at an outcome `shift` further out.

        Let q(j) = p(j + 1) / p(j). The bound is for ln(q(j) / q(j + shift)), at j = k and at every
        larger j. Infinity: no bound is known.
        """
        return math.inf

    def atoms(self, variance: float, shift: int, loss: F64, mass: F64) -> tuple[F64, F64]:
        """Return the distinct values of the loss and their probabilities: float64 [k] each.

        Args:
            variance: the variance of the noise.
            shift: the change of a counter, 1 or more.
            loss: float64 [n], the loss of each outcome.
            mass: float64 [n], the probability of each outcome.
        """
        return loss, mass

    def guess(self, event: Event, epsilon: float, delta: float) -> float:
        """Return a first guess of the variance at which an event is (epsilon, delta)-private."""
        return (event.l2_sensitivity * noise_multiplier(epsilon, delta)) ** 2


def table(noise: Noise) -> Noise:
    """Return the noise after checking that its total variation is at most `DRAW_VARIATION`."""
    assert noise.total_variation <= DRAW_VARIATION
    return noise


def outcomes(variance: float) -> F64:
    """Return the outcomes 0, 1, ..., n - 1, beyond which the probabilities vanish: float64 [n].

    This holds for Gaussian and for Skellam noise of a variance.
    """
    # A Gaussian falls below 1e-290 within 37 standard deviations. Skellam tails of small variances
    # are heavier; 250 more integers hold them.
    return np.arange(math.ceil(38 * math.sqrt(variance)) + 250, dtype=np.float64)


def cut(probabilities: Any) -> F64:
    """Return the probabilities of 0, 1, ..., cut before the first that is at most `VANISHING`.

    Smaller ones have lost digits, so that their quotients would be wrong privacy losses.
    """
    half = np.asarray(probabilities, np.float64)
    return half[: int(np.argmin(np.append(half[1:], 0.0) > VANISHING)) + 1]


def summed(one: F64, number: int, reach: int) -> F64:
    """Return the probabilities that a sum of symmetric draws is 0, 1, ...: float64.

    Args:
        one: float64 [n], the probabilities that one draw is 0, 1, ..., n - 1.
        number: the number of draws.
        reach: a value that the sum exceeds with negligible probability.
    """
    if number == 1:
        return one
    size = 1 << (2 * max(reach, len(one)) + 1).bit_length()  # so that nothing wraps around
    circle = np.zeros(size)
    circle[: len(one)] = one
    circle[-1 : -len(one) : -1] = one[1:]
    found: F64 = np.maximum(np.fft.irfft(np.fft.rfft(circle) ** number, size)[: reach + 1], 0.0)
    return found


def exceeded(masses: F64) -> F64:
    """Return the probabilities that the absolute value of a draw exceeds 0, 1, ...: float64 [n].

    They are summed from the far end, where they are small. The last one is 0.

    Args:
        masses: float64 [n], the probabilities that the draw is 0, 1, ..., n - 1.
    """
    sums: F64 = np.append(2.0 * np.cumsum(masses[:0:-1])[::-1], 0.0)
    return sums
