"""Readers of tables under differential privacy: no row may change another one, or end the run.

Which columns there are follows from the options or from a public header. Text tables are read line
by line (see `lines`). Parquet is read by columns, and each value independently.
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
from fedtally.sources.streams import ByteStream

Rows = Callable[..., Iterator[Any]]  # `lines.tables` or `lines.rows`


def read_csv(
    path: str, columns: Columns, layout: Layout, name: str, rows: Rows = lines.tables
) -> Tables:
    """Yield the rows of a CSV or TSV, as `lines.tables` or `lines.rows` gives them."""
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
            if not head:  # this says nothing of rows: a table without rows has a header too
                raise InvalidInputError(f"{name} is empty: it has no rows, and no header")
            if "\0" in head:
                raise UnreadableFileError(
                    f"{name} is no text: its header holds NUL bytes; is it a table?"
                )
            # The header is public, so it may be read as any CSV is.
            names = next(csv.reader([head], delimiter=layout.delimiter))
            columns, width = columns.resolve(names, name), len(names)
            places = {column: names.index(column) for column in columns.names()}
            _check_order(columns, places, name)
        else:
            places = {column: int(column) - 1 for column in names}
        # If a line holds nothing but the item, a blank line is a row whose item is missing.
        is_single = set(places) == set(columns.items) and width in (None, len(places))
        read = lines.rows_of_csv(columns, layout.delimiter, width, places, is_single)
        for table in rows(stream, read, columns, encoding, layout.block_size, line_end):
            yield table, columns, stream.position


def _check_headless(columns: Columns, name: str) -> None:
    """Refuse a table without a header if the options do not name its columns by their places.

    No row may decide which columns there are.
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
    # Without a header the number of fields is not public, so that fields can only be counted from
    # the start of a line.
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
    """Refuse a client, silo, round or count column between the two columns of an item.

    What an item contains could change the values of that column.
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
    """Yield the rows of a file of JSON lines, as record batches."""
    _check_item(columns, name, f"'s ({opt.item})")
    columns = columns.with_folders()  # no row may decide whether the table has such a column
    with _open_lines(path, layout) as stream:
        read = lines.row_of_json(columns)
        for table in lines.tables(
            stream, read, columns, lines.line_encoding(layout.encoding), layout.block_size
        ):
            yield table, columns, stream.position


def read_text(
    path: str, columns: Columns, layout: Layout, name: str, rows: Rows = lines.tables
) -> Tables:
    """Yield the rows of plain text, each one item, as `read_csv` does."""
    item = Columns("item")
    with _open_lines(path, layout) as stream:
        encoding = lines.line_encoding(layout.encoding)
        for table in rows(stream, lambda line: {"item": line}, item, encoding, layout.block_size):
            yield table, item, stream.position


@contextmanager
def _open_lines(path: str, layout: Layout, has_header: bool = False) -> Iterator[ByteStream]:
    """Open a text table whose lines are read one by one; yield its stream.

    Only public information may decide whether the file is compressed: its name, or its first bytes
    if these are a header. Without a header, the first bytes are a client's row.
    """
    lines.check_encoding(layout.encoding)
    utf8 = "utf8" if lines.line_encoding(layout.encoding) == "utf-8" else None
    with ByteStream(path, utf8, recognise=has_header) as stream:
        yield stream


def check_plain(schema: Any, columns: Columns, name: str) -> None:
    """Refuse columns of categories in a Parquet file.

    The reader of such a column raises an error if one category is no text, so that a single row
    could end the run.
    """
    import pyarrow as pa

    for column in columns.names():
        if pa.types.is_dictionary(schema.field(column).type):
            raise InvalidInputError(
                f"{name}: with epsilon column {column!r} must not be of categories (a dictionary),"
                " which cannot be read value by value: write it as plain text"
            )
