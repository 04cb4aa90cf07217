"""The hardest frequencies for a plan, and a few well-known distributions with names.

The *hardest* frequencies are those for which the plan's error is largest. For joint recovery they
are as follows. The decoder fits an item that stands out from the noise of all items that are not
fitted. Items that are all slightly too rare to stand out hide each other: none of them is fitted,
and no other items of the same total frequency collide as much. So the hardest distribution is a
*plateau*: as many items as possible of one frequency, which is just too small to be fitted.

For the median decoder the hardest distribution is a plateau, too. The frequency of its items is
about as large as the error, as in the paper's lower bound. The number of items depends on the plan
and on its noise, so it is searched for.
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

ANY = "any"  # stands in a target that holds for all frequencies
# The named distributions for which a plan's errors are shown: the usual power law, one that falls
# more slowly, and one with hundreds of items of nearly the same frequency. `--like` takes these
# names, and other distributions, too.
_EXPONENTS = (1.1, 0.8)
NAMED = (*(f"zipf:a={exponent:g}" for exponent in _EXPONENTS), "geometric:q=0.99")
USUAL = NAMED[0]
# The hardest plateau has about this number of items, divided by tau: searches gave 1.5 to 1.7.
_ITEMS_OF_ONE_TAU = 1.5
_COARSE, _FINE = 2.0, 1.05  # ratios between successive numbers of items that are tried
# the ranks of the geometric distribution: later frequencies are below 1e-21 for clients of one item
_GEOMETRIC = 5000
# The search goes to fewer and more frequent items. It ends when the error falls below this share of
# the largest error so far: the items are then fitted, and still fewer items would be fitted, too.
_PASSED = 0.5
# The search also ends if the errors of _IN_TURN plateaus in a row are close to the error of noise
# alone. Close means: the difference is below _NEAR of the largest such difference. A single plateau
# is not enough, because it may be an exception.
_NEAR, _IN_TURN = 0.25, 2
_FAR_BELOW = 0.8  # `_climbed` may end at an error below this share of the largest error so far


class Hardest(NamedTuple):
    """The hardest plateau for a plan, and the error of the plan for it.

    The hardest plateau is the one with the largest error.

    Attributes:
        distribution: the plateau: some items that all have the same frequency.
        linf: the largest error of any frequency for this plateau, as a share of clients.
    """

    distribution: Frequencies
    linf: float

    @property
    def items(self) -> int:
        """The number of items of the plateau."""
        return round(float(self.distribution.numbers[0]))


def plateau(items: int, domain_size: int, *, max_items: int = 1) -> Frequencies:
    """Return a plateau: a distribution in which `items` items all have the same frequency.

    Args:
        items: the number of items, 1 .. domain_size.
        domain_size: the number of candidates; no client holds the candidates beyond `items`.
        max_items: the number of items that each client holds, at most `items`.

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
    """Return a plateau that is nearly the hardest one for a plan whose largest error is tau.

    A plateau is a distribution in which all items have the same frequency. This one has about 1.5 *
    max_items / tau items, but at most `domain_size`.

    Args:
        tau: the largest error, as a share of clients, above 0 and at most 1.
        domain_size: the number of candidates.
        max_items: the number of items that each client holds.

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
    """Return the plateau for which a plan has the largest error, with this error.

    A plateau is a distribution in which all items have the same frequency. The fewer items a
    plateau has, the more frequent they are. With fewer and fewer items the error rises, until the
    items are so frequent that they are fitted; then it falls to nearly nothing. The search goes
    from many items to few, and stops after this fall. It begins with as many items as all clients
    together hold, but at most all candidates; with more items, hardly any two clients would hold
    the same item. If `near` is given, the search begins there instead, and goes in both directions.

    Args:
        linf: a function from frequencies to the largest error of the plan, as a share of clients.
        domain_size: the number of candidates.
        num_clients: the number of clients in all rounds; for silos, the number of people.
        max_items: the number of items that each client holds.
        near: about the number of items of the hardest plateau, for example from a similar plan;
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
    if near is None or worst.linf == 0.0:  # `_climbed` finds no direction if all errors are 0
        worst = _hardest_of(coarse, tried, worst)
    # Now try numbers in fine steps around the hardest plateau so far: from sqrt(_COARSE) times its
    # number of items down to 1 / _COARSE of it. Each step removes at least one item.
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
    """Return the hardest plateau among falling numbers of items; stop where the items are fitted.

    A plateau is a distribution in which all items have the same frequency.

    Args:
        numbers: the numbers of items, falling.
        tried: a function from a number of items to their plateau, with its error.
        worst: the hardest plateau so far.
        floor: about the error that noise alone causes, as a share of clients. If errors come close
            to it, the items are fitted. 0: this error is not known.
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
    """Search in both directions from `near`, and return the hardest plateau that is found.

    The first step is at the number nearest to `near`. The steps in one direction end at a plateau
    if two conditions hold: this plateau and the last ones before it, `_IN_TURN` in a row, are no
    harder than the hardest plateau so far; and the error of this plateau is below `_FAR_BELOW`
    times the largest error so far.

    Args:
        numbers: the numbers of items, falling.
        near: about the number of items of the hardest plateau.
        tried: a function from a number of items to their plateau, with its error.
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
    """Return the distributions that have a name, by name (`NAMED`), over `domain_size` candidates.

    Each client holds `max_items` different items.

    >>> list(named(100))
    ['zipf:a=1.1', 'zipf:a=0.8', 'geometric:q=0.99']
    """
    shapes = {
        name: Frequencies.assumed(domain_size, exponent, max_items=max_items)
        for name, exponent in zip(NAMED[:-1], _EXPONENTS, strict=True)
    }
    ranks = min(domain_size, _GEOMETRIC)
    weights, numbers = np.power(0.99, np.arange(float(ranks))), np.ones(ranks)
    # frequencies sum to the number of items of a client, and none exceeds 1, which is all clients
    frequencies = capped(weights, numbers, float(min(max_items, ranks)), 1.0)
    geometric = Frequencies.from_frequencies(frequencies, domain_size, max_items=max_items)
    return shapes | {NAMED[-1]: geometric}
