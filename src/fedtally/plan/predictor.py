"""The prediction of a campaign's error, for any size of its sketch.

For small sketches of a single batch (all rounds share all hashes and signs), campaigns may be
simulated (`fedtally.plan.trials`). In all other cases an error model is used
(`fedtally.recovery.error_model`). Its predictions for joint recovery are sometimes too good. Two
safeguards then replace them by larger ones: `Predictor.modelled_failure` and `Predictor._sure`.
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

# If a sketch JUMP times narrower has an error more than FALL times larger, the prediction for joint
# recovery is doubtful: decoding may end with an error as for the narrower sketch.
JUMP, FALL = 1.4, 2.0
# A prediction of exact recovery is trusted if there are CELLS cells for each item, or if it also
# holds for sketches that are narrower by the factors SURE.
CELLS, SURE = 4, (1.1, 1.25)
# Simulated campaigns (trials) predict the error that is exceeded with probability p only if at
# least this many of them are expected to exceed it: p * repeats >= TELLING.
TELLING = 2
_STEPS, _CLOSE = 8, 1.005  # `modelled_linf` ends after _STEPS steps, or if a step changes little

# a method of a predictor: `_failure`, whose third argument is tau, or `_linf`, where it is p
_Predicted = Callable[["Predictor", Frequencies, float, int, int], float]


@dataclass(frozen=True)
class Predictor:
    """A predictor of the errors of a campaign, for sketches of any size.

    Args:
        num_clients: the number by which counts are divided to get frequencies: the clients of all
            rounds together, or for silos the people who are expected in all silos.
        schedule: which rounds share the locations and the signs of items: shared, fresh, hybrid or
            batched:B.
        num_rounds: the number of rounds.
        recovery: the name of the decoder whose errors are predicted.
        noise: the standard deviation of the noise in each counter of each round's sum, in counts.
            It may be a function of the number of rows, on which the noise depends with privacy.
        round_sizes: the number of clients of each round; they sum to `num_clients`. None: rounds of
            equal size.
        repeats: the most campaigns that are simulated to predict the error of a small sketch; 0:
            the error model is used for all sketches.
        mechanism: the distribution of the noise.
        draws: the number of draws of noise in a counter, in all rounds together.
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
        """Return the predictor for a plan.

        The noise is the largest that the plan can have, as if no client dropped out.

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
        """Return the predictor with at most `most` simulated campaigns, never more than now."""
        return replace(self, repeats=min(most, self.repeats))

    def trials(self, distribution: Frequencies, rows: int, width: int) -> Trials | None:
        """Return the simulated campaigns of a small sketch; None if the error model predicts.

        The error model predicts if the sketch has more than `MOST_CELLS` counters, if there are
        several batches, if `repeats` is 0, or if the decoder has no collisions (a histogram). If
        the decoder builds on a second decoder (`rests_on`), the second decoder is simulated.
        """
        schedule = Schedule.parse(self.schedule)
        if not self.repeats or not kind_of(self.recovery).has_collisions:
            return None  # simulation is not allowed, or not needed: the error model is exact
        if rows * width > MOST_CELLS or len(schedule.batches_of(self.num_rounds)) > 1:
            return None
        noise = _rounded_up(self.noise_of(rows) * math.sqrt(self.num_rounds))
        decoder = kind_of(self.recovery).rests_on or self.recovery
        return Trials.of(distribution, self.num_clients, decoder, noise, rows, width)

    def failure(self, distribution: Frequencies, tau: float, rows: int, width: int) -> float:
        """Return the probability that the largest error of any frequency exceeds tau.

        For a small sketch it comes from simulated campaigns, otherwise from the error model.
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
        """Return the error that the largest error of all frequencies exceeds with probability p.

        Args:
            distribution: the known frequencies.
            p: the probability, above 0 and below 1.
            rows: the number of rows of the sketch.
            width: the number of counters in a row.
            tau: the largest error that is allowed, or None. With it, fewer campaigns are simulated
                if these already show that tau is kept.
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

        Two safeguards apply to joint recovery. First, the result is at least the probability that
        the error of a sketch `JUMP` times narrower exceeds `FALL` times tau. The reason: where the
        error falls so fast with the width, the model may predict the fall at too small a width.
        Second, `_sure` corrects predictions of exact recovery.
        """
        return max(self.failures(distribution, tau, rows, width))

    def failures(
        self, distribution: Frequencies, tau: float, rows: int, width: int
    ) -> Iterator[float]:
        """Yield probabilities; the largest of them is the result of `modelled_failure`.

        They are computed one by one: a caller can stop at the first one that is too large.
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
        """Return the error that `linf` describes, as the error model predicts it.

        The safeguards of `modelled_failure` apply here, too.
        """
        found, known, narrower = 0.0, distribution, int(width / JUMP)
        # After a pilot, `_careful` changes the frequencies of some items that are rarer than the
        # error, and so changes the error. Start with an error of 0, and repeat until the error
        # hardly grows.
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
        """Return the largest error of a histogram, which has no other errors than noise.

        Args:
            candidates: the number of candidates, each of which has a noisy count.
            probability: the probability, above 0 and below 1, with which the result may be
                exceeded.
            expected: the number by which counts are divided to get frequencies: the number of
                clients, or of the people in all silos.
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
        """Return the frequencies for which errors are predicted; after a pilot, harder frequencies.

        A pilot shows little of rare items. So after a pilot, for a decoder that fits items, all
        rare items get one common frequency: equal items are the hardest case for joint recovery.
        An item is rare if its frequency is below `tau` and below half of `Fit.resolved`. (A pilot
        shows items one by one above the frequency `Fit.resolved`.)
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
        """Return the prediction `found`, or a larger value if exact recovery is not certain.

        Real decoding may need a wider sketch for exact recovery than the model predicts. If the
        decoder fails to recover all items, its error is taken to be that of a narrower sketch for
        which the model does not predict exact recovery. Whether recovery is exact is predicted
        without noise, because noise cannot make exact recovery more certain.

        Args:
            predicted: the method that predicts an error or a probability (`_Predicted`).
            found: what this method predicts for this width; the result is at least this.
            distribution: the known frequencies.
            bound: the third argument of `predicted`: tau, or the probability p.
            rows: the number of rows of the sketch.
            width: the number of counters in a row.
        """
        items, cells = self._items(distribution), rows * width
        if not self._fits_items or not cells < CELLS * items <= CELLS * cells:
            return found  # exact recovery is certain, or impossible with so many items
        free = replace(self, noise=0.0)
        exact = predicted(free, distribution, bound, rows, width) if self.noise_of(rows) else found
        for one in () if exact > 0.0 else SURE:
            less = max(1, int(width / one))
            if predicted(free, distribution, bound, rows, less) > 0.0:
                return max(found, predicted(self, distribution, bound, rows, less))
        return found

    def _items(self, distribution: Frequencies) -> float:
        """Return the expected number of different items that all clients together hold."""
        missed = np.exp(-distribution.frequencies * self.num_clients)
        return float(distribution.numbers @ (1.0 - missed))

    def _model_of(self, distribution: Frequencies, rows: int) -> DecoderKind:
        """Return the decoder whose error is predicted.

        Some decoders are better than another decoder that they build on, but only for some shapes
        of the tail. If the shape is not known, the error of that other decoder is predicted
        (`DecoderKind.rests_on`).
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
        """Return what the error model predicts for a size, without the safeguards.

        The predicted largest error is exceeded with probability p.
        """
        known, numbers = distribution.rising
        model, sums = self._model_of(distribution, rows), self._sums(distribution, rows, width)
        return model.predict(known, sums, numbers, p)

    def noise_of(self, rows: int) -> float:
        """Return the standard deviation of the noise in a counter of a round's sum, in counts."""
        return self.noise(rows) if callable(self.noise) else self.noise

    def searched_rows(self, rows: Iterable[int] | int | None) -> list[int]:
        """Return the numbers of rows that a search should try, from the middle of them outwards.

        Args:
            rows: the requested numbers, or one number; None: the usual numbers for the decoder.

        Raises:
            InvalidInputError: `rows` has no number, or a number that is out of range.
        """
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
    """Return the error that a plan's largest error of all frequencies exceeds with `probability`.

    Args:
        plan: the plan.
        frequencies: the known frequencies.
        recovery: the name of the decoder.
        probability: the probability, above 0 and below 1.
        repeats: the most campaigns that are simulated; 0: none.
        tau: the largest error that is allowed, or None; see `Predictor.linf`.
        expected: the number by which counts are divided to get frequencies; None: the clients of
            the plan.
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

    Results of simulated campaigns are cached by their arguments. With rounded noise, a finished
    plan can use the results from the search for its size.

    >>> _rounded_up(15.8047), _rounded_up(28.0), _rounded_up(0.0)
    (15.9, 28.0, 0.0)
    """
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(noise * (1 - 1e-9))))


@lru_cache(maxsize=64)
def _alike_below(distribution: Frequencies, frequency: float) -> Frequencies:
    return distribution.alike_below(frequency)
