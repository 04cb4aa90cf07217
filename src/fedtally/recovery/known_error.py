"""Predicts the largest error of the sums so far; a campaign may end when it is small enough."""

from __future__ import annotations

from collections.abc import Sequence

from fedtally.domain import Domain
from fedtally.recovery.decoders.joint.joint import JointDecoder, usual_kappa
from fedtally.recovery.decoders.joint.joint_intervals import JointIntervals, Kappa
from fedtally.sketch import CountSketch

# The smallest error that is predicted, in clients. A wrong fit may explain the sums as well as the
# true one, and be wrong by a few clients, even if it leaves nothing in the residual.
LEAST_KNOWN = 4


def known_error(
    sketches: Sequence[CountSketch], domain: Domain, probability: float
) -> float | None:
    """Return the size, a frequency, that the largest error exceeds with a given probability.

    The prediction is for joint recovery, whatever decoder will answer: the errors of belief
    propagation are usually smaller. Kappa (the ratio of the errors of fitted items to the errors of
    ids that nobody holds) is a constant here, since measuring it would take several fits.

    Args:
        sketches: the sums so far, with their noise.
        domain: the candidates.
        probability: the probability, above 0 and below 1, that the largest error is larger.

    Returns:
        The frequency, at least LEAST_KNOWN clients. None if joint recovery gave up its fit: then
        the median would answer, and the prediction for the median is too small.
    """
    decoder = JointDecoder(sketches, domain)
    if decoder.fallback is not None:
        return None
    kappa = Kappa(usual_kappa(decoder.fit.landed), "")
    limits = JointIntervals(decoder.fit, 0.95, domain.size, kappa, largest_error=0.0)
    return max(limits.largest_error(probability), LEAST_KNOWN / decoder.num_clients)
