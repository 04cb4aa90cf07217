"""The ledger and the client's record: under crashes and concurrent writers nothing is spent twice
or lost.

What follows runs on SQLite, and on PostgreSQL where there is a server (`databases.py`).
"""

from __future__ import annotations

import copy
import errno
import gc
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import FrozenInstanceError
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import sqlalchemy as sa
from cases import each_case
from hypothesis import example, given, settings
from hypothesis import strategies as st
from secagg_cohort import Cohort
from sqlalchemy import event as hooks

from fedtally.errors import FedtallyError, InvalidInputError, UnreadableFileError
from fedtally.privacy import accounting, allows_publishing
from fedtally.privacy.budget import AlreadySpentError, Cap, Charge, Grant, OverspentError
from fedtally.privacy.events import Event
from fedtally.secagg.client import Journal as ClientJournal
from fedtally.secagg.messages import AbortCode
from fedtally.store import ClientRecord, Journal, Ledger, Reservation, StoreError, database, marks
from fedtally.store import ledger as ledgers

EVENT = Event("rounded-gaussian", 16, "zero-out", variance=1e5, participations=3)
SHARES = Event("skellam", 5, "zero-out", variance=2e5, honest_survivors=90, participations=2)
PLAN: Any = SimpleNamespace(
    fingerprint="plan-0", privacy=SimpleNamespace(population="phones", event=SHARES)
)
# the epsilon of 1 to 4 campaigns of EVENT at delta 1e-6: 0.0782, 0.1135, 0.1410, 0.1645
ONE, THREE = 0.1, 0.15
RUN = "run 1"
_numbers = count()


def charge(
    plan: str = "plan-0", release: int = 0, event: Event = EVENT, population: str = "phones"
) -> Charge:
    return Charge(population, plan, release, event)


# ---- databases to test on ----


@pytest.fixture(autouse=True)
def _spared(request: pytest.FixtureRequest) -> None:
    if request.node.name != "test_files_are_private_and_written_through":
        request.getfixturevalue("no_sync")


@pytest.fixture
def ledger(places: Callable[[], str]) -> Ledger:
    """Give a ledger that grants three campaigns of EVENT."""
    return new_ledger(places())


@pytest.fixture
def record(tmp_path: Path) -> ClientRecord:
    return ClientRecord.open(tmp_path / "record.db", create=True)


def new_ledger(location: str, epsilon: float = THREE) -> Ledger:
    made = Ledger.open(location, create=True)
    made.grant("phones", epsilon, 1e-6, time=0)
    return made


# ---- what it keeps ----


def test_from_a_grant_to_a_landing(ledger: Ledger) -> None:
    assert ledger.granted("phones") == Grant("phones", THREE, 1e-6)
    assert ledger.granted("tablets") is ledger.spent("phones") is ledger.spent("tablets") is None
    reservation = ledger.reserve(charge(release=4), RUN, time=5)
    assert reservation == ("plan-0", 4)
    assert ledger.spent("phones") == accounting.epsilon(EVENT, 1e-6)  # before anything landed
    assert ledger.landings("plan-0") == []
    landing = ledger.land(reservation, b"noised", RUN, time=6)
    assert landing == ("plan-0", 4, hashlib.sha256(b"noised").hexdigest(), 6)
    assert ledger.landings("plan-0") == [landing]
    assert ledger.sketch("plan-0", 4) == b"noised"
    assert ledger.reserved("plan-0") == [4]
    assert ledger.spent("phones") == accounting.epsilon(EVENT, 1e-6)


def test_a_ledger_outlives_its_process(places: Callable[[], str]) -> None:
    place = places()
    new_ledger(place).reserve(charge(), RUN, time=1)
    again = Ledger.open(place, create=True)  # what is there is kept
    assert again.reserved("plan-0") == [0]
    with pytest.raises(
        AlreadySpentError, match="release 0 of plan plan-0 is not to be had: another run charged"
    ):
        again.reserve(charge(), "run 2", time=2)


def test_what_was_not_granted_is_not_reserved(ledger: Ledger) -> None:
    with pytest.raises(
        InvalidInputError,
        match="nothing was granted to population 'tablets'.*fedtally ledger grant",
    ):
        ledger.reserve(charge(population="tablets"), RUN, time=1)
    for plan in range(3):
        ledger.reserve(charge(f"plan-{plan}"), RUN, time=1)
    with pytest.raises(
        OverspentError, match="plan plan-3 would take population 'phones' to epsilon 0.1645 at"
    ):
        ledger.reserve(charge("plan-3"), RUN, time=1)
    assert ledger.reserved("plan-3") == []
    ledger.reserve(charge("plan-1", 1), RUN, time=1)  # charged with round 0
    ledger.grant("phones", 1.0, 1e-6, time=2)
    ledger.reserve(charge("plan-3"), RUN, time=3)
    ledger.grant("phones", 0.1, 1e-6, time=4)  # the latest grant holds, not the largest
    with pytest.raises(OverspentError):
        ledger.reserve(charge("plan-4"), RUN, time=5)


def test_its_owner_may_ask_again_for_a_release_that_did_not_land(
    ledger: Ledger, places: Callable[[], str]
) -> None:
    first = ledger.reserve(charge(), RUN, time=1)
    resumed = Ledger.open(ledger._engine.url.render_as_string(hide_password=False))
    # the second cohort of a round, or a restart
    assert resumed.reserve(charge(), RUN, time=9) == first
    with pytest.raises(InvalidInputError, match="charged with another event"):
        resumed.reserve(charge(event=SHARES), RUN, time=9)
    assert ledger.export()["populations"][0]["campaigns"][0]["releases"][0]["reserved"] == 1
    for release in (0, 1):  # a plan is run once: nobody else goes on with it
        with pytest.raises(
            AlreadySpentError, match=f"release {release} of plan plan-0 .* another run charged this"
        ):
            ledger.reserve(charge(release=release), "run 2", time=2)
    ledger.land(first, b"noised", RUN, time=3)
    for owner, why in (
        (RUN, "has landed: it is not opened again"),
        ("run 2", "another run charged"),
    ):
        with pytest.raises(AlreadySpentError, match=why):
            ledger.reserve(charge(), owner, time=4)
    assert ledger.reserve(charge(release=1), RUN, time=5) == ("plan-0", 1)
    ledger.grant("phones", 1e-3, 1e-6, time=6)  # too small for anything new
    assert ledger.reserve(charge(release=1), RUN, time=7) == ("plan-0", 1)
    assert ledger.spent("phones") == accounting.epsilon(EVENT, 1e-6)
    for owner in ("", " run", "run\n", "x" * 201, 5):
        with pytest.raises(InvalidInputError, match="owner must be 1 to 200 printable"):
            ledger.reserve(charge("plan-1"), owner, time=8)  # type: ignore[arg-type]


def test_two_processes_of_one_run_land_one_sketch(ledger: Ledger) -> None:
    twins = [ledger.reserve(charge(), RUN, time=1) for _ in range(2)]
    ledger.land(twins[1], b"of the second", RUN, time=2)
    with pytest.raises(AlreadySpentError, match="another sketch landed"):
        ledger.land(twins[0], b"of the first", RUN, time=3)


def test_nobody_lands_in_the_release_of_another_run(ledger: Ledger) -> None:
    """A reservation is no key: anybody can write one down."""
    ledger.reserve(charge(), RUN, time=1)
    for owner in ("run 2", "RUN 1"):
        with pytest.raises(
            AlreadySpentError, match="release 0 of plan plan-0 .* another run charged this plan"
        ):
            ledger.land(Reservation("plan-0", 0), b"of another run", owner, time=2)
    with pytest.raises(InvalidInputError, match="owner must be 1 to 200 printable"):
        ledger.land(Reservation("plan-0", 0), b"of nobody", "", time=2)
    assert ledger.landings("plan-0") == []
    landing = ledger.land(Reservation("plan-0", 0), b"of its run", RUN, time=2)
    with pytest.raises(AlreadySpentError, match="another run charged this plan"):
        ledger.land(Reservation("plan-0", 0), b"of its run", "run 2", time=3)
    assert ledger.landings("plan-0") == [landing]


@pytest.mark.promise
def test_what_a_reservation_costs_does_not_grow_with_the_campaigns(
    places: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted: statements, instructions of SQLite's machine, and campaigns that the accountant
    looks at."""
    ledger, steps, counted = new_ledger(places(), epsilon=20.0), [0], {"statements": 0, "bounds": 0}
    bound = accounting.gaussian_bound

    def noted(events: Event | Sequence[Event]) -> float:
        counted["bounds"] += 1 if isinstance(events, Event) else len(events)
        return bound(events)

    def step() -> int:
        steps[0] += 1
        return 0

    def statement(*_: object) -> None:
        counted["statements"] += 1

    monkeypatch.setattr(accounting, "gaussian_bound", noted)
    hooks.listen(ledger._engine, "before_cursor_execute", statement)
    if ledger._engine.dialect.name == "sqlite":
        hooks.listen(
            ledger._engine,
            "connect",
            lambda connection, _: connection.set_progress_handler(step, 1),
        )

    def cost(number: int) -> tuple[dict[str, int], int]:
        steps[0], counted["statements"], counted["bounds"] = 0, 0, 0
        ledger.reserve(charge(f"plan-{number}", event=event_of(number)), RUN, time=1)
        return dict(counted), steps[0]

    costs = [cost(number) for number in range(120)]
    assert costs[1][0]["bounds"] == 1
    assert all(found[0] == costs[1][0] for found in costs[1:])
    few, many = (max(found[1] for found in costs[start : start + 20]) for start in (2, 100))
    assert many <= few + 30  # a deeper tree takes a step or two more
    total = ledger.spent("phones")
    events = [event_of(number) for number in range(120)]
    assert total is not None
    assert total.epsilon == pytest.approx(
        accounting.epsilon(events, 1e-6, adaptive=True).epsilon, rel=1e-12
    )


def event_of(number: int) -> Event:
    """Return an event that no campaign of another number has."""
    return Event("rounded-gaussian", 16, "zero-out", variance=1e6 + number)


def test_the_total_is_that_of_the_events(ledger: Ledger) -> None:
    """The running total against the accountant, which sees all events at once; also of what is only
    planned."""
    ledger.grant("phones", 5.0, 1e-6, time=0)
    events: list[Event] = []
    for number, event in enumerate([EVENT, SHARES, EVENT, SHARES, event_of(1)]):
        planned = ledger.spent("phones", [charge(f"plan-{number}", event=event)])
        ledger.reserve(charge(f"plan-{number}", event=event), RUN, time=1)
        events.append(event)
        expected = accounting.epsilon(events, 1e-6, adaptive=True)
        assert ledger.spent("phones") == planned == expected
        assert ledger.export()["populations"][0]["statement"] == str(expected)


LITTLE = Event("skellam", 1, "zero-out", variance=2.2, honest_survivors=90)


def test_the_order_is_that_of_the_first_campaign(ledger: Ledger) -> None:
    """It follows from what was granted when the first campaign began. A grant that is raised later,
    in view of what was opened, leaves it; so do a lower one and campaigns with other noise."""
    ledger.grant("ward", 3.7, 1e-6, time=0)
    one, other = (charge(f"little-{n}", event=LITTLE, population="ward") for n in range(2))
    ledger.reserve(one, RUN, time=1)
    [first] = ledger.export("ward")["populations"]
    order = accounting.filter_order(LITTLE, 3.7, 1e-6)
    assert first["order"] == order != accounting.filter_order(LITTLE, 20.0, 1e-6)
    assert order is not None
    ledger.reserve(other, RUN, time=1)  # as Gaussians the two would cost 5.2
    both = accounting.Composition.of([LITTLE, LITTLE], 1e-6, 3.7).guarantee
    assert ledger.spent("ward") == both
    assert both.method == "renyi-filter" and both.epsilon <= 3.7
    ledger.grant("ward", 20.0, 1e-6, time=2)
    assert ledger.export("ward")["populations"][0]["order"] == order
    ledger.reserve(charge("more", event=EVENT, population="ward"), RUN, time=3)
    found = accounting.Composition.of([LITTLE, LITTLE, EVENT], 1e-6, 3.7)
    assert ledger.spent("ward") == found.guarantee
    assert ledger.export("ward")["populations"][0]["order"] == order == found.order


def test_a_population_of_before_keeps_its_bound(places: Callable[[], str]) -> None:
    """A total that has no order was charged when there were none: half of delta was not kept for
    the other bound, so its campaigns compose as Gaussians for good."""
    place = places()
    books = Ledger.open(place, create=True)
    books.grant("ward", 25.0, 1e-6, time=0)
    old = accounting.Composition.of([LITTLE], 1e-6)
    row = {
        "plan": "old",
        "population": "ward",
        "number": 1,
        "owner": RUN,
        "event": json.dumps(LITTLE.to_dict(), sort_keys=True),
        "total": json.dumps(old.to_dict(), sort_keys=True),
        "time": 1,
    }
    with books._transaction(write=True) as connection:
        connection.execute(sa.insert(ledgers._campaigns).values(**row))
    for number in (1, 2):
        books.reserve(charge(f"new-{number}", event=LITTLE, population="ward"), RUN, time=2)
        expected = accounting.epsilon([LITTLE] * (number + 1), 1e-6, adaptive=True)
        assert books.spent("ward") == expected
        assert expected.method == "gaussian-composition"
    assert books.export("ward")["populations"][0]["order"] is None


def test_populations_that_look_alike(ledger: Ledger) -> None:
    ledger.grant("Cafe-1", 1.0, 1e-6, time=0)
    assert ledger.look_alikes("phones") == ledger.look_alikes("tablets") == []
    assert (
        ledger.look_alikes("Phones")
        == ledger.look_alikes("\N{CYRILLIC SMALL LETTER ER}hones")
        == ["phones"]
    )
    assert ledger.look_alikes("caf\xe9 l") == ["Cafe-1"]
    with pytest.raises(
        InvalidInputError,
        match="nothing was granted to population 'Phones', which looks like 'phones', in",
    ):
        ledger.reserve(charge(population="Phones"), RUN, time=1)
    with pytest.raises(InvalidInputError, match=r"population must be in Unicode form NFC, 'café'"):
        ledger.grant("cafe\u0301", 1.0, 1e-6, time=0)


def test_a_grant_whose_delta_allows_publishing_an_item_is_warned_of(ledger: Ledger) -> None:
    """A plan refuses such a delta, but campaigns are charged at the delta of the grant."""
    ledger.grant("ward", 4.0, 1e-3, 0)
    assert ledger.cautions("ward", 999) == []
    [said] = ledger.cautions("ward", 1000)
    assert "its delta 0.001 is not below 1 / 1,000 clients" in said and "'ward'" in said
    assert "1 / 1,000 people:" in ledger.cautions("ward", 1000, "people")[0]
    assert ledger.cautions("nobody", 1000) == []  # charging it is refused


@pytest.mark.parametrize("people", [49, 98, 103])
def test_a_delta_of_one_in_all_people_allows_publishing(people: int) -> None:
    """For these numbers, rounding makes the product of delta and people less than 1."""
    assert (1 / people) * people < 1
    assert "is not below 1 /" in allows_publishing(1 / people, people)
    assert not allows_publishing(0.99 / people, people)
    assert not allows_publishing(0.5, 0)


def test_delta_is_granted_once(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match="total delta of 1e-06 for good, not 1e-07"):
        ledger.grant("phones", 1.0, 1e-7, time=1)
    assert ledger.granted("phones") == Grant("phones", THREE, 1e-6)


def test_a_plan_has_one_population_and_one_event(ledger: Ledger) -> None:
    ledger.grant("tablets", 1.0, 1e-6, time=0)
    ledger.reserve(charge(), RUN, time=1)
    with pytest.raises(InvalidInputError, match="charged to population 'phones'"):
        ledger.reserve(charge(release=1, population="tablets"), RUN, time=1)
    with pytest.raises(InvalidInputError, match="charged with another event"):
        ledger.reserve(charge(release=1, event=SHARES), RUN, time=1)


def test_a_sum_lands_once(ledger: Ledger) -> None:
    with pytest.raises(InvalidInputError, match="release 0 of plan plan-0 was not reserved"):
        ledger.land(Reservation("plan-0", 0), b"noised", RUN, time=1)
    reservation = ledger.reserve(charge(), RUN, time=1)
    with pytest.raises(InvalidInputError, match="not empty"):
        ledger.land(reservation, b"", RUN, time=2)
    first = ledger.land(reservation, b"noised", RUN, time=2)
    # the same bytes again: nothing new
    assert ledger.land(reservation, b"noised", RUN, time=3) == first
    with pytest.raises(AlreadySpentError, match="another sketch landed for release 0"):
        ledger.land(reservation, b"noised otherwise", RUN, time=3)
    assert ledger.sketch("plan-0", 0) == b"noised"
    with pytest.raises(InvalidInputError, match="release 1 of plan plan-0 did not land"):
        ledger.sketch("plan-0", 1)


def test_constraints_hold_against_a_writer_who_asks_nobody(ledger: Ledger) -> None:
    ledger.land(ledger.reserve(charge(), RUN, time=1), b"noised", RUN, time=2)
    row = {"plan": "plan-0", "release": 0, "time": 9}
    campaign = {
        "plan": "plan-9",
        "population": "phones",
        "number": 2,
        "owner": "x",
        "event": "{}",
        "total": "{}",
    }
    landing = {**row, "sketch": b"other", "sha256": "0" * 64}
    for table, values in [
        (ledgers._reservations, row),
        (ledgers._landings, landing),
        (ledgers._reservations, {**row, "plan": "plan-9"}),  # of no campaign
        (ledgers._landings, {**landing, "release": 1}),  # of no reservation
        (ledgers._campaigns, {**campaign, "population": "nobody", "time": 9}),
        (ledgers._campaigns, {**campaign, "plan": "plan-0", "time": 9}),
        (
            ledgers._campaigns,
            {**campaign, "number": 1, "time": 9},
        ),  # beside the one that was counted
    ]:
        with pytest.raises(StoreError), ledger._transaction(write=True) as connection:
            connection.execute(sa.insert(table).values(**values))


def test_rows_are_never_changed(ledger: Ledger) -> None:
    ledger.land(ledger.reserve(charge(), RUN, time=1), b"noised", RUN, time=2)
    before = ledger.export()
    tables = [table.name for table in (database.schema, *ledgers._ledger.sorted_tables)]
    assert len(tables) == 6
    statements = ["DELETE FROM {0}", "UPDATE {0} SET {1} = {1}"]
    if ledger._engine.dialect.name == "sqlite":
        statements += ["INSERT OR REPLACE INTO {0} SELECT * FROM {0}"]
    else:
        statements += ["TRUNCATE {0} CASCADE"]
    columns = {
        table.name: table.columns.keys()[-1]
        for table in (database.schema, *ledgers._ledger.sorted_tables)
    }
    for table in tables:
        for statement in statements:
            with (
                pytest.raises(StoreError, match="append-only"),
                ledger._transaction(write=True) as connection,
            ):
                connection.exec_driver_sql(statement.format(table, columns[table]))
    assert ledger.export() == before


def test_export_holds_everything_but_the_sketches(ledger: Ledger) -> None:
    ledger.grant("tablets", 2.0, 1e-7, time=0)
    ledger.land(ledger.reserve(charge(), RUN, time=1), b"noised", RUN, time=2)
    ledger.reserve(charge(release=1), RUN, time=3)
    document = ledger.export()
    assert [entry["population"] for entry in document["populations"]] == ["phones", "tablets"]
    phones, tablets = document["populations"]
    (campaign,) = phones.pop("campaigns")
    total = accounting.epsilon(EVENT, 1e-6)
    assert phones == {
        "population": "phones",
        "epsilon_granted": THREE,
        "delta": 1e-6,
        "epsilon_spent": total.epsilon,
        "statement": str(total),
        "order": None,
        "grants": [{"epsilon": THREE, "time": 0}],
    }
    digest = hashlib.sha256(b"noised").hexdigest()
    assert campaign["releases"] == [
        {"release": 0, "reserved": 1, "landed": 2, "sha256": digest},
        {"release": 1, "reserved": 3, "landed": None, "sha256": None},
    ]
    assert campaign["owner"] == RUN
    assert Event.from_dict(campaign["event"]) == EVENT
    assert (tablets["epsilon_spent"], tablets["statement"], tablets["campaigns"]) == (0.0, None, [])
    assert ledger.export("tablets")["populations"] == [tablets]
    with pytest.raises(InvalidInputError, match="knows no population 'nobody'"):
        ledger.export("nobody")


# ---- what it opens ----


def test_a_newer_ledger_is_not_touched(places: Callable[[], str]) -> None:
    place, old = places(), Ledger._schema
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "_schema", old + 1)
        new_ledger(place)
    for create in (False, True):
        with pytest.raises(
            UnreadableFileError, match=rf"newer fedtally \(schema {old + 1}; this one knows {old}\)"
        ):
            Ledger.open(place, create=create)


def test_what_is_no_ledger(places: Callable[[], str], tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="no ledger"):
        Ledger.open(places())
    ClientRecord.open(tmp_path / "record.db", create=True)
    with pytest.raises(UnreadableFileError, match="holds a client record, not a ledger"):
        Ledger.open(tmp_path / "record.db", create=True)
    (tmp_path / "text").write_text("no database " * 1000)
    for create in (False, True):
        with pytest.raises(UnreadableFileError, match="is no database"):
            Ledger.open(tmp_path / "text", create=create)
    with pytest.raises(UnreadableFileError, match="cannot open"):
        Ledger.open(tmp_path / "nowhere" / "ledger.db", create=True)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("mysql://me@host/books", "SQLite or PostgreSQL, not in mysql"),
        ("sqlite://", "must outlive its process"),
        (":memory:", "must outlive its process"),
        ("sqlite:///file:x?mode=memory&uri=true", "must outlive its process"),
        ("", "must outlive its process"),
        ("://", "not a URL"),
    ],
)
def test_places_that_are_refused(location: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        Ledger.open(location, create=True)


def test_a_password_is_not_told() -> None:
    pytest.importorskip("psycopg")
    for url in (
        "postgresql://me:hunter2@127.0.0.1:1/books",
        "postgresql://me@127.0.0.1:1/books?password=hunter2",
    ):
        with pytest.raises(StoreError) as caught:
            Ledger.open(url, create=True)
        assert "hunter2" not in str(caught.value)
        assert "127.0.0.1:1/books failed" in str(caught.value)


def test_without_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(FedtallyError, match=r"pip install 'fedtally\[postgres\]'"):
        Ledger.open("postgresql://me@127.0.0.1:1/books")


def test_damage_is_noticed(tmp_path: Path) -> None:
    books = new_ledger(str(tmp_path / "books.db"))
    books.land(books.reserve(charge(), RUN, time=1), b"noised", RUN, time=2)
    books.grant("tablets", 1.0, 1e-6, time=0)
    books.reserve(charge("plan-9", population="tablets"), RUN, time=2)
    with sqlite3.connect(tmp_path / "books.db") as connection:  # as their owner can
        connection.execute("DROP TRIGGER fedtally_landings_update")
        connection.execute("DROP TRIGGER fedtally_campaigns_update")
        connection.execute("UPDATE fedtally_landings SET sketch = x'00'")
        connection.execute("UPDATE fedtally_campaigns SET event = '{' WHERE plan = 'plan-0'")
        connection.execute("UPDATE fedtally_campaigns SET total = '{}' WHERE plan = 'plan-9'")
    connection.close()
    with pytest.raises(UnreadableFileError, match="release 0 of plan plan-0 is damaged"):
        books.sketch("plan-0", 0)
    with pytest.raises(UnreadableFileError, match="event of the store cannot be read"):
        books.reserve(charge("plan-1"), RUN, time=3)
    with pytest.raises(UnreadableFileError, match="total of the store cannot be read"):
        books.reserve(charge("plan-1", population="tablets"), RUN, time=3)


def test_a_population_whose_grant_is_gone_is_damage(tmp_path: Path) -> None:
    books = new_ledger(str(tmp_path / "books.db"))
    with sqlite3.connect(tmp_path / "books.db") as connection:
        connection.execute("DROP TRIGGER fedtally_grants_delete")
        connection.execute("DELETE FROM fedtally_grants")
    connection.close()
    with pytest.raises(UnreadableFileError, match="has no grant; put a copy"):
        books.export()


def test_files_are_private_and_written_through(tmp_path: Path) -> None:
    books = new_ledger(str(tmp_path / "books.db"))
    assert (tmp_path / "books.db").stat().st_mode & 0o777 == 0o600
    with books._transaction(write=False) as connection:
        settings = {"synchronous": 3, "foreign_keys": 1, "journal_mode": "truncate"}
        for pragma, value in settings.items():
            assert connection.exec_driver_sql(f"PRAGMA {pragma}").scalar() == value


def test_a_file_that_is_replaced_by_renaming_is_the_one_that_counts(tmp_path: Path) -> None:
    place = tmp_path / "books.db"
    books = new_ledger(str(place))
    books.reserve(charge(), RUN, time=1)
    shutil.copy(place, tmp_path / "copy.db")
    books.reserve(charge(release=1), RUN, time=2)
    os.replace(tmp_path / "copy.db", place)
    assert books.reserved("plan-0") == [0]
    books.reserve(charge(release=2), RUN, time=3)
    assert Ledger.open(place).reserved("plan-0") == [0, 2]
    place.unlink()
    with pytest.raises(StoreError):
        books.reserved("plan-0")
    assert not place.exists()  # an empty one would hide what is missing


def test_a_record_that_is_replaced_by_renaming_is_behind_its_mark(tmp_path: Path) -> None:
    place = tmp_path / "record.db"
    record = ClientRecord.open(place, create=True, mark=tmp_path / "mark")
    assert record.begin(b"a", 10)
    shutil.copy(place, tmp_path / "copy.db")
    assert record.begin(b"b", 10)
    os.replace(tmp_path / "copy.db", place)
    with pytest.raises(UnreadableFileError, match="old copy"):
        record.begin(b"b", 10)


def test_a_fork_connects_anew(tmp_path: Path) -> None:
    books = new_ledger(str(tmp_path / "books.db"))
    kept = books._engine.pool
    assert isinstance(kept, sa.QueuePool) and kept.checkedin() == 1
    child = os.fork()
    if child == 0:
        try:
            with books._engine.connect() as connection:
                record = connection.connection._connection_record  # type: ignore[union-attr]
                own = record is not None and record.info["file"][0] == os.getpid()
            books.reserve(charge(), RUN, time=1)
        finally:
            os._exit(0 if own else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert books.reserved("plan-0") == [0]


def test_a_writer_waits_and_then_says_so(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT_SECONDS", 1)
    place = ledger._engine.url.render_as_string(hide_password=False)
    other = Ledger.open(place)
    with ledger._transaction(write=True):
        with pytest.raises(StoreError, match="lock"):
            other.reserve(charge(), RUN, time=1)
        assert other.reserved("plan-0") == []  # who only reads does not wait
    other.reserve(charge(), RUN, time=1)


# ---- crashes and concurrent writers ----


class Crash(BaseException):
    """The end of a process, here of a call: nothing in the package catches it."""


class Crashing:
    """Raise at given steps; a step lies before and after each statement and each commit."""

    def __init__(self, at: list[int]) -> None:
        self.at, self.steps = sorted(at), 0

    def watch(self, database: Ledger | ClientRecord) -> None:
        engine, step = database._engine, lambda *_: self.step()
        if engine.dialect.name == "sqlite":  # engines of files share it
            engine.dialect = copy.copy(engine.dialect)
        commit = engine.dialect.do_commit

        def counted_commit(connection: object) -> None:
            self.step()
            commit(connection)
            self.step()

        hooks.listen(engine, "before_cursor_execute", step)
        hooks.listen(engine, "after_cursor_execute", step)
        engine.dialect.do_commit = counted_commit  # type: ignore[method-assign]

    def step(self) -> None:
        self.steps += 1
        if self.at and self.steps >= self.at[0]:
            self.at.pop(0)
            raise Crash


class Operator:
    """Runs campaigns to their end, started again after each crash; it remembers what a witness
    would have seen."""

    ROUNDS: ClassVar = {"plan-0": 2, "plan-1": 1}

    def __init__(self, place: str, crashing: Crashing) -> None:
        self.place, self.crashing = place, crashing
        self.drawn: dict[tuple[str, int], list[bytes]] = {}
        self.acknowledged: dict[tuple[str, int], bytes] = {}
        self.crashes = 0

    def run(self) -> None:
        while True:
            try:
                self.attempt()
                return
            except Crash:
                self.crashes += 1
            gc.collect(1)  # the end of a process closes its connections; a traceback may hold one
            if self.drawn:
                self.check(Ledger.open(self.place))

    def attempt(self) -> None:
        books = Ledger.open(self.place, create=True)
        self.crashing.watch(books)
        if books.granted("phones") is None:
            books.grant("phones", ONE, 1e-6, time=0)
        for plan, rounds in self.ROUNDS.items():
            reserved = books.reserved(plan)  # and not landed: given up
            for round in set(range(rounds)) - set(reserved):
                self.open(books, plan, round)

    def open(self, books: Ledger, plan: str, round: int) -> None:
        try:
            reservation = books.reserve(charge(plan, round), RUN, time=1)
        except OverspentError:
            return
        drawn = self.drawn.setdefault((plan, round), [])
        drawn.append(f"noise {self.crashing.steps}".encode())
        books.land(reservation, drawn[-1], RUN, time=2)
        self.acknowledged[plan, round] = drawn[-1]

    def check(self, books: Ledger) -> None:
        assert all(len(noises) == 1 for noises in self.drawn.values())
        for (plan, round), sketch in self.acknowledged.items():
            assert books.sketch(plan, round) == sketch
        for plan in self.ROUNDS:
            reserved, landed = (
                books.reserved(plan),
                {landing.release for landing in books.landings(plan)},
            )
            assert all(books.sketch(plan, round) == self.drawn[plan, round][0] for round in landed)
            assert landed <= {round for name, round in self.drawn if name == plan} <= set(reserved)
        total = books.spent("phones")
        assert total is None or total.epsilon <= ONE


def crash_at(place: str, at: list[int]) -> Operator:
    operator = Operator(place, Crashing(at))
    operator.run()
    operator.check(Ledger.open(place))
    return operator


@pytest.fixture
def places_of_kept_connections(
    places: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[], str]:
    """Keep a connection to PostgreSQL, which takes longer to open than most transactions take.

    A transaction that a crash leaves is rolled back, as it is where a connection closes.
    """
    monkeypatch.setattr(sa, "NullPool", sa.QueuePool)
    return places


@pytest.mark.promise
def test_a_crash_between_any_two_statements(
    places_of_kept_connections: Callable[[], str],
) -> None:
    places = places_of_kept_connections
    calm = crash_at(places(), [])
    assert calm.crashing.steps > 60 and not calm.crashes
    assert list(calm.acknowledged) == [("plan-0", 0), ("plan-0", 1)]  # plan-1 is not paid for
    lost = 0
    for step in range(1, calm.crashing.steps + 1):
        operator = crash_at(places(), [step])
        assert operator.crashes == 1
        lost += len(operator.acknowledged) < 2
    # rounds that were reserved and given up, or whose answer was lost
    assert 0 < lost < calm.crashing.steps / 2


@pytest.mark.promise
def test_a_crash_while_a_ledger_is_made(
    places: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_engine = database._engine

    def made(at: list[int]) -> tuple[str, int]:
        place, crashing = places(), Crashing(at)

        def watched(url: sa.URL) -> sa.Engine:
            engine = make_engine(url)
            crashing.watch(Ledger(engine, "watched"))
            return engine

        with monkeypatch.context() as patch:
            patch.setattr(database, "_engine", watched)
            with suppress(Crash):
                Ledger.open(place, create=True)
        gc.collect(1)
        return place, crashing.steps

    steps = made([])[1]
    assert steps > 50
    for step in range(
        1, steps + 1, 1 if "sqlite" in repr(make_engine(database.url_of(places()))) else 7
    ):
        place, _ = made([step])
        assert new_ledger(place).reserve(charge(), RUN, time=1) == ("plan-0", 0)


@pytest.mark.promise
@settings(max_examples=10)
@given(st.lists(st.integers(1, 200), max_size=8))
@example(at=list(range(60, 100)))
def test_many_crashes(at: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        crash_at(f"{folder}/ledger.db", at)


def test_two_writers_never_look_at_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, met, rule = threading.Barrier(2), [], ledgers.check_total

    def waiting(*given: object) -> object:
        with suppress(threading.BrokenBarrierError):
            meeting.wait(0.5)
            met.append(given)
        return rule(*given)

    monkeypatch.setattr(ledgers, "check_total", waiting)
    writers = [
        threading.Thread(target=ledger.reserve, args=(charge(f"plan-{n}"), RUN, 1))
        for n in range(2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert not met
    assert ledger.spent("phones") == accounting.epsilon([EVENT, EVENT], 1e-6, adaptive=True)


@pytest.mark.promise
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the writers are forks")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.matrix)])
def test_eight_writers_that_die(places: Callable[[], str], tmp_path: Path, seed: int) -> None:
    ledger = new_ledger(place := places())
    script = Path(__file__).parent.parent / "store_writers.py"
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), place, str(tmp_path), str(seed)]
    subprocess.run(command, check=True, timeout=120, env=environment)
    lines = [
        line.split() for log in tmp_path.glob("*.log") for line in log.read_text().splitlines()
    ]
    kinds = [line[0] for line in lines]
    assert not [line for line in lines if line[0] == "failed"]
    assert kinds.count("died") >= 4  # of 16 lives
    drew = {
        (plan, int(release)): digest
        for kind, plan, release, digest in (x for x in lines if x[0] == "drew")
    }
    assert len(drew) == kinds.count("drew") >= 6  # noise once for each sum
    assert {plan for plan, _ in drew} <= {
        row["plan"] for row in ledger.export()["populations"][0]["campaigns"]
    }
    landed = {(x.plan, x.release): x.sha256 for n in range(5) for x in ledger.landings(f"plan-{n}")}
    assert landed.items() <= drew.items()
    acknowledged = {(line[1], int(line[2])): line[3] for line in lines if line[0] == "landed"}
    assert acknowledged and acknowledged.items() <= landed.items()
    campaigns = [n for n in range(5) if ledger.reserved(f"plan-{n}")]
    assert len(campaigns) == 3  # as many as were granted, and all of them asked for
    assert all(ledger.reserved(f"plan-{n}") == [0, 1, 2] for n in campaigns)
    total = ledger.spent("phones")
    assert total is not None and total.epsilon <= THREE


# ---- the client's record ----


def test_a_client_takes_part_as_often_as_it_promised(record: ClientRecord) -> None:
    record.take_part("phones", "plan-0", 0, SHARES, time=1)
    with pytest.raises(AlreadySpentError, match="took part in round 0"):
        record.take_part("phones", "plan-0", 0, SHARES, time=1)
    with pytest.raises(InvalidInputError, match="another event"):
        record.take_part("phones", "plan-0", 1, EVENT, time=1)
    with pytest.raises(InvalidInputError, match="charged to population 'phones'"):
        record.take_part("tablets", "plan-0", 1, SHARES, time=1)
    record.take_part("phones", "plan-0", 5, SHARES, time=1)
    with pytest.raises(OverspentError, match="took part in 2 rounds of plan plan-0, of 2"):
        record.take_part("phones", "plan-0", 6, SHARES, time=1)
    record.take_part("phones", "plan-1", 6, SHARES, time=1)
    assert record.participations("plan-0") == [0, 5]


def test_without_privacy_only_rounds_and_items_are_counted(record: ClientRecord) -> None:
    for round in range(5):
        record.take_part("phones", "plan-0", round, None, time=1)
    with pytest.raises(AlreadySpentError):
        record.take_part("phones", "plan-0", 3, None, time=1)
    with pytest.raises(
        InvalidInputError, match="plan-0 named population 'phones' before, and names 'tablets' now"
    ):
        record.take_part("tablets", "plan-0", 5, None, time=1)
    assert record.participations("plan-0") == [*range(5)]
    with pytest.raises(InvalidInputError, match="without differential privacy before"):
        record.take_part("phones", "plan-0", 5, SHARES, time=1)
    record.take_part("phones", "plan-1", 0, SHARES, time=1)
    with pytest.raises(
        InvalidInputError,
        match="plan-1 came with differential privacy before, and comes without it",
    ):
        record.take_part("phones", "plan-1", 1, None, time=1)
    assert record.participations("plan-1") == [0]


def test_an_item_is_contributed_once(record: ClientRecord) -> None:
    record.take_part("phones", "plan-0", 0, SHARES, time=1, item="august")
    with pytest.raises(AlreadySpentError, match="by their label .* in round 0 of plan plan-0"):
        record.take_part("phones", "plan-1", 0, SHARES, time=1, item="august")
    record.take_part("phones", "plan-1", 0, SHARES, time=1, item="september")


def test_an_owner_may_grant_less(record: ClientRecord) -> None:
    record.grant("phones", accounting.epsilon(SHARES, 1e-6).epsilon * 1.1, 1e-6, time=0)
    record.take_part("phones", "plan-0", 0, SHARES, time=1)
    record.take_part("phones", "plan-0", 1, SHARES, time=1)
    with pytest.raises(OverspentError, match="was granted"):
        record.take_part("phones", "plan-1", 0, SHARES, time=1)


OTHER = Event("rounded-gaussian", 4, "replace-one", variance=2e4, participations=2)


def test_a_cap_holds_whatever_the_operator_names(record: ClientRecord) -> None:
    """Four plans in four populations: each fits a grant of its own, and all together do not fit the
    cap."""
    one = accounting.epsilon(SHARES, 1e-6).epsilon
    assert record.capped() is None
    record.cap(1.6 * one, 1e-6, time=0)
    assert record.capped() == Cap(1.6 * one, 1e-6)
    for n in range(2):
        record.take_part(f"population {n}", f"plan-{n}", 0, SHARES, time=1)
    for population in ("population 0", "population 2", "anybody"):
        with pytest.raises(
            OverspentError, match="everything in this record to epsilon .*, and its cap is epsilon"
        ):
            record.take_part(population, "plan-2", 0, SHARES, time=1)
    # counted in full with its first part
    record.take_part("population 1", "plan-1", 1, SHARES, time=1)
    assert record.participations("plan-2") == []
    record.cap(2.5 * one, 1e-6, time=2)  # the owner has changed its mind
    record.take_part("anybody", "plan-2", 0, SHARES, time=3)
    record.cap(0.5 * one, 1e-6, time=4)
    with pytest.raises(OverspentError, match="its cap is"):
        # begun, and nevertheless more than the cap
        record.take_part("anybody", "plan-2", 1, SHARES, time=5)


def test_a_cap_counts_all_relations_as_its_own(record: ClientRecord) -> None:
    together = [SHARES.under("replace-one"), OTHER]
    total = accounting.epsilon(together, 1e-6, adaptive=True).epsilon
    record.cap(total * 0.999, 1e-6, time=0, relation="replace-one")
    record.take_part("phones", "plan-0", 0, SHARES, time=1)
    with pytest.raises(OverspentError, match="replace-one"):
        record.take_part("tablets", "plan-1", 0, OTHER, time=1)
    record.cap(total, 1e-6, time=0, relation="replace-one")
    record.take_part("tablets", "plan-1", 0, OTHER, time=1)


def test_what_has_no_epsilon_is_refused_under_a_cap(record: ClientRecord) -> None:
    record.cap(1.0, 1e-6, time=0)
    with pytest.raises(
        OverspentError, match="without differential privacy: what has no epsilon cannot be counted"
    ):
        record.take_part("phones", "plan-0", 0, None, time=1)
    assert record.participations("plan-0") == []


def test_what_had_no_epsilon_cannot_be_capped_afterwards(record: ClientRecord) -> None:
    record.take_part("phones", "plan-0", 0, None, time=1)
    with pytest.raises(InvalidInputError, match="part in plan plan-0, .* no cap covers it"):
        record.cap(1.0, 1e-6, time=2)
    record.take_part("phones", "plan-1", 0, None, time=3)  # there is no cap


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0.0, 1e-6, 0), "epsilon above 0"),
        ((1.0, 1e-16, 0), "delta from 1e-15"),
        ((1.0, 1e-6, -1), "time must be at least 0"),
        ((1.0, 1e-6, 0, "add-remove"), "add-remove hides the number of clients"),
        ((1.0, 1e-6, 0, "none"), "relation must be zero-out, replace-one or add-remove"),
    ],
)
def test_caps_have_bounds(record: ClientRecord, values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        record.cap(*values)
    record.take_part("phones", "plan-0", 0, None, time=1)


def test_a_journal_stays_that_of_its_round(tmp_path: Path) -> None:
    """`join` compares the round once: what is booked later must be the same."""
    journal = Journal(ClientRecord.open(tmp_path / "client.db", create=True), PLAN, 0, time=1)
    for name, value in (("round", 1), ("plan", PLAN), ("item", "tea")):
        with pytest.raises(FrozenInstanceError):
            setattr(journal, name, value)


def test_a_journal_says_what_the_cap_refuses(record: ClientRecord) -> None:
    """Also where events cannot be added up, which the operator may arrange: it is a refusal, not an
    error."""
    record.cap(1e-3, 1e-6, time=0)
    journal = Journal(record, PLAN, 0, time=1)
    assert not journal.spend(b"") and "its cap is epsilon 0.001" in journal.refusal
    record.cap(1.0, 1e-14, time=0)
    assert not journal.spend(b"") and "delta" in journal.refusal
    assert record.participations(journal.fingerprint) == []


def test_a_cap_without_a_delta_refuses_what_needs_one(record: ClientRecord) -> None:
    record.cap(1.0, 0.0, time=0)
    journal = Journal(record, PLAN, 0, time=1)
    assert not journal.spend(b"") and "delta must be above 0" in journal.refusal
    assert record.participations(journal.fingerprint) == []


def test_rows_of_a_record_are_never_changed(record: ClientRecord) -> None:
    record.take_part("phones", "plan-0", 0, SHARES, time=1)
    record.begin(b"session", 9)
    record.cap(1.0, 1e-6, time=2)
    for table in ("fedtally_participations", "fedtally_begun_sessions", "fedtally_caps"):
        with (
            pytest.raises(StoreError, match="append-only"),
            record._transaction(write=True) as connection,
        ):
            connection.exec_driver_sql(f"DELETE FROM {table}")


def test_a_row_is_not_replaced_by_any_of_its_unique_columns(
    record: ClientRecord, tmp_path: Path
) -> None:
    """REPLACE deletes without the trigger of DELETE, also by a unique column that is not the
    primary key."""
    record.take_part("phones", "plan-a", 0, EVENT, 1, item="photo 1")
    # without an item: nothing is equal to a missing one
    record.take_part("phones", "plan-a", 1, EVENT, 2)
    ledger = Ledger.open(tmp_path / "ledger.db", create=True)
    ledger.grant("phones", THREE, 1e-6, time=0)
    ledger.reserve(charge(), RUN, time=1)
    # one other primary key
    other = "INSERT OR REPLACE INTO {0} SELECT {1} FROM {0} ORDER BY plan, time LIMIT 1"
    for books, table, columns in (
        (record, "fedtally_participations", "'plan-z', 7, population, event, item, time"),
        (ledger, "fedtally_campaigns", "'plan-z', population, number, owner, event, total, time"),
    ):
        with books._transaction(write=False) as connection:
            before = connection.exec_driver_sql(f"SELECT * FROM {table}").all()
        with (
            pytest.raises(StoreError, match="append-only"),
            books._transaction(write=True) as connection,
        ):
            connection.exec_driver_sql(other.format(table, columns))
        with books._transaction(write=False) as connection:
            assert connection.exec_driver_sql(f"SELECT * FROM {table}").all() == before
    assert record.participations("plan-a") == [0, 1]
    # a second one without an item goes in as before
    record.take_part("phones", "plan-b", 0, EVENT, 1)


@pytest.mark.promise
def test_a_client_that_crashes_never_sends_once_too_often(tmp_path: Path) -> None:
    def live(place: Path, crashing: Crashing, sent: list[int]) -> None:
        mine = ClientRecord.open(place, create=True)
        crashing.watch(mine)
        for round in range(6):
            journal = Journal(mine, PLAN, round, time=1)
            if journal.begin(f"{round} {crashing.steps}".encode(), 9) and journal.spend(b""):
                sent.append(round)

    def until_the_end(at: list[int]) -> tuple[int, int]:
        place, sent, crashing = tmp_path / f"{next(_numbers)}.db", [], Crashing(at)
        for _ in range(len(at) + 1):
            try:
                live(place, crashing, sent)
                break
            except Crash:
                pass
            gc.collect(1)
        recorded = ClientRecord.open(place).participations("plan-0")
        assert len(sent) == len(set(sent)) and set(sent) <= set(recorded) and len(recorded) == 2
        return len(sent), crashing.steps

    sent, steps = until_the_end([])
    assert sent == 2
    outcomes = [until_the_end([step])[0] for step in range(1, steps + 1)]
    assert set(outcomes) == {1, 2}  # a crash may cost a participation, and never gives one


def test_the_record_is_the_journal_of_a_secure_sum(record: ClientRecord) -> None:
    def cohort(seed: int, round: int, item: str | None = None) -> tuple[Cohort, Journal]:
        made = Cohort(5, seed=seed)
        journal = Journal(record, PLAN, round, time=1, item=item)
        durable: ClientJournal = journal
        made.clients[0] = made.client(0, journal=durable)
        return made, journal

    assert cohort(1, 0)[0].run().outcome.survivors == 5
    assert record.participations("plan-0") == [0]
    again, journal = cohort(2, 0)  # another session that claims the same round
    assert again.run().outcome.survivors == 4
    assert again.clients[0].code is AbortCode.ITEM_SPENT
    assert "took part in round 0" in journal.refusal
    replayed, journal = cohort(1, 1)  # the same session again
    replayed.run()
    assert replayed.clients[0].code is AbortCode.SESSION_SEEN
    assert cohort(3, 1)[0].run().outcome.survivors == 5
    third, journal = cohort(4, 2)
    assert third.run().outcome.survivors == 4
    assert "of 2 that it may" in journal.refusal


@pytest.mark.parametrize("session", [b"", bytes(65), "text"])
def test_sessions_have_bounds(record: ClientRecord, session: object) -> None:
    with pytest.raises(InvalidInputError, match="a session is 1 to 64 bytes"):
        record.begin(session, 9)  # type: ignore[arg-type]


# ---- the mark of a record ----


KEY, OTHER_KEY = bytes([1]) * 32, bytes([2]) * 32


def test_a_record_keeps_the_highest_number_of_each_registrar_and_purpose(tmp_path: Path) -> None:
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    mine = ClientRecord.open(place, create=True, mark=mark)
    mine.accept(KEY, "a study", 5, "plan-5", time=1)
    mine.accept(KEY, "a study", 5, "plan-5", time=2)  # again is no harm, and no write
    assert marks.read_mark(mark, "client-record") == 1
    for number, plan in ((4, "plan-4"), (4, "plan-5"), (5, "plan-4")):
        for ask in (mine.check_accept, partial(mine.accept, time=3)):
            with pytest.raises(InvalidInputError, match=f"plan {plan} has the number {number} of"):
                ask(KEY, "a study", number, plan)
    mine.check_accept(KEY, "a study", 6, "plan-4")
    mine.accept(KEY, "another study", 4, "plan-4", time=3)
    mine.accept(OTHER_KEY, "a study", 1, "plan-1", time=3)
    mine.accept(KEY, "a study", 2**32 - 1, "plan-5", time=4)
    assert marks.read_mark(mark, "client-record") == 4
    unknown = "the record does not know that it was accepted so last: accept it anew"
    for purpose, number, plan, why in (
        ("another study", 4, "plan-4", None),
        ("a study", 4, "plan-4", unknown),
        ("a study", 2**32 - 1, "plan-5", None),
        ("a study", 5, "plan-5", unknown),  # it was signed, and accepted, again since then
        ("a study", 1, "plan-1", unknown),
    ):
        assert mine.why_over(KEY, purpose, number, plan) == why


def test_what_a_registrar_ended_stays_ended_and_is_its_own(tmp_path: Path) -> None:
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    mine = ClientRecord.open(place, create=True, mark=mark)
    for key in (KEY, OTHER_KEY):
        mine.accept(key, "a study", 1, "plan-1", time=1)
    other = ClientRecord.open(place, mark=mark)  # as of another process
    other.end(KEY, ["plan-1", "plan-2"], time=2)
    other.end(KEY, ["plan-2"], time=3)
    other.end(KEY, [], time=3)
    assert marks.read_mark(mark, "client-record") == 3
    assert mine.why_over(KEY, "a study", 1, "plan-1") == "its registrar replaced or revoked it"
    assert mine.why_over(OTHER_KEY, "a study", 1, "plan-1") is None
    for plan in ("plan-1", "plan-2"):
        with pytest.raises(InvalidInputError, match=f"plan {plan} was replaced or revoked by its"):
            mine.accept(KEY, "a study", 9, plan, time=4)
    mine.accept(OTHER_KEY, "a study", 2, "plan-2", time=4)
    with pytest.raises(StoreError, match="append-only"), mine._transaction(write=True) as one:
        one.exec_driver_sql("DELETE FROM fedtally_ended_plans")


def test_a_record_is_behind_its_mark_where_a_copy_was_put_back(tmp_path: Path) -> None:
    place, mark = tmp_path / "record.db", tmp_path / "key" / "mark"
    mark.parent.mkdir()
    mine = ClientRecord.open(place, create=True, mark=mark)
    assert marks.read_mark(mark, "client-record") == 0
    copies = []
    for number in range(3):
        copies.append(place.read_bytes())
        assert mine.begin(bytes([number]), 10)
        assert not mine.begin(bytes([number]), 10)  # nothing new: the mark stays
        mine.take_part("phones", f"plan-{number}", 0, None, time=1)
        assert marks.read_mark(mark, "client-record") == 2 * number + 2
    newest = place.read_bytes()
    for copied in copies:
        place.write_bytes(copied)
        for act in (
            lambda: ClientRecord.open(place, mark=mark),
            lambda: mine.begin(b"new", 10),
            lambda: mine.take_part("phones", "plan-0", 0, None, time=1),
        ):
            with pytest.raises(
                UnreadableFileError, match="its mark .* counts 6: the record was delet"
            ):
                act()
    place.write_bytes(newest)
    assert ClientRecord.open(place, mark=mark).participations("plan-2") == [0]
    assert mine.begin(b"new", 10)


def test_a_copy_with_a_larger_cap_or_grant_is_refused(tmp_path: Path) -> None:
    """It has forgotten that its owner allows less now."""
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    mine = ClientRecord.open(place, create=True, mark=mark)
    mine.cap(20.0, 1e-6, time=0)
    mine.grant("phones", 20.0, 1e-6, time=0)
    assert marks.read_mark(mark, "client-record") == 2
    for lower in (
        lambda: mine.cap(0.001, 1e-6, time=1),
        lambda: mine.grant("phones", 0.001, 1e-6, time=1),
    ):
        copy = place.read_bytes()
        lower()
        newest = place.read_bytes()
        place.write_bytes(copy)
        for act in (
            lambda: ClientRecord.open(place, mark=mark),
            lambda: mine.take_part("phones", "plan-0", 0, SHARES, time=1),
        ):
            with pytest.raises(UnreadableFileError, match="or an old copy of it was put back"):
                act()
        place.write_bytes(newest)
    with pytest.raises(InvalidInputError, match="total delta of 1e-06 for good"):
        mine.grant("phones", 1.0, 1e-5, time=2)
    assert marks.read_mark(mark, "client-record") == 4  # what was refused is no write
    with pytest.raises(OverspentError):
        mine.take_part("phones", "plan-0", 0, SHARES, time=2)


def test_a_record_that_is_ahead_of_its_mark_goes_on(tmp_path: Path) -> None:
    """As after a crash between the two."""
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    mine = ClientRecord.open(place, create=True, mark=mark)
    before = mark.read_text()
    mine.begin(b"1", 10)
    mark.write_text(before)
    again = ClientRecord.open(place, mark=mark)
    again.begin(b"2", 10)
    assert marks.read_mark(mark, "client-record") == 2


def test_a_mark_never_falls_where_two_agents_share_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has committed and not marked yet; the second must not mark before it."""
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    ClientRecord.open(place, create=True, mark=mark)
    arrived, go_on = threading.Event(), threading.Event()
    writing = marks.write_mark

    def slow(*args: Any) -> None:
        if not arrived.is_set():
            arrived.set()
            go_on.wait()
        writing(*args)

    monkeypatch.setattr("fedtally.store.client_record.write_mark", slow)

    def begin(session: bytes) -> threading.Thread:
        record = ClientRecord.open(place, mark=mark)
        thread = threading.Thread(target=record.begin, args=(session, 10))
        thread.start()
        return thread

    first = begin(b"1")
    arrived.wait()
    second = begin(b"2")
    second.join(0.2)  # it waits for the first
    go_on.set()
    for thread in (first, second):
        thread.join()
    assert marks.read_mark(mark, "client-record") == 2


@each_case("text", ["another 3\n", "client-record\n", "client-record -1\n", "client-record x"])
def test_a_mark_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    ClientRecord.open(place, create=True)
    mark.write_text(text)
    with pytest.raises(UnreadableFileError, match="is not the mark of"):
        ClientRecord.open(place, mark=mark)


def test_of_two_copies_of_a_record_one_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one looks at the mark while the first one writes; it must not look before."""
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    mine = ClientRecord.open(place, create=True, mark=mark)
    shutil.copy(place, tmp_path / "copy.db")
    copy = ClientRecord.open(tmp_path / "copy.db", mark=mark)
    reading, writing = marks.read_mark, threading.Event()

    def read(path: Path, name: str) -> int | None:
        found = reading(path, name)
        writing.set()
        time.sleep(0.1)  # so that the other one reads the same, if it may
        return found

    monkeypatch.setattr("fedtally.store.client_record.read_mark", read)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(mine.take_part, "phones", "plan-0", 0, None, 1, "label")
        writing.wait()
        second = pool.submit(copy.take_part, "phones", "plan-0", 0, None, 1, "label")
        first.result()
        with pytest.raises(UnreadableFileError, match="an old copy of it was put back"):
            second.result()


def test_a_mark_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    """Writing it must not put a file in the place of the link."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "mark").symlink_to("disk/mark")
    record = ClientRecord.open(tmp_path / "record.db", create=True, mark=tmp_path / "mark")
    record.begin(b"session", 10)
    assert (tmp_path / "mark").is_symlink()
    assert marks.read_mark(tmp_path / "disk" / "mark", "client-record") == 1


def test_a_process_that_was_suspended_with_a_mark_keeps_nobody_waiting_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = ClientRecord.open(tmp_path / "record.db", create=True, mark=tmp_path / "mark")
    monkeypatch.setattr(marks, "WAIT_SECONDS", 0.02)
    refused = pytest.raises(StoreError, match="another process holds the mark")
    with marks.hold_mark(tmp_path / "mark"), refused:
        record.begin(b"session", 10)
    assert record.begin(b"session", 10)


def test_a_mark_that_cannot_be_written_is_an_error_of_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    mine = ClientRecord.open(place, create=True, mark=mark)
    mine.begin(b"0", 10)

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="cannot write the mark"):
        mine.begin(b"1", 10)
    monkeypatch.undo()
    # it was recorded: nothing may be begun on the word of a call that failed
    assert not ClientRecord.open(place).begin(b"1", 10)


def test_a_mark_of_which_a_full_disk_took_a_part_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as disk:
        disk.setattr(os, "write", lambda handle, line: len(line) - 1)
        with pytest.raises(StoreError, match="cannot write the mark"):
            marks.write_mark(tmp_path / "mark", "client-record", 1)


def test_a_mark_is_overwritten_in_one_sector_and_never_cut(tmp_path: Path) -> None:
    """A disk writes a sector whole: a loss of power leaves the old line or the new one."""
    mark, name = tmp_path / "mark", "f" * 64  # the longest name is a fingerprint
    sizes = set()
    for writes in (0, 9, 10, 2**63 - 1):
        marks.write_mark(mark, name, writes)
        assert marks.read_mark(mark, name) == writes
        sizes.add(mark.stat().st_size)
    assert len(sizes) == 1
    assert sizes.pop() <= 512


def test_a_mark_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """It was as long as its number."""
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    mine = ClientRecord.open(place, create=True, mark=mark)
    mine.begin(b"1", 10)
    mark.write_text("client-record 1\n")
    ClientRecord.open(place, mark=mark).begin(b"2", 10)
    assert marks.read_mark(mark, "client-record") == 2


def test_an_empty_mark_is_none(tmp_path: Path) -> None:
    """As after a crash, or on a full disk, while it was made; or somebody emptied it."""
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    mark.touch()
    ClientRecord.open(place, create=True, mark=mark).begin(b"1", 10)
    mark.write_text("")
    with pytest.raises(UnreadableFileError, match="has no mark at"):
        ClientRecord.open(place, mark=mark)


def test_what_would_be_refused_is_asked_without_a_trace(record: ClientRecord) -> None:
    record.check_part("phones", "plan", 0, None, "label")
    record.check_part("phones", "plan", 0, None, "label")
    assert record.parts() == []
    record.take_part("phones", "plan", 0, None, time=5, item="label")
    for plan, round, item in (("plan", 0, None), ("other", 1, "label")):
        with pytest.raises(AlreadySpentError):
            record.check_part("phones", plan, round, None, item)
    [part] = record.parts()
    assert (part.plan, part.round, part.population, part.event, part.time) == (
        "plan",
        0,
        "phones",
        None,
        5,
    )
    with pytest.raises(InvalidInputError, match="round"):
        record.check_part("phones", "plan", -1, None)


def test_sessions_count_until_their_end(record: ClientRecord) -> None:
    for number in range(4):
        record.begin(bytes([number]), 10 * number)
    part = ("phones", "plan", 0, None)
    assert [record.standing(time, *part).sessions for time in (0, 1, 30, 31)] == [4, 3, 1, 0]


def test_a_standing_says_of_a_round_what_take_part_would(record: ClientRecord) -> None:
    record.take_part("phones", "plan", 0, None, time=5, item="label")
    before = record.parts()
    for part in (
        ("phones", "plan", 1, None, None),
        ("phones", "plan", 0, None, None),
        ("phones", "other", 1, None, "label"),
        ("phones", "plan", 1, EVENT, None),
        ("phones", "plan", -1, None, None),
        ("phones", "plan", 1, None, ""),
    ):
        population, plan, round, event, item = part
        told = record.standing(0, *part)
        assert record.parts() == before
        if told.refusal is None:
            assert part[2:] == (1, None, None)
            continue
        with pytest.raises(InvalidInputError) as refused:
            record.take_part(population, plan, round, event, 6, item)
        assert str(refused.value) == told.refusal
    record = ClientRecord.open(record.name)
    assert record.standing(0, "phones", "plan", 1, None) == (0, None, None)


def test_a_standing_counts_the_cap_that_it_tells(record: ClientRecord) -> None:
    record.cap(0.001, 1e-6, time=0)
    begun, cap, refusal = record.standing(0, "phones", "plan", 0, EVENT)
    assert (begun, cap) == (0, record.capped())
    assert refusal is not None and "0.001" in refusal
    record.cap(50.0, 1e-6, time=1)
    assert record.standing(0, "phones", "plan", 0, EVENT) == (0, record.capped(), None)


def test_a_record_that_cannot_be_read_has_no_standing(record: ClientRecord) -> None:
    """That is no refusal of the round: an agent says INTERNAL, and the owner looks at the file."""
    Path(record.name).write_bytes(b"no database" * 1000)
    with pytest.raises(UnreadableFileError, match="is no database"):
        record.standing(0, "phones", "plan", 0, None)


def test_what_was_spent_is_stated_as_the_cap_states_it(record: ClientRecord) -> None:
    assert record.spent() is None
    record.cap(20.0, 1e-6, time=0)
    assert record.spent() is None
    record.take_part("phones", "plan-a", 0, EVENT, time=1)
    alone = record.spent()
    record.take_part("tablets", "plan-b", 0, EVENT, time=1)
    both = record.spent()
    assert alone is not None and both is not None and alone.epsilon < both.epsilon
    assert both.delta == 1e-6
