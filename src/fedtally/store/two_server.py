"""The disk of one of two servers: what it must never forget, and the reports of clients.

`Batches` is the SQLite file of one server for one plan. `Batches.claim` gives one process the
`BatchStore`, the right to write (`store/claims.py`). The store is the server's journal: it keeps
*facts*, values under names, for ever. It also holds the reports of each release until the batch
(the reports that are opened together) is closed. A report is stored as the client sealed it: nobody
can read it without the server's secret key.

`Batch` is a server with its store, under one lock. It takes several reports in one transaction, a
*group*. A report in a group costs much less than a report with a transaction of its own. No client
hears "accepted" before the group is on disk. A fact that is not about a report, such as which batch
was closed, has a transaction of its own. In a group, such a fact could be rolled back after the
server sent a message that depends on the fact. The server could then send a second message with
another content.

An old copy of the file must never be used: with it, a second sum of almost the same clients could
be opened. The mark (`store/marks.py`) shows that a copy is old, and the copy is refused.
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

# The most reports that one transaction erases. Until its end, they stand in SQLite's journal.
ERASED_AT_ONCE = 1024
_ANSWER = b"answer"  # in the column of ids, the name of the helper's answer; too short to be an id
_metadata = sa.MetaData()
_runs = run_table(_metadata)
_facts = sa.Table(
    "fedtally_facts",
    _metadata,
    sa.Column("name", sa.LargeBinary, primary_key=True),
    sa.Column("value", sa.LargeBinary, nullable=False),
    sqlite_with_rowid=False,  # otherwise the long names would be stored twice
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
    """The SQLite file of one of two servers, for one plan; `open` makes one.

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
        """Open the SQLite file of a server.

        Args:
            path: the path of the SQLite file.
            create: whether to make the file, or the tables in it, if they are missing.

        Raises:
            UnreadableFileError: the file is missing, is of another kind, or was made by another
                version of fedtally.
            StoreError: the database cannot be used, for instance because it is locked.
        """
        return opened(cls, file_url(os.fspath(path)), create)

    def kept(self, name: bytes) -> bytes | None:
        """Return the fact that the server keeps under a name; None if no fact has this name.

        It needs no claim, and the server's process may write meanwhile.
        """
        with self._sqlite(write=False) as connection:
            return _found(connection, name)

    def claim(self, plan: Plan, side: Side, *, mark: str | os.PathLike[str]) -> BatchStore:
        """Return the store of a server, with which only this process may write.

        A process that claimed the file before can write nothing any more.

        Args:
            plan: the plan of the campaign.
            side: the server, `leader` or `helper`; the first claim fixes it for this file.
            mark: the path of the mark, a small file that shows whether this file is an old copy
                (`store.marks`). It must not be in the backups of this file.

        Raises:
            InvalidInputError: this file belongs to the other server or to another plan; it has
                fewer writes than its mark, since an old copy was put back; or it has writes but no
                mark.
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
    """A transaction in which several reports are stored.

    Attributes:
        connection: the connection of the transaction.
        put: the ids of the reports that were written so far.
    """

    connection: SqliteConnection
    put: list[bytes] = field(default_factory=list)


class AggregateBooks(Campaigns):
    """The file with the landed sums of one of two servers, beside the file with its reports.

    Unlike a copy of a single server's file, a copy of this file cannot be made usable: nobody may
    put one back.
    """

    _put_back = Batches._put_back
    _lost_mark = Batches._lost_mark


class BatchStore:
    """The journal and the reports of one of two servers, for the process that claimed their file.

    It implements `two_server.Journal`. Several threads may call its methods, and wait for each
    other. Once another process has claimed the file, each method that writes raises
    `OvertakenError` and changes nothing.
    """

    def __init__(self, batches: Batches, claim: Claim) -> None:
        self._batches, self._claim = batches, claim
        self.lock = RLock()  # for this store, and for the servers that use it
        self._group: _Group | None = None

    def kept(self, name: bytes) -> bytes | None:
        """Return the fact that is kept under a name; None if no fact has this name.

        In a group, facts that the group has written are found, too.
        """
        with self.reading() as connection:
            return _found(connection, name)

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Keep a value under a name for ever, unless the name has one; return the kept value.

        Raises:
            LocalProtocolError: a group is open in this thread. If the group failed, this fact would
                be rolled back, although the caller believes that it is on disk.
            OvertakenError: another process claimed the file, or runs another copy of it.
            StoreError: the value was not written, or nobody knows whether it was.
        """
        with self.writing() as connection:
            found = _found(connection, name)
            if found is not None:
                return found
            connection.execute(_ADD_FACT, {"name": name, "value": value})
            return value

    def reports(self, rounds: range) -> StoredReports:
        """Return the stored reports of the release that adds up these rounds."""
        return StoredReports(self, rounds)

    def check_claim(self) -> None:
        """Check that this process may write and send messages.

        Raises:
            OvertakenError: another process claimed the file, or runs another copy of it.
        """
        with self.lock:
            self._claim.check()

    @contextmanager
    def group(self) -> Iterator[_Group]:
        """Put all reports that are stored in the `with` block into one transaction.

        Yields the group. If the block or the commit raises, the server must `withdraw` the reports
        in `put` of the group.
        """
        with self.writing() as connection:
            self._group = _Group(connection)
            try:
                yield self._group
            finally:
                self._group = None

    @contextmanager
    def joined(self) -> Iterator[_Group]:
        """Yield the group that is open in this thread; if no group is open, open a new one."""
        with self.lock:
            if self._group is not None:
                yield self._group
                return
            with self.group() as group:
                yield group

    @contextmanager
    def reading(self) -> Iterator[SqliteConnection]:
        """Yield a connection to read from; in a group, the group's connection."""
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
    """The stored reports of one release, and the helper's answer: a `two_server.Reports`."""

    def __init__(self, store: BatchStore, rounds: range) -> None:
        self._store, self._of = store, {"first": rounds[0], "last": rounds[-1]}

    def ids(self) -> list[bytes]:
        """Return the ids of the release's stored reports, in no special order."""
        with self._store.reading() as connection:
            return [id for (id,) in connection.execute(_FIND_IDS, self._of) if id != _ANSWER]

    def put(self, id: bytes, frame: bytes, names: Sequence[bytes]) -> bool:
        """Store a report's frame, and keep its SHA-256 as a fact under each name.

        Returns False, and stores nothing, if a name already has the SHA-256 of another frame. All
        is in one transaction, or in the open group.

        Args:
            id: the id of the report.
            frame: the report, as the client sealed it.
            names: names of facts, such as one for the report's id and one for its client. Each name
                admits one frame only, for ever.
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
        """Return the frames of these ids, in their order; None for an id that is missing."""
        with self._store.reading() as connection:
            return [self._frame(connection, id) for id in ids]

    def keep_answer(self, sealed: bytes) -> None:
        """Store the helper's sealed answer, in place of an earlier answer."""
        with self._store.writing() as connection:
            self._write(connection, _ANSWER, sealed)

    def answer(self) -> bytes | None:
        """Return the helper's sealed answer; None if none is stored."""
        with self._store.reading() as connection:
            return self._frame(connection, _ANSWER)

    def erase(self) -> None:
        """Erase all frames and the answer, in several transactions.

        If it was interrupted, call it again.
        """
        while some := self._some():
            with self._store.writing() as connection:
                connection.executemany(_ERASE, [self._of | {"of": id} for id in some])

    def _some(self) -> list[bytes]:
        """Return up to `ERASED_AT_ONCE` ids of stored rows: of reports, and `_ANSWER`."""
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
    """One of two servers with its store, under one lock, so that several threads can use it.

    Args:
        store: the server's journal, which also holds its reports.
        server: the server, made with this store (for instance by `FrequencyServer.leader`). It must
            be called only through this object.
    """

    def __init__(self, store: BatchStore, server: Server) -> None:
        self._store = store
        self._server: Server = server

    @contextmanager
    def server(self) -> Iterator[Server]:
        """Yield the server for the `with` block, in which no other thread can use it.

        Use it for all calls of the server but receiving reports (`take`).
        """
        with self._store.lock:
            yield self._server

    def take(self, frames: Sequence[bytes], now: int) -> list[Outcome | Exception]:
        """Receive several reports in one transaction, which has ended when the method returns.

        If the transaction fails, each report is received again in a transaction of its own, so that
        a report that fails does not affect the others. The failed transaction has stored no report,
        with one exception: if only the mark could not be written, all reports are stored.

        Args:
            frames: the reports, as clients sent them.
            now: the time, Unix seconds.

        Returns:
            For each report its outcome, or the exception that it raised; its client may then send
            it again.

        Raises:
            OvertakenError: another process claimed the file, or runs another copy of it.
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
            except BaseException:  # a caller may catch it and go on, whatever its class
                self._server.withdraw(self._not_on_disk(put))
                raise

    def _not_on_disk(self, ids: Sequence[bytes]) -> list[bytes]:
        """Return those ids of a failed group whose reports are not in the file.

        If the file cannot be read, all `ids` are returned.

        A group may fail after its commit, while the mark is written. The reports that are in the
        file count at the next start, so they must count now, too. Otherwise the batch would accept
        more reports than it may hold.
        """
        try:
            found = self._store.reports(self._server.rounds).frames(ids)
        except Exception:  # unknown: clients may send them again
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
