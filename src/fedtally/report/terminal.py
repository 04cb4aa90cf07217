"""The answer in a terminal: headings, tables and notes, as renderables of rich.

Rich is imported inside the functions: documents in JSON must not pay for it. Items are data of
strangers, so control characters, which could drive a terminal, are shown escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from fedtally.report.wording import (
    candidates,
    cost,
    counted,
    covered,
    decimals,
    level,
    percent,
    points,
    privacy_rows,
    secure_sum_rows,
    sizing_rows,
)
from fedtally.result import Estimate, Evaluation, Result

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

_LONGEST_SHOWN = 300  # characters of an item in a table: a longer one is cut off


def answer(
    result: Result, estimates: Sequence[Estimate], queried: Sequence[Estimate] = ()
) -> RenderableType:
    """Return the terminal's view of a result: its items, how they were found, and the cost.

    Args:
        result: the whole answer.
        estimates: the top items.
        queried: estimates of items that were asked for by name.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3 + ["milk"], seed=1)
    >>> text = plain(answer(result, result.top(1)))
    >>> "75.00 %" in text, "no differential privacy" in text
    (True, True)
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        heading(
            f"Most frequent of {counted(result.domain.size, 'candidate')} among"
            f" {_contributions(result)}"
        ),
        Text(),
        _top_table(result, estimates),
        *_indistinct(estimates),
    ]
    if queried:
        truth = result.true_frequencies([e.item for e in queried])
        table = estimates_table(
            queried, truth, ranked=False, confidence=result.confidence, unit=result.unit
        )
        parts += [Text(), heading("Items asked for"), Text(), table]
    return Group(*parts, Text(), facts([*_how(result, estimates, queried), *_notes(result)]))


def footnotes(result: Result, shown: Sequence[Estimate]) -> RenderableType:
    """Return the rows below the estimates of a saved result: certainty, privacy and warnings.

    >>> import fedtally
    >>> from fedtally.report import NO_PRIVACY
    >>> result = fedtally.estimate(["tea", "milk"], seed=1)
    >>> NO_PRIVACY in plain(footnotes(result, result.top(1)), 200)
    True
    """
    rows: list[tuple[str, RenderableType]] = [
        ("", ""),
        *_certainty(result, (), shown),
        *privacy_rows(result.plan, result.secure_sum),
    ]
    return facts([*rows, *_notes(result)])


def _notes(result: Result) -> list[tuple[str, RenderableType]]:
    from rich.text import Text

    return [("Note", Text(warning, style="yellow")) for warning in result.warnings]


def _top_table(result: Result, estimates: Sequence[Estimate]) -> RenderableType:
    from rich.text import Text

    if not estimates:
        return Text("none is shown: no estimate is large enough, or none was asked for")
    truth = result.true_frequencies([estimate.item for estimate in estimates])
    return estimates_table(estimates, truth, confidence=result.confidence, unit=result.unit)


def _contributions(result: Result) -> str:
    clients = counted(result.num_clients, "client")
    return (
        clients
        if result.unit == "clients"
        else f"{result.num_contributions:,} contributions of {clients}"
    )


def _indistinct(estimates: Sequence[Estimate]) -> list[RenderableType]:
    """Return a line with the number of items that cannot be told from 0; none where all can."""
    from rich.text import Text

    number = sum(not is_told_from_zero(estimate) for estimate in estimates)
    if not number:
        return []
    which = {len(estimates): "None of these can"}.get(
        number, f"{number:,} of these {len(estimates):,} cannot"
    )
    return [Text(f"{which} be told from 0: the interval reaches down to it", style="dim")]


def is_told_from_zero(estimate: Estimate) -> bool:
    """Return whether an estimate's interval, if it has one, excludes 0.

    >>> [is_told_from_zero(Estimate("tea", 0.1, low, 0.2, 10.0)) for low in (0.0, 0.01, None)]
    [False, True, True]
    """
    return estimate.low is None or estimate.low > 0


def estimates_table(
    estimates: Sequence[Estimate],
    truth: Sequence[float] | None = None,
    ranked: bool = True,
    confidence: float = 0.0,
    unit: str = "clients",
) -> Table:
    """Return a table of estimates, with limits, true frequencies and errors where they are known.

    An item that cannot be told from 0 is dim, and of its interval only the upper limit is shown.

    Args:
        estimates: the estimates, in the order of the rows.
        truth: the true frequency of each; None: unknown.
        ranked: number the rows.
        confidence: the confidence of the limits.
        unit: the noun for the things that are counted.

    >>> table = estimates_table([Estimate("tea", 0.25, None, None, 500.0)], truth=[0.24])
    >>> [line.split() for line in plain(table).splitlines()[:2]]
    [['error'], ['#', 'item', 'frequency', 'true', '(points)', 'clients']]
    """
    table = new_table()
    if ranked:
        table.add_column("#", justify="right", style="dim")
    table.add_column("item", overflow="fold", style="bold")
    halves = [(e.high - e.low) / 2 for e in estimates if e.low is not None and e.high is not None]
    limits = (f"{level(confidence)} interval",) if halves else ()
    # the unit of errors is in the heading: in each row it would take the room of the items
    errors_of = ("true", "error\n(points)") if truth is not None else ()
    for name in ("frequency", *limits, *errors_of, unit):
        table.add_column(name, justify="right", no_wrap=True)
    # Frequencies and limits have the same number of decimals, so that columns line up. Half-widths
    # count too: an interval must not look as if it had no width. Below 1e-9 they are rounding.
    digits = decimals(
        [*(estimate.frequency for estimate in estimates), *(half for half in halves if half > 1e-9)]
    )
    errors = [
        estimate.frequency - true for estimate, true in zip(estimates, truth or (), strict=False)
    ]
    error_digits = decimals([max(map(abs, errors), default=0.0)])
    for place, estimate in enumerate(estimates):
        cells = [str(place + 1)] if ranked else []
        cells += [printable(estimate.item), percent(estimate.frequency, digits)]
        if estimate.low is not None and estimate.high is not None:
            # beside a lower limit the unit is left out: "49.00 .. 51.00 %"
            low = (
                f"{percent(estimate.low, digits).removesuffix(' %')} .."
                if is_told_from_zero(estimate)
                else "up to"
            )
            cells.append(f"{low} {percent(estimate.high, digits)}")
        if truth is not None:
            cells += [
                percent(truth[place], digits),
                points(errors[place], error_digits, signed=True).removesuffix(" points"),
            ]
        table.add_row(
            *cells, f"{estimate.count:,.0f}", style=None if is_told_from_zero(estimate) else "dim"
        )
    return table


def _how(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, RenderableType]]:
    """Return the rows on how the estimates were made: cost, privacy, sketch and certainty."""
    plan = result.plan
    sketch = f"{plan.rows} rows x {plan.width:,} counters of {plan.modulus_bits} bits"
    most = "one item each" if plan.max_items == 1 else f"at most {plan.max_items:,} items each"
    shrunk = ", estimates shrunk for a small squared error" if result.objective == "l2" else ""
    rows = [
        ("Upload", cost(plan)),
        *privacy_rows(plan, result.secure_sum),
        *secure_sum_rows(result.secure_sum, result.unit.removesuffix("s")),
        ("Candidates", candidates(result.domain)),
        ("Clients", _attended(result, most)),
        ("Sketch", f"{sketch}, {plan.schedule} schedule, {result.recovery} recovery{shrunk}"),
        *sizing_rows(result.sizing),
        *_certainty(result, listed, named),
    ]
    if result.evaluation is not None:
        rows.append(("Errors", _errors(result.evaluation)))
    rows.append(("Plan", plan.fingerprint[:16]))
    if result.timings:
        rows.append(
            (
                "Time",
                ", ".join(f"{stage} {seconds:.2g} s" for stage, seconds in result.timings.items()),
            )
        )
    return list(rows)


def _attended(result: Result, most: str) -> str:
    rounds = counted(result.plan.num_rounds, "round")
    if result.unit == "clients":
        return f"{result.num_clients:,} in {rounds}, {most}"
    mean = result.num_contributions / result.num_clients
    return f"{result.num_clients:,}, each in {mean:.3g} of {rounds} on average, {most} in a round"


def _certainty(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, str]]:
    """Return the rows on what the intervals cover, and on the largest error to expect."""
    intervals = result.intervals
    if intervals is None:
        return []
    rows = covered(result.confidence, result.interval_kind, intervals.about, listed, named)
    if not intervals.predicted_linf:
        return [*rows, ("Expected", "no error beyond rounding: recovery looks exact")]
    before = " before shrinkage" if result.objective == "l2" else ""
    expected = f"largest error of all candidates{before} about ± {points(intervals.predicted_linf)}"
    return [*rows, ("Expected", f"{expected}, predicted from the sums")]


def _errors(found: Evaluation) -> str:
    digits = decimals([found.linf, found.l2])
    figures = (
        f"largest {points(found.linf, digits)}, l2 {points(found.l2, digits)} over all candidates"
    )
    covered = (
        "" if found.coverage is None else f"; {found.coverage:.1%} of the intervals hold the truth"
    )
    return (
        f"{figures}; top {found.k}: precision {found.precision_at_k:.0%}, recall"
        f" {found.recall_at_k:.0%}{covered}"
    )


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return a listing of names and texts in two columns.

    >>> print(plain(facts([("Upload", "32.0 kB")])).strip())
    Upload  32.0 kB
    """
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(name, text)
    return grid


def new_table() -> Table:
    """Return an empty table in the style of all commands.

    >>> new_table().show_edge
    False
    """
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")


def heading(text: str) -> RenderableType:
    """Return a line in bold, as it stands above a table.

    >>> heading("Answer").plain
    'Answer'
    """
    from rich.text import Text

    return Text(text, style="bold")


def plain(renderable: RenderableType, columns: int = 100) -> str:
    r"""Return the text that a terminal of so many columns would show, without colours.

    >>> plain("tea")
    'tea\n'
    """
    from rich.console import Console

    console = Console(
        width=columns, no_color=True, color_system=None, markup=False, highlight=False, emoji=False
    )
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def printable(item: str | int) -> Any:
    r"""Return an item as text for a terminal, which it cannot drive.

    Control characters are escaped, and markup is not read. An empty item is shown as two quotes.

    >>> printable("tab\there\x1b[31m").plain
    'tab\\there\\x1b[31m'
    """
    from rich.text import Text

    letters = (
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in str(item)
    )
    text = "".join(letters) or '""'
    return Text(text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}...")
