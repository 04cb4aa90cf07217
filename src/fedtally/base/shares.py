"""The whole number of things that a share of them is."""

from __future__ import annotations

import math
from fractions import Fraction


def whole_share(share: float, number: int) -> int:
    """Return how many of `number` things a share of them is, rounded down to whole things.

    The share is taken as the decimal number that it is printed as. A product of floating-point
    numbers may lie just below a whole number, and would then be rounded down to one too few.

    Args:
        share: the share, at least 0.
        number: the number of things.

    >>> 0.29 * 100, whole_share(0.29, 100), whole_share(0.295, 100)
    (28.999999999999996, 29, 29)
    """
    return math.floor(Fraction(repr(float(share))) * number)
