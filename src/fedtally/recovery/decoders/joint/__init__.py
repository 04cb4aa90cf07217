"""Joint recovery: a decoder that fits the heavy items together."""

from __future__ import annotations

from collections.abc import Sequence

from fedtally.domain import Domain
from fedtally.recovery.decoders import Recovery, median
from fedtally.recovery.decoders.joint import joint_error
from fedtally.recovery.decoders.joint.joint import (
    LARGE,
    LARGEST_SUPPORT,
    LOOKS_AT_LARGE,
    POLISH_SWEEPS,
    POLISHES,
    PROBE_SWEEPS,
    PROBED_CELLS,
    SWEEPS,
    THRESHOLDS,
    JointDecoder,
)
from fedtally.recovery.decoders.joint.joint_intervals import JointIntervals, Kappa, kappa_of
from fedtally.recovery.decoders.kind import DecoderKind, Progress
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.decoders.work import Task, Work, looked
from fedtally.recovery.found import FoundFit
from fedtally.recovery.limits import Intervals
from fedtally.recovery.phantoms import NUM_PHANTOMS
from fedtally.sketch import CountSketch

# The assumed number of fitted items, as a share of the number of counters of one sketch, if the
# number of heavy items is unknown.
HEAVY = 0.1


def _make(
    sketches: Sequence[CountSketch],
    domain: Domain,
    *,
    progress: Progress | None = None,
    found: FoundFit | None = None,
    **_: object,
) -> JointDecoder:
    return JointDecoder(sketches, domain, progress, found)


def _limits(
    decoder: JointDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float,
    kind: str,
) -> Intervals:
    if decoder.fallback is None:
        # Kappa and the largest error take passes over all candidates but depend only on the fit. So
        # the decoder stores them, and further intervals need no such pass.
        fit = decoder.fit if decoder.fit.whole is None else decoder.fit.whole
        kappa = kappa_of(fit) if decoder.kappa is None else Kappa(*decoder.kappa)
        made = JointIntervals(
            decoder.fit, confidence, domain.size, kappa, kind, decoder.largest_error
        )
        decoder.kappa = (kappa.value, kappa.source)
        decoder.largest_error = made.predicted_linf
        return made
    # The fit was given up and the median answers: the errors are those of the median.
    answering = MedianDecoder(sketches, expected=domain.size)
    return median.KIND.limits(answering, sketches, domain, confidence, kind)


def _work(task: Task) -> Work:
    cells, batches, several = task.cells, task.batches, task.batches > 1
    most = min(task.candidates, int(LARGEST_SUPPORT[several] * cells))
    fitted = min(most, max(1, int(HEAVY * cells)) if task.heavy is None else task.heavy)
    probes = (POLISHES + 1) * min(64, -(-PROBED_CELLS[several] // (cells * batches)))
    sweeps = len(THRESHOLDS) * SWEEPS + POLISHES * POLISH_SWEEPS + probes * PROBE_SWEEPS
    looks = len(THRESHOLDS) + POLISHES + 1
    if task.candidates >= LARGE:  # other looks only go over a short list of candidates
        looks = LOOKS_AT_LARGE
    once, phantoms = looked(task, task.candidates, 4), looked(task, NUM_PHANTOMS, 4)
    own = batches if task.is_fresh else 1
    return {name: looks * count + phantoms[name] for name, count in once.items()} | {
        "fit": 1,
        "candidate": looks * task.candidates,
        "place": fitted * task.rows * own * (looks + POLISHES),
        "step": fitted * task.rows * batches * sweeps,
        "cell": probes * cells * batches,
    }


KIND = DecoderKind(
    decoder=JointDecoder,
    make=_make,
    limits=_limits,
    predict=joint_error.predict,
    failure=joint_error.failure,
    work=_work,
    fits_items=True,
    largest_support=LARGEST_SUPPORT,
    most_candidates=1 << 28,  # it looks at all of them, for about a minute
    auto_rows=Recovery.JOINT.fewest_rows,
    planned_rows=range(7, 17),
    usual_rows=7,
    schedules=("hybrid",),
)
