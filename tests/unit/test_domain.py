"""Items to ids and back: every kind of domain against a slow reading of its definition."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.domain import (
    Dictionary,
    Domain,
    Grid,
    IntegerRange,
    IntegerSet,
    Strings,
    fingerprint_key,
    load,
    parse,
)
from fedtally.domain.columns import as_integers
from fedtally.errors import InvalidInputError, OutsideDomainError, UnreadableFileError

PRIME = (1 << 61) - 1
SEED = bytes(range(32))
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
WORDS = [
    "tea",
    "",
    "Kaffee",
    "漢字",
    "\u00e9",
    "e\u0301",
    "a" * 7,
    "a" * 8,
    "a\x00",
    "a",
    "0" * 500,
]


def slow_fingerprint(text: str, seed: bytes) -> int:
    """Follow the definition letter by letter."""
    stream = hashlib.shake_256(b"fedtally/1/fingerprint" + b"\x00" + seed).digest(32)
    k, k2 = (int.from_bytes(half, "little") % PRIME for half in (stream[:16], stream[16:]))
    data = text.encode()
    h = len(data) + 1
    for at in range(0, len(data), 7):
        h = (h * k + int.from_bytes(data[at : at + 7], "little")) % PRIME
    return h * k2 % PRIME


def examples() -> list[Domain]:
    return [
        IntegerRange(-5, 9),
        IntegerSet([9, -4, 9, 1 << 40]),
        IntegerSet([3, 4, 5], public=True),
        Dictionary(WORDS),
        Dictionary(WORDS[:3], public=False),
        Strings(WORDS, SEED),
        Strings(WORDS[::-1], SEED, public=True),
        Grid(25, 26, -130, -128, 0.1),
    ]


every_kind = pytest.mark.parametrize("domain", examples(), ids=repr)


# What holds for every kind


@every_kind
def test_labels_encode_to_the_ids_of_their_positions(domain: Domain) -> None:
    positions = np.arange(domain.size)
    labels = domain.labels(positions)
    ids = domain.ids(0, domain.size)
    assert ids.dtype == np.uint64
    assert len(set(ids.tolist())) == domain.size
    assert domain.encode(labels).tolist() == ids.tolist()
    assert domain.locate(labels).tolist() == positions.tolist()
    assert domain.locate(labels).dtype == np.int64
    assert domain.contains(labels).all()
    assert domain.ids(1, 3).tolist() == ids[1:3].tolist()
    assert domain.ids(2, 2).size == 0


@every_kind
def test_first_id_says_what_the_ids_are(domain: Domain) -> None:
    ids = domain.ids(0, domain.size).tolist()
    contiguous = [(ids[0] + step) % 2**64 for step in range(domain.size)]
    if domain.first_id is None:
        assert ids != contiguous
    else:
        assert ids == contiguous
        assert domain.first_id == ids[0]


@every_kind
def test_saved_domains_load_as_equal_ones(domain: Domain) -> None:
    arrays = domain.arrays()
    assert not any(array.dtype.hasobject for array in arrays.values())
    again = load(
        json.loads(json.dumps(domain.describe())),
        {name: array.copy() for name, array in arrays.items()},
    )
    assert again == domain
    assert hash(again) == hash(domain)
    assert again.labels(np.arange(domain.size)) == domain.labels(np.arange(domain.size))
    assert [domain == other for other in examples()].count(True) == 1


@every_kind
def test_a_damaged_description_is_refused(domain: Domain) -> None:
    with pytest.raises(UnreadableFileError, match="damaged"):
        load({**domain.describe(), "size": domain.size + 1}, domain.arrays())
    with pytest.raises(UnreadableFileError, match="damaged"):
        load({"kind": domain.kind}, {})


@pytest.mark.parametrize(
    "domain", [Dictionary(WORDS), Strings(WORDS, SEED, True), IntegerSet([1, 5], public=True)]
)
def test_the_digest_finds_a_changed_item(domain: Domain) -> None:
    arrays = {name: array.copy() for name, array in domain.arrays().items()}
    arrays["values" if domain.kind == "integers" else "utf8"][0] -= 1
    with pytest.raises(UnreadableFileError, match="do not fit"):
        load(domain.describe(), arrays)


def test_text_arrays_that_are_no_text_are_refused() -> None:
    meta, arrays = Dictionary(["ab", "cd"]).describe(), Dictionary(["ab", "cd"]).arrays()
    for name, array in [
        ("offsets", np.array([0, 9, 4])),
        ("offsets", np.array([0, 2, 99])),
        ("offsets", np.array([], np.int64)),
        ("offsets", np.array([0.0, 2, 4])),
        ("utf8", np.array([97, 98, 255, 255], np.uint8)),
        ("utf8", np.zeros((2, 2), np.uint8)),
    ]:
        with pytest.raises(UnreadableFileError, match="damaged"):
            load(meta, {**arrays, name: array})
    with pytest.raises(UnreadableFileError, match="unknown kind of domain 'words'"):
        load({"kind": "words"}, {})


@every_kind
def test_positions_and_bounds_are_checked(domain: Domain) -> None:
    assert domain.labels([]) == []
    for wrong in ([domain.size], [0, -1], [0.5], [[0]], ["0"]):
        with pytest.raises(InvalidInputError, match="position"):
            domain.labels(wrong)
    for start, stop in ((-1, 1), (0, domain.size + 1), (2, 1)):
        with pytest.raises(InvalidInputError, match=r"start|stop"):
            domain.ids(start, stop)


@every_kind
def test_items_must_be_a_column_without_missing_values(domain: Domain) -> None:
    for wrong in (
        "one",
        b"one",
        5,
        None,
        object(),
        (item for item in "ab"),
        [1.5],
        [True],
        np.zeros((2, 3)),
        {"a"},
    ):
        with pytest.raises(
            InvalidInputError, match=r"items must be|coordinates must be|cannot be read"
        ):
            domain.contains(wrong)
    for missing in (["1", None], pa.array([1, None, 2]), pa.chunked_array([["1"], [None]])):
        with pytest.raises(InvalidInputError, match=r"missing values, the first of 1 is in row 1"):
            domain.contains(missing)
    for wrong in (["a", 1], [1, "a"], ["\ud800"], [b"\xff"], [object()]):
        with pytest.raises(InvalidInputError, match="items must be"):
            domain.contains(wrong)


@every_kind
@pytest.mark.parametrize(
    "nothing", [[], np.array([], np.int64), pa.array([], pa.string()), pa.chunked_array([], "str")]
)
def test_no_items_have_no_ids(domain: Domain, nothing: Any) -> None:
    if domain.kind == "grid" and isinstance(nothing, np.ndarray):
        nothing = np.empty((0, 2))
    assert (
        domain.encode(nothing).shape
        == domain.locate(nothing).shape
        == domain.contains(nothing).shape
        == (0,)
    )
    assert domain.encode(nothing).dtype == np.uint64


def test_private_items_are_neither_printed_nor_described() -> None:
    for domain in (
        IntegerSet([123456, 99]),
        Strings(["secret", "word"], SEED),
        Dictionary(["secret"], public=False),
    ):
        assert domain.describe() == {"kind": domain.kind, "size": domain.size, "public": False}
        assert not any(
            hint in repr(domain) + str(domain) for hint in ("123456", "secret", SEED.hex())
        )
    assert IntegerSet([1]).public is Strings(["a"], SEED).public is False
    assert (
        Dictionary(["a"]).public is IntegerRange(1, 2).public is Grid(0, 1, 0, 1, 1).public is True
    )


def test_digest_is_that_of_length_prefixed_items() -> None:
    many = [
        str(number) * (number % 5) + "é" * (number % 3) + f"/{number}" for number in range(70_000)
    ]
    expected = hashlib.sha256(
        b"".join(len(w.encode()).to_bytes(8, "little") + w.encode() for w in many)
    ).hexdigest()
    assert Dictionary(many).describe()["sha256"] == expected
    assert Strings(pa.array(["x", *many])[1:], SEED, public=True).describe()["sha256"] == expected
    values = b"".join(value.to_bytes(8, "little", signed=True) for value in (-2, 7))
    assert (
        IntegerSet([7, -2], public=True).describe()["sha256"] == hashlib.sha256(values).hexdigest()
    )


@pytest.mark.parametrize(
    "empty", [lambda: IntegerSet([]), lambda: Dictionary([]), lambda: Strings([], SEED)]
)
def test_an_empty_domain_is_refused(empty: Callable[[], Domain]) -> None:
    with pytest.raises(InvalidInputError, match="at least one item"):
        empty()


# Integers


@given(st.lists(INT64, min_size=1))
def test_integer_ids_are_values_mod_2_64(values: list[int]) -> None:
    expected = [value % 2**64 for value in values]
    half = IntegerRange(-(1 << 63), -1), IntegerRange(0, (1 << 63) - 1)
    for domain in half:
        inside = [domain.first <= value <= domain.last for value in values]
        assert domain.contains(values).tolist() == inside
        kept = [value for value, is_inside in zip(values, inside, strict=True) if is_inside]
        assert domain.encode(kept).tolist() == [value % 2**64 for value in kept]
        assert domain.labels(domain.locate(kept)) == kept
    assert IntegerSet(values).encode(values).tolist() == expected
    assert IntegerSet(values).encode([str(value) for value in values]).tolist() == expected
    assert IntegerSet(values).labels(np.arange(len(set(values)))) == sorted(set(values))


@given(st.lists(INT64, min_size=1), st.lists(st.integers(-(1 << 65), 1 << 65)))
def test_integer_set_contains_as_a_set_does(values: list[int], items: list[int]) -> None:
    domain, items = IntegerSet(values), items + values[:2]
    assert domain.contains(items).tolist() == [item in set(values) for item in items]
    known = [item for item in items if item in set(values)]
    assert domain.locate(known).tolist() == [sorted(set(values)).index(item) for item in known]


@pytest.mark.parametrize("dtype", ["i1", "i2", ">i4", "i8", "u1", "u2", "<u4", "u8"])
def test_every_integer_dtype_is_read(dtype: str) -> None:
    values = np.array([3, 1, 120], dtype)
    arrow = pa.array(values.astype(values.dtype.newbyteorder("=")))
    for items in (
        values,
        values[::-1][::-1],
        arrow,
        pa.chunked_array([arrow[:1], arrow[1:]]),
        arrow.dictionary_encode(),
    ):
        assert IntegerRange(1, 120).locate(items).tolist() == [2, 0, 119]


def test_integers_beyond_int64_are_outside() -> None:
    big = np.array([5, 2**64 - 1, 2**63], np.uint64)
    all_negative = IntegerRange(-(1 << 63), -1)
    for items in (big, pa.array(big), big.tolist(), [str(number) for number in big.tolist()]):
        assert not all_negative.contains(items).any()
        assert IntegerRange(0, 9).contains(items).tolist() == [True, False, False]
        assert IntegerSet([0, 5, -1]).contains(items).tolist() == [True, False, False]
    with pytest.raises(InvalidInputError, match="2 outside"):
        IntegerSet(big)
    texts = [
        "9" * 5000,
        "-" + "9" * 25,
        "0" * 30 + "7",
        "-" + "0" * 6000,
        str(-(1 << 63)),
        str(1 << 63),
    ]
    assert IntegerRange(0, 9).contains(texts).tolist() == [False, False, True, True, False, False]
    assert all_negative.contains(texts).tolist() == [False, False, False, False, True, False]


def test_whole_numbers_with_zeros_behind_are_integers():
    """As pandas writes a column of integers that misses a value."""
    items = ["1.0", "-3.000", "9223372036854775807.0", "9223372036854775808.0", "7", "10.00", "0.0"]
    values, fits = as_integers(items)
    assert values.tolist() == [1, -3, 2**63 - 1, 0, 7, 10, 0]
    assert fits.tolist() == [True, True, True, False, True, True, True]
    assert IntegerRange(1, 10).inside(pa.array(items)).tolist() == [
        True,
        False,
        False,
        False,
        True,
        True,
        False,
    ]
    assert IntegerSet(["10.0", "7"]).locate(["7.0", "10"]).tolist() == [0, 1]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "1.5",
        "1.",
        ".0",
        "-.0",
        "1.0e0",
        "1.0.0",
        " 1",
        "1 ",
        "+1",
        "0x1",
        "1_0",
        "--1",
        "-",
        "1\n",
        "١",
        "1e3",
        "NaN",
    ],
)
def test_text_that_is_no_integer_is_named(bad: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        IntegerRange(1, 5).contains(["1", bad, "x"])
    assert (
        str(caught.value)
        == f"2 of 3 items cannot be read as integers, such as 42 or -7; the first is {bad!r}: other"
        " items need another domain, such as a list of words"
    )


def test_outside_message_counts_names_and_helps() -> None:
    items = np.ones(1000, np.int64)
    items[[3, 5, 9]] = 250, 251, 0
    with pytest.raises(OutsideDomainError) as caught:
        IntegerRange(1, 100).encode(items)
    assert (
        str(caught.value)
        == "3 of 1,000 items are outside the domain range:1..100, the first is 250; widen the range"
    )
    with pytest.raises(
        OutsideDomainError,
        match=r"^1 of 2 items is outside the domain integers \(1 item\), the first is 2;",
    ):
        IntegerSet([1]).locate([1, 2])
    with pytest.raises(OutsideDomainError, match=r"first is 'x{58}…; add"):
        Dictionary(["a"]).encode(["x" * 200])


@pytest.mark.parametrize(
    ("first", "last", "message"),
    [
        (2, 1, "last must be at least 2"),
        (-(1 << 63) - 1, 0, "first"),
        (0, 1 << 63, "last"),
        (-1, (1 << 63) - 1, "at most 2\\^63"),
        (1.5, 2, "first"),
        (True, 2, "first"),
    ],
)
def test_impossible_ranges_are_refused(first: Any, last: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        IntegerRange(first, last)


def test_the_largest_range_and_the_wrap_of_ids() -> None:
    whole = IntegerRange(-1, (1 << 63) - 2)
    assert whole.size == 1 << 63
    assert whole.first_id == 2**64 - 1
    assert whole.ids(0, 3).tolist() == [2**64 - 1, 0, 1]
    assert whole.locate([(1 << 63) - 2, -1]).tolist() == [(1 << 63) - 1, 0]
    assert whole.labels([(1 << 63) - 1]) == [(1 << 63) - 2]
    assert whole.contains([(1 << 63) - 1, -2]).tolist() == [False, False]


# Text


def columns_of(words: list[str]) -> list[Any]:
    """Hold the words in every kind of column that needs no further package."""
    base = [pa.array(words, kind) for kind in (pa.string(), pa.large_string(), pa.string_view())]
    padded = pa.array(["pad", "päd", *words, "end"])
    nearby = [
        padded[2:-1],
        pa.chunked_array([padded[2:3], padded[3:3], padded[3:-1]]),
        base[0].dictionary_encode(),
    ]
    binary = [pa.array([word.encode() for word in words]), [word.encode() for word in words]]
    numpy_columns = [np.array(words, object), np.array([*words, "pad"], object)[:-1]]
    return [words, tuple(words), *base, *nearby, *binary, *numpy_columns]


def test_every_kind_of_text_column_gives_the_same_ids() -> None:
    expected = [slow_fingerprint(word, SEED) for word in WORDS]
    for column in columns_of(WORDS):
        assert Strings(["x"], SEED).encode(column).tolist() == expected
        assert Dictionary(WORDS).locate(column).tolist() == list(range(len(WORDS)))
        assert Strings(column, SEED).ids(0, len(WORDS)).tolist() == expected
    assert Strings(["x"], SEED).encode(np.array(["a", "bcd"])).tolist() == [
        slow_fingerprint(w, SEED) for w in ("a", "bcd")
    ]


def test_pandas_and_polars_series_are_columns() -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    expected = Strings(["x"], SEED).encode(WORDS).tolist()
    for series in (
        pandas.Series(WORDS),
        pandas.Series(WORDS, dtype="category"),
        polars.Series(WORDS),
    ):
        assert Strings(["x"], SEED).encode(series).tolist() == expected
    for series in (pandas.Series([7, 9]), polars.Series([7, 9])):
        assert IntegerRange(7, 9).locate(series).tolist() == [0, 2]


@given(
    st.lists(st.text(max_size=40)),
    st.integers(0, 5),
    st.integers(0, 5),
    st.binary(min_size=32, max_size=32),
)
def test_fingerprints_follow_the_definition_also_in_slices(
    words: list[str], cut: int, end: int, seed: bytes
) -> None:
    kept = slice(cut, max(cut, len(words) - end))
    column = pa.array(words, pa.string())[kept]
    assert Strings(["x"], seed).encode(column).tolist() == [
        slow_fingerprint(word, seed) for word in words[kept]
    ]


@given(st.lists(st.text(max_size=4), min_size=1, unique=True), st.lists(st.text(max_size=4)))
def test_dictionary_and_strings_agree_with_a_list(words: list[str], items: list[str]) -> None:
    items += words[::2]
    known = [item for item in items if item in words]
    for domain in (Dictionary(words), Strings(words, SEED)):
        assert domain.contains(items).tolist() == [item in words for item in items]
        assert domain.locate(known).tolist() == [words.index(item) for item in known]
        assert domain.labels(np.arange(len(words))[::-1]) == words[::-1]
        assert load(domain.describe(), domain.arrays()) == domain


def test_key_derivation() -> None:
    stream = hashlib.shake_256(b"fedtally/1/fingerprint\x00" + SEED).digest(32)
    assert fingerprint_key(SEED) == tuple(
        int.from_bytes(stream[i : i + 16], "little") % PRIME for i in (0, 16)
    )
    for wrong in (b"", bytes(31), bytes(33), "x" * 32, bytearray(32)):
        with pytest.raises(InvalidInputError, match="seed must be 32 bytes, got"):
            fingerprint_key(wrong)  # type: ignore[arg-type]


def test_integers_are_the_text_that_writes_them() -> None:
    domain = Dictionary(["7", "-3"])
    assert domain.locate(np.array([-3, 7])).tolist() == [1, 0]
    assert Strings(["x"], SEED).encode([7]).tolist() == Strings(["x"], SEED).encode(["7"]).tolist()


def test_strings_encode_anything_but_locate_candidates_only() -> None:
    domain = Strings(["tea", "coffee"], SEED)
    assert domain.encode(["cola"]).tolist() == [slow_fingerprint("cola", SEED)]
    assert domain.contains(["cola", "tea"]).tolist() == [False, True]
    with pytest.raises(
        OutsideDomainError,
        match=r"1 of 2 items is outside the domain strings \(2 items\), the first is 'cola'",
    ):
        domain.locate(["tea", "cola"])


def test_repeated_items_are_named() -> None:
    with pytest.raises(InvalidInputError, match="must be distinct, 'b' is at positions 1 and 3"):
        Dictionary(["a", "b", "c", "b", "a"])
    with pytest.raises(InvalidInputError, match="must be distinct, 'b' is at positions 1 and 3"):
        Strings(["a", "b", "c", "b"], SEED)


def test_equal_fingerprints_ask_for_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        kernels, "fingerprint", lambda data, offsets, k, k2: np.diff(offsets).astype(np.uint64)
    )
    with pytest.raises(
        InvalidInputError,
        match="positions 1 and 2 have one fingerprint under this seed; choose another seed",
    ):
        Strings(["a", "bc", "de"], SEED)


@given(st.lists(st.text(max_size=30), min_size=1, max_size=12, unique=True))
def test_collision_probability_sums_over_pairs(words: list[str]) -> None:
    sizes = [len(word.encode()) for word in words]
    pairs = [Fraction(max(a, b), 7) + 2 for i, a in enumerate(sizes) for b in sizes[:i]]
    assert Strings(words, SEED).collision_probability == pytest.approx(
        float(sum(pairs, Fraction(0)) / 2**61), rel=1e-12, abs=0.0
    )
    assert Dictionary(words).collision_probability == 0.0


def test_a_pair_collides_as_often_as_the_bound_allows_in_a_small_field() -> None:
    """Try every key of the same polynomial mod 127: no pair of strings of up to 3 chunks meets for
    more than 4/127."""
    prime = 127
    strings = [(), (0,), (1,), (0, 0), (5, 1), (1, 5), (0, 0, 0), (9, 8, 7)]

    def value(chunks: tuple[int, ...], k: int) -> int:
        h = len(chunks) + 1
        for chunk in chunks:
            h = (h * k + chunk) % prime
        return h

    for i, one in enumerate(strings):
        for other in strings[:i]:
            meets = sum(value(one, k) == value(other, k) for k in range(prime))
            assert meets <= max(len(one), len(other))  # then k2 = 0 adds one key in 127


# Grids


STEPS = st.sampled_from(
    ["0.1", "0.01", "0.25", "0.05", "0.001", "0.125", "1", "2.5", "0.3", "0.0001"]
)


@given(STEPS, st.integers(-300, 300), st.integers(1, 400), st.data())
def test_an_edge_belongs_to_the_cell_north_east_of_it(
    step: str, offset: int, count: int, data: st.DataObject
) -> None:
    """Decimal text of an edge, of just below it and of just above it, against exact decimal
    arithmetic."""
    size = Decimal(step)
    south = offset * size / 7 // Decimal("0.01") * Decimal("0.01")
    rows = min(count, int((90 - south) / size))
    if rows < 1 or south < -90:
        return
    grid = Grid(float(south), float(south + rows * size), 0, 2 * float(size), float(size))
    assert grid.shape == (rows, 2)
    row = data.draw(st.integers(0, rows))
    edge = south + row * size
    items = [f"{edge},{size}", f"{float(edge)!r},{size}"]
    assert grid.locate(items).tolist() == [min(row, rows - 1) * 2 + 1] * 2
    points = np.array(
        [
            [float(edge), 0.0],
            [np.nextafter(float(edge), 99), 0.0],
            [np.nextafter(float(edge), -99), 0.0],
        ]
    )
    if 0 < row < rows:
        assert grid.locate(points).tolist() == [row * 2, row * 2, row * 2 - 2]


@given(st.floats(25, 50), st.floats(-130, -60))
def test_a_point_lies_between_the_edges_of_its_cell(lat: float, lon: float) -> None:
    grid = Grid(25, 50, -130, -60, 0.1)
    assert grid.shape == (250, 700)
    row, column = divmod(int(grid.locate(np.array([[lat, lon]]))[0]), 700)
    for value, low, cell, last in ((lat, 25, row, 249), (lon, -130, column, 699)):
        below, above = (float(low + Fraction(cell + add, 10)) for add in (0, 1))
        assert below <= value < above or (cell == last and value == above)
    assert grid.locate([f"{lat!r},{lon!r}"]).tolist() == [row * 700 + column]


@pytest.mark.parametrize(
    ("grid", "position", "label"),
    [
        (Grid(25, 50, -130, -60, 0.1), 110460, "40.75,-73.95"),
        (Grid(0, 1, 0, 1, 0.25), 0, "0.125,0.125"),
        (Grid(-2, 2, -2, 2, 2), 3, "1,1"),
        (Grid(-1, 1, -1, 1, 2), 0, "0,0"),
        (Grid(-90, 90, -180, 180, 1), 0, "-89.5,-179.5"),
        (Grid(0, 1, 0, 1, 1 / 60), 0, "0.0083,0.0083"),
        (Grid(0.05, 0.35, 0, 0.3, 0.1), 0, "0.10,0.05"),
    ],
)
def test_labels_are_cell_centres(grid: Grid, position: int, label: str) -> None:
    assert grid.labels([position]) == [label]
    lat, lon = grid.centres(np.array([position]))[0]
    lat_places = len(label.split(",")[0].partition(".")[2])
    lon_places = len(label.partition(".")[2].split(",")[0])
    assert label == f"{lat:.{lat_places}f},{lon:.{lon_places}f}"


@pytest.mark.parametrize("step", [0.1, 0.25, 1 / 60, 1 / 3, 0.015625, 5])
def test_labels_read_back_as_their_cells(step: float) -> None:
    grid = Grid(-5, 5, 170, 190, step)
    some = np.arange(0, grid.size, max(1, grid.size // 5000))
    assert grid.locate(grid.labels(some)).tolist() == some.tolist()
    assert len(set(grid.labels(some))) == some.size


def test_grid_reads_text_pairs_and_arrays() -> None:
    grid = Grid(0, 10, 0, 10, 1)
    texts = ["3.5,4.5", " 3.5 , 4.5 ", "+3.5,4.50", "35e-1,.45E1"]
    assert grid.locate(texts).tolist() == [34] * 4
    assert grid.locate(pa.chunked_array([texts[:1], texts[1:]])).tolist() == [34] * 4
    for pairs in (
        [[3.5, 4.5]],
        [(3.5, 4.5)],
        [np.array([3.5, 4.5])],
        np.array([[3.5, 4.5]], np.float32),
        np.array([[3, 4]]),
    ):
        assert grid.locate(pairs).tolist() == [34]
    assert grid.locate(["10,10", "0,0", "-0.0,10"]).tolist() == [99, 0, 9]


def test_points_outside_the_grid() -> None:
    grid = Grid(0, 10, 0, 10, 1)
    points = np.array(
        [[1, 1], [np.nan, 1], [1, np.inf], [-0.001, 1], [1, 10.001], [-np.inf, np.nan]]
    )
    assert grid.contains(points).tolist() == [True] + [False] * 5
    assert not grid.contains(["nan,1", "1,inf", "-Infinity,NaN", "1e999,0", "11,1"]).any()
    with pytest.raises(
        OutsideDomainError,
        match=(
            r"^5 of 6 items are outside the domain grid:0..10,0..10,1, the first is nan,1.0; widen"
        ),
    ):
        grid.encode(points)
    with pytest.raises(OutsideDomainError, match=r"^1 of 1 items is .* the first is '11,1'"):
        grid.encode(["11,1"])


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "1",
        "1,2,3",
        "1;2",
        "a,b",
        "1,",
        ",1",
        "1 2,3",
        "0x1,2",
        "1,2\n3",
        "--1,2",
        "١,2",
        "1e,2",
    ],
)
def test_text_that_is_no_coordinate_is_named(bad: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Grid(0, 10, 0, 10, 1).contains(["1,2", bad])
    assert str(caught.value).startswith(
        "1 of 2 items cannot be read as latitude,longitude in degrees"
    )
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize(
    "bad", [np.zeros(4), np.zeros((2, 3)), np.array([["1", "2"]]), [[1, 2], [3]], [["a", "b"]]]
)
def test_arrays_that_are_no_coordinates(bad: Any) -> None:
    with pytest.raises(InvalidInputError, match="coordinates"):
        Grid(0, 10, 0, 10, 1).contains(bad)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (
            (25, 50, -130, -60, 0.3),
            (
                r"step 0.3 does not divide south..north 25..50 \(83.3333 cells\); use .* 25..49.9"
                r" or 25..50.2"
            ),
        ),
        (
            (0, 10, 0, 5, 10),
            r"step 10 does not divide west..east 0..5 \(0.5 cells\); use west..east 0..10, or",
        ),
        ((50, 25, 0, 1, 1), "south..north must ascend"),
        ((0, 1, 5, 5, 1), "west..east must ascend"),
        ((0, 1, 0, 1, 0), "step be positive"),
        ((0, 1, 0, 1, -1), "step must be at least 0"),
        ((-91, 1, 0, 1, 1), "south must be at least -90"),
        ((0, 91, 0, 1, 1), "north must be at most 90"),
        ((0, 1, -181, 1, 1), "west must be at least -180"),
        ((0, 1, 0, 361, 1), "east must be at most 360"),
        ((0, 1, -180, 181, 1), "at most 360 degrees from west"),
        ((0, 1, 0, 1, float("nan")), "step must be finite"),
        ((0, 1e-17, 0, 1e-17, 1e-17), "too many digits"),
        (("0", 1, 0, 1, 1), "south must be a number"),
    ],
)
def test_impossible_grids_are_refused(bounds: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Grid(*bounds)


def test_a_fine_grid_needs_no_memory() -> None:
    world = Grid(-90, 90, -180, 180, 1e-7)
    assert world.size == 1_800_000_000 * 3_600_000_000
    point = world.locate(["48.8583701,2.2944813"])
    assert world.labels(point) == ["48.85837015,2.29448135"]
    assert world.ids(world.size - 1, world.size).tolist() == [world.size - 1]


# Written domains


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("range:1..100", IntegerRange(1, 100)),
        (" range:-5..+5 ", IntegerRange(-5, 5)),
        ("grid:25..50,-130..-60,0.1", Grid(25, 50, -130, -60, 0.1)),
        ("grid:-.5..0.50,0..1e0,5e-1", Grid(-0.5, 0.5, 0, 1, 0.5)),
    ],
)
def test_parse(text: str, domain: Domain) -> None:
    assert parse(text) == domain
    assert parse(str(domain)) == domain
    assert eval(repr(domain)) == domain


@given(INT64, st.integers(0, (1 << 63) - 1))
def test_parse_reads_what_a_range_writes(first: int, more: int) -> None:
    domain = IntegerRange(first, min(first + more, (1 << 63) - 1))
    assert parse(str(domain)) == domain


@pytest.mark.parametrize(
    "text",
    [
        "",
        "range",
        "range:1",
        "range:1..",
        "range:1.5..2",
        "range:1...5",
        "grid:1..2",
        "grid:0..1,0..1",
        "words.txt",
    ],
)
def test_parse_refuses_what_it_cannot_read(text: str) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the domain"):
        parse(text)


def test_parse_passes_on_the_reason() -> None:
    with pytest.raises(InvalidInputError, match="ends before it begins: write range:1..9"):
        parse("range:9..1")
    with pytest.raises(InvalidInputError, match="does not divide"):
        parse("grid:0..1,0..1,0.3")


@pytest.mark.parametrize("items", [{1, 2}, {1: 2}, None, 5, "12", b"12"])
def test_inside_refuses_what_is_no_column(items: Any) -> None:
    with pytest.raises(InvalidInputError, match="items must be a column"):
        IntegerRange(1, 9).inside(items)


@pytest.mark.parametrize("other", [None, "tea"])
def test_large_integers_are_not_mixed_with_other_values(other: Any) -> None:
    assert Dictionary([2**70, 1]).labels([0]) == [str(2**70)]
    with pytest.raises(InvalidInputError, match="items must"):
        Dictionary([2**70, other])
