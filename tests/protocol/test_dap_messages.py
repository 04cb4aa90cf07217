"""The messages of DAP: the known answers of a second reading, and bytes that are no message."""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from fedtally.dap import draft18, presentation
from fedtally.dap.draft18 import (
    Extension,
    HpkeCiphertext,
    HpkeConfigList,
    Interval,
    ReportError,
    ReportUploadStatus,
    UploadErrors,
    UploadRequest,
    VerifyResp,
    are_sorted,
)
from fedtally.dap.presentation import MalformedError, Message
from fedtally.errors import InvalidInputError

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "dap18.json").read_text())["messages"]
KINDS = {
    name: kind
    for name, kind in vars(draft18).items()
    if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
}
# their last field goes to the end: cut between two entries, what is left is a message
LISTS = {
    "UploadRequest",
    "UploadErrors",
    "AggregationJobInitReq",
    "AggregationJobResp",
    "AggregationJobContinueReq",
}


def plain(value: Any) -> Any:
    """Return a message as the second reading has it."""
    if is_dataclass(value):
        parts = [plain(getattr(value, field.name)) for field in fields(value)]
        return [value.tag[0], *parts] if value.tag else parts
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    return value.hex() if isinstance(value, bytes) else value


def as_read(value: Any, kind: str) -> Any:
    """Return the value of a vector without the name of the kind that it chose."""
    if kind == "VerifyResp":
        return [value[0], value[1][1]]
    if kind == "AggregationJobResp":
        return [[as_read(each, "VerifyResp") for each in value[0]]]
    return value


@each_case("vector", VECTORS)
def test_the_known_answers(vector: dict[str, Any]) -> None:
    kind, encoded = vector["message"], bytes.fromhex(vector["encoded"])
    message = KINDS[kind].decode(encoded)
    assert plain(message) == as_read(vector["value"], kind)
    assert message.encode() == encoded


def test_every_message_has_known_answers() -> None:
    assert {vector["message"] for vector in VECTORS} == set(KINDS)


@each_case("vector", VECTORS)
def test_a_message_that_is_cut_or_goes_on_is_none(vector: dict[str, Any]) -> None:
    kind, encoded = KINDS[vector["message"]], bytes.fromhex(vector["encoded"])
    for end in range(len(encoded)):
        try:
            shorter = kind.decode(encoded[:end])
        except MalformedError:
            continue
        # never another reading of the bytes: only fewer entries of a list without a length
        assert vector["message"] in LISTS
        assert shorter.encode() == encoded[:end]
        assert (
            astuple(shorter)[-1] == astuple(kind.decode(encoded))[-1][: len(astuple(shorter)[-1])]
        )
    for byte in (b"\0", b"\1", b"\xff"):
        with pytest.raises(MalformedError):
            kind.decode(encoded + byte)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"UploadErrors"}))
def test_nothing_is_no_message(kind: str) -> None:
    with pytest.raises(MalformedError):
        KINDS[kind].decode(b"")


def test_no_errors_of_an_upload_are_no_bytes() -> None:
    assert UploadErrors.decode(b"") == UploadErrors(())


# ---- properties ----


def values(codec: Any) -> st.SearchStrategy[Any]:
    match codec:
        case presentation.Number(size):
            return st.integers(0, 2 ** (8 * size) - 1)
        case presentation.Choice(kind):
            return st.sampled_from(kind)
        case presentation.Fixed(length):
            return st.binary(min_size=length, max_size=length)
        case presentation.Opaque(_, least):
            return st.binary(min_size=least, max_size=9)
        case presentation.Nested(kinds):
            return st.one_of(*map(messages, kinds))
        case _:
            return st.lists(messages(codec.of), min_size=codec.least, max_size=2).map(tuple)


def messages(kind: type[Message]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{name: values(codec) for name, codec in presentation._codecs(kind)})


@given(st.one_of(*map(messages, KINDS.values())))
def test_a_message_is_read_as_it_was_written(message: Message) -> None:
    assert type(message).decode(message.encode()) == message


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=60))
def test_bytes_are_no_message_or_its_one_encoding(kind: str, data: bytes) -> None:
    try:
        message = KINDS[kind].decode(data)
    except MalformedError:
        return
    assert message.encode() == data


@given(st.lists(st.integers(0, 5), max_size=5))
def test_extensions_are_sorted_if_their_types_rise(types: list[int]) -> None:
    rise = all(one < two for one, two in pairwise(types))
    assert are_sorted([Extension(type, b"") for type in types]) == rise


# ---- bad fields ----


def refused(kind: type[Message], data: str, match: str) -> None:
    with pytest.raises(MalformedError, match=match):
        kind.decode(bytes.fromhex(data))


def test_numbers_of_no_member_are_refused() -> None:
    refused(ReportUploadStatus, "00" * 17, "ReportError has no member 0")
    refused(ReportUploadStatus, "00" * 16 + "0c", "ReportError has no member 12")
    refused(VerifyResp, "00" * 16 + "03", "no message begins with the byte 3")
    refused(VerifyResp, "00" * 16 + "0200", "ReportError has no member 0")
    refused(draft18.Query, "000000", "BatchMode has no member 0")
    refused(draft18.Finish, "0000000000", "a Finish must begin with 02")


def test_fields_that_must_not_be_empty_are_refused() -> None:
    refused(HpkeCiphertext, "01" + "0000" + "00000001" + "00", "1 bytes or more, got 0")
    refused(HpkeCiphertext, "01" + "000100" + "00000000", "1 bytes or more, got 0")
    refused(HpkeConfigList, "0000", "must have 1 entries, got 0")
    refused(UploadRequest, "", "must have 1 entries, got 0")


def test_a_list_ends_where_its_length_says() -> None:
    refused(draft18.ReportMetadata, "00" * 24 + "0003" + "000100", "cut off")
    refused(draft18.ReportMetadata, "00" * 24 + "0005" + "0001000000", "cut off")


@dataclass(frozen=True)
class One(Message):
    item: draft18.UInt16


def test_what_does_not_fit_is_not_written() -> None:
    for bad in (-1, 2**16):
        with pytest.raises(InvalidInputError, match=f"must be in 0 .. 2\\^16 - 1, got {bad}"):
            One(bad).encode()
    with pytest.raises(InvalidInputError, match="has 16 bytes, got 15"):
        ReportUploadStatus(bytes(15), ReportError.BATCH_COLLECTED).encode()
    with pytest.raises(InvalidInputError, match="has 1 bytes or more, got 0"):
        HpkeCiphertext(1, b"", b"x").encode()
    with pytest.raises(InvalidInputError, match="must have 1 entries, got 0"):
        UploadRequest(()).encode()
    with pytest.raises(InvalidInputError, match="got 65536"):
        Extension(1, bytes(2**16)).encode()


def test_intervals() -> None:
    assert Interval(3, 5).is_valid
    assert not Interval(3, 0).is_valid
    assert Interval(2**64 - 2, 1).is_valid
    assert not Interval(2**64 - 1, 1).is_valid
    whole = Interval(3, 5)
    assert all(whole.holds(part) for part in (whole, Interval(3, 1), Interval(7, 1)))
    assert not any(whole.holds(part) for part in (Interval(2, 2), Interval(7, 2), Interval(8, 1)))


def test_bytes_that_janus_tests() -> None:
    """The server of another project writes a task as this."""
    configuration = draft18.TaskConfiguration(
        task_info=b"f",
        leader=b"https://example.com/",
        helper=b"https://another.example.com/",
        precision=1000,
        min_batch=1000,
        batch_mode=draft18.BatchMode.LEADER_SELECTED,
        batch_config=b"",
        vdaf_type=2,
        vdaf_configuration=(255).to_bytes(8, "big"),
        extensions=(Extension(0, b"0123"),),
    )
    assert configuration.encode().hex() == (
        "0166"
        "001468747470733a2f2f6578616d706c652e636f6d2f"
        "001c68747470733a2f2f616e6f746865722e6578616d706c652e636f6d2f"
        "00000000000003e800000000000003e8"
        "020000"
        "00000002000800000000000000ff"
        "00080000000430313233"
    )
    response = VerifyResp(bytes(range(16, 0, -1)), draft18.Finished())
    assert response.encode().hex() == "100f0e0d0c0b0a09080706050403020101"
    rejected = VerifyResp(b"\xff" * 16, draft18.Rejected(ReportError.VDAF_VERIFY_ERROR))
    assert rejected.encode().hex() == "ff" * 16 + "0206"


def test_the_names_of_the_version() -> None:
    task_id = bytes(range(32))
    assert draft18.vdaf_context(task_id) == b"dap-18" + task_id
    assert draft18.input_share_info(draft18.Role.LEADER) == b"dap-18 input share\x01\x02"
    assert draft18.input_share_info(draft18.Role.HELPER) == b"dap-18 input share\x01\x03"
    assert draft18.aggregate_share_info(draft18.Role.LEADER) == b"dap-18 aggregate share\x02\x00"
    assert draft18.aggregate_share_info(draft18.Role.HELPER) == b"dap-18 aggregate share\x03\x00"
    assert draft18.HpkeConfig(1, 32, 1, 1, bytes(32)).suite == draft18.SUITE
