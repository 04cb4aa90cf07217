"""Durable state: the operator's ledger and a client's own record.
All SQL is here, and SQLAlchemy with it.

A `Ledger` lives in an SQLite file or in a PostgreSQL database, a `ClientRecord` in an SQLite file.
What both guarantee:

- *Reserved before opened.* `reserve` and `take_part` return once the fact is on disk. Whatever
  happens then, it counts as spent.
- *Once.* A campaign has one owner, the run that charged it first. A release of its plan is reserved
  for that owner alone, who may ask again after a crash, and lands once: primary keys say so,
  whoever writes. A landing is one row that holds the noised sketch and stands for its spend, so
  that neither is there without the other. The sum without noise has no column.
- *At a constant price.* A campaign's row holds what all campaigns of its population cost together
  up to it, so that a reservation looks at one row of them, however many there are.
- *One writer at a time.* A writing transaction takes the lock of the whole database first (`BEGIN
  IMMEDIATE`; on PostgreSQL an advisory lock, at READ COMMITTED), then looks at what was spent, then
  adds to it.
- *Append-only.* Triggers refuse to change or to delete a row. Who owns the database can drop them:
  this is against mistakes, not against its owner.
- *Durable.* SQLite syncs file and folder at each commit; PostgreSQL commits synchronously. A copy
  restored from a backup forgets what was spent since: do not go on with it, but with a population
  of another name and a smaller grant.

Times are arguments, Unix seconds. Importing this module costs what SQLAlchemy costs: import it
where it is needed.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     ledger = Ledger.open(f"{folder}/ledger.db", create=True)
...     _ = ledger.grant("phones", epsilon=2.0, delta=1e-6, time=0)
...     event = Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)
...     reservation = ledger.reserve(Charge("phones", "plan-a", 0, event), owner="run 1", time=1)
...     landing = ledger.land(reservation, b"the noised sketch", owner="run 1", time=2)
...     print(ledger.spent("phones"), ledger.sketch("plan-a", 0))
epsilon 0.9999 at delta 1e-06 (zero-out, central trust, privacy-loss-distribution) b'the noised sketch'
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

import sqlalchemy as sa
from sqlalchemy import event as hooks
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError

from fedtally import _validate
from fedtally.errors import FedtallyError, InvalidInputError, MissingExtraError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.privacy.accounting import Composition, Guarantee
from fedtally.privacy.budget import (
    NAME,
    AlreadySpentError,
    Cap,
    Charge,
    Grant,
    OverspentError,
    appearance,
    check_campaign,
    check_cap,
    check_participation,
    check_spend,
    check_total,
    checked_name,
    is_name,
)
from fedtally.privacy.events import Event, Relation

SCHEMA_VERSION = 1
EXPORT = "fedtally-ledger/1"
WAIT_SECONDS = 30
_LOCK = int.from_bytes(hashlib.sha256(b"fedtally ledger").digest()[:8], "big", signed=True)
_LAST_SECOND = 2**62

_versions = sa.MetaData()
_schema = sa.Table(
    "fedtally_schema",
    _versions,
    sa.Column("kind", sa.String(20), primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
)


def _time() -> sa.Column[int]:
    return sa.Column("time", sa.BigInteger, nullable=False)


def _grants(metadata: sa.MetaData) -> tuple[sa.Table, sa.Table]:
    """Return the tables of populations, each with its one delta, and of what was granted to them."""
    populations = sa.Table(
        "fedtally_populations",
        metadata,
        sa.Column("population", sa.String(200), primary_key=True),
        sa.Column("delta", sa.Double, nullable=False),
    )
    grants = sa.Table(
        "fedtally_grants",
        metadata,
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("population", sa.ForeignKey(populations.c.population), nullable=False),
        sa.Column("epsilon", sa.Double, nullable=False),
        _time(),
    )
    return populations, grants


_ledger = sa.MetaData()
_ledger_grants = _grants(_ledger)
_campaigns = sa.Table(  # one event, one population and one owner per plan: the primary key
    "fedtally_campaigns",
    _ledger,
    sa.Column("plan", sa.String(200), primary_key=True),
    sa.Column("population", sa.ForeignKey(_ledger_grants[0].c.population), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),  # in the population, from 1
    sa.Column("owner", sa.String(200), nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    # the composition of the population's campaigns up to this one
    sa.Column("total", sa.Text, nullable=False),
    _time(),
    sa.UniqueConstraint("population", "number"),  # and an index: the last row is found at once
)
_reservations = sa.Table(
    "fedtally_reservations",
    _ledger,
    sa.Column("plan", sa.ForeignKey(_campaigns.c.plan), primary_key=True),
    sa.Column("release", sa.Integer, primary_key=True, autoincrement=False),
    _time(),
)
_landings = sa.Table(
    "fedtally_landings",
    _ledger,
    sa.Column("plan", sa.String(200), primary_key=True),
    sa.Column("release", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sketch", sa.LargeBinary, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    _time(),
    sa.ForeignKeyConstraint(["plan", "release"], [_reservations.c.plan, _reservations.c.release]),
)

_record = sa.MetaData()
_record_grants = _grants(_record)
_participations = sa.Table(
    "fedtally_participations",
    _record,
    sa.Column("plan", sa.String(200), primary_key=True),
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("population", sa.String(200), nullable=False),
    sa.Column("event", sa.Text),  # null: a plan without differential privacy
    sa.Column("item", sa.String(200), unique=True),
    _time(),
)
_caps = sa.Table(  # what everything in the record may cost together; the last one counts
    "fedtally_caps",
    _record,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("relation", sa.String(20), nullable=False),
    _time(),
)
_sessions = sa.Table(
    "fedtally_sessions",
    _record,
    sa.Column("session", sa.String(128), primary_key=True),
    sa.Column("not_after", sa.BigInteger, nullable=False),
)


class StoreError(FedtallyError):
    """Say that a database failed: it is locked, full, gone, or refused a statement.
    Nothing was written by halves.
    """


class Reservation(NamedTuple):
    """A release of a plan that is spent from now on, and that only the owner of its campaign opens."""

    plan: str
    release: int


class Landing(NamedTuple):
    """A release that landed.

    Attributes:
        plan: the fingerprint of the plan.
        release: which of its releases.
        sha256: of the noised sketch, in hexadecimal.
        time: when it landed, Unix seconds.
    """

    plan: str
    release: int
    sha256: str
    time: int


class _Database:
    """A database of one kind and of this version, and its two kinds of transaction."""

    _kind: ClassVar[str]
    _metadata: ClassVar[sa.MetaData]
    _populations: ClassVar[sa.Table]
    _granted: ClassVar[sa.Table]

    def __init__(self, engine: sa.Engine, name: str) -> None:
        self._engine, self._name = engine, name

    @property
    def name(self) -> str:
        """The path or the URL, without its password."""
        return self._name

    @contextmanager
    def _transaction(self, *, write: bool) -> Iterator[sa.Connection]:
        postgres = self._engine.dialect.name == "postgresql"
        options: dict[str, Any] = {"fedtally_write": write}
        if postgres and not write:
            options |= {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        with (
            _failures(self._name),
            self._engine.connect().execution_options(**options) as connection,
            connection.begin(),
        ):
            if postgres and write:
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_SECONDS}s'")
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
            yield connection

    def _create(self) -> None:
        """Create tables and triggers unless they are there: in one transaction, on both databases."""
        with self._transaction(write=True) as connection:
            if self._version(connection) is None:
                _versions.create_all(connection)
                self._metadata.create_all(connection)
                for table in (_schema, *self._metadata.sorted_tables):
                    for statement in _triggers(table, connection.dialect.name):
                        connection.exec_driver_sql(statement)
                connection.execute(
                    sa.insert(_schema).values(kind=self._kind, version=SCHEMA_VERSION)
                )

    def _check(self) -> None:
        with self._transaction(write=False) as connection:
            version = self._version(connection)
        if version is None:
            raise UnreadableFileError(f"{self._name} holds no {self._kind} yet")
        if version > SCHEMA_VERSION:
            raise UnreadableFileError(
                f"{self._name} was written by a newer fedtally (schema {version}; this one knows"
                f" {SCHEMA_VERSION}): install that version"
            )

    def _version(self, connection: sa.Connection) -> int | None:
        if not sa.inspect(connection).has_table(_schema.name):
            return None
        versions = {row.kind: row.version for row in connection.execute(sa.select(_schema))}
        if versions and self._kind not in versions:
            raise UnreadableFileError(
                f"{self._name} holds a {next(iter(versions))}, not a {self._kind}"
            )
        return versions.get(self._kind)

    def grant(self, population: str, epsilon: float, delta: float, time: int) -> Grant:
        """Grant a population a total epsilon, at its one total delta.
        A later grant stands in for the earlier.

        What was charged stays charged: a smaller grant stops new campaigns, not the rounds of those
        reserved.

        Raises:
            InvalidInputError: values out of bounds, or a delta other than the population's.
        """
        new, time = Grant(population, epsilon, delta), _seconds(time)
        with self._transaction(write=True) as connection:
            known = self._grant(connection, population)
            if known is None:
                connection.execute(
                    sa.insert(self._populations).values(population=population, delta=new.delta)
                )
            elif known.delta != new.delta:
                raise InvalidInputError(
                    f"population {population!r} has a total delta of {known.delta:g} for good, not"
                    f" {new.delta:g}: grant with that"
                )
            values = {"population": population, "epsilon": new.epsilon, "time": time}
            connection.execute(sa.insert(self._granted).values(**values))
        return new

    def granted(self, population: str) -> Grant | None:
        """Return what a population may spend in all; None if nothing was granted."""
        with self._transaction(write=False) as connection:
            return self._grant(connection, population)

    def _grant(self, connection: sa.Connection, population: str) -> Grant | None:
        query = (
            sa.select(self._granted.c.epsilon, self._populations.c.delta)
            .join_from(self._granted, self._populations)
            .where(self._granted.c.population == population)
            .order_by(self._granted.c.number.desc())
            .limit(1)
        )
        row = connection.execute(query).first()
        return None if row is None else Grant(population, row.epsilon, row.delta)


_Opened = TypeVar("_Opened", bound=_Database)


class Ledger(_Database):
    """The operator's books: what populations were granted, what was reserved of it, and the releases that landed.

    Made by `open`. Safe to use from several threads and processes, each with its own.
    """

    _kind = "ledger"
    _metadata = _ledger
    _populations, _granted = _ledger_grants

    @classmethod
    def open(cls, location: str | os.PathLike[str], *, create: bool = False) -> Self:
        """Open a ledger.

        Args:
            location: the path of an SQLite file, or a URL: sqlite:///path or postgresql://user@host/database.
            create: make the file, or the tables in the database, if they are missing.

        Raises:
            UnreadableFileError: no ledger is there, or one of a newer version, or something else.
            InvalidInputError: a URL of another database.
            MissingExtraError: the driver for PostgreSQL is not installed.
            StoreError: the database does not answer.
        """
        return _opened(cls, _url(location), create)

    def reserve(self, charge: Charge, owner: str, time: int) -> Reservation:
        """Reserve a release; call it before anything can be opened, and before noise is drawn.

        From here on the release is spent, also if this process dies in the very next instant. The
        first reservation charges the campaign, and makes it the owner's. The owner may ask for a
        reservation again, for another cohort of the same release or after a crash, and gets the
        same one until the release has landed. It must not draw a second noise for a sum of which
        something left. What it costs does not grow with what is in the ledger.

        Args:
            charge: which release, of which campaign.
            owner: names the run of the campaign, and no other: such as 32 random bytes in
                hexadecimal.
            time: now, Unix seconds.

        Raises:
            AlreadySpentError: the campaign is another owner's, or the release has landed.
            OverspentError: its campaign costs more than the population has left.
            InvalidInputError: nothing was granted; or as `budget.check_total` and
                `budget.check_campaign`.
        """
        owner, time = checked_name(owner=owner), _seconds(time)
        with self._transaction(write=True) as connection, _taken(charge):
            grant = self._grant(connection, charge.population)
            if grant is None:
                raise InvalidInputError(self._ungranted(connection, charge.population))
            campaign = connection.execute(
                sa.select(_campaigns).where(_campaigns.c.plan == charge.plan)
            ).first()
            if campaign is None:
                self._begin(connection, grant, charge, owner, time)
            elif self._is_repeated(connection, campaign, charge, owner):
                return Reservation(charge.plan, charge.release)
            connection.execute(
                sa.insert(_reservations).values(plan=charge.plan, release=charge.release, time=time)
            )
        return Reservation(charge.plan, charge.release)

    def _begin(
        self, connection: sa.Connection, grant: Grant, charge: Charge, owner: str, time: int
    ) -> None:
        """Charge a campaign, if it is not too much."""
        before = _total(connection, grant)
        total = (
            Composition.of([charge.event], grant.delta)
            if before is None
            else before.plus(charge.event)
        )
        check_total(grant, total, charge.plan)
        row = {
            "plan": charge.plan,
            "population": charge.population,
            "number": total.campaigns,
            "owner": owner,
        }
        texts = {
            "event": _to_json(charge.event),
            "total": json.dumps(total.to_dict(), sort_keys=True),
        }
        connection.execute(sa.insert(_campaigns).values(**row, **texts, time=time))

    def _is_repeated(
        self, connection: sa.Connection, campaign: sa.Row[Any], charge: Charge, owner: str
    ) -> bool:
        """Tell whether the owner of a campaign reserved this release before and it did not land."""
        check_campaign(
            Charge(campaign.population, campaign.plan, 0, _from_json(campaign.event)), charge
        )
        if campaign.owner != owner:
            raise _of_another_run(charge.plan, charge.release)
        if connection.execute(_landed(charge.plan, charge.release)).first() is not None:
            raise AlreadySpentError(
                f"release {charge.release} of plan {charge.plan} has landed: it is not opened again"
            )
        at = (_reservations.c.plan == charge.plan) & (_reservations.c.release == charge.release)
        return connection.execute(sa.select(_reservations).where(at)).first() is not None

    def _ungranted(self, connection: sa.Connection, population: str) -> str:
        alike = self._look_alikes(connection, population)
        return (
            f"nothing was granted to population {population!r}"
            f"{f', which looks like {_quoted(alike)}' if alike else ''}: "
            f"fedtally ledger grant --population {population} --epsilon ... --delta ..."
        )

    def look_alikes(self, population: str) -> list[str]:
        """Return the populations of other names that a person may take for this one: `budget.appearance`.

        Two names are two budgets. Ask before a population is granted or charged for the first time.
        """
        with self._transaction(write=False) as connection:
            return self._look_alikes(connection, population)

    def _look_alikes(self, connection: sa.Connection, population: str) -> list[str]:
        names = connection.execute(sa.select(self._populations.c.population)).scalars()
        alike = appearance(population)
        return sorted(name for name in names if name != population and appearance(name) == alike)

    def land(self, reservation: Reservation, sketch: bytes, owner: str, time: int) -> Landing:
        """Keep the noised sketch of a reserved release for good; afterwards erase the sum without noise.

        After an error or a crash the same bytes may be landed again, which changes nothing. Noise
        is never drawn again.

        Args:
            reservation: from `reserve`.
            sketch: with its noise.
            owner: the run that reserved it.
            time: now, Unix seconds.

        Raises:
            AlreadySpentError: the campaign is another owner's, or another sketch landed for that
                release.
            InvalidInputError: the release was not reserved, or the sketch is empty.
        """
        return self.land_all({reservation: sketch}, owner, time)[0]

    def land_all(
        self, sketches: Mapping[Reservation, bytes], owner: str, time: int
    ) -> list[Landing]:
        """Do as `land` for several releases, in one transaction: all of them, or none."""
        owner, time = checked_name(owner=owner), _seconds(time)
        for sketch in sketches.values():
            if not isinstance(sketch, bytes) or not sketch:
                raise InvalidInputError(
                    f"a sketch to land is bytes, and not empty, got {type(sketch).__name__}"
                )
        with self._transaction(write=True) as connection:
            return [
                self._land(connection, reservation, sketch, owner, time)
                for reservation, sketch in sketches.items()
            ]

    def _land(
        self,
        connection: sa.Connection,
        reservation: Reservation,
        sketch: bytes,
        owner: str,
        time: int,
    ) -> Landing:
        new = Landing(*reservation, hashlib.sha256(sketch).hexdigest(), time)
        known = _campaigns.c
        if connection.execute(
            sa.select(known.owner).where(known.plan == new.plan)
        ).scalar() not in (None, owner):
            raise _of_another_run(new.plan, new.release)
        found = connection.execute(_landed(*reservation)).first()
        if found is not None:
            if found.sha256 == new.sha256:
                return Landing(*found)
            raise AlreadySpentError(
                f"another sketch landed for release {new.release} of plan {new.plan}: keep that"
            )
        at = (_reservations.c.plan == new.plan) & (_reservations.c.release == new.release)
        if connection.execute(sa.select(_reservations).where(at)).first() is None:
            raise InvalidInputError(
                f"release {new.release} of plan {new.plan} was not reserved: reserve it, then open"
            )
        connection.execute(sa.insert(_landings).values(**new._asdict(), sketch=sketch))
        return new

    def landings(self, plan: str) -> list[Landing]:
        """Return the releases of a plan that landed, in their order."""
        with self._transaction(write=False) as connection:
            return [Landing(*row) for row in connection.execute(_landed(plan))]

    def reserved(self, plan: str) -> list[int]:
        """Return the releases of a plan that were reserved, landed or not, in their order."""
        known = _reservations.c
        query = sa.select(known.release).where(known.plan == plan).order_by(known.release)
        with self._transaction(write=False) as connection:
            return [row.release for row in connection.execute(query)]

    def sketch(self, plan: str, release: int) -> bytes:
        """Return the noised sketch of a release that landed.

        Raises:
            InvalidInputError: the release did not land.
            UnreadableFileError: the bytes were damaged since.
        """
        at = (_landings.c.plan == plan) & (_landings.c.release == release)
        with self._transaction(write=False) as connection:
            row = connection.execute(
                sa.select(_landings.c.sketch, _landings.c.sha256).where(at)
            ).first()
        if row is None:
            raise InvalidInputError(f"release {release} of plan {plan} did not land")
        if hashlib.sha256(row.sketch).hexdigest() != row.sha256:
            raise UnreadableFileError(
                f"the sketch of release {release} of plan {plan} is damaged in {self._name}"
            )
        return bytes(row.sketch)

    def spent(self, population: str, planned: Sequence[Charge] = ()) -> Guarantee | None:
        """Return what the campaigns of a population cost together, reserved ones included; None if there are none.

        Args:
            population: whose budget it is.
            planned: charges of campaigns that are not made yet, each of another plan, which count,
                too.
        """
        with self._transaction(write=False) as connection:
            grant = self._grant(connection, population)
            if grant is None:
                return None
            total = _total(connection, grant)
        for charge in planned:
            total = (
                Composition.of([charge.event], grant.delta)
                if total is None
                else total.plus(charge.event)
            )
        return None if total is None else total.guarantee

    def export(self, population: str | None = None) -> dict[str, Any]:
        """Return all rows but the sketches as JSON-able values, of one population or of all, from one moment."""
        with self._transaction(write=False) as connection:

            def rows(query: sa.Select[Any]) -> list[dict[str, Any]]:
                return [dict(row) for row in connection.execute(query).mappings()]

            deltas = rows(sa.select(self._populations).order_by(self._populations.c.population))
            grants = rows(sa.select(self._granted).order_by(self._granted.c.number))
            campaigns = rows(sa.select(_campaigns).order_by(_campaigns.c.number))
            releases = rows(_releases())
        documents = []
        for named in deltas:
            name = named["population"]
            if population in (None, name):
                own = [campaign for campaign in campaigns if campaign["population"] == name]
                documents.append(
                    _document(
                        named, [row for row in grants if row["population"] == name], own, releases
                    )
                )
        if population is not None and not documents:
            raise InvalidInputError(f"{self._name} knows no population {population!r}")
        return {"schema": EXPORT, "populations": documents}


class ClientRecord(_Database):
    """A client's own record of what it took part in: it trusts no operator to count for it.

    Made by `open`. One file per client identity. Its owner may `cap` what everything in it costs
    together, whatever populations operators name, and may also `grant`: then campaigns that cost a
    population more than that are refused, by the rule of the ledger.
    """

    _kind = "client record"
    _metadata = _record
    _populations, _granted = _record_grants

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Self:
        """Open the record in an SQLite file.

        Raises:
            UnreadableFileError: no record is there, or one of a newer version, or something else.
        """
        return _opened(cls, _file(os.fspath(path)), create)

    def cap(
        self, epsilon: float, delta: float, time: int, relation: Relation | str = Relation.ZERO_OUT
    ) -> None:
        """Cap what everything that this record takes part in costs together.
        A later cap stands in for the earlier.

        Each campaign counts in full from its first part on, by what is proven of its event. Parts
        without differential privacy have no epsilon: under a cap they are refused.

        Args:
            epsilon: above 0, at most 1000.
            delta: 1e-15 to below 1, for everything together.
            time: now, Unix seconds.
            relation: `zero-out` or `replace-one`, whatever the plans name.

        Raises:
            InvalidInputError: values out of bounds; or the record holds a part without differential
                privacy, which no cap covers.
        """
        new = Cap(epsilon, delta, Relation.parse(relation))
        values = {
            "epsilon": new.epsilon,
            "delta": new.delta,
            "relation": str(new.relation),
            "time": _seconds(time),
        }
        with self._transaction(write=True) as connection:
            known = _participations.c
            bare = connection.execute(sa.select(known.plan).where(known.event.is_(None))).first()
            if bare is not None:
                raise InvalidInputError(
                    f"the record holds a part in plan {bare.plan}, which is without differential"
                    " privacy: no cap covers it; grant to populations instead"
                )
            connection.execute(sa.insert(_caps).values(**values))

    def capped(self) -> Cap | None:
        """Return what everything together may cost; None if nothing caps it."""
        with self._transaction(write=False) as connection:
            return self._cap(connection)

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session of secure summation before it begins; False if it was recorded before."""
        name = _session(session)
        with self._transaction(write=True) as connection:
            if (
                connection.execute(sa.select(_sessions).where(_sessions.c.session == name)).first()
                is not None
            ):
                return False
            connection.execute(
                sa.insert(_sessions).values(session=name, not_after=_seconds(not_after))
            )
        return True

    def take_part(
        self,
        population: str,
        plan: str,
        round: int,
        event: Event | None,
        time: int,
        item: str | None = None,
    ) -> None:
        """Record a part in a round; call it before the masked input leaves.

        Args:
            population: as the plan names it.
            plan: the fingerprint of the plan.
            round: the round of it.
            event: of the whole campaign; None: without differential privacy, and participations are
                not bounded.
            time: now, Unix seconds.
            item: a label of what is contributed, if it may be contributed only once whatever the
                plan.

        Raises:
            AlreadySpentError: it took part in that round, or with that item.
            OverspentError: it took part as often as the event allows, or the owner's grant or cap
                does not cover it.
            InvalidInputError: as `budget.check_participation`; or the plan came with an event
                before and has none now, or the other way round.
        """
        checked_name(population=population)
        checked_name(plan=plan)
        if item is not None and not is_name(item):
            # without the label: it may be logged
            raise InvalidInputError(f"an item's label must be {NAME}")
        round, time = _validate.integer(0, 2**31 - 1, round=round), _seconds(time)
        with self._transaction(write=True) as connection:
            known = _participations.c
            twice = (known.plan == plan) & (known.round == round)
            if item is not None:
                twice |= known.item == item
            if connection.execute(sa.select(known.round).where(twice)).first() is not None:
                raise AlreadySpentError(
                    f"the client took part in round {round} of plan {plan}, or with this item"
                )
            charge = None if event is None else Charge(population, plan, round, event)
            before = connection.execute(sa.select(known.event).where(known.plan == plan)).first()
            if before is not None and (before.event is None) != (event is None):
                came, comes = ("without", "with") if before.event is None else ("with", "without")
                raise InvalidInputError(
                    f"plan {plan} came {came} differential privacy before, and comes {comes} it"
                    " now: a plan has one event"
                )
            if charge is not None:
                self._check_charge(connection, charge)
            self._check_cap(connection, charge)
            text = None if event is None else _to_json(event)
            values = {
                "population": population,
                "plan": plan,
                "round": round,
                "event": text,
                "item": item,
            }
            connection.execute(sa.insert(_participations).values(**values, time=time))

    def _check_charge(self, connection: sa.Connection, charge: Charge) -> None:
        known = _participations.c
        theirs = (known.population == charge.population) | (known.plan == charge.plan)
        rows = connection.execute(sa.select(_participations).where(theirs)).all()
        charges = [
            Charge(row.population, row.plan, row.round, _from_json(row.event))
            for row in rows
            if row.event
        ]
        check_participation(charges, charge)
        grant = self._grant(connection, charge.population)
        if grant is not None:
            check_spend(grant, charges, charge)

    def _check_cap(self, connection: sa.Connection, charge: Charge | None) -> None:
        """Refuse what is more than the cap; None is a part without differential privacy."""
        cap = self._cap(connection)
        if cap is None:
            return
        if charge is None:
            raise OverspentError(
                f"the record has a cap of epsilon {cap.epsilon:g}, and the plan is without"
                " differential privacy: what has no epsilon cannot be counted"
            )
        rows = connection.execute(sa.select(_participations)).all()
        charges = [
            Charge(row.population, row.plan, row.round, _from_json(row.event)) for row in rows
        ]
        check_cap(cap, charges, charge)

    def _cap(self, connection: sa.Connection) -> Cap | None:
        row = connection.execute(sa.select(_caps).order_by(_caps.c.number.desc()).limit(1)).first()
        return None if row is None else Cap(row.epsilon, row.delta, Relation.parse(row.relation))

    def participations(self, plan: str) -> list[int]:
        """Return the rounds of a plan that the client took part in, in their order."""
        known = _participations.c
        with self._transaction(write=False) as connection:
            rows = connection.execute(
                sa.select(known.round).where(known.plan == plan).order_by(known.round)
            )
            return [row.round for row in rows]


@dataclass(frozen=True)
class Journal:
    """The `secagg.client.Journal` of one round of a plan, kept in a client's record.
    It stays that of its round.

    The plan says whose budget it is and what is counted: without privacy the population is
    "clients", and participations are not bounded.

    Args:
        record: of the client identity.
        plan: the campaign's.
        round: the round of it.
        time: now, Unix seconds.
        item: a label of what is contributed, as in `ClientRecord.take_part`.

    Attributes:
        refusal: why the last `spend` was refused, for the client's owner; "" if it was not.
    """

    record: ClientRecord
    plan: Plan
    round: int
    time: int
    item: str | None = field(default=None, repr=False)  # logs shall not show it
    refusal: str = ""

    @property
    def fingerprint(self) -> str:
        """That of the plan."""
        return self.plan.fingerprint

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session before it begins; False if it was recorded before."""
        return self.record.begin(session, not_after)

    def spend(self, session: bytes) -> bool:
        """Record the part in the round; False if it was taken before, would be one too many, or cannot be counted."""
        self._refuse("")
        try:
            terms = self.plan.privacy
            population, event = (
                ("clients", None) if terms is None else (terms.population, terms.event)
            )
            self.record.take_part(
                population, self.fingerprint, self.round, event, self.time, self.item
            )
        except (
            InvalidInputError
        ) as error:  # spent; or events that do not add up: either way nothing was recorded
            self._refuse(str(error))
            return False
        return True

    def _refuse(self, why: str) -> None:
        object.__setattr__(self, "refusal", why)


# ---- rows ----


def _of_another_run(plan: str, release: int) -> AlreadySpentError:
    return AlreadySpentError(
        f"release {release} of plan {plan} is not to be had: another run charged this plan, and"
        " what it reserved counts as spent, landed or not; go on with that run, or with a new plan"
    )


def _total(connection: sa.Connection, grant: Grant) -> Composition | None:
    """Return what all campaigns of a population cost together, as its last one says; None: there are none."""
    known = _campaigns.c
    query = sa.select(known.event, known.total).where(known.population == grant.population)
    row = connection.execute(query.order_by(known.number.desc()).limit(1)).first()
    return None if row is None else _composition(row.total, row.event, grant.delta)


def _composition(total: str, event: str, delta: float) -> Composition:
    try:
        return Composition.from_dict(json.loads(total), _from_json(event), delta)
    except ValueError as error:
        raise UnreadableFileError(f"a total of the store cannot be read: {error}") from error


def _landed(plan: str, release: int | None = None) -> sa.Select[Any]:
    columns = _landings.c
    query = sa.select(columns.plan, columns.release, columns.sha256, columns.time).where(
        columns.plan == plan
    )
    return (
        query.order_by(columns.release)
        if release is None
        else query.where(columns.release == release)
    )


def _releases() -> sa.Select[Any]:
    """Return the query of all reservations, each with its landing or nulls."""
    at = (_reservations.c.plan == _landings.c.plan) & (
        _reservations.c.release == _landings.c.release
    )
    return (
        sa.select(
            _reservations.c.plan,
            _reservations.c.release,
            _reservations.c.time.label("reserved"),
            _landings.c.time.label("landed"),
            _landings.c.sha256,
        )
        .outerjoin_from(_reservations, _landings, at)
        .order_by(_reservations.c.plan, _reservations.c.release)
    )


def _document(
    named: dict[str, Any],
    grants: list[dict[str, Any]],
    campaigns: list[dict[str, Any]],
    releases: list[dict[str, Any]],
) -> dict[str, Any]:
    """Return what is known of one population."""
    last = campaigns[-1] if campaigns else None
    total = (
        None
        if last is None
        else _composition(last["total"], last["event"], named["delta"]).guarantee
    )
    return {
        "population": named["population"],
        "epsilon_granted": grants[-1]["epsilon"],
        "delta": named["delta"],
        "epsilon_spent": 0.0 if total is None else total.epsilon,
        "statement": None if total is None else str(total),
        "grants": [{"epsilon": row["epsilon"], "time": row["time"]} for row in grants],
        "campaigns": [
            {
                "plan": row["plan"],
                "owner": row["owner"],
                "time": row["time"],
                "event": json.loads(row["event"]),
                "releases": [
                    {name: value for name, value in one.items() if name != "plan"}
                    for one in releases
                    if one["plan"] == row["plan"]
                ],
            }
            for row in campaigns
        ],
    }


def _to_json(event: Event) -> str:
    return json.dumps(event.to_dict(), sort_keys=True)


def _from_json(text: str) -> Event:
    try:
        return Event.from_dict(json.loads(text))
    except ValueError as error:
        raise UnreadableFileError(f"an event of the store cannot be read: {error}") from error


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(ascii, names))


def _session(session: bytes) -> str:
    if not isinstance(session, bytes) or not 0 < len(session) <= 64:
        raise InvalidInputError(f"a session is 1 to 64 bytes, got {session!r}")
    return session.hex()


def _seconds(time: int) -> int:
    return _validate.integer(0, _LAST_SECOND, time=time)


# ---- databases ----


def _triggers(table: sa.Table, dialect: str) -> Sequence[str]:
    """Return the statements that make a table append-only."""
    name, refusal = table.name, "fedtally: this table is append-only"
    if dialect == "postgresql":
        function = (
            "CREATE OR REPLACE FUNCTION fedtally_refuse() RETURNS trigger LANGUAGE plpgsql AS $$"
            f" BEGIN RAISE EXCEPTION '{refusal}' USING ERRCODE = 'integrity_constraint_violation';"
            " END $$"
        )
        trigger = (
            "CREATE TRIGGER {0}_{1} BEFORE {2} ON {0} FOR EACH {3} EXECUTE FUNCTION"
            " fedtally_refuse()"
        )
        return [
            function,
            trigger.format(name, "kept", "UPDATE OR DELETE", "ROW"),
            trigger.format(name, "whole", "TRUNCATE", "STATEMENT"),
        ]
    taken = " OR ".join(
        " AND ".join(f"{column} = NEW.{column}" for column in columns)
        for columns in _unique_columns(table)
    )
    raised = f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
    replaced = f"WHEN EXISTS (SELECT 1 FROM {name} WHERE {taken})"  # noqa: S608 REPLACE deletes unseen otherwise
    return [
        f"CREATE TRIGGER {name}_update BEFORE UPDATE ON {name} {raised}",
        f"CREATE TRIGGER {name}_delete BEFORE DELETE ON {name} {raised}",
        f"CREATE TRIGGER {name}_insert BEFORE INSERT ON {name} {replaced} {raised}",
    ]


def _unique_columns(table: sa.Table) -> list[list[str]]:
    """Return the names of the columns of each constraint by which REPLACE takes one row for another."""
    unique = [
        one
        for one in table.constraints
        if isinstance(one, sa.PrimaryKeyConstraint | sa.UniqueConstraint)
    ]
    # constraints are a set: one order
    return sorted([column.name for column in one.columns] for one in unique)


def _opened(kind: type[_Opened], url: sa.URL, create: bool) -> _Opened:
    name = (
        url.database
        if url.get_backend_name() == "sqlite"
        else url.render_as_string(hide_password=True)
    )
    assert name is not None
    if url.get_backend_name() == "sqlite":
        try:
            if create:
                Path(name).touch(mode=0o600, exist_ok=True)
            elif not Path(name).is_file():
                raise UnreadableFileError(f"there is no {kind._kind} at {name}")
        except OSError as error:
            raise UnreadableFileError(f"cannot open {name}: {error.strerror}") from error
    database = kind(_engine(url), name)
    if create:
        database._create()
    database._check()
    return database


def _url(location: str | os.PathLike[str]) -> sa.URL:
    place = os.fspath(location)
    if "://" not in place:
        return _file(place)
    try:
        url = sa.make_url(place)
        backend = url.get_backend_name()
    except (ArgumentError, ValueError):
        raise InvalidInputError(
            "not a URL of a database: write postgresql://user@host/database or a path"
        ) from None
    if backend == "sqlite":
        return _file(url.database or "")
    if backend not in ("postgresql", "postgres"):
        raise InvalidInputError(f"a ledger is kept in SQLite or PostgreSQL, not in {backend}")
    return url.set(drivername="postgresql+psycopg")


def _file(path: str) -> sa.URL:
    if path in ("", ":memory:") or path.startswith("file:"):
        raise InvalidInputError(
            f"a database must outlive its process: give the path of a file, got {path!r}"
        )
    return sa.URL.create("sqlite", database=path)


def _engine(url: sa.URL) -> sa.Engine:
    """Return an engine that connects anew for each transaction: writes are rare, and processes may fork.

    Its errors hide the values of a statement, which may be a client's items.
    """
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(
            url, poolclass=sa.NullPool, hide_parameters=True, connect_args={"timeout": WAIT_SECONDS}
        )
        hooks.listen(engine, "connect", _prepare_sqlite)
        hooks.listen(engine, "begin", _begin_sqlite)
        return engine
    try:
        # READ COMMITTED: what is read after the lock was waited for is what others have committed
        engine = sa.create_engine(
            url, poolclass=sa.NullPool, hide_parameters=True, isolation_level="READ COMMITTED"
        )
    except ImportError:
        raise MissingExtraError(
            "PostgreSQL needs its driver: pip install 'fedtally[postgres]'"
        ) from None
    hooks.listen(engine, "connect", _prepare_postgres)
    return engine


def _prepare_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin where `_begin_sqlite` says
    for setting in ("foreign_keys = ON", "synchronous = EXTRA", "trusted_schema = OFF"):
        connection.execute(f"PRAGMA {setting}")


def _begin_sqlite(connection: sa.Connection) -> None:
    write = connection.get_execution_options()["fedtally_write"]
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _prepare_postgres(connection: Any, _: Any) -> None:
    switched_on = (
        "SELECT set_config(name, 'on', false) FROM pg_settings WHERE name = 'synchronous_commit'"
    )
    with connection.cursor() as cursor:
        cursor.execute(switched_on + " AND setting = 'off'")
    connection.commit()


@contextmanager
def _taken(charge: Charge) -> Iterator[None]:
    """Say of a broken constraint what it means: another writer, who did not wait for the lock, was first."""
    try:
        yield
    except IntegrityError as error:
        raise AlreadySpentError(
            f"release {charge.release} of plan {charge.plan} was reserved by another writer"
        ) from error


@contextmanager
def _failures(name: str) -> Iterator[None]:
    """Map what SQLAlchemy and the drivers raise."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"{name} is damaged: it holds text that is none") from error
    except SQLAlchemyError as error:
        reason = (
            str(error.orig if isinstance(error, DBAPIError) else error).strip().partition("\n")[0]
        )
        if "not a database" in reason:
            raise UnreadableFileError(f"{name} is no database: {reason}") from error
        raise StoreError(f"{name} failed: {reason}") from error
