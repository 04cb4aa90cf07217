"""The share of items whose error exceeds a size: predicted and simulated, with a verdict.

Every cell is a power law, a sketch, a number of rounds and a schedule. The size is the least, in
halves of a count, that a share of at most 1e-2, or 1e-3, is predicted to exceed; where it is a few
counts, the share may be well below. Simulated are campaigns of the paper's decoder, each with new
clients and hashes. The standard error is that over campaigns, since the items of one campaign err
together. A cell passes if the prediction is within 20 %.
"""

from __future__ import annotations

import bisect
import itertools
import math
import sys
from pathlib import Path

import click
import numpy as np

from experiments import options, output, recovery, rounds
from fedtally.recovery import error_model
from fedtally.sketch import Schedule, SketchSpec

TOLERANCE = 0.2


def exceedance(law: rounds.F64, spec: SketchSpec, clients: int, size: float) -> float:
    """Return the share of items whose error is predicted to exceed a size, in counts.

    Args:
        law: float64 [d], sums to 1.
        spec: of the sketches.
        clients: of all rounds together.
        size: above 0.
    """
    given = {
        "rows": spec.rows,
        "width": spec.width,
        "schedule": spec.schedule,
        "num_rounds": spec.num_rounds,
    }
    return error_model.exceedance(law, size / clients, **given, num_clients=clients)


def least_size(law: rounds.F64, spec: SketchSpec, clients: int, share: float) -> float:
    """Return the least size, in half counts, that at most a share of items should exceed."""
    halves = bisect.bisect_left(
        range(1, 2 * clients),
        True,
        key=lambda size: exceedance(law, spec, clients, size / 2) <= share,
    )
    return (1 + halves) / 2


def errors(law: rounds.F64, spec: SketchSpec, clients: int, seed: int) -> rounds.F64:
    """Return the sizes of the errors of one campaign's estimates, in counts: float64 [d].

    Args:
        law: float64 [d], sums to 1.
        spec: of the sketches; its seed is replaced.
        clients: of all rounds together.
        seed: of everything that is random.
    """
    rng = np.random.default_rng((seed, spec.rows, spec.width, spec.num_rounds))
    held = rounds.draw(law, clients, spec.num_rounds, rng)
    estimates = rounds.estimate(held, spec.rows, spec.width, str(spec.schedule), rng.bytes(32))
    found: rounds.F64 = np.abs(estimates - held.sum(axis=0))
    return found


def compare(
    name: str,
    law: rounds.F64,
    spec: SketchSpec,
    clients: int,
    shares: tuple[float, ...],
    repeats: int,
) -> list[dict[str, object]]:
    """Return a row for each share."""
    sizes = [least_size(law, spec, clients, share) for share in shares]
    seen = np.zeros((repeats, len(shares)))
    for seed in range(repeats):
        found = errors(law, spec, clients, seed)
        seen[seed] = [np.mean(found > size) for size in sizes]
    table: list[dict[str, object]] = []
    for size, shares_seen in zip(sizes, seen.T, strict=True):
        expected, mean = exceedance(law, spec, clients, size), float(shares_seen.mean())
        stddev = float(shares_seen.std(ddof=1)) if repeats > 1 else math.nan
        row: dict[str, object] = {
            "law": name,
            "rounds": spec.num_rounds,
            "schedule": str(spec.schedule),
        }
        row |= {
            "rows": spec.rows,
            "width": spec.width,
            "size": size,
            "predicted": expected,
            "simulated": mean,
        }
        ratio = expected / mean if mean else math.nan
        row |= {
            "ratio": ratio,
            "error": ratio * stddev / mean / math.sqrt(repeats) if mean else math.nan,
        }
        row["verdict"] = "PASS" if abs(ratio - 1) <= TOLERANCE else "MISS"
        table.append(row)
    return table


@click.command("exceedance")
@options.quick(laws=("1.2",), rows=(5,), numbers=(1,), domain_size=5_000, clients=10_000, repeats=4)
@options.laws(("1.05", "1.2", "2"))
@click.option("--rows", multiple=True, type=int, default=(5, 15, 16))
@click.option("--width", "widths", multiple=True, type=int, default=(200,))
@click.option("--rounds", "numbers", multiple=True, type=int, default=(1, 10))
@options.schedules(("shared", "hybrid", "fresh"), help="Of several rounds.")
@click.option("--share", "shares", multiple=True, type=float, default=(1e-2, 1e-3))
@options.domain_size(recovery.SIZE)
@options.clients(100_000)
@options.repeats(40)
@options.table
def command(
    laws: tuple[str, ...],
    rows: tuple[int, ...],
    widths: tuple[int, ...],
    numbers: tuple[int, ...],
    schedules: tuple[str, ...],
    shares: tuple[float, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    path: Path | None,
) -> None:
    """Compare predicted with simulated shares of items with large errors; exit 1 if one is off."""
    output.check_path(path)
    table: list[dict[str, object]] = []
    for name in laws:
        law = recovery.law(name, domain_size)
        for number, height, width in itertools.product(numbers, rows, widths):
            # of one round all schedules are the same
            for schedule in schedules if number > 1 else ("shared",):
                spec = SketchSpec(height, width, Schedule.parse(schedule), number, bytes(32))
                table += compare(name, law, spec, clients, shares, repeats)
    output.show(table)
    verdicts = [row["verdict"] for row in table]
    click.echo(f"{verdicts.count('PASS')} PASS, {verdicts.count('MISS')} MISS")
    output.save(table, path)
    if "MISS" in verdicts:
        sys.exit(1)


if __name__ == "__main__":
    command()
