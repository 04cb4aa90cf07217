"""The section with the list of items: JSON fields, and a table for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedtally.answer import amounts
from fedtally.answer.estimates import (
    Estimate,
    is_told_from_zero,
    uncertainty_of,
)
from fedtally.answer.sections import counted
from fedtally.answer.tables import Column, FittedTable, printable
from fedtally.base.text import escaped, in_number
from fedtally.domain import Domain, Unread

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from fedtally.answer.answer import Answer
    from fedtally.answer.result import Result


MORE_PEOPLE = "± more\npeople"  # the heading of the column of errors for a wider population


def estimate_fields(estimate: Estimate) -> dict[str, Any]:
    """Return the JSON fields of an estimate: its attributes by name.

    If the name of a string was not read, "item" is None, and a field "hash" has hexadecimal digits.

    >>> from fedtally.domain import Unread
    >>> fields = estimate_fields(Estimate(Unread.of(7), 0.25, None, None, 5.0))
    >>> fields["item"], fields["hash"]
    (None, '0000007')
    """
    fields = asdict(estimate)
    if isinstance(estimate.item, Unread):
        return fields | {"item": None, "hash": estimate.item.removeprefix("#")}
    return fields


def fields(answer: Answer, estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    """Return the JSON fields of each listed estimate.

    The field `above_noise` says whether the item stands above noise (`Answer.above_noise`); None if
    that is unknown.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 900, domain=["tea", "milk"], seed=1)
    >>> [one["above_noise"] for one in fields(result, result.estimates(["tea", "milk"]))]
    [True, False]
    """
    found = answer.above_noise(estimates)
    above: Sequence[bool | None] = [None] * len(estimates) if found is None else found
    return [
        estimate_fields(one) | {"above_noise": is_above}
        for one, is_above in zip(estimates, above, strict=True)
    ]


def no_candidates(domain: Domain, queried: Sequence[str | int]) -> Text | None:
    """Return a line with the queried items that are no candidates; None if all are candidates.

    Such an item is often a typing error.
    """
    from rich.text import Text

    found = domain.contains(queried)
    names = [printable(n).plain for n, there in zip(queried, found, strict=True) if not there]
    if not names:
        return None
    verb = in_number(len(names), "was no candidate", "were no candidates")
    return Text(f"{', '.join(names)} {verb}", style="yellow")


def like_hashes(result: Result, queried: Sequence[Estimate]) -> list[RenderableType]:
    """Return a list with a line on queried items that look like hashes; [] if no item does.

    In an open domain the list shows a string without a name as "#" and its hash. A user who queries
    for such a text may mean the hash. But the query was taken as a text that clients hold, and the
    line says so.

    Args:
        result: the whole result.
        queried: the estimates of items that were asked for by name.
    """
    from rich.text import Text

    asked = [e.item for e in queried if result.plan.is_open and not isinstance(e.item, Unread)]
    names = [str(item) for item in asked if Unread.is_like(str(item))]
    if not names:
        return []
    said = f"{', '.join(names)}: asked for as text that clients hold, not as a hash of the list"
    return [Text(said, style="yellow")]


def described(result: Result) -> dict[str, Any]:
    """Return the keyword arguments `unit`, `item` and `shares_counters` of `table` for a result."""
    names = result.columns.get("item", [])
    return {
        "unit": result.unit,
        "item": escaped(names[0]) if len(names) == 1 else "item",
        "shares_counters": result.plan.vector.shares_counters,
    }


def top_table(result: Result, estimates: Sequence[Estimate]) -> RenderableType:
    """Return the table of a result's top items; a line says how many candidates it leaves out.

    If there are no estimates, it is the text of `none_listed`.
    """
    from rich.console import Group
    from rich.text import Text

    if not estimates:
        return none_listed()
    truth = result.true_frequencies([estimate.item for estimate in estimates])
    items = table(estimates, truth, **described(result))
    rest = counted.left_out(result, estimates)
    return Group(items, Text(rest, style="dim")) if rest else items


def none_listed() -> Text:
    """Return the text that stands in place of a list without items.

    >>> none_listed().plain
    'none is shown: no estimate is large enough, or none was asked for'
    """
    from rich.text import Text

    return Text("none is shown: no estimate is large enough, or none was asked for")


def has_widths(estimates: Sequence[Estimate]) -> bool:
    """Return whether some estimate has limits to show.

    Exact counts have limits equal to the estimate, which are not shown.

    >>> has_widths([Estimate("tea", 0.1, 0.1, 0.1, 10.0)])
    False
    """
    return any(e.low is not None and (e.low, e.high) != (e.frequency,) * 2 for e in estimates)


def digits_of(estimates: Sequence[Estimate]) -> int:
    """Return how many decimals a list needs, in percent, for all its frequencies and limits.

    The number is from 2 to 6. Unless 6 are too few, two digits are shown of the smallest frequency
    other than 0, and of the smallest half-width of limits. Without the half-widths, two limits
    could look equal. Half-widths up to 1e-9 are only rounding, and do not count.

    >>> digits_of([Estimate("tea", 0.5, 0.499998, 0.500002, 5e5)])
    5
    """
    halves = [(e.high - e.low) / 2 for e in estimates if e.low is not None and e.high is not None]
    return amounts.decimals(
        [*(e.frequency for e in estimates), *(half for half in halves if half > 1e-9)]
    )


def table(
    estimates: Sequence[Estimate],
    truth: Sequence[float] | None = None,
    ranked: bool = True,
    unit: str = "clients",
    item: str = "item",
    shares_counters: bool = True,
) -> FittedTable:
    """Return a table of estimates: item, share, how far off the share may be, and count.

    If all estimates have limits, their errors stand beside the shares. The first error is among
    these clients, and is left out for exact counts. The second is for a wider population, of which
    the clients are a sample. If the truth is known, there are also the true share, and the estimate
    minus the truth. An item that cannot be told from 0 is dim, has no bar, and shows only upper
    limits.

    Args:
        estimates: the estimates, in the order of the rows.
        truth: the true frequency of each item; None: unknown.
        ranked: whether rows are numbered.
        unit: the plural noun for what is counted.
        item: the heading of the column of items.
        shares_counters: whether items share counters: True for a sketch, False for a histogram.

    >>> from fedtally.answer.screen import plain
    >>> items = table([Estimate("tea", 0.25, None, None, 500.0)], truth=[0.24])
    >>> [line.split() for line in plain(items).splitlines()[:2]]
    [['error,'], ['#', 'item', 'share', 'true', 'points', 'clients']]
    """
    digits = digits_of(estimates)
    shares = [amounts.percent(estimate.frequency, digits) for estimate in estimates]
    after = [Column("share", shares), *_uncertainties(estimates, digits, unit)]
    if truth is not None:
        errors = [e.frequency - true for e, true in zip(estimates, truth, strict=True)]
        error_digits = amounts.decimals([max(map(abs, errors), default=0.0)])
        signed = [amounts.points(error, error_digits, signed=True) for error in errors]
        after += [
            Column(
                "true", [amounts.percent(share, digits) for share in truth], rank=2, wishes=True
            ),
            Column("error,\npoints", [text.removesuffix(" points") for text in signed], rank=4),
        ]
    after.append(Column(unit, [f"{e.count:z,.0f}" for e in estimates], rank=1, wishes=True))
    numbers = [str(place + 1) for place in range(len(estimates))]
    doubtful = [not is_told_from_zero(estimate) for estimate in estimates]
    line, note = _doubts(doubtful, shares_counters)
    return FittedTable(
        heading=item,
        names=[printable(estimate.item) for estimate in estimates],
        before=[Column("#", numbers, rank=3)] if ranked else [],
        after=after,
        # an item that cannot be told from 0 has no bar
        shares=[e.frequency if is_told_from_zero(e) else 0.0 for e in estimates],
        styles=["dim" if is_doubtful else "" for is_doubtful in doubtful],
        line=line,
        note=note,
    )


def _doubts(
    doubtful: Sequence[bool], shares_counters: bool
) -> tuple[tuple[int, Text] | None, Text | None]:
    """Return a text on doubtful rows, which cannot be told from 0, as (line, note).

    Without doubtful rows, `line` and `note` are None. If some rows are not doubtful, and all
    doubtful rows stand below them, `line` is the index of the first doubtful row, with a text to
    show above this row; `note` is None. Otherwise `note` is a text to show below the table, and
    `line` is None.

    Args:
        doubtful: for each row, whether it cannot be told from 0.
        shares_counters: whether items share counters: True for a sketch, False for a histogram.
    """
    from rich.text import Text

    number, rows = sum(doubtful), len(doubtful)
    if not number:
        return None, None
    if number == rows:
        return None, Text("none of these can be told from 0", style="dim")
    if all(doubtful[rows - number :]):
        below = in_number(number, "the one below", "the {} below")
        return (
            (rows - number, Text(f"── {below} cannot be told from 0", style="dim")),
            None,
        )
    # Say why: a row with a larger share may be less certain than one with a smaller share.
    why = ": an item's margin depends on the items in its counters" * shares_counters
    text = f"{number:,} of these {rows:,} cannot be told from 0 (at most){why}"
    return None, Text(text, style="dim")


def _uncertainties(estimates: Sequence[Estimate], digits: int, unit: str) -> list[Column]:
    """Return the columns of errors: among these clients, then for a wider population.

    If an estimate has no limits, there are no columns. If counts are exact, there is only the
    second column. For an item that cannot be told from 0, the columns show upper limits of its
    share. Both columns have the same number of decimals: otherwise rounding could make the larger
    error look smaller.

    Args:
        estimates: the estimates, in the order of the rows.
        digits: the least number of decimals, in percent.
        unit: the plural noun for what is counted.
    """
    off = uncertainty_of(estimates)
    if off is None:
        return []
    digits = max(digits, amounts.decimals(off.population.tolist()))
    readings = [(f"± these\n{unit}", off.clients, [e.high for e in estimates], 5)]
    readings *= has_widths(estimates)
    more = (MORE_PEOPLE, off.population, [e.population_high for e in estimates], 6)
    return [
        Column(name, [_off(*of, digits) for of in zip(estimates, half, ends, strict=True)], rank)
        for name, half, ends, rank in [*readings, more]
    ]


def _off(estimate: Estimate, half: float, high: float | None, digits: int) -> str:
    """Return the error of an estimate as text in points.

    If the estimate cannot be told from 0, the text is an upper limit of the share instead.

    Args:
        estimate: the estimate.
        half: how far the estimate may be off, as a share.
        high: the upper limit of the share, shown if the estimate cannot be told from 0; None:
            unknown.
        digits: the number of decimals.
    """
    if is_told_from_zero(estimate) or high is None:
        return amounts.points(half, digits).removesuffix(" points")
    return f"at most {amounts.percent(high, digits)}"
