"""Windows of a fit, and plans of which few rounds landed, on one thread, as ratios in one run.

The campaign has 48 rounds of 5,000 clients, d = 20,000 items that double or halve after two thirds
of the rounds, and a hybrid sketch of 5 x 400. A fit is belief propagation over all rounds; under
noise joint recovery answers. A window of it is its decoder, the rest of the history and what is
learned of both. Both end with an estimate of every candidate. Seconds are of CPU; cases take turns,
and a ratio compares the fastest turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import click
import numpy as np
from experiments import drift, rounds

from benchmarks.joint import in_turns
from benchmarks.measure import Goal, Report, environment, machine
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.recovery.windows import WindowedDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

LENGTHS = (1, 4, 12)  # of windows, in rounds
LONG = 2**20  # rounds of the longest plan
NOISE = 10.0  # standard deviation of each counter of a round


class Scale(NamedTuple):
    """The size of a run: rounds, clients of each, items, counters of a row, turns."""

    num_rounds: int
    clients: int
    size: int
    width: int
    turns: int


FULL, QUICK = Scale(48, 5000, 20_000, 400, 7), Scale(16, 1000, 2000, 100, 1)


def campaign(scale: Scale, noise: float) -> drift.Stream:
    """Return the campaign, with noise on its counters."""
    rng = np.random.default_rng(1)
    laws = drift.laws("step", scale.num_rounds, scale.size, rng)
    counts = drift.deal(laws, scale.clients, rng)
    return drift.land(laws, counts, (5, scale.width), noise, rng)


def windows(report: Report, scale: Scale, noise: float) -> None:
    """Compare windows of a fit with the fit."""
    stream = campaign(scale, noise)

    def fit() -> BeliefDecoder:
        decoder = BeliefDecoder(stream.sketches, stream.domain)
        decoder.range(rounds.FIRST_ID, scale.size)
        return decoder

    fitted, name = fit(), f"noise {noise:g}: fit of {scale.num_rounds} rounds"
    places = np.arange(scale.num_rounds)

    def window(length: int) -> Callable[[], object]:
        def run() -> object:
            chosen = places >= scale.num_rounds - length
            one, rest = fitted.window(chosen), fitted.window(~chosen, learned=False)
            joined = WindowedDecoder(one, rest, stream.domain)
            return joined.range(rounds.FIRST_ID, scale.size)

        return run

    cases = {f"noise {noise:g}: last:{length}": window(length) for length in LENGTHS}
    whole, *parts = in_turns({name: fit, **cases}, scale.turns)
    report.rates += [whole, *parts]
    for one in parts:
        report.goals.append(Goal(f"{one.name} / fit", one.best / whole.best, 0.25, "x", True))
    if fitted.fallback:
        report.notes.append(f"noise {noise:g}: joint recovery answers, since {fitted.fallback}")


def long_plans(report: Report, scale: Scale) -> None:
    """Compare plans of as many rounds as landed and of very many."""
    counts = campaign(scale, 0.0).counts
    rng = np.random.default_rng(2)
    late = np.sort(rng.choice(LONG, scale.num_rounds, replace=False))

    def decode(num_rounds: int, landed: list[int]) -> Callable[[], object]:
        hybrid = Schedule.parse("hybrid")
        spec = SketchSpec(5, scale.width, hybrid, num_rounds, bytes(range(32)))
        sketches = [CountSketch(spec, number) for number in landed]
        for sketch, held in zip(sketches, counts, strict=True):
            sketch.add_range(rounds.FIRST_ID, held)

        def run() -> object:
            domain = IntegerRange(rounds.FIRST_ID, scale.size)
            return BeliefDecoder(sketches, domain).range(rounds.FIRST_ID, scale.size)

        return run

    name = f"{scale.num_rounds} landed rounds of a plan of "
    cases = {
        f"{name}{scale.num_rounds}": decode(scale.num_rounds, [*range(scale.num_rounds)]),
        f"{name}2^20": decode(LONG, late.tolist()),
    }
    short, long = in_turns(cases, scale.turns)
    report.rates += [short, long]
    report.goals.append(
        Goal(f"{name}2^20 / {scale.num_rounds}", long.best / short.best, 1.3, "x", True)
    )


@click.command("windows")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quick", is_flag=True, help="Few clients and items, once: shows that it runs.")
def command(as_json: bool, quick: bool) -> None:
    """Time windows of a fit against the fit, and long plans against short ones."""
    scale = QUICK if quick else FULL
    report = Report(machine(), judges=not quick)
    with environment(FEDTALLY_NUM_THREADS="1"):
        for noise in (0.0, NOISE):
            windows(report, scale, noise)
        long_plans(report, scale)
    report.emit(as_json)
