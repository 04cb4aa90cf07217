"""Tables that fit any terminal: long names are shortened in the middle, numbers never.

If there is no room for all columns, the least important are left out, and a line below says so.
Rich is imported inside the functions: JSON output must not load it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedtally.base.text import escaped

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

_SHORTEST = 8  # terminal columns to which a name may be shortened
_WISHED = 24  # optional columns are left out if names would get fewer terminal columns than this
_GAP = 2  # blanks between two columns of a table
_BAR = (6, 20)  # the shortest and the longest bar, in terminal columns
_LONGEST_SHOWN = 300  # characters of a name in a table: a longer one is cut off


@dataclass(frozen=True)
class Column:
    """A column of a table, other than the column of names.

    Attributes:
        name: the heading.
        cells: the text of each row.
        rank: if there is no room, columns are left out in the order of their ranks, 1 first.
            Columns of the same rank are left out together. 0: the column is never left out.
        wishes: whether the column is less important than readable names. Then it is left out if
            names would be cut to fewer than `_WISHED` characters. If False, the column is left out
            only if names would be cut to fewer than `_SHORTEST` characters.
        group: a heading above this column and neighbouring columns with the same `group`; "": no
            such heading.
        justify: the alignment; "left" for words.
    """

    name: str
    cells: Sequence[str]
    rank: int = 0
    wishes: bool = False
    group: str = ""
    justify: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class FittedTable:
    """A table of names and numbers that fits any terminal.

    Attributes:
        heading: the heading of the column of names.
        names: the name of each row.
        after: the columns to the right of the names.
        before: the columns to the left of the names.
        noun: the plural noun for the named things, such as items.
        folds: whether long names are wrapped onto several lines. Otherwise they are shortened.
        shares: the number that each row's bar shows. The bars stand to the right of the first
            column in `after`. (): no bars.
        styles: the style of each row; (): rows have no style.
        line: a row's index, and a text that is shown as a line above this row; None: no line.
        note: a text below the rows; None: no text.
    """

    heading: str
    names: Sequence[Text]
    after: Sequence[Column]
    before: Sequence[Column] = ()
    noun: str = "items"
    folds: bool = False
    shares: Sequence[float] = ()
    styles: Sequence[str] = ()
    line: tuple[int, Text] | None = None
    note: Text | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.cells import cell_len
        from rich.segment import Segment

        most = options.max_width - _last_padding(console)
        longest = max(cell_len(text) for text in [self.heading, *(n.plain for n in self.names)])
        gone = self._gone(most, longest)
        before, after = (
            [column for column in side if column.rank not in gone]
            for side in (self.before, self.after)
        )
        room = most - _taken([*before, *after])
        width = max(1, min(longest, room))
        has_bars = max(self.shares, default=0.0) > 0 and not options.ascii_only
        bar = min(_BAR[1], room - width - _GAP) if has_bars else 0
        bar = bar if bar >= _BAR[0] else 0
        lines = console.render_lines(self._table(before, after, width, bar), options, pad=False)
        first = len(lines) - len(self.names)  # the line of the first row
        for place, line in enumerate(lines):
            if self.line is not None and place - first == self.line[0]:
                yield self.line[1]
            yield from line
            yield Segment.line()
        if self.note is not None:
            yield self.note
        is_elided = longest > width and not self.folds
        if said := self._said(gone, has_bars and not bar, is_elided, options.max_width):
            yield said

    def _gone(self, most: int, longest: int) -> set[int]:
        """Return the ranks (`Column.rank`) of the columns to leave out, so that names have room.

        Args:
            most: the width for the whole table, in characters of the terminal.
            longest: the width of the longest name, in characters of the terminal.
        """
        columns, gone = [*self.before, *self.after], set[int]()
        wishes = {column.rank: column.wishes for column in columns if column.rank}
        for rank in sorted(wishes):
            least = min(longest, _WISHED if wishes[rank] else _SHORTEST)
            kept = [column for column in columns if column.rank not in gone]
            if _taken(kept) + least > most:
                gone.add(rank)
        return gone

    def _table(
        self, before: Sequence[Column], after: Sequence[Column], width: int, bar: int
    ) -> Table:
        from rich.bar import Bar

        table, longest = new_table(), max(self.shares, default=1.0)
        table.padding = (0, _GAP - 1, 0, 0)  # the box adds a blank between columns
        for column, head in zip(before, _heads(before), strict=True):
            table.add_column(head, justify=column.justify, style="dim", no_wrap=True)
        table.add_column(
            printable(self.heading), style="bold", no_wrap=not self.folds, min_width=width
        )
        for place, (column, head) in enumerate(zip(after, _heads(after), strict=True)):
            table.add_column(
                head,
                justify=column.justify,
                no_wrap=True,
                vertical="bottom",
                min_width=_width(head, column),
            )
            if bar and not place:
                table.add_column("", no_wrap=True, width=bar)
        for row, name in enumerate(self.names):
            cells: list[RenderableType] = [column.cells[row] for column in before]
            cells.append(name if self.folds else elided(name, width))
            for place, column in enumerate(after):
                cells.append(column.cells[row])
                if bar and not place:
                    # Pass the share divided by the longest. If Rich divided, rounding could make
                    # the longest bar shorter by 1/8 of a cell.
                    part = max(0.0, self.shares[row] / longest)
                    cells.append(Bar(1.0, 0, part, width=bar))
            table.add_row(*cells, style=self.styles[row] if self.styles else None)
        return table

    def _said(self, gone: set[int], lacks_bars: bool, is_elided: bool, columns: int) -> Text | None:
        """Return the line that says what is not shown; None if everything is shown.

        Args:
            gone: the ranks (`Column.rank`) of the columns that are left out.
            lacks_bars: whether bars are left out.
            is_elided: whether names are shortened.
            columns: the width of the terminal, in characters.
        """
        from rich.text import Text

        everything = [*self.before, *self.after]
        kept = {column.group for column in everything if column.rank not in gone}
        names = [
            f"{column.group} {column.name}".strip().replace("\n", " ")
            if column.group in kept or not column.group
            else column.group
            for column in sorted(everything, key=lambda column: column.rank)
            if column.rank in gone
        ]
        names += ["bars"] * lacks_bars
        said = [f"without {', '.join(dict.fromkeys(names))}"] * bool(names)
        said += [f"{self.noun} shortened"] * is_elided
        if not said:
            return None
        return Text(f"{columns} columns: {', '.join(said)}; --json has all", style="dim")


def _heads(columns: Sequence[Column]) -> list[str]:
    """Return the heading of each column: of one line, or of two lines for a column of a group.

    The first of two lines is the heading of the group for the group's first column, and "" for its
    other columns.
    """
    heads, before = [], ""
    for column in columns:
        above = column.group if column.group != before else ""
        heads.append(f"{above}\n{column.name}" if column.group else column.name)
        before = column.group
    return heads


def _width(head: str, column: Column) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, [*head.split("\n"), *column.cells]))


def _taken(columns: Sequence[Column]) -> int:
    """Return the width that these columns need, in characters of the terminal, with their gaps."""
    return sum(_width(*pair) + _GAP for pair in zip(_heads(columns), columns, strict=True))


def elided(label: Text, columns: int) -> Text:
    """Return a label of at most `columns` characters of the terminal, shortened in the middle.

    A label that fits is returned unchanged. Of a longer label, both ends are kept, since items
    often differ at their ends.

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


def printable(item: str | int, style: str = "", longest: int = _LONGEST_SHOWN) -> Text:
    r"""Return an item as a text that cannot give commands to a terminal.

    Control characters are escaped, and Rich does not interpret markup in it. An empty item is shown
    as two quotes.

    Args:
        item: the item.
        style: the style of the text, in Rich's notation.
        longest: the most characters to show. A longer text is cut, and ends in "...".

    >>> printable("tab\there\x1b[31m").plain
    'tab\\there\\x1b[31m'
    """
    from rich.text import Text

    text = escaped(str(item)) or '""'
    return Text(text if len(text) <= longest else f"{text[: longest - 3]}...", style=style)


def new_table() -> Table:
    """Return an empty Rich table in the style that all commands share.

    >>> new_table().show_edge
    False
    """
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="dim")


def _last_padding(console: Console) -> int:
    """Return how many characters Rich counts as padding after the last column of a table.

    Rich before version 15 counts this padding although it does not write it.
    """
    from rich.measure import Measurement

    table = new_table()
    table.padding = (0, _GAP - 1, 0, 0)
    table.add_column(min_width=1)
    return Measurement.get(console, console.options, table).minimum - 1


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    r"""Return a Rich table of two columns, names and texts, from rows of (name, text).

    Control characters in names and in plain texts are escaped.

    >>> from fedtally.answer.screen import plain
    >>> print(plain(facts([("Upload", "32.0 kB\x1b[2K")])).strip())
    Upload  32.0 kB\x1b[2K
    """
    from rich.table import Table

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in rows:
        grid.add_row(escaped(name), escaped(text) if isinstance(text, str) else text)
    return grid


def heading(text: str) -> RenderableType:
    """Return a bold line to stand above a table; control characters are escaped.

    >>> heading("Answer").plain
    'Answer'
    """
    from rich.text import Text

    return Text(escaped(text), style="bold")
