"""`Database`, the base class of all stores: connections, transactions, triggers, and grants.

A ledger, a client's record and a server's campaign file are subclasses of `Database`. This module
handles all differences between SQLite and PostgreSQL, so that the subclasses work with tables and
rows only.
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

# The length in bytes of the longest name of a session or of a sum. Tables hold names in
# hexadecimal. Names of sessions of `secagg` have 32 bytes. A sum that two servers make may have a
# longer name.
MOST_NAME_BYTES = 64
# A writer that waits longer than this for the lock fails. Writes take milliseconds, so after this
# time another process must be stuck.
WAIT_SECONDS = 30
# The number of the advisory lock on PostgreSQL, a signed 64-bit integer. It is the hash of a name,
# so that other programs on the same database hardly use the same number.
_LOCK = int.from_bytes(hashlib.sha256(b"fedtally ledger").digest()[:8], "big", signed=True)
# The `info` of a table whose rows may be updated and deleted. All other tables get triggers that
# refuse both.
CHANGES = {"changes": True}
_BEGIN = {True: "BEGIN IMMEDIATE", False: "BEGIN"}  # True: the transaction writes
_LAST_SECOND = 2**62  # the largest time, Unix seconds; BigInteger holds up to 2^63 - 1

# The parameters in the URL of a database that must not be shown, beside its password.
_SECRETS = frozenset(
    ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
)

SqliteConnection = sqlite3.Connection  # only this module imports the driver

# The words by which messages call one database of a kind. A kind that is missing here is called by
# its own name. The names of these two kinds are plural, and existing files hold them.
_CALLED = {"campaigns": "campaign", "batches": "store of batches"}

# The table of versions. Databases of every kind (ledger, client record and so on) have this table,
# so it has metadata of its own.
_versions = sa.MetaData()
schema = sa.Table(
    "fedtally_schema",
    _versions,
    sa.Column("kind", sa.String(20), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


def time_column() -> sa.Column[int]:
    """Return a new column for a time in Unix seconds; each table needs its own column object."""
    return sa.Column("time", sa.BigInteger, nullable=False)


def grant_tables(metadata: sa.MetaData) -> tuple[sa.Table, sa.Table]:
    """Add tables of populations and of their grants to the metadata, and return the two tables.

    A population keeps the delta of its first grant for good, since costs can be added up only at
    one delta.
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
    r"""Return a statement as SQL text for SQLite, in which parameters are written as `:name`.

    Use it for statements that run often, such as in each phase of each session of secure
    aggregation. Run the text with `Connection.exec_driver_sql`, or in `Database._sqlite`. Running a
    statement as an SQLAlchemy object takes longer.

    >>> prepared(sa.select(schema.c.version).where(schema.c.kind == sa.bindparam("of")))
    'SELECT fedtally_schema.version \nFROM fedtally_schema \nWHERE fedtally_schema.kind = :of'
    """
    made = statement.compile(dialect=_NAMED)
    assert isinstance(made, SQLCompiler)
    # The text has only names of parameters. A literal value in the statement would be lost.
    assert all(parameter.required for parameter in made.binds.values())
    return str(made)


_NAMED = sqlite.dialect(paramstyle="named")


class StoreError(FedtallyError):
    """Report that a database, or its mark (`store/marks.py`), cannot be used.

    For instance, the file is locked, damaged or gone, or the disk is full. A transaction is written
    as a whole or not at all. If its commit raised this error, the transaction may be on disk.
    """


class Database:
    """A database of one kind of tables, such as a ledger, in the version that this code knows.

    Each kind has a subclass.
    """

    _kind: ClassVar[str]
    # The version of the tables, raised by each change of a table. A file with another version is
    # refused: its rows could mean something else.
    _schema: ClassVar[int] = 1
    _anew: ClassVar[str]  # for messages: what to do with an earlier version
    _beside: ClassVar[frozenset[str]] = frozenset()  # kinds that may share the database
    _metadata: ClassVar[sa.MetaData]

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine, self._name = engine, name
        weakref.finalize(self, engine.dispose)  # closes kept connections

    @property
    def name(self) -> str:
        """The path of the file, or the URL of the database without its password."""
        return self._name

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction, which is committed at the end of the `with` block.

        If the block raises, the transaction is rolled back.

        Args:
            write: True: the block may write, and holds the lock of the whole database. False: the
                block only reads.
        """
        postgres = self._engine.dialect.name == "postgresql"
        options: dict[str, Any] = {}
        if postgres and not write:
            # all statements of one reader must see the same state, as on SQLite
            options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with (
            _failures(self._name),
            self._engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            if not postgres:
                # A writer takes the lock before it reads. Otherwise two writers could read the same
                # total, and both add to it.
                connection.exec_driver_sql(_BEGIN[write])
            elif write:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'")
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            yield connection

    @contextmanager
    def _sqlite(self, *, write: bool) -> Iterator[SqliteConnection]:
        """Yield SQLite's own connection in a transaction, which is committed at the block's end.

        If the block raises, the transaction is rolled back.

        Use it with the texts of `prepared`, for what runs in each phase of each session. It is
        faster than `_transaction`: SQLAlchemy's objects for connections and statements take longer
        than SQLite itself.
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
                # back to the pool, which rolls back what was not committed
                kept.close()

    def _create(self) -> None:
        """Create the tables and triggers, unless they exist, in one transaction.

        Both SQLite and PostgreSQL can roll back CREATE TABLE. So after a crash either all tables
        exist, or none.
        """
        with self._transaction(write=True) as connection:
            if self._version(connection) is None:
                # another kind in the same file may have made the table of versions
                if not sa.inspect(connection).has_table(schema.name):
                    make_table(connection, schema)
                for table in self._metadata.sorted_tables:
                    make_table(connection, table)
                connection.execute(sa.insert(schema).values(kind=self._kind, version=self._schema))

    def _check(self) -> None:
        """Check the kind and the version of the tables in the database.

        Raises:
            UnreadableFileError: the database has no tables of this kind, or tables of a kind that
                may not share it, or its tables have another version.
        """
        with self._transaction(write=False) as connection:
            version = self._version(connection)
        if version is None:
            raise UnreadableFileError(f"{self._name} holds no {_called(self._kind)} yet")
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
        """Return a dict from each kind of tables in the database to their version."""
        if not sa.inspect(connection).has_table(schema.name):
            return {}
        return {row.kind: row.version for row in connection.execute(sa.select(schema))}

    def _version(self, connection: sa.Connection) -> int | None:
        """Return the version of this kind's tables in the database; None if there are none.

        Raises:
            UnreadableFileError: the database has tables of a kind that may not share it.
        """
        versions = self._versions(connection)
        others = versions.keys() - {self._kind} - self._beside
        if others:
            raise UnreadableFileError(
                f"{self._name} holds a {_called(min(others))}, not a {_called(self._kind)}"
            )
        return versions.get(self._kind)


class GrantDatabase(Database):
    """A database with budgets: what each population may spend."""

    _populations: ClassVar[sa.Table]
    _granted: ClassVar[sa.Table]

    def grant(self, population: str, epsilon: float, delta: float, time: int) -> Grant:
        """Grant a population a total epsilon, at its delta, and return the grant.

        A new grant replaces the last one; what was charged stays charged. A smaller grant may
        refuse new campaigns, but not later rounds of campaigns that are already charged.

        Args:
            population: the name of the population.
            epsilon: the most that all campaigns of the population together may cost.
            delta: the delta of this total. The first grant fixes it for good.
            time: now, Unix seconds.

        Raises:
            InvalidInputError: a value is out of bounds, or delta differs from the delta of the
                first grant.
        """
        new, time = Grant(population, epsilon, delta), seconds(time)
        with self._limiting() as connection:
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

    @contextmanager
    def _limiting(self) -> Iterator[sa.Connection]:
        """Run the transaction that writes a grant, and yield its connection."""
        with self._transaction(write=True) as connection:
            yield connection

    def granted(self, population: str) -> Grant | None:
        """Return the last grant of a population; None if nothing was granted."""
        with self._transaction(write=False) as connection:
            return self._grant(connection, population)

    def _grant(self, connection: sa.Connection, population: str) -> Grant | None:
        # rows are never changed; the grant with the highest number is the last
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
    """Create a table and its indexes.

    Triggers make it append-only, unless its `info` is `CHANGES`.
    """
    for statement in _made(table, connection.dialect.name):
        connection.exec_driver_sql(statement)


@cache
def _made(table: sa.Table, name: str) -> Sequence[str]:
    """Return the SQL statements that create a table, its indexes and its triggers.

    They are cached, since building the texts takes longer than running them.

    Args:
        table: the table.
        name: the SQL dialect, `sqlite` or `postgresql`.
    """
    dialect = sa.URL.create(name).get_dialect()()
    parts: list[sa.ClauseElement] = [CreateTable(table), *map(CreateIndex, table.indexes)]
    texts = [str(part.compile(dialect=dialect)) for part in parts]
    return texts if table.info == CHANGES else [*texts, *_triggers(table, name)]


def driver_connection(connection: sa.Connection) -> SqliteConnection:
    """Return the connection of Python's `sqlite3` that an SQLAlchemy connection uses.

    Both connections share one open transaction.
    """
    found = connection.connection.driver_connection
    assert isinstance(found, SqliteConnection)
    return found


_Opened = TypeVar("_Opened", bound=Database)


def opened(kind: type[_Opened], url: sa.URL, create: bool) -> _Opened:
    """Open a database of a given kind, and check its version.

    Args:
        kind: the subclass of `Database`.
        url: the URL of the database.
        create: whether to make the file and the tables, if they are missing.

    Raises:
        UnreadableFileError: the file or its tables are missing, or have another kind or version.
        MissingExtraError: the driver for PostgreSQL is not installed.
        StoreError: the database cannot be used, for instance because it is locked.
    """
    name = _name(url)
    if url.get_backend_name() == "sqlite":
        try:
            if create:
                # SQLite would make a file that other users can read
                Path(name).touch(mode=0o600, exist_ok=True)
            elif not Path(name).is_file():  # SQLite would make an empty file
                raise UnreadableFileError(f"there is no {_called(kind._kind)} at {name}")
        except OSError as error:
            raise UnreadableFileError(f"cannot open {name}: {error.strerror}") from error
    database = kind(_engine(url), name)
    if create:
        database._create()
    database._check()
    return database


def _called(kind: str) -> str:
    """Return what messages call one database of a kind."""
    return _CALLED.get(kind, kind)


def name_of(location: str | os.PathLike[str]) -> str:
    """Return the path of an SQLite file, or the URL of a database without its password.

    Args:
        location: the path or URL, in a form that `url_of` takes.

    Raises:
        InvalidInputError: as for `url_of`.
    """
    return _name(url_of(location))


def has_password(location: str | os.PathLike[str]) -> bool:
    """Tell whether a location is a URL that contains a password or another secret.

    Args:
        location: the path or URL, in a form that `url_of` takes.

    Raises:
        InvalidInputError: as for `url_of`.
    """
    url = url_of(location)
    return bool(url.password) or not _SECRETS.isdisjoint(url.query)


def _name(url: sa.URL) -> str:
    if url.get_backend_name() == "sqlite":
        assert url.database is not None
        return url.database
    shown = url.difference_update_query(_SECRETS).set(drivername=url.get_backend_name())
    return shown.render_as_string(hide_password=True)


def url_of(location: str | os.PathLike[str]) -> sa.URL:
    """Return the URL of a database.

    Args:
        location: the path of an SQLite file; or a URL of SQLite or PostgreSQL. A driver that the
            URL names is ignored: fedtally uses its own.

    Raises:
        InvalidInputError: the text is no URL of a database; it names a database system other than
            SQLite and PostgreSQL; or it names a database in memory (see `file_url`).
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
    """Return SQLAlchemy's engine for a URL.

    Its errors do not show the values of a statement, which may be a client's items. For an SQLite
    file, one connection stays open between transactions, since opening one takes longer than most
    transactions. On PostgreSQL each transaction makes a new connection, since transactions are rare
    there.
    """
    if url.get_backend_name() == "sqlite":
        file, shared = _File(os.path.abspath(url.database or "")), _sqlite_engine()
        pool = sa.QueuePool(
            file.connect,
            pool_size=1,
            max_overflow=-1,  # each concurrent thread gets a connection; one stays open
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
        # READ COMMITTED: a writer that waited for the lock must read what others committed
        # meanwhile. At a stricter level it would read the state before the wait.
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
    """Return an engine for a database in memory; engines of SQLite files share parts of it.

    They share its dialect and its compiled statements. Otherwise SQLAlchemy would inspect SQLite,
    and compile each statement, again for each file. This takes longer than running the statements.
    """
    compiled: dict[Any, Any] = {}  # unbounded: the number of statements is fixed
    engine = sa.create_engine(
        "sqlite://", poolclass=sa.NullPool, execution_options={"compiled_cache": compiled}
    )
    with engine.connect():  # the dialect learns SQLite's version
        return engine


class _File:
    """The path of an SQLite file, and the two functions that its pool of connections calls.

    The pool (SQLAlchemy's, see `_engine`) keeps a connection open between transactions. `connect`
    makes a connection. Before each transaction, `check` finds out whether the kept connection still
    leads to the file at this path.

    Args:
        path: the absolute path of the file.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        # Connections from before a fork. SQLite forbids a child process to close them. Without
        # these references they would be closed by garbage collection.
        self.inherited: list[Any] = []

    def connect(self, rec: Any) -> Any:
        """Note the file's identity, and return a new connection.

        Args:
            rec: the pool's record of the connection. The identity is stored in it, for `check`.
        """
        # Noted before connecting: otherwise `check` could miss that the file is replaced in
        # between.
        rec.info["file"] = self._identity()
        # mode=rw: if the file is gone, SQLite would otherwise make an empty one
        return sqlite3.connect(
            f"file:{quote(self.path)}?mode=rw",
            uri=True,
            timeout=WAIT_SECONDS,
            check_same_thread=False,  # threads use it one after another
        )

    def check(self, connection: Any, record: Any, proxy: Any) -> None:
        """Refuse a kept connection from another process, or to a file that was replaced meanwhile.

        The pool calls this before it reuses a connection, and makes a new one after a refusal. For
        example, an operator may restore a backup by renaming it to this path. The old connection
        would still write to the replaced file, which nobody reads any more.

        Raises:
            sqlalchemy.exc.DisconnectionError: the connection is refused.
        """
        if record.info["file"] != self._identity():
            if record.info["file"][0] != os.getpid():
                self.inherited.append(connection)
                record.dbapi_connection = proxy.dbapi_connection = None
            raise sa.exc.DisconnectionError  # the pool makes a new connection
        # Meanwhile another program may have overwritten the file in place, or changed its journal
        # mode. So cached pages are dropped, and the mode is set again.
        connection.execute("PRAGMA shrink_memory")
        connection.execute("PRAGMA journal_mode = TRUNCATE")

    def _identity(self) -> tuple[int, int, int]:
        """Return the process id, and the file's device and inode (0 and 0 if it is missing)."""
        try:
            found = os.stat(self.path)
        except OSError:  # no error here: connecting will fail with a better one
            return os.getpid(), 0, 0
        return os.getpid(), found.st_dev, found.st_ino


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # `Database` begins transactions, not the driver
    # foreign_keys: off by default. synchronous = EXTRA: syncs the folder, too, in case another
    # program set the journal mode DELETE. trusted_schema = OFF: a manipulated schema cannot call
    # functions with side effects. secure_delete: deleted content is overwritten. journal_mode: a
    # write-ahead log could hold copies of deleted content; TRUNCATE switches it off, and is faster
    # than DELETE, since a commit empties and syncs the journal instead of deleting it and syncing
    # the folder.
    for setting in (
        "foreign_keys = ON",
        "synchronous = EXTRA",
        "trusted_schema = OFF",
        "secure_delete = ON",
        "journal_mode = TRUNCATE",
    ):
        connection.execute(f"PRAGMA {setting}")


def _prepare_postgres(connection: Any, _: Any) -> None:
    # A commit must be on disk when it returns. So synchronous_commit is set to on if the server has
    # it off. All its other values wait for the disk, and are not changed.
    switched_on = (
        "SELECT set_config(name, 'on', false) FROM pg_settings WHERE name = 'synchronous_commit'"
    )
    with connection.cursor() as cursor:
        cursor.execute(switched_on + " AND setting = 'off'")
    connection.commit()


@contextmanager
def _failures(name: str) -> Iterator[None]:
    """Turn errors of SQLAlchemy and of drivers in the `with` block into errors of fedtally.

    If the file is no database, or holds text that is not UTF-8, the error is an
    `UnreadableFileError`. Any other error of SQLAlchemy or a driver becomes a `StoreError`.
    """
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
            # For instance, a process that was suspended during a write keeps the lock.
            reason += f" for {WAIT_SECONDS} seconds: end the process that holds it"
        raise StoreError(f"{name} failed: {reason}") from error


def _triggers(table: sa.Table, dialect: str) -> Sequence[str]:
    """Return the SQL statements for triggers that make a table append-only.

    Args:
        table: the table.
        dialect: `sqlite` or `postgresql`.
    """
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
    # SQLite's REPLACE deletes the old row without calling the DELETE trigger. So an INSERT is
    # refused, too, if the table has a row with the same key.
    taken = " OR ".join(
        " AND ".join(f"{column} = NEW.{column}" for column in columns)
        for columns in _unique_columns(table)
    )
    raised = f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
    # The text has names of tables and columns, but no values.
    replaced = f"WHEN EXISTS (SELECT 1 FROM {name} WHERE {taken})"  # noqa: S608
    return [
        f"CREATE TRIGGER {name}_update BEFORE UPDATE ON {name} {raised}",
        f"CREATE TRIGGER {name}_delete BEFORE DELETE ON {name} {raised}",
        f"CREATE TRIGGER {name}_insert BEFORE INSERT ON {name} {replaced} {raised}",
    ]


def _unique_columns(table: sa.Table) -> list[list[str]]:
    """Return a list of column names for the primary key and for each unique constraint.

    The lists are sorted.
    """
    unique = [
        one
        for one in table.constraints
        if isinstance(one, sa.PrimaryKeyConstraint | sa.UniqueConstraint)
    ]
    # `constraints` is a set: unsorted, the text of a trigger would differ from run to run
    return sorted([column.name for column in one.columns] for one in unique)


def event_to_json(event: Event) -> str:
    """Return an event as JSON text, the form in which a column holds it."""
    return json.dumps(event.to_dict(), sort_keys=True)


def event_from_json(text: str) -> Event:
    """Return the event of a text that `event_to_json` made.

    Raises:
        UnreadableFileError: the text is no event.
    """
    try:
        return Event.from_dict(json.loads(text))
    except ValueError as error:
        raise UnreadableFileError(f"an event of the store cannot be read: {error}") from error


def seconds(time: int) -> int:
    """Return a time in Unix seconds unchanged, if it is an integer from 0 to 2^62.

    Raises:
        InvalidInputError: the time is no integer, or out of these bounds.
    """
    return validate.integer(0, _LAST_SECOND, time=time)
