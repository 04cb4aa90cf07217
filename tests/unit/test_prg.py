"""The pseudorandom generator against AES in counter mode, block by block and at every edge of a
chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from fedtally.crypto import prg
from fedtally.crypto.keys import Secret
from fedtally.crypto.prg import CHUNK_BYTES, Masking, expand
from fedtally.errors import InvalidInputError

KEYS = st.binary(min_size=32, max_size=32)
KEY = bytes(range(32))
EDGES = [1, 15, 16, 17, *(c * CHUNK_BYTES + d for c in (1, 2) for d in (-1, 0, 1))]
LANES = ["<u2", "<u4", "<u8"]


def counter_mode(key: bytes, length: int) -> bytes:
    """Return the stream by AES-CTR: each chunk starts from block be96(c) || be32(2)."""
    chunks = []
    for chunk in range(-(-length // CHUNK_BYTES)):
        first = chunk.to_bytes(12, "big") + (2).to_bytes(4, "big")
        cipher = Cipher(algorithms.AES(key), modes.CTR(first)).encryptor()
        chunks.append(cipher.update(bytes(min(CHUNK_BYTES, length - chunk * CHUNK_BYTES))))
    return b"".join(chunks)


def block(key: bytes, chunk: int, i: int) -> bytes:
    """Return one block of the stream by AES alone."""
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return cipher.update(chunk.to_bytes(12, "big") + (i + 2).to_bytes(4, "big"))


def mask(key: bytes, entries: int, dtype: str) -> npt.NDArray[Any]:
    return np.frombuffer(counter_mode(key, entries * np.dtype(dtype).itemsize), dtype)


def test_the_oracle_knows_aes() -> None:
    """FIPS 197, appendix C.3; NIST SP 800-38A, F.5.5, first block."""
    plaintext = bytes.fromhex("00112233445566778899aabbccddeeff")
    ecb = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()
    assert ecb.update(plaintext).hex() == "8ea2b7ca516745bfeafc49904b496089"
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    ctr = Cipher(algorithms.AES(key), modes.CTR(bytes(range(0xF0, 0x100)))).encryptor()
    text = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    assert ctr.update(text).hex() == "601ec313775789a5b7a7f504bbf3d228"


def test_gcm_known_answer() -> None:
    """AES-256-GCM, test case 14 of McGrew and Viega's specification, is the first block for the
    zero key."""
    assert expand(Secret(bytes(32)), 16).hex() == "cea7403d4d606b6e074ec5d3baf39d18"


@pytest.mark.parametrize("length", [0, *EDGES])
def test_bytes_are_those_of_counter_mode(length: int) -> None:
    assert expand(Secret(KEY), length) == counter_mode(KEY, length)


@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("i", [0, 1, 4095, 8191])
def test_blocks_are_those_of_the_definition(chunk: int, i: int) -> None:
    start = chunk * CHUNK_BYTES + 16 * i
    assert expand(Secret(KEY), 3 * CHUNK_BYTES)[start : start + 16] == block(KEY, chunk, i)


@pytest.mark.parametrize("dtype", LANES)
@pytest.mark.parametrize("chunks", [1, 2])
@pytest.mark.parametrize("excess", [-1, 0, 1])
def test_masks_at_the_edges_of_chunks(dtype: str, chunks: int, excess: int) -> None:
    entries = chunks * CHUNK_BYTES // np.dtype(dtype).itemsize + excess
    vector = np.arange(entries).astype(dtype)
    expected = mask(KEY, entries, dtype)
    Masking(vector).add(Secret(KEY))
    assert np.array_equal(vector - np.arange(entries).astype(dtype), expected)


@given(KEYS, KEYS, st.sampled_from(LANES), st.integers(1, 300), st.integers(0, 2**32))
def test_sums_of_masks_wrap(one: bytes, other: bytes, dtype: str, entries: int, seed: int) -> None:
    start = np.random.default_rng(seed).integers(2**63, size=entries, dtype=np.uint64).astype(dtype)
    vector = start.copy()
    masking = Masking(vector)
    masking.add(Secret(one))
    masking.subtract(Secret(other))
    assert np.array_equal(vector, start + mask(one, entries, dtype) - mask(other, entries, dtype))
    masking.add(Secret(other))
    masking.subtract(Secret(one))
    assert np.array_equal(vector, start)


def test_a_mask_mod_a_smaller_power_of_two() -> None:
    """Masks cancel in mod 2^b too: 2^b divides the lane."""
    vector = np.arange(1000, dtype="<u2") % 2**11
    masked = vector.copy()
    Masking(masked).add(Secret(KEY))
    masked &= 2**11 - 1
    Masking(masked).subtract(Secret(KEY))
    assert np.array_equal(masked & (2**11 - 1), vector) and not np.array_equal(masked, vector)


def test_chunk_numbers_beyond_a_byte() -> None:
    """Chunk 256 is the first whose number takes two bytes, highest first."""
    vector = np.zeros(256 * CHUNK_BYTES // 8 + 2, "<u8")
    Masking(vector).add(Secret(KEY))
    assert vector[-2:].tobytes() == block(KEY, 256, 0)
    assert vector[-4:-2].tobytes() == block(KEY, 255, 8191)


def test_other_keys_and_chunks_give_other_streams() -> None:
    stream = expand(Secret(KEY), 4 * CHUNK_BYTES)
    blocks = {stream[at : at + 16] for at in range(0, len(stream), 16)}
    assert len(blocks) == len(stream) // 16  # a birthday among 2^15 of 2^128
    assert expand(Secret(bytes(31) + b"\x01"), 16) not in blocks


def test_the_zeros_stay_zero() -> None:
    vector = np.zeros(CHUNK_BYTES, "<u2")
    masking = Masking(vector)
    for byte in range(5):
        masking.add(Secret(bytes([byte]) * 32))
        expand(Secret(bytes([byte]) * 32), CHUNK_BYTES + 5)
    assert vector.any()
    assert len(prg._ZEROS) == CHUNK_BYTES and not any(prg._ZEROS)


def test_the_buffer_is_one_and_can_be_wiped() -> None:
    masking = Masking(np.zeros(3 * CHUNK_BYTES, "<u2"))
    buffer = masking._buffer
    masking.add(Secret(KEY))
    assert masking._buffer is buffer and len(buffer) == CHUNK_BYTES + 16 and any(buffer)
    masking.wipe()
    assert not any(buffer)
    masking.subtract(Secret(KEY))  # still of use
    assert any(buffer)


def test_a_part_of_an_array_is_masked_where_it_lies() -> None:
    whole = np.zeros(40, "<u2")
    Masking(whole[10:30]).add(Secret(KEY))
    assert not whole[:10].any() and not whole[30:].any()
    assert np.array_equal(whole[10:30], mask(KEY, 20, "<u2"))


@pytest.mark.parametrize(
    ("bits", "dtype"),
    [(1, "<u2"), (15, "<u2"), (16, "<u2"), (17, "<u4"), (32, "<u4"), (33, "<u8"), (64, "<u8")],
)
def test_lanes(bits: int, dtype: str) -> None:
    assert prg.lane(bits) == np.dtype(dtype)


@pytest.mark.parametrize("bits", [0, -1, 65, 16.0, True, "16", None])
def test_no_lane(bits: Any) -> None:
    with pytest.raises(InvalidInputError, match="bits must be"):
        prg.lane(bits)


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(8, np.uint8),
        np.zeros(8, np.int16),
        np.zeros(8, ">u2"),
        np.zeros(8, np.float32),
        np.zeros(8, object),
        np.zeros((2, 4), "<u2"),
        np.zeros((), "<u2"),
        [1, 2, 3],
        None,
    ],
    ids=str,
)
def test_what_is_not_a_vector(vector: Any) -> None:
    with pytest.raises(InvalidInputError, match="vector must be '<u2', '<u4' or '<u8'"):
        Masking(vector)


def test_vectors_that_cannot_be_changed_in_place() -> None:
    fixed = np.zeros(8, "<u2")
    fixed.flags.writeable = False
    for vector in (fixed, np.zeros(8, "<u2")[::2], np.zeros(8, "<u2")[::-1]):
        with pytest.raises(InvalidInputError, match="contiguous and writeable"):
            Masking(vector)


def test_lengths_of_a_stream() -> None:
    longest = np.zeros((1 << 30) // 8 + 1, "<u8")  # memory that is not touched
    for vector in (longest, longest[:0]):
        with pytest.raises(InvalidInputError, match=r"vector must have 1 \.\. 1073741824 bytes"):
            Masking(vector)
    assert len(Masking(longest[:-1])._parts) == 8192
    for length in (-1, (1 << 30) + 1):
        with pytest.raises(InvalidInputError, match="length must be at"):
            expand(Secret(KEY), length)


@pytest.mark.parametrize("length", [1, 16, 24, 31, 33])
def test_keys_of_another_length(length: int) -> None:
    """AES would take 16 and 24 bytes."""
    vector = np.zeros(8, "<u2")
    for use in (Masking(vector).add, Masking(vector).subtract, lambda key: expand(key, 4)):
        with pytest.raises(InvalidInputError, match=f"must be of 32 bytes, got {length}"):
            use(Secret(bytes(length)))
    assert not vector.any()


def test_a_wiped_key_masks_nothing() -> None:
    vector, key = np.zeros(8, "<u2"), Secret(KEY)
    key.wipe()
    with pytest.raises(InvalidInputError, match="was wiped"):
        Masking(vector).add(key)
    assert not vector.any()
