"""Intervals around the beliefs of belief propagation.

A belief is an item's count plus an error. The error is nearly normal, its standard deviation is
calibrated by ids that nobody holds, and no item's own value chose what the belief rests on. So only
the limits of a list need a correction for selection. docs/accuracy.md has their measured coverage.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from fedtally.recovery.decoders.belief.belief import BeliefDecoder
from fedtally.recovery.decoders.joint.joint_intervals import BAND_SLACK, PhantomLaw, list_lows
from fedtally.recovery.limits import ROUNDING, Limits, UsualIntervals, list_tails, or_none
from fedtally.recovery.linear_system import F64, U64, Ids

# Standard deviations. `list_lows` needs the threshold of a fit. Here is no fit, so this stands in.
_NO_FIT = 2.0
# With fewer than FEW_CELLS cells, too little data tells the prior how near rare items are to each
# other. Then the largest error mostly lies between the predicted one times each factor in OFF
# (`python -m experiments foreseen`).
FEW_CELLS, OFF = 1500, (0.6, 1.7)


class BeliefIntervals(UsualIntervals):
    """Intervals around beliefs: the value, and z standard deviations on either side.

    The interval holds the value of the item's cells alone. The estimate is the posterior mean, and
    may lie outside for rare items.

    Args:
        decoder: a decoder that did not fall back.
        confidence: the level of each interval, above 0 and below 1.
        size: the number of candidates.
        kind: the kind of intervals, one of `make_intervals`.

    Attributes:
        predicted_range: the range in which the largest error mostly lies, as two frequencies, in a
            sketch of few cells. None in larger sketches, where `predicted_linf` says enough.
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
        # The tails are heavier than normal ones, which shows at high confidence.
        self._half = float(-ndtri(tail)) * law.excess(tail)
        if kind == "simultaneous":
            tail /= size  # Bonferroni: each of d intervals, on either side
            # The calibration uses a quantile. The standard deviation also reacts to the tails.
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
        """Return the values whose errors the limits bound, in frequencies."""
        return self._beliefs(ids)[0]

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies."""
        value, stddev = self._beliefs(ids)
        low, high = self._around(value, stddev)
        if self._kind != "auto" or not len(ids):
            return Limits(low, high)
        # The threshold is a bound on posterior means. `needed` is the value that an item had to
        # reach.
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
