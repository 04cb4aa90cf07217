"""The screen: answers on stdout; notes, errors and progress on stderr."""

from __future__ import annotations

import json
import os
import shlex
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from fedtally.base.text import escaped, in_number

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Progress as Bars
    from rich.progress import ProgressColumn, Task, TaskID
    from rich.segment import Segment

_STAGES = {
    "prepare": "preparing",
    "read": "reading",
    "encode": "encoding",
    "sum": "summing securely",
    "recover": "decoding",
    "names": "reading names",
    "decode": "decoding",
    "simulate": "simulating",
    "audit": "auditing",
    "plan": "planning",
    "curve": "predicting errors",
    "draw": "drawing",
}
_NOTE_COLUMNS, _FEWEST_COLUMNS = 80, 20  # a terminal of a few columns is not believed
_ERROR_INDENT = 2
# Seconds until the first line on what takes long, until that of another stage, and between lines.
SOON, LATER, EVERY = 0.8, 2.0, 10.0
_UNITS = {
    "encode": "rounds",
    "curve": "sizes",
    "sum": "clients",
    "decode": "items",
    "simulate": "campaigns",
    "audit": "campaigns",
}
_PASSES = ("recover", "names")  # they go through the same items several times


def show(renderable: RenderableType) -> None:
    """Print a rich renderable on stdout.

    Items are printed without markup. Nothing that is in a text drives the terminal, whoever made
    the renderable of it. Where stdout is no terminal, trailing blanks are left out: they would be
    noise in a file.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    if console.is_terminal:
        console.print(_Harmless(renderable))
        return
    with console.capture() as capture:
        console.print(_Harmless(renderable))
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


class _Harmless:
    """A renderable whose control characters are escaped, but for the ends of its lines."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for text, style, _ in console.render(self._renderable, options):
            yield Segment("\n".join(map(escaped, text.split("\n"))), style)


def show_json(document: dict[str, Any]) -> None:
    """Print one JSON document on stdout."""
    click.echo(_json(document, indent=2))


def _json(document: dict[str, Any], indent: int | None = None) -> str:
    """Return a document as JSON.

    What could drive a terminal is escaped, and so are the odd bytes of a file's name that is no
    UTF-8: a reader of JSON gets them as they were.
    """
    lines = json.dumps(document, indent=indent, ensure_ascii=False).split("\n")
    return "\n".join(line if line.isprintable() else _harmless_json(line) for line in lines)


def _harmless_json(line: str) -> str:
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def complain(kind: str, message: str, as_json: bool) -> None:
    """Print an error on stderr: in red where that is a terminal, or as one JSON document.

    A terminal would break lines within words: there the lines end between words. Elsewhere an error
    is one line, as with git and cargo: a script greps for it, and a log has one line an event.
    """
    text = f"error: {escaped(' '.join(message.split()))}"
    if as_json:
        text = _json({"schema": "fedtally-error/1", "error": {"type": kind, "message": message}})
    elif sys.stderr.isatty():
        text = "\n".join(_folded(text, _columns(), _ERROR_INDENT))
        text = text if os.environ.get("NO_COLOR") else click.style(text, fg="red")
    click.echo(text, err=True)


def _columns() -> int:
    """Return the columns of the terminal that stderr is; 80 where it does not say."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        columns = 0
    # a terminal that was never told its size has 0 columns
    return max(_FEWEST_COLUMNS, columns or _NOTE_COLUMNS)


def _folded(text: str, columns: int, indent: int) -> list[str]:
    """Return a text in lines of at most `columns` columns, the later ones indented."""
    folds = textwrap.TextWrapper(
        columns,
        subsequent_indent=" " * indent,
        # digits and names are copied: they stay whole, and what drives a terminal is escaped later
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return folds.wrap(text)


def show_hex(digits: str, what: str) -> None:
    """Print hexadecimal digits on stdout, for scripts, and on stderr what they are."""
    note(f"on stdout: {what}")
    click.echo(digits)


def note(message: str, quiet: bool = False) -> None:
    """Print a note on stderr, unless quiet."""
    if not quiet:
        click.echo(escaped(message), err=True)


def note_folded(message: str, indent: int, quiet: bool = False) -> None:
    """Print a note in lines of at most 80 columns, the later ones indented, unless quiet."""
    for line in _folded(message, _NOTE_COLUMNS, indent):
        note(line, quiet)


def say(message: str) -> None:
    """Print a line on stdout."""
    click.echo(escaped(message))


def show_script(script: str) -> None:
    """Print text of this program's own on stdout, with its line ends and quotes as they are."""
    click.echo(script)


def note_of_cells(changed: int, quiet: bool = False) -> None:
    """Print that cells of a CSV file are not written as they are, if some are not."""
    if changed:
        number = in_number(changed, "one cell", "{} cells")
        note(
            f"note: {number} could run in a spreadsheet or turn its text, and got an apostrophe or"
            " an escape: a .parquet file or --json has them as they are",
            quiet,
        )


# Their values stay out of a report: a ledger's address may hold a password, and who knows the seed
# knows the draws, those of noise too.
_HIDDEN = ("--ledger", "--seed")


def command_line(names_items: bool = True) -> str:
    """Return the command of this process for a reader to whom it is handed.

    It has the base names of files, since a folder may name a person, and neither seed nor ledger.

    Args:
        names_items: whether it has the items that somebody asked for, which the answer holds, too.
    """
    hidden = _HIDDEN if names_items else (*_HIDDEN, "--query")
    words, before = ["fedtally"], ""
    for word in sys.argv[1:]:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        if before in hidden or (equals and name in hidden):
            value = "..."
        # A title and an item that somebody asks for are no files, though they may have a slash.
        elif {before, name}.isdisjoint(("--query", "--title")) and "://" not in value:
            value = os.path.basename(value) or value
        before = word
        words.append(f"{name}{equals}{value}" if equals else value if value else word)
    return escaped(shlex.join(words))


class Progress:
    """Progress bars for the stages of a run, on stderr.

    Where stderr is no terminal, plain lines say what takes long: the first within a second, and
    then one each ten seconds.
    """

    def __init__(self, quiet: bool = False) -> None:
        is_terminal = sys.stderr.isatty()
        self._active = not quiet and is_terminal
        self._lines = None if quiet or is_terminal or _has_json_errors() else _Lines()
        self._bars: Bars | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Progress:
        if self._active:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (
                "{task.description}",
                BarColumn(),
                TextColumn("{task.fields[amount]}"),
                _time_column(),
            )
            self._bars = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
        if self._lines is not None:  # the first report of a stage may come late
            self._lines.look("prepare", 0, None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()
        if self._lines is not None:
            self._lines.stop()

    def __call__(self, stage: str, done: int = 0, total: int | None = None) -> None:
        """Show how far a stage is. Engines call this.

        A stage without a total, which nobody knows, shows how long it has taken.
        """
        if self._lines is not None:
            self._lines.look(stage, done, total)
        if self._bars is None:
            return
        amount = _amount(stage, done, total)
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(
                _STAGES.get(stage, stage), total=total, amount=amount
            )
        self._bars.update(self._tasks[stage], completed=done, amount=amount)


class _Lines:
    """Plain lines on stderr: what a stage does, once it has taken long, and how far it is.

    A stage that takes long gets a first line, and then one each `EVERY` seconds.

    Args:
        clock: returns the time, in seconds from any moment on.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = clock() + SOON
        self._has_said = False
        self._over: threading.Event | None = None
        self._thread: threading.Thread | None = None
        self._stage, self._began = "", 0.0
        self._done: int = 0
        self._total: int | None = None

    def look(self, stage: str, done: int, total: int | None) -> None:
        """Note how far a stage is. A new one gets its own lines, if it takes long."""
        self._done, self._total = done, total
        if stage == self._stage:
            return
        self.stop()
        self._stage, self._began = stage, self._clock()
        wait = LATER
        if not self._has_said:  # the first line comes within a second or so of the whole work
            left = self._until - self._began
            wait = max(left, min(SOON / 3, left + SOON / 3))
        says = [self.first, self.later]
        if wait <= 0:  # short stages took turns, and none of them was worth a line
            self._say(says.pop(0)())
            wait = EVERY
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._over, wait, says))
        self._thread.daemon = True
        self._thread.start()

    def stop(self) -> None:
        """Say nothing more of the stage: it is done."""
        if self._over is not None and self._thread is not None:
            self._over.set()
            self._thread.join()
            self._over = self._thread = None

    def first(self) -> str:
        """Return the first line of the stage: what it has to do, and how far it is."""
        name, share = _STAGES.get(self._stage, self._stage), self._share()
        return f"{name}{_of_all(self._stage, self._total)}{share and f', {share}'}{self._left()}"

    def later(self) -> str:
        """Return a line of a stage that had its first one: how far it is now."""
        name = _STAGES.get(self._stage, self._stage)
        if share := self._share():
            return f"{name} {share}{self._left()}"
        return f"{name}, {self._clock() - self._began:,.0f} s so far"

    def _run(self, over: threading.Event, wait: float, says: list[Callable[[], str]]) -> None:
        while not over.wait(wait):
            self._say((says.pop(0) if len(says) > 1 else says[0])())
            wait = EVERY

    def _say(self, line: str) -> None:
        self._has_said = True
        note(line)

    def _share(self) -> str:
        """Return the share of the stage that is done, in percent; "" where it is not known."""
        return f"{100 * self._done // self._total} %" if self._done and self._total else ""

    def _left(self) -> str:
        if self._stage in _PASSES or not (self._done and self._total):  # passes are of any number
            return ""
        taken = self._clock() - self._began
        left = taken * (self._total - self._done) / self._done
        return f", about {left:,.0f} s" if left >= 1 else ""


def _of_all(stage: str, total: int | None) -> str:
    """Return how much a stage has to do, with a blank before it; "" where nobody counts it."""
    if stage == "recover":
        return ": all candidates are looked at several times"
    if total is None:
        return ""
    if stage == "read":
        return f" {total / 1e6:,.1f} MB"
    return f" {total:,} {_UNITS[stage]}" if stage in _UNITS else ""


def _has_json_errors() -> bool:
    """Return whether stderr may get a document in JSON, which no line may stand before."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("as_json"))


def _time_column() -> ProgressColumn:
    """Return a column with the time that is left, or where it is unknown the time so far."""
    from rich.progress import TimeRemainingColumn
    from rich.text import Text

    class Left(TimeRemainingColumn):
        def render(self, task: Task) -> Text:
            if task.total is not None:
                return super().render(task)
            return Text(f"{task.elapsed or 0:.0f} s so far", style="progress.remaining")

    return Left(compact=True)


def _amount(stage: str, done: int, total: int | None) -> str:
    if stage in _PASSES:
        return f"{done / total:.0%}" if total else ""
    if stage not in _UNITS and stage != "read":
        return ""
    if stage == "read":
        return " of ".join(f"{part / 1e6:,.1f} MB" for part in (done, total) if part is not None)
    return (
        " of ".join(f"{part:,}" for part in (done, total) if part is not None) + f" {_UNITS[stage]}"
    )


def check_standard_input(source: str) -> None:
    """Raise InvalidInputError if `source` is ``-`` and standard input is closed."""
    from fedtally.errors import InvalidInputError

    if source == "-" and sys.stdin is None:
        raise InvalidInputError("standard input is closed; give a file, or pipe something in")


def check_files(paths: Iterable[str | None], inputs: Iterable[str | None] = ()) -> None:
    """Refuse, before a long run, files that it could not write or must not overwrite.

    Args:
        paths: the files that the run writes; None: not asked for.
        inputs: the files that it reads.

    Raises:
        InvalidInputError: a file has no folder, or the folder is read-only; or the file is an input
            of the run, or is named twice.
    """
    from fedtally.errors import InvalidInputError

    named = [name for name in inputs if name is not None]
    # real paths: two names may be one file
    taken = {os.path.realpath(name): "read by this run" for name in named if os.path.exists(name)}
    for path in (path for path in paths if path is not None):
        if not path:
            raise InvalidInputError("a file to be written has an empty name; name it")
        folder = os.path.dirname(path)
        if folder and not os.path.isdir(folder):
            raise InvalidInputError(
                f"cannot write {path}: there is no folder {folder}; create it first"
            )
        if not os.access(folder or ".", os.W_OK):
            raise InvalidInputError(
                f"cannot write {path}: the folder does not allow it; choose another"
            )
        # a shell may have opened the same file for reading: cmd - --output words.txt < words.txt
        if "-" in named and _is_standard_input(path):
            raise InvalidInputError(
                f"cannot write {path}: it is read by this run; name another file"
            )
        if os.path.realpath(path) in taken:
            raise InvalidInputError(
                f"cannot write {path}: it is {taken[os.path.realpath(path)]}; name another file"
            )
        taken[os.path.realpath(path)] = "written already"


def _is_standard_input(path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(0), os.stat(path))
    except OSError:  # closed, or no such file yet
        return False
