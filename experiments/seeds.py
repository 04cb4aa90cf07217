"""Does a small plan gain by the choice of its seed among eight draws?

Each sketch has at most 150 counters: it is what `fedtally plan` takes for epsilon 1, a tau, and the
frequencies of a population. The first draw of its hashes and the most even of eight
(`fedtally.plan.seeds`) are tried on the same campaigns. Clients are drawn from the population,
its items have new places among the candidates, and counters have the noise of the plan. Nothing of
a campaign was known when the seed was chosen.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from experiments import options, study
from fedtally.domain import IntegerRange
from fedtally.plan.design import Design
from fedtally.plan.request import Request
from fedtally.plan.search import for_bytes
from fedtally.plan.seeds import even_seed
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.sketch import CountSketch

F64 = npt.NDArray[np.float64]


class Cell(NamedTuple):
    """A population, and a plan for it: items, clients and tau, and the rows and width it has."""

    name: str
    items: int
    clients: int
    tau: float
    rows: int
    width: int


LAWS: dict[str, Callable[[int], F64]] = {
    "one of .6, others alike": lambda d: np.append(0.6, np.full(d - 1, 0.4 / (d - 1))),
    "ten of .03, others alike": lambda d: np.append(np.full(10, 0.03), np.full(d - 10, 0.7 / d)),
    "i^-0.3": lambda d: np.arange(1.0, d + 1) ** -0.3,
    "i^-1.1": lambda d: np.arange(1.0, d + 1) ** -1.1,
}
CELLS = (
    Cell("one of .6, others alike", 30_001, 100_000, 0.002, 12, 6),
    Cell("one of .6, others alike", 1_000, 20_000, 0.01, 8, 4),
    Cell("ten of .03, others alike", 3_000, 100_000, 0.01, 8, 13),
    Cell("i^-0.3", 3_000, 100_000, 0.01, 11, 9),
    Cell("i^-1.1", 3_000, 100_000, 0.02, 12, 11),
)


class Task(NamedTuple):
    """The campaigns of one first draw of a plan's seed."""

    cell: Cell
    campaigns: int
    seed: int
    repeat: int


def measure(task: Task) -> list[study.Row]:
    """Return a row: the errors of all campaigns under the first draw, and under the chosen one."""
    cell = task.cell
    law = LAWS[cell.name](cell.items)
    law /= law.sum()
    rng = np.random.default_rng([zlib.crc32(repr(cell).encode()), task.seed, task.repeat])
    domain = IntegerRange(1, cell.items)
    asked = Request(rows=cell.rows, width=cell.width, epsilon=1.0, delta=1e-6).resolve()
    first = rng.bytes(32)
    drawn = for_bytes(Design.fit(asked, domain, [cell.clients], seed=first)).plan()
    plan = replace(drawn, seed=even_seed(drawn, domain))
    assert plan.privacy is not None
    start = time.process_time()
    even_seed(drawn, domain)
    seconds = time.process_time() - start
    errors = np.empty((task.campaigns, 2))
    for campaign in range(task.campaigns):
        counts = rng.permutation(rng.multinomial(cell.clients, law))
        noise = rng.normal(0.0, plan.privacy.stddev, (plan.rows, plan.width))
        for place, seed in enumerate((first, plan.seed)):
            sketch = CountSketch(replace(plan.spec, seed=seed), 0)
            sketch.add(domain.ids(0, cell.items), counts)
            sketch.counters += np.rint(noise).astype(np.int64)
            sketch.num_clients = cell.clients
            found = JointDecoder([sketch], domain).range(1, cell.items)
            errors[campaign, place] = np.abs(found - counts).max() / cell.clients / cell.tau
    row: study.Row = {"population": cell.name, "candidates": cell.items, "tau": cell.tau}
    row |= {"rows": plan.rows, "width": plan.width, "repeat": task.repeat, "seconds": seconds}
    for place, which in enumerate(("first", "chosen")):
        mine = errors[:, place]
        row |= {f"{which} mean": float(mine.mean()), f"{which} above": float((mine > 1).mean())}
    return [row | {"seed": task.seed, "plan": study.describe(plan.spec, cell.clients)}]


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return a line for every plan."""
    table = []
    for key in dict.fromkeys((row["population"], row["candidates"]) for row in rows):
        mine = [row for row in rows if (row["population"], row["candidates"]) == key]
        line: study.Row = {"population": key[0], "candidates": key[1], "tau": mine[0]["tau"]}
        line["sketch"] = f"{mine[0]['rows']} x {mine[0]['width']}"
        for what in ("above", "mean"):
            for which in ("first", "chosen"):
                name = "above tau" if what == "above" else "error / tau"
                line[f"{name}, {which}"] = float(np.mean([row[f"{which} {what}"] for row in mine]))
        line["worst draw above, first"] = max(row["first above"] for row in mine)
        line["worst draw above, chosen"] = max(row["chosen above"] for row in mine)
        line["CPU ms of the choice"] = 1000 * float(np.mean([row["seconds"] for row in mine]))
        line["draws"] = len(mine)
        table.append(line)
    return {"largest errors under the first draw of a seed, and under the most even of 8": table}


@click.command("seeds")
@options.study(campaigns=2, repeats=1)
@click.option("--campaigns", type=click.IntRange(1), default=10, help="Of each draw.")
@options.repeats(24, help="First draws of each plan.")
@options.seed
def command(folder: Path, jobs: int, plot: bool, campaigns: int, repeats: int, seed: int) -> None:
    """Compare the first draw of a small plan's seed with the most even of eight."""
    tasks = [Task(cell, campaigns, seed, repeat) for cell in CELLS for repeat in range(repeats)]
    about = f"{campaigns} campaigns of each of {repeats} first draws."
    asked = study.Study("seeds", tasks, measure, summarise, None, about)
    study.run(asked, folder, jobs, plot)
