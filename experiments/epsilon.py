"""Section 4 of the paper: the largest error over epsilon and rounds, under central privacy.

M rounds of n clients each, N = n M, one item a client, drawn from one law over d = 100,000 items.
The rounds are added up in m batches, each with signs of its own: m = 1 is the shared schedule, m =
M the hybrid one. Every batch's sum gets rounded Gaussian noise once, for delta = 1e-6 and zero-out;
fresh rounds are M releases, too. Errors of a campaign, the largest of any frequency:

- estimation: of the paper's decoder without noise,
- privacy: of the paper's decoder where nobody takes part and there is noise alone,
- both: of the noised sums, also by joint recovery.

A campaign has the same hash seed for all M, schedules and epsilons. `chosen` is the number of
batches that `experiments.curves` predicts to be best from the law, before anything is
drawn. Errors vary by factors, so centres are geometric means, and standard errors are those of mean
logarithms. A slope is that of log error over log M, by least squares, for each repeat: "reproduced"
is a sign as stated by 3 standard errors, "with a caveat" by less.

The theorem is "DP-hybrid sketch": C (sqrt(sum_{i > W} F_i^2 / W) + sqrt(log(d/p) log(1/delta)) / (n
sqrt(M) epsilon)), here at p = 1/2. It is stated for epsilon below 1 and L = log(d/p), which 5 rows
do not reach: drawn it is everywhere, with the least C that leaves no mean of hybrid above the curve
in that panel. The rate of one of its terms is "reproduced" if measured over stated varies by a
factor of 2 at most over all epsilons, M and N, "with a caveat" by 4.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from experiments import curves, options, recovery, rounds, study, theory, tradeoff
from experiments.curves import Release
from experiments.privacy import add_noise
from experiments.releases import DELTA
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.privacy.config import MAX_EPSILON, MIN_EPSILON
from fedtally.privacy.events import Event, Mechanism, Relation
from fedtally.privacy.mechanism import rounded_gaussian
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, Schedule, SketchSpec

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
ROUNDS = (1, 2, 4, 8, 16, 32, 64)
BATCHES = (4, 8)
DECODERS = ("median", "joint")
P = 0.5
MAIN = 1.0  # epsilon where one is chosen
SIGNIFICANT = 3.0  # standard errors
# of section 4, on larger M: what is fixed, which error -> whether it falls, and the theorem's power
# of M
REMARKS = {
    ("n", "estimation"): ("falls", -0.5),
    ("n", "privacy"): ("falls", -0.5),
    ("n", "both"): ("falls", -0.5),
    ("N", "estimation"): ("falls", -0.5),
    ("N", "privacy"): ("rises", 0.5),
    ("N", "both"): ("-", None),
}
SKETCH = ("law", "rows", "width")
LOOKS: dict[str, dict[str, Any]] = {  # colours of Okabe and Ito (2008)
    **{
        schedule: {"color": colour, "marker": marker}
        for schedule, (colour, marker) in tradeoff.LOOKS.items()
    },
    "batched:4": {"color": "#56B4E9", "marker": "x", "linewidth": 1.0},
    "batched:8": {"color": "#56B4E9", "marker": "+", "linewidth": 1.0},
    "batches as predicted": {"color": "#CC79A7", "marker": "D"},
    "joint recovery, batches as predicted": {"color": "#E69F00", "marker": "v", "linewidth": 2.2},
}
_TERMS = {"estimation": ":", "privacy": "-."}


class Cell(NamedTuple):
    """Campaigns of one size.

    Attributes:
        law: of `recovery.law`.
        size: d.
        rows: of the sketch.
        width: of the sketch.
        num_rounds: M.
        clients: N.
        epsilons: of each campaign, with noise of its own.
        repeats: campaigns.
        seed: of everything random, with the campaign's number.
    """

    law: str
    size: int
    rows: int
    width: int
    num_rounds: int
    clients: int
    epsilons: tuple[float, ...]
    repeats: int
    seed: int

    def release(self, epsilon: float) -> Release:
        """Return what is opened, and with how much noise."""
        event = Event(Mechanism.ROUNDED_GAUSSIAN, self.rows, Relation.ZERO_OUT)
        return Release(event, epsilon, DELTA, self.clients, self.num_rounds)

    def best(self, epsilon: float, decoder: str) -> int:
        """Return the number of batches that is predicted to be best."""
        law = recovery.law(self.law, self.size)
        curve = curves.errors_by_law(self.release(epsilon), self.width, law, recovery=decoder)
        return curves.best_releases(curve).num_batches

    def draw(self, repeat: int) -> tuple[np.random.Generator, bytes, rounds.I64]:
        """Return the noise generator, the hash seed, and the items' clients by round [M, d]."""
        rng = np.random.default_rng([self.seed, repeat])
        public = rng.bytes(32)
        law = rng.permutation(recovery.law(self.law, self.size))
        return rng, public, rounds.draw(law, self.clients, self.num_rounds, rng)


def named(batches: int, num_rounds: int) -> str:
    """Return the schedule of so many batches.

    >>> [named(m, 8) for m in (1, 4, 8)]
    ['shared', 'batched:4', 'hybrid']
    """
    return {num_rounds: "hybrid", 1: "shared"}.get(batches, f"batched:{batches}")


def measure(cell: Cell) -> list[study.Row]:
    """Return a row for every campaign, epsilon, schedule and decoder."""
    best = {
        (epsilon, name): cell.best(epsilon, name) for epsilon in cell.epsilons for name in DECODERS
    }
    return [row for repeat in range(cell.repeats) for row in campaign(cell, best, repeat)]


def campaign(cell: Cell, best: Mapping[tuple[float, str], int], repeat: int) -> list[study.Row]:
    """Return the rows of one campaign.

    The noise of each row follows from its own seed, repeat, epsilon and schedule.

    Args:
        cell: its sizes.
        best: predicted numbers of batches, by epsilon and decoder.
        repeat: its number.
    """
    _, public, held = cell.draw(repeat)
    truth, every = held.sum(axis=0), cell.num_rounds

    def largest(decoder: str, sketches: list[CountSketch], counts: rounds.I64) -> float:
        if decoder == "median":
            estimates = MedianDecoder(sketches, expected=cell.size).range(
                rounds.FIRST_ID, cell.size
            )
        else:
            domain = IntegerRange(rounds.FIRST_ID, cell.size)
            estimates = JointDecoder(sketches, domain).range(rounds.FIRST_ID, cell.size)
        return float(np.abs(estimates - counts).max()) / cell.clients

    @functools.cache
    def land(schedule: str) -> tuple[rounds.I64, list[CountSketch]]:
        together = Schedule.parse(schedule).batches_of(every)
        sums = np.stack([held[batch.start : batch.stop].sum(axis=0) for batch in together])
        return sums, recovery.land(
            sums, cell.rows, cell.width, "fresh" if schedule == "fresh" else "hybrid", public
        )

    @functools.cache
    def estimation(schedule: str) -> float:
        return largest("median", land(schedule)[1], truth)

    table, none = [], {"estimation": None, "privacy": None}
    for epsilon in cell.epsilons:
        noise = rounded_gaussian(cell.release(epsilon).noise(every) ** 2)
        numbers = {
            1,
            every,
            *(m for m in BATCHES if m < every),
            *(best[epsilon, name] for name in DECODERS),
        }
        for schedule in [*(named(m, every) for m in sorted(numbers)), "fresh"]:
            fresh = schedule == "fresh"
            sums, sketches = land(schedule)
            noisy = [CountSketch(sketch.spec, sketch.round) for sketch in sketches]
            own_noise = np.random.default_rng(
                [cell.seed, repeat, 1, round(epsilon * 1e9), len(sums), fresh]
            )
            add_noise(noisy, noise, own_noise)
            alone = largest("median", noisy, 0 * truth)
            for one, own in zip(noisy, sketches, strict=True):
                one.merge(own)
            bound, noise_bound = (None, None) if fresh else bounds(cell, sums, epsilon)
            spec = SketchSpec(cell.rows, cell.width, Schedule.parse(schedule), every, public)
            about = {
                name: getattr(cell, name)
                for name in ("law", "size", "rows", "width", "num_rounds", "clients")
            }
            about |= {
                "epsilon": epsilon,
                "schedule": schedule,
                "releases": len(sums),
                "repeat": repeat,
            }
            about |= {"theorem estimation": bound, "theorem privacy": noise_bound}
            about |= {"seed": cell.seed, "plan": study.describe(spec, cell.clients)}
            for decoder in DECODERS[: 1 if fresh else 2]:
                row = about | {
                    "decoder": decoder,
                    "chosen": not fresh and best[epsilon, decoder] == len(sums),
                }
                row |= (
                    {"estimation": estimation(schedule), "privacy": alone}
                    if decoder == "median"
                    else none
                )
                table.append(row | {"both": largest(decoder, noisy, truth)})
    return table


def bounds(cell: Cell, sums: rounds.I64, epsilon: float) -> tuple[float, float]:
    """Return both terms of the theorem without C, and with the noise that it states, without c.

    Args:
        cell: sizes; with the rows that the theorem asks for, if it has fewer.
        sums: int64 [m, d], what the batches hold.
        epsilon: also from 1 on.
    """
    rows = max(cell.rows, math.ceil(math.log(cell.size / P)))
    noise = math.sqrt(rows * math.log(1 / DELTA)) / epsilon
    clients = sums.sum(axis=1)
    vector = theory.heterogeneity(sums / clients[:, None], clients)
    sizes = {"num_clients": cell.clients, "num_rounds": len(sums), "items": cell.size}
    estimation = theory.tail_error(vector, cell.width)
    privacy = theory.private_bound(0 * vector, rows, cell.width, P, 1.0, noise=noise, **sizes)
    return estimation, privacy


def cells(
    laws: tuple[str, ...],
    sizes: tuple[tuple[int, int], ...],
    numbers: tuple[int, ...],
    epsilons: tuple[float, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    seed: int,
) -> list[Cell]:
    """Return the cells: for every M, N clients, and N / (largest M) clients a round."""
    most = max(numbers)
    return [
        Cell(law, domain_size, *size, m, total, epsilons, repeats, seed)
        for law in laws
        for size in sizes
        for m in numbers
        for total in sorted({clients, clients // most * m})
    ]


# ---- tables ----


def grouped(rows: Iterable[study.Row], *names: str) -> dict[Any, list[study.Row]]:
    """Return rows by the values of some columns, ascending; by a tuple, unless it is one column."""
    found: dict[Any, list[study.Row]] = defaultdict(list)
    for row in rows:
        found[row[names[0]] if len(names) == 1 else tuple(row[name] for name in names)].append(row)
    return dict(sorted(found.items()))


def logs(rows: Iterable[study.Row], part: str) -> rounds.F64:
    """Return logarithms of errors, one a campaign, each error at least half a client."""
    return np.log([max(row[part], 0.5 / row["clients"]) for row in rows])


def mean(rows: Iterable[study.Row], part: str = "both") -> float:
    """Return the geometric mean of errors."""
    return float(np.exp(logs(rows, part).mean()))


def standard_error(values: rounds.F64) -> float:
    """Return the standard error of the mean; NaN of one value."""
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def judge(gain: float, error: float) -> str:
    """Return the verdict on what is stated to be above 0."""
    if gain > SIGNIFICANT * error:
        return "reproduced"
    return "reproduced with a caveat" if gain > 0 else "not"


def hybrid(rows: Iterable[study.Row]) -> list[study.Row]:
    """Return the rows of the hybrid schedule (for one round shared) and the paper's decoder."""
    own = [row for row in rows if row["schedule"] != "fresh" and row["decoder"] == "median"]
    return [row for row in own if row["releases"] == row["num_rounds"]]


def fixed(rows: Sequence[study.Row], what: str) -> list[study.Row]:
    """Return the rows with as many clients, N, or clients a round, n, as at the largest M."""
    clients, most = max(row["clients"] for row in rows), max(row["num_rounds"] for row in rows)
    return [
        r
        for r in rows
        if r["clients"] == (clients if what == "N" else clients // most * r["num_rounds"])
    ]


def at_main(rows: Sequence[study.Row]) -> list[study.Row]:
    """Return the rows of the epsilon nearest to 1."""
    nearest = min(
        (row["epsilon"] for row in rows), key=lambda epsilon: abs(math.log(epsilon / MAIN))
    )
    return [row for row in rows if row["epsilon"] == nearest]


def summarise(rows: list[study.Row]) -> dict[str, list[study.Row]]:
    """Return the tables."""
    main = at_main(rows)[0]["epsilon"]
    most = max(row["num_rounds"] for row in rows)
    return {
        f"Section 4, the remarks on n and N fixed (hybrid, paper's decoder, epsilon {main:g})": (
            remarks(rows)
        ),
        f"Section 4, last paragraph: batches (errors x 1e-5, M = {most})": batches(rows),
        "Section 4, the theorem's rate (hybrid, paper's decoder)": rates(rows),
    }


def remarks(rows: Sequence[study.Row]) -> list[study.Row]:
    """Return how errors change with the number of rounds, beside what the paper says."""
    table = []
    for (law, high, width), own in grouped(hybrid(at_main(rows)), *SKETCH).items():
        for (what, part), (stated, power) in REMARKS.items():
            by_rounds = grouped(fixed(own, what), "num_rounds")
            slopes = np.polyfit(
                np.log(list(by_rounds)), np.stack([logs(r, part) for r in by_rounds.values()]), 1
            )[0]
            slope, error = float(slopes.mean()), standard_error(slopes)
            row: study.Row = {"law": law, "sketch": f"{high}x{width}", "fixed": what, "error": part}
            row |= {
                f"M={m} (1e-5)": mean(by_rounds[m], part) / recovery.UNIT
                for m in (min(by_rounds), max(by_rounds))
            }
            row |= {
                "slope": slope,
                "SE": error,
                "theorem": "-" if power is None else power,
                "paper": stated,
            }
            table.append(
                row
                | {
                    "verdict": (
                        "-" if power is None else judge(slope * math.copysign(1, power), error)
                    )
                }
            )
    return table


def batches(rows: Sequence[study.Row]) -> list[study.Row]:
    """Return errors by releases at the largest M, and the gain of the predicted number."""
    most, table = max(row["num_rounds"] for row in rows), []
    chosen = [row for row in fixed(rows, "N") if row["num_rounds"] == most]
    for (law, high, width, epsilon, decoder), own in grouped(
        chosen, *SKETCH, "epsilon", "decoder"
    ).items():
        by = grouped(own, "schedule")
        [best] = {row["releases"] for row in own if row["chosen"]}
        row: study.Row = {
            "law": law,
            "sketch": f"{high}x{width}",
            "epsilon": epsilon,
            "decoder": decoder,
        }
        for name in ("shared", *(f"batched:{m}" for m in BATCHES if m < most), "hybrid", "fresh"):
            row[name] = mean(by[name]) / recovery.UNIT if name in by else "-"
        end = min(by["shared"], by["hybrid"], key=mean)
        gains = logs(end, "both") - logs(by[named(best, most)], "both")
        gain, error = float(gains.mean()), standard_error(gains)
        row |= {
            "predicted best m": best,
            "error there": mean(by[named(best, most)]) / recovery.UNIT,
        }
        row |= {"better end over it": math.exp(gain), "SE": math.exp(gain) * error}
        sure = abs(gain) > SIGNIFICANT * error
        table.append(
            row | {"batches are": ("better" if gain > 0 else "worse") if sure else "as good"}
        )
    return table


def rates(rows: Sequence[study.Row]) -> list[study.Row]:
    """Return measured over stated errors, C = 1, over all epsilons, M and N: the theorem's C."""
    table = []
    for (law, high, width), own in grouped(hybrid(rows), *SKETCH).items():
        cells = grouped(own, "epsilon", "num_rounds", "clients").values()
        for part in ("estimation", "privacy", "both"):
            ratios = [mean(cell, part) / theorem(cell, part) for cell in cells]
            spread = max(ratios) / min(ratios)
            row: study.Row = {"law": law, "sketch": f"{high}x{width}", "error": part}
            row |= {"least ratio": min(ratios), "largest = C": max(ratios), "spread": spread}
            verdict = ("reproduced", "reproduced with a caveat", "not")[(spread > 2) + (spread > 4)]
            table.append(row | {"verdict": "-" if part == "both" else verdict})
    return table


def theorem(rows: Sequence[study.Row], part: str = "both") -> float:
    """Return the theorem's error for C = 1, a mean over campaigns."""
    terms = ("estimation", "privacy") if part == "both" else (part,)
    return float(np.mean([sum(row[f"theorem {term}"] for term in terms) for row in rows]))


# ---- picture ----


def lines(rows: Sequence[study.Row]) -> dict[str, list[study.Row]]:
    """Return the rows of each line of a panel."""
    found = {
        name: own
        for name, own in grouped(rows, "schedule").items()
        if name == "fresh" or name in LOOKS
    }
    paper = [row for row in rows if row["decoder"] == "median"]
    found = {
        name: [row for row in own if row["decoder"] == "median"] for name, own in found.items()
    }
    found["shared"], found["hybrid"] = (
        [r for r in paper if r["schedule"] != "fresh" and r["releases"] == 1],
        hybrid(rows),
    )
    named_best = list(LOOKS)[-2:]
    for name, decoder in zip(named_best, DECODERS, strict=True):
        found[name] = [row for row in rows if row["chosen"] and row["decoder"] == decoder]
    return {name: found[name] for name in LOOKS if found.get(name)}


def draw(rows: list[study.Row]) -> Figure:
    """Return the picture: panels for every law and sketch, over epsilon, M at n, and M at N."""
    from matplotlib.figure import Figure

    blocks, most = grouped(rows, *SKETCH), max(row["num_rounds"] for row in rows)
    main, clients = at_main(rows)[0]["epsilon"], max(row["clients"] for row in rows)
    # a column of panels for each law and sketch, so that a page's width is enough for two
    figure = Figure(
        figsize=(4.2 * max(len(blocks), 2), 11.5), layout="constrained", facecolor="white"
    )
    grid: Any = figure.subplots(3, len(blocks), sharey="col", squeeze=False)
    for axes, ((law, high, width), own) in zip(grid.T, blocks.items(), strict=True):
        panels = (
            (
                "epsilon",
                [r for r in fixed(own, "N") if r["num_rounds"] == most],
                f"M = {most}, N = {clients:,}",
            ),
            (
                "num_rounds",
                fixed(at_main(own), "n"),
                f"n = {clients // most:,} fixed, epsilon {main:g}",
            ),
            ("num_rounds", fixed(at_main(own), "N"), f"N = {clients:,} fixed, epsilon {main:g}"),
        )
        heading = f"{f'i^-{law}' if law != 'zm' else law}, {high} x {width}\n"
        for one, (over, shown, title) in zip(axes, panels, strict=True):
            constant = draw_panel(one, over, shown)
            above = heading if one is axes[0] else ""
            one.set_title(f"{above}{title}; theorem: C = {constant:.2g}", loc="left", fontsize=10)
            one.set_xlabel("epsilon (delta = 1e-6)" if over == "epsilon" else "M, rounds")
    for one in grid[:, 0]:
        one.set_ylabel("largest error (frequency)")
    handles = {
        label: line
        for one in grid.flat
        for line, label in zip(*one.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=3, frameon=False
    )
    return figure


def draw_panel(axes: Any, over: str, rows: Sequence[study.Row]) -> float:
    """Draw errors over a column, with the parts of hybrid, and the theorem; return its constant."""
    for name, own in lines(rows).items():
        points = grouped(own, over)
        axes.plot(
            list(points),
            list(map(mean, points.values())),
            label=name,
            **{"markersize": 4, "linewidth": 1.5} | LOOKS[name],
        )
    points = grouped(hybrid(rows), over)
    for part, style in _TERMS.items():
        values = [mean(own, part) for own in points.values()]
        axes.plot(
            list(points),
            values,
            style,
            color=LOOKS["hybrid"]["color"],
            linewidth=1,
            label=f"hybrid, {part} alone",
        )
    stated = np.array([theorem(own) for own in points.values()])
    constant = max(np.array([mean(own) for own in points.values()]) / stated)
    axes.plot(
        list(points),
        constant * stated,
        "--",
        color="black",
        linewidth=1.2,
        label="the theorem, hybrid",
    )
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(list(points), [f"{x:g}" for x in points])
    axes.minorticks_off()
    axes.grid(color="#E6E8EB")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return float(constant)


# ---- command ----


def parse_size(text: str) -> tuple[int, int]:
    """Return rows and width.

    >>> parse_size("16x500")
    (16, 500)
    """
    rows, x, width = text.partition("x")
    if not (x and rows.isdecimal() and width.isdecimal() and int(rows) and int(width)):
        raise InvalidInputError(f"--size must be rows x width, as in 16x500, got {text}")
    return int(rows), int(width)


@click.command("epsilon")
@options.study(
    domain_size=2000,
    clients=32_000,
    laws=("1.1",),
    sizes=("13x50",),
    numbers=(1, 4, 16),
    epsilons=(0.5, 2.0),
    repeats=3,
)
@options.laws(("1.1", "2"))
@options.sizes(("16x500", "5x2000"))
@click.option(
    "--rounds",
    "numbers",
    multiple=True,
    type=click.IntRange(1),
    default=ROUNDS,
    help="M; two or more.",
)
@click.option(
    "--epsilon",
    "epsilons",
    multiple=True,
    type=click.FloatRange(MIN_EPSILON, MAX_EPSILON),
    default=EPSILONS,
)
@options.domain_size(recovery.SIZE)
@options.clients(recovery.CLIENTS, help="N; of the largest M also where n is fixed.")
@options.repeats(20, help="Campaigns of each size.")
@options.seed
def command(
    laws: tuple[str, ...],
    sizes: tuple[str, ...],
    numbers: tuple[int, ...],
    epsilons: tuple[float, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    seed: int,
    folder: Path,
    jobs: int,
    plot: bool,
) -> None:
    """Error over epsilon and over rounds, of all schedules and decoders, beside the theorem."""
    numbers, epsilons = tuple(sorted(set(numbers))), tuple(sorted(set(epsilons)))
    if len(numbers) < 2 or any(clients % number for number in numbers):
        raise InvalidInputError(
            f"--rounds needs two numbers or more, all of them divisors of {clients:,} clients"
        )
    parsed = tuple(dict.fromkeys(map(parse_size, sizes)))
    if domain_size <= max(width for _, width in parsed):
        raise InvalidInputError(
            f"--domain-size must exceed the columns of every --size, got {domain_size:,}"
        )
    tasks = cells(laws, parsed, numbers, epsilons, domain_size, clients, repeats, seed)
    about = (
        f"{domain_size:,} items, frequencies proportional to rank^-law; the largest M has"
        f" {clients:,} clients, delta {DELTA:g}, zero-out, central noise; {repeats} campaigns."
        " Errors are largest errors of any frequency, geometric means; SE: standard error of a"
        " mean logarithm, or of a mean slope."
    )
    study.run(study.Study("epsilon", tasks, measure, summarise, draw, about), folder, jobs, plot)


if __name__ == "__main__":
    command()
