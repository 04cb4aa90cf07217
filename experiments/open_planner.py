"""Are the names read that a plan of an open domain promises, and are its bytes needed?

Plans are made for the frequencies of each population, for a tau or for bytes, for names as long as
9 of 10 of its strings above 2 tau (.002 where bytes are given), and for hashes of so many bits. A
campaign of a plan is simulated by counts, as in `experiments.open_domain`, and decoded as `fedtally
estimate` does. The strings of all campaigns of a plan are then put into one falling order. `named
from` is the least frequency such that 95 % of the strings from there on were named, and `ratio` is
that from which the plan takes them to be named, over it. A plan is honest if the ratio is at least
1, and its bytes are not wasted if it is at most 2.5.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from experiments import open_domain, open_populations, options, study
from fedtally.domain import OpenStrings
from fedtally.errors import InvalidInputError
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.open_guesses import Wanted
from fedtally.plan.proposal import propose
from fedtally.plan.readable_names import NAMED_SHARE, predict
from fedtally.plan.request import Request

F64 = npt.NDArray[np.float64]
BAND = (1.0, 2.5)
_LOOKED_AT = 0.25  # of the frequency that is predicted: rarer strings are left out
_WEIGHED = 100  # strings of all campaigns, at least, for a verdict
# population, clients, tau or bytes, and epsilon
CELLS: tuple[tuple[str, int, float, float | None], ...] = (
    ("words", 100_000, 0.001, None),
    ("words", 100_000, 0.001, 4.0),
    ("words", 1_000_000, 0.0005, 1.0),
    ("urls", 100_000, 0.001, None),
    ("urls", 100_000, 0.002, 4.0),
    ("urls", 1_000_000, 0.0005, 1.0),
    ("words", 100_000, 2_900, None),
    ("words", 100_000, 6_700, 1.0),
    ("urls", 100_000, 12_400, None),
    ("urls", 100_000, 140_000, 1.0),
)
_NAMES_ABOVE = 0.002  # of whose lengths names are planned for where bytes are given


class Planned(NamedTuple):
    """A campaign of a plan, and what is predicted of it.

    Attributes:
        case: the campaign, of the sizes that were planned.
        length: bytes of the names that are planned for.
        theta_name: the frequency from which they are read.
        theta_find: the frequency from which hashes stand out.
    """

    case: open_domain.Case
    length: int
    theta_name: float
    theta_find: float


def planned(
    cells: Sequence[tuple[str, int, float, float | None]],
    size: int,
    bits: int,
    data: str,
    repeats: int,
    seed: int,
) -> list[Planned]:
    """Return the campaigns of all cells."""
    found = []
    for population, clients, size_or_tau, epsilon in cells:
        is_tau = size_or_tau < 1
        strings = open_populations.load(population, size, Path(data) if data else None)
        domain = OpenStrings(open_domain.MAX_LENGTH, bits)
        law = Frequencies.from_frequencies(strings.law, domain.size)
        length = name_length(strings, 2 * size_or_tau if is_tau else _NAMES_ABOVE)
        asked = {"tau": size_or_tau} if is_tau else {"max_bytes": int(size_or_tau)}
        spec = Request(domain=domain, epsilon=epsilon, delta=None, **asked).resolve()
        wanted = Wanted(length)  # without spare width, since the law is known
        plan = propose(spec, domain, clients, law, seed=bytes(32), wanted=wanted).plan
        assert plan.target is not None
        tau = plan.target.linf
        names = predict(plan, law, 2 * tau, length)
        assert plan.spelling is not None
        noise = "none" if epsilon is None else f"{epsilon:g}"
        asked_for = f"tau {tau:g}" if is_tau else f"{size_or_tau:,.0f} bytes"
        case = open_domain.Case(
            f"{population}, {clients:,} clients, {asked_for}, epsilon {noise}",
            population,
            size,
            clients,
            tau,
            epsilon,
            plan.num_rounds,
            f"{plan.rows}x{plan.width}",
            f"{plan.spelling.rows}x{plan.spelling.width}",
            bits,
            data=data,
            seed=seed,
        )
        found += [
            Planned(case._replace(repeat=repeat), length, names.theta_name, names.theta_find)
            for repeat in range(repeats)
        ]
    return found


def name_length(strings: open_populations.Strings, threshold: float) -> int:
    """Return the bytes that 9 of 10 strings above a frequency do not exceed."""
    frequent = strings.items.take(np.flatnonzero(strings.law > threshold)).to_pylist()
    if not frequent:
        raise InvalidInputError(f"tau must be smaller: no string is above {threshold:g}")
    lengths = [len(item.encode()) for item in frequent]
    return int(np.quantile(lengths, 0.9, method="higher"))


def measure(task: Planned) -> list[study.Row]:
    """Run one campaign."""
    case = task.case
    rng = case.rng()
    plan = open_domain.plan_of(case, rng.bytes(32))
    drawn = open_domain.draw(case, rng)
    result = open_domain.land(case, plan, drawn, rng)
    truth = np.zeros(len(case.strings.law))
    for held, counts in drawn:
        truth[held] += counts
    truth /= case.clients
    start = time.process_time()
    given = set(result.names.values())
    seconds = time.process_time() - start
    looked_at = np.flatnonzero(truth > _LOOKED_AT * task.theta_name)
    items = case.strings.items.take(looked_at).to_pylist()
    named = [item in given for item in items]
    frequent = truth[looked_at] > 2 * case.tau
    return [
        {
            "case": case.name,
            "population": case.strings.title,
            "repeat": case.repeat,
            "rounds": case.rounds,
            "finder": case.finder,
            "spelling": case.spelling,
            "bytes": plan.bytes_per_client,
            "tau": case.tau,
            "length": task.length,
            "theta_name": task.theta_name,
            "theta_find": task.theta_find,
            "recall": float(np.mean(np.array(named)[frequent])) if frequent.any() else None,
            "seconds": seconds,
            "strings": json.dumps([truth[looked_at].tolist(), list(map(int, named))]),
            "seed": case.seed,
            "plan": study.describe(plan.spec, case.clients),
        }
    ]


def named_from(frequencies: F64, named: F64) -> float:
    """Return the least frequency such that 95 % of the strings from there on are named.

    It is infinite if there is none.

    >>> named_from(np.array([0.1, 0.3, 0.2]), np.array([0.0, 1.0, 1.0]))
    0.2
    """
    order = np.argsort(-frequencies, kind="stable")
    share = np.cumsum(named[order]) / np.arange(1, len(order) + 1)
    enough = np.flatnonzero(share >= NAMED_SHARE)
    return float(frequencies[order][enough[-1]]) if len(enough) else np.inf


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return a line for every plan."""
    table = []
    for name in dict.fromkeys(row["case"] for row in rows):
        mine = [row for row in rows if row["case"] == name]
        parts = [json.loads(row["strings"]) for row in mine]
        frequencies, named = (np.array([x for part in parts for x in part[i]]) for i in (0, 1))
        start = named_from(frequencies, named)
        first = mine[0]
        ratio = first["theta_name"] / start
        judged = len(frequencies) >= _WEIGHED
        recalls = [row["recall"] for row in mine if row["recall"] is not None]
        table.append(
            {
                "campaigns": name,
                "rounds": first["rounds"],
                "finder": first["finder"],
                "spelling": first["spelling"],
                "bytes": first["bytes"],
                "name bytes": first["length"],
                "tau": first["tau"],
                "predicted / tau": first["theta_name"] / first["tau"],
                "named from / tau": start / first["tau"],
                "ratio": ratio,
                "recall above 2 tau": float(np.mean(recalls)) if recalls else None,
                "seeds": len(mine),
                "verdict": ("PASS" if BAND[0] <= ratio <= BAND[1] else "MISS") if judged else "-",
            }
        )
    return {"frequencies from which names are read": table}


@click.command("open-planner")
@options.study(size=2000, cells=("words,20000,0.01,none",), bits=14, repeats=1)
@click.option(
    "--cell",
    "cells",
    multiple=True,
    default=tuple(
        f"{population},{clients},{size_or_tau:g},{'none' if epsilon is None else f'{epsilon:g}'}"
        for population, clients, size_or_tau, epsilon in CELLS
    ),
    help="Population, clients, tau or bytes, and epsilon; may be repeated.",
)
@click.option("--size", type=click.IntRange(100), default=1_000_000, help="Different strings.")
@click.option("--bits", type=click.IntRange(8, 28), default=26, help="Of a hash.")
@options.data()
@options.repeats(3)
@options.seed
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    cells: tuple[str, ...],
    size: int,
    bits: int,
    data: Path | None,
    repeats: int,
    seed: int,
) -> None:
    """Compare from where names are read with what plans say; exit code 1 if any is off."""
    where = "" if data is None else str(data)
    tasks = planned([_cell(text) for text in cells], size, bits, where, repeats, seed)
    about = f"{size:,} strings at most, hashes of {bits} bits, {repeats} campaigns of each plan."
    rows = study.run(
        study.Study("open-planner", tasks, measure, summarise, None, about), folder, jobs, plot
    )
    if any(line["verdict"] == "MISS" for lines in summarise(rows).values() for line in lines):
        sys.exit(1)


def _cell(text: str) -> tuple[str, int, float, float | None]:
    try:
        population, clients, size_or_tau, epsilon = text.split(",")
        noise = None if epsilon == "none" else float(epsilon)
        if population not in ("words", "urls"):
            raise ValueError(population)
        return population, int(clients), float(size_or_tau), noise
    except ValueError:
        raise InvalidInputError(
            f"--cell must be words or urls, clients, tau or bytes, and epsilon or none, such as"
            f" words,100000,0.001,none; got {text!r}"
        ) from None
