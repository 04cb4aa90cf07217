"""The leader of DAP: it accepts reports, verifies them with the helper, and answers the collector.

There are two kinds of jobs. An aggregation job sends reports to the helper, and both servers verify
them. A collection job answers one request of the collector. This module sends nothing: its caller
sends the requests that `Leader` returns.

The leader stores a request to the helper before it returns the request, so the caller can send it
again until the helper answers. If the helper's answer to an aggregation job is not an answer to
this job (see `_read_answer`), the job ends, and the leader never adds its reports. A batch is
closed before the helper is asked for its share, and stays closed whatever the helper answers.
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

MOST_REPORTS = 256  # the most reports in an aggregation job, by default
# For some reasons to refuse a report, the answer to the upload names another reason: the leader's
# reason -> the reason that the client gets (draft 18, section 4.4.2.2).
_AT_UPLOAD = {
    ReportError.BATCH_COLLECTED: ReportError.REPORT_REPLAYED,
    ReportError.TASK_NOT_STARTED: ReportError.REPORT_DROPPED,
    ReportError.TASK_EXPIRED: ReportError.REPORT_DROPPED,
}


class AbandonedError(FedtallyError):
    """Say that an aggregation job has ended because the helper's answer is no answer to this job.

    The caller should tell the helper to delete its stored answer (HTTP DELETE).
    """


class Job(NamedTuple):
    """An aggregation job that the helper has not answered.

    Attributes:
        id: the id of the job at the leader, 16 bytes.
        request: the encoded AggregationJobInitReq. If it is sent again, the bytes must be the same.
    """

    id: bytes
    request: bytes


class JobEnd(NamedTuple):
    """The numbers of reports of a finished aggregation job that were added and were refused."""

    added: int
    refused: int


class CollectionState(NamedTuple):
    """The state of a collection job, the work on one request of the collector.

    While an aggregation job may still add reports to the batch, `answer` and `ask` are both empty.
    Then `ask` is set, until the helper has answered. Then `ask` is empty, and `answer` is set.

    Attributes:
        id: the id of the job's resource, 16 bytes.
        answer: the encoded CollectionJobResp for the collector, or empty.
        ask: the encoded AggregateShareReq, or empty. If it is set, the caller must send it to the
            helper.
    """

    id: bytes
    answer: bytes = b""
    ask: bytes = b""


class Leader(Aggregator):
    """The leader of one task; see `Aggregator` for its arguments and errors."""

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
        # The states of the verification of each report, by the id of the aggregation job. They are
        # not in the store: after a restart `_passed` computes them again.
        self._states: dict[bytes, list[VerifyState | None]] = {}

    # ---- uploads ----

    def upload(self, body: bytes, now: float) -> bytes:
        """Store the reports of an upload, except those that the leader must refuse.

        A report that is already stored is accepted again, and nothing changes.

        Args:
            body: the body of the upload: an encoded UploadRequest, or in draft 09 one report.
            now: the time, Unix seconds.

        Returns:
            An encoded UploadErrors: the refused reports, each with a reason. It is empty bytes if
            no report was refused. In draft 09 it is always empty bytes.

        Raises:
            Problem: the upload is malformed, or it is of draft 09 and its report is refused.
                Nothing was stored.
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
        """Store a report, which then waits for an aggregation job; call it in a transaction.

        A report that is stored already is accepted, and nothing changes.

        Raises:
            RefusedError: another report has the same id, the leader lacks the key that the report
                is sealed to, or `_check` refuses the report.
        """
        id, encoded = report.metadata.id, report.encode()
        digest = hashlib.sha256(encoded).digest()
        kept = self._store.get(Table.REPORT, id)
        if kept is not None:
            if Held.decode(kept).digest != digest:
                raise RefusedError(ReportError.REPORT_REPLAYED)
            return  # the same report: the client may not have received the first answer
        if report.leader.config not in self._keys:
            raise RefusedError(ReportError.OUTDATED_CONFIG)
        self._check(report.metadata, now)
        self._store.put(Table.REPORT, id, Held(digest, encoded).encode())
        self._store.put(Table.WAITING, id, b"")

    # ---- aggregation jobs ----

    def make_job(self, most: int = MOST_REPORTS) -> Job | None:
        """Move up to `most` waiting reports into a new aggregation job; store and return it.

        This call takes up to `most` waiting reports, and none of them waits afterwards. The leader
        drops a report, and never adds it, if the time of the report was collected or `_begin`
        refuses the report. The job has the reports that were not dropped. To handle all reports,
        call this method until `is_idle`: more reports may wait even if it returns None.

        Args:
            most: the largest number of waiting reports to take.

        Returns:
            The job, or None if no report waits or all reports that were taken were dropped.
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
        """Whether no report waits for an aggregation job."""
        return not self._store.scan(Table.WAITING, limit=1)

    def jobs(self) -> list[Job]:
        """Return the aggregation jobs that the helper has not answered, in the order of their ids.

        After a restart the caller sends these again.
        """
        return [
            Job(id, Outstanding.decode(value).request) for id, value in self._store.scan(Table.JOB)
        ]

    def finish_job(self, id: bytes, body: bytes) -> JobEnd:
        """Finish an aggregation job: add the reports that both servers find valid.

        The job and the contents of its reports are deleted.

        Args:
            id: the id of the job.
            body: the helper's answer, an encoded AggregationJobResp.

        Returns:
            How many reports of the job were added and refused. Both numbers are 0 if there is no
            such job, for example because it was finished before.

        Raises:
            AbandonedError: `body` is no answer to this job (see `_read_answer`). The job has ended,
                and the leader never adds its reports.
        """
        kept = self._store.get(Table.JOB, id)
        if kept is None:  # the job was finished or abandoned before
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
        """End an aggregation job; the leader never adds its reports.

        Call this method if the helper refuses the job, or never answers. If the helper has added
        the reports, the sums of both servers differ, and the batch with the times of these reports
        has no result. If there is no such job, nothing happens.
        """
        with self._store.transaction():
            kept = self._store.get(Table.JOB, id)
            if kept is not None:
                request = Outstanding.decode(kept).request
                self._end_job(id, AggregationJobInitReq.decode(request).reports)

    def _begun(self, id: bytes) -> tuple[Report, VerifyState, bytes] | None:
        """Begin to verify a stored report.

        Args:
            id: the id of the report.

        Returns:
            The report, the state that the next step of the verification needs, and the leader's
            verifier share for the helper. None: the leader refuses the report.
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
        """Tell whether a report is not added yet and its time is not collected.

        Call it in the transaction that relies on the result.
        """
        try:
            self._check_again(metadata)
        except RefusedError:
            return False
        return True

    def _keep_job(self, reports: Sequence[tuple[Report, bytes]]) -> Job:
        """Store an aggregation job, and return it; call it in a transaction.

        Args:
            reports: pairs of a report and the leader's verifier share of it; at least one.
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
        """Return the reports of a job that both servers find valid, in the order of the job.

        Args:
            id: the id of the job.
            inits: the reports of the job, as they were sent to the helper.
            said: the helper's answers, one for each report, in the same order.
        """
        states = self._states.get(id)
        # After a restart there are no states. Since the job was made, the operator may have removed
        # the key that a report is sealed to: then its state is None.
        if states is None:
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
        """Delete an aggregation job and the contents of its reports; call it in a transaction."""
        self._store.drop(Table.JOB, id)
        for each in inits:
            self._forget_report(each.report.metadata.id)
        self._states.pop(id, None)

    def _forget_report(self, id: bytes) -> None:
        """Delete the contents of a stored report; call it in a transaction.

        Its id and digest stay, so that a copy which the client sends later is not stored again.
        """
        kept = self._store.get(Table.REPORT, id)
        assert kept is not None
        self._store.put(Table.REPORT, id, replace(Held.decode(kept), report=b"").encode())

    # ---- collection jobs ----

    def collect(self, body: bytes) -> CollectionState:
        """Begin a collection job, or continue it if `body` came before; return its state.

        First call `make_job` until `is_idle`: an accepted report that is in no aggregation job yet
        would be missing in the batch.

        Args:
            body: the collector's request, an encoded CollectionJobReq.

        Raises:
            Problem: the request is refused, or its batch cannot be closed, for example because it
                has too few reports. In both cases nothing was stored. Or the job has failed before:
                its batch stays closed, and has no result.
            FedtallyError: the privacy budget does not allow this batch (see `Noise.charge`).
                Nothing was stored.
        """
        id = resource_id(body)
        with self._store.transaction():
            if self._store.get(Table.COLLECTION, id) is None:
                self._read_collection(body)
                self._store.put(Table.COLLECTION, id, Collection(body).encode())
            return self._advance(id)

    def collection(self, id: bytes) -> CollectionState:
        """Continue a collection job: close its batch if this is possible now; return its state.

        Args:
            id: the id of the collection job.

        Raises:
            UnknownResourceError: there is no such job.
            Problem: the job has failed before, or its batch cannot be closed now.
            FedtallyError: the privacy budget does not allow this batch (see `Noise.charge`).
        """
        with self._store.transaction():
            return self._advance(id)

    def open_collections(self) -> list[bytes]:
        """Return the ids of the collection jobs that have no answer and have not failed, sorted."""
        rows = self._store.scan(Table.COLLECTION)
        jobs = [(id, Collection.decode(value)) for id, value in rows]
        return [id for id, job in jobs if not (job.answer or job.failed)]

    def finish_collection(self, id: bytes, body: bytes) -> CollectionState:
        """Finish a collection job with the helper's share, and return the state of the job.

        If the job waits for the helper's share, the state now has the answer. If the job has an
        answer already, this answer stays. If the batch is not closed yet, this method checks `body`
        but does not keep it, and then does what `collection` does.

        Args:
            id: the id of the collection job.
            body: the helper's answer to `CollectionState.ask`, an encoded AggregateShare.

        Raises:
            UnknownResourceError: there is no such job.
            Problem: `body` is not an encoded AggregateShare that is sealed to the task's collector.
                If the job waits for the helper's share, it has now failed for good. Or the job had
                failed before.
            Problem, FedtallyError: the batch is not closed yet, and `collection` raises this error.
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
        """Mark a collection job as failed, because the helper refused to return its share.

        The batch stays closed, and will have no result. If the job has an answer, or if its batch
        is not closed yet, nothing changes.

        Args:
            id: the id of the collection job.
            type: the type of the problem that the helper answered. The collector gets this type.

        Raises:
            UnknownResourceError: there is no such job.
        """
        with self._store.transaction():
            job = self._collection(id)
            if job.ask and not job.answer:
                # `head` has the leader's sealed share, which must not leave this server any more.
                failed = replace(job, head=b"", failed=type.encode())
                self._store.put(Table.COLLECTION, id, failed.encode())

    def forget_collection(self, id: bytes) -> None:
        """Delete a collection job and its answer; a closed batch stays closed.

        Args:
            id: the id of the collection job.

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
        """Check a request of the collector; return its interval, in units of the precision.

        Args:
            body: an encoded CollectionJobReq.

        Raises:
            Problem: the request is malformed, its batch mode is not TIME_INTERVAL, its interval is
                malformed or empty, or it has an aggregation parameter or an extension.
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
        """Close the batch of a collection job, unless an aggregation job may still add to it.

        Call this method in a transaction. A batch that is closed already stays as it is.

        Args:
            id: the id of the collection job.

        Returns:
            The state of the collection job.

        Raises:
            UnknownResourceError: there is no such collection job.
            Problem: the job has failed before, or its batch cannot be closed.
            FedtallyError: the privacy budget does not allow this batch (see `Noise.charge`).
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
        """Close the batch of a collection job; return the job with `ask` and `head` set.

        The caller stores the returned job, in the same transaction.

        Args:
            job: the collection job.
            interval: the interval that the collector asks for.

        Raises:
            Problem: the batch cannot be closed.
            FedtallyError: the privacy budget does not allow this batch (see `Noise.charge`).
        """
        request = CollectionJobReq.decode(job.request)
        batch = self._close(interval, interval)
        selector = BatchSelector(request.query.batch_mode, request.query.config)
        ask = AggregateShareReq(request, selector, batch.count, batch.checksum)
        sealed = self._seal(batch, request)
        head = Number(8).write(batch.count) + batch.interval.encode() + sealed.encode()
        return replace(job, ask=ask.encode(), head=head)


def _read_answer(body: bytes, ids: Sequence[bytes]) -> Sequence[VerifyResp]:
    """Decode the helper's answer to an aggregation job; return one answer for each report.

    Args:
        body: the helper's answer, an encoded AggregationJobResp.
        ids: the ids of the reports, in the order of the job.

    Raises:
        MalformedError: `body` is malformed, has other reports or the reports in another order, or
            has a `Finished`, which Prio3 never uses.
    """
    said = AggregationJobResp.decode(body).reports
    if [each.id for each in said] != list(ids):
        raise MalformedError("it is of other reports")
    if any(isinstance(each.said, Finished) for each in said):
        raise MalformedError("a report is finished before it is verified")
    return said
