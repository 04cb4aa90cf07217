"""The kernels: hashing, encoding, decoding, fingerprints and draws over arrays.

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
    """Return the tabulation word of every (row, id).

    Args:
        tables: uint32 [rows, 8, 256].
        ids: uint64 [n].

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
    """Add sign * count of every id to its cell in every row of `counters`, in place.

    Args:
        counters: int64 [rows, width], C-contiguous.
        location: uint32 [rows, 8, 256], the tables whose words give the cells.
        sign: the tables whose words give the signs; may be `location` itself.
        sign_bit: which of the 8 low bits of the word is the sign.
        ids: uint64 [n].
        counts: int64 [n], or None for one each. The caller must bound them so that no sum leaves
            int64.
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
    """Do the same as `accumulate` for the ids from `first_id` on (mod 2^64), with one count each.

    Args:
        counters: int64 [rows, width], C-contiguous, changed in place.
        location: uint32 [rows, 8, 256].
        sign: uint32 [rows, 8, 256].
        sign_bit: 0 .. 7.
        first_id: 0 .. 2^64 - 1.
        counts: int64 [n].
    """
    first_id = validate.integer(first_id=first_id)
    counts = check_counts(counts, len(counts))
    # Without ids to check: the kernel counts from first_id itself, so none are stored.
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

    It is a polynomial in k over chunks of 7 bytes, times k2, mod 2^61 - 1. Over the key, two
    strings of at most `len` bytes collide with probability at most (len/7 + 2) / 2^61. See
    docs/protocol.md.

    Args:
        data: uint8 [bytes].
        offsets: int64 [n + 1], not falling, within data.
        k: 0 .. 2^61 - 2.
        k2: 0 .. 2^61 - 2.

    Returns:
        uint64 [n].

    >>> fingerprint(np.frombuffer(b"abc", np.uint8), np.array([0, 3]), 10, 1).tolist()
    [6513289]
    """
    data = np.ascontiguousarray(data, np.uint8)
    offsets = np.ascontiguousarray(offsets, np.int64)
    validate.integer(0, reference.PRIME - 1, k=k)
    validate.integer(0, reference.PRIME - 1, k2=k2)
    # With other offsets the compiled kernel would read outside of `data`.
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
    """Return the cell of each word in a row of `width` counters.

    >>> locations(np.array([0, 2**32 - 1], np.uint32), 10).tolist()
    [0, 9]
    """
    return reference.locations(words, width)


def signs(words: U32, bit: int) -> I64:
    """Return +1 where the bit of the word is 0, -1 where it is 1.

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
    """Fit items' values in every batch of rounds to all cells, by Gauss-Seidel sweeps, in place.

    The rule is `reference.refit`; the order of the items is the order of the sweep.

    Args:
        cells: int64 [n, rows, 1 or batches], the place of each item in `residual` seen as one
            dimension. With 1 it is the place of the first batch, which the others follow.
        signs: int8 [n, rows, batches], +1 or -1.
        clients: float64 [batches]; a batch without clients takes no part.
        residual: float64 [rows, width, batches], C-contiguous: the landed frequencies less the
            items' values.
        values: float64 [n, batches], C-contiguous: the items' frequencies.
        shrinkage: float64 [n, batches], C-contiguous: the share, 0 .. 1, that is kept of a batch's
            deviation from the item's mean.
        sweeps: at least 0.
        frozen: whether `shrinkage` is used as it is given. Otherwise it is chosen, and written
            there. A frozen fit is linear.
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
    # These are changed in place, so a converted copy would take the changes away with it.
    if any(
        a.dtype != np.float64 or not a.flags.c_contiguous
        for a in (residual, values, shrinkage, clients)
    ):
        raise InvalidInputError(
            "residual, values, shrinkage and clients must be C-contiguous float64"
        )
    # The compiled kernel writes to the cells without a look at the bounds.
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
    """Return the mean over rows of an id's signed counters, each cut to -most .. most.

    It is asked of many small sketches at once, for the 256 ids that differ in their last byte:
    first_id, first_id + 1 and so on. Bit 0 of a word is the sign. The rule is
    `reference.symbol_means`.

    Args:
        tables: uint32 [sketches, rows, 8, 256].
        sums: float64 [sketches, rows, width], C-contiguous.
        first_id: a multiple of 256, 0 .. 2^64 - 256.
        most: float64 [sketches], at least 0.

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
    """Run `one` on parts of the ids, each thread into counters of its own, and add them up."""
    # Each thread pays for counters of its own, so it must get at least a row's width of ids.
    threads = min(
        num_threads(),
        max(1, count * len(counters) // PARALLEL_FROM),
        max(1, count // counters.shape[1]),
    )
    if threads == 1:
        one(counters, slice(0, count))
        return
    parts = list(blocks(count, -(-count // threads)))
    # The first part goes into the caller's counters: one array less to allocate and to add.
    own = [counters, *(np.zeros_like(counters) for _ in parts[1:])]
    in_threads(lambda job: one(*job), zip(own, parts, strict=True), threads)
    for other in own[1:]:
        counters += other
