"""Sketches of a stream, without privacy, at equal bytes: Apache DataSketches against ours.

A sketch has counters of 64 bits: equal bytes are equal counters, as many rows for both. The sketch
of frequent items keeps items with their counts, 16 bytes each, as many as fit; it is no sum of
vectors, so that it has no secure sum.

CPU is adding the stream and estimating every candidate, the shortest of some turns, each library
through its Python
interface: one item a call for DataSketches, arrays for ours. ``kernels`` has the rates of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.local_dp import F64, I64, Cell, Errors, errors, population, short
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

ROWS, COUNTER_BYTES, ITEM_BYTES = 5, 8, 16
FILL = 0.75  # of the slots of a sketch of frequent items
LEVELS = (10, 12, 14)  # logarithms of the slots
STREAM = Cell(1_000_000, 100_000, (), 0)
OURS = "ours, joint recovery"

Run = Callable[[], F64]


class Row(NamedTuple):
    """What a sketch of so many bytes reached: errors of frequencies, CPU seconds."""

    size: int
    sketch: str
    errors: Errors
    seconds: float


def bytes_of(level: int) -> int:
    """Return what a sketch of frequent items with 2^level slots takes when it is full.

    >>> bytes_of(10)
    12288
    """
    return int(FILL * 2**level) * ITEM_BYTES


def count_min(module: Any, width: int, items: list[int], candidates: int) -> Run:
    """Return a run of the count-min sketch of the library."""

    def run() -> F64:
        sketch = module.count_min_sketch(ROWS, width)
        update, estimate = sketch.update, sketch.get_estimate
        for item in items:
            update(item)
        return np.array([estimate(item) for item in range(candidates)])

    return run


def frequent_items(module: Any, level: int, items: list[int], candidates: int) -> Run:
    """Return a run of the library's sketch of frequent items (Anderson et al. 2017)."""

    def run() -> F64:
        sketch = module.frequent_items_sketch(level)
        update, estimate = sketch.update, sketch.get_estimate
        for item in items:
            update(item)
        return np.array([estimate(item) for item in range(candidates)], float)

    return run


def ours(recovery: str, width: int, items: I64, candidates: int, seed: int) -> Run:
    """Return a run of a count sketch of ours."""
    ids = items.astype(np.uint64)
    spec = SketchSpec(
        ROWS, width, Schedule.parse("shared"), 1, np.random.default_rng([seed, width]).bytes(32)
    )

    def run() -> F64:
        sketch = CountSketch(spec, 0)
        sketch.add(ids)
        if recovery == "median":
            return MedianDecoder([sketch], expected=candidates).range(0, candidates)
        return JointDecoder([sketch], IntegerRange(0, candidates - 1)).range(0, candidates)

    return run


def measure(
    module: Any | None,
    stream: Cell = STREAM,
    levels: Sequence[int] = LEVELS,
    turns: int = 3,
    seed: int = 1,
) -> list[Row]:
    """Return what every sketch reaches at every size; without the library, ours alone."""
    items, truth = population(stream, seed)
    listed, rows = items.tolist(), []
    for level in levels:
        size = bytes_of(level)
        width = size // (ROWS * COUNTER_BYTES)
        runs = {
            OURS: ours("joint", width, items, stream.candidates, seed),
            "ours, the paper's decoder": ours("median", width, items, stream.candidates, seed),
        }
        if module is not None:
            runs["count-min"] = count_min(module, width, listed, stream.candidates)
            runs["frequent items"] = frequent_items(module, level, listed, stream.candidates)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        found = {}
        for _ in range(turns):
            for name, run in runs.items():
                start = time.process_time()
                counts = run()
                seconds[name].append(time.process_time() - start)
                found[name] = errors(counts / stream.clients, truth)
        rows += [Row(size, name, found[name], min(seconds[name])) for name in runs]
    return rows


def table(rows: list[Row]) -> list[dict[str, str]]:
    """Return a line for each sketch and size: errors over the stream, CPU as a multiple of ours."""
    own = {row.size: row.seconds for row in rows if row.sketch == OURS}
    return [
        {
            "bytes": f"{row.size:,}",
            "sketch": row.sketch,
            "largest": short(1e5 * row.errors.largest),
            "typical": short(1e5 * row.errors.typical),
            "top 20": short(1e5 * row.errors.top),
            "CPU / ours, joint": f"{short(row.seconds / own[row.size], 2)}x",
        }
        for row in rows
    ]
