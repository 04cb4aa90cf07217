"""`fedtally sample`: small tables to try the commands on."""

from __future__ import annotations

from pathlib import Path

import click

from fedtally.cli import console
from fedtally.cli.help import Command
from fedtally.cli.shared import shared
from fedtally.errors import InvalidInputError


@click.command(
    cls=Command,
    short_help="Write small tables to try the commands on.",
    examples=[
        ("into a folder of their own", "fedtally sample try"),
        ("then", "fedtally estimate try/visits.csv --item url --client user --max-bytes 4kB"),
    ],
)
@click.argument("folder", metavar="DIR", type=click.Path())
@shared("sample")
def sample(folder: str, seed: int) -> None:
    """Write small tables to DIR: the files that the documentation's commands name.

    They are drawn from the seed, so they hold nobody's data. A file of other content is not
    overwritten.
    """
    from fedtally.base.archive import replacing
    from fedtally.sources.sample_tables import SAMPLES
    from fedtally.sources.sample_tables import sample as draw

    target = Path(folder)
    files = draw(seed)
    there = [name for name, _, _ in SAMPLES if not _is_free(target / name, files[name])]
    if there:
        raise InvalidInputError(
            f"{folder} holds {', '.join(there)} already: name another folder, or remove them"
        )
    if target.exists() and not target.is_dir():
        raise InvalidInputError(f"{folder} is no folder: name a new one")
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInputError(f"cannot make the folder {folder}: {error.strerror}") from error
    longest = max(map(len, files))
    for name, about, _ in SAMPLES:
        with replacing(target / name) as temporary:
            Path(temporary).write_bytes(files[name])
        console.say(f"{name:{longest}}  {about}")
    console.note(f"wrote {len(files)} files to {folder}")


def _is_free(path: Path, content: bytes) -> bool:
    """Tell whether a file may be written: it is missing, or has the same content already."""
    return not path.exists() or (path.is_file() and path.read_bytes() == content)
