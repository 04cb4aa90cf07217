"""The cost of decoding: the number of operations of each kind, and the CPU seconds of each.

The numbers follow from the decoder, the sizes of the sums, the number of candidates and the
kernels, so they are known before any round has taken place. The times are those of one reference
host. `fedtally.plan.costs` adds the times up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from fedtally import kernels
from fedtally.sketch.hashing import SIGNS_PER_GROUP

Work = Mapping[str, float]


class Operation(NamedTuple):
    """A kind of operation in decoding, in words, and its CPU seconds on a reference host."""

    about: str
    seconds: float


OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "decoder": Operation("a decoder made", 4.3e-05),
        "pattern": Operation("a sum of counters that a decoder tabulates", 2.4e-09),
        "gather": Operation("a look at a counter, in units of one in the nearest cache", 2.9e-10),
        "hash": Operation("a candidate hashed for one row", 3e-10),
        "fit": Operation("a joint fit begun and settled, whatever its size", 0.01),
        "candidate": Operation("a candidate looked at by joint recovery", 8.2e-10),
        "belief": Operation("a message of belief propagation, in one repetition", 5.3e-09),
        "prior": Operation("a repetition of belief propagation, besides its messages", 0.0066),
        "place": Operation("a cell of a fitted item found, and how many others share it", 5.8e-08),
        "step": Operation("a cell of a fitted item in one sweep", 1.6e-09),
        "cell": Operation("a cell of the sums, in one probe of the fit", 2.3e-08),
    }
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A decoding task, described by the sizes of its sums.

    Args:
        rows: the number of rows of the sketch.
        width: the number of counters in a row.
        batches: the number of batches of rounds.
        is_fresh: whether each batch has its own locations.
        candidates: the number of candidates to estimate.
        single: whether counts are small enough for single precision.
        backend: the implementation of the kernels, one of `kernels.available_backends`.
        heavy: the number of items that stand out of the noise; None: not known.
        repetitions: the number of iterations of belief propagation; 0: it is not used, or sends no
            messages.
    """

    rows: int
    width: int
    batches: int
    is_fresh: bool
    candidates: int
    single: bool
    backend: str
    heavy: int | None
    repetitions: int

    @property
    def cells(self) -> int:
        """The number of counters of one sketch."""
        return self.rows * self.width


def looked(task: Task, candidates: int, itemsize: int) -> dict[str, float]:
    """Return how many operations a decoder makes that decodes each candidate once.

    They are counted by kind: the keys are four of those of `OPERATIONS`.

    Args:
        task: the sizes of the sums.
        candidates: the number of candidates.
        itemsize: the bytes of a counter in the decoder's tables.
    """
    parts, together = (task.batches, 1) if task.is_fresh else (1, task.batches)
    shape = (together, task.rows, task.width)
    gathers, patterns = _gathered(shape, itemsize, candidates, task.backend)
    rows = parts * task.rows
    return {
        "decoder": parts,
        "pattern": rows * patterns,
        "gather": rows * candidates * gathers,
        "hash": rows * candidates * -(-together // SIGNS_PER_GROUP),
    }


def _gathered(
    shape: tuple[int, int, int], itemsize: int, candidates: int, backend: str
) -> tuple[float, int]:
    """Return the cost of a candidate in one row, and how many sums are tabulated for a row.

    The cost is in units of the operation "gather". Compiled kernels tabulate the sums of batches
    under every pattern of their signs. NumPy kernels read the counter of each batch instead.

    Args:
        shape: how many batches are decoded together, the number of rows, and the width.
        itemsize: the bytes of a counter in the decoder's tables.
        candidates: the number of candidates.
        backend: the implementation of the kernels.
    """
    batches, _, width = shape
    if backend == "numpy":
        return float(batches), 0
    tables = kernels.plan_subtables(shape, itemsize, candidates)
    cells = sum(width << table.bits for table in tables)
    cost = next(cost for bound, cost in kernels.GATHER_COSTS if cells * itemsize <= bound)
    return len(tables) * cost, cells


def extended(work: Work, **more: float) -> Work:
    """Return the operations of `work` and `more` added up, by name."""
    return {name: work.get(name, 0) + more.get(name, 0) for name in work.keys() | more.keys()}
