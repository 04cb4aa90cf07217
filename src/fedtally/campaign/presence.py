"""The file with the number of clients that checked in lately, for the command `status`.

Lately means within `Deadlines.presence`. The process that runs a campaign writes the number, with
its PID, to the file `present` in the campaign's folder. Only the command `status` reads the file.
An error of the disk does not end the process.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedtally.base import archive
from fedtally.errors import InvalidInputError

FILE = "present"


def note(folder: Path, process: int, clients: int) -> None:
    """Write how many clients checked in lately; errors of the disk are ignored.

    Args:
        folder: the folder of the campaign.
        process: the PID of the process that runs the campaign.
        clients: how many clients checked in lately.
    """
    with suppress(OSError, InvalidInputError), archive.replacing(folder / FILE) as temporary:
        Path(temporary).write_text(f"{process} {clients}\n", encoding="ascii")


def read(folder: Path, process: int | None) -> int | None:
    """Return how many clients checked in lately, or None if the file has no number of the process.

    Args:
        folder: the folder of the campaign.
        process: the PID of the process that runs the campaign; None: no process runs it.
    """
    try:
        said, clients = map(int, (folder / FILE).read_text("ascii").split())
    except (OSError, ValueError):
        return None
    # with another PID, the number is from a process that has ended
    return clients if said == process else None
