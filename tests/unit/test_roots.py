"""Roots, found as SciPy finds them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from fedtally.base.roots import root

ENDS = st.floats(-5, 5)
SHAPES: list[Callable[[float, float, float], float]] = [
    lambda x, a, b: a * x**3 + x - b,
    lambda x, a, b: math.tanh(a * (x - b)) + 0.1,
    lambda x, a, b: math.exp(a * x) - abs(b),
    lambda x, a, b: round(a * x - b, 1),  # flat parts
    lambda x, a, b: (x > b) - 0.5,  # a jump
]


@given(
    st.sampled_from(SHAPES),
    st.floats(-3, 3),
    st.floats(-3, 3),
    ENDS,
    ENDS,
    st.sampled_from([2e-12, 1e-4, 0.01]),
)
def test_the_bits_are_those_of_scipy(
    shape: Callable[[float, float, float], float],
    a: float,
    b: float,
    low: float,
    high: float,
    within: float,
) -> None:
    def f(x: float) -> float:
        return shape(x, a, b)

    try:
        expected = brentq(f, low, high, xtol=within, maxiter=1000)
    except ValueError:
        with pytest.raises(ValueError, match="signs"):
            root(f, low, high, within=within)
    else:
        assert root(f, low, high, within=within) == expected


def test_an_end_may_be_the_root() -> None:
    assert root(lambda x: x, 0.0, 1.0) == 0.0 == root(lambda x: x, 1.0, 0.0)
