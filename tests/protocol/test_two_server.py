"""Two-server summation: exact sums, a second reading of the bytes, and what clients and lying
servers may try."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import hmac
import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from cases import each_case
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from test_hpke import open_base

from fedtally.crypto import hpke
from fedtally.crypto.keys import Label, RejectedError, Secret, SigningKey, hkdf
from fedtally.crypto.prg import Masking, lane
from fedtally.errors import InvalidInputError
from fedtally.secagg import messages, two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.packing import pack
from fedtally.secagg.params import UnsafeParametersError, modulus_bits
from fedtally.secagg.two_server import (
    BatchPolicy,
    BatchRefusedError,
    BatchState,
    Helper,
    Journal,
    Leader,
    MemoryJournal,
    Outcome,
    Report,
    TwoServerParameters,
    make_report,
)
from fedtally.secagg.two_server.reports import HELPER, Kind, decode_ids, encode_ids, frame_of

I64 = npt.NDArray[np.int64]
HEADER, HEAD = 48, 156  # bytes of a frame's header, and of the head of a report's body


def source(seed: object) -> Callable[[int], bytes]:
    """Return a source of bytes that never gives the same again."""
    calls = itertools.count()
    return lambda n: hashlib.shake_256(f"{seed}/{next(calls)}".encode()).digest(n)


def signing_key(name: object) -> SigningKey:
    return SigningKey(Secret(source(name)(32)))


NOW = 1_700_000_000
HELPER_SECRET, LEADER_SECRET = source("helper")(32), source("leader")(32)
HELPER_KEY = hpke.PrivateKey(Secret(HELPER_SECRET))
LEADER_KEY = hpke.PrivateKey(Secret(LEADER_SECRET))
PEOPLE = sorted((signing_key(i) for i in range(8)), key=lambda key: key.public)
ALLOWED = AllowList([key.public for key in PEOPLE])
POLICY = BatchPolicy(min_honest=2)


def parameters(**changed: Any) -> TwoServerParameters:
    return TwoServerParameters(
        **{
            "widths": (3,),
            "bits": 8,
            "n_max": 6,
            "min_batch": 3,
            "corrupt": 1,
            "leader_key": LEADER_KEY.public,
            "helper_key": HELPER_KEY.public,
            "allow_list": ALLOWED.digest,
            "fingerprint": bytes(range(32)),
            **changed,
        }
    )


P = parameters()


def report(
    who: int,
    vector: Sequence[int] = (1, 0, -1),
    *,
    p: TwoServerParameters = P,
    round: int = 5,
    seed: object = "",
) -> Report:
    random = source(f"report of {who} in {round} {seed}")
    entries = np.array(vector, np.int64)
    return make_report(
        p, entries, round=round, identity=PEOPLE[who], policy=POLICY, random=random, now=NOW
    )


class Pair(NamedTuple):
    leader: Leader
    helper: Helper

    def sides(self, made: Report) -> list[tuple[Callable[[bytes], Outcome], bytes]]:
        return [
            (partial(self.leader.receive, now=NOW), made.leader),
            (partial(self.helper.receive, now=NOW), made.helper),
        ]

    def receive(self, *reports: Report) -> list[tuple[str, str]]:
        return [
            (str(self.leader.receive(one.leader, NOW)), str(self.helper.receive(one.helper, NOW)))
            for one in reports
        ]


def servers(
    p: TwoServerParameters = P,
    rounds: range = range(5, 6),
    policy: BatchPolicy = POLICY,
    journals: tuple[Journal, Journal] | None = None,
    noise: tuple[Any, Any] | None = None,
) -> Pair:
    """Return two servers; `noise` is what each adds at every draw, by default none or zeros."""
    one, other = journals or (MemoryJournal(), MemoryJournal())
    if noise is None:
        noise = (np.zeros(p.length, np.int64),) * 2 if p.noise else (None, None)
    draws = [None if entries is None else lambda entries=entries: entries for entries in noise]
    return Pair(
        Leader(p, rounds, ALLOWED, policy, one, LEADER_KEY, draws[0]),
        Helper(p, rounds, ALLOWED, policy, other, HELPER_KEY, draws[1]),
    )


def opened(pair: Pair) -> I64:
    pair.leader.stop()
    return pair.leader.finish(pair.helper.answer(pair.leader.query(pair.helper.offer())))


BOTH = ("accepted", "accepted")
REPORTS = [report(who) for who in range(4)]


# ---- a second reading of the specification: nothing here is imported from the package ----


def reframe(frame: bytes, body: bytes) -> bytes:
    return frame[:44] + struct.pack("<I", len(body)) + body


def bound_of(frame: bytes) -> bytes:
    """Return context, nonce, round, identity and time, joined."""
    return frame[8:40] + frame[HEADER : HEADER + 60]


def bare(made: Report) -> Report:
    """Return a report with the leader's part as it was before it was sealed."""
    head, sealed = made.leader[HEADER : HEADER + HEAD], made.leader[HEADER + HEAD :]
    info = b"fedtally-secagg/1 two-server share" + bound_of(made.leader)
    part = open_base(2, sealed, LEADER_SECRET, info)
    assert len(sealed) == len(part) + 48
    return Report(reframe(made.leader, head + part), made.helper)


def reading(
    p: TwoServerParameters,
    entries: I64,
    *,
    round: int,
    identity: bytes,
    nonce: bytes,
    seed: bytes,
    salt: bytes,
    sealed: bytes,
    share: bytes | None = None,
    now: int = NOW,
) -> Report:
    """Return the report of a client, for 16 bits, before the leader's part is sealed; the sealed
    seed, and any other share, may be false."""
    label = b"fedtally-secagg/1 two-server "
    terms = struct.pack(
        "<QBQQIII", p.length, p.bits, p.largest_entry, p.noise, p.n_max, p.min_batch, p.corrupt
    )
    terms += p.leader_key + p.helper_key + p.allow_list + p.fingerprint
    terms += struct.pack(f"<I{len(p.widths)}I", len(p.widths), *p.widths)
    context = hashlib.sha256(label + b"context" + b"\x01" + terms).digest()
    signer = Ed25519PrivateKey.from_private_bytes(identity)
    public = signer.public_key().public_bytes_raw()
    start = nonce + struct.pack("<I", round) + public + struct.pack("<Q", now)
    bound = context + start
    id = hashlib.sha256(label + b"id" + bound).digest()[:16]
    extracted = hmac.digest(context + id, seed, "sha256")
    key = hmac.digest(extracted, label + b"mask" + b"\x01", "sha256")
    vector = np.concatenate([entries, np.ones(-(-64 // p.bits), np.int64)])
    stream, size = b"", vector.size * 2
    for chunk in range(-(-size // 2**17)):
        counter = chunk.to_bytes(12, "big") + (2).to_bytes(4, "big")
        encryptor = Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor()
        stream += encryptor.update(bytes(min(2**17, size - len(stream))))
    masked = (vector + np.frombuffer(stream, "<u2")) & 0xFFFF
    share = salt + (masked.astype("<u2").tobytes() if share is None else share)
    digests = [
        hashlib.sha256(label + b"part" + bytes([kind]) + part).digest()
        for kind, part in ((32, share), (33, sealed))
    ]
    signature = signer.sign(label + b"report" + bound + digests[0] + digests[1])

    def frame(kind: int, other: bytes, part: bytes) -> bytes:
        body = start + other + signature + part
        return (
            b"FTSA\x01"
            + bytes([kind])
            + b"\x00\x00"
            + context
            + b"\xff" * 4
            + struct.pack("<I", len(body))
            + body
        )

    return Report(frame(32, digests[1], share), frame(33, digests[0], sealed))


def seal(p: TwoServerParameters, seed: bytes, nonce: bytes, round: int, identity: bytes) -> bytes:
    fields = p.context, nonce, struct.pack("<I", round), identity, struct.pack("<Q", NOW)
    return hpke.seal(p.helper_key, Secret(seed), Label.TWO_SERVER_SEED, *fields)


@pytest.mark.parametrize("length", [1, 7, 65_532, 65_533])
def test_a_report_is_what_the_specification_says(length: int) -> None:
    p = parameters(widths=(length,), bits=16, largest_entry=500)
    entries = np.random.default_rng(length).integers(-500, 501, length)
    random, secret = source("drawn"), source("an identity")(32)
    nonce, seed, salt = random(16), random(32), random(32)
    identity = SigningKey(Secret(secret))
    made = make_report(
        p, entries, round=9, identity=identity, policy=POLICY, random=source("drawn"), now=NOW
    )
    sealed = made.helper[-80:]
    expected = reading(
        p, entries, round=9, identity=secret, nonce=nonce, seed=seed, salt=salt, sealed=sealed
    )
    assert bare(made) == expected
    info = b"fedtally-secagg/1 two-server seed" + bound_of(made.helper)
    assert open_base(2, sealed, HELPER_SECRET, info) == seed


def test_messages_between_the_servers_are_what_the_specification_says() -> None:
    pair = servers()
    pair.receive(*REPORTS[:3])
    ids = sorted(map(id_of, REPORTS[:3]))
    listed = struct.pack("<III", 5, 5, 3) + b"".join(ids)

    def frame(kind: int, sender: int, body: bytes) -> bytes:
        return (
            b"FTSA\x01"
            + bytes([kind, 0, 0])
            + P.context
            + struct.pack("<II", sender, len(body))
            + body
        )

    offer = pair.helper.offer()
    assert offer == frame(34, 2**32 - 3, listed)
    pair.leader.stop()
    query = pair.leader.query(offer)
    assert query == frame(35, 2**32 - 2, listed)
    batch = hashlib.sha256(b"fedtally-secagg/1 two-server batch" + P.context + listed).digest()
    answer = pair.helper.answer(query)
    assert answer[:-11] == frame(36, 2**32 - 3, bytes(43))[:HEADER] + batch
    # 3 entries and 8 checksum entries of 8 bits
    shares = sum(np.frombuffer(bare(one).leader[-11:], np.uint8).astype(int) for one in REPORTS[:3])
    total = (shares + np.frombuffer(answer[-11:], np.uint8)) % 256
    assert total.tolist() == [3, 0, 253] + [3] * 8


def test_the_kinds_are_not_those_of_the_other_protocol() -> None:
    assert not {int(kind) for kind in two_server.Kind} & {int(kind) for kind in messages.Kind}


def test_sizes() -> None:
    p = parameters(widths=(20_000,), bits=16)
    made = report(0, [0] * 20_000, p=p)
    assert (len(made.leader), len(made.helper)) == (48 + 156 + 48 + 32 + 40_008, 48 + 156 + 80)
    assert p.report_bytes == len(made.leader) + len(made.helper)


# ---- the sum ----


@settings(max_examples=60)
@given(st.data())
def test_the_sum_is_exact(data: st.DataObject) -> None:
    n, lost = data.draw(st.integers(3, 8)), data.draw(st.integers(0, 2))
    largest = data.draw(st.sampled_from([1, 2, 100, 2**31, (2**63 - 1) // 8]))
    bits = data.draw(st.integers(modulus_bits(8, largest, multiple=1), 64))
    length = data.draw(st.integers(1, 40))
    sizes = {"widths": (length,), "bits": bits, "n_max": 8, "min_batch": 2, "corrupt": 0}
    p = parameters(**sizes, largest_entry=largest)
    entry = st.integers(-largest, largest) | st.sampled_from([-largest, largest])
    vectors = [data.draw(st.lists(entry, min_size=length, max_size=length)) for _ in range(n)]
    pair = servers(p)
    reports = [report(who, vector, p=p) for who, vector in enumerate(vectors)]
    kept = list(range(n))
    for who, one in enumerate(reports):
        at = (
            data.draw(st.sampled_from(["leader", "helper"]))
            if lost and n - who <= lost and len(kept) > 2
            else ""
        )
        if at != "leader":
            assert pair.leader.receive(one.leader, NOW) is Outcome.ACCEPTED
        if at != "helper":
            assert pair.helper.receive(one.helper, NOW) is Outcome.ACCEPTED
        if at:
            kept.remove(who)
    total = opened(pair)
    assert total.dtype == np.int64
    assert total.tolist() == [
        sum(column) for column in zip(*(vectors[who] for who in kept), strict=True)
    ]
    assert pair.leader.count == len(kept)
    assert (pair.leader.state, pair.helper.state) == (BatchState.DONE, BatchState.DONE)


@each_case("bits", range(3, 65))
def test_sums_at_the_edge_of_every_width(bits: int) -> None:
    """n B = 2^(b - 1) - 1, or as near as n = 3 comes to it."""
    largest = (2 ** (bits - 1) - 1) // 3
    sizes = {"widths": (2,), "bits": bits, "n_max": 3, "min_batch": 2, "corrupt": 0}
    p = parameters(**sizes, largest_entry=largest)
    pair = servers(p)
    assert pair.receive(*(report(who, [largest, -largest], p=p) for who in range(3))) == [BOTH] * 3
    assert opened(pair).tolist() == [3 * largest, -3 * largest]


def test_too_few_bits_are_refused() -> None:
    for n, largest, noise, bits in (
        (3, 1, 0, 2),
        (2, 1, 0, 2),
        (4, 1, 0, 3),
        (3, 42, 2, 8),
        (2, 2**61, 0, 63),
    ):
        with pytest.raises(InvalidInputError, match=f"bits must be at least {bits + 1}"):
            parameters(
                bits=bits, n_max=n, min_batch=2, corrupt=0, largest_entry=largest, noise=noise
            )
        parameters(
            bits=bits + 1, n_max=n, min_batch=2, corrupt=0, largest_entry=largest, noise=noise
        )
    with pytest.raises(InvalidInputError, match="more than 64"):
        parameters(bits=64, largest_entry=2**62)
    with pytest.raises(InvalidInputError, match="bits must be at most 64"):
        parameters(bits=65)


def test_batches_may_span_rounds() -> None:
    pair = servers(rounds=range(4, 7))
    assert pair.receive(*(report(who, round=4 + who) for who in range(3))) == [BOTH] * 3
    assert opened(pair).tolist() == [3, 0, -3]


def test_the_vector_may_be_read_only_and_not_contiguous_and_is_not_changed() -> None:
    wide = np.arange(6, dtype=np.int64) % 2
    vector = wide[::2]
    vector.setflags(write=False)
    make_report(P, vector, round=5, identity=PEOPLE[0], policy=POLICY, random=source(0), now=NOW)
    assert wide.tolist() == [0, 1] * 3


# ---- noise ----


def test_both_servers_add_noise_and_none_to_the_checksum_entries() -> None:
    p = parameters(noise=100, bits=9)
    drawn = iter([np.array([-3, -80, 100]), np.array([50, 50, 50])])
    helper = Helper(
        p, range(5, 6), ALLOWED, POLICY, MemoryJournal(), HELPER_KEY, lambda: next(drawn)
    )
    pair = servers(p, noise=(np.array([10, -20, 0]), np.zeros(3, np.int64)))._replace(helper=helper)
    pair.receive(*(report(who, p=p) for who in range(3)))
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    answer = pair.helper.answer(query)
    assert pair.leader.finish(answer).tolist() == [3 + 7, -100, -3 + 100]
    # No noise is drawn for another try: the bytes that were written go out again.
    assert pair.helper.answer(query) == answer
    assert next(drawn).tolist() == [50, 50, 50]


def test_noise_is_given_where_it_is_planned_and_there_alone() -> None:
    noisy, zeros = parameters(noise=100, bits=9), np.zeros(3, np.int64)
    for p, wrong, right, message in (
        (noisy, None, zeros, "noise must be given"),
        (P, zeros, None, "noise must be None"),
    ):
        for both in ((wrong, right), (right, wrong)):
            with pytest.raises(InvalidInputError, match=message):
                servers(p, noise=both)
    for p, noise, message in (
        (noisy, np.array([0, 0, 101]), r"every entry of noise must be within \+-100"),
        (noisy, np.array([-101, 0, 0]), r"every entry of noise must be within \+-100"),
        (
            noisy,
            np.array([np.iinfo(np.int64).min, 0, 0]),
            r"every entry of noise must be within \+-100",
        ),
        (noisy, np.zeros(2, np.int64), r"noise must be int64 \[3\], got int64 \(2,\)"),
        (noisy, np.zeros(3), r"noise must be int64 \[3\], got float64"),
        (noisy, [0, 0, 0], r"noise must be int64 \[3\], got list"),
    ):
        pair, bad = servers(p), servers(p, noise=(noise, noise))
        for each in (pair, bad):
            each.receive(*(report(who, p=p) for who in range(3)))
        offer = pair.helper.offer()
        bad.leader.stop()
        with pytest.raises(InvalidInputError, match=message):
            bad.leader.query(offer)
        pair.leader.stop()
        query = pair.leader.query(offer)
        with pytest.raises(InvalidInputError, match=message):
            bad.helper.answer(query)
        assert pair.leader.finish(pair.helper.answer(query)).tolist() == [3, 0, -3]


def test_a_source_that_draws_nothing_opens_nothing() -> None:
    """Nothing is not taken for no noise."""
    p, nothing = parameters(noise=100, bits=9), lambda: None
    given = (p, range(5, 6), ALLOWED, POLICY)
    leader = Leader(*given, MemoryJournal(), LEADER_KEY, nothing)  # type: ignore[arg-type]
    helper = Helper(*given, MemoryJournal(), HELPER_KEY, nothing)  # type: ignore[arg-type]
    good = servers(p)
    good.receive(*(report(who, p=p) for who in range(3)))
    good._replace(leader=leader, helper=helper).receive(*(report(who, p=p) for who in range(3)))
    for each in (leader, good.leader):
        each.stop()
    with pytest.raises(InvalidInputError, match="noise must be given"):
        leader.query(good.helper.offer())
    with pytest.raises(InvalidInputError, match="noise must be given"):
        helper.answer(good.leader.query(good.helper.offer()))


# ---- bad parameters, policies and calls ----


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"widths": ()}, "length must be at least 1"),
        ({"widths": (2**28, 2**28 - 7)}, "length must be at most"),
        ({"bits": 0}, "bits must be at least 4"),
        ({"n_max": 1}, "n_max must be at least 2"),
        ({"n_max": 2**20 + 1, "bits": 32}, "n_max must be at most 1048576"),
        ({"min_batch": 2}, "min_batch must be at least 3"),
        ({"min_batch": 7}, "min_batch must be at most 6"),
        ({"corrupt": -1}, "corrupt must be at least 0"),
        ({"corrupt": 5}, "corrupt must be at most 4"),
        ({"corrupt": 2}, "min_batch must be at least 4"),
        ({"largest_entry": 0}, "largest_entry must be at least 1"),
        ({"noise": -1}, "noise must be at least 0"),
        ({"allow_list": bytes(31)}, "allow_list must be 32 bytes"),
        ({"fingerprint": "text"}, "fingerprint must be 32 bytes"),
        ({"helper_key": bytes(32)}, "low order"),
        ({"helper_key": b"\xff" * 32}, "below 2"),
        ({"helper_key": bytes(31)}, "32 bytes"),
        ({"leader_key": bytes(32)}, "low order"),
        ({"leader_key": HELPER_KEY.public}, "the keys of two servers, got one key for both"),
        ({"signed": 2}, "signed must be True or False, got 2"),
        ({"widths": (3, 0)}, "width must be at least 1, got 0"),
        ({"widths": (1.5,)}, "width must be an integer"),
    ],
)
def test_bad_parameters(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parameters(**changed)


def test_the_context_depends_on_every_parameter() -> None:
    other = {
        "widths": (4,),
        "bits": 9,
        "n_max": 7,
        "min_batch": 4,
        "corrupt": 0,
        "leader_key": (9).to_bytes(32, "little"),
        "helper_key": (9).to_bytes(32, "little"),
        "allow_list": bytes(32),
        "fingerprint": bytes(32),
        "largest_entry": 2,
        "noise": 1,
    }
    names = {field.name for field in dataclasses.fields(TwoServerParameters)}
    assert set(other) == names - {"signed"}  # which says how the leader reads a sum
    contexts = {parameters(**{name: value}).context for name, value in other.items()}
    others = {parameters(widths=widths).context for widths in ((2, 1), (1, 2), (1, 1, 1))}
    assert len(contexts | others | {P.context}) == len(other) + 4


def test_a_key_is_that_of_one_plan() -> None:
    """Else it could not be destroyed after the plan's last sum."""
    journals = MemoryJournal(), MemoryJournal()
    servers(journals=journals)
    servers(rounds=range(6, 7), journals=journals)  # other rounds of one plan
    other = parameters(fingerprint=bytes(32))
    with pytest.raises(BatchRefusedError, match="this key as that of another plan: make new keys"):
        Leader(other, range(1), ALLOWED, POLICY, journals[0], LEADER_KEY)
    with pytest.raises(BatchRefusedError, match="this key as that of another plan: make new keys"):
        Helper(other, range(1), ALLOWED, POLICY, journals[1], HELPER_KEY)
    servers(other)  # another journal knows nothing of it
    new = hpke.PrivateKey(Secret(source("new")(32)))
    Helper(
        parameters(fingerprint=bytes(32), helper_key=new.public),
        *(range(1), ALLOWED, POLICY, journals[1], new),
    )


def test_the_policy_refuses_what_is_weaker_or_larger() -> None:
    for policy, message in (
        (BatchPolicy(min_honest=3), "min_batch - corrupt must be at least 3 by this policy, got 2"),
        (BatchPolicy(min_honest=2, corrupt=2), "corrupt must be at least 2 by this policy, got 1"),
        (BatchPolicy(min_honest=2, max_clients=5), "n_max must be at most 5 by this policy, got 6"),
        (BatchPolicy(min_honest=2, max_length=2), "length must be at most 2 by this policy, got 3"),
        (
            BatchPolicy(min_honest=2, validity="proofs"),
            "validity must be proofs by this policy, got",
        ),
    ):
        with pytest.raises(UnsafeParametersError, match=message):
            servers(policy=policy)
        with pytest.raises(UnsafeParametersError, match=message):
            Helper(P, range(1), ALLOWED, policy, MemoryJournal(), HELPER_KEY)
        with pytest.raises(UnsafeParametersError, match=message):
            make_report(
                P,
                np.zeros(3, int),
                round=0,
                identity=PEOPLE[0],
                policy=policy,
                random=source(0),
                now=NOW,
            )
    policy = BatchPolicy(min_honest=2, corrupt=1, max_clients=6, max_length=3)
    policy.check(P, has_proofs=False)
    policy.check(P, has_proofs=True)
    for bad in (
        {"min_honest": 1},
        {"min_honest": 2, "corrupt": -1},
        {"min_honest": 2, "max_length": 0},
    ):
        with pytest.raises(InvalidInputError, match="must be at least"):
            BatchPolicy(**bad)


def test_servers_are_of_one_plan() -> None:
    with pytest.raises(InvalidInputError, match="allow-list is not the one"):
        Leader(
            parameters(allow_list=bytes(32)), range(1), ALLOWED, POLICY, MemoryJournal(), LEADER_KEY
        )
    with pytest.raises(InvalidInputError, match="not the one that clients seal to"):
        Helper(P, range(1), ALLOWED, POLICY, MemoryJournal(), hpke.PrivateKey(Secret(bytes(32))))
    rounds: Any
    for rounds in (range(0), range(0, 4, 2), range(4, 0, -1), 5, [0, 1]):
        with pytest.raises(InvalidInputError, match="rounds must be a range"):
            servers(rounds=rounds)
    for rounds, message in (
        (range(-1, 2), "first_round"),
        (range(2**32 - 1, 2**32 + 1), "last_round"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            servers(rounds=rounds)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        (np.zeros(2, np.int64), r"vector must be int64 \[3\], got int64 \(2,\)"),
        (np.zeros((3, 1), np.int64), r"vector must be int64 \[3\], got int64 \(3, 1\)"),
        (np.zeros(3, np.int32), "got int32"),
        (np.zeros(3), "got float64"),
        (np.zeros(3, ">i8"), "got >i8"),
        ([1, 0, 0], "got list"),
        (np.array([0, 2, 0]), r"every entry of vector must be within \+-1,"),
        (np.array([0, 0, -2]), r"every entry of vector must be within \+-1,"),
    ],
)
def test_bad_vectors(vector: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_report(
            P, vector, round=5, identity=PEOPLE[0], policy=POLICY, random=source(0), now=NOW
        )


def test_negative_entries_in_histograms_are_refused() -> None:
    # In a sum of histograms a negative counter is read as a large one: the batch would be lost.
    with pytest.raises(InvalidInputError, match="every entry of vector must be 0 or above"):
        make_report(
            dataclasses.replace(P, signed=False),
            np.array([0, 0, -1]),
            round=5,
            identity=PEOPLE[0],
            policy=POLICY,
            random=source(0),
            now=NOW,
        )


@pytest.mark.parametrize("round", [-1, 2**32, 1.0])
def test_bad_rounds(round: Any) -> None:
    with pytest.raises(InvalidInputError, match="round must be"):
        report(0, round=round)


@pytest.mark.parametrize("length", [16, 32])
def test_randomness_that_is_too_short(length: int) -> None:
    def random(n: int) -> bytes:
        return bytes(n - (n == length))

    with pytest.raises(InvalidInputError, match="random_.* must be"):
        make_report(
            P, np.zeros(3, int), round=5, identity=PEOPLE[0], policy=POLICY, random=random, now=NOW
        )


# ---- what a client may try ----


def flips(data: bytes) -> Iterable[tuple[int, bytes]]:
    """Yield the place of every bit and the data with that bit flipped."""
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        yield bit // 8, bytes(changed)


@pytest.mark.parametrize("side", ["leader", "helper"])
def test_every_truncation_and_flipped_bit_of_a_report_is_refused(side: str) -> None:
    server, frame = getattr(servers(), side), getattr(REPORTS[0], side)
    for cut in [frame[:length] for length in range(len(frame))] + [frame + b"\x00"]:
        assert server.receive(cut, NOW) is Outcome.MALFORMED
    for place, flipped in flips(frame):
        body = place - HEADER
        expected = Outcome.FORGED
        if body < 0:
            expected = Outcome.MALFORMED
        elif 16 <= body < 20:
            expected = Outcome.OTHER_ROUND
        elif 20 <= body < 52:
            expected = Outcome.UNKNOWN_IDENTITY
        assert server.receive(flipped, NOW) is expected, place
    assert len(server) == 0
    assert server.receive(frame, NOW) is Outcome.ACCEPTED


@pytest.mark.parametrize(
    "frame", [None, "text", 5, b"", bytearray(REPORTS[0].helper), bytes(284), b"\xff" * 284]
)
def test_what_is_no_report(frame: Any) -> None:
    for server in servers():
        assert server.receive(frame, NOW) is Outcome.MALFORMED


def test_reports_of_the_other_server_are_refused() -> None:
    pair = servers()
    assert pair.leader.receive(REPORTS[0].helper, NOW) is Outcome.MALFORMED
    assert pair.helper.receive(REPORTS[0].leader, NOW) is Outcome.MALFORMED


def test_a_declared_length_is_not_believed() -> None:
    frame = REPORTS[0].helper
    for length in (0, 2**32 - 1):
        assert (
            servers().helper.receive(frame[:44] + struct.pack("<I", length) + frame[48:], NOW)
            is Outcome.MALFORMED
        )


def test_an_identity_that_is_not_listed_is_refused() -> None:
    stranger = signing_key("stranger")
    made = make_report(
        P, np.zeros(3, int), round=5, identity=stranger, policy=POLICY, random=source(0), now=NOW
    )
    assert servers().receive(made) == [("unknown identity",) * 2]


def test_a_signature_of_somebody_else_is_refused() -> None:
    stranger = signing_key("stranger")
    made = make_report(
        P, np.zeros(3, int), round=5, identity=stranger, policy=POLICY, random=source(0), now=NOW
    )
    for receive, frame in servers().sides(made):
        claimed = frame[: HEADER + 20] + PEOPLE[0].public + frame[HEADER + 52 :]
        assert receive(claimed) is Outcome.FORGED


def test_one_report_an_identity() -> None:
    pair, second = servers(rounds=range(5, 7)), report(0, round=6)
    assert pair.receive(REPORTS[0], REPORTS[0], second, report(0, seed="again")) == [
        BOTH,
        BOTH,  # a copy changes nothing
        ("second report",) * 2,
        ("second report",) * 2,
    ]
    assert len(pair.leader) == len(pair.helper) == 1


def timed(who: int, now: int, p: TwoServerParameters = P) -> Report:
    vector = np.array([1, 0, -1])
    fixed: Any = {"round": 5, "identity": PEOPLE[who], "policy": POLICY}
    return make_report(p, vector, now=now, random=source(f"timed {who} {now}"), **fixed)


@pytest.mark.parametrize("age", [0, 60, 7 * 86_400])
def test_a_report_is_taken_until_it_is_too_old(age: int) -> None:
    pair = servers(policy=BatchPolicy(min_honest=2, max_age=age))
    for made, now in ((timed(0, NOW), NOW + age + 1), (timed(1, NOW), NOW - 3_601)):
        for server, frame in zip(pair, (made.leader, made.helper), strict=True):
            assert server.receive(frame, now) is Outcome.OTHER_TIME
    assert len(pair.leader) == len(pair.helper) == 0
    for made, now in ((timed(0, NOW), NOW + age), (timed(1, NOW), NOW - 3_600)):
        for server, frame in zip(pair, (made.leader, made.helper), strict=True):
            assert server.receive(frame, now) is Outcome.ACCEPTED


def test_what_came_in_time_may_come_again_late() -> None:
    """After a restart, too; and what was not taken before is as late as any other report."""
    journals, late = (MemoryJournal(), MemoryJournal()), NOW + 10**9
    for lost in (False, True):
        pair = servers(journals=journals)
        for server, name in ((pair.leader, "leader"), (pair.helper, "helper")):
            first, second = (getattr(made, name) for made in REPORTS[:2])
            if not lost:
                assert server.receive(first, NOW) is Outcome.ACCEPTED
            assert server.receive(first, late) is Outcome.ACCEPTED
            assert server.receive(second, late) is Outcome.OTHER_TIME
            assert len(server) == 1


def test_nobody_makes_an_old_report_younger() -> None:
    """Who carries it can change the time in the head, and the signature does not fit then."""
    pair, made = servers(), timed(0, NOW - 10**8)
    for receive, frame in pair.sides(made):
        assert receive(frame) is Outcome.OTHER_TIME
        younger = frame[: HEADER + 52] + struct.pack("<Q", NOW) + frame[HEADER + 60 :]
        assert receive(younger) is Outcome.FORGED


@pytest.mark.parametrize("now", [-1, 2**64, 1.5, None])
def test_the_time_of_a_report_is_checked(now: Any) -> None:
    with pytest.raises(InvalidInputError, match="now must be"):
        timed(0, now)
    for end in (0, 2**64 - 1):
        assert timed(0, end).helper[HEADER + 52 : HEADER + 60] == struct.pack("<Q", end)


def test_who_carries_a_report_reads_no_share() -> None:
    """A proxy at which TLS ends, whose operator has the helper's key, too."""
    p = parameters(widths=(64,), bits=16)
    made = report(0, [1, 0, -1, 0] * 16, p=p)
    sealed = made.leader[HEADER + HEAD :]
    part = bare(made).leader[HEADER + HEAD :]
    assert len(sealed) == len(part) + 48
    # no piece of the part is in the frame: eight bytes that agree would be a chance of 2^-48 or so
    pieces = {part[i : i + 8] for i in range(len(part) - 7)}
    assert not any(made.leader[i : i + 8] in pieces for i in range(len(made.leader) - 7))
    bound = (
        made.leader[8:40],
        *(made.leader[HEADER:][a:b] for a, b in ((0, 16), (16, 20), (20, 52), (52, 60))),
    )
    assert bytes(LEADER_KEY.open(sealed, Label.TWO_SERVER_SHARE, *bound).reveal()) == part
    for label in (Label.TWO_SERVER_SHARE, Label.TWO_SERVER_SEED):
        with pytest.raises(RejectedError, match="does not open"):
            HELPER_KEY.open(sealed, label, *bound)
    with pytest.raises(InvalidInputError, match="use that of parameters.leader_key"):
        Leader(P, range(1), ALLOWED, POLICY, MemoryJournal(), HELPER_KEY)


def test_a_part_is_sealed_for_its_report_alone() -> None:
    """Not for another report of the same client, nor in a frame of another client's."""
    pair, other = servers(), report(0, seed="another")
    for seal in (other.leader, REPORTS[1].leader):
        moved = REPORTS[0].leader[: HEADER + HEAD] + seal[HEADER + HEAD :]
        assert pair.leader.receive(moved, NOW) is Outcome.FORGED
        part = pair.leader._parse(moved)
        assert part is not None
        # not only the signature tells: the seal itself does not open
        with pytest.raises(RejectedError, match="does not open"):
            pair.leader._unsealed(part)
    assert len(pair.leader) == 0


def test_two_reports_of_which_each_server_takes_another_leave_the_batch() -> None:
    pair, second = servers(), report(0, seed="again")
    pair.receive(*REPORTS[1:4])
    assert pair.leader.receive(REPORTS[0].leader, NOW) is Outcome.ACCEPTED
    assert pair.helper.receive(second.helper, NOW) is Outcome.ACCEPTED
    assert opened(pair).tolist() == [3, 0, -3]
    assert pair.leader.count == 3


def test_nobody_can_take_the_id_of_another_report() -> None:
    """Who sees a nonce on its way to the helper sends it to the leader, under its own name: the two
    servers would hold parts of two clients as one report, which spoils the sum."""
    seen = REPORTS[0]

    def copied(count: int) -> bytes:
        return seen.helper[HEADER : HEADER + 16] if count == 16 else source("its own")(count)

    thief = make_report(
        P,
        np.zeros(3, np.int64),
        round=5,
        identity=PEOPLE[7],
        policy=POLICY,
        random=copied,
        now=NOW,
    )
    assert thief.helper[HEADER : HEADER + 16] == seen.helper[HEADER : HEADER + 16]
    for order in ([thief, seen], [seen, thief]):
        pair = servers()
        assert pair.helper.receive(seen.helper, NOW) is Outcome.ACCEPTED
        for one in order:
            assert pair.leader.receive(one.leader, NOW) is Outcome.ACCEPTED
        assert pair.receive(*REPORTS[1:]) == [BOTH] * 3
        assert opened(pair).tolist() == [4, 0, -4]


def test_no_more_reports_than_the_bits_are_for() -> None:
    p = parameters(n_max=3)
    pair = servers(p)
    assert pair.receive(*(report(who, p=p) for who in range(4))) == [BOTH] * 3 + [("full", "full")]
    assert opened(pair).tolist() == [3, 0, -3]


@pytest.mark.parametrize(
    "changed", [{"fingerprint": bytes(32)}, {"min_batch": 4}, {"widths": (4,)}]
)
def test_a_report_for_another_plan_is_refused(changed: dict[str, Any]) -> None:
    p = parameters(**changed)
    other = report(0, [0] * p.length, p=p)
    pair = servers()
    assert pair.receive(other) == [("malformed",) * 2]
    # Not even under a header of this plan: the signature is over the context.
    for receive, frame in pair.sides(other):
        body = frame[HEADER:] if p.length == 3 else frame[HEADER:-1]
        claimed = reframe(frame[:8] + P.context + frame[40:HEADER], body)
        assert receive(claimed) in (Outcome.FORGED, Outcome.MALFORMED)


def test_a_report_of_another_round_is_refused() -> None:
    pair = servers()
    assert pair.receive(report(0, round=4), report(0, round=6)) == [("other round",) * 2] * 2
    for receive, frame in pair.sides(report(0, round=4)):
        claimed = frame[: HEADER + 16] + struct.pack("<I", 5) + frame[HEADER + 20 :]
        assert receive(claimed) is Outcome.FORGED


class Corrupt(NamedTuple):
    """A listed identity that signs what it likes."""

    who: int

    def sign(
        self,
        report_of: Report,
        *,
        nonce: bytes,
        sealed: bytes,
        share: bytes | None,
        p: TwoServerParameters,
    ) -> Report:
        secret = next(
            source(i)(32) for i in range(8) if signing_key(i).public == PEOPLE[self.who].public
        )
        made = reading(
            p,
            np.zeros(p.length, np.int64),
            round=5,
            identity=secret,
            nonce=nonce,
            seed=bytes(32),
            salt=bare(report_of).leader[HEADER + HEAD : HEADER + HEAD + 32],
            sealed=sealed,
            share=share,
        )
        head, part = made.leader[HEADER : HEADER + HEAD], made.leader[HEADER + HEAD :]
        of = [head[:16], head[16:20], head[20:52], head[52:60]]
        share = hpke.seal(p.leader_key, Secret(part), Label.TWO_SERVER_SHARE, p.context, *of)
        return Report(reframe(made.leader, head + share), made.helper)


def test_what_was_sealed_by_one_identity_does_not_open_for_another() -> None:
    """A leader has a corrupt client sign a victim's report as its own, so that it is counted under
    two identities."""
    p, victim = parameters(bits=16), 0
    theirs = report(victim, p=p, round=5)
    nonce, sealed, share = (
        theirs.leader[HEADER : HEADER + 16],
        theirs.helper[-80:],
        bare(theirs).leader[HEADER + HEAD + 32 :],
    )
    for copied in (nonce, source("another")(16)):
        stolen = Corrupt(1).sign(theirs, nonce=copied, sealed=sealed, share=share, p=p)
        pair = servers(p)
        assert pair.receive(stolen) == [("accepted", "unreadable")]
        assert len(pair.helper) == 0
    # The corrupt client's own seal opens: it is the identity that is bound, not the signature that
    # is wrong.
    own = Corrupt(1).sign(
        theirs, nonce=nonce, sealed=seal(p, bytes(32), nonce, 5, PEOPLE[1].public), share=None, p=p
    )
    assert servers(p).receive(own) == [BOTH]


@pytest.mark.parametrize("point", [0, 1, 2**255 - 19, 2**256 - 1])
def test_points_of_low_order_and_other_garbage_in_the_seal_leave_the_batch(point: int) -> None:
    p, nonce = parameters(bits=16), source("nonce")(16)
    pair = servers(p)
    good = [report(who, p=p) for who in range(1, 4)]
    for sealed in (
        point.to_bytes(32, "little") + bytes(48),
        (9).to_bytes(32, "little") + bytes(48),
        bytes(80),
    ):
        bad = Corrupt(0).sign(good[0], nonce=nonce, sealed=sealed, share=None, p=p)
        assert pair.helper.receive(bad.helper, NOW) is Outcome.UNREADABLE
    assert pair.leader.receive(bad.leader, NOW) is Outcome.ACCEPTED
    assert pair.receive(*good) == [BOTH] * 3
    assert opened(pair).tolist() == [3, 0, -3]


def test_a_share_with_another_encoding_leaves_the_batch() -> None:
    """11 bits: 3 entries and 6 checksum entries fill 9 bits of two bytes in the last plane."""
    p = parameters(bits=11)
    good = [report(who, p=p) for who in range(4)]
    body = bytearray(bare(good[0]).leader[HEADER + HEAD :])
    body[-1] |= 0x80
    bad = Corrupt(0).sign(
        good[0], nonce=source("nonce")(16), sealed=good[0].helper[-80:], share=bytes(body[32:]), p=p
    )
    pair = servers(p)
    assert pair.leader.receive(bad.leader, NOW) is Outcome.UNREADABLE
    assert pair.helper.receive(good[0].helper, NOW) is Outcome.ACCEPTED
    assert pair.receive(*good[1:]) == [BOTH] * 3
    assert opened(pair).tolist() == [3, 0, -3]


def test_the_checksum_entries_catch_a_wrong_seed() -> None:
    p, nonce = parameters(bits=16), source("nonce")(16)
    pair = servers(p)
    wrong = seal(p, b"\x01" * 32, nonce, 5, PEOPLE[0].public)
    good = [report(who, p=p) for who in range(1, 4)]
    bad = Corrupt(0).sign(good[0], nonce=nonce, sealed=wrong, share=None, p=p)
    assert pair.receive(bad, *good) == [BOTH] * 4
    pair.leader.stop()
    answer = pair.helper.answer(pair.leader.query(pair.helper.offer()))
    with pytest.raises(BatchRefusedError, match="checksum entries do not count the reports"):
        pair.leader.finish(answer)
    assert pair.leader.state is BatchState.ABORTED
    with pytest.raises(LocalProtocolError, match="this batch is aborted"):
        pair.leader.finish(answer)


@pytest.mark.parametrize(
    ("entry", "possible"), [(4, True), (5, False), (-4, True), (-5, False), (500, False)]
)
def test_an_entry_larger_than_the_reports_can_make_it_is_caught(entry: int, possible: bool) -> None:
    """Four reports, and a bound of 1 an entry; up to that, a false vector is not seen."""
    p, nonce, seed = parameters(bits=16), source("nonce")(16), bytes(32)
    pair = servers(p)
    checksum_entries = np.array([0, entry, 0, 1, 1, 1, 1]).astype("<u2")
    fields = p.context, nonce, struct.pack("<I", 5), PEOPLE[0].public, struct.pack("<Q", NOW)
    id = hashlib.sha256(b"fedtally-secagg/1 two-server id" + b"".join(fields)).digest()[:16]
    key = hkdf(Secret(seed), p.context + id, Label.TWO_SERVER_MASK)
    Masking(checksum_entries).add(key)
    sealed = seal(p, seed, nonce, 5, PEOPLE[0].public)
    good = [report(who, p=p) for who in range(1, 4)]
    bad = Corrupt(0).sign(
        good[0], nonce=nonce, sealed=sealed, share=pack(checksum_entries, 16), p=p
    )
    assert pair.receive(bad, *good) == [BOTH] * 4
    if possible:
        assert opened(pair).tolist() == [3, entry, -3]
    else:
        with pytest.raises(BatchRefusedError, match="an entry is larger"):
            opened(pair)


# ---- what one server sees ----


def chi_square(data: bytes) -> float:
    counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    mean = len(data) / 256
    return float(((counts - mean) ** 2 / mean).sum())


def test_the_leader_sees_uniform_bytes() -> None:
    """Chi-square of 256 cells: mean 255, deviation sqrt(510) = 22.6; within 6 deviations for
    uniform bytes.

    And no bit of the masked vectors depends on the others: over 64 reports of the same vector, the
    XOR of successive ones has half its bits set, within 6 deviations of a binomial.
    """
    p = parameters(widths=(4_096,), bits=8)
    zeros = np.zeros(4_096, np.int64)
    fixed: Any = {"round": 5, "now": NOW, "identity": PEOPLE[0], "policy": POLICY}
    shares = [
        bare(make_report(p, zeros, random=source(f"uniform {i}"), **fixed)).leader[
            HEADER + HEAD + 32 :
        ]
        for i in range(64)
    ]
    together = b"".join(shares)
    assert abs(chi_square(together) - 255) < 6 * 22.6
    # as it would be without a mask
    assert chi_square(pack(np.zeros(len(together), lane(8)), 8)) > 1e6
    rows = np.frombuffer(together, np.uint8).reshape(64, -1)
    bits = np.unpackbits(rows[1:] ^ rows[:-1])
    assert abs(float(bits.sum()) - len(bits) / 2) < 6 * np.sqrt(len(bits) / 4)


def test_the_helper_cannot_try_candidates_for_the_vector() -> None:
    """It knows the mask, so that any digest of the leader's share alone would confirm a guess: salt
    hides it."""
    p = parameters(bits=16)
    made = report(0, [0, 1, 0], p=p)
    nonce, id, salt, share = (
        made.leader[HEADER:][:16],
        id_of(made),
        bare(made).leader[HEADER + HEAD :][:32],
        bare(made).leader[HEADER + HEAD + 32 :],
    )
    known = made.helper
    info = p.context, nonce, struct.pack("<I", 5), PEOPLE[0].public, struct.pack("<Q", NOW)
    seed = HELPER_KEY.open(known[-80:], Label.TWO_SERVER_SEED, *info)
    key, seen = hkdf(seed, p.context + id, Label.TWO_SERVER_MASK), known[HEADER + 60 : HEADER + 92]

    def guesses(salts: Sequence[bytes]) -> set[bytes]:
        found = set()
        for vector in itertools.product((-1, 0, 1), repeat=3):
            checksum_entries = np.array([*vector, 1, 1, 1, 1]).astype("<u2")
            Masking(checksum_entries).add(key)
            guess = pack(checksum_entries, 16)
            for text in (guess, *(salt + guess for salt in salts)):
                prefixed = bytes(Label.TWO_SERVER_PART) + b"\x20" + text
                found |= {
                    hashlib.sha256(text).digest() == seen and text,
                    hashlib.sha256(prefixed).digest() == seen and text,
                }
        return {text for text in found if text}

    assert guesses([bytes(32), known[-32:], id * 2, bytes(seed.reveal())]) == set()
    assert guesses([salt]) == {salt + share}  # with the salt, the guess would be confirmed
    assert salt not in known


def test_secrets_do_not_print() -> None:
    drawn: list[bytes] = []

    def random(n: int) -> bytes:
        drawn.append(source(f"shown {len(drawn)}")(n))
        return drawn[-1]

    made = make_report(
        P, np.zeros(3, int), round=5, identity=PEOPLE[0], policy=POLICY, random=random, now=NOW
    )
    assert repr(made) == "Report()"
    pair = servers()
    assert pair.receive(made) == [BOTH]
    text = repr(pair) + repr(vars(pair.helper)) + repr(vars(pair.leader)["_parameters"])
    for secret in (drawn[1], HELPER_SECRET):
        assert secret.hex() not in text and repr(secret)[2:-1] not in text
    assert "hidden" in text


def test_the_client_wipes_seed_and_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Secret] = []
    derive = two_server.reports.mask_key

    def spy(seed: Secret, bound: Any) -> Secret:
        kept.extend((seed, derive(seed, bound)))
        return kept[-1]

    monkeypatch.setattr(two_server.reports, "mask_key", spy)
    report(0)
    assert len(kept) == 2
    for secret in kept:
        with pytest.raises(InvalidInputError, match="was wiped"):
            secret.reveal()


def test_the_masks_are_wiped_when_the_batch_is_answered() -> None:
    pair = servers()
    pair.receive(*REPORTS)
    kept = list(pair.helper._held.values())
    pair.leader.stop()
    pair.helper.answer(pair.leader.query(pair.helper.offer()))
    assert len(kept) == 4 and len(pair.helper) == len(pair.leader) == 0
    for key in kept:
        with pytest.raises(InvalidInputError, match="was wiped"):
            key.reveal()


# ---- what a lying leader may try ----


def ids_frame(
    kind: int, sender: int, ids: Sequence[bytes], rounds: tuple[int, int] = (5, 5), count: int = -1
) -> bytes:
    body = struct.pack("<III", *rounds, len(ids) if count < 0 else count) + b"".join(ids)
    return (
        b"FTSA\x01" + bytes([kind, 0, 0]) + P.context + struct.pack("<II", sender, len(body)) + body
    )


def query_for(ids: Iterable[bytes], **kwargs: Any) -> bytes:
    return ids_frame(35, 2**32 - 2, sorted(ids), **kwargs)


def id_of(made: Report) -> bytes:
    return hashlib.sha256(b"fedtally-secagg/1 two-server id" + bound_of(made.helper)).digest()[:16]


def test_a_batch_is_not_filled_with_reports_of_the_leader() -> None:
    """One victim, the one corrupt client that is allowed for, and as many identities as the leader
    makes up."""
    pair = servers()
    strangers = [
        make_report(
            P,
            np.zeros(3, int),
            round=5,
            identity=signing_key(f"s{i}"),
            policy=POLICY,
            random=source(i),
            now=NOW,
        )
        for i in range(5)
    ]
    again = [report(1, seed=i) for i in range(5)]
    pair.receive(REPORTS[0], REPORTS[1], *strangers, *again)
    assert len(pair.helper) == 2
    with pytest.raises(
        BatchRefusedError, match=r"a batch must have 3 \.\. 6 reports that both servers hold, got 2"
    ):
        pair.helper.answer(query_for(map(id_of, REPORTS[:2])))
    with pytest.raises(BatchRefusedError, match="4 of 6 reports of the query are not held"):
        pair.helper.answer(query_for(map(id_of, [*REPORTS[:2], *strangers[:4]])))
    with pytest.raises(BatchRefusedError, match="4 of 6 reports of the query are not held"):
        pair.helper.answer(query_for(map(id_of, [*REPORTS[:2], *again[:4]])))
    # nor does an honest leader ask
    pair.leader.stop()
    with pytest.raises(BatchRefusedError, match="a batch must have 3"):
        pair.leader.query(pair.helper.offer())
    assert pair.helper.state is pair.leader.state is BatchState.COLLECTING


def test_an_id_is_not_counted_twice_in_a_query() -> None:
    pair = servers()
    pair.receive(*REPORTS[:2])
    one, other = map(id_of, REPORTS[:2])
    for ids in ([one, one, other], [one, other, other], sorted([one, other, one])):
        with pytest.raises(BatchRefusedError, match="strictly ascending"):
            pair.helper.answer(ids_frame(35, 2**32 - 2, ids))


def test_queries_that_are_none() -> None:
    pair = servers()
    pair.receive(*REPORTS)
    ids = sorted(map(id_of, REPORTS))
    good = ids_frame(35, 2**32 - 2, ids)
    for bad, message in (
        (ids_frame(34, 2**32 - 3, ids), "this is no query"),
        (ids_frame(35, 2**32 - 3, ids), "this is no query"),
        (good[:56] + good[60:], "this is no query"),
        (reframe(good, good[HEADER : HEADER + 11]), "this is no query"),
        (reframe(good, b""), "this is no query"),
        (ids_frame(35, 2**32 - 2, ids, count=3), "query is malformed"),
        (ids_frame(35, 2**32 - 2, ids, count=2**32 - 1), "query is malformed"),
        (ids_frame(35, 2**32 - 2, ids, rounds=(5, 4)), "query is malformed"),
        (ids_frame(35, 2**32 - 2, [*ids, b"x" * 15]), "query is malformed"),
        (
            ids_frame(35, 2**32 - 2, sorted([*ids, *(bytes([i]) * 16 for i in range(3))])),
            "this is no query",
        ),
        (ids_frame(35, 2**32 - 2, ids[::-1]), "strictly ascending"),
        (ids_frame(35, 2**32 - 2, ids, rounds=(5, 6)), "of rounds 5 .. 6, not 5 .. 5"),
        (ids_frame(35, 2**32 - 2, ids[:2]), "a batch must have 3 .. 6"),
        (ids_frame(35, 2**32 - 2, []), "a batch must have 3 .. 6"),
        (
            ids_frame(35, 2**32 - 2, sorted([*ids, bytes(16)])),
            "1 of 5 reports of the query are not held",
        ),
        (None, "this is no query"),
    ):
        with pytest.raises(BatchRefusedError, match=message):
            pair.helper.answer(bad)  # type: ignore[arg-type]
    assert len(pair.helper.answer(good)) == HEADER + 32 + 11


def ids_in(frame: bytes, context: bytes, n_max: int) -> tuple[range, list[bytes]]:
    """Return the rounds and the ids of an offer, each as an object of its own; or refuse it."""
    body = frame[HEADER:]
    head = struct.pack("<4sBBH32sII", b"FTSA", 1, 34, 0, context, 2**32 - 3, len(body))
    if frame != head + body or not 12 <= len(body) <= 12 + 16 * n_max:
        raise BatchRefusedError("this is no offer of these parameters")
    first, last, count = struct.unpack_from("<III", body)
    if first > last or len(body) != 12 + 16 * count:
        raise BatchRefusedError("the offer is malformed")
    ids = [body[start : start + 16] for start in range(12, len(body), 16)]
    if ids != sorted(set(ids)):
        raise BatchRefusedError("the ids of the offer must be in strictly ascending order")
    return range(first, last + 1), ids


@given(st.data())
def test_ids_in_a_frame_are_those_that_were_written(data: st.DataObject) -> None:
    """Also of frames that are doubled, unsorted, cut or of other numbers: refused alike."""
    few = st.integers(0, 2).map(lambda last: 15 * b"a" + bytes([last])) | st.binary(
        min_size=16, max_size=16
    )
    ids = data.draw(st.lists(few, max_size=5))
    form = data.draw(st.sampled_from(["as they came", "in order", "one twice"]))
    if form != "as they came":
        ids = sorted([*set(ids), *(ids[:1] if form == "one twice" else [])])
    first, more = data.draw(st.integers(0, 3)), data.draw(st.integers(-1, 2))
    body = struct.pack("<III", first, max(0, first + more), len(ids)) + b"".join(ids)
    is_hurt = data.draw(st.integers(0, 3)) == 0
    if is_hurt:
        at = data.draw(st.integers(0, len(body)))
        body = body[:at] + data.draw(st.binary(max_size=16)) + body[at + 1 :]
    context, n_max = bytes(32), data.draw(st.integers(4, 6))
    frame = frame_of(Kind.OFFER, context, HELPER, body)
    frame = frame[: data.draw(st.integers(0, len(frame)))] if is_hurt else frame
    try:
        rounds, expected = ids_in(frame, context, n_max)
    except BatchRefusedError as error:
        with pytest.raises(BatchRefusedError, match=f"^{error}$"):
            decode_ids(context, n_max, frame, Kind.OFFER, HELPER)
        return
    found = decode_ids(context, n_max, frame, Kind.OFFER, HELPER)
    assert found[0] == rounds and [*found[1]] == expected and len(found[1]) == len(expected)
    assert encode_ids(rounds, found[1]) == encode_ids(rounds, expected) == body
    for one in (*ids, 15 * b"a" + b"\x01", data.draw(st.binary(max_size=20)), b"", "a", None):
        assert (one in found[1]) == (one in expected)


def test_every_truncation_and_flipped_bit_of_offer_and_query_is_refused() -> None:
    pair = servers(parameters(min_batch=4, corrupt=2))
    pair.receive(*(report(who, p=parameters(min_batch=4, corrupt=2)) for who in range(4)))
    offer = pair.helper.offer()
    for bad in (
        [offer[:length] for length in range(len(offer))]
        + [offer + b"\x00"]
        + [bad for _, bad in flips(offer)]
    ):
        pair.leader.stop()
        with pytest.raises(BatchRefusedError):
            pair.leader.query(bad)
    pair.leader.stop()
    query = pair.leader.query(offer)
    for bad in (
        [query[:length] for length in range(len(query))]
        + [query + b"\x00"]
        + [bad for _, bad in flips(query)]
    ):
        with pytest.raises(BatchRefusedError):
            pair.helper.answer(bad)
    assert pair.leader.finish(pair.helper.answer(query)).tolist() == [4, 0, -4]


def test_the_helper_answers_one_query() -> None:
    p = parameters(n_max=8)
    pair, reports = servers(p), [report(who, p=p) for who in range(8)]
    pair.receive(*reports)
    frames = [
        frame[:8] + p.context + frame[40:]
        for frame in (
            query_for(map(id_of, reports[a:b])) for a, b in ((0, 4), (1, 4), (0, 5), (4, 8))
        )
    ]
    answer = pair.helper.answer(frames[0])
    for second in frames[1:]:  # a part of it, more than it, and one apart
        with pytest.raises(BatchRefusedError, match="there is no second query"):
            pair.helper.answer(second)
    assert pair.helper.answer(frames[0]) == answer
    # the first four are in the batch: their senders may have missed the first answer
    for who in range(8):
        assert pair.helper.receive(reports[who].helper, NOW) is (
            Outcome.ACCEPTED if who < 4 else Outcome.CLOSED
        )


def test_batches_do_not_overlap_though_two_were_collected_at_once() -> None:
    journal = MemoryJournal()
    helpers = [servers(journals=(MemoryJournal(), journal)).helper for _ in range(2)]
    for one, helper in itertools.product(REPORTS, helpers):
        assert helper.receive(one.helper, NOW) is Outcome.ACCEPTED
    answer = helpers[0].answer(query := query_for(map(id_of, REPORTS[:3])))
    with pytest.raises(BatchRefusedError, match="there is no second query"):
        helpers[1].answer(query_for(map(id_of, REPORTS)))
    assert (helpers[1].state, len(helpers[1])) == (BatchState.DONE, 0)
    assert helpers[1].answer(query) == answer


def test_of_two_processes_that_write_at_once_one_decides() -> None:
    """Each looked at the journal before the other wrote: what counts is what the journal says it
    keeps."""

    class Late(MemoryJournal):
        """Finds nothing for the batch, until it writes."""

        def kept(self, name: bytes) -> bytes | None:
            return None if name.startswith(b"batch") else super().kept(name)

    noise, journals = (np.array([1, 2, 3]), np.array([4, 5, 6])), (Late(), Late())
    one, other = (servers(NOISY, journals=journals, noise=each) for each in (noise, noise[::-1]))
    reports = [report(who, p=NOISY) for who in range(5)]
    for each in (one, other):
        each.receive(*reports[:4])
    one.leader.stop()
    query = one.leader.query(one.helper.offer())
    other.receive(reports[4])
    other.leader.stop()
    assert other.leader.query(other.helper.offer()) == query  # not that of five reports
    answer = one.helper.answer(query)
    assert other.helper.answer(query) == answer
    assert (
        other.leader.finish(answer).tolist()
        == one.leader.finish(answer).tolist()
        == [4 + 5, 7, -4 + 9]
    )


def test_a_restart_opens_no_second_batch_of_the_same_rounds() -> None:
    journals = MemoryJournal(), MemoryJournal()
    pair = servers(journals=journals)
    pair.receive(*REPORTS[:3])
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    answer = pair.helper.answer(query)
    later = servers(journals=journals)
    assert (later.leader.state, later.helper.state) == (BatchState.WAITING, BatchState.DONE)
    assert later.receive(*REPORTS) == [BOTH] * 3 + [("closed",) * 2]  # copies of what was counted
    assert later.receive(*(report(who, seed="again") for who in (0, 4, 5))) == [("closed",) * 2] * 3
    assert later.receive(report(0, round=6)) == [("closed",) * 2]
    for garbage in (b"", REPORTS[0].leader[:-1], REPORTS[0].helper + b"x"):
        assert (
            later.leader.receive(garbage, NOW)
            is later.helper.receive(garbage, NOW)
            is Outcome.CLOSED
        )
    later.leader.stop()
    with pytest.raises(LocalProtocolError, match="a leader asks once"):
        later.leader.query(later.helper.offer())
    with pytest.raises(BatchRefusedError, match="there is no second query"):
        later.helper.answer(query_for(map(id_of, REPORTS[1:])))
    assert (later.leader.resume(), later.helper.answer(query)) == (query, answer)


def test_a_restart_takes_no_second_report_of_an_identity() -> None:
    journals = MemoryJournal(), MemoryJournal()
    servers(journals=journals).receive(*REPORTS)
    later, second = servers(journals=journals), report(0, seed="again")
    # what was held is lost, and may be sent again
    assert len(later.leader) == len(later.helper) == 0
    assert later.receive(second, REPORTS[0], second) == [
        ("second report",) * 2,
        BOTH,
        ("second report",) * 2,
    ]
    same = make_report(
        P,
        np.zeros(3, int),
        round=5,
        identity=PEOPLE[5],
        policy=POLICY,
        random=source("nonce"),
        now=NOW,
    )
    assert later.receive(same) == [BOTH]
    assert later.receive(*REPORTS) == [BOTH] * 4
    assert opened(later).tolist() == [4, 0, -4]


def test_a_report_that_another_process_took_otherwise_is_not_held() -> None:
    class Raced(MemoryJournal):
        """Between the look and the writing another process writes."""

        def keep(self, name: bytes, value: bytes) -> bytes:
            return super().keep(name, b"another" if name.startswith(b"report") else value)

    pair = servers(journals=(Raced(), Raced()))
    assert pair.receive(REPORTS[0]) == [("second report",) * 2]
    assert len(pair.leader) == len(pair.helper) == 0


def test_a_round_is_in_one_range_for_ever() -> None:
    journals = MemoryJournal(), MemoryJournal()
    pair, wider = servers(journals=journals), servers(rounds=range(4, 6), journals=journals)
    for each in (pair, wider):
        each.receive(*REPORTS[:3])
    opened(pair)
    offer = ids_frame(34, 2**32 - 3, sorted(map(id_of, REPORTS[:3])), rounds=(4, 5))
    wider.leader.stop()
    for open_it in (
        lambda: wider.leader.query(offer),
        lambda: wider.helper.answer(query_for(map(id_of, REPORTS[:3]), rounds=(4, 5))),
    ):
        with pytest.raises(BatchRefusedError, match=r"round 5 is in a batch of rounds 5 \.\. 5"):
            open_it()
    assert wider.leader.state is wider.helper.state is BatchState.COLLECTING
    # round 4 was taken by the range that failed: nothing opens
    before = servers(rounds=range(4, 5), journals=journals)
    before.receive(*(report(who, round=4) for who in range(3)))
    before.leader.stop()
    with pytest.raises(BatchRefusedError, match=r"round 4 is in a batch of rounds 4 \.\. 5"):
        before.leader.query(before.helper.offer())


def test_a_batch_that_is_refused_is_not_charged() -> None:
    """Neither one whose rounds another batch has, nor one of another noise, nor a second query."""
    journals, charged = (MemoryJournal(), MemoryJournal()), list[str]()

    def pair(rounds: range, source: bytes = b"caller") -> Pair:
        own = P, rounds, ALLOWED, POLICY
        made = Pair(
            Leader(*own, journals[0], LEADER_KEY, None, lambda: charged.append("leader"), source),
            Helper(*own, journals[1], HELPER_KEY, None, lambda: charged.append("helper"), source),
        )
        made.receive(*REPORTS)
        return made

    first, other, wider = pair(range(5, 6)), pair(range(5, 6), b"other"), pair(range(4, 6))
    ids = sorted(map(id_of, REPORTS))
    first.leader.stop()
    query = first.leader.query(first.helper.offer())
    answer = first.helper.answer(query)
    assert charged == ["leader", "helper"]
    for each, offer, asked, message in (
        (
            wider,
            ids_frame(34, 2**32 - 3, ids, rounds=(4, 5)),
            query_for(ids, rounds=(4, 5)),
            "is in",
        ),
        (other, other.helper.offer(), query, "of another source"),
    ):
        each.leader.stop()
        with pytest.raises(BatchRefusedError, match=message):
            each.leader.query(offer)
        with pytest.raises(BatchRefusedError, match=message):
            each.helper.answer(asked)
    for helper in (first.helper, pair(range(5, 6)).helper):
        with pytest.raises(BatchRefusedError, match="there is no second query"):
            helper.answer(query_for(ids[:3]))
    assert charged == ["leader", "helper"]
    assert first.helper.answer(query) == answer
    assert charged == ["leader", "helper", "helper"]  # perhaps to another ledger than at first


def test_a_second_answer_is_refused_before_it_is_charged() -> None:
    """Also after a restart, in a process that has charged nothing and has no sum yet."""
    journals, charged = (MemoryJournal(), MemoryJournal()), list[str]()

    def leader(name: str) -> Leader:
        return Leader(
            P, range(5, 6), ALLOWED, POLICY, journals[0], LEADER_KEY, None,
            lambda: charged.append(name),
        )  # fmt: skip

    helper = Helper(P, range(5, 6), ALLOWED, POLICY, journals[1], HELPER_KEY, None)
    first = leader("first")
    pair = Pair(first, helper)
    pair.receive(*REPORTS)
    first.stop()
    answer = helper.answer(first.query(helper.offer()))
    total = first.finish(answer)
    assert charged == ["first", "first"]  # for the query, and for the answer
    entry = HEADER + 32
    other = answer[:entry] + bytes([answer[entry] ^ 1]) + answer[entry + 1 :]
    second = leader("second")
    for each in (first, second):
        with pytest.raises(BatchRefusedError, match="the helper answers once"):
            each.finish(other)
    assert charged == ["first", "first"]
    assert second.finish(answer).tolist() == total.tolist()
    assert charged == ["first", "first", "second"]  # perhaps to another ledger than at first


def test_a_second_answer_that_comes_at_the_same_time_is_refused() -> None:
    """Another process hears an answer after this one has looked, and before it writes."""

    class Late(MemoryJournal):
        def kept(self, name: bytes) -> bytes | None:
            return None if name.startswith(b"answer") else super().kept(name)

    journal = Late()
    leader = Leader(P, range(5, 6), ALLOWED, POLICY, journal, LEADER_KEY, None)
    pair = Pair(leader, Helper(P, range(5, 6), ALLOWED, POLICY, MemoryJournal(), HELPER_KEY, None))
    pair.receive(*REPORTS)
    leader.stop()
    answer = pair.helper.answer(leader.query(pair.helper.offer()))
    leader._facts.hear(bytes(32))
    with pytest.raises(BatchRefusedError, match="the helper answers once"):
        leader.finish(answer)


def test_nothing_is_said_that_was_not_written() -> None:
    class Broken(MemoryJournal):
        full = False

        def keep(self, name: bytes, value: bytes) -> bytes:
            if self.full:
                raise OSError("no space left")
            return super().keep(name, value)

    journals = Broken(), Broken()
    pair = servers(journals=journals)
    pair.receive(*REPORTS[:3])
    Broken.full = True
    for receive, frame in pair.sides(REPORTS[3]):
        with pytest.raises(OSError, match="no space"):
            receive(frame)
    assert len(pair.leader) == len(pair.helper) == 3
    offer = pair.helper.offer()
    pair.leader.stop()
    for open_it in (
        lambda: pair.leader.query(offer),
        lambda: pair.helper.answer(query_for(map(id_of, REPORTS[:3]))),
    ):
        with pytest.raises(OSError, match="no space"):
            open_it()
    Broken.full = False
    assert opened(pair).tolist() == [3, 0, -3]


@settings(max_examples=80)
@given(st.data())
def test_no_report_that_both_servers_accepted_is_missed(data: st.DataObject) -> None:
    """Clients that send to the helper first, and to the leader once it accepted, at any time."""
    pair = servers()
    told = {"helper": set[int](), "leader": set[int]()}
    # three clients are there in time, or the batch is too small; five steps are in any order
    steps = [("helper", who) for who in range(4)] + [("leader", who) for who in range(4)]
    late = data.draw(st.permutations([*steps[3:4], *steps[7:], ("stop", 0), ("offer", 0)]))
    offer = b""
    for step, who in [*steps[:3], *steps[4:7], *late]:
        if step == "stop":
            pair.leader.stop()
        elif step == "offer":
            offer = pair.helper.offer()
        elif step == "helper" or who in told["helper"]:
            server = getattr(pair, step)
            if server.receive(getattr(REPORTS[who], step), NOW) is Outcome.ACCEPTED:
                told[step].add(who)
    if late.index(("offer", 0)) < late.index(("stop", 0)):
        offer = pair.helper.offer()  # a leader asks for another one
    pair.leader.finish(pair.helper.answer(pair.leader.query(offer)))
    assert pair.leader.count == len(told["helper"] & told["leader"]) >= 3


def test_a_leader_stops_before_it_is_offered_anything() -> None:
    pair = servers()
    pair.receive(*REPORTS[:3])
    with pytest.raises(LocalProtocolError, match="is collecting; stop the leader, then ask"):
        pair.leader.query(pair.helper.offer())
    pair.leader.stop()
    pair.leader.stop()
    assert pair.leader.state is BatchState.STOPPED
    for call in (pair.leader.resume, lambda: pair.leader.count):
        with pytest.raises(LocalProtocolError, match="is not closed yet; make a query first"):
            call()
    offer = pair.helper.offer()
    assert pair.receive(REPORTS[3], REPORTS[0]) == [("closed", "accepted"), BOTH]
    query = pair.leader.query(offer)
    pair.leader.stop()
    assert pair.leader.state is BatchState.WAITING and pair.leader.resume() == query


def test_a_leader_that_has_too_few_reports_collects_again() -> None:
    pair = servers()
    pair.receive(*REPORTS[:2])
    pair.leader.stop()
    assert pair.leader.receive(REPORTS[2].leader, NOW) is Outcome.CLOSED
    with pytest.raises(BatchRefusedError, match="got 2"):
        pair.leader.query(pair.helper.offer())
    assert pair.leader.state is BatchState.COLLECTING
    assert pair.receive(REPORTS[2]) == [BOTH]
    assert opened(pair).tolist() == [3, 0, -3]


def test_a_leader_that_finds_the_batch_of_the_other_server_collects_again() -> None:
    """Another process wrote into the journal what a helper keeps; nothing is opened with it."""
    kept, journal = MemoryJournal(), MemoryJournal()
    closed = servers(journals=(MemoryJournal(), kept))
    closed.receive(*REPORTS[:3])
    opened(closed)
    foreign = {name: kept._values[name] for name in kept._values if name.startswith(b"batch")}
    assert len(foreign) == 1
    pair = servers(journals=(journal, MemoryJournal()))
    pair.receive(*REPORTS[:3])
    journal._values |= foreign
    for _ in range(2):
        pair.leader.stop()
        with pytest.raises(BatchRefusedError, match="each server has its own journal"):
            pair.leader.query(pair.helper.offer())
        assert pair.leader.state is BatchState.COLLECTING and len(pair.leader) == 3
        with pytest.raises(LocalProtocolError, match="not closed yet"):
            pair.leader.resume()
    assert pair.receive(REPORTS[3]) == [BOTH]
    for name in foreign:  # its operator puts the journal right
        del journal._values[name]
    assert opened(pair).tolist() == [4, 0, -4]


def test_reports_that_one_server_lacks_leave_the_batch() -> None:
    pair = servers()
    reports = [report(who, [who, 0, 0] if who < 2 else [1, 1, 1]) for who in range(6)]
    for one in reports[:5]:
        pair.leader.receive(one.leader, NOW)
    for one in reports[1:]:
        pair.helper.receive(one.helper, NOW)
    assert opened(pair).tolist() == [4, 3, 3]
    assert pair.leader.count == 4


def test_offers_that_are_none() -> None:
    pair = servers()
    pair.receive(*REPORTS)
    good = pair.helper.offer()
    ids = sorted(map(id_of, REPORTS))
    for bad, message in (
        (ids_frame(35, 2**32 - 2, ids), "this is no offer"),
        (ids_frame(34, 2**32 - 3, ids[::-1]), "strictly ascending"),
        (ids_frame(34, 2**32 - 3, ids, rounds=(4, 5)), "of rounds 4 .. 5, not 5 .. 5"),
        (ids_frame(34, 2**32 - 3, [bytes([i]) * 16 for i in range(5)]), "both servers hold, got 0"),
    ):
        pair.leader.stop()
        with pytest.raises(BatchRefusedError, match=message):
            pair.leader.query(bad)
    pair.leader.stop()
    pair.leader.query(good)
    pair.leader.stop()
    with pytest.raises(LocalProtocolError, match="this batch is waiting; a leader asks once"):
        pair.leader.query(good)
    assert pair.leader.receive(report(5).leader, NOW) is Outcome.CLOSED


# ---- the answer ----


def test_answers_are_for_one_batch_and_changes_are_caught_where_they_can_be() -> None:
    """A flipped bit of an entry is caught only where it makes the sum impossible: the servers need
    a channel."""
    pair = servers(journals=(journal := MemoryJournal(), MemoryJournal()))
    with pytest.raises(LocalProtocolError, match="this batch is collecting; make a query first"):
        pair.leader.finish(b"")
    with pytest.raises(LocalProtocolError, match="not closed yet"):
        _ = pair.leader.count
    pair.receive(*REPORTS)
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    answer = pair.helper.answer(query)
    before = copy.deepcopy(journal)
    for cut in [answer[:length] for length in range(len(answer))] + [answer + b"\x00", query]:
        with pytest.raises(BatchRefusedError, match="this is no answer"):
            pair.leader.finish(cut)
    with pytest.raises(BatchRefusedError, match="cannot be read"):
        pair.leader.finish(reframe(answer, answer[HEADER:-1]))
    assert pair.leader.finish(answer).tolist() == [4, 0, -4]
    silent = 0
    for place, flipped in flips(answer):
        leader = servers(journals=(copy.deepcopy(before), MemoryJournal())).leader
        assert leader.resume() == query
        if place < HEADER + 32:
            with pytest.raises(BatchRefusedError, match="this is no answer"):
                leader.finish(flipped)
            assert leader.state is BatchState.WAITING
        elif place >= HEADER + 32 + P.length:
            with pytest.raises(BatchRefusedError, match="checksum entries"):
                leader.finish(flipped)
            assert leader.state is BatchState.ABORTED
        else:
            try:
                leader.finish(flipped)
                silent += 1
            except BatchRefusedError:
                assert leader.state is BatchState.ABORTED
    assert 0 < silent < 8 * P.length


def test_an_answer_for_another_batch_is_dropped() -> None:
    one, other = servers(), servers()
    one.receive(*REPORTS[:3])
    other.receive(*REPORTS)
    one.leader.stop()
    other.leader.stop()
    queries = [pair.leader.query(pair.helper.offer()) for pair in (one, other)]
    with pytest.raises(BatchRefusedError, match="this is no answer"):
        one.leader.finish(other.helper.answer(queries[1]))
    answer = one.helper.answer(queries[0])
    assert one.leader.finish(answer).tolist() == one.leader.finish(answer).tolist() == [3, 0, -3]


# ---- restarts ----


class Crashing(MemoryJournal):
    """Loses power before, or just after, it has written."""

    def __init__(self, *, after: bool) -> None:
        super().__init__()
        self.after = after

    def keep(self, name: bytes, value: bytes) -> bytes:
        if not name.startswith(b"batch"):
            return super().keep(name, value)
        if self.after:
            super().keep(name, value)
        raise ConnectionError("power")


def restarted(journal: MemoryJournal) -> MemoryJournal:
    kept = MemoryJournal()
    kept._values = dict(journal._values)
    return kept


NOISY = parameters(noise=100, bits=9)


def test_a_helper_that_restarts_sends_the_same_bytes() -> None:
    journal, noise = MemoryJournal(), np.array([1, 2, 3])
    pair = servers(NOISY, journals=(MemoryJournal(), journal), noise=(noise, noise))
    pair.receive(*(report(who, p=NOISY) for who in range(4)))
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    answer = pair.helper.answer(query)
    later, other = (
        servers(
            NOISY, rounds, journals=(MemoryJournal(), restarted(journal)), noise=(noise, 2 * noise)
        ).helper
        for rounds in (range(5, 6), range(90, 91))
    )
    assert later.answer(query) == later.answer(query) == answer
    with pytest.raises(BatchRefusedError, match=r"is of rounds 5 \.\. 5, not 90 \.\. 90"):
        other.answer(query)
    assert other.state is BatchState.COLLECTING
    assert pair.leader.finish(answer).tolist() == [4 + 2, 4, -4 + 6]


def test_a_helper_does_not_send_what_another_source_noised() -> None:
    """Not even what was recorded while it collected: it could have no noise."""
    journal, none = MemoryJournal(), np.zeros(3, np.int64)
    bare = servers(NOISY, journals=(MemoryJournal(), journal), noise=(none, none))
    own = Helper(
        NOISY, range(5, 6), ALLOWED, POLICY, journal, HELPER_KEY, lambda: none, noise_source=b"plan"
    )
    bare.receive(*(report(who, p=NOISY) for who in range(4)))
    bare.leader.stop()
    query = bare.leader.query(bare.helper.offer())
    assert bare.helper.answer(query)
    with pytest.raises(BatchRefusedError, match="has noise of another source, or of none"):
        own.answer(query)
    assert own.state is BatchState.COLLECTING


@pytest.mark.parametrize("after", [False, True])
def test_a_helper_that_crashes_while_it_writes(after: bool) -> None:
    journal, noise = Crashing(after=after), np.array([1, 2, 3])
    reports = [report(who, p=NOISY) for who in range(4)]
    pair = servers(NOISY, journals=(MemoryJournal(), journal), noise=(noise, noise))
    pair.receive(*reports)
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    with pytest.raises(ConnectionError):
        pair.helper.answer(query)
    sevens = np.array([7, 7, 7])
    later = servers(
        NOISY, journals=(MemoryJournal(), restarted(journal)), noise=(sevens, sevens)
    ).helper
    assert later.state is (BatchState.DONE if after else BatchState.COLLECTING)
    assert [str(later.receive(one.helper, NOW)) for one in reports] == ["accepted"] * 4
    # Nothing had left: where nothing was written either, the noise of the second try is the only
    # one.
    expected = [6, 4, 2] if after else [4 + 1 + 7, 2 + 7, -4 + 3 + 7]
    assert pair.leader.finish(later.answer(query)).tolist() == expected


def test_a_leader_that_restarts_asks_the_same() -> None:
    journal, noise = MemoryJournal(), np.array([1, 2, 3])
    pair = servers(NOISY, journals=(journal, MemoryJournal()), noise=(noise, noise))
    pair.receive(*(report(who, p=NOISY) for who in range(4)))
    with pytest.raises(LocalProtocolError, match="not closed yet"):
        pair.leader.resume()
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    later = servers(NOISY, journals=(restarted(journal), MemoryJournal())).leader
    assert later.resume() == query == pair.leader.resume()
    assert (later.count, later.state) == (4, BatchState.WAITING)
    assert later.finish(pair.helper.answer(query)).tolist() == [6, 4, 2]


def test_a_leader_that_crashes_while_it_writes_has_asked_nothing_or_asks_the_same() -> None:
    for after in (False, True):
        journal = Crashing(after=after)
        pair = servers(journals=(journal, MemoryJournal()))
        pair.receive(*REPORTS)
        pair.leader.stop()
        with pytest.raises(ConnectionError):
            pair.leader.query(pair.helper.offer())
        later = servers(journals=(kept := restarted(journal), MemoryJournal())).leader
        assert [str(later.receive(one.leader, NOW)) for one in REPORTS] == ["accepted"] * 4
        assert later.state is (BatchState.WAITING if after else BatchState.COLLECTING)
        later.stop()
        query = later.resume() if after else later.query(pair.helper.offer())
        assert kept.kept(b"batch" + P.context + struct.pack("<II", 5, 5)) is not None
        assert later.finish(pair.helper.answer(query)).tolist() == [4, 0, -4]


def test_the_journal_of_memory() -> None:
    journal = MemoryJournal()
    assert journal.keep(b"one", b"first") == b"first"
    assert journal.keep(b"one", b"second") == journal.kept(b"one") == b"first"
    assert journal.kept(b"two") is None


def test_the_journals_of_the_servers_are_not_shared() -> None:
    journal = MemoryJournal()
    pair = servers(journals=(journal, journal))
    assert pair.receive(*REPORTS) == [("accepted", "second report")] * 4
    journals = MemoryJournal(), MemoryJournal()
    pair = servers(journals=journals)
    pair.receive(*REPORTS)
    opened(pair)
    for make in (
        lambda: Leader(P, range(5, 6), ALLOWED, POLICY, journals[1], LEADER_KEY),
        lambda: Helper(P, range(5, 6), ALLOWED, POLICY, journals[0], HELPER_KEY),
    ):
        with pytest.raises(BatchRefusedError, match="each server has its own journal"):
            make()


# ---- garbage ----


@settings(max_examples=300)
@given(st.binary(max_size=400), st.integers(0, 2))
def test_garbage_never_leaves_as_another_exception(data: bytes, dressed: int) -> None:
    pair = servers()

    def asked(offer: bytes) -> bytes:
        pair.leader.stop()
        return pair.leader.query(offer)

    for kind, sender, take in (
        (32, 2**32 - 1, partial(pair.leader.receive, now=NOW)),
        (33, 2**32 - 1, partial(pair.helper.receive, now=NOW)),
        (34, 2**32 - 3, asked),
        (35, 2**32 - 2, pair.helper.answer),
    ):
        frame = data
        if dressed:
            size = {32: HEAD + 43 + 48, 33: HEAD + 80}.get(kind, len(data))
            body = data.ljust(size, b"\x01")[:size] if dressed == 2 else data
            frame = (
                b"FTSA\x01"
                + bytes([kind, 0, 0])
                + P.context
                + struct.pack("<II", sender, len(body))
                + body
            )
        try:
            assert take(frame) is not Outcome.ACCEPTED
        except BatchRefusedError:
            assert kind >= 34


def test_rejections_are_not_errors_of_the_caller() -> None:
    """What a client sends never raises; what a server sends raises an error that is not of invalid
    input."""
    assert not issubclass(BatchRefusedError, InvalidInputError)
    assert issubclass(RejectedError, InvalidInputError)


def test_a_leader_hears_one_answer_to_a_batch_for_ever() -> None:
    """A helper that may try several learns the sum from which of them are refused."""
    pair = servers(journals=(journal := MemoryJournal(), MemoryJournal()))
    pair.receive(*REPORTS)
    pair.leader.stop()
    answer = pair.helper.answer(pair.leader.query(pair.helper.offer()))
    wrong = answer[:-1] + bytes([answer[-1] ^ 1])
    with pytest.raises(BatchRefusedError, match="checksum entries"):
        pair.leader.finish(wrong)
    again = servers(journals=(journal, MemoryJournal())).leader
    for _ in range(2):
        with pytest.raises(BatchRefusedError, match="the helper answers once"):
            again.finish(answer)
    with pytest.raises(BatchRefusedError, match="checksum entries"):
        again.finish(wrong)


def test_a_sum_once_given_is_given_again_and_no_other() -> None:
    pair = servers(journals=(journal := MemoryJournal(), MemoryJournal()))
    pair.receive(*REPORTS)
    pair.leader.stop()
    answer = pair.helper.answer(pair.leader.query(pair.helper.offer()))
    total = pair.leader.finish(answer)
    entry = HEADER + 32
    other = answer[:entry] + bytes([answer[entry] ^ 1]) + answer[entry + 1 :]
    with pytest.raises(BatchRefusedError, match="the helper answers once"):
        pair.leader.finish(other)
    restarted = servers(journals=(journal, MemoryJournal())).leader
    assert (
        restarted.finish(answer).tolist() == pair.leader.finish(answer).tolist() == total.tolist()
    )


def test_a_leader_of_other_rounds_does_not_resume_a_batch() -> None:
    pair = servers(journals=(journal := MemoryJournal(), MemoryJournal()))
    pair.receive(*REPORTS)
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    other = Leader(P, range(7, 8), ALLOWED, POLICY, journal, LEADER_KEY)
    assert other.state is BatchState.COLLECTING
    with pytest.raises(LocalProtocolError, match="not closed yet"):
        other.resume()
    assert Leader(P, range(5, 6), ALLOWED, POLICY, journal, LEADER_KEY).resume() == query
