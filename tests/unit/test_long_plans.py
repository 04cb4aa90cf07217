"""Plans of many rounds of which few landed: decoders hold the landed ones alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedtally
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.belief import BeliefDecoder
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.kind import CampaignDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.linear_system import Landed
from fedtally.sketch import CountSketch, Schedule, SketchSpec

I64 = npt.NDArray[np.int64]
LONG = 2**20


def land(counts: I64, rounds: list[int], schedule: str, num_rounds: int) -> list[CountSketch]:
    """Return the sums of these rounds of a plan, of the items 1..d: counts int64 [rounds, d]."""
    spec = SketchSpec(5, 60, Schedule.parse(schedule), num_rounds, bytes(32))
    sketches = [CountSketch(spec, number) for number in rounds]
    for sketch, held in zip(sketches, counts, strict=True):
        sketch.add_range(1, held)
    return sketches


def drawn(num_rounds: int, size: int, clients: int, seed: int = 0) -> I64:
    law = np.arange(1, size + 1.0) ** -1.1
    return np.random.default_rng(seed).multinomial(clients, law / law.sum(), size=num_rounds)


@given(
    st.sampled_from(["shared", "fresh", "hybrid", f"batched:{LONG // 3}", "batched:5"]),
    st.lists(st.integers(0, LONG - 1), min_size=1, max_size=20, unique=True).map(sorted),
)
def test_items_lie_where_the_rounds_put_them(schedule: str, rounds: list[int]) -> None:
    """Taking every item out of the landed sums leaves nothing, whichever rounds landed."""
    counts = drawn(len(rounds), 50, 200)
    sketches = land(counts, rounds, schedule, LONG)
    landed = Landed(sketches[0].spec, sketches)
    place = {batch: i for i, batch in enumerate(landed.batches)}
    held = np.zeros((50, len(place)))
    for number, own in zip(rounds, counts, strict=True):
        held[:, place[landed.spec.schedule.batch_of(number, LONG)]] += own
    assert landed.frequencies.shape[2] == len(landed.clients) == len(place) <= len(rounds)
    left = landed.with_items(np.arange(1, 51, dtype=np.uint64), -held / landed.clients)
    np.testing.assert_allclose(left.frequencies, 0.0, atol=1e-12)


@pytest.mark.parametrize("decoder", [MedianDecoder, JointDecoder, BeliefDecoder])
def test_a_long_plan_is_as_accurate_as_a_short_one(decoder: type[CampaignDecoder]) -> None:
    """Each estimate is the counts plus noise of other hashes: the l2 errors are within a fifth."""
    counts = drawn(12, 2000, 2000)
    rounds = [7, 8, 4000, 4009, *range(99_000, 99_007), LONG - 1]
    domain = IntegerRange(1, 2000)

    def error(sketches: list[CountSketch]) -> float:
        if decoder is MedianDecoder:
            made: CampaignDecoder = MedianDecoder(sketches)
        else:
            made = decoder(sketches, domain)  # type: ignore[call-arg]
            assert not getattr(made, "fallback", None)
        return float(np.linalg.norm(made.range(1, 2000) - counts.sum(axis=0)))

    short = error(land(counts, list(range(12)), "hybrid", 12))
    assert abs(error(land(counts, rounds, "hybrid", LONG)) / short - 1) < 0.2


def test_landed_rounds_choose_the_decoder() -> None:
    """5,000 candidates in 5 rows: messages of 1,024 rounds have no room, those of 3 have."""
    size = 5000
    whole = fedtally.estimate(
        1 + np.arange(3000),
        domain=f"range:1..{size}",
        num_rounds=3,
        rows=5,
        width=200,
        schedule="hybrid",
        seed=1,
    )
    assert whole.recovery == "belief"
    spec = replace(whole.plan.spec, num_rounds=1024)
    plan = replace(whole.plan, num_rounds=1024)
    few = []
    for number in (1, 500, 1023):
        few.append(CountSketch(spec, number))
        few[-1].add_range(1, drawn(1, size, 1000, number)[0])
    assert fedtally.Result(plan, whole.domain, few).recovery == "belief"
    many = [CountSketch(spec, number) for number in range(1024)]
    many[0].num_clients = 1000
    assert fedtally.Result(plan, whole.domain, many).recovery == "joint"
