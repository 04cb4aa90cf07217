"""The JSON documents of answers, built from the fields of the modules in `sections`.

docs/output.md describes each field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fedtally.answer import notes, sections
from fedtally.answer.answer import Answer
from fedtally.answer.estimates import Estimate
from fedtally.answer.noise_floor import doubted
from fedtally.answer.result import Result
from fedtally.answer.trending import Series, Trends
from fedtally.plan import Target

SCHEMA = "fedtally-result/2"


def of_result(
    result: Result, estimates: Sequence[Estimate], queried: Sequence[Estimate] = ()
) -> dict[str, Any]:
    """Return the JSON document of a result.

    Args:
        result: the result to describe.
        estimates: the estimates of the top items.
        queried: the estimates of items asked for by name; if empty, the document has no
            ``queries``.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3 + ["milk"], seed=1)
    >>> of_result(result, result.top(1))["estimates"][0]["frequency"]
    0.75
    """
    filled: dict[str, Any] = {
        "schema": SCHEMA,
        "warnings": list(result.warnings),
        "plan": sections.cost.fields(result.plan, result.secure_sum)
        | {"num_clients": result.num_clients},
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


def of_trends(result: Result, trends: Trends) -> dict[str, Any]:
    """Return the JSON document on items whose shares changed over the rounds of a result.

    Args:
        result: the result.
        trends: what `Result.trends` returned for it.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 80, rounds=[1, 2] * 40, seed=1)
    >>> of_trends(result, result.trends())["changed"]
    []
    """
    return {"schema": "fedtally-trends/1", **_of_rounds(result), **sections.changed.fields(trends)}


def of_series(result: Result, series: Series) -> dict[str, Any]:
    """Return the JSON document on the shares of items in each round of a result.

    Args:
        result: the result.
        series: what `Result.series` returned for it.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 80, rounds=[1, 2] * 40, seed=1)
    >>> [one["frequency"] for one in of_series(result, result.series(["tea"]))["points"]]
    [1.0, 1.0]
    """
    return {
        "schema": "fedtally-series/1",
        **_of_rounds(result),
        **sections.changed.series_fields(series),
    }


def _of_rounds(result: Result) -> dict[str, Any]:
    """Return the fields that the documents of trends and of series have in common.

    They are the plan's fingerprint, the decoder, the plan's privacy, and the warnings.
    """
    return {
        "fingerprint": result.plan.fingerprint,
        "recovery": result.recovery,
        "privacy": sections.privacy.fields(result.plan, result.secure_sum),
        "warnings": list(result.warnings),
    }


def of_merged(
    merged: Answer,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
) -> dict[str, Any]:
    """Return the JSON document of several results merged into one answer.

    Args:
        merged: the merged answer.
        paths: the path of each result's file.
        estimates: the estimates of the top items.
        queried: the estimates of items that were asked for by name.
    """
    parts = [
        {
            "file": path,
            "fingerprint": part.plan.fingerprint,
            "num_clients": part.num_clients,
            "ended": part.ended,
            "privacy": sections.privacy.fields(part.plan, part.secure_sum),
            "warnings": [*notes.on_ends([part]), *notes.warnings(part)],
        }
        for path, part in zip(paths, merged.parts, strict=True)
    ]
    fields = {
        "schema": "fedtally-merged/2",
        "num_clients": merged.num_clients,
        "disjoint": merged.disjoint,
        "warnings": list(merged.warnings),
        "intervals": sections.error.limits_fields(
            merged.confidence, merged.interval_kind, merged.about
        )
        if merged.about
        else None,
        "error": sections.error.fields([*doubted(merged, estimates), *queried]),
        "results": parts,
        "together": merged.joint_guarantee.to_dict(),
    }
    named = {"queries": [asdict(estimate) for estimate in queried]} if queried else {}
    return fields | {"estimates": sections.listed.fields(merged, estimates)} | named
