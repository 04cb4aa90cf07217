"""Campaigns that the planner runs: beside campaigns run otherwise, and what model makes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtri

from fedtally.domain import IntegerRange
from fedtally.plan import trials
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.predictor import Predictor
from fedtally.plan.sizes import size_by_model
from fedtally.plan.trials import MOST_CELLS, Trials
from fedtally.recovery.decoders.belief.belief import FEWEST_CELLS
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.sketch import CountSketch, SketchSpec

CLIENTS, D = 10_000, 2000


def zipf(exponent, size=D):
    distribution = np.arange(1, size + 1.0) ** -exponent
    return distribution / distribution.sum()


def flat():
    """60 items alike, and others that hardly anybody holds: nothing that one could fit in a small
    sketch."""
    distribution = np.full(D, 0.1 / (D - 60))
    distribution[:60] = 0.015
    return distribution


def campaigns(distribution, recovery, rows, width, repeats):
    """Return the largest errors of campaigns: clients drawn together, items in random order."""
    rng = np.random.default_rng(3)
    errors = []
    for _ in range(repeats):
        counts = rng.permutation(rng.multinomial(CLIENTS, distribution))
        sketch = CountSketch(SketchSpec(rows, width, "shared", 1, rng.bytes(32)), 0)
        sketch.add_range(1, counts)
        domain = IntegerRange(1, len(distribution))
        decoder = JointDecoder([sketch], domain) if recovery == "joint" else MedianDecoder([sketch])
        errors.append(np.abs(decoder.range(1, len(distribution)) - counts).max() / CLIENTS)
    return np.array(errors)


@pytest.mark.parametrize(("recovery", "rows", "width"), [("joint", 7, 8), ("median", 11, 10)])
@pytest.mark.parametrize("distribution", [zipf(1.5), flat()])
def test_trials_fail_as_often_as_campaigns(recovery, rows, width, distribution):
    """Shares of 150 campaigns each beyond a size that half of them exceed: 4 standard deviations,
    .5 sqrt(2 / 150)."""
    found = Trials.of(
        Frequencies.from_frequencies(distribution), CLIENTS, recovery, 0.0, rows, width
    )
    errors = campaigns(distribution, recovery, rows, width, 150)
    assert abs(found.failure(float(np.median(errors)), 150) - 0.5) < 4 * 0.5 * math.sqrt(2 / 150)


def test_a_large_domain_is_its_heaviest_candidates_and_noise(monkeypatch):
    """Quantiles of 100 campaigns: the error of a quartile is about 1.4 times that of the mean, so 5
    of these each."""
    distribution = Frequencies.from_frequencies(zipf(1.2, 20_000))
    monkeypatch.setattr(trials, "ITEMS", 20_000)
    whole = Trials(distribution, CLIENTS, "joint", 0.0, 7, 12).errors(100)
    monkeypatch.setattr(trials, "CANDIDATES", 2000)
    part = Trials(distribution, CLIENTS, "joint", 0.0, 7, 12).errors(100)
    for share in (0.25, 0.5):
        spread = 1.4 * math.hypot(float(whole.std()), float(part.std())) / 10
        assert abs(np.quantile(part, share) - np.quantile(whole, share)) < 5 * spread
    items, others = trials._items(distribution, CLIENTS, 2000)
    assert len(items) == 2000 and others > 0


@pytest.mark.parametrize("candidates", [1000, 100_000])
def test_noise_alone_has_the_errors_of_normals(candidates, monkeypatch):
    """The median of the largest of d normals, of mean 0: within 10 %, since cells are few and
    bounded."""
    monkeypatch.setattr(trials, "CANDIDATES", 1000)
    distribution = Frequencies(np.empty(0), np.empty(0), candidates)
    errors = Trials(distribution, CLIENTS, "joint", 50.0, 7, 20).errors(50)
    largest = -ndtri((1 - 0.5 ** (1 / candidates)) / 2) * 50.0 / math.sqrt(7) / CLIENTS
    assert float(np.median(errors)) == pytest.approx(largest, rel=0.1)


def test_what_is_asked_again_is_not_run_again(monkeypatch):
    distribution = Frequencies.from_frequencies(zipf(1.5))
    first = Trials.of(distribution, CLIENTS, "joint", 0.0, 7, 6)
    errors = first.errors(30)
    monkeypatch.setattr(Trials, "_error", lambda *_: pytest.fail("run again"))
    again = Trials.of(distribution, CLIENTS, "joint", 0.0, 7, 6)
    assert (
        again is first
        and again.errors(30).tolist() == errors.tolist()
        and len(again.errors(7)) == 7
    )


def test_the_same_question_has_the_same_answer():
    errors = [
        Trials(Frequencies.from_frequencies(zipf(1.5)), CLIENTS, "joint", 2.5, 7, 6).errors(5)
        for _ in range(2)
    ]
    assert errors[0].tolist() == errors[1].tolist()


@pytest.mark.parametrize(
    ("failures", "probability", "exceeds", "run"),
    [
        ([], 0.05, False, 40),
        ([3], 0.05, False, 60),
        ([1, 2, 3, 4, 5, 6], 0.05, True, 10),
        ([7, 17, 27, 37, 47], 0.05, False, 100),
        ([7, 17, 27, 37, 47, 99], 0.05, True, 100),
        ([], 0.5, False, 10),
    ],
)
def test_no_more_campaigns_are_run_than_are_needed(
    failures, probability, exceeds, run, monkeypatch
):
    ran = []

    def error(*_):
        ran.append(None)
        return 1.0 if len(ran) - 1 in failures else 0.0

    monkeypatch.setattr(Trials, "_error", error)
    found = Trials(Frequencies.from_frequencies([0.5]), CLIENTS, "joint", 0.0, 7, 6)
    assert (found.exceeds(0.5, probability, 100), len(ran)) == (exceeds, run)
    assert found.failure(0.5, 100) == len(failures) / 100
    assert found.linf(0.05, 100) == float(len(failures) > 5)


def test_campaigns_are_run_for_small_sketches_of_one_batch():
    distribution = Frequencies.from_frequencies(zipf(1.5))
    predictor = Predictor(CLIENTS, "shared", 4, noise=lambda rows: 2.0 * rows)
    found = predictor.trials(distribution, 7, 21)
    assert found is not None and found.noise == 28.0
    assert predictor.trials(distribution, 7, 22) is None
    assert Predictor(CLIENTS, "hybrid", 4).trials(distribution, 7, 3) is None
    assert Predictor(CLIENTS, "batched:1", 4).trials(distribution, 7, 3) is not None
    # What is too rare for a hundred campaigns to show is predicted.
    assert predictor.linf(distribution, 0.01, 7, 10) == predictor.modelled_linf(
        distribution, 0.01, 7, 10
    )
    assert predictor.linf(distribution, 0.05, 7, 10) == found.of(
        distribution, CLIENTS, "joint", 28.0, 7, 10
    ).linf(0.05, 100)


def test_joint_recovery_is_tried_for_belief_propagation():
    """A sketch that is tried has too few cells for messages, so that joint recovery answers."""
    assert MOST_CELLS < FEWEST_CELLS
    distribution = Frequencies.from_frequencies(zipf(1.1, 1000))
    predictor = Predictor(CLIENTS * 10, recovery="belief")
    assert predictor.trials(distribution, 10, 14).recovery == "joint"
    assert replace(predictor, recovery="median").trials(distribution, 10, 14).recovery == "median"
    joint, belief = (
        Trials(distribution, CLIENTS * 10, recovery, 0.0, 10, MOST_CELLS // 10).errors(3)
        for recovery in ("joint", "belief")
    )
    assert np.array_equal(joint, belief)


def geometric(ratio):
    distribution = ratio ** np.arange(float(D))
    return distribution / distribution.sum()


def test_rare_failures_never_take_fewer_columns_than_frequent_ones():
    """A hundred campaigns do not show failures of 1 in 50: what keeps 1 in 20, and what is
    predicted, are both kept."""
    distribution, predictor = Frequencies.from_frequencies(geometric(0.9)), Predictor(100_000)
    widths = [
        size_by_model(distribution, 0.02, predictor, p=p, rows=12).width
        for p in (0.1, 0.04, 0.036, 0.01)
    ]
    assert widths == sorted(widths)


def test_no_column_is_tried_after_the_other(monkeypatch):
    """Where nothing does, no more than some dozen widths are tried, with ten campaigns each."""
    tried = []
    monkeypatch.setattr(Trials, "_error", lambda trials, _: tried.append(trials.width) or 1.0)
    distribution = Frequencies.from_frequencies([0.5])
    size = size_by_model(distribution, 0.3, Predictor(2, recovery="median"), rows=1)
    assert size.width == trials.MOST_CELLS + 1 and len(set(tried)) < 40 and len(tried) < 500


@pytest.mark.parametrize("recovery", ["joint", "median"])
def test_plans_of_a_small_width_are_small_and_keep_their_promise(recovery):
    """Of 100 campaigns more than 18 fail with probability below 1 %, if 1 in 10 does; half the
    columns do not do."""
    distribution, tau = flat(), 0.05
    known, predictor = (
        Frequencies.from_frequencies(distribution),
        Predictor(CLIENTS, recovery=recovery),
    )
    rows = {"joint": 10, "median": 15}[recovery]
    size = size_by_model(known, tau, predictor, rows=rows)
    assert size.cells <= trials.MOST_CELLS and size.linf is not None and size.linf <= tau
    assert (campaigns(distribution, recovery, rows, size.width, 100) > tau).sum() <= 18
    assert (campaigns(distribution, recovery, rows, size.width // 2, 60) > tau).mean() > 0.1


@pytest.mark.parametrize(
    ("failing", "exceeds", "run"), [(range(30, 36), True, 6), (range(30, 32), False, None)]
)
def test_campaigns_that_failed_elsewhere_come_first(failing, exceeds, run, monkeypatch):
    """Six failures of a hundred are too many in any order; that few are enough is told in their own
    order alone."""
    distribution, ran = Frequencies.from_frequencies([0.5]), []
    other, found = (Trials(distribution, CLIENTS, "joint", 0.0, 7, width) for width in (6, 5))
    other._errors.update({number: float(number in range(30, 36)) for number in range(50)})
    monkeypatch.setattr(
        Trials, "_campaign", lambda _, number: ran.append(number) or float(number in failing)
    )
    assert found.exceeds(0.5, 0.05, 100, other) is exceeds
    assert len(set(ran)) == run if exceeds else set(range(40)) <= set(ran)


def test_campaigns_of_one_number_have_the_same_clients_and_hashes_at_every_width(monkeypatch):
    drawn = []
    monkeypatch.setattr(
        trials, "CountSketch", lambda spec, _: drawn.append(spec.seed) or CountSketch(spec, 0)
    )
    for width in (5, 6):
        Trials(Frequencies.from_frequencies(zipf(1.5)), CLIENTS, "joint", 2.5, 7, width).errors(3)
    assert drawn[:3] == drawn[3:] and len(set(drawn)) == 3
