"""`fedtally trends`: which items changed over the rounds of a saved result, or how one did."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fedtally.base import validate
from fedtally.cli import console
from fedtally.cli.help import Command, Present, option
from fedtally.cli.shared import as_named, check_outputs, json_option, reader, shared
from fedtally.errors import InvalidInputError
from fedtally.options import AS_TABLE, read_against

if TYPE_CHECKING:
    from fedtally.answer.result import Result
    from fedtally.answer.trending import Series, Trends


@click.command(
    cls=Command,
    short_help="Show what changed over the rounds of a saved result.",
    examples=[
        (
            "a result by day, and what changed",
            "fedtally estimate searches.csv --item word --round day --save searches.fedtally",
        ),
        ("", "fedtally trends searches.fedtally"),
        (
            "the last week against the week before",
            "fedtally trends searches.fedtally --window last:7 --against 7",
        ),
        (
            "the shares of two items on each day, as a table",
            "fedtally trends searches.fedtally --item sate --item sebo -o lines.csv",
        ),
    ],
)
@click.argument("result", type=Present())
@option(
    "Answer",
    "--against",
    type=reader(read_against),
    default="before",
    metavar="K",
    is_often=True,
    help="Compare with this many rounds before the window, or all [before]",
)
@option(
    "Answer",
    "--alpha",
    type=float,
    default=0.05,
    metavar="A",
    help="Let this share of the list be false, on average [0.05]",
)
@option(
    "Files",
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    is_often=True,
    help=f"Write the list or the lines, as {AS_TABLE}",
)
@shared("trends")
@json_option
def trends(result: str, against: int | None, alpha: float, **options: Any) -> None:
    """Show which items changed over the rounds of a saved result: rising, falling, new or gone.

    RESULT is a file of --save. On average at most 5 % (--alpha) of the items of one list did not
    change, whatever its day; this does not hold for several lists together. How much an item
    changed is the difference of two windows. With --item the line of each item over the rounds is
    shown instead.
    """
    from fedtally.answer.result import Result

    as_json, items = options["as_json"], options["item"]
    if items:
        _check_line()
    console.check_files([options["output"], options["plot"]], [result])
    check_outputs(options, "output", "plot")
    validate.integer(0, top=options["top"])
    saved = Result.load(result)
    loaded = saved.decoded(recovery=options["recovery"], confidence=options["confidence"])
    history = options["history"]
    with console.Progress() as progress:
        found: Series | Trends = (
            loaded.series(as_named(loaded.domain, items), history=history, progress=progress)
            if items
            else loaded.trends(
                options["window"], against, alpha=alpha, history=history, progress=progress
            )
        )
    _write(found, options, as_json)
    if as_json:
        console.show_json(_document(loaded, found))
    else:
        _show(loaded, found, options["top"])


def _check_line() -> None:
    """Refuse options about the list of changes, which have no effect with --item.

    Raises:
        InvalidInputError: the user typed such an option.
    """
    source = click.get_current_context().get_parameter_source
    for name in ("window", "against", "alpha", "top"):
        if source(name) is click.core.ParameterSource.COMMANDLINE:
            raise InvalidInputError(
                f"--{name} is for the list of what changed, and the line of an item is of all"
                f" rounds: leave --{name} out, or leave out --item"
            )


def _write(found: Series | Trends, options: dict[str, Any], quiet: bool) -> None:
    """Write the output files that the options name, and print a note on each.

    If no item changed, the chart would have no line, and is not written.

    Args:
        found: a `Series`, the frequencies of the items of --item; or a `Trends`, the items that
            changed.
        options: the options of the command.
        quiet: whether no note is printed.
    """
    if options["plot"] and not len(found):  # not an error: that nothing changed is an answer
        console.note(f"{options['plot']} is not written: no item changed, so it has no line", quiet)
    elif options["plot"]:
        found.plot(options["plot"])
        console.note(f"wrote {options['plot']}: the lines", quiet)
    if options["output"]:
        changed = found.export(options["output"])
        console.note(f"wrote {options['output']}: {len(found):,} rows", quiet)
        console.note_of_cells(changed, quiet)


def _document(loaded: Result, found: Series | Trends) -> dict[str, Any]:
    from fedtally.answer import documents
    from fedtally.answer.trending import Series

    if isinstance(found, Series):
        return documents.of_series(loaded, found)
    return documents.of_trends(loaded, found)


def _show(loaded: Result, found: Series | Trends, top: int) -> None:
    """Print the items that changed, or the frequency of the named items in each round.

    Args:
        loaded: the saved result.
        found: a `Series`, the frequencies of the items of --item; or a `Trends`, the items that
            changed.
        top: the largest number of items of the list to print.
    """
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import amounts, sections, tables
    from fedtally.answer.trending import Series

    rows = [("Privacy", sections.privacy.line(loaded.plan, loaded.secure_sum))]
    if isinstance(found, Series):
        lines = sections.changed.series_table(found)
        level = amounts.level(found.confidence)
        limits = f"± holds with {level} {found.held}, for an item named beforehand"
        typos = sections.listed.no_candidates(loaded.domain, found.items)
        told: list[Any] = [lines, *([typos] if typos else []), Text()]
        console.show(Group(*told, tables.facts([("Limits", limits), *rows])))
        return
    parts: list[Any] = [tables.heading(sections.changed.line(found)), Text()]
    if shown := found.changed[:top]:
        parts += [sections.changed.table(shown), Text()]
    if len(shown) < len(found):
        more = f"{len(found) - len(shown):,} more changed: --top {len(found)} lists all"
        parts += [Text(more, style="dim"), Text()]
    console.show(Group(*parts, tables.facts([*sections.changed.rows(found), *rows])))
