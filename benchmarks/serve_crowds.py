"""What crowds of connections cost a campaign over HTTPS, through the documented nginx with TLS.

Connections that are silent, or that stop in a request, must be closed while a round lands, however
often they come again. Clients that are in no session must be able to ask and stay connected
within a bound of memory.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.behind_nginx import certificate, nginx
from benchmarks.deploy import plan_of
from benchmarks.federation import free_ports
from benchmarks.measure import Goal, Report, peak_memory
from benchmarks.serve import Device, folder_of, joined, started
from fedtally.answer.result import Result
from fedtally.campaign.folder import RESULT, CampaignFolder
from fedtally.campaign.transports.https.join import Over
from fedtally.campaign.transports.https.listen import new_event_loop
from fedtally.campaign.transports.https.proxy import SLOW_SECONDS, Backend
from fedtally.campaign.transports.https.resource import step_path
from fedtally.campaign.transports.https.tokens import mint

CLIENTS = 50  # of the round that lands meanwhile
LATE = 10  # seconds after nginx's limit, in which this busy process sees that it was closed
_AT_ONCE = 64  # connections that are being opened
_THREADS = 16
_TIMES = 2  # that each client in no session asks, on one connection


@dataclass(frozen=True)
class Site:
    """A campaign that is served.

    Args:
        folder: its folder.
        place: the folder of all files.
        port: of nginx on this machine.
        tokens: of its clients.
        processes: of the campaign and of nginx.
    """

    folder: CampaignFolder
    place: Path
    port: int
    tokens: Sequence[str]
    processes: Sequence[subprocess.Popen[bytes]]

    @property
    def url(self) -> str:
        """The address of the campaign."""
        path = step_path(self.folder.plan.fingerprint).removesuffix("/step")
        return f"https://localhost:{self.port}{path}"

    def tls(self) -> ssl.SSLContext:
        """Return what believes this nginx."""
        return ssl.create_default_context(cafile=str(self.place / "tls.crt"))

    def head(self, token: str, length: int) -> bytes:
        """Return the head of a request."""
        path = step_path(self.folder.plan.fingerprint)
        return (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Length: {length}\r\n\r\n"
        ).encode()


@contextmanager
def served(clients: int, tokens: int) -> Iterator[Site]:
    """Serve a campaign that is planned for a number of clients, some of whom have tokens."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder_of(place, plan_of(clients, 1))
        minted = list(mint(folder.path, tokens, secrets.token_bytes).values())
        [port], _ = free_ports(1), certificate(place)
        address = place / "c.sock"
        proxy = stack.enter_context(nginx(place, Backend.of(folder, address), port))
        process = started(folder, "--engine", "https", "--listen", f"unix:{address}")
        try:
            while not address.exists():
                time.sleep(0.05)
            yield Site(folder, place, port, minted, (process, proxy))
        finally:
            process.kill()
            process.wait()


async def _until_closed(
    site: Site, tls: ssl.SSLContext, start: bytes | None, room: asyncio.Semaphore
) -> float:
    """Say the start of a request, and nothing more; return the seconds until it was hung up on.

    Args:
        site: where.
        tls: what believes it.
        start: the bytes; None: not even TLS is spoken.
        room: for connections that are being opened.
    """
    async with room:
        reader, writer = await asyncio.open_connection(
            "localhost", site.port, ssl=None if start is None else tls
        )
        writer.write(start or b"")
        began = time.monotonic()
    with suppress(ConnectionError):  # then it is closed, too
        await reader.read(1 << 16)
    writer.close()
    return time.monotonic() - began


async def _again_and_again(
    site: Site,
    tls: ssl.SSLContext,
    start: bytes | None,
    room: asyncio.Semaphore,
    is_over: asyncio.Event,
) -> list[float]:
    """Connect again whenever nginx hung up, until all is over; return the seconds of each time."""
    seconds = []
    while not is_over.is_set():
        seconds.append(await _until_closed(site, tls, start, room))
    return seconds


async def _beside(site: Site, count: int) -> tuple[list[list[float]], list[Over]]:
    """Keep silent and half-sent connections open until a round has landed."""
    starts = [(None, b"")[n % 2] for n in range(count)]
    # each with a token of its own: nginx would send them away at once, if they shared one
    bodies = (site.head(f"of-nobody-{n}", 100) + bytes(10) for n in range(count))
    starts += [body[:30] if n % 3 == 0 else body for n, body in enumerate(bodies)]
    room, is_over = asyncio.Semaphore(_AT_ONCE), asyncio.Event()
    devices = [Device(site.folder.plan, number) for number in range(CLIENTS)]
    ca = site.place / "tls.crt"
    honest = [
        joined(site.url, token, device, ca)
        for token, device in zip(site.tokens, devices, strict=True)
    ]
    async with asyncio.timeout(500), asyncio.TaskGroup() as group:
        tls = site.tls()
        crowd = [
            group.create_task(_again_and_again(site, tls, start, room, is_over)) for start in starts
        ]
        overs = await asyncio.gather(*honest)
        is_over.set()
    [sketch] = Result.load(site.folder.path / RESULT).sketches
    sent = [vector for device in devices for vector in device.sent.values()]
    assert sketch.num_clients == len(sent) == CLIENTS, "a client was lost"
    assert (sketch.vector == np.sum(sent, axis=0)).all(), "the sum is not the plain one"
    return [await one for one in crowd], overs


def silent(report: Report, count: int) -> None:
    """Measure how long connections stay that are silent, or half-sent."""
    with served(CLIENTS, CLIENTS) as site:
        began = time.monotonic()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            crowd, overs = runner.run(_beside(site, count))
        assert set(overs) == {Over.CAMPAIGN}, "a client stopped asking"
    closed = list(chain.from_iterable(crowd))
    name = f"{count:,} silent and {count:,} half-sent connections: the last one is closed after"
    report.goals.append(Goal(name, max(closed), SLOW_SECONDS + LATE, " s", at_most=True))
    report.notes.append(
        f"nginx hangs up after {SLOW_SECONDS} s; the median was {float(np.median(closed)):.1f} s"
    )
    report.notes.append(
        f"each came again at once, {min(map(len, crowd))} times or more, until a round of"
        f" {CLIENTS} had landed after {time.monotonic() - began:.0f} s"
    )


class _Client:
    """A client in no session, which stays connected until nginx hangs up."""

    def __init__(self, site: Site, token: str, context: ssl.SSLContext) -> None:
        self._site, self._context, self.stream = site, context, self._open(site, context)
        self._request = site.head(token, 0)

    @staticmethod
    def _open(site: Site, context: ssl.SSLContext) -> ssl.SSLSocket:
        plain = socket.create_connection(("localhost", site.port), timeout=120)
        return context.wrap_socket(plain, server_hostname="localhost")

    def ask(self) -> None:
        """Ask once, on a new connection if the last one was closed."""
        said = self._said() or self._again()
        assert said.startswith(b"HTTP/1.1 204 "), said

    def _again(self) -> bytes:
        self.stream.close()
        self.stream = self._open(self._site, self._context)
        return self._said()

    def _said(self) -> bytes:
        said = b""
        try:
            self.stream.sendall(self._request)
            while b"\r\n\r\n" not in said and (more := self.stream.recv(1 << 12)):
                said += more
        except ConnectionError:
            return b""
        return said


def _asked(site: Site, tokens: Sequence[str], context: ssl.SSLContext) -> list[_Client]:
    """Let some clients ask one after the other, and then again."""
    clients = []
    for token in tokens:
        clients.append(_Client(site, token, context))
        clients[-1].ask()  # at once: nginx hangs up on who is silent
    for _ in range(_TIMES - 1):
        for client in clients:
            client.ask()
    return clients


def polls(report: Report, count: int) -> None:
    """Measure the memory of a server whom clients ask that are not drawn, and stay connected."""
    with served(2 * count, count) as site, ThreadPoolExecutor(_THREADS) as pool:
        context, began = site.tls(), time.monotonic()
        parts = [site.tokens[number::_THREADS] for number in range(_THREADS)]
        asked = pool.map(lambda tokens: _asked(site, tokens, context), parts)
        clients = list(chain.from_iterable(asked))
        campaign, proxy = (peak_memory(process.pid) for process in site.processes)
        is_open = len(os.listdir(f"/proc/{site.processes[1].pid}/fd"))
        for client in clients:
            client.stream.close()
    name = f"{count:,} clients that are not drawn: memory of the server and of nginx"
    report.goals.append(Goal(name, (campaign + proxy) / 1000, 1, " GB", at_most=True))
    report.notes.append(
        f"of it {campaign:.0f} MB the server, and {proxy:.0f} MB nginx with {is_open:,} open files;"
        f" {_TIMES * count / (time.monotonic() - began):.0f} requests a second"
    )


def measure(report: Report, quick: bool) -> None:
    """Measure both crowds."""
    silent(report, 30 if quick else 1_000)
    polls(report, 50 if quick else 10_000)
