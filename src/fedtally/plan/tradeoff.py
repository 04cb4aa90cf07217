"""The tradeoff between a plan's error and its bytes, and changes that would halve the error.

For each number of bytes the planner makes another plan, and predicts the error of this plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from fedtally.errors import InvalidInputError
from fedtally.plan.encodings import histogram
from fedtally.plan.frequencies import hardest
from fedtally.plan.privacy import resolve_privacy
from fedtally.plan.proposal import attempt, propose
from fedtally.plan.ways import ways_to_meet
from fedtally.secagg.config import SecureSum

if TYPE_CHECKING:
    from fedtally.plan import Plan
    from fedtally.plan.design import Design
    from fedtally.plan.frequencies.distribution import Frequencies
    from fedtally.plan.proposal import Proposal
    from fedtally.plan.request import CampaignSpec
    from fedtally.plan.ways import Way

EPSILONS = (None, 4.0, 2.0, 1.0, 0.5)  # curves are made for these and the plan's own epsilon
_COUNTERS = (0.25, 0.5, 1.0, 2.0, 4.0)  # sizes of sketches, as multiples of the plan's counters
_BUDGETS = (1, 2, 4)  # budgets for half the error, as multiples of the plan's bytes


class Size(NamedTuple):
    """One plan on a curve: its budget and its upload in bytes, and its predicted largest error."""

    max_bytes: int
    bytes_per_client: int
    linf: float


class Curve(NamedTuple):
    """Plans with the same epsilon (None: without privacy), in rising order of bytes."""

    epsilon: float | None
    sizes: tuple[Size, ...]


class Halved(NamedTuple):
    """A plan with half the error, and the one change of the request that makes it possible."""

    way: Way | None  # None: nothing but the bytes is changed
    plan: Plan


def epsilon_of(proposal: Proposal) -> float | None:
    """Return the epsilon that was requested for a plan; None if it has no differential privacy."""
    asked = proposal.design.spec.privacy
    return None if asked is None else asked.epsilon


def curves(proposal: Proposal, report: Callable[..., None] = lambda *_: None) -> list[Curve]:
    """Return curves of the predicted error over the bytes, one for each epsilon.

    The epsilons are `EPSILONS` and the epsilon of the given plan, the largest first; None (no
    privacy) comes before all numbers. Each point is the plan that `fedtally plan --max-bytes` makes
    with the rows, the schedule, the seed and the frequencies (any, or assumed) of the given plan.
    The given plan itself is a point of the curve of its epsilon.

    A point is left out if the planner refuses its plan. It is left out, too, if its budget is at
    least the bytes of the plan that `histogram_within` returns; points with the bytes of the given
    plan stay. A curve without points is left out.

    Args:
        proposal: a proposed plan with a sketch over a list of candidates.
        report: a function that is called with "curve", the number of points that are done, and the
            number of all points.
    """
    own = epsilon_of(proposal)
    epsilons = [*EPSILONS, *([] if own in EPSILONS else [own])]
    budgets = _budgets(proposal)
    total, drawn = len(epsilons) * len(budgets), []
    for place, epsilon in enumerate(sorted(epsilons, key=lambda one: -(one or math.inf))):
        sizes = []
        for number, budget in enumerate(budgets):
            report("curve", place * len(budgets) + number, total)
            if epsilon == own and budget == proposal.plan.bytes_per_client:
                sizes.append(Size(budget, budget, proposal.linf))
                continue
            with suppress(InvalidInputError):
                found = _of_bytes(proposal, epsilon, budget)
                sizes.append(Size(budget, found.plan.bytes_per_client, found.linf))
        drawn.append(Curve(epsilon, tuple(sizes)))
    report("curve", total, total)
    return [curve for curve in drawn if curve.sizes]


def histogram_within(proposal: Proposal) -> Proposal | None:
    """Return a plan with a histogram, if it has at most the bytes of the largest sketch on a curve.

    Otherwise returns None. Within a budget of at least the histogram's bytes, the planner prefers
    the histogram to sketches, so that the curve ends there.

    Args:
        proposal: a proposed plan with a sketch over a list of candidates.
    """
    design = proposal.design
    found = histogram(design, _sketches(proposal.plan)[-1])
    if found is None:
        return None
    spec = replace(design.spec.with_bytes(found.bytes_per_client), tau=None)
    return propose(spec, design.domain, design.fleet, seed=design.seed)


def _budgets(proposal: Proposal) -> list[int]:
    """Return the budgets of bytes for the points of a curve, in rising order.

    One of the budgets is the number of bytes of the given plan. All other budgets are below the
    bytes of the plan that `histogram_within` returns, if it returns a plan.
    """
    own, better = proposal.plan.bytes_per_client, histogram_within(proposal)
    end = math.inf if better is None else better.plan.bytes_per_client
    return [one for one in _sketches(proposal.plan) if one < end or one == own]


def _sketches(plan: Plan) -> list[int]:
    """Return the upload bytes of sketches with more or fewer counters than the plan.

    The sketches have the multiples `_COUNTERS` of the plan's number of counters.
    """
    own = plan.rows * plan.width * plan.modulus_bits / 8
    return [round(plan.bytes_per_client + (factor - 1) * own) for factor in _COUNTERS]


def _of_bytes(proposal: Proposal, epsilon: float | None, max_bytes: int) -> Proposal:
    """Return the plan with the smallest error for `max_bytes` and `epsilon`.

    Everything else is as in the given proposal.
    """
    design, plan = proposal.design, proposal.plan
    size = replace(
        design.spec.size,
        encoding=plan.encoding,
        rows=plan.rows,
        max_bytes=max_bytes,
        schedule=plan.schedule,
    )
    spec = replace(private_at(design.spec, epsilon), tau=None, size=size)
    known = None if proposal.is_for_any else proposal.distribution
    return propose(spec, design.domain, design.fleet, known, seed=design.seed)


def private_at(spec: CampaignSpec, epsilon: float | None) -> CampaignSpec:
    """Return the request with another epsilon.

    If `spec` has no privacy, the returned request has default privacy with this epsilon. If
    `epsilon` is None, the returned request has no privacy.

    >>> from fedtally.plan.request import Request
    >>> spec = private_at(Request(secure_sum="secagg").resolve(), 2.0)
    >>> spec == Request(secure_sum="secagg", epsilon=2.0).resolve()
    True
    """
    if epsilon is None:
        return replace(spec, privacy=None, accounting=replace(spec.accounting, max_rounds=None))
    if spec.privacy is not None:
        return spec.with_epsilon(epsilon)
    method = SecureSum.parse(spec.summation.method)
    return replace(spec, privacy=resolve_privacy(method, epsilon=epsilon, silos=spec.silos))


def halvings(proposal: Proposal) -> Iterator[Halved]:
    """Yield plans with half the error of the given plan, each with the change behind it.

    If more bytes alone suffice, the plan with more bytes comes first. Then other changes are tried
    one at a time (such as more clients, a larger epsilon, or larger cohorts). Each change is tried
    within three budgets, one after the other: the bytes of the given plan, twice and four times
    these bytes. The search ends at a budget within which more bytes alone suffice, and after a
    budget by which more clients and, with privacy, a larger epsilon were yielded. Each kind of
    change is yielded at most once, for the smallest budget within which it suffices.

    Args:
        proposal: a proposed plan over a list of candidates, whose predicted error is above 0.
    """
    design, target = proposal.design, proposal.target
    half = target.linf / 2
    halved = replace(design, spec=replace(design.spec.with_bytes(None), tau=half))
    known = None if proposal.is_for_any else proposal.distribution
    law = known or hardest.usual_plateau(half, design.domain.size, max_items=design.spec.max_items)
    more = _plan_of(halved, known)
    if more is not None:
        yield Halved(None, more)
    wanted = {"clients", "epsilon"} if design.spec.is_private else {"clients"}
    seen = {"tau", "bytes"}
    for times in _BUDGETS:
        budget = times * proposal.plan.bytes_per_client
        is_dear = more is not None and more.bytes_per_client <= budget
        if is_dear or wanted <= seen:
            return
        within = replace(halved, spec=halved.spec.with_bytes(budget))
        for way in ways_to_meet(within, law):
            changed = _with(halved, way)
            plan = None if way.what in seen or changed is None else _plan_of(changed, known)
            if plan is not None:
                seen.add(way.what)
                yield Halved(way, plan)


def _with(design: Design, way: Way) -> Design | None:
    """Return the design after one change; None if the change concerns the error or the bytes."""
    if way.what == "epsilon":
        return design.with_epsilon(way.value)
    if way.what == "clients":
        return design.with_clients(int(way.value))
    return design.with_cohorts(int(way.value)) if way.what == "cohort" else None


def _plan_of(design: Design, known: Frequencies | None) -> Plan | None:
    """Return the plan that meets the tau of `design`; None if no plan does.

    Args:
        design: the design, whose request has a tau.
        known: the known frequencies; None: the plan must meet tau for any frequencies.
    """
    with suppress(InvalidInputError):
        return attempt(design, known).plan
    return None
