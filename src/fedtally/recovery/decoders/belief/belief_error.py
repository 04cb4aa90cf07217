"""The error of belief propagation, predicted: docs/accuracy.md derives equation (2)."""

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

# Values in standard deviations. The range also covers larger counts, as far as their values may be
# mistaken for those of smaller counts.
_NEAR = FAR + 5.0
_Z = np.linspace(-FAR, _NEAR + 5.0, 211)
# The messages stop where their variance falls by less than this factor, as the decoder judges.
_STILL = STILL_RATIO ** (1.0 / STILL_OVER)
_MOST = 500  # repetitions
# Clients: the least standard deviation that is predicted. The prior of (2) knows that counts are
# whole, which would make recovery exact. The decoder's prior does not know it.
_LEAST = 1.0
# A factor on `GAIN`, the share of joint recovery's standard deviation up to which the decoder
# trusts beliefs. In small sketches joint recovery's standard deviation is up to a tenth below its
# prediction, and both vary between campaigns. Closer to the limit joint recovery may answer
# instead, with errors several times as large.
_SURE = 0.82
_TINY = 1e-300


class _Channel:
    """Counts seen with normal noise of one standard deviation, and their posterior means.

    Args:
        counts: float64 [k], rising.
        number: float64 [k], the number of items that have each count.
        stddev: the standard deviation of the noise, in clients.

    Attributes:
        near: bool [k], the counts so small that the prior matters for their items.
        counts: float64 [near], these counts in standard deviations.
        mean: float64 [values], rising: the posterior mean given each of `_Z`.
        square: float64 [k], the mean squared error of the posterior mean, in squared clients.
    """

    def __init__(self, counts: F64, number: F64, stddev: float) -> None:
        self._all, self._stddev = counts, stddev
        self.near = counts < _NEAR * stddev
        self.counts = counts[self.near] / stddev
        seen = np.exp(-0.5 * (_Z[:, None] - self.counts) ** 2)
        total = seen @ number[self.near]
        known = (total > _TINY) & (_Z < FAR)
        means = seen @ (number[self.near] * self.counts) / np.maximum(total, _TINY)
        # Rounding may make means fall where no item is near.
        self.mean = np.maximum.accumulate(np.where(known, means, _Z))
        self._chance = seen / seen.sum(axis=0)
        error = self._chance * (self.mean[:, None] - self.counts) ** 2
        self.square = np.full(len(counts), stddev**2)
        self.square[self.near] *= error.sum(axis=0)

    def differences(self, variance: F64, more: F64) -> F64:
        """Return the mean squared errors of differences between batches, in squared clients.

        A difference is kept in part. The part depends on the believed count, since nobody knows the
        true count.

        Args:
            variance: float64 [k], the variance of the true differences between batches, for each
                count.
            more: float64 [k], the part of `variance` beyond Poisson noise that the decoder sees.
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
        """Return the values that have these posterior means, all in standard deviations."""
        found = np.interp(means, self.mean, _Z, left=-np.inf)
        return np.where(means > self.mean[-1], means, found)


class _Evolution:
    """Equation (2) of docs/accuracy.md, the state evolution: all sizes are in clients.

    Args:
        counts: float64 [k], rising, the counts that items have.
        number: float64 [k], the number of items that have each count.
        plan: the sums in numbers.
    """

    def __init__(self, counts: F64, number: F64, plan: Sums) -> None:
        self.counts, self.number, self.plan = counts, number, plan
        batches = plan.batches
        self._between = 1.0 - 1.0 / batches
        freedom = max(batches - 1.0, 1e-3)
        # The variance of an item between batches beyond that of Poisson counts. The decoder sees it
        # where it is clear.
        self._more = counts**2 * (plan.heterogeneity - 1.0) / freedom
        self._limit = clearly_different(freedom)

    def errors(self, variance: float) -> F64:
        """Return the mean squared error of the messages of each count, over batches: float64 [k].

        Args:
            variance: the variance of the values that the messages are made from.
        """
        counts, more = self.counts, self._more
        clear = np.where(more > self._limit * (counts + variance), more, 0.0)
        channel = _Channel(counts, self.number, math.sqrt(variance))
        differences = channel.differences(counts + more, clear) if self._between else 0.0
        return (1.0 - self._between) * channel.square + self._between * differences

    def still(self) -> tuple[float, F64]:
        """Return the variance of values at which messages stop, and the messages' squared errors.

        The variance starts from that of no messages, and falls.
        """
        plan, rows = self.plan, self.plan.rows
        errors = self.counts**2 / plan.cancelling + self.counts
        variance: float = np.inf
        for _ in range(_MOST):
            before = variance
            variance = (plan.noise + float(self.number @ errors) / plan.width) / rows
            if variance > _STILL * before or variance < _LEAST**2:
                break
            # A message to a row is made from the values of all other rows.
            errors = self.errors(variance * rows / (rows - 1))
        return variance, errors


class _Settled(NamedTuple):
    """The expected result of belief propagation, in clients.

    `beyond(size)` is the expected number of items with an error above a size.
    """

    stddev: float
    beyond: Callable[[float], float]


def predict(
    frequencies: F64, plan: Sums, number: F64 | float = 1.0, probability: float = 0.5
) -> Prediction:
    """Return the predicted error of belief propagation.

    Where joint recovery is expected to answer instead, it is joint recovery's predicted error.
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

    The number of errors above tau is taken as a Poisson variable.
    """
    scale = joint_error.predict(frequencies, plan, number).scale
    found = _settled(frequencies, plan, number, scale)
    if found is None:
        return joint_error.failure(frequencies, plan, number, tau)
    return -math.expm1(-found.beyond(tau * plan.clients))


def _settled(frequencies: F64, plan: Sums, number: F64 | float, scale: float) -> _Settled | None:
    """Return the expected result once messages settle; None: joint recovery is assumed to answer.

    `scale` is the predicted scale of joint recovery. Joint recovery answers if there are few cells.
    It is also assumed to answer if there are few rows, or little to gain: then chance decides
    whether the messages settle, or are trusted.
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
    # What an item leaves in a cell is as large as if it were not fitted and had this count.
    left = np.sqrt(errors * plan.cancelling)
    normal = joint_error.normal_equivalent(left / stddev, number, plan)
    near, own = number[channel.near], channel.counts
    far = float(number[~channel.near].sum())

    def beyond(size: float) -> float:
        """Return the expected number of items whose error exceeds a size."""
        z = size / stddev
        high = ndtr(-normal(channel.values(own + z) - own))
        low = ndtr(-normal(own - channel.values(own - z)))
        return float(near @ (high + low)) + 2.0 * far * float(ndtr(-normal(np.array([z])))[0])

    return _Settled(stddev, beyond)
