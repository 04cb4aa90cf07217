"""Sizes that the planner chooses from pilots, over the least that meet tau, with a verdict.

Every cell is a law, a tau and a decoder, with a number of rows or with rows that the planner
chooses. What is compared is rows x width. `least` is the width that this many rows need, found by
simulation: campaigns are drawn from the law, each with new hashes, and the width is bisected for
the least, within 3 %, at which a share 1 - p of them keeps tau. Where the planner chooses the rows,
they are those of its median choice. The planner sees pilots of other clients. Its choices, as
medians over the pilots, are those of the paper's two-phase method with its constant 2 (made for
medians, whatever the decoder), of the worst case, and of `fedtally.plan.sizes.size_by_model`:
`bare` without margin, at the same rows, and as it is by default. `known` is `bare` for the law
itself. `hardness` is that which the pilots tell, over the true.

`success` is the share of campaigns within tau at the median choice, `over pilots` that of campaigns
each planned by one of the pilots, which is what is allowed. A cell passes if the median choice is
0.9 to 1.4 times the least, and if its success is not below the 1 % quantile of what 1 - p leads to;
it is judged from 12 pilots and 200 campaigns on.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from scipy.stats import binom

from experiments import options, output, recovery, rounds
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.frequencies.pilot import Pilot
from fedtally.plan.paper import Size, minimax, two_phase
from fedtally.plan.predictor import Predictor
from fedtally.plan.sizes import size_by_model
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

P = 0.1
GRID = 1.03
BAND = 0.9, 1.4
LEVEL = 0.01
JUDGED = 12, 200  # pilots and campaigns
NAMES = "us_baby_names.parquet"
TABLES = (*recovery.TABLES, "names")


class Work(NamedTuple):
    """The size of a simulation: pilots, campaigns for each width, campaigns of the result."""

    pilots: int
    draws: int
    trials: int


class Cell(NamedTuple):
    """A request: a law, float64 [d], tau, the decoder, and the rows unless the planner decides."""

    name: str
    law: rounds.F64
    tau: float
    recovery: str
    rows: int | None
    clients: int
    pilot: Pilot

    @property
    def domain(self) -> IntegerRange:
        """The candidate items."""
        return IntegerRange(rounds.FIRST_ID, len(self.law))

    @property
    def predictor(self) -> Predictor:
        """What the planner is told."""
        return Predictor(self.clients, recovery=self.recovery)

    def sketch(
        self, spec: SketchSpec, clients: int, rng: np.random.Generator
    ) -> tuple[CountSketch, rounds.I64]:
        """Draw clients; return their sketch and counts, int64 [d], of items in random order."""
        [counts] = rounds.draw(self.law, clients, 1, rng)
        rng.shuffle(counts)
        sketch = CountSketch(spec, 0)
        sketch.add_range(rounds.FIRST_ID, counts)
        return sketch, counts

    def within(self, rows: int, width: int, seed: int) -> bool:
        """Run a campaign and return whether its largest error is at most tau."""
        rng = np.random.default_rng((seed, width, rows))
        spec = SketchSpec(rows, width, Schedule.parse("shared"), 1, rng.bytes(32))
        sketch, counts = self.sketch(spec, self.clients, rng)
        decoder = (
            JointDecoder([sketch], self.domain)
            if self.recovery == "joint"
            else MedianDecoder([sketch])
        )
        errors = decoder.range(rounds.FIRST_ID, len(self.law)) - counts
        return bool(np.abs(errors).max() <= self.tau * self.clients * (1 + 1e-9))

    def successes(self, rows: int, width: int, trials: int) -> int:
        """Return how many of so many campaigns, other than those of the search, are within tau."""
        return sum(self.within(rows, width, 10_000 + seed) for seed in range(trials))

    def suffices(self, rows: int, width: int, draws: int) -> bool:
        """Return whether a share 1 - p of campaigns is within tau; stop when that is known."""
        allowed = int(draws * P + 1e-9)
        failed = 0
        for seed in range(draws):
            failed += not self.within(rows, width, seed)
            if failed > allowed:
                return False
        return True

    def least_width(self, rows: int, guess: int, draws: int) -> int:
        """Return the least width that suffices, within 3 %."""
        low, high = max(1, guess // 2), max(3, guess)
        while not self.suffices(rows, high, draws):
            low, high = high, 2 * high
        while low > 1 and self.suffices(rows, low, draws):
            low, high = low // 2, low
        while high > low + 1 and high / low > GRID:
            middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
            low, high = (low, middle) if self.suffices(rows, middle, draws) else (middle, high)
        return high


class Choice(NamedTuple):
    """What one pilot leads to."""

    model: Size
    bare: Size
    paper: Size
    hardness: float
    uncertainty: float


def load_law(name: str, size: int, data: Path | None) -> rounds.F64:
    """Return a law: float64 [d], falling; of a table its own d.

    Args:
        name: an exponent, zm, or the name of a table.
        size: d of what is no table.
        data: folder of the tables.

    Raises:
        InvalidInputError: the table's file is not in the folder.
    """
    if name not in TABLES:
        return recovery.law(name, size)
    if data is None:
        raise InvalidInputError(
            f"the table {name} is not part of the project: name its folder with --data"
        )
    if name != "names":
        return np.sort(recovery.load_table(name, data))[::-1]
    if not (data / NAMES).is_file():
        raise output.MissingDataError(
            f"{data / NAMES} does not exist: name the folder of {NAMES} with --data"
        )
    from pyarrow import parquet

    table = (
        parquet.read_table(data / NAMES, columns=["name", "count"])
        .group_by("name")
        .aggregate([("count", "sum")])
    )
    births = np.sort(table["count_sum"].to_numpy().astype(np.float64))[::-1]
    law: rounds.F64 = births / births.sum()
    return law


def choose(cell: Cell, seed: int) -> Choice:
    """Return what is chosen from one pilot, and what it tells."""
    rng = np.random.default_rng((1, seed))
    sketch, _ = cell.sketch(cell.pilot.spec(rng.bytes(32)), cell.pilot.clients(cell.clients), rng)
    law = Frequencies.from_pilot([sketch], cell.domain)
    chosen = size_by_model(law, cell.tau, cell.predictor, p=P, rows=cell.rows)
    bare = size_by_model(law, cell.tau, cell.predictor, p=P, rows=chosen.rows, margin=1.0, risk=1.0)
    paper = two_phase(sketch, cell.domain, cell.tau, num_clients=cell.clients, p=P, rows=cell.rows)
    return Choice(chosen, bare, paper, law.hardness(cell.tau), law.uncertainty(cell.tau))


def median(sizes: list[Size]) -> Size:
    """Return the size with the median number of cells, the smaller one of two in the middle.

    >>> median([planner.Size("model", 8, width) for width in (40, 10, 30, 20)]).width
    20
    """
    return sorted(sizes, key=lambda size: size.cells)[(len(sizes) - 1) // 2]


def measure(cell: Cell, work: Work) -> dict[str, object]:
    """Return a row of the table."""
    choices = [choose(cell, seed) for seed in range(work.pilots)]
    chosen = median([choice.model for choice in choices])
    law = Frequencies.from_frequencies(cell.law)
    known = size_by_model(
        law, cell.tau, cell.predictor, p=P, rows=chosen.rows, margin=1.0, risk=1.0
    )
    least = cell.least_width(chosen.rows, known.width, work.draws)
    worst = minimax(cell.tau, num_clients=cell.clients, domain_size=len(cell.law), rows=cell.rows)
    cells = chosen.rows * least
    row: dict[str, object] = {
        "law": cell.name,
        "clients": cell.clients,
        "tau": cell.tau,
        "decoder": cell.recovery,
    }
    row |= {"rows": f"{chosen.rows}{'' if cell.rows else ' (chosen)'}", "least": least}
    row |= {"minimax": worst.cells / cells, "known": known.cells / cells}
    methods = {"two-phase": "paper", "bare": "bare", "model": "model"}
    for method, name in methods.items():
        sizes = [getattr(choice, name) for choice in choices]
        ratios = [size.cells / cells for size in sizes]
        row |= {
            method: median(sizes).cells / cells,
            f"{method} range": f"{min(ratios):.2f}-{max(ratios):.2f}",
        }
    paper = median([choice.paper for choice in choices])
    row["success two-phase"] = (
        cell.successes(paper.rows, max(2, paper.width), work.trials) / work.trials
    )
    kept = cell.successes(chosen.rows, chosen.width, work.trials)
    row["success"] = kept / work.trials
    each = max(1, work.trials // work.pilots)
    over = sum(cell.successes(choice.model.rows, choice.model.width, each) for choice in choices)
    row["over pilots"] = over / (each * work.pilots)
    row["hardness"] = float(np.median([choice.hardness for choice in choices])) / law.hardness(
        cell.tau
    )
    row["uncertainty"] = float(np.median([choice.uncertainty for choice in choices]))
    row["fell back"] = sum(choice.model.method != "model" for choice in choices)
    row["at 99 %"] = "met" if keeps(kept, work.trials) else "missed"
    judged = work.pilots >= JUDGED[0] and work.trials >= JUDGED[1]
    passes = BAND[0] <= chosen.cells / cells <= BAND[1] and keeps(kept, work.trials)
    row["verdict"] = ("PASS" if passes else "MISS") if judged else "-"
    return row


def keeps(successes: int, trials: int) -> bool:
    """Say whether so many successes are not below a target of 1 - p, at the level of 99 %.

    >>> keeps(169, 200), keeps(170, 200)
    (False, True)
    """
    return successes >= int(binom.ppf(LEVEL, trials, 1 - P))


@click.command("planner")
@options.quick(laws=("1.5",), taus=(0.02,), domain_size=10_000, pilots=3, draws=20, trials=40)
@options.laws(("1.05", "1.2", "1.5", "2", "3"), help="An exponent, zm, or a table's name.")
@click.option("--tau", "taus", multiple=True, type=float, default=(0.002, 0.01, 0.05))
@click.option(
    "--decoder",
    "recoveries",
    multiple=True,
    type=click.Choice(["median", "joint"]),
    default=("median",),
)
@click.option("--rows", multiple=True, default=("15",), help="A number, or chosen.")
@options.domain_size(100_000, help="Of laws that are no tables.")
@options.clients(10_000)
@click.option("--pilot-rows", default=Pilot.rows)
@click.option("--pilot-width", default=Pilot.width)
@click.option("--pilots", type=click.IntRange(1), default=12)
@click.option(
    "--draws",
    type=click.IntRange(1),
    default=100,
    help="Campaigns per width, in the search for the least.",
)
@click.option(
    "--trials", type=click.IntRange(1), default=200, help="Campaigns at the width that is chosen."
)
@options.data(f"Folder of the real tables, which are {', '.join(TABLES)}.")
@options.jobs
@options.table
def command(
    pilot_rows: int,
    pilot_width: int,
    data: Path | None,
    jobs: int,
    path: Path | None,
    **values: object,
) -> None:
    """Compare chosen with least sizes, over laws and targets; exit code 1 if any is off."""
    output.check_path(path)
    pilot = Pilot(rows=pilot_rows, width=pilot_width)
    table = []
    for row in _rows(pilot, data, jobs, **values):  # type: ignore[arg-type]
        table.append(row)
        which = f"{row['law']}, tau {row['tau']}, {row['decoder']}, {row['rows']} rows"
        click.echo(
            f"{which}: {row['model']:.3g} times the least, success {row['success']:.3g}", err=True
        )
    output.show(table)
    output.save(table, path)
    if any(row["verdict"] == "MISS" for row in table):
        sys.exit(1)


def _rows(
    pilot: Pilot,
    data: Path | None,
    jobs: int,
    laws: tuple[str, ...],
    taus: tuple[float, ...],
    recoveries: tuple[str, ...],
    rows: tuple[str, ...],
    domain_size: int,
    clients: int,
    pilots: int,
    draws: int,
    trials: int,
) -> Iterator[dict[str, object]]:
    numbers = [_number(text) for text in rows]
    cells = [
        Cell(name, law, *what, clients, pilot)
        for name, law in [(name, load_law(name, domain_size, data)) for name in laws]
        for what in itertools.product(taus, recoveries, numbers)
    ]
    work = [Work(pilots, draws, trials)] * len(cells)
    if jobs == 1:
        yield from map(measure, cells, work)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as processes:
        yield from processes.map(measure, cells, work)


def _number(rows: str) -> int | None:
    if rows == "chosen":
        return None
    if not rows.isdecimal():
        raise InvalidInputError(f"--rows must be a number, or chosen, got {rows!r}")
    return int(rows)


if __name__ == "__main__":
    command()
