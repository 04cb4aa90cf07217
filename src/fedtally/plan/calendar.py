"""The calendar of a plan: each round is open for one period, and the periods follow each other.

Days are days in UTC. A session that opens in a period belongs to the round of this period, whenever
the session ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.privacy.events import most_rounds

MAX_ROUNDS = 2**12  # the most rounds of a plan with a calendar: eleven years of days
DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_UNITS = {"d": DAY, "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": _SECOND}
_PERIOD = re.compile(r"([1-9][0-9]{0,5})([dhms])")


@dataclass(frozen=True)
class Calendar:
    """The times when the rounds of a campaign are open, one after the other.

    Args:
        start: when round 0 opens, an aware time of whole seconds; it is kept in UTC.
        period: how long each round is open: whole seconds that divide a day, or whole days.
        num_rounds: the number of rounds, 1 .. 4096.

    Raises:
        InvalidInputError: a value is out of bounds, or the last round ends after the year 9999.

    >>> days = Calendar(datetime(2026, 12, 1, tzinfo=UTC), DAY, 28)
    >>> days.round_at(datetime(2026, 12, 3, 17, tzinfo=UTC)), days.round_at(days.end)
    (2, None)
    >>> print(days)
    28 days, from 2026-12-01T00:00Z to 2026-12-29T00:00Z, UTC
    >>> days.to_dict()
    {'start': '2026-12-01T00:00Z', 'period': '1d'}
    """

    start: datetime
    period: timedelta
    num_rounds: int

    def __post_init__(self) -> None:
        rounds = validate.integer(1, num_rounds=self.num_rounds)
        if rounds > MAX_ROUNDS:
            raise InvalidInputError(
                f"{arg.num_rounds} must be at most {MAX_ROUNDS:,} with a calendar, got {rounds:,}:"
                " plan fewer, and then a successor (fedtally plan --after)"
            )
        object.__setattr__(self, "num_rounds", rounds)
        object.__setattr__(self, "start", checked_start(self.start))
        check_period(self.period)
        try:
            _ = self.end
        except OverflowError:
            raise InvalidInputError(
                f"a calendar must end before the year 10000, got {rounds:,} periods of"
                f" {period_text(self.period)} from {time_text(self.start)}: start earlier"
            ) from None

    def opens(self, round: int) -> datetime:
        """Return the time when a round opens, in UTC; a session that opens then belongs to it.

        Args:
            round: 0 .. num_rounds - 1.
        """
        return self.start + self.period * validate.integer(0, self.num_rounds - 1, round=round)

    def closes(self, round: int) -> datetime:
        """Return the time when a round closes and the next one opens, in UTC.

        Args:
            round: 0 .. num_rounds - 1.
        """
        return self.opens(round) + self.period

    @property
    def noun(self) -> str:
        """The noun for a period, in the plural.

        >>> start = datetime(2026, 12, 1, tzinfo=UTC)
        >>> Calendar(start, DAY, 3).noun, Calendar(start, timedelta(hours=6), 3).noun
        ('days', 'periods of 6h')
        """
        return noun_of(period_text(self.period))

    @property
    def end(self) -> datetime:
        """The time when the last round closes, in UTC."""
        return self.start + self.period * self.num_rounds

    def round_at(self, when: datetime) -> int | None:
        """Return the round that is open at a time; None: before the first, or after the last.

        Args:
            when: an aware time.
        """
        round = (checked_time(when=when) - self.start) // self.period
        return round if 0 <= round < self.num_rounds else None

    def __str__(self) -> str:
        # both the days and the times are in UTC
        return (
            f"{self.num_rounds:,} {self.noun}, from {time_text(self.start)} to"
            f" {time_text(self.end)}, UTC"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the table `[calendar]` of a plan; the number of rounds is in another entry."""
        return {"start": time_text(self.start), "period": period_text(self.period)}

    @classmethod
    def from_dict(cls, values: Any, num_rounds: int) -> Self:
        """Return the calendar from the table that `to_dict` returned.

        Args:
            values: the table.
            num_rounds: the number of rounds of the plan.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds.
        """
        found = validate.table("calendar", values, ["start", "period"])
        return cls(read_time(start=found["start"]), read_period(found["period"]), num_rounds)


@dataclass(frozen=True, kw_only=True)
class Recurring:
    """A request for a campaign with a calendar.

    Args:
        calendar: when each round is open.
        participations: the most rounds of one client among any `per_rounds` rounds in a row.
        per_rounds: the number of rounds in a row to which `participations` applies; None: all
            rounds.

    Raises:
        InvalidInputError: a value is out of bounds.

    >>> days = Calendar(datetime(2026, 12, 1, tzinfo=UTC), DAY, 28)
    >>> Recurring(calendar=days, per_rounds=7).lifetime
    4
    """

    calendar: Calendar
    participations: int = 1
    per_rounds: int | None = None

    def __post_init__(self) -> None:
        rounds, most = self.calendar.num_rounds, self.calendar.num_rounds
        of = "the rounds of the campaign"
        if self.per_rounds is not None:
            most = validate.integer(1, per_rounds=self.per_rounds)
            if most > rounds:
                raise InvalidInputError(
                    f"{arg.per_rounds} must be at most {rounds:,}, {of}, got {most:,}: plan more"
                    f" {opt.num_rounds}, or leave {opt.per_rounds} out"
                )
            object.__setattr__(self, "per_rounds", most)
            of = f"the rounds of {opt.per_rounds}"
        kept = validate.integer(1, participations=self.participations)
        if kept > most:
            more = opt.num_rounds if self.per_rounds is None else opt.per_rounds
            raise InvalidInputError(
                f"{arg.participations} must be at most {most:,}, {of}, got {kept:,}: lower it, or"
                f" give more {more}"
            )
        object.__setattr__(self, "participations", kept)

    @property
    def lifetime(self) -> int:
        """The most rounds of one client in the whole campaign, as `Event.lifetime`."""
        rounds = self.calendar.num_rounds
        return most_rounds(self.participations, self.per_rounds, rounds)


def checked_time(**named: Any) -> datetime:
    """Return the named time, converted to UTC.

    Raises:
        InvalidInputError: the value is not a `datetime`, has no offset from UTC, or is outside the
            years 1 to 9999 in UTC.
    """
    [(name, value)] = named.items()
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise InvalidInputError(
            f"{arg[name]} must be a time with its offset from UTC, got {value!r}"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise InvalidInputError(
            f"{arg[name]} must be of the years 1 to 9999 in UTC, got {value}"
        ) from None


def checked_start(value: Any) -> datetime:
    """Return the start of a calendar, converted to UTC.

    Raises:
        InvalidInputError: the value is not an aware time of whole seconds.
    """
    start = checked_time(start=value)
    if start.microsecond:
        raise InvalidInputError(f"{arg.start} must be a time of whole seconds, got {start}")
    return start


def check_ahead(start: datetime, now: float) -> None:
    """Refuse a start in the past: nobody could take part in the first part of round 0.

    Args:
        start: the time when round 0 opens, aware.
        now: the present time, Unix seconds.

    Raises:
        InvalidInputError: the start is before `now`.
    """
    if start.timestamp() < now:
        shown = time_text(datetime.fromtimestamp(int(now), UTC))
        raise InvalidInputError(
            f"{arg.start} must be later than now, {shown}, got {time_text(start)}: name a day from"
            " tomorrow on"
        )


def check_period(period: Any) -> None:
    """Refuse a period that neither divides a day nor is a whole number of days.

    Raises:
        InvalidInputError: the value is not such a duration, has fractions of a second, or is at
            least 10^6 days.
    """
    if not isinstance(period, timedelta):
        raise InvalidInputError(f"{arg.period} must be a duration, got {period!r}")
    fits = period >= _SECOND and not period % _SECOND and not (DAY % period and period % DAY)
    if not fits or period.days >= 10**6:
        raise InvalidInputError(
            f"{arg.period} must divide a day, or be whole days, such as 1h, 6h, 1d or 7d, got"
            f" {period}"
        )


def read_time(**named: Any) -> datetime:
    """Return the time in a text such as "2026-12-01", "2026-12-01T06:00Z" or with an offset.

    A time without an offset is taken as UTC.

    Raises:
        InvalidInputError: the value is not such a text.

    >>> str(read_time(start="2026-12-01")), str(read_time(start="2026-12-01T02:00+02:00"))
    ('2026-12-01 00:00:00+00:00', '2026-12-01 00:00:00+00:00')
    """
    [(name, text)] = named.items()
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"{arg[name]} must be a day or a time of UTC, such as 2026-12-01 or"
            f" 2026-12-01T06:00Z, got {text!r:.80}"
        ) from None
    return checked_time(**{name: found if found.tzinfo else found.replace(tzinfo=UTC)})


def read_period(text: Any) -> timedelta:
    """Return the duration in a text such as "6h" or "1d"; units are d, h, m and s.

    Raises:
        InvalidInputError: the value is not such a text, or not a valid period (`check_period`).

    >>> str(read_period("6h")), read_period("24h") == DAY
    ('6:00:00', True)
    """
    found = _PERIOD.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise InvalidInputError(
            f"{arg.period} must be a whole number of days, hours, minutes or seconds, such as 1d,"
            f" 6h, 30m or 10s, got {text!r:.80}"
        )
    period = int(found[1]) * _UNITS[found[2]]
    check_period(period)
    return period


def time_text(when: datetime) -> str:
    """Return the only text that a time may have in a plan: to the minute, or else to the second.

    >>> time_text(datetime(2026, 12, 1, 6, tzinfo=UTC))
    '2026-12-01T06:00Z'
    """
    spec = "seconds" if when.second else "minutes"
    return f"{when.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=spec)}Z"


def period_text(period: timedelta) -> str:
    """Return the only text that a period may have in a plan: in the largest unit that divides it.

    >>> period_text(timedelta(hours=24)), period_text(timedelta(minutes=90))
    ('1d', '90m')
    """
    unit = next(unit for unit, length in _UNITS.items() if not period % length)
    return f"{period // _UNITS[unit]}{unit}"


def noun_of(period: str) -> str:
    """Return the noun for periods of this length, in the plural.

    Args:
        period: the text of a period, as `period_text` writes it.
    """
    names = {"1h": "hours", "1d": "days", "7d": "weeks"}
    return names.get(period, f"periods of {period}")
