"""The JSON documents that programs read, and the names of their fields in plain words.

docs/output.md describes each field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fedtally.answer.estimates import Estimate, largest_uncertainty
from fedtally.answer.standing import doubted
from fedtally.answer.wording import covers
from fedtally.domain import OpenStrings, Unread
from fedtally.plan import Plan, Target

if TYPE_CHECKING:
    from fedtally.answer.merged import Merged
    from fedtally.answer.result import Result

SCHEMA = "fedtally-result/2"
_NAMES = {  # of fields, in words
    "num_rounds": "rounds",
    "num_clients": "clients",
    "num_clients_landed": "clients in the sums",
    "num_contributions": "contributions",
    "num_silos": "silos",
    "max_round_clients": "most clients of a round",
    "max_items": "most items of a client",
    "domain_size": "number of candidates",
    "domain_public": "candidates are public",
    "modulus_bits": "bits of a counter",
    "one_hot_bytes_per_client": "one-hot vector, bytes per client",
    "binary_bytes_per_client": "the item itself, bytes per client",
    "rounds_landed": "rounds in the answer",
    "missing_keys": "keys that are missing",
    "epsilon_replace_one": "epsilon if items are replaced",
    "epsilon_realised": "epsilon with those that took part",
    "rho": "zCDP: rho",
    "rho_delta": "zCDP: except with probability",
    "neighbours": "what changes (neighbours)",
    "noise_multiplier": "noise, in units of one client's effect",
    "noise_variance": "variance of the noise in a counter",
    "l2_sensitivity": "most effect of one client (l2 norm)",
    "participations": "most rounds of a client",
    "clip_norm": "norm that a client's sketch is clipped to",
    "honest_survivors": "clients whose noise is counted on",
    "silos_per_person": "most silos of a person",
    "method": "how it was proven",
    # of a target, of an evaluation and of candidates
    "linf": "largest error",
    "l2": "l2 error",
    "failure_probability": "chance of more",
    "precision_at_k": "share of the top k that truly belong there",
    "recall_at_k": "share of the true top k that are found",
    "coverage": "share of the intervals that hold the truth",
    "strings": "frequent strings",
    "size": "number of candidates",
    "max_length": "most bytes of a name",
    "bits": "bits of a hash",
}
_NAMES_OF_SILOS = {  # where clients are silos, and frequencies are shares of their people
    "num_clients": "people in the sums",
    "people": "most people of a silo",
    "max_items": "most items of a person",
    "one_hot_bytes_per_client": "one-hot vector, bytes per silo",
    "binary_bytes_per_client": "the item itself, bytes per silo",
    "noise_multiplier": "noise, in units of one person's effect",
    "l2_sensitivity": "most effect of one person (l2 norm)",
    "participations": "most rounds of a person",
    "clip_norm": "norm that a person's sketch is clipped to",
    "honest_survivors": "silos whose noise is counted on",
}


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
        "target": Target.fields_of(result.plan.target),
        "recovery": result.recovery,
        "objective": result.objective,
        "intervals": intervals_fields(result),
        "error": error_fields([*doubted(result, estimates), *queried]),
        "estimates": listed_fields(result, estimates),
        "open": _open_fields(result),
        "evaluation": result.evaluation_fields,
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


def listed_fields(answer: Result | Merged, estimates: Sequence[Estimate]) -> list[dict[str, Any]]:
    """Return the fields of the estimates of a list, and whether each surely stands above noise.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 900, domain=["tea", "milk"], seed=1)
    >>> [one["above_noise"] for one in listed_fields(result, result.estimates(["tea", "milk"]))]
    [True, False]
    """
    found = answer.above_noise(estimates)
    above: Sequence[bool | None] = [None] * len(estimates) if found is None else found
    return [
        estimate_fields(one) | {"above_noise": is_above}
        for one, is_above in zip(estimates, above, strict=True)
    ]


def error_fields(estimates: Sequence[Estimate]) -> dict[str, float] | None:
    """Return how far off estimates may be at most, for both readings; None if nobody knows.

    They are of all that can be told from 0, as the line of doubt on a screen is.

    >>> error_fields([Estimate("tea", 0.5, 0.25, 0.75, 9.0, 0.0)])
    {'clients': 0.25, 'population': 0.25}
    """
    off = largest_uncertainty(estimates)
    return None if off is None else dict(zip(("clients", "population"), off, strict=True))


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
    between = intervals.predicted_range
    return said | {
        "predicted_linf": intervals.predicted_linf,
        "predicted_linf_range": None if between is None else list(between),
    }


def limits_fields(confidence: float, kind: str, about: str) -> dict[str, Any]:
    """Return the fields of limits, of one result or of several merged ones.

    Args:
        confidence: the confidence of the limits.
        kind: the kind of interval that was asked for.
        about: how they were made, in words.
    """
    from fedtally.recovery.decoding import listed_kind, named_kind

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


def told(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that tell a person something: not None, nor that a client is one person.

    >>> told({"rows": 7, "people": 1, "spelling": None})
    {'rows': 7}
    """
    return {
        name: value
        for name, value in fields.items()
        if value is not None and (name, value) != ("people", 1)
    }


def field_name(name: str, of_silos: bool = False) -> str:
    """Return the name of a field of JSON documents in plain words, also where clients are silos.

    >>> field_name("one_hot_bytes_per_client"), field_name("max_items")
    ('one-hot vector, bytes per client', 'most items of a client')
    """
    known = _NAMES | _NAMES_OF_SILOS if of_silos else _NAMES
    return known.get(name, name.replace("_", " "))
