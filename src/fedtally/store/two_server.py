"""The disk of one of two servers: the facts that it must never forget, and the reports of clients.

`Batches` is an SQLite file of one server and one plan. `Batches.claim` gives its `BatchStore` to
one process, which is then the only one that can write (`store/claims.py`). The store is the journal
of the server, and holds the frames of the reports of each release until its batch is closed. Frames
are sealed as clients sent them: without the secret key of the plan nobody reads them.

`Batch` is a server together with its store, under one lock. It takes reports in groups, a
transaction each: a report costs much less than alone, and no sender hears "accepted" before the
group is on disk. A fact of another kind has a transaction of its own. A query that left while the
record of its batch could still be rolled back could be followed by a second one.

A copy of the file is never put back: it would open a second sum of almost the same clients. The
mark refuses it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import RLock
from typing import Generic, Self, TypeVar

import sqlalchemy as sa

from fedtally.base.links import real_path
from fedtally.errors import InvalidInputError, OvertakenError
from fedtally.plan import Plan
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server import Helper, Leader, Outcome, Side
from fedtally.store.campaigns import Campaigns
from fedtally.store.claims import Claim, ClaimedDatabase, run_table
from fedtally.store.database import CHANGES, SqliteConnection, file_url, opened, prepared
from fedtally.store.writes import write_tables

ERASED_AT_ONCE = 1024  # reports in a transaction: what is erased is in SQLite's journal until then
_ANSWER = b"answer"  # stands where the id of a report does, and is no id: it is too short
_metadata = sa.MetaData()
_runs = run_table(_metadata)
_facts = sa.Table(
    "fedtally_facts",
    _metadata,
    sa.Column("name", sa.LargeBinary, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,  # else the long names would be in the file twice
)
_reports = sa.Table(
    "fedtally_reports",
    _metadata,
    sa.Column("first_round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("last_round", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("id", sa.LargeBinary, primary_key=True),
    sa.Column("frame", sa.LargeBinary, nullable=False),
    info=CHANGES,
)
write_tables(_metadata)

_of_batch = (_reports.c.first_round == sa.bindparam("first")) & (
    _reports.c.last_round == sa.bindparam("last")
)
_FIND_FACT = prepared(sa.select(_facts.c.value).where(_facts.c.name == sa.bindparam("of")))
_ADD_FACT = prepared(sa.insert(_facts))
_PUT = prepared(sa.insert(_reports).prefix_with("OR REPLACE"))
_FIND_FRAME = prepared(
    sa.select(_reports.c.frame).where(_of_batch & (_reports.c.id == sa.bindparam("of")))
)
_FIND_IDS = prepared(sa.select(_reports.c.id).where(_of_batch))
_ERASE = prepared(sa.delete(_reports).where(_of_batch & (_reports.c.id == sa.bindparam("of"))))
Server = TypeVar("Server", Leader, Helper)


class Batches(ClaimedDatabase):
    """The SQLite file of one of two servers. Made by `open`.

    >>> import tempfile
    >>> import fedtally
    >>> plan = fedtally.estimate([1, 2] * 5, domain="range:1..2", secure_sum="two-server").plan
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Batches.open(f"{folder}/leader.db", create=True)
    ...     store = file.claim(plan, "leader", mark=f"{folder}/leader.mark")
    ...     print(store.keep(b"a fact", b"first"), store.keep(b"a fact", b"second"))
    ...     print(store.reports(plan.releases[0]).ids())
    b'first' b'first'
    []
    """

    _kind = "batches"
    _anew = "finish its releases with the fedtally that began them, or begin with a new plan"
    _metadata = _metadata
    _runs = _runs
    _put_back = (
        "its open releases are lost: put no copy back, end both servers (fedtally aggregate leader,"
        " or helper, retire NAME --give-up), and begin with new keys and a new plan"
    )
    _lost_mark = f"nobody knows whether this is an old copy, and {_put_back}"

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Self:
        """Open the file of a server.

        Args:
            path: the path of the SQLite file.
            create: make the file, or the tables in it, if they are missing.

        Raises:
            UnreadableFileError: the file holds no batches, or batches of another version, or is a
                file of another kind.
            StoreError: the database does not answer.
        """
        return opened(cls, file_url(os.fspath(path)), create)

    def kept(self, name: bytes) -> bytes | None:
        """Return what a server keeps under a name, or None; its process is not disturbed."""
        with self._sqlite(write=False) as connection:
            return _found(connection, name)

    def claim(self, plan: Plan, side: Side, *, mark: str | os.PathLike[str]) -> BatchStore:
        """Return the store of a server, for this process alone.

        The process that claimed it before can write nothing any more.

        Args:
            plan: the plan of the campaign.
            side: the server whose file it is; the first claim decides.
            mark: the path of the mark, outside of this file and of its backups.

        Raises:
            InvalidInputError: this file is of the other server or of another plan, or has fewer
                writes than its mark says, because a copy was put back; or the mark is gone.
        """
        with self._transaction(write=False) as connection:
            row = self._run(connection, plan.fingerprint)
        if row is not None and row.owner != side:
            raise InvalidInputError(
                f"{self.name} is the file of the {row.owner}: name the one of the {side}"
            )
        return BatchStore(self, self._claim(plan.fingerprint, real_path(mark), side))


@dataclass
class _Group:
    """A transaction of several reports.

    Attributes:
        connection: the connection that it is open on.
        put: the ids of the reports that it writes.
    """

    connection: SqliteConnection
    put: list[bytes] = field(default_factory=list)


class AggregateBooks(Campaigns):
    """The sums of one of two servers that landed: a file beside that of its reports.

    What `fedtally campaign restore` does for a copy of one server's file nobody may do for this.
    """

    _put_back = Batches._put_back
    _lost_mark = Batches._lost_mark


class BatchStore:
    """The journal and the reports of a server, for the process that claimed its file.

    It is a `two_server.Journal`. All methods may be called from several threads: they wait for each
    other. Once another process has claimed the file, each method that writes raises
    `OvertakenError` and changes nothing.
    """

    def __init__(self, batches: Batches, claim: Claim) -> None:
        self._batches, self._claim = batches, claim
        self.lock = RLock()  # of this store, and of the servers that it belongs to
        self._group: _Group | None = None

    def kept(self, name: bytes) -> bytes | None:
        """Return what is kept under a name, or None; in a group, also what the group writes."""
        with self.reading() as connection:
            return _found(connection, name)

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Keep a value under a name, unless one is kept there; return the one that is kept.

        Raises:
            LocalProtocolError: a group is open in this thread. With the group the fact would be
                rolled back, after the caller believed that it was on disk.
            OvertakenError: another process runs the campaign, or another copy of it.
            StoreError: it was not written, or it is not known whether it was.
        """
        with self.writing() as connection:
            found = _found(connection, name)
            if found is not None:
                return found
            connection.execute(_ADD_FACT, {"name": name, "value": value})
            return value

    def reports(self, rounds: range) -> StoredReports:
        """Return the place of the reports of a release, by its rounds."""
        return StoredReports(self, rounds)

    def check_claim(self) -> None:
        """Check that this process may write and speak.

        Raises:
            OvertakenError: another process runs the campaign, or another copy of it.
        """
        with self.lock:
            self._claim.check()

    @contextmanager
    def group(self) -> Iterator[_Group]:
        """Put all reports of the block into one transaction; give it, with the ids that it writes.

        If it raises, at its end as well, the server must `withdraw` these ids.
        """
        with self.writing() as connection:
            self._group = _Group(connection)
            try:
                yield self._group
            finally:
                self._group = None

    @contextmanager
    def joined(self) -> Iterator[_Group]:
        """Give the group that is open in this thread, or one for this block alone."""
        with self.lock:
            if self._group is not None:
                yield self._group
                return
            with self.group() as group:
                yield group

    @contextmanager
    def reading(self) -> Iterator[SqliteConnection]:
        """Give a connection to read from: the group's own, if one is open in this thread."""
        with self.lock:
            if self._group is not None:
                yield self._group.connection
                return
            with self._batches._sqlite(write=False) as connection:
                yield connection

    @contextmanager
    def writing(self) -> Iterator[SqliteConnection]:
        """Give a transaction of its own, after which the mark is written."""
        with self.lock:
            if self._group is not None:
                raise LocalProtocolError(
                    "a group of reports is open: a fact is written before it, or after it"
                )
            with self._claim.write() as connection:
                yield connection


class StoredReports:
    """The frames of the reports of one release, and its answer: a `two_server.Reports`."""

    def __init__(self, store: BatchStore, rounds: range) -> None:
        self._store, self._of = store, {"first": rounds[0], "last": rounds[-1]}

    def ids(self) -> list[bytes]:
        """Return the ids of all reports."""
        with self._store.reading() as connection:
            return [id for (id,) in connection.execute(_FIND_IDS, self._of) if id != _ANSWER]

    def put(self, id: bytes, frame: bytes, names: Sequence[bytes]) -> bool:
        """Keep a frame, and its SHA-256 in the journal under each name; return whether it is kept.

        It is one transaction; or it is part of the group that is open.
        """
        this = hashlib.sha256(frame).digest()
        with self._store.joined() as group:
            known = {name: _found(group.connection, name) for name in names}
            if any(value not in (None, this) for value in known.values()):
                return False
            new = [{"name": name, "value": this} for name in names if known[name] is None]
            group.connection.executemany(_ADD_FACT, new)
            self._write(group.connection, id, frame)
            group.put.append(id)
        return True

    def frames(self, ids: Sequence[bytes]) -> list[bytes | None]:
        """Return the frames of these ids, in their order; None for each that is not there."""
        with self._store.reading() as connection:
            return [self._frame(connection, id) for id in ids]

    def keep_answer(self, sealed: bytes) -> None:
        """Keep the sealed answer of the helper in the place of an earlier one."""
        with self._store.writing() as connection:
            self._write(connection, _ANSWER, sealed)

    def answer(self) -> bytes | None:
        """Return the sealed answer that is kept, or None."""
        with self._store.reading() as connection:
            return self._frame(connection, _ANSWER)

    def erase(self) -> None:
        """Erase all frames and the answer; again, if an earlier call was cut off."""
        while some := self._some():
            with self._store.writing() as connection:
                connection.executemany(_ERASE, [self._of | {"of": id} for id in some])

    def _some(self) -> list[bytes]:
        """Return a few of the ids that are there, and of the answer."""
        with self._store.reading() as connection:
            found = connection.execute(_FIND_IDS, self._of).fetchmany(ERASED_AT_ONCE)
        return [id for (id,) in found]

    def _frame(self, connection: SqliteConnection, id: bytes) -> bytes | None:
        row = connection.execute(_FIND_FRAME, self._of | {"of": id}).fetchone()
        return None if row is None else bytes(row[0])

    def _write(self, connection: SqliteConnection, id: bytes, frame: bytes) -> None:
        row = {"first_round": self._of["first"], "last_round": self._of["last"]}
        connection.execute(_PUT, row | {"id": id, "frame": frame})


class Batch(Generic[Server]):
    """A server of a batch, and its store, under one lock.

    Args:
        store: the journal of the server, which also has its reports.
        server: a server made with this store, as by `FrequencyServer.leader`; nobody else calls it.
    """

    def __init__(self, store: BatchStore, server: Server) -> None:
        self._store = store
        self._server: Server = server

    @contextmanager
    def server(self) -> Iterator[Server]:
        """Give the server, to stop, judge, ask, answer and finish: no group is open meanwhile."""
        with self._store.lock:
            yield self._server

    def take(self, frames: Sequence[bytes], now: int) -> list[Outcome | Exception]:
        """Receive reports in one transaction; it is over when this returns.

        If the transaction fails, it is as if none of them had come. Then each is taken by itself,
        so that what one of them does to the server or the disk is its own.

        Args:
            frames: the frames that clients sent.
            now: seconds since 1970.

        Returns:
            The outcome of each report, or what it raised: then its client may send it again.

        Raises:
            OvertakenError: another process runs the campaign, or another copy of it.
        """
        try:
            return [*self._group(frames, now)]
        except OvertakenError:
            raise
        except Exception:
            return [self._alone(frame, now) for frame in frames]

    def _group(self, frames: Sequence[bytes], now: int) -> list[Outcome]:
        put: list[bytes] = []
        with self._store.lock:
            try:
                with self._store.group() as group:
                    put = group.put
                    return [self._server.receive(frame, now) for frame in frames]
            except BaseException:  # the process may go on after any of them
                self._server.withdraw(self._not_on_disk(put))
                raise

    def _not_on_disk(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return which reports of a group that failed are not in the file.

        It may have failed after its commit, when the mark was written. What is in the file counts
        at the next start. So it counts now, too: else a batch has room for more than it may have.
        """
        try:
            found = self._store.reports(self._server.rounds).frames(ids)
        except Exception:  # nobody knows: they may come again
            return list(ids)
        return [id for id, frame in zip(ids, found, strict=True) if frame is None]

    def _alone(self, frame: bytes, now: int) -> Outcome | Exception:
        try:
            return self._group([frame], now)[0]
        except OvertakenError:
            raise
        except Exception as error:
            return error


def _found(connection: SqliteConnection, name: bytes) -> bytes | None:
    row = connection.execute(_FIND_FACT, {"of": name}).fetchone()
    return None if row is None else bytes(row[0])
