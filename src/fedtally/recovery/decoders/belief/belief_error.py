"""Predicts the error of belief propagation, by equation (2) of docs/accuracy.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from fedtally.base.roots import root
from fedtally.kernels.propagation import FAR
from fedtally.recovery.decoders.belief.belief import (
    FEWEST_CELLS,
    GAIN,
    MANY_ROWS,
    STILL_OVER,
    STILL_RATIO,
    clearly_different,
)
from fedtally.recovery.decoders.joint import joint_error
from fedtally.recovery.sums import F64, Prediction, Sums

# In standard deviations. A count above _NEAR is estimated as if there were no prior. The values _Z
# go beyond _NEAR, because a count below _NEAR may have a value above it.
_NEAR = FAR + 5.0
_Z = np.linspace(-FAR, _NEAR + 5.0, 211)
# As in the decoder, messages stop when one iteration lowers their variance by less than this
# factor.
_STILL = STILL_RATIO ** (1.0 / STILL_OVER)
_MOST = 500  # the most iterations
# In clients: the smallest standard deviation that is predicted. Equation (2) knows that counts are
# integers, and would predict exact recovery. The prior of the decoder does not know this.
_LEAST = 1.0
# The decoder trusts beliefs if their standard deviation is at most GAIN times that of joint
# recovery. Here the limit is multiplied by this factor. In small sketches joint recovery's standard
# deviation is up to a tenth below its prediction, and both vary between campaigns. Near the limit
# joint recovery may answer instead, with errors several times as large.
_SURE = 0.82
_TINY = 1e-300


class _Channel:
    """Counts that are seen with normal noise, and their posterior means.

    Args:
        counts: float64 [k], ascending, in clients.
        number: float64 [k], the number of items that have each count.
        stddev: the standard deviation of the noise, in clients.

    Attributes:
        near: bool [k], which counts are so small that the prior changes their estimates.
        counts: float64 [near], these counts, in standard deviations.
        mean: float64 [values], ascending: the posterior mean of the count given each value in `_Z`,
            in standard deviations.
        square: float64 [k], the mean squared error of the posterior mean for items of each count,
            in squared clients.
    """

    def __init__(self, counts: F64, number: F64, stddev: float) -> None:
        self._all, self._stddev = counts, stddev
        self.near = counts < _NEAR * stddev
        self.counts = counts[self.near] / stddev
        seen = np.exp(-0.5 * (_Z[:, None] - self.counts) ** 2)
        total = seen @ number[self.near]
        known = (total > _TINY) & (_Z < FAR)
        means = seen @ (number[self.near] * self.counts) / np.maximum(total, _TINY)
        # Where no item is near, rounding could make the means fall.
        self.mean = np.maximum.accumulate(np.where(known, means, _Z))
        self._chance = seen / seen.sum(axis=0)
        error = self._chance * (self.mean[:, None] - self.counts) ** 2
        self.square = np.full(len(counts), stddev**2)
        self.square[self.near] *= error.sum(axis=0)

    def differences(self, variance: F64, more: F64) -> F64:
        """Return the mean squared error of an item's differences between batches: float64 [k].

        The decoder keeps only a part of each observed difference. How much it keeps depends on the
        believed count, since the true count is unknown.

        Args:
            variance: float64 [k], the variance of the true differences, for items of each count.
            more: float64 [k], how much of this variance the decoder sees beyond Poisson noise.

        Returns:
            The errors, in squared clients.
        """
        noise = self._stddev**2

        def error(believed: F64, which: npt.NDArray[np.bool_]) -> F64:
            seen = np.maximum(believed, 0.0) + more[which]
            kept = seen / (seen + noise)
            found: F64 = kept**2 * noise + (1.0 - kept) ** 2 * variance[which]
            return found

        found = error(self._all, np.ones(len(variance), bool))
        believed = self.mean[:, None] * self._stddev
        found[self.near] = (self._chance * error(believed, self.near)).sum(axis=0)
        return found

    def values(self, means: F64) -> F64:
        """Return the values whose posterior means are `means`, all in standard deviations."""
        found = np.interp(means, self.mean, _Z, left=-np.inf)
        return np.where(means > self.mean[-1], means, found)


class _Evolution:
    """Equation (2) of docs/accuracy.md, the state evolution: how the messages' errors develop.

    All sizes are in clients.

    Args:
        counts: float64 [k], ascending, the counts that items have.
        number: float64 [k], the number of items that have each count.
        plan: the sizes and the noise of the sums.
    """

    def __init__(self, counts: F64, number: F64, plan: Sums) -> None:
        self.counts, self.number, self.plan = counts, number, plan
        batches = plan.batches
        self._between = 1.0 - 1.0 / batches
        freedom = max(batches - 1.0, 1e-3)
        # The variance between an item's batches beyond Poisson noise. The decoder sees this
        # variance only if it is clear (`clearly_different`).
        self._more = counts**2 * (plan.heterogeneity - 1.0) / freedom
        self._limit = clearly_different(freedom)

    def errors(self, variance: float) -> F64:
        """Return the mean squared error of an item's messages, summed over batches: float64 [k].

        Args:
            variance: the variance of the values from which the messages are computed.
        """
        counts, more = self.counts, self._more
        clear = np.where(more > self._limit * (counts + variance), more, 0.0)
        channel = _Channel(counts, self.number, math.sqrt(variance))
        differences = channel.differences(counts + more, clear) if self._between else 0.0
        return (1.0 - self._between) * channel.square + self._between * differences

    def still(self) -> tuple[float, F64]:
        """Return the variance of the values when messages settle, and the messages' squared errors.

        The iteration starts from the variance without any messages, and the variance falls.
        """
        plan, rows = self.plan, self.plan.rows
        errors = self.counts**2 / plan.cancelling + self.counts
        variance: float = np.inf
        for _ in range(_MOST):
            before = variance
            variance = (plan.noise + float(self.number @ errors) / plan.width) / rows
            if variance > _STILL * before or variance < _LEAST**2:
                break
            # A message to a row is computed from the values of all other rows.
            errors = self.errors(variance * rows / (rows - 1))
        return variance, errors


class _Settled(NamedTuple):
    """The predicted result of belief propagation, in clients.

    Attributes:
        stddev: the standard deviation of the items' values.
        beyond: a function that returns the expected number of items whose error exceeds a size.
    """

    stddev: float
    beyond: Callable[[float], float]


def predict(
    frequencies: F64, plan: Sums, number: F64 | float = 1.0, probability: float = 0.5
) -> Prediction:
    """Return the predicted error of belief propagation, or of joint recovery (see `_settled`).

    Args:
        frequencies: float64 [k], ascending, above 0.
        plan: the sizes and the noise of the sums.
        number: the number of items of each frequency.
        probability: the probability that the largest error exceeds the result's `linf`.
    """
    joint = joint_error.predict(frequencies, plan, number, probability)
    found = _settled(frequencies, plan, number, joint.scale)
    if found is None:
        return joint
    many = -math.log1p(-probability)

    def more(size: float) -> float:
        return math.log(max(found.beyond(size), _TINY) / many)

    high = plan.clients + 100.0 * found.stddev
    linf = root(more, 0.0, high, within=1e-6 * found.stddev) if more(0.0) > 0.0 else 0.0
    return Prediction(found.stddev / plan.clients, joint.support, linf / plan.clients)


def failure(frequencies: F64, plan: Sums, number: F64, tau: float) -> float:
    """Return the probability that the largest error exceeds tau, a frequency.

    The number of errors above tau is treated as a Poisson variable.

    Args:
        frequencies: float64 [k], ascending, above 0.
        plan: the sizes and the noise of the sums.
        number: the number of items of each frequency.
        tau: the size of an error, above 0.
    """
    scale = joint_error.predict(frequencies, plan, number).scale
    found = _settled(frequencies, plan, number, scale)
    if found is None:
        return joint_error.failure(frequencies, plan, number, tau)
    return -math.expm1(-found.beyond(tau * plan.clients))


def _settled(frequencies: F64, plan: Sums, number: F64 | float, scale: float) -> _Settled | None:
    """Return the predicted result of belief propagation; None: assume that joint recovery answers.

    Joint recovery answers if it is exact, or if there are few cells. It is also assumed to answer
    with few rows, or if the gain is small: then it is uncertain whether the messages settle and are
    trusted.

    Args:
        frequencies: float64 [k], ascending, above 0.
        plan: the sizes and the noise of the sums.
        number: the number of items of each frequency.
        scale: the predicted scale of joint recovery's errors, a frequency.
    """
    cells = plan.rows * plan.width * plan.batches
    if scale == 0.0 or plan.rows < MANY_ROWS or cells < FEWEST_CELLS:
        return None
    f, number = joint_error.drawn(frequencies, plan, number)
    counts = f * plan.clients
    variance, errors = _Evolution(counts, number, plan).still()
    stddev = max(math.sqrt(variance), _LEAST)
    if stddev > _SURE * GAIN * scale * plan.clients:
        return None
    channel = _Channel(counts, number, stddev)
    # What the messages leave of an item in a cell is as large as an unfitted item with this count.
    left = np.sqrt(errors * plan.cancelling)
    normal = joint_error.normal_equivalent(left / stddev, number, plan)
    near, own = number[channel.near], channel.counts
    far = float(number[~channel.near].sum())

    def beyond(size: float) -> float:
        """Return the expected number of items whose error exceeds a size, in clients."""
        z = size / stddev
        high = ndtr(-normal(channel.values(own + z) - own))
        low = ndtr(-normal(own - channel.values(own - z)))
        return float(near @ (high + low)) + 2.0 * far * float(ndtr(-normal(np.array([z])))[0])

    return _Settled(stddev, beyond)
