"""What the error models of all decoders share: the sums they read, a prediction, and groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.privacy.events import Mechanism
from fedtally.sketch import Schedule, ScheduleKind

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """The predicted errors of a plan, in frequencies.

    Attributes:
        scale: standard deviation of one item's error; 0 if recovery is exact. Under joint recovery
            it is for fitted items. Under the median it is the .95 quantile of any item's error,
            divided by 1.96, since the tails of these errors are not normal.
        support: how many items joint recovery fits; 0 for the median and for a histogram.
        linf: the size that the largest error of all candidates exceeds with the given probability.
    """

    scale: float
    support: float
    linf: float


class Sums(NamedTuple):
    """The sums that a decoder reads, in the numbers that decide its error.

    Attributes:
        rows: rows of the sketch.
        width: counters of a row.
        sizes: float64 [batches], in proportion to the clients of each batch; the rounds of a batch
            have the same signs.
        fresh: whether each batch has locations of its own, too.
        clients: clients of all batches together.
        noise: variance of one counter of the sum over all rounds, before any rounding.
        candidates: candidates whose counts are read.
        heterogeneity: how much the distributions of the batches differ, the h of `of`, from 1 to
            the effective number of batches.
        mechanism: mechanism of the noise; the models of sketches take it as normal.
        draws: the number of independent integer draws that add up to the noise.
    """

    rows: int
    width: int
    sizes: F64
    fresh: bool
    clients: int
    noise: float
    candidates: int
    heterogeneity: float
    mechanism: Mechanism = Mechanism.ROUNDED_GAUSSIAN
    draws: int = 1

    @classmethod
    def of(
        cls,
        *,
        rows: int,
        width: int,
        schedule: Schedule | str,
        num_rounds: int,
        candidates: int,
        num_clients: int | None = None,
        noise: float = 0.0,
        round_sizes: Sequence[int] | None = None,
        heterogeneity: float = 1.0,
        mechanism: Mechanism = Mechanism.ROUNDED_GAUSSIAN,
        draws: int = 1,
    ) -> Self:
        """Return the sums of a campaign.

        Args:
            rows: rows of the sketch, at least 1.
            width: counters of a row, at least 1.
            schedule: shared, fresh, hybrid or batched:B.
            num_rounds: rounds, at least 1.
            candidates: candidates whose counts are read.
            num_clients: clients of all rounds together, at least 1; may be left out where
                `round_sizes` are given.
            noise: standard deviation of the noise in each counter of each round's sum, in counts.
            round_sizes: [num_rounds], clients of each round, at least 1; of equal size if None.
            heterogeneity: h of the rounds, at least 1: the squared l2 norm of the tail's
                frequencies as a mean over rounds, divided by the squared l2 norm of the tail's mean
                distribution. 1: all rounds have one distribution. Values above the number of rounds
                count as this number.
            mechanism: mechanism of the noise, which decides the tails of a histogram's errors.
            draws: the number of draws of the noise in all rounds together, at least 1; for a
                histogram.

        Raises:
            InvalidInputError: a value is out of its range.
        """
        schedule = Schedule.parse(schedule)
        rounds = _clients_of_rounds(num_rounds, num_clients, round_sizes)
        if num_clients is None:
            num_clients = int(rounds.sum())
        sizes = np.array(
            [rounds[batch.start : batch.stop].sum() for batch in schedule.batches_of(num_rounds)]
        )
        spread = validate.real(1.0, heterogeneity=heterogeneity)
        return cls(
            validate.integer(1, rows=rows),
            validate.integer(1, width=width),
            sizes,
            schedule.kind is ScheduleKind.FRESH,
            validate.integer(1, num_clients=num_clients),
            validate.real(0.0, noise=noise) ** 2 * num_rounds,
            candidates,
            heterogeneity_of_batches(spread, effective(sizes), effective(rounds)),
            mechanism,
            validate.integer(1, draws=draws),
        )

    @property
    def batches(self) -> float:
        """The effective number of batches, see `effective`."""
        return effective(self.sizes)

    @property
    def cancelling(self) -> float:
        """The number M' of equal batches in which an item's collisions would cancel as much."""
        return self.batches / self.heterogeneity


def _clients_of_rounds(
    num_rounds: int, num_clients: int | None, round_sizes: Sequence[int] | None
) -> F64:
    """Return numbers in proportion to the clients of rounds: float64 [num_rounds]."""
    rounds = np.ones(validate.integer(1, num_rounds=num_rounds))
    if round_sizes is None:
        if num_clients is None:
            raise InvalidInputError("num_clients or round_sizes must be given, got neither")
        return rounds
    if len(round_sizes) != num_rounds:
        raise InvalidInputError(
            f"round_sizes must be {num_rounds}, one of each round, got {len(round_sizes)}"
        )
    sizes = [validate.integer(1, round_sizes=size) for size in round_sizes]
    if num_clients not in (None, sum(sizes)):
        raise InvalidInputError(
            f"num_clients must be the sum of round_sizes, {sum(sizes)}, got {num_clients}"
        )
    return np.array(sizes, dtype=np.float64)


def effective(sizes: F64) -> float:
    """Return the effective number of batches or rounds of these sizes: (sum)^2 / sum of squares."""
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def heterogeneity_of_batches(heterogeneity: float, batches: float, num_rounds: float) -> float:
    """Return the heterogeneity of batches of rounds: 1 + (h - 1) (B - 1) / (M - 1).

    Here h is the heterogeneity of the rounds, B the number of batches and M the number of rounds. A
    batch's distribution is the mean of its k = M / B rounds. If these are drawn at random, the
    variance of their mean is (M - k) / (k (M - 1)) times that of one round. The formula is exact
    for items that each occur in one round alone: then h is M, and the answer is B.

    Args:
        heterogeneity: h of the rounds, at least 1; no more than M is used.
        batches: B, their effective number, at least 1.
        num_rounds: M, effective, at least B.

    >>> [heterogeneity_of_batches(10.0, batches, 10) for batches in (1, 4, 10)]
    [1.0, 4.0, 10.0]
    """
    if num_rounds <= 1.0 + 1e-9:
        return 1.0
    return 1.0 + (min(heterogeneity, num_rounds) - 1.0) * (batches - 1.0) / (num_rounds - 1.0)


def grouped(values: F64, numbers: F64, ratio: float) -> tuple[F64, F64]:
    """Return means and sizes of groups of values within a ratio of each other.

    The values are positive and rising; `numbers` says how many there are of each.
    """
    if not len(values):
        return np.empty(0), np.empty(0)
    group = np.floor((np.log(values) - np.log(values[0])) / np.log(ratio)).astype(np.int64)
    sizes = np.bincount(group, numbers).astype(np.float64)
    sums = np.bincount(group, values * numbers)
    return sums[sizes > 0] / sizes[sizes > 0], sizes[sizes > 0]
