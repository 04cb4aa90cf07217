"""One person is one person, and a round one round, whatever the table is and is called."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fedtally
from fedtally.sources import Columns, Source, from_items, from_table, open_source

pytestmark = pytest.mark.extras  # the frames that it compares
pd: Any = pytest.importorskip("pandas")
pl: Any = pytest.importorskip("polars")

COLUMNS = Columns("item", client="user", round="day", silo="silo")
HEADER = ["item", "user", "day", "silo"]


def one_name(text: str) -> str:
    """Return what names the client, silo or round of a text: the rule, read a second time."""
    whole, point, zeros = text.partition(".")
    digits = whole.removeprefix("-")
    is_number = digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")
    if not (is_number and point and zeros and not zeros.strip("0")):
        return text
    return "0" if digits == "0" else whole


def named(source: Source, private: bool) -> list[tuple[Any, ...]]:
    """Return client, round and silo of each row, those without an item behind the others."""
    rows, bare = [], []
    for batch in source.batches(private=private, may_be_empty=True):
        for held, where in ((batch, rows), (batch.itemless, bare)):
            if held is not None and held.clients is not None:
                parts = (held.clients, held.rounds, held.silos)
                where += zip(*(part.to_pylist() for part in parts), strict=True)
    return rows + bare


def as_csv(rows: list[list[str]], delimiter: str = ",") -> str:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, lineterminator="\n").writerows([HEADER, *rows])
    return file.getvalue()


def tables_of(rows: list[list[str]], folder: Path) -> Iterator[tuple[str, Source]]:
    """Yield the same rows of text under many names, with a word for each."""
    half = len(rows) // 2
    for end, delimiter in (("csv", ","), ("tsv", "\t")):
        (folder / f"whole.{end}").write_text(as_csv(rows, delimiter))
        yield end, open_source(str(folder / f"whole.{end}"), COLUMNS)
        yield f"a pattern of one {end}", open_source(str(folder / f"wh*.{end}"), COLUMNS)
    parts = folder / "parts"
    parts.mkdir()
    for number, part in enumerate((rows[:half], rows[half:])):
        (parts / f"{number}.csv").write_text(as_csv(part))
    yield "a folder", open_source(str(parts), COLUMNS)
    yield "a pattern", open_source(str(parts / "*.csv"), COLUMNS)
    if hasattr(os, "mkfifo"):
        read, write = os.pipe()
        with os.fdopen(write, "w") as pipe:  # small enough for the buffer of a pipe
            pipe.write(as_csv(rows))
        yield "a pipe", open_source(f"/dev/fd/{read}", COLUMNS, format="csv")
        os.close(read)
    objects = [dict(zip(HEADER, row, strict=True)) for row in rows]
    (folder / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in objects))
    yield "JSON lines", open_source(str(folder / "rows.jsonl"), COLUMNS)
    table = pa.table({name: [row[name] for row in objects] for name in HEADER})
    parquet.write_table(table, folder / "rows.parquet")
    feather.write_feather(table, folder / "rows.feather")
    for end in ("parquet", "feather"):
        yield end, open_source(str(folder / f"rows.{end}"), COLUMNS)
        yield f"a pattern of {end}", open_source(str(folder / f"row?.{end}"), COLUMNS)
    for name, frame in (
        ("Arrow", table),
        ("pandas", table.to_pandas()),
        ("Polars", pl.DataFrame(table)),
    ):
        yield name, from_table(frame, COLUMNS)
    columns = {name: [row[name] for row in objects] for name in HEADER}
    yield (
        "lists",
        from_items(
            columns["item"], clients=columns["user"], rounds=columns["day"], silos=columns["silo"]
        ),
    )


digits = st.integers(-(10**20), 10**20).map(str)
numbers = st.one_of(
    st.tuples(
        st.sampled_from(["", "-", "+", "0", "00", " "]),
        digits,
        st.sampled_from(
            ["", ".", ".0", ".00", ".000", ".5", ".50", ".0 ", "e0", "e3", "E+3", ".0e0", ".0.0"]
        ),
    ).map("".join),
    st.sampled_from(["0", "-0", "0.0", "-0.0", "00.0", ".0", "7", "7.0", "07.0", "٧.0", "7\u00a0"]),
    st.from_regex(re.compile(r"[-+]?[0-9]{0,3}\.?[0-9]{0,3}", re.ASCII), fullmatch=True),
    st.text("07.-+eE xé", max_size=6),
).filter(lambda text: text not in ("",))


@pytest.mark.promise
@settings(max_examples=40, deadline=None)
@example([["tea", "7", "1", "a"], ["tea", "7.0", "1.0", "a.0"], ["rice", "-7.00", "-0.0", "0.0"]])
@given(
    st.lists(st.tuples(st.just("tea"), numbers, numbers, numbers).map(list), min_size=1, max_size=6)
)
def test_texts_name_the_same_whatever_they_are_in(rows: list[list[str]]) -> None:
    expected = [tuple(one_name(text) for text in row[1:]) for row in rows]
    for private in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            for name, source in tables_of(rows, Path(folder)):
                assert named(source, private) == expected, (name, private)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1 - 2**53, 2**53 - 1), min_size=1, max_size=6), st.integers(0, 3))
def test_numbers_name_what_their_text_names(values: list[int], missing: int) -> None:
    """Integers, floats, decimals and what writers make of them are the same people."""
    decimals = pa.array(values, pa.decimal128(30, 0)).cast(pa.decimal128(32, 2))
    floats = pd.Series([*map(float, values), *[np.nan] * missing])
    written = floats.to_frame("user").assign(item="tea").to_csv(index=False, float_format="%.1f")
    people = [str(value) for value in values]
    columns = Columns("item", client="user")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        path.write_text(written)
        sources = [from_items(["tea"] * len(values), clients=held) for held in (values, decimals)]
        sources += [from_items(["tea"] * len(floats), clients=floats), open_source(path, columns)]
        for source in sources:
            for private in (False, True):
                found = [
                    str(name)
                    for batch in source.batches(private=private)
                    for name in batch.clients.to_pylist()
                ]
                assert found == people, (source.name, private)


@pytest.mark.promise
@pytest.mark.parametrize(
    "options", [{}, {"epsilon": 1.0, "not_private": True, "domain": ["a", "b"]}]
)
def test_a_person_with_two_spellings_is_counted_once(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    rows = "".join(f"{n},a\n{n}.0,b\n" for n in range(100))
    (tmp_path / "one.csv").write_text(f"u,v\n{rows}")
    for path in (tmp_path / "one.csv", str(tmp_path / "one*.csv"), tmp_path):
        found = fedtally.estimate(path, item="v", client="u", seed=1, **options)
        assert found.plan.num_clients == 100


def test_what_is_not_one_is_told_apart(tmp_path: Path) -> None:
    """As `docs/library.md` lists them."""
    texts = ["7", "+7", "07", " 7", "7 ", "7e0", "7.5", "7.", "7,0", "A", "a", "é", "e\u0301", "-7"]
    assert [one_name(text) for text in texts] == texts
    [batch] = from_items(["tea"] * len(texts), clients=texts).batches()
    assert batch.clients.to_pylist() == texts
