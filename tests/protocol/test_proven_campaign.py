"""Campaigns whose clients prove their reports to two servers: liars, noise, restarts, results."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from secagg_cohort import left_behind
from test_report_proofs import lying

import fedtally
from fedtally.answer import documents, page, sections
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.server import FrequencyServer, RejectedSumError
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan import bill as bills
from fedtally.plan.request import Request
from fedtally.privacy.mechanism import Noise
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import TwoServerConfig, why_no_proofs, with_proofs
from fedtally.secagg.messages import LocalProtocolError
from fedtally.secagg.two_server import Refused, Validity, Verdict
from fedtally.sketch import CountSketch

N, LIARS = 40, (7, 31)  # 5 % of the reports are wrong
DOMAIN = IntegerRange(1, 500)
NOISES: dict[str, dict[str, Any]] = {
    "none": {},
    "distributed": {"epsilon": 4.0},
    "central": {"epsilon": 4.0, "trust": "central"},
}


def stream(*name: object) -> Callable[[int], bytes]:
    state = hashlib.shake_256(repr(name).encode())
    at = 0

    def draw(count: int) -> bytes:
        nonlocal at
        at += count
        return state.digest(at)[-count:]

    return draw


KEY = PrivateKey(Secret(stream("helper")(32)))
LEADER_KEY = PrivateKey(Secret(stream("leader key")(32)))
NOW = 1_700_000_000
PEOPLE = [SigningKey(Secret(stream("person", i)(32))) for i in range(N)]
ALLOWED = AllowList(sorted(person.public for person in PEOPLE))
POLICY = two_server.BatchPolicy(min_honest=2)


def plan_of(**options: Any) -> Plan:
    """Return a published plan of one round, as the local engine makes it."""
    asked: dict[str, Any] = {"domain": DOMAIN, "rows": 3, "width": 20, "secure_sum": "two-server"}
    asked |= {"max_dropout": 0.2} | options
    made = fedtally.estimate([1] * N, **asked, confidence=0, recovery="median").plan
    return made.without_keys().with_keys(
        leader_key=LEADER_KEY.public, helper_key=KEY.public, allow_list=ALLOWED.digest
    )


class Liar(FrequencyClient):
    """A client that reports what no item has, with the proof of an honest client."""

    lie: Any

    @classmethod
    def of(cls, plan: Plan, lie: Any) -> Liar:
        own = replace(plan)  # what it computes with is its own
        assert plan.report_proof is not None
        vars(own)["report_proof"] = lying(plan.report_proof)
        made = cls.of_ids(own, np.ones(1, np.uint64))
        made.lie = lie
        return made

    def contribution(self, round: int, random: Any = None) -> Any:
        counters = np.array(self.lie, np.int64)
        proof = self._plan.report_proof
        assert proof is not None
        return np.concatenate([counters, proof.circuit._endings[1]])


def item_of(i: int) -> list[int]:
    return [1 + i % 9]


def clients_of(plan: Plan) -> Iterator[FrequencyClient]:
    rng = np.random.default_rng(5)
    lies = [5 * CountSketch(plan.spec, 0).vector, rng.integers(0, 60_000, plan.vector_length)]
    lies[0][:2] = 1  # two items in a row, and none in the others
    for i in range(N):
        yield Liar.of(plan, lies.pop()) if i in LIARS else FrequencyClient(plan, DOMAIN, item_of(i))


class Pair:
    """Both servers of a plan, which can be started again, and the reports of all clients."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.server = plan, FrequencyServer(plan, MemoryBooks())
        self.journals = two_server.MemoryJournal(), two_server.MemoryJournal()
        self.random = stream("leader"), stream("helper")
        self.start()
        self.reports = [
            client.report(
                0,
                POLICY,
                journal=MemoryJournal(),
                identity=PEOPLE[i],
                random=stream("report", i),
                now=NOW,
            )
            for i, client in enumerate(clients_of(plan))
        ]

    def start(self) -> None:
        made = 0, POLICY, ALLOWED
        self.leader = self.server.leader(*made, self.journals[0], LEADER_KEY, random=self.random[0])
        self.helper = self.server.helper(*made, self.journals[1], KEY, random=self.random[1])

    def receive(self) -> None:
        for each in self.reports:
            self.helper.receive(each.helper, NOW)
            self.leader.receive(each.leader, NOW)

    def judge(self) -> None:
        for frame in self.helper.checks():
            self.leader.judge(frame)


def honest_sum(plan: Plan) -> CountSketch:
    sketch = CountSketch(plan.spec, 0)
    for i in range(N):
        if i not in LIARS:
            sketch.add(DOMAIN.encode(item_of(i)), num_clients=1)
    return sketch


EXPECTED = sorted(Refused(PEOPLE[i].public, Verdict.INVALID) for i in LIARS)


@pytest.mark.parametrize("noise", NOISES)
def test_a_batch_with_liars_lands_the_honest_sum_of_the_rest(
    noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit: with the noise of both servers, with an aggregator's, and without."""
    plan = plan_of(**NOISES[noise])
    drawn: list[Any] = []
    draw = Noise.draw

    def noted(self: Noise, *given: Any, **options: Any) -> Any:
        drawn.append(draw(self, *given, **options))
        return drawn[-1].copy()

    monkeypatch.setattr(Noise, "draw", noted)
    pair = Pair(plan)
    assert pair.leader._check.proof is not None
    pair.receive()
    assert len(pair.leader) == len(pair.helper) == N
    pair.judge()
    assert sorted(pair.leader.refused) == EXPECTED
    pair.leader.stop()
    total = pair.leader.finish(pair.helper.answer(pair.leader.query(pair.helper.offer())))
    assert len(drawn) == (2 if noise == "distributed" else 0)
    honest = honest_sum(plan).vector
    np.testing.assert_array_equal(total, honest + sum(drawn))
    pair.server.land_batch(pair.leader)
    [sketch] = pair.server.release(stream("release") if noise != "none" else None)
    assert len(drawn) == {"none": 0, "distributed": 2, "central": 1}[noise]
    noised = honest + sum(each.ravel()[: len(honest)] for each in drawn)
    np.testing.assert_array_equal(sketch.vector, noised)
    assert sketch.num_clients == N - len(LIARS)


@pytest.mark.parametrize("noise", ["none", "distributed"])
def test_servers_that_restart_at_any_step_land_the_same_and_name_the_same(noise: str) -> None:
    pair = Pair(plan_of(**NOISES[noise]))
    pair.receive()
    checks = pair.helper.checks()
    pair.start()  # before the checks are judged: the reports come again
    pair.receive()
    assert pair.helper.checks() == checks
    pair.judge()
    pair.start()  # between checks and query
    assert pair.leader.refused == ()
    pair.receive()
    pair.judge()
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    share = pair.leader._share
    pair.start()  # between query and answer: who was refused is in the journal
    assert sorted(pair.leader.refused) == EXPECTED and pair.leader.resume() == query
    pair.receive()  # the helper asks for them again; the leader is closed
    answer = pair.helper.answer(query)
    pair.start()  # between answer and landing
    assert pair.helper.answer(query) == answer and pair.leader._share == share
    total = pair.leader.finish(answer)
    pair.server.land_batch(pair.leader)
    with pytest.raises(two_server.BatchRefusedError, match="keeps the batch of another server"):
        pair.server.leader(0, POLICY, ALLOWED, pair.journals[1], LEADER_KEY, random=pair.random[0])
    pair.start()
    assert sorted(pair.leader.refused) == EXPECTED
    if noise == "none":
        np.testing.assert_array_equal(total, honest_sum(pair.plan).vector)
    pair.leader.finish(answer)
    with pytest.raises(LocalProtocolError, match="has landed"):
        pair.server.land_batch(pair.leader)


def test_of_two_processes_that_close_a_batch_both_name_the_refused_of_the_one_that_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the other one stopped after it had kept its own, and before its batch."""
    pair = Pair(plan_of())
    pair.receive()
    slow = pair.leader
    pair.start()
    pair.receive()
    pair.judge()
    fewer = pair.server.helper(0, POLICY, ALLOWED, two_server.MemoryJournal(), KEY)
    for i, each in enumerate(pair.reports):
        if i != LIARS[0]:
            fewer.receive(each.helper, NOW)
    for frame in fewer.checks():
        slow.judge(frame)
    assert len(slow.refused) == 1

    def full(name: bytes, value: bytes) -> bytes:
        if name.startswith(b"round"):
            raise OSError("the disk is full")
        return keep(name, value)

    keep = pair.journals[0].keep
    with monkeypatch.context() as broken:
        broken.setattr(pair.journals[0], "keep", full)
        slow.stop()
        with pytest.raises(OSError, match="the disk is full"):
            slow.query(fewer.offer())
    pair.leader.stop()
    query = pair.leader.query(pair.helper.offer())
    assert sorted(pair.leader.refused) == EXPECTED
    slow.stop()
    assert slow.query(fewer.offer()) == query
    assert sorted(slow.refused) == EXPECTED


def test_without_proofs_there_are_no_checks_and_nobody_is_refused() -> None:
    plan = plan_of(validity="none")
    server = FrequencyServer(plan)
    leader = server.leader(0, POLICY, ALLOWED, two_server.MemoryJournal(), LEADER_KEY)
    helper = server.helper(0, POLICY, ALLOWED, two_server.MemoryJournal(), KEY)
    assert (helper.checks(), leader.refused) == ([], ())
    with pytest.raises(LocalProtocolError, match="have no proofs, and no checks"):
        leader.judge(b"")


def test_a_plan_without_the_proofs_is_another_plan_and_its_reports_are_refused() -> None:
    """Whoever drops the proofs, and leaves the rest, gets no report of a client of the plan."""
    plan = plan_of()
    assert isinstance(plan.secure_sum, TwoServerConfig)
    bare = replace(plan, secure_sum=replace(plan.secure_sum, validity="none"))
    assert bare.fingerprint != plan.fingerprint and bare.report_proof is None
    with pytest.raises(InvalidInputError, match="its fingerprint does not match"):
        Plan.from_toml(plan.to_toml().replace('validity = "proofs"\n', ""))
    assert Plan.from_toml(plan.to_toml()) == plan and Plan.from_toml(bare.to_toml()) == bare
    sent = FrequencyClient(plan, DOMAIN, [3]).report(
        0, POLICY, journal=MemoryJournal(), identity=PEOPLE[0], random=stream("sent"), now=NOW
    )
    leader = FrequencyServer(bare).leader(
        0, POLICY, ALLOWED, two_server.MemoryJournal(), LEADER_KEY
    )
    assert leader.receive(sent.leader, NOW) is two_server.Outcome.MALFORMED
    with pytest.raises(InvalidInputError, match="must be proofs in a plan: leave the entry out"):
        Plan.from_dict(bare.to_dict() | {"secure_sum": bare.to_dict()["secure_sum"] | NONE})


NONE = {"validity": "none"}


def test_a_client_without_an_item_abstains_unseen_under_privacy() -> None:
    """Its report has the bytes of any other, and passes."""
    plan = plan_of(epsilon=4.0)
    assert plan.report_proof is not None and plan.report_proof.abstain
    assert not plan_of().report_proof.abstain  # type: ignore[union-attr]
    server = FrequencyServer(plan, MemoryBooks())
    leader = server.leader(
        0, POLICY, ALLOWED, two_server.MemoryJournal(), LEADER_KEY, random=stream("l")
    )
    helper = server.helper(0, POLICY, ALLOWED, two_server.MemoryJournal(), KEY, random=stream("h"))
    sizes = set()
    for i, items in enumerate(([], [7], [9999])):
        made = FrequencyClient(plan, DOMAIN, items).report(
            0,
            POLICY,
            journal=MemoryJournal(),
            identity=PEOPLE[i],
            random=stream("report", i),
            now=NOW,
        )
        sizes.add((len(made.helper), len(made.leader)))
        helper.receive(made.helper, NOW)
        leader.receive(made.leader, NOW)
    for frame in helper.checks():
        leader.judge(frame)
    assert (leader.refused, len(leader), len(sizes)) == ((), 3, 1)
    [(helpers, leaders)] = sizes
    assert helpers + leaders == plan.bytes_per_client


def test_a_client_that_lies_counts_once_in_each_release_and_can_be_in_all() -> None:
    """The limit that the page states: servers do not ask which other releases it is in."""
    plan = plan_of(num_rounds=2, schedule="fresh", max_dropout=0.6)
    server = FrequencyServer(plan)
    assert len(plan.releases) == 2
    journals = two_server.MemoryJournal(), two_server.MemoryJournal()
    for release, rounds in enumerate(plan.releases):
        leader = server.leader(release, POLICY, ALLOWED, journals[0], LEADER_KEY)
        helper = server.helper(release, POLICY, ALLOWED, journals[1], KEY)
        honest = range(1 + 12 * release, 13 + 12 * release)  # each is in one release
        for i, take in ((0, 0), (0, 1), *((i, 0) for i in honest)):
            made = FrequencyClient(plan, DOMAIN, [7 + i]).report(
                rounds.start,
                POLICY,
                journal=MemoryJournal(),  # who lies has a new one each time
                identity=PEOPLE[i],
                random=stream("report", release, i, take),
                now=NOW,
            )
            got = helper.receive(made.helper, NOW), leader.receive(made.leader, NOW)
            assert {str(each) for each in got} == {("accepted", "second report")[take]}
        for frame in helper.checks():
            leader.judge(frame)
        leader.stop()
        total = leader.finish(helper.answer(leader.query(helper.offer())))
        expected = CountSketch(plan.spec, rounds.start)
        expected.add(DOMAIN.encode([7 + i for i in (0, *honest)]), num_clients=13)
        np.testing.assert_array_equal(total, expected.vector)


def gone(*_: object) -> Any:
    raise OSError("the disk, or the source of randomness, is gone")


@pytest.mark.parametrize("noise", ["none", "distributed"])
def test_no_report_that_fails_leaves_the_items_behind(
    noise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools that log the variables of a traceback would show them."""
    client = FrequencyClient(plan_of(**NOISES[noise]), DOMAIN, [3])

    def error_of_report(after: int = 99) -> OSError:
        good, calls = stream("failing"), iter(range(after))
        with pytest.raises(OSError, match="is gone") as failed:
            client.report(
                0,
                POLICY,
                journal=MemoryJournal(),
                identity=PEOPLE[0],
                random=lambda count: good(count) if next(calls, None) is not None else gone(),
                now=NOW,
            )
        return failed.value

    for after in range(4):  # id, seed, salt, prove seed
        assert left_behind(error_of_report(after)) == []
    for what in (
        "fedtally.crypto.hpke.seal",
        "fedtally.secagg.two_server.proofs.mask_key",
        "fedtally.secagg.two_server.proofs._words_digest",
        "fedtally.secagg.two_server.proofs._proof_mask_key",
        "fedtally.flp.proof.FullyLinearProof.prove",
        "fedtally.crypto.keys.SigningKey.sign",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(what, gone)
            assert left_behind(error_of_report()) == [], what


def test_a_vector_that_has_no_proof_is_refused_without_a_trace() -> None:
    proof = plan_of().report_proof
    assert proof is not None
    vector = np.ones(proof.parameters.length, np.int64)
    with pytest.raises(InvalidInputError, match="row 0 of the vector must have one") as refused:
        proof.report(vector, round=0, identity=PEOPLE[0], random=stream("vector"), now=NOW)
    vector.fill(0)  # as `FrequencyClient.report` does
    assert left_behind(refused.value) == []


# ---- what a plan says ----


def config(**changed: Any) -> TwoServerConfig:
    values: dict[str, Any] = {"length": 60, "bits": 16, "n_max": N, "min_batch": 30, "corrupt": 2}
    return TwoServerConfig(**(values | {"validity": "proofs"} | changed))


@pytest.mark.parametrize(
    ("length", "message"),
    [(0, "length must be at least 1"), (2**40, "length must be at most"), (1.5, "an integer")],
)
def test_a_length_that_no_vector_has_is_refused(length: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        config(length=length)


def test_rows_of_another_length_are_refused() -> None:
    keys = {"leader_key": LEADER_KEY.public, "helper_key": KEY.public}
    terms = config(**keys, allow_list=bytes(32))
    assert terms.parameters(bytes(32), (20, 40), signed=True).widths == (20, 40)
    for widths in ((30, 29), (61,), ()):
        message = f"widths must sum to the length, 60, got {sum(widths)}"
        with pytest.raises(InvalidInputError, match=message):
            terms.parameters(bytes(32), widths, signed=True)
        with pytest.raises(InvalidInputError, match=message):
            terms.proof(terms.sizing, widths, abstain=False)


def test_the_bits_are_those_of_the_field_that_holds_the_sums() -> None:
    for clients, noise, bits, signed in (
        (32_256, 0, 16, True),
        (32_257, 0, 24, True),
        (30_000, 2_470, 24, True),
        (64_512, 0, 16, False),
        (64_513, 0, 24, False),
        (57_103, 2_470, 24, False),
    ):
        bare = config(n_max=clients, noise=noise, bits=32, validity="none")
        made = with_proofs(bare, signed=signed)
        assert (made.validity, made.bits) == (Validity.PROOFS, bits)
    # one client more, at the limit of p, is refused at 16 bits
    for changed in ({"n_max": 64_513, "bits": 16}, {"bits": 17}):
        with pytest.raises(InvalidInputError, match="bits must be"):
            config(**changed)
    # a larger field holds the sums, too; exact ones that are secret are below a fourth of p
    assert config(bits=24).modulus == 16_770_049
    for clients, bits in ((16_128, 16), (16_129, 24)):
        for signed in (True, False):
            bare = config(n_max=(2 - signed) * clients, bits=32, validity="none")
            made = with_proofs(bare, folds=True, signed=signed)
            assert made.bits == bits and made.modulus > 4 * clients
    with pytest.raises(InvalidInputError, match="a proof is of a client with one item, got 2"):
        config(largest_entry=2)
    with pytest.raises(InvalidInputError, match="validity must be none or proofs, got 'maybe'"):
        config(validity="maybe")
    bare = config(validity="none")
    with pytest.raises(InvalidInputError, match="these terms have no proofs"):
        bare.proof(bare.sizing, (60,), abstain=False)
    assert "no field of proofs holds such sums" in why_no_proofs(
        items=1, clients=N, noise=2**31, signed=True
    )


SIZES: dict[str, dict[str, Any]] = {"sketch": {"rows": 3, "width": 20}, "histogram": {}}


@pytest.mark.parametrize("encoding", SIZES)
def test_where_proofs_cannot_be_had_there_are_none_and_it_is_said(encoding: str) -> None:
    """Also in a histogram, where a client of two items adds no more than 1 to a counter."""
    asked: dict[str, Any] = {"max_items": 2, "clients": [i // 2 for i in range(N)]}
    asked |= {"domain": "range:1..50", "secure_sum": "two-server", "encoding": encoding}
    asked |= SIZES[encoding]
    result = fedtally.estimate([1, 2] * (N // 2), **asked)
    assert result.num_clients == N // 2
    assert result.plan.report_proof is None
    assert result.secure_sum["validity"] == "none" and "refused" not in result.secure_sum
    [note] = [note for note in result.warnings if "reports have no proofs" in note]
    assert "a proof is of one item a client, and here a client contributes up to 2" in note
    assert "reports have no proofs" in sections.trust.line(result.secure_sum, "client")
    with pytest.raises(InvalidInputError, match="validity cannot be proofs: a proof is of one it"):
        fedtally.estimate([1, 2] * (N // 2), **asked, validity="proofs")


@pytest.mark.parametrize("encoding", SIZES)
def test_a_plan_that_asks_for_proofs_that_it_cannot_have_is_refused(encoding: str) -> None:
    asked: dict[str, Any] = {"domain": DOMAIN, "secure_sum": "two-server", "encoding": encoding}
    plan = fedtally.estimate([1] * N, **asked, **SIZES[encoding], max_dropout=0.2).plan
    assert plan.report_proof is not None
    with pytest.raises(InvalidInputError, match="validity cannot be proofs: a proof is of one it"):
        replace(plan, max_items=2)


def test_a_client_that_takes_a_candidate_away_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a histogram an entry is +1: a -1 has no proof, and so stops nobody and moves nothing."""
    true, numbers = FrequencyClient.report, iter(range(N))

    def report(self: FrequencyClient, *given: Any, **named: Any) -> two_server.Report:
        at = next(numbers)
        if at == 3:  # nobody else holds the last candidate
            return true(Liar.of(self._plan, -np.eye(50)[49]), *given, **named)
        if at == 4:
            return true(Liar.of(self._plan, 2 * np.eye(50)[0]), *given, **named)
        return true(self, *given, **named)

    monkeypatch.setattr(FrequencyClient, "report", report)
    monkeypatch.setattr("fedtally.simulation.cohorts.Traffic.compare", lambda *_: None)
    result = fedtally.estimate(
        [1] * N,
        domain="range:1..50",
        encoding="histogram",
        secure_sum="two-server",
        max_dropout=0.3,
    )
    assert result.plan.report_proof is not None and result.secure_sum["refused"] == 2
    [sketch] = result.sketches
    assert sketch.counters[0].tolist() == [N - 2, *[0] * 49]
    said = f"2 of {N} reports were refused: their proofs do not show one +1. The sums are of"
    assert [note for note in result.warnings if note.startswith(said)]
    rows = " ".join(text for _, text in sections.trust.rows(result.plan, result.secure_sum))
    assert "each report has a proof" in rows and "-1" not in rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"validity": "proofs"}, "validity= goes with the secure sum two-server, got ideal"),
        ({"validity": "none", "secure_sum": "secagg"}, "two-server, got secagg"),
        ({"validity": "both", "secure_sum": "two-server"}, "must be none or proofs, got 'both'"),
        ({"validity": "none", "plan": True}, "a plan already says validity=: leave validity= out"),
    ],
)
def test_a_validity_that_does_not_go_with_the_rest_is_refused(
    options: dict[str, Any], message: str
) -> None:
    if "plan" in options:
        options = options | {"plan": plan_of()}
    with pytest.raises(InvalidInputError, match=message):
        Request(**options).resolve()


# ---- results ----


ITEMS = [1 + i % 9 for i in range(N)]


def result_with_liars(monkeypatch: pytest.MonkeyPatch, **options: Any) -> fedtally.Result:
    true, lied = FrequencyClient.report, iter(range(N))

    def report(self: FrequencyClient, *given: Any, **named: Any) -> two_server.Report:
        if next(lied) in (2, 5, 11):
            liar = Liar.of(self._plan, np.ones(self._plan.vector_length, np.int64))
            return true(liar, *given, **named)
        return true(self, *given, **named)

    monkeypatch.setattr(FrequencyClient, "report", report)
    asked = {"domain": DOMAIN, "rows": 3, "width": 20, "secure_sum": "two-server"} | options
    return fedtally.estimate(ITEMS, **asked, seed=1, max_dropout=0.2, evaluate=True)


@pytest.mark.extras  # its page is drawn
def test_a_result_says_how_many_reports_were_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    result = result_with_liars(monkeypatch)
    assert result.secure_sum["refused"] == 3 and result.secure_sum["survivors"] == N - 3
    assert result.secure_sum["equals_plain_sum"] is True and result.num_clients == N - 3
    said = f"3 of {N} reports were refused"
    assert any(note.startswith(said) for note in result.warnings)
    assert documents.of_result(result, result.top(1))["secure_sum"]["refused"] == 3
    rows = " ".join(text for _, text in sections.trust.rows(result.plan, result.secure_sum))
    assert f"{N - 3} of {N} clients in the sums, 3 reports refused, nobody dropped out" in rows
    assert "each report has a proof" in rows
    page.write_page(result, result.top(3), command="estimate", path=tmp_path / "page.html")
    assert said in (tmp_path / "page.html").read_text()
    result.save(tmp_path / "result.fedtally")
    loaded = fedtally.Result.load(tmp_path / "result.fedtally")
    assert any(note.startswith(said) for note in loaded.warnings)


def test_a_sum_that_keeps_a_refused_report_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader that lets such lies in gives no answer: no clients have this sum."""

    def take_all(self: two_server.ReportProof, shares: Any, checks: Any) -> list[Verdict]:
        return [Verdict.VALID for _ in shares]

    monkeypatch.setattr(two_server.ReportProof, "decide", take_all)
    with pytest.raises(RejectedSumError, match="a client sent something else than a sketch"):
        result_with_liars(monkeypatch)


@pytest.mark.parametrize("options", [{}, {"epsilon": 4.0, "not_private": True}, NONE])
def test_bytes_are_those_that_the_bill_foretells(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, with the checks: also of more reports than a frame of them has."""
    monkeypatch.setattr("fedtally.secagg.two_server.servers.CHECKS_OF_A_FRAME", 16)
    result = fedtally.estimate(
        [1] * N,
        domain=DOMAIN,
        rows=3,
        width=20,
        secure_sum="two-server",
        recovery="median",
        seed=3,
        **options,
    )
    plan, traffic = result.plan, result.secure_sum
    found = bills.bill(plan)
    assert found.upload_bytes == traffic["upload_bytes"] == plan.bytes_per_client
    [combining] = [stage for stage in found.stages if stage.stage == bills.COMBINING]
    assert combining.received_bytes == traffic["between_bytes"]


@pytest.mark.parametrize("options", [{}, NONE])
def test_simulated_parties_take_as_large_a_vector_and_batch_as_their_plan_has(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a policy allows by default."""
    defaults = two_server.BatchPolicy.__init__.__kwdefaults__
    for name in ("max_length", "max_clients"):
        monkeypatch.setitem(defaults, name, 2)
    result = fedtally.estimate(
        ITEMS, domain=DOMAIN, rows=3, width=20, secure_sum="two-server", **options
    )
    assert result.secure_sum["survivors"] == N
