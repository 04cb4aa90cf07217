"""The command lines of docs/accounting.md that copy a ledger, and put the copy in its place."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import databases
import pytest
import sqlalchemy as sa

from fedtally.errors import InvalidInputError
from fedtally.privacy.budget import Charge
from fedtally.privacy.events import Event
from fedtally.store import Ledger

PAGE = Path(__file__).parents[2] / "docs" / "accounting.md"
EVENT = Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)
OWNER = "a run"


def lines_with(program: str) -> list[str]:
    """Return the two lines of the page: that which copies, and that which restores."""
    part = PAGE.read_text("utf-8").partition("### Put a ledger back")[2].partition("\n### ")[0]
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", part, re.M | re.S)).splitlines()
    found = [line for line in blocks if program in line]
    assert len(found) == 2, found
    return found


def ran(line: str) -> None:
    """Run a line of the page as this user."""
    line = re.sub(r"sudo -u \w+ ", "", line)
    subprocess.run(["bash", "-c", line], check=True, timeout=120)


def spent_in(place: str) -> Ledger:
    """Make a ledger in which one campaign was charged."""
    ledger = Ledger.open(place, create=True)
    ledger.grant("phones", 4.0, 1e-6, 0)
    ledger.reserve(Charge("phones", "plan-0", 0, EVENT), OWNER, time=1)
    return ledger


def check_copy(place: str, exported: object) -> None:
    """Look that a restored ledger knows what was spent, and that it can be charged again."""
    copy = Ledger.open(place)
    assert copy.export() == exported
    assert copy.reserved("plan-0") == [0]
    with pytest.raises(InvalidInputError):
        copy.reserve(Charge("phones", "plan-0", 0, EVENT), "another run", time=2)
    copy.reserve(Charge("phones", "plan-1", 0, EVENT), OWNER, time=2)
    assert copy.reserved("plan-1") == [0]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no command sqlite3")
def test_a_ledger_in_a_file_is_copied_and_put_back(tmp_path: Path) -> None:
    place, mounted = tmp_path / "ledger.db", tmp_path / "mounted"
    mounted.mkdir()
    exported = spent_in(str(place)).export()
    copies, restores = (
        line.replace("/var/lib/fedtally/", f"{tmp_path}/").replace("/mnt/copies", str(mounted))
        for line in lines_with("ledger.copy")
    )
    ran(copies)
    ran(copies)  # each hour
    assert os.listdir(mounted) == ["ledger.copy"]
    assert (mounted / "ledger.copy").stat().st_mode & 0o777 == 0o600
    place.write_bytes(b"lost")
    ran(restores)
    check_copy(str(place), exported)


@pytest.fixture
def books(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.URL]:
    """Give the URL of a new database, which the commands of PostgreSQL reach, too."""
    url = sa.make_url(postgres)
    if programs := databases._postgres_programs():
        monkeypatch.setenv("PATH", os.pathsep.join([programs, os.environ["PATH"]]))
    if shutil.which("pg_dump") is None or shutil.which("createdb") is None:
        pytest.skip("pg_dump or createdb is not installed")
    monkeypatch.setenv("PGHOST", str(url.query.get("host", url.host)))
    for name, value in (
        ("PGUSER", url.username),
        ("PGPASSWORD", url.password),
        ("PGPORT", url.port),
    ):
        if value is not None:
            monkeypatch.setenv(name, str(value))
    admin = sa.create_engine(
        url.set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
        poolclass=sa.NullPool,
    )
    name = f"books_{os.getpid()}"
    with admin.connect() as connection:
        role = "SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user"
        if not connection.exec_driver_sql(role).scalar():
            pytest.skip("the role of FEDTALLY_POSTGRES_URL may not create databases")
        server = int(connection.exec_driver_sql("SHOW server_version_num").scalar() or 0) // 10_000
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    try:
        told = subprocess.run(["pg_dump", "--version"], check=True, capture_output=True, text=True)
        version = re.search(r"\d+", told.stdout)
        if version is None or int(version[0]) < server:
            pytest.skip(f"pg_dump is older than the server, {server}")
        yield url.set(database=name)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@pytest.mark.postgres
def test_a_ledger_in_postgresql_is_copied_and_put_back(books: sa.URL, tmp_path: Path) -> None:
    place = books.render_as_string(hide_password=False)
    exported = spent_in(place).export()
    copies, restores = (
        line.replace("postgresql:///books?host=/var/run/postgresql", place)
        .replace("--owner fedtally books ", f"--owner {books.username} {books.database} ")
        .replace("/mnt/copies", str(tmp_path))
        for line in lines_with("books.dump")
    )
    assert copies.count(place) == restores.count(place) == 1 and str(books.database) in restores
    ran(copies)
    ran(copies)  # each hour
    assert os.listdir(tmp_path) == ["books.dump"]
    assert (tmp_path / "books.dump").stat().st_mode & 0o777 == 0o600
    subprocess.run(["dropdb", "--force", str(books.database)], check=True, timeout=60)
    ran(restores)
    check_copy(place, exported)
    # rows are added and never changed, in the copy too
    engine = sa.create_engine(books.set(drivername="postgresql+psycopg"), poolclass=sa.NullPool)
    with engine.connect() as connection, pytest.raises(sa.exc.DatabaseError):
        connection.exec_driver_sql("DELETE FROM fedtally_reservations")
