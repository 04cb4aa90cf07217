"""The process of one DAP server: it serves requests, and a leader also sends requests itself."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fedtally.campaign.dap_folder import DapFolder
from fedtally.campaign.places import held_by
from fedtally.campaign.transports.https.aggregating import ROOM
from fedtally.campaign.transports.https.carry import client, tls
from fedtally.campaign.transports.https.collecting import one_thread
from fedtally.campaign.transports.https.dap_asking import DapAsking
from fedtally.campaign.transports.https.dap_driving import Driving
from fedtally.campaign.transports.https.dap_server import DapHelper, DapLeader, DapServer
from fedtally.campaign.transports.https.listen import Address, Listening
from fedtally.campaign.transports.https.operate import Responses, probed
from fedtally.campaign.transports.https.process import all_served, run_loop
from fedtally.dap import Leader
from fedtally.dap.task import to_text, token_digest
from fedtally.errors import OvertakenError


@dataclass(frozen=True)
class DapProcess:
    """The running process of a server of a DAP task.

    Args:
        folder: the folder of the server.
        listen: the address for clients. At a leader it is also for the collector, and at a helper
            for the leader.
        operate: the address for health probes and Prometheus; None: nothing listens for them.
        note: shows a message to the operator.
    """

    folder: DapFolder
    listen: Address
    operate: Address | None
    note: Callable[[str], None]

    def run(self) -> None:
        """Serve requests until SIGTERM or SIGINT.

        Raises:
            InvalidInputError: the process cannot listen on an address or claim the folder, or a
                file of its settings or a proxy of the environment cannot be used.
            OvertakenError: another process runs the folder now, and this one has ended.
        """
        with ExitStack() as held:
            # The addresses are bound before the folder is claimed. Otherwise a process with a
            # mistyped address would change the folder, and then end.
            places = self.listen, self.operate
            listening = [held.enter_context(one.bound()) for one in places if one is not None]
            trusted = tls(self.folder.settings.ca)
            held.enter_context(held_by(self.folder.path, os.getpid()))
            run_loop(self._serve(listening, trusted))

    async def _serve(self, listening: list[Listening], trusted: ssl.SSLContext) -> None:
        stopping = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stopping.set)
        async with AsyncExitStack() as stack:
            served, responses = self._served(stack)
            operated = probed(
                lambda: not served.overtaken.is_set(), lambda: served.is_ready, responses.registry
            )
            apps = zip((served.application(), operated), listening, strict=False)
            waits: list[asyncio.Future[Any]] = [
                *await stack.enter_async_context(all_served(apps)),
                *await stack.enter_async_context(self._driven(served, trusted)),
                *(asyncio.ensure_future(e.wait()) for e in (stopping, served.overtaken)),
            ]
            self.note(f"the {self.folder.role.name.lower()} serves on {listening[0].address}")
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            served.is_leaving = True
        for wait in waits:
            wait.cancel()
        for ended in done:
            ended.result()  # raises the error of a task that failed: it would be lost otherwise
        if served.overtaken.is_set():
            raise OvertakenError(f"another process runs {self.folder.path}: this one ended")

    def _served(self, stack: AsyncExitStack) -> tuple[DapServer, Responses]:
        folder, responses = self.folder, Responses()
        server = folder.claim(clock=lambda: int(time.time()), random=secrets.token_bytes)
        make, secret = DapLeader if isinstance(server, Leader) else DapHelper, folder.secret()
        served = make(
            server,
            folder.keyring(),
            secret.collector if make is DapLeader else token_digest(secret.leader_token),
            time.time,
            folder.settings.origins,
            self._has_room,
            self.note,
            responses,
            thread=stack.enter_context(one_thread()),
        )
        return served, responses

    def _has_room(self) -> bool:
        return shutil.disk_usage(self.folder.path).free >= ROOM

    @asynccontextmanager
    async def _driven(
        self, served: DapServer, trusted: ssl.SSLContext
    ) -> AsyncIterator[list[asyncio.Task[None]]]:
        """At a leader, run the loop that sends requests to the helper while the `with` block runs.

        Args:
            served: the server, with the HTTPS resources that it serves.
            trusted: the TLS context that checks the helper's certificate.

        Yields:
            A list with the task of the loop. The task ends only if it fails or another process uses
            the store. At a helper the list is empty.
        """
        if not isinstance(served, DapLeader):
            yield []
            return
        url = served.task.configuration.helper.decode()
        token = self.folder.secret().leader_token
        async with client(trusted) as http:
            asking = DapAsking(http, url, to_text(served.task.id), token)
            task = asyncio.create_task(Driving(served, asking, self.note).run())
            try:
                yield [task]
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
