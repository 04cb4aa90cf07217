"""Print to the terminal: answers on stdout; notes, errors and progress on stderr."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

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
# In columns: the width of notes; the smallest width to which errors are wrapped, even if the
# terminal is narrower.
_NOTE_COLUMNS, _FEWEST_COLUMNS = 80, 20
_ERROR_INDENT = 2
# In seconds: SOON from the start of a run to its first progress line; LATER from the start of a
# later stage to its first line; EVERY between two lines of a stage.
SOON, LATER, EVERY = 0.8, 2.0, 10.0
_UNITS = {
    "encode": "rounds",
    "curve": "sizes",
    "sum": "clients",
    "decode": "items",
    "simulate": "campaigns",
    "audit": "campaigns",
}
_PASSES = ("recover", "names")  # stages that repeat their work: their progress is in percent


def show(renderable: RenderableType) -> None:
    """Print a renderable of the package `rich` on stdout.

    Control characters in its texts are escaped, and square brackets are not read as rich's markup.
    Otherwise an item of a client could control the terminal. If stdout is not a terminal, blanks at
    the ends of lines are left out.
    """
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    # the width of a terminal may be 0 (not known), and so may COLUMNS
    console.width = max(_FEWEST_COLUMNS, console.width or _NOTE_COLUMNS)
    if console.is_terminal:
        console.print(_Harmless(renderable))
        return
    with console.capture() as capture:
        console.print(_Harmless(renderable))
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


class _Harmless:
    """A rich renderable whose control characters are escaped, except line ends."""

    def __init__(self, renderable: RenderableType) -> None:
        self._renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        from rich.segment import Segment

        for text, style, _ in console.render(self._renderable, options):
            yield Segment("\n".join(map(escaped, text.split("\n"))), style)


def show_json(document: dict[str, Any]) -> None:
    """Print a dict as one JSON document on stdout."""
    click.echo(_json(document, indent=2))


def _json(document: dict[str, Any], indent: int | None = None) -> str:
    r"""Return a dict as JSON.

    Characters that could control a terminal are escaped as `\uXXXX`, and also the bytes of file
    names that are not valid UTF-8. A JSON parser turns them back.

    Args:
        document: the dict.
        indent: the blanks for each level of nesting; None: one line.
    """
    lines = json.dumps(document, indent=indent, ensure_ascii=False).split("\n")
    return "\n".join(line if line.isprintable() else _harmless_json(line) for line in lines)


def _harmless_json(line: str) -> str:
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)


def complain(kind: str, message: str, as_json: bool) -> None:
    """Print an error on stderr, as text or as one JSON document.

    On a terminal the text is wrapped between words, and red unless NO_COLOR is set. Elsewhere it is
    one line, so that scripts can search for it and a log has one line for each error.

    Args:
        kind: the name of the error's class, which only the JSON document has.
        message: the message.
        as_json: whether to print a JSON document instead of text.
    """
    text = f"error: {escaped(' '.join(message.split()))}"
    if as_json:
        text = _json({"schema": "fedtally-error/1", "error": {"type": kind, "message": message}})
    elif sys.stderr.isatty():
        text = "\n".join(_folded(text, _columns(), _ERROR_INDENT))
        text = text if os.environ.get("NO_COLOR") else click.style(text, fg="red")
    click.echo(text, err=True)


def _columns() -> int:
    """Return the width, in columns, to which errors are wrapped.

    It is the width of the terminal at stderr, but at least 20; 80 if the width is unknown.
    """
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        columns = 0
    # `columns` is also 0 for a terminal whose size was never set.
    return max(_FEWEST_COLUMNS, columns or _NOTE_COLUMNS)


def _folded(text: str, columns: int, indent: int) -> list[str]:
    """Wrap a text between words, and return its lines.

    A word that is longer than a line is not broken.

    Args:
        text: the text.
        columns: the width of a line in columns, with its indentation.
        indent: the columns by which all lines but the first are indented.
    """
    folds = textwrap.TextWrapper(
        columns,
        subsequent_indent=" " * indent,
        # Users copy long digits and names, so a word is never split.
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return folds.wrap(text)


def show_hex(digits: str, what: str) -> None:
    """Print hexadecimal digits alone on stdout, so that scripts can read them.

    Args:
        digits: the digits.
        what: what the digits are, printed on stderr.
    """
    note(f"on stdout: {what}")
    click.echo(digits)


def note(message: str, quiet: bool = False) -> None:
    """Print a line on stderr, unless `quiet`; control characters are escaped."""
    if not quiet:
        click.echo(escaped(message), err=True)


def note_folded(message: str, indent: int, quiet: bool = False) -> None:
    """Print a text on stderr, wrapped at 80 columns, unless `quiet`.

    Args:
        message: the text.
        indent: the columns by which all lines but the first are indented.
        quiet: whether nothing is printed.
    """
    for line in _folded(message, _NOTE_COLUMNS, indent):
        note(line, quiet)


def note_cautions(cautions: Iterable[str], quiet: bool) -> None:
    """Print each warning on stderr after "note: ", wrapped at 80 columns, unless `quiet`."""
    for caution in cautions:
        note_folded(f"note: {caution}", 6, quiet)


def say(message: str) -> None:
    """Print a line on stdout; control characters are escaped."""
    click.echo(escaped(message))


def show_script(script: str) -> None:
    """Print a script that this program made on stdout; nothing is escaped, so that it works."""
    click.echo(script)


def note_of_cells(changed: int, quiet: bool = False) -> None:
    """Print a note on cells of a CSV file that were altered so that a spreadsheet runs no formula.

    Args:
        changed: the number of altered cells; 0: nothing is printed.
        quiet: whether nothing is printed.
    """
    if changed:
        number = in_number(changed, "one cell", "{} cells")
        note(
            f"note: {number} could run in a spreadsheet or turn its text, and got an apostrophe or"
            " an escape: a .parquet file or --json has them as they are",
            quiet,
        )


# Options whose values a report must not show. The address of a ledger may contain a password.
# Whoever knows the seed can compute all random draws, also the noise.
_HIDDEN = ("--ledger", "--seed")
_OF_TABLES = ("--domain", "--dictionary")  # their values may be FILE:COL, and a column is no path
_SOCKET = "unix:"  # addresses that start with it end with a path


def command_line(names_items: bool = True) -> str:
    """Return the command line of this process in a form that a report may show.

    Of a path, only the part after the last slash is shown, since a folder may name a person. Other
    values stay whole, such as items, columns, titles, and addresses with "://". The values of
    --seed and --ledger are replaced by "...".

    Args:
        names_items: whether the values of --query, which are items, are shown; if not, they are
            replaced by "...".
    """
    hidden = _HIDDEN if names_items else (*_HIDDEN, "--query")
    words = ["fedtally"]
    for start, value, option, is_path in map(_Reader().read, sys.argv[1:]):
        shown = value
        if option in hidden:
            shown = "..."
        elif (is_path or value.startswith(_SOCKET)) and "://" not in value:
            shown = _without_folder(value, option)
        words.append(start + shown)
    return escaped(shlex.join(words))


def _without_folder(path: str, option: str) -> str:
    """Return the part of a path after its last slash, with the column that it may name.

    Args:
        path: the path; for some options FILE:COL, a table's column.
        option: the option whose value the path is; "": it is an argument.
    """
    column = None
    if option in _OF_TABLES:
        from fedtally.sources.lists import list_path

        file, name = list_path(path)
        # Only if there is such a file is it certain that what follows the colon is no folder.
        if os.path.exists(file):
            path, column = file, name
    shown = os.path.basename(path.rstrip("/")) or path
    return shown if column is None else f"{shown}:{column}"


class _Word(NamedTuple):
    """A word of a command line.

    Attributes:
        start: the part before the value, such as "--report="; "": the whole word is a value.
        value: the rest of the word, a value; "": the word has no value, as "--quiet".
        option: the option that the value is for; "": the value is for no option.
        is_path: whether the value is a path, or may be one.
    """

    start: str
    value: str = ""
    option: str = ""
    is_path: bool = False


class _Reader:
    """Reads the words of a command line, after the name of the program, one after the other.

    Which values are paths follows from the types of click's parameters. These types are unknown for
    an unknown command or option, and if no command of click runs. Then every value may be a path.
    """

    def __init__(self) -> None:
        # Not imported from `app`, which imports this module.
        context = click.get_current_context(silent=True)
        self._command = None if context is None else context.find_root().command
        self._arguments: list[click.Parameter] = []
        self._options: dict[str, click.Parameter] = {}
        self._waiting = ""  # the option whose value is the next word; "": no option
        self._may_be_option = True

    def read(self, word: str) -> _Word:
        """Read the next word."""
        # An unknown option may be a flag, and then the next word may be an option.
        if self._waiting in self._options or (self._waiting and not word.startswith("-")):
            option, self._waiting = self._waiting, ""
            return _Word("", word, option, _is_path(self._options.get(option)))
        if len(word) > 1 and word.startswith("-") and self._may_be_option:
            return self._read_option(word)
        if isinstance(self._command, click.Group):
            self._enter(self._command.commands.get(word))
            return _Word("", word, is_path=self._command is None)
        # Only the last argument of a command can have several values.
        argument = self._arguments[0] if self._arguments else None
        self._arguments = self._arguments[1:] or self._arguments
        return _Word("", word, is_path=_is_path(argument))

    def _read_option(self, word: str) -> _Word:
        self._may_be_option = word != "--"
        name, equals, value = word.partition("=")
        if not word.startswith("--"):  # the value may follow at once, as in -ofile
            name, equals, value = word[:2], "", word[2:]
        option = self._options.get(name)
        if equals or value:
            return _Word(name + equals, value, name, _is_path(option))
        is_flag = not self._may_be_option or getattr(option, "is_flag", False)
        self._waiting = "" if is_flag else name
        return _Word(word)

    def _enter(self, command: click.Command | None) -> None:
        """Read the next words as the words of a command; None: the command is unknown."""
        self._command = command
        known = [] if command is None else command.params
        self._arguments = [one for one in known if isinstance(one, click.Argument)]
        self._options = {name: one for one in known for name in (*one.opts, *one.secondary_opts)}


def _is_path(parameter: click.Parameter | None) -> bool:
    return parameter is None or isinstance(parameter.type, click.Path)


class Progress:
    """Show the progress of a run's stages on stderr: bars on a terminal, plain lines elsewhere.

    The first plain line comes about a second after the start of the run, so a shorter run prints no
    line. A later stage has its first line after two seconds. Every stage has a further line every
    ten seconds. Use it in a `with` block, and call it for each step of the work.

    Args:
        quiet: whether nothing is shown. Plain lines are also left out if errors are printed as
            JSON.
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
        if self._lines is not None:  # otherwise nothing would be shown until the first stage begins
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
        """Show the progress of a stage; the code that does the work calls this.

        Args:
            stage: the name of the stage, a key of `_STAGES`.
            done: the number of units (rounds, items, bytes, ...) that are done.
            total: the number of all units; None: unknown, and the elapsed time is shown instead.
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
    """Print plain progress lines on stderr, from a thread, about stages that take long.

    Args:
        clock: returns a monotonic time in seconds.
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
        """Store the progress of a stage, which the next line will show.

        If the stage is a new one, the lines about the earlier stage end.

        Args:
            stage: the name of the stage.
            done: the number of units that are done.
            total: the number of all units; None: unknown.
        """
        self._done, self._total = done, total
        if stage == self._stage:
            return
        self.stop()
        self._stage, self._began = stage, self._clock()
        wait = LATER
        # Before the first line of the run, wait until `SOON` seconds after the start of the run.
        # Near that time, a stage that has just begun gets up to a third of `SOON` more, so that the
        # line does not name a stage that ends at once.
        if not self._has_said:
            left = self._until - self._began
            wait = max(left, min(SOON / 3, left + SOON / 3))
        says = [self.first, self.later]
        if wait <= 0:  # short stages alone have used up the time: print a line at once
            self._say(says.pop(0)())
            wait = EVERY
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._over, wait, says))
        self._thread.daemon = True
        self._thread.start()

    def stop(self) -> None:
        """End the thread that prints lines about the current stage."""
        if self._over is not None and self._thread is not None:
            self._over.set()
            self._thread.join()
            self._over = self._thread = None

    def first(self) -> str:
        """Return the first line of the stage: its name, its size, percent done, and time left."""
        name, share = _STAGES.get(self._stage, self._stage), self._share()
        return f"{name}{_of_all(self._stage, self._total)}{share and f', {share}'}{self._left()}"

    def later(self) -> str:
        """Return a further line of the stage: percent done and time left, or the elapsed time."""
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
        """Return the share of the stage that is done, as "40 %"; "": unknown or nothing done."""
        return f"{100 * self._done // self._total} %" if self._done and self._total else ""

    def _left(self) -> str:
        # In the stages in `_PASSES`, fits and the reading of names go through the items several
        # times, and nobody knows how often. So the time left is not known.
        if self._stage in _PASSES or not (self._done and self._total):
            return ""
        taken = self._clock() - self._began
        left = taken * (self._total - self._done) / self._done
        return f", about {left:,.0f} s" if left >= 1 else ""


def _of_all(stage: str, total: int | None) -> str:
    """Return the size of a stage in words, as " 12 rounds", to follow its name.

    The result is "" if the size is unknown, or if the stage has no unit. For "recover" the words
    have no number.
    """
    if stage == "recover":
        return ": all candidates are looked at several times"
    if total is None:
        return ""
    if stage == "read":
        return f" {total / 1e6:,.1f} MB"
    return f" {total:,} {_UNITS[stage]}" if stage in _UNITS else ""


def _has_json_errors() -> bool:
    """Tell whether errors are printed as JSON; then no other line may be printed on stderr."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("as_json"))


def _time_column() -> ProgressColumn:
    """Return a progress bar's column: the time left or, if no total is known, the elapsed time."""
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
    """Check that standard input is open if the input `source` is ``-``, which means standard input.

    Raises:
        InvalidInputError: standard input is closed.
    """
    from fedtally.errors import InvalidInputError

    if source == "-" and sys.stdin is None:
        raise InvalidInputError("standard input is closed; give a file, or pipe something in")


# What SQLite appends to the name of a database, such as a ledger, for the files beside it.
_BESIDE = ("", "-journal", "-wal", "-shm")


def check_files(
    paths: Iterable[str | None],
    inputs: Iterable[str | None] = (),
    folder: str | os.PathLike[str] | None = None,
) -> None:
    """Check the paths of a run's output files before the run, which may take long.

    Args:
        paths: the paths of the files that the run writes; None: an output that is not wanted.
        inputs: the paths of the files that the run reads, which need not exist, and the path or URL
            of its ledger; "-" is standard input, None is ignored.
        folder: the folder of a campaign or a server. A new file in it may have a meaning there, as
            `cancelled` has, so no output is written in it.

    Raises:
        InvalidInputError: the path of an output is empty, its folder is missing or read-only, the
            file is an input of the run or in `folder`, the path is a folder or a device, two
            outputs are the same file, standard output goes there, or the file holds what nobody can
            make again.
    """
    from fedtally.errors import InvalidInputError

    named = [name for name in inputs if name is not None]
    # Links are resolved. Otherwise an output could overwrite an input that has another name.
    taken = {
        os.path.realpath(name.removeprefix("sqlite:///") + suffix): "read by this run"
        for name in named
        if name != "-"
        for suffix in _BESIDE
    }
    for path in (path for path in paths if path is not None):
        _check_place(path)
        if folder is not None and Path(os.path.realpath(path)).is_relative_to(
            os.path.realpath(folder)
        ):
            raise InvalidInputError(
                f"cannot write {path}: a new file in {folder} could change how that goes on; name"
                " another file, in another folder"
            )
        # Standard input may be this file, as in: cmd - --output words.txt < words.txt
        if "-" in named and _is_standard(0, path):
            raise InvalidInputError(
                f"cannot write {path}: it is read by this run; name another file"
            )
        if os.path.realpath(path) in taken:
            raise InvalidInputError(
                f"cannot write {path}: it is {taken[os.path.realpath(path)]}; name another file"
            )
        if holds := _precious(path):
            raise InvalidInputError(
                f"cannot write {path}: it {holds} are never overwritten; name another file"
            )
        taken[os.path.realpath(path)] = "written already"


def _check_place(path: str) -> None:
    """Raise InvalidInputError if no file can be written at a path, or stdout goes there."""
    from fedtally.errors import InvalidInputError

    if not path:
        raise InvalidInputError("a file to be written has an empty name; name it")
    if os.path.isdir(path):
        raise InvalidInputError(f"cannot write {path}: it is a folder; name a file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise InvalidInputError(f"cannot write {path}: it is a device or a pipe; name a file")
    folder = os.path.dirname(path)
    if folder and not os.path.isdir(folder):
        raise InvalidInputError(
            f"cannot write {path}: there is no folder {folder}; create it first"
        )
    if not os.access(folder or ".", os.W_OK):
        raise InvalidInputError(
            f"cannot write {path}: the folder does not allow it; choose another"
        )
    if _is_standard(1, path):
        raise InvalidInputError(
            f"cannot write {path}: standard output goes there, and the answer with it; name"
            " another file"
        )


# How files begin that a run must not replace, since nobody can make them again.
_PRECIOUS = {
    rb"fedtally-private-key/|-----BEGIN [A-Z ]*PRIVATE KEY-----": "holds a private key, and keys",
    rb'schema = "fedtally-dap-secret/': "holds the secret of a DAP task, and secrets",
    rb"fedtally-tokens/|fedtally_[A-Za-z0-9_-]{43}\s": "holds tokens of clients, and tokens",
    rb"SQLite format 3\0": "is a database, such as a ledger, and databases",
}


def _precious(path: str) -> str:
    """Return in words what nobody can make again in the file at a path; "": nothing."""
    if not os.path.isfile(path):  # otherwise reading from a terminal or a pipe could wait for ever
        return ""
    try:
        with open(path, "rb") as file:
            head = file.read(100)
    except OSError:  # writing it says why
        return ""
    return next((holds for first, holds in _PRECIOUS.items() if re.match(first, head)), "")


def _is_standard(stream: int, path: str) -> bool:
    """Return whether standard input (0) or standard output (1) is the file at a path."""
    try:
        return os.path.samestat(os.fstat(stream), os.stat(path))
    except OSError:  # the stream is closed, or the file does not exist yet
        return False
