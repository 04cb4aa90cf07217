"""A request for a campaign, resolved and checked before there are clients."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.planner.privacy import Privacy, resolve_privacy
from fedtally.planner.secure_sum import Summation
from fedtally.privacy.config import POPULATION, NoiseBy, default_delta
from fedtally.privacy.events import Relation
from fedtally.recovery.decoding import CONFIDENCE, Decoding, recovery_of
from fedtally.secagg.config import SecureSum
from fedtally.sketch import Recovery, Schedule
from fedtally.sketch.count_sketch import MAX_ROUNDS
from fedtally.sketch.schedule import AUTO, BATCHED_AUTO

_SIZES = ("rows", "width", "max_bytes", "num_rounds", "max_items")  # that a plan says, too
_OF_EPSILON = ("delta", "trust", "neighbours", "max_rounds", "max_clients", "certify")


@dataclass(frozen=True)
class Request:
    """What is asked of a campaign; everything has a default.
    It is checked when it is resolved (`resolve`).

    Args:
        domain: the candidate items: a `Domain`, text that `domain.parse` reads, "input" for the
            distinct items of the input, or None: the own domain of a synthetic source, "input"
            elsewhere.
        rows: rows of the sketch (7).
        width: counters per row; by default the widest that fits `max_bytes`.
        max_bytes: upload per client and round (32,000), where no width is given.
        num_rounds: rounds, each client's drawn uniformly (1); not where the rows name their rounds.
        schedule: a schedule, or "auto": shared for one round, else hybrid, and under noise of a
            trusted aggregator, or of two servers, batches; "batched:auto": as many batches as are
            best.
        max_items: the most items of one client, drawn uniformly from its distinct items (1).
        recovery: "joint", which fits the heavy items together and needs 3 rows, "median", the
            paper's decoder, or "auto": joint, if there are so many rows, up to 2^28 candidates.
        objective: what is made small: "linf", the largest error, or "l2", the sum of squares, by
            shrinkage.
        confidence: of the intervals, below 1; 0 for none.
        intervals: "auto": of a list such that they allow for its choice, of named items pointwise;
            or "pointwise", "simultaneous" or "order" (order statistics of the rows) for both.
        plan: use this plan's sizes, schedule and hash seed.
        secure_sum: "ideal", a trusted server's sums, or the real protocol between clients: "secagg"
            or "two-server"; by default what the plan says, else ideal.
        adversary: against whom "secagg" protects: "semi-honest" (the default) or "active".
        max_corrupt: the share of a cohort that may collude with the server (0.05).
        max_cohort: the most clients that sum together; larger rounds are split.
        max_dropout: the share of a cohort that may drop out without loss of the sum (as many as do,
            at least 0.05).
        epsilon: makes the campaign (epsilon, delta)-differentially private; None: it is not.
        delta: 1e-6 by default, or a tenth of one over the number of clients if that is less.
        trust: "central", an aggregator that adds the noise (the default with an ideal secure sum),
            or "distributed".
        neighbours: "zero-out" (the default), "replace-one" or "add-remove".
        max_rounds: the most natural rounds that one client takes part in (all).
        max_clients: with "add-remove", a public bound on the number of clients.
        certify: with "replace-one", look for the worst pair of candidates, which needs less noise.
        population: whose budget is charged ("clients").
        tau: the largest error of any frequency; the sketch is made as small as it may be.
        failure_probability: with which tau may be exceeded (0.1).
    """

    domain: Domain | str | None = None
    rows: int | None = None
    width: int | None = None
    max_bytes: int | None = None
    num_rounds: int | None = None
    schedule: Schedule | str = AUTO
    max_items: int | None = None
    recovery: str = "auto"
    objective: str = "linf"
    confidence: float = CONFIDENCE
    intervals: str = "auto"
    plan: Plan | None = None
    secure_sum: str | None = None
    adversary: str | None = None
    max_corrupt: float | None = None
    max_cohort: int | None = None
    max_dropout: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    trust: str | None = None
    neighbours: str | None = None
    max_rounds: int | None = None
    max_clients: int | None = None
    certify: bool = False
    population: str | None = None
    tau: float | None = None
    failure_probability: float = 0.1

    def resolve(self, *, dropout: float = 0.0, not_private: bool = False) -> CampaignSpec:
        """Return what the request means, checked. Nothing below asks the request again.

        Args:
            dropout: the share of each cohort's clients that drops out of a simulation.
            not_private: with privacy, allow what is not private: a seed, the truth, the input's own
                items as candidates.

        Raises:
            InvalidInputError: options are out of bounds, or do not go together.

        >>> spec = Request(epsilon=1.0, secure_sum="two-server").resolve()
        >>> spec.max_items, spec.population, str(spec.noise_by)
        (1, 'clients', 'servers')
        """
        plan = self.plan
        summation = Summation.resolve(
            None if plan is None else plan.secure_sum,
            method=self.secure_sum,
            adversary=self.adversary,
            dropout=dropout,
            max_corrupt=self.max_corrupt,
            max_cohort=self.max_cohort,
            max_dropout=self.max_dropout,
        )
        self._check_privacy(not_private)
        privacy = None
        if self.epsilon is not None:
            privacy = resolve_privacy(
                SecureSum.parse(summation.method),
                epsilon=self.epsilon,
                delta=self.delta,
                trust=self.trust,
                neighbours=Relation.ZERO_OUT if self.neighbours is None else self.neighbours,
                max_rounds=self.max_rounds,
                max_clients=self.max_clients,
                certify=self.certify,
                population=POPULATION if self.population is None else self.population,
                not_private=not_private,
            )
        planned = None if plan is None else plan.privacy
        numbers = {name: _integer(name, getattr(self, name)) for name in _SIZES}
        if self.num_rounds is not None:
            _validate.integer(1, MAX_ROUNDS, num_rounds=self.num_rounds)
        rows = numbers["rows"] if plan is None else plan.rows
        decoding = Decoding(self.recovery, self.objective, self.confidence, self.intervals)
        if rows is not None:
            decoding.check_rows(rows)
        if self.width is not None and self.max_bytes is not None:
            raise InvalidInputError("width and max_bytes both size the sketch; give one of them")
        failure_probability = _validate.inside(failure_probability=self.failure_probability)
        tau = self._target()
        schedule = self.schedule
        if schedule not in (AUTO, BATCHED_AUTO):
            schedule = Schedule.parse(schedule)
        sized = [name for name, number in numbers.items() if number is not None]
        if plan is not None and (sized or schedule != AUTO):
            named = ", ".join(sized or ["schedule"])
            raise InvalidInputError(f"a plan already says {named}; leave {named} out, or the plan")
        relation, max_rounds, population = None, None, self.population or POPULATION
        if privacy is not None:
            relation, max_rounds = Relation.parse(privacy.relation), privacy.max_rounds
        elif planned is not None:
            relation, max_rounds, population = (
                planned.event.relation,
                planned.event.participations,
                planned.population,
            )
        return CampaignSpec(
            domain=self.domain,
            plan=plan,
            rows=rows,
            width=numbers["width"],
            max_bytes=numbers["max_bytes"],
            num_rounds=numbers["num_rounds"],
            schedule=schedule,
            max_items=numbers["max_items"] or 1 if plan is None else plan.max_items,
            decoding=decoding,
            summation=summation,
            privacy=privacy,
            relation=relation,
            max_rounds=max_rounds,
            population=population,
            is_not_private=not_private or (planned is not None and planned.not_private),
            tau=tau,
            failure_probability=failure_probability,
        )

    def _given(self, names: tuple[str, ...]) -> list[str]:
        """Return which options were given: 0 is, None is not; a flag is if it is true."""
        values = {name: getattr(self, name) for name in names}
        return [
            name
            for name, value in values.items()
            if (value if name == "certify" else value is not None)
        ]

    def _check_privacy(self, not_private: bool) -> None:
        """Refuse options of privacy where there is none, or where a plan says them."""
        check_flag(certify=self.certify, not_private=not_private)
        planned = None if self.plan is None else self.plan.privacy
        if self.plan is not None:
            given = self._given(("epsilon", *_OF_EPSILON))
            if given and planned is not None:
                raise InvalidInputError(
                    f"a plan already says {given[0]}; leave {given[0]} out, or the plan"
                )
            if given:
                raise InvalidInputError(
                    f"the plan is one without privacy; leave {given[0]} out, or the plan"
                )
            if planned is not None and self.population not in (None, planned.population):
                raise InvalidInputError(
                    f"the plan is of population {planned.population!r}, got {self.population!r};"
                    " leave population out"
                )
        if planned is None and self.epsilon is None:
            for name in [
                *self._given((*_OF_EPSILON, "population")),
                *["not_private"] * not_private,
            ]:
                raise InvalidInputError(f"{name} goes with epsilon: give one, or leave {name} out")

    def _target(self) -> float | None:
        """Return the largest error that is asked for, if there is one."""
        if self.tau is None:
            return None
        tau = _validate.inside(tau=self.tau)
        if self.width is not None:
            raise InvalidInputError("tau chooses the width; leave width out, or tau")
        if self.plan is not None:
            raise InvalidInputError("a plan already says the sizes; leave tau out, or the plan")
        return tau


@dataclass(frozen=True, kw_only=True)
class CampaignSpec:
    """A request for a campaign, resolved: with every default that no client decides.

    Attributes:
        domain: as in `Request`: which domain that is, the source says.
        plan: that exists already; then sizes, schedule, rounds and privacy are its own.
        rows: of the sketch: of the plan, or as asked; None: to be chosen.
        width: counters per row, as asked; None: to be chosen.
        max_bytes: upload per client and round, as asked; None: the usual ones.
        num_rounds: rounds that clients are drawn for, as asked; None: natural ones, those of the
            plan, or one.
        schedule: a `Schedule`, "auto" or "batched:auto".
        max_items: the most items of one client in a round.
        decoding: how the sums are to be decoded; "auto" is resolved by `recovery_of`.
        summation: how rounds are summed.
        privacy: that is asked for; None: none, or a plan says it.
        relation: of the privacy that is asked for, or of the plan's; None: the campaign is not
            private.
        max_rounds: the most natural rounds of one client; None: all.
        population: whose budget is charged.
        is_not_private: whether what is not private may be used: then nothing is guaranteed.
        tau: the largest error of any frequency; None: no target.
        failure_probability: with which tau may be exceeded, in (0, 1).
    """

    domain: Domain | str | None
    plan: Plan | None
    rows: int | None
    width: int | None
    max_bytes: int | None
    num_rounds: int | None
    schedule: Schedule | str
    max_items: int
    decoding: Decoding
    summation: Summation
    privacy: Privacy | None
    relation: Relation | None
    max_rounds: int | None
    population: str
    is_not_private: bool
    tau: float | None
    failure_probability: float

    @property
    def is_private(self) -> bool:
        """Whether the campaign is differentially private, or one marked not_private."""
        return self.relation is not None

    def with_delta(self, num_clients: int) -> CampaignSpec:
        """Return the spec with the default delta for so many clients, where none is asked for."""
        asked = self.privacy
        if asked is None or asked.delta is not None or asked.max_clients is not None:
            return self
        return replace(self, privacy=replace(asked, delta=default_delta(max(1, num_clients))))

    def for_pilot(
        self, *, rows: int, width: int | None, max_bytes: int | None, num_rounds: int | None
    ) -> CampaignSpec:
        """Return the request for a pilot: a sketch of that size, with the same noise.

        No certificate is asked for, and under privacy each of a pilot's clients is in its one
        round.

        Args:
            rows: of its sketch.
            width: counters per row; None: what `max_bytes` buy.
            max_bytes: upload per client, where no width is given.
            num_rounds: of the pilot; None: natural ones.
        """
        return replace(
            self,
            rows=rows,
            width=width,
            max_bytes=max_bytes,
            num_rounds=num_rounds,
            schedule=Schedule.parse("shared"),
            tau=None,
            privacy=(
                None
                if self.privacy is None
                else replace(self.privacy, certify=False, max_rounds=None)
            ),
        )

    @property
    def noise_by(self) -> NoiseBy | None:
        """Who adds the noise that is asked for; None: nobody, or a plan says it."""
        return None if self.privacy is None else self.privacy.noise_by

    def recovery_of(self, domain_size: int, rows: int | None = None) -> str:
        """Return how sums over so many candidates are decoded.

        Args:
            domain_size: candidates.
            rows: of the sketch; None: as many as were asked for, or enough.
        """
        return recovery_of(
            self.decoding.recovery, domain_size, rows or self.rows or Recovery.JOINT.fewest_rows
        )


def _integer(name: str, value: Any) -> int | None:
    return None if value is None else _validate.integer(1, **{name: value})


def check_flag(**named: Any) -> None:
    """Refuse what is neither true nor false: a text would count as true."""
    for name, value in named.items():
        if not isinstance(value, bool):
            raise InvalidInputError(f"{name} must be true or false, got {value!r}")
