"""One reading of a value: a typed column is the same items, whatever holds it; text stays what its
writer wrote."""

from __future__ import annotations

import csv
import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.domain import parse
from fedtally.errors import InvalidInputError
from fedtally.simulation.census import read as read_clients
from fedtally.simulation.simulation import Simulation
from fedtally.sources import Columns, Source, from_items, open_source
from fedtally.sources.values import as_values, of_objects

BERLIN = datetime.timezone(datetime.timedelta(hours=1))
WHEN = datetime.datetime(2026, 1, 22, 9, 53, 12)
# The name, the values, their Arrow type, and the text that DuckDB, or Python's csv module, writes
# of them.
COLUMNS: list[tuple[str, list[Any], Any, list[str]]] = [
    (
        "timestamp",
        [WHEN, WHEN.replace(microsecond=500)],
        pa.timestamp("us"),
        [str(WHEN), f"{WHEN}.0005"],
    ),
    ("midnight", [datetime.datetime(2026, 1, 22)], pa.timestamp("ns"), ["2026-01-22 00:00:00"]),
    ("seconds", [WHEN], pa.timestamp("s"), [str(WHEN)]),
    ("zone", [WHEN.replace(tzinfo=BERLIN)], pa.timestamp("us", "+01:00"), [f"{WHEN}+01:00"]),
    ("utc", [WHEN.replace(tzinfo=datetime.UTC)], pa.timestamp("ms", "UTC"), [f"{WHEN}+00:00"]),
    ("bool", [True, False], pa.bool_(), ["true", "false"]),
    ("date", [WHEN.date()], pa.date32(), ["2026-01-22"]),
    (
        "time",
        [WHEN.time(), datetime.time(1, 2, 3, 40)],
        pa.time64("us"),
        ["09:53:12", "01:02:03.00004"],
    ),
    ("decimal", [Decimal("1.50"), Decimal("0.05")], pa.decimal128(9, 2), ["1.50", "0.05"]),
    ("integer", [-7, 2**40], pa.int64(), ["-7", str(2**40)]),
    ("text", ["007", "True", "", " x"], pa.string(), ["007", "True", "", " x"]),
    ("bytes", [b"tea", b""], pa.binary(), ["tea", ""]),
]


def read(source: Source, private: bool) -> tuple[list[str], int]:
    batches = list(source.batches(private=private))
    return [str(item) for batch in batches for item in batch.items.to_pylist()], sum(
        b.dropped.incomplete for b in batches
    )


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize(
    ("name", "values", "kind", "texts"), COLUMNS, ids=[column[0] for column in COLUMNS]
)
def test_a_column_is_the_same_items_in_every_format(
    name: str, values: list[Any], kind: Any, texts: list[str], private: bool, tmp_path: Path
) -> None:
    expected = [text for text in texts if text], texts.count("")
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["item", "x"], *([text, 1] for text in texts)])
    with (tmp_path / "t.jsonl").open("w") as file:
        file.writelines(json.dumps({"item": text}) + "\n" for text in texts)
    parquet.write_table(pa.table({"item": pa.array(values, kind)}), tmp_path / "t.parquet")
    for suffix in ("csv", "jsonl", "parquet"):
        assert read(open_source(tmp_path / f"t.{suffix}", Columns("item")), private) == expected, (
            suffix
        )
    for column in (
        pa.array(values, kind),
        pa.array(values, kind).dictionary_encode(),
        list(values),
    ):
        if name != "decimal" or private or not isinstance(column, list):
            assert read(from_items(column), private) == expected
    if name in ("bool", "integer"):
        with (tmp_path / "typed.jsonl").open("w") as file:
            file.writelines(json.dumps({"item": value}) + "\n" for value in values)
        assert read(open_source(tmp_path / "typed.jsonl", Columns("item")), private) == expected


# What pyarrow, pandas and Polars write into a CSV where it is not the text of the value: another
# item.
NOON = "2026-01-22 09:53:12"
OTHER_TEXT: dict[tuple[str, str], list[str]] = {
    ("arrow", "timestamp"): [f"{NOON}.000000", f"{NOON}.000500"],
    ("arrow", "midnight"): ["2026-01-22 00:00:00.000000000"],
    ("arrow", "zone"): [f"{NOON}.000000+0100"],
    ("arrow", "utc"): [f"{NOON}.000Z"],
    ("arrow", "time"): ["09:53:12.000000", "01:02:03.000040"],
    ("pandas", "timestamp"): [f"{NOON}.000000", f"{NOON}.000500"],
    ("pandas", "midnight"): ["2026-01-22"],
    ("pandas", "bool"): ["True", "False"],
    ("pandas", "time"): ["09:53:12", "01:02:03.000040"],
    ("polars", "timestamp"): ["2026-01-22T09:53:12.000000", "2026-01-22T09:53:12.000500"],
    ("polars", "midnight"): ["2026-01-22T00:00:00.000000000"],
    ("polars", "seconds"): ["2026-01-22T09:53:12.000"],
    ("polars", "utc"): ["2026-01-22T09:53:12.000+0000"],
    ("polars", "time"): ["09:53:12.000000000", "01:02:03.000040000"],
}


def write_csv(writer: str, table: Any, path: Path) -> None:
    if writer == "arrow":
        arrow_csv.write_csv(table, path)
    elif writer == "pandas":
        pytest.importorskip("pandas")
        table.to_pandas().to_csv(path, index=False)
    else:
        pytest.importorskip("polars").from_arrow(table).write_csv(path)


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("writer", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize(
    ("name", "values", "kind", "texts"), COLUMNS, ids=[column[0] for column in COLUMNS]
)
def test_a_csv_gives_what_its_writer_wrote(
    name: str,
    values: list[Any],
    kind: Any,
    texts: list[str],
    writer: str,
    private: bool,
    tmp_path: Path,
) -> None:
    """The package's docstring says which writers differ; all others give the items of the Parquet
    file."""
    if name == "bytes" or (writer, name) == ("polars", "zone"):
        pytest.skip("the writer has no such column")
    write_csv(
        writer,
        pa.table({"item": pa.array(values, kind), "x": [1] * len(values)}),
        tmp_path / "t.csv",
    )
    expected = OTHER_TEXT.get((writer, name), [text for text in texts if text])
    assert read(open_source(tmp_path / "t.csv", Columns("item")), private) == (
        expected,
        texts.count(""),
    )


@pytest.mark.parametrize("private", [False, True])
@pytest.mark.parametrize("writer", ["arrow", "pandas", "polars"])
def test_integers_beside_a_missing_one_are_the_same_candidates(
    writer: str, private: bool, tmp_path: Path
) -> None:
    """pandas writes them as 1.0."""
    table = pa.table({"item": pa.array([1, None, 3, 3, 100, 101]), "user": range(6)})
    write_csv(writer, table, tmp_path / "t.csv")
    parquet.write_table(table, tmp_path / "t.parquet")
    asked = {"domain": parse("range:1..100"), "outside": "drop"}
    asked |= {"epsilon": 1.0, "not_private": True, "seed": 1} if private else {}
    found = []
    for name in ("t.csv", "t.parquet"):
        source = open_source(tmp_path / name, Columns("item", client="user"))
        tally, _ = read_clients(source, Simulation.of(**asked), bytes(32), lambda *_: None)
        found.append(
            [(part.ids.tolist(), part.counts.tolist()) for part in tally.finish(individuals=True)]
        )
    assert found[0] == found[1] == [([1, 3, 100], [1, 2, 1])]


def test_whole_floats_are_integers_and_others_are_no_items_or_their_shortest_text(
    tmp_path: Path,
) -> None:
    parquet.write_table(
        pa.table({"item": pa.array([1.0, float("nan"), 7.0])}), tmp_path / "t.parquet"
    )
    for private in (False, True):
        assert read(open_source(tmp_path / "t.parquet"), private) == (["1", "7"], 1)
    (tmp_path / "t.csv").write_text("item\n0.1\n2.5\n")
    parquet.write_table(pa.table({"item": pa.array([0.1, 2.5])}), tmp_path / "t.parquet")
    assert read(open_source(tmp_path / "t.csv"), True) == read(
        open_source(tmp_path / "t.parquet"), True
    )


def test_empty_clients_and_rounds_are_missing_everywhere(tmp_path: Path) -> None:
    table = pa.table({"item": ["a", "b", "c"], "who": ["x", "", "y"], "day": ["1", "2", ""]})
    parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("item,who,day\na,x,1\nb,,2\nc,y,\n")
    columns = Columns("item", client="who", round="day")
    for private in (False, True):
        found = [
            read(open_source(tmp_path / name, columns), private) for name in ("t.csv", "t.parquet")
        ]
        assert found == [(["a"], 2)] * 2


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(width=64)
    | st.text(st.characters(codec="utf-8"), max_size=5)
    | st.dates()
    | st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1))
    | st.binary(max_size=4)
    | st.decimals(
        allow_nan=False, allow_infinity=False, places=2, min_value=-(10**9), max_value=10**9
    )
)


@settings(max_examples=300)
@given(st.lists(PLAIN, min_size=1, max_size=8), st.integers(0, 7))
def test_objects_are_read_one_by_one_and_as_their_columns_are(
    values: list[Any], place: int
) -> None:
    together = of_objects(values).to_pylist()
    place %= len(values)
    alone = of_objects([values[place]]).to_pylist()[0]
    assert str(together[place]) == str(alone)
    column = pa.array([values[place]])
    typed, read_alone = (
        as_values(held, "items", private=True) for held in (column, of_objects([values[place]]))
    )
    assert str(typed[0].as_py()) == str(read_alone[0].as_py())


def test_numpy_scalars_are_what_they_hold() -> None:
    values = [
        np.int8(3),
        np.float32(0.5),
        np.str_("tea"),
        np.bool_(True),
        np.datetime64("2020-01-02"),
    ]
    assert of_objects(values).to_pylist() == ["3", "0.5", "tea", "true", "2020-01-02"]


@given(
    st.lists(st.integers(0, 6), min_size=2, max_size=6),
    st.one_of(
        st.just(b"teapot"), st.binary(min_size=6, max_size=6), st.just("têápot".encode()[:6])
    ),
    st.sampled_from([(pa.string(), np.int32), (pa.large_string(), np.int64)]),
    st.integers(0, 2),
)
def test_text_is_refused_exactly_where_arrow_finds_it_invalid(
    places: list[int], letters: bytes, kind: tuple[Any, Any], start: int
) -> None:
    """Also where its bytes are ASCII, and only the places of the texts in them are wrong."""
    offsets = np.array([min(places), *places, max(places)], kind[1])
    buffers = [None, pa.py_buffer(offsets.tobytes()), pa.py_buffer(letters)]
    column = pa.Array.from_buffers(kind[0], len(offsets) - 1, buffers)[start:]
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        with pytest.raises(InvalidInputError, match="is no valid UTF-8 text"):
            as_values(column, "items")
    else:
        assert as_values(column, "items").to_pylist() == [
            text or None for text in column.to_pylist()
        ]


def test_a_text_that_ends_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path, ends = tmp_path / "t.arrow", np.array([0, 3, 7], np.int32)
    table = pa.table({"item": ["tea", "rice"]})
    with pa.ipc.new_file(path, table.schema) as file:
        file.write(table)
    written = path.read_bytes()
    assert written.count(ends.tobytes()) == 1
    path.write_bytes(written.replace(ends.tobytes(), np.array([0, 3, 2**20], np.int32).tobytes()))
    with pytest.raises(InvalidInputError, match="is no valid UTF-8 text"):
        list(open_source(path, Columns("item")).batches())
