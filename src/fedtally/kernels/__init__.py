"""The typed door to the kernels: hashing, encoding, decoding, fingerprints and draws over arrays.

Two implementations with one meaning: `reference` (NumPy, always there) and `_native` (C++, compiled
for several instruction levels). This module is the only place that chooses. The environment
variable FEDTALLY_KERNELS forces one of ``numpy``, ``baseline``, ``v3``, ``v4``;
FEDTALLY_NUM_THREADS bounds the threads (default: the cores this process may use).

The functions below check and prepare their arguments; the kernels assume contiguous arrays of one
dtype.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedtally import _validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference

try:
    from fedtally.kernels import _native  # type: ignore[attr-defined,unused-ignore]
except ImportError:  # built without a compiler
    _native = None  # type: ignore[assignment,unused-ignore]

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
F32 = npt.NDArray[np.float32]

MAX_WIDTH = 1 << 24
MAX_ROWS = 1024
MAX_ENTRIES = 1 << 21
_PARALLEL_FROM = 1 << 16  # ids x rows below which a second thread costs more than it brings
_FLOAT32_EXACT = 1 << 24
_WORD = 2**64 - 1
_alone: ContextVar[bool] = ContextVar("one_thread", default=False)
# at least and at most; between them 8 slots for each entry, so that few have two
_GUIDE_BITS = 10, 20
# What a gather costs, relative to one from the first-level cache, by the bytes of all tables of a
# row (benchmarks/kernels.py).
GATHER_COSTS = (
    (1 << 15, 1.0),
    (1 << 18, 2.0),
    (1 << 20, 4.0),
    (1 << 22, 8.0),
    (1 << 26, 20.0),
    (1 << 62, 40.0),
)


def available_backends() -> tuple[str, ...]:
    """Return what this installation and this processor can run, slowest first.

    >>> available_backends()[0]
    'numpy'
    """
    return ("numpy",) if _native is None else ("numpy", *_native.levels())


def backend() -> str:
    """Return the implementation in use: FEDTALLY_KERNELS, or the fastest that runs here.

    Raises:
        InvalidInputError: FEDTALLY_KERNELS names one that does not run here.
    """
    asked = os.environ.get("FEDTALLY_KERNELS", "")
    names = available_backends()
    if asked and asked not in names:
        raise InvalidInputError(
            f"FEDTALLY_KERNELS={asked} does not run here; choose one of {', '.join(names)} or"
            " unset it"
        )
    return asked or names[-1]


@contextmanager
def one_thread() -> Iterator[None]:
    """Let kernels called in this context use one thread: for much work in small pieces, where more cost CPU alone."""
    before = _alone.set(True)
    try:
        yield
    finally:
        _alone.reset(before)


def num_threads() -> int:
    """Return how many threads a kernel may use: FEDTALLY_NUM_THREADS, or the cores this process may use."""
    if _alone.get():
        return 1
    asked = os.environ.get("FEDTALLY_NUM_THREADS", "")
    if not asked:
        return (
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        )
    try:
        return _validate.integer(1, 1024, FEDTALLY_NUM_THREADS=int(asked))
    except ValueError:
        raise InvalidInputError(
            f"FEDTALLY_NUM_THREADS must be an integer from 1 to 1024, got {asked!r}"
        ) from None


def hash_words(tables: U32, ids: U64) -> U32:
    """Return the tabulation word of every (row, id).

    Args:
        tables: uint32 [rows, 8, 256].
        ids: uint64 [n].

    Returns:
        uint32 [rows, n].
    """
    tables, ids = _tables(tables), _ids(ids)
    level = backend()
    if level == "numpy":
        return reference.hash_words(tables, ids)
    words = np.empty((len(tables), len(ids)), np.uint32)
    _native.hash_words(level, tables, ids, words)
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
        counts: int64 [n], or None for one each. The caller bounds them: sums must stay within
            int64.
    """
    location, sign, ids = _encode_arguments(counters, location, sign, sign_bit, ids)
    if counts is not None:
        counts = _counts(counts, len(ids))
    level = backend()
    if level == "numpy":
        reference.accumulate(counters, location, sign, sign_bit, ids, counts)
        return

    def one(out: I64, part: slice) -> None:
        _native.accumulate(
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
    """Do as `accumulate` for the ids first_id, first_id + 1, ... (mod 2^64) with one count each.

    Args:
        counters: int64 [rows, width], C-contiguous, changed in place.
        location: uint32 [rows, 8, 256].
        sign: uint32 [rows, 8, 256].
        sign_bit: 0 .. 7.
        first_id: 0 .. 2^64 - 1.
        counts: int64 [n].
    """
    first_id = _validate.integer(first_id=first_id)
    counts = _counts(counts, len(counts))
    location, sign, _ = _encode_arguments(
        counters, location, sign, sign_bit, np.empty(0, np.uint64)
    )
    level = backend()
    if level == "numpy":
        for part in _blocks(len(counts), reference.BLOCK):
            ids = range_ids(first_id + part.start, part.stop - part.start)
            reference.accumulate(counters, location, sign, sign_bit, ids, counts[part])
        return

    def one(out: I64, part: slice) -> None:
        _native.accumulate_range(
            level, location, sign, sign_bit, (first_id + part.start) % 2**64, counts[part], out
        )

    _accumulate_parts(counters, len(counts), one)


def range_ids(first_id: int, count: int) -> U64:
    """Return the ids first_id, first_id + 1, ... mod 2^64.

    >>> range_ids(2**64 - 1, 2).tolist()
    [18446744073709551615, 0]
    """
    return np.arange(count, dtype=np.uint64) + np.uint64(first_id % 2**64)


def fingerprint(data: npt.NDArray[np.uint8], offsets: I64, k: int, k2: int) -> U64:
    """Return the keyed fingerprint, below 2^61 - 1, of each byte string data[offsets[i]:offsets[i+1]].

    A polynomial in k over chunks of 7 bytes, times k2, mod 2^61 - 1: two strings of at most `len`
    bytes collide with probability at most (len/7 + 2) / 2^61 over the key. See docs/sketch.md.

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
    _validate.integer(0, reference.PRIME - 1, k=k)
    _validate.integer(0, reference.PRIME - 1, k2=k2)
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
    _native.fingerprint(data, offsets, k, k2, out)
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
        cells: int64 [n, rows, 1 or batches], where each item lies in `residual` seen as one
            dimension; with 1, its first batch, the others following.
        signs: int8 [n, rows, batches], +1 or -1.
        clients: float64 [batches]; a batch without clients takes no part.
        residual: float64 [rows, width, batches], C-contiguous: the landed frequencies less what the
            items explain.
        values: float64 [n, batches], C-contiguous: the items' frequencies.
        shrinkage: float64 [n, batches], C-contiguous: the share, 0 .. 1, that is kept of a batch's
            deviation from the item's mean.
        sweeps: at least 0.
        frozen: use `shrinkage` as it is given; otherwise it is chosen, and returned there. A frozen
            fit is linear.
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
    if any(
        a.dtype != np.float64 or not a.flags.c_contiguous
        for a in (residual, values, shrinkage, clients)
    ):
        raise InvalidInputError(
            "residual, values, shrinkage and clients must be C-contiguous float64"
        )
    if cells.size and (
        cells.min() < 0 or cells.max() + (batches if cells.shape[2] == 1 else 1) > residual.size
    ):
        raise InvalidInputError("cells must lie within residual")
    _validate.integer(0, sweeps=sweeps)
    if backend() == "numpy":
        reference.refit(cells, signs, clients, residual, values, shrinkage, sweeps, frozen)
    else:
        cells, signs = np.ascontiguousarray(cells, np.int64), np.ascontiguousarray(signs, np.int8)
        _native.refit(cells, signs, clients, residual, values, shrinkage, sweeps, frozen)


@dataclass(frozen=True)
class Subtable:
    """Sign patterns of `bits` consecutive batches, from bit `shift` of the word of hash group `group` on."""

    group: int
    shift: int
    bits: int


class Decoder:
    """Estimates from sums of sketches: the median, or mean, over rows of the sum over batches of sign * counter.

    Prepared once, asked often. For sums of integers every median is exact: single precision is used
    where no intermediate value can exceed 2^24, double precision elsewhere (exact below 2^53).

    Args:
        sums: int64, float64, or float32 [batches, rows, width]; float32 is added in single
            precision.
        tables: uint32 [groups, rows, 8, 256]; group 0 gives the location, bit b % 8 of the word of
            group b // 8 the sign of batch b.
        expected: about how many ids will be asked for; small numbers make preparation cheaper.
        fold: "median" or "mean".
        signed: False for values without signs, of one batch: what the cells of an item hold.
    """

    def __init__(
        self,
        sums: I64 | F64 | F32,
        tables: U32,
        expected: int = 1 << 20,
        fold: Literal["median", "mean"] = "median",
        signed: bool = True,
    ) -> None:
        if sums.dtype not in (np.int64, np.float64, np.float32) or tables.dtype != np.uint32:
            raise InvalidInputError(
                f"sums must be int64, float64 or float32 and tables uint32, got {sums.dtype} and"
                f" {tables.dtype}"
            )
        if fold not in ("median", "mean"):
            raise InvalidInputError(f"fold must be median or mean, got {fold!r}")
        self._sums: Any = np.ascontiguousarray(sums)
        self._tables = np.ascontiguousarray(tables, np.uint32)
        self._fold, self._signed = fold, signed
        if self._sums.ndim != 3 or 0 in self._sums.shape:
            raise InvalidInputError(
                "sums must be [batches, rows, width] with at least one each, got shape"
                f" {sums.shape}"
            )
        batches, rows, width = self._sums.shape
        if self._tables.shape != (-(-batches // 8), rows, 8, 256):
            raise InvalidInputError(
                f"tables must have shape {(-(-batches // 8), rows, 8, 256)}, got {tables.shape}"
            )
        if not signed and batches != 1:
            raise InvalidInputError(f"values without signs must be of one batch, got {batches}")
        _validate.integer(1, MAX_ROWS, rows=rows)
        _validate.integer(1, MAX_WIDTH, width=width)
        self._level = backend()
        if self._level != "numpy":
            self._prepare(expected)

    def at(self, ids: U64) -> F64:
        """Return the estimate of each id: float64 [n]."""
        ids = _ids(ids)
        if self._level == "numpy":
            return reference.decode(self._sums, self._tables, ids, self._fold, self._signed)
        return self._run(len(ids), ids, 0)

    def range(self, first_id: int, count: int) -> F64:
        """Return the estimates of the ids first_id, first_id + 1, ...
        (mod 2^64): float64 [count].
        """
        first_id, count = _validate.integer(first_id=first_id), _validate.integer(0, count=count)
        if self._level == "numpy":
            parts = [
                self.at(range_ids(first_id + p.start, p.stop - p.start))
                for p in _blocks(count, reference.BLOCK)
            ]
            return np.concatenate(parts) if parts else np.empty(0)
        return self._run(count, None, first_id)

    def _run(self, count: int, ids: U64 | None, first_id: int) -> F64:
        estimates = np.empty(count)
        width, mean = self._sums.shape[2], self._fold == "mean"

        def one(part: slice) -> None:
            asked = None if ids is None else ids[part]
            first = (first_id + part.start) % 2**64
            _native.decode(
                self._level,
                self._tables,
                width,
                self._layout,
                self._values,
                mean,
                asked,
                first,
                estimates[part],
            )

        rows = self._sums.shape[1]
        threads = min(num_threads(), max(1, count * rows // _PARALLEL_FROM))
        _in_threads(one, _blocks(count, -(-count // threads) if count else 1), threads)
        return estimates

    def _prepare(self, expected: int) -> None:
        _, rows, width = self._sums.shape
        dtype = np.float32 if self._fits_float32() else np.float64
        if not self._signed:  # no sign bits: the pattern of every cell is empty
            self._values = self._sums.astype(dtype).reshape(-1)
            self._layout = np.zeros((1, 3), np.uint32)
            return
        subtables = plan_subtables(self._sums.shape, np.dtype(dtype).itemsize, expected)
        sizes = [rows * width << s.bits for s in subtables]
        self._values = np.empty(sum(sizes), dtype)
        for s, part in zip(subtables, np.split(self._values, np.cumsum(sizes)[:-1]), strict=True):
            _fill_patterns(
                part.reshape(rows, width, -1), self._sums[8 * s.group + s.shift :][: s.bits]
            )
        self._layout = np.array([(s.group, s.shift, s.bits) for s in subtables], np.uint32)

    def _fits_float32(self) -> bool:
        """Say whether every partial sum, and for even rows the sum of two, is an integer that float32 holds exactly."""
        if self._sums.dtype.kind == "f":
            return bool(self._sums.dtype == np.float32)
        largest = sum(max(int(batch.max()), -int(batch.min())) for batch in self._sums)
        return largest * (2 if self._sums.shape[1] % 2 == 0 else 1) < _FLOAT32_EXACT


class Inversion:
    """Draws from a distribution over consecutive integers, by inversion of its cumulative table.
    Prepared once.

    A draw is `first` plus how many entries of the table are at most u = 2^64 word + low word: for
    uniform u, the draw first + j has probability (cumulative[j] - cumulative[j - 1]) / 2^128. The
    word settles it alone unless it equals the upper half of an entry: the low words are needed only
    then.

    Args:
        cumulative: integers 0 .. 2^128 - 1 that do not fall, 1 .. 2^21 of them: 2^128 times the
            distribution function, without the last 1.
        first: the smallest draw, -2^62 .. 2^62.

    >>> Inversion([2**127], 5).draw(np.array([2**63 - 1, 2**63 + 1], np.uint64)).tolist()
    [5, 6]
    """

    def __init__(self, cumulative: Sequence[int], first: int) -> None:
        _validate.integer(1, MAX_ENTRIES, entries=len(cumulative))
        self._first = _validate.integer(-(1 << 62), 1 << 62, first=first)
        if (
            cumulative[0] < 0
            or cumulative[-1] >= 1 << 128
            or any(a > b for a, b in pairwise(cumulative))
        ):
            raise InvalidInputError("cumulative must be integers 0 .. 2^128 - 1 that do not fall")
        upper = np.array([entry >> 64 for entry in cumulative], np.uint64)
        self._cumulative = upper, np.array([entry & _WORD for entry in cumulative], np.uint64)
        inner = upper[(upper > 0) & (upper < _WORD)]
        self._bounds = np.concatenate(
            [np.array([0], np.uint64), inner, np.array([_WORD], np.uint64)]
        )
        self._base = self._first + int(np.count_nonzero(upper == 0)) - 1
        bits = min(max(_GUIDE_BITS[0], len(inner).bit_length() + 3), _GUIDE_BITS[1])
        slots = np.arange(1 << bits, dtype=np.uint64) << np.uint64(64 - bits)
        self._guide = np.searchsorted(self._bounds, slots).astype(np.uint32)

    def draw(self, words: U64, low: U64 | None = None, scan: bool = False) -> I64 | None:
        """Return a draw for every word, or None where a word needs its low word and there is none.

        Args:
            words: uint64 [n], C-contiguous and writeable. Overwritten: the draws may take their
                memory.
            low: uint64 [n], or None. With them the reference draws.
            scan: compare every word with every entry, so that time does not depend on the draw.

        Returns:
            int64 [n], or None: some word equals the upper half of an entry (or is 0 or 2^64 - 1).
        """
        words = _ids(words)
        if low is not None or backend() == "numpy":
            low = None if low is None else _ids(low)
            return reference.invert(words, low, self._cumulative, self._first, scan)
        tied = _native.invert(backend(), self._bounds, self._guide, self._base, scan, words)
        return None if tied else words.view(np.int64)


def plan_subtables(shape: tuple[int, ...], itemsize: int, expected: int) -> list[Subtable]:
    """Choose how many sign patterns to tabulate together: fewer, larger tables against what the caches hold.

    All tables together take at most twice the memory of the sums, or 64 MiB.
    """
    batches, rows, width = shape
    allowed = max(1 << 26, 2 * 8 * batches * rows * width)

    def split(bits: int) -> list[Subtable]:
        return [
            Subtable(group, shift, min(bits, in_group - shift))
            for group, in_group in enumerate(
                min(8, batches - start) for start in range(0, batches, 8)
            )
            for shift in range(0, in_group, bits)
        ]

    def cost(bits: int) -> float:
        subtables = split(bits)
        cells = sum(width << s.bits for s in subtables)
        size = cells * itemsize
        gather = next(cost for bound, cost in GATHER_COSTS if size <= bound)
        return len(subtables) * gather * expected + 2.0 * cells

    def fits(bits: int) -> bool:
        return bits == 1 or sum(width << s.bits for s in split(bits)) * rows * itemsize <= allowed

    return split(min(filter(fits, range(1, min(8, batches) + 1)), key=cost))


def _fill_patterns(patterns: npt.NDArray[Any], batches: I64 | F64 | F32) -> None:
    """Fill [rows, width, 2^bits] with the sum of the batches, each negated where its bit of the pattern is 1."""
    patterns[..., 0] = batches.sum(axis=0)
    for b, batch in enumerate(batches):
        done = 1 << b
        np.subtract(
            patterns[..., :done],
            2 * batch[..., None],
            out=patterns[..., done : 2 * done],
            casting="unsafe",
        )


def _tables(tables: U32) -> U32:
    if tables.dtype != np.uint32 or tables.ndim != 3 or tables.shape[1:] != (8, 256):
        raise InvalidInputError(
            f"tables must be uint32 [rows, 8, 256], got {tables.dtype} with shape {tables.shape}"
        )
    return np.ascontiguousarray(tables)


def _ids(ids: Any) -> U64:
    ids = np.asarray(ids)
    if ids.dtype != np.uint64 or ids.ndim != 1:
        raise InvalidInputError(
            f"ids must be a one-dimensional uint64 array, got {ids.dtype} with shape {ids.shape}"
        )
    return np.ascontiguousarray(ids)


def _counts(counts: Any, length: int) -> I64:
    counts = np.asarray(counts)
    if counts.dtype != np.int64 or counts.shape != (length,):
        raise InvalidInputError(
            f"counts must be int64 with shape ({length},), got {counts.dtype} with shape"
            f" {counts.shape}"
        )
    return np.ascontiguousarray(counts)


def _encode_arguments(
    counters: I64, location: U32, sign: U32, sign_bit: int, ids: U64
) -> tuple[U32, U32, U64]:
    if (
        counters.dtype != np.int64
        or counters.ndim != 2
        or not counters.flags.c_contiguous
        or not counters.flags.writeable
    ):
        raise InvalidInputError(
            "counters must be a writeable C-contiguous int64 array [rows, width]"
        )
    _validate.integer(1, MAX_ROWS, rows=counters.shape[0])
    _validate.integer(1, MAX_WIDTH, width=counters.shape[1])
    _validate.integer(0, 7, sign_bit=sign_bit)
    same = sign is location
    location = _tables(location)
    sign = location if same else _tables(sign)
    if len(location) != len(counters) or len(sign) != len(counters):
        raise InvalidInputError(
            f"tables must have {len(counters)} rows as counters, got {len(location)} and"
            f" {len(sign)}"
        )
    return location, sign, _ids(ids)


def _blocks(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(count, start + size))


def _accumulate_parts(counters: I64, count: int, one: Callable[[I64, slice], None]) -> None:
    """Run `one` on parts of the ids, each thread into counters of its own, and add them up."""
    threads = min(
        num_threads(),
        max(1, count * len(counters) // _PARALLEL_FROM),
        max(1, count // counters.shape[1]),
    )
    if threads == 1:
        one(counters, slice(0, count))
        return
    parts = list(_blocks(count, -(-count // threads)))
    own = [counters, *(np.zeros_like(counters) for _ in parts[1:])]
    _in_threads(lambda job: one(*job), zip(own, parts, strict=True), threads)
    for other in own[1:]:
        counters += other


def _in_threads(work: Callable[[Any], None], jobs: Iterable[Any], threads: int) -> None:
    if threads == 1:
        for job in jobs:
            work(job)
    else:
        list(_pool(threads).map(work, jobs))


@cache
def _pool(threads: int) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(threads, thread_name_prefix="fedtally")
