"""How large the largest error is of the sums so far: what a campaign may end by."""

from __future__ import annotations

from collections.abc import Sequence

from fedtally.domain import Domain
from fedtally.recovery.decoders.joint.joint import JointDecoder, usual_kappa
from fedtally.recovery.decoders.joint.joint_intervals import JointIntervals, Kappa
from fedtally.sketch import CountSketch

# Clients. Of few clients another fit than the truth may explain the sums as well, and errs by whole
# clients: no error below this one is known, however little the fit leaves.
LEAST_KNOWN = 4


def known_error(
    sketches: Sequence[CountSketch], domain: Domain, probability: float
) -> float | None:
    """Return the frequency that the largest error of all candidates exceeds by a chance.

    It is joint recovery's, whatever decoder answers: belief propagation errs less. The scale of the
    errors of fitted items is taken as a constant, since to measure it would take several fits.

    Args:
        sketches: the sums so far, with their noise.
        domain: the candidates.
        probability: the chance, above 0 and below 1.

    Returns:
        at least that of `LEAST_KNOWN` clients. None: joint recovery gave up, and the median would
        answer, whose prediction is too hopeful.
    """
    decoder = JointDecoder(sketches, domain)
    if decoder.fallback is not None:
        return None
    kappa = Kappa(usual_kappa(decoder.fit.landed), "")
    limits = JointIntervals(decoder.fit, 0.95, domain.size, kappa, largest_error=0.0)
    return max(limits.largest_error(probability), LEAST_KNOWN / decoder.num_clients)
