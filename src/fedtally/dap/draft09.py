"""The form of a client's report in draft-ietf-ppm-dap-09.

A task may accept reports of this draft. All its other messages, between the servers and to the
collector, have the form of draft 18. Times in this file are Unix seconds, and are multiples of the
task's precision; times in draft 18 are in units of the precision.
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
    """A report of a client, which has one sealed input share for each server."""

    metadata: ReportMetadata
    public_share: Bytes32
    leader: HpkeCiphertext  # leader_encrypted_input_share
    helper: HpkeCiphertext  # helper_encrypted_input_share


@dataclass(frozen=True)
class InputShareAad(Message):
    """The associated data that a sealed (encrypted) input share is bound to."""

    task_id: TaskId
    metadata: ReportMetadata
    public_share: Bytes32


# ---- functions that `versions` lists; `draft18` has functions of the same names ----


def input_share_info(role: Role) -> bytes:
    """Return the HPKE `info`, the purpose of the ciphertext, of an input share.

    An input share is one server's share of a measurement and of its proof.

    Args:
        role: the role of the server that the share is sealed to.
    """
    return VERSION + b" input share" + bytes([Role.CLIENT, role])


def input_share_aad(
    task_id: bytes, task: TaskConfiguration, metadata: draft18.ReportMetadata, public_share: bytes
) -> bytes:
    """Return the associated data that a sealed (encrypted) input share is bound to.

    Args:
        task_id: the id of the task, 32 bytes.
        task: the configuration of the task.
        metadata: the report's metadata in the form of draft 18.
        public_share: the report's public share.
    """
    mine = ReportMetadata(metadata.id, metadata.time * task.precision)
    return InputShareAad(task_id, mine, public_share).encode()


def read_upload(body: bytes, task: TaskConfiguration) -> tuple[draft18.Report, ...]:
    """Decode the body of an upload, and convert its report to the form of draft 18.

    Args:
        body: an encoded `Report`.
        task: the configuration of the task.

    Returns:
        A tuple of one report: an upload of draft 09 never has more.

    Raises:
        MalformedError: the body is not an encoded `Report`, or the report's time is no multiple of
            the precision.
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
    """Encode a report as the body of an upload.

    Args:
        report: the report in the form of draft 18.
        task: the configuration of the task.
    """
    metadata = ReportMetadata(report.metadata.id, report.metadata.time * task.precision)
    return Report(metadata, report.public_share, report.leader, report.helper).encode()
