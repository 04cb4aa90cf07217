"""The work of a leader on its releases: it judges reports, closes releases, and lands their sums.

To judge a report means to check its proof, with the helper's part of the check. `Tending` continues
from the state that is on the disk. So a crash loses only time: requests are sent again with the
same bytes, and answers that were received are on the disk.
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

PAGE = 512  # reports that are judged at once; new reports must wait meanwhile
LAST_PAGE = CHECKS_OF_A_FRAME  # reports that are judged at once after the stop: no new ones wait
PAUSE = 1.0  # seconds between two steps of a release that has nothing to do
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds after an error; each further error doubles the wait
_T = TypeVar("_T")


@dataclass
class Tending:
    """A release of a leader, from its first report to its sum.

    Args:
        number: the number of the release.
        collecting: the object that receives the reports of the release.
        server: the campaign's server, which made the leader.
        asking: the leader's side of the channel to the helper.
        closings: the file that says when the release closes.
        land: saves the result; called after the sum has landed.
        note: shows a message to the operator.

    Attributes:
        is_over: whether the sum has landed or was lost.
        has_told: whether the helper knows that the release is over.
        oldest: a time in Unix seconds; all reports that came earlier are judged.
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
        self._too_few = 0  # the number of reports at which the last query was refused
        # A cycle requests the checks of all unjudged reports once. `_left` is the number of reports
        # that it still must request, `_known` the number of reports that had come at its begin.
        self._left = self._known = 0
        self._cycle = self.oldest = self._now()
        self._look(self.closings.read())

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Work on the release until it is over and the helper knows that.

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
        """Do the next step; return the seconds to wait before the step after it.

        Raises:
            FedtallyError: the step failed; call again.
        """
        if self.is_over:
            if self.collecting.is_lost:  # no sum will be made of the reports
                await self._of(lambda leader: leader.erase())
            # If the helper was told before, it may have ended, and must not be called again.
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
        """Begin to close the release if it is due; return whether the release must stop now."""
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
        """Return whether a release that is open must begin to close now."""
        number, parameters = len(self.leader), self.leader.parameters
        size = parameters.n_max if schedule.size is None else min(schedule.size, parameters.n_max)
        is_time = found.at is not None and now >= found.at
        # With too few reports the release would only be opened again, and meanwhile no client could
        # begin a report.
        enough = max(parameters.min_batch, self._too_few + 1)
        return bool((is_time or number >= size) and number >= enough)

    async def _judge(self, most: int) -> bool:
        """Judge at most `most` reports; return whether any report was judged."""
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
        """Begin a cycle, which requests the checks of all unjudged reports once; set `oldest`."""
        known = len(self.leader) + len(self.leader.refused)
        if self.leader.unjudged <= known - self._known:  # all unjudged came after the last begin
            self.oldest = self._cycle
        self._cycle, self._known, self._left = self._now(), known, self.leader.unjudged

    # ---- when it closes ----

    async def _close(self) -> None:
        """Stop the release, judge the last reports, and record the query for the sum.

        The query is over the reports that both servers have. If it is refused because there are too
        few of them, the release is open again.
        """
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
            # More reports may come. The release does not close again before it has more than now.
            self._too_few = number
            await asyncio.to_thread(self.closings.change, self.number, since=None)
            self.note(f"release {self.number} is open again: {error}")
            return
        self.note(f"release {self.number} has closed over {self.leader.count:,} reports")

    async def _finish(self) -> None:
        """Send the recorded query, unless its answer was recorded before a crash; land the sum."""
        query = await self._of(lambda leader: leader.resume())
        answer = await self._of(lambda leader: leader.kept_answer)
        if answer is None:
            answer = await self.asking.answer(query)
        try:
            await self._of(lambda leader: leader.finish(answer))
        except BatchRefusedError as error:
            if self.leader.state is not BatchState.ABORTED:
                raise  # the query can be sent again
            await self._lose(str(error))
            return
        await self._land()

    async def _land(self) -> None:
        """Land the sum, which erases the reports, and save the result."""
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
        """Save the result of a sum that has landed, perhaps in an earlier process."""
        # Releases save results one after the other. If two did it at once, the result that is
        # written last could lack one of the releases.
        await self.collecting.apart(self.land)
        self.is_over = True
        self.note(f"release {self.number} has landed: {self.leader.count:,} reports are in its sum")

    async def _lose(self, why: str) -> None:
        """Give the release up. A later step erases its reports, and no sum of them is opened."""
        await asyncio.to_thread(self.closings.change, self.number, lost=why)
        self.is_over = self.collecting.is_lost = True
        self.note(f"release {self.number} is lost: {why}")

    async def _of(self, ask: Callable[[Any], _T]) -> _T:
        """Return the result of a call of the leader, made between two groups of reports."""
        return await self.collecting.ask(ask)

    def _now(self) -> float:
        return self.collecting.clock()


def _judged(leader: Any, frame: bytes) -> int:
    """Let a leader judge the reports of a frame of checks; return the number of judged reports."""
    before = leader.unjudged
    leader.judge(frame)
    return int(before - leader.unjudged)
