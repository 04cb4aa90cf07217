"""Make options of click from the table `fedtally.options`, and read the inputs that they name."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from fedtally.base import validate
from fedtally.base.text import shortened
from fedtally.cli.console import check_standard_input, note
from fedtally.cli.help import Decorator, SectionOption, option, options
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.options import (
    OPTIONS,
    REQUIRED,
    Check,
    Door,
    NamedOption,
    help_of,
    options_of,
    read_positive,
)

if TYPE_CHECKING:
    from fedtally.domain import Domain, OpenStrings
    from fedtally.sources import Source


def reader(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function that calls `read`, and turns a ValueError into click's BadParameter.

    Otherwise click would not print the message of the ValueError.
    """

    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    return convert


positive = reader(read_positive)


# The type of an option or argument with a file name, `-`, or a text such as "zipf:a=1". Shells
# complete it as a file name. click does not check the file, which is checked when it is read.
FILE = click.Path(readable=False)


class _Choice(click.Choice):  # type: ignore[type-arg]  # it takes a type since click 8.2
    """The type of an option whose value is one of a list.

    Args:
        check: the list (`choices`), and two more fields. `own`: whether any value with a colon,
            such as module:Class, is accepted, too. `instead`: a hint, with which the error for
            another value ends.
    """

    def __init__(self, check: Check) -> None:
        super().__init__(check.choices)
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if self.check.own and ":" in str(value):
            return value
        return super().convert(value, param, ctx)

    def fail(self, message: str, param: Any = None, ctx: Any = None) -> NoReturn:
        super().fail(f"{message} {self.check.instead}".rstrip(), param, ctx)


class _Range(click.IntRange):
    """The type of an option whose value is an integer between two bounds."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            bounds = f"{self.min} or more" if self.max is None else f"{self.min} to {self.max:,}"
            self.fail(f"{shortened(str(value), 40)!r} is no integer of {bounds}", param, ctx)


class _Float(click.types.FloatParamType):
    """The type of an option whose value is a number; its bounds are checked where it is used."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            text = shortened(str(value), 40)
            self.fail(f"{text!r} is no number: write it as 0.05 or 1e-6", param, ctx)


# For each kind of `Check`: a function that returns arguments of `click.option`.
_SETTINGS: dict[str, Callable[[Check], dict[str, Any]]] = {
    "flag": lambda check: {"is_flag": True},
    "text": lambda check: {"multiple": check.is_many},
    "path": lambda check: {"type": FILE},
    "choice": lambda check: {"type": _Choice(check)},
    "int": lambda check: {"type": click.INT},
    "range": lambda check: {"type": _Range(*check.bounds)},
    "float": lambda check: {"type": _Float()},
    "read": lambda check: {"type": reader(check.read)},
}


def _click(known: NamedOption) -> Decorator:
    """Return the decorator that adds an option of the table `fedtally.options` to a command."""
    settings = _SETTINGS[known.check.kind](known.check)
    if known.default not in (None, REQUIRED):
        settings["default"] = known.default
    return click.option(
        known.flag,
        known.name,
        cls=SectionOption,
        section=known.section,
        is_often=known.is_often,
        required=known.default is REQUIRED,
        needs=known.needs,
        metavar=known.check.metavar,
        help=help_of(known),
        **settings,
    )


def shared(place: str) -> Decorator:
    """Return a decorator that adds to a command all options that `fedtally.options` has for it.

    Args:
        place: the name of the command.
    """
    return options(*map(_click, options_of(place)))


def asked(place: str, given: dict[str, Any], *doors: Door) -> dict[str, Any]:
    """Return the values of those options of a command that some parts of the Python API accept.

    Args:
        place: the name of the command.
        given: the values of all options of the command, by name.
        doors: the parts of the Python API; see `Door`.

    Returns:
        A dict from the names of the options to their values.
    """
    return {known.name: given[known.name] for known in options_of(place) if known.door in doors}


json_option = _click(OPTIONS["as_json"])
origin_option = option(
    "Server",
    "--origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Let web pages of this origin report, as https://page.example [none]",
)


def check_ledger(ledger: str | None, command: str) -> int:
    """Try to open a ledger as a command would; if it fails, print why as a note.

    The ledger is only read. A failure is a note and no error, since the caller has already printed
    the status that the user asked for.

    Returns:
        The exit code that the command would end with; 0: the ledger opens, or no ledger is needed.

    Args:
        ledger: the path or URL of the ledger; None: no ledger is needed.
        command: the name of the command, such as "resume".
    """
    from fedtally.store import Ledger

    return 0 if ledger is None else would_run(lambda: Ledger.open(ledger), command)


def would_run(check: Callable[[], object], command: str) -> int:
    """Make a check as a command would; if it fails, print why as a note.

    Returns:
        The exit code that the command would end with; 0: the check passes.

    Args:
        check: raises a `FedtallyError` if the command would be refused.
        command: the name of the command, such as "resume".
    """
    try:
        check()
    except FedtallyError as error:
        note(f"{command} would be refused: {error}")
        return error.exit_code
    return 0


def read_time(text: str) -> int:
    """Read a time with a time zone from a text, and return it as Unix seconds.

    Raises:
        InvalidInputError: the text is no time, or has no time zone.
    """
    from datetime import datetime

    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise InvalidInputError(
            f"{text!r} is no time with its zone: give it as 2027-01-31T18:00Z, or with +01:00"
        )
    return int(found.timestamp())


def check_outputs(options: dict[str, Any], *names: str) -> None:
    """Check before a long run that its output files are of kinds that can be written.

    Args:
        options: the options of the command.
        names: the options that name output files: "output" (a table), "plot" or "report". An option
            that was not given is ignored.

    Raises:
        InvalidInputError: a file name has a suffix that this output cannot have.
        MissingExtraError: a package that is needed to write a file is not installed.
    """
    for name in names:
        if options[name]:
            _OUTPUTS[name](options[name])


def _check_table(path: str) -> None:
    from fedtally.answer.exports import check_export_path

    check_export_path(path)


def _check_chart(path: str) -> None:
    from fedtally.answer import figures

    figures.check(path)


def _check_page(path: str) -> None:
    from fedtally.answer.page import check_report_path

    check_report_path(path)


_OUTPUTS: dict[str, Callable[[str], None]] = {
    "output": _check_table,
    "plot": _check_chart,
    "report": _check_page,
}


def use_threads(threads: int | None) -> None:
    """Set the number of threads that compiled code uses in this process.

    Args:
        threads: the number of threads; None: nothing is changed.
    """
    if threads is not None:
        os.environ["FEDTALLY_NUM_THREADS"] = str(threads)


def read_name_length(options: dict[str, Any], domain: OpenStrings) -> int:
    """Return the length, in bytes, of the names that a plan must be able to read from its sums.

    It is the value of --name-length. By default it is `NAME_LENGTH` or the domain's `max_length`,
    whichever is less.

    Raises:
        InvalidInputError: the length is not in 1 .. the domain's `max_length`.
    """
    from fedtally.plan.readable_names import NAME_LENGTH

    if options["name_length"] is None:
        return min(NAME_LENGTH, domain.max_length)
    return validate.integer(1, domain.max_length, name_length=options["name_length"])


def read_open_domain(
    options: dict[str, Any], *more: str
) -> Domain | Literal["input", "open"] | None:
    """Read the domain that --domain names, which may also be open: without a list of candidates.

    Args:
        options: the options of the command, including the options about an open domain.
        more: the names of further options that are allowed with an open domain only.

    Returns:
        The domain. The text "open" for --domain open without --max-length and --normalise: a plan
        may decide these two. The text "input" if the candidates are the items of the input. None
        without --domain.

    Raises:
        InvalidInputError: --domain has no valid value; or the domain is not open, and an option
            that needs an open domain is given.
    """
    from fedtally.domain import OpenStrings
    from fedtally.domain.open_strings import USUAL_LENGTH
    from fedtally.plan.rules import check, given, unmet

    length, form = options["max_length"], options["normalise"]
    if options["domain"] == OpenStrings.kind:
        if length is None and form is None:
            return "open"
        return OpenStrings(USUAL_LENGTH if length is None else length, normalise=form)
    of_open = {name: options[name] for name in ("max_length", "normalise", *more)}
    check(given(**of_open), unmet(open=True))
    return read_domain(options["domain"])


def read_domain(text: str | None) -> Domain | Literal["input"] | None:
    """Read the domain that a value of --domain names.

    The value is a range, a grid, the name of a file of candidates, or the text "input".

    Args:
        text: the value of the option; None: the option is not given.

    Returns:
        The domain. The text "input" if the candidates are the items of the input. None if the
        option is not given.

    Raises:
        InvalidInputError: the value has none of these forms, its file is missing, or it is "open".
    """
    if text is None:
        return None
    from fedtally.domain import WRITTEN, parse
    from fedtally.sources import list_path, read_candidates

    if text == "open":
        raise InvalidInputError(
            "--domain open is not for this command, which looks at a list of candidates: try an"
            " open domain with fedtally estimate or simulate; give a file, range:A..B or"
            " grid:S..N,W..E,STEP here"
        )
    if text == "input":
        return "input"
    if text.startswith(WRITTEN):
        return parse(text)
    quoted = shlex.quote(text)
    if not os.path.exists(list_path(text)[0]):
        meant = validate.did_you_mean(text, ("input", "open")) or validate.did_you_mean_file(text)
        raise InvalidInputError(
            f"--domain {quoted}: there is no such file; give a FILE or FILE:COL,"
            f" input, open, range:A..B or grid:S..N,W..E,STEP{meant}"
        )
    if os.path.isdir(list_path(text)[0]):
        raise InvalidInputError(f"--domain {quoted} is a folder: give a file in it, or FILE:COL")
    return read_candidates(text)


def as_named(domain: Domain, texts: Sequence[str]) -> list[str | int]:
    """Return the items of a command line, in their order, in the type of the domain's items.

    If the domain holds integers, the items become integers; otherwise they stay texts. If one of
    the integers needs more than 64 bits with sign, all of them are returned as texts.

    Args:
        domain: the domain.
        texts: the items as they were typed.

    >>> from fedtally.domain import IntegerRange
    >>> as_named(IntegerRange(1, 9), ["7", "8"])
    [7, 8]
    >>> as_named(IntegerRange(-(2**63), -1), ["-9223372036854775808"])
    [-9223372036854775808]

    Raises:
        InvalidInputError: the domain holds integers, and a text is no integer, or has more than 30
            digits.
    """
    if not domain.holds_integers:
        return list(texts)
    for text in texts:
        if not re.fullmatch("-?[0-9]{1,30}", text):
            raise InvalidInputError(f"the domain holds integers, and {text[:60]!r} is none")
    # An array of int64 cannot hold a larger integer. If one item is so large, all items stay texts,
    # so that the domain can refuse the large one by an error that names it.
    return (
        list(texts)
        if any(not -(2**63) <= int(text) < 2**63 for text in texts)
        else [int(text) for text in texts]
    )


def open_input(text: str, options: dict[str, Any]) -> Source:
    """Return the source of items that the argument INPUT and the options about data describe.

    Args:
        text: the argument INPUT: a file, `-` for standard input, or a text such as "zipf:a=1".
        options: the options of the command.

    Raises:
        InvalidInputError: the input cannot be opened, or an option does not fit it.
    """
    from fedtally.simulation.randomness import population_rng
    from fedtally.sources import Columns, item_columns, open_source

    check_standard_input(text)
    if text == "-" and sys.stdin.isatty():
        note("reading items from the terminal, one a line; end with Ctrl-D", options["quiet"])
    columns = Columns(
        item_columns(options["item"], options["domain"]),
        options["client"],
        options.get("round"),
        options["count"],
        options.get("silo"),
    )
    return open_source(
        text,
        columns,
        format=options["format"],
        delimiter=options["delimiter"],
        header=not options["no_header"],
        encoding=options["text_encoding"],
        rng=population_rng(options["seed"]),
    )
