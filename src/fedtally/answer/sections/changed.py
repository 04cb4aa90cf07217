"""The section on changes over the rounds: JSON fields, sentences, rows and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedtally.answer import amounts
from fedtally.answer.tables import Column, FittedTable, printable
from fedtally.base.text import escaped, in_number, shortened

if TYPE_CHECKING:
    from fedtally.answer.trending import Change, Point, Series, Trends

_FEW = 3  # up to this many rounds without clients are named one by one; more are counted
_LONGEST = 16  # the most terminal columns of a round's label in a table


def fields(trends: Trends) -> dict[str, Any]:
    """Return the JSON fields on the items that changed: list, rounds, and the list's error rate.

    "window", "against" and "rounds" are the windows of `Trends`, and "changed" has a dict for each
    `Change`.
    """
    windows = {name: getattr(trends, name).fields() for name in ("window", "against", "rounds")}
    for told in windows.values():
        # `history` and `prior` are equal for all windows of a trend: all examined rounds, and 0.
        del told["history"], told["prior"]
    return {
        **windows,
        "no_clients": list(trends.no_clients),
        "tested": trends.tested,
        "batches": trends.batches,
        "fewest_batches": trends.fewest_batches,
        "alpha": trends.alpha,
        "confidence": trends.confidence,
        "changed": [asdict(change) for change in trends.changed],
    }


def series_fields(series: Series) -> dict[str, Any]:
    """Return the JSON fields on the shares of items by round: "points" has a dict for each `Point`.

    "confidence" and "whole" say how sure the limits of the points are.
    """
    return {
        "confidence": series.confidence,
        "whole": series.whole,
        "points": [asdict(point) for point in series.points],
    }


def line(trends: Trends) -> str:
    """Return a sentence on how many items changed, and in which ways.

    >>> import fedtally
    >>> days = [day for day in range(8) for _ in range(100)]
    >>> drinks = ["tea"] * 400 + ["tea", "tea", "tea", "milk"] * 100
    >>> line(fedtally.estimate(drinks, rounds=days, seed=1).trends())
    '1 of 2 items changed in 0..7 (rounds 0..7): 1 new'
    >>> line(fedtally.estimate(drinks[:200], rounds=days[:200], seed=1).trends()).split(": ")[0]
    'Too few rounds to tell whether any of 1 item changed in 0..1 (rounds 0..1)'
    """
    number = len(trends)
    found = in_number(number, "1", "{}") if number else "None"
    ways = trends.ways
    tested = amounts.counted(trends.tested, "item")
    if not number and trends.batches < trends.fewest_batches:
        return (
            f"Too few rounds to tell whether any of {tested} changed in {trends.rounds.told}:"
            f" {trends.batches} can be told apart, and a single change takes"
            f" {trends.fewest_batches} or more"
        )
    return f"{found} of {tested} changed in {trends.rounds.told}" + (f": {ways}" if ways else "")


def rate(trends: Trends) -> str:
    """Return a sentence on the expected share of unchanged items in the list.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 80, rounds=[1, 2] * 40, seed=1)
    >>> rate(result.trends())
    'on average at most 5 % of the items of one such list did not change, whatever its day'
    """
    return (
        f"on average at most {amounts.level(trends.alpha)} of the items of one such list did not"
        " change, whatever its day"
    )


def no_clients(trends: Trends) -> list[str]:
    """Return a list with a sentence on the examined rounds without clients; [] without them."""
    if not trends.no_clients:
        return []
    which = f"{len(trends.no_clients)} of the rounds"
    if len(trends.no_clients) <= _FEW:
        numbers = ", ".join(map(str, trends.no_clients))
        which = f"{in_number(len(trends.no_clients), 'round', 'rounds')} {numbers}"
    return [f"nobody took part in {which}: without shares, they are left out"]


def stricter(trends: Trends) -> str:
    """Return a sentence on how many listed items meet the stricter rule, and what it promises.

    What the stricter rule (`Change.flagged`) promises holds for all looks together. A look is one
    list of changed items.
    """
    number = sum(change.flagged for change in trends.changed)
    meet = in_number(number, "one of these meets", "{} of these meet")
    # If the oldest rounds were left out, looks on other days test other rounds. The confidence then
    # holds only for all looks at these rounds.
    looks = "does, at any look at these rounds" if trends.earlier else "ever does, at any look"
    level = amounts.level(1 - trends.alpha)
    return f"{meet} a stricter rule: with {level} no unchanged item {looks}"


def shown_as_0(trends: Trends) -> str:
    """Return a sentence on shares below 0, which tables show as 0; "" if the list has none.

    Of such an item, the shown shares differ by another number than the shown change.
    """
    shares = [share for one in trends.changed for share in (one.before, one.frequency)]
    return "a share below 0 is shown as 0, and counts in the change" if min(shares) < 0 else ""


def rows(trends: Trends) -> list[tuple[str, str]]:
    """Return rows of (name, text): the rounds that were compared, limits, and the list's rate."""
    compared = [("Now", trends.window.told), ("Before", trends.against.told)]
    compared += [("Note", text) for text in no_clients(trends)]
    if not trends.changed:
        return [*compared, ("Rate", rate(trends))]
    since = "since says in which of all rounds the level changed"
    said = ["now less before", shown_as_0(trends), since]
    return [
        *compared,
        ("Change", "; ".join(text for text in said if text)),
        ("Limits", f"{amounts.level(trends.confidence)}, for an item named beforehand"),
        ("Rate", f"{rate(trends)}; {stricter(trends)}"),
    ]


def digits_of(listed: Sequence[Change]) -> int:
    """Return how many decimals a list needs, in percent, for all its shares and changes.

    The number is from 2 to 6. Unless 6 are too few, two digits are shown of the smallest change
    other than 0, and of the smallest half-width of limits other than 0.
    """
    return amounts.decimals([*(change.change for change in listed), *_halves(listed)])


def _halves(listed: Sequence[Change]) -> list[float]:
    return [(change.change_high - change.change_low) / 2 for change in listed]


def share(value: float, digits: int) -> str:
    """Return a share as text in percent, with `digits` decimals; a share below 0 becomes 0."""
    return amounts.percent(max(0.0, value), digits)


def since(change: Change) -> str:
    """Return the first round of the new level as text for a table: its label, or its number.

    A long label is shortened, and control characters are escaped.
    """
    return shortened(escaped(str(change.since)), _LONGEST)


def table(listed: Sequence[Change]) -> FittedTable:
    """Return the items that changed as a table, a row for each."""
    digits = digits_of(listed)
    return FittedTable(
        heading="item",
        names=[printable(change.item) for change in listed],
        after=[
            Column("", [change.kind for change in listed], justify="left"),
            Column("before", [share(change.before, digits) for change in listed], rank=2),
            Column("now", [share(change.frequency, digits) for change in listed]),
            Column("change", [points(change.change, digits, signed=True) for change in listed]),
            Column("±", [points(half, digits) for half in _halves(listed)], rank=3),
            Column("since", [since(change) for change in listed], justify="left"),
        ],
    )


def points(value: float, digits: int, signed: bool = False) -> str:
    """Return a difference of shares (0.05 is 5 points) as text in points, without the unit.

    Args:
        value: the difference of two shares.
        digits: the decimals to show.
        signed: whether a difference of 0 or more gets a plus sign.
    """
    return amounts.points(value, digits, signed=signed).removesuffix(" points")


def series_table(series: Series) -> FittedTable:
    """Return the shares by round as a table: a row for each round, and a column for each item.

    A cell has the share and its margin, in percent. There must be at least one point.
    """
    lines = [series.of(item) for item in series.items]
    halves = [_half(point) for point in series.points]
    digits = amounts.decimals([max(halves, default=0.0)])
    return FittedTable(
        heading="round",
        names=[printable(_round(point)) for point in lines[0]],
        after=[
            Column(
                shortened(printable(item).plain, _LONGEST),
                [_share(point, digits) for point in line],
                rank=len(lines) - place if place else 0,
            )
            for place, (item, line) in enumerate(zip(series.items, lines, strict=True))
        ],
        noun="rounds",
    )


def _round(point: Point) -> str:
    if point.last_round == point.round:
        return str(point.round if point.label is None else point.label)
    numbers = f"{point.round}..{point.last_round}"
    return numbers if point.label is None else f"{point.label} (rounds {numbers})"


def _half(point: Point) -> float:
    """Return the distance from the shown share to the further limit.

    The shown share is the point's frequency, or 0 if the frequency is below 0.
    """
    shown = max(0.0, point.frequency)
    return max(point.high - shown, shown - point.low)


def _share(point: Point, digits: int) -> str:
    half = points(_half(point), digits)
    return f"{share(point.frequency, digits)} ± {half}"
