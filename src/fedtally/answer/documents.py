"""The JSON document of an answer: the fields of all its sections.

docs/output.md describes each field.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtally.answer import sections
from fedtally.answer.estimates import Estimate
from fedtally.answer.result import Result
from fedtally.answer.standing import doubted
from fedtally.plan import Target

SCHEMA = "fedtally-result/2"


def of_result(
    result: Result, estimates: Sequence[Estimate], queried: Sequence[Estimate] = ()
) -> dict[str, Any]:
    """Return the JSON document of a result.

    Args:
        result: the whole answer.
        estimates: the top items.
        queried: estimates of items that were asked for by name; without any, the document has no
            ``queries``.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3 + ["milk"], seed=1)
    >>> of_result(result, result.top(1))["estimates"][0]["frequency"]
    0.75
    """
    filled: dict[str, Any] = {
        "schema": SCHEMA,
        "warnings": list(result.warnings),
        "plan": sections.cost.fields(result.plan) | {"num_clients": result.num_clients},
        **sections.counted.fields(result),
        "privacy": sections.privacy.fields(result.plan, result.secure_sum),
        "secure_sum": result.secure_sum,
        "sizing": result.sizing,
        "target": Target.fields_of(result.plan.target),
        "recovery": result.recovery,
        "objective": result.objective,
        "intervals": sections.error.intervals_fields(result),
        "error": sections.error.fields([*doubted(result, estimates), *queried]),
        "estimates": sections.listed.fields(result, estimates),
        "open": sections.counted.open_fields(result),
        "evaluation": result.evaluation_fields,
        "timings": result.timings,
    }
    return filled | (
        {"queries": [sections.listed.estimate_fields(estimate) for estimate in queried]}
        if queried
        else {}
    )
