"""Landed rounds and their plan -> estimates: top items, point queries, frames, evaluation, saved files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally import _archive, _validate
from fedtally import domain as domains
from fedtally.domain import Domain
from fedtally.errors import (
    InvalidInputError,
    MemoryLimitError,
    MissingExtraError,
    UnreadableFileError,
)
from fedtally.plan import Plan
from fedtally.privacy import NOT_PRIVATE
from fedtally.recovery.decoding import (
    CONFIDENCE,
    MAX_ENUMERATED,
    MAX_JOINT,
    Decoding,
    check_enumerable,
    kind_of,
    named_kind,
)
from fedtally.recovery.intervals import (
    Intervals,
    Limits,
    NoisyNumberIntervals,
    make_intervals,
    sampling_error,
)
from fedtally.recovery.joint import JointDecoder
from fedtally.recovery.linear_system import Decoder, Ids, ask
from fedtally.recovery.median import MedianDecoder, check_landed
from fedtally.recovery.shrinkage import ShrunkDecoder
from fedtally.sketch import CountSketch, Recovery
from fedtally.sketch.count_sketch import noise_mark

SCHEMA = "fedtally-result/1"
RARE_ITEMS = (
    "joint recovery finds rare items too: without differential privacy, secure summation does not"
    " protect them"
)
BLOCK = 1 << 18
AS_USUAL = Decoding()
_BYTES_PER_ROW = 96  # of a full table: estimate, order, label and the row being written

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Progress = Callable[[str, int, int | None], None]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is estimated of one item.

    Attributes:
        item: its label.
        frequency: estimated share of the clients that took part, each counted in every round that
            it is in; it may be below 0.
        low: lower limit of that share, 0 to 1; None where no interval was asked for.
        high: upper limit, 0 to 1.
        count: estimated number of clients; of contributions, where a client may be in several
            rounds.
        sampling_error: what `low` and `high` leave out: half-width, at the same confidence, by
            which the share in a wider population may differ, if the clients are a uniform sample of
            it.
    """

    item: str | int
    frequency: float
    low: float | None
    high: float | None
    count: float
    sampling_error: float | None = None


class Evaluation(NamedTuple):
    """Errors of the frequencies of all candidates against the truth among the clients that took part.

    Attributes:
        linf: largest absolute error.
        l2: root of the sum of squared errors.
        coverage: share of all candidates' intervals, each as if it were named, that hold the truth;
            None without.
        k: size of the two lists compared.
        precision_at_k: share of the k largest estimates whose true count is at least the k-th
            largest true count, and at least 1.
        recall_at_k: share of the k largest true counts (ties by position) among the k largest
            estimates.
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

    Estimates are counts over the clients of all landed rounds, a client of several rounds counted
    in each; a frequency is a count divided by the number of these contributions. They are decoded
    when asked for, from the sums that are kept.

    Args:
        plan: the campaign's plan.
        domain: the candidate items.
        sketches: the landed sums, at most one per round; under a plan with privacy with the noise
            of that plan, and marked so by what added it.
        decoding: how the sums are decoded.
        truth: true counts, where a simulation knows them and evaluation was asked for.
        warnings: what the reader of the numbers must know.
        missing: rows without an item, client or round, which were dropped.
        secure_sum: how the sums were made, JSON-able; None: as the plan says.
        sizing: how the sketch's size was chosen for a target, JSON-able; None: it was given, or is
            what bytes buy.
        timings: seconds per stage.
        attendance: how many clients took part in exactly k rounds, at place k - 1, where one may be
            in several; None: nobody is.
        draw: what the bound on a client's items drew away, JSON-able; None: nothing, or it is
            private.

    Attributes:
        decoding: how the sums are decoded, with the name of the decoder in place of "auto".
        num_clients: how many took part, each counted once.
        num_contributions: how many sketches are in the sums: a client of three rounds has three.
            Frequencies are shares of them.

    Raises:
        InvalidInputError: nobody took part, or `attendance` has not so many contributions as the
            sums.

    Raises:
        InvalidInputError: nobody took part; or the plan guarantees privacy, and a sum has no noise,
            or another's.

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
        decoding: Decoding = AS_USUAL,
        truth: Truth | None = None,
        warnings: Sequence[str] = (),
        missing: int = 0,
        secure_sum: Mapping[str, Any] | None = None,
        sizing: Mapping[str, Any] | None = None,
        timings: Mapping[str, float] | None = None,
        attendance: Sequence[int] | None = None,
        draw: Mapping[str, Any] | None = None,
    ) -> None:
        self.plan = plan
        self.domain = domain
        check_landed(sketches)
        self.sketches = list(sketches)
        _check_noised(plan, self.sketches)
        self.truth = truth
        self._warnings = tuple(warnings)
        self.missing = missing
        planned = {"method": "ideal"} if plan.secure_sum is None else plan.secure_sum.summary()
        self.secure_sum: dict[str, Any] = dict(secure_sum or planned)
        self.draw = None if draw is None else dict(draw)
        self.sizing = None if sizing is None else dict(sizing)
        self.timings = dict(timings or {})
        self.decoding = decoding.resolved(domain.size, plan.rows)
        self.recovery, self.objective = self.decoding.recovery, self.decoding.objective
        self.confidence, self.interval_kind = self.decoding.confidence, self.decoding.intervals
        self.evaluation: Evaluation | None = None
        self.num_contributions = sum(sketch.num_clients for sketch in self.sketches)
        if self.num_contributions < 1:
            raise InvalidInputError(
                "no client took part in any landed round: there is no frequency to estimate"
            )
        self.attendance = (
            [self.num_contributions]
            if attendance is None
            else [int(number) for number in attendance]
        )
        counted = sum(rounds * number for rounds, number in enumerate(self.attendance, start=1))
        if counted != self.num_contributions or min(self.attendance) < 0:
            raise InvalidInputError(
                f"attendance must add up to the {self.num_contributions:,} contributions in the"
                f" sums, got {counted:,}"
            )
        self.num_clients = sum(self.attendance)

    def prepare(self, progress: Progress | None = None) -> None:
        """Fit and calibrate now what estimates and intervals need, not when the first is asked for.

        Args:
            progress: called as ("recover", candidates looked at, all looks).

        Raises:
            MemoryLimitError: joint recovery must enumerate the domain, and it is too large.
            InvalidInputError: too few rows for the kind of interval.
        """
        self._progress = progress
        _ = self.decoder, self.intervals
        self._progress = None

    _progress: Progress | None = None

    @cached_property
    def _recovered(self) -> MedianDecoder | JointDecoder:
        kind, report = kind_of(self.recovery), self._progress
        if kind.fits_items:
            check_enumerable(self.domain)
        return kind.make(
            self.sketches,
            self.domain,
            None if report is None else lambda done, total: report("recover", done, total),
        )

    @cached_property
    def decoder(self) -> Decoder:
        """What turns the landed sums into estimated counts.

        Raises:
            MemoryLimitError: joint recovery and shrinkage must enumerate the domain, and it is too
                large.
        """
        if self.objective == "linf":
            return self._recovered
        check_enumerable(self.domain)
        return ShrunkDecoder(self._recovered, self.domain)

    @cached_property
    def intervals(self) -> Intervals | None:
        """What gives items their limits; None where the confidence is 0.

        Raises:
            InvalidInputError: too few rows for order statistics.
        """
        if self.confidence == 0:
            return None
        made = make_intervals(
            self._recovered, self.sketches, self.domain, self.confidence, self.interval_kind
        )
        terms = self.plan.privacy
        if terms is None or terms.event.relation != "add-remove":
            return made
        # of the number of clients, noised in each release
        stddev = terms.stddev * len(self.sketches) ** 0.5
        return NoisyNumberIntervals(made, stddev / self.num_contributions, self.confidence)

    def decoded(
        self,
        *,
        recovery: str | None = None,
        objective: str | None = None,
        confidence: float | None = None,
        intervals: str | None = None,
    ) -> Result:
        """Return the answer of the same sums, decoded otherwise; what is None stays as it is.

        >>> import fedtally
        >>> result = fedtally.estimate(["tea"] * 30 + ["milk"] * 10, seed=1)
        >>> result.decoded(recovery="median", confidence=0).top(1)[0].low is None
        True
        """
        asked = {
            "recovery": recovery,
            "objective": objective,
            "confidence": confidence,
            "intervals": intervals,
        }
        changed: dict[str, Any] = {
            name: value for name, value in asked.items() if value is not None
        }
        return Result(
            self.plan,
            self.domain,
            self.sketches,
            decoding=replace(self.decoding, **changed),
            truth=self.truth,
            warnings=self._warnings,
            missing=self.missing,
            secure_sum=self.secure_sum,
            sizing=self.sizing,
            attendance=self.attendance,
            draw=self.draw,
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader of the numbers must know: of the data, and of how the sums are decoded."""
        notes = list(self._warnings)
        if self.unit == "contributions":
            notes.append(
                "a client of several rounds counts in each: frequencies are shares of"
                f" {self.num_contributions:,} contributions of {self.num_clients:,} clients"
            )
        if kind_of(self.recovery).fits_items:
            if self.plan.privacy is None:
                notes.append(RARE_ITEMS)
            decoder = self.__dict__.get("_recovered")
            if isinstance(decoder, JointDecoder) and decoder.fallback is not None:
                notes.append(
                    "nothing stands out of the noise: the paper's decoder is better here, and"
                    " answered instead"
                )
        elif self.plan.rows < Recovery.JOINT.fewest_rows:
            notes.append(
                f"with fewer than {Recovery.JOINT.fewest_rows} rows the paper's decoder is used:"
                " joint recovery, several times as accurate, needs more"
            )
        elif MAX_JOINT < self.domain.size <= MAX_ENUMERATED:
            notes.append(
                f"more than {MAX_JOINT:,} candidates: by default the paper's decoder is used; joint"
                " recovery (--recovery joint) is several times as accurate and looks at each"
                " candidate ten times"
            )
        return tuple(notes)

    def __repr__(self) -> str:
        return (
            f"Result(clients={self.num_clients:,}, candidates={self.domain.size:,},"
            f" plan={self.plan.fingerprint[:12]})"
        )

    def top(
        self, k: int = 20, min_frequency: float | None = None, progress: Progress | None = None
    ) -> list[Estimate]:
        """Return the k largest estimates, largest first, ties by position in the domain.

        Estimates below half a client are left out: the list may have fewer than k. Its limits allow
        for the choice of its items, unless another kind of interval was asked for.

        Args:
            k: at least 0.
            min_frequency: leave out smaller estimates.
            progress: called as (stage, candidates done, candidates).

        Raises:
            MemoryLimitError: the domain is too large to enumerate; name items with `estimates`
                instead.
        """
        _validate.integer(0, k=k)
        floor = 0.5
        if min_frequency is not None:
            floor = max(floor, _validate.real(min_frequency=min_frequency) * self.num_contributions)
        positions, counts = np.empty(0, np.int64), np.empty(0)
        for start, _, block in self.blocks(progress):
            hits = np.flatnonzero(block >= max(floor, counts.min() if len(counts) > k else -np.inf))
            positions, counts = (
                np.concatenate([positions, hits + start]),
                np.concatenate([counts, block[hits]]),
            )
            # one more: what an estimate had to exceed
            kept = np.lexsort((positions, -counts))[: k + 1]
            positions, counts = positions[kept], counts[kept]
        reached = float(counts[k]) if len(counts) > k else floor
        positions, counts = positions[:k], counts[:k]
        if not len(positions):
            return []
        labels = self.domain.labels(positions)
        ids = self.domain.encode(labels)
        # A shrunk estimate is another number than the one that has limits: what that had to reach
        # is not known.
        threshold = reached / self.num_contributions if self.objective == "linf" else None
        limits = None if self.intervals is None else self.intervals.listed(ids, threshold)
        return self._estimates(labels, counts, limits)

    def estimates(self, items: Sequence[str | int]) -> list[Estimate]:
        """Return the estimates of named items, in their order.
        For string domains an item need not be a candidate.

        Raises:
            OutsideDomainError: an item is not in the domain.
        """
        named = [items] if isinstance(items, str) else list(items)
        if not named:
            return []
        ids = self.domain.encode(named)
        labels = (
            [int(item) for item in named] if self.domain.kind in ("range", "integers") else named
        )
        return self._estimates(
            labels, self.decoder.at(ids), None if self.intervals is None else self.intervals.at(ids)
        )

    def frequency(self, item: str | int) -> float:
        """Return the estimated share of clients that contribute the item.
        Not clipped: it may be below 0.
        """
        return self.estimates([item])[0].frequency

    def true_frequencies(self, items: Sequence[str | int]) -> list[float] | None:
        """Return the true frequencies of named items among the clients that took part; None if the truth is unknown."""
        if self.truth is None:
            return None
        candidates = (
            [
                item
                for item, there in zip(items, self.domain.contains(list(items)), strict=True)
                if there
            ]
            if items
            else []
        )
        counts = (
            {}
            if not candidates
            else dict(zip(candidates, self.truth.at(self.domain.locate(candidates)), strict=True))
        )
        return [float(counts.get(item, 0)) / self.num_contributions for item in items]

    def frequencies(self, memory: int | None = None) -> F64:
        """Return the estimated frequency of every candidate, by position: float64 [domain.size].

        Args:
            memory: bytes that the table may take; half of the machine's by default.

        Raises:
            MemoryLimitError: the table would not fit.
        """
        check_table_fits(self.domain.size, memory)
        return np.concatenate([block for _, _, block in self.blocks()]) / self.num_contributions

    def limits(self, memory: int | None = None) -> Limits | None:
        """Return the limits of every candidate's frequency, by position: float64 [domain.size] each; None without.

        They are those of items named beforehand.

        Raises:
            MemoryLimitError: the table would not fit.
        """
        check_table_fits(self.domain.size, memory)
        intervals = self.intervals
        if intervals is None:
            return None
        parts = [intervals.at(self._ids(*block)) for block in self._block_bounds()]
        return clip_limits(Limits(*(np.concatenate(ends) for ends in zip(*parts, strict=True))))

    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` of every candidate, largest estimate first: the fields of `Estimate`.

        The limits are those of an item named beforehand, not of a list; the schema's metadata say
        so: `intervals`. That of a run that is marked not private says so in a further column,
        `note`.
        """
        import pyarrow as pa

        frequencies = self.frequencies(memory)
        order = np.argsort(-frequencies, kind="stable")
        nothing = pa.nulls(len(order), pa.float64())
        limits = self.limits(memory)
        columns = {
            "item": pa.array(self.domain.labels(order)),
            "frequency": frequencies[order],
            "low": nothing if limits is None else limits.low[order],
            "high": nothing if limits is None else limits.high[order],
            "count": frequencies[order] * self.num_contributions,
            "sampling_error": (
                nothing if limits is None else self._sampling_error(frequencies[order])
            ),
        }
        if self.not_private:
            columns["note"] = pa.array([self.not_private] * len(order))
        kind = None if limits is None else named_kind(self.interval_kind)
        return pa.table(columns, metadata={} if kind is None else {"intervals": kind})

    @property
    def unit(self) -> str:
        """What frequencies are shares of: clients; or contributions, where a client may be in several rounds."""
        return "clients" if self.num_clients == self.num_contributions else "contributions"

    @property
    def not_private(self) -> str:
        """What every output of a run marked not_private carries; "" for others."""
        return (
            NOT_PRIVATE if self.plan.privacy is not None and self.plan.privacy.not_private else ""
        )

    def _sampling_error(self, frequencies: F64) -> F64:
        # Clients, not contributions, are the sample. Where some are in more rounds than others, and
        # hold the same in all of them, they tell as much as fewer clients of one round: (sum k)^2 /
        # sum k^2 (Kish 1965).
        squares = sum(rounds**2 * number for rounds, number in enumerate(self.attendance, start=1))
        return sampling_error(
            frequencies, max(1, self.num_contributions**2 // squares), self.confidence
        )

    def to_frame(self, memory: int | None = None) -> Any:
        """Return a pandas data frame of every candidate, largest estimate first.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas  # noqa: F401
        except ImportError:
            raise MissingExtraError(
                "data frames need pandas: pip install 'fedtally[pandas]'"
            ) from None
        return self.to_arrow(memory).to_pandas()

    def export(self, path: str | os.PathLike[str], memory: int | None = None) -> None:
        """Write every candidate's estimate, largest first, to a .csv or .parquet file, whole or not at all.

        Raises:
            InvalidInputError: another suffix, or a folder that cannot be written.
            MemoryLimitError: the table would not fit.
        """
        check_export_path(path)
        write_table(self.to_arrow(memory), path)

    def plot(self, path: str | os.PathLike[str] | None = None, k: int = 20) -> Any:
        """Return a matplotlib figure of the k largest estimates; write it to `path` if given.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        from fedtally import charts

        return charts.top_items(
            self.top(k),
            self.num_contributions,
            confidence=self.confidence,
            note=self.not_private,
            unit=self.unit,
            path=path,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write sums, plan and candidates to one file, whole or not at all.
        True counts are not written.

        The file holds the candidates: of a domain `input` these are the clients' own items.
        """
        meta = {
            "plan": self.plan.to_dict(),
            "domain": self.domain.describe(),
            "rounds": [sketch.round for sketch in self.sketches],
            "num_clients": [sketch.num_clients for sketch in self.sketches],
            "noise": [sketch.noise for sketch in self.sketches],
            "recovery": self.recovery,
            "objective": self.objective,
            "confidence": self.confidence,
            "intervals": self.interval_kind,
            "warnings": list(self._warnings),
            "missing": self.missing,
            "secure_sum": self.secure_sum,
            "sizing": self.sizing,
            "timings": self.timings,
            "attendance": self.attendance,
            "draw": self.draw,
            "evaluation": None if self.evaluation is None else self.evaluation._asdict(),
        }
        arrays = {f"domain_{name}": values for name, values in self.domain.arrays().items()}
        _archive.write(
            path,
            SCHEMA,
            meta,
            {"counters": np.stack([s.counters for s in self.sketches]), **arrays},
        )

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
                name.removeprefix("domain_"): values
                for name, values in arrays.items()
                if name.startswith("domain_")
            }
            sketches = _sketches(plan, meta, arrays["counters"])
            result = cls(
                plan,
                domains.load(meta["domain"], parts),
                sketches,
                decoding=Decoding(
                    meta["recovery"],
                    meta.get("objective", "linf"),
                    meta.get("confidence", CONFIDENCE),
                    meta.get("intervals", "auto"),
                ),
                warnings=meta["warnings"],
                missing=meta["missing"],
                secure_sum=meta.get("secure_sum"),
                sizing=meta.get("sizing"),
                timings=meta["timings"],
                attendance=meta["attendance"],
                draw=meta["draw"],
            )
            if meta["evaluation"] is not None:
                result.evaluation = Evaluation(**meta["evaluation"])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UnreadableFileError(f"{os.fspath(path)} is damaged: {error}") from error
        return result

    def evaluate(self, k: int = 20) -> Evaluation:
        """Compare all estimates with the truth, and remember the figures as `evaluation`.

        Raises:
            InvalidInputError: the truth is not known: the result was loaded, or evaluation was not
                asked for.
        """
        if self.truth is None:
            raise InvalidInputError(
                "the truth is not known here: run estimate with evaluate=True (--evaluate)"
            )
        largest, squares, covered = 0.0, 0.0, 0
        for start, ids, block in self.blocks():
            truth = self.truth.within(start, start + len(block)) / self.num_contributions
            errors = block / self.num_contributions - truth
            largest = max(largest, float(np.abs(errors).max()))
            squares += float(errors @ errors)
            if self.intervals is not None:
                low, high = clip_limits(self.intervals.at(ids))
                covered += int(((low <= truth) & (truth <= high)).sum())
        k = min(k, self.domain.size)
        precision, recall = self._overlap(k)
        coverage = None if self.intervals is None else covered / self.domain.size
        self.evaluation = Evaluation(largest, squares**0.5, coverage, k, precision, recall)
        return self.evaluation

    def _overlap(self, k: int) -> tuple[float, float]:
        truth = self.truth
        if truth is None or not k:
            return 0.0, 0.0
        estimated = (
            self.domain.locate([e.item for e in listed])
            if (listed := self.top(k))
            else np.empty(0, np.int64)
        )
        best = np.lexsort((truth.positions, -truth.counts))[:k]
        if not len(best):
            return 0.0, 0.0
        floor = truth.counts[best].min() if len(best) == k else 1
        good = truth.positions[truth.counts >= floor]
        return float(np.isin(estimated, good).sum() / max(1, len(estimated))), float(
            np.isin(truth.positions[best], estimated).mean()
        )

    def _block_bounds(self) -> Iterator[tuple[int, int]]:
        check_enumerable(self.domain)
        for start in range(0, self.domain.size, BLOCK):
            yield start, min(start + BLOCK, self.domain.size)

    def _ids(self, start: int, stop: int) -> Ids:
        """Return the ids of the candidates at the positions start .. stop-1."""
        first = self.domain.first_id
        return self.domain.ids(start, stop) if first is None else range(first + start, first + stop)

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, Ids, F64]]:
        """Yield (first position, ids, estimated counts) of consecutive candidates.

        Args:
            progress: called as ("decode", candidates done, candidates).
        """
        for start, stop in self._block_bounds():
            ids = self._ids(start, stop)
            yield start, ids, ask(self.decoder, ids)
            if progress is not None:
                progress("decode", stop, self.domain.size)

    def _estimates(
        self, items: Sequence[str | int], counts: F64, limits: Limits | None
    ) -> list[Estimate]:
        frequencies = counts / self.num_contributions
        if limits is None:
            return [
                Estimate(item, f, None, None, count)
                for item, f, count in zip(items, frequencies.tolist(), counts.tolist(), strict=True)
            ]
        low, high = clip_limits(limits)
        columns = (frequencies, low, high, counts, self._sampling_error(frequencies))
        return [
            Estimate(item, *row)
            for item, *row in zip(items, *(c.tolist() for c in columns), strict=True)
        ]


def clip_limits(limits: Limits) -> Limits:
    """Return limits of frequencies as far as a frequency can lie: within 0 and 1.

    >>> clip_limits(Limits(np.array([-0.1, 0.5]), np.array([0.2, 1.1])))
    Limits(low=array([0. , 0.5]), high=array([0.2, 1. ]))
    """
    return Limits(np.clip(limits.low, 0.0, 1.0), np.clip(limits.high, 0.0, 1.0))


def check_export_path(path: str | os.PathLike[str]) -> None:
    """Raise InvalidInputError unless `path` names a table that `Result.export` can write.

    >>> check_export_path("estimates.csv")
    """
    if not os.fspath(path).endswith((".csv", ".parquet")):
        raise InvalidInputError(f"output must end in .csv or .parquet, got {os.fspath(path)}")


def write_table(table: Any, path: str | os.PathLike[str]) -> None:
    """Write a `pyarrow.Table` to a .csv or .parquet file, whole or not at all."""
    with _archive.replacing(path) as temporary:
        if os.fspath(path).endswith(".csv"):
            import pyarrow.csv

            pyarrow.csv.write_csv(table, temporary)
        else:
            import pyarrow.parquet

            pyarrow.parquet.write_table(table, temporary)


def check_table_fits(size: int, memory: int | None) -> None:
    """Raise MemoryLimitError unless a table of `size` candidates fits `memory` bytes (half of the machine's if None).

    >>> check_table_fits(1000, memory=2**20)
    """
    limit = physical_memory() // 2 if memory is None else memory
    if size * _BYTES_PER_ROW > limit:
        raise MemoryLimitError(
            f"a table of {size:,} candidates needs about {_shown(size * _BYTES_PER_ROW)}, more than"
            f" the {_shown(limit)} allowed; ask for the top items or named ones, or raise the limit"
            " (--memory)"
        )


def _shown(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:,.3f} MB"


def physical_memory() -> int:
    """Return the bytes of memory of this machine; 4 GiB where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 4 << 30


def _check_noised(plan: Plan, sketches: Sequence[CountSketch]) -> None:
    """Refuse sums without the noise that the plan guarantees: what is printed of them would guarantee it."""
    if plan.privacy is None:
        return
    for sketch in sketches:
        if sketch.noise != plan.noise_mark:
            held = f"holds noise of {sketch.noise}" if sketch.noise else "is exact"
            raise InvalidInputError(
                f"the plan guarantees differential privacy by noise of {plan.noise_mark}, and the"
                f" sum of round {sketch.round} {held}: take the sums from what adds the noise"
                " (FrequencyServer.release), or a plan without privacy"
            )


def _sketches(plan: Plan, meta: Mapping[str, Any], counters: npt.NDArray[Any]) -> list[CountSketch]:
    rounds, clients, marks = meta["rounds"], meta["num_clients"], meta["noise"]
    if (
        counters.dtype != np.int64
        or counters.shape != (len(rounds), plan.rows, plan.width)
        or not len(clients) == len(marks) == len(rounds)
    ):
        raise InvalidInputError(f"counters of shape {counters.shape} do not fit the plan")
    sketches = []
    for round, num_clients, mark, values in zip(rounds, clients, marks, counters, strict=True):
        sketch = CountSketch(plan.spec, round)
        sketch.num_clients = _validate.integer(0, num_clients=num_clients)
        sketch.noise = noise_mark(mark)
        sketch.counters = np.ascontiguousarray(values)
        sketches.append(sketch)
    return sketches
