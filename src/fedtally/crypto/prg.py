"""The pseudorandom generator: a stream from a key, added to a vector of integers. Hazard layer.

The stream of a key of 32 bytes is AES-256 in counter mode, in chunks of 128 KiB: block i of chunk c
is AES(key, be96(c) || be32(i + 2)), 0 <= i < 8192. That is what AES-256-GCM under nonce be96(c)
makes of zeros, and it is computed so because libraries run this fastest. The tag is discarded, and
no property of GCM is used. A key serves one stream of at most 2^30 bytes.

A mask is the stream read as little-endian lanes of 16, 32 or 64 bits, whichever is the first to
hold the modulus 2^b.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedtally.base import validate
from fedtally.crypto.keys import KEY_BYTES, TAG_BYTES, Secret
from fedtally.errors import InvalidInputError

CHUNK_BYTES = 1 << 17  # a chunk and its part of the vector stay in cache; part of the format
MAX_STREAM_BYTES = 1 << 30  # 2^26 blocks of a key: far below where a stream shows it has no repeats
MAX_BITS = 64  # the widest lane

Lanes = npt.NDArray[np.unsignedinteger[Any]]

_ZEROS = bytes(CHUNK_BYTES)
_LANES = (np.dtype("<u2"), np.dtype("<u4"), np.dtype("<u8"))


def lane(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Return the type of a vector of integers mod 2^bits: '<u2', '<u4' or '<u8'.

    Args:
        bits: 1 .. 64.

    >>> lane(16), lane(17)
    (dtype('uint16'), dtype('uint32'))
    """
    bits = validate.integer(1, MAX_BITS, bits=bits)
    return next(dtype for dtype in _LANES if bits <= 8 * dtype.itemsize)


class Masking:
    """Add and subtract masks to one vector, in place, through one buffer.

    Sums wrap at the width of a lane, which 2^b divides: reduce mod 2^b once, after the last mask.

    Args:
        vector: '<u2', '<u4' or '<u8' [entries], contiguous and writeable, at least one entry and at
            most 2^30 bytes.

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
        """Add the mask of the key: 32 bytes, used for nothing else."""
        self._apply(key, np.add)

    def subtract(self, key: Secret) -> None:
        """Subtract the mask of the key: 32 bytes, used for nothing else."""
        self._apply(key, np.subtract)

    def wipe(self) -> None:
        """Overwrite the buffer, which holds a part of the last mask."""
        self._buffer[:] = bytes(len(self._buffer))

    def _apply(self, key: Secret, operation: np.ufunc) -> None:
        encrypt_into = AESGCM(key.reveal(KEY_BYTES)).encrypt_into
        # chunk by chunk, so that no mask is ever whole in memory
        for nonce, zeros, output, stream, part in self._parts:
            encrypt_into(nonce, zeros, None, output)
            operation(part, stream, out=part)


def expand(key: Secret, length: int) -> bytes:
    """Return the first bytes of the stream of the key.

    Args:
        key: 32 bytes, used for nothing else.
        length: 0 .. 2^30.

    >>> expand(Secret(bytes(32)), 4).hex()
    'cea7403d'
    """
    length = validate.integer(0, MAX_STREAM_BYTES, length=length)
    cipher, zeros = AESGCM(key.reveal(KEY_BYTES)), memoryview(_ZEROS)
    if length <= CHUNK_BYTES:  # as nearly always, and several times for each report
        return cipher.encrypt(_nonce(0), zeros[:length], None)[:-TAG_BYTES]
    chunks = enumerate(min(CHUNK_BYTES, length - start) for start in range(0, length, CHUNK_BYTES))
    return b"".join(
        cipher.encrypt(_nonce(chunk), zeros[:size], None)[:-TAG_BYTES] for chunk, size in chunks
    )


def _nonce(chunk: int) -> bytes:
    # one for each chunk of a key: the same counter twice would give the same stream twice
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
