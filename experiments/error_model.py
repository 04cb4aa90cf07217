"""The error predicted for a plan before it runs, beside that of simulated campaigns.

Every cell of the grid is a population, a sketch, a schedule and a level of noise. Predicted from
the population's frequencies alone (`fedtally.recovery.error_model`); measured as the median over
seeds. Items are shuffled for every seed, so that no decoder can profit from their order. With
--data, cells of real tables are added, on which no choice in the model rests.

The scale of joint recovery is the root mean square error of clearly fitted items, where there are
at least 5; of the median, the .95 quantile of all errors over 1.96.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np

from experiments import options, output, rounds
from experiments.recovery import law
from fedtally.domain import IntegerRange
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.error_model import predict
from fedtally.sketch import CountSketch, Schedule, SketchSpec

ROUNDS = 10
# A table's file, the array or column of counts in it, and the number of clients.
TABLES = {
    "gowalla": ("gowalla_us_grid.npz", "reconstructed", 175_000),
    "brightkite": ("brightkite_us_grid.npz", "counts", 175_000),
    "c4": ("c4_count_surrogate.npz", "pmf", 150_000),
    "sentiment140": ("sentiment140_words.parquet", "count", 659_490),
}
HIDDEN = {
    f"{recovery} scale {what}"
    for recovery in ("joint", "median")
    for what in ("predicted", "measured")
}  # in files
CLEARLY = 8.0  # standard deviations by which an item is clearly fitted
EXACT = 3.0  # clients: a smaller largest error is of the exact regime
Sources = list[tuple[str, rounds.F64, int]]


def tables(folder: Path) -> Sources:
    """Return name, population frequencies float64 [d] and number of clients of the real tables.

    Raises:
        InvalidInputError: a file is not there.
    """
    found: Sources = []
    for name, (file, field, clients) in TABLES.items():
        path = folder / file
        if not path.is_file():
            raise output.MissingDataError(
                f"{path} does not exist: name the folder of the real tables with --data"
            )
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                counts = arrays[field].reshape(-1).astype(np.float64)
        else:
            from pyarrow import parquet

            counts = parquet.read_table(path)[field].to_numpy().astype(np.float64)
        found.append((name, counts / counts.sum(), clients))
    return found


def measure(
    population: rounds.F64, spec: SketchSpec, noise: float, clients: int, seed: int
) -> dict[str, float]:
    """Run one campaign and return its errors, in frequencies.

    Args:
        population: float64 [d], sums to 1.
        spec: of the sketches; its seed is replaced.
        noise: standard deviation of the noise in each counter of each round's sum, in counts;
            rounded to integers.
        clients: of all rounds together.
        seed: of everything that is random.
    """
    rng = np.random.default_rng((seed, spec.rows, spec.width))
    held = rounds.draw(rng.permutation(population), clients, spec.num_rounds, rng)
    spec = SketchSpec(spec.rows, spec.width, spec.schedule, spec.num_rounds, rng.bytes(32))
    sketches = []
    for m, weights in enumerate(held):
        sketch = CountSketch(spec, m)
        sketch.add_range(rounds.FIRST_ID, weights)
        sketch.counters += np.rint(rng.normal(0.0, noise, sketch.counters.shape)).astype(np.int64)
        sketches.append(sketch)
    total, truth = int(held.sum()), held.sum(axis=0)
    joint = JointDecoder(sketches, IntegerRange(rounds.FIRST_ID, len(population)))
    errors = np.abs(joint.range(rounds.FIRST_ID, len(population)) - truth) / total
    items = joint.fit.leave_one_out(range(rounds.FIRST_ID, rounds.FIRST_ID + len(population)))
    clear = items.fitted & (items.values * np.sqrt(items.share) > CLEARLY * joint.fit.scale)
    fitted = (items.values - truth / total)[clear]
    medians = (
        np.abs(MedianDecoder(sketches).range(rounds.FIRST_ID, len(population)) - truth) / total
    )
    return {
        "joint linf": float(errors.max()),
        "joint scale": float(np.sqrt(np.mean(fitted**2))) if len(fitted) >= 5 else np.nan,
        "support": float(joint.support_size),
        "median linf": float(medians.max()),
        "median scale": float(np.quantile(medians, 0.95)) / 1.96,
    }


def compare(
    source: tuple[str, rounds.F64, int], spec: SketchSpec, noise: float, repeats: int
) -> tuple[dict[str, object], dict[str, tuple[float, float]]]:
    """Return a row of the table, and predicted and measured values by name."""
    name, population, clients = source
    runs = [measure(population, spec, noise, clients, seed) for seed in range(repeats)]
    seen = {key: float(np.median([run[key] for run in runs])) for key in runs[0]}
    row: dict[str, object] = {
        "law": name,
        "rows": spec.rows,
        "width": spec.width,
        "schedule": str(spec.schedule),
    }
    row["noise"] = noise
    both: dict[str, tuple[float, float]] = {}
    for recovery in ("joint", "median"):
        expected = predict(
            population,
            rows=spec.rows,
            width=spec.width,
            schedule=spec.schedule,
            num_rounds=spec.num_rounds,
            num_clients=clients,
            noise=noise,
            recovery=recovery,
        )
        for what, value in (("linf", expected.linf), ("scale", expected.scale)):
            key = f"{recovery} {what}"
            both[key] = (value * clients, seen[key] * clients)
            row |= {
                f"{key} predicted": value,
                f"{key} measured": seen[key],
                f"{key} ratio": _ratio(*both[key]),
            }
        if recovery == "joint":
            row |= {"support predicted": expected.support, "support measured": seen["support"]}
    return row, both


def _ratio(predicted: float, measured: float) -> float:
    """Return predicted over measured, in clients; nan below a tenth of a measured client."""
    return predicted / measured if measured > 0.1 else np.nan


def summary(cells: Sequence[dict[str, tuple[float, float]]]) -> list[str]:
    """Return lines on predicted and measured values, in clients, for each regime."""
    lines = []
    for recovery in ("joint", "median"):
        noisy = [cell for cell in cells if cell[f"{recovery} linf"][1] >= EXACT]
        for what in ("linf", "scale"):
            ratios = np.array([_ratio(*cell[f"{recovery} {what}"]) for cell in noisy])
            ratios = ratios[np.isfinite(ratios)]
            if len(ratios):
                at = np.quantile(ratios, (0, 0.05, 0.25, 0.5, 0.75, 0.95, 1))
                lines.append(
                    f"{recovery} {what}, predicted / measured over {len(ratios)} cells: "
                    f"range {at[0]:.2f} .. {at[6]:.2f}, nine of ten in {at[1]:.2f} .. {at[5]:.2f}, "
                    f"quartiles {at[2]:.2f} {at[3]:.2f} {at[4]:.2f}"
                )
        exact = np.array(
            [cell[f"{recovery} linf"] for cell in cells if cell[f"{recovery} linf"][1] < EXACT]
        )
        if len(exact):
            missed = exact[:, 0] - exact[:, 1]
            lines.append(
                f"{recovery} linf, exact regime (measured below {EXACT:g} clients), {len(exact)}"
                f" cells: predicted less measured {missed.min():.2f} .. {missed.max():.2f} clients,"
                f" at most half a client off in {np.count_nonzero(np.abs(missed) <= 0.5)}"
            )
    return lines


@click.command("error_model")
@options.quick(
    laws=("1.5",), rows=(5,), widths=(200,), domain_size=5_000, clients=50_000, repeats=1
)
@options.laws(("1.1", "1.5", "2", "zm"))
@click.option("--rows", multiple=True, type=int, default=(5, 16))
@click.option("--width", "widths", multiple=True, type=int, default=(200, 1000, 4000))
@options.schedules(("shared", "fresh", "hybrid", "batched:2"))
@click.option(
    "--noise",
    "multipliers",
    multiple=True,
    type=float,
    default=(0.0, 4.2247),
    help=(
        "Standard deviation in each counter of each round's sum, over the square root of the rows."
    ),
)
@options.domain_size(100_000)
@options.clients(1_000_000)
@options.repeats(3)
@options.data("Folder of the real tables; they are then added.")
@options.table
def command(
    laws: tuple[str, ...],
    rows: tuple[int, ...],
    widths: tuple[int, ...],
    schedules: tuple[str, ...],
    multipliers: tuple[float, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    data: Path | None,
    path: Path | None,
) -> None:
    """Compare predicted with simulated errors over populations, sketches, schedules and noise."""
    output.check_path(path)
    synthetic: Sources = [(name, law(name, domain_size), clients) for name in laws]
    table: list[dict[str, object]] = []
    found: dict[str, list[dict[str, tuple[float, float]]]] = {}
    for kind, sources in (("synthetic", synthetic), ("real", tables(data) if data else [])):
        for source in sources:
            for r, w, schedule, multiplier in (
                (r, w, s, n) for r in rows for w in widths for s in schedules for n in multipliers
            ):
                spec = SketchSpec(r, w, Schedule.parse(schedule), ROUNDS, bytes(32))
                row, both = compare(source, spec, multiplier * r**0.5, repeats)
                table.append(row)
                found.setdefault(kind, []).append(both)
    output.show([{key: value for key, value in row.items() if key not in HIDDEN} for row in table])
    for kind, cells in found.items():
        click.echo(f"{kind} populations:")
        for line in summary(cells):
            click.echo(f"  {line}")
    output.save(table, path)
