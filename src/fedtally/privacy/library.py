"""The libraries of the accountant, SciPy and dp-accounting, or what stands in for them.

Where they are not installed, as beside a light agent, `light` takes their part. Nobody but this
module chooses, and it loads them when they are first asked for: no command pays for them that needs
no epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.privacy import light

_CUT = 1e-15  # the mass that the tails of a sum may lose


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
    as exact, and adds a little less: so it takes a plan that uses an owner's epsilon to the last
    digit of dp-accounting, in the range that `docs/library.md` names.
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


def self_composed(one: Any, number: int) -> Any:
    """Return `one.self_compose(number)`: the same numbers in half the time.

    dp-accounting calls SciPy for each of 40 bounds on where the sum lies, which takes longer than
    the sum. Here their terms follow from each other.

    Args:
        one: losses on a grid, of `grids`.
        number: how many of them there are, at least 2.
    """
    if grids() is light:
        return one.self_compose(number)
    import scipy.fft

    mass = one._probs
    least, most = _ends(mass, number)
    length = scipy.fft.next_fast_len(max(most - least + 1, len(mass)))
    total = np.real(scipy.fft.ifft(scipy.fft.fft(mass, length) ** number))
    # the transform wraps around; the part that is wanted is no longer than it
    return grids().DensePLDPmf(
        one._discretization,
        one._lower_loss * number + least,
        np.roll(total, -least)[: most - least + 1],
        _CUT - math.expm1(number * math.log1p(-one._infinity_mass)),
        one._pessimistic_estimate,
    )


def _ends(mass: npt.NDArray[np.float64], number: int) -> tuple[int, int]:
    """Return places between which a sum of losses lies but for `_CUT`, by the Chernoff bound."""
    growth = np.exp(np.arange(len(mass)) / len(mass))
    least, most, left = 0, (len(mass) - 1) * number, math.log(2 / _CUT)
    rising, falling = mass, mass
    for k in range(1, 21):
        rising, falling, order = rising * growth, falling / growth, k / len(mass)
        most = min(most, math.ceil((number * math.log(rising.sum()) + left) / order))
        least = max(least, math.floor(-(number * math.log(falling.sum()) + left) / order))
    return least, most
