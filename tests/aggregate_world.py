"""Two servers in folders, as their operators make them, and clients that report to both."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from secagg_cohort import stream

import fedtally
from fedtally.answer.result import Result
from fedtally.campaign.aggregate_folder import RESULT, AggregateFolder, Claimed, Settings
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.closings import Closings
from fedtally.campaign.enrolment import save_allow_list
from fedtally.campaign.key_files import create_key_files
from fedtally.campaign.transports.https.channel import Asking, Channel
from fedtally.campaign.transports.https.closing import Tending
from fedtally.campaign.transports.https.collecting import Collecting, Intake
from fedtally.campaign.transports.https.resource import FRAME_TYPE, release_path
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Domain, IntegerRange
from fedtally.plan import Plan
from fedtally.plan.calendar import Calendar
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import TwoServerConfig
from fedtally.secagg.two_server import BatchPolicy, Report, Side
from fedtally.sketch import CountSketch
from fedtally.store import Ledger

NOW = 1_800_000_000
SIDES: tuple[Side, Side] = ("helper", "leader")  # in the order of the protocol
DOMAIN = IntegerRange(1, 40)
PEOPLE = [SigningKey(Secret(stream(f"person {i}")(32))) for i in range(8)]
STRANGER = SigningKey(Secret(stream("stranger")(32)))
ALLOWED = AllowList(sorted(person.public for person in PEOPLE))
POLICY = BatchPolicy(min_honest=2)


def plan_of(
    folder: Path,
    *,
    n_max: int = 8,
    validity: str = "proofs",
    rounds: int = 1,
    schedule: str | None = None,
    calendar: Calendar | None = None,
    domain: Domain = DOMAIN,
    allowed: AllowList = ALLOWED,
    **private: Any,
) -> Plan:
    """Write the keys of both servers, the list and the plan; return the plan."""
    keys = {
        f"{side}_key": create_key_files(folder / f"{side}.key", side, stream(side)).value
        for side in SIDES
    }
    if private:
        asked: dict[str, Any] = {"rows": 2, "width": 16, "secure_sum": "two-server"}
        asked |= {} if schedule is None else {"schedule": schedule}
        sized = fedtally.estimate(
            [1] * n_max, domain=domain, confidence=0, recovery="median", **asked | private
        ).plan
        return _published(folder, sized.without_keys(), keys, allowed)
    terms = TwoServerConfig(
        length=2 * 16, bits=16, n_max=n_max, min_batch=3, corrupt=0, validity=validity
    )
    made = fedtally.Plan(
        rows=2, width=16, schedule=schedule or "shared", num_rounds=rounds,
        num_clients=n_max * rounds, max_round_clients=n_max, max_items=1,
        domain=domain.describe(), seed=bytes(32), secure_sum=terms, calendar=calendar,
    )  # fmt: skip
    return _published(folder, made, keys, allowed)


def _published(folder: Path, sized: Plan, keys: dict[str, bytes], allowed: AllowList) -> Plan:
    plan = sized.with_keys(**keys, allow_list=allowed.digest)
    plan.save(folder / "plan.toml")
    save_allow_list(folder / "clients.allow", allowed)
    return plan


@cache
def certificate(name: str, folder: Path) -> None:
    """Make a certificate that signs itself, and its key."""
    words = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        f" -keyout {name}-tls.key -out {name}.crt -subj /CN={name}"
    )
    subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)


def settings(folder: Path, side: Side, **changed: Any) -> Settings:
    """Return the settings of a server whose files lie in a folder."""
    given: dict[str, Any] = {
        "key": folder / f"{side}.key",
        "mark": folder / f"{side}.mark",
        "certificate": folder / f"{side}.crt",
        "certificate_key": folder / f"{side}-tls.key",
        "other_certificate": folder / f"{'helper' if side == 'leader' else 'leader'}.crt",
        "policy": POLICY,
        "helper": "https://127.0.0.1:8443" if side == "leader" else None,
    }
    return Settings(**given | changed)


def made(folder: Path, side: Side, **changed: Any) -> AggregateFolder:
    """Make the folder of a server."""
    return AggregateFolder.create(
        folder / f"at-{side}",
        side,
        plan=folder / "plan.toml",
        allow_list=folder / "clients.allow",
        settings=settings(folder, side, **changed),
    )


@dataclass
class Process:
    """What runs of one server: nothing is left of it but its disk, once it is gone."""

    folder: AggregateFolder
    now: Callable[[], float]
    claimed: Claimed = field(init=False)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.claimed = self.folder.claim(clock=lambda: NOW, random=stream(self.folder.side))
        self.releases = [
            Collecting(self.folder.side, batch, self.now, lambda: 0.0)
            for batch in self.claimed.batches
        ]
        self.has_room = True
        self.intake = Intake(
            self.folder.plan.fingerprint,
            self.releases,
            lambda: self.has_room,
            self.folder.settings.origins,
            draw=lambda least, most: least,
        )
        self.app = self.intake.application()
        self.channel = Channel(
            self.folder.plan.fingerprint,
            self.releases,
            self.claimed.store,
            self.notes.append,
            draw=lambda least, most: least,
        )

    def tending(self, number: int, http: httpx.AsyncClient) -> Tending:
        """Return what closes a release of a leader; it asks the helper that `http` reaches."""

        async def sleep(_: float) -> None:
            await asyncio.sleep(0)

        assert self.folder.settings.helper is not None
        asking = Asking(
            http, self.folder.settings.helper, self.folder.plan, number, self.now, sleep
        )
        return Tending(
            number,
            self.releases[number],
            self.claimed.server,
            asking,
            Closings(self.folder.path),
            lambda: self.folder.save_result(self.claimed, stream("release")),
            self.notes.append,
        )


class World:
    """Two servers, clients, and HTTP between them, in one process."""

    def __init__(self, folder: Path, origins: tuple[str, ...] = (), **changed: Any) -> None:
        self.path, self.now = folder, float(NOW)
        self.plan = plan_of(folder, **changed)
        self.folders = {
            side: made(folder, side, origins=origins, **self.ledger(side)) for side in SIDES
        }
        self.processes: dict[str, Process] = {}
        self.reports: dict[tuple[int, int], Report] = {}
        self.start(*SIDES)

    def ledger(self, side: Side) -> dict[str, Any]:
        """Make a ledger that covers the plan, for a plan with privacy."""
        if (privacy := self.plan.privacy) is None:
            return {}
        place = self.path / f"{side}-ledger.db"
        books = Ledger.open(place, create=True)
        books.grant(privacy.population, 10.0, privacy.delta, 0)
        return {"ledger": str(place)}

    def start(self, *sides: Side) -> None:
        """Let a new process run a server."""
        for side in sides:
            self.processes[side] = Process(self.folders[side], lambda: self.now)

    def item(self, i: int) -> list[int]:
        return [1 + i % 3]

    def report(self, i: int, round: int = 0, key: SigningKey | None = None) -> Report:
        """Return the report of a person: the same whenever it is asked for."""
        if key is not None:
            return self._report(i, round, key)
        if (i, round) not in self.reports:
            self.reports[i, round] = self._report(i, round, PEOPLE[i])
        return self.reports[i, round]

    def _report(self, i: int, round: int, key: SigningKey) -> Report:
        draws = stream(f"report {i} {round} {key.public.hex()}")
        return FrequencyClient(self.plan, DOMAIN, self.item(i)).report(
            round,
            POLICY,
            journal=MemoryJournal(),
            identity=key,
            random=draws,
            now=int(self.now),
        )

    def expected(self, *people: int) -> list[int]:
        """Return the plain sum of what people hold."""
        sketch = CountSketch(self.plan.spec, 0)
        for i in people:
            sketch.add(DOMAIN.encode(self.item(i)), num_clients=1)
        return np.asarray(sketch.vector).tolist()  # type: ignore[no-any-return]

    def path_of(self, release: int = 0) -> str:
        return release_path(self.plan.fingerprint, release)

    def http(self, side: Side) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(self.processes[side].app)
        return httpx.AsyncClient(transport=transport, base_url=f"https://{side}")

    async def get(self, side: Side, release: int = 0) -> httpx.Response:
        async with self.http(side) as http:
            return await http.get(self.path_of(release))

    async def put(self, side: Side, frame: bytes, release: int = 0) -> httpx.Response:
        async with self.http(side) as http:
            return await http.put(
                f"{self.path_of(release)}/reports",
                content=frame,
                headers={"content-type": FRAME_TYPE},
            )

    async def send(self, *people: int, round: int = 0, release: int = 0) -> list[int]:
        """Let people report, the helper first; return the statuses of the leader."""
        found: list[int] = []
        for side in SIDES:
            frames = [getattr(self.report(i, round), side) for i in people]
            got = await asyncio.gather(*(self.put(side, frame, release) for frame in frames))
            found = [each.status_code for each in got]
        return found

    # ---- between the servers ----

    @property
    def channel(self) -> httpx.AsyncClient:
        """What reaches the helper that runs, from the leader."""
        transport = httpx.ASGITransport(self.processes["helper"].channel.application())
        return httpx.AsyncClient(transport=transport)

    def tending(self, number: int = 0) -> Tending:
        return self.processes["leader"].tending(number, self.channel)

    def close(self, number: int = 0) -> None:
        """Do what `close` does, whose grace is over."""
        Closings(self.folders["leader"].path).change(number, at=int(self.now))

    async def land(self, number: int = 0) -> Tending:
        """Tend a release until it is over."""
        tending = self.tending(number)

        async def sleep(seconds: float) -> None:
            self.now += seconds
            await asyncio.sleep(0)

        async with asyncio.timeout(60):
            await tending.run(sleep)
        return tending

    def result(self) -> Result:
        return Result.load(self.folders["leader"].path / RESULT)
