"""Public lists in files: one word on each line, or a column of a table, written FILE:COLUMN.

The suffix of a file decides how it is read. A file such as ``words.csv`` or ``words.parquet`` is a
table. In ``words.txt``, and in a file without a known suffix, each line is a word, exactly as it
is; if a column is named, such a file is a CSV. The column of a CSV or TSV must be named, unless it
is called ``item``: without this rule the first word of a list that has no header would be taken for
a header.

An item that is not in a list of candidates is never found. So a list of candidates is an error if
it looks like a table, or cannot be read completely.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from fedtally.base.validate import did_you_mean, did_you_mean_file
from fedtally.domain import (
    WRITTEN,
    Dictionary,
    Domain,
    IntegerSet,
    OpenStrings,
    load,
    parse,
)
from fedtally.domain.columns import as_text, holds, places_in, shown, utf8_buffers
from fedtally.errors import InvalidInputError, UnreadableFileError, arg, opt
from fedtally.sources.batches import Batch, Columns, Source
from fedtally.sources.layout import Layout, check_text
from fedtally.sources.memory import from_items
from fedtally.sources.readers import column_names, table_source
from fedtally.sources.streams import ByteStream, reading

# Kinds of domains that `Domain.describe` describes completely.
_WRITTEN_OUT = ("range", "grid", OpenStrings.kind)
_SIGNS = (  # pairs: a pattern, and a message for a list all of whose lines match the pattern
    (r'^".*"$', "is in quotes, as in a CSV"),
    # The next pattern must not match an id of Windows, such as {6B29FC40-...}.
    (r'^\s*\{\s*(".*)?\}\s*$', "is an object of JSON"),
    (r"\t", "holds a tab, as in a table"),
)
_MARK = "\ufeff"  # a byte order mark


def list_path(text: str) -> tuple[str, str | None]:
    """Split a text, FILE or FILE:COLUMN, into the path and the name of the column.

    The column is None if the text names no column. Of several possible paths, the longest one that
    exists is taken. If none exists, the last colon separates path and column.

    >>> list_path("words.parquet:word")
    ('words.parquet', 'word')
    """
    parts = text.split(":")
    # Paths and columns may contain colons. The longest path that exists is taken.
    for end in range(len(parts), 0, -1):
        path, column = ":".join(parts[:end]), ":".join(parts[end:])
        if os.path.exists(path) and (column or end == len(parts)):
            return path, column or None
    path, _, column = text.rpartition(":")
    return (path, column) if path and column else (text, None)


def open_list(value: Any) -> Source:
    """Open a public list of words, of any size, as a source.

    Args:
        value: the path of a file, FILE or FILE:COLUMN, as this module's docstring says; or a column
            of text in memory, such as a list.

    Raises:
        InvalidInputError: the value is neither a path nor a column. Or the file is a CSV or TSV, no
            column is named, and there is no column ``item``. Or a column of plain text is named.
        UnreadableFileError: there is no such file, or it cannot be read.

    >>> [batch.items.to_pylist() for batch in open_list(["tea", "coffee"]).batches()]
    [['tea', 'coffee']]
    """
    if not isinstance(value, str | os.PathLike):
        return from_items(value)
    path, column = list_path(os.fspath(value))
    # Neither a glob nor a synthetic population is a list.
    if not os.path.exists(path) or os.path.isdir(path):
        raise UnreadableFileError(
            f"{os.fspath(value)}: there is no such file; name one with a word on each line, or a"
            " table, FILE or FILE:COLUMN"
        )
    layout = Layout.detect(path, Columns(item=column))
    if column is None and layout.format in ("csv", "tsv"):
        names = column_names(path, layout)
        if "item" not in names:
            listed = ", ".join(map(repr, names[:9]))
            raise InvalidInputError(
                f"{path} is a table by its name, and its first line has the columns {listed}: name"
                f" the column of the list ({path}:COLUMN), or call a list of one word a line"
                f" {os.path.splitext(path)[0]}.txt"
            )
        column = "item"
    source = table_source(path, Columns(item=column, item_option=f"{path}:COLUMN"), layout)

    def read(private: bool) -> Iterator[Batch]:
        with _as_of_lists(path):
            yield from source.read(private)

    return replace(source, read=read)


def read_candidates(value: str | os.PathLike[str], *, is_checked: bool = False) -> Dictionary:
    r"""Read public candidates from a file, and return them as a domain, in the order of the file.

    Args:
        value: the path, FILE or FILE:COLUMN, see `open_list`. A text file must be in UTF-8. White
            space in a line is a part of the candidate.
        is_checked: whether the caller compares the candidates with a digest. Then it is no error if
            all lines look like the lines of a table.

    Raises:
        UnreadableFileError: the file cannot be read.
        InvalidInputError: there are no candidates. Or a candidate is empty, is repeated, contains a
            line end or begins with a byte order mark; the message names the first candidate with
            each of these faults. Or a row of a table has no value. Or the column is missing, or
            must be named. Or the file is not in UTF-8. Or, unless `is_checked`, all lines look like
            the lines of a table: in quotes, with tabs, or in JSON.

    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp(), "drinks.txt")
    >>> _ = file.write_text("tea\ncoffee\n", encoding="utf-8")
    >>> read_candidates(file)
    Dictionary(size=2, public=True)
    """
    path, column = list_path(os.fspath(value))
    if not os.path.exists(path):
        raise UnreadableFileError(f"cannot read {os.fspath(value)}: there is no such file")
    layout = Layout.detect(path, Columns(item=column))
    if layout.format == "text":
        items, row = as_text(_lines(path)), "line"
        if not is_checked:
            _refuse_tables(path, items)
    else:
        items, row = _column(value, path), "row"
    faults = _faults(path, items, row)
    if faults:
        raise InvalidInputError(f"{'; '.join(faults)}; remove such {row}s")
    return Dictionary(items)


def _lines(path: str) -> list[str]:
    """Return the lines of a text file without their ends, and without a byte order mark at the
    start.

    Raises:
        InvalidInputError: the file is empty, or a line is not UTF-8.
        UnreadableFileError: the file cannot be read, or is no text.
    """
    with reading(path, "utf8"), ByteStream(path, "utf8", of_lines=True) as stream:
        data = stream.read()
    if not data:
        raise InvalidInputError(f"{path} is empty; write one item on each line")
    # PAR1 alone may be a word: it is the name of a gene.
    if data.startswith((b"PAR1\x15", b"ARROW1\0")):
        raise UnreadableFileError(
            f"{path} is a table: call it .parquet or .feather, and name its column, FILE:COLUMN"
        )
    check_text(data, path, "; save it as UTF-8")
    try:
        lines = data.decode().split("\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInputError(
            f"line {line} of {path} is not UTF-8; save the file as UTF-8"
        ) from error
    return lines[:-1] if lines[-1] == "" else lines


def _column(value: str | os.PathLike[str], path: str) -> Any:
    """Return a column of a table as an Arrow array of text.

    Args:
        value: FILE or FILE:COLUMN.
        path: the path of the file, for messages.

    Raises:
        InvalidInputError: the table has no rows, or a row has no value in the column.
    """
    import pyarrow as pa

    parts = []
    for batch in open_list(value).batches(may_be_empty=True):
        if batch.dropped.incomplete:
            raise InvalidInputError(f"{path} has rows without a candidate: remove such rows")
        parts.append(as_text(batch.items))
    items = pa.concat_arrays([*parts, pa.array([], pa.large_string())])
    if not len(items):
        raise InvalidInputError(f"{path} is empty; write one item in each row")
    return items


@contextmanager
def _as_of_lists(path: str) -> Iterator[None]:
    """Change errors in the `with` block whose advice names options for the input, not for a list.

    Args:
        path: the path of the list.
    """
    try:
        yield
    except InvalidInputError as error:
        said, named = error.marked, error.options
        if "text_encoding" in named:
            said = f"{path} is no UTF-8 text: save it as UTF-8"
        elif "delimiter" in named:
            said = f"{said.partition('; if it is')[0]}: separate them by commas, or by tabs in .tsv"
        raise type(error)(said) from error


def _refuse_tables(path: str, lines: Any) -> None:
    """Raise InvalidInputError if all lines look like lines of a table: quotes, tabs or JSON.

    Commas are no sign of a table, because a name may contain a comma ("Paris, France").

    Args:
        path: the path of the list, for the message.
        lines: the lines, an Arrow array of text.
    """
    import pyarrow.compute as pc

    first = lines.slice(0, 3).to_pylist()
    what = "is a list of JSON" if _is_json_list(first) else None
    for pattern, said in _SIGNS:
        # The first three lines are checked first, which is fast and enough for most lists.
        if all(re.search(pattern, text) for text in first) and (
            pc.all(pc.match_substring_regex(lines, pattern)).as_py()
        ):
            what = said
    if what is not None:
        raise InvalidInputError(
            f"each line of {path} {what}, and a list has one candidate a line, as it stands: call a"
            " table .csv, .tsv or .jsonl and name its column, FILE:COLUMN"
        )


def _is_json_list(texts: list[str]) -> bool:
    try:
        return len(texts) == 1 and isinstance(json.loads(texts[0]), list)
    except (ValueError, RecursionError):
        return False


def _faults(path: str, items: Any, row: str) -> list[str]:
    """Return messages about candidates that are empty, repeated, or hold a line end.

    A candidate that begins with a byte order mark is a fault, too.

    There is at most one message for each kind of fault. It names the first such candidate.

    Args:
        path: the path of the list.
        items: the candidates, an Arrow array of text.
        row: what the messages call a row: "line" or "row".

    >>> _faults("words.txt", as_text(["1", "", "1", "", ""]), "line")
    ['line 2 of words.txt is empty (3 in all)', "line 3 of words.txt repeats line 1, '1'"]
    """
    first = places_in(items, items)
    is_empty = np.diff(utf8_buffers(items)[1]) == 0
    is_repeated = (first != np.arange(len(items))) & ~is_empty
    is_broken, is_marked = holds(items, "[\r\n]"), holds(items, f"^{_MARK}")
    faults = []
    for places, fault in (
        (np.flatnonzero(is_empty), "is empty"),
        (np.flatnonzero(is_repeated), "repeats {row} {first}, {item}"),
        (np.flatnonzero(is_broken), "holds a line end, {item}"),
        (
            np.flatnonzero(is_marked),
            "begins with a byte order mark, as if files were joined there",
        ),
    ):
        if places.size:
            place = int(places[0])
            said = fault.format(row=row, first=first[place] + 1, item=shown(items, place))
            in_all = f" ({places.size:,} in all)" if places.size > 1 else ""
            faults.append(f"{row} {place + 1} of {path} {said}{in_all}")
    return faults


def domain_of(value: Any) -> Domain | str:
    """Return the domain that a value names; for "input", return "input".

    "input" means the distinct items of the input, which has not been read at this point.

    Args:
        value: a `Domain`; or "input"; or "open", which gives `OpenStrings`; or a text that
            `fedtally.domain.parse` reads; or the path of a list of candidates, see
            `read_candidates`; or a column of distinct items, all text or all integers.

    Raises:
        InvalidInputError: the value names no domain.
        UnreadableFileError: the file cannot be read.

    >>> domain_of(["tea", "coffee"]).size, domain_of([3, 9]), domain_of("range:1..9").size
    (2, IntegerSet(size=2, public=True), 9)
    """
    if isinstance(value, Domain):
        return value
    # The type is checked first: with ==, a column would compare each of its values with the text.
    if isinstance(value, str) and value == OpenStrings.kind:
        return OpenStrings()
    if isinstance(value, str) and (value == "input" or value.startswith(WRITTEN)):
        return value if value == "input" else parse(value)
    if isinstance(value, str | os.PathLike):
        if os.path.exists(list_path(os.fspath(value))[0]):
            return read_candidates(value)
        if isinstance(value, os.PathLike):
            raise UnreadableFileError(f"domain {os.fspath(value)}: there is no such file")
        if value.strip().startswith(WRITTEN):
            return parse(value)
        meant = did_you_mean(value, ("input", "open")) or did_you_mean_file(value)
        raise InvalidInputError(
            f"cannot read the domain {value!r}: there is no such file; give the path of a file,"
            " FILE or FILE:COLUMN, a list of items, 'input', 'open', range:FIRST..LAST or"
            f" grid:SOUTH..NORTH,WEST..EAST,STEP{meant}"
        )
    if isinstance(value, bytes | Mapping) or not hasattr(value, "__len__"):
        raise InvalidInputError(
            f"{arg.domain} must be a Domain such as fedtally.Dictionary(...), a list of items, a"
            f" path, or text, got {type(value).__name__}"
        )
    first: Any = next(iter(value), None)
    # An element of an Arrow column is not a Python object yet.
    first = first.as_py() if hasattr(first, "as_py") else first
    # The order of candidates is a part of a plan. A set has no fixed order, so it is sorted. It is
    # sorted as text: values of several types, which are refused below, have no order.
    items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
    if first is None or isinstance(first, str):
        return Dictionary(items)
    # Public: the candidates are what the caller passed, and were not taken from the clients.
    return IntegerSet(items, public=True)


def of_description(meta: Mapping[str, Any], candidates: str | os.PathLike[str] | None) -> Domain:
    """Return the domain that a plan describes.

    The plan describes a range, a grid or an open domain completely. Of a list of candidates it has
    only a digest. The candidates are then read from a file, and compared with the digest.

    Args:
        meta: the description in the plan, as `Domain.describe` returned it.
        candidates: the path of the list of candidates, see `read_candidates`; None: there is no
            file.

    Raises:
        InvalidInputError: a file is needed and `candidates` is None, or no file is needed and
            `candidates` is given. Or the file has other candidates than the plan. Or the plan's
            candidates are the items of one input and not public, so nobody else can have them.
        UnreadableFileError: the file cannot be read.

    >>> from fedtally.domain import IntegerRange
    >>> of_description(IntegerRange(1, 9).describe(), None)
    IntegerRange(1, 9)
    """
    if meta.get("kind") in _WRITTEN_OUT:
        if candidates is not None:
            raise InvalidInputError(
                "the plan holds its candidates as a whole: leave out the file"
                f" {os.fspath(candidates)}"
            )
        return load(meta, {})
    if meta.get("kind") not in (Dictionary.kind, IntegerSet.kind) or not meta.get("public"):
        raise InvalidInputError(
            "the candidates of this plan are the distinct items of one input, which nobody else"
            f" has: plan with {opt.domain('FILE')}, range:FIRST..LAST or grid:..."
        )
    if candidates is None:
        raise InvalidInputError(
            "the plan holds only the digest of its candidates: name the file that it was planned"
            f" with, one candidate a line, or FILE:COLUMN ({opt.candidates})"
        )
    domain: Domain = read_candidates(candidates, is_checked=True)
    if meta.get("kind") == IntegerSet.kind:
        domain = IntegerSet(domain.labels(range(domain.size)), public=True)
    if any(meta.get(name) != value for name, value in domain.describe().items()):
        raise InvalidInputError(
            f"{os.fspath(candidates)} holds other candidates than those of the plan: the same lines"
            " in the same order are needed"
        )
    return domain
