"""The answer in a terminal: headings, tables and notes, as renderables of rich.

By default an answer fits one screen; its details are the whole account. Rich is imported inside the
functions: documents in JSON must not pay for it. Items are data of strangers, so control
characters, which could drive a terminal, are shown escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedtally.domain import Domain
from fedtally.report.wording import (
    attendance,
    candidates,
    cost,
    counted,
    covered,
    decimals,
    drawn_away,
    escaped,
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
    who,
)
from fedtally.result import Estimate, Evaluation, Result

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

LINES = 35  # of an answer of 20 items or fewer in 80 columns
_LINES_IF_NARROW = 50  # where fewer columns break more lines
SHORTEST = 8  # columns of an item that is elided
GAP = 2  # columns between two columns of a table
_LISTED = 20
_WISHED = 24  # columns of an item for which columns that one can do without make room
_EVEN = 1.1  # a ratio of the two sides of an interval, up to which they are shown as one
_LONGEST_SHOWN = 300  # characters of an item in a table: a longer one is cut off
_BAR = (6, 20)  # the fewest and the most columns of a bar


def answer(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    details: bool = False,
    hints: Sequence[tuple[str, str]] = (),
) -> RenderableType:
    """Return the terminal's view of a result: what was counted, the items, how sure they are.

    Args:
        result: the whole answer.
        estimates: the top items.
        queried: estimates of items that were asked for by name.
        details: also say how the estimates were made. Otherwise the view has at most `LINES` lines
            in 80 columns, and more only for a longer list or for items that were asked for.
        hints: what to try next: commands or options, each with its purpose.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3 + ["milk"], seed=1)
    >>> text = plain(answer(result, result.top(1)))
    >>> "75.00 %" in text, "no differential privacy" in text
    (True, True)
    """
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [heading(question(result))]
    if drawn_away(result.draw):
        parts.append(Text(drawn_away(result.draw), style="yellow"))
    if estimates or not queried:
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
    if details:
        rows = [*_how(result, estimates, queried), *noted(result.warnings)]
        return Group(*parts, Text(), facts([*rows, *_next(hints)]))
    more = more_lines(estimates, queried)
    rows = _short(result, estimates, queried)
    return Screen(Group(*parts, Text()), rows, result.cautions, hints, more)


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
    """

    top: RenderableType
    rows: Sequence[tuple[str, RenderableType]]
    notes: Sequence[str]
    hints: Sequence[tuple[str, str]]
    more: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.top
        most = self.more + (LINES if options.max_width >= 80 else _LINES_IF_NARROW)
        left = most - len(console.render_lines(self.top, options, pad=False))
        notes = noted(self.notes)
        # Hints go first where lines are short, the last one before the others, and then notes.
        sizes = [(len(notes), number) for number in range(len(self.hints), -1, -1)]
        for shown, hints in [*sizes, *((number, 0) for number in range(len(notes) - 1, -1, -1))]:
            hidden = len(notes) - shown
            more = f"{counted(hidden, 'more note')}, and " if hidden else ""
            last = [("--details", f"{more}how the answer was made"), *self.hints[:hints]]
            view = facts([*self.rows, *notes[:shown], *_next(last)])
            if len(console.render_lines(view, options, pad=False)) <= left:
                break
        yield view


def _next(hints: Sequence[tuple[str, str]]) -> list[tuple[str, RenderableType]]:
    width = max((len(command) for command, _ in hints), default=0)
    names = ["Try", *[""] * len(hints)]
    return [(n, f"{how:<{width}}  {what}") for n, (how, what) in zip(names, hints, strict=False)]


def _short(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, RenderableType]]:
    """Return the rows of an answer on one screen: error, privacy, sums and bytes."""
    from rich.text import Text

    is_marked = bool(result.not_private)
    private = Text(privacy_sentence(result.plan), style="yellow" if is_marked else "")
    sums = attendance(result.secure_sum, part_of_sum(result))
    unread = f"{result.num_unread:,} of {result.num_found:,} strings could not be read, shown by #"
    return [
        ("Error", sure(result, listed, named)),
        *([("Names", unread)] if result.num_unread else []),
        ("Privacy", private),
        *([("Sums", sums)] if sums else []),
        ("Upload", short_cost(result.plan)),
    ]


def no_candidates(domain: Domain, queried: Sequence[Estimate]) -> Text | None:
    """Return the line on items that were asked for and were no candidates: typing errors, often."""
    from rich.text import Text

    found = domain.contains([estimate.item for estimate in queried])
    names = [printable(e.item).plain for e, there in zip(queried, found, strict=True) if not there]
    if not names:
        return None
    verb = "was no candidate" if len(names) == 1 else "were no candidates"
    return Text(f"{', '.join(names)} {verb}", style="yellow")


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
    }


def _top_table(result: Result, estimates: Sequence[Estimate]) -> RenderableType:
    if not estimates:
        return none_listed()
    truth = result.true_frequencies([estimate.item for estimate in estimates])
    return estimates_table(estimates, truth, **_of(result))


def none_listed() -> Text:
    """Return what stands in place of a list without items.

    >>> none_listed().plain
    'none is shown: no estimate is large enough, or none was asked for'
    """
    from rich.text import Text

    return Text("none is shown: no estimate is large enough, or none was asked for")


def is_told_from_zero(estimate: Estimate) -> bool:
    """Return whether an estimate's interval, if it has one, excludes 0.

    >>> [is_told_from_zero(Estimate("tea", 0.1, low, 0.2, 10.0)) for low in (0.0, 0.01, None)]
    [False, True, True]
    """
    return estimate.low is None or estimate.low > 0


def digits_of(estimates: Sequence[Estimate]) -> int:
    """Return the decimals of a percentage that all frequencies and limits of a list have.

    Half-widths count too: an interval must not look as if it had no width. Below 1e-9 they are
    rounding.

    >>> digits_of([Estimate("tea", 0.5, 0.499998, 0.500002, 5e5)])
    5
    """
    halves = [(e.high - e.low) / 2 for e in estimates if e.low is not None and e.high is not None]
    return decimals([*(e.frequency for e in estimates), *(half for half in halves if half > 1e-9)])


@dataclass(frozen=True)
class _Column:
    """A column of a table of estimates.

    Attributes:
        name: the heading.
        cells: a text a row.
        rank: the order in which columns are left out if there is no room; 0: never.
        wishes: whether it goes so that items have as much room as they wish.
    """

    name: str
    cells: Sequence[str]
    rank: int = 0
    wishes: bool = False

    @property
    def width(self) -> int:
        from rich.cells import cell_len

        return max(map(cell_len, [self.name, *self.cells]))


@dataclass(frozen=True)
class EstimatesTable:
    """A table of estimates that fits any terminal: the columns that matter least go first.

    Attributes:
        items: the label of each row.
        shares: the frequency of each row, for its bar.
        doubtful: the rows that cannot be told from 0.
        before: the columns before the item.
        item: the heading of the items.
        after: the columns after the item, whose bar stands behind the first.
    """

    items: Sequence[str | int]
    shares: Sequence[float]
    doubtful: Sequence[bool]
    before: Sequence[_Column]
    item: str
    after: Sequence[_Column]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.cells import cell_len
        from rich.segment import Segment

        columns = options.max_width - last_padding(console)
        labels = [printable(item) for item in self.items]
        longest = max([cell_len(self.item), *(cell_len(label.plain) for label in labels)])
        kept = self._kept(columns, longest)
        gone = [c.name for c in [*self.before, *self.after] if c not in kept]
        room = columns - sum(column.width + GAP for column in kept)
        width = max(1, min(longest, room))
        bar = min(_BAR[1], room - width - GAP)
        if bar < _BAR[0] or options.ascii_only or max(self.shares, default=0.0) <= 0:
            bar = 0
        table = self._table(kept, [elided(label, width) for label in labels], width, bar)
        lines = console.render_lines(table, options, pad=False)
        tail = self._tail()
        for place, line in enumerate(lines):
            if place - (len(lines) - len(labels)) == len(labels) - tail and tail > 0:
                yield _doubts(tail, len(labels))
            yield from line
            yield Segment.line()
        if (number := sum(self.doubtful)) > tail:
            yield _doubts(number, len(labels), is_below=False)
        if said := self._left_out(gone, longest > width, options.max_width):
            yield said

    def _kept(self, columns: int, longest: int) -> list[_Column]:
        """Return the columns that fit beside items of that many columns."""
        kept = [*self.before, *self.after]
        for column in sorted((c for c in kept if c.rank), key=lambda c: c.rank):
            least = min(longest, _WISHED if column.wishes else SHORTEST)
            if sum(c.width + GAP for c in kept) + least > columns:
                kept.remove(column)
        return kept

    def _table(self, kept: Sequence[_Column], items: Sequence[Text], width: int, bar: int) -> Table:
        from rich.bar import Bar

        table, most = new_table(), max(self.shares, default=1.0)
        table.padding = (0, GAP - 1, 0, 0)  # the box has a blank between columns
        before = [column for column in self.before if column in kept]
        after = [column for column in self.after if column in kept]
        for column in before:
            table.add_column(column.name, justify="right", style="dim", no_wrap=True)
        table.add_column(printable(self.item), style="bold", no_wrap=True, min_width=width)
        for place, column in enumerate(after):
            table.add_column(column.name, justify="right", no_wrap=True, min_width=column.width)
            if bar and not place:
                table.add_column("", no_wrap=True, width=bar)
        for row, item in enumerate(items):
            cells: list[RenderableType] = [*(c.cells[row] for c in before), item]
            for place, column in enumerate(after):
                cells.append(column.cells[row])
                if bar and not place:
                    cells.append(Bar(most, 0, max(0.0, self.shares[row]), width=bar))
            table.add_row(*cells, style="dim" if self.doubtful[row] else None)
        return table

    def _tail(self) -> int:
        """Return the number of last rows that cannot be told from 0; 0 if others cannot, too."""
        number = sum(self.doubtful)
        is_tail = number < len(self.doubtful) and all(self.doubtful[len(self.doubtful) - number :])
        return number if is_tail else 0

    def _left_out(self, gone: Sequence[str], is_elided: bool, columns: int) -> Text | None:
        from rich.text import Text

        said = [f"without {', '.join(gone)}"] * bool(gone)
        said += ["items shortened"] * is_elided
        if not said:
            return None
        return Text(f"{columns} columns: {', '.join(said)}; --json has all", style="dim")


def _doubts(number: int, rows: int, is_below: bool = True) -> Text:
    """Return the line on the rows that cannot be told from 0."""
    from rich.text import Text

    if number == rows:
        return Text("none of these can be told from 0", style="dim")
    if is_below:
        return Text(f"── the {number:,} below cannot be told from 0", style="dim")
    return Text(f"{number:,} of these {rows:,} cannot be told from 0 (at most)", style="dim")


def estimates_table(
    estimates: Sequence[Estimate],
    truth: Sequence[float] | None = None,
    ranked: bool = True,
    unit: str = "clients",
    item: str = "item",
) -> EstimatesTable:
    """Return a table of estimates, with limits, true frequencies and errors where they are known.

    An item that cannot be told from 0 is dim, and of its interval only the upper limit is shown.

    Args:
        estimates: the estimates, in the order of the rows.
        truth: the true frequency of each; None: unknown.
        ranked: number the rows.
        unit: the noun for the things that are counted.
        item: the heading of the items.

    >>> table = estimates_table([Estimate("tea", 0.25, None, None, 500.0)], truth=[0.24])
    >>> [line.split() for line in plain(table).splitlines()[:1]]
    [['#', 'item', 'share', 'true', 'error,', 'points', 'clients']]
    """
    digits = digits_of(estimates)
    shares = [percent(estimate.frequency, digits) for estimate in estimates]
    after = [_Column("share", shares)]
    if any(estimate.low is not None for estimate in estimates):
        after.append(_Column("± points", [_plus_minus(e, digits) for e in estimates], rank=5))
    if truth is not None:
        errors = [e.frequency - true for e, true in zip(estimates, truth, strict=True)]
        error_digits = decimals([max(map(abs, errors), default=0.0)])
        signed = [points(error, error_digits, signed=True) for error in errors]
        after += [
            _Column("true", [percent(share, digits) for share in truth], rank=2, wishes=True),
            _Column("error, points", [text.removesuffix(" points") for text in signed], rank=4),
        ]
    after.append(_Column(unit, [f"{e.count:z,.0f}" for e in estimates], rank=1, wishes=True))
    numbers = [str(place + 1) for place in range(len(estimates))]
    return EstimatesTable(
        items=[estimate.item for estimate in estimates],
        shares=[estimate.frequency for estimate in estimates],
        doubtful=[not is_told_from_zero(estimate) for estimate in estimates],
        before=[_Column("#", numbers, rank=3)] if ranked else [],
        item=item,
        after=after,
    )


def _plus_minus(estimate: Estimate, digits: int) -> str:
    """Return an interval as its distances from the estimate: one number if both are alike."""
    if estimate.low is None or estimate.high is None:
        return ""
    if not is_told_from_zero(estimate):
        return f"at most {percent(estimate.high, digits)}"
    below, above = (
        points(distance, digits).removesuffix(" points")
        for distance in (estimate.frequency - estimate.low, estimate.high - estimate.frequency)
    )
    # Distances that hardly differ are shown as one: the larger holds for both.
    less, more = sorted((below, above), key=float)
    is_even = float(more) <= max(_EVEN * float(less), float(less) + 1.5 * 10**-digits)
    return more if is_even else f"-{below} +{above}"


def elided(label: Text, columns: int) -> Text:
    """Return a label in so many columns, elided in the middle: items often differ at their ends.

    >>> elided(printable("https://example.org/1"), 9).plain
    'http…rg/1'
    """
    from rich.cells import cell_len, set_cell_size
    from rich.text import Text

    text = label.plain
    if cell_len(text) <= columns:
        return label
    back = (columns - 1) // 2
    end = ""
    for letter in reversed(text):
        if cell_len(letter + end) > back:
            break
        end = letter + end
    return Text(f"{set_cell_size(text, columns - 1 - back).rstrip()}…{end}")


def _how(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, RenderableType]]:
    """Return all rows on how the estimates were made: cost, privacy, sketch and certainty."""
    plan = result.plan
    sketch = f"{plan.rows} rows x {plan.width:,} counters of {plan.modulus_bits} bits"
    most = "one item each" if plan.max_items == 1 else f"at most {plan.max_items:,} items each"
    shrunk = ", estimates shrunk for a small squared error" if result.objective == "l2" else ""
    rows = [
        ("Upload", cost(plan)),
        *privacy_rows(plan, result.secure_sum),
        *secure_sum_rows(result.secure_sum, part_of_sum(result), who(plan)),
        ("Candidates", candidates(result.domain)),
        ("People" if plan.is_of_silos else "Clients", _attended(result, most)),
        ("Sketch", f"{sketch}, {plan.schedule} schedule, {result.recovery} recovery{shrunk}"),
        *sizing_rows(result.sizing),
        *certainty(result, listed, named),
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


def last_padding(console: Console) -> int:
    """Return the columns that a table pays for padding behind its last column.

    Before version 15, Rich counts them although it pads no edge.
    """
    from rich.measure import Measurement

    table = new_table()
    table.padding = (0, GAP - 1, 0, 0)
    table.add_column(min_width=1)
    return Measurement.get(console, console.options, table).minimum - 1


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


def printable(item: str | int, style: str = "", longest: int = _LONGEST_SHOWN) -> Text:
    r"""Return an item as text for a terminal, which it cannot drive.

    Control characters are escaped, and markup is not read. An empty item is shown as two quotes.

    Args:
        item: the item.
        style: a style of rich.
        longest: the characters after which it is cut off.

    >>> printable("tab\there\x1b[31m").plain
    'tab\\there\\x1b[31m'
    """
    from rich.text import Text

    text = escaped(str(item)) or '""'
    return Text(text if len(text) <= longest else f"{text[: longest - 3]}...", style=style)
