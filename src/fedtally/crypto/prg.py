"""Turn a key into a pseudorandom stream, and add the stream to a vector as a mask.

Hazard layer, see `fedtally.crypto`. A key has 32 bytes. Its stream is AES-256 in counter mode, in
chunks of 128 KiB: block i of chunk c is AES(key, be96(c) || be32(i + 2)), 0 <= i < 8192, where be96
and be32 are big-endian integers of 96 and 32 bits. These are the bytes that AES-256-GCM makes of
zeros under nonce be96(c). The code calls AES-256-GCM because libraries compute it fastest. It
discards the tag, and uses no property of GCM. A key serves one stream of at most 2^30 bytes.

A mask of integers mod 2^bits is the stream, read as little-endian lanes. A lane is an integer of
16, 32 or 64 bits: the smallest of these widths that is at least `bits`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedtally.base import validate
from fedtally.crypto.keys import KEY_BYTES, TAG_BYTES, Secret
from fedtally.errors import InvalidInputError

CHUNK_BYTES = 1 << 17  # a chunk and its slice of the vector fit the cache; fixed by the format
# The longest stream of a key. All blocks of a stream are different, and random blocks need not be.
# 2^26 blocks are too few to notice this difference.
MAX_STREAM_BYTES = 1 << 30
MAX_BITS = 64  # the widest lane

Lanes = npt.NDArray[np.unsignedinteger[Any]]

_ZEROS = bytes(CHUNK_BYTES)
_LANES = (np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8"))


def lane(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Choose the dtype of a vector of integers mod 2^bits: '<u2', '<u4' or '<u8'.

    It is the smallest of the three types that has at least `bits` bits.

    Args:
        bits: the number of bits of the modulus, 1 .. 64.

    Raises:
        InvalidInputError: `bits` is out of bounds.

    >>> lane(16), lane(17)
    (dtype('uint16'), dtype('uint32'))
    """
    bits = validate.integer(1, MAX_BITS, bits=bits)
    return next(dtype for dtype in _LANES if bits <= 8 * dtype.itemsize)


class Masking:
    """Add masks to one vector or subtract them, in place; all masks use one buffer.

    The mask of a key is the stream of the key, see the top of this file. Sums wrap around at 2^16,
    2^32 or 2^64, the modulus of the vector's dtype. If entries are integers mod 2^bits, 2^bits
    divides this modulus. So the caller need not reduce after each mask: reduce the vector mod
    2^bits once, after the last mask.

    Args:
        vector: '<u2', '<u4' or '<u8' [entries], contiguous and writeable, at least one entry and at
            most 2^30 bytes; `add` and `subtract` change it.

    >>> vector = np.array([7, 8, 9], "<u2")
    >>> masking = Masking(vector)
    >>> masking.add(Secret(bytes(32)))
    >>> vector.tolist()
    [42965, 15688, 24662]
    >>> masking.subtract(Secret(bytes(32)))
    >>> vector.tolist()
    [7, 8, 9]
    """

    def __init__(self, vector: Lanes) -> None:
        _check(vector)
        self._buffer = bytearray(min(CHUNK_BYTES, vector.nbytes) + TAG_BYTES)
        buffer, zeros, step = (
            memoryview(self._buffer),
            memoryview(_ZEROS),
            CHUNK_BYTES // vector.itemsize,
        )
        stream = np.frombuffer(self._buffer, vector.dtype, min(step, len(vector)))
        parts = [vector[start : start + step] for start in range(0, len(vector), step)]
        self._parts = [
            (
                _nonce(chunk),
                zeros[: part.nbytes],
                buffer[: part.nbytes + TAG_BYTES],
                stream[: len(part)],
                part,
            )
            for chunk, part in enumerate(parts)
        ]

    def add(self, key: Secret) -> None:
        """Add the mask of a key to the vector.

        Args:
            key: 32 bytes; the key must have no other use than this mask.
        """
        self._apply(key, np.add)

    def subtract(self, key: Secret) -> None:
        """Subtract the mask of a key from the vector.

        Args:
            key: 32 bytes; the key must have no other use than this mask.
        """
        self._apply(key, np.subtract)

    def wipe(self) -> None:
        """Overwrite the buffer with zeros after the last mask: it still holds a piece of that mask.

        The keys are not wiped: that is for the caller to do.
        """
        self._buffer[:] = bytes(len(self._buffer))

    def _apply(self, key: Secret, operation: np.ufunc) -> None:
        encrypt_into = AESGCM(key.reveal(KEY_BYTES)).encrypt_into
        # The mask is made chunk by chunk. Otherwise a mask as long as the vector would be in
        # memory.
        for nonce, zeros, output, stream, part in self._parts:
            encrypt_into(nonce, zeros, None, output)
            operation(part, stream, out=part)


def expand(key: Secret, length: int) -> bytes:
    """Compute the first `length` bytes of the stream of a key, see the top of this file.

    Args:
        key: 32 bytes; the key must have no other use.
        length: the number of bytes, 0 .. 2^30.

    Raises:
        InvalidInputError: `length` is out of bounds, or the key was wiped or has another size.

    >>> expand(Secret(bytes(32)), 4).hex()
    'cea7403d'
    """
    length = validate.integer(0, MAX_STREAM_BYTES, length=length)
    cipher, zeros = AESGCM(key.reveal(KEY_BYTES)), memoryview(_ZEROS)
    if length <= CHUNK_BYTES:  # a shortcut: most calls are so short, several for each report
        return cipher.encrypt(_nonce(0), zeros[:length], None)[:-TAG_BYTES]
    chunks = enumerate(min(CHUNK_BYTES, length - start) for start in range(0, length, CHUNK_BYTES))
    return b"".join(
        cipher.encrypt(_nonce(chunk), zeros[:size], None)[:-TAG_BYTES] for chunk, size in chunks
    )


def _nonce(chunk: int) -> bytes:
    # Under one key, the same nonce would give the same bytes. So each chunk has its own nonce.
    return chunk.to_bytes(12, "big")


def _check(vector: Lanes) -> None:
    if not isinstance(vector, np.ndarray) or vector.dtype not in _LANES or vector.ndim != 1:
        got = validate.form_of(vector)
        raise InvalidInputError(f"vector must be '<u2', '<u4' or '<u8' [entries], got {got}")
    if not vector.flags.c_contiguous or not vector.flags.writeable:
        raise InvalidInputError(
            "vector must be contiguous and writeable: masks are added in place; pass a copy"
        )
    if not 0 < vector.nbytes <= MAX_STREAM_BYTES:
        raise InvalidInputError(
            f"vector must have 1 .. {MAX_STREAM_BYTES} bytes, got {vector.nbytes}; split it"
        )
