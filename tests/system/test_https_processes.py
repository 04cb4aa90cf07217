"""Campaigns over HTTPS by real processes: servers that are killed, nginx, and `agent join`."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_world import N, plan_of
from secagg_cohort import stream
from socket_agents import Person, listening_in_a_thread

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from benchmarks.behind_nginx import NGINX, certificate
from benchmarks.federation import free_ports
from benchmarks.serve import joined
from https_processes import Served, behind_nginx

from fedtally import __version__
from fedtally.answer.result import Result
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.engine import hold
from fedtally.campaign.transports.https.join import Over
from fedtally.campaign.transports.https.listen import Address
from fedtally.campaign.transports.https.loop import HttpsLoop
from fedtally.campaign.transports.https.process import Https
from fedtally.campaign.transports.https.resource import HANDLED
from fedtally.campaign.transports.https.tokens import Tokens, digest_of, mint
from fedtally.cli import campaign_view as view
from fedtally.cli.app import run
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.messages import Kind
from fedtally.store import StoreError
from fedtally.store.claims import Claim

QUICK = ["--gather", "2", "--bench", "60"]
slowly = pytest.mark.parametrize("survey", [30], indirect=True, ids=["slowly"])


@pytest.fixture
def survey(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Plan, Path]:
    """Return a plan, and the folder of its campaign, whose phases have 8 seconds or a parameter."""
    phase = getattr(request, "param", 8)
    create_key_files(tmp_path / "server.key", "server", stream("server"))
    plan = plan_of()
    plan.save(tmp_path / "plan.toml")
    files = {"--plan": "plan.toml", "--server-key": "server.key", "--mark": "mark"}
    given = [text for name, file in files.items() for text in (name, str(tmp_path / file))]
    times = ["--phase", str(phase), "--session", str(15 * phase)]
    assert run(["campaign", "init", str(tmp_path / "survey"), *given, *QUICK, *times]) == 0
    return plan, tmp_path / "survey"


def check_sum(place: Path, persons: list[Person]) -> None:
    """Check that the result is the plain sum of what all clients hold."""
    [sketch] = Result.load(place / "result.fed").sketches
    sent = [vector for person in persons for vector in person.sent.values()]
    assert len(sent) == len(persons), "nobody is asked twice"
    assert sketch.num_clients == len(persons)
    assert (sketch.vector == np.sum(sent, axis=0)).all()


@pytest.mark.promise
@slowly
@pytest.mark.skipif(NGINX is None or not shutil.which("openssl"), reason="needs nginx and openssl")
def test_a_campaign_through_nginx_whose_server_is_killed_four_times(
    survey: tuple[Plan, Path], tmp_path: Path
) -> None:
    plan, place = survey
    ca = certificate(tmp_path)
    served = Served.of(place, N, f"unix:{tmp_path / 'campaign.sock'}")
    # Longer than the 30 seconds that a client may pause: else the last one asks nobody, for ever.
    served.begin("--linger", "90")
    persons = [Person(plan, number) for number in range(N)]
    left = {Kind.INVITE, Kind.ROSTER, Kind.INBOX, Kind.SURVIVORS}
    token = tmp_path / "client.token"
    token.write_text(served.tokens[0])
    token.chmod(0o600)

    async def kill(frame: bytes) -> None:
        message = wire.parse(frame)
        if message is not None and message.kind in left:
            left.discard(message.kind)
            served.kill()
            served.begin("--linger", "90")

    async def all_join(url: str) -> list[Over]:
        asking = (
            joined(url, served.tokens[person.number], person, ca, kill) for person in persons[1:]
        )
        async with asyncio.timeout(400):  # a client that waits for ever is an error, and no hang
            return await asyncio.gather(*asking)

    with (
        behind_nginx(tmp_path, served, free_ports(1)[0]) as url,
        listening_in_a_thread(tmp_path, persons[:1]),  # the agent of the one that is a process
    ):
        carrier = subprocess.Popen(
            [
                *(sys.executable, "-m", "fedtally", "agent", "join", "--url", url),
                *("--token-file", str(token), "--socket", str(tmp_path / "p0.sock")),
                *("--ca", str(ca)),
            ],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert asyncio.run(all_join(url)) == [Over.CAMPAIGN] * (N - 1)
        said = carrier.communicate(timeout=60)[1]
        assert carrier.returncode == 0 and said.endswith("the campaign is over\n"), said
        assert served.process is not None
        served.process.send_signal(signal.SIGHUP)  # it needs no tokens any more
        served.process.send_signal(signal.SIGTERM)  # it would say for longer that it is over
        assert served.process.wait(timeout=30) == 0
    assert not left and len(served.err) == 5
    check_sum(place, persons)


# ---- the engine in this process ----


class Clients(threading.Thread):
    """Clients in another thread, which ask the server on a Unix socket."""

    def __init__(self, served: Served, persons: list[Person], hook: Any = None) -> None:
        super().__init__()
        self.overs: list[Any] = []
        self._served, self._persons, self._hook = served, persons, hook

    def run(self) -> None:
        try:
            self.overs = asyncio.run(self._join())
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # all have heard that it is over

    async def _join(self) -> list[Any]:
        async with asyncio.timeout(100):
            return await asyncio.gather(
                *(
                    joined(
                        f"http://here{self._served.path}",
                        self._served.tokens[one.number],
                        one,
                        hook=self._hook,
                        socket=self._served.address.removeprefix("unix:"),
                    )
                    for one in self._persons
                )
            )


def test_a_campaign_in_this_process_runs_on_uvloop_and_says_when_it_is_over(
    survey: tuple[Plan, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, place = survey
    served = Served.of(place, N, f"unix:{tmp_path / 'campaign.sock'}")
    persons = [Person(plan, number) for number in range(N)]
    loops: set[str] = set()
    run_it, before = HttpsLoop.run, signal.getsignal(signal.SIGTERM)

    async def noted(self: HttpsLoop) -> Any:
        loops.add(type(asyncio.get_running_loop()).__module__)
        os.kill(os.getpid(), signal.SIGHUP)  # the tokens are read again
        return await run_it(self)

    clients = Clients(served, persons)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HttpsLoop, "run", noted)
        clients.start()
        words = ["run", str(place), "--engine", "https", "--listen", served.address]
        assert run(["campaign", *words, "--linger", "90"]) == 0
        clients.join()
    assert loops == {"uvloop"}
    assert signal.getsignal(signal.SIGTERM) == before  # a closed loop would swallow each signal
    assert clients.overs == [Over.CAMPAIGN] * N
    said = capsys.readouterr().err
    assert "clients hear for 90 seconds that it is over" in said
    check_sum(place, persons)


def _asked(served: Served) -> int:
    """Return what a client is told now; 0: nobody listens."""

    async def ask() -> int:
        place = served.address.removeprefix("unix:")
        named = {"authorization": f"Bearer {served.tokens[0]}"}
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=place)) as http:
            try:
                got = await http.post(f"http://here{served.path}/step", headers=named)
            except httpx.TransportError:
                return 0
            return int(got.status_code)

    return asyncio.run(ask())


class Beside(threading.Thread):
    """What happens while the campaign runs in this process, once a client is answered."""

    def __init__(self, served: Served, act: Callable[[], None], until: int = 0) -> None:
        super().__init__()
        self.told: list[int] = []
        self._served, self._act, self._until = served, act, until

    def run(self) -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            self.told.append(_asked(self._served))
            if self.told[-1] == 204:
                break
            time.sleep(0.05)
        self._act()
        while time.monotonic() < end:
            self.told.append(_asked(self._served))
            if self.told[-1] == self._until:
                break
            time.sleep(0.05)
        if self._until:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def alone(survey: tuple[Plan, Path], tmp_path: Path) -> Served:
    """Return a campaign that one client alone asks about."""
    return Served.of(survey[1], 1, f"unix:{tmp_path / 'campaign.sock'}")


def _run(served: Served, *more: str) -> int:
    words = [str(served.place), "--engine", "https", "--listen", served.address, *more]
    return run(["campaign", "run", *words])


def test_a_reload_while_the_process_starts_ends_nothing_and_is_not_lost(
    alone: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(alone, lambda: os.kill(os.getpid(), signal.SIGTERM))

    def hangs_up(*given: Any) -> Any:
        alone.tokens[:] = mint(alone.place, 1, secrets.token_bytes).values()
        beside.start()  # no request has the token of before, which counts in any case
        os.kill(os.getpid(), signal.SIGHUP)
        return hold(*given)

    monkeypatch.setattr("fedtally.campaign.transports.https.process.hold", hangs_up)
    heard: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    try:
        assert _run(alone) == 3
        beside.join()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert heard == [] and set(beside.told) <= {0, 204, 503}


@pytest.mark.promise
@pytest.mark.parametrize("how", [["--log", "info"], ["--log", "off"]])
def test_a_run_that_is_quiet_still_tells_of_problems(
    alone: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], how: Any
) -> None:
    """As the shipped unit runs it: with --log info --quiet."""
    is_full, check, said = threading.Event(), Claim.check, list[str]()

    def checked(claim: Claim) -> None:
        if is_full.is_set():
            raise StoreError("campaign.db failed: database or disk is full")
        check(claim)

    def wait_for(text: str) -> None:
        end = time.monotonic() + 20
        while text not in "".join(said) and time.monotonic() < end:
            said.append(capsys.readouterr().err)
            time.sleep(0.05)
        assert text in "".join(said)

    def act() -> None:
        try:
            (alone.place / "tokens").chmod(0o644)
            os.kill(os.getpid(), signal.SIGHUP)
            wait_for("the tokens were not read again")
            is_full.set()
            wait_for("the store does not answer, and is asked again")
            is_full.clear()
            wait_for("the store answers again")
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Claim, "check", checked)
    beside = Beside(alone, act)
    beside.start()
    assert _run(alone, *how, "--quiet") == 3
    beside.join()
    lines = ("".join(said) + capsys.readouterr().err).splitlines()
    if how == ["--log", "info"]:
        found = [json.loads(line) for line in lines]  # each line is JSON, with a time
        assert all(one["time"].endswith("Z") for one in found)
        first = found.pop(0)
        assert (first["level"], first["event"]) == ("info", "start")
        assert first["version"] == __version__ and str(alone.place) in first["message"]
        assert {(one["level"], one["event"]) for one in found} == {("warning", "warning")}
        lines = [one["message"] for one in found]
    assert [line.split(",")[0] for line in lines] == [
        "the tokens were not read again", "the store does not answer", "the store answers again",
    ]  # fmt: skip
    assert "database or disk is full" in lines[1]


def test_a_run_that_is_drained_never_says_that_the_campaign_is_over(
    alone: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = Beside(alone, lambda: os.kill(os.getpid(), signal.SIGTERM))
    beside.start()
    assert _run(alone) == 3
    beside.join()
    assert set(beside.told) <= {0, 204, 503} and beside.told[-1] == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "drains: no session is opened any more" in said
    assert f"resume {alone.place} --engine https --listen {alone.address} goes on" in said


def test_a_run_that_is_cancelled_says_that_the_campaign_is_over(
    alone: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = Beside(alone, lambda: CampaignFolder.open(alone.place).cancel() and None, 410)
    beside.start()
    assert _run(alone) == 2
    beside.join()
    assert set(beside.told) <= {0, 204, 503, 410} and beside.told[-1] == 410
    said = capsys.readouterr().err
    assert "the campaign was cancelled" in said and "clients hear for 86,400 seconds" in said


def test_a_process_that_says_that_the_campaign_is_over_may_be_restarted(
    alone: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    CampaignFolder.open(alone.place).cancel()
    until = threading.Thread(target=_end_once_told, args=(alone, 410))
    until.start()
    words = ["resume", str(alone.place), "--engine", "https", "--listen", alone.address]
    assert run(["campaign", *words]) == 0
    until.join()
    assert "clients hear for 86,400 seconds" in capsys.readouterr().err
    assert run(["campaign", "resume", str(alone.place), "--agents", str(alone.place)]) == 2
    assert "was cancelled" in capsys.readouterr().err


def _end_once_told(served: Served, status: int) -> None:
    end = time.monotonic() + 20
    while (told := _asked(served)) != status and time.monotonic() < end:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)
    assert told == status


def test_a_run_that_is_not_to_linger_ends_at_once(
    alone: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = Beside(alone, lambda: CampaignFolder.open(alone.place).cancel() and None)
    beside.start()
    assert _run(alone, "--linger", "0") == 2
    beside.join()
    assert set(beside.told) <= {0, 204, 503}
    assert "clients hear for" not in capsys.readouterr().err


def test_a_run_that_is_overtaken_never_says_that_the_campaign_is_over(
    alone: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    def take_over() -> None:
        with hold(CampaignFolder.open(alone.place), True):
            pass

    beside = Beside(alone, take_over)
    beside.start()
    assert _run(alone) == 1
    beside.join()
    assert set(beside.told) <= {0, 204, 503} and beside.told[-1] == 0
    assert "another process runs" in capsys.readouterr().err


def test_a_server_that_fails_ends_the_run(
    alone: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What nobody reaches must not seem to run: who starts it, such as systemd, starts it anew."""

    async def fails(self: Any, sockets: Any = None) -> None:
        raise OSError(24, "too many open files")

    monkeypatch.setattr("uvicorn.Server.serve", fails)
    with pytest.raises(OSError, match="too many open files"):
        Https(Address.parse(alone.address), 0, Tokens).run(
            CampaignFolder.open(alone.place),
            wait=1,
            take_over=False,
            watch=lambda driver: view.Progress(CampaignFolder.open(alone.place), driver, True),
        )


def _told(port: int, path: str, body: bytes = b"", **headers: str) -> int:
    """Return the status of a request, whose length is that of its body if none is given."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"POST {path}/step HTTP/1.1", "host: here", "connection: close"]
    lines += [f"{name}: {value}" for name, value in named.items() if value]
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stream:
        stream.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        stream.shutdown(socket.SHUT_WR) if body else None
        return int(stream.makefile("rb").readline().split()[1])


@slowly
def test_a_real_server_refuses_bad_requests_and_sums_the_honest_rest(
    survey: tuple[Plan, Path], tmp_path: Path
) -> None:
    plan, place = survey
    port = free_ports(1)[0]
    served = Served.of(place, N, f"127.0.0.1:{port}")
    [revoked] = mint(place, 1, secrets.token_bytes).values()
    persons = [Person(plan, number) for number in range(N)]
    most = plan.secure_sum.upload_bytes  # type: ignore[union-attr]
    left: list[int] = []

    def named(token: str, length: object = 0) -> dict[str, str]:
        return {"authorization": f"Bearer {token}", "content_length": str(length)}

    def bad() -> list[int]:
        """Return what bad requests are told, in the middle of a session."""
        mine, path = served.tokens[0], served.path
        another = path.replace(plan.fingerprint, 64 * "0")
        return [
            _told(port, path, content_length="0"),
            _told(port, path, **named("of-another-campaign")),
            _told(port, path, **named(revoked)),
            _told(port, another, **named(mine)),
            _told(port, path, authorization=f"Bearer {mine}"),
            _told(port, path, **named(mine, most + 1)),
        ]

    async def hook(frame: bytes) -> None:
        message = wire.parse(frame)
        if message is None or message.kind is not Kind.INBOX or left:
            return
        left.append(1)
        lines = (place / "tokens").read_text().splitlines(keepends=True)
        digests = "".join(line for line in lines if digest_of(revoked) not in line)
        assert len(digests.splitlines()) == len(lines) - 1
        (place / "tokens").write_text(digests)
        assert served.process is not None
        served.process.send_signal(signal.SIGHUP)
        for _ in range(200):  # until it has read them
            if await asyncio.to_thread(_told, port, served.path, **named(revoked)) == 401:
                break
            await asyncio.sleep(0.05)
        left[:] = await asyncio.to_thread(bad)
        # a file that is cut off keeps the tokens of before: all clients of the session go on
        lines = digests.splitlines(keepends=True)
        twice = "".join([*lines[:-1], lines[0], lines[-1]])
        for text, mode in ((digests[:50], 0o600), (twice, 0o600), (digests, 0o644)):
            (place / "tokens").write_text(text)
            (place / "tokens").chmod(mode)
            said = served.said().count("the tokens were not read again")
            served.process.send_signal(signal.SIGHUP)
            for _ in range(200):
                if served.said().count("the tokens were not read again") > said:
                    break
                await asyncio.sleep(0.05)
        stray = {"authorization": f"Bearer {served.tokens[1]}"}
        async with httpx.AsyncClient() as http:
            for body in (b"garbage", frame, bytes(most)):
                url = f"http://127.0.0.1:{port}{served.path}/step"
                got = await http.post(url, content=body, headers=stray)
                assert got.status_code in (200, 204)

    async def all_join() -> list[Over]:
        url = f"http://127.0.0.1:{port}{served.path}"
        async with asyncio.timeout(200):
            return await asyncio.gather(
                *(joined(url, served.tokens[one.number], one, hook=hook) for one in persons)
            )

    with served:
        served.begin("--linger", "60")
        assert asyncio.run(all_join()) == [Over.CAMPAIGN] * N
    assert left == [401, 401, 401, 404, 411, 413]
    said = served.said()
    assert said.count("the tokens were not read again") == 3
    assert "Traceback" not in said
    check_sum(place, persons)


class _Portal:
    """A captive portal before a server: it answers by itself, and later lets all through.

    Args:
        port: of the server.
        elsewhere: the address to which it redirects.

    Attributes:
        left: what it still says by itself, the next one last.
        bodies: what went through to the server, by the token that brought it.
    """

    def __init__(self, port: int, elsewhere: str) -> None:
        page = b"<p>log in to this network"
        types = "content-type: text/html", "content-type: application/json"
        self.left = [
            self._said(status, more, page)
            for status in ("200 OK", "302 Found", "407 Proxy", "511 Network")
            for more in (*types, f"location: {elsewhere}")
        ]
        self.bodies: dict[str, list[bytes]] = {}
        self._port = port

    @staticmethod
    def _said(status: str, header: str, page: bytes) -> bytes:
        head = f"HTTP/1.1 {status}\r\n{header}\r\ncontent-length: {len(page)}\r\n\r\n"
        return head.encode() + page

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                named = dict(
                    line.split(": ", 1)
                    for line in head.decode().lower().splitlines()
                    if ": " in line
                )
                body = await reader.readexactly(int(named["content-length"]))
                writer.write(self.left.pop() if self.left else await self._through(head, body))
                await writer.drain()
        writer.close()

    async def _through(self, head: bytes, body: bytes) -> bytes:
        token = head.decode().lower().partition("bearer ")[2].split()[0]
        if body:
            self.bodies.setdefault(token, []).append(body)
        head = head.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(head.replace(b"connection: keep-alive\r\n", b"") + body)
        heard = await reader.read()
        writer.close()
        return heard.replace(b"connection: close\r\n", b"", 1)


@slowly
def test_portals_repeated_frames_and_two_machines_with_a_token_change_no_sum(
    survey: tuple[Plan, Path],
) -> None:
    """Each answer comes twice, with all earlier ones in reverse, by its client and by another."""
    plan, place = survey
    port, before, aside = free_ports(3)
    served = Served.of(place, N, f"127.0.0.1:{port}")
    persons = [Person(plan, number) for number in range(N)]
    portal, statuses = _Portal(port, f"http://127.0.0.1:{aside}/login"), set[int]()
    led: list[Any] = []

    async def hook(frame: bytes) -> None:
        assert wire.parse(frame) is not None, "a page was read as a frame"

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        led.append(writer.close())

    async def stray() -> None:
        """Repeat what went through."""
        seen = Counter[str]()
        async with httpx.AsyncClient(timeout=30) as http:
            while True:
                await asyncio.sleep(0.05)
                for number, token in enumerate(served.tokens):
                    bodies = portal.bodies.get(token.lower(), [])
                    if len(bodies) == seen[token]:
                        continue
                    seen[token] = len(bodies)
                    for body in [bodies[-1], *bodies[::-1]]:
                        for who in (token, served.tokens[(number + 1) % N]):
                            named = {"authorization": f"Bearer {who}", HANDLED: "00"}
                            url = f"http://127.0.0.1:{port}{served.path}/step"
                            with suppress(httpx.TransportError):  # the end of the server
                                got = await http.post(url, content=body, headers=named)
                                statuses.add(got.status_code)

    async def half() -> None:
        """Hang up in the middle of an answer."""
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {served.path}/step HTTP/1.1\r\nhost: here\r\ncontent-length: 90\r\n"
        writer.write(f"{head}authorization: Bearer {served.tokens[0]}\r\n\r\nhalf".encode())
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.transport.abort()

    async def all_join() -> list[Over]:
        url = f"http://127.0.0.1:{before}{served.path}"
        async with (
            asyncio.timeout(200),
            await asyncio.start_server(portal.handle, "127.0.0.1", before),
            await asyncio.start_server(lead, "127.0.0.1", aside),
        ):
            while not _listens(port):
                await asyncio.sleep(0.05)
            strays = asyncio.create_task(stray())
            await half()
            overs = await asyncio.gather(
                # the first client is two machines, with one agent behind them
                *(
                    joined(url, served.tokens[one.number], one, hook=hook)
                    for one in [persons[0], *persons]
                )
            )
            strays.cancel()
            return overs

    with served:
        served.begin("--linger", "60")
        assert asyncio.run(all_join()) == [Over.CAMPAIGN] * (N + 1)
    assert not portal.left and not led
    assert {200, 204} <= statuses <= {200, 204, 410, 503}
    assert "Traceback" not in served.said()
    check_sum(place, persons)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


# ---- a client by its command ----


def test_a_client_whose_token_does_not_count_ends_and_says_so(
    alone: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_ports(1)[0]
    served = Served(alone.place, alone.tokens, f"127.0.0.1:{port}")
    token = tmp_path / "no.token"
    token.write_text("another")
    token.chmod(0o600)
    words = ["--url", f"http://127.0.0.1:{port}{served.path}", "--token-file", str(token)]
    with served:
        served.begin()
        assert run(["agent", "join", *words, "--socket", str(tmp_path / "none")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the server takes this token no more" in said and "asks again" in said
    assert "has not read it yet" in said and "start this again" in said


def test_a_client_ends_when_it_is_told_to(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "a.token").write_text("token")
    (tmp_path / "a.token").chmod(0o600)
    words = ["--url", f"http://127.0.0.1:{free_ports(1)[0]}/v1/campaigns/{64 * 'a'}"]
    words += ["--token-file", str(tmp_path / "a.token"), "--socket", str(tmp_path / "none")]
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert run(["agent", "join", *words]) == 0
    said = capsys.readouterr().err
    assert "the server cannot be reached" in said and said.endswith("stopped\n")


def test_a_killed_container_goes_on_by_its_own_command_and_says_that_it_is_healthy(
    survey: tuple[Plan, Path], tmp_path: Path
) -> None:
    """The entry and the health check of deploy/Containerfile, with another folder of sockets."""
    place, sockets = survey[1], tmp_path / "sockets"
    sockets.mkdir()
    mint(place, 1, secrets.token_bytes)
    for name in ("serve.sh", "healthy.py"):
        text = (Path(__file__).parents[2] / "deploy" / name).read_text()
        (tmp_path / name).write_text(text.replace("/run/fedtally", str(sockets)))
    (tmp_path / "fedtally").write_text(f'#!/bin/sh\nexec {sys.executable} -m fedtally "$@"\n')
    (tmp_path / "fedtally").chmod(0o755)
    env = os.environ | {"CAMPAIGN": "survey", "PATH": f"{tmp_path}:{os.environ['PATH']}"}

    def is_healthy() -> bool:
        check = [sys.executable, str(tmp_path / "healthy.py")]
        return not subprocess.run(check, env=env, capture_output=True).returncode

    assert not is_healthy()
    for _ in range(2):  # the second one finds what the first one left, sockets and all
        entry = ["sh", str(tmp_path / "serve.sh")]
        process = subprocess.Popen(entry, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
        try:
            end = time.monotonic() + 60
            while not is_healthy():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end
                time.sleep(0.1)
        finally:
            process.kill()
            process.communicate()
        assert not is_healthy()
    assert CampaignFolder.open(place).stage() == "stopped"
