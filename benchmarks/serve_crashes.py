"""The matrix of crashes of a campaign over HTTPS, by real processes and through nginx with TLS.

In each case the first server ends at one moment: before or after a call of its store, by SIGKILL.
It also ends once by SIGTERM, and once because a second process takes over. Another process goes on.
All clients must hear that the campaign is over, each must be asked for its item once, and the sum
must be the plain one.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.behind_nginx import certificate, nginx
from benchmarks.deploy import DOMAIN, KEY
from benchmarks.federation import free_ports
from benchmarks.serve import KINDS, Device, folder_of, joined
from fedtally.answer.result import Result
from fedtally.base.encoding import Encoding
from fedtally.campaign.driver import Deadlines
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.folder import RESULT
from fedtally.campaign.transports.https.join import Over
from fedtally.campaign.transports.https.proxy import Backend
from fedtally.campaign.transports.https.resource import step_path
from fedtally.campaign.transports.https.tokens import mint
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.plan import Plan
from fedtally.privacy.config import propose as propose_privacy
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import Kind
from fedtally.secagg.proposal import propose
from fedtally.store import Ledger

ROWS, WIDTH = 3, 16
# A client that asked in vain while the server started asks again within half a phase.
SHORT = Deadlines(gather=1, phase=30, session=240, bench=60)
SECONDS = 300  # for a case, also on a busy machine
CLIENTS = {"semi-honest": 4, "active": 6}  # as few as the adversary allows


def plan_of(adversary: str, trust: str | None, listed: AllowList) -> Plan:
    """Return a plan of one session of as few clients as possible."""
    clients = CLIENTS[adversary]
    parameters = propose(
        clients,
        n_min=clients,
        length=ROWS * WIDTH,
        bits=16,
        corrupt=1,
        max_dropout=0.13,
        adversary=adversary,
    )
    privacy = None
    if trust is not None:
        privacy = propose_privacy(
            epsilon=8.0,
            delta=1e-6,
            rows=ROWS,
            width=WIDTH,
            trust=trust,
            encoding=Encoding.SKETCH,
            honest_survivors=parameters.honest_survivors,
            most_clients=clients,
        )
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule="shared",  # type: ignore[arg-type]
        num_rounds=1,
        num_clients=clients,
        max_round_clients=clients,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        secure_sum=SecAggConfig(
            parameters=parameters,
            server_key=KEY.public,
            allow_list=listed.digest if adversary == "active" else None,
        ),
        privacy=privacy,
    )


@dataclass
class Case:
    """A campaign whose first server ends at one moment.

    Args:
        place: a folder of its own.
        adversary: against whom the plan protects.
        trust: who adds noise; None: nobody.
        stop: the number of the moment; 0: none.
        way: how it ends: KILL, TERM or OVERTAKEN.
    """

    place: Path
    adversary: str
    trust: str | None
    stop: int = 0
    way: str = "KILL"
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        people = [SigningKey(Secret(bytes([1 + n] * 32))) for n in range(CLIENTS[self.adversary])]
        people.sort(key=lambda key: key.public)
        listed = AllowList(one.public for one in people)
        self.plan = plan_of(self.adversary, self.trust, listed)
        more: dict[str, Any] = {}
        if self.adversary == "active":
            save_allow_list(self.place / "clients.allow", listed)
            more["allow_list"] = self.place / "clients.allow"
        if self.plan.privacy is not None:
            more["ledger"] = str(self.place / "ledger.db")
            books = Ledger.open(self.place / "ledger.db", create=True)
            books.grant(self.plan.privacy.population, 100.0, 1e-6, int(time.time()))
        self.folder = folder_of(self.place, self.plan, deadlines=SHORT, **more)
        active = self.adversary == "active"
        self.devices = [
            Device(self.plan, number, one if active else None, listed if active else None)
            for number, one in enumerate(people)
        ]

    @property
    def moments(self) -> int:
        """The number of moments that the first server has had."""
        return len((self.place / "moments").read_text().splitlines())

    def run(self) -> None:
        """Run the campaign to its end, and check what nothing may break."""
        tokens = list(mint(self.folder.path, len(self.devices), secrets.token_bytes).values())
        [port], failed = free_ports(1), True
        certificate(self.place)
        with nginx(self.place, Backend.of(self.folder, self.place / "c.sock"), port):
            self._start(self.stop if self.way != "OVERTAKEN" else 0)
            try:
                url = f"https://localhost:{port}{step_path(self.plan.fingerprint)}"
                overs = asyncio.run(self._all(url.removesuffix("/step"), tokens))
                failed = False
            finally:
                for process in self.processes:
                    process.send_signal(signal.SIGKILL if failed else signal.SIGTERM)
                    process.wait()
        assert set(overs) == {Over.CAMPAIGN}, "a client stopped asking"
        assert (len(self.processes) > 1) == bool(self.stop), "nothing died"
        self._check()

    async def _all(self, url: str, tokens: list[str]) -> list[Any]:
        async with asyncio.timeout(SECONDS):
            watching = asyncio.create_task(self._watch())
            overs = await asyncio.gather(
                *(
                    joined(url, token, device, self.place / "tls.crt", self._hook)
                    for token, device in zip(tokens, self.devices, strict=True)
                )
            )
            watching.cancel()
            return overs

    async def _hook(self, frame: bytes) -> None:
        message = wire.parse(frame)
        is_inbox = message is not None and message.kind is Kind.INBOX
        if self.way == "OVERTAKEN" and is_inbox and len(self.processes) == 1:
            self._start(0, "--take-over")

    async def _watch(self) -> None:
        """Start another server where the last one has ended, as systemd does.

        One that was drained may have landed the last session: the next one says that it is over.
        """
        while True:
            await asyncio.sleep(0.05)
            is_over = self.way != "TERM" and (self.folder.path / RESULT).exists()
            if self.processes[-1].poll() is not None and not is_over:
                self._start(0)

    def _start(self, stop: int, *more: str) -> None:
        verb = "resume" if self.folder.has_begun else "run"
        log = self.place / (f"moments{len(self.processes)}" if self.processes else "moments")
        words = [str(stop), str(log), "TERM" if self.way == "TERM" else "KILL", "campaign", verb]
        words += [str(self.folder.path), "--engine", "https", "--quiet"]
        words += ["--listen", f"unix:{self.place / 'c.sock'}", "--linger", "120", *more]
        with open(self.place / f"server{len(self.processes)}.log", "wb") as said:
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.dying", *words], stdout=said, stderr=said
                )
            )

    def _check(self) -> None:
        [sketch] = Result.load(self.folder.path / RESULT).sketches
        vectors = [list(device.sent.values()) for device in self.devices]
        assert all(len(one) == 1 for one in vectors), "a client was asked for its item twice"
        assert sketch.num_clients == len(self.devices), "a client is not in the sum"
        total = np.sum([vector for [vector] in vectors], axis=0)
        assert (sketch.vector == total).all(), "the sum is not the plain one"


def _ran(adversary: str, trust: str | None, stop: int, way: str) -> int:
    """Run a case; return the number of moments of its first server."""
    with tempfile.TemporaryDirectory() as place:
        case = Case(Path(place), adversary, trust, stop, way)
        try:
            case.run()
        except BaseException:
            for log in sorted(Path(place).glob("*.log")):
                click.echo(f"{log.name}: {log.read_text()[-2000:]}", err=True)
            raise
        return case.moments


def cases(moments: int, quick: bool) -> Iterator[tuple[int, str]]:
    """Return the moments at which servers end, and how."""
    every: Sequence[int] = range(1, moments + 1)
    for stop in every[:: max(1, moments // 4)] if quick else every:
        yield stop, "KILL"
    yield 4, "TERM"  # no session is open: it ends at once
    yield moments // 2, "TERM"
    yield 1, "OVERTAKEN"


def _is_whole(name: str, adversary: str, trust: str | None, stop: int, way: str) -> bool:
    """Run a case; if it breaks something, say which, and what its processes said."""
    try:
        _ran(adversary, trust, stop, way)
    except (AssertionError, OSError, TimeoutError) as error:
        click.echo(f"{name}: moment {stop}, {way}: {error or type(error).__name__}", err=True)
        return False
    return True


def run(kinds: Sequence[str], quick: bool) -> None:
    """Run the matrix of some kinds of plans; a case that breaks something fails the command."""
    broken = 0
    for name in kinds:
        adversary, trust = KINDS[name]
        moments = _ran(adversary, trust, 0, "KILL")
        ran = [_is_whole(name, adversary, trust, *case) for case in cases(moments, quick)]
        broken += ran.count(False)
        click.echo(
            f"{name}: {moments} moments; in {ran.count(True)} of {len(ran)} cases nobody is lost"
        )
    if broken:
        raise click.ClickException(f"{broken} cases broke something")
