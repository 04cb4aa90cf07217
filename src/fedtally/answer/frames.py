"""Turn tables into data frames, files, and HTML for notebooks."""

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

NOTEBOOK_ROWS = 10  # the most rows of the table that a notebook shows
_ROWS = 1 << 12  # rows that become Python objects at a time, to bound the memory
_LONGEST_SHOWN = 60  # characters of an item in a notebook's table


class Table(ABC):
    """Base class of tables: a subclass makes an Arrow table, and this class converts it."""

    @abstractmethod
    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` of all rows.

        Args:
            memory: the most bytes for the table; None: half of the machine's memory. Tables that
                always have few rows ignore it.
        """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the table of `to_arrow` as an Arrow C stream, which Polars and others can read.

        Args:
            requested_schema: a PyCapsule of the Arrow schema that the reader wants, or None.
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
        """Return the data frame of `to_frame`. Other libraries call this name."""
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
        """Write the rows of `to_arrow` to a .csv or .parquet file, whole or not at all.

        In a .csv file, an item that a spreadsheet would run as a formula gets an apostrophe before
        it (see `as_text`). A .parquet file has all items unchanged.

        Returns:
            the number of cells that `as_text` changed; always 0 for a .parquet file.

        Raises:
            InvalidInputError: the path has another suffix, or the file cannot be written.
            MemoryLimitError: the table would need more memory than `memory` allows.
        """
        check_export_path(path)
        return write_table(self.to_arrow(memory), path)

    def __bool__(self) -> bool:
        """Return True, even for a table without rows.

        Without this method Python would call `len`, which may decode the sums.
        """
        return True


class Tabular(Table):
    """A table of estimates, one row for each item, largest first."""

    @abstractmethod
    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` of all rows, largest estimate first."""

    @abstractmethod
    def estimates(self, items: Sequence[str | int]) -> list[Estimate]:
        """Return the estimates of named items, in the order given.

        Raises:
            OutsideDomainError: an item is not in the domain.
        """

    @abstractmethod
    def above_noise(self, estimates: Sequence[Estimate]) -> list[bool] | None:
        """Return for each estimate whether its item stands above noise; None if that is unknown.

        It is True for an item if the lower limit of its frequency exceeds 0. This limit is not the
        `low` of the estimate: it is made to hold for all candidates at once. So with the confidence
        of the limits, there is no item at all that gets True although nobody holds it. The method
        returns None if there are no limits, or if the domain is open.
        """

    def uncertainty(self, items: Sequence[str | int]) -> Uncertainty | None:
        """Return how far the estimates of named items may be off: three distances for each item.

        The distances are shares, and hold with the confidence of the limits. They are the distances

        - from the estimate to the share among the clients that took part,
        - from this share to the share in a wider population, of which the clients are a sample,
        - from the estimate to the share in the population.

        Returns None if the confidence is 0, or no item is named.

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

        The limits do not allow for selection: they hold for items that were named beforehand. If
        the name of a string was not read, its item is None.
        """
        names = [field.name for field in fields(Estimate)]
        for batch in self.to_arrow().select(names).to_batches(max_chunksize=_ROWS):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Estimate(*row)


def notebook_table(
    head: str, unit: str, confidence: float, estimates: Sequence[Estimate], notes: Iterable[str]
) -> str:
    """Return estimates as an HTML table for notebooks, with the notes as a list below it.

    Control characters are escaped, and long items are shortened in the middle.

    Args:
        head: the HTML of the caption above the table.
        unit: the plural noun for what is counted.
        confidence: the confidence of the limits; 0: no column of limits.
        estimates: the estimates, one for each row.
        notes: the notes, one for each entry of the list.
    """
    limits = f"<th scope='col'>{100 * confidence:.12g} % interval</th>" if confidence > 0 else ""
    rows = "".join(
        # <bdi> isolates the item. Otherwise right-to-left letters could move the numbers.
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
    """Return a note in which options have their Python names, such as max_items."""
    return render(note.marked, for_="python") if isinstance(note, Note) else note


def _shown(item: str | int) -> str:
    """Return an item as text for a notebook: control characters escaped, long text shortened."""
    return shortened(escaped(str(item)), _LONGEST_SHOWN)
