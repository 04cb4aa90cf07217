"""Clients on Unix sockets that do as the protocol says, or not: the other end of an engine's pipes.

They are not `fedtally.agent`: nothing but the plan says what they take part in.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from campaign_world import ALLOWED, DOMAIN, PEOPLE, SERVER_KEY, STRINGS, held_text
from secagg_cohort import stream

from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.transports.pipe import PipeError, read_frame, write_frame
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.client import Client, MemoryJournal, read_invite
from fedtally.secagg.messages import Kind
from fedtally.secagg.params import Adversary, ClientPolicy

MOST = 1 << 24
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Person:
    """A client that holds the item 1 + its number, or a text under a plan with an open domain.

    Attributes:
        sent: the vector that it contributed to each session, before it was masked.
    """

    def __init__(self, plan: Plan, number: int) -> None:
        self.plan, self.number = plan, number
        self.journal = MemoryJournal()
        self.sent: dict[bytes, Any] = {}
        self._sessions: dict[bytes, Client] = {}

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the frames of a connection."""
        with suppress(PipeError):
            while True:
                frame = await read_frame(reader, MOST)
                await write_frame(writer, self.answer(frame) or b"")

    def answer(self, frame: bytes) -> bytes | None:
        """Answer a frame; bytes that are none get no answer."""
        message = wire.parse(frame)
        if message is None:
            return None
        if message.kind is Kind.INVITE and message.session not in self._sessions:
            self._sessions[message.session] = self._join(frame, message.session)
        client = self._sessions.get(message.session)
        return None if client is None else client.receive(frame, int(time.time()))

    def _join(self, frame: bytes, session: bytes) -> Client:
        fingerprint = bytes.fromhex(self.plan.fingerprint)
        found = read_invite(frame, server_key=SERVER_KEY.public, fingerprint=fingerprint)
        assert found is not None
        number = self.number
        domain, items = (
            (STRINGS, held_text(number)) if self.plan.is_open else (DOMAIN, [1 + number])
        )
        client = FrequencyClient(self.plan, domain, items)
        contribution = client.contribution

        def noted(round: int, random: Callable[[int], bytes]) -> Any:
            vector = contribution(round, random)
            self.sent[session] = vector.copy()
            return vector

        client.contribution = noted  # type: ignore[method-assign]
        adversary = self.plan.secure_sum.parameters.adversary  # type: ignore[union-attr]
        active = adversary is Adversary.ACTIVE
        return client.join(
            found.round,
            ClientPolicy(adversary=adversary, min_honest=2),
            journal=self.journal,
            random=stream(("client", self.number, len(self._sessions))),
            identity=PEOPLE[self.number] if active else None,
            allow_list=ALLOWED if active else None,
        )


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take everything and say nothing."""
    while await reader.read(1 << 16):
        pass


async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Announce an answer of 4 GiB."""
    await reader.read(4)
    writer.write(b"\xff" * 1000)
    await reader.read()


async def garbled(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every frame with bytes that are none."""
    with suppress(PipeError):
        while True:
            await read_frame(reader, MOST)
            await write_frame(writer, b"\x00garbage")


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close the pipe in the middle of an answer."""
    await reader.read(100)
    writer.write((1000).to_bytes(4, "little") + b"half")


def _closing(handler: Handler) -> Handler:
    """Close each connection after its handler, also where the loop ends first."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            await handler(reader, writer)

    return handle


@asynccontextmanager
async def listening(sockets: Path, agents: dict[int, Handler]) -> AsyncIterator[None]:
    """Let agents listen in a folder, and hang up at the end."""
    async with AsyncExitStack() as stack:
        for number, handler in agents.items():
            place = sockets / f"p{number}.sock"
            server = await asyncio.start_unix_server(_closing(handler), place)
            await stack.enter_async_context(server)
        yield


@contextmanager
def listening_in_a_thread(sockets: Path, persons: list[Person]) -> Iterator[list[Person]]:
    """Let clients listen in a folder, in another thread."""
    ready, over = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def listen() -> None:
        async with listening(sockets, {one.number: one.handle for one in persons}):
            loops.append(asyncio.get_running_loop())
            ready.set()
            await over.wait()

    # At its end `asyncio.run` cancels the handlers that still wait: each closes its connection.
    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    ready.wait()
    try:
        yield persons
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join()
        for person in persons:
            (sockets / f"p{person.number}.sock").unlink(missing_ok=True)
