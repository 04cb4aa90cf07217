"""The definitions of draft-ietf-ppm-dap-18: its messages, and the bytes that name the version.

A message has the name and the fields of the draft, in the order of the draft. If a field has a
shorter name here, a comment has the name in the draft. Times and durations are in units of the
precision of their task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from fedtally.dap.presentation import Fixed, Message, Number, Opaque, Rest, Vector

DRAFT = 18
VERSION = b"dap-18"
TASK_INTERVAL = 1  # the type of the task extension that has the interval of the task

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
    """The roles of the parties."""

    COLLECTOR = 0
    CLIENT = 1
    LEADER = 2
    HELPER = 3


class BatchMode(IntEnum):
    """The ways to group reports into batches."""

    TIME_INTERVAL = 1
    LEADER_SELECTED = 2


class ReportError(IntEnum):
    """The reasons to refuse a report."""

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
    """An empty message: the configuration of Prio3Count."""


@dataclass(frozen=True)
class Interval(Message):
    """The times t with start <= t < start + duration, in units of the precision."""

    start: UInt64
    duration: UInt64

    @property
    def end(self) -> int:
        """The first time after the interval."""
        return self.start + self.duration

    @property
    def is_valid(self) -> bool:
        """Whether the interval is not empty, and ends below 2^64."""
        return self.duration > 0 and self.end < 2**64

    def holds(self, other: Interval) -> bool:
        """Tell whether another interval is within this one."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Extension(Message):
    """An extension of a report, a task, an aggregation job or a collection job."""

    type: UInt16
    data: Bytes16


Extensions = Annotated[tuple[Extension, ...], Vector(Extension)]


def are_sorted(extensions: Sequence[Extension]) -> bool:
    """Tell whether the types of extensions are in strictly ascending order."""
    types = [extension.type for extension in extensions]
    return types == sorted(set(types))


@dataclass(frozen=True)
class HpkeCiphertext(Message):
    """A ciphertext of HPKE, and the id of the key configuration that it is sealed to."""

    config: UInt8
    key: Some16  # enc
    payload: Some32


@dataclass(frozen=True)
class HpkeConfig(Message):
    """A key configuration: a public key, its id, and the HPKE algorithms that go with it."""

    id: UInt8
    kem: UInt16
    kdf: UInt16
    aead: UInt16
    key: Some16

    @property
    def suite(self) -> tuple[int, int, int]:
        """The numbers of the KEM, the KDF and the AEAD."""
        return self.kem, self.kdf, self.aead


@dataclass(frozen=True)
class HpkeConfigList(Message):
    """The key configurations of a server, the preferred one first."""

    configs: Annotated[tuple[HpkeConfig, ...], Vector(HpkeConfig, 1)]


@dataclass(frozen=True)
class TaskConfiguration(Message):
    """The parameters that all parties of a task agree on; all ciphertexts are bound to them."""

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
    """The part of a report that both servers see in the clear."""

    id: ReportId
    time: UInt64
    extensions: Extensions  # public_extensions


@dataclass(frozen=True)
class Report(Message):
    """A report of a client."""

    metadata: ReportMetadata
    public_share: Bytes32
    leader: HpkeCiphertext  # leader_encrypted_input_share
    helper: HpkeCiphertext  # helper_encrypted_input_share


@dataclass(frozen=True)
class UploadRequest(Message):
    """Reports of clients, sent to the leader."""

    reports: Annotated[tuple[Report, ...], Rest(Report, 1)]


@dataclass(frozen=True)
class ReportUploadStatus(Message):
    """A report that the leader refused, and the reason."""

    id: ReportId
    error: ReportError


@dataclass(frozen=True)
class UploadErrors(Message):
    """The reports of an upload that the leader refused, in order; empty if it accepted all."""

    status: Annotated[tuple[ReportUploadStatus, ...], Rest(ReportUploadStatus)]


@dataclass(frozen=True)
class PlaintextInputShare(Message):
    """The plaintext of an input share, which a client seals to a server."""

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
    """The leader's message in the verification of a report (VDAF, section 5.7)."""

    tag: ClassVar[bytes] = b"\0"
    verifier_share: Bytes32


@dataclass(frozen=True)
class Finish(Message):
    """The helper's message in the verification of a report (VDAF, section 5.7)."""

    tag: ClassVar[bytes] = b"\2"
    verifier_message: Bytes32


@dataclass(frozen=True)
class ReportShare(Message):
    """The parts of a report that the leader forwards to the helper."""

    metadata: ReportMetadata
    public_share: Bytes32
    sealed: HpkeCiphertext  # encrypted_input_share


@dataclass(frozen=True)
class VerifyInit(Message):
    """A report of an aggregation job, with the leader's message in its verification."""

    report: ReportShare
    payload: Some32


@dataclass(frozen=True)
class AggregationJobInitReq(Message):
    """An aggregation job: reports that the leader asks the helper to verify and add."""

    key_id: UInt8  # verification_key_id
    agg_param: Bytes32
    extensions: Extensions
    reports: Annotated[tuple[VerifyInit, ...], Rest(VerifyInit, 1)]


@dataclass(frozen=True)
class Continued(Message):
    """The helper's answer that it continues with a report; with Prio3 it has added the report."""

    tag: ClassVar[bytes] = b"\0"
    payload: Some32


@dataclass(frozen=True)
class Finished(Message):
    """The helper's answer that it has finished a report without a message; Prio3 never uses it."""

    tag: ClassVar[bytes] = b"\1"


@dataclass(frozen=True)
class Rejected(Message):
    """The helper's answer that it refuses a report."""

    tag: ClassVar[bytes] = b"\2"
    error: ReportError


@dataclass(frozen=True)
class VerifyResp(Message):
    """The helper's answer for one report."""

    id: ReportId
    said: Continued | Finished | Rejected


@dataclass(frozen=True)
class AggregationJobResp(Message):
    """The helper's answers for the reports of a job, in the order of the job."""

    reports: Annotated[tuple[VerifyResp, ...], Rest(VerifyResp, 1)]


@dataclass(frozen=True)
class VerifyContinue(Message):
    """A further message of the leader in the verification of a report; Prio3 never uses it."""

    id: ReportId
    payload: Some32


@dataclass(frozen=True)
class AggregationJobContinueReq(Message):
    """A further step of an aggregation job; a job of Prio3 has only one step."""

    step: UInt16
    reports: Annotated[tuple[VerifyContinue, ...], Rest(VerifyContinue, 1)]


# ---- collections ----


@dataclass(frozen=True)
class Query(Message):
    """The batch that the collector asks for."""

    batch_mode: BatchMode
    config: Bytes16


@dataclass(frozen=True)
class CollectionJobReq(Message):
    """The collector's request for the result of a batch."""

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
    """The batch whose share the leader asks the helper for."""

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
    """Return the context bytes that the VDAF of a task is bound to."""
    return VERSION + task_id


def input_share_info(role: Role) -> bytes:
    """Return the `info` of HPKE for an input share that is sealed to a server: its purpose."""
    return VERSION + b" input share" + bytes([Role.CLIENT, role])


def input_share_aad(
    task_id: bytes, task: TaskConfiguration, metadata: ReportMetadata, public_share: bytes
) -> bytes:
    """Return the associated data of a sealed input share."""
    return InputShareAad(task_id, task, metadata, public_share).encode()


def read_upload(body: bytes, task: TaskConfiguration) -> tuple[Report, ...]:
    """Return the reports in the body of an upload.

    Raises:
        MalformedError: the body is no upload.
    """
    return UploadRequest.decode(body).reports


def write_upload(report: Report, task: TaskConfiguration) -> bytes:
    """Return the body of an upload with one report."""
    return UploadRequest((report,)).encode()


def aggregate_share_info(role: Role) -> bytes:
    """Return the `info` of HPKE for a batch share that a server seals to the collector."""
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
    """Return the media type of a message that is the whole body of a request or response.

    >>> media_type(UploadRequest)
    'application/ppm-dap;message=upload-req'
    """
    return f"{MEDIA};message={_MEDIA_NAMES[message]}"


def is_media_type(text: str, message: type[Message]) -> bool:
    """Tell whether a Content-Type is that of a message; it may have further parameters.

    >>> is_media_type("application/ppm-dap; message=upload-req; version=18", UploadRequest)
    True
    >>> is_media_type("application/ppm-dap;message=upload-errors", UploadRequest)
    False
    """
    head, *parameters = (part.strip() for part in text.lower().split(";"))
    return head == MEDIA and f"message={_MEDIA_NAMES[message]}" in parameters
