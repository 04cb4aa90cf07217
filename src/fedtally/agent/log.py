"""The agent's log, bounded: whoever may connect cannot fill the owner's disk with it.

Of each reason, `MOST_LINES` lines an hour are written; the others are counted, and the count is
written once the hour is over. What a server chooses, such as fingerprints and numbers, makes no
other reason. A line of a session is written once, however often the server asks the same again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fedtally.agent.agent import Note

MOST_LINES = 20  # of a reason, in a window
WINDOW_SECONDS = 3600
MOST_REASONS = 200  # all others count as one
MOST_REMEMBERED = 1000  # lines of sessions that are not written again
_CHOSEN = re.compile(r"\b[0-9a-f]{8,}\b|\d+")


@dataclass
class _Window:
    """What was written of a reason, and what was not.

    Attributes:
        since: when the first line was written.
        lines: how many were.
        left_out: the last note that was not; None: all were.
        count: how many were not.
    """

    since: float
    lines: int = 0
    left_out: Note | None = None
    count: int = 0


class Log:
    """Write notes, of each reason no more than `MOST_LINES` in an hour.

    Args:
        write: writes a note, with how many more like it were left out. An OSError of it, as on a
            full disk, is passed over: it must not keep a client from answering.
        clock: returns seconds that never go back.
    """

    def __init__(
        self, write: Callable[[Note, int], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock = write, clock
        self._windows: dict[str, _Window] = {}
        self._told: dict[Note, None] = {}  # the oldest first

    def __call__(self, note: Note) -> None:
        """Write a note, or count it; a session's note that was told is passed over."""
        if note.session:
            if note in self._told:
                return
            self._told[note] = None
            if len(self._told) > MOST_REMEMBERED:
                del self._told[next(iter(self._told))]
        now = self._clock()
        self._close(now - WINDOW_SECONDS)
        reason = _CHOSEN.sub("", note.what)
        if reason not in self._windows and len(self._windows) >= MOST_REASONS:
            reason = ""
        window = self._windows.setdefault(reason, _Window(now))
        if window.lines < MOST_LINES:
            window.lines += 1
            self._put(note, 0)
        else:
            window.left_out, window.count = note, window.count + 1

    def close(self) -> None:
        """Write what was left out so far."""
        self._close(self._clock())

    def _close(self, before: float) -> None:
        """End the windows that began at a time or earlier, and write what they left out."""
        for reason, window in list(self._windows.items()):
            if window.since <= before:
                del self._windows[reason]
                if window.left_out is not None:
                    self._put(window.left_out, window.count - 1)

    def _put(self, note: Note, left_out: int) -> None:
        with suppress(OSError):
            self._write(note, left_out)
