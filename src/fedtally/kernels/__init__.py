"""The kernels: loops over arrays for hashing, encoding, decoding, fingerprints and random draws.

Each kernel has two implementations: one in NumPy, mostly in `reference`, which is always available,
and `_native` (C++, compiled for several instruction sets). Both return equal integers; their
numbers in floating point may differ by rounding. `backends` chooses one implementation.

The functions of this module check and convert their arguments, since kernels accept only contiguous
arrays of one dtype.
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

    A hash word has 32 bits. The upper 24 give the id's cell in the row (`locations`), and the low 8
    give its signs (`signs`).

    Args:
        tables: the hash tables, uint32 [rows, 8, 256].
        ids: the ids, uint64 [n].

    Returns:
        uint32 [rows, n].

    Raises:
        InvalidInputError: a dtype or a shape is wrong.
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
    """Add sign * count of each id to the id's cell (counter) in each row, in place.

    Args:
        counters: the counters to change, int64 [rows, width], C-contiguous.
        location: hash tables, uint32 [rows, 8, 256]; their words give the cell of each id.
        sign: hash tables of the same shape; their words give the sign of each id. May be the same
            array as `location`.
        sign_bit: which bit of a word of `sign` is the sign, 0 .. 7.
        ids: the ids, uint64 [n].
        counts: the count of each id, int64 [n]; None: 1 each. The caller must ensure that no
            counter overflows int64.

    Raises:
        InvalidInputError: a dtype, a shape or `sign_bit` is wrong.
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
    """Add sign * count of each of n consecutive ids to its cell in each row, in place.

    It does the same as `accumulate` with the ids first_id, first_id + 1, ... (mod 2^64).

    Args:
        counters: the counters to change, int64 [rows, width], C-contiguous.
        location: hash tables, uint32 [rows, 8, 256]; their words give the cell of each id.
        sign: hash tables of the same shape; their words give the sign of each id.
        sign_bit: which bit of a word of `sign` is the sign, 0 .. 7.
        first_id: the first id; any integer is taken mod 2^64.
        counts: the count of each id, int64 [n]. The caller must ensure that no counter overflows
            int64.

    Raises:
        InvalidInputError: a dtype, a shape or `sign_bit` is wrong.
    """
    first_id = validate.integer(first_id=first_id)
    counts = check_counts(counts, len(counts))
    # The ids are generated later, so an empty array takes their place in the check.
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

    The fingerprint is a polynomial in k over chunks of 7 bytes, multiplied by k2, mod 2^61 - 1. For
    a random key (k, k2), two different strings of at most s bytes have the same fingerprint with a
    probability of at most (s / 7 + 2) / 2^61. See docs/protocol.md.

    Args:
        data: the bytes of all strings, uint8 [bytes].
        offsets: the boundaries of the strings in `data`, int64 [n + 1], nondecreasing.
        k: the first part of the key, 0 .. 2^61 - 2.
        k2: the second part of the key, 0 .. 2^61 - 2.

    Returns:
        uint64 [n].

    Raises:
        InvalidInputError: k or k2 is out of its range, or the offsets are empty, fall, or lie
            outside `data`.

    >>> fingerprint(np.frombuffer(b"abc", np.uint8), np.array([0, 3]), 10, 1).tolist()
    [6513289]
    """
    data = np.ascontiguousarray(data, np.uint8)
    offsets = np.ascontiguousarray(offsets, np.int64)
    validate.integer(0, reference.PRIME - 1, k=k)
    validate.integer(0, reference.PRIME - 1, k2=k2)
    # With invalid offsets the compiled kernel would read outside `data`.
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
    """Return the index of the cell, 0 .. width - 1, that each hash word gives.

    The result is intp, shaped like `words`.

    >>> locations(np.array([0, 2**32 - 1], np.uint32), 10).tolist()
    [0, 9]
    """
    return reference.locations(words, width)


def signs(words: U32, bit: int) -> I64:
    """Return the sign that bit `bit` of each hash word gives: 1 if the bit is 0, and -1 if it is 1.

    The result is int64, shaped like `words`.

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
    """Fit the frequencies of items in every batch of rounds to the cells, in place.

    A cell is a counter, and a batch is a group of rounds with the same signs. The function runs
    Gauss-Seidel sweeps; a sweep updates the items one after the other. `reference.refit` defines
    the update.

    Args:
        cells: the index of each item's cell in the flattened `residual`, int64 [n, rows, batches].
            With int64 [n, rows, 1] it is the index for batch 0, and batch b adds b to it.
        signs: the sign of each item in each cell, int8 [n, rows, batches], +1 or -1.
        clients: the number of clients in each batch, float64 [batches]. A batch without clients has
            no weight, and the items' frequencies in it become 0.
        residual: the observed cells, as frequencies, minus the contributions of all items, float64
            [rows, width, batches], C-contiguous; changed.
        values: the frequency of each item in each batch, float64 [n, batches], C-contiguous;
            changed.
        shrinkage: how much of the deviation of a batch from the item's mean is kept, 0 .. 1:
            float64 [n, batches], C-contiguous; changed unless `frozen`.
        sweeps: the number of sweeps over all items, at least 0.
        frozen: True: use `shrinkage` as it is given; the fit is then linear in the observations.
            False: compute `shrinkage` in each sweep.

    Raises:
        InvalidInputError: the shapes do not fit each other, an array of floats is not C-contiguous
            float64, a cell is outside `residual`, or `sweeps` is below 0.
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
    # These arrays are changed in place. If a converted copy were made, the kernel would change the
    # copy, and the caller's array would stay as it is.
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
    """Estimate the counts of 256 ids in many small sketches: means over rows of sign * counter.

    It is used to read names: the last byte of an id is a symbol of a name. Each value of sign *
    counter is first clipped to -most .. most. The ids are first_id to first_id + 255, so they
    differ only in their last byte. Bit 0 of a hash word is the sign. `reference.symbol_means`
    defines the rule.

    Args:
        tables: the hash tables of each sketch, uint32 [sketches, rows, 8, 256].
        sums: the counters of each sketch, float64 [sketches, rows, width], C-contiguous.
        first_id: the first id, a multiple of 256, 0 .. 2^64 - 256.
        most: the clipping bound of each sketch, float64 [sketches], at least 0.

    Returns:
        The means, float64 [sketches, 256]: entry i is about the id first_id + i.

    Raises:
        InvalidInputError: a shape or dtype does not fit, or `first_id` is out of its range or no
            multiple of 256.

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
    """Run `one` on slices of the ids, in threads with their own counters, and add up the counters.

    Args:
        counters: the counters to change, int64 [rows, width]: the sums of all threads are added.
        count: the number of ids.
        one: a function of counters and a slice, which adds the ids with the indices of the slice to
            these counters.
    """
    # Clearing and adding a thread's counters takes time. So if there are several threads, each gets
    # about as many ids as a row has cells, or more.
    threads = min(
        num_threads(),
        max(1, count * len(counters) // PARALLEL_FROM),
        max(1, count // counters.shape[1]),
    )
    if threads == 1:
        one(counters, slice(0, count))
        return
    parts = list(blocks(count, -(-count // threads)))
    # The first thread uses the caller's counters, so one array less is needed.
    own = [counters, *(np.zeros_like(counters) for _ in parts[1:])]
    in_threads(lambda job: one(*job), zip(own, parts, strict=True), threads)
    for other in own[1:]:
        counters += other
