"""Databases to test on: SQLite that spares the disk, and PostgreSQL where there is a server.

The server is the one that FEDTALLY_POSTGRES_URL names (a role that may create schemas), or an
installed one, which is started for the tests. FEDTALLY_REQUIRE_POSTGRES=1 makes its absence a
failure.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
import sqlalchemy as sa

BACKENDS = ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]
_numbers = count()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Give the URL of a database: the named one, or one of a server that is started here."""
    if named := os.environ.get("FEDTALLY_POSTGRES_URL"):
        yield named
        return
    programs = _postgres_programs()
    missing = (
        "psycopg is not installed" if not _has_psycopg() else "no PostgreSQL server is installed"
    )
    if programs is None or not _has_psycopg():
        if os.environ.get("FEDTALLY_REQUIRE_POSTGRES") == "1":
            pytest.fail(f"FEDTALLY_REQUIRE_POSTGRES=1, and {missing}")
        pytest.skip(f"{missing}; set FEDTALLY_POSTGRES_URL to use one that runs")
    with tempfile.TemporaryDirectory(prefix="fedtally-pg-") as folder:
        user = "postgres" if os.geteuid() == 0 else None  # the server refuses to run as root
        if user:
            shutil.chown(folder, user)

        def call(*command: str) -> None:
            subprocess.run(
                command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL, timeout=120
            )

        data, log = f"{folder}/data", f"{folder}/log"
        call(f"{programs}/initdb", "-D", data, "-U", "fedtally", "-A", "trust", "--no-sync")
        options = (
            f"-F -c listen_addresses='' -c unix_socket_directories={folder} -c max_connections=50"
        )
        call(f"{programs}/pg_ctl", "-D", data, "-l", log, "-w", "-o", options, "start")
        try:
            yield f"postgresql://fedtally@/postgres?host={folder}"
        finally:
            call(f"{programs}/pg_ctl", "-D", data, "-m", "immediate", "-w", "stop")


def _has_psycopg() -> bool:
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return False
    return True


def _postgres_programs() -> str | None:
    """Return the folder of initdb and pg_ctl."""
    folders = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    found = shutil.which("initdb", path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))
    return found and str(Path(found).resolve().parent)


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the disk: what is tested is the end of processes, not of power."""
    from fedtally.store import database

    prepare = database._prepare_sqlite

    def unsynced(connection: sqlite3.Connection, other: object) -> None:
        prepare(connection, other)
        connection.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(database, "_prepare_sqlite", unsynced)
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(params=BACKENDS)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Give a function that makes an empty place for a ledger."""
    if request.param == "sqlite":
        yield lambda: str(tmp_path / f"{next(_numbers)}.db")
        return
    url, made = sa.make_url(request.getfixturevalue("postgres")), []
    admin = sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
        poolclass=sa.NullPool,
    )

    def place() -> str:
        made.append(f"fedtally_{os.getpid()}_{next(_numbers)}")
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE SCHEMA {made[-1]}")
        inside = url.update_query_dict({"options": f"-csearch_path={made[-1]}"})
        return inside.render_as_string(hide_password=False)

    yield place
    if "FEDTALLY_POSTGRES_URL" in os.environ:  # a server of our own goes with all that it holds
        for name in made:
            with admin.connect() as connection:
                connection.exec_driver_sql(f"DROP SCHEMA {name} CASCADE")
