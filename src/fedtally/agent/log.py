"""The agent's log for the owner, limited in size.

Anybody who may connect to the agent causes lines in the log. Without a limit they could fill the
owner's disk.

At most `MOST_LINES` notes with the same reason are written in a window of an hour, which begins
with the first of them. The reason is the text of a note without its fingerprints and numbers,
because a server chooses those. Further notes are only counted. After the hour, the next note of any
reason ends the window, and so does `Log.close` at any time. If notes of the window were only
counted, the last of them is written then, with the number of counted notes before it. At most
`MOST_REASONS` reasons have a window of their own. All other reasons share one window.

A server may repeat a request. So a note about a session is ignored if it is equal to one of the
last `MOST_REMEMBERED` notes about sessions.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from fedtally.agent.agent import Note

MOST_LINES = 20  # the most lines that are written for one reason in one window
WINDOW_SECONDS = 3600
MOST_REASONS = 200  # the most reasons with a window each; further reasons share one window
MOST_REMEMBERED = 1000  # how many notes about sessions are remembered, to write none twice
_CHOSEN = re.compile(r"\b[0-9a-f]{8,}\b|\d+")


@dataclass
class _Window:
    """The notes with one reason in one window, which is a time of `WINDOW_SECONDS`.

    Attributes:
        since: the time of the first note, in seconds of the log's clock.
        lines: the number of notes that were written.
        left_out: the last note that was not written; None: all were written.
        count: the number of notes that were not written.
    """

    since: float
    lines: int = 0
    left_out: Note | None = None
    count: int = 0


class Log:
    """Write notes for the owner, at most `MOST_LINES` of one reason in a window of an hour.

    Args:
        write: called with a note and a number. For the note that is written at the end of a window,
            the number is the number of notes of the window that were never written. Otherwise it
            is 0. An OSError of `write` is ignored: a full disk must not keep the client from
            answering.
        clock: returns a monotonic time in seconds.
    """

    def __init__(
        self, write: Callable[[Note, int], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._write, self._clock = write, clock
        self._windows: dict[str, _Window] = {}
        self._told: dict[Note, None] = {}  # notes about sessions that were seen, the oldest first

    def __call__(self, note: Note) -> None:
        """Write a note, or count it if too many with its reason were written in this window.

        A note about a session is ignored if it is equal to one of the last `MOST_REMEMBERED` notes
        about sessions.
        """
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
        """End all windows. For a window with notes that were not written, write the last of these
        notes, with the number of notes before it that were not written.
        """
        self._close(self._clock())

    def _close(self, before: float) -> None:
        """End the windows whose first note was at the time `before` or earlier.

        For a window with notes that were not written, write the last of these notes, with the
        number of notes before it that were not written.
        """
        for reason, window in list(self._windows.items()):
            if window.since <= before:
                del self._windows[reason]
                if window.left_out is not None:
                    self._put(window.left_out, window.count - 1)

    def _put(self, note: Note, left_out: int) -> None:
        with suppress(OSError):
            self._write(note, left_out)
