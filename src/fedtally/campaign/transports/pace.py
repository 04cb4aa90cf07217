"""The pace of a run: when an engine calls its driver, and when the run ends.

It is the same for all engines, whatever carries their frames.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum

from fedtally.campaign.driver import Driver, RunningSession
from fedtally.errors import OvertakenError
from fedtally.plan import Plan
from fedtally.privacy.budget import OverspentError
from fedtally.secagg.messages import ServerState
from fedtally.store import StoreError

LONGEST_PAUSE = 1.0  # seconds between two steps, also after an error of the store
PROBE_SECONDS = 3  # after an error of the store, the least time between two tests of the store
# The time between two tests of a store without an error. Such a test is made only if somebody asks
# and no session writes. It is rare, since it writes a megabyte.
IDLE_PROBE_SECONDS = 60
JUMP = 600  # a clock that drifts or is set by more than these seconds causes a warning


class Ending(Enum):
    """Why an engine's run returned."""

    COMPLETE = "complete"  # every round is as full as the plan allows
    DRAINED = "drained"  # an operator drained it, and the last session has ended
    JUMPED = "jumped"  # the clock jumped past the end of the calendar: an operator must check it
    STALLED = "stalled"  # for too long, too few clients were there, or no invited client answered


@dataclass
class Pace:
    """Call a driver when it is due, until there is nothing left to do.

    Args:
        driver: the driver of the campaign.
        clock: returns the time, Unix seconds.
        wait: the seconds after which `step` gives up, if no session could be opened, or none of the
            invited clients has answered. With a calendar, `step` never gives up, since the periods
            of the calendar end the run.
        warn: called with a text about a problem after which the engine goes on: clients of a
            session that did not answer, an error of the store and its end, a jump of the clock.
        steady: returns the seconds of a monotonic clock, for the engine's own waits; None: `clock`.
            The deadlines of the protocol follow `clock`, since clients compare them with theirs.

    Attributes:
        due: the latest time of the next step, in the seconds of `steady`. It is at most a second
            away, so that the display of the progress stays up to date.
        has_news: whether a session began, entered another phase or ended in the last step. Then
            there may be frames for clients.
        drains: whether `stop` was called.
        is_broken: whether the store did not answer in the last step. Then clients must wait.
        takes_writes: False from an error of the store until the store has taken a write again.
            Steps may succeed before that, since they may only read, which works on a full disk.
            Clients are served then.
        is_asked: set it to True to ask whether the store takes writes. The answer comes with
            `takes_writes` after a later step. While no session runs, and so nothing is written, a
            step then tests the store, at most about once a minute.
    """

    driver: Driver
    clock: Callable[[], float]
    wait: float
    warn: Callable[[str], None] = lambda _: None
    steady: Callable[[], float] | None = None
    due: float = field(default=0.0, init=False)
    has_news: bool = field(default=False, init=False)
    drains: bool = field(default=False, init=False)
    is_broken: bool = field(default=False, init=False)
    takes_writes: bool = field(default=True, init=False)
    is_asked: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._now = self.clock if self.steady is None else self.steady
        self._idle_since = self.due = self._check_at = self._probe_at = self._now()
        self._seen: tuple[tuple[bytes, str], ...] = ()
        self._warned: set[bytes] = set()  # the sessions with a warning about silent clients
        self._is_silent = False  # whether no client had answered an invitation at the last step
        self._clocks = self.clock(), self._now()  # both clocks at the last step
        self._has_jumped = False  # whether the clock jumped past the end of the calendar
        if self.driver.plan.calendar is not None:
            self.wait = math.inf

    def stop(self) -> None:
        """Open no further session; `step` returns `DRAINED` when the last one has ended."""
        self.drains = True
        self.driver.drain()

    def step(self) -> Ending | None:
        """Let the driver do what is due; return why the run has ended, or None if it goes on.

        An error of the store is not raised: `warn` is called, and the driver tries again later.

        Raises:
            OvertakenError: another process runs the campaign, or it was cancelled.
            OverspentError: the population has too little privacy budget left; no client was
                invited.
        """
        self._note_clocks()
        self._warn_of_silence()
        try:
            self._check_claim()
            pause = self.driver.tick(self.clock()) - self.clock()
        except (OvertakenError, OverspentError):
            raise
        except (StoreError, OSError) as error:
            # No session is lost: the driver will restore all sessions from the store by itself.
            self.is_broken = True
            self._note_failure(error)
            pause = LONGEST_PAUSE
        else:
            self.is_broken = False
            self._probe()
        now, running = self._now(), self.driver.running()
        phases = tuple((one.session, one.phase) for one in running)
        self.due = now + min(pause, LONGEST_PAUSE)
        self.has_news, self._seen = phases != self._seen, phases
        if self._goes_on(running):
            self._idle_since = now
        if self.driver.is_complete:
            return Ending.JUMPED if self._has_jumped else Ending.COMPLETE
        if self.drains and self.driver.is_idle:
            return Ending.DRAINED
        if now - self._idle_since <= self.wait:
            return None
        if not running:
            return Ending.STALLED
        self._warn_of_silence(has_ended=True)
        self.driver.give_up_silent()
        self.due = now  # the next step ends the silent sessions
        return None

    def _note_clocks(self) -> None:
        """Note the clocks at the begin of a step; warn if the clock jumped and there is a calendar.

        The time for which this process was suspended does not count towards `wait`, since no client
        could reach the process.
        """
        late = self._now() - self.due
        if late > LONGEST_PAUSE:
            self._idle_since += late
        if self.driver.plan.calendar is not None:
            self._note_jump(self.driver.plan.calendar.end.timestamp())

    def _note_jump(self, end: float) -> None:
        """Warn if the clock has jumped since the last step, under a plan with a calendar.

        A jump repeats nothing: the store knows which clients were asked and which sums were
        released. But a jump may skip periods, or even pass the end of the calendar. Then the run
        ends with `Ending.JUMPED`, and the result waits until an operator has checked the clock.

        Args:
            end: the end of the calendar, Unix seconds.
        """
        (before, then), (now, steady) = self._clocks, (self.clock(), self._now())
        self._clocks = now, steady
        self._has_jumped &= now >= end
        if abs((now - before) - (steady - then)) <= JUMP:
            return
        self._has_jumped |= before < end <= now
        self.warn(
            f"the clock went from {_utc(before)} to {_utc(now)}, or this process was suspended:"
            " rounds open by the clock, and no client is asked twice in one"
        )

    def _check_claim(self) -> None:
        """Check about once a second, while no session runs, that no other process has taken over.

        Clients may cause many more steps than one a second.
        """
        now = self._now()
        if now >= self._check_at and not self.driver.running():
            self.driver.check_claim()
            self._check_at = now + LONGEST_PAUSE

    def _probe(self) -> None:
        """Test the store every few seconds after an error, or at most once a minute if asked to.

        After an error, the next write of the protocol may be minutes away, at the end of a phase.
        Without a session no write is due: a full disk would be found only when a session opens.
        """
        is_due = not self.takes_writes or (self.is_asked and not self.driver.running())
        if not is_due or not self.driver.is_restored or self._now() < self._probe_at:
            return
        began, self.is_asked = self._now(), False
        try:
            if self.takes_writes:
                # Unlike `check_writes`, this counts as no write. If it did, a copy of the store
                # that was made before would be out of date only because somebody asked.
                self.driver.check_room()
            else:
                self.driver.check_writes()
        except (StoreError, OSError) as error:
            self._note_failure(error)
            # The test may have waited for a lock, and no client was served meanwhile. So the wait
            # until the next test is at least twice as long.
            now = self._now()
            self._probe_at = now + max(PROBE_SECONDS, 2 * (now - began))
            return
        self._probe_at = self._now() + IDLE_PROBE_SECONDS
        if not self.takes_writes:
            self.takes_writes = True
            self.warn("the store answers again, and takes writes")

    def _note_failure(self, error: StoreError | OSError) -> None:
        """Warn about an error of the store, once until the store takes writes again."""
        if self.takes_writes:
            # The first test after the error need not wait for the minute of a store without errors.
            self._probe_at = self._now()
            self.warn(f"the store does not answer, and is asked again: {error}")
        self.takes_writes = False

    def _goes_on(self, running: list[RunningSession]) -> bool:
        """Return whether the time of `wait` begins anew in this step.

        It begins anew if a client has answered in some session. Without a session, it begins anew
        if sessions must be restored after an error of the store, or if a round waits for more
        clients. If all sessions are silent (no client has answered an invitation), it begins anew
        only at the first such step. So later silent sessions share the time of the first one.

        Args:
            running: the sessions that run now.
        """
        if not running:
            return not self.driver.is_idle or self.driver.is_gathering
        before, self._is_silent = self._is_silent, not any(map(_is_answered, running))
        return not (before and self._is_silent)

    def _warn_of_silence(self, has_ended: bool = False) -> None:
        """Warn of invited clients that have not answered, once for each session.

        The warning comes just before the first deadline of the phase in which clients are invited.

        Args:
            has_ended: whether to warn now, whatever the time is, since the session is given up.
        """
        for one in self.driver.running():
            is_due = has_ended or self.clock() >= one.closes[0] - LONGEST_PAUSE
            missing = one.clients - one.answered
            if not _invites(one) or not is_due or not missing or one.session in self._warned:
                continue
            self._warned.add(one.session)
            self.warn(
                f"round {one.round}, session {one.session.hex()[:8]}: {missing:,} of"
                f" {one.clients:,} invited clients did not answer: their owners run fedtally agent"
                " check, which says whether they accepted the plan"
                f" {self.driver.plan.fingerprint[:16]}"
            )


def longest_answer(plan: Plan) -> int:
    """Return a bound on the bytes of one answer: the bytes that a client sends in a session."""
    return plan.summing.of_cohorts().upload_bytes  # engines run only plans of secagg


def _utc(seconds: float) -> str:
    """Return a time as text in UTC, to the minute; `seconds` is the time in Unix seconds."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _invites(session: RunningSession) -> bool:
    return session.phase == ServerState.ADVERTISE.value


def _is_answered(session: RunningSession) -> bool:
    return not _invites(session) or session.answered > 0
