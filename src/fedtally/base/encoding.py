"""The closed list of encodings: how a client's items become the counters that it sends.

This file says how large a contribution may be, and so how much noise hides it and which values a
sum may have. How items find their
counters is in `fedtally.sketch` (`RoundHash`, `Identity`), how counts are read from counters in
`fedtally.recovery.decoders`.
"""

from __future__ import annotations

from typing import NamedTuple

from fedtally.base.named import Named

AUTO = "auto"


class Exposure(NamedTuple):
    """The most that clients move: a number of counters, all of them by the same shift.

    Attributes:
        shift: the most that each of these counters moves.
        counters: the number of counters that move.
    """

    shift: int
    counters: int

    @property
    def square(self) -> int:
        """The square of the Euclidean distance."""
        return self.shift**2 * self.counters


class Encoding(Named, option="encoding"):
    """How items become counters.

    `SKETCH`: an item adds +1 or -1 to one counter of each row, which a hash chooses, so that items
    share counters. `HISTOGRAM`: each candidate has a counter of its own, in one row, and an item
    adds 1 to it.
    """

    SKETCH = "sketch"
    HISTOGRAM = "histogram"

    def exposure(self, rows: int, max_items: int, contributions: int = 1) -> Exposure:
        """Return what some contributions of distinct items move at worst.

        In a sketch all items may share one counter of each row, with signs that add up. In a
        histogram no two items share a counter. Two contributions, of which one replaces the other,
        then move other counters. Proof: docs/privacy-proofs/sensitivity.md.

        Args:
            rows: counters that one item changes.
            max_items: the most distinct items of a contribution.
            contributions: 1, or 2 where one replaces another.

        >>> Encoding.SKETCH.exposure(7, 3, 2).square, Encoding.HISTOGRAM.exposure(1, 3, 2).square
        (252, 6)
        """
        together = contributions * max_items
        return {
            Encoding.SKETCH: Exposure(together, rows),
            Encoding.HISTOGRAM: Exposure(1, together * rows),
        }[self]

    def most_of_counter(self, max_items: int) -> int:
        """Return the most that the distinct items of one client add to one counter.

        >>> Encoding.SKETCH.most_of_counter(3), Encoding.HISTOGRAM.most_of_counter(3)
        (3, 1)
        """
        return self.exposure(1, max_items).shift

    @property
    def is_signed(self) -> bool:
        """Whether items may take from a counter, so that exact sums are on both sides of 0."""
        return self is Encoding.SKETCH


def values_of_sum(largest: int, noise: int = 0, *, signed: bool) -> int:
    """Return how many values a counter of a sum may have, which its modulus must tell apart.

    They are -noise .. largest + noise, or if signed -largest - noise .. largest + noise.

    Args:
        largest: the most that all clients together add to the counter.
        noise: the most that noise adds to it, on either side.
        signed: `Encoding.is_signed`.

    >>> values_of_sum(100, 3, signed=True), values_of_sum(100, 3, signed=False)
    (207, 107)
    """
    return (1 + signed) * largest + 2 * noise + 1
