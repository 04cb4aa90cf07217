"""Sketches: encoding against the oracle, merging, saving, and what is refused without a trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from fedtally.base import archive
from fedtally.errors import IncompatibleError, InvalidInputError, UnreadableFileError
from fedtally.sketch import CountSketch, NoiseMark, Schedule, SketchSpec, check_compatible
from fedtally.sketch.count_sketch import SCHEMA, spec_from_dict, spec_to_dict

SEED = bytes(range(32))
SCHEDULES = ("shared", "fresh", "hybrid", "batched:2")
IDS = st.one_of(
    st.integers(0, 5), st.integers(0, 2**64 - 1), st.sampled_from([255, 256, 2**32, 2**64 - 1])
)
ITEMS = st.lists(st.tuples(IDS, st.integers(0, 50)), max_size=30)


def spec_of(
    schedule: str = "hybrid",
    rows: int = 3,
    width: int = 16,
    num_rounds: int = 10,
    seed: bytes = SEED,
) -> SketchSpec:
    return SketchSpec(rows, width, Schedule.parse(schedule), num_rounds, seed)


def arrays(items: list[tuple[int, int]]) -> tuple[Any, Any]:
    return np.array([id_ for id_, _ in items], np.uint64), np.array(
        [count for _, count in items], np.int64
    )


def filled(spec: SketchSpec | None = None, round: int = 3) -> CountSketch:
    sketch = CountSketch(spec or spec_of(), round)
    sketch.add(*arrays([(1, 4), (2, 5), (2**63, 1)]))
    return sketch


def state(sketch: CountSketch) -> tuple[Any, ...]:
    return sketch.spec, sketch.round, sketch.num_clients, sketch.counters.tolist()


# ---- encoding ----


@given(ITEMS, st.sampled_from(SCHEDULES), st.integers(1, 6), st.integers(1, 20), st.integers(0, 9))
def test_add_matches_the_oracle(
    backend: str,
    oracle: Any,
    items: list[tuple[int, int]],
    schedule: str,
    rows: int,
    width: int,
    round: int,
) -> None:
    slow = oracle(schedule, rows, width, 10, SEED)
    slow.add(round, *zip(*items, strict=True)) if items else slow.add(round, [], [])
    sketch = CountSketch(spec_of(schedule, rows, width), round)
    sketch.add(*arrays(items))
    assert sketch.counters.dtype == np.int64
    assert sketch.counters.tolist() == slow.counters(round)
    assert sketch.num_clients == sum(count for _, count in items)


@given(st.lists(IDS, max_size=60), st.integers(0, 9))
def test_units_are_counts_of_one(backend: str, ids: list[int], round: int) -> None:
    units, counted, split = (CountSketch(spec_of(), round) for _ in range(3))
    units.add(np.array(ids, np.uint64))
    distinct, counts = np.unique(np.array(ids, np.uint64), return_counts=True)
    counted.add(distinct, counts)
    for part in (ids[::2], ids[1::2]):
        split.add(np.array(part, np.uint64))
    assert state(units) == state(counted) == state(split)
    assert units.num_clients == len(ids)


@pytest.mark.parametrize("schedule", SCHEDULES)
@given(
    st.one_of(st.integers(0, 300), st.integers(2**64 - 40, 2**64 - 1)),
    st.lists(st.integers(0, 99), max_size=80),
)
def test_a_range_is_a_list(backend: str, schedule: str, first: int, counts: list[int]) -> None:
    ranged, listed = CountSketch(spec_of(schedule), 9), CountSketch(spec_of(schedule), 9)
    ranged.add_range(first, np.array(counts, np.int64))
    listed.add(
        np.array([(first + i) % 2**64 for i in range(len(counts))], np.uint64),
        np.array(counts, np.int64),
    )
    assert state(ranged) == state(listed)


def test_num_clients_may_be_given(backend: str) -> None:
    sketch = CountSketch(spec_of(), 0)
    sketch.add(*arrays([(1, 6), (2, 2)]), num_clients=4)
    sketch.add_range(0, np.array([1, 1]), num_clients=0)
    sketch.encode_vector(np.array([1, -1]), num_clients=3)
    sketch.encode_vector(np.array([1, -1]))
    assert sketch.num_clients == 4 + 0 + 3 + 1


@given(st.lists(st.tuples(IDS, st.integers(-(2**40), 2**40)), max_size=30))
def test_signed_vectors_match_the_oracle(
    backend: str, oracle: Any, items: list[tuple[int, int]]
) -> None:
    slow = oracle("hybrid", 3, 16, 10, SEED)
    slow.add(9, [id_ for id_, _ in items], [weight for _, weight in items])
    sketch = CountSketch(spec_of(), 9)
    ids, weights = arrays(items)
    sketch.encode_vector(weights, ids)
    assert sketch.counters.tolist() == slow.counters(9)
    dense, listed = CountSketch(spec_of(), 9), CountSketch(spec_of(), 9)
    dense.encode_vector(weights)
    listed.encode_vector(weights, np.arange(len(weights), dtype=np.uint64))
    assert state(dense) == state(listed)


# ---- merging ----


@given(ITEMS, ITEMS)
def test_merging_is_adding(
    backend: str, first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    parts = [CountSketch(spec_of(), 4) for _ in range(2)]
    whole = CountSketch(spec_of(), 4)
    for part, items in zip(parts, (first, second), strict=True):
        part.add(*arrays(items))
        whole.add(*arrays(items))
    before = state(parts[1])
    parts[0].merge(parts[1])
    assert state(parts[0]) == state(whole)
    assert state(parts[1]) == before


OTHER = {
    "rows": spec_of(rows=5),
    "width": spec_of(width=17),
    "schedule": spec_of("shared"),
    "num_rounds": spec_of(num_rounds=11),
    "seed": spec_of(seed=bytes(32)),
}


@pytest.mark.parametrize("name", OTHER)
def test_other_specs_are_refused(name: str) -> None:
    sketch = filled()
    before = state(sketch)
    with pytest.raises(IncompatibleError, match=f"differ in {name}") as caught:
        sketch.merge(filled(OTHER[name]))
    assert state(sketch) == before
    if name == "seed":
        assert SEED.hex() not in str(caught.value)
    else:
        assert f"{getattr(sketch.spec, name)} and {getattr(OTHER[name], name)}" in str(caught.value)


def test_batches_are_part_of_the_schedule() -> None:
    with pytest.raises(IncompatibleError, match=r"schedule \(batched:2 and batched:3\)"):
        check_compatible(spec_of("batched:2"), spec_of("batched:3"))
    check_compatible(spec_of("batched:2"), spec_of("batched:2"))


def test_other_rounds_are_refused() -> None:
    sketch = filled()
    before = state(sketch)
    with pytest.raises(IncompatibleError, match="of round 3 and the other of round 4"):
        sketch.merge(filled(round=4))
    assert state(sketch) == before


# ---- refusals ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 0}, "rows must be at least 1, got 0"),
        ({"rows": 1025}, "rows must be at most 1024"),
        ({"rows": 2.0}, "rows must be an integer"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"width": 2**24 + 1}, "width must be at most 16777216"),
        ({"width": True}, "width must be an integer"),
        ({"num_rounds": 0}, "num_rounds must be at least 1"),
        ({"num_rounds": 2**20 + 1}, "num_rounds must be at most"),
        ({"num_rounds": None}, "num_rounds must be an integer"),
        ({"seed": bytes(31)}, "seed must be 32 bytes, got 31 bytes"),
        ({"seed": "0" * 32}, "seed must be 32 bytes, got str"),
        ({"schedule": "weekly"}, "schedule must be shared, fresh, hybrid or batched:B"),
        ({"schedule": "batched:11"}, "batches must be at most the number of rounds, 10, got 11"),
    ],
)
def test_bad_specs(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        dataclasses.replace(spec_of(), **change)


def test_limits_are_inclusive() -> None:
    spec_of(rows=1024, width=2**24, num_rounds=2**20)


@pytest.mark.parametrize("round", [-1, 10, 1.0, "1"])
def test_bad_rounds(round: Any) -> None:
    with pytest.raises(InvalidInputError, match="round must be"):
        CountSketch(spec_of(), round)


TWO = np.array([1, 2], np.uint64)
BAD_ADDS: dict[str, dict[str, Any]] = {
    "negative": {"ids": TWO, "counts": np.array([1, -1])},
    "float": {"ids": TWO, "counts": np.array([1.0, 2.0])},
    "nan": {"ids": TWO, "counts": np.array([np.nan, 2.0])},
    "unsigned": {"ids": TWO, "counts": np.array([2**63, 2], np.uint64)},
    "text": {"ids": TWO, "counts": np.array(["1", "2"])},
    "short": {"ids": TWO, "counts": np.array([1])},
    "shape": {"ids": TWO, "counts": np.array([[1, 2]])},
    "signed-ids": {"ids": np.array([1, 2])},
    "float-ids": {"ids": np.array([1.0, 2.0])},
    "list-of-ids": {"ids": [1, 2]},
    "one-id": {"ids": 1},
    "square-ids": {"ids": TWO[None]},
    "clients": {"ids": TWO, "num_clients": -1},
    "float-clients": {"ids": TWO, "num_clients": 2.0},
    "overflow": {"ids": TWO, "counts": np.array([2**61, 2**61])},
    "wrapping": {"ids": TWO, "counts": np.array([2**62, 2**62])},
    "overflow-with-clients": {"ids": TWO, "counts": np.array([2**62, 2**62]), "num_clients": 2},
}


@each_case("name", BAD_ADDS)
def test_bad_adds_leave_no_trace(backend: str, name: str) -> None:
    sketch, arguments = filled(), BAD_ADDS[name]
    before = state(sketch)
    with pytest.raises(InvalidInputError):
        sketch.add(**arguments)
    assert state(sketch) == before
    if "counts" in arguments and arguments["counts"].shape == (2,):
        with pytest.raises(InvalidInputError):
            sketch.add_range(0, arguments["counts"], arguments.get("num_clients"))
        assert state(sketch) == before


def of_file(sketch: CountSketch) -> CountSketch:
    return CountSketch.from_bytes(sketch.to_bytes())


def merged(sketch: CountSketch) -> CountSketch:
    whole = CountSketch(sketch.spec, sketch.round)
    whole.merge(sketch)
    return whole


@pytest.mark.parametrize("made", [lambda sketch: sketch, of_file, merged])
def test_items_without_counts_make_no_counter_too_large(made: Any) -> None:
    """Whatever filled the sketch before, it can be read back from its file."""
    sketch, zeros = CountSketch(spec_of(), 0), np.zeros(2000, np.uint64)
    sketch.encode_vector(np.array([2**62 - 3000]))
    sketch = made(sketch)
    sketch.add(zeros)
    before = state(sketch)
    with pytest.raises(InvalidInputError, match=r"below 2\^62"):
        sketch.add(zeros)
    assert state(sketch) == before == state(of_file(sketch))


@pytest.mark.parametrize(
    "counts", [[1, 2], np.array([1, 2], np.int32), np.array([1, 2], np.uint64)]
)
def test_counts_of_any_integers(backend: str, counts: Any) -> None:
    exact, given, ranged = (CountSketch(spec_of(), 0) for _ in range(3))
    exact.add(TWO, np.array([1, 2]))
    given.add(TWO, counts)
    ranged.add_range(int(TWO[0]), counts)
    assert state(given) == state(exact)
    assert ranged.num_clients == 3


@pytest.mark.parametrize("first", [-1, 2**64, 1.5])
def test_bad_first_ids(backend: str, first: Any) -> None:
    """Wrapped as documented or refused by name, and alike on every implementation."""
    sketch = CountSketch(spec_of(), 0)
    try:
        sketch.add_range(first, np.array([3]))
    except InvalidInputError:
        assert not sketch.counters.any()
    else:
        wrapped = CountSketch(spec_of(), 0)
        wrapped.add(np.array([int(first) % 2**64], np.uint64), np.array([3]))
        assert first == int(first) and state(sketch) == state(wrapped)


@pytest.mark.parametrize(
    "weights",
    [
        np.array([1.0]),
        np.array([2**63], np.uint64),
        np.array([True]),
        np.array([[1]]),
        np.array([-(2**63)]),
    ],
)
def test_bad_vectors(backend: str, weights: Any) -> None:
    sketch = filled()
    before = state(sketch)
    with pytest.raises(InvalidInputError):
        sketch.encode_vector(weights)
    assert state(sketch) == before


def test_the_guard_against_overflow_counts_what_is_there(backend: str) -> None:
    one = np.array([7], np.uint64)
    sketch = CountSketch(spec_of(), 0)
    sketch.add(one, np.array([2**61]))
    sketch.add(one, np.array([2**61 - 2**20]))
    before = state(sketch)
    for act in (
        lambda: sketch.add(one, np.array([2**21])),
        lambda: sketch.add_range(7, np.array([2**21])),
        lambda: sketch.encode_vector(np.array([-(2**61)]), one),
        lambda: sketch.merge(sketch),
    ):
        with pytest.raises(InvalidInputError, match=r"must stay below 2\^62"):
            act()
    assert state(sketch) == before


# ---- saving ----


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_saved_sketches_come_back(tmp_path: Path, schedule: str) -> None:
    sketch = filled(spec_of(schedule))
    sketch.save(tmp_path / "sketch")
    loaded = CountSketch.load(tmp_path / "sketch")
    assert state(loaded) == state(sketch)
    loaded.add(TWO)
    loaded.merge(sketch)
    assert spec_from_dict(spec_to_dict(sketch.spec)) == sketch.spec


PLAN = "ab" * 32


@pytest.mark.parametrize("by", [None, "aggregator", "clients", "servers"])
def test_whose_noise_is_in_it_is_kept(tmp_path: Path, by: Any) -> None:
    sketch, mark = filled(), None if by is None else NoiseMark(by, PLAN)
    assert sketch.noise is None
    sketch.noise = mark
    sketch.save(tmp_path / "sketch")
    for back in (CountSketch.load(tmp_path / "sketch"), CountSketch.from_bytes(sketch.to_bytes())):
        assert back.noise == mark
    assert ("noised by" in repr(sketch)) == (mark is not None)
    other = filled()
    other.noise = mark
    sketch.merge(other)
    assert sketch.noise == mark and sketch.num_clients == 20
    if mark is not None:
        with pytest.raises(
            IncompatibleError, match=f"sums with noise of the {by} .* and of nobody do not add up"
        ):
            sketch.merge(filled())
        with pytest.raises(IncompatibleError, match=f"sums with noise of nobody and of the {by}"):
            filled().merge(sketch)
        other.noise = mark._replace(plan="cd" * 32)
        with pytest.raises(
            IncompatibleError, match="under plan abababababababab and of .* under plan cdcdcdcd"
        ):
            sketch.merge(other)
        assert sketch.num_clients == 20


@pytest.mark.parametrize(
    "add",
    [
        lambda sketch: sketch.add(np.array([1], np.uint64)),
        lambda sketch: sketch.add(np.array([1], np.uint64), np.array([2])),
        lambda sketch: sketch.add_range(1, np.array([2])),
        lambda sketch: sketch.encode_vector(np.array([2])),
    ],
)
def test_nobody_is_added_after_the_noise(add: Any) -> None:
    sketch = filled()
    sketch.noise = NoiseMark("aggregator", PLAN)
    before = sketch.counters.copy()
    with pytest.raises(
        InvalidInputError,
        match="hold the noise of the aggregator under plan abababababababab already",
    ):
        add(sketch)
    assert np.array_equal(before, sketch.counters) and sketch.num_clients == 10


@pytest.mark.parametrize(
    "mark",
    [
        "clients",
        ["somebody", PLAN],
        ["clients"],
        ["clients", 7],
        ["clients", "ab"],
        ["clients", PLAN, 1],
        0,
        [],
    ],
)
def test_a_mark_that_nobody_knows_is_refused(mark: Any) -> None:
    sketch = filled()
    sketch.noise = mark
    with pytest.raises(
        UnreadableFileError,
        match="null, or one of aggregator, clients, servers and the fingerprint",
    ):
        CountSketch.from_bytes(sketch.to_bytes())


def test_numbers_of_numpy_can_be_saved(tmp_path: Path) -> None:
    """What the checks let in must not break later: sizes and clients may come out of arrays."""
    spec = SketchSpec(np.int64(3), np.int64(16), Schedule.parse("hybrid"), np.int64(10), SEED)  # type: ignore[arg-type]
    sketch = CountSketch(spec, np.int64(3))  # type: ignore[arg-type]
    sketch.save(tmp_path / "sketch")
    sketch.add(TWO, num_clients=np.int64(2))  # type: ignore[arg-type]
    sketch.save(tmp_path / "sketch")
    assert state(CountSketch.load(tmp_path / "sketch")) == state(sketch)


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 4},
        {"rows": 3.0},
        {"rows": None},
        {"width": 0},
        {"round": 10},
        {"num_clients": -1},
        {"num_clients": "9"},
        {"schedule": "weekly"},
        {"schedule": 3},
        {"num_rounds": 2},
        {"seed": "00"},
        {"seed": "zz" * 32},
        {"seed": 7},
    ],
    ids=str,
)
def test_damaged_headers(tmp_path: Path, change: dict[str, Any]) -> None:
    sketch = filled()
    meta = {**spec_to_dict(sketch.spec), "round": 3, "num_clients": 10, **change}
    archive.write(tmp_path / "sketch", SCHEMA, meta, {"counters": sketch.counters})
    with pytest.raises(UnreadableFileError, match="sketch is damaged"):
        CountSketch.load(tmp_path / "sketch")


@pytest.mark.parametrize(
    "missing",
    ["rows", "width", "schedule", "num_rounds", "seed", "round", "num_clients", "counters"],
)
def test_missing_fields(tmp_path: Path, missing: str) -> None:
    sketch = filled()
    meta = {**spec_to_dict(sketch.spec), "round": 3, "num_clients": 10}
    meta.pop(missing, None)
    archive.write(
        tmp_path / "sketch",
        SCHEMA,
        meta,
        {"other" if missing == "counters" else "counters": sketch.counters},
    )
    with pytest.raises(UnreadableFileError, match="damaged"):
        CountSketch.load(tmp_path / "sketch")


@pytest.mark.parametrize(
    "counters",
    [
        np.zeros((3, 16)),
        np.zeros((3, 16), np.int32),
        np.zeros((3, 16), ">i8"),
        np.zeros((16, 3), np.int64),
        np.zeros(48, np.int64),
    ],
)
def test_counters_of_another_kind(tmp_path: Path, counters: Any) -> None:
    meta = {**spec_to_dict(spec_of()), "round": 3, "num_clients": 10}
    archive.write(tmp_path / "sketch", SCHEMA, meta, {"counters": counters})
    with pytest.raises(UnreadableFileError, match="damaged"):
        CountSketch.load(tmp_path / "sketch")


def test_counters_in_the_other_order_are_usable_or_refused(tmp_path: Path) -> None:
    sketch = filled()
    meta = {**spec_to_dict(sketch.spec), "round": 3, "num_clients": 10}
    archive.write(
        tmp_path / "sketch", SCHEMA, meta, {"counters": np.asfortranarray(sketch.counters)}
    )
    try:
        loaded = CountSketch.load(tmp_path / "sketch")
    except UnreadableFileError:
        return
    loaded.add(TWO)
    sketch.add(TWO)
    assert state(loaded) == state(sketch)


def test_other_files_are_refused(tmp_path: Path) -> None:
    archive.write(tmp_path / "file", "fedtally-result/1", {}, {})
    with pytest.raises(
        UnreadableFileError, match="holds fedtally-result/1, expected fedtally-sketch/1"
    ):
        CountSketch.load(tmp_path / "file")
    with pytest.raises(UnreadableFileError, match="no file"):
        CountSketch.load(tmp_path / "missing")


def test_a_sketch_shows_its_size_and_no_counters() -> None:
    assert repr(filled()) == "CountSketch(round=3, rows=3, width=16, num_clients=10)"
