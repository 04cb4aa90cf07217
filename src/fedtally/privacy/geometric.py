"""Two-sided geometric (discrete Laplace) noise, drawn exactly: its guarantee needs no delta.

The integer k has a probability proportional to e^(-rate |k|) (Ghosh, Roughgarden and Sundararajan
2009). The rate is a rational number, so that a draw needs only integers (Canonne, Kamath and
Steinke 2020). Other noise is drawn from a table of finitely many integers. A table would break pure
privacy: with its largest noise, one of two neighbouring sums would have a value that the other
cannot have. Proof: docs/privacy-proofs/geometric.md.
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

MAX_DRAWS = 1 << 26  # the most draws from one key, as in `mechanism.MAX_DRAWS`
_UNIT = 1 << 40  # a rate is a multiple of 1 / _UNIT
_CHUNK = 1 << 16  # the most attempts at a time, to bound memory
_WORDS = 1 << 14  # the 64-bit words that a key yields before another key replaces it


def rate_of(variance: float) -> Fraction:
    """Return the rate of geometric noise with a given variance, as an exact fraction.

    The sampler and the accountant both call this function: so the noise that is drawn is the noise
    that is charged. The rate is rounded down to a multiple of 2^-40, so that there is at least the
    noise that was asked for. One exception: a rate below 2^-40 becomes 2^-40, with less noise.

    Args:
        variance: the variance of the noise, above 0. It is 2 q / (1 - q)^2 for q = e^-rate.

    >>> float(rate_of(2 * math.exp(-1) / (1 - math.exp(-1)) ** 2)) <= 1.0
    True
    """
    # 2 q / (1 - q)^2 = 1 / (2 sinh(rate / 2)^2)
    rate = 2 * math.asinh(math.sqrt(0.5 / variance))
    return Fraction(max(1, math.floor(rate * _UNIT)), _UNIT)


def variance_of(rate: float) -> float:
    """Return the variance of geometric noise of a given rate.

    >>> round(variance_of(1.0), 4)
    1.8413
    """
    # sinh would overflow for large rates, where the variance is about 0
    return 0.5 / math.sinh(min(rate, 700.0) / 2) ** 2


def exceeded(variance: float, size: npt.ArrayLike) -> F64:
    """Return the probability that the absolute value of the noise exceeds a size: float64.

    For a size k it is 2 q^(k + 1) / (1 + q), where q = e^-rate.

    Args:
        variance: the variance of the noise.
        size: one size or an array of sizes, each at least 0 and rounded down to an integer.

    >>> round(float(exceeded(variance_of(1.0), 0)), 4)
    0.5379
    """
    rate = float(rate_of(variance))
    found: F64 = 2.0 * np.exp(-rate * (np.floor(np.asarray(size, np.float64)) + 1.0))
    return found / (1.0 + math.exp(-rate))


def half(variance: float, probability: float) -> int:
    """Return the smallest k such that |noise| > k has at most the given probability.

    >>> half(variance_of(1.0), 0.05)
    3
    """
    rate = float(rate_of(variance))
    # `near` is the k at which `exceeded` falls to the probability. Rounding may shift `near` by 1,
    # so its neighbours are tried, too.
    near = math.ceil(-math.log(probability * (1.0 + math.exp(-rate)) / 2.0) / rate) - 1
    return next(
        k for k in range(max(0, near - 1), near + 3) if exceeded(variance, k) <= probability
    )


@dataclass(frozen=True)
class Geometric:
    """Two-sided geometric noise with a given variance.

    Attributes:
        variance: the variance of the noise.

    >>> Geometric(8.0).draw(Secret(bytes(32)), 8).shape
    (8,)
    """

    variance: float

    is_small: ClassVar[bool] = False
    masses: ClassVar[tuple[int, ...]] = ()  # draws need no table
    # the time of a draw, in draws from a table (python -m benchmarks noise)
    work: ClassVar[int] = 80

    @property
    def rate(self) -> Fraction:
        """The rate of the noise: the largest privacy loss of a counter that changes by 1."""
        return rate_of(self.variance)

    def draw(self, key: Secret, size: int) -> I64:
        """Return independent draws of the noise, computed from a key alone, and wipe the key.

        If the bits of the key's stream are uniform, the draws have exactly the distribution of the
        noise, except for values beyond 64 bits. Such values exceed 2^22 / rate, with a probability
        below e^(-2^22).

        Args:
            key: 32 uniform bytes, which are used for nothing else.
            size: the number of draws, 1 .. 2^26.

        Returns:
            int64 [size].

        Raises:
            InvalidInputError: the key was wiped or has another length, or the size is out of
                bounds.
        """
        size = validate.integer(1, MAX_DRAWS, size=size)
        bits, parts, missing = _Bits(key), [], size
        while missing:
            # of three attempts, one or two succeed
            found = _attempts(bits, self.rate, min(_CHUNK, 2 * missing + 16))[:missing]
            parts.append(found)
            missing -= len(found)
        bits.wipe()
        return np.concatenate(parts)


class _Bits:
    """An endless source of uniform 64-bit words, computed from one key.

    The first four words of a key's stream are the next key. The `_WORDS` words after them are
    yielded. Then the next key replaces the key.
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
        """Return `number` uniform integers in 0 .. bound - 1, as uint64; `bound` is 1 .. 2^63."""
        last = 2**64 - 2**64 % bound - 1  # larger words would favour small remainders
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
    """Make `number` attempts at a draw, and return the draws of the successful attempts: int64.

    This is Algorithm 2 of Canonne, Kamath and Steinke (2020), for the scale t / s = 1 / rate. An
    attempt draws integers u in 0 .. t - 1 and v >= 0. The integer u + t v has a probability
    proportional to e^(-(u + t v) / t). Divided by s and rounded down, u + t v is a size k with a
    probability proportional to e^(-rate k). An attempt fails if u is rejected or the draw is -0.
    """
    t, s = _UNIT, int(rate * _UNIT)
    u = bits.below(t, number)
    u = u[_happens(bits, u, t)]
    v = np.zeros(len(u), np.int64)
    going = np.arange(len(u))
    while going.size:  # v is how often an event of probability e^-1 happens before it fails
        going = going[_happens(bits, np.full(going.size, t, np.uint64), t)]
        v[going] += 1
    sizes = (u.astype(np.int64) + t * v) // s
    is_negative = bits.below(2, len(sizes)) == 1
    # -0 is dropped: otherwise 0 would be drawn twice as often as it should
    kept = ~(is_negative & (sizes == 0))
    draws: I64 = np.where(is_negative, -sizes, sizes)[kept]
    return draws


def _happens(bits: _Bits, numerators: U64, denominator: int) -> npt.NDArray[np.bool_]:
    """Draw one event for each numerator, with probability e^-f, where f = numerator / denominator.

    f is in 0 .. 1. This is Algorithm 1 of Canonne, Kamath and Steinke (2020): step k = 1, 2, ...
    succeeds with probability f / k, and the steps end with the first failure. The number of
    successes is even with probability e^-f.

    Returns:
        bool [n], whether each event happens.
    """
    happens = np.ones(len(numerators), np.bool_)
    going, k = np.arange(len(numerators)), 1
    while going.size:
        going = going[bits.below(denominator * k, going.size) < numerators[going]]
        happens[going] = ~happens[going]
        k += 1
    return happens
