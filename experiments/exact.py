"""Is recovery exact where it is predicted to be? Plans rely on it in somewhat wider sketches only.

A sketch with a few cells for each item is predicted to recover all items exactly, and a somewhat
narrower one to recover few (docs/accuracy.md). Every cell of this experiment is a number of
batches, a shape of the frequencies, a number of items and of rows. Its campaigns have the least
width that is predicted to be exact, and wider ones. A campaign is not exact if its largest error is
more than a quarter of the rarest item's frequency.

Shapes: `alike` (1,000 clients for each item), `few` (20 clients for each item), `unequal` (as
`alike`, and the rounds have sizes of 1 : 2 : 3 and so on), and `hundredfold` (frequencies fall
geometrically, the first is a hundred times the last).

A cell misses if more than a tenth of the campaigns at the factor that plans rely on are not exact.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from experiments import options, rounds, study
from fedtally.domain import IntegerRange
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.predictor import SURE, Predictor
from fedtally.recovery.decoding import kind_of
from fedtally.sketch import CountSketch, Schedule, SketchSpec

SHAPES = ("alike", "few", "unequal", "hundredfold")
FACTORS = (1.0, *SURE, 1.4)
BATCHES, ROWS, ITEMS = (1, 2, 3, 5, 10), (7, 15), (30, 120)
CANDIDATES, MOST = 2000, 0.1


class Cell(NamedTuple):
    """A number of batches, a shape of so many items, and a number of rows."""

    batches: int
    shape: str
    items: int
    rows: int
    repeats: int
    seed: int
    recovery: str = "joint"

    @property
    def frequencies(self) -> rounds.F64:
        """Float64 [items], falling."""
        ranks = np.arange(float(self.items))
        weights = 0.01 ** (ranks * (self.shape == "hundredfold") / self.items)
        found: rounds.F64 = weights / weights.sum()
        return found

    @property
    def round_sizes(self) -> list[int]:
        """Clients of each round."""
        shares = np.arange(1.0, self.batches + 1) ** (self.shape == "unequal")
        clients = (20 if self.shape == "few" else 1000) * self.items
        return [round(clients * share / shares.sum()) for share in shares]


def begins(cell: Cell) -> int:
    """Return the least width from which on joint recovery is predicted to be exact.

    >>> begins(Cell(5, "alike", 120, 7, 1, 0))
    31
    """
    sizes = cell.round_sizes
    schedule = "hybrid" if cell.batches > 1 else "shared"
    predictor = Predictor(sum(sizes), schedule, cell.batches, round_sizes=sizes)
    known = Frequencies.from_frequencies(cell.frequencies, CANDIDATES)
    width = 20 * cell.items // cell.rows
    while width > 2 and predictor.predicted(known, cell.rows, width - 1).scale == 0.0:
        width -= 1
    return width


def measure(cell: Cell) -> list[study.Row]:
    """Return a row for every factor and campaign of a cell."""
    known, sizes, first = cell.frequencies, cell.round_sizes, begins(cell)
    domain = IntegerRange(rounds.FIRST_ID, CANDIDATES)
    schedule = Schedule.parse("hybrid" if cell.batches > 1 else "shared")
    rows: list[study.Row] = []
    for factor in FACTORS:
        for repeat in range(cell.repeats):
            rng = np.random.default_rng([cell.seed, cell.batches, cell.items, cell.rows, repeat])
            width = int(np.ceil(factor * first))
            spec = SketchSpec(cell.rows, width, schedule, cell.batches, rng.bytes(32))
            counts = np.zeros((cell.batches, CANDIDATES), np.int64)
            held = rng.permutation(CANDIDATES)[: cell.items]
            counts[:, held] = [rng.multinomial(size, known) for size in sizes]
            landed = [CountSketch(spec, number) for number in range(cell.batches)]
            for one, row in zip(landed, counts, strict=True):
                one.add_range(rounds.FIRST_ID, row)
            decoder = kind_of(cell.recovery).make(landed, domain)
            found = decoder.range(rounds.FIRST_ID, CANDIDATES)
            error = float(np.abs(found - counts.sum(axis=0)).max())
            about = {name: getattr(cell, name) for name in ("batches", "shape", "items", "rows")}
            about |= {"factor": factor, "error": error / (sum(sizes) * float(known[-1]))}
            about |= {"items a cell": cell.items / (cell.rows * first)}
            rows.append(about | {"seed": repeat, "plan": study.describe(spec, sum(sizes))})
    return rows


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return the table: by batches and shape, how many campaigns are not exact at each factor."""
    table: list[study.Row] = []
    for batches, shape in dict.fromkeys((row["batches"], row["shape"]) for row in rows):
        own = [row for row in rows if (row["batches"], row["shape"]) == (batches, shape)]
        line: study.Row = {"batches": batches, "shape": shape}
        line["items a cell"] = float(np.median([row["items a cell"] for row in own]))
        shares = {}
        for factor in FACTORS:
            missed = [row["error"] > 0.25 for row in own if row["factor"] == factor]
            shares[factor] = sum(missed) / len(missed)
            line[f"{factor:g} wide"] = f"{sum(missed)} of {len(missed)}"
        table.append(line | {"verdict": "MISS" if shares[SURE[-1]] > MOST else "PASS"})
    return {"Campaigns that are not exact, at multiples of the least width predicted to be": table}


@click.command("exact")
@options.study(shapes=("alike",), batches=(5,), items=(30,), repeats=2)
@click.option("--shape", "shapes", type=click.Choice(SHAPES), multiple=True, default=SHAPES)
@click.option("--batches", type=click.IntRange(1, 64), multiple=True, default=BATCHES)
@click.option("--items", type=click.IntRange(10, 1000), multiple=True, default=ITEMS)
@options.repeats(10)
@click.option("--recovery", type=click.Choice(["joint", "belief"]), default="joint")
@options.seed
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    shapes: tuple[str, ...],
    batches: tuple[int, ...],
    items: tuple[int, ...],
    repeats: int,
    recovery: str,
    seed: int,
) -> None:
    """Count campaigns that are not exact, where it was predicted; exit code 1 if too many."""
    cells = [
        Cell(number, shape, some, one, repeats, seed, recovery)
        for number in batches
        for shape in shapes
        if number > 1 or shape != "unequal"
        for some in items
        for one in ROWS
    ]
    asked = study.Study("exact", cells, measure, summarise, about=__doc__ or "")
    [table] = summarise(study.run(asked, folder, jobs, plot)).values()
    if any(row["verdict"] == "MISS" for row in table):
        sys.exit(1)


if __name__ == "__main__":
    command()
