"""Search for the cheapest parameters of a secure sum that are safe and tolerate dropouts.

Only the planner of a campaign searches. A client does not: it checks the parameters that it is
given, with the predicates of `params`.

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

# The largest probability that some sum of a campaign has more than C corrupt clients, if clients
# are drawn for each sum: see `corrupt_needed`.
EXCEEDED = 1e-6
# If a roster may have more sizes than twice this number, a ring is tried at about this many sizes
# (see `_find_ring_between`).
_LOOKS = 1000


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
    """Return the cheapest parameters that are safe with C corrupt clients and tolerate dropouts.

    `semi-honest` gets the ring with the fewest neighbours, or the complete graph if no ring is safe
    and tolerates the dropouts. The ring is tried for each size of the roster, n_min to n_max. Of
    more than 2,000 sizes only a part is tried (see `_find_ring_between`). `active` always gets the
    complete graph.

    Args:
        n_max: the number of invited clients, which is the largest roster.
        length: V, the number of entries of a vector.
        bits: the number of bits of the modulus, from `modulus_bits`.
        corrupt: C, the number of corrupt clients; `corrupt_clients` computes it from a fraction.
        max_dropout: the largest fraction of the roster that may drop out.
        adversary: the kind of server to protect against, `semi-honest` or `active`.
        n_min: the smallest roster; by default n_max.
        min_survivors: the fewest survivors. By default n_min minus the dropouts, which are the
            fraction max_dropout of n_min, rounded up; in `active` also minus C.

    Raises:
        InvalidInputError: no parameters allow both `corrupt` clients and `max_dropout`, or an
            argument is out of bounds.

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
    # A server that lies could cut an arc off a ring (docs/protocol.md, "Why no ring"). So `active`
    # always has the complete graph.
    if adversary is Adversary.SEMI_HONEST:
        ring = _find_ring_between(n_min, n_max, corrupt, dropout, min_survivors)
        if ring is not None:
            return build(ring_neighbours=ring.neighbours, ring_threshold=ring.threshold)
        # The largest size comes first: the loop then stops at once if it is above the limit of the
        # complete graph. Every size is checked, because dropouts are rounded to whole clients.
        for n, dropouts in [(n, share_of(dropout, n)) for n in range(n_max, n_min - 1, -1)]:
            if n > MAX_COMPLETE_CLIENTS or complete_threshold(n, corrupt) > n - dropouts:
                raise InvalidInputError(
                    f"no graph of {n} clients protects from {corrupt} corrupt ones, bears"
                    f" {dropouts} dropouts and stays whole with {min_survivors} survivors; lower"
                    " corrupt or max_dropout or raise min_survivors"
                )
    return build(ring_neighbours=0, ring_threshold=0)


def corrupt_needed(population: int, corrupt: int, drawn: int, sums: int) -> int:
    """Return the least C such that sums with more than C corrupt clients are improbable.

    The clients of each sum are drawn at random from the whole population. The probability that some
    sum has more than C corrupt clients is at most `EXCEEDED`. For each single sum it is at most
    `EXCEEDED` / sums.

    Args:
        population: the number of clients from which the clients of a sum are drawn.
        corrupt: the number of corrupt clients in the population.
        drawn: the most clients of one sum.
        sums: the number of sums.

    >>> corrupt_needed(20_000, 1000, 200, 100), corrupt_needed(20_000, 1000, 2000, 10)
    (31, 151)
    """
    return _quantile(population, corrupt, drawn, EXCEEDED / sums)


def corrupt_borne(population: int, corrupt: int, drawn: int, sums: int) -> int:
    """Return the most corrupt clients in a population for which `corrupt_needed` is at most C.

    As in `corrupt_needed`, the clients of each sum are drawn at random. The probability that some
    sum has more than C corrupt clients is at most `EXCEEDED`.

    Args:
        population: the number of clients from which the clients of a sum are drawn.
        corrupt: C, the most corrupt clients of one sum; at most `population`.
        drawn: the most clients of one sum.
        sums: the number of sums.

    >>> corrupt_borne(20_000, 10, 200, 100), corrupt_borne(20_000, 31, 200, 100)
    (106, 1027)
    """
    more = range(corrupt, population)  # the search tries each of them plus 1
    return corrupt + bisect_left(
        more, True, key=lambda all_: corrupt_needed(population, all_ + 1, drawn, sums) > corrupt
    )


@lru_cache(maxsize=256)
def _find_ring_between(
    n_min: int, n_max: int, corrupt: int, dropout: int, min_survivors: int
) -> Graph | None:
    """Return the ring with the fewest neighbours that serves every tried size of the roster.

    The result is None if no ring does (see `_serves`). The search begins with the sizes n_min and
    n_max. If the ring that it finds does not serve a third size, this size is added and the search
    repeated. A size in between can be a little harder than both ends, since three effects meet:
    absent clients are rounded to whole clients, C clients are a larger fraction of a smaller
    roster, and a larger roster has more gaps. If there are at most 2,000 sizes from n_min to n_max,
    all are tried; of more sizes about 1,000 to 1,500, evenly spaced.

    Args:
        n_min: the smallest size.
        n_max: the largest size.
        corrupt: C, the number of corrupt clients.
        dropout: the fraction that drops out, in parts per million.
        min_survivors: the fewest survivors.
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
    """Describe a size of the roster, and the corrupt and missing clients that a ring must tolerate.

    Attributes:
        n: the number of clients in the roster.
        corrupt: the number of corrupt clients.
        absent: the most clients that may be absent; even then corrupt and absent clients must not
            cut the ring.
        dropouts: the most clients that drop out by chance; the round must still succeed then.
    """

    n: int
    corrupt: int
    absent: int
    dropouts: int


def _serves(ring: Graph, cohort: _Cohort) -> bool:
    """Return whether a ring is safe for a cohort and tolerates its dropouts.

    Dropouts stop a round if too few shares are left, or if the ring of survivors is not whole. Each
    of these two events may have a probability of at most 2^-20.
    """
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
    """Return the ring with the fewest neighbours k that serves every cohort, or None.

    The ring has the lowest threshold that is possible with k neighbours. A threshold has two
    bounds: it must be above the number of corrupt neighbours that a client may have, and at most
    the number of neighbours that survive. Each bound may fail with a small probability.

    The search skips some k. The lower bound rises with k. The upper bound rises by at most one for
    each neighbour, since one more draw without replacement adds 0 or 1. So if the lower bound is g
    above the upper one, k must grow by at least g. With `stays_whole`, k must also grow by at least
    `_short_of_whole`. All this is computed in floating point. At the end integers decide, as they
    do at the client.

    Args:
        cohorts: the sizes of the roster that the ring must serve.
        least_threshold: a function (k, c) that returns the lowest threshold for k neighbours, at
            most c of them corrupt.
        others: 1 if a client's neighbours are drawn from the n - 1 other clients; 0 if they are
            drawn from all n, as in the search that Bell et al. published.
        stays_whole: whether the ring must pass `is_whole_ring` after random dropouts, except with a
            probability of 2^-20. The published search has no such check.
    """
    odds, top = 2 ** (SECURITY_BITS + 1), min(MAX_NEIGHBOURS, *(cohort.n - 2 for cohort in cohorts))
    # The probability of a cut falls with k. So bisection finds the least k that is safe from cuts.
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
        # The quantiles above are floating-point numbers. A client decides in integers: without this
        # check it could refuse the plan.
        if short <= 0 and all(
            tail_at_most(c.n - others, c.corrupt, k, lowest, odds * c.n) for c in cohorts
        ):
            return Graph(k, max(2, lowest))  # 2: without corrupt clients `lowest` is 1
        k += 2 * max(1, (short + 1) // 2)
    return None


def _short_of_whole(cohort: _Cohort, k: int) -> int:
    """Return how many more survivors two gaps need, so that the ring passes `is_whole_ring`.

    0 or less: they have enough. A gap is k/2 successive clients. Clients drop out at random. With a
    probability of at most 2^-20, some two gaps need more survivors than the result says.

    Args:
        cohort: the size of the roster, and its corrupt clients and dropouts.
        k: the number of neighbours of a client.
    """
    n, corrupt, _, dropouts = cohort
    pairs = n * (n - k - 1) / 2
    left = k - _quantile(n, dropouts, k, 1 / (2**CORRECTNESS_BITS * pairs))
    return 1 + _quantile(n, corrupt, k, 1 / (2 ** (SECURITY_BITS + 1) * pairs)) - left


def _quantile(population: int, marked: int, drawn: int, probability: float) -> int:
    """Return the least x with P[X > x] <= probability, computed in floating point.

    X is hypergeometric: the number of marked items among `drawn` items of a population, drawn
    without replacement.

    Args:
        population: the number of items.
        marked: the number of items that are marked.
        drawn: the number of items that are drawn.
        probability: the bound, in (0, 1).
    """

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
