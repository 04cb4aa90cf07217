"""SciPy for the accountant, or what stands in for it.

Where SciPy is not installed, as beside a light agent, `light` takes its part. Nobody but this
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
def accounting() -> Any:
    """Return what has the curve of a Gaussian and losses on a grid: `with_scipy`, or `light`."""
    if special() is light:
        return light
    from fedtally.privacy import with_scipy

    return with_scipy


def lost_by_convolution() -> float:
    """Return the delta that composing a pair of distributions on a grid may lose or add at most.

    That of `with_scipy` is five times what was measured; `light` keeps the digits of tails.
    """
    return 0.0 if accounting() is light else 1e-15


def margin() -> float:
    """Return what is added to an epsilon for rounding, of itself.

    `with_scipy` finds epsilons by search and sums in floats, with errors of about 1e-9. `light` is
    as exact, and adds a little less: so it takes a plan that uses an owner's epsilon to the last
    digit of `with_scipy`, in the range that `docs/library.md` names.
    """
    return 9.5e-9 if accounting() is light else 1e-8


@contextmanager
def _unless_missing(library: str) -> Iterator[None]:
    """Pass over a library that is not installed; one that is there and broken is an error."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
