"""The circuits of Prio3 in draft-irtf-cfrg-vdaf: a count, a vector of sums, a histogram.

Each one encodes a measurement as words, takes the words that are added up out of them, and makes a
result of their sum. They state that words are bits, and each lists its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.flp.fields import FIELD64, FIELD128, Field
from fedtally.flp.words import Array


@dataclass(frozen=True)
class Count:
    """A measurement is 0 or 1, and the result is the sum. Output: x x - x.

    >>> Count().encode(1).tolist()
    [1]
    """

    field: ClassVar[Field] = FIELD64
    length: ClassVar[int] = 1
    joint_length: ClassVar[int] = 0
    chunk: ClassVar[int] = 1
    calls: ClassVar[int] = 1
    outputs: ClassVar[int] = 1

    def encode(self, measurement: int) -> Array:
        """Return the words of a measurement, 0 or 1."""
        return self.field.words([validate.integer(0, 1, measurement=measurement)])

    def truncate(self, words: Array) -> Array:
        """Return the words, or shares of them, that are added up."""
        return words

    def decode(self, total: Array) -> int:
        """Return the count: of the measurements that are 1."""
        return int(total[0])

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of the call: x, x."""
        x = self.field.constant(measurement)
        return np.stack([x, x], -2)

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the output."""
        return self.field.reduce(results - self.field.constant(measurement))


@dataclass(frozen=True)
class SumVec:
    """A measurement is a vector of integers, and the result is the sum, entry by entry.

    An entry is a sum of weights 1, 2, 4, ..., of which the last makes the sum of all `maximum`. The
    output is the sum of r^j x (x - 1) over the words x of each call, with an r for each call.

    Args:
        entries: the entries of a vector.
        maximum: the largest entry, at least 1.
        chunk: the products of a call of the gadget; near the square root of the words is best.
        field: a prime field, of more than 2 maximum elements.

    >>> circuit = SumVec(entries=2, maximum=5, chunk=2)
    >>> circuit.encode([3, 4]).tolist(), circuit.truncate(circuit.encode([3, 4])).tolist()
    ([1, 1, 0, 0, 1, 1], [3, 4])
    """

    entries: int
    maximum: int
    chunk: int
    field: Field = FIELD128
    outputs: ClassVar[int] = 1

    def __post_init__(self) -> None:
        validate.integer(1, entries=self.entries)
        validate.integer(1, (self.field.prime - 1) // 2, maximum=self.maximum)
        validate.integer(1, chunk=self.chunk)

    @cached_property
    def weights(self) -> list[int]:
        """The weights of the words of an entry."""
        powers = [1 << i for i in range(self.maximum.bit_length() - 1)]
        return [*powers, self.maximum - sum(powers)]

    @property
    def length(self) -> int:
        """The words of a measurement."""
        return self.entries * len(self.weights)

    @property
    def calls(self) -> int:
        """The calls of the gadget."""
        return -(-self.length // self.chunk)

    @property
    def joint_length(self) -> int:
        """The elements of joint randomness: one for each call."""
        return self.calls

    def encode(self, measurement: Sequence[int]) -> Array:
        """Return the words of a vector of integers, 0 .. maximum each."""
        if len(measurement) != self.entries:
            raise InvalidInputError(
                f"measurement must have {self.entries} entries, got {len(measurement)}"
            )
        words: list[int] = []
        for given in measurement:
            entry = validate.integer(0, self.maximum, measurement=given)
            top = int(entry >= 1 << (len(self.weights) - 1))
            rest = entry - top * self.weights[-1]
            words += [rest >> i & 1 for i in range(len(self.weights) - 1)] + [top]
        return self.field.words(words)

    def truncate(self, words: Array) -> Array:
        """Return the entries, of words or of shares of them."""
        weights = self.field.constant(self.weights)
        return self.field.mix(words.reshape(self.entries, -1), weights)[..., 0]

    def decode(self, total: Array) -> list[int]:
        """Return the sum of the measurements."""
        return [int(entry) for entry in total]

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of all calls."""
        powers = self.field.powers(joint, self.chunk + 1)[..., 1:, :]
        return bit_inputs(self.field, measurement, powers, shares)

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the output."""
        return self.field.sum(results, -2)[..., None, :]


@dataclass(frozen=True)
class Histogram:
    """A measurement is the number of a bucket, and the result counts them.

    Of the words one is 1. The outputs are that of `SumVec`, and the sum of all words less 1.

    Args:
        buckets: the number of buckets.
        chunk: the products of a call of the gadget; near the square root of the buckets is best.

    >>> Histogram(buckets=4, chunk=2).encode(2).tolist()
    [0, 0, 1, 0]
    """

    buckets: int
    chunk: int
    field: ClassVar[Field] = FIELD128
    outputs: ClassVar[int] = 2

    def __post_init__(self) -> None:
        validate.integer(1, buckets=self.buckets)
        validate.integer(1, chunk=self.chunk)

    @property
    def length(self) -> int:
        """The words of a measurement."""
        return self.buckets

    @property
    def calls(self) -> int:
        """The calls of the gadget."""
        return -(-self.buckets // self.chunk)

    @property
    def joint_length(self) -> int:
        """The elements of joint randomness: one for each call."""
        return self.calls

    def encode(self, measurement: int) -> Array:
        """Return the words of a bucket, 0 .. buckets - 1."""
        bucket = validate.integer(0, self.buckets - 1, measurement=measurement)
        return self.field.words([int(i == bucket) for i in range(self.buckets)])

    def truncate(self, words: Array) -> Array:
        """Return the words, or shares of them, that are added up."""
        return words

    def decode(self, total: Array) -> list[int]:
        """Return the count of each bucket."""
        return [int(entry) for entry in total]

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of all calls."""
        powers = self.field.powers(joint, self.chunk + 1)[..., 1:, :]
        return bit_inputs(self.field, measurement, powers, shares)

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the outputs."""
        bits = self.field.sum(results, -2)
        one = self.field.inverse(shares)
        count = self.field.constant(measurement.sum(-1) - one)
        return np.stack(np.broadcast_arrays(bits, count), -2)


def bit_inputs(field: Field, measurement: Array, powers: Array, shares: int) -> Array:
    """Return the inputs r x, x - 1, of which the gadget makes 0 if each word x is a bit.

    Args:
        field: the field.
        measurement: the words, [..., words].
        powers: the r of each word, powers of what is random, [..., calls, chunk, K].
        shares: the servers.
    """
    lead, length = measurement.shape[:-1], measurement.shape[-1]
    calls, chunk = powers.shape[-3:-1]
    words = np.zeros((*lead, calls * chunk), field.dtype)  # what is missing counts as 0
    words[..., :length] = measurement
    words = words.reshape(*lead, calls, chunk)
    left = field.scale(powers, words)
    right = field.constant(words - field.inverse(shares))
    pairs = np.stack(np.broadcast_arrays(left, right), -2)  # [..., calls, chunk, 2, K]
    return pairs.reshape(*pairs.shape[:-3], 2 * chunk, field.degree)
