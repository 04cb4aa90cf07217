"""The messages of draft-ietf-ppm-dap-18, its media types, and the bytes that name this draft.

A message has its name in the draft, and its fields in the order of the draft. Some fields have a
shorter name here. Where the draft's name is not plain from the shorter one, a comment gives it.
Times and durations are in units of the task's precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, ClassVar

from fedtally.dap.presentation import Fixed, Message, Number, Opaque, Rest, Vector

DRAFT = 18
VERSION = b"dap-18"
TASK_INTERVAL = 1  # the type of the task extension whose data are the interval of the task

TaskId = Annotated[bytes, Fixed(32)]
ReportId = Annotated[bytes, Fixed(16)]
Checksum = Annotated[bytes, Fixed(32)]
UInt8 = Annotated[int, Number(1)]
UInt16 = Annotated[int, Number(2)]
UInt32 = Annotated[int, Number(4)]
UInt64 = Annotated[int, Number(8)]
# Byte strings whose encoding begins with their length. The number in a name is the number of bits
# of this length. Bytes16 has 0 .. 2^16 - 1 bytes, and Some16 has 1 .. 2^16 - 1 bytes.
Bytes16 = Annotated[bytes, Opaque(2)]
Bytes32 = Annotated[bytes, Opaque(4)]
Some8 = Annotated[bytes, Opaque(1, 1)]
Some16 = Annotated[bytes, Opaque(2, 1)]
Some32 = Annotated[bytes, Opaque(4, 1)]


class Role(IntEnum):
    """The roles of the parties, with their numbers in the draft."""

    COLLECTOR = 0
    CLIENT = 1
    LEADER = 2
    HELPER = 3


class BatchMode(IntEnum):
    """The ways to group reports into batches; fedtally supports only TIME_INTERVAL."""

    TIME_INTERVAL = 1
    LEADER_SELECTED = 2


class ReportError(IntEnum):
    """The reasons why a server refuses a report, with their numbers in the draft."""

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


# ---- messages that are fields of other messages ----


@dataclass(frozen=True)
class Empty(Message):
    """A message without fields: the configuration of a count (Prio3Count)."""


@dataclass(frozen=True)
class Interval(Message):
    """The times t with start <= t < start + duration, in units of the precision."""

    start: UInt64
    duration: UInt64

    @property
    def end(self) -> int:
        """The first time that is after the interval, in units of the precision."""
        return self.start + self.duration

    @property
    def is_valid(self) -> bool:
        """Whether the interval contains a time, and its end is below 2^64."""
        return self.duration > 0 and self.end < 2**64

    def holds(self, other: Interval) -> bool:
        """Tell whether every time of another interval is in this interval."""
        return self.start <= other.start and other.end <= self.end


@dataclass(frozen=True)
class Extension(Message):
    """An extension: an extra value in a report, a task, an aggregation job or a collection job."""

    type: UInt16
    data: Bytes16


Extensions = Annotated[tuple[Extension, ...], Vector(Extension)]


def are_sorted(extensions: Sequence[Extension]) -> bool:
    """Tell whether the types of extensions ascend strictly, so that none is there twice."""
    types = [extension.type for extension in extensions]
    return types == sorted(set(types))


@dataclass(frozen=True)
class HpkeCiphertext(Message):
    """An HPKE ciphertext, with the number of the key that opens it."""

    config: UInt8  # config_id: the `HpkeConfig.id` of the recipient's key
    key: Some16  # enc: the sender's one-time public key
    payload: Some32


@dataclass(frozen=True)
class HpkeConfig(Message):
    """A key configuration: a number, the HPKE algorithms to use with the key, and a public key."""

    id: UInt8
    kem: UInt16
    kdf: UInt16
    aead: UInt16
    key: Some16

    @property
    def suite(self) -> tuple[int, int, int]:
        """The HPKE algorithms as registered numbers: (KEM, KDF, AEAD)."""
        return self.kem, self.kdf, self.aead


@dataclass(frozen=True)
class HpkeConfigList(Message):
    """The key configurations of a server, the preferred one first."""

    configs: Annotated[tuple[HpkeConfig, ...], Vector(HpkeConfig, 1)]


@dataclass(frozen=True)
class TaskConfiguration(Message):
    """The parameters that all parties of a task agree on; `task.Task.make` explains them.

    Every ciphertext of the task is bound to them: its associated data contain the parameters, or
    the task's id, which is their hash.
    """

    task_info: Some8
    leader: Some16  # leader_aggregator_endpoint
    helper: Some16  # helper_aggregator_endpoint
    precision: UInt64  # time_precision: seconds
    min_batch: UInt64  # min_batch_size
    batch_mode: BatchMode
    batch_config: Bytes16  # empty
    vdaf_type: UInt32  # the number of the VDAF, see `task.KINDS`
    vdaf_configuration: Bytes16  # an encoded message with the sizes: Empty or a Prio3...Config
    extensions: Extensions  # one, TASK_INTERVAL: the interval in which the task accepts reports


@dataclass(frozen=True)
class Prio3SumVecConfig(Message):
    """The sizes of a vector of sums (Prio3SumVec); see `flp.circuits.SumVec`."""

    entries: UInt32  # length
    maximum: UInt64  # max_measurement
    chunk: UInt32  # chunk_length


@dataclass(frozen=True)
class Prio3HistogramConfig(Message):
    """The sizes of a histogram (Prio3Histogram); see `flp.circuits.Histogram`."""

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
    """A report of a client, which has one sealed input share for each server."""

    metadata: ReportMetadata
    public_share: Bytes32
    leader: HpkeCiphertext  # leader_encrypted_input_share
    helper: HpkeCiphertext  # helper_encrypted_input_share


@dataclass(frozen=True)
class UploadRequest(Message):
    """The body of an upload: one or more reports, sent to the leader."""

    reports: Annotated[tuple[Report, ...], Rest(Report, 1)]


@dataclass(frozen=True)
class ReportUploadStatus(Message):
    """The id of a report that the leader refused, and the reason."""

    id: ReportId
    error: ReportError


@dataclass(frozen=True)
class UploadErrors(Message):
    """The leader's answer to an upload: the reports that it refused, in the order of the upload.

    The list is empty if the leader accepted all reports.
    """

    status: Annotated[tuple[ReportUploadStatus, ...], Rest(ReportUploadStatus)]


@dataclass(frozen=True)
class PlaintextInputShare(Message):
    """The plaintext of an input share: one server's share of a measurement and of its proof."""

    extensions: Extensions  # private_extensions
    payload: Some32


@dataclass(frozen=True)
class InputShareAad(Message):
    """The associated data that a sealed input share is bound to."""

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
    """A report as the leader forwards it to the helper, with the helper's input share only."""

    metadata: ReportMetadata
    public_share: Bytes32
    sealed: HpkeCiphertext  # encrypted_input_share


@dataclass(frozen=True)
class VerifyInit(Message):
    """A report of an aggregation job, with the leader's message in its verification."""

    report: ReportShare
    payload: Some32  # an encoded `Initialize`


@dataclass(frozen=True)
class AggregationJobInitReq(Message):
    """The leader's request of an aggregation job: the helper is to verify and add these reports."""

    key_id: UInt8  # verification_key_id
    agg_param: Bytes32  # empty for Prio3
    extensions: Extensions
    reports: Annotated[tuple[VerifyInit, ...], Rest(VerifyInit, 1)]


@dataclass(frozen=True)
class Continued(Message):
    """The helper's answer for a report that is valid, with a message for the leader.

    In Prio3 the helper has added the report when it sends this answer.
    """

    tag: ClassVar[bytes] = b"\0"
    payload: Some32  # an encoded `Finish`


@dataclass(frozen=True)
class Finished(Message):
    """The helper's answer for a report that needs no further message; Prio3 never uses it."""

    tag: ClassVar[bytes] = b"\1"


@dataclass(frozen=True)
class Rejected(Message):
    """The helper's answer for a report that it refuses, with the reason."""

    tag: ClassVar[bytes] = b"\2"
    error: ReportError


@dataclass(frozen=True)
class VerifyResp(Message):
    """The helper's answer for one report."""

    id: ReportId
    said: Continued | Finished | Rejected


@dataclass(frozen=True)
class AggregationJobResp(Message):
    """The helper's answers for the reports of an aggregation job, in the order of the request."""

    reports: Annotated[tuple[VerifyResp, ...], Rest(VerifyResp, 1)]


@dataclass(frozen=True)
class VerifyContinue(Message):
    """A further message of the leader in the verification of a report; Prio3 never uses it."""

    id: ReportId
    payload: Some32


@dataclass(frozen=True)
class AggregationJobContinueReq(Message):
    """The leader's request of a further step of an aggregation job; Prio3 never uses it."""

    step: UInt16
    reports: Annotated[tuple[VerifyContinue, ...], Rest(VerifyContinue, 1)]


# ---- collections ----


@dataclass(frozen=True)
class Query(Message):
    """The batch that the collector asks for."""

    batch_mode: BatchMode
    config: Bytes16  # an encoded `Interval`


@dataclass(frozen=True)
class CollectionJobReq(Message):
    """The collector's request for the result of a batch."""

    query: Query
    agg_param: Bytes32
    extensions: Extensions


@dataclass(frozen=True)
class CollectionJobResp(Message):
    """The leader's answer to the collector: both servers' shares of a batch, each one sealed."""

    report_count: UInt64
    interval: Interval  # the smallest interval with the times of all reports of the batch
    leader: HpkeCiphertext  # leader_encrypted_agg_share
    helper: HpkeCiphertext  # helper_encrypted_agg_share


@dataclass(frozen=True)
class BatchSelector(Message):
    """The batch whose share the leader asks the helper for."""

    batch_mode: BatchMode
    config: Bytes16  # an encoded `Interval`


@dataclass(frozen=True)
class AggregateShareReq(Message):
    """The leader's request for the helper's share of a batch.

    The helper refuses it if `report_count` or `checksum` differs from the helper's own batch.
    """

    collection: CollectionJobReq  # collection_job_req: the collector's request
    selector: BatchSelector  # batch_selector
    report_count: UInt64
    checksum: Checksum  # the XOR of the SHA-256 digests of the reports' ids


@dataclass(frozen=True)
class AggregateShare(Message):
    """The helper's share of a batch, sealed to the collector."""

    sealed: HpkeCiphertext  # encrypted_aggregate_share


@dataclass(frozen=True)
class AggregateShareAad(Message):
    """The associated data that a sealed share of a batch is bound to."""

    task_id: TaskId
    task: TaskConfiguration
    collection: CollectionJobReq


# ---- the bytes that bind keys and ciphertexts to this draft; the body of an upload ----


def vdaf_context(task_id: bytes) -> bytes:
    """Return the bytes by which the VDAF of a task is bound to the draft and to the task's id.

    The VDAF of draft 09 ignores them.
    """
    return VERSION + task_id


def input_share_info(role: Role) -> bytes:
    """Return the HPKE `info`, the purpose of the ciphertext, of an input share.

    An input share is one server's share of a measurement and of its proof.

    Args:
        role: the role of the server that the share is sealed to.
    """
    return VERSION + b" input share" + bytes([Role.CLIENT, role])


def input_share_aad(
    task_id: bytes, task: TaskConfiguration, metadata: ReportMetadata, public_share: bytes
) -> bytes:
    """Return the associated data that a sealed (encrypted) input share is bound to.

    Args:
        task_id: the id of the task, 32 bytes.
        task: the configuration of the task.
        metadata: the report's metadata.
        public_share: the report's public share.
    """
    return InputShareAad(task_id, task, metadata, public_share).encode()


def read_upload(body: bytes, task: TaskConfiguration) -> tuple[Report, ...]:
    """Decode the body of an upload; return its reports, one or more, in order.

    Args:
        body: an encoded `UploadRequest`.
        task: not used; the function of draft 09 needs it.

    Raises:
        MalformedError: the body is not an encoded `UploadRequest`.
    """
    return UploadRequest.decode(body).reports


def write_upload(report: Report, task: TaskConfiguration) -> bytes:
    """Encode the body of an upload with one report.

    Args:
        report: the report.
        task: not used; the function of draft 09 needs it.
    """
    return UploadRequest((report,)).encode()


def aggregate_share_info(role: Role) -> bytes:
    """Return the HPKE `info`, the purpose of the ciphertext, of a server's share of a batch.

    Args:
        role: the role of the server that seals its share to the collector.
    """
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
    """Return the media type of a request or response whose body is a message of this class.

    >>> media_type(UploadRequest)
    'application/ppm-dap;message=upload-req'
    """
    return f"{MEDIA};message={_MEDIA_NAMES[message]}"


def is_media_type(text: str, message: type[Message]) -> bool:
    """Tell whether a Content-Type says that the body is a message of this class.

    Args:
        text: the Content-Type, in which capitals, quotes and further parameters are allowed.
        message: the class of the message.

    >>> is_media_type("application/ppm-dap; message=upload-req; version=18", UploadRequest)
    True
    >>> is_media_type("application/ppm-dap;message=upload-errors", UploadRequest)
    False
    >>> is_media_type('application/ppm-dap;message="upload-req"', UploadRequest)
    True
    """
    head, *parameters = (part.strip() for part in text.lower().replace('"', "").split(";"))
    return head == MEDIA and f"message={_MEDIA_NAMES[message]}" in parameters
