"""A column of any type is counted by its values, or is refused by the name of its type; no message
repeats the error of another library, which speaks of its own insides."""

from __future__ import annotations

import datetime
import decimal
import enum
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
import pytest

import fedtally
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.sources import Columns, Source, from_items, from_table, open_source
from fedtally.sources.layout import Layout
from fedtally.sources.readers import table_source

pytestmark = pytest.mark.extras
pd: Any = pytest.importorskip("pandas")
pl: Any = pytest.importorskip("polars")

IDS = [uuid.UUID(int=1), uuid.uuid5(uuid.NAMESPACE_DNS, "fedtally")]
DAY = datetime.datetime(2026, 11, 1, 9, 30)
BERLIN = datetime.timezone(datetime.timedelta(hours=1))
HOURS = [datetime.timedelta(hours=1), datetime.timedelta(days=-1, milliseconds=999)]
HOUR_TEXTS = ["0 days 01:00:00", "-1 days +00:00:00.999"]
COSTS = [decimal.Decimal("1.50"), decimal.Decimal("0.00000001")]
COST_TEXTS = ["1.50000000", "0.00000001"]
MONTHS = pd.period_range("2026-01", periods=2, freq="M")
BANDS = pd.IntervalIndex.from_breaks([0.0, 2.5, 5.0])
SPANS = pd.IntervalIndex.from_breaks(pd.date_range("2026-01-01", periods=3), closed="left")


class Colour(enum.Enum):
    RED = 1


class Word(str):
    """Text of a class of its own."""


def refused(*names: str) -> str:
    """Return what a refusal says: the name of the type, and a way out."""
    ways = "text|integers|one plain column|give all of them one|field|a row for each item"
    return f"({'|'.join(names)}).*({ways})"


def stored(kind: Any, storage: Any) -> Any:
    return pa.ExtensionArray.from_storage(kind, storage)


class Money(pa.ExtensionType):
    """An extension type that nobody has heard of."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "bank.money")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, _storage: Any, _parameters: bytes) -> Money:
        return cls()


Column = tuple[str, Callable[[], Any], list[str] | str]

ARROW: list[Column] = [
    ("null", lambda: pa.nulls(2), "each of its 2 rows lacks its item"),
    ("bool", lambda: pa.array([True, False]), ["true", "false"]),
    *[
        (f"{kind}", lambda kind=kind: pa.array([1, 2], kind), ["1", "2"])
        for kind in (pa.int8(), pa.uint16(), pa.int32(), pa.uint64())
    ],
    *[
        (f"{kind}", lambda kind=kind: pa.array([1.0, None], pa.float64()).cast(kind), ["1"])
        for kind in (pa.float16(), pa.float32(), pa.float64())
    ],
    ("float 2.5", lambda: pa.array([2.5]), refused("floating-point numbers such as 2.5")),
    ("float inf", lambda: pa.array([float("inf")]), refused("floating-point numbers such as inf")),
    ("the first float ids", lambda: pa.array([2.0**53]), refused("from 2\\^53 on several ids")),
    ("large floats", lambda: pa.array([2.0**53 - 1]), [str(2**53 - 1)]),
    ("float ids", lambda: pa.array([2.0**53 + 2]), refused("64 bits such as 9007199254740994")),
    ("float32 ids", lambda: pa.array([20261101.0], pa.float32()), refused("32 bits such as 2026")),
    ("float16 ids", lambda: pa.array([4096.0], pa.float16()), refused("16 bits such as 4096")),
    *[
        (f"{kind}", lambda kind=kind: pa.array(["a", "b"]).cast(kind), ["a", "b"])
        for kind in (pa.string(), pa.large_string(), pa.string_view())
    ],
    *[
        (f"{kind}", lambda kind=kind: pa.array([b"a", b"b"], kind), ["a", "b"])
        for kind in (pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(1))
    ],
    ("bytes of a number", lambda: pa.array([b"\0\1"]), refused("bytes that are no UTF-8 text")),
    ("bytes of no text", lambda: pa.array([b"\xff"]), refused("bytes that are no UTF-8 text")),
    ("date32", lambda: pa.array([DAY.date()]), ["2026-11-01"]),
    ("date64", lambda: pa.array([DAY.date()], pa.date64()), ["2026-11-01"]),
    ("time32", lambda: pa.array([DAY.time()], pa.time32("s")), ["09:30:00"]),
    ("time64", lambda: pa.array([DAY.time()], pa.time64("ns")), ["09:30:00"]),
    *[
        (f"timestamp {unit}", lambda unit=unit: pa.array([DAY], pa.timestamp(unit)), [str(DAY)])
        for unit in ("s", "ms", "us", "ns")
    ],
    ("zone", lambda: pa.array([DAY], pa.timestamp("us", "UTC")), [f"{DAY}+00:00"]),
    *[
        (f"duration {unit}", lambda unit=unit: pa.array(HOURS, pa.duration(unit)), HOUR_TEXTS)
        for unit in ("ms", "us", "ns")
    ],
    ("duration s", lambda: pa.array([90], pa.duration("s")), ["0 days 00:01:30"]),
    ("month_day_nano", lambda: pa.array([pa.MonthDayNano([1, 2, 3])]), refused("month_day_nano")),
    *[
        (f"{kind}", lambda kind=kind: pa.array(COSTS, kind), COST_TEXTS)
        for kind in (pa.decimal64(12, 8), pa.decimal128(20, 8), pa.decimal256(50, 8))
    ],
    ("hundreds", lambda: pa.array([decimal.Decimal(1200)], pa.decimal128(5, -2)), ["1200"]),
    ("list", lambda: pa.array([[1], [2]]), refused("list<")),
    ("list of one size", lambda: pa.array([[1]], pa.list_(pa.int8(), 1)), refused("list<")),
    ("struct", lambda: pa.array([{"a": 1}]), refused("struct<")),
    ("map", lambda: pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())), refused("map<")),
    (
        "runs",
        lambda: pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", "b"])),
        ["a", "a", "b"],
    ),
    (
        "runs of categories",
        lambda: pa.RunEndEncodedArray.from_arrays([2, 3], pa.array(["a", "b"]).dictionary_encode()),
        refused("run_end_encoded<"),
    ),
    ("dictionary", lambda: pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    ("dictionary of durations", lambda: pa.array(HOURS).dictionary_encode(), HOUR_TEXTS),
    (
        "dictionary of UUIDs",
        lambda: pa.DictionaryArray.from_arrays(
            pa.array([1, 0]), stored(pa.uuid(), pa.array([one.bytes for one in IDS], pa.binary(16)))
        ),
        [str(one) for one in reversed(IDS)],
    ),
    (
        "uuid",
        lambda: stored(pa.uuid(), pa.array([*(one.bytes for one in IDS), None], pa.binary(16))),
        [str(one) for one in IDS],
    ),
    ("bool8", lambda: stored(pa.bool8(), pa.array([1, 0], pa.int8())), ["true", "false"]),
    ("json", lambda: stored(pa.json_(pa.string()), pa.array(['{"a":1}'])), ['{"a":1}']),
    (
        "opaque",
        lambda: stored(pa.opaque(pa.int64(), "geometry", "db"), pa.array([7])),
        refused("arrow.opaque"),
    ),
    (
        "tensor",
        lambda: stored(
            pa.fixed_shape_tensor(pa.int8(), [1]), pa.array([[1]], pa.list_(pa.int8(), 1))
        ),
        refused("arrow.fixed_shape_tensor"),
    ),
    ("an unknown type", lambda: stored(Money(), pa.array([672])), refused("bank.money")),
]

PANDAS: list[Column] = [
    ("Int64", lambda: pd.array([1, None], "Int64"), ["1"]),
    ("UInt8", lambda: pd.array([1, None], "UInt8"), ["1"]),
    ("Float32", lambda: pd.array([1, None], "Float32"), ["1"]),
    ("boolean", lambda: pd.array([True, None], "boolean"), ["true"]),
    ("string", lambda: pd.array(["a", None], "string"), ["a"]),
    ("object", lambda: np.array(["a", None, float("nan"), pd.NA], object), ["a"]),
    ("objects of several types", lambda: np.array(["a", 1], object), refused("int, str")),
    ("category", lambda: pd.Categorical(["a", None, "b"]), ["a", "b"]),
    ("category of integers", lambda: pd.Categorical([3, 5]), ["3", "5"]),
    ("category of truth values", lambda: pd.Categorical([True, False]), ["true", "false"]),
    ("category of months", lambda: pd.Categorical(MONTHS), ["2026-01", "2026-02"]),
    ("category of bands", lambda: pd.cut([1.0, 4.0], BANDS), ["(0.0, 2.5]", "(2.5, 5.0]"]),
    ("category of UUIDs", lambda: pd.Categorical(IDS), [str(one) for one in IDS]),
    ("category of several types", lambda: pd.Categorical([1, "a"]), refused("int, str")),
    ("timestamps", lambda: pd.DatetimeIndex([DAY, None]), [str(DAY)]),
    ("zone", lambda: pd.DatetimeIndex([DAY]).tz_localize("UTC"), [f"{DAY}+00:00"]),
    ("timedelta", lambda: pd.to_timedelta([*HOURS, None]), HOUR_TEXTS),
    ("months", lambda: MONTHS, ["2026-01", "2026-02"]),
    ("months with a missing one", lambda: pd.PeriodIndex(["2026-01", None], freq="M"), ["2026-01"]),
    ("days", lambda: pd.period_range("2026-11-01", periods=1, freq="D"), ["2026-11-01"]),
    ("weeks", lambda: pd.PeriodIndex(["2026-01-01"], freq="W"), ["2025-12-29/2026-01-04"]),
    (
        "hours",
        lambda: pd.period_range("2026-01-01 05:00", periods=1, freq="h"),
        ["2026-01-01 05:00"],
    ),
    ("bands", lambda: BANDS, ["(0.0, 2.5]", "(2.5, 5.0]"]),
    (
        "spans",
        lambda: SPANS,
        [
            "[2026-01-01 00:00:00, 2026-01-02 00:00:00)",
            "[2026-01-02 00:00:00, 2026-01-03 00:00:00)",
        ],
    ),
    ("sparse integers", lambda: pd.arrays.SparseArray([0, 0, 2]), ["0", "0", "2"]),
    ("sparse floats", lambda: pd.arrays.SparseArray([1.0, float("nan")]), ["1"]),
    ("sparse text", lambda: pd.arrays.SparseArray(["a", "b"]), ["a", "b"]),
    ("Arrow", lambda: pd.array([DAY], pd.ArrowDtype(pa.timestamp("s"))), [str(DAY)]),
    ("Arrow decimals", lambda: pd.array(COSTS, pd.ArrowDtype(pa.decimal128(9, 8))), COST_TEXTS),
    ("complex", lambda: np.array([1j]), refused("complex128")),
]

POLARS: list[Column] = [
    ("Int128", lambda: pl.Series([1, None], dtype=pl.Int128), ["1"]),
    ("large Int128", lambda: pl.Series([1, 2**100], dtype=pl.Int128), ["1", str(2**100)]),
    ("UInt64", lambda: pl.Series([2**62], dtype=pl.UInt64), [str(2**62)]),
    ("UInt128", lambda: pl.Series([2**63], dtype=pl.UInt128), [str(2**63)]),
    ("Boolean", lambda: pl.Series([True, None]), ["true"]),
    ("Categorical", lambda: pl.Series(["a", "b"], dtype=pl.Categorical), ["a", "b"]),
    ("Enum", lambda: pl.Series(["a", "b"], dtype=pl.Enum(["b", "a"])), ["a", "b"]),
    ("Binary", lambda: pl.Series([b"a"]), ["a"]),
    ("Date", lambda: pl.Series([DAY.date()]), ["2026-11-01"]),
    ("Time", lambda: pl.Series([DAY.time()]), ["09:30:00"]),
    ("Datetime", lambda: pl.Series([DAY]), [str(DAY)]),
    ("Duration", lambda: pl.Series(HOURS), HOUR_TEXTS),
    ("Decimal", lambda: pl.Series(COSTS), COST_TEXTS),
    ("Null", lambda: pl.Series([None]), "its only row lacks its item"),
    ("List", lambda: pl.Series([[1]]), refused("list<")),
    ("Array", lambda: pl.Series([[1]], dtype=pl.Array(pl.Int8, 1)), refused("list<")),
    ("Struct", lambda: pl.Series([{"a": 1}]), refused("struct<")),
    ("List of Int128", lambda: pl.Series([[1]], dtype=pl.List(pl.Int128)), refused("Int128")),
    ("Object", lambda: pl.Series([object()], dtype=pl.Object), refused("type object")),
    ("UUIDs", lambda: pl.Series(IDS, dtype=pl.Object), [str(one) for one in IDS]),
]

NUMPY: list[Column] = [
    ("other bytes first", lambda: np.array([1, 2], ">i4"), ["1", "2"]),
    ("text", lambda: np.array(["a", "b"]), ["a", "b"]),
    ("bytes", lambda: np.array([b"a", b"b"]), ["a", "b"]),
    ("masked", lambda: np.ma.array([1, 2], mask=[False, True]), ["1"]),
    ("years", lambda: np.array(["2026"], "M8[Y]"), ["2026"]),
    ("months", lambda: np.array(["2026-01", "NaT"], "M8[M]"), ["2026-01"]),
    ("weeks", lambda: np.array(["2026-01-01"], "M8[W]"), ["2026-01-01"]),
    ("days", lambda: np.array(["2026-11-01"], "M8[D]"), ["2026-11-01"]),
    *[
        (f"timestamps {unit}", lambda unit=unit: np.array([DAY], f"M8[{unit}]"), [str(DAY)])
        for unit in ("m", "5m", "s", "30s", "us", "ns")
    ],
    ("hours", lambda: np.array([2], "m8[h]"), ["0 days 02:00:00"]),
    ("weeks of days", lambda: np.array([2], "m8[W]"), ["14 days 00:00:00"]),
    ("picoseconds", lambda: np.array([2], "m8[ps]"), refused(r"timedelta64\[ps\]")),
    ("durations of months", lambda: np.array([2], "m8[M]"), refused(r"timedelta64\[M\]")),
    ("long floats", lambda: np.array([1], np.longdouble), refused("float128|longdouble|float64")),
    ("complex", lambda: np.array([1j]), refused("complex128")),
    ("records", lambda: np.array([(1, 2)], "i4,i4"), refused("f0", "records")),
]

OBJECTS: list[Column] = [
    ("nothing", lambda: [None], "its only row lacks its item"),
    ("text and nothing", lambda: ["a", None, float("nan"), pd.NA, pd.NaT], ["a"]),
    ("text of a class", lambda: [Word("a"), "b"], ["a", "b"]),
    ("integers", lambda: [1, np.int8(2), None], ["1", "2"]),
    ("large integers", lambda: [1, 2**62], ["1", str(2**62)]),
    ("larger integers", lambda: [2**64], "beyond 64 bits; pass them as text"),
    ("integers of both ends", lambda: [2**63, -1], "beyond 64 bits; pass them as text"),
    ("integers and whole floats", lambda: [2**60 + 1, 1.0], [str(2**60 + 1), "1"]),
    ("integers and floats", lambda: [2**60, 1.5], refused("floating-point numbers")),
    ("truth values", lambda: [True, np.bool_(False)], ["true", "false"]),
    ("truth values and integers", lambda: [True, 1], refused("bool, int")),
    ("text and bytes", lambda: ["a", b"b"], refused("bytes, str")),
    ("lone surrogates", lambda: ["\ud800"], "UTF-8 can write, without lone surrogates"),
    ("dates", lambda: [DAY.date()], ["2026-11-01"]),
    ("dates and times", lambda: [DAY.date(), DAY], refused("datetime.date, datetime.datetime")),
    ("timestamps", lambda: [DAY, pd.Timestamp(DAY)], [str(DAY)] * 2),
    (
        "one zone",
        lambda: [DAY.replace(tzinfo=BERLIN), DAY.replace(tzinfo=datetime.UTC)],
        [f"{DAY}+01:00", "2026-11-01 10:30:00+01:00"],
    ),
    ("some zones", lambda: [DAY.replace(tzinfo=BERLIN), DAY], refused("with a zone")),
    ("durations", lambda: HOURS, HOUR_TEXTS),
    ("durations of pandas", lambda: [pd.Timedelta(hour) for hour in HOURS], HOUR_TEXTS),
    ("decimals", lambda: COSTS, COST_TEXTS),
    ("no number", lambda: [decimal.Decimal("NaN"), decimal.Decimal(1)], ["1"]),
    ("long decimals", lambda: [decimal.Decimal("1E+99")], refused("decimal.Decimal")),
    ("UUIDs", lambda: IDS, [str(one) for one in IDS]),
    ("months", lambda: list(MONTHS), ["2026-01", "2026-02"]),
    ("bands", lambda: list(BANDS), ["(0.0, 2.5]", "(2.5, 5.0]"]),
    (
        "spans",
        lambda: [SPANS[0]],
        ["[2026-01-01 00:00:00, 2026-01-02 00:00:00)"],
    ),
    ("times of NumPy", lambda: [np.datetime64(DAY, "ns")], [str(DAY)]),
    ("durations of NumPy", lambda: [np.timedelta64(1, "h")], ["0 days 01:00:00"]),
    ("members", lambda: [Colour.RED], refused("Colour")),
    ("lists", lambda: [[1], [2]], refused("type list")),
    ("tuples", lambda: [("a", 1)], refused("type tuple")),
    ("objects", lambda: [object()], refused("type object")),
    ("a range", lambda: range(1, 3), ["1", "2"]),
]

SEVERAL = {  # under privacy an object is read alone: what is refused together has its own text
    "objects of several types": ["a", "1"],
    "category of several types": ["1", "a"],
    "integers and floats": [str(2**60), "1.5"],
    "truth values and integers": ["true", "1"],
    "text and bytes": ["a", "b"],
    "dates and times": ["2026-11-01", str(DAY)],
    "some zones": [f"{DAY}+01:00", str(DAY)],
    "one zone": [f"{DAY}+01:00", f"{DAY}+00:00"],
    "decimals": ["1.50", "0.00000001"],
    "larger integers": [str(2**64)],
    "integers of both ends": [str(2**63), "-1"],
    "long decimals": [],
    "lone surrogates": [],
    "no number": ["1"],
    "float 2.5": ["2.5"],
    "float inf": ["inf"],
    "the first float ids": [str(2**53)],
    "float ids": ["9007199254740994"],
    "float32 ids": ["20261100"],
    "float16 ids": ["4096"],
    "bytes of a number": [],
    "bytes of no text": [],
    "members": [],
    "lists": [],
    "tuples": [],
    "objects": [],
    "Object": [],
}


IN_FILES = {  # Parquet keeps less of these than the frame has
    "dictionary of durations": refused(r"categories of type duration\[us\]"),
    **dict.fromkeys(
        (
            *("dictionary of UUIDs", "category of UUIDs"),
            *("Int128", "large Int128", "UInt128", "List of Int128"),
        ),
        refused("integers of 128 bits or categories of UUIDs"),
    ),
}


def read(source: Source, *, private: bool = False) -> list[str]:
    batches = source.batches(private=private)
    return [str(item) for batch in batches for item in batch.items.to_pylist()]


def check(found: Callable[[], list[str]], expected: list[str] | str) -> None:
    """Check the texts, or a refusal that repeats no error of another library."""
    if isinstance(expected, list):
        assert found() == expected
        return
    with pytest.raises(InvalidInputError, match=expected) as caught:
        found()
    for cause in causes(caught.value):
        assert str(cause) not in str(caught.value), cause


def of_private(name: str, expected: list[str] | str) -> list[str] | str:
    """Return what is read under privacy; nothing where no value has a reading, nor an error."""
    return [] if "lacks its item" in expected else SEVERAL.get(name, expected)


def causes(error: BaseException) -> Iterator[BaseException]:
    held = error.__cause__ or error.__context__
    while held is not None:
        if not isinstance(held, InvalidInputError) and len(str(held)) > 9:  # no mere number
            yield held
        held = held.__cause__ or held.__context__


def of_estimate(data: Any, **given: Any) -> list[str]:
    result = fedtally.estimate(data, seed=1, **given)
    return sorted(str(one.item) for one in result.top(9) for _ in range(max(1, round(one.count))))


def as_expected(expected: list[str] | str) -> list[str] | str:
    return sorted(expected) if isinstance(expected, list) else expected


def named(columns: list[Column]) -> Any:
    return pytest.mark.parametrize(
        ("name", "make", "expected"), columns, ids=[column[0] for column in columns]
    )


@named(ARROW)
def test_a_column_of_arrow(
    name: str, make: Callable[[], Any], expected: list[str] | str, tmp_path: Path
) -> None:
    table = pa.table({"v": make()})
    check(lambda: of_estimate(table, item="v"), as_expected(expected))
    check(lambda: read(from_items(table["v"])), expected)
    private = of_private(name, expected)
    if private:
        check(lambda: read(from_table(table, Columns("v")), private=True), private)
    for kind, write in (("parquet", parquet.write_table), ("feather", write_feather)):
        path = tmp_path / f"t.{kind}"
        try:
            write(table, path)
        except (pa.ArrowException, OSError):
            continue  # the format has no such column
        kept = IN_FILES.get(name, expected)
        if kind == "feather" and name == "dictionary of durations":
            kept = expected
        check(lambda path=path, kept=kept: read(open_source(path, Columns("v"))), kept)
        if private and not pa.types.is_dictionary(table["v"].type):
            check(lambda path=path: read(open_source(path, Columns("v")), private=True), private)


def write_feather(table: Any, path: Path) -> None:
    feather.write_feather(table, path, compression="uncompressed")


@named(PANDAS)
def test_a_column_of_pandas(
    name: str, make: Callable[[], Any], expected: list[str] | str, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"v": make()})
    check(lambda: of_estimate(frame, item="v"), as_expected(expected))
    for column in (frame["v"], make(), frame["v"].array, pd.Index(frame["v"])):
        check(lambda column=column: read(from_items(column)), expected)
    check(lambda: read(from_table(frame, Columns("v")), private=True), of_private(name, expected))
    try:
        frame.to_parquet(tmp_path / "t.parquet")
    except (TypeError, pa.ArrowException):
        return  # pandas writes no such column
    kept = IN_FILES.get(name, expected)
    check(lambda: read(open_source(tmp_path / "t.parquet", Columns("v"))), kept)


@named(POLARS)
def test_a_column_of_polars(
    name: str, make: Callable[[], Any], expected: list[str] | str, tmp_path: Path
) -> None:
    frame = pl.DataFrame({"v": make()})
    check(lambda: of_estimate(frame, item="v"), as_expected(expected))
    check(lambda: of_estimate(frame.lazy(), item="v"), as_expected(expected))
    check(lambda: read(from_items(frame["v"])), expected)
    private = of_private(name, expected)
    if private:
        check(lambda: read(from_table(frame, Columns("v")), private=True), private)
    try:
        frame.write_parquet(tmp_path / "t.parquet")
    except pl.exceptions.PolarsError:
        return
    kept = IN_FILES.get(name, expected)
    check(lambda: read(open_source(tmp_path / "t.parquet", Columns("v"))), kept)


@named(NUMPY + OBJECTS)
def test_a_column_of_numpy_or_of_objects(
    name: str, make: Callable[[], Any], expected: list[str] | str
) -> None:
    check(lambda: of_estimate(make()), as_expected(expected))
    check(lambda: read(from_items(make())), expected)
    private = of_private(name, expected)
    if private:
        check(lambda: read(from_items(make()), private=True), private)
    else:  # an object that has no reading is missing, and its client holds nothing
        assert read(from_items([*make(), "tea"]), private=True) == ["tea"]


def test_a_type_that_nobody_registered_is_known_by_the_metadata_of_its_field(
    tmp_path: Path,
) -> None:
    """As in a process without pandas, which reads what pandas wrote."""

    def table(name: str, parameters: str, storage: Any) -> Any:
        metadata = {"ARROW:extension:name": name, "ARROW:extension:metadata": parameters}
        field = pa.field("v", storage.type, metadata=metadata)
        return pa.table([storage], schema=pa.schema([field]))

    months = table("pandas.period", '{"freq": "M"}', pa.array([672, 673, None]))
    assert read(from_table(months, Columns("v"))) == ["2026-01", "2026-02"]
    assert read(from_table(pl.DataFrame(months), Columns("v"))) == ["2026-01", "2026-02"]
    money = table("bank.coin", "", pa.array([672]))
    for frame in (money, pl.DataFrame(money)):
        check(lambda frame=frame: read(from_table(frame, Columns("v"))), refused("bank.coin"))
    words = table("bank.word", "", pa.array(["tea"]))  # the text is the value
    assert read(from_table(words, Columns("v"))) == ["tea"]
    damaged = table("pandas.period", '{"freq": "no such"}', pa.array([672]))
    check(lambda: read(from_table(damaged, Columns("v"))), refused("pandas.period"))
    for one, other in ((months, table("x", "", pa.array([672]))),):
        (tmp_path / "all").mkdir()
        parquet.write_table(one, tmp_path / "all" / "1.parquet")
        parquet.write_table(other, tmp_path / "all" / "2.parquet")
        with pytest.raises(
            InvalidInputError, match=r"type x there and values of type pandas\.period"
        ):
            read(open_source(tmp_path / "all", Columns("v")))


@pytest.mark.parametrize("part", ["clients", "rounds"])
def test_clients_and_rounds_have_types_as_items_have(part: str) -> None:
    source = from_items(["tea"] * 2, **{part: pd.Series(MONTHS)})
    [batch] = source.batches()
    assert getattr(batch, part).to_pylist() == ["2026-01", "2026-02"]


def test_a_lazy_frame_that_cannot_be_computed(tmp_path: Path) -> None:
    missing = pl.scan_parquet(tmp_path / "no.parquet")
    failing = pl.LazyFrame({"v": ["a"]}).select(pl.col("v").cast(pl.Int64))
    for frame in (missing, failing):
        check(
            lambda frame=frame: read(from_table(frame, Columns("v"))),
            "cannot be computed .*pass the table",
        )


def test_arrays_of_other_libraries_are_read_as_those_of_numpy_or_refused() -> None:
    class Tensor:
        """As one of PyTorch, whose elements are tensors, too."""

        def __len__(self) -> int:
            return 2

        def __iter__(self) -> Any:
            raise AssertionError("its elements are no numbers")

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.array([3, 5])

    assert read(from_items(Tensor())) == ["3", "5"]

    class Sparse:
        """As one of SciPy, of which nobody knows how many values are meant."""

        def __len__(self) -> int:
            raise TypeError("sparse array length is ambiguous; use getnnz()")

    check(lambda: read(from_items(Sparse())), "must be a column such as a list or a series, got Sp")


def test_what_exports_the_stream_of_arrow_alone_is_a_table() -> None:
    class Relation:
        """As one of DuckDB, whose columns are relations, too."""

        columns = ("v", "w")

        def __init__(self, table: Any) -> None:
            self._table = table

        def __getitem__(self, name: str) -> Any:
            raise AssertionError("a column of it is a table again")

        def __arrow_c_stream__(self, requested: Any = None) -> Any:
            if self._table is None:
                raise RuntimeError("Catalog Error: no such view")
            return self._table.__arrow_c_stream__(requested)

    source = from_table(Relation(pa.table({"v": IDS, "w": [1, 2]})), Columns("v"))
    assert read(source) == [str(one) for one in IDS]
    check(lambda: read(from_table(Relation(None), Columns("v"))), "cannot be computed")


def test_candidates_and_queries_of_other_types_are_refused_by_their_type() -> None:
    for values in (IDS, MONTHS, pd.Series(MONTHS), pl.Series([DAY])):
        check(lambda values=values: fedtally.estimate(["a"], domain=values), "write each as text")
        check(lambda values=values: fedtally.Dictionary(values), "write each as text")
    # as text, each list would be one candidate
    for values in ([["a", "b"], ["c"]], [{"a"}, "b"], pd.Series([["a"]]), pa.array([{"a": 1}])):
        check(lambda values=values: fedtally.estimate(["a"], domain=values), "for each value$")
        check(lambda values=values: fedtally.Dictionary(values), "write a row for each value$")
    result = fedtally.estimate(IDS, seed=1)
    assert result.frequency(str(IDS[0])) == pytest.approx(0.5)
    check(lambda: result.frequency(IDS[0]), "write each as text")


def test_a_type_without_pandas_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"v": pa.array(pd.Series(MONTHS))})
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'fedtally\[pandas\]'"):
        read(from_table(table, Columns("v")))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.parquet", b"PAR1" + bytes(99) + b"PAR1", "damaged, cut short or not in the format"),
        ("t.feather", b"ARROW1" + bytes(99), "damaged, cut short or not in the format"),
        ("t.csv", b"a,b\n1,2\n3\n", r"\(row 3: 1, not 2\)"),
        ("t.csv", b"a,b\n1,caf\xe9\n", "encoding='latin-1'"),
        ("t.jsonl", b'{"b":1}\n' * 9000 + b'{"b":"x"}\n', "changed from number to string"),
        ("t.jsonl", b'{"b":1}\n' * 9000 + b'{"b":1.5}\n', "1.5 is no integer of 64 bits"),
        ("t.jsonl", b'{"b":1}\n' * 9000 + b'{"b":1,"b":2}\n', "has the column 'b' twice"),
        ("t.jsonl", b'{"b":1}\n' * 9000 + b'{"b":\n', "is no JSON object"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_in_our_own_words(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    layout = Layout({"jsonl": "json"}.get(path.suffix[1:], path.suffix[1:]), block_size=4096)
    check(lambda: read(table_source(str(path), Columns("b"), layout)), message)


def test_a_type_that_its_package_cannot_read_from_a_file(tmp_path: Path) -> None:
    """Reading categories of intervals, pandas itself raises an error of Python."""
    frame = pd.DataFrame({"v": pd.cut([1, 9], [0, 5, 10])})
    path = tmp_path / "t.feather"
    frame.to_feather(path)
    for private in (False, True):
        source = open_source(path, Columns("v"))
        with pytest.raises(UnreadableFileError, match="parameters .*: write that column as text"):
            list(source.batches(private=private))
