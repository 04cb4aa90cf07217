"""Every exception that fedtally raises on purpose.

All of them derive from `FedtallyError`. Its `exit_code` is what the command line returns: 2 where
the caller can mend the input, 1 where a run failed. Any other exception that leaves the package is
a bug.
"""

from __future__ import annotations


class FedtallyError(Exception):
    """Base of every error raised on purpose."""

    exit_code = 1


class InvalidInputError(FedtallyError, ValueError):
    """Reject an argument, a file or a combination of options; the message names value, bound and way out."""

    exit_code = 2


class OutsideDomainError(InvalidInputError):
    """Reject an item that is not in the declared domain."""


class IncompatibleError(InvalidInputError):
    """Reject the combination of sketches, plans or results that do not belong together."""


class UnreadableFileError(InvalidInputError):
    """Reject a file that is missing, damaged, of another format or of a newer version."""


class MemoryLimitError(InvalidInputError):
    """Refuse work that would not fit the memory."""


class OvertakenError(FedtallyError):
    """Say that another process runs this campaign now: this one must neither write nor speak."""


class MissingExtraError(FedtallyError, ImportError):
    """Say which optional dependency is missing and how to install it."""

    exit_code = 2
