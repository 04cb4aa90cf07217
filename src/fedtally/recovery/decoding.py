"""The registry of the decoders: `DECODERS` holds all that other modules must know of each.

To add a decoder, write its file beside this one, add its name to `fedtally.sketch.Recovery`, its
entry to `DECODERS`, its place to `_PREFERRED`, and its error to `error_model.MODELS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, MemoryLimitError, arg, opt
from fedtally.kernels import MAX_WIDTH
from fedtally.options import Answer
from fedtally.recovery.decoders.belief.belief import MANY_ROWS, MOST_MESSAGES, BeliefDecoder
from fedtally.recovery.decoders.belief.belief_intervals import BeliefIntervals
from fedtally.recovery.decoders.direct import DirectDecoder, DirectIntervals, NoiseLaw
from fedtally.recovery.decoders.joint.joint import JointDecoder
from fedtally.recovery.decoders.joint.joint_intervals import JointIntervals, Kappa, kappa_of
from fedtally.recovery.decoders.median.median import MedianDecoder
from fedtally.recovery.decoders.median.median_intervals import MedianIntervals
from fedtally.recovery.limits import KINDS, Intervals
from fedtally.recovery.linear_system import Landed
from fedtally.sketch import CountSketch, Recovery

if TYPE_CHECKING:
    from fedtally.privacy.config import PrivacyConfig

AUTO = "auto"
RECOVERIES = (AUTO, *Recovery)
OBJECTIVES = ("linf", "l2")
# Candidates up to which "auto" is joint recovery: it looks at all of them, for about a minute.
MAX_JOINT = 1 << 28
# Candidates up to which "auto" is belief propagation: about so many were measured. Of real tables
# with more, which have few items that stand out, messages mostly gain nothing (docs/recovery.md).
MAX_BELIEF = 1 << 17
# Candidates up to which a domain is enumerated: minutes of decoding. In larger domains items must
# be named.
MAX_ENUMERATED = 2**36
# The most candidates that the paper's decoder prepares for.
_MAX_EXPECTED = 1 << 24
Progress = Callable[[int, int], None]
AnyDecoder = MedianDecoder | JointDecoder | BeliefDecoder | DirectDecoder


@dataclass(frozen=True, kw_only=True)
class DecoderKind:
    """The entry of a decoder in the registry.

    Attributes:
        decoder: its class.
        make: makes it from landed sums, the candidates, a function that is called with (looks
            done, all looks), and the privacy terms of the plan: they alone say how much noise is in
            a histogram, while the sums of a sketch show theirs.
        limits: makes the intervals of its estimates from the decoder, its sums, the candidates, the
            confidence, and a kind as for `intervals.make_intervals`.
        fits_items: whether it finds the heavy items and fits them together. Such a decoder looks at
            every candidate, so that the domain must be enumerable. It finds rare items, too. Its
            error jumps near the width that the items need. More rows of the same bytes
            change its error little.
        has_collisions: whether items share counters, so that their errors depend on each other.
        most_candidates: the candidates up to which "auto" takes it.
        most_messages: the product of candidates, rows and batches up to which "auto" takes it.
        auto_rows: the rows from which on "auto" takes it.
        needs_shape: whether its error depends on how many items are rare, and how rare. A plan does
            not know that, so that "auto" is another decoder there.
        planned_rows: the rows among which a planner searches. With fewer rows the error is not
            predicted well.
        usual_rows: the rows of a quick search.
        schedules: the schedules that a planner tries for several rounds whose sums are exact.
    """

    decoder: type[AnyDecoder]
    make: Callable[
        [Sequence[CountSketch], Domain, Progress | None, PrivacyConfig | None], AnyDecoder
    ]
    limits: Callable[[Any, Sequence[CountSketch], Domain, float, str], Intervals]
    fits_items: bool
    has_collisions: bool = True
    most_candidates: int
    most_messages: float = math.inf
    auto_rows: int
    needs_shape: bool = False
    planned_rows: range
    usual_rows: int
    schedules: tuple[str, ...]


def _make_belief(
    sketches: Sequence[CountSketch],
    domain: Domain,
    progress: Progress | None,
    terms: PrivacyConfig | None,
) -> BeliefDecoder:
    return BeliefDecoder(sketches, domain, progress)


def _make_joint(
    sketches: Sequence[CountSketch],
    domain: Domain,
    progress: Progress | None,
    terms: PrivacyConfig | None,
) -> JointDecoder:
    return JointDecoder(sketches, domain, progress)


def _make_median(
    sketches: Sequence[CountSketch],
    domain: Domain,
    progress: Progress | None,
    terms: PrivacyConfig | None,
) -> MedianDecoder:
    return MedianDecoder(sketches, expected=min(domain.size, _MAX_EXPECTED))


def _make_direct(
    sketches: Sequence[CountSketch],
    domain: Domain,
    progress: Progress | None,
    terms: PrivacyConfig | None,
) -> DirectDecoder:
    return DirectDecoder(sketches, NoiseLaw.of(terms, sketches))


def _limits_of_direct(
    decoder: DirectDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float,
    kind: str,
) -> Intervals:
    return DirectIntervals(decoder, domain.size, confidence, kind)


def _limits_of_belief(
    decoder: BeliefDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float,
    kind: str,
) -> Intervals:
    if decoder.fallback:
        return _limits_of_joint(decoder.joint, sketches, domain, confidence, kind)
    return BeliefIntervals(decoder, confidence, domain.size, kind)


def _limits_of_joint(
    decoder: JointDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float,
    kind: str,
) -> Intervals:
    if decoder.fallback is None:
        # Kappa and the largest error take passes over all candidates, and depend on the fit alone.
        kappa = kappa_of(decoder.fit) if decoder.kappa is None else Kappa(*decoder.kappa)
        made = JointIntervals(
            decoder.fit, confidence, domain.size, kappa, kind, decoder.largest_error
        )
        decoder.kappa = (kappa.value, kappa.source)
        decoder.largest_error = made.predicted_linf
        return made
    # The fit was given up and the median answers, so its errors are those of the median.
    median = MedianDecoder(sketches, expected=domain.size)
    return _limits_of_median(median, sketches, domain, confidence, kind)


def _limits_of_median(
    decoder: MedianDecoder,
    sketches: Sequence[CountSketch],
    domain: Domain,
    confidence: float,
    kind: str,
) -> Intervals:
    landed = Landed(decoder.spec, sketches)
    return MedianIntervals([decoder], [landed], domain, confidence, kind)


DECODERS: Mapping[Recovery, DecoderKind] = MappingProxyType(
    {
        Recovery.JOINT: DecoderKind(
            decoder=JointDecoder,
            make=_make_joint,
            limits=_limits_of_joint,
            fits_items=True,
            most_candidates=MAX_JOINT,
            auto_rows=Recovery.JOINT.fewest_rows,
            planned_rows=range(7, 17),
            usual_rows=7,
            schedules=("hybrid",),
        ),
        Recovery.MEDIAN: DecoderKind(
            decoder=MedianDecoder,
            make=_make_median,
            limits=_limits_of_median,
            fits_items=False,
            most_candidates=2**64,
            auto_rows=Recovery.MEDIAN.fewest_rows,
            planned_rows=range(3, 32),
            usual_rows=15,
            schedules=("hybrid", "fresh"),
        ),
        # The rows are those of joint recovery, which answers where beliefs are not better.
        Recovery.BELIEF: DecoderKind(
            decoder=BeliefDecoder,
            make=_make_belief,
            limits=_limits_of_belief,
            fits_items=True,
            most_candidates=MAX_BELIEF,
            most_messages=MOST_MESSAGES,  # with more, only some candidates send messages
            auto_rows=MANY_ROWS,
            needs_shape=True,
            planned_rows=range(7, 17),
            usual_rows=7,
            schedules=("hybrid",),
        ),
        Recovery.DIRECT: DecoderKind(
            decoder=DirectDecoder,
            make=_make_direct,
            limits=_limits_of_direct,
            fits_items=False,
            has_collisions=False,
            most_candidates=MAX_WIDTH,
            auto_rows=Recovery.DIRECT.fewest_rows,
            planned_rows=range(1, 2),
            usual_rows=1,
            schedules=("shared",),
        ),
    }
)
# "auto" is the first that allows so many candidates and so few rows.
_PREFERRED = (Recovery.BELIEF, Recovery.JOINT, Recovery.MEDIAN, Recovery.DIRECT)


def kind_of(recovery: str) -> DecoderKind:
    """Return the registry's entry of the decoder of that name.

    Raises:
        InvalidInputError: there is no such decoder.

    >>> kind_of("median").usual_rows
    15
    """
    return DECODERS[Recovery.parse(recovery)]


def kind_of_decoder(decoder: object) -> DecoderKind:
    """Return the registry's entry of a decoder.

    Raises:
        InvalidInputError: the registry has no entry of its class.
    """
    for kind in DECODERS.values():
        if isinstance(decoder, kind.decoder):
            return kind
    known = " or ".join(kind.decoder.__name__ for kind in DECODERS.values())
    raise InvalidInputError(f"decoder must be a {known}, got {type(decoder).__name__}")


def recovery_of(
    recovery: str,
    domain_size: int,
    rows: int,
    encoding: Encoding = Encoding.SKETCH,
    *,
    batches: int = 1,
    planned: bool = False,
) -> Recovery:
    """Return the decoder that is used where a decoder's name, or "auto", was asked for.

    Args:
        recovery: what was asked for.
        domain_size: candidates.
        rows: of the sketch.
        encoding: how items become counters.
        batches: of rounds.
        planned: whether it is the decoder whose error a plan rests on, or an open domain's: there
            "auto" is no belief propagation.

    Raises:
        InvalidInputError: there is no such decoder, it needs more rows, or it is for another
            encoding.

    >>> [str(recovery_of("auto", 1000, rows)) for rows in (5, 4, 2)]
    ['belief', 'joint', 'median']
    >>> str(recovery_of("auto", 1000, 5, planned=True))
    'joint'
    >>> [str(recovery_of("auto", 120_000, 16, batches=batches)) for batches in (5, 10)]
    ['belief', 'joint']
    """
    if recovery != AUTO:
        found = Recovery.parse(recovery)
        found.check_encoding(encoding)
        found.check_rows(rows)
        return found
    return next(
        name
        for name, kind in ((name, DECODERS[name]) for name in _PREFERRED)
        if name.encoding is encoding
        and domain_size <= kind.most_candidates
        and domain_size * rows * batches <= kind.most_messages
        and rows >= kind.auto_rows
        and not (planned and kind.needs_shape)
    )


@dataclass(frozen=True)
class Decoding:
    """The way from landed sums to an answer.

    Args:
        recovery: a decoder's name, or "auto". With "auto" it is belief propagation for up to 2^17
            candidates, and 2^24 of candidates x rows x batches, from 5 rows on, and joint recovery
            for up to 2^28 candidates from 3 rows on.
        objective: "linf" for estimates as they are, or "l2" for estimates that are shrunk towards
            0, so that the sum of squared errors is small.
        confidence: of the intervals, below 1; 0 for no intervals.
        intervals: "auto", "pointwise" or "simultaneous": see `recovery.intervals.make_intervals`.

    Raises:
        InvalidInputError: a value is none of these.

    >>> Decoding(confidence=95)
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: confidence must be at least 0 (no intervals) and below 1, ...
    """

    recovery: str = Answer.recovery
    objective: str = Answer.objective
    confidence: float = Answer.confidence
    intervals: str = Answer.intervals

    def __post_init__(self) -> None:
        for name, known in (
            ("recovery", RECOVERIES),
            ("objective", OBJECTIVES),
            ("intervals", KINDS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise InvalidInputError(
                    f"{arg[name]} must be {', '.join(known[:-1])} or {known[-1]}, got {value!r}"
                    + validate.did_you_mean(str(value), map(str, known))
                )
        confidence = validate.real(confidence=self.confidence)
        if not 0 <= confidence < 1:
            raise InvalidInputError(
                f"{arg.confidence} must be at least 0 (no intervals) and below 1, got"
                f" {self.confidence!r}{validate.as_share(confidence)}"
            )
        object.__setattr__(self, "confidence", confidence)

    def resolved(
        self,
        domain_size: int,
        rows: int,
        encoding: Encoding = Encoding.SKETCH,
        *,
        batches: int = 1,
        planned: bool = False,
    ) -> Decoding:
        """Return the same settings, with "auto" replaced by the decoder that is used.

        Arguments are those of `recovery_of`.

        Raises:
            InvalidInputError: the decoder that was asked for needs more rows, or is for another
                encoding.
        """
        found = recovery_of(
            self.recovery, domain_size, rows, encoding, batches=batches, planned=planned
        )
        return replace(self, recovery=str(found))

    def check_rows(self, rows: int) -> None:
        """Raise InvalidInputError if the decoder that was asked for needs more rows."""
        if self.recovery != AUTO:
            Recovery(self.recovery).check_rows(rows)

    def check_domain(self, domain: Domain | None) -> None:
        """Raise MemoryLimitError if the domain must be enumerated and is too large for that.

        A domain that is None is not known yet, and not checked.

        >>> from fedtally.domain import IntegerRange
        >>> Decoding("median").check_domain(IntegerRange(1, 10**12))
        """
        fits_items = self.recovery != AUTO and kind_of(self.recovery).fits_items
        if domain is not None and (fits_items or self.objective == "l2"):
            check_enumerable(domain)


def named_kind(intervals: str) -> str:
    """Return the kind of the intervals that named items get.

    >>> named_kind("auto")
    'pointwise'
    """
    return "pointwise" if intervals == "auto" else intervals


def listed_kind(intervals: str) -> str:
    """Return the kind of the intervals that a list of the largest estimates gets.

    >>> listed_kind("auto")
    'selective'
    """
    return "selective" if intervals == "auto" else intervals


def check_enumerable(domain: Domain) -> None:
    """Raise MemoryLimitError if a domain is too large to enumerate."""
    if domain.size > MAX_ENUMERATED:
        raise MemoryLimitError(
            f"a domain of {domain.size:,} candidates is too large to enumerate (at most"
            f" {MAX_ENUMERATED:,}); name the items of interest ({opt.query}) under median recovery"
            " and objective linf, or declare a smaller domain"
        )
