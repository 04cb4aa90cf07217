"""The leader of DAP: it takes reports, verifies them with the helper, and answers the collector.

What it asks the helper is kept before it is sent, and is sent again until there is an answer. An
answer that does not fit ends the job: its reports are left out, and nothing waits for them. A batch
is closed before the helper is asked for it, whatever the helper answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

from fedtally.dap.aggregator import (
    KEY_ID,
    Added,
    Aggregator,
    RefusedError,
    check_extensions,
    resource_id,
)
from fedtally.dap.draft18 import (
    AggregateShare,
    AggregateShareReq,
    AggregationJobInitReq,
    AggregationJobResp,
    BatchSelector,
    CollectionJobReq,
    Continued,
    Finish,
    Finished,
    Initialize,
    Interval,
    Report,
    ReportError,
    ReportMetadata,
    ReportShare,
    ReportUploadStatus,
    Role,
    UploadErrors,
    VerifyInit,
    VerifyResp,
)
from fedtally.dap.noise import Noise
from fedtally.dap.presentation import MalformedError, Number
from fedtally.dap.problems import Problem, ProblemType, UnknownResourceError, not_taken
from fedtally.dap.sealing import Keyring
from fedtally.dap.state import Collection, Held, Outstanding, Store, Table
from fedtally.dap.task import Task, TaskSecret
from fedtally.errors import FedtallyError
from fedtally.flp.prio3 import VerifyState
from fedtally.flp.proof import ReportRefusedError

MOST_REPORTS = 256  # of a job, unless another number is given
# what a client is told in other words than the leader (draft 18, section 4.4.2.2)
_AT_UPLOAD = {
    ReportError.BATCH_COLLECTED: ReportError.REPORT_REPLAYED,
    ReportError.TASK_NOT_STARTED: ReportError.REPORT_DROPPED,
    ReportError.TASK_EXPIRED: ReportError.REPORT_DROPPED,
}


class AbandonedError(FedtallyError):
    """Say that a job was ended, since its answer does not fit: tell the helper by a DELETE."""


class Job(NamedTuple):
    """A job that the helper has not answered.

    Attributes:
        id: its name at the leader.
        request: the AggregationJobInitReq; the same bytes each time it is sent.
    """

    id: bytes
    request: bytes


class JobEnd(NamedTuple):
    """How many reports of a job were added, and how many were not."""

    added: int
    refused: int


class CollectionState(NamedTuple):
    """How far a collection job is; without answer and ask it waits for jobs.

    Attributes:
        id: the last part of its address.
        answer: the CollectionJobResp, empty before there is one.
        ask: the AggregateShareReq that the helper must answer, else empty.
    """

    id: bytes
    answer: bytes = b""
    ask: bytes = b""


class Leader(Aggregator):
    """The leader of one task.

    Args:
        task: the task.
        secret: the seed of the verification key.
        keys: this server's keys, for input shares.
        store: what it keeps.
        noise: what it adds to its share of each batch; None: nothing.
    """

    role: ClassVar[Role] = Role.LEADER

    def __init__(
        self,
        task: Task,
        secret: TaskSecret,
        keys: Keyring,
        store: Store,
        noise: Noise | None = None,
    ) -> None:
        super().__init__(task, secret, keys, store, noise)
        # of the jobs that this object made; after a restart they are made again
        self._states: dict[bytes, list[VerifyState | None]] = {}

    # ---- uploads ----

    def upload(self, body: bytes, now: float) -> bytes:
        """Keep the reports of an UploadRequest; answer an UploadErrors, empty if all were taken.

        In a task of draft 09 the request is one report, and the answer is empty.

        Args:
            body: the request.
            now: seconds since 1970.

        Raises:
            Problem: the request cannot be read, or the one report is not taken; nothing was kept.
        """
        try:
            reports = self.task.version.read_upload(body, self.task.configuration)
        except MalformedError as error:
            raise Problem(ProblemType.INVALID_MESSAGE, str(error)) from None
        refused = []
        with self._store.transaction():
            for report in reports:
                try:
                    self._take(report, now)
                except RefusedError as error:
                    said = _AT_UPLOAD.get(error.error, error.error)
                    refused.append(ReportUploadStatus(report.metadata.id, said))
        if refused and self.task.version.is_single:
            raise not_taken(refused[0].error)
        return UploadErrors(tuple(refused)).encode()

    def _take(self, report: Report, now: float) -> None:
        """Keep a report; within a transaction."""
        id, encoded = report.metadata.id, report.encode()
        digest = hashlib.sha256(encoded).digest()
        kept = self._store.get(Table.REPORT, id)
        if kept is not None:
            if Held.decode(kept).digest != digest:
                raise RefusedError(ReportError.REPORT_REPLAYED)
            return  # it came again: its client did not hear the first answer
        if report.leader.config not in self._keys:
            raise RefusedError(ReportError.OUTDATED_CONFIG)
        self._check(report.metadata, now)
        self._store.put(Table.REPORT, id, Held(digest, encoded).encode())
        self._store.put(Table.WAITING, id, b"")

    # ---- aggregation jobs ----

    def make_job(self, most: int = MOST_REPORTS) -> Job | None:
        """Make a job of reports that wait; None where none of the first `most` may be in one.

        Call it until nothing waits (`is_idle`).

        Args:
            most: the most reports of the job.
        """
        ids = [id for id, _ in self._store.scan(Table.WAITING, limit=most)]
        begun = [each for id in ids if (each := self._begun(id)) is not None]
        with self._store.transaction():
            waiting = [id for id in ids if self._store.get(Table.WAITING, id) is not None]
            chosen = {
                report.metadata.id: (report, state, said)
                for report, state, said in begun
                if report.metadata.id in waiting and self._may_add(report.metadata)
            }
            for id in waiting:
                self._store.drop(Table.WAITING, id)
                if id not in chosen:
                    self._forget_report(id)
            if not chosen:
                return None
            job = self._keep_job([(report, said) for report, _, said in chosen.values()])
        self._states[job.id] = [state for _, state, _ in chosen.values()]
        return job

    @property
    def is_idle(self) -> bool:
        """Whether no report waits for a job."""
        return not self._store.scan(Table.WAITING, limit=1)

    def jobs(self) -> list[Job]:
        """Return the jobs that the helper has not answered."""
        return [
            Job(id, Outstanding.decode(value).request) for id, value in self._store.scan(Table.JOB)
        ]

    def finish_job(self, id: bytes, body: bytes) -> JobEnd:
        """Add the reports of a job that passed, by the helper's AggregationJobResp.

        Args:
            id: the job.
            body: the answer.

        Raises:
            AbandonedError: the answer does not fit; none of the reports was added.
        """
        kept = self._store.get(Table.JOB, id)
        if kept is None:  # its answer came before
            return JobEnd(0, 0)
        inits = AggregationJobInitReq.decode(Outstanding.decode(kept).request).reports
        try:
            said = _read_answer(body, [each.report.metadata.id for each in inits])
        except MalformedError as error:
            self.abandon_job(id)
            raise AbandonedError(f"the helper's answer does not fit: {error}") from None
        passed = self._passed(id, inits, said)
        with self._store.transaction():
            if self._store.get(Table.JOB, id) is None:
                return JobEnd(0, 0)
            added = [each for each in passed if self._may_add(each.metadata)]
            self._add(added)
            self._end_job(id, inits)
        return JobEnd(len(added), len(inits) - len(added))

    def abandon_job(self, id: bytes) -> None:
        """End a job without adding its reports: the helper refuses it, or stays away."""
        with self._store.transaction():
            kept = self._store.get(Table.JOB, id)
            if kept is not None:
                request = Outstanding.decode(kept).request
                self._end_job(id, AggregationJobInitReq.decode(request).reports)

    def _begun(self, id: bytes) -> tuple[Report, VerifyState, bytes] | None:
        """Return a report, its state and what the helper is told; None where it is not valid."""
        kept = self._store.get(Table.REPORT, id)
        assert kept is not None
        report = Report.decode(Held.decode(kept).report)
        try:
            state, said = self._begin(report.metadata, report.public_share, report.leader)
        except RefusedError:
            return None
        return report, state, said

    def _may_add(self, metadata: ReportMetadata) -> bool:
        """Return whether a report is new and its time open; within a transaction."""
        try:
            self._check_again(metadata)
        except RefusedError:
            return False
        return True

    def _keep_job(self, reports: Sequence[tuple[Report, bytes]]) -> Job:
        """Keep a job before it is sent; within a transaction."""
        inits = tuple(
            VerifyInit(
                ReportShare(report.metadata, report.public_share, report.helper),
                Initialize(said).encode(),
            )
            for report, said in reports
        )
        request = AggregationJobInitReq(KEY_ID, b"", (), inits).encode()
        times = [report.metadata.time for report, _ in reports]
        job = Job(resource_id(request), request)
        self._store.put(Table.JOB, job.id, Outstanding(min(times), max(times), request).encode())
        return job

    def _passed(
        self, id: bytes, inits: Sequence[VerifyInit], said: Sequence[VerifyResp]
    ) -> list[Added]:
        """Return the reports that both servers find valid."""
        states = self._states.get(id)
        if states is None:  # after a restart; a key may be gone meanwhile
            again = [self._begun(each.report.metadata.id) for each in inits]
            states = [each and each[1] for each in again]
        passed = []
        for init, state, response in zip(inits, states, said, strict=True):
            if state is None or not isinstance(response.said, Continued):
                continue
            try:
                message = Finish.decode(response.said.payload).verifier_message
                share = self.task.prio3.verify_next(state, message)
            except (MalformedError, ReportRefusedError):
                continue
            passed.append(Added(init.report.metadata, share))
        return passed

    def _end_job(self, id: bytes, inits: Sequence[VerifyInit]) -> None:
        """Forget a job and what its reports held; within a transaction."""
        self._store.drop(Table.JOB, id)
        for each in inits:
            self._forget_report(each.report.metadata.id)
        self._states.pop(id, None)

    def _forget_report(self, id: bytes) -> None:
        """Forget what a report holds, and not that it came; within a transaction."""
        kept = self._store.get(Table.REPORT, id)
        assert kept is not None
        self._store.put(Table.REPORT, id, replace(Held.decode(kept), report=b"").encode())

    # ---- collection jobs ----

    def collect(self, body: bytes) -> CollectionState:
        """Begin the collection of a CollectionJobReq, or say how far it is.

        Make jobs of all reports that wait first: what is in no job is not in the batch.

        Args:
            body: the request.

        Raises:
            Problem: the request is refused, or has failed; the batch is closed if the helper was
                asked for it.
        """
        id = resource_id(body)
        with self._store.transaction():
            if self._store.get(Table.COLLECTION, id) is None:
                self._read_collection(body)
                self._store.put(Table.COLLECTION, id, Collection(body).encode())
            return self._advance(id)

    def collection(self, id: bytes) -> CollectionState:
        """Say how far a collection job is.

        Raises:
            UnknownResourceError: there is no such job.
            Problem: it has failed, or cannot be met yet.
        """
        with self._store.transaction():
            return self._advance(id)

    def open_collections(self) -> list[bytes]:
        """Return the ids of the collection jobs that have neither an answer nor failed."""
        rows = self._store.scan(Table.COLLECTION)
        jobs = [(id, Collection.decode(value)) for id, value in rows]
        return [id for id, job in jobs if not (job.answer or job.failed)]

    def finish_collection(self, id: bytes, body: bytes) -> CollectionState:
        """Answer the collector, by the helper's AggregateShare.

        Args:
            id: the collection job.
            body: the helper's answer.

        Raises:
            Problem: the answer does not fit, and the job has failed for good.
        """
        try:
            sealed = AggregateShare.decode(body).sealed
            if sealed.config != self.task.collector.id:
                raise MalformedError(f"it is sealed to the key {sealed.config}")
        except MalformedError as error:
            self.fail_collection(id, ProblemType.INVALID_MESSAGE)
            raise Problem(ProblemType.INVALID_MESSAGE, f"the helper's share: {error}") from None
        with self._store.transaction():
            job = self._collection(id)
            if job.ask and not job.answer and not job.failed:
                job = replace(job, answer=job.head + sealed.encode())
                self._store.put(Table.COLLECTION, id, job.encode())
            return self._advance(id)

    def fail_collection(self, id: bytes, type: ProblemType) -> None:
        """End a collection job whose batch the helper refuses; the batch stays closed.

        Args:
            id: the collection job.
            type: why, in the helper's words.
        """
        with self._store.transaction():
            job = self._collection(id)
            if job.ask and not job.answer:
                # the share is given to nobody
                failed = replace(job, head=b"", failed=type.encode())
                self._store.put(Table.COLLECTION, id, failed.encode())

    def forget_collection(self, id: bytes) -> None:
        """Forget a collection job; a batch that was closed stays so."""
        self._collection(id)
        self._store.drop(Table.COLLECTION, id)

    def _collection(self, id: bytes) -> Collection:
        kept = self._store.get(Table.COLLECTION, id)
        if kept is None:
            raise UnknownResourceError("there is no such collection job")
        return Collection.decode(kept)

    def _read_collection(self, body: bytes) -> Interval:
        """Return the interval of a request that can be met."""
        try:
            request = CollectionJobReq.decode(body)
        except MalformedError as error:
            raise Problem(ProblemType.INVALID_MESSAGE, str(error)) from None
        interval = self._read_query(request.query)
        if request.agg_param:
            raise Problem(
                ProblemType.INVALID_AGGREGATION_PARAMETER, "Prio3 has no aggregation parameter"
            )
        check_extensions(request.extensions, ProblemType.INVALID_EXTENSION)
        return interval

    def _advance(self, id: bytes) -> CollectionState:
        """Close the batch of a collection as soon as no job may change it; in a transaction."""
        job = self._collection(id)
        if job.failed:
            raise Problem(ProblemType(job.failed.decode()), "the helper did not give its share")
        if not job.ask:
            interval = self._read_collection(job.request)
            rows = [Outstanding.decode(value) for _, value in self._store.scan(Table.JOB)]
            if any(each.first < interval.end and interval.start <= each.last for each in rows):
                return CollectionState(id)
            job = self._ask(job, interval)
            self._store.put(Table.COLLECTION, id, job.encode())
        return CollectionState(id, job.answer, b"" if job.answer else job.ask)

    def _ask(self, job: Collection, interval: Interval) -> Collection:
        """Close a batch, and return the job with what the helper is asked."""
        request = CollectionJobReq.decode(job.request)
        batch = self._close(interval, interval)
        selector = BatchSelector(request.query.batch_mode, request.query.config)
        ask = AggregateShareReq(request, selector, batch.count, batch.checksum)
        sealed = self._seal(batch, request)
        head = Number(8).write(batch.count) + batch.interval.encode() + sealed.encode()
        return replace(job, ask=ask.encode(), head=head)


def _read_answer(body: bytes, ids: Sequence[bytes]) -> Sequence[VerifyResp]:
    """Return what the helper says of the reports of a job.

    Raises:
        MalformedError: it is no answer, or of other reports.
    """
    said = AggregationJobResp.decode(body).reports
    if [each.id for each in said] != list(ids):
        raise MalformedError("it is of other reports")
    if any(isinstance(each.said, Finished) for each in said):
        raise MalformedError("a report is finished before it is verified")
    return said
