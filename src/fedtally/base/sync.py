"""Flush files to the disk.

This is a module of its own, so that code that writes a key does not import NumPy.
"""

from __future__ import annotations

import os


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until the bytes of a file, or the entries of a folder, are on the disk (fsync).

    On Windows this does nothing: Windows cannot open a folder, and no campaign runs there.
    """
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
