"""Readers of CSV, TSV, JSON lines, Parquet, Feather and plain text, block by block.

The readers that read every row independently, for differential privacy, are in `private_tables`.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import stat
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from fedtally import kernels
from fedtally.base import validate
from fedtally.errors import InvalidInputError, UnreadableFileError, opt
from fedtally.kernels.rows import quotes_are_closed
from fedtally.sources import compression, private_tables
from fedtally.sources.batches import Batch, Columns, Source, no_rows, to_batch
from fedtally.sources.extensions import is_extension, type_name
from fedtally.sources.layout import Layout, Tables, check_text
from fedtally.sources.streams import ByteStream, arrow_file, reading

_PEEK = 1 << 16  # bytes that are examined to see whether the file is text
# The most bytes of a line, and of a field in quotes: a line or a field is held in memory until it
# ends. A file with a longer line or field probably has another format.
_LONGEST_LINE = 1 << 26
_LONGEST_FIELD = 1 << 26
_PARQUET = b"PAR1"  # the first and the last bytes of a Parquet file
_ARROW = b"ARROW1"  # the first and the last bytes of an Arrow file
_STREAM = b"\xff\xff\xff\xff"  # the first bytes of an Arrow stream
_SHOWN = 60  # the most characters of a value in a message
# If a value takes fewer than this number of bytes in a Parquet file, then probably most values are
# in the dictionary of the column.
_SMALL = 8


def table_source(path: str, columns: Columns, layout: Layout) -> Source:
    """Return the source of a file or of standard input (``-``).

    Args:
        path: the path of the file, or ``-``.
        columns: the columns of the item, client, silo, round and count.
        layout: the format of the file, and how its text is read.

    Raises:
        UnreadableFileError: the path does not exist or is a folder.

    >>> table_source("nowhere.csv", Columns(), Layout("csv"))
    Traceback (most recent call last):
    ...
    fedtally.errors.UnreadableFileError: nowhere.csv cannot be read: No such file or directory
    """
    name = "standard input" if path == "-" else path
    size = None if path == "-" else _file_size(path)
    reads = 0
    is_named = layout.header and layout.format in ("csv", "tsv")

    def read(private: bool) -> Iterator[Batch]:
        nonlocal reads
        reads += 1
        if size is None and reads > 1:  # a pipe gives its bytes only once
            raise InvalidInputError(f"{name} can be read only once: save it to a file first")
        # Rows that repeat the header are not counted under privacy: nothing that is shown may
        # depend on a row.
        has_header = is_named and not private
        with reading(name, layout.encoding):
            readers = _READERS | _PRIVATE_READERS if private else _READERS
            for table, resolved, position in readers[layout.format](path, columns, layout, name):
                yield to_batch(table, resolved, name, position, private, has_header)

    return Source(name, read, size_bytes=size, repeatable=size is not None)


def _file_size(path: str) -> int | None:
    """Return the size of a regular file in bytes; None for a pipe.

    Raises:
        UnreadableFileError: the path does not exist or is a folder.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        hint = validate.did_you_mean_file(path) if isinstance(error, FileNotFoundError) else ""
        raise UnreadableFileError(f"{path} cannot be read: {error.strerror}{hint}") from error
    if stat.S_ISDIR(status.st_mode):
        raise UnreadableFileError(f"{path} is a directory: name one file in it")
    return status.st_size if stat.S_ISREG(status.st_mode) else None


@contextmanager
def _open_text(
    path: str, layout: Layout, name: str, *, of_lines: bool = False
) -> Iterator[ByteStream]:
    with ByteStream(path, layout.encoding, of_lines=of_lines) as stream:
        check_text(stream.peek(_PEEK), name)
        yield stream


def _read_csv(path: str, columns: Columns, layout: Layout, name: str) -> Tables:
    import pyarrow as pa

    is_fast = path != "-" and _file_size(path) is not None
    try:
        yield from _rows_of_csv(path, columns, layout, name, is_fast=is_fast)
    except pa.ArrowException:
        # If several threads read, Arrow's error lacks the number of the broken row. So one thread
        # reads the file again: then the error has the number.
        if is_fast:
            for _ in _rows_of_csv(path, columns, layout, name, is_fast=False):
                pass
        raise


def _rows_of_csv(
    path: str, columns: Columns, layout: Layout, name: str, *, is_fast: bool
) -> Tables:
    """Yield the rows of a CSV or TSV file, the columns and the bytes read so far, as `Tables`.

    Args:
        path: the path of the file.
        columns: the columns of the item, client, silo, round and count.
        layout: the layout of the file.
        name: the name of the file in messages.
        is_fast: whether several threads read, and several blocks are yielded as one batch.
    """
    with _open_text(path, layout, name) as stream:
        header = _first_row(stream, layout)
        if not header:
            return
        names = (
            header if layout.header else [str(position) for position in range(1, len(header) + 1)]
        )
        resolved = columns.resolve(names, name)
        if layout.header and _is_one_line(stream):  # Arrow would report a damaged file
            return
        # In a table of one column a blank line is a row whose item is missing. Arrow would take a
        # blank line before the header for the header.
        is_single = len(names) == 1
        if is_single and layout.header:
            stream.skip_blank_lines()
        # Arrow does not report a quote that is not closed, so the bytes that it reads are examined.
        quotes = stream.watch = _Quotes(layout.delimiter)
        with arrow_file(stream) as file:
            reader = _csv_reader(
                file, resolved.names(), None if layout.header else names, layout, is_single, is_fast
            )
            for batch in _gathered(reader, 4 * layout.block_size) if is_fast else reader:
                quotes.check(name)
                yield batch, resolved, stream.position
        quotes.check(name, ended=True)


class _Quotes:
    """Examine the bytes of a CSV, to find a quote that is not closed.

    Arrow reads everything from an open quote to the next quote, or to the end of the file, as one
    value. So one quote too many would make rows disappear without an error.

    A quote at the start of a field opens the field. Inside the field, two quotes stand for one. The
    closing quote is followed by a delimiter or a line end. In other places (5" wide) a quote is an
    ordinary character.

    Args:
        delimiter: the character between fields.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        ends = re.escape(delimiter.encode()) + rb"\n\r"
        plain, quoted = rb'[^"' + ends + rb"][^" + ends + rb"]*+", rb'"[^"]*+(?:""[^"]*+)*+"'
        self._whole = re.compile(rb"(?:(?:" + plain + rb"|" + quoted + rb"|)[" + ends + rb"])*+")
        self._rest = b""  # the bytes from the start of the first field that is not complete yet
        self._broken = False

    def __call__(self, taken: bytes) -> None:
        """Examine the next bytes of the file; `check` then raises an error if they are wrong."""
        if self._broken:
            return
        data = self._rest + taken
        cut = data.rfind(b"\n") + 1
        # Most tables pass this simple test. The full test takes many times longer.
        self._rest = self._behind(data[cut:] if self._is_simple(data[:cut]) else data)
        # The last quote may be the first of a pair, or close the field. Only the next bytes decide
        # that.
        inside = self._rest[1:].replace(b'""', b"").removesuffix(b'"')
        self._broken = self._rest.startswith(b'"') and (
            b'"' in inside or len(self._rest) > _LONGEST_FIELD
        )

    def check(self, name: str, ended: bool = False) -> None:
        """Raise UnreadableFileError if a quoted field did not end where its quote was closed.

        It is also an error if such a field is longer than `_LONGEST_FIELD`, or if the file has
        ended and a quote is still open.

        Args:
            name: the name of the file in the message.
            ended: whether the file has ended.
        """
        if self._broken or (ended and self._behind(self._rest + b"\n")):
            raise UnreadableFileError(
                f'{name}: a quote (") that starts a field is not closed at the end of one; close'
                " it, or double the quotes that belong to a value and put quotes around it"
            )

    def _is_simple(self, data: bytes) -> bool:
        """Return whether all quotes are certainly in order, and no field is open at the end.

        Args:
            data: the bytes of whole lines.
        """
        return quotes_are_closed(data, self._delimiter)

    def _behind(self, data: bytes) -> bytes:
        """Return the bytes after the complete fields at the start of `data`."""
        whole = self._whole.match(data)
        return data[whole.end() :] if whole else data


def _gathered(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield the rows of Arrow record batches in fewer batches, of at least `size` bytes.

    An item that occurs in many batches is processed in each of them, so fewer batches take less
    time. The last batch may be smaller.
    """
    import pyarrow as pa

    held: list[Any] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) >= size:
            yield pa.concat_batches(held)
            held = []
    if held:
        yield pa.concat_batches(held)


def _csv_reader(
    file: Any,
    wanted: list[str],
    names: list[str] | None,
    layout: Layout,
    is_single: bool,
    use_threads: bool,
) -> Any:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    return arrow_csv.open_csv(
        file,
        read_options=arrow_csv.ReadOptions(
            block_size=layout.block_size, use_threads=use_threads, column_names=names
        ),
        # Without newlines_in_values, a block that ends inside quotes would be cut in a wrong place.
        # In a table of one column, a blank line is a row whose item is missing.
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


def column_names(path: str, layout: Layout) -> list[str]:
    """Return the names in the first non-blank row of a CSV or TSV; [] if all rows are blank."""
    with reading(path, layout.encoding), _open_text(path, layout, path) as stream:
        return _first_row(stream, layout)


def _first_row(stream: ByteStream, layout: Layout) -> list[str]:
    """Return the fields of the first row that is not blank; [] if all rows are blank.

    The stream does not move on.
    """
    lines = stream.peek(max(_PEEK, layout.block_size)).splitlines(keepends=True)
    rows = csv.reader((line.decode() for line in lines), delimiter=layout.delimiter)
    return next((row for row in rows if row), [])


def _is_one_line(stream: ByteStream) -> bool:
    """Return whether a file has only one line that is not blank, and no line end after it."""
    head = stream.peek(_PEEK)
    return len(head) < _PEEK and not re.search(rb"[\r\n]", head.lstrip(b"\r\n"))


def _read_text(path: str, columns: Columns, layout: Layout, name: str) -> Tables:
    with _open_text(path, layout, name, of_lines=True) as stream:
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
    """Return lines as an Arrow record batch with the column `item`.

    A blank line is a missing item.

    Args:
        data: the bytes of whole lines; the last line may lack its end.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    if not len(ends) or ends[-1] != len(data):
        ends = np.append(ends, len(data))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    # The validity is computed from the offsets. To make an Arrow scalar from a Python value,
    # PyArrow would import pandas if it is installed, which takes longer than reading a small table.
    held = np.diff(offsets) > (np.frombuffer(data, np.uint8)[ends - 1] == ord("\n"))
    lines = pa.StringArray.from_buffers(
        len(ends),
        pa.py_buffer(offsets.tobytes()),
        pa.py_buffer(data),
        pa.py_buffer(np.packbits(held, bitorder="little").tobytes()),
    )
    items = pc.ascii_rtrim(lines, "\n")
    return pa.record_batch({"item": items})


def _read_json(path: str, columns: Columns, layout: Layout, name: str) -> Tables:
    import pyarrow as pa
    import pyarrow.json as arrow_json

    with _open_text(path, layout, name, of_lines=True) as stream:
        sample = _sample(stream, layout, name)
        if not sample:
            return
        resolved = columns.resolve(list(dict.fromkeys(key for row in sample for key in row)), name)
        schema = pa.schema(
            [(column, _json_type(column, resolved, sample, name)) for column in resolved.names()]
        )
        with arrow_file(stream) as file, _json_rows(name) as rows:
            reader = arrow_json.open_json(
                file,
                read_options=arrow_json.ReadOptions(
                    block_size=layout.block_size, use_threads=False
                ),
                # Without a schema Arrow guesses the types: it reads some strings as times, and may
                # guess differently in each block.
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            for batch in reader:
                rows.append(batch.num_rows)
                yield batch, resolved, stream.position


@contextmanager
def _json_rows(name: str) -> Iterator[list[int]]:
    """Turn an `ArrowInvalid` in the `with` block into an `UnreadableFileError`.

    The error says how many rows were read before: Arrow itself knows only the number of a row in
    its block. The context yields a list, to which the caller adds the number of rows of each block.
    An error about a row that is longer than a block is not changed here (see `streams.reading`).

    Args:
        name: the name of the file in the message.
    """
    import pyarrow as pa

    rows: list[int] = []
    try:
        yield rows
    except pa.ArrowInvalid as error:
        if "straddl" in str(error):
            raise
        raise UnreadableFileError(
            f"{name} cannot be read after row {sum(rows)}: {_json_problem(str(error))}"
        ) from error


def _json_problem(text: str) -> str:
    """Return, in words, what is wrong with JSON lines, from the text of an error of Arrow."""
    if changed := re.search(r"Column\(/(.+)\) changed from (\w+) to (\w+)", text):
        column, first, other = changed.groups()
        return f"column {column!r} changed from {first} to {other}: write all its values alike"
    if twice := re.search(r"Column\(/(.+)\) was specified twice", text):
        return f"an object has the column {twice[1]!r} twice"
    if number := re.search(r"Failed to convert JSON to \w+, couldn't parse:\s*(.+)", text):
        return (
            f"{number[1][:_SHOWN]} is no integer of 64 bits as the numbers before it: write all"
            " values of the column as text"
        )
    return "a line is no JSON object: one object a line?"


def _sample(stream: ByteStream, layout: Layout, name: str) -> list[dict[str, Any]]:
    """Return the objects in the first block of JSON lines. They decide the columns and their types.

    Raises:
        UnreadableFileError: a line is no JSON object, or the first line is longer than a block.
        UnicodeDecodeError: a line is not UTF-8.
    """
    size = max(_PEEK, layout.block_size)
    head = stream.peek(size)
    # The last line of the block is left out if it may be incomplete.
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
                f"{name}, line {number}, is no JSON object: one object a line?"
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
            f"{name}: column {column!r} holds lists or objects: write a row for each value, and"
            f" name its client ({opt.client('COL')})"
        )
    # Coordinates are float64 even if the first block has only integers: later coordinates may have
    # fractions.
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
) -> Tables:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    size, done = 0 if path == "-" else _file_size(path) or 0, 0
    with _seekable(path) as place, ExitStack() as stack:

        def opened(**options: Any) -> Any:
            return stack.enter_context(
                parquet.ParquetFile(place, pre_buffer=False, buffer_size=1 << 20, **options)
            )

        file = opened()
        _check_chunks(file, name)
        # This check is left out under privacy: it looks at bytes of rows, and no row may end the
        # run.
        if not private:
            _check_single_parquet(place, file.metadata, name)
        resolved = columns.resolve(file.schema_arrow.names, name)
        _check_kept(file, resolved, name)
        rows, grouped = _parquet_batches(file, resolved, layout.block_size)
        if private:
            private_tables.check_plain(file.schema_arrow, resolved, name)
            # A batch without rows comes first: it shows the columns even of an empty file.
            yield (
                no_rows(
                    pa.schema([file.schema_arrow.field(column) for column in resolved.names()])
                ),
                resolved,
                0,
            )
        elif grouped:
            opened = partial(opened, metadata=file.metadata, read_dictionary=grouped)
            file = opened()
        # several threads cannot read one temporary copy: they would share its position
        readers = [file, opened()] if isinstance(place, str) else [file]
        # With dictionaries, batches are large, because each batch has its own dictionary. With
        # texts, smaller batches take less memory.
        at_once = rows if grouped else max(1, rows // 4)
        for batch in _row_groups(readers, rows, at_once, resolved.names()):
            done += batch.num_rows
            yield batch, resolved, size * done // max(1, file.metadata.num_rows)


def _check_chunks(file: Any, name: str) -> None:
    """Raise an error if the descriptions of columns in a Parquet file are damaged.

    Otherwise `column` of a row group, which is called later, would raise a C++ exception that
    PyArrow does not catch, and the process would end. Reading one row finds the damage with an
    ordinary OSError.

    Args:
        file: the open Parquet file.
        name: the name of the file in messages.

    Raises:
        UnreadableFileError: a row group lacks a column.
        OSError: a description is damaged.
    """
    import pyarrow as pa

    metadata = file.metadata
    groups = range(metadata.num_row_groups)
    if any(metadata.row_group(n).num_columns != metadata.num_columns for n in groups):
        raise UnreadableFileError(f"{name} is damaged: some of its rows lack a column")
    filled = (number for number in groups if metadata.row_group(number).num_rows)
    for number in {*groups[-1:], *islice(filled, 1)}:
        # errors about values are ignored here, because the column may not be needed
        with suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid, UnicodeDecodeError):
            next(file.iter_batches(batch_size=1, row_groups=[number]), None)


_SEVERAL = (
    "is several files behind one another, of which one alone would be read: put them into a folder"
)


def _check_single_parquet(place: Any, metadata: Any, name: str) -> None:
    """Raise an error if a file consists of several Parquet files, one after the other.

    Only the rows of the last of these files would be read: its footer is at the end.

    Args:
        place: the path of the file, or the open file.
        metadata: the metadata of the file.
        name: the name of the file in messages.

    Raises:
        UnreadableFileError: another file ends directly before the place where the last one begins.
    """
    if not metadata.num_row_groups:
        return
    group = metadata.row_group(metadata.num_row_groups - 1)
    ends = [
        (chunk.dictionary_page_offset or chunk.data_page_offset) + chunk.total_compressed_size
        for chunk in map(group.column, range(group.num_columns))
    ]
    with open(place, "rb") if isinstance(place, str) else nullcontext(place) as file:
        footer = file.seek(0, os.SEEK_END) - metadata.serialized_size - 2 * len(_PARQUET)
        start = footer - max(ends)  # the start of the last file
        file.seek(max(0, start - len(_PARQUET)))
        if start > 0 and file.read(2 * len(_PARQUET)) == 2 * _PARQUET:
            raise UnreadableFileError(f"{name} {_SEVERAL}")


def _check_kept(file: Any, columns: Columns, name: str) -> None:
    """Raise an error if Parquet lost the type of a column of durations.

    Parquet keeps categories of durations as categories of integers.

    Args:
        file: the open Parquet file.
        columns: the columns that are read, as `Columns.resolve` returns them.
        name: the name of the file in messages.

    Raises:
        InvalidInputError: a column has lost its type.
    """
    import pyarrow as pa

    written = (file.metadata.metadata or {}).get(b"ARROW:schema")
    if written is None:
        return
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written)))
    except (pa.ArrowException, OSError, ValueError):  # Arrow can read the file without this schema
        return
    for column in columns.names():
        places = schema.get_all_field_indices(column)
        kind = schema.field(places[0]).type if len(places) == 1 else pa.null()
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_kept = not pa.types.is_integer(file.schema_arrow.field(column).type)
        if pa.types.is_duration(kind) and not is_kept:
            raise InvalidInputError(
                f"{name}: column {column!r} is of categories of type {kind}, of which the file"
                " keeps the numbers alone: write it as text"
            )


def _row_groups(
    readers: Sequence[Any], rows: int, at_once: int, columns: Sequence[str]
) -> Iterator[Any]:
    """Yield the columns of a Parquet file in batches of at most `at_once` rows, in order.

    If all row groups have at most `rows` rows, several threads read them, at most one for each of
    `readers`.

    Args:
        readers: the file, opened once for each thread.
        rows: the most rows that a thread reads at a time.
        at_once: the most rows of a batch.
        columns: the names of the columns.
    """
    metadata, threads = readers[0].metadata, min(kernels.num_threads(), len(readers))
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    if threads == 1 or max(sizes, default=0) > rows:
        yield from readers[0].iter_batches(batch_size=at_once, columns=columns)
        return
    parts: list[list[int]] = []
    room = 0
    for number, size in enumerate(sizes):
        if not parts or size > room:
            parts.append([])
            room = rows
        parts[-1].append(number)
        room -= size

    def read(turn: int) -> list[Any]:
        own = readers[turn % threads]
        return list(own.iter_batches(batch_size=at_once, row_groups=parts[turn], columns=columns))

    turns = range(len(parts))
    with ThreadPoolExecutor(threads, thread_name_prefix="fedtally-parquet") as pool:
        begun = deque(pool.submit(read, turn) for turn in turns[:threads])
        for turn in turns:
            yield from begun.popleft().result()  # its reader is free after that
            if turn + threads < len(turns):
                begun.append(pool.submit(read, turn + threads))


def _parquet_batches(file: Any, columns: Columns, block_size: int) -> tuple[int, list[str]]:
    """Return how many rows of a Parquet file to read at a time, and which columns as dictionaries.

    Args:
        file: the open Parquet file. Its first row group that has rows stands for all row groups.
        columns: the columns that are read, as `Columns.resolve` returns them.
        block_size: the rows should take at most about 16 times this number of bytes.
    """
    import pyarrow as pa

    metadata, schema = file.metadata, file.schema_arrow
    names = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    most, fewest = max(1, block_size // 4), max(1, block_size // 32)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    # The first row groups may be empty.
    group = next((group for group in groups if group.num_rows), None)
    if names != schema.names or group is None:  # some columns are nested, or the file has no rows
        return fewest, []
    # Without clients only distinct items get ids, and a dictionary already has the distinct items.
    # With clients each row needs its id, and a dictionary makes that slower.
    is_counted = columns.client is None and group.num_rows <= most
    row_bytes, grouped = 0.0, []
    for name in columns.names():
        chunk, kind = group.column(names.index(name)), schema.field(name).type
        own = chunk.total_uncompressed_size / group.num_rows
        is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
        if pa.types.is_primitive(kind):
            row_bytes += kind.bit_width / 8
        elif not chunk.has_dictionary_page:
            row_bytes += own
        elif is_text and (name,) == columns.items and (own < _SMALL or is_counted):
            grouped.append(name)
            row_bytes += own
        else:  # with most values in a dictionary, a row's bytes without the dictionary are unknown
            row_bytes += own if own >= _SMALL else 16 * block_size / fewest
    return max(1, min(most, int(16 * block_size / max(row_bytes, 1 / 8)))), grouped


def _read_feather(
    path: str, columns: Columns, layout: Layout, name: str, *, private: bool = False
) -> Tables:
    import pyarrow as pa

    size = 0 if path == "-" else _file_size(path) or 0
    most = max(1, layout.block_size // 64)  # the rows of a block if a row takes 64 bytes
    with _seekable(path) as place, _open_feather(place, name) as file:
        _check_single_feather(place, name)
        resolved = columns.resolve(file.schema.names, name)
        schema = pa.schema([file.schema.field(column) for column in resolved.names()])
        if private:
            private_tables.check_plain(file.schema, resolved, name)
            # A batch without rows comes first: it shows the columns even of an empty file.
            yield no_rows(schema), resolved, 0
        for number in range(file.num_record_batches):
            batch = file.get_batch(number).select(schema.names)
            for start in range(0, batch.num_rows, most):
                done = size * (number + min(1, (start + most) / batch.num_rows))
                part = batch.slice(start, most)
                yield part, resolved, int(done / file.num_record_batches)


def _open_feather(place: Any, name: str) -> Any:
    """Open an Arrow file.

    A file on disk is mapped into memory. So if its columns are not compressed, columns that are not
    used are not read.

    Args:
        place: the path of the file, or the open file.
        name: the name of the file in messages.

    Raises:
        UnreadableFileError: the file is an Arrow stream, or a column has a type that cannot be
            read.
    """
    import pyarrow as pa

    if isinstance(place, str):
        place = pa.memory_map(place)
    if place.read(len(_STREAM)) == _STREAM:
        raise UnreadableFileError(
            f"{name} is a stream of Arrow, as Hugging Face writes, and no file: hand it over in"
            " Python, fedtally.estimate(pyarrow.ipc.open_stream(FILE).read_all(), item=COLUMN)"
        )
    try:
        return pa.ipc.open_file(place)
    # Packages such as pandas register types with Arrow. Their own code raises these errors.
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, pa.ArrowException):
            raise
        raise UnreadableFileError(
            f"{name} has a column of a type whose parameters are not known here: write that column"
            " as text"
        ) from error


def _check_single_feather(place: Any, name: str) -> None:
    """Raise an error if a file consists of several Arrow files, one after the other.

    Only the rows of the last of these files would be read: its footer is at the end. To find
    another file, the messages of the first file are skipped, and the bytes after them are searched.

    Args:
        place: the path of the file, or the open file.
        name: the name of the file in messages.

    Raises:
        UnreadableFileError: another file begins after the first one.
    """
    import pyarrow as pa

    # Kept open: leaving its own context would close the file.
    held: Any = nullcontext(pa.PythonFile(place, "r"))
    with pa.memory_map(place) if isinstance(place, str) else held as file:
        file.seek(len(_ARROW) + 2)
        messages = pa.ipc.MessageReader.open_stream(file)
        with suppress(pa.ArrowException, OSError, StopIteration):
            while True:
                messages.read_next_message()
        behind = file.read()
    if _ARROW + _ARROW in behind:
        raise UnreadableFileError(f"{name} {_SEVERAL}")


def column_kinds(path: str, columns: Columns, format: str) -> dict[str, str]:
    """Return a dict from the names of a Parquet or Feather file's columns to the kinds of values.

    Equal values in columns of the same kind are the same item. The kind of integers of any width is
    "integers", and the kind of texts of any form is "text". A column that is missing, or whose name
    several columns have, is left out.

    Args:
        path: the path of the file.
        columns: the columns that are needed.
        format: "parquet" or "feather".

    Raises:
        UnreadableFileError: the file is missing or damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as parquet

    def kind_of(field: Any) -> str:
        kind = field.type
        if is_extension(field):
            return f"values of type {type_name(field)}"
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        if pa.types.is_integer(kind):
            return "integers"
        is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        return "text" if any(holds(kind) for holds in is_text) else f"values of type {kind}"

    with reading(path, "utf8"), _seekable(path) as place:
        if format == "parquet":
            schema = parquet.read_schema(place)
        else:
            with _open_feather(place, path) as file:
                schema = file.schema
        return {
            name: kind_of(schema.field(name))
            for name in columns.names()
            if schema.names.count(name) == 1  # for other columns the reader raises an error later
        }


@contextmanager
def _seekable(path: str) -> Iterator[Any]:
    """Yield the path of a file that can be read from its end, or else an open temporary copy.

    Parquet and Feather are read from their end. So standard input, a pipe, or a file whose suffix
    names a compression is copied first, decompressed.
    """
    if path != "-" and _file_size(path) is not None and compression.named(path) is None:
        yield path
        return
    with tempfile.TemporaryFile() as copy:
        with ByteStream(path, None) as stream:
            while block := stream.read(1 << 22):
                copy.write(block)
        copy.seek(0)
        yield copy


_Reader = Callable[[str, Columns, Layout, str], Tables]
_PRIVATE_READERS: dict[str, _Reader] = {
    "csv": private_tables.read_csv,
    "tsv": private_tables.read_csv,
    "json": private_tables.read_json,
    "text": private_tables.read_text,
    "parquet": partial(_read_parquet, private=True),
    "feather": partial(_read_feather, private=True),
}
_READERS: dict[str, _Reader] = {
    "csv": _read_csv,
    "tsv": _read_csv,
    "json": _read_json,
    "text": _read_text,
    "parquet": _read_parquet,
    "feather": _read_feather,
}
