"""Populations that several tests of recovery share."""

import numpy as np

from fedtally.sketch import CountSketch, Schedule, SketchSpec


def campaign(
    schedule, rows, width, *, exponent=1.2, size=5000, clients=100_000, num_rounds=4, seed=1
):
    """Return landed sums of multinomial rounds of i^-exponent and the true frequencies."""
    rng = np.random.default_rng(seed)
    distribution = np.arange(1, size + 1.0) ** -exponent
    counts = rng.multinomial(
        clients // num_rounds, distribution / distribution.sum(), size=num_rounds
    )
    spec = SketchSpec(rows, width, Schedule.parse(schedule), num_rounds, rng.bytes(32))
    sketches = [CountSketch(spec, m) for m in range(num_rounds)]
    for sketch, held in zip(sketches, counts, strict=True):
        sketch.add_range(1, held)
    return sketches, counts.sum(axis=0) / counts.sum()
