"""Replacements in NumPy for the functions of SciPy and dp-accounting that the accountant needs.

They are for an agent in which one or both libraries are missing (see `privacy.library`). Each
function has the name and the arguments of the function that it replaces; `LossGrid` has the methods
that are needed of dp-accounting's distributions. Tests compare the epsilons with the libraries'
epsilons. `docs/library.md` says by how much the epsilons of this module are smaller than the
libraries' epsilons, and where they may be larger.

`math.erf` and `math.erfc` have all digits, even in the tails. The functions of the normal
distribution are computed from these two and, far out, from a series.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from fedtally.errors import MissingExtraError

F64 = npt.NDArray[np.float64]

_ROOT_2 = math.sqrt(2.0)
_LOG_ROOT_2_PI = math.log(2 * math.pi) / 2
_FAR = -12.0  # below it, the asymptotic series of `_mills` has all digits
_SERIES = 20  # terms of an asymptotic series: where it is used, the next term is below 1e-16
_MOST_STEPS = 100  # the most steps of Newton's method, which needs less than ten
_LITTLE = 30.0  # up to this v, I_0(v) is computed by a power series; above, asymptotically
# The Chernoff bound is tried at the tilt's order plus each of these numbers divided by the standard
# deviation (negative: lower tail; positive: upper tail). For a Gaussian, 9 is about the best.
_ORDERS = (-9.0, -3.0, 3.0, 9.0)
_FAR_OUT = 40.0  # tails of e^-40 are far below a transform's rounding errors
_HALVINGS = 10  # steps of a bisection: an order needs no better precision
_OVERFLOWS = 600.0  # the largest exponent: e^600 times other factors is finite

_erfc = np.vectorize(math.erfc, otypes=[np.float64])


# ---- scipy.special ----


def ndtr(x: F64) -> F64:
    """Return the normal distribution function Phi at each number of x.

    >>> ndtr(np.array([0.0, -10.0]))
    array([5.00000000e-01, 7.61985302e-24])
    """
    found: F64 = _erfc(x / -_ROOT_2) / 2
    return found


def log_ndtr(x: F64) -> F64:
    """Return the logarithm of Phi at each number of x, even where Phi underflows to 0.

    >>> log_ndtr(np.array([-40.0, 0.0, 40.0])).round(4)
    array([-8.046084e+02, -6.931000e-01, -0.000000e+00])
    """
    tail = _erfc(np.abs(np.maximum(x, _FAR)) / _ROOT_2) / 2
    with np.errstate(divide="ignore"):  # log(0) for a large x, where it is not used
        found: F64 = np.where(x > 0, np.log1p(-tail), np.log(tail))
    far = x <= _FAR
    found[far] = _mills(x[far])
    return found


def _log_ndtr(x: float) -> float:
    """Return the logarithm of Phi at one number x."""
    if x > 0:
        return math.log1p(-math.erfc(x / _ROOT_2) / 2)
    if x > _FAR:
        return math.log(math.erfc(-x / _ROOT_2) / 2)
    return float(_mills(np.array([x]))[0])


def _mills(x: F64) -> F64:
    """Return the logarithm of Phi at numbers x far below 0, by an asymptotic series.

    Phi(x) = (phi(x) / -x) (1 - 1/x^2 + 3/x^4 - ...), where phi is the density.
    """
    term, total = np.ones_like(x), np.ones_like(x)
    for k in range(1, _SERIES):
        term *= -(2 * k - 1) / (x * x)
        total += term
    return -x * x / 2 - np.log(-x) - _LOG_ROOT_2_PI + np.log(total)


def expit(x: float) -> float:
    """Return 1 / (1 + e^-x), for an x of at least -700.

    >>> expit(0.0), expit(-500.0) > 0
    (0.5, True)
    """
    return 1 / (1 + math.exp(-x))


def ndtri(p: float) -> float:
    """Return the x with Phi(x) = p, for a probability p above 0 and at most 1/2.

    >>> round(ndtri(0.025), 6)
    -1.959964
    """
    # Phi is log-concave: from a start left of the root, each step of Newton's method comes closer
    # to the root, and no step goes beyond the root.
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
    """Return the x with erf(x) = p, for a p from 0 to 1.

    >>> round(erfinv(0.5), 6), erfinv(1e-300) > 0, erfinv(1.0)
    (0.476936, True, inf)
    """
    if p > 0.5:
        # erf(x) = 2 Phi(sqrt(2) x) - 1. It is inverted in the tail 1 - p, since erf near 1 has few
        # digits.
        return -ndtri((1 - p) / 2) / _ROOT_2 if p < 1 else math.inf
    x = p * math.sqrt(math.pi) / 2
    for _ in range(_MOST_STEPS):
        step = (math.erf(x) - p) * math.sqrt(math.pi) / 2 * math.exp(x * x)
        x -= step
        if abs(step) <= 1e-16 * x:
            break
    return x


def i0e(v: float) -> float:
    """Return e^-v I_0(v) for v >= 0; I_0 is the modified Bessel function of order 0.

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
    """Return e^-v I_k(v) for the orders k = 0, 1, ..., n - 1; I_k is the modified Bessel function.

    Returns float64 [n].

    Args:
        k: float64 [n], the numbers 0, 1, ..., n - 1; other orders are not supported.
        v: the argument, above 0.

    >>> found = ive(np.arange(60.0), 4.0)
    >>> round(float(found[0] + 2 * found[1:].sum()), 12)
    1.0
    """
    # The quotients I_k / I_(k - 1), from an order far above n down to 1. The start value 0 is
    # wrong, but each step removes most of the error.
    n = len(k)
    further = n + 100 + 4 * math.isqrt(math.ceil(v))
    quotient, quotients = 0.0, np.ones(n)
    for order in range(further, 0, -1):
        quotient = 1 / (2 * order / v + quotient)
        if order < n:
            quotients[order] = quotient
    return np.asarray(i0e(v) * np.cumprod(quotients), np.float64)


def logsumexp(terms: F64, b: F64 | float = 1.0) -> float:
    """Return the logarithm of the sum of b times e^terms, without overflow.

    >>> round(logsumexp(np.array([1000.0, 1000.0])), 6)
    1000.693147
    """
    most = float(terms.max())
    return most + math.log(float(np.sum(b * np.exp(terms - most))))


# ---- dp_accounting ----


def get_epsilon_gaussian(sigma: float, delta: float) -> float:
    """Return the smallest epsilon, rounded up, of Gaussian noise with standard deviation sigma.

    The epsilon is for the given delta and for l2 sensitivity 1.

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
    """Return ln delta of Gaussian noise, for l2 sensitivity 1 (Balle and Wang 2018, theorem 8)."""
    at = epsilon * sigma + 1 / (2 * sigma)
    upper, lower = _log_ndtr(1 / sigma - at), epsilon + _log_ndtr(-at)
    return upper + math.log(-math.expm1(lower - upper)) if lower < upper else -math.inf


class _Part(NamedTuple):
    """Several independent losses with one common distribution, on a grid.

    Attributes:
        highest: the largest finite value of one loss, in steps of the grid.
        places: float64 [n], the finite values of one loss minus `highest`, in steps: rising, the
            last is 0.
        mass: float64 [n], the probability of each value, above 0.
        infinite: the probability that one loss is infinite.
        number: how many losses there are.
    """

    highest: int
    places: F64
    mass: F64
    infinite: float
    number: int

    def tilted(self, order: float) -> tuple[F64, float]:
        """Return the masses times e^(order place), scaled, and the logarithm of their sum.

        The masses are scaled to the sum 1; the second number is the logarithm of the sum before
        scaling.

        Args:
            order: the exponent for each step of the grid.
        """
        most = max(0.0, order * float(self.places[0]))
        weights = self.mass * np.exp(order * self.places - most)
        total = float(weights.sum())
        return weights / total, most + math.log(total)


class _Tilt(NamedTuple):
    """A sum of losses with tilted probabilities: multiplied by e^(order place), scaled to sum 1.

    A place is a value of the sum minus its largest finite value, in steps of the grid, so at most
    0.

    Attributes:
        order: the exponent for each step of the grid.
        log_sum: the logarithm of the probabilities' sum before they are scaled.
        mean: the mean place under the scaled probabilities, in steps.
        variance: the variance of the place under the scaled probabilities, in steps squared.
    """

    order: float
    log_sum: float
    mean: float
    variance: float

    @property
    def log_scale(self) -> float:
        """The logarithm of (true probability / scaled probability) at the place `mean`."""
        return self.log_sum - self.order * self.mean


@dataclass(frozen=True)
class LossGrid:
    """The distribution of a sum of independent privacy losses, each rounded upwards to one grid.

    A Fourier transform has an error of 1e-16 times the largest probability. Probabilities in a tail
    are smaller than this error. So nothing is convolved until an epsilon is needed. Then each loss
    is *tilted*: its probabilities are multiplied by e^(order loss), with an order that makes the
    losses near this epsilon most probable. The sum of tilted losses is the tilted sum (Esscher
    1932). It is convolved and tilted back, and has all digits near this epsilon.

    Args:
        step: the distance between neighbouring points of the grid.
        parts: the independent losses whose sum this is.
    """

    step: float
    parts: tuple[_Part, ...]

    def to_dense_pmf(self) -> LossGrid:
        """Return this object itself; in dp-accounting this call converts it to another form."""
        return self

    def self_compose(self, number: int) -> LossGrid:
        """Return the distribution of a sum of `number` independent losses, each like this one.

        Args:
            number: the number of losses in the sum, at least 1.
        """
        parts = tuple(part._replace(number=number * part.number) for part in self.parts)
        return LossGrid(self.step, parts)

    def compose(self, other: LossGrid, cut: float) -> LossGrid:
        """Return the distribution of this loss plus another, independent loss on the same grid.

        Args:
            other: the distribution of the other loss.
            cut: ignored. In dp-accounting it is the mass of tails that may be lost; here no
                mass is lost.
        """
        return LossGrid(self.step, self.parts + other.parts)

    def get_epsilon_for_delta(self, delta: float) -> float:
        """Return the smallest epsilon at a delta above 0, up to rounding.

        It is infinity if the loss is infinite with a probability of at least this delta, or if
        floating point overflows.
        """
        finite = sum(part.number * math.log1p(-part.infinite) for part in self.parts)
        left = delta + math.expm1(finite)  # minus the probability of an infinite loss
        if left <= 0:
            return math.inf
        tilt = self._tilt_for(math.log(left))
        highest = sum(part.number * part.highest for part in self.parts)
        # The share is limited so that it does not overflow. A smaller share cannot make epsilon
        # smaller, so that the result stays an upper bound.
        share = math.exp(min(math.log(left) - tilt.log_scale, _OVERFLOWS))
        epsilon = self.step * (highest + tilt.mean) + self._above_mean(tilt, share)
        return math.inf if math.isnan(epsilon) else max(0.0, epsilon)

    def get_delta_for_epsilon(self, epsilon: object) -> NoReturn:
        """Raise MissingExtraError: only dp-accounting computes a delta at a given epsilon."""
        raise MissingExtraError(
            "the delta at a given epsilon needs dp-accounting: pip install fedtally"
        )

    def _tilted(self, order: float) -> _Tilt:
        log_sum = mean = variance = 0.0
        for part in self.parts:
            weights, log_total = part.tilted(order)
            middle = float(np.sum(weights * part.places))
            log_sum += part.number * log_total
            mean += part.number * middle
            variance += part.number * float(np.sum(weights * (part.places - middle) ** 2))
        return _Tilt(order, log_sum, mean, variance)

    def _tilt_for(self, log_delta: float) -> _Tilt:
        """Return a tilt whose mean loss is about the epsilon at a given ln delta.

        For every s > 0, 1 - e^-x is at most c e^(s x), where c = s^s / (1 + s)^(1 + s). So delta is
        at most c times the mean of e^(s (loss - epsilon)). If s makes this bound least, the bound
        is the scale of the tilt of order s * `step`, divided by 1 + s. This quotient falls as s
        grows, so that bisection finds s.
        """
        low, high = 0.0, -log_delta  # bounds of ln(1 + s)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            tilt = self._tilted(math.expm1(middle) * self.step)
            is_more = tilt.log_scale - middle > log_delta
            low, high = (middle, high) if is_more else (low, middle)
        return tilt

    def _above_mean(self, tilt: _Tilt, delta: float) -> float:
        """Return the epsilon at a given delta, minus the mean loss of a tilt.

        Args:
            tilt: the tilt that `_tilt_for` returned for this delta.
            delta: the delta, divided by the scale of the tilt (e^log_scale).
        """
        first, last, beyond = self._window(tilt)
        # Losses minus the mean, in steps, falling. All but the last have a mass in `mass`.
        steps = np.arange(last, first - 2, -1) - tilt.mean
        losses = self.step * steps
        mass = self._convolved(tilt, first, last)[::-1] * np.exp(-tilt.order * steps[:-1])
        # For each loss: the mass of all larger losses, and the sum of mass times e^-loss over them.
        upper = beyond + np.append(0.0, np.cumsum(mass))
        lower = np.append(0.0, np.cumsum(mass * np.exp(-losses[:-1])))
        # Epsilon is about the mean, that is, loss 0 here. Where e^loss would overflow, losses are
        # far larger, and need only a bound.
        is_enough = upper - lower * np.exp(np.minimum(losses, _OVERFLOWS)) <= delta
        if is_enough.all():
            return float(losses[-1])
        place = int(np.argmin(is_enough))  # epsilon is between this loss and the next larger loss
        return math.log((upper[place] - delta) / lower[place])

    def _window(self, tilt: _Tilt) -> tuple[int, int, float]:
        """Return the first and last place to convolve, and a bound on the true mass beyond.

        By the Chernoff bound, the tilted sum lies before the first place, and beyond the last
        place, with a probability of at most e^-40 each. Then the first place is raised to where
        probabilities no longer overflow. The returned mass beyond the last place is divided by the
        scale of the tilt.
        """
        first, last = sum(part.number * int(part.places[0]) for part in self.parts), 0
        # the variance is taken as at least 1, since its root divides
        for times in _ORDERS:
            order = times / math.sqrt(max(tilt.variance, 1.0))
            bound = (self._tilted(tilt.order + order).log_sum - tilt.log_sum + _FAR_OUT) / order
            if order > 0:
                last = min(last, math.ceil(bound))
            else:
                first = max(first, math.floor(bound))
        # Before this place, a probability would overflow when it is tilted back.
        first = max(first, math.ceil(tilt.mean - _OVERFLOWS / (tilt.order + self.step)))
        beyond = math.exp(-tilt.order * (last - tilt.mean) - _FAR_OUT) if last < 0 else 0.0
        return first, last, beyond

    def _convolved(self, tilt: _Tilt, first: int, last: int) -> F64:
        """Return the tilted probabilities of the sum at the places `first` .. `last`: float64."""
        length = 1 << (last - first).bit_length()
        product = np.ones(length // 2 + 1, np.complex128)
        middle = 0
        for part in self.parts:
            weights, _ = part.tilted(tilt.order)
            # Places are counted from near their mean, which makes the power of the transform more
            # exact.
            near = round(float(np.sum(weights * part.places)))
            at = np.asarray(part.places - near, np.int64) % length
            product *= np.fft.rfft(np.bincount(at, weights, length)) ** part.number
            middle += part.number * near
        found = np.fft.irfft(product, length)
        return np.asarray(found[np.arange(first - middle, last - middle + 1) % length], np.float64)


def create_pmf_pessimistic_connect_dots_fixed_gap(
    step: float, lowest: int, highest: int, deltas: F64
) -> LossGrid:
    """Return the loss distribution whose delta is linear in e^epsilon between the points of a grid.

    Args:
        step: the distance between neighbouring points.
        lowest: the smallest point, in steps.
        highest: the largest point, in steps.
        deltas: float64 [highest - lowest + 1], the delta at each point: falling, within 0 .. 1.
    """
    falls = np.diff(deltas)
    mass = np.empty_like(deltas)
    mass[0] = 1 - deltas[0] + falls[0] / math.expm1(step)
    mass[1:-1] = (falls[1:] - falls[:-1] * math.exp(step)) / math.expm1(step)
    mass[-1] = falls[-1] / math.expm1(-step)
    mass = np.maximum(0.0, mass)
    held = np.flatnonzero(mass)
    last = int(held[-1])
    part = _Part(lowest + last, (held - last).astype(np.float64), mass[held], float(deltas[-1]), 1)
    return LossGrid(step, (part,))
