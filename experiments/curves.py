"""The error of a campaign under differential privacy, as a function of its number of batches.

docs/accuracy.md has the model, equation (1), and its limits. What a plan takes, the planner finds
by the error model alone; this module has the whole curve, from the frequencies (`errors_by_law`) or
from the norm of their tail (`errors_by_tail`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.plan.privacy import noise_of_release
from fedtally.plan.rounds import numbers_of_batches
from fedtally.privacy.accounting import noise_multiplier
from fedtally.privacy.events import Event, Mechanism
from fedtally.recovery.decoders.median.median_error import _LATTICE, _law_of_median
from fedtally.recovery.error_model import Prediction, predict

F64 = npt.NDArray[np.float64]
Fold = Literal["median", "mean"]
_NORMAL_STEP = 0.005  # of a lattice of normals, which then reaches 10 standard deviations
HEAD = 0.3  # the share of the width that is the number of a population's head items: see tail_norm


# ---- the noise ----


@dataclass(frozen=True)
class Release:
    """The sums that a campaign opens, and how private they must be.

    With rounded Gaussian noise the rounds of a batch are added up before anything is opened, by a
    trusted aggregator or by two servers, each of which adds all of the noise. With Skellam noise
    one server opens every round.

    Args:
        event: the exposure of a client. Its variance and per_opening are not used.
        epsilon: the target, 1e-6 .. 1e3.
        delta: the target, in (0, 1).
        num_clients: the clients of all rounds together; a client that takes part twice counts
            twice.
        num_rounds: M, the rounds, of equal size; at least event.participations.
        provision: the variance of the noise that is in a sum over the variance that is accounted,
            at least 1. It is survivors / (min_survivors - C), since all survivors add noise.

    Raises:
        InvalidInputError: a value is out of its range.

    >>> event = Event("rounded-gaussian", rows=16, relation="zero-out", participations=4)
    >>> release = Release(event, epsilon=1.0, delta=1e-6, num_clients=1_000_000, num_rounds=64)
    >>> # a client's 4 rounds are in batches of 4, of 4, of 2 + 2, or of 1 + 1 + 1 + 1
    >>> [round(release.noise(batches), 1) for batches in (1, 16, 32, 64)]
    [67.6, 67.6, 47.8, 33.8]
    """

    event: Event
    epsilon: float
    delta: float
    num_clients: int
    num_rounds: int
    provision: float = 1.0

    def __post_init__(self) -> None:
        validate.integer(1, num_clients=self.num_clients)
        validate.integer(self.event.participations, num_rounds=self.num_rounds)
        validate.real(1.0, provision=self.provision)
        if self.provision > 1 and self.adds_up:
            raise InvalidInputError(
                f"provision belongs to the shares of skellam noise, got {self.provision:g}"
            )
        noise_multiplier(self.epsilon, self.delta)  # raises where epsilon or delta is out of range

    @property
    def adds_up(self) -> bool:
        """Whether rounds of a batch are added up before anything is opened."""
        return self.event.mechanism is Mechanism.ROUNDED_GAUSSIAN

    def num_releases(self, num_batches: int) -> int:
        """Return how many noised sums are opened."""
        num_batches = self._checked(num_batches)
        return num_batches if self.adds_up else self.num_rounds

    def noise(self, num_batches: int) -> float:
        """Return the standard deviation of the noise in one counter of one release, in counts."""
        most = -(-self.num_rounds // self._checked(num_batches))  # rounds of a batch
        per_release = min(self.event.participations, most if self.adds_up else 1)
        # The bound on collisions is certified for rounds that are opened one by one only.
        collisions = self.event.collisions if per_release == 1 else None
        event = replace(self.event, per_release=per_release, collisions=collisions)
        return noise_of_release(event, self.epsilon, self.delta, self.provision)

    def noise_variance(self, num_batches: int) -> float:
        """Return the variance of one row's estimates by noise alone, in squared frequencies."""
        return self.num_releases(num_batches) * (self.noise(num_batches) / self.num_clients) ** 2

    def _checked(self, num_batches: int) -> int:
        """Return a number of batches, none of which is without a round."""
        return validate.integer(1, self.num_rounds, num_batches=num_batches)


# ---- the curve ----


def tail_norm(frequencies: npt.ArrayLike, width: int) -> float:
    """Return T: the l2 norm of all frequencies except the 0.3 W largest.

    A few heavy items do not disturb a median over rows, or a fit, so they are left out. The share
    was chosen in the study of the paper's decoder, where m* is then right within a factor of 2.

    >>> tail_norm([0.6, 0.3, 0.04, 0.03], width=7)
    0.05
    """
    width = validate.integer(1, width=width)
    values = np.sort(np.asarray(frequencies, dtype=np.float64))
    return float(np.linalg.norm(values[: max(len(values) - int(HEAD * width), 0)]))


def concentration(num_batches: int, num_rounds: int) -> float:
    """Return the sum over batches of their squared shares of the rounds.

    It is 1/m, or more where m does not divide M.

    Args:
        num_batches: m, 1 .. M.
        num_rounds: M.

    >>> concentration(2, 4), concentration(2, 3)
    (0.5, 0.5555555555555556)
    """
    num_batches = validate.integer(1, num_rounds, num_batches=num_batches)
    most = -(-num_rounds // num_batches)
    smaller = most * num_batches - num_rounds  # batches of one round less
    larger = num_batches - smaller
    return (larger * most**2 + smaller * (most - 1) ** 2) / num_rounds**2


def row_variance(
    release: Release, num_batches: int, width: int, tail_norm: float, spread: float | None = None
) -> float:
    """Return V(m), equation (1): the variance of a light item's estimate from one row.

    It is in squared frequencies.

    Args:
        release: the sums that are opened, and their privacy.
        num_batches: m, 1 .. M.
        width: W.
        tail_norm: T, of frequencies.
        spread: H. None stands for 1 / N, an upper bound for rounds of one distribution and clients
            that hold one item each.

    >>> release = Release(Event("rounded-gaussian", 16, "zero-out"), 1.0, 1e-6, 1_000_000, 64)
    >>> [f"{row_variance(release, m, 500, tail_norm=0.006, spread=0.0):.2e}" for m in (1, 16, 64)]
    ['7.23e-08', '9.07e-09', '1.94e-08']
    """
    width, tail_norm = validate.integer(1, width=width), validate.real(0.0, tail_norm=tail_norm)
    spread = 1 / release.num_clients if spread is None else validate.real(0.0, spread=spread)
    return (
        tail_norm**2 * concentration(num_batches, release.num_rounds) + spread
    ) / width + release.noise_variance(num_batches)


def errors_by_tail(
    release: Release,
    width: int,
    tail_norm: float,
    candidates: int,
    *,
    fold: Fold = "median",
    spread: float | None = None,
) -> dict[int, Prediction]:
    """Return the error for every number of batches, 1 .. M, from the norm of the tail alone.

    Args:
        release: the sums that are opened, and their privacy.
        width: W.
        tail_norm: T, of frequencies.
        candidates: d.
        fold: "median", the paper's decoder, or "mean".
        spread: as in `row_variance`.

    >>> release = Release(Event("rounded-gaussian", 16, "zero-out"), 1.0, 1e-6, 1_000_000, 64)
    >>> curve = errors_by_tail(release, 500, 0.006, 100_000, spread=0.0)
    >>> best_releases(curve).num_batches, round(1e6 * 0.006 / (4.2247 * (16 * 500) ** 0.5), 1)
    (16, 15.9)
    """
    rows = release.event.rows
    stddev, largest = item_factor(rows, fold), largest_factor(rows, candidates, fold)
    roots = (
        (m, math.sqrt(row_variance(release, m, width, tail_norm, spread)))
        for m in range(1, release.num_rounds + 1)
    )
    return {m: Prediction(stddev * root, 0.0, largest * root) for m, root in roots}


def errors_by_law(
    release: Release,
    width: int,
    frequencies: npt.ArrayLike,
    *,
    recovery: str = "joint",
    candidates: int | None = None,
    batches: Iterable[int] | None = None,
) -> dict[int, Prediction]:
    """Return the errors for several numbers of batches, from the population's frequencies.

    They come from `error_model`. Batches of unequal size are replaced by the number of equal ones
    that spreads the rounds alike.

    Args:
        release: the sums that are opened, and their privacy; clients hold one item each.
        width: W.
        frequencies: [d], the expected frequencies in any order, together at most 1.
        recovery: "joint", "median" or "belief".
        candidates: size of the domain where it is larger than d.
        batches: numbers of batches besides 1 and M. None stands for numbers about a factor of
            sqrt(2) apart. The best of them is at most 1 % above the best of all where (1) holds.

    >>> release = Release(Event("rounded-gaussian", 16, "zero-out"), 1.0, 1e-6, 1_000_000, 64)
    >>> distribution = np.arange(1, 100_001.0) ** -1.1
    >>> best = best_releases(errors_by_law(release, 500, distribution / distribution.sum()))
    >>> best.num_batches, [f"{error.linf:.1e}" for error in (best.error, best.of_one, best.of_all)]
    (6, ['6.5e-05', '1.5e-04', '1.6e-04'])
    """
    choices = (
        numbers_of_batches(release.num_rounds)
        if batches is None
        else {1, *batches, release.num_rounds}
    )
    found = {}
    for m in sorted(choices):
        equal = round(1 / concentration(m, release.num_rounds))  # m itself where it divides M
        found[m] = predict(
            frequencies,
            rows=release.event.rows,
            width=width,
            schedule=f"batched:{equal}",
            num_rounds=equal,
            num_clients=release.num_clients,
            noise=release.num_clients * math.sqrt(release.noise_variance(m) / equal),
            recovery=recovery,
            candidates=candidates,
        )
    return found


class Best(NamedTuple):
    """The best number of batches, its error, and the errors of one batch and of M batches."""

    num_batches: int
    error: Prediction
    of_one: Prediction
    of_all: Prediction


def best_releases(curve: Mapping[int, Prediction]) -> Best:
    """Return the number of batches with the least `linf`; of equal ones, the most batches.

    Args:
        curve: from `errors_by_tail` or `errors_by_law`.
    """
    if not curve:
        raise InvalidInputError("the curve must hold at least one number of batches, got none")
    best = min(curve, key=lambda m: (curve[m].linf, -m))
    return Best(best, curve[best], curve[min(curve)], curve[max(curve)])


# ---- medians of normals ----


def item_factor(rows: int, fold: Fold = "median") -> float:
    """Return the standard deviation of the median, or mean, of independent standard normals.

    For the median of L it is c_L / sqrt(L).

    >>> [round(item_factor(rows) * rows**0.5, 3) for rows in (1, 2, 5, 15, 16, 65)]
    [1.0, 1.0, 1.198, 1.235, 1.203, 1.249]
    """
    rows = validate.integer(1, rows=rows)
    if _checked(fold) == "mean":
        return 1 / math.sqrt(rows)
    sizes, distribution = median_of_normals(rows)
    return math.sqrt(float(distribution @ sizes**2))


def largest_factor(rows: int, candidates: int, fold: Fold = "median") -> float:
    """Return the median of the largest of many medians, or means, of standard normals, in size.

    It is the median, as everywhere in `error_model`; the expectation is 1 % more.

    >>> [round(largest_factor(rows, 100_000) * rows**0.5, 2) for rows in (1, 5, 16)]
    [4.5, 5.49, 5.46]
    """
    rows, candidates = validate.integer(1, rows=rows), validate.integer(1, candidates=candidates)
    exceeded = -math.expm1(-math.log(2.0) / candidates) / 2  # by each, on each side
    if _checked(fold) == "mean":
        return -float(ndtri(exceeded)) / math.sqrt(rows)
    sizes, distribution = median_of_normals(rows)
    possible = (sizes < 0) & (distribution > 0)
    below, upper = np.cumsum(distribution[possible]), sizes[possible] + (sizes[1] - sizes[0]) / 2
    return -float(np.interp(math.log(exceeded), np.log(below), upper))


def median_of_normals(rows: int) -> tuple[F64, F64]:
    """Return the distribution of the median of so many independent standard normals.

    First its sizes, rising, then the probability of each.

    The normals are rounded to steps of 1/200, which changes quantiles by less than 2e-4 of
    themselves for up to 100 rows, by less than 2e-3 for up to 1,024.

    >>> sizes, distribution = median_of_normals(3)
    >>> round(float(distribution @ sizes**2), 4), round(1 - 3**0.5 / np.pi, 4)
    (0.4487, 0.4487)
    """
    edges = _NORMAL_STEP * (np.arange(-_LATTICE // 2, _LATTICE // 2 + 1) - 0.5)
    distribution, step = _law_of_median(np.diff(ndtr(edges)), rows, _NORMAL_STEP)
    return step * (np.arange(float(len(distribution))) - len(distribution) // 2), distribution


def _checked(fold: Fold) -> Fold:
    if fold not in ("median", "mean"):
        raise InvalidInputError(f"fold must be median or mean, got {fold!r}")
    return fold
