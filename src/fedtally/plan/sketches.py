"""The choice of schedule, rows and width of a sketch, for a target error or for a budget of bytes.

**Schedules.** Without noise, new signs in each round are at least as good as shared signs, because
collisions cancel. Noise changes this. An aggregator, or two servers, add the same amount of noise
to each sum that is opened. So it may be better to add up the rounds of a batch (a group of rounds
that share all hashes and signs) before the noise is added: docs/accuracy.md says why. The best
number of batches depends on the width, and the width depends on the number of batches. So batches
and width are chosen in turn, until neither changes. Each is chosen at most four times.

**Targets that cannot be met.** Noise causes an error that no width removes, and a budget of bytes
limits the width. `Sketches.reach` returns the smallest error that is possible. To find enough
clients, enough bytes or a large enough epsilon, other modules search for the value at which this
error meets the target.
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

_TURNS = 4  # the most times that a schedule and then a size are chosen
_BETTER = 0.95  # another schedule is taken only if its error is below this share of the present


@dataclass(frozen=True)
class Sketches:
    """The sketches that a design may have, if the frequencies are known.

    Args:
        design: the design; its size, if it has one, is ignored.
        frequencies: the known frequencies.
        schedules: the schedules to choose from, the preferred one first.
        rows: the number of rows of the sketch; None: all usual numbers are tried.
    """

    design: Design
    frequencies: Frequencies
    schedules: Sequence[Schedule]
    rows: int | None = None

    @classmethod
    def of(cls, design: Design, frequencies: Frequencies, rows: int | None = None) -> Sketches:
        """Return the sketches of a design, with all schedules that the design may have."""
        return cls(design, frequencies, design.schedules, rows)

    def smallest(self, tau: float, *, with_linf: bool = True) -> Design:
        """Return the design with the sketch that meets a target error with the fewest bytes.

        Args:
            tau: the largest error that any frequency may have, above 0 and below 1.
            with_linf: whether to predict the largest error of the size, see `size_by_model`.

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
            max_bytes: the most bytes that a client may upload in its round.
            compared: whether neighbouring schedules are tried, too, each with its own best size.
                This takes several times as long.

        Raises:
            InvalidInputError: a value is out of its range.
            UnreachableError: no sketch fits the budget.
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
        """Return the largest error of the best sketch with this number of rows, by the error model.

        The best sketch has the best schedule, and the largest width that is allowed. The error is
        infinite if not even a width of 2 fits the bytes.

        Args:
            rows: the number of rows of the sketch.
            max_bytes: the most bytes that a client may upload, which limit the width; None: the
                largest width is taken.
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
        """Return the largest error of a sketch, as the error model predicts it.

        It is exceeded with probability `RISK * failure_probability`.
        """
        planned = self.design.spec.failure_probability * RISK
        predictor = self.design.predictor(schedule)
        return predictor.modelled_linf(self.frequencies, planned, rows, width)

    def cost(self, design: Design) -> int:
        """Return about the bytes that a client uploads with a design (`Design.bytes_of`)."""
        schedule, rows, width, *_ = design.chosen
        return self.design.bytes_of(rows, width, schedule)

    def best_schedule(self, rows: int, width: int, now: Schedule | None = None) -> Schedule:
        """Return the schedule with the smallest error for the bytes of a given sketch.

        If no other schedule is clearly better (`_BETTER`), the present schedule is returned. With a
        growing number of batches the error first falls and then rises. So schedules are tried one
        after the other, in both directions, as long as the error does not rise. For each schedule
        the width is chosen so that the bytes stay the same.

        Args:
            rows: the number of rows of the sketch.
            width: the number of counters in a row.
            now: the present schedule; None: the first schedule in `schedules`.
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
        """Return the largest width whose uploads fit a budget of bytes; 0 if no width fits."""
        return bisect_right(
            range(1, MAX_WIDTH + 1),
            max_bytes,
            key=lambda width: self.design.bytes_of(rows, width, schedule),
        )

    @property
    def _least_noised(self) -> Schedule:
        """The schedule with the least noise; of schedules with equal noise, the first.

        If this schedule cannot meet a target because of noise, no other schedule can meet it.
        """
        searched = kind_of(self.design.recovery).planned_rows if self.rows is None else [self.rows]
        rows = sorted(searched)[len(searched) // 2]
        return min(self.schedules, key=lambda schedule: self.design.noise(rows, schedule))

    def _in_turn(
        self, sized: Callable[[Schedule], Design], cost: Callable[[Design], float]
    ) -> Design:
        """Return the cheapest design that is found by choosing size and schedule in turn.

        The turns end when the schedule stays the same, or after `_TURNS` sizes.

        Args:
            sized: a function from a schedule to the design with the best size under it.
            cost: a function from a design to the quantity to minimise: its bytes or its error.
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
        """Search among neighbouring schedules (`descend`), and return the cheapest design found.

        `_in_turn` may stop too early. Let many items have nearly the same frequency. Then the error
        of a size that just meets the target rises steeply with every small change. So every other
        schedule looks worse at the same bytes, even a schedule that would meet the target with a
        fraction of the bytes. Here each schedule gets its own best size, and the costs of these
        sizes are compared.

        Args:
            sized: a function from a schedule to the design with the best size under it.
            cost: a function from a design to the quantity to minimise: its bytes or its error.
            found: the design that `_in_turn` returned.
        """
        listed = list(self.schedules)

        @cache
        def design_at(place: int) -> Design | None:
            if listed[place] == found.chosen.schedule:
                return found
            try:
                return sized(listed[place])
            except UnreachableError:  # the noise under this schedule exceeds the target
                return None

        def price(place: int) -> float:
            design = design_at(place)
            return math.inf if design is None else cost(design)

        start = listed.index(found.chosen.schedule)
        return design_at(descend(price, start, len(listed))) or found


def descend(price: Callable[[int], float], start: int, count: int) -> int:
    """Return an index whose price is not above the prices of its neighbours.

    The indices are 0 .. count - 1. The search begins at index `start` or at index 0, whichever is
    cheaper. It goes from neighbour to neighbour as long as the price falls.

    Args:
        price: a function from an index to its price; it may be called more than once for an index.
        start: the index where the search may begin.
        count: the number of indices.

    >>> prices = [5.0, 4.0, 6.0, 3.0, 7.0]
    >>> descend(prices.__getitem__, 4, 5), descend(prices.__getitem__, 2, 5)
    (1, 1)
    """
    place = min(start, 0, key=price)
    for step in (1, -1):
        while 0 <= place + step < count and price(place + step) < price(place):
            place += step
    return place
