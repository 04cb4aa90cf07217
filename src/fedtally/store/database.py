"""Databases of one kind and version: connections, transactions, triggers, and the grants.

A ledger, a client's record and a server's campaigns build on `Database`. Everything that differs
between SQLite and PostgreSQL is here, so that they know tables and rows alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event as hooks
from sqlalchemy.dialects import sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex, CreateTable
from sqlalchemy.sql.compiler import SQLCompiler

from fedtally.base import validate
from fedtally.errors import FedtallyError, InvalidInputError, MissingExtraError, UnreadableFileError
from fedtally.privacy.budget import Grant
from fedtally.privacy.events import Event

# The longest name of a session that a table keeps, in hexadecimal: twice as long as those of
# `secagg`, to leave room for the names of other protocols.
MOST_NAME_BYTES = 64
# A writer that waits longer for the lock fails. Writes take milliseconds: something hangs.
WAIT_SECONDS = 30
# The number of PostgreSQL's advisory lock, a signed 64-bit integer. It is derived from a name so
# that other programs on the same database do not take the same number by chance.
_LOCK = int.from_bytes(hashlib.sha256(b"fedtally ledger").digest()[:8], "big", signed=True)
# A table whose `info` this is has none of the triggers that make other tables append-only, because
# its rows are updated and erased.
CHANGES = {"changes": True}
_BEGIN = {True: "BEGIN IMMEDIATE", False: "BEGIN"}  # by whether the transaction writes
_LAST_SECOND = 2**62  # the largest time that is stored: it fits BigInteger with room to spare

SqliteConnection = sqlite3.Connection  # no other module of the store imports the driver

# Versions have a metadata of their own: each kind of database creates this table beside its own.
_versions = sa.MetaData()
schema = sa.Table(
    "fedtally_schema",
    _versions,
    sa.Column("kind", sa.String(20), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


def time_column() -> sa.Column[int]:
    """Return a new column of Unix seconds; a column belongs to one table."""
    return sa.Column("time", sa.BigInteger, nullable=False)


def grant_tables(metadata: sa.MetaData) -> tuple[sa.Table, sa.Table]:
    """Return the tables of the populations, each with its one delta, and of their grants.

    The delta stands with the population and not with a grant: epsilons add up at one delta alone.
    """
    populations = sa.Table(
        "fedtally_populations",
        metadata,
        sa.Column("population", sa.String(200), primary_key=True),
        sa.Column("delta", sa.Double, nullable=False),
    )
    grants = sa.Table(
        "fedtally_grants",
        metadata,
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("population", sa.ForeignKey(populations.c.population), nullable=False),
        sa.Column("epsilon", sa.Double, nullable=False),
        time_column(),
    )
    return populations, grants


def prepared(statement: sa.ClauseElement) -> str:
    r"""Return a statement as text for SQLite, with its parameters as `:name`.

    For what each phase of each session runs, by `Connection.exec_driver_sql` or
    `Database._sqlite`. SQLAlchemy compiles a statement anew for each file, and takes longer to do
    so than SQLite to run it.

    >>> prepared(sa.select(schema.c.version).where(schema.c.kind == sa.bindparam("of")))
    'SELECT fedtally_schema.version \nFROM fedtally_schema \nWHERE fedtally_schema.kind = :of'
    """
    made = statement.compile(dialect=_NAMED)
    assert isinstance(made, SQLCompiler)
    # A value that stands in the statement itself would be lost: it is no part of the text.
    assert all(parameter.required for parameter in made.binds.values())
    return str(made)


_NAMED = sqlite.dialect(paramstyle="named")


class StoreError(FedtallyError):
    """A database failed: it is locked, full, gone, or refused a statement.

    The transaction was rolled back: either all of it was written, or nothing.
    """


class Database:
    """A database of one kind and of this version, and its two kinds of transaction."""

    _kind: ClassVar[str]
    # Each change of a table raises it. A file of another version is refused, never guessed at.
    _schema: ClassVar[int] = 1
    _anew: ClassVar[str]  # what the owner of a file of an earlier version does
    _beside: ClassVar[frozenset[str]] = frozenset()  # kinds that may lie in the same database
    _metadata: ClassVar[sa.MetaData]

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine, self._name = engine, name
        weakref.finalize(self, engine.dispose)  # closes the connection that is kept

    @property
    def name(self) -> str:
        """The path or the URL, without its password."""
        return self._name

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[sa.Connection]:
        """Give a connection in a transaction; a writer holds the lock of the whole database."""
        postgres = self._engine.dialect.name == "postgresql"
        options: dict[str, Any] = {}
        if postgres and not write:
            # all statements of a reader see one moment, as they do on SQLite
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with (
            _failures(self._name),
            self._engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            if not postgres:
                # A writer takes the lock before it reads. If it took it at its first write only,
                # two writers could both read an old total and both add to it.
                connection.exec_driver_sql(_BEGIN[write])
            elif write:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'")
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            yield connection

    @contextmanager
    def _sqlite(self, *, write: bool) -> Iterator[SqliteConnection]:
        """Do as `_transaction` for statements of `prepared`, and give SQLite's own connection.

        For what each phase of each session runs: the objects that SQLAlchemy makes for a connection
        and for each statement take longer than SQLite does.
        """
        with _failures(self._name):
            kept = self._engine.raw_connection()
            try:
                connection = kept.driver_connection
                assert isinstance(connection, SqliteConnection)
                connection.execute(_BEGIN[write])
                yield connection
                connection.commit()
            finally:
                kept.close()  # the pool rolls back what was not committed, and keeps the connection

    def _create(self) -> None:
        """Create tables and triggers unless they are there, in one transaction.

        Both databases roll back a CREATE TABLE: after a crash there are all tables or none.
        """
        with self._transaction(write=True) as connection:
            if self._version(connection) is None:
                if not sa.inspect(connection).has_table(schema.name):  # of another kind beside it
                    make_table(connection, schema)
                for table in self._metadata.sorted_tables:
                    make_table(connection, table)
                connection.execute(sa.insert(schema).values(kind=self._kind, version=self._schema))

    def _check(self) -> None:
        """Refuse a database that holds nothing yet, another kind, or another version."""
        with self._transaction(write=False) as connection:
            version = self._version(connection)
        if version is None:
            raise UnreadableFileError(f"{self._name} holds no {self._kind} yet")
        if version > self._schema:
            raise UnreadableFileError(
                f"{self._name} was written by a newer fedtally (schema {version}; this one knows"
                f" {self._schema}): install that version"
            )
        if version < self._schema:
            raise UnreadableFileError(
                f"{self._name} was written by an earlier fedtally (schema {version}; this one reads"
                f" {self._schema}): {self._anew}"
            )

    def _versions(self, connection: sa.Connection) -> dict[str, int]:
        """Return the kinds that the database holds, each with its version."""
        if not sa.inspect(connection).has_table(schema.name):
            return {}
        return {row.kind: row.version for row in connection.execute(sa.select(schema))}

    def _version(self, connection: sa.Connection) -> int | None:
        """Return the version that the database was made with; None where it holds nothing yet."""
        versions = self._versions(connection)
        others = versions.keys() - {self._kind} - self._beside
        if others:
            raise UnreadableFileError(f"{self._name} holds a {min(others)}, not a {self._kind}")
        return versions.get(self._kind)


class GrantDatabase(Database):
    """A database that says what populations may spend."""

    _populations: ClassVar[sa.Table]
    _granted: ClassVar[sa.Table]

    def grant(self, population: str, epsilon: float, delta: float, time: int) -> Grant:
        """Grant a population a total epsilon, at its one total delta.

        A later grant replaces the earlier. Charges stay: a smaller grant stops new campaigns, and
        not the rounds of campaigns that were charged before.

        Raises:
            InvalidInputError: values out of bounds, or a delta other than the population's.
        """
        new, time = Grant(population, epsilon, delta), seconds(time)
        with self._transaction(write=True) as connection:
            known = self._grant(connection, population)
            if known is None:
                connection.execute(
                    sa.insert(self._populations).values(population=population, delta=new.delta)
                )
            elif known.delta != new.delta:
                raise InvalidInputError(
                    f"population {population!r} has a total delta of {known.delta:g} for good, not"
                    f" {new.delta:g}: grant with that"
                )
            values = {"population": population, "epsilon": new.epsilon, "time": time}
            connection.execute(sa.insert(self._granted).values(**values))
        return new

    def granted(self, population: str) -> Grant | None:
        """Return the total that a population may spend; None if nothing was granted."""
        with self._transaction(write=False) as connection:
            return self._grant(connection, population)

    def _grant(self, connection: sa.Connection, population: str) -> Grant | None:
        # rows are never changed: the grant with the highest number is the one that counts
        query = (
            sa.select(self._granted.c.epsilon, self._populations.c.delta)
            .join_from(self._granted, self._populations)
            .where(self._granted.c.population == population)
            .order_by(self._granted.c.number.desc())
            .limit(1)
        )
        row = connection.execute(query).first()
        return None if row is None else Grant(population, row.epsilon, row.delta)


def make_table(connection: sa.Connection, table: sa.Table) -> None:
    """Make a table, append-only unless its `info` is `CHANGES`."""
    for statement in _made(table, connection.dialect.name):
        connection.exec_driver_sql(statement)


@cache
def _made(table: sa.Table, name: str) -> Sequence[str]:
    """Return the statements that make a table; to write them takes longer than to run them."""
    dialect = sa.URL.create(name).get_dialect()()
    parts: list[sa.ClauseElement] = [CreateTable(table), *map(CreateIndex, table.indexes)]
    texts = [str(part.compile(dialect=dialect)) for part in parts]
    return texts if table.info == CHANGES else [*texts, *_triggers(table, name)]


def driver_connection(connection: sa.Connection) -> SqliteConnection:
    """Return SQLite's own connection, in the transaction of this one."""
    found = connection.connection.driver_connection
    assert isinstance(found, SqliteConnection)
    return found


_Opened = TypeVar("_Opened", bound=Database)


def opened(kind: type[_Opened], url: sa.URL, create: bool) -> _Opened:
    """Open a database of a kind, make its file and its tables first if asked, and check it.

    Raises:
        UnreadableFileError: there is none, or it is of another kind or of a newer version.
        MissingExtraError: the driver for PostgreSQL is not installed.
        StoreError: the database does not answer.
    """
    name = (
        url.database
        if url.get_backend_name() == "sqlite"
        else url.render_as_string(hide_password=True)
    )
    assert name is not None
    if url.get_backend_name() == "sqlite":
        try:
            if create:
                # before SQLite makes the file: it would be readable by others
                Path(name).touch(mode=0o600, exist_ok=True)
            elif not Path(name).is_file():  # SQLite would make an empty one
                raise UnreadableFileError(f"there is no {kind._kind} at {name}")
        except OSError as error:
            raise UnreadableFileError(f"cannot open {name}: {error.strerror}") from error
    database = kind(_engine(url), name)
    if create:
        database._create()
    database._check()
    return database


def url_of(location: str | os.PathLike[str]) -> sa.URL:
    """Return the URL of a database from a path or from a URL with the name of any driver.

    Raises:
        InvalidInputError: no such URL, or one of neither SQLite nor PostgreSQL.
    """
    place = os.fspath(location)
    if "://" not in place:
        return file_url(place)
    try:
        url = sa.make_url(place)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError):
        # the place is not quoted, and the cause is cut off: both may hold a password
        raise InvalidInputError(
            "not a URL of a database: write postgresql://user@host/database or a path"
        ) from None
    if backend == "sqlite":
        return file_url(url.database or "")
    if backend not in ("postgresql", "postgres"):
        raise InvalidInputError(f"a ledger is kept in SQLite or PostgreSQL, not in {backend}")
    return url.set(drivername="postgresql+psycopg")


def file_url(path: str) -> sa.URL:
    """Return the URL of an SQLite file.

    Raises:
        InvalidInputError: the path names a database in memory, which a crash would erase.
    """
    if path in ("", ":memory:") or path.startswith("file:"):
        raise InvalidInputError(
            f"a database must outlive its process: give the path of a file, got {path!r}"
        )
    return sa.URL.create("sqlite", database=path)


def _engine(url: sa.URL) -> sa.Engine:
    """Return an engine; errors hide the values of a statement, which may be a client's items.

    A connection to an SQLite file is kept: to open one costs more than most transactions. Writes to
    PostgreSQL are rare, and connect anew.
    """
    if url.get_backend_name() == "sqlite":
        file, shared = _File(os.path.abspath(url.database or "")), _sqlite_engine()
        pool = sa.QueuePool(
            file.connect,
            pool_size=1,
            max_overflow=-1,  # threads that meet get a connection each; one of them is kept
            dialect=shared.dialect,
        )
        options = shared.get_execution_options()
        engine = sa.Engine(
            pool, shared.dialect, url, execution_options=options, hide_parameters=True
        )
        hooks.listen(engine, "connect", _prepare_sqlite)
        hooks.listen(engine, "checkout", file.check)
        return engine
    try:
        # READ COMMITTED: a writer that waited for the lock must read what the others committed
        # meanwhile. A stricter level would show it the state from before the wait.
        engine = sa.create_engine(
            url, poolclass=sa.NullPool, hide_parameters=True, isolation_level="READ COMMITTED"
        )
    except ImportError:
        raise MissingExtraError(
            "PostgreSQL needs its driver: pip install 'fedtally[postgres]'"
        ) from None
    hooks.listen(engine, "connect", _prepare_postgres)
    return engine


@cache
def _sqlite_engine() -> sa.Engine:
    """Return an engine of no file: the engines of files share its dialect, and what is compiled.

    A process that opens many files would learn what SQLite is, and compile each statement, for each
    of them. That takes longer than SQLite takes to run the statements.
    """
    compiled: dict[Any, Any] = {}  # as many as there are statements in this package
    engine = sa.create_engine(
        "sqlite://", poolclass=sa.NullPool, execution_options={"compiled_cache": compiled}
    )
    with engine.connect():  # the dialect asks which version of SQLite this is
        return engine


class _File:
    """The file that connections are made to, and whether they still are."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.inherited: list[Any] = []  # SQLite forbids to close what the parent of a fork opened

    def connect(self, rec: Any) -> Any:
        """Connect to the file, and note in the pool's record which one it is."""
        # Before the connection: a file that is replaced in between then looks like another one.
        rec.info["file"] = self._identity()
        # mode=rw: SQLite would make an empty file in the place of one that is gone
        return sqlite3.connect(
            f"file:{quote(self.path)}?mode=rw",
            uri=True,
            timeout=WAIT_SECONDS,
            check_same_thread=False,  # one thread after the other uses it
        )

    def check(self, connection: Any, record: Any, proxy: Any) -> None:
        """Let a connection go unless it is this process's own, to the file of that path.

        A backup is put back by renaming. A connection that is kept would go on writing into the
        file that was there before, which nobody will ever read.
        """
        if record.info["file"] != self._identity():
            if record.info["file"][0] != os.getpid():
                self.inherited.append(connection)
                record.dbapi_connection = proxy.dbapi_connection = None
            raise sa.exc.DisconnectionError  # the pool closes it, and connects anew
        # The file may also be overwritten in its place, or put into another mode: what was read of
        # it before does not count.
        connection.execute("PRAGMA shrink_memory")
        connection.execute("PRAGMA journal_mode = TRUNCATE")

    def _identity(self) -> tuple[int, int, int]:
        """Return the process, and device and inode of the file; 0 if there is none."""
        try:
            found = os.stat(self.path)
        except OSError:  # the connection says what is wrong
            return os.getpid(), 0, 0
        return os.getpid(), found.st_dev, found.st_ino


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin where `Database._transaction` says
    # What is deleted is overwritten, and no write-ahead log keeps a copy: a database that somebody
    # put into that mode goes back. A commit empties the journal in its place, and syncs it: that
    # costs less than to delete it, and to sync the folder. EXTRA would do the latter, if another
    # program put the file into the mode DELETE. Foreign keys are off by default. A schema that is
    # not trusted cannot call functions with side effects.
    for setting in (
        "foreign_keys = ON",
        "synchronous = EXTRA",
        "trusted_schema = OFF",
        "secure_delete = ON",
        "journal_mode = TRUNCATE",
    ):
        connection.execute(f"PRAGMA {setting}")


def _prepare_postgres(connection: Any, _: Any) -> None:
    # Commits must be on disk when they return. The setting is raised where a server has it off, and
    # left alone where it is stricter than "on".
    switched_on = (
        "SELECT set_config(name, 'on', false) FROM pg_settings WHERE name = 'synchronous_commit'"
    )
    with connection.cursor() as cursor:
        cursor.execute(switched_on + " AND setting = 'off'")
    connection.commit()


@contextmanager
def _failures(name: str) -> Iterator[None]:
    """Turn the errors of SQLAlchemy and of the drivers into those of this package."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"{name} is damaged: it holds text that is none") from error
    except (SQLAlchemyError, sqlite3.Error) as error:
        reason = (
            str(error.orig if isinstance(error, DBAPIError) else error).strip().partition("\n")[0]
        )
        if "not a database" in reason:
            raise UnreadableFileError(f"{name} is no database: {reason}") from error
        if "database is locked" in reason:
            # A process that was suspended in a write keeps the lock until it goes on, or ends.
            reason += f" for {WAIT_SECONDS} seconds: end the process that holds it"
        raise StoreError(f"{name} failed: {reason}") from error


def _triggers(table: sa.Table, dialect: str) -> Sequence[str]:
    """Return the statements that make a table append-only."""
    name, refusal = table.name, "fedtally: this table is append-only"
    if dialect == "postgresql":
        function = (
            "CREATE OR REPLACE FUNCTION fedtally_refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN RAISE EXCEPTION '{refusal}' USING ERRCODE = 'integrity_constraint_violation';"
            " END $$"
        )
        trigger = (
            "CREATE TRIGGER {0}_{1} BEFORE {2} ON {0} FOR EACH {3} EXECUTE FUNCTION"
            " fedtally_refuse()"
        )
        return [
            function,
            trigger.format(name, "kept", "UPDATE OR DELETE", "ROW"),
            trigger.format(name, "whole", "TRUNCATE", "STATEMENT"),
        ]
    # SQLite's REPLACE deletes the old row without calling the trigger for DELETE. So an INSERT is
    # refused too wherever a row with the same key is there.
    taken = " OR ".join(
        " AND ".join(f"{column} = NEW.{column}" for column in columns)
        for columns in _unique_columns(table)
    )
    raised = f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
    # The text has names of tables and columns in it, and no values.
    replaced = f"WHEN EXISTS (SELECT 1 FROM {name} WHERE {taken})"  # noqa: S608
    return [
        f"CREATE TRIGGER {name}_update BEFORE UPDATE ON {name} {raised}",
        f"CREATE TRIGGER {name}_delete BEFORE DELETE ON {name} {raised}",
        f"CREATE TRIGGER {name}_insert BEFORE INSERT ON {name} {replaced} {raised}",
    ]


def _unique_columns(table: sa.Table) -> list[list[str]]:
    """Return the columns of each primary key and each unique constraint, in a fixed order."""
    unique = [
        one
        for one in table.constraints
        if isinstance(one, sa.PrimaryKeyConstraint | sa.UniqueConstraint)
    ]
    # `constraints` is a set: without sorting, the text of a trigger would differ between runs
    return sorted([column.name for column in one.columns] for one in unique)


def event_to_json(event: Event) -> str:
    """Return the text of an event, as a column keeps it."""
    return json.dumps(event.to_dict(), sort_keys=True)


def event_from_json(text: str) -> Event:
    """Return the event of such a text.

    Raises:
        UnreadableFileError: the text was damaged.
    """
    try:
        return Event.from_dict(json.loads(text))
    except ValueError as error:
        raise UnreadableFileError(f"an event of the store cannot be read: {error}") from error


def seconds(time: int) -> int:
    """Return a time in Unix seconds if it is one.

    Raises:
        InvalidInputError: below 0, too large, or not an integer.
    """
    return validate.integer(0, _LAST_SECOND, time=time)
