"""The paper's hardness, and the sketch sizes that the paper gives for an error.

"The paper" is Wu, Zhu, Kairouz and Braverman, Private Federated Frequency Estimation: Adapting to
the Hardness of the Instance, NeurIPS 2023. Statements are cited by their titles, equations by their
numbers there. Logarithms are natural. The planner itself predicts errors by another model, without
unknown constants: `fedtally.recovery.error_model`. The error bounds that the paper proves are in
experiments/theory.py of the repository.

**Constants.** The theorems hold for some absolute constant C, which they do not give. The widths
here use C = 2, as the paper's experiments do. A constant C in the error bound matters more than one
in the width: an error of at most tau then needs the width hardness(f, tau / C), which is up to C^2
times hardness(f, tau).

**Frequencies** are counts divided by the number of clients: each in [0, 1], in any order. Their sum
is at most 1 if a client holds one item. Only the width 2 / tau depends on this last condition.

**Sizes.** `oracle` knows the frequencies, `minimax` assumes the worst, `two_phase` fits a power law
to a pilot. `linear` is the n of Chen et al. 2022.

**As we read it.** These are our choices where the paper's wording is ambiguous or has a slip (more:
docs/accuracy.md). No conclusion of the paper depends on any of them:

- *Rows.* L = log(d / p) holds only up to a constant: with few rows heavy items spoil medians
  whatever C is, even if the tail is 0 and the error bound therefore, too. See `rows_for`.
- *Worst case.* `hardness` is at most 1 / tau, since its two terms share the mass 1; 2 / tau counts
  it twice. We keep the paper's figures.
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
# the most ranks of the two-phase distribution: later ones add less than 2^-23 / tau^2 to hardness
_MOST_RANKS = 1 << 23


# ---- hardness ----


def hardness(frequencies: npt.ArrayLike, tau: float) -> float:
    """Return the hardness: the width that an error of tau needs, without its constant.

    It is #{f >= tau} + sum of f^2 / tau^2 over f < tau.

    Equation (2), corollary "Oracle sketch size". Take the paper's error bound without its constant
    and its rows. The bound is at most tau if the width is at least the hardness, and above tau if
    the width is less than half of the hardness. The hardness equals sum min(1, f / tau)^2. So it is
    continuous and does not rise with tau. It is at most the number of items that occur, and at most
    1 / tau if frequencies sum to at most 1.

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
    """Return the number of rows L for a probability of failure p: c log(factor d / p), rounded up.

    The paper's corollaries use factor 1, its experiments factor 2. The example below is the
    paper's: 175,000 items, p = 0.1.

    The constant c depends on the constant C of the width (our remark). Let a row have C counters
    for each heavy item, and let there be no other items. Then a row errs to either side with
    probability q = (1 - e^(-1/C)) / 2. The median of an item errs to either side with probability
    at most (4 q (1 - q))^(L / 2). So L = c log(2 d / p) rows suffice, and hardly fewer do, with
    c = 2 / log(1 / (4 q (1 - q))): 13.8 for C = 1, 4.4 for C = 2, 2.1 for C = 4, 1 from C = 14 on.

    Args:
        domain_size: the number of candidates d, at least 1.
        p: the probability of failure, in (0, 1).
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
    """Return the width that suffices for a largest error of tau, for known frequencies.

    W = C min(hardness(f, tau), n): equation (2), corollary "Oracle sketch size". Rounded up; at
    least 2.

    Args:
        frequencies: [d], each in [0, 1].
        tau: the largest error, in (0, 1).
        constant: C; 2 as in the paper's experiments ("we set all constant factors to be 2").
        num_clients: the number of clients n. It matters only if `frequencies` are probabilities,
            and not yet shares of these clients: n clients with one item each hold at most n items,
            and the hardness is at most the number of items that occur.

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
        tau: the largest error, in (0, 1).
        num_clients: the number of clients n; with shared hashes, the clients of all rounds.
        constant: the constant C; 2 as in the paper's experiments.

    >>> width_minimax(0.01, 10_000), width_minimax(0.01, 50)
    (400, 100)
    """
    num_clients = validate.integer(1, num_clients=num_clients)
    return _whole(_positive(constant=constant) * min(2 / _inside(tau=tau), num_clients), 2)


def width_linear(num_clients: int, constant: float = 2.0) -> int:
    """Return a width linear in the number of clients, W = C n.

    It is the width of Chen et al. 2022 as the paper describes it: O(n log d log n) bits from each
    client, nearly optimal in the worst case. It equals `width_minimax` for a tau below 2 / n.
    Rounded up; at least 2.

    Args:
        num_clients: the number of clients n.
        constant: the constant C; 2 like the other constants of the paper's experiments, which do
            not use this width.

    >>> width_linear(17_500)
    35000
    """
    return _whole(_positive(constant=constant) * validate.integer(1, num_clients=num_clients), 2)


# ---- sizes ----


@dataclass(frozen=True)
class Size:
    """The rows and the width of a sketch, with the method that chose them and the predicted error.

    Attributes:
        method: the method: oracle, minimax, linear, two-phase, model, budget or histogram; minimax
            also if the method model fell back to it.
        rows: the number of rows L.
        width: the number of counters per row W.
        linf: the predicted largest error, exceeded with probability p; None: not predicted.
        message: a remark for the user, or empty.
        recovery: the decoder whose error the size keeps; empty: the usual decoder of plans.
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
    """Return the paper's size for known frequencies, "instance optimal" (`width_oracle`).

    Args:
        frequencies: [d], each in [0, 1].
        tau: the largest error that is allowed, in (0, 1).
        num_clients: the number of clients n, of all rounds together.
        domain_size: the number of candidates d.
        p: the probability of failure, in (0, 1).
        rows: the number of rows L; None: log(2 d / p), see `rows_for`.
        constant: the constant C of the width.

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
    """Return the paper's size for the worst frequencies (`width_minimax`).

    See `oracle` for the arguments.

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
    """Return a size linear in the number of clients (`width_linear`).

    See `oracle` for the arguments.

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
    """Return the paper's two-phase size: `width_oracle` for a power law that a pilot shows.

    Section 2, "A two-phase method for hyperparameter setup". A power law is fitted by least squares
    to the pilot's largest estimates, which are medians, and is taken as the true frequencies. It
    ends at the rank where its mass reaches 1. We correct two slips of step 4: it cites the equation
    of the bits instead of the width, and writes beta i^alpha instead of beta i^-alpha. If the first
    frequency of the power law is above 1, the distribution is this one item.

    Args:
        pilot: the sum of the pilot's sketches; the paper uses 8 x 200 counters and a tenth of the
            clients (`Pilot`).
        domain: the candidate items.
        tau: the largest error that is allowed, in (0, 1).
        num_clients: the number of clients n of all later rounds together.
        p: the probability of failure, in (0, 1).
        rows: the number of rows L; None: see `rows_for`.
        top: the number of largest estimates to which the power law is fitted.
        constant: the constant C of the width.

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
    """Return the power law beta i^-alpha that fits the largest frequencies: float64 [at most d].

    The fit is by least squares. The law ends at the rank i where its mass reaches 1.
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
    """Return a size rounded up to an integer, at least `minimum`."""
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
