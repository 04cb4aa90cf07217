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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from fedtally._archive import replacing
from fedtally._text import UNKNOWN, escaped, shortened
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
_TITLE_LINE = 76  # characters of a title that fit above a chart of seven inches


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
    bars = [0.0 if _may_be_zero(e) else 100 * e.frequency for e in estimates]
    axes.barh(places, bars, color=_BLUE, height=0.72, label="estimated")
    _draw_both_readings(axes, estimates, confidence, unit)
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
    axes.set_xlabel(f"share of {num_clients:,} {unit}, in %{lacks}", loc="right")
    axes.set_title("Most frequent items", loc="left")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    if min(bars, default=0.0) < 0:  # estimates of rare items may be negative
        axes.axvline(0, color=_GREY, linewidth=0.8)
    for panel in spread:
        _draw_errors(panel, estimates, truth or ())
    if note:
        figure.suptitle(note, x=0.99, ha="right", fontsize="small", color=_ORANGE)
    return _written(figure, path)


def _may_be_zero(bar: Bar) -> bool:
    """Return whether the limits of an item reach 0; those of exact counts have no width."""
    return bar.low is not None and bar.high is not None and bar.low <= 0 < bar.high - _ROUNDING


def _legend_below(figure: Figure, axes: Axes, columns: int) -> None:
    """Name what is drawn, if there is more than bars: the bars first, then the narrower limits."""
    named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    order = ("estimated", "among these", "if they stand", "true")
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
    axes: Axes, estimates: Sequence[Bar], confidence: float | None, unit: str
) -> None:
    """Draw limits among the clients as dark lines, and of a population as pale bars behind them."""
    level = "limits" if confidence is None else f"{100 * confidence:.12g} %"
    _draw_limits(axes, estimates, [0.0] * len(estimates), f"{level}: among these {unit}")
    ends = [
        (place, 100 * e.population_low, 100 * e.population_high, 0.1 if _may_be_zero(e) else 0.4)
        for place, e in enumerate(estimates)
        if e.population_low is not None and e.population_high is not None
    ]
    if ends:
        where, low, high, height = zip(*ends, strict=True)
        length = [most - least for least, most in zip(low, high, strict=True)]
        label = f"{level}: if they stand for more people"
        axes.barh(where, length, left=low, height=height, color=_PALE, label=label, zorder=3)


def _draw_limits(
    axes: Axes, estimates: Sequence[Bar], origins: Sequence[float], label: str = ""
) -> None:
    """Draw the limits of each estimate as a line with ends, from its own origin (a share).

    What may be 0 has one end, and a thin line. Exact counts have no line.
    """
    limits = [
        (place, 100 * (e.low - origin), 100 * (e.high - origin), _may_be_zero(e))
        for place, (e, origin) in enumerate(zip(estimates, origins, strict=True))
        if e.low is not None and e.high is not None
    ]
    if not any(high - low > 100 * _ROUNDING for _, low, high, _ in limits):
        return
    where, low, high, is_thin = zip(*limits, strict=True)
    widths = [0.8 if thin else 1.6 for thin in is_thin]
    axes.hlines(where, low, high, color=_DARK, linewidth=widths, label=label, zorder=4)
    ends = [(end, place) for place, *both, thin in limits for end in both[thin:]]
    axes.plot(
        *zip(*ends, strict=True), "|", color=_DARK, markersize=6, markeredgewidth=1.6, zorder=4
    )


def _draw_errors(axes: Axes, estimates: Sequence[Bar], truth: Sequence[float]) -> None:
    """Draw how far each estimate is from its truth, with its limits.

    Beside a bar of tens of percent an error of a tenth of a point cannot be seen; here it can.
    """
    _draw_limits(axes, estimates, truth)
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
        points = sorted(points)
        # Shifted by 1.5 % for each curve, so that points of equal bytes stand side by side.
        xs = [point.x * 1.015 ** (number - (len(curves) - 1) / 2) for point in points]
        look = {
            "color": _CYCLE[number % len(_CYCLE)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "markersize": 5,
        }
        # A logarithmic axis has no 0: the label says where the curve goes.
        exact = [point.x for point in points if point.middle <= 0]
        label = f"{method}: 0 from {_bytes_label(min(exact), None)}" if exact else method
        _draw_bands(axes, xs, points, capsize=3, label=label, **look)
    for number, (method, cost) in enumerate(costs.items()):
        axes.axvline(
            cost, color=_GREY, linestyle=("--", ":")[number % 2], linewidth=1.2, label=method
        )
    for number, (name, curve) in enumerate((predicted or {}).items()):
        above = sorted((x, 100 * error) for x, error in curve if error > 0)
        axes.plot(
            [x for x, _ in above],
            [error for _, error in above],
            color=_CYCLE[len(curves) % len(_CYCLE)],
            linestyle=("-", "--", ":")[number % 3],
            label=name,
        )
    if target is not None:
        axes.axhline(
            100 * target, color=_DARK, linestyle=(0, (5, 3)), linewidth=1.2, label="asked for"
        )
    axes.set_xscale("log")
    drawn = [*(marked or {}).values(), *(point for points in curves.values() for point in points)]
    errors = [point.high for point in drawn] + [0.0 if target is None else target]
    errors += [error for curve in (predicted or {}).values() for _, error in curve]
    if marked or max(errors) > 0:
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


def rank_frequency(frequencies: Sequence[float], narrow: bool = False) -> Figure:
    """Draw positive frequencies (shares, most frequent first) against rank, on logarithmic axes.

    A narrow figure is for a phone.

    >>> rank_frequency([0.5, 0.25]).axes[0].get_xlabel()
    'rank'
    """
    figure: Figure
    figure, axes = _new_figure(_NARROW if narrow else 7.0, 3.6)
    points = [(rank, 100 * f) for rank, f in enumerate(frequencies, start=1) if f > 0]
    axes.plot([x for x, _ in points], [y for _, y in points], "o-", color=_BLUE, markersize=4)
    axes.set_xscale("log")
    axes.set_yscale("log")
    if points:  # whole ranks, and percentages without powers of ten
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.6g}")
        if len(points) < 10:  # a power of ten alone would be one label
            axes.set_xticks([rank for rank, _ in points])
            axes.minorticks_off()
        axes.xaxis.set_minor_formatter("")
        _label_ticks(axes.yaxis, lambda value, _: f"{value:.6g}")
    axes.set_xlabel("rank")
    axes.set_ylabel("frequency (%)")
    axes.grid(color="0.9")
    return figure


def cell_map(
    centres: Sequence[Sequence[float]], frequencies: Sequence[float], narrow: bool = False
) -> Figure:
    """Draw cells at (latitude, longitude) in degrees, larger where more frequent.

    A narrow figure is for a phone.

    >>> cell_map([(40.0, -74.0)], [0.5]).axes[0].get_ylabel()
    'latitude (degrees)'
    """
    figure: Figure
    figure, axes = _new_figure(*((_NARROW, 3.2) if narrow else (7.0, 4.6)))
    largest = max(frequencies, default=1.0)
    areas = [10 + 200 * max(f, 0.0) / largest for f in frequencies]
    axes.scatter(
        [c[1] for c in centres],
        [c[0] for c in centres],
        areas,
        color=_BLUE,
        edgecolor=_DARK,
        alpha=0.7,
    )
    axes.set_xlabel("longitude (degrees)")
    axes.set_ylabel("latitude (degrees)")
    if narrow:  # numbers such as -102.5 are wide
        axes.locator_params(axis="x", nbins=5)
    axes.grid(color="0.9")
    return figure


def as_svg(figure: Figure) -> bytes:
    """Return a figure as an SVG document, without the time at which it was drawn.

    >>> as_svg(rank_frequency([0.5, 0.25]))[:5]
    b'<?xml'
    """
    stream = io.BytesIO()
    with warnings.catch_warnings():  # a glyph that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(stream, format="svg", metadata={"Date": None})
    return stream.getvalue()


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
    letters = escaped(str(item))
    text = "".join(letter if ord(letter) in drawn else UNKNOWN for letter in letters)
    longest = _LONGEST_IF_NARROW if narrow else _LONGEST_LABEL
    number = f"{rank}. " if UNKNOWN in text else ""
    text = number + shortened(text, longest - len(number))
    return text.replace("$", r"\$")  # matplotlib reads $...$ as mathematics


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

    figure = Shown(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, len(ratios), sharey=True, squeeze=False, width_ratios=ratios)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_axisbelow(True)  # the grid behind the bars
    return [figure, *panels.flat]
