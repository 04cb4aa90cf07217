"""The libraries of the accountant, SciPy and dp-accounting, or their replacement `light`.

The module `light` is used where they are not installed, as for a light agent. Only this module
chooses between them. It imports a library at its first use, so that a command without epsilon does
not wait for the import.
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

_CUT = 1e-15  # the largest probability mass that is cut from the tails of a sum


@cache
def special() -> Any:
    """Return the module with the special functions: `scipy.special`, or `light`."""
    with _unless_missing("scipy"):
        import scipy.special

        return scipy.special
    return light


@cache
def gaussian() -> Any:
    """Return the module with the privacy curve of a Gaussian: `dp_accounting`, or `light`."""
    with _unless_missing("dp_accounting"):
        import dp_accounting

        return dp_accounting
    return light


@cache
def grids() -> Any:
    """Return the module for privacy losses on a grid: `dp_accounting.pld.pld_pmf`, or `light`."""
    with _unless_missing("dp_accounting"):
        from dp_accounting.pld import pld_pmf

        return pld_pmf
    return light


def lost_by_convolution() -> float:
    """Return the largest error of delta from one composition of two distributions on a grid.

    For dp-accounting it is five times the largest measured error. For `light` it is 0, since
    `light` keeps all digits of the tails.
    """
    return 0.0 if grids() is light else 1e-15


def margin() -> float:
    """Return the relative margin that is added to an epsilon for rounding errors.

    dp-accounting finds epsilons by search and sums in float64, with errors of about 1e-9. `light`
    is as exact, and its margin is a little smaller. So an agent with `light` accepts a plan whose
    epsilon, computed with dp-accounting, is exactly the owner's limit. `docs/library.md` names the
    range in which this holds.
    """
    return 9.5e-9 if gaussian() is light else 1e-8


@contextmanager
def _unless_missing(library: str) -> Iterator[None]:
    """Ignore the error if a library is not installed; raise if it is installed and broken."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise


def self_composed(one: Any, number: int) -> Any:
    """Return `one.self_compose(number)`, the same numbers in half the time.

    It is the distribution of a sum of independent losses. dp-accounting calls SciPy for each of 40
    bounds on the range of the sum, which takes longer than the sum itself. Here each bound is
    computed from the one before.

    Args:
        one: the distribution of one loss, made by the module that `grids` returns.
        number: the number of losses in the sum, at least 2.
    """
    if grids() is light:
        return one.self_compose(number)
    import scipy.fft

    mass = one._probs
    least, most = _ends(mass, number)
    length = scipy.fft.next_fast_len(max(most - least + 1, len(mass)))
    total = np.real(scipy.fft.ifft(scipy.fft.fft(mass, length) ** number))
    # the transform wraps around; the range least .. most is no longer than the transform
    return grids().DensePLDPmf(
        one._discretization,
        one._lower_loss * number + least,
        np.roll(total, -least)[: most - least + 1],
        _CUT - math.expm1(number * math.log1p(-one._infinity_mass)),
        one._pessimistic_estimate,
    )


def _ends(mass: npt.NDArray[np.float64], number: int) -> tuple[int, int]:
    """Return the range of places (least, most) of a sum of losses, by the Chernoff bound.

    At most a mass of `_CUT` lies outside of it.

    Args:
        mass: float64 [n], the probability of each place of one loss.
        number: the number of losses in the sum.
    """
    growth = np.exp(np.arange(len(mass)) / len(mass))
    least, most, left = 0, (len(mass) - 1) * number, math.log(2 / _CUT)
    rising, falling = mass, mass
    for k in range(1, 21):
        rising, falling, order = rising * growth, falling / growth, k / len(mass)
        most = min(most, math.ceil((number * math.log(rising.sum()) + left) / order))
        least = max(least, math.floor(-(number * math.log(falling.sum()) + left) / order))
    return least, most
