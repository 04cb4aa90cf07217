"""The distribution of the privacy noise in one counter, summed over all sums, as the plan sets it.

If the distribution is narrow, it is a table: with a small standard deviation its tails differ much
from those of a normal distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from fedtally.privacy.events import Mechanism
from fedtally.privacy.laws import LAWS
from fedtally.recovery.linear_system import F64
from fedtally.sketch import CountSketch

if TYPE_CHECKING:
    from fedtally.privacy.config import PrivacyConfig


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """The distribution of the noise in one counter, summed over all sums; it is symmetric.

    The noise is an integer.

    Attributes:
        stddev: the standard deviation of the noise, in counts; 0 if there is no noise.
        beyond: float64 [k]; entry i is the probability that the absolute noise exceeds i. None: the
            noise is so wide that it is treated as normal.
    """

    stddev: float
    beyond: F64 | None

    @classmethod
    def of(cls, terms: PrivacyConfig | None, sketches: Sequence[CountSketch]) -> NoiseLaw:
        """Return the distribution of the noise that some sums hold together, as the plan says.

        Args:
            terms: the privacy terms of the plan; None: there is no noise.
            sketches: the sums of the rounds that took place.

        >>> NoiseLaw.of(None, []).half(0.05)
        0
        """
        if terms is None:
            return NONE
        clients = sum(sketch.num_vectors for sketch in sketches)
        return cls.of_draws(terms.event.mechanism, *terms.draws_of_all(clients, len(sketches)))

    @classmethod
    def of_releases(cls, terms: PrivacyConfig, number: int) -> NoiseLaw:
        """Return the distribution of the noise that an aggregator or two servers add to some sums.

        Args:
            terms: the privacy terms of the plan.
            number: how many sums are released and then added up.
        """
        return cls.of_draws(terms.event.mechanism, *terms.draws_of_all(0, number))

    @classmethod
    def of_draws(cls, mechanism: Mechanism, variance: float, number: int) -> NoiseLaw:
        """Return the distribution of a sum of independent draws of noise.

        Args:
            mechanism: the mechanism that makes the draws.
            variance: the variance of one draw; for a Gaussian, before it is rounded.
            number: how many draws there are; 0: no noise.

        >>> NoiseLaw.of_draws(Mechanism.SKELLAM, 0.08, 2).half(0.005)
        2
        """
        if not number:
            return NONE
        return _of_draws(mechanism, variance, number)

    def exceeded(self, size: F64 | float) -> F64:
        """Return the probability that the absolute noise exceeds each size, which is at least 0."""
        below = np.floor(np.asarray(size, np.float64))
        if self.beyond is None:
            return 2.0 * ndtr(-(below + 0.5) / self.stddev)
        last = len(self.beyond) - 1
        found: F64 = self.beyond[np.minimum(below, last).astype(np.intp)]
        return found

    def half(self, probability: float) -> int:
        """Return the smallest size that the absolute noise exceeds with at most `probability`.

        The size is in counts.

        >>> law = NoiseLaw.of_draws(Mechanism.ROUNDED_GAUSSIAN, 100.0, 1)
        >>> law.half(0.05), float(law.exceeded(19)) > 0.05
        (20, True)
        """
        if self.beyond is None:
            return max(0, math.ceil(-float(ndtri(probability / 2)) * self.stddev - 0.5))
        return int(np.argmax(self.beyond <= probability))

    def at_least(self, size: F64) -> F64:
        """Return the probability that the noise is at least each number, which may be negative."""
        above = 0.5 * self.exceeded(np.maximum(np.ceil(size) - 1.0, 0.0))
        below = 1.0 - 0.5 * self.exceeded(np.maximum(-size, 0.0))
        return np.where(size > 0, above, below)


NONE = NoiseLaw(0.0, np.zeros(1))


@lru_cache(maxsize=48)
def _of_draws(mechanism: Mechanism, variance: float, number: int) -> NoiseLaw:
    """Return the distribution of the sum of `number` draws, at least one; results are cached."""
    return NoiseLaw(*LAWS[mechanism].total(variance, number))
