"""Privacy accounting: known answers, brute force, monotonicity, what is refused."""

from __future__ import annotations

import itertools
import json
import math
import re
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import each_case
from dp_accounting import get_epsilon_gaussian
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from scipy.special import logsumexp, ndtr, ndtri
from test_events import gaussian, skellam

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import accountant_gap

from fedtally.errors import InvalidInputError
from fedtally.privacy import accounting, loss_distribution
from fedtally.privacy.accounting import (
    Composition,
    Method,
    calibrate,
    delta,
    epsilon,
    most_detected,
    noise_multiplier,
    realised,
)
from fedtally.privacy.bounds import Bound
from fedtally.privacy.events import Event, Mechanism, default_clip_norm
from fedtally.privacy.gaussian import gaussian_delta
from fedtally.privacy.geometric import rate_of, variance_of
from fedtally.privacy.laws import LAWS

DELTA = 1e-6
Z1 = 4.22468


def wide(multiplier, **more):
    """Gaussian noise so wide that rounding does not matter."""
    event = gaussian(16, max_items=10_000, **more)
    return replace(event, variance=(multiplier * 16**0.5 * 10_000) ** 2)


def cost(event, at=DELTA):
    return epsilon(event, at).epsilon


# ---- known answers ----


@pytest.mark.parametrize(
    ("target", "expected"),
    [(0.1, 36.305), (0.5, 8.0576), (1, 4.2247), (2, 2.2305), (4, 1.1935), (8, 0.6529)],
)
def test_noise_multipliers(target, expected):
    assert noise_multiplier(target, DELTA) == pytest.approx(
        expected, abs=6e-4 if target == 0.1 else 6e-5
    )
    found = epsilon(wide(noise_multiplier(target, DELTA)), DELTA)
    assert found.method == Method.ANALYTIC_GAUSSIAN
    assert target * (1 - 1e-6) <= found.epsilon <= target  # the multiplier is rounded up
    assert delta(wide(noise_multiplier(target, DELTA)), target).delta == pytest.approx(
        DELTA, rel=1e-6
    )


DOCS = Path(__file__).parents[2] / "docs"
PRIVACY = DOCS.joinpath("privacy.md").read_text(encoding="utf-8")


def test_the_page_says_what_an_attacker_detects_at_most():
    """Above 5 % by at most e^epsilon, and below 1 by at least e^-epsilon of 95 %: no test passes
    either bound."""
    rows = re.findall(r"^\| ([\d.]+) \| ([\d.,]+) \| ([\d.]+) % \|", PRIVACY, re.MULTILINE)
    assert [float(row[0]) for row in rows] == [0.1, 0.5, 1, 2, 4, 8]
    for target, odds, detected in rows:
        factor = math.exp(float(target))
        bound = 100 * min(factor * 0.05 + DELTA, 1 - (0.95 - DELTA) / factor)
        digits = 10 ** len(detected.partition(".")[2])
        assert float(detected) == math.ceil(bound * digits) / digits  # "at most": rounded up
        assert float(odds.replace(",", "")) == round(factor, len(odds.partition(".")[2]))
        # The noise itself lets less be detected: it has this epsilon at this delta alone.
        assert 100 * ndtr(ndtri(0.05) + 1 / noise_multiplier(float(target), DELTA)) < bound


def test_the_page_says_what_is_promised_to_a_group():
    """Of j clients the difference is at most j times as long, as if the noise were that much
    less."""
    [group] = re.findall(
        r"two have ([\d.]+) with Gaussian noise, three ([\d.]+), five ([\d.]+) \(delta 1e-6",
        PRIVACY,
    )
    found = [cost(wide(noise_multiplier(1.0, DELTA) / clients)) for clients in (2, 3, 5)]
    assert [float(number) for number in group] == [
        math.ceil(100 * number) / 100 for number in found
    ]


def test_the_page_says_that_geometric_noise_promises_a_group_as_much_times_the_epsilon():
    """A counter that is moved by j, as one client in j rounds moves it, costs j epsilon exactly."""
    [said] = re.findall(r"with geometric noise it is exactly (\d), (\d), (\d)\.", PRIVACY)
    one = Event("geometric", 1, "zero-out", encoding="histogram")
    one = replace(one, variance=calibrate(one, 1.0, 0.0))
    found = [epsilon(replace(one, participations=int(j)), 0.0).epsilon for j in said]
    assert found == pytest.approx([2, 3, 5], rel=1e-6)  # a variance has seven digits


def test_the_threat_model_says_what_is_left_beyond_the_corrupt_clients_of_a_plan():
    """190 survivors, 180 of them taken as honest; 31 are corrupt, so the noise is of 159."""
    page = DOCS.joinpath("threat-model.md").read_text(encoding="utf-8")
    [said] = re.findall(
        r"epsilon 2 would become ([\d.]+), or ([\d.]+) for a sketch of 16 rows", page
    )
    for number, rows, encoding in zip(said, (1, 16), ("histogram", "sketch"), strict=True):
        event = Event("skellam", rows, "zero-out", honest_survivors=180, encoding=encoding)
        variance = calibrate(event, 2.0, DELTA) * 159 / 180
        left = epsilon(replace(event, variance=variance, honest_survivors=159), DELTA).epsilon
        assert float(number) == math.ceil(100 * left) / 100  # a bound is rounded up


@pytest.mark.parametrize(
    ("multiplier", "expected"), [(5.2988, 0.7837), (Z1 / 2**0.5, 1.455), (Z1 / 2, 2.123)]
)
def test_analytic_gaussian(multiplier, expected):
    assert cost(wide(multiplier)) == pytest.approx(expected, abs=6e-4 if expected > 1 else 1e-4)


def test_a_classical_constant_would_be_more_private_than_it_says():
    classical = math.sqrt(2 * math.log(1.25 / DELTA))
    assert cost(wide(classical)) == pytest.approx(0.7837, abs=1e-4)


@pytest.mark.parametrize(
    ("rows", "distance", "expected"), [(5, 16, 1.88), (16, 38, 1.60), (5, 20, 2.12), (5, 10, 1.455)]
)
def test_noise_for_zero_out_under_replace_one(rows, distance, expected):
    """What epsilon 1 becomes where two items are the square root of `distance` apart, not of the
    number of rows."""
    assert cost(wide(Z1 * (rows / distance) ** 0.5)) == pytest.approx(expected, abs=6e-3)


def test_corrupt_clients_are_an_absolute_number():
    """Shares sized for 67 % of 500 survivors, of whom 330 are corrupt: epsilon 1 becomes 1.44."""
    event = skellam(16, max_items=10_000, honest_survivors=335, variance=(Z1 * 4 * 10_000) ** 2)
    left = realised(event, survivors=500, corrupt=330)
    assert cost(gaussian(16, max_items=10_000, variance=left.variance)) == pytest.approx(
        1.44, abs=6e-3
    )


@pytest.mark.parametrize(("rows", "expected"), [(5, 0.9995), (16, 0.99988)])
def test_rounding_gains_a_little(rows, expected):
    found = epsilon(gaussian(rows, variance=rows * Z1**2), DELTA)
    assert found.method == Method.LOSS_DISTRIBUTION
    assert found.epsilon == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("target", [1.0, 4.0])
def test_dropouts_without_provision(target):
    expected = {1.0: (1.028, 1.058, 1.128, 1.212, 1.455), 4.0: (4.12, 4.25, 4.54, 4.90, 5.93)}[
        target
    ]
    for gone, answer in zip((5, 10, 20, 30, 50), expected, strict=True):
        variance = (noise_multiplier(target, DELTA) * 4 * 10_000) ** 2
        event = skellam(16, max_items=10_000, variance=variance)
        less = realised(event, survivors=100 - gone, corrupt=0)
        assert less.variance == pytest.approx(variance * (100 - gone) / 100)
        central = gaussian(16, max_items=10_000, variance=less.variance)
        assert cost(central) == pytest.approx(answer, abs=6e-4 if target == 1 else 6e-3)


@pytest.mark.parametrize(
    ("rows", "variance", "low", "high"),
    [(5, 89.24, 0.99505, 0.99515), (16, 285.57, 0.9995, 0.9997)],
)
def test_skellam_of_one_item(rows, variance, low, high):
    event = skellam(rows, variance=variance)
    found = epsilon(event, DELTA)
    assert found.method == Method.LOSS_DISTRIBUTION
    assert low <= found.epsilon <= high
    assert cost(replace(event, relation="replace-one")) == pytest.approx(
        {5: 2.11, 16: 2.12}[rows], abs=6e-3
    )
    apart = replace(event, relation="replace-one", collisions=(0, 0))
    assert cost(apart) == pytest.approx({5: 1.451, 16: 1.454}[rows], abs=6e-4)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("rows", "ratios"),
    [
        (5, (1.0, 0.9989, 0.9954, 0.9824, 0.937, 0.796)),
        (16, (1.0, 0.9999, 0.9997, 0.9983, 0.993, 0.977)),
    ],
)
def test_skellam_noise_needed(rows, ratios):
    for target, ratio in zip((0.1, 0.5, 1, 2, 4, 8), ratios, strict=True):
        event = skellam(rows)
        variance = calibrate(event, target, DELTA)
        gauss = rows**0.5 * noise_multiplier(target, DELTA)
        assert math.sqrt(variance) / gauss == pytest.approx(ratio, abs=6e-4)
        assert target * (1 - 1e-5) <= cost(replace(event, variance=variance)) <= target


@pytest.mark.parametrize(("rows", "stddev"), [(5, 9.4468), (16, 16.8988)])
def test_agrees_with_the_accountant_of_others(rows, stddev):
    """The page's discrete Gaussian, and Skellam noise, by dp-accounting's own construction."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    exact = pld.from_discrete_gaussian_mechanism(
        stddev, sensitivity=1, value_discretization_interval=1e-5
    )
    discrete = exact.self_compose(rows).get_epsilon_for_delta(DELTA)
    assert discrete == pytest.approx(1.0, abs=2e-4)
    rounded = cost(gaussian(rows, variance=stddev**2))
    assert discrete - 1e-3 < rounded < discrete

    assert_between_estimates_of_others(skellam(rows, variance=stddev**2), DELTA, 1e-4)


def assert_between_estimates_of_others(event, target, tolerance):
    """Above dp-accounting's optimistic estimate, and equal to its pessimistic one."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    ((shift, number),) = event.shifts.items()
    distribution = loss_distribution._distribution(event.mechanism, event.variance)
    lower = {k: math.log(p) for k, p in enumerate(distribution) if p > 1e-30}
    upper = {k + shift: p for k, p in lower.items()}
    low, high = (
        pld.from_two_probability_mass_functions(
            lower,
            upper,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=tolerance / 10,
        )
        .self_compose(number, 1e-15 if pessimistic else 0.0)
        .get_epsilon_for_delta(target - accounting._slack([event])[0])
        for pessimistic in (False, True)
    )
    found = epsilon(event, target).epsilon
    assert low <= found
    assert found == pytest.approx(high, abs=tolerance)


@pytest.mark.promise
@given(
    st.sampled_from([gaussian, skellam]),
    st.integers(1, 8),
    st.floats(0.3, 300.0),
    st.sampled_from([1e-8, 1e-6, 1e-3]),
    st.sampled_from(["zero-out", "replace-one"]),
)
@settings(max_examples=10)
def test_between_the_estimates_of_others(make, rows, variance, target, relation):
    event = make(rows, relation, variance=variance)
    assert_between_estimates_of_others(event, target, 1e-3)


@pytest.mark.parametrize("rounds", [2, 4, 10])
def test_rounds_compose_as_the_root(rounds):
    expected = {2: 5.975, 4: 8.449, 10: 13.36}[rounds]
    variance = calibrate(gaussian(16, max_items=1000, participations=rounds), 1, DELTA)
    assert math.sqrt(variance) / 4000 == pytest.approx(expected, abs=6e-3 if rounds == 10 else 6e-4)
    one = skellam(16, variance=3000.0)
    together = epsilon([one] * rounds, DELTA)
    assert cost(replace(one, participations=rounds)) == pytest.approx(together.epsilon, abs=1e-9)
    spread = replace(one, participations=rounds, variance=3000.0 * rounds)
    # equal but for the shape of the noise
    assert cost(spread) == pytest.approx(cost(one), rel=2e-3)
    total = replace(one, participations=rounds, per_release=rounds, variance=3000.0 * rounds**2)
    assert cost(total) == pytest.approx(cost(one), rel=2e-3)


def test_the_normaliser_with_noise():
    assert gaussian(15, "add-remove").l2_sensitivity / gaussian(15).l2_sensitivity == pytest.approx(
        1.033, abs=5e-4
    )
    assert gaussian(
        15, "add-remove", participations=3, per_release=3
    ).l2_sensitivity == pytest.approx(3 * 4)


# ---- brute force ----


def skellam_pmf(variance, largest):
    """From its definition, the difference of two Poisson draws, in exact sums of floating-point
    terms."""
    half = variance / 2

    def term(j, k):
        return math.exp(
            (2 * j + k) * math.log(half) - variance - math.lgamma(j + 1) - math.lgamma(j + k + 1)
        )

    side = [math.fsum(term(j, k) for j in range(largest + 60)) for k in range(largest + 1)]
    return np.array(side[:0:-1] + side)


def rounded_pmf(variance, largest):
    k = np.arange(-largest, largest + 1)
    s = math.sqrt(variance)
    return ndtr(-(np.abs(k) - 0.5) / s) - ndtr(-(np.abs(k) + 0.5) / s)


def exact_losses(pmf, shifts):
    """All outcomes, no grid: sums of losses that are equal are taken together, those below 1e-20
    are left out."""
    losses, weights = np.zeros(1), np.ones(1)
    for shift in shifts:
        upper, lower = pmf[:-shift], pmf[shift:]
        keep = (upper > 1e-20) & (lower > 0)
        found = np.add.outer(losses, np.log(upper[keep] / lower[keep])).ravel()
        losses, where = np.unique(np.round(found, 10), return_inverse=True)
        weights = np.bincount(where, np.multiply.outer(weights, upper[keep]).ravel())
        losses, weights = losses[weights > 1e-20], weights[weights > 1e-20]
    return losses, weights


def exact_epsilon(losses, weights, target):
    def delta_of(at):
        above = losses > at
        return math.fsum(-np.expm1(at - losses[above]) * weights[above])

    low, high = 0.0, 200.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle) <= target else (middle, high)
    return high


def pmf_of(mechanism, variance):
    largest = math.ceil(12 * variance**0.5) + 25
    return {"skellam": skellam_pmf, "rounded-gaussian": rounded_pmf}[mechanism](variance, largest)


@pytest.mark.parametrize("mechanism", ["skellam", "rounded-gaussian"])
@pytest.mark.parametrize(
    ("rows", "variance", "relation", "target"),
    [
        (1, 4.0, "zero-out", 1e-6),
        (2, 0.3, "zero-out", 1e-6),
        (2, 9.0, "zero-out", 1e-5),
        (3, 2.0, "zero-out", 1e-4),
        (3, 6.0, "zero-out", 1e-9),
        (2, 30.0, "replace-one", 1e-6),
        (3, 3.0, "replace-one", 1e-3),
        (1, 0.5, "zero-out", 1e-6),
        (1, 0.2, "replace-one", 1e-6),
        pytest.param(2, 0.02, "zero-out", 1e-4, marks=pytest.mark.matrix),
        (16, 0.05, "zero-out", 1e-6),
        (8, 0.1, "zero-out", 1e-6),
        (5, 0.2, "replace-one", 1e-6),
        (4, 0.7, "zero-out", 1e-5),
    ],
)
def test_brute_force_convolution(mechanism, rows, variance, relation, target):
    event = {"skellam": skellam, "rounded-gaussian": gaussian}[mechanism](
        rows, relation, variance=variance
    )
    shift = 2 if relation == "replace-one" else 1
    exact = exact_epsilon(*exact_losses(pmf_of(mechanism, variance), [shift] * rows), target)
    added = 2.0**-40 if mechanism == "skellam" else 0.0
    found = epsilon(event, target + added)
    assert found.method == Method.LOSS_DISTRIBUTION
    assert exact <= found.epsilon <= exact + 1e-3
    assert delta(event, exact).delta >= target * (1 - 1e-6)
    assert delta(event, exact + 1e-3).delta <= target + added


@pytest.mark.parametrize("mechanism", ["skellam", "rounded-gaussian"])
@pytest.mark.parametrize("variance", [0.1, 0.5])
def test_a_grid_on_the_atoms_is_within_the_promise_at_every_delta(mechanism, variance):
    """Delta has a kink at every sum of losses: so many deltas that some lie at kinks."""
    event = {"skellam": skellam, "rounded-gaussian": gaussian}[mechanism](3, variance=variance)
    losses, added = (
        exact_losses(pmf_of(mechanism, variance), [1] * 3),
        2.0**-40 if mechanism == "skellam" else 0.0,
    )
    for target in np.geomspace(1e-7, 1e-2, 10):
        exact = exact_epsilon(*losses, target)
        assert exact <= cost(event, target + added) <= exact + 1e-3


def test_brute_force_of_the_number_of_clients():
    # two items in one cell, one client
    exact = exact_epsilon(*exact_losses(rounded_pmf(5.0, 60), [2, 1]), 1e-6)
    assert exact <= cost(gaussian(1, "add-remove", variance=5.0, max_items=2)) <= exact + 1e-3


def test_brute_force_of_a_pilot_and_a_campaign():
    """Two kinds of noise, and releases of two and of one of a client's rounds."""
    pilot = gaussian(1, variance=8.0)
    campaign = skellam(1, variance=5.0, participations=3, per_release=2)
    first = [
        np.log(p[:-s] / p[s:]) for p, s in ((rounded_pmf(8.0, 20), 1), (skellam_pmf(5.0, 30), 2))
    ]
    second = skellam_pmf(5.0, 30)
    losses = np.add.outer(np.add.outer(first[0], first[1]), np.log(second[:-1] / second[1:]))
    weights = np.multiply.outer(
        np.multiply.outer(rounded_pmf(8.0, 20)[:-1], skellam_pmf(5.0, 30)[:-2]), second[:-1]
    )
    above = losses > 3.0
    exact = float((-np.expm1(3.0 - losses[above]) * weights[above]).sum())
    found = delta([pilot, campaign], 3.0)
    assert exact <= found.delta <= exact * 1.001 + 3 * 2.0**-40
    assert found.trust == "central and distributed"


def hockey_sticks(pmf, shifts):
    losses, weights = np.zeros(1), np.ones(1)
    for shift in shifts:
        losses = np.add.outer(losses, np.log(pmf[:-shift] / pmf[shift:])).ravel()
        weights = np.multiply.outer(weights, pmf[:-shift]).ravel()
    grid = np.linspace(-2, 4, 13)
    return np.array([(-np.expm1(np.minimum(e - losses, 0.0)) * weights).sum() for e in grid])


def adaptive_delta(pmf, parts, most, at):
    """Return delta where whoever opens releases chooses how many of a client's rounds are in each.

    The choice is the worst one, and is made anew for each outcome of the releases before it. One
    counter is shifted by as much as there are rounds in the release. Outcomes near the ends of the
    distribution are left out, so that this is a lower bound.
    """
    ends = len(pmf) - 2 * most
    noise = [pmf[most - shift :][:ends] for shift in range(most + 1)]

    def lost(left, shifted, plain):  # what each outcome so far adds to delta
        ways = [np.maximum(shifted - math.exp(at) * plain, 0.0)]  # the rest never comes
        for rounds in range(1, min(most, left) + 1):
            after = np.outer(shifted, noise[rounds]).ravel(), np.outer(plain, noise[0]).ravel()
            ways.append(lost(left - rounds, *after).reshape(-1, ends).sum(1))
        return np.max(ways, axis=0)

    return float(lost(parts, np.ones(1), np.ones(1))[0])


@pytest.mark.parametrize("of", [skellam_pmf, rounded_pmf])
def test_rounds_that_share_releases_by_choice_cost_no_more(of):
    """The lemma of docs/privacy-proofs/releases.md, and what is charged for it."""
    make = {skellam_pmf: skellam, rounded_pmf: gaussian}[of]
    for parts, most, largest in ((2, 2, 12), (3, 2, 12), (3, 3, 12), (4, 3, 8)):
        charged = make(1, variance=0.6, participations=parts, per_release=most)
        for at in (0.0, 0.4, 1.0, 2.0, 3.0):
            found = adaptive_delta(of(0.6, largest + most), parts, most, at)
            bound = delta(charged, at).delta
            assert 0.99 * bound < found <= bound, (parts, most, at)


def test_the_lemma_needs_noise_that_is_log_concave():
    """Rounds one by one tell more where noise is mostly even: the test above can fail."""
    uneven = np.resize([1.0, 10.0], 41)
    uneven /= uneven.sum()
    together = np.maximum(uneven[:-4] - uneven[2:-2], 0.0).sum()
    assert adaptive_delta(uneven, 2, 2, 0.0) > 2 * together


@pytest.mark.parametrize("variance", [0.2, 1.0, 7.0])
def test_concentrated_shifts_are_worst(variance):
    """The lemma of docs/privacy-proofs/sensitivity.md, at every epsilon: what majorises costs
    more."""
    for pmf in (skellam_pmf(variance, 45), rounded_pmf(variance, math.ceil(8 * variance**0.5) + 4)):
        pmf = pmf[pmf > 1e-120]
        for worse, better in (
            ((2,), (1, 1)),
            ((3,), (2, 1)),
            ((2, 1), (1, 1, 1)),
            ((3, 1), (2, 2)),
            ((3,), (2,)),
        ):
            assert (hockey_sticks(pmf, worse) >= hockey_sticks(pmf, better) - 1e-12).all()
            assert (hockey_sticks(pmf, worse) > hockey_sticks(pmf, better) + 1e-4).any()


# ---- the Gaussian that dominates Skellam noise ----


def unit(variance):
    return accounting.gaussian_bound(skellam(1, variance=variance))


@pytest.mark.parametrize("variance", [1e-3, 0.02, 0.3, 1.0, 3.0, 20.0, 300.0])
def test_quantiles_of_skellam_noise_are_furthest_apart_in_the_middle(variance):
    """The claim of docs/privacy-proofs/skellam.md: q = Phi^-1(F) rises in steps that fall from the
    middle on."""
    pmf = skellam_pmf(variance, math.ceil(25 * variance**0.5) + 40)
    # summed from the smallest on, so that each is known to 1e-13 of itself
    tail = np.cumsum(pmf[::-1])[::-1]
    # the distribution is cut off further out
    tail = tail[len(pmf) // 2 + 1 :][: math.ceil(18 * variance**0.5) + 20]
    steps = np.diff(-ndtri(tail[tail > 1e-280]))
    first = -2 * ndtri(tail[0])
    assert first == pytest.approx(unit(variance), rel=2e-8)
    assert (np.diff(np.concatenate([[first], steps])) < 1e-9 * first).all()


@each_case("variance", [0.02, 0.3, 1.0, 5.0, 60.0])
@each_case("shift", [1, 2, 3, 7])
def test_a_gaussian_dominates_every_shift(variance, shift):
    """At every epsilon, and for a shift of 1 no smaller one would do: at epsilon 0 both deltas are
    the same."""
    pmf = skellam_pmf(variance, math.ceil(20 * variance**0.5) + 40)
    pmf = pmf[pmf > 0]
    at = np.linspace(0, 12, 200)
    losses = np.log(pmf[:-shift] / pmf[shift:])
    own = (-np.expm1(np.minimum(at[:, None] - losses, 0.0)) * pmf[:-shift]).sum(axis=1)
    assert (own <= gaussian_delta(shift * unit(variance), at) * (1 + 1e-9) + 1e-15).all()
    if shift == 1:
        assert own[0] == pytest.approx(gaussian_delta(unit(variance), at)[0], rel=1e-7)
        assert own[0] > gaussian_delta(0.999 * unit(variance), at)[0]


def test_the_dominating_gaussian_of_much_noise_is_that_of_its_variance():
    for variance in (1e2, 1e4, 1e8, 1e12, 1e18):
        expected = (1 + 1 / (6 * variance)) / variance**0.5
        assert unit(variance) == pytest.approx(expected, rel=1.1e-8 + variance**-2)
        assert unit(variance) >= variance**-0.5


def test_rho_bounds_every_divergence():
    """Against the divergences themselves, by summation; and for much noise they are nearly all of
    it."""
    for variance in (0.3, 3.0, 40.0):
        for shift, order in itertools.product((1, 2, 5), (1.1, 2, 8)):
            pmf = skellam_pmf(variance, math.ceil(20 * variance**0.5) + 60)
            pmf = pmf[pmf > 0]
            upper, lower = np.log(pmf[:-shift]), np.log(pmf[shift:])
            exact = logsumexp(order * upper - (order - 1) * lower) / (order - 1)
            rho = accounting.concentrated(skellam(1, max_items=shift, variance=variance)).rho
            assert exact <= order * rho * (1 + 1e-9)
            assert variance < 40 or shift > 1 or exact > 0.98 * order * rho
    both = [
        skellam(5, variance=40.0, participations=3, total_variation=1e-9),
        gaussian(5, variance=80.0),
    ]
    found = accounting.concentrated(both)
    assert found.rho == pytest.approx(15 * unit(40.0) ** 2 / 2 + 5 / 160, rel=1e-12)
    assert found.delta == pytest.approx(3 * (2.0**-40 + 1e-9), rel=1e-12)


@pytest.mark.promise
@given(
    st.integers(1, 60),
    st.floats(0.5, 400.0),
    st.sampled_from([1e-9, 1e-6, 1e-4]),
    st.randoms(use_true_random=False),
)
@settings(max_examples=15)
def test_no_integer_vector_within_the_clip_costs_more(square, variance, target, rnd):
    """Against an accountant that shares no code with this one, for random vectors that use up the
    clip."""
    shifts, left = Counter(), square
    while left:
        entry = rnd.randint(1, math.isqrt(left))
        shifts[entry] += 1
        left -= entry**2
    event = skellam(1, max_items=60, clip_norm=math.sqrt(square + 0.5), variance=variance)
    found = epsilon(event, target + 2.0**-40)
    exact = accountant_gap.exact_epsilon(accountant_gap.skellam(variance), shifts, target)
    assert exact <= found.epsilon * (1 + 1e-6) + 1e-9
    total = epsilon([event, gaussian(1, variance=variance)], target + 2.0**-40)
    assert total.epsilon >= found.epsilon


@pytest.mark.parametrize(
    ("rows", "items", "target", "most"),
    [(5, 2, 1, 0.003), (5, 2, 8, 0.13), (16, 5, 1, 2e-4), (16, 5, 8, 0.007)],
)
def test_how_far_the_bound_of_a_clip_is_above_the_exact_value(rows, items, target, most):
    """What docs/privacy.md says of it."""
    assert 0 <= accountant_gap.gap(rows, items, target) <= most


def test_skellam_noise_beyond_the_bessel_functions_is_composed_as_a_gaussian():
    """Before, everything beside noise of a variance above 1e7 took a bound 8 % above the exact
    value."""
    for events in (
        [skellam(5, variance=2e7)],
        [skellam(5, variance=2e7, max_items=30), skellam(5, variance=300.0)],
    ):
        found = epsilon(events, DELTA)
        mu = math.sqrt(sum(event.l2_sensitivity**2 / event.variance for event in events))
        assert found.epsilon == pytest.approx(cost(wide(1 / mu)), rel=2e-3, abs=1e-5)


# ---- methods, slack, composition ----


def test_clipped_skellam_noise_is_nearly_as_good_as_gaussian():
    clip = default_clip_norm(16, 1000, 20)
    event = skellam(16, max_items=20, clip_norm=clip)
    variance = calibrate(event, 1.0, DELTA)
    event = replace(event, variance=variance)
    found = epsilon(event, DELTA)
    assert found.method == Method.DOMINATING_GAUSSIAN and found.epsilon <= 1.0
    assert 0.999 < variance / (noise_multiplier(1.0, DELTA) * clip) ** 2 < 1.001
    unclipped = epsilon(skellam(16, max_items=20, variance=variance), DELTA)
    assert unclipped.method == Method.LOSS_DISTRIBUTION and unclipped.epsilon > 3
    central = cost(gaussian(16, max_items=20, clip_norm=clip, variance=variance))
    assert central < found.epsilon < central * 1.001
    pilot = gaussian(16, variance=4000.0)
    assert epsilon([pilot, event], DELTA).epsilon == pytest.approx(
        cost(wide(accounting.gaussian_bound([pilot, event]) ** -1)), rel=1e-3
    )


def test_a_clip_is_charged_for_the_integer_below_its_square():
    """Two items in five rows: no sketch has a squared norm between 10 and 10.8."""
    clip = default_clip_norm(5, 1000, 2)
    event = gaussian(5, max_items=2, clip_norm=clip, variance=200.0)
    assert 10.5 < clip**2 < 11 and event.l2_sensitivity == 10**0.5
    assert replace(event, relation="replace-one").l2_sensitivity == 40**0.5
    # nobody contributes anything
    assert skellam(5, max_items=2, clip_norm=0.5, variance=9.0).l2_sensitivity == 1


def test_all_gaussian_events_compose_to_one():
    events = [wide(8.0), wide(9.0), wide(20.0)]
    mu = math.sqrt(8.0**-2 + 9.0**-2 + 20.0**-2)
    assert epsilon(events, DELTA).epsilon == pytest.approx(cost(wide(1 / mu)), rel=1e-9)
    assert epsilon(events, DELTA).trust == "central"


def test_clipped_gaussian_beside_skellam_is_composed_on_the_grid():
    pilot = gaussian(16, max_items=20, clip_norm=16.0, variance=(16.0 * 6) ** 2)
    campaign = skellam(16, variance=16 * 36.0)
    found = epsilon([pilot, campaign], DELTA)
    assert found.method == Method.LOSS_DISTRIBUTION
    assert found.epsilon == pytest.approx(cost(wide(6 / 2**0.5)), rel=2e-3)


def test_what_comes_out_of_delta():
    event = skellam(5, variance=89.24, participations=3)
    lone = float(accounting._bounds([event])[1].deltas(np.array([2.0]))[0])
    assert delta(event, 2.0).delta == pytest.approx(lone + 3 * 2.0**-40, rel=1e-12)
    drawn = replace(event, total_variation=1e-9)
    assert delta(drawn, 2.0).delta == pytest.approx(
        lone + 3 * 2.0**-40 + (1 + math.exp(2)) * 3e-9, rel=1e-9
    )
    found = epsilon(drawn, DELTA).epsilon
    assert found > cost(event)
    assert delta(drawn, found).delta == pytest.approx(DELTA, rel=1e-6)
    assert delta(drawn, found).delta <= DELTA * (1 + 1e-7)
    with pytest.raises(InvalidInputError, match="delta must exceed"):
        epsilon(event, 3 * 2.0**-40)
    with pytest.raises(InvalidInputError, match="delta must exceed"):
        epsilon(replace(event, total_variation=1e-6), DELTA)
    coarse = gaussian(5, variance=1.0, total_variation=1e-8)
    assert epsilon(coarse, DELTA).epsilon == math.inf  # e^epsilon times it is more than delta
    assert delta(coarse, 1000.0).delta == 1.0


def test_a_search_that_does_not_settle_is_no_bound():
    rising = itertools.count(1)
    bound = Bound(Method.GAUSSIANS, lambda _: 1e-3 * next(rising), lambda _: 1.0)
    assert accounting._solve(bound, DELTA, 1e-12) == math.inf


def test_extremes_stay_bounds():
    for variance in (1e-9, 1e-3, 1e4, 1e7, 1e8, 1e18):
        for event in (skellam(1024, variance=variance), gaussian(1024, variance=variance)):
            assert cost(event) >= 0 and 0 <= delta(event, 1.0).delta <= 1
    many = skellam(1024, participations=2**20, variance=1e12)
    assert epsilon(many, DELTA).method == Method.DOMINATING_GAUSSIAN
    assert (
        epsilon(skellam(1024, participations=2**10, variance=1e6), DELTA).method
        == Method.DOMINATING_GAUSSIAN
    )
    assert cost(gaussian(5, variance=1e18)) == 0
    assert delta(gaussian(5, variance=1e-6), 1.0).delta == pytest.approx(1)
    low = epsilon(skellam(2, variance=4.0), 1e-12)
    assert 0 < low.epsilon < math.inf


def test_calibration_beside_others():
    pilot = skellam(5, variance=2000.0)
    event = skellam(5)
    alone, beside = calibrate(event, 1.0, DELTA), calibrate(event, 1.0, DELTA, others=[pilot])
    assert beside > alone
    assert 1 - 1e-5 < epsilon([pilot, replace(event, variance=beside)], DELTA).epsilon <= 1
    with pytest.raises(InvalidInputError, match="nothing is left"):
        calibrate(event, 0.1, DELTA, others=[pilot])
    with pytest.raises(InvalidInputError, match="no noise reaches"):
        calibrate(
            skellam(1024, max_items=2**20, participations=2**20, per_release=2**20), 1e-3, DELTA
        )


@given(
    st.sampled_from([gaussian, skellam]),
    st.integers(1, 20),
    st.floats(0.5, 500.0),
    st.floats(1.01, 3.0),
    st.sampled_from([1e-8, 1e-6, 1e-3]),
    st.sampled_from(["zero-out", "replace-one"]),
)
@settings(max_examples=15)
def test_monotone(make, rows, variance, factor, target, relation):
    event = make(rows, relation, variance=variance)
    base = epsilon(event, target).epsilon
    slack = base * 1e-4 + 1e-9  # of the grid
    assert epsilon(event, target * factor).epsilon <= base + 1e-9
    # Rounding is not monotone: between two atoms of the tail more noise may cost more, if never
    # more than unrounded.
    most = (
        base
        if make is skellam
        else get_epsilon_gaussian(math.sqrt(variance) / event.l2_sensitivity, target)
    )
    assert epsilon(replace(event, variance=variance * factor), target).epsilon <= most + slack
    assert epsilon(replace(event, rows=rows + 1), target).epsilon >= base - slack
    assert epsilon(replace(event, participations=2), target).epsilon >= base - slack
    assert epsilon(replace(event, participations=2, per_release=2), target).epsilon >= base - slack
    assert epsilon(replace(event, max_items=2), target).epsilon >= base - slack
    assert delta(event, base).delta <= target * (1 + 1e-6)
    assert delta(event, base * factor).delta <= delta(event, base).delta
    if make is skellam:
        more, fewer = realised(event, 150, 10), realised(event, 90, 10)
        assert (
            epsilon(more, target).epsilon
            <= base + slack
            <= epsilon(fewer, target).epsilon + 2 * slack
        )


def test_certified_collisions_cost_less_than_the_worst_and_more_than_moving():
    costs = [
        cost(skellam(5, "replace-one", variance=300.0, collisions=pair))
        for pair in ((0, 0), (3, 3), (4, 3), (5, 5))
    ]
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(cost(skellam(5, "replace-one", variance=300.0)), rel=1e-9)


# ---- the distribution of the loss, for others ----


@pytest.mark.promise
@pytest.mark.parametrize(
    "events",
    [
        [skellam(5, variance=89.24)],
        [gaussian(16, variance=285.0, total_variation=1e-15)],
        [skellam(5, variance=1.4)],
        [skellam(5, variance=190.0, max_items=2, clip_norm=3.3), gaussian(5, variance=300.0)],
    ],
)
def test_a_table_of_the_loss_gives_the_curve_from_above(events):
    found = accounting.privacy_loss(events)
    assert found.probability.sum() == pytest.approx(1, abs=1e-9) and (found.probability >= 0).all()
    assert np.isinf(found.loss[-1]) and found.delta[-1] == 0
    loss, probability, lost = found.loss[:-1], found.probability[:-1], found.probability[-1]
    assert np.diff(loss) == pytest.approx(loss[1] - loss[0])
    for at in (0.0, 0.1, 0.5, 1.0, float(loss[-2])):
        again = float((-np.expm1(np.minimum(at - loss, 0.0)) * probability).sum()) + lost
        exact = delta(events, at).delta
        assert exact * (1 - 1e-9) <= again <= exact * (1 + 1e-3) + 2e-12
    mirrored = float((-np.expm1(np.minimum(-0.5 - loss, 0.0)) * probability).sum()) + lost
    # the other direction
    assert mirrored >= (1 - math.exp(-0.5) * (1 - delta(events, 0.5).delta)) * (1 - 1e-9)


def test_a_table_of_the_loss_composes_from_above():
    event = skellam(5, variance=300.0)
    found = accounting.privacy_loss(event)
    twice = np.convolve(found.probability[:-1], found.probability[:-1])
    loss = np.linspace(2 * found.loss[0], 2 * found.loss[-2], len(twice))
    again = (
        float((-np.expm1(np.minimum(0.7 - loss, 0.0)) * twice).sum()) + 2 * found.probability[-1]
    )
    exact = delta([event, event], 0.7).delta
    assert exact <= again <= exact * 1.01


@pytest.mark.parametrize("variance", [4.0, 40.0, 400.0])
@pytest.mark.parametrize("alarms", [0.01, 0.05, 0.5])
def test_the_share_that_is_detected_is_that_of_the_best_test_of_gaussians(variance, alarms):
    """Rounding a Gaussian gains little, so that the bound is just above the exact share."""
    found = accounting.privacy_loss(gaussian(5, variance=variance))
    share = most_detected(found.loss[:-1], found.delta[:-1], alarms)
    exact = float(ndtr(ndtri(alarms) + math.sqrt(5 / variance)))
    assert exact - 5e-3 <= share <= exact + 2e-3


def test_the_share_that_is_detected_is_bounded_by_both_orders_of_the_neighbours():
    assert most_detected(0.0, 0.0, 0.05) == 0.05  # nothing shows: a blind guess
    assert most_detected(2.0, 1e-6, 0.05) == pytest.approx(math.exp(2) * 0.05 + 1e-6)
    assert most_detected(4.0, 1e-6, 0.05) == pytest.approx(1 - math.exp(-4) * (0.95 - 1e-6))
    assert most_detected([1.0, 2.0], [0.5, 1e-6], 0.05) == most_detected(2.0, 1e-6, 0.05)
    assert most_detected(9.0, 1.0, 0.05) == 1.0
    with pytest.raises(InvalidInputError, match="false_alarms"):
        most_detected(1.0, 0.0, 1.5)


def test_the_share_that_is_detected_has_a_bound_without_false_alarms():
    """The infinite loss that ends a table of losses bounds nothing, and spoils nothing."""
    found = accounting.privacy_loss(gaussian(5, variance=40.0))
    assert most_detected(math.inf, 0.0, 0.0) == 1.0
    assert most_detected(found.loss, found.delta, 0.0) == found.delta[:-1].min() < 1.0
    assert most_detected(found.loss, found.delta, 0.05) == most_detected(
        found.loss[:-1], found.delta[:-1], 0.05
    )


@pytest.mark.parametrize("variance", [2.0**-6, 0.1, 0.25, 0.9, 1.0, 9.0])
@pytest.mark.parametrize("number", [1, 3])
def test_the_sum_of_rounded_gaussians_has_the_deviation_of_its_distribution(variance, number):
    """Below a variance of 1/4 a rounded Gaussian deviates less than the Gaussian and 1/12."""
    total = LAWS[Mechanism.ROUNDED_GAUSSIAN].total(variance, number)
    assert total.beyond is not None
    # the mean of k^2 is the sum of (2 k + 1) P[|noise| > k]
    square = float(total.beyond @ (2.0 * np.arange(len(total.beyond)) + 1.0))
    assert total.stddev == pytest.approx(math.sqrt(square), rel=1e-6)


def test_noise_without_a_bound_has_no_table():
    with pytest.raises(InvalidInputError, match="too little, or too much, for a table"):
        accounting.privacy_loss(gaussian(5, variance=1e-6))


# ---- words, errors ----


def test_words_are_upper_bounds():
    found = epsilon(skellam(5, variance=89.24), DELTA)
    words = str(found)
    assert (
        words
        == "epsilon 0.9952 at delta 1e-06 (zero-out, distributed trust, privacy-loss-distribution)"
    )
    assert float(words.split()[1]) >= found.epsilon
    assert str(replace(found, epsilon=math.inf)).startswith("epsilon inf ")


def test_what_the_sampler_lacks_is_charged_for_every_round_of_the_client():
    """Its rounds may be releases of their own, though several may share one."""
    together, apart = (
        gaussian(5, variance=100.0, participations=20, per_release=r, total_variation=1e-12)
        for r in (20, 1)
    )
    for event in (together, apart):
        ideal = delta(replace(event, total_variation=0.0), 1.0).delta
        assert delta(event, 1.0).delta - ideal == pytest.approx(20e-12 * (1 + math.e), rel=1e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: epsilon([], DELTA), "events must be one or more"),
        (lambda: epsilon(["event"], DELTA), "events must be one or more"),
        (lambda: epsilon(gaussian(5), DELTA), "no variance yet"),
        (
            lambda: epsilon([wide(4.0), gaussian(5, "replace-one", variance=9.0)], DELTA),
            "several relations",
        ),
        (lambda: epsilon(wide(4.0), 0.0), "delta must be above 0"),
        (lambda: epsilon(wide(4.0), 1.0), "delta must be above 0"),
        (lambda: delta(wide(4.0), -1.0), "epsilon must be at least 0"),
        (lambda: calibrate(gaussian(5), 0.0, DELTA), "epsilon must be at least"),
        (lambda: noise_multiplier(1.0, 2.0), "delta must be at most"),
        (lambda: realised(wide(4.0), 10, 1), "only skellam noise comes in shares"),
        (lambda: realised(skellam(5, variance=9.0), 10, 10), "survivors must be at least 11"),
        (lambda: realised(skellam(5), 10, 1), "no variance yet"),
    ],
)
def test_errors(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


# ---- campaigns planned in view of earlier ones ----

ADAPTIVE = [
    Event("skellam", 5, "zero-out", variance=89.0, honest_survivors=90),
    Event("skellam", 2, "replace-one", variance=30.0, honest_survivors=90, participations=2),
    Event("skellam", 3, "zero-out", variance=2.0, honest_survivors=90),
    Event(
        "skellam", 7, "zero-out", variance=900.0, honest_survivors=90, max_items=5, clip_norm=7.0
    ),
]


@pytest.mark.parametrize("event", ADAPTIVE)
def test_a_gaussian_dominates_without_slack(event):
    at = np.sort(np.random.default_rng(1).uniform(0, 12, 400))
    own = np.min([bound.deltas(at) for bound in accounting._bounds([event])], axis=0)
    assert np.all(own <= gaussian_delta(accounting.gaussian_bound(event), at) * (1 + 1e-8) + 2e-14)


@pytest.mark.parametrize("event", ADAPTIVE)
def test_full_adaptivity_costs_more_than_a_fixed_list(event):
    fixed, free = (
        accounting.epsilon([event] * 3, DELTA, adaptive=adaptive) for adaptive in (False, True)
    )
    # Clipped noise is a Gaussian in both: there adaptivity costs what is set aside of delta alone.
    most = 1.001 if event.is_clipped else 1.02 if event.variance > 20 else 2.0
    assert fixed.epsilon < free.epsilon <= most * fixed.epsilon
    assert free.method == "gaussian-composition"
    assert accounting.epsilon([event], DELTA, adaptive=True) == accounting.epsilon(event, DELTA)


def test_gaussian_noise_composes_adaptively_at_the_price_of_what_is_set_aside():
    events = [
        Event("rounded-gaussian", 5, "zero-out", variance=v, max_items=2, clip_norm=3.0)
        for v in (90.0, 200.0)
    ]
    fixed, free = (
        accounting.epsilon(events, DELTA, adaptive=adaptive) for adaptive in (False, True)
    )
    left = accounting.epsilon(events, DELTA - accounting.set_aside(DELTA))
    assert free.epsilon == pytest.approx(left.epsilon, rel=1e-7)
    assert fixed.epsilon < free.epsilon < 1.001 * fixed.epsilon


@pytest.mark.parametrize("number", [2, 4, 10])
def test_what_composing_campaigns_costs_is_what_the_page_says(number):
    """docs/privacy.md, the ledger: 0.2 % and 1 %; and how many participations delta bears."""
    central = calibrated("rounded-gaussian")
    shares, clipped = calibrated("skellam"), calibrated("skellam", max_items=10, clip_norm=9.0)
    for event, most in ((central, 1.002), (shares, 1.01), (clipped, 1.01)):
        fixed, free = (
            accounting.epsilon([event] * number, DELTA, adaptive=adaptive)
            for adaptive in (False, True)
        )
        assert fixed.epsilon < free.epsilon < most * fixed.epsilon
    assert [int(accounting.set_aside(delta) / 2**-40) for delta in (1e-6, 1e-9)] == [15091, 109]


def calibrated(mechanism, **more):
    event = Event(
        mechanism, 5, "zero-out", honest_survivors=90 if mechanism == "skellam" else None, **more
    )
    return replace(event, variance=calibrate(event, 1.0, DELTA))


@pytest.mark.parametrize(
    "event", [*ADAPTIVE, Event("rounded-gaussian", 5, "zero-out", variance=900.0)]
)
@pytest.mark.parametrize("delta", [1e-8, 1e-6])
def test_campaigns_never_spend_more_than_delta_however_many_there_are(event, delta):
    """What is said to be spent of delta, all parts together, as long as campaigns are let in at
    all."""
    total = Composition.of([event], delta)
    for number in (2, 3, 10, 100, 1000, 10**4):
        while total.campaigns < number:
            total = total.plus(event)
        if total.lost > accounting.set_aside(delta):
            with pytest.raises(InvalidInputError, match="is used up by"):
                _ = total.guarantee
            break
        epsilon = total.guarantee.epsilon
        mu = math.sqrt(number) * accounting.gaussian_bound(event)
        gaussian = float(gaussian_delta(mu, np.array([epsilon]))[0])
        secure = event.participations * 2.0**-40 if event.honest_survivors else 0.0
        assert gaussian + number * secure <= delta
        # and nothing is given away
        assert gaussian == pytest.approx(delta - accounting.set_aside(delta), rel=1e-5)


def test_what_is_set_aside_does_not_depend_on_what_is_spent():
    """A limit of mu that falls as slacks add up could be made to pay both: one limit holds from the
    first on."""
    few, many = Composition.of([ADAPTIVE[0]] * 2, DELTA), Composition.of([ADAPTIVE[0]] * 2, DELTA)
    spent = replace(many, lost=accounting.set_aside(DELTA))
    assert few.lost < spent.lost and spent.guarantee.epsilon == few.guarantee.epsilon
    with pytest.raises(InvalidInputError, match="is used up by what 2 campaigns take off it"):
        _ = replace(many, lost=accounting.set_aside(DELTA) * 1.001).guarantee


def test_the_order_of_campaigns_does_not_matter():
    events = [
        *ADAPTIVE[:1],
        *ADAPTIVE[2:],
        Event("rounded-gaussian", 5, "zero-out", variance=900.0),
    ]
    forth, back = (Composition.of(some, DELTA) for some in (events, events[::-1]))
    assert forth.guarantee.epsilon == pytest.approx(back.guarantee.epsilon, rel=1e-12)
    assert forth.trust == back.trust == "central and distributed"


@pytest.mark.parametrize(
    "changed",
    [
        {"square": math.nan},
        {"square": -1.0},
        {"square": math.inf},
        {"lost": "0"},
        {"variation": None},
        {"campaigns": 0},
        {"campaigns": 1.5},
        {"trust": 3},
        {"more": 1},
    ],
)
def test_a_composition_that_was_damaged_is_refused(changed):
    good = Composition.of(ADAPTIVE[:1], DELTA)
    assert Composition.from_dict(json.loads(json.dumps(good.to_dict())), ADAPTIVE[0], DELTA) == good
    with pytest.raises(InvalidInputError):
        Composition.from_dict({**good.to_dict(), **changed}, ADAPTIVE[0], DELTA)
    for values in (None, [], {}, "text"):
        with pytest.raises(InvalidInputError, match="a composition is a table"):
            Composition.from_dict(values, ADAPTIVE[0], DELTA)


def test_little_noise_is_composed_at_a_price_and_may_stand_alone():
    little = Event("skellam", 1, "zero-out", variance=1e-4, honest_survivors=90)
    alone = Composition.of([little], DELTA)
    assert alone.guarantee == accounting.epsilon(little, DELTA)
    assert alone.plus(ADAPTIVE[0]).guarantee.epsilon > alone.guarantee.epsilon


def test_what_cannot_be_composed_adaptively():
    with pytest.raises(InvalidInputError, match="is used up by what 16000 campaigns take off it"):
        accounting.epsilon([ADAPTIVE[0]] * 16000, DELTA, adaptive=True)
    with pytest.raises(InvalidInputError, match="several relations do not compose"):
        Composition.of(ADAPTIVE[:1], DELTA).plus(ADAPTIVE[1])


# ---- several campaigns by Renyi divergences ----

LITTLE = Event("skellam", 1, "zero-out", variance=2.2, honest_survivors=90)


def log_skellam(variance, reach):
    """Return log-probabilities of -reach to reach, from the series of two Poisson draws."""
    half = math.log(variance / 2)
    found = [
        logsumexp(
            [
                (2 * j + k) * half - math.lgamma(j + 1) - math.lgamma(j + k + 1)
                for j in range(int(4 * variance) + 60)
            ]
        )
        - variance
        for k in range(reach + 1)
    ]
    return np.array([*found[:0:-1], *found])


@each_case("seed", range(24))
def test_a_renyi_divergence_is_bounded_from_above_and_closely(seed):
    """Against the sum over outcomes, with probabilities from another series, or in closed form."""
    rng = np.random.default_rng(seed)
    shift, order = int(rng.integers(1, 4)), 1 + float(np.exp(rng.uniform(-2.5, 2.5)))
    mechanism, variance = "skellam", float(np.exp(rng.uniform(-4, 3)))
    if seed % 3:
        logs = log_skellam(variance, 150)
    else:
        mechanism, variance = "geometric", 2 + variance
        rate = float(rate_of(variance))
        logs = math.log(math.tanh(rate / 2)) - rate * np.abs(np.arange(-400.0, 401.0))
    exact = float(logsumexp(order * logs[:-shift] + (1 - order) * logs[shift:])) / (order - 1)
    found = loss_distribution._renyi(
        loss_distribution._Integer(Mechanism(mechanism), variance, shift), order
    )
    assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-7) + 1e-10


def test_an_order_too_large_for_the_noise_has_no_divergence():
    little = replace(LITTLE, variance=1e-3)
    assert math.isfinite(loss_distribution.renyi_divergence(little, 2.0))
    assert loss_distribution.renyi_divergence(little, 5e3) == math.inf
    far = loss_distribution._Integer(LITTLE.mechanism, 1e-300, 3)
    assert loss_distribution._renyi(far, 2.0) == math.inf


def test_two_bounds_have_half_of_delta_each():
    """Each limit by itself, turned back into a delta: both together are at most delta, with what is
    set aside."""
    for granted in (4.0, 6.0, 12.0):
        total = Composition.of([LITTLE] * 4, DELTA, granted)
        assert total.order is not None
        left = DELTA - accounting.set_aside(DELTA)
        renyi, gaussians = (
            replace(total, **{name: value})._adaptive(left)
            for name, value in (("square", 1e6), ("divergence", math.inf))
        )
        assert (renyi[1], gaussians[1]) == (Method.RENYI, Method.GAUSSIANS)
        of_gaussians = float(
            gaussian_delta(math.sqrt(total.square), np.array([gaussians[0]])).item()
        )
        # Mironov's conversion, improved: e^((a - 1) (D - epsilon)) (1 - 1/a)^(a - 1) / a
        a = total.order
        of_renyi = math.exp((a - 1) * (total.divergence - renyi[0] + math.log1p(-1 / a))) / a
        assert of_gaussians + of_renyi <= left
        assert of_gaussians + of_renyi == pytest.approx(left, rel=1e-4)
        assert total.guarantee.epsilon == min(renyi, gaussians)[0]


@pytest.mark.promise
@given(
    st.floats(0.15, 4.0),
    st.integers(2, 6),
    st.floats(2.0, 25.0),
    st.sampled_from([1e-8, 1e-6, 1e-4]),
)
@settings(max_examples=40)
def test_campaigns_with_little_noise_cost_no_less_than_exactly(variance, number, granted, delta):
    """Against an accountant that shares no code with this one, for a fixed list of campaigns."""
    event = replace(LITTLE, variance=variance)
    try:
        found = Composition.of([event] * number, delta, granted).guarantee
    except InvalidInputError:  # an epsilon so large that the sampler uses up what is set aside
        return
    exact = accountant_gap.exact_epsilon(
        accountant_gap.skellam(variance), {1: number}, delta - number * 2.0**-40
    )
    assert found.epsilon >= exact * (1 - 1e-6)


@pytest.mark.parametrize(("granted", "fits"), [(3.6, 2), (5.9, 4), (9.7, 8)])
def test_campaigns_with_little_noise_cost_little_more_than_exactly(granted, fits):
    """What docs/privacy-proofs/renyi.md says: at most 7 % above the exact value, where they cost
    40, 40 and 29 % more as Gaussians."""
    event = replace(LITTLE, variance=2.2044)  # epsilon 2 alone
    assert Composition.of([event] * fits, DELTA, granted).guarantee.epsilon <= granted
    assert Composition.of([event] * (fits + 1), DELTA, granted).guarantee.epsilon > granted
    assert Composition.of([event] * fits, DELTA).guarantee.epsilon > 1.2 * granted
    exact = accountant_gap.exact_epsilon(accountant_gap.skellam(2.2044), {1: fits}, DELTA)
    assert granted < 1.07 * exact


@pytest.mark.parametrize("granted", [3.6, 8.0])
def test_no_way_to_plan_a_second_campaign_exceeds_delta(granted):
    """All that may be planned after one campaign, by what it showed: the second is the one with the
    least noise that either bound lets in, or none, whichever tells most after that outcome."""
    first = replace(LITTLE, variance=2.2044)
    begun = Composition.of([first], DELTA, granted)
    left = DELTA - accounting.set_aside(DELTA)
    seconds = []
    for spoiled in ({"square": 1e6}, {"divergence": math.inf}):  # by one bound alone
        low, high = 1e-2, 1e4
        while high > low * (1 + 1e-6):
            middle = math.sqrt(low * high)
            both = begun.plus(replace(first, variance=middle))
            fits = replace(both, **spoiled)._adaptive(left)[0] <= granted
            low, high = (low, middle) if fits else (middle, high)
        seconds.append(high)
    assert min(seconds) < 1e3

    def worlds(variance):
        logs = accountant_gap.skellam(variance)
        return np.exp(logs[:-1]), np.exp(logs[1:])

    def gained(p, q, variance):
        mine, theirs = worlds(variance)
        return np.maximum(0.0, p * mine - math.exp(granted) * q * theirs).sum()

    spent = sum(
        max(p - math.exp(granted) * q, *(gained(p, q, second) for second in seconds))
        for p, q in zip(*worlds(first.variance), strict=True)
        if p > 1e-30
    )
    assert 0 < spent <= left


def test_an_order_is_chosen_with_one_look_at_the_noise(monkeypatch):
    """A ledger is locked meanwhile, and large noise has 2^17 probabilities."""
    looks = []

    def ive(*asked):
        looks.append(asked)
        return bessel(*asked)

    bessel = special.ive
    monkeypatch.setattr(special, "ive", ive)
    accounting.filter_order(replace(LITTLE, variance=3456.789), 5.0, DELTA)
    assert len(looks) == 1


def test_an_order_is_taken_only_where_more_campaigns_fit():
    much = [event for event in ADAPTIVE if event.is_clipped or event.noise_variance > 20]
    for event in (*much, replace(LITTLE, variance=80.0), gaussian(1, variance=2.0)):
        assert accounting.filter_order(event, 10.0, DELTA) is None
        assert Composition.of([event] * 3, DELTA, 10.0) == Composition.of([event] * 3, DELTA)
    for granted in (1e-9, 2.0, 4.0):
        assert accounting.filter_order(replace(LITTLE, variance=14.3), granted, DELTA) is None
    geometric = Event("geometric", 1, "zero-out", variance=variance_of(1.0), encoding="histogram")
    assert accounting.filter_order(geometric, 5.0, 0.0) is None
    assert accounting.filter_order(geometric, 5.0, DELTA) is None  # their epsilons add up
    many = replace(geometric, variance=variance_of(0.1))
    order = accounting.filter_order(many, 5.0, DELTA)
    assert order is not None
    fits = round((5.0 - 0.7) / loss_distribution.renyi_divergence(many, order) / 2)
    found = Composition.of([many] * fits, DELTA, 5.0).guarantee
    assert found.epsilon < 0.95 * Composition.of([many] * fits, DELTA).guarantee.epsilon

    def spent(number, bound):
        return Composition.of([LITTLE] * number, DELTA, bound).guarantee.epsilon

    for granted in (4.0, 12.0):
        assert accounting.filter_order(LITTLE, granted, DELTA) is not None
        fits = next(n for n in range(1, 60) if spent(n + 1, granted) > granted)
        assert spent(fits, granted) <= granted < spent(fits, None)


def test_the_order_is_read_again_and_stays():
    total = Composition.of([LITTLE], DELTA, 8.0)
    kept = Composition.from_dict(json.loads(json.dumps(total.to_dict())), LITTLE, DELTA)
    assert kept == total and kept.plus(LITTLE).order == total.order
    # a campaign of which no divergence is known leaves the order, and Gaussians count
    spoiled = replace(total, campaigns=2, alone=None, divergence=math.inf)
    assert Composition.from_dict(spoiled.to_dict(), LITTLE, DELTA) == spoiled
    assert spoiled.guarantee.method is Method.GAUSSIANS
    assert "order" not in Composition.of([LITTLE], DELTA).to_dict()
    for wrong in ({"order": 1.0}, {"order": "2"}, {"order": None}, {"divergence": -1.0}):
        with pytest.raises(InvalidInputError):
            Composition.from_dict(total.to_dict() | wrong, LITTLE, DELTA)
    without = {name: value for name, value in total.to_dict().items() if name != "order"}
    with pytest.raises(InvalidInputError, match="a composition is a table"):
        Composition.from_dict(without, LITTLE, DELTA)
