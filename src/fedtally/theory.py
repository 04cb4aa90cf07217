"""The paper's hardness, and the sizes that suffice for an error.

"The paper" is Wu, Zhu, Kairouz and Braverman, Private Federated Frequency Estimation: Adapting to
the Hardness of the Instance, NeurIPS 2023. Statements are cited by their titles, equations by their
numbers there. Logarithms are natural. What a plan will do is predicted without constants by
`fedtally.recovery.error_model`. The error bounds that the paper proves are in experiments/theory.py
of the repository.

**Constants.** The theorems hold for some absolute C, which they do not give. The widths have the 2
of the paper's experiments. C also hides a trade: an error of at most tau needs hardness(f, tau /
C), the width, where the error bound has C, which is up to C^2 hardness(f, tau).

**Frequencies** are counts over clients: each in [0, 1], in any order, together at most 1 where a
client holds one item. Only 2 / tau rests on that last condition.

**As we read it.** Where the paper's wording leaves a choice, or a slip changes a statement (more:
docs/paper-notes.md). No conclusion of the paper depends on any of these:

- *Rows.* L = log(d / p) is to be read up to a constant: with few rows heavy items spoil medians
  whatever C is, also where the tail is 0 and with it the bound. See `rows_for`.
- *Worst case.* `hardness` is at most 1 / tau, since its two terms share the mass 1; 2 / tau counts
  it twice. We keep the paper's figures.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError

F64 = npt.NDArray[np.float64]
_ROUNDING = 1e-9


# ---- hardness ----


def hardness(frequencies: npt.ArrayLike, tau: float) -> float:
    """Return the hardness: the width that tau takes, without its constant.

    It is #{f >= tau} + sum of f^2 / tau^2 over f < tau.

    Equation (2), corollary "Oracle sketch size": with at least this width, the error bound without
    its constant and rows is at most tau; with less than half of it, it is not. It is sum min(1,
    f / tau)^2, so it is continuous, does not rise with tau, and is at most the number of items that
    occur, and at most 1 / tau.

    Args:
        frequencies: [d], each in [0, 1].
        tau: above 0.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> hardness([0.5, 0.25, 0.125, 0.125], tau=0.25)
    2.5
    """
    known, tau = _known(frequencies), _positive(tau=tau)
    return float(((np.minimum(known, tau) / tau) ** 2).sum())


# ---- rows and widths ----


def rows_for(domain_size: int, p: float, *, constant: float = 1.0, factor: float = 2.0) -> int:
    """Return the rows for a probability of failure p: L = c log(factor d / p), rounded up.

    The corollaries have factor 1, the paper's experiments log(2 d / p), whose example this is:
    175,000 items, p = 0.1.

    The constant and that of the width depend on each other (a remark of ours). With C counters a
    row for each of the heavy
    items, and no others, a row errs to either side with probability q = (1 - e^(-1/C)) / 2, and the
    median with at most (4 q (1 - q))^(L / 2) each: so L = c log(2 d / p) with c = 2 / log(1 / (4 q
    (1 - q))) does, and little less: 13.8 for C = 1, 4.4 for C = 2, 2.1 for C = 4, and 1 from C = 14
    on.

    Args:
        domain_size: d, at least 1.
        p: probability of failure, in (0, 1).
        constant: c, above 0.
        factor: within the logarithm, at least 1.

    >>> rows_for(175_000, 0.1), rows_for(175_000, 0.1, factor=1)
    (16, 15)
    """
    domain_size, factor = (
        validate.integer(1, domain_size=domain_size),
        validate.real(1.0, factor=factor),
    )
    return _whole(_positive(constant=constant) * _log_over(factor * domain_size, p), 1)


def width_oracle(
    frequencies: npt.ArrayLike, tau: float, constant: float = 2.0, *, num_clients: int | None = None
) -> int:
    """Return the width that suffices for an l_inf error of tau, from the frequencies themselves.

    W = C min(hardness(f, tau), n): equation (2), corollary "Oracle sketch size". Rounded up; at
    least 2.

    Args:
        frequencies: [d], each in [0, 1].
        tau: in (0, 1).
        constant: C; 2 as in the paper's experiments ("we set all constant factors to be 2").
        num_clients: n. It matters only where frequencies are a distribution's: n clients hold at
            most n items, one each, and hardness is at most the number of items that occur.

    >>> width_oracle([0.5, 0.25, 0.125, 0.125], tau=0.25)
    5
    """
    needed = hardness(frequencies, _inside(tau=tau))
    if num_clients is not None:
        needed = min(needed, validate.integer(1, num_clients=num_clients))
    return _whole(_positive(constant=constant) * needed, 2)


def width_minimax(tau: float, num_clients: int, constant: float = 2.0) -> int:
    """Return the width that suffices for tau, whatever the frequencies: C min(2 / tau, n).

    Equation (3), corollary "Oracle sketch size". Rounded up; at least 2.

    Args:
        tau: in (0, 1).
        num_clients: n, of a shared sketch those of all rounds.
        constant: C; 2 as in the paper's experiments.

    >>> width_minimax(0.01, 10_000), width_minimax(0.01, 50)
    (400, 100)
    """
    num_clients = validate.integer(1, num_clients=num_clients)
    return _whole(_positive(constant=constant) * min(2 / _inside(tau=tau), num_clients), 2)


def width_linear(num_clients: int, constant: float = 2.0) -> int:
    """Return a width linear in the number of clients, W = C n.

    So Chen et al. 2022 set it, as the paper describes them: O(n log d log n) bits from each client,
    nearly optimal in the worst case. It is `width_minimax` for tau so small that every client
    counts. Rounded up; at least 2.

    Args:
        num_clients: n.
        constant: C; 2, all constants of the paper's experiments, though these do not have this
            width.

    >>> width_linear(17_500)
    35000
    """
    return _whole(_positive(constant=constant) * validate.integer(1, num_clients=num_clients), 2)


# ---- checks ----


def _numbers(values: npt.ArrayLike, dimensions: int, name: str) -> F64:
    try:
        known = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be numbers in {dimensions} dimension(s)") from None
    if known.ndim != dimensions:
        raise InvalidInputError(f"{name} must have {dimensions} dimension(s), got {known.ndim}")
    if not np.isfinite(known).all():
        raise InvalidInputError(f"{name} must be finite")
    return known


def _known(frequencies: npt.ArrayLike, dimensions: int = 1) -> F64:
    known = _numbers(frequencies, dimensions, "frequencies")
    outside = known[(known < 0) | (known > 1 + _ROUNDING)]
    if len(outside):
        raise InvalidInputError(
            f"frequencies must each be from 0 to 1, got {outside[0]:g}: divide counts by the number"
            " of clients"
        )
    return known


def _log_over(number: float, p: float) -> float:
    """Return log(number / p), also where p is tiny."""
    return math.log(number) - math.log(_inside(p=p))


def _whole(value: float, minimum: int) -> int:
    """Return a size, rounded up, from a minimum on."""
    if not value < 2**53:
        raise InvalidInputError(
            f"the size must be below 2^53, got {value:g}: take a larger tau, or a smaller constant"
        )
    return max(minimum, math.ceil(value * (1 - _ROUNDING)))


def _positive(**named: float) -> float:
    name, value = next(iter(named.items()))
    number = validate.real(0.0, **named)
    if number == 0.0:
        raise InvalidInputError(f"{name} must be above 0, got {value}")
    return number


def _inside(maximum: float = 1.0, /, **named: float) -> float:
    name, value = next(iter(named.items()))
    number = validate.real(0.0, maximum, **named)
    if number in (0.0, maximum):
        raise InvalidInputError(f"{name} must be above 0 and below {maximum:g}, got {value}")
    return number
