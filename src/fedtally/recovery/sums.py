"""What the error models of all decoders share: the sizes of the sums, and the predicted errors."""

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
        scale: the standard deviation of one item's error; 0 if recovery is exact. For joint
            recovery it is that of a fitted item. For the median it is the .95 quantile of any
            item's absolute error, divided by 1.96, since the tails of these errors are not normal.
        support: how many items joint recovery fits; 0 for the median and for a histogram.
        linf: the size that the largest error of all candidates exceeds with the probability that
            was asked for.
    """

    scale: float
    support: float
    linf: float


class Sums(NamedTuple):
    """The sums that a decoder reads, described by the numbers that determine its error.

    A batch is a group of rounds with equal signs.

    Attributes:
        rows: the number of rows of the sketch.
        width: the number of counters in a row.
        sizes: float64 [batches], proportional to the number of clients in each batch.
        fresh: whether each batch also has its own locations.
        clients: the number of clients in all batches.
        noise: the variance of the noise in one counter, summed over all rounds, in squared counts.
            The variance that rounding to integers adds is not included.
        candidates: the number of candidates.
        heterogeneity: how much the distributions of the batches differ, from 1 (equal) to the
            effective number of batches; see the argument `heterogeneity` of `of`.
        mechanism: the mechanism that makes the noise; the models of sketches treat it as normal.
        draws: how many independent integer draws add up to the noise.
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
        """Describe the sums of a campaign.

        Args:
            rows: the number of rows of the sketch, at least 1.
            width: the number of counters in a row, at least 1.
            schedule: shared, fresh, hybrid or batched:B.
            num_rounds: the number of rounds, at least 1.
            candidates: the number of candidates.
            num_clients: the number of clients in all rounds, at least 1; may be left out if
                `round_sizes` is given.
            noise: the standard deviation of the noise in each counter of each round, in counts.
            round_sizes: [num_rounds], the number of clients in each round, at least 1; None: equal
                sizes.
            heterogeneity: how much the rounds differ, at least 1. It is the squared l2 norm of the
                rare items' frequencies in a round, averaged over rounds, divided by the squared l2
                norm of their mean frequencies. 1: all rounds have the same distribution. Values
                above the effective number of rounds (see `effective`) are treated as that number.
            mechanism: the mechanism that makes the noise; only the tails of a histogram's errors
                depend on it.
            draws: how many draws make the noise in all rounds together, at least 1; only used for a
                histogram.

        Raises:
            InvalidInputError: a value is out of its range, `round_sizes` does not fit `num_rounds`
                or `num_clients`, or neither `round_sizes` nor `num_clients` is given.
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
        """The effective number of batches; see the function `effective`."""
        return effective(self.sizes)

    @property
    def cancelling(self) -> float:
        """The number M' of batches of equal size and distribution that give the same error.

        Signs differ between batches, so the errors that collisions cause partly cancel. They cancel
        less if batches have unequal sizes or different distributions.
        """
        return self.batches / self.heterogeneity


def _clients_of_rounds(
    num_rounds: int, num_clients: int | None, round_sizes: Sequence[int] | None
) -> F64:
    """Return the relative sizes of the rounds: float64 [num_rounds].

    They are the numbers of clients in `round_sizes`. Without `round_sizes` each is 1.

    Raises:
        InvalidInputError: a number is below 1; the sizes do not fit the number of rounds or of
            clients; or neither sizes nor a number of clients are given.
    """
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
    """Return the effective number of batches with these sizes: (their sum)^2 / sum of squares."""
    return float(sizes.sum()) ** 2 / float(sizes @ sizes)


def heterogeneity_of_batches(heterogeneity: float, batches: float, num_rounds: float) -> float:
    """Return the heterogeneity of batches of rounds: 1 + (h - 1) (B - 1) / (M - 1).

    The distribution of a batch is the mean of its k = M / B rounds. If these rounds are a random
    choice, the variance of their mean is (M - k) / (k (M - 1)) times that of one round. The formula
    is exact if each item occurs in only one round: then h = M, and the result is B.

    Args:
        heterogeneity: h, the heterogeneity of the rounds, at least 1; above M, M is used.
        batches: B, the effective number of batches, at least 1.
        num_rounds: M, the effective number of rounds, at least B.

    >>> [heterogeneity_of_batches(10.0, batches, 10) for batches in (1, 4, 10)]
    [1.0, 4.0, 10.0]
    """
    if num_rounds <= 1.0 + 1e-9:
        return 1.0
    return 1.0 + (min(heterogeneity, num_rounds) - 1.0) * (batches - 1.0) / (num_rounds - 1.0)


def grouped(values: F64, numbers: F64, ratio: float) -> tuple[F64, F64]:
    """Group values, so that the values of one group are within a ratio of each other.

    Args:
        values: float64 [n], above 0, ascending.
        numbers: float64 [n], how many there are of each value.
        ratio: the ratio, above 1.

    Returns:
        The mean of each group, ascending, and the number of values in it.
    """
    if not len(values):
        return np.empty(0), np.empty(0)
    group = np.floor((np.log(values) - np.log(values[0])) / np.log(ratio)).astype(np.int64)
    sizes = np.bincount(group, numbers).astype(np.float64)
    sums = np.bincount(group, values * numbers)
    return sums[sizes > 0] / sizes[sizes > 0], sizes[sizes > 0]
