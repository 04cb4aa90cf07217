"""`Layout`: the format, delimiter, header and encoding of a table."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fedtally.errors import InvalidInputError, UnreadableFileError, arg, opt
from fedtally.sources.batches import Columns
from fedtally.sources.compression import without_suffix
from fedtally.sources.streams import BLOCK, check_encoding

# The format for each suffix of a file name. The option `format` takes the same suffixes.
_FORMATS = {
    "csv": "csv",
    "tsv": "tsv",
    "tab": "tsv",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "parquet": "parquet",
    "pq": "parquet",
    "feather": "feather",
    "arrow": "feather",
    "ipc": "feather",
    "text": "text",
}
# Formats in which columns have types. A column must have the same type in all files of a glob.
TYPED = ("parquet", "feather")

# Messages for files that cannot be read; each says what to do.
_SPREADSHEET = (
    "is a spreadsheet: save the sheet as CSV, or hand it over in Python,"
    " fedtally.estimate(pandas.read_excel(FILE), item=COLUMN)"
)
_DATABASE = (
    "is an SQLite database: pipe a table of it in, sqlite3 -csv -header FILE 'SELECT * FROM TABLE'"
    " | fedtally estimate - --item COLUMN"
)
_ARCHIVE = "is an archive: unpack it, and name its files"
_PACKED = "is compressed as is not read here: unpack it, or compress it as .gz, .bz2, .xz or .zst"
_OTHER = (
    "is of a format that is not read: write it as Parquet or CSV, or hand a data frame to"
    " fedtally.estimate"
)
_BY_SUFFIX = {
    **dict.fromkeys(("xlsx", "xls", "xlsm", "ods"), _SPREADSHEET),
    **dict.fromkeys(("db", "sqlite", "sqlite3"), _DATABASE),
    **dict.fromkeys(("zip", "tar", "tgz", "tbz2", "txz", "7z", "rar"), _ARCHIVE),
    **dict.fromkeys(("lz4", "br", "z", "lzma", "lz", "lzo", "sz", "snappy"), _PACKED),
    **dict.fromkeys(("gz", "bz2", "xz", "zst"), f"{_PACKED}, once"),
    **dict.fromkeys(("orc", "avro", "dta", "sav", "sas7bdat", "rds", "pkl", "h5", "npy"), _OTHER),
}
_BY_CONTENT = {
    b"PAR1\x15": f"is a Parquet file: use {opt.format('parquet')}",
    b"ARROW1\0": f"is an Arrow (Feather) file: use {opt.format('feather')}",
    b"FEA1\0": "is a Feather file of version 1: write it anew with a current pandas or pyarrow",
    b"SQLite format 3\0": _DATABASE,
    b"PK\x03\x04": f"{_ARCHIVE}; or it {_SPREADSHEET}",
}

_WIDE = f" (then say {opt.text_encoding('utf-16')})"

# Yields a record batch, the columns (see `Columns.resolve`) and the number of bytes read so far.
Tables = Iterator[tuple[Any, Columns, int]]


@dataclass(frozen=True)
class Layout:
    """The format of a file, and how its text is to be read.

    Args:
        format: "csv", "tsv", "json", "parquet", "feather" or "text".
        delimiter: the character between the fields of CSV or TSV.
        header: whether the first row of CSV or TSV names the columns.
        encoding: the character encoding of CSV, TSV, JSON lines and text.
        block_size: the number of bytes that are read at once (a block). Without privacy, a row of
            CSV, TSV or JSON lines must not be longer than a block. The block size also bounds the
            memory then, because Arrow reads these formats 32 blocks ahead.

    >>> Layout.detect("clicks.tsv.gz", Columns()).format
    'tsv'
    >>> Layout.detect("-", Columns()).format, Layout.detect("-", Columns(item="url")).format
    ('text', 'csv')
    """

    format: str
    delimiter: str = ","
    header: bool = True
    encoding: str = "utf8"
    block_size: int = BLOCK

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
        r"""Return the layout of a file by its options and its suffix; the file is not opened.

        Args:
            path: the path of the file, or "-" for standard input.
            columns: the columns that are read.
            format: a format or a suffix; None: the suffix of the path decides. With an unknown
                suffix the format is "csv" if a column or a delimiter is named, otherwise "text".
            delimiter: the character between fields, ``\t`` for a tab; None: the default of the
                format.
            header: whether the first row names the columns.
            encoding: the character encoding of text.

        Raises:
            InvalidInputError: an option is unknown, or does not fit the format.
            UnreadableFileError: the suffix belongs to a format that is not supported.
        """
        check_encoding(encoding)
        if format is None:
            suffix = os.path.splitext(without_suffix(path.lower()))[1]
            if (way_out := _BY_SUFFIX.get(suffix[1:])) is not None:
                raise UnreadableFileError(f"{path} {way_out}")
            chosen = _FORMATS.get(suffix[1:]) or ("csv" if columns.names() or delimiter else "text")
        elif format in _FORMATS:
            chosen = _FORMATS[format]
        else:
            raise InvalidInputError(
                f"{arg.format} must be csv, tsv, json, parquet, feather or text, got {format!r}"
            )
        if chosen == "text" and columns.names():
            raise InvalidInputError(
                f"plain text has one item a line and no column {columns.names()[0]!r}; use"
                f" {opt.format('csv')}"
            )
        if chosen not in ("csv", "tsv") and delimiter:
            raise InvalidInputError(
                f"the format {chosen} has no delimiter; leave it out, or use {opt.format('csv')}"
            )
        return cls(chosen, _delimiter(delimiter, chosen), header, encoding)


def _delimiter(delimiter: str | None, format: str) -> str:
    chosen = {None: "\t" if format == "tsv" else ",", "\\t": "\t"}.get(delimiter, delimiter)
    if chosen is None or len(chosen) != 1 or not chosen.isascii() or chosen in '"\r\n':
        raise InvalidInputError(
            f"{arg.delimiter} must be one ASCII character such as ';', got {delimiter!r}"
        )
    return chosen


def check_text(start: bytes, name: str, way_out: str = _WIDE) -> None:
    """Raise UnreadableFileError if the first bytes of a file show that it is no text.

    Args:
        start: the first bytes of the file.
        name: the name of the file, for the message.
        way_out: advice at the end of the message if there are NUL bytes, which text in UTF-16 has.
    """
    for magic, instead in _BY_CONTENT.items():
        if start.startswith(magic):
            raise UnreadableFileError(f"{name} {instead}")
    if b"\0" in start:
        raise UnreadableFileError(
            f"{name} is no text: it holds NUL bytes, so it is binary, or UTF-16{way_out}"
        )
