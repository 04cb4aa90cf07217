"""What the error models of all decoders share: a prediction, the shape of a plan, and groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.privacy.events import Mechanism

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """What a plan will do, in frequencies.

    Attributes:
        scale: error of one item, as a standard deviation: of a fitted item for joint recovery; for
            the median the .95 quantile of any item's error over 1.96, since its tails are not
            normal. 0 if recovery is exact.
        support: how many items joint recovery fits; 0 for the median.
        linf: the largest error of all candidates, exceeded in half of all campaigns, or with the
            probability asked for.
    """

    scale: float
    support: float
    linf: float


class Shape(NamedTuple):
    """The sizes that decide the error: batches are sets of signs.

    The noise is the variance of one counter of the sum over all rounds, before any rounding.

    Attributes:
        sizes: float64 [batches], in proportion to the clients of each.
        heterogeneity: of the batches, from 1 to their effective number.
        mechanism: of the noise; the models of sketches take it as normal.
        draws: of that noise, each of integers, which add up to it.
    """

    rows: int
    width: int
    sizes: F64
    fresh: bool
    clients: int
    noise: float
    candidates: int
    heterogeneity: float
    mechanism: Mechanism = Mechanism.ROUNDED_GAUSSIAN
    draws: int = 1

    @property
    def batches(self) -> float:
        """The effective number of batches: so many of equal size spread the clients as much."""
        return effective(self.sizes)

    @property
    def cancelling(self) -> float:
        """In how many batches of equal size an item's collisions would cancel as they do: M'."""
        return self.batches / self.heterogeneity


def effective(sizes: F64) -> float:
    """Return the effective number of batches: so many of equal size spread the clients as much."""
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def heterogeneity_of_batches(heterogeneity: float, batches: float, num_rounds: float) -> float:
    """Return the heterogeneity of batches of rounds: 1 + (h - 1) (B - 1) / (M - 1).

    A batch's distribution is the mean of its rounds'. If these are assigned at random, the variance
    of the mean of k = M / B of
    M rounds is the (M - k) / (k (M - 1))-th part of that of one. Exact for items that each occur in
    one round alone: B.

    Args:
        heterogeneity: h of the rounds, at least 1; no more than M is used.
        batches: B, their effective number, at least 1.
        num_rounds: M, effective, at least B.

    >>> [heterogeneity_of_batches(10.0, batches, 10) for batches in (1, 4, 10)]
    [1.0, 4.0, 10.0]
    """
    if num_rounds <= 1.0 + 1e-9:
        return 1.0
    return 1.0 + (min(heterogeneity, num_rounds) - 1.0) * (batches - 1.0) / (num_rounds - 1.0)


def grouped(values: F64, numbers: F64, ratio: float) -> tuple[F64, F64]:
    """Return means and sizes of groups of values within a ratio of each other.

    The values are positive and rising, and there are so many of each.
    """
    if not len(values):
        return np.empty(0), np.empty(0)
    group = np.floor((np.log(values) - np.log(values[0])) / np.log(ratio)).astype(np.int64)
    sizes = np.bincount(group, numbers).astype(np.float64)
    sums = np.bincount(group, values * numbers)
    return sums[sizes > 0] / sizes[sizes > 0], sizes[sizes > 0]
