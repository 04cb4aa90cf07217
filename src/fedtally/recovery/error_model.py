"""The error that a plan will have, predicted before it runs: from frequencies, sketch and noise.

A `Setting` says what is given beside the frequencies, and predicts. Each decoder has a model of its
own beside it (`DecoderKind.predict`). No constant of them was fitted to simulations.
docs/error-model.md derives them, says what they assume, and where they fail;
`python -m experiments error_model` compares them with simulations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.privacy.events import Mechanism
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.median import median_error
from fedtally.recovery.error_shape import (
    F64,
    Prediction,
    Shape,
    effective,
    heterogeneity_of_batches,
)
from fedtally.sketch import Schedule, ScheduleKind

__all__ = [
    "Prediction",
    "Setting",
    "exceedance",
    "failure",
    "heterogeneity_of_batches",
    "predict",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """A campaign whose error is predicted: all that is given beside the frequencies.

    Values are checked when an error is predicted.

    Args:
        rows: of the sketch, at least 1, for joint recovery 3.
        width: of the sketch, at least 1.
        schedule: shared, fresh, hybrid or batched:B.
        num_rounds: at least 1.
        num_clients: of all rounds together, at least 1; may be left out where `round_sizes` are
            given.
        noise: standard deviation of the noise in each counter of each round's sum, in counts.
        recovery: the name of a decoder.
        candidates: size of the domain where it is larger than the number of frequencies; the others
            are held by nobody.
        numbers: how many items have each frequency; one if absent.
        round_sizes: [num_rounds], clients of each round, at least 1; of equal size if absent.
        heterogeneity: h, at least 1: the mean over rounds of the squared l2 norm of the tail's
            frequencies, over that of their mean distribution's; more than the number of rounds
            counts as that. 1: rounds of one distribution.
        max_items: the most items of one client.
        mechanism: of the noise, which decides the tails of a histogram's errors.
        draws: of that noise, all rounds together, at least 1; for a histogram.

    >>> law = np.arange(1, 10_001.0) ** -1.1
    >>> setting = Setting(rows=5, width=100, schedule="shared", num_rounds=1, num_clients=10_000)
    >>> [round(setting.exceedance(law / law.sum(), size), 4) for size in (0.002, 0.01, 0.05)]
    [0.1376, 0.0032, 0.0]
    """

    rows: int
    width: int
    schedule: Schedule | str
    num_rounds: int
    num_clients: int | None = None
    noise: float = 0.0
    recovery: str = "joint"
    candidates: int | None = None
    numbers: npt.ArrayLike | None = None
    round_sizes: Sequence[int] | None = None
    heterogeneity: float = 1.0
    max_items: int = 1
    mechanism: Mechanism = Mechanism.ROUNDED_GAUSSIAN
    draws: int = 1

    def predict(self, frequencies: npt.ArrayLike, probability: float = 0.5) -> Prediction:
        """Return the predicted error.

        Args:
            frequencies: [d], expected frequencies in any order, in [0, 1], together at most
                `max_items`.
            probability: in (0, 1), that the largest error exceeds linf.

        Raises:
            InvalidInputError: a value is out of its range.
        """
        known, number, shape = self._checked(frequencies)
        if not 0.0 < validate.real(probability=probability) < 1.0:
            raise InvalidInputError(f"probability must be above 0 and below 1, got {probability}")
        return Recovery(self.recovery).kind.predict(known, shape, number, probability)

    def failure(self, frequencies: npt.ArrayLike, tau: float) -> float:
        """Return the predicted probability that the largest error of a campaign exceeds a size.

        Args:
            frequencies: as in `predict`.
            tau: the size, a frequency, above 0.

        Raises:
            InvalidInputError: a value is out of its range.
        """
        known, number, shape = self._checked(frequencies)
        if validate.real(0.0, tau=tau) == 0.0:
            raise InvalidInputError(f"tau must be above 0, got {tau}")
        return Recovery(self.recovery).kind.failure(known, shape, number, tau)

    def exceedance(self, frequencies: npt.ArrayLike, size: float) -> float:
        """Return the predicted share of light items that the paper's decoder misses by a size.

        Whatever `recovery` says, the decoder is the median.

        Args:
            frequencies: as in `predict`.
            size: that is exceeded, a frequency, above 0.

        Raises:
            InvalidInputError: a value is out of its range.
        """
        known, number, shape = self._checked(frequencies, Recovery.MEDIAN)
        if validate.real(0.0, size=size) == 0.0:
            raise InvalidInputError(f"size must be above 0, got {size}")
        return median_error.exceedance(known, shape, number, size)

    def _checked(
        self, frequencies: npt.ArrayLike, recovery: str | None = None
    ) -> tuple[F64, F64, Shape]:
        """Return rising positive frequencies, how many items have each, and the shape."""
        known, number = _known(
            frequencies, self.numbers, validate.integer(1, max_items=self.max_items)
        )
        rounds = _rounds(
            Schedule.parse(self.schedule),
            self.num_rounds,
            self.num_clients,
            self.round_sizes,
            self.heterogeneity,
        )
        candidates = _candidates(number, self.candidates)
        decoder = Recovery.parse(self.recovery if recovery is None else recovery)
        rows = validate.integer(1, rows=self.rows)
        decoder.check_rows(rows)
        shape = Shape(
            rows,
            validate.integer(1, width=self.width),
            rounds.sizes,
            rounds.fresh,
            rounds.clients,
            validate.real(0.0, noise=self.noise) ** 2 * self.num_rounds,
            candidates,
            rounds.heterogeneity,
            self.mechanism,
            validate.integer(1, draws=self.draws),
        )
        return known[known > 0], number[known > 0], shape


def predict(frequencies: npt.ArrayLike, *, probability: float = 0.5, **setting: Any) -> Prediction:
    """Return the predicted error of a campaign: `Setting(**setting).predict`.

    >>> distribution = np.arange(1, 100_001.0) ** -1.1
    >>> distribution /= distribution.sum()
    >>> plan = {"rows": 5, "width": 1000, "schedule": "hybrid", "num_rounds": 10}
    >>> for recovery in ("joint", "median"):
    ...     found = predict(distribution, **plan, num_clients=1_000_000, recovery=recovery)
    ...     print(f"{found.linf:.1e}")
    4.6e-05
    1.7e-03
    """
    return Setting(**setting).predict(frequencies, probability)


def failure(frequencies: npt.ArrayLike, tau: float, **setting: Any) -> float:
    """Return the probability that the largest error exceeds tau: `Setting(**setting).failure`.

    >>> law = np.arange(1, 10_001.0) ** -1.1
    >>> plan = {"rows": 15, "schedule": "shared", "num_rounds": 1, "num_clients": 10_000}
    >>> [round(failure(law / law.sum(), 0.01, width=width, recovery="median", **plan), 2)
    ...  for width in (50, 75, 100)]
    [0.69, 0.07, 0.01]
    """
    return Setting(**setting).failure(frequencies, tau)


def exceedance(frequencies: npt.ArrayLike, size: float, **setting: Any) -> float:
    """Return the share of light items that the median misses by more: `Setting.exceedance`."""
    return Setting(**setting).exceedance(frequencies, size)


class _Rounds(NamedTuple):
    """What a plan says of its rounds: as in `Shape`."""

    sizes: F64
    fresh: bool
    clients: int
    heterogeneity: float


def _rounds(
    schedule: Schedule,
    num_rounds: int,
    num_clients: int | None,
    round_sizes: Sequence[int] | None,
    heterogeneity: float,
) -> _Rounds:
    rounds = np.ones(validate.integer(1, num_rounds=num_rounds))
    if round_sizes is not None:
        if len(round_sizes) != num_rounds:
            raise InvalidInputError(
                f"round_sizes must be {num_rounds}, one of each round, got {len(round_sizes)}"
            )
        rounds = np.array(
            [validate.integer(1, round_sizes=size) for size in round_sizes], dtype=np.float64
        )
        total = int(rounds.sum())
        if num_clients is None:
            num_clients = total
        elif num_clients != total:
            raise InvalidInputError(
                f"num_clients must be the sum of round_sizes, {total}, got {num_clients}"
            )
    elif num_clients is None:
        raise InvalidInputError("num_clients or round_sizes must be given, got neither")
    sizes = np.array(
        [rounds[batch.start : batch.stop].sum() for batch in schedule.batches_of(num_rounds)]
    )
    spread = heterogeneity_of_batches(
        validate.real(1.0, heterogeneity=heterogeneity), effective(sizes), effective(rounds)
    )
    clients = validate.integer(1, num_clients=num_clients)
    return _Rounds(sizes, schedule.kind is ScheduleKind.FRESH, clients, spread)


def _candidates(number: F64, candidates: int | None) -> int:
    """Return how many candidates there are, at least as many as have a frequency."""
    items = math.ceil(float(number.sum()) * (1 - 1e-9))
    size = items if candidates is None else validate.integer(candidates=candidates)
    if size < max(items, 1):
        raise InvalidInputError(
            f"candidates must be at least 1 and the number of frequencies, {items}, got {size}"
        )
    return size


def _known(
    frequencies: npt.ArrayLike, numbers: npt.ArrayLike | None, max_items: int
) -> tuple[F64, F64]:
    """Return checked frequencies, rising, and how many items have each."""
    known = _numbers(frequencies=frequencies)
    each = np.ones_like(known) if numbers is None else _numbers(numbers=numbers)
    if len(each) != len(known):
        raise InvalidInputError(
            f"numbers must be {len(known)}, one of each frequency, got {len(each)}"
        )
    total = float(known @ each)
    if total > max_items * (1 + 1e-9):
        way_out = (
            "divide them by their sum"
            if max_items == 1
            else "divide counts by the number of clients"
        )
        raise InvalidInputError(
            f"frequencies must sum to at most {max_items}, got {total:.6g}: {way_out}"
        )
    if known.max(initial=0.0) > 1 + 1e-9:
        raise InvalidInputError(f"frequencies must each be at most 1, got {known.max():.6g}")
    order = np.argsort(known)
    return known[order], each[order]


def _numbers(**named: npt.ArrayLike) -> F64:
    """Return the named numbers, in one dimension, finite and at least 0."""
    [(name, values)] = named.items()
    try:
        known = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"{name} must be numbers in one dimension") from None
    if known.ndim != 1:
        raise InvalidInputError(f"{name} must be in one dimension, got {known.ndim}")
    if not np.isfinite(known).all() or (known < 0).any():
        raise InvalidInputError(f"{name} must be finite and at least 0")
    return known
