"""Rounds that differ: Brightkite by hour and month, baby names by decade; beside the theorem.

The rounds are those of `natural_rounds`: as they came, dealt at random (alike), and every item in
one round (apart).

Section 3 of the paper bounds the error of shared rounds by the tail of f, and that of hybrid rounds
by the same multiple of the tail of F, the heterogeneity vector: `predicted` is ||F tail|| / ||f
tail||, where a tail is all but the W largest. It is 1/sqrt(M) for rounds alike, of equal size, and
1 for items that occur in one round each. What we measure is the error of hybrid over that of shared
on the same campaigns: `largest` of all items, `typical`, the median over the items that occur, both
at least half a client; the mean of logarithms over campaigns, with its standard error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from experiments import options, output, recovery, rounds, study
from experiments.natural_rounds import ARRANGEMENTS, TABLES, arrange, digest, load, predicted
from experiments.study import Row
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("shared", "fresh", "hybrid", "joint")
WHAT = ("largest", "typical")
CERTAIN, NEAR = 3.0, 1.25  # standard errors, times
# Okabe and Ito (2008)
COLOURS = {"hour": "#0072B2", "month": "#56B4E9", "decade": "#D55E00", "drift": "#009E73"}
MARKERS = {"dealt": "o", "as they came": "D", "apart": "s"}


class Task(NamedTuple):
    """One campaign of all methods."""

    name: str
    digest: str
    folder: str
    arrangement: str
    rows: int
    width: int
    seed: int
    repeat: int


def measure(task: Task) -> list[Row]:
    """Return a row for each method: the errors of one campaign."""
    table = load(task.name, Path(task.folder))
    indices = (list(TABLES).index(task.name), ARRANGEMENTS.index(task.arrangement))
    rng = np.random.default_rng([task.seed, *indices, task.width, task.repeat])
    held = arrange(table, task.arrangement, rng)
    expected, hash_seed, totals = predicted(held, task.width), rng.bytes(32), held.sum(axis=0)
    same: Row = {
        "table": task.name,
        "arrangement": task.arrangement,
        "repeat": task.repeat,
        "seed": task.seed,
    }
    same["clients"] = int(totals.sum())
    same |= {"rounds": len(held), "rows": task.rows, "width": task.width, "predicted": expected}
    found = []
    for method in METHODS:
        sketches = recovery.land(
            held, task.rows, task.width, "hybrid" if method == "joint" else method, hash_seed
        )
        errors = np.abs(_decode(method, sketches, len(totals)) - totals) / totals.sum()
        row = same | {"method": method, "plan": study.describe(sketches[0].spec, int(totals.sum()))}
        row |= {"largest": float(errors.max()), "typical": float(np.median(errors[totals > 0]))}
        found.append(row)
    return found


def _decode(method: str, sketches: list[CountSketch], size: int) -> rounds.F64:
    if method == "joint":
        return JointDecoder(sketches, IntegerRange(rounds.FIRST_ID, size)).range(
            rounds.FIRST_ID, size
        )
    return MedianDecoder(sketches, expected=size).range(rounds.FIRST_ID, size)


class Ratio(NamedTuple):
    """A ratio of errors: its mean logarithm over campaigns, and the standard error of that."""

    log: float
    error: float

    @property
    def value(self) -> float:
        """Return the ratio."""
        return math.exp(self.log)

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.value * self.error:.1g}"


def ratio(above: list[float], below: list[float]) -> Ratio:
    """Return the ratio of errors of the same campaigns.

    >>> print(ratio([2.0, 8.0], [1.0, 1.0]))
    4 ± 3
    """
    logs = np.log(np.array(above) / np.array(below))
    return Ratio(float(logs.mean()), float(logs.std(ddof=1) / math.sqrt(len(logs))))


class Cell(NamedTuple):
    """What was measured in one cell: method -> errors of its campaigns, in the same order."""

    name: str
    arrangement: str
    width: int
    predicted: float
    largest: dict[str, list[float]]
    typical: dict[str, list[float]]

    def hybrid(self, what: str) -> Ratio:
        """Return the error of hybrid over that of shared rounds."""
        errors: dict[str, list[float]] = getattr(self, what)
        return ratio(errors["hybrid"], errors["shared"])

    def winner(self, what: str) -> str:
        """Return the schedules of least error by the paper's decoder, within 3 standard errors."""
        errors: dict[str, list[float]] = {s: getattr(self, what)[s] for s in recovery.SCHEDULES}
        best = min(errors, key=lambda name: ratio(errors[name], errors["shared"]).log)
        near = {name: ratio(errors[name], errors[best]) for name in errors if name != best}
        return ", ".join(
            [best, *(name for name, found in near.items() if found.log <= CERTAIN * found.error)]
        )


def cells(rows: list[Row]) -> list[Cell]:
    """Return the rows by cell."""
    found: dict[tuple[str, str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["table"], row["arrangement"], row["width"]), []).append(row)
    table = []
    for key, own in found.items():
        least = 0.5 / own[0]["clients"]
        by = [
            {m: [max(least, row[what]) for row in own if row["method"] == m] for m in METHODS}
            for what in WHAT
        ]
        table.append(Cell(*key, float(np.mean([row["predicted"] for row in own])), *by))
    return table


def summarise(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the claims with their verdicts, the ratios behind them, and the errors."""
    known, num_rounds = cells(rows), {row["table"]: row["rounds"] for row in rows}
    ratios: list[Row] = []
    for cell in known:
        line: Row = {"rounds": TABLES[cell.name][1], "1/sqrt(M)": num_rounds[cell.name] ** -0.5}
        line |= {"clients": cell.arrangement, "width": cell.width, "predicted": cell.predicted}
        ratios.append(line | {what: str(cell.hybrid(what)) for what in WHAT})
    tables = {
        "Claims of section 3, hybrid rounds beside shared ones": [
            claim(known, what) for claim in (_never_worse, _homogeneous, _depends) for what in WHAT
        ],
        "Error of hybrid over error of shared, beside ||F tail|| / ||f tail||": ratios,
    }
    for what in WHAT:
        errors: list[Row] = []
        for cell in (cell for cell in known if cell.arrangement == "as they came"):
            medians = {method: float(np.median(getattr(cell, what)[method])) for method in METHODS}
            line = {"rounds": TABLES[cell.name][1], "width": cell.width} | medians
            errors.append(line | {"least of the first three": cell.winner(what)})
        tables[
            f"{what.capitalize()} error of rounds as they came (share of clients, median of"
            " campaigns)"
        ] = errors
    return tables


def _never_worse(known: list[Cell], what: str) -> Row:
    """Judge "no worse than shared in every case": in no cell worse by three standard errors."""
    found = [cell.hybrid(what) for cell in known]
    worse = sum(one.log > CERTAIN * one.error for one in found)
    row: Row = {"claim": "no worse in every case", "error": what}
    row["ours"] = f"worse in {worse} of {len(found)} cells; largest ratio {max(found)}"
    return row | {"verdict": "not" if worse else "reproduced"}


def _homogeneous(known: list[Cell], what: str) -> Row:
    """Judge "smaller by a factor of 1/sqrt(M)": the dealt cells' ratios beside the predicted.

    The measured ratios may be at most 1.25 times the predicted ones.

    With a caveat where one is below 1/1.25 of it: the gain is larger than stated.
    """
    off = [
        math.exp(cell.hybrid(what).log) / cell.predicted
        for cell in known
        if cell.arrangement == "dealt"
    ]
    row: Row = {"claim": "rounds alike: 1/sqrt(M) of the error", "error": what}
    row["ours"] = f"measured over predicted ratio {min(off):.3g} to {max(off):.3g}"
    within = "reproduced" if min(off) >= 1 / NEAR else "reproduced with a caveat"
    return row | {"verdict": within if max(off) <= NEAR else "not"}


def _depends(known: list[Cell], what: str) -> Row:
    """Judge that the gain depends on the heterogeneity: dealt, as they came, apart gain less.

    Reproduced if each of the two steps is one of three standard errors in all tables and widths;
    with a caveat if none is one of so many in the other direction.
    """
    by = {(cell.name, cell.width, cell.arrangement): cell.hybrid(what) for cell in known}
    steps = []
    for name, width in dict.fromkeys((cell.name, cell.width) for cell in known):
        dealt, came, apart = (by[name, width, arrangement] for arrangement in ARRANGEMENTS)
        steps += [
            (b.log - a.log, CERTAIN * math.hypot(a.error, b.error))
            for a, b in ((dealt, came), (came, apart))
        ]
    up, down = (sum(sign * step > most for step, most in steps) for sign in (1, -1))
    row: Row = {"claim": "the gain depends on the heterogeneity", "error": what}
    row["ours"] = (
        f"of {len(steps)} steps to rounds less alike, {up} gain less, {down} more, others uncertain"
    )
    return row | {
        "verdict": (
            "not" if down else "reproduced" if up == len(steps) else "reproduced with a caveat"
        )
    }


def draw(rows: list[Row]) -> Figure:
    """Draw the measured over the predicted ratio of hybrid to shared, for two kinds of errors."""
    from matplotlib import ticker
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    known = cells(rows)
    figure = Figure(figsize=(9.6, 5.2), layout="constrained", facecolor="white")
    panels: Any = figure.subplots(1, 2, sharex=True, sharey=True)
    ends = [min(cell.predicted for cell in known) / 1.1, 1.1]
    widths = sorted({cell.width for cell in known})
    for axes, what in zip(panels, WHAT, strict=True):
        axes.plot(ends, ends, color="#999999", linewidth=4, alpha=0.5, zorder=0)
        axes.axhline(1, color="#24292F", linewidth=0.8, zorder=0)
        for cell in known:
            found = cell.hybrid(what)
            look = {
                "marker": MARKERS[cell.arrangement],
                "markersize": 4 + 2.5 * widths.index(cell.width),
            }
            errors = np.abs(np.exp([[-found.error], [found.error]]) - 1) * found.value
            axes.errorbar(
                cell.predicted,
                found.value,
                errors,
                color=COLOURS[cell.name],
                mfc="none",
                capsize=2,
                **look,
            )
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="predicted: ||F tail|| / ||f tail||",
            title=f"{what} error",
        )
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        axes.grid(which="major", color="#E6E8EB")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("measured: error of hybrid / of shared")
    names = dict.fromkeys(cell.name for cell in known)
    plain: Callable[..., Line2D] = functools.partial(Line2D, [], [], linestyle="none", mfc="none")
    handles = [plain(color=COLOURS[name], marker="o", label=TABLES[name][1]) for name in names]
    handles += [
        plain(color="#24292F", marker=mark, label=f"clients {name}")
        for name, mark in MARKERS.items()
    ]
    handles.append(Line2D([], [], color="#999999", linewidth=4, alpha=0.5, label="as predicted"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
    sizes = ", ".join(f"{width:,}" for width in widths)
    figure.suptitle(
        "Rounds that are not alike: what hybrid gains over shared\n(marks grow with the width:"
        f" {sizes})"
    )
    return figure


@click.command("natural")
@options.study(names=("drift",), widths=(50, 200), repeats=4)
@click.option(
    "--table",
    "names",
    multiple=True,
    type=click.Choice(list(TABLES)),
    default=("hour", "month", "decade"),
)
@options.data("Folder of the tables.")
@click.option("--rows", default=5, type=click.IntRange(1))
@click.option("--width", "widths", multiple=True, type=click.IntRange(2), default=(200, 800, 3200))
@options.repeats(20, least=2)
@options.seed
def command(
    names: tuple[str, ...],
    data: Path | None,
    rows: int,
    widths: tuple[int, ...],
    repeats: int,
    seed: int,
    folder: Path,
    jobs: int,
    plot: bool,
) -> None:
    """Compare the schedules on rounds that differ, as hours, months and decades do."""
    found = output.data_folder(data)
    known = {name: load(name, found) for name in names}
    for name, held in known.items():
        if max(widths) >= (items := int(held.any(axis=0).sum())):
            raise InvalidInputError(
                f"--width must be below the {items} items of {name}, got {max(widths)}"
            )
    tasks = [
        Task(name, digest(held), str(found), arrangement, rows, width, seed, repeat)
        for name, held in known.items()
        for arrangement in ARRANGEMENTS
        for width in widths
        for repeat in range(repeats)
    ]
    sizes = "; ".join(
        f"{TABLES[n][1]}: {h.sum():,} clients, {h.shape[1]:,} items, M = {len(h)}"
        for n, h in known.items()
    )
    about = (
        f"{sizes}. {rows} rows, {repeats} campaigns a cell. Clients as they came, dealt over the"
        " rounds at random, or with every item in one round alone. Ratios are means of logarithms"
        " over campaigns on the same locations ± standard errors; typical: the median over items"
        " that occur. Verdicts: worse, where hybrid over shared exceeds 1 by three standard"
        " errors; rounds alike, reproduced where ratios of dealt clients are within 1.25 times the"
        " predicted, with a caveat where some are smaller; heterogeneity, reproduced where each"
        " step from dealt over as they came to apart raises the ratio by three standard errors,"
        " with a caveat where none lowers it by as many. joint: joint recovery of hybrid sums."
        " least: the best schedule with the paper's decoder, and those within three standard"
        " errors of it."
    )
    study.run(study.Study("natural", tasks, measure, summarise, draw, about), folder, jobs, plot)


if __name__ == "__main__":
    command()
