"""The process of one of two servers: it takes reports, and serves or asks the other server."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from fedtally.campaign.aggregate import AggregateFolder, Claimed
from fedtally.campaign.closings import Closings
from fedtally.campaign.transports.https.channel import Asking, Channel
from fedtally.campaign.transports.https.closing import Tending
from fedtally.campaign.transports.https.collecting import Collecting, Intake
from fedtally.campaign.transports.https.listen import Address, Listening, served
from fedtally.campaign.transports.https.pinned import Certificates, PeerAddress
from fedtally.campaign.transports.https.process import all_served, run_loop
from fedtally.errors import OvertakenError

ROOM = 64 << 20  # bytes of the disk that stay free: closing needs some


@dataclass(frozen=True)
class Places:
    """Where a process listens.

    Args:
        listen: for clients.
        leader: of a helper: for the leader.
    """

    listen: Address
    leader: PeerAddress | None = None


@dataclass(frozen=True)
class Process:
    """One of two servers as it runs.

    Args:
        folder: the folder of the server.
        places: where it listens.
        note: takes what the operator should know, in words.
        command: the command line, for a reader of the result.
    """

    folder: AggregateFolder
    places: Places
    note: Callable[[str], None]
    command: str = ""

    def run(self) -> None:
        """Run until SIGTERM.

        Raises:
            InvalidInputError: an address cannot be had, or the folder cannot be claimed.
            OvertakenError: another process runs the folder.
        """
        with ExitStack() as held:
            # Before the folder is claimed: a mistyped address must begin nothing.
            listening = held.enter_context(self.places.listen.bound())
            leader = self.places.leader
            peer = None if leader is None else held.enter_context(leader.bound())
            held.enter_context(self.folder.running(os.getpid()))
            claimed = self.folder.claim(clock=lambda: int(time.time()), random=secrets.token_bytes)
            run_loop(self._serve(claimed, listening, peer))

    async def _serve(
        self, claimed: Claimed, listening: Listening, peer: socket.socket | None
    ) -> None:
        folder, stopping = self.folder, asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stopping.set)
        releases = [
            Collecting(folder.side, batch, time.time, time.monotonic) for batch in claimed.batches
        ]
        intake = Intake(folder.plan.fingerprint, releases, self._has_room)
        events = [stopping, *(one.overtaken for one in releases)]
        async with AsyncExitStack() as stack:
            apps = [(intake.application(), listening)]
            waits: list[asyncio.Future[Any]] = [
                *await stack.enter_async_context(all_served(apps)),
                *await stack.enter_async_context(self._beside(claimed, releases, peer)),
                *(asyncio.ensure_future(event.wait()) for event in events),
            ]
            self.note(f"the {folder.side} takes reports on {listening.address}")
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            intake.is_leaving = True
            for one in releases:
                await one.idle()
        for wait in waits:
            wait.cancel()
        if any(one.overtaken.is_set() for one in releases):
            raise OvertakenError(f"another process runs {folder.path}: this one ended")

    def _has_room(self) -> bool:
        return shutil.disk_usage(self.folder.path).free >= ROOM

    @asynccontextmanager
    async def _beside(
        self, claimed: Claimed, releases: list[Collecting], peer: socket.socket | None
    ) -> AsyncIterator[Iterable[asyncio.Future[Any]]]:
        """Serve the leader, or ask the helper, while the block runs; give what ends by a fault."""
        settings = self.folder.settings
        pins = Certificates(
            settings.certificate, settings.certificate_key, settings.other_certificate
        )
        if peer is not None:
            app = Channel(self.folder.plan.fingerprint, releases, claimed.store, self.note)
            async with served(app.application(), peer, pins.of_listener()) as task:
                yield [task]
            return
        async with httpx.AsyncClient(verify=pins.of_caller()) as http:
            tends = [
                asyncio.create_task(self._tending(claimed, number, one, http).run())
                for number, one in enumerate(releases)
            ]
            failed = asyncio.ensure_future(_first_fault(tends))
            try:
                yield [failed]
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


async def _first_fault(tasks: list[asyncio.Task[None]]) -> None:
    """Wait for a task that fails by what nobody expected, and raise it; others may end."""
    left: set[asyncio.Task[None]] = set(tasks)
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        for one in done:
            one.result()
    await asyncio.Event().wait()  # the process goes on, and says that all is over
