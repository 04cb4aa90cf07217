"""`fedtally show`: the protocol as a page to try by hand."""

from __future__ import annotations

from pathlib import Path

import click

from fedtally.cli import console
from fedtally.cli.help import Command, option
from fedtally.cli.shared import shared
from fedtally.errors import InvalidInputError


@click.command(
    cls=Command,
    short_help="Write a page that shows how it works.",
    examples=[
        ("write show.html, then open it in a browser", "fedtally show"),
        ("the same page each time", "fedtally show -o same.html --seed 1"),
    ],
)
@shared("show")
@option(
    "Files",
    "-o",
    "--output",
    type=click.Path(),
    default="show.html",
    metavar="FILE",
    help="Write the page to FILE [show.html]",
)
def show(output: str, seed: int | None) -> None:
    """Write one HTML file to click through: pick one of 200 phones and try to read its word.

    The page holds 200 real uploads of the secure sum, adds them up, and shows what epsilon hides.
    It works offline.
    """
    from fedtally.answer.show_page import show_page
    from fedtally.base.archive import replacing
    from fedtally.simulation.demonstration import demonstrate

    target = Path(output)
    if target.suffix.lower() != ".html":
        raise InvalidInputError(f"a page must end in .html, got {output!r}")
    if target.exists():
        raise InvalidInputError(f"{output} exists already: remove it, or name another file")
    console.check_files([output])
    with console.Progress() as progress:
        text = show_page(demonstrate(seed, progress)._asdict())
    with replacing(target) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")
    console.note(f"wrote {output} ({len(text.encode()) / 1e6:.1f} MB): open it in a browser")
