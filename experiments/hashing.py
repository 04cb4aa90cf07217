"""Whether simple tabulation behaves like fully random hashing: the law of the largest error.

Tabulation words are exactly 3-wise independent, not more; that is what the variance of a row needs,
but the median over rows and the maximum over items see the whole distribution. For each schedule
and each law f_i ~ i^-a over homogeneous rounds, l_inf is measured over repeats with tabulation and
with fully random locations and signs; a two-sample Kolmogorov-Smirnov test compares the two
samples. A small p-value says that the hashes show. Quantiles jump between few values where a is
large, because the error is then that of a few heavy items.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from experiments import figure2, options, output
from fedtally.sketch import Schedule, ScheduleKind

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
SCHEDULES = ("shared", "fresh", "hybrid", "batched:2")


def kolmogorov_smirnov(first: F64, second: F64) -> float:
    """Return the asymptotic two-sided p-value that two samples are of one law (Stephens 1970).

    >>> round(kolmogorov_smirnov(np.arange(100.0), np.arange(100.0) + 30), 6)
    0.000174
    """
    points = np.concatenate([first, second])
    below = [
        np.searchsorted(np.sort(sample), points, side="right") / len(sample)
        for sample in (first, second)
    ]
    size = np.sqrt(len(first) * len(second) / (len(first) + len(second)))
    x = float(np.abs(below[0] - below[1]).max() * (size + 0.12 + 0.11 / size))
    if x < 0.2:  # the series needs many terms there, and is 1 to ten digits
        return 1.0
    k = np.arange(1, 101)
    return float(np.clip(2 * ((-1.0) ** (k - 1) * np.exp(-2 * (k * x) ** 2)).sum(), 0, 1))


def random_errors(
    vector: I64,
    num_rounds: int,
    rows: int,
    width: int,
    schedule: str,
    repeats: int,
    rng: np.random.Generator,
) -> F64:
    """Do as `figure2.largest_errors` with fully random locations and signs."""
    parsed = Schedule.parse(schedule)
    in_batch = np.bincount([parsed.batch_of(m, num_rounds) for m in range(num_rounds)])
    alone = (
        np.split(in_batch, num_rounds) if parsed.kind is ScheduleKind.FRESH else [in_batch]
    )  # what shares its locations
    errors = np.empty(repeats)
    for repeat in range(repeats):
        estimates = np.zeros(len(vector))
        for together in alone:
            estimates += _random_rows(vector, together, rows, width, rng)
        errors[repeat] = np.abs(estimates - num_rounds * vector).max() / (
            float(vector.sum()) * num_rounds
        )
    return errors


def _random_rows(
    vector: I64, in_batch: I64, rows: int, width: int, rng: np.random.Generator
) -> F64:
    """Estimate with one random set of locations and random signs for each batch: float64 [d]."""
    totals = np.empty((rows, len(vector)))
    for row in totals:
        cells = rng.integers(width, size=len(vector))
        signs = rng.integers(2, size=(len(in_batch), len(vector))) * 2 - 1
        row[:] = 0
        for weight, sign in zip(in_batch, signs, strict=True):
            row += (
                sign
                * np.bincount(
                    cells, weights=sign * (weight * vector.astype(np.float64)), minlength=width
                )[cells]
            )
    median: F64 = np.median(totals, axis=0)
    return median


def measure(
    exponents: tuple[float, ...],
    size: int,
    num_rounds: int,
    rows: int,
    width: int,
    repeats: int,
    seed: int,
) -> list[dict[str, object]]:
    """Return the p-value and quantiles of l_inf under both hashes, by exponent and schedule."""
    table: list[dict[str, object]] = []
    for exponent in exponents:
        vector = figure2.integer_zipf(exponent, size)
        for schedule in SCHEDULES:
            arguments = (
                vector,
                num_rounds,
                rows,
                width,
                schedule,
                repeats,
                np.random.default_rng([seed, len(table)]),
            )
            tabulated, independent = figure2.largest_errors(*arguments), random_errors(*arguments)
            row: dict[str, object] = {
                "a": exponent,
                "schedule": schedule,
                "p": kolmogorov_smirnov(tabulated, independent),
            }
            for q in (0.5, 0.9, 0.99):
                row[f"q{q * 100:g} tabulation"] = float(np.quantile(tabulated, q))
                row[f"q{q * 100:g} random"] = float(np.quantile(independent, q))
            table.append(row)
    return table


@click.command("hashing")
@options.quick(domain_size=200, repeats=20)
@click.option("-a", "--exponent", "exponents", type=float, multiple=True, default=(1.1, 2.0, 3.0))
@options.domain_size(2000)
@click.option("--rounds", "num_rounds", default=10, type=click.IntRange(2, 16))
@click.option("--rows", default=5)
@click.option("--width", default=50)
@options.repeats(200)
@options.seed
@options.table
def command(
    exponents: tuple[float, ...],
    domain_size: int,
    num_rounds: int,
    rows: int,
    width: int,
    repeats: int,
    seed: int,
    path: Path | None,
) -> None:
    """Compare tabulation with fully random hashes: Kolmogorov-Smirnov tests of the error."""
    output.check_path(path)
    table = measure(exponents, domain_size, num_rounds, rows, width, repeats, seed)
    output.show(table)
    smallest = min(float(str(row["p"])) for row in table)
    expected = f"expected about {1 / (len(table) + 1):.2g} if the hashes do not show"
    click.echo(f"smallest of {len(table)} p-values: {smallest:.3g}; {expected}")
    output.save(table, path)
