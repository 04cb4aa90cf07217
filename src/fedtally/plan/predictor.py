"""Predict the error of a campaign for any size of its sketch.

The errors of small sketches of one batch come from simulated campaigns (`fedtally.plan.trials`).
All others come from an error model (`fedtally.recovery.error_model`). Two safeguards apply if its
predictions for joint recovery are doubtful: `Predictor.modelled_failure` and `Predictor._sure`.
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

# If the error of a sketch JUMP times narrower is more than FALL times larger, a prediction for
# joint recovery is doubtful: decoding may end with an error as for the narrower sketch.
JUMP, FALL = 1.4, 2.0
# A prediction of exact recovery is relied on with CELLS cells for each item, or if it also holds
# for sketches narrower by the factors SURE.
CELLS, SURE = 4, (1.1, 1.25)
# Trials are used for a probability p only if at least this number of them, p * repeats, may fail.
TELLING = 2
_STEPS, _CLOSE = 8, 1.005  # the most iterations of `modelled_linf`, and the ratio at which they end

# `Predictor._failure`, a function of tau, or `Predictor._linf`, a function of the probability
_Predicted = Callable[["Predictor", Frequencies, float, int, int], float]


@dataclass(frozen=True)
class Predictor:
    """A predictor of the errors of a campaign, for any size of its sketch.

    Args:
        num_clients: the number of clients of all rounds together.
        schedule: the schedule: shared, fresh, hybrid or batched:B.
        num_rounds: the number of rounds.
        recovery: the name of a decoder.
        noise: the standard deviation of the noise in each counter of each round's sum, in counts;
            or a function that returns it for a number of rows, on which it depends with privacy.
        round_sizes: the number of clients of each round, with the sum num_clients; None: rounds of
            equal size.
        repeats: the most campaigns that are simulated to predict the error of a small sketch; 0:
            the error model predicts all sketches.
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
        """Return the predictor of a plan, with the most noise: no client drops out.

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
        """Return the predictor with at most `most` trials; if it had none, it still has none."""
        return replace(self, repeats=min(most, self.repeats))

    def trials(self, distribution: Frequencies, rows: int, width: int) -> Trials | None:
        """Return the trial campaigns of a small sketch; None if the error model is used instead."""
        schedule = Schedule.parse(self.schedule)
        if not self.repeats or not kind_of(self.recovery).has_collisions:
            return None  # no campaigns may be simulated, or the error model is exact
        if rows * width > MOST_CELLS or len(schedule.batches_of(self.num_rounds)) > 1:
            return None
        noise = _rounded_up(self.noise_of(rows) * math.sqrt(self.num_rounds))
        decoder = kind_of(self.recovery).rests_on or self.recovery
        return Trials.of(distribution, self.num_clients, decoder, noise, rows, width)

    def failure(self, distribution: Frequencies, tau: float, rows: int, width: int) -> float:
        """Return the probability that the largest error exceeds tau.

        It comes from the error model, or for a small sketch from trial campaigns.
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
            p: the probability, in (0, 1).
            rows: the number of rows of the sketch.
            width: the number of counters of a row.
            tau: the error that is allowed, or None. Trials of a small sketch end early if they
                already show that tau is met.
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

        As a safeguard for joint recovery, return the probability that the error of a sketch `JUMP`
        times narrower exceeds `FALL` tau, if this is larger. If the error falls so fast with the
        width, the model may predict the fall at too small a width. `_sure` is another safeguard.
        """
        return max(self.failures(distribution, tau, rows, width))

    def failures(
        self, distribution: Frequencies, tau: float, rows: int, width: int
    ) -> Iterator[float]:
        """Yield the probabilities whose maximum `modelled_failure` returns.

        They are computed lazily: a caller can stop at the first that exceeds its bound.
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
        # `_careful` gives the items below an error equal frequencies, and this changes the error.
        # So start from 0 and repeat, until the error is the one that its own frequencies give.
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
        """Return the largest error of a histogram, which only noise causes.

        Args:
            candidates: the number of candidates, each with a noisy count.
            probability: the probability, in (0, 1), with which the error is exceeded.
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
        """Return the distribution for which errors of joint recovery are predicted.

        A pilot shows little of rare items. So if frequencies come from a pilot, items below a
        frequency of about `tau` get equal frequencies.
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
        """Return the prediction for a width, or for a narrower one if exact recovery is not sure.

        In truth exact recovery may need a wider sketch than the model predicts. If the decoder
        fails to recover all items, its error is at most the error of a narrower sketch for which
        exact recovery is not predicted. Whether recovery is exact is tested without noise, because
        noise cannot make it more certain.

        Args:
            predicted: the function that predicts an error or a probability, see `_Predicted`.
            found: its prediction for this width; the result is at least this value.
            distribution: the known frequencies.
            bound: the tau or the probability that `predicted` takes.
            rows: the number of rows of the sketch.
            width: the number of counters of a row.
        """
        items, cells = self._items(distribution), rows * width
        if not self._fits_items or not cells < CELLS * items <= CELLS * cells:
            return found  # exact recovery is sure, or there are too many items for it
        free = replace(self, noise=0.0)
        exact = predicted(free, distribution, bound, rows, width) if self.noise_of(rows) else found
        for one in () if exact > 0.0 else SURE:
            less = max(1, int(width / one))
            if predicted(free, distribution, bound, rows, less) > 0.0:
                return max(found, predicted(self, distribution, bound, rows, less))
        return found

    def _items(self, distribution: Frequencies) -> float:
        """Return the expected number of different items that clients hold."""
        missed = np.exp(-distribution.frequencies * self.num_clients)
        return float(distribution.numbers @ (1.0 - missed))

    def _model_of(self, distribution: Frequencies, rows: int) -> DecoderKind:
        """Return the decoder whose error is predicted.

        The advantage of some decoders depends on the shape of the tail. If this shape is not known,
        the error of the decoder that they rest on (`DecoderKind.rests_on`) is predicted instead.
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
        """Return the standard deviation of the noise in a counter of a round's sum, in counts."""
        return self.noise(rows) if callable(self.noise) else self.noise

    def searched_rows(self, rows: Iterable[int] | int | None) -> list[int]:
        """Return the numbers of rows to search, from the middle outwards; None: the usual ones."""
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
        repeats: the most campaigns that are simulated, as for `Predictor`.
        tau: the error that is allowed, or None, as for `Predictor.linf`.
        expected: the number that frequencies are shares of; None: the clients of the plan.
    """
    predictor = replace(
        Predictor.from_plan(plan, recovery),
        num_clients=expected or plan.num_clients,
    ).with_repeats(repeats)
    linf = predictor.linf(frequencies, probability, plan.rows, plan.width, tau)
    if not plan.clients.entries:  # only silos have noise on their number of people
        return linf
    stddev = predictor.noise_of(plan.rows) * math.sqrt(plan.num_rounds)
    return math.hypot(
        linf, error_of_number(frequencies, stddev / predictor.num_clients, probability)
    )


def _rounded_up(noise: float) -> float:
    """Return a standard deviation of noise, rounded up to three digits.

    With rounding, trials for a finished plan can reuse those of the search for its size.

    >>> _rounded_up(15.8047), _rounded_up(28.0), _rounded_up(0.0)
    (15.9, 28.0, 0.0)
    """
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(noise * (1 - 1e-9))))


@lru_cache(maxsize=64)
def _alike_below(distribution: Frequencies, frequency: float) -> Frequencies:
    return distribution.alike_below(frequency)
