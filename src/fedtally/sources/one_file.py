"""Read the items of one file without PyArrow: text with one item a line, CSV or TSV.

An agent uses it on machines on which PyArrow is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from fedtally.base import arrow
from fedtally.sources import lines, private_tables
from fedtally.sources.batches import Columns
from fedtally.sources.layout import Layout
from fedtally.sources.streams import reading

_READERS = {
    "csv": private_tables.read_csv,
    "tsv": private_tables.read_csv,
    "text": private_tables.read_text,
}


def check_format(path: str, columns: Columns, format: str | None) -> Layout:
    """Return the layout of a file; raise an error if its format needs PyArrow, which is missing.

    Args:
        path: the path of the file.
        columns: the item's column, or its two columns.
        format: a format that `open_source` takes; None: the suffix decides, or, if the suffix is
            not known, whether a column is named.

    Raises:
        InvalidInputError: there is no such format, or a column is named of a text file.
        UnreadableFileError: files with this suffix cannot be read.
        MissingExtraError: the format needs PyArrow, which is not installed.
    """
    layout = Layout.detect(path, columns, format=format)
    if layout.format not in _READERS:
        arrow.check(f"a file of {layout.format}", "; or write the items as CSV")
    return layout


def texts_of(path: str, columns: Columns, format: str | None) -> list[str]:
    """Return the distinct items of a file as texts, in the order in which they first occur.

    Each row is read independently, as under privacy. A row whose item cannot be read is left out.

    Args:
        path: the path of the file.
        columns: the item's column, or its two columns.
        format: a format that `open_source` takes; None: the suffix decides.

    Raises:
        InvalidInputError: there is no such column or format.
        UnreadableFileError: the file cannot be read.
        MissingExtraError: the format needs PyArrow, which is not installed.
    """
    layout = check_format(path, columns, format)
    read = partial(_READERS[layout.format], path, columns, layout, path, lines.rows)
    found: dict[str, None] = {}
    with reading(path, layout.encoding):
        for rows, resolved, _ in read():
            texts = (_text([row.get(name) for name in resolved.items]) for row in rows)
            found.update(dict.fromkeys(text for text in texts if text is not None))
    return list(found)


def _text(parts: Sequence[str | None]) -> str | None:
    """Return the item of a row: its one or two values, joined by a comma.

    Returns None if a value is missing or is not valid text.
    """
    if not all(parts):
        return None
    text = ",".join(filter(None, parts))  # all parts; the filter is for the type checker
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate stands for an invalid byte
        return None
    return text
