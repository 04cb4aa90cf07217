"""The answer in a terminal: headings, tables and notes, as renderables of rich.

By default an answer fits one screen; its details are the whole account. Rich is imported inside the
functions: documents in JSON must not pay for it. Items are data of strangers, so control
characters, which could drive a terminal, are shown escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedtally.answer.estimates import Estimate, is_told_from_zero, uncertainty_of
from fedtally.answer.evaluation import Evaluation, NameEvaluation
from fedtally.answer.standing import doubted
from fedtally.answer.tables import Column, FittedTable, facts, heading, printable
from fedtally.answer.wording import (
    EXACT,
    attendance,
    candidates,
    cost,
    counted,
    covered,
    decimals,
    drawn_away,
    encoded,
    evaluated_names,
    expected_error,
    left_out,
    none_expected,
    part_of_sum,
    percent,
    points,
    privacy_rows,
    privacy_sentence,
    question,
    secure_sum_rows,
    short_cost,
    sizing_rows,
    sure,
    target_rows,
    who,
)
from fedtally.base.text import escaped, in_number
from fedtally.domain import Domain, Unread

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.text import Text

    from fedtally.answer.result import Result

LINES = 35  # of an answer of 20 items or fewer in 80 columns
_LINES_IF_NARROW = 50  # of an answer with notes in fewer columns
_LISTED = 20
MORE_PEOPLE = "± more\npeople"  # the heading of what is true if the clients stand for more
_NARROWEST_PURPOSE = 24  # columns that the purpose of a hint needs to stand beside its command


def answer(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    details: bool = False,
    hints: Sequence[tuple[str, str]] = (),
    how: str = "--details",
    charged: str = "",
) -> RenderableType:
    """Return the terminal's view of a result: what was counted, the items, how sure they are.

    Args:
        result: the whole answer.
        estimates: the top items.
        queried: estimates of items that were asked for by name.
        details: also say how the estimates were made. Otherwise the view has at most `LINES` lines
            in 80 columns, and more only for a longer list or for items that were asked for. In
            fewer columns notes may take more lines.
        hints: what to try next: commands or options, each with its purpose.
        how: the option or the command that shows the details.
        charged: what a ledger says after the campaign was charged; "": it was not.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3 + ["milk"], seed=1)
    >>> text = plain(answer(result, result.top(1)))
    >>> "75.00 %" in text, "no differential privacy" in text
    (True, True)
    """
    from rich.console import Group
    from rich.text import Text

    every = estimates = doubted(result, estimates)
    if result.plan.is_open and not details:  # the line on names counts the others
        estimates = [e for e in estimates if not isinstance(e.item, Unread)]
    parts: list[RenderableType] = [heading(question(result))]
    if drawn_away(result.draw):
        parts.append(Text(drawn_away(result.draw), style="yellow"))
    if estimates or not (queried or every):
        parts += [Text(), _top_table(result, estimates)]
    if queried:
        truth = result.true_frequencies([e.item for e in queried])
        parts += [
            Text(),
            heading("Items asked for"),
            Text(),
            estimates_table(queried, truth, ranked=False, **_of(result)),
        ]
        strangers = no_candidates(result.domain, queried)
        parts += [strangers] if strangers else []
        parts += _like_hashes(result, queried)
    if details:
        rows = [*_how(result, estimates, queried, charged), *noted(result.warnings)]
        return Group(*parts, Text(), facts([*rows, *next_rows(hints)]))
    more = more_lines(estimates, queried)
    rows = _short(result, estimates, queried)
    if result.plan.is_open and every:
        rows.insert(1, ("Names", _names(result, every, how)))
    alarms = len(result.alarms)
    return Screen(Group(*parts, Text()), rows, result.cautions, hints, more, how, alarms)


def more_lines(estimates: Sequence[Estimate], queried: Sequence[Estimate]) -> int:
    """Return the lines beyond `LINES` of a longer list, and of items that were asked for.

    >>> more_lines([], [])
    0
    """
    return max(0, len(estimates) - _LISTED) + (len(queried) + 5 if queried else 0)


@dataclass(frozen=True)
class Screen:
    """An answer with as many of the notes as its lines allow, and the number of the others.

    Attributes:
        top: what was counted, and the list.
        rows: its names and texts.
        notes: what a reader should know, the most important first.
        hints: what to try next, each with its purpose.
        more: the lines that it may have beyond `LINES`.
        how: the option or the command that shows the whole account.
        alarms: how many of the first notes doubt the whole answer. One is shown in any case, beyond
            its lines if need be.
    """

    top: RenderableType
    rows: Sequence[tuple[str, RenderableType]]
    notes: Sequence[str]
    hints: Sequence[tuple[str, str]]
    more: int
    how: str = "--details"
    alarms: int = 0

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.top
        taken = len(console.render_lines(self.top, options, pad=False)) - self.more
        notes = noted(self.notes)
        # Hints go first where lines are short, the last one before the others, and then notes.
        sizes = [(len(notes), number) for number in range(len(self.hints), -1, -1)]
        fewest = min(self.alarms, 1)
        fewer = [(number, 0) for number in range(len(notes) - 1, fewest - 1, -1)]
        for shown, hints in [*sizes, *fewer]:
            hidden = len(notes) - shown
            more = f"{counted(hidden, 'more note')}, and " if hidden else ""
            last = [(self.how, f"{more}how the answer was made"), *self.hints[:hints]]
            view = facts([*self.rows, *notes[:shown], *next_rows(last)])
            # where fewer columns break more lines, notes get more of them, and hints do not
            most = LINES if hints or options.max_width >= 80 else _LINES_IF_NARROW
            if taken + len(console.render_lines(view, options, pad=False)) <= most:
                break
        yield view


def next_rows(hints: Sequence[tuple[str, str]]) -> list[tuple[str, RenderableType]]:
    """Return the row of what to try next: commands or options, each with its purpose."""
    return [("Try", _Hints(hints))] if hints else []


@dataclass(frozen=True)
class _Hints:
    """Commands, none of them cut, each with its purpose beside it, or below if there is no room."""

    hints: Sequence[tuple[str, str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        width = max(len(command) for command, _ in self.hints)
        longest = max(len(purpose) for _, purpose in self.hints)
        if options.max_width - width - 2 < min(longest, _NARROWEST_PURPOSE):
            for command, purpose in self.hints:
                yield Text(command, overflow="fold")
                yield Padding(Text(purpose), (0, 0, 0, 2))
            return
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=width)
        grid.add_column(overflow="fold")  # a long purpose goes on below itself
        for hint in self.hints:
            grid.add_row(*hint)
        yield grid


def _short(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, RenderableType]]:
    """Return the rows of an answer on one screen: error, privacy, sums and bytes."""
    from rich.text import Text

    is_marked = bool(result.not_private)
    private = Text(privacy_sentence(result.plan), style="yellow" if is_marked else "")
    sums = attendance(result.secure_sum, part_of_sum(result))
    return [
        ("Error", sure(result, [*listed, *named])),
        ("Privacy", private),
        *([("Sums", sums)] if sums else []),
        ("Upload", short_cost(result.plan)),
    ]


def _names(result: Result, listed: Sequence[Estimate], how: str) -> str:
    """Return in a few words how many strings of an open domain stand out, and have names.

    Args:
        result: the whole answer.
        listed: the top items, whose hashes without a name are not shown.
        how: the option or the command that shows them; it takes `--top`, too.
    """
    found, unread = result.num_found, result.num_unread
    longer = f" --top {found}" * (len(listed) < found)
    if not unread:
        said = {0: "no string stands out", 1: "the one string that stands out could be read"}.get(
            found, f"all {found:,} strings that stand out could be read"
        )
        return (
            said if not longer else f"{said}; {how.removesuffix('--details')}{longer[1:]} lists all"
        )
    lists = f"{how}{longer} lists {'them' if unread > 1 else 'it'}"
    return f"{counted(unread, 'more string')} could not be read{_unread(result)}; {lists}"


def _unread(result: Result) -> str:
    """Return what is known of the strings without a name, and what would name them."""
    hashes = [e for e in result.top(result.num_found) if isinstance(e.item, Unread)]
    if result.intervals is None:
        return ""
    told = [e.frequency for e in hashes if is_told_from_zero(e)]
    if not told:
        return ", none of them told from 0" if len(hashes) > 1 else ", nor told from 0"
    more = "a larger epsilon" if result.plan.privacy else "more bytes"
    some = "all " if len(told) == len(hashes) else f"{len(told):,} of them "
    some, up_to = ("", "") if len(hashes) == 1 else (some, "up to ")
    return (
        f", {some}told from 0, with {up_to}{percent(max(told))} of the {result.unit}: a public list"
        f" of words (--dictionary), or {more}, may name more"
    )


def no_candidates(domain: Domain, queried: Sequence[Estimate]) -> Text | None:
    """Return the line on items that were asked for and were no candidates: typing errors, often."""
    from rich.text import Text

    found = domain.contains([estimate.item for estimate in queried])
    names = [printable(e.item).plain for e, there in zip(queried, found, strict=True) if not there]
    if not names:
        return None
    verb = in_number(len(names), "was no candidate", "were no candidates")
    return Text(f"{', '.join(names)} {verb}", style="yellow")


def _like_hashes(result: Result, queried: Sequence[Estimate]) -> list[RenderableType]:
    """Return the line on strings that were asked for and look like hashes of the list, if any."""
    from rich.text import Text

    asked = [e.item for e in queried if result.plan.is_open and not isinstance(e.item, Unread)]
    names = [str(item) for item in asked if Unread.is_like(str(item))]
    if not names:
        return []
    said = f"{', '.join(names)}: asked for as text that clients hold, not as a hash of the list"
    return [Text(said, style="yellow")]


def noted(notes: Iterable[str]) -> list[tuple[str, RenderableType]]:
    """Return the rows of notes.

    >>> noted(["the sums are exact"])[0][0]
    'Note'
    """
    return [("Note", printable(note, "yellow", len(note))) for note in notes]


def _of(result: Result) -> dict[str, Any]:
    """Return what a table of estimates says of their result."""
    names = result.columns.get("item", [])
    return {
        "unit": result.unit,
        "item": escaped(names[0]) if len(names) == 1 else "item",
        "shares_counters": result.plan.vector.shares_counters,
    }


def _top_table(result: Result, estimates: Sequence[Estimate]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    if not estimates:
        return none_listed()
    truth = result.true_frequencies([estimate.item for estimate in estimates])
    table = estimates_table(estimates, truth, **_of(result))
    rest = left_out(result, estimates)
    return Group(table, Text(rest, style="dim")) if rest else table


def none_listed() -> Text:
    """Return what stands in place of a list without items.

    >>> none_listed().plain
    'none is shown: no estimate is large enough, or none was asked for'
    """
    from rich.text import Text

    return Text("none is shown: no estimate is large enough, or none was asked for")


def has_widths(estimates: Sequence[Estimate]) -> bool:
    """Return whether some estimate has limits to show; those of exact counts have no width.

    >>> has_widths([Estimate("tea", 0.1, 0.1, 0.1, 10.0)])
    False
    """
    return any(e.low is not None and (e.low, e.high) != (e.frequency,) * 2 for e in estimates)


def digits_of(estimates: Sequence[Estimate]) -> int:
    """Return the decimals of a percentage that all frequencies and limits of a list have.

    Half-widths count too: an interval must not look as if it had no width. Below 1e-9 they are
    rounding.

    >>> digits_of([Estimate("tea", 0.5, 0.499998, 0.500002, 5e5)])
    5
    """
    halves = [(e.high - e.low) / 2 for e in estimates if e.low is not None and e.high is not None]
    return decimals([*(e.frequency for e in estimates), *(half for half in halves if half > 1e-9)])


def estimates_table(
    estimates: Sequence[Estimate],
    truth: Sequence[float] | None = None,
    ranked: bool = True,
    unit: str = "clients",
    item: str = "item",
    shares_counters: bool = True,
) -> FittedTable:
    """Return a table of estimates, with limits, true frequencies and errors where they are known.

    Beside each share stands how far off it may be among these clients, and then if they stand for
    more people. An item that cannot be told from 0 is dim, has no bar, and of its intervals only
    the upper limits are shown.

    Args:
        estimates: the estimates, in the order of the rows.
        truth: the true frequency of each; None: unknown.
        ranked: number the rows.
        unit: the noun for the things that are counted.
        item: the heading of the items.
        shares_counters: whether items share counters; in a histogram none does.

    >>> table = estimates_table([Estimate("tea", 0.25, None, None, 500.0)], truth=[0.24])
    >>> [line.split() for line in plain(table).splitlines()[:2]]
    [['error,'], ['#', 'item', 'share', 'true', 'points', 'clients']]
    """
    digits = digits_of(estimates)
    shares = [percent(estimate.frequency, digits) for estimate in estimates]
    after = [Column("share", shares), *_uncertainties(estimates, digits, unit)]
    if truth is not None:
        errors = [e.frequency - true for e, true in zip(estimates, truth, strict=True)]
        error_digits = decimals([max(map(abs, errors), default=0.0)])
        signed = [points(error, error_digits, signed=True) for error in errors]
        after += [
            Column("true", [percent(share, digits) for share in truth], rank=2, wishes=True),
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
        # what may be nothing has no bar
        shares=[e.frequency if is_told_from_zero(e) else 0.0 for e in estimates],
        styles=["dim" if is_doubtful else "" for is_doubtful in doubtful],
        line=line,
        note=note,
    )


def _doubts(
    doubtful: Sequence[bool], shares_counters: bool
) -> tuple[tuple[int, Text] | None, Text | None]:
    """Return what a table says of rows that cannot be told from 0: between its rows, or below."""
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
    # Without the reason a reader would ask why a larger share can be less certain.
    why = ": an item's margin depends on the items in its counters" * shares_counters
    text = f"{number:,} of these {rows:,} cannot be told from 0 (at most){why}"
    return None, Text(text, style="dim")


def _uncertainties(estimates: Sequence[Estimate], digits: int, unit: str) -> list[Column]:
    """Return how far off each estimate may be: among the clients, then if they stand for more.

    An item that cannot be told from 0 has its upper limits. Both columns have the same decimals, so
    that rounding makes no wider limit look narrower.
    """
    off = uncertainty_of(estimates)
    if off is None:
        return []
    digits = max(digits, decimals(off.population.tolist()))
    readings = [(f"± these\n{unit}", off.clients, [e.high for e in estimates], 5)]
    readings *= has_widths(estimates)
    more = (MORE_PEOPLE, off.population, [e.population_high for e in estimates], 6)
    return [
        Column(name, [_off(*of, digits) for of in zip(estimates, half, ends, strict=True)], rank)
        for name, half, ends, rank in [*readings, more]
    ]


def _off(estimate: Estimate, half: float, high: float | None, digits: int) -> str:
    """Return how far off an estimate may be; its upper limit where it cannot be told from 0."""
    if is_told_from_zero(estimate) or high is None:
        return points(half, digits).removesuffix(" points")
    return f"at most {percent(high, digits)}"


def _how(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate], charged: str
) -> list[tuple[str, RenderableType]]:
    """Return all rows on how the estimates were made: cost, privacy, sketch and certainty."""
    plan = result.plan
    heading, sketch = encoded(plan)
    most = in_number(plan.max_items, "one item each", "at most {} items each")
    shrunk = ", estimates shrunk for a small squared error" if result.objective == "l2" else ""
    rows = [
        ("Upload", cost(plan)),
        *privacy_rows(plan, result.secure_sum),
        *([("Ledger", escaped(charged))] if charged else []),
        *secure_sum_rows(result.secure_sum, part_of_sum(result), who(plan)),
        ("Candidates", candidates(result.domain)),
        (plan.nouns[1].capitalize(), _attended(result, most)),
        (heading, f"{sketch}, {result.recovery} recovery{shrunk}"),
        *sizing_rows(result.sizing),
        *target_rows(plan),
        ("Error", sure(result, [*listed, *named])),
        *certainty(result, listed, named),
    ]
    if result.evaluation is not None:
        rows.append(("Errors", _errors(result.evaluation)))
    rows.append(("Plan", plan.fingerprint[:16]))
    if result.timings:
        rows.append(
            (
                "Time",
                ", ".join(f"{stage} {_seconds(taken)}" for stage, taken in result.timings.items()),
            )
        )
    return list(rows)


def _seconds(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _attended(result: Result, most: str) -> str:
    rounds = counted(result.plan.num_rounds, "round")
    if result.plan.is_of_silos:
        silos = f"{counted(result.num_silos, 'silo')} of at most {result.plan.people:,}"
        return f"{result.num_clients:,} in {silos}{_each(result)}, {rounds}, {most}"
    if result.unit == "clients":
        return f"{result.num_clients:,} in {rounds}, {most}"
    mean = result.num_contributions / result.num_clients
    return f"{result.num_clients:,}, each in {mean:.3g} of {rounds} on average, {most} in a round"


def _each(result: Result) -> str:
    """Return how often a person of silos counts, where that may be more than once; else ""."""
    if result.unit == "people":
        return ""
    if result.repeats_are_private:
        return ", with those counted who come again"
    return f", each counted {result.num_contributions / result.num_clients:.3g} times on average"


def certainty(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, str]]:
    """Return the rows on what the intervals cover, and on the largest error to expect."""
    intervals = result.intervals
    if intervals is None:
        return []
    rows = covered(result.confidence, result.interval_kind, intervals.about, listed, named)
    if result.is_exact:
        return [("Intervals", EXACT), *(row for row in rows if row[0] == "Sampling")]
    if not intervals.predicted_linf:
        return [*rows, ("Expected", none_expected(result, [*listed, *named]))]
    before = " before shrinkage" if result.objective == "l2" else ""
    expected = f"largest error of all candidates{before} about ± {expected_error(intervals)}"
    # no items share a counter of a histogram: its noise is all that may be wrong
    source = "the sums" if result.plan.vector.shares_counters else "the plan's noise"
    return [*rows, ("Expected", f"{expected}, predicted from {source}")]


def _errors(found: Evaluation | NameEvaluation) -> str:
    if isinstance(found, NameEvaluation):
        return "; ".join(evaluated_names(found))
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
