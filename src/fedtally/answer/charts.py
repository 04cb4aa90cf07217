"""Charts of plain data: bars, curves and lines. The module `maps` draws cells of a grid."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence, Set
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedtally.answer.figures import (
    BLUE,
    DARK,
    GREY,
    NARROW,
    ORANGE,
    drawable,
    fonts_for,
    inches_across,
    label_ticks,
    new_figure,
    note_above,
    written,
)
from fedtally.base.text import UNKNOWN, escaped, one_of, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PALE = "#A9CBE3"
_CYCLE = (BLUE, ORANGE, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MARKERS = "osD^vPX"
# The most characters of an item's label, on a screen and on a phone: longer ones are shortened, so
# that there is room for the bars.
_LONGEST_LABEL, _LONGEST_IF_NARROW = 30, 16
_ROUNDING = 1e-9  # limits that differ by at most this share differ only by rounding
_LACKS = f"{UNKNOWN}: not in the fonts; numbers are ranks"
_TITLE_LINE = 76  # the most characters in a line of the title of a chart of seven inches
_NARROW_TITLE_LINE = 24  # the most characters in a line of the title of a chart for a phone


class Bar(Protocol):
    """What `top_items` draws for an item: its frequency, and its limits (None: it has no limits).

    `low` and `high` limit the share among these clients. `population_low` and `population_high`
    limit the share in a wider population, of which these clients are a sample.
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
    """What `lines_by_round` draws for an item in a round: its share, and the limits of the share.

    `round` is the number of the round, from 0. If a sum adds up several rounds, it is the number of
    the first of them.
    """

    @property
    def round(self) -> int: ...  # noqa: D102
    @property
    def frequency(self) -> float: ...  # noqa: D102
    @property
    def low(self) -> float: ...  # noqa: D102
    @property
    def high(self) -> float: ...  # noqa: D102


class Point(NamedTuple):
    """One point of a curve: x, the median of the errors at x, and the ends of a band around it.

    `middle` is the median, and `low` and `high` are the ends. Errors are shares of clients.
    """

    x: float
    middle: float
    low: float
    high: float


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

    Dark lines are limits of the shares among these clients. Pale bars behind them are limits of the
    shares in a wider population, of which these clients are a sample. An item that cannot be told
    from 0 has no bar, only a thin line up to its upper limit. If true frequencies are given, they
    are marked, and a second panel shows estimate minus truth.

    Control characters are escaped. Letters that the configured fonts lack are drawn in another font
    of this machine. If no font has a letter, the label shows a replacement character and the item's
    rank, and a line below the chart says so.

    Args:
        estimates: the items with their frequencies (shares, 0 to 1) and limits, most frequent
            first.
        num_clients: the frequencies are shares of this number, counted in `unit`.
        truth: the true share of each item; None: unknown.
        doubtful: for each item, True if it cannot be told from 0; None: every item can.
        confidence: the confidence of the limits, 0 to 1, for the legend; None: not shown.
        note: a text above the panels.
        unit: the plural noun for what is counted, such as clients or contributions.
        narrow: True: the figure is for a phone, with short labels and without the second panel.
        path: the path of the image file; None: no file is written.

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
    width = NARROW if narrow else 9.5 if has_errors else 7.0
    figure, axes, *spread = new_figure(width, height, (3, 2) if has_errors else (1,))
    places = range(len(estimates))
    families, drawn = fonts_for("".join(escaped(str(estimate.item)) for estimate in estimates))
    thin = [False] * len(estimates) if doubtful is None else doubtful
    bars = [100 * e.frequency * (not is_thin) for e, is_thin in zip(estimates, thin, strict=True)]
    named = "estimated" * any(bars)
    axes.barh(places, bars, color=BLUE, height=0.72, label=named)
    among, those = _took_part(num_clients, unit)
    _draw_both_readings(axes, estimates, thin, confidence, among)
    if truth is not None:
        axes.plot(
            [100 * f for f in truth],
            places,
            "|",
            color=ORANGE,
            markersize=11,
            markeredgewidth=2.5,
            label="true",
            zorder=3,
        )
    _legend_below(figure, axes, columns=1 if narrow else 2)
    labels = [_label(rank, e.item, drawn, narrow) for rank, e in enumerate(estimates, start=1)]
    axes.set_yticks(places, labels, fontfamily=families)
    # The larger end comes first, so that the axis runs downwards and the first item is on top.
    axes.set_ylim(max(1, len(estimates)) - 0.4, -0.6)
    # Align to the right: if labels are long, the panel is narrower than this text.
    lacks = f"\n{_LACKS}" if any(UNKNOWN in label for label in labels) else ""
    axes.set_xlabel(f"share of {those}, in %{lacks}", loc="right")
    title = _leader(estimates, labels, narrow) or "Most frequent items"
    axes.set_title(title, loc="left", fontfamily=families)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    if min(bars, default=0.0) < 0:  # estimates of rare items may be negative
        axes.axvline(0, color=GREY, linewidth=0.8)
    for panel in spread:
        _draw_errors(panel, estimates, truth or (), thin)
    note_above(figure, note)
    return written(figure, path)


def _took_part(number: int, unit: str) -> tuple[str, str]:
    """Return two texts on who took part: for the legend, and for the label of the axis.

    Args:
        number: the number of clients, people or contributions.
        unit: the plural noun for them.

    >>> _took_part(1000, "clients"), _took_part(1, "people")
    (('these clients', '1,000 clients'), ('this one person', '1 person'))
    """
    if number == 1:
        return f"this one {one_of(unit)}", f"1 {one_of(unit)}"
    return f"these {unit}", f"{number:,} {unit}"


def _leader(estimates: Sequence[Bar], labels: Sequence[str], narrow: bool) -> str:
    """Return a title that names the most frequent item; "" if it is not sure which item that is.

    It is sure if there are at least two items, and the lower limit of the first is above the upper
    limits of all other listed items.

    Args:
        estimates: the listed items, most frequent first.
        labels: the label of each item, as it is drawn.
        narrow: whether the figure is for a phone: the title is then broken into lines.
    """
    least = estimates[0].low if len(estimates) > 1 else None
    if least is None or not all(one.high is not None and least > one.high for one in estimates[1:]):
        return ""
    title = f"The most frequent is {labels[0]}: {100 * estimates[0].frequency:.3g} %"
    return textwrap.fill(title, _NARROW_TITLE_LINE) if narrow else title


def _legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Draw a legend below the chart, unless it would have fewer than two entries.

    Its order: bars, limits among these clients, limits in a wider population, true shares.
    """
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = ("estimated", "among", "if they stand", "true")
    names = sorted(named, key=lambda name: [part in name for part in order].index(True))
    if len(names) > 1:
        figure.legend(
            [named[name] for name in names],
            names,
            frameon=False,
            loc="outside lower center",  # inside the panel it could cover a bar
            ncols=columns,
        )


def _draw_both_readings(
    axes: Axes,
    estimates: Sequence[Bar],
    thin: Sequence[bool],
    confidence: float | None,
    those: str,
) -> None:
    """Draw both kinds of limits: for these clients as dark lines, for a population as pale bars.

    Args:
        axes: the panel.
        estimates: the listed items; item i is drawn at height i.
        thin: for each item, whether it cannot be told from 0: its limits are drawn thinner.
        confidence: the confidence of the limits, for the legend; None: not shown.
        those: a text on who took part, for the legend, such as "these clients".
    """
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
    """Draw the limits of each estimate as a line with ends, after subtracting its origin.

    If both limits of every estimate are equal but for rounding, as for exact counts, nothing is
    drawn.

    Args:
        axes: the panel.
        estimates: the listed items; item i is drawn at height i.
        origins: for each item, the share that is drawn at 0 of the scale: 0.0, or the true share.
        thin: for each item, whether it cannot be told from 0. Such an item gets a thin line with an
            upper end only.
        label: the entry in the legend; "": no entry.
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
    axes.hlines(where, low, high, color=DARK, linewidth=widths, label=label, zorder=4)
    ends = [(end, place) for place, *both, is_thin in limits for end in both[is_thin:]]
    axes.plot(
        *zip(*ends, strict=True), "|", color=DARK, markersize=6, markeredgewidth=1.6, zorder=4
    )


def _draw_errors(
    axes: Axes, estimates: Sequence[Bar], truth: Sequence[float], thin: Sequence[bool]
) -> None:
    """Draw estimate minus truth of each item, with its limits, in a panel with a scale of its own.

    On the scale of the bars, tens of percent, an error of 0.1 points could not be seen.

    Args:
        axes: the panel.
        estimates: the listed items; item i is drawn at height i.
        truth: the true share of each item.
        thin: for each item, whether it cannot be told from 0: its limits are drawn thinner.
    """
    _draw_limits(axes, estimates, truth, thin)
    errors = [100 * (e.frequency - true) for e, true in zip(estimates, truth, strict=True)]
    axes.plot(errors, range(len(estimates)), "o", color=BLUE, markersize=5, zorder=5)
    axes.axvline(0, color=ORANGE, linewidth=1.2)
    axes.set_title("Estimate minus truth", loc="left")
    axes.set_xlabel("percentage points")
    axes.locator_params(axis="x", nbins=4)  # few labels: numbers such as -0.0025 are wide
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

    Errors are given as shares of clients, and drawn in percentage points. Each method in `curves`
    has a curve with a band. The axis of errors is linear if all errors are 0, nothing is marked
    and there is no target.

    Args:
        curves: each method's points: x is the bytes per client, and the other numbers are errors.
        costs: the bytes per client of further methods, by name: each is drawn as a vertical line.
        marked: single points by name, such as a plan, drawn as stars. A logarithmic axis has no 0,
            so an error of 0 is drawn at the lower end.
        predicted: lines without markers, by name: pairs of bytes per client and predicted error.
            Pairs with error 0 are left out.
        target: the largest error that was asked for, drawn as a horizontal line; None: no line.
        title: the title of the figure.
        path: the path of the image file; None: no file is written.

    >>> figure = error_against_bytes({"hybrid": [Point(1e3, 0.01, 0.008, 0.012)]}, {"one-hot": 5e4})
    >>> figure.axes[0].get_xlabel()
    'bytes per client'
    """
    figure, axes = new_figure(7.0, 4.6)
    for number, (method, points) in enumerate(curves.items()):
        # Shift each curve by 1.5 %, so that points with equal bytes stand side by side.
        _draw_curve(axes, method, points, number, 1.015 ** (number - (len(curves) - 1) / 2))
    for number, (method, cost) in enumerate(costs.items()):
        axes.axvline(
            cost, color=GREY, linestyle=("--", ":")[number % 2], linewidth=1.2, label=method
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
            100 * target, color=DARK, linestyle=(0, (5, 3)), linewidth=1.2, label="asked for"
        )
    axes.set_xscale("log")
    if marked or _largest(curves, predicted or {}, target) > 0:
        axes.set_yscale("log")
        _draw_stars(axes, marked or {})
        label_ticks(axes.yaxis, lambda value, _: f"{value:.5g}")
    else:  # all errors are 0, which a logarithmic axis cannot show: keep a linear one
        axes.set_ylim(0, 1)
    label_ticks(axes.xaxis, _bytes_label)
    side_by_side = "" if len(curves) < 2 else "; points of equal bytes stand side by side"
    axes.set_xlabel(f"bytes per client{side_by_side}")
    axes.set_ylabel("largest error (percentage points)")
    lines = [textwrap.fill(line, _TITLE_LINE) for line in title.splitlines()]
    axes.set_title("\n".join(lines), loc="left", fontsize="medium")
    axes.grid(which="major", color="0.9")
    axes.legend(fontsize="small", framealpha=0.9, edgecolor="none")
    return written(figure, path)


def tradeoff(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    plan: tuple[float, float],
    own: str,
    *,
    unit: str = "client",
    narrow: bool = False,
) -> Figure:
    """Draw curves of the largest error against bytes, on logarithmic axes, with a plan as a star.

    Errors are given as shares, and drawn in percentage points.

    Args:
        curves: the curves by name: pairs of bytes per client and error.
        plan: the plan's bytes per client and its error.
        own: the name of the curve that the plan is on, which is drawn thicker.
        unit: the singular noun for who sends the bytes: client or silo.
        narrow: whether the figure is for a phone.

    >>> figure = tradeoff({"epsilon 1": [(1e3, 0.02), (2e3, 0.01)]}, (1e3, 0.02), "epsilon 1")
    >>> figure.axes[0].get_xlabel()
    'bytes per client'
    """
    figure: Figure
    figure, axes = new_figure(*((NARROW, 4.4) if narrow else (7.0, 4.4)))
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
    star = {"markersize": 19, "markeredgecolor": "w", "color": DARK, "zorder": 6}
    axes.plot([plan[0]], [100 * plan[1]], "*", label="the plan", **star)
    label_ticks(axes.yaxis, lambda value, _: f"{value:.5g}")
    label_ticks(axes.xaxis, _bytes_label)
    if narrow:  # labels such as "20 kB" are wide: keep every second label
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
    """Draw the estimates above 0 against their ranks, with the noise floor, on logarithmic axes.

    The curve is blue for the items above noise, and grey for all other items.

    Args:
        frequencies: the estimated shares, largest first. At least one must be above 0.
        number: the number of items above noise: the first `number` items are drawn blue.
        floor: the noise floor, above 0: an estimate below this share may be noise alone.
        unit: the plural noun for what is counted.
        narrow: whether the figure is for a phone.

    >>> rank_frequency([0.5, 0.25, 0.01], 2, 0.05).axes[0].get_xlabel()
    'rank: the most frequent item is 1'
    """
    figure: Figure
    figure, axes = new_figure(inches_across(narrow), 3.2)
    positive = [100 * share for share in frequencies if share > 0]
    ranks = _spread_ranks(len(positive))
    sure = [rank for rank in ranks if rank <= number]
    rest = [rank for rank in ranks if rank >= number]
    axes.plot(rest, [positive[rank - 1] for rank in rest], color="0.65", linewidth=2)
    axes.plot(sure, [positive[rank - 1] for rank in sure], color=BLUE, linewidth=2.5)
    axes.axhline(100 * floor, color=ORANGE, linewidth=1.2, linestyle=(0, (5, 3)))
    axes.axhspan(0, 100 * floor, color=ORANGE, alpha=0.07, linewidth=0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    lowest = max(min(positive), 100 * floor / 30)
    axes.set_ylim(lowest / 2, 2 * positive[0])
    axes.text(
        0.02,
        0.03,
        f"noise floor, {100 * floor:.2g} %: below this line\nan estimate cannot be told from 0",
        transform=axes.transAxes,
        color=ORANGE,
        fontsize="small",
    )
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
    axes.xaxis.set_minor_formatter("")
    label_ticks(axes.yaxis, lambda value, _: f"{value:.6g}")
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
    held: str = "in each round",
    title: str = "Shares by round",
    narrow: bool = False,
    note: str = "",
    path: str | os.PathLike[str] | None = None,
) -> Figure:
    """Draw the shares of items by round: each item is a line with a band of limits.

    A line is dotted between points whose rounds do not follow each other. A circle marks the
    round at which an item probably reached a new level.

    Args:
        series: the points of each item, at most seven items.
        labels: the labels of rounds by number. A round without a label shows its number.
        since: for each item that changed, the number of the first round of its new level.
        confidence: the confidence of the limits, 0 to 1, for the line below the title.
        held: where limits hold with this confidence, for the same line: in each round or in all.
        title: the title, which says what the lines show.
        narrow: whether the figure is for a phone.
        note: a text above the lines.
        path: the path of the image file; None: no file is written.

    >>> class Share(NamedTuple):
    ...     round: int
    ...     frequency: float
    ...     low: float
    ...     high: float
    >>> points = [Share(0, 0.2, 0.19, 0.21), Share(1, 0.3, 0.29, 0.31)]
    >>> lines_by_round({"tea": points}, {}).axes[0].get_xlabel()
    'round'
    """
    figure, axes = new_figure(*((NARROW, 4.2) if narrow else (7.0, 4.0)))
    families, drawn = fonts_for("".join(escaped(str(text)) for text in [*series, *labels.values()]))
    for place, (item, points) in enumerate(series.items()):
        label = _label(place + 1, item, drawn, narrow)
        _draw_line(axes, place, points, label, (since or {}).get(item))
    rounds = sorted({point.round for line in series.values() for point in line})
    _label_rounds(axes, rounds, labels, drawn)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("share, in %")
    axes.grid(axis="y", color="0.9")
    circled = "; circles: first rounds of new levels" if since else ""
    bands = f"bands: {100 * confidence:.12g} % limits {held}{circled}"
    width = _NARROW_TITLE_LINE + 16 if narrow else _TITLE_LINE
    lines = (textwrap.fill(text, width) for text in (title, bands))
    axes.set_title("\n".join(lines), loc="left", fontsize="medium")
    legend = figure.legend(
        frameon=False, loc="outside lower center", ncols=2 if narrow else 4, prop={"size": "medium"}
    )
    for text in [*legend.get_texts(), *axes.get_xticklabels()]:
        text.set_fontfamily(families)
    note_above(figure, note)
    return written(figure, path)


def _draw_line(
    axes: Axes, place: int, points: Sequence[RoundPoint], label: str, since: int | None
) -> None:
    """Draw the line of one item with its band, and a circle at the round `since`.

    Args:
        axes: the panel.
        place: the number of the line, from 0: it chooses colour and marker.
        points: the points of the item.
        label: the item's name in the legend.
        since: the number of the first round of a new level; None: no circle.
    """
    color, marker = _CYCLE[place], _MARKERS[place]
    xs = [point.round for point in points]
    low, high = [100 * point.low for point in points], [100 * point.high for point in points]
    shares = [100 * max(0.0, point.frequency) for point in points]
    axes.fill_between(xs, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(xs, shares, linestyle=(0, (1, 2)), linewidth=1.2, color=color, zorder=3)
    look: dict[str, Any] = {"color": color, "marker": marker, "zorder": 3}
    for run in _runs(xs):
        # clip_on=False: a share of 0 lies on the axis, and its marker must not be cut
        axes.plot(xs[run], shares[run], markersize=4, linewidth=1.8, clip_on=False, **look)
    axes.plot([], [], label=label, markersize=5, **look)
    if since is not None:
        ring: dict[str, Any] = {"color": "none", "markeredgecolor": color, "clip_on": False}
        ring |= {"markeredgewidth": 1.6, "zorder": 4}
        axes.plot([since], [shares[xs.index(since)]], "o", markersize=12, **ring)


def _runs(rounds: Sequence[int]) -> list[slice]:
    """Return slices of `rounds` in which each number is one more than the number before it.

    >>> _runs([0, 1, 4, 5, 6, 9])
    [slice(0, 2, None), slice(2, 5, None), slice(5, 6, None)]
    """
    breaks = [n for n in range(1, len(rounds)) if rounds[n] != rounds[n - 1] + 1]
    return [slice(*ends) for ends in pairwise([0, *breaks, len(rounds)])]


def _label_rounds(
    axes: Axes, rounds: Sequence[int], labels: Mapping[int, str], drawn: Set[int]
) -> None:
    """Write labels below at most six of the rounds, including the last one.

    Args:
        axes: the panel.
        rounds: the numbers of the rounds, ascending.
        labels: the labels of rounds by number. A round without a label shows its number.
        drawn: the code points that the fonts have (see `figures.fonts_for`).
    """
    step = max(1, -(-len(rounds) // 6))
    shown = list(rounds[::-1][::step])[::-1]
    texts = [shortened(drawable(labels.get(number, number), drawn), 12) for number in shown]
    is_long = max(map(len, texts)) > 5
    texts = [text.replace("$", r"\$") for text in texts]
    axes.set_xticks(
        shown, texts, rotation=30 if is_long else 0, ha="right" if is_long else "center"
    )
    axes.set_xlabel("" if labels else "round")


def _spread_ranks(number: int) -> list[int]:
    """Return ranks from 1 to `number` for drawing a curve: ascending, dense at first, then sparse.

    1 and `number` are among the ranks.

    >>> _spread_ranks(5), len(_spread_ranks(30_000)) < 400
    ([1, 2, 3, 4, 5], True)
    """
    ranks, rank = [], 1
    while rank < number:
        ranks.append(rank)
        rank = max(rank + 1, round(rank * 1.03))
    return [*ranks, number]


def _draw_curve(
    axes: Axes, method: str, points: Sequence[Point], number: int, shift: float
) -> None:
    """Draw the errors of a method as a curve with bands, at x = bytes times `shift`.

    Args:
        axes: the panel.
        method: the name of the method, for the legend.
        points: the points: x is the bytes per client, and errors are shares of clients.
        number: the number of the curve, from 0: it chooses colour and marker.
        shift: a factor near 1, so that points of several curves do not cover each other.
    """
    points = sorted(points)
    look = {
        "color": _CYCLE[number % len(_CYCLE)],
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 5,
    }
    # A logarithmic axis has no 0: the label says from how many bytes on the error is 0.
    exact = [point.x for point in points if point.middle <= 0]
    label = f"{method}: 0 from {_bytes_label(min(exact), None)}" if exact else method
    xs = [point.x * shift for point in points]
    _draw_bands(axes, xs, points, capsize=3, label=label, **look)


def _largest(
    curves: Mapping[str, Sequence[Point]],
    predicted: Mapping[str, Sequence[tuple[float, float]]],
    target: float | None,
) -> float:
    """Return the largest error that the chart shows, as a share of clients.

    It is taken over the upper ends of bands, the predicted curves, and the target if there is one.
    """
    measured = [point.high for points in curves.values() for point in points]
    foreseen = [error for curve in predicted.values() for _, error in curve]
    return max([*measured, *foreseen, 0.0 if target is None else target])


def _draw_bands(axes: Axes, xs: Sequence[float], points: Sequence[Point], **look: Any) -> None:
    """Draw points with vertical bands: errors are given as shares, and drawn in percentage points.

    Args:
        axes: the panel.
        xs: where to draw each point; `Point.x` is not used.
        points: the points, with the middle and the ends of their bands.
        look: colours and other keywords of matplotlib's `errorbar`.
    """
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


def _bytes_label(value: float, _: object) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.5g} {unit}"
    return f"{value:.5g} B"


def _label(rank: int, item: str | int, drawn: Set[int], narrow: bool = False) -> str:
    """Return the label of an item as matplotlib can draw it, shortened in the middle if it is long.

    Letters outside `drawn` (the code points that the fonts have) become the replacement character.
    Two items may then look alike, so a label with a replacement character begins with the item's
    rank.

    Args:
        rank: the place of the item in the list, from 1.
        item: the item.
        drawn: the code points that the fonts have.
        narrow: whether the figure is for a phone: labels are then shorter.
    """
    text = drawable(item, drawn)
    longest = _LONGEST_IF_NARROW if narrow else _LONGEST_LABEL
    number = f"{rank}. " if UNKNOWN in text else ""
    text = number + shortened(text, longest - len(number))
    return text.replace("$", r"\$")  # matplotlib reads $...$ as mathematics
