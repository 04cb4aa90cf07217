"""The sizes of cohorts that a plan allows: each of them is safe, bears its dropouts and has the
noise that the plan promises."""

from __future__ import annotations

import itertools
import math
import re
import secrets
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from hypothesis import assume, given
from hypothesis import strategies as st

import fedtally
from fedtally.answer.sections import trust
from fedtally.campaign.cohort import CohortRun
from fedtally.crypto.keys import Secret, SigningKey
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.design import Design
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.proposal import Proposal, propose
from fedtally.plan.request import Request
from fedtally.plan.secure_sum import terms
from fedtally.secagg import proposal
from fedtally.secagg.allow_list import MAX_KEYS, AllowList
from fedtally.secagg.client import MemoryJournal
from fedtally.secagg.config import SecAggConfig
from fedtally.secagg.params import ClientPolicy, Graph, Parameters, share_of
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import Schedule

DOMAIN = IntegerRange(1, 50)
ACTIVE = {"secure_sum": "secagg", "adversary": "active"}


def proposed(clients: int = 200, **options: Any) -> Proposal:
    given = {"secure_sum": "secagg", "rows": 3, "max_bytes": 6000, "recovery": "median"} | options
    law = Frequencies.assumed(50, 1.2)
    return propose(Request(**given).resolve(), DOMAIN, clients, law, seed=bytes(32))


def parameters_of(plan: Plan) -> Parameters:
    assert isinstance(plan.secure_sum, SecAggConfig)
    return plan.secure_sum.parameters


def chance_of_many(n: int, marked: int, k: int, least: int) -> float:
    """Return an upper bound on the probability that, of n clients in a ring, some client has so
    many neighbours among the marked ones, which were drawn without a look at the ring."""
    ways = sum(
        math.comb(marked, i) * math.comb(n - 1 - marked, k - i)
        for i in range(least, min(k, marked) + 1)
    )
    return n * ways / math.comb(n - 1, k)


def chance_of_a_cut(p: Parameters, n: int) -> float:
    """Return an upper bound on the probability that corrupt and absent clients cut the ring, where
    all but min_survivors are absent."""
    k, bad = p.ring_neighbours, p.corrupt + n - p.min_survivors
    return n * (n - k - 1) / 2 * math.comb(bad, k) / math.comb(n, k)


@given(
    adversary=st.sampled_from(["semi-honest", "active"]),
    cohort=st.integers(3, 400),
    missing=st.floats(0, 0.6),
    max_corrupt=st.floats(0, 0.3),
    max_dropout=st.floats(0, 0.45),
)
def test_every_size_that_a_plan_allows_is_safe(
    adversary: str, cohort: int, missing: float, max_corrupt: float, max_dropout: float
) -> None:
    """By sums of this file, beside the predicate of the client."""
    least = max(3, math.ceil((1 - missing) * cohort))
    asked = Request(
        secure_sum="secagg",
        adversary=adversary,
        max_corrupt=max_corrupt,
        max_dropout=max_dropout,
        cohort=cohort,
        cohort_min=least,
    )
    summation = asked.resolve().summation
    try:
        agreed = terms(summation, [cohort], 1, 100, signed=True)
    except InvalidInputError:
        assume(False)
    assert isinstance(agreed, SecAggConfig)
    p = agreed.parameters
    assert (p.n_min, p.n_max) == (least, cohort)
    assert p.corrupt >= math.floor(max_corrupt * cohort)  # of a full cohort
    assert p.honest_survivors == p.min_survivors - p.corrupt >= 2
    for n in range(least, cohort + 1):
        p.check_roster(n)
        threshold, left = p.graph(n).threshold, n - share_of(p.max_dropout_ppm, n)
        assert p.min_survivors <= left  # dropouts that it bears leave enough
        if p.is_complete:
            # no two sets of t clients share corrupt ones alone, and the survivors reach t
            assert 2 * threshold > n + p.corrupt
            assert threshold <= left
            if adversary == "active":
                assert threshold <= p.min_survivors <= left - p.corrupt
        else:
            k = p.ring_neighbours
            assert chance_of_many(n, p.corrupt, k, threshold) <= 2**-41
            assert chance_of_many(n, n - left, k, k - threshold + 1) <= 2**-20 * (1 + 1e-6)
            assert chance_of_a_cut(p, n) <= 2**-41


def test_one_ring_serves_both_ends() -> None:
    """The largest roster needs the neighbours, since many may be absent, and the smallest the
    threshold, since corrupt clients are a larger share of it."""
    graphs = []
    for least in (200, 400):
        summation = Request(secure_sum="secagg", cohort=400, cohort_min=least).resolve().summation
        agreed = terms(summation, [400], 1, 100, signed=True)
        assert isinstance(agreed, SecAggConfig)
        graphs.append(agreed.parameters.graph(400))
    assert graphs == [Graph(64, 21), Graph(30, 16)]


def test_a_size_between_may_be_the_one_that_is_stopped() -> None:
    """Dropouts are rounded to whole clients: 6 and 8 clients bear theirs, and 7 do not."""
    asked: dict[str, Any] = {"length": 1, "bits": 16, "corrupt": 1, "max_dropout": 0.45}
    for n in (6, 8):
        assert proposal.propose(n, **asked).n_min == n
    with pytest.raises(InvalidInputError, match="no graph of 7 clients"):
        proposal.propose(8, n_min=6, **asked)


def test_noise_counts_on_the_smallest_cohort_without_its_dropouts() -> None:
    full, room = (
        Design.for_fleet(
            Request(secure_sum="secagg", cohort=40, cohort_min=least, epsilon=4.0).resolve(),
            DOMAIN,
            200,
            bytes(32),
        )
        .with_size(Schedule.parse("shared"), 3, 50)
        .plan()
        for least in (40, 30)
    )
    for plan, n_min, honest in ((full, 40, 40 - 2 - 2), (room, 30, 30 - 2 - 2)):
        p = parameters_of(plan)
        assert (p.n_min, p.n_max, p.corrupt) == (n_min, 40, 2)
        assert plan.privacy is not None
        event = plan.privacy.event
        assert event.honest_survivors == p.honest_survivors == honest
        # that many shares are the whole noise of the guarantee
        assert plan.privacy.share(honest).variance >= event.noise_variance * (1 - 1e-12)
    assert full.privacy is not None and room.privacy is not None
    # the same guarantee: each client of the second one adds a larger share
    assert room.privacy.share().variance > 1.3 * full.privacy.share().variance


@each_case(
    ("options", "sizes"),
    [
        ({"cohort": 40}, (32, 40)),
        ({"cohort": 10}, (8, 10)),
        ({"cohort": 11}, (9, 11)),
        ({"cohort_min": 32}, (32, 40)),
        ({"cohort_min": 30}, (30, 37)),
        ({"cohort": 40, "cohort_min": 40}, (40, 40)),
        ({"cohort": 40, "cohort_min": 26, **ACTIVE}, (26, 40)),
        ({"cohort": 20, "num_rounds": 10}, (16, 20)),
    ],
)
def test_a_size_follows_from_the_other(options: dict[str, Any], sizes: tuple[int, int]) -> None:
    p = parameters_of(proposed(**options).plan)
    assert (p.n_min, p.n_max) == sizes


@each_case(
    ("options", "message"),
    [
        ({"cohort": 40, "cohort_min": 41}, "cohort_min must be at most cohort, 40, got 41"),
        ({"cohort": 2}, "cohort must be at least 3, got 2"),
        ({"cohort": 3, "cohort_min": 2}, "cohort_min must be at least 3, got 2"),
        ({"cohort": 1001, **ACTIVE}, "cohort must be at most 1000, got 1001"),
        ({"cohort": "40"}, "cohort must be an integer"),
        (
            {"cohort": 40, "max_cohort": 50},
            "cohort= does not go with max_cohort=: both say how large",
        ),
        (
            {"cohort_min": 40, "max_cohort": 50},
            "cohort_min= does not go with max_cohort=: both say",
        ),
        (
            {"cohort": 40, "secure_sum": "two-server"},
            "cohort= goes with the secure sum secagg, got two-server: leave cohort= out",
        ),
        (
            {"cohort_min": 40, "secure_sum": None},
            "cohort_min= goes with the secure sum secagg, got",
        ),
        ({"cohort": 201}, "cohort must be at most 200, the clients of a round, got 201"),
        ({"cohort": 40, "num_rounds": 10}, "cohort must be at most 20, the clients of a round"),
        (
            {"cohort": 60, "cohort_min": 55},
            "cohort_min must be at most 50, got 55: a round of 200 clients makes cohorts of 50",
        ),
        (
            {"cohort": 40, "cohort_min": 30, "max_corrupt": 0.5, **ACTIVE},
            r"cohorts of 30 to 40 clients, 20 of them corrupt, .*; lower max_corrupt= or max_drop",
        ),
        (
            {"cohort": 10**6, "cohort_min": 1000, "clients": 10**6},
            "cohorts of 1000 to 1000000 clients, .*; lower .* or raise cohort_min",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        proposed(**options)


@each_case(
    "options",
    [
        {"cohort": 40, "cohort_min": 15, **ACTIVE},
        {"cohort": 100, "cohort_min": 40, "max_dropout": 0.2, "max_corrupt": 0.1, **ACTIVE},
        {"cohort": 5, **ACTIVE},
        {"cohort": 3, "max_dropout": 0.3},
        {"cohort": 6, "max_dropout": 0.3, "max_corrupt": 0.3},
        {"cohort": 7, "max_dropout": 0.4, "max_corrupt": 0.3},
        {"cohort": 4, "max_dropout": 0.4, **ACTIVE, "max_corrupt": 0.01},
        # 10 clients fit, too: the named cohort is the next larger one
        {"cohort": 11, "max_dropout": 0.3, "max_corrupt": 0.1, **ACTIVE},
    ],
)
def test_the_smallest_size_that_fits_is_named(options: dict[str, Any]) -> None:
    """What the error names fits, and one less does not."""
    with pytest.raises(InvalidInputError, match="cannot be summed safely") as e:
        proposed(options["cohort"], **options)
    named = re.search(
        r"the (?:smallest|next larger) (cohort_min|cohort)=? that fits .*is (\d+)", str(e.value)
    )
    assert named is not None, e.value
    size = int(named[2])

    def fits(size: int) -> bool:
        changed = (
            {"cohort_min": size}
            if named[1] == "cohort_min"
            else dict.fromkeys(("cohort", "cohort_min"), size)
        )
        summation = Request(**{"secure_sum": "secagg"} | options | changed).resolve().summation  # type: ignore[arg-type]
        try:
            terms(summation, [2000], 1, 100, signed=True)
        except InvalidInputError:
            return False
        return True

    assert fits(size)
    assert not fits(size - 1)
    assert ("next larger" in str(e.value)) == (named[1] == "cohort")


@each_case(
    ("clients", "options", "mended", "named"),
    [
        (
            10**7,
            {"secure_sum": "two-server", "num_rounds": 9},
            {"num_rounds": 10},
            {"num_rounds", "schedule"},
        ),
        (2002, {"max_cohort": 1001, **ACTIVE}, {"max_cohort": 1000}, {"max_cohort"}),
        (
            2 * (2**20 + 1),
            {"secure_sum": "secagg", "max_cohort": 2**20 + 1},
            {"max_cohort": 2**20},
            {"max_cohort"},
        ),
    ],
)
def test_a_sum_of_too_many_clients_names_what_helps(
    clients: int, options: dict[str, Any], mended: dict[str, Any], named: set[str]
) -> None:
    """Fewer dropouts or corrupt clients would not help: a protocol's sum has a largest size."""

    def planned(asked: dict[str, Any]) -> int:
        design = Design.for_fleet(Request(**asked).resolve(), DOMAIN, clients, bytes(32))
        agreed = terms(design.spec.summation, design.sums(design.example), 1, 1, signed=True)
        assert agreed is not None
        return agreed.most_clients

    with pytest.raises(InvalidInputError, match="(has|sum) at most [0-9,]+ clients") as e:
        planned(options)
    assert set(e.value.options) == named
    assert planned(options | mended) <= 2**20


@each_case(
    ("clients", "asked", "is_said"),
    [
        (2**20, ACTIVE, False),
        (2**20 + 1, ACTIVE, True),
        (2**20 + 1, {"secure_sum": "two-server", "schedule": "fresh"}, True),
        (2**20 + 1, {"secure_sum": "secagg"}, False),  # it needs no list
    ],
)
def test_a_plan_for_more_clients_than_a_list_has_says_so(
    clients: int, asked: dict[str, Any], is_said: bool
) -> None:
    plan = proposed(clients, num_rounds=2, max_bytes=60_000, **asked).plan
    said = f"all {clients:,} clients: an allow-list has at most {MAX_KEYS:,}; make several lists"
    assert any(said in warning for warning in trust.cautions(plan)) is is_said


def test_the_largest_share_of_corrupt_clients_is_that_of_the_threat_model() -> None:
    """Below the bound of its page, which counts the fewest clients that begin, and as its numbers
    say."""
    page = (Path(__file__).parents[2] / "docs" / "threat-model.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| `--cohort (\d+)(?: --cohort-min (\d+))?(?: --max-dropout (\S+))?`"
        r"(?: alone, which begins with (\d+))? \| ([\d.]+) \| ([\d.]+) \|$",
        page,
        re.M,
    )
    assert len(rows) == 3
    [said] = re.findall(r"`--max-dropout` is (\S+) by default:", page)
    usual = Request(**ACTIVE).resolve().summation.max_dropout
    assert float(said) == usual
    cases = []
    for size, least, lost, begins, taken, refused in rows:
        asked: dict[str, Any] = {"cohort": int(size), "max_dropout": float(lost or usual)}
        if begins:  # the default of the option
            summation = Request(**ACTIVE | {"cohort": int(size)}).resolve().summation
            assert summation.min_cohort == int(begins)
        else:
            asked["cohort_min"] = int(least)
        cases += [(asked, float(taken), True), (asked, float(refused), False)]
    for dropout, least in itertools.product((0.0, 0.1, 0.2), (170, 200)):
        bound = (2 * (1 - dropout) * least / 200 - 1) / 3
        asked = {"cohort": 200, "cohort_min": least, "max_dropout": dropout}
        cases += [(asked, bound - 0.02, True), (asked, bound + 0.02, False)]
    for asked, corrupt, fits in cases:
        asked = {"max_corrupt": corrupt, "max_bytes": 100_000, **ACTIVE} | asked
        if fits:
            proposed(400, **asked)
        else:
            with pytest.raises(InvalidInputError, match="cannot be summed safely"):
                proposed(400, **asked)


def test_a_plan_says_its_sizes_and_nobody_else_does() -> None:
    plan = proposed(cohort=40, cohort_min=30).plan
    for name in ("cohort", "cohort_min"):
        with pytest.raises(InvalidInputError, match=f"a plan already says {name}=: leave {name}="):
            Simulation.of(plan=plan, **{name: 35})


def test_a_simulation_may_ask_for_the_sizes() -> None:
    items = [1, 2, 3, 4] * 10
    result = fedtally.estimate(items, domain="range:1..9", secure_sum="secagg", cohort=20, seed=1)
    p = parameters_of(result.plan)
    assert (p.n_min, p.n_max) == (16, 20)
    assert result.top(1)[0].count == 10
    with pytest.raises(InvalidInputError, match="cohort_min must be at most 14, got 15: a round"):
        fedtally.estimate(
            items + items[:2], domain="range:1..9", secure_sum="secagg", cohort=20, cohort_min=15
        )


@pytest.mark.parametrize("adversary", ["semi-honest", "active"])
def test_a_session_opens_where_clients_are_missing(adversary: str) -> None:
    """Of 12 clients on the list any 9 to 12 make a sum, and 8 do not."""
    keys = sorted(
        (SigningKey(Secret(bytes([n]) * 32)) for n in range(1, 13)), key=lambda one: one.public
    )
    people = AllowList(key.public for key in keys)
    server_key = SigningKey(Secret(bytes(32)))
    active = adversary == "active"
    plan = proposed(
        12, cohort=12, cohort_min=9, max_dropout=0.1, adversary=adversary
    ).plan.with_keys(server_key=server_key.public, allow_list=people.digest if active else None)
    policy = ClientPolicy(adversary=adversary, min_honest=2)  # type: ignore[arg-type]
    for count in range(8, 13):
        server = fedtally.FrequencyServer(plan)
        run = CohortRun.begin(
            server,
            0,
            range(count),
            signing_key=server_key,
            random=secrets.token_bytes,
            now=1000,
            **({"allow_list": people} if active else {}),  # type: ignore[arg-type]
        )
        clients = [
            fedtally.FrequencyClient(plan, DOMAIN, [7]).join(
                0,
                policy,
                journal=MemoryJournal(),
                random=secrets.token_bytes,
                **({"identity": keys[i], "allow_list": people} if active else {}),  # type: ignore[arg-type]
            )
            for i in range(count)
        ]
        while not run.done:
            for i, frame in run.outgoing():
                answer = clients[i].receive(frame, 1000)
                if answer is not None:
                    run.receive(i, answer)
            run.deadline_passed(1000)
        landed = [sketch.num_clients for sketch in server.release()]
        assert landed == ([count] if count >= 9 else [])
