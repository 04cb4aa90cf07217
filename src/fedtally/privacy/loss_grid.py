"""Distributions of a privacy loss on a grid, which lie above the true ones: composed by FFT.

The method is that of Doroshenko et al. 2022, "Connect the Dots", and of Koskela et al. 2021. Tests
hold it to Google's dp-accounting, with which it agrees to 1e-9: an agent needs neither that package
nor SciPy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from fedtally.privacy.special import F64, logsumexp

# The orders at which the Chernoff bound on a tail is tried, times the length of the distribution.
_ORDERS = np.concatenate([np.arange(-20.0, 0.0), np.arange(1.0, 21.0)])


@dataclass(frozen=True)
class LossGrid:
    """The losses of a pair of distributions, rounded upwards to a grid.

    Args:
        step: the distance of the losses.
        lowest: the least loss, in steps.
        mass: float64 [n], the probability of each loss from the least one on.
        infinite: the probability of an infinite loss.
    """

    step: float
    lowest: int
    mass: F64
    infinite: float

    @classmethod
    def connected(cls, step: float, ends: int, deltas: F64) -> Self:
        """Return the distribution whose delta is linear in e^epsilon between the points of a grid.

        Args:
            step: the distance of the points.
            ends: the number of points on either side of 0.
            deltas: float64 [2 ends + 1], the delta at each point, falling, within 0 .. 1.
        """
        falls = np.diff(deltas)
        mass = np.empty_like(deltas)
        mass[0] = 1 - deltas[0] + falls[0] / math.expm1(step)
        mass[1:-1] = (falls[1:] - falls[:-1] * math.exp(step)) / math.expm1(step)
        mass[-1] = falls[-1] / math.expm1(-step)
        return cls(step, -ends, np.maximum(0.0, mass), float(deltas[-1]))

    def times(self, number: int, cut: float) -> Self:
        """Return the distribution of a sum of independent losses, all distributed like this one.

        Args:
            number: how many there are.
            cut: the mass that tails may lose; it counts as infinite.
        """
        if number == 1:
            return self
        least, most = _bounds(self.mass, number, cut)
        length = _fast(max(most - least + 1, len(self.mass)))
        found = np.fft.irfft(np.fft.rfft(self.mass, length) ** number, length)
        # the transform wraps around; the part that is wanted is no longer than it
        found = np.roll(found, -least)[: most - least + 1]
        infinite = cut - math.expm1(number * math.log1p(-self.infinite))
        return type(self)(self.step, self.lowest * number + least, found, infinite)

    def plus(self, other: LossGrid, cut: float) -> Self:
        """Return the distribution of the sum of two independent losses on one grid.

        Args:
            other: the other one.
            cut: the mass that tails may lose: the upper tail counts as infinite.
        """
        size = len(self.mass) + len(other.mass) - 1
        length = _fast(size)
        product = np.fft.rfft(self.mass, length) * np.fft.rfft(other.mass, length)
        found = np.fft.irfft(product, length)[:size]
        first = _prefix(found, cut / 2)
        last = max(size - _prefix(found[::-1], cut / 2), first + 1)
        mass = found[first:last].copy()
        mass[0] += found[:first].sum()
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return type(self)(
            self.step,
            self.lowest + other.lowest + first,
            mass,
            infinite + float(found[last:].sum()),
        )

    @property
    def losses(self) -> F64:
        """The losses, float64 [n]."""
        return np.asarray((self.lowest + np.arange(len(self.mass))) * self.step, np.float64)

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon at a delta; infinity where there is none.

        Args:
            delta: above 0.
        """
        if self.infinite > delta:
            return math.inf
        losses, mass = self.losses[::-1], self.mass[::-1]
        # Of the losses above epsilon: their mass, and their mass times e^-loss. The more losses are
        # above it, the smaller epsilon is: so it is searched from the largest loss on.
        upper = self.infinite + np.concatenate([[0.0], np.cumsum(mass)])
        lower = np.concatenate([[0.0], np.cumsum(mass * np.exp(-losses))])
        with np.errstate(divide="ignore", invalid="ignore"):
            at = np.log((upper - delta) / lower)
        held = (upper[:-1] > delta) & (lower[:-1] > 0) & (at[:-1] >= losses)
        place = int(np.argmax(held)) if held.any() else len(mass)
        if upper[place] <= lower[place] + delta:
            return 0.0
        return float(at[place])

    def deltas(self, epsilons: F64) -> F64:
        """Return the delta at each epsilon."""
        losses = self.losses
        found: F64 = self.infinite + np.array(
            [
                -np.expm1(one - losses[first:]) @ self.mass[first:]
                for one, first in zip(
                    epsilons, np.searchsorted(losses, epsilons, side="right"), strict=True
                )
            ]
        )
        return found


def _bounds(mass: F64, number: int, cut: float) -> tuple[int, int]:
    """Return places between which a sum of losses lies but for `cut`, by the Chernoff bound."""
    least, most, at = 0, (len(mass) - 1) * number, np.arange(len(mass), dtype=np.float64)
    for order in _ORDERS / len(mass):
        bound = (number * logsumexp(at * order, mass) + math.log(2 / cut)) / order
        if order > 0:
            most = min(most, math.ceil(bound))
        else:
            least = max(least, math.floor(bound))
    return least, most


def _prefix(mass: F64, most: float) -> int:
    """Return how many numbers at the beginning sum up to at most `most`."""
    above = np.cumsum(mass) > most
    return int(np.argmax(above)) if above.any() else len(mass)


def _fast(length: int) -> int:
    """Return a length of at least this one whose transform is fast: 2^a 3^b 5^c."""
    best = 1 << (length - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            best = min(best, three << max(0, (-(-length // three) - 1).bit_length()))
            three *= 3
        five *= 5
    return best
