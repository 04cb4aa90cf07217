"""Two servers and reports with proofs: batches with liars, restarts, servers that lie."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from cases import each_case
from test_report_proofs import HELPER_SECRET, KEY, LEADER_KEY, NOW, drawn, lying, one_hot, proof_of

from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.errors import InvalidInputError
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.params import UnsafeParametersError
from fedtally.secagg.two_server import (
    BatchPolicy,
    BatchRefusedError,
    BatchState,
    Helper,
    Leader,
    MemoryJournal,
    Outcome,
    Report,
    make_report,
    servers,
)
from fedtally.secagg.two_server.proofs import ReportProof, Verdict
from fedtally.secagg.two_server.proven import make_proven_report
from fedtally.secagg.two_server.reports import Bound, Refused

PEOPLE = [SigningKey(Secret(drawn("person", i))) for i in range(12)]
ALLOWED = AllowList(sorted(person.public for person in PEOPLE))
POLICY = BatchPolicy(min_honest=2, corrupt=1)
ROUNDS = range(5, 7)
NOISE = 40


def plan(noise: int = 0) -> ReportProof:
    given = {"n_max": 12, "min_batch": 3, "corrupt": 1, "allow_list": ALLOWED.digest}
    return proof_of((8, 8, 5), **given, noise=noise)


PROOF = plan()
LIAR = lying(PROOF)
SIZE = PROOF.circuit.counters


def vector_of(i: int) -> Any:
    return one_hot(np.random.default_rng(i), PROOF.circuit)


def report(i: int, vector: Any = None, proof: ReportProof = PROOF, **fixed: bytes) -> Report:
    """Return a client's report, of random bytes that are given or its own."""
    order = iter(("nonce", "seed", "salt", "prove_seed"))

    def random(count: int) -> bytes:
        what = next(order)
        return fixed.get(what, drawn(what, i))[:count]

    return make_proven_report(
        proof,
        vector_of(i) if vector is None else vector,
        round=ROUNDS[i % 2],
        identity=PEOPLE[i],
        policy=POLICY,
        random=random,
        now=NOW,
    )


def lie(i: int, times: int = 5, proof: ReportProof = LIAR) -> Report:
    words = [*(times * vector_of(i)), *[1] * (proof.circuit.checksum + 1)]
    return report(i, words, proof)


class Pair:
    """Both servers, which can be started again."""

    def __init__(self, proof: ReportProof = PROOF) -> None:
        self.proof, self.journals = proof, (MemoryJournal(), MemoryJournal())
        rng = np.random.default_rng(9)
        self.drawn = rng.integers(-NOISE // 2, NOISE // 2 + 1, (2, SIZE))
        self.start_leader()
        self.start_helper()

    def _arguments(self, i: int) -> tuple[Any, ...]:
        noise = (lambda: self.drawn[i]) if self.proof.parameters.noise else None
        key = PrivateKey(Secret(HELPER_SECRET)) if i else LEADER_KEY
        return (self.proof, ROUNDS, ALLOWED, POLICY, self.journals[i], key, noise)

    def start_leader(self) -> None:
        self.leader = Leader(*self._arguments(0))

    def start_helper(self) -> None:
        self.helper = Helper(*self._arguments(1))

    def receive(self, *reports: Report) -> None:
        for each in reports:
            got = self.helper.receive(each.helper, NOW), self.leader.receive(each.leader, NOW)
            assert got == (Outcome.ACCEPTED, Outcome.ACCEPTED)

    def judge(self) -> None:
        for frame in self.helper.checks():
            self.leader.judge(frame)

    def total(self) -> Any:
        self.leader.stop()
        return self.leader.finish(self.helper.answer(self.leader.query(self.helper.offer())))


def key_of(i: int) -> bytes:
    return PEOPLE[i].public


# ---- liars ----


@each_case("noise", [0, NOISE])
def test_liars_are_refused_by_name_at_nobody_elses_cost(noise):
    proof = plan(noise)
    pair, liar = Pair(proof), lying(proof)
    honest = range(6)
    pair.receive(*(report(i, proof=proof) for i in honest))
    pair.receive(lie(6, proof=liar), lie(7, -1, proof=liar))  # the second is valid: minus an item
    two = report(8, proof=proof), report(8, vector_of(1), proof, seed=drawn("other seed"))
    pair.receive(Report(two[0].leader, two[1].helper))
    pair.judge()
    expected = [Refused(key_of(6), Verdict.INVALID), Refused(key_of(8), Verdict.INCONSISTENT)]
    assert sorted(pair.leader.refused) == sorted(expected)
    total = sum(vector_of(i) for i in honest) - vector_of(7)
    total = total + (pair.drawn.sum(0) if noise else 0)
    assert pair.total().tolist() == total.tolist()
    assert pair.leader.count == 7 and pair.leader.state is BatchState.DONE


def test_a_source_that_draws_nothing_opens_nothing():
    pair = Pair(proof := plan(NOISE))
    pair.receive(*(report(i, proof=proof) for i in range(4)))
    pair.judge()
    pair.leader.stop()
    drawn, pair.drawn = pair.drawn, (None, None)
    with pytest.raises(InvalidInputError, match="noise must be given"):
        pair.leader.query(pair.helper.offer())
    pair.drawn = (drawn[0], None)
    query = pair.leader.query(pair.helper.offer())
    with pytest.raises(InvalidInputError, match="noise must be given"):
        pair.helper.answer(query)


def test_liars_do_not_stop_a_batch_of_min_batch_honest_reports():
    """They do not fill it, and do not count for it."""
    pair = Pair()
    lies = [lie(i) for i in range(2, 11)]
    pair.receive(report(0), report(1), *lies)
    pair.judge()
    pair.leader.stop()
    with pytest.raises(BatchRefusedError, match="must have 3 .. 12 reports that both .* got 2"):
        pair.leader.query(pair.helper.offer())
    pair.receive(*lies)  # copies change nothing
    pair.judge()
    assert (len(pair.leader), len(pair.helper)) == (2, 11)
    pair.receive(report(11))
    pair.judge()
    assert len(pair.leader.refused) == 9
    assert pair.total().tolist() == (vector_of(0) + vector_of(1) + vector_of(11)).tolist()


def test_reports_that_were_not_judged_are_in_no_batch():
    pair = Pair()
    pair.receive(*(report(i) for i in range(3)))
    pair.judge()
    pair.receive(report(3), lie(4))
    assert pair.total().tolist() == sum(vector_of(i) for i in range(3)).tolist()


def test_checks_of_reports_that_the_leader_gets_later_are_asked_for_again():
    pair = Pair()
    reports = [report(i) for i in range(4)]
    for each in reports:
        pair.helper.receive(each.helper, NOW)
    pair.judge()
    assert pair.leader.refused == () and len(pair.leader) == 0
    for each in reports:
        pair.leader.receive(each.leader, NOW)
    pair.judge()
    assert pair.total().tolist() == sum(vector_of(i) for i in range(4)).tolist()


def test_a_client_that_says_something_else_gets_an_error():
    with pytest.raises(UnsafeParametersError, match="by this policy"):
        make_proven_report(
            PROOF,
            vector_of(0),
            round=5,
            identity=PEOPLE[0],
            policy=BatchPolicy(min_honest=9),
            random=lambda _: pytest.fail("drawn"),
            now=NOW,
        )
    with pytest.raises(InvalidInputError, match="identity must be the SigningKey"):
        make_proven_report(
            PROOF, vector_of(0), round=5, identity=key_of(0), policy=POLICY, random=bytes, now=NOW
        )
    with pytest.raises(InvalidInputError, match="row 0 of the vector must have one entry"):
        report(0, 2 * vector_of(0))


def test_a_policy_that_demands_proofs_takes_no_other_reports():
    policy = BatchPolicy(min_honest=2, corrupt=1, validity="proofs")
    made = {"round": 5, "identity": PEOPLE[0], "policy": policy, "random": bytes, "now": NOW}
    with pytest.raises(UnsafeParametersError, match="validity must be proofs by this policy"):
        make_report(PROOF.parameters, vector_of(0), **made)
    plain = ROUNDS, ALLOWED, policy, MemoryJournal()
    for server, key in ((Leader, LEADER_KEY), (Helper, KEY)):
        with pytest.raises(UnsafeParametersError, match="ask for a plan with validity='proofs'"):
            server(PROOF.parameters, *plain, key)
    assert make_proven_report(PROOF, vector_of(0), **made)
    assert len(Leader(PROOF, *plain, LEADER_KEY)) == 0
    assert len(Helper(PROOF, ROUNDS, ALLOWED, policy, MemoryJournal(), KEY)) == 0
    with pytest.raises(InvalidInputError, match="validity must be none or proofs, got 'prove'"):
        BatchPolicy(min_honest=2, validity="prove")


# ---- what a server takes ----


def test_a_changed_frame_is_refused():
    made = report(0)
    for name, ends in (
        ("leader", (40, 48, 64, 68, 100, 108, 140, 204, 236, 252 + PROOF.words_bytes, -1)),
        ("helper", (40, 48, 64, 68, 100, 108, 140, 204, 284, -1)),
    ):
        frame = getattr(made, name)
        for end in ends:
            changed = bytearray(frame)
            changed[end - 1 if end > 0 else end] ^= 1
            pair = Pair()
            got = getattr(pair, name).receive(bytes(changed), NOW)
            wrong = {40: Outcome.MALFORMED, 48: Outcome.MALFORMED}
            wrong |= {68: Outcome.OTHER_ROUND, 100: Outcome.UNKNOWN_IDENTITY}
            assert got is wrong.get(end, Outcome.FORGED), (name, end)
            assert getattr(pair, name).receive(frame, NOW) is Outcome.ACCEPTED
        assert getattr(pair, name).receive(frame + b"0", NOW) is Outcome.MALFORMED


def test_a_report_that_cannot_be_read_does_not_keep_the_right_one_out(monkeypatch):
    pair, right = Pair(), report(0)
    field = type(PROOF.circuit.field)
    with monkeypatch.context() as broken:
        encode = field.encode

        def large(self: Any, values: Any) -> bytes:
            return b"\xff\xff" + encode(self, values)[2:]  # signed, and no word

        broken.setattr(field, "encode", large)
        wrong = report(0)
    assert pair.leader.receive(wrong.leader, NOW) is Outcome.UNREADABLE
    with monkeypatch.context() as broken:
        broken.setattr("fedtally.crypto.hpke.seal", lambda *_: b"\x09" + bytes(79))
        sealed = report(0)
    assert pair.helper.receive(sealed.helper, NOW) is Outcome.UNREADABLE
    pair.receive(right)
    again = report(0, seed=drawn("another seed"), nonce=drawn("another nonce"))
    assert pair.leader.receive(again.leader, NOW) is Outcome.SECOND_REPORT
    assert pair.helper.receive(again.helper, NOW) is Outcome.SECOND_REPORT


def test_of_two_reports_of_one_id_one_is_taken(monkeypatch):
    """Two clients can find them. A lie must not be counted by the verdict on an honest report."""
    id_of = Bound.id.fget
    two = {key_of(2), key_of(3)}
    monkeypatch.setattr(
        Bound, "id", property(lambda one: bytes(16) if one.identity in two else id_of(one))
    )
    pair, right, false = Pair(), [report(i) for i in range(3)], lie(3, 2)
    pair.receive(*right)
    pair.judge()

    def refuse() -> None:
        assert pair.leader.receive(false.leader, NOW) is Outcome.SECOND_REPORT
        assert pair.helper.receive(false.helper, NOW) is Outcome.SECOND_REPORT

    refuse()
    pair.start_helper()  # it comes first now
    refuse()
    pair.receive(*right)
    pair.judge()
    assert pair.total().tolist() == sum(vector_of(i) for i in range(3)).tolist()


def test_of_two_reports_of_one_id_each_server_takes_another(monkeypatch):
    monkeypatch.setattr(Bound, "id", property(lambda one: bytes(16)))
    pair, right, false = Pair(), report(2), lie(3, 2)
    assert pair.leader.receive(right.leader, NOW) is Outcome.ACCEPTED
    assert pair.helper.receive(false.helper, NOW) is Outcome.ACCEPTED
    pair.judge()
    assert pair.leader.refused == (Refused(key_of(2), Verdict.INCONSISTENT),)


def test_reports_with_and_without_a_proof_do_not_mix():
    plain = PROOF.parameters, ROUNDS, ALLOWED, POLICY, MemoryJournal()
    made = report(0)
    assert Leader(*plain, LEADER_KEY).receive(made.leader, NOW) is Outcome.MALFORMED
    assert Helper(*plain, KEY).receive(made.helper, NOW) is Outcome.MALFORMED


def test_the_bytes_of_frames():
    made, pair = report(0), Pair()
    assert len(made.leader) == 284 + PROOF.words_bytes + PROOF.proof_bytes
    assert len(made.helper) == 316
    pair.receive(*(report(i) for i in range(3)))
    (frame,) = pair.helper.checks()
    assert len(frame) == 60 + 3 * (16 + PROOF.check_bytes)
    pair.judge()
    pair.leader.stop()
    answer = pair.helper.answer(pair.leader.query(pair.helper.offer()))
    assert len(answer) == 80 + PROOF.sum_bytes


# ---- restarts ----


def test_a_helper_that_restarts_sends_the_same_checks():
    pair = Pair()
    reports = [report(0), report(1), report(2), lie(3)]
    pair.receive(*reports)
    checks = pair.helper.checks()
    for journal in (pair.journals[1], MemoryJournal()):  # its own, and one that was lost
        pair.journals = pair.journals[0], journal
        pair.start_helper()
        for each in reports[::-1]:
            assert pair.helper.receive(each.helper, NOW) is Outcome.ACCEPTED
        assert pair.helper.checks() == checks
    pair.judge()
    assert pair.leader.refused == (Refused(key_of(3), Verdict.INVALID),)
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    answer = pair.helper.answer(query)
    pair.start_helper()
    assert pair.helper.state is BatchState.DONE and pair.helper.answer(query) == answer
    with pytest.raises(LocalProtocolError, match="is done; reports are checked before"):
        pair.helper.checks()
    assert pair.leader.finish(answer).tolist() == sum(vector_of(i) for i in range(3)).tolist()


def test_a_leader_that_restarts_goes_on():
    pair = Pair()
    reports = [report(0), report(1), report(2), lie(3)]
    pair.receive(*reports)
    pair.judge()
    pair.start_leader()  # between Checks and Query: it has lost the reports
    for each in reports:
        assert pair.leader.receive(each.leader, NOW) is Outcome.ACCEPTED
    pair.leader.stop()
    with pytest.raises(BatchRefusedError, match="got 0"):
        pair.leader.query(pair.helper.offer())
    pair.judge()
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    pair.start_leader()  # between Query and Answer
    assert pair.leader.state is BatchState.WAITING and pair.leader.resume() == query
    with pytest.raises(LocalProtocolError, match="is waiting; reports are judged before"):
        pair.leader.judge(b"")
    answer = pair.helper.answer(query)
    pair.start_leader()
    total = sum(vector_of(i) for i in range(3)).tolist()
    assert pair.leader.finish(answer).tolist() == total
    pair.start_leader()
    assert pair.leader.finish(answer).tolist() == total


def test_keys_are_wiped_when_the_batch_is_answered():
    pair = Pair()
    pair.receive(*(report(i) for i in range(3)))
    pair.judge()
    held = list(pair.helper._held.values())
    pair.total()
    for share in held:
        for key in (share.mask_key, share.proof_mask_key):
            with pytest.raises(InvalidInputError, match="was wiped"):
                key.reveal()


# ---- a helper that lies ----


def test_checks_that_are_malformed_decide_nothing(monkeypatch):
    pair = Pair()
    pair.receive(*(report(i) for i in range(3)), lie(3))
    (frame,) = pair.helper.checks()
    body, size = frame[48:], 16 + PROOF.check_bytes
    entries = [body[12 + i * size :][:size] for i in range(4)]

    def framed(
        *entries: bytes, rounds: tuple[int, int] = (5, 6), count: int | None = None
    ) -> bytes:
        made = struct.pack("<III", *rounds, len(entries) if count is None else count)
        made += b"".join(entries)
        return frame[:44] + struct.pack("<I", len(made)) + made

    assert framed(*entries) == frame
    large = entries[0][:-2] + b"\xff\xff"
    for message, wrong in (
        ("no checks of these", frame[:-1]),
        ("no checks of these", frame[:4] + b"\x02" + frame[5:]),
        ("no checks of these", frame[:8] + bytes(32) + frame[40:]),
        ("no checks of these", frame[:44] + struct.pack("<I", 11) + frame[48:59]),
        ("checks are malformed", framed(*entries, count=5)),
        ("checks are malformed", framed(*entries[:3], entries[3][1:])),
        ("checks are malformed", framed(*entries[::-1])),
        ("checks are malformed", framed(entries[0], *entries)),
        ("checks are of rounds 5 .. 7, not 5 .. 6", framed(*entries, rounds=(5, 7))),
        ("cannot be read: every word must be below 64513", framed(large, *entries[1:])),
    ):
        with pytest.raises(BatchRefusedError, match=message):
            pair.leader.judge(wrong)
        assert pair.leader.refused == () and not pair.leader._added
    pair.leader.judge(framed())
    pair.leader.judge(frame)
    assert pair.leader.refused == (Refused(key_of(3), Verdict.INVALID),)
    # of what is decided, another check is not looked at
    other = [entry[:16] + bytes(PROOF.check_bytes) for entry in entries]
    pair.leader.judge(framed(*other))
    pair.leader.judge(framed(large))
    assert len(pair.leader.refused) == 1
    assert pair.total().tolist() == sum(vector_of(i) for i in range(3)).tolist()
    monkeypatch.setattr(servers, "CHECKS_OF_A_FRAME", 2)
    pair = Pair()
    pair.receive(*(report(i) for i in range(3)))
    assert [len(each) for each in pair.helper.checks()] == [60 + 2 * size, 60 + size]
    pair.judge()
    with pytest.raises(BatchRefusedError, match="no checks of these"):
        pair.leader.judge(frame)  # four of them
    assert pair.total().tolist() == sum(vector_of(i) for i in range(3)).tolist()


def test_an_answer_that_cannot_be_right_costs_the_batch():
    pair = Pair()
    pair.receive(*(report(i) for i in range(3)))
    pair.judge()
    pair.leader.stop()
    answer = pair.helper.answer(pair.leader.query(pair.helper.offer()))
    with pytest.raises(BatchRefusedError, match="answer cannot be read: every word must be below"):
        pair.leader.finish(answer[:-2] + b"\xff\xff")
    with pytest.raises(BatchRefusedError, match="no answer to the query"):
        pair.leader.finish(answer[:-2])
    changed = bytearray(answer)
    changed[81] ^= 64  # a counter: by 2^14
    with pytest.raises(BatchRefusedError, match="this batch is lost"):
        pair.leader.finish(bytes(changed))
    assert pair.leader.state is BatchState.ABORTED
