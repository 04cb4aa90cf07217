"""What a client sends: a sketch, or a histogram, which has a counter for each candidate.

How items find their counters is in `fedtally.sketch`. How much one client may change is in
`fedtally.base.encoding`.

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
    """What follows from what a client sends.

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
        """Return the id that the first counter counts; None: a hash chooses the counters.

        Args:
            candidates: the candidates, or what describes them.
        """
        return None if self.kind == "sketch" else candidates.first_id

    def check(self, candidates: Candidates, width: int) -> None:
        """Refuse candidates that have no counter each, where they need one.

        Args:
            candidates: what may be counted.
            width: the counters of a row.

        Raises:
            InvalidInputError: a histogram has not one counter for each candidate.
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
        """Return the least value of a counter of a sum.

        Args:
            most: the most that all clients together add to a counter.
            noise: the most that noise adds to it, on either side.
        """
        return -noise - (most if self.kind == "sketch" else 0)

    def has_parity(self, max_items: int) -> bool:
        """Return whether each row of a sum is odd if and only if its number of clients is.

        A client of one item adds 1 to each row of a sketch, or subtracts it. Of several items some
        may cancel.

        Args:
            max_items: the most items of one client.
        """
        return self.kind == "sketch" and max_items == 1
