"""Define the circuit which states that each row of a client's vector has one entry +1, and zeros.

A vector consists of rows of counters. In a count sketch the one entry may also be -1.

Let x be a row of counters x_w. Number the counters w = a B + b with 0 <= b < B: counter w is the
cell in line a and column b of a grid. Let R_w = r1^a r2^b for random r1 and r2. Let z = sum R_w
x_w, y = sum R_w^2 x_w and s = sum x_w. Then

    z z - s y = - sum over pairs u < v of x_u x_v (R_u - R_v)^2

is 0 for all r1 and r2 only if at most one x_w is not 0. The reason: if two or more x_w are not 0,
take the two of them with the lowest w. Their product R_u R_v is a monomial that no other two x_w
give. If also s s = 1, the one entry is +1 or -1. If s = 1, as in a histogram, the one entry is +1.

A row takes three products, whatever its width. The method is the arithmetic sketch of Boneh, Boyle,
Corrigan-Gibbs, Gilboa and Ishai (IEEE S&P 2021, section 4.2), inside a fully linear proof.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.encoding import values_of_sum
from fedtally.errors import InvalidInputError
from fedtally.flp.fields import Field
from fedtally.flp.words import Array
from fedtally.kernels import linear_proofs as kernels

FIELD16 = Field(64513, 5, 9)
"""GF(p^9), where p is a prime of 16 bits. It has 2^143.8 elements."""
FIELD24 = Field(16770049, 11, 6)
"""GF(p^6), where p is a prime of 24 bits. It has 2^144.0 elements."""
FIELD32 = Field(4293918721, 19, 4)
"""GF(p^4), where p is a prime of 32 bits. It has 2^128.0 elements."""
FIELDS_OF_SUMS = (FIELD16, FIELD24, FIELD32)
"""The fields in which the vectors of clients are added up, ordered by their prime.

Each has about 2^128 elements or more. The more elements a field has, the less likely is it that a
wrong proof is accepted.
"""

MAX_WIDTH = 1 << 24


def field_for_sums(clients: int, noise: int = 0, *, signed: bool = True) -> Field:
    """Return the smallest of `FIELDS_OF_SUMS` in which sums of vectors are unambiguous.

    A counter of a sum adds up one entry of each of n clients, and noise. Each entry is at most 1 in
    absolute value. Let the noise be within +-tau. Then all possible values of the counter differ
    mod p if 2 n + 2 tau < p. If no entry is -1, n + 2 tau < p is enough.

    The returned field has room for 3 tau instead of 2 tau. Each of the two servers adds noise
    within +-tau, and the noise of both together may exceed tau, though this is very rare. Then a
    counter may have a value that is impossible with noise within tau. The extra room keeps this
    value from wrapping around to a possible value. So the caller sees an impossible value, and
    refuses the sum.

    Args:
        clients: n, the largest number of vectors in a sum, at least 1.
        noise: tau, the bound on the absolute noise of both servers together; 0 without noise.
        signed: whether an entry may be -1.

    Raises:
        InvalidInputError: even the field of 32 bits is too small, or a number is out of bounds.

    >>> field_for_sums(30_000).prime, field_for_sums(30_000, noise=2_470).prime
    (64513, 16770049)
    """
    clients, noise = validate.integer(1, clients=clients), validate.integer(0, noise=noise)
    # The last `noise` is the room for one tau more, see the docstring.
    span = values_of_sum(clients, noise, signed=signed) - 1 + noise
    for field in FIELDS_OF_SUMS:
        if span < field.prime:
            return field
    raise InvalidInputError(
        f"{'2 ' * signed}clients + 3 noise must be below {FIELD32.prime}, got {span}: sum fewer"
        " clients at once"
    )


@dataclass(frozen=True)
class OneHot:
    """State that each row of a vector has one entry +1 (if `signed` +1 or -1), and zeros elsewhere.

    The words of a vector are, in this order:

    - the counters, row by row
    - `checksum` words, each 1
    - with `abstain` one word e: 1, or 0 from a client without an item, whose counters are all 0

    Without `abstain` the vector has no word e, and e below means 1.

    z, y and s of a row are defined at the top of this file. The joint randomness is r1, r2 and r3.

    The gadget adds up products of two factors. For each row l = 0, 1, ... the factors are (z, z),
    (-s, y) and (s, s), and these products have the weights r3^(2l+1), r3^(2l+1) and r3^(2l+2). With
    `abstain`, the product (e, e - 1) follows, with the weight r3^(2 rows + 1). The first factor of
    a product is multiplied by the weight. If the last call has fewer than `chunk` products, it is
    filled up with (0, 0).

    The outputs are, in this order:

    - the sum of the results of all calls, minus the sum of r3^(2l+2) e over all rows l
    - if not `signed`: s - e for each row
    - for each checksum word: this word minus 1

    Args:
        widths: the number of counters of each row, 1 .. 2^24.
        field: GF(p^K), with p above the sums of the counters and below 2^64; see `field_for_sums`.
        abstain: whether a client may have no item: then all its counters are 0.
        checksum: the number of words in each vector that are always 1, 0 .. 255. Summed over
            clients, each of these words counts the vectors.
        signed: whether the entry of a row may be -1, as in a sketch; in a histogram it is +1.

    Raises:
        InvalidInputError: an argument is out of bounds.

    >>> circuit = OneHot((400,) * 5, abstain=True, checksum=4)
    >>> circuit.length, circuit.products, circuit.chunk, circuit.calls
    (2005, 16, 6, 3)
    """

    widths: tuple[int, ...]
    field: Field = FIELD16
    abstain: bool = False
    checksum: int = 0
    signed: bool = True
    joint_length: ClassVar[int] = 3

    def __post_init__(self) -> None:
        widths = tuple(validate.integer(1, MAX_WIDTH, width=width) for width in self.widths)
        object.__setattr__(self, "widths", widths)
        validate.integer(1, rows=len(widths))
        # `ReportProof.context` encodes the prime in 8 bytes, and the degree and `checksum` in one
        # byte each.
        validate.integer(3, 2**64 - 1, prime_of_field=self.field.prime)
        validate.integer(1, 255, degree_of_field=self.field.degree)
        for name in ("abstain", "signed"):
            if not isinstance(value := getattr(self, name), bool):
                raise InvalidInputError(f"{name} must be True or False, got {value!r:.80}")
        validate.integer(0, 255, checksum=self.checksum)

    @property
    def rows(self) -> int:
        """The number of rows of the vector."""
        return len(self.widths)

    @cached_property
    def counters(self) -> int:
        """The number of counters in all rows together."""
        return sum(self.widths)

    @property
    def length(self) -> int:
        """The number of words of a vector: counters, checksum words, and with `abstain` e."""
        return self.counters + self.checksum + self.abstain

    @property
    def products(self) -> int:
        """The number of products in all calls of the gadget together."""
        return 3 * self.rows + self.abstain

    @cached_property
    def chunk(self) -> int:
        """The number of products in one call of the gadget: the one that makes the proof shortest.

        If several numbers make the proof equally short, it is the smallest of them.
        """

        def proof_length(chunk: int) -> int:
            calls = -(-self.products // chunk)
            return 2 * chunk + 2 * (1 << calls.bit_length()) - 1

        # `min` returns the first of several minima, which is the smallest chunk.
        return min(range(1, self.products + 1), key=proof_length)

    @property
    def calls(self) -> int:
        """The number of calls of the gadget."""
        return -(-self.products // self.chunk)

    @property
    def outputs(self) -> int:
        """The number of outputs.

        There is one output for all rows together, and one for each checksum word. If not `signed`,
        there is also one for each row.
        """
        return 1 + (0 if self.signed else self.rows) + self.checksum

    @cached_property
    def grid(self) -> int:
        """B, the number of cells in a line of the grid: the root of the widest row, rounded up."""
        return math.isqrt(max(self.widths) - 1) + 1

    @property
    def degree(self) -> int:
        """The total degree of the first output as a polynomial in r1, r2 and r3.

        The first output does not depend on the checksum words or on the sign of the one entry of a
        row: the other outputs check these. If a vector is invalid in any other way, the first
        output is 0 with a probability of at most degree / p^K over the joint randomness
        (Schwartz-Zippel).
        """
        lines = -(-max(self.widths) // self.grid)
        corner = 2 * (lines - 1) + 2 * (self.grid - 1)  # the degree of R_w^2 in the last cell
        return max(2 * self.rows + self.abstain, 2 * self.rows - 1 + corner)

    def encode(self, vector: npt.NDArray[Any]) -> Array:
        """Encode a client's vector as words: [length].

        Args:
            vector: integers [counters]. Each row has one entry +1 (if `signed` +1 or -1), and zeros
                elsewhere. With `abstain` all entries of the vector may be 0 instead.

        Raises:
            InvalidInputError: the vector has another type or shape, or an invalid row.
        """
        vector = np.asarray(vector)
        if vector.shape != (self.counters,) or vector.dtype.kind not in "iu":
            raise InvalidInputError(
                f"vector must be integers [{self.counters}], got {vector.dtype} {vector.shape}"
            )
        if vector.dtype == np.uint64:  # 2^64 - 1 would wrap to -1, and must be refused
            vector = np.minimum(vector, 2)
        entries = vector.astype(np.int64, copy=False)
        holds, wrong = self._check_rows(entries)
        if wrong is not None:
            raise InvalidInputError(
                f"row {wrong} of the vector must have one entry {self.entry}, and zeros elsewhere"
            )
        return self.field.words(np.concatenate([entries, self._endings[holds]]))

    @property
    def entry(self) -> str:
        """The values that the one entry of a row may have, as text for messages."""
        return "+1 or -1" if self.signed else "+1"

    def _check_rows(self, entries: npt.NDArray[np.int64]) -> tuple[bool, int | None]:
        """Return whether e of this vector is 1, and the number of the first row that is not valid.

        With `abstain`, e is 0 if all entries are 0. Otherwise e is 1. The number is None if all
        rows are valid.

        For an invalid row this function raises no error: a traceback would refer to its arrays,
        which depend on the client's item.
        """
        absolute = np.abs(entries)
        # A row is valid if its absolute values are all 0 or 1 and have the sum 1. `seen` is the
        # bitwise OR of all absolute values. If `seen` is not 0 or 1, an absolute value is above 1.
        # Then a sum may be 1 only because it wrapped around, so each absolute value is checked.
        seen = int(np.bitwise_or.reduce(absolute))
        one = np.add.reduceat(absolute, self._starts) == 1
        if seen not in (0, 1):
            one &= np.logical_and.reduceat((absolute == 0) | (absolute == 1), self._starts)
        if not self.signed:
            one &= np.minimum.reduceat(entries, self._starts) >= 0
        holds = seen != 0 or not self.abstain
        return holds, int(np.argmin(one)) if holds and not one.all() else None

    @cached_property
    def _endings(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The words after the counters, int64: for a client without an item, then for all others.

        With `abstain` the last word is e. Without `abstain` both arrays are equal.
        """
        ones = [1] * self.checksum
        nothing, something = ([*ones, *[e] * self.abstain] for e in (0, 1))
        return np.array(nothing, np.int64), np.array(something, np.int64)

    @cached_property
    def _starts(self) -> npt.NDArray[np.intp]:
        """The offset of the first counter of each row."""
        return np.cumsum((0, *self.widths[:-1]))

    def truncate(self, words: Array) -> Array:
        """Return the words, or shares of words, that servers add up: counters and checksum words.

        These are all words but e.
        """
        return words[..., : self.counters + self.checksum]

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of the gadget for all calls; see `proof.Circuit.inputs`."""
        level = kernels.level_for(self.field.prime)
        if self._compiled is None or level is None:
            return self._inputs(measurement, joint, shares)
        share = self.field.inverse(shares)
        pairs = self._compiled.compute(level, measurement, joint, share)
        return pairs.reshape(*pairs.shape[:-3], self.calls, 2 * self.chunk, self.field.degree)

    @cached_property
    def _compiled(self) -> kernels.SketchInputs | None:
        """The compiled code for the inputs; None if the kernels do not support this field.

        Without it, `inputs` uses NumPy.
        """
        field, slots = self.field.extension, self.calls * self.chunk
        if self.field.dtype != np.int64 or not kernels.compiles(field):
            return None
        return kernels.SketchInputs(field, self.widths, self.grid, slots, self.abstain)

    def _inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        field, end = self.field, 3 * self.rows
        z, y, s = self._row_sums(measurement, joint)
        powers = field.powers(joint[..., 2, :], 2 * self.rows + 2)
        odd, even = powers[..., 1:-1:2, :], powers[..., 2::2, :]
        left = [field.multiply(z, odd), field.reduce(-field.multiply(odd, s))]
        left.append(field.multiply(even, s))
        lefts, rights = (np.stack(np.broadcast_arrays(*each), -2) for each in (left, [z, y, s]))
        lead = lefts.shape[:-3]
        pairs = field.zeros((*lead, self.calls * self.chunk, 2))
        pairs[..., :end, 0, :] = lefts.reshape(*lead, end, field.degree)
        pairs[..., :end, 1, :] = rights.reshape(*rights.shape[:-3], end, field.degree)
        if self.abstain:
            e = measurement[..., -1]
            pairs[..., end, 0, :] = field.scale(powers[..., -1, :], e)
            pairs[..., end, 1, :] = field.constant(e - field.inverse(shares))
        return pairs.reshape(*lead, self.calls, 2 * self.chunk, field.degree)

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the outputs in the order that the class lists; see `proof.Circuit.evaluate`."""
        field = self.field
        one = field.words(field.inverse(shares))
        e = measurement[..., -1] if self.abstain else one
        square = field.multiply(joint[..., 2, :], joint[..., 2, :])
        even = field.powers(square, self.rows + 1)[..., 1:, :]
        target = field.scale(field.sum(even, -2), e)
        rows = field.reduce(field.sum(results, -2) - target)[..., None, :]
        checks = self.truncate(measurement)[..., self.counters :] - one
        if not self.signed:
            s = np.concatenate([x.sum(-1) for x in self._rows_of_one_width(measurement)], -1)
            checks = np.concatenate([s - np.asarray(e)[..., None], checks], -1)
        checks = field.constant(checks)
        checks = np.broadcast_to(checks, (*rows.shape[:-2], *checks.shape[-2:]))
        return np.concatenate([rows, checks], -2)

    def _row_sums(self, measurement: Array, joint: Array) -> tuple[Array, Array, Array]:
        """Compute z, y and s of each row, see the top of this file.

        Returns:
            z, y and s, each as elements [..., rows, K].
        """
        field, side = self.field, self.grid
        down = field.powers(joint[..., 0, :], -(-max(self.widths) // side))
        along = field.powers(joint[..., 1, :], side)
        down_twice, along_twice = field.multiply(down, down), field.multiply(along, along)
        both = np.concatenate([along, along_twice], -1)  # for one pass over the counters
        z, y, s = [], [], []
        for counters in self._rows_of_one_width(measurement):
            *lead, rows, width = counters.shape
            lines = -(-width // side)
            cells = np.zeros((*lead, rows, lines * side), field.dtype)
            cells[..., :width] = counters
            flat = field.mix(cells.reshape(*lead, rows * lines, side), both)
            sums = flat.reshape(*flat.shape[:-2], rows, lines, 2 * field.degree)
            z.append(field.dot(sums[..., : field.degree], down[..., :lines, :]))
            y.append(field.dot(sums[..., field.degree :], down_twice[..., :lines, :]))
            s.append(field.constant(counters.sum(-1)))
        return np.concatenate(z, -2), np.concatenate(y, -2), np.concatenate(s, -2)

    def _rows_of_one_width(self, measurement: Array) -> Iterator[Array]:
        """Yield the counters of all rows, in order: words [..., rows, width].

        Adjacent rows of equal width are yielded together.
        """
        start = 0
        for width, same in groupby(self.widths):
            rows = len(list(same))
            counters = measurement[..., start : start + rows * width]
            yield counters.reshape(*measurement.shape[:-1], rows, width)
            start += rows * width
