"""Marks: small files that show that a database is not an old copy of itself.

A mark holds the number of the last write that somebody may know of. It lies outside of the
database and of its backups. A database with fewer writes than its mark is a copy that was put back:
it has forgotten what was said since.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fedtally.errors import UnreadableFileError
from fedtally.store.database import StoreError


def read_mark(path: Path, name: str) -> int | None:
    """Return the number of the last write that is marked; None: there is no mark.

    Args:
        path: of the mark.
        name: of what is marked, without blanks.

    Raises:
        UnreadableFileError: the file cannot be read, or is the mark of something else.
    """
    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"cannot read the mark {path}: {error}") from error
    found, _, writes = text.strip().partition(" ")
    if found != name or not writes.isdecimal():
        raise UnreadableFileError(f"{path} is not the mark of {name[:16]}")
    return int(writes)


def write_mark(path: Path, name: str, writes: int) -> None:
    """Replace a mark. It is on the disk, whole, before this returns.

    Raises:
        StoreError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.new")
    try:
        with open(temporary, "wb", buffering=0) as file:
            file.write(f"{name} {writes}\n".encode())
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name, too, survives a loss of power
        finally:
            os.close(folder)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)  # a full disk gets its bytes back
        # No error of a file that cannot be read: the driver would give a session up for it.
        raise StoreError(f"cannot write the mark {path}: {error.strerror}") from error
