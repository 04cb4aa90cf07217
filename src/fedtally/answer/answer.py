"""The answer of one plan, or of several plans together.

A part is the landed sums of one plan (the sums that the server has) and the decoder that reads
them. An answer has several parts if results of several plans are merged. For example, a campaign
looked at its first results and then chose a better sketch width: the later rounds have a plan,
hashes and clients of their own, so they are a second part. The estimated count of an item is the
sum of its estimated counts in all parts.

With differential privacy, only private results may be used to choose the next plan (`fedtally plan
--like` enforces this). Each plan is charged separately. No client should take part in two plans.
`Answer.joint_guarantee` is the privacy cost to a client that takes part in all of them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from functools import cached_property, reduce
from typing import Any

import numpy as np

from fedtally.answer import notes
from fedtally.answer.answer_rows import MOST_AGAIN, Rows, rows_of
from fedtally.answer.estimates import Estimate, clip_limits, uncertainty
from fedtally.answer.frames import NOTEBOOK_ROWS, Tabular, notebook_table
from fedtally.answer.part import LEAST, Part, Progress
from fedtally.answer.pooled_limits import PooledLimits, rounded
from fedtally.base import validate
from fedtally.errors import InvalidInputError, OutsideDomainError, opt
from fedtally.privacy.guarantee_text import JointGuarantee, add_up_guarantees
from fedtally.recovery.decoding import named_kind
from fedtally.recovery.limits import Limits
from fedtally.recovery.linear_system import F64, I64, U64, Bools

# An error suggests a similar candidate only if there are at most this many: the search takes 1-2 s.
_MOST_COMPARED = 1 << 18


class Answer(Tabular):
    """The estimates of several results together: one list of candidates, different clients.

    `Result` is a subclass, an answer of one part, so this description holds for it, too.

    A part is the sums of one plan, with their decoder (`Part`). A frequency is a share of all
    contributions in all parts. A contribution is what one client adds in one round. Limits are the
    lower and the upper end of an interval for a frequency. `PooledLimits` says how the limits of
    several parts are combined. In an open domain (nobody lists its strings), an answer of several
    parts lists the strings whose names at least one part read.

    Args:
        parts: two results or more. Their plans differ. They have the same domain, and it is public.
            They have the same confidence and the same kind of limits.
        disjoint: True if no client is in two of the results. Then the limits for a wider population
            are narrower. False: these limits hold even if clients are in several results.

    Attributes:
        domain: the candidates.
        confidence: the confidence level of the limits, 0 to 1; 0: there are no limits.
        interval_kind: the kind of the limits, such as "simultaneous" (`make_intervals` lists the
            kinds).
        num_clients: the sum of the parts' numbers of clients. A client in two parts counts twice.
        num_contributions: the number of contributions in the sums of all parts.

    Raises:
        InvalidInputError: there are fewer than two results, two results have the same plan, results
            differ in domain, confidence or kind of limits, or their domain is not public.

    >>> import fedtally
    >>> from fedtally.domain import IntegerRange
    >>> first, second = (
    ...     fedtally.estimate([1] * n + [2] * 60, domain=IntegerRange(1, 9), seed=n)
    ...     for n in (40, 140)
    ... )
    >>> both = Answer([first, second])
    >>> both.num_clients, [(e.item, e.frequency) for e in both.top(2)]
    (300, [(1, 0.6), (2, 0.4)])
    """

    disjoint = False  # a `Result` keeps this value: it has one part, so nothing is combined

    def __init__(self, parts: Sequence[Part], *, disjoint: bool = False) -> None:
        _check_parts(parts)
        self._parts = tuple(parts)
        self.disjoint = disjoint
        first = parts[0]
        self.domain = first.domain
        self.confidence, self.interval_kind = first.confidence, first.interval_kind
        self.num_clients = sum(part.num_clients for part in parts)
        self.num_contributions = sum(part.num_contributions for part in parts)

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts, in the order in which they were given. A `Result` has one part: itself."""
        return self._parts

    @property
    def unit(self) -> str:
        """The plural noun for what is counted, such as "clients" (see `Part.unit`).

        If the parts have different nouns, it is "contributions".
        """
        units = {part.unit for part in self.parts}
        return units.pop() if len(units) == 1 else "contributions"

    @property
    def is_exact(self) -> bool:
        """Whether estimates are exact counts: all parts are histograms without noise."""
        return all(part.is_exact for part in self.parts)

    @property
    def not_private(self) -> str:
        """The warning that a part is marked `not_private`; "" if no part is marked.

        It is the `Part.not_private` of the first marked part.
        """
        return next((part.not_private for part in self.parts if part.not_private), "")

    @property
    def alarms(self) -> tuple[str, ...]:
        """The notes which say that clients may have lied (docs/threat-model.md).

        `cautions` begins with these notes.
        """
        return tuple(dict.fromkeys(note for part in self.parts for note in notes.alarms(part)))

    @property
    def cautions(self) -> tuple[str, ...]:
        """The notes that can change what the numbers mean, such as those on data and privacy.

        The first of them are the `alarms`. `warnings` begins with these notes.
        """
        own = notes.on_parts(self.parts, self.num_contributions, self.disjoint)
        theirs = [note for part in self.parts for note in notes.cautions(part)]
        return tuple(dict.fromkeys([*self.alarms, *own, *theirs]))

    @property
    def warnings(self) -> tuple[str, ...]:
        """All notes for a reader of the numbers: first `cautions`, then all other notes."""
        theirs = [note for part in self.parts for note in notes.warnings(part)]
        return tuple(dict.fromkeys([*self.cautions, *theirs]))

    @property
    def joint_guarantee(self) -> JointGuarantee:
        """The privacy cost of all parts together to a client that takes part in every one of them.

        It counts only the sums of these parts. A population's ledger may have further charges, such
        as pilots, which this cost does not include.
        """
        return add_up_guarantees([part.plan.privacy for part in self.parts])

    @cached_property
    def _shares(self) -> F64:
        """The share of all contributions that each part has, float64 [parts]; the sum is 1.

        A contribution is what one client adds in one round.
        """
        return np.array([part.num_contributions / self.num_contributions for part in self.parts])

    @cached_property
    def _pooled(self) -> dict[str, PooledLimits]:
        """The results of `pooled_limits` so far, by the kind of the limits."""
        return {}

    def pooled_limits(self, kind: str | None = None) -> PooledLimits | None:
        """Return the object that computes limits of frequencies; None if the confidence is 0.

        Args:
            kind: the kind of the limits (see `make_intervals`); None: the kind of this answer.
        """
        if self.confidence == 0:
            return None
        kind = self.interval_kind if kind is None else kind
        if kind not in self._pooled:
            self._pooled[kind] = PooledLimits(self.parts, self._shares, kind)
        return self._pooled[kind]

    @property
    def about(self) -> str:
        """How the limits of frequencies were made, in words.

        It is "" if the confidence is 0: there are no limits then. It is also "" for one part with
        exact counts.
        """
        pooled = self.pooled_limits()
        return "" if pooled is None else pooled.about

    @property
    def rows(self) -> Rows:
        """The rows from which `top` and `to_arrow` take items: one row for each candidate.

        In an open domain (nobody lists its strings) the rows are the strings that stand out from
        the noise, see `answer_rows.Strings`.
        """
        return rows_of(self.parts)

    def estimates(self, items: Sequence[str | int] | str | int) -> list[Estimate]:
        """Return the estimates of one item or several, in the order given.

        In a domain of hashed strings (`domain.Strings`), any string has an estimate, whether it is
        a candidate or not. In an open domain, strings with the same hash cannot be told apart: each
        gets the estimate of all of them together. An estimate has limits unless the confidence is
        0. They hold for items that somebody named before the estimates were known.

        Raises:
            OutsideDomainError: an item is not in the domain.
            MemoryLimitError: the decoder must enumerate the domain, which is too large.
        """
        named = [items] if isinstance(items, str | int | np.integer) else list(items)
        if not named:
            return []
        ids = _ids(self, named)
        counts = [part.decoder.at(own) for part, own in zip(self.parts, ids, strict=True)]
        labels = [int(item) for item in named] if self.domain.holds_integers else named
        pooled = self.pooled_limits()
        limits = None if pooled is None else pooled.at(ids)
        return self._estimates(labels, counts, limits)

    def above_noise(self, estimates: Sequence[Estimate]) -> list[bool] | None:
        """Return for each estimate whether its item stands above noise; None if that is unknown.

        It is True for an item if the lower limit of its frequency exceeds 0. This limit is not the
        `low` of the estimate: it is made to hold for all candidates at once. So with the answer's
        confidence, there is no item at all that gets True although nobody holds it. The method
        returns None if the answer has no limits (confidence 0), or if the domain is open.

        >>> import fedtally
        >>> result = fedtally.estimate(["tea"] * 900, domain=["tea", "milk"], seed=1)
        >>> result.above_noise(result.estimates(["tea", "milk"]))
        [True, False]
        """
        if self.parts[0].plan.is_open or self.confidence == 0:
            return None
        if not estimates:
            return []
        pooled = self.pooled_limits("simultaneous")
        assert pooled is not None
        limits = pooled.at(_ids(self, [estimate.item for estimate in estimates]))
        above: list[bool] = (limits.low > 0).tolist()
        return above

    def top(
        self, k: int = 20, min_frequency: float | None = None, progress: Progress | None = None
    ) -> list[Estimate]:
        """Return the k largest estimates, largest first.

        Items with an estimate below half a client are left out, so there may be fewer than k. Equal
        estimates are ordered by the position of their items in the domain; in an open domain by
        hash, or by name if there are several parts. If the answer's intervals are of kind "auto",
        `low` and `high` allow for selection: items are on the list because their estimates are
        large. `population_low` and `population_high` combine `low` and `high` with a sampling error
        that does not allow for selection.

        Args:
            k: the most estimates to return, at least 0.
            min_frequency: the smallest frequency to list, from 0 to 1: a share of all
                contributions. None: no bound.
            progress: called as ("decode", candidates done, all candidates); never in an open
                domain.

        Raises:
            InvalidInputError: an argument is outside its bounds.
            MemoryLimitError: the domain is too large to decode all candidates; name items with
                `estimates` instead.
        """
        validate.integer(0, k=k)
        floor = LEAST
        if min_frequency is not None:
            least = validate.share(min_frequency=min_frequency)
            # The product may be rounded up, and would then leave out an item with exactly this
            # frequency: 0.07 * 100 is a little above 7.
            floor = max(floor, least * self.num_contributions * (1 - 2.0**-50))
        # Find one row more than asked for. The k listed rows had to reach the estimate of this row,
        # and the limits of a list depend on this threshold.
        rows = self.rows
        places, counts = _largest(rows.blocks(progress), k + 1, floor)
        reached = float(counts[:, k].sum()) if len(places) > k else floor
        places, counts = places[:k], counts[:, :k]
        if not len(places):
            return []
        pooled, threshold = self.pooled_limits(), _threshold(self, reached)
        limits = None if pooled is None else pooled.listed(rows.ids(places), threshold)
        return self._estimates(rows.labels(places), list(counts), limits)

    def frequencies(self, memory: int | None = None) -> F64:
        """Return the estimated frequencies of all candidates, by position, float64 [domain.size].

        They are shares of all contributions, and may be below 0.

        Args:
            memory: the most bytes for a table of all candidates; None: half of the machine's
                memory.

        Raises:
            InvalidInputError: the domain is open, or `memory` is no number.
            MemoryLimitError: the table would need more than `memory`, or the domain is too large to
                decode all candidates.
        """
        rows = self.rows
        rows.check_listed()
        rows.check_table(memory)
        return _total(
            [
                share * (counts / part.num_contributions)
                for share, part, counts in zip(self._shares, self.parts, rows.counts(), strict=True)
            ]
        )

    def limits(self, memory: int | None = None, kind: str | None = None) -> Limits | None:
        """Return the limits of the frequencies of all candidates; None if the confidence is 0.

        The two arrays, low and high, are float64 [domain.size], by position, from 0 to 1. They do
        not allow for selection: an item's limits hold if somebody named the item before the
        estimates were known. Limits of the kind "simultaneous" hold for all candidates at once.

        Args:
            memory: the most bytes for a table of all candidates; None: half of the machine's
                memory.
            kind: the kind of the limits (see `make_intervals`); None: the kind of this answer.

        Raises:
            InvalidInputError: the domain is open, `memory` is no number, or `kind` is not a kind of
                limits.
            MemoryLimitError: the table would need more than `memory`, or the domain is too large to
                decode all candidates.
        """
        rows = self.rows
        rows.check_listed()
        rows.check_table(memory)
        pooled = self.pooled_limits(kind)
        return None if pooled is None else pooled.all(rows.id_blocks())

    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` of all rows, largest estimate first.

        Its columns are the fields of `Estimate`, and `above_noise`. The limits do not allow for
        selection: they hold for items that somebody named beforehand. They are null if the
        confidence is 0. The entry `intervals` in the schema's metadata is the kind of the limits.
        `above_noise` says whether the item stands above noise (see the method `above_noise`). The
        whole column is null if there are no limits, if the domain is open, or if there are more
        than 2^20 candidates.

        If `not_private` has a warning, a column `note` repeats it. If the answer covers a window of
        rounds, a column `window` names the window.

        In an open domain, the rows are the strings that stand out from the noise. For one result, a
        column `hash` has the hash of each string in hexadecimal digits, and `item` is null if the
        name could not be read. For several results, the rows are the strings whose names at least
        one result read.

        Args:
            memory: the most bytes for the table; None: half of the machine's memory.

        Raises:
            MemoryLimitError: the table would need more than `memory`, or the domain is too large to
                decode all candidates.
        """
        import pyarrow as pa

        rows = self.rows
        rows.check_table(memory)
        pooled = self.pooled_limits()
        limits = None if pooled is None else pooled.all(rows.id_blocks())
        numbers = self._numbers(rows.counts(), limits)
        above = _all_above_noise(self, limits, memory)
        order = np.argsort(-numbers["frequency"], kind="stable")
        items = rows.columns(order)
        nothing = pa.nulls(len(order), pa.float64())
        columns = {
            "item": items.pop("item"),
            **{name: nothing if n is None else n[order] for name, n in numbers.items()},
            "above_noise": pa.nulls(len(order), pa.bool_()) if above is None else above[order],
            **items,
        }
        if span := self.parts[0].span:
            columns["window"] = pa.array([str(span)] * len(order))
        if self.not_private:
            columns["note"] = pa.array([self.not_private] * len(order))
        kind = None if limits is None else named_kind(self.interval_kind)
        return pa.table(columns, metadata={} if kind is None else {"intervals": kind})

    def _numbers(self, counts: Sequence[F64], limits: Limits | None) -> dict[str, Any]:
        """Return all columns of `Estimate` except `item`, by name, float64 [n] each.

        A column is None if it needs limits and there are none.

        Args:
            counts: for each part of the answer, the estimated counts of the n items: float64 [n].
            limits: the limits of the frequencies, float64 [n] each; None: there are none.
        """
        total = _total(counts)
        frequencies = total / self.num_contributions
        if limits is None:
            return {"frequency": frequencies, "low": None, "high": None, "count": total} | (
                dict.fromkeys(("sampling_error", "population_low", "population_high"))
            )
        if len(self.parts) > 1:
            limits = rounded(limits, frequencies)
        limits = clip_limits(limits)
        shared = zip(self._shares, self.parts, counts, strict=True)
        drawn = [
            share * part.sampling_error(own / part.num_contributions) for share, part, own in shared
        ]
        # If the results share no clients, their errors are independent, and the variances add up.
        # If results may share clients, nobody knows how many. In the worst case the errors
        # themselves add up.
        sampling = reduce(np.hypot if self.disjoint else np.add, drawn)
        off = uncertainty(frequencies, limits, sampling)
        return {
            "frequency": frequencies,
            "low": limits.low,
            "high": limits.high,
            "count": total,
            "sampling_error": off.sampling,
            "population_low": off.limits.low,
            "population_high": off.limits.high,
        }

    def _estimates(
        self, items: Sequence[Any], counts: Sequence[F64], limits: Limits | None
    ) -> list[Estimate]:
        nothing = [None] * len(items)
        columns = [
            nothing if n is None else n.tolist() for n in self._numbers(counts, limits).values()
        ]
        return [Estimate(item, *row) for item, *row in zip(items, *columns, strict=True)]

    def __len__(self) -> int:
        """Return the number of rows of `to_arrow`.

        If the domain is not open, it is the number of candidates. In an open domain, it is the
        number of strings that stand out. With several parts, only strings with a name count.

        Raises:
            OverflowError: the number is too large for `len`; use `domain.size`.
        """
        return len(self.rows)

    def __repr__(self) -> str:
        return (
            f"Answer({len(self.parts)} results, {self.unit}={self.num_contributions:,},"
            f" candidates={self.rows.size or 'none'})"
        )

    def _repr_html_(self) -> str:
        """Return the ten largest estimates as an HTML table for notebooks.

        Control characters are escaped, and long items are shortened in the middle. A string whose
        name was not read is shown as "#" and its hash. If there are more than 2^24 candidates,
        nothing is decoded. Then the result is one line: the numbers of contributions and of
        candidates, and a hint to name items.
        """
        rows = self.rows
        where = f" in {len(self.parts)} results" if len(self.parts) > 1 else ""
        span = self.parts[0].span
        where += f" in {html.escape(span.told)}" if span else ""
        candidates = f"{rows.size or 'no list of'} candidates"
        head = f"{self.num_contributions:,} {self.unit}{where}, {candidates}"
        head += f", <strong>{html.escape(self.not_private)}</strong>" * bool(self.not_private)
        if not rows.are_few():
            return f"<p>{head}: name items with <code>result.estimates</code></p>"
        shown = self.top(NOTEBOOK_ROWS)
        if 0 < len(shown) < len(rows):
            head += f"; the largest {len(shown):,}"
        return notebook_table(head, self.unit, self.confidence, shown, self.warnings)


def _ids(answer: Answer, items: Sequence[str | int]) -> list[U64]:
    """Return the ids of the items: a list of uint64 [items], one array for each part of the answer.

    An id is the integer that a sketch counts. In an open domain each part hashes strings with the
    key of its own plan, so the ids of an item differ from part to part. Otherwise they are equal.

    Raises:
        OutsideDomainError: an item is not in the domain.
    """
    try:
        return [part.domain.encode(items) for part in answer.parts]
    except OutsideDomainError:
        raise _no_candidates(answer, items) from None


def _threshold(answer: Answer, reached: float) -> float | None:
    """Return the frequency that an estimate had to reach to be listed; None if it is unknown.

    Limits are made around the estimates of a part before shrinkage, which pulls noisy estimates
    together to lower their error. In an answer of one part without shrinkage, the same estimates
    choose the list, or nearly the same in a window with a prior. Then the threshold is `reached`
    divided by the number of contributions. With shrinkage or several parts, other numbers choose
    the list, so the threshold is unknown.

    Args:
        answer: an answer.
        reached: the estimated count that each listed estimate had to reach.
    """
    if len(answer.parts) > 1 or answer.parts[0].objective != "linf":
        return None
    return reached / answer.num_contributions


def _largest(blocks: Iterable[tuple[int, list[F64]]], k: int, floor: float) -> tuple[I64, F64]:
    """Return the k rows with the largest estimates, largest first: their places and their counts.

    The places are the numbers of the rows, int64 [n], with n <= k. The counts are float64 [parts,
    n]: the estimated count of each row in each part of the answer. Rows are compared by the sum of
    their counts over all parts; equal sums are ordered by place.

    Args:
        blocks: the rows in blocks, as `Rows.blocks` yields them: the place of the first row, and
            for each part the counts, float64 [rows of the block].
        k: the most rows to return.
        floor: the smallest sum of counts to list, in clients.
    """
    places, counts, totals = np.empty(0, np.int64), np.empty((0, 0)), np.empty(0)
    for start, block in blocks:
        # Sorting all rows would be slow, so sort only rows that could enter the list. While the
        # list has fewer than k rows, these are all rows of at least `floor`. Later they must also
        # reach the smallest sum in the list.
        least = max(floor, totals.min() if len(totals) == k else -np.inf)
        hits = np.flatnonzero(_total(block) >= least)
        places = np.concatenate([places, start + hits])
        counts = np.hstack([counts.reshape(len(block), -1), [own[hits] for own in block]])
        totals = _total(counts)
        kept = np.lexsort((places, -totals))[:k]
        places, counts, totals = places[kept], counts[:, kept], totals[kept]
    return places, counts


def _total(counts: Sequence[F64] | F64) -> F64:
    """Return for each item the sum of its numbers in all parts, float64 [n].

    Args:
        counts: for each part of the answer, one number for each of the n items, such as its
            estimated count.
    """
    total: F64 = reduce(np.add, counts)
    return total


def _check_parts(parts: Sequence[Part]) -> None:
    """Raise InvalidInputError unless these results can be merged, as `Answer` says."""
    if len(parts) < 2:
        raise InvalidInputError(f"merge takes two results or more, got {len(parts)}")
    first = parts[0]
    for other in parts[1:]:
        if not other.domain.public or other.domain.describe() != first.domain.describe():
            raise InvalidInputError(
                "the results are over different candidates, or over the same ones in another order:"
                " only those over one declared domain can be merged; estimate each of them with the"
                f" same list ({opt.domain('FILE')})"
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
    prints = [part.plan.fingerprint for part in parts]
    # Results of one plan have the same hashes, so the same items collide in both results. The
    # errors of the results would not average out, and the pooled limits would be too narrow.
    if len(set(prints)) < len(prints):
        raise InvalidInputError(
            "two of the results are of one plan: their errors are not independent; merge"
            f" results of different plans (a run without {opt.plan} makes one of its own)"
        )


def _no_candidates(answer: Answer, named: Sequence[str | int]) -> OutsideDomainError:
    """Return the error (to raise) which says that items are not in the answer's domain.

    It names the first such item. If a small dictionary has a similar candidate, it suggests that.

    Args:
        answer: an answer.
        named: the items that were asked for; at least one is not in the domain.
    """
    domain = answer.domain
    lacking = [n for n, known in zip(named, domain.contains(named), strict=True) if not known]
    many = f" ({len(lacking):,} of {len(named):,} items)" if len(lacking) > 1 else ""
    hint = ""
    if domain.kind == "dictionary" and domain.size <= _MOST_COMPARED:
        hint = validate.did_you_mean(str(lacking[0]), domain.labels(range(domain.size)))
    return OutsideDomainError(
        f"{str(lacking[0])!r} was no candidate of this result{many}, and it has estimates of"
        f" candidates alone ({domain}): leave it out{hint}"
    )


def _all_above_noise(answer: Answer, limits: Limits | None, memory: int | None) -> Bools | None:
    """Return for each candidate whether it stands above noise, bool [domain.size], by position.

    See `Answer.above_noise`. Returns None if this is unknown, or if there are more than
    `MOST_AGAIN` candidates: to decode them again would take too long.

    Args:
        answer: an answer.
        limits: the limits of all candidates, of the answer's kind; None: there are none.
        memory: the most bytes for a table of all candidates; None: half of the machine's memory.
    """
    if limits is None or answer.above_noise([]) is None or answer.domain.size > MOST_AGAIN:
        return None
    if named_kind(answer.interval_kind) != "simultaneous":
        limits = answer.limits(memory, kind="simultaneous")
        assert limits is not None
    above: Bools = limits.low > 0
    return above
