"""Shares, errors, bytes and numbers of things, as people read them.

Shares of the clients are written in percent. The difference of two shares, such as an error, is
written in percentage points: "an error of 0.1 %" could be read as a tenth of a percent of the
frequency itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

_MOST_DECIMALS = 6  # of a percentage: smaller errors are rounding
_UNITS = (  # (the unit is used below this many seconds, its name, units per second)
    (1e-3, "µs", 1e6),
    (1.0, "ms", 1e3),
    (120.0, "s", 1.0),
    (7200.0, "min", 1 / 60),
    (math.inf, "h", 1 / 3600),
)


def level(confidence: float) -> str:
    """Return a confidence in percent, never rounded to 100, which would promise too much.

    >>> level(0.95), level(0.9999999)
    ('95 %', '99.99999 %')
    """
    return f"{100 * confidence:.12g} %"


def percent(share: float, digits: int = 2) -> str:
    """Return a share of the clients in percent.

    >>> percent(0.05126), percent(-1e-12)
    ('5.13 %', '0.00 %')
    """
    return f"{100 * share:z.{digits}f} %"  # z: without a minus before a rounded 0


def points(error: float, digits: int | None = None, signed: bool = False) -> str:
    """Return the error of a frequency in percentage points.

    Args:
        error: the error: the difference of two shares.
        digits: the decimals to show; None: as many as `decimals` finds.
        signed: whether a positive error gets a plus sign.

    >>> points(0.05126), points(-0.0001, 2, signed=True)
    ('5.13 points', '-0.01 points')
    """
    digits = decimals([error]) if digits is None else digits
    return f"{100 * error:{'+' if signed else ''}z.{digits}f} points"


def decimals(shares: Iterable[float]) -> int:
    """Return the decimals of a percentage that show two digits of the smallest share: 2 to 6.

    >>> decimals([0.25, 0.031]), decimals([0.25, 0.000031])
    (2, 4)
    """
    smallest = min((abs(share) for share in shares if share), default=1.0)
    return min(_MOST_DECIMALS, max(2, 1 - math.floor(math.log10(100 * smallest))))


def size(number: float) -> str:
    """Return a number of bytes in decimal units, with three digits.

    >>> size(17), size(31_987), size(282_878), size(1_500_000)
    ('17 B', '32.0 kB', '283 kB', '1.50 MB')
    """
    for unit, bytes_ in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= 0.9995 * bytes_:  # what rounds to 1.00 of a unit is written in that unit
            value = number / bytes_
            return f"{value:,.{max(0, 2 - math.floor(math.log10(max(value, 1))))}f} {unit}"
    return f"{number:.0f} B"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1.

    >>> counted(1, "client"), counted(12_000, "client")
    ('1 client', '12,000 clients')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def seconds(number: float) -> str:
    """Return a time with two digits (more from 100 on), in the unit that suits it; "" for 0.

    >>> seconds(0.0), seconds(2.34e-5), seconds(9.97e-5), seconds(456.0), seconds(4e7)
    ('', '23 µs', '100 µs', '7.6 min', '11,111 h')
    """
    if number <= 0:
        return ""
    unit, factor = next((unit, by) for limit, unit, by in _UNITS if number < limit)
    value = number * factor
    return f"{value:.2g} {unit}" if value < 99.5 else f"{value:,.0f} {unit}"
