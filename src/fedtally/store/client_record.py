"""A client's own record of what it took part in, and the journal of a round that is kept in it."""

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

_MARKED = "client-record"  # what the mark of a record says it is the mark of

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
# What everything in the record may cost together. Rows are never changed: the last one counts.
_caps = sa.Table(
    "fedtally_caps",
    _record,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("relation", sa.String(20), nullable=False),
    sa.Column("per_days", sa.Integer),  # null: everything counts, for good
    time_column(),
)
# Sessions that began: the client is in none of them twice, even after a crash.
_sessions = sa.Table(
    "fedtally_begun_sessions",
    _record,
    sa.Column("session", sa.String(2 * MOST_NAME_BYTES), primary_key=True),
    sa.Column("not_after", sa.BigInteger, nullable=False),
)
# Plans that the owner accepted of a registrar, by the number that it gave each within a purpose.
_accepted = sa.Table(
    "fedtally_accepted_plans",
    _record,
    sa.Column("registrar", sa.String(64), primary_key=True),
    sa.Column("purpose", sa.String(200), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("plan", sa.String(200), nullable=False),
    time_column(),
)
# Plans that a registrar ended. It ends its own alone: the key of the row is the one that signed.
_ended = sa.Table(
    "fedtally_ended_plans",
    _record,
    sa.Column("registrar", sa.String(64), primary_key=True),
    sa.Column("plan", sa.String(200), primary_key=True),
    time_column(),
)
outbox_tables(_record)
write_tables(_record)  # a write is a session, a part, or what became of a plan


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
    """How a client's record stands at one moment, before a session of a round.

    Attributes:
        sessions: how many sessions the client began since the time that was asked for.
        cap: on the cost of everything in the record; None: there is none.
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

    A copy of the file that is put back has forgotten what the client did since. A *mark* in another
    folder shows that: what is recorded counts in the mark before the method returns, and a record
    that is behind its mark is refused.

    A part is written down with the record's time: the clock's, but never before the newest part. A
    cap in days counts back from the clock, and counts what seems to lie ahead, too. So a clock that
    is put back renews nothing, and after one that was ahead its parts count until it is as late.

    What its registrar says of plans is here, too (`accept`, `end`): an old plan cannot come back.
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
    _on_disk = -1  # what the mark surely has, on the disk too; -1: not known

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
            mark: the path of the mark, outside of the record's folder and its backups. None: a
                record that is put back is not noticed.

        Raises:
            UnreadableFileError: there is no record, or one of another version, or another file; or
                the record is behind its mark, or has none.
        """
        url = file_url(os.fspath(path))
        if mark is None:
            return opened(cls, url, create)
        place = real_path(mark)
        if not os.path.lexists(path):
            marked = read_mark(place, _MARKED)
            if marked:  # before an empty record is made, which would hide what is missing
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
        """Cap the cost of all campaigns in this record together; a later cap replaces the earlier.

        Each campaign counts in full from its first round on, by the proven bound of its event; with
        `per_days` it counts with its parts of the last days alone.
        Rounds without differential privacy have no epsilon: under a cap they are refused.

        Args:
            epsilon: the largest total, above 0 and at most 1000.
            delta: the delta of the total, at least 1e-15 and below 1; or 0, for geometric noise
                alone.
            time: now, Unix seconds.
            relation: how the total is stated, `zero-out` or `replace-one`, whatever the plans name.
            per_days: the days in a row that the cap is for, 1 to 3660; None: everything, for good.

        Raises:
            InvalidInputError: values out of bounds; or the record holds a part without differential
                privacy, which no cap covers.
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
        """Refuse a record that no cap covers, as `cap` does, and record nothing.

        Raises:
            InvalidInputError: it holds a part without differential privacy.
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
            False if it was recorded before: then the client must not take part.
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
            event: the event of the whole campaign; None: the campaign is without differential
                privacy, and the number of its rounds that the client is in has no bound.
            time: now, Unix seconds.
            item: a label of what is contributed; the record takes each label once, whatever the
                plan. None: no such rule.
            report: a report to two servers: both frames are in the outbox, in the same transaction.
                None: what the client sends cannot be sent again.

        Raises:
            AlreadySpentError: the client took part in that round, or contributed that item.
            OverspentError: the client took part as often as the event allows, of all rounds or of
                those in a row around this one; or the owner's grant or cap does not cover it.
            InvalidInputError: as `budget.check_participation`; or the plan came with an event
                before and has none now, or the other way round.
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
        """Return what became of a report; None while it is in the outbox, or if there is none.

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
        """Refuse what `take_part` would refuse now, and record nothing.

        A client asks before it begins a session, so that it begins none in vain.

        Args:
            population: the population that the plan names.
            plan: the fingerprint of the plan.
            round: the number of the round.
            event: the event of the whole campaign, or None.
            item: a label of what is contributed, or None.
            cap: counts in place of the record's own; None: that one counts.
            time: now, Unix seconds, from which a cap in days counts back.

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
        """Refuse a part that the event's bound, or the owner's grant to the population, forbids."""
        # the rows of the same plan under another population, too: a plan that changes it is refused
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
        """Return what counts of the record costs together, as a cap states it.

        None: there is no cap, or nothing counts.

        Args:
            cap: counts in place of the record's own; None: that one counts.
            time: now, Unix seconds, from which a cap in days counts back.
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
        """Return what a client must know before it begins a session, in one transaction.

        Args:
            since: sessions count that end at this time or later, Unix seconds.
            population: the population that the plan names.
            plan: the fingerprint of the plan.
            round: the number of the round.
            event: the event of the whole campaign, or None.
            item: a label of what is contributed, or None.
            time: now, Unix seconds, from which a cap in days counts back.
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
            registrar: its public key, 32 bytes.
            purpose: the registrar's own words; numbers count within it.
            number: what the registrar gave the plan.
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
        """Refuse what `accept` would refuse now, and record nothing.

        Args:
            registrar: the registrar's public key, 32 bytes.
            purpose: the registrar's own words.
            number: what the registrar gave the plan.
            plan: the fingerprint of the plan.

        Raises:
            InvalidInputError: the registrar ended the plan, or the number is below the highest that
                was accepted of this registrar and purpose, or is that of another plan.
        """
        row = _of_plan(registrar, plan) | {"purpose": purpose, "number": number}
        with self._transaction(write=False) as connection:
            self._check_accept(connection, row)

    def has_accepted(self, registrar: bytes, plan: str) -> bool:
        """Return whether a plan that a registrar signed was ever accepted.

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
        """Return whether a row of an accepted plan is new; raise an error if it is refused."""
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
        """Record that a registrar replaced or revoked plans: this client is done with them.

        Args:
            registrar: its public key, 32 bytes. Plans that another one signed go on.
            plans: their fingerprints; they need not be known here.
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
        """Return in words why a client is done with a plan that a registrar signed, or None.

        Args:
            registrar: the registrar's public key, 32 bytes.
            purpose: the registrar's own words.
            number: the number that the signature at hand gives the plan.
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
        """Give a writing transaction; the mark follows it before this ends."""
        # The mark is held before it is read, and until it is written: of two processes, also on two
        # copies of the record, the second one sees what the first one wrote.
        with nullcontext() if self._mark is None else hold_mark(self._mark):
            with self._transaction(write=True) as connection:
                self._check_mark(connection)
                # Before the next write, too: see `store/writes.py`.
                self._write_mark(writes_of(driver_connection(connection)))
                yield connection
                writes = writes_of(driver_connection(connection))
            # After the commit: a crash between the two leaves a record that is ahead of its mark,
            # and that is no copy.
            self._write_mark(writes)

    def _write_mark(self, writes: int) -> None:
        """Let the mark, if there is one, have this number."""
        if self._mark is not None and self._on_disk != writes:
            write_mark(self._mark, _MARKED, writes)
            self._on_disk = writes

    def _check_mark(self, connection: sa.Connection) -> None:
        """Refuse a record that is behind its mark, or has none."""
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

    The plan names the population that pays, and the event that is counted. For a plan without
    privacy the population is "clients", and the number of rounds has no bound. A journal is frozen:
    another round needs another journal.

    Args:
        record: the record of the client identity.
        plan: the plan of the campaign.
        round: the number of the round.
        time: now, Unix seconds; `at` sets it while a session goes on.
        item: a label of what is contributed, as in `ClientRecord.take_part`.

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
        """Set the time at which `spend` books the part.

        A session may go on for a day. Booked at the time of its Invite, a part would renew a day
        too early.

        Args:
            now: the time, Unix seconds.
        """
        object.__setattr__(self, "time", now)  # past the freeze, which guards the round

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session before it begins; return False if it was recorded before."""
        return self.record.begin(session, not_after)

    def spend(self, session: bytes) -> bool:
        """Record that the client takes part in the round; return False if the record refuses.

        `refusal` then says why: the client took part before, or too often, or the events do not add
        up.
        """
        return self._ask(self.record.take_part, time=self.time)

    def spend_report(self, report: Report) -> bool:
        """Do as `spend`, and keep both frames of a report in the outbox, in one transaction."""
        return self._ask(self.record.take_part, time=self.time, report=report)

    def standing(self, since: int) -> Standing:
        """Return how the record stands before a session of this round; nothing is recorded.

        Args:
            since: sessions count that end at this time or later, Unix seconds.
        """
        return self.record.standing(since, *self._part, item=self.item, time=self.time)

    def may_spend(self, cap: Cap | None = None) -> bool:
        """Return whether `spend` would succeed now, and record nothing; `refusal` says why not.

        Args:
            cap: counts in place of the record's own; None: that one counts.
        """
        return self._ask(self.record.check_part, cap=cap, time=self.time)

    def _ask(self, method: Callable[..., None], **more: Any) -> bool:
        """Call a method of the record with this part; return False if it refuses."""
        self._refuse("")
        try:
            method(*self._part, item=self.item, **more)
        except InvalidInputError as error:
            # The refusals of the budget are InvalidInputErrors. A database that fails raises
            # StoreError, which must not look like a refusal.
            self._refuse(str(error))
            return False
        return True

    @property
    def _part(self) -> tuple[str, str, int, Event | None]:
        """Population, plan, round and event, as the record takes them."""
        terms = self.plan.privacy
        population, event = ("clients", None) if terms is None else (terms.population, terms.event)
        return population, self.fingerprint, self.round, event

    def _refuse(self, why: str) -> None:
        # past the freeze, which guards the fields that name the round
        object.__setattr__(self, "refusal", why)


def _of_plan(registrar: bytes, plan: str) -> dict[str, Any]:
    """Return a registrar and a plan as their columns keep them."""
    checked_name(plan=plan)
    return {"registrar": registrar.hex(), "plan": plan}


def _checked_part(population: str, plan: str, round: int, item: str | None) -> int:
    """Return the number of the round, if all of them may be recorded."""
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
    """Refuse a part that the cap forbids; no charge is a part without differential privacy."""
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
    """Return the record's time: the clock's, but never before the newest part.

    A part with an earlier time would leave the days that count before those that came before it.
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


# What each session runs.
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
# A label that is null equals no item.
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
    """Return the name of a session in hexadecimal, as its column keeps it."""
    if not isinstance(session, bytes) or not 0 < len(session) <= MOST_NAME_BYTES:
        raise InvalidInputError(f"a session is 1 to {MOST_NAME_BYTES} bytes, got {session!r}")
    return session.hex()
