"""The paper's hardness and sizes: formulas against definitions, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import each_case
from hypothesis import given
from hypothesis import strategies as st

from fedtally.errors import InvalidInputError
from fedtally.plan import paper


def normalised(weights):
    return np.asarray(weights, np.float64) / np.sum(weights)


def zipf(exponent, size):
    return normalised(np.arange(1, size + 1.0) ** -exponent)


LAWS = {
    "zipf": zipf(1.2, 5000),
    "geometric": normalised(2.0 ** -np.arange(1, 60)),
    "uniform": np.full(40, 1 / 40),
    "one": np.array([1.0]),
    "ties and zeros": np.array([0.0, 0.2, 0.3, 0.2, 0.0, 0.3]),
    "none": np.zeros(3),
}


populations = st.lists(st.integers(0, 50), min_size=1, max_size=30).map(
    lambda counts: np.array(counts) / max(sum(counts), 1)
)


# ---- hardness ----


def defined_hardness(f, tau):
    """Return the paper's sum, term by term."""
    return sum(1 for x in f if x >= tau) + sum(x * x for x in f if x < tau) / tau**2


@each_case("distribution", LAWS)
@each_case("tau", [1e-5, 0.003, 0.025, 0.2, 0.3, 0.9])
def test_hardness_is_what_the_paper_defines(distribution, tau):
    assert paper.hardness(LAWS[distribution], tau) == pytest.approx(
        defined_hardness(LAWS[distribution], tau), rel=1e-12
    )


@given(populations, st.floats(1e-4, 1.0), st.floats(1.0, 4.0))
def test_hardness_falls_with_tau_and_knows_its_worst_case(f, tau, ratio):
    """At most 1 / tau, half of the paper's 2 / tau; at most the items that occur; C^2 times more
    for tau / C."""
    hardness = paper.hardness(f, tau)
    assert hardness <= paper.hardness(f, tau / ratio) <= ratio**2 * hardness * (1 + 1e-12)
    assert hardness <= min(1 / tau, np.count_nonzero(f)) * (1 + 1e-12)


def test_the_worst_case_of_hardness_is_met():
    """Nothing smaller than 1 / tau would do: 1 / tau items of frequency tau."""
    assert paper.hardness(np.full(40, 1 / 40), 1 / 40) == 40


# ---- widths and rows ----


def test_widths_of_the_experiments():
    """Gowalla: d = 175,000, n = 17,500, p = 0.1, L = ln(2 d / p) ~ 16, all constants 2."""
    assert paper.rows_for(175_000, 0.1) == 16 == math.ceil(math.log(2 * 175_000 / 0.1))
    assert paper.rows_for(175_000, 0.1, factor=1) == 15
    assert paper.rows_for(175_000, 0.1, constant=2) == 31
    assert paper.width_minimax(1e-3, 17_500) == 4000
    assert paper.width_minimax(1e-5, 17_500) == paper.width_linear(17_500) == 35_000
    distribution = zipf(1.2, 175_000)
    hardness = defined_hardness(distribution, 0.01)
    assert paper.width_oracle(distribution, 0.01) == math.ceil(2 * hardness)
    assert paper.width_oracle(distribution, 0.01, 7.5) == math.ceil(7.5 * hardness)
    assert paper.width_oracle(distribution, 1e-6, num_clients=100) == 200
    assert paper.width_oracle(LAWS["none"], 0.5) == 2


@given(populations, st.floats(1e-3, 0.9))
def test_the_oracle_needs_no_more_than_the_worst_case(f, tau):
    """Equation (3); and the minimum with n never matters for the frequencies of n clients."""
    clients = 30 * 50
    assert (
        paper.width_oracle(f, tau)
        <= paper.width_minimax(tau, clients)
        <= paper.width_linear(clients)
    )
    assert paper.width_oracle(f, tau) == paper.width_oracle(f, tau, num_clients=clients)


@pytest.mark.parametrize(("columns_per_item", "needed"), [(1, 13.8), (2, 4.4), (4, 2.1), (14, 1.0)])
def test_the_constant_of_the_rows(columns_per_item, needed):
    """The remark at `rows_for`: the distribution of a median of rows that err with probability q to
    either side, by
    summation.

    Many rows: what is left of log P / L is of the order log(L) / L, 1 % at 2,000 rows, and rounding
    of the figures 3 %.
    """
    q, rows = (1 - math.exp(-1 / columns_per_item)) / 2, 2001
    k = np.arange(rows // 2 + 1, rows + 1)
    log_choose = math.lgamma(rows + 1) - np.array(
        [math.lgamma(i + 1) + math.lgamma(rows - i + 1) for i in k]
    )
    terms = log_choose + k * math.log(q) + (rows - k) * math.log(1 - q)
    log_probability = terms.max() + math.log(np.exp(terms - terms.max()).sum())
    assert -rows / log_probability == pytest.approx(needed, rel=0.04)


# ---- errors ----


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: paper.hardness([0.5, -0.1], 0.1),
            "from 0 to 1, got -0.1: divide counts by the number of clients",
        ),
        (lambda: paper.hardness([3, 4], 0.1), "from 0 to 1, got 3"),
        (lambda: paper.hardness([[0.5]], 0.1), r"frequencies must have 1 dimension\(s\), got 2"),
        (lambda: paper.hardness([math.nan], 0.1), "frequencies must be finite"),
        (lambda: paper.hardness(["a"], 0.1), "frequencies must be numbers"),
        (lambda: paper.hardness([0.5], 0.0), "tau must be above 0, got 0"),
        (lambda: paper.width_oracle([0.5], 1.0), "tau must be above 0 and below 1, got 1"),
        (lambda: paper.width_oracle([0.5], 0.1, 0.0), "constant must be above 0"),
        (lambda: paper.width_minimax(0.1, 0), "num_clients must be at least 1"),
        (lambda: paper.width_linear(10, 1e300), "size must be below"),
        (lambda: paper.rows_for(10, 1.0), "p must be above 0 and below 1"),
    ],
)
def test_values_out_of_range_are_refused(call, message):
    with pytest.raises(InvalidInputError, match=message):
        call()


def test_extreme_values_stay_finite():
    """No overflow, no division by zero: warnings are errors here."""
    assert paper.hardness([1.0, 1e-300], 1e-300) == 2
    assert paper.rows_for(1, 5e-324, factor=1) == 745
    assert paper.hardness([], 0.1) == 0
