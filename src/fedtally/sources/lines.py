"""Text tables under differential privacy: every line is a row, and is read by itself.

Arrow reads a CSV as one stream. A quote that one client leaves open swallows the rows of the
clients after it. A byte that is no text ends the file, and a number in a column of text ends the
run. Under privacy a client's data must change only what that client holds. So here

* a line ends at a line feed, even within quotes, and carriage returns at its end are dropped. One
  alone ends a line only in a CSV whose header, which is public, ends with it: there a line feed
  ends none. Elsewhere a client whose item holds one would become two;
* a line is decoded, and cut into fields, by itself;
* the client, round and count are read from the outside inwards: columns before the item from the
  start of the line, columns after it from the end. The rest is the item, whatever bytes it has. So
  none of these columns may stand between the two columns of an item. They must be written as tables
  are: a field that holds a delimiter, or a quote at its start or end, is in quotes, and quotes in
  it are doubled. Otherwise ``x,"3,TV 44"`` could be of a client ``3,TV 44`` or an item ``x,"3``;
* of a line above 64 MiB the first and the last 32 MiB are read, with a mark between them that is no
  text. The mark hides the item that it stands in, but not the client. In JSON lines the row often
  belongs to nobody then;
* a value that cannot be read is missing. Without its item the row's client holds nothing; without
  its client or round the row belongs to nobody;
* the columns are taken from public information, the header or the options, and never from a row.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from fedtally.errors import InvalidInputError
from fedtally.sources.batches import Columns, no_rows
from fedtally.sources.streams import ByteStream
from fedtally.sources.values import of_objects

_LONGEST_LINE = 1 << 26  # bytes that are held; of a longer line its two ends, half of them each
# Possessive repeats (*+) never go back: a hostile field cannot make the time quadratic.
_QUOTED = re.compile(r'"((?:[^"]|"")*+)"')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]')  # the parts of JSON that tell its depth


class _Ends(NamedTuple):
    """The first and the last bytes of a line that is too long to be held."""

    first: bytes
    last: bytes


Line = bytes | _Ends
Row = dict[str, Any]  # value by column, for the columns that are named and can be read


def check_encoding(encoding: str) -> None:
    """Refuse an encoding whose lines cannot be read one by one.

    >>> check_encoding("latin-1")
    >>> check_encoding("utf-16")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: with epsilon each line is read by itself, which utf-16 ...
    """
    if "\n".encode(encoding) != b"\n":
        raise InvalidInputError(
            f"with epsilon each line is read by itself, which {encoding} does not allow: one"
            " client's bytes could change what another holds; convert the file, for instance with"
            f" iconv -f {encoding} -t utf-8"
        )


def check_fields(encoding: str) -> None:
    """Refuse an encoding in which a byte of one field could change the characters of the next.

    UTF-8 is left, where bytes that are no text are skipped one by one, and encodings with one byte
    for each character.

    >>> check_fields("latin-1")
    >>> check_fields("gbk")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: with epsilon each field is read by itself, which gbk ...
    """
    if line_encoding(encoding) == "utf-8":
        return
    # Whether every pair of bytes decodes as its two bytes do alone.
    try:
        alone = [bytes([byte]).decode(encoding, "surrogateescape") for byte in range(256)]
        pairs = bytes(
            byte for first in range(256) for second in range(256) for byte in (first, second)
        )
        is_bytewise = pairs.decode(encoding, "surrogateescape") == "".join(
            alone[byte] for byte in pairs
        )
    except UnicodeError:  # a byte below 128 that is no character alone: it changes what follows
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
    """Return a function that reads a line of a CSV, and returns None where the line is no row.

    Args:
        columns: resolved.
        delimiter: the character between fields.
        width: the number of columns that the header names. Without a header it is None, and columns
            are counted from the start of the line.
        places: the places, from 0, of the columns that are named. Those of clients, rounds and
            counts must not stand between items.
        is_single: whether all columns are the item's, so that a blank line is a row whose item is
            missing.

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
    """Return the fields of a line, None for each that cannot be read.

    The fields of the item, from place `first` to `last`, are read after all others.
    """
    own = last - first + 1
    behind = 0 if width is None else width - 1 - last
    before, rest = _fields(line, first, delimiter)
    after: list[str] = []
    if rest is not None and behind:
        # The line is read backwards from its end: a reversed field in quotes has the same form.
        turned, rest = _fields(rest[::-1], behind, delimiter)
        rest = None if rest is None else rest[::-1]
        # Nothing tells which fields a line lacks that is too short.
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
    """Return the first fields of a line, at most `number`, and the rest after their delimiter.

    The rest is None at the end of the line. A field that starts with a quote ends at the quote that
    closes it. Where no quote closes it, or something else follows that quote, the quote is a
    character like others; or, if `strict`, there is no field. Unless `strict`, more of the line
    must follow a field in quotes that holds a delimiter. Otherwise the quote that closes it may be
    one in an item.

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
    """Return a function that reads a line of JSON lines.

    A line that is no object is a row that holds nothing. A blank line is no row. Before a line may
    stand a byte order mark, where files were joined.

    >>> row_of_json(Columns("item", client="user"))('{"user": 7, "item": "tea", "x": [1]}')
    {'item': 'tea', 'user': '7'}
    >>> row_of_json(Columns("item"))("oops")
    {}
    """
    names = columns.names()

    def read(line: str) -> Row | None:
        if not line.strip():
            return None
        try:
            # Integers stay the digits that were written: float64 could not hold them all.
            found = json.loads(line.removeprefix("\ufeff"), parse_int=str, strict=False)
        except RecursionError:
            return read(_shallow(line))
        except ValueError:
            return {}
        return {name: found.get(name) for name in names} if isinstance(found, dict) else {}

    return read


def _shallow(line: str) -> str:
    """Return an object with its lists and objects emptied, so that none is too deep to be read."""
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
) -> Iterator[Any]:
    """Yield the rows of a stream's lines as record batches of the named columns, all text.

    The first batch has no rows, so that the columns of an empty table are known. The arguments are
    those of `rows`.
    """
    import pyarrow as pa

    names = columns.names()
    yield no_rows(pa.schema([(name, pa.large_string()) for name in names]))
    for kept in rows(stream, read, columns, encoding, block_size, line_end):
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
) -> Iterator[list[Row]]:
    """Yield the rows of a stream's lines, some at a time.

    Args:
        stream: the stream of the file's own bytes.
        read: returns the row of a line, or None where the line is no row.
        columns: resolved.
        encoding: the encoding of a line.
        block_size: the number of bytes that are read at once.
        line_end: the byte that ends a line.
    """
    for lines in _blocks(stream, block_size, line_end):
        found = [read(_decoded(line, encoding)) for line in lines]
        yield [row for row in found if row is not None]


def first_line(stream: ByteStream, encoding: str, line_end: bytes) -> str:
    """Take the first line that is not blank, the header; empty if there is none."""
    while head := stream.take_line(line_end):
        if line := head.decode(encoding).rstrip("\r\n"):
            return line
    return ""


_UNREADABLE = "\udcff"  # a lone surrogate, which is no text: the field that holds it is missing


def _decoded(line: Line, encoding: str) -> str:
    """Return a line as text, with a lone surrogate for each byte that is no text.

    The field with such a byte cannot be read later, but the others can.
    """
    *before, last = line if isinstance(line, _Ends) else (line,)
    parts = [*before, last.rstrip(b"\r\n")]
    try:
        return _UNREADABLE.join(part.decode(encoding, "surrogateescape") for part in parts)
    except UnicodeError:  # encodings of several bytes a character raise for bytes below 128, too
        return _UNREADABLE


def _blocks(stream: ByteStream, block_size: int, line_end: bytes) -> Iterator[list[Line]]:
    """Yield the lines of a stream, block by block.

    A long line is cut by its own length alone, not by where blocks end: otherwise the rows before a
    line could change its reading.
    """
    rest: Line = b""
    while block := stream.read(block_size):
        first, *others = block.split(line_end)
        rest = _held(rest, first)
        if others:
            yield [rest, *(_held(b"", line) for line in others[:-1])]
            rest = _held(b"", others[-1])
    if rest:
        yield [rest]


def _held(line: Line, more: bytes) -> Line:
    """Return a line to which more was added: the whole line, or its ends if it is too long."""
    half = _LONGEST_LINE // 2
    if isinstance(line, _Ends):
        return _Ends(line.first, (line.last + more)[-half:])
    line += more
    return line if len(line) <= _LONGEST_LINE else _Ends(line[:half], line[-half:])


def line_encoding(encoding: str) -> str:
    """Return the encoding of a line: only a file starts with a byte order mark, not a line.

    >>> line_encoding("utf-8-sig"), line_encoding("latin-1")
    ('utf-8', 'latin-1')
    """
    return "utf-8" if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding
