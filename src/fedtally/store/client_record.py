"""A client's own record of the rounds it took part in, and the `Journal` of one round in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import sqlalchemy as sa

from fedtally.base import validate
from fedtally.base.links import real_path
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.privacy.accounting import Guarantee
from fedtally.privacy.budget import (
    NAME,
    AlreadySpentError,
    Cap,
    Charge,
    OverspentError,
    check_cap,
    check_participation,
    check_spend,
    checked_name,
    is_name,
)
from fedtally.privacy.events import Event, Relation
from fedtally.store.database import (
    MOST_NAME_BYTES,
    GrantDatabase,
    driver_connection,
    event_from_json,
    event_to_json,
    file_url,
    grant_tables,
    opened,
    prepared,
    seconds,
    time_column,
)
from fedtally.store.marks import hold_mark, read_mark, write_mark
from fedtally.store.outbox import (
    Fate,
    Unsent,
    find_fate,
    find_unsent,
    outbox_tables,
    put_report,
)
from fedtally.store.writes import count_write, write_tables, writes_of

if TYPE_CHECKING:
    from fedtally.secagg.two_server import Report

_MARKED = "client-record"  # the name in the mark of a record

_record = sa.MetaData()
_record_grants = grant_tables(_record)
_participations = sa.Table(
    "fedtally_participations",
    _record,
    sa.Column("plan", sa.String(200), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("population", sa.String(200), nullable=False),
    sa.Column("event", sa.Text),  # null: the plan is without differential privacy
    sa.Column("item", sa.String(200), unique=True),  # null: no label; nulls may repeat
    time_column(),
)
# Caps on the cost of everything in the record. Rows are never changed: the last one counts.
_caps = sa.Table(
    "fedtally_caps",
    _record,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("relation", sa.String(20), nullable=False),
    sa.Column("per_days", sa.Integer),  # null: the cap is for all time
    time_column(),
)
# Sessions that the client began: it begins none of them twice, even after a crash.
_sessions = sa.Table(
    "fedtally_begun_sessions",
    _record,
    sa.Column("session", sa.String(2 * MOST_NAME_BYTES), primary_key=True),
    sa.Column("not_after", sa.BigInteger, nullable=False),
)
# Plans of registrars that the owner accepted. A registrar numbers its plans within each purpose.
_accepted = sa.Table(
    "fedtally_accepted_plans",
    _record,
    sa.Column("registrar", sa.String(64), primary_key=True),
    sa.Column("purpose", sa.String(200), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("plan", sa.String(200), nullable=False),
    time_column(),
)
# Plans that a registrar ended. It can only end plans that it signed: the row has its public key.
_ended = sa.Table(
    "fedtally_ended_plans",
    _record,
    sa.Column("registrar", sa.String(64), primary_key=True),
    sa.Column("plan", sa.String(200), primary_key=True),
    time_column(),
)
outbox_tables(_record)
write_tables(_record)  # counted writes: sessions, parts, answers of servers, plans of registrars


class Part(NamedTuple):
    """A round that a client took part in.

    Attributes:
        plan: the fingerprint of the plan.
        round: the number of the round.
        population: the population that the plan names.
        event: the event of the whole campaign; None: the plan is without differential privacy.
        time: when the client took part, by the record's time, Unix seconds.
    """

    plan: str
    round: int
    population: str
    event: Event | None
    time: int


class Standing(NamedTuple):
    """What a client must know of its record before it begins a session of a round.

    Attributes:
        sessions: the number of sessions that the client began and that end at `since` or later
            (see `ClientRecord.standing`).
        cap: the cap on the cost of everything in the record; None: there is none.
        refusal: why `take_part` would refuse the round now; None: it would not.
    """

    sessions: int
    cap: Cap | None
    refusal: str | None = None


class ClientRecord(GrantDatabase):
    """A client's own record of the rounds it took part in, so that it need not trust an operator.

    Made by `open`, one file for each client identity. Its owner may set a `cap` on the cost of
    everything in the record together, whatever populations the operators name. The owner may also
    `grant` to populations: campaigns that cost a population more are refused, by the ledger's rule.

    If somebody puts an old copy of the file back, the copy lacks what the client did since. A
    *mark* in another folder shows this (`store.marks`). Each write is counted in the mark before
    the method returns, and a record with fewer writes than its mark is refused.

    A part (one round that the client took part in) is stored with the record's time. This is the
    clock's time, or the time of the newest part if that is later. A cap in days counts all parts
    from its period's start on, also those with a time after now. So setting the clock back renews
    nothing. If the clock was ahead once, the parts of that time count until the true time is later.

    The record also holds what a registrar says of plans (`accept`, `end`), so that a client does
    not go back to an older plan.
    """

    _kind = "client record"
    _schema = 5
    _anew = (
        "begin anew with a new key and a new record (fedtally agent init), and allow only the rest"
        " of the epsilon"
    )
    _metadata = _record
    _populations, _granted = _record_grants
    _mark: Path | None = None
    _on_disk = -1  # the number in the mark that is surely on the disk; -1: not known

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        mark: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Open the record in an SQLite file.

        Args:
            path: the path of the SQLite file.
            create: make the file and its mark if neither is there.
            mark: the path of the mark, outside of the record's folder and its backups. None: there
                is no mark, and an old copy of the record is not noticed.

        Raises:
            UnreadableFileError: the file is missing, is no record or has another version; or the
                record has fewer writes than its mark, or its mark is missing.
        """
        url = file_url(os.fspath(path))
        if mark is None:
            return opened(cls, url, create)
        place = real_path(mark)
        if not os.path.lexists(path):
            marked = read_mark(place, _MARKED)
            if marked:  # checked before an empty record is made, which would hide the loss
                raise _put_back(os.fspath(path), place, 0, marked)
            if create:  # the mark first: a record without one is refused
                write_mark(place, _MARKED, 0)
        record = opened(cls, url, create)
        record._mark = place
        with record._transaction(write=False) as connection:
            record._check_mark(connection)
        return record

    def cap(
        self,
        epsilon: float,
        delta: float,
        time: int,
        relation: Relation | str = Relation.ZERO_OUT,
        per_days: int | None = None,
    ) -> None:
        """Cap the cost of all campaigns in this record together; a later cap replaces an earlier.

        Each campaign counts in full from its first round on, by the proven bound of its event. With
        `per_days`, it counts only with its parts in the last `per_days` days. Under a cap, rounds
        without differential privacy are refused, since they have no epsilon.

        Args:
            epsilon: the largest total epsilon, above 0 and at most 1000.
            delta: the delta of the total, at least 1e-15 and below 1; or 0, for geometric noise
                alone.
            time: now, Unix seconds.
            relation: the neighbouring relation of the total, `zero-out` or `replace-one`. Those of
                the plans do not matter.
            per_days: the length of the cap's period in days, 1 to 3660; None: the cap is for all
                time.

        Raises:
            InvalidInputError: a value is out of bounds; or the record holds a part without
                differential privacy, which no cap covers.
        """
        new = Cap(epsilon, delta, Relation.parse(relation), per_days)
        values = {
            "epsilon": new.epsilon,
            "delta": new.delta,
            "relation": str(new.relation),
            "per_days": new.per_days,
            "time": seconds(time),
        }
        with self._transaction(write=True) as connection:
            _check_coverable(connection)
            connection.execute(sa.insert(_caps).values(**values))

    def check_coverable(self) -> None:
        """Check that `cap` would accept the parts in the record; nothing is recorded.

        Raises:
            InvalidInputError: the record holds a part without differential privacy.
        """
        with self._transaction(write=False) as connection:
            _check_coverable(connection)

    def capped(self) -> Cap | None:
        """Return the cap on everything in the record; None if there is none."""
        with self._transaction(write=False) as connection:
            return self._cap(connection)

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session of secure summation before it begins.

        Args:
            session: the session's name, 1 to 64 bytes.
            not_after: the end of the session, Unix seconds.

        Returns:
            False if the session was recorded before: then the client must not take part in it.
        """
        name = _session(session)
        with self._marked() as connection:
            if connection.exec_driver_sql(_FIND_SESSION, {"name": name}).first() is not None:
                return False
            count_write(driver_connection(connection))
            new = {"session": name, "not_after": seconds(not_after)}
            connection.exec_driver_sql(_ADD_SESSION, new)
        return True

    def take_part(
        self,
        population: str,
        plan: str,
        round: int,
        event: Event | None,
        time: int,
        item: str | None = None,
        report: Report | None = None,
    ) -> None:
        """Record that the client takes part in a round; call it before the masked input leaves.

        Args:
            population: the population that the plan names.
            plan: the fingerprint of the plan.
            round: the number of the round.
            event: the event of the whole campaign. None: the campaign is without differential
                privacy, and the client may take part in any number of its rounds.
            time: now, Unix seconds.
            item: a label of the contributed items. The record accepts each label once, over all
                plans. None: the items have no label.
            report: a report to two servers, whose two frames are put into the outbox in the same
                transaction. None: the contribution cannot be sent again after a crash.

        Raises:
            AlreadySpentError: the client took part in that round before, or contributed that label.
            OverspentError: the client took part as often as the event allows, in all rounds or in
                rounds in a row around this one; or the owner's grant or cap does not cover it.
            InvalidInputError: as `budget.check_participation`; or the plan came with an event
                before and has none now, or the reverse.
        """
        round, time = _checked_part(population, plan, round, item), seconds(time)
        with self._marked() as connection:
            self._check_part(connection, population, plan, round, event, time, item)
            passed = _passed(connection, time)
            count_write(driver_connection(connection))
            text = None if event is None else event_to_json(event)
            values = {
                "population": population,
                "plan": plan,
                "round": round,
                "event": text,
                "item": item,
            }
            connection.exec_driver_sql(_ADD_PART, values | {"time": passed})
            if report is not None:
                put_report(connection, plan, round, time, report)

    def outbox(self) -> list[Unsent]:
        """Return the reports to two servers that are still to be sent, the oldest first."""
        with self._transaction(write=False) as connection:
            return find_unsent(connection, self)

    def fate(self, plan: str, round: int) -> Fate | None:
        """Return what became of a report to two servers.

        None: the report is still in the outbox, or there is no such report.

        Args:
            plan: the fingerprint of the plan.
            round: the number of the round.
        """
        with self._transaction(write=False) as connection:
            return find_fate(connection, plan, round)

    def check_part(
        self,
        population: str,
        plan: str,
        round: int,
        event: Event | None,
        item: str | None = None,
        cap: Cap | None = None,
        time: int = 0,
    ) -> None:
        """Raise what `take_part` would raise now; nothing is recorded.

        A client calls it before a session, so that it does not begin one in vain.

        Args:
            population: the population that the plan names.
            plan: the fingerprint of the plan.
            round: the number of the round.
            event: the event of the whole campaign, or None.
            item: a label of the contributed items, or None.
            cap: a cap to use in place of the record's cap; None: the record's cap counts.
            time: now, Unix seconds: the end of the period of a cap in days.

        Raises:
            InvalidInputError: as `take_part`.
        """
        round = _checked_part(population, plan, round, item)
        with self._transaction(write=False) as connection:
            self._check_part(connection, population, plan, round, event, seconds(time), item, cap)

    def _check_part(
        self,
        connection: sa.Connection,
        population: str,
        plan: str,
        round: int,
        event: Event | None,
        time: int,
        item: str | None,
        cap: Cap | None = None,
    ) -> None:
        part = {"of": plan, "number": round, "label": item}
        found = connection.exec_driver_sql(_FIND_PART, part).first()
        if found is not None:
            if (found.plan, found.round) == (plan, round):
                raise AlreadySpentError(f"the client took part in round {round} of plan {plan}")
            # the label is not quoted: errors are logged, and it may tell what the client holds
            raise AlreadySpentError(
                "these items took part already, by their label (once), in round"
                f" {found.round} of plan {found.plan}: a label counts once, whatever the plan;"
                " change it when the items are new"
            )
        charge = None if event is None else Charge(population, plan, round, event)
        # A plan without an event skips the checks below. If a plan could drop its event between
        # two rounds, it could pass them all.
        before = connection.exec_driver_sql(_FIND_EVENT, {"of": plan}).first()
        if before is not None and (before.event is None) != (event is None):
            came, comes = ("without", "with") if before.event is None else ("with", "without")
            raise InvalidInputError(
                f"plan {plan} came {came} differential privacy before, and comes {comes} it"
                " now: a plan has one event"
            )
        if charge is not None:
            self._check_charge(connection, charge)
        _check_capped(connection, charge, cap or self._cap(connection), time)

    def _check_charge(self, connection: sa.Connection, charge: Charge) -> None:
        """Refuse a part that exceeds the event's participations or the owner's grant."""
        # Rows of this plan under another population are read too: a plan that changes its
        # population is refused.
        theirs = {"whose": charge.population, "of": charge.plan}
        rows = connection.exec_driver_sql(_FIND_CHARGES, theirs).all()
        charges = [
            Charge(row.population, row.plan, row.round, event_from_json(row.event))
            for row in rows
            if row.event
        ]
        check_participation(charges, charge)
        grant = self._grant(connection, charge.population)
        if grant is not None:
            check_spend(grant, charges, charge)

    def _cap(self, connection: sa.Connection) -> Cap | None:
        row = connection.exec_driver_sql(_LAST_CAP).first()
        if row is None:
            return None
        return Cap(row.epsilon, row.delta, Relation.parse(row.relation), row.per_days)

    def participations(self, plan: str) -> list[int]:
        """Return the rounds of a plan that the client took part in, in order."""
        known = _participations.c
        with self._transaction(write=False) as connection:
            rows = connection.execute(
                sa.select(known.round).where(known.plan == plan).order_by(known.round)
            )
            return [row.round for row in rows]

    def parts(self) -> list[Part]:
        """Return all rounds that the client took part in, the oldest first, without items."""
        with self._transaction(write=False) as connection:
            return _parts(connection)

    def spent(self, cap: Cap | None = None, time: int = 0) -> Guarantee | None:
        """Return the total cost of the parts that count under a cap.

        None: there is no cap, or no part counts.

        Args:
            cap: a cap to use in place of the record's cap; None: the record's cap counts.
            time: now, Unix seconds: the end of the period of a cap in days.
        """
        cap = cap or self.capped()
        charges = [
            Charge(part.population, part.plan, part.round, part.event)
            for part in self.parts()
            if part.event and cap is not None and part.time > cap.since(time)
        ]
        return None if cap is None or not charges else cap.total(charges).guarantee

    def standing(
        self,
        since: int,
        population: str,
        plan: str,
        round: int,
        event: Event | None,
        item: str | None = None,
        time: int = 0,
    ) -> Standing:
        """Return what a client must know before it begins a session, read in one transaction.

        Args:
            since: a time, Unix seconds; sessions that end then or later are counted.
            population: the population that the plan names.
            plan: the fingerprint of the plan.
            round: the number of the round.
            event: the event of the whole campaign, or None.
            item: a label of the contributed items, or None.
            time: now, Unix seconds: the end of the period of a cap in days.
        """
        times, found = {"since": seconds(since)}, None
        try:
            with self._transaction(write=False) as connection:
                begun = int(connection.exec_driver_sql(_COUNT_SESSIONS, times).scalar_one())
                found = Standing(begun, self._cap(connection))
                round = _checked_part(population, plan, round, item)
                part = (population, plan, round, event, seconds(time), item)
                self._check_part(connection, *part, found.cap)
        except InvalidInputError as error:
            if found is None:  # the record cannot be read: that says nothing of the round
                raise
            return found._replace(refusal=str(error))
        return found

    # ---- plans of a registrar ----

    def accept(self, registrar: bytes, purpose: str, number: int, plan: str, time: int) -> None:
        """Record that the owner accepts a plan that a registrar signed.

        Args:
            registrar: the registrar's public key, 32 bytes.
            purpose: the purpose of the plan in the registrar's words; plans are numbered within it.
            number: the plan's number within the purpose.
            plan: the fingerprint of the plan.
            time: now, Unix seconds.

        Raises:
            InvalidInputError: as `check_accept`.
        """
        row = _of_plan(registrar, plan) | {"purpose": purpose, "number": number}
        with self._marked() as connection:
            if self._check_accept(connection, row):
                count_write(driver_connection(connection))
                connection.execute(sa.insert(_accepted).values(**row, time=seconds(time)))

    def check_accept(self, registrar: bytes, purpose: str, number: int, plan: str) -> None:
        """Raise what `accept` would raise now; nothing is recorded.

        Args:
            registrar: the registrar's public key, 32 bytes.
            purpose: the purpose of the plan in the registrar's words.
            number: the plan's number within the purpose.
            plan: the fingerprint of the plan.

        Raises:
            InvalidInputError: the registrar ended the plan; or the number is below the highest one
                that was accepted for this registrar and purpose; or it equals the highest one, and
                that is another plan's.
        """
        row = _of_plan(registrar, plan) | {"purpose": purpose, "number": number}
        with self._transaction(write=False) as connection:
            self._check_accept(connection, row)

    def has_accepted(self, registrar: bytes, plan: str) -> bool:
        """Return whether the owner ever accepted a plan that a registrar signed.

        Args:
            registrar: the registrar's public key, 32 bytes.
            plan: the fingerprint of the plan.
        """
        known, row = _accepted.c, _of_plan(registrar, plan)
        found = sa.select(known.number).where(
            known.registrar == row["registrar"], known.plan == row["plan"]
        )
        with self._transaction(write=False) as connection:
            return connection.execute(found).first() is not None

    def _check_accept(self, connection: sa.Connection, row: dict[str, Any]) -> bool:
        """Return whether a row of an accepted plan is new; raise InvalidInputError if refused."""
        if connection.exec_driver_sql(_FIND_ENDED, row).first() is not None:
            raise InvalidInputError(
                f"plan {row['plan']} was replaced or revoked by its registrar, for good: get the"
                " plan that is open now"
            )
        last = connection.exec_driver_sql(_LAST_NUMBER, row).first()
        if last is None or last.number < row["number"]:
            return True
        if (last.number, last.plan) == (row["number"], row["plan"]):
            return False
        raise InvalidInputError(
            f"plan {row['plan']} has the number {row['number']} of its purpose, and plan"
            f" {last.plan} with the number {last.number} was accepted: ask the registrar for the"
            " newest signature"
        )

    def end(self, registrar: bytes, plans: Iterable[str], time: int) -> None:
        """Record that a registrar replaced or revoked plans, which this client then never accepts.

        Args:
            registrar: the registrar's public key, 32 bytes. Plans of other registrars go on.
            plans: the fingerprints of the plans; the record need not know them.
            time: now, Unix seconds.
        """
        rows = [_of_plan(registrar, plan) for plan in plans]
        with self._marked() as connection:
            new = [
                row | {"time": seconds(time)}
                for row in rows
                if connection.exec_driver_sql(_FIND_ENDED, row).first() is None
            ]
            if new:
                count_write(driver_connection(connection))
                connection.execute(sa.insert(_ended), new)

    def why_over(self, registrar: bytes, purpose: str, number: int, plan: str) -> str | None:
        """Return in words why a client must not go on with a registrar's plan; None: it may.

        Args:
            registrar: the registrar's public key, 32 bytes.
            purpose: the purpose of the plan in the registrar's words.
            number: the plan's number in the signature that the client has.
            plan: the fingerprint of the plan.
        """
        row = _of_plan(registrar, plan) | {"purpose": purpose}
        with self._transaction(write=False) as connection:
            if connection.exec_driver_sql(_FIND_ENDED, row).first() is not None:
                return "its registrar replaced or revoked it"
            # an earlier signature of the same plan may have a later day
            if connection.exec_driver_sql(_LAST_OF_PLAN, row).scalar_one() != number:
                return "the record does not know that it was accepted so last: accept it anew"
        return None

    # ---- the mark ----

    @contextmanager
    def _marked(self) -> Iterator[sa.Connection]:
        """Yield a writing transaction; after its commit, write the mark."""
        # The mark is locked before it is read, and until it is written. So if two processes use the
        # record, or two copies of it, the second one sees the first one's number.
        with nullcontext() if self._mark is None else hold_mark(self._mark):
            with self._transaction(write=True) as connection:
                self._check_mark(connection)
                # The mark must have the record's number before each write: see `store/writes.py`.
                self._write_mark(writes_of(driver_connection(connection)))
                yield connection
                writes = writes_of(driver_connection(connection))
            # The mark is written after the commit. A crash in between leaves a record with more
            # writes than its mark, which is not taken for an old copy.
            self._write_mark(writes)

    def _write_mark(self, writes: int) -> None:
        """Write a number of writes to the mark, if there is a mark and the number is new."""
        if self._mark is not None and self._on_disk != writes:
            write_mark(self._mark, _MARKED, writes)
            self._on_disk = writes

    def _check_mark(self, connection: sa.Connection) -> None:
        """Raise UnreadableFileError if the record is behind its mark, or its mark is missing."""
        if self._mark is None:
            return
        writes = writes_of(driver_connection(connection))
        marked = read_mark(self._mark, _MARKED)
        if marked is None:  # an empty record, too: it may be the copy of the first day
            raise UnreadableFileError(
                f"the record {self.name} has no mark at {self._mark}, so nothing shows that it is"
                " no old copy: put the mark back where it was; if it is lost, begin anew with a new"
                " key and a new record, and allow less"
            )
        if writes < marked:
            raise _put_back(self.name, self._mark, writes, marked)


@dataclass(frozen=True)
class Journal:
    """The `secagg.client.Journal` of one round of a plan, kept in a client's record.

    The population and the event are those of the plan. For a plan without privacy the population is
    "clients", and the number of rounds has no bound. A journal is for one round: another round
    needs another journal.

    Args:
        record: the record of the client identity.
        plan: the plan of the campaign.
        round: the number of the round.
        time: now, Unix seconds; `at` changes it during a session.
        item: a label of the contributed items, as in `ClientRecord.take_part`.

    Attributes:
        refusal: the reason why the last `spend` was refused, for the client's owner; "" if it was
            not.
    """

    record: ClientRecord
    plan: Plan
    round: int
    time: int
    item: str | None = field(default=None, repr=False)  # a log must not show it
    refusal: str = ""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the plan."""
        return self.plan.fingerprint

    def at(self, now: int) -> None:
        """Set the time with which `spend` records the part.

        A session may last a day. If the part had the time of the session's Invite message, a cap in
        days would stop counting it a day too early.

        Args:
            now: the time, Unix seconds.
        """
        object.__setattr__(self, "time", now)  # the class is frozen to protect the round only

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session before it begins; return False if it was recorded before."""
        return self.record.begin(session, not_after)

    def spend(self, session: bytes) -> bool:
        """Record that the client takes part in the round; return False if the record refuses.

        `refusal` then says why, for instance: the client took part before or too often, or its cap
        does not cover the part.
        """
        return self._ask(self.record.take_part, time=self.time)

    def spend_report(self, report: Report) -> bool:
        """Do as `spend`, and put both frames of a report into the outbox, in one transaction."""
        return self._ask(self.record.take_part, time=self.time, report=report)

    def standing(self, since: int) -> Standing:
        """Return the record's `Standing` before a session of this round; nothing is recorded.

        Args:
            since: a time, Unix seconds; sessions that end then or later are counted.
        """
        return self.record.standing(since, *self._part, item=self.item, time=self.time)

    def may_spend(self, cap: Cap | None = None) -> bool:
        """Return whether `spend` would succeed now; nothing is recorded.

        If not, `refusal` says why.

        Args:
            cap: a cap to use in place of the record's cap; None: the record's cap counts.
        """
        return self._ask(self.record.check_part, cap=cap, time=self.time)

    def _ask(self, method: Callable[..., None], **more: Any) -> bool:
        """Call a method of the record for this round; return False if it refuses the round."""
        self._refuse("")
        try:
            method(*self._part, item=self.item, **more)
        except InvalidInputError as error:
            # A refusal is an InvalidInputError. A database that fails raises StoreError, which must
            # not look like a refusal.
            self._refuse(str(error))
            return False
        return True

    @property
    def _part(self) -> tuple[str, str, int, Event | None]:
        """The population, plan, round and event, as arguments for the record's methods."""
        terms = self.plan.privacy
        population, event = ("clients", None) if terms is None else (terms.population, terms.event)
        return population, self.fingerprint, self.round, event

    def _refuse(self, why: str) -> None:
        # the class is frozen to protect the fields that name the round, not this one
        object.__setattr__(self, "refusal", why)


def _of_plan(registrar: bytes, plan: str) -> dict[str, Any]:
    """Return the values of the columns `registrar` (hexadecimal) and `plan`."""
    checked_name(plan=plan)
    return {"registrar": registrar.hex(), "plan": plan}


def _checked_part(population: str, plan: str, round: int, item: str | None) -> int:
    """Return the number of the round, after checking all four values.

    Raises:
        InvalidInputError: a name, the label or the round is out of bounds.
    """
    checked_name(population=population)
    checked_name(plan=plan)
    if item is not None and not is_name(item):
        # the label is not quoted: errors are logged, and it may tell what the client holds
        raise InvalidInputError(f"an item's label must be {NAME}")
    return validate.integer(0, 2**31 - 1, round=round)


def _check_coverable(connection: sa.Connection) -> None:
    known = _participations.c
    bare = connection.execute(sa.select(known.plan).where(known.event.is_(None))).first()
    if bare is not None:
        raise InvalidInputError(
            f"the record holds a part in plan {bare.plan}, which is without differential privacy:"
            " no cap covers it; begin anew with a new key and a new record"
        )


def _check_capped(
    connection: sa.Connection, charge: Charge | None, cap: Cap | None, time: int
) -> None:
    """Refuse a part that a cap forbids.

    Args:
        connection: a connection in a transaction.
        charge: the part; None: it is without differential privacy.
        cap: the cap; None: there is none.
        time: now, Unix seconds: the end of the period of a cap in days.
    """
    if cap is None:
        return
    if charge is None:
        raise OverspentError(
            f"the record has a cap of epsilon {cap.epsilon:g}, and the plan is without"
            " differential privacy: what has no epsilon cannot be counted"
        )
    rows = connection.exec_driver_sql(_FIND_PARTS, {"since": cap.since(time)}).all()
    charges = [
        Charge(row.population, row.plan, row.round, event_from_json(row.event)) for row in rows
    ]
    check_cap(cap, charges, charge)


def _passed(connection: sa.Connection, time: int) -> int:
    """Return the record's time: the clock's time, or that of the newest part if it is later.

    So the times of parts never fall, and an earlier part never counts longer than a later one.
    """
    return max(time, connection.exec_driver_sql(_NEWEST).scalar_one() or 0)


def _parts(connection: sa.Connection) -> list[Part]:
    known = _participations.c
    order = (known.time, known.plan, known.round)
    rows = connection.execute(sa.select(_participations).order_by(*order))
    return [
        Part(
            row.plan,
            row.round,
            row.population,
            None if row.event is None else event_from_json(row.event),
            row.time,
        )
        for row in rows
    ]


# Statements that each session runs.
_FIND_SESSION = prepared(sa.select(_sessions).where(_sessions.c.session == sa.bindparam("name")))
_ADD_SESSION = prepared(sa.insert(_sessions))
_COUNT_SESSIONS = prepared(
    sa.select(sa.func.count())
    .select_from(_sessions)
    .where(_sessions.c.not_after >= sa.bindparam("since"))
)
_FIND_PARTS = prepared(
    sa.select(_participations).where(_participations.c.time > sa.bindparam("since"))
)
_NEWEST = prepared(sa.select(sa.func.max(_participations.c.time)))
# If the label is null, the second condition matches no row.
_FIND_PART = prepared(
    sa.select(_participations.c.plan, _participations.c.round).where(
        (
            (_participations.c.plan == sa.bindparam("of"))
            & (_participations.c.round == sa.bindparam("number"))
        )
        | (_participations.c.item == sa.bindparam("label"))
    )
)
_FIND_EVENT = prepared(
    sa.select(_participations.c.event).where(_participations.c.plan == sa.bindparam("of"))
)
_FIND_CHARGES = prepared(
    sa.select(_participations).where(
        (_participations.c.population == sa.bindparam("whose"))
        | (_participations.c.plan == sa.bindparam("of"))
    )
)
_ADD_PART = prepared(sa.insert(_participations))
_FIND_ENDED = prepared(
    sa.select(_ended.c.plan).where(
        (_ended.c.registrar == sa.bindparam("registrar")) & (_ended.c.plan == sa.bindparam("plan"))
    )
)
_LAST_OF_PLAN = prepared(
    sa.select(sa.func.max(_accepted.c.number)).where(
        (_accepted.c.registrar == sa.bindparam("registrar"))
        & (_accepted.c.purpose == sa.bindparam("purpose"))
        & (_accepted.c.plan == sa.bindparam("plan"))
    )
)
_LAST_NUMBER = prepared(
    sa.select(_accepted.c.number, _accepted.c.plan)
    .where(
        (_accepted.c.registrar == sa.bindparam("registrar"))
        & (_accepted.c.purpose == sa.bindparam("purpose"))
    )
    .order_by(_accepted.c.number.desc())
)
_LAST_CAP = prepared(
    sa.select(_caps).where(
        _caps.c.number == sa.select(sa.func.max(_caps.c.number)).scalar_subquery()
    )
)


def _put_back(name: str, mark: Path, writes: int, marked: int) -> UnreadableFileError:
    return UnreadableFileError(
        f"the record {name} holds {writes} writes, and its mark {mark} counts {marked}:"
        " the record was deleted, or an old copy of it was put back, which has forgotten what this"
        " client contributed; put back the newest one; if it is lost, begin anew with a new key"
        " and a new record, and allow only the rest of the epsilon"
    )


def _session(session: bytes) -> str:
    """Return the name of a session in hexadecimal, as its column stores it."""
    if not isinstance(session, bytes) or not 0 < len(session) <= MOST_NAME_BYTES:
        raise InvalidInputError(f"a session is 1 to {MOST_NAME_BYTES} bytes, got {session!r}")
    return session.hex()
