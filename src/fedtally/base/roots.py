"""The root of a function between two points.

SciPy has this in `scipy.optimize`, whose import takes longer than most plans.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import copysign

_RELATIVE = 4 * math.ulp(1.0)  # no root is known better
_STEPS = 1000  # halving alone takes less


def root(
    f: Callable[[float], float],
    low: float,
    high: float,
    *,
    ends: tuple[float, float] | None = None,
    within: float = 2e-12,
) -> float:
    """Return where a continuous function is 0, by Brent's method: `scipy.optimize.brentq`.

    It takes the same steps, so that both return the same bits. Where the function is nearly a line
    or a parabola it takes few of them, and never many more than halving takes.

    Args:
        f: has no sign in common at the two ends, or is 0 at one.
        low: one end.
        high: the other one.
        ends: f(low) and f(high), where they are known.
        within: how far the root may be from where the sign changes, above 0.

    Raises:
        ValueError: the ends have the same sign.

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
    """Return the step from a point to where a line through two, or a parabola, is 0."""
    (x0, f0), (x1, f1), (x2, f2) = before, at, other
    if x0 == x2:
        return -f1 * (x1 - x0) / (f1 - f0)
    slope, far = (f0 - f1) / (x0 - x1), (f2 - f1) / (x2 - x1)
    return -f1 * (f2 * far - f0 * slope) / (far * slope * (f2 - f0))
