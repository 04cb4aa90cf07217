"""Power laws: frequencies that fall with the rank, fitted to two sums and a largest frequency.

The *mass* of some items is the sum of their frequencies f. Their *energy* is the sum of f^2.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedtally.base.roots import root

F64 = npt.NDArray[np.float64]
STEEPEST = 10.0  # the largest exponent that is tried: nearly all mass is then at the first rank


def power_law(
    first: int, last: int, mass: float, energy: float, most: float
) -> tuple[F64, F64, float]:
    """Return the power law with this mass whose energy is nearest to `energy`.

    The item of rank i has a frequency proportional to i^-exponent, but at most `most`. The mass
    above `most` is given to the other items.

    Args:
        first: the first rank, at least 1.
        last: the last rank; if it is below the first rank, the result is empty.
        mass: the sum of the frequencies; if it is 0 or less, the result is empty. If it is more
            than `most` for each rank, the result has less mass.
        energy: the sum of the squared frequencies.
        most: the largest frequency that any item may have.

    Returns:
        frequencies: float64 [k], falling: the frequency of an item in each group of ranks.
        numbers: float64 [k], the number of items in each group.
        exponent: the exponent, 0 to 10.
    """
    if mass <= 0.0 or last < first:
        return np.empty(0), np.empty(0), 0.0
    ranks, numbers = ranks_between(first, last)

    def distribution(exponent: float) -> F64:
        return capped((ranks / first) ** -exponent, numbers, mass, most)

    def excess(exponent: float) -> float:
        return math.log(float(numbers @ distribution(exponent) ** 2) / energy)

    if energy <= 0 or excess(0.0) >= 0:
        exponent = 0.0
    else:
        exponent = STEEPEST if excess(STEEPEST) <= 0 else root(excess, 0.0, STEEPEST, within=1e-4)
    return distribution(exponent), numbers, exponent


def ranks_between(first: int, last: int) -> tuple[F64, F64]:
    """Return the ranks from `first` to `last` in groups, so that few numbers describe many ranks.

    The first 200 ranks are groups of one rank each. Later groups grow in proportion to the rank.

    Returns:
        ranks: float64 [groups], rising: the geometric mean of the first and the last rank of each
            group.
        numbers: float64 [groups], the number of ranks in each group.
    """
    few = min(last - first + 1, 200)
    if few == last - first + 1:
        return np.arange(first, last + 1.0), np.ones(few)
    steps = max(int(math.log((last + 1) / (first + few)) / math.log(1.02)), 1)
    edges = np.unique(
        np.append(
            np.arange(first, first + few), np.rint(np.geomspace(first + few, last + 1, steps + 1))
        )
    )
    return np.sqrt(edges[:-1] * (edges[1:] - 1)), np.diff(edges)


def capped(shape: F64, numbers: F64, mass: float, most: float) -> F64:
    """Return a shape scaled to a mass, with all frequencies at most `most`: float64 [k].

    The mass that the bound cuts off is given to the items below the bound.

    Args:
        shape: float64 [k], falling, above 0: the frequencies of the groups, up to a common factor.
        numbers: float64 [k], the number of items in each group.
        mass: the sum of all frequencies, at most `most` times the number of items.
        most: the largest frequency.
    """
    low, high = math.log(mass / float(numbers @ shape)), math.log(most / float(shape[-1]))
    if float(numbers @ np.minimum(math.exp(low) * shape, most)) < mass * (1 - 1e-9):
        for _ in range(60):  # bisection of the factor that gives the mass in spite of the bound
            middle = (low + high) / 2
            less = float(numbers @ np.minimum(np.exp(middle) * shape, most)) < mass
            low, high = (middle, high) if less else (low, middle)
    found: F64 = np.minimum(math.exp(low) * shape, most)
    return found
