"""Choose what the accountant computes with: SciPy and dp-accounting, or their replacement `light`.

`light` replaces each of the two libraries that is not installed, as in a light agent. Only this
module chooses.
A library is imported when it is first needed, so that a command without epsilon does not wait for
the import.
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

_CUT = 1e-15  # the largest mass that `_ends` leaves outside of its range


@cache
def special() -> Any:
    """Return the module with the special functions: `scipy.special` or `light`."""
    with _unless_missing("scipy"):
        import scipy.special

        return scipy.special
    return light


@cache
def gaussian() -> Any:
    """Return the module with the privacy curve of a Gaussian: `dp_accounting` or `light`."""
    with _unless_missing("dp_accounting"):
        import dp_accounting

        return dp_accounting
    return light


@cache
def grids() -> Any:
    """Return the module for privacy losses on a grid: `dp_accounting.pld.pld_pmf` or `light`."""
    with _unless_missing("dp_accounting"):
        from dp_accounting.pld import pld_pmf

        return pld_pmf
    return light


def lost_by_convolution() -> float:
    """Return a bound on the error in delta when two distributions on a grid are composed.

    For dp-accounting the bound is five times the largest measured error. For `light` it is 0, since
    `light` keeps all digits of the tails.
    """
    return 0.0 if grids() is light else 1e-15


def margin() -> float:
    """Return the relative margin that is added to epsilons, so that rounding errors do not matter.

    dp-accounting computes epsilons by search and with float64 sums, with errors of about 1e-9.
    `light` has similar errors, but a slightly smaller margin. Otherwise an agent with `light` could
    refuse a plan whose epsilon, computed with dp-accounting, is exactly its owner's limit.
    `docs/library.md` says in which range this works.
    """
    return 9.5e-9 if gaussian() is light else 1e-8


@contextmanager
def _unless_missing(library: str) -> Iterator[None]:
    """Ignore the import error of a library that is not installed, and no other error.

    So an installed library that is broken is reported, and not replaced.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise


def self_composed(one: Any, number: int) -> Any:
    """Return the distribution of a sum of `number` independent losses, each distributed like `one`.

    The result is that of `one.self_compose(number)` up to rounding, in half the time. dp-accounting
    calls SciPy for each of 40 bounds on the range of the sum. `_ends` computes each bound from the
    bound before.

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
    # The transform wraps around: place i stands at i modulo its length. No place is lost, since the
    # transform is at least as long as the range least .. most.
    return grids().DensePLDPmf(
        one._discretization,
        one._lower_loss * number + least,
        np.roll(total, -least)[: most - least + 1],
        _CUT - math.expm1(number * math.log1p(-one._infinity_mass)),
        one._pessimistic_estimate,
    )


def _ends(mass: npt.NDArray[np.float64], number: int) -> tuple[int, int]:
    """Return a range of places, (least, most), outside of which the sum has at most mass `_CUT`.

    The range follows from the Chernoff bound.

    Args:
        mass: float64 [n], the probabilities that one loss is at the places 0, 1, ..., n - 1.
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
