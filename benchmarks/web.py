"""The client in TypeScript (clients/web): its size, and the CPU of a report beside Python's.

Sizes are of the minified bundles with their dependencies, gzipped: of what reads a plan and makes
a report, and of the whole library. The hashes are for the page that loads them.

CPU is of a whole report of 5 x 2,000 counters with its proof, from the item to both frames, in node
with all of its threads, and in Python with compiled kernels: the least of several turns of each.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.measure import Goal, Report, machine
from fedtally.campaign.client import FrequencyClient
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.two_server import BatchPolicy
from fedtally.sketch import Schedule

WEB = Path(__file__).resolve().parents[1] / "clients" / "web"
ROWS, WIDTH, EACH = 5, 2000, 20
SIZES = {"report": 13, "fedtally": 18}  # at most, kB
FACTOR = 20
DOMAIN = IntegerRange(1, 100_000)


def plan_of() -> Plan:
    """Return a published plan of reports of one size."""
    keys = [PrivateKey(Secret(bytes([i]) * 32)).public for i in (1, 2)]
    length = ROWS * WIDTH
    terms = TwoServerConfig(
        length=length, bits=16, n_max=20_000, min_batch=10, corrupt=0, validity="proofs"
    )
    sized = Plan(
        rows=ROWS, width=WIDTH, schedule=Schedule.parse("shared"), num_rounds=1, num_clients=20_000,
        max_round_clients=20_000, max_items=1, domain=DOMAIN.describe(), seed=bytes(32),
        secure_sum=terms,
    )  # fmt: skip
    return sized.with_keys(leader_key=keys[0], helper_key=keys[1], allow_list=bytes(32))


def node(*command: str, given: Any = None) -> list[Any]:
    """Run a program of the client in node; return the documents that it prints, a line each.

    Raises:
        click.ClickException: node is not there, or the client is not built.
    """
    try:
        ran = subprocess.run(
            ["node", "--no-warnings", *command],
            cwd=WEB,
            input=json.dumps(given),
            capture_output=True,
            text=True,
            check=True,
        )
    except OSError as error:
        raise click.ClickException(f"cannot run Node.js: {error}") from None
    except subprocess.CalledProcessError as error:
        line = next((each for each in error.stderr.splitlines() if "Error" in each), "no reason")
        raise click.ClickException(
            f"{command[0]} failed: {line}; in clients/web, run: npm ci --ignore-scripts && npm test"
        ) from None
    return [json.loads(line) for line in ran.stdout.splitlines()]


def python_report(plan: Plan, turns: int) -> float:
    """Return the least CPU of a report in Python, microseconds."""
    identity, policy = SigningKey(Secret(bytes(32))), BatchPolicy(min_honest=2)
    times = []
    for turn in range(turns):
        start = time.process_time()
        for i in range(EACH):
            client = FrequencyClient(plan, DOMAIN, [1 + turn * EACH + i])
            client.report(
                0,
                policy,
                journal=MemoryJournal(),
                identity=identity,
                random=secrets.token_bytes,
                now=1_800_000_000,
            )
        times.append((time.process_time() - start) / EACH * 1e6)
    return min(times)


@click.command("web")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Two turns: shows that it runs.")
def command(as_json: bool, quick: bool) -> None:
    """Measure the client in TypeScript: bytes, and CPU beside Python's."""
    report, turns = Report(machine()), 2 if quick else 20
    for bundle in node("bundle.mjs"):
        name, zipped = bundle["name"], bundle["gzip"] / 1000
        report.notes.append(f"{name}.js: {bundle['bytes']:,} bytes, {bundle['integrity']}")
        report.goals.append(Goal(f"{name}.js, gzipped", zipped, SIZES[name], " kB", at_most=True))
    plan = plan_of()
    given = {"plan": plan.canonical, "fingerprint": plan.fingerprint, "turns": turns}
    (script,) = node("build/test/bench.js", given=given)
    ours = python_report(plan, turns)
    report.notes.append(
        f"a report of {ROWS} x {WIDTH:,}, {script['bytes']:,} bytes: {script['microseconds']:,.0f}"
        f" us in node, {ours:,.0f} us in Python"
    )
    name = "CPU of a report in node / in Python"
    report.goals.append(Goal(name, script["microseconds"] / ours, FACTOR, " times", at_most=True))
    report.emit(as_json)
