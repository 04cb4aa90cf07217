"""The sizes of the paper (Wu, Zhu, Kairouz and Braverman 2023), for comparison with the planner's.

All have the constant 2 of the paper's experiments: `oracle` knows the frequencies, `minimax`
assumes the worst, `two_phase` fits a power law to a pilot. `linear` is the n of Chen et al. 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar

from fedtally import theory
from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.kernels import MAX_ROWS
from fedtally.planner.power_law import STEEPEST
from fedtally.recovery.decoders import SIMPLEST
from fedtally.recovery.linear_system import Candidates
from fedtally.sketch import CountSketch

F64 = npt.NDArray[np.float64]
# of the two-phase distribution: what is beyond adds less than 2^-23 / tau^2 to the hardness
_MOST_RANKS = 1 << 23


@dataclass(frozen=True)
class Size:
    """A sketch, and what is said of it.

    Attributes:
        method: oracle, minimax, linear, two-phase, model or budget; minimax where model fell back
            to it.
        rows: L.
        width: W.
        linf: the predicted largest error, exceeded with probability p; None where nothing is
            predicted.
        message: what the reader must know, or empty.
    """

    method: str
    rows: int
    width: int
    linf: float | None = None
    message: str = ""

    @property
    def cells(self) -> int:
        """Counters."""
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
    """Return the paper's size for known frequencies, "instance optimal" (`theory.width_oracle`).

    Args:
        frequencies: [d], each in [0, 1].
        tau: the largest error that is asked for, in (0, 1).
        num_clients: n, of all rounds together.
        domain_size: d.
        p: probability of failure, in (0, 1).
        rows: L; `theory.rows_for` if None, log(2 d / p).
        constant: C.

    >>> oracle([0.5, 0.25, 0.125, 0.125], 0.25, num_clients=1000, domain_size=175_000)
    Size(method='oracle', rows=16, width=5, linf=None, message='')
    """
    width = theory.width_oracle(frequencies, tau, constant, num_clients=num_clients)
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
    """Return the paper's size for the worst frequencies (`theory.width_minimax`).

    The arguments are those of `oracle`.

    >>> minimax(0.01, num_clients=17_500, domain_size=175_000).width
    400
    """
    return Size(
        "minimax",
        _paper_rows(rows, domain_size, p),
        theory.width_minimax(tau, num_clients, constant),
    )


def linear(
    *,
    num_clients: int,
    domain_size: int,
    p: float = 0.1,
    rows: int | None = None,
    constant: float = 2.0,
) -> Size:
    """Return a size linear in the number of clients (`theory.width_linear`).

    The arguments are those of `oracle`.

    >>> linear(num_clients=17_500, domain_size=175_000).width
    35000
    """
    return Size(
        "linear", _paper_rows(rows, domain_size, p), theory.width_linear(num_clients, constant)
    )


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
    """Return the paper's two-phase size.

    A power law is fitted to a pilot's largest estimates, and taken for the truth.

    Section 2, "A two-phase method for hyperparameter setup": the estimates are the medians, the fit
    is by least squares, the distribution ends where its mass is 1, the width is
    `theory.width_oracle`. As we read it: step 4 cites the
    equation of the bits for that of the width, and writes beta i^alpha for beta i^-alpha. A
    distribution whose first frequency is above 1 is taken to be that item alone.

    Args:
        pilot: the sum of the pilot, in the paper 8 x 200 of a tenth of the clients (`Pilot`).
        domain: the candidate items.
        tau: the largest error that is asked for, in (0, 1).
        num_clients: n, of all rounds that follow.
        p: probability of failure, in (0, 1).
        rows: L; `theory.rows_for` if None.
        top: how many of the largest estimates are fitted.
        constant: C.
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
    width = theory.width_oracle(frequencies, tau, constant, num_clients=num_clients)
    return Size("two-phase", _paper_rows(rows, domain.size, p), width)


def _two_phase_law(largest: F64, domain_size: int) -> F64:
    """Return beta i^-alpha, fitted by least squares: float64 [at most d].

    It is cut off where its mass is 1.
    """
    logs = np.log(np.arange(1.0, len(largest) + 1))

    def beta(alpha: float) -> float:
        return float(largest @ np.exp(-alpha * logs)) / float(np.exp(-2 * alpha * logs).sum())

    def squares(alpha: float) -> float:
        return float(((largest - beta(alpha) * np.exp(-alpha * logs)) ** 2).sum())

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
    return (
        theory.rows_for(domain_size, p)
        if rows is None
        else validate.integer(1, MAX_ROWS, rows=rows)
    )
