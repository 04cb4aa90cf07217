"""Both servers of a plan as processes on this machine, nginx before each, and clients of theirs."""

from __future__ import annotations

import secrets
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.behind_nginx import certificate, front, running
from benchmarks.federation import free_ports
from fedtally.campaign.aggregate_folder import RESULT, AggregateFolder, Settings
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.closings import Closing, Schedule
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.https.proxy import Reports
from fedtally.campaign.transports.https.resource import FRAME_TYPE, release_path
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.two_server import BatchPolicy, Report, Side

SIDES: tuple[Side, Side] = ("helper", "leader")  # in the order of the protocol
DOMAIN = IntegerRange(1, 10_000)
POLICY = BatchPolicy(min_honest=2)


@dataclass
class Pair:
    """Two servers in folders of one folder, their clients, and the processes that run.

    Args:
        place: a folder of its own.
        clients: the number of clients of the list.
        rows: the rows of a sketch.
        width: the counters of a row.
        close_at: the number of reports at which the release closes.
        has_proxy: whether nginx is before each server.
    """

    place: Path
    clients: int
    rows: int = 5
    width: int = 800
    close_at: int | None = None
    has_proxy: bool = True
    processes: dict[Side, subprocess.Popen[bytes]] = field(default_factory=dict, init=False)
    starts: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.people = [SigningKey(Secret(b"%032d" % number)) for number in range(self.clients)]
        listed = AllowList(sorted(one.public for one in self.people))
        keys: Any = {
            f"{side}_key": create_key_files(
                self.place / f"{side}.key", side, secrets.token_bytes
            ).value
            for side in SIDES
        }
        self.plan = self._plan().with_keys(**keys, allow_list=listed.digest)
        self.plan.save(self.place / "plan.toml")
        save_allow_list(self.place / "clients.allow", listed)
        self.ports = dict(zip(SIDES, free_ports(2), strict=True))
        self.folders = {}
        for side in SIDES:
            (self.place / side).mkdir()
            certificate(self.place / side)
        [self._channel] = free_ports(1)
        for side in SIDES:
            self.folders[side] = self._folder(side)

    def _plan(self) -> Plan:
        most = max(4, self.clients)
        terms = TwoServerConfig(
            length=self.rows * self.width,
            bits=16 if most < 30_000 else 32,
            n_max=most,
            min_batch=3,
            corrupt=0,
            validity="proofs",
        )
        return Plan(
            rows=self.rows,
            width=self.width,
            schedule="shared",  # type: ignore[arg-type]
            num_rounds=1,
            num_clients=most,
            max_round_clients=most,
            max_items=1,
            domain=DOMAIN.describe(),
            seed=bytes(32),
            secure_sum=terms,
        )

    def _folder(self, side: Side) -> AggregateFolder:
        other = next(one for one in SIDES if one != side)
        schedule = Schedule((Closing(),), self.close_at, 0) if side == "leader" else None
        settings = Settings(
            key=self.place / f"{side}.key",
            mark=self.place / f"{side}.mark",
            certificate=self.place / side / "tls.crt",
            certificate_key=self.place / side / "tls.key",
            other_certificate=self.place / other / "tls.crt",
            policy=POLICY,
            helper=f"https://127.0.0.1:{self._channel}" if side == "leader" else None,
        )
        return AggregateFolder.create(
            self.place / f"at-{side}",
            side,
            plan=self.place / "plan.toml",
            allow_list=self.place / "clients.allow",
            settings=settings,
            schedule=schedule,
        )

    # ---- processes ----

    def start(
        self, side: Side, before: Sequence[str] = ("-m", "fedtally"), log: str = "off"
    ) -> None:
        """Start a server as an operator does; `before` runs the command otherwise."""
        self.starts += 1
        words = ["aggregate", side, "run", str(self.folders[side].path)]
        words += ["--listen", f"unix:{self.socket(side)}"]
        words += ["--leader-listen", f"127.0.0.1:{self._channel}"] if side == "helper" else []
        words += ["--log", log]
        with open(self.place / f"{side}.log", "ab") as said:
            command = [sys.executable, *before, *words]
            self.processes[side] = subprocess.Popen(command, stdout=said, stderr=said)

    def socket(self, side: Side) -> Path:
        """Return the socket on which a server listens for clients."""
        return self.place / f"{side}.sock"

    def said(self, side: Side) -> str:
        """Return what all processes of a server said."""
        return (self.place / f"{side}.log").read_text()

    @contextmanager
    def proxies(self) -> Iterator[None]:
        """Run nginx before each server, if there is one; end all processes at the end."""
        with ExitStack() as stack:
            for side in SIDES if self.has_proxy else ():
                stack.enter_context(running(self.place / side, self._conf(side)))
            try:
                yield
            finally:
                for process in self.processes.values():
                    process.kill()
                    process.wait()

    def _conf(self, side: Side) -> str:
        size = self.folders[side].report_bytes
        reports = Reports("benchmark", side, self.plan.fingerprint, self.socket(side), size)
        return reports.conf(front(self.place / side, self.ports[side]))

    # ---- clients ----

    def http(self, side: Side) -> httpx.AsyncClient:
        """Return a client of a server, through nginx or on its socket."""
        if not self.has_proxy:
            transport = httpx.AsyncHTTPTransport(uds=str(self.socket(side)))
            return httpx.AsyncClient(transport=transport, base_url=f"http://{side}", timeout=60)
        verify = ssl.create_default_context(cafile=self.place / side / "tls.crt")
        base = f"https://localhost:{self.ports[side]}"
        return httpx.AsyncClient(verify=verify, base_url=base, timeout=60)

    @property
    def path(self) -> str:
        """The path of the release."""
        return release_path(self.plan.fingerprint, 0)

    async def put(self, http: httpx.AsyncClient, frame: bytes) -> int:
        """Put a frame once; return the status, 0 for none."""
        try:
            found = await http.put(
                f"{self.path}/reports", content=frame, headers={"content-type": FRAME_TYPE}
            )
        except httpx.TransportError:
            return 0
        return found.status_code

    def client(self, number: int) -> FrequencyClient:
        """Return a client with its item."""
        return FrequencyClient(self.plan, DOMAIN, [1 + number % DOMAIN.size])

    def report(self, number: int) -> Report:
        """Make the report of a client."""
        return self.client(number).report(
            0,
            POLICY,
            now=int(time.time()),
            journal=MemoryJournal(),
            identity=self.people[number],
            random=secrets.token_bytes,
        )

    def plain(self, numbers: Sequence[int]) -> Any:
        """Return the plain sum of what clients hold: int64 [V]."""
        return np.sum([self.client(number).contribution(0) for number in numbers], axis=0)

    @property
    def result(self) -> Path:
        """Where the leader saves the answer."""
        return self.folders["leader"].path / RESULT

    @property
    def alive(self) -> dict[Side, bool]:
        """Which servers run."""
        return {side: process.poll() is None for side, process in self.processes.items()}
