"""Plain lines that are read all at once give what reading each line by itself gives."""

from __future__ import annotations

import tracemalloc
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedtally.sources import Columns, lines, private_tables
from fedtally.sources.layout import Layout
from fedtally.sources.plain_lines import TEXT, Shape, read_lines
from fedtally.sources.values import of_objects

PIECES = [
    *(
        b"a",
        b"ann",
        b"7.0",
        b"\xc3\xa9",
        b"\xf0\x9f\x98\x80",
        b" ",
        b"'",
        b"\\",
        b"\x01",
        b"\xc2\x85",
    ),
    *(b'"', b'""', b'"""', b'"a"', b'"a,b"', b'"a""b"', b'"a;b"', b'x"y', b'","', b'",', b',"'),
    *(b",", b",,", b";", b"\t", b"\n", b"\n\n", b"\r\n", b"\r", b"\r\r\n", b"\0", b"\xef\xbb\xbf"),
    *(b"\xff", b"\xe9", b"\xed\xa0\x80", b"\xf0\x9f", b"\xa0", b"\x81"),
]
PLAIN = [
    b"null,7.0",
    b"a,b",
    b'"a","b"',
    b'"a",b',
    b'",",""',
    b",",
    b"a,b,c",
    b'"a","b,","c"',
    b"a",
    b'"a"',
    b"a;b",
    b'"""a"",""b""",""""',
    b'"a""b",""",""","x"',
]
PLAIN_LINES = st.builds(
    lambda line, end, number: (line + end) * number,
    *(st.sampled_from(PLAIN), st.sampled_from([b"\n", b"\r\n"]), st.integers(1, 3)),
)
TABLES = st.lists(PLAIN_LINES | st.sampled_from(PIECES), max_size=10).map(b"".join)
# the header, and the columns that are read; without a header they are called by their places
HEADED = [
    (b"item", Columns("item")),
    (b"item,user", Columns("item", client="user")),
    (b"user,item", Columns("item", client="user")),
    (b"item,x", Columns("item")),
    (b"x,user,item,day", Columns("item", client="user", round="day")),
    (b"lat,lon", Columns(("lat", "lon"))),
    (b"lat,x,lon,n", Columns(("lat", "lon"), count="n")),
    (b"user,item\r", Columns("item", client="user")),  # its lines end at carriage returns
]
HEADLESS = [Columns("1"), Columns("2"), Columns("2", client="1"), Columns(("2", "3"), client="1")]


def values(tables: Any) -> dict[str, list[Any]]:
    """Return the columns of batches of rows, or of lists of rows; an empty text is missing."""
    found: dict[str, list[Any]] = {}
    for table, resolved, _ in tables:
        for name in resolved.names() if len(table) else ():
            column = (
                of_objects([row.get(name) for row in table])
                if isinstance(table, list)
                else table.column(name)
            )
            found.setdefault(name, []).extend(value or None for value in column.to_pylist())
    return found


def agree(path: Path, data: bytes, columns: Columns, layout: Layout, longest: int) -> None:
    """Read a file both ways, with lines of at most `longest` bytes."""
    path.write_bytes(data)
    read: Any = private_tables.read_text if layout.format == "text" else private_tables.read_csv
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_LONGEST_LINE", longest)
        at_once, one_by_one = (
            values(read(str(path), columns, layout, "t", rows))
            for rows in (lines.tables, lines.rows)
        )
    assert at_once == one_by_one


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables") / "table"


BLOCKS = st.integers(1, 40) | st.just(1 << 22)
LONGEST = st.sampled_from([1 << 26, 1 << 26, 12])
ENCODINGS = st.sampled_from(["utf8", "utf8", "utf-8-sig", "latin-1", "cp1252", "iso8859_8"])


@pytest.mark.promise
@settings(max_examples=80)
@given(TABLES, st.sampled_from(HEADED), BLOCKS, LONGEST, ENCODINGS, st.sampled_from(",;\t\\"))
def test_a_table_is_read_as_line_by_line(
    path: Path,
    rows: bytes,
    head: tuple[bytes, Columns],
    size: int,
    longest: int,
    encoding: str,
    delimiter: str,
) -> None:
    layout = Layout("csv", delimiter, True, encoding, size)
    data = head[0] + b"\n" * (not head[0].endswith(b"\r")) + rows
    agree(path, data.replace(b",", delimiter.encode()), head[1], layout, longest)


@pytest.mark.promise
@settings(max_examples=80)
@given(TABLES, st.sampled_from(HEADLESS), BLOCKS, LONGEST, ENCODINGS)
def test_a_table_without_a_header_is_read_as_line_by_line(
    path: Path, rows: bytes, columns: Columns, size: int, longest: int, encoding: str
) -> None:
    agree(path, rows, columns, Layout("csv", ",", False, encoding, size), longest)


@pytest.mark.promise
@settings(max_examples=80)
@given(TABLES, BLOCKS, LONGEST, st.sampled_from(["utf8", "latin-1", "gbk"]))
@example(b"uuA\x1b\n\\\n", 1 << 22, 1 << 26, "iso2022_jp_1")  # an escape of several bytes
@example(b"~{uu\xe9\n", 1 << 22, 1 << 26, "hz")
def test_a_text_is_read_as_line_by_line(
    path: Path, rows: bytes, size: int, longest: int, encoding: str
) -> None:
    agree(path, rows, Columns(), Layout("text", encoding=encoding, block_size=size), longest)


@pytest.mark.promise
def test_all_short_lines_are_read_as_one_by_one(path: Path) -> None:
    for quote in (b"", b'"'):
        characters = (b'"', b",", b"\r", b"a", b"\0", b"\xff", b"\n")
        found = [b"".join(part) for size in range(5) for part in product(characters, repeat=size)]
        data = b"".join(quote + line + quote + b"\nx,y\n" for line in found)
        for head, columns in HEADED[:3]:
            agree(path, head + b"\n" + data, columns, Layout("csv"), 1 << 26)
        agree(path, data, Columns("2", client="1"), Layout("csv", header=False), 1 << 26)
        agree(path, data, Columns(), Layout("text"), 1 << 26)


def refuse(line: str) -> Any:
    raise AssertionError(f"the line {line!r} was read by itself")


@each_case(
    ("line", "user", "item"),
    [
        ("a,b", "a", "b"),
        ('"a","b"', "a", "b"),
        ('"a, b",c', "a, b", "c"),
        ('"""a"",""b""",""""', '"a","b"', '"'),
        (",", "", ""),
        ('"",""', "", ""),
        ("NA,null", "NA", "null"),
        ("007,1e3\r", "007", "1e3"),
        (" é,'\ufeff'", " é", "'\ufeff'"),
        ("\ufeffé,\\", "\ufeffé", "\\"),
    ],
)
def test_plain_lines_are_read_at_once(line: str, user: str, item: str) -> None:
    shape = Shape({"item": 1, "user": 0}, 2, ",", is_quoted=True)
    found = [column.to_pylist() for column in read_lines(f"{line}\n" * 3, shape, refuse)]
    assert found == [[item] * 3, [user] * 3]


@each_case("end", ["x,a\n", "\n"])
def test_a_line_of_quotes_takes_little_memory(end: str) -> None:
    shape = Shape({"item": 0}, 2, ",", is_quoted=True)
    line = '"' + '""' * 200_000 + end
    assert shape.run.match(",\n")
    tracemalloc.start()
    try:
        found = shape.run.match(line)
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert used < 1e6
    is_plain = found is not None and found.end() > 0
    assert not is_plain


def test_lines_of_text_are_read_at_once() -> None:
    [items] = read_lines('tea\n"rye, \n\n\ufeffa\r\n', TEXT, refuse)
    assert items.to_pylist() == ["tea", '"rye, ', "", "\ufeffa"]


@each_case(
    "line", ['a,"b', "a", "a,b,c", 'a,"b"""c"', "a\r,b", "a\0,b", "\udcff,b", 'a,b"', "a,b\r\r"]
)
def test_only_the_lines_that_are_not_plain_are_read_one_by_one(line: str) -> None:
    seen = []

    def read(one: str) -> dict[str, Any] | None:
        seen.append(one)
        return None if len(seen) == 2 else {"user": "odd"}

    shape = Shape({"item": 0, "user": 1}, 2, ",", is_quoted=True)
    items, users = read_lines(f"{line}\n1,x\n{line}\n2,x\n{line}\n{line}\n3,x\n", shape, read)
    assert seen == [line.rstrip("\r")] * 4
    assert items.to_pylist() == [None, "1", "2", None, None, "3"]
    assert users.to_pylist() == ["odd", "x", "x", "odd", "odd", "x"]
