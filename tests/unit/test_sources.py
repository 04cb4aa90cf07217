"""Tables, text, columns in memory and synthetic populations, and everything that can be wrong with
them."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import os
import re
import tempfile
import threading
import types
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.errors import InvalidInputError, UnreadableFileError, render
from fedtally.sources import (
    Columns,
    Source,
    frequencies,
    from_items,
    from_table,
    is_table,
    open_source,
    streams,
)
from fedtally.sources.layout import Layout
from fedtally.sources.readers import _Quotes, table_source
from fedtally.sources.synthetic import profiles

WORDS = ["007", "NA", "null", "café", ' "q" ', "a,b", "x\ty", "1.0", "true", "2020-01-01"]


def collect(source: Source) -> dict[str, Any]:
    """Return the whole source as lists, with the number of batches."""
    batches = list(source.batches())
    whole: dict[str, Any] = {
        "items": [item for batch in batches for item in batch.items.to_pylist()],
        "missing": sum(batch.dropped.incomplete for batch in batches),
        "batches": len(batches),
    }
    for name in ("clients", "rounds", "counts"):
        if getattr(batches[0], name) is not None:
            whole[name] = [value for batch in batches for value in getattr(batch, name).tolist()]
    return whole


def write(path: Path, content: bytes | str) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def fails(path: str, message: str, columns: Columns | None = None, **options: Any) -> None:
    with pytest.raises(InvalidInputError) as caught:
        collect(open_source(path, columns, **options))
    assert re.search(message, render(caught.value.marked, for_="shell"))


def as_table(format: str, words: list[str]) -> bytes:
    """Write the words as the column `item` of a table with another column."""
    if format == "parquet":
        sink = io.BytesIO()
        parquet.write_table(pa.table({"other": [0] * len(words), "item": words}), sink)
        return sink.getvalue()
    if format == "feather":
        sink = io.BytesIO()
        feather.write_feather(pa.table({"other": [0] * len(words), "item": words}), sink)
        return sink.getvalue()
    if format == "text":
        return "".join(f"{word}\n" for word in words).encode()
    if format == "json":
        return "".join(json.dumps({"other": 1.5, "item": word}) + "\n" for word in words).encode()
    text = io.StringIO()
    writer = csv.writer(text, delimiter={"csv": ",", "tsv": "\t"}[format])
    writer.writerows([["other", "item"], *([1.5, word] for word in words)])
    return text.getvalue().encode()


# ------------------------------------------------------------------------------------------ formats


COMPRESSED = {
    "": lambda content: content,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": lambda content: pa.compress(content, "zstd", asbytes=True),
}


@pytest.mark.parametrize("end", COMPRESSED)
@pytest.mark.parametrize(
    ("suffix", "format"),
    [
        ("csv", "csv"),
        ("tsv", "tsv"),
        ("jsonl", "json"),
        ("ndjson", "json"),
        ("json", "json"),
        ("parquet", "parquet"),
        ("feather", "feather"),
        ("arrow", "feather"),
        ("txt", "text"),
    ],
)
def test_every_format_keeps_text_as_written(
    tmp_path: Path, suffix: str, format: str, end: str
) -> None:
    path = tmp_path / f"words.{suffix}{end}"
    write(path, COMPRESSED[end](as_table(format, WORDS)))
    source = open_source(path)
    assert collect(source)["items"] == WORDS
    assert collect(source)["items"] == WORDS  # readable again
    assert source.size_bytes == path.stat().st_size
    assert source.repeatable
    assert source.synthetic_size is None
    assert [batch.bytes_read for batch in source.batches()][-1] == source.size_bytes


def test_the_format_option_and_the_content_win_over_the_name(tmp_path: Path) -> None:
    path = write(tmp_path / "words.data", gzip.compress(as_table("tsv", WORDS)))
    assert collect(open_source(path, format="tsv"))["items"] == WORDS


@pytest.mark.parametrize("end", COMPRESSED)
def test_a_compression_is_recognised_by_the_content_and_its_parts_follow_one_another(
    tmp_path: Path, end: str
) -> None:
    parts = [COMPRESSED[end](as_table("text", WORDS[:3])), COMPRESSED[end](b"last\n")]
    path = write(tmp_path / "words", b"".join(parts))
    assert collect(open_source(path))["items"] == [*WORDS[:3], "last"]


def test_words_that_begin_as_a_compressed_file_does_are_words(tmp_path: Path) -> None:
    path = write(tmp_path / "words.txt", "BZh9\nARROW1\nPAR\n")
    assert collect(open_source(path))["items"] == ["BZh9", "ARROW1", "PAR"]


@pytest.mark.parametrize("end", [end for end in COMPRESSED if end])
def test_a_damaged_file_is_named_with_its_compression(tmp_path: Path, end: str) -> None:
    kind = {".gz": "gzip", ".bz2": "bzip2", ".xz": "xz", ".zst": "zstd"}[end]
    whole = COMPRESSED[end]("".join(f"{n * 7919}\n" for n in range(20_000)).encode())
    fails(write(tmp_path / f"cut.txt{end}", whole[:-9]), f"is no intact {kind} file: ")
    middle = len(whole) // 2
    torn = whole[:middle] + bytes(200) + whole[middle + 200 :]
    fails(write(tmp_path / f"torn.txt{end}", torn), f"is no intact {kind} file: ")
    fails(write(tmp_path / f"plain.txt{end}", b"tea\n"), f"is no intact {kind} file: it starts wi")


@pytest.mark.parametrize("private", [False, True])
def test_an_arrow_file_is_read_as_a_parquet_file_is(tmp_path: Path, private: bool) -> None:
    table = pa.table(
        {
            "user": pa.array([1, 2, 2, None, 3], pa.int32()),
            "word": ["tea", "rice", None, "tea", "milk"],
            "left": [[1]] * 5,
        }
    )
    parquet.write_table(table, tmp_path / "t.parquet")
    feather.write_feather(table, str(tmp_path / "t.feather"), chunksize=2)
    found = [
        list(open_source(tmp_path / f"t.{end}", Columns("word", "user")).batches(private=private))
        for end in ("parquet", "feather")
    ]
    ours, theirs = ([(b.items.to_pylist(), b.clients.to_pylist()) for b in one] for one in found)
    for part in (0, 1):
        assert [v for one in theirs for v in one[part]] == [v for one in ours for v in one[part]]
    assert [sum(b.dropped.incomplete for b in batches) for batches in found] == [2, 2]
    small = Layout("feather", block_size=64)  # a row at a time
    assert (
        collect(table_source(str(tmp_path / "t.feather"), Columns("word", "user"), small))
        == {
            "items": ["tea", "rice", "milk"],
            "missing": 2,
            "batches": 5,
            "clients": [1, 2, 3],
        }
        or private
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.xlsx", b"PK\x03\x04 and so on", "is a spreadsheet: save the sheet as CSV, or"),
        ("t.sqlite", b"SQLite format 3\0", "is an SQLite database: pipe a table of it in, sqlite3"),
        ("t.zip", b"PK\x03\x04 and so on", "is an archive: unpack it"),
        ("t.orc", b"ORC", "is of a format that is not read: write it as Parquet or CSV"),
        ("t", b"SQLite format 3\0 and so on", "is an SQLite database"),
        ("t.csv", b"PK\x03\x04 and so on", "is an archive: .* or it is a spreadsheet"),
        ("t.txt", b"ARROW1\0\0 and so on", "is an Arrow .* use --format feather"),
        ("t.csv.gz", gzip.compress(b"FEA1\0 and so on", mtime=0), "is a Feather file of version 1"),
        ("t.feather", b"item,n\n" * 9, "cannot be read: it is damaged"),
    ],
)
def test_what_is_not_read_names_the_way_out(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    fails(write(tmp_path / name, content), message)


# ------------------------------------------------------------------------------------------ folders


@pytest.mark.parametrize("end", ["parquet", "csv", "jsonl.zst", "csv without a header"])
@pytest.mark.parametrize("private", [False, True])
def test_a_folder_is_all_its_files_and_its_folders_name_rounds(
    tmp_path: Path, end: str, private: bool
) -> None:
    days = {"day=2026-11-02": ["tea", "tea"], "day=2026-11-01": ["rice"], "day=a%2Fb": ["milk"]}
    end, _, is_bare = end.partition(" ")
    format = {"parquet": "parquet", "csv": "csv", "jsonl.zst": "json"}[end]
    asked = Columns("2" if is_bare else "item", round="day")
    for day, words in days.items():
        for number, word in enumerate(words):
            part = tmp_path / "visits" / day / f"part-{number}.{end}"
            part.parent.mkdir(parents=True, exist_ok=True)
            content = as_table(format, [word])
            content = content[content.index(b"\n") + 1 :] if is_bare else content
            write(part, COMPRESSED["".join(part.suffixes[1:])](content))
    for hidden in ("_SUCCESS", ".part.crc", "_temporary/part-9.csv"):
        (tmp_path / "visits" / hidden).parent.mkdir(exist_ok=True)
        write(tmp_path / "visits" / hidden, b"\0")
    source = open_source(str(tmp_path / "visits"), asked, header=not is_bare)
    batches = [each for each in source.batches(private=private) if len(each)]
    assert [each.items.to_pylist() for each in batches] == [["rice"], ["tea"], ["tea"], ["milk"]]
    assert [each.rounds.to_pylist() for each in batches] == [
        ["2026-11-01"], ["2026-11-02"], ["2026-11-02"], ["a/b"]
    ]  # fmt: skip
    assert batches[0].columns.parts()["round"] == ["day"]
    assert source.size_bytes == sum(
        path.stat().st_size for path in tmp_path.glob(f"visits/day=*/*.{end}")
    )
    # without the round they are files as others
    asked, files = Columns(asked.item), str(tmp_path / "visits" / "day*" / "*")
    assert collect(open_source(files, asked, header=not is_bare)) == {
        "items": ["rice", "tea", "tea", "milk"],
        "missing": 0,
        "batches": 4,
    }


@pytest.mark.parametrize("format", ["csv", "parquet", "feather", "json"])
@pytest.mark.parametrize("private", [False, True])
def test_a_column_wins_over_a_folder_in_each_format(
    tmp_path: Path, format: str, private: bool
) -> None:
    columns = {"item": ["tea", "rice"], "person": ["a", "b"], "day": ["9", "8"], "site": ["x", "y"]}
    end = {"json": "jsonl"}.get(format, format)
    place = tmp_path / "day=1" / "site=z" / f"t.{end}"
    place.parent.mkdir(parents=True)
    table = pa.table(columns)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if format == "parquet":
        parquet.write_table(table, place)
    elif format == "feather":
        feather.write_feather(table, place)
    elif format == "csv":
        write(place, "item,person,day,site\ntea,a,9,x\nrice,b,8,y\n")
    else:
        write(place, "".join(f"{json.dumps(row)}\n" for row in rows))
    asked = Columns("item", client="person", round="day", silo="site")
    batches = [*open_source(str(tmp_path), asked).batches(private=private)]
    found = {
        part: [value for each in batches if len(each) for value in getattr(each, part).to_pylist()]
        for part in ("items", "rounds", "silos")
    }
    assert found == {"items": ["tea", "rice"], "rounds": ["9", "8"], "silos": ["x", "y"]}


def test_a_row_of_json_decides_on_a_folder_for_itself_alone(tmp_path: Path) -> None:
    """Under privacy nobody else's round may depend on what one row holds."""
    place = tmp_path / "day=1" / "t.jsonl"
    place.parent.mkdir()

    def rounds(first: str) -> list[str]:
        write(place, f'{first}\n{{"item": "rice"}}\nbroken\n{{"item": "milk", "day": null}}\n')
        source = open_source(str(tmp_path), Columns("item", round="day"))
        return [
            value
            for each in source.batches(private=True)
            if len(each)
            for value in each.rounds.to_pylist()
        ]

    of_others = rounds('{"item": "tea"}')
    assert of_others == ["1", "1"]
    assert rounds('{"item": "tea", "day": "9"}') == ["9", *of_others[1:]]


def test_a_column_wins_over_a_folder_and_a_missing_folder_is_missing(tmp_path: Path) -> None:
    for day, row in [("day=1", "tea,9"), ("day=2", "rice,8")]:
        (tmp_path / day).mkdir()
        write(tmp_path / day / "t.csv", f"item,day\n{row}\n")
    assert collect(open_source(tmp_path, Columns("item", round="day")))["rounds"] == ["9", "8"]
    null = tmp_path / "hour=__HIVE_DEFAULT_PARTITION__" / "t.csv"
    null.parent.mkdir()
    write(null, "item,other\nmilk,1\n")
    fails(
        str(null.parent),
        "its only row lacks its item .column 'item'. or its round .column 'hour'",
        Columns("item", round="hour"),
    )


def test_folders_that_cannot_be_read(tmp_path: Path) -> None:
    fails(str(tmp_path), "is a folder without files")
    (tmp_path / "city=Rome").mkdir()
    write(tmp_path / "city=Rome" / "a.csv", "item,user\ntea,1\n")
    fails(
        str(tmp_path), "no column 'city'.* a folder can be the round or the silo", Columns("city")
    )
    write(tmp_path / "b.jsonl", '{"item": "tea"}\n')
    fails(str(tmp_path), rf"have one format; name those that you mean, as '{tmp_path}/\*.jsonl'")


@pytest.mark.parametrize("format", ["csv", "tsv", "json", "parquet", "feather", "text"])
def test_standard_input(monkeypatch: pytest.MonkeyPatch, format: str) -> None:
    content = io.BytesIO(as_table(format, WORDS))
    monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=content))
    source = open_source("-", format=format)
    assert source.size_bytes is None
    assert not source.repeatable
    assert collect(source)["items"] == WORDS
    with pytest.raises(InvalidInputError, match="only once"):
        next(source.batches())


def test_standard_input_is_text_until_a_column_or_delimiter_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def piped(columns: Columns | None = None, **options: Any) -> dict[str, Any]:
        monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(b"a;b\n1;2\n")))
        return collect(open_source("-", columns, **options))

    assert piped()["items"] == ["a;b", "1;2"]
    assert piped(Columns("a;b"))["items"] == ["1;2"]
    assert piped(Columns("b"), delimiter=";")["items"] == ["2"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_read_whole(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed() -> None:
        with pipe.open("wb") as end:
            for number in range(20_000):
                end.write(f"{number}\n".encode())

    writer = threading.Thread(target=feed)
    source = open_source(pipe)
    writer.start()
    assert collect(source)["items"] == [str(number) for number in range(20_000)]
    writer.join()
    assert source.size_bytes is None
    assert not source.repeatable


def test_roles_and_missing_values(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "who,when,what\nu1,1,tea\n,1,rice\nu2,,rice\nu3,2,\nu4,2,NA\n")
    whole = collect(open_source(path, Columns("what", client="who", round="when")))
    assert whole == {
        "items": ["tea", "NA"],
        "missing": 3,
        "batches": 1,
        "clients": ["u1", "u4"],
        "rounds": ["1", "2"],
    }


def test_text_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "t.txt", "\ufeffx\r\n\r\n  y \n\nlast")
    assert collect(open_source(path)) == {
        "items": ["x", "  y ", "last"],
        "missing": 2,
        "batches": 2,
    }


def test_the_official_check_in_file(tmp_path: Path) -> None:
    rows = (
        "0\t2010-10-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847\n"
        "0\t2010-10-18T22:17:43Z\t\t-97.7\t420315\n"
    )
    path = write(tmp_path / "loc-gowalla_totalCheckins.txt.gz", gzip.compress(rows.encode()))
    source = open_source(path, Columns(("3", "4"), client="1"), format="tsv", header=False)
    assert collect(source) == {
        "items": ["30.2359091167,-97.7951395833"],
        "missing": 1,
        "batches": 1,
        "clients": ["0"],
    }


def test_pairs_of_floats(tmp_path: Path) -> None:
    table = {"lat": [40.75, float("nan"), -1e-7], "lon": [-74, 2, None]}
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    assert collect(open_source(tmp_path / "t.parquet", Columns(("lat", "lon"))))["items"] == [
        "40.75,-74"
    ]
    path = write(tmp_path / "t.json", '{"lat": 40, "lon": -70.5}\n{"lat": 41.5, "lon": null}\n')
    assert collect(open_source(path, Columns(("lat", "lon")))) == {
        "items": ["40,-70.5"],
        "missing": 1,
        "batches": 1,
    }
    assert collect(from_items(np.array([[1.5, 2.0], [3.0, np.nan]])))["items"] == ["1.5,2"]


def test_typed_columns_become_text_or_integers() -> None:
    items = {
        "dictionary": (pa.array(["a", "b"]).dictionary_encode(), ["a", "b"]),
        "view": (pa.array(["a", "b"], pa.string_view()), ["a", "b"]),
        "bytes": (pa.array([b"a", b"b"]), ["a", "b"]),
        "uint64": (pa.array([1, 2**64 - 1], pa.uint64()), [1, 2**64 - 1]),
        "int8": (pa.array([-1, 2], pa.int8()), [-1, 2]),
        "bool": (pa.array([True, False]), ["true", "false"]),
        "date": (pa.array([0, 1], pa.date32()), ["1970-01-01", "1970-01-02"]),
        "timestamp": (
            pa.array([0, 1], pa.timestamp("s")),
            ["1970-01-01 00:00:00", "1970-01-01 00:00:01"],
        ),
    }
    for name, (array, expected) in items.items():
        assert collect(from_items(array))["items"] == expected, name


def test_json_types_hold_for_the_whole_file(tmp_path: Path) -> None:
    """Arrow's own guess would make timestamps of these strings and stumble over the late field."""
    path = write(
        tmp_path / "t.jsonl",
        '{"item": "2020-01-01"}\n{"item": null}\n{"late": [1], "item": "x"}\n{"late": 2}\n',
    )
    assert collect(open_source(path)) == {"items": ["2020-01-01", "x"], "missing": 2, "batches": 1}
    path = write(tmp_path / "big.jsonl", '{"item": 1}\n{"item": 18446744073709551615}\n')
    assert collect(open_source(path))["items"] == [1, 2**64 - 1]


def test_unused_columns_are_not_read(tmp_path: Path) -> None:
    assert collect(open_source(write(tmp_path / "t.csv", b"item,x\na,\xff\n")))["items"] == ["a"]


def test_encodings(tmp_path: Path) -> None:
    for encoding in ("latin-1", "utf-16", "utf-8-sig"):
        for kind in ("csv", "json", "text"):
            path = write(tmp_path / "t", as_table(kind, WORDS).decode().encode(encoding))
            assert collect(open_source(path, format=kind, encoding=encoding))["items"] == WORDS
    fails(path, "unknown encoding 'utf9'", encoding="utf9")
    fails(path, "unknown encoding", encoding="utf8\0")


# ------------------------------------------------------------------------------------------ columns


def test_item_column_default(tmp_path: Path) -> None:
    assert collect(open_source(write(tmp_path / "a.csv", "word\nx\n")))["items"] == ["x"]
    assert collect(open_source(write(tmp_path / "b.csv", "item,z\nx,1\n")))["items"] == ["x"]
    assert collect(open_source(write(tmp_path / "c.csv", "word,n\nx,1\n"), Columns(count="n")))[
        "items"
    ] == ["x"]
    assert collect(open_source(write(tmp_path / "d.csv", "x\ny\n"), header=False))["items"] == [
        "x",
        "y",
    ]
    fails(write(tmp_path / "e.csv", "a,b\nx,1\n"), r"which column is the item.*'a', 'b'")
    (tmp_path / "semicolons.csv").write_text("a;b\n1;2\n")
    named = str(tmp_path / "semicolons.csv")
    fails(named, r"if it is separated by ';', say so \(--delimiter ';'\)", Columns("b"))
    fails(str(tmp_path / "e.csv"), r"no column 'c'; it has the columns 'a', 'b'", Columns("c"))
    fails(
        str(tmp_path / "e.csv"),
        r"no column 'a'; it has the columns '1', '2'",
        Columns("a"),
        header=False,
    )
    fails(write(tmp_path / "f.csv", "a,a\nx,1\n"), "several columns called 'a'", Columns("a"))


def test_one_column_may_play_two_parts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "a,b\nx,1\n")
    assert collect(open_source(path, Columns("a", client="a")))["clients"] == ["x"]


def test_columns_and_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot go with a client"):
        Columns("a", client="b", count="c")
    with pytest.raises(InvalidInputError, match="pair latitude, longitude"):
        Columns(("a", "b", "c"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="item must be the name of a column, .* got list"):
        Columns(["a", "b"])  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="client must be the name of a column, .* got int"):
        Columns("a", client=3)  # type: ignore[arg-type]
    path = write(tmp_path / "t.txt", "x\n")
    fails(path, "no column 'a'", Columns("a"), format="text")
    fails(path, "no delimiter", format="json", delimiter=";")
    fails(path, "one ASCII character", delimiter=";;")
    fails(path, "format must be", format="xlsx")


# ------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("count", ["-1", "1.5", "nan", "1e3", "abc", "9223372036854775808"])
def test_bad_counts_in_text(tmp_path: Path, count: str) -> None:
    path = write(tmp_path / "t.csv", f"item,n\nx,3\ny,{count}\n")
    fails(
        path,
        rf"column 'n' must hold whole numbers from 0 to 2\^63 - 1, got '?{count}",
        Columns(count="n"),
    )


def test_all_columns_that_are_missing_are_named_at_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "word,user\ntea,ann\n")
    fails(path, "no column 'wrd' and no column 'usr'; .*'word'.*'user'", Columns("wrd", "usr"))
    fails(path, r"--delimiter ','", Columns("word"), delimiter=";")


@pytest.mark.parametrize("count", [-1, 1.5, float("nan"), float("inf"), 2**63])
def test_bad_counts_in_memory(count: float) -> None:
    with pytest.raises(
        InvalidInputError, match=r"'counts' must hold whole numbers|misses the count in 1 row"
    ):
        collect(from_items(["x", "y"], counts=[3, count]))


def test_good_counts(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "item,n\nx, 7 \ny,+8\nz,9.00\n,-5\nw,0\n")
    whole = collect(open_source(path, Columns(count="n")))
    assert whole["counts"] == [7, 8, 9, 0]
    assert whole["missing"] == 1
    assert collect(from_items(["x", "y"], counts=np.array([2.0, 0.0])))["counts"] == [2, 0]
    assert collect(from_items(["x", "y"], counts=[0, 0]))["counts"] == [0, 0]
    decimals = pa.array([2, 2**60]).cast(pa.decimal128(38, 0))
    assert collect(from_items(["x", "y"], counts=decimals))["counts"] == [2, 2**60]


def test_a_missing_count_is_an_error(tmp_path: Path) -> None:
    fails(
        write(tmp_path / "t.csv", "item,n\nx,1\ny,\n"),
        "misses the count in 1 row",
        Columns(count="n"),
    )
    fails(
        write(tmp_path / "t.json", '{"item":"x","n":1}\n{"item":"y"}\n'),
        "misses the count",
        Columns(count="n"),
    )


# --------------------------------------------------------------------------------------------------
# unreadable files


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "txt"])
def test_nothing_to_read(tmp_path: Path, suffix: str) -> None:
    fails(write(tmp_path / f"t.{suffix}", b""), "is empty: it has no rows")


@pytest.mark.parametrize("content", ["user,item", "\ufeffuser,item", "\n\r\nuser,item", '"item"'])
@pytest.mark.parametrize("private", [False, True])
def test_a_header_without_the_end_of_its_line_has_no_rows(
    tmp_path: Path, content: str, private: bool
) -> None:
    for name in ("t.csv", "t.csv.gz"):
        data = content.encode()
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
        source = open_source(tmp_path / name, Columns("item"))
        with pytest.raises(InvalidInputError, match="is empty: it has no rows"):
            list(source.batches(private=private))
    rows = f"{content}\n" + "a,b\n" * 2
    path = write(tmp_path / "t.csv", rows if "," in content else "item\na\nb\n")
    assert sum(map(len, open_source(path, Columns("item")).batches(private=private))) == 2


@pytest.mark.parametrize("name", ["t.arrow", "t.arrow.gz"])
def test_a_stream_of_arrow_is_named(tmp_path: Path, name: str) -> None:
    table, sink = pa.table({"item": ["tea"]}), io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    fails(str(tmp_path / name), "is a stream of Arrow.*ipc.open_stream")


def test_no_rows(tmp_path: Path) -> None:
    fails(write(tmp_path / "t.csv", "item,b\n"), "no rows")
    fails(write(tmp_path / "u.csv", "\n\n\n"), "no rows")
    fails(write(tmp_path / "t.txt", "\n\n"), "each of its 2 rows lacks its item")
    parquet.write_table(pa.table({"item": pa.array([], pa.string())}), tmp_path / "t.parquet")
    fails(str(tmp_path / "t.parquet"), "no rows")


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    for path, message in [
        (str(tmp_path / "nowhere.csv"), "No such file"),
        (str(tmp_path), "is a folder without files"),
        ("zip:a=1", "no synthetic source: these start with zipf:, geometric:"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            open_source(path)  # before anything is read


@pytest.mark.parametrize("pattern", ["", "**"])
def test_a_disk_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str) -> None:
    monkeypatch.setattr("fedtally.sources.files._MOST_ENTRIES", 2)
    for name in ("a", "b"):
        write(tmp_path / f"{name}.txt", "tea\n")
    path = f"{tmp_path}/{pattern}"
    if pattern:  # the folder itself is one of the three
        fails(path, r"names more than 2 files and folders")
        monkeypatch.setattr("fedtally.sources.files._MOST_ENTRIES", 3)
    assert collect(open_source(path))["items"] == ["tea", "tea"]
    (tmp_path / "more").mkdir()
    fails(path, r"names more than \d files and folders: name the folder of one table")


def test_a_folder_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.txt", "tea\n")
    locked = tmp_path / "locked"
    locked.mkdir()
    scandir = os.scandir

    def refuse(path: Any) -> Any:  # what the system does for others than root
        if Path(path) == locked:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    fails(str(tmp_path), "locked cannot be read: Permission denied; name the files that you mean")


def test_ragged_rows_are_named(tmp_path: Path) -> None:
    rows = ["item,b", *["x,1"] * 1000]
    path = write(tmp_path / "short.csv", "\n".join([*rows, "y", *rows[1:]]))
    small = Layout("csv", block_size=256)  # the number counts over blocks
    with pytest.raises(UnreadableFileError, match=r"row 1002: 1, not 2"):
        collect(table_source(path, Columns(), small))
    fails(
        write(tmp_path / "long.csv", "\n".join([*rows, "y,1,2"])),
        "row 1002: 3, not 2",
    )


@pytest.mark.parametrize("suffix", ["csv", "txt", "jsonl"])
def test_wrong_bytes_name_the_encoding_option(tmp_path: Path, suffix: str) -> None:
    content = {"csv": b"item\ncaf\xe9\n", "txt": b"caf\xe9\n", "jsonl": b'{"item":"caf\xe9"}\n'}[
        suffix
    ]
    fails(write(tmp_path / f"t.{suffix}", content), "--text-encoding")
    fails(write(tmp_path / "h.csv", b"it\xe9m\nx\n"), "--text-encoding")
    late = b'{"item":"x"}\n' * 9000 + b'{"item":"\xe9"}\n'
    with pytest.raises(InvalidInputError) as caught:
        collect(
            table_source(
                write(tmp_path / "late.jsonl", late), Columns(), Layout("json", block_size=4096)
            )
        )
    assert caught.value.option == "text_encoding"
    fails(write(tmp_path / "a.txt", "café\n"), "--text-encoding", encoding="ascii")


@pytest.mark.parametrize("suffix", ["csv", "txt", "jsonl"])
def test_binary_files(tmp_path: Path, suffix: str) -> None:
    fails(write(tmp_path / f"t.{suffix}", bytes(range(256)) * 4), "NUL bytes")
    fails(write(tmp_path / f"p.{suffix}", as_table("parquet", ["x"])), "is a Parquet file")


def test_damaged_gzip(tmp_path: Path) -> None:
    intact = gzip.compress(np.random.default_rng(0).bytes(3000).hex().encode())
    broken = intact[:100] + b"zzzzz" + intact[105:]
    for content in (intact[:-20], broken, b"no gzip\n"):
        fails(write(tmp_path / "t.txt.gz", content), "no intact gzip file")
        fails(write(tmp_path / "t.csv.gz", content), "no intact gzip file")


def test_no_parquet(tmp_path: Path) -> None:
    fails(write(tmp_path / "t.parquet", "these bytes are something else"), "not in the format")
    whole = as_table("parquet", ["x"] * 1000)
    fails(write(tmp_path / "cut.parquet", whole[:-50]), "cannot be read")


def test_json_that_is_not_one_object_a_line(tmp_path: Path) -> None:
    fails(write(tmp_path / "a.json", '[{"item": 1}]'), "line 1, is no JSON object")
    fails(write(tmp_path / "b.json", '{\n"item": 1\n}'), "line 1, is no JSON object")
    fails(write(tmp_path / "c.json", '{"item": 1}\n{"item": "x"}'), r"several types \(int, str\)")
    fails(write(tmp_path / "d.json", '{"item": [1]}'), r"row for each value, .* \(--client COL\)$")
    fails(
        write(tmp_path / "e.json", '{"item": 1}'),
        "no column 'url'; it has the columns 'item'",
        Columns("url"),
    )
    late = write(tmp_path / "f.json", '{"item": 1}\n' * 9000 + '{"item": "x"}\n')
    with pytest.raises(
        UnreadableFileError, match=r"after row 8\d\d\d: .*changed from number to string"
    ):
        collect(table_source(late, Columns(), Layout("json", block_size=4096)))


def test_rows_longer_than_a_block(tmp_path: Path) -> None:
    for kind in ("csv", "json"):
        path = write(tmp_path / f"t.{kind}", as_table(kind, ["short", "x" * 1000]))
        with pytest.raises(UnreadableFileError, match=r"longer than a block \(4 MiB\)"):
            collect(table_source(path, Columns("item"), Layout(kind, block_size=128)))
    # lines of text may be longer
    path = write(tmp_path / "t.txt", as_table("text", ["short", "x" * 1000]))
    assert collect(table_source(path, Columns(), Layout("text", block_size=128)))["items"] == [
        "short",
        "x" * 1000,
    ]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.array([1.0, 2.5]), "floating-point numbers such as 2.5"),
        (pa.array([[1], [2]]), "one plain column"),
        (pa.array([b"a", b"\xff"]), "no UTF-8 text"),
    ],
)
def test_columns_that_are_no_items(tmp_path: Path, column: Any, message: str) -> None:
    parquet.write_table(pa.table({"item": column, "ok": ["a", "b"]}), tmp_path / "t.parquet")
    fails(str(tmp_path / "t.parquet"), message)
    fails(str(tmp_path / "t.parquet"), message, Columns("ok", client="item"))


# ---------------------------------------------------------------------------------------- streaming

text = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=20)


@settings(max_examples=60)
@given(
    words=st.lists(text, min_size=1, max_size=60),
    block_size=st.integers(256, 2000),
    format=st.sampled_from("ctj"),
)
def test_blocks_do_not_matter(
    tmp_path_factory: pytest.TempPathFactory, words: list[str], block_size: int, format: str
) -> None:
    """Line breaks within quotes, of any word, may fall on any block boundary."""
    name = {"c": "csv", "t": "text", "j": "json"}[format]
    if name == "text":
        words = [word.replace("\n", "") for word in words]
    words.append("end")
    path = write(tmp_path_factory.mktemp("blocks") / "table", as_table(name, words))
    whole = collect(table_source(path, Columns(), Layout(name, block_size=block_size)))
    present = [word for word in words if word]  # empty text is missing in every format
    assert whole["items"] == present
    assert whole["missing"] == len(words) - len(present)


@pytest.mark.parametrize("format", ["csv", "json", "parquet", "text"])
def test_memory_is_bounded_by_the_block(tmp_path: Path, format: str) -> None:
    """Arrow's CSV and JSON readers read 32 blocks ahead; Parquet decodes pages of 1 MiB whatever
    the block is."""
    block, words = 1 << 14, [f"{number:0120d}" for number in range(100_000)]
    path = write(tmp_path / "t", as_table(format, words))
    before, peak, seen, positions = pa.total_allocated_bytes(), 0, 0, []
    for batch in table_source(path, Columns(), Layout(format, block_size=block)).batches():
        peak = max(peak, pa.total_allocated_bytes() - before)
        seen += len(batch)
        positions.append(batch.bytes_read)
    assert seen == len(words)
    assert positions == sorted(positions)
    assert len(positions) > (40 if format == "parquet" else 100)  # 256 KiB of Parquet at least
    assert positions[0] < (1 << 16) + 40 * block  # of 12 MB: nothing waits for the end of the file
    assert peak < (6 << 20 if format == "parquet" else (1 << 16) + 80 * block)


def test_leaving_early_is_harmless(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv.gz", gzip.compress(as_table("csv", ["x"] * 100_000)))
    batches = table_source(path, Columns(), Layout("csv", block_size=4096)).batches()
    assert len(next(batches)) > 0
    batches.close()  # type: ignore[attr-defined]


# --------------------------------------------------------------------------------------------------
# columns in memory


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        (["a", None, "b"], ["a", "b"]),
        (("a", float("nan")), ["a"]),
        ([3, -4, float("nan")], [3, -4]),
        ([2**63, None], [2**63]),
        (np.array(["ab", "c"]), ["ab", "c"]),
        (np.array(["ab", None], dtype=object), ["ab"]),
        (np.arange(3, dtype=np.uint8), [0, 1, 2]),
        (pa.array(["x", None]), ["x"]),
        (pa.chunked_array([["x"], ["y", "z"]]), ["x", "y", "z"]),
        ((word for word in ["a", "b"]), ["a", "b"]),
    ],
)
def test_from_items(items: Any, expected: list[Any]) -> None:
    source = from_items(items)
    whole = collect(source)
    assert whole["items"] == expected
    assert collect(source)["missing"] == whole["missing"]


def test_pandas() -> None:
    pd = pytest.importorskip("pandas")
    assert collect(from_items(pd.Series(["a", None])))["items"] == ["a"]
    assert collect(from_items(pd.Series(["a", None, float("nan")], dtype=object)))["missing"] == 2
    assert collect(from_items(pd.Series([1, None], dtype="Int64")))["items"] == [1]
    assert collect(from_items(pd.Series(["a", "b"], dtype="category")))["items"] == ["a", "b"]
    assert collect(from_items(pd.Index([1, 2])))["items"] == [1, 2]
    with pytest.raises(InvalidInputError, match="one plain column"):
        collect(from_items(pd.DataFrame({"a": [1]})))
    assert collect(from_items(pd.Series([1, None])))["items"] == [1]  # pandas makes floats of these
    with pytest.raises(InvalidInputError, match="floating-point numbers such as 1.5"):
        collect(from_items(pd.Series([1.5, None])))
    words = pd.Series(["tea", "tea", "columns"], name="word")
    for values in (words, words.rename(None), words.astype("category"), pd.Series([7, 7], name=8)):
        with pytest.raises(InvalidInputError, match="pass its index as items and its values as"):
            from_items(values.value_counts())
    with pytest.raises(InvalidInputError, match="pass its index as items and its values as counts"):
        from_items(words.to_frame().groupby("word").size())
    for values in (words.value_counts(normalize=True), words.value_counts().astype(float)):
        with pytest.raises(InvalidInputError, match="pass its index as items and its values as"):
            from_items(values)
    labelled = pd.Series(["tea", "milk"], index=["ann", "bob"])  # words, each of a person
    assert collect(from_items(labelled))["items"] == ["tea", "milk"]
    counted = words.value_counts()
    assert collect(from_items(counted.index, counts=counted))["items"] == ["tea", "columns"]
    assert collect(from_items(pd.Series([3, 4], name="count")))["items"] == [3, 4]  # a plain column
    # the labels of a series are its attributes, and `columns` is no mark of a table
    assert not is_table(counted) and is_table(counted.reset_index())


def test_a_frame_of_workers_is_refused_and_not_fetched() -> None:
    class Lying:
        """What a Dask data frame and its columns have."""

        npartitions, columns, ndim = 2, ["word"], 2

        def __getitem__(self, name: str) -> NoReturn:
            raise AssertionError("fetched")

        compute = __iter__ = __getitem__

    assert is_table(Lying())
    for read in (lambda: from_table(Lying(), Columns()), lambda: from_items(Lying())):
        with pytest.raises(InvalidInputError, match="count it there with .*tally_dask"):
            read()


def test_polars() -> None:
    pl = pytest.importorskip("polars")
    assert collect(from_items(pl.Series(["a", None])))["items"] == ["a"]
    assert collect(from_items(pl.Series([1, 2])))["items"] == [1, 2]
    assert collect(from_items(pl.Series(["a", "b"], dtype=pl.Categorical)))["items"] == ["a", "b"]


def test_parallel_columns_of_any_chunking() -> None:
    items = pa.chunked_array([["x"], ["y", None]])
    whole = collect(from_items(items, clients=[7, 8, 9], rounds=np.array(["a", "a", "b"])))
    assert whole == {
        "items": ["x", "y"],
        "missing": 1,
        "batches": 2,
        "clients": [7, 8],
        "rounds": ["a", "a"],
    }
    with pytest.raises(InvalidInputError, match="one length, got items 3, clients 2"):
        from_items(items, clients=[1, 2])
    with pytest.raises(InvalidInputError, match="cannot go with a client"):
        from_items(["x"], clients=[1], counts=[1])


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ("abc", "got one value 'abc'"),
        ({"a": 1}, "its keys as items and its values as counts"),
        ({"a": np.int64(1), "b": 2.0}, "its keys as items and its values as counts"),
        ({"ann": ["a", "b"]}, r"two lists with a row for each item, .* clients \(clients=\)$"),
        ({"ann": "a", "bob": "b"}, r"two lists with a row for each item, .* \(clients=\)$"),
        ({"ann": 3, "bob": ["a"]}, r"two lists with a row for each item, .* \(clients=\)$"),
        ({"ann": True}, r"two lists with a row for each item, .* \(clients=\)$"),
        (None, "got NoneType"),
        ([1, "a"], "all text or all integers"),
        (["a", 1], "all text or all integers"),
        ([2**70], "beyond 64 bits"),
        ([1.5], "floating-point numbers such as 1.5"),
        (np.zeros((2, 3)), "1-dimensional"),
        ([], "no rows"),
        ([None], "its only row lacks its item"),
    ],
)
def test_from_items_refuses(items: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        collect(from_items(items))


FLAT = r"write a row for each (item|value), and name its client \(clients=\)$"
TUPLES = r"name its client \(clients=\) or its count \(counts=\), or write each tuple as text if"
LISTS = [["a", "b"], ["c"]]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (LISTS, FLAT),
        ([None, ["a"], "b"], FLAT),
        ([[1, 2], [3, 4]], FLAT),
        ([{"a", "b"}, {"c"}], FLAT),
        ([{"a": 1}, {"c": 2}], FLAT),
        ([np.array(["a", "b"])], FLAT),
        ([iter(["a"])], FLAT),
        ((words for words in LISTS), FLAT),
        ({"ann": ["a", "b"]}.values(), FLAT),
        (pa.array(LISTS), FLAT),
        (np.array([["a", "b"], ["c", "d"]]), FLAT),
        (np.array([1, 2]).reshape(1, 2), FLAT),
        ((("a", "b"), ("c",)), TUPLES),
        ({"a": 2, "b": 1}.items(), TUPLES),
        (zip(["ann"], ["a"], strict=True), TUPLES),
        ([(40.5, -70.0), (41, -71)], "pass coordinates as a NumPy array"),
        ([[40, -70.5], None], "pass coordinates as a NumPy array"),
        (np.array([("a", 1)], dtype=[("w", "U3"), ("n", int)]), r"pass one field .* items\['w'\]"),
    ],
)
def test_several_items_in_a_row_are_never_to_become_one_item(items: Any, message: str) -> None:
    """As text, all words of a person would be one item; without clients, each word a person."""
    with pytest.raises(InvalidInputError, match=message):
        collect(from_items(items))


def test_several_items_in_a_row_of_a_table() -> None:
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for items in (pd.Series(LISTS), pd.Series(LISTS, index=["ann", "bob"]), pl.Series(LISTS)):
        with pytest.raises(InvalidInputError, match=FLAT):
            collect(from_items(items))
    for name in ("", "user"):
        for kind in (pd.DataFrame, pl.DataFrame, pl.LazyFrame, pa.table):
            table = kind({"word": LISTS, "user": [1, 2]})
            with pytest.raises(InvalidInputError, match=r"name its client \(client=COL\)$"):
                collect(from_table(table, Columns("word", client=name or None)))
    with pytest.raises(InvalidInputError, match=r"\(client=COL\) or its count \(count=COL\)"):
        collect(from_table(pd.DataFrame({"word": [("a", 2)]}), Columns("word")))
    # a person may have a name of several parts
    with pytest.raises(InvalidInputError, match="clients must .* tuple: write each as text"):
        collect(from_items(["a"], clients=[("ann", 1)]))
    with pytest.raises(InvalidInputError, match="a list with a value for each item"):
        from_items(["a"], clients={"ann": 1})


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("items", "message"),
    [
        (np.array([["tea"], ["rice"]], object), "1-dimensional"),
        (np.array([[0.5, 1.5]], object), "1-dimensional"),
        (np.array("tea"), "1-dimensional"),
        (bytearray(b"tea"), "got bytearray"),
        (memoryview(b"tea"), "got memoryview"),
        (np.array([("tea",)], dtype=[("item", "U3")]), "all text or all integers"),
        (np.array([1j]), "all text or all integers"),
    ],
)
def test_what_is_no_column_is_refused_whatever_it_holds(
    items: Any, message: str, private: bool
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        list(from_items(items).batches(private=private))


def test_a_million_strings_come_in_few_batches() -> None:
    whole = from_items([f"word {number}" for number in range(1_500_000)])
    assert [len(batch) for batch in whole.batches()] == [1 << 20, 1_500_000 - (1 << 20)]


# ---------------------------------------------------------------------------------------- synthetic

LAWS = [
    "zipf:a=1.3,d=2e5",
    "geometric:q=0.9,d=500",
    "zipf-log:b=1.5,d=1e5",
    "uniform:k=70,d=1e5",
    "profile:baby-names",
]


def chi_square(counts: Any, distribution: Any) -> tuple[float, float]:
    """Return Pearson's statistic, in cells of expectation 20 or more, and a bound it exceeds with
    probability 1e-6.

    The bound is the tail of chi-square (Laurent and Massart 2000, lemma 1): D + 2 sqrt(D t) + 2 t
    with t = ln 1e6.
    """
    expected = distribution * counts.sum()
    cells = np.floor(np.cumsum(expected) / 20.0).astype(int)
    cells = np.minimum(cells, cells[-1] - 1) if expected.sum() % 20 else cells
    _, cells = np.unique(cells, return_inverse=True)
    observed, mean = np.bincount(cells, counts), np.bincount(cells, expected)
    keep = mean >= 10
    freedom, t = keep.sum() - 1, np.log(1e6)
    statistic = ((observed - mean)[keep] ** 2 / mean[keep]).sum()
    return float(statistic), float(freedom + 2 * np.sqrt(freedom * t) + 2 * t)


def drawn(text: str, seed: int) -> Any:
    source = open_source(f"{text},n=3e5", rng=np.random.default_rng(seed))
    [batch] = source.batches()
    assert source.synthetic_size is not None
    items = batch.items.to_numpy()
    assert batch.items.type == pa.int64()
    assert np.all(np.diff(items) > 0)
    assert batch.counts is not None
    assert batch.counts.min() > 0
    assert batch.counts.sum() == 300_000
    return np.bincount(items - 1, batch.counts, minlength=source.synthetic_size)


@pytest.mark.parametrize("text", LAWS)
def test_draws_follow_the_law(text: str) -> None:
    distribution = frequencies(text)
    statistic, bound = chi_square(drawn(text, 1), distribution)
    assert statistic < bound
    assert not drawn(text, 1)[distribution == 0].any()


def test_draws_from_another_law_are_noticed() -> None:
    statistic, bound = chi_square(drawn("zipf:a=1.32,d=2e5", 1), frequencies("zipf:a=1.3,d=2e5"))
    assert statistic > bound


def test_laws_are_what_they_say() -> None:
    rank = np.arange(1, 1001, dtype=float)
    for text, weight in [
        ("zipf:a=2,d=1000", rank**-2),
        ("geometric:q=0.5,d=1000", 0.5**rank),
        ("zipf-log:b=3,d=1000", 1 / (rank * np.log(rank + 1) ** 3)),
        ("uniform:k=10,d=1000", (rank <= 10) * 1.0),
    ]:
        np.testing.assert_allclose(frequencies(text), weight / weight.sum(), rtol=1e-12, atol=0)
    assert len(frequencies("zipf:")) == 100_000


@pytest.mark.parametrize("name", sorted(profiles()))
def test_profiles_keep_what_was_measured(name: str) -> None:
    """The interpolation passes through every measured point, up to the one factor that makes the
    sum 1."""
    measured = profiles()[name]
    distribution = frequencies(f"profile:{name}")
    assert len(distribution) == measured["support"] == measured["rank"][-1]
    assert distribution.sum() == pytest.approx(1.0, abs=1e-9)
    assert np.all(np.diff(distribution) <= 0)
    factor = distribution[np.array(measured["rank"]) - 1] / np.array(measured["frequency"])
    np.testing.assert_allclose(factor, factor[0], rtol=1e-9)
    # twice the total variation from the real vectors, at most .023
    assert abs(factor[0] - 1.0) < 0.05


def test_a_population_is_drawn_once_and_by_its_generator() -> None:
    source = open_source("zipf:n=1000", rng=np.random.default_rng(5))
    first, again = collect(source), collect(source)
    assert first == again == collect(open_source("zipf:n=1e3", rng=np.random.default_rng(5)))
    assert first != collect(open_source("zipf:n=1e3", rng=np.random.default_rng(6)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zipf:x=1", "unknown parameter 'x=1'; write name=value with name among a, d, n"),
        ("zipf:1.1", "unknown parameter '1.1'"),
        ("zipf:a=", "a must be a number"),
        ("zipf:a=1,a=2", "a is given twice"),
        ("zipf:a=nan", "a must be finite"),
        ("zipf:a=-1", "a must be at least 0"),
        ("zipf:d=0", "d must be at least 1"),
        ("zipf:d=1.5", "d must be an integer"),
        ("zipf:d=1e12", "d must be at most"),
        ("zipf:n=inf", "n must be an integer"),
        ("geometric:q=1", "q must lie strictly between"),
        ("uniform:k=5,d=3", "k must be at most 3"),
        ("profile:", "NAME among gowalla-us"),
        ("profile:nowhere,n=5", "unknown profile 'nowhere'"),
        ("profile:gowalla-us,d=4", "unknown parameter 'd=4'"),
    ],
)
def test_synthetic_parameters(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        open_source(text, rng=np.random.default_rng(0))


def test_synthetic_options() -> None:
    with pytest.raises(InvalidInputError, match="pass rng="):
        open_source("zipf:")
    with pytest.raises(InvalidInputError, match="no columns"):
        open_source("zipf:", Columns("item"), rng=np.random.default_rng(0))
    with pytest.raises(InvalidInputError, match="known are zipf"):
        frequencies("nothing:d=4")


def test_a_large_population_with_zeros_in_its_tail() -> None:
    """The distribution underflows to 0 after 1,100 items: none of the n draws may fall there, or be
    lost."""
    source = open_source("geometric:q=0.5,d=1e6,n=1e12", rng=np.random.default_rng(0))
    [batch] = source.batches()
    assert batch.counts is not None
    assert batch.counts.sum() == 10**12
    assert batch.items.to_pylist()[-1] < 80


def quotes_close(text, delimiter=","):
    """Say whether every quote that starts a field is closed at the end of one: a state machine over
    characters."""
    state, position = "start", 0
    while position < len(text):
        letter = text[position]
        ends = letter in (delimiter, "\n", "\r")
        if state == "start":
            state = "quoted" if letter == '"' else "start" if ends else "plain"
        elif state == "plain":
            state = "start" if ends else "plain"
        elif letter == '"' and text[position + 1 : position + 2] == '"':
            position += 1
        elif letter == '"':
            following = text[position + 1 : position + 2]
            if following not in ("", delimiter, "\n", "\r"):
                return False
            state = "plain"
        position += 1
    return state != "quoted"


@settings(max_examples=400)
@given(st.text(alphabet='a",\n\r', max_size=24), st.lists(st.integers(1, 5), max_size=12))
def test_quotes_are_followed_exactly(text, cuts):
    from fedtally.sources.readers import _Quotes

    quotes, data = _Quotes(","), text.encode()
    for cut in cuts:
        quotes(data[:cut])
        data = data[cut:]
    quotes(data)
    quotes(b"")
    if quotes_close(text):
        quotes.check("t.csv", ended=True)
    else:
        with pytest.raises(UnreadableFileError, match="a quote"):
            quotes.check("t.csv", ended=True)


OPEN = [
    'item\n"hello\nworld\n',
    'item\n"tea\ncoffee',
    'item\nx\n"tea\n',
    'n,item\n1,a\n2,"b\n3,c\n',
    'item\n"oops\na\n"oops\nb\n',
]


@pytest.mark.parametrize("text", OPEN)
def test_an_open_quote_is_said(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(UnreadableFileError, match="quote"):
        list(open_source(str(path), Columns("item")).batches())


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('item\n"two\nlines"\nx\n', ["two\nlines", "x"]),
        ('item\n5" disk\nx\n', ['5" disk', "x"]),
        ('item\n5"\n\ntea\n\n', ['5"', "tea"]),
        ('item\n5"\n"a\nb"\n', ['5"', "a\nb"]),
        ('\n\nitem\r\n5"\r\ntea\r\n', ['5"', "tea"]),
        ('item\n"say ""hi"""\nx\n', ['say "hi"', "x"]),
        ('item\nx\n"y"', ["x", "y"]),
    ],
)
def test_fair_quotes_are_read(tmp_path, text, items):
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    [batch] = open_source(str(path), Columns("item")).batches()
    assert batch.items.to_pylist() == items


def test_a_long_value_is_not_repeated_whole_in_the_error(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("item,n\na," + "x" * 100_000 + "\n")
    with pytest.raises(InvalidInputError) as caught:
        list(open_source(str(path), Columns("item", count="n")).batches())
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("line", ["[" * 100_000, '{"item": ' + "9" * 5000 + "}"])
def test_hostile_json_lines(tmp_path, line):
    path = tmp_path / "t.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InvalidInputError):
        list(open_source(str(path), Columns("item")).batches())


def test_an_empty_line_of_the_only_column_is_a_missing_item(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("item\nthe\n\nof\n\n")
    (tmp_path / "two.csv").write_text("item,n\nthe,1\n\nof,1\n")
    assert collect(open_source(str(tmp_path / "one.csv")))["missing"] == 2
    assert collect(open_source(str(tmp_path / "two.csv"), Columns("item")))["missing"] == 0


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("first", [0, 1, 3])
def test_blank_lines_at_the_start_hide_no_other_ones(
    tmp_path: Path, first: int, end: str, private: bool
) -> None:
    """Blank lines before a header are no rows; all others are rows without an item."""
    rows = ["the", "", "of", ""]
    for header, missing in ((True, 2), (False, 2 + first)):
        lines = [*[""] * first, *(["item"] if header else []), *rows]
        path = write(tmp_path / f"{header}.csv", end.join(lines) + end)
        source = open_source(path, Columns("item" if header else "1"), header=header)
        batches = list(source.batches(private=private))
        assert [item for batch in batches for item in batch.items.to_pylist()] == ["the", "of"]
        assert sum(batch.dropped.incomplete for batch in batches) == missing


# ------------------------------------------------------------------------------------ grouped items


def as_dictionary(values: list[str | bytes | None], kind: Any, rows: list[int | None]) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(values, kind))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_dictionary_of_text_is_read_as_its_rows_are(kind: Any) -> None:
    words = ["tea", "", None, "rice", "never"]
    column = as_dictionary(words, kind, [0, 1, 3, 2, None, 0, 3])
    expected = {"items": ["tea", "rice", "tea", "rice"], "missing": 3, "batches": 1}
    assert collect(from_items(column)) == expected
    assert collect(from_items(pa.array([*column.to_pylist()], kind))) == expected
    clients = [1, 2, 3, 4, 5, 6, None]
    assert collect(from_items(column, clients=clients))["items"] == ["tea", "rice", "tea"]


def test_a_bad_value_of_a_dictionary_is_an_error_only_where_a_row_has_it() -> None:
    broken = pa.array([b"tea", b"\xff"]).view(pa.string())
    for rows, fine in (([0, 0], True), ([0, 1], False)):
        column = pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), broken)
        if fine:
            assert collect(from_items(column))["items"] == ["tea", "tea"]
            continue
        with pytest.raises(InvalidInputError, match="column .items. is no valid UTF-8 text"):
            collect(from_items(column))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False},
        {"dictionary_pagesize_limit": 200},
        {"row_group_size": 70},
        {"data_page_version": "2.0", "compression": "zstd"},
    ],
)
def test_items_of_parquet_are_the_same_however_they_are_written(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rng = np.random.default_rng(3)
    words = [[None, "", *(f"w{i}" for i in range(90))][i] for i in rng.integers(0, 92, 400)]
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = pa.table({"item": pa.array(words, kind), "user": rng.integers(0, 9, 400)})
        parquet.write_table(table, tmp_path / "t.parquet", **options)
        held = [word for word in words if word]
        for block in (64, 400, 1 << 12, 1 << 22):
            path, small = str(tmp_path / "t.parquet"), Layout("parquet", block_size=block)
            whole = collect(table_source(path, Columns("item", client="user"), small))
            assert whole["items"] == held
            assert whole["missing"] == len(words) - len(held)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.int32()])
def test_a_first_row_group_may_be_empty(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "t.parquet"
    table = pa.table({"item": pa.array([1, 2, 2]).cast(pa.string()).cast(kind)})
    with parquet.ParquetWriter(path, table.schema, use_dictionary=False) as writer:
        writer.write_table(table.slice(0, 0))
        writer.write_table(table)
    found = collect(table_source(str(path), Columns(), Layout("parquet")))
    assert found["items"] == table["item"].to_pylist()


def test_a_wide_row_makes_small_batches(tmp_path: Path) -> None:
    """A batch takes about 16 blocks, however long the values are."""
    words = [f"{i:05d}" * 200 for i in range(300)]  # a kilobyte each
    parquet.write_table(pa.table({"item": words}), tmp_path / "t.parquet", use_dictionary=False)
    source = table_source(
        str(tmp_path / "t.parquet"), Columns(), Layout("parquet", block_size=1000)
    )
    sizes = [len(batch) for batch in source.batches()]
    assert max(sizes) <= 16
    assert sum(sizes) == 300


class SlowQuotes(_Quotes):
    """Looks at every field."""

    def _is_simple(self, data: bytes) -> bool:
        return False


@settings(max_examples=300)
@given(st.lists(st.text('ab",\n\r', max_size=12).map(str.encode), max_size=8))
def test_the_quick_look_at_quotes_finds_what_the_slow_one_finds(parts: list[bytes]) -> None:
    def broken(quotes: _Quotes) -> list[bool]:
        found = []
        for part in parts:
            quotes(part)
            found.append(quotes._broken)
        try:
            quotes.check("t", ended=True)
        except UnreadableFileError:
            return [*found, True]
        return [*found, False]

    assert broken(_Quotes(",")) == broken(SlowQuotes(","))


def test_a_broken_row_is_numbered_though_several_threads_read(tmp_path: Path) -> None:
    rows = "".join(f"w{i},{i}\n" for i in range(5000))
    path = write(tmp_path / "t.csv", f"item,n\n{rows}too,many,fields\n{rows}")
    small = Layout("csv", block_size=1 << 12)
    with pytest.raises(UnreadableFileError, match=r"row 5002: 3, not 2"):
        collect(table_source(path, Columns("item"), small))


# ---- line ends ----


def one_line_end(data: bytes) -> bytes:
    """Return data with line feeds alone: the rule, read a second time, byte by byte."""
    out, place = b"", 0
    while place < len(data):
        if data[place : place + 3] == b"\r\r\n":
            out, place = out + b"\n", place + 3
        elif data[place : place + 2] == b"\r\n":
            out, place = out + b"\n", place + 2
        else:
            out, place = out + data[place : place + 1].replace(b"\r", b"\n"), place + 1
    return out


@settings(max_examples=400)
@given(
    st.lists(st.sampled_from([b"\r", b"\n", b"a", b"\r\n"]), max_size=24).map(b"".join),
    st.integers(1, 5),
)
def test_line_ends_are_the_same_wherever_blocks_end(data: bytes, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(streams, "_CHUNK", size)
        path = write(Path(folder, "t.txt"), data)
        with streams.ByteStream(path, "utf8", of_lines=True) as stream:
            assert stream.read() == one_line_end(data)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\r\r\n"])
def test_a_carriage_return_ends_a_line(tmp_path: Path, end: str, private: bool) -> None:
    """Old Macs, and Excel for Mac, end lines with CR alone: a whole file was one line."""
    tables = {
        "t.txt": ["tea", "rice", "a,b", "milk"],
        "t.csv": ["v", "tea", "rice", '"a,b"', "milk"],
        "t.tsv": ["v\tw", "tea\t1", "rice\t2", "a,b\t3", "milk\t4"],
        "t.jsonl": ['{"v": "tea"}', '{"v": "rice"}', '{"v": "a,b"}', '{"v": "milk"}'],
    }
    for name, lines in tables.items():
        for last in (end, ""):
            path = write(tmp_path / name, end.join(lines) + last)
            if private and end == "\r" and name in ("t.txt", "t.jsonl"):
                continue  # without a header nothing public says so: see the next test
            columns = None if name == "t.txt" else Columns("v")
            batches = list(open_source(path, columns).batches(private=private))
            items = [item for batch in batches for item in batch.items.to_pylist()]
            assert items == ["tea", "rice", "a,b", "milk"], name
            # Arrow takes the second line end of CR CR LF for a blank line, the only column is empty
            is_blank = name == "t.csv" and end == "\r\r\n" and not private
            assert is_blank or sum(batch.dropped.incomplete for batch in batches) == 0


def test_a_header_alone_says_that_carriage_returns_end_lines(tmp_path: Path) -> None:
    """Under privacy one in an item must make no row: it would be of another client."""
    text = "u,v\n1,a\rb\n2,tea\n"
    for header, content in ((True, text), (False, text[4:])):
        columns = Columns("v", client="u") if header else Columns("2", client="1")
        source = open_source(write(tmp_path / "t.csv", content), columns, header=header)
        rows = [
            row
            for batch in source.batches(private=True)
            for row in zip(batch.clients.to_pylist(), batch.items.to_pylist(), strict=True)
        ]
        assert rows == [("1", "a\rb"), ("2", "tea")]
    for name, content in (("t.txt", "a\rb\ntea\r\n"), ("t.jsonl", '{"v":"a\rb"}\n{"v":"tea"}\r\n')):
        source = open_source(
            write(tmp_path / name, content), None if name == "t.txt" else Columns("v")
        )
        items = [b.items.to_pylist() for b in source.batches(private=True) if len(b)]
        assert items == [["a\rb", "tea"]]
    path = write(tmp_path / "t.csv", "\r\rv,w\ra\nb,1\rtea,2\r")
    batches = open_source(path, Columns("v")).batches(private=True)
    assert [item for batch in batches for item in batch.items.to_pylist()] == ["a\nb", "tea"]


def test_a_byte_order_mark_where_files_were_joined_makes_no_other_client(tmp_path: Path) -> None:
    mark = "\ufeff"
    path = write(tmp_path / "t.csv", f"{mark}u,v\n1,a\n{mark}1,b\n{mark}1.0,c\n{mark},d\n")
    for private in (False, True):
        batches = open_source(path, Columns("v", client="u")).batches(private=private)
        names = [name for batch in batches for name in batch.clients.to_pylist()]
        assert names == ["1", "1", "1"]  # the last row has none
    lines = "".join(f'{mark}{{"u": 1, "v": "{item}"}}\n' for item in "abc")
    batches = open_source(write(tmp_path / "t.jsonl", lines), Columns("v", client="u")).batches(
        private=True
    )
    assert [item for batch in batches for item in batch.items.to_pylist()] == ["a", "b", "c"]
