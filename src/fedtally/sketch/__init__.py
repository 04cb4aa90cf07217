"""Count sketches, and the schedules that say which rounds share their hashes."""

from fedtally.sketch.count_sketch import (
    CountSketch,
    Identity,
    NoiseMark,
    RoundHash,
    SketchSpec,
    check_compatible,
    copy_of,
    summed,
)
from fedtally.sketch.schedule import Schedule, ScheduleKind
from fedtally.sketch.spelling import Spelling

__all__ = [
    "CountSketch",
    "Identity",
    "NoiseMark",
    "RoundHash",
    "Schedule",
    "ScheduleKind",
    "SketchSpec",
    "Spelling",
    "check_compatible",
    "copy_of",
    "summed",
]
