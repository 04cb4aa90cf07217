"""The calendar of a plan: each round is open for one period, and the periods follow one another.

All times are in UTC. A session (one run of the secure sum) belongs to the round of the period in
which it opens, even if it ends in a later period.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from fedtally.base import validate
from fedtally.base.text import in_number, one_of
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.privacy.events import most_rounds

MAX_ROUNDS = 2**12  # the most rounds of a plan with a calendar: if daily, eleven years
DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)
_UNITS = {"d": DAY, "h": timedelta(hours=1), "m": timedelta(minutes=1), "s": _SECOND}
_PERIOD = re.compile(r"([1-9][0-9]{0,5})([dhms])")


@dataclass(frozen=True)
class Calendar:
    """The times when the rounds of a campaign are open: one period for each round, without gaps.

    Args:
        start: when round 0 opens: a datetime with a time zone, in whole seconds; it is converted to
            UTC.
        period: how long each round is open: whole days, or whole seconds that divide a day evenly.
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
        """Return the time when a round opens, in UTC.

        A session that opens at exactly this time belongs to this round, and not to the round
        before.

        Args:
            round: the number of the round, 0 .. num_rounds - 1.
        """
        return self.start + self.period * validate.integer(0, self.num_rounds - 1, round=round)

    def closes(self, round: int) -> datetime:
        """Return the time when a round closes, in UTC: the next round, if any, opens at this time.

        Args:
            round: the number of the round, 0 .. num_rounds - 1.
        """
        return self.opens(round) + self.period

    @property
    def noun(self) -> str:
        """The English noun for the calendar's periods, in the plural.

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
        """Return the number of the round that is open at the time `when`.

        Returns None before the first round opens, and from the close of the last round on.

        Args:
            when: a datetime with a time zone.
        """
        round = (checked_time(when=when) - self.start) // self.period
        return round if 0 <= round < self.num_rounds else None

    def __str__(self) -> str:
        counted = in_number(self.num_rounds, f"1 {one_of(self.noun)}", f"{{}} {self.noun}")
        # "UTC" stands at the end, since it explains both the days and the times
        return f"{counted}, from {time_text(self.start)} to {time_text(self.end)}, UTC"

    def to_dict(self) -> dict[str, Any]:
        """Return the table `[calendar]` of a plan: the texts of `start` and of `period`.

        The number of rounds is missing, because the plan has it in another entry.
        """
        return {"start": time_text(self.start), "period": period_text(self.period)}

    @classmethod
    def from_dict(cls, values: Any, num_rounds: int) -> Self:
        """Return the calendar with the entries `values`, which `to_dict` returned.

        Args:
            values: the table `[calendar]` of the plan.
            num_rounds: the number of rounds of the plan.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds.
        """
        found = validate.table("calendar", values, ["start", "period"])
        return cls(read_time(start=found["start"]), read_period(found["period"]), num_rounds)


@dataclass(frozen=True, kw_only=True)
class Recurring:
    """The options of a campaign with a calendar, as the user requests them.

    Args:
        calendar: the times when the rounds are open.
        participations: the most rounds that one client may take part in, among any `per_rounds`
            rounds in a row.
        per_rounds: the length, in rounds, of each run of rounds that `participations` limits; None:
            the whole campaign.

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
        """The most rounds of the whole campaign that one client may take part in."""
        rounds = self.calendar.num_rounds
        return most_rounds(self.participations, self.per_rounds, rounds)


def checked_time(**named: Any) -> datetime:
    """Return a time, converted to UTC.

    Args:
        named: one keyword: the name of the argument, for messages, and the time.

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
        InvalidInputError: the value is not a datetime with a time zone, is outside the years 1 to
            9999, or has fractions of a second.
    """
    start = checked_time(start=value)
    if start.microsecond:
        raise InvalidInputError(f"{arg.start} must be a time of whole seconds, got {start}")
    return start


def check_ahead(start: datetime, now: float) -> None:
    """Refuse a calendar that starts in the past.

    Its first rounds would be open too briefly, or would be over already.

    Args:
        start: the time when round 0 opens, a datetime with a time zone.
        now: the present time, in Unix seconds.

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
    """Refuse a value that is not a valid period of a calendar.

    A valid period is a `timedelta` in whole seconds, from 1 second to below 10^6 days. It must also
    be a whole number of days, or divide a day evenly.

    Raises:
        InvalidInputError: the value is not a valid period.
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
    """Return the time, in UTC, that a text such as "2026-12-01" or "2026-12-01T06:00Z" states.

    A text without an offset from UTC is a time in UTC.

    Args:
        named: one keyword: the name of the argument, for messages, and the text.

    Raises:
        InvalidInputError: the value is not a text of a day or a time in ISO 8601, or the time is
            outside the years 1 to 9999 in UTC.

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
    """Return the duration that a text such as "6h" or "1d" states; the units are d, h, m and s.

    Raises:
        InvalidInputError: the value is not a text of a number (of at most six digits) and a unit,
            or the duration is not a valid period (`check_period`).

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
    """Return the text of a time in a plan: in UTC, without seconds if these are 0.

    Each time has only one such text, so that a plan has only one fingerprint.

    >>> time_text(datetime(2026, 12, 1, 6, tzinfo=UTC))
    '2026-12-01T06:00Z'
    """
    spec = "seconds" if when.second else "minutes"
    return f"{when.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=spec)}Z"


def period_text(period: timedelta) -> str:
    """Return the text of a period in a plan: a number of the largest unit that divides the period.

    Each period has only one such text, so that a plan has only one fingerprint.

    >>> period_text(timedelta(hours=24)), period_text(timedelta(minutes=90))
    ('1d', '90m')
    """
    unit = next(unit for unit, length in _UNITS.items() if not period % length)
    return f"{period // _UNITS[unit]}{unit}"


def noun_of(period: str) -> str:
    """Return the English noun for periods of one length, in the plural.

    The noun is "hours", "days" or "weeks" for periods of one hour, day or week. For other periods
    it is a text such as "periods of 6h".

    Args:
        period: the text of a period, which `period_text` returned.
    """
    names = {"1h": "hours", "1d": "days", "7d": "weeks"}
    return names.get(period, f"periods of {period}")
