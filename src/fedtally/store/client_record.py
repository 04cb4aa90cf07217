"""A client's own record of what it took part in, and the journal of a round that is kept in it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Self

import sqlalchemy as sa

from fedtally import _validate
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
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
    GrantDatabase,
    event_from_json,
    event_to_json,
    file_url,
    grant_tables,
    opened,
    seconds,
    time_column,
)

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
    time_column(),
)
# Sessions that began: the client is in none of them twice, even after a crash.
_sessions = sa.Table(
    "fedtally_sessions",
    _record,
    sa.Column("session", sa.String(128), primary_key=True),
    sa.Column("not_after", sa.BigInteger, nullable=False),
)


class ClientRecord(GrantDatabase):
    """A client's own record of the rounds it took part in, so that it need not trust an operator.

    Made by `open`, one file for each client identity. Its owner may set a `cap` on the cost of
    everything in the record together, whatever populations the operators name. The owner may also
    `grant` to populations: campaigns that cost a population more are refused, by the ledger's rule.
    """

    _kind = "client record"
    _metadata = _record
    _populations, _granted = _record_grants

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, create: bool = False) -> Self:
        """Open the record in an SQLite file.

        Raises:
            UnreadableFileError: there is no record, or one of a newer version, or another file.
        """
        return opened(cls, file_url(os.fspath(path)), create)

    def cap(
        self, epsilon: float, delta: float, time: int, relation: Relation | str = Relation.ZERO_OUT
    ) -> None:
        """Cap the cost of all campaigns in this record together; a later cap replaces the earlier.

        Each campaign counts in full from its first round on, by the proven bound of its event.
        Rounds without differential privacy have no epsilon: under a cap they are refused.

        Args:
            epsilon: the largest total, above 0 and at most 1000.
            delta: the delta of the total, at least 1e-15 and below 1.
            time: now, Unix seconds.
            relation: how the total is stated, `zero-out` or `replace-one`, whatever the plans name.

        Raises:
            InvalidInputError: values out of bounds; or the record holds a part without differential
                privacy, which no cap covers.
        """
        new = Cap(epsilon, delta, Relation.parse(relation))
        values = {
            "epsilon": new.epsilon,
            "delta": new.delta,
            "relation": str(new.relation),
            "time": seconds(time),
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
        with self._transaction(write=True) as connection:
            if (
                connection.execute(sa.select(_sessions).where(_sessions.c.session == name)).first()
                is not None
            ):
                return False
            connection.execute(
                sa.insert(_sessions).values(session=name, not_after=seconds(not_after))
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

        Raises:
            AlreadySpentError: the client took part in that round, or contributed that item.
            OverspentError: the client took part as often as the event allows, or the owner's grant
                or cap does not cover the campaign.
            InvalidInputError: as `budget.check_participation`; or the plan came with an event
                before and has none now, or the other way round.
        """
        checked_name(population=population)
        checked_name(plan=plan)
        if item is not None and not is_name(item):
            # the label is not quoted: errors are logged, and it may tell what the client holds
            raise InvalidInputError(f"an item's label must be {NAME}")
        round, time = _validate.integer(0, 2**31 - 1, round=round), seconds(time)
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
            # A plan without an event skips the checks below. If a plan could drop its event between
            # two rounds, it could pass them all.
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
            text = None if event is None else event_to_json(event)
            values = {
                "population": population,
                "plan": plan,
                "round": round,
                "event": text,
                "item": item,
            }
            connection.execute(sa.insert(_participations).values(**values, time=time))

    def _check_charge(self, connection: sa.Connection, charge: Charge) -> None:
        """Refuse a part that the event's bound, or the owner's grant to the population, forbids."""
        known = _participations.c
        # the rows of the same plan under another population, too: a plan that changes it is refused
        theirs = (known.population == charge.population) | (known.plan == charge.plan)
        rows = connection.execute(sa.select(_participations).where(theirs)).all()
        charges = [
            Charge(row.population, row.plan, row.round, event_from_json(row.event))
            for row in rows
            if row.event
        ]
        check_participation(charges, charge)
        grant = self._grant(connection, charge.population)
        if grant is not None:
            check_spend(grant, charges, charge)

    def _check_cap(self, connection: sa.Connection, charge: Charge | None) -> None:
        """Refuse a part that the cap forbids; None is a part without differential privacy."""
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
            Charge(row.population, row.plan, row.round, event_from_json(row.event)) for row in rows
        ]
        check_cap(cap, charges, charge)

    def _cap(self, connection: sa.Connection) -> Cap | None:
        row = connection.execute(sa.select(_caps).order_by(_caps.c.number.desc()).limit(1)).first()
        return None if row is None else Cap(row.epsilon, row.delta, Relation.parse(row.relation))

    def participations(self, plan: str) -> list[int]:
        """Return the rounds of a plan that the client took part in, in order."""
        known = _participations.c
        with self._transaction(write=False) as connection:
            rows = connection.execute(
                sa.select(known.round).where(known.plan == plan).order_by(known.round)
            )
            return [row.round for row in rows]


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
        time: now, Unix seconds.
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

    def begin(self, session: bytes, not_after: int) -> bool:
        """Record a session before it begins; return False if it was recorded before."""
        return self.record.begin(session, not_after)

    def spend(self, session: bytes) -> bool:
        """Record that the client takes part in the round; return False if the record refuses.

        `refusal` then says why: the client took part before, or too often, or the events do not add
        up.
        """
        self._refuse("")
        try:
            terms = self.plan.privacy
            population, event = (
                ("clients", None) if terms is None else (terms.population, terms.event)
            )
            self.record.take_part(
                population, self.fingerprint, self.round, event, self.time, self.item
            )
        except InvalidInputError as error:
            # The refusals of the budget are InvalidInputErrors. A database that fails raises
            # StoreError, which must not look like a refusal.
            self._refuse(str(error))
            return False
        return True

    def _refuse(self, why: str) -> None:
        # past the freeze, which guards the fields that name the round
        object.__setattr__(self, "refusal", why)


def _session(session: bytes) -> str:
    """Return the name of a session in hexadecimal, as its column keeps it."""
    if not isinstance(session, bytes) or not 0 < len(session) <= 64:
        raise InvalidInputError(f"a session is 1 to 64 bytes, got {session!r}")
    return session.hex()
