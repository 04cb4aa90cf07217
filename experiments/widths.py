"""What does `estimate --tau` take, now that a pilot's size fits the decoder that answers?

Of each law or table pilots are drawn, each with a campaign of other clients. The counters of the
plan are set beside those of the plan for joint recovery (`--recovery joint`), which was taken
before. Campaigns are decoded by default, and those are counted whose largest error exceeds tau.
Nothing was tuned to these laws and tables. Of each the 10,000 most frequent items are taken.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

import fedtally
from experiments import coverage, options, output, planner, rounds
from fedtally.domain import IntegerRange
from fedtally.sources.synthetic import frequencies

CANDIDATES = 10_000
OWN = ("stairs", "shifted", "crowd")
PROFILES = ("profile:foursquare-us", "profile:stackoverflow-tags")


class Cell(NamedTuple):
    """A law or table, a target, and how many clients and campaigns there are."""

    name: str
    tau: float
    clients: int
    repeats: int
    data: str


def law(name: str, data: Path) -> rounds.F64:
    """Return a law, falling: float64 [d], at most `CANDIDATES`.

    >>> [round(float(law(name, Path())[0]), 4) for name in OWN]
    [0.2703, 0.0055, 0.2]
    """
    ranks = np.arange(1.0, CANDIDATES + 1)
    if name == "stairs":  # each step has three times as many items, and .75 of the mass
        weights = np.repeat([0.25**k for k in range(9)], [3**k for k in range(9)])
    elif name == "shifted":
        weights = (ranks + 100) ** -1.5
    elif name == "crowd":  # one item, five hundred alike, and others that fall like 1 / i
        tail = 1 / ranks[:9499]
        weights = np.concatenate([[0.2], np.full(500, 0.001), 0.3 * tail / tail.sum()])
    elif name in PROFILES:
        weights = frequencies(name)
    else:
        weights = planner.load_law(name, CANDIDATES, data)
    found: rounds.F64 = weights[:CANDIDATES] / weights[:CANDIDATES].sum()
    return found


def measure(cell: Cell) -> dict[str, object]:
    """Return a row of the table."""
    known = law(cell.name, Path(cell.data))
    # where a histogram takes fewer bytes, no pilot decides on anything
    asked: dict[str, Any] = {"num_rounds": 5, "tau": cell.tau, "confidence": 0}
    asked["encoding"] = "sketch"
    asked["domain"] = IntegerRange(rounds.FIRST_ID, len(known))
    ratios, errors = [], []
    for repeat in range(cell.repeats):
        rng = np.random.default_rng((8, repeat))
        counts = rng.permutation(rng.multinomial(cell.clients, known))
        ids, held = rounds.FIRST_ID + np.flatnonzero(counts), counts[counts > 0]
        asked |= {"counts": held, "seed": repeat}
        now = fedtally.estimate(ids, evaluate=True, **asked)
        before = fedtally.estimate(ids, recovery="joint", **asked)
        assert now.evaluation is not None
        plans = [now.plan, before.plan]
        cells, least = (one.rows * one.width for one in plans)
        ratios.append(cells / least)
        errors.append(now.evaluation.linf / cell.tau)
    return {
        "law": cell.name,
        "tau": cell.tau,
        "of before": float(np.median(ratios)),
        "exceeded": int((np.array(errors) > 1 + 1e-9).sum()),
        "of": cell.repeats,
        "largest / tau": max(errors),
    }


@click.command("widths")
@options.quick(laws=("shifted",), repeats=1, clients=20_000)
@options.laws((), help="A law of this experiment, a profile or a table; all without it.")
@click.option("--tau", type=float, default=0.002)
@options.clients(50_000)
@options.repeats(10)
@options.data(f"Folder of the real tables, which are {', '.join(planner.TABLES)}.")
@options.jobs
@options.table
def command(
    laws: tuple[str, ...],
    tau: float,
    clients: int,
    repeats: int,
    data: Path | None,
    jobs: int,
    path: Path | None,
) -> None:
    """Compare the sizes of pilots with those for joint recovery, and count misses of tau."""
    output.check_path(path)
    where = str(output.data_folder(data))
    names = laws or (*OWN, *PROFILES, *(planner.TABLES if data else ()))
    cells = [Cell(name, tau, clients, repeats, where) for name in names]
    table = [row for _, row in coverage.in_turn(cells, measure, jobs)]
    output.show(table)
    output.save(table, path)


if __name__ == "__main__":
    command()
