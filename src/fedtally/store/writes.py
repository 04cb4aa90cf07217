"""The number of writes of a file, which its mark is compared with.

A file keeps the number in two tables, so on two pages. A write of an even number changes the one
table, and a write of an odd number the other. The number of the file is one more than the smaller
of the two.

One number alone would not do. A process that dies in a write leaves SQLite's journal, with the
pages that it was changing as they were before. SQLite plays the journal into the file of that name,
whatever file that is. If an old copy was put back meanwhile, one number would come out of the
journal, and the rest of the file would be old. Of the two tables the journal of a write has only
one. The other is as old as the copy, and so is the number.

This needs that a mark has the number of the file before the next write begins. Then every copy
without the last write stays behind the mark, whatever journal is played into it.
"""

from __future__ import annotations

import sqlalchemy as sa

from fedtally.store.database import CHANGES, SqliteConnection

_TABLES = ("fedtally_writes_even", "fedtally_writes_odd")
# A file without writes has no rows, and counts as 0 and -1. The texts hold no values.
_FIND = (
    f"SELECT coalesce((SELECT writes FROM {_TABLES[0]}), 0),"  # noqa: S608
    f" coalesce((SELECT writes FROM {_TABLES[1]}), -1)"
)
_SET = tuple(f"INSERT OR REPLACE INTO {table} VALUES (1, ?)" for table in _TABLES)  # noqa: S608


def write_tables(metadata: sa.MetaData) -> None:
    """Add the two tables, of at most one row each, to those of a kind of database."""
    for table in _TABLES:
        sa.Table(
            table,
            metadata,
            sa.Column("one", sa.Integer, primary_key=True),
            sa.Column("writes", sa.BigInteger, nullable=False),
            info=CHANGES,
        )


def writes_of(connection: SqliteConnection) -> int:
    """Return the number of writes that all of the file has seen."""
    return 1 + int(min(connection.execute(_FIND).fetchone()))


def is_of_one_moment(connection: SqliteConnection) -> bool:
    """Tell whether the tables follow each other; False: a journal was played into an old copy.

    A journal that was played into a copy without the last one or two writes does not show.
    """
    even, odd = connection.execute(_FIND).fetchone()
    return bool(abs(even - odd) == 1)


def count_write(connection: SqliteConnection) -> int:
    """Count the write of this transaction; return its number."""
    number = writes_of(connection) + 1
    connection.execute(_SET[number % 2], (number,))
    return number


def set_writes(connection: SqliteConnection, number: int) -> None:
    """Let a file have this number of writes, after a copy was put back.

    The journal of such a write has both tables, as they were before it.
    """
    for one in (number - 1, number):
        connection.execute(_SET[one % 2], (one,))
