"""What a server of DAP answers where a request cannot be met (RFC 9457)."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from fedtally.dap.draft18 import ReportError
from fedtally.dap.task import to_text
from fedtally.errors import FedtallyError

URN = "urn:ietf:params:ppm:dap:error:"  # before the types of problems


class ProblemType(StrEnum):
    """The draft's types; the last three are answers to a report of draft 09."""

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
    """Say that there is nothing of this id: the status is 404."""


class Problem(FedtallyError):
    """Refuse a request; nothing has changed.

    Args:
        type: one of the draft's types.
        detail: a sentence on what is wrong.

    >>> Problem(ProblemType.BATCH_OVERLAP, "it was collected").document(bytes(32))["status"]
    400
    """

    def __init__(self, type: ProblemType, detail: str) -> None:
        super().__init__(f"{type}: {detail}")
        self.type, self.detail = type, detail

    @property
    def status(self) -> int:
        """The status of the response."""
        return _STATUS.get(self.type, 400)

    def document(self, task_id: bytes) -> dict[str, Any]:
        """Return the problem document, for JSON."""
        return {
            "type": f"{URN}{self.type}",
            "status": self.status,
            "detail": self.detail,
            "taskid": to_text(task_id),
        }


def not_taken(error: ReportError) -> Problem:
    """Return what a client of draft 09 is told, whose report was not taken.

    >>> not_taken(ReportError.REPORT_REPLAYED).type
    <ProblemType.REPORT_REJECTED: 'reportRejected'>
    """
    type = _NOT_TAKEN.get(error, ProblemType.REPORT_REJECTED)
    return Problem(type, f"the report is not taken: {error.name.lower()}")
