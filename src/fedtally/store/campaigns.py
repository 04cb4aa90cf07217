"""The memory of a campaign's server: sessions, the clients that were asked, the sums that landed.

`Campaigns` is an SQLite file of one campaign, which may also hold a ledger. `Campaigns.claim` gives
the `CampaignStore` of its plan to one process; the process that had claimed it before can write
nothing any more (`store/claims.py`).

Rows of sessions and of sums change and are erased. Nothing of an erased row stays in the file:
SQLite overwrites what it deletes (`secure_delete`), and keeps no write-ahead log. Three kinds of
rows are append-only: the clients that were asked, the sessions that landed, and the reasons why
other sessions did not land.

A copy of the file that was *put back* is refused. `Campaigns.give_up` makes such a file usable, and
ends all sessions that it holds.
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

_ROOM = 1 << 20  # bytes that a write needs beside the checkpoint of its session
IMPOSSIBLE = "impossible sum: "  # how `SavedSession.why` begins where no clients have such a sum
# Bytes in hexadecimal: a session of `secagg`. What lands is named by its session or, if another
# protocol summed it, by a name of up to 64 bytes. SQLite enforces neither of these lengths: they
# say what a column holds. They must not change, since existing files have them in their schema.
_SESSION = sa.String(2 * wire.SESSION_BYTES)
_SUM_NAME = sa.String(2 * MOST_NAME_BYTES)
_metadata = sa.MetaData()
_runs = run_table(
    _metadata,
    # Always 0: `store/writes.py` counts the writes of the file. The column is part of the schema.
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
    """What a store keeps of a session.

    Attributes:
        session: its 32 bytes.
        round: the round of the campaign that the session sums.
        clients: the clients that were drawn, by the names that the transport has for them; once the
            session has ended, the clients that get the farewell.
        checkpoint: the checkpoint of the session's state machine; None: the session has ended, and
            its last checkpoint is erased.
        closes: the time when the phase closes if the session can go on without the clients that are
            missing, and the time when the phase closes in any case; Unix seconds.
        not_after: the time when the session is given up, Unix seconds.
        farewell: the last frame, the same for everybody; None: the session goes on.
        version: the number of times that the session was written. A store writes only the version
            that follows the one in the file.
        phase: the state of the session's state machine, a value of `secagg.messages.ServerState`.
        why: the reason why the session has no sum. The store keeps it for ever, but gives it back
            by `Campaigns.status` alone. None: the session goes on, or has a sum.
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
    """A session that goes on, as an operator sees it.

    Attributes:
        session: its 32 bytes.
        round: the round of the campaign.
        phase: a value of `secagg.messages.ServerState`; "done": it has a sum, which has not landed.
        num_clients: the number of clients that were drawn.
        closes: the two times when the phase closes, Unix seconds, as for `SavedSession`.
        not_after: the time when the session is given up, Unix seconds.
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
        session: the 32 bytes of the session.
        round: the round of the campaign.
        num_clients: the number of clients in its sum; 0: the session has no sum.
        why: the reason why the session has no sum; None: its sum landed.
    """

    session: bytes
    round: int
    num_clients: int
    why: str | None = None


@dataclass(frozen=True)
class CampaignStatus:
    """How far a campaign is, without the names of its clients.

    Attributes:
        plan: the fingerprint of its plan.
        epoch: the number of claims of the campaign.
        asked: the number of clients that were asked for their items, by round.
        landed: the number of clients in the sums that landed, by round.
        open: the sessions that go on.
        ended: all sessions that have ended, by round.
        released: the numbers of the releases that the given ledger holds.
    """

    plan: str
    epoch: int
    asked: dict[int, int]
    landed: dict[int, int]
    open: tuple[OpenSession, ...]
    ended: tuple[EndedSession, ...]
    released: tuple[int, ...] = ()


class Campaigns(ClaimedDatabase):
    """The SQLite file of a campaign that a server runs.

    Made by `open`. Several threads and processes may use one file, each through a `Campaigns` of
    its own.
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
        """Open the file of a campaign.

        Args:
            path: the path of the SQLite file, which may also hold a ledger.
            create: make the file, or the tables in it, if they are missing.

        Raises:
            UnreadableFileError: the file holds no campaigns, or campaigns of another version, or is
                a file of another kind.
            StoreError: the database does not answer.
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
        """Return the store of a campaign, for this process alone.

        The process that claimed it before can write nothing any more.

        Args:
            plan: the plan of the campaign.
            mark: the path of the mark, outside of this file and of its backups.
            clock: returns the time, Unix seconds.
            owner: the name under which the campaign makes its reservations in the ledger, such as
                32 random bytes in hexadecimal. The first claim sets it, and later ones keep it.
            ledger: the ledger to charge for the releases, in SQLite or PostgreSQL.

        Raises:
            InvalidInputError: the plan has privacy and there is no ledger; or the clock returns no
                whole seconds; or this file holds another campaign, or has fewer writes than its
                mark says, because a copy was put back; or the mark is gone.
        """
        if plan.protection.is_charged and ledger is None:
            raise InvalidInputError(
                "a plan with privacy is charged before a sum is opened: name the ledger"
            )
        owner, place = checked_name(owner=owner), real_path(mark)
        seconds(clock())  # before a client is asked for its items: sums land with their time
        claimed = self._claim(plan.fingerprint, place, owner)
        store = CampaignStore(self, plan, claimed, clock, ledger)
        # An earlier process may have died after it released sums and before it erased them.
        with hold_mark(place):
            store._erase_released()
        return store

    def give_up(
        self, plan: Plan, *, mark: str | os.PathLike[str], ledger: Ledger | None = None
    ) -> int:
        """End all open sessions of a campaign, and return their number.

        Call this after a copy was put back. The sessions that it ends have no sum. Sessions that
        had ended before, but owe some clients their last frames, are erased, too. The file counts
        its writes on from the mark, so `claim` takes it. The sums that landed after the copy was
        made are lost. Under central trust the sums that this copy holds as unreleased are erased,
        too: they may have been released since the copy was made, and a second release would have
        other noise. Their clients do not count as landed any more, unless the ledger holds the
        release.

        Args:
            plan: the plan of the campaign.
            mark: the path of the mark, outside of this file and of its backups.
            ledger: the ledger that holds the releases, in SQLite or PostgreSQL; None: no release is
                known.

        Raises:
            InvalidInputError: this file holds nothing of the plan.
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
            # SQLite may have played the journal of a killed process into the copy.
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
            # Clients or two servers put their noise into a sum once, so a second release is the
            # same. An aggregator would draw other noise.
            if plan.protection.sums is Sums.SECRET:
                sums, why = _sums.c.plan == plan.fingerprint, "given up: its exact sum was erased"
                for one in connection.execute(sa.select(_sums).where(sums)).all():
                    if one.round not in released:
                        failure = _failure(plan.fingerprint, one.session, one.round, why)
                        connection.exec_driver_sql(_ADD_FAILED, failure)
                connection.execute(sa.delete(_sums).where(sums))
            marked = read_mark(place, plan.fingerprint) or 0
            writes = max(writes_of(driver_connection(connection)), marked) + 1
            # Each claim adds one to the epoch and to the number of writes, and giving up adds one
            # to the epoch alone, so no epoch is more than one above that number. The mark has the
            # number of all writes, also of those that the copy lacks. So no process has this epoch,
            # not even one that claimed the campaign after the copy was made.
            connection.execute(
                sa.update(_runs).where(_runs.c.plan == plan.fingerprint).values(epoch=writes + 1)
            )
            set_writes(driver_connection(connection), writes)
        return len(opened)

    def is_put_back(self, plan: Plan, *, mark: str | os.PathLike[str]) -> bool:
        """Return whether `claim` refuses the file: its mark has more writes, or is gone."""
        return self._is_put_back(plan.fingerprint, real_path(mark))

    def holds(self, plan: Plan) -> bool:
        """Return whether the campaign of a plan was ever claimed from this file."""
        with self._transaction(write=False) as connection:
            return self._run(connection, plan.fingerprint) is not None

    def list(self) -> list[CampaignStatus]:
        """Return the status of the campaign in the file, without its plan.

        There are none before the first claim.
        """
        with self._transaction(write=False) as connection:
            names = connection.execute(sa.select(_runs.c.plan).order_by(_runs.c.plan)).scalars()
            return [_status(connection, name) for name in names.all()]

    def status(self, plan: Plan, ledger: Ledger | None = None) -> CampaignStatus:
        """Return the status of one campaign. This needs no claim, and disturbs no process.

        Args:
            plan: the plan of the campaign.
            ledger: the ledger that holds the releases; None: the status has no releases.

        Raises:
            InvalidInputError: the file holds nothing of this plan.
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
        """Return the sums of a campaign, to look at them while another process may run it.

        Args:
            plan: the plan of the campaign.
            ledger: the ledger that holds the releases; None: nothing is released.
        """
        return CampaignReader(self, plan, ledger)

    def clients(self, session: bytes) -> tuple[ClientId, ...]:
        """Return the names of the clients of a session that goes on, as the transport has them.

        Raises:
            InvalidInputError: no such session goes on.
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
    """The sums of one campaign, and what is in them; it needs no claim, and disturbs no process.

    `Campaigns.read` makes it.
    """

    def __init__(self, campaigns: Campaigns, plan: Plan, ledger: Ledger | None) -> None:
        self._campaigns, self._plan, self._name = campaigns, plan, plan.fingerprint
        self._ledger = ledger

    def landed_clients(self, plan: Plan) -> dict[int, int]:
        """Return the number of clients in the sums that landed, by round."""
        self._check(plan)
        with self._campaigns._transaction(write=False) as connection:
            rows = connection.exec_driver_sql(_COUNT_LANDED, {"of": self._name})
            return {row.round: int(row.clients) for row in rows}

    def impossible(self, plan: Plan) -> dict[int, int]:
        """Return the number of sessions whose sum no clients can have, by round."""
        self._check(plan)
        query = (
            sa.select(_failed.c.round, sa.func.count().label("sessions"))
            .where((_failed.c.plan == self._name) & _failed.c.why.startswith(IMPOSSIBLE))
            .group_by(_failed.c.round)
        )
        with self._campaigns._transaction(write=False) as connection:
            return {row.round: row.sessions for row in connection.execute(query)}

    def has_landed(self, plan: Plan, session: bytes) -> bool:
        """Tell whether the sum of a session has landed."""
        self._check(plan)
        with self._campaigns._sqlite(write=False) as connection:
            return _has_landed(connection, self._name, session)

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of the rounds that landed and are not released, by round."""
        return summed(self._landed(plan))

    def cohorts(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of the sessions that landed and are not released, by round."""
        return list(self._landed(plan))

    def _landed(self, plan: Plan) -> Iterator[CountSketch]:
        """Yield the sums of `sums`, a session after the other, by round."""
        self._check(plan)
        query = sa.select(_sums.c.sketch).where(_sums.c.plan == self._name)
        gone = _released_rounds(self._ledger, plan)
        with self._campaigns._transaction(write=False) as connection:
            for row in connection.execute(query.order_by(_sums.c.round, _sums.c.session)):
                sketch = CountSketch.from_bytes(row.sketch, "a sum of the store")
                if sketch.round not in gone:
                    yield sketch

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return the released sums, by the number of the release."""
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
    """The books and the sessions of one campaign, for the process that claimed it.

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
        """Write a session, and whom it asks, if the file holds the version just before this one."""
        self._check(plan)
        with self._claim.write() as connection:
            self._save(connection, session)
            if asked:
                # JSON has no newline in it, so that one call makes the texts of all clients.
                texts = json.dumps(list(asked), separators=("\n", ":"))[1:-1].split("\n")
                row = {"plan": self._name, "round": session.round}
                # Sorted as the index is: SQLite inserts next to the row before.
                row |= {"session": session.session.hex(), "clients": json.dumps(sorted(texts))}
                connection.execute(_ADD_ASKED, row)

    def end(self, plan: Plan, session: SavedSession, sketch: CountSketch) -> bool:
        """Write a session that has ended, and land its sum; return whether the sum counts.

        It is one transaction. A sum that had landed before does not count again, and nothing
        changes.
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
        """Return the open sessions, and the ended ones whose farewell clients may still need."""
        self._check(plan)
        with self._campaigns._transaction(write=False) as connection:
            rows = connection.exec_driver_sql(_FIND_SESSIONS, {"of": self._name})
            return [_saved(row) for row in rows]

    def forget(self, plan: Plan, session: bytes) -> None:
        """Erase an ended session; the clients that it asked, and its landing, stay recorded."""
        self._check(plan)
        with self._claim.write() as connection:
            connection.execute(_FORGET, {"of": session.hex()})

    def asked(self, plan: Plan) -> dict[int, set[ClientId]]:
        """Return the clients that were asked for items, by round."""
        self._check(plan)
        found: dict[int, set[ClientId]] = {}
        with self._campaigns._transaction(write=False) as connection:
            for row in connection.exec_driver_sql(_FIND_ASKED, {"of": self._name}):
                found.setdefault(row.round, set()).add(json.loads(row.client))
        return found

    # ---- books ----

    def reserve(self, plan: Plan, release: int) -> None:
        """Charge a release of a plan with privacy. Whoever claims the campaign may repeat it.

        Raises:
            AlreadySpentError: the release has landed in the ledger, or a run with another owner
                has charged this plan.
            OverspentError: the population has too little left.
            OvertakenError: another process runs the campaign.
        """
        self.check_claim(plan)
        self._reservation(release)

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        """Keep the sum of a session; return whether it counts.

        A sum that had landed before does not count again, and nothing changes.
        """
        self._check(plan)
        with self._claim.write() as connection:
            return self._land(connection, session, sketch)

    def _land(self, connection: SqliteConnection, session: bytes, sketch: CountSketch) -> bool:
        """Keep the sum of a session, unless it has landed."""
        if _has_landed(connection, self._name, session):
            return False
        # If clients are silos, the row has the number of silos. The number of their people is
        # secret, and a row of this table is never erased.
        clients = sketch.num_vectors
        same = {"plan": self._name, "session": session.hex(), "round": sketch.round}
        fact = same | {"clients": clients, "time": seconds(self._clock())}
        connection.execute(_ADD_LANDED, fact)
        connection.execute(_ADD_SUM, same | {"sketch": sketch.to_bytes()})
        return True

    def release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        """Write all releases to the ledger in one transaction; erase the sums they were made of.

        Raises:
            InvalidInputError: a release was not reserved.
            AlreadySpentError: one was released before, with other noise.
            OvertakenError: another process runs the campaign, or another copy of it.
        """
        self._check(plan)
        kept = {
            Reservation(self._name, number): sketch.to_bytes() for number, sketch in noised.items()
        }
        # Of two processes on two copies of the sums, and of their ledgers, one alone can release
        # them: two releases would have two noises. A copy from before is behind the mark, which
        # counts a write before the release lands, even if this process dies before it erases the
        # sums. And no process claims a copy of that write, since the mark is held to the end.
        with hold_mark(self._claim.mark):
            with self._claim.write_held():
                pass
            self._books().land_all(kept, self._claim.owner, self._clock())
            self._erase_released()

    def _erase_released(self) -> None:
        """Erase the sums of released rounds: after a release, or at the claim after a crash.

        The mark is held by the caller.
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
        assert self._ledger is not None  # `claim` refuses privacy without a ledger
        return self._ledger

    # ---- one writer ----

    def check_claim(self, plan: Plan) -> None:
        """Check that this process may write and speak; the mark then counts every write.

        Raises:
            OvertakenError: another process runs the campaign, or another copy of it.
            StoreError: the mark cannot be read or written.
        """
        self._check(plan)
        self._claim.check()

    def check_writes(self, plan: Plan) -> None:
        """Check that file, mark and ledger answer, and that there is room for a session's write.

        It writes, and changes no session.

        Raises:
            OvertakenError: another process runs the campaign, or another copy of it.
            StoreError: a write would fail.
        """
        self._check(plan)
        with self._claim.write():
            pass
        # A disk with a little room takes the write above, and not that of a session.
        self.check_room(plan)

    def check_room(self, plan: Plan) -> None:
        """Check that the ledger answers, and that there is room for a session's write.

        It writes a file that is gone at once, and nothing else.

        Raises:
            StoreError: there is no room, or the ledger is away.
        """
        self._check(plan)
        with self._campaigns._sqlite(write=False) as connection:
            largest = connection.execute(_LARGEST, {"of": self._name}).fetchone()[0] or 0
        # SQLite writes what changes, and before that what was there.
        check_room(Path(self._campaigns.name).absolute().parent, _ROOM + 2 * largest)
        if self._ledger is not None:
            self._ledger.reserved(self._name)


# ---- rows ----

# The statements that each phase, or each driver, runs, compiled once: see `prepared`.
_ADD_SESSION = prepared(sa.insert(_sessions))
# Not the keys, which stay: SQLite would write their index again, and look the plan up.
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
# One statement for all clients: to bind the values of each one takes as long as to insert it.
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
# A sum that landed and then was given up is in both tables: nobody has it.
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
    """Return the query of a campaign's open sessions, without their checkpoints."""
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
        dict(+landed),  # without the rounds in which nothing landed
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
