"""Fast paths of the planner and of what it calls, each beside a plain reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.domain import IntegerRange
from fedtally.kernels import decoder
from fedtally.plan import trials
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.predictor import Predictor
from fedtally.plan.sizes import size_by_model
from fedtally.plan.trials import Trials
from fedtally.privacy.accounting import calibrate, epsilon
from fedtally.privacy.events import Event
from fedtally.privacy.gaussian import gaussian_curve
from fedtally.privacy.loss_distribution import _composed
from fedtally.recovery.decoders.joint import joint_error
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median import median_error
from fedtally.recovery.linear_system import I64, Candidates, Decoder, Landed
from fedtally.recovery.quantiles import median, quantile, quantiles
from fedtally.recovery.sums import F64, Sums
from fedtally.sketch import CountSketch, Schedule, SketchSpec

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


# ---- quantiles ----


@given(VALUES, st.floats(0, 1))
@example([1.0, 2.0], 1.0)
@example([3.0, 3.0, 1.0], 0.5)
def test_quantiles_are_those_of_numpy_to_the_bit(values: list[float], share: float) -> None:
    known = np.array(values)
    assert quantile(known, share) == np.quantile(known, share)
    assert median(known) == np.median(known)


@given(VALUES, st.lists(st.floats(0, 1), min_size=1, max_size=12))
@example([1.0, 2.0], [1.0, 0.0])
def test_several_quantiles_are_those_of_numpy_to_the_bit(
    values: list[float], shares: list[float]
) -> None:
    known = np.array(values)
    np.testing.assert_array_equal(
        quantiles(known, np.array(shares)), np.quantile(known, shares), strict=True
    )


# ---- the fit ----


def sketch(width: int, schedule: str, seed: int) -> list[CountSketch]:
    """Return sums of three rounds of 5,000 clients, of 2,000 items."""
    rng = np.random.default_rng(seed)
    spec = SketchSpec(8, width, Schedule.parse(schedule), 3, rng.bytes(32))
    law = np.arange(1, 2001.0) ** -1.3
    found = []
    for m in range(3):
        found.append(CountSketch(spec, m))
        found[-1].add_range(1, rng.multinomial(5000, law / law.sum()))
    return found


@pytest.mark.parametrize("schedule", ["shared", "hybrid", "fresh"])
@pytest.mark.parametrize("width", [4, 8, 60, 300])
def test_a_rung_that_is_skipped_finds_nothing_new(
    schedule: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare the whole fit with one that looks at every rung, reachable or not."""
    sums = sketch(width, schedule, width)
    looks: list[None] = []
    above = Candidates.decoded_above

    def counted(
        candidates: Candidates, decoder: Decoder, floor: float
    ) -> Iterator[tuple[int, I64, F64]]:
        looks.append(None)
        return above(candidates, decoder, floor)

    monkeypatch.setattr(Candidates, "decoded_above", counted)
    with_skips = JointDecoder(sums, IntegerRange(1, 2000))
    looked = len(looks)
    monkeypatch.setattr(Landed, "largest_median", lambda *_: math.inf)
    without = JointDecoder(sums, IntegerRange(1, 2000))
    skipped = len(looks) - 2 * looked
    assert skipped > 0 if width == 4 else skipped >= 0
    ours, theirs = with_skips.fit.support, without.fit.support
    assert ours.positions.tolist() == theirs.positions.tolist()
    np.testing.assert_array_equal(ours.values, theirs.values)
    np.testing.assert_array_equal(with_skips.range(1, 2000), without.range(1, 2000))


@pytest.mark.parametrize("schedule", ["shared", "hybrid", "fresh"])
@pytest.mark.parametrize("width", [8, 60])
def test_the_residual_is_what_the_support_leaves(schedule: str, width: int) -> None:
    """Items that left the support went back to the cells that they had come from."""
    sums = sketch(width, schedule, width)
    fit = JointDecoder(sums, IntegerRange(1, 2000)).fit
    explained = np.zeros_like(fit.residual)
    places = fit.landed.places(fit.support.ids)
    fit.landed.add(explained, *places, fit.support.values)
    np.testing.assert_allclose(fit.residual + explained, fit.landed.frequencies, atol=1e-12)


# ---- kernels ----


def test_kernels_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "3")
    assert kernels.num_threads() == 3
    with kernels.one_thread():
        assert kernels.num_threads() == 1
        with kernels.one_thread():
            assert kernels.num_threads() == 1
        assert kernels.num_threads() == 1  # the outer context goes on
    assert kernels.num_threads() == 3
    with pytest.raises(ZeroDivisionError), kernels.one_thread():
        raise ZeroDivisionError
    assert kernels.num_threads() == 3


def test_one_thread_decodes_what_several_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDTALLY_NUM_THREADS", "3")
    # so small a bound that several threads take part
    monkeypatch.setattr(decoder, "PARALLEL_FROM", 64)
    [first, *_] = sketch(60, "shared", 1)
    several = JointDecoder([first], IntegerRange(1, 2000)).range(1, 2000)
    with kernels.one_thread():
        alone = JointDecoder([first], IntegerRange(1, 2000)).range(1, 2000)
    np.testing.assert_array_equal(alone, several)


@pytest.mark.parametrize("width", [1, 3, 10, 16, 17, 20, 31, 32, 33])  # 33: too wide to be held
@pytest.mark.parametrize("fold", ["median", "mean"])
def test_a_table_that_registers_hold_gives_what_the_reference_does(
    width: int, fold: Literal["median", "mean"], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(width)
    tables = rng.integers(0, 2**32, (1, 5, 8, 256), dtype=np.uint32)
    sums = rng.integers(-1000, 1000, (1, 5, width)).astype(np.float32)
    ids = rng.integers(0, 2**64, 1003, dtype=np.uint64)
    compiled = kernels.Decoder(sums, tables, fold=fold)
    found = compiled.at(ids), compiled.range(250, 1003)  # a chunk of 6 ids, then whole ones
    monkeypatch.setenv("FEDTALLY_KERNELS", "numpy")
    plain = kernels.Decoder(sums, tables, fold=fold)
    np.testing.assert_allclose(found[0], plain.at(ids), rtol=1e-12)
    np.testing.assert_allclose(found[1], plain.range(250, 1003), rtol=1e-12)


# ---- campaigns ----


@pytest.mark.parametrize(
    ("failures", "run"),
    [
        ([], 50),
        ([3], 75),
        ([3, 60], 100),
        ([1, 2, 3, 4, 5, 6], 100),
        (range(100), 100),
    ],
)
def test_the_error_of_a_plan_takes_no_more_campaigns_than_make_it_sure(
    failures: list[int], run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a failure n campaigns are enough if (1 - p)^n is at most 1 %."""
    ran: list[float] = []

    def error(*_: object) -> float:
        ran.append((1.0 if len(ran) in failures else 0.0) + len(ran) / 1000)
        return ran[-1]

    monkeypatch.setattr(Trials, "_error", error)
    found = Trials(Frequencies.from_frequencies([0.5]), 1000, "joint", 0.0, 7, 6)
    linf = found.linf(0.1, 100, tau=0.5)
    assert len(ran) == run
    assert linf == sorted(ran)[-1 - run // 10]
    assert found.linf(0.1, 100) == sorted(ran)[-11]
    assert len(ran) == 100  # without tau


@pytest.mark.parametrize(("estimate", "error"), [(0.0, 500.0), (1.0, 1e6)])
def test_only_the_error_of_what_nobody_holds_grows_with_the_domain(
    estimate: float, error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Constant:
        def make(self, *_: object) -> Constant:
            return self

        def range(self, _: int, count: int) -> F64:
            return np.full(count, estimate)

    monkeypatch.setattr(trials, "kind_of", lambda _: Constant())
    monkeypatch.setattr(trials, "_growth", lambda *_: 1e6)
    one = Frequencies.from_frequencies([1.0], domain_size=300)
    assert Trials(one, 500, "joint", 0.0, 7, 6).errors(1) * 500 == pytest.approx([error])


# ---- the error model ----


def by_halving(ladder: joint_error._Ladder, s: F64) -> F64:
    """Return the least thresholds that leave no more items than may be fitted, by halving alone."""
    low = np.maximum(ladder.selected * s, 0.5 / ladder.plan.clients)
    return np.where(ladder._support(low, s) > ladder.most, ladder._halved(low, s), low)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(3, 16),
    st.integers(2, 400),
    st.floats(1.02, 2.0),
    st.lists(st.floats(1e-6, 0.3), min_size=1, max_size=24),
)
@example(7, 4, 1.1, [1e-5, 1e-4, 1e-3, 0.1])
@example(8, 8, 1.25, [1e-6])
def test_a_threshold_is_that_of_halving(
    rows: int, width: int, exponent: float, scales: list[float]
) -> None:
    law = np.sort(np.arange(1, 3001.0) ** -exponent)
    shape = Sums(rows, width, np.ones(1), False, 20_000, 0.0, 3000, 1.0)
    f, number = joint_error.drawn(law / law.sum(), shape)
    ladder, s = joint_error._Ladder(f, number, shape, 0.3), np.array(scales)[:, None]
    found, halved = ladder._threshold(s), by_halving(ladder, s)
    # Where whole items fill the support exactly, rounding decides which of many thresholds halving
    # finds: all of them leave as many items.
    full = np.isclose(ladder._support(halved, s), ladder.most, rtol=1e-11, atol=0.0)
    full &= np.isclose(ladder._support(found, s), ladder.most, rtol=1e-11, atol=0.0)
    np.testing.assert_allclose(np.where(full, halved, found), halved, rtol=1e-8)


@pytest.mark.parametrize("exponent", [1.05, 1.3])
@pytest.mark.parametrize(("tau", "noise"), [(0.01, 0.0), (0.002, 0.0), (0.004, 20.0)])
def test_sizes_are_those_of_halving(
    exponent: float, tau: float, noise: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = np.arange(1, 5001.0) ** -exponent
    known = Frequencies.from_frequencies(law / law.sum(), domain_size=100_000)
    predictor = Predictor(50_000, "hybrid", 2, noise=noise)
    found = size_by_model(known, tau, predictor, with_linf=False)
    monkeypatch.setattr(joint_error._Ladder, "_threshold", by_halving)
    assert size_by_model(known, tau, predictor, with_linf=False) == found


@settings(max_examples=25, deadline=None)
@given(
    st.integers(3, 16),
    st.integers(4, 400),
    st.floats(1.02, 2.0),
    st.floats(0, 100),
    st.integers(1, 4),
)
def test_the_scale_is_that_of_halving(
    rows: int, width: int, exponent: float, noise: float, batches: int
) -> None:
    law = np.sort(np.arange(1, 3001.0) ** -exponent)
    shape = Sums(rows, width, np.ones(batches), False, 20_000, noise**2, 3000, 1.0)
    f, number = joint_error.drawn(law / law.sum(), shape)
    ladder = joint_error._Ladder(f, number, shape, 0.3)
    found = ladder.largest_scale()
    if found == 0.0:
        return
    # Below what is found (1) returns at least as much, above it less, within the last step.
    for factor, is_more in ((1 - 1e-5, True), (1 + 1e-5, False)):
        implied = float(ladder.at(np.array([found * factor])).implied[0])
        assert (implied >= found * factor) is is_more


@pytest.mark.parametrize("size", [1, 2, 33, 64, 1000])
def test_a_convolution_is_the_sum_over_pairs(size: int) -> None:
    rng = np.random.default_rng(size)
    first, second = rng.random(size), rng.random(size + 1)
    np.testing.assert_allclose(
        median_error._convolved(first, second), np.convolve(first, second), rtol=1e-9
    )


# ---- noise ----


def alone(event: Event, delta: float) -> tuple[float, str]:
    """Return epsilon and its method where nothing was composed before."""
    _composed.cache_clear()
    gaussian_curve.cache_clear()
    found = epsilon(event, delta)
    return found.epsilon, found.method


def test_a_bound_that_is_kept_is_that_of_the_same_event_alone() -> None:
    """Events that differ in what a bound depends on, one after the other, and again."""
    gaussian = Event("rounded-gaussian", 5, "zero-out", variance=90.0)
    skellam = Event("skellam", 5, "zero-out", variance=90.0, honest_survivors=100)
    asked = [
        (event, delta)
        for event in (
            gaussian,
            skellam,
            replace(gaussian, variance=91.0),
            replace(gaussian, rows=6),
            replace(gaussian, participations=2),
            replace(gaussian, relation="replace-one"),
            replace(gaussian, total_variation=1e-9),
            replace(gaussian, variance=2e4),  # so much that it counts as a Gaussian
        )
        for delta in (1e-6, 1e-5)
    ]
    expected = [alone(*one) for one in asked]
    assert len(set(expected)) == len(asked)
    _composed.cache_clear()
    gaussian_curve.cache_clear()
    for _ in range(2):
        kept = [epsilon(*one) for one in asked]
        assert [(found.epsilon, found.method) for found in kept] == expected


def test_widths_whose_samplers_alone_differ_are_calibrated_with_one_set_of_bounds() -> None:
    _composed.cache_clear()
    event = Event("rounded-gaussian", 5, "zero-out", total_variation=2.0**-120)
    first = calibrate(event, 1.0, 1e-6)
    composed = _composed.cache_info().misses
    assert calibrate(replace(event, total_variation=2.0**-118), 1.0, 1e-6) == first
    assert _composed.cache_info().misses == composed > 0


def by_bisection(event: Event, target: float, delta: float, others: list[Event]) -> float:
    """Return the least variance that suffices, by halving alone."""
    low, high = 1e-3, 1e9
    while high > low * (1 + 1e-6):
        middle = math.sqrt(low * high)
        spent = epsilon([*others, replace(event, variance=middle)], delta).epsilon
        low, high = (low, middle) if spent <= target else (middle, high)
    return high


@pytest.mark.parametrize("mechanism", ["rounded-gaussian", "skellam"])
@pytest.mark.parametrize(("rows", "target"), [(5, 1.0), (16, 0.3)])
def test_secant_steps_end_where_halving_does(mechanism: str, rows: int, target: float) -> None:
    trust = {"honest_survivors": 100} if mechanism == "skellam" else {}
    event = Event(mechanism, rows, "zero-out", **trust)  # type: ignore[arg-type]
    found = calibrate(event, target, 1e-6)
    assert found == pytest.approx(by_bisection(event, target, 1e-6, []), rel=2.5e-6)
    assert epsilon(replace(event, variance=found), 1e-6).epsilon <= target
