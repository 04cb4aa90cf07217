"""Finite fields against arithmetic of polynomials in plain Python."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.errors import InvalidInputError
from fedtally.flp import FIELD16, FIELD64, FIELD128, Field

FIELDS = [Field(257, 3, 4), FIELD64, FIELD128, Field(FIELD64.prime, 7, 2), Field(17, 3)]


def slow_multiply(field: Field, a: list[int], b: list[int]) -> list[int]:
    """Return the product of polynomials, mod X^K - g, by the school's method."""
    product = [0] * (2 * field.degree)
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            product[i + j] += x * y
    low, high = product[: field.degree], product[field.degree :]
    return [(x + field.generator * y) % field.prime for x, y in zip(low, high, strict=True)]


@st.composite
def elements(draw: Any, count: int) -> tuple[Any, ...]:
    field = draw(st.sampled_from(FIELDS))
    edge = st.sampled_from([0, 1, field.prime - 1])
    word = st.one_of(edge, st.integers(0, field.prime - 1))
    one = st.lists(word, min_size=field.degree, max_size=field.degree)
    return field, *(draw(one) for _ in range(count))


@settings(max_examples=40)
@given(elements(2))
def test_products_are_those_of_polynomials(drawn):
    field, a, b = drawn
    product = field.multiply(field.element(a), field.element(b))
    assert product.dtype == field.dtype
    assert product.tolist() == slow_multiply(field, a, b)


@settings(max_examples=40)
@given(elements(1), st.integers(0, 40))
def test_powers_are_repeated_products(drawn, exponent):
    field, a = drawn
    expected = [1] + [0] * (field.degree - 1)
    for _ in range(exponent):
        expected = slow_multiply(field, expected, a)
    assert field.power(field.element(a), exponent).tolist() == expected
    assert field.powers(field.element(a), exponent + 1)[-1].tolist() == expected


@each_case("field", FIELDS)
def test_the_group_has_the_order_of_a_field(field):
    """In GF(p^K) every a has a^(p^K) = a, and X^K - g is irreducible if X has K conjugates."""
    x = field.element([0, 1] if field.degree > 1 else [5])
    conjugates = [field.power(x, field.prime**i).tolist() for i in range(field.degree + 1)]
    assert conjugates[-1] == conjugates[0]
    assert len({tuple(each) for each in conjugates}) == field.degree


def test_products_broadcast_their_leading_axes():
    field, rng = Field(257, 3, 4), np.random.default_rng(1)
    a, b = rng.integers(0, 257, (5, 1, 4)), rng.integers(0, 257, (3, 4))
    product = field.multiply(a, b)
    for i in range(5):
        for j in range(3):
            assert product[i, j].tolist() == slow_multiply(field, a[i, 0].tolist(), b[j].tolist())


@each_case(
    ("field", "dtype", "count"),
    [
        (Field(64513, 5, 9), np.int64, 4096),
        (Field(16770049, 11, 6), np.int64, 32),  # the most that double precision takes
        (Field(16770049, 11, 6), np.int64, 4096),  # the most that int64 takes
        (Field(4293918721, 19, 4), np.int64, 4096),  # halves of words
        (FIELD64, object, 3),
    ],
)
def test_sums_of_products_are_exact(field, dtype, count):
    """Of random words, and of the largest ones."""
    assert field.dtype == dtype
    rng, top = np.random.default_rng(2), field.prime - 1
    shape = (3, count, field.degree)
    random = field.words(rng.integers(0, min(top, 2**62), shape, endpoint=True))
    for a, b in ((random[:2], random[2]), (0 * random[:2] + top, 0 * random[2] + top)):
        products = field.multiply(a, b).astype(object).sum(-2) % field.prime
        assert field.dot(a, b).tolist() == products.tolist()
        words = a[..., 0]
        scaled = (words.astype(object)[..., None] * b.astype(object)).sum(-2) % field.prime
        assert field.mix(words, b).tolist() == scaled.tolist()
        one = slow_multiply(field, a[0, 0].tolist(), b[0].tolist())
        assert field.multiply(a[0, 0], b[0]).tolist() == one


@each_case("field", FIELDS)
def test_roots_of_unity(field):
    order = min(field.max_order, 64)
    roots = field.roots(order)
    assert len(set(roots)) == order
    assert all(pow(root, order, field.prime) == 1 for root in roots)
    assert roots[::2] == field.roots(order // 2)
    for bad in (0, 3, 2 * field.max_order):
        with pytest.raises(InvalidInputError, match=f"at most {field.max_order}, got {bad}"):
            field.roots(bad)


@each_case(
    ("prime", "generator", "degree"),
    [(257, 2, 1), (257, 3, 3), (17, 9, 2), (103, 5, 4), (64513, 5**3, 9)],
)
def test_reducible_fields_are_refused(prime, generator, degree):
    """2 and 9 are squares; 3 does not divide 256; 4 divides 4 and not 102; 125 is a cube."""
    with pytest.raises(InvalidInputError, match="must be irreducible"):
        Field(prime, generator, degree)


@each_case("field", [Field(257, 3), FIELD64])
def test_words_are_integers_mod_p(field):
    p = field.prime
    for values in ([-1, 0, p, 3 * p + 2], np.array([-1, 5], np.int8), np.array([2**64 - 1], "u8")):
        words = field.words(values)
        assert words.dtype == field.dtype
        assert words.tolist() == [int(value) % p for value in values]
    assert field.words([]).shape == (0,)
    for values in ([0.5], np.array([1.0]), ["12"]):
        with pytest.raises(InvalidInputError, match="words must be integers, got"):
            field.words(values)


@each_case("field", [Field(257, 3, 4), FIELD16, FIELD64, FIELD128])
def test_what_a_field_cannot_take_is_refused(field):
    large = 2**130
    assert field.constant([large, -1]).tolist() == [
        [value % field.prime] + [0] * (field.degree - 1) for value in (large, -1)
    ]
    for message, call in (
        ("words must be integers, got None", lambda: field.constant(None)),
        ("words must be integers, got 1.5", lambda: field.constant(np.array([1.5, 1]))),
        ("words must be integers, got 2.5", lambda: field.words([[7] * 999, [2.5] * 999])),
        (f"at most {field.degree} coefficients", lambda: field.element([1] * (field.degree + 1))),
        ("coefficients, got shape ()", lambda: field.element(1)),
        ("0 has no inverse", lambda: field.inverse(field.prime)),
        ("words must be integers, got 1.5", lambda: field.inverse(1.5)),
        ("words must be integers, got '8'", lambda: field.roots("8")),
        ("count must be at least 0, got -1", lambda: field.sample(bytes, -1)),
    ):
        with pytest.raises(InvalidInputError, match=re.escape(message)) as refused:
            call()
        assert len(str(refused.value)) < 120  # the value, not all that was given


@settings(max_examples=40)
@given(elements(2))
def test_bytes_are_little_endian_words(drawn):
    field, a, b = drawn
    data = field.encode(field.element([a, b]))
    assert data == b"".join(word.to_bytes(field.word_bytes, "little") for word in a + b)
    assert field.decode(data).tolist() == a + b


@each_case("field", FIELDS)
def test_words_outside_the_field_are_refused(field):
    good = bytes(field.word_bytes)
    last = good + (field.prime - 1).to_bytes(field.word_bytes, "little")
    for read in (field.decode, field.check):
        for wrong in (field.prime, 256**field.word_bytes - 1):
            with pytest.raises(InvalidInputError, match=f"must be below {field.prime}"):
                read(good + wrong.to_bytes(field.word_bytes, "little"))
        if field.word_bytes > 1:
            with pytest.raises(InvalidInputError, match=f"got {field.word_bytes + 1} bytes"):
                read(good + b"\0")
        read(last)
        read(b"")
    assert field.decode(last)[1] > 0


def test_a_sample_skips_what_is_not_below_the_prime():
    """5 bits count of each byte: 17 .. 31 are skipped, and 32 is 0."""
    field, data = Field(17, 3), bytes([16, 17, 31, 32, *[255] * 40, 5, 1, 2])
    asked: list[int] = []

    def stream(length: int) -> bytes:
        asked.append(length)
        return (data + bytes(range(40, 90)))[:length]

    assert field.sample(stream, 4).tolist() == [16, 0, 5, 1]
    assert len(asked) > 2  # where many were missed, more are read, from the same beginning
    assert field.sample(stream, 0).tolist() == []
