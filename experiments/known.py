"""Plans for known frequencies: those of belief propagation, beside those of joint recovery.

The target of a cell is what the plan of joint recovery promises for some bytes. For this target
each decoder gets the plan that `fedtally plan --like` makes with `--recovery` of its name. Rounds
are of random sizes, and every campaign has new hashes, noise and clients.

*Promises*: cells are drawn at random from all laws, schedules, candidates, clients, noise, items of
a client and bytes, so that nobody chose them. A cell misses if more campaigns of belief
propagation's plan exceed tau than the 99 % quantile of what a tenth leads to.

*Unlike* (`--unlike`): clients are of another law, or table, than the one that is planned for. The
campaigns of the plan of joint recovery are decoded by joint recovery, on which it rests, and as
`auto` decodes them; those of the plan of belief propagation as `auto` does. Nothing is demanded.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from scipy.stats import binom

from experiments import limit, options, output, planner, rounds, study
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.predictor import Predictor
from fedtally.plan.proposal import propose
from fedtally.plan.request import Request
from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.sketch import CountSketch, SketchSpec

P, LEVEL = 0.1, 0.99
LAWS = ("1.1", "2", "0.6", "lognormal", "plateaus", "weibull", "broken")
GRID: dict[str, tuple[Any, ...]] = {
    "schedule": ("one round", "shared", "hybrid", "batched:2"),
    "size": (2_000, 10_000),
    "clients": (20_000, 200_000, 1_000_000),
    "noise": ("off", "off", "central", "distributed"),
    "items": (1, 1, 1, 5),
    "bytes": (600, 1_600, 5_000),
}
# planned for, and what comes; `/2` is the law of half the candidates
PAIRS = (
    ("1.1", "1.3"),
    ("1.1", "0.9"),
    ("1.1", "1.1/2"),
    ("1.1", "lognormal"),
    ("1.1", "plateaus"),
    ("1.1", "names"),
    ("1.1", "brightkite"),
    ("1.1", "gowalla"),
    ("1.1", "sentiment140"),
    ("lognormal", "1.1"),
    ("gowalla", "brightkite"),
    ("brightkite", "gowalla"),
)
UNLIKE = {"hybrid": (1_000_000, 1_500), "one round": (1_000_000, 5_000)}  # clients, bytes


class Cell(NamedTuple):
    """What is planned for, and what comes.

    Attributes:
        law: that is planned for: of `LAWS`, a table, or what `limit.population` takes.
        actual: that clients are drawn from.
        schedule: one round; or of ten rounds: shared, hybrid or batched:B.
        size: candidates.
        clients: of all rounds.
        noise: off; central or distributed, of epsilon 1.
        items: of a client: as many on average, and none twice.
        bytes: that the plan of joint recovery has, whose promise is the target.
        repeats: campaigns.
        seed: of the experiment.
        data: folder of the tables.
    """

    law: str
    actual: str
    schedule: str
    size: int
    clients: int
    noise: str
    items: int
    bytes: int
    repeats: int
    seed: int
    data: str


@cache
def law(name: str, size: int, data: str) -> rounds.F64:
    """Return a law: float64 [size], sums to 1; of a table its most frequent items.

    >>> [round(float(law(name, 2000, "")[0]), 4) for name in LAWS]
    [0.1693, 0.6081, 0.0199, 0.0001, 0.01, 0.0202, 0.0624]
    >>> law("1.1/2", 2000, "")[999:1001].round(6).tolist()
    [9e-05, 0.0]
    """
    weights = np.zeros(size)
    ranks = np.arange(1.0, size + 1)
    if name in planner.TABLES:
        held = planner.load_law(name, size, Path(data))[:size]
        weights[: len(held)] = held
    elif name.endswith("/2"):
        weights[: size // 2] = law(name[:-2], size // 2, data)
    elif name == "weibull":
        weights = np.exp(-np.sqrt(100 * ranks / size))
    elif name == "broken":  # a flat head of a hundred ranks, and a steep tail
        weights = np.where(ranks <= 100, ranks**-0.7, 100**0.9 * ranks**-1.6)
    else:
        weights = limit.population(name, size, np.random.default_rng(zlib.crc32(name.encode())))
    found: rounds.F64 = weights / weights.sum()
    return found


def drawn(number: int, repeats: int, seed: int) -> list[Cell]:
    """Return so many different cells: laws in turn, all else at random."""
    rng = np.random.default_rng(seed)
    cells: list[Cell] = []
    while len(cells) < number:
        name = LAWS[len(cells) % len(LAWS)]
        picked: Any = {what: values[rng.integers(len(values))] for what, values in GRID.items()}
        cell = Cell(name, name, **picked, repeats=repeats, seed=seed, data="")
        if cell.bytes <= cell.size and cell not in cells:  # else a histogram would be cheaper
            cells.append(cell)
    return cells


def unlike(schedules: Sequence[str], repeats: int, seed: int, data: str) -> list[Cell]:
    """Return a cell for each pair of laws and each schedule of `UNLIKE`."""
    return [
        Cell(name, actual, schedule, 10_000, clients, "off", 1, size, repeats, seed, data)
        for schedule, (clients, size) in UNLIKE.items()
        if schedule in schedules
        for name, actual in PAIRS
    ]


@cache
def plan_of(cell: Cell, recovery: str, tau: float | None) -> Plan:
    """Return the plan for a target, or for the cell's bytes, that rests on a decoder."""
    noise: dict[str, Any] = {} if cell.noise == "off" else {"epsilon": 1.0, "trust": cell.noise}
    spec = Request(
        num_rounds=1 if cell.schedule == "one round" else 10,
        schedule="shared" if cell.schedule == "one round" else cell.schedule,
        tau=tau,
        max_bytes=cell.bytes if tau is None else None,
        encoding="sketch",
        recovery=recovery,
        max_items=cell.items,
        **noise,
    ).resolve()
    known = Frequencies.from_frequencies(
        np.minimum(1.0, cell.items * law(cell.law, cell.size, cell.data)),
        cell.size,
        max_items=cell.items,
    )
    domain = IntegerRange(rounds.FIRST_ID, cell.size)
    return propose(spec, domain, cell.clients, known, seed=bytes(32)).plan


def errors(cell: Cell, plan: Plan, number: int) -> tuple[float, float, bool]:
    """Return the largest errors of joint recovery and of `auto`, and whether messages answered."""
    about = repr(cell._replace(data="")) + str(plan.spec)
    rng = np.random.default_rng([cell.seed, number, zlib.crc32(about.encode())])
    chance = rng.permutation(law(cell.actual, cell.size, cell.data))
    people = rng.multinomial(cell.clients, np.full(plan.num_rounds, 1 / plan.num_rounds))
    spec = SketchSpec(plan.rows, plan.width, plan.schedule, plan.num_rounds, rng.bytes(32))
    scale = Predictor.from_plan(plan, "joint").noise_of(plan.rows)
    truth, sketches = np.zeros(cell.size, np.int64), []
    for one, clients in enumerate(people.tolist()):
        held = (
            rng.multinomial(clients, chance)
            if cell.items == 1
            else rng.binomial(clients, np.minimum(1.0, cell.items * chance))
        )
        sketches.append(CountSketch(spec, one))
        sketches[-1].add_range(rounds.FIRST_ID, held)
        sketches[-1].num_clients = clients
        shape = sketches[-1].counters.shape
        sketches[-1].counters += np.rint(rng.normal(0.0, scale, shape)).astype(np.int64)
        truth += held
    decoder = BeliefDecoder(sketches, IntegerRange(rounds.FIRST_ID, cell.size))

    def largest(decoded: Callable[[int, int], rounds.F64]) -> float:
        return float(np.abs(decoded(rounds.FIRST_ID, cell.size) - truth).max()) / cell.clients

    return largest(decoder.joint.range), largest(decoder.range), not decoder.fallback


def measure(cell: Cell) -> list[study.Row]:
    """Make both plans and run campaigns; nothing, where no plan has the cell's bytes and noise."""
    planned = cell._replace(actual=cell.law)  # so that cells which plan alike share plans
    try:
        target = plan_of(planned, "joint", None).target
        assert target is not None
        plans = {name: plan_of(planned, name, target.linf) for name in ("joint", "belief")}
    except InvalidInputError:
        return []
    joint, belief = plans.values()
    is_same, is_unlike = joint.spec == belief.spec, cell.law != cell.actual
    row: study.Row = {
        "seed": cell.seed,
        "plan": study.describe(belief.spec, cell.clients),
        **{name: getattr(cell, name) for name in Cell._fields[:7]},
        "tau": target.linf,
        "joint plan": f"{joint.rows}x{joint.width}",
        "belief plan": f"{belief.rows}x{belief.width}",
        "times fewer": joint.rows * joint.width / (belief.rows * belief.width),
        "campaigns": 0 if is_same and not is_unlike else cell.repeats,
    }
    for name, plan in plans.items():
        if not row["campaigns"] or (name == "joint" and not is_unlike):
            continue
        found = [errors(cell, plan, number) for number in range(cell.repeats)]
        by_joint, by_auto, answered = np.array(found).T
        row |= {f"{name} messages": int(answered.sum())}
        for how, error in (("joint", by_joint), ("auto", by_auto)):
            ratios = error / target.linf
            row |= {f"{name} by {how}, above tau": int((ratios > 1 + 1e-9).sum())}
            row |= {f"{name} by {how}, median": float(np.median(ratios))}
            row |= {f"{name} by {how}, largest": float(ratios.max())}
    return [row]


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return a line for each cell, and for promises one for each law."""
    if any(row["law"] != row["actual"] for row in rows):
        return {"campaigns above tau, and the median of the largest error / tau": _unlike(rows)}
    shown = (*Cell._fields[2:7], "tau", "joint plan", "belief plan", "times fewer", "campaigns")
    cells, pooled = [], []
    for row in rows:
        line = {name: row[name] for name in ("law", *shown)}
        line |= {"messages answered": row.get("belief messages")}
        line |= {"above tau": row.get("belief by auto, above tau")}
        line |= {"largest / tau": row.get("belief by auto, largest")}
        line |= {"verdict": _verdict(row) if row["campaigns"] else "-"}
        cells.append(line)
    for name in [*dict.fromkeys(row["law"] for row in rows), "all"]:
        own = [row for row in rows if name in (row["law"], "all")]
        ran = [row for row in own if row["campaigns"]]
        fewer = [row["times fewer"] for row in ran] or [1.0]
        pooled.append(
            {
                "law": name,
                "cells": len(own),
                "plans that differ": len(ran),
                "times fewer, least": min(fewer),
                "median": float(np.median(fewer)),
                "most": max(fewer),
                "campaigns": sum(row["campaigns"] for row in ran),
                "above tau": sum(row["belief by auto, above tau"] for row in ran),
                "largest / tau": max((row["belief by auto, largest"] for row in ran), default=None),
                "misses": sum(_verdict(row) == "MISS" for row in ran),
            }
        )
    return {"cells": cells, "all cells of a law": pooled}


def _unlike(rows: list[study.Row]) -> list[study.Row]:
    table = []
    for row in rows:
        line = {name: row[name] for name in ("schedule", "law", "actual")}
        line |= {name: row[name] for name in ("joint plan", "belief plan", "times fewer")}
        line |= {"of": row["campaigns"]}
        for which in ("joint by joint", "joint by auto", "belief by auto"):
            line |= {which: row[f"{which}, above tau"], f"{which}, median": row[f"{which}, median"]}
        table.append(line)
    return table


def _verdict(row: study.Row) -> str:
    allowed = int(binom.ppf(LEVEL, row["campaigns"], P))
    return "MISS" if row["belief by auto, above tau"] > allowed else "PASS"


@click.command("known")
@options.study(number=2, repeats=2)
@click.option(
    "--cells",
    "number",
    type=click.IntRange(1, 1000),
    default=70,
    help="Of promises, drawn at random.",
)
@click.option("--unlike", "is_unlike", is_flag=True, help="Clients unlike those planned for.")
@options.schedules(tuple(UNLIKE), "Of --unlike.", click.Choice(list(UNLIKE)))
@options.repeats(20)
@options.seed
@options.data(f"Folder of the real tables, which --unlike needs: {', '.join(planner.TABLES)}.")
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    number: int,
    is_unlike: bool,
    schedules: tuple[str, ...],
    repeats: int,
    seed: int,
    data: Path | None,
) -> None:
    """Plans of belief propagation for known frequencies: their promises, and what they risk."""
    if is_unlike:
        cells = unlike(schedules, repeats, seed, str(output.data_folder(data)))
        for cell in cells:  # a table that is missing is said to be before the work starts
            law(cell.actual, cell.size, cell.data)
    else:
        cells = drawn(number, repeats, seed)
    asked = study.Study("known", cells, measure, summarise, about=__doc__ or "")
    rows = study.run(asked, folder, jobs, plot)
    if not is_unlike and any(row["campaigns"] and _verdict(row) == "MISS" for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    command()
