"""The compiled steps of proofs against NumPy's, bit by bit, at every level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.errors import InvalidInputError
from fedtally.flp import (
    FIELD16,
    FIELD24,
    FIELD32,
    Field,
    FullyLinearProof,
    Histogram,
    OneHot,
)
from fedtally.kernels import available_backends
from fedtally.kernels import linear_proofs as kernels

REAL = [FIELD16, FIELD24, FIELD32]
SMALL = [Field(257, 3, 4), Field(97, 5, 6), Field(97, 5, 9)]
FIELDS = REAL + SMALL
PRIMES = [3, 17, 257, 64513, 16770049, 4293918721, 2**32 - 5]
SEEDS = st.integers(0, 2**32)
LEADS = st.sampled_from([(), (1,), (3,), (2, 2), (0,)])


@pytest.fixture(params=[name for name in available_backends() if name != "numpy"])
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a test with each level of the compiled kernels: NumPy is what they are compared with."""
    name = str(request.param)
    monkeypatch.setenv("FEDTALLY_KERNELS", name)
    return name


def by_numpy(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what NumPy makes of the same call."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDTALLY_KERNELS", "numpy")
        return function(*arguments)


def draw(rng: np.random.Generator, field: Field, shape: tuple[int, ...], kind: str) -> Any:
    """Return words: of all values, or the largest alone, where sums are as large as they get."""
    if kind == "largest":
        return np.full(shape, field.prime - 1)
    return rng.integers(0, field.prime, shape)


KINDS = st.sampled_from(["uniform", "largest"])


# ---- words ----


@given(
    st.sampled_from(PRIMES),
    st.lists(
        st.one_of(
            st.integers(-(2**63), 2**63 - 1),
            st.sampled_from([-(2**63), 2**63 - 1, -(2**32), 2**32, -1, 0]),
            st.builds(
                lambda p, i, j: i * p + j,
                st.sampled_from(PRIMES),
                st.integers(-9, 9),
                st.integers(-1, 1),
            ),
        ),
        max_size=40,
    ),
)
def test_words_are_reduced_as_python_does(compiled: str, prime: int, words: list[int]) -> None:
    reduced = kernels.reduce_words(compiled, np.array(words, np.int64), prime)
    assert reduced.tolist() == [word % prime for word in words]


@given(SEEDS, st.sampled_from(PRIMES), st.integers(1, 4), st.integers(0, 40), st.integers(0, 50))
def test_words_are_read_as_python_does(
    compiled: str, seed: int, prime: int, word_bytes: int, integers: int, count: int
) -> None:
    data = np.random.default_rng(seed).bytes(integers * word_bytes)
    bits = min(prime.bit_length() + seed % 2, 8 * word_bytes)
    parts = [data[i : i + word_bytes] for i in range(0, len(data), word_bytes)]
    read = [int.from_bytes(part, "little") % 2**bits for part in parts]
    words, expected = np.empty(count, np.int64), [word for word in read if word < prime][:count]
    assert kernels.read_words(word_bytes, bits, prime, data, words) == len(expected)
    assert words[: len(expected)].tolist() == expected


@each_case("field", FIELDS)
@each_case("count", [255, 256, 257, 1000])
def test_fields_use_the_kernels_of_words(backend: str, field: Field, count: int) -> None:
    rng = np.random.default_rng(count)
    words = rng.integers(-(2**63), 2**63 - 1, (count, 1))
    assert field.reduce(words).tolist() == [[word % field.prime] for [word] in words.tolist()]
    data = rng.bytes(3 * count * field.word_bytes)
    sample = field.sample(lambda length: data[:length], count)
    assert sample.tolist() == by_numpy(field.sample, lambda n: data[:n], count).tolist()
    assert sample.dtype == np.int64 and len(sample) == count
    assert field.decode(field.encode(sample)).tolist() == sample.tolist()
    for at in (0, count // 2, count - 1):
        wrong = sample.copy()
        wrong[at] = min(field.prime, 256**field.word_bytes - 1)
        with pytest.raises(InvalidInputError, match=f"every word must be below {field.prime}"):
            field.decode(field.encode(wrong))


# ---- the circuit of a sketch ----


@settings(max_examples=20)
@given(
    SEEDS,
    st.sampled_from(SMALL),
    st.lists(st.integers(1, 90), min_size=1, max_size=19),
    st.booleans(),
    st.integers(1, 3),
    LEADS,
    KINDS,
)
def test_inputs_of_sketches_match_numpy(
    compiled: str,
    seed: int,
    small: Field,
    widths: list[int],
    abstain: bool,
    shares: int,
    lead: tuple[int, ...],
    kind: str,
) -> None:
    rng = np.random.default_rng(seed)
    for field in (*REAL, small):
        circuit = OneHot(tuple(widths), field, abstain, checksum=seed % 3)
        words = draw(rng, field, (*lead, circuit.length), kind)
        joint = draw(rng, field, (*lead, 3, field.degree), kind)
        if seed % 2:
            joint = draw(rng, field, (3, field.degree), kind)  # for all reports
        inputs = circuit.inputs(words, joint, shares)
        assert inputs.dtype == np.int64
        assert np.array_equal(inputs, by_numpy(circuit.inputs, words, joint, shares))


@each_case("field", [FIELD16, FIELD24, FIELD32])
@each_case(("width", "side"), [(8192, 4096), (4096, 1), (10_000, 3)])
def test_the_longest_sums_do_not_overflow(
    compiled: str, monkeypatch: pytest.MonkeyPatch, field: Field, width: int, side: int
) -> None:
    """4,096 terms of one sum, all as large as they get."""
    monkeypatch.setattr(OneHot, "grid", side)
    circuit = OneHot((width, 5), field)
    words = np.full(circuit.length, field.prime - 1)
    joint = np.full((3, field.degree), field.prime - 1)
    inputs = circuit.inputs(words, joint, 1)
    assert np.array_equal(inputs, by_numpy(circuit.inputs, words, joint, 1))


@each_case("field", [FIELD16, FIELD32])
def test_words_that_are_not_reduced_are_words_all_the_same(backend: str, field: Field) -> None:
    circuit, rng = OneHot((9,) * 3, field, abstain=True), np.random.default_rng(3)
    proof, p = FullyLinearProof(circuit), field.prime
    words, joint = (
        draw(rng, field, (28,), "uniform"),
        draw(rng, field, (3, field.degree), "uniform"),
    )
    seeds = draw(rng, field, (proof.prove_random_length, field.degree), "uniform")
    random = draw(rng, field, (proof.query_random_length, field.degree), "uniform")
    sent = proof.prove(words, seeds, joint)
    verifier = proof.query(words, sent, random, joint, 2)
    for place, more in ((0, p), (27, p), (-1, -p), (5, 2 * p), (27, -p)):
        other = words.copy()
        other[place] += more
        assert np.array_equal(circuit.inputs(other, joint, 2), circuit.inputs(words, joint, 2))
    other = joint.copy()
    other[1, -1] -= p
    assert np.array_equal(circuit.inputs(words, other, 2), circuit.inputs(words, joint, 2))
    assert np.array_equal(field.reduce(proof.prove(words, seeds - p, joint)), sent)
    assert np.array_equal(proof.query(words, sent - p, random, joint, 2), verifier)
    assert np.array_equal(proof.query(words, sent, random + p, joint, 2), verifier)


# ---- the proof ----


@settings(max_examples=10)
@given(
    SEEDS,
    st.sampled_from(SMALL),
    st.lists(st.integers(1, 9), min_size=1, max_size=40),
    st.booleans(),
    LEADS,
    KINDS,
)
def test_proofs_match_numpy(
    compiled: str,
    seed: int,
    small: Field,
    widths: list[int],
    abstain: bool,
    lead: tuple[int, ...],
    kind: str,
) -> None:
    """Of any shares and any proof, fitting or not."""
    rng = np.random.default_rng(seed)
    for field in (*REAL, small):
        circuit = OneHot(tuple(widths), field, abstain)
        proof = FullyLinearProof(circuit)
        words = draw(rng, field, (*lead, circuit.length), kind)
        joint = draw(rng, field, (*lead, 3, field.degree), kind)
        seeds = draw(rng, field, (*lead, proof.prove_random_length, field.degree), kind)
        sent = proof.prove(words, seeds, joint)
        assert np.array_equal(sent, by_numpy(proof.prove, words, seeds, joint))
        any_proof = draw(rng, field, sent.shape, kind)
        shared = lead if seed % 2 else ()  # one point for all reports
        random = rng.integers(0, field.prime, (*shared, proof.query_random_length, field.degree))
        for given_proof in (sent, any_proof):
            arguments = (words, given_proof, random, joint, 2)
            verifier = proof.query(*arguments)
            assert verifier.dtype == np.int64
            assert np.array_equal(verifier, by_numpy(proof.query, *arguments))


class SmallHistogram(Histogram):
    field = FIELD32  # type: ignore[misc]


@each_case(("buckets", "chunk"), [(1, 1), (40, 7), (70, 1), (9, 20)])
def test_other_circuits_take_the_same_steps(backend: str, buckets: int, chunk: int) -> None:
    circuit, rng = SmallHistogram(buckets, chunk), np.random.default_rng(buckets)
    proof, field = FullyLinearProof(circuit), FIELD32
    words = circuit.encode(buckets - 1)
    joint, seeds, random = (
        draw(rng, field, (count, field.degree), "uniform")
        for count in (circuit.joint_length, proof.prove_random_length, proof.query_random_length)
    )
    sent = proof.prove(words, seeds, joint)
    verifier = proof.query(words, sent, random, joint, 1)
    assert proof.decide(verifier)
    assert np.array_equal(sent, by_numpy(proof.prove, words, seeds, joint))
    assert np.array_equal(verifier, by_numpy(proof.query, words, sent, random, joint, 1))


def test_where_there_are_kernels(backend: str) -> None:
    level = None if backend == "numpy" else backend
    for field in FIELDS:
        assert kernels.compiles(field.extension)
        assert kernels.level_for(field.prime) == level
    assert kernels.level_for(2**32 + 15) is None
    # degree 2 is not compiled; sums of 4096 products could overflow; p has 33 bits
    for field in ((257, 3, 2), (16777729, 3, 9), (FIELD32.prime, 19, 6), (2**32 + 15, 3, 4)):
        assert not kernels.compiles(kernels.Extension(*field))
        with pytest.raises(InvalidInputError, match="there are no kernels for"):
            kernels.SketchInputs(kernels.Extension(*field), [3], 2, 3, False)


def test_arrays_that_do_not_fit_are_refused() -> None:
    """The kernels look at no bounds: with other shapes they would read beyond an array."""
    field, zeros = FIELD16.extension, FIELD16.zeros
    square, basis = np.zeros((4, 4), np.int64), np.zeros((8, 7), np.int64)
    sketch = kernels.SketchInputs(field, [4, 3], 2, 8, True)
    gadget = kernels.Gadget(field, 2, square, square, basis)
    words, inputs, seeds, sent, point = (
        np.zeros(8, np.int64),
        zeros((3, 4)),
        zeros((4,)),
        zeros((11,)),
        zeros(()),
    )
    calls: list[Callable[[], Any]] = [
        lambda: sketch.compute("v3", words[:7], zeros((3,)), 1),
        lambda: sketch.compute("v3", words, zeros((2,)), 1),
        lambda: kernels.Gadget(field, 2, square[:, :3], square, basis),
        lambda: kernels.Gadget(field, 2, square, square[:3], basis),
        lambda: kernels.Gadget(field, 2, square, square, basis[1:]),
        lambda: gadget.prove("v3", inputs, seeds[1:]),
        lambda: gadget.prove("v3", zeros((4, 4)), seeds),
        lambda: gadget.prove("v3", zeros((0, 4)), seeds),
        lambda: gadget.prove("v3", zeros((3, 6)), seeds),
        lambda: gadget.query("v3", inputs, sent[1:], point),
        lambda: gadget.query("v3", inputs, sent, point[1:]),
        lambda: gadget.query("v3", inputs[..., 1:], sent, point),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError, match="do not fit"):
            call()
    for message, call in (
        ("4 nodes and 4097 products", lambda: kernels.Gadget(field, 4097, square, square, basis)),
        ("6 slots do not hold", lambda: kernels.SketchInputs(field, [4, 3], 2, 6, True)),
        ("got 0", lambda: kernels.SketchInputs(field, [4, 3], 0, 8, True)),
        ("rows of 3 .. 8193", lambda: kernels.SketchInputs(field, [8193, 3], 2, 8, True)),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()


@each_case("rows", [3, 4096])
def test_circuits_that_are_too_large_for_the_kernels_are_proven_by_numpy(
    backend: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneHot, "chunk", max(1, rows * 3 // 2))
    circuit, rng = OneHot((1,) * rows, FIELD16), np.random.default_rng(rows)
    proof = FullyLinearProof(circuit)
    words = circuit.encode(np.ones(rows, np.int64))
    joint, seeds, random = (
        draw(rng, FIELD16, (count, 9), "uniform")
        for count in (3, proof.prove_random_length, proof.query_random_length)
    )
    sent = proof.prove(words, seeds, joint)
    assert proof.decide(proof.query(words, sent, random, joint, 1))
    assert (proof._compiled is None) == (rows == 4096)
