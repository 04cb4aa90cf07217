"""The operator's ledger: budgets of populations, charged campaigns, and their releases."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.privacy import allows_publishing
from fedtally.privacy.accounting import Composition, Guarantee
from fedtally.privacy.budget import (
    AlreadySpentError,
    Charge,
    Grant,
    appearance,
    check_campaign,
    check_total,
    checked_name,
)
from fedtally.store.database import (
    GrantDatabase,
    event_from_json,
    event_to_json,
    grant_tables,
    opened,
    seconds,
    time_column,
    url_of,
)

EXPORT = "fedtally-ledger/1"

_ledger = sa.MetaData()
_ledger_grants = grant_tables(_ledger)
# The primary key gives a plan one event, one population and one owner, even with two writers at
# once.
_campaigns = sa.Table(
    "fedtally_campaigns",
    _ledger,
    sa.Column("plan", sa.String(200), primary_key=True),
    sa.Column("population", sa.ForeignKey(_ledger_grants[0].c.population), nullable=False),
    sa.Column("number", sa.Integer, nullable=False),  # among its population's campaigns, from 1
    sa.Column("owner", sa.String(200), nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    # The total cost (`Composition`) of the population's campaigns up to this one. So a reservation
    # reads one row, however many campaigns there are.
    sa.Column("total", sa.Text, nullable=False),
    time_column(),
    # Two campaigns cannot both add to the same total. Also, the index finds the last row quickly.
    sa.UniqueConstraint("population", "number"),
)
_reservations = sa.Table(
    "fedtally_reservations",
    _ledger,
    sa.Column("plan", sa.ForeignKey(_campaigns.c.plan), primary_key=True),
    sa.Column("release", sa.Integer, primary_key=True, autoincrement=False),
    time_column(),
)
# One row is both the sum with noise and the fact that its release landed. No table has a column for
# a sum without noise.
_landings = sa.Table(
    "fedtally_landings",
    _ledger,
    sa.Column("plan", sa.String(200), primary_key=True),
    sa.Column("release", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("sketch", sa.LargeBinary, nullable=False),
    sa.Column("sha256", sa.String(64), nullable=False),
    time_column(),
    sa.ForeignKeyConstraint(["plan", "release"], [_reservations.c.plan, _reservations.c.release]),
)


class Reservation(NamedTuple):
    """A release that is charged, and so counts as spent; only the campaign's owner may open it.

    Attributes:
        plan: the fingerprint of the plan.
        release: the number of the release in the plan, from 0.
    """

    plan: str
    release: int


class Landing(NamedTuple):
    """A release whose sum, with noise, is stored in the ledger.

    Attributes:
        plan: the fingerprint of the plan.
        release: the number of the release in the plan, from 0.
        sha256: the SHA-256 of the stored bytes, in hexadecimal.
        time: the time of the landing, Unix seconds.
    """

    plan: str
    release: int
    sha256: str
    time: int


class Ledger(GrantDatabase):
    """The operator's ledger: grants to populations, charged campaigns, reserved and landed
    releases.

    A *release* is what a plan opens at once: the sum of one or several rounds. It *lands* when the
    ledger holds its sum with noise. `open` makes a `Ledger`. Several threads and processes may use
    one database, each with a `Ledger` object of its own.
    """

    _kind = "ledger"
    _anew = "begin a new ledger, and grant only the rest of the epsilon"
    _beside = frozenset({"campaigns"})
    _metadata = _ledger
    _populations, _granted = _ledger_grants

    @classmethod
    def open(cls, location: str | os.PathLike[str], *, create: bool = False) -> Self:
        """Open a ledger.

        Args:
            location: the path of an SQLite file, or a URL: sqlite:///path or
                postgresql://user@host/database.
            create: whether to make the file, or the tables in the database, if they are missing.

        Raises:
            UnreadableFileError: there is no ledger, the file is no ledger, or its version differs.
            InvalidInputError: the URL is of neither SQLite nor PostgreSQL.
            MissingExtraError: the driver for PostgreSQL is not installed.
            StoreError: the database cannot be used, for instance because it is locked.
        """
        return opened(cls, url_of(location), create)

    def reserve(self, charge: Charge, owner: str, time: int) -> Reservation:
        """Reserve a release; call this before its noise is drawn and before its sum is opened.

        When this returns, the release counts as spent, even if the process dies at once. The first
        reservation of a plan charges the whole campaign to its population; from then on, the
        campaign belongs to `owner`.

        Until the release has landed, its owner may reserve it again, for another cohort or after a
        crash. But if any part of a sum with noise was sent, the owner must not draw noise for this
        sum again. A reservation takes the same time however full the ledger is.

        Args:
            charge: the release, with its plan, its population and the event of the campaign.
            owner: a unique name of this run of the campaign, such as 32 random bytes in
                hexadecimal.
            time: now, Unix seconds.

        Raises:
            AlreadySpentError: the campaign belongs to another owner, or the release has landed.
            OverspentError: with this campaign, the population would cost more than its grant. Or
                several campaigns together would cost an epsilon above `accounting.MOST_ADAPTIVE`
                (25), whatever the grant.
            InvalidInputError: the population has no grant; the plan was charged to another
                population or with another event; or the costs cannot be added up (see
                `budget.check_total`).
        """
        owner, time = checked_name(owner=owner), seconds(time)
        with self._transaction(write=True) as connection, _taken(charge):
            grant, campaign = self._known(connection, charge)
            if campaign is None:
                self._begin(connection, grant, charge, owner, time)
            elif self._is_repeated(connection, campaign, charge, owner):
                return Reservation(charge.plan, charge.release)
            connection.execute(
                sa.insert(_reservations).values(plan=charge.plan, release=charge.release, time=time)
            )
        return Reservation(charge.plan, charge.release)

    def check_charge(self, charge: Charge, owner: str = "") -> None:
        """Refuse a campaign that could not be charged now; charge nothing.

        Args:
            charge: any release of the campaign.
            owner: the name of the run that is to charge it, as for `reserve`; "" for a run that has
                charged nothing yet, whatever its name will be.

        Raises:
            AlreadySpentError: the campaign belongs to another owner.
            OverspentError: see `reserve`.
            InvalidInputError: the population has no grant; the plan was charged to another
                population or with another event; or the costs cannot be added up.
        """
        with self._transaction(write=False) as connection:
            grant, campaign = self._known(connection, charge)
            if campaign is None:
                check_total(grant, _with(_total(connection, grant), grant, charge), charge.plan)
            else:
                check_campaign(_charge_of(campaign), charge)
                if campaign.owner != owner:
                    raise AlreadySpentError(
                        f"another run charged this plan to the ledger {self.name}, and no other may"
                        " open its sums: go on with that run, or begin with a new plan"
                    )

    def cautions(self, population: str, people: int, noun: str = "clients") -> list[str]:
        """Return a warning, in a list, if a population's delta is at least 1 / `people`.

        The list is empty for a smaller delta, and without a grant. Such a grant protects little:
        publishing the item of one client drawn at random would keep within it. A plan refuses such
        a delta of its own, but its campaign is charged at the delta of the grant.

        Args:
            population: the name of the population.
            people: the number of people in a campaign that is charged to this population.
            noun: the plural noun for these people, as "clients".
        """
        grant = self.granted(population)
        if grant is None or not (loose := allows_publishing(grant.delta, people, noun)):
            return []
        said = (
            f"the grant of population {population!r} in {self._name} guarantees little: its"
            f" {loose}; grant a smaller delta to a population of another name, and plan for that"
            " (fedtally ledger grant)"
        )
        return [said]

    def _known(self, connection: sa.Connection, charge: Charge) -> tuple[Grant, sa.Row[Any] | None]:
        """Return the grant of the charge's population, and the row of the charge's campaign.

        The row is None if the campaign is not charged yet.

        Raises:
            InvalidInputError: the population has no grant.
        """
        grant = self._grant(connection, charge.population)
        if grant is None:
            raise InvalidInputError(self._ungranted(connection, charge.population))
        of_plan = sa.select(_campaigns).where(_campaigns.c.plan == charge.plan)
        return grant, connection.execute(of_plan).first()

    def _begin(
        self, connection: sa.Connection, grant: Grant, charge: Charge, owner: str, time: int
    ) -> None:
        """Charge a campaign to its population, and make `owner` its owner.

        Raises:
            OverspentError: see `reserve`.
            InvalidInputError: the costs cannot be added up.
        """
        total = _with(_total(connection, grant), grant, charge)
        check_total(grant, total, charge.plan)
        row = {
            "plan": charge.plan,
            "population": charge.population,
            "number": total.campaigns,
            "owner": owner,
        }
        texts = {
            "event": event_to_json(charge.event),
            "total": json.dumps(total.to_dict(), sort_keys=True),
        }
        connection.execute(sa.insert(_campaigns).values(**row, **texts, time=time))

    def _is_repeated(
        self, connection: sa.Connection, campaign: sa.Row[Any], charge: Charge, owner: str
    ) -> bool:
        """Return whether this release of a charged campaign was reserved before.

        Raises:
            AlreadySpentError: the campaign belongs to another owner, or the release has landed.
            InvalidInputError: the campaign has another population or event, see `check_campaign`.
        """
        # A campaign's row names no release, so the charge made of it has release 0.
        # `check_campaign` compares population and event only.
        check_campaign(_charge_of(campaign), charge)
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
            f"{f', which looks like {_quoted(alike)},' if alike else ''} in {self.name}: "
            f"fedtally ledger grant --population {population} --epsilon ... --delta ..."
        )

    def look_alikes(self, population: str) -> list[str]:
        """Return the names of granted populations that people may mistake for this one, sorted.

        Each name has a budget of its own, so a mistyped name would be a second budget. Call this
        before the first grant or charge of a population. `budget.appearance` decides which names
        look alike.
        """
        with self._transaction(write=False) as connection:
            return self._look_alikes(connection, population)

    def _look_alikes(self, connection: sa.Connection, population: str) -> list[str]:
        names = connection.execute(sa.select(self._populations.c.population)).scalars()
        alike = appearance(population)
        return sorted(name for name in names if name != population and appearance(name) == alike)

    def land(self, reservation: Reservation, sketch: bytes, owner: str, time: int) -> Landing:
        """Store the sum of a reserved release, with its noise, for ever; return the landing.

        When this has returned, erase the sum without noise. After an error or a crash, land the
        same bytes again: this changes nothing if they are stored already. Never draw the noise a
        second time.

        Args:
            reservation: the reservation that `reserve` returned.
            sketch: the bytes of the sum with noise.
            owner: the owner of the campaign, who reserved the release.
            time: now, Unix seconds.

        Raises:
            AlreadySpentError: the campaign belongs to another owner, or other bytes landed for this
                release.
            InvalidInputError: the release was not reserved, or `sketch` is empty.
        """
        return self.land_all({reservation: sketch}, owner, time)[0]

    def land_all(
        self, sketches: Mapping[Reservation, bytes], owner: str, time: int
    ) -> list[Landing]:
        """Store the sums of several releases, each as `land` does, in one transaction: all or none.

        The landings are returned in the order of `sketches`. For errors see `land`.
        """
        for sketch in sketches.values():
            if not isinstance(sketch, bytes) or not sketch:
                raise InvalidInputError(
                    f"a sketch to land is bytes, and not empty, got {type(sketch).__name__}"
                )
        owner, time = checked_name(owner=owner), seconds(time)
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
            # With equal bytes the caller repeats a landing, for instance since a crash hid the
            # answer.
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
        """Return the landed releases of a plan, in the order of their numbers."""
        with self._transaction(write=False) as connection:
            return [Landing(*row) for row in connection.execute(_landed(plan))]

    def reserved(self, plan: str) -> list[int]:
        """Return the numbers of all reserved releases of a plan, landed or not, in rising order."""
        known = _reservations.c
        query = sa.select(known.release).where(known.plan == plan).order_by(known.release)
        with self._transaction(write=False) as connection:
            return [row.release for row in connection.execute(query)]

    def sketch(self, plan: str, release: int) -> bytes:
        """Return the bytes that landed for a release: its sum, with noise.

        Raises:
            InvalidInputError: the release did not land.
            UnreadableFileError: the stored bytes are damaged: their hash has changed.
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
        """Return the total cost of a population's charged and planned campaigns.

        This is None if the population has no grant, or has neither charged nor planned campaigns.

        Args:
            population: the name of the population.
            planned: one charge for each campaign that is not charged yet but is to be included. Do
                not give a charged campaign: it would count twice.
        """
        with self._transaction(write=False) as connection:
            grant = self._grant(connection, population)
            if grant is None:
                return None
            total = _total(connection, grant)
        for charge in planned:
            total = _with(total, grant, charge)
        return None if total is None else total.guarantee

    def export(self, population: str | None = None) -> dict[str, Any]:
        """Return all rows of the ledger but the sums, as a dict that JSON can represent.

        Its entry `populations` lists for each population: its grants, its total cost, and its
        campaigns with their releases. All is read in one transaction.

        Args:
            population: the name of the one population to return; None: all populations.

        Raises:
            InvalidInputError: the ledger does not know the population.
            UnreadableFileError: the ledger is damaged.
        """
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


def _of_another_run(plan: str, release: int) -> AlreadySpentError:
    return AlreadySpentError(
        f"release {release} of plan {plan} is not to be had: another run charged this plan, and"
        " what it reserved counts as spent, landed or not; go on with that run, or with a new plan"
    )


def _charge_of(campaign: sa.Row[Any]) -> Charge:
    return Charge(campaign.population, campaign.plan, 0, event_from_json(campaign.event))


def _with(total: Composition | None, grant: Grant, charge: Charge) -> Composition:
    """Return the total cost of a population's campaigns with one more campaign.

    The first campaign, and the grant at that time, fix the order of the Renyi divergences by which
    all campaigns are added up (`accounting.filter_order`). Later grants do not change the order.

    Args:
        total: the total without the new campaign; None if it is the first.
        grant: the grant of the population.
        charge: any release of the new campaign.
    """
    if total is None:
        return Composition.of([charge.event], grant.delta, grant.epsilon)
    return total.plus(charge.event)


def _total(connection: sa.Connection, grant: Grant) -> Composition | None:
    """Return the total cost of a population's charged campaigns; None if there are none."""
    known = _campaigns.c
    query = sa.select(known.event, known.total).where(known.population == grant.population)
    row = connection.execute(query.order_by(known.number.desc()).limit(1)).first()
    return None if row is None else _composition(row.total, row.event, grant.delta)


def _composition(total: str, event: str, delta: float) -> Composition:
    try:
        return Composition.from_dict(json.loads(total), event_from_json(event), delta)
    except ValueError as error:
        raise UnreadableFileError(f"a total of the store cannot be read: {error}") from error


def _landed(plan: str, release: int | None = None) -> sa.Select[Any]:
    """Return the query for a plan's landings, or for one release's landing, without the sums."""
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
    """Return the query for all reservations and their landings (null: not landed)."""
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
    """Return the part of the export that is about one population.

    Args:
        named: the row of the population.
        grants: the rows of its grants, the last one last.
        campaigns: the rows of its campaigns, in order.
        releases: the rows of `_releases`, of all populations.
    """
    spent: dict[str, Any] = {"epsilon_spent": 0.0, "statement": None, "order": None}
    try:
        granted = grants[-1]["epsilon"]
    except IndexError:  # impossible: the first grant is written with its population
        raise UnreadableFileError(
            f"the ledger is damaged: population {named['population']!r} has no grant; put a copy"
            " back"
        ) from None
    for last in campaigns[-1:]:
        total = _composition(last["total"], last["event"], named["delta"])
        known = total.guarantee
        spent = {"epsilon_spent": known.epsilon, "statement": str(known), "order": total.order}
    return {
        "population": named["population"],
        "epsilon_granted": granted,
        "delta": named["delta"],
        **spent,
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


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(ascii, names))


@contextmanager
def _taken(charge: Charge) -> Iterator[None]:
    """Turn an IntegrityError in the `with` block into an AlreadySpentError.

    A writer locks the whole database, and checks before it writes. So a constraint can fail only if
    another program wrote without the lock.
    """
    try:
        yield
    except IntegrityError as error:
        raise AlreadySpentError(
            f"release {charge.release} of plan {charge.plan} was reserved by another writer"
        ) from error
