"""The loop in which the leader of a DAP task sends requests to the helper.

There are two kinds of jobs. An aggregation job lets both servers verify reports. A collection job
answers a request of the collector, for which the leader needs the helper's share. `Driving`
continues from the state that is on the disk. After a crash of either server it sends the same bytes
again, so that a crash loses only time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from fedtally.campaign.transports.https.dap_asking import DapAsking, DeniedError, UnansweredError
from fedtally.campaign.transports.https.dap_server import DapLeader
from fedtally.campaign.transports.https.web import Refused
from fedtally.dap import AbandonedError, Problem, ProblemType, UnknownResourceError
from fedtally.dap.draft18 import (
    AggregateShare,
    AggregateShareReq,
    AggregationJobInitReq,
    AggregationJobResp,
)
from fedtally.dap.leader import CollectionState, Job
from fedtally.errors import FedtallyError

PAUSE = 1.0  # the most seconds between two steps without an error
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds after an error; each further error doubles the wait


@dataclass
class Driving:
    """The loop in which the leader of a task sends requests to the helper.

    Args:
        served: the leader, with the HTTPS resources that it serves.
        asking: the sender of requests to the helper.
        note: shows a message to the operator.
    """

    served: DapLeader
    asking: DapAsking
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self._wait, self._why = FIRST_WAIT, ""

    async def run(self) -> None:
        """Do steps until another process uses the store.

        After an error, wait and try again; tell the operator once about each new error.
        """
        while not self.served.overtaken.is_set():
            pause = PAUSE
            try:
                await self.step()
                self._wait, self._why = FIRST_WAIT, ""
            except (FedtallyError, Refused) as error:
                if str(error) != self._why:
                    self.note(f"jobs wait: {error}")
                self._why = str(error)
                pause, self._wait = self._wait, min(LONGEST_WAIT, 2 * self._wait)
            await self._rest(pause)

    async def step(self) -> None:
        """Let the helper verify reports, then continue the open collection jobs.

        First the aggregation jobs that the helper has not answered are sent again. Then all reports
        that wait are sent in new aggregation jobs.

        Every open collection job is tried, also after an error of another one: the batch of one job
        may be too expensive for the budget, while the batch of the next is already paid. The error
        is raised after the last job. If several jobs fail, an error of the helper goes before a
        refusal of this leader, which would hide it for as long as the budget is too small.

        Raises:
            UnansweredError: the helper cannot be reached, or its answer is not usable.
            Refused: the store failed, another process uses it, or the privacy budget does not pay
                for the noise of a batch.
            FedtallyError: another error of the leader.
        """
        leader = self.served.server
        for job in await self.served.ask(leader.jobs):
            await self._run_job(job)
        while not await self.served.ask(lambda: leader.is_idle):
            made = await self.served.ask(leader.make_job)
            if made is not None:
                await self._run_job(made)
        errors: list[FedtallyError | Refused] = []
        for id in sorted(self.served.collections):
            try:
                await self._collect(id)
            except (FedtallyError, Refused) as error:
                errors.append(error)
                if self.served.overtaken.is_set():
                    break
        if errors:
            raise min(errors, key=lambda error: isinstance(error, Refused))

    async def _run_job(self, job: Job) -> None:
        """Send an aggregation job to the helper; both servers then add the valid reports.

        If the helper refuses the job, or if its answer is no answer to this job, the leader never
        adds the reports of the job, and the operator is told.

        Raises:
            UnansweredError: the helper cannot be reached, or its answer is not usable. The job
                stays on the disk, and a later step sends it again.
            Refused: the store failed, or another process uses it.
        """
        leader = self.served.server
        try:
            answer, place = await self.asking.make(
                "aggregation_jobs", job.request, AggregationJobInitReq, AggregationJobResp
            )
        except DeniedError as error:
            await self.served.ask(lambda: leader.abandon_job(job.id))
            self.note(f"the reports of a job are left out: {error}")
            return
        try:
            await self.served.ask(lambda: leader.finish_job(job.id, answer))
        except AbandonedError as error:
            self.note(f"the reports of a job are left out: {error}")
        await self._forget(place)

    async def _collect(self, id: bytes) -> None:
        """Continue a collection job: close its batch if possible, then get the helper's share.

        A batch can be closed when no aggregation job may still add reports to it, and when it has
        enough reports. Until then the job stays in `served.collections`, and a later step continues
        it. The job is removed from `served.collections` when it has its answer or has failed, when
        its batch can never be closed, or when it was deleted.

        Args:
            id: the id of the collection job.
        """
        leader = self.served.server
        try:
            state = await self.served.ask(lambda: leader.collection(id), id)
        except Problem as error:  # the collector gets the same error when it asks again
            # If the batch is too small, the job stays: more reports may come.
            if error.type is not ProblemType.INVALID_BATCH_SIZE:
                self.served.collections.discard(id)
            return
        except UnknownResourceError:
            self.served.collections.discard(id)
            return
        if state.ask:
            await self._ask_share(state)
        if state.ask or state.answer:
            self.served.collections.discard(id)

    async def _ask_share(self, state: CollectionState) -> None:
        leader = self.served.server
        try:
            answer, _ = await self.asking.make(
                "aggregate_shares", state.ask, AggregateShareReq, AggregateShare
            )
        except DeniedError as error:
            kind = error.type
            await self.served.ask(lambda: leader.fail_collection(state.id, kind))
            self.note(f"a batch is lost: {error}")
            return
        try:
            await self.served.ask(lambda: leader.finish_collection(state.id, answer), state.id)
        except (Problem, UnknownResourceError) as error:
            self.note(f"a batch is lost: {error}")

    async def _forget(self, place: str) -> None:
        """Tell the helper to delete its answer to an aggregation job; ignore a failure.

        Args:
            place: the URL of the answer.
        """
        try:
            await self.asking.forget(place)
        except (UnansweredError, DeniedError):
            return

    async def _rest(self, seconds: float) -> None:
        """Wait for a number of seconds, or less if the collector asks for a batch."""
        try:
            async with asyncio.timeout(seconds):
                await self.served.wake.wait()
        except TimeoutError:
            pass
        self.served.wake.clear()
