"""What a plan and its accountant ask of a mechanism of noise.

All of them are symmetric and of integers, and log-concave: the privacy loss of a shift rises with
the outcome.
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

# Standard deviations beyond which a table of a sum ends: less than 2^-60 of the sum lies there.
REACH = 10.0
# The standard deviation from which a table of a sum would be long, and the sum is normal to 1e-9.
WIDE = 1e5
VANISHING = 1e-290  # a probability below it has lost digits, since doubles end at 1e-308
# The total variation of one draw from a table of 2^20 entries; none is longer
# (docs/privacy-proofs/table_sampler.md).
DRAW_VARIATION = 2.0**-108


class Total(NamedTuple):
    """The distribution of a sum of draws of one mechanism: symmetric, of integers.

    Attributes:
        stddev: its standard deviation, in counts.
        beyond: float64 [k], the probabilities that its size exceeds 0, 1, ...; None where it is
            so wide that it is normal.
    """

    stddev: float
    beyond: F64 | None


class Law(ABC):
    """The distribution of the noise of one mechanism.

    Attributes:
        words: the noise in the words of a guarantee.
        least_variance: the variance below which nearly every draw is 0.
        normal_from: the variance above which the noise enters loss distributions as the Gaussian
            that dominates it.
        method: the method of the bound by that Gaussian.
        sums_of_part: the secure sums that a client's contribution needs, each with a delta.
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
        """Return the noise of some shares, which add up to this variance.

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
        """Return the probability that draws are refused, which changes their distribution."""
        return 0.0

    def total_variation(self, trust: Trust, counters: int, clients: int) -> float:
        """Return the total variation of all draws of one release: docs/privacy-proofs.

        Args:
            trust: the parties that the noise trusts.
            counters: the counters of a client's vector.
            clients: the most clients in the sum.
        """
        draws = self.draws(counters + 1, clients)  # one more for the number of clients
        if not draws:
            return 0.0
        # Rounded up to a power of two: an upper bound that a small change of a plan leaves as is.
        return DRAW_VARIATION * 2.0 ** math.ceil(math.log2(draws)) + self.refused(trust)

    # ---- what it costs ----

    @abstractmethod
    def half(self, variance: float) -> F64:
        """Return the probabilities of 0, 1, ... until they vanish: float64 [k]."""

    @abstractmethod
    def total(self, variance: float, number: int) -> Total:
        """Return the distribution of a sum of independent draws.

        Args:
            variance: the variance of one draw; of a Gaussian before it is rounded.
            number: the number of the draws, at least 1.
        """

    @abstractmethod
    def square(self, event: Event) -> float:
        """Return mu^2 of the Gaussian that dominates an event."""

    def pure_losses(self, event: Event) -> list[tuple[float, int]] | None:
        """Return the largest loss of each counter that a client moves, with the number of these.

        None: losses have no bound.
        """
        return None

    def rho(self, event: Event) -> float:
        """Return the rho of zero-concentrated privacy."""
        mu = math.sqrt(self.square(event))  # as `gaussian_bound` rounds it
        return mu**2 / 2

    def divergence(self, variance: float, shift: int, order: float) -> float | None:
        """Return the Renyi divergence of a shift, if it has a formula.

        Args:
            variance: the variance of the noise.
            shift: how far a counter moves, 1 or more.
            order: the order of the divergence, above 1.
        """
        return None

    def bend(self, variance: float, k: int, shift: int) -> float:
        """Return how much faster probabilities fall, at most, at an outcome `shift` further out.

        It is a bound, for the outcome k and for all beyond it, of the logarithm of p(k + 1) / p(k)
        over p(k + 1 + shift) / p(k + shift). Infinity: there is none.
        """
        return math.inf

    def atoms(self, variance: float, shift: int, loss: F64, mass: F64) -> tuple[F64, F64]:
        """Return the losses that differ, with the mass of each: float64 [k] each.

        Args:
            variance: the variance of the noise.
            shift: how far a counter moves, 1 or more.
            loss: float64 [n], the loss of each outcome.
            mass: float64 [n], its probability.
        """
        return loss, mass

    def guess(self, event: Event, epsilon: float, delta: float) -> float:
        """Return about the variance at which an event alone is private."""
        return (event.l2_sensitivity * noise_multiplier(epsilon, delta)) ** 2


def table(noise: Noise) -> Noise:
    """Return noise whose table is short enough for `DRAW_VARIATION`."""
    assert noise.total_variation <= DRAW_VARIATION
    return noise


def outcomes(variance: float) -> F64:
    """Return 0, 1, ...: beyond them the probabilities of a Gaussian and of Skellam noise vanish."""
    # A Gaussian falls below 1e-290 within 37 standard deviations. Skellam tails of small variances
    # are heavier; 250 more integers hold them.
    return np.arange(math.ceil(38 * math.sqrt(variance)) + 250, dtype=np.float64)


def cut(probabilities: Any) -> F64:
    """Return probabilities, cut before they lose digits: quotients of such would be no losses."""
    half = np.asarray(probabilities, np.float64)
    return half[: int(np.argmin(np.append(half[1:], 0.0) > VANISHING)) + 1]


def summed(one: F64, number: int, reach: int) -> F64:
    """Return the masses of 0, 1, ... of a sum of symmetric draws.

    Args:
        one: float64 [n], the masses of 0, 1, ... of one draw.
        number: number of the draws.
        reach: what the sum exceeds with negligible probability.
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
    """Return the probabilities that a size exceeds 0, 1, ..., from the masses of 0, 1, ...

    They are summed from the far end, where they are small, and the last is 0.
    """
    sums: F64 = np.append(2.0 * np.cumsum(masses[:0:-1])[::-1], 0.0)
    return sums
