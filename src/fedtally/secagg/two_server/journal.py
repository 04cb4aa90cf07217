"""Define the storage that two-server summation needs, as protocols that a caller implements.

A server needs a `Journal` of facts and, if it does not keep reports in memory, `Reports`. A client
may have a `ReportJournal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from fedtally.secagg.two_server.reports import Report

Side = Literal["leader", "helper"]


class Journal(Protocol):
    """Store what a server must never forget: named values, each written once and never changed.

    Each server has its own journal, for all its batches. A restart, a second process or a restored
    backup must not lose an entry. Without the entries, a server could sum two overlapping batches,
    and the difference of the sums shows few clients. Or it could draw noise twice for one sum, and
    the average of two noises hides less. docs/protocol.md lists the names, and before which message
    each entry is written.
    """

    def kept(self, name: bytes) -> bytes | None:
        """Return the value under a name, or None if the name has none."""

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Write a value under a name if the name has none; return the value that the name has.

        The call is one transaction, on disk before it returns (`MemoryJournal` has no disk). If two
        processes write a name at once, both get the same value. After an error the caller does not
        know whether the value was written, and must send nothing.
        """


class MemoryJournal:
    """Store the facts in memory only: for simulation and tests.

    They are lost when the process ends.
    """

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def kept(self, name: bytes) -> bytes | None:
        """Return the value under a name, or None if the name has none."""
        return self._values.get(name)

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Write a value under a name if the name has none; return the value that the name has."""
        return self._values.setdefault(name, value)


class Reports(Protocol):
    """Store the frames of a batch's reports, for a server that does not keep reports in memory.

    The frames are stored as they came, sealed, and are erased once they are no longer needed. When
    the server reads a frame back, it compares the frame with the digest in the journal.
    """

    def ids(self) -> Iterable[bytes]:
        """Return the ids of all reports, in any order."""

    def put(self, id: bytes, frame: bytes, names: Sequence[bytes]) -> bool:
        """Store a frame, and also its SHA-256 in the journal under each of some names.

        The journal is the server's `Journal`. If it has another value under one of the names,
        nothing is stored. The call is one transaction, on disk before it returns. There is one
        exception: an implementation may let the caller join several calls to a group, such as
        `store`'s `group`. Then all of these calls are on disk when the group has ended. Before the
        end of the group, tell no sender that its report was accepted.

        Args:
            id: the id of the report, 16 bytes.
            frame: the frame of the report; it replaces a stored frame with the same id.
            names: the names in the journal.

        Returns:
            Whether the frame is stored.
        """

    def frames(self, ids: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the frames with these ids, in the order of `ids`; a missing frame is None."""

    def keep_answer(self, sealed: bytes) -> None:
        """Store the sealed answer of the helper; it replaces a stored one."""

    def answer(self) -> bytes | None:
        """Return the stored answer of the helper, still sealed; None: no answer is stored."""

    def erase(self) -> None:
        """Erase all frames and the answer; a call that was interrupted can be repeated."""


@runtime_checkable
class ReportJournal(Protocol):
    """Store a client's report until both servers have it, in the journal that marks spent items.

    A client's journal need only be a `secagg.client.Journal`. But then a crash before the report is
    sent loses the report: its items are marked as spent, so the report is never made again. A
    journal that is a `ReportJournal`, too, keeps the report: the client calls `spend_report` in
    place of `spend`.
    """

    def spend_report(self, report: Report) -> bool:
        """Mark the items as spent and store both frames of the report, in one atomic step.

        Return False if the items may not be spent, as `secagg.client.Journal.spend` does: they were
        spent before, or the client's record does not allow it. Then nothing is stored.
        """
