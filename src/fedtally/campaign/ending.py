"""A campaign of several rounds that ends as soon as its largest error is known.

After each round the sums so far are decoded jointly. If the largest error of all frequencies is
above the target with at most the chance that the target allows, no further round is needed. So a
campaign adapts to the frequencies that it meets, without a pilot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fedtally.base.text import in_number
from fedtally.domain import Domain
from fedtally.plan import Plan
from fedtally.recovery.known_error import known_error
from fedtally.sketch import CountSketch


def is_known(plan: Plan, domain: Domain, sketches: Sequence[CountSketch]) -> bool:
    """Return whether the sums so far are enough, so that no further round is needed.

    Args:
        plan: the plan; one without a rule counts all its rounds.
        domain: the candidates.
        sketches: the sums of whole rounds, with their noise.
    """
    return _enough(plan, domain, sketches) is not None


def _enough(plan: Plan, domain: Domain, sketches: Sequence[CountSketch]) -> float | None:
    """Return the largest error with which the campaign may end; None: it goes on."""
    rule, clients = plan.stopping, sum(sketch.num_clients for sketch in sketches)
    if rule is None or len(sketches) < rule.least_rounds or clients < rule.least_clients:
        return None
    error = known_error(sketches, domain, rule.probability)
    return error if error is not None and error <= rule.linf else None


def until_known(
    plan: Plan, domain: Domain, sketches: Sequence[CountSketch]
) -> Sequence[CountSketch]:
    """Return the sums up to the round with which the campaign ends; arguments as for `is_known`."""
    if plan.stopping is None:
        return sketches
    numbers = range(plan.stopping.least_rounds, len(sketches))
    first = next((m for m in numbers if is_known(plan, domain, sketches[:m])), len(sketches))
    return sketches[:first]


def notes(plan: Plan, domain: Domain, sketches: Sequence[CountSketch]) -> Iterator[str]:
    """Yield the note on when a campaign that is over ended, if it ended early.

    Args:
        plan: the plan.
        domain: the candidates.
        sketches: the released sums.
    """
    rule, rounds = plan.stopping, max(sketch.round for sketch in sketches) + 1
    if rule is None or rounds == plan.num_rounds:
        return
    error = _enough(plan, domain, sketches)
    if error is not None:  # else somebody ended it
        yield (
            f"the campaign ended after {in_number(rounds, 'round', '{} rounds')} of"
            f" {plan.num_rounds:,}: the largest error is above {100 * error:.3g} points in at most"
            f" {100 * rule.probability:.3g} % of campaigns"
        )
