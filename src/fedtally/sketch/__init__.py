"""Count sketches and their round schedules."""

from fedtally.sketch.count_sketch import CountSketch, RoundHash, SketchSpec, check_compatible
from fedtally.sketch.schedule import Schedule, ScheduleKind

__all__ = ["CountSketch", "RoundHash", "Schedule", "ScheduleKind", "SketchSpec", "check_compatible"]
