"""The rows of an answer's lists and table: all candidates, or the strings of an open domain."""

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

# A notebook shows the largest items without being asked only if there are at most this many
# candidates: to decode them takes seconds.
MAX_LISTED = 1 << 24
# The most candidates to decode a second time, for limits of another kind: this takes seconds.
MOST_AGAIN = 1 << 20


class Rows(ABC):
    """The rows of an answer's lists and table: one row for each item that can be listed.

    The place of a row is its number, from 0. In each part of the answer the row has an id: the
    integer that the sketches of the part count for this item.
    """

    size = ""  # the number of candidates, as text; "" in an open domain, where nobody lists them

    @property
    @abstractmethod
    def what(self) -> str:
        """What the whole table holds, in words that an error or a progress line can use."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of rows.

        Raises:
            OverflowError: there are more candidates than `len` can say.
        """

    @abstractmethod
    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, list[F64]]]:
        """Yield the rows block by block: the place of the first row, and the estimated counts.

        The place of a row is its number, from 0. The counts are a list: for each part of the answer
        one array, float64 [rows of the block]. A part is the sums of one plan, with their decoder.

        Args:
            progress: called as ("decode", rows done, all rows); never in an open domain.
        """

    @abstractmethod
    def ids(self, places: I64) -> list[U64]:
        """Return the ids of the rows at `places`: a list of one array for each part of the answer.

        Each array is uint64 [n], with the id of row places[i] at index i. An id is the integer that
        the part's sketches count for the row's item.
        """

    @abstractmethod
    def labels(self, places: I64) -> list[Any]:
        """Return the items of the rows at `places` (numbers of rows, from 0), as users write them.

        A string whose name was not read is given as a `domain.Unread`, which shows its hash.
        """

    @abstractmethod
    def check_table(self, memory: int | None) -> None:
        """Raise MemoryLimitError if a table of all rows needs more than `memory` bytes.

        If `memory` is None, the bound is half of the machine's memory. In an open domain, whose
        rows are few, nothing is raised.
        """

    @abstractmethod
    def check_listed(self) -> None:
        """Raise InvalidInputError if the domain is open: its rows are no full list of items."""

    @abstractmethod
    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield the ids of the rows, block by block, in the order of their places.

        A block is a list with an entry for each part of the answer: the ids of the block's rows in
        this part, as uint64 [rows of the block] or as a range.
        """

    def columns(self, places: I64) -> dict[str, Any]:
        """Return the table columns that say which item a row is about: Arrow arrays by name.

        Entry i of a column is about the row with the number places[i]. The column "item" is first.
        """
        import pyarrow as pa

        return {"item": pa.array(self.labels(places))}

    def are_few(self) -> bool:
        """Return whether a notebook can find the largest rows without a long wait."""
        return True

    def counts(self) -> list[F64]:
        """Return the estimated counts of all rows: a list of float64 [rows], one for each part."""
        blocks = (counts for _, counts in self.blocks())
        return [np.concatenate(own) for own in zip(*blocks, strict=True)]


class Candidates(Rows):
    """The rows of an answer whose domain lists its candidates: one row for each candidate."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts, self._domain = parts, parts[0].domain
        self.size = f"{self._domain.size:,}"

    @property
    def what(self) -> str:
        """What the whole table holds, in words: all candidates."""
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
        """Yield (place of the first row, counts) for each block of candidates; see `Rows.blocks`.

        The parts of the answer decode each block one after the other, and only the last part calls
        `progress`. So progress is reported once for each block.
        """
        reports = [None] * (len(self._parts) - 1) + [progress]
        runs = [part.blocks(report) for part, report in zip(self._parts, reports, strict=True)]
        for blocks in zip(*runs, strict=True):
            yield blocks[0][0], [block for _, _, block in blocks]

    def ids(self, places: I64) -> list[U64]:
        """Return the ids of the candidates at some positions: one array for each part.

        Each array is uint64 [n]: its entry i is the id of the candidate at position places[i], the
        integer that the part's sketches count for it.

        Args:
            places: int64 [n], the positions in the domain, which are also the numbers of the rows.
        """
        return [part.domain.ids_at(places) for part in self._parts]

    def labels(self, places: I64) -> list[Any]:
        """Return the labels of the candidates at the positions `places`, as users write them."""
        return self._domain.labels(places)

    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield the ids of the candidates, block by block, in the order of their positions.

        A block is a list with an entry for each part of the answer (see `Rows.id_blocks`).
        """
        for bounds in block_bounds(self._domain):
            yield [ids_between(part.domain, *bounds) for part in self._parts]

    def check_table(self, memory: int | None) -> None:
        """Raise MemoryLimitError if a table of all candidates needs more than `memory` bytes.

        If the decoder is belief propagation, the table's bytes include its messages between
        candidates and counters. If `memory` is None, the bound is half of the machine's memory.
        """
        for part in self._parts:
            part.check_table_fits(memory)

    def check_listed(self) -> None:
        """Raise nothing: there is a row for every candidate."""

    def are_few(self) -> bool:
        """Return whether there are at most `MAX_LISTED` candidates."""
        return self._domain.size <= MAX_LISTED


class Strings(Rows):
    """The strings of an open domain that can be listed, one row for each.

    In an open domain nobody lists the strings beforehand. A string of `hashes` gets a row if its
    estimated counts, added over all parts of the answer, are at least half a client (`part.LEAST`).
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    @abstractmethod
    def hashes(self) -> list[U64]:
        """Return the hashes of all strings that may become rows: one array for each part.

        Each array is uint64 [strings], and index i is the same string in all arrays. The parts of
        the answer hash a string with different keys.
        """

    @property
    def what(self) -> str:
        """What the whole table holds, in words: the strings that were found."""
        return f"the {len(self):,} strings that stand out"

    @cached_property
    def _all(self) -> tuple[I64, list[U64], list[F64]]:
        """The rows, as three values: indices into the arrays of `hashes`, hashes, estimated counts.

        The indices are int64 [rows]. The hashes are a list of uint64 [rows], and the counts a list
        of float64 [rows], with one array for each part of the answer.
        """
        ids = self.hashes()
        counts = [part.decoder.at(own) for part, own in zip(self._parts, ids, strict=True)]
        kept = np.flatnonzero(reduce(np.add, counts) >= LEAST)
        return kept, [own[kept] for own in ids], [own[kept] for own in counts]

    def __len__(self) -> int:
        """Return the number of strings that can be listed."""
        return len(self._all[0])

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, list[F64]]]:
        """Yield all rows as one block: the place 0, and a list of counts (see `Rows.blocks`).

        `progress` is never called.
        """
        yield 0, self._all[2]

    def ids(self, places: I64) -> list[U64]:
        """Return the hashes of the rows at `places`: a list of uint64 [n], one for each part."""
        return [own[places] for own in self._all[1]]

    def id_blocks(self) -> Iterator[Sequence[Ids]]:
        """Yield the hashes of all rows as one block: a list of uint64 [rows], one for each part."""
        yield self._all[1]

    def check_table(self, memory: int | None) -> None:
        """Raise nothing: the strings that were found are few, and are in memory already."""

    def check_listed(self) -> None:
        """Raise InvalidInputError: an open domain has no candidates to make a full table of."""
        raise InvalidInputError(
            "a table of all candidates is not for an open domain, whose strings nobody has"
            " listed: ask for the top items, or name strings"
        )


class ReadStrings(Strings):
    """The strings of an answer with several parts, among the names that at least one part read.

    The rows are sorted by name. A string whose name no part read has no row. Each part has another
    hash for it, so nobody knows which counts to add.
    """

    @cached_property
    def _names(self) -> list[str]:
        return sorted({name for part in self._parts for name in part.names.values()})

    def hashes(self) -> list[U64]:
        """Return the hashes of all names, sorted by name: a list of uint64 [names], one per part.

        A hash depends on the seed of the part's plan, so the arrays differ.
        """
        return [part.domain.encode(self._names) for part in self._parts]

    def labels(self, places: I64) -> list[Any]:
        """Return the names of the rows at `places` (numbers of rows, from 0)."""
        return [self._names[place] for place in self._all[0][places].tolist()]


class FoundStrings(Strings):
    """The strings of an answer with one part, with or without a name, ascending by hash."""

    def hashes(self) -> list[U64]:
        """Return the hashes that stand out from the noise: a list of one array, ascending uint64.

        The list has one entry since the answer has one part. See `Part.found`.
        """
        return [self._parts[0].found.view(np.uint64)]

    def labels(self, places: I64) -> list[Any]:
        """Return the names of the rows at `places` (numbers of rows, from 0).

        A string whose name was not read is given as a `domain.Unread`, which shows its hash.
        """
        hashes, names = self.ids(places)[0].tolist(), self._parts[0].names
        return [names.get(each, Unread.of(each)) for each in hashes]

    def columns(self, places: I64) -> dict[str, Any]:
        """Return two Arrow columns, "item" and "hash", for the rows at `places`.

        "item" is the name, or null if it was not read. "hash" is the hash in hexadecimal digits.
        """
        import pyarrow as pa

        hashes, names = self.ids(places)[0].tolist(), self._parts[0].names
        return {
            "item": pa.array([names.get(each) for each in hashes], pa.string()),
            "hash": pa.array([str(Unread.of(each))[1:] for each in hashes], pa.string()),
        }


def rows_of(parts: Sequence[Part]) -> Rows:
    """Return the rows of an answer with these parts: an object of the class that fits the domain.

    The class is `Candidates` if the domain lists its items. In an open domain it is `FoundStrings`
    for one part and `ReadStrings` for several.
    """
    if not parts[0].plan.is_open:
        return Candidates(parts)
    return FoundStrings(parts) if len(parts) == 1 else ReadStrings(parts)
