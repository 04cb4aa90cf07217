"""What draft-ietf-ppm-dap-18 defines: its messages, and the bytes that name the version.

All that differs from draft to draft is here. A message has the draft's name and the draft's fields
in the draft's order; where Python has a shorter word for a field, its comment names the draft's.
Times and durations are in units of the precision of their task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from fedtally.dap.presentation import Fixed, Message, Number, Opaque, Rest, Vector

DRAFT = 18
VERSION = b"dap-18"
TASK_INTERVAL = 1  # the task extension

TaskId = Annotated[bytes, Fixed(32)]
ReportId = Annotated[bytes, Fixed(16)]
Checksum = Annotated[bytes, Fixed(32)]
UInt8 = Annotated[int, Number(1)]
UInt16 = Annotated[int, Number(2)]
UInt32 = Annotated[int, Number(4)]
UInt64 = Annotated[int, Number(8)]
Bytes16 = Annotated[bytes, Opaque(2)]
Bytes32 = Annotated[bytes, Opaque(4)]
Some8 = Annotated[bytes, Opaque(1, 1)]
Some16 = Annotated[bytes, Opaque(2, 1)]
Some32 = Annotated[bytes, Opaque(4, 1)]


class Role(IntEnum):
    """Who takes part."""

    COLLECTOR = 0
    CLIENT = 1
    LEADER = 2
    HELPER = 3


class BatchMode(IntEnum):
    """How reports become batches."""

    TIME_INTERVAL = 1
    LEADER_SELECTED = 2


class ReportError(IntEnum):
    """Why a report is not taken."""

    BATCH_COLLECTED = 1
    REPORT_REPLAYED = 2
    REPORT_DROPPED = 3
    HPKE_UNKNOWN_CONFIG_ID = 4
    HPKE_DECRYPT_ERROR = 5
    VDAF_VERIFY_ERROR = 6
    TASK_EXPIRED = 7
    INVALID_MESSAGE = 8
    REPORT_TOO_EARLY = 9
    TASK_NOT_STARTED = 10
    OUTDATED_CONFIG = 11


# ---- parts ----


@dataclass(frozen=True)
class Empty(Message):
    """Nothing, as the configuration of Prio3Count."""


@dataclass(frozen=True)
class Interval(Message):
    """The times from `start` to the one before `start + duration`."""

    start: UInt64
    duration: UInt64

    @property
    def end(self) -> int:
        """The first time after it."""
        return self.start + self.duration

    @property
    def is_valid(self) -> bool:
        """Whether it has a time, and ends within the range of times."""
        return self.duration > 0 and self.end < 2**64

    def holds(self, other: Interval) -> bool:
        """Whether another interval is within this one."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Extension(Message):
    """An extension of a report, a task, an aggregation job or a collection job."""

    type: UInt16
    data: Bytes16


Extensions = Annotated[tuple[Extension, ...], Vector(Extension)]


def are_sorted(extensions: Sequence[Extension]) -> bool:
    """Return whether the types of extensions rise strictly: sorted, and none twice."""
    types = [extension.type for extension in extensions]
    return types == sorted(set(types))


@dataclass(frozen=True)
class HpkeCiphertext(Message):
    """Bytes that are sealed to the key of one configuration."""

    config: UInt8
    key: Some16  # enc
    payload: Some32


@dataclass(frozen=True)
class HpkeConfig(Message):
    """A public key, and what it is used with."""

    id: UInt8
    kem: UInt16
    kdf: UInt16
    aead: UInt16
    key: Some16

    @property
    def suite(self) -> tuple[int, int, int]:
        """The three algorithms."""
        return self.kem, self.kdf, self.aead


@dataclass(frozen=True)
class HpkeConfigList(Message):
    """The configurations of a server, the preferred one first."""

    configs: Annotated[tuple[HpkeConfig, ...], Vector(HpkeConfig, 1)]


@dataclass(frozen=True)
class TaskConfiguration(Message):
    """What all parties of a task agree on; a part of all that is sealed under it."""

    task_info: Some8
    leader: Some16  # leader_aggregator_endpoint
    helper: Some16  # helper_aggregator_endpoint
    precision: UInt64  # time_precision: seconds
    min_batch: UInt64  # min_batch_size
    batch_mode: BatchMode
    batch_config: Bytes16
    vdaf_type: UInt32
    vdaf_configuration: Bytes16
    extensions: Extensions


@dataclass(frozen=True)
class Prio3SumVecConfig(Message):
    """The configuration of a vector of sums."""

    entries: UInt32  # length
    maximum: UInt64  # max_measurement
    chunk: UInt32  # chunk_length


@dataclass(frozen=True)
class Prio3HistogramConfig(Message):
    """The configuration of a histogram."""

    buckets: UInt32  # length
    chunk: UInt32  # chunk_length


# ---- uploads ----


@dataclass(frozen=True)
class ReportMetadata(Message):
    """What both servers see of a report."""

    id: ReportId
    time: UInt64
    extensions: Extensions  # public_extensions


@dataclass(frozen=True)
class Report(Message):
    """A client's report."""

    metadata: ReportMetadata
    public_share: Bytes32
    leader: HpkeCiphertext  # leader_encrypted_input_share
    helper: HpkeCiphertext  # helper_encrypted_input_share


@dataclass(frozen=True)
class UploadRequest(Message):
    """Reports of clients."""

    reports: Annotated[tuple[Report, ...], Rest(Report, 1)]


@dataclass(frozen=True)
class ReportUploadStatus(Message):
    """Why the leader did not take a report."""

    id: ReportId
    error: ReportError


@dataclass(frozen=True)
class UploadErrors(Message):
    """The reports that were not taken, in their order; empty where all were."""

    status: Annotated[tuple[ReportUploadStatus, ...], Rest(ReportUploadStatus)]


@dataclass(frozen=True)
class PlaintextInputShare(Message):
    """What a client seals to a server."""

    extensions: Extensions  # private_extensions
    payload: Some32


@dataclass(frozen=True)
class InputShareAad(Message):
    """The associated data of a sealed input share."""

    task_id: TaskId
    task: TaskConfiguration
    metadata: ReportMetadata
    public_share: Bytes32


# ---- aggregation jobs ----


@dataclass(frozen=True)
class Initialize(Message):
    """The leader's message of the verification of a report (VDAF, section 5.7)."""

    tag: ClassVar[bytes] = b"\0"
    verifier_share: Bytes32


@dataclass(frozen=True)
class Finish(Message):
    """The helper's message of the verification of a report (VDAF, section 5.7)."""

    tag: ClassVar[bytes] = b"\2"
    verifier_message: Bytes32


@dataclass(frozen=True)
class ReportShare(Message):
    """What the helper needs of a report."""

    metadata: ReportMetadata
    public_share: Bytes32
    sealed: HpkeCiphertext  # encrypted_input_share


@dataclass(frozen=True)
class VerifyInit(Message):
    """A report of a job, with the leader's message of its verification."""

    report: ReportShare
    payload: Some32


@dataclass(frozen=True)
class AggregationJobInitReq(Message):
    """Reports that the leader asks the helper to verify and to add."""

    key_id: UInt8  # verification_key_id
    agg_param: Bytes32
    extensions: Extensions
    reports: Annotated[tuple[VerifyInit, ...], Rest(VerifyInit, 1)]


@dataclass(frozen=True)
class Continued(Message):
    """The helper goes on: of Prio3, it has added the report."""

    tag: ClassVar[bytes] = b"\0"
    payload: Some32


@dataclass(frozen=True)
class Finished(Message):
    """The helper is done, and has nothing to say; not for Prio3."""

    tag: ClassVar[bytes] = b"\1"


@dataclass(frozen=True)
class Rejected(Message):
    """The helper does not take the report."""

    tag: ClassVar[bytes] = b"\2"
    error: ReportError


@dataclass(frozen=True)
class VerifyResp(Message):
    """What the helper says of a report."""

    id: ReportId
    said: Continued | Finished | Rejected


@dataclass(frozen=True)
class AggregationJobResp(Message):
    """What the helper says of the reports of a job, in their order."""

    reports: Annotated[tuple[VerifyResp, ...], Rest(VerifyResp, 1)]


@dataclass(frozen=True)
class VerifyContinue(Message):
    """A further message of the leader on a report."""

    id: ReportId
    payload: Some32


@dataclass(frozen=True)
class AggregationJobContinueReq(Message):
    """A further step of a job; no job of Prio3 has one."""

    step: UInt16
    reports: Annotated[tuple[VerifyContinue, ...], Rest(VerifyContinue, 1)]


# ---- collections ----


@dataclass(frozen=True)
class Query(Message):
    """What the collector asks for."""

    batch_mode: BatchMode
    config: Bytes16


@dataclass(frozen=True)
class CollectionJobReq(Message):
    """The collector's request."""

    query: Query
    agg_param: Bytes32
    extensions: Extensions


@dataclass(frozen=True)
class CollectionJobResp(Message):
    """The result of a batch, sealed to the collector."""

    report_count: UInt64
    interval: Interval
    leader: HpkeCiphertext  # leader_encrypted_agg_share
    helper: HpkeCiphertext  # helper_encrypted_agg_share


@dataclass(frozen=True)
class BatchSelector(Message):
    """Which buckets the leader asks the helper for."""

    batch_mode: BatchMode
    config: Bytes16


@dataclass(frozen=True)
class AggregateShareReq(Message):
    """The leader's request for the helper's share of a batch."""

    collection: CollectionJobReq  # collection_job_req
    selector: BatchSelector  # batch_selector
    report_count: UInt64
    checksum: Checksum


@dataclass(frozen=True)
class AggregateShare(Message):
    """The helper's share of a batch, sealed to the collector."""

    sealed: HpkeCiphertext  # encrypted_aggregate_share


@dataclass(frozen=True)
class AggregateShareAad(Message):
    """The associated data of a sealed share of a batch."""

    task_id: TaskId
    task: TaskConfiguration
    collection: CollectionJobReq


# ---- names of the version ----


def vdaf_context(task_id: bytes) -> bytes:
    """Return the context that the VDAF of a task is bound to."""
    return VERSION + task_id


def input_share_info(role: Role) -> bytes:
    """Return the purpose of an input share that is sealed to a server."""
    return VERSION + b" input share" + bytes([Role.CLIENT, role])


def input_share_aad(
    task_id: bytes, task: TaskConfiguration, metadata: ReportMetadata, public_share: bytes
) -> bytes:
    """Return the associated data of a sealed input share."""
    return InputShareAad(task_id, task, metadata, public_share).encode()


def read_upload(body: bytes, task: TaskConfiguration) -> tuple[Report, ...]:
    """Return the reports of an upload.

    Raises:
        MalformedError: it is no upload.
    """
    return UploadRequest.decode(body).reports


def write_upload(report: Report, task: TaskConfiguration) -> bytes:
    """Return the upload of a report."""
    return UploadRequest((report,)).encode()


def aggregate_share_info(role: Role) -> bytes:
    """Return the purpose of a share of a batch that a server seals to the collector."""
    return VERSION + b" aggregate share" + bytes([role, Role.COLLECTOR])


# ---- media types ----

MEDIA = "application/ppm-dap"
_MEDIA_NAMES: dict[type[Message], str] = {
    HpkeConfigList: "hpke-config-list",
    UploadRequest: "upload-req",
    UploadErrors: "upload-errors",
    AggregationJobInitReq: "aggregation-job-init-req",
    AggregationJobResp: "aggregation-job-resp",
    AggregationJobContinueReq: "aggregation-job-continue-req",
    AggregateShareReq: "aggregate-share-req",
    AggregateShare: "aggregate-share",
    CollectionJobReq: "collection-job-req",
    CollectionJobResp: "collection-job-resp",
}


def media_type(message: type[Message]) -> str:
    """Return the media type of a message that is sent by itself.

    >>> media_type(UploadRequest)
    'application/ppm-dap;message=upload-req'
    """
    return f"{MEDIA};message={_MEDIA_NAMES[message]}"


def is_media_type(text: str, message: type[Message]) -> bool:
    """Return whether a Content-Type is the one of a message; it may name a version, too.

    >>> is_media_type("application/ppm-dap; message=upload-req; version=18", UploadRequest)
    True
    >>> is_media_type("application/ppm-dap;message=upload-errors", UploadRequest)
    False
    """
    head, *parameters = (part.strip() for part in text.lower().split(";"))
    return head == MEDIA and f"message={_MEDIA_NAMES[message]}" in parameters
