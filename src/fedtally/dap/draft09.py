"""What a client of draft-ietf-ppm-dap-09 sends, and what it is bound to.

The other messages of a task are those of draft 18, whoever sent the reports: between servers, and
to the collector. Times are in seconds, and multiples of the precision of their task.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedtally.dap import draft18
from fedtally.dap.draft18 import (
    Bytes32,
    HpkeCiphertext,
    ReportId,
    Role,
    TaskConfiguration,
    TaskId,
    UInt64,
)
from fedtally.dap.presentation import MalformedError, Message

VERSION = b"dap-09"
UPLOAD_MEDIA = "application/dap-report"
KEYS_MEDIA = "application/dap-hpke-config-list"


@dataclass(frozen=True)
class ReportMetadata(Message):
    """What both servers see of a report."""

    id: ReportId
    time: UInt64


@dataclass(frozen=True)
class Report(Message):
    """A client's report."""

    metadata: ReportMetadata
    public_share: Bytes32
    leader: HpkeCiphertext  # leader_encrypted_input_share
    helper: HpkeCiphertext  # helper_encrypted_input_share


@dataclass(frozen=True)
class InputShareAad(Message):
    """The associated data of a sealed input share."""

    task_id: TaskId
    metadata: ReportMetadata
    public_share: Bytes32


# ---- names of the version, as `draft18` has them ----


def input_share_info(role: Role) -> bytes:
    """Return the purpose of an input share that is sealed to a server."""
    return VERSION + b" input share" + bytes([Role.CLIENT, role])


def input_share_aad(
    task_id: bytes, task: TaskConfiguration, metadata: draft18.ReportMetadata, public_share: bytes
) -> bytes:
    """Return the associated data of a sealed input share."""
    mine = ReportMetadata(metadata.id, metadata.time * task.precision)
    return InputShareAad(task_id, mine, public_share).encode()


def read_upload(body: bytes, task: TaskConfiguration) -> tuple[draft18.Report, ...]:
    """Return the one report of an upload, as draft 18 has it.

    Raises:
        MalformedError: it is no report, or its time is no multiple of the precision.
    """
    report = Report.decode(body)
    time, rest = divmod(report.metadata.time, task.precision)
    if rest:
        raise MalformedError(
            f"the time of a report must be a multiple of {task.precision} s, got"
            f" {report.metadata.time}"
        )
    metadata = draft18.ReportMetadata(report.metadata.id, time, ())
    return (draft18.Report(metadata, report.public_share, report.leader, report.helper),)


def write_upload(report: draft18.Report, task: TaskConfiguration) -> bytes:
    """Return the upload of a report, which is given as draft 18 has it."""
    metadata = ReportMetadata(report.metadata.id, report.metadata.time * task.precision)
    return Report(metadata, report.public_share, report.leader, report.helper).encode()
