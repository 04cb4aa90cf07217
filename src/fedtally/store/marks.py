"""Marks: small files that show that a database is not an old copy of itself.

A mark holds the number of the last write that somebody may know of. It lies outside of the
database and of its backups. A database with fewer writes than its mark is a copy that was put back:
it has forgotten what was said since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedtally.errors import UnreadableFileError
from fedtally.store.database import WAIT_SECONDS, StoreError


def real_path(mark: str | os.PathLike[str]) -> Path:
    """Return the path of a mark without links: renaming would replace a link, on its own disk."""
    return Path(os.path.realpath(mark))


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


@contextmanager
def hold_mark(path: Path) -> Iterator[None]:
    """Keep every other process that holds this mark waiting until the block is over.

    Args:
        path: of the mark. The lock is a file beside it, since a mark is replaced by renaming.

    Raises:
        StoreError: the lock cannot be opened or taken, or another process keeps it for too long, as
            one that was suspended.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        try:
            end = time.monotonic() + WAIT_SECONDS
            while not _is_locked(handle):
                if time.monotonic() > end:
                    raise StoreError(
                        f"another process holds the mark {path} for {WAIT_SECONDS} seconds: end it"
                    )
                time.sleep(0.01)
        except OSError as error:  # as on a file system without locks
            raise _unwritten(path, error) from error
        yield
    finally:
        os.close(handle)


def _is_locked(handle: int) -> bool:
    """Take the lock of a file, which the kernel gives up with its process; False: it is taken."""
    import fcntl  # not everywhere: a ledger needs none

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> StoreError:
    # No error of a file that cannot be read: the driver would give a session up for it.
    return StoreError(f"cannot write the mark {path}: {error.strerror}")
