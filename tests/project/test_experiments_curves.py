"""How many releases: the curve over batches against simulation and direct computation."""

from __future__ import annotations

import doctest
import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from kinds import DECODER_NAMES
from scipy import integrate, stats

pytest.importorskip("experiments", reason="run from the root of the repository: python -m pytest")

from experiments import curves
from experiments.curves import (
    Release,
    best_releases,
    concentration,
    errors_by_law,
    errors_by_tail,
    item_factor,
    largest_factor,
    row_variance,
    tail_norm,
)

from fedtally.crypto.keys import Secret
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.privacy.events import Event
from fedtally.privacy.mechanism import rounded_gaussian
from fedtally.recovery import error_model
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.linear_system import Landed
from fedtally.sketch import CountSketch, Schedule, SketchSpec


def test_examples_run():
    outcome = doctest.testmod(curves)
    assert outcome.attempted >= 12
    assert outcome.failed == 0


Z = 4.224679  # at epsilon 1, delta 1e-6 (Balle and Wang 2018): the design study's table, and autodp


EVENT = Event("rounded-gaussian", 16, "zero-out")


SKELLAM = Event("skellam", 16, "zero-out", honest_survivors=1000)


RELEASE = Release(EVENT, 1.0, 1e-6, 1_000_000, 64)


def zipf(exponent, size):
    distribution = np.arange(1, size + 1.0) ** -exponent
    return distribution / distribution.sum()


# ---- medians of normals ----


def exceeds(x, rows):
    """Return the probability that the median of normals exceeds x, directly.

    Odd: of a Beta variable. Even, 2k: given the k-th smallest a, the k larger ones do not all
    exceed -2x - a.
    """
    k = (rows + 1) // 2
    if rows % 2:
        return stats.beta.sf(stats.norm.cdf(x), k, k)

    def both(a):
        density = stats.beta.pdf(stats.norm.cdf(a), k, k + 1) * stats.norm.pdf(a)
        return density * (1 - (stats.norm.cdf(2 * x + a) / stats.norm.cdf(-a)) ** k)

    return integrate.quad(both, -x - 8, -x, epsabs=1e-12, limit=200)[0]


@pytest.mark.parametrize(
    "rows", [1, 2, 3, pytest.param(4, marks=pytest.mark.matrix), 5, 16, 65, 100]
)
def test_factors_are_those_of_direct_integration(rows):
    square = integrate.quad(
        lambda x: 4 * x * exceeds(x, rows), 0, 12 / rows**0.5, epsabs=1e-9, limit=50
    )[0]
    assert item_factor(rows) == pytest.approx(math.sqrt(square), rel=3e-4)
    for candidates in (1, 100, 100_000):
        found = 2 * exceeds(largest_factor(rows, candidates), rows)
        assert (1 - found) ** candidates == pytest.approx(0.5, rel=2e-3)
    assert item_factor(rows, "mean") == pytest.approx(rows**-0.5)
    assert largest_factor(rows, 7, "mean") == pytest.approx(
        largest_factor(1, 7) / rows**0.5, rel=1e-4
    )


def test_factors_that_are_known():
    # the median of two is their mean
    assert item_factor(2) == pytest.approx(math.sqrt(1 / 2), rel=1e-5)
    # by integration
    assert item_factor(3) == pytest.approx(math.sqrt(1 - math.sqrt(3) / math.pi), rel=1e-5)
    # Sarhan and Greenberg 1956
    assert item_factor(5) == pytest.approx(math.sqrt(0.2868336616), rel=1e-5)
    # the limit
    assert item_factor(1023) * 1023**0.5 == pytest.approx(math.sqrt(math.pi / 2), rel=1e-3)
    assert largest_factor(1, 1) == pytest.approx(stats.norm.ppf(0.75), rel=1e-5)
    assert largest_factor(2, 10) == pytest.approx(largest_factor(1, 10) / 2**0.5, rel=1e-4)
    # The study: standard deviations by simulation, to about .002, and expected largest of 10^5,
    # which are 1 % more.
    for rows, one, largest in [
        (5, 1.197, 5.6),
        (7, 1.214, 5.5),
        (15, 1.237, 5.7),
        (16, 1.203, 5.6),
        (65, 1.25, 5.7),
    ]:
        assert item_factor(rows) * rows**0.5 == pytest.approx(one, abs=0.003)
        assert largest_factor(rows, 100_000) * rows**0.5 == pytest.approx(largest, rel=0.03)


@pytest.mark.parametrize(
    ("rows", "fold"), [(1, "median"), (4, "median"), (5, "median"), (5, "mean")]
)
def test_the_largest_is_exceeded_in_half_of_all_cases(rows, fold):
    """A binomial count: 4,000 cases have a standard deviation of 32."""
    drawn = getattr(np, fold)(np.random.default_rng(rows).standard_normal((4000, 50, rows)), axis=2)
    exceeded = np.count_nonzero(np.abs(drawn).max(axis=1) > largest_factor(rows, 50, fold))
    assert abs(exceeded - 2000) < 4 * math.sqrt(4000 / 4)


@pytest.mark.parametrize("rows", [5, 16])
@pytest.mark.parametrize("num_batches", [1, 64])
def test_the_floor_is_what_the_error_model_says_of_noise_alone(rows, num_batches):
    """By its lattice of counts, hundreds of steps long here.
    Joint recovery shrinks what it does not fit, a little.
    """
    release = replace(RELEASE, event=replace(EVENT, rows=rows), epsilon=0.05)
    noise = math.sqrt(release.noise_variance(num_batches))
    nothing = {"width": 1000, "frequencies": [], "candidates": 10_000, "batches": [num_batches]}
    median = errors_by_law(release, recovery="median", **nothing)[num_batches]
    assert median.linf == pytest.approx(noise * largest_factor(rows, 10_000), rel=0.01)
    joint = errors_by_law(release, recovery="joint", **nothing)[num_batches]
    assert 0.9 < joint.linf / (noise * largest_factor(rows, 10_000, "mean")) <= 1.001
    tail = errors_by_tail(release, 1000, 0.0, 10_000, spread=0.0)[num_batches]
    assert tail.linf == pytest.approx(noise * largest_factor(rows, 10_000))
    assert tail.scale == pytest.approx(median.scale, rel=0.01)


# ---- the variance of a row ----


@pytest.mark.parametrize("num_rounds", [1, 10, 64])
def test_batches_concentrate_as_they_are_made(num_rounds):
    for num_batches in range(1, num_rounds + 1):
        sizes = [
            len(rounds)
            for rounds in Schedule.parse(f"batched:{num_batches}").batches_of(num_rounds)
        ]
        assert concentration(num_batches, num_rounds) == pytest.approx(
            sum(n**2 for n in sizes) / num_rounds**2
        )


def test_row_variance_by_hand():
    found = row_variance(RELEASE, 16, 500, 0.006, spread=2e-7)
    assert found == pytest.approx(
        0.006**2 / (500 * 16) + 2e-7 / 500 + 16 * 16 * Z**2 / 1e12, rel=1e-6
    )
    assert row_variance(RELEASE, 16, 500, 0.006) == row_variance(
        RELEASE, 16, 500, 0.006, spread=1e-6
    )
    one_server = row_variance(replace(RELEASE, event=SKELLAM), 16, 500, 0.006, spread=0.0)
    assert one_server == pytest.approx(0.006**2 / (500 * 16) + 64 * 16 * Z**2 / 1e12, rel=1e-6)


def land(held, release, num_batches, width, rng):
    """Return the sums of the releases of one campaign, with noise: hybrid over batches is
    batched."""
    batches = Schedule.parse(f"batched:{num_batches}").batches_of(len(held))
    spec = SketchSpec(release.event.rows, width, "hybrid", num_batches, rng.bytes(32))
    noise = rounded_gaussian(release.noise(num_batches) ** 2)
    sketches = []
    for m, rounds in enumerate(batches):
        sketch = CountSketch(spec, m)
        sketch.add_range(1, held[rounds.start : rounds.stop].sum(axis=0))
        drawn = noise.draw(Secret(rng.bytes(32)), sketch.counters.size)
        sketch.counters += drawn.reshape(sketch.counters.shape)
        sketches.append(sketch)
    return sketches


@pytest.mark.parametrize("num_batches", [1, 3, 5, 12])
def test_row_variance_is_that_of_simulated_rows(num_batches):
    """Mean squares over 60 campaigns: within 5 standard errors, .6 % (12 batches) to 1.9 % (1)
    each.

    No head is left out. On average an item lacks its own share 1/d of the tail, .05 %. With 12
    batches tail, spread and noise are 55, 16 and 29 % of the variance: none can be missing. 5
    batches do not divide 12 rounds.
    """
    size, clients, width = 2000, 12_000, 20
    distribution = zipf(0.7, size)
    release = Release(replace(EVENT, rows=5), 1.0, 1e-6, clients, 12)
    seen = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        held = rng.multinomial(clients // 12, distribution, size=12)
        sketches = land(held, release, num_batches, width, rng)
        truth = held.sum(axis=0) / clients
        landed = Landed(sketches[0].spec, sketches)
        cells, signs = landed.places(np.arange(1, size + 1, dtype=np.uint64))
        sums = landed.frequencies.reshape(-1)[cells + np.arange(signs.shape[2])] * signs
        seen.append(np.mean((sums @ landed.weights - truth[:, None]) ** 2))
    expected = row_variance(
        release,
        num_batches,
        width,
        float(np.linalg.norm(distribution)),
        (1 - distribution @ distribution) / clients,
    )
    error = np.std(seen) / math.sqrt(len(seen))
    assert error < 0.025 * expected
    assert abs(np.mean(seen) - expected) < 5 * error


# ---- the best number of batches ----


@pytest.mark.parametrize(
    ("norm", "num_rounds"),
    [(1e-5, 10_000), (4e-4, 10_000), (0.003, 10_000), (0.006, 10_000), (0.02, 10_000), (0.5, 9)],
)
def test_the_best_by_tail_is_the_better_neighbour_of_the_closed_form(norm, num_rounds):
    """At most 53 batches of 10,000 rounds: their sizes are equal to 1 %, the sum of squares to
    1e-5."""
    release = replace(RELEASE, num_rounds=num_rounds)
    best = best_releases(errors_by_tail(release, 500, norm, 1000, spread=0.0))
    middle = min(max(1e6 * norm / (Z * math.sqrt(16 * 500)), 1.0), num_rounds)
    variances = {
        m: norm**2 / (500 * m) + m * 16 * Z**2 / 1e12
        for m in (math.floor(middle), math.ceil(middle))
    }
    assert best.num_batches == min(variances, key=variances.get)
    assert best.error.linf <= min(best.of_one.linf, best.of_all.linf)


def test_gains_over_both_ends_are_as_predicted():
    """(A + B) / (2 sqrt(A B)) and (A / M + B M) / (2 sqrt(A B)) in variance, at an m* that is a
    power of two."""
    b = 16 * Z**2 / 1e12
    norm = 16 * math.sqrt(1000 * b)  # so that m* = 16
    best = best_releases(errors_by_tail(RELEASE, 1000, norm, 1000, spread=0.0))
    a = norm**2 / 1000
    assert best.num_batches == 16
    assert (best.of_one.linf / best.error.linf) ** 2 == pytest.approx(
        (a + b) / (2 * math.sqrt(a * b)), rel=1e-5
    )
    assert (best.of_all.linf / best.error.linf) ** 2 == pytest.approx(
        (a / 64 + 64 * b) / (2 * math.sqrt(a * b)), rel=1e-5
    )


@pytest.mark.parametrize("exponent", [1.1, 2.0])
@pytest.mark.parametrize("recovery", ["joint", "median"])
def test_one_server_uses_all_rounds(exponent, recovery):
    release = Release(replace(SKELLAM, rows=9), 1.0, 1e-6, 1_000_000, 64)
    distribution = zipf(exponent, 20_000)
    curve = errors_by_law(release, 500, distribution, recovery=recovery)
    best = best_releases(curve)
    assert best.error.linf >= best.of_all.linf / 1.01
    assert (
        best_releases(
            errors_by_tail(release, 500, tail_norm(distribution, 500), 20_000)
        ).num_batches
        == 64
    )


def test_of_equal_errors_the_most_batches_are_taken():
    one, two = (error_model.Prediction(1.0, 0.0, linf) for linf in (3.0, 2.0))
    assert best_releases({1: one, 4: two, 8: two, 16: one}) == (8, two, one, one)
    with pytest.raises(InvalidInputError, match="at least one number of batches"):
        best_releases({})


def test_unequal_batches_are_predicted_as_fewer_equal_ones():
    distribution = zipf(1.1, 5000)
    release = replace(RELEASE, num_rounds=12)
    # 8: four of 2 and four of 1, 20/144 = 1/7.2
    curve = errors_by_law(release, 500, distribution, batches=[8, 6])
    assert list(curve) == [1, 6, 8, 12]
    expected = error_model.predict(
        distribution,
        rows=16,
        width=500,
        schedule="hybrid",
        num_rounds=7,
        num_clients=1_000_000,
        noise=4 * Z * math.sqrt(8 / 7),
    )
    assert curve[8].linf == pytest.approx(expected.linf, rel=1e-5)


def test_more_noise_or_fewer_clients_are_never_better():
    distribution = zipf(1.3, 5000)
    for name, values in (
        ("epsilon", (0.25, 1.0, 4.0)),
        ("num_clients", (50_000, 200_000, 1_000_000)),
    ):
        found = [
            errors_by_law(replace(RELEASE, **{name: value}), 300, distribution) for value in values
        ]
        for worse, better in itertools.pairwise(found):
            assert all(better[m].linf <= 1.001 * worse[m].linf for m in better)


def test_tail_norm_leaves_out_the_head():
    distribution = np.random.default_rng(0).permutation(zipf(1.2, 1000))
    assert tail_norm(distribution, 100) == pytest.approx(
        math.sqrt(np.sum(np.sort(distribution)[:-30] ** 2))
    )
    assert tail_norm(distribution, 10_000) == 0.0
    assert tail_norm(distribution, 1) == pytest.approx(np.linalg.norm(distribution))


def test_the_best_is_within_a_factor_of_two_of_the_simulated():
    """Median of 7 campaigns of 5,000 items, 9 x 200, 32 rounds, at powers of two.

    The joint error is the largest, of relative standard deviation .12 in a campaign, .06 in the
    median of 7; a factor of four off the best the error is 1.46 times as large. For the paper's
    decoder it is the scale that m* is for.
    """
    size, clients, width, num_rounds = 5000, 300_000, 200, 32
    distribution = zipf(1.1, size)
    release = Release(replace(EVENT, rows=9), 1.0, 1e-6, clients, num_rounds)
    batches = [1, 2, 4, 8, 16, 32]
    seen = {m: [] for m in batches}
    for seed in range(7):
        rng = np.random.default_rng(seed)
        held = rng.multinomial(
            clients // num_rounds, rng.permutation(distribution), size=num_rounds
        )
        for m, found in seen.items():
            sketches = land(held, release, m, width, rng)
            decoders = JointDecoder(sketches, IntegerRange(1, size)), MedianDecoder(sketches)
            errors = [np.abs(d.range(1, size) - held.sum(axis=0)) / held.sum() for d in decoders]
            found.append([errors[0].max(), np.quantile(errors[1], 0.95)])
    joint, median = ({m: np.median(seen[m], axis=0)[i] for m in batches} for i in range(2))
    by_law = best_releases(errors_by_law(release, width, distribution))
    by_tail = best_releases(errors_by_tail(release, width, tail_norm(distribution, width), size))
    for best, simulated in ((by_law, joint), (by_tail, median)):
        least = min(simulated, key=simulated.get)
        assert 1 < least < 32  # so that the test is of something
        assert least / 2 <= best.num_batches <= 2 * least
    for m in batches:
        assert errors_by_law(release, width, distribution, batches=[m])[m].linf == pytest.approx(
            joint[m], rel=0.3
        )


# ---- bad input ----


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: row_variance(RELEASE, 1, 0, 0.1), "width must be at least 1"),
        (lambda: row_variance(RELEASE, 1, 9, -0.1), "tail_norm must be at least 0"),
        (lambda: row_variance(RELEASE, 1, 9, 0.1, spread=-1.0), "spread must be at least 0"),
        (lambda: errors_by_tail(RELEASE, 9, 0.1, 0), "candidates must be at least 1"),
        (
            lambda: errors_by_tail(RELEASE, 9, 0.1, 9, fold="mode"),
            "fold must be median or mean, got 'mode'",
        ),
        (lambda: errors_by_law(RELEASE, 9, [0.7, 0.7]), "sum to at most 1"),
        (lambda: errors_by_law(RELEASE, 9, [0.7], batches=[65]), "num_batches must be at most 64"),
        (
            lambda: errors_by_law(RELEASE, 9, [0.7], recovery="mean"),
            f"recovery must be {DECODER_NAMES}",
        ),
        (lambda: tail_norm([0.5], 0), "width must be at least 1"),
        (lambda: item_factor(0), "rows must be at least 1"),
        (lambda: largest_factor(1, 0), "candidates must be at least 1"),
    ],
)
def test_bad_questions_are_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()
