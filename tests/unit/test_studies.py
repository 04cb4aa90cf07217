"""The study: its errors against theory, its pairing, its tables; plans and targets; and the
population of `demo`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
from scipy.special import bdtr, bdtrc

from fedtally.base.encoding import Encoding
from fedtally.cli.app import run as command
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.options import AS_TABLE
from fedtally.plan import Plan, Target
from fedtally.plan.design import Design
from fedtally.plan.request import Request
from fedtally.plan.search import for_bytes
from fedtally.privacy.accounting import calibrate
from fedtally.privacy.config import propose
from fedtally.privacy.events import Event
from fedtally.simulation.randomness import key_bytes
from fedtally.simulation.round_tally import RoundTally
from fedtally.sources import Source, from_items, open_source
from fedtally.sources.stdlib import library_source
from fedtally.studies import validation
from fedtally.studies.schedules import Study, run, split
from fedtally.studies.validation import Trial, TrialResult, Verdict


def uniform(items: int, each: int) -> Source:
    return from_items(np.arange(items), counts=np.full(items, each))


@pytest.mark.parametrize(
    ("method", "batches"), [("shared", 1), ("batched:2", 2), ("hybrid", 6), ("fresh", 6)]
)
def test_squared_error_is_what_theory_says(method: str, batches: int) -> None:
    """One row, d items of c clients, B independent batches of signs of Binomial(c, 1/B) clients
    each.

    The squared error of an item is the sum over the d - 1 others, each in its cell with probability
    1/W, of the sum over batches of the square of its count there: E = (d - 1)/W * d * (c^2/B + c (1
    - 1/B)) / N^2 for the sum over items. Pairwise independent hashes suffice. The bound is five
      standard errors of the mean over repeats; another B is
    off by more.
    """
    items, each, width, repeats = 300, 120, 64, 60
    study = Study(methods=(method,), widths=(width,), rows=1, num_rounds=6, repeats=repeats, seed=7)
    squares = np.array(
        [m.l2**2 for m in run(uniform(items, each), study).measurements if m.method == method]
    )

    def expected(parts: int) -> float:
        second_moment = each**2 / parts + each * (1 - 1 / parts)
        return float((items - 1) / width * items * second_moment / (items * each) ** 2)

    error = squares.std(ddof=1) / repeats**0.5
    assert abs(squares.mean() - expected(batches)) < 5 * error
    assert abs(squares.mean() - expected(batches + 1)) > 5 * error


@pytest.mark.parametrize(
    ("trust", "method", "releases"),
    [
        ("central", "shared", 1),
        ("central", "batched:2", 2),
        ("central", "hybrid", 4),
        ("distributed", "shared", 4),
    ],
)
def test_noise_adds_the_squared_error_of_its_openings(
    trust: str, method: str, releases: int
) -> None:
    """Nobody holds any of the candidates but one, in so wide a sketch that it is rarely met: in 1
    of 300 repeats.

    One row: the error of a candidate is the noise of its cell, so the squares of d candidates add
    up to d times the variance of all releases. A repeat varies by sqrt(2 / d), 10 %, and the median
    of 12 by 3.6 %: 18 % are five standard errors. One release more or less is 25 % or more.
    """
    size, repeats, clients = 200, 12, 4000
    source = from_items(np.zeros(1, np.int64), counts=np.array([clients]))
    study = Study(
        methods=(method,),
        widths=(1 << 16,),
        rows=1,
        num_rounds=4,
        repeats=repeats,
        epsilon=1.0,
        trust=trust,
        seed=2,
    )
    found = run(source, study, domain=IntegerRange(0, size - 1))
    if trust == "distributed":  # shares of all clients of a round, made for the fewest
        event = Event("skellam", 1, "zero-out", honest_survivors=900)
        one_hot = noise = calibrate(event, 1.0, 1e-6) * releases * 1000 / (950 - 50)
    else:
        each = calibrate(Event("rounded-gaussian", 1, "zero-out"), 1.0, 1e-6) + 1 / 12
        one_hot, noise = each, each * releases
    for name, expected in ((method, noise), ("one-hot", one_hot)):
        squares = (
            np.array([m.l2**2 for m in found.measurements if m.method == name]) * clients**2 / size
        )
        assert abs(np.median(squares) / expected - 1) < 0.18


def test_every_repeat_draws_rounds_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def spied(everybody: RoundTally, num_rounds: int, rng: np.random.Generator) -> list[RoundTally]:
        drawn.append(split(everybody, num_rounds, rng))
        return drawn[-1]

    monkeypatch.setattr("fedtally.studies.schedules.split", spied)
    run(uniform(50, 40), Study(methods=("hybrid",), widths=(16,), num_rounds=3, repeats=3, seed=1))
    # equal by chance with probability below 1e-30
    firsts = {tuple(rounds[0].counts.tolist()) for rounds in drawn}
    assert len(firsts) == 3


def test_one_round_of_hybrid_is_shared() -> None:
    study = Study(methods=("hybrid", "shared"), widths=(32,), num_rounds=1, repeats=3, seed=1)
    found = run(uniform(200, 5), study).measurements
    errors = {m: [(x.linf, x.l2) for x in found if x.method == m] for m in ("hybrid", "shared")}
    assert errors["hybrid"] == errors["shared"]
    assert errors["hybrid"][0] != errors["hybrid"][1]


def test_a_seed_repeats_a_study_and_methods_do_not_disturb_each_other() -> None:
    def measured(methods: tuple[str, ...], seed: int) -> list[float]:
        source = open_source("zipf:d=500,n=3000", rng=np.random.default_rng(5))
        study = Study(methods=methods, widths=(64,), num_rounds=3, repeats=3, seed=seed)
        return [m.linf for m in run(source, study).measurements if m.method == "hybrid"]

    assert measured(("hybrid",), 1) == measured(("fresh", "hybrid"), 1) != measured(("hybrid",), 2)


def test_exact_methods_have_costs_and_no_error() -> None:
    found = run(
        uniform(1000, 20),
        Study(methods=("shared",), widths=(50,), rows=3, num_rounds=4, repeats=2, seed=1),
    )
    by_method = {c.method: c for c in found.comparisons()}
    bits = by_method["shared"].bytes_per_client * 8 // (3 * 50)
    assert bits == 14  # a round of about 5,000 clients: sums from -5,000 to 5,000
    # nothing is negative in the sum of one-hot vectors: it needs no sign
    assert by_method["one-hot"].bytes_per_client == 1000 * (bits - 1) // 8
    assert by_method["binary"].bytes_per_client == 2
    assert (by_method["one-hot"].linf.mean, by_method["binary"].l2.q90) == (0.0, 0.0)
    assert [c.method for c in found.comparisons() if not c.secure_sum] == ["binary"]
    assert found.num_clients == 20_000


def test_comparisons_summarise_the_measurements() -> None:
    found = run(
        uniform(300, 3),
        Study(methods=("hybrid",), widths=(20, 40), repeats=5, num_rounds=2, seed=2),
    )
    narrow, wide, *_ = found.comparisons()
    errors = [m.linf for m in found.measurements if (m.method, m.width) == ("hybrid", 20)]
    assert len(errors) == 5
    expected = [np.mean(errors), np.median(errors), np.quantile(errors, 0.9)]
    assert list(narrow.linf) == expected
    assert wide.l2.mean < narrow.l2.mean


def test_split_keeps_every_client_and_is_uniform() -> None:
    everybody = RoundTally(40_000, np.array([1, 2], np.uint64), np.array([30_000, 10_000]))
    rounds = split(everybody, 4, np.random.default_rng(0))
    assert sum(part.num_clients for part in rounds) == 40_000
    assert sum(int(part.counts[part.ids == 1].sum()) for part in rounds) == 30_000
    for part in rounds:  # Binomial(40,000, 1/4): five standard deviations
        assert abs(part.num_clients - 10_000) < 5 * (40_000 * 0.25 * 0.75) ** 0.5


def test_tidy_tables(tmp_path: Path) -> None:
    found = run(
        uniform(30, 3), Study(methods=("fresh",), widths=(8,), repeats=2, num_rounds=2, seed=2)
    )
    found.export(tmp_path / "s.csv")
    table = pyarrow.csv.read_csv(tmp_path / "s.csv")
    assert table.column("method").to_pylist() == ["fresh", "one-hot", "binary"] * 2
    assert table.column("repeat").to_pylist() == [0, 0, 0, 1, 1, 1]
    assert table.column("width").null_count == 4
    with pytest.raises(InvalidInputError, match=re.escape(AS_TABLE)):
        found.export(tmp_path / "s.txt")


def test_progress_counts_campaigns() -> None:
    seen: list[tuple[str, int, int | None]] = []
    study = Study(methods=("fresh",), widths=(8,), repeats=2, num_rounds=2, seed=2)
    run(uniform(30, 3), study, progress=lambda *step: seen.append(step))
    assert [step for step in seen if step[0] == "simulate"] == [
        ("simulate", n, 6) for n in range(1, 7)
    ]


@pytest.mark.parametrize(
    "bad",
    [
        {"methods": ()},
        {"methods": ("magic",)},
        {"widths": (0,)},
        {"widths": (5, 5)},
        {"repeats": 0},
        {"rows": 0},
        {"num_rounds": 0},
    ],
)
def test_bad_studies_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidInputError):
        Study(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("recovery", "message"),
    [
        ("auto", "recovery must be joint, median, belief or direct, got 'auto'"),
        ("direct", "'direct' is for a histogram, and the encoding is a sketch: leave"),
        ("medium", "got 'medium'; did you mean 'median'"),
        ("joint", "joint recovery needs at least 3 rows, got 2"),
    ],
)
def test_a_decoder_that_no_study_can_use_is_refused_before_data_is_read(
    recovery: str, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Study(recovery=recovery, rows=2)


def test_no_client_is_an_error() -> None:
    with pytest.raises(InvalidInputError, match="no client"):
        run(uniform(3, 0), Study())


# ---- plans and their promises ----

SIZE, CLIENTS = 300, 3000
DOMAIN = {"kind": "range", "size": SIZE, "public": True}


def a_plan(
    width: int, clients: int = CLIENTS, linf: float = 0.01, p: float = 0.1, **changes: Any
) -> Plan:
    fixed = {
        "rows": 5,
        "schedule": "hybrid",
        "num_rounds": 3,
        "max_items": 1,
        "domain": DOMAIN,
        "seed": bytes(32),
    }
    sizes = {
        "width": width,
        "num_clients": clients,
        "max_round_clients": clients,
        "target": Target(linf, p, "joint"),
    }
    return Plan(**{**fixed, **sizes, **changes})


def zipf(clients: int = CLIENTS) -> Source:
    return open_source(f"zipf:a=1.1,d={SIZE},n={clients}", rng=np.random.default_rng(5))


def tried(
    plan: Plan, source: Source | None = None, repeats: int = 20, seed: int = 1, **more: Any
) -> TrialResult:
    return validation.run(source or zipf(), Trial(plan, repeats, seed=seed), **more)


def noised_plan(secure_sum: str, clients: int, epsilon: float = 1.0, **more: Any) -> Plan:
    """Return a plan of four even rounds and one row, so wide that nothing collides."""
    request = Request(
        epsilon=epsilon,
        secure_sum=secure_sum,
        rows=1,
        width=1 << 16,
        num_rounds=4,
        schedule="batched:2",
        max_cohort=60 if secure_sum == "secagg" else None,
        max_corrupt=0.0,
        **more,
    )
    domain, sizes, keys = IntegerRange(0, 199), [clients // 4] * 4, key_bytes(1, b"keys")
    design = Design.fit(request.resolve(not_private=True), domain, sizes, seed=bytes(32))
    return for_bytes(design).finish(keys, lambda *_: None)[0]


def test_a_target_that_is_met_and_one_that_is_missed() -> None:
    """By the error model the generous plan fails with less than 1e-6, the other with more than
    0.9."""
    generous, poor = tried(a_plan(80)), tried(a_plan(6))
    assert generous.predicted_failure is not None and generous.predicted_failure < 1e-6
    assert poor.predicted_failure is not None and poor.predicted_failure > 0.9
    assert generous.verdict == Verdict(0, 20, 6, True, pytest.approx(0.467, abs=0.001))
    assert poor.verdict is not None and not poor.verdict.met and poor.verdict.exceeded > 10
    assert poor.exceeded == sum(m.linf > 0.01 for m in poor.measurements)
    assert [poor.quantile(p) for p in (0.5, 0.1)] == [
        np.median(poor.errors),
        np.quantile(poor.errors, 0.9),
    ]


def test_an_error_of_exactly_the_target_does_not_exceed_it() -> None:
    found = tried(a_plan(6), repeats=5)
    worst = float(found.errors.max())
    for linf, exceeded in ((worst, 0), (worst * (1 - 1e-6), 1)):
        again = replace(found, trial=replace(found.trial, plan=a_plan(6, linf=linf)))
        assert again.exceeded == exceeded


@pytest.mark.parametrize("repeats", [1, 2, 10, 50, 1000])
@pytest.mark.parametrize("p", [0.01, 0.1, 0.5])
def test_a_target_that_is_met_is_found_missed_in_one_of_a_hundred_studies_at_most(
    repeats: int, p: float
) -> None:
    allowed = Verdict.of(0, repeats, p).allowed
    if allowed < repeats:
        assert bdtrc(allowed, repeats, p) <= 0.01 + 1e-12
    assert allowed == 0 or bdtr(allowed - 1, repeats, p) < 0.99  # nor would less do
    assert Verdict.of(allowed, repeats, p).met
    shown = Verdict.of(min(allowed + 1, repeats), repeats, p)
    assert shown.met == (allowed == repeats)
    assert (shown.detectable is None) == (allowed == repeats)
    if shown.detectable is not None:
        assert bdtrc(allowed, repeats, shown.detectable) == pytest.approx(0.9)


def test_a_seed_repeats_a_trial() -> None:
    plan = a_plan(30, privacy=propose(epsilon=1.0, delta=1e-6, rows=5, width=30))
    first, again, other = (tried(plan, repeats=4, seed=seed) for seed in (1, 1, 2))
    assert first.measurements == again.measurements
    assert not set(first.errors) & set(other.errors)
    assert len(set(first.errors)) == 4


def test_clients_are_the_sources_own_or_as_many_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most frequent of 300 items has Binomial(1000, 0.2) clients: not alike in three draws, and
    near 200."""
    seen: list[list[RoundTally]] = []

    def spied(plan: Plan, domain: Any, rounds: list[RoundTally], *more: Any) -> Any:
        seen.append(rounds)
        return measured(plan, domain, rounds, *more)

    measured = validation._measured
    monkeypatch.setattr(validation, "_measured", spied)

    def drawn(clients: int) -> list[dict[int, int]]:
        seen.clear()
        found = tried(a_plan(40, clients), zipf(1000), repeats=3)
        assert found.is_drawn == (clients != 1000)
        assert all(sum(part.num_clients for part in rounds) == clients for rounds in seen)
        assert len({tuple(part.num_clients for part in rounds) for rounds in seen}) > 1
        return [
            {
                i: sum(int(part.counts[part.ids == i].sum()) for part in rounds)
                for i in range(1, SIZE + 1)
            }
            for rounds in seen
        ]

    own, fewer, more = (drawn(clients) for clients in (1000, 999, 50_000))
    assert own[0] == own[1] == own[2]
    assert len({tuple(counts.values()) for counts in fewer}) == 3
    truth = np.array(list(own[0].values())) / 1000
    for counts in more:  # 300 binomials: five standard deviations of each
        shares = np.array(list(counts.values())) / 50_000
        assert (np.abs(shares - truth) <= 5 * np.sqrt(truth * (1 - truth) / 50_000)).all()


def test_every_repeat_has_hashes_of_its_own() -> None:
    found = tried(a_plan(8, num_rounds=1, schedule="shared"), repeats=5)
    assert len(set(found.errors)) > 3
    assert not found.is_drawn


def test_itemless_clients_of_a_private_plan_stay_itemless() -> None:
    """A third has no item: the errors of little noise are near 0 only if they count."""
    source = lambda: from_items([7] * 40 + [None] * 20)  # noqa: E731
    privacy = propose(epsilon=10.0, delta=1e-6, rows=5, width=50, not_private=True)
    for clients in (60, 900):
        found = tried(
            a_plan(50, clients, privacy=privacy), source(), repeats=3, domain=IntegerRange(1, SIZE)
        )
        assert found.errors.max() < 0.1
        assert found.distribution is not None
        assert found.distribution.numbers @ found.distribution.frequencies == pytest.approx(2 / 3)
    found = tried(a_plan(50, 40), source(), repeats=3, domain=IntegerRange(1, SIZE))
    assert not found.is_drawn
    assert "20 of 60 rows skipped: no item" in found.warnings


def test_a_trial_of_a_private_plan_does_not_tell_how_many_rows_lack_an_item() -> None:
    """What it says of clients of whom a third has no item, it says of those that all have one."""
    privacy = propose(epsilon=10.0, delta=1e-6, rows=5, width=50, not_private=True)
    for plan, is_told in ((a_plan(50, 60, privacy=privacy), False), (a_plan(50, 40), True)):
        said = [
            tried(plan, from_items(items), repeats=1, domain=IntegerRange(1, SIZE)).warnings
            for items in ([7] * 40 + [None] * 20, [7] * 60)
        ]
        assert (said[0] != said[1]) == is_told


@pytest.mark.promise
@pytest.mark.parametrize(
    ("secure_sum", "trust", "each"),
    [("ideal", None, 2), ("secagg", "central", 2), ("secagg", None, None), ("two-server", None, 4)],
)
def test_the_noise_is_that_of_the_plan(
    secure_sum: str, trust: str | None, each: int | None
) -> None:
    """One item, hardly ever met: the squares of 200 candidates add up to 200 variances of all
    releases together.

    A repeat varies by sqrt(2 / 200), 10 %, and the median of 12 by 3.6 %: 18 % are five standard
    errors. Two releases have a draw each, or one of each server; shares are those of all clients of
    four rounds. The noise of one release, or server, more or less would be 25 % or more, and shares
    of one cohort of a round 80 %.
    """
    clients = 1200
    plan = noised_plan(secure_sum, clients, trust=trust)
    assert plan.privacy is not None
    if each is None:
        expected = 4 * plan.privacy.share(clients // 4).variance
    else:
        expected = each * (plan.privacy.event.noise_variance + 1 / 12)
    source = from_items(np.zeros(1, np.int64), counts=np.array([clients]))
    found = validation.run(source, Trial(plan, 12, "median", seed=3), IntegerRange(0, 199))
    squares = np.array([m.l2**2 for m in found.measurements]) * clients**2 / 200
    assert abs(np.median(squares) / expected - 1) < 0.18
    assert found.measurements[0].bytes_per_client == plan.bytes_per_client


@pytest.mark.parametrize("secure_sum", ["secagg", "two-server"])
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_neighbouring_widths_cost_what_such_plans_cost(
    secure_sum: str, epsilon: float | None
) -> None:
    def fit(width: int) -> Plan:
        request = Request(secure_sum=secure_sum, rows=3, width=width, epsilon=epsilon, num_rounds=1)
        design = Design.fit(
            request.resolve(not_private=epsilon is not None),
            IntegerRange(1, 9),
            [90],
            seed=bytes(32),
        )
        return for_bytes(design).finish(key_bytes(1, b"keys"), lambda *_: None)[0]

    for width in (100, 120, 300):
        assert validation._bytes(fit(100), width) == pytest.approx(
            fit(width).bytes_per_client, rel=0.08
        )
    assert validation._bytes(fit(100), 100) == fit(100).bytes_per_client


def test_predictions_are_those_of_the_plan_and_its_neighbours() -> None:
    found = tried(a_plan(60), repeats=2)
    curve = found.curve(0.1)
    assert len(curve) == 13
    assert curve[6] == (a_plan(60).bytes_per_client, found.predicted(0.1))
    assert [x for x, _ in curve] == sorted({x for x, _ in curve})
    assert curve[0][1] > 2 * curve[-1][1]
    assert found.predicted(0.5) == pytest.approx(
        float(np.median(tried(a_plan(60), repeats=40).errors)), rel=0.25
    )
    # no width below 2
    assert tried(a_plan(2), repeats=1).curve(0.5)[0][0] == a_plan(2).bytes_per_client


def test_clients_of_several_items() -> None:
    """Every client holds its own number and 300: a wide sketch tells exactly, however they are
    drawn."""
    items = np.column_stack([np.arange(1, 61), np.full(60, SIZE)]).ravel()
    plan = a_plan(20_000, 60, max_items=2)
    for clients in (60, 200):
        again = a_plan(20_000, clients, max_items=2)
        found = tried(
            again,
            from_items(items, clients=np.repeat(np.arange(60), 2)),
            3,
            domain=IntegerRange(1, SIZE),
        )
        assert found.errors.max() < 1e-12
        assert (
            found.distribution,
            found.predicted(0.1),
            found.predicted_failure,
            found.curve(0.1),
        ) == (
            None,
            None,
            None,
            [],
        )
        assert any("nothing is predicted" in note for note in found.warnings)
    terms = propose(epsilon=5.0, delta=1e-6, rows=5, width=20_000, max_items=2, not_private=True)
    private = replace(plan, privacy=terms)
    found = tried(
        private,
        from_items(items, clients=np.repeat(np.arange(60), 2)),
        3,
        domain=IntegerRange(1, SIZE),
    )
    assert found.errors.min() > 0
    # One item each is within the bound, and predicted.
    assert (
        tried(replace(plan, num_clients=CLIENTS, max_round_clients=CLIENTS), repeats=1).distribution
        is not None
    )


def test_the_clip_of_a_private_plan_counts_as_error() -> None:
    """A client may hold two items; a clip that leaves one of them makes each item of half the
    clients vanish."""
    terms = propose(epsilon=10.0, delta=1e-6, rows=5, width=500, max_items=2, not_private=True)
    tight = replace(terms, event=replace(terms.event, clip_norm=5**0.5))
    source = lambda: from_items(np.tile([1, 2], 400), clients=np.repeat(np.arange(400), 2))  # noqa: E731
    for privacy, error in ((terms, 0.0), (tight, 0.5)):
        found = tried(
            a_plan(500, 400, max_items=2, privacy=privacy),
            source(),
            3,
            domain=IntegerRange(1, SIZE),
        )
        assert found.errors.max() == pytest.approx(error, abs=0.15)


def test_rounds_that_a_plan_does_not_allow_are_counted() -> None:
    # exactly even rounds are as rare as 1 in 5,000
    tight = a_plan(30, max_round_clients=CLIENTS // 3)
    found = tried(tight, repeats=4)
    assert any(
        note.startswith("in 4 of 4 repeats a round drew more clients") for note in found.warnings
    )
    assert not any("repeats a round" in note for note in tried(a_plan(30), repeats=4).warnings)


def test_a_table_is_read_with_the_candidates_of_a_histogram_plan() -> None:
    """Numbers in a text table are texts, which have no places in a histogram."""
    request = Request(epsilon=1.0, encoding="histogram").resolve(not_private=True)
    design = for_bytes(Design.fit(request, IntegerRange(1, 40), [300], seed=bytes(32)))
    assert design.chosen.encoding is Encoding.HISTOGRAM
    plan = design.finish(key_bytes(1, b"keys"), lambda *_: None)[0]
    found = tried(plan, from_items(["7", "9", "7"], counts=[100, 150, 50]), repeats=1)
    assert found.domain == IntegerRange(1, 40) and found.num_clients == 300


def test_a_plan_whose_rounds_cannot_all_land_is_told() -> None:
    """Each of four rounds needs its smallest cohort: with one client less one of them has none."""
    plan = noised_plan("secagg", CLIENTS)
    least = 4 * plan.secure_sum.parameters.n_min  # type: ignore[union-attr]
    for clients, is_told in ((least, False), (least - 1, True)):
        asked = replace(plan, num_clients=clients, max_round_clients=clients)
        found = tried(asked, uniform(200, 20), repeats=1)
        told = [note for note in found.warnings if "would not run: each of 4 rounds" in note]
        assert len(told) == is_told
    assert "are enough for 3 rounds" in told[0]


@pytest.mark.parametrize(
    ("plan", "source", "message"),
    [
        (
            a_plan(9, domain={**DOMAIN, "size": 299}),
            zipf(),
            "of 299 candidates, and the input has 300; declare",
        ),
        (
            a_plan(9),
            from_items(np.arange(1, SIZE + 1), counts=np.zeros(SIZE, np.int64)),
            "no client is left",
        ),
    ],
)
def test_what_does_not_fit_a_plan_is_refused(plan: Plan, source: Source, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        tried(plan, source)


@pytest.mark.parametrize(
    ("change", "message"), [({"repeats": 0}, "repeats"), ({"recovery": "auto"}, "recovery must")]
)
def test_bad_trials_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Trial(a_plan(9), **change)


def test_rounds_that_cannot_land_do_not_choose_the_decoder() -> None:
    """As in an estimate, whose messages are of the rounds that landed: here of 3,000 at most."""
    domain = DOMAIN | {"size": 500}
    long = a_plan(9, num_rounds=2**20, domain=domain, target=None)
    assert Trial(long).decoder == "belief"
    assert Trial(replace(long, num_clients=2**20, max_round_clients=9)).decoder == "joint"


Called = Callable[..., tuple[int, str, str]]
SOURCE = f"zipf:a=1.1,d={SIZE},n={CLIENTS}"


@pytest.fixture
def call(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Called:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(tmp_path)

    def simulate(plan: Plan, *arguments: str) -> tuple[int, str, str]:
        plan.save("plan.toml")
        code = command(["simulate", "--plan", "plan.toml", SOURCE, "--seed", "1", *arguments])
        return code, *capsys.readouterr()

    return simulate


def test_the_exit_code_says_whether_the_target_is_met(call: Called) -> None:
    for plan, code, said in ((a_plan(80), 0, "met"), (a_plan(6), 1, "missed")):
        found, out, err = call(plan, "--repeats", "12")
        words = " ".join(out.split())
        assert (found, err) == (code, "")
        assert (
            f"Target {said}: largest error above" in words
            and "of 12 repeats, allowed in at most 10 %" in words
        )
        for part in (
            "median",
            "90 %",
            "worst of 12",
            "simulated",
            "predicted",
            "the 3,000 of the source",
        ):
            assert part in words
    assert call(a_plan(80, linf=0.0025), "--repeats", "2")[0] == 0
    assert "1 repeat cannot show that the target is missed" in call(a_plan(6), "--repeats", "1")[1]


def test_a_document_and_a_table(call: Called) -> None:
    plan = a_plan(6, 2000, p=0.02)
    code, out, _ = call(plan, "--json", "--repeats", "12", "--output", "trial.csv")
    document = json.loads(out)
    assert (code, document["schema"]) == (1, "fedtally-validation/1")
    assert set(document) == {
        *(
            "schema",
            "warnings",
            "plan",
            "privacy",
            "domain",
            "source_clients",
            "drawn_with_replacement",
            "recovery",
        ),
        *("repeats", "target", "linf", "worst_linf", "exceeded", "predicted_failure", "verdict"),
        *("names", "rounds"),
    }
    assert (document["names"], document["rounds"]) == (None, None)
    assert document["target"] == {"linf": 0.01, "failure_probability": 0.02, "recovery": "joint"}
    assert [row["exceeded_with"] for row in document["linf"]] == [0.5, 0.1, 0.02]
    assert document["plan"]["fingerprint"] == plan.fingerprint
    assert (
        document["source_clients"],
        document["drawn_with_replacement"],
        document["privacy"],
    ) == (3000, True, None)
    assert document["verdict"].keys() == {"exceeded", "repeats", "allowed", "met", "detectable"}
    table = pyarrow.csv.read_csv("trial.csv")
    assert table.num_rows == 12
    assert max(table.column("linf").to_pylist()) == document["worst_linf"]
    columns = set(table.column_names)
    study = run(zipf(), Study(widths=(9,), repeats=1, seed=1)).to_arrow()
    assert columns == set(study.column_names)  # of both forms, so that they can be put together


def test_a_private_plan_is_simulated_as_a_study(call: Called) -> None:
    plan = a_plan(40, privacy=propose(epsilon=1.0, delta=1e-6, rows=5, width=40))
    _, out, _ = call(plan, "--repeats", "3", "--output", "trial.csv")
    assert "Privacy     simulated, so not private; a real campaign: epsilon 1" in out
    assert "this decoder finds rare items" not in out
    assert pyarrow.csv.read_csv("trial.csv").column("note").to_pylist() == ["not private"] * 3
    document = json.loads(call(plan, "--repeats", "3", "--json")[1])
    assert document["privacy"]["not_private"] and document["privacy"]["epsilon"] <= 1.0
    assert document["plan"]["fingerprint"] == plan.fingerprint


def test_a_plan_without_a_target_and_one_of_another_recovery(call: Called) -> None:
    code, out, _ = call(a_plan(6, target=None), "--repeats", "3", "--json")
    document = json.loads(out)
    assert (code, document["verdict"], document["exceeded"], document["predicted_failure"]) == (
        0,
        None,
        None,
        None,
    )
    assert document["recovery"] == "belief"
    assert "none: the plan has no target" in call(a_plan(6, target=None), "--repeats", "3")[1]
    code, out, _ = call(a_plan(6), "--repeats", "3", "--recovery", "median", "--json")
    document = json.loads(out)
    assert (code, document["verdict"], document["recovery"], document["exceeded"]) == (
        0,
        None,
        "median",
        3,
    )
    assert any("is for joint recovery, and this is median" in note for note in document["warnings"])


def test_the_plan_is_charted_among_its_neighbours(call: Called) -> None:
    pytest.importorskip("matplotlib")
    terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=40)
    for plan in (a_plan(40), a_plan(40, target=None), a_plan(40, privacy=terms)):
        _, _, err = call(plan, "--repeats", "2", "--plot", "plan.png")
        assert "wrote plan.png" in err
        assert Path("plan.png").stat().st_size > 5000


@pytest.mark.parametrize(
    "given",
    [
        ("--methods", "hybrid"),
        ("--width", "100"),
        ("--rows", "5"),
        ("--rounds", "10"),
        ("--epsilon", "1"),
        ("--delta", "1e-6"),
        ("--trust", "central"),
        ("--tau", "0.1"),
        ("--max-bytes", "9kB"),
        ("--name-length", "4"),
        ("--allow-rare-names",),
        ("--max-length", "4"),
        ("--normalise", "nfc"),
    ],
)
def test_what_the_plan_says_is_refused_beside_it(call: Called, given: tuple[str, ...]) -> None:
    code, out, err = call(a_plan(9), *given)
    assert (code, out) == (2, "")
    assert f"leave {given[0]} out, or the plan" in err


def test_a_plan_with_a_list_is_not_tested_on_an_open_domain(call: Called) -> None:
    code, out, err = call(a_plan(9), "--domain", "open")
    assert (code, out) == (2, "") and "--domain open goes with a plan for an open domain" in err


def test_plans_that_cannot_be_read_or_would_be_overwritten(
    call: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(a_plan(9), "--output", "plan.toml")
    assert (code, out) == (2, "") and "plan.toml: it is read by this run" in err
    for name, message in (
        ("none.toml", "cannot read the plan none.toml"),
        ("bad.toml", "not valid TOML"),
    ):
        Path("bad.toml").write_text("rows = ")
        assert command(["simulate", "--plan", name, SOURCE]) == 2
        assert message in capsys.readouterr().err


def test_library_draws_one_word_of_each_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("alpha beta = 9x + y\n\n# 12 34 _\n" + "gamma delta\n" * 4000)
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "b.py").write_text("left_out\n")
    (tmp_path / "c.py").write_bytes(b"last\xff\x00_one2")
    [batch] = library_source(np.random.default_rng(0), tmp_path).batches()
    words = batch.items.to_pylist()
    assert words[0] in ("alpha", "beta")
    assert words[-1] in ("last", "_one2")
    assert len(words) == 4002
    gammas = words.count("gamma")  # Binomial(4,000, 1/2): five standard deviations
    assert gammas + words.count("delta") == 4000
    assert abs(gammas - 2000) < 5 * 1000**0.5


def test_library_without_sources_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="zipf:"):
        list(library_source(np.random.default_rng(0), tmp_path).batches())
