"""The answer in a terminal: headings, tables and notes, as objects that the library Rich draws.

By default an answer fits one screen; with details it shows everything. Rich is imported inside the
functions: JSON output must not load it. Items may be written by strangers. Control characters could
give commands to a terminal, so they are escaped.
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


LINES = 35  # the most lines of an answer with up to 20 items, if the terminal has 80 columns


_LINES_IF_NARROW = 50  # the most lines if there are fewer columns, once all hints are left out


_LISTED = 20  # the items for which `LINES` has room


# The fewest terminal columns for a long purpose beside its hint's command. With fewer columns,
# purposes stand below their commands.
_NARROWEST_PURPOSE = 24


def answer(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    details: bool = False,
    hints: Sequence[tuple[str, str]] = (),
    how: str = "--details",
    charged: str = "",
    again: bool = False,
) -> RenderableType:
    """Return a result as a terminal shows it: what was counted, the items, and how sure they are.

    Args:
        result: the result to show.
        estimates: the estimates of the top items.
        queried: the estimates of items that were asked for by name.
        details: whether to add how the estimates were made. If False, hashes without a name are
            left out, and there are at most `LINES` lines in 80 columns, unless the first alarm
            needs more. More than 20 items add lines, and so do queried items. If the terminal has
            fewer columns, notes may also add lines.
        hints: the next steps to try: pairs of a command or an option, and its purpose.
        how: the option or the command that shows the details.
        charged: the sentence with which a ledger confirmed the campaign's privacy cost; "": no
            ledger was charged, or it was not read.
        again: whether this is one more look at a saved result. It costs nothing, so without
            `details` the note that the run is in no ledger is left out.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3 + ["milk"], seed=1)
    >>> text = plain(answer(result, result.top(1)))
    >>> "75.00 %" in text, "no differential privacy" in text
    (True, True)
    """
    from rich.console import Group
    from rich.text import Text

    every = estimates = doubted(result, estimates)
    if not details:  # leave hashes without a name out of the list: the row "Names" counts them
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
    notes, alarms = result.cautions, len(result.alarms)
    if again:
        notes = tuple(note for note in notes if not note.startswith(sections.privacy.IN_NO_LEDGER))
    return Screen(Group(*parts, Text()), rows, notes, hints, more, how, alarms)


def more_lines(estimates: Sequence[Estimate], queried: Sequence[Estimate]) -> int:
    """Return how many lines an answer may have beyond `LINES`, for more items and queried items.

    >>> more_lines([], [])
    0
    """
    return max(0, len(estimates) - _LISTED) + (len(queried) + 5 if queried else 0)


@dataclass(frozen=True)
class Screen:
    """An answer on one screen. It shows as many notes as fit, and says how many it hides.

    Attributes:
        top: the heading and the list of items.
        rows: the facts below the list, as (name, text).
        notes: the notes that a reader should know, the most important first.
        hints: the next steps to try: pairs of a command or an option, and its purpose.
        more: the number of lines that the answer may have beyond `LINES` (35), see `more_lines`.
        how: the option or the command that shows all details.
        alarms: how many of the notes are alarms. Alarms come first, and mean that the whole answer
            may be wrong. The first alarm is always shown, even if there are then too many lines.
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
        # The ways to show less, in the order in which they are tried: leave out hints one by one,
        # the last first, and then also notes.
        sizes = [(len(notes), number) for number in range(len(self.hints), -1, -1)]
        fewest = min(self.alarms, 1)
        fewer = [(number, 0) for number in range(len(notes) - 1, fewest - 1, -1)]
        for shown, hints in [*sizes, *fewer]:
            hidden = len(notes) - shown
            more = f"{amounts.counted(hidden, 'more note')}, and " if hidden else ""
            last = [(self.how, f"{more}how the answer was made"), *self.hints[:hints]]
            view = facts([*self.rows, *notes[:shown], *next_rows(last)])
            # A narrow terminal wraps lines, so `LINES` lines would show hardly any notes. It may
            # show more lines, but only once all hints are left out.
            most = LINES if hints or options.max_width >= 80 else _LINES_IF_NARROW
            if taken + len(console.render_lines(view, options, pad=False)) <= most:
                break
        yield view


def next_rows(hints: Sequence[tuple[str, str]]) -> list[tuple[str, RenderableType]]:
    """Return a list with the row "Try", which shows the next steps; [] if there are no hints.

    Args:
        hints: pairs of a command or an option, and its purpose.
    """
    return [("Try", _Hints(hints))] if hints else []


@dataclass(frozen=True)
class _Hints:
    """Draws commands with their purposes beside them; on a narrow terminal, purposes stand below.

    No text is cut. `hints` are pairs of a command or an option, and its purpose.
    """

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
        grid.add_column(overflow="fold")  # a long purpose continues on the next line of its column
        for hint in self.hints:
            grid.add_row(*hint)
        yield grid


def _short(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, RenderableType]]:
    """Return the rows of facts below the list on one screen, as (name, text).

    They are "Error", "Privacy", "Sums" (only if a protocol made the sums) and "Upload".

    Args:
        result: the result to show.
        listed: the estimates of the listed top items.
        named: the estimates of items that were asked for by name.
    """
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
    """Return in words how many strings of an open domain stand out but could not be read.

    If all could be read, the text says so.

    Args:
        result: the whole result.
        listed: the estimates of the top items, including hashes without a name.
        how: the option or the command that shows these hashes, such as "--details". If the list is
            too short for all of them, the text adds `--top` to it.
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
    """Return a text on the strings that stand out but whose names could not be read.

    It says how large the largest of their shares is, and what may help to name them. If none of
    these strings can be told from 0, the text says this instead. Returns "" if there are no limits.
    """
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
    """Return a row ("Note", text in yellow) for each note; control characters are escaped.

    >>> noted(["the sums are exact"])[0][0]
    'Note'
    """
    return [("Note", printable(note, "yellow", len(note))) for note in notes]


def _how(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate], charged: str
) -> list[tuple[str, RenderableType]]:
    """Return the rows of `--details`, as (name, text): cost, privacy, sums, errors and times.

    Args:
        result: the result to show.
        listed: the estimates of the top items.
        named: the estimates of items that were asked for by name.
        charged: the sentence with which a ledger confirmed the campaign's privacy cost; "": no
            ledger was charged, or it was not read.
    """
    plan = result.plan
    heading, sketch = sections.cost.encoded(plan)
    shrunk = ", estimates shrunk for a small squared error" if result.objective == "l2" else ""
    rows = [
        *sections.cost.rows(plan, result.secure_sum),
        *sections.privacy.rows(plan, result.secure_sum),
        *((name, escaped(said)) for name, said in sections.privacy.ledger_rows(result, charged)),
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
    r"""Return the text that a terminal with this number of columns would show, without colours.

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
