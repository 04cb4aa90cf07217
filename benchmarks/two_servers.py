"""Two servers over HTTP: groups, the price beside their objects in memory, and memory.

A report has 5 x 800 counters and its proof. Servers are processes as operators run them, without
nginx: CPU is theirs, and every wait for the disk is real. The clients' reports are made before.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click
import httpx

from benchmarks.batches import PAGE
from benchmarks.measure import Goal, Report, cpu_of, machine, peak_memory
from benchmarks.two_server_pair import POLICY, SIDES, Pair
from fedtally.answer.result import Result
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.key_files import load_helper_key, load_leader_key
from fedtally.campaign.server import FrequencyServer
from fedtally.campaign.transports.https.resource import FRAME_TYPE
from fedtally.secagg import two_server
from fedtally.secagg.two_server import MemoryJournal, Outcome, Side

GROUP = 64
SECONDS = 600
FILLED_AT_ONCE = 1000  # reports of random bytes in a transaction
NAME_BYTES = 72  # of a name in the journal, without its kind
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)\r\n", re.IGNORECASE)


class Spent(NamedTuple):
    """What a release cost.

    Attributes:
        cpu: CPU seconds of each server, from its first report to its last.
        closing: CPU seconds of each server, from then until the helper knows that it landed.
        wall: seconds of sending to each server.
        memory: the peak of each server until the last report had come, and at the end, in MB. What
            it has at a moment depends on whether it judges a page just then, or has just given back
            what that took: megabytes, and as many with a million reports as with a thousand.
    """

    cpu: dict[Side, float]
    closing: dict[Side, float]
    wall: dict[Side, float]
    memory: dict[Side, tuple[float, float]]


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
    """Put frames, so many at once, each on a connection of its own, and let none be refused.

    The requests are made before, and go to the socket as they are. A client of httpx takes more
    time on this machine than the server: it would be what is measured.
    """
    requests = [_request(pair, frame) for frame in frames]
    left = iter(requests)

    async def one_after_the_other() -> None:
        reader, writer = await asyncio.open_unix_connection(pair.socket(side))
        with closing(writer):
            for request in left:
                while (status := await _said(reader, writer, request)) != 201:
                    if status != 503:
                        raise click.ClickException(f"the {side} says {status}")
                    await asyncio.sleep(0.05)

    await asyncio.gather(*(one_after_the_other() for _ in range(min(at_once, len(frames)))))


def _request(pair: Pair, frame: bytes) -> bytes:
    """Return the bytes of a request that brings a frame."""
    head = f"PUT {pair.path}/reports HTTP/1.1\r\nhost: server\r\ncontent-type: {FRAME_TYPE}"
    return f"{head}\r\ncontent-length: {len(frame)}\r\n\r\n".encode() + frame


async def _said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> int:
    """Send a request; return the status of its answer, whose body is read, too."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    found = _LENGTH.search(head)
    await reader.readexactly(0 if found is None else int(found[1]))
    return int(head.split(b" ", 2)[1])


async def release(pair: Pair, reports: Sequence[two_server.Report], at_once: int) -> Spent:
    """Run a release of these reports, which closes with the last one."""
    for side in SIDES:
        pair.start(side)
        await ready(pair, side)
    cpu, wall = dict[Side, float](), dict[Side, float]()
    memory: dict[Side, list[float]] = {side: [] for side in SIDES}
    for side in SIDES:
        before, begun = cpu_of(pair.processes[side].pid), time.perf_counter()
        await send(pair, side, [getattr(one, side) for one in reports], at_once)
        wall[side] = time.perf_counter() - begun
        cpu[side] = cpu_of(pair.processes[side].pid) - before
        memory[side].append(peak_memory(pair.processes[side].pid))
    mid = {side: cpu_of(pair.processes[side].pid) for side in SIDES}
    async with asyncio.timeout(SECONDS):
        while not (pair.result.exists() and pair.folders["helper"].landed()):
            await asyncio.sleep(0.05)
    for side in SIDES:
        memory[side].append(peak_memory(pair.processes[side].pid))
    closing = {side: cpu_of(pair.processes[side].pid) - mid[side] for side in SIDES}
    return Spent(cpu, closing, wall, {side: tuple(memory[side]) for side in SIDES})  # type: ignore[misc]


def over_http(number: int, at_once: int, listed: int = 0) -> Spent:
    """Return what a release costs over HTTP; the list of the plan has so many clients, or more."""
    with tempfile.TemporaryDirectory() as place:
        pair = Pair(Path(place), max(number, listed), close_at=number, has_proxy=False)
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


def measure(report: Report, number: int, turns: int, few: int, some: int, many: int) -> None:
    """Measure all of it; the least of the turns counts."""
    alone = [over_http(number, 1) for _ in range(turns)]
    grouped = [over_http(number, GROUP) for _ in range(turns)]
    memory = [in_memory(number) for _ in range(turns)]
    for what, bound in (("cpu", 1 / 3), ("wall", 1 / 5)):
        pair = [min(getattr(one, what)["leader"] for one in turned) for turned in (grouped, alone)]
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
    # The list of clients is in memory, too, and is as long with few reports as with many.
    least, small, large = (over_http(one, GROUP, many) for one in (few, some, many))
    for side in SIDES:
        value = max(large.memory[side]) / max(least.memory[side])
        name = f"peak memory of the {side} at {many:,} reports / at {few:,}"
        report.goals.append(Goal(name, value, 1.3, "x", at_most=True))
    for place, when in enumerate(("before the stop", "at the end")):
        grown = large.memory["leader"][place] - small.memory["leader"][place]
        name = f"leader's peak memory {when}, bytes a report from {some:,} to {many:,}"
        report.goals.append(Goal(name, 1e6 * grown / (many - some), 300, at_most=True))


def restart(report: Report, number: int, judgeable: int, more: int) -> None:
    """Measure when a leader that holds so many reports takes one again, and judges.

    Args:
        report: gets what was found.
        number: the reports that the leader holds, and has not judged.
        judgeable: of these, those that the helper holds, too; the rest are random bytes, which cost
            the leader the same until somebody has a check of them, and their clients no time.
        more: the reports that clients send from the moment of the restart.
    """
    with tempfile.TemporaryDirectory() as place:
        pair = Pair(Path(place), number + more, has_proxy=False)
        _fill(pair, number, judgeable)
        late = [pair.report(one).leader for one in range(number, number + more)]
        with pair.proxies():
            first, waits = asyncio.run(_restarted(pair, late))
            held = peak_memory(pair.processes["leader"].pid)
        events = re.findall(r'"event": "(group|judged)"', pair.said("leader"))
    pages, whole = events[: events.index("group")].count("judged"), events.count("judged")
    name = f"pages that a leader with {number:,} reports judges before it takes one"
    report.goals.append(Goal(name, pages, 0, at_most=True))
    report.notes.append(f"from the start of the process to the first 201: {first:.2f} s")
    report.notes.append(
        f"{more:,} reports came while {whole:,} pages were judged: one waited for"
        f" {sorted(waits)[more // 2] * 1e3:.0f} ms (median), {max(waits) * 1e3:.0f} ms (longest)"
    )
    report.notes.append(f"peak memory of the leader: {held:.0f} MB")


def _fill(pair: Pair, number: int, judgeable: int) -> None:
    """Fill the leader's store, and the helper's with what can be judged."""
    reports, now = [pair.report(one) for one in range(judgeable)], int(time.time())
    for side in SIDES:
        claimed = pair.folders[side].claim(clock=lambda: now, random=secrets.token_bytes)
        said = claimed.batches[0].take([getattr(one, side) for one in reports], now)
        if set(said) != {Outcome.ACCEPTED}:
            raise click.ClickException(f"the {side} says {set(said)}")
    stored, size = claimed.store.reports(pair.plan.releases[0]), len(reports[0].leader)
    for start in range(judgeable, number, FILLED_AT_ONCE):
        with claimed.store.group():
            for one in range(start, min(number, start + FILLED_AT_ONCE)):
                # the leader asks for ids in their order: for these last
                id = b"\xff" * 8 + one.to_bytes(8, "big")
                names = [kind + secrets.token_bytes(NAME_BYTES) for kind in (b"id", b"report")]
                stored.put(id, secrets.token_bytes(size), names)


async def _restarted(pair: Pair, frames: Sequence[bytes]) -> tuple[float, list[float]]:
    """Start both servers, and send reports to the leader as soon as it has a socket.

    Return the seconds to the first one that is taken, and the seconds that each one takes.
    """
    pair.start("helper")
    await ready(pair, "helper")
    begun, waits = time.perf_counter(), list[float]()
    pair.start("leader", log="info")
    while not pair.socket("leader").exists():
        await asyncio.sleep(0.002)
    for frame in frames:
        sent = time.perf_counter()
        await send(pair, "leader", [frame], 1)
        waits.append(time.perf_counter() - sent)
        if len(waits) == 1:
            first = time.perf_counter() - begun
    return first, waits


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
    report = Report(machine(), judges=not quick)
    if restarts:
        restart(report, *((40, 20, 4) if quick else (100_000, 4_096, 256)))
    elif quick:
        measure(report, 8, 1, 6, 8, 12)
    else:
        measure(report, 512, 3, 2_000, 5_000, 20_000)
    report.emit(as_json)
