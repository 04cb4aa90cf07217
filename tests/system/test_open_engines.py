"""Every engine carries strings of which nobody has the list: they are only a longer vector.

The sums are those of the local engine, bit for bit, and so are the names that are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agents import AgentWorld, Guarded, policy, session_of
from campaign_world import STRINGS as DOMAIN
from campaign_world import TEXTS, N, World, open_plan
from campaign_world import held_text as hold

import fedtally
from fedtally.agent.demands import KINDS, OPEN
from fedtally.agent.items import Items, of_file, of_python, of_sqlite
from fedtally.domain import OpenStrings
from fedtally.privacy.budget import Cap
from fedtally.secagg.messages import AbortCode, Kind
from fedtally.sketch import Spelling

COUNTS = {"tea": 60, "coffee": 40, "milk": 25, "water": 15, "caf\u00e9": 10}
WORDS = [item for item, count in COUNTS.items() for _ in range(count)]


def table(result: fedtally.Result) -> list[tuple[Any, ...]]:
    return [dataclasses.astuple(each) for each in result.top(20)]


# ---- secure sums in this process ----


@pytest.mark.parametrize("max_items", [1, 2])
@pytest.mark.parametrize(
    "protocol",
    [
        {"secure_sum": "secagg"},
        {"secure_sum": "secagg", "adversary": "active"},
        {"secure_sum": "secagg", "max_cohort": 40},
        {"secure_sum": "two-server"},
    ],
    ids=lambda protocol: "-".join(map(str, protocol.values())),
)
def test_a_secure_sum_is_the_plain_one(protocol: dict[str, Any], max_items: int) -> None:
    asked: dict[str, Any] = {"domain": DOMAIN, "seed": 1, "allow_rare_names": True}
    if max_items > 1:
        asked["clients"] = np.arange(len(WORDS)) // 3  # of three items two are drawn
    size = {"max_bytes": 600, "num_rounds": 2, "max_items": max_items}
    plain = fedtally.estimate(WORDS, **asked, **size)
    secure = fedtally.estimate(WORDS, **asked, plan=plain.plan, **protocol)
    assert secure.secure_sum["equals_plain_sum"]
    assert len(plain.sketches) == len(secure.sketches) == 2
    for one, other in zip(plain.sketches, secure.sketches, strict=True):
        assert (one.vector == other.vector).all() and one.num_clients == other.num_clients
    assert plain.names == secure.names and len(plain.names) > 2
    assert table(plain) == table(secure)


def test_cohorts_and_dropouts() -> None:
    """The sums are those of who stayed; the comparison with the plain sum is made in the run."""
    result = fedtally.estimate(
        WORDS,
        domain=DOMAIN,
        seed=1,
        max_bytes=3000,
        secure_sum="secagg",
        max_cohort=50,
        dropout=0.1,
        allow_rare_names=True,
    )
    traffic = result.secure_sum
    assert traffic["equals_plain_sum"] and traffic["cohorts"] == 3 and traffic["dropouts"] == 15
    assert traffic["survivors"] == result.num_clients < len(WORDS)
    assert {"tea", "coffee"} <= set(result.names.values())


# ---- campaigns of real clients ----


def check_against_the_local_engine(world: World) -> None:
    """Compare what landed with the local engine, which is told who took part in which round."""
    rounds = {number: round for number, spent in world.spent.items() for round in spent}
    here = fedtally.estimate(
        [text for number in rounds for text in hold(number)],
        rounds=list(rounds.values()),
        plan=world.plan,
        allow_rare_names=True,
    )
    landed = world.landed()
    assert len(landed) == len(here.sketches) == world.plan.num_rounds
    for sketch in here.sketches:
        clients, total = landed[sketch.round]
        assert sketch.num_clients == clients
        assert (sketch.vector == total).all()


@pytest.mark.parametrize(
    ("adversary", "rounds"), [("semi-honest", 2), ("active", 1)], ids=["two rounds", "active"]
)
def test_people_of_a_driver(tmp_path: Path, adversary: str, rounds: int) -> None:
    plan = open_plan(adversary, rounds=rounds)
    world = World(tmp_path, plan, people=rounds * N, domain=DOMAIN, hold=hold)
    world.run().check()
    check_against_the_local_engine(world)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("adversary", "trust"), [("active", "distributed"), ("semi-honest", "central")]
)
def test_agents_with_privacy(tmp_path: Path, adversary: str, trust: str) -> None:
    world = AgentWorld(tmp_path, open_plan(adversary, trust), hold=hold)
    world.run()
    assert world.driver.is_complete, world.persons[0].guarded.notes
    world.check()


def test_agents_without_privacy_need_large_sums(tmp_path: Path) -> None:
    """Eight clients in hundreds of counters show what each holds: their agents refuse."""
    plan = open_plan()
    guarded = Guarded(tmp_path / "few", plan, read=lambda: ["tea"])
    assert guarded.said(session_of(plan).invite) is AbortCode.POLICY
    assert "must have more clients in a sum than counters" in guarded.notes
    small = open_plan(
        rows=1, width=1, domain=OpenStrings(1, 12).describe(), spelling=Spelling(1, 1, 1)
    )
    assert small.vector_length < N
    taken = Guarded(tmp_path / "many", small, read=lambda: ["t"])
    assert taken.said(session_of(small).invite) is Kind.ADVERTISE, taken.notes


def test_an_owner_must_allow_any_text(tmp_path: Path) -> None:
    plan = open_plan(trust="central")
    asked: dict[str, Any] = {"cap": Cap(100.0, 1e-6), "central": True}
    for number, (given, said) in enumerate(
        [({}, AbortCode.POLICY), ({"domains": (*KINDS, OPEN)}, Kind.ADVERTISE)]
    ):
        demands = policy("semi-honest", **asked, **given)
        one = Guarded(tmp_path / str(number), plan, read=lambda: ["tea"], policy=demands)
        assert one.said(session_of(plan).invite) is said, one.notes


# ---- what agents read ----


def python_items() -> list[str]:
    return ["caf\u00e9"]


def csv_reader(folder: Path) -> Callable[[], Any]:
    (folder / "items.csv").write_text("item\ncaf\u00e9\n", encoding="utf-8")
    return of_file(folder / "items.csv", "item", None)


def sqlite_reader(folder: Path) -> Callable[[], Any]:
    import sqlite3

    with sqlite3.connect(folder / "items.db") as connection:
        connection.execute("CREATE TABLE held (item TEXT)")
        connection.execute("INSERT INTO held VALUES ('caf\u00e9')")
    connection.close()
    return of_sqlite(folder / "items.db", "SELECT item FROM held")


@pytest.mark.parametrize(
    "reader",
    [csv_reader, sqlite_reader, lambda folder: of_python(f"{__name__}:python_items")],
    ids=["file", "sqlite", "python"],
)
def test_agents_read_strings(tmp_path: Path, reader: Callable[[Path], Any]) -> None:
    plan = open_plan()
    client = Items(reader(tmp_path)).client(plan)
    expected = fedtally.FrequencyClient(plan, DOMAIN, ["caf\u00e9"])
    assert (client.contribution(0) == expected.contribution(0)).all()


def test_a_silo_reads_strings(tmp_path: Path) -> None:
    """A silo's vector is the sum of its people's, and the number of them."""
    plan = dataclasses.replace(open_plan(), secure_sum=None)
    plan = dataclasses.replace(plan, people=50, num_clients=8, max_round_clients=8)
    lines = ["person,word", *(f"p{number},{text}" for number, text in enumerate(TEXTS))]
    (tmp_path / "held.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    items = Items(of_file(tmp_path / "held.csv", "word", None, "person"), of_people=True)
    vector = items.client(plan).contribution(0)
    alone = dataclasses.replace(plan, people=1)
    people = [fedtally.FrequencyClient(alone, DOMAIN, [text]).contribution(0) for text in TEXTS]
    assert (vector[:-1] == np.sum(people, axis=0)).all() and vector[-1] == len(TEXTS)
