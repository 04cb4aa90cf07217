"""The paper's Figure 3: the badly estimated items of each schedule, and sizes of equal quality.

C4, N = 150,000 clients in M = 10 rounds, L = 5. The paper calls an item bad whose estimated
frequency is off by more than 0.1 / W, W the width of its own sketch, from its frequency among the
clients: a narrower sketch may be off by more. So all sketches are also compared by one threshold:
0.1 over each of the widths of the figure. Estimating 0 for every item is bad for as many as are
more frequent than the threshold. Joint recovery is tried on a grid of rows and sizes.

Without a data folder the law is C4's stand-in, by its formula: the numbers of the file
`c4_count_surrogate.npz`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import erfc
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from experiments import options, output, populations, ratios, recovery, rounds, study, tradeoff
from experiments.figure3_tables import (
    ABSOLUTE,
    OWN,
    POINTS,
    ROWS,
    THRESHOLDS,
    Samples,
    Sketch,
    of_point,
    samples,
    summarise,
)
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder

if TYPE_CHECKING:
    from matplotlib.figure import Figure


JOINT_ROWS = (1, 2, 3, 5, 8, 16)
CELLS = tuple(int(cells) for cells in np.rint(np.geomspace(64, 512, 13)))  # steps of 2^(1/4)
_MU, _SIGMA, _SIZE = 0.9760141574577615, 2.0726437226764203, 150_868


class Task(NamedTuple):
    """Campaigns `first` .. `last` - 1 of one sketch.

    Attributes:
        decoder: median or joint.
        title: of the population.
        law: its digest.
        data: its folder.
    """

    schedule: str
    rows: int
    width: int
    decoder: str
    first: int
    last: int
    clients: int
    seed: int
    title: str
    law: str
    data: Path | None


def population(data: Path | None) -> tuple[str, rounds.F64]:
    """Return C4's title and law: the official file's, its stand-in's, or that of a formula.

    Raises:
        MissingDataError: neither is in `data`.
        UnreadableFileError: the official file is damaged.
    """
    try:
        found = populations.load("c4", data)
    except output.MissingDataError:
        if data is not None:
            raise
        return "C4 (stand-in: lognormal surrogate, by its formula)", stand_in()
    return found.title, found.law


@cache
def stand_in() -> rounds.F64:
    """Return the law of ceil(lognormal(0.976, 2.073)), cut off: float64 [150868]."""
    below = [erfc((_MU - np.log(i)) / _SIGMA / 2**0.5) / 2 for i in range(1, _SIZE + 1)]
    law = np.diff(below, prepend=0.0)
    scaled: rounds.F64 = law / law.sum()
    return scaled


def measure(task: Task) -> list[study.Row]:
    """Return a row for every campaign: how many items are off by more than each threshold."""
    _, law = population(task.data)
    size, table = len(law), []
    for repeat in range(task.first, task.last):
        rng = np.random.default_rng([task.seed, repeat])
        held = recovery.draw(law, task.clients, "alike", rng)
        sketches = recovery.land(held, task.rows, task.width, task.schedule, rng.bytes(32))
        made: MedianDecoder | JointDecoder
        if task.decoder == "joint":
            made = JointDecoder(sketches, IntegerRange(rounds.FIRST_ID, size))
        else:
            made = MedianDecoder(sketches, expected=size)
        truth, clients = held.sum(axis=0), int(held.sum())
        errors = np.abs(made.range(rounds.FIRST_ID, size) - truth) / clients
        row: study.Row = {
            "population": task.title,
            "schedule": task.schedule,
            "rows": task.rows,
            "width": task.width,
        }
        row |= {"decoder": task.decoder, "repeat": repeat}
        for name, least in THRESHOLDS.items():
            threshold = least or 0.1 / task.width
            row[f"off by {name}"] = int(np.count_nonzero(errors > threshold))
            row[f"more frequent than {name}"] = int(np.count_nonzero(truth > threshold * clients))
        row["bytes"] = tradeoff.bytes_per_client(
            task.rows, task.width, task.schedule, task.clients, size
        )
        table.append(row | {"seed": task.seed, "plan": study.describe(sketches[0].spec, clients)})
    return table


def draw(rows: list[study.Row]) -> Figure:
    """Draw bad items over the counters of a sketch, by the paper's criterion and a threshold."""
    from matplotlib import ticker
    from matplotlib.figure import Figure

    found = samples(rows)
    figure = Figure(figsize=(9, 4.6), layout="constrained", facecolor="white")
    panels: Any = figure.subplots(1, 2, sharey=True)
    titles = ("off by more than 0.1/W, W its own", f"off by more than {ABSOLUTE[-1]}, for all")
    for axes, name, title in zip(panels, (OWN, ABSOLUTE[-1]), titles, strict=True):
        for schedule, (colour, marker) in tradeoff.LOOKS.items():
            _curve(
                axes,
                found,
                ("median", schedule, ROWS),
                name,
                color=colour,
                marker=marker,
                label=schedule,
            )
        look = {"color": "#CC79A7", "marker": "D", "markersize": 4}
        _curve(axes, found, ("joint", "hybrid", ROWS), name, label="hybrid, joint recovery", **look)
        shown = [of for of in found if of.decoder == "median" or name != OWN]
        zeros = sorted(
            (of.cells, float(found[of][f"more frequent than {name}"].mean())) for of in shown
        )
        axes.plot(
            *zip(*zeros, strict=True), color="#5F5F5F", linestyle=":", label="all estimates 0"
        )
        for point in POINTS:
            at = (ROWS * point.width, of_point(found, point)[f"off by {name}"].mean())
            axes.plot(
                *at,
                "o",
                markersize=14,
                markerfacecolor="none",
                color=tradeoff.LOOKS[point.schedule][0],
            )
        axes.set(
            xscale="log", yscale="log", title=title, xlabel="counters of a sketch, L x W (L = 5)"
        )
        axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_minor_formatter(ticker.NullFormatter())
        axes.grid(color="#E6E8EB")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("items that are badly estimated")
    handles, labels = panels[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(
        f"{rows[0]['population']}: circled are the sketches of Figure 3", fontsize="medium"
    )
    return figure


def _curve(axes: Any, found: Samples, kind: tuple[str, str, int], name: str, **look: Any) -> None:
    """Draw the means of the sketches of one kind, without those that leave no bad item."""
    chosen = sorted(sketch for sketch in found if sketch[:3] == kind)
    means = [float(found[sketch][f"off by {name}"].mean()) or np.nan for sketch in chosen]
    axes.plot([sketch.cells for sketch in chosen], means, **{"markersize": 5} | look)


def make(
    widths: Sequence[int],
    repeats: int,
    joint_rows: Sequence[int],
    cells: Sequence[int],
    joint_repeats: int,
    clients: int,
    seed: int,
    data: Path | None,
) -> study.Study:
    """Return the study: the paper's decoders at all widths, joint recovery on a grid of sizes."""
    title, law = population(data)
    fixed = {
        "clients": clients,
        "seed": seed,
        "title": title,
        "law": populations.digest(law),
        "data": data,
    }
    wanted = sorted({*widths, *(point.width for point in POINTS)})
    sketches = [
        (Sketch("median", point.schedule, ROWS, width), repeats)
        for point in POINTS
        for width in wanted
    ]
    shapes = [(tall, round(size / tall)) for tall in joint_rows for size in cells]
    sketches += [
        (Sketch("joint", "hybrid", *shape), joint_repeats) for shape in dict.fromkeys(shapes)
    ]
    tasks = [
        Task(
            of.schedule,
            of.rows,
            of.width,
            of.decoder,
            first,
            min(first + 20, times),
            **fixed,  # type: ignore[arg-type]
        )
        for of, times in sketches
        for first in range(0, times, 20)
    ]
    about = f"""{title}, d = {len(law):,}; N = {clients:,} clients drawn from its law, in M = \
{recovery.ROUNDS} rounds; L = {ROWS}; {repeats} campaigns of the paper's decoders, {joint_repeats} \
of joint recovery, with the same clients and hashes for all. Bytes are of one client in one round. \
By 0.1/W, the paper's criterion, a narrower sketch is held to less: with joint recovery one of the \
smallest that were tried will do."""
    return study.Study("figure3", tasks, measure, summarise, draw, about)


@click.command("figure3")
@options.study(widths=(150, 400), repeats=2, joint_rows=(5,), joint_repeats=2, cells=(64, 128, 256))
@options.data(
    "Folder of C4's official table, or of its stand-in. [default: FEDTALLY_DATA, or ../shared/data,"
    " or a formula]"
)
@options.clients(
    150_000,
    least=recovery.ROUNDS,
    help="All rounds together; the numbers of the data set's notes are for 150,000.",
)
@click.option(
    "--width",
    "widths",
    type=click.IntRange(1),
    multiple=True,
    default=(150, 300, 400, 800),
    help="Beside the figure's.",
)
@options.repeats(100, least=2, help="Campaigns, each with clients and hashes of its own.")
@click.option(
    "--joint-rows",
    type=click.IntRange(1),
    multiple=True,
    default=JOINT_ROWS,
    help="Of the grid for joint recovery.",
)
@click.option(
    "--cells",
    type=click.IntRange(1),
    multiple=True,
    default=CELLS,
    help="Counters, about, of that grid.",
)
@click.option(
    "--joint-repeats",
    type=click.IntRange(0),
    callback=ratios.none_or_several,
    default=10,
    help="Campaigns for each of the grid; 0: none.",
)
@options.seed
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    data: Path | None,
    clients: int,
    widths: tuple[int, ...],
    repeats: int,
    joint_rows: tuple[int, ...],
    cells: tuple[int, ...],
    joint_repeats: int,
    seed: int,
) -> None:
    """Count badly estimated items of hybrid, fresh and shared sketches, by several thresholds."""
    made = make(widths, repeats, joint_rows, cells, joint_repeats, clients, seed, data)
    study.run(made, folder, jobs, plot)


if __name__ == "__main__":
    command()
