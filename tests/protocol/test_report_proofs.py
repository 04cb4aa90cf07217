"""Proofs of reports to two servers: verdicts, the test point, and what breaking its rule costs."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from test_hpke import seal_base

from fedtally.crypto import prg
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Label, RejectedError, Secret, SigningKey
from fedtally.errors import InvalidInputError
from fedtally.flp import FIELD16, FIELD24, FIELD32, Field, OneHot, field_for_sums
from fedtally.flp.proof import _lagrange
from fedtally.secagg.two_server import BatchRefusedError, TwoServerParameters, proofs
from fedtally.secagg.two_server.proofs import (
    HelperPart,
    HelperShare,
    LeaderPart,
    LeaderShare,
    ReportProof,
    Verdict,
)

HELPER_SECRET, NOW = bytes(range(1, 33)), 1_700_000_000
KEY, LEADER_KEY = PrivateKey(Secret(HELPER_SECRET)), PrivateKey(Secret(bytes(range(2, 34))))


def drawn(*names: object) -> bytes:
    return hashlib.sha256(repr(names).encode()).digest()


def parameters(widths: tuple[int, ...], **changed: Any) -> TwoServerParameters:
    given = {"bits": 16, "n_max": 20_000, "min_batch": 2, "corrupt": 0}
    given |= {"leader_key": LEADER_KEY.public, "helper_key": KEY.public}
    digests = {"allow_list": bytes(32), "fingerprint": bytes(32)}
    return TwoServerParameters(widths=widths, **{**given, **digests, **changed})


def proof_of(widths: tuple[int, ...], abstain: bool = True, **changed: Any) -> ReportProof:
    return ReportProof(parameters(widths, **changed), abstain)


PROOF = proof_of((40, 40, 40, 40, 17))
CIRCUIT = PROOF.circuit


class Small(ReportProof):
    """The same over a field in which cheats get through, which no argument can choose."""

    _field = Field(257, 3)


def small(widths: tuple[int, ...]) -> Small:
    return Small(parameters(widths, bits=9, n_max=100))


class Liar(OneHot):
    """The circuit of a client that takes any words for its vector."""

    def encode(self, vector: Any) -> Any:
        return self.field.words(vector)


def lying(proof: ReportProof) -> ReportProof:
    """Return what a client uses that takes any words for its vector."""
    liar, circuit = replace(proof), proof.circuit
    vars(liar)["circuit"] = Liar(
        circuit.widths, circuit.field, circuit.abstain, circuit.checksum, circuit.signed
    )
    assert liar.context == proof.context
    return liar


@pytest.fixture(autouse=True)
def ephemeral_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let seals be functions of a counter: the library draws them from the operating system."""
    numbers = itertools.count()

    def seal(public: bytes, plaintext: Secret, label: Label, *fields: bytes) -> bytes:
        ephemeral, info = drawn("ephemeral", next(numbers)), b"".join((label, *fields))
        return seal_base(2, bytes(plaintext.reveal()), public, ephemeral, info)

    monkeypatch.setattr(proofs.hpke, "seal", seal)


def source(names: tuple[object, ...], **fixed: bytes) -> Callable[[int], bytes]:
    """Return what a client draws, by order: a function of the names, or as given."""
    order: Iterator[str] = iter(("nonce", "seed", "salt", "prove_seed"))

    def draw(count: int) -> bytes:
        what = next(order)
        return fixed.get(what, drawn(what, *names))[:count]

    return draw


def parts(
    proof: ReportProof, vector: Any, *names: object, round: int = 3, **fixed: bytes
) -> tuple[LeaderPart, HelperPart]:
    return proof.report(
        vector, round=round, now=NOW, identity=person(*names), random=source(names, **fixed)
    )


def person(*names: object) -> SigningKey:
    return SigningKey(Secret(drawn("identity", *names)))


@dataclass(frozen=True)
class Sent:
    """What both servers read of a report."""

    leader: LeaderShare
    helper: HelperShare


def send(proof: ReportProof, vector: Any, *names: object, to: ReportProof | None = None) -> Sent:
    """Return a client's report; its randomness is a function of the names."""
    leader, helper = parts(proof, vector, *names)
    to = to or proof
    return Sent(to.of_leader(leader), to.of_helper(helper, KEY))


def signed(part: Any, digests: tuple[bytes, bytes, bytes], *names: object, **changed: Any) -> Any:
    """Return a part with other values, and the client's signature over these digests."""
    made = replace(part, **changed)
    fields = (*made.bound.fields, *digests)
    return replace(made, signature=person(*names).sign(Label.TWO_SERVER_REPORT, *fields))


def one_hot(rng: np.random.Generator, circuit: OneHot = CIRCUIT) -> Any:
    parts = [np.eye(1, w, int(rng.integers(w)), dtype=np.int64)[0] for w in circuit.widths]
    return np.concatenate([part * rng.choice([-1, 1]) for part in parts])


def verdicts(reports: list[Sent], proof: ReportProof = PROOF) -> list[Verdict]:
    checks = proof.check([report.helper for report in reports], KEY)
    return proof.decide([report.leader for report in reports], checks)


# ---- verdicts ----


@each_case(("noise", "field"), [(0, FIELD16), (10_000, FIELD24), (6_000_000, FIELD32)])
def test_a_batch_with_bad_reports_sums_to_the_vectors_of_the_rest(noise, field):
    """With the noise of both servers."""
    proof = proof_of((40, 40, 17), bits=field.prime.bit_length(), noise=noise)
    rng, liar, circuit = np.random.default_rng(1), lying(proof), proof.circuit
    assert circuit.field is field
    vectors, reports, bad = [], [], {3, 7}
    for i in range(12):
        vectors.append(one_hot(rng, circuit) * (i % 5 > 0))
        words = [*(9 * vectors[i]), *[1] * (circuit.checksum + 1)]
        made = send(liar, words, i, to=proof) if i in bad else send(proof, vectors[i], i)
        reports.append(made)
    found = verdicts(reports, proof)
    assert {i for i, verdict in enumerate(found) if verdict is not Verdict.VALID} == bad
    assert {found[i] for i in bad} == {Verdict.INVALID}
    kept = [report for i, report in enumerate(reports) if i not in bad]
    drawn = rng.integers(-noise // 2, noise // 2 + 1, (2, circuit.counters))
    expected = np.sum([vector for i, vector in enumerate(vectors) if i not in bad], axis=0)
    both = [[each.leader for each in kept], [each.helper for each in kept]]
    sums = [proof.add(shares, drawn[i] if noise else None) for i, shares in enumerate(both)]
    assert proof.open(*sums, len(kept)).tolist() == (expected + drawn.sum(0)).tolist()
    with pytest.raises(BatchRefusedError, match="do not count 11 reports, or a counter is beyond"):
        proof.open(*sums, len(kept) + 1)


def test_a_sum_is_of_enough_reports_once_each_and_of_noise_that_fits():
    proof = proof_of((3, 2), min_batch=3, n_max=4, corrupt=1, noise=5)
    vector = np.array([0, 1, 0, 0, -1])
    shares = [send(proof, vector, i).helper for i in range(5)]
    noise, context = np.array([5, -5, 0, 0, 0]), {"context": bytes(32)}
    moved = replace(shares[0], bound=shares[0].bound._replace(**context))
    for message, batch, drawn in (
        ("a batch must have 3 .. 4 reports, got 2", shares[:2], noise),
        ("a batch must have 3 .. 4 reports, got 5", shares, noise),
        ("in a batch once, got 3 reports of 2 ids", [*shares[:2], shares[0]], noise),
        ("of another context", [*shares[:2], moved], noise),
        ("noise must be given: the parameters are for noise up to 5", shares[:3], None),
        (r"every entry of noise must be within \+-5", shares[:3], noise + 1),
        ("noise must be int64", shares[:3], noise[:4]),
    ):
        with pytest.raises(InvalidInputError, match=message):
            proof.add(batch, drawn)
    with pytest.raises(InvalidInputError, match="noise must be None: .* noise up to 0"):
        PROOF.add(
            [send(PROOF, one_hot(np.random.default_rng(1)), i).helper for i in range(2)], noise
        )


@each_case(
    ("signed", "noise", "count", "most"),
    [
        (True, 0, 32_256, 32_256),
        (True, 2_470, 28_551, 31_021),
        (True, 2_470, 28_551, -31_021),
        (False, 0, 64_512, 64_512),
        (False, 2_470, 57_102, 59_572),
        (False, 2_470, 57_102, -2_470),
    ],
)
def test_sums_at_the_limit_of_p_are_read_right(signed, noise, count, most):
    """At n_max clients, of which one more would ask for a larger field."""
    proof = proof_of((3, 2), n_max=count, noise=noise, signed=signed)
    fields = [field_for_sums(number, noise, signed=signed) for number in (count, count + 1)]
    assert fields[0] is FIELD16 is not fields[1]
    bounds = " .. ".join(map(str, proof.parameters.bounds(count)))

    def opened(counter: int, drawn: int = 0) -> int:
        """Return a counter of which the servers' shares are as they come."""
        words = FIELD16.words([counter + drawn, 0, 0, 0, 0, *[count] * 4])
        mask = FIELD16.words(np.arange(9) * 9_999)
        shares = FIELD16.encode(FIELD16.reduce(words - mask)), FIELD16.encode(mask)
        return int(proof.open(*shares, count)[0])

    assert opened(most) == most
    # both servers' noise within its bounds, but beyond that of both together
    for more in range(1, noise + 1, 49):
        with pytest.raises(BatchRefusedError, match=f"beyond {bounds}: a server added"):
            opened(most, more if most > 0 else -more)


def test_a_share_of_a_sum_that_cannot_be_read_is_refused():
    proof = proof_of((3, 2))
    good = FIELD16.encode(FIELD16.words([0] * 5 + [1] * 4))
    zeros = bytes(len(good))
    assert proof.open(good, zeros, 1).tolist() == [0] * 5
    assert proof.sum_bytes == len(good)
    for error, message, leader, helper in (
        (InvalidInputError, "leader must be 18 bytes, got 17", good[1:], zeros),
        (InvalidInputError, "helper must be 18 bytes, got 19", good, zeros + b"0"),
        (InvalidInputError, "every word must be below 64513", good, b"\xff\xff" + zeros[2:]),
        (BatchRefusedError, "do not count 1 reports", zeros, zeros),
        (BatchRefusedError, "do not count 1 reports", good[:-2] + b"\x02\x00", zeros),
    ):
        with pytest.raises(error, match=message):
            proof.open(leader, helper, 1)


@each_case("name", ["leader", "helper", "proof"])
def test_two_reports_of_one_id_are_inconsistent(name):
    """A client signs other digests for one of the servers, and keeps the seal."""
    leader, helper = parts(PROOF, one_hot(np.random.default_rng(2)), 1)
    digests = PROOF.of_leader(leader).digests._replace(**{name: drawn("other")})
    if name == "helper":
        leader = signed(leader, digests, 1, helper=drawn("other"))
    else:
        helper = signed(helper, digests, 1, **{name: drawn("other")})
    sent = Sent(PROOF.of_leader(leader), PROOF.of_helper(helper, KEY))
    assert verdicts([sent]) == [Verdict.INCONSISTENT]


@each_case("changed", [{"nonce": bytes(16)}, {"round": 4}, {"name": 2}])
def test_parts_of_two_reports_are_inconsistent(changed):
    vector, name = one_hot(np.random.default_rng(2)), changed.get("name", 1)
    fixed = {what: drawn(what) for what in ("nonce", "seed", "salt", "prove_seed")}
    one, _ = parts(PROOF, vector, 1, **fixed)
    _, other = parts(PROOF, vector, name, **{**fixed, **changed} if name == 1 else fixed)
    sent = Sent(PROOF.of_leader(one), PROOF.of_helper(other, KEY))
    assert verdicts([sent]) == [Verdict.INCONSISTENT]


@each_case(
    ("server", "name"),
    [("leader", name) for name in ("helper", "signature", "salt", "words", "proof")]
    + [("helper", name) for name in ("leader", "proof", "signature", "sealed")],
)
def test_each_server_takes_only_what_the_client_signed(server, name):
    """Its own digests are those of the bytes that it got."""
    leader, helper = parts(PROOF, one_hot(np.random.default_rng(2)), 1)
    part = leader if server == "leader" else helper
    changed = bytearray(getattr(part, name))
    changed[-2] ^= 1
    part = replace(part, **{name: bytes(changed)})
    with pytest.raises(RejectedError, match="signature is not one by this key"):
        PROOF.of_leader(part) if server == "leader" else PROOF.of_helper(part, KEY)


@each_case("changed", [{"nonce": bytes(16)}, {"round": 4}, {"identity": person(2).public}])
def test_a_seal_that_is_signed_for_another_report_does_not_open(changed):
    leader, helper = parts(PROOF, one_hot(np.random.default_rng(2)), 1)
    bound = helper.bound._replace(**changed)
    name = 2 if "identity" in changed else 1
    moved = signed(helper, PROOF.of_leader(leader).digests, name, bound=bound)
    with pytest.raises(RejectedError, match="does not open"):
        PROOF.of_helper(moved, KEY)


def test_a_report_has_one_circuit():
    """Another one has as many words and a proof as long; with two checks the vector could be read.

    Neither server takes a report of another context, and a seal of one does not open for the other.
    """
    rng = np.random.default_rng(3)
    one, other = proof_of((3, 5), abstain=False), proof_of((5, 3), abstain=False)
    leader, helper = parts(one, one_hot(rng, one.circuit), 1)
    sent = Sent(one.of_leader(leader), one.of_helper(helper, KEY))
    assert verdicts([sent], one) == [Verdict.VALID]
    checks = one.check([sent.helper], KEY)
    for call in (
        lambda: other.of_leader(leader),
        lambda: other.of_helper(helper, KEY),
        lambda: other.check([sent.helper], KEY),
        lambda: other.decide([sent.leader], checks),
    ):
        with pytest.raises(InvalidInputError, match="the report is of another context: use the"):
            call()
    bound = other.bound(*helper.bound[1:])
    moved = signed(helper, sent.leader.digests, 1, bound=bound)
    with pytest.raises(RejectedError, match="does not open"):
        other.of_helper(moved, KEY)


def test_every_term_of_the_circuit_is_in_the_context():
    one = proof_of((3, 5))
    others = [
        proof_of((5, 3)),
        proof_of((3, 5), signed=False),
        proof_of((8,)),
        proof_of((3, 5), abstain=False),
        proof_of((3, 5), n_max=20_001),
        proof_of((3, 5), bits=24, noise=20_000),
    ]
    for name in ("prime", "degree", "generator"):  # no parameters change one of these alone
        changed = {"prime": 7, "degree": 3, "generator": 5**5}
        like = proof_of((3, 5))
        circuit = replace(like.circuit, field=replace(FIELD16, **{name: changed[name]}))
        vars(like)["circuit"] = circuit
        others.append(like)
    like = proof_of((3, 5))
    vars(like)["circuit"] = replace(like.circuit, checksum=3)
    others.append(like)
    assert len({proof.context for proof in (one, *others)}) == 1 + len(others)
    assert one.context == proof_of((3, 5)).context != one.parameters.context


@each_case(
    ("message", "changed"),
    [
        ("abstain must be True or False, got 2", {"abstain": 2}),
        ("largest_entry must be 1, .* got 2", {"bits": 24, "largest_entry": 2}),
        (
            "bits must be 16 or 24 or 32 for proofs with n_max = 9 and noise = 0, got 5",
            {"bits": 5, "n_max": 9},
        ),
        ("bits must be 24 or 32 .* noise = 15000, got 17", {"bits": 17, "noise": 15_000}),
    ],
)
def test_arguments_that_do_not_fit_are_refused(message, changed):
    own = {"widths": (3, 5), "abstain": True, **changed}
    abstain = own.pop("abstain")
    given = parameters(**own)
    with pytest.raises(InvalidInputError, match=message):
        ReportProof(given, abstain)


def test_no_parameters_give_a_small_field():
    """A circuit of a degree below 2^20 passes with less than 2^-100 then."""
    assert "field" not in ReportProof.__dataclass_fields__
    fields = {proof_of((3, 5), n_max=n, bits=b, noise=tau)._field for n, b, tau in (
        (2, 16, 0), (32_256, 16, 0), (32_257, 24, 0), (2**20, 24, 4_000_000), (2**20, 32, 10**9)
    )}  # fmt: skip
    assert fields == {FIELD16, FIELD24, FIELD32}
    assert all(field.prime**field.degree > 2**127 for field in fields)


def test_bytes_that_cannot_be_read_are_refused():
    leader, helper = parts(PROOF, one_hot(np.random.default_rng(4)), 1)
    sent = Sent(PROOF.of_leader(leader), PROOF.of_helper(helper, KEY))
    assert (len(leader.words), len(leader.proof)) == (PROOF.words_bytes, PROOF.proof_bytes)
    (check,) = PROOF.check([sent.helper], KEY)
    assert len(check) == PROOF.check_bytes
    digests = sent.leader.digests

    def lead(**changed: Any) -> Any:
        return lambda: PROOF.of_leader(replace(leader, **changed))

    def help(**changed: Any) -> Any:
        return lambda: PROOF.of_helper(replace(helper, **changed), KEY)

    def large(name: str) -> Any:
        value = b"\xff\xff" + getattr(leader, name)[2:]
        label = {"words": Label.TWO_SERVER_PART, "proof": Label.TWO_SERVER_PROOF_SHARE}[name]
        kind = b"\x20" if name == "words" else b""
        own = hashlib.sha256(label + kind + leader.salt + value).digest()
        other = digests._replace(**{"leader" if name == "words" else "proof": own})
        return lambda: PROOF.of_leader(signed(leader, other, 1, **{name: value}))

    for message, call in (
        ("words must be 364 bytes, got 363", lead(words=leader.words[1:])),
        ("proof must be 342 bytes, got 343", lead(proof=leader.proof + b"0")),
        ("salt must be 32 bytes, got 0", lead(salt=b"")),
        ("helper_digest must be 32 bytes, got 31", lead(helper=bytes(31))),
        ("signature must be 64 bytes, got 63", lead(signature=bytes(63))),
        ("signature must be 64 bytes, got str", help(signature="0" * 64)),
        ("leader_digest must be 32 bytes, got 33", help(leader=bytes(33))),
        ("proof_digest must be 32 bytes, got 33", help(proof=bytes(33))),
        ("sealed must be 80 bytes, got 81", help(sealed=bytes(81))),
        ("below 64513", large("words")),
        ("below 64513", large("proof")),
        ("check must be 316 bytes, got 315", lambda: PROOF.decide([sent.leader], [check[1:]])),
        ("below 64513", lambda: PROOF.decide([sent.leader], [check[:-2] + b"\xff\xff"])),
        ("one for each of 1 reports, got 0", lambda: PROOF.decide([sent.leader], [])),
        ("one for each of 1 reports, got 2", lambda: PROOF.decide([sent.leader], [check] * 2)),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()
    assert PROOF.check([], KEY) == PROOF.decide([], []) == []


def test_a_client_that_draws_or_says_something_else_gets_an_error():
    vector = one_hot(np.random.default_rng(4))
    for message, fixed in (
        ("random_nonce must be 16 bytes, got 15", {"nonce": bytes(15)}),
        ("random_seed must be 32 bytes, got 31", {"seed": bytes(31)}),
        ("random_salt must be 32 bytes, got 31", {"salt": bytes(31)}),
        ("random_prove_seed must be 32 bytes, got 31", {"prove_seed": bytes(31)}),
        ("round must be at most 4294967295, got 4294967296", {"round": 2**32}),
        ("round must be at least 0, got -1", {"round": -1}),
    ):
        with pytest.raises(InvalidInputError, match=message):
            parts(PROOF, vector, 1, **fixed)
    for message, changed in (
        ("round must be at most", {"round": 2**32}),
        ("nonce must be 16 bytes, got 17", {"nonce": bytes(17)}),
        ("identity must be 32 bytes, got 31", {"identity": bytes(31)}),
    ):
        _, helper = parts(PROOF, vector, 1)
        with pytest.raises(InvalidInputError, match=message):
            PROOF.of_helper(replace(helper, bound=helper.bound._replace(**changed)), KEY)


def test_shares_do_not_print():
    leader, helper = parts(PROOF, one_hot(np.random.default_rng(4)), 1)
    for shown in (leader, helper, PROOF.of_leader(leader), PROOF.of_helper(helper, KEY)):
        text = repr(shown)
        assert not any(name in text for name in ("salt=", "words=", "sealed="))
        assert text.count("key=Secret(hidden)") == 2 * isinstance(shown, HelperShare)


def test_secrets_are_wiped_after_use(monkeypatch):
    seen: list[Secret] = []
    derive, mask = proofs.hkdf, proofs.mask_key

    def spy(secret: Secret, salt: bytes, label: Label) -> Secret:
        seen.extend((secret, derive(secret, salt, label)))
        return seen[-1]

    def mask_spy(seed: Secret, bound: Any) -> Secret:
        seen.append(mask(seed, bound))
        return seen[-1]

    def wiped(secrets: list[Secret]) -> int:
        for secret in secrets:
            with pytest.raises(InvalidInputError, match="was wiped"):
                secret.reveal()
        return len(secrets)

    monkeypatch.setattr(proofs, "hkdf", spy)
    monkeypatch.setattr(proofs, "mask_key", mask_spy)
    _, part = parts(PROOF, one_hot(np.random.default_rng(4)), 1)
    # mask key; prove seed and key; seed and proof mask key
    assert wiped(seen) == 5
    seen.clear()
    share = PROOF.of_helper(part, KEY)
    _, seed, _ = seen  # after the mask key
    assert wiped([seed]) == 1
    seen.clear()
    PROOF.check([share], KEY)
    verify_key, _ = seen  # the point seed goes to the leader
    assert wiped([verify_key]) == 1
    share.wipe()
    assert wiped([share.mask_key, share.proof_mask_key]) == 2


@each_case("bits", [16, 24])
@each_case(("rows", "width", "most"), [(5, 400, 1.10), (7, 571, 1.07), (16, 1000, 1.03)])
def test_a_proof_adds_the_bytes_that_the_page_says(rows, width, most, bits):
    """To a report without it: the proof, its digest for the helper, and the word e."""
    proof = proof_of((width,) * rows, bits=bits)
    circuit, parameters, word = proof.circuit, proof.parameters, bits // 8
    assert proof.words_bytes == parameters.packed_bytes + word
    today = parameters.report_bytes
    upload = today + word + proof.proof_bytes + 32
    assert upload / today < most
    page = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text()
    shown = (
        f"| {rows} x {width} | {bits} | {circuit.products} | {circuit.chunk} | {proof.flp.nodes} "
        f"| {proof.proof_bytes} | {proof.check_bytes} | {today:,} | {upload:,} "
        f"| {upload / today:.3f} |"
    )
    assert shown in page


# ---- the test point ----


def test_a_check_is_a_function_of_the_report():
    """Alone, in any batch, by a helper that restarted: the same bytes."""
    rng = np.random.default_rng(5)
    shares = [send(PROOF, one_hot(rng), i).helper for i in range(3)]
    checks = PROOF.check(shares, KEY)
    again = proof_of((40, 40, 40, 40, 17)), PrivateKey(Secret(HELPER_SECRET))
    assert again[0].check(shares[::-1], again[1]) == checks[::-1]
    assert [PROOF.check([share], KEY)[0] for share in shares] == checks


@each_case("words", [1, 2 * CIRCUIT.length, 2 * CIRCUIT.length + 1])
def test_reports_are_looked_at_in_blocks(words, monkeypatch):
    rng, liar = np.random.default_rng(5), lying(PROOF)
    reports = [send(PROOF, one_hot(rng), i) for i in range(4)]
    reports.append(send(liar, [*(2 * one_hot(rng)), 1, 1, 1, 1, 1], 4, to=PROOF))
    found, checks = verdicts(reports), PROOF.check([each.helper for each in reports], KEY)
    assert found == [Verdict.VALID] * 4 + [Verdict.INVALID]
    monkeypatch.setattr(proofs, "WORDS_AT_ONCE", words)
    assert PROOF.check([each.helper for each in reports], KEY) == checks
    assert verdicts(reports) == found


def test_there_is_one_verify_key():
    """Two keys would give two test points, and so the vector: no key but the one that opens."""
    _, part = parts(PROOF, one_hot(np.random.default_rng(5)), 1)
    share = PROOF.of_helper(part, KEY)
    other = PrivateKey(Secret(bytes(32)))
    for call in (lambda: PROOF.of_helper(part, other), lambda: PROOF.check([share], other)):
        with pytest.raises(InvalidInputError, match="the key is not the one that clients seal to"):
            call()
    # X25519 ignores five bits of a secret key: all encodings open the same seals
    checks = set()
    for low, high in itertools.product((0, 7), (0, 64, 128, 192)):
        secret = bytearray(HELPER_SECRET)
        secret[0], secret[31] = secret[0] & 248 | low, secret[31] & 63 | high
        key = PrivateKey(Secret(secret))
        assert key.public == KEY.public
        checks |= set(PROOF.check([PROOF.of_helper(part, key)], key))
    assert len(checks) == 1


def test_the_point_depends_on_all_that_is_signed():
    share = send(PROOF, one_hot(np.random.default_rng(6)), 1).helper
    others = [
        replace(share, digests=share.digests._replace(**{name: drawn("other")}))
        for name in share.digests._fields
    ]
    others += [
        replace(share, bound=share.bound._replace(**changed))
        for changed in ({"nonce": bytes(16)}, {"round": 4}, {"identity": bytes(32)})
    ]
    checks = PROOF.check([share, *others], KEY)
    assert len({check[32:64] for check in checks}) == len({check[:32] for check in checks}) == 7


def test_a_point_that_would_show_a_wire_is_skipped():
    """Over GF(257), where 4 elements of 257 are no test points: of 300 draws all but e^-4.7."""
    proof = small((3,))
    field, count = proof.circuit.field, proof.flp.query_random_length
    drawn_once = proof._elements([Secret(drawn(i)) for i in range(300)], count).tolist()
    found = proof._query_random([drawn(i) for i in range(300)]).tolist()
    roots = [[root] for root in field.roots(proof.flp.nodes)]
    skipped = [one[-1] in roots for one in drawn_once]
    assert any(skipped)
    for first, taken, skip in zip(drawn_once, found, skipped, strict=True):
        assert taken[-1] not in roots and taken[:-1] == first[:-1]
        assert (taken == first) is not skip


def test_a_word_may_begin_in_one_chunk_of_the_stream_and_end_in_the_next():
    """Words of 3 bytes; a chunk has 2^17."""
    key, count = drawn("key"), 2**17 // 3 + 10
    stream = b""
    for chunk in range(2):
        counter = chunk.to_bytes(12, "big") + (2).to_bytes(4, "big")
        stream += Cipher(algorithms.AES(key), modes.CTR(counter)).encryptor().update(bytes(2**17))
    integers = [int.from_bytes(stream[3 * i : 3 * i + 3], "little") for i in range(count + 500)]
    expected = [word for word in integers if word < FIELD24.prime][:count]
    words = FIELD24.sample(lambda size: prg.expand(Secret(key), size), count)
    assert words.tolist() == expected


def cells_seen(proof: ReportProof, one: LeaderShare, other: LeaderShare) -> dict[int, list[int]]:
    """Return the cells that a leader finds in two rows, if the proofs of both have one mask.

    The difference of two results of a call shows then; the calls that end with z z of a row have
    the result r3^(2l) e + r3^(2l+1) R_w^2, of which only w is unknown.
    """
    field, circuit = proof.circuit.field, proof.circuit
    difference = field.reduce(np.subtract(*proof._proofs_of([one, other])))[2 * circuit.chunk :]
    joint = proof._joint([one, other])
    found: dict[int, list[int]] = {}
    for row, call in ((1, 1), (5, 4)):
        results = []
        for r1, r2, r3 in joint:
            weight = field.multiply(
                field.powers(r1, circuit.grid)[:, None], field.powers(r2, circuit.grid)[None, :]
            ).reshape(-1, field.degree)[: circuit.widths[row]]
            powers = field.powers(r3, 2 * row + 2)
            square = field.multiply(field.multiply(weight, weight), powers[2 * row + 1])
            results.append(field.reduce(square + powers[2 * row]))
        same = (field.reduce(results[0] - results[1]) == difference[2 * call]).all(-1)
        found[row] = np.flatnonzero(same).tolist()
    return found


def test_a_report_that_is_sealed_anew_shows_nothing(monkeypatch):
    """A client that makes its report again, with the same randomness, has another seal.

    If the masks of both proofs were one, the leader would see cells.
    """
    proof = proof_of((40,) * 7)
    assert (proof.circuit.chunk, proof.flp.nodes) == (4, 8)
    vector = one_hot(np.random.default_rng(8), proof.circuit)
    cells = {row: [int(np.flatnonzero(vector[40 * row : 40 * row + 40])[0])] for row in (1, 5)}

    def both() -> list[Sent]:
        made = [send(proof, vector, 1) for _ in range(2)]
        assert made[0].leader.words == made[1].leader.words
        assert made[0].leader.digests.helper != made[1].leader.digests.helper
        assert verdicts(made, proof) == [Verdict.VALID] * 2
        return made

    made = both()
    assert cells_seen(proof, made[0].leader, made[1].leader) == {1: [], 5: []}
    seeds = 2 * proof.circuit.chunk
    whole = [
        FIELD16.reduce(proof._proofs_of([sent.leader]) + proof._proofs_of([sent.helper]))[0, :seeds]
        for sent in made
    ]
    assert (whole[0] != whole[1]).any(-1).all()  # no wire has one seed in both
    derive = proofs.hkdf

    def of_the_id(secret: Secret, salt: bytes, label: Label) -> Secret:
        return derive(secret, bytes(32) if label is Label.TWO_SERVER_PROOF_MASK else salt, label)

    monkeypatch.setattr(proofs, "hkdf", of_the_id)
    made = both()
    assert cells_seen(proof, made[0].leader, made[1].leader) == cells


WIDE = proof_of((400,) * 5)


def seen_by_leader(proof: ReportProof, report: Sent, check: bytes) -> tuple[Any, Any]:
    """Return the test point, and the whole verifier: all that a check shows the leader."""
    own = proof._query([report.leader], [check[32:64]])[0]
    verifier = FIELD16.reduce(own + proof._read(check[64:], proof.flp.verifier_length)[0])
    return proof._query_random([check[32:64]])[0, -1], verifier


def recover(proof: ReportProof, report: Sent, checks: list[bytes]) -> Any:
    """Return the vector of a report, from its checks at two points, or None.

    A wire at t is L_0(t) seed + the sum over the calls of L_k(t) input_k. Two points and no seed
    leave one equation a wire, of which the leader knows all but the few inputs z = +-R_w.
    """
    field, circuit = FIELD16, proof.circuit
    points, lagrange, wires = [], [], []
    for check in checks:
        point, verifier = seen_by_leader(proof, report, check)
        basis = _lagrange(field, point, proof.flp.nodes)
        inverse = field.power(basis[0], field.prime**field.degree - 2)
        points.append(point.tolist())
        lagrange.append(field.multiply(basis, inverse))
        wires.append(field.multiply(verifier[1:-1], inverse))
    if points[0] == points[1]:
        return None
    d = field.reduce(lagrange[0] - lagrange[1])
    known = field.reduce(wires[0] - wires[1])
    r1, r2, r3 = proof._joint([report.leader])[0]
    weights = field.multiply(
        field.powers(r1, circuit.grid)[:, None], field.powers(r2, circuit.grid)[None, :]
    ).reshape(-1, field.degree)[:400]
    values = field.reduce(np.concatenate([weights, -weights]))  # z of +1 in each cell, of -1
    place = {value.tobytes(): i for i, value in enumerate(values)}

    def divided(a: Any, b: Any) -> Any:
        return field.multiply(a, field.power(b, field.prime**field.degree - 2))

    def pair(total: Any, one: Any, other: Any) -> tuple[int, int]:
        """Return the places of two values with one x + other y = total."""
        rest = divided(field.reduce(total - field.multiply(values, one)), other)
        found = [(i, place[y.tobytes()]) for i, y in enumerate(rest) if y.tobytes() in place]
        (both,) = found
        return both

    # rows 0, 2 and 4 meet in the first products of the calls, once with weights r3, r3^5 and r3^9
    odd = field.powers(r3, 10)[1::2]
    less = field.reduce(known[0] - field.multiply(known[1], odd[4]))
    factors = [field.multiply(d[k], field.reduce(odd[2 * k - 2] - odd[4])) for k in (1, 2)]
    row0, row2 = pair(less, *factors)
    rest = known[1] - field.multiply(values[row0], d[1]) - field.multiply(values[row2], d[2])
    row4 = place[divided(field.reduce(rest), d[3]).tobytes()]
    row1, row3 = pair(known[7], d[1], d[2])  # with them stands e - 1, which is 0
    vector = np.zeros((5, 400), np.int64)
    for row, i in enumerate((row0, row1, row2, row3, row4)):
        vector[row, i % 400] = 1 - 2 * (i // 400)
    return vector.reshape(-1)


def test_two_points_give_the_whole_vector(monkeypatch):
    """If anything but the report enters the point, here another key: every vector is read."""
    rng = np.random.default_rng(7)
    for i in range(3):
        vector = one_hot(rng, WIDE.circuit)
        report = send(WIDE, vector, i)
        again = WIDE.check([report.helper], KEY) + WIDE.check([report.helper], KEY)
        assert recover(WIDE, report, again) is None  # the rule is kept: nothing to be had
        with monkeypatch.context() as broken:
            keys = (Secret(bytes([n]) * 32) for n in range(2))
            broken.setattr(PrivateKey, "derive", lambda *_, keys=keys: next(keys))
            checks = [WIDE.check([report.helper], KEY)[0] for _ in range(2)]
        assert recover(WIDE, report, checks).tolist() == vector.tolist()


def forged(proof: ReportProof, vector: Any, *names: object) -> Sent:
    """Return a report with a proof that is made for the point that an honest proof would get."""
    field, circuit, flp = FIELD16, proof.circuit, proof.flp
    report = send(lying(proof), vector, *names, to=proof)
    (check,) = proof.check([report.helper], KEY)
    sent, first = proof._proofs_of([report.leader])[0], 2 * circuit.chunk

    def verifier() -> Any:
        changed = replace(report, leader=replace(report.leader, proof=field.encode(sent)))
        return seen_by_leader(proof, changed, check)[1]

    def add(place: int, entry: int, wanted: Any) -> None:
        """Change one value of the gadget polynomial so that an entry of the verifier is wanted."""
        before = verifier()[entry]
        sent[place, 0] += 1
        slope = field.reduce(verifier()[entry] - before)
        sent[place, 0] -= 1
        inverse = field.power(slope, field.prime**field.degree - 2)
        sent[place] = field.reduce(
            sent[place] + field.multiply(field.reduce(wanted - before), inverse)
        )

    add(first + 2, 0, field.zeros(()))  # the result of the first call: the output is 0
    wires = verifier()[1:-1]
    add(first + 1, flp.verifier_length - 1, flp._gadget(wires))  # a value that is no result
    share = replace(report.leader, proof=field.encode(sent))
    own = proofs._proof_digest(drawn("salt", *names), field.encode(sent))
    digests = share.digests._replace(proof=own)
    return Sent(replace(share, digests=digests), replace(report.helper, digests=digests))


def test_who_knows_the_point_of_a_proof_cannot_use_it(monkeypatch):
    """The point moves with the proof. Where the proof is not in the digest, any vector passes."""
    vector = [5000, *[77] * (CIRCUIT.counters - 1), 1, 1, 1, 1, 1]
    assert verdicts([forged(PROOF, vector, 1)]) == [Verdict.INVALID]

    def without_proof(self: ReportProof, share: LeaderShare | HelperShare) -> bytes:
        return drawn(share.bound, share.digests[:2])

    monkeypatch.setattr(ReportProof, "_joint_digest", without_proof)
    assert verdicts([forged(PROOF, vector, 1)]) == [Verdict.VALID]


# ---- the same code over a field so small that cheats get through ----


def test_over_a_small_field_as_many_cheats_pass_as_predicted():
    """All derived by hashes, over GF(257).

    The vector has 3 and -2 in cells whose weights differ by r2^16: an honest prover passes where
    r3 = 0 or r2 is one of 16 roots, and with another first output where its factor is 0. Passes are
    binomial; the bound is 5 standard deviations, which chance exceeds with less than 1e-6.
    """
    proof, count = small((289,)), 800
    liar = lying(proof)
    zero = 1 - (1 - 1 / 257) * (1 - 16 / 257)
    chance = zero + (1 - zero) / 257
    words = [3, *[0] * 15, -2, *[0] * 272, *[1] * 8]
    found = verdicts([send(liar, words, i, to=proof) for i in range(count)], proof)
    passed = found.count(Verdict.VALID)
    assert abs(passed - count * chance) < 5 * math.sqrt(count * chance * (1 - chance)) < 40
