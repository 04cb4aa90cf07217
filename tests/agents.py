"""Agents in memory: with a record on disk, and in the world of a campaign."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from campaign_world import ALLOWED, PEOPLE, SERVER_KEY, START, World
from secagg_cohort import stream

from fedtally.agent.accepted import Campaign
from fedtally.agent.agent import Agent, Note
from fedtally.agent.demands import KINDS, OPEN, AgentPolicy
from fedtally.agent.items import Items
from fedtally.agent.reading import Reading, Start, at_once
from fedtally.campaign.client import FrequencyClient
from fedtally.plan import Plan
from fedtally.privacy.budget import Cap
from fedtally.secagg import wire
from fedtally.secagg.messages import AbortCode, Kind
from fedtally.secagg.params import Adversary, ClientPolicy
from fedtally.secagg.server import Server
from fedtally.store import ClientRecord, database, marks


@pytest.fixture(autouse=True)
def no_power_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be written without waiting for the disk: most of the time of these tests."""
    prepare = database._prepare_sqlite

    def unsynced(connection: Any, about: Any) -> None:
        prepare(connection, about)
        connection.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(database, "_prepare_sqlite", unsynced)
    monkeypatch.setattr(marks.os, "fsync", lambda handle: None)


def policy(adversary: str = "semi-honest", **changed: Any) -> AgentPolicy:
    """Return a policy that takes the plans of `campaign_world`."""
    given: dict[str, Any] = {
        "sums": ClientPolicy(adversary=Adversary.parse(adversary), min_honest=2),
        "cap": None,
    }
    return AgentPolicy(**(given | changed))


def campaign_of(plan: Plan) -> Campaign:
    active = plan.secure_sum.parameters.adversary is Adversary.ACTIVE
    return Campaign(plan, ALLOWED if active else None)


class Guarded:
    """An agent with its files and its log.

    Attributes:
        agent: the agent; `restart` puts a new one in its place.
        log: what it noted.
    """

    def __init__(
        self,
        folder: Path,
        *plans: Plan,
        number: int = 0,
        policy: AgentPolicy | None = None,
        read: Callable[[], Any] | None = None,
        once: str | None = "first",
        items: Items | None = None,
    ) -> None:
        self.folder, self.number, self.once = folder, number, once
        self.plans = {bytes.fromhex(plan.fingerprint): campaign_of(plan) for plan in plans}
        self.policy = policy if policy is not None else _policy_of(plans[0])
        self.items = items or Items(read or (lambda: [1 + number]))
        self.log: list[Note] = []
        self.starts = 0
        for name in ("record", "key"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self.restart()

    @property
    def record_path(self) -> Path:
        return self.folder / "record" / "record.db"

    @property
    def mark_path(self) -> Path:
        return self.folder / "key" / "record.mark"

    def restart(self) -> Guarded:
        """Start the process anew: sessions are gone, the record is there."""
        self.starts += 1
        self.record = ClientRecord.open(self.record_path, create=True, mark=self.mark_path)
        self.agent = Agent(
            self.policy,
            self.items,
            self.plans,
            self.record,
            identity=PEOPLE[self.number],
            random=stream(("agent", self.number, self.starts)),
            log=self.log.append,
            once=self.once,
            now=START,
        )
        return self

    def answer(self, frame: bytes, now: float = START) -> bytes | Reading | None:
        return self.agent.answer(frame, now)

    def said(self, frame: bytes, now: float = START) -> Kind | AbortCode | None:
        """Return what an answer is: a type, a code, or nothing."""
        return said(self.answer(frame, now))

    @property
    def sessions(self) -> int:
        """How many sessions the record holds."""
        return self.record.standing(0, "clients", "no plan", 0, None).sessions

    @property
    def notes(self) -> str:
        return "\n".join(map(str, self.log))


def _policy_of(plan: Plan) -> AgentPolicy:
    cap = None if plan.privacy is None else Cap(100.0, 1e-6)
    domains = (*KINDS, OPEN) if plan.is_open else KINDS
    return policy(plan.secure_sum.parameters.adversary, cap=cap, central=True, domains=domains)


def said(answer: bytes | Reading | None) -> Kind | AbortCode | None:
    """Return the type of a frame; of an Abort its code; None: there is no frame."""
    if not answer:
        return None
    assert isinstance(answer, bytes), "the items are being read"
    message = wire.parse(answer)
    assert message is not None
    return wire.decode_abort(message.body) if message.kind is Kind.ABORT else message.kind


def session_of(plan: Plan, label: object = 0, round: int = 0, **changed: Any) -> Server:
    """Return a session of a plan's own server, as a server that does what it likes opens it."""
    given: dict[str, Any] = {
        "session": stream(("session", label))(32),
        "signing_key": SERVER_KEY,
        "fingerprint": bytes.fromhex(plan.fingerprint),
        "round": round,
        "not_before": START - 10,
        "not_after": START + 600,
        "salt": bytes(32),
        "random": stream(("server", label)),
    }
    given |= changed
    if "allow_list" not in given:
        given["allow_list"] = campaign_of(plan).allow_list
    return Server(given.pop("parameters", plan.secure_sum.parameters), **given)


class Seat:
    """An agent in the place of a person of the world."""

    def __init__(self, world: World, number: int) -> None:
        self.number, self.world, self.items = number, world, _Noted(world, number)
        self.waits = 0  # for items
        self.answers: list[bytes] = []
        self.guarded = Guarded(
            world.folder / f"agent{number}", world.plan, number=number, items=self.items
        )

    def answer(self, frame: bytes, now: int) -> bytes | None:
        self.expect(frame)
        while isinstance(found := self.guarded.answer(frame, now), Reading):
            self.waits += 1
            found.run()
        return found

    def expect(self, frame: bytes) -> None:
        """Note which session the agent is asked in now."""
        message = wire.parse(frame)
        assert message is not None
        self.items.session = message.session


class _Noted(Items):
    """Items whose contributions the world writes down."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(lambda: world.hold(number), start=world.read_by)
        self._world, self._number = world, number
        self.session = b""

    def client(self, plan: Plan) -> FrequencyClient:
        client = super().client(plan)
        contribution = client.contribution

        def noted(round: int, random: Callable[[int], bytes] | None = None) -> Any:
            vector = contribution(round, random)
            self._world.contributed[self.session][self._number] = vector.copy()
            self._world.spent[self._number].append(round)
            return vector

        client.contribution = noted  # type: ignore[method-assign]
        client.drawn = lambda *_: client  # type: ignore[method-assign]
        return client


class AgentWorld(World):
    """The world of a campaign whose clients are agents.

    Attributes:
        read_by: how they read their items.
    """

    read_by: Start = staticmethod(at_once)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.persons = [Seat(self, number) for number in range(self.people)]  # type: ignore[misc]
