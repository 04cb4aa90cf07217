"""The encodings: the ways in which a client's items become the counters that it sends.

This module also bounds what one client can contribute. The size of the noise and the range of a sum
follow from this bound. `fedtally.sketch` (`RoundHash`, `Identity`) maps an item to its counters,
and `fedtally.recovery.decoders` estimates counts from counters.
"""

from __future__ import annotations

from typing import NamedTuple

from fedtally.base.named import Named

AUTO = "auto"


class Exposure(NamedTuple):
    """A bound on how much one client can change the counters of a sum.

    Attributes:
        shift: the most by which a counter changes, in absolute value.
        counters: the most counters that change.
    """

    shift: int
    counters: int

    @property
    def square(self) -> int:
        """The squared Euclidean norm of the largest change."""
        return self.shift**2 * self.counters


class Encoding(Named, option="encoding"):
    """How items become counters.

    `SKETCH`: an item adds +1 or -1 to one counter in each row. A hash chooses the counter and the
    sign, so items share counters. `HISTOGRAM`: there is one row with a counter for each candidate,
    and an item adds 1 to its counter.
    """

    SKETCH = "sketch"
    HISTOGRAM = "histogram"

    def exposure(self, rows: int, max_items: int, contributions: int = 1) -> Exposure:
        """Return how much one client can change the counters of a sum, in the worst case.

        In a sketch, all items may have one counter and one sign in common in each row. In a
        histogram, no two items share a counter: if one contribution replaces another, the worst
        case is that the two contributions change different counters. Proof:
        docs/privacy-proofs/sensitivity.md.

        Args:
            rows: the number of counters that one item changes.
            max_items: the most distinct items in one contribution.
            contributions: 1 if a contribution is added or removed; 2 if it is replaced by another.

        >>> Encoding.SKETCH.exposure(7, 3, 2).square, Encoding.HISTOGRAM.exposure(1, 3, 2).square
        (252, 6)
        """
        together = contributions * max_items
        return {
            Encoding.SKETCH: Exposure(together, rows),
            Encoding.HISTOGRAM: Exposure(1, together * rows),
        }[self]

    def most_of_counter(self, max_items: int) -> int:
        """Return the most by which a client of `max_items` distinct items changes one counter.

        >>> Encoding.SKETCH.most_of_counter(3), Encoding.HISTOGRAM.most_of_counter(3)
        (3, 1)
        """
        return self.exposure(1, max_items).shift

    @property
    def is_signed(self) -> bool:
        """Whether an item may subtract from a counter, so that exact sums may be negative."""
        return self is Encoding.SKETCH


def values_of_sum(largest: int, noise: int = 0, *, signed: bool) -> int:
    """Return how many different values a counter of a sum can have.

    The modulus with which a secure sum adds up counters must be at least this number.

    If an item may subtract, the values are -largest - noise .. largest + noise. If not, they are
    -noise .. largest + noise.

    Args:
        largest: the most that all clients together add to the counter.
        noise: the largest absolute value of the noise in the counter.
        signed: whether an item may subtract from the counter (`Encoding.is_signed`).

    >>> values_of_sum(100, 3, signed=True), values_of_sum(100, 3, signed=False)
    (207, 107)
    """
    return (1 + signed) * largest + 2 * noise + 1
