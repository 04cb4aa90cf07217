"""How often the simultaneous 95 % band holds, how wide it is, and the error that it foresees.

d = 20,000 items, N = 200,000 clients in 10 multinomial rounds; noise off and on, as in `coverage`.
The half-width is compared with the largest error of the released estimates (l_inf), and so is the
median of it that intervals foresee. A run holds where the true frequency of every item, among the
clients that took part, is within the band.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from experiments import options, output, rounds
from experiments.coverage import Case, Scale, campaign, holds, in_turn, main_cases
from experiments.recovery import SCHEDULES
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.intervals import make_intervals

TOP = 20
LEAST = 0.94
WIDEST = 1.5


class Run(NamedTuple):
    """One campaign; frequencies in clients.

    Attributes:
        held: whether the band holds for every item.
        half: mean half-width of the band.
        linf: largest error of a released estimate.
        predicted: what the intervals foresee of it.
        reach: the largest error of a band's middle over its half-width: the band holds up to 1.
        top: share of the 20 heaviest items whose pointwise interval holds.
        every: the same share of all items.
    """

    held: float
    half: float
    linf: float
    predicted: float
    reach: float
    top: float
    every: float


def measure(case: Case, scale: Scale, decoder: str, repeat: int) -> Run:
    """Run one campaign, decoded by `joint` or `median`."""
    counts, ids, sketches = campaign(case, scale, repeat)
    size, clients, truth = counts.shape[1], int(counts.sum()), counts.sum(axis=0)
    domain = IntegerRange(rounds.FIRST_ID, size)
    made = (
        JointDecoder(sketches, domain)
        if decoder == "joint"
        else MedianDecoder(sketches, expected=size)
    )
    intervals = make_intervals(made, sketches, domain, kind="simultaneous")
    band = intervals.at(ids)
    pointwise = holds(make_intervals(made, sketches, domain).at(ids), truth, clients)
    half = (band.high - band.low) * clients / 2
    middle = (band.high + band.low) * clients / 2
    return Run(
        bool(holds(band, truth, clients).all()),
        float(half.mean()),
        float(np.abs(made.at(ids) - truth).max()),
        intervals.predicted_linf * clients,
        float((np.abs(truth - middle) / half).max()),
        float(pointwise[:TOP].mean()),
        float(pointwise.mean()),
    )


def runs(case: Case, scale: Scale, decoder: str, repeats: int) -> list[Run]:
    """Run one cell's campaigns."""
    return [measure(case, scale, decoder, repeat) for repeat in range(repeats)]


def line(case: Case, found: Sequence[Run]) -> dict[str, object]:
    """Return one row of the table: the case, and quartiles of largest over foreseen error."""
    columns = Run(*np.array(found).T)
    low, middle, high = np.quantile(
        columns.linf / np.maximum(columns.predicted, 1e-9), (0.25, 0.5, 0.75)
    )
    return {
        "law": case.population,
        "schedule": case.schedule,
        "size": case.size,
        "noise": case.noise,
        "runs": len(found),
        "hold": float(np.mean(columns.held)),
        "half/l_inf": float(np.mean(columns.half) / np.mean(columns.linf)),
        "reach .95": float(np.quantile(columns.reach, 0.95)),
        "l_inf": float(np.mean(columns.linf)),
        "l_inf/foreseen": float(middle),
        "lower": float(low),
        "upper": float(high),
        "pointwise top": float(np.mean(columns.top)),
        "pointwise": float(np.mean(columns.every)),
    }


def judge(row: dict[str, object]) -> list[tuple[bool, str]]:
    """Return the verdict on both bounds of one row.

    >>> place = {"schedule": "shared", "size": "5x500", "law": "1.1", "noise": "off"}
    >>> [holds for holds, _ in judge({**place, "hold": 0.95, "half/l_inf": 1.6})]
    [True, False]
    """
    hold, wide = float(str(row["hold"])), float(str(row["half/l_inf"]))
    place = (
        " ".join(str(row[name]) for name in ("schedule", "size", "law")) + f" noise {row['noise']}"
    )
    return [
        (hold >= LEAST, f"{place}  holds in {hold:.3f} of the runs, at least {LEAST:g}"),
        (
            wide <= WIDEST,
            f"{place}  half-width {wide:.3f} times the mean l_inf, at most {WIDEST:g}",
        ),
    ]


@click.command("band")
@options.quick(
    laws=("1.5",),
    sizes=("5x40",),
    noises=("off",),
    domain_size=300,
    clients=20_000,
    repeats=2,
    median_repeats=1,
)
@options.schedules(SCHEDULES)
@options.sizes(("5x500", "16x100"))
@options.laws(("1.1", "1.5", "zm"))
@click.option(
    "--noise", "noises", multiple=True, type=click.Choice(["off", "on"]), default=("off", "on")
)
@click.option(
    "--decoder",
    "decoders",
    multiple=True,
    type=click.Choice(["joint", "median"]),
    default=("joint", "median"),
)
@options.domain_size(20_000)
@options.clients(200_000)
@options.repeats(200, help="Runs of each cell, for joint recovery.")
@click.option(
    "--median-repeats", type=click.IntRange(1), default=50, help="The same for the paper's decoder."
)
@options.seed
@options.jobs
@options.table
def command(
    schedules: tuple[str, ...],
    sizes: tuple[str, ...],
    laws: tuple[str, ...],
    noises: tuple[str, ...],
    decoders: tuple[str, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    median_repeats: int,
    seed: int,
    jobs: int,
    path: Path | None,
) -> None:
    """Count how often the simultaneous band holds; fail where joint recovery misses a bound."""
    output.check_path(path)
    scale = Scale(domain_size, clients, seed=seed)
    cases = main_cases(laws, schedules, sizes, noises)
    table: list[dict[str, object]] = []
    sound = True
    for decoder in decoders:
        number = repeats if decoder == "joint" else median_repeats
        work = functools.partial(runs, scale=scale, decoder=decoder, repeats=number)
        rows = [line(case, found) for case, found in in_turn(cases, work, jobs)]
        click.echo("joint recovery" if decoder == "joint" else "\npaper's decoder")
        output.show(rows)
        table += [{"decoder": decoder} | row for row in rows]
        for row in rows if decoder == "joint" else ():
            for held, words in judge(row):
                click.echo(f"{'PASS' if held else 'MISS'}  {words}")
                sound &= held
    click.echo(
        "hold: share of runs in which the band holds for all items; reach: largest error over"
        " half-width; foreseen:"
    )
    click.echo(
        "predicted_linf; lower and upper: quartiles; pointwise: coverage of the 20 heaviest, of all"
        " items"
    )
    output.save(table, path)
    if not sound:
        sys.exit(1)
