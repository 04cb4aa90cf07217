"""Maps of cells of a grid, with closer views of places where many cells lie close together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fedtally.answer.figures import BLUE, ORANGE, empty_figure, inches_across, label_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CELLS_SEEN = 60  # a map with fewer cells from end to end gets no closer view: cells can be seen
_CROWD = 4  # the fewest cells close together that get a closer view
_CENTRES = 200  # crowds are looked for only around this many of the most frequent cells
_LETTER: dict[str, Any] = {
    "textcoords": "offset points",
    "ha": "right",
    "color": ORANGE,
    "fontweight": "bold",
    "fontsize": "small",
}


def cell_map(
    centres: Sequence[Sequence[float]],
    frequencies: Sequence[float],
    step: float,
    unit: str = "clients",
    narrow: bool = False,
) -> Figure:
    """Draw a map of cells: a darker cell is more frequent.

    Below the map are closer views of up to three places where many cells lie close together. A
    degree of longitude is drawn shorter than a degree of latitude, as it is on the ground.

    Args:
        centres: the latitude and longitude of the centre of each cell, in degrees; at least one
            cell.
        frequencies: the share of each cell, all above 0.
        step: the width of a cell in degrees.
        unit: the plural noun for what is counted.
        narrow: whether the figure is for a phone, with at most two closer views.

    >>> len(cell_map([(40.0, -74.0), (40.1, -74.0)], [0.5, 0.25], 0.1).axes)  # and a colour bar
    2
    """
    import numpy as np

    places, shares = _side_by_side(centres), 100 * np.asarray(frequencies, float)
    crowds = _crowds(places, shares, step)[: 2 if narrow else 3]
    figure = empty_figure(inches_across(narrow), _map_height(places, step, crowds, narrow))
    grid = figure.add_gridspec(
        2 if crowds else 1, max(1, len(crowds)), height_ratios=(3, 2) if crowds else None
    )
    colours = _colours(shares)
    whole = figure.add_subplot(grid[0, :])
    _draw_cells(whole, places, shares, step, colours, least=4.0)
    whole.locator_params(axis="x", nbins=4 if narrow else 7)
    # Allow one label for each 0.3 inches of height. On a low map more labels would overlap.
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
            f"{letter}: {', '.join(middle)}", loc="left", color=ORANGE, fontsize="small"
        )
    bar = figure.colorbar(colours, ax=whole, shrink=0.9, pad=0.02)
    bar.set_label(f"% of {unit}")
    bar.ax.tick_params(labelsize="small")
    if colours.norm.vmin:  # above 0 only if the scale is logarithmic
        label_ticks(bar.ax.yaxis, lambda value, _: f"{value:.3g}")
    return figure


def _colours(shares: Any) -> Any:
    """Return a matplotlib `ScalarMappable`: the colour scale of a map for shares in percent.

    It is logarithmic if the largest share is more than five times the smallest. Otherwise it is
    linear and begins at 0.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    low, high = float(min(shares)), float(max(shares))
    ramp = LinearSegmentedColormap.from_list("share", ["#A9CCE6", BLUE, "#00213A"])
    return ScalarMappable(LogNorm(low, high) if high > 5 * low else Normalize(0, high), ramp)


def has_closer_views(
    centres: Sequence[Sequence[float]], frequencies: Sequence[float], step: float
) -> bool:
    """Return whether `cell_map` draws at least one closer view of these cells.

    The arguments are as in `cell_map`.

    >>> has_closer_views([(40.0, -74.0), (40.1, -74.0)], [0.5, 0.25], 0.1)
    False
    """
    import numpy as np

    return bool(_crowds(_side_by_side(centres), np.asarray(frequencies, float), step))


def _side_by_side(centres: Sequence[Sequence[float]]) -> Any:
    """Return the centres, changed so that cells on both sides of the date line are neighbours.

    If all cells lie within half of the globe, longitudes may exceed 180 degrees: they then span the
    smallest arc that contains all cells. Otherwise nothing changes: a map of the world begins in
    the west.

    Returns:
        (latitude, longitude) of each cell in degrees, float64 [cells, 2].

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
    """Return how many times as long a degree of latitude is as a degree of longitude.

    The ratio is taken half-way between the smallest and the largest latitude. It is at most 10.
    """
    middle = (min(latitudes) + max(latitudes)) / 2
    return 1.0 / max(0.1, math.cos(math.radians(middle)))


def _extent(places: Any, step: float) -> tuple[float, float]:
    """Return the height and the width of a map with all cells, both in degrees of latitude.

    A degree of longitude is shorter than a degree of latitude, so the width is converted.

    Args:
        places: (latitude, longitude) of each cell's centre in degrees, float64 [cells, 2].
        step: the width of a cell in degrees.
    """
    height, width = (float(ends) + step for ends in places.max(axis=0) - places.min(axis=0))
    return height, width / _stretch(places[:, 0])


def _map_height(places: Any, step: float, crowds: Sequence[Any], narrow: bool) -> float:
    """Return the height of the whole figure in inches: map, title and closer views.

    It is chosen so that little of the figure stays empty.

    Args:
        places: (latitude, longitude) of each cell's centre in degrees, float64 [cells, 2].
        step: the width of a cell in degrees.
        crowds: the areas that are drawn closer, as `_crowds` returns them.
        narrow: whether the figure is for a phone.
    """
    whole, across = max(_drawn_height(places, step, narrow), 1.8), _across(narrow)
    return whole + 0.7 + (across / len(crowds) * 0.9 + 0.5 if crowds else 0.0)


def _across(narrow: bool) -> float:
    """Return the width of the map in inches, without colour bar and labels."""
    return inches_across(narrow) - 1.5


def _drawn_height(places: Any, step: float, narrow: bool) -> float:
    """Return the height of the map in inches, without title and closer views; at most 4.5.

    The arguments are as in `_map_height`.
    """
    height, width = _extent(places, step)
    return min(_across(narrow) * height / width, 4.5)


def _crowds(places: Any, shares: Any, step: float) -> list[tuple[float, float, float, float]]:
    """Return the bounds of areas in which many cells lie close together, to be drawn closer.

    Areas around more frequent cells come first. The list is empty if no area has many cells, or if
    the map spans fewer than `_CELLS_SEEN` cells.

    Args:
        places: (latitude, longitude) of each cell's centre in degrees, float64 [cells, 2].
        shares: the share of each cell, float64 [cells].
        step: the width of a cell in degrees.

    Returns:
        (south, north, west, east) of each area, in degrees.
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
    """Draw cells as squares, the most frequent on top.

    Args:
        axes: the panel.
        places: (latitude, longitude) of each cell's centre in degrees, float64 [cells, 2].
        shares: the share of each cell in percent, float64 [cells].
        step: the width of a cell in degrees.
        colours: the colour scale, from `_colours`.
        least: the smallest width and height of a drawn cell, in points (1/72 inch).
    """
    from matplotlib.collections import PolyCollection

    order = shares.argsort()
    half = step / 2
    corners = [(-half, -half), (-half, half), (half, half), (half, -half)]
    cells = [[(x + dx, y + dy) for dx, dy in corners] for y, x in places[order].tolist()]
    axes.add_collection(
        PolyCollection(cells, array=shares[order], norm=colours.norm, cmap=colours.cmap)
    )
    if least:  # also draw a marker of this size on each cell, so that small cells can be seen
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
    """Return a latitude or a longitude as maps write it, such as 73.5° W.

    Args:
        value: the degrees; negative in the south and the west.
        sides: the letters for positive and negative degrees: "NS" or "EW".

    >>> [_degrees(value, "EW") for value in (-73.5, 0.0, 180.0, 200.0)], _degrees(40.0, "NS")
    (['73.5° W', '0°', '180°', '160° W'], '40° N')
    """
    if sides == "EW" and value > 180:
        value -= 360
    side = f" {sides[int(value < 0)]}" if round(value, 9) % 180 else ""
    return f"{abs(value):.6g}°{side}"


def _outline(south: float, north: float, west: float, east: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((west, south), east - west, north - south, fill=False, edgecolor=ORANGE)
