"""The paper's Figure 2: the largest error of the schedules when all rounds hold the same vector f_i ~ i^-a."""

from __future__ import annotations

import time
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from experiments import output, rounds

F64 = npt.NDArray[np.float64]
SCHEDULES = ("shared", "fresh", "hybrid")
SCALE = (
    2**48
)  # one round's vector sums to about this, so that 10 rounds stay exact in double precision; resolution 4e-15


def integer_zipf(exponent: float, size: int) -> npt.NDArray[np.int64]:
    """Return f_i proportional to i^-exponent as integers that sum to about SCALE: int64 [size]."""
    law = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    vector: npt.NDArray[np.int64] = np.rint(law / law.sum() * SCALE).astype(np.int64)
    return vector


def largest_errors(
    vector: npt.NDArray[np.int64],
    num_rounds: int,
    rows: int,
    width: int,
    schedule: str,
    repeats: int,
    rng: np.random.Generator,
) -> F64:
    """Return the l_inf error of the frequencies in each of `repeats` campaigns with fresh hashes: float64 [repeats]."""
    held = np.broadcast_to(vector, (num_rounds, len(vector)))
    total = float(vector.sum()) * num_rounds
    errors = np.empty(repeats)
    for repeat in range(repeats):
        estimates = rounds.estimate(held, rows, width, schedule, rng.bytes(32))
        errors[repeat] = np.abs(estimates - num_rounds * vector).max() / total
    return errors


def measure(
    exponents: tuple[float, ...],
    widths: tuple[int, ...],
    size: int,
    num_rounds: int,
    rows: int,
    repeats: int,
    seed: int,
) -> list[dict[str, object]]:
    """Return one row per exponent, width and schedule: mean, median and 90 % quantile of l_inf."""
    table: list[dict[str, object]] = []
    for exponent in exponents:
        vector = integer_zipf(exponent, size)
        for width in widths:
            for schedule in SCHEDULES:
                start = time.perf_counter()
                errors = largest_errors(
                    vector, num_rounds, rows, width, schedule, repeats, np.random.default_rng([seed, len(table)])
                )
                milliseconds = (time.perf_counter() - start) / repeats * 1e3
                low, high = (float(q) for q in np.quantile(errors, [0.5, 0.9]))
                table.append(
                    {
                        "a": exponent,
                        "width": width,
                        "schedule": schedule,
                        "mean": float(errors.mean()),
                        "median": low,
                        "q90": high,
                    }
                    | {"ms per repeat": milliseconds}
                )
    return table


def draw_chart(table: list[dict[str, object]], path: Path) -> None:
    """Draw one panel per exponent: mean l_inf over the width."""
    from matplotlib.figure import Figure

    exponents = sorted({float(str(row["a"])) for row in table})
    figure = Figure(figsize=(3.5 * len(exponents), 3.2), layout="constrained")
    for axes, exponent in zip(figure.subplots(1, len(exponents), squeeze=False)[0], exponents, strict=True):
        for schedule in SCHEDULES:
            chosen = [row for row in table if row["a"] == exponent and row["schedule"] == schedule]
            axes.loglog([row["width"] for row in chosen], [row["mean"] for row in chosen], marker="o", label=schedule)
        axes.set(title=f"a = {exponent:g}", xlabel="width", ylabel="mean largest error")
        axes.legend()
    figure.savefig(path)


@click.command("figure2")
@click.option("-a", "--exponent", "exponents", type=float, multiple=True, default=(1.1, 2.0, 3.0, 5.0))
@click.option("--width", "widths", type=int, multiple=True, default=(50, 100, 200, 400, 800))
@click.option("--domain-size", default=100_000)
@click.option("--rounds", "num_rounds", default=10, type=click.IntRange(1, 16))
@click.option("--rows", default=5)
@click.option("--repeats", default=100, help="The paper takes 1,000.")
@click.option("--seed", default=0)
@click.option("--output", "path", type=click.Path(path_type=Path), help="Also write the table: .csv or .parquet.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw it.")
def command(
    exponents: tuple[float, ...],
    widths: tuple[int, ...],
    domain_size: int,
    num_rounds: int,
    rows: int,
    repeats: int,
    seed: int,
    path: Path | None,
    plot: Path | None,
) -> None:
    """Compare the largest error of the schedules on homogeneous rounds."""
    output.check_path(path)
    table = measure(exponents, widths, domain_size, num_rounds, rows, repeats, seed)
    output.show(table)
    output.save(table, path)
    if plot is not None:
        draw_chart(table, plot)
