"""A client's items without PyArrow: read as they are with it, and never shown."""

from __future__ import annotations

import datetime
import decimal
import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally import domain, sources
from fedtally.agent.items import candidates_of, of_file
from fedtally.base import arrow
from fedtally.campaign.candidate_ids import ids_inside, texts_inside
from fedtally.domain.plain import Texts
from fedtally.errors import FedtallyError, InvalidInputError, MissingExtraError

OPEN = domain.OpenStrings(seed=bytes(32))
NFC = domain.OpenStrings(seed=bytes(32), normalise="nfc")
DOMAINS = {
    "range": lambda: domain.IntegerRange(-50, 300),
    "negative": lambda: domain.IntegerRange(-(2**63), -1),
    "integers": lambda: domain.IntegerSet(np.array([1, 7, 2**62, -5]), public=True),
    "dictionary": lambda: domain.Dictionary(["tea", "7", "café", "a,b", " x", "-3", "1.0"]),
    "grid": lambda: domain.Grid(-10, 50, -130, 60, 0.5),
    "open": lambda: OPEN,
    "nfc": lambda: NFC,
}


class Word(str):
    """Text of a client's own class."""


NUMBERS = st.sampled_from(
    ["40", "+40.5", "-.5", "5.", "1e1", "1E-1", "inf", "-Infinity", "NaN", "1e999", "0x1", "", "e"]
)
GAPS = st.sampled_from(["", " ", "\t", "\v", "\n", "\u00a0"])
ITEMS = st.one_of(
    st.sampled_from(
        ["tea", "7", "café", "cafe\u0301", "7.0", "07", "7.", "-0", "7\n", "\ud800", "", "a,b"]
    ),
    st.sampled_from(["9" * 30, str(2**63), str(-(2**63) - 1), str(-(2**63))]),
    st.sampled_from([Word("tea"), np.str_("tea")]),
    st.text("0123456789-.+e, ", max_size=12),
    st.builds("{}{},{}{}{}".format, GAPS, NUMBERS, GAPS, NUMBERS, GAPS),
    st.integers(-400, 400),
    st.sampled_from([2**62, 2**63, 2**64 - 1, 2**64, -(2**63), 10**40]),
    st.floats(),
    st.sampled_from([7.0, -3.0, 1e18, 2.0**63]),
    st.tuples(st.floats(-20, 60), st.floats(-140, 70)),
    st.lists(st.sampled_from([1, 2.5, -40]), min_size=2, max_size=2),
    st.sampled_from([b"tea", b"7", b"\xff", b"40,5", None, True, [1], {}, (1, 2, 3)]),
    st.sampled_from([decimal.Decimal(7), datetime.date(2026, 1, 1), np.int64(7), np.bool_(1)]),
)


def read(name: str, items: Any) -> list[int]:
    """Return the ids of the items that are candidates."""
    made = DOMAINS[name]()
    if isinstance(made, domain.OpenStrings):
        return sorted(domain.Names(made, texts_inside(made, items)).ids.tolist())
    return sorted(ids_inside(made, items).tolist())


@pytest.fixture
def light(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs a function as if PyArrow were not installed."""

    def run(ask: Any, *given: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(arrow, "is_installed", lambda: False)
            return ask(*given)

    return run


@pytest.mark.parametrize("name", DOMAINS)
def test_items_are_read_as_with_pyarrow(name: str, light: Any) -> None:
    @settings(max_examples=150, deadline=None)
    @given(st.lists(ITEMS, max_size=8))
    def check(items: list[Any]) -> None:
        assert light(read, name, items) == read(name, items)

    check()


@each_case(
    ("name", "item"),
    [("range", "7\n"), ("range", "7.00"), ("grid", "40,5\n\n"), ("grid", "40,5\v"), ("nfc", "7\n")],
)
def test_the_ends_of_a_text_are_read_as_with_pyarrow(light: Any, name: str, item: str) -> None:
    assert light(read, name, [item]) == read(name, [item])


@each_case("items", [np.array([7, 9]), np.array(["7", "9"]), np.array([7, None]), np.array([])])
def test_arrays_are_read_too(light: Any, items: Any) -> None:
    assert light(read, "range", items) == read("range", items)


def test_names_are_spelt_as_with_pyarrow(light: Any) -> None:
    def spelt() -> list[Any]:
        names = domain.Names(NFC, texts_inside(NFC, ["tea", "cafe\u0301", "x" * 300]))
        return names.spell(names.ids, 12).tolist()

    assert light(spelt) == spelt()


def test_candidates_have_one_digest(tmp_path: Path, light: Any) -> None:
    for name, text in (("words", "tea\ncafé\n x\n"), ("numbers", "7\n-3\n9\n")):
        file = tmp_path / f"{name}.txt"
        file.write_text(text, encoding="utf-8")
        found = [one.describe() for one in light(candidates_of, file)]
        assert found == [one.describe() for one in candidates_of(file)]
    file.write_text("tea\n\ntea\n\ufeffmilk\n", encoding="utf-8")
    with pytest.raises(InvalidInputError) as without:
        light(sources.read_candidates, file)
    with pytest.raises(InvalidInputError) as with_it:
        sources.read_candidates(file)
    assert str(without.value) == str(with_it.value)


@each_case(
    "items",
    [["tea", 7], [True], [None], [1.5], [decimal.Decimal(7)], [b"\xff"], {"tea"}, {"a": 1}, 7],
)
def test_what_is_no_column_of_items_is_refused(light: Any, items: Any) -> None:
    with pytest.raises(InvalidInputError):
        light(domain.columns.as_text, items)


@each_case("items", [[["a", "b"], ["c"]], [("a",)], [{"a"}, "b"], [{"a": 1}]])
def test_a_list_in_a_column_is_never_to_become_one_item(light: Any, items: Any) -> None:
    with pytest.raises(InvalidInputError, match="write a row for each value$"):
        light(domain.columns.as_text, items)


def test_a_column_of_texts_shows_nothing() -> None:
    assert "tea" not in repr(Texts(["tea"]))


# ---- files ----


CELLS = ["tea", "7", "7.0", "", " ", '"a,b"', '"a""b"', '"open', 'x"y', "ÿ", "\0", "a\tb", "a,b"]


def found_in(file: Path, column: Any) -> Any:
    try:
        items = of_file(file, column, None)()
    except FedtallyError as error:
        return str(error)
    return sorted(set(items if isinstance(items, list) else items.to_pylist()) - {None})


@settings(max_examples=250, deadline=None)
@given(
    st.sampled_from(["csv", "tsv", "txt"]),
    st.sampled_from([["item"], ["a", "item"], ["lat", "lon", "x"], ["a", "b"], ["item"] * 2, []]),
    st.lists(st.lists(st.sampled_from(CELLS), min_size=1, max_size=4), max_size=5),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.sampled_from([None, "item", ["lat", "lon"], "other"]),
    st.sampled_from(["utf-8", "utf-8-sig", "latin-1"]),
    st.sampled_from(["plain", "gz", "cut"]),
)
def test_files_are_read_as_with_pyarrow(
    kind: str,
    header: list[str],
    rows: list[list[str]],
    end: str,
    column: Any,
    encoding: str,
    packed: str,
) -> None:
    import tempfile

    delimiter = "\t" if kind == "tsv" else ","
    lines = rows if kind == "txt" else [header, *rows]
    data = (end.join(delimiter.join(line) for line in lines) + end).encode(encoding)
    if packed != "plain":
        data = gzip.compress(data)[: -3 if packed == "cut" else None]
    column = None if kind == "txt" else column
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        file = Path(folder, f"items.{kind}" + ("" if packed == "plain" else ".gz"))
        file.write_bytes(data)
        with_it = found_in(file, column)
        patch.setattr(arrow, "is_installed", lambda: False)
        assert found_in(file, column) == with_it


def test_a_file_that_only_pyarrow_reads_is_refused_at_the_start(tmp_path: Path, light: Any) -> None:
    for name in ("items.parquet", "items.feather", "items.jsonl"):
        (tmp_path / name).write_bytes(b"PAR1")
        with pytest.raises(MissingExtraError, match="needs PyArrow: pip install pyarrow"):
            light(of_file, tmp_path / name, None, None)
    (tmp_path / "items.csv.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(MissingExtraError, match="zst"):
        light(lambda: of_file(tmp_path / "items.csv.zst", None, None)())
    (tmp_path / "items[1].csv").write_text("item\n7\n")  # a file may be called like a pattern
    assert light(lambda: of_file(tmp_path / "items[1].csv", None, None)()) == ["7"]


def test_an_infinite_coordinate_is_no_error(light: Any) -> None:
    assert light(read, "grid", ["inf,inf", "1e999,5"]) == []
    assert math.isinf(light(domain.columns.as_coordinates, ["inf,5"])[0, 0])
