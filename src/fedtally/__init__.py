"""Estimate how often items occur among many clients, without seeing the items of any client.

    result = fedtally.estimate(words, num_rounds=10)
    result.top(20)

The names below are loaded on first use, so that importing the package is fast.
"""

from __future__ import annotations

# `TYPE_CHECKING` is set here and not imported: importing typing takes milliseconds, and Ctrl-C
# during this time would show a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fedtally.answer.estimates import Estimate
    from fedtally.answer.evaluation import Evaluation
    from fedtally.answer.result import Result
    from fedtally.campaign.client import FrequencyClient
    from fedtally.campaign.server import FrequencyServer
    from fedtally.domain import Dictionary, Domain, Grid, IntegerRange, IntegerSet, Strings
    from fedtally.errors import FedtallyError, InvalidInputError
    from fedtally.plan import Plan
    from fedtally.privacy.policy import PrivacyPolicy
    from fedtally.recovery.decoders.belief.belief import BeliefDecoder
    from fedtally.recovery.decoders.joint.joint import JointDecoder
    from fedtally.recovery.decoders.median.median import MedianDecoder
    from fedtally.recovery.intervals import make_intervals
    from fedtally.simulation.estimate import estimate
    from fedtally.simulation.partitions import merge_tallies, partial_tally
    from fedtally.sketch import CountSketch, Schedule, SketchSpec

__version__ = "0.1.0"

_HOMES = {
    "BeliefDecoder": "fedtally.recovery.decoders.belief.belief",
    "CountSketch": "fedtally.sketch",
    "Dictionary": "fedtally.domain",
    "Domain": "fedtally.domain",
    "Estimate": "fedtally.answer.estimates",
    "Evaluation": "fedtally.answer.evaluation",
    "FedtallyError": "fedtally.errors",
    "FrequencyClient": "fedtally.campaign.client",
    "FrequencyServer": "fedtally.campaign.server",
    "Grid": "fedtally.domain",
    "IntegerRange": "fedtally.domain",
    "IntegerSet": "fedtally.domain",
    "InvalidInputError": "fedtally.errors",
    "JointDecoder": "fedtally.recovery.decoders.joint.joint",
    "MedianDecoder": "fedtally.recovery.decoders.median.median",
    "Plan": "fedtally.plan",
    "PrivacyPolicy": "fedtally.privacy.policy",
    "Result": "fedtally.answer.result",
    "Schedule": "fedtally.sketch",
    "SketchSpec": "fedtally.sketch",
    "Strings": "fedtally.domain",
    "estimate": "fedtally.simulation.estimate",
    "make_intervals": "fedtally.recovery.intervals",
    "merge_tallies": "fedtally.simulation.partitions",
    "partial_tally": "fedtally.simulation.partitions",
}
__all__ = [
    "BeliefDecoder",
    "CountSketch",
    "Dictionary",
    "Domain",
    "Estimate",
    "Evaluation",
    "FedtallyError",
    "FrequencyClient",
    "FrequencyServer",
    "Grid",
    "IntegerRange",
    "IntegerSet",
    "InvalidInputError",
    "JointDecoder",
    "MedianDecoder",
    "Plan",
    "PrivacyPolicy",
    "Result",
    "Schedule",
    "SketchSpec",
    "Strings",
    "__version__",
    "estimate",
    "make_intervals",
    "merge_tallies",
    "partial_tally",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedtally' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
