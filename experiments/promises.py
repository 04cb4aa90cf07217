"""Do plans that know nothing of the frequencies keep their target on tables that they never saw?

Every cell is a table or a law, and a plan for it: the one that `fedtally plan` makes by default,
for any frequencies, or the one that takes them to fall like i^-1.1 (`--like`). Of each cell
campaigns are drawn, every one with new hashes, and those are counted whose largest error exceeds
tau. A cell passes if they are no more than the 99 % quantile of what the failure probability of
10 % leads to. Of plans that rest on an assumption nothing is demanded: that they fail shows what it
is worth.

The synthetic laws are here to be hard, and nothing was tuned to them: a log-normal law, two
plateaus, half of the clients on three items and the others alike, and i^-0.6. The law `alike:K`, K
items of one frequency, is the hardest shape where K is 1 / tau to 2 / tau.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from scipy.special import ndtri
from scipy.stats import binom

from experiments import options, output, planner, rounds, study
from fedtally.base import validate
from fedtally.domain import IntegerRange
from fedtally.plan.frequencies import hardest
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.proposal import propose
from fedtally.plan.request import Request
from fedtally.recovery.decoding import kind_of
from fedtally.sketch import CountSketch, SketchSpec

P, LEVEL = 0.1, 0.99
TABLES = ("brightkite", "gowalla", "names")  # of real people
LAWS = ("lognormal", "plateaus", "half", "0.6")
PLANS = (hardest.ANY, hardest.USUAL)


class Cell(NamedTuple):
    """A table or law, and the plan that is made for it."""

    name: str
    like: str
    domain_size: int
    clients: int
    rounds: int
    tau: float
    repeats: int
    data: str
    recovery: str = "joint"
    spread: float = 0.0


def law(name: str, size: int, data: Path | None) -> rounds.F64:
    """Return a law: float64 [d], falling; of a table its own d.

    Args:
        name: of `TABLES`, of `LAWS`, alike:K, or what `planner.load_law` takes.
        size: d of what is no table.
        data: folder of the tables.

    >>> [round(float(law(name, 1200, Path())[0]), 4) for name in LAWS]
    [0.0936, 0.005, 0.1667, 0.0246]
    """
    ranks = np.arange(1.0, size + 1)
    if name == "lognormal":
        weights = np.exp(2.0 * ndtri(1 - (ranks - 0.5) / size))
    elif name == "plateaus":  # a hundred items share a half, a thousand the other
        weights = np.where(ranks <= 100, 1 / 100, np.where(ranks <= 1100, 1 / 1000, 0.0))
    elif name == "half":
        weights = np.where(ranks <= 3, 1 / 3, np.where(ranks <= 603, 1 / 600, 0.0))
    elif name.startswith("alike:"):
        number = name.removeprefix("alike:")
        if not number.isdecimal():
            raise click.UsageError(f"alike:K takes a whole number of items, got {name!r}")
        items = validate.integer(1, size, items=int(number))
        weights = np.where(ranks <= items, 1.0, 0.0)
    elif name in planner.TABLES:
        return planner.load_law(name, size, data)
    else:
        weights = ranks ** -float(name)
    found: rounds.F64 = weights / weights.sum()
    return found


def draw(known: rounds.F64, cell: Cell, rng: np.random.Generator) -> rounds.I64:
    """Return how many clients of each round hold each item: int64 [rounds, d]."""
    if cell.spread == 0.0:
        return rounds.draw(known, cell.clients, cell.rounds, rng)
    shape = cell.spread**-2
    laws = known * rng.gamma(shape, 1 / shape, (cell.rounds, len(known)))
    return np.concatenate([rounds.draw(one, cell.clients // cell.rounds, 1, rng) for one in laws])


def measure(cell: Cell) -> list[study.Row]:
    """Return a row for every campaign of a cell."""
    known = law(cell.name, cell.domain_size, Path(cell.data))
    domain = IntegerRange(rounds.FIRST_ID, len(known))
    spec = Request(num_rounds=cell.rounds, tau=cell.tau, encoding="sketch").resolve()
    assumed = None if cell.like == hardest.ANY else Frequencies.assumed(len(known))
    plan = propose(spec, domain, cell.clients, assumed, seed=bytes(32)).plan
    rows: list[study.Row] = []
    for repeat in range(cell.repeats):
        rng = np.random.default_rng((3, repeat))
        sketch = SketchSpec(plan.rows, plan.width, plan.schedule, plan.num_rounds, rng.bytes(32))
        counts = draw(known, cell, rng)[:, rng.permutation(len(known))]
        landed = [CountSketch(sketch, number) for number in range(cell.rounds)]
        for one, held in zip(landed, counts, strict=True):
            one.add_range(rounds.FIRST_ID, held)
        decoder = kind_of(cell.recovery).make(landed, domain)
        found = decoder.range(rounds.FIRST_ID, len(known))
        error = float(np.abs(found - counts.sum(axis=0)).max()) / int(counts.sum())
        about = {"law": cell.name, "like": cell.like, "tau": cell.tau, "linf": error}
        about |= {"bytes": plan.bytes_per_client, "cells": plan.rows * plan.width}
        rows.append(about | {"seed": repeat, "plan": study.describe(sketch, cell.clients)})
    return rows


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return the table: for each law and plan how many campaigns exceeded tau."""
    table: list[study.Row] = []
    for name, like in dict.fromkeys((row["law"], row["like"]) for row in rows):
        own = [row for row in rows if (row["law"], row["like"]) == (name, like)]
        errors = np.array([row["linf"] for row in own])
        tau = own[0]["tau"]
        exceeded = int((errors > tau * (1 + 1e-9)).sum())
        allowed = int(binom.ppf(LEVEL, len(own), P))
        row: study.Row = {"law": name, "plan for": like, "cells": own[0]["cells"]}
        row |= {"bytes": own[0]["bytes"], "campaigns": len(own), "exceeded": exceeded}
        row |= {"allowed": allowed, "largest / tau": float(errors.max()) / tau}
        fails = exceeded > allowed
        verdict = ("MISS" if fails else "PASS") if like == hardest.ANY else "-"
        table.append(row | {"verdict": verdict})
    return {"Campaigns whose largest error exceeds tau": table}


@click.command("promises")
@options.study(laws=("plateaus",), repeats=2, clients=20_000, domain_size=2000, tau=0.01)
@options.laws((*TABLES, *LAWS), help="A table, a law of this experiment, an exponent, or alike:K.")
@options.domain_size(20_000, least=1100, help="Of laws that are no tables.")
@options.clients(200_000)
@click.option("--rounds", "num_rounds", type=click.IntRange(1), default=5)
@click.option("--tau", type=float, default=0.002)
@options.repeats(20)
@click.option(
    "--recovery",
    type=click.Choice(["joint", "belief"]),
    default="joint",
    help="What decodes the campaigns; plans rest on joint recovery.",
)
@click.option(
    "--spread",
    type=click.FloatRange(0.0),
    default=0.0,
    help="Of rounds that differ: the standard deviation of the Gamma variable, of mean 1, by which"
    " each item's share of each round is multiplied.",
)
@options.data(f"Folder of the real tables, which are {', '.join(planner.TABLES)}.")
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    laws: tuple[str, ...],
    domain_size: int,
    clients: int,
    num_rounds: int,
    tau: float,
    repeats: int,
    recovery: str,
    spread: float,
    data: Path | None,
) -> None:
    """Count the campaigns of default plans that exceed tau; exit code 1 if they are too many."""
    where = str(output.data_folder(data))
    sizes = (domain_size, clients, num_rounds, tau, repeats, where, recovery, spread)
    cells = [Cell(name, like, *sizes) for name in laws for like in PLANS]
    for cell in cells:  # a table that is missing is said to be before the work starts
        law(cell.name, domain_size, Path(where))
    asked = study.Study("promises", cells, measure, summarise, about=__doc__ or "")
    rows = study.run(asked, folder, jobs, plot)
    [table] = summarise(rows).values()
    if any(row["verdict"] == "MISS" for row in table):
        sys.exit(1)


if __name__ == "__main__":
    command()
