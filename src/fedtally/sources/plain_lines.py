"""Many lines at once, with the result of reading each of them by itself (see `lines`).

Reading a line in Python takes some microseconds. Most lines are plain: they have as many fields as
there are columns, and a field with quotes is in quotes, with the quotes in it doubled. A regular
expression finds the plain lines of a text, and Arrow reads all of them in one call. All other lines
are read one by one. On plain lines both ways agree, so how a line is written decides only how long
it takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedtally.sources.values import of_objects

Row = dict[str, Any]  # the values by column; a value that cannot be read is None, or has no entry

# No character of a plain line. Arrow would end a line at a carriage return. A lone surrogate stands
# for a byte that cannot be decoded (see `lines`), and Arrow takes no NUL byte as a delimiter.
_NEVER = r"\r\n\0\udc80-\udcff"


@dataclass(frozen=True)
class Shape:
    r"""What a plain line of a table is.

    Args:
        places: for each column that is read, its place in the line, from 0.
        width: the number of fields of a plain line.
        delimiter: the ASCII character between fields, which is not NUL.
        is_quoted: whether a field may be in quotes, as in CSV, with the quotes in it doubled. A
            plain field has no other quotes. False: a quote is a character as any other.

    >>> Shape({"item": 1}, 2, ",", True).run.match('"x, y",tea\n,\nte"a,x\n').end()
    13
    """

    places: dict[str, int]
    width: int
    delimiter: str
    is_quoted: bool

    @cached_property
    def run(self) -> re.Pattern[str]:
        """Matches plain lines with their ends, as many as follow one another; perhaps none."""
        never = re.escape(self.delimiter) + _NEVER
        inner = rf'[^"{_NEVER}]*+'
        # A repeat that could backtrack (*) would take gigabytes for a long line of quotes.
        quoted = f'"{inner}(?:""{inner})*+"'
        field = rf'(?:{quoted}|[^"{never}]*+)' if self.is_quoted else f"[^{never}]*+"
        line = f"(?:{field}{re.escape(self.delimiter)}){{{self.width - 1}}}{field}"
        return re.compile(rf"(?:{line}\r?\n)*+")


#: The shape of plain text, whose lines are items. Its delimiter is a character that hardly occurs.
TEXT = Shape({"item": 0}, 1, "\x01", is_quoted=False)


def read_lines(text: str, shape: Shape, read: Callable[[str], Row | None]) -> list[Any]:
    """Return the columns of a text's lines as Arrow arrays of large strings, one for each place.

    Args:
        text: lines, each of which ends with a line feed.
        shape: what a plain line is.
        read: takes a line without its end and returns its row; None: the line is no row.
    """
    import pyarrow as pa

    kept: list[str] = []  # the plain lines
    others: list[Row] = []
    before: list[int] = []  # for each of the others, how many plain lines stand before it
    number = start = 0
    while start < len(text):
        found = shape.run.match(text, start)
        # Before 3.11.5, Python may include the start of the first line that is not plain.
        end = max(start, text.rfind("\n", start, found.end() if found else start) + 1)
        kept.append(text[start:end])
        number += text.count("\n", start, end)
        if end == len(text):
            break
        start = text.index("\n", end) + 1
        row = read(text[end:start].rstrip("\r\n"))
        if row is not None:
            others.append(row)
            before.append(number)
    columns = _of_plain("".join(kept), shape)
    if not others:
        return columns
    order = pa.array(np.insert(np.arange(number), before, number + np.arange(len(others))))
    apart = [
        pa.array(of_objects([row.get(name) for row in others]), pa.large_string())
        for name in shape.places
    ]
    return [pa.concat_arrays(parts).take(order) for parts in zip(columns, apart, strict=True)]


def _of_plain(text: str, shape: Shape) -> list[Any]:
    """Return the columns of plain lines as Arrow arrays of large strings, one for each place."""
    import pyarrow as pa
    import pyarrow.csv as arrow_csv

    if not text:
        return [pa.array([], pa.large_string()) for _ in shape.places]
    # Arrow drops a byte order mark at the start of its input, so an empty line comes first there,
    # and is skipped. All other lines are read as one block.
    data = b"\n" + text.encode()
    table = arrow_csv.read_csv(
        pa.py_buffer(data),
        arrow_csv.ReadOptions(
            use_threads=False,
            block_size=len(data),
            skip_rows=1,
            column_names=[str(place) for place in range(shape.width)],
        ),
        arrow_csv.ParseOptions(
            delimiter=shape.delimiter,
            quote_char='"' if shape.is_quoted else False,
            ignore_empty_lines=False,
        ),
        arrow_csv.ConvertOptions(
            column_types={str(place): pa.large_string() for place in shape.places.values()},
            include_columns=[str(place) for place in shape.places.values()],
            strings_can_be_null=False,
        ),
    )
    return [column.combine_chunks() for column in table.columns]
