"""The matrix of crashes of two servers, by real processes, through nginx with TLS.

In each case one server is killed before or after one of its writes, and another process goes on.
Each client sends twice at once, and again, until it hears that its report was accepted. Each
acknowledged report must be in the sum once, one query must be in both journals, and the sum must be
the plain one.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.two_server_pair import SIDES, Pair
from fedtally.answer.result import Result
from fedtally.secagg.two_server import Report, Side
from fedtally.secagg.two_server.facts import end_of_query

CLIENTS = 4
SECONDS = 150  # for a case, also on a busy machine


@dataclass
class Case:
    """A release in which one server ends at one moment.

    Args:
        place: a folder of its own.
        side: the server that is killed.
        stop: the number of the moment; 0: none.

    Attributes:
        has_died: whether the server was killed.
    """

    place: Path
    side: Side = "leader"
    stop: int = 0

    def __post_init__(self) -> None:
        self.pair = Pair(self.place, CLIENTS, rows=3, width=16, close_at=CLIENTS)
        self.reports: dict[int, Report] = {}
        self.accepted: set[int] = set()
        self.has_died = False

    def moments(self, side: Side) -> int:
        """Return the number of moments of the first process of a server."""
        return len((self.place / f"{side}.moments").read_text().splitlines())

    def run(self) -> None:
        """Run the release to its end, and check what nothing may break."""
        with self.pair.proxies():
            for side in SIDES:
                stop = str(self.stop if side == self.side else 0)
                log = str(self.place / f"{side}.moments")
                self.pair.start(side, ("-m", "benchmarks.dying", stop, log, "KILL"))
            asyncio.run(self._all())
            # How many writes there are depends on the sizes of groups: there may be fewer this
            # time. The last one may end a server that has nothing more to do.
            is_reached = self.moments(self.side) >= self.stop > 0
            time.sleep(0.2)  # for a process that was just killed
            self.has_died = self.pair.starts > len(SIDES) or not all(self.pair.alive.values())
        if is_reached and not self.has_died:
            raise click.ClickException("nothing died")
        self._check()

    async def _all(self) -> None:
        async with asyncio.timeout(SECONDS):
            watching = asyncio.create_task(self._watch())
            await asyncio.gather(*map(self._report, range(CLIENTS)))
            while not self._is_over():
                await asyncio.sleep(0.05)
            await asyncio.gather(*map(self._report, range(CLIENTS)))  # copies
            watching.cancel()

    def _is_over(self) -> bool:
        """Tell whether the leader saved the answer, and the helper knows."""
        return self.pair.result.exists() and self.pair.folders["helper"].landed() == {0}

    async def _watch(self) -> None:
        """Start a server again where it has ended, as systemd does."""
        while True:
            await asyncio.sleep(0.05)
            for side, is_alive in self.pair.alive.items():
                if not is_alive:
                    self.pair.start(side)

    async def _report(self, number: int) -> None:
        if number not in self.reports:
            self.reports[number] = self.pair.report(number)
        for side in SIDES:
            frame = getattr(self.reports[number], side)
            async with self.pair.http(side) as http:
                while True:
                    both = self.pair.put(http, frame), self.pair.put(http, frame)
                    said = set(await asyncio.gather(*both))
                    if not said <= {0, 201, 500, 502, 503, 504}:
                        raise click.ClickException(f"the {side} says {said}")
                    if 201 in said:
                        break
                    await asyncio.sleep(0.1)
        self.accepted.add(number)

    def _check(self) -> None:
        [sketch] = Result.load(self.pair.result).sketches
        if sketch.num_clients != len(self.accepted):
            raise click.ClickException("an acknowledged report is not in the sum, or is twice")
        if not (sketch.vector == self.pair.plain(sorted(self.accepted))).all():
            raise click.ClickException("the sum is not the plain one")
        queries = {side: _query_of(self.pair.folders[side].path / "reports.db") for side in SIDES}
        if queries["leader"] != queries["helper"]:
            raise click.ClickException("the two servers know different queries")
        for side in SIDES:
            if _frames_in(self.pair.folders[side].path / "reports.db"):
                raise click.ClickException(f"the {side} did not erase its reports")


def _query_of(file: Path) -> bytes:
    """Return the query in a journal, of which there is one batch."""
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("SELECT name, value FROM fedtally_facts").fetchall()
    [batch] = [bytes(value) for name, value in rows if bytes(name).startswith(b"batch")]
    return batch[: end_of_query(batch)]


def _frames_in(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        [(number,)] = connection.execute("SELECT count(*) FROM fedtally_reports").fetchall()
    return int(number)


def _ran(side: Side, stop: int) -> tuple[dict[Side, int], bool]:
    """Run a case; return the moments of the first process of each server, and whether one died."""
    with tempfile.TemporaryDirectory() as place:
        case = Case(Path(place), side, stop)
        try:
            case.run()
        except BaseException:
            for one in SIDES:
                with suppress(OSError):
                    click.echo(f"{one}: {case.pair.said(one)[-2000:]}", err=True)
            raise
        return {one: case.moments(one) for one in SIDES}, case.has_died


def run(quick: bool) -> None:
    """Run the matrix; raise at the first case that breaks something."""
    calm, _ = _ran("leader", 0)
    for side in SIDES:
        every = range(1, calm[side] + 1)
        cases = every[:: max(1, len(every) // 3)] if quick else every
        deaths = sum(_ran(side, stop)[1] for stop in cases)
        click.echo(f"{side}: {len(every)} moments; after {deaths} deaths nothing is lost or twice")
