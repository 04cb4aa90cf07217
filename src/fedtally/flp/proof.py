"""Prove, query and decide with the fully linear proof of Boneh et al. (CRYPTO 2019).

The authors are Boneh, Boyle, Corrigan-Gibbs, Gilboa and Ishai. The form is `FlpBBCGGI19` of
draft-irtf-cfrg-vdaf, for circuits with one gadget that adds up `chunk` products (`Mul` or
`ParallelSum(Mul)` in the draft).

A client gives each verifier an additive share of its measurement and of its proof. Each verifier
calls `query` on its shares. `query` is linear, so that the sum of all results is the result for the
whole measurement. `decide` takes this sum. This module neither masks values nor splits them into
shares.

Every function works on the last axes of its arrays. The axes before them, such as reports or
several proofs of one report, are broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np

from fedtally.base import validate
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.flp.fields import Field
from fedtally.flp.words import Array
from fedtally.kernels import linear_proofs as kernels


class ReportRefusedError(FedtallyError):
    """Say that a client's report is not valid, or that its parts are of different reports."""


class TestPointError(ReportRefusedError):
    """Say that a verifier share at this test point would reveal a piece of the measurement.

    A test point is the random element at which the verifiers evaluate the polynomials of a proof.
    `FullyLinearProof.is_test_point` tells which elements are allowed.
    """

    __test__ = False  # otherwise pytest would collect the class as tests


class Circuit(Protocol):
    """Make a statement about a measurement. The statement is true if all outputs are 0.

    A measurement is encoded as words, integers mod p. The circuit calls one gadget `calls` times.
    The gadget takes 2 `chunk` inputs a1, b1, a2, b2, ... and returns a1 b1 + a2 b2 + .... The
    inputs are affine functions of the measurement. The outputs are affine functions of the
    measurement and the results of the calls.

    Each server computes inputs and outputs from a share of the measurement, and what all servers
    computed is added up. So each server divides the constants of the affine functions by the number
    of shares: the sum then has each constant once.
    """

    @property
    def field(self) -> Field:
        """The field of the proof."""

    @property
    def length(self) -> int:
        """The number of words of a measurement."""

    @property
    def joint_length(self) -> int:
        """The number of elements of joint randomness.

        These random elements are arguments of `inputs` and `evaluate`. They must be derived from
        all shares of the measurement. If a client knew these elements before it chose its
        measurement, an invalid measurement could pass.
        """

    @property
    def chunk(self) -> int:
        """The number of products in one call of the gadget."""

    @property
    def calls(self) -> int:
        """The number of calls of the gadget, at least 1."""

    @property
    def outputs(self) -> int:
        """The number of outputs, at least 1."""

    def inputs(self, measurement: Array, joint: Array, shares: int) -> Array:
        """Return the inputs of the gadget for all calls.

        Args:
            measurement: words (integers mod p) [..., length], or a share of them.
            joint: elements [..., joint_length, K]; the joint randomness.
            shares: the number of shares; 1 for the whole measurement.

        Returns:
            Elements [..., calls, 2 chunk, K].
        """

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the outputs, from the measurement and the results of all calls.

        Args:
            measurement: words (integers mod p) [..., length], or a share of them.
            joint: elements [..., joint_length, K]; the joint randomness.
            shares: the number of shares; 1 for the whole measurement.
            results: elements [..., calls, K], or a share of them.

        Returns:
            Elements [..., outputs, K].
        """


@dataclass(frozen=True)
class FullyLinearProof:
    """Prove and check the statement of one circuit, in the steps prove, query and decide.

    Words are integers mod p. Elements are in GF(p^K): arrays of them end with an axis of K words
    (see `fields`).

    Args:
        circuit: the statement.

    Raises:
        InvalidInputError: the circuit has no calls, or too many for the roots of unity of its
            field.

    >>> from fedtally.flp import FIELD64, Count
    >>> proof = FullyLinearProof(Count())
    >>> random = FIELD64.constant([5, 6])
    >>> none = FIELD64.zeros((0,))
    >>> for counted in (1, 2):
    ...     words = FIELD64.words([counted])
    ...     sent = proof.prove(words, random, none)
    ...     print(bool(proof.decide(proof.query(words, sent, FIELD64.constant([9]), none, 1))))
    True
    False
    """

    circuit: Circuit

    def __post_init__(self) -> None:
        validate.integer(1, calls=self.circuit.calls)
        self.circuit.field.roots(2 * self.nodes)  # raises if there are too many calls

    @property
    def field(self) -> Field:
        """The field of the circuit."""
        return self.circuit.field

    @cached_property
    def nodes(self) -> int:
        """P, the number of points at which a wire polynomial is known: a power of two.

        A wire is one of the 2 `chunk` inputs of the gadget. At point i = 1, 2, ... the polynomial
        of a wire has the value of this input in call i. At point 0 it has a random seed. Point i is
        power i of the primitive root of unity of order P. P is the least power of two above the
        number of calls.
        """
        return 1 << self.circuit.calls.bit_length()

    @property
    def prove_random_length(self) -> int:
        """The number of random elements that `prove` needs: one for each input of the gadget."""
        return 2 * self.circuit.chunk

    @property
    def proof_length(self) -> int:
        """The number of elements of a proof: a seed for each wire, then the gadget polynomial.

        The gadget polynomial is the gadget applied to the wire polynomials, and has degree 2P - 2
        (see `nodes`).
        """
        return 2 * self.circuit.chunk + 2 * self.nodes - 1

    @property
    def query_random_length(self) -> int:
        """The number of random elements that `query` needs.

        The last element is the test point. If the circuit has several outputs, a factor for each
        output stands before the test point.
        """
        return 1 + (self.circuit.outputs if self.circuit.outputs > 1 else 0)

    @property
    def verifier_length(self) -> int:
        """The number of elements of a verifier share.

        They are the output, then the values of the wire polynomials and of the gadget polynomial at
        the test point. If the circuit has several outputs, each one is multiplied by its random
        factor, and the sum is the output.
        """
        return 2 * self.circuit.chunk + 2

    def prove(self, measurement: Array, prove_random: Array, joint: Array) -> Array:
        """Make the proof of a whole measurement.

        Args:
            measurement: words (integers mod p) [..., length].
            prove_random: uniform elements [..., prove_random_length, K], known to no verifier.
            joint: elements [..., joint_length, K]; the joint randomness.

        Returns:
            Elements [..., proof_length, K]: the seeds of the wires, which are `prove_random`; then
            the values of the gadget polynomial at the powers 0 .. 2P - 2 of the primitive root of
            unity of order 2P, where P is `nodes`.

        Raises:
            InvalidInputError: an array has another shape.
        """
        self._check(measurement, joint)
        self._expect("prove_random", prove_random, self.prove_random_length)
        inputs = self.circuit.inputs(measurement, joint, 1)
        level = kernels.level_for(self.field.prime)
        if self._compiled is not None and level is not None:
            return self._compiled.prove(level, inputs, prove_random)
        values = self._gadget(_doubled(self.field, self._wires(prove_random, inputs)))
        seeds = np.broadcast_to(
            prove_random, (*values.shape[:-2], self.prove_random_length, self.field.degree)
        )
        return np.concatenate([seeds, values[..., :-1, :]], -2)

    def query(
        self, measurement: Array, proof: Array, query_random: Array, joint: Array, shares: int
    ) -> Array:
        """Compute a verifier share from a verifier's shares of the measurement and of the proof.

        Args:
            measurement: words (integers mod p) [..., length]; this verifier's share.
            proof: elements [..., proof_length, K]; this verifier's share.
            query_random: uniform elements [..., query_random_length, K], the same for all
                verifiers. The client must not know them before it has sent its whole report.
            joint: elements [..., joint_length, K]; the joint randomness.
            shares: the number of verifiers.

        Returns:
            Elements [..., verifier_length, K].

        Raises:
            TestPointError: a test point is not allowed (see `is_test_point`).
            InvalidInputError: an array has another shape.
        """
        self._check(measurement, joint)
        self._expect("proof", proof, self.proof_length)
        self._expect("query_random", query_random, self.query_random_length)
        field, point = self.field, query_random[..., -1, :]
        if not self.is_test_point(point).all():
            raise TestPointError(
                f"the test point is a root of unity of order {self.nodes}: draw another one"
            )
        first = self.prove_random_length
        # The gadget polynomial is given at the roots of order 2P. Every second one is a root of
        # order P, where the wires are known. At the first root of order P the wires have the seeds.
        # At the next ones they have the inputs of the calls, so the gadget polynomial has there the
        # results of the calls.
        results = proof[..., first + 2 : first + 2 * self.circuit.calls + 1 : 2, :]
        outputs = self.circuit.evaluate(measurement, joint, shares, results)
        if self.circuit.outputs > 1:
            outputs = field.dot(outputs[..., None, :, :], query_random[..., :-1, :])
        inputs = self.circuit.inputs(measurement, joint, shares)
        level = kernels.level_for(field.prime)
        if self._compiled is not None and level is not None:
            verifier = self._compiled.query(level, inputs, proof, point)
            verifier[..., :1, :] = outputs
            return verifier
        wires = self._wires(proof[..., :first, :], inputs)
        values = _completed(field, proof[..., first:, :])
        at_point = _at(field, wires, _lagrange(field, point, self.nodes))
        gadget = _at(field, values[..., None, :], _lagrange(field, point, 2 * self.nodes))
        parts = [outputs, at_point, gadget]
        lead = np.broadcast_shapes(*(part.shape[:-2] for part in parts))
        return np.concatenate(
            [np.broadcast_to(part, (*lead, *part.shape[-2:])) for part in parts], -2
        )

    def decide(self, verifier: Array) -> Array:
        """Tell whether the statement holds: bool [...].

        A false statement passes only with a small probability over the joint randomness and the
        random elements of `query`.

        Args:
            verifier: elements [..., verifier_length, K]; the sum of the verifier shares of all
                verifiers, reduced mod p.

        Raises:
            InvalidInputError: the array has another shape.
        """
        self._expect("verifier", verifier, self.verifier_length)
        product = self._gadget(verifier[..., 1:-1, :])
        valid = (verifier[..., 0, :] == 0).all(-1) & (product == verifier[..., -1, :]).all(-1)
        return np.asarray(valid)

    def is_test_point(self, point: Array) -> Array:
        """Tell whether each of these elements may be a test point: bool [...].

        An element x with x^P = 1 is not allowed, where P is `nodes`. At such an x a wire polynomial
        has the value of an input of one call, and the random seed does not hide this value. So a
        verifier share would reveal a piece of the measurement.

        Args:
            point: elements [..., K].
        """
        one = self.field.constant(1)
        return np.asarray((self.field.power(point, self.nodes) != one).any(-1))

    @cached_property
    def _compiled(self) -> kernels.Gadget | None:
        """The compiled steps of the proof; None if the kernels do not support this circuit.

        Without them, `prove` and `query` use NumPy.
        """
        field, n = self.field, self.nodes
        most = max(2 * n, self.circuit.chunk)
        is_small = field.dtype == np.int64  # else arrays hold Python integers
        if most > kernels.MAX_TERMS or not is_small or not kernels.compiles(field.extension):
            return None
        doubled = _inverse_powers(field, 2 * n)
        # The gadget polynomial has values at 2P points, and a proof has all values but the last.
        # The last value is a sum of all other values, with fixed weights. So the last row of the
        # basis is added to the other rows, with these weights.
        of_the_last = field.scale(doubled[-1], _of_the_last(field, 2 * n))
        gadget = field.reduce(doubled[:-1] + of_the_last)
        wire, between = _inverse_powers(field, n), _between(field, n)
        return kernels.Gadget(field.extension, self.circuit.chunk, between.T, wire.T, gadget.T)

    def _wires(self, seeds: Array, inputs: Array) -> Array:
        """Return the values of the wire polynomials at the P nodes: [..., P, 2 chunk, K].

        The first node has the seeds. Each call has its own node with its inputs. All nodes after
        the last call have zeros.
        """
        lead = np.broadcast_shapes(seeds.shape[:-2], inputs.shape[:-3])
        wires = self.field.zeros((*lead, self.nodes, self.prove_random_length))
        wires[..., 0, :, :] = seeds
        wires[..., 1 : self.circuit.calls + 1, :, :] = inputs
        return wires

    def _gadget(self, wires: Array) -> Array:
        """Compute the gadget a1 b1 + a2 b2 + ... of its inputs: [..., 2 chunk, K] -> [..., K]."""
        return self.field.dot(wires[..., None, ::2, :], wires[..., 1::2, :])[..., 0, :]

    def _check(self, measurement: Array, joint: Array) -> None:
        if measurement.ndim < 1 or measurement.shape[-1] != self.circuit.length:
            raise InvalidInputError(
                f"measurement must be words [..., {self.circuit.length}], got {measurement.shape}"
            )
        self._expect("joint", joint, self.circuit.joint_length)

    def _expect(self, name: str, elements: Array, count: int) -> None:
        if elements.ndim < 2 or elements.shape[-2:] != (count, self.field.degree):
            raise InvalidInputError(
                f"{name} must be elements [..., {count}, {self.field.degree}], got {elements.shape}"
            )


# ---- polynomials, by their values on roots of unity ----


def _doubled(field: Field, values: Array) -> Array:
    """Compute the values of m polynomials at all 2n roots of order 2n.

    The polynomials have degrees below n.

    Args:
        field: the field.
        values: elements [..., n, m, K]; the values of the polynomials at the n roots of order n.

    Returns:
        Elements [..., 2n, m, K].
    """
    *lead, n, m, degree = values.shape
    flat = values.reshape(*lead, n, m * degree)
    result = np.empty((*lead, 2 * n, m * degree), field.dtype)
    result[..., ::2, :] = flat
    result[..., 1::2, :] = field.mix(_between(field, n), flat)
    return result.reshape(*lead, 2 * n, m, degree)


@lru_cache(maxsize=64)
def _between(field: Field, n: int) -> Array:
    """Return a matrix that evaluates a polynomial between the roots of order n: words [n, n].

    The matrix turns the values at the roots of order n into the values at the other n roots of
    order 2n. The polynomial has a degree below n. The matrix is cached.
    """
    odd = field.constant(field.roots(2 * n)[1::2])
    return _lagrange(field, odd, n)[..., 0]  # the roots are words, so the matrix has only words


def _completed(field: Field, values: Array) -> Array:
    """Append the last value of a polynomial of degree 2P - 2: [..., 2P - 1, K] -> [..., 2P, K].

    The values are at the 2P roots of unity of order 2P.
    """
    weights = _of_the_last(field, values.shape[-2] + 1)
    return np.concatenate([values, field.mix(weights[None], values)], -2)


def _of_the_last(field: Field, n: int) -> Array:
    """Return the weights with which the values y_0 .. y_(n-2) of a polynomial add up to y_(n-1).

    The polynomial has at most degree n - 2. y_i is its value at power i of the primitive root of
    unity of order n.

    Returns:
        Words [n - 1].
    """
    # The coefficient of degree n - 1 is 0. It is also proportional to the sum of w^i y_i over
    # i < n, where w is the primitive root. So y_(n-1) is -w times the sum of w^i y_i over
    # i < n - 1.
    return field.words([-root for root in field.roots(n)[1:]])


def _lagrange(field: Field, point: Array, n: int) -> Array:
    """Evaluate the n Lagrange polynomials of the roots of order n: [..., K] -> [..., n, K].

    L_i(t) is 1 / n times the sum of (t / x_i)^j over j < n, where x_i is a root and t is `point`.
    The formula does not divide by t - x_i, so it also holds where t is a root.
    """
    return field.mix(_inverse_powers(field, n), field.powers(point, n))


@lru_cache(maxsize=64)
def _inverse_powers(field: Field, n: int) -> Array:
    """Return the words x_i^-j / n, where the x_i are the roots of order n: [n, n], by i and j.

    The result is cached.
    """
    roots, scale = field.roots(n), field.inverse(n)
    return field.words([[roots[-i * j % n] * scale for j in range(n)] for i in range(n)])


def _at(field: Field, values: Array, basis: Array) -> Array:
    """Evaluate m polynomials at a point: [..., n, m, K] -> [..., m, K].

    Args:
        field: the field.
        values: elements [..., n, m, K]; the values of the polynomials at n roots of unity.
        basis: elements [..., n, K]; the Lagrange polynomials of these roots at the point.
    """
    return field.dot(values.swapaxes(-3, -2), basis)
