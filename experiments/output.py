"""What an experiment leaves: a table on the screen and, where asked, in a file."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fedtally.base.archive import replacing
from fedtally.errors import InvalidInputError

Row = Mapping[str, Any]
SUFFIXES = (".csv", ".parquet")
ROOT = Path(__file__).parents[1]
DAMAGED = (  # what NumPy and Arrow say of a damaged table
    *(OSError, EOFError, ValueError, TypeError, LookupError, RuntimeError, MemoryError),
    *(zlib.error, zipfile.BadZipFile),
)


class MissingDataError(InvalidInputError):
    """A real table is needed and not there; it is not part of the project."""


def data_folder(folder: Path | None) -> Path:
    """Return the folder of the real tables: `folder`, FEDTALLY_DATA, or ../shared/data."""
    return folder or Path(os.environ.get("FEDTALLY_DATA") or ROOT.parent / "shared" / "data")


def make_folder(folder: Path) -> None:
    """Make a folder for results, before the work starts.

    Raises:
        InvalidInputError: it cannot be made, or not be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(
            f"cannot make the folder {folder}: {error.strerror}; choose another --output"
        ) from error
    if not os.access(folder, os.W_OK):
        raise InvalidInputError(f"the folder {folder} cannot be written; choose another --output")


def check_path(path: Path | None) -> None:
    """Refuse a table of unknown format, or in a read-only folder, before the work starts."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise InvalidInputError(f"--output must end in {' or '.join(SUFFIXES)}, got {path}")
    if not path.parent.is_dir():
        raise InvalidInputError(
            f"cannot write {path}: there is no folder {path.parent}; create it first"
        )
    if not os.access(path.parent, os.W_OK):
        raise InvalidInputError(
            f"cannot write {path}: the folder {path.parent} cannot be written; choose another"
            " --output"
        )


def show(rows: Sequence[Row]) -> None:
    """Print rows with the same keys as a table with a line of names.

    On a terminal that is too narrow for the table, each row is a paragraph, with a line a name.
    """
    cells = [list(rows[0]), *([text(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    width = shutil.get_terminal_size().columns
    if sys.stdout.isatty() and sum(widths) + 2 * (len(widths) - 1) > width:
        for place, row in enumerate(cells[1:]):
            click.echo("\n" * bool(place) + "\n".join(_paragraph(cells[0], row, width)))
        return
    for line in cells:
        click.echo("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _paragraph(names: Sequence[str], cells: Sequence[str], width: int) -> Iterator[str]:
    """Yield a row as lines of names and texts, the texts one below the other."""
    indent = max(map(len, names)) + 2
    for name, cell in zip(names, cells, strict=True):
        for place, line in enumerate(textwrap.wrap(cell, max(20, width - indent)) or [""]):
            yield f"{'' if place else name:<{indent}}{line}"


def save(rows: Sequence[Row], path: Path | None) -> None:
    """Write rows as CSV or Parquet, by the path's suffix; nothing without a path."""
    if path is None:
        return
    import pyarrow as pa

    table = pa.Table.from_pylist([dict(row) for row in rows])
    with replacing(path) as temporary:
        if path.suffix == ".csv":
            from pyarrow import csv

            csv.write_csv(table, temporary)
        else:
            from pyarrow import parquet

            parquet.write_table(table, temporary)


def text(value: Any) -> str:
    """Return a value as tables show it: floats to four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
