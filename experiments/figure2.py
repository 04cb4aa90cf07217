"""The paper's Figure 2: the largest error of the schedules when all rounds are f_i ~ i^-a.

Rounds are homogeneous and real-valued. Frequencies are rounded to multiples of 2^-48, by at most
1.8e-15, so that a round is of integers that sum to about 2^48. All that comes after is exact: no
sum of ten rounds reaches 2^53, to which double precision holds every integer. Largest errors are
those of real-valued rounds, computed in double precision, to nine digits
(tests/project/test_experiments.py); below 1e-12, where joint recovery gets to for a = 5, they are
of the rounded vector.

Exact as well, and cheaper: equal rounds that share their hashes are one round; items of frequency 0
are not encoded.

A repeat has hashes of its own, which are those of all schedules: ratios are of paired samples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from experiments import options, ratios, recovery, rounds, study
from experiments.ratios import Claim
from experiments.tradeoff import LOOKS
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.sketch import Schedule, SketchSpec
from fedtally.studies import own

if TYPE_CHECKING:
    from matplotlib.figure import Figure

F64 = npt.NDArray[np.float64]
Samples = dict[tuple[float, int], dict[str, F64]]
SCHEDULES = ("shared", "fresh", "hybrid")
JOINT = "joint"  # the line of another decoder of the hybrid schedule's sums: joint, or one's own
SCALE = 2**48
STEEPEST = 100  # exponent: all items but the first are far below 1 / SCALE
NEARLY, CLEARLY = 1.25, 0.5  # ratios that "nearly as good" and "significantly better" are taken for
LINES = LOOKS | {JOINT: ("#CC79A7", "D")}  # Okabe and Ito (2008)
MEDIAN: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 1.2}


class Task(NamedTuple):
    """Repeats `first` .. `last` - 1 of one panel and width.

    Attributes:
        decoder: median, for all schedules, or joint or `module:Class`, for hybrid.
    """

    exponent: float
    width: int
    decoder: str
    first: int
    last: int
    size: int
    num_rounds: int
    rows: int
    seed: int


def claims(num_rounds: int) -> list[tuple[Claim, float, float]]:
    """Return the paper's claims about homogeneous rounds, and for which exponents: at least, below.

    "Slightly high" is a degree of 3 in the paper's words, so that low is what is below it.
    """
    above_3 = float(np.nextafter(3, 4))
    to_fresh, to_shared = ("hybrid", "fresh"), ("hybrid", "shared")
    both, figure, gain, any_ = (
        (to_fresh, to_shared),
        "section 3, Figure 2",
        num_rounds**-0.5,
        (0, np.inf),
    )
    return [
        (
            Claim(
                f"low degree: hybrid is nearly as good as fresh ({figure})",
                (to_fresh,),
                NEARLY,
                False,
            ),
            0,
            3,
        ),
        (
            Claim(
                f"low degree: both are better than shared ({figure})",
                (to_shared, ("fresh", "shared")),
                1,
            ),
            0,
            3,
        ),
        (Claim("degree 3: hybrid outperforms both (section 3)", both, 1), 3, above_3),
        (
            Claim("higher: hybrid is significantly better than both (Figure 2)", both, CLEARLY),
            above_3,
            np.inf,
        ),
        (
            Claim(
                "hybrid's error is smaller than fresh's, as Figure 2 verifies (section 3)",
                (to_fresh,),
                1,
            ),
            *any_,
        ),
        (
            Claim(
                "homogeneous: smaller than shared's by 1/sqrt(M) (section 3)",
                (to_shared,),
                gain,
                False,
            ),
            *any_,
        ),
    ]


@cache
def integer_zipf(exponent: float, size: int) -> npt.NDArray[np.int64]:
    """Return f_i proportional to i^-exponent as integers of sum about SCALE: int64 [size]."""
    law = np.arange(1, size + 1, dtype=np.float64) ** -exponent
    vector: npt.NDArray[np.int64] = np.rint(law / law.sum() * SCALE).astype(np.int64)
    vector.setflags(write=False)
    return vector


def largest_error(
    vector: npt.NDArray[np.int64], spec: SketchSpec, decoder: str = "median"
) -> float:
    """Return the l_inf error of the frequencies in one campaign whose rounds all hold `vector`."""
    num_rounds = 1 if str(spec.schedule) == "shared" else spec.num_rounds
    head = vector[: np.max(np.flatnonzero(vector), initial=-1) + 1]
    held = np.broadcast_to(head, (num_rounds, len(head)))
    sketches = recovery.land(held, spec.rows, spec.width, str(spec.schedule), spec.seed)
    size = len(vector)
    made = own.make_decoder(decoder, sketches, IntegerRange(rounds.FIRST_ID, size))
    errors = np.abs(made.range(rounds.FIRST_ID, size) - num_rounds * vector)
    return float(errors.max() / (num_rounds * float(vector.sum())))


def largest_errors(
    vector: npt.NDArray[np.int64],
    num_rounds: int,
    rows: int,
    width: int,
    schedule: str,
    repeats: int,
    rng: np.random.Generator,
) -> F64:
    """Return the l_inf error of the frequencies in `repeats` campaigns with fresh hashes."""
    specs = (
        SketchSpec(rows, width, Schedule.parse(schedule), num_rounds, rng.bytes(32))
        for _ in range(repeats)
    )
    return np.fromiter((largest_error(vector, spec) for spec in specs), np.float64, repeats)


def measure(task: Task) -> list[study.Row]:
    """Return a row for every campaign: its largest error and its milliseconds of CPU."""
    vector = integer_zipf(task.exponent, task.size)
    clients = task.num_rounds * int(vector.sum())  # as the sketches count them: weights, here
    table = []
    for repeat in range(task.first, task.last):
        key = np.random.default_rng(
            [task.seed, round(1e6 * task.exponent), task.width, repeat]
        ).bytes(32)
        for schedule in SCHEDULES if task.decoder == "median" else ("hybrid",):
            spec = SketchSpec(task.rows, task.width, Schedule.parse(schedule), task.num_rounds, key)
            start = time.process_time()
            error = largest_error(vector, spec, task.decoder)
            row: study.Row = {
                "exponent": task.exponent,
                "width": task.width,
                "domain_size": task.size,
            }
            row |= {"schedule": schedule, "decoder": task.decoder, "repeat": repeat, "l_inf": error}
            row |= {"cpu_ms": 1e3 * (time.process_time() - start), "seed": task.seed}
            table.append(row | {"plan": study.describe(spec, clients)})
    return table


def samples(rows: list[study.Row]) -> Samples:
    """Return the largest errors by (exponent, width) and schedule, and of joint recovery."""
    found: dict[tuple[float, int], dict[str, list[float]]] = {}
    for row in rows:
        name = row["schedule"] if row["decoder"] == "median" else JOINT
        found.setdefault((row["exponent"], row["width"]), {}).setdefault(name, []).append(
            row["l_inf"]
        )
    return {
        cell: {name: np.array(of[name]) for name in LINES if name in of}
        for cell, of in sorted(found.items())
    }


def _other(rows: list[study.Row]) -> str:
    """Return the decoder beside the median; joint where no campaign had it."""
    return next((row["decoder"] for row in rows if row["decoder"] != "median"), JOINT)


def _named(name: str, other: str) -> str:
    return f"{other} recovery of hybrid" if name == JOINT else name


def summarise(rows: list[study.Row], num_rounds: int) -> dict[str, list[study.Row]]:
    """Return the tables: the paper's claims, ratios, errors, and the CPU they took."""
    found, errors, compared = samples(rows), [], []
    other = _other(rows)
    for (exponent, width), of in found.items():
        row: study.Row = {"a": exponent, "width": width}
        errors.append(
            row | {_named(name, other): _described(values) for name, values in of.items()}
        )
        for over, under in (("hybrid", "fresh"), ("hybrid", "shared"), ("fresh", "shared")):
            for name, fold in ratios.FOLDS.items():
                row = row | {f"{over}/{under}, {name}": ratios.text(of[over], of[under], fold)}
        compared.append(row | {f"worst 1 %, {name}": _ruled(of[name]) for name in SCHEDULES})
    judged = []
    for claim, least, below in claims(num_rounds):
        asked = {f"a={a:g} W={width}": of for (a, width), of in found.items() if least <= a < below}
        judged.append(ratios.judge(claim, asked))
    return {
        f"The paper's claims, for the errors at every width; M = {num_rounds}": judged,
        (
            "Ratios ± standard error,"
            " and what share of the mean is of the worst 1 % of the campaigns"
        ): compared,
        "Largest error: mean ± standard error; median; 90 % quantile": errors,
        "CPU": list(_cpu(rows)),
    }


def _described(values: F64) -> str:
    error = values.std(ddof=1) / len(values) ** 0.5
    return (
        f"{values.mean():.3g} ± {error:.1g}; {np.median(values):.3g};"
        f" {np.quantile(values, 0.9):.3g}"
    )


def _ruled(values: F64) -> str:
    worst = np.sort(values)[-max(1, len(values) // 100) :]
    return f"{worst.sum() / values.sum():.0%}" if values.any() else "-"


def _cpu(rows: list[study.Row]) -> Iterator[study.Row]:
    """Yield what campaigns of each kind took, and all of the paper's decoders."""
    kinds = [("median", (name,)) for name in SCHEDULES] + [
        ("median", SCHEDULES),
        (_other(rows), ("hybrid",)),
    ]
    for decoder, names in kinds:
        taken = [
            row["cpu_ms"] for row in rows if row["decoder"] == decoder and row["schedule"] in names
        ]
        if taken:
            row: study.Row = {
                "schedules": ", ".join(names),
                "decoder": decoder,
                "campaigns": len(taken),
            }
            yield row | {
                "ms each": float(np.mean(taken)),
                "minutes together": float(np.sum(taken)) / 6e4,
            }


def draw(rows: list[study.Row]) -> Figure:
    """Draw a panel per exponent: mean, and median, of the largest error over the width."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    found = samples(rows)
    exponents = sorted({exponent for exponent, _ in found})
    across = min(2, len(exponents))
    down = -(-len(exponents) // across)
    figure = Figure(
        figsize=(4.4 * across, 1.1 + 3.0 * down), layout="constrained", facecolor="white"
    )
    panels = figure.subplots(down, across, squeeze=False).flat
    for axes, exponent in zip(panels, exponents, strict=False):
        _panel(axes, {width: of for (a, width), of in found.items() if a == exponent})
        axes.set_title(f"$f_i \\propto i^{{-{exponent:g}}}$")
    for axes in panels:
        axes.set_visible(False)
    figure.supxlabel("width W (counters per row)", fontsize="medium")
    figure.supylabel("largest error of any frequency (share of clients)", fontsize="medium")
    lines = [
        Line2D([], [], color=c, marker=m, label=_named(name, _other(rows)))
        for name, (c, m) in LINES.items()
    ]
    lines += [Line2D([], [], color="#24292F", label="mean, 95 % interval")]
    lines += [Line2D([], [], color="#24292F", label="median", **MEDIAN)]
    figure.legend(handles=lines, loc="outside upper center", ncols=3, frameon=False)
    return figure


def _panel(axes: Any, panel: dict[int, dict[str, F64]]) -> None:
    for name, (colour, marker) in LINES.items():
        errors = {width: of[name] for width, of in panel.items() if name in of}
        means = np.array([of.mean() for of in errors.values()])
        bars = [np.abs(ratios.interval(of) - of.mean()) for of in errors.values()]
        if errors:
            axes.errorbar(
                list(errors),
                means,
                np.transpose(bars),
                color=colour,
                marker=marker,
                markersize=4,
                capsize=2,
            )
            axes.plot(
                list(errors), [np.median(of) for of in errors.values()], color=colour, **MEDIAN
            )
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(list(panel), [str(width) for width in panel])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.grid(color="#E6E8EB")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def make(
    exponents: Sequence[float],
    widths: Sequence[int],
    repeats: int,
    joint_repeats: int,
    other: str = JOINT,
    **settings: int,
) -> study.Study:
    """Return the study: the paper's decoders, and another on the first campaigns.

    Args:
        exponents: a panel each.
        widths: of the sketches.
        repeats: of the paper's decoders.
        joint_repeats: of the other decoder.
        other: the other decoder: joint, or `module:Class`.
        settings: size, num_rounds, rows and seed, as of `Task`.

    Raises:
        InvalidInputError: an exponent is not within 0 .. STEEPEST.
    """
    for exponent in exponents:
        if not 0 <= exponent <= STEEPEST:  # nor not a number
            raise InvalidInputError(
                f"-a must be at least 0 and at most {STEEPEST}, got {exponent:g}"
            )
    tasks = [
        Task(exponent, width, decoder, first, min(first + together, times), **settings)
        for decoder, times, together in (("median", repeats, 100), (other, joint_repeats, 10))
        for exponent in exponents
        for width in widths
        for first in range(0, times, together)
    ]
    rounds_, size = settings["num_rounds"], settings["size"]
    about = f"""Homogeneous rounds: the same real-valued f_i ~ i^-a in each of M = {rounds_}; d = \
{size:,}, L = {settings["rows"]}; {repeats} campaigns of each panel and width, {joint_repeats} \
with {other} recovery. The paper's picture gives no widths; its text says a = 1.1, 2, 5, its \
captions 1.1, 3, 5. Means, which the paper shows, are ruled by rare collisions of the heaviest \
items: medians and 90 % quantiles stand beside them. The theorems bound one item's error; for all \
{size:,} at once they ask for L >= log(d) = {np.log(size):.1f}. Where W is small, some item shares \
its cells with the heaviest one in most rows: in all rounds of hybrid, but only in one of fresh."""
    return study.Study(
        "figure2", tasks, measure, partial(summarise, num_rounds=rounds_), draw, about
    )


def _checked_decoder(_: click.Context, __: click.Parameter, name: str) -> str:
    if own.is_own(name):
        own.load(name, "at")  # refuses before the first campaign
    elif name != JOINT:
        raise click.BadParameter(f"{name} is neither joint nor of the form module:Class")
    return name


@click.command("figure2")
@options.study(widths=(100, 400), domain_size=10_000, repeats=20, joint_repeats=2)
@click.option(
    "-a", "--exponent", "exponents", type=float, multiple=True, default=(1.1, 2.0, 3.0, 5.0)
)
@click.option(
    "--width", "widths", type=click.IntRange(1), multiple=True, default=(50, 100, 200, 400, 800)
)
@options.domain_size(100_000)
@click.option("--rounds", "num_rounds", default=10, type=click.IntRange(1, 16))
@click.option("--rows", default=5)
@options.repeats(1000, least=2, help="The paper takes 1,000.")
@click.option(
    "--joint-repeats",
    type=click.IntRange(0),
    callback=ratios.none_or_several,
    default=50,
    help="Of these, also with the decoder of --recovery; 0: none.",
)
@click.option(
    "--recovery",
    "other",
    default=JOINT,
    metavar="joint|module:Class",
    callback=_checked_decoder,
    help="The decoder beside the paper's; one of your own as docs/library.md says.",
)
@options.seed
def command(
    folder: Path,
    jobs: int,
    plot: bool,
    exponents: tuple[float, ...],
    widths: tuple[int, ...],
    domain_size: int,
    num_rounds: int,
    rows: int,
    repeats: int,
    joint_repeats: int,
    other: str,
    seed: int,
) -> None:
    """Compare the largest error of the schedules on homogeneous rounds."""
    settings = {"size": domain_size, "num_rounds": num_rounds, "rows": rows, "seed": seed}
    study.run(
        make(exponents, widths, repeats, min(joint_repeats, repeats), other, **settings),
        folder,
        jobs,
        plot,
    )


if __name__ == "__main__":
    command()
