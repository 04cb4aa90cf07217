"""The libraries of the accountant, SciPy and dp-accounting, or what stands in for them.

Where they are not installed, as beside a light agent, `light` takes their part. Nobody but this
module chooses, and it loads them when they are first asked for: no command pays for them that needs
no epsilon.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from fedtally.privacy import light


@cache
def special() -> Any:
    """Return what has the special functions: `scipy.special`, or `light`."""
    with _unless_missing("scipy"):
        import scipy.special

        return scipy.special
    return light


@cache
def gaussian() -> Any:
    """Return what has the curve of a Gaussian: `dp_accounting`, or `light`."""
    with _unless_missing("dp_accounting"):
        import dp_accounting

        return dp_accounting
    return light


@cache
def grids() -> Any:
    """Return what has losses on a grid: `dp_accounting.pld.pld_pmf`, or `light`."""
    with _unless_missing("dp_accounting"):
        from dp_accounting.pld import pld_pmf

        return pld_pmf
    return light


def lost_by_convolution() -> float:
    """Return the delta that composing a pair of distributions on a grid may lose or add at most.

    That of dp-accounting is five times what was measured; `light` keeps the digits of tails.
    """
    return 0.0 if grids() is light else 1e-15


def margin() -> float:
    """Return what is added to an epsilon for rounding, of itself.

    dp-accounting finds epsilons by search and sums in floats, with errors of about 1e-9. `light` is
    as exact, and adds a little less: it never refuses a plan that has all epsilon that is allowed.
    """
    return 9.5e-9 if gaussian() is light else 1e-8


@contextmanager
def _unless_missing(library: str) -> Iterator[None]:
    """Pass over a library that is not installed; one that is there and broken is an error."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
