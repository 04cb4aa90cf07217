"""Encode vectors of b-bit integers, 1 <= b <= 64, as bytes for messages, and decode them.

In memory an entry is a lane, an integer of 16, 32 or 64 bits. In a message the bits of the entries
lie in planes. b is a sum of different powers of two, and each power is the width w of one plane,
the largest first. A plane has w bits of every entry: the first plane has the lowest w bits, the
next plane the bits above them. So 11 bits have planes of 8, 2 and 1.

A plane of V entries takes ceil(V w / 8) bytes:

- w >= 8: the w bits of each entry as a little-endian integer, in order of the entries.
- w = 4 or 2: with m = ceil(V w / 8), byte r has the bits of the entries r, r + m, r + 2m, ...,
  lowest bits first.
- w = 1: byte r has the bits of the entries 8r .. 8r + 7, lowest bit first.

Padding bits, which belong to no entry, are zero. So a vector has exactly one encoding, and `unpack`
refuses any other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.crypto.prg import MAX_BITS, Lanes, lane
from fedtally.errors import InvalidInputError

_U8 = npt.NDArray[np.uint8]


@lru_cache(maxsize=64, typed=True)
def packed_length(entries: int, bits: int) -> int:
    """Return the number of bytes in the encoding of a vector.

    It is ceil(entries * bits / 8), and up to 2 more if 8 does not divide bits.

    Args:
        entries: the number of entries, at least 1.
        bits: the number of bits of each entry, 1 .. 64.

    >>> packed_length(20_000, 16), packed_length(20_001, 11)
    (40000, 27503)
    """
    entries, bits = validate.integer(1, entries=entries), validate.integer(1, MAX_BITS, bits=bits)
    return sum(_plane_length(entries, width) for width in _widths(bits))


def pack(vector: Lanes, bits: int) -> bytes:
    """Encode a vector of integers below 2^bits as bytes, in the planes that the module describes.

    Args:
        vector: array of dtype `prg.lane(bits)`, [entries], at least one entry.
        bits: the number of bits of each entry, 1 .. 64.

    Raises:
        InvalidInputError: the vector has a wrong dtype or shape, or an entry needs more than `bits`
            bits.

    >>> pack(np.array([1, 2, 0x7FF], "<u2"), 11).hex()
    '0102ff3004'
    """
    dtype = lane(bits)
    if (
        not isinstance(vector, np.ndarray)
        or vector.dtype != dtype
        or vector.ndim != 1
        or not len(vector)
    ):
        got = validate.form_of(vector)
        raise InvalidInputError(
            f"vector must be {dtype} [at least one entry] for {bits} bits, got {got}"
        )
    # Without this check, bits above the first `bits` would be lost without an error.
    if int(vector.max()) >> bits:
        raise InvalidInputError(
            f"every entry must be below 2^{bits}; reduce the vector mod 2^{bits} first"
        )
    vector = np.ascontiguousarray(vector)
    shift, planes = 0, []
    for width in _widths(bits & ~7):
        planes.append(
            (vector >> shift if shift else vector).astype(f"<u{width // 8}", copy=False).data
        )
        shift += width
    if shift < bits:
        top = np.empty(len(vector), np.uint8)
        np.right_shift(vector, shift, out=top, casting="unsafe")
        planes += _pack_narrow(top, bits - shift)
    return b"".join(planes)


def unpack(data: bytes, entries: int, bits: int) -> Lanes:
    """Decode the vector that `pack` encoded.

    Args:
        data: packed_length(entries, bits) bytes.
        entries: the number of entries, at least 1.
        bits: the number of bits of each entry, 1 .. 64.

    Returns:
        Array of dtype `prg.lane(bits)`, [entries], every entry below 2^bits. For 16, 32 and 64 bits
        it is a read-only view of `data`, else a new array.

    Raises:
        InvalidInputError: `data` has a wrong length, or a padding bit is set.

    >>> unpack(bytes.fromhex("0102ff3004"), 3, 11).tolist()
    [1, 2, 2047]
    """
    dtype, end = lane(bits), packed_length(entries, bits)
    if not isinstance(data, bytes) or len(data) != end:
        got = f"{len(data)}" if isinstance(data, bytes) else type(data).__name__
        raise InvalidInputError(f"{entries} entries of {bits} bits take {end} bytes, got {got}")
    vector: npt.NDArray[Any] | None = None
    for width in reversed(_widths(bits)):  # from the highest digits down, as in Horner's rule
        end -= _plane_length(entries, width)
        digits = _unpack_plane(data, end, entries, width)
        if vector is None:
            vector = digits
        else:
            vector = vector if width < 8 else vector.astype(dtype, copy=False)
            vector <<= width
            vector |= digits
    assert vector is not None
    return vector.astype(dtype, copy=False)


def centred(vector: Lanes, bits: int) -> npt.NDArray[np.int64]:
    """Read entries mod 2^bits as signed integers in [-2^(bits - 1), 2^(bits - 1)): int64 [entries].

    Args:
        vector: array of dtype `prg.lane(bits)`, [entries], every entry below 2^bits.
        bits: the number of bits of each entry, 1 .. 64.

    >>> centred(np.array([1, 255, 128], "<u2"), 8).tolist()
    [1, -1, -128]
    """
    # The shift up makes the highest bit of an entry the sign bit. The arithmetic shift back down
    # copies the sign bit into all bits above the entry.
    spare = 64 - bits
    return (vector.astype(np.uint64) << np.uint64(spare)).view(np.int64) >> spare


def lifted(total: npt.NDArray[np.int64], least: int, modulus: int) -> npt.NDArray[np.int64]:
    """Read integers mod `modulus` as integers in least .. least + modulus - 1.

    The modulus is added once to every integer below `least`.

    Args:
        total: int64; integers in [-modulus / 2, modulus / 2], such as the result of `centred`;
            or a result of this function.
        least: the least true value that is possible, -modulus / 2 .. 0.
        modulus: at most 2^64. With 2^64 nothing changes: larger integers do not fit 64 bits.

    Returns:
        int64 of the same shape.

    >>> lifted(np.array([1, -1, -2, -128]), -1, 256).tolist()
    [1, -1, 254, 128]
    """
    # The addition is uint64, which wraps around: a modulus of 2^63 is no int64, while the result is
    # one.
    higher = (total.view(np.uint64) + np.uint64(modulus % 2**64)).view(np.int64)
    return np.where(total < least, higher, total)


def _widths(bits: int) -> list[int]:
    return [width for width in (64, 32, 16, 8, 4, 2, 1) if bits & width]


def _plane_length(entries: int, width: int) -> int:
    return -(-entries * width // 8)


def _pack_narrow(digits: _U8, bits: int) -> list[memoryview]:
    """Return the planes that are narrower than a byte, lowest bits first; `digits` is overwritten.

    Args:
        digits: uint8 [entries]; the highest bits of each entry, which are not in a plane yet,
            shifted down to bit 0.
        bits: the number of these bits, 1 .. 7.
    """
    planes = []
    for width in _widths(bits):
        planes.append(_pack_plane(digits, width).data)
        digits >>= width
    return planes


def _pack_plane(digits: _U8, width: int) -> _U8:
    if width == 1:  # the highest bit of each entry: there are no bits above it to clear
        return np.packbits(digits, bitorder="little")
    length, low = _plane_length(len(digits), width), digits & np.uint8((1 << width) - 1)
    packed = low[:length]
    for slot in range(1, 8 // width):
        part = low[slot * length : (slot + 1) * length]
        packed[: len(part)] |= part << (slot * width)
    return packed


def _unpack_plane(data: bytes, start: int, entries: int, width: int) -> npt.NDArray[Any]:
    if width >= 8:
        return np.frombuffer(data, f"<u{width // 8}", entries, start)
    packed = np.frombuffer(data, np.uint8, _plane_length(entries, width), start)
    if width == 1:
        digits = np.unpackbits(packed, bitorder="little")
    else:
        digits = (packed >> np.arange(0, 8, width, dtype=np.uint8)[:, None]).reshape(-1)
        digits &= np.uint8((1 << width) - 1)
    # If padding bits could be set, a vector would have a second encoding.
    if any(digits[entries:].tobytes()):
        raise InvalidInputError(
            f"the bits after {entries} digits of {width} bits must be zero: not what pack writes"
        )
    return digits[:entries]
