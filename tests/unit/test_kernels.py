"""Two kernels, one meaning: every compiled level against the NumPy reference, and the door that
guards both."""

from __future__ import annotations

import math
import multiprocessing
import re
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cases import each_case
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.errors import InvalidInputError
from fedtally.kernels import reference, rows
from fedtally.kernels.backends import in_threads

Array = npt.NDArray[Any]
EDGES = (255, 256, 257, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097, 65_535, 65_536, 65_537)
SMALL_EDGES = EDGES[:12]
WIDTHS = st.one_of(
    st.sampled_from([1, 2, 7, 8, 200, 256, 4096, 65_536, 70_000]), st.integers(1, 70_000)
)
LENGTHS = st.one_of(st.integers(0, 40), st.sampled_from(SMALL_EDGES), st.integers(0, 5000))
FIRST_IDS = st.one_of(
    st.integers(0, 1000),
    st.integers(0, 2**64 - 1),
    # A carry into a higher byte, or from the highest one to id 0.
    st.builds(lambda c, back: (1 << (8 * c)) - back, st.integers(1, 8), st.integers(1, 256)),
)
SEEDS = st.integers(0, 2**32)


def tables_of(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(2**32, size=(*shape, 8, 256), dtype=np.uint32)


def draw_ids(rng: np.random.Generator, kind: str, count: int, first: int) -> Array:
    if kind == "range":
        return kernels.range_ids(first, count)
    bits = {"few": 3, "bytes-1": 8, "bytes-3": 24, "bytes-4": 32, "bytes-7": 56, "bytes-8": 64}[
        kind
    ]
    return rng.integers(2**bits - 1, size=count, dtype=np.uint64, endpoint=True)


KINDS = st.sampled_from(["few", "bytes-1", "bytes-3", "bytes-4", "bytes-7", "bytes-8", "range"])


# ---- hashing and encoding ----


@given(SEEDS, st.integers(1, 40), LENGTHS, KINDS, FIRST_IDS)
def test_words_match_the_reference(
    backend: str, seed: int, rows: int, count: int, kind: str, first: int
) -> None:
    rng = np.random.default_rng(seed)
    tables, ids = tables_of(rng, rows), draw_ids(rng, kind, count, first)
    assert np.array_equal(kernels.hash_words(tables, ids), reference.hash_words(tables, ids))


@given(
    SEEDS,
    st.integers(1, 40),
    WIDTHS,
    LENGTHS,
    KINDS,
    FIRST_IDS,
    st.integers(0, 7),
    st.booleans(),
    st.data(),
)
def test_accumulate_matches_the_reference(
    backend: str,
    seed: int,
    rows: int,
    width: int,
    count: int,
    kind: str,
    first: int,
    bit: int,
    same: bool,
    data: st.DataObject,
) -> None:
    rng = np.random.default_rng(seed)
    location, ids = tables_of(rng, rows), draw_ids(rng, kind, count, first)
    sign = location if same else tables_of(rng, rows)
    largest = data.draw(st.sampled_from([0, 1, 2, 2**31, 2**32, 2**45]))
    counts = rng.integers(-largest, largest, size=count, endpoint=True) if largest else None
    expected = rng.integers(-(2**50), 2**50, size=(rows, width))
    actual = expected.copy()
    reference.accumulate(expected, location, sign, bit, ids, counts)
    kernels.accumulate(actual, location, sign, bit, ids, counts)
    assert np.array_equal(actual, expected)


@given(SEEDS, st.integers(1, 40), WIDTHS, LENGTHS, FIRST_IDS, st.integers(0, 7), st.booleans())
def test_accumulate_range_matches_the_list(
    backend: str, seed: int, rows: int, width: int, count: int, first: int, bit: int, same: bool
) -> None:
    rng = np.random.default_rng(seed)
    location = tables_of(rng, rows)
    sign = location if same else tables_of(rng, rows)
    counts = rng.integers(-(2**40), 2**40, size=count)
    expected, actual = np.zeros((2, rows, width), np.int64)
    reference.accumulate(expected, location, sign, bit, kernels.range_ids(first, count), counts)
    kernels.accumulate_range(actual, location, sign, bit, first, counts)
    assert np.array_equal(actual, expected)


@pytest.mark.promise
@each_case("threads", ["1", "2", "3"])
@each_case("count", EDGES)
def test_edges_of_blocks_and_threads(
    backend: str, count: int, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """65,537 ids x 4 rows are shared out to 3 threads; less to fewer."""
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", threads)
    rng = np.random.default_rng(count)
    rows, width, first = 4, 100, 2**64 - count // 2
    location, sign = tables_of(rng, rows), tables_of(rng, rows)
    ids, counts = kernels.range_ids(first, count), rng.integers(-9, 9, size=count)
    ones, listed, ranged = np.zeros((3, rows, width), np.int64)
    kernels.accumulate(ones, location, location, 5, ids)
    kernels.accumulate(listed, location, sign, 5, ids, counts)
    kernels.accumulate_range(ranged, location, sign, 5, first, counts)
    expected, expected_ones = np.zeros((2, rows, width), np.int64)
    reference.accumulate(expected_ones, location, location, 5, ids, None)
    reference.accumulate(expected, location, sign, 5, ids, counts)
    assert np.array_equal(ones, expected_ones)
    assert np.array_equal(listed, expected) and np.array_equal(ranged, expected)
    decoder = kernels.Decoder(expected[None], location[None])
    estimates = reference.decode(expected[None], location[None], ids)
    assert np.array_equal(decoder.at(ids), estimates)
    assert np.array_equal(decoder.range(first, count), estimates)


@each_case("rows", [1, 2, 7, 8, 9, 15, 16, 17, 24, 25, 33])
def test_many_more_ids_than_counters(backend: str, rows: int) -> None:
    """Units go through counters of 32 bits of their own when ids outnumber the cells."""
    rng = np.random.default_rng(rows)
    location, sign, ids = tables_of(rng, rows), tables_of(rng, rows), draw_ids(rng, "few", 3000, 0)
    for signs in (location, sign):
        actual = rng.integers(-(2**60), 2**60, size=(rows, 3))
        expected = actual.copy()
        kernels.accumulate(actual, location, signs, 7, ids)
        reference.accumulate(expected, location, signs, 7, ids, None)
        assert np.array_equal(actual, expected)


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_equal_tables_that_are_not_one_array(backend: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    location, ids = tables_of(rng, rows), draw_ids(rng, "bytes-8", 700, 0)
    one, two = np.zeros((2, rows, 50), np.int64)
    kernels.accumulate(one, location, location, 3, ids)
    kernels.accumulate(two, location, location.copy(), 3, ids)
    assert np.array_equal(one, two)


def test_strided_ids_and_counts(backend: str) -> None:
    rng = np.random.default_rng(0)
    location, ids, counts = (
        tables_of(rng, 3),
        draw_ids(rng, "bytes-4", 900, 0),
        rng.integers(9, size=900),
    )
    strided, copied = np.zeros((2, 3, 40), np.int64)
    kernels.accumulate(strided, location, location, 0, ids[::3], counts[::-3])
    kernels.accumulate(copied, location, location, 0, ids[::3].copy(), counts[::-3].copy())
    assert np.array_equal(strided, copied) and strided.any()


# ---- decoding ----


def sums_of(rng: np.random.Generator, shape: tuple[int, ...], largest: int) -> Array:
    return rng.integers(-largest, largest, size=shape, endpoint=True)


SHAPES = st.tuples(st.integers(1, 20), st.integers(1, 40), WIDTHS).map(
    # batches, rows, width; at most 2 MiB
    lambda s: (s[0], s[1], min(s[2], max(1, (1 << 18) // (s[0] * s[1]))))
)
MAGNITUDES = st.one_of(
    st.sampled_from([0, 1, 2**22, 2**23 - 1, 2**23, 2**24 - 1, 2**24, 2**24 + 1, 2**25, 2**47]),
    st.integers(0, 2**47),
)


@pytest.mark.promise
@given(
    SEEDS,
    SHAPES,
    MAGNITUDES,
    LENGTHS,
    KINDS,
    FIRST_IDS,
    st.sampled_from([1, 5000, 1 << 20, 1 << 40]),
)
def test_decoding_integers_is_exact(
    backend: str,
    seed: int,
    shape: tuple[int, int, int],
    largest: int,
    count: int,
    kind: str,
    first: int,
    expected: int,
) -> None:
    """20 batches of up to 2^47 stay below 2^53, where doubles are exact; so the answers are equal
    bit for bit."""
    rng = np.random.default_rng(seed)
    tables, sums, ids = (
        tables_of(rng, -(-shape[0] // 8), shape[1]),
        sums_of(rng, shape, largest),
        draw_ids(rng, kind, count, first),
    )
    decoder = kernels.Decoder(sums, tables, expected)
    assert np.array_equal(decoder.at(ids), reference.decode(sums, tables, ids))
    ranged = reference.decode(sums, tables, kernels.range_ids(first, count))
    assert np.array_equal(decoder.range(first, count), ranged)


@given(SEEDS, SHAPES, LENGTHS, FIRST_IDS, st.sampled_from([1, 1 << 20]))
def test_decoding_doubles(
    backend: str, seed: int, shape: tuple[int, int, int], count: int, first: int, expected: int
) -> None:
    """Sums of B doubles taken in another order differ by at most 2 B u sum |x|, u = 2^-53 (Higham
    2002, section 4.2).

    The median moves by no more than its arguments, plus one rounding in the mean of two.
    """
    rng = np.random.default_rng(seed)
    tables, sums = tables_of(rng, -(-shape[0] // 8), shape[1]), rng.normal(size=shape)
    bound = 2 * (shape[0] + 1) * 2.0**-53 * np.abs(sums).max() * shape[0]
    ids = kernels.range_ids(first, count)
    decoder = kernels.Decoder(sums, tables, expected)
    for estimates in (decoder.at(ids), decoder.range(first, count)):
        assert np.max(np.abs(estimates - reference.decode(sums, tables, ids)), initial=0) <= bound


@given(SEEDS, SHAPES, LENGTHS, FIRST_IDS, st.sampled_from(["median", "mean"]), st.booleans())
def test_decoding_in_single_precision_and_means(
    backend: str,
    seed: int,
    shape: tuple[int, int, int],
    count: int,
    first: int,
    fold: str,
    single: bool,
) -> None:
    """As above with u = 2^-24 in single precision; the mean over rows is taken in double
    precision."""
    rng = np.random.default_rng(seed)
    tables = tables_of(rng, -(-shape[0] // 8), shape[1])
    sums = rng.normal(size=shape).astype(np.float32 if single else np.float64)
    unit = 2.0**-24 if single else 2.0**-53
    bound = (
        (2 * (shape[0] + 1) * unit + (shape[1] + 1) * 2.0**-53)
        * float(np.abs(sums).max())
        * shape[0]
    )
    ids = kernels.range_ids(first, count)
    decoder = kernels.Decoder(sums, tables, fold=fold)
    expected = reference.decode(sums.astype(np.float64), tables, ids, fold)
    for estimates in (decoder.at(ids), decoder.range(first, count)):
        assert np.max(np.abs(estimates - expected), initial=0) <= bound


@given(
    SEEDS,
    SHAPES,
    LENGTHS,
    FIRST_IDS,
    st.sampled_from(["median", "mean"]),
    st.floats(0.0, 1.0),
    st.booleans(),
)
# Small enough for any run to try it, and large enough for a search: 128 cells.
@example(0, (7, 1, 1), 5, 3, "median", 1.0, False)
def test_a_look_above_a_floor_is_a_look_at_all(
    backend: str,
    seed: int,
    shape: tuple[int, int, int],
    count: int,
    first: int,
    fold: str,
    share: float,
    heavy: bool,
) -> None:
    """The same ids and the same bits, also where the floor is one of the estimates.

    Or it is just below one, so that float32 has no number between.
    """
    rng = np.random.default_rng(seed)
    tables = tables_of(rng, -(-shape[0] // 8), shape[1])
    sums = rng.normal(size=shape) ** (5 if heavy else 1)
    decoder = kernels.Decoder(sums.astype(np.float32), tables, fold=fold)
    every = decoder.range(first, count)
    one = float(np.sort(every)[int(share * (count - 1))]) if count else 1.0
    for floor in (one, math.nextafter(one, -math.inf)):
        found = decoder.above(first, count, floor)
        if found is None:  # doubles of several tables, few cells, or no compiled kernels
            return
        places = np.flatnonzero(every > floor)
        assert np.array_equal(found[0], places) and found[0].dtype == np.int64
        assert np.array_equal(found[1], every[places])


@pytest.mark.parametrize("fold", ["median", "mean"])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_look_above_a_floor_goes_on_after_its_blocks(
    backend: str, monkeypatch: pytest.MonkeyPatch, fold: str, threads: str
) -> None:
    """Blocks of 2^13 ids, and parts of threads, begin anywhere."""
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", threads)
    rng = np.random.default_rng(5)
    sums = rng.normal(size=(3, 9, 210)).astype(np.float32)
    decoder = kernels.Decoder(sums, tables_of(rng, 1, 9), fold=fold)
    assert (decoder.above(0, 9, 0.0), decoder.above(0, 9, -1.0)) == (None, None)
    if backend == "numpy":
        assert decoder.above(0, 9, 0.1) is None
        return
    for first, count in ((0, 2**13), (77, 2**13 + 1), (2**64 - 5, 2**18 + 300)):
        every = decoder.range(first, count)
        for quantile in (0.6, 0.99, 1.0):
            floor = float(np.quantile(every, quantile))
            found, places = decoder.above(first, count, floor), np.flatnonzero(every > floor)
            assert found is not None
            assert np.array_equal(found[0], places)
            assert np.array_equal(found[1], every[places])


@given(SEEDS, st.integers(1, 30), WIDTHS, LENGTHS, FIRST_IDS)
def test_values_without_signs(
    backend: str, seed: int, rows: int, width: int, count: int, first: int
) -> None:
    """The mean over rows of what an item's cells hold, whatever its signs."""
    rng = np.random.default_rng(seed)
    tables, values = tables_of(rng, 1, rows), rng.random((1, rows, min(width, 5000)))
    ids = kernels.range_ids(first, count)
    where = kernels.locations(kernels.hash_words(tables[0], ids), values.shape[2])
    expected = np.mean([values[0, row, where[row]] for row in range(rows)], axis=0)
    decoder = kernels.Decoder(values, tables, fold="mean", signed=False)
    np.testing.assert_allclose(decoder.at(ids), expected, rtol=1e-12)
    np.testing.assert_allclose(decoder.range(first, count), expected, rtol=1e-12)


@each_case("shape", [(1, 3, 64), (1, 3, 200), (10, 4, 200), (1, 20, 200)])
def test_a_decoder_goes_on_after_its_blocks(backend: str, shape: tuple[int, int, int]) -> None:
    """Lists and ranges are decoded in blocks of 2^14 ids."""
    rng = np.random.default_rng(3)
    tables, sums = tables_of(rng, -(-shape[0] // 8), shape[1]), sums_of(rng, shape, 1000)
    decoder = kernels.Decoder(sums, tables)
    for count in (2**14, 2**14 + 1, 2**15 + 300):
        ids = kernels.range_ids(7, count)
        expected = reference.decode(sums, tables, ids)
        assert np.array_equal(decoder.at(ids), expected)
        assert np.array_equal(decoder.range(7, count), expected)


def test_a_decoder_refuses_more_cells_than_it_can_number() -> None:
    """256 batches have at least two patterns each: 2^9 values for each of 2^24 cells of a row."""
    sums = np.broadcast_to(np.float32(0), (256, 1, 2**24))
    tables = tables_of(np.random.default_rng(1), 32, 1)
    if kernels.backend() == "numpy":
        pytest.skip("the reference tabulates nothing")
    with pytest.raises(InvalidInputError, match="more than a decoder can hold"):
        kernels.Decoder(sums, tables, 1)


def test_a_decoder_refuses_what_it_cannot_fold(backend: str) -> None:
    tables = tables_of(np.random.default_rng(1), 1, 3)
    with pytest.raises(InvalidInputError, match="fold must be median or mean"):
        kernels.Decoder(np.zeros((1, 3, 4)), tables, fold="mode")
    with pytest.raises(InvalidInputError, match="without signs must be of one batch, got 2"):
        kernels.Decoder(np.zeros((2, 3, 4)), tables, signed=False)
    with pytest.raises(InvalidInputError, match="int64, float64 or float32"):
        kernels.Decoder(np.zeros((2, 3, 4), np.int32), tables)


@each_case("rows", range(1, 41))
def test_median_of_every_number_of_rows(backend: str, rows: int) -> None:
    """One cell per row makes the rows' estimates the counters up to sign: sort them with Python."""
    rng = np.random.default_rng(rows)
    tables, sums, ids = (
        tables_of(rng, 1, rows),
        sums_of(rng, (1, rows, 1), 50),
        kernels.range_ids(0, 300),
    )
    estimates = kernels.Decoder(sums, tables).at(ids)
    signs = reference.signs(reference.hash_words(tables[0], ids), 0)
    for values, estimate in zip((signs * sums[0]).T.tolist(), estimates.tolist(), strict=True):
        ordered = sorted(values)
        assert estimate == (ordered[(rows - 1) // 2] + ordered[rows // 2]) / 2


def near_a_power(rows: int, largest: int) -> tuple[Array, Array]:
    """Counters that are odd and near `largest`, so that a format with one bit less cannot hold them
    or their mean."""
    sums = np.full((1, rows, 64), largest, np.int64)
    sums[:, ::2] -= 1
    tables = np.zeros((1, rows, 8, 256), np.uint32)
    tables[0, :, 0] = np.random.default_rng(rows).integers(
        2**32, size=256, dtype=np.uint32
    ) & np.uint32(0xFFFFFF00)  # all signs +1
    return sums, tables


@each_case(
    "largest", [2**23 - 1, 2**23, 2**23 + 1, 2**24 - 1, 2**24, 2**24 + 1, 2**25 + 1, 2**40 + 1]
)
@each_case("rows", [1, 2, 3, 4, 16, 17, 40])
def test_single_precision_only_where_exact(backend: str, rows: int, largest: int) -> None:
    sums, tables = near_a_power(rows, largest)
    middle = largest - 0.5 if rows % 2 == 0 else largest - 1
    assert set(kernels.Decoder(sums, tables).range(0, 256).tolist()) == {middle}


@pytest.mark.parametrize("rows", [1, 2])
def test_the_check_of_single_precision_has_power(
    backend: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit four times too high the test above fails."""
    if backend == "numpy":
        pytest.skip("the reference has no single precision")
    monkeypatch.setattr(kernels.decoder, "_FLOAT32_EXACT", 1 << 26)
    sums, tables = near_a_power(rows, 2**24 + 2 if rows == 1 else 2**24 + 1)
    estimates = kernels.Decoder(sums, tables).range(0, 256)
    assert not np.array_equal(estimates, reference.decode(sums, tables, kernels.range_ids(0, 256)))


@each_case("batches", [1, 2, 7, 8, 9, 16, 17])
def test_batches_cross_groups_of_eight_signs(backend: str, batches: int) -> None:
    """A sum of powers of 4 shows every batch's sign."""
    rng = np.random.default_rng(batches)
    groups = -(-batches // 8)
    tables, ids = tables_of(rng, groups, 1), draw_ids(rng, "bytes-8", 200, 0)
    sums = (4 ** np.arange(batches))[:, None, None] * np.ones((1, 1, 5), np.int64)
    words = reference.hash_words(tables.reshape(groups, 8, 256), ids)
    expected = sum(
        4**b * (1 - 2 * (words[b // 8] >> np.uint32(b % 8) & np.uint32(1)).astype(float))
        for b in range(batches)
    )
    for asked in (1, 1 << 40):
        assert np.array_equal(kernels.Decoder(sums, tables, asked).at(ids), expected)


@pytest.mark.parametrize("threads", ["1", "2", "3"])
def test_threads_do_not_change_answers(
    backend: str, threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", threads)
    rng = np.random.default_rng(9)
    tables, sums = tables_of(rng, 2, 3), sums_of(rng, (9, 3, 50), 1000)
    decoder = kernels.Decoder(sums, tables)
    expected = reference.decode(sums, tables, kernels.range_ids(2**64 - 5, 70_001))
    assert np.array_equal(decoder.range(2**64 - 5, 70_001), expected)
    assert np.array_equal(decoder.at(kernels.range_ids(2**64 - 5, 70_001)), expected)


def test_nothing_asked_nothing_done(backend: str) -> None:
    rng = np.random.default_rng(0)
    tables, none = tables_of(rng, 1, 3), np.empty(0, np.uint64)
    assert kernels.hash_words(tables[0], none).shape == (3, 0)
    counters = np.zeros((3, 4), np.int64)
    kernels.accumulate(counters, tables[0], tables[0], 0, none)
    kernels.accumulate(counters, tables[0], tables[0], 0, none, np.empty(0, np.int64))
    kernels.accumulate_range(counters, tables[0], tables[0], 0, 2**64 - 1, np.empty(0, np.int64))
    assert not counters.any()
    decoder = kernels.Decoder(np.ones((1, 3, 4), np.int64), tables)
    for estimates in (decoder.at(none), decoder.range(5, 0)):
        assert estimates.shape == (0,) and estimates.dtype == np.float64
    assert kernels.fingerprint(np.empty(0, np.uint8), np.zeros(1, np.int64), 3, 5).shape == (0,)


# ---- fingerprints ----


def slow_fingerprint(text: bytes, k: int, k2: int) -> int:
    h = len(text) + 1
    for at in range(0, len(text), 7):
        h = (h * k + int.from_bytes(text[at : at + 7], "little")) % reference.PRIME
    return h * k2 % reference.PRIME


KEYS = st.one_of(st.integers(0, reference.PRIME - 1), st.sampled_from([0, 1, reference.PRIME - 1]))


@given(
    st.lists(
        st.one_of(st.binary(max_size=30), st.integers(0, 30).map(lambda n: b"\xff" * n)),
        max_size=30,
    ),
    KEYS,
    KEYS,
    st.binary(max_size=9),
)
def test_fingerprints_by_definition(
    backend: str, texts: list[bytes], k: int, k2: int, before: bytes
) -> None:
    """The first string need not start at byte 0, and what precedes it does not matter."""
    data = np.frombuffer(before + b"".join(texts), np.uint8)
    offsets = len(before) + np.cumsum([0, *map(len, texts)])
    assert kernels.fingerprint(data, offsets, k, k2).tolist() == [
        slow_fingerprint(text, k, k2) for text in texts
    ]


# ---- means of symbols ----


@given(
    SEEDS,
    st.integers(1, 4),
    st.integers(1, 6),
    st.one_of(st.sampled_from([1, 2, 64, 300]), st.integers(1, 70_000)),
    st.one_of(st.just(0), st.just(2**56 - 1), st.integers(0, 2**56 - 1)),
)
def test_means_of_symbols_by_definition(
    backend: str, seed: int, sketches: int, rows: int, width: int, upper: int
) -> None:
    """Each sketch and each id by itself, through the words of the usual kernel."""
    rng = np.random.default_rng(seed)
    tables, sums = tables_of(rng, sketches, rows), rng.normal(size=(sketches, rows, width))
    most = rng.choice([0.0, 0.5, 9.0], sketches)
    means = kernels.symbol_means(tables, sums, upper << 8, most)
    assert means.shape == (sketches, 256)
    for sketch in range(sketches):
        words = reference.hash_words(tables[sketch], kernels.range_ids(upper << 8, 256))
        cells, signs = reference.locations(words, width), reference.signs(words, 0)
        values = np.take_along_axis(sums[sketch], cells, axis=1) * signs
        cut = np.clip(values, -most[sketch], most[sketch])
        # exactly: names that are read must not depend on the machine
        assert np.array_equal(means[sketch], sum(cut, np.zeros(256)) / rows)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"tables": np.zeros((2, 3, 8, 255), np.uint32)}, "tables must"),
        ({"tables": np.zeros((1, 3, 8, 256), np.uint32)}, "tables must"),
        ({"tables": np.zeros((2, 3, 8, 256), np.int64)}, "tables must"),
        ({"sums": np.zeros((2, 3, 7), np.float32)}, "sums must"),
        ({"sums": np.zeros((2, 21))}, "sums must"),
        ({"sums": np.zeros((2, 7, 3)).swapaxes(1, 2)}, "sums must"),
        ({"sums": np.zeros((2, 3, 0))}, "width must"),
        ({"first_id": 255}, "multiple of 256"),
        ({"first_id": 2**64}, "first_id must"),
        ({"first_id": -256}, "first_id must"),
        ({"most": np.ones(3)}, "most must"),
        ({"most": np.ones(2, np.float32)}, "most must"),
    ],
)
def test_bad_means_of_symbols(backend: str, change: dict[str, Any], match: str) -> None:
    good = {"tables": np.zeros((2, 3, 8, 256), np.uint32), "sums": np.zeros((2, 3, 7))}
    good |= {"first_id": 256, "most": np.ones(2)}
    kernels.symbol_means(**good)
    with pytest.raises(InvalidInputError, match=match):
        kernels.symbol_means(**(good | change))


# ---- the door ----

GOOD = np.zeros((3, 16), np.int64)
TABLES = np.zeros((3, 8, 256), np.uint32)
IDS = np.arange(4, dtype=np.uint64)


def read_only() -> Array:
    counters = GOOD.copy()
    counters.flags.writeable = False
    return counters


BAD_COUNTERS = {
    "float": np.zeros((3, 16)),
    "int32": np.zeros((3, 16), np.int32),
    "unsigned": np.zeros((3, 16), np.uint64),
    "other-order": np.asfortranarray(GOOD),
    "strided": np.zeros((3, 32), np.int64)[:, ::2],
    "one-dimension": np.zeros(16, np.int64),
    "three-dimensions": np.zeros((1, 3, 16), np.int64),
    "big-endian": np.zeros((3, 16), ">i8"),
    "read-only": read_only(),
    "no-width": np.zeros((3, 0), np.int64),
    "no-rows": np.zeros((0, 16), np.int64),
    "too-many-rows": np.zeros((1025, 1), np.int64),
}


@each_case("name", BAD_COUNTERS)
def test_bad_counters(backend: str, name: str) -> None:
    counters = BAD_COUNTERS[name]
    with pytest.raises(InvalidInputError, match="counters must be|width must be|rows must be"):
        kernels.accumulate(counters, TABLES, TABLES, 0, IDS)
    with pytest.raises(InvalidInputError, match="counters must be|width must be|rows must be"):
        kernels.accumulate_range(counters, TABLES, TABLES, 0, 0, np.ones(4, np.int64))


def test_width_beyond_the_limit(backend: str) -> None:
    with pytest.raises(InvalidInputError, match="width must be at most 16777216, got 16777217"):
        kernels.accumulate(np.zeros((3, 2**24 + 1), np.int64), TABLES, TABLES, 0, IDS)
    with pytest.raises(InvalidInputError, match="rows must be at most 1024, got 1025"):
        kernels.accumulate(np.zeros((1025, 1), np.int64), TABLES, TABLES, 0, IDS)


BAD_IDS = [
    np.arange(4),
    IDS.astype(np.float64),
    IDS.astype(np.uint32),
    IDS[None],
    IDS.astype(">u8"),
    [1, 2],
    "12",
    None,
    np.uint64(3),
]


@pytest.mark.parametrize("ids", BAD_IDS, ids=range(len(BAD_IDS)))
def test_bad_ids(backend: str, ids: Any) -> None:
    counters = GOOD.copy()
    with pytest.raises(InvalidInputError, match="ids must be a one-dimensional uint64 array"):
        kernels.accumulate(counters, TABLES, TABLES, 0, ids)
    with pytest.raises(InvalidInputError, match="ids must be a one-dimensional uint64 array"):
        kernels.hash_words(TABLES, ids)
    with pytest.raises(InvalidInputError, match="ids must be a one-dimensional uint64 array"):
        kernels.Decoder(GOOD[None], TABLES[None]).at(ids)
    assert not counters.any()


BAD_COUNTS = [
    np.ones(3, np.int64),
    np.ones(5, np.int64),
    np.ones((4, 1), np.int64),
    np.ones(4),
    np.ones(4, np.uint64),
    [1.5, 2, 3, 4],
    1,
]


@pytest.mark.parametrize("counts", BAD_COUNTS, ids=range(len(BAD_COUNTS)))
def test_bad_counts(backend: str, counts: Any) -> None:
    counters = GOOD.copy()
    with pytest.raises(InvalidInputError, match="counts must be int64 with shape"):
        kernels.accumulate(counters, TABLES, TABLES, 0, IDS, counts)
    assert not counters.any()


@pytest.mark.parametrize("bit", [-1, 8, 1.0, None])
def test_bad_sign_bits(backend: str, bit: Any) -> None:
    with pytest.raises(InvalidInputError, match="sign_bit must be"):
        kernels.accumulate(GOOD.copy(), TABLES, TABLES, bit, IDS)


@pytest.mark.parametrize(
    "tables",
    [TABLES[:2], TABLES[:, :7], TABLES[:, :, :255], TABLES[0], np.zeros((4, 8, 256), np.uint32)],
)
def test_bad_tables(backend: str, tables: Array) -> None:
    for location, sign in ((tables, TABLES), (TABLES, tables), (tables, tables)):
        with pytest.raises(InvalidInputError, match="tables must"):
            kernels.accumulate(GOOD.copy(), location, sign, 0, IDS)
    with pytest.raises(InvalidInputError, match="tables must"):
        kernels.Decoder(GOOD[None], tables[None])


@pytest.mark.parametrize("shape", [(3, 16), (0, 3, 16), (1, 0, 16), (1, 3, 0), (1, 1, 3, 16)])
def test_bad_sums(backend: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError, match="sums must be"):
        kernels.Decoder(np.zeros(shape, np.int64), TABLES[None])


@pytest.mark.parametrize("batches", [1, 9, 16])
def test_tables_must_cover_the_batches(backend: str, batches: int) -> None:
    groups = -(-batches // 8)
    kernels.Decoder(np.zeros((batches, 3, 16), np.int64), np.stack([TABLES] * groups))
    for other in (groups - 1, groups + 1):
        with pytest.raises(InvalidInputError, match="tables must have shape"):
            kernels.Decoder(
                np.zeros((batches, 3, 16), np.int64), np.zeros((other, 3, 8, 256), np.uint32)
            )


@pytest.mark.parametrize("count", [-1, 1.5, None])
def test_bad_range(backend: str, count: Any) -> None:
    with pytest.raises(InvalidInputError, match="count must be"):
        kernels.Decoder(GOOD[None], TABLES[None]).range(0, count)


@pytest.mark.parametrize("offsets", [[], [-1, 2], [0, 2, 1], [0, 5], [3, 0]])
def test_bad_offsets(backend: str, offsets: list[int]) -> None:
    with pytest.raises(InvalidInputError, match="offsets must"):
        kernels.fingerprint(np.zeros(4, np.uint8), np.array(offsets, np.int64), 1, 1)


@pytest.mark.parametrize("key", [-1, reference.PRIME, 2**64, 1.0])
def test_bad_fingerprint_keys(backend: str, key: Any) -> None:
    for k, k2 in ((key, 1), (1, key)):
        with pytest.raises(InvalidInputError, match="k2? must be"):
            kernels.fingerprint(np.zeros(4, np.uint8), np.array([0, 4]), k, k2)


# ---- choosing ----


def test_the_variable_chooses(backend: str) -> None:
    assert kernels.backend() == backend


def test_the_fastest_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (None, ""):
        monkeypatch.delenv("FEDTALLY_KERNELS", raising=False)
        if value is not None:
            monkeypatch.setenv("FEDTALLY_KERNELS", value)
        assert kernels.backend() == kernels.available_backends()[-1]


@pytest.mark.parametrize("name", ["v9", "NUMPY", "numpy "])
def test_unknown_kernels(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("FEDTALLY_KERNELS", name)
    with pytest.raises(InvalidInputError, match=r"does not run here; choose one of numpy"):
        kernels.backend()


def test_num_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDTALLY_NUM_THREADS", raising=False)
    assert kernels.num_threads() >= 1
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "7")
    assert kernels.num_threads() == 7


@pytest.mark.parametrize("value", ["0", "-1", "1025", "two", "1.5"])
def test_bad_num_threads(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", value)
    with pytest.raises(
        InvalidInputError,
        match=f"FEDTALLY_NUM_THREADS must be an integer from 1 to 1024, got '{value}'",
    ):
        kernels.num_threads()


@settings(max_examples=20)
@given(st.integers(0, 2**64 - 1), st.integers(0, 300))
def test_range_ids_wrap(first: int, count: int) -> None:
    assert kernels.range_ids(first, count).tolist() == [(first + i) % 2**64 for i in range(count)]


# ---- rows of tables ----

FEW_OR_ANY = st.one_of(
    st.integers(0, 5), st.sampled_from([2**63, 2**64 - 1]), st.integers(0, 2**64 - 1)
)


@given(st.lists(FEW_OR_ANY, max_size=60))
def test_groups_match_the_reference(backend: str, ids: list[int]) -> None:
    first, counts = rows.group(np.array(ids, np.uint64))
    expected = {value: (ids.index(value), ids.count(value)) for value in dict.fromkeys(ids)}
    assert list(zip(first.tolist(), counts.tolist(), strict=True)) == list(expected.values())


def test_many_ids_are_grouped(backend: str) -> None:
    """More than the table of a compiled level begins with."""
    ids = np.random.default_rng(1).integers(0, 30_000, 60_000).astype(np.uint64) << np.uint64(44)
    for found, expected in zip(rows.group(ids), reference.group(ids), strict=True):
        assert np.array_equal(found, expected)


@given(st.lists(st.tuples(FEW_OR_ANY, FEW_OR_ANY, st.integers(0, 3)), max_size=60), st.booleans())
def test_rows_of_clients_match_the_reference(
    backend: str, held: list[tuple[int, int, int]], rounds: bool
) -> None:
    columns = np.array(held, np.uint64).reshape(-1, 3).T[: 3 if rounds else 2]
    for found, expected in zip(rows.spread(columns), reference.spread(columns), strict=True):
        assert np.array_equal(found, expected)
    found = rows.distinct_rows(columns)
    assert np.array_equal(found, reference.distinct_rows(columns))
    assert sorted(map(tuple, found.T.tolist())) == sorted(set(map(tuple, columns.T.tolist())))


def test_many_rows_of_a_client_are_sorted(backend: str) -> None:
    columns = np.random.default_rng(2).integers(0, 300, (3, 20_000)).astype(np.uint64)
    assert np.array_equal(rows.distinct_rows(columns), reference.distinct_rows(columns))


@settings(max_examples=300)
@given(
    st.one_of(st.text('a",\n\r', max_size=12), st.text('",', max_size=6)),
    st.integers(50, 70),
    st.sampled_from([",", ";"]),
)
def test_quotes_match_the_reference(backend: str, text: str, before: int, delimiter: str) -> None:
    """Also where they lie in two blocks of 64 letters."""
    data = f"{'x' * before}{delimiter}{text}\n".encode()
    assert rows.quotes_are_closed(data, delimiter) == reference.quotes_are_closed(data, delimiter)
    assert rows.quotes_are_closed(data, delimiter) == quotes_in_order(data.decode(), delimiter)


def quotes_in_order(text: str, delimiter: str) -> bool:
    field = rf'"[^"]*(?:""[^"]*)*"|[^"{delimiter}\n\r]*'
    return re.fullmatch(rf"(?:(?:{field})[{delimiter}\n\r])*", text) is not None


def test_the_door_refuses_rows_that_do_not_fit() -> None:
    with pytest.raises(InvalidInputError, match="same length"):
        rows.spread([np.zeros(2, np.uint64), np.zeros(3, np.uint64)])
    with pytest.raises(InvalidInputError, match="rows must be"):
        rows.distinct_rows(np.zeros((4, 2), np.uint64))


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork"
)
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # of Python 3.12
def test_a_forked_process_has_threads_of_its_own() -> None:
    """A pool of the parent has no threads in the child, which would wait for them for ever."""
    done: list[int] = []
    in_threads(done.append, range(3), 2)
    assert sorted(done) == [0, 1, 2]
    child = multiprocessing.get_context("fork").Process(target=in_threads, args=(int, range(3), 2))
    child.start()
    child.join(20)
    hangs = child.is_alive()
    child.kill()
    assert not hangs and child.exitcode == 0
