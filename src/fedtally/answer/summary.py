"""The title and the verdict that begin a report, and the alternative texts of its bars and map."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from datetime import date

import numpy as np

from fedtally.answer import amounts, sections
from fedtally.answer.estimates import Estimate, is_told_from_zero, largest_uncertainty
from fedtally.answer.part import Part
from fedtally.base.text import escaped, in_number, shortened

_LONGEST = 40  # characters of an item's name within a sentence
_MOST_NAMED = 2  # the most sources that a title names
_MOST_SAID = 3  # the most items that a picture's alternative text names
_ROUNDING = 1e-9  # errors up to this share are only rounding, and count as no error


def source_names(sources: Sequence[str]) -> list[str]:
    """Return the base names of sources, control characters escaped.

    The folders in which a source lies are left out, since they may be named after a person.

    >>> source_names(["/home/ana/words.txt", "-", "zipf:a=1.1,n=9"])
    ['words.txt', 'standard input', 'zipf:a=1.1,n=9']
    """
    bare = (name.rstrip("/\\") or name for name in sources)
    return [
        "standard input" if name == "-" else escaped(os.path.basename(name) or name)
        for name in bare
    ]


def title(items: str, sources: Sequence[str]) -> str:
    """Return a title for a report whose user gave none.

    Args:
        items: the plural noun for the items.
        sources: the names of the files or populations that were read.

    >>> title("words", ["words.txt"]), title("items", ["a", "b", "c"]), title("items", [])
    ('Most frequent words in words.txt', 'Most frequent items in 3 sources', 'Most frequent items')
    """
    if not sources:
        return f"Most frequent {items}"
    where = " and ".join(sources)
    if len(sources) > _MOST_NAMED:
        where = amounts.counted(len(sources), "source")
    return f"Most frequent {items} in {where}"


def origin(sources: Sequence[str], day: date | None) -> str:
    """Return the line below a title: the sources, and the day of the page; "" if there is neither.

    >>> origin(["words.txt"], date(2026, 3, 1)), origin([], None)
    ('From words.txt, page of 1 March 2026', '')
    """
    # The day of the page: a saved result may be older, and does not say how old.
    when = "" if day is None else f"page of {day.day} {_MONTHS[day.month - 1]} {day.year}"
    where = f"From {', '.join(sources)}" if sources else ""
    return ", ".join(part for part in (where, when) if part)


# The page is in English, so its months are not taken from the locale.
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


def holding(part: Part) -> str:
    """Return the verb that says how an item belongs to what is counted, such as "is held by".

    A client with more than max_items items counts a random draw of them. If a client drew items, or
    if privacy hides whether one did, the verb says so.

    >>> import fedtally
    >>> holding(fedtally.estimate(["tea", "milk"], seed=1))
    'is held by'
    """
    if sections.counted.may_be_drawn(part):
        some = in_number(part.plan.max_items, "the drawn item", "among the drawn items")
        return f"is {some} of"
    return "is in" if part.unit == "contributions" else "is held by"


def verdict(
    listed: Sequence[Estimate],
    number: int,
    unit: str,
    confidence: float,
    *,
    holds: str = "is held by",
    is_exact: bool = False,
) -> list[str]:
    """Return a list of sentences on the most frequent items, and on how sure they are.

    Args:
        listed: the estimates of the top items, as `noise_floor.doubted` returns them.
        number: the number of clients, people or contributions that took part.
        unit: the plural noun for what `number` counts.
        confidence: the confidence of the limits, 0 to 1.
        holds: the verb between an item and its share, from `holding`.
        is_exact: whether the estimates are exact counts.

    >>> from dataclasses import replace
    >>> tea = Estimate("tea", 0.5, 0.49, 0.51, 500.0, 0.031, 0.467, 0.533)
    >>> for sentence in verdict([tea], 1000, "clients", 0.95):
    ...     print(sentence.partition(", and")[0])
    “tea” is held by 50.00 % of clients.
    Right within 1.00 points among these 1,000 clients
    >>> verdict([replace(tea, low=0.0)], 1000, "clients", 0.95)
    ['No item surely stands above noise among these 1,000 clients.']
    """
    sure = [estimate for estimate in listed if is_told_from_zero(estimate)]
    if not sure:
        some = "No item surely stands above noise" if listed else "No item is listed"
        return [f"{some} among {sections.counted.those(number, unit)}."]
    digits = amounts.decimals([sure[min(1, len(sure) - 1)].frequency])
    first = f"{quoted(sure[0].item)} {holds} {amounts.percent(sure[0].frequency, digits)} of {unit}"
    if len(sure) > 1:
        first += f", then {quoted(sure[1].item)} with {amounts.percent(sure[1].frequency, digits)}"
    return [f"{first}.", *_sure(sure, number, unit, confidence, is_exact)]


def _sure(
    shown: Sequence[Estimate], number: int, unit: str, confidence: float, is_exact: bool
) -> list[str]:
    off = largest_uncertainty(shown)
    if off is None:
        return [f"How far off these numbers may be was {sections.error.NOT_ESTIMATED}."]
    here, wider = off
    among = f"among {sections.counted.those(number, unit)}"
    beyond = f"if they stand for more people ({amounts.level(confidence)})"
    each = in_number(len(shown), "Right", "Each is right")
    if here <= _ROUNDING:
        exact = "The counts are exact" if is_exact else "No error was found"
        return [f"{exact} {among}. {each} within {amounts.points(wider)} {beyond}."]
    more = amounts.points(wider).removesuffix(" points")
    return [f"{each} within {amounts.points(here)} {among}, and {more} {beyond}."]


def quoted(item: str | int) -> str:
    """Return an item in quotes for a sentence, shortened if it is long.

    Marks around right-to-left letters keep them from moving the text beside them.

    >>> quoted("tea"), quoted(7)
    ('“tea”', '“7”')
    """
    name = shortened(escaped(str(item)), _LONGEST)
    return f"“{name}”" if name.isascii() else f"“\u2068{name}\u2069”"


def bars_said(listed: Sequence[Estimate]) -> str:
    """Return the alternative text of a bar chart: what the chart shows, in words.

    It names the first few items that can be told from 0.

    >>> bars_said([Estimate("tea", 0.5, None, None, 5.0), Estimate("milk", 0.25, None, None, 2.0)])
    'Bars of 2 items: tea 50.00 %, milk 25.00 %. The table below has the numbers.'
    """
    shown = [e for e in listed if is_told_from_zero(e)][:_MOST_SAID]
    some = ", ".join(
        f"{shortened(escaped(str(e.item)), _LONGEST)} {amounts.percent(e.frequency)}" for e in shown
    )
    more = ", and more" * (len(shown) < len(listed))
    found = f": {some}{more}" if some else ", of which none stands above noise"
    return (
        f"Bars of {amounts.counted(len(listed), 'item')}{found}. The table below has the numbers."
    )


def map_said(centre: Sequence[float], share: float, number: int) -> str:
    """Return the alternative text of a map, which says in words what it shows.

    Args:
        centre: the latitude and the longitude of the most frequent cell, in degrees.
        share: the frequency of this cell, 0 to 1.
        number: the number of cells on the map.

    >>> map_said((40.75, -73.95), 0.031, 12)
    'Map of 12 cells. The most frequent one, around 40.75, -73.95, holds 3.10 %.'
    """
    place = f"{centre[0]:.6g}, {centre[1]:.6g}"
    return (
        f"Map of {amounts.counted(number, 'cell')}. The most frequent one, around {place}, holds"
        f" {amounts.percent(share)}."
    )


def rounded(number: int) -> str:
    """Return a number as text with two significant digits.

    It is for the number of items above noise, which is known only approximately.

    >>> rounded(1070), rounded(57)
    ('1,100', '57')
    """
    digits = max(0, math.floor(math.log10(max(1, number))) - 1)
    return f"{int(np.round(number, -digits)):,}"
