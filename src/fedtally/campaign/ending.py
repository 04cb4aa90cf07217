"""The rule that ends a campaign of several rounds as soon as its largest error is small enough.

A plan with such a rule names an error and a probability. Once enough rounds and clients took part,
the sums so far are decoded jointly after each round. This also predicts a limit that the largest
error of all frequencies exceeds with the named probability. If the limit is at most the named
error, no further round is needed. So the frequencies of the items decide how many rounds there are,
and no pilot (a small first campaign) is needed to choose that number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from fedtally.domain import Domain
from fedtally.plan import Plan
from fedtally.recovery.linear_system import landed_batches
from fedtally.sketch import CountSketch


def is_known(plan: Plan, domain: Domain, sketches: Sequence[CountSketch]) -> bool:
    """Return whether the plan's stopping rule is met, so that no further round is needed.

    The rule is never met while the sums have fewer clients than the rule's `least_clients`, or
    fewer rounds than its `least_rounds`. Rounds that share all hashes and signs count as one round.

    Args:
        plan: the plan. If it has no stopping rule, the answer is False.
        domain: the candidates, that is, the items that may be counted.
        sketches: the sums of all rounds so far that have a sum, one sum for each round. With
            privacy they include the noise.
    """
    rule, clients = plan.stopping, sum(sketch.num_clients for sketch in sketches)
    if rule is None or clients < rule.least_clients:
        return False
    # Rounds with the same hashes and signs count as one, since joint decoding only adds them up.
    if len(landed_batches(plan.spec, sketches)) < rule.least_rounds:
        return False
    # imported here, because SciPy is slow to load, and most plans do not need it
    from fedtally.recovery.known_error import known_error

    error = known_error(sketches, domain, rule.probability)
    return error is not None and error <= rule.linf


def until_known(
    plan: Plan, domain: Domain, sketches: Sequence[CountSketch]
) -> Sequence[CountSketch]:
    """Return the sums up to the round with which the plan's stopping rule is met.

    If the plan has no stopping rule, or the rule is never met, all sums are returned. The arguments
    are as for `is_known`, with the sums in the order of rounds.
    """
    if plan.stopping is None:
        return sketches
    numbers = range(plan.stopping.least_rounds, len(sketches))
    first = next((m for m in numbers if is_known(plan, domain, sketches[:m])), len(sketches))
    return sketches[:first]


def ended(plan: Plan, rounds: int, by: Literal["rule", "operator"]) -> dict[str, Any] | None:
    """Return how a campaign ended early, as a JSON object, or None if it had all its rounds.

    Args:
        plan: the plan.
        rounds: the number of rounds that took place.
        by: "rule" if the plan's stopping rule ended the campaign, "operator" if an operator did.
    """
    told = {"rounds": rounds, "num_rounds": plan.num_rounds, "by": by}
    return told if rounds < plan.num_rounds else None
