"""Which hashes a round uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedtally.errors import InvalidInputError
from fedtally.sketch import RoundHash, Schedule, ScheduleKind, SketchSpec, hashing

SEED = bytes(range(32))
NAMES = st.one_of(
    st.sampled_from(["shared", "fresh", "hybrid"]),
    st.integers(1, 999_999_999).map("batched:{}".format),
)


def hashes(schedule: str, num_rounds: int, rows: int = 2) -> list[RoundHash]:
    spec = SketchSpec(rows=rows, width=8, schedule=schedule, num_rounds=num_rounds, seed=SEED)  # type: ignore[arg-type]
    return [spec.round_hash(m) for m in range(num_rounds)]


def equal(first: RoundHash, second: RoundHash) -> bool:
    tables = np.array_equal(first.location, second.location) and np.array_equal(
        first.sign, second.sign
    )
    return tables and first.sign_bit == second.sign_bit


@given(NAMES)
def test_names_round_trip(name: str) -> None:
    schedule = Schedule.parse(name)
    assert str(schedule) == name
    assert Schedule.parse(schedule) is schedule
    assert Schedule.parse(str(schedule)) == schedule


NO_BATCHES = [
    "batched",
    "batched:",
    "batched:-1",
    "batched:1.5",
    "batched: 2",
    "batched:2:3",
    "batched:1_0",
    "batched:٣",
]


@pytest.mark.parametrize(
    "text",
    [*NO_BATCHES, "batched:1234567890", "", "Shared", "shared ", "hybrid:2", "other", None, 3],
)
def test_other_names_are_refused(text: Any) -> None:
    with pytest.raises(
        InvalidInputError, match="schedule must be shared, fresh, hybrid or batched:B"
    ):
        Schedule.parse(text)


@pytest.mark.parametrize("batches", [0, -1])
def test_batches_must_be_positive(batches: int) -> None:
    with pytest.raises(InvalidInputError, match="batches must be at least 1"):
        Schedule(ScheduleKind.BATCHED, batches)


def test_only_batched_has_batches() -> None:
    with pytest.raises(InvalidInputError, match="batches belongs to the schedule batched"):
        Schedule(ScheduleKind.BATCHED)
    with pytest.raises(InvalidInputError, match="batches belongs to the schedule batched"):
        Schedule(ScheduleKind.HYBRID, 3)
    with pytest.raises(InvalidInputError, match="batches must be at least 1"):
        Schedule.parse("batched:0")


@given(st.integers(1, 200).flatmap(lambda m: st.tuples(st.just(m), st.integers(1, m))))
def test_batches_are_consecutive_even_and_larger_first(case: tuple[int, int]) -> None:
    num_rounds, num_batches = case
    schedule = Schedule.parse(f"batched:{num_batches}")
    batches = [schedule.batch_of(m, num_rounds) for m in range(num_rounds)]
    assert batches == sorted(batches)
    sizes = [batches.count(b) for b in range(num_batches)]
    assert sum(sizes) == num_rounds and min(sizes) >= 1
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [("shared", 1), ("fresh", 12), ("hybrid", 12), ("batched:5", 5), ("batched:12", 12)],
)
def test_num_batches(name: str, expected: int) -> None:
    assert Schedule.parse(name).num_batches(12) == expected
    assert SketchSpec(2, 8, Schedule.parse(name), 12, SEED).num_batches == expected


def test_more_batches_than_rounds() -> None:
    with pytest.raises(
        InvalidInputError, match="batches must be at most the number of rounds, 3, got 4"
    ):
        SketchSpec(2, 8, Schedule.parse("batched:4"), 3, SEED)


def test_shared_uses_one_set() -> None:
    rounds = hashes("shared", 5)
    tables = hashing.tabulation_tables(SEED, 2)
    assert all(equal(h, RoundHash(tables, tables, 0)) for h in rounds)


def test_fresh_uses_a_seed_of_its_own_per_round() -> None:
    for m, h in enumerate(hashes("fresh", 5)):
        tables = hashing.tabulation_tables(hashing.round_seed(SEED, m), 2)
        assert equal(h, RoundHash(tables, tables, 0))


def test_hybrid_keeps_locations_and_walks_through_sign_bits() -> None:
    location = hashing.tabulation_tables(SEED, 2)
    for m, h in enumerate(hashes("hybrid", 18)):
        assert equal(h, RoundHash(location, hashing.tabulation_tables(SEED, 2, m // 8), m % 8))


def test_batched_uses_the_signs_of_its_batch() -> None:
    hybrid = hashes("hybrid", 20)
    for m, h in enumerate(hashes("batched:9", 20)):
        assert equal(h, hybrid[Schedule.parse("batched:9").batch_of(m, 20)])


def test_schedules_that_agree() -> None:
    assert equal(hashes("hybrid", 1)[0], hashes("shared", 1)[0])
    assert all(
        equal(a, b) for a, b in zip(hashes("batched:1", 9), hashes("shared", 9), strict=True)
    )
    assert all(
        equal(a, b) for a, b in zip(hashes("batched:9", 9), hashes("hybrid", 9), strict=True)
    )
    assert not equal(hashes("fresh", 1)[0], hashes("shared", 1)[0])


@pytest.mark.parametrize("name", ["shared", "fresh", "hybrid", "batched:8"])
def test_one_table_for_locations_and_the_first_signs(name: str) -> None:
    """The encoder hashes once, not twice, where it is given one array for both."""
    assert all(h.sign is h.location for h in hashes(name, 8))


@pytest.mark.parametrize("round", [-1, 5, 1.0, None, True])
def test_rounds_out_of_range(round: Any) -> None:
    with pytest.raises(InvalidInputError, match="round must be"):
        SketchSpec(2, 8, Schedule.parse("hybrid"), 5, SEED).round_hash(round)
