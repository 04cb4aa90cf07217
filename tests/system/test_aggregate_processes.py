"""Both servers as processes: TLS between them, nginx before one, kill -9, probes, and the end."""

# ruff: noqa: E402

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from aggregate_world import PEOPLE, SIDES, certificate, plan_of, settings
from benchmarks import behind_nginx
from benchmarks.behind_nginx import NGINX
from benchmarks.federation import free_ports
from secagg_cohort import stream

from fedtally.answer.result import Result
from fedtally.campaign.aggregate import AggregateFolder
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.closings import Closing, Schedule
from fedtally.campaign.transports.https.proxy import Reports
from fedtally.campaign.transports.https.resource import release_path
from fedtally.plan import Plan
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.two_server import BatchPolicy, Report

pytestmark = pytest.mark.skipif(
    NGINX is None or not shutil.which("openssl"), reason="needs nginx and openssl"
)


class Servers:
    """Both servers of a plan, as processes."""

    def __init__(self, folder: Path) -> None:
        self.path, self.plan = folder, plan_of(folder)
        peer, self.tls, metrics, self.plain = free_ports(4)
        for name in ("leader", "helper"):
            certificate(name, folder)
        self.folders = {
            side: AggregateFolder.create(
                folder / side,
                side,
                plan=folder / "plan.toml",
                allow_list=folder / "clients.allow",
                settings=settings(
                    folder,
                    side,
                    **({"helper": f"https://127.0.0.1:{peer}"} if side == "leader" else {}),
                ),
                schedule=Schedule((Closing(),), 5, 0) if side == "leader" else None,
            )
            for side in SIDES
        }
        more = {
            "helper": ["--leader-listen", f"127.0.0.1:{peer}"],
            "leader": ["--operate", f"127.0.0.1:{metrics}", "--log", "info"],
        }
        self.words = {
            side: ["run", str(folder / side), "--listen", listen, *more[side]]
            for side, listen in (
                ("helper", f"127.0.0.1:{self.plain}"),
                ("leader", f"unix:{folder}/leader.sock"),
            )
        }
        self.metrics = f"http://127.0.0.1:{metrics}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

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

    def http(self, side: str) -> Any:
        if side == "helper":
            return httpx.Client(base_url=f"http://127.0.0.1:{self.plain}")
        verify = ssl.create_default_context(cafile=self.path / "tls.crt")
        return httpx.Client(verify=verify, base_url=f"https://localhost:{self.tls}")

    def ask(self, side: str, method: str, path: str, content: bytes = b"") -> Any:
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


@contextmanager
def running(folder: Path) -> Iterator[Servers]:
    """Run both servers, and nginx before the leader."""
    servers = Servers(folder)
    behind_nginx.certificate(folder)
    leader = servers.folders["leader"]
    made = Reports("survey", "leader", leader.plan.fingerprint, folder / "leader.sock",
                   leader.report_bytes)  # fmt: skip
    conf = made.conf(behind_nginx.front(folder, servers.tls))
    with ExitStack() as stack:
        stack.enter_context(behind_nginx.running(folder, conf))
        for side in SIDES:
            servers.start(side)
        stack.callback(lambda: [servers.kill(side) for side in SIDES])
        yield servers


def report(plan: Plan, i: int) -> Report:
    from aggregate_world import DOMAIN

    return FrequencyClient(plan, DOMAIN, [1 + i % 3]).report(
        0, BatchPolicy(min_honest=2), journal=MemoryJournal(), identity=PEOPLE[i],
        random=stream(f"report {i}"), now=int(time.time()),
    )  # fmt: skip


def test_both_servers_are_killed_and_the_release_lands(tmp_path: Path) -> None:
    with running(tmp_path) as servers:
        plan, path = servers.plan, release_path(servers.plan.fingerprint, 0)
        reports = [report(plan, i) for i in range(6)]

        def send(*people: int) -> list[int]:
            said = []
            for i in people:
                for side in SIDES:
                    frame = getattr(reports[i], side)
                    said.append(servers.ask(side, "PUT", f"{path}/reports", frame).status_code)
            return said

        state = servers.ask("leader", "GET", path)
        assert state.json() == {"server": "leader", "state": "open"} and "date" in state.headers
        assert send(0, 1, 2) == [201] * 6
        for side in SIDES:
            servers.kill(side)
            servers.start(side)
        assert send(2, 3) == [201] * 4
        assert httpx.get(f"{servers.metrics}/readyz").status_code == 200
        assert httpx.get(f"{servers.metrics}/healthz").status_code == 200
        second = subprocess.run(
            [sys.executable, "-m", "fedtally", "aggregate", "helper", *servers.words["helper"]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 2 and "cannot listen on 127.0.0.1" in second.stderr
        assert send(4) == [201] * 2
        result = tmp_path / "leader" / "result.fed"
        servers.wait_for(result)
        assert servers.ask("leader", "GET", path).json()["state"] == "closed"
        assert send(4, 5) == [201, 201, 410, 410]
        text = httpx.get(f"{servers.metrics}/metrics").text
        assert 'fedtally_release_reports{release="0"} 5.0' in text
        assert 'fedtally_reports_total{outcome="closed"} 1.0' in text
        assert f"{PEOPLE[0].public.hex()}" not in text + servers.said("leader")
        end = time.monotonic() + 30
        while not servers.folders["helper"].landed():
            assert time.monotonic() < end, servers.said("leader")
            time.sleep(0.1)
        for side in SIDES:
            servers.processes[side].send_signal(signal.SIGTERM)
            assert servers.processes[side].wait(timeout=30) == 0
    [sketch] = Result.load(result).sketches
    assert sketch.num_clients == 5
    lines = [line for line in servers.said("leader").splitlines() if line.startswith("{")]
    assert {json.loads(line)["event"] for line in lines} == {"group", "judged"}
    assert "release 0 has landed: 5 reports are in its sum" in servers.said("leader")
    servers.folders["helper"].retire(os.getpid())
