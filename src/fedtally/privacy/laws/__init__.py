"""The distributions of noise: all that the accountant must know of each mechanism.

To add a mechanism, write NAME.py in this folder, with a subclass of `law.Law`, and add a row to
`LAWS`. Add its name to `events.Mechanism` and to the tables there, and say in
`events.NoiseBy.mechanisms` which parties may add this noise. In `privacy`, only the checks of
`events.Event` and the default in `config.exposure` also name mechanisms. Outside of it, search for
`Mechanism.`: `plan`, `campaign.dap_noise` and `studies.audit_clients` name mechanisms, and
`options` lists their names. `recovery.noise_law` uses `Law.total`.
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
    """Return a mu such that the Gaussian mechanism with shift mu dominates all the events together.

    This means: everything that the events show can be computed from one Gaussian number, which is
    shifted by mu standard deviations between neighbours. So the events are mu-Gaussian
    differentially private (Dong, Roth and Su 2022), even if later events were chosen in view of
    earlier events.

    Rounded Gaussian noise: mu is the l2 sensitivity divided by the standard deviation. Skellam
    noise of variance v: mu is the l2 sensitivity times 2 Phi^-1((1 + p) / 2), where p = e^-v I_0(v)
    is the probability of 0; for a large v this factor is about (1 + 1 / (6 v)) / sqrt(v). No
    smaller factor holds for a vector with a single 1. Proof: docs/privacy-proofs/skellam.md.

    Geometric noise: a counter that changes by k has a privacy loss l of at most k times the noise's
    rate. Its mu is 2 Phi^-1(e^l / (1 + e^l)), about 1.25 l for a small l. No smaller mu holds for a
    change by 1. For l above 500, a simpler and larger bound is used. Proof:
    docs/privacy-proofs/geometric.md.

    >>> event = Event("skellam", 5, "zero-out", variance=500.0, honest_survivors=90)
    >>> round(gaussian_bound(event) / (5 / 500) ** 0.5, 5)
    1.00033
    """
    found = checked_events(events)
    # Independent Gaussians can be rotated, so that all shifts become one: squares of mu add up
    return math.sqrt(sum(LAWS[event.mechanism].square(event) for event in found))
