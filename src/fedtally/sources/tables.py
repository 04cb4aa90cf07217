"""CSV, TSV, JSON lines, Parquet and plain text -> batches, block by block."""

from __future__ import annotations

import csv
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.sources import lines
from fedtally.sources.batches import Batch, Columns, Source, no_rows, to_batch
from fedtally.sources.streams import ByteStream, check_encoding, reading

_FORMATS = {
    "csv": "csv",
    "tsv": "tsv",
    "tab": "tsv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "pq": "parquet",
    "text": "text",
}
_PEEK = 1 << 16
_LONGEST_LINE = 1 << 26
_LONGEST_FIELD = 1 << 26

_Tables = Iterator[tuple[Any, Columns, int]]  # record batch, resolved columns, bytes read so far


@dataclass(frozen=True)
class Layout:
    """How a table is written.

    `block_size` is how many bytes are read at a time. It bounds the length of a row of CSV or JSON,
    and the memory: Arrow reads those two 32 blocks ahead.

    >>> Layout.detect("clicks.tsv.gz", Columns()).format
    'tsv'
    >>> Layout.detect("-", Columns()).format, Layout.detect("-", Columns(item="url")).format
    ('text', 'csv')
    """

    format: str
    delimiter: str = ","
    header: bool = True
    encoding: str = "utf8"
    block_size: int = 1 << 22

    @classmethod
    def detect(
        cls,
        path: str,
        columns: Columns,
        *,
        format: str | None = None,
        delimiter: str | None = None,
        header: bool = True,
        encoding: str = "utf8",
    ) -> Layout:
        """Choose the format from the options and the suffix, and check that the options fit it."""
        check_encoding(encoding)
        if format is None:
            suffix = os.path.splitext(path.lower().removesuffix(".gz"))[1]
            chosen = _FORMATS.get(suffix[1:]) or ("csv" if columns.names() or delimiter else "text")
        elif format in _FORMATS:
            chosen = _FORMATS[format]
        else:
            raise InvalidInputError(
                f"format must be csv, tsv, json, parquet or text, got {format!r}"
            )
        if chosen == "text" and columns.names():
            raise InvalidInputError(
                f"plain text has one item a line and no column {columns.names()[0]!r}; use"
                " --format csv"
            )
        if chosen not in ("csv", "tsv") and delimiter:
            raise InvalidInputError(
                f"the format {chosen} has no delimiter; leave it out, or use --format csv"
            )
        return cls(chosen, _delimiter(delimiter, chosen), header, encoding)


def _delimiter(delimiter: str | None, format: str) -> str:
    chosen = {None: "\t" if format == "tsv" else ",", "\\t": "\t"}.get(delimiter, delimiter)
    if chosen is None or len(chosen) != 1 or not chosen.isascii() or chosen in '"\r\n':
        raise InvalidInputError(
            f"delimiter must be one ASCII character such as ';', got {delimiter!r}"
        )
    return chosen


def table_source(path: str, columns: Columns, layout: Layout) -> Source:
    """Return the source of a file or of standard input (``-``).

    Raises:
        UnreadableFileError: the path does not exist or is a directory.

    >>> table_source("nowhere.csv", Columns(), Layout("csv"))
    Traceback (most recent call last):
    ...
    fedtally.errors.UnreadableFileError: nowhere.csv cannot be read: No such file or directory
    """
    name = "standard input" if path == "-" else path
    size = None if path == "-" else _file_size(path)
    reads = 0

    def read(private: bool) -> Iterator[Batch]:
        nonlocal reads
        reads += 1
        if size is None and reads > 1:
            raise InvalidInputError(f"{name} can be read only once: save it to a file first")
        with reading(name, layout.encoding):
            readers = _READERS | _PRIVATE_READERS if private else _READERS
            for table, resolved, position in readers[layout.format](path, columns, layout, name):
                yield to_batch(table, resolved, name, position, private)

    return Source(name, read, size_bytes=size, repeatable=size is not None)


def _file_size(path: str) -> int | None:
    """Return the size of a regular file, None of a pipe."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise UnreadableFileError(f"{path} cannot be read: {error.strerror}") from error
    if stat.S_ISDIR(status.st_mode):
        raise UnreadableFileError(f"{path} is a directory: name one file in it")
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _is_named_gzip(path: str) -> bool:
    return path.lower().endswith(".gz")


@contextmanager
def _open_text(path: str, layout: Layout, name: str) -> Iterator[ByteStream]:
    with ByteStream(path, layout.encoding, gzipped=_is_named_gzip(path) or None) as stream:
        start = stream.peek(_PEEK)
        if start.startswith(b"PAR1"):
            raise UnreadableFileError(f"{name} is a Parquet file: use --format parquet")
        if b"\0" in start:
            raise UnreadableFileError(
                f"{name} is no text: it holds NUL bytes, so it is binary, or UTF-16 (then say"
                " --encoding utf-16)"
            )
        yield stream


def _read_csv(path: str, columns: Columns, layout: Layout, name: str) -> _Tables:
    with _open_text(path, layout, name) as stream:
        header = _first_row(stream, layout)
        if not header:
            return
        names = (
            header if layout.header else [str(position) for position in range(1, len(header) + 1)]
        )
        resolved = columns.resolve(names, name)
        # blank lines before it are no rows
        is_single = len(names) == 1 and stream.peek(1)[:1] not in (b"\n", b"\r")
        quotes = stream.watch = _Quotes(layout.delimiter)
        for batch in _csv_reader(
            stream, resolved.names(), None if layout.header else names, layout, is_single
        ):
            quotes.check(name)
            yield batch, resolved, stream.position
        quotes.check(name, ended=True)


class _Quotes:
    """Follow the quotes of a CSV: Arrow takes what follows an open quote, to the next one or the end, for one value.

    A quote at the start of a field opens it; two inside it stand for one; the one that closes it is
    followed by a delimiter or the end of a line. Elsewhere (5" wide) a quote is a character like
    others.
    """

    def __init__(self, delimiter: str) -> None:
        ends = re.escape(delimiter.encode()) + rb"\n\r"
        plain, quoted = rb'[^"' + ends + rb"][^" + ends + rb"]*+", rb'"[^"]*+(?:""[^"]*+)*+"'
        self._whole = re.compile(rb"(?:(?:" + plain + rb"|" + quoted + rb"|)[" + ends + rb"])*+")
        self._rest = b""  # from the start of a field that is not whole yet
        self._broken = False

    def __call__(self, taken: bytes) -> None:
        """Take the next bytes."""
        if self._broken:
            return
        self._rest = self._behind(self._rest + taken)
        # The last quote may be half of a pair, or what a delimiter would follow: it waits for the
        # next bytes.
        inside = self._rest[1:].replace(b'""', b"").removesuffix(b'"')
        self._broken = self._rest.startswith(b'"') and (
            b'"' in inside or len(self._rest) > _LONGEST_FIELD
        )

    def check(self, name: str, ended: bool = False) -> None:
        """Raise UnreadableFileError if a quote was closed in the middle of a field or, at the end, is open."""
        if self._broken or (ended and self._behind(self._rest + b"\n")):
            raise UnreadableFileError(
                f'{name}: a quote (") that starts a field is not closed at the end of one; close'
                " it, or double the quotes that belong to a value and put quotes around it"
            )

    def _behind(self, data: bytes) -> bytes:
        """Return what follows the whole fields at the start."""
        whole = self._whole.match(data)
        return data[whole.end() :] if whole else data


def _csv_reader(
    stream: ByteStream, wanted: list[str], names: list[str] | None, layout: Layout, is_single: bool
) -> Any:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    file: Any = pa.PythonFile(stream, mode="r")
    return arrow_csv.open_csv(
        file,
        # One thread: Arrow then knows the number of a broken row, and reading is not what takes the
        # time.
        read_options=arrow_csv.ReadOptions(
            block_size=layout.block_size, use_threads=False, column_names=names
        ),
        # Quoted line breaks cost no time here, and without this a block that ends inside quotes
        # would be cut wrongly. In the only column an empty line is a row whose item is missing.
        parse_options=arrow_csv.ParseOptions(
            delimiter=layout.delimiter, newlines_in_values=True, ignore_empty_lines=not is_single
        ),
        convert_options=arrow_csv.ConvertOptions(
            include_columns=wanted,
            column_types={column: pa.string() for column in wanted},
            null_values=[""],
            strings_can_be_null=True,
        ),
    )


def _first_row(stream: ByteStream, layout: Layout) -> list[str]:
    """Return the fields of the first row that is not blank; empty if there is none."""
    lines = stream.peek(max(_PEEK, layout.block_size)).splitlines(keepends=True)
    rows = csv.reader((line.decode() for line in lines), delimiter=layout.delimiter)
    return next((row for row in rows if row), [])


def _read_text(path: str, columns: Columns, layout: Layout, name: str) -> _Tables:
    with _open_text(path, layout, name) as stream:
        for lines in _lines(stream, layout.block_size, name):
            yield lines, Columns("item"), stream.position


def _lines(stream: ByteStream, block_size: int, name: str) -> Iterator[Any]:
    rest = b""
    while block := stream.read(block_size):
        cut = block.rfind(b"\n") + 1
        if cut:
            yield _split(rest + block[:cut])
            rest = block[cut:]
        else:
            rest += block
        if len(rest) > _LONGEST_LINE:
            raise InvalidInputError(
                f"{name} has a line of more than {_LONGEST_LINE} bytes: is it plain text, one item"
                " a line?"
            )
    if rest:
        yield _split(rest)


def _split(data: bytes) -> Any:
    """Return the lines of whole-line data as a record batch; a blank line is a missing item."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    if not len(ends) or ends[-1] != len(data):
        ends = np.append(ends, len(data))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    lines = pa.StringArray.from_buffers(
        len(ends), pa.py_buffer(offsets.tobytes()), pa.py_buffer(data)
    )
    items = pc.ascii_rtrim(lines, "\r\n")
    items = pc.if_else(pc.equal(items, pa.scalar("")), pa.scalar(None, pa.string()), items)
    return pa.record_batch({"item": items})


def _read_json(path: str, columns: Columns, layout: Layout, name: str) -> _Tables:
    import pyarrow as pa
    import pyarrow.json as arrow_json

    with _open_text(path, layout, name) as stream:
        sample = _sample(stream, layout, name)
        if not sample:
            return
        resolved = columns.resolve(list(dict.fromkeys(key for row in sample for key in row)), name)
        schema = pa.schema(
            [(column, _json_type(column, resolved, sample, name)) for column in resolved.names()]
        )
        file: Any = pa.PythonFile(stream, mode="r")
        with _json_rows(name) as rows:
            reader = arrow_json.open_json(
                file,
                read_options=arrow_json.ReadOptions(
                    block_size=layout.block_size, use_threads=False
                ),
                # An explicit schema: Arrow's guess makes timestamps of strings and may change from
                # block to block.
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            for batch in reader:
                rows.append(batch.num_rows)
                yield batch, resolved, stream.position


@contextmanager
def _json_rows(name: str) -> Iterator[list[int]]:
    """Say after how many rows of the file reading failed: Arrow counts them within a block."""
    import pyarrow as pa

    rows: list[int] = []
    try:
        yield rows
    except pa.ArrowInvalid as error:
        if "straddl" in str(error):
            raise
        reason = str(error).split(" in row ")[0]
        raise UnreadableFileError(
            f"{name} cannot be read after row {sum(rows)}: {reason}; one object a line?"
        ) from error


def _sample(stream: ByteStream, layout: Layout, name: str) -> list[dict[str, Any]]:
    """Return the objects of the first block, which decide the columns and their types."""
    size = max(_PEEK, layout.block_size)
    head = stream.peek(size)
    whole = head if len(head) < size else head[: head.rfind(b"\n") + 1]
    rows = []
    for number, line in enumerate(whole.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode())
        except UnicodeDecodeError:
            raise
        except (ValueError, RecursionError) as error:
            raise UnreadableFileError(
                f"{name}, line {number}, is no JSON object ({error}): one object a line?"
            ) from error
        if not isinstance(row, dict):
            raise UnreadableFileError(
                f"{name}, line {number}, is no JSON object: write one object a line, without [ ]"
            )
        rows.append(row)
    if head and not whole:
        raise UnreadableFileError(
            f"{name} has a first line of more than {size} bytes: is it JSON, one object a line?"
        )
    return rows


def _json_type(column: str, columns: Columns, sample: Sequence[dict[str, Any]], name: str) -> Any:
    import pyarrow as pa

    values = [row[column] for row in sample if row.get(column) is not None]
    kinds = {type(value) for value in values}
    if kinds & {dict, list}:
        raise InvalidInputError(
            f"{name}: column {column!r} holds lists or objects: one plain value a row is needed"
        )
    if kinds == {int} and not (isinstance(columns.item, tuple) and column in columns.item):
        return pa.uint64() if max(values) >= 2**63 else pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    if len(kinds) > 1:
        kinds_listed = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InvalidInputError(
            f"{name}: column {column!r} holds values of several types ({kinds_listed}); use one"
        )
    return pa.bool_() if kinds == {bool} else pa.string()


def _read_parquet(
    path: str, columns: Columns, layout: Layout, name: str, *, private: bool = False
) -> _Tables:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    size = 0 if path == "-" else _file_size(path) or 0
    rows, done = max(1, layout.block_size // 64), 0
    with (
        _seekable(path) as place,
        parquet.ParquetFile(place, pre_buffer=False, buffer_size=1 << 20) as file,
    ):
        resolved = columns.resolve(file.schema_arrow.names, name)
        if private:
            _check_plain(file.schema_arrow, resolved, name)
            # Which columns there are is known without rows.
            yield (
                no_rows(
                    pa.schema([file.schema_arrow.field(column) for column in resolved.names()])
                ),
                resolved,
                0,
            )
        for batch in file.iter_batches(batch_size=rows, columns=resolved.names()):
            done += batch.num_rows
            yield batch, resolved, size * done // file.metadata.num_rows


def _check_plain(schema: Any, columns: Columns, name: str) -> None:
    """Refuse categories: Parquet's reader ends where one of their values is no text, before it can be left out."""
    import pyarrow as pa

    for column in columns.names():
        if pa.types.is_dictionary(schema.field(column).type):
            raise InvalidInputError(
                f"{name}: with epsilon column {column!r} must not be of categories (a dictionary),"
                " which cannot be read value by value: write it as plain text"
            )


@contextmanager
def _seekable(path: str) -> Iterator[Any]:
    """Give the path, or a temporary copy of a stream: Parquet is read from its end."""
    if path != "-" and _file_size(path) is not None and not path.lower().endswith(".gz"):
        yield path
        return
    with tempfile.TemporaryFile() as copy:
        with ByteStream(path, None) as stream:
            while block := stream.read(1 << 22):
                copy.write(block)
        copy.seek(0)
        yield copy


def _read_private_csv(path: str, columns: Columns, layout: Layout, name: str) -> _Tables:
    if not layout.header:
        _check_headless(columns, name)
    lines.check_fields(layout.encoding)
    with _open_lines(path, layout, has_header=layout.header) as stream:
        encoding = lines.line_encoding(layout.encoding)
        names = columns.names()
        width = None
        if layout.header:
            head = lines.first_line(stream, encoding)
            if not head:  # no row tells it: a table of nobody has a header as well
                raise InvalidInputError(f"{name} is empty: it has no rows, and no header")
            if "\0" in head:
                raise UnreadableFileError(
                    f"{name} is no text: its header holds NUL bytes; is it a table?"
                )
            names = next(csv.reader([head], delimiter=layout.delimiter))
            columns, width = columns.resolve(names, name), len(names)
            places = {column: names.index(column) for column in columns.names()}
            _check_order(columns, places, name)
        else:
            places = {column: int(column) - 1 for column in names}
        # A blank line is whose item is blank, where nothing else can stand in a line.
        is_single = set(places) == set(columns.items) and width in (None, len(places))
        read = lines.rows_of_csv(columns, layout.delimiter, width, places, is_single)
        for table in lines.tables(stream, read, columns, encoding, layout.block_size):
            yield table, columns, stream.position


def _check_headless(columns: Columns, name: str) -> None:
    """Refuse a table without a header whose columns the options do not say: no row may."""
    if columns.item is None:
        raise InvalidInputError(
            f"{name}: with epsilon a row must not say which columns there are: name the item by its"
            " place (--item 1)"
        )
    for column in columns.names():
        if not re.fullmatch("[1-9][0-9]{0,5}", column):
            raise InvalidInputError(
                f"{name} has no column {column!r}; without a header they are called 1, 2, ..."
            )
    others = [
        int(column)
        for column in (columns.client, columns.round, columns.count)
        if column is not None
    ]
    if max(others, default=0) > min(int(column) for column in columns.items):
        raise InvalidInputError(
            f"{name}: with epsilon and without a header clients, rounds and counts must stand"
            " before the item, or what an item holds could change them: add a header line, or"
            " reorder the columns"
        )


def _check_order(columns: Columns, places: dict[str, int], name: str) -> None:
    """Refuse clients, rounds and counts between the columns of an item: what it holds could hide them."""
    items = [places[column] for column in columns.items]
    for column in columns.names():
        if min(items) < places[column] < max(items):
            first, last = (repr(part) for part in columns.items)
            raise InvalidInputError(
                f"{name}: with epsilon the column {column!r} must not stand between {first} and"
                f" {last}, or what an item holds could change it: put it before or after both"
            )


@contextmanager
def _open_lines(path: str, layout: Layout, has_header: bool = False) -> Iterator[ByteStream]:
    """Open a text table whose lines are read one by one: only a header, which is public, may tell what the file is."""
    lines.check_encoding(layout.encoding)
    utf8 = "utf8" if lines.line_encoding(layout.encoding) == "utf-8" else None
    zipped = _is_named_gzip(path)
    with ByteStream(path, utf8, gzipped=(zipped or None) if has_header else zipped) as stream:
        yield stream


def _read_private_json(path: str, columns: Columns, layout: Layout, name: str) -> _Tables:
    if columns.item is None:
        raise InvalidInputError(
            f"{name}: with epsilon a row must not say which columns there are: name the item's"
            " (--item)"
        )
    with _open_lines(path, layout) as stream:
        read = lines.row_of_json(columns)
        for table in lines.tables(
            stream, read, columns, lines.line_encoding(layout.encoding), layout.block_size
        ):
            yield table, columns, stream.position


def _read_private_text(path: str, columns: Columns, layout: Layout, name: str) -> _Tables:
    item = Columns("item")
    with _open_lines(path, layout) as stream:
        encoding = lines.line_encoding(layout.encoding)
        for table in lines.tables(
            stream, lambda line: {"item": line}, item, encoding, layout.block_size
        ):
            yield table, item, stream.position


_Reader = Callable[[str, Columns, Layout, str], _Tables]
_PRIVATE_READERS: dict[str, _Reader] = {
    "csv": _read_private_csv,
    "tsv": _read_private_csv,
    "json": _read_private_json,
    "text": _read_private_text,
    "parquet": partial(_read_parquet, private=True),
}
_READERS: dict[str, _Reader] = {
    "csv": _read_csv,
    "tsv": _read_csv,
    "json": _read_json,
    "text": _read_text,
    "parquet": _read_parquet,
}
