"""A campaign in numbers: the frozen `Plan`, and what its parts answer."""

from fedtally.plan.parts.protection import Protection, Sums
from fedtally.plan.parts.summing import Summing
from fedtally.plan.plan import (
    MAX_BYTES,
    MAX_CLIENTS,
    MAX_ITEMS,
    Plan,
    check_histogram_domain,
    modulus_bits,
)
from fedtally.plan.target import Target

__all__ = [
    "MAX_BYTES",
    "MAX_CLIENTS",
    "MAX_ITEMS",
    "Plan",
    "Protection",
    "Summing",
    "Sums",
    "Target",
    "check_histogram_domain",
    "modulus_bits",
]
