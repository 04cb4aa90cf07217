"""A campaign between a driver, a store on disk and simulated clients, under a simulated clock.

Every call of the store and every frame can be the last that a process does; another process then
goes on with the same store.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from secagg_cohort import stream

from fedtally.base.encoding import Encoding
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.driver import Deadlines, Driver, Receipt, ServerKeys
from fedtally.campaign.release import release_of
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Domain, IntegerRange, OpenStrings
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.plan import Plan
from fedtally.privacy.config import propose as propose_privacy
from fedtally.secagg import wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import Client, MemoryJournal, read_invite
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import ClientState, Kind
from fedtally.secagg.params import Adversary, ClientPolicy, modulus_bits
from fedtally.secagg.proposal import propose
from fedtally.sketch import CountSketch, Spelling
from fedtally.store import Campaigns, Ledger

START = 1_000_000
DOMAIN = IntegerRange(1, 50)
ROWS, WIDTH, N = 3, 16, 8
STRINGS = OpenStrings(max_length=8, bits=12)
TEXTS = ["tea", "tea", "coffee", "tea", "milk", "coffee", "tea", "caf\u00e9"]
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
    n_min: int | None = None,
    clients: int = N,
    max_dropout: float = 0.13,
    encoding: Encoding = Encoding.SKETCH,
    **options: Any,
) -> Plan:
    """Return a plan of sessions of `clients`; n_min None: all of them; trust None: no privacy."""
    rows, width = (ROWS, WIDTH) if encoding is Encoding.SKETCH else (1, DOMAIN.size)
    parameters = propose(
        clients,
        n_min=clients if n_min is None else n_min,
        length=rows * width,
        bits=16,
        corrupt=1,
        max_dropout=max_dropout,
        adversary=adversary,
    )
    asked: dict[str, Any] = {
        "epsilon": 8.0,
        "delta": 1e-6,
        "rows": rows,
        "width": width,
        "trust": trust,
        "encoding": encoding,
    }
    if trust == "distributed":
        asked |= {
            "honest_survivors": parameters.honest_survivors,
            "most_clients": cohorts * clients,
        }
    return Plan(
        rows=rows,
        width=width,
        encoding=encoding,
        schedule="shared",
        num_rounds=rounds,
        num_clients=rounds * cohorts * clients,
        max_round_clients=cohorts * clients,
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


def small_plan(adversary: str, trust: str | None) -> Plan:
    """Return a plan of sessions of as few clients as its adversary allows.

    It is for tests that run a campaign for each of its steps: one more client would only add more
    steps of the same kinds.
    """
    return plan_of(adversary, trust, clients=4 if adversary == "semi-honest" else 6)


def open_plan(
    adversary: str = "semi-honest", trust: str | None = None, rounds: int = 1, **changed: Any
) -> Plan:
    """Return a plan of sessions of N clients whose domain is open; a part of it may be another."""
    plan = plan_of(adversary, rounds=rounds)
    assert plan.secure_sum is not None
    spelled = Plan(
        **{field.name: getattr(plan, field.name) for field in dataclasses.fields(Plan)}
        | {
            "rows": 5,
            "width": 40,
            "schedule": "hybrid",
            "domain": STRINGS.describe(),
            "seed": stream("open")(32),
            "spelling": Spelling(3, 16, 8),
            "secure_sum": None,
        }
        | changed
    )
    privacy = None
    parameters = plan.secure_sum.parameters
    if trust is not None:
        asked: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-6, "trust": trust}
        if trust == "distributed":
            asked |= {"honest_survivors": parameters.honest_survivors, "most_clients": N}
        privacy = propose_privacy(
            rows=spelled.spec.touched,
            width=spelled.spec.mean_width,
            counters=spelled.spec.vector_length,
            **asked,
        )
        spelled = dataclasses.replace(spelled, privacy=privacy)
    bits = modulus_bits(parameters.n_max, spelled.largest_entry, spelled.noise_bound)
    terms = dataclasses.replace(
        plan.secure_sum,
        parameters=dataclasses.replace(parameters, length=spelled.vector_length, bits=bits),
    )
    return dataclasses.replace(spelled, secure_sum=terms)


def held_text(number: int) -> list[str]:
    """Return what a client of a campaign over an open domain holds."""
    return [TEXTS[number % len(TEXTS)]]


class Crash(BaseException):
    """The process dies here."""


@dataclass
class Person:
    """A client that outlives the server's processes: its item, its journal, its sessions."""

    world: World
    number: int
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    sessions: dict[bytes, Client] = field(default_factory=dict)
    answers: list[bytes] = field(default_factory=list)

    def answer(self, frame: bytes, now: int) -> bytes | None:
        message = wire.parse(frame)
        assert message is not None
        if message.kind is Kind.INVITE and message.session not in self.sessions:
            self.sessions[message.session] = self._join(frame)
        if message.session not in self.sessions:
            return None
        return self.sessions[message.session].receive(frame, now)

    def _join(self, frame: bytes) -> Client:
        plan = self.world.plan
        found = read_invite(
            frame, server_key=SERVER_KEY.public, fingerprint=bytes.fromhex(plan.fingerprint)
        )
        assert found is not None
        client = FrequencyClient(plan, self.world.domain, self.world.hold(self.number))
        contribution = client.contribution

        def noted(round: int, random: Callable[[int], bytes]) -> Any:
            vector = contribution(round, random)
            self.world.contributed[wire.parse(frame).session][self.number] = vector.copy()
            self.world.spent[self.number].append(round)
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

    def __init__(self, store: Any, world: World, prefix: str = "") -> None:
        self._store, self._world, self._prefix = store, world, prefix

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        def watched(*args: Any, **more: Any) -> Any:
            self._world.step(f"before {self._prefix}{name}")
            found = call(*args, **more)
            self._world.step(f"after {self._prefix}{name}")
            return found

        return watched


@dataclass
class World:
    """A campaign: its plan, its files, its people, and what happened.

    Attributes:
        stops: the numbers of the steps at which the process dies; a step is before or after a call
            of the store or its ledger, or a frame.
        error: raised instead, with the process alive.
        on_step: called at each step, with what it is.
        ledger_at: the place of the ledger; None: in the file of the campaigns.
        jump: returns by how many seconds the server's clock is off at a call of the driver.
        domain: the candidates.
        hold: returns the items of a client, by its number.
        is_known: as for `Driver`.
    """

    folder: Path
    plan: Plan
    people: int = N
    stops: frozenset[int] = frozenset()
    error: type[Exception] | None = None
    deadlines: Deadlines = DEADLINES
    on_step: Callable[[str], None] | None = None
    ledger_at: str | None = None
    absent: Callable[[int, Kind], bool] = lambda number, kind: False  # who never answers what
    jump: Callable[[], int] = lambda: 0
    domain: Domain = DOMAIN
    hold: Callable[[int], list[Any]] = lambda number: [1 + number]
    is_known: Callable[[Sequence[CountSketch]], bool] | None = None

    def __post_init__(self) -> None:
        self.now, self.steps, self.processes = START, 0, 0
        self.log: list[str] = []
        # The vectors of each session, by client; and the rounds in which each client sent one.
        self.contributed: dict[bytes, dict[int, Any]] = defaultdict(dict)
        self.spent: dict[int, list[int]] = defaultdict(list)
        self.places: dict[bytes, dict[int, int]] = defaultdict(dict)  # in the roster, by session
        self.said: dict[tuple[bytes, Kind], set[bytes]] = defaultdict(set)  # to all alike
        self.rounds: dict[bytes, int] = {}
        self.opened_unreserved = False
        self.receipts: list[tuple[int, Receipt]] = []
        self.persons = [Person(self, number) for number in range(self.people)]
        self.ledger = None
        if self.plan.privacy is not None:
            place = self.ledger_at or self.folder / "campaign.db"
            self.ledger = Ledger.open(place, create=True)
            self.ledger.grant(self.plan.privacy.population, 100.0, 1e-6, START)
        self.driver = self.start()

    def step(self, what: str) -> None:
        self.steps += 1
        self.log.append(what)
        if self.on_step is not None:
            self.on_step(what)
        if self.steps in self.stops:
            raise (Crash if self.error is None else self.error)(what)

    def clock(self) -> int:
        """Return the time as the server's clock has it."""
        return self.now + self.jump()

    def campaigns(self) -> Campaigns:
        return Campaigns.open(self.folder / "campaign.db", create=True)

    def claim(self) -> Any:
        return self.campaigns().claim(
            self.plan,
            mark=self.folder / "mark",
            clock=lambda: self.now,
            owner="campaign",
            ledger=None if self.ledger is None else Watched(self.ledger, self, "ledger."),
        )

    def start(self) -> Driver:
        """Start a process: claim the campaign, make a driver."""
        dies = (Crash,) if self.error is None else (Crash, self.error)
        while True:
            self.processes += 1
            self.is_starting = True
            active = self.plan.secure_sum.parameters.adversary is Adversary.ACTIVE
            try:
                return Driver(
                    self.plan,
                    Watched(self.claim(), self),
                    ServerKeys(SERVER_KEY, ALLOWED if active else None),
                    self.deadlines,
                    random=stream(("process", self.processes)),
                    is_known=self.is_known,
                )
            except dies:
                continue
            finally:
                self.is_starting = False

    def hand(self, person: Person) -> None:
        """Let a client ask what to do, and answer the process that it has asked."""
        driver = self.driver
        driver.check_in(person.number, self.clock())
        frame = driver.next(person.number, self.clock())
        if frame is None:
            return
        message = wire.parse(frame)
        assert message is not None
        self.note(message, person.number)
        self.step(f"frame {message.kind.name} to {person.number}")
        if self.absent(person.number, message.kind):
            return
        answer = person.answer(frame, self.now)
        if answer is not None:
            person.answers.append(answer)
            self.step(f"answer of {person.number}")
            receipt = driver.receive(person.number, answer, self.clock())
            self.receipts.append((person.number, receipt))

    def note(self, message: wire.Frame, number: int) -> None:
        """Note what a client was told."""
        parameters = self.plan.secure_sum.parameters
        if message.kind is Kind.INVITE:
            self.rounds[message.session] = wire.decode_terms(
                wire.split_invite(message.body)[0]
            ).round
        if message.kind is Kind.ROSTER:
            if parameters.adversary is Adversary.ACTIVE:
                members = wire.decode_full_roster(message.body, len(ALLOWED)).members
                # A transport that carried another client's Advert under this name has this one told
                # a roster that it is not in: it has no place.
                if not members[number]:
                    return
                place = int(members[:number].sum())
            else:
                place = wire.decode_roster(message.body, parameters).own_index
            assert self.places[message.session].setdefault(number, place) == place
        if message.kind in (Kind.SURVIVORS, Kind.CONFIRMATIONS, Kind.RESULT):
            self.said[message.session, message.kind].add(message.body)
        round = self.rounds.get(message.session)
        opens = message.kind in (Kind.CONFIRMATIONS, Kind.RESULT) or (
            message.kind is Kind.SURVIVORS
            and self.plan.secure_sum.parameters.adversary is not Adversary.ACTIVE
        )
        if opens and self.ledger is not None and round is not None:
            reserved = self.ledger.reserved(self.plan.fingerprint)
            self.opened_unreserved |= release_of(self.plan, round) not in reserved

    def run(self, seconds: int = 1500, passes: int | None = None) -> World:
        """Let time pass until the campaign is over; processes die where `stops` says."""
        end = self.now + seconds
        caught = (Crash,) if self.error is None else (Crash, self.error)
        while self.now < end and not self.driver.is_complete and passes != 0:
            passes = None if passes is None else passes - 1
            driver = self.driver
            try:
                for person in self.persons:
                    self.hand(person)
                driver.tick(self.clock())
            except caught as stop:
                if isinstance(stop, Crash):
                    self.driver = self.start()
            except OvertakenError:
                assert driver.is_overtaken and driver is not self.driver
            except InvalidInputError:
                # It read the sessions before another process landed them, and restores them now.
                assert driver is not self.driver
            self.now += 5
        return self

    def landed(self) -> dict[int, tuple[int, Any]]:
        """Return what landed, by round: how many clients, and the sum."""
        return {
            sketch.round: (sketch.num_clients, sketch.vector)
            for sketch in self.claim().sums(self.plan)
        }

    def survivors(self, session: bytes) -> set[int]:
        """Return the clients whose vectors are in the sum of a session, as the clients know it."""
        [body] = self.said[session, Kind.SURVIVORS]
        bits = np.unpackbits(np.frombuffer(body, np.uint8), bitorder="little")
        return {number for number, place in self.places[session].items() if bits[place]}

    def check(self, everybody: bool = True, copies: bool = False) -> None:
        """Check what nothing may break: one bitmap, reserved first, nobody twice, an exact sum.

        Args:
            everybody: whether all people must be in the sums.
            copies: whether a copy of the file was put back, so that sums may be lost.
        """
        for (_, kind), bodies in self.said.items():
            assert len(bodies) == 1, f"clients were told two different {kind.name}"
        assert not self.opened_unreserved
        found = self.claim().sums(self.plan)
        status = self.campaigns().status(self.plan)
        length = self.plan.vector_length
        total = {round: np.zeros(length, np.int64) for round in range(self.plan.num_rounds)}
        summed: dict[int, list[int]] = defaultdict(list)
        for one in status.ended:
            if one.why is None:
                present = self.survivors(one.session)
                assert len(present) == one.num_clients
                summed[one.round] += present
                for number in present:
                    total[one.round] += self.contributed[one.session][number]
        for round, numbers in summed.items():
            assert len(numbers) == len(set(numbers)), f"a client is in two sums of round {round}"
            assert len(numbers) <= self.plan.max_round_clients
        assert {sketch.round for sketch in found} == set(summed), self.log[-40:]
        for sketch in found:
            assert (sketch.vector == total[sketch.round]).all()
            assert sketch.num_clients == len(summed[sketch.round])
        if not copies:
            privacy = self.plan.privacy
            most = 1 if privacy is None else privacy.event.lifetime
            for rounds in self.spent.values():
                assert len(rounds) == len(set(rounds)) <= most, "a client was asked too often"
        if self.ledger is not None:
            [population] = self.ledger.export()["populations"]
            reserved = {one["release"] for of in population["campaigns"] for one in of["releases"]}
            assert {release_of(self.plan, round) for round in summed} <= reserved
            assert len(population["campaigns"]) <= 1
        if everybody:
            assert sum(status.landed.values()) == self.people, self.log[-40:]

    def aborted(self) -> set[int]:
        """Return the clients that have ended a session without a result."""
        return {
            person.number
            for person in self.persons
            for client in person.sessions.values()
            if client.state is ClientState.ABORTED
        }

    def put_back(self, copy: Path) -> None:
        """Put a copy of the file back, and go on with it as `docs/deploying.md` says."""
        shutil.copy(copy, self.folder / "campaign.db")
        try:
            self.claim()
        except InvalidInputError:
            self.campaigns().give_up(self.plan, mark=self.folder / "mark", ledger=self.ledger)
        self.driver = self.start()
