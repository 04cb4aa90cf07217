"""The exceptions that fedtally raises on purpose, and how their messages name options.

All of them derive from `FedtallyError`. The command line exits with their `exit_code`: 2 if another
input or an installation helps, 1 if a run failed. It also exits with 1 if a disk is full. Apart
from `MemoryError` and `OSError`, any other exception that leaves the package is a bug.

The option "seed" is typed `--seed` in a shell, `seed=` in Python and `seed` in a file. So the text
of a message has marks instead: placeholders with a name. `opt.seed` is the mark of an option.
`arg.top` is the mark of an argument of a function, for which a command may or may not have an
option. `render` replaces each mark by its spelling for one audience. `str(error)` is the message
rendered for callers in Python. `error.marked` is the message with its marks. The command line and
the readers of files render `error.marked` for their own users.
"""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Collection
from typing import Final, Literal, Self

Audience = Literal["python", "shell", "file"]

# A mark begins and ends with a high surrogate. Text that was decoded from UTF-8 never has these. So
# no file name, no word of a command line and no item can be mistaken for a mark.
_OPTION, _ARGUMENT, _END = "\ud800", "\ud801", "\ud802"
_MARK = re.compile(
    f"(?P<kind>[{_OPTION}{_ARGUMENT}])(?P<name>[a-z_]+)(?: (?P<value>[^{_END}]*))?{_END}"
    f"(?P<comma>(?= {_OPTION}))?"
)
_NAME = re.compile("[a-z_]+")
_BARE = re.compile(r"[0-9][0-9.]*|[A-Z]+|\.\.\.|True")  # values without quotes in Python and files
_WORD = re.compile(r"[\w@%+:/.-]+")  # values that need no quotes in a shell
_FLAGS = {"num_rounds": "--rounds"}  # keyword -> option in a shell, where the names differ
# option -> keyword in Python and name in a file, where the names differ
_KEYWORDS = {"text_encoding": "encoding"}


class Option(str):
    """The mark (placeholder) of an option in a message; `opt.seed(3)` is the mark of `--seed 3`."""

    def __call__(self, value: object) -> str:
        """Return the mark of the option with a value; True means that the option takes no value."""
        return f"{self.removesuffix(_END)} {value}{_END}"


class Marks:
    """Makes the marks (placeholders) of names: `opt.seed`, or `opt[name]` with a variable.

    Whether an option of this name exists is not checked. Only a name of the characters a to z and
    "_" gets a mark. Any other name stays plain text, such as `target.tau` of a plan.
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
    """Return the option of a keyword as it is typed in a shell; whether it exists is not checked.

    >>> flag("max_items"), flag("num_rounds")
    ('--max-items', '--rounds')
    """
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def render(message: str, *, for_: Audience, flags: Collection[str] = ()) -> str:
    """Return a message in which each mark is replaced by its spelling for one audience.

    Args:
        message: a text with marks of `opt` and `arg`.
        for_: the audience: "python", "shell" or "file".
        flags: the options that the command has, such as "--seed"; only a shell needs them. There a
            mark of `arg` becomes an option if `flags` has this option. Otherwise it becomes the
            plain name. Marks of `opt` always become options.

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
    """A hint to the user. As a string, it spells options as they are typed in a shell.

    Attributes:
        marked: the same text with marks, from which `render` makes other spellings.

    >>> note = Note(f"{opt.max_items(3)} counts all")
    >>> note, render(note.marked, for_="python")
    ('--max-items 3 counts all', 'max_items=3 counts all')
    """

    marked: str

    def __new__(cls, marked: str) -> Self:
        """Return the note with this text, in which options have marks."""
        note = super().__new__(cls, render(marked, for_="shell"))
        note.marked = marked
        return note


def _quoted(value: str) -> str:
    if not value.isprintable():  # a tab, for example, would be invisible in a message
        return repr(value)
    return value if _WORD.fullmatch(value) else shlex.quote(value) if "'" in value else f"'{value}'"


class FedtallyError(Exception):
    """The base class of all exceptions that are raised on purpose.

    Attributes:
        marked: the message with its marks, see `render`.
    """

    exit_code = 1

    def __init__(self, message: str = "") -> None:
        super().__init__(render(message, for_="python"))
        self.marked = message

    @property
    def options(self) -> tuple[str, ...]:
        """The names of all options and arguments in the message, in the order of the text.

        A name that occurs twice in the message occurs twice here.
        """
        return tuple(mark["name"] for mark in _MARK.finditer(self.marked))

    @property
    def option(self) -> str | None:
        """The name of the first option or argument in the message; None if there is none.

        >>> InvalidInputError(f"{opt.seed} is not for a private run").option
        'seed'
        """
        return next(iter(self.options), None)

    @property
    def in_shell(self) -> str:
        """The message as it is shown in a shell.

        Marks of `opt` become options such as --seed. Marks of `arg` become plain names, because
        this property does not know which options the command has. `speak_shell` does.
        """
        return render(self.marked, for_="shell")

    def speak_shell(self, flags: Collection[str]) -> None:
        """Change the error, so that `str(error)` is its message for users of a shell.

        Args:
            flags: the options that the command has, such as "--seed". A mark of `arg` becomes an
                option if `flags` has this option, and otherwise the plain name, see `render`.
        """
        self.args = (render(self.marked, for_="shell", flags=flags), *self.args[1:])


class InvalidInputError(FedtallyError, ValueError):
    """An argument, a file or a combination of options was refused.

    Its message should name the value, the bound, and a way out.
    """

    exit_code = 2


class OutsideDomainError(InvalidInputError):
    """An item is not in the declared domain."""


class IncompatibleError(InvalidInputError):
    """Sketches, plans or results do not fit together, such as sums of another plan."""


class UnreadableFileError(InvalidInputError):
    """A file is missing or damaged, has another format or version, or cannot be read."""


class MemoryLimitError(InvalidInputError):
    """The work would need more memory than is allowed, by the caller or by this machine."""


class OvertakenError(FedtallyError):
    """Another process has taken over this campaign, or the campaign was cancelled.

    This process must neither write nor send anything for the campaign from now on.
    """


class UnsentError(FedtallyError):
    """A client's report has not been made yet, or is not known to have reached both servers.

    To make and send the report, or to learn that it arrived, run the same command again.
    """


class MissingExtraError(FedtallyError, ImportError):
    """An optional dependency is not installed; the message says how to install it."""

    exit_code = 2

    def speak_shell(self, flags: Collection[str]) -> None:
        """Change the error as the method of the base class does; `flags` is the same."""
        super().speak_shell(flags)
        self.msg = self.args[0]  # the `str` of an ImportError is `msg`, whatever `args` are


def reason(error: Exception) -> str:
    """Return a text to append to a message about a file: why an entry was refused.

    For an error of this package, the text is ": " and the message, with options spelled as in a
    file. For any other error it is "": messages of NumPy, Arrow and Python describe internals,
    which do not help a user.

    >>> reason(InvalidInputError(f"{opt.width} is odd")), reason(KeyError("noise"))
    (': width is odd', '')
    """
    return f": {render(error.marked, for_='file')}" if isinstance(error, FedtallyError) else ""


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_SQLITE_FULL = 13  # SQLite's error code SQLITE_FULL; this module does not import sqlite3 for it


def is_of_full_disk(error: BaseException) -> bool:
    """Return whether an error was caused by a full disk or an exhausted quota.

    An error by a full disk may look like bad input, for example "cannot open it". But the input is
    right, and the same call succeeds once there is free space. So this function examines the error
    and all errors that caused it.

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
