"""Agents on real Unix sockets: who may connect, and that nobody keeps others waiting."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agents import AgentWorld, Guarded, no_power_is_lost, said, session_of  # noqa: F401
from campaign_world import START, N, plan_of

from fedtally.agent import serve as serve_module
from fedtally.agent.agent import Note
from fedtally.agent.items import Items
from fedtally.agent.reading import Aside
from fedtally.agent.serve import MOST_CONNECTIONS, Served, serve
from fedtally.campaign.transports.pipe import PipeClosedError, PipeError, read_frame, write_frame
from fedtally.errors import InvalidInputError
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind

PLAN = plan_of()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: that of a socket has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="ft-") as name:
        yield Path(name)


class Line:
    """A connection to an agent; `close_all` closes all of them."""

    made: ClassVar[list[Line]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.made.append(self)

    @classmethod
    async def close_all(cls) -> None:
        for line in cls.made:
            line.writer.close()
            with suppress(OSError):
                await line.writer.wait_closed()
        cls.made.clear()

    @classmethod
    async def to(cls, path: Path) -> Line:
        return cls(*await asyncio.open_unix_connection(path))

    async def ask(self, frame: bytes) -> bytes:
        await write_frame(self.writer, frame)
        return await asyncio.wait_for(read_frame(self.reader, 2**20), 10)


def served(
    folder: Path,
    test: Callable[[Path, Guarded], Awaitable[Any]],
    notes: list[Note] | None = None,
    **given: Any,
) -> Any:
    """Serve an agent on a socket while a test runs."""

    async def run() -> Any:
        one = Guarded(folder / "agent", PLAN)
        log = (notes if notes is not None else one.log).append
        running = await serve(
            one.agent, folder / "run" / "a.sock", log=log, clock=lambda: START, **given
        )
        try:
            return await test(folder / "run" / "a.sock", one)
        finally:
            await Line.close_all()
            await running.stop()

    return asyncio.run(run())


def test_a_campaign_over_sockets_lands_its_sums(folder: Path) -> None:
    async def run() -> AgentWorld:
        world = AgentWorld(folder, plan_of("active", "distributed"))
        paths = [folder / f"run{i}" / "a.sock" for i in range(N)]
        running: list[Served] = [
            await serve(seat.guarded.agent, path, clock=lambda: world.now)
            for seat, path in zip(world.persons, paths, strict=True)
        ]
        lines = [await Line.to(path) for path in paths]
        while not world.driver.is_complete:
            for i, line in enumerate(lines):
                world.driver.check_in(i, world.now)
                frame = world.driver.next(i, world.now)
                if frame is None:
                    continue
                message = wire.parse(frame)
                assert message is not None
                world.note(message, i)
                world.persons[i].expect(frame)  # type: ignore[attr-defined]
                if answer := await line.ask(frame):
                    world.driver.receive(i, answer, world.now)
            world.driver.tick(world.now)
            world.now += 5
        await Line.close_all()
        for one in running:
            await one.stop()
        return world

    world = asyncio.run(run())
    world.check()
    assert not list(folder.glob("run*/a.sock"))


def test_the_socket_is_for_its_user_and_group(folder: Path) -> None:
    async def test(path: Path, one: Guarded) -> None:
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750
        line = await Line.to(path)
        assert said(await line.ask(session_of(PLAN).invite)) is Kind.ADVERTISE
        assert await line.ask(b"garbage") == b""  # the length 0 is no answer
        assert await line.ask(b"") == b""
        assert said(await line.ask(session_of(PLAN).invite)) is Kind.ADVERTISE

    served(folder, test)
    assert not (folder / "run" / "a.sock").exists()


@pytest.mark.parametrize(
    ("uid", "peers", "is_let_in"),
    [
        (os.getuid(), (), True),
        (0, (), True),
        (4321, (), False),
        (4321, (4321,), True),
        (2**32 - 1, (), False),
    ],
)
def test_users_who_are_not_named_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, uid: int, peers: tuple[int, ...], is_let_in: bool
) -> None:
    monkeypatch.setattr(serve_module, "_user_of", lambda writer: uid)
    notes: list[Note] = []

    async def test(path: Path, one: Guarded) -> None:
        line = await Line.to(path)
        if is_let_in:
            assert said(await line.ask(session_of(PLAN).invite)) is Kind.ADVERTISE
        else:
            with pytest.raises(PipeError):
                await line.ask(session_of(PLAN).invite)
            assert one.sessions == 0

    served(folder, test, notes, peers=peers)
    assert ("refused a connection of user 4321" in str(notes)) is (uid == 4321 and not is_let_in)


def test_the_kernel_says_who_connects(folder: Path) -> None:
    async def test(path: Path, one: Guarded) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        _, writer = await asyncio.open_unix_connection(sock=ours)
        assert serve_module._user_of(writer) == os.getuid()
        theirs.close()
        writer.close()

    served(folder, test)


def test_silent_and_slow_peers_keep_nobody_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "FRAME_SECONDS", 0.3)
    notes: list[Note] = []

    async def test(path: Path, one: Guarded) -> None:
        silent = [await Line.to(path) for _ in range(5)]
        slow = await Line.to(path)
        slow.writer.write(b"\x05\0\0\0ab")
        await slow.writer.drain()
        deaf = socket.socket(socket.AF_UNIX)
        deaf.connect(os.fspath(path))
        deaf.setblocking(False)
        line = await Line.to(path)
        assert said(await line.ask(session_of(PLAN).invite)) is Kind.ADVERTISE
        with pytest.raises(PipeClosedError):
            await asyncio.wait_for(read_frame(slow.reader, 100), 10)
        # one that sends and never reads
        frame = session_of(PLAN).invite
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            while True:
                deaf.send(len(frame).to_bytes(4, "little") + frame)
        assert said(await line.ask(session_of(PLAN).invite)) is Kind.ADVERTISE
        assert said(await silent[0].ask(session_of(PLAN).invite)) is Kind.ADVERTISE
        deaf.close()

    served(folder, test, notes)
    assert "did not arrive whole" in str(notes)


def test_a_frame_that_is_too_long_closes_its_connection_alone(folder: Path) -> None:
    notes: list[Note] = []

    async def test(path: Path, one: Guarded) -> None:
        good, bad = await Line.to(path), await Line.to(path)
        bad.writer.write(b"\xff\xff\xff\xff")
        with pytest.raises(PipeClosedError):
            await asyncio.wait_for(read_frame(bad.reader, 100), 10)
        cut = await Line.to(path)
        cut.writer.write(b"\x05\0\0\0ab")
        cut.writer.close()
        assert said(await good.ask(session_of(PLAN).invite)) is Kind.ADVERTISE

    served(folder, test, notes)
    assert "4294967295 bytes was announced, and 4096 are the most" in str(notes)


def test_of_too_many_connections_the_most_silent_one_goes(folder: Path) -> None:
    async def test(path: Path, one: Guarded) -> None:
        invite = session_of(PLAN).invite
        lines = [await Line.to(path) for _ in range(MOST_CONNECTIONS)]
        for line in [*lines[1:], lines[0]]:  # the second is now silent for longest
            await line.ask(invite)
        more = await Line.to(path)
        assert said(await more.ask(invite)) is Kind.ADVERTISE
        with pytest.raises(PipeError):
            await lines[1].ask(invite)
        for line in (lines[0], lines[2], lines[-1]):
            assert said(await line.ask(invite)) is Kind.ADVERTISE

    served(folder, test)


def test_many_that_connect_at_once_are_held_to_the_same_number(folder: Path) -> None:
    async def test(path: Path, agent: Guarded) -> None:
        lines = [await Line.to(path)]
        for _ in range(4):  # connections that the agent finds all at once
            burst = [socket.socket(socket.AF_UNIX) for _ in range(MOST_CONNECTIONS)]
            for other in burst:
                other.connect(os.fspath(path))
            lines += [Line(*await asyncio.open_unix_connection(sock=one)) for one in burst]
        await asyncio.sleep(0.1)
        ended = sum(line.reader.at_eof() for line in lines)
        assert ended == len(lines) - MOST_CONNECTIONS
        assert said(await lines[-1].ask(session_of(PLAN).invite)) is Kind.ADVERTISE

    served(folder, test)


def test_connections_that_wait_for_items_are_held_to_the_same_number(folder: Path) -> None:
    """Else who may connect could take all open files of the agent while it reads."""
    go_on = threading.Event()

    def read() -> list[int]:
        assert go_on.wait(60)
        return [7]

    async def test(path: Path, one: Guarded) -> None:
        one.agent._items = Items(read, start=Aside(60.0))
        invite, lines = session_of(PLAN).invite, []
        for _ in range(MOST_CONNECTIONS + 5):
            lines.append(await Line.to(path))
            await write_frame(lines[-1].writer, invite)
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert sum(line.reader.at_eof() for line in lines) == 5
        go_on.set()
        for line in lines[5:]:  # the others get the one answer
            frame = await asyncio.wait_for(read_frame(line.reader, 2**20), 10)
            assert said(frame) is Kind.ADVERTISE
        assert one.sessions == 1

    served(folder, test)


def test_the_end_waits_for_no_reading(folder: Path) -> None:
    go_on = threading.Event()

    def read() -> list[int]:
        assert go_on.wait(60)
        return [7]

    async def test(path: Path, one: Guarded) -> None:
        one.agent._items = Items(read, start=Aside(60.0))
        line = await Line.to(path)
        await write_frame(line.writer, session_of(PLAN).invite)
        await asyncio.sleep(0.1)

    began = time.monotonic()
    served(folder, test)
    assert time.monotonic() - began < 10
    go_on.set()  # the loop has ended: nobody is told
    for thread in threading.enumerate():
        if thread.name == "items":
            thread.join()


def test_a_stale_socket_is_replaced_and_a_live_one_is_not(folder: Path) -> None:
    path = folder / "run" / "a.sock"
    path.parent.mkdir(mode=0o750)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(os.fspath(path))
    dead.close()
    assert path.exists()

    async def test(path: Path, one: Guarded) -> None:
        second = Guarded(path.parent.parent / "other", PLAN)
        with pytest.raises(InvalidInputError, match="runs on .* already"):
            await serve(second.agent, path)
        line = await Line.to(path)
        assert said(await line.ask(session_of(PLAN).invite)) is Kind.ADVERTISE

    served(folder, test)
    served(folder, lambda path, one: Line.to(path))  # after a clean end as well


def test_what_is_no_place_for_a_socket_is_refused_in_words(folder: Path) -> None:
    one = Guarded(folder / "agent", PLAN)

    def refused(path: Path, says: str) -> None:
        with pytest.raises(InvalidInputError, match=says):
            asyncio.run(serve(one.agent, path))

    for mode in (0o777, 0o770, 0o752):
        open_to_all = folder / f"{mode:o}"
        open_to_all.mkdir()
        open_to_all.chmod(mode)
        refused(open_to_all / "a.sock", "may be written by others")
    if os.geteuid() == 0:  # as where root runs the agent of another user
        (folder / "theirs").mkdir(mode=0o750)
        os.chown(folder / "theirs", 54_321, 54_321)
        refused(folder / "theirs" / "a.sock", "belongs to user 54321.*: run the agent as that user")
    refused(folder / ("x" * 120) / "a.sock", "107 bytes")
    refused(folder / "no" / "such" / "a.sock", "cannot make the folder")
    (folder / "file").write_text("mine")
    folder.chmod(0o700)
    (folder / "a.sock.lock").symlink_to(folder / "file")  # O_NOFOLLOW: it is not written
    refused(folder / "a.sock", "cannot open the lock .*a.sock.lock")
    refused(folder / "file", "is no socket")
    assert (folder / "file").read_text() == "mine"


def test_the_end_waits_for_an_answer_that_is_being_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    async def test(path: Path, one: Guarded) -> None:
        answer, close = one.agent.answer, one.agent.close

        def slowly(frame: bytes, now: float) -> bytes | None:
            time.sleep(0.3)
            ended.append("answered")
            return answer(frame, now)

        monkeypatch.setattr(one.agent, "answer", slowly)
        monkeypatch.setattr(one.agent, "close", lambda: (ended.append("closed"), close()))
        line = await Line.to(path)
        await write_frame(line.writer, session_of(PLAN).invite)
        await asyncio.sleep(0.1)

    served(folder, test)
    assert ended == ["answered", "closed"]


def test_secrets_of_sessions_whose_time_is_over_are_wiped_without_a_frame(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve_module, "SWEEP_SECONDS", 0.05)

    async def run() -> None:
        now = [float(START)]
        one = Guarded(folder / "agent", PLAN)
        running = await serve(one.agent, folder / "a.sock", clock=lambda: now[0])
        line = await Line.to(folder / "a.sock")
        await line.ask(session_of(PLAN).invite)
        assert one.agent._live
        now[0] += 601
        await asyncio.sleep(0.3)
        assert not one.agent._live
        await Line.close_all()
        await running.stop()

    asyncio.run(run())


@pytest.mark.parametrize("steps", range(6))
def test_nobody_is_left_after_a_stop_and_two_stops_at_once_close_once(
    folder: Path, steps: int
) -> None:
    """A connection that comes just before, at any step of the loop, is closed, too."""

    async def run() -> bytes:
        one = Guarded(folder / "agent", PLAN)
        running = await serve(one.agent, folder / "a.sock", clock=lambda: START)
        reader, writer = await asyncio.open_unix_connection(folder / "a.sock")
        for _ in range(steps):
            await asyncio.sleep(0)
        await asyncio.gather(running.stop(), running.stop())
        found = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return found

    assert asyncio.run(run()) == b""
