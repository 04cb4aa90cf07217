"""The paper's measure of hardness, and the sizes of sketches that the paper gives for an error.

"The paper" is Wu, Zhu, Kairouz and Braverman, Private Federated Frequency Estimation: Adapting to
the Hardness of the Instance, NeurIPS 2023. Its statements are cited by their titles, its equations
by their numbers. Logarithms are natural. The planner itself predicts errors by another model, which
has no unknown constants: `fedtally.recovery.error_model`. The error bounds that the paper proves
are in experiments/theory.py of the repository.

**Constants.** The theorems hold for some constant C, which the paper does not give. The widths here
use C = 2, as the paper's experiments do. A constant in the error bound matters more than a constant
in the width. If the error bound has a constant C, an error of at most tau needs the width
hardness(f, tau / C), which is up to C^2 times hardness(f, tau).

**Frequencies** are counts divided by the number of clients: each is in [0, 1], and their order does
not matter. Their sum is at most 1 if each client holds one item. The width 2 / tau, for example,
depends on this bound of the sum.

**Sizes.** `oracle` is for known frequencies, `minimax` for the worst frequencies. `two_phase` fits
a power law to a pilot. `linear` has a width in proportion to the number of clients (Chen et al.
2022).

**Our readings.** Where the paper's wording is ambiguous or has a slip, we chose as follows (more:
docs/accuracy.md). No conclusion of the paper depends on these choices:

- *Rows.* L = log(d / p) holds only up to a constant. With few rows, heavy items spoil medians for
  any C. This is so even if there are no other items, where the error bound is 0. See `rows_for`.
- *Worst case.* `hardness` is at most 1 / tau, because the two terms of its formula share the total
  frequency of 1. The paper's width 2 / tau counts this total twice. We keep the paper's figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.kernels import MAX_ROWS
from fedtally.plan.frequencies.power_law import STEEPEST
from fedtally.recovery.decoders import SIMPLEST
from fedtally.recovery.linear_system import Candidates
from fedtally.sketch import CountSketch

F64 = npt.NDArray[np.float64]
_ROUNDING = 1e-9
# the most ranks of the two-phase power law; later ranks add less than 2^-23 / tau^2 to its hardness
_MOST_RANKS = 1 << 23


# ---- hardness ----


def hardness(frequencies: npt.ArrayLike, tau: float) -> float:
    """Return the hardness: the width that an error of tau needs, without a constant factor.

    It is the number of items with f >= tau, plus the sum of f^2 / tau^2 over the items with f <
    tau: equation (2), corollary "Oracle sketch size".

    What it means: take the paper's error bound without its constant factor and its dependence on
    the rows. This bound is at most tau if the width is at least the hardness. It is above tau if
    the width is less than half of the hardness.

    The hardness equals the sum of min(1, f / tau)^2. So it is a continuous function of tau, which
    never rises. It is at most the number of items that occur. If frequencies sum to at most 1, it
    is at most 1 / tau.

    Args:
        frequencies: [d], each in [0, 1].
        tau: the error, above 0.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> hardness([0.5, 0.25, 0.125, 0.125], tau=0.25)
    2.5
    """
    known, tau = _known(frequencies), _positive(tau=tau)
    return float(((np.minimum(known, tau) / tau) ** 2).sum())


# ---- rows and widths ----


def rows_for(domain_size: int, p: float, *, constant: float = 1.0, factor: float = 2.0) -> int:
    """Return the number of rows L for a probability of failure p: c log(factor d / p), rounded up.

    The paper's corollaries use factor 1, and its experiments use factor 2. The example below is the
    paper's: 175,000 items, p = 0.1.

    Which constant c is enough depends on the constant C of the width (this is our remark). Let a
    row have C counters for each heavy item, and let there be no other items. Then the estimate of a
    row is too high with probability at most q = (1 - e^(-1/C)) / 2, and likewise too low.
    The median over the rows is too high with probability at most (4 q (1 - q))^(L / 2). The same
    bound holds for the probability that it is too low. So L = c log(2 d / p) rows are enough, with
    c = 2 / log(1 / (4 q (1 - q))). Hardly fewer rows would be enough. This c is 13.8 for C = 1, 4.4
    for C = 2, 2.1 for C = 4, and below 1 from C = 14 on.

    Args:
        domain_size: d, the number of candidates, at least 1.
        p: the probability of failure, above 0 and below 1.
        constant: the constant c, above 0.
        factor: the factor within the logarithm, at least 1.

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
    """Return the width that is enough for a largest error of tau, if the frequencies are known.

    W = C min(hardness(f, tau), n), rounded up, at least 2: equation (2), corollary "Oracle sketch
    size".

    Args:
        frequencies: [d], each in [0, 1].
        tau: the largest error, above 0 and below 1.
        constant: C; the default 2 is the paper's ("we set all constant factors to be 2").
        num_clients: n, the number of clients, or None. It matters only if `frequencies` are
            probabilities, and not yet shares of these clients. Then n clients with one item each
            hold at most n different items, and the hardness is at most the number of items that
            occur.

    >>> width_oracle([0.5, 0.25, 0.125, 0.125], tau=0.25)
    5
    """
    needed = hardness(frequencies, _inside(tau=tau))
    if num_clients is not None:
        needed = min(needed, validate.integer(1, num_clients=num_clients))
    return _whole(_positive(constant=constant) * needed, 2)


def width_minimax(tau: float, num_clients: int, constant: float = 2.0) -> int:
    """Return the width that is enough for tau, whatever the frequencies are: C min(2 / tau, n).

    It is rounded up, and at least 2: equation (3), corollary "Oracle sketch size".

    Args:
        tau: the largest error, above 0 and below 1.
        num_clients: n, the number of clients; with shared hashes, the clients of all rounds
            together.
        constant: C; the default 2 is the paper's.

    >>> width_minimax(0.01, 10_000), width_minimax(0.01, 50)
    (400, 100)
    """
    num_clients = validate.integer(1, num_clients=num_clients)
    return _whole(_positive(constant=constant) * min(2 / _inside(tau=tau), num_clients), 2)


def width_linear(num_clients: int, constant: float = 2.0) -> int:
    """Return a width in proportion to the number of clients: C n, rounded up, at least 2.

    It is the width of Chen et al. 2022 as the paper describes it: O(n log d log n) bits from each
    client, nearly optimal in the worst case. It equals `width_minimax` for a tau below 2 / n.

    Args:
        num_clients: n, the number of clients.
        constant: C. The default 2 is the paper's value for its other constants; its experiments do
            not use this width.

    >>> width_linear(17_500)
    35000
    """
    return _whole(_positive(constant=constant) * validate.integer(1, num_clients=num_clients), 2)


# ---- sizes ----


@dataclass(frozen=True)
class Size:
    """The rows and the width of a sketch, how they were chosen, and the predicted error.

    Attributes:
        method: how the size was chosen: "oracle", "minimax", "linear", "two-phase", "model",
            "budget" or "histogram". It is "minimax", too, if the method "model" could not use its
            pilot.
        rows: L, the number of rows.
        width: W, the number of counters in a row.
        linf: the predicted largest error, which is exceeded with some probability p; None: no error
            was predicted.
        message: a remark for the user, or "".
        recovery: the name of the decoder for whose error the size was chosen; "": the decoder that
            `CampaignSpec.recovery_of` returns.
    """

    method: str
    rows: int
    width: int
    linf: float | None = None
    message: str = ""
    recovery: str = ""

    @property
    def cells(self) -> int:
        """The number of counters, rows times width."""
        return self.rows * self.width


def oracle(
    frequencies: npt.ArrayLike,
    tau: float,
    *,
    num_clients: int,
    domain_size: int,
    p: float = 0.1,
    rows: int | None = None,
    constant: float = 2.0,
) -> Size:
    """Return the paper's size for known frequencies ("instance optimal"), see `width_oracle`.

    Args:
        frequencies: each in [0, 1]; candidates of frequency 0 may be left out.
        tau: the largest error that is allowed, above 0 and below 1.
        num_clients: n, the number of clients of all rounds together.
        domain_size: d, the number of candidates.
        p: the probability of failure, above 0 and below 1.
        rows: L, the number of rows; None: log(2 d / p), see `rows_for`.
        constant: C, the constant of the width.

    >>> oracle([0.5, 0.25, 0.125, 0.125], 0.25, num_clients=1000, domain_size=175_000)
    Size(method='oracle', rows=16, width=5, linf=None, message='', recovery='')
    """
    width = width_oracle(frequencies, tau, constant, num_clients=num_clients)
    return Size("oracle", _paper_rows(rows, domain_size, p), width)


def minimax(
    tau: float,
    *,
    num_clients: int,
    domain_size: int,
    p: float = 0.1,
    rows: int | None = None,
    constant: float = 2.0,
) -> Size:
    """Return the paper's size for the worst frequencies, see `width_minimax`.

    `oracle` explains the arguments.

    >>> minimax(0.01, num_clients=17_500, domain_size=175_000).width
    400
    """
    return Size(
        "minimax",
        _paper_rows(rows, domain_size, p),
        width_minimax(tau, num_clients, constant),
    )


def linear(
    *,
    num_clients: int,
    domain_size: int,
    p: float = 0.1,
    rows: int | None = None,
    constant: float = 2.0,
) -> Size:
    """Return a size whose width is in proportion to the number of clients, see `width_linear`.

    `oracle` explains the arguments.

    >>> linear(num_clients=17_500, domain_size=175_000).width
    35000
    """
    return Size("linear", _paper_rows(rows, domain_size, p), width_linear(num_clients, constant))


def two_phase(
    pilot: CountSketch,
    domain: Domain,
    tau: float,
    *,
    num_clients: int,
    p: float = 0.1,
    rows: int | None = None,
    top: int = 20,
    constant: float = 2.0,
) -> Size:
    """Return the paper's two-phase size: `width_oracle` for a power law fitted to a pilot.

    Section 2, "A two-phase method for hyperparameter setup". The pilot's frequencies are estimated
    by medians. A power law is fitted by least squares to the largest of them, and is taken as the
    true frequencies. The law ends before its mass would exceed 1, or at the last candidate, or at
    rank 2^23. If its first frequency is above 1, the law is a single item that all clients hold.

    We correct two slips of step 4: it cites the equation of the bits instead of the width, and
    writes beta i^alpha instead of beta i^-alpha.

    Args:
        pilot: the sum of the pilot's sketches; the paper's pilot has 8 x 200 counters and a tenth
            of the clients (`Pilot`).
        domain: the candidates.
        tau: the largest error that is allowed, above 0 and below 1.
        num_clients: n, the number of clients of all later rounds together.
        p: the probability of failure, above 0 and below 1.
        rows: L, the number of rows; None: log(2 d / p), see `rows_for`.
        top: how many of the largest estimates the power law is fitted to, at least 2.
        constant: C, the constant of the width.

    Raises:
        InvalidInputError: no client took part in the pilot, or a value is out of its range.
    """
    decoder = SIMPLEST[Encoding.SKETCH].kind.make([pilot], domain)
    if decoder.num_clients == 0:
        raise InvalidInputError("no client took part in the pilot: there is nothing to fit")
    top = validate.integer(2, top=top)
    largest = np.empty(0)
    for _, counts in Candidates(domain).decoded(decoder):
        both = np.append(largest, counts)
        largest = (
            np.sort(both)[::-1][:top]
            if len(both) <= 4 * top
            else np.sort(np.partition(both, -top)[-top:])[::-1]
        )
    frequencies = _two_phase_law(largest / decoder.num_clients, domain.size)
    width = width_oracle(frequencies, tau, constant, num_clients=num_clients)
    return Size("two-phase", _paper_rows(rows, domain.size, p), width)


def _two_phase_law(largest: F64, domain_size: int) -> F64:
    """Return the power law beta i^-alpha that fits the largest frequencies best.

    The fit is by least squares. The law ends before its mass would exceed 1, or at the last
    candidate, or at `_MOST_RANKS`. It has at least one rank.

    Returns:
        float64 [at most d], the frequencies of ranks 1, 2, ...; each at most 1.
    """
    logs = np.log(np.arange(1.0, len(largest) + 1))

    def beta(alpha: float) -> float:
        return float(largest @ np.exp(-alpha * logs)) / float(np.exp(-2 * alpha * logs).sum())

    def squares(alpha: float) -> float:
        return float(((largest - beta(alpha) * np.exp(-alpha * logs)) ** 2).sum())

    # imported here: only this size of the paper needs the module
    from scipy.optimize import minimize_scalar

    alpha = float(
        minimize_scalar(
            squares, bounds=(0.0, STEEPEST), method="bounded", options={"xatol": 1e-6}
        ).x
    )
    distribution = (
        max(beta(alpha), 0.0) * np.arange(1.0, min(domain_size, _MOST_RANKS) + 1) ** -alpha
    )
    kept = distribution[: max(1, int(np.searchsorted(np.cumsum(distribution), 1.0, side="right")))]
    return np.minimum(kept, 1.0)


def _paper_rows(rows: int | None, domain_size: int, p: float) -> int:
    return rows_for(domain_size, p) if rows is None else validate.integer(1, MAX_ROWS, rows=rows)


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
    """Return log(number / p), without overflow if p is tiny."""
    return math.log(number) - math.log(_inside(p=p))


def _whole(value: float, minimum: int) -> int:
    """Return a size rounded up to an integer, at least `minimum`.

    Raises:
        InvalidInputError: the size is 2^53 or more.
    """
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
