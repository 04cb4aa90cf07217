"""The files of a DAP task, and what follows from them; a client needs no more.

`task.toml` is public. `servers.secret` is for both servers alone, and `collector.token` for the
collector alone.
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
    """Write the files of a task into a new folder; those but `*.toml` are for its owner alone.

    Args:
        folder: the folder, which must not exist.
        files: texts by names.

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
    """Return the task of a public file.

    Raises:
        UnreadableFileError: the file cannot be read.
        InvalidInputError: it is damaged, or of another version.
    """
    return Task.from_toml(_text(Path(path)))


def load_secret(path: str | os.PathLike[str]) -> TaskSecret:
    """Return the secret of a task.

    Raises:
        UnreadableFileError: the file cannot be read.
        InvalidInputError: it is damaged, or open to others than its owner.
    """
    place = Path(path)
    text = _text(place)
    check_private(place)
    return TaskSecret.from_toml(text)


def check_private(place: Path) -> None:
    """Refuse a file that others than its owner may read or write.

    Raises:
        InvalidInputError: they may.
    """
    mode = stat.S_IMODE(place.stat().st_mode)
    if mode & 0o077:
        raise InvalidInputError(
            f"{place} is open to others than its owner (mode {mode:04o}): chmod 600 {place}"
        )


def key_number(public: bytes) -> int:
    """Return the number of a key, 0 .. 255, which messages name it by.

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
    """Return the candidates of a task: those of a list, else the numbers of its entries.

    A count has one candidate, 1. Buckets and entries are counted from 0.

    Args:
        task: the task.
        given: the candidates in the order of buckets or entries; None: numbers.

    Raises:
        InvalidInputError: the list has more candidates than the task, or fewer; or the sums of the
            task are no numbers of reports.
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
