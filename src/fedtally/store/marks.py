"""Marks: small files that show whether a database is an old copy of itself.

A mark holds the number of the last write whose effect another party may have seen. It is kept
outside of the database's folder and backups. If a database has fewer writes than its mark, then an
old copy, such as a backup, was *put back*. The old copy does not know what was sent since it was
made.

A mark is one line of a fixed length, and each new line overwrites the old line in place. The line
fits into the first sector of the file. Since a disk writes a sector as a whole, the file holds the
old line or the new line after a loss of power.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtally.base.links import real_path
from fedtally.base.sync import sync
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.store.database import WAIT_SECONDS, StoreError

_DIGITS = 19  # as many digits as SQLite's largest integer
_SECTOR = 512  # bytes of a disk's sector; a mark must fit into it
_MODE = 0o644  # before the umask; not group-writable, since an agent refuses such a mark


def read_mark(path: Path, name: str) -> int | None:
    """Return the number of writes in a mark; None if the mark is missing or empty.

    Args:
        path: the path of the mark.
        name: the name that must stand in the mark, such as the plan's fingerprint; without blanks.

    Raises:
        UnreadableFileError: the file cannot be read, or is no mark with this name.
    """
    try:
        # Read as bytes, which is faster than text, since a mark is read before each write.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(handle, _SECTOR).decode("ascii")
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"cannot read the mark {path}: {error}") from error
    if not text:  # made by `new_mark`, or the first write to the mark failed (crash, full disk)
        return None
    found, _, writes = text.strip().partition(" ")
    if found != name or not writes.isdecimal():
        raise UnreadableFileError(f"{path} is not the mark of {name[:16]}")
    return int(writes)


def is_empty(path: Path) -> bool:
    """Return whether a mark is there and has no number, as after `new_mark`."""
    try:
        return path.stat().st_size == 0
    except OSError:  # missing, or on a disk that is away
        return False


@contextmanager
def new_mark(mark: str | os.PathLike[str]) -> Iterator[None]:
    """Make an empty mark; remove it again if the block of the `with` statement raises.

    Raises:
        InvalidInputError: the mark exists already.
        OSError: the mark cannot be made.
    """
    place = real_path(mark)  # links resolved: a mark's lock (`hold_mark`) is beside the real file
    try:
        os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE))
    except FileExistsError:
        raise InvalidInputError(
            f"the mark {mark} exists already: name another file, or remove it if its campaign is"
            " gone"
        ) from None
    try:
        sync(place.parent)
        yield
    except BaseException:
        place.unlink(missing_ok=True)
        raise


@contextmanager
def hold_mark(path: Path) -> Iterator[None]:
    """Lock a mark for the `with` block; other processes that call this wait meanwhile.

    Args:
        path: the path of the mark. The lock is another file beside it, since the mark may not exist
            yet.

    Raises:
        StoreError: the lock file cannot be opened or locked, or another process holds the lock for
            more than 30 seconds.
    """
    lock = path.with_name(f".{path.name}.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
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
        except OSError as error:  # for instance, the file system has no locks
            raise _unwritten(path, error) from error
        yield
    finally:
        os.close(handle)


def _is_locked(handle: int) -> bool:
    """Try to lock an open file; return whether this process now has the lock.

    The kernel releases the lock when the file is closed, also at the end of the process.
    """
    import fcntl  # imported here: not every system has it, and a ledger can do without

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_mark(path: Path, name: str, writes: int) -> None:
    """Write a number of writes to a mark; when this returns, it is on the disk.

    Args:
        path: the path of the mark.
        name: the name to write into the mark, without blanks.
        writes: the number of writes of the database.

    Raises:
        StoreError: the mark cannot be written.
    """
    is_new = not os.path.exists(path)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            line = f"{name} {writes:0{_DIGITS}}\n".encode()
            if os.write(handle, line) != len(line):  # a nearly full disk may write a part
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        finally:
            os.close(handle)
        if is_new:
            sync(path.parent)  # or a loss of power could remove the new file
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> StoreError:
    # Not UnreadableFileError, which the driver takes for a damaged session: it could end the
    # session.
    return StoreError(f"cannot write the mark {path}: {error.strerror}")
