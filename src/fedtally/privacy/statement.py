"""The privacy statement of a campaign: what is promised, for whom, by whose noise, and how it was proven."""

from __future__ import annotations

import math
from typing import Any

from fedtally.privacy import STUDY
from fedtally.privacy.accounting import Guarantee, Method, epsilon, realised, rounded_up
from fedtally.privacy.events import Event, Relation, Trust
from fedtally.privacy.terms import PrivacyTerms

CHANGED = {
    Relation.ZERO_OUT: "if one client's items are taken away and it still takes part",
    Relation.REPLACE_ONE: "if one client's items are replaced by any others",
    Relation.ADD_REMOVE: "if one client takes part or does not",
}
PROVEN = {
    Method.ANALYTIC_GAUSSIAN: "exact for Gaussian noise (analytic Gaussian mechanism)",
    Method.LOSS_DISTRIBUTION: "by composing privacy loss distributions, within 0.1 % of the exact value",
    Method.DOMINATING_GAUSSIAN: (
        "by the Gaussian noise that dominates it: in three rows or more less than 1 % above the exact value at "
        "epsilon 1, more at larger ones"
    ),
}


def fields(terms: PrivacyTerms, fewest_survivors: int | None = None, corrupt: int = 0) -> dict[str, Any]:
    """Return what JSON documents say of privacy.

    Args:
        terms: of the plan.
        fewest_survivors: the fewest clients in a sum, once that is known, where clients add the noise.
        corrupt: how many of these may be corrupt.

    >>> from fedtally.privacy.terms import propose
    >>> found = fields(propose(epsilon=1.0, delta=1e-6, rows=5, width=1000))
    >>> found["epsilon"] <= 1, round(found["epsilon_replace_one"], 2), found["mechanism"], found["study"]
    (True, 2.12, 'rounded-gaussian', False)
    """
    event, found = terms.event, terms.guarantee
    return {
        "epsilon": found.epsilon,
        "delta": found.delta,
        "epsilon_replace_one": _finite(terms.replace_one.epsilon),
        "epsilon_realised": _realised(terms, fewest_survivors, corrupt),
        "neighbours": str(event.relation),
        "trust": str(event.trust),
        "mechanism": str(event.mechanism),
        "noise_multiplier": terms.noise_multiplier,
        "noise_variance": event.noise_variance,
        "l2_sensitivity": event.l2_sensitivity,
        "participations": event.participations,
        "max_items": event.max_items,
        "clip_norm": event.clip_norm,
        "honest_survivors": event.honest_survivors,
        "method": str(found.method),
        "population": terms.population,
        "study": terms.study,
    }


def _realised(terms: PrivacyTerms, fewest_survivors: int | None, corrupt: int) -> float | None:
    if fewest_survivors is None or not terms.by_clients or fewest_survivors <= corrupt:
        return None
    return _finite(epsilon(realised(terms.event, fewest_survivors, corrupt), terms.delta).epsilon)


def _finite(bound: float) -> float | None:
    """Return a bound for JSON, which knows no infinity; None: there is none."""
    return bound if math.isfinite(bound) else None


def sentences(terms: PrivacyTerms, *, num_openings: int, is_two_server: bool = False) -> list[str]:
    """Return the statement in words, the promise first.

    Args:
        terms: of the plan.
        num_openings: how many sums are opened, each with noise of its own.
        is_two_server: whether two servers sum.

    >>> from fedtally.privacy.terms import propose
    >>> terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=1000, relation="replace-one")
    >>> print(sentences(terms, num_openings=1)[0])
    epsilon 1, delta 1e-06 if one client's items are replaced by any others (replace-one)
    """
    found, event = terms.guarantee, terms.event
    promise = f"{_numbers(found)} {CHANGED[event.relation]} ({event.relation})"
    other = terms.replace_one
    if event.relation is not Relation.REPLACE_ONE:
        bound = f"epsilon {rounded_up(other.epsilon):g}" if math.isfinite(other.epsilon) else "no bound"
        promise += f"; {bound} {CHANGED[Relation.REPLACE_ONE]} (replace-one)"
    return [
        f"{STUDY}: {promise}" if terms.study else promise,
        _noise(terms, num_openings, is_two_server),
        f"{_bound(event)}; proven {PROVEN[found.method]}",
    ]


def _numbers(found: Guarantee) -> str:
    return f"epsilon {rounded_up(found.epsilon):g}, delta {rounded_up(found.delta):g}"


def _noise(terms: PrivacyTerms, num_openings: int, is_two_server: bool) -> str:
    event = terms.event
    noise = f"noise of standard deviation {terms.deviation:.4g} in every counter"
    sums = "the one sum" if num_openings == 1 else f"each of {num_openings:,} sums"
    if event.trust is Trust.CENTRAL:
        return f"central trust: who opens the exact sums is trusted to add rounded Gaussian {noise} of {sums}"
    if is_two_server:
        return f"distributed trust: each of two servers adds rounded Gaussian {noise} of {sums}; one may be dishonest"
    return (
        f"distributed trust: the clients of a sum add Skellam {noise} of {sums} if only {event.honest_survivors:,} "
        "honest ones stay in it; with more there is more"
    )


def _bound(event: Event) -> str:
    rounds = "one round" if event.participations == 1 else f"at most {event.participations:,} rounds"
    items = "one item" if event.max_items == 1 else f"at most {event.max_items:,} items"
    clip = "" if event.clip_norm is None else f", a sketch of norm {event.clip_norm:.4g} at most"
    worst = ", the worst pair of candidates under these hashes" if event.collisions is not None else ""
    return f"a client takes part in {rounds} with {items}{clip}{worst}"
