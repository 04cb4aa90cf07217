"""The process of one of two servers, leader or helper: it receives the reports of clients.

The leader also sends requests to the helper, and the helper answers them. A plan has one or more
releases; a release is the reports that are summed and opened together.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Executor
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.applications import Starlette

from fedtally.campaign.aggregate_folder import AggregateFolder, Claimed
from fedtally.campaign.closings import Closings
from fedtally.campaign.places import held_by
from fedtally.campaign.transports.https.channel import Asking, Channel
from fedtally.campaign.transports.https.closing import Tending
from fedtally.campaign.transports.https.collecting import Collecting, Intake, one_thread, over
from fedtally.campaign.transports.https.listen import Address, Listening, served
from fedtally.campaign.transports.https.operate import (
    Counts,
    json_log,
    lingering,
    probed,
    started,
)
from fedtally.campaign.transports.https.pinned import Certificates, PeerAddress
from fedtally.campaign.transports.https.process import all_served, run_loop
from fedtally.campaign.transports.https.standing import WRITE_SECONDS, Standing
from fedtally.errors import OvertakenError
from fedtally.store import Batch

# Reports are refused if fewer bytes of the disk are free. The process needs these bytes later, to
# close a release.
ROOM = 64 << 20


@dataclass(frozen=True)
class Places:
    """The addresses on which a process listens, and the level of its log.

    Args:
        listen: the address for clients.
        leader: at a helper, the address on which it listens for the leader; None at a leader.
        operate: the address for health probes and Prometheus; None: nothing listens for them.
        log: the least level of log lines on stderr: info or debug; off: only critical lines.
    """

    listen: Address
    leader: PeerAddress | None = None
    operate: Address | None = None
    log: str = "off"


@dataclass(frozen=True)
class Process:
    """The running process of one of two servers.

    Args:
        folder: the folder of the server.
        places: the addresses on which the process listens.
        note: shows a message to the operator.
        command: the command line of this process, which is written into the result.
        leaves_out: True: a report that the disk has lost is left out of the sum. False: the release
            waits for the operator.
    """

    folder: AggregateFolder
    places: Places
    note: Callable[[str], None]
    command: str = ""
    leaves_out: bool = False

    def run(self) -> None:
        """Serve clients and the other server until SIGTERM or SIGINT.

        If the server's key was destroyed, only tell clients that all releases are over.

        Raises:
            InvalidInputError: the process cannot listen on an address or claim the folder, or a
                certificate cannot be used.
            OvertakenError: another process runs the folder now, and this one has ended.
        """
        with ExitStack() as held:
            # The addresses are bound before the folder is claimed. Otherwise a process with a
            # mistyped address would change the folder, and then end.
            public = self.places.listen, self.places.operate
            listening = [held.enter_context(one.bound()) for one in public if one is not None]
            leader = self.places.leader
            peer = None if leader is None else held.enter_context(leader.bound())
            held.enter_context(held_by(self.folder.path, os.getpid()))
            started(json_log(self.places.log), str(self.folder.path))
            if self.folder.is_retired:
                run_loop(self._serve_over(listening))
                return
            claimed = self.folder.claim(clock=lambda: int(time.time()), random=secrets.token_bytes)
            run_loop(self._serve(claimed, listening, peer))

    async def _serve(
        self, claimed: Claimed, listening: list[Listening], peer: socket.socket | None
    ) -> None:
        folder, stopping = self.folder, asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stopping.set)
        async with AsyncExitStack() as stack:
            thread = stack.enter_context(one_thread())  # the end of the block waits for its calls
            releases = [self._collecting(batch, thread) for batch in claimed.batches]
            intake = self._intake(releases)
            overtaken, has_begun = [one.overtaken for one in releases], asyncio.Event()
            tendings, beside = await stack.enter_async_context(
                self._beside(claimed, releases, peer, has_begun)
            )
            standing = Standing(folder, releases, tendings)
            operated = self._operated(intake, standing)
            apps = zip((intake.application(), operated), listening, strict=False)
            writing = asyncio.create_task(_kept_up(standing))
            waits: list[asyncio.Future[Any]] = [
                writing,
                *beside,
                *await stack.enter_async_context(all_served(apps)),
                *(asyncio.ensure_future(event.wait()) for event in (stopping, *overtaken)),
            ]
            self.note(f"the {folder.side} takes reports on {listening[0].address}")
            has_begun.set()
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            intake.is_leaving = True
            for one in releases:
                await one.idle()
        for wait in waits:
            wait.cancel()
        for ended in done:
            ended.result()  # raises the error of a task that failed: it would be lost otherwise
        if any(event.is_set() for event in overtaken):
            raise OvertakenError(f"another process runs {folder.path}: this one ended")
        standing.write()

    def _collecting(self, batch: Batch[Any], thread: Executor) -> Collecting:
        return Collecting(
            self.folder.side,
            batch,
            time.time,
            time.monotonic,
            note=self.note,
            leaves_out=self.leaves_out,
            thread=thread,
        )

    def _intake(self, releases: list[Collecting]) -> Intake:
        plan, origins = self.folder.plan, self.folder.settings.origins
        return Intake(plan.fingerprint, releases, self._has_room, origins)

    def _operated(self, intake: Intake, standing: Standing) -> Starlette:
        """Return the ASGI application for health probes and Prometheus.

        This method also gives all releases the `Watcher` whose counts the application shows.
        """
        counts = Counts(standing.metrics, time.time, json_log(self.places.log))
        for one in intake.releases:
            one.watcher = counts
        return probed(
            lambda: not any(one.overtaken.is_set() for one in intake.releases),
            lambda: intake.is_ready,
            counts.registry,
        )

    async def _serve_over(self, listening: list[Listening]) -> None:
        """Tell clients that all releases are over, until SIGTERM or SIGINT.

        Call this if the server's key was destroyed, so that the server cannot read reports.
        """
        plan, stopping = self.folder.plan, asyncio.Event()
        origins = self.folder.settings.origins
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stopping.set)
        ended = over(self.folder.side, plan.fingerprint, len(plan.releases), origins)
        apps = ended, lingering()
        async with all_served(zip(apps, listening, strict=False)) as serves:
            self.note(
                f"the key was destroyed: clients hear on {listening[0].address} that it is over"
            )
            stop = asyncio.ensure_future(stopping.wait())
            await asyncio.wait([stop, *serves], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()

    def _has_room(self) -> bool:
        return shutil.disk_usage(self.folder.path).free >= ROOM

    @asynccontextmanager
    async def _beside(
        self,
        claimed: Claimed,
        releases: list[Collecting],
        peer: socket.socket | None,
        has_begun: asyncio.Event,
    ) -> AsyncIterator[tuple[list[Tending], list[asyncio.Future[Any]]]]:
        """Talk to the other server while the `with` block runs.

        A helper serves the leader's requests. A leader runs a `Tending` for each release, which
        judges (verifies) the release's reports and closes the release.

        Args:
            claimed: the claimed folder of the server.
            releases: the releases of the plan, in order.
            peer: at a helper, the socket that listens for the leader; None at a leader.
            has_begun: set when clients are served. A leader judges no report before. A million
                reports may wait to be judged, and clients must not wait for that.

        Yields:
            The `Tending` objects (at a helper an empty list), and a list of futures that end only
            if the work with the other server fails.
        """
        settings = self.folder.settings
        pins = Certificates(
            settings.certificate, settings.certificate_key, settings.other_certificate
        )
        if peer is not None:
            app = Channel(self.folder.plan.fingerprint, releases, claimed.store, self.note)
            async with served(app.application(), peer, pins.of_listener()) as task:
                yield [], [task]
            return
        async with httpx.AsyncClient(verify=pins.of_caller(), trust_env=False) as http:
            tendings = [
                self._tending(claimed, number, one, http) for number, one in enumerate(releases)
            ]
            tends = [asyncio.create_task(_after(has_begun, one.run)) for one in tendings]
            failed = asyncio.ensure_future(_first_fault(tends))
            try:
                yield tendings, [failed]
            finally:
                for tend in (failed, *tends):
                    tend.cancel()
                await asyncio.gather(failed, *tends, return_exceptions=True)

    def _tending(
        self, claimed: Claimed, number: int, one: Collecting, http: httpx.AsyncClient
    ) -> Tending:
        folder = self.folder
        assert folder.settings.helper is not None
        asking = Asking(http, folder.settings.helper, folder.plan, number, time.time, asyncio.sleep)
        return Tending(
            number,
            one,
            claimed.server,
            asking,
            Closings(folder.path),
            lambda: folder.save_result(claimed, secrets.token_bytes, self.command),
            self.note,
        )


async def _kept_up(standing: Standing) -> None:
    """Write the state of the process to its file about once a second, until it is cancelled."""
    while True:
        await asyncio.to_thread(standing.write)
        await asyncio.sleep(WRITE_SECONDS)


async def _after(event: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    """Wait for an event, then run `work`."""
    await event.wait()
    await work()


async def _first_fault(tasks: list[asyncio.Task[None]]) -> None:
    """Wait until one of the tasks fails, and raise its error.

    It never returns, even if all tasks end without an error.
    """
    left: set[asyncio.Task[None]] = set(tasks)
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    # A return would end the process, since the caller ends when the first of its futures ends. The
    # process must stay, to tell clients that the releases are over.
    await asyncio.Event().wait()
