"""A whole campaign in one process: 1 M clients and 740,000 candidates, from items to the top 20.

Each run is a process of its own, so that its peak memory is the campaign's. Its clock starts when
the clients' items lie in memory and fedtally is imported; the peak includes the interpreter, the
libraries and these items.
"""

from __future__ import annotations

import json
import subprocess
import sys
from statistics import median
from typing import Any

import click

from benchmarks.measure import Goal, Report, machine

CHILD = """
import json, resource, sys, time
import numpy as np
import fedtally
clients, size, text, options = json.loads(sys.argv[1])
law = np.arange(1, size + 1) ** -1.1
items = np.searchsorted(
    np.cumsum(law / law.sum())[:-1], np.random.default_rng(1).random(clients), side="right"
) + 1
if text:
    import pyarrow as pa
    items = pa.array(items).cast(pa.string())
estimate, domain = fedtally.estimate, "input" if text else fedtally.IntegerRange(1, size)
start, cpu = time.perf_counter(), time.process_time()
shape = {"rows": 16, "width": 4096, "num_rounds": 10, "schedule": "hybrid", "seed": 1}
result = estimate(items, domain=domain, **shape, **options)
top = result.top(20)
seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
unit = 1 if sys.platform == "darwin" else 1024
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
first = str(top[0].item)
found = {"seconds": seconds, "cpu": cpu, "peak": peak, "first": first}
print(json.dumps(found | {"stages": result.timings}))
"""


def run(clients: int, size: int, text: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Run one campaign in a fresh process; return its seconds, CPU seconds and peak bytes."""
    arguments = [sys.executable, "-c", CHILD, json.dumps([clients, size, text, options])]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"the campaign failed:\n{done.stderr}")
    measured: dict[str, Any] = json.loads(done.stdout)
    if measured["first"] != "1":
        raise click.ClickException(
            f"the most frequent item is 1, but the campaign says {measured['first']}"
        )
    return measured


def measure(clients: int, size: int, turns: int) -> Report:
    """Run campaigns on integers over a declared range, and on text that makes its own candidates.

    With joint recovery and intervals, the default; and with the paper's decoder alone. The
    campaigns take turns, and a ratio is the median of those of all turns.
    """
    report = Report(machine())
    inputs = {"integers, range": False, "text, candidates from the input": True}
    ways: dict[str, dict[str, Any]] = {
        "": {},
        ", the paper's decoder": {"recovery": "median", "confidence": 0},
    }
    runs: dict[str, list[dict[str, Any]]] = {}
    for _ in range(turns):
        for items, text in inputs.items():
            for way, options in ways.items():
                runs.setdefault(items + way, []).append(run(clients, size, text, options))
    for name, own in runs.items():
        best = min(own, key=lambda one: one["seconds"])
        peak = max(one["peak"] for one in own) / 1e9
        report.goals += [
            Goal(f"campaign, {name}: wall time", best["seconds"], 3, " s", at_most=True),
            Goal(f"campaign, {name}: peak memory", peak, 1, " GB", at_most=True),
        ]
        report.notes.append(
            f"{name}: {best['cpu']:.2f} s of CPU; stages in seconds: {json.dumps(best['stages'])}"
        )
    joint, paper = ways
    for name in inputs:
        for unit in ("seconds", "cpu"):
            pairs = zip(runs[name + joint], runs[name + paper], strict=True)
            ratio = median(one[unit] / other[unit] for one, other in pairs)
            what = f"campaign, {name}: {unit} over those of the paper's decoder"
            report.goals.append(Goal(what, ratio, 5, "x", at_most=True))
    return report


@click.command("campaign")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="10,000 clients and 1,000 items, once.")
def command(as_json: bool, quick: bool) -> None:
    """Time a campaign of 1 M clients and take its peak memory."""
    (measure(10_000, 1_000, 1) if quick else measure(1_000_000, 740_000, 5)).emit(as_json)
