"""The paper's four families: the growth of the width that meets tau, beside the stated slope.

For every family, the width at taus over several decades, of 20 / tau clients each, for a domain of
a million items: by the paper's formula for known frequencies (`width_oracle`), and by
`fedtally.plan.sizes.size_by_model` for the same, without margin, for the median and for joint
recovery, of 15 rows each. The stated slope is the power of 1 / tau in the corollary "Examples";
slopes are fitted on logarithmic axes by least squares, after the corollary's logarithm is divided
out. `off` is the difference. `most` is the largest width over the corollary's growth, `spread` that
divided by the
smallest: 1 if they are in proportion.

The corollary's uniform law has n/10 items, so that it changes with n. With n = 20 / tau its
hardness is 1 / (2 tau) by
algebra: the formula's slope cannot be off, only those of the decoders can. With n fixed the
hardness is n/10 for tau up to 10/n, and 10 / (n tau^2) beyond: at most 1 / tau, as the corollary
says, but not in proportion to it. So all there is to see of "uniform n=1e6" is that the growth
suffices.

The stated growth is that of tau to 0. At these taus zipf-log is still on its way: its N-th item has
the frequency c / (N log(N + 1)^b), and log(N) is not log(1/tau). Nothing here is drawn, so no row
has a seed or a standard error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import numpy as np

from experiments import options, rounds, study, theory
from experiments.study import Row
from fedtally.errors import InvalidInputError
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import width_oracle
from fedtally.plan.predictor import Predictor
from fedtally.plan.sizes import size_by_model
from fedtally.sketch import Schedule, SketchSpec
from fedtally.sources.synthetic import frequencies

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLIENTS = 20  # over tau, where they are not fixed
P = 0.1
END = 3  # smallest taus
# Okabe and Ito (2008)
LOOKS = {"oracle": ("#000000", "D"), "median": ("#D55E00", "s"), "joint": ("#0072B2", "o")}
SAID = {
    "oracle": "paper's formula",
    "median": "needed, paper's decoder",
    "joint": "needed, joint recovery",
}
STATED = {"reproduced": 0.05, "reproduced with a caveat": 0.1}  # the most that a slope is off
ENOUGH = 10.0  # times the growth: what suffices where clients are fixed


class Member(NamedTuple):
    """A law of one of the families, or laws that depend on the number of clients.

    Attributes:
        family: as in `theory.width_growth`.
        exponent: of zipf and zipf-log.
        power: of 1 / tau in the corollary.
        logarithm: power of log(1 / tau).
        clients: if they are fixed; the growth then suffices, and widths need not be in proportion.
    """

    family: theory.Family
    exponent: float | None
    power: float
    logarithm: float
    clients: int | None = None

    def law(self, clients: int, size: int) -> rounds.F64:
        """Return the frequencies: float64 [at most size].

        >>> MEMBERS["uniform"].law(40, 1000).tolist()
        [0.25, 0.25, 0.25, 0.25]
        """
        if self.family == "uniform":
            items = clients // 10
            if items > size:
                raise InvalidInputError(
                    f"--domain-size must be at least {items}, a tenth of the clients, got {size}"
                )
            return np.full(items, 1 / items)
        if self.family == "geometric":
            return frequencies(f"geometric:d={min(size, 100)}")
        name = "a" if self.family == "zipf" else "b"
        return frequencies(f"{self.family}:{name}={self.exponent},d={size}")


MEMBERS = {
    "geometric": Member("geometric", None, 0.0, 1.0),
    "zipf a=1.2": Member("zipf", 1.2, 1 / 1.2, 0.0),
    "zipf a=2": Member("zipf", 2.0, 1 / 2, 0.0),
    "zipf-log b=1.5": Member("zipf-log", 1.5, 1.0, -1.5),
    "zipf-log b=2": Member("zipf-log", 2.0, 1.0, -2.0),
    "uniform": Member("uniform", None, 1.0, 0.0),
    "uniform n=1e6": Member("uniform", None, 1.0, 0.0, 1_000_000),
}


class Task(NamedTuple):
    """A law, the error it is to be estimated with, the sketch's rows and the size of the domain."""

    name: str
    tau: float
    rows: int
    size: int


def measure(task: Task) -> list[Row]:
    """Return a row for each method: the width that meets tau."""
    member = MEMBERS[task.name]
    clients = member.clients or round(CLIENTS / task.tau)
    known = member.law(clients, task.size)
    law = Frequencies.from_frequencies(known, task.size)
    found = {"oracle": width_oracle(known, task.tau, num_clients=clients)}
    for recovery in ("median", "joint"):
        predictor = Predictor(clients, recovery=recovery)
        found[recovery] = size_by_model(
            law, task.tau, predictor, p=P, rows=task.rows, margin=1.0, risk=1.0
        ).width
    growth = theory.width_growth(member.family, task.tau, member.exponent)
    same: Row = {"family": task.name, "tau": task.tau, "clients": clients, "size": task.size}
    same |= {"growth": growth, "seed": None}
    return [
        same | {"method": method, "width": width, "plan": _plan(task.rows, width, clients)}
        for method, width in found.items()
    ]


def _plan(rows: int, width: int, clients: int) -> str:
    return study.describe(SketchSpec(rows, width, Schedule.parse("shared"), 1, bytes(32)), clients)


def slope(taus: rounds.F64, values: rounds.F64) -> float:
    """Return the slope of values over 1 / tau on logarithmic axes, by least squares.

    >>> taus = np.array([0.1, 0.01, 0.001])
    >>> round(slope(taus, 3 * taus**-0.5), 6)
    0.5
    """
    return float(np.polyfit(-np.log(taus), np.log(values), 1)[0])


def verdict(off: float) -> str:
    """Return whether a slope is as stated: within 0.05, or within 0.1 as a caveat, or not.

    >>> verdict(-0.05), verdict(0.06), verdict(0.2)
    ('reproduced', 'reproduced with a caveat', 'not')
    """
    return next((word for word, most in STATED.items() if abs(off) <= most), "not")


def sufficient(most: float) -> str:
    """Return whether a growth suffices for fixed clients: widths are at most 10 times it.

    They need not be in proportion to it.

    >>> sufficient(4.5), sufficient(11.0)
    ('reproduced with a caveat', 'not')
    """
    return "reproduced with a caveat" if most <= ENOUGH else "not"


def fits(rows: list[Row]) -> list[Row]:
    """Return the slope of every family and method beside the stated one, if the paper has it."""
    table = []
    for name, method in dict.fromkeys((row["family"], row["method"]) for row in rows):
        chosen = [row for row in rows if (row["family"], row["method"]) == (name, method)]
        member = MEMBERS[name]
        taus, values, growth = (
            np.array([float(row[key]) for row in chosen]) for key in ("tau", "width", "growth")
        )
        divided, constants = values / np.log(1 / taus) ** member.logarithm, values / growth
        fitted = slope(taus, divided)
        found: Row = {
            "family": name,
            "method": method,
            "first": int(values[0]),
            "last": int(values[-1]),
        }
        found |= {"stated": member.power, "slope": fitted, "off": fitted - member.power}
        found |= {"at the end": slope(taus[-END:], divided[-END:]), "most": float(constants.max())}
        found |= {"spread": float(constants.max() / constants.min())}
        judged = sufficient(found["most"]) if member.clients else verdict(found["off"])
        table.append(found | {"verdict": "-" if method == "joint" else judged})
    return table


def summarise(rows: list[Row]) -> dict[str, list[Row]]:
    """Return one table."""
    title = (
        'Slopes of the width over 1/tau; stated: section 2, corollary "Examples", the logarithm'
        " divided out"
    )
    return {title: fits(rows)}


def draw(rows: list[Row]) -> Figure:
    """Draw a panel for each family: width over 1 / tau, and the corollary's growth.

    Where clients are fixed, the growth is above all of the formula's widths: it suffices.
    """
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(row["family"] for row in rows))
    columns = min(3, len(names))
    lines = -(-len(names) // columns)
    figure = Figure(
        figsize=(3.2 * columns + 0.6, 2.7 * lines + 1.1), layout="constrained", facecolor="white"
    )
    grid: Any = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for axes, name in zip(grid.flat, names, strict=False):
        for method, (colour, marker) in LOOKS.items():
            chosen = [row for row in rows if row["family"] == name and row["method"] == method]
            xs, ys = [1 / row["tau"] for row in chosen], [row["width"] for row in chosen]
            axes.plot(
                xs, ys, color=colour, marker=marker, markersize=4, linewidth=1.4, label=SAID[method]
            )
            if method == "oracle":
                growth = np.array([row["growth"] for row in chosen])
                constants = np.array(ys) / growth
                fixed = MEMBERS[name].clients is not None
                through = constants.max() if fixed else math.exp(float(np.log(constants).mean()))
                axes.plot(
                    xs,
                    through * growth,
                    color="#999999",
                    linewidth=5,
                    alpha=0.5,
                    zorder=0,
                    label="stated growth",
                )
        axes.set(xscale="log", yscale="log")
        axes.set_title(f"{name}: {_stated(MEMBERS[name])}", loc="left", fontsize="medium")
        axes.grid(which="major", color="#E6E8EB")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    for axes in grid.flat[max(0, len(names) - columns) : len(names)]:  # the lowest of each column
        axes.set_xlabel("1 / tau (tau: error, share of clients)")
        axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("width (counters per row)")
    figure.suptitle("Width that meets tau for the paper's four families, and the growth it states")
    return figure


def _stated(member: Member) -> str:
    """Return the growth that the corollary states, for a title."""
    power = rf"\tau^{{-{member.power:.3g}}}" if member.power else ""
    logarithm = (
        rf"\log(1/\tau)^{{{member.logarithm:.3g}}}".removesuffix("^{1}") if member.logarithm else ""
    )
    return f"${power} {logarithm}$"


@click.command("families")
@options.study(
    families=("geometric", "zipf a=2", "uniform"), points=2, smallest=2e-3, domain_size=10_000
)
@click.option(
    "--family", "families", multiple=True, type=click.Choice(list(MEMBERS)), help="[default: all]"
)
@click.option("--largest", type=click.FloatRange(1e-12), default=1e-2, help="Largest tau.")
@click.option("--smallest", type=click.FloatRange(1e-12), default=1e-5, help="Smallest tau.")
@click.option(
    "--points", type=click.IntRange(2), default=7, help="Taus between them, in equal ratios."
)
@click.option("--rows", type=click.IntRange(1), default=15)
@options.domain_size(1_000_000)
def command(
    families: Sequence[str],
    largest: float,
    smallest: float,
    points: int,
    rows: int,
    domain_size: int,
    folder: Path,
    jobs: int,
    plot: bool,
) -> None:
    """Fit the slope at which the width that meets tau grows, for the paper's families."""
    if not 0.0 < smallest < largest <= math.exp(-1):
        raise InvalidInputError(
            f"--smallest must be below --largest, at most 1/e, got {smallest} and {largest}"
        )
    taus = [float(tau) for tau in np.geomspace(largest, smallest, points)]
    tasks = [Task(name, tau, rows, domain_size) for name in families or MEMBERS for tau in taus]
    about = (
        f"Widths for errors tau from {largest:g} to {smallest:g}, {CLIENTS} / tau clients or as"
        f" many as named, {domain_size:,} items, {rows} rows, by the paper's formula for known"
        " frequencies, and as `fedtally plan` computes what the two decoders need; joint recovery"
        " is not the paper's. A slope has the verdict reproduced if it is off by at most 0.05,"
        " with a caveat by at most 0.1. Of uniform, the formula's slope is an identity: with n ="
        " 20 / tau clients the hardness of n/10 equal items is 1 / (2 tau). With n fixed the"
        " stated growth suffices and is not tight: the verdict is reproduced with a caveat if no"
        f" width exceeds {ENOUGH:g} times it (most), in proportion or not. Nothing is drawn but"
        " campaigns of up to 150 counters, by the planner itself: there are no standard errors."
    )
    study.run(study.Study("families", tasks, measure, summarise, draw, about), folder, jobs, plot)


if __name__ == "__main__":
    command()
