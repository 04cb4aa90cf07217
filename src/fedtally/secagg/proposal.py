"""The planner of secure summation: the cheapest graph that protects and bears the dropouts.

Only the planner of a campaign searches. A client evaluates the predicates of `params` on the
parameters that it is given.

>>> from fedtally.secagg.params import corrupt_clients
>>> corrupt = corrupt_clients(0.05, 1000)
>>> parameters = propose(1000, length=20_000, bits=16, corrupt=corrupt, max_dropout=0.05)
>>> parameters.graph(1000), corrupt, parameters.min_survivors, parameters.checksum_entries
(Graph(neighbours=36, threshold=19), 50, 950, 4)
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.secagg.params import (
    CORRECTNESS_BITS,
    MAX_CLIENTS,
    MAX_COMPLETE_CLIENTS,
    MAX_NEIGHBOURS,
    MIN_CLIENTS,
    SECURITY_BITS,
    Adversary,
    Graph,
    Parameters,
    complete_threshold,
    is_cut_below,
    is_safe_ring,
    ppm_of,
    share_of,
    tail_at_most,
)

_LOOKS = 1000  # sizes of the roster that a ring is tried at: bounds the time of a search


def propose(
    n_max: int,
    *,
    length: int,
    bits: int,
    corrupt: int,
    max_dropout: float,
    adversary: Adversary | str = Adversary.SEMI_HONEST,
    n_min: int | None = None,
    min_survivors: int | None = None,
) -> Parameters:
    """Return the cheapest parameters that protect from C corrupt clients and bear the dropouts.

    Semi-honest: the ring of the fewest neighbours, or the complete graph where there is none. A
    range of sizes is searched so that a ring protects every size.

    Args:
        n_max: invited clients.
        length: V.
        bits: b, from `modulus_bits`.
        corrupt: C; `corrupt_clients` computes it from a fraction.
        max_dropout: a fraction of the roster.
        adversary: the profile.
        n_min: the smallest roster; by default n_max.
        min_survivors: the fewest survivors; by default what max_dropout leaves of n_min, in
            `active` less C.

    Raises:
        InvalidInputError: no parameters bear `corrupt` clients and `max_dropout` together.

    >>> found = propose(
    ...     1000, length=100, bits=16, corrupt=50, max_dropout=0.1, adversary="active")
    >>> found.graph(1000)
    Graph(neighbours=999, threshold=526)
    """
    adversary, dropout = Adversary.parse(adversary), ppm_of(max_dropout=max_dropout)
    n_max = validate.integer(MIN_CLIENTS, MAX_CLIENTS, n_max=n_max)
    n_min = n_max if n_min is None else validate.integer(MIN_CLIENTS, n_max, n_min=n_min)
    corrupt = validate.integer(0, n_min, corrupt=corrupt)
    if min_survivors is None:
        left = n_min - share_of(dropout, n_min, up=True)
        min_survivors = left - corrupt if adversary is Adversary.ACTIVE else left
    build = partial(
        Parameters,
        adversary=adversary,
        n_min=n_min,
        n_max=n_max,
        corrupt=corrupt,
        max_dropout_ppm=dropout,
        min_survivors=min_survivors,
        length=length,
        bits=bits,
    )
    # never a ring in `active`: a server that lies cuts an arc off (docs/protocol.md, "Why no ring")
    if adversary is Adversary.SEMI_HONEST:
        ring = _find_ring_between(n_min, n_max, corrupt, dropout, min_survivors)
        if ring is not None:
            return build(ring_neighbours=ring.neighbours, ring_threshold=ring.threshold)
        # the largest first, which may be too large; all, because dropouts are rounded to whole ones
        for n, dropouts in [(n, share_of(dropout, n)) for n in range(n_max, n_min - 1, -1)]:
            if n > MAX_COMPLETE_CLIENTS or complete_threshold(n, corrupt) > n - dropouts:
                raise InvalidInputError(
                    f"no graph of {n} clients protects from {corrupt} corrupt ones, bears"
                    f" {dropouts} dropouts and stays whole with {min_survivors} survivors; lower"
                    " corrupt or max_dropout or raise min_survivors"
                )
    return build(ring_neighbours=0, ring_threshold=0)


@lru_cache(maxsize=256)
def _find_ring_between(
    n_min: int, n_max: int, corrupt: int, dropout: int, min_survivors: int
) -> Graph | None:
    """Return the cheapest ring for all sizes of a roster.

    It is searched for both ends of the range, and again with each size between that it does not
    serve. Absent clients are rounded to whole ones, corrupt clients weigh most in the smallest
    roster, and the largest has most gaps, so that a size between can be the hardest by a little.
    Every size of a range of fewer than 2,000 is tried, and about 1,000 sizes of a larger range.
    """

    def cohort(n: int) -> _Cohort:
        gone = share_of(dropout, n)
        return _Cohort(n, corrupt, max(gone, n - min_survivors), gone)

    sizes = {n_min, n_max}
    between = range(n_min, n_max + 1, max(1, (n_max - n_min) // _LOOKS))
    while True:
        ring = _find_ring([cohort(n) for n in sorted(sizes)], stays_whole=True)
        weak = (
            next((n for n in between if n not in sizes and not _serves(ring, cohort(n))), None)
            if ring
            else None
        )
        if weak is None:
            return ring
        sizes.add(weak)


class _Cohort(NamedTuple):
    """A size of the roster, whose ring `absent` must not cut and `dropouts` must not stop."""

    n: int
    corrupt: int
    absent: int
    dropouts: int


def _serves(ring: Graph, cohort: _Cohort) -> bool:
    """Tell whether a ring protects a cohort and bears its dropouts, but for 2^-20 a reason."""
    n, corrupt, absent, dropouts = cohort
    k, threshold = ring
    return (
        is_safe_ring(n, corrupt, absent, ring)
        and threshold <= k - _quantile(n - 1, dropouts, k, 1 / (2**CORRECTNESS_BITS * n))
        and _short_of_whole(cohort, k) <= 0
    )


def _one_more_than_corrupt(neighbours: int, corrupt: int) -> int:
    return corrupt + 1


def _find_ring(
    cohorts: Sequence[_Cohort],
    least_threshold: Callable[[int, int], int] = _one_more_than_corrupt,
    others: int = 1,
    stays_whole: bool = False,
) -> Graph | None:
    """Return the ring of the fewest neighbours that serves every cohort, or None.

    It has the lowest threshold. A threshold must be above the number of corrupt neighbours that a
    client may have, and at most the number of neighbours that surely survive. The lowest threshold
    rises with k, and the highest by no more than one for each neighbour (a further draw without
    replacement adds 0 or 1). So where they are g apart, no k below k + g is enough. The same holds
    for the survivors of two gaps and those that `is_whole_ring` demands. The quantiles are
    floating-point numbers and suggest a threshold; integers decide, as for the client.

    Args:
        cohorts: the sizes of the roster that the ring must serve.
        least_threshold: the lowest threshold for k neighbours, at most c of them corrupt: (k, c).
        others: 1 if a client's neighbours are drawn from n - 1 others; 0 if from n, as in the
            published search.
        stays_whole: whether dropouts by chance must pass `is_whole_ring` but for 2^-20. The
            published search has no such check.
    """
    odds, top = 2 ** (SECURITY_BITS + 1), min(MAX_NEIGHBOURS, *(cohort.n - 2 for cohort in cohorts))
    # The chance of a cut falls with k, so that the least k without one is found by bisection
    whole = bisect_left(
        range(2, top + 1, 2),
        True,
        key=lambda k: all(is_cut_below(c.n, c.corrupt + c.absent, k, odds) for c in cohorts),
    )
    k = 2 + 2 * whole
    while k <= top:
        lowest, highest = 1, k
        for n, corrupt, _, dropouts in cohorts:
            lowest = max(
                lowest, least_threshold(k, _quantile(n - others, corrupt, k, 1 / (odds * n)))
            )
            highest = min(
                highest, k - _quantile(n - others, dropouts, k, 1 / (2**CORRECTNESS_BITS * n))
            )
        short = (
            max(lowest - highest, *(_short_of_whole(c, k) for c in cohorts))
            if stays_whole
            else lowest - highest
        )
        # The quantiles are floating-point numbers. What protects is decided in integers, as by the
        # client, which would refuse the plan otherwise.
        if short <= 0 and all(
            tail_at_most(c.n - others, c.corrupt, k, lowest, odds * c.n) for c in cohorts
        ):
            return Graph(k, max(2, lowest))  # 1 where nobody is corrupt
        k += 2 * max(1, (short + 1) // 2)
    return None


def _short_of_whole(cohort: _Cohort, k: int) -> int:
    """Return how many survivors two gaps lack of those that `is_whole_ring` demands.

    That many are lacking by chance, but for a probability of 2^-20.
    """
    n, corrupt, _, dropouts = cohort
    pairs = n * (n - k - 1) / 2
    left = k - _quantile(n, dropouts, k, 1 / (2**CORRECTNESS_BITS * pairs))
    return 1 + _quantile(n, corrupt, k, 1 / (2 ** (SECURITY_BITS + 1) * pairs)) - left


def _quantile(population: int, marked: int, drawn: int, probability: float) -> int:
    """Return the least x with P[Hyper(population, marked, drawn) > x] <= probability, rounded."""

    def log_factorial(x: int) -> float:
        return math.lgamma(x + 1)

    least, top = max(0, drawn + marked - population), min(marked, drawn)
    constant = (
        log_factorial(marked)
        + log_factorial(population - marked)
        + log_factorial(drawn)
        + log_factorial(population - drawn)
        - log_factorial(population)
    )

    def above(x: int) -> float:
        i, total, ratio = x + 1, 1.0, 1.0
        log_first = constant - sum(
            map(log_factorial, (i, marked - i, drawn - i, population - marked - drawn + i))
        )
        while i < top and ratio > 1e-18 * total:
            ratio *= (marked - i) * (drawn - i) / ((i + 1) * (population - marked - drawn + i + 1))
            total, i = total + ratio, i + 1
        return math.exp(log_first) * total

    most = top
    while least < most:
        middle = (least + most) // 2
        least, most = (least, middle) if above(middle) <= probability else (middle + 1, most)
    return least
