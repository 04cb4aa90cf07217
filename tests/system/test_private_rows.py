"""Under privacy what one client wrote changes what that client holds, and nothing else: not a row,
not a word."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import types
from contextlib import redirect_stderr, redirect_stdout
from decimal import Decimal
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.campaign.server import FrequencyServer
from fedtally.domain import Dictionary, parse
from fedtally.errors import InvalidInputError
from fedtally.simulation import round_sums
from fedtally.simulation.census import read
from fedtally.simulation.run import run
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch
from fedtally.sources import Columns, Source, from_items, lines, open_source
from fedtally.sources.layout import Layout
from fedtally.sources.readers import table_source

DRINKS = Dictionary(["tea", "maté", "rice, boiled", "7"])
OTHERS = ["tea", "maté", "7", "tea", "rice, boiled", "tea"]
ODD = [
    b'"',
    b'"tea',
    b'te"a',
    b'"tea" x',
    b'tea"',
    b'"""',
    b'""tea',
    b",",
    b",,,,",
    b"tea,tea",
    b'","',
    b'"tea","rye"',
    b'x,"y',
    b"\xff\xfe",
    b"caf\xe9",
    b"\x1f\x8b",
    b"PAR1",
    b"\xef\xbb\xbf",
    b"\0",
    b"tea\0",
    b"\r",
    b"tea\rtea",
    b"\\",
    b"\\ud800",
    b"{",
    b"}",
    b'"}',
    b'", "user": "u1',
    b"[1]",
    b"9" * 5000,
    b"1e999",
    b"-0",
    b"nan",
    b"\xed\xa0\x80",
    b"\x80" * 9,
    b"'",
    b";",
    b"\t",
    b" ",
    b"x" * 100_000,
]


def tally_members(source: Source, **options: Any) -> list[Any]:
    """Return the rounds of a private run as plain values: the draws are those of the seed."""
    asked = {"domain": DRINKS, "epsilon": 1.0, "not_private": True, "seed": 1} | options
    tally, _ = read(source, Simulation.of(**asked), bytes(32), lambda *_: None)
    rounds = tally.finish(individuals=True)
    return [(part.num_clients, part.ids.tolist(), part.counts.tolist()) for part in rounds]


def less(whole: list[Any], part: list[Any]) -> int:
    """Return how many items `whole` has beyond `part`, after checking that it has the same clients
    and no item less."""
    assert [r[0] for r in whole] == [r[0] for r in part]
    beyond = 0
    for (_, ids, counts), (_, other_ids, other_counts) in zip(whole, part, strict=True):
        held, left = (
            dict(zip(ids, counts, strict=True)),
            dict(zip(other_ids, other_counts, strict=True)),
        )
        assert all(held.get(item, 0) >= number for item, number in left.items())
        beyond += sum(held.values()) - sum(left.values())
    return beyond


# ---- one line, one row ----


def csv_of(rows: list[tuple[str, bytes]], client: str, quote: bool = True) -> bytes:
    """Write rows as an exporter that does not look at what it writes; those of the others are
    quoted well."""
    lines = [
        {"": b"item", "first": b"user,item", "last": b"item,user", "middle": b"n,user,item,x"}[
            client
        ]
    ]
    for user, item in rows:
        held = b'"' + item + b'"' if quote and b", " in item else item
        lines.append(
            {
                "": held,
                "first": user.encode() + b"," + held,
                "last": held + b"," + user.encode(),
                "middle": b"1," + user.encode() + b"," + held + b",2",
            }[client]
        )
    return b"\n".join(lines) + b"\n"


def text_of(rows: list[tuple[str, bytes]], _: str) -> bytes:
    return b"".join(item + b"\n" for _, item in rows)


def json_of(rows: list[tuple[str, bytes]], client: str) -> bytes:
    """Write the bytes of the item between quotes, as they are."""
    return b"".join(
        (b'{"user": "' + user.encode() + b'", ' if client else b"{") + b'"item": "' + item + b'"}\n'
        for user, item in rows
    )


def written(folder: Path, kind: str, client: str, item: bytes, place: int) -> str:
    rows = [(f"u{i}", other.encode()) for i, other in enumerate(OTHERS)]
    rows.insert(place, ("odd", item))
    path = folder / f"t.{kind}"
    path.write_bytes({"csv": csv_of, "jsonl": json_of, "txt": text_of}[kind](rows, client))
    return str(path)


@pytest.mark.promise
@pytest.mark.parametrize("place", [0, 3, len(OTHERS)])
@pytest.mark.parametrize(
    ("kind", "client"),
    [("csv", ""), ("csv", "first"), ("csv", "last"), ("csv", "middle"), ("txt", ""), ("jsonl", "")],
)
def test_whatever_a_client_writes_the_others_are_the_same(
    tmp_path: Path, kind: str, client: str, place: int
) -> None:
    """Every neighbour has the same clients, and the same items but for the one client's own."""
    columns = Columns("item", client="user" if client else None) if kind != "txt" else Columns()

    def rounds(item: bytes) -> list[Any]:
        source = open_source(written(tmp_path, kind, client, item, place), columns)
        # rows without a name are drawn all together
        return tally_members(source, num_rounds=2 if client else 1)

    nothing = rounds(b"")
    assert sum(r[0] for r in nothing) == len(OTHERS) + 1
    for item in ODD:
        assert less(rounds(item), nothing) <= 1, item
    assert less(rounds(b"tea"), nothing) == 1


@pytest.mark.promise
@settings(max_examples=150)
@given(
    item=st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
    more=st.lists(st.sampled_from([b'"', b",", b"\r", b"\xff", b"\0", b'""', b'","']), max_size=5),
    layout=st.sampled_from(
        [("csv", "first"), ("csv", "last"), ("csv", "middle"), ("csv", ""), ("txt", "")]
    ),
    block_size=st.integers(1, 40),
)
def test_any_bytes_are_one_clients_own(
    tmp_path_factory: pytest.TempPathFactory,
    item: bytes,
    more: list[bytes],
    layout: tuple[str, str],
    block_size: int,
) -> None:
    kind, client = layout
    folder = tmp_path_factory.mktemp("bytes")
    columns = Columns("item", client="user" if client else None) if kind == "csv" else Columns()

    def rounds(held: bytes) -> list[Any]:
        path = written(folder, kind, client, held, 2)
        source = table_source(
            path, columns, Layout(kind if kind == "csv" else "text", block_size=block_size)
        )
        return tally_members(source, num_rounds=2 if client else 1)

    assert less(rounds(item + b"".join(more)), rounds(b"")) <= 1


def well_written(format: str, words: list[str]) -> str:
    """Return the words as the column `item` of a table with another column, as the standard library
    writes it."""
    if format == "text":
        return "".join(f"{word}\n" for word in words)
    if format == "json":
        return "".join(json.dumps({"other": 1.5, "item": word}) + "\n" for word in words)
    sink = StringIO(newline="")
    writer = csv.writer(sink, delimiter="\t" if format == "tsv" else ",", lineterminator="\n")
    writer.writerows([["other", "item"], *(["", word] for word in words)])
    return sink.getvalue()


@pytest.mark.promise
@settings(max_examples=60)
@given(
    words=st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=9), min_size=1
    ),
    format=st.sampled_from(["csv", "tsv", "json", "text"]),
    size=st.integers(16, 400),
)
def test_a_table_without_fault_reads_alike_with_and_without_privacy(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], format: str, size: int
) -> None:
    path = tmp_path_factory.mktemp("alike") / "t"
    path.write_text(well_written(format, [*words, "end"]), encoding="utf8")
    columns = Columns("item") if format != "text" else Columns()
    read = {}
    for private in (False, True):
        source = table_source(str(path), columns, Layout.detect(str(path), columns, format=format))
        batches = list(source.batches(private=private))
        items = [item for batch in batches for item in batch.items.to_pylist()]
        read[private] = items, sum(batch.dropped.incomplete for batch in batches)
        small = Layout.detect(str(path), columns, format=format)
        again = Layout(small.format, small.delimiter, block_size=size)
        if private:
            parts = table_source(str(path), columns, again).batches(private=True)
            assert [item for batch in parts for item in batch.items.to_pylist()] == items
    assert read[False] == read[True]


def test_a_row_that_names_no_client_is_nobodys(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('user,item\nann,tea\nbob\n,tea\n"eve,tea\nzoe,7\n')
    rounds = tally_members(open_source(str(path), Columns("item", client="user")))
    assert rounds[0][0] == 4  # ann; bob, cut short; "eve, as it stands; zoe
    path = tmp_path / "t.jsonl"
    path.write_text(
        '{"user": 1, "item": "tea"}\noops\n{"item": "tea"}\n[1]\n{"user": "1", "item": 7}\n'
    )
    rounds = tally_members(open_source(str(path), Columns("item", client="user")), max_items=2)
    assert rounds == [(1, [0, 3], [1, 1])]  # 1 and "1" are one name


def test_json_values_of_any_type_hold_what_they_say_or_nothing(tmp_path: Path) -> None:
    values = [
        '"tea"',
        "7",
        "7.0",
        '"7"',
        "true",
        "null",
        "[1]",
        '{"a": 1}',
        "1e999",
        "9" * 5000,
        '"\\ud800"',
        "NaN",
    ]
    path = tmp_path / "t.jsonl"
    path.write_text("".join(f'{{"item": {value}}}\n' for value in [*values, "oops", '"tea'] * 3))
    [(clients, ids, counts)] = tally_members(open_source(str(path), Columns("item")))
    assert (clients, ids, counts) == (42, [0, 3], [3, 9])


@pytest.mark.parametrize("depth", [1, 998, 1100, 50_000])
def test_a_deep_value_does_not_hide_its_client(tmp_path: Path, depth: int) -> None:
    deep = "[" * depth + '"]{"' + "]" * depth
    path = tmp_path / "t.jsonl"
    path.write_text(
        f'{{"item": {deep}, "user": 7}}\n{{"user": 8, "item": "tea", "x": {{"y": {deep}}}}}\n'
        + deep[:-1]
    )
    assert tally_members(open_source(str(path), Columns("item", client="user"))) == [(2, [0], [1])]
    assert tally_members(open_source(str(path), Columns("item"))) == [(3, [0], [1])]


def test_counts_that_cannot_be_read_stand_for_nobody(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("item,n\ntea,3\ntea,\ntea,x\ntea,-1\ntea,1e99\n,2\n7,4.0\n")
    [(clients, _, counts)] = tally_members(open_source(str(path), Columns("item", count="n")))
    assert (clients, counts) == (9, [3, 4])


def test_lines_too_long_to_hold_are_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedtally.sources.lines._LONGEST_LINE", 1000)
    path = tmp_path / "t.txt"
    path.write_bytes(b"tea\n" + b"x" * 100_000 + b"\ntea\n" + b"y" * 5000)
    for size in (64, 999, 4096):
        [(clients, _, counts)] = tally_members(
            table_source(str(path), Columns(), Layout("text", block_size=size))
        )
        assert (clients, counts) == (4, [2])


LONG = {
    "first": ("user,item\n", "{0},{1}\n", {"client": "user"}),
    "last": ("item,user\n", "{1},{0}\n", {"client": "user"}),
    "middle": ("n,item,user\n", '1,{1},"{0}"\n', {"client": "user", "round": "n"}),
    "counted": ("item,n\n", "{1},1\n", {"count": "n"}),
}


@pytest.mark.promise
@pytest.mark.parametrize("layout", LONG)
@pytest.mark.parametrize("kind", ["csv", "tsv"])
def test_a_long_item_does_not_take_its_client_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, kind: str
) -> None:
    """Lengths around the limit, and blocks that end at every place of the line: the same clients,
    and no item more."""
    monkeypatch.setattr("fedtally.sources.lines._LONGEST_LINE", 40)
    head, row, names = LONG[layout]
    separator = "," if kind == "csv" else "\t"
    path = tmp_path / f"t.{kind}"

    def rounds(item: str, size: int) -> list[Any]:
        rows = [("ann", "tea"), ("bob", item), ("eve", "7")]
        text = head + "".join(row.format(*each) for each in rows)
        path.write_text(text.replace(",", separator))
        layout = Layout(kind, separator, block_size=size)
        return tally_members(table_source(str(path), Columns("item", **names), layout))  # type: ignore[arg-type]

    nothing = rounds("", 1000)
    assert sum(part[0] for part in nothing) == 3
    for item in (
        "x" * 20,
        "x" * 33,
        "x" * 41,
        "x" * 79,
        '"' + "x" * 50 + '"',
        '"x""' * 30,
        "\r" * 60 + "x",
        "é" * 31,
    ):
        for size in range(1, len(item) + 40, 1 if item == "x" * 79 else 7):
            assert rounds(item, size) == nothing, (item, size)


def test_what_a_line_holds_depends_on_no_other_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word of 40 bytes is read and one of 41 is not, wherever blocks end."""
    monkeypatch.setattr("fedtally.sources.lines._LONGEST_LINE", 40)
    path, words = tmp_path / "t.txt", Dictionary(["a" * 40, "a" * 41, "tea"])
    for word, held in (("a" * 40, 1), ("a" * 41, 0)):
        path.write_text(f"{word}\ntea\n{word}\n{word}")
        for size in range(1, 130):
            source = table_source(str(path), Columns(), Layout("text", block_size=size))
            [(clients, ids, counts)] = tally_members(source, domain=words)
            assert (clients, ids, counts) == (4, [0, 2] if held else [2], [3, 1] if held else [1])


@pytest.mark.parametrize("layout", ["first", "last"])
def test_a_long_cut_is_no_text_in_any_encoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    """In latin-1 every byte is a character: the mark between the two ends is none."""
    monkeypatch.setattr("fedtally.sources.lines._LONGEST_LINE", 40)
    head, row, names = LONG[layout]
    (tmp_path / "t.csv").write_text(head + row.format("bob", "x" * 60))
    source = open_source(str(tmp_path / "t.csv"), Columns("item", **names), encoding="latin-1")  # type: ignore[arg-type]
    batches = list(source.batches(private=True))
    assert [len(batch) for batch in batches] == [0, 0]
    assert batches[1].itemless is not None and batches[1].itemless.clients.to_pylist() == ["bob"]


def test_a_long_line_of_json_is_its_clients_or_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never somebody else's."""
    monkeypatch.setattr("fedtally.sources.lines._LONGEST_LINE", 60)
    path, names = tmp_path / "t.jsonl", set()
    odd = ["x", '"', "\\", '","user":"eve', '\\"', '"}', "},"]
    for item in [part * number for part in odd for number in (*range(6, 30), 90)]:
        for row in (
            {"user": "bob", "item": item},
            {"item": item, "user": "bob"},
            {"item": [{"user": item}], "user": "bob"},
        ):
            path.write_text(json.dumps(row) + "\n")
            source = open_source(str(path), Columns("item", client="user"))
            for batch in source.batches(private=True, may_be_empty=True):
                names |= set(batch.clients.to_pylist()) if batch.clients is not None else set()
                names |= (
                    set(batch.itemless.clients.to_pylist()) if batch.itemless is not None else set()
                )
    assert names == {"bob"}


# ---- an item says nothing of whose it is ----

PARTS = ["tea", "3", '"', '""', ",", '",', ',"', '","', " ", "\r", "\xe9", "x"]
ANYTHING = st.lists(
    st.sampled_from(PARTS) | st.characters(codec="utf-8", exclude_characters="\n"), max_size=8
)
CELL = ANYTHING.map(lambda parts: "".join(parts).replace("\r", ""))


def as_cell(value: str, bare: str) -> str:
    """Write a field as tables are: in quotes where it holds a delimiter or starts or ends with a
    quote, as `bare`."""
    if bare == "always" or "," in value or value.startswith('"') or value.endswith('"'):
        return '"' + value.replace('"', '""') + '"'
    return value  # also with quotes in its midst


@pytest.mark.promise
@settings(max_examples=500)
@given(
    before=st.lists(CELL, max_size=3),
    behind=st.lists(CELL, max_size=3),
    own=st.integers(1, 3),
    held=st.lists(ANYTHING.map("".join), min_size=1, max_size=6),
    quoting=st.sampled_from(["always", "where needed"]),
)
def test_other_fields_are_the_same_whatever_the_item_is(
    before: list[str], behind: list[str], own: int, held: list[str], quoting: str
) -> None:
    """All positions: any number of fields on each side, and an item of one field, or of two side by
    side or apart."""
    first, width = len(before), len(before) + own + len(behind)
    items = [f"c{first}"] if own == 1 else [f"c{first}", f"c{first + own - 1}"]
    others = {f"c{place}": value for place, value in enumerate(before)}
    others |= {f"c{first + own + place}": value for place, value in enumerate(behind)}
    places = {name: int(name[1:]) for name in [*others, *items]}
    columns = Columns(tuple(items) if own > 1 else items[0])  # type: ignore[arg-type]
    read = lines.rows_of_csv(columns, ",", width, places, width == 1)
    written = [[as_cell(value, quoting) for value in side] for side in (before, behind)]
    for item in [*held, ",".join(held), ",".join(['"'] * own), ",".join(["3"] * own)]:
        row = read(",".join([*written[0], item, *written[1]]))
        assert {name: value for name, value in (row or {}).items() if name in others} == others
        assert row or not others


@each_case("user", ["ann", 'TV 44"', '5" nail', '"x" y', '44"'])
@each_case("item", ["3", "", '"3', '"', '"tea', 'te"a', "tea,rye", '"tea"', '3"', '""', "\xff"])
def test_a_bare_name_with_a_quote_is_not_joined_to_the_item(user: str, item: str) -> None:
    read = lines.rows_of_csv(Columns("item", client="user"), ",", 2, {"item": 0, "user": 1}, False)
    row = read(f"{item},{user}")
    assert row is not None and row["user"] == user
    if not user.startswith('"'):  # as a first field such a name is one that a table has in quotes
        read = lines.rows_of_csv(
            Columns("item", client="user"), ",", 2, {"item": 1, "user": 0}, False
        )
        row = read(f"{user},{item}")
        assert row is not None and row["user"] == user


@pytest.mark.parametrize("role", ["client", "round", "count"])
def test_nothing_stands_between_the_columns_of_an_item(tmp_path: Path, role: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text("lat,n,lon\n1,5,2\n")
    columns = Columns(("lat", "lon"), **{role: "n"})
    grid = parse("grid:0..20,0..20,1")
    with pytest.raises(
        InvalidInputError,
        match="'n' must not stand between 'lat' and 'lon'.* put it before or after",
    ):
        tally_members(open_source(str(path), columns), domain=grid)
    for order in ("n,lat,lon", "lat,lon,n", "n,lat,x,lon", "lat,x,lon,n"):
        found = []
        for odd in ("3", '"3', "3,4", "x,y", '"', "", '"3"', '3"', ","):
            cells = [
                {"n": "{0}", "lat": "{1}", "lon": "{0}", "x": "0"}[name]
                for name in order.split(",")
            ]
            rows = [",".join(cells).format(i + 1, odd if i == 4 else i + 1) for i in range(12)]
            path.write_text("\n".join([order, *rows]) + "\n")
            found.append(
                [part[0] for part in tally_members(open_source(str(path), columns), domain=grid)]
            )
        assert all(numbers == found[0] for numbers in found), order
        assert sum(found[0]) == (78 if role == "count" else 12)


# ---- what is public may be refused ----


def test_no_row_says_which_columns_there_are(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text('{"item": "tea"}\n')
    (tmp_path / "t.csv").write_text("tea,ann\n")
    for name, columns, message in (
        ("t.jsonl", Columns(), "name the item's"),
        ("t.csv", Columns(), "name the item by its place"),
        ("t.csv", Columns("1", client="2"), "must stand before the item"),
        ("t.csv", Columns("word"), "they are called 1, 2"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            tally_members(open_source(str(tmp_path / name), columns, header=False))
    (tmp_path / "t.csv").write_text('ann,tea\nbob,tea,x\n"eve\n')
    rounds = tally_members(
        open_source(str(tmp_path / "t.csv"), Columns("2", client="1"), header=False)
    )
    assert rounds == [(3, [0], [2])]


def test_lines_of_an_encoding_are_read_one_by_one_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes("maté\n".encode("utf-16"))
    with pytest.raises(InvalidInputError, match="iconv -f utf-16 -t utf-8"):
        tally_members(open_source(str(path), encoding="utf-16"))
    for encoding in ("latin-1", "shift_jis", "utf-7", "gb18030"):
        path.write_bytes(b"\x81\n\x1b$B\n+\n" + b"tea\n")
        [(clients, _, counts)] = tally_members(open_source(str(path), encoding=encoding))
        assert (clients, counts) == (4, [1]), encoding
    path.write_bytes("maté\n".encode("latin-1"))
    assert tally_members(open_source(str(path), encoding="latin-1"))[0][2] == [1]


@pytest.mark.parametrize("encoding", ["gbk", "shift_jis", "utf-7", "iso2022_jp", "hz", "big5"])
def test_encodings_in_which_an_item_changes_the_next_field_are_refused(
    tmp_path: Path, encoding: str
) -> None:
    (tmp_path / "t.csv").write_text("item,user\ntea,ann\n")
    with pytest.raises(
        InvalidInputError, match=f"could change whose it is; .* -f {encoding} -t utf-8"
    ):
        tally_members(
            open_source(str(tmp_path / "t.csv"), Columns("item", client="user"), encoding=encoding)
        )


def test_a_header_and_a_name_tell_gzip_and_no_row_does(tmp_path: Path) -> None:
    packed = gzip.compress(b"item\ntea\n")
    (tmp_path / "t.csv").write_bytes(packed)
    assert tally_members(open_source(str(tmp_path / "t.csv"), Columns("item")))[0][2] == [1]
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(b"tea\n"))
    assert tally_members(open_source(str(tmp_path / "t.txt.gz")))[0][2] == [1]
    (tmp_path / "u.txt").write_bytes(b"\x1f\x8btea\ntea\n")
    assert tally_members(open_source(str(tmp_path / "u.txt"))) == [(2, [0], [1])]


def test_without_privacy_such_values_are_errors_as_before(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('item\ntea\n"tea\n')
    with pytest.raises(InvalidInputError, match="quote"):
        list(open_source(str(path)).batches())


# ---- Parquet and columns in memory ----


@pytest.mark.parametrize(
    ("column", "odd"),
    [
        (pa.array([b"tea", b"7", b"\xff", None], pa.binary()), 2),
        (pa.array([b"tea", b"7", b"\xff"], pa.binary()).view(pa.string()), 2),
        (pa.array([7.0, 7.0, 2.5, float("inf"), None]), 2),
        (pa.array([7, 7, 2**64 - 1], pa.uint64()), 2),
        (pa.array(["tea", "7", ""]), 2),
    ],
)
def test_parquet_values_that_cannot_be_read(tmp_path: Path, column: Any, odd: int) -> None:
    found = []
    for values in (
        column,
        pa.concat_arrays([column[:odd], pa.nulls(1, column.type), column[odd + 1 :]]),
    ):
        parquet.write_table(pa.table({"item": values}), tmp_path / "t.parquet")
        found.append(tally_members(open_source(str(tmp_path / "t.parquet"))))
    assert found[0] == found[1] and sum(r[0] for r in found[0]) == len(column)


@pytest.mark.parametrize("values", [[b"tea", b"7"], [b"tea", b"\xff"]])
def test_categories_of_parquet_are_refused_whatever_they_hold(
    tmp_path: Path, values: list[bytes]
) -> None:
    """Parquet's own reader ends where one of them is no text."""
    text = pa.DictionaryArray.from_arrays(
        pa.array([0, 1], pa.int8()), pa.array(values, pa.binary()).view(pa.string())
    )
    parquet.write_table(pa.table({"item": text}), tmp_path / "t.parquet")
    with pytest.raises(InvalidInputError, match="must not be of categories"):
        tally_members(open_source(str(tmp_path / "t.parquet")))


@pytest.mark.parametrize(
    ("encoding", "odd"), [("iso2022_jp", b"tea\x1b"), ("utf-7", b"+*"), ("hz", b"~x")]
)
@pytest.mark.parametrize("ending", ["txt", "jsonl"])
def test_a_line_that_an_encoding_cannot_read_holds_nothing(
    tmp_path: Path, encoding: str, odd: bytes, ending: str
) -> None:
    rows = [b'{"item": "%s"}' % one if ending == "jsonl" else one for one in (b"tea", odd, b"7")]
    (tmp_path / f"t.{ending}").write_bytes(b"\n".join(rows) + b"\n")
    columns = Columns("item") if ending == "jsonl" else None
    found = tally_members(open_source(str(tmp_path / f"t.{ending}"), columns, encoding=encoding))
    assert sum(r[0] for r in found) == 3


def test_a_blank_item_of_a_table_without_a_header_is_a_client(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("tea\n\n7\n")
    found = tally_members(open_source(str(tmp_path / "t.csv"), Columns("1"), header=False))
    assert sum(r[0] for r in found) == 3


OBJECTS: list[Any] = [
    Decimal("Infinity"),
    Decimal("NaN"),
    1,
    2.5,
    "\ud800",
    b"\xff",
    b"tea",
    [1],
    {"a": 1},
    object(),
    True,
    2**70,
    -(2**63) - 1,
    10**5000,
]
OBJECTS += [
    float("nan"),
    float("inf"),
    np.float32(1.5),
    np.datetime64("2020"),
    (1, 2),
    complex(1),
    "",
    "tea\0",
]


@pytest.mark.parametrize("odd", OBJECTS, ids=lambda value: str(type(value)))
@pytest.mark.parametrize("others", [["tea", "maté", "7"] * 3, [7, 7, 8] * 3, [7.0, 2.5, 7.0] * 3])
def test_objects_in_memory(odd: Any, others: list[Any]) -> None:
    whole, nothing = (tally_members(from_items([*others, held])) for held in (odd, None))
    assert less(whole, nothing) <= 1
    as_array = np.empty(len(others) + 1, object)
    as_array[:] = [*others, odd] if not isinstance(odd, list | tuple | dict) else [*others, None]
    assert less(tally_members(from_items(as_array)), nothing) <= 1
    assert whole[0][0] == len(others) + 1


def raising(*_: Any) -> Any:
    raise RuntimeError("secret")


def of_class(base: type, value: Any, *methods: str, **other: Any) -> Any:
    """Return a value whose class raises in these methods."""
    made = type(base)("Raising", (base,), dict.fromkeys(methods, raising))
    return made(value, **other)


class Kind(type):
    __hash__ = raising  # type: ignore[assignment]


class OfKind(metaclass=Kind):
    """An object whose class cannot be kept in a set."""


RAISING = {
    "encode": of_class(str, "tea", "encode"),
    "text": of_class(str, "tea", "__str__", "__eq__", "__hash__", "__len__", "__iter__"),
    "item": of_class(np.float64, 7.0, "item"),
    "float": of_class(float, 7.0, "__float__", "__repr__", "is_integer"),
    "int": of_class(
        int, 7, "__int__", "__index__", "__str__", "__le__", "__lt__", "__ge__", "__gt__"
    ),
    "bytes": of_class(bytes, b"tea", "decode", "__bytes__"),
    "decimal": of_class(Decimal, 7, "as_tuple", "__str__"),
    "kind": OfKind(),
    "class": type("Posing", (), {"__class__": property(raising)})(),
    "attribute": type("Hiding", (), {"__getattribute__": raising})(),
}


@pytest.mark.parametrize("place", ["items", "clients", "rounds", "counts"])
@pytest.mark.parametrize("name", RAISING)
def test_an_object_whose_class_raises_ends_nothing(name: str, place: str) -> None:
    """It holds nothing, or what a plain value would; as a client or a round it is nobody's, as a
    count 0."""
    columns: dict[str, list[Any]] = {"items": ["tea", "7", "tea"], place: ["7", "7", "7"]}
    if place == "items":
        columns["clients"] = ["ann", "bob", "eve"]
    nothing, odd = (
        tally_members(from_items(**(columns | {place: [*columns[place][:2], value]})))
        for value in (None, RAISING[name])
    )
    if place == "items":
        assert less(odd, nothing) <= 1
    else:
        more = sum(part[0] for part in odd) - sum(part[0] for part in nothing)
        assert more in (0, 7 if place == "counts" else 1)


def test_the_type_of_one_object_does_not_change_the_others() -> None:
    import datetime
    from decimal import Decimal

    from fedtally.sources.values import of_objects

    zone = datetime.timezone(datetime.timedelta(hours=2))
    alone: list[Any] = [
        Decimal("1"),
        1,
        1.5,
        "a",
        datetime.date(2020, 1, 2),
        datetime.datetime(2020, 1, 2),
        True,
    ]
    for other in [
        Decimal("2.50"),
        datetime.datetime(2020, 1, 2, 3, tzinfo=zone),
        b"x",
        2**70,
        "\ud800",
        0.5,
        [1],
    ]:
        texts = of_objects([*alone, other]).to_pylist()[:-1]
        assert texts == ["1", "1", "1.5", "a", "2020-01-02", "2020-01-02 00:00:00", "true"]


# ---- what is shown ----


def run_in_the_open(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> tuple[int, str, str]:
    """Run a command with sums of nothing and noise of a seed: what is left must not depend on what
    clients hold."""
    from fedtally.cli import app

    count = iter(range(10**9))

    def token(size: int = 32) -> bytes:
        return hashlib.shake_256(str(next(count)).encode()).digest(size)

    encode = round_sums.encode

    def empty(*given: Any) -> Any:
        for sketch in encode(*given):
            sketch.counters.fill(0)
            yield sketch

    monkeypatch.setattr("secrets.token_bytes", token)
    monkeypatch.setattr(round_sums, "encode", empty)
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
        code = app.run(arguments)
    monkeypatch.undo()
    return code, out.getvalue(), error.getvalue()


@pytest.mark.promise
@pytest.mark.parametrize(
    "options", [[], ["--json"], ["--client", "user"], ["--round", "day"], ["--rounds", "3"]]
)
def test_nothing_shown_depends_on_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], matrix: bool
) -> None:
    (tmp_path / "drinks.txt").write_text("tea\nmaté\n7\n", encoding="utf8")
    given = [
        "--item",
        "item",
        "--domain",
        str(tmp_path / "drinks.txt"),
        "--epsilon",
        "1",
        "--rows",
        "3",
        "--width",
        "8",
    ]
    shown = set()
    for item in [b"", b"tea", *ODD[:: 4 if matrix else 9]]:
        rows = [(f"u{i}", other.encode()) for i, other in enumerate(OTHERS)] + [("odd", item)]
        lines = [b"day,user,item"] + [b"1," + user.encode() + b"," + held for user, held in rows]
        (tmp_path / "t.csv").write_bytes(b"\n".join(lines) + b"\n")
        shown.add(
            run_in_the_open(monkeypatch, ["estimate", str(tmp_path / "t.csv"), *given, *options])
        )
    [(code, out, _)] = shown
    assert code == 0 and out


NOBODY = {
    "t.csv": ("user,n,item\n", ["ann,1,tea\n", "bob,1,7\n"]),
    "t.tsv": ("user\tn\titem\n", ["ann\t1\ttea\n", "bob\t1\t7\n"]),
    "t.jsonl": (
        "",
        ['{"user": "ann", "n": 1, "item": "tea"}\n', '{"user": "bob", "n": 1, "item": "7"}\n'],
    ),
    "t.txt": ("", ["tea\n", "7\n"]),
}
PARTS_OF_A_ROW = [
    ({}, {}),
    ({"client": "user"}, {}),
    ({"client": "user"}, {"max_items": 3}),
    ({"count": "n"}, {}),
    ({"round": "n"}, {}),
    ({}, {"max_items": 3}),
    ({}, {"max_rounds": 2}),
]


def source_of(folder: Path, kind: str, number: int, names: dict[str, str]) -> Source:
    """Return the source of so many rows of two."""
    columns = Columns(None if kind == "t.txt" else "item", **names)  # type: ignore[arg-type]
    if kind in NOBODY:
        head, rows = NOBODY[kind]
        (folder / kind).write_text(head + "".join(rows[:number]))
        return open_source(str(folder / kind), columns)
    held = {"user": ["ann", "bob"][:number], "n": [1, 1][:number], "item": ["tea", "7"][:number]}
    if kind == "memory":
        given = {f"{role}s": held[name] for role, name in names.items()}
        return from_items(held["item"], **given)
    types = {"user": pa.string(), "n": pa.int64(), "item": pa.string()}
    table = pa.table({name: pa.array(values, types[name]) for name, values in held.items()})
    parquet.write_table(table, folder / "t.parquet")
    return open_source(str(folder / "t.parquet"), columns)


@pytest.mark.promise
@pytest.mark.parametrize("kind", [*NOBODY, "memory", "t.parquet"])
@pytest.mark.parametrize(("names", "options"), PARTS_OF_A_ROW)
def test_add_remove_does_not_tell_whether_anybody_takes_part(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    names: dict[str, str],
    options: dict[str, Any],
) -> None:
    """The notes and the errors of no row are those of one and of two; the noise is taken out of the
    comparison."""
    if kind == "t.txt" and names:
        pytest.skip("plain text has no columns")

    def hidden(plan: Any, *_: Any) -> Any:
        sketch = CountSketch(plan.spec, 0)
        sketch.num_clients, sketch.noise = 100, plan.noise_mark
        return [sketch]

    monkeypatch.setattr(FrequencyServer, "release", lambda self, _: hidden(self.plan))
    asked = {
        "domain": DRINKS,
        "epsilon": 1.0,
        "neighbours": "add-remove",
        "max_clients": 1000,
        "confidence": 0.0,
    }
    said = set()
    for number in range(3):
        source = source_of(tmp_path, kind, number, names)
        try:
            result = run(source, Simulation.of(**asked, rows=3, width=16, **options))
        except InvalidInputError as error:
            said.add((str(error),))
        else:
            said.add((result.plan.max_items, *result.warnings))
    assert len(said) == 1, said


def test_a_private_table_has_a_header(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("\n\n")
    asked = Simulation.of(domain=DRINKS, epsilon=1.0, neighbours="add-remove", max_clients=9)
    with pytest.raises(InvalidInputError, match="no header"):
        run(open_source(str(tmp_path / "t.csv"), Columns("item")), asked)


def test_progress_does_not_tell_how_long_values_are(tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    path = tmp_path / "t.txt"
    path.write_text("tea\n" * 50)
    for epsilon in (1.0, None):
        run(
            open_source(str(path)),
            Simulation.of(domain=DRINKS, epsilon=epsilon),
            lambda *what: seen.append(what),
        )
        assert ("read" in {stage for stage, *_ in seen}) == (epsilon is None)


def test_standard_input_of_a_private_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=BytesIO(b'"tea\ntea\n\xff\n')))
    assert tally_members(open_source("-")) == [(3, [0], [1])]
