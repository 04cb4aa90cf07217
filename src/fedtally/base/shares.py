"""The whole number of things that a share of them is."""

from __future__ import annotations

import math

# The share was rounded to a floating-point number, and so is its product: each by a relative 2^-53
# at most.
_ROUNDING = 2.0**-50


def whole_share(share: float, number: int) -> int:
    """Return how many of `number` things a share of them is, rounded down to whole things.

    The product of two floating-point numbers may lie just below a whole number, and would then be
    rounded down to one too few. So a product that is only a rounding error below a whole number
    counts as this number.

    Args:
        share: the share, at least 0.
        number: the number of things.

    >>> 0.29 * 100, whole_share(0.29, 100), whole_share(0.295, 100)
    (28.999999999999996, 29, 29)
    >>> whole_share(1000 / 30_000, 30_000), whole_share(math.nextafter(1, 0), 7)
    (1000, 7)
    """
    return math.floor(share * number * (1 + _ROUNDING))
