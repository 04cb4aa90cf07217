"""The memory of a campaign's server: its sessions, the clients it asked, and the sums that landed.

A sum *lands* when it is stored and counts for its round. `Campaigns` is the SQLite file of one
campaign, which may also hold a ledger. `Campaigns.claim` gives one process a `CampaignStore`, the
right to write; a process that had claimed the campaign before can then write nothing any more
(`store/claims.py`).

Rows of open sessions and of sums are changed and erased. Nothing of an erased row stays in the
file: SQLite overwrites what it deletes (`secure_delete`), and keeps no write-ahead log. Three kinds
of rows are append-only: the clients that were asked, the sessions whose sums landed, and the
sessions without a sum, each with the reason.

A *put back* file is an old copy, such as a backup, in place of the newer file. `Campaigns.claim`
refuses it. `Campaigns.give_up` makes it usable, and ends all sessions in it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from fedtally.base.links import real_path
from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.plan import Plan, Sums
from fedtally.privacy.budget import Charge, checked_name
from fedtally.secagg import wire
from fedtally.secagg.messages import ServerState
from fedtally.secagg.server import ClientId
from fedtally.sketch import CountSketch, summed
from fedtally.store.claims import Claim, ClaimedDatabase, run_table
from fedtally.store.database import (
    CHANGES,
    MOST_NAME_BYTES,
    SqliteConnection,
    driver_connection,
    file_url,
    opened,
    prepared,
    seconds,
    time_column,
)
from fedtally.store.ledger import Ledger, Reservation
from fedtally.store.marks import hold_mark, read_mark
from fedtally.store.room import check_room
from fedtally.store.writes import (
    is_of_one_moment,
    set_writes,
    write_tables,
    writes_of,
)

_ROOM = 1 << 20  # bytes of disk for a write, in addition to its session's checkpoint
IMPOSSIBLE = "impossible sum: "  # begins `SavedSession.why` if no honest vectors could have the sum
# The types of columns with the name of a session of `secagg`, and with the name of a sum. Names are
# bytes, stored in hexadecimal. A sum of a session of `secagg` has the session's name, 32 bytes. A
# sum that two servers made has a name of up to 64 bytes. SQLite does not enforce these lengths.
# They must not change, since existing files have them in their schema.
_SESSION = sa.String(2 * wire.SESSION_BYTES)
_SUM_NAME = sa.String(2 * MOST_NAME_BYTES)
_metadata = sa.MetaData()
_runs = run_table(
    _metadata,
    # Always 0, since `store/writes.py` counts the writes. It stays: it is in the schema of existing
    # files.
    sa.Column("writes", sa.BigInteger, nullable=False, default=0),
)
_sessions = sa.Table(
    "fedtally_campaign_sessions",
    _metadata,
    sa.Column("session", _SESSION, primary_key=True),
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("phase", sa.String(20), nullable=False),
    sa.Column("clients", sa.Text, nullable=False),  # JSON: names are texts or integers
    sa.Column("soft", sa.BigInteger, nullable=False),  # soft and hard: `SavedSession.closes`
    sa.Column("hard", sa.BigInteger, nullable=False),
    sa.Column("not_after", sa.BigInteger, nullable=False),
    sa.Column("checkpoint", sa.LargeBinary),
    sa.Column("farewell", sa.LargeBinary),
    info=CHANGES,
)
_asked = sa.Table(
    "fedtally_asked",
    _metadata,
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("client", sa.Text, primary_key=True),  # JSON
    sa.Column("session", _SESSION, nullable=False),
)
_landed = sa.Table(
    "fedtally_landed",
    _metadata,
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), primary_key=True),
    sa.Column("session", _SUM_NAME, primary_key=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("clients", sa.BigInteger, nullable=False),
    time_column(),
)
_failed = sa.Table(
    "fedtally_failed",
    _metadata,
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), primary_key=True),
    sa.Column("session", _SESSION, primary_key=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)
_sums = sa.Table(
    "fedtally_sums",
    _metadata,
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), primary_key=True),
    sa.Column("session", _SUM_NAME, primary_key=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("sketch", sa.LargeBinary, nullable=False),
    info=CHANGES,
)
write_tables(_metadata)


@dataclass(frozen=True)
class SavedSession:
    """One session (one secure sum among the clients of a cohort), as a store keeps it.

    Attributes:
        session: the session's name, 32 bytes.
        round: the round of the campaign that the session sums.
        clients: the clients that the session asked, by the names that the transport uses. Once the
            session has ended: the clients that still need its farewell.
        checkpoint: the bytes from which the session's state machine goes on. None: the session has
            ended, and the bytes are erased.
        closes: two times, in Unix seconds. From the first time on, the present phase closes as soon
            as the session can go on without the clients that have not answered. At the second time,
            the phase closes in any case.
        not_after: the time after which the session ends without a sum, Unix seconds.
        farewell: the session's last frame, the same for all clients. None: the session goes on.
        version: the number of times that the session was written. A store writes version n + 1 only
            over version n.
        phase: the state of the session's state machine, a value of `secagg.messages.ServerState`.
        why: the reason why the session has no sum. None: the session goes on or has a sum. Also
            None in every object that `CampaignStore.sessions` returns: the file keeps the reason,
            but only `Campaigns.status` and `Campaigns.list` return it.
    """

    session: bytes
    round: int
    clients: tuple[ClientId, ...]
    checkpoint: bytes | None
    closes: tuple[int, int]
    not_after: int
    farewell: bytes | None = None
    version: int = 0
    phase: str = ServerState.ADVERTISE.value
    why: str | None = None


@dataclass(frozen=True)
class OpenSession:
    """A session that has not ended, as an operator sees it.

    Attributes:
        session: the session's name, 32 bytes.
        round: the round of the campaign that the session sums.
        phase: a value of `secagg.messages.ServerState`. "done": the session has a sum, which has
            not landed yet.
        num_clients: the number of clients that the session asked.
        closes: the two times at which the phase closes, Unix seconds (see `SavedSession`).
        not_after: the time after which the session ends without a sum, Unix seconds.
    """

    session: bytes
    round: int
    phase: str
    num_clients: int
    closes: tuple[int, int]
    not_after: int


@dataclass(frozen=True)
class EndedSession:
    """A session that has ended, as an operator sees it.

    Attributes:
        session: the session's name, 32 bytes; if two servers made the sum: the sum's name, up to 64
            bytes.
        round: the round of the campaign that the session summed.
        num_clients: the number of clients in the session's sum; 0 if it has no sum.
        why: the reason why the session has no sum; None if its sum landed.
    """

    session: bytes
    round: int
    num_clients: int
    why: str | None = None


@dataclass(frozen=True)
class CampaignStatus:
    """The progress of a campaign, without the names of its clients.

    Attributes:
        plan: the fingerprint of the campaign's plan.
        epoch: a number that each claim of the campaign makes larger.
        asked: for each round, the number of clients that were asked for their items. Rounds in
            which no client was asked are left out.
        landed: for each round, the number of clients in the sums that landed. Rounds in which no
            sum landed are left out.
        open: the sessions that have not ended, in the order of their rounds.
        ended: all sessions that have ended, in the order of their rounds.
        released: the numbers of the releases that the ledger holds; () without a ledger.
    """

    plan: str
    epoch: int
    asked: dict[int, int]
    landed: dict[int, int]
    open: tuple[OpenSession, ...]
    ended: tuple[EndedSession, ...]
    released: tuple[int, ...] = ()


class Campaigns(ClaimedDatabase):
    """The SQLite file in which a campaign's server keeps its state.

    `open` makes one. Several threads and processes may use one file, each with a `Campaigns` object
    of its own.
    """

    _kind = "campaigns"
    _schema = 3
    _anew = (
        "finish the campaign with the fedtally that began it, or begin another one (fedtally"
        " campaign init)"
    )
    _beside = frozenset({"ledger"})
    _metadata = _metadata
    _runs = _runs
    _put_back = "give up its sessions first (fedtally campaign restore, or Campaigns.give_up)"
    _lost_mark = _put_back

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Self:
        """Open the SQLite file of a campaign.

        Args:
            path: the path of the SQLite file, which may also hold a ledger.
            create: whether to make the file, or the tables in it, if they are missing.

        Raises:
            UnreadableFileError: the file is missing, is of another kind, or was made by another
                version of fedtally.
            StoreError: the database cannot be used, for instance because it is locked.
        """
        return opened(cls, file_url(os.fspath(path)), create)

    def claim(
        self,
        plan: Plan,
        *,
        mark: str | os.PathLike[str],
        clock: Callable[[], int],
        owner: str,
        ledger: Ledger | None = None,
    ) -> CampaignStore:
        """Return the store of a campaign, with which only this process may write.

        A process that claimed the campaign before can write nothing any more. Sums that were
        released before a crash, but not erased, are erased.

        Args:
            plan: the plan of the campaign.
            mark: the path of the mark, a small file that shows whether this file is an old copy
                (`store.marks`). It must not be in the backups of this file.
            clock: a function that returns the time, Unix seconds.
            owner: the name under which the campaign reserves releases in the ledger, such as 32
                random bytes in hexadecimal. The first claim stores it; later claims ignore this
                argument.
            ledger: the ledger to charge for the releases. A plan with privacy needs one. None: the
                plan has no privacy.

        Raises:
            InvalidInputError: the plan needs a ledger; the clock returns no whole seconds; this
                file holds another campaign; or it was put back (has fewer writes than its mark), or
                has writes but no mark.
        """
        if plan.protection.is_charged and ledger is None:
            raise InvalidInputError(
                "a plan with privacy is charged before a sum is opened: name the ledger"
            )
        owner, place = checked_name(owner=owner), real_path(mark)
        seconds(clock())  # a wrong clock fails here, not when a sum lands
        claimed = self._claim(plan.fingerprint, place, owner)
        store = CampaignStore(self, plan, claimed, clock, ledger)
        # An earlier process may have died after it released sums and before it erased them.
        with hold_mark(place):
            store._erase_released()
        return store

    def give_up(
        self, plan: Plan, *, mark: str | os.PathLike[str], ledger: Ledger | None = None
    ) -> int:
        """End all open sessions of a campaign whose file was put back, and return their number.

        It does not check that the file was put back.

        After this, `claim` accepts the file. The sessions end without a sum. Ended sessions are
        erased, too, even if some clients still need their farewells. Sums that landed after the
        copy was made are lost.

        Under central trust, the exact sums in the copy are erased, too: they may have been released
        since, and a second release would have other noise. If `ledger` does not hold the release of
        a round, the clients of the round's erased sums no longer count as landed.

        Args:
            plan: the plan of the campaign.
            mark: the path of the file's mark (see `claim`).
            ledger: the ledger that holds the releases. None: no release is known.

        Raises:
            InvalidInputError: this file holds no campaign of the plan.
            UnreadableFileError: this file is damaged.
        """
        place, released = real_path(mark), _released_rounds(ledger, plan)
        with self._marked(plan.fingerprint, place) as connection:
            row = self._run(connection, plan.fingerprint)
            if row is None:
                raise InvalidInputError(
                    f"{self.name} holds nothing of this plan: there is nothing to give up; begin"
                    " the campaign anew with a new plan"
                )
            # The copy may be damaged: if a killed process left a journal, SQLite applied it to the
            # copy.
            damage = connection.exec_driver_sql("PRAGMA integrity_check(1)").scalar_one()
            if damage == "ok" and not is_of_one_moment(driver_connection(connection)):
                damage = "its pages are of two moments"
            if damage != "ok":
                why = damage.splitlines()[-1]
                raise UnreadableFileError(
                    f"{self.name} is damaged ({why}): put the copy back again, and remove"
                    f" {self.name}-journal first; if it is still damaged, take another copy"
                )
            mine = _sessions.c.plan == plan.fingerprint
            opened = connection.execute(_opened(plan.fingerprint)).all()
            for saved in opened:
                failure = _failure(plan.fingerprint, saved.session, saved.round, "given up")
                connection.exec_driver_sql(_ADD_FAILED, failure)
            connection.execute(sa.delete(_sessions).where(mine))
            # Only secret sums are erased: noise is drawn when they are released, and two releases
            # of one sum would have different noise. Other sums need no noise, or they already hold
            # the noise of clients or of two servers, so a second release would be the same.
            if plan.protection.sums is Sums.SECRET:
                sums, why = _sums.c.plan == plan.fingerprint, "given up: its exact sum was erased"
                for one in connection.execute(sa.select(_sums).where(sums)).all():
                    if one.round not in released:
                        failure = _failure(plan.fingerprint, one.session, one.round, why)
                        connection.exec_driver_sql(_ADD_FAILED, failure)
                connection.execute(sa.delete(_sums).where(sums))
            marked = read_mark(place, plan.fingerprint) or 0
            writes = max(writes_of(driver_connection(connection)), marked) + 1
            # The new epoch must be one that no process has, not even a process that claimed the
            # campaign after the copy was made. Each claim adds 1 to the epoch and 1 to the number
            # of writes, and `give_up` sets the epoch to the number of writes plus 1. So an epoch is
            # at most the number of writes plus 1. `writes` is larger than every earlier number of
            # writes, since the mark also counts the writes that the copy lacks. So `writes + 1` is
            # larger than every earlier epoch.
            connection.execute(
                sa.update(_runs).where(_runs.c.plan == plan.fingerprint).values(epoch=writes + 1)
            )
            set_writes(driver_connection(connection), writes)
        return len(opened)

    def is_put_back(self, plan: Plan, *, mark: str | os.PathLike[str]) -> bool:
        """Return whether `claim` would refuse the file: an old copy, or a file without its mark.

        Args:
            plan: the plan of the campaign.
            mark: the path of the file's mark (see `claim`).
        """
        return self._is_put_back(plan.fingerprint, real_path(mark))

    def holds(self, plan: Plan) -> bool:
        """Return whether the campaign of this plan was ever claimed in this file."""
        with self._transaction(write=False) as connection:
            return self._run(connection, plan.fingerprint) is not None

    def list(self) -> list[CampaignStatus]:
        """Return the status of the file's campaign in a list; [] before the first claim.

        `CampaignStatus.released` is empty, since it needs a ledger: see `status`.
        """
        with self._transaction(write=False) as connection:
            names = connection.execute(sa.select(_runs.c.plan).order_by(_runs.c.plan)).scalars()
            return [_status(connection, name) for name in names.all()]

    def status(self, plan: Plan, ledger: Ledger | None = None) -> CampaignStatus:
        """Return the status of the campaign.

        It needs no claim, and other processes may write meanwhile.

        Args:
            plan: the plan of the campaign.
            ledger: the ledger that holds the releases. None: `released` stays empty.

        Raises:
            InvalidInputError: the file holds no campaign of this plan.
        """
        with self._transaction(write=False) as connection:
            if self._run(connection, plan.fingerprint) is None:
                raise InvalidInputError(
                    f"{self.name} holds nothing of plan {plan.fingerprint[:16]}: its campaign has"
                    " not begun, or runs with another file"
                )
            found = _status(connection, plan.fingerprint)
        if ledger is None:
            return found
        landings = ledger.landings(plan.fingerprint)
        return replace(found, released=tuple(landing.release for landing in landings))

    def read(self, plan: Plan, ledger: Ledger | None = None) -> CampaignReader:
        """Return a reader of the campaign's sums; another process may run the campaign meanwhile.

        Args:
            plan: the plan of the campaign.
            ledger: the ledger that holds the releases. None: nothing counts as released.
        """
        return CampaignReader(self, plan, ledger)

    def open_sessions(self, plan: Plan, since: int) -> Sequence[SavedSession]:
        """Return the open sessions of a campaign, with their checkpoints; it needs no claim.

        Args:
            plan: the plan of the campaign.
            since: a time, Unix seconds; sessions that end before are left out.
        """
        known = _sessions.c
        query = sa.select(_sessions).where(
            (known.plan == plan.fingerprint)
            & known.checkpoint.is_not(None)
            & (known.not_after >= since)
        )
        with self._transaction(write=False) as connection:
            rows = connection.execute(query.order_by(known.round, known.session)).all()
        return [_saved(row) for row in rows]

    def clients(self, session: bytes) -> tuple[ClientId, ...]:
        """Return the names of the clients that an open session asked, as the transport knows them.

        The transport is the code that carries frames between clients and server.

        Args:
            session: the session's name, 32 bytes.

        Raises:
            InvalidInputError: there is no open session with this name.
        """
        query = sa.select(_sessions.c.clients).where(
            (_sessions.c.session == session.hex()) & (_sessions.c.checkpoint.is_not(None))
        )
        with self._transaction(write=False) as connection:
            row = connection.execute(query).first()
        if row is None:
            raise InvalidInputError(
                f"{self.name} has no open session {session.hex()[:16]}: `status` lists them"
            )
        return tuple(json.loads(row.clients))


class CampaignReader:
    """A reader of one campaign's sums; it needs no claim, and other processes may write meanwhile.

    `Campaigns.read` makes one. Its methods take the plan once more, and raise InvalidInputError for
    another plan.
    """

    def __init__(self, campaigns: Campaigns, plan: Plan, ledger: Ledger | None) -> None:
        self._campaigns, self._plan, self._name = campaigns, plan, plan.fingerprint
        self._ledger = ledger

    def landed_clients(self, plan: Plan) -> dict[int, int]:
        """Return, for each round, the number of clients in the sums that landed.

        Rounds in which no sum landed are left out. Sums that were given up do not count.
        """
        self._check(plan)
        with self._campaigns._transaction(write=False) as connection:
            rows = connection.exec_driver_sql(_COUNT_LANDED, {"of": self._name})
            return {row.round: int(row.clients) for row in rows}

    def impossible(self, plan: Plan) -> dict[int, int]:
        """Return, for each round, the number of sessions whose sum was rejected as impossible.

        A sum is impossible if no honest clients could have it. Rounds in which no sum was rejected
        as impossible are left out.
        """
        self._check(plan)
        query = (
            sa.select(_failed.c.round, sa.func.count().label("sessions"))
            .where((_failed.c.plan == self._name) & _failed.c.why.startswith(IMPOSSIBLE))
            .group_by(_failed.c.round)
        )
        with self._campaigns._transaction(write=False) as connection:
            return {row.round: row.sessions for row in connection.execute(query)}

    def has_landed(self, plan: Plan, session: bytes) -> bool:
        """Return whether the sum of this session has ever landed, even if it was erased since."""
        self._check(plan)
        with self._campaigns._sqlite(write=False) as connection:
            return _has_landed(connection, self._name, session)

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sums that landed and are not released, added up to one sketch for each round.

        They have no noise yet if the plan's sums are secret (`Sums.SECRET`): then nobody may see
        them. The sketches are in the order of their rounds.
        """
        return summed(self._landed(plan))

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        """Return the sessions' sums that landed and are not released, in the order of their rounds.

        The sums have no noise yet if the plan's sums are secret, see `sums`.
        """
        return list(self._landed(plan))

    def _landed(self, plan: Plan) -> Iterator[CountSketch]:
        """Yield the sessions' sums that landed and are not released, in the order of rounds."""
        self._check(plan)
        query = sa.select(_sums.c.sketch).where(_sums.c.plan == self._name)
        gone = _released_rounds(self._ledger, plan)
        with self._campaigns._transaction(write=False) as connection:
            for row in connection.execute(query.order_by(_sums.c.round, _sums.c.session)):
                sketch = CountSketch.from_bytes(row.sketch, "a sum of the store")
                if sketch.round not in gone:
                    yield sketch

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return the released sums, with their noise, as a dict from the number of the release.

        Without a ledger it is empty.
        """
        self._check(plan)
        if self._ledger is None:
            return {}
        return {
            landing.release: CountSketch.from_bytes(
                self._ledger.sketch(self._name, landing.release), "a release of the ledger"
            )
            for landing in self._ledger.landings(self._name)
        }

    def _check(self, plan: Plan) -> None:
        if plan.fingerprint != self._name:
            raise InvalidInputError("this store was claimed for another plan")


class CampaignStore(CampaignReader):
    """The sessions and sums of one campaign, for the process that claimed it.

    `Campaigns.claim` makes it, and `campaign.driver.Driver` uses it. Once another process has
    claimed the campaign, each method that writes raises `OvertakenError` and changes nothing.
    """

    def __init__(
        self,
        campaigns: Campaigns,
        plan: Plan,
        claim: Claim,
        clock: Callable[[], int],
        ledger: Ledger | None,
    ) -> None:
        super().__init__(campaigns, plan, ledger)
        self._claim, self._clock = claim, clock

    # ---- sessions ----

    def save(self, plan: Plan, session: SavedSession, asked: Collection[ClientId]) -> None:
        """Write the new state of a session, and the names of the clients that it asks.

        Args:
            plan: the plan of the campaign.
            session: the new state; its `version` is one more than the version in the file.
            asked: the clients that are asked now and were not asked in this round before, by the
                names that the transport uses; empty: the write adds no asked client.

        Raises:
            OvertakenError: the version of the session in the file is not `session.version` - 1, or
                another process claimed the campaign.
            StoreError: one of `asked` was asked in this round before.
        """
        self._check(plan)
        with self._claim.write() as connection:
            self._save(connection, session)
            if asked:
                # Compact JSON holds no newline, so a newline can separate the clients: one call
                # encodes all.
                texts = json.dumps(list(asked), separators=("\n", ":"))[1:-1].split("\n")
                row = {"plan": self._name, "round": session.round}
                # Sorted like the index, since SQLite inserts fastest next to the last row.
                row |= {"session": session.session.hex(), "clients": json.dumps(sorted(texts))}
                connection.execute(_ADD_ASKED, row)

    def end(self, plan: Plan, session: SavedSession, sketch: CountSketch) -> bool:
        """Write a session that has ended, land its sum in the same transaction, and return True.

        If the session's sum had landed before, change nothing and return False.

        Args:
            plan: the plan of the campaign.
            session: the session, without a checkpoint.
            sketch: the session's sum.
        """
        self._check(plan)
        with self._claim.write() as connection:
            if not self._land(connection, session.session, sketch):
                return False
            self._save(connection, session)
        return True

    def _save(self, connection: SqliteConnection, session: SavedSession) -> None:
        row = _row(self._name, session)
        if session.version == 1:
            connection.execute(_ADD_SESSION, row)
        else:
            before = {"of": row["session"], "before": session.version - 1}
            if connection.execute(_SAVE, row | before).rowcount != 1:
                raise OvertakenError(
                    f"session {row['session'][:16]} was written by another process: this one must"
                    " not speak any more"
                )
        if session.why is not None:
            failure = _failure(self._name, row["session"], session.round, session.why)
            connection.execute(_ADD_FAILED, failure)

    def sessions(self, plan: Plan) -> list[SavedSession]:
        """Return all open sessions, and the ended sessions that `forget` did not erase.

        Clients may still need the farewells of these ended sessions.
        """
        self._check(plan)
        with self._campaigns._transaction(write=False) as connection:
            rows = connection.exec_driver_sql(_FIND_SESSIONS, {"of": self._name})
            return [_saved(row) for row in rows]

    def forget(self, plan: Plan, session: bytes) -> None:
        """Erase an ended session.

        The clients that it asked stay recorded, and whether its sum landed.
        """
        self._check(plan)
        with self._claim.write() as connection:
            connection.execute(_FORGET, {"of": session.hex()})

    def asked(self, plan: Plan) -> dict[int, set[ClientId]]:
        """Return, for each round, the clients that were asked for their items.

        They have the names that the transport uses, see `Campaigns.clients`. Rounds in which no
        client was asked are left out.
        """
        self._check(plan)
        found: dict[int, set[ClientId]] = {}
        with self._campaigns._transaction(write=False) as connection:
            for row in connection.exec_driver_sql(_FIND_ASKED, {"of": self._name}):
                found.setdefault(row.round, set()).add(json.loads(row.client))
        return found

    # ---- books ----

    def reserve(self, plan: Plan, release: int) -> None:
        """Reserve a release: charge it to the plan's population, before its sum is opened.

        The same release may be reserved again, even by a process that claimed the campaign later.

        Raises:
            AlreadySpentError: the release has landed in the ledger, or a run with another owner
                charged this plan.
            OverspentError: the population's grant does not cover the campaign, see
                `Ledger.reserve`.
            InvalidInputError: see `Ledger.reserve`, for instance the population has no grant.
            OvertakenError: another process claimed the campaign.
        """
        self.check_claim(plan)
        self._reservation(release)

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        """Store the sum of a session, so that it counts for its round, and return True.

        If the session's sum had landed before, change nothing and return False.
        """
        self._check(plan)
        with self._claim.write() as connection:
            return self._land(connection, session, sketch)

    def _land(self, connection: SqliteConnection, session: bytes, sketch: CountSketch) -> bool:
        """Store the sum of a session, unless it had landed before; return whether it was stored."""
        if _has_landed(connection, self._name, session):
            return False
        # If clients are silos, this is the number of silos. Their number of people is secret, and
        # must not stand in a row that is never erased.
        clients = sketch.num_vectors
        same = {"plan": self._name, "session": session.hex(), "round": sketch.round}
        fact = same | {"clients": clients, "time": seconds(self._clock())}
        connection.execute(_ADD_LANDED, fact)
        connection.execute(_ADD_SUM, same | {"sketch": sketch.to_bytes()})
        return True

    def release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        """Write all releases to the ledger, then erase the exact sums of their rounds.

        The ledger gets all of them in one transaction.

        Args:
            plan: the plan of the campaign.
            noised: the sums with noise, by the number of the release.

        Raises:
            InvalidInputError: a release was not reserved.
            AlreadySpentError: a release has landed in the ledger before, with other noise; or a run
                with another owner charged this plan.
            OvertakenError: another process claimed the campaign, or runs another copy of the file.
        """
        self._check(plan)
        kept = {
            Reservation(self._name, number): sketch.to_bytes() for number, sketch in noised.items()
        }
        # If two processes had two copies of the sums and of the ledger, only one may release: the
        # difference of two releases would show their noise. So a write is counted in the mark
        # before the release lands: an older copy is then behind the mark, even if this process dies
        # before it erases the sums. And the mark is locked until the end, so that nobody claims a
        # copy that was made after this write.
        with hold_mark(self._claim.mark):
            with self._claim.write_held():
                pass
            self._books().land_all(kept, self._claim.owner, self._clock())
            self._erase_released()

    def _erase_released(self) -> None:
        """Erase the exact sums of all rounds whose releases the ledger holds.

        The caller must have locked the mark. This method is called after a release, and at each
        claim: an earlier process may have died after it released sums and before it erased them.
        """
        gone = _released_rounds(self._ledger, self._plan)
        if gone:
            mine = [{"of": self._name, "number": round} for round in sorted(gone)]
            with self._claim.write_held() as connection:
                connection.executemany(_ERASE_SUMS, mine)

    def _reservation(self, release: int) -> Reservation:
        privacy = self._plan.privacy
        assert privacy is not None
        charge = Charge(privacy.population, self._name, release, privacy.event)
        return self._books().reserve(charge, self._claim.owner, seconds(self._clock()))

    def _books(self) -> Ledger:
        assert self._ledger is not None  # `claim` refuses a charged plan without a ledger
        return self._ledger

    # ---- one writer ----

    def check_claim(self, plan: Plan) -> None:
        """Check that this process may write and send messages, and bring the mark up to date.

        Raises:
            OvertakenError: another process claimed the campaign, or runs another copy of the file.
            StoreError: the mark cannot be read or written.
        """
        self._check(plan)
        self._claim.check()

    def check_writes(self, plan: Plan) -> None:
        """Check that file, mark and ledger can be used, and the disk has room for a session.

        It makes a write that changes no session.

        Raises:
            OvertakenError: another process claimed the campaign, or runs another copy of the file.
            StoreError: a write would fail.
        """
        self._check(plan)
        with self._claim.write():
            pass
        # A nearly full disk may have room for this small write, but not for a session's state.
        self.check_room(plan)

    def check_room(self, plan: Plan) -> None:
        """Check that the ledger can be used, and the disk has room to write a session's state.

        The room is for the largest state in the file, twice, and 1 MiB. The check writes a file of
        this size and removes it at once.

        Raises:
            StoreError: there is no room, or the ledger does not answer.
        """
        self._check(plan)
        with self._campaigns._sqlite(write=False) as connection:
            largest = connection.execute(_LARGEST, {"of": self._name}).fetchone()[0] or 0
        # Twice: SQLite first copies the old state to its journal, then writes the new one.
        check_room(Path(self._campaigns.name).absolute().parent, _ROOM + 2 * largest)
        if self._ledger is not None:
            self._ledger.reserved(self._name)


# ---- rows ----

# Frequent statements, compiled once: see `prepared`.
_ADD_SESSION = prepared(sa.insert(_sessions))
# The keys never change, and are left out. Otherwise SQLite would write their index again, and look
# up the plan.
_SAVE = prepared(
    sa.update(_sessions)
    .where(
        (_sessions.c.session == sa.bindparam("of"))
        & (_sessions.c.version == sa.bindparam("before"))
    )
    .values(
        {
            column.name: sa.bindparam(column.name)
            for column in _sessions.c
            if not column.primary_key and not column.foreign_keys
        }
    )
)
_FIND_SESSIONS = prepared(
    sa.select(_sessions).where(_sessions.c.plan == sa.bindparam("of")).order_by(_sessions.c.session)
)
_LARGEST = prepared(
    sa.select(sa.func.max(sa.func.length(_sessions.c.checkpoint))).where(
        _sessions.c.plan == sa.bindparam("of")
    )
)
_FORGET = prepared(sa.delete(_sessions).where(_sessions.c.session == sa.bindparam("of")))
# One statement for all clients: binding the values of each client would take as long as the insert.
_ADD_ASKED = prepared(
    sa.insert(_asked).from_select(
        ["plan", "round", "client", "session"],
        sa.select(
            sa.bindparam("plan"),
            sa.bindparam("round"),
            sa.column("value"),
            sa.bindparam("session"),
        ).select_from(sa.func.json_each(sa.bindparam("clients"))),
    )
)
_FIND_ASKED = prepared(
    sa.select(_asked.c.round, _asked.c.client).where(_asked.c.plan == sa.bindparam("of"))
)
_ADD_LANDED = prepared(sa.insert(_landed))
_FIND_LANDED = prepared(
    sa.select(_landed.c.round).where(
        (_landed.c.plan == sa.bindparam("of")) & (_landed.c.session == sa.bindparam("name"))
    )
)
# A sum that landed, and was then erased by `give_up`, is in both tables.
_IS_KEPT = ~(
    sa.exists().where((_failed.c.plan == _landed.c.plan) & (_failed.c.session == _landed.c.session))
)
_COUNT_LANDED = prepared(
    sa.select(_landed.c.round, sa.func.sum(_landed.c.clients).label("clients"))
    .where((_landed.c.plan == sa.bindparam("of")) & _IS_KEPT)
    .group_by(_landed.c.round)
)
_ADD_SUM = prepared(sa.insert(_sums))
_ERASE_SUMS = prepared(
    sa.delete(_sums).where(
        (_sums.c.plan == sa.bindparam("of")) & (_sums.c.round == sa.bindparam("number"))
    )
)
_ADD_FAILED = prepared(sa.insert(_failed))


def _released_rounds(ledger: Ledger | None, plan: Plan) -> set[int]:
    if ledger is None:
        return set()
    landings, releases = ledger.landings(plan.fingerprint), plan.releases
    return {round for one in landings for round in releases[one.release]}


def _has_landed(connection: SqliteConnection, plan: str, session: bytes) -> bool:
    known = {"of": plan, "name": session.hex()}
    return connection.execute(_FIND_LANDED, known).fetchone() is not None


def _row(plan: str, session: SavedSession) -> dict[str, Any]:
    return {
        "session": session.session.hex(),
        "plan": plan,
        "version": session.version,
        "round": session.round,
        "phase": session.phase,
        "clients": json.dumps(session.clients),
        "soft": session.closes[0],
        "hard": session.closes[1],
        "not_after": session.not_after,
        "checkpoint": session.checkpoint,
        "farewell": session.farewell,
    }


def _saved(row: sa.Row[Any]) -> SavedSession:
    return SavedSession(
        bytes.fromhex(row.session),
        row.round,
        tuple(json.loads(row.clients)),
        row.checkpoint,
        (row.soft, row.hard),
        row.not_after,
        row.farewell,
        row.version,
        row.phase,
    )


def _opened(plan: str) -> sa.Select[Any]:
    """Return the query for a campaign's open sessions, by round, without their checkpoints."""
    known = _sessions.c
    return (
        sa.select(*(column for column in known if column is not known.checkpoint))
        .where((known.plan == plan) & known.checkpoint.is_not(None))
        .order_by(known.round, known.session)
    )


def _failure(plan: str, session: str, round: int, why: str) -> dict[str, Any]:
    return {"plan": plan, "session": session, "round": round, "why": why}


def _status(connection: sa.Connection, plan: str) -> CampaignStatus:
    def rows(table: sa.Table) -> Sequence[sa.Row[Any]]:
        query = sa.select(table).where(table.c.plan == plan)
        if table is _landed:
            query = query.where(_IS_KEPT)
        return connection.execute(query.order_by(table.c.round, table.c.session)).all()

    epoch = connection.execute(sa.select(_runs.c.epoch).where(_runs.c.plan == plan)).scalar_one()
    ended = [
        EndedSession(bytes.fromhex(row.session), row.round, row.clients) for row in rows(_landed)
    ] + [EndedSession(bytes.fromhex(row.session), row.round, 0, row.why) for row in rows(_failed)]
    asked = (
        sa.select(_asked.c.round, sa.func.count().label("clients"))
        .where(_asked.c.plan == plan)
        .group_by(_asked.c.round)
    )
    landed: Counter[int] = Counter()
    for one in ended:
        landed[one.round] += one.num_clients
    return CampaignStatus(
        plan,
        epoch,
        {row.round: row.clients for row in connection.execute(asked)},
        dict(+landed),  # `+` leaves out rounds in which nothing landed
        tuple(
            OpenSession(
                bytes.fromhex(row.session),
                row.round,
                row.phase,
                len(json.loads(row.clients)),
                (row.soft, row.hard),
                row.not_after,
            )
            for row in connection.execute(_opened(plan))
        ),
        tuple(sorted(ended, key=lambda one: one.round)),
    )
