"""The least that durable writes cost: bare SQLite and marks, with no code of the store around."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from contextlib import ExitStack, closing
from pathlib import Path

from fedtally.store.marks import write_mark

# As `fedtally.store.database` sets them: what makes a commit survive a loss of power, and erases.
SETTINGS = ("synchronous = EXTRA", "secure_delete = ON", "journal_mode = TRUNCATE")


def floor(writes: int, size: int, files: int = 1) -> float:
    """Return the CPU seconds of so many transactions in each file, each followed by a mark.

    The files take turns, as those of many clients do: none of them is the one written last.

    Args:
        writes: the number of transactions in each file.
        size: the bytes that each of them replaces.
        files: the number of databases, each with a mark of its own.
    """
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        opened = [
            stack.enter_context(closing(_new(folder / f"{number}.db", size)))
            for number in range(files)
        ]
        # Other bytes in each transaction: SQLite writes nothing where a row stays as it is.
        data = b"\1" * size, b"\2" * size
        start = time.process_time()
        for number in range(writes):
            for name, file in enumerate(opened):
                file.execute("BEGIN IMMEDIATE")
                file.execute("UPDATE one SET data = ? WHERE name = 'it'", (data[number % 2],))
                file.execute("COMMIT")
                write_mark(folder / f"{name}.mark", "it", number)
        return time.process_time() - start


def _new(path: Path, size: int) -> sqlite3.Connection:
    file = sqlite3.connect(path, isolation_level=None)
    for setting in SETTINGS:
        file.execute(f"PRAGMA {setting}")
    file.execute("CREATE TABLE one (name TEXT PRIMARY KEY, data BLOB)")
    file.execute("INSERT INTO one VALUES ('it', ?)", (bytes(size),))
    return file
