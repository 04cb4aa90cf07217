"""Work of a session that takes time: reading and encoding the items.

An `Agent` starts a `Reading`, and asks later whether it is over. How the work is done is said by a
`Start`, so that the agent knows neither threads nor time. `at_once` does it before it returns.
`Aside` does it in a thread and gives it up after some seconds, so that no session waits for that of
another one.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from fedtally.errors import UnreadableFileError

if TYPE_CHECKING:
    from fedtally.campaign.client import FrequencyClient

FIRST_STEP = 1.0  # seconds: what takes no longer all looks the same
Work = Callable[[], "FrequencyClient"]


class Start(Protocol):
    """A way to do work; the arguments are those of `Reading`."""

    def __call__(self, work: Work, *, in_steps: bool = False) -> Reading:
        """Start the work."""


class Reading:
    """Items that are read and encoded for one session.

    Args:
        work: returns the client that holds them.
        seconds: how long it may take from now on, with whatever is done before it.
        in_steps: tell that it is over after 1, 2, 4, 8, ... seconds or at its end alone, so that
            the moment shows little of the items, and nothing where they take less than a second.
        clock: returns seconds that never go back.
    """

    def __init__(
        self,
        work: Work,
        seconds: float,
        *,
        in_steps: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._seconds, self._in_steps, self._clock = work, seconds, in_steps, clock
        self._begin = clock()
        self._told = self._begin + seconds  # when it is over for whoever asks
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._found: FrequencyClient | Exception | None = None
        self._calls: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"Reading(is_over={self.is_over})"

    @property
    def is_over(self) -> bool:
        """Whether the work is done, dropped, or given up: then `client` may be asked for."""
        return self.left == 0.0

    @property
    def left(self) -> float:
        """The seconds until it is over, as far as that is known, at the latest; 0.0: it is."""
        return max(0.0, self._told - self._clock())

    def client(self) -> FrequencyClient:
        """Return the client that holds the items, of a reading that is over.

        Raises:
            UnreadableFileError: the items were not there in time, or nobody waits for them any
                more.
            Exception: what the reader raised, as it was.
        """
        found = self._found
        if found is None:
            raise self._too_late()
        if isinstance(found, Exception):
            raise found
        return found

    def when_over(self, call: Callable[[], None]) -> None:
        """Call a function, in whatever thread, once `left` says when it is over."""
        with self._lock:
            if not self._ended.is_set():
                self._calls.append(call)
                return
        call()

    def wait(self) -> None:
        """Keep this thread until the reading is over."""
        self._ended.wait(self.left)
        time.sleep(self.left)

    def run(self) -> None:
        """Do the work, unless it is over already."""
        if self.is_over or self._ended.is_set():
            return
        try:
            found: FrequencyClient | Exception = self._work()
        except Exception as error:
            found = error
        except BaseException as error:  # nobody may wait for it for ever
            self._end_with(_broken(f"the reader raised {type(error).__name__}"))
            raise
        # Late is never: somebody may have been told already that the items were not there in time.
        self._end_with(found if self._took < self._seconds else self._too_late())

    def drop(self) -> None:
        """Let go of the items: their session is over."""
        none = _broken("their session is over")
        self._end_with(none)
        self._found, self._told = none, self._begin  # also where it was done before

    @property
    def _took(self) -> float:
        return self._clock() - self._begin

    def _end_with(self, found: FrequencyClient | Exception) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            step = 0.0
            if self._in_steps:
                step = FIRST_STEP * 2.0 ** math.ceil(math.log2(max(1.0, self._took / FIRST_STEP)))
            self._found, self._told = found, self._begin + min(self._seconds, step)
            self._ended.set()
            calls, self._calls = self._calls, []
        for call in calls:
            call()

    def _too_late(self) -> UnreadableFileError:
        return _broken(
            f"that takes more than {self._seconds:g} seconds; see what their reading waits for, or"
            " allow more (items.seconds)"
        )


def at_once(work: Work, *, in_steps: bool = False) -> Reading:
    """Do the work before this returns, however long it takes, and tell its end at once."""
    reading = Reading(work, float("inf"))
    reading.run()
    return reading


class Aside:
    """Do the work in a thread of its own, one piece after the other.

    No program can end a call that hangs, such as one of a disk that is gone. It goes on in its
    thread. The pieces behind it run out of time, and no further thread is started.

    Args:
        seconds: how long a piece may take from its start, with the pieces before it.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waiting: deque[Reading] = deque()
        self._is_running = False

    def __call__(self, work: Work, *, in_steps: bool = False) -> Reading:
        """Start a piece of work."""
        reading = Reading(work, self._seconds, in_steps=in_steps)
        with self._lock:
            # without those that ran out of time behind a call that hangs
            self._waiting = deque(one for one in self._waiting if not one.is_over)
            self._waiting.append(reading)
            if not self._is_running:
                # without a thread, as where there are too many, it runs out of time
                with suppress(RuntimeError):
                    threading.Thread(target=self._run, name="items", daemon=True).start()
                    self._is_running = True
        return reading

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_running = False
                    return
                reading = self._waiting.popleft()
            with suppress(BaseException):  # noted in the reading
                reading.run()
            del reading  # with its items


def _broken(why: str) -> UnreadableFileError:
    return UnreadableFileError(f"the items were not read: {why}")
