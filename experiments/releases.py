"""The largest error over the number of releases under central privacy, beside predictions.

d = 100,000 items, N = 1,000,000 clients in M = 64 multinomial rounds, each client in one of them,
one item each. The rounds are added up in m batches, every batch has signs of its own, and its sum
gets rounded Gaussian noise once: delta = 1e-6, zero-out. Noise comes from the package's sampler;
its keys come from the seed, as in any study.

Predicted from the population's frequencies alone, `experiments.curves`; the study is that
of the design, with random hashes, 2 (16 rows) or 4 campaigns a cell, and standard errors of 1 to 50
%. An error is the largest of any frequency (l_inf), its median over campaigns. The paper's decoder
with 5 rows is decided by collisions of a few heavy items, and spreads by a factor of two between
campaigns.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from experiments import curves, options, output, recovery, rounds
from experiments.curves import Release
from experiments.privacy import add_noise
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.privacy.events import Event
from fedtally.privacy.mechanism import rounded_gaussian
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import Schedule

ROUNDS, DELTA = 64, 1e-6
BATCHES = (1, 2, 4, 8, 16, 32, 64)
DECODERS = ("median", "joint")

# Figures of the design study, x 1e-5, at these numbers of batches, for joint recovery not always
# all: population, size, epsilon; paper's decoder | joint.
FIGURES = """
    1.1 16x500 .25   92 40 41 37 44 58 70       18 15 17 20 29
    1.1 16x500 1     88 42 32 30 24 22 24       17 9.6 6.8 6.5 8.4 11 16
    1.1 16x500 4     88 40 34 28 22 17 12       16 9.1 5.2 3.5 3.7
    zm  16x500 1     108 49 41 31 27 24 27      22 12 7.7 7.6 8.8 11 15
    2   16x500 .25   12 13 20 29 34 50 68       7.1 9.6 14 20 28
    2   16x500 1     7.5 4.9 6.0 8.0 10 14 19   2.0 2.7 3.9 5.2 8.3 11 15
    2   16x500 4     7.3 2.8 2.4 3.0 3.5 4.4 6.8    .62 .87 1.1 1.4 2.1
    1.1 5x2000 1     303 173 108 90 67 52 31    13 8.6 6.2 6.8 8.3 11 16
    2   5x2000 1     72 21 14 18 29 15 20       2.1 2.7 4.0 5.4 7.8 11 16
    3   5x2000 1     5.7 7.6 5.6 8.0 9.7 15 20  2.0 2.7 3.8 5.6 7.5 11 16
"""


class Cell(NamedTuple):
    """A population, a sketch and epsilon, and the study's errors by decoder and batches."""

    law: str
    rows: int
    width: int
    epsilon: float
    figures: dict[str, dict[int, float]]


def study() -> list[Cell]:
    """Return the cells of the study.

    >>> cell = study()[0]
    >>> cell[:4], cell.figures["joint"]
    (('1.1', 16, 500, 0.25), {1: 18.0, 2: 15.0, 4: 17.0, 8: 20.0, 16: 29.0})
    """
    cells = []
    for line in FIGURES.strip().splitlines():
        law, size, epsilon, *figures = line.split()
        rows, width = (int(number) for number in size.split("x"))
        numbers = [float(figure) for figure in figures]
        halves = (numbers[: len(BATCHES)], numbers[len(BATCHES) :])
        found = {
            name: dict(zip(BATCHES, half, strict=False))
            for name, half in zip(DECODERS, halves, strict=True)
        }
        cells.append(Cell(law, rows, width, float(epsilon), found))
    return cells


def measure(
    population: rounds.F64,
    release: Release,
    width: int,
    batches: tuple[int, ...],
    seed: tuple[int, int],
) -> dict[str, dict[int, float]]:
    """Return the largest error of both decoders, by number of batches, of one campaign.

    Args:
        population: float64 [d], sums to 1; its items are shuffled.
        release: sizes and noise.
        width: of the sketch.
        batches: numbers of batches.
        seed: of everything that is random; all numbers of batches meet the same clients and
            locations.
    """
    rng = np.random.default_rng(seed)
    held = rounds.draw(rng.permutation(population), release.num_clients, release.num_rounds, rng)
    truth, size, public = held.sum(axis=0), len(population), rng.bytes(32)
    errors: dict[str, dict[int, float]] = {name: {} for name in DECODERS}
    for m in batches:
        together = Schedule.parse(f"batched:{m}").batches_of(release.num_rounds)
        sums = np.stack([held[batch.start : batch.stop].sum(axis=0) for batch in together])
        sketches = recovery.land(sums, release.event.rows, width, "hybrid", public)
        add_noise(sketches, rounded_gaussian(release.noise(m) ** 2), rng)
        domain = IntegerRange(rounds.FIRST_ID, size)
        decoders: tuple[MedianDecoder | JointDecoder, ...] = (
            MedianDecoder(sketches, expected=size),
            JointDecoder(sketches, domain),
        )
        for name, decoder in zip(DECODERS, decoders, strict=True):
            errors[name][m] = float(
                np.abs(decoder.range(rounds.FIRST_ID, size) - truth).max()
            ) / float(truth.sum())
    return errors


def compare(
    cell: Cell, batches: tuple[int, ...], clients: int, size: int, repeats: int, seed: int
) -> tuple[list[dict[str, object]], list[str]]:
    """Return rows, one for each number of batches, and a line on each decoder's best.

    Args:
        cell: of the study.
        batches: numbers of batches.
        clients: of all rounds together.
        size: of the domain.
        repeats: campaigns.
        seed: as in `measure`.
    """
    population = recovery.law(cell.law, size)
    # Names are accepted, too.
    event = Event("rounded-gaussian", cell.rows, "zero-out")  # type: ignore[arg-type]
    release = Release(event, cell.epsilon, DELTA, clients, ROUNDS)
    runs = [
        measure(population, release, cell.width, batches, (seed, repeat))
        for repeat in range(repeats)
    ]
    table: dict[int, dict[str, object]] = {
        m: {
            "law": cell.law,
            "rows": cell.rows,
            "width": cell.width,
            "epsilon": cell.epsilon,
            "batches": m,
        }
        for m in batches
    }
    lines = []
    for name in DECODERS:
        seen = {
            m: float(np.median([run[name][m] for run in runs])) / recovery.UNIT for m in batches
        }
        predicted = curves.errors_by_law(
            release, cell.width, population, recovery=name, batches=batches
        )
        for m, row in table.items():
            row |= {
                name: seen[m],
                f"{name} predicted": predicted[m].linf / recovery.UNIT,
                f"{name} study": cell.figures[name].get(m, np.nan),
            }
        curve = curves.errors_by_law(release, cell.width, population, recovery=name)
        found = curves.best_releases(curve).num_batches
        tail = ""
        if name == "median":
            norm = curves.tail_norm(population, cell.width)
            by_tail = curves.best_releases(
                curves.errors_by_tail(release, cell.width, norm, size)
            ).num_batches
            tail = f"; {by_tail} by the norm of the tail"
        best = min(seen, key=lambda m: seen[m])
        near = "within a factor of 2" if best / 2 <= found <= 2 * best else "FURTHER OFF"
        lines.append(
            f"{cell.law} {cell.rows}x{cell.width} epsilon {cell.epsilon:g}, {name}: best at {best}"
            f" of {', '.join(map(str, batches))}; predicted at {found}, {near}{tail}; gain over 1"
            f" batch {seen[min(seen)] / seen[best]:.1f}, over {max(seen)}"
            f" {seen[max(seen)] / seen[best]:.1f}"
        )
    return list(table.values()), lines


@click.command("releases")
@options.quick(laws=("2",), sizes=("16x500",), epsilons=(1.0,), repeats=1)
@options.laws(help="An exponent, or zm.  [default: all of the study]")
@options.sizes(help="Rows x width.  [default: all of the study]")
@click.option(
    "--epsilon", "epsilons", multiple=True, type=float, help="[default: all of the study]"
)
@click.option("--batches", multiple=True, type=click.IntRange(1, ROUNDS), default=BATCHES)
@options.domain_size(recovery.SIZE)
@options.clients(recovery.CLIENTS)
@options.repeats(3)
@options.seed
@options.table
def command(
    laws: tuple[str, ...],
    sizes: tuple[str, ...],
    epsilons: tuple[float, ...],
    batches: tuple[int, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    seed: int,
    path: Path | None,
) -> None:
    """Measure both decoders' largest errors over the number of releases, beside predictions."""
    output.check_path(path)
    chosen = [
        cell
        for cell in study()
        if (not laws or cell.law in laws)
        and (not sizes or f"{cell.rows}x{cell.width}" in sizes)
        and (not epsilons or cell.epsilon in epsilons)
    ]
    if not chosen:
        raise InvalidInputError("the study has no such cell: choose other laws, sizes or epsilons")
    table: list[dict[str, object]] = []
    lines: list[str] = []
    for cell in chosen:
        rows, about = compare(
            cell, tuple(sorted(set(batches))), clients, domain_size, repeats, seed
        )
        table += rows
        lines += about
    click.echo(f"errors x 1e-5, median of {repeats} campaigns, {ROUNDS} rounds")
    output.show(table)
    for line in lines:
        click.echo(line)
    output.save(table, path)
