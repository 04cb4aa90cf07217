"""The choice of schedule, rows and width: the fewest bytes for an error, or the reverse.

**Schedules.** Where nothing is noised, rounds of new signs are at least as good as rounds that
share them: collisions cancel. Noise changes that. Who adds noise once to every sum that is opened
adds as much to each of them, so that rounds are better added up first, in some number of batches:
docs/releases.md says why. That number depends on the width, and the width on it: both are chosen in
turn until nothing changes.

**What is out of reach.** Noise leaves an error that no width takes away, and bytes buy a width.
`reach` says how small an error is to be had; from it follows by halving how many clients, bytes or
which epsilon would do.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.kernels import MAX_WIDTH
from fedtally.plan.campaign import Campaign
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import Size
from fedtally.plan.sizes import MARGIN, RISK, UnreachableError, size_by_model, within
from fedtally.recovery.decoders import USUAL
from fedtally.recovery.decoding import kind_of
from fedtally.sketch import Schedule
from fedtally.sketch.schedule import AUTO, BATCHED_AUTO

_TURNS = 4  # schedule and size, chosen in turn
_BETTER = 0.95  # of the error: what another schedule must save to be taken instead of the first


class Choice(NamedTuple):
    """A schedule, and a sketch for it."""

    schedule: Schedule
    size: Size


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is given when a schedule and a size are chosen.

    Args:
        distribution: what is known of the frequencies.
        num_clients: of all rounds together.
        num_rounds: M.
        schedules: those to choose from, the preferred one first; see `schedules`.
        recovery: the name of a decoder.
        rows: those to choose from; None: all that are worth it.
        failure_probability: with which the largest error may be exceeded, in (0, 1).
        noise: of rows and a schedule: standard deviation in each counter of each round's sum, in
            counts.
        bytes_of: what a client of a round sends, of rows, width and schedule; it must not fall with
            the width.
        round_sizes: clients of each round, where these are known; None: about equal.
        margin: by which the width exceeds the predicted one.
        risk: the share of failure_probability that is planned for.
    """

    distribution: Frequencies
    num_clients: int
    num_rounds: int
    schedules: Sequence[Schedule]
    bytes_of: Callable[[int, int, Schedule], int]
    recovery: str = USUAL
    rows: Iterable[int] | int | None = None
    failure_probability: float = 0.1
    noise: Callable[[int, Schedule], float] = lambda *_: 0.0
    round_sizes: Sequence[int] | None = None
    margin: float = MARGIN
    risk: float = RISK

    def __post_init__(self) -> None:
        if not self.schedules:
            raise InvalidInputError("schedules must be at least one, got none")
        validate.inside(failure_probability=self.failure_probability)

    def campaign(self, schedule: Schedule) -> Campaign:
        """Return the campaign under a schedule."""
        return Campaign(
            self.num_clients,
            schedule,
            self.num_rounds,
            self.recovery,
            lambda rows: self.noise(rows, schedule),
            self.round_sizes,
        )

    def linf(self, schedule: Schedule, rows: int, width: int) -> float:
        """Return the largest error by the error model.

        It is exceeded with the share of failure_probability that is planned for.
        """
        return self.campaign(schedule).modelled_linf(
            self.distribution, self.failure_probability * self.risk, rows, width
        )

    def cost(self, schedule: Schedule, size: Size) -> int:
        """Return the bytes of a size."""
        return self.bytes_of(size.rows, size.width, schedule)

    def width(self, schedule: Schedule, rows: int, max_bytes: int) -> int:
        """Return the largest width that so many bytes buy; 0 if none."""
        return bisect_right(
            range(1, MAX_WIDTH + 1), max_bytes, key=lambda one: self.bytes_of(rows, one, schedule)
        )


def schedules(
    name: Schedule | str, num_rounds: int, recovery: str, *, noised_by_release: bool
) -> list[Schedule]:
    """Return the schedules that a name stands for.

    It is one schedule, or those that `auto` and `batched:auto` choose from.

    Args:
        name: of a schedule, "auto" or "batched:auto".
        num_rounds: M.
        recovery: the name of a decoder.
        noised_by_release: whether noise is added once to whatever is opened, by an aggregator or
            two servers.

    >>> [str(one) for one in schedules("auto", 10, "joint", noised_by_release=False)]
    ['hybrid']
    >>> [str(one) for one in schedules("auto", 4, "joint", noised_by_release=True)]
    ['hybrid', 'batched:3', 'batched:2', 'shared']
    """
    if name not in (AUTO, BATCHED_AUTO):
        return [Schedule.parse(name)]
    if num_rounds == 1:
        return [Schedule.parse("shared" if name == AUTO else "batched:1")]
    if name == AUTO and not noised_by_release:
        return [Schedule.parse(one) for one in kind_of(recovery).schedules]
    few = sorted(numbers_of_batches(num_rounds) - {1, num_rounds}, reverse=True)
    ends = ("hybrid", "shared") if name == AUTO else (f"batched:{num_rounds}", "batched:1")
    return [
        Schedule.parse(one) for one in (ends[0], *(f"batched:{number}" for number in few), ends[1])
    ]


def numbers_of_batches(num_rounds: int) -> set[int]:
    """Return numbers of batches about a factor of sqrt(2) apart.

    Where a batch holds few rounds, the sizes of the batches are about that far apart instead.

    >>> sorted(numbers_of_batches(20))
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 16, 20]
    """
    powers = {round(2 ** (i / 2)) for i in range(2 * num_rounds.bit_length())}
    powers = {power for power in powers if power <= num_rounds}
    return powers | {-(-num_rounds // power) for power in powers}


def smallest(question: Question, tau: float, *, with_linf: bool = True) -> Choice:
    """Return the schedule, rows and width that meet a target with the fewest bytes.

    Args:
        question: what is given.
        tau: the largest error that is asked for, in (0, 1).
        with_linf: as for `size_by_model`.

    Raises:
        InvalidInputError: a value is out of its range.
        UnreachableError: no size meets the target.

    >>> halves = [2.0**-i for i in range(1, 40)]
    >>> distribution = Frequencies.from_frequencies(halves, domain_size=1000)
    >>> question = Question(distribution=distribution, num_clients=10_000, num_rounds=4,
    ...                     bytes_of=lambda rows, width, _: 2 * rows * width,
    ...                     schedules=schedules("auto", 4, "joint", noised_by_release=False))
    >>> found = smallest(question, 0.01)
    >>> str(found.schedule), found.size.cells < 100
    ('hybrid', True)
    """

    def sized(schedule: Schedule) -> Size:
        return size_by_model(
            question.distribution,
            tau,
            question.campaign(schedule),
            p=question.failure_probability,
            rows=question.rows,
            margin=question.margin,
            risk=question.risk,
            with_linf=with_linf,
        )

    def cost(found: Choice) -> int:
        return question.cost(*found)

    found = _in_turn(question, sized, cost)
    if found.schedule == question.schedules[0]:
        return found
    return _nearby(question, sized, cost, found)


def best(question: Question, max_bytes: int, *, compared: bool = True) -> Choice:
    """Return the schedule, rows and width with the smallest predicted error within a budget.

    Args:
        question: what is given.
        max_bytes: the budget.
        compared: whether sizes of neighbouring schedules are compared, too, which takes a few times
            as long.

    Raises:
        InvalidInputError: a value is out of its range.
        UnreachableError: the budget buys no sketch.
    """

    def sized(schedule: Schedule) -> Size:
        return within(
            question.distribution,
            max_bytes,
            lambda rows, width: question.bytes_of(rows, width, schedule),
            question.campaign(schedule),
            p=question.failure_probability,
            rows=question.rows,
            risk=question.risk,
        )

    def cost(found: Choice) -> float:
        return found.size.linf or 0.0

    found = _in_turn(question, sized, cost)
    return _nearby(question, sized, cost, found) if compared else found


def _in_turn(
    question: Question, sized: Callable[[Schedule], Size], cost: Callable[[Choice], float]
) -> Choice:
    """Return the cheapest of the choices that come up until the schedule stays.

    Schedule and size are chosen in turn.
    """
    schedule = _least_noised(question)
    best = Choice(schedule, sized(schedule))
    found = best
    for _ in range(_TURNS - 1):
        turned = best_schedule(question, found.size.rows, found.size.width, found.schedule)
        if turned == found.schedule:
            break
        found = Choice(turned, sized(turned))
        best = min(best, found, key=cost)
    return best


def _nearby(
    question: Question,
    sized: Callable[[Schedule], Size],
    cost: Callable[[Choice], float],
    found: Choice,
) -> Choice:
    """Return the cheapest choice that is reached from one, or from the preferred schedule.

    Sizes and schedules that are chosen in turn may stop too early. Where many items are alike, the
    error of a size that just meets the target falls off a cliff: any other schedule then looks
    worse at these bytes, also one that meets the target with a fraction of them. So the costs are
    compared, as `descend` does.
    """
    listed = list(question.schedules)

    @cache
    def choice(place: int) -> Choice | None:
        if listed[place] == found.schedule:
            return found
        try:
            return Choice(listed[place], sized(listed[place]))
        except UnreachableError:  # more noise than the target bears
            return None

    def price(place: int) -> float:
        reached = choice(place)
        return math.inf if reached is None else cost(reached)

    return choice(descend(price, listed.index(found.schedule), len(listed))) or found


def descend(price: Callable[[int], float], start: int, count: int) -> int:
    """Return the place of a schedule that neither neighbour undercuts.

    It is reached from the cheaper one of two places, the start and the first, from place to place
    as long as prices fall.

    Args:
        price: the price of a place, which is asked for more than once.
        start: a place.
        count: how many places there are.

    >>> prices = [5.0, 4.0, 6.0, 3.0, 7.0]
    >>> descend(prices.__getitem__, 4, 5), descend(prices.__getitem__, 2, 5)
    (1, 1)
    """
    place = min(start, 0, key=price)
    for step in (1, -1):
        while 0 <= place + step < count and price(place + step) < price(place):
            place += step
    return place


def reach(question: Question, rows: int, max_bytes: int | None = None) -> float:
    """Return the smallest largest error that so many rows reach.

    The width is that which max_bytes buys, or the largest. Infinite, if no width is bought.

    >>> distribution = Frequencies.from_frequencies([0.5, 0.25, 0.125], domain_size=1000)
    >>> question = Question(distribution=distribution, num_clients=10_000, num_rounds=1,
    ...                     schedules=[Schedule.parse("shared")],
    ...                     bytes_of=lambda rows, width, _: rows * width, noise=lambda *_: 100.0)
    >>> reach(question, 7, 5), reach(question, 7, 700) > reach(question, 7) > 0.01
    (inf, True)
    """
    schedule, width = _least_noised(question), MAX_WIDTH
    if max_bytes is not None:
        width = question.width(schedule, rows, max_bytes)
    if width < 2:
        return math.inf
    schedule = best_schedule(question, rows, width, schedule)
    return question.linf(
        schedule, rows, width if max_bytes is None else question.width(schedule, rows, max_bytes)
    )


def least(
    suffices: Callable[[float], bool], low: float, high: float, ratio: float = 1.01
) -> float | None:
    """Return the least value in [low, high] that suffices, within a ratio.

    None, if not even `high` suffices.

    >>> least(lambda x: x >= 3, 1.0, 100.0, 1.001) <= 3.003
    True
    """
    if not suffices(high):
        return None
    if suffices(low):
        return low
    while high > low * ratio:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def _middle(question: Question) -> int:
    """Return rows in the middle of those to choose from."""
    rows = kind_of(question.recovery).planned_rows if question.rows is None else question.rows
    searched = [rows] if isinstance(rows, int) else sorted(rows)
    return searched[len(searched) // 2]


def _least_noised(question: Question) -> Schedule:
    """Return the schedule with the least noise, of equal ones the first.

    If it does not meet a target, none does.
    """
    rows = _middle(question)
    return min(question.schedules, key=lambda schedule: question.noise(rows, schedule))


def best_schedule(
    question: Question, rows: int, width: int, now: Schedule | None = None
) -> Schedule:
    """Return the schedule with the smallest error for the same bytes.

    The present schedule stays, unless another one is clearly better.

    They are tried one after the other, in both directions, as long as errors fall: over the number
    of batches the error first falls and then rises.

    Args:
        question: what is given.
        rows: of the sketch.
        width: of the sketch.
        now: the schedule that there is; None: the first.
    """
    listed = list(question.schedules)
    start = 0 if now is None else listed.index(now)
    budget = question.bytes_of(rows, width, listed[start])

    @cache
    def error(place: int) -> float:
        bought = question.width(listed[place], rows, budget)
        return question.linf(listed[place], rows, bought) if bought > 1 else math.inf

    found = start
    for step in (1, -1):
        while 0 <= found + step < len(listed) and error(found + step) <= error(found):
            found += step
    return (
        listed[found] if found != start and error(found) < _BETTER * error(start) else listed[start]
    )
