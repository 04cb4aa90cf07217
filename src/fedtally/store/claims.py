"""One process at a time: a file that is claimed, and the mark that says how much it has seen.

Each process that claims a file gets a higher *epoch*. Each writing transaction first compares the
epoch, so that the earlier process can write nothing any more.

If an operator *puts back* a copy of the file, such as a backup, then the file does not know what
was said after the copy was made. Therefore a *mark* outside of the file, on another disk if
possible, holds the number of the last write. A file with fewer writes (`store/writes.py`) than its
mark says is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa

from fedtally.base.text import in_number
from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.store.database import (
    CHANGES,
    Database,
    SqliteConnection,
    StoreError,
    driver_connection,
    prepared,
)
from fedtally.store.marks import hold_mark, read_mark, write_mark
from fedtally.store.writes import count_write, writes_of

# Bytes in hexadecimal. SQLite does not enforce the length: it says what a column holds.
FINGERPRINT = sa.String(64)


def run_table(metadata: sa.MetaData, *columns: sa.Column[Any]) -> sa.Table:
    """Return the table of the one plan of a file, and of its claims."""
    return sa.Table(
        "fedtally_runs",
        metadata,
        sa.Column("plan", FINGERPRINT, primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),  # set by the first claim
        sa.Column("epoch", sa.BigInteger, nullable=False),  # the number of claims
        *columns,
        info=CHANGES,
    )


_runs = run_table(sa.MetaData())
# What each write runs, compiled once: see `prepared`.
_FIND_RUN = prepared(sa.select(_runs).where(_runs.c.plan == sa.bindparam("of")))
_FIND_EPOCH = prepared(
    sa.select(_runs.c.epoch).where(
        (_runs.c.plan == sa.bindparam("of")) & (_runs.c.epoch == sa.bindparam("epoch"))
    )
)


class ClaimedDatabase(Database):
    """An SQLite file of one plan, which one process at a time writes."""

    _runs: ClassVar[sa.Table]  # of `run_table`
    _put_back: ClassVar[str]  # what the owner of an old copy does
    _lost_mark: ClassVar[str]  # what the owner of a file without its mark does
    _held: ClassVar[str] = "campaign of plan"  # words before the name of what a file holds

    def _claim(self, plan: str, place: Path, owner: str) -> Claim:
        """Claim the file for this process.

        Args:
            plan: the fingerprint of the plan.
            place: the real path of the mark.
            owner: a name that the first claim writes into the row of the run.

        Raises:
            InvalidInputError: this file is of another plan, or has fewer writes than its mark says,
                because a copy was put back; or the mark is gone.
        """
        with self._marked(plan, place) as connection:
            self._check_alone(connection, plan)
            row, marked = self._run(connection, plan), read_mark(place, plan)
            number = _writes(connection, row)
            writes = in_number(number, "1 write", "{} writes")
            if marked is not None and number < marked:
                raise InvalidInputError(
                    f"{self.name} has {writes}, and its mark {place} says {marked}: a"
                    " copy was put back, which does not know what clients were told"
                    f" since; {self._put_back}"
                )
            if _lacks_mark(number, marked):
                raise InvalidInputError(
                    f"there is no mark at {place}, and {self.name} has {writes}: name its"
                    f" mark; if that is lost, {self._lost_mark}"
                )
            # The mark is written before the first write to the file. So a file with writes that
            # has no mark has lost its mark. And it has the number of the file before each write:
            # see `store/writes.py`.
            write_mark(place, plan, number)
            if row is None:
                connection.execute(sa.insert(self._runs).values(plan=plan, owner=owner, epoch=0))
            connection.execute(
                sa.update(self._runs)
                .where(self._runs.c.plan == plan)
                .values(epoch=self._runs.c.epoch + 1)
            )
            written = count_write(driver_connection(connection))
            claimed = self._run(connection, plan)
            assert claimed is not None
        return Claim(self, plan, claimed, written, place)

    @contextmanager
    def _marked(self, plan: str, mark: Path) -> Iterator[sa.Connection]:
        """Give a writing transaction of a plan; the mark then has its number of writes."""
        # Held before the mark is read, and until it is written: see `Claim.write`.
        with hold_mark(mark):
            with self._transaction(write=True) as connection:
                yield connection
                writes = writes_of(driver_connection(connection))
            write_mark(mark, plan, writes)

    def _check_alone(self, connection: sa.Connection, plan: str) -> None:
        """Refuse a file that holds another campaign.

        The number of writes counts all writes of the file. If two campaigns wrote into one file,
        new writes of one would hide that writes of the other are lost.
        """
        runs = self._runs
        other = connection.execute(sa.select(runs.c.plan).where(runs.c.plan != plan))
        if (found := other.scalar()) is not None:
            raise InvalidInputError(
                f"{self.name} holds the {self._held} {found[:16]}, and a file holds one: name"
                " another file"
            )

    def _is_put_back(self, plan: str, place: Path) -> bool:
        """Return whether `_claim` refuses the file: its mark has more writes, or is gone."""
        # The mark is read first: of a file that somebody writes meanwhile, it is behind the file.
        marked = read_mark(place, plan)
        with self._transaction(write=False) as connection:
            writes = _writes(connection, self._run(connection, plan))
        return writes < (marked or 0) or _lacks_mark(writes, marked)

    def _run(self, connection: sa.Connection, plan: str) -> sa.Row[Any] | None:
        return connection.exec_driver_sql(_FIND_RUN, {"of": plan}).first()


class Claim:
    """The right of one process to write a file, until another process claims it.

    Attributes:
        plan: the fingerprint of the plan.
        owner: the name that the first claim wrote.
        mark: the real path of the mark.
    """

    def __init__(
        self, database: ClaimedDatabase, plan: str, run: sa.Row[Any], writes: int, mark: Path
    ) -> None:
        self._database, self.plan, self.owner, self.mark = database, plan, run.owner, mark
        self._epoch = run.epoch
        self._written = writes  # as this process knows
        self._marked = writes  # what the mark surely counts, on the disk too

    def check(self) -> None:
        """Check that this process may write and speak; the mark then counts every write.

        Raises:
            OvertakenError: another process runs the campaign, or another copy of it.
            StoreError: the mark cannot be read or written.
        """
        with hold_mark(self.mark):
            with self._database._sqlite(write=False) as connection:
                writes = self._own_writes(connection)
            self._bring_mark(writes)

    def _own_writes(self, connection: SqliteConnection) -> int:
        """Return the number of writes so far, if this process is the last one that claimed."""
        known = {"of": self.plan, "epoch": self._epoch}
        if connection.execute(_FIND_EPOCH, known).fetchone() is None:
            raise OvertakenError(
                f"another process runs the {self._database._held} {self.plan[:16]}: this one"
                " must neither write nor speak; stop it"
            )
        # If this process went on writing, the mark would fall to the number of writes of the copy,
        # and nobody could tell any more that the file is a copy.
        writes = writes_of(connection)
        if writes < self._written:
            raise OvertakenError(
                f"a copy of {self._database.name} was put back while this process runs it:"
                " it must neither write nor speak; stop it, and"
                f" {self._database._put_back}"
            )
        return writes

    @contextmanager
    def write(self) -> Iterator[SqliteConnection]:
        """Give a transaction, if no later process has claimed; the mark is written after it."""
        # The mark is held before it is read, and until it is written: of two processes on two
        # copies of the file, the second one sees what the first one wrote.
        with hold_mark(self.mark), self.write_held() as connection:
            yield connection

    @contextmanager
    def write_held(self) -> Iterator[SqliteConnection]:
        """Do as `write`; the mark is held by the caller."""
        with self._database._sqlite(write=True) as connection:
            # More than this process knows of, if an earlier write failed and was committed all the
            # same.
            self._bring_mark(self._own_writes(connection))
            writes = count_write(connection)
            yield connection
        # The mark is written after the commit: a crash in between leaves a file with more writes
        # than its mark says, and such a file is not taken for a copy that was put back. A message
        # leaves only after its state and then the mark are written. So the mark counts the writes
        # of all that clients were told.
        self._written = writes
        write_mark(self.mark, self.plan, writes)
        self._marked = writes

    def _bring_mark(self, writes: int) -> None:
        """Bring the mark up to the writes of the file, unless it is there.

        Before something is said, since a write whose mark failed is in the file. Before the next
        write, since a copy without this one must be behind the mark (`store/writes.py`).
        """
        try:
            marked = read_mark(self.mark, self.plan)
        except UnreadableFileError as error:
            # The driver takes an UnreadableFileError for a damaged session, which it may give up.
            raise StoreError(str(error)) from error
        if marked is not None and marked > writes:
            raise OvertakenError(
                f"another process runs another copy of {self._database.name}, as the mark"
                f" {self.mark} shows: this process must neither write nor speak; stop it"
            )
        if self._marked != writes:
            write_mark(self.mark, self.plan, writes)
            self._marked = writes


def _writes(connection: sa.Connection, run: sa.Row[Any] | None) -> int:
    """Return the writes of the file; 0 if it knows nothing of the campaign of the run."""
    return 0 if run is None else writes_of(driver_connection(connection))


def _lacks_mark(writes: int, marked: int | None) -> bool:
    """Tell whether the mark is gone."""
    return writes > 0 and marked is None
