"""`Law`, the interface to one mechanism of noise: how it is drawn, and what its privacy costs.

Each distribution of noise is symmetric, over the integers, and log-concave. So, if a counter is
shifted, the privacy loss either never falls or never rises as the outcome grows.
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

# Tables of sums reach at least this number of standard deviations. Hardly any mass is beyond them.
REACH = 10.0
# Above this standard deviation a sum counts as normally distributed, since its table would be long.
# For Gaussian and Skellam noise, probabilities differ from the normal ones by about 1e-9.
WIDE = 1e5
VANISHING = 1e-290  # smaller probabilities lose digits: doubles end at 1e-308
# A bound on the total variation of one draw from a table. It holds up to 2^20 entries, and no table
# is longer (docs/privacy-proofs/table_sampler.md).
DRAW_VARIATION = 2.0**-108


class Total(NamedTuple):
    """The distribution of a sum of several draws of noise: symmetric, over the integers.

    Attributes:
        stddev: the standard deviation of the sum, in counts.
        beyond: float64 [k], the probabilities that the absolute value of the sum exceeds 0, 1, ...,
            k - 1. None: the sum is so wide that it counts as normally distributed.
    """

    stddev: float
    beyond: F64 | None


class Law(ABC):
    """What a plan and the accountant must know of the noise of one mechanism.

    Attributes:
        words: the name of the noise, for people to read.
        least_variance: the least variance that a plan may have. Below it, nearly every draw is 0.
        normal_from: a variance. Noise with a larger variance enters privacy-loss distributions as
            the Gaussian that dominates it.
        method: the name of the bound that is computed from the dominating Gaussian.
        sums_of_part: the number of secure sums that one contribution of a client is in; each adds
            2^-40 to delta.
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

        Args:
            variance: the variance of the noise.

        Raises:
            InvalidInputError: clients add this noise, in shares.
        """

    def in_shares(self, variance: float) -> Noise:
        """Return the noise of one client's share, or of several clients' shares together.

        Args:
            variance: the variance of these shares together.

        Raises:
            InvalidInputError: an aggregator or servers add this noise.
        """
        raise InvalidInputError("this noise is drawn at once, not in shares of the clients")

    @abstractmethod
    def draws(self, counters: int, clients: int) -> int:
        """Return the most draws from tables in one sum; 0 if the noise is drawn exactly.

        If two servers add the noise, only the draws of one server count.

        Args:
            counters: the number of counters of the sum.
            clients: the most clients in the sum.
        """

    def refused(self, trust: Trust) -> float:
        """Return the probability that a party refuses the noise it drew, and stops.

        A sum never holds a refused draw, so its noise is not distributed like ideal noise.
        `total_variation` counts this probability.

        Args:
            trust: who must be honest (`events.Trust`).
        """
        return 0.0

    def total_variation(self, trust: Trust, counters: int, clients: int) -> float:
        """Return a bound on the total variation distance of a release's noise from ideal noise.

        It is for all draws of the release together. Proof: docs/privacy-proofs/table_sampler.md.

        Args:
            trust: who must be honest (`events.Trust`).
            counters: the number of counters of a client's vector.
            clients: the most clients in the sum.
        """
        draws = self.draws(counters + 1, clients)  # one more counter may hold the number of clients
        if not draws:
            return 0.0
        # Rounded up to a power of two. Otherwise each small change of a plan would change the
        # bound.
        return DRAW_VARIATION * 2.0 ** math.ceil(math.log2(draws)) + self.refused(trust)

    # ---- what it costs ----

    @abstractmethod
    def half(self, variance: float) -> F64:
        """Return the probabilities that the noise is 0, 1, ..., k - 1: float64 [k].

        The array ends where probabilities are about `VANISHING`. A value -j is as probable as j.

        Args:
            variance: the variance of the noise; for rounded Gaussian noise, before rounding.
        """

    def stddev(self, variance: float) -> float:
        """Return the standard deviation of one draw; a draw is an integer.

        Args:
            variance: the variance of the noise; for rounded Gaussian noise, before rounding.
        """
        return math.sqrt(variance)

    @abstractmethod
    def total(self, variance: float, number: int) -> Total:
        """Return the distribution of the sum of several independent draws.

        Args:
            variance: the variance of one draw; for rounded Gaussian noise, before rounding.
            number: the number of draws, at least 1.
        """

    @abstractmethod
    def square(self, event: Event) -> float:
        """Return mu^2, where mu is the shift of a Gaussian mechanism that dominates the event."""

    def pure_losses(self, event: Event) -> list[tuple[float, int]] | None:
        """Return the largest privacy loss of each counter that a client changes.

        A list of pairs: a loss, and the number of counters that have this largest loss. None if
        losses are unbounded.
        """
        return None

    def rho(self, event: Event) -> float:
        """Return the rho of the event's zero-concentrated differential privacy."""
        mu = math.sqrt(self.square(event))  # rounded as in `gaussian_bound`, so that both agree
        return mu**2 / 2

    def divergence(self, variance: float, shift: int, order: float) -> float | None:
        """Return the Renyi divergence between the noise and the shifted noise, or an upper bound.

        None if there is no formula for either.

        Args:
            variance: the variance of the noise.
            shift: the change of a counter, 1 or more.
            order: the order of the divergence, above 1.
        """
        return None

    def bend(self, variance: float, k: int, shift: int) -> float:
        """Return a bound on how much faster the noise's probabilities p fall further out.

        Let q(j) = p(j + 1) / p(j). The bound holds for ln(q(j) / q(j + shift)), for every j >= k.
        Infinity means that no bound is known.

        Args:
            variance: the variance of the noise.
            k: the first place of the bound, 0 or more.
            shift: the distance between the two places that are compared, 1 or more.
        """
        return math.inf

    def atoms(self, variance: float, shift: int, loss: F64, mass: F64) -> tuple[F64, F64]:
        """Return the distinct values of the privacy loss and their probabilities: float64 [k] each.

        Args:
            variance: the variance of the noise.
            shift: the change of a counter, 1 or more.
            loss: float64 [n], the privacy loss of each outcome.
            mass: float64 [n], the probability of each outcome.
        """
        return loss, mass

    def guess(self, event: Event, epsilon: float, delta: float) -> float:
        """Return a first guess of the variance with which the event is (epsilon, delta)-private."""
        return (event.l2_sensitivity * noise_multiplier(epsilon, delta)) ** 2


def table(noise: Noise) -> Noise:
    """Return the noise unchanged; assert that its total variation is at most `DRAW_VARIATION`."""
    assert noise.total_variation <= DRAW_VARIATION
    return noise


def outcomes(variance: float) -> F64:
    """Return the integers 0, 1, ..., n - 1 as float64 [n], enough for Gaussian and Skellam noise.

    Noise of this variance has an absolute value of n or more with a probability below `VANISHING`.
    """
    # A Gaussian falls below 1e-290 within 37 standard deviations. Skellam noise with a small
    # variance has heavier tails; 250 more integers are enough for them.
    return np.arange(math.ceil(38 * math.sqrt(variance)) + 250, dtype=np.float64)


def cut(probabilities: Any) -> F64:
    """Return the probabilities of 0, 1, ..., up to the last one above `VANISHING`.

    Smaller probabilities have lost digits, so that their quotients would be wrong privacy losses.

    Args:
        probabilities: the probabilities of 0, 1, 2, ..., falling.

    Returns:
        float64 [k], k at least 1.
    """
    half = np.asarray(probabilities, np.float64)
    return half[: int(np.argmin(np.append(half[1:], 0.0) > VANISHING)) + 1]


def summed(one: F64, number: int, reach: int) -> F64:
    """Return the probabilities that a sum of independent symmetric draws is 0, 1, ..., as float64.

    If `number` is 1, the result is `one`. Otherwise it ends with the probability of `reach`.

    Args:
        one: float64 [n], the probabilities that one draw is 0, 1, ..., n - 1.
        number: the number of draws.
        reach: a value so large that the probability of a larger sum may be ignored.
    """
    if number == 1:
        return one
    size = 1 << (2 * max(reach, len(one)) + 1).bit_length()  # in less, tails would wrap around
    circle = np.zeros(size)
    circle[: len(one)] = one
    circle[-1 : -len(one) : -1] = one[1:]
    found: F64 = np.maximum(np.fft.irfft(np.fft.rfft(circle) ** number, size)[: reach + 1], 0.0)
    return found


def exceeded(masses: F64) -> F64:
    """Return the probabilities that the absolute value of a draw exceeds 0, 1, ..., n - 1.

    They are float64 [n]; the last one is 0. The sums begin with the small terms, which lie at the
    largest values, so that no digits are lost.

    Args:
        masses: float64 [n], the probabilities that the draw is 0, 1, ..., n - 1.
    """
    sums: F64 = np.append(2.0 * np.cumsum(masses[:0:-1])[::-1], 0.0)
    return sums
