"""A client's outbox: the frames of its reports to two servers, until each server has its own.

Both frames are in the transaction that spends the items (`ClientRecord.take_part`). So after a
crash a report is sent on, and none is made a second time: another report of the same items would be
refused, or count them twice. A frame leaves the outbox when its server has accepted it. When a
report can be sent no more, all of it leaves, and the record keeps for ever what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

import sqlalchemy as sa

from fedtally.store.database import CHANGES, driver_connection, prepared, time_column
from fedtally.store.writes import count_write

if TYPE_CHECKING:
    from fedtally.secagg.two_server import Report, Side


_tables = sa.MetaData()


def _key() -> tuple[sa.Column[str], sa.Column[int]]:
    """Return new columns that name a report."""
    return (
        sa.Column("plan", sa.String(200), primary_key=True),
        sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    )


_outbox = sa.Table(
    "fedtally_outbox",
    _tables,
    *_key(),
    sa.Column("server", sa.String(6), primary_key=True),
    sa.Column("frame", sa.LargeBinary, nullable=False),
    time_column(),
    info=CHANGES,
)
# What became of each report, for ever.
_fates = sa.Table(
    "fedtally_fates", _tables, *_key(), sa.Column("fate", sa.String(20), nullable=False)
)


class Said(StrEnum):
    """What a server said to a frame.

    ACCEPTED: it has the frame on disk, or had it already. REFUSED: the report is in no batch, since
    the release is over or the server takes no such report. NOTHING: no answer came while there was
    time, or the server does not know any more.
    """

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NOTHING = "nothing"


class Fate(StrEnum):
    """What became of a report; its items are spent, whatever it is."""

    ACCEPTED = "both servers accepted the report"
    NOT_COUNTED = "the report is not counted, and its items are spent"
    UNKNOWN = "the leader did not say: the report may be counted or not, its items are spent"


class MarkedRecord(Protocol):
    """A client's record, as its outbox needs it."""

    def _marked(self) -> AbstractContextManager[sa.Connection]: ...


@dataclass(frozen=True)
class Unsent:
    """A report that is still to be sent, or a part of it.

    Attributes:
        plan: the fingerprint of the plan.
        round: the number of the round.
        time: when the items were spent, Unix seconds.
        frames: the frame that each server is still to be sent.
    """

    plan: str
    round: int
    time: int
    frames: Mapping[Side, bytes] = field(repr=False)
    _record: MarkedRecord = field(repr=False, compare=False)

    def said(self, server: Side, what: Said) -> Fate | None:
        """Record what a server said; return what became of the report, or None while it is sent.

        It is on disk before this returns. The leader's frame leaves only after the helper's
        ACCEPTED is: else an end without an answer could say "not counted" of a report that is.
        What a server says again changes nothing.

        Args:
            server: `helper` or `leader`.
            what: its word on its frame.
        """
        row = {"plan": self.plan, "round": self.round}
        with self._record._marked() as connection:
            left = {name for (name,) in connection.exec_driver_sql(_FIND_LEFT, row)}
            if server not in left:
                return find_fate(connection, self.plan, self.round)
            count_write(driver_connection(connection))
            fate = _fate(left, server, what)
            for name in [server] if fate is None else sorted(left):
                connection.exec_driver_sql(_REMOVE, row | {"server": name})
            if fate is not None:
                connection.exec_driver_sql(_ADD_FATE, row | {"fate": fate.name})
        return fate


def _fate(left: set[str], server: str, what: Said) -> Fate | None:
    """Return what becomes of a report by a server's word, if that decides it.

    Args:
        left: the servers that have not accepted their frames before.
        server: one of them.
        what: its word.
    """
    if what is Said.ACCEPTED:
        return Fate.ACCEPTED if left == {server} else None
    # a server that heard of the report may have counted it, if the other one has it too
    return Fate.UNKNOWN if what is Said.NOTHING and len(left) == 1 else Fate.NOT_COUNTED


def outbox_tables(metadata: sa.MetaData) -> None:
    """Add the tables of the outbox to a record's tables."""
    for table in (_outbox, _fates):
        table.to_metadata(metadata)


def put_report(connection: sa.Connection, plan: str, round: int, time: int, report: Report) -> None:
    """Put both frames of a report into the outbox, in the transaction that spends its items."""
    for server, frame in (("helper", report.helper), ("leader", report.leader)):
        row = {"plan": plan, "round": round, "server": server, "frame": frame, "time": time}
        connection.exec_driver_sql(_PUT, row)


def find_unsent(connection: sa.Connection, record: MarkedRecord) -> list[Unsent]:
    """Return the reports that are still to be sent, the oldest first."""
    found: dict[tuple[int, str, int], dict[Side, bytes]] = {}
    for plan, round, server, frame, time in connection.exec_driver_sql(_FIND_ALL):
        found.setdefault((time, plan, round), {})[server] = bytes(frame)
    return [
        Unsent(plan, round, time, frames, record) for (time, plan, round), frames in found.items()
    ]


def find_fate(connection: sa.Connection, plan: str, round: int) -> Fate | None:
    """Return what became of a report; None while it is sent, or if there is none."""
    row = {"plan": plan, "round": round}
    name = connection.exec_driver_sql(_FIND_FATE, row).scalar()
    return None if name is None else Fate[name]


_of = (_outbox.c.plan == sa.bindparam("plan")) & (_outbox.c.round == sa.bindparam("round"))
_PUT = prepared(sa.insert(_outbox))
_ADD_FATE = prepared(sa.insert(_fates))
_FIND_LEFT = prepared(sa.select(_outbox.c.server).where(_of))
_FIND_ALL = prepared(
    sa.select(
        _outbox.c.plan, _outbox.c.round, _outbox.c.server, _outbox.c.frame, _outbox.c.time
    ).order_by(_outbox.c.time, _outbox.c.plan, _outbox.c.round, _outbox.c.server)
)
_REMOVE = prepared(sa.delete(_outbox).where(_of & (_outbox.c.server == sa.bindparam("server"))))
_FIND_FATE = prepared(
    sa.select(_fates.c.fate).where(
        (_fates.c.plan == sa.bindparam("plan")) & (_fates.c.round == sa.bindparam("round"))
    )
)
