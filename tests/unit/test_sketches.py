"""Schedules and sizes chosen together, and how far one gets: beside looking at everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pytest

from fedtally.domain import IntegerRange
from fedtally.plan.design import Design
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.request import Request
from fedtally.plan.rounds import possible_schedules
from fedtally.plan.search import least, make_target
from fedtally.plan.sizes import MARGIN, UnreachableError, size_by_model
from fedtally.plan.sketches import Sketches
from fedtally.sketch import Schedule

pytestmark = pytest.mark.usefixtures("errors_once")

LAW = Frequencies.assumed(5000)


def zipf(exponent: float, size: int = 5000) -> Frequencies:
    values = np.arange(1, size + 1.0) ** -exponent
    return Frequencies.from_frequencies(values / values.sum())


def plateau(items: int) -> Frequencies:
    return Frequencies.from_frequencies(np.full(items, 1 / items), domain_size=5000)


def opened(name: str = "auto", recovery: str = "joint") -> list[Schedule]:
    return possible_schedules(name, 8, recovery, noised_by_release=True)


def sketches(
    epsilon: float | None = None,
    frequencies: Frequencies = LAW,
    rows: int | None = None,
    schedules: Sequence[Schedule] = (),
) -> Sketches:
    """Return the sketches of eight rounds, whose noise an aggregator adds to each release."""
    spec = Request(num_rounds=8, epsilon=epsilon).resolve()
    design = Design.for_fleet(spec, IntegerRange(1, 5000), 50_000, bytes(32))
    return Sketches(design, frequencies, schedules or design.schedules, rows)


def cells(design: Design) -> int:
    return design.chosen.rows * design.chosen.width


def test_names_become_schedules():
    assert [str(s) for s in opened()] == [
        "hybrid",
        "batched:6",
        "batched:4",
        "batched:3",
        "batched:2",
        "shared",
    ]
    assert [str(s) for s in opened("batched:auto")][::5] == ["batched:8", "batched:1"]
    assert [str(s) for s in opened("batched:3")] == ["batched:3"]
    assert [str(s) for s in possible_schedules("auto", 8, "median", noised_by_release=False)] == [
        "hybrid",
        "fresh",
    ]
    assert [str(s) for s in possible_schedules("auto", 1, "joint", noised_by_release=True)] == [
        "shared"
    ]
    assert list(sketches(1.0).schedules) == opened()


# at these epsilons the noise of a release has standard deviations of about 30, 300 and 3,000
@pytest.mark.parametrize("epsilon", [None, 0.4, 0.04, 0.004])
@pytest.mark.parametrize("frequencies", [zipf(1.1), zipf(2.0)])
def test_the_best_schedule_is_that_of_looking_at_all(epsilon, frequencies):
    """They are tried as long as errors fall: at most 5 % is lost to where it stops, and to what
    there is."""
    looked = sketches(epsilon, frequencies, schedules=opened())
    errors = {schedule: looked.linf(schedule, 7, 200) for schedule in opened()}
    for now in (None, Schedule.parse("shared")):
        assert errors[looked.best_schedule(7, 200, now)] <= min(errors.values()) / 0.95


def test_much_noise_asks_for_few_openings():
    chosen = [
        sketches(epsilon).best(3000).chosen.schedule.num_batches(8) for epsilon in (10, 0.1, 0.01)
    ]
    assert chosen[0] == 8
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[2] == 1


@pytest.mark.parametrize("epsilon", [4.0, 0.12])
@pytest.mark.parametrize("frequencies", [zipf(1.1), plateau(200)], ids=["zipf", "plateau"])
def test_no_other_schedule_meets_a_target_with_fewer_bytes(epsilon, frequencies):
    """Where items are alike, errors fall off a cliff: each schedule looks best at its own size."""
    found = {}
    for schedule in opened():
        with suppress(UnreachableError):
            alone = sketches(epsilon, frequencies, 9, [schedule]).smallest(0.005, with_linf=False)
            found[schedule] = cells(alone)
    chosen = sketches(epsilon, frequencies, 9).smallest(0.005, with_linf=False)
    assert found[chosen.chosen.schedule] == cells(chosen) <= min(found.values()) / 0.9


def test_what_bytes_buy_is_what_the_error_needs():
    """A tau that bytes reach is met with at most these bytes, and the margin."""
    looked = sketches()
    bought = looked.best(2000)
    assert looked.cost(bought) <= 2000 < looked.cost(bought) + 2 * bought.chosen.rows * 2
    again = looked.smallest(bought.linf * 1.001)
    assert again.chosen.schedule == bought.chosen.schedule
    assert cells(again) <= MARGIN * cells(bought) + again.chosen.rows


@pytest.mark.parametrize(
    ("frequencies", "epsilon", "max_bytes"),
    [(zipf(2.0), 0.2, 270), (plateau(800), 0.06, 700)],
    ids=["zipf", "plateau"],
)
def test_no_other_schedule_has_a_smaller_error_for_the_bytes(frequencies, epsilon, max_bytes):
    """Nor one that is a little better only, which choosing schedule and size in turn leaves."""
    errors = {
        schedule: sketches(epsilon, frequencies, 9, [schedule]).best(max_bytes).linf
        for schedule in opened()
    }
    looked = sketches(epsilon, frequencies, 9)
    chosen = looked.best(max_bytes)
    assert chosen.linf == errors[chosen.chosen.schedule] == min(errors.values())
    assert chosen.linf < looked.best(max_bytes, compared=False).linf


def test_margin_and_risk_make_it_wider():
    predictor = sketches().design.predictor(Schedule.parse("hybrid"))
    bare = size_by_model(LAW, 0.002, predictor, margin=1.0, risk=1.0, rows=9)
    usual = size_by_model(LAW, 0.002, predictor, rows=9)
    assert bare.rows == usual.rows == 9
    assert 1.09 < usual.width / bare.width < 1.5
    assert sketches(rows=9).smallest(0.002).chosen.width == usual.width


def test_reach_falls_with_bytes_to_that_of_noise():
    looked = sketches(0.12)
    errors = [looked.reach(7, max_bytes) for max_bytes in (20, 500, 5000, 50_000, None)]
    assert errors[0] == math.inf
    assert errors[1:] == sorted(errors[1:], reverse=True)
    assert errors[-1] > 0.0005


def test_least_is_found_from_above():
    tried = []

    def suffices(value):
        tried.append(value)
        return value >= 7.3

    found = least(suffices, 1.0, 1000.0, 1.01)
    assert found is not None
    assert 7.3 <= found <= 7.3 * 1.01
    assert len(tried) < 20
    assert least(lambda _: False, 1.0, 10.0) is None
    assert least(lambda _: True, 1.0, 10.0) == 1.0


def test_a_target_of_two_digits_is_not_rounded_further_up():
    """140 of 1,000 clients are an error of 0.14: in binary, 0.14 / 0.01 is a little above 14."""
    for digits in range(10, 100):
        for exponent in range(-9, -1):
            error = float(f"{digits}e{exponent}")
            assert make_target(error, 0.1, "joint").linf == error
    assert make_target(140 / 1000, 0.1, "joint").linf == 0.14
    assert make_target(0.1401, 0.1, "joint").linf == 0.15
    assert make_target(0.0, 0.1, "joint").linf == 1e-9
