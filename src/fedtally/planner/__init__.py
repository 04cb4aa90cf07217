"""From an error, bytes and privacy to the size of a sketch: what is known of the frequencies, and what follows."""

from fedtally.planner.bill import REFERENCE, Bill, Host, Stage
from fedtally.planner.choice import Choice, Question, best, best_schedule, least, reach, schedules, smallest
from fedtally.planner.law import Fit, Law, Pilot
from fedtally.planner.sizes import (
    RISK,
    Campaign,
    Size,
    UnreachableError,
    calculus,
    linear,
    minimax,
    oracle,
    two_phase,
    within,
)

__all__ = [
    "REFERENCE",
    "RISK",
    "Bill",
    "Campaign",
    "Choice",
    "Fit",
    "Host",
    "Law",
    "Pilot",
    "Question",
    "Size",
    "Stage",
    "UnreachableError",
    "best",
    "best_schedule",
    "calculus",
    "least",
    "linear",
    "minimax",
    "oracle",
    "reach",
    "schedules",
    "smallest",
    "two_phase",
    "within",
]
