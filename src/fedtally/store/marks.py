"""Marks: small files that show that a database is not an old copy of itself.

A mark holds the number of the last write that somebody may know of. It lies outside of the
database and of its backups. A database with fewer writes than its mark is a copy that was put back:
it has forgotten what was said since.

A mark is one line, and a new one overwrites it in its place. The line always has the same length
and lies in the first sector of the file, which a disk writes whole: a loss of power leaves the old
line or the new one.
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

_DIGITS = 19  # of the number: as many as the largest integer of SQLite has
_SECTOR = 512  # bytes: a mark has fewer
_MODE = 0o644  # less the umask: an agent refuses a mark that a group may write


def read_mark(path: Path, name: str) -> int | None:
    """Return the number of the last write that is marked; None: there is no mark.

    Args:
        path: the path of the mark.
        name: the name of what is marked, without blanks.

    Raises:
        UnreadableFileError: the file cannot be read, or is the mark of something else.
    """
    try:
        # As bytes: it is read before each write, and Python takes longer to open a file of text.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(handle, _SECTOR).decode("ascii")
        finally:
            os.close(handle)
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFileError(f"cannot read the mark {path}: {error}") from error
    if not text:  # of `new_mark`; or a crash, or a full disk, when it was to be written first
        return None
    found, _, writes = text.strip().partition(" ")
    if found != name or not writes.isdecimal():
        raise UnreadableFileError(f"{path} is not the mark of {name[:16]}")
    return int(writes)


@contextmanager
def new_mark(mark: str | os.PathLike[str]) -> Iterator[None]:
    """Make an empty mark, which nothing is marked in: its place is taken, if the block succeeds.

    Raises:
        InvalidInputError: the file exists already.
        OSError: it cannot be made.
    """
    place = real_path(mark)  # the lock and the folder are those of the file
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
    """Keep every other process that holds this mark waiting until the block is over.

    Args:
        path: the path of the mark. The lock is a file beside it: a mark is not made before its
            first write.

    Raises:
        StoreError: the lock cannot be opened or taken, or another process keeps it for too long, as
            one that was suspended.
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
    """Write a mark, whole: it is on the disk before this returns.

    Raises:
        StoreError: it cannot be written.
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
            sync(path.parent)  # its name, too, survives a loss of power
    except OSError as error:
        raise _unwritten(path, error) from error


def _unwritten(path: Path, error: OSError) -> StoreError:
    # No error of a file that cannot be read: the driver would give a session up for it.
    return StoreError(f"cannot write the mark {path}: {error.strerror}")
