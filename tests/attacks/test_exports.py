"""Who opens a table of results in a spreadsheet runs what a stranger wrote as an item.

Attack 16: cells that begin as formulas, and letters that show a text otherwise than it is written.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import fedtally
from fedtally.answer.cells import as_text
from fedtally.answer.exports import write_table
from fedtally.cli.app import run
from fedtally.domain import OpenStrings

# Each with what a table has of it. A spreadsheet takes any of the first letters as a formula; the
# end of a cell may be another one where the list separator is.
HOSTILE = {
    "=cmd|' /C calc'!A0": "'=cmd|' /C calc'!A0",
    "+1+cmd": "'+1+cmd",
    "-2+3+cmd|x": "'-2+3+cmd|x",
    "@SUM(1,2)": "'@SUM(1,2)",
    "\t=1": "'\t'=1",
    "\r=1": "'\r'=1",
    '"=1+1"': '\'"=1+1"',
    "'=1": "''=1",
    "\uff1d1+1": "'\uff1d1+1",
    "tea;=1+1": "tea;'=1+1",
    "tea\n=1+1": "tea\n'=1+1",
    "doc\u202etxt.exe": "doc\\u202etxt.exe",
    "\u2066a": "\\u2066a",
}
HARMLESS = [
    "tea",
    "-5",
    "+5.5",
    "-33.5,151.25",
    "1e-9",
    "a=b",
    "a-b",
    "a;b",
    "l'eau",
    "日本",
    "",
    "'",
]
LETTERS = "=+-@\t\r\uff1d\uff0b\uff0d\uff20"


@pytest.mark.parametrize(("item", "written"), HOSTILE.items())
def test_no_cell_is_a_formula(tmp_path: Path, item: str, written: str) -> None:
    path = tmp_path / "t.csv"
    assert write_table(pa.table({"item": [item, "tea"], "count": [-1.5, -2]}), path) == 1
    with open(path, newline="", encoding="utf-8") as file:
        [_, row, _] = csv.reader(file)
    assert row == [written, "-1.5"]
    for cell in re.split(r"[;\t\n]", row[0]):  # whatever a program takes as the end of a cell
        assert cell[:1] not in LETTERS or not cell, cell


def test_other_cells_and_numbers_stay(tmp_path: Path) -> None:
    table = pa.table({"item": [*HARMLESS, None], "count": range(len(HARMLESS) + 1)})
    same, changed = as_text(table)
    assert same == table and changed == 0
    large = table.set_column(0, "item", table["item"].cast(pa.large_string()))
    assert as_text(large) == (large, 0)
    coded = pa.table({"item": pa.array(["=1", "tea", "=1"]).dictionary_encode()})
    assert as_text(coded) == (pa.table({"item": ["'=1", "tea", "'=1"]}), 2)
    assert as_text(pa.table({"item": pa.array([], pa.string())}))[1] == 0


def test_a_parquet_file_has_items_as_they_are(tmp_path: Path) -> None:
    table = pa.table({"item": list(HOSTILE)})
    assert write_table(table, tmp_path / "t.parquet") == 0
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet") == table


def test_commands_say_that_cells_are_not_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("words.txt").write_text("=1+1\ntea\n@you\n")
    estimate = ["estimate", "words.txt", "--domain", "words.txt"]
    for asked in (
        [*estimate, "--seed", "1", "--save", "a.fed", "--output", "a.csv"],
        [*estimate, "--seed", "2", "--save", "b.fed", "--output", "b.csv"],
        ["merge", "a.fed", "b.fed", "--output", "both.csv"],
    ):
        assert run(asked) == 0
        assert "note: 2 cells could run in a spreadsheet" in capsys.readouterr().err
        with open(asked[-1], newline="", encoding="utf-8") as file:
            assert {row["item"] for row in csv.DictReader(file)} == {"tea", "'=1+1", "'@you"}
    assert run(["query", "a.fed", "--json", "--", "=1+1"]) == 0
    assert json.loads(capsys.readouterr().out)["estimates"][0]["item"] == "=1+1"
    assert run([*estimate, "--output", "all.parquet"]) == 0
    assert "spreadsheet" not in capsys.readouterr().err


def test_the_library_says_how_many(tmp_path: Path) -> None:
    result = fedtally.estimate(["=1", "tea"], seed=1)
    assert result.export(tmp_path / "all.csv") == 1
    assert result.export(tmp_path / "all.parquet") == 0


def test_names_that_were_read_are_text_too(tmp_path: Path) -> None:
    """Over an open domain the items are what clients spelled, and nobody listed them before."""
    strings = OpenStrings(max_length=8, bits=12)
    held = ["=1+1"] * 6000 + ["tea"] * 4000
    result = fedtally.estimate(held, domain=strings, max_bytes="16kB", allow_rare_names=True)
    assert result.export(tmp_path / "names.csv") == 1
    with open(tmp_path / "names.csv", newline="", encoding="utf-8") as file:
        assert [row["item"] for row in csv.DictReader(file)] == ["'=1+1", "tea"]
