"""Both servers as processes: TLS between them, nginx before one, kill -9, probes, and the end."""

# ruff: noqa: E402

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from aggregate_processes import Servers
from aggregate_world import DOMAIN, PEOPLE, SIDES
from benchmarks.behind_nginx import NGINX
from secagg_cohort import stream

from fedtally.answer.result import Result
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.transports.https.resource import release_path
from fedtally.plan import Plan
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.two_server import BatchPolicy, Report

pytestmark = pytest.mark.skipif(
    NGINX is None or not shutil.which("openssl"), reason="needs nginx and openssl"
)


def report(plan: Plan, i: int) -> Report:
    return FrequencyClient(plan, DOMAIN, [1 + i % 3]).report(
        0, BatchPolicy(min_honest=2), journal=MemoryJournal(), identity=PEOPLE[i],
        random=stream(f"report {i}"), now=int(time.time()),
    )  # fmt: skip


@pytest.mark.promise
def test_both_servers_are_killed_and_the_release_lands(tmp_path: Path) -> None:
    with Servers(tmp_path).running() as servers:
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
    assert {json.loads(line)["event"] for line in lines} == {"start", "group", "judged"}
    assert sum(json.loads(line)["event"] == "start" for line in lines) == 2  # it was killed once
    assert "release 0 has landed: 5 reports are in its sum" in servers.said("leader")
    servers.folders["helper"].retire(os.getpid())
