"""The seed of a small plan: among a few random seeds, the one that spreads candidates most evenly.

The error of a sketch with only a hundred counters depends much on its one draw of hashes. An item
shares its cell with some other candidates, which have the signs +1 and -1. If these signs do not
cancel, the rare items together shift the cell by about the same amount in every campaign. So if the
user gives no seed, several are drawn. For each, a sketch is made in which every candidate is held
once. The seed whose sketch has the least energy (the mean squared counter) is taken. The choice
depends only on hashes and public candidates, not on clients. docs/accuracy.md says what it gains.
Trial campaigns with the plan's frequencies show this gain only if their rare items are similar to
the population's rare items. Plans for any frequencies have no rare items.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from fedtally.domain import Domain
from fedtally.plan import Plan
from fedtally.sketch import CountSketch, SketchSpec

DRAWS = 8
MOST_COUNTERS = 150  # with more counters, over all batches, other seeds gain too little
MOST_CANDIDATES = 1 << 17  # with more candidates, sums of rare items hardly differ between seeds


def even_seed(plan: Plan, domain: Domain) -> bytes:
    """Return the most even of `DRAWS` seeds (see `unevenness`), the first of which is the plan's.

    It is the plan's own seed if the plan has more than `MOST_COUNTERS` counters, if its candidates
    are not public or too many, or if it has no hashes because it is a histogram.

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
    """Return `DRAWS` seeds of 32 bytes: the given seed, and others that are derived from it."""
    more = (
        hashlib.shake_256(b"fedtally/1/draw of a seed\x00%d" % number + seed).digest(32)
        for number in range(1, DRAWS)
    )
    return [seed, *more]


def unevenness(spec: SketchSpec, domain: Domain) -> float:
    """Return the mean square of the counters of a sketch in which every candidate is held once.

    It is about the number of candidates over the width, and less if signs cancel.

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
