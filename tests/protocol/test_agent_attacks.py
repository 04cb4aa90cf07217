"""The servers that lie of test_secagg_attacks, against agents in place of bare clients.

An agent must be at least as strict as the client that it guards: no lie may teach more, and each is
answered with the same code, or not at all.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import secagg_adversaries
import test_secagg_attacks as attacks
from agents import no_power_is_lost, policy, said  # noqa: F401
from cases import each_case
from secagg_adversaries import Run, Session, World
from secagg_cohort import NOW, SERVER_KEY, stream

from fedtally.agent.accepted import Campaign
from fedtally.agent.agent import Agent
from fedtally.agent.items import Items
from fedtally.campaign.client import FrequencyClient
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.secagg.client import Client
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.messages import AbortCode, ClientState
from fedtally.store import ClientRecord

DOMAIN = IntegerRange(1, 9)


class Vector(Items):
    """Items whose sketch is a vector of the world."""

    def __init__(self, vector: Any) -> None:
        super().__init__(lambda: [1])
        self._vector = vector

    def client(self, plan: Plan) -> FrequencyClient:
        client = super().client(plan)
        client.contribution = lambda *_: self._vector  # type: ignore[method-assign]
        client.drawn = lambda *_: client  # type: ignore[method-assign]
        return client


class Guard:
    """What a run talks to in place of a client: an agent, for one session of it."""

    def __init__(self, world: AgentWorld, rank: int, session: Session, item: int, label: Any):
        self._guarded = world.agents.get((rank, item))
        if self._guarded is None or session.id in self._guarded[1]:  # twice in one: restarted
            self._guarded = world.agents[rank, item] = (world.agent(rank, item), set())
        self._guarded[1].add(session.id)
        self._agent, self._session = self._guarded[0], session
        self._random = stream((world.seed, label, rank, session.number))
        self._client: Client | None = None
        self.code: AbortCode | None = None

    @property
    def state(self) -> ClientState:
        if self.code is not None:
            return ClientState.ABORTED
        return ClientState.NEW if self._client is None else self._client.state

    def receive(self, data: bytes, now: int) -> bytes | None:
        self._agent._random = self._random  # of this session, so that the world knows the secrets
        reply = self._agent.answer(data, now)
        live = self._agent._live.get(self._session.id)
        if live is not None:
            self._client = live.client
        code = said(reply)
        if isinstance(code, AbortCode):
            self.code = code
        elif self._client is not None and self._client.code is not None:
            self.code = self._client.code
        return reply


class AgentRun(Run):
    """An agent in one session."""

    def __init__(self, world: AgentWorld, rank: int, session: Session, item: int, label: Any):
        super().__init__(world, rank, session, item, label)
        self.client = Guard(world, rank, session, item, label)  # type: ignore[assignment]


class AgentWorld(World):
    """A world whose honest clients are agents of one plan."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.agents: dict[tuple[int, int], tuple[Agent, set[bytes]]] = {}
        listed = None if self.allow_list is None else self.allow_list.digest
        most = self.parameters.n_max
        self.plan = Plan(
            rows=1,
            width=self.parameters.length,
            schedule="fresh",
            num_rounds=4,
            num_clients=4 * most,
            max_round_clients=most,
            domain=DOMAIN.describe(),
            max_items=1,
            seed=bytes(32),
            secure_sum=SecAggConfig(
                parameters=self.parameters, server_key=SERVER_KEY.public, allow_list=listed
            ),
        )
        self.campaigns = {
            bytes.fromhex(self.plan.fingerprint): Campaign(self.plan, self.allow_list)
        }
        self.folder = Path(tempfile.mkdtemp())

    def agent(self, rank: int, item: int) -> Agent:
        """Return an agent with the record of an item, as a process that starts."""
        return Agent(
            policy(sums=self.policy),
            Vector(self.vectors[item]),
            self.campaigns,
            ClientRecord.open(self.folder / f"{item}.db", create=True),
            identity=self.identities[rank],
            random=bytes,
            now=NOW,
            once="the item",
        )

    def session(self, *arguments: Any, **changed: Any) -> Session:
        fingerprint = bytes.fromhex(self.plan.fingerprint)
        return super().session(*arguments, **({"fingerprint": fingerprint} | changed))


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Put agents in the place of clients."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(secagg_adversaries, "Run", AgentRun)
    monkeypatch.setattr(attacks, "World", AgentWorld)


@pytest.mark.parametrize("half", [0, 1])
def test_no_lie_teaches_more_than_the_claim(agents: None, half: int) -> None:
    for case in attacks.CASES[half::2]:
        learnt, codes = attacks.outcome(case)
        assert learnt == [], case.check
        # the record is asked at the Invite already, so that some attacks end before they begin
        assert codes & {case.code, AbortCode.ITEM_SPENT}, case.check


@each_case("case", attacks.REFUSALS, ids=lambda case: case.check)
def test_every_refusal_of_the_client_is_one_of_the_agent(agents: None, case: Any) -> None:
    refused = case.scenario(case.world())
    assert refused.client.code in (case.code, None)
    assert refused.client.state in (ClientState.NEW, ClientState.ABORTED)
