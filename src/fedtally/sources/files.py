"""Several files as one source: the files that a glob matches, or all files in a folder.

A glob is a path with ``*``, ``?`` or ``[...]`` that stands for all files whose names match.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fedtally.errors import InvalidInputError, UnreadableFileError, opt
from fedtally.sources.batches import Batch, Columns, Source
from fedtally.sources.layout import TYPED, Layout
from fedtally.sources.readers import column_kinds, table_source

_NULL = "__HIVE_DEFAULT_PARTITION__"  # what Hive and Spark write for a missing value
# The most files and folders of a source; more are probably a whole disk, named by mistake.
_MOST_ENTRIES = 100_000


def open_files(
    pattern: str,
    columns: Columns | None = None,
    *,
    format: str | None = None,
    delimiter: str | None = None,
    header: bool = True,
    encoding: str = "utf8",
) -> Source:
    """Open all files that a glob matches, or that are in a folder, as one source, sorted by path.

    All files must have one format, and the columns of items and of clients must have the same type
    in all files. Otherwise the integer 7 in one file and the text "7" in another file would be two
    clients. Under privacy JSON lines are not compared: there, both are the same client.

    Hive, Spark and DuckDB write folders with names such as ``day=2026-11-24``. The column of the
    rounds or of the silos may be such a ``day``: all rows of a file then have the value in the name
    of its folder. If the files themselves have a column ``day``, that column is used. Under privacy
    no row of JSON lines may decide this for others: there, each row with an entry ``day`` has that
    value, and each other row has the folder's.

    Args:
        pattern: a path with ``*``, ``?`` or ``[...]``; ``**`` stands for any number of folders. Or
            a folder: all files in it and in its subfolders, except files and folders whose name
            begins with ``.`` or ``_``. Or one file.
        columns: the columns of the item, client, silo, round and count. For several tables, the
            item's column must be named, because tables may differ in their columns.
        format: the format of all files, a name that `open_source` takes. None: the suffixes decide.
        delimiter: the character between the fields of CSV or TSV; None: the default of the format.
        header: whether the first row of each CSV or TSV names the columns.
        encoding: the character encoding of CSV, TSV, JSON lines and text.

    Raises:
        InvalidInputError: an option is unknown or does not fit the format, the files differ in
            format, or there are several tables and the item's column is not named. When the source
            is read: a column has different types in two files.
        UnreadableFileError: no file matches, the folder has no file or cannot be read, there are
            more than 100,000 files and folders, or a suffix belongs to a format that is not
            supported.
    """
    columns = columns or Columns()
    paths = _paths(pattern)
    written: dict[str, Any] = {
        "format": format,
        "delimiter": delimiter,
        "header": header,
        "encoding": encoding,
    }
    layouts = {path: Layout.detect(path, columns, **written) for path in paths}
    first = _one_format(layouts, pattern)
    if len(paths) > 1 and first != "text" and columns.item is None:
        raise InvalidInputError(
            f"{pattern} names {len(paths)} tables: which column is the item? ({opt.item})"
        )
    sources = [
        table_source(path, replace(columns, folders=_folders(path)), layout)
        for path, layout in layouts.items()
    ]
    sizes = [source.size_bytes for source in sources]
    total = None if None in sizes else sum(size or 0 for size in sizes)

    def read(private: bool) -> Iterator[Batch]:
        if first in TYPED:
            _check_types(paths, columns, first)
        done = 0
        types: list[bool | None] | None = None
        for source in sources:
            for batch in source.read(private):
                # Types are not compared here under privacy, where no row may end the run. There it
                # is not needed: in text formats all values are text, and `_check_types` has
                # compared the types of Parquet and Feather files.
                if len(batch) and not private:
                    types = _same_types(batch, types, source.name, pattern)
                yield replace(batch, bytes_read=done + batch.bytes_read)
            done += source.size_bytes or 0

    return Source(pattern, read, total, repeatable=all(each.repeatable for each in sources))


def _one_format(layouts: dict[str, Layout], pattern: str) -> str:
    """Return the format of all files; raise InvalidInputError if they differ.

    Args:
        layouts: the layout of each file, by its path.
        pattern: the glob or folder, for the message.
    """
    first, *others = layouts
    for path in others:
        if layouts[path].format != layouts[first].format:
            raise InvalidInputError(
                f"{first} is {layouts[first].format} and {path} is {layouts[path].format}: the"
                f" files of {pattern} must have one format; name those that you mean, as"
                f" '{_example(pattern, first)}'"
            )
    return layouts[first].format


def _same_types(
    batch: Batch, types: list[bool | None] | None, name: str, pattern: str
) -> list[bool | None]:
    """Return two flags: whether a batch's items are integers, and whether its clients are integers.

    The second flag is None if there is no column of clients.

    Args:
        batch: the batch, with at least one row.
        types: the result for the batch before; None: this is the first batch.
        name: the name of the batch's file, for the message.
        pattern: the glob or folder, for the message.

    Raises:
        InvalidInputError: the result differs from `types`.
    """
    found = [_is_integer(part) for part in (batch.items, batch.clients)]
    if types is not None and found != types:
        raise InvalidInputError(
            f"{name}: a column holds integers in one file of {pattern} and text in another; write"
            " it alike in all of them"
        )
    return found


def _paths(pattern: str) -> list[str]:
    """Return the sorted paths of the files that a glob, a folder or a file's path stands for.

    Raises:
        UnreadableFileError: no file matches the glob or is in the folder, there are more than
            100,000 files and folders, or a folder cannot be read.
    """
    if os.path.isfile(pattern):  # checked first, because the name of a file may have brackets
        return [pattern]
    if not os.path.isdir(pattern):
        found = list(islice(glob.iglob(pattern, recursive=True), _MOST_ENTRIES + 1))
        _check_number(len(found), pattern)
        paths = sorted(path for path in found if os.path.isfile(path))
        if not paths:
            raise UnreadableFileError(f"no file matches {pattern}")
        return paths
    paths, number = [], 0
    for folder, folders, names in os.walk(pattern, onerror=_refuse):
        number += len(folders) + len(names)
        _check_number(number, pattern)
        # The list is changed in place: `os.walk` then visits only these folders.
        folders[:] = [name for name in folders if not _is_hidden(name)]
        paths += [os.path.join(folder, name) for name in names if not _is_hidden(name)]
    if not paths:
        raise UnreadableFileError(f"{pattern} is a folder without files: name a file or a folder")
    return sorted(paths)


def _check_number(number: int, pattern: str) -> None:
    if number > _MOST_ENTRIES:
        raise UnreadableFileError(
            f"{pattern} names more than {_MOST_ENTRIES:,} files and folders: name the folder of one"
            " table"
        )


def _refuse(error: OSError) -> None:
    """Raise UnreadableFileError for a folder that cannot be read; os.walk alone would ignore it."""
    raise UnreadableFileError(
        f"{error.filename} cannot be read: {error.strerror}; name the files that you mean"
    ) from error


def _is_hidden(name: str) -> bool:
    """Return whether the name of a file or folder says that it is no data, such as Spark's
    _SUCCESS.
    """
    return name.startswith((".", "_"))


def _example(pattern: str, path: str) -> str:
    """Return a glob for the files that have the same suffix as `path`, for a message."""
    name = f"*{os.path.splitext(path)[1]}"
    return os.path.join(pattern if os.path.isdir(pattern) else os.path.dirname(pattern), name)


def _folders(path: str) -> tuple[tuple[str, str | None], ...]:
    """Return the columns that the names of a file's folders state, as pairs of name and value.

    The value is None if the folder's name has `_NULL`, the sign for a missing value.

    >>> _folders("visits/day=2026-11-24/city=S%C3%A3o Paulo/part-0.parquet")
    (('day', '2026-11-24'), ('city', 'São Paulo'))
    """
    pairs = (part.partition("=") for part in Path(path).parent.parts if "=" in part)
    return tuple((name, None if value == _NULL else unquote(value)) for name, _, value in pairs)


def _is_integer(part: object) -> bool | None:
    import pyarrow as pa

    return None if part is None else pa.types.is_integer(getattr(part, "type", None))


def _check_types(paths: list[str], columns: Columns, format: str) -> None:
    """Raise InvalidInputError if a column has different types in two Parquet or Feather files."""
    first = column_kinds(paths[0], columns, format)
    for path in paths[1:]:
        for name, kind in column_kinds(path, columns, format).items():
            if (other := first.get(name, kind)) != kind:
                raise InvalidInputError(
                    f"{path}: the column {name!r} holds {kind} there and {other} in {paths[0]};"
                    " write it alike in all files"
                )
