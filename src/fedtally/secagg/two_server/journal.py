"""What a server of a batch keeps outside of its memory: facts, and the frames of reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from fedtally.secagg.two_server.reports import Report

Side = Literal["leader", "helper"]


class Journal(Protocol):
    """The facts that a server must never forget: values under names, each written once for ever.

    Each server has its own, and all its batches share it. A restart, a second process or a restored
    backup must not make it forget: the sums of two batches that overlap give their difference away,
    and two noises for one sum average. docs/protocol.md lists the names, and before
    which message each is written.
    """

    def kept(self, name: bytes) -> bytes | None:
        """Return what is kept under a name, or None."""

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Keep a value under a name, unless one is kept there; return the one that is kept.

        It is one transaction, on disk before the call returns: of two processes that keep at once,
        both get the value of one. After an error the caller does not know whether the value was
        kept, and sends nothing.
        """


class MemoryJournal:
    """A journal that ends with the process: for simulation and tests alone."""

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}

    def kept(self, name: bytes) -> bytes | None:
        """Return what is kept under a name, or None."""
        return self._values.get(name)

    def keep(self, name: bytes, value: bytes) -> bytes:
        """Keep a value under a name, unless one is kept there; return the one that is kept."""
        return self._values.setdefault(name, value)


class Reports(Protocol):
    """The frames of a batch's reports, as they came, for a server that holds none in memory.

    They are sealed, and are erased when the batch is closed. The server believes none that it reads
    back, unless its journal keeps the digest of it.
    """

    def ids(self) -> Iterable[bytes]:
        """Return the ids of all reports, in any order."""

    def put(self, id: bytes, frame: bytes, names: Sequence[bytes]) -> bool:
        """Keep a frame, and its SHA-256 in the journal under each of these names.

        Nothing is kept if the journal has another value under one of the names. All of it is one
        transaction, on disk before the call returns; or before the group ends that the caller
        began, and until then no sender may hear that it was accepted.

        Args:
            id: the id of the report, 16 bytes.
            frame: the frame of the report; it replaces one of the same id.
            names: the names in the journal.

        Returns:
            Whether it is kept.
        """

    def frames(self, ids: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the frames of these ids, in their order; None for each that is not there."""

    def keep_answer(self, sealed: bytes) -> None:
        """Keep the sealed answer of the helper in the place of an earlier one."""

    def answer(self) -> bytes | None:
        """Return the sealed answer that is kept, or None."""

    def erase(self) -> None:
        """Erase all frames and the answer; again, if an earlier call was cut off."""


@runtime_checkable
class ReportJournal(Protocol):
    """A client's journal that keeps a report until both servers have it.

    A `secagg.client.Journal` without it loses a report that a crash keeps from being sent: its
    items are spent, and it is never made again.
    """

    def spend_report(self, report: Report) -> bool:
        """Mark the items as spent and keep both frames, in one atomic step.

        Return False if the items were spent before: then nothing is kept.
        """
