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


def way_out() -> str:
    """Return what helps where an epsilon is too large, in words after others; "" with the library.

    `light` knows an epsilon less exactly at a small delta, and then says more, never less.
    """
    if grids() is not light:
        return ""
    return "; or know it more exactly: pip install scipy dp-accounting"


@contextmanager
def _unless_missing(library: str) -> Iterator[None]:
    """Pass over a library that is not installed; one that is there and broken is an error."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
