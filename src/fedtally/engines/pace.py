"""When an engine calls its driver, and when nothing is left to do: the same for each transport."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from fedtally.campaign.driver import Driver
from fedtally.errors import OvertakenError
from fedtally.privacy.budget import OverspentError
from fedtally.store import StoreError

LONGEST_PAUSE = 1.0  # seconds between two steps, also after an error of the store


class Ending(Enum):
    """Why an engine's run returned."""

    COMPLETE = "complete"  # every round is as full as the plan allows
    DRAINED = "drained"  # somebody asked for it, and the last session has ended
    STALLED = "stalled"  # too few clients that may still be asked are there, for too long


@dataclass
class Pace:
    """Call a driver when it is due, until there is nothing left to do.

    Args:
        driver: of the campaign.
        clock: returns the time, Unix seconds.
        wait: the seconds after which `step` gives up, if no session could be opened.
        warn: called with a problem that the engine goes on after, in words.
        steady: returns seconds that nobody sets: they measure what the engine itself waits. None:
            `clock`. The deadlines of the protocol are on the clock, which clients have, too.

    Attributes:
        due: when the next step is due at the latest, in the seconds of `steady`; at least once a
            second, for the people who watch.
        has_news: whether a session began, went on to another phase or ended in the last step: there
            may be frames for clients.
        drains: whether `stop` was called.
    """

    driver: Driver
    clock: Callable[[], float]
    wait: float
    warn: Callable[[str], None] = lambda _: None
    steady: Callable[[], float] | None = None
    due: float = field(default=0.0, init=False)
    has_news: bool = field(default=False, init=False)
    drains: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._now = self.clock if self.steady is None else self.steady
        self._idle_since = self.due = self._now()
        self._seen: tuple[tuple[bytes, str], ...] = ()

    def stop(self) -> None:
        """Open no further session; `step` returns `DRAINED` when the last one has ended."""
        self.drains = True
        self.driver.drain()

    def step(self) -> Ending | None:
        """Let the driver do what is due; return why nothing is left to do, or None.

        Raises:
            OvertakenError: another process runs the campaign, or it was cancelled.
            OverspentError: the population has too little left; nobody was invited.
        """
        late = self._now() - self.due
        if late > LONGEST_PAUSE:
            self._idle_since += late  # this process was suspended: nobody could reach it
        try:
            if late >= 0 and not self.driver.running():
                self.driver.check_claim()
            pause = self.driver.tick(self.clock()) - self.clock()
        except (OvertakenError, OverspentError):
            raise
        except (StoreError, OSError) as error:
            # The driver keeps its sessions in the store, and reads it again by itself.
            self.warn(f"the store does not answer, and is asked again: {error}")
            pause = LONGEST_PAUSE
        now, phases = self._now(), tuple((s.session, s.phase) for s in self.driver.running())
        self.due = now + min(pause, LONGEST_PAUSE)
        self.has_news, self._seen = phases != self._seen, phases
        # A session that an error of the store took out of memory goes on, too, and clients that
        # wait for a fuller session do not wait in vain.
        if phases or not self.driver.is_idle or self.driver.is_gathering:
            self._idle_since = now
        if self.driver.is_complete:
            return Ending.COMPLETE
        if self.drains and self.driver.is_idle:
            return Ending.DRAINED
        return Ending.STALLED if now - self._idle_since > self.wait else None
