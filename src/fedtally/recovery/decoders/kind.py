"""The interface of decoders: facts that are known before there are sums, and the decoder itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

import numpy as np

from fedtally.domain import Domain
from fedtally.recovery.decoders.work import Task, Work
from fedtally.recovery.found import FoundFit
from fedtally.recovery.limits import Intervals
from fedtally.recovery.linear_system import U64, Bools, Candidates, Ids
from fedtally.recovery.shrinkage import Noisy
from fedtally.recovery.sums import F64, Prediction, Sums
from fedtally.sketch import CountSketch, SketchSpec

if TYPE_CHECKING:
    from fedtally.privacy.config import PrivacyConfig

Progress = Callable[[int, int], None]


class CampaignDecoder(ABC):
    """Reads the landed sums of a campaign.

    Attributes:
        recovery: the decoder's name, as in `fedtally.recovery.decoders.Recovery`.
        spec: the spec of the sketches.
        num_clients: the clients of all landed rounds.
    """

    recovery: ClassVar[str]
    spec: SketchSpec
    num_clients: int

    @abstractmethod
    def at(self, ids: U64) -> F64:
        """Return the estimated counts of chosen ids: float64 [n]."""

    @abstractmethod
    def range(self, first_id: int, count: int) -> F64:
        """Return the estimated counts of the ids from `first_id` on (mod 2^64): float64 [count]."""

    @abstractmethod
    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the values that objective l2 shrinks, and their noise.

        Args:
            candidates: the candidate items.
        """

    @property
    def instead(self) -> CampaignDecoder:
        """The decoder whose estimates recovery "auto" returns: this one, unless it gave up."""
        return self

    @property
    def found(self) -> FoundFit | None:
        """The result of the fit, for a later decoder of the same sums to reuse; None: nothing."""
        return None

    @property
    def heavy_ids(self) -> U64:
        """The ids that stand out of the noise: uint64 [n]; empty if the decoder looks for none."""
        return np.empty(0, np.uint64)

    def notes(self) -> Iterator[str]:
        """Yield notes for the reader of the estimates, such as why another decoder answered."""
        yield from ()


class Measured(NamedTuple):
    """Values of items, to which no prior was applied: float64 [n] each, in clients.

    Attributes:
        value: the item's count plus an error that is nearly normal.
        stddev: standard deviation of the error.
    """

    value: F64
    stddev: F64


class FittedDecoder(CampaignDecoder):
    """A decoder whose fit of many batches of rounds also gives the counts in some of them.

    Some of the batches are a window. The window's values rest on what the fit knows of all batches,
    but their errors come from the window's own signs.

    Attributes:
        batches: the batches of the fit, rising.
        clients: float64 [batches], the clients of each.
    """

    batches: list[int]
    clients: F64

    @property
    @abstractmethod
    def has_fit(self) -> bool:
        """Whether a fit answers, so that there are windows."""

    @abstractmethod
    def measured(self, ids: Ids) -> Measured:
        """Return the values of any ids and the standard deviations of their errors."""

    @abstractmethod
    def window(self, chosen: Bools, learned: bool = True) -> FittedDecoder:
        """Return a decoder of the counts in some batches, which rests on the fit of all batches.

        Its `measured`, and its limits, are calibrated by phantoms of its own.

        Args:
            chosen: bool [batches], at least one with clients.
            learned: whether the new decoder must give estimates and limits; False: it gives
                `measured` alone, which takes less time. Then the errors may be larger, since items
                that stand out in the window alone are not fitted.
        """


class Make(Protocol):
    """A function that makes a decoder, and ignores the named arguments that it does not need."""

    def __call__(
        self,
        sketches: Sequence[CountSketch],
        domain: Domain,
        *,
        progress: Progress | None = None,
        terms: PrivacyConfig | None = None,
        found: FoundFit | None = None,
    ) -> CampaignDecoder:
        """Return the decoder of landed sums.

        Args:
            sketches: the landed sums.
            domain: the candidates.
            progress: called with (looks done, all looks).
            terms: the privacy terms of the plan: they alone say how much noise is in a histogram,
                while the sums of a sketch show theirs.
            found: what `CampaignDecoder.found` said of the same sums.
        """


@dataclass(frozen=True, kw_only=True)
class DecoderFacts:
    """The facts of a decoder that are known before there are sums; "auto" and the planner use them.

    Attributes:
        fits_items: whether it finds the heavy items and fits them together. Such a decoder looks at
            every candidate, so that the domain must be enumerable. It finds rare items, too. Its
            error jumps near the width that the items need. More rows of the same bytes
            change its error little.
        largest_support: the most items that it fits, as a share of the counters of a sketch: with
            one batch of rounds, and with several.
        has_collisions: whether items share counters, so that their errors depend on each other.
        most_candidates: the most candidates for which "auto" chooses the decoder. Of several
            decoders that are possible, "auto" chooses the one with the smallest number here. 0:
            "auto" never chooses the decoder.
        most_messages: the largest product of candidates, rows and batches for which "auto" chooses
            the decoder.
        auto_rows: the fewest rows for which "auto" chooses the decoder.
        fewest_cells: the fewest cells, in all batches together, for which the decoder itself
            answers.
        rests_on: the decoder whose predicted error a plan uses instead. This decoder's own error
            depends on how many items are rare, and how rare, which may be unknown. In small
            sketches the other decoder also answers. "": a plan can use this decoder's own error.
        planned_rows: the rows among which a planner searches. With fewer rows the error is not
            predicted well.
        usual_rows: the rows of a quick search.
        schedules: the schedules that a planner tries for several rounds whose sums are exact.
        on_even_rows: a note for the reader if the number of rows is even; "": none.
    """

    fits_items: bool = False
    largest_support: tuple[float, float] = (0.0, 0.0)
    has_collisions: bool = True
    most_candidates: int
    most_messages: float = math.inf
    auto_rows: int
    fewest_cells: int = 0
    rests_on: str = ""
    planned_rows: range
    usual_rows: int
    schedules: tuple[str, ...]
    on_even_rows: str = ""

    @property
    def finds_rare_items(self) -> bool:
        """Whether the estimates show rare items, such as those of a few clients."""
        return self.fits_items or not self.has_collisions


@dataclass(frozen=True, kw_only=True)
class DecoderKind(DecoderFacts):
    """All that others must know of a decoder, and what makes it, its limits and its predictions.

    Attributes:
        decoder: its class.
        make: makes it.
        limits: makes the intervals of its estimates from the decoder, its sums, the candidates, the
            confidence, and a kind as for `intervals.make_intervals`.
        predict: predicts the error from rising frequencies, the sums in numbers, the number of
            items of each frequency, and the probability with which the largest error exceeds
            `linf`.
        failure: predicts the probability that the largest error exceeds a size; it takes the size,
            above 0, in place of the probability.
        work: counts the operations of decoding, from the sums to an estimate of every candidate.
        held_bytes: bytes of memory besides its estimates, from the numbers of candidates, rows and
            batches.
    """

    decoder: type[CampaignDecoder]
    make: Make
    limits: Callable[[Any, Sequence[CountSketch], Domain, float, str], Intervals]
    predict: Callable[[F64, Sums, F64, float], Prediction]
    failure: Callable[[F64, Sums, F64, float], float]
    work: Callable[[Task], Work]
    held_bytes: Callable[[int, int, int], int] = lambda candidates, rows, batches: 0
