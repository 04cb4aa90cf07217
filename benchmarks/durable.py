"""The least that durable writes cost: bare SQLite and a mark, with no code of the store around."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path

from fedtally.store.marks import write_mark

# As `fedtally.store.database` sets them: what makes a commit survive a loss of power, and erases.
SETTINGS = ("synchronous = EXTRA", "secure_delete = ON", "journal_mode = DELETE")


def floor(writes: int, size: int) -> float:
    """Return the CPU seconds of so many transactions, each followed by a mark.

    Args:
        writes: the number of transactions.
        size: the bytes that each of them replaces.
    """
    with (
        tempfile.TemporaryDirectory() as place,
        closing(sqlite3.connect(Path(place) / "bare.db", isolation_level=None)) as file,
    ):
        for setting in SETTINGS:
            file.execute(f"PRAGMA {setting}")
        file.execute("CREATE TABLE one (name TEXT PRIMARY KEY, data BLOB)")
        file.execute("INSERT INTO one VALUES ('it', ?)", (bytes(size),))
        start = time.process_time()
        for number in range(writes):
            file.execute("BEGIN IMMEDIATE")
            file.execute("UPDATE one SET data = ? WHERE name = 'it'", (bytes(size),))
            file.execute("COMMIT")
            write_mark(Path(place) / "mark", "it", number)
        return time.process_time() - start
