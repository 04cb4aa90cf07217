"""The options of the experiments' commands, each written once; commands set the defaults.

A command has `quick`, or `study` where it runs a `study.Study`: both give it --quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

Run = TypeVar("Run", bound=Callable[..., None])
FOLDER = Path("results")
QUICK_FOLDER = FOLDER / "quick"

seed = click.option("--seed", type=click.IntRange(0), default=0, help="Of all draws.")
jobs = click.option(
    "--jobs", type=click.IntRange(1), default=1, help="Processes, each with a task at a time."
)
table = click.option(
    "--output",
    "path",
    type=click.Path(path_type=Path),
    help="Also write all rows: .csv or .parquet.",
)


def study(**small: object) -> Callable[[Run], Run]:
    """Give a command --output, --jobs, --plot/--no-plot and --quick.

    The values of a quick run are `small` where the command line has none.

    The command gets `folder`, `jobs` and `plot`; it passes them to `study.run`.
    """
    added = (
        folder(
            FOLDER,
            "Folder of the results, where the same command goes on if it was stopped. Quick runs"
            " have their own.",
        ),
        jobs,
        click.option("--plot/--no-plot", default=True, help="Also draw it; needs the extra plot."),
        quick(folder=QUICK_FOLDER, **small),
    )
    return lambda command: functools.reduce(
        lambda inner, option: option(inner), reversed(added), command
    )


def quick(**small: object) -> Callable[[Run], Run]:
    """Give a command --quick: a run of seconds.

    It has these values where the command line has none.
    """

    def decorate(command: Run) -> Run:
        @click.option(
            "--quick",
            is_flag=True,
            help="A small run, of seconds, that shows that everything works.",
        )
        @functools.wraps(command)
        def run(*, quick: bool, **values: object) -> None:
            given = click.get_current_context().get_parameter_source
            values = {name: _unique(value) for name, value in values.items()}
            if quick:
                values |= {
                    name: value
                    for name, value in small.items()
                    if given(name) is ParameterSource.DEFAULT
                }
            try:
                command(**values)
            except SystemExit as verdict:
                if not quick or verdict.code != 1:
                    raise
                click.echo("(what a quick run misses means nothing)")

        return run  # type: ignore[return-value]

    return decorate


def folder(default: Path | None, help: str) -> Callable[[Run], Run]:
    """Give a command --output, a folder: its argument `folder`."""
    kind = click.Path(file_okay=False, path_type=Path)
    return click.option("--output", "folder", type=kind, default=default, help=help)


def data(help: str = "Folder of the real tables.") -> Callable[[Run], Run]:
    """Give a command --data."""
    return click.option("--data", type=click.Path(file_okay=False, path_type=Path), help=help)


def repeats(
    default: int | None, least: int = 1, help: str = "Campaigns of each cell."
) -> Callable[[Run], Run]:
    """Give a command --repeats, at least so many."""
    return click.option("--repeats", type=click.IntRange(least), default=default, help=help)


def domain_size(
    default: int, least: int = 1, most: int | None = None, help: str = "Candidates."
) -> Callable[[Run], Run]:
    """Give a command --domain-size."""
    return click.option(
        "--domain-size", type=click.IntRange(least, most), default=default, help=help
    )


def clients(
    default: int, least: int = 1, help: str = "All rounds together."
) -> Callable[[Run], Run]:
    """Give a command --clients."""
    return click.option("--clients", type=click.IntRange(least), default=default, help=help)


def laws(default: Sequence[str] = (), help: str = "An exponent, or zm.") -> Callable[[Run], Run]:
    """Give a command --law, which may be repeated: its argument `laws`."""
    return _several("--law", "laws", default, help)


def sizes(
    default: Sequence[str] = (), help: str = "Rows x width.", type: Any = None
) -> Callable[[Run], Run]:
    """Give a command --size, which may be repeated: its argument `sizes`."""
    return _several("--size", "sizes", default, help, type)


def schedules(
    default: Sequence[str] = (), help: str | None = None, type: Any = None
) -> Callable[[Run], Run]:
    """Give a command --schedule, which may be repeated: its argument `schedules`."""
    return _several("--schedule", "schedules", default, help, type)


def _several(
    name: str, argument: str, default: Sequence[str], help: str | None, type: Any = None
) -> Callable[[Run], Run]:
    return click.option(name, argument, multiple=True, default=tuple(default), help=help, type=type)


def _unique(value: object) -> object:
    """Return a tuple without what was in it before."""
    return tuple(dict.fromkeys(value)) if isinstance(value, tuple) else value
