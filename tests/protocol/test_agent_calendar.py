"""Agents of a plan with a calendar: which rounds they take part in, whatever a server asks."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from agents import Guarded, no_power_is_lost, policy, session_of  # noqa: F401
from campaign_world import START, plan_of
from test_agent import step

from fedtally.agent.agent import SKEW, refusals, why_closed
from fedtally.plan import Plan
from fedtally.plan.calendar import DAY as PERIOD
from fedtally.plan.calendar import Calendar
from fedtally.privacy.budget import DAY, Cap
from fedtally.privacy.config import propose
from fedtally.secagg.messages import AbortCode, Kind
from fedtally.secagg.server import Server

MIDNIGHT = START // DAY * DAY
CLIENTS = 4
WEEK = Cap(8.0, 1e-6, per_days=7)


def plan_of_days(rounds: int = 28, **changed: Any) -> Plan:
    """Return a plan of days, in at most one of any seven of which a client takes part."""
    base = plan_of(clients=CLIENTS, rounds=rounds)
    assert base.secure_sum is not None
    parameters = base.secure_sum.parameters
    terms = propose(
        epsilon=8.0,
        delta=1e-6,
        rows=base.rows,
        width=base.width,
        trust="distributed",
        honest_survivors=parameters.honest_survivors,
        most_clients=CLIENTS,
        per_rounds=min(7, rounds),
        num_rounds=rounds,
    )
    calendar = Calendar(datetime.fromtimestamp(MIDNIGHT, UTC), PERIOD, rounds)
    return replace(base, schedule="hybrid", privacy=terms, calendar=calendar, **changed)


PLAN = plan_of_days()


def noon(day: int) -> int:
    return MIDNIGHT + day * DAY + DAY // 2


def invite(plan: Plan, round: int, now: int) -> Server:
    label = (plan.fingerprint, round, now)
    return session_of(plan, label, round, not_before=now - SKEW, not_after=now + 600)


def team(folder: Path, *plans: Plan, cap: Cap = WEEK) -> list[Guarded]:
    owner = policy(cap=cap)
    given = {"policy": owner, "once": None}
    return [Guarded(folder / str(i), *plans, number=i, **given) for i in range(CLIENTS)]


def lands(agents: list[Guarded], plan: Plan, round: int, now: int) -> bool:
    """Carry a session to its end; return whether it was summed."""
    server = invite(plan, round, now)
    while server.outcome is None and server.state.name != "FAILED":
        try:
            step(server, agents, now)
        except StopIteration:  # nobody is left to be asked
            return False
    return server.outcome is not None


def test_in_28_days_each_client_takes_part_in_one_of_any_seven(tmp_path: Path) -> None:
    agents = team(tmp_path, PLAN)
    for day in range(28):
        if day % 7:
            said = agents[day % CLIENTS].said(invite(PLAN, day, noon(day)).invite, noon(day))
            assert said is AbortCode.ITEM_SPENT
        else:
            assert lands(agents, PLAN, day, noon(day))
    for agent in agents:
        assert agent.record.participations(PLAN.fingerprint) == [0, 7, 14, 21]


def test_a_hostile_server_gets_no_more_by_other_rounds_and_other_days(tmp_path: Path) -> None:
    """It asks for each round of the plan on one day, and for the same round on each day."""
    agents = team(tmp_path, PLAN)
    assert lands(agents, PLAN, 3, noon(3))
    for round in range(28):
        said = agents[0].said(invite(PLAN, round, noon(3) + 1).invite, noon(3) + 1)
        assert said is (AbortCode.ITEM_SPENT if round == 3 else AbortCode.POLICY)
    for day in range(4, 28):
        said = agents[0].said(invite(PLAN, 3, noon(day)).invite, noon(day))
        assert said is AbortCode.POLICY
    assert "round 3 is open from" in agents[0].notes
    assert agents[0].record.participations(PLAN.fingerprint) == [3]


def test_a_round_is_open_in_its_period_alone() -> None:
    opens, closes = MIDNIGHT + 2 * DAY, MIDNIGHT + 3 * DAY
    assert not why_closed(PLAN, 2, opens - SKEW, opens)
    assert not why_closed(PLAN, 2, opens - 2 * SKEW, opens - SKEW)  # a client's clock is behind
    assert why_closed(PLAN, 2, opens - 2 * SKEW, opens - SKEW - 1)
    # a session that opened in it, and an Invite that is on its way, or a clock that is ahead
    assert not why_closed(PLAN, 2, closes - 1, closes + SKEW - 1)
    assert why_closed(PLAN, 2, closes - 1, closes + SKEW)
    assert why_closed(PLAN, 2, closes, closes)
    assert not why_closed(plan_of(), 0, 0, 0)


def test_a_server_that_dates_its_sessions_back_gets_no_round_that_is_over(tmp_path: Path) -> None:
    """The plan's rule alone would give it all hours of a day in one."""
    base = plan_of_days()
    assert base.calendar is not None and base.secure_sum is not None
    terms = propose(
        epsilon=0.5,
        delta=1e-8,
        rows=base.rows,
        width=base.width,
        trust="distributed",
        honest_survivors=base.secure_sum.parameters.honest_survivors,
        most_clients=CLIENTS,
        per_rounds=1,
        num_rounds=28,
    )
    hourly = replace(base.calendar, period=timedelta(hours=1))
    plan = replace(base, privacy=terms, calendar=hourly)
    agent = Guarded(tmp_path, plan, policy=policy(cap=WEEK), once=None)
    now = MIDNIGHT + 20 * 3600 + 1800
    answered = []
    for round in range(28):
        began = min(MIDNIGHT + (round + 1) * 3600 - 1, now)  # in its own hour
        opened = session_of(plan, round, round, not_before=began, not_after=began + DAY)
        if agent.said(opened.invite, now) is Kind.ADVERTISE:
            answered.append(round)
    assert answered == [20]


def test_a_part_counts_from_when_it_left_and_not_from_its_invite(tmp_path: Path) -> None:
    """A session may go on for a day: two parts would lie closer than the owner's days."""
    agents = team(tmp_path, PLAN)
    server = session_of(PLAN, "slow", 0, not_before=noon(0), not_after=noon(1))
    step(server, agents, noon(0))
    while server.outcome is None:
        step(server, agents, noon(1) - 10)
    [part] = agents[0].record.parts()
    assert part.time == noon(1) - 10
    assert agents[0].said(invite(PLAN, 7, noon(7)).invite, noon(7)) is not Kind.ADVERTISE
    assert "would take any 7 days to" in agents[0].notes
    assert agents[0].said(invite(PLAN, 8, noon(8)).invite, noon(8)) is Kind.ADVERTISE


def test_a_week_holds_over_all_plans_and_renews(tmp_path: Path) -> None:
    other = plan_of_days(seed=bytes([1]) * 32)
    agents = team(tmp_path, PLAN, other)
    assert lands(agents, PLAN, 0, noon(0))
    said = agents[0].said(invite(other, 1, noon(1)).invite, noon(1))
    assert said is AbortCode.ITEM_SPENT and "would take any 7 days to" in agents[0].notes
    assert lands(agents, other, 7, noon(7))


def test_a_clock_that_is_set_back_a_month_renews_nothing(tmp_path: Path) -> None:
    """Another plan is open by then, and the record has no part in it."""
    other = plan_of_days(seed=bytes([1]) * 32)
    agents = team(tmp_path, PLAN, other)
    assert lands(agents, PLAN, 27, noon(27))
    for day in (0, 7, 20, 27):
        assert agents[0].said(invite(other, day, noon(day)).invite, noon(day)) is (
            AbortCode.ITEM_SPENT
        )


def test_an_agent_under_another_cap_in_days_stands_still(tmp_path: Path) -> None:
    careful = team(tmp_path, PLAN)[0]
    first = careful.agent
    careful.policy = policy(cap=replace(WEEK, per_days=1))
    careful.restart()
    careful.agent = first
    assert careful.said(invite(PLAN, 0, noon(0)).invite, noon(0)) is AbortCode.POLICY
    assert "a cap of epsilon 8 in any day by now" in careful.notes


@pytest.mark.parametrize(
    ("taken", "now", "says"),
    [
        ([], noon(0), None),
        ([3], noon(3), None),  # the week renews
        ([3, 10, 17], noon(17), None),
        ([21], noon(21), "it sits this one out"),  # no later round is allowed
        ([], noon(28), "no round is left"),
    ],
)
def test_a_plan_is_asked_for_a_round_that_it_still_has(
    tmp_path: Path, taken: list[int], now: int, says: str | None
) -> None:
    agent = team(tmp_path, PLAN)[0]
    assert PLAN.privacy is not None
    for round in taken:
        agent.record.take_part("clients", PLAN.fingerprint, round, PLAN.privacy.event, noon(round))
    [campaign] = agent.plans.values()
    found = refusals(campaign, agent.policy, agent.items, None, agent.record, None, now)
    assert (found == []) if says is None else (says in found[0])


def test_a_first_invite_is_answered_in_its_period(tmp_path: Path) -> None:
    agent = team(tmp_path, PLAN)[0]
    assert agent.said(invite(PLAN, 1, noon(0)).invite, noon(0)) is AbortCode.POLICY
    assert agent.said(invite(PLAN, 1, noon(1)).invite, noon(1)) is Kind.ADVERTISE
