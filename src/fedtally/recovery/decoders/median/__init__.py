"""The paper's decoder: an item's estimate is the median over the rows of the sketch."""

from __future__ import annotations

from collections.abc import Sequence

from fedtally.domain import Domain
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoders.kind import DecoderKind
from fedtally.recovery.decoders.median import median_error
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.decoders.median.median_intervals import MedianIntervals
from fedtally.recovery.decoders.work import Task, Work, looked
from fedtally.recovery.limits import Intervals
from fedtally.recovery.linear_system import Landed
from fedtally.sketch import CountSketch

# The decoder's tables are made for at most this number of candidates.
_MAX_EXPECTED = 1 << 24


def _make(sketches: Sequence[CountSketch], domain: Domain, **_: object) -> MedianDecoder:
    return MedianDecoder(sketches, expected=min(domain.size, _MAX_EXPECTED))


def _limits(
    decoder: MedianDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float,
    kind: str,
) -> Intervals:
    landed = Landed(decoder.spec, sketches)
    return MedianIntervals([decoder], [landed], domain, confidence, kind)


def _work(task: Task) -> Work:
    return looked(task, task.candidates, 4 if task.single else 8)


KIND = DecoderKind(
    decoder=MedianDecoder,
    make=_make,
    limits=_limits,
    predict=median_error.predict,
    failure=median_error.failure,
    work=_work,
    most_candidates=2**64,
    auto_rows=Recovery.MEDIAN.fewest_rows,
    planned_rows=range(3, 32),
    usual_rows=15,
    schedules=("hybrid", "fresh"),
    on_even_rows=(
        "the median is the mean of the two middle rows; odd numbers resist collisions better"
    ),
)
