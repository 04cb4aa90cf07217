"""The fully linear proof of Boneh, Boyle, Corrigan-Gibbs, Gilboa and Ishai (CRYPTO 2019).

The form is that of draft-irtf-cfrg-vdaf (`FlpBBCGGI19`), for circuits with one gadget: the sum of
`chunk` products (`Mul`, `ParallelSum(Mul)`). This module neither masks nor shares values. A client
gives each verifier an additive share of its measurement and of its proof. Each verifier calls
`query` on its shares. `query` is linear, so that the sum of the results is the result for the whole
measurement, and `decide` takes this sum.

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
    """Refuse a report: it is not valid, or its parts are not parts of the same report."""


class TestPointError(ReportRefusedError):
    """Refuse a report, since at its test point the proof would reveal a part of the measurement."""

    __test__ = False  # otherwise pytest would collect the class as tests


class Circuit(Protocol):
    """A statement about a measurement: it holds if all outputs of the circuit are 0.

    A measurement is encoded as words, integers mod p. The circuit calls one gadget `calls` times.
    The gadget takes 2 `chunk` inputs a1, b1, a2, b2, ... and returns the sum of the products a b.
    The inputs are affine functions of the measurement. The outputs are affine functions of the
    measurement and the results of the calls. Constants are divided by the number of shares, so that
    the sum of all shares has each constant once.
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

        They must be derived from all shares of the measurement.
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
        """Return the inputs of all calls.

        Args:
            measurement: words [..., length], or a share of them.
            joint: elements [..., joint_length, K].
            shares: the number of shares; 1 for the whole measurement.

        Returns:
            Elements [..., calls, 2 chunk, K].
        """

    def evaluate(self, measurement: Array, joint: Array, shares: int, results: Array) -> Array:
        """Return the outputs, given the results of the calls.

        Args:
            measurement: words [..., length], or a share of them.
            joint: elements [..., joint_length, K].
            shares: the number of shares; 1 for the whole measurement.
            results: elements [..., calls, K], or a share of them.

        Returns:
            Elements [..., outputs, K].
        """


@dataclass(frozen=True)
class FullyLinearProof:
    """The proof system of one circuit: its steps prove, query and decide.

    Args:
        circuit: the statement.

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
        self.circuit.field.roots(2 * self.nodes)  # raises if the circuit has too many calls

    @property
    def field(self) -> Field:
        """The field of the circuit."""
        return self.circuit.field

    @cached_property
    def nodes(self) -> int:
        """P, the number of points that a wire polynomial is interpolated at.

        It is the least power of two above the number of calls.
        """
        return 1 << self.circuit.calls.bit_length()

    @property
    def prove_random_length(self) -> int:
        """The number of random elements that a proof needs: one for each wire.

        A wire is one input of the gadget, over all its calls.
        """
        return 2 * self.circuit.chunk

    @property
    def proof_length(self) -> int:
        """The number of elements of a proof: a seed for each wire, then the gadget polynomial."""
        return 2 * self.circuit.chunk + 2 * self.nodes - 1

    @property
    def query_random_length(self) -> int:
        """The number of random elements that a query needs.

        They are a factor for each output, if there is more than one output, and the test point.
        """
        return 1 + (self.circuit.outputs if self.circuit.outputs > 1 else 0)

    @property
    def verifier_length(self) -> int:
        """The number of elements of a verifier share.

        They are the output, and the wire and gadget polynomials at the test point.
        """
        return 2 * self.circuit.chunk + 2

    def prove(self, measurement: Array, prove_random: Array, joint: Array) -> Array:
        """Return the proof of a whole measurement.

        Args:
            measurement: words [..., length].
            prove_random: uniform elements [..., prove_random_length, K], known to no verifier.
            joint: elements [..., joint_length, K].

        Returns:
            Elements [..., proof_length, K]: the wire seeds, then the values of the gadget
            polynomial at the powers 0 .. 2P - 2 of the root of unity of order 2P.
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
        """Return the verifier share, from a verifier's shares of the measurement and of the proof.

        Args:
            measurement: words [..., length]; this verifier's share.
            proof: elements [..., proof_length, K]; this verifier's share.
            query_random: uniform elements [..., query_random_length, K], the same for all
                verifiers, and unknown to the client until it has sent all of its report.
            joint: elements [..., joint_length, K].
            shares: the number of verifiers.

        Returns:
            Elements [..., verifier_length, K].

        Raises:
            TestPointError: the test point is a root of unity of order P (see `is_test_point`).
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
        # The gadget polynomial is given at the roots of order 2P. Every second root is a node of
        # the wires. The first node belongs to the seeds, and the next ones have the calls' results.
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

        Args:
            verifier: elements [..., verifier_length, K]; the sum of the shares of all verifiers.
        """
        self._expect("verifier", verifier, self.verifier_length)
        product = self._gadget(verifier[..., 1:-1, :])
        valid = (verifier[..., 0, :] == 0).all(-1) & (product == verifier[..., -1, :]).all(-1)
        return np.asarray(valid)

    def is_test_point(self, point: Array) -> Array:
        """Tell whether each of these elements may be a test point: bool [...].

        At a root of unity of order P, the value of a wire polynomial is an input of one call and
        does not depend on the random seed. So a verifier share would reveal a part of the
        measurement.

        Args:
            point: elements [..., K].
        """
        one = self.field.constant(1)
        return np.asarray((self.field.power(point, self.nodes) != one).any(-1))

    @cached_property
    def _compiled(self) -> kernels.Gadget | None:
        """The compiled steps of the proof, or None if kernels cannot do this circuit.

        NumPy code can always do the steps.
        """
        field, n = self.field, self.nodes
        most = max(2 * n, self.circuit.chunk)
        is_small = field.dtype == np.int64  # else it holds Python integers
        if most > kernels.MAX_TERMS or not is_small or not kernels.compiles(field.extension):
            return None
        doubled = _inverse_powers(field, 2 * n)
        # The last value of the polynomial is a sum of the others with fixed weights. So its row of
        # the basis is distributed over the other rows.
        of_the_last = field.scale(doubled[-1], _of_the_last(field, 2 * n))
        gadget = field.reduce(doubled[:-1] + of_the_last)
        wire, between = _inverse_powers(field, n), _between(field, n)
        return kernels.Gadget(field.extension, self.circuit.chunk, between.T, wire.T, gadget.T)

    def _wires(self, seeds: Array, inputs: Array) -> Array:
        """Return the values of the wires at the P nodes: [..., P, 2 chunk, K].

        They are the seeds, then the inputs of each call, then zeros.
        """
        lead = np.broadcast_shapes(seeds.shape[:-2], inputs.shape[:-3])
        wires = self.field.zeros((*lead, self.nodes, self.prove_random_length))
        wires[..., 0, :, :] = seeds
        wires[..., 1 : self.circuit.calls + 1, :, :] = inputs
        return wires

    def _gadget(self, wires: Array) -> Array:
        """Return the gadget of wires, a1 b1 + a2 b2 + ...: [..., 2 chunk, K] -> [..., K]."""
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
    """Return the values of m polynomials at the roots of order 2n, from those at order n.

    Args:
        field: the field.
        values: elements [..., n, m, K]; the values at the roots of unity of order n.

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
    """Return the matrix from values at the roots of order n to values between them: words [n, n].

    The points between them are the other roots of order 2n.
    """
    odd = field.constant(field.roots(2 * n)[1::2])
    return _lagrange(field, odd, n)[..., 0]  # they are words, since the roots are


def _completed(field: Field, values: Array) -> Array:
    """Return all 2P values of a polynomial of degree 2P - 2, from all but the last value.

    The shapes are [..., 2P - 1, K] -> [..., 2P, K].
    """
    weights = _of_the_last(field, values.shape[-2] + 1)
    return np.concatenate([values, field.mix(weights[None], values)], -2)


def _of_the_last(field: Field, n: int) -> Array:
    """Return the weights of the other values in the last value of a polynomial: words [n - 1].

    The polynomial has degree n - 2, and its values y_i are at the n roots of unity of order n.
    """
    # The coefficient of degree n - 1 is 0, and is proportional to the sum of all w^i y_i. So the
    # last value is y_(n-1) = -w (the sum of the other w^i y_i).
    return field.words([-root for root in field.roots(n)[1:]])


def _lagrange(field: Field, point: Array, n: int) -> Array:
    """Return the Lagrange polynomials of the roots of order n at a point: [..., K] -> [..., n, K].

    L_i(t) is 1 / n times the sum of (t / x_i)^j over j < n. There is no division by t - x_i, so
    that the formula is right at the roots, too.
    """
    return field.mix(_inverse_powers(field, n), field.powers(point, n))


@lru_cache(maxsize=64)
def _inverse_powers(field: Field, n: int) -> Array:
    """Return the words x_i^-j / n for the roots x_i of order n: [n, n], by i and j."""
    roots, scale = field.roots(n), field.inverse(n)
    return field.words([[roots[-i * j % n] * scale for j in range(n)] for i in range(n)])


def _at(field: Field, values: Array, basis: Array) -> Array:
    """Return the values of m polynomials at a point: [..., n, m, K] -> [..., m, K].

    Args:
        field: the field.
        values: elements [..., n, m, K]; the values of the polynomials at n roots of unity.
        basis: elements [..., n, K]; the Lagrange polynomials of these roots at the point.
    """
    return field.dot(values.swapaxes(-3, -2), basis)
