"""Readers of tables under differential privacy: no row may change another row, or end the run.

The names of the columns follow from the options or from a header, which is public, and never from a
row. CSV, TSV, JSON lines and text are read line by line (see `lines`). Parquet and Feather are read
column by column by `readers`; `check_plain` refuses columns of which Arrow cannot read each value
independently.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedtally.errors import InvalidInputError, UnreadableFileError, opt
from fedtally.sources import lines
from fedtally.sources.batches import Columns
from fedtally.sources.layout import Layout, Tables
from fedtally.sources.plain_lines import TEXT, Shape
from fedtally.sources.streams import ByteStream

# The type of `lines.tables` and `lines.rows`, which yield the rows of a stream of lines.
Rows = Callable[..., Iterator[Any]]


def read_csv(
    path: str, columns: Columns, layout: Layout, name: str, rows: Rows = lines.tables
) -> Tables:
    """Yield the rows of a CSV or TSV file, the columns and the bytes read so far, as `Tables`.

    Args:
        path: the path of the file.
        columns: the columns to read, as the user named them.
        layout: the layout of the file.
        name: the name of the file in messages.
        rows: `lines.tables` for record batches, or `lines.rows` for lists of rows.

    Raises:
        InvalidInputError: a column is missing, or its place would let an item change another value.
            Or it is not clear which column is the item. Or `layout` says that there is a header,
            and all lines are empty. Or fields in the encoding of `layout` cannot be read
            independently.
        UnreadableFileError: the header holds NUL bytes.
        UnicodeDecodeError: the header is no text in the encoding of `layout`.
    """
    if not layout.header:
        columns = columns.with_folders()
        _check_headless(columns, name)
    lines.check_fields(layout.encoding)
    with _open_lines(path, layout, has_header=layout.header) as stream:
        line_end = stream.line_end() if layout.header else b"\n"
        encoding = lines.line_encoding(layout.encoding)
        names = columns.names()
        width = None
        if layout.header:
            head = lines.first_line(stream, encoding, line_end)
            if not head:  # This reveals nothing about rows: a table without rows has a header, too.
                raise InvalidInputError(f"{name} is empty: it has no rows, and no header")
            if "\0" in head:
                raise UnreadableFileError(
                    f"{name} is no text: its header holds NUL bytes; is it a table?"
                )
            # The header is public, so it need not be read field by field as a row is.
            names = next(csv.reader([head], delimiter=layout.delimiter))
            columns, width = columns.resolve(names, name), len(names)
            places = {column: names.index(column) for column in columns.names()}
            _check_order(columns, places, name)
        else:
            places = {column: int(column) - 1 for column in names}
        # If no other column is known than the item's, an empty line is a row whose item is missing.
        # Otherwise an empty line is no row.
        is_single = set(places) == set(columns.items) and width in (None, len(places))
        read = lines.rows_of_csv(columns, layout.delimiter, width, places, is_single)
        shape = None
        if line_end == b"\n" and layout.delimiter != "\0":
            fields = width or max(places.values()) + 1
            shape = Shape(places, fields, layout.delimiter, is_quoted=True)
        for table in rows(stream, read, columns, encoding, layout.block_size, line_end, shape):
            yield table, columns, stream.position


def _check_headless(columns: Columns, name: str) -> None:
    """Raise an error unless the columns of a table without a header are named by their places.

    A place is the number of the field, from 1. Without named places a row would decide which
    columns there are.

    Raises:
        InvalidInputError: the item is not named, or a column's name is no place. Or a client, silo,
            round or count stands after the item.
    """
    _check_item(columns, name, f" by its place ({opt.item('1')})")
    for column in columns.names():
        if not re.fullmatch("[1-9][0-9]{0,5}", column):
            raise InvalidInputError(
                f"{name} has no column {column!r}; without a header they are called 1, 2, ..."
            )
    others = [
        int(column)
        for column in (columns.client, columns.round, columns.count, columns.silo)
        if column in columns.names()
    ]
    # Without a header the number of fields is not public. So fields can be counted only from the
    # start of a line, and a delimiter in an item could shift the fields after it.
    if max(others, default=0) > min(int(column) for column in columns.items):
        raise InvalidInputError(
            f"{name}: with epsilon and without a header clients, silos, rounds and counts must"
            " stand before the item, or what an item holds could change them: add a header line, or"
            " reorder the columns"
        )


def _check_item(columns: Columns, name: str, how: str) -> None:
    if columns.item is None:
        raise InvalidInputError(
            f"{name}: with epsilon a row must not say which columns there are: name the item{how}"
        )


def _check_order(columns: Columns, places: dict[str, int], name: str) -> None:
    """Raise InvalidInputError if another column that is read is between an item's two columns.

    Otherwise the content of an item could change the value in the other column, such as the client.
    """
    items = [places[column] for column in columns.items]
    for column in columns.names():
        if min(items) < places[column] < max(items):
            first, last = (repr(part) for part in columns.items)
            raise InvalidInputError(
                f"{name}: with epsilon the column {column!r} must not stand between {first} and"
                f" {last}, or what an item holds could change it: put it before or after both"
            )


def read_json(path: str, columns: Columns, layout: Layout, name: str) -> Tables:
    """Yield the rows of a file of JSON lines, the columns and the bytes read so far, as `Tables`.

    Args:
        path: the path of the file.
        columns: the columns to read; the item's column must be named.
        layout: the layout of the file.
        name: the name of the file in messages.
    """
    _check_item(columns, name, f"'s ({opt.item})")
    with _open_lines(path, layout) as stream:
        read = lines.row_of_json(columns)
        for table in lines.tables(
            stream, read, columns, lines.line_encoding(layout.encoding), layout.block_size
        ):
            yield table, columns, stream.position


def read_text(
    path: str, columns: Columns, layout: Layout, name: str, rows: Rows = lines.tables
) -> Tables:
    """Yield the lines of plain text, each of them one item, as `Tables`.

    See `read_csv` for the arguments; `columns` and `name` are not used.
    """
    item = Columns("item")
    with _open_lines(path, layout) as stream:
        encoding, size = lines.line_encoding(layout.encoding), layout.block_size
        # In some other encodings, a byte of one line could change the text of the next line.
        shape = TEXT if encoding == "utf-8" else None
        for table in rows(stream, lambda line: {"item": line}, item, encoding, size, shape=shape):
            yield table, item, stream.position


@contextmanager
def _open_lines(path: str, layout: Layout, has_header: bool = False) -> Iterator[ByteStream]:
    """Open a text file whose lines are read independently, and yield its bytes as a stream.

    Only public information may decide whether the file is compressed. The file's name is public,
    and so are the first bytes if they are a header. Without a header, the first bytes are a
    client's row.
    """
    lines.check_encoding(layout.encoding)
    utf8 = "utf8" if lines.line_encoding(layout.encoding) == "utf-8" else None
    with ByteStream(path, utf8, recognise=has_header) as stream:
        yield stream


def check_plain(schema: Any, columns: Columns, name: str) -> None:
    """Raise an error if a column of a Parquet or Feather file has categories (a dictionary).

    Arrow reads such a column as a whole. It raises an error if one category is no text, so a single
    row could end the run.

    Args:
        schema: the Arrow schema of the file.
        columns: the columns that are read.
        name: the name of the file in the message.

    Raises:
        InvalidInputError: a column has categories.
    """
    import pyarrow as pa

    for column in columns.names():
        if pa.types.is_dictionary(schema.field(column).type):
            raise InvalidInputError(
                f"{name}: with epsilon column {column!r} must not be of categories (a dictionary),"
                " which cannot be read value by value: write it as plain text"
            )
