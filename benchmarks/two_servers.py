"""Two servers over HTTP: groups, the price beside their objects in memory, and memory.

A report has 5 x 800 counters and its proof. Servers are processes as operators run them, without
nginx: CPU is theirs, and every wait for the disk is real. The clients' reports are made before.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import httpx

from benchmarks.batches import PAGE
from benchmarks.measure import Goal, Report, cpu_of, machine
from benchmarks.two_server_pair import POLICY, SIDES, Pair, memory_of
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.key_files import load_helper_key, load_leader_key
from fedtally.campaign.server import FrequencyServer
from fedtally.result import Result
from fedtally.secagg import two_server
from fedtally.secagg.two_server import MemoryJournal, Side

GROUP = 64
SECONDS = 600


class Spent(NamedTuple):
    """What a release cost.

    Attributes:
        cpu: CPU seconds of each server, from its first report to its last.
        closing: CPU seconds of each server, from then until the helper knows that it landed.
        wall: seconds of sending to each server.
        memory: of each server: bytes before the first report, before the stop, and at the end.
    """

    cpu: dict[Side, float]
    closing: dict[Side, float]
    wall: dict[Side, float]
    memory: dict[Side, tuple[int, int, int]]


async def ready(pair: Pair, side: Side) -> None:
    """Wait until a server answers."""
    async with asyncio.timeout(SECONDS), pair.http(side) as http:
        while True:
            try:
                if (await http.get(pair.path)).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)  # it is starting


async def send(pair: Pair, side: Side, frames: Sequence[bytes], at_once: int) -> None:
    """Put frames, so many at once, and let none be refused."""
    left = iter(frames)
    async with pair.http(side) as http:

        async def one_after_the_other() -> None:
            for frame in left:
                while (status := await pair.put(http, frame)) != 201:
                    if status not in (0, 503):
                        raise click.ClickException(f"the {side} says {status}")
                    await asyncio.sleep(0.05)

        await asyncio.gather(*(one_after_the_other() for _ in range(at_once)))


async def release(pair: Pair, reports: Sequence[two_server.Report], at_once: int) -> Spent:
    """Run a release of these reports, which closes with the last one."""
    for side in SIDES:
        pair.start(side)
        await ready(pair, side)
    cpu, wall = dict[Side, float](), dict[Side, float]()
    memory = {side: [memory_of(pair.processes[side].pid)] for side in SIDES}
    for side in SIDES:
        before, begun = cpu_of(pair.processes[side].pid), time.perf_counter()
        await send(pair, side, [getattr(one, side) for one in reports], at_once)
        wall[side] = time.perf_counter() - begun
        cpu[side] = cpu_of(pair.processes[side].pid) - before
        memory[side].append(memory_of(pair.processes[side].pid))
    mid = {side: cpu_of(pair.processes[side].pid) for side in SIDES}
    async with asyncio.timeout(SECONDS):
        while not (pair.result.exists() and pair.folders["helper"].landed()):
            await asyncio.sleep(0.05)
    for side in SIDES:
        memory[side].append(memory_of(pair.processes[side].pid))
    closing = {side: cpu_of(pair.processes[side].pid) - mid[side] for side in SIDES}
    return Spent(cpu, closing, wall, {side: tuple(memory[side]) for side in SIDES})  # type: ignore[misc]


def over_http(number: int, at_once: int) -> Spent:
    """Return what a release costs over HTTP."""
    with tempfile.TemporaryDirectory() as place:
        pair = Pair(Path(place), number, close_at=number, has_proxy=False)
        reports = [pair.report(each) for each in range(number)]
        with pair.proxies():
            spent = asyncio.run(release(pair, reports, at_once))
        [sketch] = Result.load(pair.result).sketches
        if not (sketch.vector == pair.plain(range(number))).all():
            raise click.ClickException("the sum is not the plain one")
        return spent


def in_memory(number: int) -> dict[Side, float]:
    """Return the CPU seconds of the objects of both servers, in memory, for a whole release."""
    with tempfile.TemporaryDirectory() as place:
        pair = Pair(Path(place), number, has_proxy=False)
        reports = [pair.report(each) for each in range(number)]
        campaign, listed = FrequencyServer(pair.plan, MemoryBooks()), pair.folders["leader"]
        common = 0, POLICY, listed.allow_list
        keys = (
            load_helper_key(pair.place / "helper.key"),
            load_leader_key(pair.place / "leader.key"),
        )
        helper = campaign.helper(*common, MemoryJournal(), keys[0])
        leader = campaign.leader(*common, MemoryJournal(), keys[1])
    spent: dict[Side, float] = {"helper": 0.0, "leader": 0.0}

    def timed(side: Side, call: Any) -> Any:
        start = time.process_time()
        found = call()
        spent[side] += time.process_time() - start
        return found

    now = int(time.time())
    servers: dict[Side, Any] = {"helper": helper, "leader": leader}
    for side, server in servers.items():
        frames = [getattr(one, side) for one in reports]
        timed(side, lambda s=server, f=frames: [s.receive(one, now) for one in f])
    while ids := timed("leader", lambda: leader.to_check(PAGE)):
        for frame in timed("helper", lambda ids=ids: helper.checks(ids)):
            timed("leader", lambda frame=frame: leader.judge(frame))
    leader.stop()
    offer = timed("helper", helper.offer)
    query = timed("leader", lambda: leader.query(offer))
    answer = timed("helper", lambda: helper.answer(query))
    timed("leader", lambda: leader.finish(answer))
    return spent


def measure(report: Report, number: int, turns: int, few: int, many: int) -> None:
    """Measure all of it; the least of the turns counts."""
    alone = [over_http(number, 1) for _ in range(turns)]
    grouped = [over_http(number, GROUP) for _ in range(turns)]
    memory = [in_memory(number) for _ in range(turns)]
    for what, bound in (("cpu", 1 / 3), ("wall", 1 / 5)):
        pair = [min(getattr(one, what)["leader"] for one in some) for some in (grouped, alone)]
        name = f"leader's {what} of a report over HTTP: {GROUP} at once / one after the other"
        report.goals.append(Goal(name, pair[0] / pair[1], bound, "x", at_most=True))
    bounds: dict[Side, int] = {"leader": 5, "helper": 4}
    for side, bound in bounds.items():
        whole = min(one.cpu[side] + one.closing[side] for one in grouped)
        value = whole / min(one[side] for one in memory)
        name = f"CPU of the {side} over HTTP / of its object in memory"
        report.goals.append(Goal(name, value, bound, "x", at_most=True))
    for side in SIDES:
        said = min(one.cpu[side] for one in grouped) / number * 1e3
        shut = min(one.closing[side] for one in grouped) / number * 1e3
        report.notes.append(f"{side}: {said:.2f} ms of CPU a report, and {shut:.2f} at the closing")
    small, large = over_http(few, GROUP), over_http(many, GROUP)
    for side in SIDES:
        value = max(large.memory[side]) / max(small.memory[side])
        name = f"memory of the {side} at {many:,} reports / at {few:,}"
        report.goals.append(Goal(name, value, 1.3, "x", at_most=True))
    for place, when in ((1, "before the stop"), (2, "at the end")):
        grown = large.memory["leader"][place] - small.memory["leader"][place]
        name = f"leader's memory {when}, bytes a report from {few:,} to {many:,}"
        report.goals.append(Goal(name, grown / (many - few), 300, at_most=True))


def restart(report: Report, number: int) -> None:
    """Measure when a leader that holds so many reports takes one again."""
    with tempfile.TemporaryDirectory() as place:
        pair = Pair(Path(place), number + 1, has_proxy=False)
        with pair.proxies():
            asyncio.run(_restart(report, pair, number))


async def _restart(report: Report, pair: Pair, number: int) -> None:
    pair.start("leader")  # and no helper: nothing is judged
    await ready(pair, "leader")
    for start in range(0, number, 1000):
        some = [pair.report(one).leader for one in range(start, min(number, start + 1000))]
        await send(pair, "leader", some, GROUP)
    last = pair.report(number).leader
    pair.processes["leader"].kill()
    pair.processes["leader"].wait()
    pair.socket("leader").unlink(missing_ok=True)
    begun = time.perf_counter()
    pair.start("leader")
    while not pair.socket("leader").exists():
        await asyncio.sleep(0.01)
    await send(pair, "leader", [last], 1)
    took = time.perf_counter() - begun
    held = memory_of(pair.processes["leader"].pid) / 1e6
    report.notes.append(
        f"a leader that holds {number:,} reports, of which none is judged, takes another one"
        f" {took:.1f} s after its start; its memory then: {held:.0f} MB"
    )


@click.command("two-servers")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few reports: shows that it runs.")
@click.option("--crashes", is_flag=True, help="Kill servers at every write instead.")
@click.option("--restart", "restarts", is_flag=True, help="Restart a leader of 100,000 instead.")
def command(as_json: bool, quick: bool, crashes: bool, restarts: bool) -> None:
    """Measure two servers over HTTP, or look whether a crash loses a report."""
    if crashes:
        from benchmarks import two_server_crashes

        two_server_crashes.run(quick)
        return
    report = Report(machine())
    if restarts:
        restart(report, 20 if quick else 100_000)
    elif quick:
        measure(report, 8, 1, 6, 12)
    else:
        measure(report, 512, 3, 2_000, 20_000)
    report.emit(as_json)
