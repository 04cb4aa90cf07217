"""Error against bytes: the largest error over a client's upload, for both decoders.

d = 100,000 items, N = 1,000,000 clients in M = 10 multinomial rounds, by default f_i proportional
to (i + 2.7)^-1.07. Bytes are of one client in one round: every counter at the bits that secure
summation needs (`Plan.bytes_per_client`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from experiments import options, output, recovery
from fedtally.answer import figures
from fedtally.domain import IntegerRange
from fedtally.plan import Plan
from fedtally.sketch import Schedule

WIDTHS = tuple(int(width) for width in np.rint(np.geomspace(100, 8000, 10)))
DECODERS = {"median": "paper's decoder", "joint": "joint recovery"}
# Okabe and Ito (2008)
LOOKS = {"shared": ("#D55E00", "s"), "fresh": ("#009E73", "^"), "hybrid": ("#0072B2", "o")}
STYLES: dict[str, dict[str, Any]] = {
    "median": {"linestyle": (0, (4, 2)), "markerfacecolor": "white", "linewidth": 1.6},
    "joint": {"linestyle": "-", "linewidth": 2.2},
}
_INK, _FAINT = "#24292F", "#E6E8EB"
_LABEL_GAP = 0.045  # of the height of the axes, between labels


def bytes_per_client(rows: int, width: int, schedule: str, clients: int, size: int) -> int:
    """Return what one client uploads in one of ten rounds of equal size.

    >>> bytes_per_client(5, 4000, "hybrid", 1_000_000, 100_000)
    45000
    """
    cohort = -(-clients // recovery.ROUNDS)
    domain = IntegerRange(1, size).describe()
    plan = Plan(
        rows,
        width,
        Schedule.parse(schedule),
        recovery.ROUNDS,
        clients,
        cohort,
        domain,
        1,
        bytes(32),
    )
    return plan.bytes_per_client


def measure(
    name: str,
    rows: int,
    widths: tuple[int, ...],
    schedules: tuple[str, ...],
    clients: int,
    size: int,
    repeats: int,
) -> list[dict[str, Any]]:
    """Return a row for each schedule and width: bytes, and median errors of both decoders."""
    frequencies = recovery.law(name, size)
    found: dict[tuple[str, int], list[recovery.Run]] = {
        (s, w): [] for s in schedules for w in widths
    }
    for repeat in range(repeats):
        rng = np.random.default_rng(repeat)
        held, seed = recovery.draw(frequencies, clients, "alike", rng), rng.bytes(32)
        for (schedule, width), runs in found.items():
            runs.append(recovery.run(held, rows, width, schedule, seed))
    return [
        {
            "schedule": schedule,
            "rows": rows,
            "width": width,
            "bytes": bytes_per_client(rows, width, schedule, clients, size),
            "median": recovery.median(runs, "median"),
            "joint": recovery.median(runs, "joint"),
            "gain": (
                recovery.median(runs, "median") / max(recovery.median(runs, "joint"), 0.5 / clients)
            ),
        }
        for (schedule, width), runs in found.items()
    ]


def bytes_saved(table: list[dict[str, Any]], schedule: str) -> tuple[float, float, float] | None:
    """Return the paper's error at the most bytes, those bytes, and the fewer of joint recovery.

    Interpolated between neighbouring sizes, both on logarithmic scales; None where no joint error
    is that large.
    """
    chosen = sorted(
        (row for row in table if row["schedule"] == schedule), key=lambda row: row["bytes"]
    )
    sizes, paper, joint = (
        np.log([row[key] for row in chosen]) for key in ("bytes", "median", "joint")
    )
    if len(chosen) < 2 or not joint[-1] < paper[-1] < joint[0]:
        return None
    after = int(np.argmax(joint <= paper[-1]))
    part = (joint[after - 1] - paper[-1]) / (joint[after - 1] - joint[after])
    fewer = sizes[after - 1] + part * (sizes[after] - sizes[after - 1])
    error, size, saved = (float(np.exp(value)) for value in (paper[-1], sizes[-1], fewer))
    return error, size, saved


def draw_chart(table: list[dict[str, Any]], title: str, path: Path) -> None:
    """Draw error over bytes, logarithmic: schedules by colour, decoders by line, on white."""
    from matplotlib import rc_context, ticker
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(7.6, 5.0), layout="constrained", facecolor="white")
    axes: Any = figure.add_subplot()
    ends = []
    for schedule, (colour, marker) in LOOKS.items():
        chosen = sorted(
            (row for row in table if row["schedule"] == schedule), key=lambda row: row["bytes"]
        )
        for decoder, style in STYLES.items():
            if chosen:
                xs, ys = ([row[key] for row in chosen] for key in ("bytes", decoder))
                axes.plot(
                    xs,
                    ys,
                    color=colour,
                    marker=marker,
                    markersize=4.5,
                    markeredgewidth=1.4,
                    **style,
                )
                ends.append((ys[-1], xs[-1], schedule, decoder, colour))
    axes.set(xscale="log", yscale="log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.EngFormatter("B"))
    axes.xaxis.set_minor_formatter("")
    low, high = np.log10(axes.get_ylim())
    places = _apart([float(np.log10(y) - low) / (high - low) for y, *_ in ends])
    for place, (y, x, schedule, decoder, colour) in zip(places, ends, strict=True):
        axes.annotate(
            f"{schedule}, {'paper' if decoder == 'median' else 'joint'}",
            (x, y),
            (1.02, place),
            textcoords="axes fraction",
            va="center",
            color=colour,
            fontweight="bold" if decoder == "joint" else "normal",
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.6,
                "alpha": 0.6,
                "shrinkB": 3,
            },
        )
    saved = bytes_saved(table, "hybrid")
    if saved:
        error, more, fewer = saved
        arrow = {"arrowstyle": "->", "color": _INK, "linewidth": 1.1, "shrinkA": 5, "shrinkB": 5}
        axes.annotate("", (fewer, error), (more, error), arrowprops=arrow)
        words = f"same error, {more / fewer:.0f} times fewer bytes"
        axes.text(1.12 * fewer, 1.06 * error, words, va="bottom", color=_INK, fontsize="small")
    lines = [
        Line2D([], [], color=_INK, marker="o", markersize=4.5, label=DECODERS[d], **s)
        for d, s in STYLES.items()
    ]
    axes.legend(handles=lines, frameon=False, loc="upper right", labelcolor=_INK)
    axes.set_xlabel("bytes per client and round", color=_INK)
    axes.set_ylabel("largest error of any frequency (share of clients)", color=_INK)
    axes.set_title(
        "Joint recovery, and the paper's decoder of the same sums", loc="left", color=_INK, pad=24
    )
    axes.text(0, 1.02, title, transform=axes.transAxes, va="bottom", color=_INK, fontsize="small")
    axes.tick_params(which="both", colors=_INK)
    axes.grid(which="major", color=_FAINT)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_INK)
    with rc_context({"svg.hashsalt": "fedtally", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)


def _apart(heights: list[float]) -> list[float]:
    """Return heights moved apart as little as keeps a gap between neighbours, in the same order.

    >>> [round(place, 3) for place in _apart([0.5, 0.515, 0.9])]
    [0.485, 0.53, 0.9]
    """
    order = np.argsort(heights, kind="stable")
    groups: list[list[float]] = []  # of neighbours: wanted places of their lowest
    for rank in order:
        groups.append([heights[rank]])
        while len(groups) > 1 and _lowest(groups[-1]) < _lowest(groups[-2]) + _LABEL_GAP * len(
            groups[-2]
        ):
            last = groups.pop()
            groups[-1] += [height - _LABEL_GAP * len(groups[-1]) for height in last]
    placed = [_lowest(group) + _LABEL_GAP * i for group in groups for i in range(len(group))]
    result = np.empty(len(heights))
    result[order] = placed
    return result.tolist()


def _lowest(group: list[float]) -> float:
    return sum(group) / len(group)


@click.command("tradeoff")
@options.quick(widths=(100, 400, 1600), domain_size=5_000, clients=50_000, repeats=1)
@click.option("--law", "name", default="zm", help="An exponent, or zm.")
@click.option("--rows", default=5)
@click.option("--width", "widths", multiple=True, type=int, default=WIDTHS)
@options.schedules(recovery.SCHEDULES, type=click.Choice(recovery.SCHEDULES))
@options.domain_size(recovery.SIZE)
@options.clients(recovery.CLIENTS)
@options.repeats(15)
@options.table
@click.option("--plot", type=click.Path(path_type=Path), help="Also draw it: .svg, .png or .pdf.")
def command(
    name: str,
    rows: int,
    widths: tuple[int, ...],
    schedules: tuple[str, ...],
    domain_size: int,
    clients: int,
    repeats: int,
    path: Path | None,
    plot: Path | None,
) -> None:
    """Measure the largest error of both decoders against the bytes that a client uploads."""
    output.check_path(path)
    if plot is not None:
        figures.check(plot)
    table = measure(name, rows, widths, schedules, clients, domain_size, repeats)
    output.show(table)
    for schedule in schedules:
        saved = bytes_saved(table, schedule)
        if saved:
            error, more, fewer = saved
            click.echo(
                f"{schedule}: the paper's error at {more:,.0f} bytes, {error:.3g}, costs"
                f" {more / fewer:.1f} times less"
            )
    output.save(table, path)
    if plot is not None:
        shape = "(rank + 2.7)^-1.07" if name == "zm" else f"rank^-{name}"
        size = (
            f"{domain_size:,} items, {clients:,} clients in {recovery.ROUNDS} rounds, {rows} rows"
        )
        draw_chart(table, f"{size}, frequencies proportional to {shape}", plot)
