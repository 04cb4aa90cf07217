"""Count sketches and their round schedules."""

from fedtally.sketch.count_sketch import (
    JOINT_ROWS,
    CountSketch,
    NoiseMark,
    RoundHash,
    SketchSpec,
    check_compatible,
    check_joint_rows,
)
from fedtally.sketch.schedule import Schedule, ScheduleKind

__all__ = [
    "JOINT_ROWS",
    "CountSketch",
    "NoiseMark",
    "RoundHash",
    "Schedule",
    "ScheduleKind",
    "SketchSpec",
    "check_compatible",
    "check_joint_rows",
]
