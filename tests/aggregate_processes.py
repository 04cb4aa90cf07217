"""Both servers of reports as processes, each on a port of this machine or behind nginx."""

from __future__ import annotations

import ssl
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
from aggregate_world import SIDES, certificate, plan_of, settings
from benchmarks import behind_nginx
from benchmarks.federation import free_ports

from fedtally.campaign.aggregate_folder import AggregateFolder
from fedtally.campaign.closings import Closing, Schedule
from fedtally.campaign.transports.https.proxy import Reports
from fedtally.plan import Plan


class Servers:
    """Both servers of a plan, as processes.

    Args:
        folder: an empty folder, or one with the plan and its files.
        plan: the plan in the folder; None: a new one.
        size: the number of reports at which the release closes.
        proxied: the servers that stand behind an nginx, over TLS.
        origins: the origins of web pages that may report.
        candidates: a list of them, unless the plan has them.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan | None = None,
        size: int = 5,
        proxied: Collection[str] = ("leader",),
        origins: tuple[str, ...] = (),
        candidates: Path | None = None,
    ) -> None:
        self.path, self.plan = folder, plan or plan_of(folder)
        peer, metrics, *ports = free_ports(4)
        self.proxied, self.ports = proxied, dict(zip(SIDES, ports, strict=True))
        for name in ("leader", "helper"):
            certificate(name, folder)
        helper = {"helper": f"https://127.0.0.1:{peer}"}
        self.folders = {
            side: AggregateFolder.create(
                folder / side,
                side,
                plan=folder / "plan.toml",
                allow_list=folder / "clients.allow",
                settings=settings(
                    folder, side, origins=origins, **(helper if side == "leader" else {})
                ),
                schedule=Schedule((Closing(),), size, 0) if side == "leader" else None,
                candidates=candidates if side == "leader" else None,
            )
            for side in SIDES
        }
        more = {
            "helper": ["--leader-listen", f"127.0.0.1:{peer}"],
            "leader": ["--operate", f"127.0.0.1:{metrics}", "--log", "info"],
        }
        self.words = {
            side: ["run", str(folder / side), "--listen", self._listen(side), *more[side]]
            for side in SIDES
        }
        self.metrics = f"http://127.0.0.1:{metrics}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _listen(self, side: str) -> str:
        if side in self.proxied:
            return f"unix:{self.path}/{side}.sock"
        return f"127.0.0.1:{self.ports[side]}"

    def url(self, side: str) -> str:
        """Return the address of a server for clients."""
        scheme = "https" if side in self.proxied else "http"
        return f"{scheme}://localhost:{self.ports[side]}"

    @contextmanager
    def running(self) -> Iterator[Servers]:
        """Run both servers, and an nginx before each that has one."""
        with ExitStack() as stack:
            for side in SIDES:
                if side in self.proxied:
                    stack.enter_context(self._nginx(side))
                self.start(side)
                stack.callback(self.kill, side)
            yield self

    @contextmanager
    def _nginx(self, side: str) -> Iterator[None]:
        place = self.path / f"nginx-{side}"
        place.mkdir()
        behind_nginx.certificate(place)
        plan, most = self.plan.fingerprint, self.folders[side].report_bytes
        made = Reports("survey", side, plan, self.path / f"{side}.sock", most)
        conf = made.conf(behind_nginx.front(place, self.ports[side]))
        with behind_nginx.running(place, conf):
            yield

    def start(self, side: str) -> None:
        log = open(self.path / f"{side}.log", "ab")  # noqa: SIM115
        command = [sys.executable, "-m", "fedtally", "aggregate", side, *self.words[side]]
        self.processes[side] = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()

    def said(self, side: str) -> str:
        return (self.path / f"{side}.log").read_text()

    def kill(self, side: str) -> None:
        self.processes[side].kill()
        self.processes[side].wait()

    def http(self, side: str) -> httpx.Client:
        verify: Any = True
        if side in self.proxied:
            verify = ssl.create_default_context(cafile=self.path / f"nginx-{side}" / "tls.crt")
        return httpx.Client(verify=verify, base_url=self.url(side))

    def ask(self, side: str, method: str, path: str, content: bytes = b"") -> httpx.Response:
        """Ask until there is an answer."""
        end = time.monotonic() + 60
        while True:
            try:
                with self.http(side) as http:
                    found = http.request(method, path, content=content)
                if found.status_code < 500:
                    return found
            except httpx.TransportError:
                pass
            assert time.monotonic() < end, self.said(side)
            time.sleep(0.1)

    def wait_for(self, place: Path) -> None:
        end = time.monotonic() + 60
        while not place.exists():
            assert time.monotonic() < end, self.said("leader") + self.said("helper")
            time.sleep(0.1)
