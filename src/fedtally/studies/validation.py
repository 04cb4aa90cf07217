"""The study behind `fedtally simulate --plan`: it tests whether a plan meets its target.

The target says that the largest error of a campaign is above `linf` with a probability of at most
p. The study simulates many campaigns, called repeats. If more of them have an error above `linf`
than the 99 % quantile of Binomial(repeats, p), the study finds that the plan misses its target. For
a plan that meets its target, this happens in at most 1 of 100 studies.

Each repeat is a campaign with exactly the number of clients that the plan is for. If the source has
another number of clients, they are drawn from it with replacement. Each repeat draws new rounds and
new hashes, because the target is about random hashes. The noise is the noise of the plan. If
clients or servers add it before the sum, the noise of all of them is added. The sums are made
without cryptography: a secure sum would give the same result.

In an open domain, which consists of all strings, the names that are read from the sums are tested,
too. Strings with a frequency above twice the target's error are frequent. The plan's model predicts
which of them can be read. The plan promises that on average 95 % of these are named.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
from scipy.special import bdtr, bdtri, stdtrit

from fedtally.answer.evaluation import NameEvaluation
from fedtally.answer.exports import check_export_path, write_table
from fedtally.answer.notes import RARE_ITEMS
from fedtally.answer.part import Progress
from fedtally.answer.result import Result
from fedtally.base import validate
from fedtally.campaign.books import MemoryBooks
from fedtally.campaign.ending import until_known
from fedtally.campaign.server import FrequencyServer
from fedtally.crypto.keys import KEY_BYTES, Secret
from fedtally.domain import Domain, Names, OpenStrings
from fedtally.domain import load as load_domain
from fedtally.errors import InvalidInputError, Note, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import Plan, Sums
from fedtally.plan import readable_names as names_of
from fedtally.plan.chosen_decoder import decoder_of
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.open_guesses import Wanted
from fedtally.plan.predictor import Predictor
from fedtally.plan.privacy import Random
from fedtally.plan.proposal import propose
from fedtally.plan.readable_names import NAME_LENGTH, NAMED_SHARE
from fedtally.recovery.decoders import Recovery
from fedtally.recovery.decoding import Decoding, kind_of, recovery_of
from fedtally.simulation.census import read
from fedtally.simulation.clipping import clip_rounds
from fedtally.simulation.item_ids import Encoder
from fedtally.simulation.randomness import campaign_seed, key_bytes
from fedtally.simulation.round_sums import encode
from fedtally.simulation.round_tally import (
    Histogram,
    Members,
    RoundTally,
    split,
    split_members,
    tally_members,
)
from fedtally.simulation.row_counts import Tally
from fedtally.simulation.run_notes import skipped
from fedtally.simulation.simulation import Simulation
from fedtally.simulation.truth import true_counts
from fedtally.sketch import CountSketch
from fedtally.sources import Source
from fedtally.studies.schedules import Measurement, tidy

LEVEL = 0.99  # the smallest probability that a plan passes if it meets its target
# The probability that a plan fails the test if its largest error is above the target's error with
# the probability `Verdict.detectable`.
POWER = 0.9
# The number of campaigns by which `TrialResult.curve` predicts the error of a width. They are
# enough for a curve, not for a test.
_FEW = 20
# Without a target, a string is frequent if its frequency is above the smallest of so many largest
# estimates.
_LISTED = 20
MOST_REPEATS = 1 << 20
_NO_CLIENT = "no client is left: every item is missing, outside the domain, or counted 0 times"
# A tolerance for rounding, when an error is compared with the target's error, and a probability
# with `LEVEL`. Without it, an error that equals the target's error could count as above it.
_ROUNDING = 1e-9
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Trial:
    """The campaigns of a plan to simulate.

    Args:
        plan: the plan of the campaigns.
        repeats: the number of campaigns.
        recovery: the name of the decoder. None: the decoder of the plan's target; if there is no
            target, the decoder that `fedtally.estimate` would choose.
        seed: the seed of all random draws; None: a seed from the operating system.

    Raises:
        InvalidInputError: a value is out of bounds, or the decoder does not fit the plan.

    >>> domain = {"kind": "range", "size": 2, "public": True}
    >>> plan = Plan(rows=3, width=4, schedule="shared", num_rounds=1, num_clients=9,
    ...             max_round_clients=9, domain=domain, max_items=1, seed=bytes(32))
    >>> str(Trial(plan).decoder)
    'joint'
    >>> Trial(plan, repeats=0)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: repeats must be at least 1, got 0
    """

    plan: Plan
    repeats: int = 50
    recovery: str | None = None
    seed: int | str | bytes | None = None

    def __post_init__(self) -> None:
        validate.integer(1, MOST_REPEATS, repeats=self.repeats)
        if self.recovery is not None:
            named = Recovery.parse(self.recovery)  # "auto" is an error here, because None means it
            recovery_of(named, self.plan.domain_size, self.plan.rows, self.plan.encoding)

    @property
    def decoder(self) -> str:
        """The name of the decoder of the sums, never "auto"."""
        if self.recovery is not None:
            return self.recovery
        if self.plan.target is not None:
            return self.plan.target.recovery
        plan = self.plan
        # A round without clients has no sum. So there are at most as many sums as clients.
        landed = min(plan.schedule.num_batches(plan.num_rounds), plan.num_clients)
        return str(decoder_of(plan, "auto", landed))

    @cached_property
    def study_plan(self) -> Plan:
        """The plan of the campaigns, marked as not private if it has differential privacy."""
        # The study shows errors, for which it uses the exact counts. So its output is not private.
        privacy = self.plan.privacy
        return (
            self.plan
            if privacy is None
            else replace(self.plan, privacy=replace(privacy, not_private=True))
        )


class Verdict(NamedTuple):
    """The test whether a plan meets its target.

    Attributes:
        exceeded: the number of repeats whose largest error is above the target's error.
        repeats: the number of all repeats.
        allowed: the plan passes if `exceeded` is at most this. For a plan that meets its target,
            `exceeded` is larger in at most 1 of 100 studies.
        met: whether the plan passes.
        detectable: the sensitivity of the test. A plan whose error is above the target's error with
            at least this probability fails in at least 9 of 10 studies. None: there are too few
            repeats, so that no plan can fail.
    """

    exceeded: int
    repeats: int
    allowed: int
    met: bool
    detectable: float | None

    @classmethod
    def of(cls, exceeded: int, repeats: int, probability: float) -> Self:
        """Return the test whether the largest error is above the target's error with at most a
        given probability.

        Args:
            exceeded: the number of repeats whose largest error is above the target's error.
            repeats: the number of all repeats.
            probability: the failure probability of the target.

        >>> Verdict.of(3, 50, 0.1).met, Verdict.of(11, 50, 0.1).met
        (True, False)
        >>> print(Verdict.of(1, 1, 0.1).detectable)
        None
        >>> found = Verdict.of(3, 50, 0.1)
        >>> found.allowed, round(found.detectable, 2)
        (10, 0.29)
        """
        allowed = int(
            np.argmax(bdtr(np.arange(repeats + 1), repeats, probability) >= LEVEL - _ROUNDING)
        )
        detectable = float(bdtri(allowed, repeats, 1 - POWER)) if allowed < repeats else None
        return cls(exceeded, repeats, allowed, exceeded <= allowed, detectable)


class Recall(NamedTuple):
    """Which share of the frequent strings was named, in an open domain (all strings).

    A string is frequent if its frequency is above twice the target's error. Without a target, it is
    frequent if its frequency is above the smallest of the 20 largest estimates.

    Attributes:
        mean: the mean share, over the repeats that have frequent strings; None: no repeat has any.
        least: the smallest share in one of these repeats; None: no repeat has frequent strings.
        wrong: the number of wrong names in all repeats. A name is read for a hash. The name is
            wrong if nobody holds it, or if fewer than half of the clients whose strings have this
            hash hold it.
        promised: the share that the plan promises for the clients of the source. None: the plan has
            no target, or nothing can be predicted.
        met: whether the plan keeps its promise. True if `mean` is at least `promised`. Otherwise a
            t-test decides: for a plan that keeps its promise, it says False in about 1 of 100
            studies at most. None: nothing is promised, no repeat has frequent strings, or the test
            would have only one repeat.
    """

    mean: float | None
    least: float | None
    wrong: int
    promised: float | None
    met: bool | None

    @classmethod
    def of(cls, measurements: Sequence[Measurement], predicted: float | None) -> Self:
        """Return the shares in the repeats, compared with what the plan promises.

        Args:
            measurements: the measurements of the repeats.
            predicted: the share of the frequent strings that the plan's model predicts to be
                readable. The plan promises 95 % of them. None: there is no prediction.

        >>> one = Measurement("shared", 9, 0, 100, 0.1, 0.1, 9, 1.0, 9, 0)
        >>> Recall.of([one] * 3, 1.0)
        Recall(mean=1.0, least=1.0, wrong=0, promised=0.95, met=True)
        >>> Recall.of([one, one._replace(recall=0.8), one._replace(recall=0.7)], 1.0).met
        True
        >>> Recall.of([one._replace(recall=0.8 + step / 100) for step in range(3)], 1.0).met
        False
        """
        recalls = np.array([each.recall for each in measurements if each.recall is not None])
        wrong = sum(each.wrong or 0 for each in measurements)
        promised = None if predicted is None else NAMED_SHARE * predicted
        if not len(recalls):
            return cls(None, None, wrong, promised, None)
        mean, least = float(recalls.mean()), float(recalls.min())
        met = None
        if promised is not None and mean >= promised:
            met = True
        elif promised is not None and len(recalls) > 1:
            error = float(recalls.std(ddof=1)) / len(recalls) ** 0.5
            met = mean + float(stdtrit(len(recalls) - 1, LEVEL)) * error >= promised
        return cls(mean, least, wrong, promised, met)


@dataclass(frozen=True)
class TrialResult:
    """The measurements of the campaigns, and the population on which they were made.

    Attributes:
        trial: the campaigns that were simulated.
        domain: the candidates.
        num_clients: the number of clients in the source.
        distribution: the frequencies in the source, for predictions. None: nothing is predicted.
            This is so if the frequencies sum to more than 1, because clients hold several items; or
            if campaigns may end early. The error model does not hold then.
        measurements: the measurements, one for each repeat.
        warnings: sentences for the reader of the result.
        names: which names the plan's model predicts to be read, by the frequencies and lengths of
            the strings in the source; `names.named` is the predicted share. None: the domain is not
            open, the plan has no target, or `distribution` is None.
    """

    trial: Trial
    domain: Domain
    num_clients: int
    distribution: Frequencies | None
    measurements: tuple[Measurement, ...]
    warnings: tuple[str, ...]
    names: names_of.Names | None = None

    @property
    def recall(self) -> Recall | None:
        """The share of the frequent strings that were named; None: the domain is not open."""
        if not self.trial.plan.is_open:
            return None
        return Recall.of(self.measurements, None if self.names is None else self.names.named)

    @property
    def errors(self) -> F64:
        """The largest error of each repeat: float64 [repeats]."""
        return np.array([m.linf for m in self.measurements])

    @property
    def rounds(self) -> list[int] | None:
        """The number of rounds that took place in each repeat; None: campaigns of the plan cannot
        end early.
        """
        held = [m.rounds for m in self.measurements if m.rounds is not None]
        return held or None

    def quantile(self, probability: float) -> float:
        """Return the 1 - probability quantile of the largest errors of the repeats.

        In about the share `probability` of the repeats, the largest error is above it.
        """
        return float(np.quantile(self.errors, 1 - probability))

    @property
    def is_drawn(self) -> bool:
        """Whether the clients of each repeat were drawn from the clients of the source, with
        replacement.
        """
        return self.num_clients != self.trial.plan.num_clients

    @property
    def exceeded(self) -> int | None:
        """The number of repeats whose largest error is above the target's error; None: the plan has
        no target.
        """
        target = self.trial.plan.target
        return None if target is None else int((self.errors > target.linf * (1 + _ROUNDING)).sum())

    @property
    def verdict(self) -> Verdict | None:
        """The test of the target; None: the plan has no target, or its target is for a decoder
        other than the trial's.
        """
        target, exceeded = self.trial.plan.target, self.exceeded
        if target is None or exceeded is None or target.recovery != self.trial.decoder:
            return None
        return Verdict.of(exceeded, self.trial.repeats, target.failure_probability)

    @property
    def predicted_failure(self) -> float | None:
        """The predicted probability that the largest error is above the error of the plan's target.

        It is None if the plan has no target, or if `distribution` is None.
        """
        plan = self.trial.plan
        if plan.target is None or self.distribution is None:
            return None
        return self._predictor.failure(self.distribution, plan.target.linf, plan.rows, plan.width)

    def predicted(self, probability: float) -> float | None:
        """Return the predicted largest error that is exceeded with a given probability.

        Returns None if `distribution` is None.
        """
        if self.distribution is None:
            return None
        plan = self.trial.plan
        return self._predictor.linf(self.distribution, probability, plan.rows, plan.width)

    def curve(
        self, probability: float, reach: float = 3.0, points: int = 13
    ) -> list[tuple[float, float]]:
        """Return the predicted errors for widths near the plan's width, from the smallest width on.

        There is a pair for each width: the bytes that a client sends, and the largest error that is
        exceeded with the given probability. All pairs are for the plan's number of rows. The list
        is empty if `distribution` is None, or if the plan has a histogram, which has only one
        possible width.

        Args:
            probability: the probability with which the error is exceeded.
            reach: the widths go from the plan's width divided by this to the plan's width times
                this.
            points: the number of widths; equal ones are left out.
        """
        plan = self.trial.plan
        factors = np.geomspace(1 / reach, reach, points)
        widths = sorted(
            {min(max(2, round(plan.width * factor)), MAX_WIDTH) for factor in factors.tolist()}
        )
        # A histogram has only one width.
        if self.distribution is None or not plan.vector.shares_counters:
            return []
        predictor = self._predictor.with_repeats(_FEW)
        return [
            (_bytes(plan, width), predictor.linf(self.distribution, probability, plan.rows, width))
            for width in widths
        ]

    @cached_property
    def _predictor(self) -> Predictor:
        return Predictor.from_plan(self.trial.plan, self.trial.decoder)

    def to_arrow(self) -> Any:
        """Return the measurements as a `pyarrow.Table` with a row for each repeat.

        It has the columns of `StudyResult.to_arrow`.
        """
        plan = self.trial.plan
        settings = {
            "rows": plan.rows,
            "num_rounds": plan.num_rounds,
            "num_clients": plan.num_clients,
        }
        epsilon = None if plan.privacy is None else plan.privacy.epsilon
        return tidy(self.measurements, self.trial.decoder, epsilon, settings)

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the table of `to_arrow` to a .csv or .parquet file, whole or not at all."""
        check_export_path(path)
        write_table(self.to_arrow(), path)


def run(
    source: Source,
    trial: Trial,
    domain: Domain | str | None = None,
    outside: str | None = None,
    progress: Progress | None = None,
) -> TrialResult:
    """Simulate campaigns of a plan on the clients of a source, and return the measurements.

    Args:
        source: the source of the clients.
        trial: the campaigns to simulate.
        domain: the candidates, as in `Request`; their number must be the number in the plan. None:
            if the plan has a histogram and the source is not synthetic, the candidates of the plan,
            provided that it states them completely; otherwise as in `Request`.
        outside: what to do with items outside the domain, as in `Simulation`.
        progress: called with a stage, the amount done, and the total amount or None. The stage
            "read" counts bytes. The stage "simulate" counts simulated campaigns.

    Raises:
        InvalidInputError: the data cannot be used, the domain does not fit the plan, or the plan is
            for silos.
        MemoryLimitError: the decoder enumerates the domain, and the domain is too large.

    >>> from fedtally.sources import from_items
    >>> domain = {"kind": "strings", "size": 2, "public": False}
    >>> plan = Plan(rows=5, width=64, schedule="hybrid", num_rounds=2, num_clients=100,
    ...             max_round_clients=80, max_items=1, domain=domain, seed=bytes(32))
    >>> found = run(from_items(["the", "of"], counts=[60, 40]), Trial(plan, repeats=3, seed=1))
    >>> found.errors.tolist(), found.is_drawn, found.verdict
    ([0.0, 0.0, 0.0], False, None)
    """
    report, plan = progress or (lambda *_: None), trial.study_plan
    if not plan.clients.can_be_drawn:
        raise InvalidInputError(
            "a simulation draws its clients anew each time, and the plan is for silos, which are"
            " few and differ: run it on your silos (fedtally estimate --plan FILE --silo COL"
            " --client COL)"
        )
    seed = campaign_seed(trial.seed)
    is_private = plan.privacy is not None
    if domain is None and not plan.vector.shares_counters and source.synthetic_size is None:
        # The table of clients does not list the candidates, but the plan may state all of them.
        with suppress(InvalidInputError):
            domain = load_domain(plan.domain, {})
    asked = Simulation.of(
        plan=plan, domain=domain, outside=outside, seed=seed, not_private=is_private
    )
    return _tried(source, trial, *read(source, asked, seed, report), seed, report)


def run_open(
    source: Source,
    asked: Simulation,
    repeats: int,
    recovery: str | None = None,
    progress: Progress | None = None,
) -> TrialResult:
    """Make a plan for an open domain and the clients of a source, and simulate its campaigns.

    An open domain consists of all strings. The plan depends on the source only through the number
    of clients. `fedtally plan` makes the same plan for this number.

    Args:
        source: the source of the clients.
        asked: the campaign to plan: an open domain and, if wanted, either a tau (the target error)
            or a number of bytes.
        repeats: the number of campaigns.
        recovery: the name of the decoder, as for `Trial`.
        progress: called as in `run`.

    Raises:
        InvalidInputError: the data cannot be used. Or no plan meets the request; the message then
            names changes that help, if there are any.
    """
    validate.integer(1, MOST_REPEATS, repeats=repeats)
    report, seed = progress or (lambda *_: None), campaign_seed(asked.seed)
    tally, encoder = read(source, asked, seed, report)
    domain = OpenStrings.of(encoder.domain())
    number = sum(part.num_clients for part in tally.finish(individuals=False))
    if not number:
        raise InvalidInputError(_NO_CLIENT)
    length = min(asked.name_length or NAME_LENGTH, domain.max_length)
    wanted = Wanted(length, asked.allow_rare_names)
    plan = propose(asked.spec, domain, number, seed=seed, wanted=wanted).plan
    return _tried(source, Trial(plan, repeats, recovery, asked.seed), tally, encoder, seed, report)


def _tried(
    source: Source,
    trial: Trial,
    tally: Tally,
    encoder: Encoder,
    seed: bytes,
    report: Callable[..., None],
) -> TrialResult:
    """Simulate campaigns of a plan on clients that have been read already, and return the
    measurements.

    Args:
        source: the source, for its note on the data.
        trial: the campaigns to simulate.
        tally: the items of the clients.
        encoder: the candidates and, in an open domain, the strings.
        seed: the seed of the draws, 32 bytes.
        report: called with "simulate", the number of campaigns done, and the number of all
            campaigns.
    """
    plan = trial.study_plan
    is_private = plan.privacy is not None
    people = _joined(tally.finish(individuals=plan.max_items > 1))
    candidates = encoder.domain()
    _check(plan, trial.decoder, candidates, people)
    if not plan.vector.shares_counters:
        # The candidates of the source replace the candidates of the plan. Their number is the same,
        # and errors do not depend on their names.
        plan = replace(plan, domain=candidates.describe())
    rng, random = (
        np.random.default_rng(int.from_bytes(seed, "little")),
        key_bytes(trial.seed, b"noise"),
    )
    strings = encoder.names()
    measurements, unfit = [], 0
    for repeat, rounds in enumerate(_populations(people, trial, rng)):
        again, names = replace(plan, seed=rng.bytes(32)), None
        if isinstance(candidates, OpenStrings) and strings is not None:
            # With another seed, the strings have other hashes, and so other ids.
            candidates = candidates.with_seed(again.seed)
            names, rounds = _named_anew(strings, candidates, rounds)
        measurements.append(_measured(again, candidates, rounds, trial, repeat, random, names))
        unfit += not _fits(plan, rounds)
        report("simulate", repeat + 1, trial.repeats)
    # The error model holds only for campaigns that use all rounds.
    distribution = None if plan.stopping else _distribution(people, candidates)
    dropped = tally.dropped.told(is_private=is_private)
    lacking = [skipped(dropped, tally)] if dropped.incomplete else []
    warnings = _warnings(source, trial, lacking, unfit, distribution)
    predicted = None
    if strings is not None and distribution is not None and plan.target is not None:
        threshold = 2 * plan.target.linf
        length = _name_length(people, strings, threshold)
        predicted = names_of.predict(plan, distribution, threshold, length, spare=1.0)
    return TrialResult(
        trial,
        candidates,
        people.num_clients,
        distribution,
        tuple(measurements),
        tuple(warnings),
        predicted,
    )


def _named_anew(
    strings: Names, domain: OpenStrings, rounds: Sequence[RoundTally]
) -> tuple[Names, list[RoundTally]]:
    """Return the strings and the rounds with the ids that belong to the seed of `domain`."""
    names, ids = strings.rekeyed(domain)

    def anew(part: RoundTally) -> RoundTally:
        members = part.members
        if members is not None:
            own = ids[np.searchsorted(strings.ids, members.ids)]
            return tally_members(members._replace(ids=own))
        own = ids[np.searchsorted(strings.ids, part.ids)]
        order = np.argsort(own)
        return part._replace(ids=own[order], counts=part.counts[order])

    return names, [anew(part) for part in rounds]


def _name_length(people: RoundTally, strings: Names, threshold: float) -> int:
    """Return the 90 % quantile of the lengths of the frequent strings: bytes, at least 1.

    If no string is frequent, return `NAME_LENGTH`.

    Args:
        people: the clients of all rounds together.
        strings: the strings and their ids.
        threshold: a string is frequent if its frequency is above this.
    """
    frequent = people.ids[people.counts > threshold * people.num_clients]
    lengths = strings.lengths(frequent)
    return max(1, int(np.quantile(lengths, 0.9, method="higher"))) if len(lengths) else NAME_LENGTH


def _check(plan: Plan, recovery: str, domain: Domain, people: RoundTally) -> None:
    if domain.size != plan.domain_size:
        raise InvalidInputError(
            f"the plan is for a domain of {plan.domain_size:,} candidates, and the input has"
            f" {domain.size:,}; declare the plan's domain ({opt.domain}), or make a plan for this"
            " one"
        )
    if not people.num_clients:
        raise InvalidInputError(_NO_CLIENT)
    Decoding(recovery).check_domain(domain)


# ---- clients and rounds ----


def _joined(rounds: Sequence[RoundTally]) -> RoundTally:
    """Return the clients of all rounds together.

    Either all rounds or no rounds must have the items of each client (`members`). The result has
    them if the rounds have them.
    """
    members = [part.members for part in rounds if part.members is not None]
    if members:
        ids = np.concatenate([own.ids for own in members])
        sizes = np.concatenate([np.zeros(1, np.int64), *(np.diff(own.starts) for own in members)])
        return tally_members(Members(ids, np.cumsum(sizes)))
    histogram = Histogram()
    for part in rounds:
        histogram.add(part.ids, part.counts)
    return RoundTally(sum(part.num_clients for part in rounds), *histogram.finish())


def _populations(
    people: RoundTally, trial: Trial, rng: np.random.Generator
) -> Iterator[list[RoundTally]]:
    """Yield the rounds of each repeat, with as many clients and rounds as in the plan."""
    number, rounds = trial.plan.num_clients, trial.plan.num_rounds
    for _ in range(trial.repeats):
        if people.members is None:
            yield split(_drawn(people, number, rng), rounds, rng)
        else:
            own = people.num_clients
            clients = np.arange(own) if own == number else rng.integers(0, own, number)
            yield split_members(people.members, clients, rounds, rng)


def _drawn(people: RoundTally, number: int, rng: np.random.Generator) -> RoundTally:
    """Return `number` clients, drawn from `people` with replacement.

    Each client has at most one item. If `people` has exactly `number` clients, they are returned
    without a draw.
    """
    if people.num_clients == number:
        return people
    weights = np.append(people.counts, people.num_clients - people.counts.sum())
    counts = rng.multinomial(number, weights / people.num_clients)[:-1]
    return RoundTally(number, people.ids[counts > 0], counts[counts > 0])


def _fits(plan: Plan, rounds: Sequence[RoundTally]) -> bool:
    """Return whether a real campaign of the plan could have rounds of these sizes."""
    # The sum of a round that is too large overflows. A round that is too small has too little
    # noise.
    sizes = [part.num_clients for part in rounds]
    privacy = plan.privacy
    honest = 0
    if privacy is not None and plan.secure_sum is None:
        honest = privacy.event.honest_survivors or 0
    is_hidden = plan.clients.are_hidden(None if privacy is None else privacy.event.relation)
    return (max(sizes) <= plan.max_round_clients or is_hidden) and min(
        size for size in sizes if size
    ) >= honest


# ---- one campaign ----


def _measured(
    plan: Plan,
    domain: Domain,
    rounds: Sequence[RoundTally],
    trial: Trial,
    repeat: int,
    random: Random,
    names: Names | None,
) -> Measurement:
    contributed = clip_rounds(plan, rounds, random(32), names)
    sketches = [
        sketch
        for sketch in encode(plan, domain, contributed, lambda *_: None, names)
        if sketch.num_clients
    ]
    released = until_known(plan, domain, _noised(plan, sketches, random))
    held = None
    if plan.stopping is not None:  # in a plan that may end early, each sum has one round
        held = released[-1].round + 1
        rounds = rounds[:held]
    truth = true_counts(domain, rounds)
    result = Result(
        plan,
        domain,
        released,
        decoding=Decoding(trial.decoder, confidence=0.0),
        truth=truth,
    )
    found = result.evaluate(_LISTED if plan.is_open else 0)
    measured = Measurement(
        str(plan.schedule),
        plan.width,
        repeat,
        plan.bytes_per_client,
        found.linf,
        found.l2,
        rounds=held,
    )
    if isinstance(found, NameEvaluation):
        return measured._replace(
            strings=found.strings, recall=found.recall, named=found.named, wrong=found.wrong
        )
    return measured


def _noised(plan: Plan, sketches: list[CountSketch], random: Random) -> list[CountSketch]:
    """Return the released sums, with all noise of the plan, whoever adds it.

    Args:
        plan: the plan of the campaign.
        sketches: the sums of all rounds that have clients, without noise; they may be changed.
        random: a function that returns the requested number of uniform random bytes.
    """
    server = FrequencyServer(plan, MemoryBooks())
    summed = (
        _summed_with_noise(plan, sketches, random)
        if plan.protection.sums is Sums.NOISED
        else sketches
    )
    for sketch in summed:
        server.land_plain(sketch)
    return server.release(random)


def _summed_with_noise(
    plan: Plan, sketches: list[CountSketch], random: Random
) -> list[CountSketch]:
    """Return the sum of each release with the noise that clients or two servers add to it.

    The arguments are those of `_noised`.
    """
    opened = []
    for rounds in plan.releases:
        own = [sketch for sketch in sketches if sketch.round in rounds]
        if not own:
            continue
        total = own[0]
        for other in own[1:]:
            total.vector += other.vector
            total.num_clients += other.num_clients
        # The shares of noise of all clients together are one draw. Two servers make one draw each.
        for distribution in plan.protection.of_sum(total.num_clients):
            total.vector += distribution.draw(Secret(random(KEY_BYTES)), total.vector.size)
        total.noise = plan.noise_mark
        opened.append(total)
    return opened


# ---- what is said ----


def _distribution(people: RoundTally, domain: Domain) -> Frequencies | None:
    frequencies = people.counts / people.num_clients
    return (
        None
        if frequencies.sum() > 1 + 1e-9
        else Frequencies.from_frequencies(frequencies, domain.size)
    )


def _warnings(
    source: Source,
    trial: Trial,
    lacking: list[str],  # a note on rows without an item, or nothing
    unfit: int,
    distribution: Frequencies | None,
) -> list[str]:
    plan, target, notes = trial.plan, trial.plan.target, []
    if source.about:
        notes.append(source.about)
    if target is not None and target.recovery != trial.decoder:
        notes.append(
            f"the target of the plan is for {target.recovery} recovery, and this is {trial.decoder}"
        )
    if unfit:
        notes.append(
            f"in {unfit:,} of {trial.repeats:,} repeats a round drew more clients than the plan"
            f" allows ({plan.max_round_clients:,}), or fewer than its noise needs: such campaigns"
            " would not run; they are counted here"
        )
    if why := plan.why_not_all_land():
        notes.append(Note(f"these campaigns would not run: {why}"))
    if distribution is None:
        why = "clients hold several items each, and the error model is for one"
        if plan.stopping is not None:
            why = "campaigns end early, and the error model is for all rounds"
        notes.append(f"nothing is predicted: {why}")
    notes += lacking
    if kind_of(trial.decoder).finds_rare_items and plan.privacy is None:
        notes.append(RARE_ITEMS)
    return notes


def _bytes(plan: Plan, width: int) -> int:
    """Return how many bytes a client sends with another width, with as many bits per counter as the
    plan.
    """
    counters, cohorts, servers = plan.rows * width, plan.summing.cohorts, plan.summing.servers
    if cohorts is not None:
        wider = replace(cohorts.parameters, length=counters)
        return replace(cohorts, parameters=wider).upload_bytes
    if servers is None:
        return -(-counters * plan.modulus_bits // 8)
    # A proof adds the same number of bytes to a report of any width.
    added = 0 if plan.report_proof is None else plan.report_proof.added_bytes
    return replace(servers, length=counters).upload_bytes + added
