"""What the accountant asks of dp-accounting, with SciPy's functions alone: the same numbers.

Importing dp-accounting takes 0.8 s, most of it for SciPy's statistics and signals, which none of
this needs. Names and arguments are those of dp-accounting, and tests compare every number with its
own. `light` has the same names where SciPy is missing, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedtally.base.roots import root

F64 = npt.NDArray[np.float64]

_WITHIN = 1e-12  # how far a root may be off
_CUT = 1e-15  # the mass that the tails of a sum may lose


# ---- the curve of a Gaussian ----


def get_epsilon_gaussian(sigma: float, delta: float) -> float:
    """Return the least epsilon of one Gaussian, at a sensitivity of 1.

    >>> round(get_epsilon_gaussian(4.2247, 1e-6), 4)
    1.0
    """
    above = _above(delta)
    if above(sigma, 0.0) < 0:
        return 0.0
    low, high = 0.0, 1.0
    while above(sigma, high) > 0:
        low, high = high, high * 10
    return root(lambda epsilon: above(sigma, epsilon), low, high, within=_WITHIN)


def get_sigma_gaussian(epsilon: float, delta: float) -> float:
    """Return the least standard deviation of one Gaussian, at a sensitivity of 1.

    >>> round(get_sigma_gaussian(1.0, 1e-6), 4)
    4.2247
    """
    above = _above(delta)
    low, high = 1e-1, 1e0
    while above(low, epsilon) < 0:
        high, low = low, low / 10
    while above(high, epsilon) > 0:
        low, high = high, high * 10
    return root(lambda sigma: above(sigma, epsilon), low, high, within=_WITHIN)


def _above(delta: float) -> Callable[[float, float], float]:
    """Return what maps a Gaussian and an epsilon to the logarithm of its delta over this one."""
    from scipy.special import log_ndtr

    target = np.log(delta)

    def above(sigma: float, epsilon: float) -> float:
        # Balle and Wang 2018, theorem 8
        at = epsilon * sigma + 1 / (2 * sigma)
        upper, lower = log_ndtr(1 / sigma - at), epsilon + log_ndtr(-at)
        log_delta = upper + np.log1p(-np.exp(lower - upper)) if lower <= upper else -math.inf
        return float(log_delta - target)

    return above


# ---- losses on a grid ----


@dataclass(frozen=True)
class LossGrid:
    """A distribution of losses that are rounded upwards to one grid.

    Args:
        step: the distance of the losses.
        lowest: the least loss, in steps.
        mass: float64 [n], the probabilities of the losses from the least one on.
        infinite: the probability of an infinite loss.
    """

    step: float
    lowest: int
    mass: F64
    infinite: float

    def self_compose(self, number: int) -> LossGrid:
        """Return the distribution of a sum of independent losses, all distributed like this one.

        dp-accounting calls SciPy for each of 40 bounds on where the sum lies, which takes longer
        than the sum. Here their terms follow from each other.

        Args:
            number: how many there are, at least 2.
        """
        from scipy import fft

        least, most = _ends(self.mass, number)
        length = fft.next_fast_len(max(most - least + 1, len(self.mass)))
        total = np.real(fft.ifft(fft.fft(self.mass, length) ** number))
        # the transform wraps around; the part that is wanted is no longer than it
        return LossGrid(
            self.step,
            self.lowest * number + least,
            np.roll(total, -least)[: most - least + 1],
            _CUT - math.expm1(number * math.log1p(-self.infinite)),
        )

    def compose(self, other: LossGrid, cut: float) -> LossGrid:
        """Return the distribution of the sum of two independent losses on one grid.

        Args:
            other: the other one.
            cut: the mass that tails may lose, above 0: to the least loss that is left, or to
                infinity.
        """
        from scipy import fft

        size = len(self.mass) + len(other.mass) - 1
        length = fft.next_fast_len(size, real=True)
        waves = fft.rfft(self.mass, length) * fft.rfft(other.mass, length)
        mass = fft.irfft(waves, length)[:size]
        first = _tail(mass, cut / 2)
        last = max(size - _tail(mass[::-1], cut / 2), first + 1)
        lost = float(np.sum(mass[last:]))
        kept = mass[first:last]
        kept[0] += np.sum(mass[:first])
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return LossGrid(self.step, self.lowest + other.lowest + first, kept, infinite + lost)

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the least epsilon at a delta; infinity if none is."""
        if self.infinite > delta:
            return math.inf
        # of all losses above each one: their mass, and their mass times e^-loss
        upper, lower = float(self.infinite), 0.0
        loss = (self.lowest + len(self.mass) - 1) * self.step
        for mass in self.mass[::-1].tolist():
            if upper > delta and lower > 0 and math.log((upper - delta) / lower) >= loss:
                break  # epsilon is at least this loss
            upper += mass
            lower += math.exp(-loss) * mass
            if upper >= delta and lower == 0:  # a loss whose e^-loss is no float
                return max(0.0, loss)
            loss -= self.step
        return math.log((upper - delta) / lower) if upper > lower + delta else 0.0

    def get_delta_for_epsilon(self, epsilon: float) -> float:
        """Return the delta at an epsilon."""
        losses = self._losses()
        larger = losses > epsilon
        return float(self.infinite + np.dot(-np.expm1(epsilon - losses[larger]), self.mass[larger]))

    def get_deltas(self, epsilons: F64) -> F64:
        """Return the deltas at many epsilons, none of them above 700: float64 [k].

        dp-accounting walks over the grid for them in Python, as `get_delta_for_epsilon`.
        """
        losses = self._losses()
        first = int(np.searchsorted(losses, epsilons.min(), side="right"))
        losses, above = losses[first:], self.mass[first:][::-1]
        upper = np.cumsum(np.append(self.infinite, above))
        lower = np.cumsum(np.append(0.0, above * np.exp(-losses[::-1])))
        number = len(losses) - np.searchsorted(losses, epsilons, side="right")
        found: F64 = upper[number] - np.exp(epsilons) * lower[number]
        return found

    def _losses(self) -> F64:
        steps = np.arange(len(self.mass)) + self.lowest
        return np.asarray(steps * self.step, np.float64)


def create_pmf_pessimistic_connect_dots_fixed_gap(
    step: float, lowest: int, highest: int, deltas: F64
) -> LossGrid:
    """Return the distribution whose delta is linear in e^epsilon between the points of a grid.

    Args:
        step: the distance of the points.
        lowest: the least point, in steps.
        highest: the largest point, above the least.
        deltas: float64 [highest - lowest + 1], the delta at each point, falling, within 0 .. 1.
    """
    falls: F64 = np.diff(deltas)
    mass: F64 = np.empty_like(deltas)
    mass[0] = 1 - deltas[0] + falls[0] / math.expm1(step)
    mass[1:-1] = (falls[1:] - falls[:-1] * math.exp(step)) / math.expm1(step)
    mass[-1] = falls[-1] / math.expm1(-step)
    return LossGrid(step, lowest, np.maximum(0.0, mass), float(deltas[-1]))


def _tail(mass: F64, most: float) -> int:
    """Return how many of the first probabilities add up to at most this much."""
    more = np.cumsum(mass) > most
    return int(np.argmax(more)) if more.any() else len(mass)


def _ends(mass: F64, number: int) -> tuple[int, int]:
    """Return places between which a sum of losses lies but for `_CUT`, by the Chernoff bound."""
    growth = np.exp(np.arange(len(mass)) / len(mass))
    least, most, left = 0, (len(mass) - 1) * number, math.log(2 / _CUT)
    rising, falling = mass, mass
    for k in range(1, 21):
        rising, falling, order = rising * growth, falling / growth, k / len(mass)
        most = min(most, math.ceil((number * math.log(rising.sum()) + left) / order))
        least = max(least, math.floor(-(number * math.log(falling.sum()) + left) / order))
    return least, most
