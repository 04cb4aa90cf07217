"""nginx with the conf that `fedtally campaign nginx` prints, before a process that only answers."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from benchmarks.behind_nginx import NGINX, certificate, front, running, whole
from benchmarks.federation import free_ports

from fedtally.campaign.transports.https import proxy
from fedtally.campaign.transports.https.proxy import Backend, DapBackend, Reports, conf
from fedtally.campaign.transports.https.resource import release_path, step_path

pytestmark = pytest.mark.skipif(
    not (NGINX and shutil.which("openssl")), reason="needs nginx and openssl"
)
RUNS, OVER, MOST = "ab" * 32, "cd" * 32, 5000
SILENT = 200
HELD = 5  # connections that an address may hold, where that is bounded
ASKED = 8  # requests that an address may send at once, where that is bounded


@dataclass
class Site:
    """An nginx that runs, and a process behind it.

    Args:
        port: its port on this machine.
        folder: its files.
        took: the bodies and heads that the process got.
    """

    port: int
    folder: Path
    took: list[tuple[bytes, bytes]]

    async def connect(
        self, address: str | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection with TLS, from an address of this machine."""
        context = ssl.create_default_context(cafile=str(self.folder / "tls.crt"))
        return await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, local_addr=address and (address, 0)
        )

    async def answer(
        self, head: str, body: bytes = b"", address: str | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of an answer."""
        reader, writer = await self.connect(address)
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        heard = await reader.read()
        writer.close()
        status, _, rest = heard.partition(b"\r\n")
        return int(status.split()[1]), rest.partition(b"\r\n\r\n")[2]


def _of_addresses(folder: Path) -> str:
    """Write the file by which operators may bound what an address takes, with lower bounds.

    Return the other file, which has the zones.
    """
    page = (Path(__file__).parents[2] / "docs" / "troubleshooting.md").read_text()
    zones, bounds = (
        re.findall(rf"```nginx\n({first} .*?)```", page, re.DOTALL)
        for first in ("limit_conn_zone", "limit_conn")
    )
    [text] = bounds
    for said, lower in ((" 200;", f" {HELD};"), ("burst=200 ", f"burst={ASKED} ")):
        assert text.count(said) == 1
        text = text.replace(said, lower)
    (folder / "fedtally-limits").mkdir()
    (folder / "fedtally-limits" / "addresses.conf").write_text(text)
    [found] = zones
    assert found.count("rate=50r/s") == 1
    return str(found).replace("rate=50r/s", "rate=1r/m")


@pytest.fixture(params=[False], ids=[""])
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Site]:
    monkeypatch.setattr(proxy, "SLOW_SECONDS", 2)  # the test has not 10 seconds
    [port] = free_ports(1)
    certificate(tmp_path)
    backends = [
        Backend("runs", RUNS, tmp_path / "runs.sock", 100, MOST, 5),
        Backend("over", OVER, None, 100, MOST, 5),
    ]
    addresses = _of_addresses(tmp_path) if request.param else ""
    place = whole(tmp_path, addresses + conf(backends, front(tmp_path, port)))
    checked = subprocess.run([str(NGINX), "-t", "-c", place], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    assert "[warn]" not in checked.stderr
    with subprocess.Popen([str(NGINX), "-c", place, "-g", "daemon off;"]) as process:
        try:
            yield Site(port, tmp_path, [])
        finally:
            process.terminate()


async def answering(site: Site) -> asyncio.Server:
    """Serve what nginx hands on, and note it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        (length,) = (int(x.split()[1]) for x in head.split(b"\r\n") if b"-Length" in x)
        site.took.append((head, await reader.readexactly(length)))
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nframe")
        await writer.drain()
        writer.close()

    return await asyncio.start_unix_server(serve, site.folder / "runs.sock")


async def begun(site: Site) -> None:
    """Wait until nginx answers."""
    for _ in range(200):
        try:
            (await site.connect())[1].close()
            return
        except OSError:
            await asyncio.sleep(0.05)
    raise AssertionError((site.folder / "main.log").read_text())


def post(path: str, length: int, token: str = "Bearer t") -> str:
    return (
        f"POST {path} HTTP/1.1\nHost: localhost\nConnection: close\nAuthorization: {token}\n"
        f"Content-Length: {length}"
    )


def test_each_request_has_the_answer_that_the_page_says(site: Site) -> None:
    async def check() -> None:
        async with await answering(site):
            await begun(site)
            path = step_path(RUNS)
            assert await site.answer(post(path, MOST), bytes(MOST)) == (200, b"frame")
            assert (await site.answer(post(path, MOST + 1), bytes(MOST + 1)))[0] == 413
            assert (await site.answer(post(step_path(OVER), 0)))[0] == 410
            for other in (step_path("ef" * 32), "/metrics", "/v1/campaigns/", path + "/x"):
                assert (await site.answer(post(other, 0)))[0] == 404
            head, body = site.took[0]
            assert body == bytes(MOST) and b"Authorization: Bearer t" in head
            assert len(site.took) == 1
            # one token is asked to wait, and others are not
            found = [(await site.answer(post(path, 0)))[0] for _ in range(proxy.BURST + 10)]
            assert found.count(200) >= proxy.BURST - 2 and 429 in found
            assert (await site.answer(post(path, 0, "Bearer u")))[0] == 200
        # a process that is not there: 502, and never 410
        (site.folder / "runs.sock").unlink()
        assert (await site.answer(post(path, 0, "Bearer v")))[0] == 502
        files = [one for one in site.folder.iterdir() if one.suffix == ".log"]
        assert not any("127.0.0.1" in one.read_text() for one in files)

    asyncio.run(check())


def test_silent_and_half_sent_connections_are_closed_while_others_are_served(site: Site) -> None:
    async def check() -> None:
        async with await answering(site):
            await begun(site)
            head = post(step_path(RUNS), 100).replace("\n", "\r\n").encode()
            starts = (b"", head[:30], head + b"\r\n\r\n" + bytes(10))
            opened = [await site.connect() for _ in range(SILENT)]
            for number, (_, writer) in enumerate(opened):
                writer.write(starts[number % 3])
            began = time.monotonic()
            answered = await site.answer(post(step_path(RUNS), 0, "Bearer u"))
            ended = await asyncio.gather(
                *(asyncio.wait_for(one.read(), 60) for one, _ in opened), return_exceptions=True
            )
            assert answered == (200, b"frame")
            # 408 or a connection that is cut: nobody was handed on, and nobody waits for ever
            assert not any(isinstance(one, TimeoutError) for one in ended)
            assert time.monotonic() - began < 50
            assert all(body == b"" for _, body in site.took)
            for _, writer in opened:
                writer.close()

    asyncio.run(check())


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of this machine")
@pytest.mark.parametrize("site", [True], indirect=True, ids=["by address"])
def test_slow_bodies_of_one_address_take_no_place_of_others(site: Site) -> None:
    """Bodies of which a byte comes now and then, as the page of serving bounds them."""

    async def check() -> None:
        async with await answering(site):
            await begun(site)
            head = post(step_path(RUNS), 100).replace("\n", "\r\n").encode()
            slow = [await site.connect() for _ in range(HELD)]
            for number, (_, writer) in enumerate(slow):
                token = b"Bearer %d" % number  # each has a share of its own
                writer.write(head.replace(b"Bearer t", token) + b"\r\n\r\n" + bytes(1))
            for _ in range(3):  # longer than nginx waits for the next byte
                await asyncio.sleep(1)
                for _, writer in slow:
                    writer.write(bytes(1))
            assert (await site.answer(post(step_path(RUNS), 0)))[0] == 429
            found = await site.answer(post(step_path(RUNS), 0), address="127.0.0.2")
            assert found == (200, b"frame")
            assert all(body == b"" for _, body in site.took)
            assert not any(reader.at_eof() for reader, _ in slow)
            for _, writer in slow:
                writer.transport.abort()

    asyncio.run(check())


@pytest.mark.skipif(not shutil.which("ss"), reason="needs ss, which tells the length of a queue")
def test_a_longer_queue_stands_in_a_file_of_its_own(tmp_path: Path) -> None:
    """The page's server takes no request, also none without a host name, and changes the queue."""
    [port] = free_ports(1)
    certificate(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    [queue] = re.findall(r"```nginx\n(server \{\n  listen 443 ssl backlog.*?)```", page, re.DOTALL)
    of_host = front(tmp_path, port)
    texts = [
        conf([Backend("over", OVER, None, 100, MOST, 5)], of_host),
        Reports("fruit", "leader", RUNS, tmp_path / "x.sock", MOST).conf(
            replace(of_host, host="leader.invalid")
        ),
        queue.replace("443", of_host.listen[0]),
    ]
    # Three files may not all set it: that is why no printed conf does.
    assert "backlog" not in texts[0] + texts[1]
    site = Site(port, tmp_path, [])
    for number, length in ((2, 511), (3, 4096)):
        with running(tmp_path, "".join(texts[:number])):

            async def asked() -> int:
                await begun(site)
                await asyncio.sleep(0.1)  # else the transport of `begun` is left to the collector
                return (await site.answer(post(step_path(OVER), 0)))[0]

            assert asyncio.run(asked()) == 410
            listed = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True, check=True)
            [found] = [line.split() for line in listed.stdout.splitlines() if f":{port} " in line]
            most = int(Path("/proc/sys/net/core/somaxconn").read_text())
            assert int(found[2]) == min(length, most)


@pytest.mark.parametrize("kind", ["reports", "dap"])
def test_a_bound_by_address_says_429_also_before_other_servers(tmp_path: Path, kind: str) -> None:
    """503 would look as if the process were away."""
    [port] = free_ports(1)
    certificate(tmp_path)
    place, of_host = tmp_path / "runs.sock", front(tmp_path, port)
    text, path = (
        (Reports("fruit", "leader", RUNS, place, MOST).conf(of_host), release_path(RUNS, 0))
        if kind == "reports"
        else (DapBackend("fruit", "leader", "t", "", place, MOST).conf(of_host), "/tasks/t/reports")
    )
    site = Site(port, tmp_path, [])

    async def check() -> None:
        async with await answering(site):
            await begun(site)
            await asyncio.sleep(0.1)  # as above
            found = [(await site.answer(post(path, 0)))[0] for _ in range(ASKED + 5)]
            assert found == [200] * (ASKED + 1) + [429] * 4
            held = [await site.connect() for _ in range(HELD)]
            for _, writer in held:
                writer.write(post(path, 100).replace("\n", "\r\n").encode() + b"\r\n\r\n")
            await asyncio.sleep(0.5)
            assert (await site.answer(post(path, 0)))[0] == 429
            for _, writer in held:
                writer.transport.abort()

    with running(tmp_path, _of_addresses(tmp_path) + text):
        asyncio.run(check())


@pytest.mark.skipif(sys.platform != "linux", reason="needs a second address of this machine")
@pytest.mark.parametrize("site", [True], indirect=True, ids=["by address"])
def test_tokens_that_one_address_makes_up_reach_the_process_in_a_bound_alone(site: Site) -> None:
    async def check() -> None:
        async with await answering(site):
            await begun(site)
            found = [
                (await site.answer(post(step_path(RUNS), 0, f"Bearer made-up-{number}")))[0]
                for number in range(ASKED + 10)
            ]
            assert found == [200] * (ASKED + 1) + [429] * 9
            assert len(site.took) == ASKED + 1
            elsewhere = await site.answer(post(step_path(RUNS), 0), address="127.0.0.2")
            assert elsewhere == (200, b"frame")
        files = [one for one in site.folder.iterdir() if one.suffix == ".log"]
        assert not any("127.0.0.1" in one.read_text() for one in files)

    asyncio.run(check())
