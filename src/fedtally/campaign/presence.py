"""How many clients came lately: the process that runs a campaign says it, and `status` shows it.

The folder's file `present` has the number of that process, and of the clients. It is a courtesy to
operators: nothing else reads it, and a disk that is full ends no run.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedtally.base import archive
from fedtally.errors import InvalidInputError

FILE = "present"


def note(folder: Path, process: int, clients: int) -> None:
    """Write down how many clients came lately.

    Args:
        folder: the folder of the campaign.
        process: the number of the process that runs it.
        clients: how many came.
    """
    with suppress(OSError, InvalidInputError), archive.replacing(folder / FILE) as temporary:
        Path(temporary).write_text(f"{process} {clients}\n", encoding="ascii")


def read(folder: Path, process: int | None) -> int | None:
    """Return how many clients came lately; None: the process that runs the campaign says nothing.

    Args:
        folder: the folder of the campaign.
        process: the number of the process that runs it; None: no process does.
    """
    try:
        said, clients = map(int, (folder / FILE).read_text("ascii").split())
    except (OSError, ValueError):
        return None
    return clients if said == process else None  # else of a process that has ended
