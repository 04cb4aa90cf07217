"""The exceptions that fedtally raises on purpose.

All of them derive from `FedtallyError`. The command line exits with their `exit_code`: 2 where the
caller can mend the input, 1 where a run failed. Any other exception that leaves the package is a
bug.
"""

from __future__ import annotations


class FedtallyError(Exception):
    """The base of every error that is raised on purpose."""

    exit_code = 1


class InvalidInputError(FedtallyError, ValueError):
    """An argument, a file or a combination of options is rejected.

    The message names the value, the bound, and a way out.
    """

    exit_code = 2


class OutsideDomainError(InvalidInputError):
    """An item is not in the declared domain."""


class IncompatibleError(InvalidInputError):
    """Sketches, plans or results do not belong together."""


class UnreadableFileError(InvalidInputError):
    """A file is missing, damaged, of another format or of a newer version."""


class MemoryLimitError(InvalidInputError):
    """The work would not fit the memory."""


class OvertakenError(FedtallyError):
    """Say that another process runs this campaign now: this one must neither write nor speak."""


class MissingExtraError(FedtallyError, ImportError):
    """An optional dependency is missing; the message says how to install it."""

    exit_code = 2


def reason(error: Exception) -> str:
    """Return what is wrong behind a colon, if an error says it in words of this package, else "".

    Errors of NumPy, Arrow and Python speak of their own insides.

    >>> reason(InvalidInputError("a counter is beyond 2^62")), reason(KeyError("noise"))
    (': a counter is beyond 2^62', '')
    """
    return f": {error}" if isinstance(error, FedtallyError) else ""
