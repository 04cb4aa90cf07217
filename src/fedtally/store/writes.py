"""The number of writes of an SQLite file, which is compared with the file's mark (`store.marks`).

A file keeps the number in two tables, and so on two pages. A write with an even number changes one
table, a write with an odd number the other. The file's number of writes is one more than the
smaller number of the two.

One number alone would not be enough. If a process dies during a write, SQLite's journal remains,
with the old content of the pages that the write changed. SQLite later copies these pages into
whatever file has that name. If an operator put an old copy back meanwhile, a single number would
come from the journal, while the rest of the file is old. With two tables, the journal of a write
holds only one of them. The other table is as old as the copy, and so is the smaller number.

This holds only if the mark has the file's number before the next write begins. Then every copy that
lacks the last write is behind the mark, whatever journal is copied into it.
"""

from __future__ import annotations

import sqlalchemy as sa

from fedtally.store.database import CHANGES, SqliteConnection

_TABLES = ("fedtally_writes_even", "fedtally_writes_odd")
# A file without writes has no rows; its numbers are then 0 and -1. The SQL contains no values.
_FIND = (
    f"SELECT coalesce((SELECT writes FROM {_TABLES[0]}), 0),"  # noqa: S608
    f" coalesce((SELECT writes FROM {_TABLES[1]}), -1)"
)
_SET = tuple(f"INSERT OR REPLACE INTO {table} VALUES (1, ?)" for table in _TABLES)  # noqa: S608


def write_tables(metadata: sa.MetaData) -> None:
    """Add the two tables of the number of writes, of at most one row each, to a metadata."""
    for table in _TABLES:
        sa.Table(
            table,
            metadata,
            sa.Column("one", sa.Integer, primary_key=True),
            sa.Column("writes", sa.BigInteger, nullable=False),
            info=CHANGES,
        )


def writes_of(connection: SqliteConnection) -> int:
    """Return the file's number of writes: one more than the smaller number of the two tables."""
    return 1 + int(min(connection.execute(_FIND).fetchone()))


def is_of_one_moment(connection: SqliteConnection) -> bool:
    """Return whether the numbers of the two tables differ by 1, as they do after every write.

    False: the journal of a later write was copied into an old copy. This does not detect a copy
    that lacks only the last one or two writes.
    """
    even, odd = connection.execute(_FIND).fetchone()
    return bool(abs(even - odd) == 1)


def count_write(connection: SqliteConnection) -> int:
    """Raise the file's number of writes by one, in the open transaction, and return it."""
    number = writes_of(connection) + 1
    connection.execute(_SET[number % 2], (number,))
    return number


def set_writes(connection: SqliteConnection, number: int) -> None:
    """Set the file's number of writes, after a copy was put back.

    This changes both tables, so that SQLite's journal then holds the old pages of both.
    """
    for one in (number - 1, number):
        connection.execute(_SET[one % 2], (one,))
