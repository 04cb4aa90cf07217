"""Check and add up reports of Prio3 in draft-irtf-cfrg-vdaf-08, for clients of DAP draft 09.

These are the differences from `prio3`:

- Seeds and verification keys have 16 bytes.
- A helper's input share has two seeds besides its blind, not one.
- In the hash input of a stream, no context follows the label, and the seed has no length before it.
  The length of the label takes 1 byte, not 2.
- The `maximum` of a vector's entries must be 2^bits - 1.
- The circuit of vectors has one random element r, which all calls of the gadget use.
- The circuit of histograms has the same r, a second random element s, and one output, not two.
- The algorithms have other numbers.
- A client sends the gadget polynomial of its proof as coefficients, not as values.

The values are a linear function of the coefficients. So each server applies this function to its
share of the proof, and then checks the proof as in `prio3`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from fedtally.errors import InvalidInputError
from fedtally.flp.circuits import Count, Histogram, SumVec, bit_inputs
from fedtally.flp.fields import Field
from fedtally.flp.prio3 import Prio3, Streams
from fedtally.flp.words import Array

VERSION = 8


@dataclass(frozen=True)
class SumVec08(SumVec):
    """Add up vectors, as `SumVec`, with one random element r for all calls of the gadget."""

    @property
    def joint_length(self) -> int:
        """The number of elements of joint randomness: 1."""
        return 1

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of all calls of the gadget, as `proof.Circuit.inputs` describes.

        They are r^j x_j and x_j - 1 for each word x_j, where j = 1, 2, ... numbers the words of all
        calls.
        """
        powers = _powers(self.field, joint[..., 0, :], self.calls, self.chunk)
        return bit_inputs(self.field, measurement, powers, shares)


@dataclass(frozen=True)
class Histogram08(Histogram):
    """Count buckets, as `Histogram`, with one random element r for all calls, and one output.

    Let s be a second random element. The output is s times the first output of `Histogram`, plus
    s^2 times the second output.
    """

    outputs: ClassVar[int] = 1

    @property
    def joint_length(self) -> int:
        """The number of elements of joint randomness: r and s, see the class."""
        return 2

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of all calls of the gadget, as `proof.Circuit.inputs` describes.

        They are r^j x_j and x_j - 1 for each word x_j, where j = 1, 2, ... numbers the words of all
        calls.
        """
        powers = _powers(self.field, joint[..., 0, :], self.calls, self.chunk)
        return bit_inputs(self.field, measurement, powers, shares)

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the only output, as the class describes it; see `proof.Circuit`."""
        field, second = self.field, joint[..., 1, :]
        outputs = super().evaluate(measurement, joint, shares, results)
        bits, count = outputs[..., 0, :], outputs[..., 1, :]
        square = field.multiply(second, second)
        total = field.multiply(second, bits) + field.multiply(square, count)
        return field.reduce(total)[..., None, :]


class Streams08(Streams):
    """Expand seeds as draft 08 does: the streams do not depend on `context`."""

    def head(self, usage: int, seed: bytes) -> bytes:
        """Return the first bytes of the hash input of a stream.

        The bytes are, in this order: the length of the label (1 byte), the label, and the seed.

        Args:
            usage: the number of the usage, in the draft's table.
            seed: the seed.
        """
        label = self.label(VERSION, usage)
        return bytes([len(label)]) + label + seed


@dataclass(frozen=True)
class Prio3Draft08(Prio3):
    """Check and add up reports of Prio3 in draft 08, as a server.

    It has the methods of `Prio3`, but `shard` always raises an error. Do not call
    `sum_vec_with_multiproof`: draft 08 has no such VDAF. Verification keys have 16 bytes. The
    argument `context` has no effect, since draft 08 has no context.

    >>> Prio3Draft08.histogram(buckets=4, chunk=2).seed_bytes
    16
    """

    seed_bytes: ClassVar[int] = 16
    _helper_seeds: ClassVar[int] = 2

    @classmethod
    def count(cls, *, context: bytes = b"", shares: int = 2) -> Self:
        """Make Prio3Count: a measurement is 0 or 1."""
        return cls(0, Count(), context=context, shares=shares)

    @classmethod
    def sum_vec(
        cls, entries: int, maximum: int, chunk: int, *, context: bytes = b"", shares: int = 2
    ) -> Self:
        """Make Prio3SumVec: a measurement is a vector of integers 0 .. maximum.

        Raises:
            InvalidInputError: maximum is not 2^bits - 1, or an argument is out of bounds.
        """
        if maximum & (maximum + 1):
            raise InvalidInputError(f"maximum must be 2^bits - 1 in draft 08, got {maximum}")
        return cls(2, SumVec08(entries, maximum, chunk), context=context, shares=shares)

    @classmethod
    def histogram(cls, buckets: int, chunk: int, *, context: bytes = b"", shares: int = 2) -> Self:
        """Make Prio3Histogram: a measurement is a bucket, 0 .. buckets - 1."""
        return cls(3, Histogram08(buckets, chunk), context=context, shares=shares)

    def shard(self, measurement: Any, nonce: bytes, random: bytes) -> NoReturn:
        """Refuse to make a report: fedtally has only the servers of draft 08, and no client.

        Raises:
            InvalidInputError: always.
        """
        raise InvalidInputError("draft 08 is for servers: a client makes reports by Prio3")

    @property
    def _streams(self) -> Streams08:
        return Streams08(self.id, self.context)

    @cached_property
    def _points(self) -> Array:
        """The matrix from the coefficients of a gadget polynomial to its values.

        It has words [2P - 1, 2P - 1], where P is `FullyLinearProof.nodes`. Row i has the powers
        0 .. 2P - 2 of x_i, where x_i is power i of the primitive root of unity of order 2P.
        """
        order, field = 2 * self._proof.nodes, self.circuit.field
        roots = field.roots(order)
        rows = [[int(roots[i * j % order]) for j in range(order - 1)] for i in range(order - 1)]
        return field.words(rows)

    def _by_values(self, proofs: Array) -> Array:
        seeds = self._proof.prove_random_length
        values = self.circuit.field.mix(self._points, proofs[:, seeds:])
        return np.concatenate([proofs[:, :seeds], values], 1)


def _powers(field: Field, one: Array, calls: int, chunk: int) -> Array:
    """Return the powers r, r^2, ... for the words of all calls: [..., calls, chunk, K].

    Args:
        field: the field of the circuit.
        one: elements [..., K]; the random element r.
        calls: the number of calls of the gadget.
        chunk: the number of words in one call.
    """
    powers = field.powers(one, calls * chunk + 1)[..., 1:, :]
    return powers.reshape(*powers.shape[:-2], calls, chunk, field.degree)
