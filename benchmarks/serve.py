"""A campaign over HTTPS beside one on Unix sockets: the CPU of a client's part in a round.

Each server is a process as operators run it; the clients are simulated in this process. Two rounds
of different sizes tell the price of a client: their difference holds no start of a process.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import httpx

from benchmarks.behind_nginx import certificate, nginx
from benchmarks.deploy import DOMAIN, KEY, plan_of
from benchmarks.federation import free_ports
from benchmarks.measure import Goal, Report, cpu_of, machine
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.driver import Deadlines
from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.https.carry import tls
from fedtally.campaign.transports.https.join import TIMEOUT, Over, join
from fedtally.campaign.transports.https.proxy import Backend
from fedtally.campaign.transports.https.resource import step_path
from fedtally.campaign.transports.https.tokens import mint
from fedtally.campaign.transports.pipe import PipeError, read_frame, write_frame
from fedtally.crypto.keys import SigningKey
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal, read_invite
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import Kind
from fedtally.secagg.params import Adversary, ClientPolicy

# The least of `python -m benchmarks deploy --part flower`: CPU seconds of all processes in a
# client-round, of 3 semi-honest nodes.
FLOWER_SECONDS = 9.7
DEADLINES = Deadlines(gather=2, phase=60, session=3600)
MOST = 1 << 24
KINDS = {  # of the plans of `--crashes`: against whom they protect, and who adds noise
    "semi-honest": ("semi-honest", None),
    "semi-honest, distributed": ("semi-honest", "distributed"),
    "active": ("active", None),
    "active, distributed": ("active", "distributed"),
}


@dataclass
class Device:
    """A client that answers frames, and keeps what it contributed."""

    plan: Plan
    number: int
    identity: SigningKey | None = None
    allow_list: AllowList | None = None
    sent: dict[bytes, Any] = field(default_factory=dict)
    sessions: dict[bytes, Client] = field(default_factory=dict)
    journal: MemoryJournal = field(default_factory=MemoryJournal)

    def answer(self, frame: bytes) -> bytes:
        """Return the answer to a frame; empty: there is none."""
        message = wire.parse(frame)
        if message is None:
            return b""
        if message.kind is Kind.INVITE and message.session not in self.sessions:
            self.sessions[message.session] = self._join(frame, message.session)
        client = self.sessions.get(message.session)
        return b"" if client is None else client.receive(frame, int(time.time())) or b""

    def _join(self, frame: bytes, session: bytes) -> Client:
        assert isinstance(self.plan.secure_sum, SecAggConfig)
        fingerprint = bytes.fromhex(self.plan.fingerprint)
        found = read_invite(frame, server_key=KEY.public, fingerprint=fingerprint)
        assert found is not None
        client = FrequencyClient(self.plan, DOMAIN, [1 + self.number])
        contribution = client.contribution

        def noted(round: int, random: Any = None) -> Any:
            vector = contribution(round, random)
            self.sent[session] = vector.copy()
            return vector

        client.contribution = noted  # type: ignore[method-assign]
        adversary = self.plan.secure_sum.parameters.adversary
        return client.join(
            found.round,
            ClientPolicy(adversary=Adversary(adversary), min_honest=2),
            journal=self.journal,
            random=secrets.token_bytes,
            identity=self.identity,
            allow_list=self.allow_list,
        )


def folder_of(place: Path, plan: Plan, **more: Any) -> CampaignFolder:
    """Return the folder of a campaign, in a folder of its own."""
    create_key_files(place / "server.key", "server", lambda size: bytes(range(size)))
    plan.save(place / "plan.toml")
    return CampaignFolder.create(
        place / "campaign",
        place / "plan.toml",
        server_key=place / "server.key",
        mark=place / "mark",
        **({"deadlines": DEADLINES} | more),
    )


def started(folder: CampaignFolder, *options: str) -> subprocess.Popen[bytes]:
    """Start the server of a campaign as operators do."""
    verb = "resume" if folder.has_begun else "run"
    words = ["campaign", verb, str(folder.path), *options, "--quiet"]
    return subprocess.Popen([sys.executable, "-m", "fedtally", *words], stdout=subprocess.DEVNULL)


async def joined(
    url: str,
    token: str,
    device: Any,
    ca: Path | None = None,
    hook: Callable[[bytes], Awaitable[None]] | None = None,
    socket: str | None = None,
) -> Over:
    """Let a device take part until it hears that the campaign is over; `hook` sees frames first."""

    async def answer(frame: bytes) -> bytes:
        if hook is not None:
            await hook(frame)
        return device.answer(frame) or b""

    transport = httpx.AsyncHTTPTransport(verify=tls(ca), uds=socket)
    async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT) as http:
        return await join(
            http,
            url,
            token,
            answer,
            clock=time.time,
            sleep=asyncio.sleep,
            random=secrets.SystemRandom().random,
            tell=lambda text: None,
        )


class Spent(NamedTuple):
    """CPU seconds of a round."""

    server: float
    proxy: float
    clients: float


async def _until_exit(process: subprocess.Popen[bytes], tasks: list[Any]) -> float:
    """Return the CPU seconds of a process once it has ended, and end the clients."""
    code, usage = await asyncio.to_thread(lambda: os.wait4(process.pid, 0)[1:])
    process.returncode = os.waitstatus_to_exitcode(code)
    assert process.returncode == 0, "the campaign did not land"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return float(usage.ru_utime + usage.ru_stime)


async def over_https(place: Path, clients: int) -> Spent:
    """Return what a round over HTTPS costs, through nginx with TLS."""
    plan = plan_of(clients, 1)
    folder = folder_of(place, plan)
    tokens = list(mint(folder.path, clients, secrets.token_bytes).values())
    [port], ca = free_ports(1), certificate(place)
    with nginx(place, Backend.of(folder, place / "c.sock"), port) as proxy:
        options = ("--engine", "https", "--listen", f"unix:{place / 'c.sock'}", "--linger", "0")
        process = started(folder, *options)
        while not (place / "c.sock").exists():
            await asyncio.sleep(0.05)
        before, proxied = time.process_time(), cpu_of(proxy.pid)
        url = f"https://localhost:{port}{step_path(plan.fingerprint).removesuffix('/step')}"
        tasks = [
            asyncio.create_task(joined(url, token, Device(plan, number), ca))
            for number, token in enumerate(tokens)
        ]
        server = await _until_exit(process, tasks)
        return Spent(server, cpu_of(proxy.pid) - proxied, time.process_time() - before)


async def over_sockets(place: Path, clients: int) -> Spent:
    """Return what a round on Unix sockets costs."""
    plan = plan_of(clients, 1)
    folder, sockets = folder_of(place, plan), place / "sockets"
    sockets.mkdir(mode=0o750)

    async def serve(device: Device) -> Any:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(PipeError, asyncio.CancelledError):
                while True:
                    await write_frame(writer, device.answer(await read_frame(reader, MOST)))
            writer.close()

        return await asyncio.start_unix_server(handle, sockets / f"c{device.number}.sock")

    async with AsyncExitStack() as stack:
        before = time.process_time()
        for number in range(clients):
            await stack.enter_async_context(await serve(Device(plan, number)))
        process = started(folder, "--agents", str(sockets))
        server = await _until_exit(process, [])
        return Spent(server, 0.0, time.process_time() - before)


def size_of(answer: httpx.Response) -> int:
    """Return the bytes of a request and its answer over HTTP/1.1, without TLS."""
    asked = answer.request
    lines = (
        f"{asked.method} {asked.url.raw_path.decode()} HTTP/1.1",
        f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}",
    )
    held = [*asked.headers.raw, *answer.headers.raw]
    # A header has ": " between its parts. Each line has an end of two bytes, as each head has.
    heads = sum(len(name) + len(value) + 4 for name, value in held) + sum(map(len, lines)) + 8
    return heads + len(asked.content) + len(answer.content)


async def polled(place: Path, times: int) -> tuple[float, int]:
    """Return what a poll of a client in no session costs, on one connection.

    Returns:
        CPU seconds of the server, and bytes both ways, without TLS.
    """
    folder = folder_of(place, plan_of(20, 1))
    [token] = mint(folder.path, 1, secrets.token_bytes).values()
    process = started(folder, "--engine", "https", "--listen", f"unix:{place / 'c.sock'}")
    try:
        while not (place / "c.sock").exists():
            await asyncio.sleep(0.05)
        transport = httpx.AsyncHTTPTransport(uds=str(place / "c.sock"))
        async with httpx.AsyncClient(transport=transport, timeout=TIMEOUT) as http:
            url = f"http://here{step_path(folder.plan.fingerprint)}"
            named = {"authorization": f"Bearer {token}"}
            for number in range(times + 50):
                if number == 50:  # the first ones import and warm up
                    before = cpu_of(process.pid)
                answer = await http.post(url, headers=named)
                assert answer.status_code in (204, 503)
            return (cpu_of(process.pid) - before) / times, size_of(answer)
    finally:
        process.kill()
        process.wait()


def _marginal(carry: Any, few: int, many: int) -> Spent:
    """Return what one more client costs."""
    found = []
    for clients in (few, many):
        with tempfile.TemporaryDirectory() as place:
            found.append(asyncio.run(carry(Path(place), clients)))
    return Spent(*((b - a) / (many - few) for a, b in zip(*found, strict=True)))


def measure(report: Report, quick: bool) -> None:
    """Measure a client's part in a round, and a poll."""
    few, many, times = (10, 20, 200) if quick else (20, 220, 5000)
    https, sockets = _marginal(over_https, few, many), _marginal(over_sockets, few, many)
    with tempfile.TemporaryDirectory() as place:
        poll, size = asyncio.run(polled(Path(place), times))
    name = "server's CPU of a client-round: https / sockets"
    report.goals += [
        Goal(name, https.server / sockets.server, 4, "x", at_most=True),
        Goal(
            "all processes' CPU of a client-round: Flower's / https",
            FLOWER_SECONDS / sum(https),
            150,
            "x",
        ),
        Goal(
            "CPU of a poll in no session / of a client-round",
            poll / https.server,
            1 / 8,
            at_most=True,
        ),
    ]
    report.notes.append(
        f"a client-round over HTTPS, ms of CPU: {https.server * 1e3:.2f} the server,"
        f" {https.proxy * 1e3:.2f} nginx with TLS, {https.clients * 1e3:.2f} the client; on Unix"
        f" sockets: {sockets.server * 1e3:.2f} the server, {sockets.clients * 1e3:.2f} the client"
    )
    report.notes.append(
        f"a poll of a client in no session: {poll * 1e3:.3f} ms of CPU, {size:,} bytes without TLS"
    )


@click.command("serve")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Small and few, to see that it runs: judges nothing.")
@click.option("--crashes", is_flag=True, help="Kill servers at every call of the store instead.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(list(KINDS)),
    help="With --crashes: these plans alone; may be repeated.",
)
@click.option("--crowds", is_flag=True, help="Measure what crowds of connections cost instead.")
def command(
    as_json: bool, quick: bool, crashes: bool, kinds: tuple[str, ...], crowds: bool
) -> None:
    """Measure a campaign over HTTPS, or look whether a crash loses anybody."""
    if crashes:
        from benchmarks import serve_crashes

        serve_crashes.run(kinds or tuple(KINDS), quick)
        return
    report = Report(machine(), judges=not quick)
    if crowds:
        from benchmarks import serve_crowds

        serve_crowds.measure(report, quick)
    else:
        measure(report, quick)
    report.emit(as_json)
