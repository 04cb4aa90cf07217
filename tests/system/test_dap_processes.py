"""Both servers of DAP as processes behind nginx: killed, started again, and ended by SIGTERM."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn")
httpx = pytest.importorskip("httpx")

from benchmarks import behind_nginx
from benchmarks.behind_nginx import NGINX
from benchmarks.federation import free_ports
from dap_world import SEED, SIZES
from secagg_cohort import stream

from fedtally.campaign.dap_files import key_number
from fedtally.campaign.dap_folder import DapFolder, DapPolicy, DapSettings
from fedtally.campaign.key_files import create_key_files, load_collector_key
from fedtally.campaign.transports.https import dap_client
from fedtally.campaign.transports.https.carry import client, tls
from fedtally.campaign.transports.https.dap_asking import UnansweredError
from fedtally.campaign.transports.https.proxy import DapBackend
from fedtally.dap import Collected, Task, TaskSecret
from fedtally.dap.draft18 import Role
from fedtally.dap.sealing import config
from fedtally.dap.task import to_text, token_digest

pytestmark = pytest.mark.skipif(
    NGINX is None or not shutil.which("openssl"), reason="needs nginx and openssl"
)
SIDES = ("leader", "helper")
HOUR = 3600


class Servers:
    """Both servers of a task, as processes behind one nginx."""

    def __init__(self, folder: Path, vdaf: str, **changes: Any) -> None:
        self.path = folder
        self.ports = dict(zip(SIDES, free_ports(2), strict=True))
        key = create_key_files(folder / "collector.key", "collector", stream("collector")).value
        self.start_of_task = int(time.time()) // HOUR * HOUR
        urls = {side: f"https://localhost:{self.ports[side]}/dap" for side in SIDES}
        values: dict[str, Any] = {"sizes": SIZES[vdaf]} | urls | changes
        self.task = Task.make(
            vdaf, info=secrets.token_bytes(16), precision=HOUR, min_batch=3,
            start=self.start_of_task, end=self.start_of_task + 24 * HOUR,
            collector=config(key_number(key), key), **values,
        )  # fmt: skip
        self.token = secrets.token_urlsafe(32)
        secret = TaskSecret(self.task.id, SEED, token_digest(self.token))
        (folder / "task.toml").write_text(self.task.to_toml())
        (folder / "task.secret").write_text(secret.to_toml())
        (folder / "task.secret").chmod(0o600)
        for side in SIDES:
            create_key_files(folder / f"{side}.key", "aggregator", stream(side))
            settings = DapSettings(
                (folder / f"{side}.key",), folder / "task.secret", folder / f"{side}.mark",
                DapPolicy(3), ca=folder / "tls.crt",
            )  # fmt: skip
            DapFolder.create(
                folder / side, Role[side.upper()], task=folder / "task.toml", settings=settings
            )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def conf(self) -> str:
        return "\n".join(
            DapBackend(
                side, side, to_text(self.task.id), "/dap", self.path / f"{side}.sock", 1 << 20
            ).conf(behind_nginx.front(self.path, self.ports[side]))
            for side in SIDES
        )

    def start(self, side: str) -> None:
        with open(self.path / f"{side}.log", "ab") as log:
            listen = f"unix:{self.path}/{side}.sock"
            words = ["dap", side, "run", str(self.path / side), "--listen", listen]
            command = [sys.executable, "-m", "fedtally", *words]
            self.processes[side] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, side: str) -> None:
        self.processes[side].kill()
        self.processes[side].wait()

    def said(self) -> str:
        return "\n".join((self.path / f"{side}.log").read_text() for side in SIDES)

    def wait(self) -> None:
        """Wait until both serve."""
        end = time.monotonic() + 60
        trusted = tls(self.path / "tls.crt")
        for port in self.ports.values():
            while True:
                with suppress(httpx.TransportError):
                    url = f"https://localhost:{port}/dap/hpke_config"
                    if httpx.get(url, verify=trusted).status_code == 200:
                        break
                assert time.monotonic() < end, self.said()
                time.sleep(0.1)

    def report(self, measurements: Sequence[Any]) -> None:
        """Report as clients do, and again where a server is not there yet."""

        async def reported() -> None:
            end = time.monotonic() + 60
            async with client(tls(self.path / "tls.crt")) as http:
                for each in measurements:
                    while True:
                        try:
                            await dap_client.report(
                                http, self.task, each, now=time.time(), random=secrets.token_bytes
                            )
                            break
                        except UnansweredError:
                            assert time.monotonic() < end, self.said()
                            await asyncio.sleep(0.1)

        asyncio.run(reported())

    def collect(self) -> Collected:
        async def collected() -> Collected:
            key = load_collector_key(self.path / "collector.key")
            interval = self.start_of_task, self.start_of_task + 24 * HOUR
            async with client(tls(self.path / "tls.crt")) as http:
                return await dap_client.collect(
                    http, self.task, key, self.token, interval, wait=120
                )

        return asyncio.run(collected())


@contextmanager
def running(folder: Path, vdaf: str, **changes: Any) -> Iterator[Servers]:
    behind_nginx.certificate(folder)
    servers = Servers(folder, vdaf, **changes)
    with ExitStack() as stack:
        stack.enter_context(behind_nginx.running(folder, servers.conf()))
        for side in SIDES:
            servers.start(side)
            stack.callback(servers.kill, side)
        yield servers


@pytest.mark.promise
@pytest.mark.parametrize(
    ("vdaf", "measurements", "result"),
    [
        ("count", [1, 0, 1, 1], 3),
        ("sumvec", [[1, 2, 3], [5, 0, 1], [0, 0, 0], [0, 1, 0]], [6, 3, 4]),
        ("histogram", [0, 2, 2, 3], [1, 0, 2, 1]),
    ],
)
def test_reports_over_tls_are_counted_whoever_dies(
    tmp_path: Path, vdaf: str, measurements: list[Any], result: Any
) -> None:
    with running(tmp_path, vdaf) as servers:
        servers.report(measurements[:2])
        if vdaf == "histogram":
            for side in SIDES:
                servers.kill(side)
                servers.start(side)
        servers.report(measurements[2:])
        found = servers.collect()
        assert (found.count, found.result) == (len(measurements), result)
        assert servers.collect() == found
        for side in SIDES:
            servers.processes[side].send_signal(signal.SIGTERM)
            assert servers.processes[side].wait(timeout=30) == 0, servers.said()
    assert "lost" not in servers.said() and "Traceback" not in servers.said()
