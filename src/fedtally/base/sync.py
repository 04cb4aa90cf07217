"""What is on the disk: a module of its own, so that writing a key loads no NumPy."""

from __future__ import annotations

import os


def sync(path: str | os.PathLike[str]) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    On Windows nothing is waited for: it opens no folders, and no campaign runs there.
    """
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
