"""Marks: small files that show whether a database is an old copy of itself.

A mark holds the number of the last write that another party may have learned of. It is kept outside
of the database and of its backups. If a database has fewer writes than its mark, then an old copy,
such as a backup, was put back. It does not know what was sent since.

A mark is one line, and a new line overwrites the old one in place. Lines have one length and fit
into the first sector of the file. A disk writes a sector as a whole, so that after a loss of power
the file holds the old line or the new one.
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

_DIGITS = 19  # digits of the number, as in SQLite's largest integer
_SECTOR = 512  # bytes of a disk's sector: a mark is shorter
_MODE = 0o644  # the file mode, less the umask: an agent refuses a mark that a group may write


def read_mark(path: Path, name: str) -> int | None:
    """Return the number of writes in a mark; None: the mark is missing or empty.

    Args:
        path: the path of the mark.
        name: the name that the mark must have, without blanks, such as the plan's fingerprint.

    Raises:
        UnreadableFileError: the file cannot be read, or is the mark of something else.
    """
    try:
        # Read as bytes, which is faster than a text file: a mark is read before each write.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(handle, _SECTOR).decode("ascii")
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"cannot read the mark {path}: {error}") from error
    if not text:  # made by `new_mark`; or the first write of it failed (a crash, a full disk)
        return None
    found, _, writes = text.strip().partition(" ")
    if found != name or not writes.isdecimal():
        raise UnreadableFileError(f"{path} is not the mark of {name[:16]}")
    return int(writes)


@contextmanager
def new_mark(mark: str | os.PathLike[str]) -> Iterator[None]:
    """Make an empty mark, and remove it again if the block raises.

    Raises:
        InvalidInputError: the file exists already.
        OSError: the file cannot be made.
    """
    place = real_path(mark)  # without symbolic links: the lock is made beside the real file
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
    """Lock a mark during the block; other processes that call this wait until the block ends.

    Args:
        path: the path of the mark. The lock is a second file beside the mark, since the mark does
            not exist before its first write.

    Raises:
        StoreError: the lock cannot be opened or taken; or another process holds it for more than 30
            seconds, for instance because it was suspended.
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
    """Try to lock an open file; return False if another process holds the lock.

    The kernel releases the lock when the process ends.
    """
    import fcntl  # imported here, since not every system has it, and a ledger does not need it

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_mark(path: Path, name: str, writes: int) -> None:
    """Write a mark; it is on the disk when this returns.

    Args:
        path: the path of the mark.
        name: the name of the mark, without blanks.
        writes: the number of writes.

    Raises:
        StoreError: the mark cannot be written.
    """
    is_new = not os.path.exists(path)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
        try:
            line = f"{name} {writes:0{_DIGITS}}\n".encode()
            if os.write(handle, line) != len(line):  # a disk may take a part before it is full
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
        finally:
            os.close(handle)
        if is_new:
            sync(path.parent)  # so that the new file's name survives a loss of power
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> StoreError:
    # StoreError and not UnreadableFileError: for the latter, the driver would give up a session.
    return StoreError(f"cannot write the mark {path}: {error.strerror}")
