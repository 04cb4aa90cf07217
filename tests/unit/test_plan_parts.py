"""The parts of a plan: what follows from clients, candidates, vector, summing and protection."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from fedtally.base.encoding import Encoding
from fedtally.base.shares import whole_share
from fedtally.crypto.keys import Secret
from fedtally.domain import IntegerRange, OpenStrings
from fedtally.errors import InvalidInputError
from fedtally.plan import Candidates, Clients, Plan, Protection, Summing, Sums, Vector
from fedtally.plan.frequencies.pilot import Pilot
from fedtally.plan.parts.summation import Summation
from fedtally.privacy.config import PrivacyConfig, propose
from fedtally.privacy.events import Relation
from fedtally.privacy.row_noise import row_noise_bound
from fedtally.secagg import params
from fedtally.secagg.config import SecAggConfig, TwoServerConfig
from fedtally.secagg.proposal import propose as propose_sum
from fedtally.simulation.pilot_clients import draw_pilot
from fedtally.simulation.round_tally import RoundTally
from fedtally.sketch import CountSketch, NoiseMark, Schedule, SketchSpec, Spelling

N, ROWS, WIDTH = 40, 3, 16
ASKED: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6, "rows": ROWS, "width": WIDTH}
OF_ADDERS: dict[str, dict[str, Any]] = {
    "aggregator": {},
    "clients": {"trust": "distributed", "honest_survivors": 30, "most_clients": N},
    "servers": {"trust": "distributed"},
}
SOMEBODY = list(OF_ADDERS)
ADDERS = ["nobody", *SOMEBODY]
COHORTS = SecAggConfig(
    parameters=propose_sum(N, length=ROWS * WIDTH, bits=24, corrupt=1, max_dropout=0.1)
)
SERVERS = TwoServerConfig(length=ROWS * WIDTH, bits=24, n_max=N, min_batch=20, corrupt=2)


def part(by: str, schedule: str = "shared", rounds: int = 4, *, secure: bool = True) -> Protection:
    agreed = None if by == "nobody" else terms(by)
    return Protection(agreed, Schedule.parse(schedule), rounds, has_secure_sum=secure)


@cache  # and not at import: each process that collects tests would look for the noise
def terms(by: str) -> PrivacyConfig:
    return propose(**ASKED, **OF_ADDERS[by])


@pytest.fixture(scope="module", autouse=True)
def noise_is_found() -> None:
    """Look for the noise outside the tests, whose time is measured one by one."""
    for by in SOMEBODY:
        terms(by)


# ---- how rounds are to be summed ----

IDEAL, SECAGG, TWO = Summation(), Summation("secagg", max_cohort=100), Summation("two-server")


def test_clients_of_a_sum_are_those_of_its_cohort_that_do_not_drop_out() -> None:
    assert IDEAL.clients_of_sum(250) == 250
    assert SECAGG.clients_of_sum(250) == pytest.approx(250 / 3 * 0.95)
    assert TWO.clients_of_sum(250) == pytest.approx(250 * 0.95)


def test_cohorts_alone_split_a_round() -> None:
    assert [SECAGG.is_split(number) for number in (100, 101)] == [False, True]
    assert not IDEAL.is_split(5000) and not TWO.is_split(5000)
    assert SECAGG.sizes(250) == [84, 83, 83]
    assert TWO.sizes(250) == [250] and TWO.sizes(0) == [] == SECAGG.sizes(0)


def test_two_servers_alone_add_up_rounds_and_have_a_most_for_them() -> None:
    releases, most = [range(3), range(3, 4)], params.MAX_CLIENTS
    assert TWO.rounds_of_sum(releases) == [1, 3]
    assert TWO.sums([5, 6, 7, 8], releases) == [18, 8]
    assert SECAGG.rounds_of_sum(releases) == [1] == IDEAL.rounds_of_sum(releases)
    assert SECAGG.sums([5, 6, 7, 8], releases) == [5, 6, 7, 8]
    assert TWO.fits([most, 1]) and not TWO.fits([1, most + 1]) and IDEAL.fits([most + 1])


def test_extreme_sums_are_those_of_full_cohorts_where_there_are_any() -> None:
    assert SECAGG.extremes(195, 205) == [195, 200, 201, 205]
    assert TWO.extremes(195, 205) == [195, 205] == IDEAL.extremes(195, 205)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"max_corrupt": 1.0}, "must be at least 0 and below 1, got 1.0"),
        ({"dropout": 0.3, "max_dropout": 0.1}, "must be at least dropout, 0.3, got 0.1"),
        ({"max_cohort": 2}, "must be at least 3, got 2"),
        ({"validity": "maybe"}, "maybe"),
    ],
)
def test_shares_of_a_cohort_have_bounds(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Summation("secagg", **asked)
    assert Summation("secagg", dropout=0.3).borne == 0.3
    assert Summation("two-server", validity="none").validity == "none"


def test_a_share_of_clients_is_not_cut_below_a_whole_number() -> None:
    """0.29 * 100 is 28.999...: of 100 clients 29 may drop out, and fewer honest ones are sure."""
    for parts in range(1000):
        for number in (0, 1, 7, 100, 997, 1000, 50_000):
            assert whole_share(parts / 1000, number) == parts * number // 1000
    for number in (3, 7, 100, 997, 30_000, 10**9 + 7):
        for whole in {0, 1, number // 30, number // 3, number - 1, number}:
            assert whole_share(whole / number, number) == whole
    assert int(0.29 * 100) == 28
    assert Summation(max_dropout=0.29, max_corrupt=0.01).honest_clients([100]) == 100 - 29 - 1
    assert Pilot(share=0.29, rows=3, width=8).clients(100) == 29
    everybody = RoundTally(100, np.array([3], np.uint64), np.array([100]))
    [pilot], [rest] = draw_pilot([everybody], 0.29, np.random.default_rng(0))
    assert (pilot.num_clients, rest.num_clients) == (29, 71)


def test_clients_prove_who_they_are_where_a_list_says_it() -> None:
    assert TWO.has_identities and Summation("secagg", "active").has_identities
    assert not IDEAL.has_identities and not SECAGG.has_identities


def test_sums_of_a_plan_are_those_of_its_rounds_cohorts_or_releases() -> None:
    rounds, releases = [90, 0, 30], [range(2), range(2, 3)]
    cohorts, servers = Summing(COHORTS, 90), Summing(SERVERS, 90)
    assert Summing(None, 90).sums(rounds, releases) == [90, 30]
    assert cohorts.sums(rounds, releases) == [30, 30, 30, 30]  # of at most 40
    assert servers.sums(rounds, releases) == [90, 30]
    assert servers.sums([0, 0, 30], releases) == [30]
    fewest = [summing.fewest_summed for summing in (Summing(None, 90), cohorts, servers)]
    assert fewest == [None, COHORTS.parameters.min_survivors, 20]


# ---- who sends the vectors ----


def test_persons_count_themselves_and_a_silo_says_how_many_it_counts() -> None:
    persons, silos = Clients(1, 4), Clients(200, 4)
    entries = np.array([950])
    assert persons.people_and_silos(entries[:0], 12) == (12, 0)
    assert silos.people_and_silos(entries, 12) == (950, 12)
    assert [persons.fits(number) for number in (0, 1)] == [True, False]
    assert [silos.fits(number) for number in (0, 1)] == [False, True]


def test_the_number_of_silos_is_public_whatever_the_relation() -> None:
    hidden = Relation.ADD_REMOVE
    assert Clients(1, 1).are_hidden(hidden) and not Clients(2, 1).are_hidden(hidden)
    others = (None, Relation.ZERO_OUT, Relation.REPLACE_ONE)
    assert not any(Clients(people, 1).are_hidden(one) for people in (1, 2) for one in others)


def test_a_sum_of_silos_holds_at_most_their_people_and_shows_none_without_silos() -> None:
    persons, silos = Clients(1, 4), Clients(200, 4)
    assert (persons.most_people(12, 0), silos.most_people(12, 3)) == (12, 600)
    assert (persons.shown_people(-2, 0), silos.shown_people(9, 0)) == (-2, 0)
    assert silos.shown_people(9, 1) == 9
    assert persons.can_be_drawn and not silos.can_be_drawn
    assert "not one of silos" in persons.why_no_silos and not silos.why_no_silos


@pytest.mark.parametrize("people", [1, 50])
def test_the_largest_entry_is_that_of_items_that_share_a_counter(people: int) -> None:
    """All items of a client may share a counter of a sketch, those of a person no other one."""
    clients = Clients(people, 3)
    assert clients.most_items == clients.largest_entry(Encoding.SKETCH) == 3 * people
    assert clients.largest_entry(Encoding.HISTOGRAM) == people


# ---- what may be counted ----


def test_what_needs_a_list_is_refused_where_nobody_has_one() -> None:
    listed, strings = (
        Candidates(IntegerRange(1, 9).describe()),
        Candidates(OpenStrings().describe()),
    )
    assert (listed.num_listed, strings.num_listed) == (9, 0)
    listed.check_listed("trends look", "declare candidates")
    with pytest.raises(InvalidInputError, match=r"trends look .* the list: declare candidates$"):
        strings.check_listed("trends look", "declare candidates")
    listed.check_recovery("median")
    strings.check_recovery("joint")
    with pytest.raises(InvalidInputError, match="recovery must be joint .* got median"):
        strings.check_recovery("median")
    assert "give the names" in strings.unspelled(None)
    assert not strings.unspelled(object()) and not listed.unspelled(None)
    with pytest.raises(InvalidInputError, match="the domain must be open, got range:1..9"):
        OpenStrings.of(IntegerRange(1, 9))


def test_counts_are_exact_without_noise_and_shared_counters_alone() -> None:
    vectors = [Vector(encoding) for encoding in Encoding]
    exact = {by: [part(by).leaves_exact(vector) for vector in vectors] for by in ADDERS}
    assert exact == {by: [False, by == "nobody"] for by in ADDERS}


OPEN = OpenStrings(32).describe()


def test_only_an_open_domain_is_spelled() -> None:
    listed, spelling = IntegerRange(1, 9).describe(), Spelling(4, 10, 32)
    assert (Candidates(listed).kind, Candidates(OPEN).kind) == ("listed", "open")
    Candidates(listed).check_spelling(None)
    Candidates(OPEN).check_spelling(spelling)
    for described, size in ((listed, spelling), (OPEN, None)):
        with pytest.raises(InvalidInputError, match="spelling"):
            Candidates(described).check_spelling(size)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"normalise": "nfd"}, 'domain.normalise must be "nfc"'),
        ({"max_length": 16}, "domain.max_length must be 32"),
        ({"bits": 7}, "domain.bits must be at least 8"),
        ({"size": 5}, "candidates, got public True and size 5"),
        ({"public": False}, "is public and has"),
    ],
)
def test_an_open_domain_is_described_in_one_way(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Candidates(OPEN | change).check_spelling(Spelling(4, 10, 32))


# ---- what a client sends ----


@pytest.mark.parametrize("first", [None, 5])
def test_a_vector_has_the_bounds_and_the_parity_of_its_items(first: int | None) -> None:
    """By sums of a few clients: some of 8 items stand in a sketch with a minus, none otherwise."""
    vector = Vector(Encoding.SKETCH if first is None else Encoding.HISTOGRAM)
    rows, width = (3, 8) if first is None else (1, 8)
    assert vector.first_id(Candidates(IntegerRange(5, 12).describe())) == first
    assert vector.first_id(IntegerRange(5, 12)) == first
    spec = SketchSpec(rows, width, Schedule.parse("shared"), 1, bytes(32), None, first)
    lowest = 0
    for clients in (28, 29):  # of one item each
        sketch = CountSketch(spec, 0)
        sketch.add_range(5, np.append(np.full(7, 4), clients - 28), num_clients=clients)
        sums = [int(row.sum()) for row in sketch.all_rows()]
        assert {number % 2 for number in sums} == {clients % 2}
        lowest = min(lowest, *(int(row.min()) for row in sketch.all_rows()))
    assert vector.has_parity(1) == vector.shares_counters == (lowest < 0)
    assert not vector.has_parity(2)
    assert 0 <= -lowest <= -vector.lowest(29, 0)
    assert vector.lowest(29, 9) == vector.lowest(29, 0) - 9


# ---- who adds the noise ----


@pytest.mark.parametrize("by", ADDERS)
def test_a_protection_says_who_adds_the_noise(by: str) -> None:
    protection = part(by)
    assert protection.by == by
    assert protection.is_charged == (by != "nobody")
    assert protection.mark("ab") == (None if by == "nobody" else NoiseMark(by, "ab"))


@pytest.mark.parametrize(
    ("by", "ideal", "secure"),
    [
        ("nobody", Sums.PUBLIC, Sums.PUBLIC),
        ("aggregator", Sums.SECRET, Sums.SECRET),
        ("clients", Sums.SECRET, Sums.NOISED),
        ("servers", Sums.SECRET, Sums.NOISED),
    ],
)
def test_a_sum_is_public_secret_or_noised(by: str, ideal: Sums, secure: Sums) -> None:
    """Nobody's sum is ever public unless nobody promised anything."""
    assert part(by, secure=False).sums is ideal
    assert part(by, secure=True).sums is secure


@pytest.mark.parametrize("schedule", ["shared", "hybrid", "batched:2"])
@pytest.mark.parametrize("by", ADDERS)
def test_rounds_share_noise_where_it_is_added_once(by: str, schedule: str) -> None:
    alone = [range(i, i + 1) for i in range(4)]
    together = {"shared": [range(4)], "hybrid": alone, "batched:2": [range(2), range(2, 4)]}
    expected = together[schedule] if by in ("aggregator", "servers") else alone
    assert part(by, schedule).releases == expected


@pytest.mark.parametrize("by", ADDERS)
def test_one_party_adds_noise_and_no_other(by: str) -> None:
    protection = part(by)
    drawn = {
        "clients": protection.of_client(),
        "servers": protection.of_server(),
        "aggregator": protection.of_release(),
    }
    assert [name for name, noise in drawn.items() if noise is not None] == [by] * (by != "nobody")
    if by == "clients":
        assert drawn[by] == terms(by).share()
    elif by != "nobody":
        assert drawn[by] == terms(by).noise()


@pytest.mark.parametrize(
    ("by", "number"), [("nobody", 0), ("aggregator", 1), ("clients", 1), ("servers", 2)]
)
def test_a_sum_holds_as_many_draws_as_parties_add(by: str, number: int) -> None:
    """The variances of the draws add up to what is said of the sum, for any number of clients."""
    protection = part(by)
    for clients in (30, N):
        draws = protection.of_sum(clients)
        assert len(draws) == number
        total = math.fsum(noise.variance for noise in draws)
        assert protection.stddev(clients) ** 2 == pytest.approx(total, rel=1e-12)


def test_shares_of_a_sum_grow_with_its_clients_and_other_noise_with_its_sums() -> None:
    one, many = part("clients").stddev(10), part("clients").stddev(40, sums=3)
    assert many == pytest.approx(2 * one, rel=1e-12)  # all sums together have these 40 clients
    for by in ("aggregator", "servers"):
        assert part(by).stddev(40, sums=9) == pytest.approx(3 * part(by).stddev(10), rel=1e-12)
    assert part("nobody").stddev(40, sums=9) == 0


@pytest.mark.parametrize("by", ["nobody", "aggregator"])
def test_a_secure_sum_has_no_room_for_noise_that_comes_later(by: str) -> None:
    assert part(by).bound(ROWS * WIDTH, N) == 0
    assert part(by).row_bound(ROWS, WIDTH, N) == 0


@pytest.mark.parametrize(
    ("by", "law", "more"), [("clients", "skellam", 0), ("servers", "discrete-gaussian", 1)]
)
def test_a_secure_sum_has_room_for_its_noise(by: str, law: Any, more: int) -> None:
    """But for a probability of 2^-40, so in every one of 2,000 sums."""
    protection, counters = part(by), ROWS * WIDTH
    bound = protection.bound(counters, N)
    assert bound == params.noise_bound(terms(by).largest_stddev(N), counters, law) + more
    row_bound = protection.row_bound(ROWS, WIDTH, N)
    asked = terms(by)
    draws = (asked.share(N),) if by == "clients" else (asked.noise(), asked.noise())
    assert row_bound == row_noise_bound(draws, asked.largest_stddev(N), ROWS, WIDTH)
    keys = [Secret(bytes([i]) * 32) for i in range(2)]
    drawn = [
        noise.draw(key, 2_000 * WIDTH)
        for key, noise in zip(keys, protection.of_sum(N), strict=False)
    ]
    sums = np.abs(np.sum(drawn, axis=0)).reshape(-1, WIDTH)
    assert sums.max() <= bound
    assert sums.sum(axis=1).max() <= row_bound


@pytest.mark.parametrize("by", SOMEBODY)
def test_bounds_of_a_client_are_those_of_its_terms(by: str) -> None:
    event = replace(terms(by).event, participations=3, max_items=2, clip_norm=2.0, variance=900.0)
    protection = replace(part(by), terms=replace(terms(by), epsilon=90.0, event=event))
    assert (protection.participations, protection.clip_norm) == (3, 2.0)
    assert (part("nobody").participations, part("nobody").clip_norm) == (1, None)


# ---- how rounds are summed ----

WAYS = {"ideal": None, "secagg": COHORTS, "two-server": SERVERS}


@pytest.mark.parametrize("kind", WAYS)
def test_one_way_to_sum_has_terms_and_no_other(kind: str) -> None:
    summing = Summing(WAYS[kind], 100)
    assert summing.kind == kind
    assert summing.cohorts is (COHORTS if kind == "secagg" else None)
    assert summing.servers is (SERVERS if kind == "two-server" else None)


def test_who_runs_one_protocol_alone_refuses_the_others() -> None:
    assert Summing(COHORTS, 100).of_cohorts() is COHORTS
    assert Summing(SERVERS, 100).of_servers() is SERVERS
    for other in (None, SERVERS):
        with pytest.raises(InvalidInputError, match="not summed by secure aggregation"):
            Summing(other, 100).of_cohorts()
    for other in (None, COHORTS):
        with pytest.raises(InvalidInputError, match="not summed by two servers"):
            Summing(other, 100).of_servers()


@pytest.mark.parametrize(
    ("kind", "least", "most", "honest", "missing"),
    [
        ("ideal", 1, 100, 100, ()),
        ("secagg", COHORTS.parameters.n_min, N, COHORTS.honest_survivors, ("server_key",)),
        ("two-server", 20, N, 18, ("leader_key", "helper_key", "allow_list")),
    ],
)
def test_sums_have_their_sizes(
    kind: str, least: int, most: int, honest: int, missing: tuple[str, ...]
) -> None:
    summing = Summing(WAYS[kind], 100)
    assert (summing.least_clients, summing.most_clients) == (least, most)
    assert summing.honest_clients == honest
    assert summing.missing_keys == missing


def test_two_servers_alone_open_whole_releases() -> None:
    releases = [range(2), range(2, 4)]
    opened = {kind: Summing(way, 100).opened_together(releases) for kind, way in WAYS.items()}
    assert opened == {"ideal": [], "secagg": [], "two-server": releases}


# ---- the parts of a plan ----


@pytest.mark.parametrize("by", ADDERS)
def test_a_plan_has_the_parts_of_its_values(by: str) -> None:
    agreed = {"clients": COHORTS, "servers": SERVERS}.get(by)
    if by == "servers":
        noise = part(by).bound(ROWS * WIDTH, N)
        agreed = replace(SERVERS, noise=noise)
    domain = {"kind": "range", "size": 100, "public": True, "first": 1, "last": 100}
    sizes = (ROWS, WIDTH, Schedule.parse("shared"), 4, 4 * N, N)
    plan = Plan(*sizes, domain, 1, bytes(32), secure_sum=agreed, privacy=part(by).terms)
    assert plan.protection == part(by, secure=by in ("clients", "servers"))
    assert plan.summing == Summing(agreed, N)
    assert plan.noise_mark == plan.protection.mark(plan.fingerprint)
    assert plan.noise_bound == plan.protection.bound(ROWS * WIDTH, plan.summing.most_clients)
