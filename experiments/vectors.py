"""Real-valued vectors in rounds: the mean of all rounds by three schedules, and the bound.

After the theorem on the hybrid sketch, section 3, the paper says that it "can be adapted to
multi-round vector recovery problems as well". So M rounds of vectors with positive and negative
entries go through the sketch as fixed-point integers (`CountSketch.encode_vector`), since secure
sums are of integers, and their mean is recovered. Round m holds

- alike: g + a little noise, g heavy-tailed: +-i^-0.75 in random order with random signs, the
  largest 1;
- noisy: g + noise that outweighs the tail of g: Gaussian, independent between rounds;
- opposed: g + a little noise and -g + a little noise in turns, so that the mean is almost nothing.

The theorem's argument uses F_i = 1/M sqrt(sum_m (v_i^(m))^2) alone, so it does not ask for positive
entries; what does is F_i <= f_i, "no worse than shared in every case": the mean of opposed vectors
is below their F. `predicted` is the ratio of the bounds of hybrid and shared, ||F tail|| / ||mean
tail||. `constant` is the .9 quantile of the largest error over sqrt(1/W sum over i > W of F_i^2),
with L = 15 rows, about log(d / p).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from experiments import options, study, theory
from experiments.natural import CERTAIN, Ratio, ratio
from experiments.rounds import F64
from experiments.study import Row
from experiments.tradeoff import LOOKS
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# standard deviation of an entry of a round
NOISE = {"alike": 0.001, "noisy": 0.02, "opposed": 0.001}
METHODS = ("shared", "fresh", "hybrid")
WHAT = ("l_inf", "l2")
POWER = 0.75
SCALE = 2**32  # of 1; sums stay below 2^53, so that they are exact
P = 0.1


class Task(NamedTuple):
    """Campaigns of all methods, of one case and width."""

    case: str
    size: int
    num_rounds: int
    rows: int
    width: int
    seed: int
    repeats: int


def vectors(case: str, size: int, num_rounds: int, rng: np.random.Generator) -> F64:
    """Return the vectors of all rounds: float64 [M, d]."""
    signal = rng.permutation(np.arange(1.0, size + 1) ** -POWER) * rng.choice([-1.0, 1.0], size)
    turns = (
        (-1.0) ** np.arange(num_rounds)[:, None] if case == "opposed" else np.ones((num_rounds, 1))
    )
    found: F64 = turns * signal + NOISE[case] * rng.standard_normal((num_rounds, size))
    return found


def recover(held: F64, spec: SketchSpec) -> F64:
    """Return the estimated mean of the rounds' vectors: float64 [d].

    Args:
        held: float64 [M, d]; their sum of magnitudes is below 2^20.
        spec: of the sketch.

    >>> spec = SketchSpec(5, 1 << 16, "hybrid", 2, bytes(32))
    >>> recover(np.array([[0.5, -0.25], [0.0, -0.75]]), spec).tolist()
    [0.25, -0.5]
    """
    sketches = []
    for m, vector in enumerate(held):
        sketches.append(CountSketch(spec, m))
        sketches[-1].encode_vector(np.rint(vector * SCALE).astype(np.int64))
    size = held.shape[1]
    return MedianDecoder(sketches, expected=size).range(0, size) / (SCALE * len(held))


def bounds(held: F64, width: int) -> tuple[float, float]:
    """Return sqrt(1/W sum over i > W) of the squares of the mean, and of F: the bare bounds.

    >>> [round(bound, 9) for bound in bounds(np.array([[20.0, -7.0, 1.0], [20.0, 7.0, 1.0]]), 1)]
    [1.0, 5.0]
    """
    top = float(np.abs(held).max())
    vector = theory.heterogeneity(np.abs(held) / top)  # takes frequencies: squares have no sign
    return tuple(
        top * theory.tail_error(v, width) for v in (np.abs(held.mean(axis=0)) / top, vector)
    )  # type: ignore[return-value]


def measure(task: Task) -> list[Row]:
    """Return a row for each campaign and method: the errors, and the bounds without constant."""
    found = []
    for repeat in range(task.repeats):
        rng = np.random.default_rng([task.seed, list(NOISE).index(task.case), task.width, repeat])
        held, hash_seed = vectors(task.case, task.size, task.num_rounds, rng), rng.bytes(32)
        shared, hybrid = bounds(held, task.width)
        same: Row = {
            "case": task.case,
            "size": task.size,
            "rounds": task.num_rounds,
            "rows": task.rows,
        }
        same |= {
            "width": task.width,
            "seed": task.seed,
            "repeat": repeat,
            "E(mean)": shared,
            "E(F)": hybrid,
        }
        for method in METHODS:
            spec = SketchSpec(
                task.rows, task.width, Schedule.parse(method), task.num_rounds, hash_seed
            )
            errors = recover(held, spec) - held.mean(axis=0)
            row = same | {"method": method, "plan": study.describe(spec, task.num_rounds)}
            found.append(
                row | {"l_inf": float(np.abs(errors).max()), "l2": float(np.linalg.norm(errors))}
            )
    return found


class Cell(NamedTuple):
    """The figures of one width of one case: errors by kind and method, E(mean) and E(F)."""

    case: str
    width: int
    errors: dict[str, dict[str, list[float]]]
    shared: float
    hybrid: float

    @property
    def constant(self) -> float:
        """Return the .9 quantile of hybrid's largest error over the bound without constant."""
        return float(np.quantile(self.errors["l_inf"]["hybrid"], 1 - P)) / self.hybrid

    def over_shared(self, what: str) -> Ratio:
        """Return the error of hybrid over that of shared."""
        return ratio(self.errors[what]["hybrid"], self.errors[what]["shared"])


def cells(rows: list[Row]) -> list[Cell]:
    """Return the rows by cell."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["case"], row["width"]), []).append(row)
    return [
        Cell(
            *key,
            {
                what: {m: [row[what] for row in own if row["method"] == m] for m in METHODS}
                for what in WHAT
            },
            *(float(np.mean([row[name] for row in own])) for name in ("E(mean)", "E(F)")),
        )
        for key, own in found.items()
    ]


def summarise(rows: list[Row]) -> dict[str, list[Row]]:
    """Return the claims with their verdicts, and the errors behind them."""
    known = cells(rows)
    table: list[Row] = []
    for cell in known:
        line: Row = {"case": cell.case, "width": cell.width, "constant": cell.constant}
        for what in WHAT:
            line |= {
                f"{what} {method}": float(np.mean(cell.errors[what][method])) for method in METHODS
            }
            line[f"{what} hybrid/shared"] = str(cell.over_shared(what))
        table.append(line | {"predicted": cell.hybrid / cell.shared})
    claims = [
        _adapts(known),
        *(_never_worse(known, case) for case in dict.fromkeys(cell.case for cell in known)),
    ]
    return {
        "Claims of section 3, for vectors": claims,
        "Errors of the mean of all rounds (largest entry 1)": table,
    }


def _adapts(known: list[Cell]) -> Row:
    """Judge that hybrid's bound holds with one constant, which may double at most.

    With a caveat if to four times. An upper bound may be loose in one case and not in another:
    those may differ.
    """
    growth = []
    for case in dict.fromkeys(cell.case for cell in known):
        own = sorted((cell for cell in known if cell.case == case), key=lambda cell: cell.width)
        growth.append(max(cell.constant for cell in own) / own[0].constant)
    constants = [cell.constant for cell in known]
    row: Row = {
        "claim": "hybrid recovers vectors, error at most C sqrt(1/W sum F_i^2)",
        "case": "all",
    }
    row["ours"] = (
        f"C = {min(constants):.3g} to {max(constants):.3g}; grows with the width {max(growth):.3g}"
        " times"
    )
    most = max(growth)
    return row | {
        "verdict": "reproduced" if most <= 2 else "reproduced with a caveat" if most <= 4 else "not"
    }


def _never_worse(known: list[Cell], case: str) -> Row:
    """Judge "no worse than shared in every case" of frequencies, by three standard errors."""
    found = [cell.over_shared(what) for cell in known if cell.case == case for what in WHAT]
    worse = sum(one.log > CERTAIN * one.error for one in found)
    row: Row = {"claim": "no worse than shared (said of frequencies)", "case": case}
    row["ours"] = f"worse in {worse} of {len(found)}; ratios {min(found)} to {max(found)}"
    return row | {"verdict": "not" if worse else "reproduced"}


def draw(rows: list[Row]) -> Figure:
    """Draw error over width, and hybrid's bound, a panel for each case and kind of error."""
    from matplotlib.figure import Figure

    known = cells(rows)
    cases = list(dict.fromkeys(cell.case for cell in known))
    constant = max(cell.constant for cell in known)
    figure = Figure(figsize=(3.2 * len(cases) + 0.6, 6.2), layout="constrained", facecolor="white")
    grid: Any = figure.subplots(len(WHAT), len(cases), sharex=True, sharey="row", squeeze=False)
    for (line, column), axes in np.ndenumerate(grid):
        own, what = [cell for cell in known if cell.case == cases[column]], WHAT[line]
        widths = [cell.width for cell in own]
        for method in METHODS:
            colour, marker = LOOKS[method]
            means = [float(np.mean(cell.errors[what][method])) for cell in own]
            errors = [float(np.std(cell.errors[what][method], ddof=1)) for cell in own]
            spread = np.array(errors) / math.sqrt(len(own[0].errors[what][method]))
            look: dict[str, Any] = {
                "color": colour,
                "marker": marker,
                "markersize": 4.5,
                "capsize": 2,
            }
            axes.errorbar(widths, means, spread, label=method, linewidth=1.4, **look)
        if what == "l_inf":
            bound = [constant * cell.hybrid for cell in own]
            label = f"hybrid's bound, C = {constant:.2g}"
            axes.plot(widths, bound, color="#999999", linewidth=5, alpha=0.5, zorder=0, label=label)
            axes.set_title(f"rounds {cases[column]}")
        axes.set(xscale="log", yscale="log")
        axes.grid(which="major", color="#E6E8EB")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("width (counters per row)")
    for axes, what in zip(grid[:, 0], WHAT, strict=True):
        axes.set_ylabel(f"{what} error (largest entry 1)")
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    first = rows[0]
    sizes = f"{first['size']:,} entries, {first['rounds']} rounds, {first['rows']} rows"
    figure.suptitle(f"The mean of real-valued vectors, synthetic: {sizes}")
    return figure


@click.command("vectors")
@options.study(size=2000, widths=(50, 200, 800), repeats=10)
@click.option(
    "--case", "cases", multiple=True, type=click.Choice(list(NOISE)), default=tuple(NOISE)
)
@click.option(
    "--size", default=10_000, type=click.IntRange(2, 10_000_000), help="Entries of a vector."
)
@click.option("--rounds", "num_rounds", default=10, type=click.IntRange(1, 256))
@click.option("--rows", default=15, type=click.IntRange(1))
@click.option(
    "--width",
    "widths",
    multiple=True,
    type=click.IntRange(2),
    default=(50, 100, 200, 400, 800, 1600),
)
@options.repeats(100, least=2)
@options.seed
def command(
    cases: tuple[str, ...],
    size: int,
    num_rounds: int,
    rows: int,
    widths: tuple[int, ...],
    repeats: int,
    seed: int,
    folder: Path,
    jobs: int,
    plot: bool,
) -> None:
    """Recover the mean of real-valued vectors from the sketches of all rounds."""
    if max(widths) >= size:
        raise InvalidInputError(f"--width must be below --size, {size}, got {max(widths)}")
    tasks = [
        Task(case, size, num_rounds, rows, width, seed, repeats)
        for case in cases
        for width in widths
    ]
    about = (
        f"{num_rounds} rounds of vectors of {size:,} entries, as integers in units of 2^-32; {rows}"
        f" rows, {repeats} campaigns a cell. alike: the same heavy-tailed +-i^-{POWER:g} and noise"
        f" of {NOISE['alike']:g}; noisy: noise of {NOISE['noisy']:g}, independent between rounds;"
        " opposed: of opposite signs in turns. Errors are means over campaigns; ratios are means"
        " of logarithms ± standard errors; predicted: ||F tail|| / ||mean tail||; constant: the .9"
        " quantile of hybrid's l_inf over sqrt(1/W sum over i > W of F_i^2). Verdicts: the bound,"
        " reproduced where no case's constant exceeds twice that at the least width, with a caveat"
        " four times; worse, by three standard errors."
    )
    study.run(study.Study("vectors", tasks, measure, summarise, draw, about), folder, jobs, plot)


if __name__ == "__main__":
    command()
