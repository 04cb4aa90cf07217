"""The JSON documents that programs read; docs/output.md describes each field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fedtally.domain import OpenStrings, Unread
from fedtally.plan import Plan
from fedtally.recovery.decoding import listed_kind, named_kind
from fedtally.report.wording import covers
from fedtally.result import Estimate, Result

SCHEMA = "fedtally-result/1"


def document(
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
    >>> document(result, result.top(1))["estimates"][0]["frequency"]
    0.75
    """
    filled: dict[str, Any] = {
        "schema": SCHEMA,
        "warnings": list(result.warnings),
        "plan": plan_fields(result.plan) | {"num_clients": result.num_clients},
        "num_contributions": result.num_contributions,
        "num_silos": result.num_silos if result.plan.is_of_silos else None,
        "columns": result.columns,
        "draw": result.draw,
        "privacy": privacy_fields(result.plan, result.secure_sum),
        "secure_sum": result.secure_sum,
        "sizing": result.sizing,
        "target": None if result.plan.target is None else result.plan.target.to_dict(),
        "recovery": result.recovery,
        "objective": result.objective,
        "intervals": intervals_fields(result),
        "estimates": [estimate_fields(estimate) for estimate in estimates],
        "open": _open_fields(result),
        "evaluation": None if result.evaluation is None else result.evaluation._asdict(),
        "timings": result.timings,
    }
    return filled | (
        {"queries": [estimate_fields(estimate) for estimate in queried]} if queried else {}
    )


def estimate_fields(estimate: Estimate) -> dict[str, Any]:
    """Return the fields of an estimate. A hash without a name has no item, but a `hash`.

    >>> from fedtally.domain import Unread
    >>> fields = estimate_fields(Estimate(Unread.of(7), 0.25, None, None, 5.0))
    >>> fields["item"], fields["hash"]
    (None, '0000007')
    """
    fields = asdict(estimate)
    if isinstance(estimate.item, Unread):
        return fields | {"item": None, "hash": estimate.item.removeprefix("#")}
    return fields


def _open_fields(result: Result) -> dict[str, Any] | None:
    """Return the fields of an open domain; None of others."""
    domain = result.domain
    if not isinstance(domain, OpenStrings):
        return None
    return {
        "bits": domain.bits,
        "max_length": domain.max_length,
        "normalise": domain.normalise,
        "found": result.num_found,
        "named": len(result.names),
        "collision_probability": domain.collides(result.num_found),
    }


def privacy_fields(plan: Plan, traffic: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the fields of a plan's privacy; None where it has none.

    Args:
        plan: the plan.
        traffic: the traffic of the secure sum, where it has happened.
    """
    if plan.privacy is None:
        return None
    from fedtally.privacy import guarantee_text

    seen = traffic or {}
    return guarantee_text.fields(
        plan.privacy,
        seen.get("fewest_survivors"),
        seen.get("corrupt", 0),
        is_of_silos=plan.is_of_silos,
    )


def intervals_fields(result: Result) -> dict[str, Any] | None:
    """Return the fields of a result's intervals; None where it has none.

    >>> import fedtally
    >>> fields = intervals_fields(fedtally.estimate(["tea", "milk"], seed=1))
    >>> fields["kind"], fields["list"]["kind"], fields["named"]["kind"]
    ('auto', 'selective', 'pointwise')
    """
    intervals = result.intervals
    if intervals is None:
        return None
    said = limits_fields(result.confidence, result.interval_kind, intervals.about)
    return said | {"predicted_linf": intervals.predicted_linf}


def limits_fields(confidence: float, kind: str, about: str) -> dict[str, Any]:
    """Return the fields of limits, of one result or of several merged ones.

    Args:
        confidence: the confidence of the limits.
        kind: the kind of interval that was asked for.
        about: how they were made, in words.
    """
    return {
        "confidence": confidence,
        "kind": kind,
        "list": {"kind": (listed := listed_kind(kind)), "covers": covers(listed)},
        "named": {"kind": (named := named_kind(kind)), "covers": covers(named)},
        "about": about,
    }


def plan_fields(plan: Plan) -> dict[str, Any]:
    """Return the fields of a plan: its size, clients, domain, cost and fingerprint.

    >>> plan = Plan(rows=7, width=200, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 9, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> plan_fields(plan)["bytes_per_client"]
    1225
    """
    return {
        "encoding": str(plan.encoding),
        "rows": plan.rows,
        "width": plan.width,
        "num_rounds": plan.num_rounds,
        "schedule": str(plan.schedule),
        "num_clients": plan.num_clients,
        "people": plan.people,
        "domain_size": plan.domain_size,
        "domain_public": bool(plan.domain["public"]),
        "spelling": plan.to_dict().get("spelling"),
        "modulus_bits": plan.modulus_bits,
        "bytes_per_client": plan.bytes_per_client,
        "one_hot_bytes_per_client": plan.one_hot_bytes_per_client,
        "binary_bytes_per_client": plan.binary_bytes_per_client,
        "fingerprint": plan.fingerprint,
    }
