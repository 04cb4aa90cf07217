"""The process of one of two servers: it takes reports, and serves or asks the other server."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from fedtally.campaign.aggregate import AggregateFolder, Claimed
from fedtally.campaign.transports.https.collecting import Collecting, Intake
from fedtally.campaign.transports.https.listen import Address, Listening
from fedtally.campaign.transports.https.process import all_served, run_loop
from fedtally.errors import OvertakenError

ROOM = 64 << 20  # bytes of the disk that stay free: closing needs some


@dataclass(frozen=True)
class Places:
    """Where a process listens.

    Args:
        listen: for clients.
    """

    listen: Address


def run(folder: AggregateFolder, places: Places, note: Callable[[str], None]) -> None:
    """Run one of two servers until SIGTERM.

    Args:
        folder: the folder of the server.
        places: where it listens.
        note: takes what the operator should know, in words.

    Raises:
        InvalidInputError: an address cannot be had, or the folder cannot be claimed.
        OvertakenError: another process runs the folder.
    """
    with ExitStack() as held:
        # Before the folder is claimed: a mistyped address must begin nothing.
        listening = held.enter_context(places.listen.bound())
        held.enter_context(folder.running(os.getpid()))
        claimed = folder.claim(clock=lambda: int(time.time()), random=secrets.token_bytes)
        run_loop(_serve(folder, claimed, listening, note))


async def _serve(
    folder: AggregateFolder, claimed: Claimed, listening: Listening, note: Callable[[str], None]
) -> None:
    stopping = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopping.set)
    releases = [
        Collecting(folder.side, batch, time.time, time.monotonic) for batch in claimed.batches
    ]
    intake = Intake(
        folder.plan.fingerprint,
        releases,
        lambda: shutil.disk_usage(folder.path).free >= ROOM,
    )
    events = [stopping, *(one.overtaken for one in releases)]
    async with all_served([(intake.application(), listening)]) as serves:
        note(f"the {folder.side} takes reports on {listening.address}")
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        await asyncio.wait({*waits, *serves}, return_when=asyncio.FIRST_COMPLETED)
        intake.is_leaving = True
        for one in releases:
            await one.idle()
        for wait in waits:
            wait.cancel()
    if any(one.overtaken.is_set() for one in releases):
        raise OvertakenError(f"another process runs {folder.path}: this one ended")
