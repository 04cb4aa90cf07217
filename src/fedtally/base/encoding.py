"""The closed list of encodings: how a client's items become the counters that it sends.

This file bounds a client's contribution. The size of the noise and the range of a sum follow from
the bound. `fedtally.sketch` (`RoundHash`, `Identity`) finds the counters of an item, and
`fedtally.recovery.decoders` reads counts from counters.
"""

from __future__ import annotations

from typing import NamedTuple

from fedtally.base.named import Named

AUTO = "auto"


class Exposure(NamedTuple):
    """The largest change that a client can make to the counters of a sum.

    Attributes:
        shift: the most that one counter changes, in absolute value.
        counters: the number of counters that change.
    """

    shift: int
    counters: int

    @property
    def square(self) -> int:
        """The squared Euclidean norm of the largest change."""
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
        """Return the largest change that one or two contributions make to the counters.

        In a sketch all items may share one counter of each row, with signs that add up. In a
        histogram no two items share a counter: where one contribution replaces another, the worst
        case is that the two change different counters. Proof: docs/privacy-proofs/sensitivity.md.

        Args:
            rows: the number of counters that one item changes.
            max_items: the most distinct items of one contribution.
            contributions: 1, or 2 where one contribution replaces another.

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
        """Whether an item may subtract from a counter, so that exact sums may be negative."""
        return self is Encoding.SKETCH


def values_of_sum(largest: int, noise: int = 0, *, signed: bool) -> int:
    """Return the number of values that a counter of a sum may have: its modulus is at least this.

    The values are -noise .. largest + noise, or if signed -largest - noise .. largest + noise.

    Args:
        largest: the most that all clients together add to the counter.
        noise: the largest absolute value of the noise in the counter.
        signed: whether an item may subtract from the counter (`Encoding.is_signed`).

    >>> values_of_sum(100, 3, signed=True), values_of_sum(100, 3, signed=False)
    (207, 107)
    """
    return (1 + signed) * largest + 2 * noise + 1
