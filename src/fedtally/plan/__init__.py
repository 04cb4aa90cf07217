"""A campaign in numbers: the frozen `Plan`, and what its parts answer."""

from fedtally.plan.plan import (
    MAX_BYTES,
    MAX_CLIENTS,
    MAX_ITEMS,
    Plan,
    Target,
    check_histogram_domain,
    modulus_bits,
    noise_bound,
)

__all__ = [
    "MAX_BYTES",
    "MAX_CLIENTS",
    "MAX_ITEMS",
    "Plan",
    "Target",
    "check_histogram_domain",
    "modulus_bits",
    "noise_bound",
]
