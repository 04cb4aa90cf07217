"""A campaign of several rounds that ends as soon as its largest error is known.

After each round the sums so far are decoded jointly. If the largest error of all frequencies is
above the target with at most the chance that the target allows, no further round is needed. So a
campaign adapts to the frequencies that it meets, without a pilot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fedtally.domain import Domain
from fedtally.plan import Plan
from fedtally.recovery.linear_system import landed_batches
from fedtally.sketch import CountSketch


def is_known(plan: Plan, domain: Domain, sketches: Sequence[CountSketch]) -> bool:
    """Return whether the sums so far are enough, so that no further round is needed.

    Args:
        plan: the plan; one without a rule counts all its rounds.
        domain: the candidates.
        sketches: the sums of whole rounds, with their noise.
    """
    rule, clients = plan.stopping, sum(sketch.num_clients for sketch in sketches)
    if rule is None or clients < rule.least_clients:
        return False
    # rounds with the same hashes and signs are one to the fit
    if len(landed_batches(plan.spec, sketches)) < rule.least_rounds:
        return False
    from fedtally.recovery.known_error import known_error  # SciPy: slow to load, and seldom needed

    error = known_error(sketches, domain, rule.probability)
    return error is not None and error <= rule.linf


def until_known(
    plan: Plan, domain: Domain, sketches: Sequence[CountSketch]
) -> Sequence[CountSketch]:
    """Return the sums up to the round with which the campaign ends; arguments as for `is_known`."""
    if plan.stopping is None:
        return sketches
    numbers = range(plan.stopping.least_rounds, len(sketches))
    first = next((m for m in numbers if is_known(plan, domain, sketches[:m])), len(sketches))
    return sketches[:first]


def ended(plan: Plan, rounds: int, by: Literal["rule", "operator"]) -> dict[str, Any] | None:
    """Return how a campaign that is over ended early, JSON-able; None: it had all its rounds.

    Args:
        plan: the plan.
        rounds: the number of rounds that took place.
        by: what ended it: the rule of the plan, or an operator.
    """
    told = {"rounds": rounds, "num_rounds": plan.num_rounds, "by": by}
    return told if rounds < plan.num_rounds else None
