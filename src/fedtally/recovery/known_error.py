"""The predicted largest error of the sums so far: a campaign may end once it is small enough."""

from __future__ import annotations

from collections.abc import Sequence

from fedtally.domain import Domain
from fedtally.recovery.decoders.joint.joint import JointDecoder, usual_kappa
from fedtally.recovery.decoders.joint.joint_intervals import JointIntervals, Kappa
from fedtally.sketch import CountSketch

# Clients. A wrong fit may explain the sums as well as the truth does, and be wrong by a few whole
# clients. So no smaller error than this is claimed, however little the fit leaves in the residual.
LEAST_KNOWN = 4


def known_error(
    sketches: Sequence[CountSketch], domain: Domain, probability: float
) -> float | None:
    """Return a frequency that the largest error of all candidates exceeds with a given probability.

    The prediction is for joint recovery, whatever decoder answers: belief propagation has smaller
    errors. The scale of the errors of fitted items is taken as a constant, since a measurement
    would take several fits.

    Args:
        sketches: the sums so far, with their noise.
        domain: the candidates.
        probability: the probability that the largest error is larger, above 0 and below 1.

    Returns:
        The frequency, at least that of `LEAST_KNOWN` clients. None: the fit of joint recovery was
        given up. The median would answer, and the prediction for the median is too small.
    """
    decoder = JointDecoder(sketches, domain)
    if decoder.fallback is not None:
        return None
    kappa = Kappa(usual_kappa(decoder.fit.landed), "")
    limits = JointIntervals(decoder.fit, 0.95, domain.size, kappa, largest_error=0.0)
    return max(limits.largest_error(probability), LEAST_KNOWN / decoder.num_clients)
