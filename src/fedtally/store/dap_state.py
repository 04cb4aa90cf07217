"""The state of one server of a DAP task in an SQLite file: implements `dap.state.Store`.

One process at a time may write the file. An old copy of the file does not know which reports were
added up since, and which time intervals were collected. The file's mark (`store/claims.py`) shows
that a copy is old, and the copy is refused. The ids of added reports, the collected intervals and
the terms of the task are in an append-only table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Self

import sqlalchemy as sa

from fedtally.base.links import real_path
from fedtally.dap.draft18 import Role
from fedtally.dap.state import Table
from fedtally.dap.task import Task
from fedtally.errors import InvalidInputError
from fedtally.store.claims import Claim, ClaimedDatabase, run_table
from fedtally.store.database import CHANGES, SqliteConnection, file_url, opened, prepared
from fedtally.store.writes import write_tables

FOR_EVER = (Table.SEEN, Table.COLLECTED, Table.TERMS)
_metadata = sa.MetaData()
_runs = run_table(_metadata)


def _table(name: str, info: dict[str, bool]) -> sa.Table:
    return sa.Table(
        name,
        _metadata,
        sa.Column("kind", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.LargeBinary, primary_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
        info=info,
        sqlite_with_rowid=False,
    )


_kept, _changing = _table("fedtally_dap_kept", {}), _table("fedtally_dap_rows", CHANGES)
write_tables(_metadata)


class _Statements:
    """The SQL statements for one of the file's two tables: append-only rows, or changing rows.

    Each of the file's tables stores several tables of `dap.state.Table`. The column `kind` of a row
    says which table of `dap.state.Table` the row is in.
    """

    def __init__(self, table: sa.Table) -> None:
        name, end = table.c.name, sa.bindparam("end", required=True, type_=sa.LargeBinary)
        of_kind = table.c.kind == sa.bindparam("of")
        one = of_kind & (name == sa.bindparam("key"))
        insert = sa.insert(table)
        # a trigger of the append-only table refuses a second row with the same name
        self.put = prepared(insert.prefix_with("OR REPLACE") if table.info == CHANGES else insert)
        self.get = prepared(sa.select(table.c.value).where(one))
        self.drop = prepared(sa.delete(table).where(one))
        rows = of_kind & (name >= sa.bindparam("first")) & (end.is_(None) | (name < end))
        ordered = prepared(sa.select(name, table.c.value).where(rows).order_by(name))
        self.scan = f"{ordered} LIMIT :most"


_STATEMENTS = {False: _Statements(_changing), True: _Statements(_kept)}


class DapFile(ClaimedDatabase):
    """The SQLite file of one server of a DAP task; `open` makes one."""

    _kind, _held = "DAP task", "task"
    _anew = "finish its task with the fedtally that began it, or begin a new task"
    _metadata = _metadata
    _runs = _runs
    _put_back = "what it holds is lost: begin a new task, and put no copy back"
    _lost_mark = f"nobody knows whether this is an old copy, and {_put_back}"

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Self:
        """Open the SQLite file of a server of a DAP task.

        Args:
            path: the path of the SQLite file.
            create: whether to make the file, or the tables in it, if they are missing.

        Raises:
            UnreadableFileError: the file is missing, is of another kind, or was made by another
                version of fedtally.
            StoreError: the database cannot be used, for instance because it is locked.
        """
        return opened(cls, file_url(os.fspath(path)), create)

    def claim(self, task: Task, role: Role, *, mark: str | os.PathLike[str]) -> DapStore:
        """Return the store of a server, with which only this process may write.

        A process that claimed the file before can write nothing any more.

        Args:
            task: the DAP task.
            role: the server, leader or helper; the first claim fixes it for this file.
            mark: the path of the mark, a small file that shows whether this file is an old copy
                (`store.marks`). It must not be in this file's folder or backups.

        Raises:
            InvalidInputError: this file belongs to the other server or to another task; it has
                fewer writes than its mark, since an old copy was put back; or it has writes but no
                mark.
        """
        name, owner = task.id.hex(), role.name.lower()
        with self._transaction(write=False) as connection:
            row = self._run(connection, name)
        if row is not None and row.owner != owner:
            raise InvalidInputError(
                f"{self.name} is the file of the {row.owner}: name the one of the {owner}"
            )
        return DapStore(self, self._claim(name, real_path(mark), owner))


class DapStore:
    """The state of one server of a DAP task, for the process that claimed its file.

    It implements `dap.state.Store`. During a transaction, other threads wait. Once another process
    has claimed the file, each method that writes raises `OvertakenError` and changes nothing.
    """

    def __init__(self, file: DapFile, claim: Claim) -> None:
        self._file, self._claim = file, claim
        self._lock = RLock()
        self._open: SqliteConnection | None = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction for the `with` block; it is rolled back if the block raises.

        A method that writes outside of such a block has a transaction of its own.

        Raises:
            InvalidInputError: a transaction is open in this thread.
        """
        with self._lock:
            if self._open is not None:
                raise InvalidInputError("a transaction is open already: end it first")
            with self._claim.write() as self._open:
                try:
                    yield
                finally:
                    self._open = None

    def get(self, table: Table, key: bytes) -> bytes | None:
        """Return the value of a key in a table; None if the table lacks the key."""
        with self._reading() as connection:
            found = connection.execute(_of(table).get, {"of": table, "key": key}).fetchone()
        return None if found is None else bytes(found[0])

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Store a value under a key of a table.

        It replaces an old value, except in a table of `FOR_EVER`.

        Raises:
            StoreError: the table is one of `FOR_EVER` and already has this key.
            OvertakenError: another process claimed the file.
        """
        with self._writing() as connection:
            connection.execute(_of(table).put, {"kind": table, "name": key, "value": value})

    def drop(self, table: Table, key: bytes) -> None:
        """Delete a key of a table and its value, if the table has the key.

        Raises:
            StoreError: the table is one of `FOR_EVER` and has this key.
            OvertakenError: another process claimed the file.
        """
        with self._writing() as connection:
            connection.execute(_of(table).drop, {"of": table, "key": key})

    def scan(
        self, table: Table, first: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return pairs (key, value) of a table, in the order of keys, from `first` to before `end`.

        Args:
            table: the table.
            first: the smallest key to return.
            end: return only keys below this key; None: return all further keys.
            limit: the largest number of pairs; None: no limit.
        """
        most = -1 if limit is None else limit  # to SQLite, -1 means no limit
        values = {"of": table, "first": first, "end": end, "most": most}
        with self._reading() as connection:
            return list(connection.execute(_of(table).scan, values))

    @contextmanager
    def _reading(self) -> Iterator[SqliteConnection]:
        with self._lock:
            mine = self._open
            with nullcontext(mine) if mine else self._file._sqlite(write=False) as connection:
                yield connection

    @contextmanager
    def _writing(self) -> Iterator[SqliteConnection]:
        with self._lock:
            mine = self._open
            place: AbstractContextManager[SqliteConnection] = (
                nullcontext(mine) if mine else self._claim.write()
            )
            with place as connection:
                yield connection


def _of(table: Table) -> _Statements:
    return _STATEMENTS[table in FOR_EVER]
