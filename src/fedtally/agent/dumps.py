"""Prevent core dumps of a process that holds secrets."""

from __future__ import annotations

import ctypes
import os
import resource

from fedtally.errors import InvalidInputError

_SET_DUMPABLE = 4  # the number of the operation PR_SET_DUMPABLE of prctl, on Linux


def forbid_dumps() -> None:
    """Protect this process's memory from core dumps and from other processes of the same user.

    A core dump is a file with the memory of a process, which the system writes when the process
    crashes. Two settings are needed to prevent it:

    - A limit of 0 bytes prevents the file. But a system may also pipe the memory to a program, and
      the limit does not prevent that.
    - A process that is not dumpable has no core dump at all. Its files in /proc then belong to
      root, and only processes of root may trace it or read its memory.

    A program that this process starts has the limit, but is dumpable again.

    Raises:
        InvalidInputError: the system does not allow the second setting.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    system = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    if system.prctl(_SET_DUMPABLE, none, none, none, none) != 0:
        raise InvalidInputError(
            f"core dumps of the agent cannot be forbidden ({os.strerror(ctypes.get_errno())}), and"
            " would hold its secrets: allow prctl in the sandbox that it runs in"
        )
