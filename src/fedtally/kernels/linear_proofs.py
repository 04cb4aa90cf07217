"""The kernels of fully linear proofs: integers mod p, and the steps of a proof over GF(p^K).

`fedtally.flp` defines the results in NumPy. It calls these kernels if `level_for` and `compiles`
say that they are available. Arrays may have more axes before the ones that are named, for example
one for the reports. The extra axes are broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.errors import InvalidInputError
from fedtally.kernels.arguments import I64
from fedtally.kernels.backends import backend, native

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

DEGREES = (4, 6, 9)
"""The degrees K of the fields GF(p^K) for which there are compiled kernels.

These are the degrees of the fields in which counters are added up, see `flp.one_hot`.
"""
MAX_TERMS = 4096
"""The most products in one sum.

The largest row has 2^24 counters. It is laid out in a grid of 4096 lines with 4096 counters each,
so its sums have 4096 products.
"""


class Extension(NamedTuple):
    """The field GF(p)[X] / (X^K - g), with an odd prime p.

    Attributes:
        prime: p.
        generator: g.
        degree: K.
    """

    prime: int
    generator: int
    degree: int


def level_for(prime: int) -> str | None:
    """Return the name of the instruction set to use for integers mod an odd prime, or None.

    None means: use NumPy, since the prime is 2^32 or more, or no compiled kernel is used.
    """
    level = backend()
    return level if prime < 1 << 32 and level != "numpy" else None


def compiles(field: Extension) -> bool:
    """Return whether there are compiled kernels for proofs over this field."""
    # A sum of MAX_TERMS * K products must fit into 63 bits. For K = 4 the kernel sums halves of
    # products, so the sum fits for every prime below 2^32.
    small = MAX_TERMS * field.degree * field.prime**2 < 1 << 63
    return field.degree in DEGREES and field.prime < 1 << 32 and (small or field.degree == 4)


def reduce_words(level: str, words: I64, prime: int) -> I64:
    """Return the given integers reduced mod p to 0 .. p - 1: int64, shaped like `words`.

    Args:
        level: the instruction set, from `level_for`.
        words: the integers, int64.
        prime: the prime p, odd, below 2^32.
    """
    given = np.asarray(words, order="C")
    out = np.empty(given.shape, np.int64)
    native.reduce_words(level, prime, given.reshape(-1), out.reshape(-1))
    return out


def read_words(word_bytes: int, bits: int, prime: int, data: bytes, out: I64) -> int:
    """Fill `out` with the first integers in `data` that are below the prime.

    Args:
        word_bytes: the bytes of an integer in `data`, 1 .. 4.
        bits: how many low bits of an integer are used; the other bits are ignored.
        prime: the prime, below 2^32.
        data: the integers, little-endian.
        out: the array to fill, int64 [most]; `most` is its length.

    Returns:
        How many integers were written, at most `most`; later entries of `out` have no meaning.
    """
    return int(native.read_words(bytes(data), word_bytes, (1 << bits) - 1, prime, out))


class SketchInputs:
    """Computes the factors of all products in the circuit `flp.OneHot`, for a sketch.

    The circuit checks the form of a report, such as one 1 or -1 in each row. For this, the counters
    of a row are laid out as a grid, line by line (see `flp.one_hot`).

    Args:
        field: the field; `compiles` must accept it.
        widths: the number of counters in each row of the sketch.
        side: how many counters a line of the grid has, at most 4096. A grid has at most 4096 lines.
        slots: how many pairs of factors the result has, at least 3 * rows + abstain, which is the
            number of products. The pairs after the products are (0, 0).
        abstain: whether a report ends with a word e, which is 0 if the client has no item, else 1.
    """

    def __init__(
        self, field: Extension, widths: Sequence[int], side: int, slots: int, abstain: bool
    ) -> None:
        if not compiles(field):
            raise InvalidInputError(f"there are no kernels for {field}")
        if not 0 < side <= MAX_TERMS or max(widths) > side * MAX_TERMS or min(widths) < 1:
            raise InvalidInputError(
                f"a line of 1 .. {MAX_TERMS} cells and as many lines must hold rows of"
                f" {min(widths)} .. {max(widths)} counters, got {side}"
            )
        if slots < 3 * len(widths) + abstain:
            raise InvalidInputError(f"{slots} slots do not hold the products of {len(widths)} rows")
        self._field, self._side, self._slots, self._abstain = field, side, slots, abstain
        self._widths = np.array(widths, np.uint32)
        self._least = sum(widths) + abstain

    def compute(self, level: str, words: Array, joint: Array, share: int) -> I64:
        """Return the two factors of each product, as elements of the field: [..., slots, 2, K].

        The array is int64. K is the degree of the field.

        Args:
            level: the instruction set, from `level_for`.
            words: the integers of the report, or of one share of it, [..., length].
            joint: the joint randomness of the proof, integers [..., 3, K].
            share: the inverse, mod p, of the number of shares that a report is split into; 1 for a
                whole report.

        Raises:
            InvalidInputError: the words or the joint randomness do not fit the sketch.
        """
        prime, generator, degree = self._field
        if words.shape[-1] < self._least or joint.shape[-2:] != (3, degree):
            raise InvalidInputError(
                f"words {words.shape} and joint {joint.shape} do not fit a sketch of"
                f" {len(self._widths)} rows and {self._least} words"
            )
        sketch = self._widths, self._side, self._abstain, share

        def kernel(words: I64, joint: I64, out: I64) -> bool:
            return bool(native.sketch_inputs(level, prime, generator, *sketch, words, joint, out))

        tail = (self._slots, 2, degree)
        return _run(level, prime, kernel, tail, (words, 1), (joint, 2))


class Gadget:
    """The steps of a proof that depend only on the gadget, the part that the circuit repeats.

    The gadget adds up `chunk` products, so it has 2 chunk inputs, which are called wires. The
    circuit calls it several times. The values that a wire has in these calls are values of a
    polynomial at nodes (points), one for each call; a random seed is its value at a further node.
    There are P nodes. The output of the gadget is a polynomial, too, with 2P - 1 coefficients.

    Args:
        field: the field; `compiles` must accept it.
        chunk: how many products a call has, at most 4096.
        between: integers [P, P], below p, which give the values of a wire between its nodes. The
            value at the point after node j is the sum over i of entry [i, j] times the value at
            node i.
        wire_basis: integers [P, P], below p. Entry [j, i] is the coefficient of X^j in the basis
            polynomial of node i. A wire is the sum of these polynomials times its values.
        gadget_basis: integers [2P, 2P - 1], below p. Entry [j, i] is the coefficient of X^j in the
            basis polynomial of point i. The gadget polynomial is the sum of these polynomials times
            its values at 2P - 1 points.
    """

    def __init__(
        self, field: Extension, chunk: int, between: Array, wire_basis: Array, gadget_basis: Array
    ) -> None:
        nodes = len(between)
        # with more terms, a sum of products could be too large (see `compiles`)
        if not compiles(field) or not (0 < chunk <= MAX_TERMS and 0 < nodes <= MAX_TERMS // 2):
            raise InvalidInputError(
                f"there are no kernels for {field}, {nodes} nodes and {chunk} products"
            )
        shapes = between.shape, wire_basis.shape, gadget_basis.shape
        if shapes != ((nodes, nodes), (nodes, nodes), (2 * nodes, 2 * nodes - 1)):
            raise InvalidInputError(f"the matrices of {nodes} nodes do not fit: {shapes}")
        self._field, self._wires, self._nodes = field, 2 * chunk, nodes
        self._between, self._wire_basis, self._gadget_basis = (
            np.ascontiguousarray(matrix, np.int64) for matrix in (between, wire_basis, gadget_basis)
        )

    def prove(self, level: str, inputs: Array, seeds: Array) -> I64:
        """Return proofs: the seeds, then the values of the gadget polynomial at 2P - 1 points.

        Args:
            level: the instruction set, from `level_for`.
            inputs: the factors in the gadget's calls, integers [..., calls, 2 chunk, K]; there are
                fewer calls than nodes.
            seeds: the random seeds of the wires, integers [..., 2 chunk, K].

        Returns:
            int64 [..., 2 chunk + 2P - 1, K].

        Raises:
            InvalidInputError: the shapes do not fit the gadget.
        """
        prime, generator, degree = self._field
        self._check(inputs, seeds.shape[-2:] == (self._wires, degree), f"seeds {seeds.shape}")

        def kernel(inputs: I64, seeds: I64, out: I64) -> bool:
            return bool(native.prove(level, prime, generator, inputs, seeds, self._between, out))

        tail = (self._wires + 2 * self._nodes - 1, degree)
        return _run(level, prime, kernel, tail, (inputs, 3), (seeds, 2))

    def query(self, level: str, inputs: Array, proof: Array, point: Array) -> I64:
        """Evaluate the wires and the gadget polynomial of a proof at a point.

        Args:
            level: the instruction set, from `level_for`.
            inputs: the factors in the gadget's calls, integers [..., calls, 2 chunk, K].
            proof: the proof, integers [..., 2 chunk + 2P - 1, K].
            point: the point, integers [..., K].

        Returns:
            int64 [..., 2 chunk + 2, K]: one element that is not set and that the caller fills, then
            the values of the wires, then the value of the gadget polynomial.

        Raises:
            InvalidInputError: the shapes do not fit the gadget.
        """
        prime, generator, degree = self._field
        fits = proof.shape[-2:] == (self._wires + 2 * self._nodes - 1, degree)
        fits = fits and point.shape[-1] == degree
        self._check(inputs, fits, f"proof {proof.shape} and point {point.shape}")
        bases = self._wire_basis, self._gadget_basis

        def kernel(inputs: I64, proof: I64, point: I64, out: I64) -> bool:
            return bool(native.query(level, prime, generator, inputs, proof, point, *bases, out))

        tail = (self._wires + 2, degree)
        return _run(level, prime, kernel, tail, (inputs, 3), (proof, 2), (point, 1))

    def _check(self, inputs: Array, fits: bool, others: str) -> None:
        calls, *rest = inputs.shape[-3:]
        if not fits or not 0 < calls < self._nodes or rest != [self._wires, self._field.degree]:
            raise InvalidInputError(
                f"inputs {inputs.shape}, {others} do not fit {self._wires} wires and"
                f" {self._nodes} nodes"
            )


def _run(
    level: str, prime: int, kernel: Callable[..., bool], tail: Shape, *arrays: tuple[Array, int]
) -> I64:
    """Run a kernel on arrays with extra leading axes, and return its result: int64 [..., *tail].

    The kernel refuses integers that are not in 0 .. p - 1. Then all arrays are reduced mod p, and
    the kernel runs again.

    Args:
        level: the instruction set, from `level_for`.
        prime: the prime p.
        kernel: a function of the arrays and the array for its result; returns whether it accepted
            them.
        tail: the shape of one result.
        arrays: pairs of an array and the number of its axes that are not leading ones.
    """
    leads = {array.shape[:-axes] for array, axes in arrays}
    # usually all shapes are equal, and this test is faster than NumPy's broadcasting
    lead = leads.pop() if len(leads) == 1 else np.broadcast_shapes(*leads)
    flat = [_flat(array, lead, axes) for array, axes in arrays]
    out = np.empty((*lead, *tail), np.int64)
    rows = out.reshape(-1, *tail)
    if not kernel(*flat, rows):
        kernel(*(reduce_words(level, array, prime) for array in flat), rows)
    return out


def _flat(array: Array, lead: Shape, axes: int) -> I64:
    """Return an array as contiguous int64, its leading axes broadcast to `lead` and joined to one.

    Args:
        array: integers.
        lead: the shape to which the leading axes are broadcast.
        axes: the number of the last axes, which stay as they are.
    """
    tail = array.shape[-axes:]
    if array.shape[:-axes] != lead:
        array = np.broadcast_to(array, (*lead, *tail))
    return np.ascontiguousarray(array, np.int64).reshape(-1, *tail)
