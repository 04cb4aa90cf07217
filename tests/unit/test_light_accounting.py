"""An accountant without its libraries: its epsilons beside those of SciPy and dp-accounting."""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.special as scipy
from cases import each_case

from fedtally.errors import InvalidInputError, MissingExtraError
from fedtally.privacy import accounting, gaussian, library, light, loss_distribution
from fedtally.privacy.accounting import Composition
from fedtally.privacy.config import PrivacyConfig, _bound, propose
from fedtally.privacy.events import Event, Mechanism
from fedtally.privacy.policy import PrivacyPolicy

# How far below the one with the libraries an epsilon may be, by delta: of itself, or as it is
# where it is below 1. It is what the libraries add for rounding, and docs/agent.md has the numbers.
BELOW = {
    1e-3: 1e-9,
    1e-5: 1e-9,
    1e-6: 3e-9,
    1e-7: 3e-8,
    1e-8: 3e-7,
    1e-9: 2e-6,
    1e-10: 2e-5,
    1e-12: 2e-3,
}
# More than the libraries add: 1e-15 of delta for each pair of distributions that is composed, and
# as much where transforms cut off tails and err.
ADDED = 3e-15
OVERFLOW = 700.0  # above it dp-accounting's e^-epsilon is no float, and it rounds up to the grid
VARIANCES = (0.3, 9.0, 500.0, 2e4, 2e7)
MADE = (
    gaussian.gaussian_curve,
    loss_distribution._renyi,
    loss_distribution._composed,
    loss_distribution._distribution,
    accounting._guarantee_alone,
    _bound,
)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what runs a function without the libraries."""

    def run(ask: Any) -> Any:
        forget()
        with monkeypatch.context() as patch:
            for name in ("special", "gaussian", "grids"):
                patch.setattr(library, name, lambda: light)
            try:
                return ask()
            finally:
                forget()

    forget()
    return run


def forget() -> None:
    for one in MADE:
        one.cache_clear()


def costs(events: list[Event], less: float = 0.0) -> list[float]:
    """Return what the events cost at each delta: as they are, and as an owner's record counts.

    Args:
        events: of all campaigns.
        less: what each delta is less by.
    """
    found = []
    for delta in BELOW:
        for ask in (accounting.epsilon, Composition.of):
            try:
                told: Any = ask(events, delta - less)
                found.append(getattr(told, "guarantee", told).epsilon)
            except InvalidInputError:  # secure sums and samplers use delta up
                found.append(math.nan)
    return found


def added(events: list[Event]) -> float:
    """Return more than what the libraries add to a delta of these events."""
    return ADDED * (1 + loss_distribution._folds(events).total())


def cases(mechanism: str) -> list[list[Event]]:
    """Return the events of one plan, or of two, with this mechanism."""
    more: dict[str, Any] = {
        "skellam": {"honest_survivors": 90},
        "rounded-gaussian": {},
        "geometric": {"encoding": "histogram"},
    }[mechanism]
    rows = (1,) if mechanism == "geometric" else (1, 5)
    events = [
        Event(mechanism, r, relation, variance=v, participations=p, **more)
        for v, relation, r, p in itertools.product(
            VARIANCES, ("zero-out", "replace-one"), rows, (1, 6)
        )
    ]
    if mechanism != "geometric":  # a clip, and a histogram of several items
        events += [
            Event(mechanism, 5, "zero-out", variance=v, max_items=4, clip_norm=5.0, **more)
            for v in VARIANCES
        ]
    events += [
        Event(mechanism, 1, "zero-out", variance=v, max_items=4, **more | {"encoding": "histogram"})
        for v in VARIANCES
    ]
    return [[event] for event in events] + [[event] * 2 for event in events[::3]]


@pytest.mark.parametrize("ask", [lambda e: accounting.delta(e, 1.0), accounting.privacy_loss])
def test_what_only_the_libraries_compute_is_refused_by_name(ask: Any, alone: Any) -> None:
    event = Event("skellam", 5, "zero-out", variance=89.24, honest_survivors=100)
    with pytest.raises(MissingExtraError, match="needs dp-accounting: pip install fedtally"):
        alone(lambda: ask(event))


@pytest.mark.parametrize("mechanism", ["skellam", "rounded-gaussian", "geometric"])
def test_epsilons_are_those_with_the_libraries_but_for_what_these_add(
    mechanism: str, alone: Any
) -> None:
    """Some 2,000 epsilons in all: none is above, and none below by more than they add."""
    asked = cases(mechanism)
    with_them = np.array([costs(one) for one in asked])
    without = np.array(alone(lambda: [costs(one) for one in asked]))
    at_less = np.array(alone(lambda: [costs(one, added(one)) for one in asked]))
    assert np.array_equal(np.isnan(with_them), np.isnan(without))
    assert np.array_equal(np.isinf(with_them), np.isinf(without))
    known = np.isfinite(with_them)
    assert known.sum() > 300
    assert (without[known] <= with_them[known]).all()
    known &= with_them < OVERFLOW
    scale = np.maximum(1.0, with_them)
    below = np.where(known, (with_them - without) / scale, 0.0)
    assert (below <= np.repeat(list(BELOW.values()), 2)).all(), below.max(axis=0)
    known &= np.isfinite(at_less)
    assert known.sum() > 300
    assert (with_them[known] <= at_less[known] + 1e-9 * scale[known]).all()


def test_an_epsilon_has_a_margin_for_rounding_and_none_is_above_that_with_the_libraries(
    alone: Any,
) -> None:
    def ask() -> float:
        return gaussian.gaussian_curve(0.25, accounting.Method.ANALYTIC_GAUSSIAN).epsilon(1e-6)

    found = light.get_epsilon_gaussian(4.0, 1e-6)
    # searches err by 1e-10
    assert found * (1 + 9e-9) < alone(ask) < ask() < found * (1 + 1.2e-8)


def test_a_campaign_without_delta_costs_what_it_costs(alone: Any) -> None:
    events = [Event("geometric", 1, "zero-out", variance=v, encoding="histogram") for v in (1, 9)]
    assert alone(lambda: accounting.epsilon(events, 0.0)) == accounting.epsilon(events, 0.0)


def test_a_plan_for_a_hundred_million_clients_is_taken(alone: Any) -> None:
    """Its epsilon is 1 up to the last digits, and its delta 1e-9."""
    event = Event(
        "skellam",
        16,
        "zero-out",
        variance=482.7482418639053,
        honest_survivors=1800,
        total_variation=2.6e-26,
        trust="distributed",
    )
    kept = PrivacyConfig(epsilon=1.0, delta=1e-9, event=event)
    assert alone(lambda: replace(kept)) == kept
    less = replace(event, variance=482.74)
    for ask in (alone, lambda refuse: refuse()):
        with pytest.raises(InvalidInputError, match="guarantee less$"):
            ask(lambda: replace(kept, event=less))


@each_case("delta", [1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-11, 1e-12])
def test_an_owner_who_allows_just_what_a_plan_costs_takes_it(delta: float, alone: Any) -> None:
    """Plans are made with the libraries, and checked without them."""
    kinds: list[dict[str, Any]] = [{"rows": 5}, {"rows": 1, "participations": 6}]
    if delta > 1e-11:  # secure sums take 1e-12 of it
        kinds.append({"rows": 16, "honest_survivors": 1800, "trust": "distributed"})
    plans = [propose(epsilon=1.0, delta=delta, width=1000, **kind) for kind in kinds]
    allowed = [plan.guarantee.epsilon for plan in plans]

    def check() -> None:
        for plan, epsilon in zip(plans, allowed, strict=True):
            again = PrivacyConfig.from_dict(plan.to_dict())
            PrivacyPolicy(epsilon=epsilon, delta=delta, trust="central").check(again)

    alone(check)


# ---- each function beside the one that it stands in for ----


def worst(found: Any, exact: Any) -> float:
    """Return the largest error of numbers, relative to the exact ones."""
    return float(np.max(np.abs(np.asarray(found) - exact) / np.abs(exact)))


def test_normal_functions_are_those_of_scipy() -> None:
    x = np.concatenate([np.linspace(-37, 37, 4001), [-12.0, -11.999]])
    assert worst(light.ndtr(x), scipy.ndtr(x)) < 1e-12
    x = np.concatenate([-np.geomspace(1e-6, 1e5, 4001), np.geomspace(1e-6, 30, 4001)])
    assert worst(light.log_ndtr(x), scipy.log_ndtr(x)) < 1e-11
    some = x[::40]
    assert worst([light._log_ndtr(float(one)) for one in some], scipy.log_ndtr(some)) < 1e-11


def test_inverse_functions_are_those_of_scipy() -> None:
    p = np.concatenate([np.geomspace(1e-300, 0.5, 500), 1 - np.geomspace(1e-12, 0.5, 500)])
    assert worst([light.erfinv(float(one)) for one in p], scipy.erfinv(p)) < 1e-8
    small = p[p < 0.99]
    assert worst([light.erfinv(float(one)) for one in small], scipy.erfinv(small)) < 1e-12
    e = np.geomspace(1, 500, 200)
    found = [light.ndtri(light.expit(-float(one))) for one in e]
    assert worst(found, scipy.ndtri(scipy.expit(-e))) < 1e-12
    assert light.erfinv(1.0) == math.inf


def test_bessel_functions_are_those_of_scipy() -> None:
    v = np.geomspace(1e-6, 1e12, 500)
    assert worst([light.i0e(float(one)) for one in v], scipy.i0e(v)) < 1e-14
    for variance in (1e-300, 1e-6, 0.3, 4.0, 30.0, 31.0, 1e4):
        k = np.arange(400.0)
        exact = scipy.ive(k, variance)
        kept = exact > 1e-290
        assert worst(light.ive(k, variance)[kept], exact[kept]) < 1e-11


def test_sums_of_exponentials_do_not_overflow() -> None:
    terms, weights = np.array([1000.0, 1001.0, -1000.0]), np.array([0.0, 2.0, 1.0])
    assert light.logsumexp(terms) == pytest.approx(scipy.logsumexp(terms), rel=1e-15)
    exact = scipy.logsumexp(terms, b=weights)
    assert light.logsumexp(terms, b=weights) == pytest.approx(exact, rel=1e-15)


@each_case(
    ("mu", "delta"),
    [(mu, delta) for mu in (1e-3, 0.1, 1.0, 4.0, 30.0) for delta in (1e-12, 1e-6, 0.1)],
)
def test_epsilon_of_a_gaussian_is_that_of_dp_accounting(mu: float, delta: float) -> None:
    from dp_accounting import get_epsilon_gaussian

    found = light.get_epsilon_gaussian(1 / mu, delta)
    assert found == pytest.approx(float(get_epsilon_gaussian(1 / mu, delta)), rel=1e-10, abs=1e-11)


def grid_of(library: Any, mu: float, step: float = 0.01) -> Any:
    """Return a Gaussian's losses on a grid."""
    loss = loss_distribution._normal_loss(loss_distribution._Normal(mu))
    ends = math.ceil(loss.largest / step)
    deltas = loss.deltas(step * np.arange(-ends, ends + 1.0))
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    made = library.create_pmf_pessimistic_connect_dots_fixed_gap(step, -ends, ends, deltas)
    return made.to_dense_pmf()


def geometric_grid(step: float = 0.01) -> Any:
    """Return the losses of geometric noise on a grid: two that are likely, on it, and 0."""
    pair = loss_distribution._Integer(Mechanism.GEOMETRIC, 8.0, 2)
    deltas = loss_distribution._integer_loss(pair).deltas(step * np.arange(-100, 101.0))
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    return light.create_pmf_pessimistic_connect_dots_fixed_gap(step, -100, 100, deltas)


def exact(grid: Any) -> Any:
    """Return what maps deltas to epsilons, by convolution without a transform.

    Sums of products of positive numbers keep all their digits, in the tails too.
    """
    mass, highest, finite = np.ones(1), 0, 0.0
    for part in grid.parts:
        one = np.zeros(1 - int(part.places[0]))
        one[np.int64(part.places) - 1] = part.mass
        for _ in range(part.number):
            mass = np.convolve(mass, one)
        highest += part.number * part.highest
        finite += part.number * math.log1p(-part.infinite)
    losses = grid.step * (highest - np.arange(len(mass)))

    def delta_of(epsilon: float) -> float:
        shares = -np.expm1(np.minimum(epsilon - losses, 0.0))
        return float(shares @ mass[::-1]) - math.expm1(finite)

    def epsilon_of(delta: float) -> float:
        low, high = 0.0, float(losses[0])
        while high > low * (1 + 1e-14):
            middle = (low + high) / 2
            low, high = (middle, high) if delta_of(middle) > delta else (low, middle)
        return high

    return epsilon_of


COMPOSED = {
    "few": lambda: grid_of(light, 0.3).self_compose(2),
    "many": lambda: grid_of(light, 0.3).self_compose(30),
    "two kinds": lambda: grid_of(light, 0.3).self_compose(5).compose(grid_of(light, 0.9), 1e-15),
    "one": lambda: grid_of(light, 0.9),
    "atoms": lambda: geometric_grid().self_compose(6),
    "more atoms": lambda: geometric_grid().self_compose(40).compose(grid_of(light, 0.1), 1e-15),
    "little noise": lambda: grid_of(light, 40.0, 1.0).self_compose(3),  # epsilons above 2,000
}


@each_case("kind", list(COMPOSED))
def test_composed_losses_have_all_digits_of_a_tail(kind: str) -> None:
    grid = COMPOSED[kind]()
    epsilon_of = exact(grid)
    for delta in (0.1, 1e-3, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10, 1e-12, 1e-15, 1e-18):
        found = grid.get_epsilon_for_delta(delta)
        assert 0 < found == pytest.approx(epsilon_of(delta), rel=1e-12), delta


@each_case("number", [2, 3, 30])
def test_composed_losses_are_those_of_dp_accounting(number: int) -> None:
    from dp_accounting.pld import pld_pmf

    small, other = grid_of(light, 0.3), grid_of(light, 0.9)
    theirs, their_other = grid_of(pld_pmf, 0.3), grid_of(pld_pmf, 0.9)
    for one, their in (
        (small.self_compose(number), theirs.self_compose(number)),
        (
            small.self_compose(number).compose(other, 1e-15),
            theirs.self_compose(number).compose(their_other, 1e-15),
        ),
    ):
        for delta in (0.1, 1e-3, 1e-6):
            exact = their.get_epsilon_for_delta(delta)
            assert one.get_epsilon_for_delta(delta) == pytest.approx(exact, rel=1e-9)


def test_a_hundred_thousand_losses_are_those_of_one_gaussian() -> None:
    """Their transform is taken to a high power, which multiplies what it rounds off."""
    from dp_accounting.pld import pld_pmf

    number, mu = 2**17, 1.0
    small = mu / math.sqrt(number)
    many, theirs = (
        grid_of(one, small, small / 100).self_compose(number) for one in (light, pld_pmf)
    )
    known = theirs.get_epsilon_for_delta(1e-3)
    assert many.get_epsilon_for_delta(1e-3) == pytest.approx(known, rel=1e-9)
    for delta in (1e-3, 1e-6, 1e-12):
        alone = light.get_epsilon_gaussian(1 / mu, delta)
        # the grid adds at most a quarter of its step squared to each variance
        assert alone < many.get_epsilon_for_delta(delta) == pytest.approx(alone, rel=2e-4)


@each_case("number", [2, 3, 30, 4000])
@each_case("mu", [0.003, 0.3, 2.0])
def test_the_quick_sum_of_losses_is_that_of_dp_accounting(mu: float, number: int) -> None:
    from dp_accounting.pld import pld_pmf

    one = grid_of(pld_pmf, mu)
    quick, exact = vars(library.self_composed(one, number)), vars(one.self_compose(number))
    np.testing.assert_array_equal(quick.pop("_probs"), exact.pop("_probs"))
    assert quick == exact and quick["_infinity_mass"] > 0


def test_masses_far_apart_overflow_nothing() -> None:
    places = np.array([-123.0, -63.0, -62.0, -60.0, -25.0, 0.0])
    mass = np.array([1.6123996810923704e-07, 0.08030235417523286, 1.6253488996270067e-186])
    tail = np.array([1.0356390216989232e-106, 0.9196974845847989, 4.816428200456984e-150])
    few = light._Part(63, places, np.append(mass, tail), 1e-20, 3)
    two = light._Part(
        2, np.array([-11.0, 0.0]), np.array([0.6692907708252512, 0.3307092291747489]), 0.0, 2
    )
    step = 2.313303506943521e-05
    epsilon = light.LossGrid(step, (few, two)).get_epsilon_for_delta(1e-12)
    assert 0.0 < epsilon <= step * (3 * 63 + 2 * 2)


def test_what_is_no_number_is_no_small_epsilon(monkeypatch: pytest.MonkeyPatch) -> None:
    """An epsilon that cannot be computed is above every cap."""
    half = light._Part(1, np.array([-2.0, 0.0]), np.array([0.5, 0.5]), 0.0, 8)
    grid = light.LossGrid(0.5, (half,))
    assert 0.0 < grid.get_epsilon_for_delta(1e-3) < math.inf
    monkeypatch.setattr(
        light.LossGrid, "_convolved", lambda *args: np.full(args[3] - args[2] + 1, math.nan)
    )
    assert grid.get_epsilon_for_delta(1e-3) == math.inf


def test_a_mass_that_is_infinite_has_no_epsilon() -> None:
    part = light._Part(1, np.array([-2.0, -1.0, 0.0]), np.array([0.2, 0.3, 0.4]), 0.1, 1)
    grid = light.LossGrid(0.5, (part,))
    assert grid.get_epsilon_for_delta(0.05) == math.inf
    assert grid.get_epsilon_for_delta(0.999) == 0.0
    for two in (grid.self_compose(2), grid.compose(grid, 0.0)):
        assert two.get_epsilon_for_delta(1 - 0.9**2 - 1e-9) == math.inf
        assert two.get_epsilon_for_delta(1 - 0.9**2 + 1e-9) == pytest.approx(1.0)
    # by hand: delta(e) = 0.1 + (1 - exp(e - 0.5)) 0.4 for e from 0 to 0.5
    assert grid.get_epsilon_for_delta(0.2) == pytest.approx(0.5 + math.log(0.75))


def test_a_library_that_is_there_and_broken_is_not_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Broken:
        def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
            if name == "dp_accounting":
                raise ModuleNotFoundError("no absl", name="absl")

    for name in [one for one in sys.modules if one.split(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    for ask in (library.gaussian, library.grids):
        with pytest.raises(ModuleNotFoundError, match="absl"):
            ask.__wrapped__()
