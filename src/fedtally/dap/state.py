"""What a server stores for one task: ordered tables of keys and values, with transactions.

Keys and values are bytes.
"""

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
    """The tables of a server. The comment at each table says what its key and its value are.

    Times are in units of the task's precision, encoded in eight bytes, big-endian. "Kept" means
    that a row is never deleted. "Leader" or "helper" means that only this server uses the table.
    """

    SEEN = 1  # id of a report that was added to the sum -> empty; kept
    BUCKET = 2  # time -> Bucket, the sum of the reports of this time; deleted when collected
    COLLECTED = 3  # end of a collected interval -> start of this interval; kept
    JOB_ANSWER = 4  # helper: id of an aggregation job -> AggregationJobResp
    SHARE_ANSWER = 5  # helper: id of the resource of an AggregateShareReq -> AggregateShare
    REPORT = 6  # leader: id of an accepted report -> Held; kept
    WAITING = 7  # leader: id of a report that is in no aggregation job yet -> empty
    JOB = 8  # leader: id of an aggregation job without an answer -> Outstanding
    COLLECTION = 9  # leader: id of a collection job -> Collection
    TERMS = 10  # name, as `noise` -> a value that is fixed at the first start; kept


class Store(Protocol):
    """The interface of a store: the tables of one task at one server.

    A `put` or `drop` outside a transaction is a transaction of its own. Transactions are
    serializable: when a transaction ends, the values that it has read are still the same, even if
    other processes write.
    """

    def transaction(self) -> AbstractContextManager[object]:
        """Return a context manager whose `with` block is one transaction.

        If the block ends without an error, all its writes are kept. Otherwise no write is kept. To
        begin another transaction within the block raises an InvalidInputError.
        """

    def get(self, table: Table, key: bytes) -> bytes | None:
        """Return the value of a key, or None if the key has no row."""

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Write the value of a key; an earlier value is replaced."""

    def drop(self, table: Table, key: bytes) -> None:
        """Delete the row of a key; do nothing if the key has no row."""

    def scan(
        self, table: Table, first: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return the rows of a range of keys as pairs (key, value), in ascending order of keys.

        Args:
            table: the table.
            first: the lower bound of the keys, included.
            end: the upper bound of the keys, not included; None for no bound.
            limit: the largest number of rows to return, from the lowest key on; None for all.
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
        """Return a context manager whose `with` block is one transaction; see `Store`.

        Raises:
            InvalidInputError: another transaction is open.
        """
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
        """Return the value of a key; None if the key has no row."""
        return self._tables[table].get(key)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Write the value of a key; an earlier value is replaced."""
        self._note(table, key)
        self._tables[table][key] = value

    def drop(self, table: Table, key: bytes) -> None:
        """Delete the row of a key; do nothing if the key has no row."""
        self._note(table, key)
        self._tables[table].pop(key, None)

    def scan(
        self, table: Table, first: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return the rows of a range of keys, in ascending order of keys; see `Store.scan`."""
        rows = self._tables[table]
        keys = sorted(key for key in rows if first <= key and (end is None or key < end))
        return [(key, rows[key]) for key in keys[:limit]]

    def _note(self, table: Table, key: bytes) -> None:
        if self._undo is not None:
            self._undo.append((table, key, self.get(table, key)))


# ---- values ----


@dataclass(frozen=True)
class Bucket(Message):
    """The sum of all verified reports that have the same time.

    Attributes:
        share: this server's share of the sum, encoded. One share alone reveals nothing.
        count: the number of reports in the sum.
        checksum: the XOR of the SHA-256 digests of these reports' ids, 32 bytes.
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
    """An aggregation job that the helper has not answered; see `leader.Job`."""

    first: UInt64  # the earliest time of a report in the job
    last: UInt64  # the latest time of a report in the job
    request: Bytes32  # the encoded AggregationJobInitReq


@dataclass(frozen=True)
class Collection(Message):
    """The leader's record of a collection job: the work on one request of the collector.

    All fields but `request` are empty at first.
    """

    request: Bytes32  # the encoded CollectionJobReq
    ask: Bytes32 = b""  # the encoded AggregateShareReq; not empty: the batch is closed
    head: Bytes32 = b""  # the bytes of the CollectionJobResp before the helper's share
    answer: Bytes32 = b""  # the encoded CollectionJobResp; not empty: the job is done
    failed: Bytes16 = b""  # the `ProblemType` by which the job failed; not empty: it has failed
