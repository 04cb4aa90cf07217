"""The evidence of an audit: the noise of all campaigns, and the results of all checks of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.answer.result import Result
from fedtally.plan import Plan
from fedtally.sketch import CountSketch
from fedtally.studies.audit_clients import Crowd, Design, Population, law_of, terms_of
from fedtally.studies.dependence_checks import dependence_checks
from fedtally.studies.noise_checks import (
    Check,
    Distribution,
    Ranks,
    checks_of,
    detectable_scale,
    epsilon_bound,
    reordered,
    shared_with,
    unchanging,
    weighted_tail,
)

# The largest probability that an audit fails although the engine is correct. It is so small that a
# failure must be examined: to run the audit again is no answer.
FALSE_ALARM = 1e-6
# A guess of a coin is yes if the attacker's number (near 1 for yes, near 0 for no) is above a
# threshold. The threshold is 0.5 plus one of these values times the number's standard deviation.
# Five thresholds give almost the best bound. Each further threshold would use up a part of the
# false-alarm probability.
_THRESHOLDS = (-2.0, -1.0, 0.0, 1.0, 2.0)
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


class Release(NamedTuple):
    """The measurements of one release of the plan, over all campaigns.

    Attributes:
        rounds: the numbers of the rounds whose sums are added up in the release, from 0.
        counters: the number of counters that were examined, over all campaigns.
        planned: the root mean square of the noise by the plan.
        measured: the root mean square of the noise that was found.
        positive: the share of positive values among all noise values other than 0.
        correlation: the correlation of the noise, -1 to 1, with the noise of another release of the
            same campaign. Of all other releases, the one with the largest absolute correlation is
            taken. If the plan has only one release, the other is the release of the next campaign.
    """

    rounds: range
    counters: int
    planned: float
    measured: float
    positive: float
    correlation: float


class Detection(NamedTuple):
    """The lower bound on epsilon that follows from the clients with a coin.

    Attributes:
        bound: the lower bound on epsilon; 0: the releases revealed nothing.
        guaranteed: the epsilon that the plan guarantees for all its rounds together.
        clients: the number of clients with a coin, over all campaigns.
        distance: the largest l2 distance by which one of these clients changed all releases
            together, and the number of clients if it is published with noise.
        sensitivity: the largest l2 distance that the plan allows.
    """

    bound: float
    guaranteed: float
    clients: int
    distance: float
    sensitivity: float


class Findings(NamedTuple):
    """The outcomes of all checks; see `fedtally.studies.audit.AuditResult` for the fields."""

    clients: int
    releases: tuple[Release, ...]
    checks: tuple[Check, ...]
    detection: Detection | None
    detectable: float | None
    bounds: Mapping[str, int]
    is_hidden: bool


class Evidence:
    """The noise of all campaigns of an audit: the released sums less the exact sums.

    Args:
        plan: the plan of the campaigns.
        design: the invented clients.
        rng: the random generator that breaks ties.
    """

    def __init__(self, plan: Plan, design: Design, rng: np.random.Generator) -> None:
        self._plan, self._design, self._rng = plan, design, rng
        self._terms = terms_of(plan)
        self._releases = len(plan.releases)
        self._residuals: list[list[I64]] = [[] for _ in range(self._releases)]
        self._exact: list[list[I64]] = [[] for _ in range(self._releases)]
        self._clients: list[list[int]] = [[] for _ in range(self._releases)]
        self._numbers: list[int] = []
        self._told: list[tuple[int | None, bool, F64]] = []
        self._shown: list[Any] = []
        self._crowds: dict[str, list[tuple[Crowd, list[float], list[Distribution]]]] = {}

    def add_crowd(self, crowd: Crowd, result: Result) -> None:
        """Add a campaign of a crowd, which consists of clients that test a bound.

        The evidence keeps how far the crowd moved each release beyond what the plan allows.

        Args:
            crowd: the crowd.
            result: the result of the campaign.
        """
        found = {sketch.round: sketch for sketch in result.sketches}
        excess, distributions = [], []
        for k, (towards, most) in enumerate(zip(crowd.towards, crowd.most, strict=True)):
            sketch = found[self._plan.releases[k].start]
            number, vectors = sketch.num_clients, sketch.num_vectors
            if self._design.is_hidden or crowd.is_exact:
                number = crowd.numbers[k]
            excess.append(float(sketch.counters.reshape(-1) @ towards) - number * most)
            distributions.append(self._distribution(vectors))
        self._crowds.setdefault(crowd.bound, []).append((crowd, excess, distributions))

    def _bounds(self) -> list[Check]:
        """Check, for each bound with a crowd, that the crowd moved no release farther than the plan
        allows, or by more or less than it must if that is known.
        """
        checks = []
        for bound, seen in self._crowds.items():
            crowd = seen[0][0]
            tails = [
                weighted_tail(
                    sign * sum(excess[k] for _, excess, _ in seen),
                    towards,
                    [distributions[k] for _, _, distributions in seen],
                )
                for k, towards in enumerate(crowd.towards)
                for sign in ((1, -1) if crowd.is_exact else (1,))
            ]
            failure = (
                "clients do not count once each, with their items and the plan's hashes"
                if crowd.is_exact
                else f"clients that hold too much ({bound}) move a release by more than the plan"
                " says one client may"
            )
            checks.append(Check(f"bounds, {bound}", len(tails) * min(tails), failure))
        return checks

    def add(self, population: Population, result: Result) -> None:
        """Add the noise of a campaign.

        Args:
            population: the clients of the campaign.
            result: the result of the campaign.
        """
        found = {sketch.round: sketch for sketch in result.sketches}
        exact = self._exact_sums(population, result)
        for k, rounds in enumerate(self._plan.releases):
            sketch = found[rounds.start]
            self._residuals[k].append(sketch.counters.reshape(-1) - exact[k])
            self._exact[k].append(exact[k])
            self._clients[k].append(sketch.num_vectors)
        there = sum(
            max(1, len(client.silos)) * len(client.rounds) for _, client, _ in population.holding()
        )
        self._numbers.append(sum(sketch.num_clients for sketch in result.sketches) - there)
        self._shown.append(_shown(result, self._design.is_hidden))
        self._tell(population)

    def _exact_sums(self, population: Population, result: Result) -> list[I64]:
        if not self._design.alike:
            return self._design.exact(population)
        held, numbers = (
            population.clients[0].held,
            {s.round: self._exact_number(s) for s in result.sketches},
        )
        starts = [rounds.start for rounds in self._plan.releases]
        return [numbers[start] * self._design.sketch(start, held) for start in starts]

    def _exact_number(self, sketch: CountSketch) -> int:
        """Return the number of clients in a sum. If the sum is of silos, return the number of their
        people.

        All silos have the same number of people.
        """
        clients = self._design.clients
        if not sketch.num_silos:
            return sketch.num_clients
        return sketch.num_silos * sum(len(one.silos) for one in clients) // self._design.num_clients

    def _tell(self, population: Population) -> None:
        """Record what an attacker sees of each coin: a number near 1 for yes, and near 0 for no.

        The attacker knows everything but the coin. So the error of this number comes only from the
        noise in the direction in which the client moves the releases.
        """
        # The best test of yes against no, under nearly Gaussian noise, is the inner product of the
        # noise and the client's direction, with the weight 1 / variance for each release.
        variances = [self._distribution(clients[-1]).variance for clients in self._clients]
        for client, coin in zip(population.clients, population.coins.tolist(), strict=True):
            joint = np.zeros(2)
            for moved in client.direction:
                k = moved.release
                own = (
                    np.array([self._residuals[k][-1][moved.counters] @ moved.by, moved.square])
                    / variances[k]
                )
                self._told.append((k, coin, np.array([own[0] / own[1] + coin, own[1]])))
                joint += own
            if client.direction:
                self._told.append((None, coin, np.array([joint[0] / joint[1] + coin, joint[1]])))

    def _distribution(self, clients: int) -> Distribution:
        return law_of(self._terms, clients)

    def findings(self) -> Findings:
        """Make all checks of the evidence, and return their outcomes."""
        ranks = [
            Ranks.joined(
                [
                    Ranks.of(noise, self._distribution(n), self._rng)
                    for noise, n in zip(own, numbers, strict=True)
                ]
            )
            for own, numbers in zip(self._residuals, self._clients, strict=True)
        ]
        checks = checks_of(ranks, [np.stack(own) for own in self._exact], self._plan.rows)
        checks.append(
            reordered(
                [noise for own in self._residuals for noise in own],
                self._distribution(self._clients[0][0]),
            )
        )
        distributions = [
            [self._distribution(number) for number in numbers] for numbers in self._clients
        ]
        noise = [np.stack(own) for own in self._residuals]
        checks.append(unchanging(noise, distributions))
        checks += dependence_checks(noise, distributions, self._plan.rows, self._rng)
        checks += self._checks_of_the_rest(ranks)
        checks += self._bounds()
        counters = len(ranks[0].side) * ranks[0].side.shape[1]
        return Findings(
            self._design.num_clients,
            tuple(map(self._release, range(self._releases), _correlations(self._residuals))),
            tuple(checks),
            self._detection(FALSE_ALARM / 2),  # the checks use the other half of FALSE_ALARM
            detectable_scale(counters, failing_level(len(checks))),
            {bound: len(seen) for bound, seen in self._crowds.items()},
            self._design.is_hidden,
        )

    def _checks_of_the_rest(self, ranks: list[Ranks]) -> list[Check]:
        """Check what results show besides the sums (`_shown`), and the number of clients.

        Nothing is checked if clients drop out.
        """
        if self._design.alike:  # with dropouts, results show how many clients dropped out, and when
            return []
        # 1 or 0 in place of a p-value: nothing here is random, so any difference is a failure
        same = all(shown == self._shown[0] for shown in self._shown)
        failure = "what is said of a campaign depends on what clients hold"
        found = [Check("shown", 1.0 if same else 0.0, failure)]
        if self._design.is_hidden:
            who = self._plan.nouns[1]
            law = self._law_of_numbers()
            number = Ranks.of(np.array(self._numbers), law, self._rng)
            failure = f"the number of {who} has the noise of a counter"
            constant = unchanging([np.array(self._numbers)[:, None]], [[law] * len(self._numbers)])
            return [
                *found,
                *number.checks(f"the number of {who}"),
                shared_with(number.side[0], ranks, failure),
                constant._replace(
                    name="number", failure=f"the number of {who} has the same noise each time"
                ),
            ]
        # `_numbers` has how many clients too many each campaign names
        failure = "the number of clients is wrong, or depends on what they hold"
        return [*found, Check("clients", 0.0 if any(self._numbers) else 1.0, failure)]

    def _law_of_numbers(self) -> Distribution:
        """Return the distribution of the noise on the sum of all releases' numbers of clients."""
        if self._plan.protection.of_client() is None:
            return self._distribution(0).times(self._releases)
        # Silos add the noise. Their shares add up over the releases.
        return self._distribution(sum(own[0] for own in self._clients))

    def _release(self, k: int, correlation: float) -> Release:
        noise = np.stack(self._residuals[k]).astype(np.float64)
        planned = np.mean([self._distribution(clients).variance for clients in self._clients[k]])
        positive, negative = int((noise > 0).sum()), int((noise < 0).sum())
        return Release(
            self._plan.releases[k],
            noise.size,
            math.sqrt(planned),
            math.sqrt(float(np.mean(noise**2))),
            positive / max(1, positive + negative),
            correlation,
        )

    def _detection(self, false_alarm: float) -> Detection | None:
        if not self._told:
            return None
        groups = [None, *range(self._releases)] if self._releases > 1 else [None]
        share = false_alarm / (2 * len(groups) * len(_THRESHOLDS))
        delta, best = self._terms.delta, 0.0
        for group in groups:
            seen = [(coin, told) for k, coin, told in self._told if k == group]
            if not seen:
                continue
            yes = np.array([told[0] for coin, told in seen if coin])
            no = np.array([told[0] for coin, told in seen if not coin])
            spread = 1 / math.sqrt(float(np.median([told[1] for _, told in seen])))
            for step in _THRESHOLDS:
                threshold = 0.5 + step * spread
                above, below = (
                    (yes > threshold, no > threshold),
                    (no <= threshold, yes <= threshold),
                )
                best = max(best, *(epsilon_bound(*pair, delta, share) for pair in (above, below)))
        # A hidden number of clients is published with noise, so it counts as one more counter.
        longest = max(
            sum(moved.square for moved in client.direction) + self._design.number_square(client)
            for client in self._design.clients
            if client.direction
        )
        number = sum(k is None for k, _, _ in self._told)
        # The clients of the audit may take part in all rounds. A plan may state its epsilon for
        # fewer rounds.
        guaranteed = max(self._terms.epsilon, self._terms.guarantee.epsilon)
        return Detection(
            best, guaranteed, number, math.sqrt(longest), self._terms.event.l2_sensitivity
        )


def failing_level(checks: int) -> float:
    """Return the p-value below which a check fails, if there are `checks` checks.

    >>> failing_level(50)
    1e-08
    """
    # by Bonferroni's inequality; the other half of FALSE_ALARM is for the bound on epsilon
    return FALSE_ALARM / (2 * checks)


def _shown(result: Result, is_hidden: bool) -> Any:
    """Return what a result shows besides its sums. It must not depend on what clients hold.

    Args:
        result: the result of a campaign.
        is_hidden: whether the plan hides the number of clients, which is then left out.
    """
    number = None if is_hidden else result.num_clients
    found = (
        number,
        len(result.sketches),
        result.warnings,
        result.missing,
        result.secure_sum,
        result.sizing,
    )
    # Timings reveal what clients hold. A private result must have none, so its timings are included
    # here. A result that is marked as not private may have timings.
    return found if result.not_private else (*found, result.timings)


def _correlations(residuals: Sequence[Sequence[I64]]) -> list[float]:
    """Return the correlation of each release with another one, see `Release.correlation`."""
    flat = np.stack([np.concatenate(own) for own in residuals]).astype(np.float64)
    # if there is only one release, compare it with itself, shifted by one campaign
    if len(flat) == 1:
        flat = np.concatenate([flat, np.roll(flat, len(residuals[0][0]), axis=1)])
    flat /= np.maximum(np.linalg.norm(flat, axis=1, keepdims=True), 1.0)
    products = flat @ flat.T
    np.fill_diagonal(products, 0.0)
    largest: list[float] = products[np.arange(len(flat)), np.abs(products).argmax(axis=1)].tolist()
    return largest[: len(residuals)]
