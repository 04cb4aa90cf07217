"""Landed rounds and their plan -> estimates: top items, point queries, frames, evaluation, saved files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import _archive, _validate
from fedtally import domain as domains
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, MemoryLimitError, MissingExtraError, UnreadableFileError
from fedtally.plan import Plan
from fedtally.recovery.joint import JointDecoder
from fedtally.recovery.median import MedianDecoder, check_landed
from fedtally.sketch import CountSketch

SCHEMA = "fedtally-result/1"
RECOVERIES = ("median", "joint")
BLOCK = 1 << 18
MAX_ENUMERATED = 2**36  # candidates: minutes of decoding; beyond, items are named
_BYTES_PER_ROW = 64  # of a full table: estimate, order, label and the row being written

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is estimated of one item; `low` and `high` are None while no interval is computed."""

    item: str | int
    frequency: float
    low: float | None
    high: float | None
    count: float


class Evaluation(NamedTuple):
    """Errors of the frequencies of all candidates against the truth among the clients that took part.

    Attributes:
        linf: largest absolute error.
        l2: root of the sum of squared errors.
        coverage: share of intervals that hold the truth; None without intervals.
        k: size of the two lists compared.
        precision_at_k: share of the k largest estimates whose true count is at least the k-th largest true count, and
            at least 1.
        recall_at_k: share of the k largest true counts (ties by position) among the k largest estimates.
    """

    linf: float
    l2: float
    coverage: float | None
    k: int
    precision_at_k: float
    recall_at_k: float


class Truth(NamedTuple):
    """True counts, known to a simulation alone: sorted positions in the domain, int64 [n], and counts, int64 [n]."""

    positions: I64
    counts: I64

    def at(self, positions: I64) -> I64:
        """Return the true counts at given positions, int64."""
        if not len(self.positions):
            return np.zeros(len(positions), np.int64)
        found = np.minimum(np.searchsorted(self.positions, positions), len(self.positions) - 1)
        return np.where(self.positions[found] == positions, self.counts[found], 0)

    def within(self, start: int, stop: int) -> F64:
        """Return the true counts at the positions start .. stop-1, float64."""
        dense = np.zeros(stop - start)
        part = slice(*np.searchsorted(self.positions, [start, stop]))
        dense[self.positions[part] - start] = self.counts[part]
        return dense


class Result:
    """The answer of a campaign: landed sums and what they say about the items.

    Estimates are counts over the clients of all landed rounds; a frequency is a count divided by those clients. They
    are decoded when asked for, from the sums that are kept.

    Args:
        plan: the campaign's plan.
        domain: the candidate items.
        sketches: the landed sums, at most one per round.
        recovery: "median" or "joint".
        truth: true counts, where a simulation knows them and evaluation was asked for.
        warnings: what the reader of the numbers must know.
        missing: rows without an item, client or round, which were dropped.
        timings: seconds per stage.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 30 + ["milk"] * 10, seed=1)
    >>> [(e.item, e.frequency) for e in result.top(2)]
    [('tea', 0.75), ('milk', 0.25)]
    >>> result.frequency("tea")
    0.75
    """

    def __init__(
        self,
        plan: Plan,
        domain: Domain,
        sketches: Sequence[CountSketch],
        *,
        recovery: str = "median",
        truth: Truth | None = None,
        warnings: Sequence[str] = (),
        missing: int = 0,
        timings: Mapping[str, float] | None = None,
    ) -> None:
        self.plan = plan
        self.domain = domain
        check_landed(sketches)
        self.sketches = list(sketches)
        self.truth = truth
        self.warnings = tuple(warnings)
        self.missing = missing
        self.timings = dict(timings or {})
        self.recovery = check_recovery(recovery)
        self.evaluation: Evaluation | None = None
        self.num_clients = sum(sketch.num_clients for sketch in self.sketches)
        if self.num_clients < 1:
            raise InvalidInputError("no client took part in any landed round: there is no frequency to estimate")

    @cached_property
    def decoder(self) -> MedianDecoder | JointDecoder:
        """What turns the landed sums into estimated counts.

        Raises:
            MemoryLimitError: joint recovery must enumerate the domain, and it is too large.
        """
        if self.recovery == "median":
            return MedianDecoder(self.sketches, expected=min(self.domain.size, 1 << 24))
        self._check_enumerable()
        return JointDecoder(self.sketches, self.domain)

    def __repr__(self) -> str:
        return (
            f"Result(clients={self.num_clients:,}, candidates={self.domain.size:,}, plan={self.plan.fingerprint[:12]})"
        )

    def top(self, k: int = 20, min_frequency: float | None = None, progress: Progress | None = None) -> list[Estimate]:
        """Return the k largest estimates, largest first, ties by position in the domain.

        Args:
            k: at least 0.
            min_frequency: leave out smaller estimates.
            progress: called as (stage, candidates done, candidates).

        Raises:
            MemoryLimitError: the domain is too large to enumerate; name items with `estimates` instead.
        """
        _validate.integer(0, k=k)
        floor = -np.inf if min_frequency is None else _validate.real(min_frequency=min_frequency) * self.num_clients
        positions, counts = np.empty(0, np.int64), np.empty(0)
        for start, block in self._blocks(progress):
            hits = np.flatnonzero(block >= max(floor, counts.min() if k and len(counts) == k else -np.inf))
            positions, counts = np.concatenate([positions, hits + start]), np.concatenate([counts, block[hits]])
            kept = np.lexsort((positions, -counts))[:k]
            positions, counts = positions[kept], counts[kept]
        return self._estimates(self.domain.labels(positions), counts)

    def estimates(self, items: Sequence[str | int]) -> list[Estimate]:
        """Return the estimates of named items, in their order. For string domains an item need not be a candidate.

        Raises:
            OutsideDomainError: an item is not in the domain.
        """
        named = [items] if isinstance(items, str) else list(items)
        if not named:
            return []
        counts = self.decoder.at(self.domain.encode(named))
        return self._estimates(
            [int(item) for item in named] if self.domain.kind in ("range", "integers") else named, counts
        )

    def frequency(self, item: str | int) -> float:
        """Return the estimated share of clients that contribute the item. Not clipped: it may be below 0."""
        return self.estimates([item])[0].frequency

    def true_frequencies(self, items: Sequence[str | int]) -> list[float] | None:
        """Return the true frequencies of named items among the clients that took part; None if the truth is unknown."""
        if self.truth is None:
            return None
        candidates = (
            [item for item, there in zip(items, self.domain.contains(list(items)), strict=True) if there]
            if items
            else []
        )
        counts = (
            {} if not candidates else dict(zip(candidates, self.truth.at(self.domain.locate(candidates)), strict=True))
        )
        return [float(counts.get(item, 0)) / self.num_clients for item in items]

    def frequencies(self, memory: int | None = None) -> F64:
        """Return the estimated frequency of every candidate, by position: float64 [domain.size].

        Args:
            memory: bytes that the table may take; half of the machine's by default.

        Raises:
            MemoryLimitError: the table would not fit.
        """
        check_table_fits(self.domain.size, memory)
        return np.concatenate([block for _, block in self._blocks(None)]) / self.num_clients

    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` (item, frequency, low, high, count) of every candidate, largest estimate first."""
        import pyarrow as pa

        frequencies = self.frequencies(memory)
        order = np.argsort(-frequencies, kind="stable")
        nothing = pa.nulls(len(order), pa.float64())
        columns = {
            "item": pa.array(self.domain.labels(order)),
            "frequency": frequencies[order],
            "low": nothing,
            "high": nothing,
            "count": frequencies[order] * self.num_clients,
        }
        return pa.table(columns)

    def to_frame(self, memory: int | None = None) -> Any:
        """Return a pandas data frame of every candidate, largest estimate first.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise MissingExtraError("data frames need pandas: pip install 'fedtally[pandas]'") from None
        return self.to_arrow(memory).to_pandas()

    def export(self, path: str | os.PathLike[str], memory: int | None = None) -> None:
        """Write every candidate's estimate, largest first, to a .csv or .parquet file, whole or not at all.

        Raises:
            InvalidInputError: another suffix, or a folder that cannot be written.
            MemoryLimitError: the table would not fit.
        """
        check_export_path(path)
        table = self.to_arrow(memory)
        with _archive.replacing(path) as temporary:
            if os.fspath(path).endswith(".csv"):
                import pyarrow.csv

                pyarrow.csv.write_csv(table, temporary)
            else:
                import pyarrow.parquet

                pyarrow.parquet.write_table(table, temporary)

    def plot(self, path: str | os.PathLike[str] | None = None, k: int = 20) -> Any:
        """Return a matplotlib figure of the k largest estimates; write it to `path` if given.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from fedtally import charts

        return charts.top_items(self.top(k), self.num_clients, path=path)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write sums, plan and candidates to one file, whole or not at all. True counts are not written.

        The file holds the candidates: of a domain `input` these are the clients' own items.
        """
        meta = {
            "plan": self.plan.to_dict(),
            "domain": self.domain.describe(),
            "rounds": [sketch.round for sketch in self.sketches],
            "num_clients": [sketch.num_clients for sketch in self.sketches],
            "recovery": self.recovery,
            "warnings": list(self.warnings),
            "missing": self.missing,
            "timings": self.timings,
            "evaluation": None if self.evaluation is None else self.evaluation._asdict(),
        }
        arrays = {f"domain_{name}": values for name, values in self.domain.arrays().items()}
        _archive.write(path, SCHEMA, meta, {"counters": np.stack([s.counters for s in self.sketches]), **arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a result that `save` wrote.

        Raises:
            UnreadableFileError: missing, damaged, or another kind of file.
        """
        _, meta, arrays = _archive.read(path, SCHEMA)
        try:
            plan = Plan.from_dict(meta["plan"])
            parts = {
                name.removeprefix("domain_"): values for name, values in arrays.items() if name.startswith("domain_")
            }
            sketches = _sketches(plan, meta["rounds"], meta["num_clients"], arrays["counters"])
            result = cls(
                plan,
                domains.load(meta["domain"], parts),
                sketches,
                recovery=meta["recovery"],
                warnings=meta["warnings"],
                missing=meta["missing"],
                timings=meta["timings"],
            )
            if meta["evaluation"] is not None:
                result.evaluation = Evaluation(**meta["evaluation"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnreadableFileError(f"{os.fspath(path)} is damaged: {error}") from error
        return result

    def evaluate(self, k: int = 20) -> Evaluation:
        """Compare all estimates with the truth, and remember the figures as `evaluation`.

        Raises:
            InvalidInputError: the truth is not known: the result was loaded, or evaluation was not asked for.
        """
        if self.truth is None:
            raise InvalidInputError("the truth is not known here: run estimate with evaluate=True (--evaluate)")
        largest, squares = 0.0, 0.0
        for start, block in self._blocks(None):
            errors = (block - self.truth.within(start, start + len(block))) / self.num_clients
            largest = max(largest, float(np.abs(errors).max()))
            squares += float(errors @ errors)
        k = min(k, self.domain.size)
        precision, recall = self._overlap(k)
        self.evaluation = Evaluation(largest, squares**0.5, None, k, precision, recall)
        return self.evaluation

    def _overlap(self, k: int) -> tuple[float, float]:
        truth = self.truth
        if truth is None or not k:
            return 0.0, 0.0
        estimated = self.domain.locate([e.item for e in self.top(k)])
        best = np.lexsort((truth.positions, -truth.counts))[:k]
        if not len(best):
            return 0.0, 0.0
        floor = truth.counts[best].min() if len(best) == k else 1
        good = truth.positions[truth.counts >= floor]
        return float(np.isin(estimated, good).mean()), float(np.isin(truth.positions[best], estimated).mean())

    def _blocks(self, progress: Progress | None) -> Iterator[tuple[int, F64]]:
        """Yield (first position, estimated counts) of consecutive candidates."""
        self._check_enumerable()
        size = self.domain.size
        for start in range(0, size, BLOCK):
            stop = min(start + BLOCK, size)
            if self.domain.first_id is None:
                yield start, self.decoder.at(self.domain.ids(start, stop))
            else:
                yield start, self.decoder.range((self.domain.first_id + start) % 2**64, stop - start)
            if progress is not None:
                progress("decode", stop, size)

    def _check_enumerable(self) -> None:
        if self.domain.size > MAX_ENUMERATED:
            raise MemoryLimitError(
                f"a domain of {self.domain.size:,} candidates is too large to enumerate (at most {MAX_ENUMERATED:,}); "
                "name the items of interest (--query) under median recovery, or declare a smaller domain"
            )

    def _estimates(self, items: Sequence[str | int], counts: F64) -> list[Estimate]:
        return [
            Estimate(item, float(count) / self.num_clients, None, None, float(count))
            for item, count in zip(items, counts, strict=True)
        ]


def check_recovery(name: str) -> str:
    """Return the name of a recovery.

    Raises:
        InvalidInputError: there is none of this name.

    >>> check_recovery("joint")
    'joint'
    """
    if name not in RECOVERIES:
        raise InvalidInputError(f"recovery must be {' or '.join(RECOVERIES)}, got {name!r}")
    return name


def check_export_path(path: str | os.PathLike[str]) -> None:
    """Raise InvalidInputError unless `path` names a table that `Result.export` can write.

    >>> check_export_path("estimates.csv")
    """
    if not os.fspath(path).endswith((".csv", ".parquet")):
        raise InvalidInputError(f"output must end in .csv or .parquet, got {os.fspath(path)}")


def check_table_fits(size: int, memory: int | None) -> None:
    """Raise MemoryLimitError unless a table of `size` candidates fits `memory` bytes (half of the machine's if None).

    >>> check_table_fits(1000, memory=2**20)
    """
    limit = physical_memory() // 2 if memory is None else memory
    if size * _BYTES_PER_ROW > limit:
        raise MemoryLimitError(
            f"a table of {size:,} candidates needs about {_shown(size * _BYTES_PER_ROW)}, more than the "
            f"{_shown(limit)} allowed; "
            "ask for the top items or named ones, or raise the limit (--memory)"
        )


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.3f} MB"


def physical_memory() -> int:
    """Return the bytes of memory of this machine; 4 GiB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 4 << 30


def _sketches(plan: Plan, rounds: list[int], clients: list[int], counters: npt.NDArray[Any]) -> list[CountSketch]:
    if (
        counters.dtype != np.int64
        or counters.shape != (len(rounds), plan.rows, plan.width)
        or len(clients) != len(rounds)
    ):
        raise InvalidInputError(f"counters of shape {counters.shape} do not fit the plan")
    sketches = []
    for round, num_clients, values in zip(rounds, clients, counters, strict=True):
        sketch = CountSketch(plan.spec, round)
        sketch.num_clients = _validate.integer(0, num_clients=num_clients)
        sketch.counters = np.ascontiguousarray(values)
        sketches.append(sketch)
    return sketches
