"""The result of a joint fit, which a file keeps so that the fit need not be repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtally.recovery.linear_system import F64, I64, Candidates, Landed

# Rounding may make fit plus residual differ from the sums by this much, as a frequency.
_SAME = 1e-9


@dataclass(frozen=True)
class FoundFit:
    """The result of a joint fit. It restores the fit without a look at all candidates.

    Attributes:
        most: the largest number of items on the support.
        selected: the threshold that the fit began with.
        threshold: the threshold that was in force at the end.
        positions: int64 [n], the support: the places of the fitted items among the candidates.
        values: float64 [n, batches], their frequencies in each batch.
        shrinkage: float64 [n, batches], the share of the distance from its mean over all batches
            that each value keeps.
        residual: float64 [rows, width, batches], the sums less the fitted items, as frequencies.
        draws: the state of the generator before the last probe.
        kappa: the scale of fitted items' errors and its source, as for `joint_intervals.Kappa`;
            None: not measured yet.
        largest_error: the predicted largest error, a frequency; None: not predicted yet.
    """

    most: int
    selected: float
    threshold: float
    positions: I64
    values: F64
    shrinkage: F64
    residual: F64
    draws: Any
    kappa: tuple[float, str] | None = None
    largest_error: float | None = None

    def fits(self, landed: Landed, candidates: Candidates) -> bool:
        """Return whether this is a fit of these sums and candidates.

        A result that was read from a file may belong to other sums, or be damaged.
        """
        shape = (len(self.positions), len(landed.clients))
        if not (
            self.residual.shape == landed.frequencies.shape
            and self.values.shape == self.shrinkage.shape == shape
            and len(np.unique(self.positions)) == len(self.positions) <= max(1, self.most)
            and ((self.positions >= 0) & (self.positions < candidates.size)).all()
        ):
            return False
        try:
            np.random.PCG64().state = self.draws  # only a test: raises if this is no such state
        except (KeyError, OverflowError, TypeError, ValueError):
            return False
        explained = self.residual.copy()
        places = landed.places(candidates.ids(self.positions))
        landed.add(explained, *places, self.values)
        # Values that are not finite fail this comparison, too.
        return bool(np.allclose(explained, landed.frequencies, rtol=0.0, atol=_SAME))
