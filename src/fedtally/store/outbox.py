"""A client's outbox: the frames of its reports to two servers, until both servers accepted them.

A report has two frames, one for each server. Both are stored in the transaction that records the
client's part in the round (`ClientRecord.take_part`). So after a crash the same report is sent
again. A new report would be refused, or would count the items twice. A frame is removed when its
server has accepted it. If a report cannot be counted any more, both frames are removed. The record
keeps the final state of the report (`Fate`) for ever.
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
    """Return new columns for the primary key of a report: plan and round."""
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
# The final state of each report, kept for ever.
_fates = sa.Table(
    "fedtally_fates", _tables, *_key(), sa.Column("fate", sa.String(20), nullable=False)
)


class Said(StrEnum):
    """A server's answer to a frame.

    - ACCEPTED: the server has the frame on disk.
    - REFUSED: the server does not count the report, for instance because its release has ended.
    - NOTHING: no answer came and the sender gives up. Or the server does not know any more whether
      it has the frame.

    REFUSED and NOTHING end the report: neither frame is sent again (see `Fate`). To try a frame
    again, record no answer.
    """

    ACCEPTED = "accepted"
    REFUSED = "refused"
    NOTHING = "nothing"


class Fate(StrEnum):
    """The final state of a report.

    In each state the items of the report are spent: they must not be reported again.

    - ACCEPTED: both servers accepted their frames.
    - UNKNOWN: the first answer was ACCEPTED, and the answer of the other server is NOTHING.
    - NOT_COUNTED: a server's answer was REFUSED, or the first answer was NOTHING.
    """

    ACCEPTED = "both servers accepted the report"
    NOT_COUNTED = "the report is not counted, and its items are spent"
    UNKNOWN = "the leader did not say: the report may be counted or not, its items are spent"


class MarkedRecord(Protocol):
    """The method of a client's record that its outbox needs, see `ClientRecord._marked`."""

    def _marked(self) -> AbstractContextManager[sa.Connection]: ...


@dataclass(frozen=True)
class Unsent:
    """A report with one or two frames that still must be sent.

    Attributes:
        plan: the fingerprint of the plan.
        round: the number of the round.
        time: when the report was put into the outbox, Unix seconds.
        frames: the frames that still must be sent, by server. `said` does not remove a frame from
            this object.
    """

    plan: str
    round: int
    time: int
    frames: Mapping[Side, bytes] = field(repr=False)
    _record: MarkedRecord = field(repr=False, compare=False)

    def said(self, server: Side, what: Said) -> Fate | None:
        """Record a server's answer, and return the report's final state.

        The state is None (not final) only after the first ACCEPTED, while the frame for the other
        server is unsent.

        The answer is on disk when this returns. Send the leader's frame only after the helper's
        ACCEPTED is recorded. Otherwise, if a server gives no answer, the report could be recorded
        as not counted although it is counted. A second answer of a server changes nothing.

        Args:
            server: the server, `helper` or `leader`.
            what: the answer of this server to its frame.
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
    """Return the final state of a report after an answer of a server; None if it is not final.

    Args:
        left: the servers whose frames are still in the outbox.
        server: the server that answered, one of `left`.
        what: the answer of `server`.
    """
    if what is Said.ACCEPTED:
        return Fate.ACCEPTED if left == {server} else None
    # Without an answer, `server` may have its frame or not. If the other server has accepted its
    # frame, the report may be counted. If not, it cannot be counted: a report needs both frames.
    return Fate.UNKNOWN if what is Said.NOTHING and len(left) == 1 else Fate.NOT_COUNTED


def outbox_tables(metadata: sa.MetaData) -> None:
    """Add the outbox's tables to the tables of a record."""
    for table in (_outbox, _fates):
        table.to_metadata(metadata)


def put_report(connection: sa.Connection, plan: str, round: int, time: int, report: Report) -> None:
    """Put both frames of a report into the outbox, in the caller's transaction.

    Args:
        connection: a connection in the transaction that records the client's part in the round.
        plan: the fingerprint of the plan.
        round: the number of the round.
        time: now, Unix seconds.
        report: the report, with a frame for each server.
    """
    for server, frame in (("helper", report.helper), ("leader", report.leader)):
        row = {"plan": plan, "round": round, "server": server, "frame": frame, "time": time}
        connection.exec_driver_sql(_PUT, row)


def find_unsent(connection: sa.Connection, record: MarkedRecord) -> list[Unsent]:
    """Return the reports with frames that still must be sent, the oldest first.

    Args:
        connection: a connection in a transaction of `record`.
        record: the client's record, to which `Unsent.said` writes answers.
    """
    found: dict[tuple[int, str, int], dict[Side, bytes]] = {}
    for plan, round, server, frame, time in connection.exec_driver_sql(_FIND_ALL):
        found.setdefault((time, plan, round), {})[server] = bytes(frame)
    return [
        Unsent(plan, round, time, frames, record) for (time, plan, round), frames in found.items()
    ]


def find_fate(connection: sa.Connection, plan: str, round: int) -> Fate | None:
    """Return the final state of a report; None if it is not final, or there is no such report."""
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
