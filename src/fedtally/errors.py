"""The exceptions that fedtally raises on purpose, and how they name options.

All of them derive from `FedtallyError`. The command line exits with their `exit_code`: 2 where the
caller can mend the input, 1 where a run failed, or where a disk is full. Any other exception that
leaves the package is a bug.

A message names options by `opt` and arguments by `arg`. Each is a mark in the text, and `render`
writes it as its reader types it. `str(error)` is for callers in Python, and holds no marks. The
command line, and whoever reads a file, render `error.marked` for their own readers.
"""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Collection
from typing import Final, Literal, Self

Audience = Literal["python", "shell", "file"]

# Halves of surrogate pairs. No text that was decoded from bytes holds one: no name of a file, no
# word of a command line and no item can be taken for a mark.
_OPTION, _ARGUMENT, _END = "\ud800", "\ud801", "\ud802"
_MARK = re.compile(
    f"(?P<kind>[{_OPTION}{_ARGUMENT}])(?P<name>[a-z_]+)(?: (?P<value>[^{_END}]*))?{_END}"
    f"(?P<comma>(?= {_OPTION}))?"
)
_NAME = re.compile("[a-z_]+")
_BARE = re.compile(r"[0-9][0-9.]*|[A-Z]+|\.\.\.|True")  # values that Python reads without quotes
_WORD = re.compile(r"[\w@%+:/.-]+")  # what a shell reads without quotes
_FLAGS = {"num_rounds": "--rounds"}  # options whose keywords have other names
_KEYWORDS = {"text_encoding": "encoding"}


class Option(str):
    """The mark of an option. Called with a value, it is the option with that value."""

    def __call__(self, value: object) -> str:
        """Return the mark with a value; True is for a flag."""
        return f"{self.removesuffix(_END)} {value}{_END}"


class Marks:
    """Marks of names: `opt.seed`, or `opt[name]`.

    A name that no option can have, as `target.tau` of a plan, stays as it is.
    """

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Option:
        return Option(f"{self._kind}{name}{_END}" if _NAME.fullmatch(name) else name)

    def __getitem__(self, name: str) -> Option:
        return self.__getattr__(name)


opt: Final = Marks(_OPTION)
"""Options: `--seed` in a shell, `seed=` in Python, `seed` in a file."""
arg: Final = Marks(_ARGUMENT)
"""Arguments: `seed`, but in a shell the option of that name, where the command has one."""


def flag(name: str) -> str:
    """Return an option as it is typed in a shell.

    >>> flag("max_items"), flag("num_rounds")
    ('--max-items', '--rounds')
    """
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def render(message: str, *, for_: Audience, flags: Collection[str] = ()) -> str:
    """Return a message with each mark as its reader types it. All else stays as it is.

    Args:
        message: a text with marks of `opt` and `arg`.
        for_: where it is read.
        flags: for a shell, the options of the command.

    >>> message = f"{arg.top} must be a number; leave {opt.seed} out, or add {opt.evaluate(True)}"
    >>> render(message, for_="python")
    'top must be a number; leave seed= out, or add evaluate=True'
    >>> render(message, for_="shell", flags=["--top"])
    '--top must be a number; leave --seed out, or add --evaluate'
    >>> render(f"use {opt.domain('input')} or {opt.memory('SIZE')}", for_="python")
    "use domain='input' or memory=SIZE"
    >>> render(f"name both ({opt.silo('COL')} {opt.client('COL')})", for_="python")
    'name both (silo=COL, client=COL)'
    >>> render(f"use {opt.delimiter(';')} or {opt.max_items(3)}", for_="shell")
    "use --delimiter ';' or --max-items 3"
    >>> render(f"leave {opt.recovery} out, or write {opt.recovery('joint')}", for_="file")
    "leave recovery out, or write recovery = 'joint'"
    """

    def typed(mark: re.Match[str]) -> str:
        name, value = mark["name"], mark["value"]
        if mark["kind"] == _ARGUMENT:
            return flag(name) if for_ == "shell" and flag(name) in flags else name
        if for_ == "shell":
            is_alone = value in (None, "True")
            return flag(name) if is_alone else f"{flag(name)} {_quoted(value)}"
        equals = {"python": "=", "file": "" if value is None else " = "}[for_]
        bare = value is None or _BARE.fullmatch(value)
        shown = (value or "") if bare else repr(value)
        comma = "" if mark["comma"] is None else ","
        return f"{_KEYWORDS.get(name, name)}{equals}{shown}{comma}"

    return _MARK.sub(typed, message)


class Note(str):
    """A note with marks, in the words of a shell.

    Attributes:
        marked: the note with its marks, for `render`.

    >>> note = Note(f"{opt.max_items(3)} counts all")
    >>> note, render(note.marked, for_="python")
    ('--max-items 3 counts all', 'max_items=3 counts all')
    """

    marked: str

    def __new__(cls, marked: str) -> Self:
        """Return the note."""
        note = super().__new__(cls, render(marked, for_="shell"))
        note.marked = marked
        return note


def _quoted(value: str) -> str:
    if not value.isprintable():  # such as a tab, which no line of text would show
        return repr(value)
    return value if _WORD.fullmatch(value) else shlex.quote(value) if "'" in value else f"'{value}'"


class FedtallyError(Exception):
    """The base of every error that is raised on purpose.

    Attributes:
        marked: the message with its marks, see `render`.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(render(message, for_="python"))
        self.marked = message

    @property
    def options(self) -> tuple[str, ...]:
        """The options and arguments that the message names, in its order."""
        return tuple(mark["name"] for mark in _MARK.finditer(self.marked))

    @property
    def option(self) -> str | None:
        """The first of the `options`; None: the message names none.

        >>> InvalidInputError(f"{opt.seed} is not for a private run").option
        'seed'
        """
        return next(iter(self.options), None)

    @property
    def in_shell(self) -> str:
        """The message in the words of a shell, for programs that have no other callers."""
        return render(self.marked, for_="shell")

    def speak_shell(self, flags: Collection[str]) -> None:
        """Put the message in the words of a command that has these options."""
        self.args = (render(self.marked, for_="shell", flags=flags), *self.args[1:])


class InvalidInputError(FedtallyError, ValueError):
    """An argument, a file or a combination of options is rejected.

    The message names the value, the bound, and a way out.
    """

    exit_code = 2


class OutsideDomainError(InvalidInputError):
    """An item is not in the declared domain."""


class IncompatibleError(InvalidInputError):
    """Sketches, plans or results do not belong together."""


class UnreadableFileError(InvalidInputError):
    """A file is missing, damaged, of another format or of a newer version."""


class MemoryLimitError(InvalidInputError):
    """The work would not fit the memory."""


class OvertakenError(FedtallyError):
    """Say that another process runs this campaign now: this one must neither write nor speak."""


class UnsentError(FedtallyError):
    """Say that a client's report is not yet with both servers, or not yet made."""


class MissingExtraError(FedtallyError, ImportError):
    """An optional dependency is missing; the message says how to install it."""

    exit_code = 2


def reason(error: Exception) -> str:
    """Return what is wrong with a file, behind a colon, where an error of this package says it.

    It names entries, as a file has them. Of other errors it is "": those of NumPy, Arrow and Python
    speak of their own insides.

    >>> reason(InvalidInputError(f"{opt.width} is odd")), reason(KeyError("noise"))
    (': width is odd', '')
    """
    return f": {render(error.marked, for_='file')}" if isinstance(error, FedtallyError) else ""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_FULL = 13  # the code of SQLite; this module does not import its driver


def is_of_full_disk(error: BaseException) -> bool:
    """Return whether an error came of a full disk, or of a quota that is used up.

    It may have been raised as an error of the input, such as a file that cannot be opened. But the
    input is right, and the same call succeeds once there is room.

    >>> try:
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    ... except OSError as error:
    ...     refused = UnreadableFileError("cannot open it")
    ...     refused.__cause__ = error
    >>> is_of_full_disk(refused), is_of_full_disk(UnreadableFileError("cannot open it"))
    (True, False)
    """
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in _NO_ROOM:
            return True
        if getattr(found, "sqlite_errorcode", None) == _SQLITE_FULL:
            return True
        found = found.__cause__ or found.__context__
    return False
