"""What is asked of a campaign that runs in one process: every option, checked together before anything is read."""

from __future__ import annotations

import os
from dataclasses import dataclass

from fedtally import _validate
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.planner.privacy import Privacy
from fedtally.planner.secure_sum import Summation
from fedtally.privacy.events import Relation
from fedtally.privacy.terms import POPULATION
from fedtally.recovery.decoding import CONFIDENCE, Decoding, recovery_of
from fedtally.sketch import Recovery, Schedule
from fedtally.sketch.count_sketch import MAX_ROUNDS
from fedtally.sketch.schedule import AUTO, BATCHED_AUTO

SIZINGS = ("calculus", "two-phase", "minimax", "linear", "oracle")
_FLAGS = ("evaluate", "certify", "study")
_OF_EPSILON = ("delta", "trust", "neighbours", "max_rounds", "max_clients", "certify")


@dataclass(frozen=True)
class Request:
    """What is asked of a campaign; everything has a default.

    Args:
        domain: the candidate items: a `Domain`, text that `domain.parse` reads, "input" for the distinct items of the
            input, or None: the own domain of a synthetic source, "input" elsewhere.
        rows: rows of the sketch (7).
        width: counters per row; by default the widest that fits `max_bytes`.
        max_bytes: upload per client and round (32,000), where no width is given.
        num_rounds: rounds, each client's drawn uniformly (1); not where the rows name their rounds.
        schedule: a schedule, or "auto": shared for one round, else hybrid, and under noise of a trusted aggregator, or
            of two servers, batches; "batched:auto": as many batches as are best.
        max_items: the most items of one client, drawn uniformly from its distinct items (1).
        recovery: "joint", which fits the heavy items together and needs 3 rows, "median", the paper's decoder, or
            "auto": joint, if there are so many rows, up to 2^28 candidates.
        objective: what is made small: "linf", the largest error, or "l2", the sum of squares, by shrinkage.
        confidence: of the intervals, below 1; 0 for none.
        intervals: "auto": of a list such that they allow for its choice, of named items pointwise; or "pointwise",
            "simultaneous" or "order" (order statistics of the rows) for both.
        seed: of hashes and draws: an int, text or bytes; from the operating system if None.
        evaluate: compare with the truth, which a simulation knows.
        outside: what becomes of items outside a declared domain: "error" (the default) or "drop" (with epsilon).
        plan: use this plan's sizes, schedule and hash seed.
        memory: bytes of client rows held in memory before they go to disk (1 GiB).
        top: the k of the evaluation (20).
        secure_sum: "ideal", a trusted server's sums, or the real protocol between simulated clients: "secagg" or
            "two-server"; by default what the plan says, else ideal.
        adversary: against whom "secagg" protects: "semi-honest" (the default) or "active".
        dropout: the share of each cohort's clients that drop out of it.
        max_corrupt: the share of a cohort that may collude with the server (0.05).
        max_cohort: the most clients that sum together; larger rounds are split.
        epsilon: makes the campaign (epsilon, delta)-differentially private; None: it is not.
        delta: 1e-6 by default, or a tenth of one over the number of clients if that is less.
        trust: "central", an aggregator that adds the noise (the default with an ideal secure sum), or "distributed".
        neighbours: "zero-out" (the default), "replace-one" or "add-remove".
        max_rounds: the most natural rounds that one client takes part in (all).
        max_clients: with "add-remove", a public bound on the number of clients.
        certify: with "replace-one", look for the worst pair of candidates, which needs less noise.
        population: whose budget is charged ("clients").
        ledger: where: a path or URL; None: nowhere.
        max_dropout: the share of a cohort that may drop out without loss of the sum (as many as do, at least 0.05).
        tau: the largest error of any frequency; the sketch is made as small as it may be.
        failure_probability: with which tau may be exceeded (0.1).
        pilot_share: of the clients, who are the pilot and not in the campaign (0.1).
        sizing: how the sketch for tau is found: "calculus" (the default, from a pilot), or the paper's "two-phase"
            (from a pilot), "minimax", "linear" or "oracle" (from the truth).
        study: with epsilon, allow what is not private: a seed, the truth, the input's own items as candidates.
    """

    domain: Domain | str | None = None
    rows: int | None = None
    width: int | None = None
    max_bytes: int | None = None
    num_rounds: int | None = None
    schedule: Schedule | str = "auto"
    max_items: int | None = None
    recovery: str = "auto"
    objective: str = "linf"
    confidence: float = CONFIDENCE
    intervals: str = "auto"
    seed: int | str | bytes | None = None
    evaluate: bool = False
    outside: str | None = None
    plan: Plan | None = None
    memory: int | None = None
    top: int = 20
    secure_sum: str | None = None
    adversary: str | None = None
    dropout: float = 0.0
    max_corrupt: float | None = None
    max_cohort: int | None = None
    epsilon: float | None = None
    delta: float | None = None
    trust: str | None = None
    neighbours: str | None = None
    max_rounds: int | None = None
    max_clients: int | None = None
    certify: bool = False
    population: str | None = None
    ledger: str | os.PathLike[str] | None = None
    study: bool = False
    max_dropout: float | None = None
    tau: float | None = None
    failure_probability: float = 0.1
    sizing: str | None = None
    pilot_share: float | None = None

    def __post_init__(self) -> None:
        _ = self.summation
        self._check_privacy()
        for name in ("rows", "width", "max_bytes", "num_rounds", "max_items", "memory"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _validate.integer(1, **{name: value}))
        if self.num_rounds is not None:
            _validate.integer(1, MAX_ROUNDS, num_rounds=self.num_rounds)
        _validate.integer(0, top=self.top)
        decoding = self.decoding
        if self._rows is not None:
            decoding.check_rows(self._rows)
        if self.outside not in (None, "error", "drop"):
            raise InvalidInputError(f"outside must be error or drop, got {self.outside!r}")
        if self.width is not None and self.max_bytes is not None:
            raise InvalidInputError("width and max_bytes both size the sketch; give one of them")
        self._check_target()
        if self.schedule not in (AUTO, BATCHED_AUTO):
            object.__setattr__(self, "schedule", Schedule.parse(self.schedule))
        sized = [n for n in ("rows", "width", "max_bytes", "num_rounds", "max_items") if getattr(self, n) is not None]
        if self.plan is not None and (sized or self.schedule != AUTO):
            named = ", ".join(sized or ["schedule"])
            raise InvalidInputError(f"a plan already says {named}; leave {named} out, or the plan")

    def _check_target(self) -> None:
        object.__setattr__(self, "failure_probability", _validate.inside(failure_probability=self.failure_probability))
        if self.sizing not in (None, *SIZINGS):
            raise InvalidInputError(f"sizing must be {', '.join(SIZINGS[:-1])} or {SIZINGS[-1]}, got {self.sizing!r}")
        if self.tau is None:
            for name in ("sizing", "pilot_share"):
                if getattr(self, name) is not None:
                    raise InvalidInputError(
                        f"{name} goes with tau, the error that is asked for: give one, or leave {name} out"
                    )
            return
        object.__setattr__(self, "tau", _validate.inside(tau=self.tau))
        if self.pilot_share is not None:
            _validate.inside(pilot_share=self.pilot_share)
        if self.width is not None:
            raise InvalidInputError("tau chooses the width; leave width out, or tau")
        if self.plan is not None:
            raise InvalidInputError("a plan already says the sizes; leave tau out, or the plan")
        if self.sizing == "oracle" and self.is_private and not self.is_study:
            raise InvalidInputError(
                "sizing oracle reads the truth, which is not private: use another one, or mark the run with study"
            )

    @property
    def decoding(self) -> Decoding:
        """How the sums are to be decoded."""
        return Decoding(self.recovery, self.objective, self.confidence, self.intervals)

    @property
    def sizing_method(self) -> str:
        """How the sketch for tau is found."""
        return self.sizing or "calculus"

    @property
    def pilots(self) -> bool:
        """Whether some clients are a pilot, from which the sketch's size follows."""
        return self.tau is not None and self.sizing_method in ("calculus", "two-phase")

    @property
    def _rows(self) -> int | None:
        return self.rows if self.plan is None else self.plan.rows

    def recovery_of(self, domain_size: int, rows: int | None = None) -> str:
        """Return how sums over so many candidates are decoded.

        Args:
            domain_size: candidates.
            rows: of the sketch; None: as many as were asked for, or enough.
        """
        return recovery_of(self.recovery, domain_size, rows or self._rows or Recovery.JOINT.fewest_rows)

    def _has(self, name: str) -> bool:
        """Whether an option was given: 0 is, None is not; a flag is if it is true."""
        value = getattr(self, name)
        return value is True if name in _FLAGS else value is not None

    def _check_privacy(self) -> None:
        if isinstance(self.seed, bool):
            raise InvalidInputError(f"seed must be an integer, text or bytes, got {self.seed!r}")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidInputError(f"{name} must be true or false, got {getattr(self, name)!r}")
        if self.ledger is not None and not isinstance(self.ledger, str | os.PathLike):
            raise InvalidInputError(f"ledger must be a path or a URL, got {self.ledger!r}")
        asked = self.privacy
        if asked is not None:
            asked.trusts(self.summation)
        if not self.is_private:
            for name in (*_OF_EPSILON, "population", "ledger", "study"):
                if self._has(name):
                    raise InvalidInputError(f"{name} goes with epsilon: give one, or leave {name} out")
            return
        if self.is_study and self.ledger is not None:
            raise InvalidInputError("a study is not private, so nothing of it is charged: leave ledger or study out")
        if self.is_study:
            return
        if self.outside == "error":
            raise InvalidInputError(
                "with epsilon, an error for an item outside the domain would tell what a client holds: leave outside "
                "out (such clients contribute zeros), or mark the run with study"
            )
        for name, why in (
            ("seed", "whoever knows a seed can take the noise off"),
            ("evaluate", "the truth is not private"),
        ):
            if self._has(name):
                raise InvalidInputError(f"{name} is not for a private run: {why}; leave it out, or mark it with study")

    @property
    def is_study(self) -> bool:
        """Whether what is not private may be used: then nothing is promised."""
        planned = None if self.plan is None else self.plan.privacy
        return self.study or (planned is not None and planned.study)

    @property
    def relation(self) -> Relation | None:
        """The neighbouring relation, if the campaign is to be private."""
        if self.privacy is not None:
            return Relation.parse(self.privacy.relation)
        planned = None if self.plan is None else self.plan.privacy
        return None if planned is None else planned.event.relation

    @property
    def population_name(self) -> str:
        """Whose budget is charged."""
        planned = None if self.plan is None else self.plan.privacy
        if self.population is not None:
            return self.population
        return POPULATION if planned is None else planned.population

    @property
    def items_bound(self) -> int:
        """The most items of one client in a round."""
        return self.max_items or 1 if self.plan is None else self.plan.max_items

    @property
    def rounds_bound(self) -> int | None:
        """The most natural rounds of one client; None: all."""
        planned = None if self.plan is None else self.plan.privacy
        return self.max_rounds if planned is None else planned.event.participations

    @property
    def is_private(self) -> bool:
        """Whether the campaign is to be differentially private, or a study of one that is."""
        return self.epsilon is not None or (self.plan is not None and self.plan.privacy is not None)

    @property
    def privacy(self) -> Privacy | None:
        """The differential privacy that is asked for; None if there is none, or a plan already says."""
        planned = None if self.plan is None else self.plan.privacy
        if self.plan is not None:
            given = [name for name in ("epsilon", *_OF_EPSILON) if self._has(name)]
            if given and planned is not None:
                raise InvalidInputError(f"a plan already says {given[0]}; leave {given[0]} out, or the plan")
            if given:
                raise InvalidInputError(f"the plan is one without privacy; leave {given[0]} out, or the plan")
            if planned is not None and self.population not in (None, planned.population):
                raise InvalidInputError(
                    f"the plan is of population {planned.population!r}, got {self.population!r}; leave population out"
                )
        if self.epsilon is None:
            return None
        return Privacy(
            epsilon=self.epsilon,
            delta=self.delta,
            trust=self.trust,
            relation=Relation.ZERO_OUT if self.neighbours is None else self.neighbours,
            max_rounds=self.max_rounds,
            max_clients=self.max_clients,
            certify=self.certify,
            population=POPULATION if self.population is None else self.population,
            study=self.study,
        )

    @property
    def summation(self) -> Summation:
        """How the rounds are summed."""
        return Summation.asked(
            None if self.plan is None else self.plan.secure_sum,
            method=self.secure_sum,
            adversary=self.adversary,
            dropout=self.dropout,
            max_corrupt=self.max_corrupt,
            max_cohort=self.max_cohort,
            max_dropout=self.max_dropout,
        )
