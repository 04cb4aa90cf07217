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
from fedtally.campaign.transports.https.tokens import mint
from fedtally.campaign.transports.https.wire import step_path

NGINX = shutil.which("nginx") or ("/usr/sbin/nginx" if Path("/usr/sbin/nginx").exists() else None)
CONF = """
daemon off;
{user}
pid {folder}/nginx.pid;
error_log {folder}/nginx.log crit;
events {{ worker_connections 1024; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_header_timeout 10s;
  client_body_timeout 10s;
  upstream campaign {{ server unix:{socket}; keepalive 16; }}
  server {{
    listen 127.0.0.1:{port} ssl;
    ssl_certificate {folder}/tls.crt;
    ssl_certificate_key {folder}/tls.key;
    location {path} {{
      proxy_pass http://campaign;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_read_timeout 60s;
    }}
  }}
}}
"""


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
    conf = folder / "nginx.conf"
    socket = served.address.removeprefix("unix:")
    user = "user root;" if os.getuid() == 0 else ""  # its workers would be nobody
    names = {"folder": folder, "socket": socket, "port": port, "path": served.path, "user": user}
    conf.write_text(CONF.format(**names))
    nginx = subprocess.Popen([NGINX, "-c", str(conf), "-e", str(folder / "nginx.log")])
    try:
        yield f"https://127.0.0.1:{port}{served.path}"
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
