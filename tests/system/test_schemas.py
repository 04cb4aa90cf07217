"""The tables of each kind of file have a number, and files of another number are refused by name.

`tests/vectors/schemas.json` holds the tables and triggers of each kind of file, by schema.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedtally.errors import UnreadableFileError
from fedtally.store import Batches, Campaigns, ClientRecord, DapFile, Ledger

VECTORS = Path(__file__).parents[1] / "vectors" / "schemas.json"
SCHEMAS: dict[str, dict[str, list[str]]] = json.loads(VECTORS.read_text())
KINDS: list[Any] = [Batches, Campaigns, ClientRecord, DapFile, Ledger]
EARLIER = [(kind, version) for kind in KINDS for version in range(1, kind._schema)]
WAYS = {"campaigns": "fedtally campaign init", "client record": "fedtally agent init"}
pytestmark = pytest.mark.usefixtures("no_sync")


def written(path: Path) -> list[str]:
    """Return the statements that a file holds, without line ends."""
    with closing(sqlite3.connect(path)) as file:
        found = file.execute("SELECT sql FROM sqlite_master WHERE sql NOT NULL ORDER BY type, name")
        return [" ".join(sql.split()) for (sql,) in found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_of_a_table_raises_the_schema(tmp_path, kind):
    """If this fails, raise `_schema` of the kind, and put the new statements in place of these."""
    kind.open(tmp_path / "new.db", create=True)
    assert SCHEMAS[kind._kind] == {str(kind._schema): written(tmp_path / "new.db")}


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize(("kind", "version"), EARLIER)
def test_a_file_of_an_earlier_schema_is_refused_by_name(tmp_path, kind, version, create):
    place = tmp_path / "old.db"
    kind.open(place, create=True)
    with closing(sqlite3.connect(place)) as file:
        file.execute("DROP TRIGGER fedtally_schema_update")
        file.execute("UPDATE fedtally_schema SET version = ?", (version,))
        file.commit()
    before = place.read_bytes()
    says = rf"old.db was written by an earlier fedtally \(schema {version}; .*{WAYS[kind._kind]}"
    with pytest.raises(UnreadableFileError, match=says):
        kind.open(place, create=create)
    assert place.read_bytes() == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_later_schema_says_the_way_out(tmp_path, kind):
    place = tmp_path / "new.db"
    kind.open(place, create=True)
    known = kind._schema
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "_schema", known - 1)
        with pytest.raises(UnreadableFileError, match=r"a newer fedtally .*install that version"):
            kind.open(place)
