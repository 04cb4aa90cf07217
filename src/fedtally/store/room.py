"""A check that a disk has room for a file: the check writes a temporary file of this size."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from fedtally.store.database import StoreError

_BLOCK = 1 << 16  # bytes in one write


def check_room(folder: Path, size: int) -> None:
    """Check that the disk of a folder has room for one more file of a given size.

    Args:
        folder: the folder.
        size: the size of the file in bytes.

    Raises:
        StoreError: the disk has no room, or the folder cannot be written.
    """
    # Not zeros: a file system that compresses would store zeros even on a full disk.
    block, left = hashlib.shake_256(b"room").digest(min(size, _BLOCK)), size
    try:
        # The open file has no name, so that nothing is left if the process dies.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while left > 0:
                left -= file.write(block[:left])
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{folder} does not take {size:,} bytes: {error.strerror}") from error
