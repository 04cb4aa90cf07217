"""Text tables under differential privacy: every line is a row, and is read independently.

Arrow reads a CSV as one stream. If one client's row opens a quote that it does not close, the rows
of the next clients disappear. An invalid byte ends the file, and a number in a column of text ends
the run. Under privacy a client's data must change only that client's row. So these rules hold here:

* A line ends at a line feed, even within quotes. Carriage returns at its end are dropped. There is
  one exception: if the header of a CSV or TSV ends with a single carriage return, then carriage
  returns end all lines, and line feeds end none. Only the header decides this, because it is
  public. If carriage returns always ended lines, an item with a carriage return would make two
  rows.
* Each line is decoded, and cut into fields, independently.
* The columns before the item are read from the start of the line, and the columns after the item
  from the end of the line. What is left is read as the item, whatever bytes it has. So if an item
  has two columns, no other column that is read may be between them. The fields of all columns but
  the item's must be quoted as usual: a field that has a delimiter, or a quote at its start or end,
  is in quotes, and quotes in it are doubled. Otherwise ``x,"3,TV 44"`` could mean the client
  ``3,TV 44`` or the item ``x,"3``.
* If a line is longer than 64 MiB, only its first and last 32 MiB are read, with an invalid
  character between them. The field with this character, usually the item, cannot be read, but the
  client can. In JSON lines the whole row often cannot be read then.
* A value that cannot be read is missing. Without its item, the row is a client without an item.
  Without its client, silo or round, the row is dropped.
* Lines that are written as usual are read many at once, with the same result (`plain_lines`).
* The header or the options decide which columns there are, because they are public. A row never
  does.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fedtally.errors import InvalidInputError
from fedtally.sources import plain_lines
from fedtally.sources.batches import Columns, no_rows
from fedtally.sources.plain_lines import Row, Shape
from fedtally.sources.streams import ByteStream
from fedtally.sources.values import of_objects

# The most bytes that are kept of a line. Of a longer line, half of this number of bytes are kept
# from its start, and half from its end.
_LONGEST_LINE = 1 << 26
# Possessive repeats (*+) never backtrack. Otherwise a hostile field could make the time quadratic.
_QUOTED = re.compile(r'"((?:[^"]|"")*+)"')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]')  # a string or a bracket of JSON


class _Ends(NamedTuple):
    """The first and the last bytes of a line that is longer than `_LONGEST_LINE`."""

    first: bytes
    last: bytes


Line = bytes | _Ends


def check_encoding(encoding: str) -> None:
    """Raise an error if lines in this encoding cannot be read independently.

    Raises:
        InvalidInputError: a line feed in this encoding is not the byte 10 alone.

    >>> check_encoding("latin-1")
    >>> check_encoding("utf-8-sig")
    >>> check_encoding("utf-16")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: with epsilon each line is read by itself, which utf-16 ...
    """
    if "\n".encode(line_encoding(encoding)) != b"\n":
        raise InvalidInputError(
            f"with epsilon each line is read by itself, which {encoding} does not allow: one"
            " client's bytes could change what another holds; convert the file, for instance with"
            f" iconv -f {encoding} -t utf-8"
        )


def check_fields(encoding: str) -> None:
    """Raise an error if, in this encoding, a byte of one field could change the text of the next
    field.

    UTF-8 is accepted, because its invalid bytes are replaced one by one. Encodings with one byte
    for each character are accepted, too, if they contain ASCII.

    Raises:
        InvalidInputError: the encoding is not accepted.

    >>> check_fields("latin-1")
    >>> check_fields("gbk")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: with epsilon each field is read by itself, which gbk ...
    """
    if line_encoding(encoding) == "utf-8":
        return
    # The encoding has one byte for each character if every pair of bytes is decoded to the
    # characters of its two bytes.
    try:
        alone = [bytes([byte]).decode(encoding, "surrogateescape") for byte in range(256)]
        pairs = bytes(
            byte for first in range(256) for second in range(256) for byte in (first, second)
        )
        is_bytewise = pairs.decode(encoding, "surrogateescape") == "".join(
            alone[byte] for byte in pairs
        )
    except UnicodeError:  # some byte alone is no character, so it changes the bytes after it
        is_bytewise = False
    if not is_bytewise or alone[:128] != [chr(byte) for byte in range(128)]:
        raise InvalidInputError(
            f"with epsilon each field is read by itself, which {encoding} does not allow: the bytes"
            " of an item could change whose it is; convert the file, for instance with iconv -f"
            f" {encoding} -t utf-8"
        )


def rows_of_csv(
    columns: Columns, delimiter: str, width: int | None, places: dict[str, int], is_single: bool
) -> Callable[[str], Row | None]:
    """Return a function that takes a line of a CSV and returns its row.

    A row is a dict from the names of columns to values.

    Args:
        columns: the columns, as `Columns.resolve` returns them.
        delimiter: the character between fields.
        width: the number of columns in the header. None: there is no header; fields are then
            counted from the start of the line.
        places: for each column that is read, its place in the line, from 0. No client, silo, round
            or count may be between the columns of an item.
        is_single: whether an empty line is a row whose item is missing. Otherwise an empty line is
            no row, and gives None.

    >>> read = rows_of_csv(Columns("item", client="user"), ",", 2, {"item": 0, "user": 1}, False)
    >>> read('tea,ann'), read('"tea,ann')
    ({'item': 'tea', 'user': 'ann'}, {'item': None, 'user': 'ann'})
    >>> read('a,b,"Lee, Ann"')
    {'item': None, 'user': 'Lee, Ann'}
    """
    items = [places[name] for name in columns.items]

    def read(line: str) -> Row | None:
        if not line:
            return {} if is_single else None
        fields: Sequence[str | None] = line.split(delimiter)
        if '"' in line or len(fields) != width:
            fields = _outside_in(line, delimiter, min(items), max(items), width)
        return {name: fields[place] for name, place in places.items() if place < len(fields)}

    return read


def _outside_in(
    line: str, delimiter: str, first: int, last: int, width: int | None
) -> list[str | None]:
    """Return the fields of a line in order; None for each field that cannot be read.

    The fields before the item are read from the start of the line, and the fields after it from the
    end. What is left is read as the item's fields.

    Args:
        line: the line, without its end.
        delimiter: the character between fields.
        first: the place of the item's first column, from 0.
        last: the place of the item's last column, from 0.
        width: the number of columns. None: there is no header, and nothing after the item is read.
    """
    own = last - first + 1
    behind = 0 if width is None else width - 1 - last
    before, rest = _fields(line, first, delimiter)
    after: list[str] = []
    if rest is not None and behind:
        # The reversed line is read from its start: a field in quotes keeps its form when it is
        # reversed.
        turned, rest = _fields(rest[::-1], behind, delimiter)
        rest = None if rest is None else rest[::-1]
        # If the line has too few fields, nobody knows which ones are missing.
        after = [] if rest is None else [field[::-1] for field in reversed(turned)]
    held: list[str] = []
    if rest is not None:
        held, left = _fields(rest, own, delimiter, strict=True)
        if len(held) < own or (left is not None and width is not None):
            held = []
    padded = [
        [*part, *[None] * (size - len(part))]
        for part, size in ((before, first), (held, own), (after, behind))
    ]
    return [field for part in padded for field in part]


def _fields(
    text: str, number: int, delimiter: str, strict: bool = False
) -> tuple[list[str], str | None]:
    """Return the first fields of a text, at most `number`, and the rest of the text.

    The rest begins after the delimiter that follows the last field. If no delimiter follows, the
    rest is None.

    A field that begins with a quote ends at its closing quote, if a delimiter or the end of the
    text follows this quote. If something else follows, or no quote closes the field, `strict`
    decides. If `strict`, reading stops before the field. If not `strict`, the opening quote is an
    ordinary character, and the field ends at the next delimiter.

    Without `strict` there is a second case in which the opening quote is an ordinary character: a
    quoted field that contains a delimiter and ends the text. The closing quote may be part of an
    item.

    >>> _fields('"Lee, Ann",tea', 1, ","), _fields('"Ann,tea"', 1, ",")
    ((['Lee, Ann'], 'tea'), (['"Ann'], 'tea"'))
    """
    fields: list[str] = []
    rest: str | None = text
    while rest is not None and len(fields) < number:
        quoted = _QUOTED.match(rest) if rest.startswith('"') else None
        end = quoted.end() if quoted else 0
        is_whole = end == len(rest) and (strict or delimiter not in rest)
        if quoted and (is_whole or rest.startswith(delimiter, end)):
            fields.append(quoted[1].replace('""', '"'))
            rest = rest[end + 1 :] if rest[end : end + 1] else None
        elif strict and rest.startswith('"'):
            return fields, rest
        else:
            field, found, behind = rest.partition(delimiter)
            fields.append(field)
            rest = behind if found else None
    return fields, rest


def row_of_json(columns: Columns) -> Callable[[str], Row | None]:
    """Return a function that takes a line of a file of JSON lines and returns its row.

    A row is a dict from the names of columns to values. A line that is no JSON object gives a row
    without values of its own. A blank line is no row, and gives None. A byte order mark at the
    start of a line is ignored, because joined files have such marks.

    A row's round or silo is the value in the row. If the row has no entry of that name, it is the
    value that a folder's name states. So a row decides this for itself alone, and for no other row.

    >>> row_of_json(Columns("item", client="user"))('{"user": 7, "item": "tea", "x": [1]}')
    {'item': 'tea', 'user': '7'}
    >>> row_of_json(Columns("item"))("oops")
    {}
    >>> found = row_of_json(Columns("item", round="day", folders=(("day", "1"),)))
    >>> found('{"item": "tea"}'), found('{"item": "tea", "day": 2}'), found("oops")
    ({'item': 'tea', 'day': '1'}, {'item': 'tea', 'day': '2'}, {'day': '1'})
    """
    names = columns.names()
    of_folders = dict(columns.with_folders(columns.items).given)

    def read(line: str) -> Row | None:
        if not line.strip():
            return None
        try:
            # Integers stay text, with their digits as in the file: as float64, large ones would be
            # rounded.
            found = json.loads(line.removeprefix("\ufeff"), parse_int=str, strict=False)
        except RecursionError:
            return read(_shallow(line))
        except ValueError:
            return of_folders
        if not isinstance(found, dict):
            return of_folders
        return {name: found.get(name, of_folders.get(name)) for name in names}

    return read


def _shallow(line: str) -> str:
    """Return the text of a JSON object with every list and object in it replaced by an empty one.

    Python's JSON reader can read the result, however deeply the original is nested. If the brackets
    do not match, "[]" is returned, which is no object.
    """
    kept, depth, start = [], 0, 0
    for token in _TOKEN.finditer(line):
        step = {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if step == 1 and depth == 1:
            kept.append(line[start : token.end()])
        elif step == -1 and depth == 2:
            start = token.start()
        depth += step
    return "".join([*kept, line[start:]]) if depth == 0 else "[]"


def tables(
    stream: ByteStream,
    read: Callable[[str], Row | None],
    columns: Columns,
    encoding: str,
    block_size: int,
    line_end: bytes = b"\n",
    shape: Shape | None = None,
) -> Iterator[Any]:
    """Yield the rows of a stream's lines as Arrow record batches, with all values as text.

    A batch has the columns that `columns` names. The first batch has no rows: it shows the columns
    even of an empty table. See `rows` for the arguments.
    """
    import pyarrow as pa

    names = columns.names()
    yield no_rows(pa.schema([(name, pa.large_string()) for name in names]))
    for first, others in _blocks(stream, block_size, line_end):
        if shape is not None and isinstance(first, bytes) and len(others) <= _LONGEST_LINE:
            text = (first + line_end + others).decode(encoding, "surrogateescape")
            yield pa.record_batch(plain_lines.read_lines(text, shape, read), [*shape.places])
            continue
        kept = _each_line(first, others, read, encoding, line_end)
        texts = [
            pa.array(of_objects([row.get(name) for row in kept]), pa.large_string())
            for name in names
        ]
        yield pa.record_batch(texts, names)


def rows(
    stream: ByteStream,
    read: Callable[[str], Row | None],
    columns: Columns,
    encoding: str,
    block_size: int,
    line_end: bytes = b"\n",
    shape: Shape | None = None,
) -> Iterator[list[Row]]:
    """Yield the rows of a stream's lines in lists, one list for each block of lines.

    Args:
        stream: the decompressed bytes of the file, in the file's encoding.
        read: takes a line and returns its row; None: the line is no row.
        columns: the columns, as `Columns.resolve` returns them; only `tables` uses them.
        encoding: the encoding of a line.
        block_size: the number of bytes that are read at once.
        line_end: the byte that ends a line.
        shape: what a plain line is; `tables` reads plain lines faster, with the same result. Lines
            must end at a line feed, and `check_fields` must accept the encoding. None: `tables`,
            too, reads each line with `read`.
    """
    for first, others in _blocks(stream, block_size, line_end):
        yield _each_line(first, others, read, encoding, line_end)


def _each_line(
    first: Line,
    others: bytes,
    read: Callable[[str], Row | None],
    encoding: str,
    line_end: bytes,
) -> list[Row]:
    """Return the rows of a line, and of the whole lines after it; see `rows` and `_blocks`."""
    lines = [first, *(_held(b"", line) for line in others.split(line_end)[:-1])]
    found = [read(_decoded(line, encoding)) for line in lines]
    return [row for row in found if row is not None]


def first_line(stream: ByteStream, encoding: str, line_end: bytes) -> str:
    """Read up to and including the first line that is not empty; return it without its end.

    A line of spaces is not empty. Returns "" if there is no such line.

    Raises:
        UnicodeDecodeError: the line is no text in this encoding.
    """
    while head := stream.take_line(line_end):
        if line := head.decode(encoding).rstrip("\r\n"):
            return line
    return ""


# A lone surrogate, which is not valid text. A field that has a lone surrogate is a missing value.
_UNREADABLE = "\udcff"


def _decoded(line: Line, encoding: str) -> str:
    """Return a line as text, without its end; each invalid byte becomes a lone surrogate.

    A lone surrogate also stands for the middle of a line that is too long. Some encodings cannot
    mark a single invalid byte: the whole line then becomes one lone surrogate. A field with a lone
    surrogate is later a missing value. Fields without a lone surrogate can still be read.
    """
    *before, last = line if isinstance(line, _Ends) else (line,)
    parts = [*before, last.rstrip(b"\r\n")]
    try:
        return _UNREADABLE.join(part.decode(encoding, "surrogateescape") for part in parts)
    except UnicodeError:  # some encodings raise this in spite of "surrogateescape"
        return _UNREADABLE


def _blocks(stream: ByteStream, block_size: int, line_end: bytes) -> Iterator[tuple[Line, bytes]]:
    """Yield the lines that end in one block, and at the end the last line.

    Each time these are the first line, without its end, and the other lines with their ends.

    How a line that is too long is cut depends only on the line, and not on where blocks end.
    Otherwise earlier rows could change how the line is read.
    """
    rest: Line = b""
    while block := stream.read(block_size):
        first, found, others = block.partition(line_end)
        rest = _held(rest, first)
        if found:
            end = others.rfind(line_end) + 1
            yield rest, others[:end]
            rest = _held(b"", others[end:])
    if rest:
        yield rest, b""


def _held(line: Line, more: bytes) -> Line:
    """Return a line with more bytes appended.

    If the line becomes longer than `_LONGEST_LINE` bytes, two pieces are kept: its start and its
    end. Each has half of this number of bytes.
    """
    half = _LONGEST_LINE // 2
    if isinstance(line, _Ends):
        return _Ends(line.first, (line.last + more)[-half:])
    line += more
    return line if len(line) <= _LONGEST_LINE else _Ends(line[:half], line[-half:])


def line_encoding(encoding: str) -> str:
    """Return the encoding with which each line of a file is decoded.

    It is the encoding of the file, but "utf-8" for "utf-8-sig": a byte order mark is only at the
    start of the file, and not of each line.

    >>> line_encoding("utf-8-sig"), line_encoding("latin-1")
    ('utf-8', 'latin-1')
    """
    return "utf-8" if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding
