"""Kernels for the rows of tables: count ids, group rows by client, check the quotes of CSV."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.kernels.backends import backend, native

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
BUCKETS = reference.BUCKETS
_MOST_ROWS = 1 << 32  # `distinct_rows` takes fewer rows than this


def group(ids: U64) -> tuple[I64, I64]:
    """Return the index of each distinct id's first occurrence, and how often the id occurs.

    Both are int64, with one entry for each distinct id. The indices ascend: the ids are in the
    order in which they first occur.

    >>> [part.tolist() for part in group(np.array([7, 5, 7], np.uint64))]
    [[0, 1], [2, 1]]
    """
    if backend() == "numpy":
        return reference.group(ids)
    first, counts = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    number = native.group_ids(np.ascontiguousarray(ids, np.uint64), first, counts)
    # copy, so that the unused rest of the arrays is freed
    return first[:number].copy(), counts[:number].copy()


def spread(columns: Sequence[U64]) -> tuple[U64, I64]:
    """Sort rows of a table by the buckets of their clients; rows of one bucket keep their order.

    A bucket is one of 64 groups of clients (`reference.bucket_of`). The caller can then process
    bucket after bucket.

    Args:
        columns: uint64 [n] each; the first column holds the client of each row.

    Returns:
        Two arrays. The first has the sorted rows, stored column by column, uint64 [columns, n]. The
        second has the index of the first row of each bucket, followed by n: int64 [BUCKETS + 1].

    Raises:
        InvalidInputError: the columns have different lengths.

    >>> rows, starts = spread([np.array([2, 1, 2], np.uint64), np.array([7, 8, 9], np.uint64)])
    >>> rows.tolist(), sorted(set(starts.tolist()))
    ([[2, 2, 1], [7, 9, 8]], [0, 2, 3])
    """
    if any(column.shape != columns[0].shape for column in columns):
        raise InvalidInputError("columns must have the same length")
    if backend() == "numpy":
        return reference.spread(columns)
    rows = np.empty((len(columns), len(columns[0])), np.uint64)
    starts = np.empty(BUCKETS + 1, np.int64)
    native.spread_rows([np.ascontiguousarray(each, np.uint64) for each in columns], rows, starts)
    return rows, starts


def distinct_rows(rows: U64) -> U64:
    """Return the distinct rows of a table in order of bucket (see `spread`), client, round and id.

    The table is stored column by column, so rows[:, i] is its row i.

    Args:
        rows: uint64 [2 or 3, n], with n < 2^32: the clients, the ids, and optionally the rounds or
            other numbers.

    Returns:
        uint64 [2 or 3, distinct rows].

    Raises:
        InvalidInputError: the shape of `rows` is none of these.

    >>> distinct_rows(np.array([[1, 1, 1, 1], [9, 5, 9, 7]], np.uint64)).tolist()
    [[1, 1, 1], [5, 7, 9]]
    """
    if rows.ndim != 2 or not 2 <= len(rows) <= 3 or rows.shape[1] >= _MOST_ROWS:
        raise InvalidInputError(f"rows must be uint64 [2 or 3, n < 2^32], got {rows.shape}")
    if backend() == "numpy":
        return reference.distinct_rows(rows)
    rows = np.ascontiguousarray(rows, np.uint64)
    out = np.empty_like(rows)
    return out[:, : native.sorted_rows(rows, out)]


def quotes_are_closed(data: bytes, delimiter: str) -> bool:
    r"""Return whether the quotes in whole lines of a CSV file are well formed.

    A field that begins with a quote must end with a quote, and quotes inside it must be doubled.
    Other fields must have no quotes.

    Args:
        data: whole lines; the last one ends with a line feed.
        delimiter: the character between fields, one ASCII character.

    >>> quotes_are_closed(b'tea,"ri""ce"\n', ","), quotes_are_closed(b'5" wide,"tea"\n', ",")
    (True, False)
    """
    if backend() == "numpy":
        return reference.quotes_are_closed(data, delimiter)
    return bool(native.closed_quotes(np.frombuffer(data, np.uint8), ord(delimiter)))
