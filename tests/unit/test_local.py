"""A whole campaign in one process, from the Python API."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import DECODER_NAMES

import fedtally
from fedtally.answer.evaluation import Truth
from fedtally.answer.result import Result
from fedtally.errors import InvalidInputError, MemoryLimitError, OutsideDomainError
from fedtally.plan import Plan
from fedtally.simulation.randomness import campaign_seed
from fedtally.simulation.run import run
from fedtally.simulation.simulation import Simulation
from fedtally.sketch import CountSketch
from fedtally.sources import from_items, open_source

WORDS = ["the"] * 400 + ["of"] * 300 + ["and"] * 200 + [f"rare{i}" for i in range(100)]


@pytest.mark.promise
@pytest.mark.parametrize("schedule", ["shared", "fresh", "hybrid", "batched:2"])
def test_landed_sums_are_the_sums_of_the_clients_sketches(schedule):
    """The engine counts first; clients that encode one by one must add up to the same counters."""
    rng = np.random.default_rng(4)
    items, rounds = rng.integers(1, 51, 300), rng.integers(0, 4, 300)
    result = fedtally.estimate(
        items, rounds=rounds, domain="range:1..50", rows=3, width=16, schedule=schedule, seed=1
    )
    for landed in result.sketches:
        total = CountSketch(result.plan.spec, landed.round)
        for item in items[rounds == landed.round]:
            client = CountSketch(result.plan.spec, landed.round)
            client.add(result.domain.encode([int(item)]))
            total.merge(client)
        assert np.array_equal(total.counters, landed.counters)
        assert total.num_clients == landed.num_clients


@pytest.mark.parametrize("schedule", ["shared", "fresh", "hybrid", "batched:3"])
@pytest.mark.parametrize("domain", ["input", "dictionary"])
def test_wide_sketches_are_exact(schedule, domain):
    declared = fedtally.Dictionary(sorted(set(WORDS))) if domain == "dictionary" else "input"
    result = fedtally.estimate(
        WORDS,
        num_rounds=6,
        rows=9,
        width=4096,
        schedule=schedule,
        domain=declared,
        seed=2,
        evaluate=True,
    )
    truth = Counter(WORDS)
    assert [(e.item, e.count) for e in result.top(3)] == [
        ("the", 400.0),
        ("of", 300.0),
        ("and", 200.0),
    ]
    assert all(result.estimates([w])[0].count == n for w, n in truth.items())
    assert result.evaluation.linf == result.evaluation.l2 == 0
    assert result.evaluation.precision_at_k == result.evaluation.recall_at_k == 1.0


def test_defaults():
    result = fedtally.estimate(WORDS, seed=3)
    assert result.plan.rows == 7
    assert str(result.plan.schedule) == "shared"
    assert result.plan.bytes_per_client <= 32_000
    assert str(fedtally.estimate(WORDS, seed=3, num_rounds=2).plan.schedule) == "hybrid"
    assert any("distinct items of the input" in note for note in result.warnings)
    assert any("61 bits" in note for note in result.warnings)


def test_seeds_reproduce_and_differ():
    one, again, other = (
        fedtally.estimate(WORDS, seed=s, num_rounds=3, width=20) for s in (5, 5, 6)
    )
    assert one.plan == again.plan
    assert all(
        np.array_equal(a.counters, b.counters)
        for a, b in zip(one.sketches, again.sketches, strict=True)
    )
    assert one.plan.seed != other.plan.seed
    assert fedtally.estimate(WORDS).plan.seed != fedtally.estimate(WORDS).plan.seed


def test_evaluation_against_brute_force():
    rng = np.random.default_rng(8)
    items = rng.zipf(1.3, 5000) % 300
    result = fedtally.estimate(
        items, domain="range:0..299", rows=3, width=32, num_rounds=2, seed=9, evaluate=True, top=10
    )
    truth = np.bincount(items, minlength=300) / 5000
    errors = result.frequencies() - truth
    assert result.evaluation.linf == pytest.approx(np.abs(errors).max(), rel=1e-12)
    assert result.evaluation.l2 == pytest.approx(np.sqrt((errors**2).sum()), rel=1e-12)
    top = [e.item for e in result.top(10)]
    assert top == sorted(range(300), key=lambda i: (-result.frequencies()[i], i))[:10]
    floor = sorted(truth)[-10]
    assert result.evaluation.precision_at_k == np.mean([truth[i] >= floor for i in top])
    assert result.evaluation.recall_at_k == np.mean(
        [i in top for i in sorted(range(300), key=lambda i: (-truth[i], i))[:10]]
    )
    assert result.true_frequencies([7, 299]) == [truth[7], truth[299]]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=200),
    st.integers(1, 5),
    st.sampled_from(["shared", "fresh", "hybrid"]),
)
def test_frequencies_count_the_clients(items, num_rounds, schedule):
    result = fedtally.estimate(
        items, num_rounds=min(num_rounds, len(items)), rows=9, width=2048, schedule=schedule, seed=1
    )
    assert result.num_clients == len(items)
    assert result.frequencies().sum() == pytest.approx(1.0)


def test_missing_items_are_dropped_and_counted():
    result = fedtally.estimate(["tea", None, "tea", None], seed=1)
    assert (result.num_clients, result.missing) == (2, 2)
    assert "2 of 4 rows skipped: no item" in result.warnings
    named = fedtally.estimate(["tea", None], clients=["ann", None], rounds=[1, 1], seed=1)
    assert "1 of 2 rows skipped: no item or client or round" in named.warnings


def test_synthetic_population_has_its_own_public_domain():
    source = open_source("uniform:d=1e5,k=10,n=500", rng=np.random.default_rng(1))
    result = run(source, Simulation.of(seed=1))
    assert result.domain.size == 100_000
    assert result.domain.public
    assert [note.split(":")[0] for note in result.warnings] == ["this decoder finds rare items too"]


def test_profiles_say_what_they_were_measured_from():
    result = run(
        open_source("profile:foursquare-us,n=500", rng=np.random.default_rng(1)),
        Simulation.of(seed=1, width=8),
    )
    assert any("frequencies measured from" in note for note in result.warnings)


def test_natural_rounds_of_nobody_count_as_missing_rounds():
    result = fedtally.estimate(
        ["a", "b", "c"], rounds=[1, 2, 3], counts=[1, 0, 0], width=64, seed=1
    )
    assert (result.num_clients, len(result.sketches), result.plan.num_rounds) == (1, 1, 3)


def test_progress_is_reported():
    stages = []
    source = from_items(list(range(100)))
    run(
        source,
        Simulation.of(seed=1, num_rounds=3),
        lambda stage, done, total: stages.append((stage, done, total)),
    )
    assert ("encode", 3, 3) in stages
    assert stages[0][0] == "read"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"rows": -1}, "rows must be at least 1, got -1"),
        ({"rows": 1025}, "rows must be at most 1024"),
        ({"width": 5, "max_bytes": 5}, "max_bytes= does not go with width=: both size the sketch"),
        ({"max_bytes": 2}, "max_bytes must be at least"),
        ({"schedule": "hybird"}, "schedule must be"),
        (
            {"schedule": "batched:3", "num_rounds": 2},
            "batches must be at most the number of rounds, 2, got 3",
        ),
        ({"recovery": "mean"}, f"recovery must be auto, {DECODER_NAMES}"),
        ({"recovery": "jont"}, "got 'jont'; did you mean 'joint'"),
        ({"objective": "l1"}, "objective must be linf or l2, got 'l1'"),
        ({"confidence": 1}, "confidence must be at least 0 .no intervals. and below 1, got 1"),
        ({"confidence": float("nan")}, "confidence"),
        ({"intervals": "wide"}, "intervals must be auto, pointwise or simultaneous, got 'wide'"),
        ({"outside": "ignore"}, "outside must be error or drop"),
        ({"domain": "range:5..1"}, "5"),
        ({"domain": "rnage:1..5"}, "cannot read the domain"),
        (
            {"domain": "opne"},
            "there is no such file; give .*'input', 'open'.*; did you mean 'open'",
        ),
        ({"num_rounds": 0}, "num_rounds must be at least 1"),
        ({"num_rounds": 2**20 + 1}, "num_rounds must be at most"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InvalidInputError, match=message):
        fedtally.estimate(["1", "2"], **options)


def test_bad_data():
    left_out = r"outside the domain range:1..3, .*, or leave out .* \(outside='drop'\)"
    with pytest.raises(OutsideDomainError, match=left_out):
        fedtally.estimate([1, 2, 9], domain="range:1..3")
    with pytest.raises(InvalidInputError, match="no rows"):
        fedtally.estimate([])
    with pytest.raises(InvalidInputError, match="no client is left"):
        fedtally.estimate([1, 2], counts=[0, 0])
    with pytest.raises(InvalidInputError, match="no client is left"):
        fedtally.estimate([7, 8], domain="range:1..3", outside="drop")
    dropped = {"domain": "range:1..3", "outside": "drop"}
    some = fedtally.estimate([1, 7, None, 8], **dropped)
    said = "skipped: outside the domain; shares are of the others"
    assert f"2 of 4 rows {said}" in some.warnings and some.frequency(1) == 1
    some = fedtally.estimate([1, 7], counts=[4, 5], **dropped)  # a row stands for several clients
    assert f"5 of 9 clients {said}" in some.warnings
    # under epsilon nobody may know how many these are: all clients count
    said = "shares are of all clients: with epsilon, whoever has nothing in the domain counts too"
    assert said in fedtally.estimate([1, 7], **dropped, epsilon=1).cautions
    for usual in (fedtally.estimate([1, 2], domain="range:1..3", epsilon=1), some):
        assert said not in usual.warnings
    with pytest.raises(InvalidInputError, match=r"leave num_rounds"):
        fedtally.estimate([1, 2], rounds=[1, 2], num_rounds=2)
    with pytest.raises(InvalidInputError):
        fedtally.estimate([1, 2], counts=[1, -2])
    with pytest.raises(InvalidInputError):
        fedtally.estimate([1, 2], counts=[1, 2], clients=[1, 2])


def test_a_plan_is_followed(tmp_path):
    first = fedtally.estimate(
        [1, 2, 2, 3], domain="range:1..9", num_rounds=2, rows=5, width=64, seed=4
    )
    first.plan.save(tmp_path / "plan.toml")
    plan = Plan.load(tmp_path / "plan.toml")
    again = fedtally.estimate([1, 2, 2, 3], domain="range:1..9", plan=plan)
    assert again.plan.fingerprint == first.plan.fingerprint
    assert all(
        np.array_equal(a.counters, b.counters)
        for a, b in zip(first.sketches, again.sketches, strict=True)
    )
    with pytest.raises(InvalidInputError, match="the plan is for the domain"):
        fedtally.estimate([1, 2, 2, 3], domain="range:1..8", plan=plan)
    with pytest.raises(InvalidInputError, match="the plan allows"):
        fedtally.estimate([1] * 100, domain="range:1..9", plan=plan)
    with pytest.raises(InvalidInputError, match="a plan already says rows="):
        fedtally.estimate([1], domain="range:1..9", plan=plan, rows=3)
    with pytest.raises(InvalidInputError, match="the plan has 2 rounds, the input 3"):
        fedtally.estimate([1, 2, 3], domain="range:1..9", plan=plan, rounds=[1, 2, 3])


def test_another_seed_beside_a_plan_draws_other_rounds():
    items = list(range(1, 10)) * 20
    plan = fedtally.estimate(items, domain="range:1..9", num_rounds=2, width=64, seed=4).plan
    plan = Plan.from_dict({**plan.to_dict(), "max_round_clients": 180})
    one, other = (
        fedtally.estimate(items, domain="range:1..9", plan=plan, seed=s).sketches[0] for s in (1, 2)
    )
    assert not np.array_equal(one.counters, other.counters)


def test_the_budget_counts_all_items_of_a_client():
    items, clients = list(range(300)), [i // 3 for i in range(300)]
    plan = fedtally.estimate(items, clients=clients, max_items=3, max_bytes=1000, seed=1).plan
    assert plan.max_items == 3
    assert plan.bytes_per_client <= 1000 < 7 * (plan.width + 1) * plan.modulus_bits / 8


def test_the_cohort_is_the_largest_round():
    plan = fedtally.estimate([1] * 10, rounds=[1] * 9 + [2], seed=1).plan
    assert (plan.max_round_clients, plan.modulus_bits) == (9, 5)


def test_frequencies_are_shares_of_the_clients_that_landed():
    whole = fedtally.estimate([1] * 6 + [2] * 4, rounds=[1] * 6 + [2] * 4, rows=5, width=64, seed=1)
    partial = Result(whole.plan, whole.domain, whole.sketches[:1])
    assert partial.num_clients == 6
    assert partial.frequency(1) == 1.0


def test_truth_of_a_sparse_unsorted_domain():
    items = [-5, 1000, 7, 7, -5, -5, 2**40]
    result = fedtally.estimate(items, rows=9, width=1024, seed=1, evaluate=True)
    assert result.evaluation.linf == 0
    assert result.true_frequencies([-5, 7, 1000]) == [3 / 7, 2 / 7, 1 / 7]
    candidates = fedtally.Strings(["zebra", "ant", "moth", "gnu"], bytes(32), public=True)
    words = fedtally.estimate(
        ["moth", "zebra", "moth"], domain=candidates, rows=9, width=1024, seed=1, evaluate=True
    )
    assert words.evaluation.linf == 0
    assert words.true_frequencies(["ant", "moth", "zebra", "gnu"]) == [0, 2 / 3, 1 / 3, 0]


def test_precision_and_recall_differ_where_counts_tie():
    counts = [9, 5, 5, 5]
    result = fedtally.estimate(
        [1, 2, 3, 4], counts=counts, domain="range:1..4", rows=9, width=64, seed=1
    )
    result.truth = Truth(np.array([0, 1, 2, 3]), np.array(counts))
    # the estimates put 4 before 2
    result.top = lambda k, *_: [SimpleNamespace(item=i) for i in (1, 4)][:k]
    assert result.evaluate(2)[4:] == (1.0, 0.5)


@pytest.mark.parametrize("columns", [{"counts": [2, 3]}, {}])
def test_max_items_needs_clients(columns):
    with pytest.raises(InvalidInputError, match="here each row or count is a client") as caught:
        fedtally.estimate([1, 2], max_items=3, **columns)
    assert caught.value.option == "max_items"


@pytest.mark.parametrize("domain", [b"a", 5, {"a": 1}])
def test_domains_of_another_type(domain):
    with pytest.raises(
        InvalidInputError, match=r"domain must be a Domain such as fedtally.Dictionary"
    ):
        fedtally.estimate(["a"], domain=domain)


def test_sketches_that_do_not_fit_the_memory(monkeypatch):
    monkeypatch.setattr("fedtally.simulation.run.physical_memory", lambda: 1 << 20)
    with pytest.raises(MemoryLimitError, match="one round of width .* a smaller width need less"):
        fedtally.estimate([1, 2], rows=7, width=1 << 20)


def test_rounds_that_do_not_fit_the_memory_name_their_column_and_its_values(monkeypatch, tmp_path):
    monkeypatch.setattr("fedtally.simulation.run.physical_memory", lambda: 1 << 20)
    times = [f"00:{i // 60:02d}:{i % 60:02d}" for i in range(300)]
    (tmp_path / "t.csv").write_text("v,at\n" + "".join(f"a,{time}\n" for time in times))
    with pytest.raises(MemoryLimitError, match="^the round column 'at' has 300 different values"):
        fedtally.estimate(tmp_path / "t.csv", item="v", round="at", seed=1)
    with pytest.raises(MemoryLimitError, match="^the column of rounds has 300 different values"):
        fedtally.estimate(["a"] * 300, rounds=times, seed=1)


def test_campaign_seed_takes_bytes_and_text():
    assert campaign_seed(b"7") == campaign_seed(7) == campaign_seed("7")
    assert len(campaign_seed(None)) == 32
