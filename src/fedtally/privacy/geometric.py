"""Two-sided geometric noise, or discrete Laplace noise, drawn exactly: its privacy needs no delta.

k has a probability in proportion to e^(-rate |k|) (Ghosh, Roughgarden and Sundararajan 2009). The
rate is a rational number, so that a draw needs integers alone (Canonne, Kamath and Steinke 2020).
A table, as that of other noise, would not do: it ends somewhere, and a neighbour's sum reaches one
further. Proof: docs/privacy-proofs/geometric.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.privacy.mechanism import stream

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
F64 = npt.NDArray[np.float64]

MAX_DRAWS = 1 << 26  # of one key, as for other noise
_UNIT = 1 << 40  # a rate is a multiple of 1 / _UNIT
_CHUNK = 1 << 16  # attempts at a time: bounds memory
_WORDS = 1 << 14  # of 64 bits, that a key gives before the next one takes its place


def rate_of(variance: float) -> Fraction:
    """Return the rate of the noise of a variance, which sampler and accountant share.

    It is rounded down to a multiple of 2^-40, at least to 2^-40: less privacy is never charged than
    is drawn.

    Args:
        variance: above 0; 2 q / (1 - q)^2 for q = e^-rate.

    >>> float(rate_of(2 * math.exp(-1) / (1 - math.exp(-1)) ** 2)) <= 1.0
    True
    """
    # 2 q / (1 - q)^2 = 1 / (2 sinh(rate / 2)^2)
    rate = 2 * math.asinh(math.sqrt(0.5 / variance))
    return Fraction(max(1, math.floor(rate * _UNIT)), _UNIT)


def variance_of(rate: float) -> float:
    """Return the variance of the noise of a rate.

    >>> round(variance_of(1.0), 4)
    1.8413
    """
    # far out the root would overflow, and the variance is 0
    return 0.5 / math.sinh(min(rate, 700.0) / 2) ** 2


def exceeded(variance: float, size: npt.ArrayLike) -> F64:
    """Return the probability that the noise exceeds sizes of at least 0, either way.

    Of k or less: 2 q^(k + 1) / (1 + q) for q = e^-rate.

    >>> round(float(exceeded(variance_of(1.0), 0)), 4)
    0.5379
    """
    rate = float(rate_of(variance))
    found: F64 = 2.0 * np.exp(-rate * (np.floor(np.asarray(size, np.float64)) + 1.0))
    return found / (1.0 + math.exp(-rate))


def half(variance: float, probability: float) -> int:
    """Return the smallest size that is exceeded with at most this probability.

    >>> half(variance_of(1.0), 0.05)
    3
    """
    rate = float(rate_of(variance))
    # the root of `exceeded`, and the sizes beside it: rounding may miss by one
    near = math.ceil(-math.log(probability * (1.0 + math.exp(-rate)) / 2.0) / rate) - 1
    return next(
        k for k in range(max(0, near - 1), near + 3) if exceeded(variance, k) <= probability
    )


@dataclass(frozen=True)
class Geometric:
    """Two-sided geometric noise of a variance.

    Attributes:
        variance: the variance of the noise.

    >>> Geometric(8.0).draw(Secret(bytes(32)), 8).shape
    (8,)
    """

    variance: float

    is_small: ClassVar[bool] = False
    masses: ClassVar[tuple[int, ...]] = ()  # there is no table to compare with
    # draws from a table in the time of one exact draw: python -m benchmarks noise
    work: ClassVar[int] = 80

    @property
    def rate(self) -> Fraction:
        """The rate: two sums that differ by 1 have a privacy loss of at most this."""
        return rate_of(self.variance)

    def draw(self, key: Secret, size: int) -> I64:
        """Return independent draws, a function of the key alone, which is wiped.

        For uniform bits a draw has the distribution exactly, as far as 64 bits hold it: a size
        beyond 2^22 / rate, which no counter has room for, has a probability below e^(-2^22).

        Args:
            key: 32 bytes, uniform, used for nothing else.
            size: 1 .. 2^26.

        Returns:
            int64 [size].

        Raises:
            InvalidInputError: the key was wiped, or is of another length; the size is out of range.
        """
        size = validate.integer(1, MAX_DRAWS, size=size)
        bits, parts, missing = _Bits(key), [], size
        while missing:
            # about half of all attempts succeed
            found = _attempts(bits, self.rate, min(_CHUNK, 2 * missing + 16))[:missing]
            parts.append(found)
            missing -= len(found)
        bits.wipe()
        return np.concatenate(parts)


class _Bits:
    """Uniform words of 64 bits, as many as are asked for, from one key.

    The first words of each key's stream are the next key.
    """

    def __init__(self, key: Secret) -> None:
        self._key, self._left = key, np.empty(0, np.uint64)

    def words(self, number: int) -> U64:
        parts = [self._left]
        have = len(self._left)
        while have < number:
            parts.append(self._more())
            have += len(parts[-1])
        found = np.concatenate(parts)
        self._left = found[number:]
        return found[:number]

    def below(self, bound: int, number: int) -> U64:
        """Return uniform numbers of 0 .. bound - 1, for a bound of 1 .. 2^63."""
        last = 2**64 - 2**64 % bound - 1  # beyond it the remainders would not be uniform
        found = self.words(number)
        while (again := np.flatnonzero(found > np.uint64(last))).size:
            found[again] = self.words(again.size)
        return found % np.uint64(bound)

    def wipe(self) -> None:
        self._key.wipe()
        self._left[:] = 0
        self._left = self._left[:0]

    def _more(self) -> U64:
        head = KEY_BYTES // 8
        words = stream(self._key, head + _WORDS)
        self._key.wipe()
        self._key = Secret(words[:head].astype("<u8").tobytes())
        words[:head] = 0
        return words[head:]


def _attempts(bits: _Bits, rate: Fraction, number: int) -> I64:
    """Return the draws of the attempts that succeed, of `number` attempts.

    Algorithm 2 of Canonne, Kamath and Steinke (2020) for the scale t / s = 1 / rate: u + t v has a
    probability in proportion to e^(-(u + t v) / t), and so its quotient by s one to e^(-rate k).
    """
    t, s = _UNIT, int(rate * _UNIT)
    u = bits.below(t, number)
    u = u[_happens(bits, u, t)]
    v = np.zeros(len(u), np.int64)
    going = np.arange(len(u))
    while going.size:  # as often as an event of e^-1 happens in turn
        going = going[_happens(bits, np.full(going.size, t, np.uint64), t)]
        v[going] += 1
    sizes = (u.astype(np.int64) + t * v) // s
    is_negative = bits.below(2, len(sizes)) == 1
    # 0 has one sign: without this it would be drawn twice as often
    kept = ~(is_negative & (sizes == 0))
    draws: I64 = np.where(is_negative, -sizes, sizes)[kept]
    return draws


def _happens(bits: _Bits, numerators: U64, denominator: int) -> npt.NDArray[np.bool_]:
    """Return which of independent events of probability e^(-numerator / denominator) happen.

    Algorithm 1 of the same paper, for fractions of 0 to 1: k counts the events of probability
    fraction / k that happen in turn, k = 1, 2, ..., and e^-fraction is the probability of an even
    count.
    """
    happens = np.ones(len(numerators), np.bool_)
    going, k = np.arange(len(numerators)), 1
    while going.size:
        going = going[bits.below(denominator * k, going.size) < numerators[going]]
        happens[going] = ~happens[going]
        k += 1
    return happens
