"""The vector that a client sends: a sketch, or a histogram with a counter for each candidate.

`fedtally.sketch` finds the counters of an item. `fedtally.base.encoding` bounds how much one client
may change.

>>> sketch, histogram = Vector(Encoding.SKETCH), Vector(Encoding.HISTOGRAM)
>>> sketch.shares_counters, sketch.lowest(10, 2), sketch.has_parity(1)
(True, -12, True)
>>> histogram.shares_counters, histogram.lowest(10, 2), histogram.has_parity(1)
(False, -2, False)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError
from fedtally.plan.parts.candidates import Candidates, check_histogram_domain

if TYPE_CHECKING:
    from fedtally.domain import Domain

Kind = Literal["sketch", "histogram"]


@dataclass(frozen=True)
class Vector:
    """The kind of the vector that a client sends, and what follows from it.

    Args:
        encoding: the way in which items become counters.
    """

    encoding: Encoding

    @property
    def kind(self) -> Kind:
        """The kind, "sketch" or "histogram"."""
        return cast("Kind", str(self.encoding))

    @property
    def shares_counters(self) -> bool:
        """Whether items share counters, so that the error depends on the frequencies."""
        return self.kind == "sketch"

    def first_id(self, candidates: Candidates | Domain) -> int | None:
        """Return the id that the first counter counts; None: hashes choose the counters.

        Args:
            candidates: the candidates, or their domain.
        """
        return None if self.kind == "sketch" else candidates.first_id

    def check(self, candidates: Candidates, width: int) -> None:
        """Refuse a histogram that has not exactly one counter for each candidate.

        Args:
            candidates: the candidates.
            width: the number of counters of a row.

        Raises:
            InvalidInputError: the candidates do not fit a histogram, or the width is not their
                number.
        """
        if self.kind == "sketch":
            return
        check_histogram_domain(candidates.description)
        size = int(candidates.description["size"])
        if width != size:
            raise InvalidInputError(
                f"width must be the number of candidates in a histogram, {size}, got {width}"
            )

    def lowest(self, most: int, noise: int) -> int:
        """Return the least value that a counter of a sum may have.

        Args:
            most: the most that all clients together add to a counter.
            noise: the largest absolute value of the noise in a counter.
        """
        return -noise - (most if self.kind == "sketch" else 0)

    def has_parity(self, max_items: int) -> bool:
        """Return whether the total of each row of a sum has the parity of the number of clients.

        A client with one item adds 1 to each row of a sketch, or subtracts 1. The total of a row is
        then odd if and only if the number of clients is odd. Several items of a client may cancel.

        Args:
            max_items: the most items of one client.
        """
        return self.kind == "sketch" and max_items == 1
