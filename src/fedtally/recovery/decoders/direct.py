"""Counts that are read from the counters of a histogram, and their intervals.

No two items share a counter, so that the noise of privacy is all that can be wrong. Its
distribution is that of the plan: it is tabulated here, and limits are its quantiles.
docs/recovery.md says more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ive, ndtr, ndtri

from fedtally.base import validate
from fedtally.errors import InvalidInputError
from fedtally.privacy import geometric
from fedtally.privacy.events import Mechanism
from fedtally.recovery.decoders.median.median import check_landed
from fedtally.recovery.limits import ROUNDING, Limits, list_tails, listed_lows
from fedtally.recovery.linear_system import F64, U64, Ids, ask
from fedtally.sketch import CountSketch, Identity

if TYPE_CHECKING:
    from fedtally.privacy.config import PrivacyConfig

# Standard deviations beyond which a table leaves the noise out: less than 2^-60 of it lies there.
_REACH = 10.0
# The standard deviation from which a table would be long, and the noise is normal to 1e-9.
_WIDE = 1e5


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """The distribution of the noise in a counter of all sums together: symmetric, of integers.

    Attributes:
        stddev: its standard deviation, in counts; 0 where there is no noise.
        beyond: float64 [k], the probabilities that its size exceeds 0, 1, ...; None where it is
            so wide that it is normal.
    """

    stddev: float
    beyond: F64 | None

    @classmethod
    def of(cls, terms: PrivacyConfig | None, sketches: Sequence[CountSketch]) -> NoiseLaw:
        """Return the distribution of the noise in sums that landed, as a plan says.

        Args:
            terms: the privacy terms of the plan; None: there is no noise.
            sketches: the sums.

        >>> NoiseLaw.of(None, []).half(0.05)
        0
        """
        if terms is None:
            return _EXACT
        clients = sum(sketch.num_vectors for sketch in sketches)
        return cls.of_draws(terms.event.mechanism, *terms.draws_of_all(clients, len(sketches)))

    @classmethod
    def of_releases(cls, terms: PrivacyConfig, number: int) -> NoiseLaw:
        """Return the distribution of the noise that an aggregator, or two servers, add.

        Args:
            terms: the privacy terms of the plan.
            number: sums that are opened and added up.
        """
        return cls.of_draws(terms.event.mechanism, *terms.draws_of_all(0, number))

    @classmethod
    def of_draws(cls, mechanism: Mechanism, variance: float, number: int) -> NoiseLaw:
        """Return the distribution of a sum of independent draws.

        Args:
            mechanism: of the noise.
            variance: of one draw; of a Gaussian before it is rounded.
            number: of the draws.

        >>> NoiseLaw.of_draws(Mechanism.SKELLAM, 0.08, 2).half(0.005)
        2
        """
        if not number:
            return _EXACT
        if mechanism is Mechanism.SKELLAM:  # shares add up to Skellam noise
            return _skellam_law(variance * number)
        law = {
            Mechanism.ROUNDED_GAUSSIAN: _gaussian_law,
            Mechanism.GEOMETRIC: _geometric_law,
        }[mechanism]
        return law(variance, number)

    def exceeded(self, size: F64 | float) -> F64:
        """Return the probability that the noise exceeds sizes of at least 0, either way."""
        below = np.floor(np.asarray(size, np.float64))
        if self.beyond is None:
            return 2.0 * ndtr(-(below + 0.5) / self.stddev)
        last = len(self.beyond) - 1
        found: F64 = self.beyond[np.minimum(below, last).astype(np.intp)]
        return found

    def half(self, probability: float) -> int:
        """Return the smallest size that is exceeded with at most this probability.

        >>> law = _gaussian_law(100.0, 1)
        >>> law.half(0.05), float(law.exceeded(19)) > 0.05
        (20, True)
        """
        if self.beyond is None:
            return max(0, math.ceil(-float(ndtri(probability / 2)) * self.stddev - 0.5))
        return int(np.argmax(self.beyond <= probability))

    def at_least(self, size: F64) -> F64:
        """Return the probability that the noise is at least so much; sizes may be negative."""
        above = 0.5 * self.exceeded(np.maximum(np.ceil(size) - 1.0, 0.0))
        below = 1.0 - 0.5 * self.exceeded(np.maximum(-size, 0.0))
        return np.where(size > 0, above, below)


_EXACT = NoiseLaw(0.0, np.zeros(1))


@lru_cache(maxsize=16)
def _skellam_law(variance: float) -> NoiseLaw:
    stddev = math.sqrt(variance)
    if stddev > _WIDE:
        return NoiseLaw(stddev, None)
    # a small variance has longer tails than a normal distribution of it
    reach = math.ceil(_REACH * max(stddev, 1.0)) + 20
    return NoiseLaw(stddev, _beyond(np.asarray(ive(np.arange(reach + 1.0), variance), np.float64)))


@lru_cache(maxsize=16)
def _gaussian_law(variance: float, number: int) -> NoiseLaw:
    """Return the distribution of a sum of rounded Gaussians, each rounded by itself."""
    stddev = math.sqrt(variance)
    total = math.sqrt(number * (variance + 1 / 12))  # rounding adds 1/12 where it matters
    if total > _WIDE:
        return NoiseLaw(total, None)
    edges = np.arange(math.ceil(_REACH * stddev) + 2) + 0.5
    upper = ndtr(-edges / stddev)  # not of edges themselves: far tails would be lost in 1 - 1
    one = np.append(1.0 - 2.0 * upper[0], -np.diff(upper))
    return NoiseLaw(total, _beyond(_summed(one, number, math.ceil(_REACH * total) + 2)))


@lru_cache(maxsize=16)
def _geometric_law(variance: float, number: int) -> NoiseLaw:
    """Return the distribution of a sum of draws of geometric noise."""
    stddev = math.sqrt(number * variance)
    if stddev > _WIDE:
        return NoiseLaw(stddev, None)
    # its tails are longer than those of a normal distribution: less than 2^-60 lies beyond this
    beyond = geometric.exceeded(variance, np.arange(geometric.half(variance, 2.0**-60) + 1.0))
    if number == 1:
        return NoiseLaw(stddev, np.append(beyond, 0.0))
    one = np.append(1.0 - beyond[0], -0.5 * np.diff(beyond))
    return NoiseLaw(stddev, _beyond(_summed(one, number, len(one) + math.ceil(_REACH * stddev))))


def _summed(one: F64, number: int, reach: int) -> F64:
    """Return the masses of 0, 1, ... of a sum of symmetric draws.

    Args:
        one: float64 [n], the masses of 0, 1, ... of one draw.
        number: of the draws.
        reach: what the sum exceeds with negligible probability.
    """
    if number == 1:
        return one
    size = 1 << (2 * max(reach, len(one)) + 1).bit_length()  # so that nothing wraps around
    circle = np.zeros(size)
    circle[: len(one)] = one
    circle[-1 : -len(one) : -1] = one[1:]
    found: F64 = np.maximum(np.fft.irfft(np.fft.rfft(circle) ** number, size)[: reach + 1], 0.0)
    return found


def _beyond(masses: F64) -> F64:
    """Return the probabilities that a size exceeds 0, 1, ..., from the masses of 0, 1, ...

    They are summed from the far end, where they are small, and the last is 0.
    """
    sums: F64 = np.append(2.0 * np.cumsum(masses[:0:-1])[::-1], 0.0)
    return sums


class DirectDecoder:
    """Reads the counts of a campaign from the counters of a histogram.

    Args:
        sketches: landed sums, all of one spec, at most one per round; rounds may be missing.
        noise: the noise in all of them together.

    Attributes:
        counted: the noun for what is counted: "clients", or "people" where clients are silos.

    Raises:
        InvalidInputError: no sum, two of one round, or sums of a sketch.
        IncompatibleError: the specs differ.

    >>> from fedtally.sketch import SketchSpec
    >>> spec = SketchSpec(1, 3, "shared", 1, bytes(32), first_id=7)
    >>> sketch = CountSketch(spec, 0)
    >>> sketch.add(np.array([7, 9, 9], np.uint64))
    >>> DirectDecoder([sketch]).range(7, 3).tolist()
    [1.0, 0.0, 2.0]
    """

    def __init__(self, sketches: Sequence[CountSketch], noise: NoiseLaw = _EXACT) -> None:
        self.spec, self.noise = check_landed(sketches), noise
        if self.spec.first_id is None:
            raise InvalidInputError(
                "recovery direct reads histograms, and the sums are of sketches"
            )
        self.num_clients = sum(sketch.num_clients for sketch in sketches)
        self.counted = "people" if any(sketch.num_silos for sketch in sketches) else "clients"
        self._places = Identity(self.spec.first_id)
        self._counts: F64 = np.sum([s.counters[0].astype(np.float64) for s in sketches], axis=0)

    def at(self, ids: U64) -> F64:
        """Return the counts of chosen ids: float64 [n].

        Raises:
            InvalidInputError: an id is that of no candidate.
        """
        found: F64 = self._counts[self._places.places(ids, self.spec.width)]
        return found

    def range(self, first_id: int, count: int) -> F64:
        """Return the counts of the ids from `first_id` on (mod 2^64): float64 [count]."""
        start = (first_id - self._places.first_id) % 2**64
        validate.integer(0, self.spec.width - start, count=count)
        return self._counts[start : start + count].copy()


class DirectIntervals:
    """Intervals around the counts of a histogram: the quantiles of the plan's noise.

    Without noise they have no width. The noise of counters is independent, so that the level of
    simultaneous intervals is exact, and not only bounded.

    Args:
        decoder: of the sums.
        size: candidates.
        confidence: of each interval, above 0 and below 1.
        kind: as for `make_intervals`.
    """

    def __init__(
        self, decoder: DirectDecoder, size: int, confidence: float, kind: str = "pointwise"
    ) -> None:
        self._decoder, self._noise, self._size = decoder, decoder.noise, size
        self._alpha, self._kind, self._clients = 1.0 - confidence, kind, decoder.num_clients
        about = ["all intervals hold at once"] if kind == "simultaneous" else []
        if self._noise.stddev:
            about.append(
                "quantiles of the plan's noise, whose standard deviation is"
                f" {self._noise.stddev:.3g} {decoder.counted} in each count"
            )
        self.about = "; ".join(about) if self._noise.stddev else ""
        alpha = 1.0 - confidence ** (1 / size) if kind == "simultaneous" else self._alpha
        self.half = self._noise.half(alpha) / self._clients
        self._slack = ROUNDING if self._noise.stddev else 0.0  # exact counts are their own limits

    @cached_property
    def predicted_linf(self) -> float:
        """The median of the largest error of all candidates' frequencies."""
        return self._noise.half(1.0 - 0.5 ** (1 / self._size)) / self._clients

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any candidates, in frequencies."""
        values = self._values(ids)
        return Limits(values - self.half - self._slack, values + self.half + self._slack)

    def centres(self, ids: Ids) -> F64:
        """Return the values, in frequencies, whose errors the limits bound."""
        return self._values(ids)

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return the limits of the items of a list, in frequencies; as `Intervals.listed`."""
        low, high = self.at(ids)
        if self._kind != "auto" or not len(ids) or not self._noise.stddev:
            return Limits(low, high)
        given, anyhow = list_tails(self._alpha / 2, len(ids), self._size, threshold)
        values = self._values(ids)
        least = values - max(self._noise.half(2.0 * anyhow) / self._clients, self.half) - ROUNDING
        if threshold is None:
            return Limits(least, high)
        return Limits(listed_lows(values, least, low, threshold, given, self._at_least), high)

    def _at_least(self, error: F64) -> F64:
        # an estimate that equals the threshold reached it: rounding must not say that it did not
        return self._noise.at_least((error - ROUNDING) * self._clients)

    def _values(self, ids: Ids) -> F64:
        return ask(self._decoder, ids) / self._clients
