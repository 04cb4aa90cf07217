"""The interface of decoders: the decoder itself, and facts about it that plans need beforehand."""

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
    """Estimates counts from the landed sums of a campaign: the sums of rounds that took place.

    Attributes:
        recovery: the decoder's name, a value of `fedtally.recovery.decoders.Recovery`.
        spec: the spec of the sketches.
        num_clients: the number of clients in all landed rounds; for a window, in its rounds.
    """

    recovery: ClassVar[str]
    spec: SketchSpec
    num_clients: int

    @abstractmethod
    def at(self, ids: U64) -> F64:
        """Return the estimated count of each id: float64 [n].

        A decoder of histograms raises InvalidInputError for an id that is no candidate.
        """

    @abstractmethod
    def range(self, first_id: int, count: int) -> F64:
        """Return the estimated counts of the ids from `first_id` on (mod 2^64): float64 [count].

        A decoder of histograms raises InvalidInputError if the range goes beyond the candidates.
        """

    @abstractmethod
    def noisy(self, candidates: Candidates) -> Noisy:
        """Return the values that the objective l2 shrinks towards 0, and their noise.

        Args:
            candidates: the candidate items.
        """

    @property
    def instead(self) -> CampaignDecoder:
        """The decoder whose estimates are returned if recovery is "auto"; usually this one.

        If belief propagation gave up, it is joint recovery. Joint recovery that gave up returns
        itself, since it gives the median's estimates.
        """
        return self

    @property
    def found(self) -> FoundFit | None:
        """The result of the fit, with which a later decoder of the same sums is faster.

        It is None if the decoder keeps no such result.
        """
        return None

    @property
    def heavy_ids(self) -> U64:
        """The ids that stand out of the noise: uint64 [n].

        The array is empty if the decoder does not search for such ids.
        """
        return np.empty(0, np.uint64)

    def notes(self) -> Iterator[str]:
        """Yield notes for readers of the estimates, such as why another decoder answered."""
        yield from ()


class Measured(NamedTuple):
    """The values of items' counts before any prior is applied, in clients: float64 [n] each.

    Attributes:
        value: the item's count plus an error that is nearly normal.
        stddev: the standard deviation of this error.
    """

    value: F64
    stddev: F64


class FittedDecoder(CampaignDecoder):
    """A decoder that fits all batches of rounds and can then estimate the counts in some of them.

    A batch is a group of rounds with equal hashes.

    A caller may choose some batches, a window. The fit is always that of all batches. But a value
    in a window is measured in the window's own sums, less what the fit explains of them. So its
    random error comes from the window's batches only: from collisions, whose signs differ from
    batch to batch, and from noise.

    Attributes:
        batches: the numbers of the batches, ascending.
        clients: float64 [batches], the number of clients in each batch.
    """

    batches: list[int]
    clients: F64

    @property
    @abstractmethod
    def has_fit(self) -> bool:
        """Whether windows can be decoded; False if the fit was given up and the median answers."""

    @abstractmethod
    def measured(self, ids: Ids) -> Measured:
        """Return a noisy value of each id's count, and the standard deviation of its error.

        Both are in clients. No prior is applied.
        """

    @abstractmethod
    def window(self, chosen: Bools, learned: bool = True) -> FittedDecoder:
        """Return a decoder of the counts in some batches that uses the fit of all batches.

        Phantoms, ids that nobody holds, calibrate the errors in the window again.

        Args:
            chosen: bool [batches], which batches are in the window; at least one has clients.
            learned: True if the new decoder must give estimates and limits. False takes less time:
                then only its `measured` may be used. Its errors may be larger, because items that
                stand out only in the window are not fitted.
        """


class Make(Protocol):
    """The type of functions that make a decoder; they ignore arguments that they do not need."""

    def __call__(
        self,
        sketches: Sequence[CountSketch],
        domain: Domain,
        *,
        progress: Progress | None = None,
        terms: PrivacyConfig | None = None,
        found: FoundFit | None = None,
    ) -> CampaignDecoder:
        """Return a decoder of landed sums.

        Args:
            sketches: the landed sums.
            domain: the candidates.
            progress: called with the number of candidates that were decoded, counted once for each
                look at all candidates, and about the number to decode in all. It may count from 0
                again, when a fit is repeated.
            terms: the privacy terms of the plan. Only they say how much noise a histogram has; the
                sums of a sketch show it themselves.
            found: the result `CampaignDecoder.found` of an earlier decoder of the same sums.
        """


@dataclass(frozen=True, kw_only=True)
class DecoderFacts:
    """The facts about a decoder that are known without sums; "auto" and the planner use them.

    Attributes:
        fits_items: whether it finds the heavy items and fits them together. Such a decoder looks at
            each candidate, so the domain must be enumerable. It also finds rare items. Its error
            rises sharply if the width is too small for the items. More and shorter rows, with the
            same number of bytes, hardly change its error.
        largest_support: the most items that it fits, as a share of the number of counters of a
            sketch: with one batch of rounds, and with several.
        has_collisions: whether items share counters, so that their errors depend on each other.
        most_candidates: the most candidates for which "auto" chooses it. If several decoders are
            possible, "auto" chooses the one for which this number is smallest.
        most_messages: the largest product of candidates, rows and batches for which "auto" chooses
            it.
        auto_rows: the fewest rows for which "auto" chooses it.
        fewest_cells: the fewest cells, in all batches together, for which it answers itself.
        rests_on: the name of another decoder whose predicted error a plan uses in place of this
            one's, or "". This decoder's own error depends on how many items are rare, and how rare,
            which may be unknown. Besides, the other decoder answers in small sketches.
        planned_rows: the numbers of rows that a planner tries. With fewer rows the error is not
            predicted well.
        usual_rows: the number of rows in a quick search.
        schedules: the schedules that a planner tries for several rounds. If noise is added to each
            sum that is opened, it tries other schedules (`plan.rounds.possible_schedules`).
        on_even_rows: a note to the reader if the number of rows is even; "": none.
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
        """Whether estimates show rare items too, such as items that only a few clients hold."""
        return self.fits_items or not self.has_collisions


@dataclass(frozen=True, kw_only=True)
class DecoderKind(DecoderFacts):
    """All facts about a decoder, and the functions for its intervals, predictions and costs.

    Attributes:
        decoder: the class of the decoder.
        make: makes a decoder.
        limits: makes the intervals of its estimates. Arguments: a decoder, its sums, the domain,
            the confidence, and the kind of intervals as in `intervals.make_intervals`.
        predict: predicts the error. Arguments: ascending frequencies, the sizes of the sums, the
            number of items of each frequency, and the probability with which the largest error
            exceeds the result's `linf`.
        failure: predicts the probability that the largest error exceeds a size. Its last argument
            is this size, a frequency above 0; the others are the first three of `predict`.
        work: counts the operations of decoding the sums and estimating every candidate.
        held_bytes: returns the bytes of memory besides the estimates. Arguments: the numbers of
            candidates, rows and batches.
    """

    decoder: type[CampaignDecoder]
    make: Make
    limits: Callable[[Any, Sequence[CountSketch], Domain, float, str], Intervals]
    predict: Callable[[F64, Sums, F64, float], Prediction]
    failure: Callable[[F64, Sums, F64, float], float]
    work: Callable[[Task], Work]
    held_bytes: Callable[[int, int, int], int] = lambda candidates, rows, batches: 0
