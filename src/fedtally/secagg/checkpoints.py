"""Write and read a server's checkpoint: facts as JSON, then arrays, as bytes.

A checkpoint is written at each phase of each session, so writing must be fast. The arrays are
joined without a container: to make a .npz file takes longer.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.errors import UnreadableFileError

SCHEMA = "fedtally-secagg-checkpoint/2"
_DIGEST = hashlib.sha256().digest_size
_LENGTH = 4  # the size in bytes of the field that has the length of the JSON

Arrays = dict[str, npt.NDArray[Any]]


class CheckpointError(UnreadableFileError):
    """Report that a session cannot go on from some bytes.

    They are no checkpoint, or none that this program can read, or the session had another
    allow-list.
    """


def pack(facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Encode facts and arrays as a checkpoint.

    The bytes are, in this order: the SHA-256 of all bytes that follow; the length of the JSON in 4
    bytes (little-endian); the JSON, with the facts and the dtype and shape of each array; the
    arrays in C order.

    Args:
        facts: values for JSON by name; "schema" and "arrays" are reserved.
        arrays: the arrays by name.

    >>> facts, arrays = unpack(pack({"state": "done"}, {"total": np.arange(3)}))
    >>> facts["state"], arrays["total"].tolist()
    ('done', [0, 1, 2])
    """
    shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    head = json.dumps({"schema": SCHEMA, "arrays": shapes, **facts}).encode()
    parts = [len(head).to_bytes(_LENGTH, "little"), head, *map(_bytes, arrays.values())]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return b"".join([digest.digest(), *parts])


def unpack(data: bytes) -> tuple[dict[str, Any], Arrays]:
    """Decode a checkpoint: return its facts, and copies of its arrays by name.

    The facts also have "schema" and "arrays", the dtype and shape of each array.

    Raises:
        Exception: an error of any type, if the bytes are no checkpoint or are damaged.
    """
    rest = memoryview(data)[_DIGEST:]
    # The digest finds damage by a disk. It does not find forgery: a checkpoint is not
    # authenticated.
    if hashlib.sha256(rest).digest() != data[:_DIGEST]:
        raise ValueError("its digest is another one")
    start = _LENGTH + int.from_bytes(rest[:_LENGTH], "little")
    facts = json.loads(rest[_LENGTH:start].tobytes())
    if facts["schema"] != SCHEMA:
        raise ValueError(f"it is of {facts['schema']}, and this version reads {SCHEMA}")
    arrays: Arrays = {}
    for name, (dtype, shape) in facts["arrays"].items():
        count = math.prod(shape)
        # The array is copied: the server erases some arrays in place, and an array that is a
        # view of bytes cannot be written to.
        arrays[name] = np.frombuffer(rest, dtype, count, start).reshape(shape).copy()
        start += arrays[name].nbytes
    return facts, arrays


def _bytes(array: npt.NDArray[Any]) -> memoryview | bytes:
    """Return the bytes of an array in C order; an array that is in C order is not copied."""
    whole = np.ascontiguousarray(array)
    return whole.reshape(-1).view(np.uint8).data if array.size else b""
