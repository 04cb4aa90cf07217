"""The rule that ends a campaign of several rounds as soon as its largest error is small enough.

After each round the sums so far are decoded jointly. The target is an error and a probability. No
further round is needed if the largest error of all frequencies exceeds the target's error with at
most that probability. So a campaign adapts to the frequencies of its items, without a pilot.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fedtally.domain import Domain
from fedtally.plan import Plan
from fedtally.recovery.linear_system import landed_batches
from fedtally.sketch import CountSketch


def is_known(plan: Plan, domain: Domain, sketches: Sequence[CountSketch]) -> bool:
    """Return whether the sums so far are accurate enough, so that no further round is needed.

    Args:
        plan: the plan. If it has no stopping rule, the answer is False.
        domain: the candidates.
        sketches: the sums of whole rounds so far, with their noise.
    """
    rule, clients = plan.stopping, sum(sketch.num_clients for sketch in sketches)
    if rule is None or clients < rule.least_clients:
        return False
    # joint decoding treats rounds with the same hashes and signs as one round
    if len(landed_batches(plan.spec, sketches)) < rule.least_rounds:
        return False
    from fedtally.recovery.known_error import known_error  # SciPy: slow to load, and seldom needed

    error = known_error(sketches, domain, rule.probability)
    return error is not None and error <= rule.linf


def until_known(
    plan: Plan, domain: Domain, sketches: Sequence[CountSketch]
) -> Sequence[CountSketch]:
    """Return the sums up to the last round that the stopping rule needs.

    If the plan has no stopping rule, or the rule is never met, all sums are returned. The arguments
    are as for `is_known`.
    """
    if plan.stopping is None:
        return sketches
    numbers = range(plan.stopping.least_rounds, len(sketches))
    first = next((m for m in numbers if is_known(plan, domain, sketches[:m])), len(sketches))
    return sketches[:first]


def ended(plan: Plan, rounds: int, by: Literal["rule", "operator"]) -> dict[str, Any] | None:
    """Return how a finished campaign ended early, as a JSON object; None: it had all its rounds.

    Args:
        plan: the plan.
        rounds: the number of rounds that took place.
        by: whether the plan's stopping rule or an operator ended the campaign.
    """
    told = {"rounds": rounds, "num_rounds": plan.num_rounds, "by": by}
    return told if rounds < plan.num_rounds else None
