"""The leader of DAP: it accepts reports, verifies them with the helper, and answers the collector.

A request to the helper is stored before it is sent, and is sent again until there is an answer. If
the answer to a job does not fit, the job ends: its reports are not added, and nothing waits for
them. A batch is closed before the helper is asked for its share, and stays closed whatever the
helper answers.
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

MOST_REPORTS = 256  # the most reports of a job, by default
# The errors that a client is told in place of the leader's own error (draft 18, section 4.4.2.2).
_AT_UPLOAD = {
    ReportError.BATCH_COLLECTED: ReportError.REPORT_REPLAYED,
    ReportError.TASK_NOT_STARTED: ReportError.REPORT_DROPPED,
    ReportError.TASK_EXPIRED: ReportError.REPORT_DROPPED,
}


class AbandonedError(FedtallyError):
    """Report that a job has ended because its answer does not fit: send the helper a DELETE."""


class Job(NamedTuple):
    """An aggregation job that the helper has not answered.

    Attributes:
        id: the id of the job at the leader, 16 bytes.
        request: the AggregationJobInitReq; send the same bytes each time.
    """

    id: bytes
    request: bytes


class JobEnd(NamedTuple):
    """The end of an aggregation job: how many of its reports were added, and how many were not."""

    added: int
    refused: int


class CollectionState(NamedTuple):
    """The state of a collection job.

    If `answer` and `ask` are both empty, it waits for aggregation jobs.

    Attributes:
        id: the last part of the job's address, 16 bytes.
        answer: the CollectionJobResp; empty until there is one.
        ask: the AggregateShareReq that the helper must answer now; empty if there is none.
    """

    id: bytes
    answer: bytes = b""
    ask: bytes = b""


class Leader(Aggregator):
    """The leader of one task.

    Args:
        task: the task.
        secret: the secret of the task, which has the seed of the verification key.
        keys: the keys of this server, which open input shares.
        store: the storage of this server for this task.
        noise: the noise that this server adds to its share of each batch; None: it adds none.
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
        # The states of verification, for the jobs that this object made, by job. After a restart
        # they are computed again.
        self._states: dict[bytes, list[VerifyState | None]] = {}

    # ---- uploads ----

    def upload(self, body: bytes, now: float) -> bytes:
        """Store the reports of an UploadRequest; return an UploadErrors with the refused reports.

        The UploadErrors is empty if all reports were accepted. In a task of draft 09 the request is
        one report, and the answer is empty.

        Args:
            body: the request.
            now: the time, Unix seconds.

        Raises:
            Problem: the request cannot be read; or, in draft 09, its report is refused. Nothing was
                stored.
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
        """Store a report; call it in a transaction.

        Raises:
            RefusedError: the report is refused.
        """
        id, encoded = report.metadata.id, report.encode()
        digest = hashlib.sha256(encoded).digest()
        kept = self._store.get(Table.REPORT, id)
        if kept is not None:
            if Held.decode(kept).digest != digest:
                raise RefusedError(ReportError.REPORT_REPLAYED)
            return  # a copy: the client may have missed the first answer
        if report.leader.config not in self._keys:
            raise RefusedError(ReportError.OUTDATED_CONFIG)
        self._check(report.metadata, now)
        self._store.put(Table.REPORT, id, Held(digest, encoded).encode())
        self._store.put(Table.WAITING, id, b"")

    # ---- aggregation jobs ----

    def make_job(self, most: int = MOST_REPORTS) -> Job | None:
        """Make an aggregation job of waiting reports, and return it.

        It is None if none of the first `most` waiting reports can be added. Call this method until
        no report waits (`is_idle`).

        Args:
            most: the largest number of reports in the job.
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
        """Return the aggregation jobs that the helper has not answered."""
        return [
            Job(id, Outstanding.decode(value).request) for id, value in self._store.scan(Table.JOB)
        ]

    def finish_job(self, id: bytes, body: bytes) -> JobEnd:
        """Finish an aggregation job: add the reports that both servers find valid.

        Args:
            id: the id of the job.
            body: the helper's answer, an AggregationJobResp.

        Raises:
            AbandonedError: the answer does not fit; none of the reports was added.
        """
        kept = self._store.get(Table.JOB, id)
        if kept is None:  # the job was answered before
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
        """End an aggregation job without adding its reports.

        Use it if the helper refuses the job, or never answers.
        """
        with self._store.transaction():
            kept = self._store.get(Table.JOB, id)
            if kept is not None:
                request = Outstanding.decode(kept).request
                self._end_job(id, AggregationJobInitReq.decode(request).reports)

    def _begun(self, id: bytes) -> tuple[Report, VerifyState, bytes] | None:
        """Begin the verification of a stored report.

        Return the report, the leader's state and the leader's verifier share for the helper, or
        None if the report is refused.
        """
        kept = self._store.get(Table.REPORT, id)
        assert kept is not None
        report = Report.decode(Held.decode(kept).report)
        try:
            state, said = self._begin(report.metadata, report.public_share, report.leader)
        except RefusedError:
            return None
        return report, state, said

    def _may_add(self, metadata: ReportMetadata) -> bool:
        """Tell whether a report is new and its time is not collected; call it in a transaction."""
        try:
            self._check_again(metadata)
        except RefusedError:
            return False
        return True

    def _keep_job(self, reports: Sequence[tuple[Report, bytes]]) -> Job:
        """Store and return an aggregation job, before it is sent; call it in a transaction.

        Args:
            reports: each report, with the leader's verifier share.
        """
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
        """Return the reports of a job that both servers find valid.

        Args:
            id: the id of the job.
            inits: the reports of the job.
            said: the helper's answer for each report, in the same order.
        """
        states = self._states.get(id)
        if states is None:  # after a restart; the key of a report may have been removed since
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
        """Delete a job and the contents of its reports; call it in a transaction."""
        self._store.drop(Table.JOB, id)
        for each in inits:
            self._forget_report(each.report.metadata.id)
        self._states.pop(id, None)

    def _forget_report(self, id: bytes) -> None:
        """Delete the contents of a report, but keep its digest; call it in a transaction."""
        kept = self._store.get(Table.REPORT, id)
        assert kept is not None
        self._store.put(Table.REPORT, id, replace(Held.decode(kept), report=b"").encode())

    # ---- collection jobs ----

    def collect(self, body: bytes) -> CollectionState:
        """Begin the collection job of a request, or continue it; return its state.

        Call `make_job` first until no report waits: a report that is in no job is not in the batch.

        Args:
            body: the request of the collector, a CollectionJobReq.

        Raises:
            Problem: the request is refused, its batch cannot be closed, or the job has failed. If
                the helper was asked for its share, the batch stays closed.
        """
        id = resource_id(body)
        with self._store.transaction():
            if self._store.get(Table.COLLECTION, id) is None:
                self._read_collection(body)
                self._store.put(Table.COLLECTION, id, Collection(body).encode())
            return self._advance(id)

    def collection(self, id: bytes) -> CollectionState:
        """Continue a collection job, and return its state.

        Raises:
            UnknownResourceError: there is no such job.
            Problem: the job has failed, or its batch cannot be closed.
        """
        with self._store.transaction():
            return self._advance(id)

    def open_collections(self) -> list[bytes]:
        """Return the ids of the collection jobs that have no answer and have not failed."""
        rows = self._store.scan(Table.COLLECTION)
        jobs = [(id, Collection.decode(value)) for id, value in rows]
        return [id for id, job in jobs if not (job.answer or job.failed)]

    def finish_collection(self, id: bytes, body: bytes) -> CollectionState:
        """Finish a collection job with the helper's share; return its state, with the answer.

        Args:
            id: the id of the collection job.
            body: the helper's answer, an AggregateShare.

        Raises:
            UnknownResourceError: there is no such job.
            Problem: the answer does not fit, and the job has failed for good; or it had failed
                before.
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
        """End a collection job because the helper refuses its share; the batch stays closed.

        It changes nothing if the helper has not been asked, or if the job has an answer.

        Args:
            id: the id of the collection job.
            type: the type of the problem that the helper answered.

        Raises:
            UnknownResourceError: there is no such job.
        """
        with self._store.transaction():
            job = self._collection(id)
            if job.ask and not job.answer:
                # `head` has the leader's share, which nobody may get any more.
                failed = replace(job, head=b"", failed=type.encode())
                self._store.put(Table.COLLECTION, id, failed.encode())

    def forget_collection(self, id: bytes) -> None:
        """Delete a collection job; if its batch is closed, it stays closed.

        Raises:
            UnknownResourceError: there is no such job.
        """
        self._collection(id)
        self._store.drop(Table.COLLECTION, id)

    def _collection(self, id: bytes) -> Collection:
        kept = self._store.get(Table.COLLECTION, id)
        if kept is None:
            raise UnknownResourceError("there is no such collection job")
        return Collection.decode(kept)

    def _read_collection(self, body: bytes) -> Interval:
        """Return the interval of a collection request, in units of the precision.

        Raises:
            Problem: the request is malformed, has another batch mode or no valid interval, or has
                an aggregation parameter or an extension.
        """
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
        """Close the batch of a collection job if no aggregation job can change it any more.

        Return the state of the collection job. Call this method in a transaction.

        Raises:
            UnknownResourceError: there is no such job.
            Problem: the job has failed, or its batch cannot be closed.
        """
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
        """Close the batch of a collection job, and return the job with the request to the helper.

        Args:
            job: the collection job.
            interval: the interval that the collector asks for.

        Raises:
            Problem: the batch cannot be closed.
        """
        request = CollectionJobReq.decode(job.request)
        batch = self._close(interval, interval)
        selector = BatchSelector(request.query.batch_mode, request.query.config)
        ask = AggregateShareReq(request, selector, batch.count, batch.checksum)
        sealed = self._seal(batch, request)
        head = Number(8).write(batch.count) + batch.interval.encode() + sealed.encode()
        return replace(job, ask=ask.encode(), head=head)


def _read_answer(body: bytes, ids: Sequence[bytes]) -> Sequence[VerifyResp]:
    """Return the helper's answers for the reports of an aggregation job.

    Args:
        body: the answer of the helper, an AggregationJobResp.
        ids: the ids of the reports, in the order of the job.

    Raises:
        MalformedError: the body is no answer, or the answer is for other reports.
    """
    said = AggregationJobResp.decode(body).reports
    if [each.id for each in said] != list(ids):
        raise MalformedError("it is of other reports")
    if any(isinstance(each.said, Finished) for each in said):
        raise MalformedError("a report is finished before it is verified")
    return said
