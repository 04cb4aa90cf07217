"""Confidence intervals for estimated frequencies, for single items or for all items at once.

An interval covers the frequency of an item among the clients that took part. Its confidence is a
probability over the seed of the hashes and the privacy noise, for an item that was named in
advance, or for all candidates at once. The data must not depend on the seed. With the kind "auto",
the items of a list of the largest estimates get other limits: items that are chosen for large
estimates are overestimated more often than not. The intervals do not cover how the clients that
took part differ from a wider population (`sampling_error` does).

An estimate from a sketch is wrong because of the other items in its cells and because of privacy
noise. *Phantoms*, random ids that no client holds, get the same kind of error, so they show its
size. docs/recovery.md describes the method and its measured coverage.
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
        sketches: the landed sums: those of rounds that took place.
        domain: the candidate items.
        confidence: above 0 and below 1.
        kind: "pointwise": an interval holds with this confidence if its item was named in advance.
            "auto": the same, but the limits of a list allow for the choice of its items.
            "simultaneous": all intervals of all candidates hold together with this confidence.

    Raises:
        InvalidInputError: the confidence or the kind is not allowed, the registry does not know the
            decoder, or no client took part.
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
    """Return intervals for the frequencies among the clients of several results together.

    Returns None in the cases in which `Intervals.merged` returns None.

    Args:
        made: the intervals of each result; the results have different hashes.
        shares: the share of each result in the contributions of all results.
        domain: the candidates, the same for all results.
        confidence: the confidence of all intervals.
        kind: the kind of all intervals, as in `make_intervals`.
    """
    # The intervals are merged without the noise on each number of clients. The noise on the total
    # number is added afterwards; otherwise it would be counted twice.
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
    """Intervals for frequencies if the number of clients has noise as well.

    Frequencies are counts divided by the number of clients. If this number has the relative error
    r, a frequency f gets the error r f. It is independent of the other errors, so the squares of
    the half-widths are added.

    Args:
        intervals: the intervals as if the number of clients were exact.
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
        """The median of the largest error, as if the number of clients were exact."""
        return self.intervals.predicted_linf

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        return self._widened(self.intervals.at(ids))

    def centres(self, ids: Ids) -> F64 | None:
        """Return the frequencies around which limits lie, or None; see `Intervals.centres`."""
        return self.intervals.centres(ids)

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return limits of items that were chosen by their estimates; see `Intervals.listed`."""
        return self._widened(self.intervals.listed(ids, threshold))

    def _widened(self, limits: Limits) -> Limits:
        low, high = limits
        middle, half = (low + high) / 2, (high - low) / 2
        # Both ends move by the same amount, so asymmetric limits keep their asymmetry.
        more = np.sqrt(half**2 + (self._share * middle) ** 2) - half
        return Limits(low - more, high + more)


def sampling_error(frequency: F64, num_clients: int, confidence: float) -> F64:
    """Return how far frequencies in a wider population may be from those among the clients.

    The clients that took part are treated as a uniform sample of the population. The result is the
    distance from the frequency f to the further limit of Wilson's interval (1927): about
    z sqrt(f (1 - f) / n), and z^2 / n if f is near 0 or 1. There, too, Wilson's interval nearly
    keeps its confidence, unlike the simple interval.

    Args:
        frequency: float64 [n], estimated frequencies among the clients.
        num_clients: the number of clients, at least 1.
        confidence: above 0 and below 1.

    >>> float(np.round(sampling_error(np.array([0.5]), 10_000, 0.95), 4)[0])
    0.0098
    """
    validate.integer(1, num_clients=num_clients)
    check_confidence(confidence)
    f = np.clip(frequency, 0.0, 1.0)  # outside, where estimates may lie, the root does not exist
    z, n = float(-ndtri((1.0 - confidence) / 2)), num_clients
    half = z * np.sqrt(f * (1.0 - f) / n + z**2 / (4.0 * n**2))
    further: F64 = (half + np.abs(0.5 - f) * z**2 / n) / (1.0 + z**2 / n)
    return further
