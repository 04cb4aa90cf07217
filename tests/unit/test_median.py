"""The paper's decoders: against the oracle, over unequal and missing rounds, and where schedules
coincide."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.errors import IncompatibleError, InvalidInputError
from fedtally.recovery.decoders.median import median
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

SEED = bytes(range(7, 39))
SCHEDULES = ("shared", "fresh", "hybrid", "batched:1", "batched:3", "batched:9", "batched:10")
IDS = st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1))
ROUNDS = st.lists(
    st.one_of(st.none(), st.lists(st.tuples(IDS, st.integers(0, 9)), max_size=12)),
    min_size=10,
    max_size=10,
).filter(lambda rounds: any(items is not None for items in rounds))
Rounds = list[list[tuple[int, int]] | None]


def encode(schedule: str, rounds: Rounds, rows: int = 3, width: int = 8) -> list[CountSketch]:
    spec = SketchSpec(rows, width, Schedule.parse(schedule), len(rounds), SEED)
    landed = []
    for m, items in enumerate(rounds):
        if items is not None:
            sketch = CountSketch(spec, m)
            sketch.add(
                np.array([i for i, _ in items], np.uint64),
                np.array([c for _, c in items], np.int64),
            )
            landed.append(sketch)
    return landed


def asked(rounds: Rounds) -> Any:
    return np.array(
        sorted({i for items in rounds for i, _ in items or []} | set(range(12))), np.uint64
    )


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=30)  # for each of the kernels and schedules
@given(ROUNDS, st.integers(1, 6), st.integers(1, 12))
def test_matches_the_oracle(
    backend: str, oracle: Any, schedule: str, rounds: Rounds, rows: int, width: int
) -> None:
    slow = oracle(schedule, rows, width, 10, SEED)
    for m, items in enumerate(rounds):
        if items is not None:
            slow.add(m, [i for i, _ in items], [c for _, c in items])
    decoder = MedianDecoder(encode(schedule, rounds, rows, width))
    ids = asked(rounds)
    assert decoder.at(ids).tolist() == [slow.estimate(i) for i in ids.tolist()]
    assert decoder.range(2**64 - 2, 6).tolist() == [
        slow.estimate(i % 2**64) for i in range(2**64 - 2, 2**64 + 4)
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@settings(max_examples=20)
@given(
    st.lists(
        st.one_of(
            st.none(), st.dictionaries(st.integers(0, 15), st.integers(1, 10**6), max_size=8)
        ),
        min_size=10,
        max_size=10,
    )
)
def test_unequal_and_missing_rounds_estimate_the_union(
    backend: str, schedule: str, counts: list[dict[int, int] | None]
) -> None:
    """Exact unless an id meets one of 15 others in 4 of 7 rows: probability at most 35 (15 /
    2048)^4 = 1e-7."""
    rounds: Rounds = [None if items is None else list(items.items()) for items in counts]
    if all(items is None for items in rounds):
        return
    union: Counter[int] = Counter()
    for items in counts:
        union.update(items or {})
    decoder = MedianDecoder(encode(schedule, rounds, rows=7, width=2048), expected=1)
    assert decoder.num_clients == union.total()
    assert decoder.at(np.arange(16, dtype=np.uint64)).tolist() == [union[i] for i in range(16)]


def decode(schedule: str, rounds: Rounds) -> Any:
    return MedianDecoder(encode(schedule, rounds)).at(asked(rounds))


@given(st.lists(st.tuples(IDS, st.integers(0, 9)), max_size=20))
def test_hybrid_of_one_round_is_shared(backend: str, items: list[tuple[int, int]]) -> None:
    shared, hybrid, batched = (
        encode(name, [items])[0] for name in ("shared", "hybrid", "batched:1")
    )
    assert np.array_equal(shared.counters, hybrid.counters) and np.array_equal(
        shared.counters, batched.counters
    )
    assert (
        decode("shared", [items]).tolist()
        == decode("hybrid", [items]).tolist()
        == decode("batched:1", [items]).tolist()
    )


@given(ROUNDS)
def test_extremes_of_batched(backend: str, rounds: Rounds) -> None:
    for batched, other in (("batched:1", "shared"), ("batched:10", "hybrid")):
        for a, b in zip(encode(batched, rounds), encode(other, rounds), strict=True):
            assert np.array_equal(a.counters, b.counters)
        assert decode(batched, rounds).tolist() == decode(other, rounds).tolist()


@given(ROUNDS, st.randoms(use_true_random=False))
def test_order_of_rounds_does_not_matter(rounds: Rounds, shuffle: Any) -> None:
    for schedule in SCHEDULES:
        landed = encode(schedule, rounds)
        expected = MedianDecoder(landed).at(asked(rounds))
        shuffle.shuffle(landed)
        assert np.array_equal(MedianDecoder(landed).at(asked(rounds)), expected)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_sketches_are_not_changed_by_decoding(backend: str, schedule: str) -> None:
    landed = encode(schedule, [[(1, 5), (2, 3)]] * 10)
    before = [sketch.counters.copy() for sketch in landed]
    decoder = MedianDecoder(landed)
    first = decoder.at(np.arange(5, dtype=np.uint64))
    assert np.array_equal(decoder.at(np.arange(5, dtype=np.uint64)), first)
    assert all(
        np.array_equal(sketch.counters, counters)
        for sketch, counters in zip(landed, before, strict=True)
    )


# ---- scanning ----


@pytest.mark.parametrize("schedule", ["shared", "fresh", "hybrid"])
@given(
    ROUNDS,
    st.integers(0, 200),
    st.one_of(st.integers(0, 20), st.integers(2**64 - 20, 2**64 - 1)),
    st.integers(-5, 30),
    st.integers(1, 70),
)
def test_scan_is_a_filter(
    backend: str, schedule: str, rounds: Rounds, count: int, first: int, threshold: int, block: int
) -> None:
    decoder = MedianDecoder(encode(schedule, rounds))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(median, "SCAN_BLOCK", block)
        ids, counts = decoder.scan(first, count, threshold)
    assert ids.dtype == np.uint64 and counts.dtype == np.float64
    everything = kernels.range_ids(first, count)
    estimates = decoder.range(first, count)
    assert ids.tolist() == everything[estimates >= threshold].tolist()
    assert counts.tolist() == estimates[estimates >= threshold].tolist()


def test_scan_over_real_blocks(backend: str) -> None:
    heavy = [2**64 - median.SCAN_BLOCK, 2**64 - 1, 0, 5]
    decoder = MedianDecoder(encode("hybrid", [[(i, 1000) for i in heavy]] * 2, rows=5, width=4096))
    count = median.SCAN_BLOCK + 6
    ids, counts = decoder.scan(heavy[0], count, 2000)
    estimates = decoder.range(heavy[0], count)
    assert set(heavy) <= set(ids.tolist())
    assert np.array_equal(ids, kernels.range_ids(heavy[0], count)[estimates >= 2000])
    assert np.array_equal(counts, estimates[estimates >= 2000])


def test_empty_questions(backend: str) -> None:
    for schedule in SCHEDULES:
        decoder = MedianDecoder(encode(schedule, [[(1, 2)]] * 10))
        ids, counts = decoder.scan(5, 0, 1.0)
        none = decoder.at(np.empty(0, np.uint64)), decoder.range(0, 0), ids, counts
        assert [(a.shape, str(a.dtype)) for a in none] == [
            ((0,), d) for d in ("float64", "float64", "uint64", "float64")
        ]
        ids, counts = decoder.scan(0, 50, 1e9)
        assert ids.shape == counts.shape == (0,)


def test_rounds_without_items(backend: str) -> None:
    for schedule in SCHEDULES:
        decoder = MedianDecoder(encode(schedule, [[]] * 10))
        assert decoder.num_clients == 0
        assert not decoder.range(0, 20).any()


# ---- refusals ----


def test_nothing_to_decode() -> None:
    with pytest.raises(InvalidInputError, match="no round has landed"):
        MedianDecoder([])


def test_a_round_given_twice() -> None:
    landed = encode("hybrid", [[(1, 2)]] * 3)
    with pytest.raises(InvalidInputError, match="round 2 several times; merge"):
        MedianDecoder([*landed, landed[2]])


def test_rounds_of_other_campaigns() -> None:
    landed = encode("hybrid", [[(1, 2)]] * 3)
    for other in (
        encode("shared", [[]] * 3),
        encode("hybrid", [[]] * 4),
        encode("hybrid", [[]] * 3, width=9),
    ):
        with pytest.raises(IncompatibleError, match="differ in"):
            MedianDecoder([landed[0], other[1]])


@pytest.mark.parametrize("schedule", ["shared", "hybrid", "batched:1"])
def test_sums_over_rounds_do_not_wrap_around(backend: str, schedule: str) -> None:
    """A round may hold up to 2^62; four of 2^61 are 2^63, which int64 cannot hold.
    Close or refused, never negative.
    """
    landed = encode(schedule, [[(1, 2**61)]] * 4)
    try:
        estimate = MedianDecoder(landed).at(np.array([1], np.uint64))[0]
    except InvalidInputError:
        return
    assert estimate == pytest.approx(2.0**63)


@pytest.mark.parametrize("count", [-1, 1.5])
def test_bad_ranges(count: Any) -> None:
    decoder = MedianDecoder(encode("hybrid", [[(1, 2)]]))
    for act in (lambda: decoder.range(0, count), lambda: decoder.scan(0, count, 1.0)):
        with pytest.raises(InvalidInputError, match="count must be"):
            act()
