"""Strings of which nobody has the list, on one core: all hashes looked at, and the names read.

The campaigns are those by which docs/open-domain.md is judged (`python -m experiments open
--acceptance`): words and URLs of 100,000 clients, and words of 1,000,000. Each saved answer is
decoded in a process of its own, which holds nothing else. Seconds are of CPU: on one thread that is
what the clock says on a machine with nothing else to do. Peak memory includes the interpreter and
the libraries.

`--beside CHECKOUT` runs three tables instead, from the start of a process to its answer: 3,000
words, 100,000 URLs, and 100,000 integers of a range of 10^8, in a sketch of 7 x 507. The code here
and the code of the checkout take turns, on the same table with the same seed, and must give the
same plan, names, frequencies and limits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from experiments import open_domain, open_populations

from benchmarks.measure import Goal, Rate, Report, environment, machine

CASES = ("words", "words, 8 rounds", "URLs", "words, 1,000,000 clients")
SECONDS, EACH = 20.0, 0.010  # for all hashes, and for each name

CHILD = """
import json, resource, sys, time
from fedtally.answer.result import Result
result = Result.load(sys.argv[1])
start = time.process_time()
found = len(result.decoder.fit.support.ids) and result.num_found
middle = time.process_time()
named = len(result.names)
end = time.process_time()
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
print(json.dumps({"hashes": middle - start, "names": end - middle, "peak": peak,
                  "found": found, "named": named}))
"""

# most CPU, in that of the code beside
TABLES = {"3,000 words": 1 / 4, "100,000 URLs": 1 / 2, "integers up to 10^8": 1.0}
TURNS = 2
ESTIMATE = """
import hashlib, json, sys, time
import fedtally
from fedtally.domain import IntegerRange, OpenStrings
size = int(sys.argv[2])
if size < 64:
    asked = {"domain": OpenStrings(bits=size)}
else:
    asked = {"domain": IntegerRange(1, size), "rows": 7, "width": 507, "num_rounds": 1}
answer = fedtally.estimate(sys.argv[1], seed=0, **asked)
rows = [[str(row.item), row.frequency, row.low, row.high] for row in answer.top(4096)]
plan = answer.plan
told = f"{plan.rows} x {plan.width} x {plan.num_rounds}: {rows}, {answer.intervals.predicted_linf}"
print(json.dumps({"seconds": time.process_time(), "code": fedtally.__file__,
                  "answer": hashlib.sha256(told.encode()).hexdigest()}))
"""


def words_of(number: int) -> list[str]:
    """Return words drawn by a power law from 225 words of two syllables: a small campaign."""
    syllables = ["".join(pair) for pair in product("bdfgh", "aei")]
    words = ["".join(pair) for pair in product(syllables, repeat=2)]
    law = np.arange(1, len(words) + 1) ** -1.1
    rng = np.random.default_rng([0, *b"words.txt"])
    return [words[place] for place in rng.choice(len(words), number, p=law / law.sum())]


def urls_of(number: int, size: int) -> list[str]:
    """Return URLs drawn from a population of so many."""
    urls = open_populations.urls(size)
    drawn = np.random.default_rng(0).choice(len(urls.law), number, p=urls.law)
    return [str(url) for url in urls.items.take(drawn).to_pylist()]


def integers_of(number: int, largest: int) -> list[str]:
    """Return integers that are spread over a range, drawn by a power law from 10,000 of them."""
    rng = np.random.default_rng(0)
    law = np.arange(1, 10_001) ** -1.1
    known = rng.integers(1, largest, len(law), endpoint=True)
    return [str(one) for one in known[rng.choice(len(law), number, p=law / law.sum())]]


def estimated(table: Path, source: Path, size: int) -> dict[str, Any]:
    """Estimate a table in a process of its own, by the code of a source folder.

    Args:
        table: a file of one item a line.
        source: the folder.
        size: the bits of hashes of strings; or the largest integer, from 64 on.
    """
    child = [sys.executable, "-c", ESTIMATE, str(table), str(size)]
    path = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run(child, capture_output=True, text=True, check=False, env=path)
    if done.returncode:
        raise click.ClickException(f"the code in {source} gave no answer:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    # An installed package may come before the folder: then both turns would run the same code.
    if not Path(found["code"]).is_relative_to(source):
        raise click.ClickException(f"{found['code']} ran, and not the code in {source}")
    return found


def compare(report: Report, quick: bool, table: Path, other: Path) -> None:
    """Estimate each table by the code here and by that of another folder, in turn."""
    sources = {"here": Path(__file__).parents[1] / "src", "beside": other}
    bits, largest, turns = (12, 10**4, 1) if quick else (26, 10**8, TURNS)
    drawn = (
        (words_of(300), urls_of(300, 200), integers_of(300, largest))
        if quick
        else (words_of(3000), urls_of(100_000, 1_000_000), integers_of(100_000, largest))
    )
    sizes = (bits, bits, largest)
    for (name, most), lines, size in zip(TABLES.items(), drawn, sizes, strict=True):
        table.write_text("".join(f"{line}\n" for line in lines))
        found = [
            [estimated(table, source, size) for source in sources.values()] for _ in range(turns)
        ]
        seconds = [[run["seconds"] for run in runs] for runs in zip(*found, strict=True)]
        for side, own in zip(sources, seconds, strict=True):
            report.rates.append(Rate(name, side, min(own), float(np.median(own)), "s"))
        ratio = min(seconds[0]) / min(seconds[1])
        report.goals.append(Goal(f"{name}: CPU, by that beside", ratio, most, at_most=True))
        answers = {run["answer"] for turn in found for run in turn}
        report.goals.append(Goal(f"{name}: different answers", len(answers), 1, at_most=True))


def measure(report: Report, case: open_domain.Case, folder: Path) -> None:
    """Land a campaign, and decode it in a process of its own."""
    rng = case.rng()
    plan = open_domain.plan_of(case, rng.bytes(32))
    path = folder / "answer.fedtally"
    open_domain.land(case, plan, open_domain.draw(case, rng), rng).save(path)
    child = [sys.executable, "-c", CHILD, str(path)]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"the answer could not be decoded:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    hashes, names = found["hashes"], found["names"]
    report.rates.append(Rate(f"{case.name}: hashes", "", hashes, hashes, "s"))
    report.rates.append(Rate(f"{case.name}: names", "", names, names, "s"))
    most = SECONDS + EACH * found["named"]
    report.goals.append(Goal(f"{case.name}: CPU time", hashes + names, most, " s", at_most=True))
    report.goals.append(
        Goal(f"{case.name}: peak memory", found["peak"] / 1e9, 1, " GB", at_most=True)
    )
    report.notes.append(
        f"{case.name}: {found['found']} hashes stand out of 2^{case.bits}, {found['named']} are"
        f" named, {1000 * names / max(1, found['found']):.1f} ms for each hash"
    )


@click.command("open-domain")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few clients and hashes: shows that it runs.")
@click.option(
    "--beside",
    metavar="CHECKOUT",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Estimate three tables beside the code of a checkout with compiled kernels.",
)
def command(as_json: bool, quick: bool, beside: Path | None) -> None:
    """Time the reading of strings of which nobody has the list."""
    report = Report(machine(), judges=not (quick and beside))
    with environment(FEDTALLY_NUM_THREADS="1"), tempfile.TemporaryDirectory() as folder:
        if beside is None:
            campaigns(report, quick, Path(folder))
        else:
            compare(report, quick, Path(folder) / "table.txt", beside.resolve() / "src")
    report.emit(as_json)


def campaigns(report: Report, quick: bool, folder: Path) -> None:
    """Land and decode each campaign."""
    size, bits = (200, 14) if quick else (1_000_000, 26)
    cases = {case.name: case for case in open_domain.promised(size, bits, "", 1, 0)}
    for name in CASES[1:2] if quick else CASES:
        case = cases[name]._replace(clients=1000, finder="5x30") if quick else cases[name]
        measure(report, case, folder)
