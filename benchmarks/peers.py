"""What the kernels are compared with: count-min sketches of other projects, and NumPy as one would write it.

The libraries are used through their Python interfaces, one item a call or a list where they take one; sketches have the
same rows and width as ours. They come with ``pip install 'fedtally[bench]'``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

BLOCK = 1 << 13  # words of one row stay in the cache
LIBRARIES = ("datasketches", "bounter")


def installed() -> dict[str, Any]:
    """Return the peer libraries that can be imported."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.import_module(name)
        except ImportError:
            continue
    return found


def datasketches_update(module: Any, rows: int, width: int, items: list[int]) -> Callable[[], object]:
    """Return a run that puts the items in a count-min sketch of Apache DataSketches."""
    update = module.count_min_sketch(rows, width).update

    def run() -> None:
        for item in items:
            update(item)

    return run


def datasketches_query(module: Any, rows: int, width: int, items: list[int]) -> Callable[[], object]:
    """Return a run that asks Apache DataSketches for the estimates of the items."""
    estimate = module.count_min_sketch(rows, width).get_estimate
    return lambda: [estimate(item) for item in items]


def bounter_update(module: Any, rows: int, width: int, items: list[int]) -> Callable[[], object]:
    """Return a run that puts the items, as text since it takes no integers, in a count-min sketch of bounter."""
    sketch = module.CountMinSketch(width=width, depth=rows)
    texts = [str(item) for item in items]
    return lambda: sketch.update(texts)


def blocked_words(tables: U32, ids: U64) -> U32:
    """Return the tabulation words of one row, tables [8, 256]: a gather per byte, nothing larger than a block."""
    characters = ids.view(np.uint8).reshape(-1, 8)
    words: U32 = tables[0].take(characters[:, 0])
    for c in range(1, 8):
        words ^= tables[c].take(characters[:, c])
    return words


def numpy_accumulate(counters: I64, tables: U32, ids: U64) -> None:
    """Count ids as NumPy does it fastest: per row and block, one histogram over (cell, sign)."""
    width = counters.shape[1]
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        for row, own in zip(counters, tables, strict=True):
            words = blocked_words(own, block)
            cells = ((words >> 8).astype(np.uint64) * np.uint64(width)) >> np.uint64(24)
            split = np.bincount((cells << np.uint64(1) | (words & 1)).view(np.int64), minlength=2 * width)
            row += split[::2] - split[1::2]


def numpy_decode(sums: I64, tables: U32, first: int, count: int) -> F64:
    """Estimate ids first, first + 1, ... as NumPy does it fastest: by blocks and rows, partial sorts for medians."""
    batches, rows, width = sums.shape
    estimates = np.empty(count)
    values = np.ascontiguousarray(sums.transpose(1, 0, 2))
    for start in range(0, count, BLOCK):
        ids = np.arange(first + start, first + min(count, start + BLOCK), dtype=np.uint64)
        totals = np.zeros((rows, len(ids)), np.int64)
        for row in range(rows):
            words = blocked_words(tables[0, row], ids)
            cells = (((words >> 8).astype(np.uint64) * np.uint64(width)) >> np.uint64(24)).view(np.int64)
            for b in range(batches):
                if b and b % 8 == 0:
                    words = blocked_words(tables[b // 8, row], ids)
                taken = values[row, b].take(cells)
                totals[row] += np.where(words >> np.uint32(b % 8) & np.uint32(1), -taken, taken)
        totals.partition(rows // 2, axis=0)  # rows is odd here
        estimates[start : start + len(ids)] = totals[rows // 2]
    return estimates
