"""Proofs of reports to two servers: verdicts, the test point, and what breaking its rule costs."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import each_case

from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret
from fedtally.errors import InvalidInputError
from fedtally.flp import FIELD16, Field, SignedOneHot, field_for_sums
from fedtally.flp.proof import _lagrange
from fedtally.secagg.two_server.proofs import (
    Digests,
    ReportProof,
    ServerShare,
    Verdict,
    proof_digest,
)
from fedtally.secagg.two_server.reports import Bound, Kind, TwoServerParameters, part_digest

CIRCUIT = SignedOneHot((40, 40, 40, 40, 17), FIELD16, abstain=True, checksum=4)
KEY = Secret(bytes(range(32)))


def drawn(*names: object) -> bytes:
    return hashlib.sha256(repr(names).encode()).digest()


class Liar(SignedOneHot):
    """The circuit of a client that takes any words for its vector."""

    def encode(self, vector: Any) -> Any:
        return self.field.words(vector)


@dataclass(frozen=True)
class Sent:
    """What a client sent: the shares of both servers."""

    leader: ServerShare
    helper: ServerShare


def send(proof: ReportProof, vector: Any, *names: object) -> Sent:
    """Return a client's report; its randomness is a function of the names."""
    bound = Bound(drawn("context"), drawn("id", *names)[:16], 3, drawn("identity", *names))
    seed, prove_seed = Secret(drawn("seed", *names)), Secret(drawn("prove", *names))
    salt = drawn("salt", *names)
    words = proof.share(vector, bound, seed)
    digests = Digests(
        part_digest(Kind.LEADER_REPORT, salt + words),
        part_digest(Kind.HELPER_REPORT, drawn("sealed seed", *names)),
        bytes(32),
    )
    sent = proof.prove(vector, bound, digests, seed, prove_seed)
    digests = digests._replace(proof=proof_digest(salt, sent))
    return Sent(proof.of_leader(bound, digests, words, sent), proof.of_helper(bound, digests, seed))


def one_hot(rng: np.random.Generator, circuit: SignedOneHot = CIRCUIT) -> Any:
    parts = [np.eye(1, w, int(rng.integers(w)), dtype=np.int64)[0] for w in circuit.widths]
    return np.concatenate([part * rng.choice([-1, 1]) for part in parts])


def verdicts(reports: list[Sent], proof: ReportProof) -> list[Verdict]:
    checks = proof.check([report.helper for report in reports], KEY)
    return proof.decide([report.leader for report in reports], checks)


# ---- verdicts ----


def test_a_batch_with_bad_reports_sums_to_the_vectors_of_the_rest():
    rng, honest, liar = (
        np.random.default_rng(1),
        ReportProof(CIRCUIT),
        ReportProof(Liar(CIRCUIT.widths, FIELD16, CIRCUIT.abstain, CIRCUIT.checksum)),
    )
    vectors, reports, bad = [], [], {7, 23}
    for i in range(30):
        vectors.append(one_hot(rng) * (i % 5 > 0))
        words = [*(9 * vectors[i]), 1, 1, 1, 1, 1]
        reports.append(send(liar, words, i) if i in bad else send(honest, vectors[i], i))
    found = verdicts(reports, honest)
    assert {i for i, verdict in enumerate(found) if verdict is not Verdict.VALID} == bad
    assert {found[i] for i in bad} == {Verdict.INVALID}
    kept = [report for i, report in enumerate(reports) if i not in bad]
    shares = [[s.words for s in (report.leader, report.helper)] for report in kept]
    total = FIELD16.reduce(np.array([CIRCUIT.truncate(s) for each in shares for s in each]).sum(0))
    expected = np.sum([vector for i, vector in enumerate(vectors) if i not in bad], axis=0)
    assert total[: CIRCUIT.counters].tolist() == FIELD16.words(expected).tolist()
    assert total[CIRCUIT.counters :].tolist() == [len(kept)] * 4  # what counts the vectors


@each_case("field", ["leader", "helper", "proof"])
def test_two_reports_of_one_id_are_inconsistent(field):
    proof = ReportProof(CIRCUIT)
    sent = send(proof, one_hot(np.random.default_rng(2)), 1)
    digests = replace(sent.helper, digests=sent.helper.digests._replace(**{field: drawn("other")}))
    assert verdicts([Sent(sent.leader, digests)], proof) == [Verdict.INCONSISTENT]


@each_case("name", ["context", "id", "round", "identity"])
def test_a_report_of_another_binding_is_inconsistent(name):
    proof = ReportProof(CIRCUIT)
    sent = send(proof, one_hot(np.random.default_rng(2)), 1)
    other = 4 if name == "round" else drawn("other")[: len(getattr(sent.helper.bound, name))]
    moved = replace(sent.helper, bound=sent.helper.bound._replace(**{name: other}))
    assert verdicts([Sent(sent.leader, moved)], proof) == [Verdict.INCONSISTENT]


def test_a_proof_of_another_circuit_is_none():
    """Of as many words and of a proof of the same length: rows in another order."""
    rng = np.random.default_rng(3)
    one, other = SignedOneHot((3, 5)), SignedOneHot((5, 3))
    sent = send(ReportProof(one), one_hot(rng, one), 1)
    assert verdicts([sent], ReportProof(one)) == [Verdict.VALID]
    checks = ReportProof(one).check([sent.helper], KEY)
    assert ReportProof(other).decide([sent.leader], checks) == [Verdict.INCONSISTENT]


def test_bytes_that_cannot_be_read_are_refused():
    proof = ReportProof(CIRCUIT)
    sent = send(proof, one_hot(np.random.default_rng(4)), 1)
    bound, digests, encode = sent.leader.bound, sent.leader.digests, FIELD16.encode
    words, part = encode(sent.leader.words), encode(sent.leader.proof)
    assert (len(words), len(part)) == (proof.words_bytes, proof.proof_bytes)
    (check,) = proof.check([sent.helper], KEY)
    assert len(check) == proof.check_bytes
    for message, call in (
        ("words must be 364 bytes", lambda: proof.of_leader(bound, digests, words[1:], part)),
        ("proof must be 342 bytes", lambda: proof.of_leader(bound, digests, words, part + b"0")),
        ("below 64513", lambda: proof.of_leader(bound, digests, b"\xff\xff" + words[2:], part)),
        ("below 64513", lambda: proof.of_leader(bound, digests, words, b"\xff\xff" + part[2:])),
        ("check must be 316 bytes", lambda: proof.decide([sent.leader], [check[1:]])),
        ("below 64513", lambda: proof.decide([sent.leader], [check[:-2] + b"\xff\xff"])),
        ("salt must be 32 bytes", lambda: proof_digest(b"", part)),
    ):
        with pytest.raises(InvalidInputError, match=message):
            call()
    assert proof.check([], KEY) == proof.decide([], []) == []


def test_shares_do_not_print():
    sent = send(ReportProof(CIRCUIT), one_hot(np.random.default_rng(4)), 1)
    assert "words" not in repr(sent.leader) and "proof=array" not in repr(sent.leader)


@each_case(("rows", "width", "most"), [(5, 400, 1.10), (7, 571, 1.07), (16, 1000, 1.03)])
def test_a_proof_adds_the_bytes_that_the_page_says(rows, width, most):
    """To today's report: the proof, its digest for the helper, and the word e."""
    parameters = TwoServerParameters(
        length=rows * width,
        bits=16,
        n_max=20_000,
        min_batch=1_000,
        corrupt=50,
        helper_key=PrivateKey(Secret(bytes(32))).public,
        allow_list=bytes(32),
        fingerprint=bytes(32),
    )
    circuit = SignedOneHot((width,) * rows, field_for_sums(20_000), True, 4)
    proof = ReportProof(circuit)
    assert proof.words_bytes == parameters.packed_bytes + 2
    today = parameters.report_bytes
    upload = today + 2 + proof.proof_bytes + 32
    assert upload / today < most
    page = (Path(__file__).parents[2] / "docs" / "validity.md").read_text()
    shown = (
        f"| {rows} x {width} | {circuit.products} | {circuit.chunk} | {proof.flp.nodes} "
        f"| {proof.proof_bytes} | {proof.check_bytes} | {today:,} | {upload:,} "
        f"| {upload / today:.3f} |"
    )
    assert shown in page


# ---- the test point ----


def test_a_check_is_a_function_of_the_report():
    """Alone, in any batch, by a helper that restarted: the same bytes."""
    rng, proof = np.random.default_rng(5), ReportProof(CIRCUIT)
    shares = [send(proof, one_hot(rng), i).helper for i in range(3)]
    checks = proof.check(shares, KEY)
    assert ReportProof(CIRCUIT).check(shares[::-1], Secret(bytes(range(32)))) == checks[::-1]
    assert [proof.check([share], KEY)[0] for share in shares] == checks


def test_the_point_depends_on_all_that_is_signed_and_on_the_key():
    proof = ReportProof(CIRCUIT)
    share = send(proof, one_hot(np.random.default_rng(6)), 1).helper
    others = [
        replace(share, digests=share.digests._replace(**{name: drawn("other")}))
        for name in Digests._fields
    ]
    others.append(replace(share, bound=share.bound._replace(id=bytes(16))))
    seeds = {check[32:64] for check in proof.check([share, *others], KEY)}
    seeds |= {check[32:64] for check in proof.check([share], Secret(bytes(32)))}
    assert len(seeds) == 6


def test_a_point_that_would_show_a_wire_is_skipped():
    """Over GF(257), where 4 elements of 257 are no test points: of 300 draws all but e^-4.7."""
    field = Field(257, 3)
    proof = ReportProof(SignedOneHot((3,), field, checksum=1))
    drawn_once = [proof._elements(Secret(drawn(i)), 3).tolist() for i in range(300)]
    found = proof._query_random([drawn(i) for i in range(300)]).tolist()
    roots = [[root] for root in field.roots(proof.flp.nodes)]
    skipped = [one[2] in roots for one in drawn_once]
    assert any(skipped)
    for first, taken, skip in zip(drawn_once, found, skipped, strict=True):
        assert taken[-1] not in roots and taken[:2] == first[:2]
        assert (taken == first) is not skip


WIDE = SignedOneHot((400,) * 5, FIELD16, abstain=True, checksum=4)


def seen_by_leader(proof: ReportProof, report: Sent, check: bytes) -> tuple[Any, Any]:
    """Return the test point, and the whole verifier: all that a check shows the leader."""
    own = proof._query([report.leader], [check[32:64]])[0]
    verifier = FIELD16.reduce(own + proof._read(check[64:]))
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
    r1, r2, r3 = proof._joint(report.leader.bound, report.leader.digests)
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


def test_two_points_give_the_whole_vector():
    """If anything but the report enters the point, here another key: every vector is read."""
    rng, proof = np.random.default_rng(7), ReportProof(WIDE)
    for i in range(3):
        vector = one_hot(rng, WIDE)
        report = send(proof, vector, i)
        again = proof.check([report.helper], KEY) + proof.check([report.helper], KEY)
        assert recover(proof, report, again) is None  # the rule is kept: nothing to be had
        checks = [proof.check([report.helper], Secret(bytes([n]) * 32))[0] for n in range(2)]
        assert recover(proof, report, checks).tolist() == vector.tolist()


def forged(proof: ReportProof, vector: Any, key: Secret, *names: object) -> Sent:
    """Return a report with a proof that is made for the point that an honest proof would get."""
    field, circuit, flp = FIELD16, proof.circuit, proof.flp
    liar = ReportProof(Liar(circuit.widths, field, circuit.abstain, circuit.checksum))
    report = send(liar, vector, *names)
    (check,) = proof.check([report.helper], key)
    sent, first = report.leader.proof.copy(), 2 * circuit.chunk

    def verifier() -> Any:
        changed = replace(report, leader=replace(report.leader, proof=sent))
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
    share = replace(report.leader, proof=sent)
    digests = share.digests._replace(proof=proof_digest(drawn("salt", *names), field.encode(sent)))
    return Sent(replace(share, digests=digests), replace(report.helper, digests=digests))


def test_who_knows_the_point_of_a_proof_cannot_use_it(monkeypatch):
    """The point moves with the proof. Where the proof is not in the digest, any vector passes."""
    proof = ReportProof(CIRCUIT)
    vector = [5000, *[77] * (CIRCUIT.counters - 1), 1, 1, 1, 1, 1]
    assert verdicts([forged(proof, vector, KEY, 1)], proof) == [Verdict.INVALID]

    def without_proof(self: ReportProof, share: ServerShare) -> bytes:
        return drawn(share.bound, share.digests[:2])

    monkeypatch.setattr(ReportProof, "_joint_digest", without_proof)
    assert verdicts([forged(proof, vector, KEY, 1)], proof) == [Verdict.VALID]


# ---- the same code over a field so small that cheats get through ----


def test_over_a_small_field_as_many_cheats_pass_as_predicted():
    """All derived by hashes, over GF(257).

    The vector has 3 and -2 in cells whose weights differ by r2^16: an honest prover passes where
    r3 = 0 or r2 is one of 16 roots, and with another first output where its factor is 0. Passes are
    binomial; the bound is 5 standard deviations, which chance exceeds with less than 1e-6.
    """
    field = Field(257, 3)
    circuit, count = SignedOneHot((289,), field, checksum=1), 800
    proof, liar = ReportProof(circuit), ReportProof(Liar((289,), field, checksum=1))
    zero = 1 - (1 - 1 / 257) * (1 - 16 / 257)
    chance = zero + (1 - zero) / 257
    words = [3, *[0] * 15, -2, *[0] * 272, 1]
    passed = verdicts([send(liar, words, i) for i in range(count)], proof).count(Verdict.VALID)
    assert abs(passed - count * chance) < 5 * math.sqrt(count * chance * (1 - chance)) < 40
