"""Plans from targets, and pilots: what is chosen meets what was asked, and what cannot be had names
a way that can."""

from __future__ import annotations

import math
import re
from dataclasses import fields, replace

import numpy as np
import pytest

import fedtally
from fedtally.answer import sections
from fedtally.answer.answer import Answer
from fedtally.cli.app import run
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan, search
from fedtally.plan.design import Design
from fedtally.plan.frequencies import hardest
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.parts.summation import Summation
from fedtally.plan.predictor import Predictor, predict_linf
from fedtally.plan.proposal import Proposal, propose
from fedtally.plan.request import Request
from fedtally.plan.rounds import round_size_bounds
from fedtally.plan.search import usual_schedule, wider
from fedtally.plan.sizes import TOO_UNCERTAIN, UnreachableError, size_by_model
from fedtally.plan.ways import smallest_or_ways
from fedtally.privacy.budget import OverspentError
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoding import Decoding, kind_of
from fedtally.simulation.pilot_clients import draw_pilot, merge_rounds
from fedtally.simulation.round_tally import Members, RoundTally, tally_members
from fedtally.simulation.run import run as run_campaign
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch, SketchSpec
from fedtally.sources import open_source
from fedtally.store import Ledger

pytestmark = pytest.mark.usefixtures("errors_once")

DOMAIN = IntegerRange(1, 5000)
LAW = Frequencies.assumed(5000, 1.2)
CLIENTS = 40_000


def proposed(
    clients: int = CLIENTS,
    distribution: Frequencies = LAW,
    find_epsilon: bool = False,
    **options: object,
) -> Proposal:
    return propose(
        Request(**options).resolve(),
        DOMAIN,
        clients,
        distribution,
        seed=bytes(32),
        find_epsilon=find_epsilon,  # type: ignore[arg-type]
    )


# ---- proposals ----


def test_plans_rest_on_joint_recovery_and_the_bill_has_what_answers() -> None:
    """Belief propagation answers by default: its plans' bytes are those of joint recovery, and the
    server takes longer."""
    auto, joint = (proposed(tau=0.004, recovery=recovery) for recovery in ("auto", "joint"))
    assert auto.plan == joint.plan and auto.target.recovery == "joint"
    assert auto.bill().decoding_seconds > joint.bill().decoding_seconds
    other = proposed(tau=0.01, recovery="median")
    assert other.bill().decoding_seconds < joint.bill().decoding_seconds


def test_a_plan_knows_what_belief_propagation_would_take() -> None:
    """Only where it would decode by default, the shape is known, and bytes are to be saved."""
    asked: dict[str, object] = {"clients": 400_000, "tau": 0.0003, "num_rounds": 5, "rows": 8}
    auto, belief = proposed(**asked), proposed(recovery="belief", **asked)
    assert auto.target.recovery == "joint" and auto.relying_on(Recovery.BELIEF) == belief.plan
    assert belief.plan.bytes_per_client < 0.9 * auto.plan.bytes_per_client
    assert replace(auto, plan=belief.plan).relying_on(Recovery.BELIEF) is None
    assert replace(auto, distribution=hardest.plateau(50, 5000)).relying_on(Recovery.BELIEF) is None
    design, spec = auto.design, auto.design.spec
    for other in (
        replace(design, spec=replace(spec, tau=None)),
        replace(design, spec=replace(spec, decoding=Decoding("joint"))),
        replace(design, spec=replace(spec, size=replace(spec.size, rows=4))),
        replace(design, spec=spec.with_bytes(belief.plan.bytes_per_client // 2)),
        replace(design, domain=IntegerRange(1, 1 << 18)),
    ):
        assert replace(auto, design=other).relying_on(Recovery.BELIEF) is None


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.004},
        {"tau": 0.004, "epsilon": 1.0, "num_rounds": 4},
        {"tau": 0.004, "epsilon": 1.0, "num_rounds": 4, "trust": "distributed"},
        {"tau": 0.004, "epsilon": 2.0, "num_rounds": 4, "secure_sum": "secagg"},
        {"tau": 0.004, "epsilon": 2.0, "num_rounds": 2, "secure_sum": "two-server"},
        {
            "tau": 0.004,
            "num_rounds": 2,
            "secure_sum": "secagg",
            "adversary": "active",
            "max_cohort": 150,
        },
        {"tau": 0.004, "max_items": 3},
        {"tau": 0.01, "recovery": "median", "num_rounds": 3},
        {"tau": 0.01, "rows": 5, "failure_probability": 0.01},
        {"tau": 0.004, "epsilon": 1.0, "neighbours": "add-remove", "max_clients": CLIENTS},
    ],
)
def test_a_target_is_met_and_is_in_the_plan(options):
    found = proposed(**options)
    plan, target = found.plan, found.target
    assert target.linf == options["tau"]
    assert target.failure_probability == options.get("failure_probability", 0.1)
    assert (
        found.linf
        == predict_linf(plan, LAW, target.recovery, target.failure_probability)
        <= target.linf
    )
    assert plan.rows == options.get("rows", plan.rows)
    assert Plan.from_toml(plan.to_toml()) == plan
    narrower = (
        replace(plan, width=round(plan.width * 0.6), secure_sum=None)
        if plan.privacy is None
        else None
    )
    if narrower is not None:
        assert (
            predict_linf(narrower, LAW, target.recovery, target.failure_probability) > target.linf
        )


@pytest.mark.parametrize(
    "options", [{}, {"epsilon": 1.0, "num_rounds": 5}, {"secure_sum": "secagg", "epsilon": 3.0}]
)
def test_bytes_buy_an_error_that_is_planned(options):
    found = proposed(max_bytes=4000, **options)
    assert 3000 < found.plan.bytes_per_client <= 4000
    assert found.linf <= found.target.linf <= 1.2 * found.linf
    assert found.found == "error"
    assert [other.width > found.plan.width for other, _ in found.neighbours] == [False, True, True]
    errors = [error for _, error in found.neighbours]
    assert errors == sorted(errors, reverse=True)


def test_the_least_epsilon_is_found():
    found = proposed(tau=0.004, max_bytes=3000, num_rounds=4, epsilon=1.0, find_epsilon=True)
    assert found.found == "epsilon"
    assert found.plan.privacy is not None
    epsilon = found.plan.privacy.epsilon
    assert found.plan.bytes_per_client <= 3000
    assert found.linf <= 0.004
    proposed(tau=0.004, max_bytes=3000, num_rounds=4, epsilon=1.1 * epsilon)
    with pytest.raises(InvalidInputError, match="cannot be met at epsilon"):
        proposed(tau=0.004, max_bytes=3000, num_rounds=4, epsilon=epsilon / 1.3)


@pytest.mark.parametrize(
    "options",
    [
        {"tau": 0.0005, "epsilon": 0.2, "num_rounds": 4},
        {"tau": 0.0005, "epsilon": 0.5, "max_bytes": 2000},
        {"tau": 0.004, "epsilon": 0.5, "secure_sum": "secagg", "max_cohort": 500},
    ],
)
def test_each_way_out_is_one(options):
    """What an error names is done, change by change: each is accepted."""
    with pytest.raises(InvalidInputError, match="cannot be met") as raised:
        proposed(**options)
    ways = str(raised.value).split(" would do: ")[1].split("; ")
    assert ways
    named = {"tau": "tau", "epsilon": "epsilon", "cohorts": "max_cohort", "bytes": "max_bytes"}
    assert any(way.startswith("cohorts") for way in ways) == ("max_cohort" in options)
    for way in ways:
        [number] = re.findall("[0-9][0-9.,]*", way)
        value = float(number.replace(",", ""))
        if way.endswith("clients"):
            proposed(round(value), **options)
        else:
            [name] = [
                option
                for word, option in named.items()
                if way.startswith(word) or way.endswith(word)
            ]
            proposed(**options | {name: round(value) if name.startswith("max") else value})


def test_a_target_that_nothing_reaches_says_so():
    with pytest.raises(
        InvalidInputError, match="num_rounds must be at most the number of clients, 5, got 9"
    ):
        proposed(5, tau=0.1, num_rounds=9)
    with pytest.raises(InvalidInputError, match="num_clients must be at most"):
        proposed(2**41, tau=0.1)
    with pytest.raises(InvalidInputError, match="buys no sketch"):
        proposed(max_bytes=3)


def test_planned_rounds_have_room():
    """A plan holds the rounds that a draw of clients makes, whatever they are: cohorts, counters
    and shares."""
    rng = np.random.default_rng(3)
    plan = proposed(
        9000, tau=0.02, num_rounds=3, secure_sum="secagg", max_cohort=1000, epsilon=2.0
    ).plan
    assert plan.secure_sum is not None
    least = plan.secure_sum.parameters.n_min  # type: ignore[union-attr]
    for _ in range(2000):
        sizes = rng.multinomial(9000, [1 / 3] * 3)
        assert max(sizes) <= plan.max_round_clients
        cohorts = [
            n for size in sizes for n in Summation("secagg", max_cohort=1000).sizes(int(size))
        ]
        assert least <= min(cohorts) <= max(cohorts) <= plan.secure_sum.most_clients


@pytest.mark.parametrize("rounds", [1, 2, 3, 7, 10])
def test_expected_sizes_are_all_clients(rounds):
    sizes = Design.for_fleet(Request(num_rounds=rounds).resolve(), DOMAIN, 70_001, bytes(32)).sizes
    assert (len(sizes), sum(sizes)) == (rounds, 70_001)
    if rounds > 1:
        least, most = round_size_bounds(70_001 / rounds)
        assert min(sizes) == least
        assert abs(max(sizes) - most) <= 2


def test_a_plan_of_the_planner_runs(tmp_path):
    plan = proposed(
        tau=0.05, num_rounds=2, secure_sum="secagg", max_cohort=200, epsilon=8.0, clients=700
    ).plan
    source = open_source("zipf:a=1.2,d=5000,n=700", rng=np.random.default_rng(1))
    asked = Simulation.of(plan=plan, domain=DOMAIN, not_private=True, evaluate=True)
    result = run_campaign(source, asked)
    assert result.evaluation is not None
    assert result.evaluation.linf < 0.1


# ---- pilots ----
#
# The paper's decoder (`recovery="median"`) is planned by formula. For joint recovery the planner
# runs hundreds of campaigns, which takes seconds: tests that do not look at the chosen size do
# without.


def test_a_pilot_takes_its_share_of_every_round():
    rng = np.random.default_rng(0)
    rounds = [
        RoundTally(1000, np.array([3, 5], np.uint64), np.array([600, 300])),
        RoundTally(7, np.empty(0, np.uint64), np.empty(0, np.int64)),
    ]
    pilot, rest = draw_pilot(rounds, 0.3, rng)
    assert [part.num_clients for part in pilot] == [300, 2]
    assert [part.num_clients for part in rest] == [700, 5]
    np.testing.assert_array_equal(pilot[0].counts + rest[0].counts, [600, 300])
    # six standard deviations of a hypergeometric draw: 180 +- 34
    assert 150 < pilot[0].counts[0] < 210
    [whole] = merge_rounds(pilot)
    assert (whole.num_clients, whole.counts.tolist()) == (302, pilot[0].counts.tolist())


def test_a_pilot_of_members_is_of_whole_clients():
    starts = np.arange(0, 303, 3)
    members = Members(np.arange(300, dtype=np.uint64), starts)
    [pilot], [rest] = draw_pilot([tally_members(members)], 0.25, np.random.default_rng(0))
    assert pilot.members is not None and rest.members is not None
    assert (pilot.num_clients, rest.num_clients) == (25, 75)
    for part in (pilot.members, rest.members):
        assert all(
            part.of(i)[0] % 3 == 0 and np.ptp(part.of(i)) == 2 for i in range(part.num_clients)
        )
    everybody = np.concatenate([pilot.members.ids, rest.members.ids])
    np.testing.assert_array_equal(np.sort(everybody), np.arange(300))
    [both] = merge_rounds([pilot, rest])
    assert both.members is not None and both.num_clients == 100


def items(number: int = 30_000, exponent: float = 1.2) -> np.ndarray:
    distribution = np.arange(1, 5001.0) ** -exponent
    return np.random.default_rng(5).choice(5000, number, p=distribution / distribution.sum()) + 1


def test_no_pure_epsilon_is_promised_beside_a_pilot():
    """A pilot is a sketch, whose clients have no epsilon without a delta."""
    asked = {"domain": "range:1..20000", "tau": 3e-5, "epsilon": 1.0, "not_private": True}
    result = fedtally.estimate("zipf:a=1.1,d=20000,n=1000000", seed=1, **asked)
    assert result.sizing["pilot"] is not None and result.plan.is_histogram
    assert result.plan.privacy.delta > 0
    # Who asks for no delta gets a histogram, which needs no pilot.
    pure = fedtally.estimate("zipf:a=1.1,d=20000,n=1000000", seed=1, delta=0, **asked)
    assert pure.sizing["pilot"] is None and pure.plan.privacy.delta == 0


def test_a_private_pilot_sees_items_that_are_all_a_little_above_tau():
    """With as few clients as without noise, such items drown, and the sketch is too small."""
    result = fedtally.estimate(
        "uniform:k=300,d=20000,n=300000",
        num_rounds=4,
        tau=0.003,
        epsilon=1.0,
        not_private=True,
        encoding="sketch",
        seed=1,
        evaluate=True,
    )
    assert result.evaluation.linf <= 0.003
    assert 16_600 < 300_000 - result.num_clients <= 50 / 0.003


@pytest.mark.parametrize("sizing", ["model", "two-phase", "minimax", "linear", "oracle"])
def test_every_sizing_answers(sizing):
    result = fedtally.estimate(
        items(), domain=DOMAIN, tau=0.02, sizing=sizing, seed=1, evaluate=True, recovery="median"
    )
    said = result.sizing
    assert said is not None
    assert said["sizing"] == sizing
    assert (said["pilot"] is None) == (sizing in ("minimax", "linear", "oracle"))
    # 20 / tau clients, or a tenth of all for the paper's sketch
    pilots = {"model": 1000, "two-phase": 3000}
    assert result.num_clients == 30_000 - pilots.get(sizing, 0)
    assert result.plan.target is not None
    if sizing not in ("two-phase", "oracle"):  # which promise less than they say
        assert result.evaluation is not None
        assert result.evaluation.linf <= 0.02


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_rounds": 5, "epsilon": 2.0, "not_private": True},
        {"num_rounds": 2, "epsilon": 2.0, "not_private": True, "trust": "distributed"},
        {"recovery": "median"},
    ],
)
def test_a_target_from_a_pilot_is_kept(options, matrix):
    """At a failure probability of .1, more than 2 of 4 campaigns fail with a probability of .004;
    with --matrix, more than 4 of 8 with 5e-4."""
    campaigns, failures = 8 if matrix else 4, 0
    for seed in range(campaigns):
        result = fedtally.estimate(
            items(), domain=DOMAIN, tau=0.01, seed=seed, evaluate=True, confidence=0, **options
        )
        assert result.evaluation is not None
        failures += result.evaluation.linf > 0.01
    assert failures <= campaigns / 2


def test_sizings_are_saved_with_the_result(tmp_path):
    result = fedtally.estimate(items(5000), domain=DOMAIN, tau=0.05, encoding="sketch", seed=1)
    result.save(tmp_path / "result.fedtally")
    assert fedtally.Result.load(tmp_path / "result.fedtally").sizing == result.sizing
    assert result.decoded(recovery="median").sizing == result.sizing


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tau": 1.0}, "tau must be above 0 and below 1, got 1"),
        ({"tau": 0.1, "width": 5}, "tau= does not go with width=: it chooses the width"),
        ({"sizing": "model"}, "sizing= goes with tau="),
        ({"pilot_share": 0.2}, "pilot_share= goes with tau="),
        ({"tau": 0.1, "pilot_share": 1.5}, "pilot_share must be above 0 and below 1, got 1.5"),
        (
            {"tau": 0.1, "sizing": "best"},
            "sizing must be model, two-phase, minimax, linear or oracle, got 'best'",
        ),
        ({"tau": 0.1, "failure_probability": 0}, "failure_probability must be above 0 and below 1"),
        (
            {"tau": 0.1, "sizing": "oracle", "epsilon": 1.0},
            "sizing='oracle' is not for a private run: it reads the truth",
        ),
        (
            {"tau": 0.001, "max_bytes": 20},
            "tau 0.001 cannot be met with .* within 20 bytes; this would do: [0-9,]* bytes",
        ),
        (
            {"tau": 0.001, "max_bytes": 200, "sizing": "minimax"},
            "sizing minimax takes .* bytes of a client",
        ),
        (
            {"tau": 0.1, "pilot_share": 0.001, "encoding": "sketch"},
            "a pilot needs at least 30 clients, got 5",
        ),
        (
            {
                "tau": 0.1,
                "epsilon": 1.0,
                "neighbours": "add-remove",
                "max_clients": 9000,
                "encoding": "sketch",
            },
            "add-remove hides",
        ),
        ({"tau": 0.1, "epsilon": 1.0, "max_bytes": 6}, "max_bytes must be at least"),
    ],
)
def test_targets_that_make_no_sense_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        fedtally.estimate(items(5000), domain=DOMAIN, **options)


def test_pilot_and_campaign_have_one_delta():
    """That of all clients together: a pilot has fewer, and its own default would be larger."""
    many = np.tile(items(1000), 3)
    result = fedtally.estimate(
        many,
        domain=DOMAIN,
        counts=np.full(3000, 1000),
        tau=0.05,
        epsilon=1.0,
        recovery="median",
        confidence=0,
    )
    assert result.plan.privacy is not None
    assert result.plan.privacy.delta == pytest.approx(1 / 3e7)


def test_clients_of_several_items_have_a_pilot():
    who = np.repeat(np.arange(4000), 5)
    options = {
        "clients": who,
        "domain": DOMAIN,
        "max_items": 3,
        "tau": 0.05,
        "seed": 1,
        "recovery": "median",
        "confidence": 0,
    }
    result = fedtally.estimate(items(20_000), **options, num_rounds=2, pilot_share=0.2)
    assert result.num_clients == 3200
    private = fedtally.estimate(items(20_000), **options, epsilon=4.0, not_private=True)
    assert private.sizing is not None and private.num_clients == 3600
    assert private.sizing["pilot"]["epsilon"] == 4.0 and result.sizing["pilot"]["epsilon"] is None
    assert (
        "not in the estimates and noised for epsilon 4"
        in dict(sections.error.sizing_rows(private.sizing))[""]
    )


def test_a_pilot_that_tells_nothing_leaves_the_plan_for_any_frequencies():
    """The worst case of the median decoder has ten times the bytes."""
    spec = Request(rows=8, num_rounds=5, tau=0.01, epsilon=0.5, delta=1e-6).resolve()
    design = Design.for_fleet(spec, DOMAIN, 20_000, bytes(32))
    sketch = CountSketch(SketchSpec(3, 4, "shared", 1, bytes(32)), 0)
    sketch.add_range(1, np.ones(DOMAIN.size, np.int64))
    told = Frequencies.from_pilot([sketch], DOMAIN)
    assert told.uncertainty(0.01) > TOO_UNCERTAIN
    sized = smallest_or_ways(design, told)
    size = sized.sizing
    plan = propose(spec, DOMAIN, 20_000, None, seed=bytes(32)).plan
    assert sized.chosen == design.like(plan).chosen
    assert (size.rows, size.width) == (plan.rows, plan.width)
    assert "the hardest frequencies are assumed, as without a pilot" in size.message


def test_the_size_of_a_proposal_is_that_of_its_plan(monkeypatch):
    """Also where the first size missed the target for any frequencies and was widened."""
    steps = []

    def counted(design, factor):
        steps.append(factor)
        return wider(design, factor)

    monkeypatch.setattr(search, "wider", counted)
    spec = Request(rows=5, num_rounds=1, tau=0.02, recovery="median", encoding="sketch").resolve()
    found = propose(spec, IntegerRange(1, 200), 5000, None, seed=bytes(32))
    assert steps and (found.size.rows, found.size.width) == (found.plan.rows, found.plan.width)
    assert found.size.linf is None  # it was predicted for the width before


def test_a_pilot_keeps_to_max_bytes():
    result = fedtally.estimate(
        items(), domain=DOMAIN, tau=0.03, max_bytes=2000, seed=1, recovery="median", confidence=0
    )
    assert result.sizing is not None
    assert result.sizing["pilot"]["bytes_per_client"] <= 2000


def test_rounds_of_different_laws_ask_for_more():
    """Ten rounds of a tenth of the items each: signs that differ cancel nothing."""
    held = items(30_000, 1.2)
    options = {
        "domain": DOMAIN,
        "tau": 0.01,
        "seed": 1,
        "rows": 9,
        "evaluate": True,
        "confidence": 0,
    }
    apart = fedtally.estimate(held, rounds=held % 10, **options)
    alike = fedtally.estimate(held, rounds=np.arange(30_000) % 10, **options)
    assert apart.plan.width > 1.5 * alike.plan.width
    assert apart.evaluation is not None and apart.evaluation.linf < 0.015


def test_noise_that_hides_everything_is_said():
    with pytest.raises(InvalidInputError, match="cannot be met at epsilon 1 with"):
        fedtally.estimate(items(3000), domain=DOMAIN, tau=0.0005, epsilon=1.0)
    with pytest.raises(InvalidInputError, match="nothing could be learnt"):
        proposed(20, max_bytes=1000, epsilon=0.01)


def test_small_rounds_have_room():
    plan = proposed(37, tau=0.3, num_rounds=10).plan
    sizes = np.random.default_rng(0).multinomial(37, [0.1] * 10, 2000)
    assert sizes.max() <= plan.max_round_clients


def test_hidden_numbers_choose_nothing():
    """Under add-remove what is planned follows from the public bound alone."""
    options = {
        "domain": DOMAIN,
        "epsilon": 1.0,
        "neighbours": "add-remove",
        "max_clients": 4000,
        "num_rounds": 8,
    }
    chosen = {
        (plan.rows, plan.width, str(plan.schedule), plan.max_round_clients)
        for plan in (
            fedtally.estimate(items(n), **options, confidence=0).plan for n in (900, 3999, 4000)
        )
    }
    assert len(chosen) == 1


def test_unequal_rounds_are_planned_as_they_are():
    """One large round among small ones cancels less than as many equal ones."""
    who = items(20_000)
    sizes = []
    for rounds in (np.tile(np.arange(8), 2500), np.minimum(np.arange(20_000) // 300, 7)):
        result = fedtally.estimate(
            who, rounds=rounds, domain=DOMAIN, tau=0.003, seed=1, rows=9, confidence=0
        )
        sizes.append(result.plan.width)
    assert sizes[1] > 1.2 * sizes[0]


def test_clients_of_several_private_rounds_have_no_pilot():
    who, rounds = np.repeat(np.arange(500), 2), np.tile([1, 2], 500)
    with pytest.raises(InvalidInputError, match="a pilot's clients must not be in the campaign"):
        fedtally.estimate(
            items(1000),
            clients=who,
            rounds=rounds,
            domain=DOMAIN,
            tau=0.1,
            epsilon=1.0,
            encoding="sketch",
        )


def test_a_design_knows_its_bytes():
    """To a few bytes, without looking for its noise."""
    for options in (
        {},
        {"secure_sum": "secagg"},
        {"secure_sum": "secagg", "epsilon": 1.0},
        {"secure_sum": "two-server", "epsilon": 1.0},
        {"epsilon": 0.5, "trust": "distributed"},
    ):
        spec = Request(num_rounds=3, **options).resolve()  # type: ignore[arg-type]
        design: Design = Design.for_fleet(spec, DOMAIN, CLIENTS, bytes(32))
        schedule = usual_schedule(design)
        for rows, width in ((3, 700), (16, 90)):
            exact = design.with_size(schedule, rows, width).plan().bytes_per_client
            assert design.bytes_of(rows, width, schedule) == pytest.approx(exact, rel=0.13, abs=20)


@pytest.mark.promise
def test_pilot_and_campaign_are_both_charged(tmp_path):
    """A budget that bears one of them alone is not touched."""
    path, options = (
        tmp_path / "books.db",
        # a histogram of so few candidates would need no pilot
        {"domain": DOMAIN, "tau": 0.05, "epsilon": 1.0, "delta": 1e-6, "encoding": "sketch"},
    )
    ledger = Ledger.open(path, create=True)
    ledger.grant("few", 1.2, 1e-6, 0)
    ledger.grant("many", 1.6, 1e-6, 0)
    with pytest.raises(OverspentError, match="the pilot and the campaign are both charged"):
        fedtally.estimate(items(5000), **options, ledger=path, population="few")
    assert ledger.spent("few") is None
    result = fedtally.estimate(items(5000), **options, ledger=path, population="many")
    assert result.sizing is not None
    assert (
        ledger.reserved(result.sizing["pilot"]["fingerprint"])
        == ledger.reserved(result.plan.fingerprint)
        == [0]
    )
    assert 1.0 < ledger.spent("many").epsilon < 1.6


# ---- campaigns of several plans ----


def part(seed, *, clients=20_000, width=60, **options):
    held = (
        items(clients, 1.2)
        if seed is None
        else np.random.default_rng(seed).permutation(items(2 * clients))[:clients]
    )
    return fedtally.estimate(
        held, domain=DOMAIN, rows=7, width=width, seed=seed, evaluate=True, **options
    )


def test_merged_results_are_of_all_clients():
    """Sums of counts, and half-widths that add up in squares, around the sum of what each has its
    limits around."""
    parts = [part(1), part(2, clients=10_000, width=90)]
    merged = Answer(parts)
    assert merged.num_clients == 30_000
    for item in (1, 7, 4000):
        each, [both] = [one.estimates([item])[0] for one in parts], merged.estimates([item])
        assert both.count == pytest.approx(sum(e.count for e in each))
        assert both.frequency == pytest.approx(both.count / 30_000)
        # Limits are around the leave-one-out value: the estimate of a light item is less than that.
        centres = [one.intervals.centres(DOMAIN.encode([item]))[0] for one in parts]
        half = np.hypot(2 / 3 * (each[0].high - centres[0]), 1 / 3 * (each[1].high - centres[1]))
        assert both.high == pytest.approx(2 / 3 * centres[0] + 1 / 3 * centres[1] + half)
    everything = sum(one.frequencies() * one.num_clients for one in parts)
    top = merged.top(10)
    assert [e.item for e in top] == (np.argsort(-everything, kind="stable")[:10] + 1).tolist()
    named = merged.estimates([e.item for e in top])
    assert [(e.item, e.frequency, e.high) for e in top] == [
        (e.item, e.frequency, e.high) for e in named
    ]
    assert all(listed.low < alone.low for listed, alone in zip(top, named, strict=True))


def test_limits_of_merged_results_are_cut_last():
    """Half-widths are those of each result before they are cut to 0 ..
    1: cut first, they would be too small.
    """
    parts = [part(1), part(2, clients=10_000, width=90)]
    every = list(range(1, 5001))
    ids, low, middle = DOMAIN.encode(every), [], 0.0
    for share, one in zip((2 / 3, 1 / 3), parts, strict=True):
        middle = middle + share * one.intervals.centres(ids)
        low.append(share * (one.intervals.centres(ids) - one.intervals.at(ids).low))
    merged = Answer(parts).estimates(every)
    expected = middle - np.hypot(*low)
    assert (expected < 0).mean() > 0.5
    np.testing.assert_allclose([e.low for e in merged], np.maximum(expected, 0.0), atol=1e-12)


def test_later_rounds_have_a_plan_of_their_own(tmp_path):
    """A private part, a plan that looks at it, and the rest: the limits hold for what all clients
    hold."""
    private = {"epsilon": 4.0, "not_private": True, "num_rounds": 2}
    parts = [part(3, **private)]
    distribution = Frequencies.from_pilot(
        parts[0].sketches, DOMAIN, parts[0].plan.privacy.stddev ** 2
    )
    asked = Request(tau=0.004, epsilon=4.0, num_rounds=3).resolve()
    found = propose(asked, DOMAIN, 20_000, distribution, seed=bytes(range(32)))
    assert found.plan.width != parts[0].plan.width
    rest = np.random.default_rng(4).permutation(items(40_000))[:20_000]
    parts.append(
        fedtally.estimate(rest, domain=DOMAIN, plan=found.plan, not_private=True, evaluate=True)
    )
    held = sum(np.bincount(p.truth.positions, p.truth.counts, 5000) for p in parts)
    inside = [
        e.low <= held[e.item - 1] / 40_000 <= e.high
        for e in Answer(parts).estimates(list(range(1, 201)))
    ]
    assert np.mean(inside) > held_at_least(200)


def held_at_least(number):
    """Five standard errors below .95, of the binomial distribution: independent intervals hold less
    often once in
    10^6 tests.
    """
    return 0.95 - 5 * (0.95 * 0.05 / number) ** 0.5


@pytest.mark.parametrize(
    ("decoding", "repeats"),
    [
        ({"rows": 7, "width": 43}, (3, 2, 2)),
        ({"rows": 7, "width": 43, "objective": "l2"}, (3, 2, 2)),
        ({"rows": 1, "width": 450}, (60, 15, 10)),
        ({"rows": 3, "width": 130, "recovery": "median"}, (30, 15, 10)),
        ({"rows": 18, "width": 17, "recovery": "median", "objective": "l2"}, (12, 8, 6)),
    ],
    ids=["joint", "joint l2", "one row", "median", "median l2"],
)
def test_limits_of_merged_results_hold(decoding, repeats, matrix):
    """Of named items and of lists, at 8 results; with --matrix also at 2 and 4.

    Half-widths of medians in squares held in .90, .84 and .76 of the cases with one row, since rare
    errors are not normal; those around shrunk estimates in .68 (joint) and .37 (median) of eight
    results.
    """
    domain, clients = IntegerRange(0, 999), 2000
    shares = (
        np.r_[np.full(20, 0.05), np.zeros(980)]
        if decoding["rows"] < 4
        else 1 / (1 + np.arange(1000.0)) ** 0.8
    )
    shares /= shares.sum()
    for number, campaigns in list(zip((2, 4, 8), repeats, strict=True))[0 if matrix else -1 :]:
        named, listed = [], []
        for repeat in range(campaigns):
            rng = np.random.default_rng([repeat, number])
            counts = rng.multinomial(clients, shares, number)
            merged = Answer(
                [
                    fedtally.estimate(
                        np.repeat(np.arange(1000), held),
                        domain=domain,
                        seed=rng.bytes(32),
                        **decoding,
                    )
                    for held in counts
                ]
            )
            truth = counts.sum(axis=0) / merged.num_clients
            for found, shown in ((named, merged.estimates(range(20))), (listed, merged.top(20))):
                found += [e.low - 1e-9 <= truth[e.item] <= e.high + 1e-9 for e in shown]
        assert np.mean(named) > held_at_least(len(named))
        assert np.mean(listed) > held_at_least(len(listed))


def test_limits_of_merged_medians_are_no_wider_than_their_errors():
    """Not the sum of each result's: with eight results that is eight times as wide."""
    parts = [
        fedtally.estimate(
            np.repeat(np.arange(1, 21), 50), domain=DOMAIN, rows=1, width=450, seed=seed
        )
        for seed in range(8)
    ]
    merged = Answer(parts)
    [found] = merged.estimates([3])
    # An item of .05 falls into the same cell in one of eight results, in more than one in 20 cases:
    # .05 / 8 to a side.
    assert found.high - found.low == pytest.approx(2 * 0.05 / 8, rel=0.01)


def test_a_median_beside_joint_recovery_is_merged_by_the_union_bound():
    parts = [part(1), part(2, recovery="median")]
    both = Answer(parts).estimates([1, 7])
    surer = [one.decoded(confidence=0.975).estimates([1, 7]) for one in parts]
    for place, found in enumerate(both):
        assert found.low == pytest.approx(np.mean([each[place].low for each in surer]))
        assert found.high == pytest.approx(np.mean([each[place].high for each in surer]))


@pytest.mark.parametrize(
    ("others", "message"),
    [
        (lambda one: [], "merge takes two results or more, got 1"),
        (lambda one: [one], "two of the results are of one plan"),
        (lambda one: [one.decoded(confidence=0.5)], "intervals of 0.95 and 0.5"),
        (
            lambda one: [one.decoded(intervals="simultaneous")],
            "of kind auto and simultaneous: run them with one intervals=",
        ),
        (
            lambda one: [fedtally.estimate([1, 2], domain=IntegerRange(1, 9))],
            "over different candidates",
        ),
        (lambda one: [fedtally.estimate(["a"])], "over different candidates"),
    ],
)
def test_what_cannot_be_merged_is_refused(others, message):
    one = part(1, clients=200)
    with pytest.raises(InvalidInputError, match=message):
        Answer([one, *others(one)])


@pytest.mark.parametrize(
    ("budget", "fleet"),
    [
        (["--max-bytes", "8kB"], ["--clients", "1000000", "--domain-size", "100000"]),
        (
            ["--max-bytes", "1kB", "--epsilon", "none"],
            ["--clients", "3000", "--domain-size", "5000"],
        ),
    ],
)
def test_the_error_that_would_do_does(
    budget: list[str], fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The hardest frequencies of that error are others than those of the error that was asked."""
    asked = ["plan", *fleet, "--encoding", "sketch", "--quiet", *budget]
    assert run([*asked, "--tau", "0.001"]) == 2
    found = re.search(r"would do: tau ([0-9.]+)", capsys.readouterr().err)
    assert found is not None
    assert run([*asked, "--tau", found[1]]) == 0


# ---- the decoder that answers, after a pilot ----


def after_pilot(law: np.ndarray, tau: float = 0.002, **asked: object) -> tuple[Design, Frequencies]:
    """Return a design of 45,000 clients in 5 rounds, and what a pilot of 5,000 others shows."""
    spec = Request(num_rounds=5, tau=tau, encoding="sketch", **asked).resolve()  # type: ignore
    domain, rng = IntegerRange(1, len(law)), np.random.default_rng(3)
    sketch = CountSketch(SketchSpec(8, 140, "shared", 1, bytes(32)), 0)
    sketch.add_range(1, rng.multinomial(5000, law))
    sketch.num_clients = 5000
    design = Design.for_fleet(spec, domain, 45_000, bytes(32))
    return replace(design, has_pilot=True), Frequencies.from_pilot([sketch], domain)


STRETCHED = np.exp(-np.sqrt(np.arange(1, 10_001) / 100))
STRETCHED /= STRETCHED.sum()


def falling(exponent: float) -> np.ndarray:
    """Return Zipf's law of 10,000 items."""
    law = np.arange(1, 10_001.0) ** -exponent
    return law / law.sum()


def test_after_a_pilot_a_size_fits_the_decoder_that_answers():
    """It takes at most .8 of what joint recovery needs, and the target names who keeps it."""
    design, shown = after_pilot(STRETCHED)
    joint = smallest_or_ways(replace(design, has_pilot=False), shown)
    sized = smallest_or_ways(design, shown)
    assert sized.sizing.cells <= 0.8 * joint.sizing.cells
    assert (sized.plan().target.recovery, joint.plan().target.recovery) == ("belief", "joint")
    assert sized.sizing.linf <= 0.002 and sized.sizing.message == ""


@pytest.mark.parametrize(("exponent", "binds"), [(0.8, 0), (1.3, 1)])
def test_after_a_pilot_both_decoders_keep_their_shares_and_one_only_just(
    exponent, binds, monkeypatch
):
    """Joint recovery exceeds tau / .9 with p at most, belief propagation tau with .2 p at most.

    A tenth fewer counters break the first share where items fall slowly, else the second.
    """
    searched, search = [], size_by_model

    def seen(distribution, tau, predictor, **options):
        searched.append(predictor)
        return search(distribution, tau, predictor, **options)

    monkeypatch.setattr("fedtally.plan.sizes.size_by_model", seen)
    design, shown = after_pilot(falling(exponent))
    size = smallest_or_ways(design, shown).sizing
    given = {field.name: getattr(searched[0], field.name) for field in fields(Predictor)}
    joint, (known, numbers), tau = Predictor(**given), shown.rising, 0.002

    def exceeded(width: int) -> tuple[float, float]:
        sums = joint._sums(shown, size.rows, width)
        own = kind_of("belief").failure(known, sums, numbers, tau)
        return joint._failure(shown, tau / 0.9, size.rows, width), own / 0.2

    assert max(exceeded(size.width)) <= 0.1 < exceeded(math.ceil(0.9 * size.width))[binds]


@pytest.mark.parametrize(
    ("asked", "fit"),
    [
        ({"recovery": "joint"}, {}),
        ({"rows": 4}, {}),
        ({"epsilon": 8.0}, {}),
        ({}, {"heterogeneity": 1.5}),
        ({}, {"max_items": 2}),
        ({}, {"fit": None}),
        ({"tau": 0.05}, {}),
    ],
    ids=str,
)
def test_where_the_answer_is_not_better_a_size_is_that_of_joint_recovery(asked, fit):
    """Another decoder, few rows, noise, rounds that differ, several items, no pilot, few cells."""
    design, shown = after_pilot(STRETCHED, **asked)
    shown = replace(shown, **fit)
    sized = smallest_or_ways(design, shown, with_linf=False)
    assert (
        sized.chosen
        == smallest_or_ways(replace(design, has_pilot=False), shown, with_linf=False).chosen
    )


def test_a_pilot_of_few_clients_is_no_reason_to_take_less():
    design, shown = after_pilot(STRETCHED)
    few = replace(shown, fit=replace(shown.fit, clients=1000))
    assert smallest_or_ways(design, few).plan().target.recovery == "joint"


def test_where_no_size_fits_the_decoder_that_answers_joint_recovery_decides(monkeypatch):
    design, shown = after_pilot(STRETCHED)

    def unreachable(*given, **options):
        raise UnreachableError("no sketch has this error")

    monkeypatch.setattr("fedtally.plan.sizes.size_by_model", unreachable)
    assert smallest_or_ways(design, shown).plan().target.recovery == "joint"
