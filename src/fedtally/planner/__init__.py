"""The choice of a sketch from an error, bytes and privacy, and the bill of a plan."""

from fedtally.planner.bill import Bill, Stage
from fedtally.planner.campaign import Campaign
from fedtally.planner.choice import (
    Choice,
    Question,
    best,
    best_schedule,
    least,
    reach,
    schedules,
    smallest,
)
from fedtally.planner.costs import REFERENCE, Host
from fedtally.planner.frequencies import Frequencies
from fedtally.planner.paper_sizes import Size, linear, minimax, oracle, two_phase
from fedtally.planner.pilot import Fit, Pilot
from fedtally.planner.sizes import RISK, UnreachableError, size_by_model, within

__all__ = [
    "REFERENCE",
    "RISK",
    "Bill",
    "Campaign",
    "Choice",
    "Fit",
    "Frequencies",
    "Host",
    "Pilot",
    "Question",
    "Size",
    "Stage",
    "UnreachableError",
    "best",
    "best_schedule",
    "least",
    "linear",
    "minimax",
    "oracle",
    "reach",
    "schedules",
    "size_by_model",
    "smallest",
    "two_phase",
    "within",
]
