"""Schedules and sizes chosen together, and how far one gets: beside looking at everything."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import pytest

from fedtally.errors import InvalidInputError
from fedtally.plan.choice import Question, best, best_schedule, least, reach, schedules, smallest
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.sizes import UnreachableError
from fedtally.sketch import Schedule

pytestmark = pytest.mark.usefixtures("errors_once")

LAW = Frequencies.assumed(5000)


def zipf(exponent: float, size: int = 5000) -> Frequencies:
    values = np.arange(1, size + 1.0) ** -exponent
    return Frequencies.from_frequencies(values / values.sum())


def question(**changes: object) -> Question:
    given: dict[str, object] = {
        "distribution": LAW,
        "num_clients": 50_000,
        "num_rounds": 8,
        "schedules": schedules("auto", 8, "joint", noised_by_release=False),
        "bytes_of": lambda rows, width, _: 2 * rows * width,
    }
    return Question(**given | changes)  # type: ignore[arg-type]


def by_opening(stddev: float):
    """Return noise that is added once to every release, in a round's share of it."""
    return lambda rows, schedule: stddev * math.sqrt(schedule.num_batches(8) / 8)


def opened(name: str = "auto", recovery: str = "joint") -> list[Schedule]:
    return schedules(name, 8, recovery, noised_by_release=True)


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
    assert [str(s) for s in schedules("auto", 8, "median", noised_by_release=False)] == [
        "hybrid",
        "fresh",
    ]
    assert [str(s) for s in schedules("auto", 1, "joint", noised_by_release=True)] == ["shared"]


@pytest.mark.parametrize("stddev", [0.0, 30.0, 300.0, 3000.0])
@pytest.mark.parametrize("distribution", [zipf(1.1), zipf(2.0)])
def test_the_best_schedule_is_that_of_looking_at_all(stddev, distribution):
    """They are tried as long as errors fall: at most 5 % is lost to where it stops, and to what
    there is."""
    asked = question(distribution=distribution, schedules=opened(), noise=by_opening(stddev))
    errors = {schedule: asked.linf(schedule, 7, 200) for schedule in opened()}
    for now in (None, Schedule.parse("shared")):
        assert errors[best_schedule(asked, 7, 200, now)] <= min(errors.values()) / 0.95


def test_much_noise_asks_for_few_openings():
    chosen = [
        best(question(schedules=opened(), noise=by_opening(stddev)), 3000).schedule.num_batches(8)
        for stddev in (1.0, 100.0, 1000.0)
    ]
    assert chosen[0] == 8
    assert chosen == sorted(chosen, reverse=True)
    assert chosen[2] == 1


@pytest.mark.parametrize("stddev", [3.0, 100.0])
@pytest.mark.parametrize(
    "distribution",
    [zipf(1.1), Frequencies.from_frequencies(np.full(200, 1 / 200), domain_size=5000)],
    ids=["zipf", "plateau"],
)
def test_no_other_schedule_meets_a_target_with_fewer_bytes(stddev, distribution):
    """Where items are alike, errors fall off a cliff: each schedule looks best at its own size."""
    asked: dict[str, object] = {
        "distribution": distribution,
        "noise": by_opening(stddev),
        "rows": 9,
    }
    cells = {}
    for schedule in opened():
        with suppress(UnreachableError):
            found = smallest(question(schedules=[schedule], **asked), 0.005, with_linf=False)
            cells[schedule] = found.size.cells
    chosen = smallest(question(schedules=opened(), **asked), 0.005, with_linf=False)
    assert cells[chosen.schedule] == chosen.size.cells <= min(cells.values()) / 0.9


def test_what_bytes_buy_is_what_the_error_needs():
    """A tau that bytes reach is met with at most these bytes, where margins are none."""
    asked = question(margin=1.0)
    schedule, size = best(asked, 2000)
    assert 2 * size.cells <= 2000
    again = smallest(asked, size.linf * 1.001)
    assert again.schedule == schedule
    assert again.size.cells <= 1000


@pytest.mark.parametrize(
    ("distribution", "stddev", "max_bytes"),
    [
        (zipf(2.0), 60.0, 300),
        (Frequencies.from_frequencies(np.full(800, 1 / 800), domain_size=5000), 200.0, 700),
    ],
    ids=["zipf", "plateau"],
)
def test_no_other_schedule_has_a_smaller_error_for_the_bytes(distribution, stddev, max_bytes):
    """Nor one that is a little better only, which choosing schedule and size in turn leaves."""
    asked: dict[str, object] = {
        "distribution": distribution,
        "noise": by_opening(stddev),
        "rows": 9,
    }
    errors = {
        schedule: best(question(schedules=[schedule], **asked), max_bytes).size.linf
        for schedule in opened()
    }
    all_of_them = question(schedules=opened(), **asked)
    chosen = best(all_of_them, max_bytes)
    assert chosen.size.linf == errors[chosen.schedule] == min(errors.values())
    in_turn = best(all_of_them, max_bytes, compared=False)
    assert chosen.size.linf < in_turn.size.linf


def test_margin_and_risk_make_it_wider():
    bare = smallest(question(margin=1.0, risk=1.0, rows=9), 0.002).size
    usual = smallest(question(rows=9), 0.002).size
    assert bare.rows == usual.rows == 9
    assert 1.09 < usual.width / bare.width < 1.5


def test_reach_falls_with_bytes_to_that_of_noise():
    asked = question(schedules=opened(), noise=by_opening(100.0))
    errors = [reach(asked, 7, max_bytes) for max_bytes in (20, 500, 5000, 50_000, None)]
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedules": []}, "schedules must be at least one, got none"),
        ({"failure_probability": 0.0}, "failure_probability must be above 0 and below 1, got 0"),
    ],
)
def test_bad_questions_are_refused(change, message):
    with pytest.raises(InvalidInputError, match=message):
        question(**change)
