"""The decoder of histograms: reads counts from counters, with intervals and predicted errors.

No two items share a counter, so the only error is privacy noise. The plan gives the distribution of
this noise (`recovery.noise_law`). Limits are its quantiles. docs/recovery.md says more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedtally.base import validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.kernels import MAX_WIDTH
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.kind import CampaignDecoder, DecoderKind
from fedtally.recovery.decoders.work import Task, Work
from fedtally.recovery.limits import (
    ROUNDING,
    Intervals,
    Limits,
    UsualIntervals,
    list_tails,
    listed_lows,
)
from fedtally.recovery.linear_system import U64, Candidates, Ids, ask, check_landed
from fedtally.recovery.noise_law import NONE, NoiseLaw
from fedtally.recovery.shrinkage import NORMAL, Noisy
from fedtally.recovery.sums import F64, Prediction, Sums
from fedtally.sketch import CountSketch, Identity

if TYPE_CHECKING:
    from fedtally.privacy.config import PrivacyConfig


_SAME = 1e-9  # relative: rounding may move frequency * clients by this from an integer


class DirectDecoder(CampaignDecoder):
    """Reads the counts of a campaign from the counters of a histogram.

    Args:
        sketches: landed sums (the sums of rounds that took place) of histograms, all of one spec,
            at most one per round; rounds may be missing.
        noise: the distribution of the noise in one counter, summed over all sketches.

    Attributes:
        counted: what is counted: "clients", or "people" if clients are silos (organisations).

    Raises:
        InvalidInputError: there is no sum, two sums are of one round, or they are no histograms.
        IncompatibleError: the specs differ.

    >>> from fedtally.sketch import SketchSpec
    >>> spec = SketchSpec(1, 3, "shared", 1, bytes(32), first_id=7)
    >>> sketch = CountSketch(spec, 0)
    >>> sketch.add(np.array([7, 9, 9], np.uint64))
    >>> DirectDecoder([sketch]).range(7, 3).tolist()
    [1.0, 0.0, 2.0]
    """

    recovery = Recovery.DIRECT

    def __init__(self, sketches: Sequence[CountSketch], noise: NoiseLaw = NONE) -> None:
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
        """Return the count of each id: float64 [n].

        Raises:
            InvalidInputError: an id is no candidate.
        """
        found: F64 = self._counts[self._places.places(ids, self.spec.width)]
        return found

    def range(self, first_id: int, count: int) -> F64:
        """Return the counts of the ids from `first_id` on (mod 2^64): float64 [count].

        Raises:
            InvalidInputError: the range goes beyond the candidates.
        """
        start = (first_id - self._places.first_id) % 2**64
        validate.integer(0, self.spec.width - start, count=count)
        return self._counts[start : start + count].copy()

    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the counts that the objective l2 shrinks, and their noise, treated as normal."""
        stddev = self.noise.stddev
        return Noisy(stddev, NORMAL, lambda ids: (ask(self, ids) / stddev, stddev))


class DirectIntervals(UsualIntervals):
    """Intervals around the counts of a histogram, from the quantiles of the plan's noise.

    Without noise they have the width 0. The noise of different counters is independent. So
    simultaneous intervals of d candidates need no union bound: each has the confidence to the power
    1 / d.

    Args:
        decoder: a decoder of the sums.
        size: the number of candidates.
        confidence: the confidence of the intervals, above 0 and below 1.
        kind: the kind of intervals, as in `make_intervals`.

    Raises:
        InvalidInputError: no client took part.
    """

    def __init__(
        self, decoder: DirectDecoder, size: int, confidence: float, kind: str = "pointwise"
    ) -> None:
        self._decoder, self._noise, self._size = decoder, decoder.noise, size
        self._alpha, self._kind = 1.0 - confidence, kind
        self._clients = validate.integer(1, num_clients=decoder.num_clients)
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
        """The median of the largest error among the frequencies of all candidates."""
        return self._noise.half(1.0 - 0.5 ** (1 / self._size)) / self._clients

    def at(self, ids: Ids) -> Limits:
        """Return the limits of any candidates, in frequencies."""
        values = self._values(ids)
        return Limits(values - self.half - self._slack, values + self.half + self._slack)

    def centres(self, ids: Ids) -> F64:
        """Return the frequencies around which the limits lie: float64 [n]."""
        return self._values(ids)

    def listed(self, ids: U64, threshold: float | None) -> Limits:
        """Return limits of items that were chosen by their estimates; see `Intervals.listed`."""
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
        # Subtract ROUNDING: an estimate equal to the threshold has reached it despite rounding.
        return self._noise.at_least((error - ROUNDING) * self._clients)

    def _values(self, ids: Ids) -> F64:
        return ask(self._decoder, ids) / self._clients


def _make(
    sketches: Sequence[CountSketch],
    domain: Domain,
    *,
    terms: PrivacyConfig | None = None,
    **_: object,
) -> DirectDecoder:
    return DirectDecoder(sketches, NoiseLaw.of(terms, sketches))


def _limits(
    decoder: DirectDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float,
    kind: str,
) -> Intervals:
    return DirectIntervals(decoder, domain.size, confidence, kind)


def _predict(known: F64, sums: Sums, numbers: F64, probability: float) -> Prediction:
    """Return the predicted error, which depends only on the noise, not on the frequencies.

    The noise of different counters is independent. So the largest of d errors exceeds a size with
    probability p if each error exceeds it with probability 1 - (1 - p)^(1/d). Noise is an integer.
    If its standard deviation is small, its tails differ much from those of a normal distribution.
    """
    if not sums.noise:
        return Prediction(0.0, 0.0, 0.0)
    law = _law(sums)
    each = -math.expm1(math.log1p(-probability) / sums.candidates)
    return Prediction(law.stddev / sums.clients, 0.0, law.half(each) / sums.clients)


def _failure(known: F64, sums: Sums, numbers: F64, tau: float) -> float:
    """Return the probability that the largest error exceeds tau, a frequency above 0."""
    if not sums.noise:
        return 0.0
    each = float(_law(sums).exceeded(tau * sums.clients * (1 + _SAME)))
    return -math.expm1(sums.candidates * math.log1p(-each)) if each < 1 else 1.0


def _law(sums: Sums) -> NoiseLaw:
    return NoiseLaw.of_draws(sums.mechanism, sums.noise / sums.draws, sums.draws)


def _work(task: Task) -> Work:
    return {"candidate": task.candidates}


KIND = DecoderKind(
    decoder=DirectDecoder,
    make=_make,
    limits=_limits,
    predict=_predict,
    failure=_failure,
    work=_work,
    has_collisions=False,
    most_candidates=MAX_WIDTH,
    auto_rows=Recovery.DIRECT.fewest_rows,
    planned_rows=range(1, 2),
    usual_rows=1,
    schedules=("shared",),
)
