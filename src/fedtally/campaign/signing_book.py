"""The signing book: a text file beside the registrar's key, with all signatures of the key.

The registrar signs plans and revocations. Each signature of a plan and each revocation has a line
in the book, if the registrar calls `SigningBook.add`. The book shows which number the next plan of
a purpose gets, and which plans the registrar has ended. The book has no secret.

If the key file is copied, each copy has its own book, and the numbers in one book may be lower than
the numbers in another. A client refuses a plan whose number is lower than the number of a plan that
its owner accepted for the same purpose. So an old plan with a lower number never replaces a newer
plan.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedtally.base.sync import sync
from fedtally.campaign.enrolment import (
    MAX_NUMBER,
    REVOCATION_SCHEMA,
    PlanSignature,
    Revocation,
    checked_purpose,
    end_of,
)
from fedtally.errors import InvalidInputError, UnreadableFileError, opt

SUFFIX = ".signed"
# the most bytes of a book: enough for tens of thousands of signatures
_MOST_BYTES = 1 << 26


def book_path(key: str | os.PathLike[str]) -> Path:
    """Return the path of the signing book beside a registrar's key file.

    >>> book_path("registrar.key").name
    'registrar.key.signed'
    """
    return Path(os.fspath(key) + SUFFIX)


class SigningBook:
    """The signing book of a registrar, as it was when the object was made; `add` adds a line.

    Args:
        path: the path of the book, which need not exist.
        registrar: the public key of the registrar, 32 bytes.

    Raises:
        UnreadableFileError: the book cannot be read, is damaged, or has a line signed by another
            key.
    """

    def __init__(self, path: Path, registrar: bytes) -> None:
        self._path, self._registrar = path, registrar
        self._lines: list[PlanSignature | Revocation] = []
        try:
            with open(path, "rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise UnreadableFileError(f"cannot read {path}: {error.strerror}") from None
        # A book that was read in part would give numbers a second time.
        if len(data) > _MOST_BYTES:
            raise UnreadableFileError(
                f"{path} has more than {_MOST_BYTES:,} bytes, which is no signing book: put the"
                " newest copy back"
            )
        self._read(data)

    def highest(self, purpose: str) -> int:
        """Return the largest plan number that was signed for a purpose; 0 if no plan was signed."""
        return max((one.authority.number for one in self._signed(purpose)), default=0)

    def next_number(self, purpose: str) -> int:
        """Return the number that the next plan for a purpose gets.

        Raises:
            InvalidInputError: the largest possible number was signed already.
        """
        if (highest := self.highest(purpose)) == MAX_NUMBER:
            raise InvalidInputError(
                f"all numbers of the purpose {purpose!a} are used: choose another"
            )
        return highest + 1

    def ended(self) -> frozenset[str]:
        """Return the fingerprints of the plans that were replaced or revoked."""
        return frozenset(
            plan
            for one in self._lines
            for plan in (one.revoked if isinstance(one, Revocation) else one.authority.replaces)
        )

    def check_open(self, plan: str) -> None:
        """Refuse to sign a plan that was replaced or revoked.

        Args:
            plan: the fingerprint of the plan.

        Raises:
            InvalidInputError: the plan was replaced or revoked.
        """
        if plan in self.ended():
            raise InvalidInputError(
                f"plan {plan} was replaced or revoked, for good: plan anew, which gives another"
                " fingerprint"
            )

    def knows(self, plan: str) -> bool:
        """Return whether the plan with this fingerprint was signed."""
        return any(
            isinstance(one, PlanSignature) and one.fingerprint == plan for one in self._lines
        )

    def open_plans(self, purpose: str, now: float) -> list[str]:
        """Return the fingerprints of a purpose's plans that clients may still run.

        Such a plan was not replaced or revoked, and its last day is not over.

        Args:
            purpose: the purpose in the signatures of the plans.
            now: the time, Unix seconds.
        """
        ended = self.ended()
        # For a plan that was signed several times, this is the last day in its last signature.
        days = {one.fingerprint: one.authority.last_day for one in self._signed(purpose)}
        return [plan for plan, last in days.items() if plan not in ended and now < end_of(last)]

    def add(self, line: PlanSignature | Revocation) -> None:
        """Add a signature or revocation to the book; the line is on the disk before this returns.

        Call this before anybody else gets the signature or revocation. This object itself does not
        change.

        Raises:
            InvalidInputError: the book cannot be written, or it has a plan of the same purpose with
                the same or a larger number. Another process may have added that plan meanwhile.
            UnreadableFileError: the book was damaged meanwhile.
        """
        try:
            with _locked(self._path) as handle:
                now = SigningBook(self._path, self._registrar)
                if isinstance(line, PlanSignature):
                    now.check_number(line.authority.purpose, line.authority.number)
                _append(handle, line.to_line().encode("ascii"))
                sync(self._path.parent)
        except OSError as error:
            raise InvalidInputError(
                f"cannot write {self._path} ({error.strerror}), which must hold what was signed:"
                " make it writable, and sign again"
            ) from None

    def check_number(self, purpose: str, number: int) -> None:
        """Refuse a number for the next plan of a purpose if the number is too small.

        Raises:
            InvalidInputError: the number is not above all numbers that were signed for the purpose.
        """
        if number <= (highest := self.highest(purpose)):
            raise InvalidInputError(
                f"the number must be above {highest}, which was signed for the purpose {purpose!a},"
                f" got {number}: leave {opt.number} out, or name a larger one"
            )

    def _signed(self, purpose: str) -> Iterator[PlanSignature]:
        purpose = checked_purpose(purpose)
        for one in self._lines:
            if isinstance(one, PlanSignature) and one.authority.purpose == purpose:
                yield one

    def _read(self, data: bytes) -> None:
        # A last line without a line feed counts as damaged, since a new line would be appended to
        # it.
        for number, line in enumerate(data.decode("ascii", "replace").splitlines(True), 1):
            try:
                one = _line_of(line)
            except ValueError:
                raise UnreadableFileError(
                    f"{self._path} is damaged in line {number}: move it away, and name the next"
                    f" number yourself ({opt.number}), above all that were signed"
                ) from None
            if one.registrar != self._registrar:
                raise UnreadableFileError(
                    f"{self._path} is of another key (line {number}): move it away"
                )
            self._lines.append(one)


def _line_of(text: str) -> PlanSignature | Revocation:
    if not text.endswith("\n"):
        raise ValueError
    if text.startswith(REVOCATION_SCHEMA):
        return Revocation.from_line(text)
    return PlanSignature.from_line(text)


def _append(handle: int, text: bytes) -> None:
    """Append a text to a file and sync it to the disk; after an OSError, the file is as before."""
    before = os.fstat(handle).st_size
    try:
        if os.write(handle, text) != len(text):  # a disk that becomes full may accept only a part
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, before)
        raise


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a file for appending, lock it against other processes, and yield its handle.

    The file is made if it does not exist. Another process that has the lock is waited for.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
