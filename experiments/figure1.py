"""The paper's Figure 1: sizes for a target in one round, and schedules over ten rounds.

See `experiments.figure1_single` (a, b, d, e, g, h) and `experiments.figure1_rounds` (c, f, i) for
what is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from experiments import figure1_rounds as several
from experiments import figure1_single as single
from experiments import options, populations, recovery, study
from experiments.populations import Population
from experiments.study import Row, Study
from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUICK = {
    "names": ("profile:brightkite-us",),
    "points": 4,
    "pilots": 2,
    "repeats": 2,
    "widths": (50, 200),
    "round_repeats": 3,
    "joint_repeats": 2,
}


def measure(task: single.Task | several.Task) -> list[Row]:
    """Return the rows of a task."""
    return several.measure(task) if isinstance(task, several.Task) else single.measure(task)


def summarise(rows: Sequence[Row], chosen: Sequence[Population]) -> dict[str, list[Row]]:
    """Return the tables."""
    claims: list[Row] = []
    one_round: list[Row] = []
    ten_rounds: list[Row] = []
    for one in chosen:
        own = [row for row in rows if row["population"] == one.name]
        claims += [single.claim(own, one), several.claim(own, one.name, one.title)]
        one_round += single.summary(own, one)
        ten_rounds.append(several.summary(own, one.title))
    return {
        "The paper's claims": claims,
        f"One round: p = {several.P}, over all taus": one_round,
        "Ten rounds: mean errors, over all widths (and their range)": ten_rounds,
    }


def draw(rows: Sequence[Row], chosen: Sequence[Population]) -> Figure:
    """Draw the paper's panels, a line of three for each population."""
    from matplotlib.figure import Figure

    figure = Figure(
        figsize=(10.0, 2.9 * len(chosen) + 1.1), layout="constrained", facecolor="white"
    )
    grid: Any = figure.subplots(len(chosen), 3, squeeze=False)
    for line, one in zip(grid, chosen, strict=True):
        own = [row for row in rows if row["population"] == one.name]
        single.draw(line[0], line[1], own, one)
        several.draw(line[2], own)
        clients, total = f"{one.num_clients:,}", f"{recovery.ROUNDS * one.num_clients:,}"
        said = (
            one.title.replace(" (", "\n(", 1),
            f"one round\nn = {clients}, d = {len(one.law):,}, L = {one.rows}",
            f"ten rounds\nN = {total}",
        )
        for axes, letter, title in zip(
            line, several.PANELS.get(one.name, "   "), said, strict=True
        ):
            axes.set_title(
                f"({letter}) {title}" if letter.strip() else title, loc="left", fontsize=9
            )
            axes.grid(which="major", color="#E6E8EB")
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        line[0].set_ylabel("columns (counters / L)")
        line[1].set_ylabel("mean largest error (share)")
        line[2].set_ylabel("mean largest error (share)")
    ways = grid[0, 1].get_legend_handles_labels()
    schedules = grid[0, 2].get_legend_handles_labels()
    figure.legend(*ways, loc="outside lower left", ncols=2, fontsize=9, frameon=False)
    figure.legend(*schedules, loc="outside lower right", ncols=3, fontsize=9, frameon=False)
    return figure


def make(
    chosen: Sequence[Population],
    data: str | None,
    points: int,
    spacing: str,
    pilots: int,
    repeats: int,
    widths: Sequence[int],
    round_repeats: dict[str, int],
    seed: int,
) -> Study:
    """Return the study."""

    def tasks() -> Iterator[single.Task | several.Task]:
        for one in chosen:
            targets = single.taus(points, spacing, one.num_clients)
            if not targets:
                raise InvalidInputError(single.refusal(one.num_clients))
            yield from single.tasks(one, data, targets, pilots, repeats, seed)
            yield from several.tasks(one, data, widths, round_repeats, seed)

    return Study(
        "figure1",
        list(tasks()),
        measure,
        lambda rows: summarise(rows, chosen),
        lambda rows: draw(rows, chosen),
        f"One round: {pilots} pilots of {repeats} campaigns for each tau, constant"
        f" {single.CONSTANT:g}; taus even on a {spacing} axis. Ten rounds:"
        f" {round_repeats['median']} campaigns for each width with the paper's decoder,"
        f" {round_repeats['joint']} with joint recovery, whose errors count from half a client on."
        " ± is one standard error. Verdicts: the rules are in `experiments.figure1_single.claim`"
        " and `experiments.figure1_rounds.claim`. Populations:"
        f" {'; '.join(one.title for one in chosen)}.",
    )


@click.command("figure1")
@click.option(
    "--population",
    "names",
    multiple=True,
    default=("gowalla", "c4", "sentiment140", "brightkite"),
    help=f"{', '.join(populations.NAMES)}, or a synthetic one, such as profile:gowalla-us.",
)
@click.option("--points", type=click.IntRange(1), default=9, help="Taus within (1e-3, 1e-1).")
@click.option("--spacing", type=click.Choice(["log", "linear"]), default="log", help="Of the taus.")
@click.option("--pilots", type=click.IntRange(2), default=12, help="Of each tau.")
@options.repeats(12, help="Campaigns of each pilot.")
@click.option(
    "--width",
    "widths",
    type=click.IntRange(2),
    multiple=True,
    default=(50, 100, 200, 400, 800, 1600, 3200),
    help="Of ten rounds.",
)
@click.option(
    "--round-repeats",
    type=click.IntRange(2),
    default=50,
    help="Campaigns of ten rounds, paper's decoder.",
)
@click.option(
    "--joint-repeats",
    type=click.IntRange(2),
    default=10,
    help="Campaigns of ten rounds, joint recovery.",
)
@options.seed
@options.data("Folder of the tables or official files.")
@options.study(**QUICK)
def command(
    names: tuple[str, ...],
    points: int,
    spacing: str,
    pilots: int,
    repeats: int,
    widths: tuple[int, ...],
    round_repeats: int,
    joint_repeats: int,
    seed: int,
    data: Path | None,
    folder: Path,
    jobs: int,
    plot: bool,
) -> None:
    """Choose widths for a target as the paper and we do, and compare schedules over ten rounds."""
    where = str(data) if data else None
    chosen = [several.load(name, where) for name in dict.fromkeys(names)]
    times = {"median": round_repeats, "joint": joint_repeats}
    made = make(chosen, where, points, spacing, pilots, repeats, sorted(set(widths)), times, seed)
    study.run(made, folder, jobs, plot)


if __name__ == "__main__":
    command()
