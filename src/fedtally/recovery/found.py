"""`FoundFit`: the result of a joint fit, which is stored in a file to avoid a second fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedtally.recovery.linear_system import F64, I64, Candidates, Landed

# Because of rounding, fit + residual may differ from the sums by this, as a frequency.
_SAME = 1e-9


@dataclass(frozen=True)
class FoundFit:
    """The result of a joint fit, from which the fit is restored without decoding all candidates.

    Attributes:
        most: the largest number of items that may be fitted.
        selected: the number of standard deviations by which an item had to stand out to be fitted,
            when the fit began.
        threshold: the same number at the end of the fit. It may be larger than `selected` if the
            support was full.
        positions: int64 [n], the fitted items, as positions among the candidates.
        values: float64 [n, batches], the frequencies of the fitted items in each batch.
        shrinkage: float64 [n, batches], how much of the distance of each value from the item's mean
            over all batches was kept, 0 .. 1.
        residual: float64 [rows, width, batches], the sums minus the fitted items, as frequencies.
        draws: the state of the random generator before the last probe. A probe fits random numbers,
            to measure how much of an item a fit leaves in the residual (`joint.Fit`).
        kappa: the ratio of the errors of fitted items to those of phantoms, and its source, as in
            `joint_intervals.Kappa`; None: not measured.
        largest_error: the predicted largest error, a frequency; None: not predicted.
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

        A result that was read from a file may be damaged, or belong to other sums.
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
            np.random.PCG64().state = self.draws  # only a test: raises if `draws` is no state
        except (KeyError, OverflowError, TypeError, ValueError):
            return False
        explained = self.residual.copy()
        places = landed.places(candidates.ids(self.positions))
        landed.add(explained, *places, self.values)
        # This is also False if a value is not finite.
        return bool(np.allclose(explained, landed.frequencies, rtol=0.0, atol=_SAME))
