"""Compute in finite fields GF(p^K), where GF(p) has roots of unity of large two-power order.

A field is GF(p)[X] / (X^K - g), where g is a primitive root of p. An *element* has K coefficients,
the lowest first: an array of elements has the shape [..., K]. A *word* is an integer of GF(p): an
array of words has the shape [...]. The numbers that are added up over clients are words, and the
roots of unity are words. A prime field has K = 1.

If p has at most 32 bits and K is small (see `Field.dtype`), arrays are int64. Otherwise arrays hold
Python integers (dtype object). So the same code is fast for small fields, and works for large
fields. For small fields the most frequent operations are also compiled (`kernels.linear_proofs`),
with equal results.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.flp.words import Array, PrimeField, integer
from fedtally.kernels import linear_proofs as kernels


@dataclass(frozen=True)
class Field(PrimeField):
    """Represent the field GF(prime^degree).

    Args:
        prime: p, an odd prime of at most 128 bits; it is not checked that p is prime.
        generator: g, a primitive root of p for which X^K - g is irreducible. It is not checked that
            g is a primitive root.
        degree: K, at least 1.

    Raises:
        InvalidInputError: X^K - g is reducible, g is a square mod p, or a number is out of bounds.

    >>> field = Field(257, 3, 2)
    >>> x = field.element([0, 1])
    >>> field.multiply(x, x).tolist(), field.power(x, 257**2 - 1).tolist()
    ([3, 0], [1, 0])
    """

    generator: int
    degree: int = 1

    def __post_init__(self) -> None:
        prime = validate.integer(3, 2**128 - 1, prime=self.prime)
        validate.integer(2, prime - 1, generator=self.generator)
        validate.integer(1, degree=self.degree)
        # Lidl and Niederreiter, Finite Fields, theorem 3.75: X^K - g is irreducible if (1) each
        # prime factor r of K divides p - 1, and g is no r-th power mod p, and (2) 4 divides p - 1
        # or does not divide K. The code checks r = 2 for every K, also for odd K: only if g is no
        # square, `roots` finds roots of unity of every two-power order in GF(p).
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
        """The type of arrays: int64 if no sum of products overflows, else object (Python ints).

        `dot` has the longest sums: MAX_TERMS * K products of two words. If these overflow, one
        factor is split into its upper and lower bits (see `_sums`). Then int64 suffices for larger
        primes, too.
        """
        halves = self.degree * kernels.MAX_TERMS * self.prime < 1 << 47
        halves = halves and max(self.prime, self.generator * 2) <= 1 << 32
        return np.dtype(np.int64 if self._whole_products or halves else object)

    @cached_property
    def _whole_products(self) -> bool:
        """Whether sums of products of words fit int64, without splitting a factor.

        `dot` adds up MAX_TERMS * K products of words. `multiply` adds up K products, and up to
        K - 1 of these products also have the factor g.
        """
        terms = self.degree * max(kernels.MAX_TERMS, self.generator)
        return terms * self.prime**2 < 1 << 63

    @cached_property
    def max_order(self) -> int:
        """The largest power of two that is the order of a root of unity in GF(p)."""
        return (self.prime - 1) & -(self.prime - 1)

    # ---- arithmetic ----

    def element(self, coefficients: Any) -> Array:
        """Make elements from their coefficients, the lowest first: [..., at most K] -> [..., K].

        Coefficients are reduced mod p. Missing coefficients are 0. K is `degree`.

        Raises:
            InvalidInputError: a coefficient is no integer, or an element has more than K
                coefficients.
        """
        given = self.words(coefficients)
        if given.ndim < 1 or given.shape[-1] > self.degree:
            raise InvalidInputError(
                f"an element must have at most {self.degree} coefficients, got shape {given.shape}"
            )
        return self._padded(given)

    def constant(self, values: Any) -> Array:
        """Make an element from each integer: [...] -> [..., K].

        The integer mod p is the lowest coefficient of the element. The other coefficients are 0.

        Raises:
            InvalidInputError: a value is no integer.
        """
        return self._padded(self.words(values)[..., None])

    def _padded(self, words: Array) -> Array:
        elements = self.zeros(words.shape[:-1])
        elements[..., : words.shape[-1]] = words
        return elements

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Make elements that are 0: [*shape, K]."""
        return np.zeros((*shape, self.degree), self.dtype)

    def scale(self, elements: Array, words: Array) -> Array:
        """Multiply elements [..., K] by words [...]; the leading axes are broadcast."""
        by = words[..., None]
        if self.dtype == np.int64 and not self._whole_products:
            high = self.reduce((elements >> 16) * by)
            return self.reduce((high << 16) + (elements & 0xFFFF) * by)
        return self.reduce(elements * by)

    def multiply(self, a: Array, b: Array) -> Array:
        """Multiply elements a [..., K] by elements b [..., K]; the leading axes are broadcast."""
        # The product is the vector of the coefficients of a times a matrix. Row i of the matrix has
        # the coefficients of X^i b: the coefficients of b, rotated by i places. Since X^K is g, the
        # coefficients that wrapped around the end get a factor g.
        matrix = b[..., self._turned] * self._around
        if not self._whole_products:
            matrix = self.reduce(matrix)
        return self._sums(a[..., None, :], matrix)[..., 0, :]

    def dot(self, a: Array, b: Array) -> Array:
        """Add up products of elements: [..., m, n, K] and [..., n, K] -> [..., m, K].

        Element i of the result is the sum of a[i, j] b[j] over j < n. K is `degree`.

        Args:
            a: elements [..., m, n, K].
            b: elements [..., n, K]; n is at most 4096.
        """
        *lead, count, degree = b.shape
        matrix = self.reduce(b[..., self._turned] * self._around)
        matrix = matrix.reshape(*lead, count * degree, degree)
        return self.mix(a.reshape(*a.shape[:-2], count * degree), matrix)

    def mix(self, words: Array, elements: Array) -> Array:
        """Add up elements, each times a word: [..., m, n] and [..., n, K] -> [..., m, K].

        Element i of the result is the sum of words[i, j] elements[j] over j < n. K is `degree`.

        Args:
            words: words [..., m, n]; n is at most 4096 K.
            elements: elements [..., n, K].
        """
        if self.dtype == np.int64 and words.shape[-1] * self.prime**2 < 1 << 53:
            # NumPy multiplies matrices of float64 faster than of int64, and float64 is exact below
            # 2^53.
            product = words.astype(np.float64) @ elements.astype(np.float64)
            return self.reduce(product.astype(np.int64))
        return self._sums(words, elements)

    def _sums(self, a: Array, b: Array) -> Array:
        """Compute the matrix product a @ b of words, mod p."""
        if self.dtype == np.int64 and not self._whole_products:  # a is split, against overflow
            return self.reduce((self.reduce((a >> 16) @ b) << 16) + (a & 0xFFFF) @ b)
        return self.reduce(a @ b)

    def sum(self, elements: Array, axis: int) -> Array:
        """Add up elements along an axis of their array.

        Args:
            elements: elements [..., K].
            axis: any axis but the last, which has the coefficients. So -2 is the last allowed axis.
        """
        return self.reduce(elements.sum(axis))

    def power(self, base: Array, exponent: int) -> Array:
        """Raise each element to the power `exponent`: [..., K] -> [..., K].

        Args:
            base: elements [..., K].
            exponent: an integer, at least 0.
        """
        result = np.broadcast_to(self.constant(1), base.shape)
        for i, digit in enumerate(f"{exponent:b}"):
            result = self.multiply(result, result) if i else result
            result = self.multiply(result, base) if digit == "1" else result
        return result

    def powers(self, base: Array, count: int) -> Array:
        """Compute the powers 0 .. count - 1 of each element: [..., K] -> [..., count, K].

        K is `degree`.

        Args:
            base: elements [..., K].
            count: the number of powers, at least 0.
        """
        result = self.zeros((*base.shape[:-1], max(count, 2)))
        result[..., 0, 0] = 1
        result[..., 1, :] = base
        last = 1
        while last + 1 < count:  # powers 0 .. last, times power `last`, give powers last .. 2 last
            more = result[..., : min(last + 1, count - last), :]
            by = result[..., last : last + 1, :]
            result[..., last : 2 * last + 1, :] = self.multiply(more, by)
            last *= 2
        return result[..., :count, :]

    def roots(self, order: int) -> list[int]:
        """List the powers 0 .. order - 1 of a primitive root of unity of this order in GF(p).

        Args:
            order: a power of two, at most `max_order`.

        Raises:
            InvalidInputError: `order` is not a power of two, or above `max_order`.
        """
        if integer(order) < 1 or self.max_order % order:
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
        """The parameters of the field, in the form that the compiled kernels take."""
        return kernels.Extension(self.prime, self.generator, self.degree)


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, number))


FIELD64 = Field(2**32 * 4294967295 + 1, 7)
"""The prime field with p = 2^64 - 2^32 + 1, called Field64 in draft-irtf-cfrg-vdaf."""
FIELD128 = Field(2**66 * 4611686018427387897 + 1, 7)
"""The prime field with p = 2^128 - 7 * 2^66 + 1, called Field128 in draft-irtf-cfrg-vdaf."""
