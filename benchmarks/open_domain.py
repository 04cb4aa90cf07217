"""Strings of which nobody has the list, on one core: all hashes looked at, and the names read.

The campaigns are those by which docs/open-domain.md is judged (`python -m experiments open
--acceptance`): words and URLs of 100,000 clients, and words of 1,000,000. Each saved answer is
decoded in a process of its own, which holds nothing else. Seconds are of CPU: on one thread that is
what the clock says on a machine with nothing else to do. Peak memory includes the interpreter and
the libraries.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from experiments import open_domain

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


@click.command("open")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few clients and hashes: shows that it runs.")
def command(as_json: bool, quick: bool) -> None:
    """Time the reading of strings of which nobody has the list."""
    report = Report(machine())
    size, bits = (200, 14) if quick else (1_000_000, 26)
    cases = {case.name: case for case in open_domain.promised(size, bits, "", 1, 0)}
    with environment(FEDTALLY_NUM_THREADS="1"), tempfile.TemporaryDirectory() as folder:
        for name in CASES[1:2] if quick else CASES:
            case = cases[name]._replace(clients=1000, finder="5x30") if quick else cases[name]
            measure(report, case, Path(folder))
    report.emit(as_json)
