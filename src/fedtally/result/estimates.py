"""The estimate of one item, and the clipping of its limits to what a frequency can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedtally.recovery.intervals import Limits


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimated frequency of one item, with its limits.

    Attributes:
        item: the label of the item.
        frequency: the estimated share of the clients that took part, each counted in every round
            that it is in. It may be below 0.
        low: the lower limit of that share, 0 to 1; None where no interval was asked for.
        high: the upper limit, 0 to 1; None as for `low`.
        count: the estimated number of clients; of contributions, where a client may be in several
            rounds.
        sampling_error: a half-width that `low` and `high` leave out. At the same confidence, the
            share in a wider population differs by so much from the share among these clients, if
            the clients are a uniform sample of it.
    """

    item: str | int
    frequency: float
    low: float | None
    high: float | None
    count: float
    sampling_error: float | None = None


def clip_limits(limits: Limits) -> Limits:
    """Return limits of frequencies, clipped to 0 and 1.

    >>> clip_limits(Limits(np.array([-0.1, 0.5]), np.array([0.2, 1.1])))
    Limits(low=array([0. , 0.5]), high=array([0.2, 1. ]))
    """
    return Limits(np.clip(limits.low, 0.0, 1.0), np.clip(limits.high, 0.0, 1.0))
