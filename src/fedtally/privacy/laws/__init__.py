"""The distributions of noise: all that privacy must know of each mechanism.

To add a mechanism, write NAME.py beside this file, with its class (`law.Law`), and add its row
here. Its name and who may add it stand in `events`: `Mechanism` and `NoiseBy.mechanisms`. Nothing
else in this room asks which mechanism it is, and `recovery` reads its `Law.total`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fedtally.privacy.bounds import checked_events
from fedtally.privacy.events import Event, Mechanism
from fedtally.privacy.laws.discrete_laplace import DiscreteLaplace
from fedtally.privacy.laws.law import Law
from fedtally.privacy.laws.rounded_gaussian import RoundedGaussian
from fedtally.privacy.laws.skellam import Skellam

__all__ = ["LAWS", "Law", "gaussian_bound"]

LAWS: Mapping[Mechanism, Law] = MappingProxyType(
    {
        Mechanism.ROUNDED_GAUSSIAN: RoundedGaussian(),
        Mechanism.SKELLAM: Skellam(),
        Mechanism.GEOMETRIC: DiscreteLaplace(),
    }
)


def gaussian_bound(events: Event | Sequence[Event]) -> float:
    """Return the mu of a Gaussian mechanism that dominates the events.

    All that the events show is a function of one Gaussian that is shifted by mu standard
    deviations. So the events are mu-Gaussian differentially private (Dong, Roth and Su 2022),
    however later events were chosen in view of earlier ones.

    For rounded Gaussian noise mu is the distance over the standard deviation. For Skellam noise of
    variance v it is the distance times 2 Phi^-1((1 + p) / 2), where p = e^-v I_0(v) is the
    probability of 0: about (1 + 1 / (6 v)) / sqrt(v). It holds for every integer vector of that
    Euclidean length, and no smaller mu holds for a vector of one 1.
    Proof: docs/privacy-proofs/skellam.md.

    For geometric noise a counter that moves by k has a privacy loss of at most k rates, and mu of a
    loss of at most e is 2 Phi^-1(e^e / (1 + e^e)): about 1.25 e where it is small. No smaller mu
    holds for a counter that moves by 1. Proof: docs/privacy-proofs/geometric.md.

    >>> event = Event("skellam", 5, "zero-out", variance=500.0, honest_survivors=90)
    >>> round(gaussian_bound(event) / (5 / 500) ** 0.5, 5)
    1.00033
    """
    found = checked_events(events)
    # Shifts in independent Gaussians are one shift in a rotated Gaussian, so lengths add in squares
    return math.sqrt(sum(LAWS[event.mechanism].square(event) for event in found))
