"""The accountant without SciPy and dp-accounting: special functions, and losses on a grid."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from cases import each_case
from scipy import special as scipy

from fedtally.privacy import loss_distribution, special
from fedtally.privacy.bounds import Method
from fedtally.privacy.gaussian import gaussian_curve
from fedtally.privacy.loss_grid import LossGrid, _fast

LEVELS = np.geomspace(1e-280, 0.999, 300)


def worst(found: Any, exact: Any) -> float:
    """Return the largest error, relative to the exact value."""
    return float(np.max(np.abs(np.asarray(found) / np.asarray(exact) - 1)))


def test_normal_distributions_are_those_of_scipy() -> None:
    x = np.linspace(-37, 9, 1001)
    assert worst(special.ndtr(x), scipy.ndtr(x)) < 1e-12
    x = np.concatenate([np.linspace(-5000, 9, 1001), np.linspace(-12.1, -11.9, 101)])
    assert worst(special.log_ndtr_of(x), scipy.log_ndtr(x)) < 1e-13
    assert worst([special.log_ndtr(float(one)) for one in x], scipy.log_ndtr(x)) < 1e-13


def test_quantiles_are_those_of_scipy() -> None:
    found = [special.log_ndtri(math.log(p)) for p in LEVELS[LEVELS < 0.4]]
    assert worst(found, scipy.ndtri(LEVELS[LEVELS < 0.4])) < 1e-13
    levels = np.concatenate([LEVELS, 1 - np.geomspace(1e-12, 1, 50)[:-1]])
    assert worst([special.erfinv(float(p)) for p in levels], scipy.erfinv(levels)) < 1e-14
    assert special.erfinv(1.0) == math.inf


def test_bessel_functions_are_those_of_scipy() -> None:
    v = np.geomspace(1e-6, 1e12, 500)
    assert worst([special.i0e(float(one)) for one in v], scipy.i0e(v)) < 1e-14
    for variance in (1e-300, 1e-6, 0.3, 4.0, 30.0, 31.0, 1e4):
        exact = scipy.ive(np.arange(400), variance)
        kept = exact > 1e-290
        assert worst(special.ive_up_to(400, variance)[kept], exact[kept]) < 1e-11


def test_sums_of_exponentials_do_not_overflow() -> None:
    terms = np.array([1000.0, 1001.0, -1000.0])
    assert special.logsumexp(terms) == pytest.approx(scipy.logsumexp(terms), rel=1e-15)
    weights = np.array([0.0, 2.0, 1.0])
    exact = scipy.logsumexp(terms, b=weights)
    assert special.logsumexp(terms, weights) == pytest.approx(exact, rel=1e-15)


@each_case("length", [1, 2, 7, 17, 1000, 4097, 100_003])
def test_a_transform_has_a_length_of_small_factors(length: int) -> None:
    found = _fast(length)
    assert length <= found < 2 * length or length == found == 1
    for factor in (2, 3, 5):
        while found % factor == 0:
            found //= factor
    assert found == 1


@each_case(
    ("mu", "delta"),
    [(mu, delta) for mu in (1e-3, 0.1, 0.5, 1.0, 4.0, 30.0) for delta in (1e-12, 1e-6, 0.1)],
)
def test_epsilon_of_a_gaussian_is_that_of_dp_accounting(mu: float, delta: float) -> None:
    from dp_accounting import get_epsilon_gaussian

    found = gaussian_curve(mu, Method.GAUSSIANS).epsilon(delta)
    exact = float(get_epsilon_gaussian(1 / mu, delta))
    assert exact <= found <= exact * (1 + 3e-8) + 1e-10


STEP = 0.01


def grids(mu: float) -> tuple[LossGrid, Any]:
    """Return a Gaussian's losses on a grid: ours, and those of dp-accounting."""
    from dp_accounting.pld import pld_pmf

    loss = loss_distribution._normal_loss(loss_distribution._Normal(mu))
    ends = math.ceil(loss.largest / STEP)
    deltas = loss.deltas(STEP * np.arange(-ends, ends + 1.0))
    deltas = np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(STEP, -ends, ends, deltas)
    return LossGrid.connected(STEP, ends, deltas), theirs.to_dense_pmf()


@each_case("number", [1, 2, 3, 30])
def test_composed_losses_are_those_of_dp_accounting(number: int) -> None:
    ours, theirs = grids(0.3)
    ours, theirs = ours.times(number, 1e-15), theirs.self_compose(number, 1e-15)
    other, their_other = grids(0.9)
    both, their_both = ours.plus(other, 1e-15), theirs.compose(their_other, 1e-15)
    for one, their in ((ours, theirs), (both, their_both)):
        for delta in (1e-3, 1e-6):
            exact = their.get_epsilon_for_delta(delta)
            assert one.epsilon(delta) == pytest.approx(exact, rel=1e-9)
        at = np.array([-1.0, 0.0, 0.5, 3.0])
        assert one.deltas(at) == pytest.approx(their.get_delta_for_epsilon(at), rel=1e-9)
        # a bound may err by what a convolution errs, and not below that
        far = np.array([8.0])
        assert abs(one.deltas(far) - their.get_delta_for_epsilon(far))[0] < 2e-15


def test_a_mass_that_is_infinite_has_no_epsilon() -> None:
    grid = LossGrid(0.5, -1, np.array([0.2, 0.3, 0.4]), 0.1)
    assert grid.epsilon(0.05) == math.inf
    assert grid.epsilon(0.999) == 0.0
    assert grid.times(2, 1e-15).infinite == pytest.approx(1 - 0.9**2)
    assert grid.plus(grid, 0.0).infinite == pytest.approx(1 - 0.9**2)
    # by hand: delta(e) = 0.1 + (1 - exp(e - 0.5)) 0.4 for e from 0 to 0.5
    assert grid.epsilon(0.2) == pytest.approx(0.5 + math.log(0.75))
    assert grid.deltas(np.array([0.25, 0.5]))[1] == pytest.approx(0.1)


BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("scipy", "dp_accounting"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
from fedtally.privacy import accounting
from fedtally.privacy.events import Event

for mechanism, more in (("skellam", {"honest_survivors": 90}), ("rounded-gaussian", {})):
    for variance in (9.0, 500.0, 2e4, 2e7):
        event = Event(mechanism, 5, "zero-out", variance=variance, **more)
        for events in ([event], [event, event]):
            accounting.epsilon(events, 1e-6)
            accounting.Composition.of(events, 1e-6).guarantee
geometric = Event("geometric", 1, "zero-out", variance=8.0, encoding="histogram")
accounting.epsilon(geometric, 1e-6), accounting.delta(geometric, 1.0)
"""


def test_guarantees_need_neither_scipy_nor_dp_accounting() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True)
