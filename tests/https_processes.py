"""Processes of a campaign over HTTPS: its server, and nginx before it."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.behind_nginx import nginx

from fedtally.campaign.folder import CampaignFolder
from fedtally.campaign.transports.https.proxy import Backend
from fedtally.campaign.transports.https.resource import step_path
from fedtally.campaign.transports.https.tokens import mint


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
    socket = Path(served.address.removeprefix("unix:"))
    with nginx(folder, Backend.of(CampaignFolder.open(served.place), socket), port):
        yield f"https://localhost:{port}{served.path}"
