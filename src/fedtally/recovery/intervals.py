"""Confidence intervals for estimates, and a simultaneous band for all of them.

An interval covers the frequency of an item among the clients that took part. Its confidence is a
probability over the hash seed, for an item fixed in advance or for all candidates. The data must
not depend on the seed. A list of the largest estimates has limits of its own, since estimates that
were chosen for their size are too large more often than not. How these clients differ from a wider
population is another error: `sampling_error`.

The error of an estimate comes from the other items in the item's cells. Ids that no client holds
(*phantoms*), drawn here, suffer the same error, so they show how large it is. docs/recovery.md has
the construction and its measured coverage.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtri

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.recovery.decoding import kind_of_decoder
from fedtally.recovery.joint import JointDecoder
from fedtally.recovery.joint_intervals import (
    KAPPA,
    JointIntervals,
    Kappa,
    kappa_of,
    list_lows,
    selective_limits,
)
from fedtally.recovery.limits import KINDS, Intervals, Limits, check_confidence, list_tails
from fedtally.recovery.linear_system import F64, U64, Ids, Landed
from fedtally.recovery.median import MedianDecoder
from fedtally.recovery.median_intervals import MedianIntervals, OrderIntervals, order_statistic
from fedtally.sketch import CountSketch

__all__ = [
    "KAPPA",
    "KINDS",
    "Intervals",
    "JointIntervals",
    "Kappa",
    "Limits",
    "MedianIntervals",
    "NoisyNumberIntervals",
    "OrderIntervals",
    "check_confidence",
    "kappa_of",
    "list_lows",
    "list_tails",
    "make_intervals",
    "merged_intervals",
    "order_statistic",
    "sampling_error",
    "selective_limits",
]


def make_intervals(
    decoder: MedianDecoder | JointDecoder,
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
        kind: "auto": "pointwise", but lists have limits that allow for the choice of their items;
            "pointwise": each interval of an item named beforehand holds with this confidence;
            "simultaneous": all candidates' do at once; "order": pointwise by order statistics of
            the rows, wide, but assuming nothing beyond random signs.

    Raises:
        InvalidInputError: a level outside (0, 1), an unknown kind, a decoder that the registry
            `decoding.DECODERS` does not know, or too few rows for order statistics.
    """
    check_confidence(confidence)
    if kind not in KINDS:
        raise InvalidInputError(
            f"intervals must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, got {kind!r}"
        )
    known = kind_of_decoder(decoder)
    if kind == "order":  # of the rows of the sums: any decoder has the same
        return OrderIntervals(Landed(decoder.spec, sketches), confidence, domain.size)
    return known.limits(decoder, sketches, domain, confidence, kind)


def merged_intervals(
    made: Sequence[Intervals], shares: Sequence[float], domain: Domain, confidence: float, kind: str
) -> Intervals | None:
    """Return intervals of frequencies in several results together; None where they are not all of the median.

    Quantiles of rare and large errors do not add up. So ids that nobody holds are asked of all
    results, and what they are given in the sum has its own quantile.

    Args:
        made: of results with different hashes.
        shares: of each result in the contributions of all.
        domain: that they have in common.
        confidence: that they have in common.
        kind: that they have in common.
    """
    noise = [
        share * one.relative if isinstance(one, NoisyNumberIntervals) else 0.0
        for one, share in zip(made, shares, strict=True)
    ]
    plain = [one.intervals if isinstance(one, NoisyNumberIntervals) else one for one in made]
    medians = [one for one in plain if isinstance(one, MedianIntervals)]
    if len(medians) < len(made):
        return None
    decoders = [decoder for one in medians for decoder in one.decoders]
    landed = [each for one in medians for each in one.landed]
    merged = MedianIntervals(decoders, landed, domain, confidence, kind)
    relative = float(np.hypot.reduce(noise))
    return NoisyNumberIntervals(merged, relative, confidence) if relative else merged


class NoisyNumberIntervals:
    """Intervals of frequencies where the number of clients, by which counts are divided, has noise too.

    A frequency f is too large by f times the relative error of that number: half-widths add as
    squares.

    Args:
        intervals: of frequencies of the number as it was released.
        relative: standard deviation of the number, divided by it.
        confidence: of the intervals.
    """

    def __init__(self, intervals: Intervals, relative: float, confidence: float) -> None:
        self.intervals, self.relative = intervals, relative
        self._share = float(-ndtri((1.0 - confidence) / 2)) * relative
        noise = f"the noise of the number of clients, {100 * relative:.2g} % of it, is in them"
        self.about = f"{intervals.about}; {noise}" if intervals.about else noise

    @property
    def predicted_linf(self) -> float:
        """The median of the largest error, the number of clients taken as exact."""
        return self.intervals.predicted_linf

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any ids, in frequencies."""
        return self._widened(self.intervals.at(ids))

    def centres(self, ids: Ids) -> F64 | None:
        """Return the values whose errors the limits bound, in frequencies; None where these are not normal."""
        return self.intervals.centres(ids)

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies."""
        return self._widened(self.intervals.listed(ids, threshold))

    def _widened(self, limits: Limits) -> Limits:
        low, high = limits
        middle, half = (low + high) / 2, (high - low) / 2
        more = np.sqrt(half**2 + (self._share * middle) ** 2) - half
        return Limits(low - more, high + more)


def sampling_error(frequency: F64, num_clients: int, confidence: float) -> F64:
    """Return how far the share of a wider population may be: the further limit of Wilson's interval (1927).

    The clients that took part are seen as a uniform sample: about z sqrt(f (1 - f) / n), f cut to 0
    .. 1, and z^2 / n for shares next to 0 and 1.

    >>> float(np.round(sampling_error(np.array([0.5]), 10_000, 0.95), 4)[0])
    0.0098
    """
    _validate.integer(1, num_clients=num_clients)
    check_confidence(confidence)
    f = np.clip(frequency, 0.0, 1.0)
    z, n = float(-ndtri((1.0 - confidence) / 2)), num_clients
    half = z * np.sqrt(f * (1.0 - f) / n + z**2 / (4.0 * n**2))
    further: F64 = (half + np.abs(0.5 - f) * z**2 / n) / (1.0 + z**2 / n)
    return further
