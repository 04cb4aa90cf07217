"""Intervals for the results of belief propagation.

An item's value is its count plus an error that is nearly normal. The standard deviation of the
error is calibrated with ids that nobody holds. An item's own value does not influence which data it
is computed from. So a correction for selection is needed only for items that were chosen by their
estimates (`Intervals.listed`). docs/accuracy.md has the measured coverage.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.recovery.decoders.joint.joint_intervals import BAND_SLACK, PhantomLaw, list_lows
from fedtally.recovery.limits import ROUNDING, Limits, UsualIntervals, list_tails, or_none
from fedtally.recovery.linear_system import F64, U64, Ids

# In standard deviations. `list_lows` needs the threshold of a fit. Beliefs have no fit, so it gets
# this number, which has no effect: no item is fitted, and kappa is 1.
_NO_FIT = 2.0
# With fewer than FEW_CELLS cells in all batches, the data tell the prior too little about the
# distribution of rare items. Then the largest error mostly lies between OFF[0] and OFF[1] times the
# predicted one (`python -m experiments foreseen`).
FEW_CELLS, OFF = 1500, (0.6, 1.7)


class BeliefIntervals(UsualIntervals):
    """Intervals around the values of items: a number of standard deviations on either side.

    Each limit is at least one client away from the value. The value comes from the item's cells,
    without the prior. The estimate is a posterior mean, and may lie outside the interval for rare
    items.

    Args:
        decoder: a decoder for which `fallback` is "".
        confidence: the confidence of each interval, above 0 and below 1.
        size: the number of candidates.
        kind: the kind of intervals, as in `make_intervals`.

    Attributes:
        predicted_range: two frequencies between which the largest error mostly lies. None if
            `predicted_linf` is 0, and for sketches with many cells: there `predicted_linf` is close
            enough.
    """

    def __init__(
        self, decoder: BeliefDecoder, confidence: float, size: int, kind: str = "pointwise"
    ) -> None:
        messages = decoder.messages
        assert messages is not None and not decoder.fallback
        self._decoder, self._messages = decoder, messages
        self._alpha, self._kind, self._size = 1.0 - confidence, kind, size
        self._clients = float(decoder.num_clients)
        self._one_client = 1.0 / decoder.num_clients + ROUNDING
        self.about = "all intervals hold at once" if kind == "simultaneous" else ""
        landed = messages.landed
        law = self._law = PhantomLaw(landed, messages.residual / np.maximum(landed.clients, 1.0))
        tail = self._alpha / 2
        # At high confidence, the tails of the errors are wider than those of a normal distribution.
        self._half = float(-ndtri(tail)) * law.excess(tail)
        if kind == "simultaneous":
            tail /= size  # Bonferroni's correction for `size` intervals
            # `Messages._calibrate` matched only the .95 quantile of the phantoms' errors. Their
            # standard deviation also shows whether the tails are wide.
            wide = max(1.0, float(np.std(messages.null)))
            self._half = BAND_SLACK * wide * float(-ndtri(tail)) * law.excess(tail)
        self.predicted_linf = or_none(
            messages.prior.largest_error(*messages.beliefs) / self._clients, decoder.num_clients
        )
        if landed.cells * len(landed.clients) < FEW_CELLS and self.predicted_linf:
            low, high = (factor * self.predicted_linf for factor in OFF)
            self.predicted_range = low, high

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        return self._around(*self._beliefs(ids))

    def centres(self, ids: Ids) -> F64:
        """Return the values around which the limits lie, in frequencies: float64 [n]."""
        return self._beliefs(ids)[0]

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return limits of items that were chosen by their estimates; see `Intervals.listed`."""
        value, stddev = self._beliefs(ids)
        low, high = self._around(value, stddev)
        if self._kind != "auto" or not len(ids):
            return Limits(low, high)
        # The threshold is for estimates, which are posterior means. `needed` is the value at which
        # the estimate reaches the threshold.
        reached = None
        if threshold is not None:
            needed = self._messages.prior.value_of(
                threshold * self._clients, stddev * self._clients
            )
            reached = needed / self._clients / stddev
        given, anyhow = list_tails(self._alpha / 2, len(ids), self._size, threshold)
        most = float(-ndtri(anyhow)) * self._law.excess(anyhow)
        fitted = np.zeros(len(ids), bool)
        z = value / stddev
        below = list_lows(z, fitted, _NO_FIT, 1.0, given, most, reached)
        return Limits(np.minimum(low, value + (below - z) * stddev), high)

    def _around(self, value: F64, stddev: F64) -> Limits:
        half = np.maximum(self._half * stddev, self._one_client)
        return Limits(value - half, value + half)

    def _beliefs(self, ids: Ids) -> tuple[F64, F64]:
        value, stddev = self._decoder.beliefs(ids)
        return value / self._clients, stddev / self._clients
