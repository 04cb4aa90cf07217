"""Belief propagation: a decoder in which all items and all cells exchange messages."""

from __future__ import annotations

from collections.abc import Sequence

from fedtally.domain import Domain
from fedtally.recovery.decoders import Recovery, joint
from fedtally.recovery.decoders.belief import belief_error
from fedtally.recovery.decoders.belief.belief import (
    FEWEST_CELLS,
    MANY_ROWS,
    MOST_MESSAGES,
    BeliefDecoder,
    message_bytes,
)
from fedtally.recovery.decoders.belief.belief_intervals import BeliefIntervals
from fedtally.recovery.decoders.kind import DecoderKind, Progress
from fedtally.recovery.decoders.work import Task, Work, extended, looked
from fedtally.recovery.limits import Intervals
from fedtally.sketch import CountSketch


def _make(
    sketches: Sequence[CountSketch],
    domain: Domain,
    *,
    progress: Progress | None = None,
    **_: object,
) -> BeliefDecoder:
    return BeliefDecoder(sketches, domain, progress)


def _limits(
    decoder: BeliefDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float,
    kind: str,
) -> Intervals:
    if decoder.fallback:
        return joint.KIND.limits(decoder.joint, sketches, domain, confidence, kind)
    return BeliefIntervals(decoder, confidence, domain.size, kind)


def _work(task: Task) -> Work:
    before = joint.KIND.work(task)
    if not task.repetitions or task.cells * task.batches < FEWEST_CELLS:
        return before
    room = MOST_MESSAGES // (task.rows * task.batches)
    sent: dict[str, float] = {
        "belief": task.repetitions * min(task.candidates, room) * task.rows * task.batches,
        "prior": task.repetitions,
    }
    # The repetitions 1, 2, 4, ... and the last step decode all candidates, each with two decoders.
    if task.candidates > room:
        seen = 2 * (task.repetitions.bit_length() + 1)
        sent |= {name: seen * count for name, count in looked(task, task.candidates, 4).items()}
    return extended(before, **sent)


KIND = DecoderKind(
    decoder=BeliefDecoder,
    make=_make,
    limits=_limits,
    predict=belief_error.predict,
    failure=belief_error.failure,
    work=_work,
    held_bytes=message_bytes,
    fits_items=True,
    largest_support=joint.KIND.largest_support,
    # Tested up to about this number. Real tables with more candidates have few items above the
    # noise, and messages mostly improve nothing there (docs/accuracy.md).
    most_candidates=1 << 17,
    most_messages=MOST_MESSAGES,  # with more, only some candidates send messages
    auto_rows=MANY_ROWS,
    fewest_cells=FEWEST_CELLS,
    rests_on=Recovery.JOINT,
    # the same rows as joint recovery, which answers if beliefs are not better
    planned_rows=range(7, 17),
    usual_rows=7,
    schedules=("hybrid",),
)
