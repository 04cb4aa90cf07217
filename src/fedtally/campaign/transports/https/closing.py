"""The work of a leader on its releases: it judges reports, closes releases, and lands their sums.

To judge a report means to verify its proof, with the helper's half of the verification. To close a
release means to accept no more reports and to open their sum. A sum has landed when the leader has
it and counts it for the result. A lost release has no sum.

`Tending` continues from the state that is on the disk. So a crash loses only time: requests to the
helper are sent again with the same bytes, and received answers are on the disk.
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

PAGE = 512  # the most reports judged in one call; new reports wait until the call ends
LAST_PAGE = CHECKS_OF_A_FRAME  # the same number after the stop, when no new reports come
PAUSE = 1.0  # seconds until the next step if there is nothing to do
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds after an error; each further error doubles the wait
_T = TypeVar("_T")


@dataclass
class Tending:
    """The leader's work on one release, from its first report to its sum.

    Args:
        number: the number of the release.
        collecting: the object that receives the reports of the release.
        server: the server of the whole campaign, to which the sum is added.
        asking: sends requests to the helper.
        closings: the file that says when the release closes.
        land: saves the result of the campaign; called after the sum has landed or was lost.
        note: shows a message to the operator.

    Attributes:
        is_over: whether the sum has landed or was lost.
        has_told: whether the helper knows that the release is over.
        oldest: a time in Unix seconds. All reports that this process received before this time have
            been judged. Some later reports may have been judged, too.
        closes_at: when the release must begin to close, or began to close, Unix seconds; None if it
            is open and no time is set.
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
    closes_at: int | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.leader = self.collecting.server
        self._wait, self._why = FIRST_WAIT, ""
        self._too_few = 0  # how many reports there were when the last query was refused
        # A cycle asks the helper once for the check of each unjudged report. `_left`: for how many
        # reports the present cycle must still ask. `_known`: how many reports had come when the
        # cycle began. `_cycle`: the time when it began.
        self._left = self._known = 0
        self._cycle = self.oldest = self._now()
        self._look(self.closings.read())

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Do steps until the release is over and the helper knows it, or another process took over.

        After an error, wait and try again; tell the operator once about each new error.

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
        """Do the next step of the release; return the seconds to wait before the following step.

        Raises:
            OvertakenError: another process runs the server. No step may follow.
            FedtallyError: the step failed for another reason, and may be tried again.
            OSError: a file could not be read or written; the step may be tried again.
        """
        if self.is_over:
            if self.collecting.is_lost:  # there will be no sum, so the reports are not needed
                await self._of(lambda leader: leader.erase())
                # With a trusted leader, the result may have waited for the end of this release.
                await self.collecting.apart(self.land)
            # If the helper was told before, it is not told again: its process may have ended. Then
            # the call would fail, and this loop would never end.
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
        """Begin to close the release if this is due; return whether the release must stop now.

        A release that closes still accepts the reports that clients have begun. After
        `schedule.grace` seconds it stops: then it accepts no report.

        Args:
            schedule: the contents of the file that says when releases close.
        """
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
        self.closes_at = found.at if found.since is None else found.since
        return found.since is not None and now >= found.since + schedule.grace

    def _is_due(self, schedule: Schedule, found: Closing, now: float) -> bool:
        """Tell whether this release, which is open, must begin to close now.

        A release must begin to close if it has enough reports for a sum, and one of these holds:
        the time `found.at` has come; the release has `schedule.size` reports; or it has as many
        reports as the plan allows. After a query was refused, it also needs more reports than
        there were then.

        Args:
            schedule: the contents of the file that says when releases close.
            found: the entry of this release in `schedule`.
            now: the time, Unix seconds.
        """
        number, parameters = len(self.leader), self.leader.parameters
        size = parameters.n_max if schedule.size is None else min(schedule.size, parameters.n_max)
        is_time = found.at is not None and now >= found.at
        # With too few reports, closing would fail, and the release would be opened again. In the
        # meantime no client could begin a report.
        enough = max(parameters.min_batch, self._too_few + 1)
        return bool((is_time or number >= size) and number >= enough)

    async def _judge(self, most: int) -> bool:
        """Ask for the helper's checks of at most `most` reports, and judge these reports.

        Returns:
            Whether any report was judged. A report that the helper does not have is not judged.
        """
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
        """Begin a cycle, which asks the helper once for the check of each unjudged report.

        If all reports that this process received before the previous cycle are judged, `oldest`
        becomes the time when that cycle began.
        """
        known = len(self.leader) + len(self.leader.refused)
        # The reports that came since the previous cycle began are unjudged: that cycle did not ask
        # for them. If no other reports are unjudged, all older reports are judged.
        if self.leader.unjudged <= known - self._known:
            self.oldest = self._cycle
        self._cycle, self._known, self._left = self._now(), known, self.leader.unjudged

    # ---- when it closes ----

    async def _close(self) -> None:
        """Stop the release, judge the last reports, and make the query for the sum.

        The query names the reports that both servers have, and is stored on the disk. If the query
        cannot be made, for example because these reports are too few, the release is open again.
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
            # Otherwise the release would close again at once, with the same reports.
            self._too_few = number
            await asyncio.to_thread(self.closings.change, self.number, since=None)
            self.note(f"release {self.number} is open again: {error}")
            return
        self.note(f"release {self.number} has closed over {self.leader.count:,} reports")

    async def _finish(self) -> None:
        """Send the stored query to the helper, open the sum with the answer, and land it.

        If the answer is stored already, since the process crashed after it came, nothing is sent.
        If the sum is refused for good, the release is lost. Any other error is raised, and the next
        step sends the same query again.
        """
        query = await self._of(lambda leader: leader.resume())
        answer = await self._of(lambda leader: leader.kept_answer)
        if answer is None:
            answer = await self.asking.answer(query)
        try:
            await self._of(lambda leader: leader.finish(answer))
        except BatchRefusedError as error:
            if self.leader.state is not BatchState.ABORTED:
                raise  # `run` waits, and the same query is sent again
            await self._lose(str(error))
            return
        await self._land()

    async def _land(self) -> None:
        """Add the sum to the campaign, erase the reports, and save the result.

        If the sum is refused, the release is lost.
        """
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
        """Save the result after the sum has landed, in this process or before a crash."""
        # `apart` runs calls one by one. If two releases saved the result at the same time, the
        # result that is written last could lack one of the two sums.
        await self.collecting.apart(self.land)
        self.is_over = True
        self.note(f"release {self.number} has landed: {self.leader.count:,} reports are in its sum")

    async def _lose(self, why: str) -> None:
        """Mark the release as lost: it will have no sum, and the next step erases its reports.

        Args:
            why: the reason, for the operator.
        """
        await asyncio.to_thread(self.closings.change, self.number, lost=why)
        self.is_over = self.collecting.is_lost = True
        self.note(f"release {self.number} is lost: {why}")

    async def _of(self, ask: Callable[[Any], _T]) -> _T:
        """Call `ask` with the leader, while no group of reports is being stored.

        It returns what `ask` returns.
        """
        return await self.collecting.ask(ask)

    def _now(self) -> float:
        return self.collecting.clock()


def _judged(leader: Any, frame: bytes) -> int:
    """Let a leader judge reports; return how many were judged.

    Args:
        leader: the leader of the release.
        frame: the helper's checks of the reports.
    """
    before = leader.unjudged
    leader.judge(frame)
    return int(before - leader.unjudged)
