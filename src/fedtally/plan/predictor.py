"""The predicted error of a campaign, for every size of its sketch.

Small sketches of one batch are tried (`fedtally.plan.trials`), all others are predicted
(`fedtally.recovery.error_model`), with two safeguards where predictions for joint recovery are
doubtful: `Predictor.modelled_failure` and `Predictor._sure`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from functools import lru_cache
from typing import Self

import numpy as np

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg
from fedtally.kernels import MAX_ROWS
from fedtally.plan import Plan
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.silos import error_of_number
from fedtally.plan.trials import MOST_CELLS, Trials
from fedtally.privacy.events import Mechanism
from fedtally.recovery.decoders import USUAL, Recovery
from fedtally.recovery.decoders.kind import DecoderKind
from fedtally.recovery.decoding import kind_of
from fedtally.recovery.error_model import Prediction, Sums
from fedtally.sketch import Schedule

# A sketch this much narrower, whose error is this much larger, makes a prediction for joint
# recovery doubtful: the decoder may stop where the narrower one does.
JUMP, FALL = 1.4, 2.0
# Exact recovery is relied on with so many cells for each item, and where it is predicted for
# sketches this much narrower, too.
CELLS, SURE = 4, (1.1, 1.25)
TELLING = 2  # failures that trials must allow, at least, to say anything
_STEPS, _CLOSE = 8, 1.005  # towards an error that it depends on itself

# `Predictor._failure`, of a tau, or `Predictor._linf`, of a probability
_Predicted = Callable[["Predictor", Frequencies, float, int, int], float]


@dataclass(frozen=True)
class Predictor:
    """Predicts the errors of a campaign, whatever the size of its sketch.

    Args:
        num_clients: the clients of all rounds together.
        schedule: shared, fresh, hybrid or batched:B.
        num_rounds: M.
        recovery: the name of a decoder.
        noise: standard deviation in each counter of each round's sum, in counts; or a function of
            the rows, on which it depends under differential privacy.
        round_sizes: clients of each round, together num_clients; of equal size if None.
        repeats: the most campaigns that are run to know what a small sketch does; 0: none.
        mechanism: the mechanism of the noise.
        draws: the number of draws of the noise, in all rounds together.
    """

    num_clients: int
    schedule: Schedule | str = "shared"
    num_rounds: int = 1
    recovery: str = USUAL
    noise: float | Callable[[int], float] = 0.0
    round_sizes: Sequence[int] | None = None
    repeats: int = 100
    mechanism: Mechanism = Mechanism.ROUNDED_GAUSSIAN
    draws: int = 1

    @classmethod
    def from_plan(cls, plan: Plan, recovery: str) -> Self:
        """Return the predictor of a plan, with all of its noise: nobody drops out.

        >>> domain = {"kind": "range", "size": 1000, "public": True}
        >>> plan = Plan(rows=7, width=200, schedule="hybrid", num_rounds=4, num_clients=8000,
        ...             max_round_clients=2200, domain=domain, max_items=1, seed=bytes(32))
        >>> predictor = Predictor.from_plan(plan, "joint")
        >>> str(predictor.schedule), predictor.num_rounds, predictor.noise
        ('hybrid', 4, 0.0)
        """
        noise, rounds, mechanism, draws = 0.0, plan.num_rounds, cls.mechanism, cls.draws
        if plan.privacy is not None:
            each = plan.privacy.largest_stddev(-(-plan.num_clients // rounds))
            noise = each * math.sqrt(len(plan.releases) / rounds)
            mechanism = plan.privacy.event.mechanism
            draws = len(plan.releases) * plan.privacy.event.draws_of_sum
        return cls(
            plan.num_clients,
            plan.schedule,
            rounds,
            recovery,
            noise,
            repeats=cls.repeats if plan.candidates.can_be_tried else 0,
            mechanism=mechanism,
            draws=draws,
        )

    def with_repeats(self, most: int) -> Self:
        """Return the predictor with at most that many trials; none where none may be run."""
        return replace(self, repeats=min(most, self.repeats))

    def trials(self, distribution: Frequencies, rows: int, width: int) -> Trials | None:
        """Return the campaigns that say what a small sketch does.

        None where the error model says it.
        """
        schedule = Schedule.parse(self.schedule)
        if not self.repeats or not kind_of(self.recovery).has_collisions:
            return None  # none may be tried, or the error model is exact
        if rows * width > MOST_CELLS or len(schedule.batches_of(self.num_rounds)) > 1:
            return None
        noise = _rounded_up(self.noise_of(rows) * math.sqrt(self.num_rounds))
        decoder = kind_of(self.recovery).rests_on or self.recovery
        return Trials.of(distribution, self.num_clients, decoder, noise, rows, width)

    def failure(self, distribution: Frequencies, tau: float, rows: int, width: int) -> float:
        """Return the probability that the largest error exceeds tau.

        It is predicted, or for a small sketch counted in trials.
        """
        trials = self.trials(distribution, rows, width)
        return (
            self.modelled_failure(distribution, tau, rows, width)
            if trials is None
            else trials.failure(tau, self.repeats)
        )

    def linf(
        self,
        distribution: Frequencies,
        p: float,
        rows: int,
        width: int,
        tau: float | None = None,
    ) -> float:
        """Return the largest error that is exceeded with probability p.

        Args:
            distribution: the known frequencies.
            p: the probability.
            rows: the rows of the sketch.
            width: the counters of a row.
            tau: an error to be kept. Fewer trials of a small sketch are run where they make it sure
                that it is.
        """
        trials = self.trials(distribution, rows, width) if p * self.repeats >= TELLING else None
        return (
            self.modelled_linf(distribution, p, rows, width)
            if trials is None
            else trials.linf(p, self.repeats, tau)
        )

    def modelled_failure(
        self, distribution: Frequencies, tau: float, rows: int, width: int
    ) -> float:
        """Return the probability that the largest error exceeds tau, by the error model.

        Or the probability that that of a sketch `JUMP` times narrower exceeds `FALL` tau, if that
        is larger. If the error of joint recovery falls that fast with the width, the model may
        predict the fall at too small a width.
        """
        return max(self.failures(distribution, tau, rows, width))

    def failures(
        self, distribution: Frequencies, tau: float, rows: int, width: int
    ) -> Iterator[float]:
        """Yield the probabilities of which `modelled_failure` is the largest.

        If the first one exceeds a bound, the others are never computed.
        """
        distribution = self._careful(distribution, tau)
        found = self._failure(distribution, tau, rows, width)
        yield found
        yield self._sure(Predictor._failure, found, distribution, tau, rows, width)
        if self._fits_items and (narrower := int(width / JUMP)) >= 2:
            yield self._failure(distribution, FALL * tau, rows, narrower)

    def _failure(self, distribution: Frequencies, tau: float, rows: int, width: int) -> float:
        known, numbers = distribution.rising
        model, sums = self._model_of(distribution, rows), self._sums(distribution, rows, width)
        return model.failure(known, sums, numbers, tau)

    def modelled_linf(self, distribution: Frequencies, p: float, rows: int, width: int) -> float:
        """Return the largest error that is exceeded with probability p, by the error model.

        The same safeguards as in `modelled_failure` apply.
        """
        found, known, narrower = 0.0, distribution, int(width / JUMP)
        # from below to the least error that is exceeded with p if items below it are alike
        for _ in range(_STEPS):
            before = found
            found = self._linf(known, p, rows, width)
            found = self._sure(Predictor._linf, found, known, p, rows, width)
            if self._fits_items and narrower >= 2:
                found = max(found, self._linf(known, p, rows, narrower) / FALL)
            known = self._careful(distribution, found)
            if known is distribution or found <= _CLOSE * before:
                break
        return found

    def error_of_noise(self, candidates: int, probability: float, expected: int) -> float:
        """Return the largest error of a histogram, exceeded with a probability.

        Args:
            candidates: the number of counts, which all have the noise.
            probability: the probability, in (0, 1).
            expected: the number that frequencies are shares of: clients, or the people of silos.
        """
        sums = Sums.of(
            rows=1,
            width=candidates,
            schedule=self.schedule,
            num_rounds=self.num_rounds,
            num_clients=expected,
            noise=self.noise_of(1),
            candidates=candidates,
            mechanism=self.mechanism,
            draws=self.draws,
        )
        none = np.empty(0)
        return kind_of(self.recovery).predict(none, sums, none, probability).linf

    def _careful(self, distribution: Frequencies, tau: float) -> Frequencies:
        """Return the distribution that joint recovery is planned with.

        Rare items are taken to be alike, where a pilot tells little of them.
        """
        if not self._fits_items or distribution.fit is None:
            return distribution
        return _alike_below(distribution, min(tau, distribution.fit.resolved / 2))

    def _linf(self, distribution: Frequencies, p: float, rows: int, width: int) -> float:
        return self.predicted(distribution, rows, width, p).linf

    def _sure(
        self,
        predicted: _Predicted,
        found: float,
        distribution: Frequencies,
        bound: float,
        rows: int,
        width: int,
    ) -> float:
        """Return what is predicted of a width: of a narrower one, if exact recovery is not sure.

        It may begin at a wider sketch than it is predicted for. If the decoder stops before it is
        there, its error is at most that of a narrower sketch which is not predicted to be exact.
        Noise makes nothing surer: whether all items are recovered is asked of sums without it.

        Args:
            predicted: predicts a width.
            found: what it predicts of this one; what is returned is at least that.
            distribution: the known frequencies.
            bound: what `predicted` takes.
            rows: the rows of the sketch.
            width: the counters of a row.
        """
        items, cells = self._items(distribution), rows * width
        if not self._fits_items or not cells < CELLS * items <= CELLS * cells:
            return found  # sure, or too many for exact recovery
        free = replace(self, noise=0.0)
        exact = predicted(free, distribution, bound, rows, width) if self.noise_of(rows) else found
        for one in () if exact > 0.0 else SURE:
            less = max(1, int(width / one))
            if predicted(free, distribution, bound, rows, less) > 0.0:
                return max(found, predicted(self, distribution, bound, rows, less))
        return found

    def _items(self, distribution: Frequencies) -> float:
        """Return how many items clients are expected to hold."""
        missed = np.exp(-distribution.frequencies * self.num_clients)
        return float(distribution.numbers @ (1.0 - missed))

    def _model_of(self, distribution: Frequencies, rows: int) -> DecoderKind:
        """Return the decoder whose error is planned with.

        What some decoders gain depends on the shape of the tail. Where that is not known, nothing
        of it is relied on.
        """
        known = distribution.has_known_shape
        name = self.recovery if known else kind_of(self.recovery).rests_on or self.recovery
        decoder = Recovery.parse(name)
        decoder.check_rows(rows)
        return decoder.kind

    @property
    def _fits_items(self) -> bool:
        return kind_of(self.recovery).fits_items

    def _sums(self, distribution: Frequencies, rows: int, width: int) -> Sums:
        return Sums.of(
            rows=rows,
            width=width,
            schedule=self.schedule,
            num_rounds=self.num_rounds,
            num_clients=self.num_clients,
            noise=self.noise_of(rows),
            candidates=distribution.domain_size,
            heterogeneity=distribution.heterogeneity,
            round_sizes=self.round_sizes,
            mechanism=self.mechanism,
            draws=self.draws,
        )

    def predicted(
        self, distribution: Frequencies, rows: int, width: int, p: float = 0.5
    ) -> Prediction:
        """Return the prediction of the error model for a size, without safeguards.

        The predicted largest error is exceeded with probability p.
        """
        known, numbers = distribution.rising
        model, sums = self._model_of(distribution, rows), self._sums(distribution, rows, width)
        return model.predict(known, sums, numbers, p)

    def noise_of(self, rows: int) -> float:
        """Return the standard deviation of the noise in a counter of each round's sum."""
        return self.noise(rows) if callable(self.noise) else self.noise

    def searched_rows(self, rows: Iterable[int] | int | None) -> list[int]:
        """Return the rows to search, from the middle outwards."""
        if rows is None:
            rows = kind_of(self.recovery).planned_rows
        searched = sorted(
            {
                validate.integer(1, MAX_ROWS, rows=one)
                for one in ([rows] if isinstance(rows, int) else rows)
            }
        )
        if not searched:
            raise InvalidInputError(f"{arg.rows} must be at least one number, got none")
        middle = searched[len(searched) // 2]
        return sorted(searched, key=lambda one: abs(one - middle))


def predict_linf(
    plan: Plan,
    frequencies: Frequencies,
    recovery: str,
    probability: float,
    repeats: int = Predictor.repeats,
    tau: float | None = None,
    expected: int | None = None,
) -> float:
    """Return the largest error that a plan is predicted to exceed with a probability.

    Args:
        plan: the plan.
        frequencies: the known frequencies.
        recovery: the name of a decoder.
        probability: the probability, in (0, 1).
        repeats: the most campaigns that are tried, as for `Predictor`.
        tau: an error to be kept, as for `Predictor.linf`.
        expected: the number that frequencies are shares of; None: the clients of the plan.
    """
    predictor = replace(
        Predictor.from_plan(plan, recovery),
        num_clients=expected or plan.num_clients,
    ).with_repeats(repeats)
    linf = predictor.linf(frequencies, probability, plan.rows, plan.width, tau)
    if not plan.clients.entries:  # nobody counts people with noise
        return linf
    stddev = predictor.noise_of(plan.rows) * math.sqrt(plan.num_rounds)
    return math.hypot(
        linf, error_of_number(frequencies, stddev / predictor.num_clients, probability)
    )


def _rounded_up(noise: float) -> float:
    """Return noise rounded up to three digits.

    A plan, and the question that it was sized for, then share their trials.

    >>> _rounded_up(15.8047), _rounded_up(28.0), _rounded_up(0.0)
    (15.9, 28.0, 0.0)
    """
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(noise * (1 - 1e-9))))


@lru_cache(maxsize=64)
def _alike_below(distribution: Frequencies, frequency: float) -> Frequencies:
    return distribution.alike_below(frequency)
