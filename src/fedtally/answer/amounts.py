"""Numbers as text for people: confidences, shares, errors, bytes, counts and durations.

Shares of the clients are written in percent. Errors, which are differences of two shares, are
written in percentage points: "an error of 0.1 %" could be read as a tenth of a percent of the
frequency itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_MOST_DECIMALS = 6  # the most decimals of a percentage: further digits are rounding errors
_UNITS = (  # (a unit is used for times below this number of seconds, its name, units per second)
    (1e-3, "µs", 1e6),
    (1.0, "ms", 1e3),
    (120.0, "s", 1.0),
    (7200.0, "min", 1 / 60),
    (math.inf, "h", 1 / 3600),
)


def level(confidence: float) -> str:
    """Return a confidence level (0 to 1) as text in percent, with up to 12 significant digits.

    Fewer digits would round 0.9999999 to 100 %, which would promise too much.

    >>> level(0.95), level(0.9999999)
    ('95 %', '99.99999 %')
    """
    return f"{100 * confidence:.12g} %"


def percent(share: float, digits: int = 2) -> str:
    """Return a share of the clients (0 to 1) as text in percent, with `digits` decimals.

    >>> percent(0.05126), percent(-1e-12)
    ('5.13 %', '0.00 %')
    """
    return f"{100 * share:z.{digits}f} %"  # z: without a minus before a rounded 0


def points(error: float, digits: int | None = None, signed: bool = False) -> str:
    """Return an error of a frequency as text in percentage points.

    Args:
        error: the difference of two shares: 0.05 is 5 points.
        digits: the decimals to show; None: the number that `decimals` returns for this error.
        signed: whether an error of 0 or more gets a plus sign.

    >>> points(0.05126), points(-0.0001, 2, signed=True)
    ('5.13 points', '-0.01 points')
    """
    digits = decimals([error]) if digits is None else digits
    return f"{100 * error:{'+' if signed else ''}z.{digits}f} points"


def decimals(shares: Iterable[float]) -> int:
    """Return how many decimals to show so that each share, in percent, has two digits or more.

    The smallest share other than 0 decides. The number is at least 2 and at most 6, so tiny shares
    may have fewer digits.

    Args:
        shares: the shares or errors, as fractions: 0.031 is 3.1 %.

    >>> decimals([0.25, 0.031]), decimals([0.25, 0.000031])
    (2, 4)
    """
    smallest = min((abs(share) for share in shares if share), default=1.0)
    return min(_MOST_DECIMALS, max(2, 1 - math.floor(math.log10(100 * smallest))))


def size(number: float) -> str:
    """Return a number of bytes as text in B, kB, MB or GB (powers of 1000), with three digits.

    Numbers below 1 kB are written as whole bytes, and numbers from 1,000 GB on as whole GB.

    >>> size(17), size(9_996), size(31_987), size(282_878), size(1_500_000)
    ('17 B', '10.0 kB', '32.0 kB', '283 kB', '1.50 MB')
    """
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= 0.9995 * bytes_:  # what rounds to 1.00 of a unit is written in that unit
            value = number / bytes_
            whole = math.floor(math.log10(max(float(f"{value:.3g}"), 1)))  # 9.996 is shown as 10.0
            return f"{value:,.{max(0, 2 - whole)}f} {unit}"
    return f"{number:.0f} B"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> counted(1, "client"), counted(12_000, "client")
    ('1 client', '12,000 clients')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def seconds(number: float) -> str:
    """Return a duration as text, in the unit that suits it, from µs to h; "" if it is 0 or less.

    It has at most two significant digits. From 100 units on, it is rounded to whole units.

    Args:
        number: the duration in seconds.

    >>> seconds(0.0), seconds(2.34e-5), seconds(9.97e-5), seconds(456.0), seconds(4e7)
    ('', '23 µs', '100 µs', '7.6 min', '11,111 h')
    """
    if number <= 0:
        return ""
    unit, factor = next((unit, by) for limit, unit, by in _UNITS if number < limit)
    value = number * factor
    return f"{value:.2g} {unit}" if value < 99.5 else f"{value:,.0f} {unit}"
