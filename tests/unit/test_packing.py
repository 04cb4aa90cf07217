"""The codec of b-bit integers for every b, against a reading of its definition in plain Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from fedtally.crypto.prg import lane
from fedtally.errors import InvalidInputError
from fedtally.secagg import packing

ALL_BITS = range(1, 65)
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 100, 127]
BITS = st.integers(1, 64)
ENTRIES = st.one_of(st.integers(1, 40), st.integers(1, 700))


def slow_pack(values: list[int], bits: int) -> bytes:
    """Return the encoding, digit by digit."""
    data, below = b"", 0
    for width in (64, 32, 16, 8, 4, 2, 1):
        if not bits & width:
            continue
        digits = [value >> below & ((1 << width) - 1) for value in values]
        below += width
        length = -(-len(values) * width // 8)
        if width >= 8:
            data += b"".join(digit.to_bytes(width // 8, "little") for digit in digits)
            continue
        plane = [0] * length
        for entry, digit in enumerate(digits):
            row, slot = divmod(entry, 8) if width == 1 else (entry % length, entry // length)
            plane[row] |= digit << (slot * width)
        data += bytes(plane)
    return data


def draw(seed: int, entries: int, bits: int) -> npt.NDArray[Any]:
    rng = np.random.default_rng(seed)
    return rng.integers((1 << bits) - 1, size=entries, dtype=np.uint64, endpoint=True).astype(
        lane(bits)
    )


def ones(entries: int, bits: int) -> npt.NDArray[Any]:
    return np.full(entries, (1 << bits) - 1, lane(bits))


@each_case("bits", ALL_BITS)
def test_every_width_at_many_lengths(bits: int) -> None:
    for entries in LENGTHS:
        for vector in (draw(bits, entries, bits), ones(entries, bits), ones(entries, bits) * 0):
            data = packing.pack(vector, bits)
            assert data == slow_pack(vector.tolist(), bits)
            assert len(data) == packing.packed_length(entries, bits)
            decoded = packing.unpack(data, entries, bits)
            assert decoded.dtype == lane(bits) and np.array_equal(decoded, vector)


@given(BITS, ENTRIES, st.integers(0, 2**32))
def test_encoding_is_the_definition(bits: int, entries: int, seed: int) -> None:
    vector = draw(seed, entries, bits)
    data = packing.pack(vector, bits)
    assert data == slow_pack(vector.tolist(), bits)
    assert np.array_equal(packing.unpack(data, entries, bits), vector)


@given(BITS, ENTRIES, st.integers(0, 2**32))
def test_a_vector_has_one_encoding(bits: int, entries: int, seed: int) -> None:
    """Any bytes of the right length are refused, or are what their vector is encoded to."""
    length = packing.packed_length(entries, bits)
    meant = packing.pack(ones(entries, bits), bits)  # a bit that no entry sets is padding
    data = np.random.default_rng(seed).bytes(length)
    clean = bytes(byte & used for byte, used in zip(data, meant, strict=True))
    assert packing.pack(packing.unpack(clean, entries, bits), bits) == clean
    if data != clean:
        with pytest.raises(InvalidInputError, match="must be zero"):
            packing.unpack(data, entries, bits)


@each_case("bits", ALL_BITS)
def test_every_padding_bit_is_checked(bits: int) -> None:
    for entries in (1, 3, 5, 6, 7, 9, 13, 21):
        data = packing.pack(ones(entries, bits), bits)
        padding = [bit for bit in range(8 * len(data)) if not data[bit // 8] >> (bit % 8) & 1]
        assert len(padding) == 8 * len(data) - entries * bits
        for bit in padding:
            for start in (data, bytes(len(data))):
                damaged = bytearray(start)
                damaged[bit // 8] |= 1 << bit % 8
                with pytest.raises(InvalidInputError, match="must be zero"):
                    packing.unpack(bytes(damaged), entries, bits)


@given(BITS, st.integers(1, 10**6))
def test_lengths(bits: int, entries: int) -> None:
    excess = packing.packed_length(entries, bits) - -(-entries * bits // 8)
    assert excess == 0 if bits % 8 == 0 or entries % 8 == 0 else 0 <= excess <= 2


@given(BITS, ENTRIES, st.data())
def test_another_length_is_refused(bits: int, entries: int, data: st.DataObject) -> None:
    length = packing.packed_length(entries, bits)
    other = data.draw(st.one_of(st.integers(0, length - 1), st.integers(length + 1, length + 70)))
    with pytest.raises(
        InvalidInputError,
        match=f"{entries} entries of {bits} bits take {length} bytes, got {other}$",
    ):
        packing.unpack(bytes(other), entries, bits)


def test_a_declared_length_is_checked_before_memory_is_taken() -> None:
    with pytest.raises(InvalidInputError, match="take 34359738360 bytes, got 8"):
        packing.unpack(bytes(8), 2**32 - 1, 64)


@pytest.mark.parametrize(
    "data", [bytearray(2), memoryview(bytes(2)), "ab", np.zeros(2, np.uint8), None]
)
def test_data_are_bytes(data: Any) -> None:
    with pytest.raises(InvalidInputError, match=f"take 2 bytes, got {type(data).__name__}"):
        packing.unpack(data, 1, 16)


@each_case("bits", [bits for bits in ALL_BITS if bits not in (16, 32, 64)])
def test_entries_out_of_range_are_refused(bits: int) -> None:
    for place in (0, 4, 8):
        for value in (1 << bits, 2 ** (8 * lane(bits).itemsize) - 1):
            vector = np.zeros(9, lane(bits))
            vector[place] = value
            with pytest.raises(
                InvalidInputError, match=rf"every entry must be below 2\^{bits}"
            ) as caught:
                packing.pack(vector, bits)
            assert str(value) not in str(caught.value).replace(f"2^{bits}", "")


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(8, np.uint8),
        np.zeros(8, np.int16),
        np.zeros(8, "<u4"),
        np.zeros(8, ">u2"),
        np.zeros(8, np.float64),
        np.zeros((2, 4), "<u2"),
        np.zeros(0, "<u2"),
        np.zeros((), "<u2"),
        [1, 2],
        None,
    ],
    ids=str,
)
def test_what_is_not_a_vector(vector: Any) -> None:
    with pytest.raises(
        InvalidInputError, match=r"vector must be uint16 \[at least one entry\] for 11 bits"
    ):
        packing.pack(vector, 11)


@pytest.mark.parametrize("bits", [0, -1, 65, 16.0, True, "16", None])
def test_bits_out_of_range(bits: Any) -> None:
    for use in (
        lambda: packing.pack(np.zeros(8, "<u2"), bits),
        lambda: packing.unpack(bytes(8), 8, bits),
        lambda: packing.packed_length(8, bits),
    ):
        with pytest.raises(InvalidInputError, match="bits must be"):
            use()


@pytest.mark.parametrize("entries", [0, -1, 1.0, True, None])
def test_entries_that_are_no_number_of_entries(entries: Any) -> None:
    for use in (lambda: packing.unpack(b"", entries, 8), lambda: packing.packed_length(entries, 8)):
        with pytest.raises(InvalidInputError, match="entries must be"):
            use()


@pytest.mark.parametrize("bits", [1, 8, 11, 16, 24, 32, 63, 64])
def test_the_vector_is_left_as_it_is(bits: int) -> None:
    """Also one that is read-only or strided."""
    vector = draw(1, 50, bits)
    before = vector.copy()
    vector.flags.writeable = False
    packing.pack(vector, bits)
    assert np.array_equal(vector, before)
    assert packing.pack(vector[::-3], bits) == packing.pack(vector[::-3].copy(), bits)


@each_case("bits", ALL_BITS)
def test_decoding_leaves_the_data_as_they_are(bits: int) -> None:
    data = packing.pack(draw(2, 21, bits), bits)
    before = bytes(bytearray(data))
    decoded = packing.unpack(data, 21, bits)
    if bits in (16, 32, 64):
        assert not decoded.flags.writeable
    total = np.zeros(21, lane(bits))
    total += decoded
    total += packing.unpack(data, 21, bits)
    assert data == before and np.array_equal(total, decoded + decoded)


def test_sums_of_encodings_are_sums_mod_the_modulus() -> None:
    """What the server does: lanes wrap at a multiple of 2^b, and the sum is reduced once."""
    for bits in (11, 16, 24, 40):
        vectors = [draw(seed, 33, bits) for seed in range(20)]
        total = np.zeros(33, lane(bits))
        for vector in vectors:
            total += packing.unpack(packing.pack(vector, bits), 33, bits)
        expected = [
            sum(column) % (1 << bits) for column in zip(*(v.tolist() for v in vectors), strict=True)
        ]
        assert [value % (1 << bits) for value in total.tolist()] == expected
