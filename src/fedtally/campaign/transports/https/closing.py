"""The leader judges reports while they come, closes its releases, and lands their sums.

`Tending` goes on from whatever state the disk has. So a crash anywhere costs time alone: what was
asked is asked again with the same bytes, and what was heard is on the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from fedtally.campaign.closings import Closing, Closings, Schedule
from fedtally.campaign.server import FrequencyServer, RejectedSumError
from fedtally.campaign.transports.https.channel import Asking
from fedtally.campaign.transports.https.collecting import Collecting
from fedtally.errors import FedtallyError, OvertakenError
from fedtally.secagg.two_server import BatchRefusedError, BatchState
from fedtally.secagg.two_server.servers import CHECKS_OF_A_FRAME

PAGE = 512  # reports that are judged at once while others come: they wait meanwhile
LAST_PAGE = CHECKS_OF_A_FRAME  # after the stop nobody waits
PAUSE = 1.0  # seconds between two looks at a release
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds after what failed; each further one doubles them
_T = TypeVar("_T")


@dataclass
class Tending:
    """A release of a leader, from its first report to its sum.

    Args:
        number: the number of the release.
        collecting: its reports.
        server: the campaign's server, which made the leader.
        asking: what is asked of the helper.
        closings: the file that says when the release closes.
        land: called when a sum has landed: it saves the result.
        note: takes what the operator should know, in words.

    Attributes:
        is_over: whether the sum has landed or was lost.
        has_told: whether the helper has heard that the release is over.
        oldest: a time before which no report came that is not judged, Unix seconds.
    """

    number: int
    collecting: Collecting
    server: FrequencyServer
    asking: Asking
    closings: Closings
    land: Callable[[], None]
    note: Callable[[str], None]
    is_over: bool = field(default=False, init=False)
    has_told: bool = field(default=False, init=False)
    oldest: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self.leader = self.collecting.server
        self._wait, self._why = FIRST_WAIT, ""
        self._too_few = 0  # reports, with which a query was refused
        self._left = self._known = 0  # of a cycle: ids to ask for, and reports at its begin
        self._cycle = self.oldest = self._now()
        self._look(self.closings.read())

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Tend the release until it is over and the helper knows.

        Args:
            sleep: waits for a number of seconds.
        """
        while not self.has_told:
            try:
                pause = await self.step()
                self._wait, self._why = FIRST_WAIT, ""
            except OvertakenError:
                self.collecting.overtaken.set()
                return
            except (FedtallyError, OSError) as error:
                if str(error) != self._why:
                    self.note(f"release {self.number} waits: {error}")
                self._why = str(error)
                pause, self._wait = self._wait, min(LONGEST_WAIT, 2 * self._wait)
            await sleep(pause)

    async def step(self) -> float:
        """Do what is next; return the seconds until there is more to do.

        Raises:
            FedtallyError: it failed, and is tried again.
        """
        if self.is_over:
            if self.collecting.is_lost:  # an earlier process may have ended before it erased them
                await self._of(lambda leader: leader.erase())
            # The helper may have retired since it heard it, and ended.
            if not self.closings.read().releases[self.number].told:
                await self.asking.landed()
                await asyncio.to_thread(self.closings.change, self.number, told=True)
            self.has_told = True
            return 0.0
        state = self.leader.state
        if state is BatchState.COLLECTING:
            return await self._collect()
        if state is BatchState.STOPPED:
            await self._close()
        elif self.server.has_landed_batch(self.number):
            await self._landed()
        elif state is BatchState.WAITING:
            await self._finish()
        else:
            await self._land()
        return 0.0

    # ---- while reports come ----

    async def _collect(self) -> float:
        if self._look(self.closings.read()):
            await self._close()
            return 0.0
        return 0.0 if await self._judge(PAGE) else PAUSE

    def _look(self, schedule: Schedule) -> bool:
        """Begin to close, if it is time to; return whether it is time to stop."""
        now, found = self._now(), schedule.releases[self.number]
        if found.lost is not None:
            self.is_over = self.collecting.is_lost = True
        if found.since is None and not self.is_over and self._is_due(schedule, found, now):
            found = self.closings.change(self.number, since=int(now))
            self.note(
                f"release {self.number} is closing with {len(self.leader):,} reports: nobody begins"
                f" one, and it stops in {schedule.grace:,} s"
            )
        self.collecting.is_closing = found.since is not None
        return found.since is not None and now >= found.since + schedule.grace

    def _is_due(self, schedule: Schedule, found: Closing, now: float) -> bool:
        """Tell whether a release that is open closes now."""
        number, parameters = len(self.leader), self.leader.parameters
        size = parameters.n_max if schedule.size is None else min(schedule.size, parameters.n_max)
        is_time = found.at is not None and now >= found.at
        # With too few the leader would only collect again, and nobody would have begun meanwhile.
        enough = max(parameters.min_batch, self._too_few + 1)
        return bool((is_time or number >= size) and number >= enough)

    async def _judge(self, most: int) -> bool:
        """Judge a page of reports; return whether any was judged."""
        if self.leader.unjudged == 0:
            self._cycle = self.oldest = self._now()
            self._left = 0
            return False
        if self._left <= 0:
            self._begin_cycle()
        ids = await self._of(lambda leader: leader.to_check(most))
        self._left -= len(ids)
        frame = await self.asking.checks(ids)
        if frame is None:
            return False
        began = self.collecting.steady()
        number = await self._of(partial(_judged, frame=frame))
        self.collecting.watcher.judged(number, self.collecting.steady() - began)
        return number > 0

    def _begin_cycle(self) -> None:
        """Begin to ask for all reports once; those of before the last cycle are judged by now."""
        known = len(self.leader) + len(self.leader.refused)
        if self.leader.unjudged <= known - self._known:  # all that is left came since
            self.oldest = self._cycle
        self._cycle, self._known, self._left = self._now(), known, self.leader.unjudged

    # ---- when it closes ----

    async def _close(self) -> None:
        """Stop, judge what is left, and ask the helper for the sum of what both hold."""
        await self._of(lambda leader: leader.stop())
        left = self.leader.unjudged
        while left > 0:
            ids = await self._of(lambda leader: leader.to_check(LAST_PAGE))
            left -= len(ids)
            frame = await self.asking.checks(ids)
            if frame is not None:
                await self._of(partial(_judged, frame=frame))
        offer = await self.asking.offer()
        number = len(self.leader)
        try:
            await self._of(lambda leader: leader.query(offer))
        except BatchRefusedError as error:
            # More may come: it is open again, until there are more than now.
            self._too_few = number
            await asyncio.to_thread(self.closings.change, self.number, since=None)
            self.note(f"release {self.number} is open again: {error}")
            return
        self.note(f"release {self.number} has closed over {self.leader.count:,} reports")

    async def _finish(self) -> None:
        """Ask the query that is recorded, unless its answer was heard before a crash."""
        query = await self._of(lambda leader: leader.resume())
        answer = await self._of(lambda leader: leader.kept_answer)
        if answer is None:
            answer = await self.asking.answer(query)
        try:
            await self._of(lambda leader: leader.finish(answer))
        except BatchRefusedError as error:
            if self.leader.state is not BatchState.ABORTED:
                raise  # the right answer may follow
            await self._lose(str(error))
            return
        await self._land()

    async def _land(self) -> None:
        """Land the sum, which erases the reports; then the result is saved."""
        if self.leader.state is BatchState.ABORTED:
            await self._lose("its sum was refused")
            return
        try:
            await self._of(self.server.land_batch)
        except RejectedSumError as error:
            await self._lose(str(error))
            return
        await self._landed()

    async def _landed(self) -> None:
        """Save the result: again, if an earlier process ended before it had."""
        # One after the other: a result that lacks the release that lands just then would be last.
        await self.collecting.apart(self.land)
        self.is_over = True
        self.note(f"release {self.number} has landed: {self.leader.count:,} reports are in its sum")

    async def _lose(self, why: str) -> None:
        """Give the release up: its reports are erased, and no other sum of them is opened."""
        await asyncio.to_thread(self.closings.change, self.number, lost=why)
        self.is_over = self.collecting.is_lost = True
        self.note(f"release {self.number} is lost: {why}")

    async def _of(self, ask: Callable[[Any], _T]) -> _T:
        """Ask the leader: no group is open meanwhile."""
        return await self.collecting.ask(ask)

    def _now(self) -> float:
        return self.collecting.clock()


def _judged(leader: Any, frame: bytes) -> int:
    """Let a leader judge the reports of a frame; return how many it decided."""
    before = leader.unjudged
    leader.judge(frame)
    return int(before - leader.unjudged)
