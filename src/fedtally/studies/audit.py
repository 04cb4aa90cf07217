"""The audit behind `fedtally audit`: do the releases of a plan have the noise that it promises?

A release is a published sum. The audit runs whole campaigns of the plan with the engine
(`simulation.run`) on invented clients (`audit_clients`), so it knows the exact sums. The difference
between a release and its exact sum is noise. `audit_evidence` collects this noise. The checks in
`noise_checks` and `dependence_checks` compare it with independent draws from the plan's
distribution.

For some clients, a coin decides what they hold. An attacker who knows everything else guesses the
coin from the releases. How often the guess is right gives a lower bound on epsilon.

Every population (the clients and what their coins said) is used in two campaigns. If noise depended
only on the plan and the items, it would be the same in both campaigns, and a check would fail.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedtally.answer.part import Progress
from fedtally.base import validate
from fedtally.domain import IntegerRange
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.privacy import worst_pair
from fedtally.recovery.decoders import SIMPLEST
from fedtally.simulation.run import run as run_campaign
from fedtally.simulation.simulation import Simulation
from fedtally.studies.audit_clients import law_of, terms_of
from fedtally.studies.audit_evidence import (
    FALSE_ALARM,
    Detection,
    Evidence,
    Release,
    failing_level,
)
from fedtally.studies.audit_silos import design_of
from fedtally.studies.noise_checks import Check, campaigns_to_see_unchanging

__all__ = ["FALSE_ALARM", "Audit", "AuditResult", "Check", "Detection", "Release", "run"]

# The number of counters of each release, over all campaigns together. With this number, 99 of 100
# audits find noise that is 6.6 % too small, and practically every audit finds noise that is 10 %
# too small.
_COUNTERS = 12_000
_MOST_CAMPAIGNS = 1000  # limits the time of an audit of small sketches
# The most campaigns that are run only to find a single counter without noise. They are enough
# unless the noise is very small.
_MOST_FOR_A_COUNTER = 40
# A p-value with which a check fails in an audit of fewer than 500 checks: up to 60 releases.
_SURE = FALSE_ALARM / 1000
# The most integers that replace the plan's candidates, unless the plan has a histogram.
_CANDIDATES = 4096
# An l2 distance may be so much above the plan's sensitivity: sums of squares have rounding errors.
_DISTANCE_MARGIN = 1e-9


@dataclass(frozen=True)
class Audit:
    """The plan to audit, and the settings of the audit.

    Args:
        plan: a plan with differential privacy, whose domain is not open.
        campaigns: the number of campaigns. There are two for each population, so an odd number is
            rounded up. None: enough for 12,000 counters of each release (at most 1,000 campaigns),
            and enough to find a counter without noise (at most 40 campaigns).
        dropout: the share of clients that drop out, each at a stage drawn at random, 0 <= dropout <
            1. `run` raises an error for another value. If it is above 0, the campaigns run the real
            protocol of the secure sum. All clients hold the same items then, so that the exact sum
            follows from the number of clients. No client has a coin then, so there is no lower
            bound on epsilon.
        clients: the number of clients (or silos) of each round, raised to the fewest that the plan
            allows. None: with a secure sum these fewest; otherwise 64, or the nearest number that
            the plan allows. It is not used if the plan hides the number of its clients, or draws
            the rounds of its silos.

    Raises:
        InvalidInputError: the plan has no privacy or an open domain, or a value is out of bounds.
    """

    plan: Plan
    campaigns: int | None = None
    dropout: float = 0.0
    clients: int | None = None

    def __post_init__(self) -> None:
        if self.plan.privacy is None:
            raise InvalidInputError(
                "the plan has no differential privacy, so there is no noise to audit: make one with"
                " epsilon (fedtally plan --epsilon E)"
            )
        if self.plan.is_open:
            raise InvalidInputError(
                "the plan has an open domain, and the clients that an audit makes up hold items of"
                " a list: audit a plan for a list, with the same epsilon and clients"
            )
        if self.campaigns is not None:
            validate.integer(1, 1 << 20, campaigns=self.campaigns)
        if self.clients is not None:
            validate.integer(1, self.plan.max_round_clients, clients=self.clients)

    @property
    def runs(self) -> int:
        """The number of campaigns to run, an even number; campaigns of crowds are not included.

        A crowd consists of clients that test a bound of the plan.
        """
        needed = math.ceil(_COUNTERS / (self.plan.rows * self.plan.width))
        terms = terms_of(self.plan)
        distribution = law_of(terms, terms.event.honest_survivors or 1)
        counters = self.plan.rows * self.plan.width * len(self.plan.releases)
        unchanging = min(
            campaigns_to_see_unchanging(counters, distribution, _SURE), _MOST_FOR_A_COUNTER
        )
        number = self.campaigns or min(max(unchanging, needed), _MOST_CAMPAIGNS)
        return number + number % 2


@dataclass(frozen=True)
class AuditResult:
    """The findings of an audit.

    Attributes:
        audit: the audit that was run.
        clients: the number of clients (or silos) in each round, which is the same in all rounds. If
            it is not known which clients are in which round, it is the number in all rounds
            together.
        releases: the measurements of each of the plan's releases.
        checks: all checks that were made.
        detection: what the releases reveal about clients for which a coin decided what they hold;
            None: there were no such clients.
        detectable: how sensitive the audit is. If the standard deviation of a release's noise is
            too small by this share, the audit fails in about 99 of 100 cases. None: there are too
            few counters for that.
        bounds: for each tested bound on a client ("items", "clip", "repeats" or "silos"), how many
            campaigns were run to test it.
        is_hidden: whether the plan hides the number of clients.
    """

    audit: Audit
    clients: int
    releases: tuple[Release, ...]
    checks: tuple[Check, ...]
    detection: Detection | None
    detectable: float | None
    bounds: Mapping[str, int]
    is_hidden: bool

    @property
    def false_alarm(self) -> float:
        """The largest probability that an audit fails although the engine is correct."""
        return FALSE_ALARM

    @property
    def level(self) -> float:
        """The level of significance: a check fails if its p-value is below it."""
        return failing_level(len(self.checks))

    @property
    def failures(self) -> list[str]:
        """The failures in words; empty if the audit passed.

        If the engine is correct, at most one of a million audits has a failure.
        """
        found = [check.failure for check in self.checks if check.probability < self.level]
        if (seen := self.detection) is not None:
            if seen.bound > seen.guaranteed:
                found.append(
                    f"epsilon is at least {seen.bound:.4g}, and {seen.guaranteed:.4g} is guaranteed"
                )
            if seen.distance > seen.sensitivity + _DISTANCE_MARGIN:
                found.append(
                    f"one client moves the releases by {seen.distance:.4g}, and the noise is for"
                    f" {seen.sensitivity:.4g}"
                )
        return found

    @property
    def passed(self) -> bool:
        """Whether there is no failure."""
        return not self.failures


def run(audit: Audit, progress: Progress | None = None) -> AuditResult:
    """Run the campaigns of an audit, check what they release, and return the findings.

    No privacy cost is recorded in any ledger.

    Args:
        audit: the audit to run.
        progress: called with "audit", the number of campaigns done, and the number of all
            campaigns; None: nothing is called.

    Raises:
        InvalidInputError: no clients can be invented that the plan accepts.

    >>> import fedtally
    >>> plan = fedtally.estimate([1, 2, 3], domain="range:1..9", epsilon=1.0, rows=3, width=64).plan
    >>> run(Audit(plan)).failures
    []
    """
    report = progress or (lambda *_: None)
    # a new seed for each audit, so that an engine cannot be made for the populations of the audit
    rng = np.random.default_rng(secrets.randbits(128))
    plan, domain = _stand_in(audit.plan)
    asked = Simulation.of(
        plan=plan,
        domain=domain,
        confidence=0.0,
        recovery=SIMPLEST[plan.encoding],
        dropout=audit.dropout,
        of_silos=plan.is_of_silos,
    )
    design = design_of(plan, rng, clients=audit.clients, dropout=audit.dropout)
    evidence = Evidence(plan, design, rng)
    crowds = design.crowds(rng)
    total = audit.runs + sum(crowd.campaigns for crowd in crowds)
    for run_number in range(audit.runs):
        if run_number % 2 == 0:
            population = design.population(rng)
        evidence.add(population, run_campaign(population.source(), asked))
        report("audit", run_number + 1, total)
    done = audit.runs
    for crowd in crowds:
        for _ in range(crowd.campaigns):
            evidence.add_crowd(crowd, run_campaign(crowd.population.source(), asked))
            done += 1
            report("audit", done, total)
    return AuditResult(audit, *evidence.findings())


def _stand_in(plan: Plan) -> tuple[Plan, IntegerRange]:
    """Return the plan with integers in place of its candidates, and the domain of these integers.

    The plan's own candidates need not be known, because noise does not depend on them. If the plan
    certifies a bound on collisions, the integers are so few that this bound holds for them, too. If
    only two integers are left, the bound is not checked. For a histogram without a bound on
    collisions, there is one integer for each counter.
    """
    said = None if plan.privacy is None else plan.privacy.event.collisions
    size = _CANDIDATES if plan.vector.shares_counters else plan.width
    while size > 2 and said is not None:
        found = worst_pair(plan.spec, IntegerRange(1, size), lambda *_: None)
        if found.opposite <= said.opposite and found.excess <= said.excess:
            break
        size //= 2
    domain = IntegerRange(1, size)
    return replace(plan, domain=domain.describe()), domain
