"""Schedules say which rounds share their hashes: locations (counters) and signs.

| schedule   | locations | signs                                   |
|------------|-----------|-----------------------------------------|
| shared     | one set   | one set                                 |
| fresh      | per round | per round                               |
| hybrid     | one set   | per round                               |
| batched:B  | one set   | per batch of consecutive rounds         |
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg

# These are not schedules yet: `fedtally.plan.rounds` replaces them by schedules.
AUTO = "auto"
BATCHED_AUTO = "batched:auto"


class ScheduleKind(Enum):
    """The closed list of the kinds of schedules."""

    SHARED = "shared"
    FRESH = "fresh"
    HYBRID = "hybrid"
    BATCHED = "batched"


# The kinds of schedules with different signs in each round. A plan with a calendar needs one of
# them, since the sum of each round is opened by itself.
OWN_HASHES = (ScheduleKind.HYBRID, ScheduleKind.FRESH)


@dataclass(frozen=True)
class Schedule:
    """Says which rounds share hashes: a kind, and for the kind `batched` a number of batches.

    >>> Schedule.parse("batched:4")
    Schedule(kind=<ScheduleKind.BATCHED: 'batched'>, batches=4)
    >>> str(Schedule.parse("hybrid"))
    'hybrid'
    """

    kind: ScheduleKind
    batches: int | None = None

    def __post_init__(self) -> None:
        if (self.kind is ScheduleKind.BATCHED) != (self.batches is not None):
            raise InvalidInputError(
                "batches belongs to the schedule batched, and it needs one: batched:4"
            )
        if self.batches is not None:
            validate.integer(1, **{"schedule batched:B: batches": self.batches})

    @classmethod
    def parse(cls, text: str | Schedule) -> Schedule:
        """Return the schedule that `text` names: shared, fresh, hybrid or batched:B.

        A `Schedule` is returned unchanged.

        Raises:
            InvalidInputError: the text names no schedule.
        """
        if isinstance(text, Schedule):
            return text
        name, colon, batches = str(text).partition(":")
        kinds = {kind.value: kind for kind in ScheduleKind}
        # `int` alone would also accept signs, spaces, underscores and digits of other scripts.
        if name == "batched" and re.fullmatch("[0-9]{1,9}", batches):
            return cls(ScheduleKind.BATCHED, int(batches))
        if name not in kinds or name == "batched" or colon:
            raise InvalidInputError(
                f"{arg.schedule} must be shared, fresh, hybrid or batched:B with B batches, got"
                f" {text!r}" + validate.did_you_mean(name, kinds)
            )
        return cls(kinds[name])

    def __str__(self) -> str:
        return self.kind.value if self.batches is None else f"{self.kind.value}:{self.batches}"

    def num_batches(self, num_rounds: int) -> int:
        """Return the number of batches in `num_rounds` rounds: groups of rounds with equal signs.

        It is 1 for the schedule shared, `num_rounds` for hybrid and fresh, and B for batched:B.

        Raises:
            InvalidInputError: the schedule has more batches than there are rounds.
        """
        if self.kind is ScheduleKind.SHARED:
            return 1
        if self.batches is None:  # fresh and hybrid
            return num_rounds
        if self.batches > num_rounds:
            raise InvalidInputError(
                "schedule batched:B: batches must be at most the number of rounds,"
                f" {num_rounds}, got {self.batches}"
            )
        return self.batches

    def batches_of(self, num_rounds: int) -> list[range]:
        """Return the rounds of each batch. The rounds of a batch are consecutive and share signs.

        >>> Schedule.parse("batched:3").batches_of(7)
        [range(0, 3), range(3, 5), range(5, 7)]
        """
        size, larger = divmod(num_rounds, self.num_batches(num_rounds))
        # the larger batches come first: min(batch, larger) of them stand before this batch
        starts = [
            batch * size + min(batch, larger) for batch in range(self.num_batches(num_rounds) + 1)
        ]
        return [range(*bounds) for bounds in pairwise(starts)]

    def batch_of(self, round: int, num_rounds: int) -> int:
        """Return the number of the batch that contains a round, 0 .. num_batches - 1.

        Batches are consecutive rounds. Their sizes differ by at most one, and larger batches come
        first.

        >>> [Schedule.parse("batched:3").batch_of(m, 7) for m in range(7)]
        [0, 0, 0, 1, 1, 2, 2]
        """
        # Computed, not looked up in `batches_of`: with 2^20 rounds this would make 2^20 ranges.
        size, larger = divmod(num_rounds, self.num_batches(num_rounds))
        in_larger = larger * (size + 1)
        return round // (size + 1) if round < in_larger else larger + (round - in_larger) // size
