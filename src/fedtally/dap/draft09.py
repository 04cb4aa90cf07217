"""The reports of clients of draft-ietf-ppm-dap-09, and the names and data that they are bound to.

Only reports are of draft 09. All other messages, between servers and to the collector, are of draft
18. Times here are in seconds, and multiples of the precision of their task.
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
    """The part of a report that both servers see in the clear."""

    id: ReportId
    time: UInt64


@dataclass(frozen=True)
class Report(Message):
    """A report of a client."""

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


# ---- names of the version; `draft18` has the same functions ----


def input_share_info(role: Role) -> bytes:
    """Return the `info` of HPKE for an input share that is sealed to a server: its purpose."""
    return VERSION + b" input share" + bytes([Role.CLIENT, role])


def input_share_aad(
    task_id: bytes, task: TaskConfiguration, metadata: draft18.ReportMetadata, public_share: bytes
) -> bytes:
    """Return the associated data of a sealed input share, for metadata in the form of draft 18."""
    mine = ReportMetadata(metadata.id, metadata.time * task.precision)
    return InputShareAad(task_id, mine, public_share).encode()


def read_upload(body: bytes, task: TaskConfiguration) -> tuple[draft18.Report, ...]:
    """Return the report of an upload, converted to draft 18; an upload has one report.

    Raises:
        MalformedError: the body is no report, or its time is no multiple of the precision.
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
    """Return the body of an upload, for a report that is given in the form of draft 18."""
    metadata = ReportMetadata(report.metadata.id, report.metadata.time * task.precision)
    return Report(metadata, report.public_share, report.leader, report.helper).encode()
