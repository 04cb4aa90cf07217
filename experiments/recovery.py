"""Joint recovery beside the paper's decoder: the largest error at equal bytes, on the grid of the design study.

d = 100,000 items, N = 1,000,000 clients in M = 10 multinomial rounds; f_i proportional to i^-a, or (i + 2.7)^-1.07 for
`zm`. Every figure is the median over seeds of the largest absolute error of any frequency.
"""

from __future__ import annotations

import time
from pathlib import Path

import click
import numpy as np

from experiments import output, rounds
from fedtally.domain import IntegerRange
from fedtally.recovery.joint import JointDecoder
from fedtally.recovery.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

SCHEDULES = ("shared", "fresh", "hybrid")


def law(name: str, size: int) -> rounds.F64:
    """Return the population's frequencies: float64 [size].

    >>> law("2", 2).round(2).tolist()
    [0.8, 0.2]
    """
    rank = np.arange(1, size + 1.0)
    weights: rounds.F64 = (rank + 2.7) ** -1.07 if name == "zm" else rank ** -float(name)
    return weights / weights.sum()


def measure(name: str, shape: tuple[int, int], schedule: str, size: int, clients: int, seed: int) -> dict[str, float]:
    """Return the largest error and the seconds of both decoders on one campaign."""
    rng = np.random.default_rng(seed)
    held = rounds.draw(law(name, size), clients, 10, rng)
    spec = SketchSpec(*shape, Schedule.parse(schedule), 10, rng.bytes(32))
    sketches = []
    for m, weights in enumerate(held):
        sketches.append(CountSketch(spec, m))
        sketches[-1].add_range(rounds.FIRST_ID, weights)
    truth, found = held.sum(axis=0), {}
    for decoder in ("median", "joint"):
        start = time.perf_counter()
        made = MedianDecoder(sketches) if decoder == "median" else JointDecoder(sketches, IntegerRange(1, size))
        estimates = made.range(rounds.FIRST_ID, size)
        found[f"{decoder} s"] = time.perf_counter() - start
        found[decoder] = float(np.abs(estimates - truth).max()) / clients
    return found


@click.command("recovery")
@click.option("--law", "laws", multiple=True, default=("1.1", "zm", "2", "3"), help="An exponent, or zm.")
@click.option("--rows", multiple=True, type=int, default=(5, 16))
@click.option("--width", "widths", multiple=True, type=int, default=(200, 1000, 4000))
@click.option("--domain-size", default=100_000)
@click.option("--clients", default=1_000_000)
@click.option("--repeats", default=5)
@click.option("--output", "path", type=click.Path(path_type=Path), help="Also write the table: .csv or .parquet.")
def command(
    laws: tuple[str, ...],
    rows: tuple[int, ...],
    widths: tuple[int, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    path: Path | None,
) -> None:
    """Compare joint recovery with the paper's decoder over populations, sizes and schedules."""
    output.check_path(path)
    table: list[dict[str, object]] = []
    for name in laws:
        for shape in ((r, w) for r in rows for w in widths):
            for schedule in SCHEDULES:
                runs = [measure(name, shape, schedule, domain_size, clients, seed) for seed in range(repeats)]
                middle = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
                gain = middle["median"] / max(middle["joint"], 0.5 / clients)
                size = {"law": name, "rows": shape[0], "width": shape[1], "schedule": schedule}
                table.append(size | middle | {"gain": gain})
    output.show(table)
    click.echo("gain: of the largest error, counting half a client as none")
    output.save(table, path)
