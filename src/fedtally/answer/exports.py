"""Write tables to files, and check that a table of all candidates fits into memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from fedtally.answer.cells import as_text
from fedtally.base import archive
from fedtally.errors import InvalidInputError, MemoryLimitError, arg, opt
from fedtally.options import AS_TABLE, TABLES

# The memory for each row of a table of all candidates: its estimate, its place in the order, its
# label, and the row as it is written.
_BYTES_PER_ROW = 112


def check_export_path(path: str | os.PathLike[str]) -> None:
    """Raise InvalidInputError unless `path` ends in .csv or .parquet (`TABLES`).

    Commands call it before they decode. Otherwise the error would come after hours of work.

    >>> check_export_path("estimates.csv")
    """
    if not os.fspath(path).endswith(TABLES):
        raise InvalidInputError(f"a table must end in {AS_TABLE}, got {os.fspath(path)}")


def write_table(table: Any, path: str | os.PathLike[str]) -> int:
    """Write a `pyarrow.Table` to a file, whole or not at all. The suffix gives the format.

    Returns:
        the number of cells that were changed so that no spreadsheet runs them (`as_text`); always 0
        for .parquet.

    Raises:
        InvalidInputError: the path ends in none of `TABLES`, or the file cannot be written.
    """
    check_export_path(path)
    write = next(write for end, write in _WRITERS.items() if os.fspath(path).endswith(end))
    with archive.replacing(path) as temporary:
        return write(table, temporary)


def _write_csv(table: Any, path: str) -> int:
    import pyarrow.csv

    table, changed = as_text(table)
    pyarrow.csv.write_csv(table, path)
    return changed


def _write_parquet(table: Any, path: str) -> int:
    import pyarrow.parquet

    pyarrow.parquet.write_table(table, path)
    return 0


_CSV, _PARQUET = TABLES  # raises at import if TABLES gets a suffix that has no writer here
_WRITERS: Mapping[str, Callable[[Any, str], int]] = {_CSV: _write_csv, _PARQUET: _write_parquet}


def check_table_fits(size: int, memory: int | None, held: int = 0, lighter: str = "") -> None:
    """Raise MemoryLimitError if a table of `size` candidates needs more bytes than `memory`.

    Args:
        size: the number of candidates.
        memory: the most bytes for the table and the messages; None: half of the machine's memory.
            What is no number, such as a list of items, is an InvalidInputError.
        held: the bytes of the decoder's messages (belief propagation); 0: the decoder sends none.
        lighter: the name of a decoder without messages, which the error recommends if `held` > 0.

    >>> check_table_fits(1000, memory=2**20)
    """
    if memory is not None and (isinstance(memory, bool) or not isinstance(memory, Real)):
        raise InvalidInputError(
            f"{arg.memory} must be a number of bytes, got {memory!r:.80}: give items to"
            " estimates([...]), since this call is about all candidates"
        )
    limit = physical_memory() // 2 if memory is None else memory
    needed = size * _BYTES_PER_ROW + held
    if needed > limit:
        messages = " with the messages that decode it" if held else ""
        way = f"; decode it by {lighter} recovery ({opt.recovery(lighter)}), which sends none"
        raise MemoryLimitError(
            f"a table of {size:,} candidates{messages} needs about {_shown(needed)}, more than the"
            f" {_shown(limit)} allowed; ask for the top items or named ones, or raise the limit"
            f" ({opt.memory}){way if held else ''}"
        )


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.3f} MB"


def physical_memory() -> int:
    """Return the bytes of this machine's memory; 4 GiB if the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # no sysconf, or it does not know these names
        return 4 << 30
