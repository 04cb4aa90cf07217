"""Text tables under differential privacy: every line is a row, and is read independently.

Arrow reads a CSV as one stream. There an open quote of one client swallows the rows of the next
clients, an invalid byte ends the file, and a number in a column of text ends the run. Under privacy
a client's data must change only that client's row. So these rules hold here:

* A line ends at a line feed, even within quotes, and carriage returns at its end are dropped. Only
  if the header of a CSV, which is public, ends with a single carriage return, then carriage returns
  end all lines, and line feeds none. Elsewhere an item with a carriage return would make two rows.
* Each line is decoded, and cut into fields, independently.
* The client, round and count are read from the outside inwards: columns before the item from the
  start of the line, columns after the item from its end. The rest is the item, whatever bytes it
  has. So none of these columns may stand between the two columns of an item. Their fields must be
  quoted as usual: a field with a delimiter, or with a quote at its start or end, is in quotes, and
  quotes in it are doubled. Otherwise ``x,"3,TV 44"`` could mean the client ``3,TV 44`` or the item
  ``x,"3``.
* If a line is longer than 64 MiB, only its first and last 32 MiB are read, with an invalid
  character between them. The field with this character, usually the item, cannot be read, but the
  client can. In JSON lines the whole row often cannot be read then.
* A value that cannot be read is missing. Without its item, the row is a client without an item.
  Without its client or round, the row is dropped.
* Which columns there are follows from public information, the header or the options, and never from
  a row.
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

_LONGEST_LINE = 1 << 26  # bytes: of a longer line, the first and the last half of this are kept
# Possessive repeats (*+) never go back: a hostile field cannot make the time quadratic.
_QUOTED = re.compile(r'"((?:[^"]|"")*+)"')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+"|[\[\]{}]')  # strings and brackets of JSON


class _Ends(NamedTuple):
    """The first and the last bytes of a line that is longer than `_LONGEST_LINE`."""

    first: bytes
    last: bytes


Line = bytes | _Ends
Row = dict[str, Any]  # column -> value; columns that cannot be read are missing or None


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

    UTF-8 is accepted, since its invalid bytes are skipped one by one. Encodings with one byte for
    each character are accepted too.

    >>> check_fields("latin-1")
    >>> check_fields("gbk")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: with epsilon each field is read by itself, which gbk ...
    """
    if line_encoding(encoding) == "utf-8":
        return
    # It is bytewise if every pair of bytes decodes to the two characters of its bytes.
    try:
        alone = [bytes([byte]).decode(encoding, "surrogateescape") for byte in range(256)]
        pairs = bytes(
            byte for first in range(256) for second in range(256) for byte in (first, second)
        )
        is_bytewise = pairs.decode(encoding, "surrogateescape") == "".join(
            alone[byte] for byte in pairs
        )
    except UnicodeError:  # a byte below 128 is no character alone, so it changes the next bytes
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
    """Return a function from a line of a CSV to its row; None: the line is no row.

    Args:
        columns: the columns, as `Columns.resolve` returns them.
        delimiter: the character between fields.
        width: the number of columns in the header. None: there is no header, and columns are
            counted from the start of the line.
        places: the place, from 0, of each column that is read. Clients, rounds and counts must not
            stand between the columns of an item.
        is_single: whether the item's columns are the only ones, so that a blank line is a row whose
            item is missing.

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
    """Return the fields of a line; None for each field that cannot be read.

    The item's fields, at the places `first` .. `last`, are read after all other fields.

    Args:
        line: the line.
        delimiter: the character between fields.
        first: the place of the item's first column.
        last: the place of the item's last column.
        width: the number of columns; None: there is no header.
    """
    own = last - first + 1
    behind = 0 if width is None else width - 1 - last
    before, rest = _fields(line, first, delimiter)
    after: list[str] = []
    if rest is not None and behind:
        # The line is read backwards from its end: a reversed field in quotes has the same form.
        turned, rest = _fields(rest[::-1], behind, delimiter)
        rest = None if rest is None else rest[::-1]
        # If the line has too few fields, it is not known which ones are missing.
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
    """Return the first fields of a line, at most `number`, and the rest of the line.

    The rest starts after the delimiter, and is None at the end of the line. A field that starts
    with a quote ends at its closing quote. If there is no closing quote, or no delimiter follows
    it, then the opening quote is an ordinary character; but if `strict`, reading stops there.
    Unless `strict`, a quoted field that contains a delimiter must not end the line, since its
    closing quote may be part of an item.

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
    """Return a function from a line of JSON lines to its row; None: the line is blank, and no row.

    A line that is no JSON object is a row without values. A byte order mark may precede a line, as
    after joining files.

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
            # Integers stay text, with their digits as written, since float64 would round large ones
            found = json.loads(line.removeprefix("\ufeff"), parse_int=str, strict=False)
        except RecursionError:
            return read(_shallow(line))
        except ValueError:
            return {}
        return {name: found.get(name) for name in names} if isinstance(found, dict) else {}

    return read


def _shallow(line: str) -> str:
    """Return the text of a JSON object, with all lists and objects in it replaced by empty ones.

    So it is not nested too deeply for Python's reader.
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
) -> Iterator[Any]:
    """Yield the rows of a stream's lines as record batches of the named columns, all text.

    The first batch has no rows, so that the columns of an empty table are known. See `rows` for the
    arguments.
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
    """Yield the rows of a stream's lines, in lists of several rows.

    Args:
        stream: the decompressed bytes of the file, in the file's encoding.
        read: a function from a line to its row; None: the line is no row.
        columns: the columns, as `Columns.resolve` returns them.
        encoding: the encoding of a line.
        block_size: the number of bytes that are read at once.
        line_end: the byte that ends a line.
    """
    for lines in _blocks(stream, block_size, line_end):
        found = [read(_decoded(line, encoding)) for line in lines]
        yield [row for row in found if row is not None]


def first_line(stream: ByteStream, encoding: str, line_end: bytes) -> str:
    """Read up to the first line that is not blank, and return it without its end; "": none."""
    while head := stream.take_line(line_end):
        if line := head.decode(encoding).rstrip("\r\n"):
            return line
    return ""


_UNREADABLE = "\udcff"  # a lone surrogate, which is no valid text: a field with it is missing


def _decoded(line: Line, encoding: str) -> str:
    """Return a line as text, with a lone surrogate for each invalid byte.

    A field with a lone surrogate is read as missing later. The other fields are not affected.
    """
    *before, last = line if isinstance(line, _Ends) else (line,)
    parts = [*before, last.rstrip(b"\r\n")]
    try:
        return _UNREADABLE.join(part.decode(encoding, "surrogateescape") for part in parts)
    except UnicodeError:  # multi-byte encodings may raise in spite of the error handler
        return _UNREADABLE


def _blocks(stream: ByteStream, block_size: int, line_end: bytes) -> Iterator[list[Line]]:
    """Yield the lines of a stream, block by block.

    How a long line is cut depends only on its length, and not on the ends of blocks. Otherwise
    earlier rows could change how a line is read.
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
    """Return a line with more bytes appended; only its two ends if it is too long."""
    half = _LONGEST_LINE // 2
    if isinstance(line, _Ends):
        return _Ends(line.first, (line.last + more)[-half:])
    line += more
    return line if len(line) <= _LONGEST_LINE else _Ends(line[:half], line[-half:])


def line_encoding(encoding: str) -> str:
    """Return the encoding for one line of a file: "utf-8" for "utf-8-sig", else the same.

    Only a file starts with a byte order mark, and not each line.

    >>> line_encoding("utf-8-sig"), line_encoding("latin-1")
    ('utf-8', 'latin-1')
    """
    return "utf-8" if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig") else encoding
