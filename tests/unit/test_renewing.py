"""Rounds in a row and caps in days, as a client's own record keeps them."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtally.answer.sections import privacy
from fedtally.errors import InvalidInputError
from fedtally.privacy import accounting, guarantee_text
from fedtally.privacy.budget import (
    DAY,
    Cap,
    Charge,
    OverspentError,
    check_cap,
    check_participation,
)
from fedtally.privacy.config import propose
from fedtally.privacy.events import Event
from fedtally.privacy.policy import PrivacyPolicy, WeakPrivacyError
from fedtally.store import ClientRecord

pytestmark = pytest.mark.usefixtures("no_sync")
WEEKLY = propose(epsilon=1.0, delta=1e-8, rows=5, width=100, per_rounds=7, num_rounds=28)
EVENT = WEEKLY.event
WEEK = Cap(1.0, 1e-8, per_days=7)
START = 2_000_000_000
MONTH = 30 * DAY


@pytest.fixture
def record(tmp_path: Path) -> ClientRecord:
    return ClientRecord.open(tmp_path / "record.db", create=True)


@pytest.fixture
def capped(record: ClientRecord) -> ClientRecord:
    record.cap(WEEK.epsilon, WEEK.delta, START, per_days=7)
    return record


def take(record: ClientRecord, round: int, time: int, plan: str = "plan") -> bool:
    """Take part unless the record refuses; what it says before must be the same."""
    part = ("phones", plan, round, EVENT)
    told = record.standing(0, *part, time=time).refusal
    if told is None:
        record.take_part(*part, time)
        return True
    with pytest.raises(OverspentError) as refused:
        record.take_part(*part, time)
    assert str(refused.value) == told
    return False


# ---- rounds in a row ----


def test_a_campaign_without_a_proven_epsilon_has_none_in_json() -> None:
    """A large epsilon a day leaves no bound on a hundred days; JSON has no infinity."""
    daily = {"rows": 5, "width": 100, "per_rounds": 1, "num_rounds": 100}
    found = guarantee_text.fields(propose(epsilon=20.0, delta=1e-6, **daily))
    assert found["epsilon"] is None and found["in_a_row"]["epsilon"] == pytest.approx(20.0)
    json.dumps(found, allow_nan=False)
    assert "epsilon 20 in any one round; in all 100 epsilon inf" in privacy.guarantee(found)


@given(st.data())
def test_no_rounds_in_a_row_hold_more_parts_than_they_may(data: st.DataObject) -> None:
    """A brute force over all windows, with rounds in any order and of other plans between."""
    rounds = data.draw(st.integers(1, 20))
    in_a_row = data.draw(st.integers(1, rounds))
    most = data.draw(st.integers(1, in_a_row))
    event = Event(
        "rounded-gaussian",
        4,
        "zero-out",
        variance=9.0,
        participations=most,
        per_rounds=in_a_row,
        num_rounds=rounds,
    )
    taken: list[Charge] = []
    for round in data.draw(st.permutations(range(rounds))):
        new = Charge("phones", "plan", round, event)
        held = {charge.release for charge in taken} | {round}
        fits = all(
            len(held & set(range(first, first + in_a_row))) <= most for first in range(rounds)
        )
        try:
            check_participation([*taken, Charge("phones", "other", round, event)], new)
        except OverspentError:
            assert not fits
            continue
        assert fits
        taken.append(new)


def test_a_record_refuses_rounds_in_a_row_on_either_side(record: ClientRecord) -> None:
    assert take(record, 10, START)
    for round in (4, 9, 11, 16):
        assert not take(record, round, START + round * MONTH)
    assert take(record, 3, START) and take(record, 17, START)
    assert record.participations("plan") == [3, 10, 17]


# ---- caps in days ----


def test_a_cap_in_days_renews_when_its_parts_are_that_old(capped: ClientRecord) -> None:
    assert take(capped, 0, START)
    assert not take(capped, 7, START + 1)
    assert not take(capped, 7, START + 7 * DAY - 1)
    assert take(capped, 7, START + 7 * DAY)
    # a plan of anybody counts, too
    assert not take(capped, 0, START + 7 * DAY, "another")
    assert take(capped, 0, START + 14 * DAY, "another")


def test_no_days_cost_more_than_the_cap(capped: ClientRecord) -> None:
    """By its times in the record, in each window, whatever a client is asked for."""
    capped.cap(1.5, 1e-8, START, per_days=3)
    times = [START + step * DAY // 3 for step in range(40)]
    taken = [
        time
        for step, time in enumerate(times)
        if take(capped, 7 * (step // 10), time, f"plan {step % 10}")
    ]
    assert len(taken) > 8
    for first in times:
        count = sum(first <= time < first + 3 * DAY for time in taken)
        one = [EVENT.of_parts(1)] * count
        assert not one or accounting.epsilon(one, 1e-8, adaptive=True).epsilon <= 1.5


def test_a_clock_that_is_put_back_renews_nothing(capped: ClientRecord) -> None:
    assert take(capped, 0, START + MONTH)
    for time in (START, START + MONTH - 8 * DAY, START + MONTH):
        assert not take(capped, 7, time)
        assert capped.spent(time=time) == capped.spent(time=START + MONTH) is not None


def test_a_clock_that_jumps_forth_and_back_renews_once(capped: ClientRecord) -> None:
    """It spends the week of the jump, and then waits until the true time has caught up."""
    assert take(capped, 0, START)
    assert take(capped, 7, START + MONTH)  # the jump
    for day in range(37):
        assert not take(capped, 14, START + day * DAY)
    assert take(capped, 14, START + MONTH + 7 * DAY)


def test_after_a_jump_the_parts_before_it_count_as_well(record: ClientRecord) -> None:
    """So the days after it cost no more than the cap and what was spent in the jump."""
    record.cap(1.6, 1e-8, START, per_days=7)  # two parts
    assert take(record, 0, START) and take(record, 7, START + MONTH)
    assert not take(record, 14, START + 1)


def test_parts_under_a_clock_that_was_put_back_keep_the_time_of_the_record(
    record: ClientRecord,
) -> None:
    """With their own times they would be out of the week at once, and never count."""
    record.cap(1.6, 1e-8, START, per_days=7)
    assert take(record, 0, START + MONTH)
    assert take(record, 0, START, "a")
    assert not take(record, 0, START, "b")
    assert not take(record, 0, START + MONTH + 1, "b")
    assert [part.time for part in record.parts()] == [START + MONTH] * 2


def test_a_cap_in_days_counts_parts_and_no_cap_counts_lives(record: ClientRecord) -> None:
    assert take(record, 0, START) and take(record, 7, START + 7 * DAY)
    week = record.spent(WEEK, START + 7 * DAY)
    assert week is not None and week.epsilon == accounting.epsilon(EVENT.in_a_row, 1e-8).epsilon
    assert week.epsilon <= 1.0
    life = record.spent(replace(WEEK, per_days=None))
    assert life is not None and life.epsilon == accounting.epsilon(EVENT, 1e-8).epsilon
    assert life.epsilon > 2.0
    assert record.spent(WEEK, START + MONTH) is None


def test_two_parts_compose_as_if_the_second_was_chosen_in_view_of_the_first() -> None:
    """Also those of one campaign: the exact cost of a fixed number of parts would be less."""
    often = propose(epsilon=1.0, delta=1e-8, rows=5, width=100, participations=2)
    charges = [Charge("phones", "plan", round, often.event) for round in range(2)]
    total = WEEK.total(charges)
    exact = accounting.epsilon(often.event, 1e-8).epsilon
    assert exact <= 1.0 < total.guarantee.epsilon < 1.01
    check_cap(WEEK, [], charges[0])
    with pytest.raises(OverspentError, match="would take any 7 days to epsilon .*, and its cap"):
        check_cap(WEEK, charges[:1], charges[1])
    check_cap(replace(WEEK, epsilon=1.01), charges[:1], charges[1])


def test_parts_in_one_release_add_up_before_it_is_opened() -> None:
    event = Event(
        "rounded-gaussian", 4, "zero-out", variance=900.0, participations=4, per_release=4
    )
    costs = [accounting.epsilon(event.of_parts(n), 1e-6).epsilon for n in range(1, 5)]
    assert costs[3] == accounting.epsilon(event, 1e-6).epsilon
    assert all(a < b for a, b in itertools.pairwise(costs))
    apart = replace(event.of_parts(2), per_release=1)
    assert costs[1] > accounting.epsilon(apart, 1e-6).epsilon


def test_the_record_keeps_the_days_of_its_cap(capped: ClientRecord) -> None:
    assert capped.capped() == ClientRecord.open(capped.name).capped() == WEEK
    capped.cap(2.0, 1e-8, START)
    assert capped.capped() == Cap(2.0, 1e-8)
    assert take(capped, 0, START) is False  # its whole life costs more than 2


@pytest.mark.parametrize(
    ("days", "says"),
    [(0, "at least 1"), (3661, "at most 3660"), (1.5, "integer"), ("7", "integer"), (True, "int")],
)
def test_days_out_of_bounds_are_refused(days: object, says: str) -> None:
    with pytest.raises(InvalidInputError, match=f"per_days must be .*{says}"):
        Cap(1.0, 1e-8, per_days=days)  # type: ignore[arg-type]


def test_a_policy_per_part_takes_a_plan_whose_life_costs_more() -> None:
    with pytest.raises(WeakPrivacyError, match="epsilon 1 at most, and the plan is proven"):
        PrivacyPolicy(epsilon=1.0, delta=1e-8, trust="central").check(WEEKLY)
    PrivacyPolicy(epsilon=1.0, delta=1e-8, trust="central", per_part=True).check(WEEKLY)
    with pytest.raises(WeakPrivacyError, match="epsilon 0.9 at most, and one part in the plan is"):
        PrivacyPolicy(epsilon=0.9, delta=1e-8, trust="central", per_part=True).check(WEEKLY)
