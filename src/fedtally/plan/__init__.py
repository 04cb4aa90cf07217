"""The plan of a campaign: the frozen `Plan`, its parts and its target."""

from fedtally.plan.parts.candidates import Candidates, check_histogram_domain
from fedtally.plan.parts.clients import Clients
from fedtally.plan.parts.protection import Protection, Sums
from fedtally.plan.parts.summing import Summing
from fedtally.plan.parts.vector import Vector
from fedtally.plan.plan import (
    MAX_BYTES,
    MAX_CLIENTS,
    MAX_ITEMS,
    Plan,
    modulus_bits,
)
from fedtally.plan.target import Target

__all__ = [
    "MAX_BYTES",
    "MAX_CLIENTS",
    "MAX_ITEMS",
    "Candidates",
    "Clients",
    "Plan",
    "Protection",
    "Summing",
    "Sums",
    "Target",
    "Vector",
    "check_histogram_domain",
    "modulus_bits",
]
