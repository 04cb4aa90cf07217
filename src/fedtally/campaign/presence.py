"""The number of clients that checked in lately, for the command `status`.

The process that runs a campaign writes it to the file `present` in the campaign's folder, with its
PID. The file only informs operators: nothing else reads it, and a full disk does not end a run.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from fedtally.base import archive
from fedtally.errors import InvalidInputError

FILE = "present"


def note(folder: Path, process: int, clients: int) -> None:
    """Write the number of clients that checked in lately; errors of the disk are ignored.

    Args:
        folder: the folder of the campaign.
        process: the PID of the process that runs the campaign.
        clients: the number of clients.
    """
    with suppress(OSError, InvalidInputError), archive.replacing(folder / FILE) as temporary:
        Path(temporary).write_text(f"{process} {clients}\n", encoding="ascii")


def read(folder: Path, process: int | None) -> int | None:
    """Return the number of clients that checked in lately.

    It is None if the process that runs the campaign has written no number.

    Args:
        folder: the folder of the campaign.
        process: the PID of the process that runs the campaign; None: no process runs it.
    """
    try:
        said, clients = map(int, (folder / FILE).read_text("ascii").split())
    except (OSError, ValueError):
        return None
    return clients if said == process else None  # another PID is of a process that has ended
