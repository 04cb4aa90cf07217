"""The number of writes to an SQLite file, to compare with the file's mark (`store.marks`).

The file holds the number in two tables, and so on two pages. Even numbers are written to one table,
odd numbers to the other. The file's number of writes is one more than the smaller of the two
numbers.

A single number would not be enough. If a process dies during a write, SQLite's journal remains,
with the old content of the pages that the write changed. When the file is opened next, SQLite
copies these pages into it, even if an operator has meanwhile replaced the file by an old copy. A
single number would then come from the journal, while the rest of the file is older. With two
tables, the journal of a write that `count_write` counts holds only one of the tables. The other
table is as old as the copy. So the smaller of the two numbers is as old as the copy, too.

This works only if the mark has the file's number before the next write begins. Then every copy that
lacks the last write is behind the mark, whatever journal is copied into it.
"""

from __future__ import annotations

import sqlalchemy as sa

from fedtally.store.database import CHANGES, SqliteConnection

_TABLES = ("fedtally_writes_even", "fedtally_writes_odd")
# Without rows, before the first write, the numbers are 0 and -1. The SQL text has no values.
_FIND = (
    f"SELECT coalesce((SELECT writes FROM {_TABLES[0]}), 0),"  # noqa: S608
    f" coalesce((SELECT writes FROM {_TABLES[1]}), -1)"
)
_SET = tuple(f"INSERT OR REPLACE INTO {table} VALUES (1, ?)" for table in _TABLES)  # noqa: S608


def write_tables(metadata: sa.MetaData) -> None:
    """Add the two tables of a file's number of writes to the metadata; each has at most one row."""
    for table in _TABLES:
        sa.Table(
            table,
            metadata,
            sa.Column("one", sa.Integer, primary_key=True),
            sa.Column("writes", sa.BigInteger, nullable=False),
            info=CHANGES,
        )


def writes_of(connection: SqliteConnection) -> int:
    """Return the file's number of writes; 0 before the first write."""
    return 1 + int(min(connection.execute(_FIND).fetchone()))


def is_of_one_moment(connection: SqliteConnection) -> bool:
    """Return whether the two tables differ by 1, as after every write.

    If they do not, the journal of a later write was copied into an old copy. But if the copy lacks
    only the last one or two writes, the tables may differ by 1 nevertheless.
    """
    even, odd = connection.execute(_FIND).fetchone()
    return bool(abs(even - odd) == 1)


def count_write(connection: SqliteConnection) -> int:
    """Add 1 to the file's number of writes, in the open transaction; return the new number."""
    number = writes_of(connection) + 1
    connection.execute(_SET[number % 2], (number,))
    return number


def set_writes(connection: SqliteConnection, number: int) -> None:
    """Set the file's number of writes, when an old copy that was put back becomes usable.

    It changes both tables, so that SQLite's journal holds the old pages of both.
    """
    for one in (number - 1, number):
        connection.execute(_SET[one % 2], (one,))
