"""Does an open domain keep tau on tables that are flatter than the law it is planned for?

Nobody has the list of strings, so a plan takes their frequencies to fall like i^-1.1. Words and
names are flatter. Their `flatness` is about 2: the energy below tau, the sum of squared
frequencies, over that of i^-1.1. The finder is wider than its law asks (`FINDER_SPARE` of
`fedtally.plan.open_guesses`), which is meant for a flatness of `FLATTEST` at most. Flatter tables
are shown, and not judged.

Each campaign has a plan of the package, hashes of its own, clients who are drawn from a table, and
the noise of the plan. The spelling takes part in the plan and in its noise, and is not read. The
error is the largest of all strings that somebody holds, and of all hashes that stand out. Strings
of one hash count together.

No table is a file of the repository. `code` and `names` are the words and the identifiers of
Python's own standard library: of another version they are others. `zipf` falls like i^-0.8 over
10,000 strings, and `lognormal` has 20,000 strings. `files` counts each word of `code` once in each
file: it is the flattest, and not run by default.
"""

from __future__ import annotations

import collections
import functools
import re
import sys
import sysconfig
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from experiments import options, study
from fedtally.domain import IntegerRange, OpenStrings
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan, readable_names
from fedtally.plan.open_guesses import FINDER_SPARE, Wanted
from fedtally.plan.proposal import propose
from fedtally.plan.request import Request
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.sketch import CountSketch, SketchSpec

F64 = npt.NDArray[np.float64]
ALLOWED = 0.1  # of the campaigns may be above tau: the failure probability of the plans
FLATTEST = 2.2  # of the tables that are judged
MAX_LENGTH = 64


class Case(NamedTuple):
    """One campaign.

    Attributes:
        table: of `TABLES`.
        clients: of all rounds.
        tau: the error that is asked for.
        epsilon: of the privacy; None: none.
        spare: times the finder's width that the assumed law asks.
        bits: of a hash.
        seed: of the experiment.
        repeat: of the cell.
    """

    table: str
    clients: int
    tau: float
    epsilon: float | None
    spare: float = FINDER_SPARE
    bits: int = 26
    seed: int = 0
    repeat: int = 0

    @property
    def name(self) -> str:
        """The name of the cell."""
        noise = "none" if self.epsilon is None else f"{self.epsilon:g}"
        return f"{self.table}, {self.clients:,} clients, epsilon {noise}"


# ---- tables ----


@functools.cache
def _sources() -> list[str]:
    """Return the texts of Python's own standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    files = sorted(p for p in folder.rglob("*.py") if "site-packages" not in p.parts)
    return [path.read_text(errors="ignore") for path in files]


def _counted(pattern: str, *, once: bool = False) -> F64:
    """Return how often each match occurs in the sources, or in how many files."""
    counts: collections.Counter[str] = collections.Counter()
    for text in _sources():
        found = re.findall(pattern, text)
        counts.update(set(found) if once else found)
    return np.array(sorted(counts.values(), reverse=True), np.float64)


TABLES: dict[str, Callable[[], F64]] = {
    "code": lambda: _counted("[A-Za-z]+"),
    "names": lambda: _counted("[A-Za-z_][A-Za-z_0-9]{3,}"),
    "zipf": lambda: np.arange(1.0, 10_001.0) ** -0.8,
    "lognormal": lambda: np.exp(2.0 * np.random.default_rng(1).standard_normal(20_000)),
    "files": lambda: _counted("[A-Za-z]+", once=True),
}
_USUAL = ("code", "names", "zipf", "lognormal")


@functools.cache
def law_of(table: str) -> F64:
    """Return the shares of a table: float64 [strings], whose sum is 1."""
    weights = TABLES[table]()
    law: F64 = weights / weights.sum()
    return law


def flatness(law: F64, tau: float, domain: OpenStrings) -> float:
    """Return the energy below tau, over that of the law that plans assume.

    >>> steep = np.arange(1.0, 1e6) ** -1.1
    >>> round(flatness(steep / steep.sum(), 0.001, OpenStrings()), 2)
    1.0
    """
    assumed = readable_names.assumed(domain)
    rare = assumed.frequencies < tau
    energy = float(assumed.numbers[rare] @ assumed.frequencies[rare] ** 2)
    return float((law[law < tau] ** 2).sum()) / energy


# ---- campaigns ----


@functools.cache
def plan_of(case: Case) -> Plan:
    """Return the plan of a cell, as `fedtally plan` makes it where nothing is known."""
    domain = OpenStrings(MAX_LENGTH, case.bits)
    spec = Request(domain=domain, tau=case.tau, epsilon=case.epsilon, delta=None).resolve()
    wanted = Wanted(spare=case.spare)
    return propose(spec, domain, case.clients, seed=bytes(32), wanted=wanted).plan


def measure(case: Case) -> list[study.Row]:
    """Run one campaign."""
    plan, law = plan_of(case._replace(repeat=0, seed=0)), law_of(case.table)
    rng = np.random.default_rng([zlib.crc32(case.name.encode()), case.seed, case.repeat])
    spec = SketchSpec(plan.rows, plan.width, plan.schedule, plan.num_rounds, rng.bytes(32))
    drawn = rng.integers(0, 1 << case.bits, len(law))
    hashes, of_string = np.unique(drawn, return_inverse=True)
    sketches, truth = [], np.zeros(len(hashes))
    for round, clients in enumerate(_sizes(case.clients, plan.num_rounds)):
        held = np.bincount(of_string, rng.multinomial(clients, law), len(hashes))
        sketch = CountSketch(spec, round)
        sketch.add(hashes[held > 0].astype(np.uint64), held[held > 0].astype(np.int64))
        if plan.privacy is not None:
            noise = rng.normal(0.0, plan.privacy.stddev, len(sketch.vector))
            sketch.vector += np.rint(noise).astype(np.int64)
        sketch.num_clients = clients
        sketches.append(sketch)
        truth += held
    start = time.process_time()
    error = _largest_error(sketches, case.bits, hashes.astype(np.uint64), truth)
    seconds = time.process_time() - start
    return [
        {
            "case": case.name,
            "table": case.table,
            "flatness": flatness(law, case.tau, OpenStrings(MAX_LENGTH, case.bits)),
            "repeat": case.repeat,
            "spare": case.spare,
            "rounds": plan.num_rounds,
            "finder": f"{plan.rows} x {plan.width}",
            "bytes": plan.bytes_per_client,
            "tau": case.tau,
            "error": error / case.clients / case.tau,
            "seconds": seconds,
            "seed": case.seed,
            "plan": study.describe(spec, case.clients),
        }
    ]


def _sizes(clients: int, rounds: int) -> list[int]:
    return [len(part) for part in np.array_split(np.arange(clients), rounds)]


def _largest_error(
    sketches: Sequence[CountSketch], bits: int, hashes: npt.NDArray[np.uint64], truth: F64
) -> float:
    """Return the largest error of hashes that somebody holds, or that stand out, in clients."""
    decoder = JointDecoder(list(sketches), IntegerRange(0, (1 << bits) - 1))
    largest = float(np.abs(decoder.at(hashes) - truth).max())
    ids = decoder.fit.support.ids
    of_nobody = ids[~np.isin(ids, hashes)]
    return max(largest, float(np.abs(decoder.at(of_nobody)).max(initial=0.0)))


# ---- tables of the answer ----


_ALL = f"all up to a flatness of {FLATTEST:g}"


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return a line for every cell, and one for all whose tables are not too flat."""
    table = []
    cells = {
        name: [row for row in rows if row["case"] == name]
        for name in dict.fromkeys(row["case"] for row in rows)
    }
    cells[_ALL] = [row for row in rows if row["flatness"] <= FLATTEST]
    for name, mine in cells.items():
        errors = np.array([row["error"] for row in mine])
        above, one = int((errors > 1).sum()), name != _ALL
        if not mine:
            continue
        first = mine[0]
        table.append(
            {
                "campaigns": name,
                "flatness": first["flatness"] if one else None,
                "rounds": first["rounds"] if one else None,
                "finder": first["finder"] if one else None,
                "bytes": first["bytes"] if one else None,
                "seeds": len(mine),
                "above tau": above,
                "median error / tau": float(np.median(errors)),
                "largest error / tau": float(errors.max()),
                "CPU s": float(np.mean([row["seconds"] for row in mine])),
                "verdict": None if one else "PASS" if above <= ALLOWED * len(mine) else "MISS",
            }
        )
    return {"largest errors of open domains; at most 1 in 10 campaigns may be above tau": table}


@click.command("open-tau")
@options.study(tables=("zipf",), clients=20_000, tau=0.02, bits=14, repeats=1)
@click.option(
    "--table",
    "tables",
    type=click.Choice(list(TABLES)),
    multiple=True,
    default=_USUAL,
    help="May be repeated.",
)
@options.clients(200_000)
@click.option("--tau", type=click.FloatRange(1e-6, 0.5), default=0.001, help="Of the plans.")
@click.option(
    "--epsilon",
    "noises",
    multiple=True,
    default=("none", "1"),
    help="A number, or none; may be repeated.",
)
@click.option(
    "--spare",
    type=click.FloatRange(1.0),
    default=FINDER_SPARE,
    help="Times the finder's width that the assumed frequencies ask.",
)
@click.option("--bits", type=click.IntRange(8, 28), default=26, help="Of a hash.")
@options.repeats(10)
@options.seed
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    tables: tuple[str, ...],
    clients: int,
    tau: float,
    noises: tuple[str, ...],
    spare: float,
    bits: int,
    repeats: int,
    seed: int,
) -> None:
    """Count campaigns of open domains above tau; exit code 1 if more than 1 in 10 are."""
    cells = [
        Case(table, clients, tau, _epsilon(noise), spare, bits, seed)
        for table in tables
        for noise in noises
    ]
    # whole ones, so that a run that is stopped has some of each
    cases = [case._replace(repeat=repeat) for repeat in range(repeats) for case in cells]
    about = f"Hashes of {bits} bits, tau {tau:g}, {repeats} campaigns of each cell."
    asked = study.Study("open-tau", cases, measure, summarise, None, about)
    rows = study.run(asked, folder, jobs, plot)
    if any(line["verdict"] == "MISS" for lines in summarise(rows).values() for line in lines):
        sys.exit(1)


def _epsilon(text: str) -> float | None:
    try:
        return None if text == "none" else float(text)
    except ValueError:
        raise InvalidInputError(f"--epsilon must be a number or none, got {text!r}") from None
