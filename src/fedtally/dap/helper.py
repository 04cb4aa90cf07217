"""The helper of DAP: it verifies the reports that the leader sends, and returns shares of batches.

The helper stores each answer under the digest of its request, in the transaction that changes its
other tables. So a request that is sent again gets the same bytes, also after a crash, until the
answer is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fedtally.dap.aggregator import (
    KEY_ID,
    Added,
    Aggregator,
    RefusedError,
    Resource,
    check_extensions,
    resource_id,
)
from fedtally.dap.draft18 import (
    AggregateShare,
    AggregateShareReq,
    AggregationJobContinueReq,
    AggregationJobInitReq,
    AggregationJobResp,
    Continued,
    Finish,
    Initialize,
    Rejected,
    ReportError,
    Role,
    VerifyInit,
    VerifyResp,
)
from fedtally.dap.presentation import MalformedError
from fedtally.dap.problems import Problem, ProblemType, UnknownResourceError
from fedtally.dap.state import Table
from fedtally.flp.proof import ReportRefusedError


class Helper(Aggregator):
    """The helper of one task; see `Aggregator` for its arguments."""

    role: ClassVar[Role] = Role.HELPER

    # ---- aggregation jobs ----

    def aggregate(self, body: bytes, now: float) -> Resource:
        """Verify the reports of an aggregation job, and add the valid ones to the sum.

        Args:
            body: the leader's request, an encoded AggregationJobInitReq.
            now: the time, Unix seconds.

        Returns:
            The resource of the job. Its answer is an encoded AggregationJobResp, which says for
            each report whether it was added. The same `body` gets the same answer again, and adds
            nothing. After `forget_aggregation_job` the same `body` gets a new answer, which refuses
            the reports that were added before.

        Raises:
            Problem: the whole request is refused; no report was added.
        """
        id = resource_id(body)
        kept = self._store.get(Table.JOB_ANSWER, id)
        if kept is None:
            request = _read_job(body)
            verified = [self._verify(each, now) for each in request.reports]
            with self._store.transaction():
                kept = self._store.get(Table.JOB_ANSWER, id) or self._commit(verified)
                self._store.put(Table.JOB_ANSWER, id, kept)
        return Resource(id, kept)

    def aggregation_job(self, id: bytes) -> bytes:
        """Return the stored answer to an aggregation job, an encoded AggregationJobResp.

        Args:
            id: the id of the job's resource, 16 bytes.

        Raises:
            Problem: there is no such job.
        """
        kept = self._store.get(Table.JOB_ANSWER, id)
        if kept is None:
            raise Problem(ProblemType.UNRECOGNIZED_AGGREGATION_JOB, "there is no such job")
        return kept

    def proceed(self, id: bytes, body: bytes) -> bytes:
        """Refuse an AggregationJobContinueReq: in Prio3 an aggregation job has only one step.

        Raises:
            Problem: always. Its type says whether the job is unknown, the request is malformed, or
                the step does not exist.
        """
        self.aggregation_job(id)
        try:
            step = AggregationJobContinueReq.decode(body).step
        except MalformedError as error:
            raise Problem(ProblemType.INVALID_MESSAGE, str(error)) from None
        raise Problem(ProblemType.STEP_MISMATCH, f"the job has no step {step}")

    def forget_aggregation_job(self, id: bytes) -> None:
        """Delete the stored answer to an aggregation job; its reports stay in the sum.

        Args:
            id: the id of the job's resource, 16 bytes.

        Raises:
            Problem: there is no such job.
        """
        self.aggregation_job(id)
        self._store.drop(Table.JOB_ANSWER, id)

    def _verify(self, init: VerifyInit, now: float) -> tuple[VerifyResp, Added | None]:
        """Verify a report, but do not add it yet.

        Args:
            init: the report, with the leader's message in its verification.
            now: the time, Unix seconds.

        Returns:
            The answer for the leader, and the report as `_add` needs it. If the report is refused,
            the answer says so, and None takes the place of the report.
        """
        report = init.report
        try:
            self._check(report.metadata, now)
            state, said = self._begin(report.metadata, report.public_share, report.sealed)
        except RefusedError as error:
            return _rejected(report.metadata.id, error.error), None
        prio3 = self.task.prio3
        try:
            leader_said = Initialize.decode(init.payload).verifier_share
            message = prio3.verifier_shares_to_message([leader_said, said])
            added = Added(report.metadata, prio3.verify_next(state, message))
        except (MalformedError, ReportRefusedError):
            return _rejected(report.metadata.id, ReportError.VDAF_VERIFY_ERROR), None
        return VerifyResp(report.metadata.id, Continued(Finish(message).encode())), added

    def _commit(self, verified: Sequence[tuple[VerifyResp, Added | None]]) -> bytes:
        """Add the reports that passed verification; return the encoded AggregationJobResp.

        Call it in a transaction. A report that was added or whose time was collected since
        `_verify` is refused instead.

        Args:
            verified: the results of `_verify` for each report of the job, in order.
        """
        said, passed = [], []
        for response, added in verified:
            said.append(response)
            if added is None:
                continue
            try:
                self._check_again(added.metadata)
            except RefusedError as error:
                said[-1] = _rejected(response.id, error.error)
            else:
                passed.append(added)
        self._add(passed)
        return AggregationJobResp(tuple(said)).encode()

    # ---- aggregate shares ----

    def share(self, body: bytes) -> Resource:
        """Close the batch that the leader asks for, and return this server's share of it.

        Args:
            body: the leader's request, an encoded AggregateShareReq.

        Returns:
            The resource of the request. Its answer is an encoded AggregateShare. The same `body`
            gets the same answer again. After `forget_aggregate_share` the same `body` is refused.

        Raises:
            Problem: the request is refused; the batch is still open.
            FedtallyError: the privacy budget does not allow this batch (see `Noise.charge`); the
                batch is still open.
        """
        id = resource_id(body)
        with self._store.transaction():
            kept = self._store.get(Table.SHARE_ANSWER, id)
            if kept is None:
                kept = self._close_for(body)
                self._store.put(Table.SHARE_ANSWER, id, kept)
        return Resource(id, kept)

    def aggregate_share(self, id: bytes) -> bytes:
        """Return the stored answer to an AggregateShareReq, an encoded AggregateShare.

        Args:
            id: the id of the resource that `share` returned, 16 bytes.

        Raises:
            UnknownResourceError: there is no such resource.
        """
        kept = self._store.get(Table.SHARE_ANSWER, id)
        if kept is None:
            raise UnknownResourceError("there is no such aggregate share")
        return kept

    def forget_aggregate_share(self, id: bytes) -> None:
        """Delete the stored answer to an AggregateShareReq; the batch stays closed.

        Args:
            id: the id of the resource that `share` returned, 16 bytes.

        Raises:
            UnknownResourceError: there is no such resource.
        """
        self.aggregate_share(id)
        self._store.drop(Table.SHARE_ANSWER, id)

    def _close_for(self, body: bytes) -> bytes:
        try:
            request = AggregateShareReq.decode(body)
        except MalformedError as error:
            raise Problem(ProblemType.INVALID_MESSAGE, str(error)) from None
        collection = request.collection
        query, selected = self._read_query(collection.query), self._read_query(request.selector)
        if not query.holds(selected):
            raise Problem(ProblemType.BATCH_INVALID, "the selector is not within the query")
        if collection.agg_param:
            raise Problem(ProblemType.INVALID_MESSAGE, "Prio3 has no aggregation parameter")
        check_extensions(collection.extensions, ProblemType.INVALID_EXTENSION)
        batch = self._close(query, selected)
        if (batch.count, batch.checksum) != (request.report_count, request.checksum):
            raise Problem(ProblemType.BATCH_MISMATCH, "the servers added other reports")
        return AggregateShare(self._seal(batch, collection)).encode()


def _read_job(body: bytes) -> AggregationJobInitReq:
    """Decode the leader's request of an aggregation job.

    Raises:
        Problem: the request is malformed, names another verification key than `KEY_ID`, has an
            aggregation parameter or an extension, or has a report twice.
    """
    try:
        request = AggregationJobInitReq.decode(body)
    except MalformedError as error:
        raise Problem(ProblemType.INVALID_MESSAGE, str(error)) from None
    if request.key_id != KEY_ID:
        raise Problem(ProblemType.INVALID_MESSAGE, f"the verification key is {KEY_ID}")
    if request.agg_param:
        raise Problem(
            ProblemType.INVALID_AGGREGATION_PARAMETER, "Prio3 has no aggregation parameter"
        )
    check_extensions(request.extensions, ProblemType.INVALID_MESSAGE)
    ids = {each.report.metadata.id for each in request.reports}
    if len(ids) < len(request.reports):
        raise Problem(ProblemType.INVALID_MESSAGE, "a report is there twice")
    return request


def _rejected(id: bytes, error: ReportError) -> VerifyResp:
    return VerifyResp(id, Rejected(error))
