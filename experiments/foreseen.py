"""How far belief propagation's predicted largest error is off, by the number of cells.

An answer foresees the median of its largest error from the errors that its prior expects. In a
small sketch the prior rests on few cells, and on flat tables it takes rare items to be nearer to
each other, or further apart, than they are. A campaign counts where belief propagation answers and
a client or more is foreseen. Populations are as small as such sketches need: 2,000 to 30,000 items,
50,000 clients, in one round or in four with a batch each.
"""

from __future__ import annotations

import functools
import itertools
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from experiments import open_tau, options, study
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.recovery.decoders.belief.belief_intervals import OFF
from fedtally.recovery.intervals import make_intervals
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
CLIENTS = 50_000
SIZES = ("5x80", "8x64", "16x45", "8x120", "12x110", "8x180", "16x125", "8x400", "16x400")
BINS = (400, 700, 1000, 1500, 2500, 7000)  # cells


def _plateaus(d: int) -> F64:
    return np.repeat([30.0, 6.0, 1.0], [40, d // 20, d - d // 20 - 40])


LAWS: dict[str, Callable[[], F64]] = {
    "i^-1.1": lambda: np.arange(1.0, 10_001) ** -1.1,
    "i^-0.7": lambda: np.arange(1.0, 5_001) ** -0.7,
    "i^-0.3": lambda: np.arange(1.0, 3_001) ** -0.3,
    "one of .5, others alike": lambda: np.append(0.5, np.full(19_999, 0.5 / 19_999)),
    "plateaus": lambda: _plateaus(6_000),
    "lognormal": lambda: np.exp(1.5 * np.random.default_rng(2).standard_normal(8_000)),
    "counts of 1 to 9": lambda: np.random.default_rng(3).integers(1, 10, 12_000).astype(float),
    "code": lambda: open_tau.law_of("code")[:30_000],
}


class Task(NamedTuple):
    """One campaign of a law and a size."""

    law: str
    size: str
    rounds: int
    seed: int
    repeat: int


@functools.cache
def law_of(name: str) -> F64:
    """Return the shares of a population: float64 [items]."""
    weights = LAWS[name]()
    law: F64 = weights / weights.sum()
    return law


def measure(task: Task) -> list[study.Row]:
    """Return a row: what was foreseen, and what came; None where another decoder answered."""
    law, (rows, width) = law_of(task.law), map(int, task.size.split("x"))
    told = f"{task.law} {task.size} {task.rounds}"
    rng = np.random.default_rng([zlib.crc32(told.encode()), task.seed, task.repeat])
    spec = SketchSpec(rows, width, Schedule.parse("hybrid"), task.rounds, rng.bytes(32))
    domain, places = IntegerRange(1, len(law)), rng.permutation(len(law))
    truth, sketches = np.zeros(len(law)), []
    for round in range(task.rounds):
        counts = rng.multinomial(CLIENTS // task.rounds, law)[places]
        sketch = CountSketch(spec, round)
        sketch.add(domain.ids(0, len(law)), counts)
        sketch.num_clients = CLIENTS // task.rounds
        sketches.append(sketch)
        truth += counts
    decoder = BeliefDecoder(sketches, domain)
    linf = float(np.abs(decoder.range(1, len(law)) - truth).max())
    foreseen = make_intervals(decoder, sketches, domain).predicted_linf * CLIENTS
    counted = not decoder.fallback and foreseen >= 1.0
    return [
        {
            "law": task.law,
            "size": task.size,
            "rounds": task.rounds,
            "cells": rows * width * task.rounds,
            "repeat": task.repeat,
            "linf": linf,
            "foreseen": foreseen,
            "ratio": linf / foreseen if counted else None,
            "seed": task.seed,
            "plan": study.describe(spec, CLIENTS),
        }
    ]


def _line(name: str, rows: list[study.Row]) -> study.Row:
    ratios = np.array([row["ratio"] for row in rows if row["ratio"] is not None])
    low, middle, high = np.quantile(ratios, (0.05, 0.5, 0.95)) if len(ratios) else [None] * 3
    line: study.Row = {"campaigns": name, "answered": len(ratios), "of": len(rows)}
    line |= {"5 %": low, "median": middle, "95 %": high}
    inside = (ratios >= OFF[0]) & (ratios <= OFF[1])
    line["within the range"] = float(inside.mean()) if len(ratios) else None
    laws = {}
    for law in dict.fromkeys(row["law"] for row in rows):
        mine = [row["ratio"] for row in rows if row["law"] == law and row["ratio"] is not None]
        laws[law] = float(np.median(mine)) if len(mine) >= 5 else np.nan
    known = [median for median in laws.values() if not np.isnan(median)]
    line |= {"least law": min(known, default=None), "largest law": max(known, default=None)}
    return line


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return quantiles of actual over foreseen errors, by cells, and medians by law below 1,500."""
    table = []
    for low, high in itertools.pairwise(BINS):
        mine = [row for row in rows if low <= row["cells"] < high]
        if mine:
            table.append(_line(f"{low:,} to {high:,} cells", mine))
    by_law = [
        _line(f"{law}, below 1,500 cells", mine)
        for law in dict.fromkeys(row["law"] for row in rows)
        if (mine := [row for row in rows if row["law"] == law and row["cells"] < 1500])
    ]
    return {"largest error over the foreseen one": table, "the same by population": by_law}


@click.command("foreseen")
@options.study(sizes=("5x80",), repeats=1)
@options.sizes(SIZES)
@options.repeats(10)
@options.seed
def command(
    folder: Path, jobs: int, plot: bool, sizes: tuple[str, ...], repeats: int, seed: int
) -> None:
    """Compare belief propagation's predicted largest error with what came."""
    tasks = [
        Task(law, size, rounds, seed, repeat)
        for law in LAWS
        for size in sizes
        for rounds in (1, 4)
        for repeat in range(repeats)
    ]
    about = f"{CLIENTS:,} clients, {repeats} campaigns of each cell."
    asked = study.Study("foreseen", tasks, measure, summarise, None, about)
    study.run(asked, folder, jobs, plot)
