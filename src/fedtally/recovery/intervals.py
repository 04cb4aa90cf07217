"""Confidence intervals for estimates, and a simultaneous band for all of them.

An interval covers the frequency of an item among the clients that took part. Its confidence is a
probability over the hash seed, for an item fixed in advance or for all candidates. The data must
not depend on the seed. A list of the largest estimates has limits of its own, since estimates that
were chosen for their size are too large more often than not. Another error is not covered: how the
clients that took part differ from a wider population (`sampling_error`).

The error of an estimate comes from the other items in the item's cells. Random ids that no client
holds (*phantoms*) suffer the same error, so they show how large it is. docs/recovery.md has the
construction and its measured coverage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from fedtally.base import validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, arg
from fedtally.recovery.decoders.kind import CampaignDecoder
from fedtally.recovery.decoding import kind_of_decoder
from fedtally.recovery.limits import KINDS, Intervals, Limits, UsualIntervals, check_confidence
from fedtally.recovery.linear_system import F64, U64, Ids
from fedtally.sketch import CountSketch

__all__ = [
    "KINDS",
    "Intervals",
    "Limits",
    "NoisyNumberIntervals",
    "check_confidence",
    "make_intervals",
    "merged_intervals",
    "sampling_error",
]


def make_intervals(
    decoder: CampaignDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float = 0.95,
    kind: str = "pointwise",
) -> Intervals:
    """Return intervals for the frequencies that a decoder estimates.

    Args:
        decoder: the decoder of these sketches.
        sketches: the landed sums.
        domain: the candidate items.
        confidence: above 0 and below 1.
        kind: "pointwise": each interval of an item named beforehand holds with this confidence;
            "auto": the same, but lists have limits that allow for the choice of their items;
            "simultaneous": the intervals of all candidates hold at once.

    Raises:
        InvalidInputError: a confidence outside (0, 1), an unknown kind, or a decoder that the
            registry does not know.
    """
    check_confidence(confidence)
    if kind not in KINDS:
        raise InvalidInputError(
            f"{arg.intervals} must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {kind!r}"
        )
    limits = kind_of_decoder(decoder).limits
    return limits(decoder, sketches, domain, confidence, kind)


def merged_intervals(
    made: Sequence[Intervals], shares: Sequence[float], domain: Domain, confidence: float, kind: str
) -> Intervals | None:
    """Return intervals of the frequencies among the clients of several results together.

    The answer is None in the cases of `Intervals.merged`.

    Args:
        made: the intervals of each result; the results have different hashes.
        shares: the share of each result in the contributions of all.
        domain: the candidates of all results.
        confidence: the confidence of all results.
        kind: the kind of all intervals.
    """
    # The noise of each result's number of clients is taken out, so that it is not counted twice:
    # the merged intervals get the noise of the total number.
    noise = [
        share * one.relative if isinstance(one, NoisyNumberIntervals) else 0.0
        for one, share in zip(made, shares, strict=True)
    ]
    first, *others = (
        one.intervals if isinstance(one, NoisyNumberIntervals) else one for one in made
    )
    merged = first.merged(others, domain, confidence, kind)
    relative = float(np.hypot.reduce(noise))
    if merged is None or not relative:
        return merged
    return NoisyNumberIntervals(merged, relative, confidence)


class NoisyNumberIntervals(UsualIntervals):
    """Intervals of frequencies where the number of clients has noise, too.

    Counts are divided by the number of clients. A relative error r of this number makes a frequency
    f wrong by r f. This error is independent of the others, so the half-widths are added as
    squares.

    Args:
        intervals: the intervals if the number that was released were exact.
        relative: the standard deviation of the number of clients, divided by this number.
        confidence: the confidence of the intervals.
    """

    def __init__(self, intervals: Intervals, relative: float, confidence: float) -> None:
        self.intervals, self.relative = intervals, relative
        self._share = float(-ndtri((1.0 - confidence) / 2)) * relative
        noise = f"the noise on how many took part, {100 * relative:.2g} % of it, is in them"
        self.about = f"{intervals.about}; {noise}" if intervals.about else noise
        self.predicted_range = intervals.predicted_range

    @property
    def predicted_linf(self) -> float:
        """The median of the largest error, if the number of clients were exact."""
        return self.intervals.predicted_linf

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        return self._widened(self.intervals.at(ids))

    def centres(self, ids: Ids) -> F64 | None:
        """Return the values whose errors the limits bound, or None where these are not normal."""
        return self.intervals.centres(ids)

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies."""
        return self._widened(self.intervals.listed(ids, threshold))

    def _widened(self, limits: Limits) -> Limits:
        low, high = limits
        middle, half = (low + high) / 2, (high - low) / 2
        # Both ends move by the same amount, so that limits that are not symmetric stay so.
        more = np.sqrt(half**2 + (self._share * middle) ** 2) - half
        return Limits(low - more, high + more)


def sampling_error(frequency: F64, num_clients: int, confidence: float) -> F64:
    """Return how far the share in a wider population may be from the frequency among the clients.

    The clients that took part are treated as a uniform sample of that population. The answer is the
    distance to the further limit of Wilson's interval (1927): about z sqrt(f (1 - f) / n), and
    z^2 / n for shares next to 0 and 1. Wilson's interval, unlike the simple one, keeps its level
    there.

    >>> float(np.round(sampling_error(np.array([0.5]), 10_000, 0.95), 4)[0])
    0.0098
    """
    validate.integer(1, num_clients=num_clients)
    check_confidence(confidence)
    f = np.clip(frequency, 0.0, 1.0)  # estimates may lie outside, where the root does not exist
    z, n = float(-ndtri((1.0 - confidence) / 2)), num_clients
    half = z * np.sqrt(f * (1.0 - f) / n + z**2 / (4.0 * n**2))
    further: F64 = (half + np.abs(0.5 - f) * z**2 / n) / (1.0 + z**2 / n)
    return further
