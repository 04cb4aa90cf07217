"""A server that lies, and that let its own keys into the list, sums a client among those alone.

The client's owner demands three clients that it knows. Attack 1: whoever chooses the roster leaves
them out, or lets too few of them in, or says that they are there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import Guarded, no_power_is_lost, policy, said, session_of  # noqa: F401
from campaign_world import ALLOWED, PEOPLE, SERVER_KEY, START, N, plan_of
from secagg_cohort import stream

from fedtally.agent.agent import refusals
from fedtally.plan import Plan
from fedtally.secagg import wire
from fedtally.secagg.client import Client, MemoryJournal, Pinned
from fedtally.secagg.messages import AbortCode, Kind, ServerState
from fedtally.secagg.params import ClientPolicy
from fedtally.secagg.server import Server

ACTIVE = plan_of("active", max_dropout=0.25)
VICTIM, FRIENDS = 0, (10, 11, 12)  # ranks in the list; nobody else is honest
ITEM = 37


class Attack:
    """A session of a server that lies, around one agent.

    Args:
        folder: for the agent's files.
        others: the ranks of those in the roster but the victim. All of them send zeros, without
            noise: their keys are the server's, or they hold nothing.
        known: the ranks that the victim knows.
        least_known: how many of them it demands.
    """

    def __init__(
        self,
        folder: Path,
        others: Iterable[int],
        *,
        known: Iterable[int] = FRIENDS,
        least_known: int = 3,
        plan: Plan = ACTIVE,
    ) -> None:
        self.victim = Guarded(
            folder,
            plan,
            number=VICTIM,
            policy=_demands(known, least_known),
            read=lambda: [ITEM],
        )
        self.server = session_of(plan)
        self.others = {rank: _zeros(plan, rank) for rank in others}
        self.to_victim: Callable[[bytes], bytes] = lambda frame: frame

    def ask(self, who: Any, frame: bytes) -> bytes | None:
        if who == VICTIM:
            return self.victim.answer(self.to_victim(frame))
        other = self.others.get(who)
        return None if other is None else other.receive(frame, START)

    def run(self, gone: Iterable[int] = (), at: ServerState | None = None) -> Server:
        """Run the session; some leave before they answer in a phase."""
        server = self.server
        for who in (VICTIM, *self.others):
            answer = self.ask(who, server.invite)
            assert answer is not None
            server.receive(who, answer)
        while server.state not in (ServerState.DONE, ServerState.ABORTED):
            server.close_phase(START)
            if server.state is at:
                for rank in gone:
                    self.others.pop(rank).abandon()
            for who, frame in list(server.outgoing()):
                if answer := self.ask(who, frame):
                    server.receive(who, answer)
        return server

    @property
    def reached(self) -> list[Kind]:
        """What the victim's session came to, by its own log."""
        steps = {"joined": Kind.ADVERTISE, "contributed": Kind.MASKED_INPUT, "unmask": Kind.UNMASK}
        return [kind for word, kind in steps.items() if f": {word}" in self.victim.notes]

    @property
    def is_charged(self) -> bool:
        return bool(self.victim.record.participations(ACTIVE.fingerprint))


def _demands(known: Iterable[int], least_known: int) -> Any:
    sums = ClientPolicy(
        adversary="active",
        min_honest=2,
        known=frozenset(PEOPLE[rank].public for rank in known),
        least_known=least_known,
    )
    return policy(sums=sums)


def _zeros(plan: Plan, rank: int) -> Client:
    pinned = Pinned(
        server_key=SERVER_KEY.public,
        fingerprint=bytes.fromhex(plan.fingerprint),
        allow_list=ALLOWED,
        parameters=plan.secure_sum.parameters,
        round=0,
    )
    return Client(
        ClientPolicy(adversary="active", min_honest=2),
        pinned,
        lambda _: np.zeros(plan.vector_length, np.int64),
        journal=MemoryJournal(),
        random=stream(("zeros", rank)),
        identity=PEOPLE[rank],
    )


def test_without_the_demand_the_sum_is_the_clients_own_vector(tmp_path: Path) -> None:
    """The attack reaches the sum: seven of the server's keys, C = 1, and nothing is demanded."""
    attack = Attack(tmp_path, range(1, N), known=(), least_known=0)
    outcome = attack.run().outcome
    assert outcome is not None and outcome.survivors == N
    assert np.count_nonzero(outcome.total) == ACTIVE.rows  # one entry a row: one item
    assert attack.reached == [Kind.ADVERTISE, Kind.MASKED_INPUT, Kind.UNMASK]


@pytest.mark.parametrize("there", [(), FRIENDS[:1], FRIENDS[:2]], ids=len)
def test_a_roster_that_leaves_known_clients_out_gets_no_vector(
    tmp_path: Path, there: tuple[int, ...]
) -> None:
    attack = Attack(tmp_path, (*range(1, N - len(there)), *there))
    attack.run()
    assert attack.reached == [Kind.ADVERTISE]  # it dealt its shares, and heard of the roster
    assert "ended (TOO_FEW_OPENED): at least 3 of the known keys" in attack.victim.notes
    assert f"be in the sum by this client's policy (least_known), got {len(there)}" in (
        attack.victim.notes
    )
    assert not attack.is_charged and not attack.victim.agent._live
    [ended] = attack.victim.agent._ended.values()
    assert said(ended.reply) is AbortCode.TOO_FEW_OPENED  # all that the server is told


def test_with_enough_known_clients_there_is_a_sum(tmp_path: Path) -> None:
    attack = Attack(tmp_path, (*range(1, N - 3), *FRIENDS))
    outcome = attack.run().outcome
    assert outcome is not None and outcome.survivors == N
    assert attack.reached == [Kind.ADVERTISE, Kind.MASKED_INPUT, Kind.UNMASK]


@pytest.mark.parametrize("least_known", [2, 3])
def test_a_known_client_that_drops_out_after_its_shares_is_none_in_the_sum(
    tmp_path: Path, least_known: int
) -> None:
    attack = Attack(tmp_path, (*range(1, N - 3), *FRIENDS), least_known=least_known)
    attack.run(gone=FRIENDS[:1], at=ServerState.COLLECT)
    assert attack.is_charged  # its shares were there when the vector left
    if least_known == 3:
        assert attack.reached == [Kind.ADVERTISE, Kind.MASKED_INPUT]
        assert "ended (BELOW_MIN_SURVIVORS): at least 3 of the known keys" in attack.victim.notes
    else:
        assert attack.reached == [Kind.ADVERTISE, Kind.MASKED_INPUT, Kind.UNMASK]


def test_shares_of_a_known_client_that_do_not_open_are_none(tmp_path: Path) -> None:
    """The server passes on something else: the known client is in the roster, and in another
    one."""
    attack = Attack(tmp_path, (*range(1, N - 3), *FRIENDS))

    def spoilt(frame: bytes) -> bytes:
        message = wire.parse(frame)
        assert message is not None
        if message.kind is not Kind.INBOX:
            return frame
        inbox = wire.decode_inbox(message.body, N - 1)
        index = sorted((*range(1, N - 3), *FRIENDS)).index(FRIENDS[0])
        sealed = [bytes(56) if i == index else one for i, one in enumerate(inbox.sealed)]
        return frame[: -len(b"".join(sealed))] + b"".join(sealed)

    attack.to_victim = spoilt
    attack.run()
    assert attack.reached == [Kind.ADVERTISE]
    assert "ended (TOO_FEW_OPENED): at least 3 of the known keys" in attack.victim.notes
    assert "got 2" in attack.victim.notes
    # Nor do they make up for one that drops out, though the server says that they are there.
    attack = Attack(tmp_path / "later", (*range(1, N - 3), *FRIENDS), least_known=2)
    attack.to_victim = spoilt
    attack.run(gone=FRIENDS[1:2], at=ServerState.COLLECT)
    assert attack.reached == [Kind.ADVERTISE, Kind.MASKED_INPUT]
    assert "ended (BELOW_MIN_SURVIVORS): at least 2 of the known keys" in attack.victim.notes
    assert "got 1" in attack.victim.notes


def test_ones_own_key_is_no_client_that_one_knows(tmp_path: Path) -> None:
    """In the roster: two of the others are known. In the list: so many are listed at most."""
    own = (VICTIM, *FRIENDS)
    attack = Attack(tmp_path / "roster", (*range(1, N - 2), *FRIENDS[:2]), known=own)
    attack.run()
    assert attack.reached == [Kind.ADVERTISE] and "got 2" in attack.victim.notes
    attack = Attack(tmp_path / "list", range(1, N), known=own, least_known=4)
    victim, [campaign] = attack.victim, attack.victim.plans.values()
    assert victim.said(attack.server.invite) is AbortCode.POLICY
    [reason] = refusals(
        campaign, victim.policy, victim.items, PEOPLE[VICTIM], victim.record, "first"
    )
    assert "at least 4 of the known keys of other clients must be in the allow-list" in reason
    assert reason.endswith("got 3")


def test_a_plan_whose_clients_have_no_keys_is_refused(tmp_path: Path) -> None:
    demands = _demands(FRIENDS, 1)
    demands = dataclasses.replace(
        demands, sums=dataclasses.replace(demands.sums, adversary="semi-honest")
    )
    plan = plan_of()
    victim = Guarded(tmp_path, plan, number=VICTIM, policy=demands)
    assert victim.said(session_of(plan).invite) is AbortCode.POLICY
    assert "have no keys: ask for a plan with --adversary active" in victim.notes
    # against an active server the same owner takes part, and is served as well
    victim = Guarded(tmp_path / "active", ACTIVE, number=VICTIM, policy=demands)
    assert victim.said(session_of(ACTIVE).invite) is Kind.ADVERTISE


def test_a_plan_of_too_few_clients_is_refused_before_a_session(tmp_path: Path) -> None:
    plan = plan_of("active", clients=6)
    for least_known, expected in ((5, Kind.ADVERTISE), (6, AbortCode.POLICY)):
        folder = tmp_path / str(least_known)
        victim = Guarded(folder, plan, policy=_demands(range(10, 20), least_known))
        assert victim.said(session_of(plan).invite) is expected
    assert "n_max - 1 must be at least 6 by this client's policy (least_known), got 5" in (
        victim.notes
    )
