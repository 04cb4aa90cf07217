"""The kernels: hashing, encoding, decoding, fingerprints and random draws over arrays.

Each kernel has two implementations with the same results: `reference` (NumPy, always there) and
`_native` (C++, compiled for several instruction levels). `backends` chooses between them.

The functions below check and prepare their arguments; the kernels assume contiguous arrays of one
dtype.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference
from fedtally.kernels.arguments import (
    F64,
    I64,
    MAX_ROWS,
    MAX_WIDTH,
    U32,
    U64,
    check_counts,
    check_encoding,
    check_ids,
    check_tables,
    range_ids,
)
from fedtally.kernels.backends import (
    PARALLEL_FROM,
    available_backends,
    backend,
    blocks,
    in_threads,
    native,
    num_threads,
    one_thread,
)
from fedtally.kernels.decoder import GATHER_COSTS, Decoder, Subtable, plan_subtables
from fedtally.kernels.halves import Halves
from fedtally.kernels.inversion import MAX_ENTRIES, Inversion

__all__ = [
    "GATHER_COSTS",
    "MAX_ENTRIES",
    "MAX_ROWS",
    "MAX_WIDTH",
    "Decoder",
    "Halves",
    "Inversion",
    "Subtable",
    "accumulate",
    "accumulate_range",
    "available_backends",
    "backend",
    "fingerprint",
    "hash_words",
    "locations",
    "num_threads",
    "one_thread",
    "plan_subtables",
    "range_ids",
    "refit",
    "signs",
    "symbol_means",
]


def hash_words(tables: U32, ids: U64) -> U32:
    """Return the hash word of each id in each row (tabulation hashing).

    Args:
        tables: the hash tables, uint32 [rows, 8, 256].
        ids: the ids, uint64 [n].

    Returns:
        uint32 [rows, n].
    """
    tables, ids = check_tables(tables), check_ids(ids)
    level = backend()
    if level == "numpy":
        return reference.hash_words(tables, ids)
    words = np.empty((len(tables), len(ids)), np.uint32)
    native.hash_words(level, tables, ids, words)
    return words


def accumulate(
    counters: I64, location: U32, sign: U32, sign_bit: int, ids: U64, counts: I64 | None = None
) -> None:
    """Add sign * count of each id to its cell in each row of `counters`, in place.

    Args:
        counters: the counters to change, int64 [rows, width], C-contiguous.
        location: the hash tables whose words give the cells, uint32 [rows, 8, 256].
        sign: the hash tables whose words give the signs, of the same shape; may be `location`
            itself.
        sign_bit: the bit of the word that is the sign, 0 .. 7.
        ids: the ids, uint64 [n].
        counts: the count of each id, int64 [n]; None: 1 each. The caller must bound them so that no
            sum overflows int64.
    """
    location, sign, ids = check_encoding(counters, location, sign, sign_bit, ids)
    if counts is not None:
        counts = check_counts(counts, len(ids))
    level = backend()
    if level == "numpy":
        reference.accumulate(counters, location, sign, sign_bit, ids, counts)
        return

    def one(out: I64, part: slice) -> None:
        native.accumulate(
            level,
            location,
            sign,
            sign_bit,
            ids[part],
            None if counts is None else counts[part],
            out,
        )

    _accumulate_parts(counters, len(ids), one)


def accumulate_range(
    counters: I64, location: U32, sign: U32, sign_bit: int, first_id: int, counts: I64
) -> None:
    """Do the same as `accumulate` for the n ids from `first_id` on (mod 2^64).

    Args:
        counters: the counters to change, int64 [rows, width], C-contiguous.
        location: the hash tables whose words give the cells, uint32 [rows, 8, 256].
        sign: the hash tables whose words give the signs, uint32 [rows, 8, 256].
        sign_bit: the bit of the word that is the sign, 0 .. 7.
        first_id: the first id, 0 .. 2^64 - 1.
        counts: the count of each id, int64 [n].
    """
    first_id = validate.integer(first_id=first_id)
    counts = check_counts(counts, len(counts))
    # There is no array of ids to check: the kernel generates the ids from first_id on.
    location, sign, _ = check_encoding(counters, location, sign, sign_bit, np.empty(0, np.uint64))
    level = backend()
    if level == "numpy":
        for part in blocks(len(counts), reference.BLOCK):
            ids = range_ids(first_id + part.start, part.stop - part.start)
            reference.accumulate(counters, location, sign, sign_bit, ids, counts[part])
        return

    def one(out: I64, part: slice) -> None:
        native.accumulate_range(
            level, location, sign, sign_bit, (first_id + part.start) % 2**64, counts[part], out
        )

    _accumulate_parts(counters, len(counts), one)


def fingerprint(data: npt.NDArray[np.uint8], offsets: I64, k: int, k2: int) -> U64:
    """Return the keyed fingerprint of each byte string data[offsets[i]:offsets[i+1]].

    The fingerprint is a polynomial in k over chunks of 7 bytes, times k2, mod 2^61 - 1. For a
    random key (k, k2), two strings of at most `len` bytes collide with probability at most (len/7 +
    2) / 2^61. See docs/protocol.md.

    Args:
        data: the bytes of all strings, uint8 [bytes].
        offsets: the boundaries of the strings in `data`, int64 [n + 1], nondecreasing.
        k: the first part of the key, 0 .. 2^61 - 2.
        k2: the second part of the key, 0 .. 2^61 - 2.

    Returns:
        uint64 [n].

    >>> fingerprint(np.frombuffer(b"abc", np.uint8), np.array([0, 3]), 10, 1).tolist()
    [6513289]
    """
    data = np.ascontiguousarray(data, np.uint8)
    offsets = np.ascontiguousarray(offsets, np.int64)
    validate.integer(0, reference.PRIME - 1, k=k)
    validate.integer(0, reference.PRIME - 1, k2=k2)
    # With invalid offsets the compiled kernel would read outside of `data`.
    if (
        not len(offsets)
        or offsets[0] < 0
        or offsets[-1] > len(data)
        or np.any(offsets[1:] < offsets[:-1])
    ):
        raise InvalidInputError("offsets must start at 0 or more, never fall and end within data")
    if backend() == "numpy":
        return reference.fingerprint(data, offsets, k, k2)
    out = np.empty(len(offsets) - 1, np.uint64)
    native.fingerprint(data, offsets, k, k2, out)
    return out


def locations(words: U32, width: int) -> npt.NDArray[np.intp]:
    """Return the cell of each hash word in a row of `width` counters.

    >>> locations(np.array([0, 2**32 - 1], np.uint32), 10).tolist()
    [0, 9]
    """
    return reference.locations(words, width)


def signs(words: U32, bit: int) -> I64:
    """Return the sign that one bit of each hash word gives: +1 if the bit is 0, -1 if it is 1.

    >>> signs(np.array([0, 4], np.uint32), 2).tolist()
    [1, -1]
    """
    return reference.signs(words, bit)


def refit(
    cells: I64,
    signs: npt.NDArray[np.int8],
    clients: F64,
    residual: F64,
    values: F64,
    shrinkage: F64,
    sweeps: int,
    frozen: bool = False,
) -> None:
    """Fit the items' values in every batch of rounds to all cells, in place (Gauss-Seidel).

    `reference.refit` defines the rule. A sweep updates the items in their given order.

    Args:
        cells: the index of each item's cell in the flattened `residual`, int64 [n, rows, 1 or
            batches]. With 1 it is the cell of the first batch, and the other batches follow it.
        signs: the sign of each item in each cell, int8 [n, rows, batches], +1 or -1.
        clients: the number of clients in each batch, float64 [batches]. A batch without clients has
            no weight, and its values become 0.
        residual: the landed frequencies less the items' values, float64 [rows, width, batches],
            C-contiguous; changed.
        values: the items' frequencies, float64 [n, batches], C-contiguous; changed.
        shrinkage: the share, 0 .. 1, of a batch's deviation from the item's mean that is kept:
            float64 [n, batches], C-contiguous; changed unless `frozen`.
        sweeps: the number of sweeps over all items, at least 0.
        frozen: whether `shrinkage` is used as it is given. Otherwise it is computed, and written to
            `shrinkage`. A frozen fit is linear.
    """
    rows, _, batches = residual.shape
    shapes = (len(values), rows)
    if cells.shape not in ((*shapes, 1), (*shapes, batches)) or signs.shape != (*shapes, batches):
        raise InvalidInputError(
            f"cells {cells.shape} and signs {signs.shape} do not fit values {values.shape}"
        )
    if (
        values.shape[1:] != (batches,)
        or clients.shape != (batches,)
        or shrinkage.shape != values.shape
    ):
        raise InvalidInputError(
            f"values {values.shape}, shrinkage {shrinkage.shape} and clients {clients.shape} must"
            f" be of {batches} batches"
        )
    # These arrays are changed in place: a converted copy would lose the changes.
    if any(
        a.dtype != np.float64 or not a.flags.c_contiguous
        for a in (residual, values, shrinkage, clients)
    ):
        raise InvalidInputError(
            "residual, values, shrinkage and clients must be C-contiguous float64"
        )
    # The compiled kernel writes to the cells without checking bounds.
    if cells.size and (
        cells.min() < 0 or cells.max() + (batches if cells.shape[2] == 1 else 1) > residual.size
    ):
        raise InvalidInputError("cells must lie within residual")
    validate.integer(0, sweeps=sweeps)
    if backend() == "numpy":
        reference.refit(cells, signs, clients, residual, values, shrinkage, sweeps, frozen)
    else:
        cells, signs = np.ascontiguousarray(cells, np.int64), np.ascontiguousarray(signs, np.int8)
        native.refit(cells, signs, clients, residual, values, shrinkage, sweeps, frozen)


def symbol_means(tables: U32, sums: F64, first_id: int, most: F64) -> F64:
    """Return the mean over rows of each id's signed counters, each clipped to -most .. most.

    It works on many small sketches at once, for the 256 ids that differ only in their last byte:
    first_id, first_id + 1 and so on. Bit 0 of a word is the sign. `reference.symbol_means` defines
    the rule.

    Args:
        tables: the hash tables of each sketch, uint32 [sketches, rows, 8, 256].
        sums: the counters of each sketch, float64 [sketches, rows, width], C-contiguous.
        first_id: the first id, a multiple of 256, 0 .. 2^64 - 256.
        most: the clipping bound of each sketch, float64 [sketches], at least 0.

    Returns:
        float64 [sketches, 256].

    >>> tables = np.zeros((1, 3, 8, 256), np.uint32)  # all ids lie in cell 0, with sign +1
    >>> sums = np.array([[[1.0, 0.0], [2.0, 0.0], [9.0, 0.0]]])
    >>> symbol_means(tables, sums, 512, np.array([6.0]))[0, :3].tolist()
    [3.0, 3.0, 3.0]
    """
    if sums.dtype != np.float64 or sums.ndim != 3 or not sums.flags.c_contiguous:
        raise InvalidInputError("sums must be C-contiguous float64 [sketches, rows, width]")
    sketches, rows, width = sums.shape
    validate.integer(1, MAX_ROWS, rows=rows)
    validate.integer(1, MAX_WIDTH, width=width)
    if tables.dtype != np.uint32 or tables.shape != (sketches, rows, 8, 256):
        raise InvalidInputError(
            f"tables must be uint32 {(sketches, rows, 8, 256)} as sums, got {tables.dtype}"
            f" {tables.shape}"
        )
    if most.dtype != np.float64 or most.shape != (sketches,):
        raise InvalidInputError(
            f"most must be float64 ({sketches},), got {most.dtype} {most.shape}"
        )
    first_id = validate.integer(0, 2**64 - 256, first_id=first_id)
    if first_id % 256:
        raise InvalidInputError(f"first_id must be a multiple of 256, got {first_id}")
    if backend() == "numpy":
        return reference.symbol_means(tables, sums, first_id, most)
    means = np.empty((sketches, 256))
    native.symbol_means(
        np.ascontiguousarray(tables), sums, first_id, np.ascontiguousarray(most), means
    )
    return means


def _accumulate_parts(counters: I64, count: int, one: Callable[[I64, slice], None]) -> None:
    """Run `one` on parts of the ids in threads, each with its own counters, and add these up."""
    # A thread's own counters cost time: give each thread at least as many ids as a row has cells.
    threads = min(
        num_threads(),
        max(1, count * len(counters) // PARALLEL_FROM),
        max(1, count // counters.shape[1]),
    )
    if threads == 1:
        one(counters, slice(0, count))
        return
    parts = list(blocks(count, -(-count // threads)))
    # The first thread uses the caller's counters, which saves an array.
    own = [counters, *(np.zeros_like(counters) for _ in parts[1:])]
    in_threads(lambda job: one(*job), zip(own, parts, strict=True), threads)
    for other in own[1:]:
        counters += other
