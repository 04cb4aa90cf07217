"""The hardest frequencies for a plan, and some that are easy to name.

Joint recovery fits an item that stands out from the noise of all items that are not fitted. Items
that are all a little too small to stand out hide each other. Then none of them is fitted, and no
other items of the same total frequency collide as much. So the hardest shape is a plateau: as many
items as possible of one frequency, each just too small to be fitted. For the median decoder it is a
plateau, too, and its items are about as frequent as the error is large: the paper's lower bound has
the same shape. The number of items depends on the plan and its noise, so it is searched for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from fedtally.base import validate
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.frequencies.power_law import capped

ANY = "any"  # the name of the frequencies in a target that holds for all frequencies
# Frequencies that anybody can imagine, and give to `--like`: the usual assumption, one that falls
# more slowly, and one with hundreds of items that are nearly alike.
_EXPONENTS = (1.1, 0.8)
NAMED = (*(f"zipf:a={exponent:g}" for exponent in _EXPONENTS), "geometric:q=0.99")
USUAL = NAMED[0]
# tau times the number of items of the hardest plateau: 1.5 to 1.7 where it was looked for
_ITEMS_OF_ONE_TAU = 1.5
_COARSE, _FINE = 2.0, 1.05  # ratios between the numbers of items that are tried
_GEOMETRIC = 5000  # ranks: later ones are below 1e-21
# The search ends where the error falls below this part of the largest one that was found. There the
# items are fitted, and fewer items, each more frequent, are fitted even better.
_PASSED = 0.5
# Or where some in turn are nearer to what noise alone leaves than this share: one may be rough.
_NEAR, _IN_TURN = 0.25, 2
_FAR_BELOW = 0.8  # of the hardest: less ends a climb


class Hardest(NamedTuple):
    """The hardest plateau for a sketch.

    Attributes:
        distribution: the plateau, which is a number of items of one frequency.
        linf: the largest error of any frequency under this plateau, as a share of clients.
    """

    distribution: Frequencies
    linf: float

    @property
    def items(self) -> int:
        """How many items there are."""
        return round(float(self.distribution.numbers[0]))


def plateau(items: int, domain_size: int, *, max_items: int = 1) -> Frequencies:
    """Return the frequencies of `items` items, all held equally often; every client holds some.

    Args:
        items: 1 .. domain_size.
        domain_size: how many candidates there are; nobody holds the others.
        max_items: how many of them each client holds; all of them, if there are fewer.

    >>> plateau(50, 1000, max_items=2).frequencies.tolist()
    [0.04]
    """
    validate.integer(1, domain_size, items=items)
    return Frequencies(
        np.array([min(1.0, max_items / items)]),
        np.array([float(items)]),
        domain_size,
        max_items=max_items,
        is_hardest=True,
    )


def usual_plateau(tau: float, domain_size: int, *, max_items: int = 1) -> Frequencies:
    """Return nearly the hardest plateau for a plan whose largest error is tau.

    Args:
        tau: a share of clients, above 0 and at most 1. However small it is, the plateau has at most
            `domain_size` items.
        domain_size: how many candidates there are.
        max_items: how many items each client holds.

    >>> float(usual_plateau(0.01, 10_000).numbers[0])
    150.0
    """
    items = round(_ITEMS_OF_ONE_TAU * max_items / tau)
    fewest = min(max_items, domain_size)
    items = max(fewest, min(items, domain_size))
    return plateau(items, domain_size, max_items=max_items)


def find_hardest(
    linf: Callable[[Frequencies], float],
    domain_size: int,
    num_clients: int,
    *,
    max_items: int = 1,
    near: int | None = None,
) -> Hardest:
    """Return the plateau with the largest error.

    With fewer and fewer items the error rises, until the items are so frequent that they are
    fitted; then it falls to nearly nothing. The search goes from many items to few, and stops after
    this fall. It begins with as many items as all clients together hold: with more, hardly any two
    clients would hold the same one. Where the number is nearly known, it begins there, and goes
    both ways.

    Args:
        linf: returns the largest error of the plan for some frequencies, as a share of clients.
        domain_size: how many candidates there are.
        num_clients: all clients.
        max_items: the number of items of one client.
        near: about the number of items of the hardest plateau, such as that of a similar plan;
            None: it is not known.

    >>> def linf(known):  # items of 2 % and more are fitted
    ...     return float(known.frequencies[0]) * (known.frequencies[0] < 0.02)
    >>> find_hardest(linf, 100_000, 1000).items, find_hardest(linf, 100_000, 1000, near=40).items
    (51, 51)
    """

    @cache
    def tried(items: int) -> Hardest:
        distribution = plateau(items, domain_size, max_items=max_items)
        return Hardest(distribution, linf(distribution))

    fewest = min(max_items, domain_size)
    most = max(fewest, min(domain_size, num_clients * max_items))
    coarse = [most]
    while coarse[-1] > fewest:
        coarse.append(max(fewest, math.floor(coarse[-1] / _COARSE)))
    worst = tried(most) if near is None else _climbed(coarse, near, tried)
    if near is None or worst.linf == 0.0:  # nothing leads on from where there is no error
        worst = _hardest_of(coarse, tried, worst)
    # Now fine steps around the worst that was tried. They begin halfway (in logarithms) between it
    # and the coarse step above, and go down to the coarse step below. Each step takes away at least
    # one item.
    low = max(fewest, math.floor(worst.items / _COARSE))
    items = min(most, math.ceil(worst.items * math.sqrt(_COARSE)))
    fine = []
    while items > low:
        items = min(items - 1, max(low, math.floor(items / _FINE)))
        fine.append(items)
    return _hardest_of(fine, tried, worst, tried(low).linf)


def _hardest_of(
    numbers: Sequence[int],
    tried: Callable[[int], Hardest],
    worst: Hardest,
    floor: float = 0.0,
) -> Hardest:
    """Return the hardest of plateaus, from many items to few: up to where these are fitted.

    Args:
        numbers: the numbers of items, falling.
        tried: returns the plateau of a number of items.
        worst: the hardest that is known.
        floor: the error that noise alone leaves, or nearly: near it the items are fitted.
    """
    start, near_floor = worst.items, 0
    for items in numbers:
        found = tried(items)
        if found.linf < _PASSED * worst.linf:
            break
        worst = max(worst, found, key=lambda one: one.linf)
        is_near = found.linf - floor < _NEAR * (worst.linf - floor) and items < start
        near_floor = near_floor + 1 if is_near else 0
        if floor and near_floor == _IN_TURN:
            break
    return worst


def _climbed(numbers: Sequence[int], near: int, tried: Callable[[int], Hardest]) -> Hardest:
    """Return the hardest of plateaus, by steps both ways from the one that is nearest to `near`.

    Each way ends where steps in turn are no harder than the hardest so far, and one far easier.
    """
    start = min(range(len(numbers)), key=lambda place: abs(math.log(numbers[place] / near)))
    worst = tried(numbers[start])
    for way in (numbers[start - 1 :: -1] if start else (), numbers[start + 1 :]):
        falls = 0
        for items in way:
            found = tried(items)
            worst, falls = (found, 0) if found.linf > worst.linf else (worst, falls + 1)
            if falls >= _IN_TURN and found.linf < _FAR_BELOW * worst.linf:
                break
    return worst


def named(domain_size: int, *, max_items: int = 1) -> Mapping[str, Frequencies]:
    """Return the frequencies of `NAMED`, over `domain_size` candidates.

    Every client holds `max_items` items, none of them twice.

    >>> list(named(100))
    ['zipf:a=1.1', 'zipf:a=0.8', 'geometric:q=0.99']
    """
    shapes = {
        name: Frequencies.assumed(domain_size, exponent, max_items=max_items)
        for name, exponent in zip(NAMED[:-1], _EXPONENTS, strict=True)
    }
    ranks = min(domain_size, _GEOMETRIC)
    weights, numbers = np.power(0.99, np.arange(float(ranks))), np.ones(ranks)
    # They add up to the number of items of a client, and none is above 1 (all clients).
    frequencies = capped(weights, numbers, float(min(max_items, ranks)), 1.0)
    geometric = Frequencies.from_frequencies(frequencies, domain_size, max_items=max_items)
    return shapes | {NAMED[-1]: geometric}
