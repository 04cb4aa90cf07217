"""The times at which the rounds of a campaign open and close, by the calendar of the plan.

All times are Unix seconds. Without a calendar, all rounds are open at any time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedtally.plan import Plan
from fedtally.plan.calendar import DAY, Calendar, time_text


@dataclass(frozen=True)
class Periods:
    """The periods of a campaign's rounds.

    Args:
        calendar: the plan's calendar; None: each round is open at any time.
        num_rounds: the number of rounds of the plan.
        session: the longest duration of a session, in seconds. A session that opened in a period
            may still run after the period. So the round is closed only when this time, and one
            second more, has passed after the period.

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
        """Return the time at which a round opens; -inf without a calendar."""
        return -math.inf if self.calendar is None else self._start + round * self._seconds

    def closes(self, round: int) -> float:
        """Return the time from which no session of a round may open; inf without a calendar."""
        return math.inf if self.calendar is None else self.opens(round + 1)

    def open_at(self, now: float) -> range:
        """Return the rounds that are open at a time: at most one, or all without a calendar."""
        if self.calendar is None:
            return range(self.num_rounds)
        left = self.left_at(now)
        is_open = left.start < self.num_rounds and now >= self.opens(left.start)
        return range(left.start, left.start + is_open)

    def left_at(self, now: float) -> range:
        """Return the rounds that are open at a time or open later."""
        if self.calendar is None:
            return range(self.num_rounds)
        return range(self._before(now), self.num_rounds)

    def num_closed(self, now: float) -> int:
        """Return the number of closed rounds, from the first; none of their sessions can still run.

        Without a calendar this is 0.
        """
        return 0 if self.calendar is None else self._before(now - self.session - 1)

    def next_change(self, now: float) -> float:
        """Return the next time at which a round opens, takes no new session, or is closed.

        It is inf if there is no such time.
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
        """Return the number of periods that are over at a time."""
        over = (now - self._start) // self._seconds
        return int(min(max(over, 0), self.num_rounds))


def periods_of(plan: Plan, session: int) -> Periods:
    """Return the periods of a plan's rounds; a session lasts at most `session` seconds."""
    return Periods(plan.calendar, plan.num_rounds, session)


def last_day(calendar: Calendar, round: int) -> str:
    """Return the last day of a round's period, in UTC; its end time if periods are under a day.

    >>> from datetime import UTC, datetime
    >>> last_day(Calendar(datetime(2026, 12, 1, tzinfo=UTC), DAY, 28), 13)
    '2026-12-14'
    """
    closes = calendar.closes(round)
    return time_text(closes) if calendar.period < DAY else str((closes - DAY).date())


def missing_text(rounds: list[int]) -> str:
    """Return a text that rounds are missing, with the numbers of the first ones.

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
