"""Geometric noise: its draws, what it costs without a delta, and beside other noise."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from cases import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr, ndtri

from fedtally.base.encoding import Encoding
from fedtally.crypto.keys import Secret
from fedtally.errors import InvalidInputError
from fedtally.privacy import accounting, geometric
from fedtally.privacy.accounting import Composition, Method
from fedtally.privacy.budget import Cap, Charge, Grant, OverspentError, check_spend
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.config import propose as propose_privacy
from fedtally.privacy.events import Event, NoiseBy
from fedtally.privacy.gaussian import bound_of_pure, gaussian_delta
from fedtally.privacy.geometric import Geometric, exceeded, half, rate_of, variance_of
from fedtally.studies.noise_checks import Distribution

P_VALUE = 1e-6  # below it a test of a sample fails
DELTA = 1e-6


def event(relation: str = "zero-out", **more: Any) -> Event:
    given: dict[str, Any] = {"variance": variance_of(0.5), "encoding": "histogram"}
    return Event("geometric", 1, relation, **(given | more))


def probability(rate: float, size: int) -> float:
    """Return the probability of a draw, by its definition."""
    return math.tanh(rate / 2) * math.exp(-rate * abs(size))


# ---- the rate ----


@given(st.floats(1e-5, 1e8))
def test_a_rate_is_rounded_towards_more_noise(variance: float) -> None:
    rate = rate_of(variance)
    assert (rate * 2**40).denominator == 1
    assert variance_of(float(rate)) >= variance * (1 - 1e-12)
    assert variance_of(float(rate) + 2**-40) <= variance * (1 + 1e-12)


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_more_variance_is_a_smaller_rate(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert rate_of(low) >= rate_of(high) > 0


@pytest.mark.parametrize("rate", [0.01, 0.5, 2.0])
def test_tails_are_sums_of_the_probabilities(rate: float) -> None:
    variance = variance_of(rate)
    for size in (0, 1, 5, 40):
        summed = 2 * sum(probability(rate, k) for k in range(size + 1, size + math.ceil(50 / rate)))
        assert float(exceeded(variance, size)) == pytest.approx(summed, rel=1e-6)
    for share in (0.9, 0.5, 0.05, 1e-6, 1e-15):
        found = half(variance, share)
        assert float(exceeded(variance, found)) <= share
        assert found == 0 or float(exceeded(variance, found - 1)) > share
    law = Distribution.discrete_laplace(variance)
    assert law.pmf[3] == pytest.approx(probability(rate, 3), rel=1e-6)


# ---- draws ----


def sample(rate: float, seed: int, size: int) -> Any:
    return Geometric(variance_of(rate)).draw(Secret(seed.to_bytes(32, "little")), size)


def p_value(draws: Any, rate: float) -> float:
    """Return the p-value of Pearson's chi-square.

    Sizes of fewer than 20 expected draws are joined at each end.
    """
    last = next(k for k in itertools.count() if len(draws) * probability(rate, k + 1) < 20)
    inner = [len(draws) * probability(rate, k) for k in range(-last, last + 1)]
    beyond = len(draws) * float(exceeded(variance_of(rate), last)) / 2
    expected = np.array([beyond, *inner, beyond])
    found = np.bincount(np.clip(draws, -last - 1, last + 1) + last + 1, minlength=len(expected))
    return float(stats.chi2.sf(((found - expected) ** 2 / expected).sum(), len(expected) - 1))


@pytest.mark.parametrize("rate", [0.05, 0.5, 1.0, 3.0])
def test_draws_have_the_distribution(rate: float) -> None:
    """Right at p > 1e-6; for a rate 3 % larger the same draws have p < 1e-6."""
    draws = sample(rate, 1, 400_000)
    assert p_value(draws, rate) > P_VALUE
    assert p_value(draws, 1.03 * rate) < P_VALUE


def test_far_draws_are_as_frequent_as_they_must_be() -> None:
    """Beyond 9 mean sizes: within 5 standard errors of the expected number, 180 of a million."""
    draws = sample(1.0, 2, 1_000_000)
    expected = 1e6 * float(exceeded(variance_of(1.0), 8))
    assert abs(np.count_nonzero(np.abs(draws) > 8) - expected) < 5 * math.sqrt(expected)


def test_a_key_serves_one_stream() -> None:
    key = Secret(bytes(32))
    first = Geometric(8.0).draw(key, 100)
    with pytest.raises(InvalidInputError, match="was wiped"):
        Geometric(8.0).draw(key, 100)
    assert np.array_equal(first, Geometric(8.0).draw(Secret(bytes(32)), 100))
    other = Geometric(8.0).draw(Secret(bytes([1]) * 32), 100)
    assert np.count_nonzero(first == other) < 60  # equal with probability 0.13 each


def test_no_word_serves_twice() -> None:
    """Beyond the words of one key too: equal words have a probability of 2^-33."""
    bits = geometric._Bits(Secret(bytes(32)))
    words = np.concatenate([bits.words(5), bits.words(3 * geometric._WORDS), bits.words(7)])
    assert len(words) == len(np.unique(words)) == 3 * geometric._WORDS + 12
    bits.wipe()
    with pytest.raises(InvalidInputError, match="was wiped"):
        bits.words(2 * geometric._WORDS)


class Told(geometric._Bits):
    """Bits that are told."""

    def __init__(self, *words: int) -> None:
        self.told = list(words)

    def words(self, number: int) -> Any:
        found, self.told = self.told[:number], self.told[number:]
        return np.array(found, np.uint64)


def test_numbers_below_a_bound_are_uniform() -> None:
    # 2^64 is 1 more than a multiple of 3: the largest word would favour 0
    assert Told(2**64 - 1, 4, 5).below(3, 2).tolist() == [2, 1]
    assert Told(2**64 - 1).below(2**63, 1).tolist() == [2**63 - 1]
    assert Told(6, 7).below(1, 2).tolist() == [0, 0]


def test_an_event_happens_after_an_even_number_of_steps() -> None:
    """Of e^-1 with denominator 1: numbers below 1, 2, 3, ... until the first that is not 0."""
    happens = lambda *words: geometric._happens(Told(*words), np.array([1], np.uint64), 1).item()  # noqa: E731
    assert [happens(0, 1), happens(0, 0, 1), happens(0, 0, 0, 1)] == [False, True, False]
    assert geometric._happens(Told(0), np.array([0], np.uint64), 5).item()


def test_zero_has_one_sign() -> None:
    """u = 0 happens at once, v = 0 as one step is followed by none, and the sign is told."""
    unit, rate = geometric._UNIT, Fraction(1)
    for sign, expected in ((0, [0]), (1, [])):
        told = Told(0, 0, 0, unit, sign)  # u; not below 0; below t; not below; the sign
        assert geometric._attempts(told, rate, 1).tolist() == expected


# ---- what it costs without a delta ----


@pytest.mark.parametrize(
    ("relation", "more", "distance"),
    [
        ("zero-out", {}, 1),
        ("replace-one", {}, 2),
        ("add-remove", {}, 2),
        ("zero-out", {"max_items": 3}, 3),
        ("zero-out", {"participations": 4, "per_release": 4}, 4),
        ("replace-one", {"participations": 5, "per_release": 2}, 10),
        ("add-remove", {"participations": 3, "per_release": 3, "max_items": 2}, 9),
    ],
)
def test_epsilon_without_a_delta_is_the_rate_times_the_distance(
    relation: str, more: dict[str, Any], distance: int
) -> None:
    found = event(relation, **more)
    expected = float(rate_of(found.noise_variance) * distance)
    assert expected <= accounting.pure_epsilon(found) < expected * (1 + 1e-14)
    guarantee = accounting.epsilon(found, 0.0)
    assert (guarantee.delta, guarantee.method) == (0.0, Method.BASIC)
    assert guarantee.epsilon == accounting.pure_epsilon(found)


@given(
    st.lists(st.integers(-3, 3), min_size=1, max_size=3),
    st.lists(st.integers(-9, 9), min_size=3, max_size=3),
    st.floats(0.05, 3.0),
)
def test_no_outcome_is_likelier_than_that(shift: list[int], at: list[int], rate: float) -> None:
    """Of sums that differ so: by the definition of the noise, for any outcome."""
    loss = sum(
        math.log(probability(rate, x - s) / probability(rate, x))
        for x, s in zip(at, shift, strict=False)
    )
    assert abs(loss) <= rate * sum(map(abs, shift)) + 1e-9


@pytest.mark.parametrize("number", [1, 7])
@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
def test_with_a_delta_it_costs_what_others_say(number: int, relation: str) -> None:
    """By dp-accounting's own discrete Laplace mechanism, for shifts by 1."""
    from dp_accounting.pld import privacy_loss_distribution as pld

    found = event(relation, participations=number)
    rate = float(rate_of(found.noise_variance))
    exact = pld.from_discrete_laplace_mechanism(
        rate, sensitivity=1, value_discretization_interval=rate / 64
    ).self_compose(number * (2 if relation == "replace-one" else 1))
    for delta in (1e-9, 1e-6, 1e-2):
        expected = exact.get_epsilon_for_delta(delta)
        assert accounting.epsilon(found, delta).epsilon == pytest.approx(expected, rel=2e-4)
    at = 0.4 * accounting.pure_epsilon(found)
    assert accounting.delta(found, at).delta == pytest.approx(
        exact.get_delta_for_epsilon(at), rel=2e-3
    )


def test_a_shift_by_more_costs_less_than_the_same_epsilon_of_a_coin() -> None:
    """Brute force over all outcomes, with a delta, for a client in three rounds of a release."""
    found = event(participations=3, per_release=3)
    rate = float(rate_of(found.noise_variance))
    for epsilon in (0.0, 0.7, 1.4):
        exact = sum(
            max(0.0, probability(rate, x - 3) - math.exp(epsilon) * probability(rate, x))
            for x in range(-150, 150)
        )
        assert exact * (1 - 1e-9) <= accounting.delta(found, epsilon).delta <= exact * 1.001
    assert accounting.delta(found, 1.6).delta == 0.0


def test_many_releases_cost_less_with_a_delta() -> None:
    found = event(participations=400, variance=variance_of(0.01))
    assert accounting.epsilon(found, 0.0).epsilon == pytest.approx(4.0, rel=1e-6)
    assert accounting.epsilon(found, DELTA).epsilon < 1.0


@pytest.mark.parametrize("target", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("relation", ["zero-out", "replace-one", "add-remove"])
def test_calibration_meets_its_target(target: float, relation: str) -> None:
    found = event(relation)
    variance = accounting.calibrate(found, target, 0.0)
    cost = accounting.pure_epsilon(replace(found, variance=variance))
    assert target * (1 - 1e-5) < cost <= target


def test_half_the_error_of_the_gaussian() -> None:
    """The largest of 1,000 counters, exceeded in one of twenty campaigns, at epsilon 1."""
    each = -math.expm1(math.log1p(-0.05) / 1000)
    pure = propose_privacy(
        epsilon=1,
        delta=DELTA,
        rows=1,
        width=1000,
        encoding=Encoding.HISTOGRAM,
        mechanism="geometric",
    )
    normal = propose_privacy(
        epsilon=1, delta=DELTA, rows=1, width=1000, encoding=Encoding.HISTOGRAM
    )
    ratio = -float(ndtri(each / 2)) * normal.stddev / half(pure.event.noise_variance, each)
    assert 1.7 < ratio < 2.2


# ---- the Gaussian that dominates it ----


@pytest.mark.parametrize("epsilon", [1e-4, 0.1, 0.999, 1.0, 3.0, 12.0])
def test_the_gaussian_dominates_a_coin_and_no_smaller_one_does(epsilon: float) -> None:
    mu = bound_of_pure(epsilon)
    at = np.linspace(-epsilon, epsilon, 1001)
    # the hockey-stick divergence of a coin that shows the truth e^epsilon times as often as not
    coin = (np.exp(epsilon) - np.exp(at)) / (1 + np.exp(epsilon))
    assert (gaussian_delta(mu, at) >= coin - 1e-12).all()
    # at 0 both are total variations: 2 Phi(mu / 2) - 1 and tanh(epsilon / 2)
    assert 2 * ndtr(mu / 2) - 1 == pytest.approx(math.tanh(epsilon / 2), rel=1e-6)
    assert (gaussian_delta(0.999 * mu, at) < coin).any()


def test_zero_concentrated_privacy_is_half_the_square() -> None:
    assert accounting.concentrated(event()).rho == pytest.approx(0.5**2 / 2, rel=1e-6)
    assert accounting.concentrated(event()).delta == 0.0
    large = event(variance=variance_of(12.0))
    assert accounting.concentrated(large).rho < 12.0**2 / 2


def test_a_table_of_losses_ends_at_epsilon() -> None:
    table = accounting.privacy_loss(event())
    # no loss is above it: half a coin's loss has the probability e^epsilon / (1 + e^epsilon)
    assert table.loss[-2] == accounting.pure_epsilon(event()) == pytest.approx(0.5, rel=1e-12)
    assert table.loss[-1] == math.inf and table.probability[-1] == table.delta[-2] == 0.0
    assert table.probability[-2] == pytest.approx(math.exp(0.5) / (1 + math.exp(0.5)), rel=1e-6)
    assert float(np.interp(0.25, table.loss[:-1], table.delta[:-1])) == pytest.approx(
        (math.exp(0.5) - math.exp(0.25)) / (1 + math.exp(0.5)), rel=1e-2
    )


# ---- in a ledger ----


def gaussian(**more: Any) -> Event:
    return Event("rounded-gaussian", 16, "zero-out", **({"variance": 16 * 4.2247**2} | more))


@pytest.mark.parametrize("number", [2, 3, 9])
def test_their_epsilons_add_up(number: int) -> None:
    for delta in (0.0, DELTA):
        total = Composition.of([event()] * number, delta).guarantee
        assert total.epsilon == pytest.approx(0.5 * number, rel=1e-9)
        assert (total.delta, total.method) == (delta, Method.BASIC)
        assert total.epsilon >= number * accounting.pure_epsilon(event())


def test_many_small_ones_compose_as_gaussians() -> None:
    """Where that is less: 300 of epsilon 0.02 make 6, and as Gaussians less than a third."""
    small = event(variance=variance_of(0.02))
    total = Composition.of([small] * 300, DELTA).guarantee
    assert total.method is Method.GAUSSIANS
    assert total.epsilon < 2.1 < accounting.pure_epsilon([small] * 300)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_beside_other_noise_they_compose_as_gaussians(place: int) -> None:
    order = [event(), event()]
    order.insert(place, gaussian())
    total = Composition.of(order, DELTA)
    mu = math.hypot(1 / 4.2247, bound_of_pure(0.5), bound_of_pure(0.5))
    assert total.square == pytest.approx(mu**2, rel=1e-6)
    assert total.pure == math.inf and total.guarantee.method is Method.GAUSSIANS
    assert total.guarantee.epsilon > accounting.epsilon(gaussian(), DELTA).epsilon


def test_one_campaign_with_other_noise_costs_what_its_losses_compose_to() -> None:
    """A fixed list: loss distributions hold, and cost less than both."""
    found = accounting.epsilon([event(), gaussian()], DELTA)
    assert found.method is Method.LOSS_DISTRIBUTION
    assert found.epsilon <= 0.5 + accounting.epsilon(gaussian(), DELTA).epsilon


def test_a_total_is_kept_and_read_back() -> None:
    pure = Composition.of([event(), event()], DELTA)
    assert Composition.from_dict(pure.to_dict(), event(), DELTA) == pure
    mixed = Composition.of([event(), gaussian()], DELTA)
    assert "pure" not in mixed.to_dict()  # as it was before there was geometric noise
    assert Composition.from_dict(mixed.to_dict(), gaussian(), DELTA) == mixed
    for wrong in (-1.0, math.inf, math.nan, 1, None):
        with pytest.raises(InvalidInputError, match="sums of a composition"):
            Composition.from_dict(pure.to_dict() | {"pure": wrong}, event(), DELTA)


def test_a_grant_pays_for_as_many_as_add_up_to_it() -> None:
    grant, charges = Grant("phones", 1.5, DELTA), []
    each = event(variance=accounting.calibrate(event(), 0.5, 0.0))
    for number in range(3):
        charge = Charge("phones", f"plan-{number}", 0, each)
        assert check_spend(grant, charges, charge) is not None
        charges.append(charge)
    for more in (event(variance=variance_of(0.1)), gaussian()):
        with pytest.raises(OverspentError, match=r"epsilon 1\.5 was granted"):
            check_spend(grant, charges, Charge("phones", "one more", 0, more))


def test_a_grant_without_a_delta_pays_for_geometric_noise_alone() -> None:
    grant, each = Grant("phones", 1.0, 0.0), event(variance=variance_of(0.4))
    first = Charge("phones", "first", 0, each)
    assert check_spend(grant, [], first) is not None
    for before in ([], [first]):
        with pytest.raises(InvalidInputError, match="delta must be above 0"):
            check_spend(grant, before, Charge("phones", "other", 0, gaussian()))
    # a total goes on one by one, as in a ledger: then it must be refused there, too
    total = accounting.Composition.of([each], 0.0)
    assert total.plus(each).guarantee.epsilon == pytest.approx(0.8)
    with pytest.raises(InvalidInputError, match="delta must be above 0"):
        total.plus(gaussian())
    with pytest.raises(OverspentError, match="epsilon 1 was granted"):
        check_spend(grant, [first, Charge("phones", "2", 0, each)], Charge("phones", "3", 0, each))
    assert Cap(1, 0).delta == 0.0


# ---- what is refused ----


@each_case(
    ("call", "said"),
    [
        (lambda: event(encoding="sketch"), "geometric noise is for a histogram"),
        (lambda: event(trust="distributed"), "added by an aggregator, got distributed"),
        (lambda: event(total_variation=1e-9), "total_variation must be 0"),
        (lambda: event(honest_survivors=3), "geometric noise is drawn at once"),
        (lambda: accounting.epsilon(gaussian(), 0.0), "delta must be above 0 but where all"),
        (lambda: accounting.epsilon([event(), gaussian()], 0.0), "take the mechanism geometric"),
        (lambda: accounting.calibrate(gaussian(), 1.0, 0.0), "delta must be above 0 but"),
        (lambda: accounting.epsilon(event(), False), "delta must be a number"),
        (lambda: accounting.realised(event(), 3, 1), "geometric noise is what it was planned"),
        (lambda: terms(delta=DELTA), "delta must be 0 with geometric noise"),
        (lambda: terms(delta=False), "delta must be 0 with geometric noise"),
        (lambda: terms(event=gaussian()), "delta must be above 0 and below 1"),
        (lambda: terms(epsilon=0.4), "above the epsilon 0.4 of the plan"),
        (lambda: terms(event=event(variance=1e-8)), "variance of the noise must be"),
        (
            lambda: propose_privacy(
                epsilon=1, delta=0.0, rows=1, width=9, encoding=Encoding.HISTOGRAM
            ),
            "delta must be above 0 and below 1",
        ),
    ],
)
def test_refused(call: Any, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        call()


def terms(**changed: Any) -> PrivacyConfig:
    given: dict[str, Any] = {"epsilon": 0.5, "delta": 0.0, "event": event(variance=8.0)}
    return PrivacyConfig(**(given | changed))


def test_terms_are_read_as_they_were_written() -> None:
    assert PrivacyConfig.from_dict(terms().to_dict()) == terms()
    assert terms().guarantee.delta == terms().replace_one.delta == 0.0
    assert terms().replace_one.epsilon == pytest.approx(2 * terms().guarantee.epsilon)
    assert isinstance(terms().noise(), Geometric)
    assert terms().noised_by is NoiseBy.AGGREGATOR
    # a client's demand may have a delta: what is guaranteed without one is guaranteed with it
    assert terms().proven(terms().event.relation, DELTA).epsilon <= terms().guarantee.epsilon


@settings(max_examples=20)
@given(st.floats(0.01, 20.0), st.sampled_from(["zero-out", "replace-one", "add-remove"]))
def test_proposed_terms_guarantee_what_was_asked(epsilon: float, relation: str) -> None:
    found = propose_privacy(
        epsilon=epsilon,
        delta=DELTA,
        rows=1,
        width=9,
        relation=relation,
        encoding=Encoding.HISTOGRAM,
        mechanism="geometric",
    )
    assert found.guarantee.epsilon <= epsilon and found.delta == 0.0
    assert found.guarantee.epsilon > 0.999 * min(epsilon, 10.0)
