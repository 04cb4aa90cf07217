"""When the rounds of a campaign open and close, by the calendar of the plan.

All times are Unix seconds. Without a calendar, all rounds are always open.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedtally.plan import Plan
from fedtally.plan.calendar import DAY, Calendar, time_text


@dataclass(frozen=True)
class Periods:
    """The period of each round: the window of time in which sessions of the round may open.

    A round is *open* during its period, but it is *closed* only when none of its sessions can run
    any more: `session` + 1 seconds after the end of its period.

    Args:
        calendar: the plan's calendar; None: each round is always open.
        num_rounds: the number of rounds of the plan.
        session: how long a session may last, in seconds.

    >>> from datetime import UTC, datetime
    >>> days = Periods(Calendar(datetime(1970, 1, 2, tzinfo=UTC), DAY, 3), 3, 3600)
    >>> days.open_at(0), days.open_at(86_400), days.open_at(4 * 86_400)
    (range(0, 0), range(0, 1), range(3, 3))
    >>> days.num_closed(2 * 86_400 + 3600), days.num_closed(2 * 86_400 + 3601)
    (0, 1)
    """

    calendar: Calendar | None
    num_rounds: int
    session: int

    @property
    def _start(self) -> float:
        assert self.calendar is not None
        return self.calendar.start.timestamp()

    @property
    def _seconds(self) -> float:
        assert self.calendar is not None
        return self.calendar.period.total_seconds()

    def opens(self, round: int) -> float:
        """Return when the period of a round begins, Unix seconds; -inf without a calendar."""
        return -math.inf if self.calendar is None else self._start + round * self._seconds

    def closes(self, round: int) -> float:
        """Return when the period of a round is over, Unix seconds; inf without a calendar.

        From that time on, no session of the round may open. Sessions that opened before may still
        run: see `num_closed`.
        """
        return math.inf if self.calendar is None else self.opens(round + 1)

    def open_at(self, now: float) -> range:
        """Return the rounds that are open at `now`: at most one, or all without a calendar."""
        if self.calendar is None:
            return range(self.num_rounds)
        left = self.left_at(now)
        is_open = left.start < self.num_rounds and now >= self.opens(left.start)
        return range(left.start, left.start + is_open)

    def left_at(self, now: float) -> range:
        """Return the rounds whose period is not over at the time `now`; all without a calendar."""
        if self.calendar is None:
            return range(self.num_rounds)
        return range(self._before(now), self.num_rounds)

    def num_closed(self, now: float) -> int:
        """Return how many rounds, from the first, are closed: none of their sessions can still run.

        Without a calendar the result is 0.
        """
        return 0 if self.calendar is None else self._before(now - self.session - 1)

    def next_change(self, now: float) -> float:
        """Return the first time after `now` at which a period begins or ends, or a round is closed.

        The time is in Unix seconds. It is inf if nothing changes any more.
        """
        if self.calendar is None:
            return math.inf
        number, closed = self._before(now), self.num_closed(now)
        times = [self.opens(number), self.closes(number), self.closes(closed) + self.session + 1]
        last = [number < self.num_rounds, number < self.num_rounds, closed < self.num_rounds]
        return min(
            (at for at, counts in zip(times, last, strict=True) if counts and at > now),
            default=math.inf,
        )

    def _before(self, now: float) -> int:
        """Return how many periods are over at the time `now`."""
        over = (now - self._start) // self._seconds
        return int(min(max(over, 0), self.num_rounds))


def periods_of(plan: Plan, session: int) -> Periods:
    """Return the periods of a plan's rounds: the windows of time in which their sessions may open.

    Args:
        plan: the plan. If it has no calendar, all its rounds are always open.
        session: how long a session may last, in seconds. A round is closed only `session` + 1
            seconds after the end of its period.
    """
    return Periods(plan.calendar, plan.num_rounds, session)


def last_day(calendar: Calendar, round: int) -> str:
    """Return the last day of a round's period, in UTC, as text.

    In two cases the text is the time at which the period ends: if this time is not midnight in UTC,
    and if periods are shorter than a day.

    >>> from datetime import UTC, datetime
    >>> last_day(Calendar(datetime(2026, 12, 1, tzinfo=UTC), DAY, 28), 13)
    '2026-12-14'
    >>> last_day(Calendar(datetime(2026, 12, 1, 6, tzinfo=UTC), DAY, 28), 13)
    '2026-12-15T06:00Z'
    """
    closes = calendar.closes(round)
    is_midnight = closes == closes.replace(hour=0, minute=0, second=0)
    is_days = calendar.period >= DAY and is_midnight
    return str((closes - DAY).date()) if is_days else time_text(closes)


def missing_text(rounds: list[int]) -> str:
    """Return a text which says that rounds are missing, with their numbers.

    `rounds` must be in order, and not empty. At most ten numbers or spans of numbers are shown.

    >>> missing_text([3])
    'round 3 is missing'
    >>> missing_text([3, 4, 5, 9])
    '4 rounds are missing: 3-5, 9'
    """
    if len(rounds) == 1:
        return f"round {rounds[0]} is missing"
    spans: list[list[int]] = []
    for round in rounds:
        if spans and round == spans[-1][-1] + 1:
            spans[-1].append(round)
        else:
            spans.append([round])
    shown = [f"{s[0]}-{s[-1]}" if len(s) > 1 else str(s[0]) for s in spans[:10]]
    more = ", ..." if len(spans) > len(shown) else ""
    return f"{len(rounds):,} rounds are missing: {', '.join(shown)}{more}"
