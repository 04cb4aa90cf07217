"""The process that runs a server's folder, as the file `lock` of the folder names it.

A PID alone names no process: each container has PIDs of its own, and its server often has the PID
1. So the lock also says in which PID namespace the process is, and when it started.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple, Self

_MOST_BYTES = 200  # no line of a lock is longer


class Runner(NamedTuple):
    """A process that has locked a folder; its text is its PID, and that it is elsewhere.

    Args:
        number: its PID in its own namespace; 0: the lock does not say it.
        namespace: its PID namespace, as `pid:[4026531836]`; "": not known, as on macOS.
        start: when it started, in clock ticks after the boot; "": not known, as on macOS.
    """

    number: int
    namespace: str = ""
    start: str = ""

    @classmethod
    def this(cls, number: int) -> Self:
        """Return this process, whose PID is `number`."""
        return cls(number, _namespace(), _start("self"))

    @classmethod
    def read(cls, file: int) -> Self:
        """Return the process that an open lock names."""
        words = os.pread(file, _MOST_BYTES, 0).decode("ascii", "replace").split()
        return cls(int(words[0]), *words[1:3]) if words else cls(0)

    def line(self) -> bytes:
        """Return the line that names this process in a lock."""
        return f"{' '.join(map(str, self))}\n".encode()

    @property
    def is_here(self) -> bool:
        """Whether the process is in the PID namespace of this one, so that its PID counts here."""
        return self.namespace == _namespace()

    def is_seen(self) -> bool:
        """Tell whether its PID is that of the same process here, which a signal would reach.

        It is not in another container, where the PID may be that of a stranger or of nobody.
        """
        is_other = self.number not in (0, os.getpid())
        return is_other and self.is_here and self.start == _start(str(self.number))

    def how_to_end(self) -> str:
        """Return in words how to end the process without a wait for its sessions."""
        if self.is_here:
            return f"kill {self.number}, or systemctl stop its service"
        return "stop its container"

    def __str__(self) -> str:
        return words(self.number, not self.is_here)


def fields(process: Runner | None) -> dict[str, Any]:
    """Return the JSON fields that name a process: `process` and `in_another_container`.

    Args:
        process: the process; None: no process has locked the folder.
    """
    return {
        "process": process and process.number,
        "in_another_container": process is not None and not process.is_here,
    }


def words(number: int, is_elsewhere: bool) -> str:
    """Return a PID as text that says whether it counts in another container.

    >>> words(1, True)
    '1 of another container'
    """
    return f"{number}{' of another container' if is_elsewhere else ''}"


def _namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start(process: str) -> str:
    """Return when a process of /proc started, in clock ticks; "": there is none, or no /proc."""
    try:
        said = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    # the name of the program comes before, in parentheses, and may have spaces
    return said.rpartition(")")[2].split()[19]
