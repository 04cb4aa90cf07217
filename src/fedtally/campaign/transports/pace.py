"""When an engine calls its driver, and when nothing is left to do: the same for each transport."""

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
PROBE_SECONDS = 3  # at least, between two questions to a store whether it takes writes again
# The same of a store that had no error, where somebody asks and no session writes: each question
# writes a megabyte.
IDLE_PROBE_SECONDS = 60
JUMP = 600  # seconds by which a clock may drift, or be set right, without a word


class Ending(Enum):
    """Why an engine's run returned."""

    COMPLETE = "complete"  # every round is as full as the plan allows
    DRAINED = "drained"  # somebody asked for it, and the last session has ended
    JUMPED = "jumped"  # the clock passed the end of the calendar at once: somebody must look at it
    STALLED = "stalled"  # for too long too few clients were there that may be asked, or answered


@dataclass
class Pace:
    """Call a driver when it is due, until there is nothing left to do.

    Args:
        driver: the driver of the campaign.
        clock: returns the time, Unix seconds.
        wait: the seconds after which `step` gives up, if no session could be opened, or none of the
            invited clients has answered. With a calendar it never does: the periods end the run.
        warn: called with a problem that the engine goes on after, in words; once for each session,
            once for each time in which the store does not answer, and once when it does again.
        steady: returns seconds that nobody sets: they measure what the engine itself waits. None:
            `clock`. The deadlines of the protocol are on the clock, which clients have, too.

    Attributes:
        due: when the next step is due at the latest, in the seconds of `steady`; at least once a
            second, for the people who watch.
        has_news: whether a session began, went on to another phase or ended in the last step: there
            may be frames for clients.
        drains: whether `stop` was called.
        is_broken: whether the store did not answer in the last step. Clients wait then.
        takes_writes: False from an error of the store until it has taken a write again. Steps in
            between may have no error: they read, and a full disk can be read. Clients are served.
        is_asked: set it when somebody asks whether the store takes writes. While no session runs,
            and so nothing is written, the store is asked then, about once a minute at most.
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
        self._warned: set[bytes] = set()  # the sessions whose silent clients were told
        self._is_silent = False
        self._clocks = self.clock(), self._now()  # at the last step
        self._has_jumped = False  # past the end of the calendar
        if self.driver.plan.calendar is not None:
            self.wait = math.inf

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
        self._note_clocks()
        self._warn_of_silence()
        try:
            self._check_claim()
            pause = self.driver.tick(self.clock()) - self.clock()
        except (OvertakenError, OverspentError):
            raise
        except (StoreError, OSError) as error:
            # The driver keeps its sessions in the store, and reads it again by itself.
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
        self.due = now  # they end with the next step
        return None

    def _note_clocks(self) -> None:
        """Give back the time in which this process was suspended: nobody could reach it."""
        late = self._now() - self.due
        if late > LONGEST_PAUSE:
            self._idle_since += late
        if self.driver.plan.calendar is not None:
            self._note_jump(self.driver.plan.calendar.end.timestamp())

    def _note_jump(self, end: float) -> None:
        """Tell that the clock jumped, where a calendar goes by it.

        What was asked and what was released is in the store, so that a jump repeats neither. But it
        may pass days, and even the end: the result then waits for somebody who looks at the clock.

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
        """Check the claim about once a second, however often clients wake the engine."""
        now = self._now()
        if now >= self._check_at and not self.driver.running():
            self.driver.check_claim()
            self._check_at = now + LONGEST_PAUSE

    def _probe(self) -> None:
        """After an error of the store, ask it every few seconds whether it takes writes again.

        Its next write is due only when a phase ends, which may be minutes away. And without a
        session none is due, so that a full disk would show when the next one opens.
        """
        is_due = not self.takes_writes or (self.is_asked and not self.driver.running())
        if not is_due or not self.driver.is_restored or self._now() < self._probe_at:
            return
        began, self.is_asked = self._now(), False
        try:
            if self.takes_writes:
                # A copy of the store must not be an old one because somebody asks.
                self.driver.check_room()
            else:
                self.driver.check_writes()
        except (StoreError, OSError) as error:
            self._note_failure(error)
            # A lock is waited for: clients are served for longer than that takes.
            now = self._now()
            self._probe_at = now + max(PROBE_SECONDS, 2 * (now - began))
            return
        self._probe_at = self._now() + IDLE_PROBE_SECONDS
        if not self.takes_writes:
            self.takes_writes = True
            self.warn("the store answers again, and takes writes")

    def _note_failure(self, error: StoreError | OSError) -> None:
        """Tell of an error of the store once, until it takes writes again."""
        if self.takes_writes:
            # Nobody waits for the next question to a store that had no error.
            self._probe_at = self._now()
            self.warn(f"the store does not answer, and is asked again: {error}")
        self.takes_writes = False

    def _goes_on(self, running: list[RunningSession]) -> bool:
        """Return whether there is more than invitations that nobody answers.

        A session that an error of the store took out of memory goes on, too, and clients that wait
        for a fuller session do not wait in vain. The first session that is silent has the whole
        time; later ones, before anybody has answered, have what is left of it.
        """
        if not running:
            return not self.driver.is_idle or self.driver.is_gathering
        before, self._is_silent = self._is_silent, not any(map(_is_answered, running))
        return not (before and self._is_silent)

    def _warn_of_silence(self, has_ended: bool = False) -> None:
        """Tell how many invited clients have not answered, once a session, at its phase's end.

        Args:
            has_ended: it ends now, whatever the time is.
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
    """Return a bound on the bytes of a client's answer: all that it sends in a session."""
    return plan.summing.of_cohorts().upload_bytes  # a driver runs no other plan


def _utc(seconds: float) -> str:
    """Return a time as people read it, to the minute."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def _invites(session: RunningSession) -> bool:
    return session.phase == ServerState.ADVERTISE.value


def _is_answered(session: RunningSession) -> bool:
    return not _invites(session) or session.answered > 0
