"""The rows that lists and the table of an answer may hold: candidates, or strings found."""

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

# A notebook lists the largest items unasked up to this many candidates: seconds of decoding.
MAX_LISTED = 1 << 24
MOST_AGAIN = 1 << 20  # the most candidates to decode once more, which takes seconds


class Rows(ABC):
    """The rows that a list or a table may have. A row has a place, and an id in each part.

    A place is the row's number, from 0. Ids are what the sketches of a part count.
    """

    size = ""  # the number of candidates, as text; "": an open domain has no list of them

    @property
    @abstractmethod
    def what(self) -> str:
        """A description of the rows of the whole table."""

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
        """Return the ids of the rows at these places in each part, uint64 [places] each."""

    @abstractmethod
    def labels(self, places: I64) -> list[Any]:
        """Return the labels (items as users write them) of the rows at these places."""

    @abstractmethod
    def check_table(self, memory: int | None) -> None:
        """Raise MemoryLimitError unless a table of all rows fits in `memory` bytes."""

    @abstractmethod
    def check_listed(self) -> None:
        """Raise InvalidInputError unless the rows are all candidates of a listed domain."""

    @abstractmethod
    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield the ids of the rows of each block, one array for each part."""

    def columns(self, places: I64) -> dict[str, Any]:
        """Return the columns that identify the rows of a table; the first one is "item"."""
        import pyarrow as pa

        return {"item": pa.array(self.labels(places))}

    def are_few(self) -> bool:
        """Return whether the rows are few enough for a notebook to list the largest unasked."""
        return True

    def counts(self) -> list[F64]:
        """Return the counts of all rows in each part, float64 [rows] each."""
        blocks = (counts for _, counts in self.blocks())
        return [np.concatenate(own) for own in zip(*blocks, strict=True)]


class Candidates(Rows):
    """The rows of an answer with listed candidates: all of them."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts, self._domain = parts, parts[0].domain
        self.size = f"{self._domain.size:,}"

    @property
    def what(self) -> str:
        """A description of the rows: all candidates."""
        return f"all {self.size} estimates"

    def __len__(self) -> int:
        """Return the number of candidates.

        Raises:
            OverflowError: the number is too large for `len`; use `domain.size`.
        """
        if self._domain.size > sys.maxsize:
            raise OverflowError(
                f"{self.size} candidates are more than len() can say: use domain.size"
            )
        return self._domain.size

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, list[F64]]]:
        """Yield the first place and the counts of each block.

        Only the last part calls `progress`: the parts decode the same block one after the other.
        """
        reports = [None] * (len(self._parts) - 1) + [progress]
        runs = [part.blocks(report) for part, report in zip(self._parts, reports, strict=True)]
        for blocks in zip(*runs, strict=True):
            yield blocks[0][0], [block for _, _, block in blocks]

    def ids(self, places: I64) -> list[U64]:
        """Return the ids of the candidates at these places in each part."""
        return [part.domain.ids_at(places) for part in self._parts]

    def labels(self, places: I64) -> list[Any]:
        """Return the labels of the candidates at these places."""
        return self._domain.labels(places)

    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield the ids of the candidates of each block, one array for each part."""
        for bounds in block_bounds(self._domain):
            yield [ids_between(part.domain, *bounds) for part in self._parts]

    def check_table(self, memory: int | None) -> None:
        """Raise MemoryLimitError unless a table of all candidates fits beside the decoders."""
        for part in self._parts:
            part.check_table_fits(memory)

    def check_listed(self) -> None:
        """Raise nothing: all rows are candidates of a list."""

    def are_few(self) -> bool:
        """Return whether there are at most `MAX_LISTED` candidates."""
        return self._domain.size <= MAX_LISTED


class Strings(Rows):
    """The strings of an open domain whose estimated count is at least half a client."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    @abstractmethod
    def hashes(self) -> list[U64]:
        """Return the hashes of all strings that may be rows, an array for each part."""

    @property
    def what(self) -> str:
        """A description of the rows: the strings that were found."""
        return f"the {len(self):,} strings that stand out"

    @cached_property
    def _all(self) -> tuple[I64, list[U64], list[F64]]:
        """The places in `hashes` of the rows, and the rows' hashes and counts in each part."""
        ids = self.hashes()
        counts = [part.decoder.at(own) for part, own in zip(self._parts, ids, strict=True)]
        kept = np.flatnonzero(reduce(np.add, counts) >= LEAST)
        return kept, [own[kept] for own in ids], [own[kept] for own in counts]

    def __len__(self) -> int:
        """Return the number of strings."""
        return len(self._all[0])

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, list[F64]]]:
        """Yield one block: all strings."""
        yield 0, self._all[2]

    def ids(self, places: I64) -> list[U64]:
        """Return the hashes of the strings at these places in each part."""
        return [own[places] for own in self._all[1]]

    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield one block: the hashes of all strings, one array for each part."""
        yield self._all[1]

    def check_table(self, memory: int | None) -> None:
        """Raise nothing: the strings that were found are few, and in memory already."""

    def check_listed(self) -> None:
        """Raise InvalidInputError: an open domain has no list of candidates."""
        raise InvalidInputError(
            "a table of all candidates is not for an open domain, whose strings nobody has"
            " listed: ask for the top items, or name strings"
        )


class ReadStrings(Strings):
    """The strings whose names at least one part read, sorted by name.

    A hash whose name was not read is no row: in another part the same string has another hash.
    """

    @cached_property
    def _names(self) -> list[str]:
        return sorted({name for part in self._parts for name in part.names.values()})

    def hashes(self) -> list[U64]:
        """Return the hashes of the names in each part."""
        return [part.domain.encode(self._names) for part in self._parts]

    def labels(self, places: I64) -> list[Any]:
        """Return the names at these places."""
        return [self._names[place] for place in self._all[0][places].tolist()]


class FoundStrings(Strings):
    """The hashes that stand out in an answer of one part, ascending, with or without a name."""

    def hashes(self) -> list[U64]:
        """Return the hashes that stand out."""
        return [self._parts[0].found.view(np.uint64)]

    def labels(self, places: I64) -> list[Any]:
        """Return the names at these places; an `Unread` hash where no name was read."""
        hashes, names = self.ids(places)[0].tolist(), self._parts[0].names
        return [names.get(each, Unread.of(each)) for each in hashes]

    def columns(self, places: I64) -> dict[str, Any]:
        """Return the names, null where none was read, and the hashes in hexadecimal digits."""
        import pyarrow as pa

        hashes, names = self.ids(places)[0].tolist(), self._parts[0].names
        return {
            "item": pa.array([names.get(each) for each in hashes], pa.string()),
            "hash": pa.array([str(Unread.of(each))[1:] for each in hashes], pa.string()),
        }


def rows_of(parts: Sequence[Part]) -> Rows:
    """Return the kind of rows that suits an answer of these parts."""
    if not parts[0].plan.is_open:
        return Candidates(parts)
    return FoundStrings(parts) if len(parts) == 1 else ReadStrings(parts)
