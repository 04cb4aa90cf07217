"""The sketches that a design may have: schedule, rows and width for an error, or for bytes.

**Schedules.** Where nothing is noised, rounds of new signs are at least as good as rounds that
share them: collisions cancel. Noise changes that. Who adds noise once to every sum that is opened
adds as much to each of them, so that rounds are better added up first, in some number of batches:
docs/accuracy.md says why. That number depends on the width, and the width on it: both are chosen in
turn until nothing changes.

**What is out of reach.** Noise leaves an error that no width takes away, and bytes buy a width.
`Sketches.reach` says how small an error is to be had. From it follows by halving how many clients,
bytes or which epsilon would do.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from fedtally.kernels import MAX_WIDTH
from fedtally.plan.design import Design
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import Size
from fedtally.plan.sizes import RISK, UnreachableError, size_by_answer, size_by_model, within
from fedtally.recovery.decoding import kind_of
from fedtally.sketch import Schedule

_TURNS = 4  # schedule and size, chosen in turn
_BETTER = 0.95  # of the error: what another schedule must save to be taken instead of the first


@dataclass(frozen=True)
class Sketches:
    """The sketches that a design may have, where the frequencies are known.

    Args:
        design: the plan to be, whose size is not looked at.
        frequencies: the known frequencies.
        schedules: the schedules to choose from, the preferred one first.
        rows: the rows of the sketch; None: all that are worth it are tried.
    """

    design: Design
    frequencies: Frequencies
    schedules: Sequence[Schedule]
    rows: int | None = None

    @classmethod
    def of(cls, design: Design, frequencies: Frequencies, rows: int | None = None) -> Sketches:
        """Return the sketches of all schedules that the design may have."""
        return cls(design, frequencies, design.schedules, rows)

    def smallest(self, tau: float, *, with_linf: bool = True) -> Design:
        """Return the design with the sketch that meets a target with the fewest bytes.

        Args:
            tau: the largest error that is asked for, in (0, 1).
            with_linf: whether the size says its largest error, as for `size_by_model`.

        Raises:
            InvalidInputError: a value is out of its range.
            UnreachableError: no size meets the target.

        >>> from fedtally.domain import IntegerRange
        >>> from fedtally.plan.request import Request
        >>> spec, halves = Request(num_rounds=4).resolve(), [2.0**-i for i in range(1, 40)]
        >>> design = Design.fit(spec, IntegerRange(1, 1000), [2500] * 4, seed=bytes(32))
        >>> known = Frequencies.from_frequencies(halves, domain_size=1000)
        >>> chosen = Sketches.of(design, known).smallest(0.01).chosen
        >>> str(chosen.schedule), chosen.rows * chosen.width < 100
        ('hybrid', True)
        """

        def sized(schedule: Schedule) -> Design:
            predictor, rows = self.design.predictor(schedule), self.rows
            p = self.design.spec.failure_probability
            more: dict[str, Any] = {"p": p, "with_linf": with_linf}
            size = size_by_model(self.frequencies, tau, predictor, rows=rows, **more)
            if self.design.has_pilot:
                answer = self.design.spec.decoding.recovery
                known = self.frequencies
                other = size_by_answer(known, tau, predictor, answer, rows=rows, **more)
                if other is not None and other.cells < size.cells:
                    size = other
            return self._with(schedule, size)

        found = self._in_turn(sized, self.cost)
        if found.chosen.schedule == self.schedules[0]:
            return found
        return self._nearby(sized, self.cost, found)

    def best(self, max_bytes: int, *, compared: bool = True) -> Design:
        """Return the design with the sketch of the smallest predicted error within a budget.

        Args:
            max_bytes: the budget.
            compared: whether sizes of neighbouring schedules are compared, too, which takes a few
                times as long.

        Raises:
            InvalidInputError: a value is out of its range.
            UnreachableError: the budget buys no sketch.
        """

        def sized(schedule: Schedule) -> Design:
            size = within(
                self.frequencies,
                max_bytes,
                lambda rows, width: self.design.bytes_of(rows, width, schedule),
                self.design.predictor(schedule),
                p=self.design.spec.failure_probability,
                rows=self.rows,
            )
            return self._with(schedule, size)

        def error(design: Design) -> float:
            return design.linf

        found = self._in_turn(sized, error)
        return self._nearby(sized, error, found) if compared else found

    def reach(self, rows: int, max_bytes: int | None = None) -> float:
        """Return the smallest largest error that a number of rows reaches.

        It is infinite if no width is bought.

        Args:
            rows: the rows of the sketch.
            max_bytes: the bytes that buy the width; None: the width is the largest.
        """
        schedule, width = self._least_noised, MAX_WIDTH
        if max_bytes is not None:
            width = self._width(schedule, rows, max_bytes)
        if width < 2:
            return math.inf
        schedule = self.best_schedule(rows, width, schedule)
        if max_bytes is not None:
            width = self._width(schedule, rows, max_bytes)
        return self.linf(schedule, rows, width)

    def linf(self, schedule: Schedule, rows: int, width: int) -> float:
        """Return the largest error by the error model.

        It is exceeded with the share of the failure probability that is planned for.
        """
        planned = self.design.spec.failure_probability * RISK
        predictor = self.design.predictor(schedule)
        return predictor.modelled_linf(self.frequencies, planned, rows, width)

    def cost(self, design: Design) -> int:
        """Return the bytes of a client, for the size of a design: right to a few bytes."""
        schedule, rows, width, *_ = design.chosen
        return self.design.bytes_of(rows, width, schedule)

    def best_schedule(self, rows: int, width: int, now: Schedule | None = None) -> Schedule:
        """Return the schedule with the smallest error for the same bytes.

        The present schedule stays, unless another one is clearly better.

        They are tried one after the other, in both directions, as long as errors fall: over the
        number of batches the error first falls and then rises.

        Args:
            rows: the rows of the sketch.
            width: the counters of a row.
            now: the present schedule; None: the first.
        """
        listed = list(self.schedules)
        start = 0 if now is None else listed.index(now)
        budget = self.design.bytes_of(rows, width, listed[start])

        @cache
        def error(place: int) -> float:
            bought = self._width(listed[place], rows, budget)
            return self.linf(listed[place], rows, bought) if bought > 1 else math.inf

        place = start
        for step in (1, -1):
            while 0 <= place + step < len(listed) and error(place + step) <= error(place):
                place += step
        is_better = place != start and error(place) < _BETTER * error(start)
        return listed[place if is_better else start]

    def _with(self, schedule: Schedule, size: Size) -> Design:
        return self.design.with_size(schedule, size.rows, size.width).sized_by(size)

    def _width(self, schedule: Schedule, rows: int, max_bytes: int) -> int:
        """Return the largest width that a budget buys; 0 if none."""
        return bisect_right(
            range(1, MAX_WIDTH + 1),
            max_bytes,
            key=lambda width: self.design.bytes_of(rows, width, schedule),
        )

    @property
    def _least_noised(self) -> Schedule:
        """The schedule with the least noise, of equal ones the first.

        If it does not meet a target, none does.
        """
        searched = kind_of(self.design.recovery).planned_rows if self.rows is None else [self.rows]
        rows = sorted(searched)[len(searched) // 2]
        return min(self.schedules, key=lambda schedule: self.design.noise(rows, schedule))

    def _in_turn(
        self, sized: Callable[[Schedule], Design], cost: Callable[[Design], float]
    ) -> Design:
        """Return the cheapest of the designs that come up until the schedule stays.

        Schedule and size are chosen in turn.
        """
        found = cheapest = sized(self._least_noised)
        for _ in range(_TURNS - 1):
            schedule, rows, width, *_ = found.chosen
            turned = self.best_schedule(rows, width, schedule)
            if turned == schedule:
                break
            found = sized(turned)
            cheapest = min(cheapest, found, key=cost)
        return cheapest

    def _nearby(
        self,
        sized: Callable[[Schedule], Design],
        cost: Callable[[Design], float],
        found: Design,
    ) -> Design:
        """Return the cheapest design that is reached from one, or from the preferred schedule.

        Sizes and schedules that are chosen in turn may stop too early. Where many items are alike,
        the error of a size that just meets the target falls off a cliff: any other schedule then
        looks worse at these bytes, also one that meets the target with a fraction of them. So the
        costs are compared, as `descend` does.
        """
        listed = list(self.schedules)

        @cache
        def design_at(place: int) -> Design | None:
            if listed[place] == found.chosen.schedule:
                return found
            try:
                return sized(listed[place])
            except UnreachableError:  # more noise than the target bears
                return None

        def price(place: int) -> float:
            design = design_at(place)
            return math.inf if design is None else cost(design)

        start = listed.index(found.chosen.schedule)
        return design_at(descend(price, start, len(listed))) or found


def descend(price: Callable[[int], float], start: int, count: int) -> int:
    """Return the place of a schedule that neither neighbour undercuts.

    It is reached from the cheaper one of two places, the start and the first, from place to place
    as long as prices fall.

    Args:
        price: the price of a place, which is asked for more than once.
        start: a place.
        count: the number of places.

    >>> prices = [5.0, 4.0, 6.0, 3.0, 7.0]
    >>> descend(prices.__getitem__, 4, 5), descend(prices.__getitem__, 2, 5)
    (1, 1)
    """
    place = min(start, 0, key=price)
    for step in (1, -1):
        while 0 <= place + step < count and price(place + step) < price(place):
            place += step
    return place
