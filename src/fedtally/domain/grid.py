"""A grid of latitude and longitude; its cells are the items."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.domain.columns import COORDINATES, as_coordinates
from fedtally.domain.contract import Domain
from fedtally.errors import InvalidInputError

_EXACT = 1 << 52  # float64 holds every integer i up to this exactly, and also 2 * i
_TOLERANCE = Fraction(1, 10**9)  # relative to a step, so that 0.016666666666666666 works as 1/60
_MAX_DECIMALS = 9  # the most decimals of an exact label; 1e-9 degrees are a tenth of a millimetre


class Grid(Domain):
    """A public domain: a rectangle of the earth, divided into cells of equal size in degrees.

    Cells are numbered row by row from the south-west, each row from west to east. Items are
    "latitude,longitude" text, or a numeric (n, 2) array. A point on the edge between two cells
    belongs to the northern or eastern cell. The north and east edges of the grid belong to its last
    row and column. Edges are exact: each is the float64 nearest to its exact value. So a
    coordinate that is written like an edge lies on the edge. NaN is outside.

    Args:
        south, north: Bounds of the latitude, -90 to 90.
        west, east: Bounds of the longitude, -180 to 360, at most 360 apart. Longitudes are not
            wrapped: -10 and 350 are different.
        step: Height and width of a cell, in degrees, above 0. The grid's height and width must be
            multiples of the step. Differences up to a billionth of a step are ignored, so
            ``1 / 60`` is accepted.

    Raises:
        InvalidInputError: A bound or the step is out of range; the grid's height or width is no
            multiple of the step; south is not below north, or west not below east; bounds or step
            have too many digits for exact edges; or there are more than 2^63 cells.

    >>> grid = Grid(25, 50, -130, -60, 0.1)
    >>> grid.shape, grid.size
    ((250, 700), 175000)
    >>> position = grid.locate(["40.7,-74.0"])
    >>> position, grid.labels(position)
    (array([110460]), ['40.75,-73.95'])
    """

    kind: ClassVar[str] = "grid"
    noun: ClassVar[str] = "cell"
    _way_out: ClassVar[str] = "widen the grid or leave them out"
    _form = COORDINATES

    def __init__(self, south: float, north: float, west: float, east: float, step: float) -> None:
        self.south = validate.real(-90.0, 90.0, south=south)
        self.north = validate.real(-90.0, 90.0, north=north)
        self.west = validate.real(-180.0, 360.0, west=west)
        self.east = validate.real(-180.0, 360.0, east=east)
        self.step = validate.real(0.0, 360.0, step=step)
        if self.east - self.west > 360:
            raise InvalidInputError(
                f"east must be at most 360 degrees from west, got {self.west}..{self.east}"
            )
        self._latitude = _Axis(self.south, self.north, self.step, "south..north")
        self._longitude = _Axis(self.west, self.east, self.step, "west..east")
        self.public = True
        self.size = self._latitude.count * self._longitude.count
        self.first_id = 0
        if self.size > 1 << 63:
            raise InvalidInputError(
                f"a grid holds at most 2^63 cells, got {self}; use a larger step"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """The number of rows (of latitude) and of columns (of longitude).

        >>> Grid(0, 1, 0, 2, 0.5).shape
        (2, 4)
        """
        return self._latitude.count, self._longitude.count

    def centres(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the centre of each cell: latitude and longitude in degrees, float64[n, 2].

        >>> Grid(0, 1, 0, 2, 0.5).centres(np.array([0, 7]))
        array([[0.25, 0.25],
               [0.75, 1.75]])
        """
        row, column = np.divmod(np.asarray(positions, np.int64), self.shape[1])
        return np.stack([self._latitude.centre(row), self._longitude.centre(column)], axis=1)

    def _find(self, items: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        points = as_coordinates(items)
        row, in_rows = self._latitude.find(points[:, 0])
        column, in_columns = self._longitude.find(points[:, 1])
        return row * self.shape[1] + column, in_rows & in_columns

    def _ids_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        return positions.view(np.uint64)

    def _labels(self, positions: npt.NDArray[np.int64]) -> list[str]:
        digits = max(self._latitude.decimals, self._longitude.decimals)
        return [
            f"{lat:z.{digits}f},{lon:z.{digits}f}" for lat, lon in self.centres(positions).tolist()
        ]

    def describe(self) -> dict[str, Any]:
        """Return kind, size, public, the four bounds and the step, as values for JSON.

        >>> Grid(0, 1, 0, 2, 0.5).describe()["east"]
        2.0
        """
        bounds = {name: getattr(self, name) for name in ("south", "north", "west", "east", "step")}
        return {**super().describe(), **bounds}

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return an empty dict: the description is enough to rebuild the grid.

        >>> Grid(0, 1, 0, 2, 0.5).arrays()
        {}
        """
        return {}

    @classmethod
    def rebuild(cls, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Rebuild the grid from its description.

        >>> Grid.rebuild(Grid(0, 1, 0, 2, 0.5).describe(), {})
        Grid(0, 1, 0, 2, 0.5)
        """
        return cls(*(meta[name] for name in ("south", "north", "west", "east", "step")))

    def __str__(self) -> str:
        south, north, west, east, step = map(
            _short, (self.south, self.north, self.west, self.east, self.step)
        )
        return f"grid:{south}..{north},{west}..{east},{step}"

    def __repr__(self) -> str:
        numbers = (self.south, self.north, self.west, self.east, self.step)
        return f"Grid({', '.join(map(_short, numbers))})"


class _Axis:
    """The latitudes or the longitudes of a grid: an interval, divided into cells of equal length.

    The decimal numbers that a user wrote (low and high) are taken as exact fractions. Edge i has
    the exact value (base + i * stride) / scale, where base, stride and scale are integers of this
    axis. All numerators, and the scale, are at most 2^52, so that float64 holds them exactly. Then
    one division gives the float64 that is nearest to the exact value. So an edge equals the float64
    of its decimal text, such as "0.3".

    Attributes:
        low, high: the first and the last edge, in degrees.
        step: the length of a cell as the user wrote it, in degrees.
        count: the number of cells.
        decimals: the number of decimals in labels of cell centres.
    """

    def __init__(self, low: float, high: float, step: float, name: str) -> None:
        # repr gives the decimal number that the user wrote, such as 0.1, not the exact float64
        bottom, top, size = (Fraction(repr(number)) for number in (low, high, step))
        if bottom >= top or size <= 0:
            raise InvalidInputError(
                f"{name} must ascend and step be positive, got {_short(low)}..{_short(high)},"
                f" {_short(step)}"
            )
        self.low, self.high, self.step = low, high, step
        self.count = round((top - bottom) / size)
        if self.count < 1 or abs(self.count * size - (top - bottom)) > _TOLERANCE * size:
            raise InvalidInputError(_undivided(bottom, top, size, name))
        exact = (top - bottom) / self.count
        self._scale = math.lcm(bottom.denominator, exact.denominator)
        self._base, self._stride = int(bottom * self._scale), int(exact * self._scale)
        if (
            max(abs(self._base), abs(self._base + self.count * self._stride), self._scale)
            > _EXACT // 2
        ):
            raise InvalidInputError(
                f"step {_short(step)} and {name} have too many digits; round them"
            )
        self.decimals = self._enough_decimals(exact)

    def _enough_decimals(self, exact: Fraction) -> int:
        """Return the number of decimals with which labels show the centres of cells.

        It writes all centres exactly, if at most `_MAX_DECIMALS` decimals suffice. Otherwise labels
        are rounded to a hundredth of a cell or finer.

        Args:
            exact: the exact length of a cell, in degrees.
        """
        for digits in range(_MAX_DECIMALS + 1):
            unit = 10**digits
            # If the first centre and the step have at most `digits` decimals, all centres have.
            first_centre, apart = unit * (2 * self._base + self._stride), unit * self._stride
            if first_centre % (2 * self._scale) == 0 and apart % self._scale == 0:
                return digits
        return max(0, math.ceil(-math.log10(exact))) + 2

    def edge(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (self._base + index * self._stride) / np.float64(self._scale)

    def centre(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (2 * self._base + (2 * index + 1) * self._stride) / np.float64(2 * self._scale)

    def find(
        self, values: npt.NDArray[np.float64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Return the index of each value's cell, int64, and whether the value is in a cell, bool.

        The index of a value outside all cells is 0.
        """
        inside = (values >= self.low) & (values <= self.high)
        safe = np.where(inside, values, self.low)
        # Floating point may miss the cell by one; the exact edges correct this.
        index = np.minimum(((safe - self.low) / self.step).astype(np.int64), self.count - 1)
        index -= safe < self.edge(index)
        index += safe >= self.edge(index + 1)
        return np.minimum(index, self.count - 1), inside


def _undivided(bottom: Fraction, top: Fraction, size: Fraction, name: str) -> str:
    cells = (top - bottom) / size
    fitting = [
        bottom + count * size for count in (math.floor(cells), math.floor(cells) + 1) if count
    ]
    ends = " or ".join(f"{_short(float(bottom))}..{_short(float(end))}" for end in fitting)
    return (
        f"step {_short(float(size))} does not divide {name}"
        f" {_short(float(bottom))}..{_short(float(top))} ({float(cells):.6g} cells); use {name}"
        f" {ends}, or another step"
    )


def _short(number: float) -> str:
    """Return a float as the shortest text that gives the same float: 25 for 25.0."""
    return repr(int(number)) if number.is_integer() else repr(number)
