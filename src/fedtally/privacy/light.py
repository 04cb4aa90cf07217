"""What the accountant asks of SciPy and dp-accounting, in NumPy alone: for an agent without them.

Each name here is that of the function or class which it stands in for (`privacy.library`), with the
same arguments; what the accountant never asks is not here. `docs/agent.md` says how far the
epsilons are from those with the libraries: tests compare them.

`math.erf` and `math.erfc` have all digits, also in the tails, and the functions of the normal
distribution follow from them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

_ROOT_2 = math.sqrt(2.0)
_LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
_FAR = -12.0  # below it Mills' ratio has all digits from its series
_SERIES = 20  # terms of an asymptotic series: the next one is below 1e-16 where it is used
_MOST_STEPS = 100  # of Newton's method, which needs less than ten
_LITTLE = 30.0  # up to here the series of a Bessel function is summed, and above the asymptotic one
# The orders at which the Chernoff bound on a tail is tried, times the length of the distribution.
_ORDERS = np.concatenate([np.arange(-20.0, 0.0), np.arange(1.0, 21.0)])
# Prime factors of lengths whose transform is fast, as SciPy chooses them: so it rounds alike.
_COMPLEX, _REAL = (2, 3, 5, 7, 11), (2, 3, 5)
_CUT = 1e-15  # the mass that the tails of a power may lose, which counts as infinite

# What an epsilon may be below that with the libraries: of itself, or as it is where it is below 1.
TOLERANCE = 1e-9
# By how much the deltas of the two may differ, for each pair: 1.5 times what was measured.
_ROUNDING = 5e-16

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


# ---- scipy.special ----


def ndtr(x: F64) -> F64:
    """Return the normal distribution function Phi.

    >>> ndtr(np.array([0.0, -10.0]))
    array([5.00000000e-01, 7.61985302e-24])
    """
    found: F64 = _erfc(x / -_ROOT_2) / 2
    return found


def log_ndtr(x: F64) -> F64:
    """Return the logarithm of Phi, also where Phi is no float.

    >>> log_ndtr(np.array([-40.0, 0.0, 40.0])).round(4)
    array([-8.046084e+02, -6.931000e-01, -0.000000e+00])
    """
    tail = _erfc(np.abs(np.maximum(x, _FAR)) / _ROOT_2) / 2
    with np.errstate(divide="ignore"):  # where Phi is no float and is not taken
        found: F64 = np.where(x > 0, np.log1p(-tail), np.log(tail))
    far = x <= _FAR
    found[far] = _mills(x[far])
    return found


def _log_ndtr(x: float) -> float:
    """Return the same of one number."""
    if x > 0:
        return math.log1p(-math.erfc(x / _ROOT_2) / 2)
    if x > _FAR:
        return math.log(math.erfc(-x / _ROOT_2) / 2)
    return float(_mills(np.array([x]))[0])


def _mills(x: F64) -> F64:
    """Return the logarithm of Phi far below 0: of phi(x) / -x (1 - 1/x^2 + 3/x^4 - ...)."""
    term, total = np.ones_like(x), np.ones_like(x)
    for k in range(1, _SERIES):
        term *= -(2 * k - 1) / (x * x)
        total += term
    return -x * x / 2 - np.log(-x) - _LOG_ROOT_2_PI + np.log(total)


def expit(x: float) -> float:
    """Return 1 / (1 + e^-x).

    >>> expit(0.0), expit(-500.0) > 0
    (0.5, True)
    """
    return 1 / (1 + math.exp(-x))


def ndtri(p: float) -> float:
    """Return the quantile of a probability above 0 and at most 1/2.

    >>> round(ndtri(0.025), 6)
    -1.959964
    """
    # Phi is log-concave: from the left Newton's method comes closer with each step, and never
    # steps over.
    log_p = math.log(p)
    x = -math.sqrt(-2 * log_p) - 1
    for _ in range(_MOST_STEPS):
        value = _log_ndtr(x)
        step = (value - log_p) * math.exp(value + x * x / 2 + _LOG_ROOT_2_PI)
        x -= step
        if abs(step) <= 1e-15 * abs(x):
            break
    return x


def erfinv(p: float) -> float:
    """Return the inverse error function of a number from 0 to 1.

    >>> round(erfinv(0.5), 6), erfinv(1e-300) > 0, erfinv(1.0)
    (0.476936, True, inf)
    """
    if p > 0.5:
        # erf(x) = 2 Phi(sqrt(2) x) - 1: by the tail, which is known as well as p is
        return -ndtri((1 - p) / 2) / _ROOT_2 if p < 1 else math.inf
    x = p * math.sqrt(math.pi) / 2
    for _ in range(_MOST_STEPS):
        step = (math.erf(x) - p) * math.sqrt(math.pi) / 2 * math.exp(x * x)
        x -= step
        if abs(step) <= 1e-16 * x:
            break
    return x


def i0e(v: float) -> float:
    """Return e^-v I_0(v), for v of at least 0.

    >>> round(i0e(1.0), 6), round(i0e(1e7) * math.sqrt(2e7 * math.pi), 6)
    (0.46576, 1.0)
    """
    term, total = 1.0, 1.0
    if v <= _LITTLE:
        for k in range(1, 200):
            term *= v * v / (4.0 * k * k)
            total += term
        return math.exp(-v) * total
    for k in range(1, _SERIES):
        term *= (2 * k - 1) ** 2 / (8 * k * v)
        total += term
    return total / math.sqrt(2 * math.pi * v)


def ive(k: F64, v: float) -> F64:
    """Return e^-v I_k(v).

    Args:
        k: the orders, which are 0, 1, 2 and so on.
        v: above 0.

    >>> found = ive(np.arange(60.0), 4.0)
    >>> round(float(found[0] + 2 * found[1:].sum()), 12)
    1.0
    """
    # The quotient of neighbours, from far above downwards: each step takes most of the error off.
    n = len(k)
    further = n + 100 + 4 * math.isqrt(math.ceil(v))
    quotient, quotients = 0.0, np.ones(n)
    for order in range(further, 0, -1):
        quotient = 1 / (2 * order / v + quotient)
        if order < n:
            quotients[order] = quotient
    return np.asarray(i0e(v) * np.cumprod(quotients), np.float64)


def logsumexp(terms: F64, b: F64 | float = 1.0) -> float:
    """Return the logarithm of the sum of b times e^terms.

    >>> round(logsumexp(np.array([1000.0, 1000.0])), 6)
    1000.693147
    """
    most = float(terms.max())
    return most + math.log(float(np.sum(b * np.exp(terms - most))))


# ---- dp_accounting ----


def get_epsilon_gaussian(sigma: float, delta: float) -> float:
    """Return the least epsilon of one Gaussian, at a sensitivity of 1, from above.

    >>> round(get_epsilon_gaussian(4.2247, 1e-6), 4)
    1.0
    """
    target, low, high = math.log(delta), 0.0, 1.0
    if _log_delta(sigma, 0.0) < target:
        return 0.0
    while _log_delta(sigma, high) > target:
        low, high = high, 10 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if _log_delta(sigma, middle) > target else (low, middle)
    return high


def _log_delta(sigma: float, epsilon: float) -> float:
    """Return the logarithm of the delta of one Gaussian (Balle and Wang 2018, theorem 8)."""
    at = epsilon * sigma + 1 / (2 * sigma)
    upper, lower = _log_ndtr(1 / sigma - at), epsilon + _log_ndtr(-at)
    return upper + math.log(-math.expm1(lower - upper)) if lower < upper else -math.inf


@dataclass(frozen=True)
class LossGrid:
    """The losses of a pair of distributions, rounded upwards to a grid.

    Args:
        step: the distance of the losses.
        lowest: the least loss, in steps.
        mass: float64 [n], the probability of each loss from the least one on.
        infinite: the probability of an infinite loss.
        pairs: the number of pairs of distributions whose losses are added up.
    """

    step: float
    lowest: int
    mass: F64
    infinite: float
    pairs: int = 1

    def to_dense_pmf(self) -> LossGrid:
        """Return the same: there is no other form here."""
        return self

    def self_compose(self, number: int) -> LossGrid:
        """Return the distribution of a sum of independent losses, all distributed like this one.

        Args:
            number: how many there are, at least 2.
        """
        least, most = _bounds(self.mass, number)
        length = _fast(max(most - least + 1, len(self.mass)), _COMPLEX)
        found = np.fft.ifft(_spectrum(self.mass, length) ** number).real
        # the transform wraps around; the part that is wanted is no longer than it
        found = np.roll(found, -least)[: most - least + 1]
        infinite = _CUT - math.expm1(number * math.log1p(-self.infinite))
        lowest = self.lowest * number + least
        return LossGrid(self.step, lowest, found, infinite, number * self.pairs)

    def compose(self, other: LossGrid, cut: float) -> LossGrid:
        """Return the distribution of the sum of two independent losses on one grid.

        Args:
            other: the other one.
            cut: the mass that tails may lose: the upper tail counts as infinite.
        """
        size = len(self.mass) + len(other.mass) - 1
        length = _fast(size, _REAL)
        product = np.fft.rfft(self.mass, length) * np.fft.rfft(other.mass, length)
        found = np.fft.irfft(product, length)[:size]
        first = _prefix(found, cut / 2)
        last = max(size - _prefix(found[::-1], cut / 2), first + 1)
        mass = found[first:last].copy()
        mass[0] += found[:first].sum()
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        lowest = self.lowest + other.lowest + first
        infinite += float(found[last:].sum())
        return LossGrid(self.step, lowest, mass, infinite, self.pairs + other.pairs)

    @property
    def _losses(self) -> F64:
        return np.asarray((self.lowest + np.arange(len(self.mass))) * self.step, np.float64)

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the least epsilon at a delta above 0; infinity where there is none.

        It is at most `TOLERANCE` below that of dp-accounting.
        """
        # Transforms err, here and there: by more than the tolerance where delta is small.
        most = self._epsilon(delta - _ROUNDING * self.pairs)
        # infinity stays so, where a difference of infinities would be no number
        return max(self._epsilon(delta), min(most - TOLERANCE, most * (1 - TOLERANCE)))

    def _epsilon(self, delta: float) -> float:
        if self.infinite > delta:
            return math.inf
        losses, mass = self._losses[::-1], self.mass[::-1]
        # Of the losses above epsilon: their mass, and their mass times e^-loss. The more losses are
        # above it, the smaller epsilon is: so it is searched from the largest loss on.
        upper = self.infinite + np.concatenate([[0.0], np.cumsum(mass)])
        lower = np.concatenate([[0.0], np.cumsum(mass * np.exp(-losses))])
        if (overflows := (upper[1:] >= delta) & (lower[1:] == 0)).any():
            return max(0.0, float(losses[np.argmax(overflows)]))  # e^-loss is 0 there
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            at = np.log((upper - delta) / lower)
        held = (upper[:-1] > delta) & (lower[:-1] > 0) & (at[:-1] >= losses)
        place = int(np.argmax(held)) if held.any() else len(mass)
        if upper[place] <= lower[place] + delta:
            return 0.0
        return float(at[place])


def create_pmf_pessimistic_connect_dots_fixed_gap(
    step: float, lowest: int, highest: int, deltas: F64
) -> LossGrid:
    """Return the distribution whose delta is linear in e^epsilon between the points of a grid.

    Args:
        step: the distance of the points.
        lowest: the least point, in steps.
        highest: the largest point.
        deltas: float64 [highest - lowest + 1], the delta at each point, falling, within 0 .. 1.
    """
    falls = np.diff(deltas)
    mass = np.empty_like(deltas)
    mass[0] = 1 - deltas[0] + falls[0] / math.expm1(step)
    mass[1:-1] = (falls[1:] - falls[:-1] * math.exp(step)) / math.expm1(step)
    mass[-1] = falls[-1] / math.expm1(-step)
    return LossGrid(step, lowest, np.maximum(0.0, mass), float(deltas[-1]))


def _spectrum(mass: F64, length: int) -> npt.NDArray[np.complex128]:
    """Return the whole transform, of which the second half mirrors the first one."""
    # so each number is rounded as SciPy rounds it
    half = np.fft.rfft(mass, length)
    return np.concatenate([half, np.conj(half[1 : (length + 1) // 2][::-1])])


def _bounds(mass: F64, number: int) -> tuple[int, int]:
    """Return places between which a sum of losses lies but for `_CUT`, by the Chernoff bound."""
    least, most, at = 0, (len(mass) - 1) * number, np.arange(len(mass), dtype=np.float64)
    for order in _ORDERS / len(mass):
        bound = (number * logsumexp(at * order, mass) + math.log(2 / _CUT)) / order
        if order > 0:
            most = min(most, math.ceil(bound))
        else:
            least = max(least, math.floor(bound))
    return least, most


def _prefix(mass: F64, most: float) -> int:
    """Return how many numbers at the beginning sum up to at most `most`."""
    above = np.cumsum(mass) > most
    return int(np.argmax(above)) if above.any() else len(mass)


def _fast(length: int, factors: Sequence[int]) -> int:
    """Return the least length of at least this one that has no other prime factors."""
    while True:
        rest = length
        for factor in factors:
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 1
