"""Two servers on disk: groups of reports, the price of the disk, and memory, in one run.

A report has 5 x 800 counters and its proof. CPU is this process's, and the wall is the clock; both
include the claim and the mark, and every wait for the disk is real. Cases take turns, and the least
of them counts. Each peak belongs to a process of its own, which runs both servers and makes the
clients' reports as they are sent: it includes the interpreter and the libraries.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np

from benchmarks.measure import Goal, Report, machine
from benchmarks.proofs import source
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.two_server import Helper, Leader, MemoryJournal, Outcome
from fedtally.store import Batch, Batches

ROWS, WIDTH, GROUP, PAGE = 5, 800, 64, 1024
ALONE = "import sys; from benchmarks.batches import alone; alone(int(sys.argv[1]))"
Frames = list[two_server.Report]


class Campaign:
    """The clients of a batch, and what both servers are made with."""

    def __init__(self, clients: int) -> None:
        self.keys = [PrivateKey(Secret(source(side)(32))) for side in ("leader", "helper")]
        self.people = [SigningKey(Secret(source(f"identity {i}")(32))) for i in range(clients)]
        self.allowed = AllowList(sorted(person.public for person in self.people))
        self.policy = two_server.BatchPolicy(min_honest=2)
        self.proof = two_server.ReportProof(
            two_server.TwoServerParameters(
                bits=16,
                n_max=20_000,
                min_batch=2,
                corrupt=0,
                leader_key=self.keys[0].public,
                helper_key=self.keys[1].public,
                allow_list=self.allowed.digest,
                fingerprint=bytes(32),
                widths=(WIDTH,) * ROWS,
            ),
            abstain=True,
        )

    def groups(self) -> Iterator[Frames]:
        """Make the reports of all clients, a group at a time."""
        for start in range(0, len(self.people), GROUP):
            yield [self.report(i) for i in range(len(self.people))[start : start + GROUP]]

    def report(self, i: int) -> two_server.Report:
        """Return the report of a client."""
        vector = np.zeros((ROWS, WIDTH), np.int64)
        vector[range(ROWS), [i * (row + 7) % WIDTH for row in range(ROWS)]] = 1
        return two_server.make_proven_report(
            self.proof,
            vector.reshape(-1),
            round=0,
            now=0,
            identity=self.people[i],
            policy=self.policy,
            random=source(f"report {i}"),
        )

    def stored(self, side: int, folder: str) -> Batch[Any]:
        """Return a server on disk."""
        name: Any = ("leader", "helper")[side]
        file, plan = Batches.open(f"{folder}/{name}.db", create=True), SimpleNamespace()
        plan.fingerprint = "benchmark"
        store = file.claim(plan, name, mark=f"{folder}/{name}.mark")  # type: ignore[arg-type]
        return Batch(store, self._made(side, store, store.reports(range(1))))

    def in_memory(self, side: int) -> Any:
        """Return a server in memory."""
        return self._made(side, MemoryJournal(), None)

    def _made(self, side: int, journal: Any, reports: Any) -> Any:
        kind = (Leader, Helper)[side]
        common = self.proof, range(1), self.allowed, self.policy, journal, self.keys[side]
        return kind(*common, reports=reports)


class Clocks:
    """CPU and wall seconds, by what took them."""

    def __init__(self) -> None:
        self.cpu: dict[str, float] = {}
        self.wall: dict[str, float] = {}

    def time(self, name: str, run: Callable[[], Any]) -> Any:
        """Return what a call returns, and add its time to a name."""
        cpu, wall = time.process_time(), time.perf_counter()
        found = run()
        self.cpu[name] = self.cpu.get(name, 0) + time.process_time() - cpu
        self.wall[name] = self.wall.get(name, 0) + time.perf_counter() - wall
        return found


def take(batch: Batch[Any], frames: list[bytes]) -> None:
    """Let a server on disk take reports, and refuse none."""
    if set(batch.take(frames, 0)) != {Outcome.ACCEPTED}:
        raise click.ClickException("an honest report was not accepted")


def received(campaign: Campaign, groups: list[Frames], clocks: Clocks, size: int) -> None:
    """Time the leader's reports in groups of a size."""
    frames = [report.leader for group in groups for report in group]
    with tempfile.TemporaryDirectory() as folder:
        batch = campaign.stored(0, folder)
        for start in range(0, len(frames), size):
            some = frames[start : start + size]
            clocks.time(f"groups of {size}", lambda some=some: take(batch, some))  # type: ignore[misc]


def closed(leader: Any, helper: Any, clocks: Clocks, kind: str) -> Any:
    """Judge and open a batch; time both servers."""
    while ids := clocks.time(f"leader {kind}", lambda: leader.to_check(PAGE)):
        for frame in clocks.time(f"helper {kind}", lambda ids=ids: helper.checks(ids)):  # type: ignore[misc]
            clocks.time(f"leader {kind}", lambda frame=frame: leader.judge(frame))  # type: ignore[misc]
    leader.stop()
    offer = clocks.time(f"helper {kind}", helper.offer)
    query = clocks.time(f"leader {kind}", lambda: leader.query(offer))
    answer = clocks.time(f"helper {kind}", lambda: helper.answer(query))
    total = clocks.time(f"leader {kind}", lambda: leader.finish(answer))
    clocks.time(f"leader {kind}", leader.erase)
    return total


def on_disk(campaign: Campaign, groups: list[Frames], clocks: Clocks) -> Any:
    """Run a batch on disk, from the first report to the erased ones."""
    with tempfile.TemporaryDirectory() as folder:
        batches = [campaign.stored(side, folder) for side in (0, 1)]
        for group in groups:
            parts = [one.leader for one in group], [one.helper for one in group]
            clocks.time("helper on disk", lambda parts=parts: take(batches[1], parts[1]))  # type: ignore[misc]
            clocks.time("leader on disk", lambda parts=parts: take(batches[0], parts[0]))  # type: ignore[misc]
        with batches[0].server() as leader, batches[1].server() as helper:
            return closed(leader, helper, clocks, "on disk")


def in_memory(campaign: Campaign, groups: list[Frames], clocks: Clocks) -> Any:
    """Run the same batch in memory."""
    leader, helper = campaign.in_memory(0), campaign.in_memory(1)

    def receive(server: Any, side: str) -> None:
        for group in groups:
            for one in group:
                server.receive(getattr(one, side), 0)

    clocks.time("helper in memory", lambda: receive(helper, "helper"))
    clocks.time("leader in memory", lambda: receive(leader, "leader"))
    return closed(leader, helper, clocks, "in memory")


def alone(clients: int) -> None:
    """Run a batch of so many reports on disk in this process, and print what it took as JSON.

    `peak` is memory in bytes. `restart` is the seconds that a new leader takes up to its first
    report, and `page` the seconds that it takes to judge its first page. `leader` and `helper` are
    the bytes of their databases after the sum, when the reports are erased: a file keeps its
    largest size.
    """
    campaign, clocks = Campaign(clients), Clocks()
    with tempfile.TemporaryDirectory() as folder:
        batches = [campaign.stored(side, folder) for side in (0, 1)]
        for group in campaign.groups():
            take(batches[1], [one.helper for one in group])
            take(batches[0], [one.leader for one in group[1:]])
        start = time.perf_counter()
        batches[0] = campaign.stored(0, folder)
        take(batches[0], [group[0].leader])
        found = {"restart": time.perf_counter() - start}
        with batches[0].server() as leader, batches[1].server() as helper:
            (frame,) = helper.checks(leader.to_check(PAGE))
            start = time.perf_counter()
            leader.judge(frame)
            found["page"] = time.perf_counter() - start
            closed(leader, helper, clocks, "on disk")
        for side in ("leader", "helper"):
            found[side] = Path(folder, f"{side}.db").stat().st_size
    unit = 1 if sys.platform == "darwin" else 1024
    found["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    print(json.dumps(found))


def run_alone(clients: int) -> dict[str, float]:
    """Return what `alone` prints, in a process of its own."""
    root = Path(__file__).resolve().parents[1]
    command = [sys.executable, "-c", ALONE, str(clients)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    return dict(json.loads(done.stdout))


def least(turns: list[Clocks], clock: str, name: str) -> float:
    """Return the least time of a name over the turns."""
    return min(float(getattr(turn, clock)[name]) for turn in turns)


def measure(clients: int, turns: int, few: int, many: int) -> Report:
    """Measure all of it."""
    campaign, clocks = Campaign(clients), [Clocks() for _ in range(turns)]
    groups = list(campaign.groups())
    for turn in clocks:
        received(campaign, groups, turn, 1)
        received(campaign, groups, turn, GROUP)
        stored, held = on_disk(campaign, groups, turn), in_memory(campaign, groups, turn)
        if not np.array_equal(stored, held):
            raise click.ClickException("the sum on disk is not the one in memory")
    report = Report(machine() | {"reports": str(clients)})
    for clock, bound in (("cpu", 1 / 3), ("wall", 1 / 5)):
        value = least(clocks, clock, f"groups of {GROUP}") / least(clocks, clock, "groups of 1")
        name = f"{clock} of a report in a group of {GROUP} / alone"
        report.goals.append(Goal(name, value, bound, "x", at_most=True))
    for side, bound in (("leader", 5), ("helper", 4)):
        value = least(clocks, "cpu", f"{side} on disk") / least(clocks, "cpu", f"{side} in memory")
        report.goals.append(
            Goal(f"CPU of a {side} on disk / in memory", value, bound, "x", at_most=True)
        )
    small, large = run_alone(few), run_alone(many)
    for name, value, bound in (
        (f"peak at {many:,} reports / at {few:,}", large["peak"] / small["peak"], 1.3),
        (
            f"restart of a leader with {many:,} reports / judging {PAGE:,}",
            large["restart"] / large["page"],
            1,
        ),
    ):
        report.goals.append(Goal(name, value, bound, "x", at_most=True))
    report.notes.append(
        f"peaks: {small['peak'] / 1e6:.0f} and {large['peak'] / 1e6:.0f} MB; restart, up to its"
        f" first report: {large['restart']:.3f} s"
    )
    report.notes.append(
        f"bytes of disk for each of {many:,} reports:"
        f" {large['leader'] / many:,.0f} at the leader, {large['helper'] / many:,.0f} at the helper"
    )
    names = sorted({name for turn in clocks for name in turn.cpu})
    for clock in ("cpu", "wall"):
        said = ", ".join(
            f"{name} {least(clocks, clock, name) / clients * 1e6:.0f}" for name in names
        )
        report.notes.append(f"{clock}, us a report: {said}")
    return report


@click.command("batches")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few reports: shows that it runs.")
def command(as_json: bool, quick: bool) -> None:
    """Measure two servers on disk: groups, the price of the disk, memory."""
    (measure(5, 1, 3, 5) if quick else measure(256, 5, 2_000, 20_000)).emit(as_json)
