"""The JSON documents (RFC 9457, "problem details") by which a DAP server refuses a request."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from fedtally.dap.draft18 import ReportError
from fedtally.dap.task import to_text
from fedtally.errors import FedtallyError

URN = "urn:ietf:params:ppm:dap:error:"  # in a document it stands before a `ProblemType`


class ProblemType(StrEnum):
    """The types of problems, as the draft names them.

    The last three are answered only to a client whose report has the form of draft 09.
    """

    INVALID_MESSAGE = "invalidMessage"
    UNRECOGNIZED_TASK = "unrecognizedTask"
    UNRECOGNIZED_AGGREGATION_JOB = "unrecognizedAggregationJob"
    BATCH_INVALID = "batchInvalid"
    INVALID_BATCH_SIZE = "invalidBatchSize"
    INVALID_AGGREGATION_PARAMETER = "invalidAggregationParameter"
    BATCH_MISMATCH = "batchMismatch"
    STEP_MISMATCH = "stepMismatch"
    BATCH_OVERLAP = "batchOverlap"
    UNSUPPORTED_EXTENSION = "unsupportedExtension"
    INVALID_EXTENSION = "invalidExtension"
    OUTDATED_CONFIG = "outdatedConfig"
    REPORT_TOO_EARLY = "reportTooEarly"
    REPORT_REJECTED = "reportRejected"


_STATUS = {
    ProblemType.UNRECOGNIZED_TASK: 404,
    ProblemType.UNRECOGNIZED_AGGREGATION_JOB: 404,
}
_NOT_TAKEN = {
    ReportError.OUTDATED_CONFIG: ProblemType.OUTDATED_CONFIG,
    ReportError.REPORT_TOO_EARLY: ProblemType.REPORT_TOO_EARLY,
}


class UnknownResourceError(FedtallyError):
    """Say that the server has no resource with the id of the request; the HTTP status is 404."""


class Problem(FedtallyError):
    """Say that a server refuses a request.

    The stored data are unchanged, unless the method that raises this error says otherwise.

    Args:
        type: the type of the problem, as the draft names it.
        detail: a phrase that says what is wrong, for a person.

    >>> Problem(ProblemType.BATCH_OVERLAP, "it was collected").document(bytes(32))["status"]
    400
    """

    def __init__(self, type: ProblemType, detail: str) -> None:
        super().__init__(f"{type}: {detail}")
        self.type, self.detail = type, detail

    @property
    def status(self) -> int:
        """The HTTP status of the response: 404 for an unknown task or aggregation job, else 400."""
        return _STATUS.get(self.type, 400)

    def document(self, task_id: bytes) -> dict[str, Any]:
        """Return the problem document as a dict, which the caller writes as JSON.

        Args:
            task_id: the id of the task, 32 bytes.
        """
        return {
            "type": f"{URN}{self.type}",
            "status": self.status,
            "detail": self.detail,
            "taskid": to_text(task_id),
        }


def not_taken(error: ReportError) -> Problem:
    """Return the problem that a client of draft 09 gets for a refused report.

    In draft 18 the answer to an upload lists the refused reports and reasons. In draft 09 a problem
    document takes its place. If the draft has no problem type for a reason, the type is
    `reportRejected`. The detail always names the reason.

    Args:
        error: the reason why the report was refused.

    >>> not_taken(ReportError.REPORT_REPLAYED).type
    <ProblemType.REPORT_REJECTED: 'reportRejected'>
    """
    type = _NOT_TAKEN.get(error, ProblemType.REPORT_REJECTED)
    return Problem(type, f"the report is not taken: {error.name.lower()}")
