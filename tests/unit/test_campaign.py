"""Sessions: what a client contributes, what a plan pins, and which sums land."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - to see that it is refused
import traceback
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secagg_cohort import NOW, done_leader, land_done, landed, left_behind, stream

from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import CohortRun, drive
from fedtally.campaign.server import FrequencyServer, RejectedSumError, _sum_of_sizes
from fedtally.crypto.hpke import PrivateKey
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import Dictionary, Domain, Grid, IntegerRange, IntegerSet, Strings
from fedtally.errors import IncompatibleError, InvalidInputError, OutsideDomainError
from fedtally.plan import Plan, Protection, modulus_bits
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.config import propose as propose_privacy
from fedtally.privacy.mechanism import Noise
from fedtally.privacy.policy import PrivacyPolicy, WeakPrivacyError
from fedtally.secagg import two_server
from fedtally.secagg.allow_list import AllowList
from fedtally.secagg.client import MemoryJournal, read_invite
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.messages import AbortCode, LocalProtocolError, Outcome, ServerState
from fedtally.secagg.params import Adversary, ClientPolicy, Parameters, UnsafeParametersError
from fedtally.secagg.proposal import propose
from fedtally.secagg.server import Server
from fedtally.sketch import CountSketch, Schedule
from fedtally.store import ClientRecord, Journal, StoreError

DOMAIN = IntegerRange(1, 50)
DOMAINS: dict[str, Domain] = {
    "range": DOMAIN,
    "integers": IntegerSet([1, 2], public=True),
    "dictionary": Dictionary(["tea", "coffee"]),
    "strings": Strings(["tea", "coffee"], bytes(32), public=True),
    "grid": Grid(0, 1, 0, 1, 0.5),
}
ROWS, WIDTH, N = 3, 16, 12
SERVER_KEY = SigningKey(Secret(stream("server")(32)))
HELPER_KEY = PrivateKey(Secret(stream("helper")(32)))
LEADER_KEY = PrivateKey(Secret(stream("leader key")(32)))
PEOPLE = sorted(
    (SigningKey(Secret(stream(("person", i))(32))) for i in range(N)), key=lambda key: key.public
)
ALLOWED = AllowList(person.public for person in PEOPLE)


def plan_of(terms: Any = None, **changed: Any) -> Plan:
    values: dict[str, Any] = {
        "rows": ROWS,
        "width": WIDTH,
        "schedule": "hybrid",
        "num_rounds": 2,
        "num_clients": 2 * N,
        "max_round_clients": N,
        "domain": DOMAIN.describe(),
        "max_items": 1,
        "seed": bytes(range(32)),
    }
    return Plan(**(values | changed), secure_sum=terms)


def secagg(adversary: str = "semi-honest", **changed: Any) -> SecAggConfig:
    values = {"length": ROWS * WIDTH, "bits": 8, "corrupt": 1, "max_dropout": 0.2} | changed
    parameters = propose(N, adversary=adversary, **values)
    listed = ALLOWED.digest if adversary == "active" else None
    return SecAggConfig(parameters=parameters, server_key=SERVER_KEY.public, allow_list=listed)


def two_servers(**changed: Any) -> TwoServerConfig:
    values: dict[str, Any] = {
        "length": ROWS * WIDTH,
        "bits": 8,
        "n_max": N,
        "min_batch": 6,
        "corrupt": 1,
        "leader_key": LEADER_KEY.public,
        "helper_key": HELPER_KEY.public,
        "allow_list": ALLOWED.digest,
    }
    return TwoServerConfig(**(values | changed))


def items(i: int) -> list[int]:
    return [1 + i % 4]


def plain(plan: Plan, round: int, who: list[int]) -> CountSketch:
    sketch = CountSketch(plan.spec, round)
    for i in who:
        sketch.add(DOMAIN.encode(items(i)), num_clients=1)
    return sketch


def open_session(
    plan: Plan,
    round: int,
    adversary: str = "semi-honest",
    server: FrequencyServer | None = None,
    **changed: Any,
) -> Server:
    values: dict[str, Any] = {
        "session": stream(("session", round))(32),
        "signing_key": SERVER_KEY,
        "salt": bytes(32),
        "random": stream("server"),
        "not_before": NOW,
        "not_after": NOW + 60,
        "allow_list": ALLOWED if adversary == "active" else None,
    }
    return (server or server_of(plan)).open(round, **(values | changed))


def server_of(plan: Plan) -> FrequencyServer:
    return FrequencyServer(plan, MemoryBooks())


@pytest.mark.parametrize("adversary", Adversary)
def test_rounds_of_cohorts_land_as_the_sketches_of_their_survivors(adversary: Adversary) -> None:
    plan = plan_of(secagg(adversary), num_clients=3 * N, max_round_clients=2 * N)
    server = FrequencyServer(plan)
    for round, cohort in ((1, 0), (0, 1), (1, 2)):
        session = server.open(
            round,
            session=stream(("session", cohort))(32),
            signing_key=SERVER_KEY,
            salt=bytes(32),
            random=stream(("server", cohort)),
            not_before=NOW,
            not_after=NOW + 60,
            allow_list=ALLOWED if adversary is Adversary.ACTIVE else None,
        )
        clients = [
            FrequencyClient(plan, DOMAIN, items(i)).join(
                round,
                ClientPolicy(adversary=adversary, min_honest=2),
                journal=MemoryJournal(),
                random=stream((cohort, i)),
                identity=PEOPLE[i] if adversary is Adversary.ACTIVE else None,
                allow_list=ALLOWED if adversary is Adversary.ACTIVE else None,
            )
            for i in range(N)
        ]

        def ask(
            i: Any, frame: bytes, session: Server = session, clients: list[Any] = clients
        ) -> bytes | None:
            gone = i == 5 and session.state is ServerState.COLLECT
            return None if gone else clients[i].receive(frame, NOW)

        drive(CohortRun(session, range(N)), ask, NOW)
        server.land(session)
        with pytest.raises(LocalProtocolError, match="has landed"):
            server.land(session)
    survivors = [i for i in range(N) if i != 5]
    for sketch, times in zip(server.release(), (1, 2), strict=True):
        expected = plain(plan, sketch.round, survivors * times)
        np.testing.assert_array_equal(sketch.counters, expected.counters)
        assert sketch.num_clients == expected.num_clients


def sent(
    plan: Plan,
    policy: two_server.BatchPolicy,
    person: int,
    leader: two_server.Leader,
    helper: two_server.Helper,
) -> None:
    """Have a person report in the second round, to both servers."""
    report = FrequencyClient(plan, DOMAIN, items(person)).report(
        1,
        policy,
        journal=MemoryJournal(),
        identity=PEOPLE[person],
        random=stream(("report", person)),
        now=NOW,
    )
    helper.receive(report.helper, NOW)  # the helper first, as a client must
    leader.receive(report.leader, NOW)


def test_two_servers_land_the_sketches_of_who_reported() -> None:
    plan = plan_of(two_servers())
    server, policy = FrequencyServer(plan), two_server.BatchPolicy(min_honest=2)
    leader = server.leader(1, policy, ALLOWED, two_server.MemoryJournal(), LEADER_KEY)
    helper = server.helper(1, policy, ALLOWED, two_server.MemoryJournal(), HELPER_KEY)
    for i in range(8):
        sent(plan, policy, i, leader, helper)
    with pytest.raises(LocalProtocolError, match="this batch has no sum: it is collecting"):
        server.land_batch(leader)
    leader.stop()
    answer = helper.answer(leader.query(helper.offer()))
    with pytest.raises(LocalProtocolError, match="this batch has no sum: it is waiting"):
        server.land_batch(leader)
    leader.finish(answer).fill(0)  # what the caller does to its array does not land
    leader.total.fill(0)
    server.land_batch(leader)
    with pytest.raises(LocalProtocolError, match="round 1 has landed"):
        server.land_batch(leader)
    [sketch] = server.release()
    np.testing.assert_array_equal(sketch.counters, plain(plan, 1, list(range(8))).counters)
    assert sketch.noise is None
    with pytest.raises(InvalidInputError, match="the batch is of another plan"):
        FrequencyServer(plan_of(two_servers(), seed=bytes(32))).land_batch(leader)


def test_a_batch_of_a_leader_that_was_made_elsewhere_does_not_land() -> None:
    """Whoever makes a leader without the server gives it any noise, or none."""
    plan = plan_of(two_servers())
    leader = done_leader(plan, plain(plan, 0, list(range(6))).counters.reshape(-1), 6)
    with pytest.raises(InvalidInputError, match="this leader was made elsewhere"):
        FrequencyServer(plan).land_batch(leader)


def test_a_session_of_other_parameters_does_not_land() -> None:
    """One that names the plan, and may have fewer clients than the plan's noise counts on."""
    for plan in (plan_of(secagg()), private(secagg())):
        server, session = server_of(plan), open_session(plan, 0)
        outcome = Outcome(np.zeros(ROWS * WIDTH, np.int64), np.ones(N, np.bool_), bytes(32))
        fewer = session.terms._replace(
            parameters=replace(session.terms.parameters, length=ROWS * WIDTH - 1)
        )
        for terms in (fewer, session.terms._replace(allow_list=bytes([1]) * 32)):
            other = Server(
                terms.parameters,
                session=bytes(32),
                signing_key=SERVER_KEY,
                fingerprint=terms.fingerprint,
                round=0,
                not_before=NOW,
                not_after=NOW + 60,
                salt=bytes(32),
                random=stream("server"),
            )
            other.outcome, other.state = outcome, ServerState.DONE
            other._alive, other._terms = outcome.alive, terms
            with pytest.raises(InvalidInputError, match="this session was made elsewhere"):
                server.land(other)
            for check in (server._check_own, server._reserve_session):
                with pytest.raises(InvalidInputError, match="the session is of another plan"):
                    check(other)
            if terms is fewer:  # that of another list cannot be read at all
                other.outcome, other.state, other._alive = (
                    None,
                    ServerState.ADVERTISE,
                    np.zeros(0, np.bool_),
                )
                with pytest.raises(InvalidInputError, match="the session is of another plan"):
                    server.restore(other.checkpoint(), random=stream("server"))
        assert landed(server) == []


def noise_bound(privacy: PrivacyConfig, counters: int, clients: int) -> int:
    """Return the most that noise adds to a counter of a secure sum of so many clients."""
    added = Protection(privacy, Schedule.parse("shared"), 1, has_secure_sum=True)
    return added.bound(counters, clients)


@pytest.mark.parametrize(("epsilon", "is_small"), [(4.0, True), (0.5, False)])
def test_two_servers_open_nothing_of_a_private_plan_without_its_noise(
    epsilon: float, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server's noise hides the sum from the other, so a small table is read in constant time."""
    terms = propose_privacy(
        epsilon=epsilon, delta=1e-6, rows=ROWS, width=WIDTH, trust="distributed", most_clients=N
    )
    tau = noise_bound(terms, ROWS * WIDTH, N)
    plan = plan_of(two_servers(noise=tau, bits=modulus_bits(N, 1, tau)), privacy=terms)
    server, policy = server_of(plan), two_server.BatchPolicy(min_honest=2)
    arguments = 1, policy, ALLOWED, two_server.MemoryJournal()
    for make in (
        lambda: server.leader(*arguments, LEADER_KEY),
        lambda: server.helper(*arguments, HELPER_KEY),
    ):
        with pytest.raises(
            InvalidInputError, match="each server adds the plan's noise before a sum is opened"
        ):
            make()
    drawn: list[Any] = []
    draw = Noise.draw

    def noted(self: Noise, key: Secret, count: int, **options: Any) -> Any:
        assert self.variance == terms.event.noise_variance
        assert self.is_small is is_small and options == {"constant_time": is_small}
        drawn.append(draw(self, key, count, **options))
        return drawn[-1].copy()

    monkeypatch.setattr(Noise, "draw", noted)
    leader = server.leader(
        1, policy, ALLOWED, two_server.MemoryJournal(), LEADER_KEY, random=stream("leader")
    )
    helper = server.helper(
        1, policy, ALLOWED, two_server.MemoryJournal(), HELPER_KEY, random=stream("helper")
    )
    for i in range(8):
        sent(plan, policy, i, leader, helper)
    assert drawn == []
    leader.stop()
    total = leader.finish(helper.answer(leader.query(helper.offer())))
    assert len(drawn) == 2 and not np.array_equal(*drawn)
    np.testing.assert_array_equal(
        total - sum(drawn), plain(plan, 1, list(range(8))).counters.reshape(-1)
    )


@pytest.mark.parametrize(("epsilon", "is_small"), [(8.0, True), (0.05, False)])
def test_a_small_table_of_shares_is_read_in_constant_time(
    epsilon: float, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever times a client could else subtract its share; a large table would take too long."""
    privacy = propose_privacy(**(SHARES | {"epsilon": epsilon}))
    bits = modulus_bits(N, 1, noise_bound(privacy, ROWS * WIDTH, N))
    plan = replace(plan_of(secagg(bits=bits)), privacy=privacy)
    draw = Noise.draw

    def noted(self: Noise, key: Secret, count: int, **options: Any) -> Any:
        asked.append((self.is_small, options))
        return draw(self, key, count, **options)

    asked: list[Any] = []
    monkeypatch.setattr(Noise, "draw", noted)
    FrequencyClient(plan, DOMAIN, items(0)).contribution(0, stream("client"))
    assert asked == [(is_small, {"constant_time": is_small})]


def test_a_batch_that_was_closed_without_the_plans_noise_does_not_land_after_a_restart() -> None:
    """A leader that somebody made without noise closed the batch; the server's own does not go on
    from its journal."""
    terms = propose_privacy(
        epsilon=4.0, delta=1e-6, rows=ROWS, width=WIDTH, trust="distributed", most_clients=N
    )
    tau = noise_bound(terms, ROWS * WIDTH, N)
    plan = plan_of(two_servers(noise=tau, bits=modulus_bits(N, 1, tau)), privacy=terms)
    server, policy = server_of(plan), two_server.BatchPolicy(min_honest=2)
    assert isinstance(plan.secure_sum, TwoServerConfig)
    parameters = plan.secure_sum.parameters(
        bytes.fromhex(plan.fingerprint), plan.spec.row_widths, signed=plan.encoding.is_signed
    )
    journals = two_server.MemoryJournal(), two_server.MemoryJournal()
    bare = two_server.Leader(
        parameters,
        plan.releases[1],
        ALLOWED,
        policy,
        journals[0],
        LEADER_KEY,
        lambda: np.zeros(ROWS * WIDTH, np.int64),
    )
    helper = server.helper(1, policy, ALLOWED, journals[1], HELPER_KEY, random=stream("helper"))
    for i in range(8):
        client = FrequencyClient(plan, DOMAIN, items(i))
        report = client.report(
            1,
            policy,
            journal=MemoryJournal(),
            identity=PEOPLE[i],
            random=stream(("report", i)),
            now=NOW,
        )
        bare.receive(report.leader, NOW)
        helper.receive(report.helper, NOW)
    # while the other one collects
    own = server.leader(1, policy, ALLOWED, journals[0], LEADER_KEY, random=stream("leader"))
    bare.stop()
    bare.finish(helper.answer(bare.query(helper.offer())))
    with pytest.raises(
        two_server.BatchRefusedError, match="has noise of another source, or of none"
    ):
        server.leader(1, policy, ALLOWED, journals[0], LEADER_KEY, random=stream("leader"))
    with pytest.raises(
        two_server.BatchRefusedError, match="has noise of another source, or of none"
    ):
        own._facts.record(b"", b"")
    again = two_server.Leader(
        parameters,
        plan.releases[1],
        ALLOWED,
        policy,
        journals[0],
        LEADER_KEY,
        lambda: np.zeros(ROWS * WIDTH, np.int64),
    )
    assert again.resume() == bare.resume()
    with pytest.raises(InvalidInputError, match="this leader was made elsewhere"):
        server.land_batch(bare)
    assert (
        server.helper(
            1, policy, ALLOWED, journals[1], HELPER_KEY, random=stream("helper")
        ).state.value
        == "done"
    )
    assert landed(server) == []


def test_items_are_reported_once() -> None:
    client, journal = FrequencyClient(plan_of(two_servers()), DOMAIN, [1]), MemoryJournal()
    options: dict[str, Any] = {"journal": journal, "identity": PEOPLE[0], "random": stream("once")}
    client.report(0, POLICY, **options, now=NOW)
    for round in (0, 1):
        with pytest.raises(
            LocalProtocolError, match="refuses these items: they are perhaps spent already"
        ):
            client.report(round, POLICY, **options, now=NOW)


def test_a_report_is_in_the_outbox_of_the_record_that_its_items_are_spent_in(
    tmp_path: Path,
) -> None:
    plan = plan_of(two_servers())
    record = ClientRecord.open(tmp_path / "client.db", create=True)
    client, journal = FrequencyClient(plan, DOMAIN, [1]), Journal(record, plan, 1, NOW)
    options: dict[str, Any] = {"journal": journal, "identity": PEOPLE[0], "random": stream("kept")}
    made = client.report(1, POLICY, **options, now=NOW)
    (kept,) = record.outbox()
    assert (kept.plan, kept.round, kept.time) == (plan.fingerprint, 1, NOW)
    assert kept.frames == {"helper": made.helper, "leader": made.leader}
    with pytest.raises(LocalProtocolError, match="refuses these items: .* took part in round 1"):
        client.report(1, POLICY, **options, now=NOW)
    assert [one.frames for one in record.outbox()] == [kept.frames]


def test_a_client_must_have_candidates_and_no_more_than_the_plan_allows() -> None:
    plan = plan_of(max_items=2)
    assert np.abs(FrequencyClient(plan, DOMAIN, [3, 3, 3]).contribution(0)).sum() == ROWS
    with pytest.raises(InvalidInputError, match="at most 2 distinct items by the plan, got 3"):
        FrequencyClient(plan, DOMAIN, [1, 2, 3])
    with pytest.raises(InvalidInputError, match="there is no item that the plan counts"):
        FrequencyClient.of_ids(plan, np.zeros(0, np.uint64))
    with pytest.raises(OutsideDomainError):
        FrequencyClient(plan, DOMAIN, [51])
    with pytest.raises(InvalidInputError, match="not the one that the plan describes"):
        FrequencyClient(plan, IntegerRange(1, 51), [1])
    for first in (1.0, True):  # equal to 1 in Python, and not in a fingerprint
        other = plan_of(domain=DOMAIN.describe() | {"first": first})
        with pytest.raises(InvalidInputError, match="not the one that the plan describes"):
            FrequencyClient(other, DOMAIN, [1])
    with pytest.raises(InvalidInputError, match="round must be at most 1"):
        FrequencyClient(plan, DOMAIN, [1]).contribution(2)


def test_a_client_draws_among_its_items_where_it_is_told_to() -> None:
    """Under a plan without privacy: by its randomness alone, and only among candidates."""
    plan = plan_of()
    alone = {i: tuple(FrequencyClient(plan, DOMAIN, [i]).contribution(0).tolist()) for i in (3, 7)}
    client = FrequencyClient(plan, DOMAIN, [3, 7, 51], bounded=True)
    seen = {tuple(client.contribution(0, stream(("draw", i))).tolist()) for i in range(30)}
    assert seen == set(alone.values())  # one of the two in all draws: a probability of 2^-29
    with pytest.raises(InvalidInputError, match="more than 1 items.*give `random`"):
        client.contribution(0)
    one = FrequencyClient(plan, DOMAIN, [3, 51], bounded=True)
    assert tuple(one.contribution(0).tolist()) == alone[3]
    with pytest.raises(InvalidInputError, match="there is no item that the plan counts"):
        FrequencyClient(plan, DOMAIN, [51], bounded=True)


def test_a_client_whose_draws_were_made_holds_what_it_contributes_alone() -> None:
    plan = plan_of()
    client = FrequencyClient(plan, DOMAIN, [3, 7], bounded=True)
    seen = set()
    for label in range(30):
        drawn = client.drawn(0, stream(("draw", label)))
        [item] = drawn._ids.tolist()
        seen.add(item)
        alone = FrequencyClient(plan, DOMAIN, DOMAIN.labels(DOMAIN.locate([item])))
        np.testing.assert_array_equal(drawn.contribution(0), alone.contribution(0))
    assert seen == {3, 7}  # one of the two in all draws: a probability of 2^-29


def private(terms: Any = None, **changed: Any) -> Plan:
    """Return a plan with privacy: central, or by shares where clients sum among themselves."""
    shares = isinstance(terms, SecAggConfig)
    asked: dict[str, Any] = {"epsilon": 8.0, "delta": 1e-6, "rows": ROWS, "width": WIDTH}
    asked |= (
        {"trust": "distributed", "honest_survivors": terms.honest_survivors, "most_clients": N}
        if shares
        else {}
    )
    privacy = propose_privacy(**asked, max_items=changed.get("max_items", 1))
    return replace(plan_of(None, **changed), secure_sum=terms, privacy=privacy)


SHARES: dict[str, Any] = {
    "epsilon": 8.0,
    "delta": 1e-6,
    "rows": ROWS,
    "width": WIDTH,
    "trust": "distributed",
    "honest_survivors": secagg().honest_survivors,
    "most_clients": N,
}


def test_under_privacy_nobody_stays_away_for_what_it_holds() -> None:
    """No item, none of the candidates, or too many: it takes part all the same."""
    plan = private(max_items=2)
    for held in ([], [51, 99], np.zeros(0, np.int64)):
        assert not FrequencyClient(plan, DOMAIN, held).contribution(0, stream("none")).any()
    assert (
        not FrequencyClient.of_ids(plan, np.zeros(0, np.uint64))
        .contribution(0, stream("none"))
        .any()
    )
    some = FrequencyClient(plan, DOMAIN, [51, 7, 7]).contribution(0, stream("one"))
    assert np.array_equal(some, FrequencyClient(plan, DOMAIN, [7]).contribution(0, stream("two")))
    seen = {
        FrequencyClient(plan, DOMAIN, [1, 2, 3, 4]).contribution(0, stream(i)).tobytes()
        for i in range(40)
    }
    pairs = [FrequencyClient(plan, DOMAIN, [a, b]) for a in range(1, 5) for b in range(1, a)]
    assert seen == {pair.contribution(0, stream("any")).tobytes() for pair in pairs}


def test_under_privacy_a_client_needs_randomness_and_keeps_the_clip() -> None:
    plan = private(max_items=5)
    with pytest.raises(InvalidInputError, match="give `random`"):
        FrequencyClient(plan, DOMAIN, [1]).contribution(0)
    assert plan.privacy is not None and plan.privacy.event.clip_norm is not None
    for i in range(50):
        vector = FrequencyClient(plan, DOMAIN, list(range(1, 51))).contribution(i % 2, stream(i))
        assert np.sum(vector**2) <= plan.privacy.event.clip_norm**2


def test_clients_add_their_shares() -> None:
    """The mean square of 4,800 draws, of a distribution with kurtosis below 10, within six standard
    deviations."""
    plan = private(secagg())
    assert plan.privacy is not None
    client = FrequencyClient(plan, DOMAIN, [3])
    sketch = CountSketch(plan.spec, 0)
    sketch.add(DOMAIN.encode([3]))
    item = sketch.counters.reshape(-1)
    noise = np.concatenate([client.contribution(0, stream(i)) - item for i in range(100)])
    share = plan.privacy.share()
    assert abs(np.mean(noise**2) / share.variance - 1) < 6 * np.sqrt(9 / len(noise))
    assert not np.array_equal(noise[:48], noise[48:96])
    assert np.array_equal(client.contribution(0, stream(1)), client.contribution(0, stream(1)))


def noised() -> Plan:
    """Return a plan of two servers that add noise, for clients of three items."""
    asked = {"rows": ROWS, "width": WIDTH, "trust": "distributed", "max_items": 3}
    privacy = propose_privacy(epsilon=8.0, delta=1e-6, **asked)  # type: ignore[arg-type]
    noise = noise_bound(privacy, ROWS * WIDTH, N)
    return replace(
        plan_of(None, max_items=3),
        secure_sum=two_servers(bits=16, largest_entry=3, noise=noise),
        privacy=privacy,
    )


NOISED = noised()


@pytest.mark.parametrize(("extra", "lands"), [(0, True), (1, False)])
def test_noise_has_room_in_what_may_land(extra: int, lands: bool) -> None:
    terms = two_servers(bits=16)
    privacy = propose_privacy(epsilon=1.0, delta=1e-6, rows=ROWS, width=WIDTH, trust="distributed")
    noise = noise_bound(privacy, ROWS * WIDTH, N)
    plan = replace(plan_of(None), secure_sum=replace(terms, noise=noise), privacy=privacy)
    total = np.zeros(ROWS * WIDTH, np.int64)
    total[0] = 6 + noise + extra
    server = server_of(plan)
    if lands:
        sketch = land_done(server, total, 6)
        assert sketch.counters.max() == total[0] and sketch.noise == ("servers", plan.fingerprint)
    else:
        with pytest.raises(
            RejectedSumError, match="6 clients of at most 1 items and their noise cannot exceed"
        ):
            land_done(server, total, 6)


def test_terms_need_room_for_the_noise() -> None:
    privacy = propose_privacy(epsilon=1.0, delta=1e-6, rows=ROWS, width=WIDTH, trust="distributed")
    with pytest.raises(
        InvalidInputError,
        match=r"secure_sum.noise must be [0-9]+, that of the plan's privacy, got 0",
    ):
        replace(plan_of(None), secure_sum=two_servers(bits=16), privacy=privacy)
    asked: dict[str, Any] = {
        "epsilon": 0.01,
        "delta": 1e-6,
        "rows": ROWS,
        "width": WIDTH,
        "trust": "distributed",
    }
    shares = propose_privacy(**asked, honest_survivors=secagg().honest_survivors, most_clients=N)
    with pytest.raises(InvalidInputError, match="and noise up to .* could overflow, got 8"):
        replace(plan_of(None), secure_sum=secagg(), privacy=shares)


def test_a_journal_takes_population_and_event_from_the_plan(tmp_path: Path) -> None:
    plan, record = private(secagg()), ClientRecord.open(tmp_path / "client.db", create=True)
    assert Journal(record, plan, 0, NOW).spend(bytes(32))
    assert not Journal(record, plan, 0, NOW).spend(bytes(32))
    second = Journal(record, plan, 1, NOW)
    assert not second.spend(bytes(32)) and "of 1 that it may" in second.refusal
    free = Journal(record, plan_of(secagg()), 1, NOW)
    assert free.spend(bytes(32))


def test_items_come_as_a_list_or_an_array() -> None:
    plan = private(max_items=2)
    for wrong in (7, None, {7}, "7", iter([7])):
        with pytest.raises(
            InvalidInputError, match="items must be a list, an array or a series, got"
        ):
            FrequencyClient(plan, DOMAIN, wrong)
    seven = FrequencyClient(plan, DOMAIN, [7]).contribution(0, bytes)
    assert np.array_equal(
        FrequencyClient(plan, DOMAIN, np.array([7.0, np.nan])).contribution(0, bytes), seven
    )


@pytest.mark.parametrize("privacy", [False, True])
@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("dictionary", np.array([["tea"], ["rice"]], object)),
        ("dictionary", np.array([[["tea"]]])),
        ("dictionary", np.array("tea")),
        ("dictionary", np.array([("tea",)], dtype=[("item", "U3")])),
        ("dictionary", pa.array([["tea"]])),
        ("dictionary", pa.table({"item": ["tea"]})),
        ("range", np.rec.array([(7,)], dtype=[("item", int)])),
        ("range", np.array([[7, 8]])),
        ("range", bytearray(b"\x07")),
        ("range", memoryview(b"\x07")),
        ("grid", np.array([0.1, 0.3])),
        ("grid", np.array([0, 1])),
        ("grid", np.array([0.1, np.nan])),
        ("grid", np.zeros((1, 3))),
        ("grid", np.zeros((1, 1, 2))),
    ],
)
def test_a_container_that_is_no_column_is_refused(kind: str, table: Any, privacy: bool) -> None:
    """Also under privacy, where it would be zeros: its form is the caller's, whatever a client
    holds."""
    check_no_column(kind, table, privacy)


@pytest.mark.parametrize("privacy", [False, True])
def test_a_data_frame_is_no_column(privacy: bool) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = pandas.DataFrame({"item": ["tea", "rice"], "lat": [0.1, 0.2], "lon": [0.3, 0.4]})
    for frame in (
        table[["item"]],
        table[["item"]].to_numpy(),
        table[[]],
        polars.DataFrame({"item": ["tea"]}),
    ):
        check_no_column("dictionary", frame, privacy)
    check_no_column("grid", table[["lat", "lon"]], privacy)


def check_no_column(kind: str, table: Any, privacy: bool) -> None:
    domain = DOMAINS[kind]
    plan = private(domain=domain.describe()) if privacy else plan_of(domain=domain.describe())
    with pytest.raises(
        InvalidInputError, match="items must be a list, an array or a series"
    ) as caught:
        FrequencyClient(plan, domain, table)
    assert "'tea'" not in str(caught.value) and "0.1" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "held"),
    [
        ("dictionary", [["tea"]]),
        ("dictionary", [["tea"], ["rice", "coffee"]]),
        ("dictionary", np.array([], object)),
        ("dictionary", np.array([])),
        ("dictionary", np.array([np.nan])),
        ("dictionary", np.array([7, 8])),
        ("dictionary", pa.array([None])),
        ("dictionary", pa.array([], pa.string())),
        ("dictionary", pa.array([b"\xff"]).cast(pa.string(), safe=False)),
        ("dictionary", pa.array([2**62], pa.timestamp("s"))),  # a year that Python has no date of
        ("grid", []),
        ("grid", [0.1, 0.3]),
        ("grid", [[0.1, 0.3, 0.5]]),
        ("grid", [[0.1], [0.1, 0.3, 0.5]]),
        ("grid", np.array([])),  # what NumPy makes of a list of no text
        ("grid", np.array([np.nan])),  # and of one that lacks its only text
        ("grid", np.array([None])),
        ("grid", np.array([0.1, None])),
        ("grid", np.array([["west", "east"]])),
        ("grid", np.array([["0.1", None]])),
        ("grid", np.zeros((0, 2))),
    ],
)
def test_under_privacy_no_value_of_a_column_is_refused(kind: str, held: Any) -> None:
    check_any_value(kind, held)


def test_under_privacy_no_value_of_a_series_is_refused() -> None:
    pandas = pytest.importorskip("pandas")
    check_any_value("dictionary", pandas.Series([["tea"], ["rice", "coffee"]]).to_numpy())
    check_any_value("grid", pandas.Series([0.1, 0.3]))


def check_any_value(kind: str, held: Any) -> None:
    domain = DOMAINS[kind]
    client = FrequencyClient(private(domain=domain.describe()), domain, held)
    assert not client.contribution(0, stream("any")).any()


@pytest.mark.parametrize("privacy", [False, True])
@pytest.mark.parametrize(
    ("kind", "column", "plain"),
    [
        ("dictionary", pa.array(["tea"]), ["tea"]),
        ("dictionary", pa.array(["tea"], pa.large_string()), ["tea"]),
        ("dictionary", pa.chunked_array([["tea"], [], ["coffee"]]), ["tea", "coffee"]),
        ("dictionary", pa.array(["tea", "tea"]).dictionary_encode(), ["tea"]),
        ("dictionary", pa.array([b"tea"]), ["tea"]),
        ("range", pa.array([7, 8], pa.uint8()), [7, 8]),
        ("grid", pa.array(["0.1,0.3"]), [(0.1, 0.3)]),
        ("grid", np.array([[0, 0]]), [(0, 0)]),
        ("grid", np.array([[0.1, 0.3]]), [(0.1, 0.3)]),
    ],
)
def test_arrow_columns_and_coordinates_are_taken(
    kind: str, column: Any, plain: list[Any], privacy: bool
) -> None:
    domain = DOMAINS[kind]
    described = {"domain": domain.describe(), "max_items": 2}
    plan = private(**described) if privacy else plan_of(**described)
    vector = FrequencyClient(plan, domain, column).contribution(0, stream("any"))
    assert np.array_equal(
        vector, FrequencyClient(plan, domain, plain).contribution(0, stream("any"))
    )
    assert vector.any()


def test_under_privacy_arrow_columns_may_hold_anything() -> None:
    """As of a list, each value is read by itself: one that is no candidate, or that Python has no
    object for."""
    plan = private(max_items=2)
    seven = FrequencyClient(plan, DOMAIN, [7]).contribution(0, bytes)
    for column in (
        pa.array([7, 99, None]),
        pa.array([7.0, 7.5]),
        pa.array(["7", "tea"]),
        pa.array([b"7", b"\xff"]),
    ):
        assert np.array_equal(FrequencyClient(plan, DOMAIN, column).contribution(0, bytes), seven)
    mixed = pa.chunked_array([pa.array([b"7", b"\xff"]).cast(pa.string(), safe=False)])
    assert np.array_equal(FrequencyClient(plan, DOMAIN, mixed).contribution(0, bytes), seven)


def test_a_journal_of_another_plan_is_refused(tmp_path: Path) -> None:
    plan, record = private(secagg()), ClientRecord.open(tmp_path / "client.db", create=True)
    other = Journal(record, private(secagg(), seed=bytes(32)), 0, NOW)
    policy = ClientPolicy(adversary=Adversary.SEMI_HONEST, min_honest=2)
    with pytest.raises(InvalidInputError, match="the journal is that of another plan"):
        FrequencyClient(plan, DOMAIN, [3]).join(0, policy, journal=other, random=stream("x"))
    assert record.participations(other.fingerprint) == []


def test_a_record_books_the_round_that_its_client_is_in(tmp_path: Path) -> None:
    """A client that may be in two rounds is asked twice into the sum of round 0."""
    plan = replace(private(secagg()), privacy=propose_privacy(**SHARES, participations=2))
    record = ClientRecord.open(tmp_path / "client.db", create=True)
    policy = ClientPolicy(adversary=Adversary.SEMI_HONEST, min_honest=2)
    me = FrequencyClient(plan, DOMAIN, [3])
    for booked, joined in ((1, 0), (0, 1)):
        with pytest.raises(
            InvalidInputError, match=f"journal is that of round {booked}, .* joins round {joined}"
        ):
            me.join(joined, policy, journal=Journal(record, plan, booked, NOW), random=stream("x"))
    client = me.join(1, policy, journal=Journal(record, plan, 1, NOW), random=stream("x"))
    client.receive(open_session(plan, 0).invite, NOW)
    assert (
        client.code is AbortCode.POLICY
        and "for round 0, and the client joined round 1" in client.reason
    )
    assert record.begin(open_session(plan, 0).session, NOW)  # the session was not recorded either
    assert record.participations(plan.fingerprint) == []
    for wrong in (-1, 2, 0.0, None):
        with pytest.raises(InvalidInputError, match="round must be"):
            me.join(wrong, policy, journal=MemoryJournal(), random=stream("x"))  # type: ignore[arg-type]


def test_a_record_books_the_round_that_is_reported(tmp_path: Path) -> None:
    plan = plan_of(two_servers())
    record = ClientRecord.open(tmp_path / "client.db", create=True)
    options: dict[str, Any] = {"identity": PEOPLE[0], "random": stream("report")}
    me = FrequencyClient(plan, DOMAIN, [3])
    with pytest.raises(InvalidInputError, match="journal is that of round 0, .* joins round 1"):
        me.report(1, POLICY, journal=Journal(record, plan, 0, NOW), **options, now=NOW)
    assert record.participations(plan.fingerprint) == []
    me.report(1, POLICY, journal=Journal(record, plan, 1, NOW), **options, now=NOW)
    assert record.participations(plan.fingerprint) == [1]
    with pytest.raises(
        LocalProtocolError, match="refuses these items: the client took part in round 1 of plan"
    ):
        me.report(1, POLICY, journal=Journal(record, plan, 1, NOW), **options, now=NOW)


def test_a_report_asks_the_policy_before_it_makes_anything() -> None:
    client, refusing = (
        FrequencyClient(plan_of(two_servers()), DOMAIN, [1]),
        two_server.BatchPolicy(min_honest=6),
    )

    def never(*_: object) -> Any:
        raise AssertionError(
            "a contribution was made, or randomness drawn, for a plan that the policy refuses"
        )

    client.contribution = never  # type: ignore[method-assign]
    with pytest.raises(UnsafeParametersError, match="min_batch - corrupt must be at least 6"):
        client.report(
            0, refusing, journal=MemoryJournal(), identity=PEOPLE[0], random=never, now=NOW
        )


def test_a_client_demands_privacy_of_a_sum_before_anything_is_recorded(tmp_path: Path) -> None:
    record = ClientRecord.open(tmp_path / "client.db", create=True)
    demand = PrivacyPolicy(epsilon=8.0, delta=1e-6)
    policy = ClientPolicy(adversary=Adversary.SEMI_HONEST, min_honest=2)
    weak = replace(private(secagg()), privacy=propose_privacy(**(SHARES | {"epsilon": 9.0})))
    for plan, message in (
        (weak, "proven to have epsilon 9"),
        (plan_of(secagg()), "the plan has none"),
    ):
        options: dict[str, Any] = {"journal": Journal(record, plan, 0, NOW), "random": stream("x")}
        with pytest.raises(WeakPrivacyError, match=message):
            FrequencyClient(plan, DOMAIN, [3]).join(0, policy, privacy=demand, **options)
        FrequencyClient(plan, DOMAIN, [3]).join(0, policy, **options)  # None demands nothing
    FrequencyClient(private(secagg()), DOMAIN, [3]).join(
        0, policy, journal=MemoryJournal(), random=stream("x"), privacy=demand
    )


def test_a_client_demands_privacy_of_two_servers_before_it_makes_a_report(tmp_path: Path) -> None:
    plan = plan_of(two_servers())
    record = ClientRecord.open(tmp_path / "client.db", create=True)
    client, demand = FrequencyClient(plan, DOMAIN, [3]), PrivacyPolicy(epsilon=8.0, delta=1e-6)
    options: dict[str, Any] = {"journal": Journal(record, plan, 0, NOW), "identity": PEOPLE[0]}
    with pytest.raises(WeakPrivacyError, match="the plan has none"):
        client.report(0, POLICY, privacy=demand, random=stream("x"), **options, now=NOW)
    assert record.participations(plan.fingerprint) == []
    client.report(0, POLICY, random=stream("x"), **options, now=NOW)


def test_the_round_of_a_verified_invite_can_be_joined() -> None:
    plan = plan_of(secagg())
    session = open_session(plan, 1)
    invited = read_invite(
        session.invite, server_key=SERVER_KEY.public, fingerprint=bytes.fromhex(plan.fingerprint)
    )
    assert invited is not None
    client = join(plan, invited.round)
    client.receive(session.invite, NOW)
    assert client.code is None


def test_a_secure_sum_shows_how_many_there_are() -> None:
    hiding = propose_privacy(epsilon=1.0, delta=1e-6, rows=ROWS, width=WIDTH, relation="add-remove")
    for terms in (secagg(), two_servers()):
        with pytest.raises(
            InvalidInputError, match="add-remove hides the number of clients, which the secure sum"
        ):
            replace(plan_of(terms), privacy=hiding)


def test_what_a_client_holds_neither_prints_nor_copies() -> None:
    client = FrequencyClient(plan_of(), DOMAIN, [17])
    assert repr(client) == str(client) == "FrequencyClient(hidden)"
    for leak in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidInputError, match="secret"):
            leak(client)


def test_the_servers_of_a_batch_do_not_copy() -> None:
    """Two that hold the same reports could answer two queries, whose sums differ by one client."""
    server = FrequencyServer(TWO)
    for one in (server.leader(*BATCH, LEADER_KEY), server.helper(*BATCH, HELPER_KEY)):
        for leak in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(InvalidInputError, match="cannot be copied or pickled"):
                leak(one)


def join(plan: Plan, round: int = 0, **changed: Any) -> Any:
    values: dict[str, Any] = {"journal": MemoryJournal(), "random": stream("x")}
    policy = ClientPolicy(
        adversary="active" if "identity" in changed else "semi-honest", min_honest=2
    )
    return FrequencyClient(plan, DOMAIN, [1]).join(round, policy, **(values | changed))


def test_a_client_refuses_an_invite_that_is_not_of_its_plan() -> None:
    plan = plan_of(secagg())
    other = plan_of(secagg(max_dropout=0.1))
    weaker = replace(plan.secure_sum, parameters=other.secure_sum.parameters)  # type: ignore[union-attr,type-var,arg-type]
    for invite, taken in (
        (open_session(plan, 0).invite, True),
        (open_session(other, 0).invite, False),  # another fingerprint
        (forged_invite(plan, plan.secure_sum), True),  # type: ignore[arg-type]
        (forged_invite(plan, weaker), False),  # the fingerprint of the plan, and other parameters
        (forged_invite(plan, plan.secure_sum, round=1), False),  # type: ignore[arg-type]
        (forged_invite(plan, plan.secure_sum, round=2), False),  # type: ignore[arg-type]
    ):
        client = join(plan)
        answer = client.receive(invite, NOW)
        assert answer is not None
        assert client.code == (None if taken else AbortCode.POLICY)


def forged_invite(plan: Plan, terms: SecAggConfig, round: int = 0) -> bytes:
    return Server(
        terms.parameters,
        session=stream("forged")(32),
        signing_key=SERVER_KEY,
        fingerprint=bytes.fromhex(plan.fingerprint),
        round=round,
        not_before=NOW,
        not_after=NOW + 60,
        salt=bytes(32),
        random=stream("server"),
    ).invite


WEAK = Parameters(
    adversary=Adversary.SEMI_HONEST,
    n_min=N,
    n_max=N,
    corrupt=3,
    max_dropout_ppm=0,
    min_survivors=8,
    ring_neighbours=2,
    ring_threshold=2,
    length=ROWS * WIDTH,
    bits=8,
)
OTHER_LIST = AllowList([person.public for person in PEOPLE[:-1]])
ACTIVE, RING, TWO = plan_of(secagg("active")), plan_of(secagg()), plan_of(two_servers())
POLICY = two_server.BatchPolicy(min_honest=2)
BATCH = (0, POLICY, ALLOWED, two_server.MemoryJournal())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: join(plan_of()), "not summed by secure aggregation"),
        (lambda: join(TWO), "not summed by secure aggregation"),
        (
            lambda: join(ACTIVE, identity=PEOPLE[0], allow_list=OTHER_LIST),
            "not the one that the plan names",
        ),
        (lambda: open_session(TWO, 0), "not summed by secure aggregation"),
        (lambda: open_session(RING, 2), "round must be at most 1"),
        (lambda: open_session(RING, 0, signing_key=PEOPLE[0]), "signing key is not the one"),
        (lambda: open_session(ACTIVE, 0, allow_list=OTHER_LIST), "allow-list is not the one"),
        (lambda: open_session(ACTIVE, 0), "allow-list is not the one"),
        (lambda: FrequencyServer(RING).leader(*BATCH, LEADER_KEY), "not summed by two servers"),
        (lambda: FrequencyServer(RING).helper(*BATCH, HELPER_KEY), "not summed by two servers"),
        (
            lambda: FrequencyClient(RING, DOMAIN, [1]).report(
                0, POLICY, journal=MemoryJournal(), identity=PEOPLE[0], random=stream(1), now=NOW
            ),
            "not summed by two servers",
        ),
    ],
)
def test_what_does_not_fit_the_plan_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_a_sum_that_no_sketches_have_does_not_land() -> None:
    plan = plan_of(two_servers())
    server = FrequencyServer(plan)
    good = plain(plan, 0, list(range(6))).counters.reshape(-1)
    large, least, odd = good.copy(), good.copy(), good.copy()
    large[0] += 14
    least[0] = -(2**63)
    odd[0] += 1
    for total, message in (
        (large, "cannot exceed 6"),
        (least, "cannot exceed 6"),
        (odd, "another parity"),
    ):
        with pytest.raises(RejectedSumError, match=message):
            land_done(server, total, 6)
    assert server.release() == []
    land_done(server, good, 6)
    assert server.release()[0].num_clients == 6
    several = plan_of(two_servers(largest_entry=2), max_items=2)
    land_done(FrequencyServer(several), odd, 6)  # nobody knows how many items each has


@settings(max_examples=60, deadline=None)
@given(
    held=st.lists(st.sets(st.integers(1, 50), min_size=1, max_size=3), min_size=6, max_size=N),
    noise=st.sampled_from(["none", "drawn", "all", "few"]),
    row=st.integers(0, ROWS - 1),
    boost=st.lists(st.integers(0, 40), min_size=WIDTH, max_size=WIDTH),
    seed=st.integers(0, 2**32),
)
def test_honest_sums_land_and_larger_rows_do_not(
    held: list[set[int]], noise: str, row: int, boost: list[int], seed: int
) -> None:
    """Any items, and any noise within its bounds: the sum lands.
    Beyond clients x items and the noise, it does not.
    """
    plan = NOISED if noise != "none" else plan_of(two_servers(largest_entry=3), max_items=3)
    bound, row_bound = plan.noise_bound, plan.row_noise_bound(WIDTH)
    assert row_bound < bound * WIDTH or noise == "none"
    total = CountSketch(plan.spec, 0)
    for one in held:
        total.add(DOMAIN.encode(sorted(one)), num_clients=1)
    shape = total.counters.shape
    if noise == "drawn":
        assert plan.privacy is not None
        for server in range(2):
            key = Secret(stream(("noise", seed, server))(32))
            total.counters += plan.privacy.noise().draw(key, ROWS * WIDTH).reshape(shape)
    elif noise == "all":  # the worst: the whole bound of each row, away from zero
        share, more = divmod(row_bound, WIDTH)
        sizes = share + (np.arange(WIDTH) < more)
        total.counters += np.where(total.counters >= 0, sizes, -sizes)
    elif noise == "few":
        total.counters[:, 0] += bound
    assert land_done(server_of(plan), total.counters.reshape(-1), len(held)).num_clients == len(
        held
    )

    most = len(held) * plan.max_items + row_bound
    boosted = total.counters.copy()
    boosted[row] += np.where(boosted[row] >= 0, 1, -1) * np.array(boost)
    if (
        np.abs(boosted[row]).sum() > most
        and np.abs(boosted).max() <= len(held) * plan.max_items + bound
    ):
        with pytest.raises(
            RejectedSumError,
            match=f"add up to [0-9]+ without their signs, .* exceed {most}: a client",
        ):
            land_done(server_of(plan), boosted.reshape(-1), len(held))


ROOM: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "rows": 5,
    "width": 1000,
    "trust": "distributed",
}


def test_the_room_that_noise_leaves_to_liars_is_that_of_the_threat_model() -> None:
    """1,000 clients of one item, of whom 50 may be corrupt and 50 drop out: the figures on the
    page."""
    domain = IntegerRange(1, 5000)
    parameters = propose(1000, length=5000, bits=24, corrupt=50, max_dropout=0.05)
    privacy = propose_privacy(
        **ROOM, honest_survivors=parameters.honest_survivors, most_clients=1000
    )
    terms = SecAggConfig(parameters=parameters, server_key=SERVER_KEY.public)
    asked: dict[str, Any] = {
        "rows": 5,
        "width": 1000,
        "num_rounds": 1,
        "num_clients": 1000,
        "max_round_clients": 1000,
    }
    plan = plan_of(terms, **asked, schedule="shared", domain=domain.describe(), privacy=privacy)
    honest = CountSketch(plan.spec, 0)
    honest.add(domain.encode(np.random.default_rng(1).zipf(1.3, 1000) % 5000 + 1), num_clients=1000)
    drawn = privacy.share(1000).draw(Secret(stream("room")(32)), 5000)
    total = honest.counters.reshape(-1) + drawn
    server = server_of(plan)

    def lands(candidates: list[int], times: int) -> bool:
        boosted = CountSketch(plan.spec, 0)
        boosted.add(domain.encode(candidates))
        try:
            server._sketch(0, total + times * boosted.counters.reshape(-1), 1000)
        except RejectedSumError:
            return False
        return True

    many = list(range(3000, 3300))
    assert lands(many, 0)
    one, most = (
        next(times for times in range(2000) if not lands(held, times + 1))
        for held in ([4999], many)
    )
    page = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text(encoding="utf-8")
    sizes = np.abs(drawn).reshape(5, 1000).sum(axis=1)
    mean = round(float(sizes.mean()), -2)
    figures = (
        f"{plan.noise_bound} for a counter and {plan.row_noise_bound(plan.width):,} for a row",
        f"about {mean:,.0f}",
        f"one candidate by {one:,} clients, and 300 candidates at once by {most} clients each",
    )
    assert [figure for figure in figures if figure not in page] == [], figures
    assert sizes.max() < plan.row_noise_bound(plan.width) < plan.noise_bound * 1000 / 5


def test_a_lying_client_can_move_the_votes_of_others_as_the_threat_model_says() -> None:
    """1,000 clients of one of 50 items, no noise, and a liar that knows the public law alone."""
    domain = IntegerRange(1, 50)
    plan = plan_of(
        rows=1,
        width=50,
        encoding="histogram",
        schedule="shared",
        num_rounds=1,
        num_clients=1000,
        max_round_clients=1000,
        domain=domain.describe(),
    )
    law = np.arange(1, 51) ** -1.1
    law /= law.sum()
    honest = CountSketch(plan.spec, 0)
    honest.add(domain.encode(np.random.default_rng(1).choice(50, 999, p=law) + 1), num_clients=999)
    server = server_of(plan)

    def lands(*parts: tuple[int, int]) -> bool:
        total = honest.counters.reshape(-1).copy()
        for item, votes in parts:
            one = CountSketch(plan.spec, 0)
            one.add(domain.encode([item]))
            total += votes * one.counters.reshape(-1)
        try:
            server._sketch(0, total, 1000)
        except RejectedSumError:
            return False
        return True

    # It takes four fifths of the votes that the law foresees for the five most frequent items.
    taken = [(item, -int(0.8 * 999 * law[item - 1])) for item in range(1, 6)]
    moved = 1 - sum(votes for _, votes in taken)
    assert lands(*taken, (50, moved))
    assert lands((50, 1))  # its own vote
    assert not lands((50, 3))  # no room is left without noise: each client has a vote already
    page = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text(encoding="utf-8")
    assert f"give {moved} votes to one item" in page, moved


def test_a_client_that_counts_for_many_items_does_not_land() -> None:
    """Every counter stays far below the largest that one may be, and the row holds more than its
    clients can."""
    plan = plan_of(two_servers())
    server, total = FrequencyServer(plan), plain(plan, 0, list(range(6))).counters
    boosted = total.copy()
    boosted[1] += 2 * np.where(boosted[1] >= 0, 1, -1)  # of even size: parity does not see it
    assert np.abs(boosted).max() <= 6
    with pytest.raises(
        RejectedSumError,
        match="a row of the sum add up to 38 without their signs, .* cannot exceed 6",
    ):
        land_done(server, boosted.reshape(-1), 6)
    assert server.release() == []


def test_sums_of_rows_are_exact_beyond_64_bits() -> None:
    for row in ([2**63 - 1] * 8, [-(2**63) + 1, 2**62 + 3, 0, -1], [0], [2**32, -(2**32) + 1]):
        assert _sum_of_sizes(np.array(row, np.int64)) == sum(map(abs, row))


@pytest.mark.promise
def test_nobody_plans_two_reports_of_a_client_in_one_opening() -> None:
    """Two servers take one: such a plan could be agreed on, and not be run."""
    asked: dict[str, Any] = {
        "rows": ROWS,
        "width": WIDTH,
        "trust": "distributed",
        "participations": 2,
    }
    for together, schedule in ((2, "shared"), (1, "hybrid")):
        privacy = propose_privacy(epsilon=8.0, delta=1e-6, **asked, per_release=together)
        tau = noise_bound(privacy, ROWS * WIDTH, 2 * N)
        terms = two_servers(n_max=2 * N, noise=tau, bits=modulus_bits(2 * N, 1, tau))
        if together == 1:
            assert plan_of(terms, privacy=privacy, schedule=schedule).releases == [
                range(1),
                range(1, 2),
            ]
        else:
            with pytest.raises(
                InvalidInputError, match="may be in 2 rounds of a release: use max_rounds=1"
            ):
                plan_of(terms, privacy=privacy, schedule=schedule)


def test_what_is_not_done_or_not_the_plans_does_not_land() -> None:
    plan = plan_of(secagg())
    server = FrequencyServer(plan)
    session = open_session(plan, 0, server=server)
    with pytest.raises(
        LocalProtocolError, match="there is no sum to land: the session is advertise"
    ):
        server.land(session)
    session.outcome = Outcome(np.zeros(ROWS * WIDTH, np.int64), np.ones(N, np.bool_), bytes(32))
    other = FrequencyServer(plan_of(secagg(), seed=bytes(32)))
    for elsewhere in (other, FrequencyServer(plan)):
        with pytest.raises(
            InvalidInputError, match="this session was made elsewhere, and may be of another plan"
        ):
            elsewhere.land(session)
    with pytest.raises(InvalidInputError, match="the session is of another plan"):
        other.restore(session.checkpoint(), random=stream("server"))
    with pytest.raises(InvalidInputError, match="not summed by two servers"):
        server.land_batch(done_leader(plan_of(two_servers()), session.outcome.total, N))


def test_a_session_is_opened_once() -> None:
    server = FrequencyServer(plan_of(secagg()))
    options: dict[str, Any] = {
        "signing_key": SERVER_KEY,
        "salt": bytes(32),
        "random": stream("server"),
    }
    options |= {"not_before": NOW, "not_after": NOW + 60}
    server.open(0, session=bytes(32), **options)
    with pytest.raises(InvalidInputError, match="this session was opened before"):
        server.open(1, session=bytes(32), **options)


def test_the_message_of_an_item_outside_does_not_show_it() -> None:
    with pytest.raises(OutsideDomainError) as caught:
        FrequencyClient(plan_of(), DOMAIN, [987_654])
    assert "987" not in str(caught.value)
    assert caught.value.__cause__ is None


class Strange:
    """An object that shows a secret wherever it is asked anything."""

    def __repr__(self) -> str:
        return SECRET

    def __len__(self) -> int:
        raise ValueError(SECRET)

    __iter__ = __contains__ = __index__ = __float__ = __str__ = __len__  # type: ignore[assignment]


SECRET = "13579 a disease"
UNREADABLE: list[Any] = [
    SECRET,
    SECRET.encode(),
    [SECRET],
    ["tea", SECRET.encode()],
    [SECRET.encode() + b"\xff"],
    [f"{SECRET}\ud800"],
    [13579],
    [-13579],
    [13579 * 10**30],
    [1.3579],
    [None],
    [True],
    [[SECRET]],
    [{SECRET: 1}],
    {SECRET: 1},
    {SECRET},
    object(),
    [Strange()],
    Strange(),
    iter([SECRET]),
    np.array([13579]),
    np.array([[13579.0, 13579.0]]),
    np.array([13579.5]),
    np.array(SECRET),
    np.array([SECRET], object),
    [(13579.0, 13579.0)],
]


def said_by(call: Callable[[], object]) -> str:
    """Return all that a log of its error may show, but for the frames of the test; "" if there is
    no error."""
    try:
        call()
    except InvalidInputError as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next  # the variables of the test hold the items
        chained = repr((error.__context__, error.__cause__))
        shown = traceback.TracebackException(type(error), error, frames, capture_locals=True)
        return chained + "".join(shown.format())
    return ""


@pytest.mark.parametrize("kind", DOMAINS)
@pytest.mark.parametrize("privacy", [False, True])
def test_no_error_of_a_client_shows_an_item(kind: str, privacy: bool) -> None:
    domain = DOMAINS[kind]
    plan = private(domain=domain.describe()) if privacy else plan_of(domain=domain.describe())
    raised = 0
    for items in UNREADABLE:
        said = said_by(
            lambda items=items: FrequencyClient(plan, domain, items).contribution(0, stream("any"))
        )
        assert "1357" not in said and "disease" not in said, items
        assert said == "" or said.startswith("(None, None)")
        # by no error of a private campaign
        assert not (said and privacy and type(items) is list), items
        raised += said != ""
    assert raised >= (5 if privacy else 15)


def test_no_error_shows_an_item_where_the_number_or_the_domain_is_wrong() -> None:
    plan, wrong = plan_of(max_items=1), IntegerRange(1, 9)
    for call in (
        lambda: FrequencyClient(plan, DOMAIN, [1, 37]),
        lambda: FrequencyClient(plan, wrong, [37]),
        lambda: FrequencyClient.of_ids(plan, np.array([1, 37], np.uint64)),
        lambda: FrequencyClient.of_ids(plan, np.array([37])),
        lambda: FrequencyClient.of_ids(plan, np.array([[37]], np.uint64)),
        lambda: FrequencyClient.of_ids(plan, [37]),  # type: ignore[arg-type]
    ):
        said = said_by(call)
        assert said and "[37" not in said and "37]" not in said, said


def failing(after: int) -> Callable[[int], bytes]:
    """Return a source of bytes that fails at one of its calls."""
    good, calls = stream("failing"), iter(range(after))
    return lambda count: good(count) if next(calls, None) is not None else fail()


def fail(*_: object) -> Any:
    raise OSError("the disk, or the source of randomness, is gone")


def test_no_client_that_cannot_draw_leaves_the_items_behind() -> None:
    client = FrequencyClient(plan_of(), DOMAIN, [3, 5, 7], bounded=True)
    with pytest.raises(InvalidInputError, match="holds more than 1 items") as refused:
        client.contribution(0)
    assert left_behind(refused.value) == []


@pytest.mark.parametrize("plan", [plan_of(two_servers()), NOISED])
def test_no_report_that_fails_leaves_the_items_behind(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the items nor their sketch: tools that log the variables of a traceback would show
    them."""
    client = FrequencyClient(plan, DOMAIN, [3, 5, 7, 9] if plan.privacy else [3])
    spent = MemoryJournal(is_spent=True)

    def report(after: int = 99, journal: Any = None) -> two_server.Report:
        journal = MemoryJournal() if journal is None else journal
        return client.report(
            0, POLICY, journal=journal, identity=PEOPLE[0], random=failing(after), now=NOW
        )

    with pytest.raises(LocalProtocolError, match="refuses") as refused:
        report(journal=spent)
    assert left_behind(refused.value) == []
    calls = 3 if plan.privacy is None else 4  # the items are drawn, an id, a seed, a salt
    for after in range(calls):
        journal = MemoryJournal()
        with pytest.raises(OSError, match="is gone") as failed:
            report(after, journal)
        assert left_behind(failed.value) == [] and not journal.is_spent
    report(calls)
    for what in (
        "fedtally.secagg.client.MemoryJournal.spend",
        "fedtally.crypto.hpke.seal",
        "fedtally.secagg.two_server.reports.mask_key",
        "fedtally.crypto.prg.Masking.add",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(what, fail)
            with pytest.raises(OSError, match="is gone") as failed:
                report()
        assert left_behind(failed.value) == []


@pytest.mark.parametrize("identity", [None, bytes(32), "a key"])
def test_a_report_needs_the_identity_of_its_client(identity: Any) -> None:
    """It is asked for before an id or a seed is drawn, and before the items are spent."""
    client, journal = FrequencyClient(plan_of(two_servers()), DOMAIN, [3]), MemoryJournal()
    message = f"identity must be the SigningKey .* allow-list, got {type(identity).__name__}"
    with pytest.raises(InvalidInputError, match=message) as refused:
        client.report(0, POLICY, journal=journal, identity=identity, random=failing(0), now=NOW)
    assert left_behind(refused.value) == [] and not journal.is_spent


def test_no_contribution_that_fails_leaves_the_items_behind() -> None:
    privacy = propose_privacy(**SHARES, max_items=2)
    privacy = replace(privacy, event=replace(privacy.event, clip_norm=2.0))  # two items exceed it
    plan = plan_of(None, max_items=2, privacy=privacy)
    client = FrequencyClient(plan, DOMAIN, [3, 5, 7])
    # items are dropped by an order that is drawn, and hidden by a share of noise
    for calls in range(2):
        with pytest.raises(OSError, match="is gone") as failed:
            client.contribution(0, failing(calls))
        assert left_behind(failed.value) == []
    assert client.contribution(0, failing(2)).any()  # the client still holds its items
    assert client._ids.tolist() == DOMAIN.encode([3, 5, 7]).tolist()


def test_a_label_of_an_item_is_not_shown(tmp_path: Path) -> None:
    """Neither by a label that is none, nor by a journal, nor by a database that fails while it is
    written."""
    record = ClientRecord.open(tmp_path / "client.db", create=True)
    plan = private(secagg())
    wrong = Journal(record, plan, 0, NOW, item=f" {SECRET}")
    assert SECRET not in repr(wrong)
    assert not wrong.spend(bytes(32)) and "label must be 1 to 200 printable" in wrong.refusal
    assert SECRET not in wrong.refusal
    with record._transaction(write=True) as connection:
        connection.exec_driver_sql("DROP TABLE fedtally_participations")
    with pytest.raises(StoreError) as caught:
        record.take_part("phones", "plan", 0, None, NOW, item=SECRET)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_policy_that_refuses_the_plan_says_so_at_once() -> None:
    plan = plan_of(secagg())
    with pytest.raises(UnsafeParametersError, match="min_survivors - corrupt must be at least 10"):
        FrequencyClient(plan, DOMAIN, [1]).join(
            0,
            ClientPolicy(adversary="semi-honest", min_honest=10),
            journal=MemoryJournal(),
            random=stream("x"),
        )


def test_landed_sketches_of_two_plans_do_not_mix() -> None:
    first, second = plan_of(), plan_of(seed=bytes(32))
    with pytest.raises(IncompatibleError):
        plain(first, 0, [1]).merge(plain(second, 0, [1]))


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        (lambda: secagg(length=47), r"length must be rows times width .*, 48, got 47"),
        (lambda: two_servers(length=49), r"length must be rows times width .*, 48, got 49"),
        (lambda: replace(secagg(), server_key=b"short"), "secure_sum.server_key must be 32 bytes"),
        (
            lambda: replace(secagg(), server_key=bytes(32)),
            "an identity must not be a key of low order",
        ),
        (lambda: replace(secagg(), parameters=WEAK), "are not safe against"),
        (lambda: secagg(), "asks for at least 12 clients, and the largest round has 11"),
        (
            lambda: two_servers(min_batch=12),
            "asks for at least 12 clients, and the largest round has 11",
        ),
        (
            lambda: replace(secagg(), allow_list=bytes(32)),
            "an allow_list goes with the adversary active",
        ),
        (
            lambda: replace(two_servers(), leader_key=HELPER_KEY.public),
            "must be the keys of two servers, got one key for both",
        ),
        (
            lambda: replace(two_servers(), leader_key=bytes(32)),
            "leader_key is no valid key: .* of low order",
        ),
        (
            lambda: replace(two_servers(), helper_key=b"short"),
            "secure_sum.helper_key must be 32 bytes",
        ),
        (
            lambda: replace(two_servers(), helper_key=bytes(32)),
            "helper_key is no valid key: .* of low order",
        ),
        (
            lambda: replace(two_servers(), helper_key=b"\xff" * 32),
            "helper_key is no valid key: .* below 2\\^255 - 19",
        ),
        (
            lambda: replace(two_servers(), allow_list=bytes(31)),
            "secure_sum.allow_list must be 32 bytes",
        ),
        (
            lambda: replace(secagg("active"), allow_list=b""),
            "secure_sum.allow_list must be 32 bytes",
        ),
    ],
)
def test_a_plan_refuses_terms_that_do_not_fit(terms: Callable[[], Any], message: str) -> None:
    few = {"max_round_clients": 11, "num_clients": 22} if "largest round" in message else {}
    with pytest.raises(InvalidInputError, match=message):
        plan_of(terms(), **few)


def test_a_plan_refuses_sums_that_could_overflow() -> None:
    plan_of(secagg(bits=5))
    with pytest.raises(
        InvalidInputError, match="sums of 12 clients of 2 items could overflow, got 5"
    ):
        plan_of(secagg(bits=5), max_items=2)


def test_what_a_client_holds_does_not_decide_whether_it_can_report() -> None:
    plan_of(two_servers(largest_entry=2), max_items=2)
    for largest, items in ((1, 2), (2, 1)):
        with pytest.raises(
            InvalidInputError, match=f"largest_entry must be {items}, the most .*, got {largest}"
        ):
            plan_of(two_servers(largest_entry=largest), max_items=items)


@pytest.mark.parametrize("terms", [None, secagg(), secagg("active"), two_servers()])
def test_plans_with_terms_survive_their_files(terms: Any, tmp_path: Any) -> None:
    plan = plan_of(terms)
    for name in ("plan.toml", "plan.json"):
        plan.save(tmp_path / name)
        assert Plan.load(tmp_path / name) == plan
    assert (
        plan_of().fingerprint
        != plan_of(secagg()).fingerprint
        != plan_of(secagg("active")).fingerprint
    )
    if terms is not None:
        assert plan.bytes_per_client == terms.upload_bytes > ROWS * WIDTH
        assert plan.modulus_bits == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "ideal"}, "secure_sum.method must be secagg or two-server, got 'ideal'"),
        ({"method": ["secagg"]}, "secure_sum.method"),
        ({"server_key": "xx"}, "secure_sum.server_key must be 64 hexadecimal digits, got 'xx'"),
        ({"server_key": 7}, "secure_sum.server_key must be 64 hexadecimal digits, got 7"),
        ({"server_key": None}, "secure_sum.server_key must be 64 hexadecimal digits, got None"),
        ({"server_key": ""}, "secure_sum.server_key must be 32 bytes"),
        ({"server_key": "00" * 32}, "secure_sum.server_key is no valid key: .* of low order"),
        ({"helper_key": HELPER_KEY.public.hex()}, "secure_sum has unknown entries helper_key"),
        ({"surprise": 1}, "secure_sum has unknown entries surprise"),
        ({"n_max": None}, "n_max must be an integer"),
        ({"min_survivors": 0}, "min_survivors must be at least 1, got 0"),
        ({"ring_neighbours": 2, "ring_threshold": 2}, "are not safe against"),
    ],
)
def test_terms_in_a_file_are_checked(change: dict[str, Any], message: str) -> None:
    values = plan_of(secagg()).to_dict()
    values["secure_sum"] |= change
    with pytest.raises(InvalidInputError, match=message):
        Plan.from_dict(values)


def test_terms_in_a_file_must_be_whole() -> None:
    for terms, name in ((secagg(), "corrupt"), (two_servers(), "corrupt")):
        values = plan_of(terms).to_dict()
        del values["secure_sum"][name]
        with pytest.raises(InvalidInputError, match=f"secure_sum lacks {name}"):
            Plan.from_dict(values)
    with pytest.raises(InvalidInputError, match="secure_sum must be a table"):
        Plan.from_dict(plan_of().to_dict() | {"secure_sum": "secagg"})


KEYS = {
    "server_key": SERVER_KEY.public,
    "leader_key": LEADER_KEY.public,
    "helper_key": HELPER_KEY.public,
    "allow_list": ALLOWED.digest,
}
UNPUBLISHED = [
    (secagg(), ["server_key"]),
    (secagg("active"), ["server_key"]),
    (secagg("active"), ["allow_list"]),
    (secagg("active"), ["server_key", "allow_list"]),
    (two_servers(), ["leader_key"]),
    (two_servers(), ["helper_key"]),
    (two_servers(), ["allow_list"]),
    (two_servers(), ["helper_key", "allow_list"]),
]


def without(terms: Any, names: Sequence[str]) -> Any:
    return replace(terms, **dict.fromkeys(names))


@pytest.mark.parametrize(("terms", "names"), UNPUBLISHED)
def test_nobody_runs_a_plan_that_lacks_a_key(terms: Any, names: list[str]) -> None:
    plan = plan_of(without(terms, names))
    assert (plan_of().is_published, plan_of(terms).is_published, plan.is_published) == (
        True,
        True,
        False,
    )
    lacking = (
        rf"the plan lacks {' and '.join(names)}, so nobody may run it: .* Plan.with_keys or"
        r" fedtally keys add"
    )
    with pytest.raises(InvalidInputError, match=lacking):
        plan.check_published()
    runs = runs_of_secagg(plan) if isinstance(terms, SecAggConfig) else runs_of_two_servers(plan)
    for run in runs:
        with pytest.raises(InvalidInputError, match=lacking):
            run()


def runs_of_secagg(plan: Plan) -> list[Callable[[], Any]]:
    """Return what clients and the server do under a plan; who has a list and an identity gets no
    further."""
    client, journal, random = FrequencyClient(plan, DOMAIN, [1]), MemoryJournal(), stream("x")
    server, outcome = (
        FrequencyServer(plan),
        types.SimpleNamespace(total=np.zeros(ROWS * WIDTH, np.int64), survivors=N),
    )
    session: Any = types.SimpleNamespace(outcome=outcome, session=bytes(32), state=ServerState.DONE)
    lenient, strict = (ClientPolicy(adversary=each, min_honest=2) for each in Adversary)
    listed: dict[str, Any] = {"identity": PEOPLE[0], "allow_list": ALLOWED}
    return [
        lambda: client.join(0, lenient, journal=journal, random=random),
        lambda: client.join(0, strict, journal=journal, random=random, **listed),
        lambda: open_session(plan, 0),
        lambda: open_session(plan, 0, "active"),
        lambda: server.land(session),
    ]


def runs_of_two_servers(plan: Plan) -> list[Callable[[], Any]]:
    client, server, batch = (
        FrequencyClient(plan, DOMAIN, [1]),
        FrequencyServer(plan),
        two_server.BatchPolicy(min_honest=2),
    )
    full = plan_of(two_servers())
    finished = done_leader(full, plain(full, 0, list(range(6))).counters.reshape(-1), 6)
    return [
        lambda: client.report(
            0, batch, journal=MemoryJournal(), identity=PEOPLE[0], random=stream("x"), now=NOW
        ),
        lambda: server.leader(0, batch, ALLOWED, two_server.MemoryJournal(), LEADER_KEY),
        lambda: server.helper(0, batch, ALLOWED, two_server.MemoryJournal(), HELPER_KEY),
        lambda: server.land_batch(finished),
    ]


@pytest.mark.parametrize("names", [["helper_key"], ["allow_list"], ["helper_key", "allow_list"]])
def test_parameters_of_two_servers_have_keys(names: list[str]) -> None:
    with pytest.raises(
        InvalidInputError, match=f"secure_sum lacks {' and '.join(names)}; add_keys adds them"
    ):
        without(two_servers(), names).parameters(bytes(32), (ROWS * WIDTH,), signed=True)


@pytest.mark.parametrize(("terms", "names"), UNPUBLISHED)
def test_keys_make_the_published_plan_of_the_same_size(
    terms: Any, names: list[str], tmp_path: Path
) -> None:
    sized, published = plan_of(without(terms, names)), plan_of(terms)
    assert sized.missing_keys == tuple(names)
    assert sized.with_keys(**{name: KEYS[name] for name in names}) == published
    # one may be there already
    assert sized.with_keys(**{name: KEYS[name] for name in terms.needed_keys}) == published
    assert published.with_keys() == published
    assert (
        published.without_keys()
        == sized.without_keys()
        == plan_of(without(terms, terms.needed_keys))
    )
    assert published.without_keys().missing_keys == terms.needed_keys
    assert sized.bytes_per_client == published.bytes_per_client
    assert sized.modulus_bits == published.modulus_bits
    assert sized.fingerprint != published.fingerprint
    for name in ("plan.toml", "plan.json"):
        sized.save(tmp_path / name)
        assert Plan.load(tmp_path / name) == sized
        assert not any(key in (tmp_path / name).read_text() for key in names)


def test_a_plan_without_a_secure_sum_has_no_keys() -> None:
    plan = plan_of()
    assert plan.missing_keys == ()
    assert plan.without_keys() == plan.with_keys() == plan


def test_keys_are_added_one_after_the_other() -> None:
    sized = plan_of(without(two_servers(), ["helper_key", "allow_list"]))
    with pytest.raises(InvalidInputError, match="the plan lacks allow_list"):
        sized.with_keys(helper_key=HELPER_KEY.public)
    with pytest.raises(InvalidInputError, match="the plan lacks helper_key and allow_list"):
        sized.with_keys()
    half = sized.with_keys(helper_key=HELPER_KEY.public, may_lack=True)
    assert half.missing_keys == ("allow_list",)
    assert half.with_keys(allow_list=ALLOWED.digest) == plan_of(two_servers())
    assert len({sized.fingerprint, half.fingerprint, plan_of(two_servers()).fingerprint}) == 3


@pytest.mark.parametrize(
    ("terms", "keys", "message"),
    [
        (
            None,
            {"server_key": SERVER_KEY.public},
            "the secure sum ideal has no server_key: it uses no key",
        ),
        (
            secagg(),
            {"helper_key": HELPER_KEY.public},
            "has no helper_key: it uses server_key; leave out what",
        ),
        (
            secagg(),
            {"allow_list": ALLOWED.digest},
            r"secagg \(semi-honest\) has no allow_list: it uses server_key",
        ),
        (secagg("active"), {"helper_key": HELPER_KEY.public}, "it uses server_key and allow_list"),
        (
            two_servers(),
            {"server_key": SERVER_KEY.public},
            "two-server has no server_key: it uses leader_key and helper_key and allow",
        ),
        (
            secagg(),
            {"server_key": PEOPLE[0].public},
            "the plan has another server_key, .* are not replaced",
        ),
        (secagg("active"), {"allow_list": bytes(32)}, "the plan has another allow_list, "),
        (
            two_servers(),
            {"helper_key": PrivateKey(Secret(bytes(32))).public},
            "the plan has another helper_key, ",
        ),
        (
            without(two_servers(), ["helper_key"]),
            {"helper_key": SERVER_KEY.public},
            r"no valid key: .* below 2\^255 - 19",
        ),
        (
            without(secagg(), ["server_key"]),
            {"server_key": b"short"},
            "secure_sum.server_key must be 32 bytes",
        ),
        (
            without(secagg(), ["server_key"]),
            {"server_key": "00" * 32},
            "secure_sum.server_key must be 32 bytes",
        ),
        (
            without(secagg(), ["server_key"]),
            {"server_key": bytes(32)},
            "server_key is no valid key: .* low order",
        ),
        (
            without(two_servers(), ["helper_key"]),
            {"helper_key": bytes(32)},
            "helper_key is no valid key: .* low order",
        ),
        (
            without(two_servers(), ["helper_key"]),
            {"helper_key": bytes(33)},
            "secure_sum.helper_key must be 32 bytes",
        ),
    ],
)
def test_a_plan_takes_the_keys_of_its_protocol_alone(
    terms: Any, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        plan_of(terms).with_keys(**keys)


@pytest.mark.parametrize(("terms", "names"), UNPUBLISHED)
def test_a_plan_that_lost_its_keys_is_another_plan(terms: Any, names: list[str]) -> None:
    published = plan_of(terms)
    values = published.to_dict()
    for name in names:
        del values["secure_sum"][name]
    stripped = Plan.from_dict(values)
    assert stripped.missing_keys == tuple(names)
    assert stripped.fingerprint != published.fingerprint
    with pytest.raises(
        InvalidInputError, match="changed after it was written: its fingerprint does not match"
    ):
        Plan.from_dict({"fingerprint": published.fingerprint, **values})


def test_terms_of_numpy_numbers_are_plain() -> None:
    plan = plan_of(two_servers(n_max=np.int64(N), length=np.int32(ROWS * WIDTH)))
    assert Plan.from_toml(plan.to_toml()) == plan
