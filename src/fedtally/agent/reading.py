"""Read and encode the items for a session, at once or in another thread.

An `Agent` starts a `Reading`, and later asks whether it is over. A `Start` is the function that
starts the reading. It decides whether a thread is used, so the agent's own code has neither threads
nor clocks. Two of them are in this module. `at_once` does the work before it returns. `Aside` does
the work in a thread with a time limit, so that other sessions do not wait for the work.
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

# With `in_steps`, the end of the work is told at the earliest so many seconds after the creation.
FIRST_STEP = 1.0
Work = Callable[[], "FrequencyClient"]


class Start(Protocol):
    """A function that starts a `Reading`; see `Reading` for its arguments."""

    def __call__(self, work: Work, *, in_steps: bool = False) -> Reading:
        """Start the work, and return its `Reading`, which may not be over yet."""


class Reading:
    """The work of reading and encoding the items for one session.

    The reading is over when the work is done (with `in_steps` at the next step), when `drop` is
    called, or at the time limit.

    Args:
        work: a function that reads the items and returns the `FrequencyClient` that holds them.
        seconds: the time limit, counted from the creation of this object. The time before `run` is
            called counts, too.
        in_steps: whether the end of the work is reported only 1, 2, 4, 8, ... seconds after the
            creation, or at the time limit. The time of an answer then reveals little about the
            items, and nothing if the work takes less than a second.
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
        self._told = self._begin + seconds  # the time at which the reading is over
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._found: FrequencyClient | Exception | None = None
        self._calls: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"Reading(is_over={self.is_over})"

    @property
    def is_over(self) -> bool:
        """Whether the reading is over, see `Reading`. Call `client` only then."""
        return self.left == 0.0

    @property
    def left(self) -> float:
        """The time in seconds after which the reading will certainly be over; 0.0: it is over."""
        return max(0.0, self._told - self._clock())

    def client(self) -> FrequencyClient:
        """Return the client that holds the items. Call it only when the reading is over.

        Raises:
            UnreadableFileError: the time ran out before the items were read, or `drop` was called.
            Exception: the work raised this error.
        """
        found = self._found
        if found is None:
            raise self._too_late()
        if isinstance(found, Exception):
            raise found
        return found

    def when_over(self, call: Callable[[], None]) -> None:
        """Call a function once the work has ended or was dropped.

        If that is so already, the function is called at once in this thread. Otherwise it is called
        in the thread that ends or drops the work. From then on, `left` is the exact time until the
        reading is over. Only with `in_steps` this time may be above 0.

        If the time runs out first, the function is called late or never. So a caller must also wait
        at most `left` seconds.
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
        """Do the work in this thread, unless the reading is over or was dropped.

        If the work raises an `Exception`, only `client` raises it.

        Raises:
            BaseException: the work raised it, and it is no `Exception`. `client` then raises an
                UnreadableFileError.
        """
        if self.is_over or self._ended.is_set():
            return
        try:
            found: FrequencyClient | Exception = self._work()
        except Exception as error:
            found = error
        except BaseException as error:  # Otherwise `wait` would last for the whole time limit.
            self._end_with(_broken(f"the reader raised {type(error).__name__}"))
            raise
        # A late result is discarded: the agent may have answered that the time ran out.
        self._end_with(found if self._took < self._seconds else self._too_late())

    def drop(self) -> None:
        """End the reading, because its session is over, and discard the items.

        Work that still runs in another thread is not interrupted. Its result will be discarded.
        """
        none = _broken("their session is over")
        self._end_with(none)
        self._found, self._told = none, self._begin  # also if the work ended before

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
    """Do the work in this thread, without a time limit, and return the `Reading`, which is over.

    `in_steps` is ignored.
    """
    reading = Reading(work, float("inf"))
    reading.run()
    return reading


class Aside:
    """Do readings one after the other in one background thread.

    Work that hangs, for example on a lost disk, cannot be ended. It stays in the thread, and no
    second thread is started. The readings that wait behind it run out of time.

    Args:
        seconds: the time limit of a reading, including the time that it waits for earlier readings.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._waiting: deque[Reading] = deque()
        self._is_running = False

    def __call__(self, work: Work, *, in_steps: bool = False) -> Reading:
        """Put the work into the queue of the thread, and return its `Reading`.

        `in_steps` is an argument of `Reading`: whether the end of the work is reported only after
        1, 2, 4, 8, ... seconds. The next reading begins when the work ends, and not at that report.
        """
        reading = Reading(work, self._seconds, in_steps=in_steps)
        with self._lock:
            # Without this, the queue would grow for ever behind work that hangs.
            self._waiting = deque(one for one in self._waiting if not one.is_over)
            self._waiting.append(reading)
            if not self._is_running:
                # RuntimeError: no thread can be started. The reading then runs out of time, and the
                # next call tries to start a thread again.
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
            with suppress(BaseException):  # `Reading.client` raises the error later
                reading.run()
            del reading  # so that its items do not stay in memory


def _broken(why: str) -> UnreadableFileError:
    return UnreadableFileError(f"the items were not read: {why}")
