"""What `fedtally aggregate ... run` does in its process: it serves, closes, hears SIGTERM, ends."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from aggregate_world import SIDES, World, certificate
from benchmarks.federation import free_ports
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from fedtally.campaign.closings import Closings, Schedule
from fedtally.campaign.transports.https.aggregating import Places, Process
from fedtally.campaign.transports.https.closing import Tending
from fedtally.campaign.transports.https.listen import Address, _Server, new_event_loop, served
from fedtally.campaign.transports.https.pinned import Certificates, PeerAddress
from fedtally.cli import aggregate
from fedtally.cli.app import run
from fedtally.errors import MissingExtraError, OvertakenError

pytestmark = [
    pytest.mark.usefixtures("no_sync"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl"),
]


class Operator(World):
    """The world whose helper is asked at a port, with certificates of both."""

    def __init__(self, folder: Path) -> None:
        for name in ("leader", "helper"):
            certificate(name, folder)
        super().__init__(folder)
        self.now = time.time()
        self.port, self.metrics, self.peer = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"

    def places(self, side: str) -> Places:
        leader = PeerAddress("127.0.0.1", self.peer) if side == "helper" else None
        return Places(Address(None, self.port), leader, Address(None, self.metrics), "info")

    def process(self, side: Any, notes: list[str]) -> Process:
        folder = self.folders[side]
        if side == "leader":
            text = (folder.path / "aggregate.toml").read_text()
            (folder.path / "aggregate.toml").write_text(text.replace("8443", str(self.peer)))
            folder = type(folder).open(folder.path, side)
        return Process(folder, self.places(side), notes.append)

    def ask(self, method: str, path: str, content: bytes = b"", port: int | None = None) -> Any:
        end = time.monotonic() + 60
        while True:
            with contextlib.suppress(httpx.TransportError):
                url = f"http://127.0.0.1:{port or self.port}{path}"
                return httpx.request(method, url, content=content)
            assert time.monotonic() < end
            time.sleep(0.02)


@contextmanager
def meanwhile(do: Callable[[], None], *, ends: bool = True) -> Iterator[None]:
    """Do something in a thread while this one runs a process, then end that by SIGTERM.

    A process that ends by itself gets no signal: it could come when nobody hears it any more.
    """
    errors: list[BaseException] = []

    def done() -> None:
        try:
            do()
        except BaseException as error:
            errors.append(error)
        if ends or errors:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: None)  # until the process hears it
    thread = threading.Thread(target=done)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGTERM, before)
    if errors:
        raise errors[0]


def test_a_helper_serves_until_sigterm_and_says_that_it_is_over_without_its_key(
    tmp_path: Path,
) -> None:
    world, notes = Operator(tmp_path), list[str]()

    def looks() -> None:
        assert world.ask("GET", world.path_of()).json() == {"server": "helper", "state": "open"}
        found = world.ask("PUT", f"{world.path_of()}/reports", world.report(0).helper)
        assert found.status_code == 201
        for path in ("/healthz", "/readyz"):
            assert world.ask("GET", path, port=world.metrics).json() == {"status": "pass"}
        text = world.ask("GET", "/metrics", port=world.metrics).text
        assert 'fedtally_reports_total{outcome="accepted"} 1.0' in text
        assert 'fedtally_release_is_open{release="0"} 1.0' in text

    with meanwhile(looks):
        world.process("helper", notes).run()
    assert notes == [f"the helper takes reports on 127.0.0.1:{world.port}"]
    world.folders["helper"].retire(1, give_up=True)

    def is_over() -> None:
        found = world.ask("GET", world.path_of()).json()
        assert found == {"server": "helper", "state": "closed"}

    with meanwhile(is_over):
        world.process("helper", notes).run()
    assert "the key was destroyed" in notes[-1]


def test_a_leader_asks_the_helper_over_tls_and_saves_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")  # none may stand between the servers
    world, notes = Operator(tmp_path), list[str]()
    closings = Closings(world.folders["leader"].path)
    closings.write(Schedule(closings.read().releases, 3, 0))
    has_ended = threading.Event()
    files = [tmp_path / name for name in ("helper.crt", "helper-tls.key", "leader.crt")]

    async def helps() -> None:
        channel = world.processes["helper"].channel.application()
        tls = Certificates(*files).of_listener()
        with PeerAddress("127.0.0.1", world.peer).bound() as listening:
            async with served(channel, listening, tls):
                while not has_ended.is_set():
                    await asyncio.sleep(0.05)

    def reports() -> None:
        async def helper_first() -> None:
            for i in range(3):
                assert (await world.put("helper", world.report(i).helper)).status_code == 201

        asyncio.run(helper_first())
        for i in range(3):
            frame = world.report(i).leader
            assert world.ask("PUT", f"{world.path_of()}/reports", frame).status_code == 201
        end = time.monotonic() + 60
        while not world.folders["helper"].landed():
            assert time.monotonic() < end, notes
            time.sleep(0.05)
        assert world.ask("GET", world.path_of()).json()["state"] == "closed"

    helping = threading.Thread(target=lambda: asyncio.run(helps()))
    helping.start()
    try:
        with meanwhile(reports):
            world.process("leader", notes).run()
    finally:
        has_ended.set()  # after the leader has closed its connections
        helping.join()
    [sketch] = world.result().sketches
    assert sketch.vector.tolist() == world.expected(0, 1, 2)
    assert "release 0 has landed: 3 reports are in its sum" in notes


def test_a_leader_judges_nothing_before_its_listeners_take_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart it may hold a million reports, and clients must not wait for those."""
    world, events, startup = Operator(tmp_path), list[str](), _Server.startup

    async def starts(self: Any, sockets: Any = None) -> None:
        await asyncio.sleep(0.02)
        await startup(self, sockets)
        events.append("takes")

    async def tends(self: Tending) -> None:
        events.append("tends")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(_Server, "startup", starts)
    monkeypatch.setattr(Tending, "run", tends)
    world.process("leader", []).run()
    assert events == ["takes", "takes", "tends"]  # clients, operators


def test_a_process_that_is_overtaken_ends_and_says_so(tmp_path: Path) -> None:
    world, notes = Operator(tmp_path), list[str]()

    def overtakes() -> None:
        world.ask("GET", world.path_of())
        world.start("leader")
        found = world.ask("PUT", f"{world.path_of()}/reports", world.report(0).leader)
        assert found.status_code == 503

    with meanwhile(overtakes, ends=False), pytest.raises(OvertakenError, match="this one ended"):
        world.process("leader", notes).run()


def test_a_fault_that_nobody_expected_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_: Any) -> float:
        raise ZeroDivisionError("a fault")

    world = Operator(tmp_path)
    monkeypatch.setattr(Tending, "step", fails)
    with pytest.raises(ZeroDivisionError):
        world.process("leader", []).run()


@pytest.mark.parametrize("side", SIDES)
def test_run_refuses_what_is_wrong_before_it_claims_anything(
    tmp_path: Path, side: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Operator(tmp_path)
    leader = ["--leader-listen", "nowhere"] if side == "helper" else ["--operate", "0.0.0.0:1"]
    words = ["aggregate", side, "run", str(world.folders[side].path), "--listen"]
    for listen, more in (("0.0.0.0:80", leader), ("127.0.0.1:0", leader)):
        assert run([*words, listen, *more]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: cannot listen on") and said.count("\n") == 1
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"fedtally\[https\]"):
        aggregate._check_extra()


def test_a_request_that_is_cut_at_the_end_leaves_one_line_and_no_traceback(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtally.campaign.transports.https.listen.CLOSE_SECONDS", 0.1)

    async def ends() -> None:
        begun = asyncio.Event()

        async def waits(_: Any) -> Response:
            begun.set()
            await asyncio.Event().wait()
            return Response(b"never")

        async def fails(_: Any) -> Response:
            raise RuntimeError("a fault of the program")

        app = Starlette(routes=[Route("/waits", waits), Route("/fails", fails)])
        with Address(None).bound() as at, at.socket as listening:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=url) as asking:
                async with served(app, listening):
                    assert (await asking.get("/fails")).status_code == 500
                    asked = asyncio.create_task(asking.get("/waits"))
                    await begun.wait()
                assert (await asked).status_code == 500  # which a client answers by asking again

    asyncio.run(ends())
    said = [record for record in caplog.records if record.name == "uvicorn.error"]
    errors = [record.exc_info[0] for record in said if record.exc_info]
    assert errors == [RuntimeError], "only a fault has a traceback"
    assert [record.getMessage() for record in said if "Cancel 1 running" in record.getMessage()]


def test_a_helper_ends_though_leaders_are_there_and_answers_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection idles, for whose end the helper would wait until its leader listens again."""
    close = "fedtally.campaign.transports.https.listen.CLOSE_SECONDS"
    monkeypatch.setattr(close, None)  # it would wait for as long as that takes
    for name in ("leader", "helper"):
        certificate(name, tmp_path)
    own, other = (
        Certificates(tmp_path / f"{one}.crt", tmp_path / f"{one}-tls.key", tmp_path / f"{two}.crt")
        for one, two in (("helper", "leader"), ("leader", "helper"))
    )

    async def ends() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        async def answers(_: Any) -> Response:
            begun.set()
            await go.wait()
            return Response(b"an answer")

        app, tls = Starlette(routes=[Route("/answer", answers)]), other.of_caller()
        with PeerAddress("127.0.0.1", 0).bound() as listening:
            url = f"https://127.0.0.1:{listening.getsockname()[1]}"
            async with (
                httpx.AsyncClient(verify=tls, base_url=url) as idle,
                httpx.AsyncClient(verify=tls, base_url=url) as asking,
                asyncio.timeout(15),
            ):
                async with served(app, listening, own.of_listener()):
                    assert (await idle.get("/")).status_code == 404
                    asked = asyncio.create_task(asking.get("/answer"))
                    await begun.wait()
                    asyncio.get_running_loop().call_later(0.5, go.set)
                assert (await asked).content == b"an answer"

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(ends())
