"""The files of a DAP task, and functions that read and write them.

A DAP task is what two servers sum for a collector. The file `task.toml` is public, and a client
needs nothing else. Only the two servers may have `servers.secret`, and only the collector may have
`collector.token`.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from fedtally.base import archive
from fedtally.dap.task import Task, TaskSecret
from fedtally.domain import Domain, IntegerRange
from fedtally.errors import InvalidInputError, UnreadableFileError


def write_task(folder: Path, files: Mapping[str, str]) -> None:
    """Write the files of a task into a new folder.

    A file with a name that does not end with `.toml` can be read by its owner only.

    Args:
        folder: the folder, which must not exist.
        files: the text of each file, by the name of the file.

    Raises:
        InvalidInputError: the folder exists, or cannot be made.
    """
    if folder.exists():
        raise InvalidInputError(f"{folder} exists already: name another folder")
    with archive.drafted(folder) as draft:
        for name, text in files.items():
            with archive.replacing(draft / name, private=not name.endswith(".toml")) as temporary:
                Path(temporary).write_text(text, encoding="utf-8")
        draft.rename(folder)


def load_task(path: str | os.PathLike[str]) -> Task:
    """Return the task in a public file, `task.toml`.

    Raises:
        UnreadableFileError: the file cannot be read.
        InvalidInputError: the file is damaged, or of another version.
    """
    return Task.from_toml(_text(Path(path)))


def load_secret(path: str | os.PathLike[str]) -> TaskSecret:
    """Return the secret of a task from its file, `servers.secret`.

    Raises:
        UnreadableFileError: the file cannot be read.
        InvalidInputError: the file is damaged, or other users than its owner have a right on it.
    """
    place = Path(path)
    text = _text(place)
    check_private(place)
    return TaskSecret.from_toml(text)


def check_private(place: Path) -> None:
    """Refuse a file that other users than its owner may read, write or execute.

    Raises:
        InvalidInputError: the file's mode gives a right to its group or to everybody.
    """
    mode = stat.S_IMODE(place.stat().st_mode)
    if mode & 0o077:
        raise InvalidInputError(
            f"{place} is open to others than its owner (mode {mode:04o}): chmod 600 {place}"
        )


def key_number(public: bytes) -> int:
    """Return the number, 0 .. 255, by which DAP messages name a public key.

    >>> key_number(bytes(32))
    102
    """
    return hashlib.sha256(public).digest()[0]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise UnreadableFileError(
            f"cannot read {path} ({why}): give a file of fedtally dap task"
        ) from None


def domain_of_task(task: Task, given: Domain | None = None) -> Domain:
    """Return the candidates of a task, that is, the items that its sums count.

    Without `given` the candidates are numbers: 0 .. buckets - 1 for a histogram, 0 .. entries - 1
    for a vector, and the single number 1 for a task that counts.

    Args:
        task: the task.
        given: the candidates, in the order of buckets or entries; None: numbers.

    Raises:
        InvalidInputError: `given` has more or fewer candidates than the task; or a report of the
            task may add more than 1 to an entry, so that the sums do not count reports.
    """
    sizes = task.sizes
    if sizes.get("maximum", 1) > 1:
        raise InvalidInputError(
            f"entries of this task are numbers up to {sizes['maximum']:,}, and no shares of"
            " reports: leave the file of the result out"
        )
    size = sizes.get("buckets", sizes.get("entries", 1))
    if given is None:
        return IntegerRange(1, 1) if task.vdaf == "count" else IntegerRange(0, size - 1)
    if given.size != size:
        raise InvalidInputError(
            f"the task has {size:,} candidates, and the list has {given.size:,}: give its own list"
        )
    return given
