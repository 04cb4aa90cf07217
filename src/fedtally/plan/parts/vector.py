"""The vector that a client sends: a sketch, or a histogram with one counter for each candidate.

`fedtally.sketch` says which counters an item changes. `fedtally.base.encoding` bounds how much one
client may change them.

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
    """The kind of the vector that a client sends, and what follows from the kind.

    Args:
        encoding: whether items are counted in a sketch or in a histogram.
    """

    encoding: Encoding

    @property
    def kind(self) -> Kind:
        """The name of the encoding: "sketch" or "histogram"."""
        return cast("Kind", str(self.encoding))

    @property
    def shares_counters(self) -> bool:
        """Whether items share counters, so that the error depends on how frequent items are."""
        return self.kind == "sketch"

    def first_id(self, candidates: Candidates | Domain) -> int | None:
        """Return the id of the candidate that the first counter of a histogram counts.

        The other counters follow in the order of the candidates. Returns None for a sketch, where
        hashes choose the counters.

        Args:
            candidates: the candidates, or the domain that lists them.
        """
        return None if self.kind == "sketch" else candidates.first_id

    def check(self, candidates: Candidates, width: int) -> None:
        """Refuse a histogram that cannot count the candidates, or has another number of counters.

        A histogram must have as many counters as there are candidates. A sketch is never refused.

        Args:
            candidates: the candidates.
            width: the number of counters in a row.

        Raises:
            InvalidInputError: a histogram cannot count the candidates (`check_histogram_domain`),
                or its width is not the number of candidates.
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

        It is negative for a sketch even without noise, because an item may subtract from a counter.

        Args:
            most: the most that all clients together add to a counter, without noise.
            noise: a bound on the absolute value of the noise in a counter.
        """
        return -noise - (most if self.kind == "sketch" else 0)

    def has_parity(self, max_items: int) -> bool:
        """Return whether the sum of a row's counters shows if the number of clients is even or odd.

        This is so for a sketch with exactly one item per client, and without noise. Each client
        then adds 1 to one counter of each row, or subtracts 1. So the sum of a row is odd if the
        number of clients is odd, and even if it is even. With several items, two items of a client
        may cancel.

        Args:
            max_items: the most items of one client.
        """
        return self.kind == "sketch" and max_items == 1
