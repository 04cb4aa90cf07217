"""Integer noise, drawn from exact tables: rounded Gaussian noise, and Skellam shares.

A distribution is a table of masses: integers with the sum 2^128, one for each value of the noise. A
draw inverts the distribution function at uniform bits of a key's stream (`fedtally.crypto.prg`).
Draws and masses are computed in integers, not in floating point. So they are safe from the attack
on the last bits of floating-point noise (Mironov 2012).

`Noise.total_variation` bounds how far the distribution of a draw is from the ideal one, if the bits
are uniform: docs/privacy-proofs/table_sampler.md. The bits come from AES-256, so that this
statement is computational.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto.keys import Secret
from fedtally.crypto.prg import MAX_STREAM_BYTES, Masking
from fedtally.kernels import Inversion

MAX_DRAWS = MAX_STREAM_BYTES // 16  # one draw uses at most two words of 8 bytes
MAX_VARIANCE = 2.0**30  # a table of this variance has about a million entries
MIN_GAUSSIAN_VARIANCE = 2.0**-6  # below it, nearly every draw rounds to 0
MIN_SKELLAM_VARIANCE = 2.0**-40  # enough for the share of one client among 2^20

# Masses have 128 bits, two words of the stream. With 64 bits, the total variation, times e^epsilon
# and the number of draws of a release, would use up a large part of delta.
_MASS_BITS = 128
_TAIL_BITS = 200  # a table omits tails with a probability below 2^-200
_GAUSSIAN_BITS = 512  # bits of fixed-point fractions: the proof needs 400
_SMALL = 128  # the most entries of a table that takes little time to search in constant time
_NEGLIGIBLE = 1 << 8  # Taylor terms up to this, in units of the last bit, are omitted


@dataclass(frozen=True, eq=False)
class Noise:
    """A symmetric distribution of integers, as a table; `rounded_gaussian` and `skellam` make it.

    Attributes:
        name: "rounded Gaussian" or "Skellam".
        variance: the variance of the Gaussian before rounding, or of the Skellam distribution.
        masses: 2^128 times the probability of each integer from -largest to largest.
    """

    name: str
    variance: float
    masses: tuple[int, ...]

    work: ClassVar[int] = 1  # the time of a draw, in draws from a table: it is one

    @property
    def largest(self) -> int:
        """The largest possible draw; the smallest is -largest.

        >>> skellam(0.03).largest
        14
        """
        return len(self.masses) // 2

    @property
    def is_small(self) -> bool:
        """Whether the table has at most 128 entries: few enough to draw in constant time.

        A client's share mostly has so small a table in a cohort of hundreds of clients or more.
        """
        return len(self.masses) <= _SMALL

    @property
    def total_variation(self) -> float:
        """A bound on the total variation distance of one draw from ideal noise, for uniform bits.

        It is (entries + 1) 2^-128. Every draw of a release adds (1 + e^epsilon) times this to
        delta.

        >>> skellam(0.03).total_variation < 2**-122
        True
        """
        return math.ldexp(len(self.masses) + 1, -_MASS_BITS)

    def pmf(self) -> dict[int, float]:
        """Return a dict from each possible draw to its probability, correctly rounded to a float.

        The probabilities are the masses of the table. Integers with a mass of 0, in the far tails
        of a wide table, are left out.

        >>> round(rounded_gaussian(289.0).pmf()[0], 9)
        0.02346381
        """
        return {
            k: mass / (1 << _MASS_BITS) for k, mass in enumerate(self.masses, -self.largest) if mass
        }

    def draw(self, key: Secret, size: int, constant_time: bool = False) -> npt.NDArray[np.int64]:
        """Return independent draws of the noise, computed from a key alone, and wipe the key.

        A key must not be used twice: the draws would be the same, and the difference of two sums
        with the same noise would have no noise.

        The key's stream is read in 64-bit little-endian words. For draw i, let a be word i, b be
        word size + i, and u = 2^64 a + b. The draw is the integer k for which masses[: k + largest]
        sum to at most u, and masses[: k + largest + 1] to more. The words b are generated only if
        some word a does not decide its draw. For each draw the probability of this is below 2^-64
        (entries + 2).

        Args:
            key: 32 uniform bytes, which are used for nothing else.
            size: the number of draws, 1 .. 2^26.
            constant_time: whether to compare every draw with every entry of the table, so that the
                time does not depend on the draw. With a table that is not small (`is_small`), this
                is slow. Whether the time is really constant depends on the compiled kernels and the
                processor.

        Returns:
            int64 [size].

        Raises:
            InvalidInputError: the key was wiped or has another length, or the size is out of
                bounds.

        >>> skellam(0.5).draw(Secret(bytes(32)), 8).tolist()
        [0, -1, 0, 0, 0, 1, 0, -1]
        """
        size = validate.integer(1, MAX_DRAWS, size=size)
        draws = self._inversion.draw(stream(key, size), scan=constant_time)
        if draws is None:
            words = stream(key, 2 * size)
            draws = self._inversion.draw(words[:size], words[size:], constant_time)
        key.wipe()
        assert draws is not None  # with both words, every draw is decided
        return draws

    @cached_property
    def _inversion(self) -> Inversion:
        return Inversion(list(accumulate(self.masses[:-1])), -self.largest)


def rounded_gaussian(variance: float) -> Noise:
    """Return the noise that is a Gaussian, rounded to the nearest integer.

    The integer k has the probability Phi((k + 1/2) / s) - Phi((k - 1/2) / s). A sum with this noise
    is a sum with Gaussian noise, rounded, so that the Gaussian's guarantee holds:
    docs/privacy-proofs/. Rounding adds about 1/12 to the variance if s^2 is at least 1/4. For a
    smaller s^2 it adds less. Below about 1/12, it makes the variance smaller.

    Args:
        variance: s^2, the variance of the Gaussian before rounding, 2^-6 .. 2^30.

    Returns:
        The noise. The last eight results are cached; a new one takes 0.1 s for variance 22,500.
    """
    return _rounded_gaussian(validate.real(MIN_GAUSSIAN_VARIANCE, MAX_VARIANCE, variance=variance))


def skellam(variance: float) -> Noise:
    """Return Skellam noise, the difference of two Poisson variables of mean variance / 2.

    The integer k has the probability e^-v I_|k|(v) (Skellam 1946). A sum of independent draws is
    Skellam noise, too: the variances add up.

    Args:
        variance: v, the variance of the noise, 2^-40 .. 2^30.

    Returns:
        The noise. The last eight results are cached.
    """
    return _skellam(validate.real(MIN_SKELLAM_VARIANCE, MAX_VARIANCE, variance=variance))


@lru_cache(maxsize=8)
def _rounded_gaussian(variance: float) -> Noise:
    return Noise("rounded Gaussian", variance, _masses(_gaussian_weights(variance)))


@lru_cache(maxsize=8)
def _skellam(variance: float) -> Noise:
    return Noise("Skellam", variance, _masses(_skellam_weights(variance)))


def stream(key: Secret, words: int) -> npt.NDArray[np.uint64]:
    """Return the first `words` 64-bit words of a key's stream, as uint64; the key is not wiped."""
    found = np.zeros(words, "<u8")
    masking = Masking(found)
    masking.add(key)
    masking.wipe()
    return found.astype(np.uint64, copy=False)


def _masses(weights: list[int]) -> tuple[int, ...]:
    """Return the table of a symmetric distribution: masses of -n, ..., n, with the sum 2^128.

    Let F be the distribution function. Masses below 0 are differences of floor(2^128 F). Masses
    above 0 mirror them, and 0 gets the rest. Masses of 0 at both ends are left out.

    Args:
        weights: numbers proportional to the probabilities of 0, 1, 2, ....
    """
    total = weights[0] + 2 * sum(weights[1:])
    floors = [0, *((tail << _MASS_BITS) // total for tail in accumulate(reversed(weights[1:])))]
    lower = [after - before for before, after in pairwise(floors) if after]
    return (*lower, (1 << _MASS_BITS) - 2 * floors[-1], *reversed(lower))


def _gaussian_weights(variance: float) -> list[int]:
    """Return numbers proportional to the probabilities of 0, 1, 2, ... for a rounded Gaussian.

    The number for k is e^(-k^2 / 2v), times the mean, over the interval k - 1/2 .. k + 1/2, of the
    density divided by the density at k (`_cell`).
    """
    numerator, denominator = variance.as_integer_ratio()
    reach = math.ceil(0.5 + math.sqrt(2 * math.log(2) * _TAIL_BITS * variance))
    one = 1 << _GAUSSIAN_BITS
    # e^(-(k + 1)^2 / 2v) is e^(-k^2 / 2v) times `ratio`; each ratio is the last one times `step`
    ratio = one * one // _exponential(denominator, 2 * numerator)
    step = ratio * ratio >> _GAUSSIAN_BITS
    density, weights = one, []
    for k in range(reach + 1):
        weights.append(density * _cell(k, numerator, denominator) >> _GAUSSIAN_BITS)
        density = density * ratio >> _GAUSSIAN_BITS
        ratio = ratio * step >> _GAUSSIAN_BITS
    return weights


def _exponential(numerator: int, denominator: int) -> int:
    """Return e^(numerator / denominator), at least 1, in fixed point with _GAUSSIAN_BITS bits."""
    term, total, n = 1 << _GAUSSIAN_BITS, 0, 0
    while term:
        total += term
        n += 1
        term = term * numerator // (denominator * n)
    return total


def _cell(k: int, numerator: int, denominator: int) -> int:
    """Return the mean of e^(k t / v - t^2 / 2v) over -1/2 < t < 1/2, in fixed point.

    This is the mean density of a Gaussian around k (at k - t), divided by its density at k. The
    variance v is numerator / denominator. With s = 2t, the exponent is x s - y s^2 / 2, for x = k /
    2v and y = 1 / 4v. The Taylor coefficients u_n of the exponential satisfy (n + 1) u_(n+1) = x
    u_n - y u_(n-1). The mean of s^n is 1 / (n + 1) for even n, and 0 for odd n.
    """
    before, term, total, n = 0, 1 << _GAUSSIAN_BITS, 0, 0
    while abs(term) > _NEGLIGIBLE or abs(before) > _NEGLIGIBLE:
        if n % 2 == 0:
            total += term // (n + 1)
        n += 1
        before, term = term, denominator * (2 * k * term - before) // (4 * numerator * n)
    return total


def _skellam_weights(variance: float) -> list[int]:
    """Return numbers proportional to the probabilities of 0, 1, 2, ... for Skellam noise.

    They are proportional to the Bessel functions I_k(v). Miller's backward recurrence computes
    them: I_(k-1) = I_(k+1) + (2k / v) I_k. It starts with the values 0 and 1, at a k so large that
    I_k can be ignored (Miller 1952; Olver 1964). A forward recurrence would lose all digits.
    """
    numerator, denominator = variance.as_integer_ratio()
    above, weight = 0, 1 << _TAIL_BITS
    weights = [weight]
    for k in range(_skellam_reach(variance), 0, -1):
        above, weight = weight, above + 2 * k * denominator * weight // numerator
        weights.append(weight)
    return weights[::-1]


def _skellam_reach(variance: float) -> int:
    """Return a k that Skellam noise exceeds with a probability below 2^-200 (Chernoff)."""
    k = 1
    while True:
        t = k / variance
        exponent = k * t / (1 + math.sqrt(1 + t * t)) - k * math.asinh(t)
        if exponent < -math.log(2) * (_TAIL_BITS + 1):
            return k
        k += k // 16 + 1
