"""Whether a disk has room: a file that is written, and has no name by then."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from fedtally.store.database import StoreError

_BLOCK = 1 << 16  # bytes that are written at once


def check_room(folder: Path, size: int) -> None:
    """Check that the disk of a folder takes another file of this size.

    Raises:
        StoreError: it does not.
    """
    # A file system that compresses would find room for zeros on a full disk.
    block, left = hashlib.shake_256(b"room").digest(min(size, _BLOCK)), size
    try:
        # It has no name once it is open, so that a process that dies here leaves nothing.
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            while left > 0:
                left -= file.write(block[:left])
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreError(f"{folder} does not take {size:,} bytes: {error.strerror}") from error
