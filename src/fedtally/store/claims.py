"""Claims: only one process at a time may write a file, and an old copy of the file is refused.

Each claim gives its process a higher number, the *epoch*, which the file stores. Each writing
transaction first checks that the file still has the epoch of its process. So a process cannot write
after another process has claimed the file.

An operator may *put back* an old copy of the file, such as a backup. The copy does not know which
messages were sent after it was made. Therefore a *mark*, a small file outside of the database and
if possible on another disk, holds the number of the last write. A file with fewer writes
(`store/writes.py`) than its mark is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

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
from fedtally.store.marks import hold_mark, is_empty, read_mark, write_mark
from fedtally.store.writes import count_write, writes_of

# The type of a column with a fingerprint in hexadecimal. SQLite does not enforce the length.
FINGERPRINT = sa.String(64)


def run_table(metadata: sa.MetaData, *columns: sa.Column[Any]) -> sa.Table:
    """Add the table of a file's plan, owner and epoch to the metadata, and return the table.

    Args:
        metadata: the metadata of the file's tables.
        columns: further columns of the table.
    """
    return sa.Table(
        "fedtally_runs",
        metadata,
        sa.Column("plan", FINGERPRINT, primary_key=True),
        sa.Column("owner", sa.String(200), nullable=False),  # set by the first claim
        sa.Column("epoch", sa.BigInteger, nullable=False),  # made larger by each claim
        *columns,
        info=CHANGES,
    )


_runs = run_table(sa.MetaData())
# Run with each write, so they are compiled once: see `prepared`.
_FIND_RUN = prepared(sa.select(_runs).where(_runs.c.plan == sa.bindparam("of")))
_FIND_EPOCH = prepared(
    sa.select(_runs.c.epoch).where(
        (_runs.c.plan == sa.bindparam("of")) & (_runs.c.epoch == sa.bindparam("epoch"))
    )
)


class ClaimedDatabase(Database):
    """An SQLite file for one plan, which one process at a time may write."""

    _runs: ClassVar[sa.Table]  # made by `run_table`
    _put_back: ClassVar[str]  # for messages: what to do with an old copy
    _lost_mark: ClassVar[str]  # for messages: what to do if the mark is lost
    _held: ClassVar[str] = "campaign of plan"  # for messages: the words before a plan's fingerprint

    def _claim(self, plan: str, place: Path, owner: str) -> Claim:
        """Claim the file for this process: from now on, no earlier process can write it.

        Args:
            plan: the fingerprint of the plan.
            place: the path of the mark, with symbolic links resolved.
            owner: the name of the run; only the first claim stores it.

        Raises:
            InvalidInputError: this file holds another plan; it has fewer writes than its mark,
                since an old copy was put back; or it has writes, and no mark or an empty one.
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
                self._refuse_unmarked(place, writes)
            # The mark is written first. Otherwise a crash could leave a file with writes and no
            # mark, which would be taken for a lost mark. Also, the mark must have the file's number
            # before each write (`store/writes.py`).
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

    def _refuse_unmarked(self, place: Path, writes: str) -> NoReturn:
        """Refuse a file whose mark is missing or empty, with an InvalidInputError.

        Args:
            place: the path of the mark.
            writes: how many writes the file has, in words.
        """
        if is_empty(place):
            raise InvalidInputError(
                f"the mark {place} is empty, and {self.name} has {writes}: name its mark; if that"
                f" is lost, {self._lost_mark}"
            )
        raise InvalidInputError(
            f"there is no mark at {place}, and {self.name} has {writes}: name its mark; if that is"
            f" lost, {self._lost_mark}"
        )

    def is_claimed(self) -> bool:
        """Return whether a process ever claimed this file, for whichever plan."""
        with self._transaction(write=False) as connection:
            return connection.execute(sa.select(self._runs.c.plan)).first() is not None

    @contextmanager
    def _marked(self, plan: str, mark: Path) -> Iterator[sa.Connection]:
        """Run a writing transaction with the mark locked; after its commit, write the mark.

        Yields the connection. The block must call `count_write` if it changes the file.
        """
        # Locked from before the mark is read until it is written: see `Claim.write`.
        with hold_mark(mark):
            with self._transaction(write=True) as connection:
                yield connection
                writes = writes_of(driver_connection(connection))
            write_mark(mark, plan, writes)

    def _check_alone(self, connection: sa.Connection, plan: str) -> None:
        """Refuse a file that holds a campaign of another plan, with an InvalidInputError.

        The number of writes counts all writes to the file. If two campaigns shared a file, new
        writes of one could hide that writes of the other are lost.
        """
        runs = self._runs
        other = connection.execute(sa.select(runs.c.plan).where(runs.c.plan != plan))
        if (found := other.scalar()) is not None:
            raise InvalidInputError(
                f"{self.name} holds the {self._held} {found[:16]}, and a file holds one: name"
                " another file"
            )

    def _is_put_back(self, plan: str, place: Path) -> bool:
        """Return whether `_claim` would refuse the file because of its mark.

        This is so if the file has fewer writes than its mark, or has writes, and no mark or an
        empty one.
        """
        # The mark is read first. Otherwise, if another process writes in between, the mark would be
        # ahead, and the file would be taken for an old copy.
        marked = read_mark(place, plan)
        with self._transaction(write=False) as connection:
            writes = _writes(connection, self._run(connection, plan))
        return writes < (marked or 0) or _lacks_mark(writes, marked)

    def _run(self, connection: sa.Connection, plan: str) -> sa.Row[Any] | None:
        return connection.exec_driver_sql(_FIND_RUN, {"of": plan}).first()


class Claim:
    """The right of one process to write a file; it ends when another process claims the file.

    Attributes:
        plan: the fingerprint of the plan.
        owner: the name of the run that the first claim stored.
        mark: the path of the mark, with symbolic links resolved.
    """

    def __init__(
        self, database: ClaimedDatabase, plan: str, run: sa.Row[Any], writes: int, mark: Path
    ) -> None:
        self._database, self.plan, self.owner, self.mark = database, plan, run.owner, mark
        self._epoch = run.epoch
        self._written = writes  # the last number of writes that this process saw in the file
        self._marked = writes  # the last number that this process wrote to the mark

    def check(self) -> None:
        """Check that this process may write and send messages, and bring the mark up to date.

        Call it before a message is sent. Then the mark counts every write that the message may
        show, even if a mark could not be written earlier.

        Raises:
            OvertakenError: another process claimed the file, or runs another copy of it; or an old
                copy was put back.
            StoreError: the mark cannot be read or written.
        """
        with hold_mark(self.mark):
            with self._database._sqlite(write=False) as connection:
                writes = self._own_writes(connection)
            self._bring_mark(writes)

    def _own_writes(self, connection: SqliteConnection) -> int:
        """Return the file's number of writes, after checking that this process still has the claim.

        Raises:
            OvertakenError: another process claimed the file, or an old copy was put back.
        """
        known = {"of": self.plan, "epoch": self._epoch}
        if connection.execute(_FIND_EPOCH, known).fetchone() is None:
            raise OvertakenError(
                f"another process runs the {self._database._held} {self.plan[:16]}: this one"
                " must neither write nor speak; stop it"
            )
        # Without this check, this process would set the mark to the copy's smaller number, and
        # nothing would show any more that the file is an old copy.
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
        """Run a writing transaction with the mark locked; after its commit, write the mark.

        Yields the connection.

        Raises:
            OvertakenError: another process claimed the file, or runs another copy of it; or an old
                copy was put back.
            StoreError: the database or the mark cannot be read or written.
        """
        # Locked from before the mark is read until it is written. Otherwise two processes with two
        # copies of the file could both read the old number, and both write.
        with hold_mark(self.mark), self.write_held() as connection:
            yield connection

    @contextmanager
    def write_held(self) -> Iterator[SqliteConnection]:
        """Run a writing transaction like `write`, for a caller that has already locked the mark."""
        with self._database._sqlite(write=True) as connection:
            # The file may have more writes than this process knows: a commit may raise an error,
            # and be on the disk nevertheless.
            self._bring_mark(self._own_writes(connection))
            writes = count_write(connection)
            yield connection
        # The mark is written after the commit: a crash in between leaves a file with more writes
        # than its mark, which is not taken for an old copy. Messages are sent only after the mark
        # is written. So the mark counts every write whose message a client may have seen.
        self._written = writes
        write_mark(self.mark, self.plan, writes)
        self._marked = writes

    def _bring_mark(self, writes: int) -> None:
        """Write the file's number of writes to the mark, unless this process wrote it already.

        It must be called before a message is sent: an earlier write may be in the file although its
        mark could not be written. It must also be called before the next write: then a copy without
        that write is behind the mark (`store/writes.py`).

        Args:
            writes: the file's number of writes.

        Raises:
            OvertakenError: the mark has a larger number, since another process runs another copy of
                the file.
            StoreError: the mark cannot be read or written.
        """
        try:
            marked = read_mark(self.mark, self.plan)
        except UnreadableFileError as error:
            # Not UnreadableFileError, which the driver takes for a damaged session: it could end
            # the session.
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
    """Return the file's number of writes; 0 if `run` is None (before the plan's first claim)."""
    return 0 if run is None else writes_of(driver_connection(connection))


def _lacks_mark(writes: int, marked: int | None) -> bool:
    """Return whether a file has writes, and no mark or an empty one: its number must be lost."""
    return writes > 0 and marked is None
