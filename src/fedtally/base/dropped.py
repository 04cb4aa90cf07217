"""Counts of what a campaign leaves out of the rows that it reads.

A campaign leaves out rows that lack a value, items outside the domain, and items beyond the bound
on a client's items (max_items). Each of these three reasons has its own count. A table may be read
in parts: the counts of the parts are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self


class Draw(NamedTuple):
    """What the bound on a client's items (max_items) did. A pair is a client and one of its items.

    Attributes:
        clients: the number of clients. A client counts once for each round that the rows name for
            it.
        several: the number of these clients that hold more than one item.
        pairs: the number of distinct pairs before items are dropped at random.
        kept: the number of pairs that are left.
        most: the most items of one client. If max_items were this number, no pair would be dropped.
    """

    clients: int = 0
    several: int = 0
    pairs: int = 0
    kept: int = 0
    most: int = 0

    def __add__(self, other: Draw) -> Draw:  # type: ignore[override]  # no tuples are joined
        """Return the counts of two groups of clients together. No client may be in both groups."""
        return Draw(
            self.clients + other.clients,
            self.several + other.several,
            self.pairs + other.pairs,
            self.kept + other.kept,
            max(self.most, other.most),
        )


class Dropped(NamedTuple):
    """What a campaign leaves out of its rows, counted by reason.

    Attributes:
        incomplete: the number of rows that lack an item, a client, a silo or a round. Under
            privacy, a value that cannot be read counts as missing; without privacy it ends the run.
        outside: the number of rows whose items are outside the domain. If rows have a column of
            counts, a row counts as often as its count says. Under privacy, an item that cannot be
            read counts as outside.
        over_max_items: what the bound on a client's items did; None: rows do not name clients, so
            no bound is applied.

    >>> sums = Dropped(incomplete=1) + Dropped(outside=2, over_max_items=Draw(3, 1, 4, 3, 2))
    >>> sums.incomplete, sums.outside, sums.document(max_items=1)["drawn_away"]
    (1, 2, 1)
    """

    incomplete: int = 0
    outside: int = 0
    over_max_items: Draw | None = None

    def __add__(self, other: Dropped) -> Dropped:  # type: ignore[override]
        """Return the counts of two parts of a table together. No client may be in both parts."""
        draws = [part.over_max_items for part in (self, other) if part.over_max_items is not None]
        return Dropped(
            self.incomplete + other.incomplete,
            self.outside + other.outside,
            sum(draws, Draw()) if draws else None,
        )

    def told(self, *, is_private: bool) -> Dropped:
        """Return the counts that may be shown to people.

        Under privacy this is `NOTHING`, since the counts depend on items: both numbers of rows are
        0, and `over_max_items` is None. Otherwise it is this object.
        """
        return NOTHING if is_private else self

    def document(self, max_items: int) -> dict[str, Any] | None:
        """Return what the bound on a client's items did, for the field `draw` of a result's JSON.

        This is None if no bound was applied.

        Args:
            max_items: the bound on a client's items.
        """
        draw = self.over_max_items
        if draw is None:
            return None
        return {
            "max_items": max_items,
            "pairs": draw.pairs,
            "drawn_away": draw.pairs - draw.kept,
            "share_with_several": draw.several / max(1, draw.clients),
            "max_items_for_all": max(1, draw.most),
        }

    def header(self) -> dict[str, Any]:
        """Return the counts as entries for the metadata of a partial tally, JSON-able.

        A partial tally is an Arrow table with the counts of one part of a table
        (`simulation.partial`). The entries are `missing`, `outside` and `drawn`.
        """
        draw = self.over_max_items
        return {
            "missing": self.incomplete,
            "outside": self.outside,
            "drawn": None if draw is None else list(draw),
        }

    @classmethod
    def of_header(cls, header: Mapping[str, Any]) -> Self:
        """Return the counts in a header that has the entries of `Dropped.header`."""
        drawn: Sequence[int] | None = header["drawn"]
        draw = None if drawn is None else Draw(*drawn)
        return cls(header["missing"], header["outside"], draw)


NOTHING = Dropped()
