"""The circuit of a sketch: exact, sound and hiding, counted in full over small fields."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from cases import each_case
from proof_cheats import HONEST, HOW, cheats, one_hot, uniform, verdicts

from fedtally.errors import InvalidInputError
from fedtally.flp import (
    FIELD16,
    FIELD24,
    FIELD32,
    FIELD128,
    Field,
    FullyLinearProof,
    OneHot,
    field_for_sums,
)

SMALL = Field(257, 3)
TINY = Field(17, 3)


def first_output(circuit: OneHot, words: Any, joint: Any) -> Any:
    """Return the output of the rows, of whole vectors: [..., K]."""
    return outputs(circuit, words, joint)[..., 0, :]


def outputs(circuit: OneHot, words: Any, joint: Any) -> Any:
    """Return all outputs, of whole vectors: [..., outputs, K]."""
    calls = circuit.inputs(words, joint, 1)
    products = circuit.field.multiply(calls[..., ::2, :], calls[..., 1::2, :])
    results = circuit.field.sum(products, -2)
    return circuit.evaluate(words, joint, 1, results)


# ---- fields ----


@each_case("field", [FIELD16, FIELD24, FIELD32])
def test_the_fields_are_fields_of_the_size_that_is_claimed(field):
    p, x = field.prime, field.element([0, 1])
    assert all(p % d for d in range(2, math.isqrt(p) + 1))
    conjugates = [field.power(x, p**i).tolist() for i in range(field.degree + 1)]
    assert conjugates[0] == conjugates[-1]
    assert len(set(map(tuple, conjugates))) == field.degree  # so X^K - g is irreducible
    assert p**field.degree > 2**127.8
    assert field.max_order >= 1024


@each_case(
    ("clients", "noise", "field"),
    [
        (32_256, 0, FIELD16),
        (32_257, 0, FIELD24),
        (1, 21_503, FIELD16),
        (1, 21_504, FIELD24),
        (1 << 20, 0, FIELD24),
        (1 << 20, 5_000_000, FIELD32),
    ],
)
def test_the_field_is_the_smallest_that_holds_the_sums(clients, noise, field):
    assert field_for_sums(clients, noise) == field
    # of histograms: as many values as those of half as many clients
    assert field_for_sums(2 * clients, noise, signed=False) == field


@pytest.mark.parametrize("signed", [True, False])
def test_noise_beyond_its_bound_never_passes_for_a_sum(signed):
    """A sum of n vectors and noise up to 2 tau is not taken for another sum that is possible."""
    p, wrong = 97, 0
    for n, tau in itertools.product(range(1, 40), range(40)):
        sums = range(-n * signed - 2 * tau, n + 2 * tau + 1)
        lowest, least = (-(p // 2), -n - tau) if signed else (-tau, -tau)
        read = {s: (s - lowest) % p + lowest for s in sums}
        unseen = any(least <= read[s] <= n + tau and read[s] != s for s in sums)
        wrong += unseen
        assert not unseen or (1 + signed) * n + 3 * tau >= p
    assert wrong  # beyond the bound it happens


def test_sums_that_no_field_holds_are_refused():
    with pytest.raises(InvalidInputError, match=r"2 clients \+ 3 noise must be .* got 6000000002"):
        field_for_sums(1, 2_000_000_000)
    with pytest.raises(InvalidInputError, match="^clients .* below 4293918721, got 6000000001"):
        field_for_sums(1, 2_000_000_000, signed=False)


# ---- exact ----


@each_case(
    ("field", "widths", "abstain", "signed"),
    [
        (Field(5, 2, 4), (6,), False, True),
        (Field(5, 2, 4), (2, 3), True, True),
        (Field(7, 3, 3), (1, 4), False, True),
        (Field(7, 3, 3), (3,), True, True),
        (Field(17, 3, 2), (3,), False, True),
        (Field(5, 2, 4), (6,), False, False),
        (Field(5, 2, 4), (2, 3), True, False),
        (Field(7, 3, 3), (3,), True, False),
    ],
)
def test_only_honest_vectors_satisfy_the_circuit(field, widths, abstain, signed):
    """Of all vectors and all e there are, those that pass at 16 random r1, r2, r3.

    An invalid one does so with at most (degree / p^K)^16 < 2^-70, and there are fewer than 2^15.
    """
    circuit = OneHot(widths, field, abstain, signed=signed)
    rng = np.random.default_rng(1)
    words = np.array(list(itertools.product(range(field.prime), repeat=circuit.length)))
    assert (circuit.degree / field.prime**field.degree) ** 16 < 2**-70 and len(words) < 2**15
    for _ in range(16):
        joint = uniform(field, rng, 3)
        words = words[(outputs(circuit, words, joint) == 0).all((-2, -1))]
    passed = set(map(tuple, words.tolist()))
    rows = [
        [
            [s if i == w else 0 for i in range(width)]
            for w in range(width)
            for s in (1, -1)[: 1 + signed]
        ]
        for width in widths
    ]
    honest = {
        tuple(field.words([*itertools.chain(*each), *[1] * abstain]).tolist())
        for each in itertools.product(*rows)
    }
    assert passed == honest | ({(0,) * circuit.length} if abstain else set())


def test_the_first_product_is_a_sum_over_pairs():
    """z z - s y = - sum of x_u x_v (R_u - R_v)^2, and a narrow row takes the grid of the widest."""
    rng, field = np.random.default_rng(2), FIELD16
    circuit = OneHot((7, 12), field)
    words, joint = rng.integers(0, field.prime, circuit.length), uniform(field, rng, 3)
    calls = circuit.inputs(words, joint, 1).reshape(-1, 2, field.degree)
    r1, r2, r3 = joint
    for row, x in enumerate((words[:7], words[7:])):
        weights = [
            field.multiply(field.power(r1, w // 4), field.power(r2, w % 4)) for w in range(len(x))
        ]
        total = field.zeros(())
        for u, v in itertools.combinations(range(len(x)), 2):
            difference = field.reduce(weights[u] - weights[v])
            square = field.multiply(difference, difference)
            total = field.reduce(total - field.reduce(x[u] * x[v]) * square)
        expected = field.multiply(field.power(r3, 2 * row + 1), total)
        pairs = calls[3 * row : 3 * row + 2]
        found = field.sum(field.multiply(pairs[:, 0], pairs[:, 1]), 0)
        assert found.tolist() == expected.tolist()


@each_case(
    ("widths", "abstain", "checksum", "grid", "degree"),
    [
        ((400,) * 5, True, 4, 20, 9 + 2 * 38),
        ((571,) * 7, True, 4, 24, 13 + 2 * (23 + 23)),
        ((1000,) * 16, True, 4, 32, 31 + 2 * (31 + 31)),
        ((1,), False, 0, 1, 2),
        ((1, 1), True, 0, 1, 5),
    ],
)
def test_sizes(widths, abstain, checksum, grid, degree):
    circuit = OneHot(widths, FIELD16, abstain, checksum)
    assert (circuit.grid, circuit.degree) == (grid, degree)
    lengths = {}
    for chunk in range(1, circuit.products + 1):
        nodes = 2
        while nodes < 1 + -(-circuit.products // chunk):
            nodes *= 2
        lengths[chunk] = 2 * chunk + 2 * nodes - 1
    assert FullyLinearProof(circuit).proof_length == min(lengths.values())
    assert circuit.chunk == min(c for c in lengths if lengths[c] == min(lengths.values()))


def test_an_invalid_vector_passes_for_no_more_than_the_degree():
    """Over GF(257), all r1 and r2: cells whose weights differ by r2^4, by r1^4, by both, by r2."""
    circuit = OneHot((25,), SMALL)
    pairs = np.array(list(itertools.product(range(257), repeat=2)))
    joint = SMALL.constant(np.column_stack([pairs, np.full(len(pairs), 5)]))
    for u, v, roots in ((0, 4, 4), (20, 0, 4), (4, 20, 4), (3, 4, 1)):
        x = np.zeros(25, np.int64)
        x[u], x[v] = 3, -2
        zeros = int((first_output(circuit, SMALL.words(x), joint) == 0).all(-1).sum())
        # the equation has so many roots for each value of the other one, and all are 0 at a 0
        assert roots * 256 <= zeros <= roots * 256 + 2 * 257
        assert zeros / len(pairs) <= circuit.degree / 257


# ---- the proof over small fields: what gets through is what the theory says ----


def test_an_honest_prover_of_an_invalid_vector_passes_where_the_circuit_is_0():
    """Entries 3 and -2 in the cells (0, 0) and (0, 4): s = 1, and the output is
    6 r3 (1 - r2^4)^2. So it passes for r3 = 0 and for the roots of r2^4 = 1, at every point."""
    circuit = OneHot((25,), SMALL)
    proof, words = FullyLinearProof(circuit), SMALL.words([3, 0, 0, 0, -2, *[0] * 20])
    choices = list(itertools.product([7], range(257), [0, 1, 5]))
    joint, rng = SMALL.constant(choices), np.random.default_rng(4)
    sent = proof.prove(words, uniform(SMALL, rng, len(joint), proof.prove_random_length), joint)
    assert proof.query_random_length == 1
    for t in (3, 100):
        point = SMALL.constant([t])
        passed = proof.decide(proof.query(words, sent, point, joint, 1))
        expected = [r3 == 0 or pow(r2, 4, 257) == 1 for _, r2, r3 in choices]
        assert passed.tolist() == expected
    assert sum(expected) == 257 + 2 * 4


def verifiers(circuit: OneHot, counters: list[int], point: int) -> Counter[tuple[int, ...]]:
    """Return how often each verifier comes, over all seeds of the prover."""
    proof, field = FullyLinearProof(circuit), circuit.field
    assert proof.prove_random_length == 2
    words, joint = circuit.encode(np.array(counters)), field.constant([2, 3, 4])
    seeds = field.constant(list(itertools.product(range(field.prime), repeat=2)))
    sent = proof.prove(words, seeds, joint)
    found = proof.query(words, sent, drawn_at(proof, point), joint, 1)
    return Counter(map(tuple, found[..., 0].tolist()))


def drawn_at(proof: FullyLinearProof, point: int) -> Any:
    """Return the randomness of a query with a test point, and any factors of the outputs."""
    factors = range(5, 4 + proof.query_random_length)
    return proof.field.constant([*factors, point])


@each_case("signed", [True, False])
def test_a_verifier_of_a_valid_vector_can_be_simulated(signed):
    """Exactly: for every valid vector it is (0, a, b, a b) with a and b uniform."""
    circuit = OneHot((3,), TINY, signed=signed)
    simulated = Counter((0, a, b, a * b % 17) for a in range(17) for b in range(17))
    for place, sign in itertools.product(range(3), (1, -1)[: 1 + signed]):
        vector = [sign * (i == place) for i in range(3)]
        assert verifiers(circuit, vector, 11) == simulated


@each_case("signed", [True, False])
def test_a_lying_server_learns_nothing_from_the_verdict(signed):
    """A server that changes its share passes for one seed in p, whether it guessed the vector.

    Its change d makes x + d of a vector x: another valid one, or an invalid one. Over all seeds of
    the prover exactly 1 / p of the reports pass, for a right guess as for a wrong one. Without
    signs none pass where d changes the sum of the row.
    """
    circuit = OneHot((3,), TINY, signed=signed)
    proof, joint = FullyLinearProof(circuit), TINY.constant([2, 3, 4])
    seeds = TINY.constant(list(itertools.product(range(17), repeat=2)))
    point, passed = drawn_at(proof, 11), {}
    for vector in ([1, 0, 0], [0, 1, 0], [0, 0, -1 if signed else 1]):
        words = circuit.encode(np.array(vector))
        sent = proof.prove(words, seeds, joint)
        for change in ((-1, 1, 0), (0, 1, 0), (5, 0, 12)):
            other = proof.query(TINY.words(change), 0 * sent, point, joint, 2)
            constant = proof.query(0 * words, 0 * sent, point, joint, 2)
            total = proof.query(words, sent, point, joint, 1) + other - constant
            found = int(proof.decide(TINY.reduce(total)).sum())
            assert passed.setdefault(change, found) == found  # whatever the vector is
    expected = 17 if signed else 0  # of 17^2 seeds
    assert passed == {(-1, 1, 0): 17, (0, 1, 0): expected, (5, 0, 12): 17}


# ---- every kind of cheat, in the real field, by NumPy and by the kernels ----

SHAPE = OneHot((40, 40, 40, 40, 17), FIELD16, abstain=True, checksum=4)
POSITIVE = OneHot((40, 40, 17), FIELD16, abstain=True, checksum=4, signed=False)


@each_case("circuit", [SHAPE, POSITIVE])
def test_cheats_of_all_kinds_are_refused(backend, circuit):
    """Each passes with less than 2^-130."""
    rng = np.random.default_rng(8)
    for how in (HONEST, *HOW):
        made = [cheats(rng, circuit) for _ in range(4)]
        kinds = [kind for each in made for kind in each]
        words = FIELD16.words([row for each in made for row in each.values()])
        passed = verdicts(rng, circuit, words, how)
        assert [kind for kind, one in zip(kinds, passed, strict=True) if one] == [], how


@each_case("circuit", [SHAPE, POSITIVE])
def test_valid_vectors_with_false_proofs_are_refused_and_with_true_ones_accepted(backend, circuit):
    rng = np.random.default_rng(9)
    vectors = [one_hot(rng, circuit) for _ in range(20)] + [np.zeros(circuit.counters, np.int64)]
    words = np.array([circuit.encode(vector) for vector in vectors])
    assert verdicts(rng, circuit, words, HONEST).all()
    assert verdicts(rng, circuit, words, "outputs set to 0").all()  # they are 0: nothing changes
    for how in HOW[1:]:
        assert not verdicts(rng, circuit, words, how).any(), how


@each_case("field", [FIELD16, FIELD24, FIELD32])
def test_all_fields_and_shapes_prove_what_is_valid(backend, field):
    rng = np.random.default_rng(10)
    for widths, abstain, checksum in (
        ((1,), False, 0),
        ((2,) * 8, True, 1),
        ((30, 30, 7, 7, 7, 30), False, 3),
    ):
        circuit = OneHot(widths, field, abstain, checksum)
        proof, words = FullyLinearProof(circuit), circuit.encode(one_hot(rng, circuit))
        joint = uniform(field, rng, 3)
        sent = proof.prove(words, uniform(field, rng, proof.prove_random_length), joint)
        random = uniform(field, rng, proof.query_random_length)
        assert proof.decide(proof.query(words, sent, random, joint, 1))
        assert circuit.truncate(words).shape == (circuit.counters + checksum,)


# ---- arguments ----


@each_case(
    ("vector", "message"),
    [
        ([1, 0, 0, 0, 2], "row 1 of the vector must have one entry"),
        ([1, 0, 0, 0, 0], "row 1 of the vector must have one entry"),
        ([1, -1, 0, 0, 1], "row 0 of the vector must have one entry"),
        ([1, 0, 1, -1, 1], "row 1 of the vector must have one entry"),
        ([1, 0, 0, 1], r"must be integers \[5\], got int64 \(4,\)"),
        ([1.0, 0, 0, 0, 1], r"must be integers \[5\], got float64 \(5,\)"),
    ],
)
def test_vectors_whose_proof_would_be_refused_are_not_encoded(vector, message):
    for abstain in (False, True):
        with pytest.raises(InvalidInputError, match=message):
            OneHot((2, 3), abstain=abstain).encode(np.array(vector))


@each_case(
    ("vector", "dtype"),
    [
        ([2**64 - 1, 0, 0, 0, 1], np.uint64),  # as int64 it is -1
        ([2**63, 0, 0, 0, 1], np.uint64),
        ([-(2**63), -(2**63), 0, 0, 1], np.int64),  # absolute values whose sum wraps
        ([-(2**63), 1, 0, 0, 1], np.int64),
        ([255, 0, 0, 0, 1], np.uint8),
        ([-128, 1, 0, 0, 1], np.int8),
    ],
)
def test_entries_that_wrap_are_refused(vector, dtype):
    for abstain in (False, True):
        with pytest.raises(InvalidInputError, match="row 0 of the vector must have one entry"):
            OneHot((2, 3), abstain=abstain).encode(np.array(vector, dtype))


@each_case("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_vectors_of_all_integers_are_encoded(dtype):
    circuit, vector = OneHot((2, 3), checksum=1), np.array([0, 1, 1, 0, 0], dtype)
    assert circuit.encode(vector).tolist() == [0, 1, 1, 0, 0, 1]
    if dtype in (np.int8, np.int32, np.int64):
        assert circuit.encode(-vector).tolist() == [0, 64512, 64512, 0, 0, 1]


def test_a_vector_of_a_histogram_has_no_minus_1():
    circuit = OneHot((2, 1), checksum=1, signed=False)
    assert circuit.encode(np.array([0, 1, 1])).tolist() == [0, 1, 1, 1]
    for vector in ([0, -1, 1], [-1, 0, 1]):
        with pytest.raises(InvalidInputError, match=r"row 0 .* one entry \+1, and zeros elsewhere"):
            circuit.encode(np.array(vector))
    with pytest.raises(InvalidInputError, match=r"row 1 of the vector must have one entry \+1,"):
        circuit.encode(np.array([1, 0, -1]))
    with pytest.raises(InvalidInputError, match="signed must be True or False, got 1"):
        OneHot((2,), signed=1)


def test_a_client_that_holds_nothing_needs_abstain():
    nothing = np.zeros(5, np.int64)
    words = OneHot((2, 3), abstain=True, checksum=1).encode(nothing)
    assert words.tolist() == [0, 0, 0, 0, 0, 1, 0]
    with pytest.raises(InvalidInputError, match="row 0 of the vector must have one entry"):
        OneHot((2, 3)).encode(nothing)


def test_bad_shapes_are_refused():
    for message, call in (
        ("rows must be at least 1, got 0", lambda: OneHot(())),
        ("width must be at least 1, got 0", lambda: OneHot((3, 0))),
        ("width must be at most 16777216", lambda: OneHot((1 << 25,))),
        ("checksum must be at most 255, got 256", lambda: OneHot((3,), checksum=256)),
        ("prime_of_field must be at most 1844", lambda: OneHot((3,), FIELD128)),
        ("abstain must be True or False, got 2", lambda: OneHot((3,), abstain=2)),
        ("clients must be at least 1, got 0", lambda: field_for_sums(0)),
        ("noise must be at least 0, got -1", lambda: field_for_sums(1, -1)),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()
