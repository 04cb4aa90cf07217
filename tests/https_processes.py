"""Processes of a campaign over HTTPS: its server, nginx before it, and clients with tokens."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from socket_agents import Person

from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.transports.https.carry import tls
from fedtally.campaign.transports.https.join import Over, join
from fedtally.campaign.transports.https.proxy import Backend, Front, conf
from fedtally.campaign.transports.https.resource import step_path
from fedtally.campaign.transports.https.tokens import mint

NGINX = shutil.which("nginx") or ("/usr/sbin/nginx" if Path("/usr/sbin/nginx").exists() else None)
KINDS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")  # of nginx's temporary files


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    import socket

    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def certificate(folder: Path) -> Path:
    """Make a key and a certificate of this machine; return the certificate."""
    words = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        " -keyout tls.key -out tls.crt -subj /CN=localhost"
        " -addext subjectAltName=IP:127.0.0.1,DNS:localhost"
    )
    subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    return folder / "tls.crt"


@dataclass
class Served:
    """A campaign that processes serve.

    Args:
        place: the folder of the campaign.
        tokens: of its clients.
        address: where its server listens.
    """

    place: Path
    tokens: list[str]
    address: str
    process: subprocess.Popen[str] | None = None
    err: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, place: Path, clients: int, address: str) -> Served:
        """Return a campaign whose clients have got tokens."""
        return cls(place, list(mint(place, clients, secrets.token_bytes).values()), address)

    @property
    def path(self) -> str:
        return step_path(CampaignFolder.open(self.place).plan.fingerprint).removesuffix("/step")

    def begin(self, *more: str) -> subprocess.Popen[str]:
        """Start a server that runs the campaign, or goes on with it."""
        verb = "resume" if CampaignFolder.open(self.place).has_begun else "run"
        words = [verb, str(self.place), "--engine", "https", "--listen", self.address, *more]
        log = self.place.parent / f"server{len(self.err)}.log"
        self.err.append(str(log))
        with open(log, "w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedtally", "campaign", *words],
                stderr=file,
                stdout=file,
                text=True,
            )
        return self.process

    def said(self) -> str:
        """Return what all servers said."""
        return "\n".join(Path(file).read_text() for file in self.err)

    def kill(self) -> None:
        """Kill the server."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def behind_nginx(folder: Path, served: Served, port: int) -> Iterator[str]:
    """Let nginx end TLS before a campaign; give the address of the campaign."""
    assert NGINX is not None
    socket = Path(served.address.removeprefix("unix:"))
    backend = Backend.of(CampaignFolder.open(served.place), socket)
    files = [str(folder / name) for name in ("tls.crt", "tls.key", "errors.log")]
    made = conf([backend], Front((f"127.0.0.1:{port}",), "localhost", *files))
    # The documented conf is a part of a whole one, which writes into one folder alone.
    user = "user root;" if os.getuid() == 0 else ""  # its workers would be nobody
    paths = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in KINDS)
    place = folder / "nginx.conf"
    place.write_text(
        f"{user} daemon off; pid {folder}/pid; error_log {folder}/nginx.log crit;\n"
        f"events {{ worker_connections 1024; }} http {{ {paths}\n{made} }}\n"
    )
    nginx = subprocess.Popen([NGINX, "-c", str(place), "-e", str(folder / "nginx.log")])
    try:
        yield f"https://localhost:{port}{served.path}"
    finally:
        nginx.send_signal(signal.SIGTERM)
        nginx.wait()


async def joined(
    url: str,
    token: str,
    person: Person,
    ca: Path | None = None,
    hook: Any = None,
    socket: str | None = None,
) -> Over:
    """Let a client take part, with a person in place of an agent."""

    async def answer(frame: bytes) -> bytes:
        if hook is not None:
            await hook(frame)
        return person.answer(frame) or b""

    draws = secrets.SystemRandom()
    transport = httpx.AsyncHTTPTransport(verify=tls(ca), uds=socket)
    async with httpx.AsyncClient(transport=transport, timeout=45) as http:
        return await join(
            http,
            url,
            token,
            answer,
            clock=time.time,
            sleep=asyncio.sleep,
            random=draws.random,
            tell=lambda text: None,
        )


def wait_for(place: str | os.PathLike[str], seconds: float = 60) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + seconds
    while not os.path.lexists(place):
        assert time.monotonic() < end, f"there is no {place}"
        time.sleep(0.05)
