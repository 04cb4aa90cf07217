"""Convert, draw and encode words: integers of GF(p).

Servers add up the words of all clients. Words are also sent as bytes, and drawn from streams of
random bytes. An element of `fields` consists of one or more words; `fields` has the arithmetic.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.errors import InvalidInputError
from fedtally.kernels import linear_proofs as kernels

Array = npt.NDArray[Any]

_FEW = 256  # for fewer words NumPy is faster than the call of compiled code


@dataclass(frozen=True)
class PrimeField(ABC):
    """Represent the integers modulo a prime p, called words: the base class of `Field`.

    Args:
        prime: p, an odd prime of at most 128 bits; it is not checked that p is prime.
    """

    prime: int

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """The type of arrays: int64 if no sum of products overflows, else object (Python ints)."""

    @cached_property
    def word_bytes(self) -> int:
        """The size in bytes of an encoded word: the fewest bytes in which the prime fits."""
        return -(-self.prime.bit_length() // 8)

    # ---- arithmetic ----

    def words(self, values: Any) -> Array:
        """Reduce integers mod p: words, in an array of the same shape.

        Raises:
            InvalidInputError: a value is no integer.
        """
        given = values if isinstance(values, np.ndarray) else np.array(values, object)
        if self.dtype == np.int64 and given.dtype.kind == "i":
            return self.reduce(given.astype(np.int64, copy=False))
        integers = np.frompyfunc(integer, 1, 1)(given.astype(object))
        return np.asarray(integers % self.prime).astype(self.dtype)

    def reduce(self, values: Array) -> Array:
        """Reduce every integer of an array mod p."""
        if values.dtype == np.int64 and values.size >= _FEW:
            level = kernels.level_for(self.prime)
            if level is not None:
                return kernels.reduce_words(level, values, self.prime)
        return np.asarray(values % self.prime)

    def inverse(self, word: int) -> int:
        """Compute the inverse of an integer mod p, as a Python integer.

        Raises:
            InvalidInputError: the integer is 0 mod p.
        """
        if not integer(word) % self.prime:
            raise InvalidInputError(f"0 has no inverse mod {self.prime}, got {word}")
        return pow(word, -1, self.prime)

    # ---- bytes ----

    def encode(self, values: Array) -> bytes:
        """Encode an array as little-endian integers of `word_bytes` bytes, in order.

        Args:
            values: words or elements, reduced mod p. An element is encoded as its K coefficients,
                the lowest first.
        """
        if self._whole:
            return np.asarray(values).astype(self._whole).tobytes()
        shifts = np.array([8 * i for i in range(self.word_bytes)], self.dtype)
        return np.asarray(values.reshape(-1, 1) >> shifts & 255).astype(np.uint8).tobytes()

    def decode(self, data: bytes) -> Array:
        """Return the words that `encode` encoded: [len(data) / word_bytes].

        Raises:
            InvalidInputError: the last word is incomplete, or a word is not below the prime.
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
        """Raise the error that `decode` would raise for these bytes, and return nothing.

        For words of 1, 2, 4 or 8 bytes, valid bytes are checked faster than by `decode`.

        Raises:
            InvalidInputError: the last word is incomplete, or a word is not below the prime.
        """
        whole = self._whole and not len(data) % self.word_bytes
        if not whole or int(np.frombuffer(data, self._whole).max(initial=0)) >= self.prime:
            self.decode(data)

    def sample(self, stream: Callable[[int], bytes], count: int) -> Array:
        """Draw uniform words from a stream of uniform bytes: [count].

        The stream is read as integers of `word_bytes` bytes. If the prime has b bits, only the low
        b bits of each integer are used. Integers that are then not below the prime are skipped.

        Args:
            stream: a function that takes a length, and returns the first bytes of the stream, in
                this length. It may be called several times, each time with a larger length.
            count: the number of words, at least 0.

        Raises:
            InvalidInputError: `count` is negative.
        """
        return np.asarray(self.samples([stream], count)[0])

    def samples(self, streams: Sequence[Callable[[int], bytes]], count: int) -> Array:
        """Draw `count` words from each of several streams, as `sample` does: [streams, count]."""
        if count < 0:
            raise InvalidInputError(f"count must be at least 0, got {count}")
        bits = self.prime.bit_length()
        least = count + count * ((1 << bits) - 1 - self.prime) // self.prime + 16
        words, read = np.empty((len(streams), count), self.dtype), self._reader(bits)
        for stream, row in zip(streams, words, strict=True):
            tries = least
            while (found := read(stream(tries * self.word_bytes), row)) < count:
                tries += 2 * (count - found)  # about half of the integers are below p, or more
        return words

    def _reader(self, bits: int) -> Callable[[bytes, Array], int]:
        """Return a function (data, out) that copies the words in some bytes into an array.

        Only the low `bits` bits of each encoded integer are used. An integer that is then not below
        the prime is no word, and is skipped. The function fills `out` from its start, and returns
        the number of words in it, at most len(out).
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
        """The NumPy type of an encoded word, such as "<u4"; "" if there is no such type."""
        return f"<u{self.word_bytes}" if self.word_bytes in (1, 2, 4, 8) else ""


def integer(value: Any) -> int:
    """Convert a value that is an integer, such as a NumPy integer, to a plain int.

    Raises:
        InvalidInputError: the value is no integer.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInputError(f"words must be integers, got {value!r:.80}") from None
