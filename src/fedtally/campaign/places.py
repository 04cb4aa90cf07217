"""What the folders of all servers share: who runs one, its settings, a mark, a ledger, a list."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtally.base import toml, validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.plan import Plan

LOCK = "lock"  # a file in a folder, held by the process that runs it; its number is in it
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?")
_BLOCK = 1 << 16  # candidates that are written at once


@contextmanager
def held_by(folder: Path, number: int) -> Iterator[None]:
    """Hold a folder while a process runs it.

    It is a courtesy to people who start a second process by mistake. What keeps two processes
    apart is the store, where the later one silences the earlier.

    Args:
        folder: the folder.
        number: the number of the process.

    Raises:
        InvalidInputError: another process holds it, or it cannot be held.
    """
    place = folder / LOCK
    try:
        file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise InvalidInputError(
            f"cannot open the lock {place} ({error.strerror}): run it as the user that may write"
            f" {folder}"
        ) from None
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInputError(
                f"process {_number_in(file)} runs {folder}: end it first, by SIGTERM"
            ) from None
        os.ftruncate(file, 0)
        os.pwrite(file, f"{number}\n".encode(), 0)
        yield
    finally:
        os.close(file)


def holder(folder: Path) -> int | None:
    """Return the number of the process that runs a folder; None: no process does."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _number_in(file)
    finally:
        os.close(file)
    return None


def _number_in(file: int) -> int:
    return int(os.pread(file, 20, 0).strip() or 0)


def check_origins(origins: Iterable[str]) -> None:
    """Refuse what is no origin of a page or an extension.

    Args:
        origins: the texts, each as `https://page.example`.

    Raises:
        InvalidInputError: one is no origin.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise InvalidInputError(
                f"{origin!r} is no origin of a page: give it as https://page.example"
            )


def read_settings(
    path: Path, schema: str, command: str, entries: Sequence[str], optional: Sequence[str]
) -> dict[str, Any]:
    """Return the entries of a file of settings of one of two servers, of which none is unknown.

    Args:
        path: the file.
        schema: the name and version of its schema.
        command: the command whose `leader init` makes it.
        entries: the names of its entries.
        optional: the names of those that may lack.

    Raises:
        UnreadableFileError: there is none, or it cannot be read, or it is of another version.
        InvalidInputError: an entry lacks, or is unknown.
    """
    try:
        values = toml.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableFileError(
            f"{path.parent} is no folder of a server: fedtally {command} leader init makes one"
        ) from None
    except (OSError, ValueError) as error:
        raise UnreadableFileError(f"cannot read {path}: {error}") from error
    if values.get("schema") != schema:
        raise UnreadableFileError(
            f"{path} has the schema {values.get('schema')!r}, and this version reads {schema}: run"
            " it with the fedtally that made it"
        )
    return validate.table(os.fspath(path), values, entries, optional=optional)


def text_in(file: str, values: Mapping[str, Any], name: str) -> str:
    """Return a text in a file of settings.

    Args:
        file: the name of the file.
        values: its entries.
        name: the name of the entry.

    Raises:
        InvalidInputError: it is no text, or empty.
    """
    found = values.get(name)
    if not isinstance(found, str) or not found:
        raise InvalidInputError(f"{file} needs the entry {name}, a text, got {found!r}")
    return found


def texts_in(file: str, values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a list of texts in a file of settings.

    Args:
        file: the name of the file.
        values: its entries.
        name: the name of the entry.

    Raises:
        InvalidInputError: it is no list of texts.
    """
    found = values[name]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInputError(f"{file} needs the entry {name}, a list of texts")
    return tuple(found)


def check_mark(mark: Path, folder: Path, called: str) -> None:
    """Refuse a mark within the folder whose old copies it is to show.

    Args:
        mark: the path of the mark.
        folder: the folder, which need not exist yet.
        called: the words for the folder in the error.

    Raises:
        InvalidInputError: the mark lies there.
    """
    # Real paths: neither .. nor a link may hide where the mark is.
    if Path(os.path.realpath(mark)).is_relative_to(os.path.realpath(folder)):
        raise InvalidInputError(
            f"the mark {mark} lies in {called}, and would be put back with it: name a file"
            " elsewhere, on another disk if possible"
        )


def check_ledger(ledger: str | None, plan: Plan) -> None:
    """Refuse a plan with privacy without a ledger, and a ledger that cannot be charged.

    Args:
        ledger: the address of the ledger; None: there is none.
        plan: the plan that is charged to it.

    Raises:
        InvalidInputError: one of the two.
    """
    if (ledger is None) == (plan.privacy is None):
        return
    raise InvalidInputError(
        "a plan with privacy is charged to a ledger: name it (fedtally ledger grant makes one)"
        if ledger is None
        else "the plan is without privacy, and a ledger cannot be charged: leave it out"
    )


def write_candidates(path: Path, domain: Domain) -> None:
    """Write the candidates of a list, none of which holds a line end, one a line."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for start in range(0, domain.size, _BLOCK):
            labels = domain.labels(range(start, min(start + _BLOCK, domain.size)))
            file.writelines(f"{label}\n" for label in labels)
