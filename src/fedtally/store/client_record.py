"""A client's own record of the rounds that it took part in, and the `Journal` of one such round."""

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

_MARKED = "client-record"  # the name in a record's mark (`store.marks`)

_record = sa.MetaData()
_record_grants = grant_tables(_record)
_participations = sa.Table(
    "fedtally_participations",
    _record,
    sa.Column("plan", sa.String(200), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("population", sa.String(200), nullable=False),
    sa.Column("event", sa.Text),  # null: the plan is without differential privacy
    # A label for the items that the client sent. Null: they have no label; nulls may repeat.
    sa.Column("item", sa.String(200), unique=True),
    time_column(),
)
# Caps on the total cost of everything in the record. Rows are never changed; the last row is the
# cap.
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
# Sessions that the client began. Without this table, the client could begin a session a second time
# after a crash.
_sessions = sa.Table(
    "fedtally_begun_sessions",
    _record,
    sa.Column("session", sa.String(2 * MOST_NAME_BYTES), primary_key=True),
    sa.Column("not_after", sa.BigInteger, nullable=False),
)
# Plans of registrars that the client's owner accepted. A registrar is a party that enrols clients,
# signs plans and may revoke them. It numbers its plans for each purpose.
_accepted = sa.Table(
    "fedtally_accepted_plans",
    _record,
    sa.Column("registrar", sa.String(64), primary_key=True),
    sa.Column("purpose", sa.String(200), primary_key=True),
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("plan", sa.String(200), nullable=False),
    time_column(),
)
# Plans that a registrar ended, that is, replaced or revoked. A registrar can end only plans that it
# signed, so a row has the registrar's public key.
_ended = sa.Table(
    "fedtally_ended_plans",
    _record,
    sa.Column("registrar", sa.String(64), primary_key=True),
    sa.Column("plan", sa.String(200), primary_key=True),
    time_column(),
)
outbox_tables(_record)
write_tables(_record)  # the number of writes to the file, to compare with its mark


class Part(NamedTuple):
    """One round that a client took part in.

    Attributes:
        plan: the fingerprint of the plan.
        round: the number of the round.
        population: the population that the plan names.
        event: what the whole campaign exposes of one client (`privacy.events`); None: the plan has
            no differential privacy.
        time: when the client took part, Unix seconds: the time of the clock, or the time of an
            earlier part if that was later (the record's time, see `ClientRecord`).
    """

    plan: str
    round: int
    population: str
    event: Event | None
    time: int


class Standing(NamedTuple):
    """The entries of a record that a client checks before it begins a session of a round.

    Attributes:
        sessions: the number of sessions that the client began and that end at the time `since` or
            later (an argument of `ClientRecord.standing`).
        cap: the cap on the total cost of all campaigns in the record; None: there is no cap.
        refusal: why `take_part` would refuse the round now; None: it would accept the round.
    """

    sessions: int
    cap: Cap | None
    refusal: str | None = None


class ClientRecord(GrantDatabase):
    """A client's own record of the rounds that it took part in, so that it need not trust a server.

    `open` makes one; each client identity has a file of its own. Its owner may set a `cap` on the
    total cost of all campaigns, whatever populations the servers name. The owner may also `grant` a
    budget to a population. Then a campaign is refused if the total cost of the population's
    campaigns in this record would exceed the budget. A ledger has the same rule, but may find a
    smaller total (`privacy.budget`).

    If somebody puts an old copy of the file back, it lacks what the client did since the copy was
    made. A *mark* in another folder shows this (`store.marks`). Every write is counted in the mark
    before the method returns. A record with fewer writes than its mark is refused.

    A *part* is one round that the client took part in. It is stored with the *record's time*: the
    time of the clock, or the time of the newest part if that is later. A cap with `per_days` covers
    all parts after the start of its period, even parts with a time after now. So setting the clock
    back does not renew the budget. If the clock was ahead when a part was stored, this part counts
    until a whole period after its stored time.

    The record also holds which plans the owner accepted (`accept`) and which plans a registrar
    ended (`end`), so that a client does not go back to an older plan.
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
    _on_disk = -1  # the last number that this object wrote to the mark; -1: none yet

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        create: bool = False,
        mark: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Open a client's record in an SQLite file.

        Args:
            path: the path of the SQLite file.
            create: whether to make the file, with its mark, if the file does not exist.
            mark: the path of the mark, outside of the record's folder and its backups. None: the
                record is used without a mark, and an old copy is not noticed.

        Raises:
            UnreadableFileError: the file is no record or has another version; the record has fewer
                writes than its mark; or the file exists and its mark is missing. Or the file is
                missing, and `create` is False or the mark counts writes: then the record was lost.
            StoreError: the database or the mark cannot be used, for instance because it is locked.
        """
        url = file_url(os.fspath(path))
        if mark is None:
            return opened(cls, url, create)
        place = real_path(mark)
        if not os.path.lexists(path):
            marked = read_mark(place, _MARKED)
            if marked:  # the record was lost: do not make an empty one
                raise _put_back(os.fspath(path), place, 0, marked)
            if create:  # mark first: a record without it is refused
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
        """Limit the total cost of all campaigns in this record; a new cap replaces the last one.

        Without `per_days`, each campaign counts in full from its first round on, by the proven
        epsilon of its event. With `per_days`, a campaign counts only with the rounds that the
        client took part in during the last `per_days` days. Under a cap, rounds without
        differential privacy are refused, since they have no epsilon.

        Args:
            epsilon: the largest total epsilon, above 0 and at most 1000.
            delta: the delta of the total, at least 1e-15 and below 1; or 0, with which all
                campaigns must have geometric noise.
            time: now, Unix seconds.
            relation: the neighbouring relation of the total, `zero-out` or `replace-one`. It
                replaces the relations of the plans (see `budget.Cap` for the exception of silos).
            per_days: the length of the cap's period in days, 1 to 3660; None: the cap is for all
                time.

        Raises:
            InvalidInputError: a value is out of bounds; or the client took part in a round without
                differential privacy, which has no epsilon.
        """
        new = Cap(epsilon, delta, Relation.parse(relation), per_days)
        values = {
            "epsilon": new.epsilon,
            "delta": new.delta,
            "relation": str(new.relation),
            "per_days": new.per_days,
            "time": seconds(time),
        }
        with self._limiting() as connection:
            _check_coverable(connection)
            connection.execute(sa.insert(_caps).values(**values))

    def check_coverable(self) -> None:
        """Check that a cap can be set: that all rounds in the record have differential privacy.

        Raises:
            InvalidInputError: the client took part in a round without differential privacy.
        """
        with self._transaction(write=False) as connection:
            _check_coverable(connection)

    def capped(self) -> Cap | None:
        """Return the cap on the total cost of everything in the record; None if there is no cap."""
        with self._transaction(write=False) as connection:
            return _last_cap(connection)

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session (one secure sum) before the client takes part in it.

        Args:
            session: the session's name, 1 to 64 bytes.
            not_after: the time at which the session ends at the latest, Unix seconds.

        Returns:
            True if the session is new. False if it was recorded before: the client must then not
            take part in it.
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
        """Record that the client takes part in a round.

        Call it before the client sends its masked vector or its report.

        Args:
            population: the population that the plan names.
            plan: the fingerprint of the plan.
            round: the number of the round.
            event: what the whole campaign exposes of one client. None: the campaign has no
                differential privacy. A record with a cap refuses its rounds; a record without a cap
                accepts any number of them.
            time: now, Unix seconds.
            item: a label for the items that the client sends. The record accepts each label once,
                whatever the plan. None: the items have no label, and may be sent again.
            report: the client's report to two servers. Its two frames are put into the outbox in
                the same transaction, so that they can be sent after a crash. None: the client makes
                no report to two servers.

        Raises:
            AlreadySpentError: the client took part in this round before, or sent items with this
                label.
            OverspentError: the event does not allow this round in addition to the rounds before;
                or the owner's grant to the population, or the cap, does not cover this round.
            InvalidInputError: a name or the round is out of bounds. Or an earlier round of the plan
                was recorded with another event (None differs from every event). Or the plan has an
                event, and an earlier round was recorded with another population.
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
        """Return the reports with frames that still must be sent to a server, the oldest first."""
        with self._transaction(write=False) as connection:
            return find_unsent(connection, self)

    def fate(self, plan: str, round: int) -> Fate | None:
        """Return the final state of a report to two servers.

        Returns None if the state is not final, or if the record has no such report.

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
        """Refuse a round for the reasons for which `take_part` would refuse it now; record nothing.

        A client calls it before a session, so that it does not begin a session in vain.

        Args:
            population: the population that the plan names.
            plan: the fingerprint of the plan.
            round: the number of the round.
            event: what the whole campaign exposes of one client; None: no differential privacy.
            item: the label of the items, or None.
            cap: a cap to check instead of the record's cap. None: the record's cap is checked.
            time: now, Unix seconds; the period of a cap with `per_days` ends at this time. 0: all
                rounds count, even under a cap with `per_days`.

        Raises:
            InvalidInputError: see `take_part`. Its other two errors are subclasses of this one.
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
        # A plan without an event skips `_check_charge`. So a plan must not lose its event between
        # two rounds, and its population is compared here.
        before = connection.exec_driver_sql(_FIND_TERMS, {"of": plan}).first()
        if before is not None and (before.event is None) != (event is None):
            came, comes = ("without", "with") if before.event is None else ("with", "without")
            raise InvalidInputError(
                f"plan {plan} came {came} differential privacy before, and comes {comes} it"
                " now: a plan has one event"
            )
        if charge is not None:
            self._check_charge(connection, charge)
        elif before is not None and before.population != population:
            raise InvalidInputError(
                f"plan {plan} named population {before.population!r} before, and names"
                f" {population!r} now: a plan has one population"
            )
        _check_capped(connection, charge, cap or _last_cap(connection), time)

    def _check_charge(self, connection: sa.Connection, charge: Charge) -> None:
        """Refuse a round that its plan's event or the owner's grant does not allow.

        A grant is a budget for the population that the plan names.
        """
        # The rows of the population, and the rows of this plan under any other population:
        # `check_participation` refuses a plan that changes its population.
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

    def participations(self, plan: str) -> list[int]:
        """Return the rounds of a plan that the client took part in: their numbers, rising."""
        known = _participations.c
        with self._transaction(write=False) as connection:
            rows = connection.execute(
                sa.select(known.round).where(known.plan == plan).order_by(known.round)
            )
            return [row.round for row in rows]

    def parts(self) -> list[Part]:
        """Return all rounds that the client took part in, the oldest first.

        The labels of the items are left out.
        """
        with self._transaction(write=False) as connection:
            return _parts(connection)

    def spent(self, cap: Cap | None = None, time: int = 0) -> Guarantee | None:
        """Return the total cost of the rounds that count under a cap.

        Returns None if no round counts, or if there is no cap to use.

        Args:
            cap: a cap to use instead of the record's cap. None: the record's cap is used.
            time: now, Unix seconds; the period of a cap with `per_days` ends at this time. 0: all
                rounds count, even under a cap with `per_days`.
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
        """Return what a client must know before it begins a session of a round.

        It says, for instance, why `take_part` would refuse the round. All is read in one
        transaction, and nothing is recorded.

        Args:
            since: a time, Unix seconds; sessions that end then or later are counted.
            population: the population that the plan names.
            plan: the fingerprint of the plan.
            round: the number of the round.
            event: what the whole campaign exposes of one client; None: no differential privacy.
            item: the label of the items, or None.
            time: now, Unix seconds; the period of a cap with `per_days` ends at this time. 0: all
                rounds count, even under a cap with `per_days`.
        """
        times, found = {"since": seconds(since)}, None
        try:
            with self._transaction(write=False) as connection:
                begun = int(connection.exec_driver_sql(_COUNT_SESSIONS, times).scalar_one())
                found = Standing(begun, _last_cap(connection))
                round = _checked_part(population, plan, round, item)
                part = (population, plan, round, event, seconds(time), item)
                self._check_part(connection, *part, found.cap)
        except InvalidInputError as error:
            if found is None:  # the record cannot be read, which is no reason against the round
                raise
            return found._replace(refusal=str(error))
        return found

    # ---- plans of a registrar ----

    def accept(self, registrar: bytes, purpose: str, number: int, plan: str, time: int) -> None:
        """Record that the client's owner accepts a plan that a registrar signed.

        A registrar is a party that enrols clients, signs plans and may revoke them.

        Args:
            registrar: the registrar's public key, 32 bytes.
            purpose: the purpose of the plan, a name that the registrar chose.
            number: the plan's number; a registrar numbers its plans for each purpose.
            plan: the fingerprint of the plan.
            time: now, Unix seconds.

        Raises:
            InvalidInputError: see `check_accept`.
        """
        row = _of_plan(registrar, plan) | {"purpose": purpose, "number": number}
        with self._marked() as connection:
            if self._check_accept(connection, row):
                count_write(driver_connection(connection))
                connection.execute(sa.insert(_accepted).values(**row, time=seconds(time)))

    def check_accept(self, registrar: bytes, purpose: str, number: int, plan: str) -> None:
        """Refuse a plan that `accept` would refuse now; record nothing.

        Args:
            registrar: the registrar's public key, 32 bytes.
            purpose: the purpose of the plan, a name that the registrar chose.
            number: the plan's number; a registrar numbers its plans for each purpose.
            plan: the fingerprint of the plan.

        Raises:
            InvalidInputError: the registrar ended the plan; or, for this registrar and purpose, the
                owner accepted a plan with a higher number, or another plan with this number.
        """
        row = _of_plan(registrar, plan) | {"purpose": purpose, "number": number}
        with self._transaction(write=False) as connection:
            self._check_accept(connection, row)

    def has_accepted(self, registrar: bytes, plan: str) -> bool:
        """Return whether the owner ever accepted this plan with this registrar's signature.

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
        """Do what `check_accept` does; return False if the owner accepted this plan before.

        That is, with the same registrar, purpose and number. Otherwise return True.

        Args:
            connection: a connection in a transaction.
            row: the plan's values of the columns `registrar`, `purpose`, `number` and `plan`.
        """
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
        """Record that a registrar replaced or revoked plans, so that `accept` refuses them.

        Args:
            registrar: the registrar's public key, 32 bytes. The same plan, signed by another
                registrar, is not ended.
            plans: the fingerprints of the plans. They need not be accepted plans.
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
        """Return why the client must not go on with a registrar's plan; None if it may go on.

        Args:
            registrar: the registrar's public key, 32 bytes.
            purpose: the purpose of the plan, a name that the registrar chose.
            number: the plan's number in the signature that the client holds.
            plan: the fingerprint of the plan.
        """
        row = _of_plan(registrar, plan) | {"purpose": purpose}
        with self._transaction(write=False) as connection:
            if connection.exec_driver_sql(_FIND_ENDED, row).first() is not None:
                return "its registrar replaced or revoked it"
            # The registrar may have signed this plan again with another number. The client must
            # hold the signature that was accepted last: an earlier signature may be valid longer.
            if connection.exec_driver_sql(_LAST_OF_PLAN, row).scalar_one() != number:
                return "the record does not know that it was accepted so last: accept it anew"
        return None

    # ---- the mark ----

    @contextmanager
    def _limiting(self) -> Iterator[sa.Connection]:
        """Run the transaction that writes a cap or a grant, and count it in the mark.

        An old copy of the record may have a larger limit, so its use must be noticed.
        """
        with self._marked() as connection:
            count_write(driver_connection(connection))
            yield connection

    @contextmanager
    def _marked(self) -> Iterator[sa.Connection]:
        """Run a writing transaction with the mark locked; after its commit, write the mark.

        Yields the connection. The caller counts its write (`count_write`). If the record was opened
        without a mark, this only runs the transaction.
        """
        # Locked from before the mark is read until it is written. Otherwise two processes with two
        # copies of the record could both read the old number, and both write.
        with nullcontext() if self._mark is None else hold_mark(self._mark):
            with self._transaction(write=True) as connection:
                self._check_mark(connection)
                # The mark must have the record's number before each write: see `store/writes.py`.
                self._write_mark(writes_of(driver_connection(connection)))
                yield connection
                writes = writes_of(driver_connection(connection))
            # The mark is written after the commit: a crash in between leaves a record with more
            # writes than its mark, which is not taken for an old copy.
            self._write_mark(writes)

    def _write_mark(self, writes: int) -> None:
        """Write a number of writes to the mark, if the record has one and the number is new."""
        if self._mark is not None and self._on_disk != writes:
            write_mark(self._mark, _MARKED, writes)
            self._on_disk = writes

    def _check_mark(self, connection: sa.Connection) -> None:
        """Refuse a record that has fewer writes than its mark, or whose mark is missing.

        A record that was opened without a mark passes.

        Raises:
            UnreadableFileError: the record is refused.
        """
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
    """One round of a plan in a client's record: it answers whether the client may take part.

    It is the `secagg.client.Journal` of a client that takes part in this round; another round needs
    another journal. Population and event come from the plan. For a plan without privacy, the
    population is "clients", and the event is None (see `ClientRecord.take_part`).

    Args:
        record: the client's record.
        plan: the plan of the campaign.
        round: the number of the round.
        time: now, Unix seconds, the time with which `spend` records the round; `at` changes it.
        item: a label for the items that the client sends (see `ClientRecord.take_part`).

    Attributes:
        refusal: why the last `spend`, `spend_report` or `may_spend` returned False, in words for
            the client's owner; "" if it returned True.
    """

    record: ClientRecord
    plan: Plan
    round: int
    time: int
    item: str | None = field(default=None, repr=False)  # not in logs
    refusal: str = ""

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the plan."""
        return self.plan.fingerprint

    def at(self, now: int) -> None:
        """Set the time with which `spend` records that the client takes part.

        A session may last a day. With the time of the session's first message, Invite, a cap with
        `per_days` would stop counting the round a day too early.

        Args:
            now: the time, Unix seconds.
        """
        object.__setattr__(self, "time", now)  # the class is frozen so that the round cannot change

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session before it begins; return False if it was recorded before.

        Args:
            session: the session's name, 1 to 64 bytes.
            not_after: the time at which the session ends at the latest, Unix seconds.
        """
        return self.record.begin(session, not_after)

    def spend(self, session: bytes) -> bool:
        """Record that the client takes part in the round; return False if the record refuses.

        After False, `refusal` says why: for instance, the client took part in this round before, or
        the record's cap does not cover the round.

        Args:
            session: ignored; it is an argument of the protocol class `secagg.client.Journal`.
        """
        return self._ask(self.record.take_part, time=self.time)

    def spend_report(self, report: Report) -> bool:
        """Do what `spend` does, and put both frames of a report into the outbox.

        Both are one transaction.
        """
        return self._ask(self.record.take_part, time=self.time, report=report)

    def standing(self, since: int) -> Standing:
        """Return the record's `Standing` for a session of this round; nothing is recorded.

        Args:
            since: a time, Unix seconds; sessions that end then or later are counted.
        """
        return self.record.standing(since, *self._part, item=self.item, time=self.time)

    def may_spend(self, cap: Cap | None = None) -> bool:
        """Return whether `spend` would return True now; nothing is recorded.

        If it would not, `refusal` says why.

        Args:
            cap: a cap to check instead of the record's cap. None: the record's cap is checked.
        """
        return self._ask(self.record.check_part, cap=cap, time=self.time)

    def _ask(self, method: Callable[..., None], **more: Any) -> bool:
        """Call a method of the record for this round; return False if it raises InvalidInputError.

        `refusal` then has the message.

        Args:
            method: `take_part` or `check_part` of the record.
            more: further keyword arguments of the method.
        """
        self._refuse("")
        try:
            method(*self._part, item=self.item, **more)
        except InvalidInputError as error:
            # Only InvalidInputError is a refusal. A database that fails raises StoreError, which
            # passes.
            self._refuse(str(error))
            return False
        return True

    @property
    def _part(self) -> tuple[str, str, int, Event | None]:
        """The first arguments of `take_part` and `check_part`: population, plan, round, event."""
        terms = self.plan.privacy
        population, event = ("clients", None) if terms is None else (terms.population, terms.event)
        return population, self.fingerprint, self.round, event

    def _refuse(self, why: str) -> None:
        # the class is frozen so that the round cannot change; `refusal` may
        object.__setattr__(self, "refusal", why)


def _of_plan(registrar: bytes, plan: str) -> dict[str, Any]:
    """Return the values of the columns `registrar` (hexadecimal) and `plan`, as a dict."""
    checked_name(plan=plan)
    return {"registrar": registrar.hex(), "plan": plan}


def _checked_part(population: str, plan: str, round: int, item: str | None) -> int:
    """Check the arguments that name a round of a plan, and return the round's number as an int.

    Raises:
        InvalidInputError: `population`, `plan` or `item` is no name, or `round` is out of bounds.
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


def _last_cap(connection: sa.Connection) -> Cap | None:
    row = connection.exec_driver_sql(_LAST_CAP).first()
    if row is None:
        return None
    return Cap(row.epsilon, row.delta, Relation.parse(row.relation), row.per_days)


def _check_capped(
    connection: sa.Connection, charge: Charge | None, cap: Cap | None, time: int
) -> None:
    """Refuse a round that the cap does not cover.

    Args:
        connection: a connection in a transaction.
        charge: the charge of the round; None: the plan has no differential privacy.
        cap: the cap; None: there is no cap, and nothing is refused.
        time: now, Unix seconds; the period of a cap with `per_days` ends at this time.

    Raises:
        OverspentError: the round is refused.
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
    """Return the record's time: `time`, or the time of the newest part if that is later.

    So the times of the parts never fall, and a cap never stops counting a part before an earlier
    part.
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


# Run in each session, so they are compiled once: see `prepared`.
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
# With a null label, the second condition is true for no row.
_FIND_PART = prepared(
    sa.select(_participations.c.plan, _participations.c.round).where(
        (
            (_participations.c.plan == sa.bindparam("of"))
            & (_participations.c.round == sa.bindparam("number"))
        )
        | (_participations.c.item == sa.bindparam("label"))
    )
)
_FIND_TERMS = prepared(
    sa.select(_participations.c.population, _participations.c.event).where(
        _participations.c.plan == sa.bindparam("of")
    )
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
    """Return the name of a session in hexadecimal, the form in which its column holds it.

    Raises:
        InvalidInputError: the name is not 1 to 64 bytes.
    """
    if not isinstance(session, bytes) or not 0 < len(session) <= MOST_NAME_BYTES:
        raise InvalidInputError(f"a session is 1 to {MOST_NAME_BYTES} bytes, got {session!r}")
    return session.hex()
