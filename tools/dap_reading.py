"""A second reading of the messages of DAP, without fedtally, and their known answers.

`TEXT` has the definitions of draft-ietf-ppm-dap-18 (and the two messages of the VDAF draft, section
5.7.1, that Prio3 sends), in the drafts' own words, and this program reads them: what it writes
follows from them and from section 3 of RFC 8446. `tools/gen_vectors.py` writes the known answers to
``tests/vectors/dap18.json``.

The definitions are code components under the Revised BSD License, copyright IETF Trust and the
persons identified as the documents' authors (tests/vectors/vdaf/README.md has the licence).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

TEXT = """
opaque TaskID[32];
opaque ReportID[16];
uint64 TimePrecision;
uint64 Time;
uint64 Duration;
uint32 VdafType;
uint8 HpkeConfigId;
uint16 HpkeAeadId;
uint16 HpkeKemId;
uint16 HpkeKdfId;
uint16 ExtensionType;
opaque HpkePublicKey<1..2^16-1>;
opaque Url<1..2^16-1>;

enum { time_interval(1), leader_selected(2), (255) } BatchMode;
enum {
  batch_collected(1),
  report_replayed(2),
  report_dropped(3),
  hpke_unknown_config_id(4),
  hpke_decrypt_error(5),
  vdaf_verify_error(6),
  task_expired(7),
  invalid_message(8),
  report_too_early(9),
  task_not_started(10),
  outdated_config(11),
  (255)
} ReportError;
enum { continue(0), finish(1), reject(2), (255) } VerifyRespType;

struct { HpkeConfigId config_id; opaque enc<1..2^16-1>; opaque payload<1..2^32-1>; } HpkeCiphertext;
struct { Time start; Duration duration; } Interval;
struct { ExtensionType extension_type; opaque extension_data<0..2^16-1>; } Extension;
struct {
    opaque task_info<1..2^8-1>;
    Url leader_aggregator_endpoint;
    Url helper_aggregator_endpoint;
    TimePrecision time_precision;
    uint64 min_batch_size;
    BatchMode batch_mode;
    opaque batch_config<0..2^16-1>;
    VdafType vdaf_type;
    opaque vdaf_configuration<0..2^16-1>;
    Extension extensions<0..2^16-1>;
} TaskConfiguration;
struct {
  HpkeConfigId id;
  HpkeKemId kem_id;
  HpkeKdfId kdf_id;
  HpkeAeadId aead_id;
  HpkePublicKey public_key;
} HpkeConfig;
struct { HpkeConfig configs<10..2^16-1>; } HpkeConfigList;
struct { uint32 length; uint64 max_measurement; uint32 chunk_length; } Prio3SumVecConfig;
struct { uint32 length; uint32 chunk_length; } Prio3HistogramConfig;

struct {
  ReportID report_id;
  Time time;
  Extension public_extensions<0..2^16-1>;
} ReportMetadata;
struct {
  ReportMetadata report_metadata;
  opaque public_share<0..2^32-1>;
  HpkeCiphertext leader_encrypted_input_share;
  HpkeCiphertext helper_encrypted_input_share;
} Report;
struct { Report reports[message_length]; } UploadRequest;
struct { ReportID id; ReportError error; } ReportUploadStatus;
struct { ReportUploadStatus status[message_length]; } UploadErrors;
struct {
  Extension private_extensions<0..2^16-1>;
  opaque payload<1..2^32-1>;
} PlaintextInputShare;
struct {
  TaskID task_id;
  TaskConfiguration task_configuration;
  ReportMetadata report_metadata;
  opaque public_share<0..2^32-1>;
} InputShareAad;

struct {
  ReportMetadata report_metadata;
  opaque public_share<0..2^32-1>;
  HpkeCiphertext encrypted_input_share;
} ReportShare;
struct { ReportShare report_share; opaque payload<1..2^32-1>; } VerifyInit;
struct {
  uint8 verification_key_id;
  opaque agg_param<0..2^32-1>;
  Extension extensions<0..2^16-1>;
  VerifyInit verify_inits[verify_inits_length];
} AggregationJobInitReq;
struct { VerifyRespType type; opaque payload<1..2^32-1>; } Continued;
struct { VerifyRespType type; } Finished;
struct { VerifyRespType type; ReportError report_error; } Rejected;
struct { ReportID report_id; select said; } VerifyResp;
struct { VerifyResp verify_resps[message_length]; } AggregationJobResp;
struct { ReportID report_id; opaque payload<1..2^32-1>; } VerifyContinue;
struct {
  uint16 step;
  VerifyContinue verify_continues[verify_continues_length];
} AggregationJobContinueReq;
struct { uint8 initialize; opaque verifier_share<0..2^32-1>; } Initialize;
struct { uint8 finish; opaque verifier_message<0..2^32-1>; } Finish;

struct { BatchMode batch_mode; opaque config<0..2^16-1>; } Query;
struct {
  Query query;
  opaque agg_param<0..2^32-1>;
  Extension extensions<0..2^16-1>;
} CollectionJobReq;
struct {
  uint64 report_count;
  Interval interval;
  HpkeCiphertext leader_encrypted_agg_share;
  HpkeCiphertext helper_encrypted_agg_share;
} CollectionJobResp;
struct { BatchMode batch_mode; opaque config<0..2^16-1>; } BatchSelector;
struct {
  CollectionJobReq collection_job_req;
  BatchSelector batch_selector;
  uint64 report_count;
  opaque checksum[32];
} AggregateShareReq;
struct { HpkeCiphertext encrypted_aggregate_share; } AggregateShare;
struct {
  TaskID task_id;
  TaskConfiguration task_configuration;
  CollectionJobReq collection_job_req;
} AggregateShareAad;
"""
# The first byte of a message is its type: VerifyResp has a `select` by it, and so has a message of
# two parties that verify.
TYPES = {"Continued": 0, "Finished": 1, "Rejected": 2, "Initialize": 0, "Finish": 2}

_FIELD = (
    r"(?P<kind>\w+) (?P<name>\w+)(?:<(?P<least>\d+)\.\.2\^(?P<bits>\d+)-1>|\[(?P<fixed>\w+)\])?;"
)
_STRUCT = re.compile(r"struct \{(?P<body>[^}]*)\} (?P<name>\w+);")
STRUCTS = {m["name"]: list(re.finditer(_FIELD, m["body"])) for m in _STRUCT.finditer(TEXT)}
ENUMS = {
    m["name"]: [int(n) for n in re.findall(r"\w+\((\d+)\)", m["body"])]
    for m in re.finditer(r"enum \{(?P<body>[^}]*)\} (?P<name>\w+);", TEXT)
}
ALIASES = {m["name"]: m for m in re.finditer(f"^{_FIELD}", TEXT, re.MULTILINE)}


def encode(kind: str, value: Any) -> bytes:
    """Return the encoding of a struct, an enumeration or a number.

    Args:
        kind: its name.
        value: of a struct a list of its fields, which are numbers, bytes in hexadecimal or lists.
    """
    if kind == "select":
        return encode(value[0], value[1])
    if kind in STRUCTS:
        fields = zip(STRUCTS[kind], value, strict=True)
        return b"".join(_field(field, given) for field, given in fields)
    if kind in ALIASES:
        return _field(ALIASES[kind], value)
    size = 1 if kind in ENUMS else int(kind.removeprefix("uint")) // 8
    return int(value).to_bytes(size, "big")


def _field(field: re.Match[str], value: Any) -> bytes:
    if field["kind"] == "opaque":
        data = bytes.fromhex(value)
    elif field["least"] or field["fixed"]:
        data = b"".join(encode(field["kind"], each) for each in value)
    else:
        return encode(field["kind"], value)
    if field["fixed"]:
        assert not field["fixed"].isdigit() or len(data) == int(field["fixed"])
        return data
    assert len(data) >= int(field["least"])
    return len(data).to_bytes(int(field["bits"]) // 8, "big") + data


def some(kind: str, label: str, size: int) -> Any:
    """Return a value that depends on the label alone; lists in it have `size` entries or fewer."""
    if kind == "select":
        chosen = ("Continued", "Finished", "Rejected")[draw(label) % 3]
        return [chosen, some(chosen, f"{label} {chosen}", size)]
    if kind in STRUCTS:
        fields = [_some(field, f"{label}.{field['name']}", size) for field in STRUCTS[kind]]
        return [TYPES[kind], *fields[1:]] if kind in TYPES else fields
    if kind in ALIASES:
        return _some(ALIASES[kind], label, size)
    if kind in ENUMS:
        return ENUMS[kind][draw(label) % len(ENUMS[kind])]
    return draw(label) % 2 ** int(kind.removeprefix("uint"))


def _some(field: re.Match[str], label: str, size: int) -> Any:
    if field["kind"] == "opaque":
        fixed = field["fixed"]
        length = int(fixed) if fixed else int(field["least"]) + draw(label) % (7 * size + 1)
        return hashlib.shake_256(label.encode()).hexdigest(length)
    if field["least"] or field["fixed"]:
        least = 0 if field["name"] == "status" or field["least"] == "0" else 1
        return [some(field["kind"], f"{label} {i}", size) for i in range(max(least, size))]
    return some(field["kind"], label, size)


def draw(label: str) -> int:
    """Return a number below 2^64 that depends on the label alone."""
    return int.from_bytes(hashlib.shake_256(b"number " + label.encode()).digest(8), "big")


def sections() -> dict[str, list[Json]]:
    """Return three vectors of each message: the shortest lists, and longer ones."""
    return {"messages": list(_vectors())}


def _vectors() -> Iterator[Json]:
    for kind in STRUCTS:
        for size in range(3):
            value = some(kind, f"{kind} {size}", size)
            yield {"message": kind, "value": value, "encoded": encode(kind, value).hex()}
