"""The agent's log, bounded, so that no user who may connect can fill the owner's disk.

Lines with the same reason (the text of a note) are limited to `MOST_LINES` an hour. Further lines
are counted, and the count is written when the hour is over. Fingerprints and numbers do not count
as a part of the reason, since a server chooses them. A line of a session is written once, even if
the server repeats its request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fedtally.agent.agent import Note

MOST_LINES = 20  # lines written for one reason in one window
WINDOW_SECONDS = 3600
MOST_REASONS = 200  # reasons with a window of their own; all others share one
MOST_REMEMBERED = 1000  # the latest lines of sessions, remembered to write none twice
_CHOSEN = re.compile(r"\b[0-9a-f]{8,}\b|\d+")


@dataclass
class _Window:
    """The lines of one reason in one window of `WINDOW_SECONDS`: written and left out.

    Attributes:
        since: the time of the first line, seconds of the log's clock.
        lines: the number of lines that were written.
        left_out: the last note that was not written; None: all were written.
        count: the number of notes that were not written.
    """

    since: float
    lines: int = 0
    left_out: Note | None = None
    count: int = 0


class Log:
    """Write notes, at most `MOST_LINES` an hour with the same reason.

    Args:
        write: called with a note and the number of similar notes that were left out. An OSError
            that it raises, for example for a full disk, is ignored, so that the client still
            answers.
        clock: returns a monotonic time in seconds.
    """

    def __init__(
        self, write: Callable[[Note, int], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock = write, clock
        self._windows: dict[str, _Window] = {}
        self._told: dict[Note, None] = {}  # the oldest first

    def __call__(self, note: Note) -> None:
        """Write a note, or count it. A session's note that was seen before is ignored."""
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
        """End all windows, and write their counts of notes that were left out."""
        self._close(self._clock())

    def _close(self, before: float) -> None:
        """End the windows that began at `before` or earlier, and write what they left out."""
        for reason, window in list(self._windows.items()):
            if window.since <= before:
                del self._windows[reason]
                if window.left_out is not None:
                    self._put(window.left_out, window.count - 1)

    def _put(self, note: Note, left_out: int) -> None:
        with suppress(OSError):
            self._write(note, left_out)
