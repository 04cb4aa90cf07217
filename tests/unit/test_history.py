"""The posterior means of a window given the rest of a history, against a plain reading of them."""

from __future__ import annotations

from math import exp, factorial, pi, sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.recovery import history
from fedtally.recovery.history import FAR, History, Part

F64 = npt.NDArray[np.float64]
RATIO = 11.0  # clients of the rest over those of the window


def parts(
    seed: int, size: int = 4000, stddev: float = 3.0, changed: float = 0.0
) -> tuple[F64, ...]:
    """Return counts of a window, and values and deviations of it and of the rest.

    Rates are those of a heavy-tailed law; a share of them is drawn anew for the window.
    """
    rng = np.random.default_rng(seed)
    rates = 60.0 * (np.arange(size) + 3.0) ** -0.9
    old = np.where(rng.random(size) < changed, rng.permutation(rates), rates)
    counts, before = rng.poisson(rates), rng.poisson(RATIO * old)
    sd = stddev * rng.uniform(0.8, 1.25, size)
    theirs = sd * sqrt(RATIO)
    drawn = rng.normal(size=(2, size))
    return counts, counts + sd * drawn[0], sd, before + theirs * drawn[1], theirs


def made(held: tuple[F64, ...]) -> tuple[F64, Part, Part]:
    counts, value, sd, theirs, their_sd = held
    return counts, Part(value, sd, 1000.0), Part(theirs, their_sd, RATIO * 1000.0)


def normal(x: float, square: float) -> float:
    return exp(-x * x / square / 2) / sqrt(2 * pi * square)


def plain(found: History, value: float, sd: float, theirs: float, their_sd: float) -> float:
    """Return the mean count of a light item by sums over old rates, rates and counts."""
    rates = found.rates
    before = [normal(theirs / RATIO - r, (their_sd / RATIO) ** 2 + r / RATIO) for r in rates.rates]
    total = mean = 0.0
    for place, rate in enumerate(rates.rates):
        weight = sum(b * p for b, p in zip(before, rates.joint[:, place], strict=True))
        if rate < 30:
            chances = [rate**c * exp(-rate) / factorial(c) for c in range(80)]
            each = [p * normal(value - c, sd**2) for c, p in enumerate(chances)]
            total += weight * sum(each)
            mean += weight * sum(c * p for c, p in enumerate(each))
        else:
            likely = weight * normal(value - rate, sd**2 + rate)
            total += likely
            mean += likely * (rate + rate / (rate + sd**2) * (value - rate))
    return mean / total


def test_light_items_have_the_means_of_the_plain_reading() -> None:
    """The table is interpolated: within 2 % of an item's standard deviation, or of a client."""
    _, window, rest = made(parts(0))
    found = History(window, rest)
    means = found.means(window, rest)
    light = np.flatnonzero((window.value < FAR * window.stddev) & (rest.value < FAR * rest.stddev))
    for place in np.random.default_rng(1).choice(light, 40, replace=False):
        own = (part[place] for part in (window.value, window.stddev, rest.value, rest.stddev))
        assert abs(means[place] - plain(found, *own)) < 0.05 * window.stddev[place]


@pytest.mark.parametrize("stddev", [0.7, 3.0, 30.0])
def test_the_past_helps_most_where_noise_is_large(stddev: float) -> None:
    """Against the better of the value and the rest's rate alone, the squared error falls."""
    counts, window, rest = made(parts(2, stddev=stddev))
    found = History(window, rest)
    error = np.mean((found.means(window, rest) - counts) ** 2)
    usual = min(
        np.mean((np.maximum(window.value, 0) - counts) ** 2),
        np.mean((np.maximum(rest.value / RATIO, 0) - counts) ** 2),
    )
    assert found.gain > 0 and error < 0.8 * usual


def test_the_share_that_changed_is_learned() -> None:
    quiet, loud = (
        History(*made(parts(3, size=300, stddev=0.5, changed=one))[1:]) for one in (0.0, 0.5)
    )
    start = 1.0 - history._CHANGED
    tell = slice(2, None)  # the classes of rates whose values show above the errors
    assert quiet.rates.kinds[tell, 0].min() >= start > loud.rates.kinds[tell, 0].max()
    assert quiet.gain > loud.gain


def test_items_that_jump_are_not_held_to_a_past_that_many_rare_ones_keep() -> None:
    """A tenth is ten times as frequent as ever, the others are a tenth of it: 200 items of 20,000.

    Nothing tells what the other 19,800 do, whose rates are far below the errors.
    """
    rng = np.random.default_rng(10)
    old = np.append(rng.uniform(2.0, 5.0, 200), np.full(19_800, 0.05))
    rates = old * np.where(rng.random(len(old)) < 0.1, 10.0, 0.1)
    counts = rng.poisson(rates)
    window = Part(counts + 4 * rng.normal(size=len(old)), np.full(len(old), 4.0), 1.0)
    theirs = rng.poisson(30 * old) + 4 * sqrt(30) * rng.normal(size=len(old))
    rest = Part(theirs, np.full(len(old), 4 * sqrt(30)), 30.0)
    found = History(window, rest)
    assert found.rates.kinds[1:3, 0].max() < 0.5
    # With one set of shares for all items it is .17.
    assert np.mean((found.means(window, rest) - counts) ** 2) < 0.13


def test_a_past_of_other_items_is_no_gain() -> None:
    """The rest belongs to other items: knowing it makes the window's values less likely."""
    _, window, rest = made(parts(4, stddev=0.5))
    order = np.random.default_rng(5).permutation(len(rest.value))
    other = Part(rest.value[order], rest.stddev[order], rest.clients)
    assert History(window, other).gain < History(window, rest).gain / 2


@settings(max_examples=10)
@given(st.floats(13, 1e4), st.floats(0.5, 100.0))
def test_a_new_heavy_item_keeps_its_value(far: float, sd: float) -> None:
    """However sure the past is that nobody held it: the estimate is within two deviations."""
    _, window, rest = made(parts(9, size=300))
    value = far * sd + 20
    new = Part(np.append(window.value, value), np.append(window.stddev, sd), window.clients)
    old = Part(np.append(rest.value, 0.0), np.append(rest.stddev, 1e-3), rest.clients)
    mean = History(new, old).means(new, old)[-1]
    assert abs(mean - value) < 2 * sd


def test_heavy_items_that_do_not_change_are_pooled() -> None:
    """A hundred equal heavy items: the window's own error halves where the rest is 11 as large."""
    rng = np.random.default_rng(6)
    rate = np.full(200, 5000.0)
    window = Part(rate + 100 * rng.normal(size=200), np.full(200, 100.0), 1.0)
    rest = Part(RATIO * rate + 100 * rng.normal(size=200), np.full(200, 100.0), RATIO)
    found = History(window, rest)
    assert found.shares[0] > 0.5
    # What is left is the Poisson noise of the counts, which the rest cannot know.
    assert np.std(found.means(window, rest) - rate) < 0.5 * np.std(window.value - rate)


def test_estimates_are_never_negative_and_follow_the_units() -> None:
    counts, window, rest = made(parts(7, stddev=0.5))
    means = History(window, rest).means(window, rest)
    assert means.min() >= 0.0 and abs(means.sum() / counts.sum() - 1) < 0.1


def test_the_prior_of_a_window_alone_is_learned_by_most_likelihood() -> None:
    """More steps of learning never make the window's values less likely."""
    _, window, rest = made(parts(8))
    table = history._Table(window, rest)
    light = (window.value < FAR * window.stddev) & (rest.value < FAR * rest.stddev)
    seen = table.count(*(Part(p.value[light], p.stddev[light], p.clients) for p in (window, rest)))
    found = []
    for steps in (1, 5, 30):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(history, "_STEPS", steps)
            found.append(history._alone(table, seen))
    assert found == sorted(found)
