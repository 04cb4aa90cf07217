"""Readers of CSV, TSV, JSON lines, Parquet, Feather and plain text, block by block.

`private_tables` has those that read every row by itself, for differential privacy.
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
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.kernels.rows import quotes_are_closed
from fedtally.sources import compression, private_tables
from fedtally.sources.batches import Batch, Columns, Source, no_rows, to_batch
from fedtally.sources.extensions import is_extension, type_name
from fedtally.sources.layout import Layout, Tables, check_text
from fedtally.sources.streams import ByteStream, reading

_PEEK = 1 << 16  # bytes that are looked at before the format is believed
# Bytes of a line, or of a field in quotes, beyond which the file is taken for something else. Until
# it ends, a line or field is held in memory.
_LONGEST_LINE = 1 << 26
_LONGEST_FIELD = 1 << 26
_PARQUET = b"PAR1"  # the first bytes of a Parquet file, and its last ones
_ARROW = b"ARROW1"  # of an Arrow file
_STREAM = b"\xff\xff\xff\xff"  # of a stream of Arrow
_SHOWN = 60  # characters of a value in a message
_SMALL = 8  # bytes of a value in a Parquet file that say that most values are in its dictionary


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
    is_named = layout.header and layout.format in ("csv", "tsv")

    def read(private: bool) -> Iterator[Batch]:
        nonlocal reads
        reads += 1
        if size is None and reads > 1:  # the first reading took the bytes of the pipe away
            raise InvalidInputError(f"{name} can be read only once: save it to a file first")
        has_header = is_named and not private  # no note may depend on a row
        with reading(name, layout.encoding):
            readers = _READERS | _PRIVATE_READERS if private else _READERS
            for table, resolved, position in readers[layout.format](path, columns, layout, name):
                yield to_batch(table, resolved, name, position, private, has_header)

    return Source(name, read, size_bytes=size, repeatable=size is not None)


def _file_size(path: str) -> int | None:
    """Return the size of a regular file, or None for a pipe."""
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
        if is_fast:  # only one thread knows the number of a broken row: it reads the file again
            for _ in _rows_of_csv(path, columns, layout, name, is_fast=False):
                pass
        raise


def _rows_of_csv(
    path: str, columns: Columns, layout: Layout, name: str, *, is_fast: bool
) -> Tables:
    """Yield the rows of a CSV.

    Args:
        path: the path of the file.
        columns: the columns of the item, client, silo, round and count.
        layout: the layout of the file.
        name: the file in messages.
        is_fast: let several threads read, and yield many blocks at once.
    """
    with _open_text(path, layout, name) as stream:
        header = _first_row(stream, layout)
        if not header:
            return
        names = (
            header if layout.header else [str(position) for position in range(1, len(header) + 1)]
        )
        resolved = columns.resolve(names, name)
        if layout.header and _is_one_line(stream):  # Arrow would take it for a damaged file
            return
        # Blank lines before the first row are no rows.
        is_single = len(names) == 1 and stream.peek(1)[:1] not in (b"\n", b"\r")
        # Arrow does not say that a quote was left open, so the bytes that it takes are watched.
        quotes = stream.watch = _Quotes(layout.delimiter)
        reader = _csv_reader(
            stream, resolved.names(), None if layout.header else names, layout, is_single, is_fast
        )
        for batch in _gathered(reader, 4 * layout.block_size) if is_fast else reader:
            quotes.check(name)
            yield batch, resolved, stream.position
        quotes.check(name, ended=True)


class _Quotes:
    """Follows the quotes of a CSV to find one that is left open.

    Arrow takes everything from an open quote to the next quote, or to the end, for one value. So a
    single open quote would silently swallow rows.

    A quote at the start of a field opens it. Two quotes inside it stand for one. The quote that
    closes it is followed by a delimiter or the end of a line. Elsewhere (5" wide) a quote is a
    character like others.
    """

    def __init__(self, delimiter: str) -> None:
        self._delimiter = delimiter
        ends = re.escape(delimiter.encode()) + rb"\n\r"
        plain, quoted = rb'[^"' + ends + rb"][^" + ends + rb"]*+", rb'"[^"]*+(?:""[^"]*+)*+"'
        self._whole = re.compile(rb"(?:(?:" + plain + rb"|" + quoted + rb"|)[" + ends + rb"])*+")
        self._rest = b""  # from the start of a field that is not whole yet
        self._broken = False

    def __call__(self, taken: bytes) -> None:
        """Take the next bytes."""
        if self._broken:
            return
        data = self._rest + taken
        cut = data.rfind(b"\n") + 1
        # most tables need no closer look, which takes many times as long
        self._rest = self._behind(data[cut:] if self._is_simple(data[:cut]) else data)
        # The last quote may be half of a pair, or close the field: only the next bytes tell.
        inside = self._rest[1:].replace(b'""', b"").removesuffix(b'"')
        self._broken = self._rest.startswith(b'"') and (
            b'"' in inside or len(self._rest) > _LONGEST_FIELD
        )

    def check(self, name: str, ended: bool = False) -> None:
        """Raise UnreadableFileError if a quote was closed inside a field, or is open at the end."""
        if self._broken or (ended and self._behind(self._rest + b"\n")):
            raise UnreadableFileError(
                f'{name}: a quote (") that starts a field is not closed at the end of one; close'
                " it, or double the quotes that belong to a value and put quotes around it"
            )

    def _is_simple(self, data: bytes) -> bool:
        """Return whether all quotes in whole lines are in order, and no field is left open."""
        return quotes_are_closed(data, self._delimiter)

    def _behind(self, data: bytes) -> bytes:
        """Return the bytes that follow the whole fields at the start."""
        whole = self._whole.match(data)
        return data[whole.end() :] if whole else data


def _gathered(batches: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield the same rows in batches of about `size` bytes, so that an item is in few of them."""
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
    stream: ByteStream,
    wanted: list[str],
    names: list[str] | None,
    layout: Layout,
    is_single: bool,
    use_threads: bool,
) -> Any:
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    file: Any = pa.PythonFile(stream, mode="r")
    return arrow_csv.open_csv(
        file,
        read_options=arrow_csv.ReadOptions(
            block_size=layout.block_size, use_threads=use_threads, column_names=names
        ),
        # Without newlines_in_values a block that ends inside quotes would be cut wrongly. In the
        # only column of a table an empty line is a row whose item is missing.
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
    """Return the names in the first row of a CSV or TSV; none if it has no row."""
    with reading(path, layout.encoding), _open_text(path, layout, path) as stream:
        return _first_row(stream, layout)


def _first_row(stream: ByteStream, layout: Layout) -> list[str]:
    """Return the fields of the first row that is not blank; empty if there is none."""
    lines = stream.peek(max(_PEEK, layout.block_size)).splitlines(keepends=True)
    rows = csv.reader((line.decode() for line in lines), delimiter=layout.delimiter)
    return next((row for row in rows if row), [])


def _is_one_line(stream: ByteStream) -> bool:
    """Return whether nothing ends the first line that is not blank: there is no other."""
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
    """Return the lines of data that ends with a line as a record batch.

    A blank line is a missing item.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n")) + 1
    if not len(ends) or ends[-1] != len(data):
        ends = np.append(ends, len(data))
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    # Said by their offsets: to make a scalar of Python's text or None, PyArrow imports pandas where
    # it is installed, which takes longer than a small table.
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
        file: Any = pa.PythonFile(stream, mode="r")
        with _json_rows(name) as rows:
            reader = arrow_json.open_json(
                file,
                read_options=arrow_json.ReadOptions(
                    block_size=layout.block_size, use_threads=False
                ),
                # Without a schema Arrow guesses: it makes timestamps of some strings, and may guess
                # differently from block to block.
                parse_options=arrow_json.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            for batch in reader:
                rows.append(batch.num_rows)
                yield batch, resolved, stream.position


@contextmanager
def _json_rows(name: str) -> Iterator[list[int]]:
    """Add to an error of Arrow the number of rows that were read before it.

    Arrow itself counts the rows within a block.
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
    """Return what is wrong with JSON lines, from what Arrow says, in words of its own."""
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
    """Return the objects of the first block, which decide the columns and their types."""
    size = max(_PEEK, layout.block_size)
    head = stream.peek(size)
    # Unless the file ends in it, the last line of the block is cut: leave it out.
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
            f"{name}: column {column!r} holds lists or objects: one plain value a row is needed"
        )
    # Coordinates are float64 even where the first block holds whole numbers only.
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
        if not private:  # an index may hold what the bytes of several files look like
            _check_single_parquet(place, file.metadata, name)
        resolved = columns.resolve(file.schema_arrow.names, name)
        _check_kept(file, resolved, name)
        rows, grouped = _parquet_batches(file, resolved, layout.block_size)
        if private:
            private_tables.check_plain(file.schema_arrow, resolved, name)
            # First a batch without rows: the caller learns the columns of an empty file, too.
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
        # a temporary copy has one position for all its readers
        readers = [file, opened()] if isinstance(place, str) else [file]
        # A dictionary comes with each batch. Texts take less memory in smaller ones.
        at_once = rows if grouped else max(1, rows // 4)
        for batch in _row_groups(readers, rows, at_once, resolved.names()):
            done += batch.num_rows
            yield batch, resolved, size * done // max(1, file.metadata.num_rows)


def _check_chunks(file: Any, name: str) -> None:
    """Refuse damaged descriptions of columns, whose fields are looked at later.

    PyArrow lets a C++ exception pass where `column` of a row group reads them, which would end the
    process. A reader of rows reads them, too, and raises its OSError; but not if columns lack.
    """
    import pyarrow as pa

    metadata = file.metadata
    groups = range(metadata.num_row_groups)
    if any(metadata.row_group(n).num_columns != metadata.num_columns for n in groups):
        raise UnreadableFileError(f"{name} is damaged: some of its rows lack a column")
    filled = (number for number in groups if metadata.row_group(number).num_rows)
    for number in {*groups[-1:], *islice(filled, 1)}:
        # a column that nobody may ask for, and texts that are none: both are looked at later
        with suppress(pa.ArrowNotImplementedError, pa.ArrowInvalid, UnicodeDecodeError):
            next(file.iter_batches(batch_size=1, row_groups=[number]), None)


_SEVERAL = (
    "is several files behind one another, of which one alone would be read: put them into a folder"
)


def _check_single_parquet(place: Any, metadata: Any, name: str) -> None:
    """Refuse Parquet files behind one another: the last one's footer would read the first's rows.

    Args:
        place: the path of the file, or the file.
        metadata: the metadata of the file.
        name: the file in messages.
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
        start = footer - max(ends)  # of the last file
        file.seek(max(0, start - len(_PARQUET)))
        if start > 0 and file.read(2 * len(_PARQUET)) == 2 * _PARQUET:
            raise UnreadableFileError(f"{name} {_SEVERAL}")


def _check_kept(file: Any, columns: Columns, name: str) -> None:
    """Refuse a column whose type Parquet lost: of categories of durations it keeps the numbers."""
    import pyarrow as pa

    written = (file.metadata.metadata or {}).get(b"ARROW:schema")
    if written is None:
        return
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written)))
    except (pa.ArrowException, OSError, ValueError):  # Arrow reads the file without it
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
    """Yield the columns of a Parquet file in batches of at most `at_once` rows.

    Where row groups are smaller than `rows`, each reader reads some of them at a time.

    Args:
        readers: the file, opened once for each thread.
        rows: the most rows that a reader reads at a time, if row groups are no larger.
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
            yield from begun.popleft().result()  # then its reader is free
            if turn + threads < len(turns):
                begun.append(pool.submit(read, turn + threads))


def _parquet_batches(file: Any, columns: Columns, block_size: int) -> tuple[int, list[str]]:
    """Return the number of rows to read at a time, and the columns to read as dictionaries.

    Args:
        file: an open Parquet file. Its first row group with rows stands for all of them.
        columns: resolved.
        block_size: a sixteenth of the bytes of a batch, about.
    """
    import pyarrow as pa

    metadata, schema = file.metadata, file.schema_arrow
    names = [metadata.schema.column(place).path for place in range(metadata.num_columns)]
    most, fewest = max(1, block_size // 4), max(1, block_size // 32)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    group = next((group for group in groups if group.num_rows), None)  # the first ones may be empty
    if names != schema.names or group is None:  # some columns are nested, or all are empty
        return fewest, []
    # Without clients only distinct items become ids, which a dictionary already has; with clients
    # each row needs an id, and a dictionary makes that slower.
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
        else:  # what a row takes outside of the dictionary is not known where most values are in it
            row_bytes += own if own >= _SMALL else 16 * block_size / fewest
    return max(1, min(most, int(16 * block_size / max(row_bytes, 1 / 8)))), grouped


def _read_feather(
    path: str, columns: Columns, layout: Layout, name: str, *, private: bool = False
) -> Tables:
    import pyarrow as pa

    size = 0 if path == "-" else _file_size(path) or 0
    most = max(1, layout.block_size // 64)  # rows, as if one took 64 bytes
    with _seekable(path) as place, _open_feather(place, name) as file:
        _check_single_feather(place, name)
        resolved = columns.resolve(file.schema.names, name)
        schema = pa.schema([file.schema.field(column) for column in resolved.names()])
        if private:
            private_tables.check_plain(file.schema, resolved, name)
            # First a batch without rows: the caller learns the columns of an empty file, too.
            yield no_rows(schema), resolved, 0
        for number in range(file.num_record_batches):
            batch = file.get_batch(number).select(schema.names)
            for start in range(0, batch.num_rows, most):
                done = size * (number + min(1, (start + most) / batch.num_rows))
                part = batch.slice(start, most)
                yield part, resolved, int(done / file.num_record_batches)


def _open_feather(place: Any, name: str) -> Any:
    """Open an Arrow file. A file on disk is mapped into memory.

    If it is not compressed, columns that nobody uses are then not read.
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
    # Packages such as pandas register types with Arrow, and their readers raise errors of Python.
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, pa.ArrowException):
            raise
        raise UnreadableFileError(
            f"{name} has a column of a type whose parameters are not known here: write that column"
            " as text"
        ) from error


def _check_single_feather(place: Any, name: str) -> None:
    """Refuse Arrow files behind one another: the last one's footer would read the first's rows.

    The messages of a file end where its footer begins. This looks at their places alone.
    """
    import pyarrow as pa

    held: Any = nullcontext(pa.PythonFile(place, "r"))  # whose end would close the file
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
    """Return the kind of values that each of `columns` has in a file with types, by its name.

    Columns of one kind write equal values alike. The kind of integers of any width is "integers",
    and that of texts of any layout is "text".

    Raises:
        UnreadableFileError: the file is missing, or damaged.
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
            if schema.names.count(name) == 1  # of others the reader says what is wrong
        }


@contextmanager
def _seekable(path: str) -> Iterator[Any]:
    """Yield the path, or a temporary copy of a stream, since Parquet is read from its end."""
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
