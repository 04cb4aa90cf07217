"""The stored data of a server for one task: ordered tables of bytes, with transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from fedtally.dap.draft18 import Bytes16, Bytes32, Checksum, UInt64
from fedtally.dap.presentation import Message
from fedtally.errors import InvalidInputError


class Table(IntEnum):
    """The tables; each comment says key -> value.

    Times are in units of the precision, in eight bytes, big-endian. "For ever" means that a row is
    never deleted.
    """

    SEEN = 1  # id of a report that was added -> nothing; for ever
    BUCKET = 2  # time -> Bucket
    COLLECTED = 3  # end of a collected interval -> its start; for ever
    JOB_ANSWER = 4  # helper: id of an aggregation job -> answer
    SHARE_ANSWER = 5  # helper: id of an aggregate share -> answer
    REPORT = 6  # leader: id of an accepted report -> Held; for ever
    WAITING = 7  # leader: id of a report that is in no job yet -> nothing
    JOB = 8  # leader: id of an aggregation job that was not answered -> Outstanding
    COLLECTION = 9  # leader: id of a collection job -> Collection
    TERMS = 10  # name of an agreement of both operators -> its bytes; for ever


class Store(Protocol):
    """The tables of one task at one server.

    A write outside a transaction is a transaction of its own. Transactions are serializable: values
    that a transaction has read are unchanged when it ends, even if other processes write.
    """

    def transaction(self) -> AbstractContextManager[object]:
        """Return a context manager: at its end all writes are kept, or none after an error."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the key has no row."""

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Write the value of a key; it replaces an earlier value."""

    def drop(self, table: Table, key: bytes) -> None:
        """Delete the row of a key, if there is one."""

    def scan(
        self, table: Table, first: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return rows as pairs (key, value), in ascending order of keys.

        Args:
            table: the table.
            first: the lower bound of the keys, included.
            end: the upper bound of the keys, not included; None for no bound.
            limit: the largest number of rows; None for all.
        """


class MemoryStore:
    """A store in memory, for tests and simulations.

    >>> store = MemoryStore()
    >>> store.put(Table.SEEN, b"id", b"")
    >>> store.get(Table.SEEN, b"id"), store.get(Table.SEEN, b"other")
    (b'', None)
    """

    def __init__(self) -> None:
        self._tables: dict[Table, dict[bytes, bytes]] = {table: {} for table in Table}
        self._undo: list[tuple[Table, bytes, bytes | None]] | None = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Return a context manager: at its end all writes are kept, or none after an error."""
        if self._undo is not None:
            raise InvalidInputError("a transaction is open already: end it first")
        self._undo = []
        try:
            yield
        except BaseException:
            for table, key, before in reversed(self._undo):
                if before is None:
                    self._tables[table].pop(key, None)
                else:
                    self._tables[table][key] = before
            raise
        finally:
            self._undo = None

    def get(self, table: Table, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the key has no row."""
        return self._tables[table].get(key)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Write the value of a key; it replaces an earlier value."""
        self._note(table, key)
        self._tables[table][key] = value

    def drop(self, table: Table, key: bytes) -> None:
        """Delete the row of a key, if there is one."""
        self._note(table, key)
        self._tables[table].pop(key, None)

    def scan(
        self, table: Table, first: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return rows as pairs (key, value), in ascending order of keys; see `Store.scan`."""
        rows = self._tables[table]
        keys = sorted(key for key in rows if first <= key and (end is None or key < end))
        return [(key, rows[key]) for key in keys[:limit]]

    def _note(self, table: Table, key: bytes) -> None:
        if self._undo is not None:
            self._undo.append((table, key, self.get(table, key)))


# ---- values ----


@dataclass(frozen=True)
class Bucket(Message):
    """The sum of the reports of one time that were added.

    Attributes:
        share: this server's share of the sum, encoded.
        count: the number of reports.
        checksum: the XOR of the SHA-256 of the reports' ids, 32 bytes.
    """

    share: Bytes32
    count: UInt64
    checksum: Checksum


@dataclass(frozen=True)
class Held(Message):
    """A report that the leader accepted."""

    digest: Checksum  # the SHA-256 of the encoded report
    report: Bytes32  # the encoded report; empty once it is no longer needed


@dataclass(frozen=True)
class Outstanding(Message):
    """An aggregation job that the helper has not answered."""

    first: UInt64  # the earliest time of its reports
    last: UInt64  # the latest time of its reports
    request: Bytes32  # the AggregationJobInitReq


@dataclass(frozen=True)
class Collection(Message):
    """A collection job; a field is empty until it has a value."""

    request: Bytes32  # the CollectionJobReq
    ask: Bytes32 = b""  # the AggregateShareReq for the helper
    head: Bytes32 = b""  # the answer without the helper's share
    answer: Bytes32 = b""  # the CollectionJobResp
    failed: Bytes16 = b""  # the type of the problem, if the job has failed
