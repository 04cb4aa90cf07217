"""The forms of an answer's table: data frames, files, and what a notebook shows."""

from __future__ import annotations

import html
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

from fedtally.answer.estimates import Estimate, Uncertainty, uncertainty_of
from fedtally.answer.exports import check_export_path, write_table
from fedtally.base.text import escaped, shortened
from fedtally.errors import MissingExtraError, Note, render

NOTEBOOK_ROWS = 10  # of a notebook's table
_ROWS = 1 << 12  # rows that become Python objects at once
_LONGEST_SHOWN = 60  # columns of an item in a notebook's table


class Table(ABC):
    """What is a table, in every form that a program takes."""

    @abstractmethod
    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` of all rows.

        Args:
            memory: the bytes that it may take; None: half of the machine's memory.
        """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Export the table of `to_arrow` as an Arrow C stream, which Polars and others read.

        Args:
            requested_schema: a capsule of the schema that the reader wants, or None.
        """
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_frame(self, memory: int | None = None) -> Any:
        """Return a pandas data frame of the rows of `to_arrow`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise MissingExtraError(
                "data frames need pandas: pip install 'fedtally[pandas]'"
            ) from None
        return self.to_arrow(memory).to_pandas()

    def to_pandas(self, memory: int | None = None) -> Any:
        """Return the data frame of `to_frame`, by the name that other libraries use."""
        return self.to_frame(memory)

    def to_polars(self, memory: int | None = None) -> Any:
        """Return a Polars data frame of the rows of `to_arrow`.

        Raises:
            MissingExtraError: Polars is not installed.
        """
        try:
            import polars
        except ImportError:
            raise MissingExtraError("Polars is not installed: pip install polars") from None
        return polars.from_arrow(self.to_arrow(memory))

    def export(self, path: str | os.PathLike[str], memory: int | None = None) -> int:
        """Write the rows of `to_arrow` to a .csv or .parquet file.

        The file is written whole or not at all. In a .csv file an item that a spreadsheet would run
        begins with an apostrophe; a .parquet file has all items as they are.

        Returns:
            How many cells of a .csv file are written otherwise for that reason.

        Raises:
            InvalidInputError: another suffix, or a folder that cannot be written.
            MemoryLimitError: the table would not fit.
        """
        check_export_path(path)
        return write_table(self.to_arrow(memory), path)

    def __bool__(self) -> bool:
        """Return that there is an answer; without this, Python would ask for the length."""
        return True


class Tabular(Table):
    """An answer that is a table: its rows are estimates, largest first."""

    @abstractmethod
    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` of every candidate, largest estimate first."""

    @abstractmethod
    def estimates(self, items: Sequence[str | int]) -> list[Estimate]:
        """Return the estimates of named items, in the order given."""

    @abstractmethod
    def above_noise(self, estimates: Sequence[Estimate]) -> list[bool] | None:
        """Return whether each estimate of a list surely stands above noise.

        It does if its limits exclude 0, where the limits of all candidates hold at once. So with
        the confidence of the limits, somebody holds each item that does. The answer is None where
        there are no limits, or where the domain is open, so that nobody has the candidates.
        """

    def uncertainty(self, items: Sequence[str | int]) -> Uncertainty | None:
        """Return how far the estimates of named items may be off; None without a confidence.

        Among the clients that took part, for a wider population of which they are a sample, and
        for both together.

        >>> import fedtally
        >>> result = fedtally.estimate(["tea"] * 600 + ["milk"] * 400, width=64, seed=1)
        >>> off = result.uncertainty(["tea", "milk"])
        >>> off.clients.round(3), off.sampling.round(3), off.population.round(3)
        (array([0.001, 0.001]), array([0.031, 0.031]), array([0.031, 0.031]))
        >>> off.limits.low.round(3), off.limits.high.round(3)
        (array([0.569, 0.369]), array([0.631, 0.431]))

        Raises:
            OutsideDomainError: an item is not in the domain.
        """
        return uncertainty_of(self.estimates(items))

    def __iter__(self) -> Iterator[Estimate]:
        """Yield the estimate of every row of `to_arrow`, largest first.

        The limits are those of an item named beforehand, not of a list.
        """
        names = [field.name for field in fields(Estimate)]
        for batch in self.to_arrow().select(names).to_batches(max_chunksize=_ROWS):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Estimate(*row)


def notebook_table(
    head: str, unit: str, confidence: float, estimates: Sequence[Estimate], notes: Iterable[str]
) -> str:
    """Return estimates as an HTML table, which notebooks show.

    Control characters are escaped, and long items elided in the middle.

    Args:
        head: what stands above, in HTML.
        unit: the noun for the things that are counted.
        confidence: the confidence of the limits; 0: there are none.
        estimates: the rows.
        notes: what stands below.
    """
    limits = f"<th scope='col'>{100 * confidence:.12g} % interval</th>" if confidence > 0 else ""
    rows = "".join(
        # isolated: letters written from the right must not move the numbers
        f"<tr><th scope='row' style='text-align:left'>"
        f"<bdi>{html.escape(_shown(each.item))}</bdi></th>"
        f"<td style='text-align:right'>{100 * each.frequency:.3f} %</td>"
        + (
            f"<td style='text-align:right'>{100 * each.low:.3f} to {100 * each.high:.3f} %</td>"
            if each.low is not None and each.high is not None
            else ""
        )
        + "</tr>"
        for each in estimates
    )
    items = "".join(f"<li>{html.escape(escaped(_in_python(note)))}</li>" for note in notes)
    return (
        f"<table><caption>{head}</caption><thead><tr>"
        "<th scope='col' style='text-align:left'>item</th>"
        f"<th scope='col'>share of {unit}</th>{limits}</tr></thead>"
        f"<tbody>{rows}</tbody></table>" + (f"<ul>{items}</ul>" if items else "")
    )


def _in_python(note: str) -> str:
    """Return a note as a notebook shows it."""
    return render(note.marked, for_="python") if isinstance(note, Note) else note


def _shown(item: str | int) -> str:
    """Return an item as a notebook shows it."""
    return shortened(escaped(str(item)), _LONGEST_SHOWN)
