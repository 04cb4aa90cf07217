"""Find where a function is 0.

SciPy can do this (`scipy.optimize`), but importing it takes longer than computing most plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import copysign

_RELATIVE = 4 * math.ulp(1.0)  # the relative error of a root; floats allow hardly less
_STEPS = 1000  # the most steps; not reached in practice: bisection alone takes far fewer


def root(
    f: Callable[[float], float],
    low: float,
    high: float,
    *,
    ends: tuple[float, float] | None = None,
    within: float = 2e-12,
) -> float:
    """Return where a continuous function is 0, by Brent's method.

    It takes the same steps as `scipy.optimize.brentq`, so both return the same bits. If the
    function is nearly a line or a parabola, it takes few steps. In practice it rarely takes more
    steps than bisection.

    Args:
        f: the function. Its values at `low` and `high` have different signs, or one of them is 0.
        low: one end of the interval.
        high: the other end.
        ends: the values f(low) and f(high) if they are known; None: they are computed.
        within: a number above 0: the largest distance of the result from the exact root. A rounding
            error of 9e-16 times the root comes on top.

    Raises:
        ValueError: the values at both ends have the same sign.

    >>> round(root(lambda x: x * x - 2, 0.0, 2.0), 9)
    1.414213562
    """
    before, at = low, high
    f_before, f_at = ends or (f(before), f(at))
    if f_before == 0:
        return before
    if f_at != 0 and copysign(1.0, f_before) == copysign(1.0, f_at):
        raise ValueError("f(low) and f(high) must have different signs")
    other, f_other, step, last = before, f_before, 0.0, 0.0
    for _ in range(_STEPS):
        if f_at != 0 and copysign(1.0, f_before) != copysign(1.0, f_at):
            other, f_other, step, last = before, f_before, at - before, at - before
        if abs(f_other) < abs(f_at):  # the best point so far is `at`
            before, at, other = at, other, at
            f_before, f_at, f_other = f_at, f_other, f_at
        least, half = (within + _RELATIVE * abs(at)) / 2, (other - at) / 2
        if f_at == 0 or abs(half) < least:
            break
        tried = math.inf
        if abs(last) > least and abs(f_at) < abs(f_before):
            tried = _step((before, f_before), (at, f_at), (other, f_other))
        if 2 * abs(tried) < min(abs(last), 3 * abs(half) - least):
            last, step = step, tried
        else:
            last = step = half
        before, f_before = at, f_at
        at += step if abs(step) > least else copysign(least, half)
        f_at = f(at)
    return at


def _step(
    before: tuple[float, float], at: tuple[float, float], other: tuple[float, float]
) -> float:
    """Return the step from `at` to an estimate of the root.

    The estimate is the root of the line through two points, or of an inverse parabola through
    three.

    Args:
        before: the point (x, f(x)) before `at`.
        at: the best point so far.
        other: a point on the other side of the root; if it has the x of `before`, a line is used.
    """
    (x0, f0), (x1, f1), (x2, f2) = before, at, other
    if x0 == x2:
        return -f1 * (x1 - x0) / (f1 - f0)
    slope, far = (f0 - f1) / (x0 - x1), (f2 - f1) / (x2 - x1)
    return -f1 * (f2 * far - f0 * slope) / (far * slope * (f2 - f0))
