"""The calendar of a plan: which round is open when, and what k of any R rounds in a row allow."""

from __future__ import annotations

import dataclasses
import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtally.campaign import places
from fedtally.campaign.books import LedgerBooks
from fedtally.campaign.periods import last_day
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError, render
from fedtally.plan import Plan
from fedtally.plan.calendar import (
    DAY,
    MAX_ROUNDS,
    Calendar,
    Recurring,
    read_period,
    read_time,
    time_text,
)
from fedtally.plan.design import Design
from fedtally.plan.request import Request
from fedtally.privacy import accounting
from fedtally.privacy.config import exposure, least_noise, propose
from fedtally.privacy.events import Event
from fedtally.store import Ledger

START = datetime(2026, 12, 1, tzinfo=UTC)
WEEKS = Calendar(START, DAY, 28)
DOMAIN = {"kind": "range", "size": 1000, "public": True, "first": 1, "last": 1000}
PLAN = Plan(
    rows=5,
    width=100,
    schedule="hybrid",
    num_rounds=28,
    num_clients=5000,
    max_round_clients=300,
    domain=DOMAIN,
    max_items=1,
    seed=bytes(range(32)),
    calendar=WEEKS,
)
PERIODS = [timedelta(seconds=n) for n in range(1, 86_401) if 86_400 % n == 0]
periods = st.sampled_from(PERIODS) | st.integers(1, 400).map(lambda days: days * DAY)
times = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1)).map(
    lambda when: when.replace(tzinfo=UTC, microsecond=0)
)
calendars = st.builds(Calendar, times, periods, st.integers(1, MAX_ROUNDS))
MOMENT = timedelta(microseconds=1)


def weekly(**more):
    terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=100, per_rounds=7, num_rounds=28, **more)
    return dataclasses.replace(PLAN, privacy=terms)


# ---- when rounds are open ----


@given(calendars, st.data())
def test_a_round_is_open_from_its_opening_to_just_before_its_closing(calendar, data):
    round = data.draw(st.integers(0, calendar.num_rounds - 1))
    opens, closes = calendar.opens(round), calendar.closes(round)
    assert closes - opens == calendar.period
    within = opens + data.draw(st.floats(0, 1)) * (calendar.period - MOMENT)
    assert all(calendar.round_at(when) == round for when in (opens, within, closes - MOMENT))
    before, after = calendar.round_at(opens - MOMENT), calendar.round_at(closes)
    assert before == (round - 1 if round else None)
    assert after == (round + 1 if round + 1 < calendar.num_rounds else None)
    assert calendar.end == calendar.closes(calendar.num_rounds - 1)


@given(calendars)
def test_a_calendar_has_one_text_and_is_read_from_it(calendar):
    written = calendar.to_dict()
    assert Calendar.from_dict(written, calendar.num_rounds) == calendar
    assert int(written["period"][:-1]) * {"d": 86400, "h": 3600, "m": 60, "s": 1}[
        written["period"][-1]
    ] == int(calendar.period.total_seconds())


def test_times_of_other_offsets_are_the_same_times():
    east = timezone(timedelta(hours=9))
    assert Calendar(START.astimezone(east), DAY, 28) == WEEKS
    assert str(Calendar(START.astimezone(east), DAY, 28).start) == "2026-12-01 00:00:00+00:00"
    assert WEEKS.round_at(datetime(2026, 12, 2, 8, 59, tzinfo=east)) == 0
    assert WEEKS.round_at(datetime(2026, 12, 2, 9, tzinfo=east)) == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"start": datetime(2026, 12, 1)}, "start must be a time with its offset from UTC"),
        ({"start": "2026-12-01"}, "start must be a time with its offset from UTC"),
        ({"start": START + MOMENT}, "start must be a time of whole seconds"),
        (
            {"start": datetime.max.replace(microsecond=0, tzinfo=timezone(-DAY / 2))},
            "start must be of the years 1 to 9999 in UTC",
        ),
        (
            {"start": datetime(9999, 12, 5, tzinfo=UTC)},
            "must end before the year 10000, got 28 periods of 1d from 9999-12-05T00:00Z",
        ),
        ({"num_rounds": 0}, "num_rounds must be at least 1"),
        ({"num_rounds": 4097}, "num_rounds must be at most 4,096 with a calendar, got 4,097"),
        ({"period": 86400}, "period must be a duration, got 86400"),
        *(
            ({"period": period}, "period must divide a day, or be whole days, such as 1h, 6h, 1d")
            for period in (
                timedelta(0),
                -DAY,
                timedelta(hours=5),
                timedelta(hours=36),
                timedelta(seconds=7),
                timedelta(milliseconds=500),
                DAY + MOMENT,
                10**6 * DAY,
            )
        ),
    ],
)
def test_calendars_that_name_no_days_are_refused(values, message):
    with pytest.raises(InvalidInputError, match=message):
        dataclasses.replace(WEEKS, **values)


@pytest.mark.parametrize("round", [-1, 28])
def test_a_round_beyond_the_plan_has_no_period(round):
    with pytest.raises(InvalidInputError, match="round must be at"):
        WEEKS.opens(round)
    with pytest.raises(InvalidInputError, match="when must be a time with its offset"):
        WEEKS.round_at(datetime(2026, 12, 1))


@pytest.mark.parametrize("text", ["", "1", "d", "1w", "01d", "1 d", "1.5d", "-1d", "9999999d", 7])
def test_texts_that_are_no_periods_are_refused(text):
    with pytest.raises(InvalidInputError, match="period must be a whole number of days, hours"):
        read_period(text)


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", 20261201, None])
def test_texts_that_are_no_times_are_refused(text):
    with pytest.raises(InvalidInputError, match="start must be a day or a time of UTC, such as"):
        read_time(start=text)


# ---- in a plan ----


def test_a_plan_without_a_calendar_says_nothing_of_one():
    without = dataclasses.replace(PLAN, calendar=None)
    assert "calendar" not in without.to_dict()
    assert without.fingerprint != PLAN.fingerprint
    event = propose(epsilon=1.0, delta=1e-6, rows=5, width=100).event
    assert not {"per_rounds", "num_rounds"} & event.to_dict().keys()


@pytest.mark.parametrize("suffix", [".toml", ".json"])
def test_a_plan_keeps_its_calendar_in_a_file(tmp_path, suffix):
    plan = weekly()
    plan.save(tmp_path / f"plan{suffix}")
    read = Plan.load(tmp_path / f"plan{suffix}")
    assert (read, read.calendar) == (plan, WEEKS)
    assert plan.to_toml().endswith('[calendar]\nstart = "2026-12-01T00:00Z"\nperiod = "1d"\n')


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"start": "2026-12-01"}, "calendar.start must be written '2026-12-01T00:00Z' in a plan"),
        ({"start": "2026-12-01T01:00+01:00"}, "must be written '2026-12-01T00:00Z'"),
        ({"period": "24h"}, "calendar.period must be written '1d' in a plan, got '24h'"),
        ({"period": "7h"}, "period must divide a day"),
        ({"rounds": 3}, "calendar has unknown entries rounds"),
    ],
)
def test_a_calendar_in_a_file_has_one_form(entries, message):
    values = PLAN.to_dict()
    values["calendar"] |= entries
    with pytest.raises(InvalidInputError, match=message) as raised:
        Plan.from_dict(values)
    assert len(render(str(raised.value), for_="file")) < 200


def test_what_does_not_go_with_a_calendar_is_refused():
    for schedule in ("shared", "batched:4"):
        with pytest.raises(InvalidInputError, match="schedule must be hybrid or fresh with a cal"):
            dataclasses.replace(PLAN, schedule=schedule)
    assert dataclasses.replace(PLAN, schedule="fresh").calendar == WEEKS
    with pytest.raises(InvalidInputError, match="must be of the rounds of the plan, 27, got 28"):
        dataclasses.replace(PLAN, num_rounds=27)
    hidden = propose(epsilon=1.0, delta=1e-6, rows=5, width=100, relation="add-remove")
    with pytest.raises(InvalidInputError, match="add-remove does not go with a calendar"):
        dataclasses.replace(PLAN, privacy=hidden)
    with pytest.raises(InvalidInputError, match="per_rounds goes with a calendar"):
        dataclasses.replace(weekly(), calendar=None)


def test_delta_is_compared_with_people_each_of_whom_counts_once():
    """In 28 days with one round in any 7 a client counts four times in num_clients."""
    plan = weekly()
    assert plan.protection.lifetime == 4
    number = plan.num_clients // 4
    assert plan.fleet == number == 1250

    def with_delta(delta):
        return dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, delta=delta))

    for delta in (1.01 / plan.num_clients, 0.99 / number):
        assert with_delta(delta).privacy.delta == delta
    message = r"must be below 1 / \(num_clients / 4 rounds of a client\), 0.0008, got 0.0008"
    with pytest.raises(InvalidInputError, match=message):
        with_delta(1 / number)
    # without a calendar nobody says how often a client comes
    terms = propose(epsilon=1.0, delta=1.01 / 5000, rows=5, width=100, participations=4)
    with pytest.raises(InvalidInputError, match="must be below 1 / num_clients"):
        dataclasses.replace(PLAN, calendar=None, privacy=terms)


@pytest.mark.parametrize(("in_a_row", "lifetime"), [(7, 4), (None, 1)])
def test_the_default_delta_is_that_of_people_each_of_whom_counts_once(in_a_row, lifetime):
    """A tenth of 1 / people, as docs/privacy.md says, and not of 1 / contributions."""
    weeks = Recurring(calendar=WEEKS, per_rounds=in_a_row)
    spec = Request(epsilon=1.0, num_rounds=28).resolve(recurring=weeks)
    design = Design.for_fleet(spec, IntegerRange(1, 1000), 400_000, bytes(32))
    plan = design.with_size(design.example, 5, 100).plan()
    assert plan.protection.lifetime == lifetime
    assert plan.fleet == 400_000
    assert plan.privacy.delta == pytest.approx(0.1 / 400_000, rel=0.02)


def test_an_event_of_fewer_rounds_than_the_plan_has_is_refused():
    terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=100, per_rounds=7, num_rounds=27)
    with pytest.raises(InvalidInputError, match=r"event.num_rounds must be that of the plan, 28"):
        dataclasses.replace(PLAN, privacy=terms)


# ---- k of any R rounds in a row ----


def event(participations=1, **more):
    return Event("rounded-gaussian", 5, "zero-out", participations=participations, **more)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"per_rounds": 7}, "num_rounds must be an integer"),
        ({"num_rounds": 7}, "num_rounds goes with per_rounds in an event"),
        ({"per_rounds": 8, "num_rounds": 7}, "per_rounds must be at most 7, got 8"),
        (
            {"participations": 3, "per_rounds": 2, "num_rounds": 7},
            "per_rounds must be at least 3, got 2",
        ),
        (
            {"participations": 2, "per_release": 2, "per_rounds": 3, "num_rounds": 7},
            "per_release must be 1 with per_rounds",
        ),
        (
            {"participations": 2, "per_rounds": 2, "num_rounds": 2**20, "silos_per_person": 2},
            "participations in all rounds times silos_per_person must be at most",
        ),
    ],
)
def test_rounds_in_a_row_out_of_bounds_are_refused(values, message):
    with pytest.raises(InvalidInputError, match=message):
        event(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"per_rounds": 52},
            (
                "per_rounds must be at most 28, the rounds of the campaign, got 52: plan more"
                " num_rounds=, or leave per_rounds= out"
            ),
        ),
        (
            {"participations": 29},
            (
                "participations must be at most 28, the rounds of the campaign, got 29: lower it,"
                " or give more num_rounds="
            ),
        ),
        (
            {"per_rounds": 7, "participations": 8},
            (
                "participations must be at most 7, the rounds of per_rounds=, got 8: lower it,"
                " or give more per_rounds="
            ),
        ),
        ({"per_rounds": 0}, "per_rounds must be at least 1, got 0"),
        ({"participations": 0}, "participations must be at least 1, got 0"),
    ],
)
def test_what_is_asked_by_the_calendar_fits_its_rounds_or_says_what_to_do(values, message):
    with pytest.raises(InvalidInputError, match=f"^{re.escape(message)}$"):
        Recurring(calendar=WEEKS, **values)
    Recurring(calendar=WEEKS, per_rounds=28, participations=28)


def is_kept(rounds, most, in_a_row, num_rounds):
    """Whether no window of so many rounds in a row, wherever it begins, holds too many."""
    return all(
        sum(first <= round < first + in_a_row for round in rounds) <= most
        for first in range(num_rounds)
    )


@pytest.mark.parametrize("num_rounds", range(1, 10))
def test_the_lifetime_is_the_most_of_all_patterns_of_rounds(num_rounds):
    """By brute force: of all sets of rounds that keep the rule, the largest is what is charged."""
    patterns = [
        [round for round in range(num_rounds) if bits >> round & 1] for bits in range(2**num_rounds)
    ]
    for in_a_row in range(1, num_rounds + 1):
        for most in range(1, in_a_row + 1):
            found = event(most, per_rounds=in_a_row, num_rounds=num_rounds)
            kept = [rounds for rounds in patterns if is_kept(rounds, most, in_a_row, num_rounds)]
            assert found.lifetime == max(map(len, kept)), (most, in_a_row, num_rounds)
            assert found.releases == [(1, found.lifetime)]
            for rounds in kept:  # and each of its rounds may come last, whatever came before
                for last in rounds:
                    assert found.allows([round for round in rounds if round != last], last)


@given(st.integers(1, 4), st.integers(0, 6), st.lists(st.integers(0, 19), unique=True))
def test_rounds_that_are_allowed_in_any_order_keep_the_rule(most, more, order):
    found, taken = event(most, per_rounds=most + more, num_rounds=20), []
    for round in order:
        if found.allows(taken, round):
            taken.append(round)
        else:  # it is refused only where it would break the rule
            assert not is_kept([*taken, round], most, most + more, 20)
    assert is_kept(taken, most, most + more, 20)
    assert len(taken) <= found.lifetime


def test_without_rounds_in_a_row_all_rounds_count():
    assert [event(2).allows(taken, 9) for taken in ([], [3], [3, 4])] == [True, True, False]
    assert event(2).lifetime == 2
    assert event(2).in_a_row == event(2)


def test_epsilon_is_that_of_rounds_in_a_row_and_the_whole_life_is_charged():
    terms = weekly(participations=2).privacy
    one, life = terms.event.in_a_row, dataclasses.replace(terms.event.in_a_row, participations=8)
    assert terms.event.contributions == 8
    assert terms.promised == accounting.epsilon(one, 1e-6)
    assert terms.guarantee == accounting.epsilon(life, 1e-6)
    assert terms.guarantee == accounting.epsilon(terms.event, 1e-6)  # what ledgers and records do
    assert 0.999 < terms.promised.epsilon <= 1 < 2 < terms.guarantee.epsilon < 3
    # with the least noise for the week, and no less
    alone = propose(epsilon=1.0, delta=1e-6, rows=5, width=100, participations=2)
    assert terms.event.noise_variance == alone.event.noise_variance
    with pytest.raises(InvalidInputError, match="gives epsilon .* above the epsilon 1 of the plan"):
        dataclasses.replace(
            terms, event=dataclasses.replace(terms.event, variance=0.99 * terms.event.variance)
        )


def test_every_pattern_of_rounds_costs_at_most_what_is_charged():
    """Each set of rounds that a record allows, in any window of them and in all."""
    exposed = exposure(rows=3, width=50, participations=2, per_rounds=4, num_rounds=9)
    terms = least_noise(exposed, epsilon=1.0, delta=1e-6)
    for bits in range(2**9):
        rounds = [round for round in range(9) if bits >> round & 1]
        if not rounds or not is_kept(rounds, 2, 4, 9):
            continue
        assert cost(terms, len(rounds)) <= terms.guarantee.epsilon
        for first in range(6):
            inside = sum(first <= round < first + 4 for round in rounds)
            assert cost(terms, inside) <= terms.promised.epsilon


def cost(terms, parts):
    if not parts:
        return 0.0
    alone = dataclasses.replace(terms.event.in_a_row, participations=parts)
    return accounting.epsilon(alone, terms.delta).epsilon


def test_an_event_keeps_its_rounds_in_a_row_in_its_record():
    found = event(2, per_rounds=7, num_rounds=28)
    assert Event.from_dict(found.to_dict()) == found
    assert found.to_dict()["per_rounds"] == 7


def test_a_caution_on_delta_counts_a_client_of_a_calendar_once(tmp_path):
    """The grant's delta is below 1 / clients, and not below 1 / (their rounds in all)."""
    plan = weekly()
    books = tmp_path / "books.db"
    population, fleet = plan.privacy.population, plan.fewest_clients
    assert plan.fleet == fleet < plan.num_clients
    for delta, warns in ((2 / (fleet + plan.num_clients), False), (1.01 / fleet, True)):
        books.unlink(missing_ok=True)
        Ledger.open(books, create=True).grant(population, 1.0, delta, time=0)
        run = LedgerBooks(books, population, owner="me", clock=lambda: 0)
        said = places.cautions(str(books), plan)
        assert run.cautions(plan) == said
        assert [f"1 / {fleet:,} clients" in one for one in said] == [True] * warns
    without = dataclasses.replace(plan, calendar=None, privacy=None)
    assert without.fleet == without.num_clients


@given(calendars, st.data())
def test_what_is_shown_so_far_ends_when_its_last_round_closes(calendar, data):
    """The text is a day that is over when the round closes, or the time at which it closes."""
    round = data.draw(st.integers(0, calendar.num_rounds - 1))
    closes, text = calendar.closes(round), last_day(calendar, round)
    if text == time_text(closes):
        return
    day = datetime.fromisoformat(text).replace(tzinfo=UTC)
    assert calendar.period >= DAY and day + DAY == closes


def test_a_day_that_begins_within_a_day_ends_within_the_next_one():
    assert last_day(WEEKS, 13) == "2026-12-14"
    later = Calendar(START + timedelta(hours=6), DAY, 28)
    assert last_day(later, 13) == "2026-12-15T06:00Z"  # not the 14th, whose night is in the round
