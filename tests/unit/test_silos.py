"""Silos: clients of many people. What a person adds, what is counted, noised and charged."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clip_norms import squared_norm
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.special import erfinv, i0e, ive, ndtr
from secagg_cohort import NOW, stream

import fedtally
from fedtally.answer import sections
from fedtally.answer.result import Result
from fedtally.base.encoding import Encoding
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.client import FrequencyClient
from fedtally.campaign.cohort import CohortRun, drive
from fedtally.campaign.server import FrequencyServer, RejectedSumError, check_plausible
from fedtally.cli import campaign_view
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.costs import REFERENCE
from fedtally.plan.design import Design
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.predictor import Predictor, predict_linf
from fedtally.plan.proposal import Proposal
from fedtally.plan.proposal import propose as propose_plan
from fedtally.plan.request import Request
from fedtally.plan.silos import Silos, fitting_numbers
from fedtally.privacy import accounting, guarantee_text
from fedtally.privacy.budget import Cap, Charge, OverspentError, check_cap
from fedtally.privacy.config import Opened, check_event
from fedtally.privacy.config import propose as propose_privacy
from fedtally.privacy.events import Event
from fedtally.privacy.policy import PrivacyPolicy
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.params import ClientPolicy
from fedtally.secagg.proposal import propose
from fedtally.sketch import CountSketch
from fedtally.sketch.clip import by_owner

pytestmark = pytest.mark.usefixtures("errors_once")

DOMAIN = IntegerRange(1, 50)
ROWS, WIDTH, N, PEOPLE = 3, 16, 6, 40
SERVER_KEY = SigningKey(Secret(stream("server")(32)))


def plan_of(
    method: str = "secagg",
    trust: str | None = "distributed",
    max_items: int = 1,
    adversary: str = "semi-honest",
    **changed: Any,
) -> Plan:
    parameters = propose(
        N,
        length=ROWS * WIDTH + 1,
        bits=24,
        corrupt=changed.pop("corrupt", 1),
        max_dropout=0.0,
        adversary=adversary,
    )
    by_clients = trust == "distributed"
    honest = parameters.honest_survivors if method == "secagg" else N - 1
    privacy = None
    if trust is not None:
        privacy = propose_privacy(
            epsilon=8.0,
            delta=1e-6,
            rows=ROWS,
            width=WIDTH,
            relation="add-remove",
            trust=trust,
            max_items=max_items,
            honest_survivors=honest if by_clients else None,
            most_clients=N,
            silos_per_person=changed.pop("silos_per_person", 1),
        )
    terms = SecAggConfig(parameters=parameters, server_key=SERVER_KEY.public)
    values: dict[str, Any] = {
        "rows": ROWS,
        "width": WIDTH,
        "schedule": "shared",
        "num_rounds": 1,
        "num_clients": N,
        "max_round_clients": N,
        "domain": DOMAIN.describe(),
        "max_items": max_items,
        "seed": bytes(32),
        "secure_sum": terms if method == "secagg" else None,
        "privacy": privacy,
        "people": PEOPLE,
    }
    return Plan(**(values | changed))


def table(silo: int, people: int, items: int = 1) -> tuple[Any, Any]:
    rng = np.random.default_rng(silo)
    return rng.integers(1, 51, people * items).astype(np.uint64), np.arange(people * items) % people


def landed(plan: Plan, sizes: list[int]) -> FrequencyServer:
    """Return the server after a round of silos of these sizes, over the real protocol."""
    server = FrequencyServer(plan, MemoryBooks())
    session = server.open(
        0,
        session=stream("session")(32),
        signing_key=SERVER_KEY,
        salt=bytes(32),
        random=stream("server"),
        not_before=NOW,
        not_after=NOW + 60,
    )
    clients = [
        FrequencyClient.of_people(plan, *table(i, size)).join(
            0,
            ClientPolicy(adversary="semi-honest", min_honest=2),
            journal=MemoryJournal(),
            random=stream(i),
        )
        for i, size in enumerate(sizes)
    ]
    drive(CohortRun(session, range(N)), lambda i, frame: clients[i].receive(frame, NOW), NOW)
    server.land(session)
    return server


RANDOM = np.random.default_rng(22).bytes
SIZES = [40, 3, 17, 1, 25, 8]


def test_a_secure_sum_of_silos_counts_people() -> None:
    plan = plan_of(trust=None)
    [sketch] = landed(plan, SIZES).release()
    assert (sketch.num_clients, sketch.num_silos) == (sum(SIZES), N)
    expected = CountSketch(plan.spec, 0)
    for i, size in enumerate(SIZES):
        expected.add(table(i, size)[0])
    np.testing.assert_array_equal(sketch.counters, expected.counters)
    result = Result(plan, DOMAIN, [sketch])
    assert (result.num_clients, result.num_silos, result.unit) == (sum(SIZES), N, "people")
    copy = CountSketch.from_bytes(sketch.to_bytes())
    assert (copy.num_clients, copy.num_silos) == (sum(SIZES), N)


def test_a_result_of_silos_survives_its_file(tmp_path: Any) -> None:
    result = Result(plan_of(trust=None), DOMAIN, landed(plan_of(trust=None), SIZES).release())
    result.save(tmp_path / "result")
    again = Result.load(tmp_path / "result")
    assert (again.num_clients, again.num_silos) == (sum(SIZES), N)
    assert again.plan == result.plan
    sketch = CountSketch(result.plan.spec, 0)
    sketch.add(np.arange(1, 9, dtype=np.uint64))
    with pytest.raises(InvalidInputError, match="the plan counts people in silos"):
        Result(result.plan, DOMAIN, [sketch])


def test_the_number_of_people_has_the_noise_of_a_counter() -> None:
    plan = plan_of(method="ideal")
    assert plan.privacy is not None
    sums = np.array(
        [
            sum(
                FrequencyClient.of_people(plan, *table(i, 9)).contribution(0, RANDOM)
                for i in range(N)
            )
            for _ in range(400)
        ]
    )
    expected = plan.privacy.share(N).variance
    noise = sums[:, -1] - 9 * N
    # the variance of 400 draws is off by 7 % (one standard deviation); 2.4e-9 is six of them
    assert abs(noise.var() / expected - 1) < 6 * math.sqrt(2 / 400)
    assert abs(noise.mean()) < 6 * math.sqrt(expected / 400)
    assert abs(np.corrcoef(sums[:, -1], sums[:, 0])[0, 1]) < 0.3


def test_noised_numbers_may_be_below_one_until_they_leave() -> None:
    plan = plan_of(method="ideal")
    seen = set()
    for seed in range(60):
        books = MemoryBooks()
        server = FrequencyServer(plan, books)
        sketch = CountSketch(plan.spec, 0)
        sketch.add(np.array([7], np.uint64))
        sketch.num_silos = N
        server.land_plain(sketch)
        [out] = server.release(stream(seed))
        seen.add(books.released(plan)[0].num_clients)
        assert out.num_clients == max(1, books.released(plan)[0].num_clients)
    assert min(seen) < 0 < max(seen)


def test_a_trusted_aggregator_noises_the_number_of_people() -> None:
    plan = plan_of(trust="central")
    server = landed(plan, SIZES)
    [sketch] = server.release(RANDOM)
    assert sketch.num_silos == N
    seen = []
    for seed in range(20):
        own = FrequencyServer(plan, MemoryBooks())
        exact = CountSketch(plan.spec, 0)
        exact.add(np.arange(1, 31, dtype=np.uint64))
        exact.num_silos = N
        own.land_plain(exact)
        seen.append(own.release(stream(seed))[0].num_clients)
    assert len(set(seen)) > 5


def test_a_release_without_a_silo_has_nobody() -> None:
    """Which silos take part is public, so that noise on their number of people would hide none."""
    plan = plan_of(method="ideal", trust="central", schedule="fresh", num_rounds=2)
    plan = replace(plan, num_clients=2 * N)
    books = MemoryBooks()
    server = FrequencyServer(plan, books)
    first = CountSketch(plan.spec, 0)
    first.add(np.arange(1, 31, dtype=np.uint64))
    first.num_silos = N
    server.land_plain(first)
    server.release(RANDOM)
    assert books.released(plan)[1].num_clients == 0
    assert books.released(plan)[1].counters.any()  # its counters have noise all the same


def test_two_servers_sum_no_silos() -> None:
    two_servers = SimpleNamespace(method="two-server")
    with pytest.raises(InvalidInputError, match="not summed by two servers yet"):
        replace(plan_of(), secure_sum=two_servers)


def test_a_plain_sum_says_how_many_silos_it_has() -> None:
    plan = plan_of(method="ideal", trust=None)
    sketch = CountSketch(plan.spec, 0)
    sketch.add(np.arange(1, 9, dtype=np.uint64))
    with pytest.raises(InvalidInputError, match="must say how many silos"):
        FrequencyServer(plan).land_plain(sketch)


@pytest.mark.parametrize(
    ("people", "silos", "weight", "message"),
    [
        (5 * PEOPLE + 1, 5, 0, "the number of people in the sum is 201"),
        (-1, 5, 0, "the number of people in the sum is -1"),
        # the counters agree with the bound of all silos, and not with the number that they give
        (10, 5, 11, "a counter of the sum is 11"),
    ],
)
def test_sums_that_no_silos_can_have(people: int, silos: int, weight: int, message: str) -> None:
    plan = plan_of(trust=None)
    sketch = CountSketch(plan.spec, 0)
    sketch.encode_vector(np.array([weight]), np.array([7], np.uint64), num_clients=0)
    sketch.num_clients, sketch.num_silos = people, silos
    with pytest.raises(RejectedSumError, match=message):
        check_plausible(sketch, plan)


def test_silos_take_no_geometric_noise() -> None:
    event = Event("geometric", 1, "add-remove", variance=8.0, encoding="histogram")
    asked: dict[str, Any] = {"rows": 1, "counters": 9, "max_items": 1, "num_rounds": 1}
    asked |= {"clients": 4, "releases": [range(1)], "is_two_server": False}
    asked |= {"encoding": Encoding.HISTOGRAM}
    check_event(event, Opened(**asked, people=1))
    with pytest.raises(InvalidInputError, match="mechanism must be rounded-gaussian where clients"):
        check_event(event, Opened(**asked, people=50))


@pytest.mark.parametrize(("sent", "counted"), [(-3, 0), (9, 9), (10**6, 0)])
def test_no_number_of_people_that_is_still_to_be_noised_is_refused(sent: int, counted: int) -> None:
    """A refusal would tell a silo that lies what the others hold. The number is folded instead, and
    cut at 0."""
    plan = plan_of(trust="central")
    total = np.zeros(plan.vector_length, np.int64)
    total[-1] = sent
    sketch = FrequencyServer(plan, MemoryBooks())._sketch(0, total, N)
    assert (sketch.num_clients, sketch.num_silos) == (counted, N)


def test_a_client_made_in_the_old_way_is_one_person() -> None:
    plan = plan_of(trust=None, method="ideal")
    vector = FrequencyClient(plan, DOMAIN, [7]).contribution(0)
    assert len(vector) == plan.vector_length == ROWS * WIDTH + 1
    assert vector[-1] == 1
    np.testing.assert_array_equal(
        vector,
        FrequencyClient.of_people(plan, np.array([7], np.uint64), ["x"]).contribution(0),
    )


def test_people_without_items_count_under_privacy() -> None:
    plan = plan_of(trust="central", method="ideal")
    ids, people = table(0, 5)
    assert FrequencyClient.of_people(plan, ids, people, 3).contribution(0, RANDOM)[-1] == 8
    nobody = FrequencyClient.of_people(plan, ids[:0], people[:0])
    assert not nobody.contribution(0, RANDOM).any()


@given(
    data=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 50)), min_size=1, max_size=60),
    seed=st.integers(0, 2**32 - 1),
    clipped=st.booleans(),
    labels=st.sampled_from(["integers", "negative", "text"]),
)
@settings(max_examples=60, deadline=None)
def test_each_person_is_bounded_by_the_one_rule(
    data: list[tuple[int, int]], seed: int, clipped: bool, labels: str
) -> None:
    """One silo's vector is the sum of what its people would send as clients of one person."""
    plan = plan_of(method="ideal", trust="central" if clipped else None, max_items=4, people=PEOPLE)
    people, ids = (np.array(column) for column in zip(*data, strict=True))
    names = {"integers": people, "negative": people - 2**62, "text": people.astype(str)}[labels]
    random = np.random.default_rng(seed)
    vector = FrequencyClient.of_people(plan, ids.astype(np.uint64), names).contribution(
        0, random.bytes
    )
    assert vector[-1] == len(set(people.tolist()))
    own = [np.unique(ids[people == person]).astype(np.uint64) for person in set(people.tolist())]
    clip = plan.clip(0)
    fits = all(
        len(each) <= 4 and (clip is None or squared_norm(plan.spec, 0, each) <= clip.largest_square)
        for each in own
    )
    if fits:  # nothing is drawn
        alone = sum(FrequencyClient.of_ids(plan, each).contribution(0, RANDOM) for each in own)
        np.testing.assert_array_equal(vector, alone)
    if len(own) == 1:
        bound = plan.max_items**2 * ROWS if clip is None else clip.largest_square
        assert int((vector[:-1] ** 2).sum()) <= bound


@pytest.mark.parametrize("place", [0, 20, 49])
def test_a_silo_of_too_many_people_draws_some_under_privacy(place: int) -> None:
    """A refusal, or a larger number, would tell that there is one person more."""
    plan, runs = plan_of(method="ideal", trust="central"), 400
    one, other = (FrequencyClient.of_people(plan, np.array([i], np.uint64), [0]) for i in (7, 9))
    alone, usual = (client.contribution(0, RANDOM)[:-1] for client in (one, other))
    assert (alone != usual).any()
    ids, people = np.full(50, 9, np.uint64), np.arange(50)
    ids[place] = 7
    kept, without = 0, 0
    silo = FrequencyClient.of_people(plan, ids, people, 10)  # ten hold nothing
    for _ in range(runs):
        vector = silo.contribution(0, RANDOM)
        assert vector[-1] == PEOPLE
        # a of the one, b of the others, and the rest of nobody
        a, b = np.linalg.lstsq(np.stack([alone, usual], axis=1), vector[:-1], rcond=None)[0]
        np.testing.assert_allclose(a * alone + b * usual, vector[:-1], atol=1e-9)
        kept, without = kept + round(a), without + PEOPLE - round(a + b)
    share = PEOPLE / 60
    assert abs(kept / runs - share) < 5 * math.sqrt(share * (1 - share) / runs)
    assert abs(without / runs - 10 * share) < 5 * math.sqrt(10 * share * (1 - share) / runs)


def test_the_clip_holds_for_each_person() -> None:
    plan = plan_of(method="ideal", trust="central", max_items=4)
    clip = plan.clip(0)
    assert clip is not None
    rng = np.random.default_rng(3)
    # items that were chosen to share cells, so that their sketch is too long
    chosen = next(
        ids
        for ids in (rng.permutation(50)[:4].astype(np.uint64) + np.uint64(1) for _ in range(10_000))
        if squared_norm(plan.spec, 0, ids) > clip.largest_square
    )
    vector = FrequencyClient.of_people(plan, chosen, [0] * 4).contribution(0, RANDOM)
    assert 0 < (vector[:-1] ** 2).sum() <= clip.largest_square
    # of two such people each is bounded, and not their sum
    both = FrequencyClient.of_people(plan, np.tile(chosen, 2), np.repeat([0, 1], 4))
    kept, starts = both._bounded(both._ids, both._starts, 0, RANDOM)
    assert 0 < len(kept) < 8
    assert starts is not None and (starts[0], starts[-1], len(starts)) == (0, len(kept), 3)


@pytest.mark.parametrize(("people", "without"), [(50, 10), (12, 3), (0, 4), (0, 0)])
def test_a_silo_whose_draws_were_made_contributes_what_was_drawn(people: int, without: int) -> None:
    """Nothing is drawn a second time: the same vector comes twice, and from no other item."""
    plan = plan_of(method="ideal", trust="central", max_items=2)
    ids = np.tile(np.arange(1, 6, dtype=np.uint64), people)
    silo = FrequencyClient.of_people(plan, ids, np.repeat(np.arange(people), 5), without)
    drawn = silo.drawn(0, RANDOM)
    assert drawn._starts is not None and len(drawn._ids) == drawn._starts[-1]
    assert np.diff(drawn._starts).max(initial=0) <= 2  # the items of each person

    def none(size: int) -> bytes:
        raise AssertionError("drawn again")

    vector = drawn.contribution(0, none)
    np.testing.assert_array_equal(vector, drawn.contribution(0, none))
    assert vector[-1] == min(PEOPLE, people + without) == drawn._num_people
    assert vector[:-1].any() == (people > 0)


def test_each_item_of_a_person_is_as_likely_to_be_drawn() -> None:
    plan = plan_of(method="ideal", trust=None, max_items=2, people=4000)
    ids, people = np.tile(np.arange(1, 6, dtype=np.uint64), 4000), np.repeat(np.arange(4000), 5)
    client = FrequencyClient.of_people(plan, ids, people)
    kept, _ = client._bounded(client._ids, client._starts, 0, RANDOM)
    counts = np.bincount(kept.astype(int), minlength=6)[1:]
    assert counts.sum() == 8000
    # 1,600 of each expected, with a standard deviation of 31; each person keeps two distinct ones
    assert np.abs(counts - 1600).max() < 6 * 31
    with pytest.raises(InvalidInputError, match="hold more than 2 items"):
        client.contribution(0)


def test_by_owner_gives_distinct_ids_of_each() -> None:
    rng = np.random.default_rng(5)
    owners, small = rng.integers(-5, 40, 3000), rng.integers(0, 9, 3000).astype(np.uint64)
    for ids in (small, small << np.uint64(60), small + np.uint64(2**64 - 20)):
        expected = [np.unique(ids[owners == owner]) for owner in np.unique(owners)]
        # the two ways to sort: as one integer, and by two columns
        for labels in (owners, owners.astype("U4"), owners.astype(np.float64)):
            found, starts = by_owner(ids, labels)
            parts = sorted(tuple(found[a:b].tolist()) for a, b in itertools.pairwise(starts))
            assert parts == sorted(tuple(part.tolist()) for part in expected)
    nothing = by_owner(small[:0], owners[:0])
    assert [part.tolist() for part in nothing] == [[], [0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p, i, w: FrequencyClient.of_people(replace(p, people=1), i, w), "not one of silos"),
        (lambda p, i, w: FrequencyClient.of_people(p, i.astype(int), w), "ids must be uint64"),
        (lambda p, i, w: FrequencyClient.of_people(p, i, w[:-1]), "the person of each of 41 ids"),
        (
            lambda p, i, w: FrequencyClient.of_people(p, i, w),
            "at most 40 people by the plan, got 41",
        ),
        (lambda p, i, w: FrequencyClient.of_people(p, i[:0], w[:0]), "one person at least"),
        (lambda p, i, w: FrequencyClient.of_people(p, i[:2], w[:2], 1), "must hold an item"),
        (lambda p, i, w: FrequencyClient.of_people(p, i[:2], [1.0, math.nan]), "a missing label"),
        (lambda p, i, w: FrequencyClient.of_people(p, i[:1], [None]), "a missing label"),
        (lambda p, i, w: FrequencyClient.of_people(p, i[:2], [None, "a"]), "a missing label"),
        (lambda p, i, w: FrequencyClient.of_people(p, i[:2], [object(), 1]), "can be sorted"),
        (lambda p, i, w: FrequencyClient.of_people(p, i[:2], [[1], [1, 2]]), "can be sorted"),
    ],
)
def test_what_no_silo_may_be_made_of(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make(plan_of(method="ideal", trust=None), *table(1, 41))


# ---- the plan ----


def test_a_plan_of_silos_counts_a_corrupt_one() -> None:
    active = plan_of(adversary="active", secure_sum=None)
    assert active.privacy is not None
    none = SecAggConfig(
        parameters=propose(
            N, length=ROWS * WIDTH + 1, bits=24, corrupt=0, max_dropout=0.0, adversary="active"
        )
    )
    with pytest.raises(InvalidInputError, match="corrupt must be at least 1 where silos add"):
        replace(active, secure_sum=none)
    event = replace(active.privacy.event, honest_survivors=N)
    with pytest.raises(InvalidInputError, match="one less than the silos of a round"):
        replace(active, privacy=replace(active.privacy, event=event))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"people": 0}, "people must be at least 1"),
        ({"people": 2**39}, "num_clients times people must be at most"),
        ({"people": 2**30, "privacy": None}, "secure_sum.bits must be at least"),
        ({"people": 2**30}, "delta must be below 1 / .num_clients times people."),
    ],
)
def test_what_no_plan_of_silos_may_say(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        replace(plan_of(), **changed)


def test_the_relation_of_silos_is_add_remove_and_of_nobody_else() -> None:
    plan = plan_of(method="ideal")
    assert plan.privacy is not None
    other = replace(plan.privacy.event, relation="zero-out")
    with pytest.raises(InvalidInputError, match="must be add-remove where clients are silos"):
        replace(plan, privacy=replace(plan.privacy, event=other))
    with pytest.raises(InvalidInputError, match="hides the number of clients"):
        replace(plan, people=1)
    central = plan_of(method="ideal", trust="central", silos_per_person=2)
    with pytest.raises(InvalidInputError, match="silos_per_person goes with silos"):
        replace(central, people=1)


def test_one_is_the_absent_entry() -> None:
    plan = plan_of(trust=None)
    values = plan.to_dict()
    assert values["people"] == PEOPLE and Plan.from_dict(values) == plan
    single = replace(plan, people=1, secure_sum=None)
    assert "people" not in single.to_dict()
    with pytest.raises(InvalidInputError, match="people must be at least 2 in a plan"):
        Plan.from_dict(single.to_dict() | {"people": 1})
    event = Event("rounded-gaussian", 3, "add-remove").to_dict()
    assert "silos_per_person" not in event
    with pytest.raises(InvalidInputError, match="silos_per_person must be at least 2"):
        Event.from_dict(event | {"silos_per_person": 1})


def test_what_is_printed_speaks_of_people() -> None:
    plan = plan_of(silos_per_person=2)
    assert plan.privacy is not None
    said = " ".join(guarantee_text.sentences(plan.privacy, num_releases=1, clients="silos"))
    assert "if one person is there or is not (add-remove)" in said
    assert "the silos add shares of Skellam noise" in said
    assert "one person of the population, in at most 2 silos" in said


def test_limits_allow_one_person_more() -> None:
    who = {"silos": ["a", "b"] * 60, "clients": [str(number) for number in range(120)]}
    asked: dict[str, Any] = {"width": 64, "rows": 5, "encoding": "sketch", "seed": 1}
    result = fedtally.estimate(["tea", "milk", "tea"] * 40, **who, **asked)
    said = sections.error.none_expected(result, result.top(2))
    assert said.endswith("the limits allow 1 person more or less")


def test_an_operator_sees_silos(capsys: pytest.CaptureFixture[str]) -> None:
    folder: Any = SimpleNamespace(plan=plan_of())
    assert campaign_view.planned(folder) == "1 round, in sessions of 6 silos"
    rounds = [{"round": 0, "asked": 6, "landed": 6}]
    found = {"name": "x", "state": "done", "process": None, "fingerprint": "ab", "rounds": rounds}
    found |= {"present": 5, "open": [], "ended": []}
    campaign_view.show_status(found, sections.counted.who(folder.plan))
    said = capsys.readouterr().out
    assert "silos in the sum" in said and "5 silos came lately" in said


def test_a_policy_of_people_is_proven_for_silos_alone() -> None:
    plan = plan_of()
    assert plan.privacy is not None
    PrivacyPolicy(epsilon=8.0, delta=1e-6).check(plan.privacy)
    with pytest.raises(InvalidInputError, match="demands epsilon 7.5"):
        PrivacyPolicy(epsilon=7.5, delta=1e-6, relation="add-remove").check(plan.privacy)
    PrivacyPolicy(epsilon=8.0, delta=1e-6, relation="add-remove").check(plan.privacy)
    of_clients = propose_privacy(epsilon=1.0, delta=1e-6, rows=3, width=16)
    policy = PrivacyPolicy(epsilon=8.0, delta=1e-6, relation="add-remove", trust="central")
    with pytest.raises(InvalidInputError, match="nothing is proven"):
        policy.check(of_clients)


def test_a_demand_in_zero_out_counts_the_number_of_people() -> None:
    """A cap of the plan's own epsilon suffices, and one that forgets the number does not exist."""
    plan = plan_of()
    assert plan.privacy is not None
    event = plan.privacy.event
    weaker = accounting.epsilon(replace(event, relation="zero-out"), 1e-6).epsilon
    assert weaker < 7.5 < plan.privacy.epsilon
    charge = Charge("clients", plan.fingerprint, 0, event)
    check_cap(Cap(8.0, 1e-6), [], charge)
    with pytest.raises(OverspentError, match="cap is epsilon 7.5"):
        check_cap(Cap(7.5, 1e-6), [], charge)
    with pytest.raises(InvalidInputError, match="demands epsilon 7.5"):
        PrivacyPolicy(epsilon=7.5, delta=1e-6).check(plan.privacy)
    # in one record with a plan of clients all are counted alike
    of_clients = propose_privacy(epsilon=1.0, delta=1e-6, rows=3, width=16).event
    check_cap(Cap(20.0, 1e-6), [Charge("clients", "other", 0, of_clients)], charge)
    with pytest.raises(OverspentError):
        check_cap(Cap(8.0, 1e-6), [Charge("clients", "other", 0, of_clients)], charge)


def test_a_cap_counts_a_plan_of_silos_and_one_of_two_servers() -> None:
    """Two servers cannot hide a number, so their plan costs one more counter with its own noise."""
    plan = plan_of()
    assert plan.privacy is not None
    silo = Charge("clients", plan.fingerprint, 0, plan.privacy.event)
    event = propose_privacy(epsilon=2.0, delta=1e-7, rows=3, width=16, trust="distributed").event
    servers = Charge("clients", "other", 0, event)
    assert event.draws_of_sum == 2
    cap = Cap(25.0, 1e-6)
    check_cap(cap, [servers], silo)
    check_cap(cap, [silo], servers)
    total = cap.total([silo, servers])
    assert (str(total.relation), total.trust) == ("add-remove", "distributed")
    # what is counted of the servers is above their own cost, but below that of a replaced client
    alone = cap.total([silo]).square
    added = total.square - alone
    own, replaced = (
        accounting.gaussian_bound(event.under(one)) ** 2 for one in ("zero-out", "replace-one")
    )
    assert own < added < replaced
    assert added == pytest.approx(own * (ROWS + 1) / ROWS)
    with pytest.raises(OverspentError):
        check_cap(Cap(8.0, 1e-6), [silo], servers)


# ---- an accountant written from docs/privacy-proofs/silos.md alone ----


def skellam_pair(variance: float, shift: int, step: float) -> np.ndarray[Any, Any]:
    """Return the losses of Sk(v) against itself shifted, rounded up to a grid: mass by step."""
    reach = math.ceil(12 * math.sqrt(variance)) + 40
    n = np.arange(-reach, reach + 1)
    mass = ive(np.abs(n), variance)
    loss = np.log(ive(np.abs(n), variance)) - np.log(ive(np.abs(n - shift), variance))
    return np.ceil(loss / step).astype(int), mass


def page_epsilon(
    *, rows: int, q: int, x: int, releases: int, variance: float, delta: float, sums: int
) -> float:
    left = delta - sums * 2.0**-40
    step = 2e-5
    size = 1 << 21
    total = np.ones(size // 2 + 1, complex)
    for shift, number in ((x * q, rows * releases), (x, releases)):
        places, mass = skellam_pair(variance, shift, step)
        line = np.zeros(size)
        np.add.at(line, places % size, mass)
        total *= np.fft.rfft(line) ** number
    masses = np.maximum(np.fft.irfft(total, size), 0)
    losses = np.fft.fftfreq(size, 1 / size) * step
    order = np.argsort(losses)
    losses, masses = losses[order], masses[order]

    def above(epsilon: float) -> float:
        larger = losses > epsilon
        return float((masses[larger] * -np.expm1(epsilon - losses[larger])).sum()) - left

    exact = brentq(above, 0.0, 12.0)
    u = 2 * math.sqrt(2) * erfinv(i0e(variance))
    mu = u * math.sqrt(releases * x * x * (q * q * rows + 1))
    gaussian = brentq(
        lambda e: ndtr(mu / 2 - e / mu) - math.exp(e) * ndtr(-mu / 2 - e / mu) - left, 0.0, 50.0
    )
    return min(exact, gaussian)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("rows", "q", "silos", "rounds", "target"),
    [(1, 1, 1, 1, 1.0), (3, 1, 1, 1, 1.0), (5, 1, 1, 1, 4.0), (3, 1, 2, 1, 1.0), (3, 2, 1, 3, 2.0)],
)
def test_an_accountant_from_the_page_agrees(
    rows: int, q: int, silos: int, rounds: int, target: float
) -> None:
    event = Event(
        "skellam",
        rows,
        "add-remove",
        max_items=q,
        participations=rounds,
        honest_survivors=4,
        silos_per_person=silos,
    )
    event = replace(event, variance=accounting.calibrate(event, target, 1e-6))
    assert event.variance is not None
    own = page_epsilon(
        rows=rows,
        q=q,
        x=silos,
        releases=rounds,
        variance=event.variance,
        delta=1e-6,
        sums=rounds * silos,
    )
    found = accounting.epsilon(event, 1e-6).epsilon
    assert found == pytest.approx(own, rel=1e-3)
    assert found == pytest.approx(target, rel=1e-3)


def test_what_forgetting_a_part_would_cost() -> None:
    """The figures of the proof page: what epsilon 1 would be."""
    for rows, uncharged in ((1, 1.53), (3, 1.17), (5, 1.10)):
        forgotten = Event("skellam", rows, "zero-out", honest_survivors=2)
        variance = accounting.calibrate(forgotten, 1.0, 1e-6)
        true = replace(forgotten, relation="add-remove", variance=variance)
        assert accounting.epsilon(true, 1e-6).epsilon == pytest.approx(uncharged, abs=0.01)
    event = Event("skellam", 3, "add-remove", honest_survivors=2)
    event = replace(event, variance=accounting.calibrate(event, 1.0, 1e-6))
    assert event.variance is not None
    for silos, own in ((2, 1.45), (3, 1.24), (4, 1.17)):
        less = replace(event, variance=event.variance * (silos - 1) / silos)
        assert accounting.epsilon(less, 1e-6).epsilon == pytest.approx(own, abs=0.01)
    for silos, own in ((2, 2.12), (3, 3.32)):
        more = replace(event, silos_per_person=silos)
        assert accounting.epsilon(more, 1e-6).epsilon == pytest.approx(own, abs=0.02)


def test_a_person_adds_one_to_the_number() -> None:
    event = Event("skellam", 3, "add-remove", max_items=4, clip_norm=5.0, honest_survivors=2)
    assert event.round_square == 25 + 1
    assert event.shifts == {4: 3, 1: 1}


def test_silos_and_participations_multiply() -> None:
    event = Event("skellam", 3, "add-remove", participations=3, honest_survivors=2)
    assert replace(event, silos_per_person=2).l2_sensitivity == 2 * event.l2_sensitivity
    assert replace(event, silos_per_person=2).shifts == {2: 12}


# ---- a plan from what is asked ----


def planned(silos: int = N, expected: int | None = None, each: int = 1, **asked: Any) -> Proposal:
    """Return a plan for silos of up to 40 people, over the 50 items."""
    request = Request(**{"tau": 0.1, "secure_sum": "secagg", **asked})
    spec = request.resolve(silos=Silos(PEOPLE, each, expected))
    return propose_plan(spec, DOMAIN, silos, Frequencies.assumed(50), seed=bytes(32))


@pytest.mark.parametrize("asked", [{}, {"epsilon": 8.0}])
def test_a_planned_campaign_of_silos_runs(asked: dict[str, Any]) -> None:
    proposal = planned(**asked)
    plan = proposal.plan.with_keys(server_key=SERVER_KEY.public)
    assert (plan.people, plan.num_clients, proposal.expected) == (PEOPLE, N, N * PEOPLE)
    # a silo's CPU is that of the people who are expected
    fewer = planned(expected=N * PEOPLE // 2, **asked).bill().client_seconds
    row = REFERENCE.seconds["row"]
    assert proposal.bill().client_seconds - fewer == pytest.approx(PEOPLE / 2 * row, rel=0.1)
    [sketch] = landed(plan, [PEOPLE] * N).release(RANDOM)
    assert sketch.num_silos == N
    noise = 0.0 if plan.privacy is None else plan.privacy.largest_stddev(N)
    assert abs(sketch.num_clients - N * PEOPLE) <= 6 * noise
    if plan.privacy is not None:
        # delta is below one over all people that there may be, and somebody is counted corrupt
        assert plan.privacy.delta * N * PEOPLE < 1
        assert plan.privacy.event.relation.hides_number
        assert plan.secure_sum is not None and plan.secure_sum.corrupt == 1


@pytest.mark.parametrize("each", [1, 2, 3])
def test_a_sketch_is_sized_with_the_noise_that_its_plan_has(each: int) -> None:
    spec = Request(epsilon=2.0, secure_sum="secagg").resolve(silos=Silos(5000, each))
    design = Design.for_fleet(spec, DOMAIN, 10, bytes(32))
    plan = design.with_size(design.example, 7, 100).plan()
    assert plan.privacy is not None
    assert plan.privacy.event.silos_per_person == each
    # Gaussian accounting is close to that of the plan
    assert design.largest_noise(design.example) == pytest.approx(
        plan.privacy.largest_stddev(10), rel=0.05
    )


def test_delta_is_small_beside_the_people_that_there_may_be() -> None:
    spec = Request(epsilon=1.0, secure_sum="secagg").resolve(silos=Silos(40_000))
    design = Design.for_fleet(spec, DOMAIN, 100, bytes(32))
    plan = design.with_size(design.example, 3, 16).plan()
    assert plan.privacy is not None
    assert plan.privacy.delta == pytest.approx(0.1 / 4_000_000)


def test_noise_on_the_number_of_people_is_in_the_predicted_error() -> None:
    # nearly everybody holds one item: the share of a noised number is off by the noise of both
    heavy, people, runs = 0.99, 400, 200_000
    known = Frequencies.from_frequencies([heavy], 1)
    asked = Request(epsilon=1.0, secure_sum="secagg").resolve(silos=Silos(PEOPLE))
    design = Design.for_fleet(asked, DOMAIN, 10, bytes(32))
    plan = design.with_size(design.example, 16, 64).plan()
    assert plan.privacy is not None
    stddev = plan.privacy.largest_stddev(10)
    draws = np.random.default_rng(5).normal(0.0, stddev, (2, runs))
    shares = (heavy * people + draws[0] / math.sqrt(16)) / (people + draws[1])
    found = float(np.quantile(np.abs(shares - heavy), 0.9))
    linf = predict_linf(plan, known, "joint", 0.1, expected=people)
    bare = replace(Predictor.from_plan(plan, "joint"), num_clients=people)
    assert bare.linf(known, 0.1, 16, 64) < 0.5 * found
    assert 0.97 * found <= linf <= 1.3 * found


def test_fewer_people_than_there_may_be_have_the_larger_error() -> None:
    asked = Request(epsilon=2.0, secure_sum="secagg").resolve(silos=Silos(PEOPLE))
    design = Design.for_fleet(asked, DOMAIN, 10, bytes(32))
    plan = design.with_size(design.example, 7, 400).plan()
    known = Frequencies.assumed(50)
    few, many = (predict_linf(plan, known, "joint", 0.1, expected=each) for each in (100, 400))
    assert few > 2 * many


@pytest.mark.parametrize(
    ("silos", "asked", "message"),
    [
        (3, {"adversary": "active", "max_dropout": 0.0}, "silos in a sum, 4 to 12 can"),
        (7, {"adversary": "active", "max_dropout": 0.2}, "silos in a sum, 8 to 12 can"),
        (3, {}, "silos in a sum, 4 to 12 can"),
        (6, {"secure_sum": "two-server"}, "not summed by two servers yet"),
        (6, {"epsilon": 1.0, "neighbours": "zero-out"}, "neighbours must be add-remove"),
        (6, {"epsilon": 1.0, "neighbours": "add-remove", "max_clients": 9}, "is public; leave"),
        (200, {"num_rounds": 2, "schedule": "hybrid"}, "is not for several rounds of silos"),
        (6, {"each": 2}, "silos_per_person= goes with epsilon="),
        (6, {"each": 7, "epsilon": 1.0}, "silos_per_person must be at most 6"),
        (6, {"expected": 241}, "expected_people must be at most 240"),
        (6, {"epsilon": 1.0, "tau": 0.01}, "silos of as many people each"),
    ],
)
def test_what_no_plan_is_made_for(silos: int, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        planned(silos, **asked)


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.2])
def test_numbers_that_fit_are_those_that_can_be_planned(adversary: str, dropout: float) -> None:
    def can(silos: int) -> bool:
        spec = Request(secure_sum="secagg", adversary=adversary, max_dropout=dropout)
        try:
            Design.for_fleet(spec.resolve(silos=Silos(PEOPLE)), DOMAIN, silos, bytes(32))
        except InvalidInputError:
            return False
        return True

    fitting = fitting_numbers(dropout, adversary)
    assert [*fitting] == [silos for silos in range(3, 13) if can(silos)]


def test_a_report_says_what_protects_a_person() -> None:
    said = " ".join(sections.privacy.protects(plan_of()))
    assert "changes little if one person is there or is not." in said
    assert (
        "one person of the population, in one silo: whether that person is there, and all that"
        " person's items, over the whole campaign, with one round for each silo." in said
    )
    assert "client" not in said
    assert "what one person contributed" in " ".join(sections.privacy.protects(plan_of(trust=None)))


@pytest.mark.parametrize(("rows", "q", "silos"), [(1, 1, 1), (3, 1, 1), (5, 2, 1), (3, 1, 3)])
def test_replacing_costs_more_than_adding(rows: int, q: int, silos: int) -> None:
    """A silo at its bound replaces somebody: the replace-one epsilon covers both cases."""
    given: dict[str, Any] = {"max_items": q, "silos_per_person": silos, "honest_survivors": 4}
    event = Event("skellam", rows, "add-remove", variance=200.0, **given)
    other = accounting.epsilon(event.under("replace-one"), 1e-6).epsilon
    assert accounting.epsilon(event, 1e-6).epsilon <= other
