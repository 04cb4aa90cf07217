"""The pace of a run: when an engine calls its driver, and when the run ends.

An engine carries the frames (messages) of a campaign, and all engines use `Pace`. The store is the
database in which the driver keeps the campaign.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from fedtally.base.text import utc
from fedtally.campaign.driver import Driver, RunningSession
from fedtally.errors import OvertakenError
from fedtally.plan import Plan
from fedtally.privacy.budget import OverspentError
from fedtally.secagg.messages import ServerState
from fedtally.store import StoreError

LONGEST_PAUSE = 1.0  # the most seconds between two steps, also after an error of the store
# After a failed test whether the store takes writes, the least seconds until the next test.
PROBE_SECONDS = 3
# After a test that succeeded, the least seconds until the next one if there is no error. Then the
# store is tested only if somebody asks (see `Pace.is_asked`) and no session runs. Such tests are
# rare, since each one writes a megabyte.
IDLE_PROBE_SECONDS = 60
JUMP = 600  # a warning is given if the clock jumps by more than this many seconds


class Ending(Enum):
    """Why a run of an engine ended."""

    COMPLETE = "complete"  # no round can have another session
    DRAINED = "drained"  # an operator ended it, and its last session is over
    # the clock jumped past the end of the calendar, and an operator must check it
    JUMPED = "jumped"
    STALLED = "stalled"  # for too long, too few clients were present, or no invited client answered


@dataclass
class Pace:
    """Let a driver do its work in each `step`; say when the next step is due and when the run ends.

    An engine calls `step` again and again, at `due` or earlier, until `step` returns an `Ending`.

    Args:
        driver: the driver of the campaign.
        clock: returns the time, Unix seconds.
        wait: after how many seconds `step` ends the run if no session could be opened, or if none
            of the invited clients has answered. If the plan has a calendar, `wait` has no effect:
            the run ends with the calendar.
        warn: called with a text about a problem after which the run goes on: clients that did not
            answer an invitation, a session that cannot be restored, an error of the store and its
            end, a jump of the clock.
        steady: returns the seconds of a monotonic clock, for the waits of the engine; None:
            `clock`. The deadlines of the protocol always use `clock`, since clients compare them
            with their own clocks.

    Attributes:
        due: when the next step must come at the latest, in the seconds of `steady`. It is at most a
            second after the last step, so that the display of the progress stays up to date.
        has_news: whether the running sessions or their phases changed in the last step. If so,
            there may be frames for clients.
        drains: whether `stop` was called.
        is_broken: whether an error of the store ended the driver's work in the last step. If so,
            clients must wait.
        takes_writes: False from an error of the store until a test shows that the store takes
            writes again. In between, steps may succeed, and clients are served: a step may only
            read, and reading works on a full disk.
        is_asked: set it to True to ask whether the store takes writes. If no session runs, a later
            step tests the store, at most about once a minute, and sets `takes_writes`. While a
            session runs, its own writes show whether the store takes writes.
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
        # the sessions of which a warning was given, for silent clients and for being set aside
        self._told_silent: set[bytes] = set()
        self._told_aside: set[bytes] = set()
        self._is_silent = False  # whether at the last step no client had answered an invitation
        self._clocks = self.clock(), self._now()  # what both clocks showed at the last step
        self._has_jumped = False  # whether the clock jumped past the end of the calendar
        if self.driver.plan.calendar is not None:
            self.wait = math.inf

    def stop(self) -> None:
        """Open no more sessions; `step` returns `DRAINED` when the last open session is over."""
        self.drains = True
        self.driver.drain()

    def step(self) -> Ending | None:
        """Let the driver do what is due; return why the run has ended, or None if it goes on.

        An error of the store is not raised. Instead the driver tries again later, and `warn` is
        called, but only once until the store takes writes again.

        Raises:
            OvertakenError: another process runs the campaign, or the campaign was cancelled.
            OverspentError: the population has too little privacy budget left. No client was
                invited.
            FedtallyError: another error of the driver, for instance a session that can be read from
                the store, but not be restored.
        """
        self._note_clocks()
        self._warn_of_silence()
        try:
            self._check_claim()
            pause = self.driver.tick(self.clock()) - self.clock()
        except (OvertakenError, OverspentError):
            raise
        except (StoreError, OSError) as error:
            # No session is lost: the driver restores all sessions from the store when it answers.
            self.is_broken = True
            self._note_failure(error)
            pause = LONGEST_PAUSE
        else:
            self.is_broken = False
            self._warn_of_aside()
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
        self.due = now  # the next step ends the sessions without an answer
        return None

    def _note_clocks(self) -> None:
        """Take note of a late step. If the plan has a calendar, warn if the clock has jumped.

        A step is late if this process was suspended or busy. This time does not count as part of
        `wait`, since no client could reach the process.
        """
        late = self._now() - self.due
        if late > LONGEST_PAUSE:
            self._idle_since += late
        if self.driver.plan.calendar is not None:
            self._note_jump(self.driver.plan.calendar.end.timestamp())

    def _note_jump(self, end: float) -> None:
        """Warn if the clock has jumped since the last step.

        After a jump, nothing is done twice: the store knows which clients were asked and which sums
        were released. But a jump may skip the times in which rounds are open. If the clock jumps
        past the end of the calendar, the run ends with `Ending.JUMPED`, so that an operator checks
        the clock before there is a result.

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
            f"the clock went from {utc(before)} to {utc(now)}, or this process was suspended:"
            " rounds open by the clock, and no client is asked twice in one"
        )

    def _check_claim(self) -> None:
        """Raise `OvertakenError` if another process runs the campaign, or it was cancelled.

        If the store does not answer, `StoreError` is raised. The check is made only if no session
        runs, and about once a second. It is not made in each step, since clients may cause many
        steps a second.
        """
        now = self._now()
        if now >= self._check_at and not self.driver.running():
            self.driver.check_claim()
            self._check_at = now + LONGEST_PAUSE

    def _probe(self) -> None:
        """Test whether the store takes writes, if a test is due.

        After an error, a test is due every few seconds. Without an error, a test is due if
        `is_asked` is True and no session runs, at most about once a minute.

        The tests are needed, since the next write of the protocol may be far away. After an error
        it may come only at the end of a phase, minutes later. Without a session it may come only
        when a session opens, and a full disk would not be found before.
        """
        is_due = not self.takes_writes or (self.is_asked and not self.driver.running())
        if not is_due or not self.driver.is_restored or self._now() < self._probe_at:
            return
        began, self.is_asked = self._now(), False
        try:
            if self.takes_writes:
                # In contrast to `check_writes`, `check_room` does not count as a write. So a copy
                # of the store does not become out of date only because somebody asked.
                self.driver.check_room()
            else:
                self.driver.check_writes()
        except (StoreError, OSError) as error:
            self._note_failure(error)
            # The test may have waited for a lock, and no client was served in this time. So the
            # next test comes after at least twice this time.
            now = self._now()
            self._probe_at = now + max(PROBE_SECONDS, 2 * (now - began))
            return
        self._probe_at = self._now() + IDLE_PROBE_SECONDS
        if not self.takes_writes:
            self.takes_writes = True
            self.warn("the store answers again, and takes writes")

    def _note_failure(self, error: StoreError | OSError) -> None:
        """Warn of an error of the store, but only once until the store takes writes again."""
        if self.takes_writes:
            # Without this line, the first test after the error could come only after
            # `IDLE_PROBE_SECONDS`.
            self._probe_at = self._now()
            self.warn(f"the store does not answer, and is asked again: {error}")
        self.takes_writes = False

    def _goes_on(self, running: list[RunningSession]) -> bool:
        """Return whether the time of `wait` begins again in this step.

        If no session runs, it begins again in these cases:

        - sessions must be restored after an error of the store;
        - a session is set aside;
        - a round has enough clients for a session, and waits for more clients.

        If sessions run, it begins again if a client has answered in any of them. If no client has
        answered yet, it begins again only in the first step in which this is so. So a session that
        opens later, also without an answer, does not get new time.

        Args:
            running: the sessions that run now.
        """
        if not running:
            return not self.driver.is_idle or self.driver.is_gathering
        before, self._is_silent = self._is_silent, not any(map(_is_answered, running))
        return not (before and self._is_silent)

    def _warn_of_aside(self) -> None:
        """Warn of sessions that cannot be restored, once for each session."""
        for name in sorted(self.driver.aside.keys() - self._told_aside):
            saved, why = self.driver.aside[name]
            self._told_aside.add(name)
            self.warn(
                f"round {saved.round}, session {name.hex()[:8]}: it cannot be restored, and is set"
                f" aside ({why}); the others go on, and it ends without a sum at"
                f" {utc(saved.not_after)}, until when its {len(saved.clients):,} clients wait: if"
                " campaign.db or its disk was damaged, check the disk; if another version of"
                " fedtally began the session, end this process and start that version before then"
            )

    def _warn_of_silence(self, has_ended: bool = False) -> None:
        """Warn of invited clients that have not answered, once for each session.

        The warning comes just before the time of the invitation is over.

        Args:
            has_ended: whether to warn at once, because the session is about to be ended.
        """
        for one in self.driver.running():
            is_due = has_ended or self.clock() >= one.closes[0] - LONGEST_PAUSE
            missing = one.clients - one.answered
            if not _invites(one) or not is_due or not missing or one.session in self._told_silent:
                continue
            self._told_silent.add(one.session)
            self.warn(
                f"round {one.round}, session {one.session.hex()[:8]}: {missing:,} of"
                f" {one.clients:,} invited clients did not answer: their owners run fedtally agent"
                " check, which says whether they accepted the plan"
                f" {self.driver.plan.fingerprint[:16]}"
            )


def longest_answer(plan: Plan) -> int:
    """Return a bound on the bytes of one answer: the most that a client sends in a session."""
    # engines run only plans with the secure sum secagg
    return plan.summing.of_cohorts().upload_bytes


def _invites(session: RunningSession) -> bool:
    return session.phase == ServerState.ADVERTISE.value


def _is_answered(session: RunningSession) -> bool:
    return not _invites(session) or session.answered > 0
