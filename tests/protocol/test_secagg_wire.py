"""Bytes and tables: frames, bodies, digests, the order of messages, the graph and the
allow-list."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import each_case
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st
from secagg_cohort import Cohort

from fedtally.crypto import shamir
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.secagg import allow_list, graph, messages, wire
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.graph import Neighbourhood
from fedtally.secagg.messages import (
    EXCHANGES,
    TRANSITIONS,
    AbortCode,
    ClientState,
    Invite,
    Kind,
    RemoteProtocolError,
    Result,
    ServerState,
)
from fedtally.secagg.params import Adversary, Parameters
from fedtally.secagg.proposal import propose

SESSION = bytes(range(32))
FULL = propose(5, length=3, bits=16, corrupt=1, max_dropout=0.2)
RING = propose(10, length=3, bits=16, corrupt=1, max_dropout=0.25)
SIGNED = propose(5, length=3, bits=16, corrupt=1, max_dropout=0.0, adversary="active")


def le(number: int, size: int) -> bytes:
    return number.to_bytes(size, "little")


def code_of(call: Callable[[], object]) -> AbortCode:
    with pytest.raises(RemoteProtocolError) as caught:
        call()
    return caught.value.code


def round_trip(name: str, body: bytes) -> bytes | AbortCode:
    """Return the encoding of what a decoder takes, or the code with which it refuses."""
    decode, encode, _ = DECODERS[name]
    try:
        return encode(decode(body))
    except RemoteProtocolError as error:
        return error.code


# ---- frames ----


def test_a_frame_byte_by_byte() -> None:
    expected = b"FTSA" + b"\x01" + b"\x05" + b"\0\0" + SESSION + le(7, 4) + le(3, 4) + b"abc"
    assert wire.frame(Kind.MASKED_INPUT, SESSION, 7, b"abc") == expected
    assert wire.parse(expected) == wire.Frame(1, Kind.MASKED_INPUT, SESSION, 7, b"abc")
    assert wire.HEADER.size == 48
    assert (wire.SERVER, wire.UNLISTED) == (0xFFFFFFFE, 0xFFFFFFFF)


@each_case("kind", range(256))
def test_only_known_types_are_frames(kind: int) -> None:
    data = bytearray(wire.frame(Kind.ABORT, SESSION, 7, b"\x01"))
    data[5] = kind
    message = wire.parse(bytes(data))
    assert message is None if kind > 11 else message is not None and message.kind == kind


@pytest.mark.parametrize("length", [0, 2, 4, 2**16, 2**31, 2**32 - 1])
def test_a_length_that_is_not_that_of_the_body_is_no_frame(length: int) -> None:
    data = wire.frame(Kind.ABORT, SESSION, 7, b"abc")
    assert wire.parse(data[:44] + le(length, 4) + b"abc") is None


def test_what_is_no_frame() -> None:
    data = wire.frame(Kind.ABORT, SESSION, 7, b"\x01")
    assert wire.parse(data) is not None
    assert all(wire.parse(data[:size]) is None for size in range(len(data)))
    assert wire.parse(data + b"\0") is None
    for other in (data.hex(), None, 5, list(data)):
        assert wire.parse(other) is None  # type: ignore[arg-type]
    assert wire.parse(bytearray(data)) == wire.parse(memoryview(data)) == wire.parse(data)
    # magic, reserved, length
    for at, bit in itertools.product((*range(4), 6, 7, *range(44, 48)), range(8)):
        changed = bytearray(data)
        changed[at] ^= 1 << bit
        assert wire.parse(bytes(changed)) is None


def test_a_frame_of_another_version_is_a_frame() -> None:
    data = bytearray(wire.frame(Kind.ABORT, SESSION, 7, b"\x01"))
    data[4] = 2
    message = wire.parse(bytes(data))
    assert message is not None and message.version == 2


@given(st.binary(max_size=120), st.integers(0, 11), st.booleans())
def test_what_parses_is_what_frame_makes(data: bytes, kind: int, fits: bool) -> None:
    assert wire.parse(data) is None  # not even the magic, but for a chance of 2^-32
    tail = data[36:]
    length = le(len(tail), 4) if fits else data[32:36].ljust(4, b"\0")
    whole = b"FTSA\x01" + bytes([kind, 0, 0]) + data[:36].ljust(36, b"\0") + length + tail
    message = wire.parse(whole)
    assert (message is not None) == (length == le(len(tail), 4))
    if message is not None:
        assert wire.frame(message.kind, message.session, message.sender, message.body) == whole


# ---- bodies ----


def test_an_invite_byte_by_byte() -> None:
    invite = Invite(RING, 5, 6, 7, b"f" * 32, b"a" * 32)
    k, t = RING.graph(10)
    expected = b"".join(
        (
            *(
                le(3, 8),
                le(16, 1),
                le(0, 1),
                le(k, 4),
                le(t, 4),
                le(10, 4),
                le(10, 4),
                le(RING.min_survivors, 4),
            ),
            *(
                le(0, 1),
                le(1, 4),
                le(250_000, 4),
                le(5, 8),
                le(6, 8),
                le(7, 4),
                b"f" * 32,
                b"a" * 32,
            ),
        )
    )
    assert wire.encode_terms(invite) == expected
    assert wire.decode_terms(expected) == invite
    assert wire.split_invite(expected + b"s" * 64) == (expected, b"s" * 64)
    signed = wire.encode_terms(invite._replace(parameters=SIGNED))
    assert signed[9:18] == b"\x01" + bytes(8)  # the complete graph: k and t are computed at Roster
    assert signed[30] == 1


def test_terms_have_one_encoding() -> None:
    """Every flip of a bit gives other terms, which encode to what was decoded, or a code."""
    terms = wire.encode_terms(Invite(RING, 5, 6, 7, b"f" * 32, b"a" * 32))
    codes = set()
    for at, bit in itertools.product(range(len(terms)), range(8)):
        changed = bytearray(terms)
        changed[at] ^= 1 << bit
        try:
            assert wire.encode_terms(wire.decode_terms(bytes(changed))) == changed
        except RemoteProtocolError as error:
            codes.add(error.code)
    assert codes == {AbortCode.MALFORMED, AbortCode.POLICY}


@pytest.mark.parametrize(("at", "value"), [(30, 2), (30, 255), (9, 1), (9, 2)])
def test_an_unknown_profile_or_graph_is_malformed(at: int, value: int) -> None:
    terms = bytearray(wire.encode_terms(Invite(RING, 5, 6, 7, b"f" * 32, b"a" * 32)))
    terms[at] = value
    assert code_of(lambda: wire.decode_terms(bytes(terms))) is AbortCode.MALFORMED


@pytest.mark.parametrize("name", ["length", "bits", "n_min", "n_max", "min_survivors"])
def test_terms_out_of_bounds_break_the_policy(name: str) -> None:
    sizes = {
        "length": (0, 8),
        "bits": (8, 1),
        "n_min": (18, 4),
        "n_max": (22, 4),
        "min_survivors": (26, 4),
    }
    start, size = sizes[name]
    terms = wire.encode_terms(Invite(RING, 5, 6, 7, b"f" * 32, b"a" * 32))
    for value in (0, 2 ** (8 * size) - 1):
        changed = terms[:start] + le(value, size) + terms[start + size :]
        assert code_of(lambda data=changed: wire.decode_terms(data)) is AbortCode.POLICY  # type: ignore[misc]


DECODERS: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], bytes], int]] = {
    "bitmap": (lambda body: wire.unpack_bits(body, 5), wire.pack_bits, 1),
    "advert": (lambda body: wire.decode_advert(body, Adversary.SEMI_HONEST), b"".join, 112),
    "signed advert": (lambda body: wire.decode_advert(body, Adversary.ACTIVE), b"".join, 176),
    "roster": (lambda body: wire.decode_roster(body, FULL), wire.encode_roster, 40 + 4 * 112),
    "full roster": (
        lambda body: wire.decode_full_roster(body, 5),
        wire.encode_full_roster,
        1 + 5 * 176,
    ),
    "shares": (lambda body: wire.decode_shares(body, 4), bytes, 4 * 56),
    "inbox": (lambda body: wire.decode_inbox(body, 4), wire.encode_inbox, 1 + 4 * 56),
    "confirm": (wire.decode_confirm, bytes, 64),
    "confirmations": (
        lambda body: wire.decode_confirmations(body, 5),
        wire.encode_confirmations,
        1 + 5 * 64,
    ),
    "unmask": (lambda body: wire.decode_unmask(body, 4), wire.encode_unmask, 20 + 1 + 4 * 20),
    "result": (wire.decode_result, wire.encode_result, 37),
    "abort": (wire.decode_abort, lambda code: bytes([code]), 1),
}
HEADS = {
    "roster": le(5, 4) + le(2, 4) + bytes(32),
    "full roster": b"\x1f",
    "inbox": b"\x0f",
    "confirmations": b"\x1f",
    "unmask": bytes(20) + b"\x0f",
    "abort": b"\x05",
}


def body_of(name: str) -> bytes:
    """Return a body of the type with no zero bytes where there need not be any."""
    size, head = DECODERS[name][2], HEADS.get(name, b"")
    return head + b"\x21" * (size - len(head)) if name not in ("bitmap", "result") else bytes(size)


@pytest.mark.parametrize("name", DECODERS)
def test_what_a_decoder_takes_its_encoder_gives_back(name: str) -> None:
    size, body = DECODERS[name][2], body_of(name)
    assert len(body) == size
    assert round_trip(name, body) == body
    taken = 0
    for at, bit in itertools.product(range(size), range(8)):
        changed = bytearray(body)
        changed[at] ^= 1 << bit
        found = round_trip(name, bytes(changed))
        taken += found == bytes(changed)
        assert found in (bytes(changed), AbortCode.MALFORMED, AbortCode.ROSTER_INVALID)
    assert taken > 0


@pytest.mark.parametrize("name", DECODERS)
def test_another_length_is_malformed(name: str) -> None:
    decode, _, size = DECODERS[name]
    body = body_of(name)
    for cut in range(size):
        assert code_of(lambda data=body[:cut]: decode(data)) is AbortCode.MALFORMED  # type: ignore[misc]
    for more in (b"\0", b"\x21", bytes(56), bytes(1000)):
        assert code_of(lambda data=body + more: decode(data)) is AbortCode.MALFORMED  # type: ignore[misc]


@given(st.sampled_from(sorted(DECODERS)), st.binary(max_size=200))
def test_decoders_never_fail_otherwise(name: str, data: bytes) -> None:
    for body in (data, HEADS.get(name, b"") + data):
        assert round_trip(name, body) in (body, AbortCode.MALFORMED, AbortCode.ROSTER_INVALID)


def test_padding_bits_and_their_length() -> None:
    bits = np.array([True, False, True, True, False, False, False, False, True])
    assert wire.pack_bits(bits) == b"\x0d\x01"
    assert wire.unpack_bits(b"\x0d\x01", 9).tolist() == bits.tolist()
    for padding in range(1, 8):
        assert (
            code_of(lambda p=padding: wire.unpack_bits(bytes([13, 1 | 1 << p]), 9))
            is AbortCode.MALFORMED
        )  # type: ignore[misc]
    assert wire.unpack_bits(b"\xff", 8).all()
    assert wire.unpack_bits(b"", 0).tolist() == []


def test_a_roster_is_refused_before_anything_is_allocated() -> None:
    for n, index in ((2**32 - 1, 0), (0, 0), (4, 0), (6, 0), (5, 5), (5, 2**32 - 1)):
        body = le(n, 4) + le(index, 4) + bytes(32)
        assert code_of(lambda data=body: wire.decode_roster(data, FULL)) is AbortCode.ROSTER_INVALID  # type: ignore[misc]


@pytest.mark.parametrize("element", [shamir.PRIME, shamir.PRIME + 1, 2**32 - 1])
@pytest.mark.parametrize("place", [0, 4, 5, 24])
def test_an_element_that_is_not_of_the_field_is_malformed(element: int, place: int) -> None:
    body = bytearray(body_of("unmask"))
    start = 4 * place + (place > 4)
    body[start : start + 4] = le(element, 4)
    assert code_of(lambda: wire.decode_unmask(bytes(body), 4)) is AbortCode.MALFORMED


def test_result_and_abort() -> None:
    assert wire.encode_result(Result(7, b"d" * 32)) == b"\0" + le(7, 4) + b"d" * 32
    assert code_of(lambda: wire.decode_result(b"\x01" + bytes(36))) is AbortCode.MALFORMED
    assert [wire.decode_abort(bytes([code])) for code in range(1, 20)] == list(AbortCode)
    for code in (0, 20, 255):
        assert code_of(lambda c=code: wire.decode_abort(bytes([c]))) is AbortCode.MALFORMED  # type: ignore[misc]


@pytest.mark.parametrize(("parameters", "n"), [(FULL, 5), (RING, 10), (SIGNED, 5)])
def test_upload_bytes_is_the_most_that_a_client_sends(parameters: Parameters, n: int) -> None:
    cohort = Cohort(n, adversary=parameters.adversary, parameters=parameters)
    cohort.run()
    sent = [sum(len(frame) for client, frame in cohort.sent if client == i) for i in range(n)]
    assert sent == [wire.upload_bytes(parameters, n)] * n


def test_digests_by_a_second_reading() -> None:
    def sha(label: str, *fields: bytes) -> bytes:
        return hashlib.sha256(b"".join((b"fedtally-secagg/1 " + label.encode(), *fields))).digest()

    bits, salt, total = np.array([True, False, True]), b"s" * 32, np.array([-1, 2], np.int64)
    bitmap = hashlib.sha256(b"\x05").digest()
    assert wire.bitmap_digest(bits) == bitmap
    assert wire.context(SESSION, b"terms") == sha("context", b"\x01", SESSION, b"terms")
    assert wire.adverts_digest([b"one", b"two"]) == sha("adverts", le(2, 4), b"onetwo")
    assert wire.roster_context(b"c" * 32, 3, None, b"d" * 32) == sha(
        "roster context", b"c" * 32, le(3, 4), b"d" * 32
    )
    assert wire.roster_context(b"c" * 32, 3, bits, b"d" * 32) == sha(
        "roster context", b"c" * 32, le(3, 4), bitmap, b"d" * 32
    )
    assert wire.result_digest(b"c" * 32, bits, salt, total) == sha(
        "result", b"c" * 32, bitmap, salt, b"\xff" * 8 + le(2, 8)
    )


# ---- the table ----


@pytest.mark.parametrize("adversary", Adversary)
def test_the_table_is_one_chain(adversary: Adversary) -> None:
    steps = EXCHANGES[adversary]
    assert (steps[0].before, steps[-1].after) == (ClientState.NEW, ClientState.DONE)
    assert all(one.after is other.before for one, other in itertools.pairwise(steps))
    phases = [messages.phase(adversary, step.phase) for step in steps]
    assert phases == list(steps)
    following = [messages.next_phase(adversary, step.phase) for step in steps]
    assert following == [*(step.phase for step in steps[1:]), ServerState.DONE]
    assert {state: set(taken) for state, taken in TRANSITIONS[adversary].items()} == {
        step.before: {step.request} for step in steps
    }


def test_every_code_has_a_meaning() -> None:
    assert [int(code) for code in AbortCode] == list(range(1, 20))
    assert len({code.meaning for code in AbortCode}) == 19
    error = RemoteProtocolError(AbortCode.REVIVED)
    assert str(error) == AbortCode.REVIVED.meaning and isinstance(error, FedtallyError)
    assert str(RemoteProtocolError(AbortCode.REVIVED, "why")) == "why"


# ---- the graph ----


def slow_order(ctx2: bytes, n: int) -> list[int]:
    """Order the ring by the page: HKDF, AES in counter mode from block 2, 128-bit little-endian
    blocks."""
    key = HKDF(SHA256(), 32, ctx2, b"fedtally-secagg/1 ring order").derive(bytes(32))
    stream = (
        Cipher(AES(key), CTR(bytes(12) + (2).to_bytes(4, "big"))).encryptor().update(bytes(16 * n))
    )
    blocks = [int.from_bytes(stream[16 * i : 16 * i + 16], "little") for i in range(n)]
    return sorted(range(n), key=lambda i: (blocks[i], i))


@given(st.integers(5, 60), st.integers(1, 20), st.binary(min_size=32, max_size=32))
def test_the_ring_by_a_second_reading(n: int, half: int, ctx2: bytes) -> None:
    k = 2 * min(half, (n - 2) // 2)
    parameters = Parameters(
        **{
            **vars(RING),
            "n_min": n,
            "n_max": n,
            "min_survivors": n,
            "ring_neighbours": k,
            "ring_threshold": 2,
        }
    )
    ring, order = Neighbourhood(parameters, n, ctx2), slow_order(ctx2, n)
    assert (ring.neighbours, ring.threshold) == (k, 2)
    for place, index in enumerate(order):
        after = [order[(place + d) % n] for d in range(1, k // 2 + 1)]
        before = [order[(place - d) % n] for d in range(1, k // 2 + 1)]
        assert ring.of(index).tolist() == after + before


def check_neighbours(found: Neighbourhood) -> None:
    """All neighbours are others, once each; a client is at the mirrored slot of its neighbour."""
    table = np.array([found.of(index) for index in range(found.n)])
    for index, row in enumerate(table.tolist()):
        assert index not in row and len(set(row)) == found.neighbours
        for slot, peer in enumerate(row):
            assert found.of(peer)[found.mirror[slot]] == index
    for slot in range(found.neighbours):
        np.testing.assert_array_equal(found.at_slot(slot), table[:, slot])


@pytest.mark.parametrize("parameters", [FULL, RING, SIGNED])
@pytest.mark.parametrize("seed", range(3))
def test_neighbours_are_mutual(parameters: Parameters, seed: int) -> None:
    check_neighbours(Neighbourhood(parameters, parameters.n_max, bytes([seed]) * 32))


@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_the_complete_graph_deals_by_distance(n: int) -> None:
    parameters = propose(n, length=1, bits=8, corrupt=0, max_dropout=0.0, adversary="active")
    found = Neighbourhood(parameters, n, bytes(32))
    assert (found.neighbours, found.threshold) == (n - 1, n // 2 + 1)
    for owner, holder in itertools.permutations(range(n), 2):
        # x = (holder - owner) mod n, slot x - 1
        assert found.of(owner)[(holder - owner) % n - 1] == holder
    check_neighbours(found)


def test_equal_blocks_are_ordered_by_index(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = [2**127, 5, 5, 2**64, 5, 0, 2**64 - 1, 2**127, 2**127 + 1, 5]
    monkeypatch.setattr(
        graph, "expand", lambda key, length: b"".join(le(block, 16) for block in blocks)
    )
    found = Neighbourhood(RING, 10, bytes(32))
    place, order = 5, [5]
    while len(order) < 10:
        place = int(found.of(place)[0])
        order.append(place)
    assert order == [5, 1, 2, 4, 9, 6, 3, 0, 7, 8]


def test_other_rosters_have_other_rings() -> None:
    rings = {
        tuple(Neighbourhood(RING, 10, bytes([seed]) * 32).of(0).tolist()) for seed in range(20)
    }
    # the chance that any two of 20 agree is below 190 / (9 * 8 * 7 * 6 * 5 * 4)
    assert len(rings) > 15


# ---- the allow-list ----


def key(rank: int) -> bytes:
    return bytes([rank]) * 32


def test_the_allow_list_knows_its_own() -> None:
    listed = AllowList(key(rank) for rank in (1, 3, 5))
    assert [listed.rank(key(rank)) for rank in (1, 3, 5)] == [0, 1, 2]
    assert [listed.key(rank) for rank in range(len(listed))] == [key(1), key(3), key(5)]
    assert listed.digest == hashlib.sha256(key(1) + key(3) + key(5)).digest()
    for other in (0, 2, 4, 6):
        assert key(other) not in listed
        with pytest.raises(InvalidInputError, match="not in the allow-list"):
            listed.rank(key(other))
    for rank in (-1, 3):
        with pytest.raises(InvalidInputError, match="rank must be"):
            listed.key(rank)


@pytest.mark.parametrize("keys", [[key(2), key(1)], [key(1), key(1)], [key(1), key(2), key(2)]])
def test_the_allow_list_is_strictly_ascending(keys: list[bytes]) -> None:
    with pytest.raises(InvalidInputError, match="strictly ascending"):
        AllowList(keys)


@pytest.mark.parametrize("bad", [b"", b"x" * 31, b"x" * 33, bytearray(32), "x" * 32, None])
def test_the_allow_list_holds_keys(bad: Any) -> None:
    with pytest.raises(
        InvalidInputError, match="key 0 of the allow-list is not valid: .* must be 32 bytes"
    ):
        AllowList([bad])


@pytest.mark.parametrize("number", [0, 1, 2**255 - 20, 2**255 - 19, 1 + 2**255])
def test_the_allow_list_holds_no_key_for_which_anybody_could_sign(number: int) -> None:
    with pytest.raises(InvalidInputError, match="key 1 of the allow-list is not valid"):
        AllowList([bytes(31) + b"\x07", le(number, 32)])


def test_the_allow_list_has_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInputError, match="keys_in_the_allow_list"):
        AllowList([])
    monkeypatch.setattr(allow_list, "MAX_KEYS", 2)
    assert len(AllowList([key(1), key(2)])) == 2
    with pytest.raises(InvalidInputError, match="keys_in_the_allow_list must be at most 2, got 3"):
        AllowList([key(1), key(2), key(3)])
