"""The storage of a server of a batch: a journal of facts, and the frames of reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from fedtally.secagg.two_server.reports import Report

Side = Literal["leader", "helper"]


class Journal(Protocol):
    """The facts that a server must never forget: named values, each written once and never changed.

    Each server has its own journal, for all its batches. A restart, a second process or a restored
    backup must not lose an entry. Without the entries, a server could sum two overlapping batches,
    whose difference shows few clients. Or it could draw noise twice for one sum, and two noises
    average out. docs/protocol.md lists the names, and before which message each entry is written.
    """

    def kept(self, name: bytes) -> bytes | None:
        """Return the value under a name, or None."""

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Write a value under a name if the name has none; return the value that the name has.

        The call is one transaction, on disk before it returns. If two processes write a name at
        once, both get the same value. After an error the caller does not know whether the value was
        written, and must send nothing.
        """


class MemoryJournal:
    """A journal in memory, lost when the process ends: only for simulation and tests."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def kept(self, name: bytes) -> bytes | None:
        """Return the value under a name, or None."""
        return self._values.get(name)

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Write a value under a name if the name has none; return the value that the name has."""
        return self._values.setdefault(name, value)


class Reports(Protocol):
    """The stored frames of a batch's reports, for a server that holds no reports in memory.

    The frames are stored as they came, sealed, and are erased once they are no longer needed. When
    the server reads a frame back, it compares it with the digest in its journal.
    """

    def ids(self) -> Iterable[bytes]:
        """Return the ids of all reports, in any order."""

    def put(self, id: bytes, frame: bytes, names: Sequence[bytes]) -> bool:
        """Store a frame, and its SHA-256 in the journal under each of these names.

        Nothing is stored if the journal has another value under one of the names. The call is one
        transaction, on disk before it returns. If the caller has begun a group of calls, it is on
        disk before the group ends; until then no sender may be told that its report was accepted.

        Args:
            id: the id of the report, 16 bytes.
            frame: the frame of the report; it replaces a stored frame with the same id.
            names: the names in the journal.

        Returns:
            Whether the frame is stored.
        """

    def frames(self, ids: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the frames of these ids, in the order of `ids`; None for each missing frame."""

    def keep_answer(self, sealed: bytes) -> None:
        """Store the sealed answer of the helper; it replaces an earlier one."""

    def answer(self) -> bytes | None:
        """Return the stored answer of the helper, sealed, or None."""

    def erase(self) -> None:
        """Erase all frames and the answer.

        A call that was interrupted can be repeated.
        """


@runtime_checkable
class ReportJournal(Protocol):
    """A client's journal that stores a report until both servers have it.

    With a `secagg.client.Journal` alone, a crash before the report is sent loses it: its items are
    marked as spent, and the report is never made again.
    """

    def spend_report(self, report: Report) -> bool:
        """Mark the items as spent and store both frames of the report, in one atomic step.

        Return False if the items were spent before; then nothing is stored.
        """
