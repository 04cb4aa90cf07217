"""Quantiles with the same results as NumPy's, in a fifth of the time for a few thousand values.

The fit of joint recovery computes some twenty quantiles of a few thousand values each. NumPy's own
functions spend most of that time on the checks of their arguments.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def quantile(values: F64, share: float) -> float:
    """Return exactly what `np.quantile(values, share)` returns.

    Args:
        values: float64 [n], n at least 1, finite.
        share: how much of the values lies below the quantile, in [0, 1].

    >>> quantile(np.array([4.0, 1.0, 2.0, 3.0]), 0.5)
    2.5
    """
    at = math.floor((len(values) - 1) * share)
    if at + 1 >= len(values):
        return float(values.max())
    return _between(*_neighbours(values, at), (len(values) - 1) * share - at)


def quantiles(values: F64, shares: F64) -> F64:
    """Return exactly what `np.quantile(values, shares)` returns: float64 [shares].

    It sorts the values once, which is fastest for a few hundred values.

    Args:
        values: float64 [n], n at least 1, finite.
        shares: how much of the values lies below each quantile, float64 [shares], in [0, 1].

    >>> quantiles(np.array([4.0, 1.0, 2.0, 3.0]), np.array([0.5, 1.0])).tolist()
    [2.5, 4.0]
    """
    ordered = np.sort(values).tolist()
    ordered.append(ordered[-1])  # otherwise the largest value would have no next one
    found = []
    for place in ((len(values) - 1) * shares).tolist():
        at = math.floor(place)
        found.append(_between(ordered[at], ordered[at + 1], place - at))
    return np.array(found)


def _between(low: float, high: float, beyond: float) -> float:
    # NumPy starts from the nearer end, too. So rounding cannot move the result past that end.
    if beyond >= 0.5:
        return high - (high - low) * (1 - beyond)
    return low + (high - low) * beyond


def median(values: F64) -> float:
    """Return exactly what `np.median(values)` returns; `values` as in `quantile`.

    >>> median(np.array([3.0, 1.0, 2.0]))
    2.0
    """
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    return sum(_neighbours(values, half - 1)) / 2


def _neighbours(values: F64, at: int) -> tuple[float, float]:
    """Return the values at the indices `at` and at + 1 of the sorted values."""
    # A partition at one place and a minimum are five times as fast as one at two places.
    parted = np.partition(values, at)
    return float(parted[at]), float(parted[at + 1 :].min())
