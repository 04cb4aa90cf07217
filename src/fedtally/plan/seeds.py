"""The choice of a small plan's seed: among several seeds, one that spreads the candidates evenly.

A seed determines the hashes of a sketch. If the sketch has only about a hundred counters, its error
depends much on the seed. The reason: each item shares its counter with some other candidates, and
each of these adds to the counter with a sign, +1 or -1. If these signs do not cancel, the rare
items shift the counter in every campaign by about the same amount.

So if the user gives no seed, the planner compares `DRAWS` seeds: one seed that is drawn at random,
and seeds derived from this one. For each seed every candidate is added once to a sketch. The seed
whose sketch has the smallest mean square of the counters becomes the plan's seed. This choice
depends only on hashes and on public candidates, never on clients. docs/accuracy.md says how much
smaller the error becomes.

The predicted error of a plan may not show this gain. The prediction simulates campaigns with the
plan's assumed frequencies. The simulated error is smaller only if the assumed frequencies have
about as many rare items as the population. A plan for any frequencies is simulated without rare
items.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from fedtally.domain import Domain
from fedtally.plan import Plan
from fedtally.sketch import CountSketch, SketchSpec

DRAWS = 8
# The most counters, over all batches, of a plan whose seed is chosen. With more counters the choice
# of a seed gains too little.
MOST_COUNTERS = 150
# The most candidates of a plan whose seed is chosen. With so many, the choice takes about 30 ms of
# CPU.
MOST_CANDIDATES = 1 << 17


def even_seed(plan: Plan, domain: Domain) -> bytes:
    """Return the seed with the least `unevenness` among `DRAWS` seeds.

    These are the plan's own seed and seeds derived from it (`draws`). The plan's own seed is
    returned without a search in these cases:

    - The plan has more than `MOST_COUNTERS` counters over all batches (groups of rounds that share
      all hashes and signs).
    - The candidates are not public or not listed, or there are more than `MOST_CANDIDATES`.

    It is also the result for a histogram: a histogram has no hashes, so that all seeds are equally
    even.

    Args:
        plan: a plan whose seed was drawn at random.
        domain: the candidates of the plan.

    >>> from fedtally.domain import IntegerRange
    >>> domain = IntegerRange(1, 500)
    >>> plan = Plan(5, 12, "shared", 1, 4000, 4000, domain.describe(), 1, bytes(32))
    >>> draws(bytes(32)).index(even_seed(plan, domain))
    7
    """
    batches = plan.schedule.num_batches(plan.num_rounds)
    is_small = plan.rows * plan.width * batches <= MOST_COUNTERS
    is_listed = domain.public and 0 < plan.candidates.num_listed <= MOST_CANDIDATES
    if not is_small or not is_listed:
        return plan.seed
    specs = [replace(plan.spec, seed=seed) for seed in draws(plan.seed)]
    return min(specs, key=lambda spec: unevenness(spec, domain)).seed


def draws(seed: bytes) -> list[bytes]:
    """Return `DRAWS` seeds of 32 bytes: `seed` itself, then seeds derived from it (SHAKE-256)."""
    more = (
        hashlib.shake_256(b"fedtally/1/draw of a seed\x00%d" % number + seed).digest(32)
        for number in range(1, DRAWS)
    )
    return [seed, *more]


def unevenness(spec: SketchSpec, domain: Domain) -> float:
    """Return how unevenly a seed spreads candidates: the mean square of a sketch's counters.

    Every candidate is added to the sketch once. The mean is over the counters and over the batches
    (groups of rounds that share all hashes and signs). It is about the number of candidates divided
    by the width. It is smaller if the signs of candidates that share a counter cancel.

    >>> from fedtally.domain import IntegerRange
    >>> spec = SketchSpec(5, 12, "shared", 1, bytes(32))
    >>> 0.3 < unevenness(spec, IntegerRange(1, 6000)) / (6000 / 12) < 3
    True
    """
    ids = domain.ids(0, domain.size)
    ones = np.ones(domain.size, np.int64)
    total = 0.0
    batches = spec.schedule.batches_of(spec.num_rounds)
    for rounds in batches:
        sketch = CountSketch(spec, rounds[0])
        sketch.add(ids, ones)
        total += float(np.square(sketch.counters, dtype=np.float64).mean())
    return total / len(batches)
