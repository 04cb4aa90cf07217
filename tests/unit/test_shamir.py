"""Secret sharing against a slow reference in Python integers, and decoding against the definition
of its radius."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.crypto import shamir
from fedtally.crypto.shamir import (
    MAX_SHARES,
    MAX_THRESHOLD,
    PRIME,
    SECRET_BYTES,
    SECRET_ELEMENTS,
    DecodingError,
    ShareError,
    combine,
    decode,
    from_bytes,
    random_elements,
    split,
    to_bytes,
)
from fedtally.errors import FedtallyError, InvalidInputError

U32 = npt.NDArray[np.uint32]
EDGES = (0, 1, 2, 0xFFFE, 0xFFFF, 0x10000, 0x7FFF0000, PRIME - 2, PRIME - 1)


def stream(seed: str) -> Callable[[int], bytes]:
    """A deterministic source of bytes."""
    counter = itertools.count()

    def read(count: int) -> bytes:
        return hashlib.shake_256(f"{seed}/{next(counter)}".encode()).digest(count)

    return read


def draw(seed: str, *shape: int) -> U32:
    return random_elements(int(np.prod(shape)), stream(seed)).reshape(shape)


# ---- the reference: what the specification says, in integers ----


def slow_split(
    secret: list[int], coefficients: list[list[int]], num_shares: int
) -> list[list[int]]:
    powers = [secret, *coefficients]
    return [
        [sum(row[j] * x**k for k, row in enumerate(powers)) % PRIME for j in range(len(secret))]
        for x in range(1, num_shares + 1)
    ]


def slow_combine(points: list[int], shares: list[list[int]]) -> list[int]:
    """Lagrange in rational numbers, so that nothing but the last step knows of the field."""
    weights = []
    for i in points:
        weight = Fraction(1)
        for j in points:
            if j != i:
                weight *= Fraction(j, j - i)
        weights.append(weight.numerator * pow(weight.denominator, -1, PRIME))
    return [
        sum(w * row[j] for w, row in zip(weights, shares, strict=True)) % PRIME
        for j in range(len(shares[0]))
    ]


def solve(rows: list[list[int]]) -> list[int] | None:
    """A solution of linear equations over the field (the last column is the right side), or
    None."""
    rows = [row[:] for row in rows]
    pivots: list[int] = []
    for column in range(len(rows[0]) - 1):
        at = next((r for r in range(len(pivots), len(rows)) if rows[r][column]), None)
        if at is None:
            continue
        here = len(pivots)
        rows[here], rows[at] = rows[at], rows[here]
        inverse = pow(rows[here][column], -1, PRIME)
        rows[here] = [value * inverse % PRIME for value in rows[here]]
        for r, row in enumerate(rows):
            if r != here and row[column]:
                rows[r] = [
                    (a - row[column] * b) % PRIME for a, b in zip(row, rows[here], strict=True)
                ]
        pivots.append(column)
    if any(row[-1] for row in rows[len(pivots) :]):
        return None
    solution = [0] * (len(rows[0]) - 1)
    for row, column in zip(rows, pivots, strict=False):
        solution[column] = row[-1]
    return solution


def slow_decode(
    points: list[int], shares: list[list[int]], threshold: int
) -> tuple[list[int], list[int]] | None:
    """Berlekamp and Welch by the book, one element at a time: Q(x_i) = y_i E(x_i), E monic, deg Q <
    t + deg E."""
    radius = (len(points) - threshold) // 2
    secret, wrong = [], set()
    for column in zip(*shares, strict=True):
        for errors in range(radius, -1, -1):
            equations = [
                [pow(x, k, PRIME) for k in range(threshold + errors)]
                + [-y * pow(x, k, PRIME) % PRIME for k in range(errors)]
                + [y * pow(x, errors, PRIME) % PRIME]
                for x, y in zip(points, column, strict=True)
            ]
            if (solution := solve(equations)) is not None:
                break
        else:
            return None
        product, locator = solution[: threshold + errors], [*solution[threshold + errors :], 1]
        quotient = [0] * threshold
        for k in range(threshold - 1, -1, -1):
            quotient[k] = product[k + errors]
            for e, c in enumerate(locator):
                product[k + e] = (product[k + e] - quotient[k] * c) % PRIME
        if any(product):
            return None
        secret.append(quotient[0])
        wrong |= {
            x
            for x, y in zip(points, column, strict=True)
            if sum(c * pow(x, k, PRIME) for k, c in enumerate(quotient)) % PRIME != y
        }
    return (secret, sorted(wrong)) if len(wrong) <= radius else None


# ---- known answers ----


def test_known_answers() -> None:
    """f(z) = 5 + 3 z + 2 z^2, and one whose values wrap: f(z) = -1 - z."""
    secret, coefficients = (
        np.array([5, PRIME - 1], np.uint32),
        np.array([[3, PRIME - 1], [2, 0]], np.uint32),
    )
    shares = split(secret, coefficients, 4)
    assert shares.tolist() == [[10, PRIME - 2], [19, PRIME - 3], [32, PRIME - 4], [49, PRIME - 5]]
    assert shares.dtype == np.uint32
    assert combine([1, 2, 4], shares[[0, 1, 3]]).tolist() == [5, PRIME - 1]


def test_the_sizes_of_the_protocol() -> None:
    assert (SECRET_ELEMENTS, SECRET_BYTES, PRIME) == (5, 20, 2**31 - 1)
    secret = random_elements(SECRET_ELEMENTS, stream("one"))
    assert len(to_bytes(secret)) == SECRET_BYTES


# ---- randomness and encoding ----


def test_the_largest_value_is_skipped_and_the_rest_keeps_its_order() -> None:
    words = [7, PRIME, 1 << 31 | 8, 0xFFFFFFFF, 9, 10, PRIME - 1, 11]
    data = b"".join(word.to_bytes(4, "little") for word in words)
    position, asked = 0, []

    def read(count: int) -> bytes:
        nonlocal position
        asked.append(count)
        position += count
        return data[position - count : position]

    assert random_elements(5, read).tolist() == [7, 8, 9, 10, PRIME - 1]
    assert asked == [20, 8]  # as one reading of the stream


def test_random_elements_are_uniform() -> None:
    """Each of 31 bits is one in half of 20,000 draws: within 5 standard deviations, of 71."""
    drawn = random_elements(20_000, stream("bits"))
    ones = [int((drawn >> bit & 1).sum()) for bit in range(32)]
    assert all(abs(count - 10_000) < 355 for count in ones[:31])
    assert ones[31] == 0


@pytest.mark.parametrize("returned", [b"", bytes(7), bytes(9), "12345678", None, bytearray(8)])
def test_a_source_that_returns_something_else_is_refused(returned: Any) -> None:
    with pytest.raises(InvalidInputError, match="random must return the 8 bytes"):
        random_elements(2, lambda count: returned)


@given(st.lists(st.one_of(st.sampled_from(EDGES), st.integers(0, PRIME - 1)), max_size=12))
def test_the_encoding_is_little_endian_u32(values: list[int]) -> None:
    data = to_bytes(np.array(values, np.uint32))
    assert data == b"".join(value.to_bytes(4, "little") for value in values)
    for form in (data, bytearray(data), memoryview(data)):
        assert from_bytes(form).tolist() == values


@pytest.mark.parametrize("value", [PRIME, PRIME + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("place", range(3))
def test_an_element_outside_the_field_is_refused_everywhere(value: int, place: int) -> None:
    bad, good = np.ones(3, np.uint32), np.ones((2, 3), np.uint32)
    bad[place] = value
    data = b"".join(int(word).to_bytes(4, "little") for word in bad)
    with pytest.raises(ShareError, match="below 2\\^31 - 1") as failure:
        from_bytes(data)
    assert str(value) not in str(failure.value)  # it may be a secret
    calls: list[Callable[[], Any]] = [
        lambda: to_bytes(bad),
        lambda: split(bad, good, 4),
        lambda: split(good[0], np.stack([good[0], bad]), 4),
        lambda: combine([1, 2, 3], np.stack([*good, bad])),
        lambda: decode([1, 2, 3], np.stack([*good, bad]), 2),
    ]
    for call in calls:
        with pytest.raises(ShareError, match="below 2\\^31 - 1"):
            call()


@pytest.mark.parametrize("data", [b"123", bytes(21), "1234", [1, 2], None])
def test_an_encoding_of_another_length_or_type_is_refused(data: Any) -> None:
    with pytest.raises(ShareError, match="must be bytes, 4 for each"):
        from_bytes(data)


# ---- split and combine ----


@given(st.integers(2, 12), st.integers(0, 10), st.integers(1, 6), st.data())
def test_split_matches_the_reference(
    threshold: int, spare: int, m: int, data: st.DataObject
) -> None:
    element = st.one_of(st.sampled_from(EDGES), st.integers(0, PRIME - 1))
    vector = st.lists(element, min_size=m, max_size=m)
    secret = data.draw(vector)
    coefficients = data.draw(st.lists(vector, min_size=threshold - 1, max_size=threshold - 1))
    shares = split(
        np.array(secret, np.uint32), np.array(coefficients, np.uint32), threshold + spare
    )
    assert shares.tolist() == slow_split(secret, coefficients, threshold + spare)
    chosen = sorted(data.draw(st.permutations(range(threshold + spare)))[:threshold])
    points = [row + 1 for row in chosen]
    assert (
        combine(points, shares[chosen]).tolist()
        == secret
        == slow_combine(points, shares[chosen].tolist())
    )


@pytest.mark.promise
@given(st.integers(1, 12), st.integers(1, 40), st.data())
def test_combine_matches_the_reference(threshold: int, owners: int, data: st.DataObject) -> None:
    """Any points and shares, for every owner its own or one set for all, in batches of a few
    owners."""
    point = st.one_of(
        st.integers(1, 20), st.integers(MAX_SHARES - 20, MAX_SHARES), st.integers(1, MAX_SHARES)
    )
    rows = st.lists(point, min_size=threshold, max_size=threshold, unique=True).map(sorted)
    points = data.draw(st.lists(rows, min_size=owners, max_size=owners))
    shares = draw(f"shares/{threshold}/{owners}", owners, threshold, 2)
    edges = data.draw(st.lists(st.sampled_from(EDGES), min_size=threshold, max_size=threshold))
    shares[0, :, 0] = edges
    expected = [slow_combine(at, rows) for at, rows in zip(points, shares.tolist(), strict=True)]
    for batch in (1, 30, 1 << 14):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shamir, "_BATCH", batch)
            assert combine(points, shares).tolist() == expected
            same = [slow_combine(points[0], rows) for rows in shares.tolist()]
            assert combine(points[0], shares).tolist() == same


@pytest.mark.parametrize(
    ("threshold", "num_shares"), [(2, 3), (31, 61), (53, 100), (299, 523), (526, 1000)]
)
def test_round_trips_of_realistic_sizes(threshold: int, num_shares: int) -> None:
    secret, coefficients = draw("secret", 10), draw("coefficients", threshold - 1, 10)
    shares = split(secret, coefficients, num_shares)
    rng = np.random.default_rng(threshold)
    points = np.sort([rng.permutation(num_shares)[:threshold] + 1 for _ in range(5)], axis=1)
    assert (combine(points, shares[points - 1]) == secret).all()
    row = [int(v) for v in coefficients[:, 3]]
    last = (
        int(secret[3]) + sum(c * pow(num_shares, k, PRIME) for k, c in enumerate(row, 1))
    ) % PRIME
    assert int(shares[-1, 3]) == last


def test_blocks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    secret, coefficients = draw("secret", 3), draw("coefficients", 6, 3)
    whole = split(secret, coefficients, 40)
    for block in (1, 7, 20, 70, 279, 280, 281):
        monkeypatch.setattr(shamir, "_BLOCK", block)
        assert np.array_equal(split(secret, coefficients, 40), whole)


def test_fewer_shares_agree_with_every_secret() -> None:
    """t - 1 shares and another secret: the polynomial through them is as likely as the one that was
    used."""
    secret, other = draw("secret", 5), draw("other", 5)
    coefficients = draw("coefficients", 2, 5)
    seen = split(secret, coefficients, 3)[:2].astype(object)
    # f = other + a z + b z^2 with f(1) and f(2) as seen: solve for a and b.
    first, second = seen[0] - other.astype(object), seen[1] - other.astype(object)
    b = (second - 2 * first) * pow(2, -1, PRIME) % PRIME
    a = (first - b) % PRIME
    explained = split(other, np.array([a, b], object).astype(np.uint32), 3)
    assert explained[:2].tolist() == seen.tolist()


def test_the_product_is_exact_at_the_largest_threshold() -> None:
    """The longest inner length, at the largest elements, at the largest halves, and at random."""
    rng = np.random.default_rng(5)
    for value in (PRIME - 1, 0x7FFEFFFF, 0x7FFF0000):
        left, right = np.full((2, MAX_THRESHOLD), value), np.full((MAX_THRESHOLD, 3), value)
        product = shamir._product(shamir._halves(left, 0), shamir._halves(right, 1))
        assert set(product.ravel().tolist()) == {MAX_THRESHOLD * value * value % PRIME}
    left, right = (
        rng.integers(PRIME, size=(3, MAX_THRESHOLD)),
        rng.integers(PRIME, size=(MAX_THRESHOLD, 2)),
    )
    product = shamir._product(shamir._halves(left, 0), shamir._halves(right, 1))
    exact = (left.astype(object) @ right.astype(object)) % PRIME
    assert product.tolist() == exact.tolist()


def test_the_bounds_of_the_proof() -> None:
    """The figures in the docstring of `_product`, for halves of 16 and 15 bits at their largest."""
    t, low_half, high_half = MAX_THRESHOLD, 2**16 - 1, 2**15 - 1
    low, mid, high = t * low_half**2, 2 * t * low_half * high_half, t * high_half**2
    assert low == 2**47 - 2**32 + 2**15
    assert mid == 2**47 - 3 * 2**31 + 2**16
    assert high == 2**45 - 2**31 + 2**15
    assert max(low, mid, high) < 2**53
    # twice the length would not do
    assert low + (mid << 16) + 2 * high < 2**63 < 2 * low + 2 * (mid << 16)


def test_the_largest_values_are_reduced() -> None:
    values = [0, 1, PRIME - 1, PRIME, PRIME + 1, 2 * PRIME, 2**33, 2**62, 2**63 - 2**31, 2**63 - 1]
    values += [k * PRIME + d for k in (2**31, 2**32 - 1) for d in (-1, 0, 1)]
    assert shamir._reduce(np.array(values)).tolist() == [value % PRIME for value in values]


@given(st.lists(st.integers(1, PRIME - 1), min_size=1, max_size=70))
def test_inverses(values: list[int]) -> None:
    inverses = shamir._inverse(np.array(values)).tolist()
    assert inverses == [pow(value, -1, PRIME) for value in values]


def test_a_kept_matrix_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        shamir._powers(1, 3, 2)[0, 0] = 5.0


# ---- decoding ----


def corrupted(shares: U32, rows: list[int], seed: str, elements: int | None = None) -> U32:
    """Change some shares: all elements, or one that moves from share to share."""
    changed = shares.copy()
    for position, row in enumerate(rows):
        if elements is None:
            changed[row] = draw(f"{seed}/{row}", shares.shape[1])
        else:
            column = position % elements
            changed[row, column] = (int(changed[row, column]) + 1 + position) % PRIME
    return changed


@settings(max_examples=60)
@given(st.integers(1, 5), st.integers(0, 7), st.data())
def test_decode_matches_berlekamp_and_welch(
    threshold: int, spare: int, data: st.DataObject
) -> None:
    """Up to two errors more than can be decoded, in all elements or in one of each share, at
    scattered points."""
    n, m = threshold + spare, 3
    points = sorted(data.draw(st.lists(st.integers(1, 30), min_size=n, max_size=n, unique=True)))
    shares = np.array(
        slow_split([5, 6, PRIME - 7], draw("c", threshold - 1, m).tolist(), 30), np.uint32
    )
    shares = shares[np.array(points) - 1]
    errors = data.draw(st.integers(0, min(n, spare // 2 + 2)))
    rows = data.draw(st.permutations(range(n)))[:errors]
    received = corrupted(shares, rows, "bad", data.draw(st.sampled_from([None, 1, m])))
    expected = slow_decode(points, received.tolist(), threshold)
    if expected is None:
        with pytest.raises(DecodingError, match=f"more than {spare // 2} of {n} shares are wrong"):
            decode(points, received, threshold)
    else:
        secret, wrong = decode(points, received, threshold)
        assert (secret.tolist(), wrong.tolist()) == expected
    if errors <= spare // 2:
        assert expected == ([5, 6, PRIME - 7], sorted(points[row] for row in rows))


@pytest.mark.parametrize(
    ("threshold", "n"), [(2, 4), (4, 5), (6, 13), (27, 49), (29, 81), (300, 420)]
)
@pytest.mark.parametrize("elements", [None, 1, 5])
def test_every_number_of_liars_up_to_the_radius(
    threshold: int, n: int, elements: int | None
) -> None:
    secret, coefficients = draw("secret", 5), draw("coefficients", threshold - 1, 5)
    shares = split(secret, coefficients, n)
    radius = (n - threshold) // 2
    order = np.random.default_rng(n).permutation(n).tolist()
    for errors in sorted({min(1, radius), radius // 2, max(0, radius - 1), radius}):
        received = corrupted(shares, order[:errors], "bad", elements)
        recovered, wrong = decode(range(1, n + 1), received, threshold)
        assert recovered.tolist() == secret.tolist()
        assert wrong.tolist() == sorted(row + 1 for row in order[:errors])
    with pytest.raises(DecodingError, match=f"more than {radius} of {n} shares"):
        decode(range(1, n + 1), corrupted(shares, order[: radius + 1], "bad", elements), threshold)


def test_liars_who_agree_with_each_other_beyond_the_radius_are_believed() -> None:
    """What no decoder can tell, and why a reconstruction is checked against a commitment: most of
    the shares win."""
    mine, theirs = split(draw("a", 2), draw("b", 2, 2), 9), split(draw("c", 2), draw("d", 2, 2), 9)
    mine[:6] = theirs[:6]
    recovered, wrong = decode(range(1, 10), mine, 3)
    assert recovered.tolist() == draw("c", 2).tolist() and wrong.tolist() == [7, 8, 9]
    mine[0] = split(draw("a", 2), draw("b", 2, 2), 1 + 2)[0]
    with pytest.raises(DecodingError):
        decode(range(1, 10), mine, 3)


def test_as_many_shares_as_needed_cannot_be_checked() -> None:
    shares = split(draw("a", 2), draw("b", 2, 2), 3)
    shares[1] = 0
    recovered, wrong = decode([1, 2, 3], shares, 3)
    assert recovered.tolist() == combine([1, 2, 3], shares).tolist() != draw("a", 2).tolist()
    assert wrong.size == 0


def test_syndromes_do_not_depend_on_the_secret() -> None:
    """Decoding branches on them alone: they are those of the errors."""
    at, errors = np.arange(1, 10), np.zeros((9, 2), np.int64)
    errors[[2, 5]] = [[3, 0], [PRIME - 1, 77]]
    seen = set()
    for seed in "abc":
        shares = split(draw(seed, 2), draw(seed + "c", 3, 2), 9)
        received = ((shares + errors) % PRIME).astype(np.uint32)
        seen.add(shamir._syndromes(at, received, 4).tobytes())
    assert seen == {shamir._syndromes(at, errors.astype(np.uint32), 4).tobytes()}


# ---- bad arguments ----


def test_bad_thresholds_and_shapes() -> None:
    def ones(*shape: int) -> U32:
        return np.ones(shape, np.uint32)

    cases: list[tuple[str, Callable[[], Any]]] = [
        ("threshold must be at least 2, got 1", lambda: split(ones(2), ones(0, 2), 3)),
        (
            "threshold must be at most 32768, got 32769",
            lambda: split(ones(1), ones(MAX_THRESHOLD, 1), MAX_SHARES),
        ),
        ("num_shares must be at least 3, got 2", lambda: split(ones(2), ones(2, 2), 2)),
        (
            "num_shares must be at most 65535, got 65536",
            lambda: split(ones(2), ones(2, 2), MAX_SHARES + 1),
        ),
        ("secret must be \\[m\\]", lambda: split(ones(2), ones(2, 3), 3)),
        ("secret must be \\[m\\]", lambda: split(ones(2, 2), ones(2, 2), 3)),
        ("secret must be \\[m\\]", lambda: split(ones(2), ones(2), 3)),
        ("secret must be \\[m\\]", lambda: split(ones(0), ones(2, 0), 3)),
        (
            "secret must be an array of uint32, got int64",
            lambda: split(ones(2).astype(np.int64), ones(2, 2), 3),
        ),
        ("secret must be an array of uint32, got list", lambda: split([1, 2], ones(2, 2), 3)),  # type: ignore[arg-type]
        ("points must be \\[t\\] or", lambda: combine([1, 2, 3], ones(1, 2, 5))),
        ("points must be \\[t\\] or", lambda: combine([[1, 2]] * 3, ones(2, 2, 5))),
        ("points must be \\[t\\] or", lambda: combine([1, 2], ones(2))),
        ("one owner need points \\[t\\], got \\(1, 2\\)", lambda: combine([[1, 2]], ones(2, 5))),
        (
            "shares must be at most 32768",
            lambda: combine(range(1, MAX_THRESHOLD + 2), ones(MAX_THRESHOLD + 1, 1)),
        ),
        ("points must be \\[n\\]", lambda: decode([[1, 2]], ones(1, 2), 1)),
        ("points must be \\[n\\]", lambda: decode([1, 2], ones(3, 2), 1)),
        ("points must be \\[n\\]", lambda: decode([1, 2], ones(2), 1)),
        ("threshold must be at least 1, got 0", lambda: decode([1, 2], ones(2, 1), 0)),
        ("threshold must be at most 2, got 3", lambda: decode([1, 2], ones(2, 1), 3)),
        ("count must be at least 0, got -1", lambda: random_elements(-1, stream("x"))),
    ]
    for message, call in cases:
        with pytest.raises(InvalidInputError, match=message):
            call()


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([0, 1], "strictly ascending"),
        ([-1, 1], "strictly ascending"),
        ([1, 1], "strictly ascending"),
        ([2, 1], "strictly ascending"),
        ([1, MAX_SHARES + 1], "strictly ascending"),
        (np.array([1, 2**63], np.uint64), "strictly ascending"),
        ([1, PRIME + 1], "strictly ascending"),
        ([1.0, 2.0], "must be integers"),
        ([True, False], "must be integers"),
        ([], "must be integers"),
        ([[[1, 2]]], "must be integers"),
        (["1", "2"], "must be integers"),
    ],
)
def test_bad_points(points: Any, message: str) -> None:
    shares = np.ones((2, 5), np.uint32)
    for call in (lambda: combine(points, shares), lambda: decode(points, shares, 2)):
        with pytest.raises(InvalidInputError, match=message):
            call()


def test_the_self_test_fails_on_an_inexact_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a library that multiplies in single precision, or that is wrong in a corner of the
    matrix."""
    exact = shamir._product

    def corner(left: Any, right: Any) -> Any:
        product = exact(left, right)
        product[-1, -1] ^= 1
        return product

    shamir._self_test()
    for product in (lambda a, b: exact(a.astype(np.float32), b.astype(np.float32)), corner):
        monkeypatch.setattr(shamir, "_product", product)
        with pytest.raises(FedtallyError, match="does not multiply matrices of integers exactly"):
            shamir._self_test()
