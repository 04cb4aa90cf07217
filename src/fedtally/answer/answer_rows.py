"""What the lists and the table of an answer are made of: candidates, or strings that were found."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np

from fedtally.answer.part import LEAST, Part, Progress, block_bounds
from fedtally.domain import Unread
from fedtally.errors import InvalidInputError
from fedtally.recovery.linear_system import F64, I64, U64, Ids, ids_between

# Candidates up to which a notebook lists the largest by itself: a second or two of decoding.
MAX_LISTED = 1 << 24


class Rows(ABC):
    """The rows that a list or a table may have. A row has a place, and an id in each part."""

    size = ""  # the number of candidates, written; "": nobody has their list

    @property
    @abstractmethod
    def what(self) -> str:
        """What a table of all rows holds, in words."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows."""

    @abstractmethod
    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, list[F64]]]:
        """Yield the place of the first row of each block, and the counts of the block in each part.

        Args:
            progress: called as ("decode", rows done, rows).
        """

    @abstractmethod
    def ids(self, places: I64) -> list[U64]:
        """Return the ids of rows in each part."""

    @abstractmethod
    def labels(self, places: I64) -> list[Any]:
        """Return the labels of rows."""

    @abstractmethod
    def check_table(self, memory: int | None) -> None:
        """Raise MemoryLimitError unless a table of all rows fits in `memory` bytes."""

    @abstractmethod
    def check_listed(self) -> None:
        """Raise InvalidInputError unless the rows are all candidates."""

    @abstractmethod
    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield the ids of all rows in each part, block by block."""

    def columns(self, places: I64) -> dict[str, Any]:
        """Return the columns of a table that say what is in its rows, "item" the first of them."""
        import pyarrow as pa

        return {"item": pa.array(self.labels(places))}

    def are_few(self) -> bool:
        """Return whether a notebook lists the largest by itself."""
        return True

    def counts(self) -> list[F64]:
        """Return the counts of all rows in each part."""
        blocks = (counts for _, counts in self.blocks())
        return [np.concatenate(own) for own in zip(*blocks, strict=True)]


class Candidates(Rows):
    """All candidates of a list."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts, self._domain = parts, parts[0].domain
        self.size = f"{self._domain.size:,}"

    @property
    def what(self) -> str:
        """All candidates."""
        return f"all {self.size} estimates"

    def __len__(self) -> int:
        """Return the number of candidates.

        Raises:
            OverflowError: more than Python can count by `len`; `domain.size` says how many.
        """
        if self._domain.size > sys.maxsize:
            raise OverflowError(
                f"{self.size} candidates are more than len() can say: use domain.size"
            )
        return self._domain.size

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, list[F64]]]:
        """Yield the first place and the counts of each block; the last part reports."""
        reports = [None] * (len(self._parts) - 1) + [progress]
        runs = [part.blocks(report) for part, report in zip(self._parts, reports, strict=True)]
        for blocks in zip(*runs, strict=True):
            yield blocks[0][0], [block for _, _, block in blocks]

    def ids(self, places: I64) -> list[U64]:
        """Return the ids of candidates in each part."""
        return [part.domain.ids_at(places) for part in self._parts]

    def labels(self, places: I64) -> list[Any]:
        """Return the labels of candidates."""
        return self._domain.labels(places)

    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield the ids of all candidates in each part, block by block."""
        for bounds in block_bounds(self._domain):
            yield [ids_between(part.domain, *bounds) for part in self._parts]

    def check_table(self, memory: int | None) -> None:
        """Raise MemoryLimitError unless a table of all candidates fits, beside the decoders."""
        for part in self._parts:
            part.check_table_fits(memory)

    def check_listed(self) -> None:
        """Accept them."""

    def are_few(self) -> bool:
        """Return whether a notebook lists the largest by itself."""
        return self._domain.size <= MAX_LISTED


class Strings(Rows):
    """The strings of an open domain of which somebody holds half a client or more."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    @abstractmethod
    def hashes(self) -> list[U64]:
        """Return the hashes in each part of all strings that may be rows."""

    @property
    def what(self) -> str:
        """Those that were found."""
        return f"the {len(self):,} strings that stand out"

    @cached_property
    def _all(self) -> tuple[I64, list[U64], list[F64]]:
        """The rows among them, with their hashes and counts in each part."""
        ids = self.hashes()
        counts = [part.decoder.at(own) for part, own in zip(self._parts, ids, strict=True)]
        kept = np.flatnonzero(reduce(np.add, counts) >= LEAST)
        return kept, [own[kept] for own in ids], [own[kept] for own in counts]

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self._all[0])

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, list[F64]]]:
        """Yield all counts at once."""
        yield 0, self._all[2]

    def ids(self, places: I64) -> list[U64]:
        """Return the hashes of strings in each part."""
        return [own[places] for own in self._all[1]]

    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield the hashes of all strings in each part, at once."""
        yield self._all[1]

    def check_table(self, memory: int | None) -> None:
        """Accept any: what was found is in memory."""

    def check_listed(self) -> None:
        """Refuse what looks at every candidate, where nobody has the list of them."""
        raise InvalidInputError(
            "a table of all candidates is not for an open domain, whose strings nobody has"
            " listed: ask for the top items, or name strings"
        )


class ReadStrings(Strings):
    """The strings whose names some part read, sorted.

    A hash that was not read tells nothing of another part, where its string has another hash.
    """

    @cached_property
    def _names(self) -> list[str]:
        return sorted({name for part in self._parts for name in part.names.values()})

    def hashes(self) -> list[U64]:
        """Return the hashes of the names in each part."""
        return [part.domain.encode(self._names) for part in self._parts]

    def labels(self, places: I64) -> list[Any]:
        """Return the names."""
        return [self._names[place] for place in self._all[0][places].tolist()]


class FoundStrings(Strings):
    """The hashes that stand out in the only part, rising, with a name or without."""

    def hashes(self) -> list[U64]:
        """Return the hashes that stand out."""
        return [self._parts[0].found.view(np.uint64)]

    def labels(self, places: I64) -> list[Any]:
        """Return the names; of a hash without one, the hash."""
        hashes, names = self.ids(places)[0].tolist(), self._parts[0].names
        return [names.get(each, Unread.of(each)) for each in hashes]

    def columns(self, places: I64) -> dict[str, Any]:
        """Return the names, null where one could not be read, and the hashes in hexadecimal."""
        import pyarrow as pa

        hashes, names = self.ids(places)[0].tolist(), self._parts[0].names
        return {
            "item": pa.array([names.get(each) for each in hashes], pa.string()),
            "hash": pa.array([str(Unread.of(each))[1:] for each in hashes], pa.string()),
        }


def rows_of(parts: Sequence[Part]) -> Rows:
    """Return the rows of an answer."""
    if not parts[0].plan.is_open:
        return Candidates(parts)
    return FoundStrings(parts) if len(parts) == 1 else ReadStrings(parts)
