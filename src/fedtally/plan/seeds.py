"""The seed of a small plan: of a few draws, the one that spreads the candidates most evenly.

A sketch of a hundred counters is as lucky as its one draw of hashes. An item's cell has a number of
the other candidates, some with the sign 1 and some with -1. Where the signs do not cancel, what all
rare items hold together moves the cell by as much in every campaign, whoever holds what. So a seed
that nobody chose is drawn several times. The draw is taken under which each candidate, held once,
leaves the least energy in the counters. It is a matter of the hashes and of public candidates: no
client decides which seeds are tried, or which one is taken. docs/accuracy.md has what it gains.
Campaigns that are tried with the frequencies of the plan show it only if their rare items are like
those of the population, and plans for any frequencies have none.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from fedtally.domain import Domain
from fedtally.plan import Plan
from fedtally.sketch import CountSketch, SketchSpec

DRAWS = 8
MOST_COUNTERS = 150  # of all batches, up to which a draw is worth others
MOST_CANDIDATES = 1 << 17  # of more, the sums of rare items hardly differ between draws


def even_seed(plan: Plan, domain: Domain) -> bytes:
    """Return the most even of `DRAWS` seeds, the first of which is the plan's own.

    It is the plan's own where it has more than `MOST_COUNTERS` counters, where not everybody may
    know the candidates, and where it has no hashes: in a histogram.

    Args:
        plan: a plan whose seed was drawn, and nobody chose it.
        domain: its candidates.

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
    """Return `DRAWS` seeds of 32 bytes, the first of which is the given one."""
    more = (
        hashlib.shake_256(b"fedtally/1/draw of a seed\x00%d" % number + seed).digest(32)
        for number in range(1, DRAWS)
    )
    return [seed, *more]


def unevenness(spec: SketchSpec, domain: Domain) -> float:
    """Return the mean square of the counters in which each candidate is held once.

    That is about the number of candidates over the width. It is less where signs cancel.

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
