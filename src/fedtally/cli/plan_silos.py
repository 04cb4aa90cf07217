"""Texts about the silos of a plan: how many fit into a sum, and what a sum reveals about one.

A silo is a client with the items of many people, such as a hospital.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedtally.plan import Plan

_DROPOUTS = (0.0, 0.1, 0.2)  # `_fitting` gives numbers of silos for each of these dropout shares


def fields(plan: Plan, expected: int) -> dict[str, Any]:
    """Return the facts about a plan's silos as a dict for JSON.

    Args:
        plan: the plan, whose clients are silos.
        expected: the expected number of people in all silos together.
    """
    from fedtally.plan.silos import size_shown

    return {
        "people": plan.people,
        "expected_people": expected,
        "fitting": _fitting(plan),
        "size_shown": size_shown(plan),
        "size_shown_by_two": size_shown(plan, sums=2),
    }


def rows(plan: Plan, expected: int) -> list[tuple[str, str]]:
    """Return the rows (name, text) about a plan's silos.

    Args:
        plan: the plan, whose clients are silos.
        expected: the expected number of people in all silos together.
    """
    from fedtally.answer import amounts
    from fedtally.plan.silos import in_ranges

    fitting = [
        f"{in_ranges(each['silos'])} with up to {100 * each['max_dropout']:g} % dropouts"
        for each in _fitting(plan) or []
    ]
    rounds = amounts.counted(plan.num_rounds, "round")
    sizes = f"{plan.num_clients:,} in {rounds}, of at most {plan.people:,} people each"
    fits = f"numbers of silos in a sum that fit, up to 12: {'; '.join(fitting)}"
    learns = f"who reads the result, as silos may, learns a silo's size {size_learnt(plan)}"
    return [
        ("Silos", f"{sizes}; {expected:,} people are expected"),
        *([("", fits)] if fitting else []),
        ("", learns),
    ]


def _fitting(plan: Plan) -> list[dict[str, Any]] | None:
    """Return which numbers of silos, up to 12, can be summed together.

    Returns:
        A dict for each share in `_DROPOUTS`, with two entries: `max_dropout`, this share of silos
        that may drop out, and `silos`, the numbers that are possible with it. The result is None if
        the plan does not sum in groups of clients (cohorts).
    """
    from fedtally.plan.silos import fitting_numbers

    cohorts = plan.summing.cohorts
    if cohorts is None:
        return None
    adversary = cohorts.parameters.adversary
    return [
        {"max_dropout": share, "silos": [*fitting_numbers(share, adversary)]} for share in _DROPOUTS
    ]


def size_learnt(plan: Plan) -> str:
    """Return in words how exactly a reader of the result learns the number of people in a silo.

    The worst case is assumed: the reader knows the number of people in each of the other silos.
    """
    from fedtally.plan.silos import size_shown

    if plan.privacy is None:
        return "exactly, if it knows all others"
    return (
        f"to ± {size_shown(plan):,.0f} people, if it knows all others, and to ±"
        f" {size_shown(plan, sums=2):,.0f} of two such sums, in 95 of 100 campaigns"
    )
