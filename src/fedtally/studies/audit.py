"""The audit behind `fedtally audit`: is what a plan's campaigns release as noisy as the plan says?

Whole campaigns of the plan are run (`simulation.run`) on clients that are made up
(`audit_clients`), so that the exact sums are known. A release less its exact sum is noise. It must
look like independent draws of the plan's distribution in every check of `noise_checks` and
`dependence_checks`; `audit_evidence` gathers the noise and calls them. Besides, some clients hold
something or not by the toss of a coin: what an attacker who knows everything else tells of the coin
bounds epsilon from below.

Every population is used twice, so that noise that follows from plan and data is seen to repeat.
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

# Of each release, over all campaigns: noise 6.6 % too small is seen 99 times in 100, and 10 % too
# small in practically every audit.
_COUNTERS = 12_000
_MOST_CAMPAIGNS = 1000  # bounds the time of an audit of small sketches
# The most campaigns that are run to see one counter without noise. They are enough but for very
# little noise.
_MOST_FOR_A_COUNTER = 40
_SURE = FALSE_ALARM / 1000  # the level of each check is above it: fewer than 500 checks are made
_CANDIDATES = 4096  # stand-ins for the candidates of the plan
_DISTANCE_MARGIN = 1e-9  # of the sums of squares, in floating point


@dataclass(frozen=True)
class Audit:
    """The plan to audit, and how.

    Args:
        plan: a plan with differential privacy.
        campaigns: the number of campaigns, two for each population; an odd number is rounded up.
            None: as many as have 12,000 counters of each release, at most 1,000, and as show a
            counter without noise, at most 40.
        dropout: the share of clients that drop out of a real secure sum. If it is above 0, all
            clients hold the same, so that the exact sum follows from their number. Epsilon is then
            not bounded from below.
        clients: the clients of each round, or its silos. None: as few as the plan takes, or 64
            where it leaves that open. Not used where the number of clients is hidden.

    Raises:
        InvalidInputError: the plan has no privacy, or a value is out of bounds.
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
        if self.campaigns is not None:
            validate.integer(1, 1 << 20, campaigns=self.campaigns)
        if self.clients is not None:
            validate.integer(1, self.plan.max_round_clients, clients=self.clients)

    @property
    def runs(self) -> int:
        """The number of campaigns that are run."""
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
        clients: the clients of each round, or its silos, or the clients of all rounds where their
            number is hidden.
        releases: one entry for each of the plan's releases.
        checks: all checks that were made.
        detection: what the releases tell of single clients; None where no client had a coin.
        detectable: the least share of its deviation that the noise of one release can lack and be
            found too small 99 times in 100.
        bounds: the bounds on a client, or on a person of silos, that crowds tested, each with the
            number of campaigns: "items", "clip" or "silos".
    """

    audit: Audit
    clients: int
    releases: tuple[Release, ...]
    checks: tuple[Check, ...]
    detection: Detection | None
    detectable: float | None
    bounds: Mapping[str, int]

    @property
    def false_alarm(self) -> float:
        """The probability that the audit of a sound engine fails."""
        return FALSE_ALARM

    @property
    def level(self) -> float:
        """The probability below which a check fails."""
        return failing_level(len(self.checks))

    @property
    def failures(self) -> list[str]:
        """The failures in words; a sound engine has some once in a million audits."""
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
        """Whether nothing is wrong."""
        return not self.failures


def run(audit: Audit, progress: Progress | None = None) -> AuditResult:
    """Run the campaigns and check what they release. Nothing is charged to any ledger.

    Args:
        audit: the audit to run.
        progress: called as ("audit", campaigns done, of all).

    Raises:
        InvalidInputError: no clients can be made up that the plan takes.

    >>> import fedtally
    >>> plan = fedtally.estimate([1, 2, 3], domain="range:1..9", epsilon=1.0, rows=3, width=64).plan
    >>> run(Audit(plan)).failures
    []
    """
    report = progress or (lambda *_: None)
    # seeded anew in each audit: an engine could pass on populations that it knows beforehand
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
    """Return the plan with integers as candidates, and their domain.

    No noise depends on the candidates, so that those of the plan need not be known. There are so
    few that the plan's certificate of collisions holds for them. A histogram has as many as it has
    counters.
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
