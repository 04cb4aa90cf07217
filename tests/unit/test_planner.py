"""Sizes of sketches: distributions known or read from pilots, the paper's ways, and searches beside
looking at all."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from kinds import DECODER_NAMES, SKETCH_DECODERS

from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import paper, sizes
from fedtally.plan.frequencies import hardest, power_law, tail
from fedtally.plan.frequencies import pilot as pilots
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.frequencies.pilot import Pilot
from fedtally.plan.paper import (
    Size,
    hardness,
    linear,
    minimax,
    oracle,
    rows_for,
    two_phase,
    width_oracle,
)
from fedtally.plan.predictor import SURE, Predictor
from fedtally.plan.sizes import size_by_model, within
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.error_model import failure, predict
from fedtally.sketch import CountSketch, SketchSpec

pytestmark = pytest.mark.usefixtures("errors_once")

D = 5000
PLAN = {"rows": 7, "width": 100, "num_rounds": 6, "num_clients": 20_000}


def zipf(exponent, size=D):
    distribution = np.arange(1, size + 1.0) ** -exponent
    return distribution / distribution.sum()


def steps():
    """40 items of 1.5 %, the others alike: no power law."""
    distribution = np.full(D, 0.4 / (D - 40))
    distribution[:40] = 0.015
    return distribution


def sketches(
    distribution, clients, *, rows=8, width=200, schedule="shared", num_rounds=1, noise=0.0, seed=0
):
    rng = np.random.default_rng(seed)
    spec = SketchSpec(rows, width, schedule, num_rounds, rng.bytes(32))
    found = []
    for m in range(num_rounds):
        sketch = CountSketch(spec, m)
        sketch.add_range(1, rng.multinomial(clients // num_rounds, distribution))
        sketch.counters += np.rint(rng.normal(0.0, noise, sketch.counters.shape)).astype(np.int64)
        found.append(sketch)
    return found


# ---- the error model, as the planner asks it ----


@pytest.mark.parametrize("recovery", SKETCH_DECODERS)
@pytest.mark.parametrize("schedule", ["shared", "hybrid", "fresh"])
def test_failure_inverts_the_predicted_largest_error(recovery, schedule):
    """On a lattice for the median: probabilities within 15 %."""
    plan = PLAN | {"schedule": schedule, "recovery": recovery, "noise": 3.0}
    errors = []
    for probability in (0.5, 0.1, 0.001):
        linf = predict(zipf(1.2), **plan, probability=probability).linf
        assert failure(zipf(1.2), linf, **plan) == pytest.approx(probability, rel=0.15)
        errors.append(linf)
    assert errors == sorted(errors)
    assert predict(zipf(1.2), **plan).linf == errors[0]


def test_without_errors_nothing_fails():
    plan = PLAN | {"schedule": "shared", "rows": 9, "width": 20_000}
    for recovery in ("joint", "median"):
        assert failure(zipf(2.0, 100), 1e-3, **plan, recovery=recovery) < 1e-6


@pytest.mark.parametrize("recovery", SKETCH_DECODERS)
def test_items_may_be_given_by_their_numbers(recovery):
    distribution, plan = (
        np.repeat([0.004, 0.0008, 0.0001], [60, 500, 2000]),
        PLAN | {"schedule": "shared", "recovery": recovery},
    )
    once = {"frequencies": [0.0001, 0.004, 0.0008], "numbers": [2000, 60, 500]}
    assert predict(**once, **plan).linf == pytest.approx(
        predict(distribution, **plan).linf, rel=1e-6
    )
    assert failure(**once, tau=0.002, **plan) == pytest.approx(
        failure(distribution, 0.002, **plan), rel=1e-6
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 0.0}, "tau must be above 0"),
        ({"numbers": [1.0]}, "numbers must be 2, one of each frequency, got 1"),
        ({"numbers": [1.0, -1.0]}, "numbers must be finite and at least 0"),
        ({"numbers": [3.0, 2.0]}, "sum to at most 1, got 1.4"),
        ({"numbers": [1.0, 2.0], "candidates": 2}, "number of frequencies, 3, got 2"),
    ],
)
def test_bad_input_of_failure_is_refused(change, message):
    arguments = {"frequencies": [0.2, 0.4], "tau": 0.1, "schedule": "shared"} | PLAN | change
    with pytest.raises(InvalidInputError, match=message):
        failure(**arguments)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_certain_errors_are_not_predicted(probability):
    with pytest.raises(InvalidInputError, match="probability must be above 0 and below 1"):
        predict([0.5], schedule="shared", **PLAN, probability=probability)


# ---- distributions ----


@pytest.mark.parametrize(
    "frequencies", [zipf(1.1), zipf(3.0), steps(), np.zeros(D), np.array([1.0])]
)
@pytest.mark.parametrize("recovery", ["joint", "median"])
def test_a_compressed_law_predicts_as_the_frequencies_do(frequencies, recovery):
    distribution = Frequencies.from_frequencies(
        np.random.default_rng(0).permutation(frequencies), domain_size=D
    )
    assert len(distribution.frequencies) < 1500
    assert distribution.numbers @ distribution.frequencies == pytest.approx(frequencies.sum())
    assert distribution.hardness(0.01) == pytest.approx(hardness(frequencies, 0.01), rel=1e-3)
    assert distribution.uncertainty(0.01) == 0.0
    direct = predict(
        frequencies, schedule="hybrid", **PLAN, recovery=recovery, candidates=D, probability=0.1
    )
    predictor = Predictor(PLAN["num_clients"], "hybrid", PLAN["num_rounds"], recovery)
    assert predictor.linf(distribution, 0.1, PLAN["rows"], PLAN["width"]) == pytest.approx(
        direct.linf, rel=0.01
    )


@pytest.mark.parametrize(
    ("schedule", "num_rounds", "noise"),
    [("shared", 1, 0.0), ("shared", 2, 4.0), ("hybrid", 4, 0.0), ("fresh", 4, 2.0)],
)
@pytest.mark.parametrize("frequencies", [zipf(1.2), steps()])
def test_a_pilot_tells_the_tail(frequencies, schedule, num_rounds, noise):
    """Mean over 10 pilots, within four standard errors and 4 %: without the corrections it would be
    far off."""
    tau, ratios, energies, uncertainties = 0.01, [], [], []
    for seed in range(10):
        landed = sketches(
            frequencies, 2000, schedule=schedule, num_rounds=num_rounds, noise=noise, seed=seed
        )
        distribution = Frequencies.from_pilot(
            landed, IntegerRange(1, D), noise**2 + (1 / 12 if noise else 0.0)
        )
        assert distribution.fit is not None and distribution.fit.conditioned
        assert distribution.numbers @ distribution.frequencies <= 1 + 1e-6
        assert distribution.domain_size == D
        ratios.append(distribution.hardness(tau) / hardness(frequencies, tau))
        energies.append(
            float(distribution.numbers @ distribution.frequencies**2)
            / float(frequencies @ frequencies)
        )
        uncertainties.append(distribution.uncertainty(tau))
    for seen in (ratios, energies):
        assert np.mean(seen) == pytest.approx(1, abs=0.04 + 4 * np.std(seen) / math.sqrt(len(seen)))
        assert np.std(seen) < 0.3
    assert np.std(ratios) < 2 * np.mean(uncertainties)


def test_the_power_law_has_the_mass_and_energy_it_is_asked_for():
    for first, last, mass, energy, most in (
        (1, 10_000, 1.0, 0.05, 0.5),
        (8, 10**6, 0.6, 0.004, 0.02),
        (3, 40, 0.1, 0.001, 1),
    ):
        tail, numbers, exponent = power_law.power_law(first, last, mass, energy, most)
        assert numbers.sum() == last - first + 1
        assert numbers @ tail == pytest.approx(mass, rel=1e-6)
        assert numbers @ tail**2 == pytest.approx(energy, rel=1e-3)
        assert 0 < exponent < 10 and tail.max() <= most
    assert power_law.power_law(5, 4, 0.5, 0.1, 1.0)[2] == 0.0
    tail, numbers, exponent = power_law.power_law(1, 50, 0.5, 0.0, 1.0)
    assert exponent == 0.0
    np.testing.assert_allclose(tail, 0.01)


@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_one_item_that_all_clients_hold(noise):
    distribution = Frequencies.from_pilot(
        sketches(np.eye(1, D)[0], 1000, noise=noise), IntegerRange(1, D), noise**2
    )
    assert distribution.numbers @ distribution.frequencies == pytest.approx(1, abs=1e-9)
    assert distribution.frequencies[0] > 0.98 and distribution.uncertainty(0.05) < 0.5
    assert size_by_model(distribution, 0.05, Predictor(10_000), rows=8).method == "model"


def test_a_domain_may_be_vast():
    distribution = Frequencies.from_pilot(sketches(zipf(1.1), 1000), IntegerRange(1, 200_000))
    assert distribution.domain_size == 200_000 and len(distribution.frequencies) < 2000
    tail, numbers, _ = power_law.power_law(4, 2**50, 0.7, 0.01, 0.5)
    assert len(tail) < 4000
    assert numbers @ tail == pytest.approx(0.7)


def test_a_law_that_a_pilot_cannot_tell_is_not_used():
    predictor = Predictor(100_000, recovery="median")
    distribution = Frequencies.from_pilot(sketches(zipf(1.5), 50), IntegerRange(1, D))
    assert distribution.uncertainty(1e-3) > sizes.TOO_UNCERTAIN > distribution.uncertainty(0.1)
    size = size_by_model(distribution, 1e-3, predictor, rows=15)
    assert (size.method, size.rows, size.width) == ("minimax", 15, 4000)
    assert "take more clients" in size.message and "0.001" in size.message
    assert size_by_model(distribution, 1e-3, predictor).rows == rows_for(D, 0.1)
    assert size_by_model(distribution, 0.1, predictor, rows=15).method == "model"
    # Three rows are the fewest that joint recovery takes. With four columns for 5,000 items it has
    # nothing to say, nor has the distribution.
    tiny = Frequencies.from_pilot(sketches(zipf(1.05), 5000, rows=3, width=4), IntegerRange(1, D))
    assert tiny.uncertainty(0.01) > sizes.TOO_UNCERTAIN


@pytest.mark.parametrize(("clients", "noise"), [(1000, 0.0), (10_000, 0.0), (10_000, 30.0)])
def test_fourth_powers_tell_the_shape_of_the_tail(clients, noise):
    """1,000 items alike, which hardly stand out: mass and energy alone would have a few of them,
    and a long tail."""
    flat, tau, ratios = np.where(np.arange(D) < 1000, 1e-3, 0.0), 0.002, []
    for seed in range(6):
        distribution = Frequencies.from_pilot(
            sketches(flat, clients, noise=noise, seed=seed), IntegerRange(1, D), noise**2
        )
        ratios.append(distribution.hardness(tau) / hardness(flat, tau))
    assert 0.75 < np.mean(ratios) < 1.1


def mixed():
    """Half of all clients hold one of 500 items alike, the others one of a power law."""
    distribution = zipf(1.5) / 2
    distribution[:500] += 1e-3
    return distribution


@pytest.mark.parametrize(("width", "noise"), [(2000, 0.0), (2000, 1.0), (1000, 0.0)])
def test_items_that_are_fitted_one_by_one_tell_the_shape_of_the_tail(width, noise):
    """Mass, energy and fourth powers are those of fewer items up to 0.005: the hardness at tau were
    two thirds."""
    tau, ratios, below = 0.002, [], []
    for seed in range(4):
        landed = sketches(mixed(), 2500, width=width, noise=noise, seed=seed)
        distribution = Frequencies.from_pilot(
            landed, IntegerRange(1, D), noise**2 + (1 / 12 if noise else 0.0)
        )
        assert distribution.fit is not None and distribution.fit.resolved < 3 * max(
            tau, 4 * noise / 2500
        )
        assert (
            distribution.numbers @ distribution.frequencies <= 1 + 1e-6
            and distribution.numbers.sum() <= D * (1 + 1e-9)
        )
        ratios.append(distribution.hardness(tau) / hardness(mixed(), tau))
        few, true = distribution.frequencies < tau, mixed()[mixed() < tau]
        below.append(
            float(distribution.numbers[few] @ distribution.frequencies[few] ** 2)
            / float(true @ true)
        )
    assert 0.9 < np.mean(ratios) < 1.15
    assert np.mean(below) > 0.6


def test_deconvolution_keeps_the_sums_that_are_known():
    """The weighted sum is met, or nearer to its total the smaller the error; numbers stay
    positive."""
    rng = np.random.default_rng(0)
    number, weights = rng.exponential(1.0, 50), rng.exponential(1.0, 50)
    now = float(number @ weights)
    for total in (0.2 * now, now, 5 * now):
        kept = tail._with_sum(number, weights, total, 0.0)
        assert kept @ weights == pytest.approx(total) and kept.min() > 0
        loose = tail._with_sum(number, weights, total, 0.3 * now)
        assert abs(total - now) >= abs(loose @ weights - total) >= abs(now - total) / 100
    for total in (0.0, -now):  # noise may say so
        np.testing.assert_array_equal(tail._with_sum(number, weights, total, 0.0), number)
        assert 0 < tail._with_sum(number, weights, total, 0.3 * now) @ weights < now
    np.testing.assert_array_equal(tail._with_sum(number, 0 * weights, 1.0, 0.0), number)


def test_what_joint_recovery_may_miss_is_said():
    """8 x 100 counters tell 500 items of two clients of the pilot only together; 8 x 2000 one by
    one."""
    tau, domain = 0.004, IntegerRange(1, D)
    small, large = (
        Frequencies.from_pilot(sketches(mixed(), 2500, width=width), domain)
        for width in (100, 2000)
    )
    assert small.fit is not None and large.fit is not None
    assert small.fit.resolved > tau > large.fit.resolved
    for recovery, said in (("joint", "tells items below"), ("median", "")):
        assert (
            said in size_by_model(small, tau, Predictor(25_000, recovery=recovery), rows=9).message
        )
    assert size_by_model(large, tau, Predictor(25_000), rows=9).message == ""


def geometric(ratio, size=2000):
    distribution = ratio ** np.arange(float(size))
    return distribution / distribution.sum()


@pytest.mark.parametrize(
    ("ratio", "clients", "rounds", "tau"),
    [
        (0.9763, 900_000, 1, 0.00878),
        pytest.param(0.98, 900_000, 2, 0.0025, marks=pytest.mark.matrix),
    ],
)
def test_a_jump_of_the_error_is_not_relied_on(ratio, clients, rounds, tau):
    """Of 40 campaigns more than 9 fail with probability below 1 %, if 1 in 10 does.

    The error falls by half a dozen times from one width to one a tenth larger, and not just where
    it is predicted to: of the sketches that are predicted to do by themselves 45 % and 87 % fail.
    """
    distribution, schedule = (
        Frequencies.from_frequencies(geometric(ratio)),
        "hybrid" if rounds > 1 else "shared",
    )
    predictor = Predictor(clients, schedule, rounds)
    size = size_by_model(distribution, tau, predictor, rows=10)
    assert size.linf is not None and size.linf <= tau
    alone = size.width
    while predictor._failure(distribution, tau, 10, alone - 1) <= 0.05:
        alone -= 1
    assert size.width > 1.2 * alone
    assert failures(geometric(ratio), predictor, 10, size.width, tau, 40) <= 9


def failures(frequencies, predictor, rows, width, tau, repeats):
    """Of campaigns decoded by joint recovery, those whose largest error exceeds tau."""
    rng, found = np.random.default_rng(0), 0
    clients, rounds, size = predictor.num_clients, predictor.num_rounds, len(frequencies)
    for _ in range(repeats):
        spec = SketchSpec(rows, width, predictor.schedule, rounds, rng.bytes(32))
        truth, landed = np.zeros(size), []
        for m in range(rounds):
            counts = rng.multinomial(clients // rounds, frequencies)
            landed.append(CountSketch(spec, m))
            landed[-1].add_range(1, counts)
            if predictor.noise:
                noise = rng.normal(0.0, predictor.noise, landed[-1].counters.shape)
                landed[-1].counters += np.rint(noise).astype(np.int64)
            truth += counts
        error = np.abs(JointDecoder(landed, IntegerRange(1, size)).range(1, size) - truth).max()
        found += error > tau * clients
    return found


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_exact_recovery_is_relied_on_where_it_is_sure(monkeypatch, noise):
    """50 items of six clients each, a third more frequent than tau.

    Where they are just predicted to be recovered exactly, they often are not, and noise does not
    help. Of 20 campaigns more than 5 fail with probability 1 %, if 1 in 10 does.
    """
    frequencies, tau = np.repeat([0.02, 0.0], [50, 150]), 0.015
    known = Frequencies.from_frequencies(frequencies)
    predictor = Predictor(300, "hybrid", 10, noise=noise)
    found = []
    for sure in (SURE, ()):
        monkeypatch.setattr("fedtally.plan.predictor.SURE", sure)
        width = size_by_model(known, tau, predictor, rows=13, margin=1.0).width
        found.append(failures(frequencies, predictor, 13, width, tau, 20))
    assert found[0] <= 5 < found[1]


@pytest.mark.parametrize("items", [50, 60, 67, 80])
def test_no_noise_makes_a_prediction_smaller(items):
    """67 items of 16 rows x 10 are at the edge of exact recovery."""
    known = hardest.plateau(items, 1000)
    errors = [
        Predictor(5000, "hybrid", 4, noise=noise).modelled_linf(known, 0.1, 16, 10)
        for noise in (0.0, 0.01, 1.0, 5.0, 16.0)
    ]
    assert errors == sorted(errors) and errors[0] > 0


def plateau():
    """No item stands out: 20,000 that fall like (i + 150)^-2, most are below one client of a pilot
    of 1,000."""
    distribution = (np.arange(20_000) + 151.0) ** -2
    return distribution / distribution.sum()


def test_rare_items_that_a_pilot_does_not_tell_are_taken_to_be_alike():
    """Of 60 campaigns more than 12 fail with probability below 1 %, if 1 in 10 does.

    At a target of two clients of the pilot. With the power law that the pilot's items start from,
    most would fail.
    """
    tau, predictor, failures = 0.002, Predictor(10_000), np.zeros(2, int)
    for seed in range(4):
        distribution = Frequencies.from_pilot(
            sketches(plateau(), 1000, seed=seed), IntegerRange(1, 20_000)
        )
        assert distribution.fit is not None and distribution.fit.resolved > 2 * tau
        careful = size_by_model(distribution, tau, predictor, rows=8)
        assert (
            "is 2 of the pilot's 1,000 clients" in careful.message
            and careful.linf is not None
            and 0.7 * tau < careful.linf <= tau
        )
        trusting = size_by_model(replace(distribution, fit=None), tau, predictor, rows=8)
        assert trusting.width < careful.width < 1.6 * trusting.width
        rng = np.random.default_rng(seed)
        for repeat in range(15):
            counts = rng.permutation(rng.multinomial(10_000, plateau()))
            for place, width in enumerate((careful.width, trusting.width)):
                sketch = CountSketch(SketchSpec(8, width, "shared", 1, bytes([repeat]) * 32), 0)
                sketch.add_range(1, counts)
                errors = JointDecoder([sketch], IntegerRange(1, 20_000)).range(1, 20_000) - counts
                failures[place] += np.abs(errors).max() > tau * 10_000
    assert failures[0] <= 12 < failures[1]


def test_the_largest_error_and_its_probability_agree_where_rare_items_are_taken_to_be_alike():
    distribution = Frequencies.from_pilot(sketches(plateau(), 1000), IntegerRange(1, 20_000))
    assert distribution.fit is not None
    predictor, errors = Predictor(10_000), []
    for width in (100, 250, 600):
        errors.append(predictor.linf(distribution, 0.1, 8, width))
        assert predictor.failure(distribution, errors[-1], 8, width) == pytest.approx(0.1, rel=0.15)
        assert errors[-1] >= 0.99 * predictor.linf(replace(distribution, fit=None), 0.1, 8, width)
    assert errors[2] < distribution.fit.resolved / 2 < errors[0]


@pytest.mark.parametrize("recovery", ["median", "joint"])
def test_a_target_of_two_clients_of_the_pilot_is_doubted(recovery):
    distribution = Frequencies.from_pilot(sketches(zipf(1.2), 1000), IntegerRange(1, D))
    predictor = Predictor(10_000, recovery=recovery)
    assert (
        "is 2 of the pilot's 1,000 clients"
        in size_by_model(distribution, 0.002, predictor, rows=15).message
    )
    assert size_by_model(distribution, 0.02, predictor, rows=15).message == ""


def test_a_tail_that_is_no_power_law(monkeypatch):
    """1,000 items alike, and fourth powers that are not known well enough: a guess, which `hardest`
    is not."""
    monkeypatch.setattr(pilots, "_KNOWN", 0.0)
    flat = np.where(np.arange(D) < 1000, 1e-3, 0.0)
    tau, domain, predictor = 0.002, IntegerRange(1, D), Predictor(100_000, recovery="median")
    pilot = sketches(flat, 10_000)
    guess, safe = (
        Frequencies.from_pilot(pilot, domain, largest_unseen=bound) for bound in (1.0, tau)
    )
    true = hardness(flat, tau)
    assert guess.hardness(tau) < 0.7 * true
    assert guess.hardest(tau) == pytest.approx(true, rel=0.2)
    assert (
        safe.hardness(tau)
        == pytest.approx(safe.hardest(tau), rel=0.01)
        == pytest.approx(true, rel=0.2)
    )
    sizes = [
        size_by_model(distribution, tau, predictor, rows=15)
        for distribution in (guess, safe, Frequencies.from_frequencies(flat))
    ]
    assert "were the tail no power law" in sizes[0].message
    assert [size.message for size in sizes[1:]] == ["", ""]
    assert 1.2 * sizes[0].width < sizes[2].width
    assert sizes[1].width == pytest.approx(sizes[2].width, rel=0.25)
    # Where the energy is more than items of tau could hold, the mass decides.
    few = Frequencies.from_pilot(sketches(zipf(1.05), 300), domain, largest_unseen=1e-4)
    assert few.hardness(1e-4) == pytest.approx(few.hardest(1e-4), rel=0.01)
    assert guess.hardest(tau) > guess.hardness(tau) and Frequencies.from_frequencies(flat).hardest(
        tau
    ) == pytest.approx(true)


# ---- rounds of different distributions, clients of several items, nothing known ----


def pilot_of(round_laws, clients, schedule, seed, noise=0.0):
    """Return the sums of rounds of one distribution each, float64 [rounds, d]; counts are
    Poisson."""
    rng = np.random.default_rng(seed)
    spec = SketchSpec(8, 200, schedule, len(round_laws), rng.bytes(32))
    found = []
    for m, distribution in enumerate(round_laws):
        sketch = CountSketch(spec, m)
        sketch.add_range(
            1,
            rng.poisson(distribution * (clients // len(round_laws))),
            num_clients=clients // len(round_laws),
        )
        sketch.counters += np.rint(rng.normal(0.0, noise, sketch.counters.shape)).astype(np.int64)
        found.append(sketch)
    return found


@pytest.mark.parametrize("schedule", ["shared", "hybrid", "fresh", "batched:2"])
@pytest.mark.parametrize(("kind", "expected"), [("alike", 1.0), ("gamma", 1.6), ("once", 4.0)])
def test_a_pilot_of_several_rounds_tells_their_heterogeneity(schedule, kind, expected):
    """Gamma factors of variance 1 have h = 2 / (1 + 1 / 4); what the pilot says follows the rounds
    as they were drawn.

    Mean over 6 pilots within four standard errors, as they say; of one distribution none passes for
    several, of several all do.
    The energy is that of the mean distribution, of which rounds under signs of their own show h
    times as much.
    """
    said, true, errors, energies, used = [], [], [], [], []
    for seed in range(6):
        rng = np.random.default_rng((2, seed))
        factors = {
            "alike": np.ones((4, D)),
            "gamma": rng.gamma(1.0, 1.0, (4, D)),
            "once": 4.0 * (np.arange(4)[:, None] == rng.integers(0, 4, D)),
        }[kind]
        rounds = factors * rng.permutation(zipf(1.2))
        mean = rounds.mean(axis=0)
        distribution = Frequencies.from_pilot(
            pilot_of(rounds, 4000, schedule, seed, noise=2.0), IntegerRange(1, D), 4 + 1 / 12
        )
        assert distribution.fit is not None
        said.append(distribution.fit.heterogeneity)
        held = mean > 16 / 4000  # items of which the pilot has seen enough, by their mass
        true.append(((rounds**2).mean(axis=0)[held] / mean[held]).sum() / mean[held].sum())
        errors.append(distribution.fit.heterogeneity_error)
        energies.append(
            float(distribution.numbers @ distribution.frequencies**2) / float(mean @ mean)
        )
        used.append(distribution.heterogeneity)
    assert np.mean(said) == pytest.approx(
        np.mean(true), abs=0.03 + 4 * float(np.mean(errors)) / math.sqrt(6)
    )
    assert np.mean(said) == pytest.approx(expected, rel=0.15)
    assert np.mean(energies) == pytest.approx(1, abs=0.06)
    if kind == "alike":
        assert max(used) < 1.15 and used.count(1.0) >= 4
    else:
        assert used == said


def test_one_round_tells_nothing_of_others():
    for schedule in ("shared", "hybrid"):
        distribution = Frequencies.from_pilot(
            sketches(zipf(1.2), 1000, schedule=schedule), IntegerRange(1, D)
        )
        assert distribution.fit is not None
        assert (
            distribution.heterogeneity,
            distribution.fit.heterogeneity,
            distribution.fit.heterogeneity_error,
        ) == (
            1.0,
            1.0,
            math.inf,
        )
    # Nor does one that holds nearly all, nor rounds in which no item stands out.
    rounds = pilot_of([zipf(1.2)] * 2, 2000, "fresh", 0)
    few = CountSketch(rounds[1].spec, 1)
    few.add(np.array([1, 2], np.uint64))
    assert Frequencies.from_pilot([rounds[0], few], IntegerRange(1, D)).heterogeneity == 1.0
    flat = Frequencies.from_pilot(
        pilot_of([np.full(D, 1 / D)] * 2, 2000, "fresh", 0), IntegerRange(1, D)
    )
    assert flat.heterogeneity == 1.0


def test_heterogeneity_and_sizes_of_rounds_reach_the_prediction():
    distribution = Frequencies.from_frequencies(zipf(1.2))
    spread = replace(distribution, heterogeneity=4.0)
    predictor = Predictor(20_000, "hybrid", 6, "joint")
    assert predictor.linf(spread, 0.1, 7, 100) > 1.3 * predictor.linf(distribution, 0.1, 7, 100)
    uneven = replace(predictor, round_sizes=[15_000] + [1000] * 5)
    assert uneven.linf(distribution, 0.1, 7, 100) > 1.3 * predictor.linf(distribution, 0.1, 7, 100)


def several(exponent, clients, seed):
    """Return a pilot of clients who draw three items and keep one of each, and the frequencies."""
    rng, distribution = np.random.default_rng(seed), zipf(exponent)
    items = np.sort(rng.choice(D, (clients, 3), p=distribution), axis=1)
    items[:, 1:][items[:, 1:] == items[:, :-1]] = D
    sketch = CountSketch(Pilot().spec(rng.bytes(32)), 0)
    sketch.add_range(1, np.bincount(items.reshape(-1), minlength=D + 1)[:-1], num_clients=clients)
    return sketch, 1 - (1 - distribution) ** 3


@pytest.mark.parametrize("exponent", [1.2, 2.0])
def test_a_pilot_of_clients_of_several_items_is_not_planned_too_small(exponent, matrix):
    """The hardness is on average not below the true one, nor the width; nor, but for sampling, the
    mass."""
    ratios, widths = [], []
    predictors = [Predictor(50_000, recovery=recovery) for recovery in ("joint", "median")]
    for seed in range(6 if matrix else 3):
        sketch, frequencies = several(exponent, 2000, seed)
        distribution = Frequencies.from_pilot([sketch], IntegerRange(1, D), max_items=3)
        assert distribution.max_items == 3 and distribution.frequencies.max() <= 1
        assert (
            0.98 * frequencies.sum() < distribution.numbers @ distribution.frequencies <= 3 + 1e-9
        )
        ratios.append(
            [distribution.hardness(tau) / hardness(frequencies, tau) for tau in (0.002, 0.01, 0.05)]
        )
        widths.append(
            [size_by_model(distribution, 0.01, one, rows=9, margin=1.0).width for one in predictors]
        )
    assert (np.mean(ratios, axis=0) > 0.97).all()
    assert np.min(ratios) > 0.85
    assert np.mean(ratios, axis=0)[1:] == pytest.approx(1, abs=0.15)
    known = Frequencies.from_frequencies(frequencies, max_items=3)
    least = [size_by_model(known, 0.01, one, rows=9, margin=1.0).width for one in predictors]
    # what the default margin makes up for
    assert (np.mean(widths, axis=0) > 0.9 * np.array(least)).all()
    assert (np.mean(widths, axis=0) < 1.6 * np.array(least)).all()


def test_one_item_too_many_is_refused_or_cut():
    distribution = Frequencies.from_frequencies([0.9, 0.9, 0.9], max_items=3)
    assert (
        distribution.max_items == 3
        and distribution.numbers @ distribution.frequencies == pytest.approx(2.7)
    )
    sketch, _ = several(2.0, 1000, 0)
    # Clients hold more than the bound says: the distribution does not.
    cut = Frequencies.from_pilot([sketch], IntegerRange(1, D))
    assert cut.numbers @ cut.frequencies <= 1 + 1e-9


@pytest.mark.parametrize("exponent", [0.7, 1.1, 2.0])
@pytest.mark.parametrize("recovery", ["joint", "median"])
def test_the_assumed_law_predicts_as_its_frequencies_do(exponent, recovery):
    size, predictor = 100_000, Predictor(100_000, "hybrid", 6, recovery)
    distribution, known = (
        Frequencies.assumed(size, exponent),
        Frequencies.from_frequencies(zipf(exponent, size)),
    )
    assert distribution.numbers.sum() == size == distribution.domain_size
    assert predictor.linf(distribution, 0.1, 7, 300) == pytest.approx(
        predictor.linf(known, 0.1, 7, 300), rel=0.01
    )
    direct = predict(
        zipf(exponent, size),
        rows=7,
        width=300,
        schedule="hybrid",
        num_rounds=6,
        num_clients=100_000,
    )
    if recovery == "joint":
        assert predictor.linf(distribution, 0.5, 7, 300) == pytest.approx(direct.linf, rel=1e-3)


def test_the_assumed_law_of_a_vast_domain():
    distribution = Frequencies.assumed(2**61)
    assert len(distribution.frequencies) < 3000
    assert distribution.numbers @ distribution.frequencies == pytest.approx(1)
    assert distribution.numbers.sum() == pytest.approx(2.0**61)
    assert Predictor(10_000, recovery="median").linf(distribution, 0.1, 15, 4000) < 0.01
    three = Frequencies.assumed(1000, 5.0, max_items=3)
    assert three.numbers @ three.frequencies == pytest.approx(3) and three.frequencies[
        :2
    ].tolist() == [1.0, 1.0]
    assert Frequencies.assumed(2, max_items=3).frequencies == pytest.approx([1.0, 1.0])
    assert Frequencies.assumed(1).frequencies.tolist() == [1.0]


# ---- the paper's ways ----


def test_the_papers_sizes():
    sizes = {"num_clients": 17_500, "domain_size": 175_000}
    assert minimax(0.005, **sizes) == Size("minimax", 16, 800)
    assert linear(**sizes, constant=1.0) == Size("linear", 16, 17_500)
    assert oracle(zipf(1.2), 0.005, **sizes, rows=5) == Size(
        "oracle", 5, width_oracle(zipf(1.2), 0.005, num_clients=17_500)
    )
    assert minimax(0.005, **sizes).cells == 12_800


@pytest.mark.parametrize(("alpha", "beta"), [(1.3, 0.2), (2.0, 0.6), (0.5, 0.01)])
def test_two_phase_finds_the_power_law_that_a_pilot_holds(alpha, beta):
    distribution = beta * np.arange(1, D + 1.0) ** -alpha
    distribution = distribution[np.cumsum(distribution) <= 1]
    counts = np.rint(distribution * 10**9).astype(np.int64)
    pilot = CountSketch(Pilot(rows=9, width=1 << 16).spec(bytes(32)), 0)
    pilot.add_range(1, counts, num_clients=10**9)
    size = two_phase(pilot, IntegerRange(1, D), 0.002, num_clients=10**6, rows=16)
    assert size.method == "two-phase"
    assert size.width == pytest.approx(width_oracle(distribution, 0.002), rel=0.01)


def test_two_phase_takes_its_arguments():
    [pilot] = sketches(zipf(1.3), 5000)

    def ask(**more):
        return two_phase(pilot, IntegerRange(1, D), 0.01, num_clients=50_000, **more)

    assert ask().rows == rows_for(D, 0.1)
    assert ask(constant=4.0).width == pytest.approx(2 * ask().width, abs=1)
    top = np.sort(MedianDecoder([pilot]).range(1, D))[::-1][:7] / 5000
    distribution = paper._two_phase_law(top, D)
    assert ask(top=7).width == width_oracle(distribution, 0.01)
    assert distribution.sum() <= 1
    # Least squares: no other exponent or factor is better.
    alpha, beta = math.log(distribution[0] / distribution[1]) / math.log(2), distribution[0]
    ranks = np.arange(1, 8.0)
    least = ((top - beta * ranks**-alpha) ** 2).sum()
    for a, b in ((1.01, 1), (0.99, 1), (1, 1.01), (1, 0.99)):
        assert ((top - b * beta * ranks ** -(a * alpha)) ** 2).sum() > least


def test_two_phase_of_one_item_and_of_none():
    np.testing.assert_array_equal(paper._two_phase_law(np.array([1.2, 0.0, 0.0]), 100), [1.0])
    empty = CountSketch(Pilot().spec(bytes(32)), 0)
    with pytest.raises(InvalidInputError, match="no client took part in the pilot"):
        two_phase(empty, IntegerRange(1, D), 0.01, num_clients=100)


# ---- the searches ----


@pytest.mark.parametrize(
    "needed", [lambda r: 1000 / (r - 2), lambda r: 50 + 0 * r, lambda r: 2, lambda r: 900 * 0.7**r]
)
def test_the_smallest_size_is_that_of_looking_at_all(needed):
    looks = []

    def fails(rows, width):
        looks.append((rows, width))
        return width < needed(rows)

    rows = range(3, 32)
    found = sizes._smallest(fails, sorted(rows, key=lambda one: abs(one - 17)))
    cost = min(one * max(2, math.ceil(needed(one))) for one in rows)
    assert found is not None and found[0] * found[1] == cost
    assert not fails(*found)
    assert min(width for _, width in looks) >= 2
    assert len(looks) < 250
    assert sizes._smallest(lambda *_: True, [5]) is None


@pytest.mark.parametrize("recovery", SKETCH_DECODERS)
@pytest.mark.parametrize("schedule", ["shared", "hybrid"])
def test_calculus_finds_the_smallest_size(recovery, schedule):
    predictor = Predictor(20_000, schedule, 4, recovery, noise=lambda rows: 2.0 * math.sqrt(rows))
    distribution = Frequencies.from_frequencies(zipf(1.3))
    size = size_by_model(
        distribution, 0.008, predictor, p=0.1, margin=1.0, risk=0.5, rows=(6, 7, 8)
    )
    assert predictor.failure(distribution, 0.008, size.rows, size.width) <= 0.05
    assert size.linf is not None and size.linf <= 0.008 * 1.02
    for rows in (6, 7, 8):
        assert predictor.failure(distribution, 0.008, rows, (size.cells - 1) // rows) > 0.05
    wider = size_by_model(
        distribution, 0.008, predictor, p=0.1, margin=1.5, risk=0.5, rows=(6, 7, 8)
    )
    assert (wider.rows, wider.width) == (size.rows, math.ceil(1.5 * size.width))
    assert wider.linf is not None and wider.linf < size.linf


def test_what_belief_propagation_gains_is_relied_on_where_the_shape_is_known():
    """A pilot tells the sum of the rare items, and the hardest plateau stands for any shape: both
    are planned as for joint recovery."""
    known = Frequencies.from_frequencies(zipf(1.1))
    pilot = Frequencies.from_pilot(sketches(zipf(1.1), 5000), IntegerRange(1, D))
    worst = hardest.plateau(300, D)
    for distribution, is_relied_on in ((known, True), (worst, False), (pilot, False)):
        joint, belief = (
            size_by_model(distribution, 3e-4, Predictor(10**6, "hybrid", 5, one), rows=8)
            for one in ("joint", "belief")
        )
        assert (1.3 * belief.width < joint.width) if is_relied_on else (belief == joint)


def test_noise_that_is_too_much_is_said():
    distribution = Frequencies.from_frequencies(zipf(1.3))
    for recovery in ("joint", "median"):
        with pytest.raises(InvalidInputError, match=r"tau 0\.001 is not reached .* less noise"):
            size_by_model(
                distribution, 0.001, Predictor(10_000, recovery=recovery, noise=200.0), rows=(8, 9)
            )


@pytest.mark.parametrize("recovery", ["joint", "median"])
def test_a_budget_buys_the_least_error(recovery):
    predictor, distribution = (
        Predictor(20_000, recovery=recovery),
        Frequencies.from_frequencies(zipf(1.3)),
    )
    cost = lambda rows, width: 100 + (rows * width * 15 + 7) // 8  # noqa: E731
    size = within(distribution, 2000, cost, predictor, p=0.1, rows=range(4, 9), risk=1.0)
    assert cost(size.rows, size.width) <= 2000 < cost(size.rows, size.width + 1)
    errors = [predictor.linf(distribution, 0.1, rows, 1013 // rows) for rows in range(4, 9)]
    assert size.linf == min(errors)
    more = within(distribution, 4000, cost, predictor, rows=range(4, 9), risk=1.0)
    assert more.linf is not None and more.linf < size.linf
    with pytest.raises(InvalidInputError, match="max_bytes=101 buys no sketch"):
        within(distribution, 101, cost, predictor)


def test_a_budget_says_where_the_pilot_is_too_small():
    distribution = Frequencies.from_pilot(sketches(zipf(1.5), 50), IntegerRange(1, D))
    size = within(
        distribution, 100_000, lambda rows, width: 4 * rows * width, Predictor(10**6), rows=9
    )
    assert "the pilot is too small" in size.message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 0.0}, "tau must be above 0 and below 1"),
        ({"tau": 1.0}, "tau must be above 0 and below 1"),
        ({"p": 1.0}, "p must be above 0 and below 1"),
        ({"rows": 0}, "rows must be at least 1"),
        ({"rows": ()}, "rows must be at least one number"),
        ({"margin": 0.9}, "margin must be at least 1"),
        ({"risk": 0.0}, "risk must be at least"),
        (
            {"predictor": Predictor(100, recovery="mean")},
            f"recovery must be {DECODER_NAMES}",
        ),
    ],
)
def test_bad_input_is_refused(change, message):
    arguments = {
        "distribution": Frequencies.from_frequencies([0.5]),
        "tau": 0.1,
        "predictor": Predictor(100),
    } | change
    with pytest.raises(InvalidInputError, match=message):
        size_by_model(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Frequencies.from_frequencies([0.6, 0.6]), "sum to at most 1, got 1.2"),
        (lambda: Frequencies.from_frequencies([0.9] * 4, max_items=3), "sum to at most 3, got 3.6"),
        (lambda: Frequencies.from_frequencies([1.1], max_items=3), "each be at most 1, got 1.1"),
        (
            lambda: Frequencies.from_pilot(sketches(zipf(1.1), 9), IntegerRange(1, D), max_items=0),
            "max_items must be at least 1",
        ),
        (lambda: Frequencies.assumed(0), "domain_size must be at least 1"),
        (lambda: Frequencies.assumed(10, -1.0), "exponent must be at least 0"),
        (lambda: Frequencies.from_frequencies([[0.1]]), "one dimension"),
        (lambda: Frequencies.from_frequencies([-0.1]), "at least 0"),
        (
            lambda: Frequencies.from_frequencies([0.1, 0.1], domain_size=1),
            "domain_size must be at least 2",
        ),
        (lambda: Frequencies.from_pilot([], IntegerRange(1, 10)), "nothing to decode"),
        (
            lambda: Frequencies.from_pilot(sketches(np.ones(1), 1), IntegerRange(1, 10)),
            "at least 2 clients, got 1",
        ),
        (
            lambda: Frequencies.from_pilot(
                sketches(zipf(1.1), 9), IntegerRange(1, D), largest_unseen=0.0
            ),
            "must be above 0, got 0",
        ),
        (lambda: Pilot(share=1.0), "share must be above 0 and below 1"),
        (lambda: Pilot(width=1), "width must be at least 2"),
        (lambda: Pilot(rows=0), "rows must be at least 1"),
    ],
)
def test_bad_laws_and_pilots_are_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_a_million_items_and_ten_rounds_are_planned():
    """And the plan meets its target by the distribution that planned it."""
    distribution = Frequencies.from_frequencies(zipf(1.1, 1_000_000))
    for recovery, tau in (("median", 1e-3), ("joint", 1e-2)):
        predictor = Predictor(1_000_000, "hybrid", 10, recovery)
        size = size_by_model(distribution, tau, predictor)
        assert predictor.failure(distribution, tau, size.rows, size.width) <= 0.1


# ---- the promise ----


@pytest.mark.parametrize("exponent", [1.2, 2.0])
def test_campaigns_keep_what_is_planned_and_two_phase_does_not(exponent):
    """At most 1 in 10 may fail.
    More than 12 of 60 would, with probability below 1 %, if it were so many.
    """
    frequencies, tau, clients = zipf(exponent), 0.02, 10_000
    domain, predictor = IntegerRange(1, D), Predictor(clients, recovery="median")
    pilot = sketches(frequencies, Pilot().clients(clients), seed=1)
    distribution = Frequencies.from_pilot(pilot, domain)
    chosen = size_by_model(distribution, tau, predictor, p=0.1, rows=15).width
    of_paper = two_phase(pilot[0], domain, tau, num_clients=clients, rows=15).width
    failures = dict.fromkeys((chosen, of_paper), 0)
    for width in failures:
        rng = np.random.default_rng(2)
        for _ in range(60):
            counts = rng.multinomial(clients, frequencies)
            sketch = CountSketch(SketchSpec(15, width, "shared", 1, rng.bytes(32)), 0)
            sketch.add_range(1, counts)
            failures[width] += (
                np.abs(MedianDecoder([sketch]).range(1, D) - counts).max() > tau * clients
            )
    assert failures[chosen] <= 12
    assert failures[of_paper] >= 30


def test_experiment_compares_chosen_with_least_widths(tmp_path):
    pytest.importorskip(
        "experiments", reason="run from the root of the repository: python -m pytest"
    )
    from experiments import planner as experiment

    path = tmp_path / "table.csv"
    result = CliRunner().invoke(
        experiment.command, ["--quick", "--output", str(path)], catch_exceptions=False
    )
    assert result.exit_code == 0
    names, values = (line.replace('"', "").split(",") for line in path.read_text().splitlines())
    row = dict(zip(names, values, strict=True))
    assert 0.8 < float(row["known"]) < 1.25
    assert float(row["two-phase"]) < 0.75 < float(row["model"]) < 1.6
    assert int(row["fell back"]) == 0
    assert row["least"] in result.output
