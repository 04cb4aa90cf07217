"""What a server keeps of a task: ordered tables of bytes, and transactions over all of them."""

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
    """The tables, and what their keys and values are. Times are eight bytes, big-endian."""

    SEEN = 1  # of a report that was added: its id -> nothing; for ever
    BUCKET = 2  # time -> Bucket
    COLLECTED = 3  # end of a collected interval -> its start; for ever
    JOB_ANSWER = 4  # helper: id of an aggregation job -> answer
    SHARE_ANSWER = 5  # helper: id of an aggregate share -> answer
    REPORT = 6  # leader: id of a report that came -> Held; for ever
    WAITING = 7  # leader: id of a report that is in no job -> nothing
    JOB = 8  # leader: id of a job that was not answered -> Outstanding
    COLLECTION = 9  # leader: id of a collection job -> Collection
    TERMS = 10  # name of what was agreed on -> what was agreed on; for ever


class Store(Protocol):
    """The tables of one task at one server.

    A write outside of a transaction is one by itself. What was read in a transaction has not
    changed at its end, whoever else writes.
    """

    def transaction(self) -> AbstractContextManager[object]:
        """Return a context whose writes are all kept at its end, or none where it raises."""

    def get(self, table: Table, key: bytes) -> bytes | None:
        """Return a value, None where there is none."""

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Keep a value in place of the one before."""

    def drop(self, table: Table, key: bytes) -> None:
        """Forget a value, if there is one."""

    def scan(
        self, table: Table, first: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return keys and values in the order of keys.

        Args:
            table: the table.
            first: the least key.
            end: the key before which it stops; None for no end.
            limit: the most rows; None for all.
        """


class MemoryStore:
    """A store in memory: for tests, and for simulations.

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
        """Return a context whose writes are all kept at its end, or none where it raises."""
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
        """Return a value, None where there is none."""
        return self._tables[table].get(key)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        """Keep a value in place of the one before."""
        self._note(table, key)
        self._tables[table][key] = value

    def drop(self, table: Table, key: bytes) -> None:
        """Forget a value, if there is one."""
        self._note(table, key)
        self._tables[table].pop(key, None)

    def scan(
        self, table: Table, first: bytes = b"", end: bytes | None = None, limit: int | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Return keys and values in the order of keys."""
        rows = self._tables[table]
        keys = sorted(key for key in rows if first <= key and (end is None or key < end))
        return [(key, rows[key]) for key in keys[:limit]]

    def _note(self, table: Table, key: bytes) -> None:
        if self._undo is not None:
            self._undo.append((table, key, self.get(table, key)))


# ---- values ----


@dataclass(frozen=True)
class Bucket(Message):
    """The reports of one time that were added."""

    share: Bytes32
    count: UInt64
    checksum: Checksum


@dataclass(frozen=True)
class Held(Message):
    """A report that came to the leader."""

    digest: Checksum  # of the report
    report: Bytes32  # empty once it is needed no more


@dataclass(frozen=True)
class Outstanding(Message):
    """A job of the leader that the helper has not answered."""

    first: UInt64  # the time of its first report
    last: UInt64  # the time of its last report
    request: Bytes32


@dataclass(frozen=True)
class Collection(Message):
    """A collection job; what is empty is not there yet."""

    request: Bytes32
    ask: Bytes32 = b""  # what the helper is asked
    head: Bytes32 = b""  # the answer without the helper's share
    answer: Bytes32 = b""
    failed: Bytes16 = b""  # the type of the problem
