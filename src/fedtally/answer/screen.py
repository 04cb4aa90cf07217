"""The answer in a terminal: headings, tables and notes, as renderables of rich.

By default an answer fits one screen; its details are the whole account. Rich is imported inside the
functions: documents in JSON must not pay for it. Items are data of strangers, so control
characters, which could drive a terminal, are shown escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedtally.answer import amounts, sections
from fedtally.answer.estimates import Estimate, is_told_from_zero
from fedtally.answer.noise_floor import doubted
from fedtally.answer.tables import facts, heading, printable
from fedtally.base.text import escaped
from fedtally.domain import Unread

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

    from fedtally.answer.result import Result


LINES = 35  # of an answer of 20 items or fewer in 80 columns


_LINES_IF_NARROW = 50  # of an answer with notes in fewer columns


_LISTED = 20


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
    if not details:  # the line on names counts the others
        estimates = [e for e in estimates if not isinstance(e.item, Unread)]
    parts: list[RenderableType] = [heading(sections.counted.line(result))]
    if sections.counted.drawn_away(result.draw):
        parts.append(Text(sections.counted.drawn_away(result.draw), style="yellow"))
    if estimates or not (queried or every):
        parts += [Text(), sections.listed.top_table(result, estimates)]
    if queried:
        truth = result.true_frequencies([e.item for e in queried])
        parts += [
            Text(),
            heading("Items asked for"),
            Text(),
            sections.listed.table(
                queried, truth, ranked=False, **sections.listed.described(result)
            ),
        ]
        strangers = sections.listed.no_candidates(result.domain, [e.item for e in queried])
        parts += [strangers] if strangers else []
        parts += sections.listed.like_hashes(result, queried)
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
            more = f"{amounts.counted(hidden, 'more note')}, and " if hidden else ""
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
    private = Text(
        sections.privacy.line(result.plan, result.secure_sum), style="yellow" if is_marked else ""
    )
    sums = sections.trust.line(result.secure_sum, sections.counted.part_of_sum(result))
    return [
        ("Error", sections.error.line(result, [*listed, *named])),
        ("Privacy", private),
        *([("Sums", sums)] if sums else []),
        ("Upload", sections.cost.line(result.plan, result.secure_sum)),
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
    return f"{amounts.counted(unread, 'more string')} could not be read{_unread(result)}; {lists}"


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
        f", {some}told from 0, with {up_to}{amounts.percent(max(told))} of the {result.unit}: a"
        f" public list of words (--dictionary), or {more}, may name more"
    )


def noted(notes: Iterable[str]) -> list[tuple[str, RenderableType]]:
    """Return the rows of notes.

    >>> noted(["the sums are exact"])[0][0]
    'Note'
    """
    return [("Note", printable(note, "yellow", len(note))) for note in notes]


def _how(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate], charged: str
) -> list[tuple[str, RenderableType]]:
    """Return all rows on how the estimates were made: cost, privacy, sketch and certainty."""
    plan = result.plan
    heading, sketch = sections.cost.encoded(plan)
    shrunk = ", estimates shrunk for a small squared error" if result.objective == "l2" else ""
    rows = [
        *sections.cost.rows(plan, result.secure_sum),
        *sections.privacy.rows(plan, result.secure_sum),
        *([("Ledger", escaped(charged))] if charged else []),
        *sections.trust.rows(plan, result.secure_sum, sections.counted.part_of_sum(result)),
        *sections.counted.rows(result),
        (heading, f"{sketch}, {result.recovery} recovery{shrunk}"),
        *sections.error.sizing_rows(result.sizing),
        *sections.error.target_rows(plan),
        ("Error", sections.error.line(result, [*listed, *named])),
        *sections.error.rows(result, listed, named),
    ]
    if result.evaluation is not None:
        rows.append(("Errors", sections.error.evaluated(result.evaluation)))
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


def plain(renderable: RenderableType, columns: int = 100) -> str:
    r"""Return the text that a terminal would show, without colours.

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
