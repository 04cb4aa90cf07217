"""The way in which a table is written: its format, delimiter, header and encoding."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedtally.errors import InvalidInputError
from fedtally.sources.batches import Columns
from fedtally.sources.streams import check_encoding

# The format of each suffix, and of each name that the options take.
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

Tables = Iterator[tuple[Any, Columns, int]]  # record batch, resolved columns, bytes read so far


@dataclass(frozen=True)
class Layout:
    """The way in which a table is written.

    `block_size` is the number of bytes that are read at once. It bounds the length of a row of CSV
    or JSON. It also bounds the memory: Arrow reads these two formats 32 blocks ahead.

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


def is_named_gzip(path: str) -> bool:
    """Return whether a path ends as that of a gzip file.

    >>> is_named_gzip("Clicks.CSV.GZ")
    True
    """
    return path.lower().endswith(".gz")
