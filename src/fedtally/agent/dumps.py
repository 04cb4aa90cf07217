"""No core dump of a process that holds secrets, whoever starts it."""

from __future__ import annotations

import ctypes
import os
import resource

from fedtally.errors import InvalidInputError

_SET_DUMPABLE = 4  # PR_SET_DUMPABLE of Linux


def forbid_dumps() -> None:
    """Keep this process's memory from core dumps and from other processes of its user.

    A limit of 0 bytes stops a core file, but no program that a system pipes dumps to. A process
    that is not dumpable has no dump at all; its files in /proc then belong to root, and of other
    processes only root's may trace it or read its memory. A program that it starts is dumpable
    again, but for the limit.

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
