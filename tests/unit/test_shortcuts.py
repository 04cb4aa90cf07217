"""Fast paths of the planner and of what it calls, each beside a plain reference."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedtally import kernels
from fedtally.domain import IntegerRange
from fedtally.kernels import decoder
from fedtally.planner.frequencies import Frequencies
from fedtally.planner.trials import Trials
from fedtally.privacy.accounting import calibrate, epsilon
from fedtally.privacy.events import Event
from fedtally.recovery import joint_error, median_error
from fedtally.recovery.error_shape import F64, Shape
from fedtally.recovery.joint import JointDecoder
from fedtally.recovery.linear_system import Candidates, Decoder, Landed
from fedtally.recovery.quantiles import median, quantile
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
    decoded = Candidates.decoded

    def counted(candidates: Candidates, decoder: Decoder) -> Iterator[tuple[int, F64]]:
        looks.append(None)
        return decoded(candidates, decoder)

    monkeypatch.setattr(Candidates, "decoded", counted)
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


# ---- the error model ----


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
    shape = Shape(rows, width, np.ones(batches), False, 20_000, noise**2, 3000, 1.0)
    f, number = joint_error._drawn(law / law.sum(), shape)
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
