"""Checks of the arrays that callers pass to the kernels.

Compiled kernels do not check their arguments. With a wrong shape they would read memory outside the
arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError

U8 = npt.NDArray[np.uint8]
U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

MAX_WIDTH = 1 << 24  # the most cells in a row: the upper 24 bits of a word select a cell
MAX_ROWS = 1024


def range_ids(first_id: int, count: int) -> U64:
    """Return the ids first_id, first_id + 1, ... mod 2^64: uint64 [count].

    >>> range_ids(2**64 - 1, 2).tolist()
    [18446744073709551615, 0]
    """
    return np.arange(count, dtype=np.uint64) + np.uint64(first_id % 2**64)


def check_tables(tables: U32) -> U32:
    """Return hash tables as a C-contiguous array, uint32 [rows, 8, 256], or raise.

    Raises:
        InvalidInputError: the dtype or the shape is wrong.
    """
    if tables.dtype != np.uint32 or tables.ndim != 3 or tables.shape[1:] != (8, 256):
        raise InvalidInputError(
            f"tables must be uint32 [rows, 8, 256], got {tables.dtype} with shape {tables.shape}"
        )
    return np.ascontiguousarray(tables)


def check_ids(ids: Any) -> U64:
    """Return ids as a C-contiguous array, uint64 [n], or raise.

    Other integer types are not converted: a negative id would become a different id unnoticed.

    Raises:
        InvalidInputError: the dtype or the shape is wrong.
    """
    ids = np.asarray(ids)
    if ids.dtype != np.uint64 or ids.ndim != 1:
        raise InvalidInputError(
            f"ids must be a one-dimensional uint64 array, got {ids.dtype} with shape {ids.shape}"
        )
    return np.ascontiguousarray(ids)


def check_counts(counts: Any, length: int) -> I64:
    """Return `length` counts as a C-contiguous array, int64 [length], or raise.

    Raises:
        InvalidInputError: the dtype or the shape is wrong.
    """
    counts = np.asarray(counts)
    if counts.dtype != np.int64 or counts.shape != (length,):
        raise InvalidInputError(
            f"counts must be int64 with shape ({length},), got {counts.dtype} with shape"
            f" {counts.shape}"
        )
    return np.ascontiguousarray(counts)


def check_encoding(
    counters: I64, location: U32, sign: U32, sign_bit: int, ids: U64
) -> tuple[U32, U32, U64]:
    """Check the arguments of `accumulate`; return `location`, `sign` and `ids` C-contiguous.

    `counters` must be C-contiguous already, because the kernel changes them in place.

    Raises:
        InvalidInputError: a dtype, a shape or `sign_bit` is wrong.
    """
    if (
        counters.dtype != np.int64
        or counters.ndim != 2
        or not counters.flags.c_contiguous
        or not counters.flags.writeable
    ):
        raise InvalidInputError(
            "counters must be a writeable C-contiguous int64 array [rows, width]"
        )
    validate.integer(1, MAX_ROWS, rows=counters.shape[0])
    validate.integer(1, MAX_WIDTH, width=counters.shape[1])
    validate.integer(0, 7, sign_bit=sign_bit)
    # The compiled kernel hashes each id only once if `location` and `sign` are the same array. If
    # each were copied, they would be two arrays.
    same = sign is location
    location = check_tables(location)
    sign = location if same else check_tables(sign)
    if len(location) != len(counters) or len(sign) != len(counters):
        raise InvalidInputError(
            f"tables must have {len(counters)} rows as counters, got {len(location)} and"
            f" {len(sign)}"
        )
    return location, sign, check_ids(ids)
