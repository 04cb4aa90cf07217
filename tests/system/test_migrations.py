"""Files of earlier schemas: they open, and what they hold goes on, or they are refused by name.

`tests/vectors/schemas.json` holds the tables and triggers of each kind of file, by schema.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign_world import N, World, plan_of

from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.secagg.messages import Kind
from fedtally.store import Campaigns, ClientRecord, Ledger, StoreError
from fedtally.store.writes import writes_of

VECTORS = Path(__file__).parents[1] / "vectors" / "schemas.json"
SCHEMAS: dict[str, dict[str, list[str]]] = json.loads(VECTORS.read_text())
KINDS: list[Any] = [Campaigns, ClientRecord, Ledger]
OLD = [(kind, int(old)) for kind in KINDS for old in SCHEMAS[kind._kind]]
pytestmark = pytest.mark.usefixtures("no_sync")


def written(path: Path) -> list[str]:
    """Return the statements that a file holds, without line ends."""
    with closing(sqlite3.connect(path)) as file:
        found = file.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY type, name")
        return [" ".join(sql.split()) for (sql,) in found]


def made(path: Path, kind: Any, version: int) -> Path:
    """Make an empty file of a kind and schema."""
    with closing(sqlite3.connect(path)) as file:
        for statement in SCHEMAS[kind._kind][str(version)]:
            file.execute(statement)
        file.execute("INSERT INTO fedtally_schema VALUES (?, ?)", (kind._kind, version))
        file.commit()
    return path


def columns(path: Path) -> dict[str, set[Any]]:
    """Return the columns of each table: name, type, whether null is allowed, place in the key."""
    with closing(sqlite3.connect(path)) as file:
        tables = [
            name for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type='table'")
        ]
        return {
            name: {(*row[1:4], row[5]) for row in file.execute(f"PRAGMA table_info({name})")}
            for name in tables
        }


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_a_table_raises_the_schema(tmp_path, kind):
    """If this fails, raise `_schema` of the kind, write `_migrate`, and add the new statements."""
    kind.open(tmp_path / "new.db", create=True)
    assert written(tmp_path / "new.db") == SCHEMAS[kind._kind][str(kind._schema)]


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(("kind", "old"), OLD)
def test_a_file_of_an_earlier_schema_becomes_one_of_this(tmp_path, kind, old, create):
    place = made(tmp_path / "old.db", kind, old)
    kind.open(tmp_path / "new.db", create=True)
    for _ in range(2):  # the second time there is nothing left to do
        kind.open(place, create=create)
        assert columns(place) == columns(tmp_path / "new.db")
    triggers = [sql for sql in written(place) if sql.startswith("CREATE TRIGGER")]
    assert triggers == [sql for sql in written(tmp_path / "new.db") if "CREATE TRIGGER" in sql]
    with closing(sqlite3.connect(place)) as file:
        assert file.execute("SELECT * FROM fedtally_schema").fetchall() == [
            (kind._kind, kind._schema)
        ]


def older(path: Path) -> None:
    """Make a file of campaigns one of schema 1, as it was first, with the same rows."""
    path.rename(path.with_name("later.db"))
    made(path, Campaigns, 1)
    with closing(sqlite3.connect(path)) as file:
        file.execute("ATTACH ? AS later", (str(path.with_name("later.db")),))
        for name, known in columns(path).items():
            if name != "fedtally_schema":
                names = ", ".join(f'"{column[0]}"' for column in known)
                file.execute(f"INSERT INTO {name} ({names}) SELECT {names} FROM later.{name}")
        file.execute("UPDATE fedtally_runs SET writes = ?", (writes_of(file),))
        file.commit()


@pytest.mark.parametrize("kind", [Kind.ROSTER, Kind.SURVIVORS])
def test_a_session_of_an_earlier_schema_lands(tmp_path, kind):
    world = World(tmp_path, plan_of(cohorts=2))
    world.absent = lambda number, said: said is kind
    world.run(10)
    plan, place = world.plan, tmp_path / "campaign.db"
    [before] = world.campaigns().status(plan).open
    older(place)
    [after] = world.campaigns().status(plan).open
    assert (after.session, after.num_clients, after.phase) == (before.session, N, "unknown")
    assert before.phase != "unknown"
    world.absent = lambda number, said: False
    world.driver = world.start()
    world.run()
    [session] = world.contributed
    vectors = list(world.contributed[session].values())
    clients, total = world.landed()[0]
    assert clients == N == len(vectors)
    assert np.array_equal(total, np.sum(vectors, axis=0)[: total.size])
    [ended] = world.campaigns().status(plan).ended
    assert (ended.session, ended.num_clients, ended.why) == (before.session, N, None)


def test_a_process_of_an_earlier_version_that_still_runs_writes_no_more(tmp_path):
    """Nobody would count what it writes, and the file would be refused as an old copy."""
    world = World(tmp_path, plan_of())
    older(tmp_path / "campaign.db")
    with closing(sqlite3.connect(tmp_path / "campaign.db")) as file:
        [known] = file.execute("SELECT epoch, writes FROM fedtally_runs")
        world.campaigns()
        # what it writes, and then asks, first in each of its transactions
        count = "UPDATE fedtally_runs SET writes = writes + 1 WHERE epoch = ? AND writes = ?"
        assert file.execute(count, known).rowcount == 0
        assert not file.execute("SELECT 1 FROM fedtally_runs WHERE epoch = ?", known[:1]).fetchall()
        file.rollback()
    world.driver = world.start()
    world.run().check()


def test_a_copy_of_an_earlier_schema_without_the_last_write_is_refused(tmp_path):
    """Its session could tell clients a second set of survivors."""
    world = World(tmp_path, plan_of())
    copy = (tmp_path / "campaign.db").read_bytes()
    store = world.claim()
    (tmp_path / "campaign.db").write_bytes(copy)
    older(tmp_path / "campaign.db")
    assert world.campaigns().is_put_back(world.plan, mark=tmp_path / "mark")
    with pytest.raises(InvalidInputError, match="a copy was put back"):
        world.claim()
    with pytest.raises(OvertakenError):
        store.check_claim(world.plan)


def test_giving_up_overtakes_who_claimed_after_a_migration(tmp_path):
    """A migration raises the epoch, and no mark counts it."""
    world = World(tmp_path, plan_of())
    older(tmp_path / "campaign.db")
    world.campaigns()
    copy = (tmp_path / "campaign.db").read_bytes()
    store = world.claim()
    (tmp_path / "campaign.db").write_bytes(copy)
    world.campaigns().give_up(world.plan, mark=tmp_path / "mark")
    with pytest.raises(OvertakenError, match="another process runs"):
        store.check_claim(world.plan)


@pytest.mark.parametrize("version", [1, 2])
def test_a_record_of_an_earlier_schema_is_refused_by_name(tmp_path, version):
    place, mark = tmp_path / "record.db", tmp_path / "mark"
    ClientRecord.open(place, create=True, mark=mark).begin(b"a", 10)
    with closing(sqlite3.connect(place)) as file:
        file.execute("DROP TRIGGER fedtally_schema_update")
        file.execute("UPDATE fedtally_schema SET version = ?", (version,))
        file.commit()
    before = place.read_bytes()
    says = rf"record.db is a record of an earlier fedtally \(schema {version}; .*agent init"
    for create in (False, True):
        with pytest.raises(UnreadableFileError, match=says):
            ClientRecord.open(place, create=create, mark=mark)
    assert place.read_bytes() == before


def test_a_migration_is_whole_or_did_not_happen(tmp_path, monkeypatch):
    place = made(tmp_path / "old.db", Campaigns, 1)
    before = written(place)

    def fails(*_: Any) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("fedtally.store.database._raise_version", fails)
        with pytest.raises(StoreError):
            Campaigns.open(place)
    assert written(place) == before
    Campaigns.open(place)
    assert written(place) != before


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_later_schema_says_the_way_out(tmp_path, kind):
    place = tmp_path / "new.db"
    kind.open(place, create=True)
    known = kind._schema
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "_schema", known - 1)
        with pytest.raises(UnreadableFileError, match=r"a newer fedtally .*install that version"):
            kind.open(place)
