"""One answer from the results of several plans, between which widths may have changed.

A campaign may look at its releases so far, and choose a better width for the rounds that follow.
These rounds have a plan, hashes and clients of their own. The estimate of all plans together is the
sum of their estimates. With differential privacy only private results may choose the next plan
(`fedtally plan --like` enforces it), and each plan is charged by itself. No client should be in two
of them; `Merged.joint_guarantee` is the cost to a client that is in all of them.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any

import numpy as np

from fedtally.answer.estimates import Estimate, clip_limits, uncertainty
from fedtally.answer.files import check_table_fits
from fedtally.answer.frames import NOTEBOOK_ROWS, Tabular, notebook_table
from fedtally.answer.result import Result
from fedtally.base import validate
from fedtally.errors import InvalidInputError, opt
from fedtally.privacy.guarantee_text import JointGuarantee, add_up_guarantees
from fedtally.recovery.decoding import named_kind
from fedtally.recovery.intervals import Intervals, Limits, merged_intervals
from fedtally.recovery.limits import ROUNDING
from fedtally.recovery.linear_system import F64, U64, Ids, ids_between

_NOBODY = np.empty(0, np.uint64)
_LEAST = 0.5  # of a client: what rounds to none is no item to list
_ROWS = 1 << 12  # that are estimated at once


class Merged(Tabular):
    """Results over the same candidates, of different clients.

    Where the domain is open, the list holds the strings whose names at least one result read.

    Frequencies are shares of the contributions of all clients together. Errors of different results
    are independent, since their hashes and noises are. Limits are merged in one of three ways:

    - Joint recovery and belief propagation: errors are normal, so half-widths add up in squares.
      They are taken around the values before shrinkage, which goes the same way in all results.
    - The median: errors are not normal. The distribution of their sum is measured at ids that
      nobody holds in any result.
    - Otherwise (a median beside joint recovery): each of K results has limits of the confidence
      1 - (1 - P) / K, which are added as they are. Together they fail with probability at most
      1 - P (union bound).

    Args:
        results: two or more results, of different plans, over one domain; with intervals of one
            kind and confidence, or without.

    Attributes:
        is_exact: whether estimates are the counts themselves: histograms without noise.

    Raises:
        InvalidInputError: the results do not belong together.

    >>> import fedtally
    >>> from fedtally.domain import IntegerRange
    >>> first, second = (
    ...     fedtally.estimate([1] * n + [2] * 60, domain=IntegerRange(1, 9), seed=n)
    ...     for n in (40, 140)
    ... )
    >>> merged = Merged([first, second])
    >>> merged.num_clients, [(e.item, e.frequency) for e in merged.top(2)]
    (300, [(1, 0.6), (2, 0.4)])
    """

    def __init__(self, results: Sequence[Result]) -> None:
        if len(results) < 2:
            raise InvalidInputError(f"merge takes two results or more, got {len(results)}")
        first = results[0]
        for other in results[1:]:
            if not other.domain.public or other.domain.describe() != first.domain.describe():
                raise InvalidInputError(
                    "the results are over different candidates: only those over one declared"
                    " domain can be merged; estimate each of them with the same list"
                    f" ({opt.domain('FILE')})"
                )
            if other.confidence != first.confidence:
                raise InvalidInputError(
                    f"the results have intervals of {first.confidence:g} and {other.confidence:g}:"
                    f" run them with one {opt.confidence}"
                )
            if other.interval_kind != first.interval_kind:
                raise InvalidInputError(
                    f"the results have intervals of kind {first.interval_kind} and"
                    f" {other.interval_kind}: run them with one {opt.intervals}"
                )
        prints = [result.plan.fingerprint for result in results]
        if len(set(prints)) < len(prints):  # the same hashes: the same items collide in both
            raise InvalidInputError(
                "two of the results are of one plan: their errors are not independent; merge"
                f" results of different plans (a run without {opt.plan} makes one of its own)"
            )
        self.results = list(results)
        self.domain = first.domain
        self.is_exact = all(result.is_exact for result in results)
        self.confidence, self.interval_kind = first.confidence, first.interval_kind
        self.num_clients = sum(result.num_clients for result in results)
        self.num_contributions = sum(result.num_contributions for result in results)
        self._shares = np.array(
            [result.num_contributions / self.num_contributions for result in results]
        )[:, None]

    @property
    def unit(self) -> str:
        """The noun for the things that are counted: that of all results, or "contributions"."""
        units = {result.unit for result in self.results}
        return units.pop() if len(units) == 1 else "contributions"

    @property
    def not_private(self) -> str:
        """The mark of results with `not_private`; "" where none has it."""
        return next((result.not_private for result in self.results if result.not_private), "")

    @property
    def cautions(self) -> tuple[str, ...]:
        """Those of the `warnings` that say what the data and the privacy do to the numbers."""
        alarms = dict.fromkeys(note for result in self.results for note in result.alarms)
        ours = {self._on_repeats: None}
        theirs = dict.fromkeys(note for result in self.results for note in result.cautions)
        return tuple(alarms | ours | theirs)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notes that a reader of the numbers needs: that on repeats, and those of the results."""
        theirs = dict.fromkeys(note for result in self.results for note in result.warnings)
        return tuple(dict.fromkeys(self.cautions) | theirs)

    @property
    def _on_repeats(self) -> str:
        ones, many = zip(*(result.plan.nouns for result in self.results), strict=True)
        one = ones[0] if len(set(ones)) == 1 else "client or person"
        which = "both" if len(self.results) == 2 else "several"
        return (
            f"a {one} in {which} results counts in each, and no result shows who is in it: these"
            f" are {self.num_contributions:,} contributions, of so many {many[0]} or fewer"
        )

    @property
    def joint_guarantee(self) -> JointGuarantee:
        """The cost of the results together to a client that is in all of them.

        Only the releases of these results count. A ledger knows the other charges of a population,
        those of pilots included.
        """
        return add_up_guarantees([result.plan.privacy for result in self.results])

    def estimates(self, items: Sequence[str | int]) -> list[Estimate]:
        """Return the estimates of named items, in the order given.

        Raises:
            OutsideDomainError: an item is not in the domain.
        """
        if not len(items):
            return []
        named = [items] if isinstance(items, str) else list(items)
        ids = self._ids(named)
        return self._merged(named, self._limits_at(self._intervals, ids))

    def top(self, k: int = 20) -> list[Estimate]:
        """Return the k largest estimates, largest first, ties by position in the domain.

        Estimates below half a client are left out. The limits allow for the choice of the list as
        those of each result do.

        Raises:
            MemoryLimitError: the domain is too large to enumerate.
        """
        validate.integer(0, k=k)
        labels = self._read_names(k) if self.results[0].plan.is_open else self._candidates(k)
        if not labels:
            return []
        ids = self._ids(labels)
        # The value that an estimate had to reach is known for the sum, not for its parts.
        limits = [made.listed(own, None) for made, own in zip(self._intervals, ids, strict=False)]
        return self._merged(labels, self._limits(self._intervals, ids, limits))

    def above_noise(self, estimates: Sequence[Estimate]) -> list[bool] | None:
        """Return whether each estimate of a list surely stands above noise, in all results."""
        if self.results[0].above_noise([]) is None:
            return None
        ids = self._ids([estimate.item for estimate in estimates])
        limits = self._limits_at(self._intervals_of("simultaneous"), ids)
        assert limits is not None
        above: list[bool] = (limits.low > 0).tolist()
        return above

    def frequencies(self, memory: int | None = None) -> F64:
        """Return the estimated frequency of every candidate, by position: float64 [domain.size].

        Args:
            memory: the bytes that the table may take; half of the machine's memory by default.

        Raises:
            InvalidInputError: the domain is open.
            MemoryLimitError: the table would not fit.
        """
        each = [result.frequencies(memory) for result in self.results]
        together: F64 = np.sum(self._shares * np.array(each), axis=0)
        return together

    def limits(self, memory: int | None = None, kind: str | None = None) -> Limits | None:
        """Return the limits of every candidate's frequency, by position; None where there are none.

        The arguments, and what is refused, are `Result.limits`'s.
        """
        self.results[0].check_listed()
        check_table_fits(self.domain.size, memory)
        made = self._intervals_of(self.interval_kind if kind is None else kind)
        parts = [
            self._limits_at(made, [ids_between(one.domain, start, stop) for one in self.results])
            for start, stop in self.results[0].block_bounds()
        ]
        found = [part for part in parts if part is not None]
        if not found:
            return None
        return clip_limits(Limits(*(np.concatenate(ends) for ends in zip(*found, strict=True))))

    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` of every candidate, largest estimate first.

        Its columns are the fields of `Estimate`, and its limits those of items named beforehand, as
        `Result.to_arrow` has them. Of an open domain the rows are the strings whose names at least
        one result read.

        Args:
            memory: the bytes that the table may take; half of the machine's memory by default.

        Raises:
            MemoryLimitError: the table would not fit.
        """
        import pyarrow as pa

        if not self.results[0].plan.is_open:
            check_table_fits(self.domain.size, memory)
        blocks = (_columns(self.estimates(labels)) for labels in self._labels())
        # a stable sort: ties by position
        table = pa.concat_tables(blocks).sort_by([("frequency", "descending")])
        if self.not_private:
            table = table.append_column("note", pa.array([self.not_private] * len(table)))
        kind = named_kind(self.interval_kind) if self._intervals else None
        return table.replace_schema_metadata({} if kind is None else {"intervals": kind})

    def _labels(self) -> Iterator[list[str | int]]:
        """Yield the labels of all candidates, some at a time, in the order of the domain."""
        if self.results[0].plan.is_open:
            yield list(self._read_names(None))
            return
        for start in range(0, self.domain.size, _ROWS):
            yield self.domain.labels(range(start, min(start + _ROWS, self.domain.size)))

    def __repr__(self) -> str:
        size = "none" if self.results[0].plan.is_open else f"{self.domain.size:,}"
        return (
            f"Merged({len(self.results)} results, {self.unit}={self.num_contributions:,},"
            f" candidates={size})"
        )

    def _repr_html_(self) -> str:
        """Return the largest estimates as an HTML table, which notebooks show."""
        shown = self.top(NOTEBOOK_ROWS + 1)
        size = "no list of" if self.results[0].plan.is_open else f"{self.domain.size:,}"
        head = (
            f"{self.num_contributions:,} {self.unit} in {len(self.results)} results,"
            f" {size} candidates"
        )
        head += f", <strong>{html.escape(self.not_private)}</strong>" * bool(self.not_private)
        if len(shown) > NOTEBOOK_ROWS:
            head += f"; the largest {NOTEBOOK_ROWS}"
        kept = shown[:NOTEBOOK_ROWS]
        return notebook_table(head, self.unit, self.confidence, kept, self.warnings)

    def _ids(self, items: Sequence[str | int]) -> list[U64]:
        """Return the ids of items in each result; the hashes of strings have keys of their own."""
        return [result.domain.encode(items) for result in self.results]

    def _read_names(self, k: int | None) -> list[str]:
        """Return the most frequent of the strings whose names some result read; None: all of them.

        A hash that was not read tells nothing of another result, where its string has another hash.
        """
        names = sorted({name for result in self.results for name in result.names.values()})
        if not names:
            return []
        found = zip(self.results, self._ids(names), strict=True)
        counts = np.sum([result.decoder.at(ids) for result, ids in found], axis=0)
        order = np.argsort(-counts, kind="stable")[:k]
        return [names[place] for place in order if counts[place] >= _LEAST]

    def _candidates(self, k: int) -> list[str | int]:
        """Return the labels of the candidates with the largest estimates."""
        places, counts = np.empty(0, np.int64), np.empty(0)
        for blocks in zip(*(result.blocks() for result in self.results), strict=True):
            start, block = blocks[0][0], np.sum([block for _, _, block in blocks], axis=0)
            places = np.concatenate([places, np.arange(start, start + len(block))])
            counts = np.concatenate([counts, block])
            kept = np.lexsort((places, -counts))[:k]
            kept = kept[counts[kept] >= _LEAST]
            places, counts = places[kept], counts[kept]
        return self.domain.labels(places)

    @cached_property
    def _intervals(self) -> list[Intervals]:
        """The intervals of the sum, or those of each result, whose limits `_limits` adds up."""
        return self._intervals_of(self.interval_kind)

    def _intervals_of(self, kind: str) -> list[Intervals]:
        if self.confidence == 0:
            return []
        made = [result.intervals_of(kind) for result in self.results]
        merged = merged_intervals(
            made, self._shares[:, 0].tolist(), self.domain, self.confidence, kind
        )
        if merged is not None:
            return [merged]
        if all(intervals.centres(_NOBODY) is not None for intervals in made):
            return made
        # a union bound: each result gets its share of the probability to fail
        each = 1.0 - (1.0 - self.confidence) / len(self.results)
        return [result.intervals_of(kind, each) for result in self.results]

    @property
    def about(self) -> str | None:
        """How the intervals were made, in words; None where there are none."""
        made = self._intervals
        if not made:
            return None
        if len(made) == 1:
            return made[0].about
        if all(intervals.centres(_NOBODY) is not None for intervals in made):
            return "the errors of the results are independent: half-widths add up in squares"
        return (
            f"sums of limits of 1 - {1.0 - self.confidence:.3g} / {len(made)} in each result (union"
            " bound)"
        )

    def _limits_at(self, made: Sequence[Intervals], ids: Sequence[Ids]) -> Limits | None:
        """Return limits of merged frequencies of items that were named before; as `_limits`."""
        return self._limits(made, ids, [one.at(own) for one, own in zip(made, ids, strict=False)])

    def _limits(
        self, made: Sequence[Intervals], ids: Sequence[Ids], limits: Sequence[Limits]
    ) -> Limits | None:
        """Return limits of the merged frequencies, float64 [n], not yet clipped to 0 and 1.

        Args:
            made: the intervals of the sum, or those of each result.
            ids: the ids of the items in each result.
            limits: the limits that each of the intervals gives them.
        """
        if len(limits) < len(self.results):
            return limits[0] if limits else None
        low, high = (self._shares * np.array(ends) for ends in zip(*limits, strict=True))
        found = [one.centres(own) for one, own in zip(made, ids, strict=True)]
        centres = [values for values in found if values is not None]
        if len(centres) < len(limits):
            return Limits(low.sum(axis=0), high.sum(axis=0))
        own = self._shares * np.array(centres)
        middle = own.sum(axis=0)  # the half-widths of independent errors add up in squares
        return Limits(middle - np.hypot.reduce(own - low), middle + np.hypot.reduce(high - own))

    def _merged(self, items: Sequence[str | int], limits: Limits | None) -> list[Estimate]:
        """Return the estimates of items, with limits of their merged frequencies."""
        parts = [result.estimates(items) for result in self.results]
        counts = np.sum([[e.count for e in part] for part in parts], axis=0)
        frequencies = counts / self.num_contributions
        if limits is None:
            columns = (frequencies.tolist(), counts.tolist())
            return [
                Estimate(e.item, f, None, None, n)
                for e, f, n in zip(parts[0], *columns, strict=True)
            ]
        # of exact counts the limits are the estimates, but for rounding
        near = (np.where(abs(end - frequencies) <= ROUNDING, frequencies, end) for end in limits)
        limits = clip_limits(Limits(*near))
        drawn = np.hypot.reduce(
            self._shares * np.array([[e.sampling_error or 0.0 for e in part] for part in parts])
        )
        off = uncertainty(frequencies, limits, drawn)
        each = (frequencies, *limits, counts, drawn, *off.limits)
        rows = zip(parts[0], *(column.tolist() for column in each), strict=True)
        return [Estimate(part.item, *row) for part, *row in rows]


def _columns(rows: Sequence[Estimate]) -> Any:
    """Return estimates as a `pyarrow.Table` with the fields of `Estimate`."""
    import pyarrow as pa

    names = [field.name for field in fields(Estimate)]
    types = {name: pa.float64() for name in names if name != "item"}
    return pa.table(
        {name: pa.array([getattr(row, name) for row in rows], types.get(name)) for name in names}
    )
