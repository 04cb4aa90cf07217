"""Define the circuits of Prio3 in draft-irtf-cfrg-vdaf: a count, a vector of sums, a histogram.

A circuit is a statement about a measurement, see `proof.Circuit`: a measurement is valid if all
outputs of its circuit are 0. Here the statement is that all words (integers mod p) of the
measurement are bits, and in a histogram also that exactly one of them is 1.

Each circuit here also encodes a measurement as words, computes from them the words that servers add
up, and turns the sum into a result.
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
    """Count clients: a measurement x is 0 or 1, and the result is the sum of all measurements.

    The output of the circuit is x x - x.

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
        """Encode a measurement, 0 or 1, as words: [1].

        Raises:
            InvalidInputError: the measurement is not 0 or 1.
        """
        return self.field.words([validate.integer(0, 1, measurement=measurement)])

    def truncate(self, words: Array) -> Array:
        """Return the words, or shares of words, that servers add up: here all words."""
        return words

    def decode(self, total: Array) -> int:
        """Return the number of measurements that are 1.

        Args:
            total: words [1]; the sum of the words of all reports.
        """
        return int(total[0])

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of the only call of the gadget: x and x; see `proof.Circuit.inputs`."""
        x = self.field.constant(measurement)
        return np.stack([x, x], -2)

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the output, which is the result of the call minus x; see `proof.Circuit`."""
        return self.field.reduce(results - self.field.constant(measurement))


@dataclass(frozen=True)
class SumVec:
    """Add up vectors: a measurement is a vector of integers 0 .. maximum.

    The result is the sum of the vectors mod p, entry by entry. An entry is encoded as several
    words. Each word is a bit with a weight, and the entry is the sum of the weights of the bits
    that are 1. The weights are 1, 2, 4, ..., and the last one is chosen so that the sum of all
    weights is `maximum`.

    Each call of the gadget takes `chunk` words x_1, x_2, ... and one random element r, which no
    other call uses. It returns the sum of r^j x_j (x_j - 1) over j. The output of the circuit is
    the sum of the results of all calls.

    Args:
        entries: the number of entries of a vector.
        maximum: the largest entry, at least 1.
        chunk: the number of words in one call of the gadget. The proof is short if `chunk` is near
            the square root of `length`, the number of words.
        field: a prime field with more than 2 * maximum elements.

    Raises:
        InvalidInputError: an argument is out of bounds.

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
        """The weights of the words of one entry, in the order of the words."""
        powers = [1 << i for i in range(self.maximum.bit_length() - 1)]
        return [*powers, self.maximum - sum(powers)]

    @property
    def length(self) -> int:
        """The number of words of a measurement."""
        return self.entries * len(self.weights)

    @property
    def calls(self) -> int:
        """The number of calls of the gadget."""
        return -(-self.length // self.chunk)

    @property
    def joint_length(self) -> int:
        """The number of elements of joint randomness: one for each call."""
        return self.calls

    def encode(self, measurement: Sequence[int]) -> Array:
        """Encode a vector of integers 0 .. maximum as words, which are bits: [length].

        Raises:
            InvalidInputError: the vector has another number of entries, or an entry is out of
                bounds.
        """
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
        """Compute the entries of a vector from its words: [length] -> [entries].

        Shares of words give shares of the entries.
        """
        weights = self.field.constant(self.weights)
        return self.field.mix(words.reshape(self.entries, -1), weights)[..., 0]

    def decode(self, total: Array) -> list[int]:
        """Return the sum of the measurements, entry by entry.

        Args:
            total: words [entries]; the sum of what `truncate` returned for each report.
        """
        return [int(entry) for entry in total]

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of all calls of the gadget, as `proof.Circuit.inputs` describes.

        They are r^j x_j and x_j - 1 for each word x_j (see the class).
        """
        powers = self.field.powers(joint, self.chunk + 1)[..., 1:, :]
        return bit_inputs(self.field, measurement, powers, shares)

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the only output: the sum of the results of all calls (see `proof.Circuit`)."""
        return self.field.sum(results, -2)[..., None, :]


@dataclass(frozen=True)
class Histogram:
    """Count buckets: a measurement is the number of a bucket.

    The result is the number of measurements in each bucket. A measurement is encoded as one word
    for each bucket: 1 for the measured bucket, and 0 for all other buckets.

    The circuit has two outputs. The first is the output of `SumVec`, which is 0 if all words are
    bits. The second is the sum of all words minus 1.

    Args:
        buckets: the number of buckets.
        chunk: the number of words in one call of the gadget. The proof is short if `chunk` is near
            the square root of `buckets`.

    Raises:
        InvalidInputError: an argument is out of bounds.

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
        """The number of words of a measurement."""
        return self.buckets

    @property
    def calls(self) -> int:
        """The number of calls of the gadget."""
        return -(-self.buckets // self.chunk)

    @property
    def joint_length(self) -> int:
        """The number of elements of joint randomness: one for each call."""
        return self.calls

    def encode(self, measurement: int) -> Array:
        """Encode the number of a bucket, 0 .. buckets - 1, as words: [buckets].

        Raises:
            InvalidInputError: the measurement is no integer 0 .. buckets - 1.
        """
        bucket = validate.integer(0, self.buckets - 1, measurement=measurement)
        return self.field.words([int(i == bucket) for i in range(self.buckets)])

    def truncate(self, words: Array) -> Array:
        """Return the words, or shares of words, that servers add up: here all words."""
        return words

    def decode(self, total: Array) -> list[int]:
        """Return the number of measurements in each bucket, in the order of the buckets.

        Args:
            total: words [buckets]; the sum of the words of all reports.
        """
        return [int(entry) for entry in total]

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of all calls of the gadget, as `proof.Circuit.inputs` describes.

        They are r^j x_j and x_j - 1 for each word x_j (see `SumVec`).
        """
        powers = self.field.powers(joint, self.chunk + 1)[..., 1:, :]
        return bit_inputs(self.field, measurement, powers, shares)

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return both outputs, from the results of the calls and the words; see `proof.Circuit`."""
        bits = self.field.sum(results, -2)
        one = self.field.inverse(shares)
        count = self.field.constant(measurement.sum(-1) - one)
        return np.stack(np.broadcast_arrays(bits, count), -2)


def bit_inputs(field: Field, measurement: Array, powers: Array, shares: int) -> Array:
    """Return the inputs r x and x - 1 for each word x: their product is 0 if x is a bit.

    For shares of words, 1 / shares takes the place of the constant 1.

    Args:
        field: the field of the circuit.
        measurement: words (integers mod p) [..., words], or a share of them.
        powers: elements [..., calls, chunk, K]; r for each word: a power of a random element.
        shares: the number of shares; 1 for the whole measurement.

    Returns:
        Elements [..., calls, 2 chunk, K]: r x and x - 1 of the first word, then of the next word,
        and so on. If the last call has fewer than `chunk` words, it is filled up with words 0.
    """
    lead, length = measurement.shape[:-1], measurement.shape[-1]
    calls, chunk = powers.shape[-3:-1]
    words = np.zeros((*lead, calls * chunk), field.dtype)
    words[..., :length] = measurement
    words = words.reshape(*lead, calls, chunk)
    left = field.scale(powers, words)
    right = field.constant(words - field.inverse(shares))
    pairs = np.stack(np.broadcast_arrays(left, right), -2)  # [..., calls, chunk, 2, K]
    return pairs.reshape(*pairs.shape[:-3], 2 * chunk, field.degree)
