"""The paper's Figure 3: the widths at which the schedules leave about equally many items badly estimated.

C4, N = 150,000, M = 10, L = 5: clients are drawn independently from the law of C4's web domains (a surrogate: see the
data folder's README), 15,000 in each round. An item is badly estimated when its estimated frequency is off by more than
0.1 / width, the width of its own sketch, from its frequency among the drawn clients.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from experiments import output, rounds
from fedtally.errors import InvalidInputError

F64 = npt.NDArray[np.float64]
FILE = "c4_count_surrogate.npz"
ROOT = Path(__file__).parents[1]
TOLERANCE = 0.10  # of the mean over seeds against the expected number


class Point(NamedTuple):
    """A sketch of the figure and the number of items that it is known to leave badly estimated."""

    schedule: str
    width: int
    expected: int


POINTS = (Point("hybrid", 200, 1459), Point("fresh", 600, 1381), Point("shared", 1200, 1713))


def load_law(folder: Path | None) -> F64:
    """Return the law of C4's domains, float64 [150868].

    Args:
        folder: where the file is; FEDTALLY_DATA, or ../shared/data beside the repository, if absent.

    Raises:
        InvalidInputError: the file is not there.
    """
    where = folder or Path(os.environ.get("FEDTALLY_DATA") or ROOT.parent / "shared" / "data")
    path = where if where.suffix == ".npz" else where / FILE
    if not path.is_file():
        raise InvalidInputError(
            f"{path} does not exist: name the folder of {FILE} with --data or the environment variable FEDTALLY_DATA"
        )
    with np.load(path) as arrays:
        law: F64 = arrays["pmf"]
    return law


def count_bad(law: F64, point: Point, num_clients: int, num_rounds: int, rows: int, rng: np.random.Generator) -> int:
    """Run one campaign and count the items whose error exceeds 0.1 / width."""
    held = rounds.draw(law, num_clients, num_rounds, rng)
    estimates = rounds.estimate(held, rows, point.width, point.schedule, rng.bytes(32))
    errors = np.abs(estimates - held.sum(axis=0)) / held.sum()
    return int(np.count_nonzero(errors > 0.1 / point.width))


def measure(law: F64, num_clients: int, repeats: int, seed: int) -> list[dict[str, object]]:
    """Return one row per point of the figure: the mean over `repeats` campaigns beside the expected number."""
    table: list[dict[str, object]] = []
    for point in POINTS:
        bad = [
            count_bad(law, point, num_clients, 10, 5, np.random.default_rng([seed, repeat]))
            for repeat in range(repeats)
        ]
        ratio = float(np.mean(bad)) / point.expected
        table.append(
            {
                "schedule": point.schedule,
                "width": point.width,
                "items": float(np.mean(bad)),
                "std": float(np.std(bad)),
                "expected": point.expected,
                "ratio": ratio,
                "within 10 %": "yes" if abs(ratio - 1) <= TOLERANCE else "no",
            }
        )
    return table


def draw_chart(table: list[dict[str, object]], path: Path) -> None:
    """Draw measured and expected numbers side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(table))
    axes.bar(places - 0.2, [row["items"] for row in table], 0.4, yerr=[row["std"] for row in table], label="measured")  # type: ignore[arg-type]
    axes.bar(places + 0.2, [row["expected"] for row in table], 0.4, label="expected")  # type: ignore[arg-type]
    axes.set_xticks(places, [f"{row['schedule']}, W = {row['width']}" for row in table])
    axes.set_ylabel("items with error > 0.1 / W")
    axes.legend()
    figure.savefig(path)


@click.command("figure3")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help=f"Folder of {FILE}, or the file. [default: FEDTALLY_DATA or ../shared/data]",
)
@click.option("--clients", default=150_000, help="All rounds together; the expected numbers are for 150,000.")
@click.option("--repeats", default=10, help="Campaigns to average, each with clients and hashes of its own.")
@click.option("--seed", default=0)
@click.option("--output", "path", type=click.Path(path_type=Path), help="Also write the table: .csv or .parquet.")
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw it.")
def command(data: Path | None, clients: int, repeats: int, seed: int, path: Path | None, plot: Path | None) -> None:
    """Count the badly estimated items of hybrid, fresh and shared sketches on C4."""
    output.check_path(path)
    law = load_law(data)
    start = time.perf_counter()
    table = measure(law, clients, repeats, seed)
    output.show(table)
    size = f"{len(law):,} items, {clients:,} clients in 10 rounds, 5 rows, {repeats} repeats"
    click.echo(f"{size}, {time.perf_counter() - start:.1f} s")
    output.save(table, path)
    if plot is not None:
        draw_chart(table, plot)
