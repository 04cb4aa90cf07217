"""Functions that the folders of servers share: lock, settings, checks, and the file of candidates.

The folder of a campaign has its own lock and reads its own settings (see `folder`). The lock and
`read_settings` here are for the folders of two servers.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from fedtally.base import toml, validate
from fedtally.campaign.runner import Runner
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, UnreadableFileError, opt
from fedtally.plan import Plan
from fedtally.store.marks import read_mark

LOCK = "lock"  # a file in the folder, locked by the process that runs it, and names it (`Runner`)
_ORIGIN = re.compile(r"https?://[a-z0-9.-]+(:[0-9]{1,5})?")
# paths that mean another file in each process
_LENT = re.compile(r"/dev/(fd/|std)|/proc/")
_BLOCK = 1 << 16  # how many candidates are written at a time
_Kept = TypeVar("_Kept")


@contextmanager
def held_by(folder: Path, number: int) -> Iterator[None]:
    """Lock a folder for the time of the `with` block, in which this process runs its server.

    The lock only warns people who start a second process by mistake. It does not stop a process
    from writing. The store (the database) does: once a later process claims it, an earlier one
    cannot write.

    The file is locked and names this process before it gets the name `lock`. Otherwise another
    process could find the lock and read the name of an earlier process in it.

    Args:
        folder: the folder.
        number: the PID of this process.

    Raises:
        InvalidInputError: another process has locked the folder or is about to, or the folder
            cannot be locked.
    """
    file = _named_lock(folder, number)
    try:
        yield
    finally:
        os.close(file)


def _named_lock(folder: Path, number: int) -> int:
    """Lock a new file that names this process, rename it to the folder's lock; return its handle.

    Raises:
        InvalidInputError: see `held_by`.
    """
    place = folder / f"{LOCK}.new"
    try:
        file = locked(place)
        try:
            _check_free(folder)
            os.ftruncate(file, 0)
            os.pwrite(file, Runner.this(number).line(), 0)
            os.replace(place, folder / LOCK)
        except BaseException:
            place.unlink(missing_ok=True)
            os.close(file)
            raise
    except BlockingIOError:
        _check_free(folder)
        raise InvalidInputError(f"another process is about to run {folder}: try again") from None
    except OSError as error:
        raise InvalidInputError(
            f"cannot open the lock {place} ({error.strerror}): run it as the user that may write"
            f" {folder}"
        ) from None
    return file


def locked(place: Path) -> int:
    """Open a file, lock it, and return its handle; the file is made if it does not exist.

    Raises:
        BlockingIOError: another process has locked the file.
        OSError: the file cannot be opened.
    """
    while True:
        file = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(file), place.lstat()):
                    return file
        except BaseException:
            os.close(file)
            raise
        # another process renamed the file before it was locked: try again with a new file
        os.close(file)


def holder(folder: Path) -> Runner | None:
    """Return the process that runs a folder's server.

    Returns None if no process runs it, or if the lock cannot be read.
    """
    try:
        # With O_NONBLOCK, `open` does not wait if the file is a pipe, for example.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
        file = os.open(folder / LOCK, flags)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return Runner.read(file)
    finally:
        os.close(file)
    return None


def _check_free(folder: Path) -> None:
    """Raise an error if another process runs a folder's server."""
    if (other := holder(folder)) is not None:
        raise InvalidInputError(f"process {other} runs {folder}: end it first, by SIGTERM")


def opened_if_made(open: Callable[[Path], _Kept], place: Path) -> _Kept | None:
    """Open a database of a server for reading, and return it.

    Returns None if the file does not exist or is empty. If a process dies while it makes the
    database, SQLite undoes its writes and leaves an empty file.

    Args:
        open: opens a database that exists, such as `store.Batches.open`.
        place: the path of the database.

    Raises:
        UnreadableFileError: the file is no such database, or of another version.
        StoreError: the database cannot be used.
    """
    if not place.exists():
        return None
    try:
        return open(place)
    except UnreadableFileError:
        if place.stat().st_size:
            raise
        return None


def how_lost(place: Path, mark: Path, plan: str, has_begun: Callable[[], bool]) -> str:
    """Say how a server lost a database of its folder; the text is "" if it did not.

    The folder was made with an empty mark, a file outside of the folder. A process counts its first
    write in the mark before anybody hears of it. So only a mark that is there and counts no write
    shows that the server never began. If both the database and its mark are gone, nobody knows, and
    the database counts as lost: with a new one, a second sum of the same clients could be opened.
    This function writes nothing.

    Args:
        place: the path of the database.
        mark: the path of the mark of the database.
        plan: the name in the mark, as for `read_mark`.
        has_begun: returns whether the database is there, and a process has claimed it. Its errors
            are passed on.

    Raises:
        UnreadableFileError: the mark cannot be read, or is of another plan.
    """
    # The mark is read first. If another process begins between the two reads, the second read finds
    # the database. In the other order, a new folder could seem to have lost it.
    marked, is_there = read_mark(mark, plan), mark.exists()
    if has_begun() or (is_there and not marked):
        return ""
    folder, name = place.parent, place.name
    if is_there:
        return f"{folder} has lost its {name}, and its mark {mark} shows that it has begun"
    return (
        f"{folder} has neither its {name} nor its mark {mark}: mount the disk of the mark, if that"
        " is what is missing"
    )


def check_origins(origins: Iterable[str]) -> None:
    """Refuse texts that are not the origin of a web page.

    Args:
        origins: the origins, each as `https://page.example`.

    Raises:
        InvalidInputError: a text is not the origin of a web page.
    """
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise InvalidInputError(
                f"{origin!r} is no origin of a page: give it as https://page.example"
            )


def read_settings(
    path: Path, schema: str, command: str, entries: Sequence[str], optional: Sequence[str]
) -> dict[str, Any]:
    """Return the entries of the settings file of one of two servers, by name.

    Args:
        path: the path of the file.
        schema: the name and version of the file's schema.
        command: the name in `fedtally NAME leader init`, the command that makes the file, for
            errors.
        entries: the names of all entries that the file may have.
        optional: the names of the entries that may be missing.

    Raises:
        UnreadableFileError: there is no file, or it cannot be read, or it is of another version.
        InvalidInputError: an entry is missing or unknown.
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
    """Return the value of an entry of a settings file, after checking that it is a text.

    Args:
        file: the name of the file, for errors.
        values: the entries of the file.
        name: the name of the entry.

    Raises:
        InvalidInputError: the value is missing, no text, or empty.
    """
    found = values.get(name)
    if not isinstance(found, str) or not found:
        raise InvalidInputError(f"{file} needs the entry {name}, a text, got {found!r}")
    return found


def texts_in(file: str, values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return the texts in an entry of a settings file, after checking that it is a list of texts.

    Args:
        file: the name of the file, for errors.
        values: the entries of the file. `name` must be among them.
        name: the name of the entry.

    Raises:
        InvalidInputError: the value is no list of texts.
    """
    found = values[name]
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidInputError(f"{file} needs the entry {name}, a list of texts")
    return tuple(found)


def check_mark(mark: Path, folder: Path, called: str) -> None:
    """Refuse a mark that is in the folder for which it is made.

    A mark is a small file that shows whether an old copy of the folder was restored. A mark in the
    folder would be restored together with the folder, and show nothing.

    Args:
        mark: the path of the mark.
        folder: the path of the folder, which need not exist yet.
        called: what the error calls the folder.

    Raises:
        InvalidInputError: the mark is in the folder.
    """
    # Real paths are compared, since `..` or a link could hide that the mark is in the folder.
    if Path(os.path.realpath(mark)).is_relative_to(os.path.realpath(folder)):
        raise InvalidInputError(
            f"the mark {mark} lies in {called}, and would be put back with it: name a file"
            " elsewhere, on another disk if possible"
        )


def kept_ledger(ledger: str | None, file: str) -> str | None:
    """Return the path or URL of a ledger, as a settings file keeps it: a path becomes absolute.

    Args:
        ledger: the path or URL of the ledger of privacy budgets; None: no ledger is given, and the
            result is None.
        file: the name of the settings file, for the error.

    Raises:
        InvalidInputError: the ledger is a URL with a password, which the file would show, or a URL
            of neither SQLite nor PostgreSQL.
    """
    if ledger is None:
        return None
    if "://" not in ledger:
        return str(Path(ledger).absolute())
    # imported here, because it loads a database library, which the other functions do not need
    from fedtally.store.database import has_password, name_of

    if has_password(ledger):
        raise InvalidInputError(
            f"{opt.ledger(name_of(ledger))} holds a password, which would be written in plain into"
            f" {file}, a file for backups: leave the password out, and write it into ~/.pgpass of"
            " the user who runs the server (mode 0600), or log in without one, by a Unix socket"
        )
    return ledger


def check_plain_file(option: str, path: Path) -> None:
    """Refuse a path that a settings file keeps, if a later process cannot read it again.

    Such a path names a pipe, for instance that of `<(...)` in a shell, or an open file of this
    process. A path of a file that does not exist is accepted.

    Args:
        option: the option that has the path, for the error, such as `opt.key`.
        path: the path, absolute.

    Raises:
        InvalidInputError: the path is refused.
    """
    place = os.fspath(path)
    if os.path.exists(path) and (_LENT.match(place) or not os.path.isfile(path)):
        raise InvalidInputError(
            f"{opt[option](place)} is no plain file, and the server reads it again at each start:"
            " name the file itself, where it stays"
        )


def check_ledger(ledger: str | None, plan: Plan) -> None:
    """Refuse a plan with privacy but no ledger, and a plan with a ledger but no privacy.

    Args:
        ledger: the path or URL of the ledger of privacy budgets; None: no ledger is given. Whether
            it exists is not checked.
        plan: the plan, which is charged to the ledger if it has privacy.

    Raises:
        InvalidInputError: the plan has privacy and `ledger` is None, or the plan has no privacy and
            `ledger` is given.
    """
    if (ledger is None) == (plan.privacy is None):
        return
    raise InvalidInputError(
        "a plan with privacy is charged to a ledger: name it (fedtally ledger grant makes one)"
        if ledger is None
        else "the plan is without privacy, and a ledger cannot be charged: leave it out"
    )


def cautions(ledger: str | None, plan: Plan) -> list[str]:
    """Return a warning if the delta that the ledger grants is too large for the clients of a plan.

    The list has one text, or is empty.

    Args:
        ledger: the path or URL of the ledger of privacy budgets; None: no ledger is given,
            and the list is empty.
        plan: the plan, which is charged to the ledger if it has privacy.
    """
    if ledger is None or plan.privacy is None:
        return []
    # imported here, because it loads a database library, which the other functions do not need
    from fedtally.store import Ledger

    books = Ledger.open(ledger)
    return books.cautions(
        plan.privacy.population, plan.fleet * plan.people, plan.clients.counted[1]
    )


def write_candidates(path: Path, domain: Domain) -> None:
    """Write the candidates of a domain to a file, one on each line, in UTF-8.

    No candidate may contain a line end.
    """
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for start in range(0, domain.size, _BLOCK):
            labels = domain.labels(range(start, min(start + _BLOCK, domain.size)))
            file.writelines(f"{label}\n" for label in labels)
