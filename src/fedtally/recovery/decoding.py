"""Chooses a decoder and the form of its answer: objective, confidence and kind of intervals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, MemoryLimitError, Note, arg, opt
from fedtally.options import Answer
from fedtally.recovery.decoders import USUAL, Recovery
from fedtally.recovery.decoders.kind import CampaignDecoder, DecoderKind
from fedtally.recovery.limits import KINDS

AUTO = "auto"
RECOVERIES = (AUTO, *Recovery)
OBJECTIVES = ("linf", "l2")
# The most candidates that are enumerated, which takes minutes. For larger domains, users must name
# the items whose counts they want.
MAX_ENUMERATED = 2**36


def kind_of(recovery: str) -> DecoderKind:
    """Return the facts and functions of the decoder with a given name.

    Raises:
        InvalidInputError: there is no such decoder.

    >>> kind_of("median").usual_rows
    15
    """
    return Recovery.parse(recovery).kind


def kind_of_decoder(decoder: CampaignDecoder) -> DecoderKind:
    """Return the facts and functions of a decoder's kind.

    Raises:
        InvalidInputError: `decoder` is no `CampaignDecoder`, or no registered decoder has its name.
    """
    if not isinstance(decoder, CampaignDecoder):
        known = " or ".join(name.kind.decoder.__name__ for name in Recovery)
        raise InvalidInputError(f"decoder must be a {known}, got {type(decoder).__name__}")
    return kind_of(decoder.recovery)


def recovery_of(
    recovery: str,
    domain_size: int,
    rows: int,
    encoding: Encoding = Encoding.SKETCH,
    *,
    batches: int = 1,
    planned: bool = False,
) -> Recovery:
    """Return the decoder that a name stands for; "auto" chooses by the sizes of the task.

    Args:
        recovery: the name of a decoder, or "auto".
        domain_size: the number of candidates.
        rows: the number of rows of the sketch.
        encoding: how items become counters.
        batches: the number of batches that will be decoded. A batch is a run of rounds with the
            same signs.
        planned: True if the decoder is also to predict the error of a plan, or if the domain is
            open. Then "auto" never chooses belief propagation.

    Raises:
        InvalidInputError: the named decoder is unknown, needs more rows, or is for another
            encoding; or "auto" is to decode a histogram with more than 2^24 candidates.

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
    of_encoding = [name for name in Recovery if name.encoding is encoding]
    most = max(name.kind.most_candidates for name in of_encoding)
    if domain_size > most:
        raise InvalidInputError(
            f"a {encoding} has at most {most:,} candidates, got {domain_size:,}: take the"
            " encoding sketch"
        )
    return next(
        name
        for name in sorted(of_encoding, key=lambda one: one.kind.most_candidates)
        if domain_size <= name.kind.most_candidates
        and domain_size * rows * batches <= name.kind.most_messages
        and rows >= name.kind.auto_rows
        and not (planned and name.kind.rests_on)
    )


def resting() -> list[Recovery]:
    """Return the decoders for which a plan uses the predicted error of another decoder.

    See `DecoderFacts.rests_on`.

    >>> [str(name) for name in resting()]
    ['belief']
    """
    return [name for name in Recovery if name.kind.rests_on]


def notes_on_choice(recovery: str, rows: int, candidates: int) -> Iterator[str]:
    """Yield notes for the user if the median decodes, and if it is less accurate than possible.

    There is a note if the number of rows is even. There is another note if joint recovery, which is
    more accurate, is not the default because there are too few rows, or too many candidates that
    could still be enumerated. For decoders other than the median there are no notes.

    Args:
        recovery: the decoder that is used; "auto" is not allowed.
        rows: the number of rows of the sketch.
        candidates: the number of candidates.
    """
    kind, usual = kind_of(recovery), USUAL.kind
    if kind.on_even_rows and rows % 2 == 0:
        yield f"{rows} rows: {kind.on_even_rows}"
    if kind.finds_rare_items:
        return
    if rows < USUAL.fewest_rows:
        yield (
            f"with fewer than {USUAL.fewest_rows} rows the paper's decoder is used: {USUAL}"
            " recovery, several times as accurate, needs more"
        )
    elif usual.most_candidates < candidates <= MAX_ENUMERATED:
        yield Note(
            f"more than {usual.most_candidates:,} candidates: by default the paper's decoder is"
            f" used; {USUAL} recovery ({opt.recovery(USUAL)}) is several times as accurate and"
            " takes longer"
        )


@dataclass(frozen=True)
class Decoding:
    """The choices that turn landed sums, the sums of rounds that took place, into an answer.

    For a histogram, the recovery "auto" takes `direct`. For sketches, it takes the first of these
    decoders whose conditions all hold:

    - Belief propagation: the domain is not open; at most 2^17 candidates; at least 5 rows;
      candidates x rows x batches is at most 2^24.
    - Joint recovery: at most 2^28 candidates; at least 3 rows.
    - The median: no condition.

    Args:
        recovery: a decoder's name, or "auto".
        objective: "linf": return the estimates as they are. "l2": shrink them towards 0, so that
            the sum of squared errors is small.
        confidence: the confidence of the intervals, below 1; 0: no intervals.
        intervals: "auto", "pointwise" or "simultaneous": see `recovery.intervals.make_intervals`.

    Raises:
        InvalidInputError: a value is not allowed.

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

    def check_rows(self, rows: int) -> None:
        """Raise InvalidInputError if the named decoder needs more than `rows`; never for "auto"."""
        if self.recovery != AUTO:
            Recovery(self.recovery).check_rows(rows)

    def check_domain(self, domain: Domain | None) -> None:
        """Raise MemoryLimitError if the domain is too large, and the choices need to enumerate it.

        Objective "l2" enumerates the domain, and so do decoders that fit items
        (`DecoderFacts.fits_items`). A domain of None is not known yet and is not checked.

        >>> from fedtally.domain import IntegerRange
        >>> Decoding("median").check_domain(IntegerRange(1, 10**12))
        """
        fits_items = self.recovery != AUTO and kind_of(self.recovery).fits_items
        if domain is not None and (fits_items or self.objective == "l2"):
            check_enumerable(domain)


def named_kind(intervals: str) -> str:
    """Return the kind of intervals for items that the user named, given the option `intervals`.

    For the option "auto" it is "pointwise". Other values of the option are returned unchanged.

    >>> named_kind("auto")
    'pointwise'
    """
    return "pointwise" if intervals == "auto" else intervals


def listed_kind(intervals: str) -> str:
    """Return how answers name the kind of intervals for a list of the largest estimates.

    For the option "auto" it is "selective", which is no value of the option. Other values of the
    option are returned unchanged.

    >>> listed_kind("auto")
    'selective'
    """
    return "selective" if intervals == "auto" else intervals


def check_enumerable(domain: Domain) -> None:
    """Raise MemoryLimitError if a domain has more than MAX_ENUMERATED candidates."""
    if domain.size > MAX_ENUMERATED:
        raise MemoryLimitError(
            f"a domain of {domain.size:,} candidates is too large to enumerate (at most"
            f" {MAX_ENUMERATED:,}); name the items of interest ({opt.query}) under median recovery"
            " and objective linf, or declare a smaller domain"
        )
