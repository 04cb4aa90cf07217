"""Read and encode the items of a session, which may take time.

An `Agent` starts a `Reading`, and later asks it whether it is over. A `Start` decides how the
reading runs, so that the agent's code uses neither threads nor clocks. `at_once` reads before it
returns. `Aside` reads in a thread with a time limit, so that other sessions do not wait.
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

FIRST_STEP = 1.0  # seconds: all readings up to this time look the same from outside
Work = Callable[[], "FrequencyClient"]


class Start(Protocol):
    """A function that runs the work of a reading; its arguments are those of `Reading`."""

    def __call__(self, work: Work, *, in_steps: bool = False) -> Reading:
        """Start the work, and return its `Reading`, which may still run."""


class Reading:
    """The reading and encoding of the items for one session.

    Args:
        work: a function that reads the items and returns the client that holds them.
        seconds: the time limit from now on, including the time before the work is started.
        in_steps: whether the end is reported only 1, 2, 4, 8, ... seconds after the start or at
            the time limit. The time of an answer then reveals little about the items, and nothing
            if the work takes less than a second.
        clock: returns a monotonic time in seconds.
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
        self._told = self._begin + seconds  # the time at which the end is reported
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._found: FrequencyClient | Exception | None = None
        self._calls: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"Reading(is_over={self.is_over})"

    @property
    def is_over(self) -> bool:
        """Whether the work is done, dropped or out of time; only then `client` may be called."""
        return self.left == 0.0

    @property
    def left(self) -> float:
        """The longest time in seconds until the reading is over; 0.0: it is over."""
        return max(0.0, self._told - self._clock())

    def client(self) -> FrequencyClient:
        """Return the client that holds the items. The reading must be over.

        Raises:
            UnreadableFileError: the time ran out before the items were read, or `drop` was called.
            Exception: the error that the work raised.
        """
        found = self._found
        if found is None:
            raise self._too_late()
        if isinstance(found, Exception):
            raise found
        return found

    def when_over(self, call: Callable[[], None]) -> None:
        """Call a function, in any thread, once the work has ended or was dropped.

        From then on `left` is the exact time until the reading is over. The function is not called
        if the time runs out before the work ends.
        """
        with self._lock:
            if not self._ended.is_set():
                self._calls.append(call)
                return
        call()

    def wait(self) -> None:
        """Block this thread until the reading is over."""
        self._ended.wait(self.left)
        time.sleep(self.left)

    def run(self) -> None:
        """Do the work in this thread, unless the reading is over already."""
        if self.is_over or self._ended.is_set():
            return
        try:
            found: FrequencyClient | Exception = self._work()
        except Exception as error:
            found = error
        except BaseException as error:  # end the reading, so that nobody waits for ever
            self._end_with(_broken(f"the reader raised {type(error).__name__}"))
            raise
        # A late result is discarded: the agent may have answered already that the time ran out.
        self._end_with(found if self._took < self._seconds else self._too_late())

    def drop(self) -> None:
        """End the reading and remove the items from memory, since their session is over."""
        none = _broken("their session is over")
        self._end_with(none)
        self._found, self._told = none, self._begin  # also if the work had ended before

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
    """Do the work now, without a time limit, and return its finished reading."""
    reading = Reading(work, float("inf"))
    reading.run()
    return reading


class Aside:
    """Do readings one after the other in a single background thread.

    A call that hangs, for example on a lost disk, cannot be ended. It continues in the thread. The
    readings behind it run out of time, and no second thread is started.

    Args:
        seconds: the time limit of a reading, including the time that it waits for earlier ones.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waiting: deque[Reading] = deque()
        self._is_running = False

    def __call__(self, work: Work, *, in_steps: bool = False) -> Reading:
        """Queue the work, and return its `Reading`."""
        reading = Reading(work, self._seconds, in_steps=in_steps)
        with self._lock:
            # remove the readings that ran out of time behind a call that hangs
            self._waiting = deque(one for one in self._waiting if not one.is_over)
            self._waiting.append(reading)
            if not self._is_running:
                # if no thread can be started (RuntimeError), the reading runs out of time
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
            with suppress(BaseException):  # the reading keeps the error for its `client`
                reading.run()
            del reading  # so that its items do not stay in memory


def _broken(why: str) -> UnreadableFileError:
    return UnreadableFileError(f"the items were not read: {why}")
