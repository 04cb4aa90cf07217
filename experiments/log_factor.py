"""The factor sqrt(log(M/p)) between fresh and hybrid rounds: quantiles over rounds.

Section 3 of the paper bounds the error of an item, with probability 1 - p, by a multiple of
sqrt(log(1/p) / (L W) sum over i > W of F_i^2) for hybrid rounds, and by sqrt(log(M/p)) times that
for fresh ones; it concludes that the error of hybrid is smaller by that factor. Both are upper
bounds, so we look: all rounds hold the same vector f_i ~ i^-a, M runs from 1 to 100, and fresh and
hybrid sketches have the same size.

- items: the quantiles .5, .9, .99 and .999 of the errors of all items of a campaign, mean over
  campaigns;
- l_inf: the same quantiles, over campaigns, of the largest error; where at least FEWEST campaigns
  lie beyond.

One round is the same for both, so the ratio starts from 1, and the factor beside it is scaled to do
so: sqrt(log(M/p) / log(1/p)), with p/d for p where all items are meant. Standard errors are those
of a bootstrap over campaigns.

What to expect without the bounds: hybrid rounds have one set of locations, so an item that shares
cells with heavy items does so in all rounds, and one that does not never does. Fresh rounds average
over locations, too: few items have small errors, and few have large ones.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from experiments import options, rounds, study
from experiments.study import Row
from fedtally.sketch import SketchSpec
from fedtally.sources.synthetic import frequencies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEDULES = ("fresh", "hybrid")
QUANTILES = (0.5, 0.9, 0.99, 0.999)
SCALE = 2**44  # a round's vector sums to about this: 256 rounds are exact in double precision
BLOCK = 100  # campaigns of a task
FEWEST = 5  # campaigns beyond a quantile that is told
RESAMPLED = 200
CERTAIN = 3.0  # standard errors
# Okabe and Ito (2008)
COLOURS = {0.5: "#E69F00", 0.9: "#56B4E9", 0.99: "#009E73", 0.999: "#D55E00"}


class Task(NamedTuple):
    """Campaigns first .. first + repeats - 1 of a cell."""

    exponent: float
    size: int
    rows: int
    width: int
    num_rounds: int
    schedule: str
    seed: int
    first: int
    repeats: int


class Quantile(NamedTuple):
    """A quantile of the errors of items, or of the largest error.

    >>> round(Quantile("items", 0.999).factor(100, 10_000), 9)
    3.393070212
    >>> Quantile("l_inf", 0.5).factor(1, 10_000, scaled=True)
    1.0
    """

    of: str
    level: float

    def factor(self, num_rounds: int, size: int, scaled: bool = False) -> float:
        """Return sqrt(log(M/p)), or that over its value at M = 1; p/d for the largest error."""
        inverse = (size if self.of == "l_inf" else 1) / (1 - self.level)
        return math.sqrt(math.log(num_rounds * inverse) / (math.log(inverse) if scaled else 1))

    @property
    def column(self) -> str:
        """Return the column of the campaigns that it is of."""
        return self.of if self.of == "l_inf" else str(self)

    def __str__(self) -> str:
        return f"{self.of} {self.level:g}"


ALL = [Quantile(of, level) for of in ("items", "l_inf") for level in QUANTILES]


@functools.cache
def vector(exponent: float, size: int) -> rounds.I64:
    """Return f_i proportional to i^-exponent as integers that sum to about SCALE: int64 [size]."""
    found: rounds.I64 = np.rint(frequencies(f"zipf:a={exponent},d={size}") * SCALE).astype(np.int64)
    return found


def measure(task: Task) -> list[Row]:
    """Return a row for each campaign: the largest error, and the quantiles over items."""
    held = vector(task.exponent, task.size)
    same: Row = {"a": task.exponent, "size": task.size, "rows": task.rows, "width": task.width}
    same |= {"rounds": task.num_rounds, "schedule": task.schedule, "seed": task.seed}
    found = []
    for repeat in range(task.first, task.first + task.repeats):
        indices = [
            round(1000 * task.exponent),
            task.rows,
            task.num_rounds,
            SCHEDULES.index(task.schedule),
            repeat,
        ]
        spec = SketchSpec(
            task.rows,
            task.width,
            task.schedule,  # type: ignore[arg-type]  # a name is accepted
            task.num_rounds,
            np.random.default_rng([task.seed, *indices]).bytes(32),
        )
        alike = np.broadcast_to(held, (task.num_rounds, task.size))
        estimates = rounds.estimate(alike, spec.rows, spec.width, task.schedule, spec.seed)
        errors = np.abs(estimates / task.num_rounds - held) / held.sum()
        row = same | {
            "repeat": repeat,
            "plan": study.describe(spec, task.num_rounds),
            "l_inf": float(errors.max()),
        }
        levels = np.quantile(errors, QUANTILES).tolist()
        found.append(
            row
            | {str(Quantile("items", q)): value for q, value in zip(QUANTILES, levels, strict=True)}
        )
    return found


def told(rows: list[Row], quantile: Quantile, rng: np.random.Generator) -> tuple[float, rounds.F64]:
    """Return the quantile of campaigns, and that of RESAMPLED bootstrap samples of them."""
    values = np.array([float(row[quantile.column]) for row in rows])
    picked = values[rng.integers(len(values), size=(RESAMPLED, len(values)))]
    if quantile.of == "items":
        return float(values.mean()), picked.mean(axis=1)
    return float(np.quantile(values, quantile.level)), np.quantile(picked, quantile.level, axis=1)


def ratios(rows: list[Row]) -> list[Row]:
    """Return fresh over hybrid errors with standard errors, for every cell and quantile."""
    cells: dict[tuple[float, int, int], dict[str, list[Row]]] = {}
    for row in rows:
        cells.setdefault((row["a"], row["rows"], row["rounds"]), {}).setdefault(
            row["schedule"], []
        ).append(row)
    table, rng = [], np.random.default_rng(0)
    for (exponent, num_rows, num_rounds), by in cells.items():
        repeats, size = len(by["fresh"]), by["fresh"][0]["size"]
        for quantile in ALL:
            if quantile.of == "l_inf" and round(repeats * (1 - quantile.level), 9) < FEWEST:
                continue
            (fresh, others), (hybrid, more) = (told(by[name], quantile, rng) for name in SCHEDULES)
            found: Row = {
                "a": exponent,
                "rows": num_rows,
                "rounds": num_rounds,
                "quantile": quantile,
            }
            found |= {
                "fresh": fresh,
                "hybrid": hybrid,
                "ratio": fresh / hybrid,
                "se": float((others / more).std()),
            }
            table.append(found | {"factor": quantile.factor(num_rounds, size, scaled=True)})
    return table


def judge(ratio: float, error: float, factor: float) -> str:
    """Return which of four the ratio is, by three standard errors.

    They are: the factor or more, between 1 and the factor, 1, below 1.

    >>> [judge(ratio, 0.01, 1.3) for ratio in (1.5, 1.29, 1.1, 1.02, 0.8)]
    ['factor', 'factor', 'some', 'equal', 'fresh better']
    """
    if ratio < 1 - CERTAIN * error:
        return "fresh better"
    if ratio <= 1 + CERTAIN * error:
        return "equal"
    return "factor" if ratio >= factor - CERTAIN * error else "some"


def verdict(words: list[str]) -> str:
    """Return whether the factor shows.

    It may show everywhere, or somewhere while hybrid is nowhere worse, or not.

    >>> verdict(["factor", "factor"]), verdict(["equal", "some"])
    ('reproduced', 'reproduced with a caveat')
    >>> verdict(["factor", "fresh better"])
    'not'
    """
    if set(words) == {"factor"}:
        return "reproduced"
    return (
        "reproduced with a caveat"
        if {"factor", "some"} & set(words) and "fresh better" not in words
        else "not"
    )


def summarise(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the ratios at the most rounds, with the factors there."""
    most, size = max(row["rounds"] for row in rows), rows[0]["size"]
    last = [row for row in ratios(rows) if row["rounds"] == most]
    quantiles = list(dict.fromkeys(row["quantile"] for row in last))
    table: list[Row] = []
    for cell in dict.fromkeys((row["a"], row["rows"]) for row in last):
        chosen = [row for row in last if (row["a"], row["rows"]) == cell]
        words = [judge(row["ratio"], row["se"], row["factor"]) for row in chosen]
        line: Row = {"law": f"i^-{cell[0]:g}", "rows": cell[1]}
        line |= {str(row["quantile"]): f"{row['ratio']:.3g} ± {row['se']:.1g}" for row in chosen}
        table.append(line | {"verdict": verdict(words)})
    for name, scaled in (("factor, 1 at M = 1", True), ("sqrt(log(M/p))", False)):
        line = {"law": name, "rows": ""} | {
            str(q): f"{q.factor(most, size, scaled):.3g}" for q in quantiles
        }
        table.append(line | {"verdict": ""})
    title = (
        f"Error of fresh over error of hybrid, M = {most}; stated: section 3, smaller by"
        " sqrt(log(M/p)) for hybrid"
    )
    return {title: table}


def draw(rows: list[Row]) -> Figure:
    """Draw fresh over hybrid over the number of rounds, a panel for each law and rows."""
    from matplotlib import ticker
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    table, size = ratios(rows), rows[0]["size"]
    laws, lengths = (sorted({row[key] for row in rows}) for key in ("a", "rows"))
    counts = sorted({row["rounds"] for row in rows})
    shape = (2.7 * len(laws) + 0.8, 2.6 * len(lengths) + 1.3)
    figure = Figure(figsize=shape, layout="constrained", facecolor="white")
    grid: Any = figure.subplots(len(lengths), len(laws), sharex=True, sharey=True, squeeze=False)
    shown = [
        q
        for q in dict.fromkeys(row["quantile"] for row in table)
        if q.of == "items" or q.level in (0.5, 0.9)
    ]
    looks: dict[Quantile, dict[str, Any]] = {
        q: {"color": COLOURS[q.level], "linestyle": "-" if q.of == "items" else (0, (4, 2))}
        for q in shown
    }
    for (line, column), axes in np.ndenumerate(grid):
        cell = [row for row in table if (row["a"], row["rows"]) == (laws[column], lengths[line])]
        for quantile, look in looks.items():
            chosen = [row for row in cell if row["quantile"] == quantile]
            numbers = [[row[key] for row in chosen] for key in ("rounds", "ratio", "se")]
            if chosen:
                axes.errorbar(*numbers, marker="o", markersize=3, linewidth=1.3, capsize=2, **look)
        factors = [
            [quantile.factor(count, size, scaled=True) for count in counts] for quantile in shown
        ]
        axes.fill_between(
            counts, np.min(factors, 0), np.max(factors, 0), color="#D0D3D6", linewidth=0, zorder=0
        )
        axes.axhline(1, color="#24292F", linewidth=0.8)
        axes.set(
            xscale="log", yscale="log", title=f"$i^{{-{laws[column]:g}}}$, {lengths[line]} rows"
        )
        axes.grid(which="major", color="#E6E8EB")
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    for axes in grid[-1]:
        axes.set_xlabel("rounds M")
    for axes in grid[:, 0]:
        axes.set_ylabel("error of fresh / of hybrid")
    lines = [
        Line2D([], [], label=f"{quantile} quantile", **look) for quantile, look in looks.items()
    ]
    lines.append(
        Line2D([], [], color="#D0D3D6", linewidth=6, label="factor of the bounds, 1 at M = 1")
    )
    figure.legend(handles=lines, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(
        f"Do fresh rounds carry the factor of their bound? {size:,} items, width {rows[0]['width']}"
    )
    return figure


@click.command("log-factor")
@options.study(exponents=(1.1, 3.0), lengths=(5,), counts=(1, 10, 40), repeats=40, domain_size=3000)
@click.option(
    "-a", "--exponent", "exponents", type=float, multiple=True, default=(0.5, 1.1, 2.0, 3.0)
)
@click.option("--rows", "lengths", type=click.IntRange(1), multiple=True, default=(5, 15))
@click.option(
    "--rounds", "counts", type=click.IntRange(1, 256), multiple=True, default=(1, 3, 10, 30, 100)
)
@click.option("--width", default=100, type=click.IntRange(2))
@options.domain_size(10_000, least=2, most=10_000_000)
@options.repeats(1000, least=2)
@options.seed
def command(
    exponents: tuple[float, ...],
    lengths: tuple[int, ...],
    counts: tuple[int, ...],
    width: int,
    domain_size: int,
    repeats: int,
    seed: int,
    folder: Path,
    jobs: int,
    plot: bool,
) -> None:
    """Compare error quantiles of fresh and hybrid rounds as the number of rounds grows."""

    def tasks() -> Iterator[Task]:
        for exponent in exponents:
            for rows in lengths:
                for num_rounds in counts:
                    for schedule in SCHEDULES:
                        cell = (exponent, domain_size, rows, width, num_rounds, schedule, seed)
                        for first in range(0, repeats, BLOCK):
                            yield Task(*cell, first, min(BLOCK, repeats - first))

    about = (
        f"All rounds hold the same f_i ~ i^-a, {domain_size:,} items; sketches of width {width};"
        f" {repeats:,} campaigns a cell. items q: the q quantile of the errors of all items of a"
        " campaign, mean over campaigns; l_inf q: the q quantile of the largest error over"
        " campaigns. Verdict, by three standard errors: reproduced if each ratio is at least the"
        " factor scaled to 1 at M = 1; with a caveat if none is below 1 and some are above;"
        " otherwise not. The factor is one between upper bounds. Theorem fcs is stated for L >="
        " log(1/p), its proof needs log(2M/p): 12.2 for M = 100, p = .001."
    )
    study.run(
        study.Study("log-factor", list(tasks()), measure, summarise, draw, about),
        folder,
        jobs,
        plot,
    )


if __name__ == "__main__":
    command()
