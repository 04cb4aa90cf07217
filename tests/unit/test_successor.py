"""A plan that goes on where another one ends: all that it says, a later start, and a new seed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.calendar import DAY, Calendar
from fedtally.plan.successor import successor
from fedtally.privacy.config import propose
from fedtally.privacy.events import Collisions

START = datetime(2026, 12, 1, tzinfo=UTC)
DAYS = Calendar(START, DAY, 28)
NEW = bytes([1]) * 32


def plan(**changed: object) -> Plan:
    domain = {"kind": "range", "size": 900, "public": True, "first": 1, "last": 900}
    made = Plan(7, 80, "hybrid", 28, 5000, 300, domain, 1, bytes(32), calendar=DAYS)
    return replace(made, **changed)  # type: ignore[arg-type]


def private() -> Plan:
    terms = propose(
        epsilon=1.0, delta=1e-6, rows=7, width=80, per_rounds=7, num_rounds=28, population="all"
    )
    return plan(privacy=terms)


@pytest.mark.parametrize("made", [plan(), private()], ids=["exact", "private"])
def test_a_successor_says_all_but_its_days_and_its_seed(made: Plan) -> None:
    found = successor(made, seed=NEW)
    assert found.calendar == Calendar(DAYS.end, DAY, 28)
    assert found.seed == NEW
    assert replace(found, seed=made.seed, calendar=made.calendar) == made
    later = successor(made, seed=NEW, start=DAYS.end + timedelta(days=3))
    assert later.calendar is not None
    assert later.calendar.start == DAYS.end + timedelta(days=3)


def test_a_successor_of_another_kind_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="needs a plan with a calendar"):
        successor(plan(calendar=None), seed=NEW)
    with pytest.raises(InvalidInputError, match="must not be before the plan in .* ends"):
        successor(plan(), seed=NEW, start=DAYS.end - timedelta(seconds=1))
    with pytest.raises(InvalidInputError, match="with one seed two plans have the same hashes"):
        successor(plan(), seed=bytes(32))


def test_a_successor_charges_the_population_of_its_predecessor() -> None:
    assert successor(private(), seed=NEW, population="all").privacy == private().privacy
    with pytest.raises(InvalidInputError, match="which charges 'all', got 'others'"):
        successor(private(), seed=NEW, population="others")
    with pytest.raises(InvalidInputError, match="which charges no population"):
        successor(plan(), seed=NEW, population="others")


def test_a_successor_of_certified_hashes_is_refused() -> None:
    terms = propose(
        epsilon=1.0,
        delta=1e-6,
        rows=7,
        width=80,
        relation="replace-one",
        per_rounds=7,
        num_rounds=28,
    )
    event = replace(terms.event, collisions=Collisions(7, 7))
    certified = plan(privacy=replace(terms, event=event))
    with pytest.raises(InvalidInputError, match="has collisions certified for its own seed"):
        successor(certified, seed=NEW)
