"""The fully linear proof: complete, sound and hiding, over fields where that can be counted."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cases import each_case

from fedtally.errors import InvalidInputError
from fedtally.flp import (
    FIELD64,
    FIELD128,
    Count,
    Field,
    FullyLinearProof,
    Histogram,
    SumVec,
    TestPointError,
)
from fedtally.flp.proof import _completed, _doubled, _lagrange

SMALL = Field(97, 5)  # 96 = 2^5 3


class SmallCount(Count):
    field = SMALL


def uniform(field: Field, rng: np.random.Generator, *shape: int) -> Any:
    raw = iter(lambda: rng.bytes(1 << 12), None)
    data = b""

    def stream(length: int) -> bytes:
        nonlocal data
        while len(data) < length:
            data += next(raw)
        return data[:length]

    return field.sample(stream, int(np.prod([*shape, field.degree]))).reshape(*shape, field.degree)


def at(field: Field, coefficients: list[int], point: int) -> int:
    return sum(c * pow(point, i, field.prime) for i, c in enumerate(coefficients)) % field.prime


# ---- polynomials ----


def test_polynomials_are_evaluated_from_their_values():
    rng = np.random.default_rng(3)
    for n in (2, 4, 16):
        coefficients = rng.integers(0, 97, n).tolist()
        values = SMALL.constant([at(SMALL, coefficients, root) for root in SMALL.roots(n)])
        doubled = [at(SMALL, coefficients, root) for root in SMALL.roots(2 * n)]
        assert _doubled(SMALL, values[:, None, :])[:, 0, 0].tolist() == doubled
        for point in range(97):  # the roots too: nothing is divided by zero there
            basis = _lagrange(SMALL, SMALL.constant(point), n)
            found = SMALL.sum(SMALL.multiply(values, basis), 0)
            assert found.tolist() == [at(SMALL, coefficients, point)]


def test_the_missing_value_follows_from_the_degree():
    coefficients = [4, 0, 96, 17, 3, 1, 50]  # degree 6, at the roots of order 8
    values = SMALL.constant([at(SMALL, coefficients, root) for root in SMALL.roots(8)])
    assert _completed(SMALL, values[:-1]).tolist() == values.tolist()


# ---- the proof ----

CIRCUITS = [
    (Count(), [0, 1]),
    (Histogram(5, 2), [0, 4]),
    (Histogram(3, 7), [1]),
    (SumVec(3, 5, 4), [[0, 5, 3], [5, 5, 5]]),
    (SumVec(3, 4, 2, FIELD64), [[0, 4, 1]]),
    (SumVec(2, 1, 1, SMALL), [[0, 1]]),
]


def verdict(circuit: Any, words: Any, rng: np.random.Generator, shares: int = 2) -> bool:
    """Return whether an honest prover's report passes, split among so many verifiers."""
    proof, field = FullyLinearProof(circuit), circuit.field
    joint = uniform(field, rng, circuit.joint_length)
    sent = proof.prove(words, uniform(field, rng, proof.prove_random_length), joint)
    query_random = uniform(field, rng, proof.query_random_length)
    if not proof.is_test_point(query_random[-1]):
        return verdict(circuit, words, rng, shares)
    total, rest = 0, (words, sent)
    for i in range(shares):
        part = uniform(field, rng, circuit.length)[:, 0], uniform(field, rng, len(sent))
        if i == shares - 1:
            part = rest
        rest = field.reduce(rest[0] - part[0]), field.reduce(rest[1] - part[1])
        total = total + proof.query(*part, query_random, joint, shares)
    return bool(proof.decide(field.reduce(total)))


@each_case(("circuit", "measurements"), CIRCUITS)
def test_valid_measurements_pass(circuit, measurements):
    rng = np.random.default_rng(5)
    for measurement in measurements:
        words = circuit.encode(measurement)
        assert circuit.decode(circuit.truncate(words)) is not None
        for shares in (1, 2, 3):
            assert verdict(circuit, words, rng, shares)


@each_case(
    ("circuit", "words"),
    [
        (Count(), [2]),
        (Count(), [FIELD64.prime - 1]),
        (Histogram(3, 2), [1, 1, 0]),
        (Histogram(3, 2), [0, 0, 0]),
        (Histogram(3, 2), [2, FIELD128.prime - 1, 0]),
        (SumVec(2, 5, 3), [2, 0, 0, 0, 0, 0]),
        (SumVec(2, 5, 3), [0, 0, 0, 0, 0, FIELD128.prime - 1]),
        (SumVec(2, 3, 2, FIELD64), [0, 1, 1, 7]),
    ],
)
def test_invalid_measurements_do_not_pass(circuit, words):
    """By the bound: the fields have 2^64 elements, and a cheat passes with less than 2^-60."""
    rng = np.random.default_rng(6)
    assert not verdict(circuit, circuit.field.words(words), rng)


def test_proofs_of_many_reports_are_those_of_each():
    rng, circuit = np.random.default_rng(7), SumVec(3, 5, 4)
    proof, field = FullyLinearProof(circuit), circuit.field
    words = np.array([circuit.encode(each) for each in ([0, 5, 3], [1, 2, 4])])
    joint = uniform(field, rng, 2, circuit.joint_length)
    prove_random = uniform(field, rng, 2, proof.prove_random_length)
    query_random = uniform(field, rng, 2, proof.query_random_length)
    both = proof.prove(words, prove_random, joint)
    verifiers = proof.query(words, both, query_random, joint, 2)
    for i in range(2):
        alone = proof.prove(words[i], prove_random[i], joint[i])
        assert alone.tolist() == both[i].tolist()
        one = proof.query(words[i], alone, query_random[i], joint[i], 2)
        assert one.tolist() == verifiers[i].tolist()
    assert proof.decide(field.reduce(2 * verifiers)).shape == (2,)


def test_a_false_result_passes_as_often_as_its_error_has_roots():
    """The bound is 2P - 2 of the q - P test points, and a cheat that reaches it passes as often.

    The statement x x = x fails for x = 2. The cheat adds to the gadget polynomial one of degree
    2P - 2 = 2 that is -2 at the node of the call, and 0 at points of its choice. The proof lets it
    through at those, and at no other.
    """
    circuit = SmallCount()
    proof, none = FullyLinearProof(circuit), SMALL.zeros((0,))
    words = SMALL.words([2])
    sent = proof.prove(words, SMALL.constant([3, 4]), none)
    node, others = SMALL.roots(2)[1], [11, 30]
    scale = -2 * pow((node - others[0]) * (node - others[1]), -1, 97)
    for i, root in enumerate(SMALL.roots(4)[:3]):
        sent[2 + i] += scale * (root - others[0]) * (root - others[1])
    sent = SMALL.reduce(sent)
    points = [t for t in range(97) if proof.is_test_point(SMALL.constant(t))]
    assert len(points) == 97 - proof.nodes
    passed = [
        t for t in points if proof.decide(proof.query(words, sent, SMALL.constant([t]), none, 1))
    ]
    assert passed == others
    assert len(passed) == 2 * proof.nodes - 2


def verifiers(x: int, point: int) -> Counter[tuple[int, ...]]:
    """Return how often each verifier comes, over all seeds of the prover."""
    circuit = SmallCount()
    proof, none = FullyLinearProof(circuit), SMALL.zeros((0,))
    seeds = SMALL.constant(list(itertools.product(range(97), repeat=2)))
    words = SMALL.words([x])
    sent = proof.prove(words, seeds, none)
    pairs = proof.query(words, sent, SMALL.constant([point]), none, 1)
    return Counter(map(tuple, pairs[..., 0].tolist()))


def test_a_verifier_shows_nothing_of_a_valid_measurement(monkeypatch):
    """Exactly: over all seeds its distribution is that of a simulator who knows no measurement.

    The simulator draws the wires, and multiplies them. At a root of unity of order P it fails.
    """
    simulated = Counter({(0, a, b, a * b % 97): 1 for a in range(97) for b in range(97)})
    of_order_2p = SMALL.roots(4)[1]  # may be a test point: the seeds still hide the wires
    for point in (2, 50, of_order_2p):
        assert verifiers(0, point) == verifiers(1, point) == simulated
    for root in SMALL.roots(2):
        with pytest.raises(TestPointError, match="root of unity of order 2"):
            verifiers(0, root)
    monkeypatch.setattr(FullyLinearProof, "is_test_point", lambda self, t: np.True_)
    assert verifiers(0, 96) == {(0, 0, 0, 0): 97**2}  # the wires themselves: x is read off
    assert verifiers(1, 96) == {(0, 1, 1, 1): 97**2}


def test_arrays_of_another_shape_are_refused():
    circuit = Histogram(4, 2)
    proof, field = FullyLinearProof(circuit), circuit.field
    words, joint = circuit.encode(1), field.zeros((2,))
    seeds, point = field.zeros((4,)), field.constant([1, 1, 5])
    sent = proof.prove(words, seeds, joint)
    cases = [
        ("measurement", lambda: proof.prove(words[1:], seeds, joint)),
        ("joint", lambda: proof.prove(words, seeds, joint[1:])),
        ("prove_random", lambda: proof.prove(words, seeds[1:], joint)),
        ("proof", lambda: proof.query(words, sent[1:], point, joint, 2)),
        ("query_random", lambda: proof.query(words, sent, point[1:], joint, 2)),
        ("verifier", lambda: proof.decide(sent)),
    ]
    for name, call in cases:
        with pytest.raises(
            InvalidInputError, match=rf"^{name} must be (elements|words) \[\.\.\., "
        ):
            call()


def test_a_circuit_with_too_many_calls_is_refused():
    with pytest.raises(InvalidInputError, match="at most 32, got 64"):
        FullyLinearProof(SumVec(16, 1, 1, SMALL))
