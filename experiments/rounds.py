"""One multi-round campaign, from the items' counts in each round to their estimates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]
FIRST_ID = 1  # the paper's items are 1..d


def draw(law: F64, num_clients: int, num_rounds: int, rng: np.random.Generator) -> I64:
    """Draw the items' clients in several rounds of equal size: int64 [num_rounds, d].

    Args:
        law: float64 [d], sums to 1.
        num_clients: all rounds together; a remainder of the division by num_rounds is left out.
        num_rounds: at least 1.
        rng: what draws.
    """
    return rng.multinomial(num_clients // num_rounds, law / law.sum(), size=num_rounds)


def estimate(rounds: I64, rows: int, width: int, schedule: str, seed: bytes) -> F64:
    """Encode each round, decode them all: float64 [d], the estimated sums over rounds.

    Args:
        rounds: int64 [num_rounds, d], how much of each item a round holds.
        rows: of the sketch.
        width: of the sketch.
        schedule: shared, fresh, hybrid or batched:B.
        seed: 32 bytes.
    """
    spec = SketchSpec(rows, width, Schedule.parse(schedule), len(rounds), seed)
    sketches = []
    for m, weights in enumerate(rounds):
        sketch = CountSketch(spec, m)
        sketch.add_range(FIRST_ID, weights)
        sketches.append(sketch)
    size = rounds.shape[1]
    return MedianDecoder(sketches, expected=size).range(FIRST_ID, size)
