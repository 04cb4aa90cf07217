"""The bytes that belief propagation saves: sizes that a target needs, beside joint recovery.

The frequencies are known, and the planner chooses a size for a target that nine in ten campaigns
are to keep, once for each decoder. Beside that of belief propagation stands the least width that so
many rows need, found by simulation: campaigns with new hashes and clients, and the width is
bisected for the least, within 3 %, at which nine in ten of them keep the target. `success` is the
share of other campaigns that keep it at the size that was chosen.

A line passes if the size that was chosen is .96 to 1.3 times the least, and if the success is not
below the 1 % quantile of what nine in ten leads to.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from experiments import options, recovery, rounds, study
from experiments.limit import population
from experiments.planner import GRID, P, keeps
from fedtally.domain import IntegerRange
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.predictor import Predictor
from fedtally.plan.sizes import size_by_model
from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.sketch import Schedule, SketchSpec

BAND = 0.96, 1.3
_WIDER = 1.15  # steps to a width that suffices
_NARROWER = 0.8  # steps to one that does not


class Task(NamedTuple):
    """A target.

    Attributes:
        law: an exponent, zm, lognormal or plateaus.
        schedule: shared, fresh, hybrid or batched:B.
        tau: the target: the largest error.
        size: candidates.
        clients: of all ten rounds.
        draws: campaigns of each width, in the search for the least; 0 for no search.
        trials: campaigns at the size that is chosen.
        seed: of the experiment.
    """

    law: str
    schedule: str
    tau: float
    size: int
    clients: int
    draws: int
    trials: int
    seed: int

    @property
    def frequencies(self) -> rounds.F64:
        """The population."""
        rng = np.random.default_rng([self.seed, zlib.crc32(self.law.encode())])
        return population(self.law, self.size, rng)

    def keeps(self, rows: int, width: int, number: int) -> bool:
        """Run a campaign, by its number, and return whether its largest error is at most tau."""
        rng = np.random.default_rng([self.seed, rows, width, number])
        held = recovery.draw(self.frequencies, self.clients, "alike", rng)
        sketches = recovery.land(held, rows, width, self.schedule, rng.bytes(32))
        domain = IntegerRange(rounds.FIRST_ID, self.size)
        found = BeliefDecoder(sketches, domain).range(rounds.FIRST_ID, self.size)
        errors = found - held.sum(axis=0)
        return bool(np.abs(errors).max() <= self.tau * self.clients * (1 + 1e-9))

    def least_width(self, rows: int, guess: int) -> int:
        """Return the least width that suffices, within 3 %; from a guess outwards."""
        allowed = int(self.draws * P + 1e-9)

        @cache
        def suffices(width: int) -> bool:
            failed = 0
            for number in range(self.draws):
                failed += not self.keeps(rows, width, number)
                if failed > allowed:
                    return False
            return True

        high = guess
        while not suffices(high):
            high = max(high + 1, round(_WIDER * high))
        low = high - 1 if high > guess else max(1, round(_NARROWER * high))
        while low > 1 and suffices(low):
            low, high = max(1, min(low - 1, round(_NARROWER * low))), low
        while high > low + 1 and high / low > GRID:
            middle = min(max(round((low * high) ** 0.5), low + 1), high - 1)
            low, high = (low, middle) if suffices(middle) else (middle, high)
        return high


def measure(task: Task) -> list[study.Row]:
    """Choose sizes, look for the least, and run campaigns at what was chosen."""
    known = Frequencies.from_frequencies(task.frequencies)
    chosen, joint = (
        size_by_model(
            known,
            task.tau,
            Predictor(task.clients, task.schedule, recovery.ROUNDS, recovery=decoder),
            p=P,
        )
        for decoder in ("belief", "joint")
    )
    spec = SketchSpec(
        chosen.rows, chosen.width, Schedule.parse(task.schedule), recovery.ROUNDS, bytes(32)
    )
    first = 10_000  # other campaigns than those of the search
    kept = sum(
        task.keeps(chosen.rows, chosen.width, first + number) for number in range(task.trials)
    )
    return [
        {
            "seed": task.seed,
            "plan": study.describe(spec, task.clients),
            **{name: getattr(task, name) for name in ("law", "schedule", "tau")},
            "joint": f"{joint.rows}x{joint.width}",
            "belief": f"{chosen.rows}x{chosen.width}",
            "fewer bytes": joint.cells / chosen.cells,
            "over least": (
                chosen.width / task.least_width(chosen.rows, chosen.width) if task.draws else None
            ),
            "kept": kept,
            "trials": task.trials,
        }
    ]


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return a line for each target: both sizes, their ratio, and a verdict on belief's."""
    table: list[study.Row] = []
    shown = ("law", "schedule", "tau", "joint", "belief", "fewer bytes", "over least")
    for row in rows:
        line = {name: row[name] for name in shown} | {"success": row["kept"] / row["trials"]}
        is_near = row["over least"] is None or BAND[0] <= row["over least"] <= BAND[1]
        passes = is_near and keeps(row["kept"], row["trials"])
        table.append(line | {"verdict": "PASS" if passes else "MISS"})
    return {"sizes that were chosen, and the share of campaigns within tau": table}


def tasks(
    laws: Sequence[str],
    schedules: Sequence[str],
    taus: Sequence[float],
    size: int,
    clients: int,
    draws: int,
    trials: int,
    seed: int,
) -> list[Task]:
    """Return a task for each target."""
    return [
        Task(law, schedule, tau, size, clients, draws, trials, seed)
        for law in laws
        for schedule in schedules
        for tau in taus
    ]


@click.command("sizes")
@options.study(
    laws=("1.1",),
    schedules=("hybrid",),
    taus=(0.004,),
    domain_size=200,
    clients=20_000,
    draws=2,
    trials=4,
)
@options.laws(("1.1", "lognormal", "plateaus"), "An exponent, zm, lognormal or plateaus.")
@options.schedules(("hybrid", "shared"), "shared, fresh, hybrid or batched:B.")
@click.option("--tau", "taus", multiple=True, type=float, default=(0.0002, 0.001))
@options.domain_size(10_000)
@options.clients(1_000_000)
@click.option(
    "--draws",
    type=click.IntRange(0),
    default=100,
    help="Campaigns of each width, in the search for the least; 0 for no search.",
)
@click.option(
    "--trials", type=click.IntRange(1), default=200, help="Campaigns at the size that is chosen."
)
@options.seed
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    laws: tuple[str, ...],
    schedules: tuple[str, ...],
    taus: tuple[float, ...],
    domain_size: int,
    clients: int,
    draws: int,
    trials: int,
    seed: int,
) -> None:
    """Compare the sizes that belief propagation and joint recovery need for the same target."""
    chosen = tasks(laws, schedules, taus, domain_size, clients, draws, trials, seed)
    about = (
        f"{domain_size:,} candidates, {clients:,} clients in ten rounds. {draws} campaigns of each"
        f" width in the search for the least, {trials} at the size that was chosen."
    )
    rows = study.run(
        study.Study("sizes", chosen, measure, summarise, None, about), folder, jobs, plot
    )
    [table] = summarise(rows).values()
    if any(line["verdict"] == "MISS" for line in table):
        sys.exit(1)
