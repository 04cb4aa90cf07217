"""Do the limits hold where few silos of unequal sizes and tastes are in a round?"""

from __future__ import annotations

import numpy as np
import pytest

from fedtally.answer.result import Result
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.server import FrequencyServer
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.privacy.config import propose
from fedtally.recovery.decoding import Decoding
from fedtally.sketch import CountSketch

SIZE, ROWS, WIDTH = 2000, 7, 400
DOMAIN = IntegerRange(1, SIZE)
IDS = np.arange(1, SIZE + 1, dtype=np.uint64)
SILOS = [20_000, 300, 5000, 1500, 9000, 60, 700, 12_000, 400]
BANDS = [slice(0, 10), slice(10, 100), slice(100, SIZE)]
RUNS = 30


@pytest.mark.parametrize(("rounds", "recovery"), [(1, "joint"), (3, "joint"), (3, "median")])
def test_limits_hold_in_every_band(rounds: int, recovery: str) -> None:
    found = np.mean([covered(seed, rounds, recovery) for seed in range(RUNS)], axis=0)
    assert found.min() >= 0.93, found


def covered(seed: int, rounds: int, recovery: str) -> list[float]:
    """Return the share of the limits that hold, from the most frequent band to the rarest."""
    rng = np.random.default_rng(seed)
    each = len(SILOS) // rounds
    privacy = propose(
        epsilon=1.0,
        delta=1e-8,
        rows=ROWS,
        width=WIDTH,
        relation="add-remove",
        trust="distributed",
        honest_survivors=each - 1,
        most_clients=each,
    )
    plan = Plan(
        rows=ROWS,
        width=WIDTH,
        schedule="hybrid" if rounds > 1 else "shared",
        num_rounds=rounds,
        num_clients=len(SILOS),
        max_round_clients=each,
        domain=DOMAIN.describe(),
        max_items=1,
        seed=rng.bytes(32),
        privacy=privacy,
        people=max(SILOS),
    )
    server, truth = FrequencyServer(plan, MemoryBooks()), np.zeros(SIZE)
    for round in range(rounds):
        sketch = CountSketch(plan.spec, round)
        for people in SILOS[round * each : (round + 1) * each]:
            # natural rounds: each silo has tastes of its own
            tastes = rng.gamma(2.0, 0.5, SIZE) / np.arange(1, SIZE + 1) ** 1.1
            counts = rng.multinomial(people, tastes / tastes.sum())
            sketch.add(IDS, counts.astype(np.int64))
            truth += counts
        sketch.num_silos = each
        server.land_plain(sketch)
    result = Result(plan, DOMAIN, server.release(rng.bytes), decoding=Decoding(recovery))
    limits, shares = result.limits(), truth / truth.sum()
    assert limits is not None
    holds = (limits.low <= shares) & (shares <= limits.high)
    return [float(holds[band].mean()) for band in BANDS]
