"""Finite fields GF(p^K) whose multiplicative group has roots of unity of large two-power order.

A field is GF(p)[X] / (X^K - g), with g a primitive root of p. An *element* is its K coefficients,
the lowest first: an array of elements has the shape [..., K]. *Words* are integers of GF(p) alone,
as [...]: what is added up over clients, and the roots of unity. A prime field has K = 1.

Arrays are int64 where sums of products fit, of halves of words if need be (so p has at most 32
bits), and hold Python integers otherwise (dtype object). So one piece of code serves small fields
fast and large fields at all. What it does most often for
small fields is compiled, too (`kernels.linear_proofs`): the results are equal.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import linear_proofs as kernels

Array = npt.NDArray[Any]

_FEW = 256  # words: fewer are reduced faster by NumPy than a kernel is called


@dataclass(frozen=True)
class Field:
    """The field GF(prime^degree).

    Args:
        prime: p, an odd prime of at most 128 bits; that it is prime is not checked.
        generator: g, a primitive root of p, such that X^K - g is irreducible.
        degree: K, at least 1.

    Raises:
        InvalidInputError: X^K - g is reducible, or g is a square mod p.

    >>> field = Field(257, 3, 2)
    >>> x = field.element([0, 1])
    >>> field.multiply(x, x).tolist(), field.power(x, 257**2 - 1).tolist()
    ([3, 0], [1, 0])
    """

    prime: int
    generator: int
    degree: int = 1

    def __post_init__(self) -> None:
        prime = validate.integer(3, 2**128 - 1, prime=self.prime)
        validate.integer(2, prime - 1, generator=self.generator)
        validate.integer(1, degree=self.degree)
        # Lidl and Niederreiter, Finite Fields, theorem 3.75: X^K - g is irreducible if g is no r-th
        # power mod p for each prime r of K, which divides p - 1, and 4 divides p - 1 or not K.
        # With the 2, g has the roots of unity of every two-power order that there is.
        primes = {r for r in range(2, self.degree + 1) if self.degree % r == 0 and _is_prime(r)}
        if any(
            (prime - 1) % r or pow(self.generator, (prime - 1) // r, prime) == 1
            for r in primes | {2}
        ) or (self.degree % 4 == 0 and prime % 4 == 3):
            raise InvalidInputError(
                f"X^{self.degree} - {self.generator} must be irreducible mod {prime}, and"
                f" {self.generator} no square: take a primitive root, and a degree whose primes"
                f" divide {prime - 1}"
            )

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of arrays: int64 where no sum of products overflows, else object.

        `dot` adds up MAX_TERMS K products of words, or of a half of a word and a word.
        """
        halves = self.degree * kernels.MAX_TERMS * self.prime < 1 << 47
        halves = halves and max(self.prime, self.generator * 2) <= 1 << 32
        return np.dtype(np.int64 if self._whole_products or halves else object)

    @cached_property
    def _whole_products(self) -> bool:
        """Whether sums of products of whole words fit int64.

        `multiply` adds up K of them, all but one of them times g.
        """
        terms = self.degree * max(kernels.MAX_TERMS, self.generator)
        return terms * self.prime**2 < 1 << 63

    @cached_property
    def word_bytes(self) -> int:
        """The bytes of an encoded word: the fewest that hold the prime."""
        return -(-self.prime.bit_length() // 8)

    @cached_property
    def max_order(self) -> int:
        """The largest power of two that is the order of a root of unity in GF(p)."""
        return (self.prime - 1) & -(self.prime - 1)

    # ---- arithmetic ----

    def words(self, values: Any) -> Array:
        """Return integers mod p as words, of the shape that they have.

        Raises:
            InvalidInputError: one of them is no integer.
        """
        given = values if isinstance(values, np.ndarray) else np.array(values, object)
        if self.dtype == np.int64 and given.dtype.kind == "i":
            return self.reduce(given.astype(np.int64, copy=False))
        integers = np.frompyfunc(_integer, 1, 1)(given.astype(object))
        return np.asarray(integers % self.prime).astype(self.dtype)

    def element(self, coefficients: Any) -> Array:
        """Return the elements with these coefficients, at most K along the last axis.

        Raises:
            InvalidInputError: one of them is no integer, or they are more than K.
        """
        given = self.words(coefficients)
        if given.ndim < 1 or given.shape[-1] > self.degree:
            raise InvalidInputError(
                f"an element must have at most {self.degree} coefficients, got shape {given.shape}"
            )
        return self._padded(given)

    def constant(self, values: Any) -> Array:
        """Return integers mod p as elements: [...] -> [..., K].

        Raises:
            InvalidInputError: one of them is no integer.
        """
        return self._padded(self.words(values)[..., None])

    def _padded(self, words: Array) -> Array:
        elements = self.zeros(words.shape[:-1])
        elements[..., : words.shape[-1]] = words
        return elements

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return elements that are 0: [*shape, K]."""
        return np.zeros((*shape, self.degree), self.dtype)

    def reduce(self, values: Array) -> Array:
        """Return every integer of an array mod p."""
        if values.dtype == np.int64 and values.size >= _FEW:
            level = kernels.level_for(self.prime)
            if level is not None:
                return kernels.reduce_words(level, values, self.prime)
        return np.asarray(values % self.prime)

    def scale(self, elements: Array, words: Array) -> Array:
        """Return elements times words: [..., K] and [...], broadcast."""
        by = words[..., None]
        if self.dtype == np.int64 and not self._whole_products:
            high = self.reduce((elements >> 16) * by)
            return self.reduce((high << 16) + (elements & 0xFFFF) * by)
        return self.reduce(elements * by)

    def multiply(self, a: Array, b: Array) -> Array:
        """Return the products of elements: [..., K] each, their leading axes broadcast."""
        # row i of the matrix is X^i b: its coefficients turned i places, and those that went
        # around the end times g
        matrix = b[..., self._turned] * self._around
        if not self._whole_products:
            matrix = self.reduce(matrix)
        return self._sums(a[..., None, :], matrix)[..., 0, :]

    def dot(self, a: Array, b: Array) -> Array:
        """Return sums of products of elements: [..., m, n, K] and [..., n, K] -> [..., m, K].

        Args:
            a: m lists of n elements.
            b: the other factors of each list, at most 4096.
        """
        *lead, count, degree = b.shape
        matrix = self.reduce(b[..., self._turned] * self._around)
        matrix = matrix.reshape(*lead, count * degree, degree)
        return self.mix(a.reshape(*a.shape[:-2], count * degree), matrix)

    def mix(self, words: Array, elements: Array) -> Array:
        """Return sums of words times elements: [..., m, n] and [..., n, K] -> [..., m, K]."""
        if self.dtype == np.int64 and words.shape[-1] * self.prime**2 < 1 << 53:
            # double precision is exact below 2^53, and NumPy has fast products of matrices for it
            product = words.astype(np.float64) @ elements.astype(np.float64)
            return self.reduce(product.astype(np.int64))
        return self._sums(words, elements)

    def _sums(self, a: Array, b: Array) -> Array:
        """Return a product of matrices of words."""
        if self.dtype == np.int64 and not self._whole_products:  # the upper halves of a, the lower
            return self.reduce((self.reduce((a >> 16) @ b) << 16) + (a & 0xFFFF) @ b)
        return self.reduce(a @ b)

    def sum(self, elements: Array, axis: int) -> Array:
        """Return the sums of elements along an axis, which counts the last one, too."""
        return self.reduce(elements.sum(axis))

    def power(self, base: Array, exponent: int) -> Array:
        """Return elements to a power that is at least 0: [..., K] -> [..., K]."""
        result = np.broadcast_to(self.constant(1), base.shape)
        for i, digit in enumerate(f"{exponent:b}"):
            result = self.multiply(result, result) if i else result
            result = self.multiply(result, base) if digit == "1" else result
        return result

    def powers(self, base: Array, count: int) -> Array:
        """Return the powers 0 .. count - 1 of elements: [..., K] -> [..., count, K]."""
        result = self.zeros((*base.shape[:-1], max(count, 2)))
        result[..., 0, 0] = 1
        result[..., 1, :] = base
        last = 1
        while last + 1 < count:  # the powers 0 .. last, times the last one, are last .. 2 last
            more = result[..., : min(last + 1, count - last), :]
            by = result[..., last : last + 1, :]
            result[..., last : 2 * last + 1, :] = self.multiply(more, by)
            last *= 2
        return result[..., :count, :]

    def inverse(self, word: int) -> int:
        """Return the inverse of an integer mod p.

        Raises:
            InvalidInputError: p divides it.
        """
        if not _integer(word) % self.prime:
            raise InvalidInputError(f"0 has no inverse mod {self.prime}, got {word}")
        return pow(word, -1, self.prime)

    def roots(self, order: int) -> list[int]:
        """Return the powers 0 .. order - 1 of the root of unity of this order.

        Args:
            order: a power of two, at most `max_order`.
        """
        if _integer(order) < 1 or self.max_order % order:
            raise InvalidInputError(
                f"order must be a power of two, at most {self.max_order}, got {order}"
            )
        root = pow(self.generator, (self.prime - 1) // order, self.prime)
        return [pow(root, i, self.prime) for i in range(order)]

    @cached_property
    def _turned(self) -> Array:
        place = np.arange(self.degree)
        return np.asarray((place - place[:, None]) % self.degree)

    @cached_property
    def _around(self) -> Array:
        place = np.arange(self.degree)
        factors = np.where(place < place[:, None], self.generator, 1)
        return factors.astype(self.dtype)

    @cached_property
    def extension(self) -> kernels.Extension:
        """The field, as the kernels want it."""
        return kernels.Extension(self.prime, self.generator, self.degree)

    # ---- bytes ----

    def encode(self, values: Array) -> bytes:
        """Return words, or the coefficients of elements, as little-endian integers in order."""
        if self._whole:
            return np.asarray(values).astype(self._whole).tobytes()
        shifts = np.array([8 * i for i in range(self.word_bytes)], self.dtype)
        return np.asarray(values.reshape(-1, 1) >> shifts & 255).astype(np.uint8).tobytes()

    def decode(self, data: bytes) -> Array:
        """Return the words that `encode` wrote: [len(data) / word_bytes].

        Raises:
            InvalidInputError: a word is cut, or not below the prime.
        """
        if len(data) % self.word_bytes:
            raise InvalidInputError(
                f"words of this field have {self.word_bytes} bytes each, got {len(data)} bytes"
            )
        words = np.empty(len(data) // self.word_bytes, self.dtype)
        if self._reader(8 * self.word_bytes)(data, words) < len(words):
            raise InvalidInputError(f"every word must be below {self.prime}")
        return words

    def check(self, data: bytes) -> None:
        """Refuse bytes that `decode` does not read, as it does, and in less time."""
        whole = self._whole and not len(data) % self.word_bytes
        if not whole or int(np.frombuffer(data, self._whole).max(initial=0)) >= self.prime:
            self.decode(data)

    def sample(self, stream: Callable[[int], bytes], count: int) -> Array:
        """Return uniform words of a stream of uniform bytes: [count].

        The stream is read as integers of `word_bytes`, of which as many low bits count as the prime
        has. Integers that are not below the prime are skipped.

        Args:
            stream: returns the first bytes of one stream, as many as it is asked for.
            count: the words.
        """
        return np.asarray(self.samples([stream], count)[0])

    def samples(self, streams: Sequence[Callable[[int], bytes]], count: int) -> Array:
        """Return uniform words of several streams, as `sample` reads them: [streams, count]."""
        if count < 0:
            raise InvalidInputError(f"count must be at least 0, got {count}")
        bits = self.prime.bit_length()
        least = count + count * ((1 << bits) - 1 - self.prime) // self.prime + 16
        words, read = np.empty((len(streams), count), self.dtype), self._reader(bits)
        for stream, row in zip(streams, words, strict=True):
            tries = least
            while (found := read(stream(tries * self.word_bytes), row)) < count:
                tries += 2 * (count - found)  # at least half of the integers are words
        return words

    def _reader(self, bits: int) -> Callable[[bytes, Array], int]:
        """Return what fills an array with the first `bits`-bit integers below the prime.

        It returns how many there are, at most as many as the array holds.
        """
        if self.dtype == np.int64 and kernels.level_for(self.prime) is not None:
            return partial(kernels.read_words, self.word_bytes, bits, self.prime)

        def read(data: bytes, out: Array) -> int:
            integers = self._integers(data) & (1 << bits) - 1
            words = integers[integers < self.prime][: len(out)]
            out[: len(words)] = words
            return len(words)

        return read

    def _integers(self, data: bytes) -> Array:
        if self._whole:
            return np.frombuffer(data, self._whole).astype(self.dtype)
        places = np.array([256**i for i in range(self.word_bytes)], self.dtype)
        octets = np.frombuffer(data, np.uint8).reshape(-1, self.word_bytes)
        return np.asarray(octets.astype(self.dtype) @ places)

    @property
    def _whole(self) -> str:
        """The type of an encoded word, where NumPy has one of as many bytes."""
        return f"<u{self.word_bytes}" if self.word_bytes in (1, 2, 4, 8) else ""


def _integer(value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInputError(f"words must be integers, got {value!r:.80}") from None


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, number))


FIELD64 = Field(2**32 * 4294967295 + 1, 7)
"""Field64 of the draft."""
FIELD128 = Field(2**66 * 4611686018427387897 + 1, 7)
"""Field128 of the draft."""
