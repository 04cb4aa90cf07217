"""The agent: what it answers, whatever comes, and what its record and its owner refuse."""

from __future__ import annotations

import copy
import dataclasses
import pickle  # noqa: TID251 - to see that it is refused
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import AgentWorld, Guarded, no_power_is_lost, policy, said, session_of  # noqa: F401
from campaign_world import ALLOWED, DOMAIN, PEOPLE, ROWS, SERVER_KEY, START, WIDTH, N, plan_of
from cases import each_case
from secagg_cohort import flips, stream

import fedtally
from fedtally.agent import agent as agent_module
from fedtally.agent.accepted import Campaign
from fedtally.agent.agent import DAY, MOST_ENDED, MOST_SESSIONS, Note, check_binds, refusals
from fedtally.agent.items import Items, of_file
from fedtally.agent.reading import Reading
from fedtally.agent.settings import TEMPLATE
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.enrolment import Authority, day_of, end_of, sign_plan
from fedtally.crypto.keys import Label, Secret, SigningKey
from fedtally.domain import Dictionary, Strings
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.privacy.budget import Cap
from fedtally.privacy.events import Trust
from fedtally.secagg import wire
from fedtally.secagg.messages import AbortCode, ClientState, Kind, ServerState
from fedtally.secagg.params import ClientPolicy
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import Server
from fedtally.store import ClientRecord, StoreError

PLAN = plan_of()
ACTIVE = plan_of("active")
PRIVATE = plan_of("active", "distributed", rounds=3)
ROUNDS = plan_of(rounds=8)
MANY = dataclasses.replace(ROUNDS, schedule="fresh")


def team(folder: Path, *plans: Plan, **given: Any) -> list[Guarded]:
    """Return as many agents as a session has."""
    return [Guarded(folder / str(i), *plans, number=i, **given) for i in range(N)]


def step(server: Server, agents: list[Guarded], now: int = START) -> list[bytes]:
    """Carry a phase of a session to all agents; return what each of them was asked."""
    asked = [asked_of(server, i) for i in range(len(agents))]
    for i, frame in enumerate(asked):
        answer = agents[i].answer(frame, now)
        if answer is not None:
            server.receive(i, answer)
    server.close_phase(now)
    return asked


def asked_of(server: Server, client: int = 0) -> bytes:
    if server.state is ServerState.ADVERTISE:
        return server.invite
    return next(frame for to, frame in server.outgoing() if to == client)


def open_session(plan: Plan, label: object, agents: list[Guarded], **changed: Any) -> Server:
    """Return a session in which all agents advertised."""
    server = session_of(plan, label, **changed)
    step(server, agents)
    return server


# ---- whole campaigns ----


@each_case(
    ("adversary", "trust", "rounds"),
    [
        ("semi-honest", None, 1),
        ("active", None, 1),
        ("active", "distributed", 2),
        ("semi-honest", "central", 1),
    ],
)
def test_a_campaign_of_agents_lands_the_sums_of_their_contributions(
    tmp_path: Path, adversary: str, trust: str | None, rounds: int
) -> None:
    folder = tmp_path / f"{adversary}-{trust}"
    folder.mkdir()
    world = AgentWorld(folder, plan_of(adversary, trust, rounds=rounds), people=rounds * N)
    world.run()
    assert world.driver.is_complete, world.persons[0].guarded.notes
    world.check()


@each_case(
    ("adversary", "trust"),
    [("semi-honest", None), ("active", None), ("active", "distributed")],
)
def test_items_that_come_later_are_in_the_sum_all_the_same(
    tmp_path: Path, adversary: str, trust: str | None
) -> None:
    folder = tmp_path / f"{adversary}-{trust}"
    folder.mkdir()

    class Later(AgentWorld):
        @staticmethod
        def read_by(work: Any, *, in_steps: bool = False) -> Reading:
            return Reading(work, 600.0)

    world = Later(folder, plan_of(adversary, trust))
    world.run()
    assert world.driver.is_complete, world.persons[0].guarded.notes
    assert {seat.waits for seat in world.persons} == {1}  # type: ignore[attr-defined]
    assert "zeros" not in world.persons[0].guarded.notes
    world.check()


def test_a_server_that_dies_at_any_phase_gets_the_same_answers_again(tmp_path: Path) -> None:
    world = AgentWorld(
        tmp_path, plan_of("active", "distributed"), stops=frozenset(range(15, 150, 25))
    )
    world.run()
    assert world.processes > 5
    world.check()


def test_agents_of_silos_land_the_sum_of_the_local_engine(tmp_path: Path) -> None:
    parameters = propose(
        N, length=ROWS * WIDTH + 1, bits=16, corrupt=1, max_dropout=0.0, adversary="active"
    )
    terms = dataclasses.replace(ACTIVE.secure_sum, parameters=parameters)
    plan = dataclasses.replace(ACTIVE, people=30, secure_sum=terms)
    rng = np.random.default_rng(22)
    rows: list[tuple[int, str, int]] = []
    for silo, people in enumerate([30, 1, 7, 12, 30, 2, 5, 19]):
        own = [(int(rng.integers(1, 51)), f"{silo}-{i}", silo) for i in range(people)]
        lines = ["code,patient", *(f"{code},{person}" for code, person, _ in own)]
        (tmp_path / f"{silo}.csv").write_text("\n".join(lines))
        rows += own
    agents = [
        Guarded(
            tmp_path / str(i),
            plan,
            number=i,
            items=Items(of_file(tmp_path / f"{i}.csv", "code", None, "patient"), of_people=True),
        )
        for i in range(N)
    ]
    server = session_of(plan)
    while server.outcome is None:
        step(server, agents)
    codes, patients, silos = (list(column) for column in zip(*rows, strict=True))
    local = fedtally.estimate(
        codes, clients=patients, silos=silos, plan=plan.without_keys(), domain=DOMAIN, seed=1
    )
    [sketch] = local.sketches
    expected = np.append(sketch.counters, sketch.num_clients)
    np.testing.assert_array_equal(server.outcome.total, expected)
    assert (sketch.num_clients, sketch.num_silos) == (len(rows), N)
    # an agent of one person takes no part in it, nor that of a silo in a plan of clients
    one = Guarded(tmp_path / "one", plan, ACTIVE)
    assert one.said(session_of(plan, "other").invite) is not Kind.ADVERTISE
    assert "name the column of the people" in one.notes
    silo = Guarded(tmp_path / "silo", ACTIVE, items=agents[0].items)
    assert silo.said(session_of(ACTIVE, "third").invite) is not Kind.ADVERTISE
    assert "items of many people" in silo.notes


def test_items_that_are_no_candidates_are_left_out_and_one_of_the_others_is_drawn(
    tmp_path: Path,
) -> None:
    """Under a plan of one item without epsilon; the vector that left is the only one ever drawn."""

    def alone(item: int) -> Any:
        return FrequencyClient(PLAN, DOMAIN, [item]).contribution(0)

    others = sum(alone(1 + i) for i in range(1, N))
    drawn = set()
    for label in range(12):
        agents = team(tmp_path / str(label), PLAN)
        agents[0] = Guarded(tmp_path / f"drawing {label}", PLAN, read=lambda: [30, 40, 51])
        agents[0].agent._random = stream(("drawing", label))
        server = open_session(PLAN, label, agents)
        while server.outcome is None:
            frame = asked_of(server)
            answer = agents[0].answer(frame)
            assert answer is not None and agents[0].answer(frame) == answer
            step(server, agents)
        own = server.outcome.total - others
        drawn.add(next(item for item in (30, 40) if (own == alone(item)).all()))
        again = session_of(PLAN, f"again {label}").invite
        assert agents[0].restart().said(again) is AbortCode.ITEM_SPENT
    assert drawn == {30, 40}


# ---- frames that come again, late, or never ----


@each_case("plan", [PLAN, ACTIVE], ids=lambda plan: plan.secure_sum.parameters.adversary)
def test_a_frame_that_comes_again_gets_the_same_bytes_also_after_the_end(
    tmp_path: Path, plan: Plan
) -> None:
    folder = tmp_path / plan.fingerprint[:8]
    agents = team(folder, plan)
    server = session_of(plan)
    first, asked, answers = agents[0], [], []
    while server.outcome is None:
        frame = asked_of(server)
        answers.append(first.answer(frame))
        assert answers[-1] is not None and first.answer(frame) == answers[-1]
        step(server, agents)
        assert first.answer(frame) == answers[-1]
        # what was answered before is dropped, and ends nothing
        assert [first.answer(old) for old in asked] == [None] * len(asked)
        asked.append(frame)
    assert not first.agent._live
    assert said(answers[-1]) is Kind.UNMASK
    assert first.answer(asked[-1]) == answers[-1]
    assert first.answer(asked_of(server)) is None  # the Result
    assert f"the sum of {N} vectors" in first.notes
    # not after not_after
    assert first.answer(asked[-1], START + 601) is None


def test_an_abort_is_repeated_too(tmp_path: Path) -> None:
    agents = team(tmp_path, PLAN)
    server = open_session(PLAN, 0, agents)
    roster = bytearray(asked_of(server))
    roster[wire.HEADER.size] ^= 255  # the number of clients
    answer = agents[0].answer(bytes(roster))
    assert said(answer) is AbortCode.ROSTER_INVALID
    assert agents[0].answer(bytes(roster)) == answer
    assert agents[0].answer(asked_of(server)) is None
    assert not agents[0].agent._live
    assert "ROSTER_INVALID" in agents[0].notes


def test_an_agent_that_was_restarted_answers_in_no_session_that_it_began(tmp_path: Path) -> None:
    agents = team(tmp_path, PLAN)
    server = open_session(PLAN, 0, agents)
    first = agents[0].restart()
    assert first.said(asked_of(server)) is None
    assert first.said(server.invite) is AbortCode.SESSION_SEEN
    assert first.said(asked_of(server)) is None
    assert "began before the agent was started" in first.notes
    # and it may take part in the next one
    assert first.said(session_of(PLAN, 1).invite) is Kind.ADVERTISE


def test_only_the_last_answers_are_kept(tmp_path: Path) -> None:
    one = Guarded(tmp_path, PLAN, policy=policy(sessions_a_day=1000))
    for label in range(MOST_ENDED + 5):
        invite = session_of(PLAN, label).invite
        assert one.said(invite) is Kind.ADVERTISE
        message = wire.parse(invite)
        assert message is not None
        one.answer(wire.frame(Kind.ABORT, message.session, wire.SERVER, bytes([15])))
    assert len(one.agent._ended) == MOST_ENDED
    # what was dropped is in the record
    assert one.said(session_of(PLAN, 0).invite) is AbortCode.SESSION_SEEN
    assert "the server ended it (TOO_FEW_CLIENTS)" in one.notes


# ---- several sessions ----


def test_two_sessions_at_once_and_the_record_lets_one_of_them_have_the_item(tmp_path: Path) -> None:
    agents = team(tmp_path, PLAN)
    servers = [open_session(PLAN, label, agents) for label in range(2)]
    for server in servers:
        step(server, agents)
    first, second = (asked_of(server) for server in servers)
    assert agents[0].said(first) is Kind.MASKED_INPUT
    assert agents[0].said(second) is AbortCode.ITEM_SPENT
    assert "took part in round 0" in agents[0].notes


def test_a_fifth_session_never_displaces_one_that_dealt_shares(tmp_path: Path) -> None:
    agents = team(tmp_path, MANY)
    first = agents[0]
    servers = [open_session(MANY, label, agents, round=label) for label in range(MOST_SESSIONS)]
    for server in servers[1:]:
        step(server, agents)  # shares were dealt, but in the oldest
    fifth = session_of(MANY, "fifth", round=5)
    assert first.said(fifth.invite) is Kind.ADVERTISE  # the oldest made room
    assert "left for a newer session" in first.notes
    assert first.said(asked_of(servers[0])) is None
    assert len(first.agent._live) == MOST_SESSIONS
    # now the fifth is the only one that may be left
    sixth = session_of(MANY, "sixth", round=6)
    assert first.said(sixth.invite) is Kind.ADVERTISE
    assert first.said(fifth.invite) is AbortCode.SESSION_SEEN
    for one in agents[1:]:
        one.answer(sixth.invite)
    assert len(first.agent._live) == MOST_SESSIONS


def test_where_all_sessions_dealt_shares_an_invite_waits(tmp_path: Path) -> None:
    agents = team(tmp_path, MANY)
    first = agents[0]
    servers = [open_session(MANY, label, agents, round=label) for label in range(MOST_SESSIONS)]
    for server in servers:
        step(server, agents)
    fifth = session_of(MANY, "fifth", round=5).invite
    assert first.said(fifth) is None
    assert "busy" in first.notes
    assert first.said(asked_of(servers[0])) is Kind.MASKED_INPUT
    # nothing was recorded: there is room once a session has ended
    message = wire.parse(asked_of(servers[1]))
    assert message is not None
    first.answer(wire.frame(Kind.ABORT, message.session, wire.SERVER, bytes([15])))
    assert first.said(fifth) is AbortCode.ITEM_SPENT  # by the label: the items went into round 0
    assert all(one.client.state is not ClientState.ADVERTISED for one in first.agent._live.values())
    first.agent._once = "new items"
    assert first.said(fifth) is Kind.ADVERTISE


def test_a_session_ends_with_its_time_and_frees_its_place(tmp_path: Path) -> None:
    agents = team(tmp_path, MANY)
    servers = [open_session(MANY, label, agents, round=label) for label in range(MOST_SESSIONS)]
    for server in servers:
        step(server, agents)
    first = agents[0]
    secrets = [live.client._secrets for live in first.agent._live.values()]
    assert all(one.elements.any() for one in secrets)
    late = START + 601
    # a server that asks too late hears it; the others of its time are over as well
    assert first.said(asked_of(servers[0]), late) is AbortCode.EXPIRED
    assert not first.agent._live
    assert not any(one.elements.any() for one in secrets)
    assert "ran out of time" in first.notes
    fifth = session_of(MANY, "fifth", round=5, not_before=late, not_after=late + 60)
    assert first.said(fifth.invite, late) is Kind.ADVERTISE


# ---- Invites ----


def test_a_round_that_the_client_took_part_in_is_refused_at_the_invite(tmp_path: Path) -> None:
    agents = team(tmp_path, MANY)
    server = session_of(MANY)
    while server.outcome is None:
        step(server, agents)
    draws = []
    agents[0].agent._random = lambda size: draws.append(size) or bytes(size)
    for label in ("again", "and again"):
        assert agents[0].said(session_of(MANY, label).invite) is AbortCode.ITEM_SPENT
    assert not draws  # no key was made for it
    # the label is spent, whatever the round and the plan
    assert agents[0].said(session_of(MANY, 2, round=2).invite) is AbortCode.ITEM_SPENT


FOREIGN = SigningKey(Secret(bytes(32)))


@each_case(
    ("changed", "expected", "note"),
    [
        ({"signing_key": FOREIGN}, None, "did not sign"),
        ({"fingerprint": bytes(32)}, None, "was not accepted"),
        ({"fingerprint": bytes.fromhex(ACTIVE.fingerprint)}, None, "was not accepted"),
        ({"not_after": START - 5}, AbortCode.EXPIRED, "EXPIRED"),
        ({"not_before": START + 5}, AbortCode.EXPIRED, "EXPIRED"),
        ({"not_after": START + 10**7}, AbortCode.POLICY, "a session may last at most"),
        ({"round": 1}, AbortCode.POLICY, "the plan has 1 rounds"),
        ({"round": 2**32 - 1}, AbortCode.POLICY, "the plan has 1 rounds"),
        (
            {"parameters": dataclasses.replace(PLAN.secure_sum.parameters, min_survivors=5)},
            AbortCode.POLICY,
            "other parameters than its plan",
        ),
    ],
)
def test_an_invite_that_is_not_of_the_plan(
    tmp_path: Path, changed: dict[str, Any], expected: AbortCode | None, note: str
) -> None:
    one = Guarded(tmp_path / str(note), PLAN)
    frame = session_of(PLAN, repr(changed), **changed).invite
    before = one.sessions
    assert one.said(frame) is expected
    assert one.said(frame) is expected
    assert note in one.notes
    assert one.sessions == before
    assert not one.agent._live and not one.agent._ended


@each_case("key", [SERVER_KEY, FOREIGN])
@each_case("version", [0, 2, 255])
@each_case("more", [b"", bytes(7)])
def test_an_invite_of_another_version_is_named_by_the_two_versions_alone(
    tmp_path: Path, key: SigningKey, version: int, more: bytes
) -> None:
    """Whoever signed it: another version may have other fields, so nothing of it is believed."""
    case = f"{version} {len(more)} {key is FOREIGN}"
    one, server = Guarded(tmp_path / case, PLAN), session_of(PLAN, case)
    terms = wire.split_invite(server.invite[48:])[0] + more
    header = bytearray(wire.frame(Kind.INVITE, server.invite[8:40], wire.SERVER, terms + bytes(64)))
    header[4] = version
    head = bytes(header[:48])
    before = one.sessions
    assert one.said(head + terms + key.sign(Label.INVITE, head, terms)) is None
    assert one.sessions == before
    assert not one.agent._live and not one.agent._ended
    said = (
        f"dropped an Invite of version {version} of the protocol: this agent speaks version 1, and"
        " cannot check who sent it"
    )
    assert one.log == [Note(said)]  # without a session, plan or round
    # nothing is spent: the same agent joins this session by an Invite of its own version
    assert one.said(server.invite) is Kind.ADVERTISE


def knowing(one: SigningKey, adversary: str) -> ClientPolicy:
    known = frozenset({one.public})
    return ClientPolicy(adversary=adversary, min_honest=2, known=known, least_known=1)


ENTRIES = re.findall(r"^(?:# > )?(\w+) = ", TEMPLATE.split("[policy]")[1], re.MULTILINE)


def other(plan: Plan, **changed: Any) -> Plan:
    return dataclasses.replace(plan, **changed)


@each_case(
    ("plan", "changed", "says"),
    [
        (
            PLAN,
            {"sums": ClientPolicy(adversary="active", min_honest=2)},
            "adversary must be active",
        ),
        (PLAN, {"sums": ClientPolicy(adversary="semi-honest", min_honest=7)}, "must be at least 7"),
        (
            PLAN,
            {"sums": ClientPolicy(adversary="semi-honest", min_honest=2, corrupt=3)},
            "corrupt must be at least 3",
        ),
        (
            PLAN,
            {"sums": ClientPolicy(adversary="semi-honest", min_honest=2, min_clients=9)},
            "n_min must be at least 9",
        ),
        (
            PLAN,
            {"sums": ClientPolicy(adversary="semi-honest", min_honest=2, max_clients=7)},
            "n_max must be at most 7",
        ),
        (
            PLAN,
            {"sums": ClientPolicy(adversary="semi-honest", min_honest=2, max_length=47)},
            "length must be at most 47",
        ),
        (PLAN, {"cap": Cap(1.0, 1e-6)}, "the plan has none"),
        (PRIVATE, {"cap": Cap(0.5, 1e-6)}, "demands epsilon 0.5 at most"),
        (plan_of("active", "central"), {"cap": Cap(9.0, 1e-6)}, "the server sees exact sums"),
        (PLAN, {"domains": ("grid",)}, "the domain must be one of grid"),
        (PLAN, {"domains": ("range:1..49", "dictionary")}, "got range:1..50"),
        (other(PLAN, max_items=2), {}, "max_items must be at most 1"),
        (ACTIVE, {"sums": knowing(FOREIGN, "active")}, "known keys of other clients must be in"),
        (ACTIVE, {"sums": knowing(PEOPLE[0], "active")}, "policy (least_known), got 0"),
        (PLAN, {"sums": knowing(PEOPLE[1], "semi-honest")}, "have no keys"),
    ],
    ids=lambda case: case[-1],
)
def test_every_line_of_the_policy_refuses(
    tmp_path: Path, plan: Plan, changed: dict[str, Any], says: str
) -> None:
    one = Guarded(
        tmp_path / says, plan, policy=policy(**{"sums": _least(plan), **changed}), once="x"
    )
    assert one.said(session_of(plan).invite) is AbortCode.POLICY
    assert says in one.notes
    campaign = one.plans[bytes.fromhex(plan.fingerprint)]
    reasons = refusals(campaign, one.policy, one.items, PEOPLE[0], one.record, "x")
    assert says in reasons[0]
    # in the owner's words: the entry of agent.toml
    assert (
        any(f"policy ({entry})" in reasons[0] for entry in ENTRIES) or "epsilon 0.5" in reasons[0]
    )


def test_the_client_that_joins_demands_the_owners_trust() -> None:
    for central, trust in ((False, Trust.DISTRIBUTED), (True, Trust.CENTRAL)):
        demands = policy(cap=Cap(1.0, 1e-6), central=central).privacy
        assert demands is not None and demands.trust is trust


def _least(plan: Plan) -> ClientPolicy:
    return ClientPolicy(adversary=plan.secure_sum.parameters.adversary, min_honest=2)


@each_case(
    ("plan", "given"),
    [
        # who demands no more than an honest server takes a plan against a lying one
        (ACTIVE, policy("semi-honest")),
        (PRIVATE, policy("active", cap=Cap(9.0, 1e-6))),
        (plan_of("active", "central"), policy("active", cap=Cap(9.0, 1e-6), central=True)),
        (PLAN, policy(domains=("range:1..50",))),
        (ACTIVE, policy(sums=knowing(PEOPLE[3], "active"))),
        (ACTIVE, policy(sums=knowing(PEOPLE[3], "semi-honest"))),
    ],
)
def test_what_the_policy_allows_is_joined(tmp_path: Path, plan: Plan, given: Any) -> None:
    sums = f"{given.sums.adversary} {given.sums.least_known} {given.cap}"
    one = Guarded(tmp_path / plan.fingerprint[:12] / sums, plan, policy=given, once="x")
    assert one.said(session_of(plan).invite) is Kind.ADVERTISE, one.notes


def test_a_day_has_so_many_sessions(tmp_path: Path) -> None:
    one = Guarded(tmp_path, PLAN, policy=policy(sessions_a_day=2))
    for label, expected in enumerate([Kind.ADVERTISE] * 2 + [AbortCode.POLICY] * 2):
        assert one.said(session_of(PLAN, label).invite) is expected
        one.restart()  # the count outlives the process
    assert "2 sessions in a day" in one.notes
    late = START + 86_400 + 700
    again = session_of(PLAN, "later", not_before=late, not_after=late + 10)
    assert one.said(again.invite, late) is Kind.ADVERTISE


def test_a_server_that_uses_up_the_sessions_of_a_day_keeps_the_agent_from_others(
    tmp_path: Path,
) -> None:
    # A limit for each plan would be none: what an owner accepts may be several plans of one server.
    other = dataclasses.replace(PLAN, seed=b"\1" * 32)
    one = Guarded(tmp_path, PLAN, other, policy=policy(sessions_a_day=2))
    for label in range(2):
        assert one.said(session_of(PLAN, label).invite) is Kind.ADVERTISE
    assert one.said(session_of(other, "other").invite) is AbortCode.POLICY
    late = START + 600 + 86_400
    for now, expected in (late, AbortCode.POLICY), (late + 1, Kind.ADVERTISE):
        invite = session_of(other, now, not_before=now, not_after=now + 10).invite
        assert one.said(invite, now) is expected


def test_a_plan_whose_epsilon_is_above_the_cap_is_told_so_once(tmp_path: Path) -> None:
    demands = policy("active", cap=Cap(0.5, 1e-6), central=True)
    one = Guarded(tmp_path, PRIVATE, policy=demands)
    campaign = next(iter(one.plans.values()))
    reasons = refusals(campaign, one.policy, one.items, PEOPLE[0], one.record, "x")
    assert len([reason for reason in reasons if "epsilon" in reason]) == 1


def test_an_identity_that_is_not_listed_is_refused_in_words(tmp_path: Path) -> None:
    one = Guarded(tmp_path, ACTIVE)
    one.agent._identity = FOREIGN
    assert one.said(session_of(ACTIVE).invite) is AbortCode.POLICY
    assert "not in the allow-list" in one.notes
    one.agent._identity = None
    assert one.said(session_of(ACTIVE).invite) is AbortCode.POLICY


# ---- the record ----


def test_a_record_that_was_put_back_is_refused_running_or_at_the_start(tmp_path: Path) -> None:
    agents = team(tmp_path, MANY)
    first = agents[0]
    before = first.record_path.with_suffix(".copy")
    shutil.copy(first.record_path, before)
    server = open_session(MANY, 0, agents)
    step(server, agents)
    shutil.copy(before, first.record_path)
    # the vector does not leave, and the log says why
    assert first.said(asked_of(server)) is AbortCode.ITEM_SPENT
    assert "an old copy of it was put back" in first.notes
    assert first.said(session_of(MANY, 1, round=1).invite) is AbortCode.INTERNAL
    with pytest.raises(InvalidInputError, match="begin anew with a new key"):
        first.restart()
    first.record_path.unlink()
    with pytest.raises(InvalidInputError, match="was deleted"):
        first.restart()
    assert not first.record_path.exists()


def test_a_record_without_its_mark_is_refused(tmp_path: Path) -> None:
    one = Guarded(tmp_path, PLAN)
    first_day = one.record_path.with_suffix(".copy")
    shutil.copy(one.record_path, first_day)
    assert one.said(session_of(PLAN).invite) is Kind.ADVERTISE
    one.mark_path.unlink()
    with pytest.raises(InvalidInputError, match="has no mark at"):
        one.restart()
    shutil.copy(first_day, one.record_path)  # an empty one shows no more than another copy
    with pytest.raises(InvalidInputError, match="has no mark at"):
        one.restart()


@each_case("where", ["begin", "take_part", "standing"])
@pytest.mark.parametrize("error", [StoreError("disk full"), RuntimeError("secret 42")])
def test_a_record_that_fails_never_lets_a_vector_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, error: Exception
) -> None:
    agents = team(tmp_path / where, PLAN)
    first = agents[0]

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        if where != "take_part":
            patch.setattr(first.record, where, fail)
            assert first.said(session_of(PLAN).invite) is AbortCode.INTERNAL
        else:
            server = open_session(PLAN, 0, agents)
            step(server, agents)
            patch.setattr(first.record, where, fail)
            frame = asked_of(server)
            assert first.said(frame) is AbortCode.INTERNAL
            assert first.said(frame) is AbortCode.INTERNAL
    assert ("disk full" in first.notes) is isinstance(error, StoreError)
    assert "secret 42" not in first.notes
    assert not first.agent._live
    # the session is over, and the record is whole: the next one goes on
    assert first.said(session_of(PLAN, "next").invite) is Kind.ADVERTISE


def test_a_vector_leaves_only_once_the_mark_counts_it(tmp_path: Path) -> None:
    agents = team(tmp_path, PLAN)
    first = agents[0]
    server = open_session(PLAN, 0, agents)
    step(server, agents)
    shutil.rmtree(first.mark_path.parent)
    first.mark_path.parent.write_text("a file in the place of the folder")
    assert first.said(asked_of(server)) is AbortCode.INTERNAL
    assert "the mark" in first.notes


def test_the_cap_of_the_owner_is_over_everything(tmp_path: Path) -> None:
    """Two plans of other populations, each within the cap, and together above it."""
    plans = [
        dataclasses.replace(
            plan,
            seed=bytes([i]) * 32,
            privacy=dataclasses.replace(plan.privacy, population=f"people {i}"),
        )
        for i, plan in enumerate([plan_of("active", "distributed")] * 2)
    ]
    agents = team(tmp_path, *plans, policy=policy("active", cap=Cap(9.0, 1e-6)), once=None)
    server = session_of(plans[0])
    while server.outcome is None:
        step(server, agents)
    assert agents[0].said(session_of(plans[1], 1).invite) is AbortCode.ITEM_SPENT
    assert "everything in this record" in agents[0].notes
    spent = agents[0].record.spent()
    assert spent is not None and 7 < spent.epsilon <= 8
    # an owner who changes the policy changes the record's cap
    agents[0].policy = policy("active", cap=Cap(20.0, 1e-6))
    agents[0].restart()
    assert agents[0].record.capped() == Cap(20.0, 1e-6)


def test_an_agent_stands_still_under_a_cap_that_another_one_put_in(tmp_path: Path) -> None:
    """Two agents on one record: the later one must not loosen what the first was started with."""
    careful = Guarded(tmp_path, PRIVATE, policy=policy("active", cap=Cap(9.0, 1e-6)), once=None)
    first = careful.agent
    careful.policy = policy("active", cap=Cap(900.0, 1e-6))
    careless = careful.restart().agent
    careful.agent = first
    assert careful.said(session_of(PRIVATE).invite) is AbortCode.POLICY
    assert "a cap of epsilon 900 by now" in careful.notes and "start it anew" in careful.notes
    careful.agent = careless
    assert careful.said(session_of(PRIVATE).invite) is Kind.ADVERTISE


def test_without_an_epsilon_items_have_a_label(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="items need a label"):
        Guarded(tmp_path, PLAN, once=None)
    capped = Guarded(tmp_path / "capped", PRIVATE)
    capped.policy = policy("active")
    with pytest.raises(InvalidInputError, match="never lifted"):
        capped.restart()
    # what took part without an epsilon is covered by no cap: said before anything is written
    record = ClientRecord.open(tmp_path / "free.db", create=True)
    record.take_part("clients", PLAN.fingerprint, 0, None, time=0, item="2026-11")
    with pytest.raises(InvalidInputError, match="no cap covers it"):
        check_binds(record, policy("active", cap=Cap(9.0, 1e-6)), None)


# ---- items ----


def test_items_that_cannot_be_read_show_nothing(tmp_path: Path) -> None:
    def broken() -> Any:
        raise ValueError("secret 42")

    one = Guarded(tmp_path, PLAN, read=broken)
    assert one.said(session_of(PLAN, "broken").invite) is AbortCode.INTERNAL
    assert "ValueError" in one.notes and "secret" not in one.notes
    one.items._read = lambda: ["secret"]  # no candidate, and the plan is without privacy
    assert one.said(session_of(PLAN, "outside").invite) is AbortCode.POLICY
    assert "secret" not in one.notes

    def gone() -> Any:
        raise UnreadableFileError("there is no file items.csv")

    one.items._read = gone
    assert one.said(session_of(PLAN, "gone").invite) is AbortCode.INTERNAL
    assert "there is no file items.csv" in one.notes
    one.items._read = lambda: [7]
    assert one.said(session_of(PLAN, "read").invite) is Kind.ADVERTISE


@each_case("held", [[], [99], [None], ["tea"], [1, 2, 3], [7], [2**70, "x", 1.5]])
def test_with_privacy_nothing_that_leaves_depends_on_what_is_held(
    tmp_path: Path, held: list[Any]
) -> None:
    one = Guarded(tmp_path / str(len(held)) / repr(held[:1]), PRIVATE, read=lambda: held)
    assert one.said(session_of(PRIVATE).invite) is Kind.ADVERTISE, one.notes


def test_candidates_come_from_their_file(tmp_path: Path) -> None:
    words = Dictionary(["tea", "coffee", "cola"])
    plan = other(PLAN, domain=words.describe())
    one = Guarded(tmp_path, plan, items=Items(lambda: ["tea"]))
    assert one.said(session_of(plan).invite) is AbortCode.POLICY
    assert "items.candidates" in one.notes
    one.items._candidates.append(words)
    assert one.said(session_of(plan).invite) is Kind.ADVERTISE
    fingerprints = Strings(["tea"], bytes(32))
    odd = other(PLAN, domain=fingerprints.describe())
    assert Guarded(tmp_path / "odd", odd).said(session_of(odd).invite) is AbortCode.POLICY


# ---- anything at all ----


def test_no_bytes_raise(tmp_path: Path) -> None:
    agents = team(tmp_path, PLAN, ACTIVE)
    one, rng = agents[0], np.random.default_rng(1)
    for size in (*range(60), 47, 48, 49, 200, 5000):
        assert one.answer(rng.bytes(size)) is None
    for odd in (None, 7, "text", [1], {}):
        assert one.answer(odd) is None  # type: ignore[arg-type]
    invite = session_of(PLAN).invite
    for _, frame in flips(invite, [0, 7]):
        assert one.said(frame) in (None, AbortCode.POLICY, AbortCode.MALFORMED)
    server = open_session(PLAN, 0, agents)
    while server.outcome is None:
        frame = asked_of(server)
        for kind in Kind:  # every type with the body of another, in every phase
            twisted = bytearray(frame)
            twisted[5] = kind
            clone = Guarded(tmp_path / "clone" / str(server.state) / str(kind), PLAN)
            clone.answer(bytes(twisted))
        step(server, agents)
    for _, frame in flips(asked_of(server), [0]):
        assert one.answer(frame) is None
    assert not any("failed" in str(note) for note in one.log)


def test_not_even_a_bug_leaves_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Guarded(tmp_path, PLAN)

    def bug(*_: Any) -> Any:
        raise KeyError("secret 42")

    monkeypatch.setattr(agent_module.wire, "parse", bug)
    assert one.answer(b"frame") is None
    assert "KeyError" in one.notes and "secret" not in one.notes


def test_an_agent_shows_and_copies_nothing(tmp_path: Path) -> None:
    one = Guarded(tmp_path, PLAN)
    assert repr(one.agent) == "Agent(0 sessions)"
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInputError, match="cannot be copied"):
            way(one.agent)


def test_closing_wipes_all_secrets(tmp_path: Path) -> None:
    agents = team(tmp_path, PLAN)
    open_session(PLAN, 0, agents)
    [live] = agents[0].agent._live.values()
    elements = live.client._secrets.elements
    assert elements is not None and elements.any()
    agents[0].agent.close()
    assert not elements.any() and not agents[0].agent._live


def test_a_log_that_cannot_be_written_keeps_no_client_from_answering(tmp_path: Path) -> None:
    def full(_: object) -> None:
        raise OSError(28, "No space left on device")

    agents = team(tmp_path, PLAN)
    for one in agents:
        one.agent._log = full
    assert agents[0].answer(b"garbage") is None
    assert said(agents[0].answer(session_of(PLAN).invite)) is Kind.ADVERTISE


@each_case("phase", [ServerState.SHARE, ServerState.COLLECT, ServerState.UNMASK])
def test_who_leaves_a_campaign_sends_no_items_to_its_sessions(
    tmp_path: Path, phase: ServerState
) -> None:
    agents = team(tmp_path / phase.value, ACTIVE)
    server, first = session_of(ACTIVE), agents[0]
    while server.state is not phase:
        step(server, agents)
    del first.plans[bytes.fromhex(ACTIVE.fingerprint)]
    frame = asked_of(server)
    if phase is ServerState.UNMASK:  # its items are in the sum, and others may count on it
        assert first.said(frame) is Kind.UNMASK
        return
    assert first.said(frame) is AbortCode.POLICY
    assert first.said(frame) is None
    assert "its campaign is not accepted any more" in first.notes
    assert not first.agent._live
    assert first.record.participations(ACTIVE.fingerprint) == []


@each_case(
    ("ended", "phase"),
    [
        (ended, phase)
        for ended in ("revoked", "over")
        for phase in (ServerState.SHARE, ServerState.COLLECT, ServerState.UNMASK)
    ],
)
def test_a_plan_that_ends_within_a_session_gets_no_items(
    tmp_path: Path, ended: str, phase: ServerState
) -> None:
    """A plan that its registrar revokes ends with the next frame, and so does one at midnight."""
    registrar = SigningKey(Secret(stream("registrar")(32)))
    authority = Authority("a study", 3, day_of(START))
    agents = team(tmp_path / ended / phase.value, ACTIVE)
    for one in agents:
        signature = sign_plan(registrar, ACTIVE, authority)
        [name] = one.plans
        one.plans[name] = dataclasses.replace(one.plans[name], signature=signature)
        one.record.accept(registrar.public, "a study", 3, ACTIVE.fingerprint, START)
    times = {"not_before": START, "not_after": START + DAY}
    server, first, now = session_of(ACTIVE, **times), agents[0], START
    while server.state is not phase:
        step(server, agents)
    if ended == "revoked":  # by another process, on the same record
        record = ClientRecord.open(first.record_path, mark=first.mark_path)
        record.end(registrar.public, [ACTIVE.fingerprint], START)
    else:
        now = end_of(authority.last_day)
        assert now < START + DAY
    frame = asked_of(server)
    if phase is ServerState.UNMASK:  # its items are in the sum, and others may count on it
        assert first.said(frame, now) is Kind.UNMASK
        return
    assert first.said(frame, now) is AbortCode.POLICY
    says = {"revoked": "its registrar replaced or revoked it", "over": "its last day was"}
    assert says[ended] in first.notes
    assert first.record.participations(ACTIVE.fingerprint) == []
    assert first.said(session_of(ACTIVE, "later", **times).invite, now) is AbortCode.POLICY
    assert f"refused (POLICY): the plan is over: {says[ended]}" in first.notes


def test_a_campaign_that_vanishes_is_passed_over(tmp_path: Path) -> None:
    class Vanishing(dict[bytes, Campaign]):
        def __getitem__(self, name: bytes) -> Campaign:
            raise KeyError(name)  # its folder was deleted after it was listed

        def get(self, name: bytes, default: Any = None) -> Any:
            return default

    [one, *_] = team(tmp_path, PLAN)
    one.agent._campaigns = Vanishing(one.plans)
    assert one.agent.most_bytes == 4096


def test_the_longest_frame_is_that_of_the_largest_plan(tmp_path: Path) -> None:
    agents = team(tmp_path, ACTIVE)
    assert agents[0].agent.most_bytes >= 4096
    server, longest = session_of(ACTIVE), 0
    while server.outcome is None:
        longest = max(longest, *map(len, step(server, agents)))
    largest = Campaign(ACTIVE, ALLOWED).most_bytes
    assert longest <= largest <= longest + 200
