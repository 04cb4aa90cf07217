"""A campaign between a driver, a store on disk and simulated clients, under a simulated clock.

Every call of the store and every frame can be the last that a process does; another process then
goes on with the same store.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from secagg_cohort import stream

from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.driver import Deadlines, Driver, Receipt, ServerKeys
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.privacy.config import propose as propose_privacy
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal, read_invite
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import Kind
from fedtally.secagg.params import Adversary, ClientPolicy
from fedtally.secagg.proposal import propose
from fedtally.store import Campaigns, Ledger

START = 1_000_000
DOMAIN = IntegerRange(1, 50)
ROWS, WIDTH, N = 3, 16, 8
SERVER_KEY = SigningKey(Secret(stream("server")(32)))
PEOPLE = sorted(
    (SigningKey(Secret(stream(("person", i))(32))) for i in range(4 * N)),
    key=lambda key: key.public,
)
ALLOWED = AllowList(person.public for person in PEOPLE)
DEADLINES = Deadlines(gather=20, phase=30, session=600, presence=60, bench=120)


def plan_of(
    adversary: str = "semi-honest",
    trust: str | None = None,
    rounds: int = 1,
    cohorts: int = 1,
    n_min: int = N,
    **options: Any,
) -> Plan:
    """Return a plan of sessions of eight clients; trust None: without privacy."""
    parameters = propose(
        N,
        n_min=n_min,
        length=ROWS * WIDTH,
        bits=16,
        corrupt=1,
        max_dropout=0.13,
        adversary=adversary,
    )
    asked: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-6,
        "rows": ROWS,
        "width": WIDTH,
        "trust": trust,
    }
    if trust == "distributed":
        asked |= {"honest_survivors": parameters.honest_survivors, "most_clients": cohorts * N}
    return Plan(
        rows=ROWS,
        width=WIDTH,
        schedule="shared",
        num_rounds=rounds,
        num_clients=rounds * cohorts * N,
        max_round_clients=cohorts * N,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=bytes(32),
        secure_sum=SecAggConfig(
            parameters=parameters,
            server_key=SERVER_KEY.public,
            allow_list=ALLOWED.digest if adversary == "active" else None,
        ),
        privacy=None if trust is None else propose_privacy(**asked),
        **options,
    )


class Crash(BaseException):
    """The process dies here."""


@dataclass
class Person:
    """A client that outlives the server's processes: its item, its journal, its sessions."""

    world: World
    number: int
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    sessions: dict[bytes, Client] = field(default_factory=dict)

    def answer(self, frame: bytes, now: int) -> bytes | None:
        message = wire.parse(frame)
        assert message is not None
        if message.kind is Kind.INVITE and message.session not in self.sessions:
            self.sessions[message.session] = self._join(frame)
        return self.sessions[message.session].receive(frame, now)

    def _join(self, frame: bytes) -> Client:
        plan = self.world.plan
        found = read_invite(
            frame, server_key=SERVER_KEY.public, fingerprint=bytes.fromhex(plan.fingerprint)
        )
        assert found is not None
        client = FrequencyClient(plan, DOMAIN, [1 + self.number])
        contribution = client.contribution

        def noted(round: int, random: Callable[[int], bytes]) -> Any:
            vector = contribution(round, random)
            self.world.contributed[round, self.number].append(vector.copy())
            return vector

        client.contribution = noted  # type: ignore[method-assign]
        active = plan.secure_sum.parameters.adversary is Adversary.ACTIVE
        return client.join(
            found.round,
            ClientPolicy(adversary=plan.secure_sum.parameters.adversary, min_honest=2),
            journal=self.journal,
            random=stream(("client", self.number, len(self.sessions))),
            identity=PEOPLE[self.number] if active else None,
            allow_list=ALLOWED if active else None,
        )


class Watched:
    """A store whose every call may be the last of the process, or fail."""

    def __init__(self, store: Any, world: World) -> None:
        self._store, self._world = store, world

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def watched(*args: Any, **more: Any) -> Any:
            self._world.step(f"before {name}")
            found = call(*args, **more)
            self._world.step(f"after {name}")
            return found

        return watched


@dataclass
class World:
    """A campaign: its plan, its files, its people, and what happened.

    Attributes:
        stops: the numbers of the steps at which the process dies; a step is before or after a call
            of the store, or a frame.
        error: raised instead, with the process alive.
    """

    folder: Path
    plan: Plan
    people: int = N
    stops: frozenset[int] = frozenset()
    error: type[Exception] | None = None
    deadlines: Deadlines = DEADLINES
    absent: Callable[[int, Kind], bool] = lambda number, kind: False  # who never answers what

    def __post_init__(self) -> None:
        self.now, self.steps, self.processes = START, 0, 0
        self.log: list[str] = []
        self.contributed: dict[tuple[int, int], list[Any]] = defaultdict(list)
        self.said: dict[tuple[bytes, Kind], set[bytes]] = defaultdict(set)  # to all alike
        self.opened_unreserved = False
        self.receipts: list[tuple[int, Receipt]] = []
        self.persons = [Person(self, number) for number in range(self.people)]
        self.ledger = None
        if self.plan.privacy is not None:
            self.ledger = Ledger.open(self.folder / "campaign.db", create=True)
            self.ledger.grant(self.plan.privacy.population, 100.0, 1e-6, START)
        self.driver = self.start()

    def step(self, what: str) -> None:
        self.steps += 1
        self.log.append(what)
        if self.steps in self.stops:
            raise (Crash if self.error is None else self.error)(what)

    def claim(self) -> Any:
        return Campaigns.open(self.folder / "campaign.db", create=True).claim(
            self.plan,
            mark=self.folder / "mark",
            clock=lambda: self.now,
            owner="campaign",
            ledger=self.ledger,
        )

    def start(self) -> Driver:
        """Start a process: claim the campaign, make a driver."""
        dies = (Crash,) if self.error is None else (Crash, self.error)
        while True:
            self.processes += 1
            store = Watched(self.claim(), self)
            active = self.plan.secure_sum.parameters.adversary is Adversary.ACTIVE
            try:
                return Driver(
                    self.plan,
                    store,
                    ServerKeys(SERVER_KEY, ALLOWED if active else None),
                    self.deadlines,
                    random=stream(("process", self.processes)),
                )
            except dies:
                continue

    def hand(self, person: Person) -> None:
        """Let a client ask what to do, and answer."""
        self.driver.check_in(person.number, self.now)
        frame = self.driver.next(person.number, self.now)
        if frame is None:
            return
        message = wire.parse(frame)
        assert message is not None
        self.note(message)
        self.step(f"frame {message.kind.name} to {person.number}")
        if self.absent(person.number, message.kind):
            return
        answer = person.answer(frame, self.now)
        if answer is not None:
            self.step(f"answer of {person.number}")
            self.receipts.append(
                (person.number, self.driver.receive(person.number, answer, self.now))
            )

    def note(self, message: wire.Frame) -> None:
        if message.kind in (Kind.SURVIVORS, Kind.CONFIRMATIONS, Kind.RESULT):
            self.said[message.session, message.kind].add(message.body)
        opens = message.kind in (Kind.CONFIRMATIONS, Kind.RESULT) or (
            message.kind is Kind.SURVIVORS
            and self.plan.secure_sum.parameters.adversary is not Adversary.ACTIVE
        )
        if opens and self.ledger is not None:
            self.opened_unreserved |= not self.ledger.reserved(self.plan.fingerprint)

    def run(self, seconds: int = 1500) -> World:
        """Let time pass until the campaign is over; processes die where `stops` says."""
        end = self.now + seconds
        caught = (Crash,) if self.error is None else (Crash, self.error)
        while self.now < end and not self.driver.is_complete:
            try:
                for person in self.persons:
                    self.hand(person)
                self.driver.tick(self.now)
            except caught as stop:
                if isinstance(stop, Crash):
                    self.driver = self.start()
            self.now += 5
        return self

    def landed(self) -> dict[int, tuple[int, Any]]:
        """Return what landed, by round: how many clients, and the sum."""
        return {
            sketch.round: (sketch.num_clients, sketch.counters.ravel())
            for sketch in self.claim().sums(self.plan)
        }

    def check(self, everybody: bool = True) -> None:
        """Check what no crash may break: one bitmap, reserved first, nobody twice, an exact sum."""
        for (_, kind), bodies in self.said.items():
            assert len(bodies) == 1, f"clients were told two different {kind.name}"
        assert not self.opened_unreserved
        for (round, number), vectors in self.contributed.items():
            assert all((vector == vectors[0]).all() for vector in vectors), (round, number)
        landed = self.landed()
        for round, (clients, total) in landed.items():
            vectors = [v[0] for (own, _), v in self.contributed.items() if own == round]
            assert clients <= len(vectors)
            if clients == len(vectors):
                assert (total == np.sum(vectors, axis=0)).all()
        if everybody:
            assert sum(clients for clients, _ in landed.values()) == self.people, self.log[-40:]
