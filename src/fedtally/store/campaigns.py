"""What a campaign's server must not lose: its sessions, who was asked, and the sums that landed.

`Campaigns` is an SQLite file, which may also hold a ledger. `Campaigns.claim` gives the
`CampaignStore` of one plan to one process. Whoever claims a campaign later gets a higher *epoch*.
Each writing transaction first compares the epoch, so that the process before can write nothing any
more.

Sessions and sums change and are erased: SQLite overwrites what it deletes (`secure_delete`), and
keeps no write-ahead log. Who was asked, and which sessions landed, is append-only.

A copy of the file that is put back does not know what was sent since. Therefore a *mark* outside
of the file, on another disk if possible, holds the number of the last write. A file that is behind
its mark is refused; `Campaigns.give_up` makes it usable, and gives up all sessions that it holds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from fedtally.errors import InvalidInputError, OvertakenError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.privacy.budget import Charge, checked_name
from fedtally.privacy.events import Trust
from fedtally.sketch import CountSketch
from fedtally.store.database import Database, file_url, opened, seconds, time_column
from fedtally.store.ledger import Ledger, Reservation

ClientId = int | str

_metadata = sa.MetaData()
_CHANGES = {"changes": True}  # no triggers: rows are updated and erased
_runs = sa.Table(
    "fedtally_runs",
    _metadata,
    sa.Column("plan", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(200), nullable=False),  # of what the ledger reserved
    sa.Column("epoch", sa.BigInteger, nullable=False),  # how often it was claimed
    sa.Column("writes", sa.BigInteger, nullable=False),  # since it began
    info=_CHANGES,
)
_sessions = sa.Table(
    "fedtally_campaign_sessions",
    _metadata,
    sa.Column("session", sa.String(64), primary_key=True),
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("clients", sa.Text, nullable=False),  # JSON: names are texts or integers
    sa.Column("soft", sa.BigInteger, nullable=False),
    sa.Column("hard", sa.BigInteger, nullable=False),
    sa.Column("not_after", sa.BigInteger, nullable=False),
    sa.Column("checkpoint", sa.LargeBinary),
    sa.Column("farewell", sa.LargeBinary),
    info=_CHANGES,
)
_asked = sa.Table(
    "fedtally_asked",
    _metadata,
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("client", sa.Text, primary_key=True),  # JSON
    sa.Column("session", sa.String(64), nullable=False),
)
_landed = sa.Table(
    "fedtally_landed",
    _metadata,
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), primary_key=True),
    sa.Column("session", sa.String(128), primary_key=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("clients", sa.BigInteger, nullable=False),
    time_column(),
)
_sums = sa.Table(
    "fedtally_sums",
    _metadata,
    sa.Column("plan", sa.ForeignKey(_runs.c.plan), primary_key=True),
    sa.Column("session", sa.String(128), primary_key=True),
    sa.Column("round", sa.Integer, nullable=False),
    sa.Column("sketch", sa.LargeBinary, nullable=False),
    info=_CHANGES,
)


@dataclass(frozen=True)
class SavedSession:
    """What a store keeps of a session.

    Attributes:
        session: its 32 bytes.
        round: of the campaign.
        clients: those who were drawn, by the names that the transport has for them; once the
            session has ended, those who hear the farewell.
        checkpoint: of the session's state machine; None: the session has ended, and what it held is
            erased.
        closes: when the phase closes if it can go on, and when it closes anyway; Unix seconds.
        not_after: when the session is given up, Unix seconds.
        farewell: the last frame, the same for everybody; None: the session goes on.
        version: how often it was written. A store refuses to write a version but the next.
    """

    session: bytes
    round: int
    clients: tuple[ClientId, ...]
    checkpoint: bytes | None
    closes: tuple[int, int]
    not_after: int
    farewell: bytes | None = None
    version: int = 0


class Campaigns(Database):
    """The SQLite file of the campaigns that a server runs.

    Made by `open`. Safe to use from several threads and processes, each with its own.
    """

    _kind = "campaigns"
    _beside = frozenset({"ledger"})
    _metadata = _metadata

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Self:
        """Open a file of campaigns.

        Args:
            path: of the SQLite file; one that holds a ledger will do.
            create: make the file, or the tables in it, if they are missing.

        Raises:
            UnreadableFileError: there are no campaigns, or of a newer version, or something else.
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
            plan: of the campaign.
            mark: the path of the mark, outside of this file and of its backups.
            clock: returns the time, Unix seconds.
            owner: a name for what the campaign reserves, if nobody claimed it before: such as 32
                random bytes in hexadecimal.
            ledger: what is charged for the releases, in SQLite or PostgreSQL.

        Raises:
            InvalidInputError: the plan has privacy and there is no ledger, or this file is behind
                its mark, as a copy that was put back is.
        """
        if plan.privacy is not None and ledger is None:
            raise InvalidInputError(
                "a plan with privacy is charged before a sum is opened: name the ledger"
            )
        owner, place = checked_name(owner=owner), Path(mark)
        with self._transaction(write=True) as connection:
            row = _run(connection, plan)
            marked = _read_mark(place, plan)
            if row is None and marked:
                raise _put_back(self.name, place, 0, marked)
            if row is None:
                first = {"plan": plan.fingerprint, "owner": owner, "epoch": 1, "writes": 1}
                connection.execute(sa.insert(_runs).values(**first))
            else:
                if row.writes < marked:
                    raise _put_back(self.name, place, row.writes, marked)
                connection.execute(
                    sa.update(_runs)
                    .where(_runs.c.plan == plan.fingerprint)
                    .values(epoch=row.epoch + 1, writes=row.writes + 1)
                )
            now = _run(connection, plan)
            assert now is not None
        _write_mark(place, plan, now.writes)
        store = CampaignStore(self, plan, now.epoch, now.owner, place, clock, ledger)
        store._erase_released()  # the process before may have died between the two
        return store

    def give_up(self, plan: Plan, *, mark: str | os.PathLike[str]) -> int:
        """End all sessions of a campaign without a sum, and go on from its mark; return how many.

        For a copy that was put back. What landed since the copy was made is lost. Under central
        trust the sums that are not released are erased too: they may have been, with other noise.

        Args:
            plan: of the campaign.
            mark: as for `claim`.
        """
        place = Path(mark)
        with self._transaction(write=True) as connection:
            row = _run(connection, plan)
            if row is None:
                raise InvalidInputError(
                    f"{self.name} holds nothing of this plan: there is nothing to give up; begin"
                    " the campaign anew with a new plan"
                )
            mine = _sessions.c.plan == plan.fingerprint
            ended = connection.execute(sa.delete(_sessions).where(mine)).rowcount
            # Noise of clients or of two servers is in a sum for good. An aggregator's is not.
            if plan.privacy is not None and plan.privacy.event.trust is Trust.CENTRAL:
                connection.execute(sa.delete(_sums).where(_sums.c.plan == plan.fingerprint))
            writes = max(row.writes, _read_mark(place, plan)) + 1
            connection.execute(
                sa.update(_runs)
                .where(_runs.c.plan == plan.fingerprint)
                .values(epoch=row.epoch + 1, writes=writes)
            )
        _write_mark(place, plan, writes)
        return ended


class CampaignStore:
    """The books and the sessions of one campaign, for the process that claimed it.

    It is what `campaign.driver.Driver` asks for; made by `Campaigns.claim`. Each method that writes
    raises `OvertakenError`, and changes nothing, once another process has claimed the campaign.
    """

    def __init__(
        self,
        campaigns: Campaigns,
        plan: Plan,
        epoch: int,
        owner: str,
        mark: Path,
        clock: Callable[[], int],
        ledger: Ledger | None,
    ) -> None:
        self._campaigns, self._plan, self._name = campaigns, plan, plan.fingerprint
        self._epoch, self._owner, self._mark = epoch, owner, mark
        self._clock, self._ledger = clock, ledger

    # ---- sessions ----

    def save(self, plan: Plan, session: SavedSession, asked: Collection[ClientId]) -> None:
        """Write a session, and whom it asks, if the version before is the one that is there."""
        self._check(plan)
        row = _row(self._name, session)
        with self._write() as connection:
            if session.version == 1:
                connection.execute(sa.insert(_sessions).values(**row))
            else:
                before = (_sessions.c.session == row["session"]) & (
                    _sessions.c.version == session.version - 1
                )
                changed = connection.execute(sa.update(_sessions).where(before).values(**row))
                if changed.rowcount != 1:
                    raise OvertakenError(
                        f"session {row['session'][:16]} was written by another process: this one"
                        " must not speak any more"
                    )
            if asked:
                same = {"plan": self._name, "round": session.round, "session": row["session"]}
                connection.execute(
                    sa.insert(_asked), [same | {"client": _client(client)} for client in asked]
                )

    def sessions(self, plan: Plan) -> list[SavedSession]:
        """Return the sessions that go on, and those that ended and may still have to say how."""
        self._check(plan)
        query = sa.select(_sessions).where(_sessions.c.plan == self._name)
        with self._campaigns._transaction(write=False) as connection:
            return [_saved(row) for row in connection.execute(query.order_by(_sessions.c.session))]

    def forget(self, plan: Plan, session: bytes) -> None:
        """Erase a session that has ended. Who was asked, and what landed, stays."""
        self._check(plan)
        with self._write() as connection:
            connection.execute(sa.delete(_sessions).where(_sessions.c.session == session.hex()))

    def asked(self, plan: Plan) -> dict[int, set[ClientId]]:
        """Return who was asked for items, by round."""
        self._check(plan)
        query = sa.select(_asked.c.round, _asked.c.client).where(_asked.c.plan == self._name)
        found: dict[int, set[ClientId]] = {}
        with self._campaigns._transaction(write=False) as connection:
            for row in connection.execute(query):
                found.setdefault(row.round, set()).add(json.loads(row.client))
        return found

    def landed_clients(self, plan: Plan) -> dict[int, int]:
        """Return the number of clients in the sums that landed, by round."""
        self._check(plan)
        query = (
            sa.select(_landed.c.round, sa.func.sum(_landed.c.clients).label("clients"))
            .where(_landed.c.plan == self._name)
            .group_by(_landed.c.round)
        )
        with self._campaigns._transaction(write=False) as connection:
            return {row.round: int(row.clients) for row in connection.execute(query)}

    # ---- books ----

    def reserve(self, plan: Plan, release: int) -> None:
        """Charge a release of a plan with privacy. Whoever claims the campaign may repeat it.

        Raises:
            AlreadySpentError: it was released, or another campaign's run reserved it.
            OverspentError: the population has too little left.
            OvertakenError: another process runs the campaign.
        """
        self._check(plan)
        self._check_epoch()
        self._reservation(release)

    def has_landed(self, plan: Plan, session: bytes) -> bool:
        """Tell whether the sum of a session has landed."""
        self._check(plan)
        with self._campaigns._transaction(write=False) as connection:
            return connection.execute(_landing(self._name, session)).first() is not None

    def land(self, plan: Plan, session: bytes, sketch: CountSketch) -> bool:
        """Keep the sum of a session, once, and erase its checkpoint; return whether it counts."""
        self._check(plan)
        same = {"plan": self._name, "session": session.hex(), "round": sketch.round}
        with self._write() as connection:
            if connection.execute(_landing(self._name, session)).first() is not None:
                return False
            fact = same | {"clients": sketch.num_clients, "time": seconds(self._clock())}
            connection.execute(sa.insert(_landed).values(**fact))
            connection.execute(sa.insert(_sums).values(**same, sketch=sketch.to_bytes()))
            connection.execute(
                sa.update(_sessions)
                .where(_sessions.c.session == session.hex())
                .values(checkpoint=None)
            )
        return True

    def sums(self, plan: Plan) -> list[CountSketch]:
        """Return the sums of the rounds that landed and are not released, by round."""
        self._check(plan)
        query = sa.select(_sums.c.sketch).where(_sums.c.plan == self._name)
        found: dict[int, CountSketch] = {}
        with self._campaigns._transaction(write=False) as connection:
            for row in connection.execute(query.order_by(_sums.c.round, _sums.c.session)):
                sketch = CountSketch.from_bytes(row.sketch, "a sum of the store")
                if sketch.round in found:
                    found[sketch.round].merge(sketch)
                else:
                    found[sketch.round] = sketch
        gone = self._released_rounds()
        return [sketch for round, sketch in found.items() if round not in gone]

    def release(self, plan: Plan, noised: Mapping[int, CountSketch]) -> None:
        """Keep what is released in the ledger, all of it at once, and erase what it was made of.

        Raises:
            InvalidInputError: a release was not reserved.
            AlreadySpentError: one was released before, with other noise.
            OvertakenError: another process runs the campaign.
        """
        self._check(plan)
        self._check_epoch()
        self._books().land_all(
            {
                Reservation(self._name, number): sketch.to_bytes()
                for number, sketch in noised.items()
            },
            self._owner,
            self._clock(),
        )
        self._erase_released()

    def released(self, plan: Plan) -> dict[int, CountSketch]:
        """Return what was released, by the number of the release."""
        self._check(plan)
        if self._ledger is None:
            return {}
        return {
            landing.release: CountSketch.from_bytes(
                self._ledger.sketch(self._name, landing.release), "a release of the ledger"
            )
            for landing in self._ledger.landings(self._name)
        }

    def _erase_released(self) -> None:
        """Erase the sums of what is released: at once, or by the process after a crash."""
        gone = self._released_rounds()
        if gone:
            mine = (_sums.c.plan == self._name) & _sums.c.round.in_(sorted(gone))
            with self._write() as connection:
                connection.execute(sa.delete(_sums).where(mine))

    def _released_rounds(self) -> set[int]:
        if self._ledger is None:
            return set()
        landings = self._ledger.landings(self._name)
        return {round for one in landings for round in self._plan.releases[one.release]}

    def _reservation(self, release: int) -> Reservation:
        privacy = self._plan.privacy
        assert privacy is not None
        charge = Charge(privacy.population, self._name, release, privacy.event)
        return self._books().reserve(charge, self._owner, seconds(self._clock()))

    def _books(self) -> Ledger:
        assert self._ledger is not None  # `claim` refuses a plan with privacy without one
        return self._ledger

    # ---- one writer ----

    def _check(self, plan: Plan) -> None:
        if plan.fingerprint != self._name:
            raise InvalidInputError("this store was claimed for another plan")

    def _check_epoch(self) -> None:
        with self._campaigns._transaction(write=False) as connection:
            row = _run(connection, self._plan)
        if row is None or row.epoch != self._epoch:
            raise _overtaken(self._name)

    @contextmanager
    def _write(self) -> Iterator[sa.Connection]:
        """Give a transaction of the process whose epoch is the last; the mark follows it."""
        with self._campaigns._transaction(write=True) as connection:
            row = _run(connection, self._plan)
            if row is None or row.epoch != self._epoch:
                raise _overtaken(self._name)
            connection.execute(
                sa.update(_runs).where(_runs.c.plan == self._name).values(writes=row.writes + 1)
            )
            yield connection
        # After the commit: a crash between the two leaves a file that is ahead of its mark, and
        # that is no copy. Before anything is sent: what was sent is behind the mark.
        _write_mark(self._mark, self._plan, row.writes + 1)


# ---- rows ----


def _run(connection: sa.Connection, plan: Plan) -> sa.Row[Any] | None:
    return connection.execute(sa.select(_runs).where(_runs.c.plan == plan.fingerprint)).first()


def _landing(plan: str, session: bytes) -> sa.Select[Any]:
    return sa.select(_landed.c.round).where(
        (_landed.c.plan == plan) & (_landed.c.session == session.hex())
    )


def _row(plan: str, session: SavedSession) -> dict[str, Any]:
    return {
        "session": session.session.hex(),
        "plan": plan,
        "version": session.version,
        "round": session.round,
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
    )


def _client(client: ClientId) -> str:
    return json.dumps(client)


def _overtaken(plan: str) -> OvertakenError:
    return OvertakenError(
        f"another process runs the campaign of plan {plan[:16]}: this one must neither write nor"
        " speak; stop it"
    )


def _put_back(name: str, mark: Path, writes: int, marked: int) -> InvalidInputError:
    return InvalidInputError(
        f"{name} has {writes} writes of this campaign, and its mark {mark} says {marked}: a copy"
        " was put back, which does not know what clients were told since; give up its sessions"
        " first (Campaigns.give_up)"
    )


# ---- the mark ----


def _read_mark(path: Path, plan: Plan) -> int:
    """Return the number of the last write that is marked; 0: none is."""
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return 0
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"cannot read the mark {path}: {error}") from error
    name, _, writes = text.strip().partition(" ")
    if name != plan.fingerprint or not writes.isdecimal():
        raise UnreadableFileError(f"{path} is not the mark of plan {plan.fingerprint[:16]}")
    return int(writes)


def _write_mark(path: Path, plan: Plan, writes: int) -> None:
    """Replace the mark, durably."""
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "wb", buffering=0) as file:
            file.write(f"{plan.fingerprint} {writes}\n".encode())
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise UnreadableFileError(f"cannot write the mark {path}: {error.strerror}") from error
