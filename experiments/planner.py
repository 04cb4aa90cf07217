"""Widths that the planner chooses from pilots, over the least width that keeps the largest error below tau.

Every cell is a power law, a tau and a decoder, with a number of rows. The least width is found by simulation: campaigns
are drawn from the law, each with new hashes, and the width is bisected for the least, within 3 %, at which a share
1 - p of them keeps tau. The planner sees pilots of other clients. Its choices, as medians over the pilots, are those of
the paper's two-phase method with its constant 2 (made for medians, whatever the decoder), of the worst case, and of
`fedtally.planner.calculus`: `bare` without margin, and as it is by default. `known` is `bare` for the law itself. The
success is the share of campaigns within tau at the median chosen width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from experiments import output, rounds
from experiments.recovery import law as power_law
from fedtally import planner
from fedtally.domain import IntegerRange
from fedtally.recovery.joint import JointDecoder
from fedtally.recovery.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

P = 0.1
GRID = 1.03
QUICK: dict[str, object] = {
    "laws": ("1.5",),
    "taus": (0.02,),
    "recoveries": ("median",),
    "domain_size": 10_000,
    "pilots": 3,
    "draws": 20,
}


class Cell(NamedTuple):
    """What is asked for: a population float64 [d], tau, and how to decode so many rows."""

    population: rounds.F64
    tau: float
    recovery: str
    rows: int
    clients: int

    @property
    def domain(self) -> IntegerRange:
        """The candidate items."""
        return IntegerRange(rounds.FIRST_ID, len(self.population))

    def sketch(self, spec: SketchSpec, clients: int, rng: np.random.Generator) -> tuple[CountSketch, rounds.I64]:
        """Draw clients and return their sketch and their counts, int64 [d]."""
        [counts] = rounds.draw(self.population, clients, 1, rng)
        sketch = CountSketch(spec, 0)
        sketch.add_range(rounds.FIRST_ID, counts)
        return sketch, counts

    def within(self, width: int, seed: int) -> bool:
        """Run a campaign and return whether its largest error is at most tau."""
        rng = np.random.default_rng((seed, width, self.rows))
        spec = SketchSpec(self.rows, width, Schedule.parse("shared"), 1, rng.bytes(32))
        sketch, counts = self.sketch(spec, self.clients, rng)
        decoder = JointDecoder([sketch], self.domain) if self.recovery == "joint" else MedianDecoder([sketch])
        errors = decoder.range(rounds.FIRST_ID, len(self.population)) - counts
        return bool(np.abs(errors).max() <= self.tau * self.clients * (1 + 1e-9))

    def success(self, width: int, draws: int, first_seed: int = 0) -> float:
        """Return the share of campaigns within tau."""
        return sum(self.within(width, first_seed + seed) for seed in range(draws)) / draws

    def suffices(self, width: int, draws: int) -> bool:
        """Return whether a share 1 - p of campaigns is within tau; stops as soon as that is known."""
        allowed = int(draws * P + 1e-9)
        failed = 0
        for seed in range(draws):
            failed += not self.within(width, seed)
            if failed > allowed:
                return False
        return True

    def least_width(self, guess: int, draws: int) -> int:
        """Return the least width that suffices, within 3 %."""
        low, high = max(1, guess // 2), max(3, guess)
        while not self.suffices(high, draws):
            low, high = high, 2 * high
        while low > 1 and self.suffices(low, draws):
            low, high = low // 2, low
        while high > low + 1 and high / low > GRID:
            middle = min(max(round(math.sqrt(low * high)), low + 1), high - 1)
            low, high = (low, middle) if self.suffices(middle, draws) else (middle, high)
        return high


def choices(cell: Cell, pilot: planner.Pilot, seed: int) -> dict[str, float]:
    """Return the widths chosen from one pilot, and what the calculus knew of its uncertainty."""
    rng = np.random.default_rng((1, seed))
    sketch, _ = cell.sketch(pilot.spec(rng.bytes(32)), pilot.clients(cell.clients), rng)
    found = planner.Law.from_pilot([sketch], cell.domain)
    campaign = planner.Campaign(cell.clients, recovery=cell.recovery)
    bare = planner.calculus(found, cell.tau, campaign, p=P, rows=cell.rows, margin=1.0, risk=1.0)
    chosen = planner.calculus(found, cell.tau, campaign, p=P, rows=cell.rows)
    paper = planner.two_phase(sketch, cell.domain, cell.tau, num_clients=cell.clients, p=P, rows=cell.rows)
    return {
        "two-phase": paper.width,
        "bare": bare.width,
        "calculus": chosen.width,
        "uncertainty": found.uncertainty(cell.tau),
        "fell back": chosen.method != "calculus",
    }


def measure(name: str, cell: Cell, pilot: planner.Pilot, pilots: int, draws: int) -> dict[str, object]:
    """Return a row of the table."""
    campaign = planner.Campaign(cell.clients, recovery=cell.recovery)
    law = planner.Law.from_frequencies(cell.population)
    known = planner.calculus(law, cell.tau, campaign, p=P, rows=cell.rows, margin=1.0, risk=1.0).width
    least = cell.least_width(known, draws)
    runs = [choices(cell, pilot, seed) for seed in range(pilots)]
    worst = planner.minimax(cell.tau, num_clients=cell.clients, domain_size=len(cell.population), rows=cell.rows)
    row: dict[str, object] = {"law": name, "tau": cell.tau, "decoder": cell.recovery, "rows": cell.rows, "least": least}
    row |= {"minimax": worst.width / least, "known": known / least}
    for method in ("two-phase", "bare", "calculus"):
        widths = np.array([run[method] for run in runs])
        row[method] = float(np.median(widths)) / least
        row[f"{method} range"] = f"{widths.min() / least:.2f}-{widths.max() / least:.2f}"
    for method in ("two-phase", "calculus"):
        width = max(2, round(float(np.median([run[method] for run in runs]))))
        row[f"success {method}"] = cell.success(width, draws, first_seed=10_000)
    row["uncertainty"] = float(np.median([run["uncertainty"] for run in runs]))
    row["fell back"] = int(sum(run["fell back"] for run in runs))
    return row


@click.command("planner")
@click.option("--law", "laws", multiple=True, default=("1.05", "1.2", "1.5", "2", "3"), help="An exponent, or zm.")
@click.option("--tau", "taus", multiple=True, type=float, default=(0.002, 0.01, 0.05))
@click.option("--decoder", "recoveries", multiple=True, type=click.Choice(["median", "joint"]), default=("median",))
@click.option("--rows", multiple=True, type=int, default=(15,))
@click.option("--domain-size", default=100_000)
@click.option("--clients", default=10_000)
@click.option("--pilot-width", default=planner.Pilot.width)
@click.option("--pilots", type=click.IntRange(1), default=12)
@click.option("--draws", type=click.IntRange(1), default=40, help="Campaigns per width.")
@click.option("--quick", is_flag=True, help="One small cell.")
@click.option("--output", "path", type=click.Path(path_type=Path), help="Also write the table: .csv or .parquet.")
def command(pilot_width: int, quick: bool, path: Path | None, **values: object) -> None:
    """Compare chosen with least widths, over laws and targets."""
    output.check_path(path)
    table = list(_rows(planner.Pilot(width=pilot_width), **(values | QUICK if quick else values)))  # type: ignore[arg-type]
    output.show(table)
    output.save(table, path)


def _rows(
    pilot: planner.Pilot,
    laws: tuple[str, ...],
    taus: tuple[float, ...],
    recoveries: tuple[str, ...],
    rows: tuple[int, ...],
    domain_size: int,
    clients: int,
    pilots: int,
    draws: int,
) -> Iterator[dict[str, object]]:
    for name in laws:
        population = power_law(name, domain_size)
        for tau, recovery, number in ((t, c, r) for t in taus for c in recoveries for r in rows):
            yield measure(name, Cell(population, tau, recovery, number, clients), pilot, pilots, draws)


if __name__ == "__main__":
    command()
