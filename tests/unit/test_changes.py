"""Flags of changed items: e-values against a plain reading, and the rate that they promise."""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.recovery import changes
from fedtally.recovery.changes import (
    Changes,
    Kind,
    Level,
    RoundValues,
    fewest_batches,
    find_changes,
)
from fedtally.recovery.decoders.belief import BeliefDecoder
from fedtally.recovery.decoders.kind import Measured
from fedtally.sketch import CountSketch, Schedule, SketchSpec

F64 = npt.NDArray[np.float64]
ALPHA = 0.05


def values(value: F64, stddev: float = 1.0, clients: float = 1000.0) -> RoundValues:
    rounds = value.shape[1]
    return RoundValues(
        value, np.full(value.shape, stddev), np.full(rounds, clients), list(range(rounds))
    )


@pytest.mark.filterwarnings("error")
def test_no_item_is_no_change() -> None:
    found = find_changes(values(np.zeros((0, 4))))
    assert [len(part) for part in found[:5]] == [0] * 5
    assert [len(part) for part in (*found.before, *found.after)] == [0] * 4
    assert changes.kinds(found) == []
    for chosen in (changes.flagged, changes.listed):
        assert chosen(found, ALPHA).tolist() == []
    with pytest.raises(InvalidInputError, match="at least 2 rounds"):
        find_changes(values(np.zeros((0, 1))))


def plain(z: list[float], square: list[float]) -> list[float]:
    """Return the e-values after each round, by sums over rounds and sizes of the change."""
    found = [1.0]
    scale = sum(square) / len(square)
    for t in range(1, len(z)):
        total, left = 0.0, 1.0
        for r in range(1, t + 1):
            weights = [1 / one for one in square]
            before, after = sum(weights[:r]), sum(weights[r : t + 1])
            level = sum(w * x for w, x in zip(weights[:r], z[:r], strict=True)) / before
            new = sum(w * x for w, x in zip(weights[r : t + 1], z[r : t + 1], strict=True)) / after
            error = 1 / before + 1 / after
            chance = 1 / (2.6 * r * log(r + 1.7) ** 2)
            left -= chance
            for size in (0.5, 1.0, 2.0, 4.0):
                spread = size**2 * scale
                # the density of the difference if the levels differ, over that if they do not
                factor = sqrt(error / (error + spread)) * exp(
                    (new - level) ** 2 / 2 * (1 / error - 1 / (error + spread))
                )
                total += chance * factor / 4
        found.append(total + left)
    return found


@settings(max_examples=40)
@given(st.integers(2, 9), st.integers(0, 10**6))
def test_e_values_are_those_of_the_plain_reading(rounds: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    value = 50 + rng.normal(scale=12, size=(3, rounds)) + 30 * (np.arange(rounds) > rounds // 2)
    given_ = RoundValues(
        value, rng.uniform(0.5, 5, (3, rounds)), rng.uniform(500, 2000, rounds), [*range(rounds)]
    )
    found = find_changes(given_)
    z, square = changes._frequencies(given_)
    for place in range(3):
        expected = np.log(plain(list(z[place]), list(square[place])))
        assert found.log_e[place] == pytest.approx(expected[-1], abs=1e-9)
        assert found.largest[place] == pytest.approx(expected.max(), abs=1e-9)


def test_unchanged_items_are_hardly_ever_flagged() -> None:
    """20,000 streams of 40 rounds, looked at after each: E reaches 20 in at most .05 of them.

    Streams are independent, so that four standard deviations of the share are .0062. The mean of E
    is at most 1; its heavy tail leaves that of E below 20 to compare.
    """
    rng = np.random.default_rng(0)
    counts = rng.poisson(30.0, (20_000, 40)) + 4 * rng.normal(size=(20_000, 40))
    found = find_changes(values(counts, 4.0))
    assert np.mean(found.largest >= log(20)) < ALPHA + 0.0062
    assert np.exp(found.log_e[found.log_e < log(20)]).mean() < 1.0


def test_rare_items_that_clients_hold_by_chance_are_not_flagged() -> None:
    """Poisson counts of mean .05, with hardly any noise: three clients in a round are no change."""
    rng = np.random.default_rng(1)
    found = find_changes(values(rng.poisson(0.05, (20_000, 30)) * 1.0, 0.01))
    assert not changes.flagged(found, ALPHA).any() and not changes.listed(found, ALPHA).any()


def test_changed_items_are_found_with_their_round_and_kind() -> None:
    rng = np.random.default_rng(2)
    mean = np.full((200, 30), 40.0)
    mean[0, 20:], mean[1, 20:], mean[2, 20:], mean[3, :20] = 120.0, 10.0, 0.0, 0.0
    found = find_changes(values(rng.poisson(mean) + 3 * rng.normal(size=mean.shape), 3.0))
    assert np.flatnonzero(changes.flagged(found, ALPHA)).tolist() == [0, 1, 2, 3]
    assert set(np.flatnonzero(changes.listed(found, ALPHA))) >= {0, 1, 2, 3}
    assert changes.kinds(found)[:4] == [Kind.RISING, Kind.FALLING, Kind.GONE, Kind.NEW]
    assert np.all(np.abs(found.since[:4] - 20) <= 1)
    assert np.all((found.since_low <= found.since) & (found.since <= found.since_high))
    assert abs(found.before.frequency[0] - 0.04) < 5 * found.before.stddev[0]
    assert abs(found.after.frequency[0] - 0.12) < 5 * found.after.stddev[0]


def test_an_outlier_of_one_round_is_cut() -> None:
    """An error of 100 standard deviations counts as one of less than ten."""
    mean = np.full((2, 20), 40.0)
    mean[:, 7] += [100 * 7.0, 8 * 7.0]  # a round's deviation is 7 clients: 3 and Poisson noise
    z, square = changes._frequencies(values(mean, 3.0))
    cut = (z[:, 7] - z[:, 6]) / np.sqrt(square[:, 6])
    assert cut[0] < 10 and 4 < cut[1] < 5
    found = find_changes(values(mean[1:], 3.0))
    assert found.log_e[0] < log(1 / ALPHA) and found.largest[0] < log(2000 / ALPHA)


@pytest.mark.parametrize("bad", [3, 12, 23])
def test_a_round_whose_errors_are_far_larger_than_stated_flags_hardly_anything(bad: int) -> None:
    """2,000 quiet items; in one round the errors are 100 times as large as stated.

    All of them count as 4 deviations, which no promise is for. Cut about a mean, which that round
    pulls along, two items in five were flagged.
    """
    rng = np.random.default_rng(5)
    counts = rng.poisson(30.0, (2000, 24)) + 4.0 * rng.normal(size=(2000, 24))
    counts[:, bad] += 100 * 6.8 * rng.normal(size=2000)  # 6.8: with the Poisson noise
    found = find_changes(values(counts, 4.0))
    assert changes.flagged(found, ALPHA).mean() < 0.02


def test_many_small_rounds_do_not_outvote_the_large_ones() -> None:
    """Rounds of 100 clients are far off what is cut in rounds of 10^6, whose values stay."""
    clients = np.append(np.full(20, 100.0), np.full(4, 1e6))
    counts = 0.02 * clients + np.append(np.full(20, 3.0), np.full(4, 1.0))
    given_ = RoundValues(counts[None], np.full((1, 24), 1.0), clients, [*range(24)])
    z, _ = changes._frequencies(given_)
    np.testing.assert_allclose(z[0, 20:], counts[20:] / clients[20:], rtol=1e-12)


@given(st.lists(st.floats(-5, 40), min_size=1, max_size=30), st.sampled_from([0.01, 0.05, 0.5]))
def test_the_list_is_the_largest_that_its_e_values_allow(found: list[float], alpha: float) -> None:
    one = np.array(found)
    none = np.zeros(len(one))
    place = none.astype(np.int64)
    made = Changes(one, one, place, place, place, Level(none, none), Level(none, none))
    number = int(changes.listed(made, alpha).sum())
    ordered = np.sort(one)[::-1]
    allowed = [k for k in range(1, len(one) + 1) if np.exp(ordered[k - 1]) >= len(one) / alpha / k]
    assert number == max(allowed, default=0)
    assert changes.flagged(made, alpha).sum() <= number
    assert (
        one[changes.listed(made, alpha)].min(initial=np.inf)
        >= ordered[: number or None][number - 1 if number else 0]
        or not number
    )


def test_differences_hold_what_they_bound() -> None:
    """20,000 differences at .9: four standard deviations of the share are .0085."""
    rng = np.random.default_rng(3)
    counts = rng.poisson([[100.0], [400.0]], (2, 20_000))
    one, other = (
        Measured(held + sd * rng.normal(size=20_000), np.full(20_000, sd))
        for held, sd in zip(counts, (8.0, 5.0), strict=True)
    )
    found = changes.difference(one, 1000, other, 4000, 0.9)
    truth = counts[0] / 1000 - counts[1] / 4000
    assert abs(np.mean((found.low <= truth) & (truth <= found.high)) - 0.9) < 0.0085
    np.testing.assert_allclose(found.change, (found.low + found.high) / 2)


def test_no_difference_is_closer_than_a_client_of_each() -> None:
    exact = Measured(np.array([10.0]), np.array([1e-9]))
    found = changes.difference(exact, 100, exact, 400, 0.95)
    assert found.high[0] - found.change[0] == pytest.approx(1 / 100 + 1 / 400)


@pytest.mark.parametrize("bad", [0.0, 1.0, -0.1, 2.0, float("nan")])
def test_rates_and_levels_of_confidence_are_shares(bad: float) -> None:
    found = find_changes(values(np.full((2, 3), 10.0)))
    for rule in (changes.flagged, changes.listed):
        with pytest.raises(InvalidInputError, match="alpha must be (above 0 and below 1|finite)"):
            rule(found, bad)
    exact = Measured(np.ones(1), np.ones(1))
    with pytest.raises(InvalidInputError, match="confidence must be (above 0 and below 1|finite)"):
        changes.difference(exact, 1, exact, 1, bad)


def test_one_round_shows_no_change() -> None:
    with pytest.raises(InvalidInputError, match="at least 2 rounds"):
        find_changes(values(np.full((2, 1), 10.0)))


def test_values_of_rounds_are_those_of_their_windows() -> None:
    """8 quiet rounds by way of a sketch: .93 to .97 of the errors are within the stated ones."""
    law = (np.arange(1, 2001) + 2.7) ** -1.1
    counts = np.random.default_rng(4).multinomial(1000, law / law.sum(), size=8)
    spec = SketchSpec(5, 100, Schedule.parse("hybrid"), 20, bytes(32))
    sketches = [CountSketch(spec, 2 * number) for number in range(9)]
    for sketch, held in zip(sketches, counts, strict=False):
        sketch.add_range(1, held)
    decoder = BeliefDecoder(sketches, IntegerRange(1, 2000))  # nobody took part in the last round
    assert decoder.has_fit
    found = changes.round_values(decoder, range(1, 2001))
    assert found.batches == [0, 2, 4, 6, 8, 10, 12, 14] and found.value.shape == (2000, 8)
    held = np.abs(found.value - counts.T) <= 1.959964 * found.stddev
    assert 0.93 < held.mean() < 0.97
    chosen = np.arange(9) == 3
    assert np.array_equal(found.value[:, 3], decoder.window(chosen).measured(range(1, 2001)).value)
    assert not changes.flagged(find_changes(found), ALPHA).any()


def largest_evidence(rounds: int, after: int) -> float:
    """Return the log e-value of an item that jumps without error, `after` rounds before the end."""
    jump = np.where(np.arange(rounds) < rounds - after, 0.0, 1e5)[None]
    return float(find_changes(values(jump)).log_e[0])


@pytest.mark.parametrize(
    ("items", "rounds", "after"), [(100, 7, 3), (1000, 9, 3), (50_000, 11, 4), (10**6, 13, 4)]
)
def test_how_few_rounds_list_no_item(items: int, rounds: int, after: int) -> None:
    # the table of docs/windows.md: rounds in all, and rounds since the change of 24
    needed = log(items / ALPHA)
    assert fewest_batches(items, ALPHA) == rounds
    assert max(largest_evidence(rounds, k) for k in range(1, rounds)) >= needed
    for fewer in range(2, rounds):
        assert max(largest_evidence(fewer, k) for k in range(1, fewer)) < needed
    assert largest_evidence(24, after) >= needed > largest_evidence(24, after - 1)
