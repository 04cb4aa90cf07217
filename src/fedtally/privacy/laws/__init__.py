"""The distributions of noise: all that the accountant must know of each mechanism.

To add a mechanism, write NAME.py in this folder, with a subclass of `law.Law`, and add a row to
`LAWS`. Add its name to `events.Mechanism`, and the parties that may add it to
`events.NoiseBy.mechanisms`. Nothing else in `privacy` depends on which mechanism it is. `recovery`
uses its `Law.total`.
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
    """Return the mu of a Gaussian mechanism that dominates all the events together.

    Everything that the events show is a function of one Gaussian that is shifted by mu standard
    deviations. So the events are mu-Gaussian differentially private (Dong, Roth and Su 2022), also
    if later events were chosen in view of earlier ones.

    The mu of an event with rounded Gaussian noise is its l2 sensitivity divided by the standard
    deviation. With Skellam noise of variance v it is the l2 sensitivity times
    2 Phi^-1((1 + p) / 2), where p = e^-v I_0(v) is the probability of 0. The factor is about
    (1 + 1 / (6 v)) / sqrt(v). This mu holds for every integer vector of that Euclidean length, and
    is the smallest for a vector with a single 1. Proof: docs/privacy-proofs/skellam.md.

    With geometric noise, a counter that changes by k has a privacy loss of at most k times the rate
    of the noise. A loss of at most l has the mu 2 Phi^-1(e^l / (1 + e^l)), about 1.25 l for small
    l. It is the smallest mu for a counter that changes by 1. Proof:
    docs/privacy-proofs/geometric.md.

    >>> event = Event("skellam", 5, "zero-out", variance=500.0, honest_survivors=90)
    >>> round(gaussian_bound(event) / (5 / 500) ** 0.5, 5)
    1.00033
    """
    found = checked_events(events)
    # Shifts in independent Gaussians are one shift in a rotated Gaussian, so lengths add in squares
    return math.sqrt(sum(LAWS[event.mechanism].square(event) for event in found))
