"""Figures from plain tables.

No other file draws. Drawing needs matplotlib (extra ``plot``), which is imported inside functions.
Figures are made without pyplot, so no global state changes, no figure stays in memory, and no
display is needed. The colours are those of Okabe and Ito (2008), which colour-blind readers can
tell apart, even in grey.
"""

from __future__ import annotations

import io
import math
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedtally.base.archive import replacing
from fedtally.base.text import UNKNOWN, escaped, one_of, shortened
from fedtally.errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg", ".pdf")
_BLUE, _ORANGE, _GREY, _DARK = "#0072B2", "#D55E00", "#5F5F5F", "#1A1A1A"
_PALE = "#A9CBE3"
_CYCLE = (_BLUE, _ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
# Columns of a terminal: a longer label would leave no room for its bar. The second is for phones.
_LONGEST_LABEL, _LONGEST_IF_NARROW = 30, 16
_ROUNDING = 1e-9  # of a share: a narrower interval has no width
_NARROW = 4.0  # inches of a figure for a phone: its text is as large as the page's
_LACKS = f"{UNKNOWN}: not in the fonts; numbers are ranks"
_NO_LETTERS = re.compile("last ?resort|color", re.IGNORECASE)  # fonts of boxes, and of pictures
_CELLS_SEEN = 60  # cells from end to end of a map on which each can be seen
_CROWD = 4  # cells that deserve a closer view
_CENTRES = 200  # the most frequent cells, around which others may crowd
_LETTER: dict[str, Any] = {
    "textcoords": "offset points",
    "ha": "right",
    "color": _ORANGE,
    "fontweight": "bold",
    "fontsize": "small",
}
_TITLE_LINE = 76  # characters of a title that fit above a chart of seven inches
_NARROW_TITLE_LINE = 24  # above a chart for a phone, beside whose bars labels stand


class Bar(Protocol):
    """A bar of `top_items`: an item, its frequency, and its limits, if there are any.

    The limits are of the share among the clients, and then of that in a population of which they
    are a sample.
    """

    @property
    def item(self) -> str | int: ...  # noqa: D102
    @property
    def frequency(self) -> float: ...  # noqa: D102
    @property
    def low(self) -> float | None: ...  # noqa: D102
    @property
    def high(self) -> float | None: ...  # noqa: D102
    @property
    def population_low(self) -> float | None: ...  # noqa: D102
    @property
    def population_high(self) -> float | None: ...  # noqa: D102


class RoundPoint(Protocol):
    """A point of `lines_by_round`: a share in some rounds, and its limits."""

    @property
    def round(self) -> int: ...  # noqa: D102
    @property
    def frequency(self) -> float: ...  # noqa: D102
    @property
    def low(self) -> float: ...  # noqa: D102
    @property
    def high(self) -> float: ...  # noqa: D102


class Point(NamedTuple):
    """One point of a curve with a band: x, the median, and the ends of the band."""

    x: float
    middle: float
    low: float
    high: float


def check(path: str | os.PathLike[str]) -> None:
    """Raise an error unless a figure can be drawn to `path`.

    Call it before a long run, so that the error does not come after the run.

    Raises:
        MissingExtraError: matplotlib is not installed.
        InvalidInputError: the name ends in an unknown format.

    >>> check("answer.gif")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: a plot must end in .png, .svg or .pdf, got 'answer.gif'
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InvalidInputError(f"a plot must end in .png, .svg or .pdf, got {os.fspath(path)!r}")
    _new_figure(1.0, 1.0)


def top_items(
    estimates: Sequence[Bar],
    num_clients: int,
    *,
    truth: Sequence[float] | None = None,
    doubtful: Sequence[bool] | None = None,
    confidence: float | None = None,
    note: str = "",
    unit: str = "clients",
    narrow: bool = False,
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw horizontal bars of estimated frequencies, the first on top, with their limits.

    Dark lines are limits of the shares among these clients, and pale bars behind them are limits if
    the clients stand for more people. An item that cannot be told from 0 has no bar, and a thin
    line up to the most that it may be. Where true frequencies are known they are marked, and a
    second panel shows how far each estimate is from its truth. Control characters are escaped.
    Letters that the fonts of matplotlib's settings lack are drawn in another font of the machine
    that has them. If none has, they are drawn as replacement characters, behind the item's rank,
    and a line says so.

    Args:
        estimates: objects with an item, its frequency (share of clients, 0 to 1) and its limits or
            None, most frequent first.
        confidence: the confidence of the limits, for the legend.
        num_clients: the clients of which the frequencies are shares.
        truth: true shares of clients, one for each estimate.
        doubtful: whether each item cannot be told from 0; None: each can.
        note: a text above the panels.
        unit: the plural of the unit that is counted: clients, or their contributions.
        narrow: for a phone, with short labels and without the second panel.
        path: where to write the figure, too.

    >>> class Drink(NamedTuple):
    ...     item: str
    ...     frequency: float
    ...     low: float | None = None
    ...     high: float | None = None
    ...     population_low: float | None = None
    ...     population_high: float | None = None
    >>> drinks = [Drink("tea", 0.6, 0.58, 0.62, 0.55, 0.65), Drink("coffee", 0.4)]
    >>> figure = top_items(drinks, 1000, truth=[0.59, 0.41])
    >>> figure.axes[0].get_xlabel()
    'share of 1,000 clients, in %'
    """
    has_errors = bool(estimates) and truth is not None and not narrow
    height = 1.4 + 0.26 * max(4, len(estimates))
    width = _NARROW if narrow else 9.5 if has_errors else 7.0
    figure, axes, *spread = _new_figure(width, height, (3, 2) if has_errors else (1,))
    places = range(len(estimates))
    families, drawn = _fonts("".join(escaped(str(estimate.item)) for estimate in estimates))
    thin = [False] * len(estimates) if doubtful is None else doubtful
    bars = [100 * e.frequency * (not is_thin) for e, is_thin in zip(estimates, thin, strict=True)]
    named = "estimated" * any(bars)
    axes.barh(places, bars, color=_BLUE, height=0.72, label=named)
    among, those = _took_part(num_clients, unit)
    _draw_both_readings(axes, estimates, thin, confidence, among)
    if truth is not None:
        axes.plot(
            [100 * f for f in truth],
            places,
            "|",
            color=_ORANGE,
            markersize=11,
            markeredgewidth=2.5,
            label="true",
            zorder=3,
        )
    _legend_below(figure, axes, columns=1 if narrow else 2)
    labels = [_label(rank, e.item, drawn, narrow) for rank, e in enumerate(estimates, start=1)]
    axes.set_yticks(places, labels, fontfamily=families)
    # From large to small: the first item stands on top.
    axes.set_ylim(max(1, len(estimates)) - 0.4, -0.6)
    # To the right: beside long labels the panel may be narrower than this text.
    lacks = f"\n{_LACKS}" if any(UNKNOWN in label for label in labels) else ""
    axes.set_xlabel(f"share of {those}, in %{lacks}", loc="right")
    title = _leader(estimates, labels, narrow) or "Most frequent items"
    axes.set_title(title, loc="left", fontfamily=families)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    if min(bars, default=0.0) < 0:  # estimates of rare items may be negative
        axes.axvline(0, color=_GREY, linewidth=0.8)
    for panel in spread:
        _draw_errors(panel, estimates, truth or (), thin)
    _note(figure, note)
    return _written(figure, path)


def _took_part(number: int, unit: str) -> tuple[str, str]:
    """Return those that took part, as a legend and as an axis name them.

    >>> _took_part(1000, "clients"), _took_part(1, "people")
    (('these clients', '1,000 clients'), ('this one person', '1 person'))
    """
    if number == 1:
        return f"this one {one_of(unit)}", f"1 {one_of(unit)}"
    return f"these {unit}", f"{number:,} {unit}"


def _leader(estimates: Sequence[Bar], labels: Sequence[str], narrow: bool) -> str:
    """Return which item is surely the most frequent of a list; "" where none is.

    It is where its limits are above those of all others.
    """
    least = estimates[0].low if len(estimates) > 1 else None
    if least is None or not all(one.high is not None and least > one.high for one in estimates[1:]):
        return ""
    title = f"The most frequent is {labels[0]}: {100 * estimates[0].frequency:.3g} %"
    return textwrap.fill(title, _NARROW_TITLE_LINE) if narrow else title


def _legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Name what is drawn, if there is more than bars: the bars first, then the narrower limits."""
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = ("estimated", "among", "if they stand", "true")
    names = sorted(named, key=lambda name: [part in name for part in order].index(True))
    if len(names) > 1:
        figure.legend(
            [named[name] for name in names],
            names,
            frameon=False,
            loc="outside lower center",  # beside no bar
            ncols=columns,
        )


def _draw_both_readings(
    axes: Axes,
    estimates: Sequence[Bar],
    thin: Sequence[bool],
    confidence: float | None,
    those: str,
) -> None:
    """Draw limits among the clients as dark lines, and of a population as pale bars behind them."""
    level = "limits" if confidence is None else f"{100 * confidence:.12g} %"
    _draw_limits(axes, estimates, [0.0] * len(estimates), thin, f"{level}: among {those}")
    ends = [
        (place, 100 * e.population_low, 100 * e.population_high, 0.1 if is_thin else 0.4)
        for place, (e, is_thin) in enumerate(zip(estimates, thin, strict=True))
        if e.population_low is not None and e.population_high is not None
    ]
    if ends:
        where, low, high, height = zip(*ends, strict=True)
        length = [most - least for least, most in zip(low, high, strict=True)]
        label = f"{level}: if they stand for more people"
        axes.barh(where, length, left=low, height=height, color=_PALE, label=label, zorder=3)


def _draw_limits(
    axes: Axes,
    estimates: Sequence[Bar],
    origins: Sequence[float],
    thin: Sequence[bool],
    label: str = "",
) -> None:
    """Draw the limits of each estimate as a line with ends, from its own origin (a share).

    What may be 0 has one end, and a thin line. Exact counts have no line.
    """
    limits = [
        (place, 100 * (e.low - origin), 100 * (e.high - origin), is_thin)
        for place, (e, origin, is_thin) in enumerate(zip(estimates, origins, thin, strict=True))
        if e.low is not None and e.high is not None
    ]
    if not any(high - low > 100 * _ROUNDING for _, low, high, _ in limits):
        return
    where, low, high, are_thin = zip(*limits, strict=True)
    widths = [0.8 if is_thin else 1.6 for is_thin in are_thin]
    axes.hlines(where, low, high, color=_DARK, linewidth=widths, label=label, zorder=4)
    ends = [(end, place) for place, *both, is_thin in limits for end in both[is_thin:]]
    axes.plot(
        *zip(*ends, strict=True), "|", color=_DARK, markersize=6, markeredgewidth=1.6, zorder=4
    )


def _draw_errors(
    axes: Axes, estimates: Sequence[Bar], truth: Sequence[float], thin: Sequence[bool]
) -> None:
    """Draw how far each estimate is from its truth, with its limits.

    Beside a bar of tens of percent an error of a tenth of a point cannot be seen; here it can.
    """
    _draw_limits(axes, estimates, truth, thin)
    errors = [100 * (e.frequency - true) for e, true in zip(estimates, truth, strict=True)]
    axes.plot(errors, range(len(estimates)), "o", color=_BLUE, markersize=5, zorder=5)
    axes.axvline(0, color=_ORANGE, linewidth=1.2)
    axes.set_title("Estimate minus truth", loc="left")
    axes.set_xlabel("percentage points")
    axes.locator_params(axis="x", nbins=4)  # numbers such as -0.0025 are wide
    axes.xaxis.set_major_formatter("{x:.5g}")
    axes.tick_params(axis="y", length=0, labelleft=False)
    axes.grid(axis="x", color="0.9")


def error_against_bytes(
    curves: Mapping[str, Sequence[Point]],
    costs: Mapping[str, float],
    *,
    marked: Mapping[str, Point] | None = None,
    predicted: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    target: float | None = None,
    title: str = "",
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw the largest error against the bytes per client, on logarithmic axes.

    Errors are given as shares of clients and drawn in percentage points. Each method has a curve
    with a band.

    Args:
        curves: points (bytes per client, error as a share of clients) of each method.
        costs: bytes per client of methods without a curve, drawn as vertical lines.
        marked: points that stand out, such as a plan. An error of 0 stands at the lower end, since
            the axis has no 0.
        predicted: curves (bytes per client, error) without points, which end where the error is 0.
        target: the error that is asked for, drawn as a horizontal line.
        title: the title of the figure.
        path: where to write the figure, too.

    >>> figure = error_against_bytes({"hybrid": [Point(1e3, 0.01, 0.008, 0.012)]}, {"one-hot": 5e4})
    >>> figure.axes[0].get_xlabel()
    'bytes per client'
    """
    figure, axes = _new_figure(7.0, 4.6)
    for number, (method, points) in enumerate(curves.items()):
        # Shifted by 1.5 % for each curve, so that points of equal bytes stand side by side.
        _draw_curve(axes, method, points, number, 1.015 ** (number - (len(curves) - 1) / 2))
    for number, (method, cost) in enumerate(costs.items()):
        axes.axvline(
            cost, color=_GREY, linestyle=("--", ":")[number % 2], linewidth=1.2, label=method
        )
    for number, (name, curve) in enumerate((predicted or {}).items()):
        above = sorted((x, 100 * error) for x, error in curve if error > 0)
        look = {
            "color": _CYCLE[len(curves) % len(_CYCLE)],
            "linestyle": ("-", "--", ":")[number % 3],
        }
        axes.plot([x for x, _ in above], [error for _, error in above], label=name, **look)
    if target is not None:
        axes.axhline(
            100 * target, color=_DARK, linestyle=(0, (5, 3)), linewidth=1.2, label="asked for"
        )
    axes.set_xscale("log")
    if marked or _largest(curves, predicted or {}, target) > 0:
        axes.set_yscale("log")
        _draw_stars(axes, marked or {})
        _label_ticks(axes.yaxis, lambda value, _: f"{value:.5g}")
    else:  # without any error there is nothing to draw on a logarithmic axis
        axes.set_ylim(0, 1)
    _label_ticks(axes.xaxis, _bytes_label)
    side_by_side = "" if len(curves) < 2 else "; points of equal bytes stand side by side"
    axes.set_xlabel(f"bytes per client{side_by_side}")
    axes.set_ylabel("largest error (percentage points)")
    lines = [textwrap.fill(line, _TITLE_LINE) for line in title.splitlines()]
    axes.set_title("\n".join(lines), loc="left", fontsize="medium")
    axes.grid(which="major", color="0.9")
    axes.legend(fontsize="small", framealpha=0.9, edgecolor="none")
    return _written(figure, path)


def tradeoff(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    plan: tuple[float, float],
    own: str,
    *,
    unit: str = "client",
    narrow: bool = False,
) -> Figure:
    """Draw curves of the largest error against bytes, on logarithmic axes, with a plan as a star.

    Args:
        curves: points (bytes per client, error as a share) of each curve, by its name.
        plan: the point of the plan.
        own: the name of the plan's curve, which is drawn thicker.
        unit: what a client is called.
        narrow: for a phone.

    >>> figure = tradeoff({"epsilon 1": [(1e3, 0.02), (2e3, 0.01)]}, (1e3, 0.02), "epsilon 1")
    >>> figure.axes[0].get_xlabel()
    'bytes per client'
    """
    figure: Figure
    figure, axes = _new_figure(*((_NARROW, 4.4) if narrow else (7.0, 4.4)))
    others = [name for name in curves if name != own]
    for name, points in curves.items():
        number = 0 if name == own else 1 + others.index(name)
        axes.plot(
            [size for size, _ in points],
            [100 * error for _, error in points],
            color=_CYCLE[number % len(_CYCLE)],
            marker=_MARKERS[number % len(_MARKERS)],
            linewidth=3.0 if name == own else 1.4,
            markersize=6 if name == own else 4,
            zorder=4 if name == own else 3,
            label=name,
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    star = {"markersize": 19, "markeredgecolor": "w", "color": _DARK, "zorder": 6}
    axes.plot([plan[0]], [100 * plan[1]], "*", label="the plan", **star)
    _label_ticks(axes.yaxis, lambda value, _: f"{value:.5g}")
    _label_ticks(axes.xaxis, _bytes_label)
    if narrow:  # labels such as 20 kB are wide
        axes.set_xticks(axes.get_xticks()[::2])
    axes.set_xlabel(f"bytes per {unit}")
    axes.set_ylabel("largest error (percentage points)")
    axes.grid(which="major", color="0.9")
    figure.legend(frameon=False, loc="outside lower center", ncols=3 if narrow else 4)
    return figure


def rank_frequency(
    frequencies: Sequence[float],
    number: int,
    floor: float,
    unit: str = "clients",
    narrow: bool = False,
) -> Figure:
    """Draw all estimates against their rank, and the noise floor, on logarithmic axes.

    Args:
        frequencies: shares, largest first; those that are not positive have no place.
        number: how many of them stand above noise.
        floor: the share below which an estimate may be noise alone, above 0.
        unit: the plural of the unit that is counted.
        narrow: for a phone.

    >>> rank_frequency([0.5, 0.25, 0.01], 2, 0.05).axes[0].get_xlabel()
    'rank: the most frequent item is 1'
    """
    figure: Figure
    figure, axes = _new_figure(_wide(narrow), 3.2)
    positive = [100 * share for share in frequencies if share > 0]
    ranks = _spread_ranks(len(positive))
    sure = [rank for rank in ranks if rank <= number]
    rest = [rank for rank in ranks if rank >= number]
    axes.plot(rest, [positive[rank - 1] for rank in rest], color="0.65", linewidth=2)
    axes.plot(sure, [positive[rank - 1] for rank in sure], color=_BLUE, linewidth=2.5)
    axes.axhline(100 * floor, color=_ORANGE, linewidth=1.2, linestyle=(0, (5, 3)))
    axes.axhspan(0, 100 * floor, color=_ORANGE, alpha=0.07, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    lowest = max(min(positive), 100 * floor / 30)
    axes.set_ylim(lowest / 2, 2 * positive[0])
    axes.text(
        0.02,
        0.03,
        f"noise floor, {100 * floor:.2g} %: below this line\nan estimate cannot be told from 0",
        transform=axes.transAxes,
        color=_ORANGE,
        fontsize="small",
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.xaxis.set_minor_formatter("")
    _label_ticks(axes.yaxis, lambda value, _: f"{value:.6g}")
    axes.set_xlabel("rank: the most frequent item is 1")
    axes.set_ylabel(f"share of {unit}, in %")
    axes.grid(color="0.9")
    return figure


def lines_by_round(
    series: Mapping[str | int, Sequence[RoundPoint]],
    labels: Mapping[int, str],
    *,
    since: Mapping[str | int, int] | None = None,
    confidence: float = 0.95,
    title: str = "Shares by round",
    narrow: bool = False,
    note: str = "",
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw the shares of items by round, each a line with the band of its limits.

    Where rounds are missing a line is dotted. A mark shows where an item's level is likely new.

    Args:
        series: the points of each item, at most seven items.
        labels: the labels of rounds; rounds without one have their number.
        since: the rounds from which levels are new, of items that changed.
        confidence: the confidence of the limits, a fraction, for the line below the title.
        title: what the lines show.
        narrow: for a phone.
        note: a text above the lines.
        path: where to write the figure, too.

    >>> class Share(NamedTuple):
    ...     round: int
    ...     frequency: float
    ...     low: float
    ...     high: float
    >>> points = [Share(0, 0.2, 0.19, 0.21), Share(1, 0.3, 0.29, 0.31)]
    >>> lines_by_round({"tea": points}, {}).axes[0].get_xlabel()
    'round'
    """
    figure, axes = _new_figure(*((_NARROW, 4.2) if narrow else (7.0, 4.0)))
    families, drawn = _fonts("".join(escaped(str(text)) for text in [*series, *labels.values()]))
    for place, (item, points) in enumerate(series.items()):
        label = _label(place + 1, item, drawn, narrow)
        _draw_line(axes, place, points, label, (since or {}).get(item))
    rounds = sorted({point.round for line in series.values() for point in line})
    _label_rounds(axes, rounds, labels, drawn)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("share, in %")
    axes.grid(axis="y", color="0.9")
    circled = "; circles: first rounds of new levels" if since else ""
    bands = f"bands: {100 * confidence:.12g} % limits in each round{circled}"
    width = _NARROW_TITLE_LINE + 16 if narrow else _TITLE_LINE
    lines = (textwrap.fill(text, width) for text in (title, bands))
    axes.set_title("\n".join(lines), loc="left", fontsize="medium")
    legend = figure.legend(
        frameon=False, loc="outside lower center", ncols=2 if narrow else 4, prop={"size": "medium"}
    )
    for text in [*legend.get_texts(), *axes.get_xticklabels()]:
        text.set_fontfamily(families)
    _note(figure, note)
    return _written(figure, path)


def _draw_line(
    axes: Axes, place: int, points: Sequence[RoundPoint], label: str, since: int | None
) -> None:
    """Draw a line with its band, its colour and marker by its place, and a circle at a round."""
    color, marker = _CYCLE[place], _MARKERS[place]
    xs = [point.round for point in points]
    low, high = [100 * point.low for point in points], [100 * point.high for point in points]
    shares = [100 * max(0.0, point.frequency) for point in points]
    axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(xs, shares, linestyle=(0, (1, 2)), linewidth=1.2, color=color, zorder=3)
    look: dict[str, Any] = {"color": color, "marker": marker, "zorder": 3}
    for run in _runs(xs):
        # not clipped: a share of 0 lies on the axis
        axes.plot(xs[run], shares[run], markersize=4, linewidth=1.8, clip_on=False, **look)
    axes.plot([], [], label=label, markersize=5, **look)
    if since is not None:
        ring: dict[str, Any] = {"color": "none", "markeredgecolor": color, "clip_on": False}
        ring |= {"markeredgewidth": 1.6, "zorder": 4}
        axes.plot([since], [shares[xs.index(since)]], "o", markersize=12, **ring)


def _runs(rounds: Sequence[int]) -> list[slice]:
    """Return the stretches of rounds that follow each other.

    >>> _runs([0, 1, 4, 5, 6, 9])
    [slice(0, 2, None), slice(2, 5, None), slice(5, 6, None)]
    """
    breaks = [n for n in range(1, len(rounds)) if rounds[n] != rounds[n - 1] + 1]
    return [slice(*ends) for ends in pairwise([0, *breaks, len(rounds)])]


def _label_rounds(
    axes: Axes, rounds: Sequence[int], labels: Mapping[int, str], drawn: Set[int]
) -> None:
    """Label about six of the rounds, the last one among them."""
    step = max(1, -(-len(rounds) // 6))
    shown = list(rounds[::-1][::step])[::-1]
    texts = [shortened(_drawable(labels.get(number, number), drawn), 12) for number in shown]
    is_long = max(map(len, texts)) > 5
    texts = [text.replace("$", r"\$") for text in texts]
    axes.set_xticks(
        shown, texts, rotation=30 if is_long else 0, ha="right" if is_long else "center"
    )
    axes.set_xlabel("" if labels else "round")


def _spread_ranks(number: int) -> list[int]:
    """Return ranks from 1 to a number, all at first, then ever fewer: a curve needs no more.

    >>> _spread_ranks(5), len(_spread_ranks(30_000)) < 400
    ([1, 2, 3, 4, 5], True)
    """
    ranks, rank = [], 1
    while rank < number:
        ranks.append(rank)
        rank = max(rank + 1, round(rank * 1.03))
    return [*ranks, number]


def cell_map(
    centres: Sequence[Sequence[float]],
    frequencies: Sequence[float],
    step: float,
    unit: str = "clients",
    narrow: bool = False,
) -> Figure:
    """Draw a map of cells, darker where more frequent, and a closer view where they crowd.

    A degree of longitude is drawn as long as it is there, beside one of latitude.

    Args:
        centres: latitude and longitude of at least one cell, in degrees.
        frequencies: their shares, all above 0.
        step: the width of a cell in degrees.
        unit: the plural of the unit that is counted.
        narrow: for a phone, with fewer closer views.

    >>> len(cell_map([(40.0, -74.0), (40.1, -74.0)], [0.5, 0.25], 0.1).axes)  # and a colour bar
    2
    """
    import numpy as np

    places, shares = _side_by_side(centres), 100 * np.asarray(frequencies, float)
    crowds = _crowds(places, shares, step)[: 2 if narrow else 3]
    figure = _empty_figure(_wide(narrow), _map_height(places, step, crowds, narrow))
    grid = figure.add_gridspec(
        2 if crowds else 1, max(1, len(crowds)), height_ratios=(3, 2) if crowds else None
    )
    colours = _colours(shares)
    whole = figure.add_subplot(grid[0, :])
    _draw_cells(whole, places, shares, step, colours, least=4.0)
    whole.locator_params(axis="x", nbins=4 if narrow else 7)
    # on a flat map few lines of text fit above each other
    lines = int(_drawn_height(places, step, narrow) / 0.3)
    whole.locator_params(axis="y", nbins=min(6, max(1, lines)))
    for number, (south, north, west, east) in enumerate(crowds):
        letter = "ABC"[number]
        whole.add_patch(_outline(south, north, west, east))
        whole.annotate(letter, (west, north), xytext=(-2, 2), **_LETTER)
        inset = figure.add_subplot(grid[1, number])
        inside = (places[:, 0] > south) & (places[:, 0] < north)
        inside &= (places[:, 1] > west) & (places[:, 1] < east)
        _draw_cells(inset, places[inside], shares[inside], step, colours)
        inset.set(xlim=(west, east), ylim=(south, north), xticks=[], yticks=[])
        inset.spines[["top", "right"]].set_visible(True)
        middle = (
            _degrees(round((south + north) / 2, 1), "NS"),
            _degrees(round((west + east) / 2, 1), "EW"),
        )
        inset.set_title(
            f"{letter}: {', '.join(middle)}", loc="left", color=_ORANGE, fontsize="small"
        )
    bar = figure.colorbar(colours, ax=whole, shrink=0.9, pad=0.02)
    bar.set_label(f"% of {unit}")
    bar.ax.tick_params(labelsize="small")
    if colours.norm.vmin:  # by factors
        _label_ticks(bar.ax.yaxis, lambda value, _: f"{value:.3g}")
    return figure


def _colours(shares: Any) -> Any:
    """Return how shares in percent become colours: by factors where they differ much."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    low, high = float(min(shares)), float(max(shares))
    ramp = LinearSegmentedColormap.from_list("share", ["#A9CCE6", _BLUE, "#00213A"])
    return ScalarMappable(LogNorm(low, high) if high > 5 * low else Normalize(0, high), ramp)


def has_closer_views(
    centres: Sequence[Sequence[float]], frequencies: Sequence[float], step: float
) -> bool:
    """Return whether `cell_map` draws closer views of these cells.

    >>> has_closer_views([(40.0, -74.0), (40.1, -74.0)], [0.5, 0.25], 0.1)
    False
    """
    import numpy as np

    return bool(_crowds(_side_by_side(centres), np.asarray(frequencies, float), step))


def _side_by_side(centres: Sequence[Sequence[float]]) -> Any:
    """Return centres of cells with cells on either side of the date line beside each other.

    Where all lie within half of the globe, longitudes run through 180 degrees, so that they span
    the smallest arc that holds all cells. Else they stay: a map of the world begins in the west.

    >>> _side_by_side([(-17.0, 179.0), (-17.0, -179.0)]).tolist()
    [[-17.0, 179.0], [-17.0, 181.0]]
    """
    import numpy as np

    places = np.array(centres, float)
    longitudes = np.unique(places[:, 1] % 360.0)
    gaps = np.diff(longitudes, append=longitudes[0] + 360.0)
    widest = int(np.argmax(gaps))
    first = longitudes[(widest + 1) % len(longitudes)]
    arc = 360.0 - gaps[widest]
    if arc < min(180.0, np.ptp(places[:, 1])):
        places[:, 1] = first + (places[:, 1] - first) % 360.0
    return places


def _stretch(latitudes: Sequence[float]) -> float:
    """Return how much longer a degree of latitude is there than one of longitude."""
    middle = (min(latitudes) + max(latitudes)) / 2
    return 1.0 / max(0.1, math.cos(math.radians(middle)))


def _extent(places: Any, step: float) -> tuple[float, float]:
    """Return the height and the width of the map of some cells, in degrees of latitude."""
    height, width = (float(ends) + step for ends in places.max(axis=0) - places.min(axis=0))
    return height, width / _stretch(places[:, 0])


def _map_height(places: Any, step: float, crowds: Sequence[Any], narrow: bool) -> float:
    """Return the inches that a map needs, so that it leaves little of its figure empty."""
    whole, across = max(_drawn_height(places, step, narrow), 1.8), _across(narrow)
    return whole + 0.7 + (across / len(crowds) * 0.9 + 0.5 if crowds else 0.0)


def _wide(narrow: bool) -> float:
    """Return the inches of a whole figure."""
    return _NARROW if narrow else 7.0


def _across(narrow: bool) -> float:
    """Return the inches from the left to the right of a map."""
    return _wide(narrow) - 1.5


def _drawn_height(places: Any, step: float, narrow: bool) -> float:
    """Return the inches from the bottom to the top of a map."""
    height, width = _extent(places, step)
    return min(_across(narrow) * height / width, 4.5)


def _crowds(places: Any, shares: Any, step: float) -> list[tuple[float, float, float, float]]:
    """Return where cells crowd, the largest share first: south, north, west and east of each.

    There is none where each cell is large enough to see on the whole map.
    """
    import numpy as np

    height, width = _extent(places, step)
    if max(height, width) < _CELLS_SEEN * step:
        return []
    stretch = np.array([1.0, _stretch(places[:, 0])])
    reach = max(height, width) / 24 * stretch
    found: list[tuple[float, float, float, float]] = []
    free = np.ones(len(places), bool)
    for place in places[np.argsort(-shares)][:_CENTRES]:
        near = (np.abs(places - place) < reach).all(axis=1)
        if near.sum() < _CROWD or not free[near].all():
            continue
        middle = (places[near].min(axis=0) + places[near].max(axis=0)) / 2
        free &= (np.abs(places - middle) > 2 * reach).any(axis=1)
        half = (np.abs(places[near] - middle) / stretch).max() + 1.5 * step
        (south, west), (north, east) = (middle + way * half * stretch for way in (-1, 1))
        found.append((float(south), float(north), float(west), float(east)))
    return found


def _draw_cells(
    axes: Axes, places: Any, shares: Any, step: float, colours: Any, least: float = 0.0
) -> None:
    """Draw cells, the most frequent on top, each at least as many points wide and high."""
    from matplotlib.collections import PolyCollection

    order = shares.argsort()
    half = step / 2
    corners = [(-half, -half), (-half, half), (half, half), (half, -half)]
    cells = [[(x + dx, y + dy) for dx, dy in corners] for y, x in places[order].tolist()]
    axes.add_collection(
        PolyCollection(cells, array=shares[order], norm=colours.norm, cmap=colours.cmap)
    )
    if least:  # a cell that would be too small to see is drawn larger
        axes.scatter(
            places[order, 1],
            places[order, 0],
            least**2,
            shares[order],
            marker="s",
            norm=colours.norm,
            cmap=colours.cmap,
            linewidths=0,
        )
    axes.autoscale_view()
    axes.margins(0.04)
    axes.set_aspect(_stretch(places[:, 0]))
    axes.xaxis.set_major_formatter(lambda x, _: _degrees(x, "EW"))
    axes.yaxis.set_major_formatter(lambda y, _: _degrees(y, "NS"))
    axes.tick_params(labelsize="small")
    axes.grid(color="0.9")
    axes.set_axisbelow(True)


def _degrees(value: float, sides: str) -> str:
    """Return a latitude or a longitude as maps write it.

    >>> [_degrees(value, "EW") for value in (-73.5, 0.0, 180.0, 200.0)], _degrees(40.0, "NS")
    (['73.5° W', '0°', '180°', '160° W'], '40° N')
    """
    if sides == "EW" and value > 180:
        value -= 360
    side = f" {sides[int(value < 0)]}" if round(value, 9) % 180 else ""
    return f"{abs(value):.6g}°{side}"


def _outline(south: float, north: float, west: float, east: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((west, south), east - west, north - south, fill=False, edgecolor=_ORANGE)


def as_svg(figure: Figure) -> bytes:
    """Return a figure as an SVG document, without the time at which it was drawn.

    >>> as_svg(rank_frequency([0.5, 0.25, 0.01], 2, 0.05))[:5]
    b'<?xml'
    """
    stream = io.BytesIO()
    with warnings.catch_warnings():  # a glyph that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


def _draw_curve(
    axes: Axes, method: str, points: Sequence[Point], number: int, shift: float
) -> None:
    """Draw a method's errors with their bands, at its bytes times `shift`."""
    points = sorted(points)
    look = {
        "color": _CYCLE[number % len(_CYCLE)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 5,
    }
    # A logarithmic axis has no 0: the label says where the curve goes.
    exact = [point.x for point in points if point.middle <= 0]
    label = f"{method}: 0 from {_bytes_label(min(exact), None)}" if exact else method
    xs = [point.x * shift for point in points]
    _draw_bands(axes, xs, points, capsize=3, label=label, **look)


def _largest(
    curves: Mapping[str, Sequence[Point]],
    predicted: Mapping[str, Sequence[tuple[float, float]]],
    target: float | None,
) -> float:
    """Return the largest error that is drawn, in shares of clients."""
    measured = [point.high for points in curves.values() for point in points]
    foreseen = [error for curve in predicted.values() for _, error in curve]
    return max([*measured, *foreseen, 0.0 if target is None else target])


def _draw_bands(axes: Axes, xs: Sequence[float], points: Sequence[Point], **look: Any) -> None:
    """Draw points, and their bands, in percentage points."""
    spread = [
        [100 * (p.middle - p.low) for p in points],
        [100 * (p.high - p.middle) for p in points],
    ]
    axes.errorbar(xs, [100 * p.middle for p in points], spread, **look)


def _draw_stars(axes: Axes, marked: Mapping[str, Point]) -> None:
    lowest = axes.get_ylim()[0] / 100
    for number, (name, point) in enumerate(marked.items()):
        is_zero = point.middle <= 0
        shown = Point(point.x, lowest, lowest, max(lowest, point.high)) if is_zero else point
        look = {
            "color": _CYCLE[(1 + number) % len(_CYCLE)],
            "marker": "*",
            "markersize": 17,
            "markeredgecolor": "w",
        }
        label = f"{name}: 0" if is_zero else name
        _draw_bands(
            axes,
            [point.x],
            [shown],
            label=label,
            zorder=6,
            capsize=5,
            elinewidth=2,
            linestyle="none",
            **look,
        )


def _label_ticks(axis: Axis, label: Callable[[float, object], str]) -> None:
    """Label round numbers of a logarithmic axis, at least four even if it spans little."""
    low, high = axis.get_view_interval()
    axis.set_ticks(_round_numbers(low, high))
    axis.set_major_formatter(label)
    axis.set_minor_formatter("")


def _round_numbers(low: float, high: float) -> list[float]:
    """Return at least four round numbers between two positive ones.

    They differ by factors, or by equal steps where the two are close.

    >>> _round_numbers(0.9, 2000), _round_numbers(90, 700)
    ([1.0, 10.0, 100.0, 1000.0], [100.0, 150.0, 200.0, 300.0, 500.0, 700.0])
    >>> _round_numbers(21, 34)
    [22.0, 24.0, 26.0, 28.0, 30.0, 32.0, 34.0]
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for leading in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        found = [digit * 10.0**power for power in decades for digit in leading]
        within = [number for number in found if low <= number <= high]
        if len(within) >= 4:
            return within
    power = 10.0 ** math.floor(math.log10((high - low) / 4))
    step = max(digit * power for digit in (1, 2, 5) if digit * power <= (high - low) / 4)
    return [step * place for place in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _written(figure: Figure, path: str | os.PathLike[str] | None) -> Figure:
    """Write the figure, whole or not at all, if there is a path; its suffix gives the format."""
    if path is not None:
        check(path)
        with replacing(path) as temporary:
            figure.savefig(temporary, format=Path(path).suffix.lower()[1:], dpi=150)
    return figure


def _bytes_label(value: float, _: object) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.5g} {unit}"
    return f"{value:.5g} B"


def _label(rank: int, item: str | int, drawn: Set[int], narrow: bool = False) -> str:
    """Return the label of an item that matplotlib can draw, elided in the middle if it is long.

    What is not in `drawn`, the code points that the fonts can show, becomes the replacement
    character. Items that differ in such letters alone are told apart by their ranks.
    """
    text = _drawable(item, drawn)
    longest = _LONGEST_IF_NARROW if narrow else _LONGEST_LABEL
    number = f"{rank}. " if UNKNOWN in text else ""
    text = number + shortened(text, longest - len(number))
    return text.replace("$", r"\$")  # matplotlib reads $...$ as mathematics


def _note(figure: Figure, note: str) -> None:
    """Write a note above a figure, which may hold the labels of rounds."""
    if note:
        families, drawn = _fonts(note)
        text = _drawable(note, drawn).replace("$", r"\$")
        look: dict[str, Any] = {"fontsize": "small", "color": _ORANGE, "fontfamily": families}
        figure.suptitle(text, x=0.99, ha="right", **look)


def _drawable(label: str | int, drawn: Set[int]) -> str:
    letters = escaped(str(label))
    return "".join(letter if ord(letter) in drawn else UNKNOWN for letter in letters)


def _fonts(text: str) -> tuple[list[str], set[int]]:
    """Return the names of fonts for the letters of a text, and the code points that they can show.

    The fonts of matplotlib's settings (`font.family`) come first, and then others of the machine
    that have letters which these lack.
    """
    import matplotlib as mpl
    from matplotlib import font_manager

    def shown(name: str) -> set[int]:
        # one font a family, as matplotlib itself chooses them
        path = font_manager.findfont(font_manager.FontProperties(family=[name]))
        return set(font_manager.get_font(path).get_charmap())

    families = list(font_manager.FontProperties().get_family())
    drawn = set().union(*map(shown, families))
    lacking = set(map(ord, text)) - drawn
    own = mpl.get_data_path()  # its other fonts are for formulas
    others = {  # upright and of usual weight: of other families matplotlib warns
        font.name
        for font in font_manager.fontManager.ttflist
        if font.weight in (400, "normal")
        and font.style == "normal"
        and not font.fname.startswith(own)
    }
    for name in sorted(others):
        if lacking and not _NO_LETTERS.search(name) and lacking & (found := shown(name)):
            families.append(name)
            drawn |= found
            lacking -= found
    return families, drawn


def _new_figure(width: float, height: float, ratios: Sequence[int] = (1,)) -> list[Any]:
    """Return an empty figure of that many inches, and its panels from left to right.

    The panels have one axis of places, and widths in these ratios.
    """
    figure = _empty_figure(width, height)
    panels = figure.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)  # the grid behind the bars
    return [figure, *panels.flat]


def _empty_figure(width: float, height: float) -> Figure:
    """Return a figure of that many inches without panels."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "charts need matplotlib, which is not installed: pip install 'fedtally[plot]'"
        ) from error

    class Shown(Figure):
        """A figure that a notebook shows also where nothing has imported pyplot."""

        def _repr_png_(self) -> bytes:
            written = io.BytesIO()
            self.savefig(written, format="png")
            return written.getvalue()

    return Shown(figsize=(width, height), layout="constrained")
