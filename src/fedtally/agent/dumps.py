"""Prevent core dumps of a process that holds secrets."""

from __future__ import annotations

import ctypes
import os
import resource

from fedtally.errors import InvalidInputError

_SET_DUMPABLE = 4  # PR_SET_DUMPABLE of Linux


def forbid_dumps() -> None:
    """Protect this process's memory from core dumps and from other processes of the same user.

    Two settings are needed. A limit of 0 bytes prevents a core file, but a system may also pipe a
    dump to a program. A process that is not dumpable has no dump at all. Its files in /proc then
    belong to root, and only processes of root may trace it or read its memory. A program that this
    process starts is dumpable again, but keeps the limit.

    Raises:
        InvalidInputError: the system does not allow it.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    system = ctypes.CDLL(None, use_errno=True)
    none = ctypes.c_ulong(0)
    if system.prctl(_SET_DUMPABLE, none, none, none, none) != 0:
        raise InvalidInputError(
            f"core dumps of the agent cannot be forbidden ({os.strerror(ctypes.get_errno())}), and"
            " would hold its secrets: allow prctl in the sandbox that it runs in"
        )
