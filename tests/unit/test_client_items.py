"""A client's items in bulk: what is read is what one by one gives, and it takes no longer."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from fedtally.campaign import candidate_ids as items_module
from fedtally.campaign.candidate_ids import ids_inside, texts_inside
from fedtally.domain import (
    Dictionary,
    Domain,
    Grid,
    IntegerRange,
    IntegerSet,
    OpenStrings,
    Strings,
)

GRID = Grid(0, 10, 0, 10, 0.5)
DOMAINS: list[Domain] = [
    IntegerRange(-5, 50),
    IntegerSet([1, 7, 2**62], public=True),
    Dictionary(["tea", "7", "1.5", "-3", "\u00e9", "True", "1,2"]),
    Strings(["tea", "7"], bytes(32)),
    GRID,
    OpenStrings(max_length=6, bits=12, seed=bytes(32)),
]


class Hostile:
    """An object that raises whatever is asked of it."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("secret")

    __hash__ = None  # type: ignore[assignment]

    def __float__(self) -> float:
        raise ValueError("secret")


class Faceless:
    """An object that raises what nobody expects where it is asked for its class."""

    @property
    def __class__(self) -> Any:
        raise KeyError("secret")


class Word(str):
    __slots__ = ()


numbers = st.one_of(
    st.integers(-10, 60),
    st.sampled_from([2**62, 2**63, 2**64, -(2**63), -(2**70), 10**5000]),
    st.floats(width=32),
    st.sampled_from([7.0, -0.0, 1e300, float("nan"), float("inf")]),
    st.integers(-10, 60).map(np.int32),
    st.integers(-10, 60).map(np.float32),
    st.booleans(),
    st.booleans().map(np.bool_),
)
texts = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        ["tea", "7", "7.0", "-3", "1.5", "1.5,2", " 1.5 , 2 ", "1,2", "\ud800", "", "x\n"]
    ),
    st.sampled_from(["tea", "7"]).map(Word),
    st.sampled_from(["tea", "7"]).map(np.str_),
    st.sampled_from([b"tea", b"7", b"\xff"]),
)
odd = st.sampled_from(
    [
        None,
        Hostile(),
        decimal.Decimal(7),
        decimal.Decimal("1.5"),
        datetime.date(2026, 1, 1),
        [],
        [7],
        {"tea": 1},
        object(),
        np.array([1.5, 2.5]),
    ]
)
points = st.one_of(
    st.tuples(st.floats(-1, 11), st.integers(-1, 11)),
    st.lists(st.floats(-1, 11), min_size=2, max_size=2),
    st.sampled_from([(1, 10**400), (True, 2.0), ("1", 2.0), [2**70, 1]]),
)


def alone(domain: Domain, items: list[Any]) -> list[int]:
    """Return the ids of items that are read one by one, by the domain itself."""
    found = set()
    for item in items:
        is_float = issubclass(type(item), float | np.floating)
        whole = is_float and float(item).is_integer()
        one = [int(item) if whole else item]
        try:
            if domain.inside(one)[0]:
                found |= set(domain.encode(one).tolist())
        except Exception:
            continue
    return sorted(found)


@given(st.lists(st.one_of(numbers, texts, odd, points), max_size=12))
def test_what_is_read_in_bulk_is_what_is_read_one_by_one(held: list[Any]) -> None:
    for domain in DOMAINS:
        assert sorted(set(ids_inside(domain, held).tolist())) == alone(domain, held), domain


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.kind)
@pytest.mark.parametrize(
    "column",
    [
        np.array([7, -3, 99]),
        np.array([7, 2**64 - 1], np.uint64),
        np.array([7.0, 1.5, np.nan]),
        np.array(["tea", "7", "1.5"]),
        np.array(["tea", 7, None, 1.5], object),
        np.array(["2026-01-01", "1970-01-01"], "datetime64[ns]"),
        np.array([7, 0], "timedelta64[s]"),
        np.array([b"tea", b"7"]),
        np.array([True, False]),
        pa.array(["tea", None, "7", "7"]),
        pa.chunked_array([["tea", "7"], ["1.5", "-3"]], pa.large_string()),
        pa.chunked_array([], pa.string()),
        pa.array([7, None, -3], pa.int8()),
        pa.array([2**64 - 1, 7], pa.uint64()),
        pa.array([7.0, 1.5, None]),
        pa.array(["tea", "7", "tea"]).dictionary_encode(),
        pa.array([b"tea", b"\xff"]).cast(pa.binary()),
        pa.array([b"tea", b"\xff", b"7"]).view(pa.string()),
        pa.array([datetime.date(2026, 1, 1)]),
        pa.array([2**62], pa.timestamp("s")),  # Python has no such date
        pa.array([decimal.Decimal(7)]),
        (7, "tea"),
    ],
    ids=lambda column: str(getattr(column, "dtype", getattr(column, "type", "a tuple"))),
)
def test_columns_of_every_kind_are_read_as_their_values_are(domain: Domain, column: Any) -> None:
    def value(item: Any) -> Any:
        if not isinstance(item, pa.Scalar):
            return item
        try:
            return item.as_py()
        except Exception:
            return None

    found = sorted(set(ids_inside(domain, column).tolist()))
    assert found == alone(domain, [value(item) for item in column])


@each_case(
    "points",
    [
        np.array([[1.5, 2.5], [np.nan, 1], [99, 0], [1.5, 2.5]]),
        np.array([[1, 2], [11, 3]]),
        np.array([[1.5, "x"], [2.5, 3.5]], object),
        np.zeros((0, 2)),
    ],
)
def test_coordinates_are_read_row_by_row(points: Any) -> None:
    found = sorted(set(ids_inside(GRID, points).tolist()))
    expected = set()
    for row in points:
        if points.dtype.kind != "O" and GRID.inside(row[None])[0]:
            expected |= set(GRID.encode(row[None]).tolist())
    assert found == sorted(expected)


def test_blocks_are_as_good_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(items_module, "_BLOCK", 3)
    held = [str(i) for i in range(-20, 70)]
    assert len(ids_inside(DOMAINS[0], held)) == 56
    assert len(ids_inside(DOMAINS[0], pa.array(held))) == 56
    open_domain = DOMAINS[-1]
    assert sorted(texts_inside(open_domain, held).to_pylist()) == sorted(held)


def test_open_texts_are_those_that_can_be_written() -> None:
    held = ["tea", 7, b"rice", "caf\u00e9", "\ud800", None, 1.5, [1], Hostile(), Faceless()]
    expected = ["7", "caf\u00e9", "rice", "tea"]
    assert sorted(texts_inside(DOMAINS[-1], held).to_pylist()) == expected
    assert texts_inside(DOMAINS[-1], []).to_pylist() == []


@pytest.mark.parametrize("items", ["tea", b"tea", {"tea"}, {"tea": 1}, 7, iter(["tea"]), None])
def test_what_is_no_column_is_a_type_error(items: Any) -> None:
    with pytest.raises(TypeError):
        ids_inside(DOMAINS[0], items)


@pytest.mark.parametrize(
    "held",
    [
        list(range(100_000)),
        [str(i) for i in range(100_000)],
        [f"word {i}" for i in range(100_000)],
        [i + 0.5 for i in range(100_000)],
        [7, "7", 7.0, None] * 25_000,
    ],
    ids=["integers", "digits", "words", "fractions", "mixed"],
)
@pytest.mark.parametrize("domain", [DOMAINS[0], DOMAINS[2], GRID], ids=lambda domain: domain.kind)
def test_no_usual_item_is_looked_at_alone(
    monkeypatch: pytest.MonkeyPatch, domain: Domain, held: list[Any]
) -> None:
    """One by one, 100,000 items took half a minute."""
    calls = []
    inside = type(domain).inside
    monkeypatch.setattr(
        type(domain), "inside", lambda self, one: calls.append(1) or inside(self, one)
    )
    ids_inside(domain, held)
    assert len(calls) < 10
