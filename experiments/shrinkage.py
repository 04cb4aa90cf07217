"""Shrunk estimates beside unshrunk ones: the l_2 error, and what it costs in the largest error.

Each figure is the median over seeds, in frequencies. N clients in M = 10 multinomial rounds; f_i
proportional to i^-a, or (i + 2.7)^-1.07 for `zm`; or drawn from real tables, with the numbers of
clients of the paper. Noise stands for that of differential privacy: a rounded normal number of
standard deviation `noise` sqrt(rows) on every counter of every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np

from experiments import options, output, rounds
from experiments.recovery import SCHEDULES, law
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.shrinkage import ShrunkDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

TABLES = {
    "gowalla": ("gowalla_us_grid.npz", "reconstructed", 175_000),
    "brightkite": ("brightkite_us_grid.npz", "counts", 175_000),
    "c4": ("c4_count_surrogate.npz", "pmf", 150_000),
    "words": ("sentiment140_words.parquet", "count", 659_497),
}


def load(folder: Path, name: str) -> tuple[rounds.F64, int]:
    """Return a real table's frequencies, float64 [d], and the number of clients of its study.

    Raises:
        InvalidInputError: the file is not there.
    """
    file, column, clients = TABLES[name]
    path = folder / file
    if not path.is_file():
        raise output.MissingDataError(
            f"{path} does not exist: --data must name the folder of {file}"
        )
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            counts = arrays[column]
    else:
        from pyarrow import parquet

        counts = parquet.read_table(path, columns=[column])[column].to_numpy()
    weights = counts.reshape(-1).astype(np.float64)
    return weights / weights.sum(), clients


def measure(
    population: rounds.F64,
    shape: tuple[int, int],
    schedule: str,
    clients: int,
    noise: float,
    seed: int,
) -> dict[str, float]:
    """Return l_2 error, largest error and seconds of four decoders; `+` means shrunk."""
    rng = np.random.default_rng(seed)
    held = rounds.draw(rng.permutation(population), clients, 10, rng)
    spec = SketchSpec(*shape, Schedule.parse(schedule), 10, rng.bytes(32))
    sketches = []
    for m, weights in enumerate(held):
        sketches.append(CountSketch(spec, m))
        sketches[-1].add_range(rounds.FIRST_ID, weights)
        if noise:
            added = rng.normal(0.0, noise * np.sqrt(shape[0]), sketches[-1].counters.shape)
            sketches[-1].counters[...] += np.rint(added).astype(np.int64)
    truth, size = held.sum(axis=0), len(population)
    domain = IntegerRange(rounds.FIRST_ID, size)
    makers: dict[str, Callable[[], MedianDecoder | JointDecoder]] = {
        "median": lambda: MedianDecoder(sketches, size),
        "joint": lambda: JointDecoder(sketches, domain),
    }
    found: dict[str, float] = {}
    for name, make in makers.items():
        start = time.perf_counter()
        decoder = make()
        plain = decoder.range(rounds.FIRST_ID, size)
        between = time.perf_counter()
        shrunk = ShrunkDecoder(decoder, domain).range(rounds.FIRST_ID, size)
        seconds = (between - start, time.perf_counter() - between)
        for label, estimates, passed in zip(
            (name, f"{name}+"), (plain, shrunk), seconds, strict=True
        ):
            errors = (estimates - truth) / truth.sum()
            found |= {
                f"{label} l2": float(np.sqrt(errors @ errors)),
                f"{label} linf": float(np.abs(errors).max()),
                f"{label} s": passed,
            }
    return found


@click.command("shrinkage")
@options.quick(laws=("2",), rows=(5,), widths=(200,), domain_size=5_000, clients=50_000, repeats=1)
@options.laws(("1.1", "zm", "2"))
@click.option("--rows", multiple=True, type=int, default=(5, 16))
@click.option("--width", "widths", multiple=True, type=int, default=(200, 1000, 4000))
@options.schedules(SCHEDULES, type=click.Choice(SCHEDULES))
@click.option(
    "--noise",
    "noises",
    multiple=True,
    type=float,
    default=(0.0, 4.2247),
    help="4.2247: about epsilon = 1.",
)
@options.domain_size(100_000)
@options.clients(1_000_000)
@options.data("Folder of real tables, to take in place of the laws.")
@click.option(
    "--table", "tables", multiple=True, type=click.Choice(list(TABLES)), default=list(TABLES)
)
@options.repeats(5)
@options.table
def command(
    laws: tuple[str, ...],
    rows: tuple[int, ...],
    widths: tuple[int, ...],
    schedules: tuple[str, ...],
    noises: tuple[float, ...],
    domain_size: int,
    clients: int,
    data: Path | None,
    tables: tuple[str, ...],
    repeats: int,
    path: Path | None,
) -> None:
    """Measure what shrinking the estimates gains in l_2, and costs in the largest error."""
    output.check_path(path)
    if data is None:
        populations = {name: (law(name, domain_size), clients) for name in laws}
    else:
        populations = {name: load(data, name) for name in tables}
    table: list[dict[str, object]] = []
    cells = [
        (r, w, schedule, noise)
        for r in rows
        for w in widths
        for schedule in schedules
        for noise in noises
    ]
    for name, (population, held) in populations.items():
        for r, w, schedule, noise in cells:
            runs = [
                measure(population, (r, w), schedule, held, noise, seed) for seed in range(repeats)
            ]
            middle = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
            least = 0.5 / held
            over = {
                "gain": middle["median l2"] / max(middle["joint+ l2"], least),
                "over joint": max(middle["joint l2"], least) / max(middle["joint+ l2"], least),
                "over median": max(middle["median l2"], least) / max(middle["median+ l2"], least),
                "linf cost": max(middle["joint+ linf"], least) / max(middle["joint linf"], least),
                "median linf cost": (
                    max(middle["median+ linf"], least) / max(middle["median linf"], least)
                ),
            }
            shown = {
                key: value
                for key, value in middle.items()
                if not key.endswith(" s") or key == "joint s"
            }
            extra = middle["joint+ s"] / middle["joint s"]
            size = {"law": name, "rows": r, "width": w, "schedule": schedule, "noise": noise}
            table.append(size | shown | over | {"time": extra})
    output.show(table)
    click.echo(
        "+: shrunk. gain: l_2 error of median over joint+; over joint, over median: what shrinking"
        " gains there; cost: of the largest error; all count half a client as none. time: of"
        " shrinking and asking again, over joint's"
    )
    output.save(table, path)
