"""A plan for what was asked, fitted to the clients that came; or a plan that exists, checked against them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedtally.domain import Domain
from fedtally.engines.privacy import Privacy, check_certificate, make_terms, worst_pair
from fedtally.engines.request import Request
from fedtally.engines.summation import Keys, Summation, make_keys, rekeyed, terms, with_noise
from fedtally.errors import InvalidInputError
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import Plan, noise_bound
from fedtally.privacy.events import Relation
from fedtally.secagg.terms import SecAggTerms
from fedtally.sketch import Schedule

DEFAULT_ROWS = 7
DEFAULT_MAX_BYTES = 32_000
_MARGIN = 6  # standard deviations of the size of a round


def fitted(
    request: Request,
    domain: Domain,
    sizes: Sequence[int],
    *,
    seed: bytes,
    by_client: bool,
    random: Callable[[int], bytes],
    report: Callable[..., None],
) -> tuple[Plan, Keys | None]:
    """Return the plan that is asked for, fitted to the clients that came, and the keys that it names.

    Args:
        request: what is asked.
        domain: the candidates.
        sizes: clients of each round.
        seed: of the hashes.
        by_client: whether a client may be in several of the rounds.
        random: returns as many bytes as it is asked for, for the keys.
        report: called for what takes long.

    Raises:
        InvalidInputError: they do not fit each other.
    """
    summation, asked = request.summation, request.privacy
    if request.plan is not None:
        openings = _summed(summation, sizes, request.plan.openings)
        keys = None if summation.method == "ideal" else make_keys(summation, openings, random)
        plan = _checked_plan(request.plan, request.study, domain, sizes, openings, summation, keys)
        check_certificate(plan, domain, report)
        return plan, keys
    name = request.schedule if request.schedule != "auto" else "shared" if len(sizes) == 1 else "hybrid"
    schedule, rows, max_items = Schedule.parse(name), request.rows or DEFAULT_ROWS, request.max_items or 1
    together = [range(i, i + 1) for i in range(len(sizes))]
    together = together if asked is None else asked.opens(schedule, len(sizes), summation)
    openings = _summed(summation, sizes, together)
    keys = None if summation.method == "ideal" else make_keys(summation, openings, random)
    clients, participations = (sum(sizes), max(sizes)), 1
    if asked is not None:
        clients = _public_sizes(asked, sizes, natural=request.num_rounds is None)
        if by_client and request.num_rounds is None:
            participations = min(len(sizes), asked.max_rounds or len(sizes))
        if summation.method == "two-server" and min(participations, max(map(len, together))) > 1:
            raise InvalidInputError(
                "two servers take one report of a client in all that they add up, and here a client may be in several "
                "rounds of an opening: use max_rounds 1, or the schedule hybrid or fresh"
            )

    def planned(width: int) -> Plan:
        counters = rows * width
        agreed = None if keys is None else terms(summation, keys, openings, max_items, counters)
        privacy = None
        if asked is not None:
            privacy = make_terms(
                asked,
                rows=rows,
                width=width,
                schedule=schedule,
                max_items=max_items,
                participations=participations,
                num_clients=sizes,
                most_clients=clients[1] if agreed is None else agreed.most_clients,
                summation=summation,
                honest_survivors=agreed.parameters.honest_survivors if isinstance(agreed, SecAggTerms) else None,
            )
            if agreed is not None:
                agreed = with_noise(agreed, max_items, noise_bound(privacy, counters, agreed.most_clients))
        described = domain.describe()
        return Plan(rows, width, schedule, len(sizes), *clients, described, max_items, seed, agreed, privacy)

    plan = planned(request.width) if request.width else widest(planned, request.max_bytes or DEFAULT_MAX_BYTES)
    if asked is not None and asked.certify:
        if plan.max_items > 1 or (plan.privacy is not None and plan.privacy.event.per_opening > 1):
            raise InvalidInputError(
                "certify is for clients of one item whose rounds are opened one by one: leave it out, or use max_items "
                "1 and a schedule that adds up no two rounds of a client (hybrid, fresh)"
            )
        assert plan.privacy is not None
        plan = replace(plan, privacy=plan.privacy.certified(worst_pair(plan.spec, domain, report)))
    return plan, keys


def _summed(summation: Summation, sizes: Sequence[int], openings: Sequence[range]) -> list[int]:
    """Return the clients of each secure sum: two servers add up the rounds of an opening, others sum round by round."""
    if summation.method != "two-server":
        return list(sizes)
    return [sum(sizes[opening.start : opening.stop]) for opening in openings]


def _public_sizes(asked: Privacy, sizes: Sequence[int], natural: bool) -> tuple[int, int]:
    """Return the clients of all rounds, and of the largest; where rounds are drawn, the plan can be used again."""
    if asked.max_clients is not None:
        return asked.max_clients, asked.max_clients
    total, largest = sum(sizes), max(sizes)
    if not natural and len(sizes) > 1:
        expected = total / len(sizes)
        largest = min(total, max(largest, math.ceil(expected + _MARGIN * math.sqrt(expected))))
    return total, largest


def widest(planned: Callable[[int], Plan], max_bytes: int) -> Plan:
    """Return the plan of the largest width with which a client uploads at most so much in a round; at most 2^24.

    Args:
        planned: returns the plan for a width.
        max_bytes: upload per client and round, all messages together.

    Raises:
        InvalidInputError: not even one counter per row fits.
    """
    least = planned(1)
    if least.bytes_per_client > max_bytes:
        protocol = "" if least.secure_sum is None else "this secure sum and "
        raise InvalidInputError(
            f"max_bytes must be at least {least.bytes_per_client} for {protocol}one counter of {least.modulus_bits} "
            f"bits in each of {least.rows} rows, got {max_bytes}; give more bytes, fewer rows or smaller cohorts"
        )
    plan = planned(
        min(MAX_WIDTH, 2 + 8 * (max_bytes - least.bytes_per_client + 1) // (least.rows * least.modulus_bits))
    )
    while plan.bytes_per_client > max_bytes:
        excess = 8 * (plan.bytes_per_client - max_bytes - 1) // (plan.rows * plan.modulus_bits)
        plan = planned(plan.width - max(1, excess))
    return plan


def _checked_plan(
    plan: Plan,
    study: bool,
    domain: Domain,
    sizes: Sequence[int],
    openings: Sequence[int],
    summation: Summation,
    keys: Keys | None,
) -> Plan:
    if plan.num_rounds != len(sizes):
        raise InvalidInputError(f"the plan has {plan.num_rounds} rounds, the input {len(sizes)}")
    hidden = plan.privacy is not None and plan.privacy.event.relation is Relation.ADD_REMOVE
    if max(sizes) > plan.cohort and not hidden:
        raise InvalidInputError(
            f"the plan allows {plan.cohort:,} clients in a round, the input has {max(sizes):,}; its sums could overflow"
        )
    if plan.domain["public"] and plan.domain != domain.describe():
        raise InvalidInputError(
            f"the plan is for the domain {_shown(plan.domain)}, the input is read as {_shown(domain.describe())}; "
            "declare the same domain (--domain)"
        )
    privacy = plan.privacy
    if privacy is not None and study and not privacy.study:
        privacy = replace(privacy, study=True)
        plan = replace(plan, privacy=privacy)
    if privacy is not None and privacy.by_clients and keys is None:
        least, honest = min(size for size in sizes if size), privacy.event.honest_survivors or 0
        if least < honest:
            raise InvalidInputError(
                f"the plan counts on the noise of {honest:,} clients in every round, and a round of the input has "
                f"{least:,}; use fewer rounds, or a plan for smaller ones"
            )
    if keys is not None:
        if plan.secure_sum is None and privacy is not None:
            raise InvalidInputError(
                f"the noise of the plan is for an ideal secure sum, got {summation.method}: leave secure_sum out, or "
                "make a plan with it"
            )
        if plan.secure_sum is None:
            agreed = terms(summation, keys, sizes, plan.max_items, plan.rows * plan.width)
        else:
            agreed = rekeyed(plan.secure_sum, summation, keys, openings)
        plan = replace(plan, secure_sum=agreed)
    return plan if plan.domain["public"] else replace(plan, domain=domain.describe())


def _shown(description: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in description.items())
