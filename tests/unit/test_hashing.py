"""From a seed to tables, words, locations and signs, against a reading of the definition in plain
Python."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.sketch import hashing

SEEDS = st.binary(min_size=32, max_size=32)
IDS = st.one_of(
    st.integers(0, 300), st.integers(0, 2**64 - 1), st.integers(0, 7).map(lambda c: 1 << (8 * c))
)


@given(SEEDS, st.integers(1, 5), st.integers(0, 2**32 - 1), st.integers(0, 255))
def test_tables_by_definition(seed: bytes, rows: int, group: int, purpose: int) -> None:
    tables = hashing.tabulation_tables(seed, rows, group, purpose)
    assert tables.dtype == np.uint32 and tables.shape == (rows, 8, 256)
    for row in range(rows):
        label = b"fedtally/1/tabulation\0" + seed + bytes([purpose])
        raw = hashlib.shake_256(
            label + row.to_bytes(4, "little") + group.to_bytes(4, "little")
        ).digest(8192)
        assert tables[row].astype("<u4").tobytes() == raw


def test_tables_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        hashing.tabulation_tables(bytes(32), 1)[0, 0, 0] = 1


def test_more_rows_extend_fewer_rows() -> None:
    assert np.array_equal(
        hashing.tabulation_tables(bytes(32), 7)[:3], hashing.tabulation_tables(bytes(32), 3)
    )


@given(
    SEEDS,
    st.lists(st.integers(0, 2**20), min_size=1, max_size=20, unique=True).map(sorted),
    st.lists(IDS, min_size=1, max_size=20),
)
def test_tables_of_chosen_batches_have_their_signs_side_by_side(
    seed: bytes, batches: list[int], ids: list[int]
) -> None:
    asked = np.array(ids, np.uint64)
    first = reference.hash_words(hashing.tabulation_tables(seed, 2), asked)
    packed = [reference.hash_words(t, asked) for t in hashing.tables_of_batches(seed, 2, batches)]
    for words in packed:
        assert np.array_equal(words >> 8, first >> 8)
    for place, batch in enumerate(batches):
        own = reference.hash_words(hashing.tabulation_tables(seed, 2, batch // 8), asked)
        assert np.array_equal(
            reference.signs(packed[place // 8], place % 8), reference.signs(own, batch % 8)
        )


@given(SEEDS, st.lists(IDS, max_size=20), st.integers(1, 2**24))
def test_words_locations_signs_by_definition(seed: bytes, ids: list[int], width: int) -> None:
    tables = hashing.tabulation_tables(seed, 2)
    words = reference.hash_words(tables, np.array(ids, np.uint64))
    cells = reference.locations(words, width)
    for row in range(2):
        for i, id_ in enumerate(ids):
            word = 0
            for c, byte in enumerate(id_.to_bytes(8, "little")):
                word ^= int(tables[row, c, byte])
            assert words[row, i] == word
            assert cells[row, i] == (word >> 8) * width // 2**24 < width
            for bit in range(8):
                assert reference.signs(words, bit)[row, i] == (-1 if word >> bit & 1 else 1)


@given(st.integers(0, 2**32 - 1), st.integers(1, 2**24))
def test_location_never_touches_the_sign_bits(word: int, width: int) -> None:
    """So the estimator is exactly unbiased; a width of 2^24 uses all other bits."""
    words = np.array([word, word ^ 0xFF], np.uint32)
    assert len(set(reference.locations(words, width).tolist())) == 1
    below = np.array([word, word ^ 0x100], np.uint32)
    assert len(set(reference.locations(below, 2**24).tolist())) == 2


@pytest.mark.promise
@pytest.mark.parametrize("width", [3, 1000, 4096, 65_521, 65_535, 65_536])
def test_excess_of_the_collision_probability(width: int) -> None:
    """Cells hold floor(q) or ceil(q) of 2^24 words, q = 2^24 / W with fractional part r.

    So the relative excess is r (1 - r) / q^2 <= (W / 2^24)^2 / 4 < 4e-6.
    """
    words = np.arange(2**24, dtype=np.uint32) << np.uint32(8)
    sizes = np.bincount(reference.locations(words, width), minlength=width)
    assert len(sizes) == width and sizes.max() - sizes.min() <= 1
    excess = width * float((sizes.astype(np.float64) ** 2).sum()) / 2**48 - 1
    assert -1e-12 < excess <= (width / 2**24) ** 2 / 4 + 1e-12 < 4e-6


def test_round_seeds_by_definition_and_distinct() -> None:
    seeds = [hashing.round_seed(bytes(32), m) for m in range(300)]
    assert len(set(seeds)) == 300
    assert seeds[258] == hashlib.shake_256(
        b"fedtally/1/round\0" + bytes(32) + b"\x02\x01\0\0"
    ).digest(32)


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33), "0" * 32, bytearray(32), None, 7])
def test_bad_seeds(seed: Any) -> None:
    for use in (hashing.check_seed, lambda s: hashing.round_seed(s, 0)):
        with pytest.raises(InvalidInputError, match="seed must be 32 bytes"):
            use(seed)


@pytest.mark.parametrize("seed", [b"", bytes(33), "0" * 32, None])
def test_bad_seeds_of_tables(seed: Any) -> None:
    with pytest.raises(InvalidInputError, match="seed must be 32 bytes"):
        hashing.tabulation_tables(seed, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"rows": 0},
        {"rows": 1, "group": -1},
        {"rows": 1, "group": 2**32},
        {"rows": 1, "purpose": 256},
    ],
)
def test_bad_table_numbers(bad: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        hashing.tabulation_tables(bytes(32), **bad)


@pytest.mark.parametrize("round", [-1, 2**32])
def test_bad_rounds(round: int) -> None:
    with pytest.raises(InvalidInputError, match="round"):
        hashing.round_seed(bytes(32), round)


def test_tabulation_fails_four_wise(backend: str) -> None:
    """Known: of (x, x ^ a, x ^ b, x ^ a ^ b) with a and b in different bytes, the fourth word
    follows from three."""
    for x, a, b in [(0, 1, 256), (77, 3, 5 << 56), (2**64 - 1, 255, 255 << 24)]:
        ids = np.array([x, x ^ a, x ^ b, x ^ a ^ b], np.uint64)
        words = kernels.hash_words(hashing.tabulation_tables(bytes(range(32)), 50), ids)
        assert not np.bitwise_xor.reduce(words, axis=1).any()
        assert np.bitwise_xor.reduce(words[:, :3], axis=1).all()
