"""The distribution of the noise of privacy in a counter of all sums together: that of the plan.

It is tabulated where it is narrow: with a small standard deviation its tails are far from those of
a normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ive, ndtr, ndtri

from fedtally.privacy import geometric
from fedtally.privacy.events import Mechanism
from fedtally.recovery.linear_system import F64
from fedtally.sketch import CountSketch

if TYPE_CHECKING:
    from fedtally.privacy.config import PrivacyConfig

# Standard deviations beyond which a table leaves the noise out: less than 2^-60 of it lies there.
_REACH = 10.0
# The standard deviation from which a table would be long, and the noise is normal to 1e-9.
_WIDE = 1e5


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """The distribution of the noise in a counter of all sums together: symmetric, of integers.

    Attributes:
        stddev: its standard deviation, in counts; 0 where there is no noise.
        beyond: float64 [k], the probabilities that its size exceeds 0, 1, ...; None where it is
            so wide that it is normal.
    """

    stddev: float
    beyond: F64 | None

    @classmethod
    def of(cls, terms: PrivacyConfig | None, sketches: Sequence[CountSketch]) -> NoiseLaw:
        """Return the distribution of the noise in sums that landed, as a plan says.

        Args:
            terms: the privacy terms of the plan; None: there is no noise.
            sketches: the sums.

        >>> NoiseLaw.of(None, []).half(0.05)
        0
        """
        if terms is None:
            return NONE
        clients = sum(sketch.num_vectors for sketch in sketches)
        return cls.of_draws(terms.event.mechanism, *terms.draws_of_all(clients, len(sketches)))

    @classmethod
    def of_releases(cls, terms: PrivacyConfig, number: int) -> NoiseLaw:
        """Return the distribution of the noise that an aggregator, or two servers, add.

        Args:
            terms: the privacy terms of the plan.
            number: sums that are opened and added up.
        """
        return cls.of_draws(terms.event.mechanism, *terms.draws_of_all(0, number))

    @classmethod
    def of_draws(cls, mechanism: Mechanism, variance: float, number: int) -> NoiseLaw:
        """Return the distribution of a sum of independent draws.

        Args:
            mechanism: mechanism of the noise.
            variance: variance of one draw; of a Gaussian before it is rounded.
            number: number of the draws.

        >>> NoiseLaw.of_draws(Mechanism.SKELLAM, 0.08, 2).half(0.005)
        2
        """
        if not number:
            return NONE
        return _LAWS[mechanism](variance, number)

    def exceeded(self, size: F64 | float) -> F64:
        """Return the probability that the noise exceeds sizes of at least 0, either way."""
        below = np.floor(np.asarray(size, np.float64))
        if self.beyond is None:
            return 2.0 * ndtr(-(below + 0.5) / self.stddev)
        last = len(self.beyond) - 1
        found: F64 = self.beyond[np.minimum(below, last).astype(np.intp)]
        return found

    def half(self, probability: float) -> int:
        """Return the smallest size that is exceeded with at most this probability.

        >>> law = _gaussian_law(100.0, 1)
        >>> law.half(0.05), float(law.exceeded(19)) > 0.05
        (20, True)
        """
        if self.beyond is None:
            return max(0, math.ceil(-float(ndtri(probability / 2)) * self.stddev - 0.5))
        return int(np.argmax(self.beyond <= probability))

    def at_least(self, size: F64) -> F64:
        """Return the probability that the noise is at least each size, which may be negative."""
        above = 0.5 * self.exceeded(np.maximum(np.ceil(size) - 1.0, 0.0))
        below = 1.0 - 0.5 * self.exceeded(np.maximum(-size, 0.0))
        return np.where(size > 0, above, below)


NONE = NoiseLaw(0.0, np.zeros(1))


@lru_cache(maxsize=16)
def _skellam_law(share: float, number: int) -> NoiseLaw:
    """Return the distribution of a sum of shares, which add up to Skellam noise."""
    variance = share * number
    stddev = math.sqrt(variance)
    if stddev > _WIDE:
        return NoiseLaw(stddev, None)
    # a small variance has longer tails than a normal distribution of it
    reach = math.ceil(_REACH * max(stddev, 1.0)) + 20
    return NoiseLaw(stddev, _beyond(np.asarray(ive(np.arange(reach + 1.0), variance), np.float64)))


@lru_cache(maxsize=16)
def _gaussian_law(variance: float, number: int) -> NoiseLaw:
    """Return the distribution of a sum of rounded Gaussians, each rounded by itself."""
    stddev = math.sqrt(variance)
    total = math.sqrt(number * (variance + 1 / 12))  # rounding adds 1/12 where it matters
    if total > _WIDE:
        return NoiseLaw(total, None)
    edges = np.arange(math.ceil(_REACH * stddev) + 2) + 0.5
    upper = ndtr(-edges / stddev)  # not of edges themselves: far tails would be lost in 1 - 1
    one = np.append(1.0 - 2.0 * upper[0], -np.diff(upper))
    return NoiseLaw(total, _beyond(_summed(one, number, math.ceil(_REACH * total) + 2)))


@lru_cache(maxsize=16)
def _geometric_law(variance: float, number: int) -> NoiseLaw:
    """Return the distribution of a sum of draws of geometric noise."""
    stddev = math.sqrt(number * variance)
    if stddev > _WIDE:
        return NoiseLaw(stddev, None)
    # its tails are longer than those of a normal distribution: less than 2^-60 lies beyond this
    beyond = geometric.exceeded(variance, np.arange(geometric.half(variance, 2.0**-60) + 1.0))
    if number == 1:
        return NoiseLaw(stddev, np.append(beyond, 0.0))
    one = np.append(1.0 - beyond[0], -0.5 * np.diff(beyond))
    return NoiseLaw(stddev, _beyond(_summed(one, number, len(one) + math.ceil(_REACH * stddev))))


_LAWS = {
    Mechanism.ROUNDED_GAUSSIAN: _gaussian_law,
    Mechanism.SKELLAM: _skellam_law,
    Mechanism.GEOMETRIC: _geometric_law,
}


def _summed(one: F64, number: int, reach: int) -> F64:
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


def _beyond(masses: F64) -> F64:
    """Return the probabilities that a size exceeds 0, 1, ..., from the masses of 0, 1, ...

    They are summed from the far end, where they are small, and the last is 0.
    """
    sums: F64 = np.append(2.0 * np.cumsum(masses[:0:-1])[::-1], 0.0)
    return sums
