"""The answer of a campaign: landed sums, decoded when somebody asks for estimates."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.answer import files, notes
from fedtally.answer import provenance as told
from fedtally.answer.estimates import (
    Estimate,
    Uncertainty,
    clip_limits,
    is_told_from_zero,
    uncertainty,
    with_doubts,
)
from fedtally.answer.evaluation import Evaluation, NameEvaluation, Truth, evaluate
from fedtally.answer.files import check_table_fits
from fedtally.answer.frames import NOTEBOOK_ROWS, Tabular, notebook_table
from fedtally.base import validate
from fedtally.domain import Domain, OpenStrings, Unread
from fedtally.domain.columns import as_text
from fedtally.errors import IncompatibleError, InvalidInputError, OutsideDomainError, arg
from fedtally.plan import Plan
from fedtally.privacy import NOT_PRIVATE
from fedtally.recovery.decoders import OPEN
from fedtally.recovery.decoders.kind import CampaignDecoder
from fedtally.recovery.decoding import (
    AUTO,
    Decoding,
    check_enumerable,
    kind_of,
    named_kind,
)
from fedtally.recovery.found import FoundFit
from fedtally.recovery.intervals import (
    Intervals,
    Limits,
    NoisyNumberIntervals,
    make_intervals,
    sampling_error,
)
from fedtally.recovery.linear_system import (
    BLOCK,
    Decoder,
    Ids,
    ask,
    check_landed,
    ids_between,
    landed_batches,
)
from fedtally.recovery.names import read_names
from fedtally.recovery.shrinkage import ShrunkDecoder
from fedtally.sketch import CountSketch, check_compatible

# Candidates up to which a notebook lists the largest by itself: a second or two of decoding.
MAX_LISTED = 1 << 24
_MOST_COMPARED = 1 << 18  # candidates among which a likely name is looked for: a second or two
_ROWS = 1 << 12  # that become Python objects at once
_LEAST = 0.5  # of a client: what rounds to none is no item to list
AS_USUAL = Decoding()

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Progress = Callable[[str, int, int | None], None]


class Result(Tabular):
    """The answer of a campaign: landed sums and what they say about the items.

    Estimates are counts over the clients of all landed rounds; a client of several rounds counts in
    each. A frequency is a count divided by the number of these contributions. The sums are kept,
    and decoded when estimates are asked for.

    Args:
        plan: the campaign's plan.
        domain: the candidate items.
        sketches: the landed sums, at most one per round. If the plan has privacy, each sum holds
            the noise of that plan and the mark of it.
        decoding: how the sums are decoded.
        truth: the true counts, where a simulation knows them and evaluation was asked for.
        warnings: notes that a reader of the numbers needs.
        missing: the number of rows that were dropped because they lacked an item, client or round.
        secure_sum: how the sums were made, JSON-able; None: as the plan says.
        sizing: how the sketch's size was chosen for a target, JSON-able; None: the size was given,
            or follows from a number of bytes.
        timings: the seconds of each stage.
        attendance: at place k - 1, the number of clients that took part in exactly k rounds; None:
            no client is in more than one, or the number is private.
        num_silos: the number of silos, each counted once; None: none is in two of the sums.
        draw: the number of items that the bound on a client's items dropped, JSON-able; None: none
            were dropped, or the number is private.
        columns: the names of the table's columns by the part that they play ("item", "client",
            "round", "count"), where the source says which there are. A column without a name has
            an empty list.
        words: of a public list, those whose hashes stand out (`recognise`).
        known_fit: the fit that joint recovery found in these sums before; None: it looks for one.
        known_names: the names of an open domain that were read from these sums before; None: they
            are read when somebody asks for them.

    Attributes:
        decoding: how the sums are decoded, with the name of the decoder in place of "auto".
        num_clients: the number of clients that took part, each counted once; where the repeats of
            people in silos are private, the number of contributions.
        num_contributions: the number of sketches in the sums: a client of three rounds has three.
            Frequencies are shares of them.
        num_silos: the number of silos that took part, each counted once; 0 where clients are no
            silos. Under a plan of silos the other numbers count people.
        command: the command that made the answer; "" if none did.

    Raises:
        IncompatibleError: the sums, or an open domain, are not those of the plan.
        InvalidInputError: nobody took part; `attendance` does not add up to the contributions in
            the sums; there are more silos than in all sums together; or the plan guarantees
            privacy, and a sum has no noise or another plan's.

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
        num_silos: int | None = None,
        draw: Mapping[str, Any] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        words: Sequence[str] = (),
        known_fit: FoundFit | None = None,
        known_names: Sequence[str] | None = None,
        command: str = "",
    ) -> None:
        self.plan = plan
        self.domain = domain.with_seed(plan.seed)
        self.sketches = list(sketches)
        _check_planned(plan, self.domain, self.sketches)
        _check_noised(plan, self.sketches)
        _check_silos(plan, self.sketches)
        self.truth = truth
        self._warnings = tuple(warnings)
        self.missing, self.command = missing, command
        self.secure_sum: dict[str, Any] = dict(secure_sum or told.planned_sum(plan))
        self.draw = None if draw is None else dict(draw)
        self.columns = {part: [str(n) for n in names] for part, names in (columns or {}).items()}
        self.sizing = None if sizing is None else dict(sizing)
        self.words, self._known_fit = tuple(words), known_fit
        self._known_names = None if known_names is None else tuple(known_names)
        self.timings = dict(timings or {})
        self._asked = decoding
        self.decoding = decoding.resolved(
            domain.size,
            plan.rows,
            plan.encoding,
            batches=len(landed_batches(plan.spec, self.sketches)),
            planned=plan.is_open,
        )
        self.objective = self.decoding.objective
        if plan.is_open and self.recovery != OPEN:
            raise InvalidInputError(
                f"{arg.recovery} must be {OPEN} where the domain is open: it finds the hashes that"
                f" stand out, got {self.recovery}"
            )
        self.confidence, self.interval_kind = self.decoding.confidence, self.decoding.intervals
        self._made: dict[tuple[str, float], Intervals] = {}
        self.evaluation: Evaluation | NameEvaluation | None = None
        # each adds noise to each of its sums
        self._silos_in_sums = sum(sketch.num_silos for sketch in self.sketches)
        self.num_silos = (
            self._silos_in_sums
            if num_silos is None
            else validate.integer(
                min(1, self._silos_in_sums), self._silos_in_sums, num_silos=num_silos
            )
        )
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
        # k rounds of a client are k contributions
        counted = sum(rounds * number for rounds, number in enumerate(self.attendance, start=1))
        if counted != self.num_contributions or min(self.attendance) < 0:
            raise InvalidInputError(
                f"attendance must add up to the {self.num_contributions:,} contributions in the"
                f" sums, got {counted:,}"
            )
        self.num_clients = sum(self.attendance)

    def prepare(self, progress: Progress | None = None, *, names: bool = True) -> None:
        """Fit the decoder and calibrate the intervals now, not at the first question.

        Args:
            progress: called as ("recover", candidates looked at, candidates to look at), and as
                ("names", ...) where the domain is open.
            names: whether to read names, too, where the domain is open.

        Raises:
            MemoryLimitError: joint recovery must enumerate the domain, and it is too large.
            InvalidInputError: too few rows for the kind of interval.
        """
        self._progress = progress
        _ = self.decoder, self.intervals
        if names:
            _ = self.names
        self._progress = None

    # Reported to while `_recovered` fits. A cached property takes no arguments, so `prepare` leaves
    # it here.
    _progress: Progress | None = None

    @property
    def recovery(self) -> str:
        """How the sums are decoded: the name of a decoder, such as "joint" or "median".

        Where nobody asked for a decoder by its name, and one turns out not to fit the sums, it is
        that of the decoder that takes its place from then on.
        """
        decoder = self._fitted
        return self.decoding.recovery if decoder is None else str(decoder.recovery)

    @property
    def _fitted(self) -> CampaignDecoder | None:
        """The decoder before shrinkage; None before anybody asked for it: this starts no fit."""
        found: CampaignDecoder | None = self.__dict__.get("_recovered")  # past the cached property
        return found

    @cached_property
    def _recovered(self) -> CampaignDecoder:
        """The decoder before shrinkage. Intervals are built on it: shrinkage would bias them."""
        kind, report = kind_of(self.recovery), self._progress
        if kind.fits_items:
            check_enumerable(self.domain)
        told = None if report is None else lambda done, total: report("recover", done, total)
        terms = self.plan.privacy
        found = kind.make(
            self.sketches, self.domain, progress=told, terms=terms, found=self._known_fit
        )
        return found.instead if self._asked.recovery == AUTO else found

    @property
    def known_fit(self) -> FoundFit | None:
        """The fit that a decoder found in these sums; None before it has decoded them."""
        found = None if self._fitted is None else self._fitted.found
        return self._known_fit if found is None else found

    @cached_property
    def _found(self) -> dict[int, float]:
        """The frequencies of the hashes that stand out, where the domain is open."""
        if not self.plan.is_open:
            return {}
        ids = self._recovered.heavy_ids
        counts = self.decoder.at(ids)
        listed = counts >= _LEAST  # a fit may have items of negative counts, which nobody holds
        found = (counts[listed] / self.num_contributions).tolist()
        return dict(zip(ids[listed].tolist(), found, strict=True))

    @property
    def found(self) -> I64:
        """The hashes that stand out, rising, where the domain is open: int64 [n]; else none."""
        return np.array(sorted(self._found), np.int64)

    @property
    def num_found(self) -> int:
        """The number of hashes that stand out, where the domain is open; 0 elsewhere."""
        return len(self._found)

    @property
    def num_unread(self) -> int:
        """The number of hashes that stand out and could not be read; 0 before names are read."""
        # past the cached property: whoever asks for notes must not start to read
        names = self.__dict__.get("names")
        return 0 if names is None else self.num_found - len(names)

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of the hashes that were read, where the domain is open.

        A hash that stands out and is not there was found, and could not be read.
        """
        if not isinstance(self.domain, OpenStrings):
            return {}
        if self._known_names is not None:
            hashes = self.domain.encode(self._known_names).tolist()
            known = zip(hashes, self._known_names, strict=True)
            return {hash: name for hash, name in known if hash in self._found}
        report = self._progress
        words: dict[int, list[str]] = {}
        for word, found in zip(self.words, self.domain.encode(self.words).tolist(), strict=True):
            words.setdefault(found, []).append(word)
        return read_names(
            self.sketches,
            self.domain,
            self._found,
            None if report is None else lambda done, total: report("names", done, total),
            words,
        )

    @property
    def known_names(self) -> tuple[str, ...] | None:
        """The names of an open domain, sorted; None before they were read."""
        # past the cached property: whoever saves a result must not start to read
        names = self.__dict__.get("names")
        return self._known_names if names is None else tuple(sorted(names.values()))

    def recognise(self, columns: Iterable[Any]) -> None:
        """Let the words of a public list be the names of hashes that stand out.

        A word names a hash if the spelling of the sums fits it, and fits no other word of the list
        as well. No frequency changes, and the words that have the hash of one that stands out stay
        with the result. A list of what clients hold is not public.

        Args:
            columns: of text, one after the other: the list may be larger than the memory.

        Raises:
            InvalidInputError: the domain is not open.
        """
        if not isinstance(self.domain, OpenStrings):
            raise InvalidInputError(
                "a list of words names the hashes of an open domain, and this one has candidates"
            )
        found, kept = np.array(sorted(self._found), np.uint64), set(self.words)
        for column in columns:
            text = self.domain.text(column)
            stands_out = np.isin(self.domain.encode(text), found)
            kept.update(as_text(text).filter(stands_out).to_pylist())
        self.words, self._known_names = tuple(sorted(kept)), None
        self.__dict__.pop("names", None)

    @cached_property
    def decoder(self) -> Decoder:
        """The decoder that turns the landed sums into estimated counts.

        Raises `MemoryLimitError` where the domain is too large for joint recovery or shrinkage,
        which must enumerate it.
        """
        if self.objective == "linf":
            return self._recovered
        check_enumerable(self.domain)
        return ShrunkDecoder(self._recovered, self.domain)

    @cached_property
    def intervals(self) -> Intervals | None:
        """The intervals that give items their limits; None where the confidence is 0."""
        return None if self.confidence == 0 else self.intervals_of(self.interval_kind)

    def intervals_of(self, kind: str, confidence: float | None = None) -> Intervals:
        """Return the intervals of another kind, or of another confidence, of the same estimates.

        Args:
            kind: the kind, one of `make_intervals`'s.
            confidence: the level, above 0 and below 1; None: the result's.
        """
        level = self.confidence if confidence is None else confidence
        if (kind, level) not in self._made:
            self._made[kind, level] = self._make_intervals(kind, level)
        return self._made[kind, level]

    def _make_intervals(self, kind: str, confidence: float) -> Intervals:
        made = make_intervals(self._recovered, self.sketches, self.domain, confidence, kind)
        terms = self.plan.privacy
        if terms is None or terms.event.relation != "add-remove":
            return made
        # Under this relation the number of clients is noised, too, in each release. Shares of it
        # are as uncertain as it is.
        # Shares of silos add up: that number has the noise of all silos in all sums.
        stddev = self.plan.protection.stddev(self._silos_in_sums, len(self.sketches))
        return NoisyNumberIntervals(made, stddev / self.num_contributions, confidence)

    def decoded(
        self,
        *,
        recovery: str | None = None,
        objective: str | None = None,
        confidence: float | None = None,
        intervals: str | None = None,
    ) -> Result:
        """Return the answer of the same sums, decoded in another way; None keeps a setting.

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
            decoding=replace(self._asked, **changed),
            truth=self.truth,
            warnings=self._warnings,
            missing=self.missing,
            secure_sum=self.secure_sum,
            sizing=self.sizing,
            attendance=self.attendance,
            num_silos=self.num_silos,
            draw=self.draw,
            columns=self.columns,
            words=self.words,
            known_fit=self.known_fit,
            # shrinkage moves the least of them above or below what is listed
            known_names=self.known_names if objective in (None, self.objective) else None,
            command=self.command,
        )

    @property
    def cautions(self) -> tuple[str, ...]:
        """Those of the `warnings` that say what these data and this privacy do to the numbers."""
        spaces, odd = notes.on_spaces(self.domain), notes.on_oddities(self.domain)
        return (*self.alarms, *spaces, *odd, *self._warnings, *notes.on_target(self))

    @property
    def alarms(self) -> tuple[str, ...]:
        """Those of the `cautions` that say that clients may have lied (docs/screening.md)."""
        return tuple(notes.on_screening(self))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notes that a reader of the numbers needs, on the data and on how they are decoded."""
        # Past the cached properties: whoever asks for notes must not start a fit.
        return tuple(notes.on(self, self.__dict__.get("_recovered")))

    def __repr__(self) -> str:
        candidates = "none" if self.plan.is_open else f"{self.domain.size:,}"
        return (
            f"Result({self.plan.nouns[1]}={self.num_clients:,}, candidates={candidates},"
            f" plan={self.plan.fingerprint[:12]})"
        )

    def __len__(self) -> int:
        """Return the number of rows of `to_arrow`.

        These are all candidates; of an open domain, the strings that stand out.

        Raises:
            OverflowError: more than Python can count by `len`; `domain.size` says how many.
        """
        if self.plan.is_open:
            return self.num_found
        if self.domain.size > sys.maxsize:
            raise OverflowError(
                f"{self.domain.size:,} candidates are more than len() can say: use domain.size"
            )
        return self.domain.size

    def __bool__(self) -> bool:
        """Return that there is an answer; without this, Python would ask for the length."""
        return True

    def __iter__(self) -> Iterator[Estimate]:
        """Yield the estimate of every candidate, largest first, as `to_arrow` has them.

        The limits are those of an item named beforehand, not of a list.
        """
        names = [field.name for field in fields(Estimate)]
        for batch in self.to_arrow().select(names).to_batches(max_chunksize=_ROWS):
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield Estimate(*row)

    def _repr_html_(self) -> str:
        """Return the ten largest estimates as an HTML table, which notebooks show.

        Control characters are escaped, and long items elided in the middle. A hash without a name
        is shown by "#". A list of candidates too long to enumerate shows its sizes alone.
        """
        candidates = "no list of" if self.plan.is_open else f"{self.domain.size:,}"
        head = f"{self.num_contributions:,} {self.unit}, {candidates} candidates" + (
            f", <strong>{html.escape(self.not_private)}</strong>" if self.not_private else ""
        )
        if self.domain.size > MAX_LISTED and not self.plan.is_open:
            return f"<p>{head}: name items with <code>result.estimates</code></p>"
        shown = self.top(NOTEBOOK_ROWS)
        if 0 < len(shown) < len(self):
            head += f"; the largest {len(shown):,}"
        return notebook_table(head, self.unit, self.confidence, shown, self.warnings)

    def top(
        self, k: int = 20, min_frequency: float | None = None, progress: Progress | None = None
    ) -> list[Estimate]:
        """Return the k largest estimates, largest first, ties by position in the domain.

        Estimates below half a client are left out, so the list may have fewer than k. The limits
        allow for the fact that the estimates chose the list, unless another kind of interval was
        asked for.

        Args:
            k: the length of the list, at least 0.
            min_frequency: the smallest frequency to list, from 0 to 1.
            progress: called as (stage, candidates done, candidates).

        Raises:
            InvalidInputError: an argument is outside its bounds.
            MemoryLimitError: the domain is too large to enumerate; name items with `estimates`
                instead.
        """
        validate.integer(0, k=k)
        floor = _LEAST
        if min_frequency is not None:
            least = validate.share(min_frequency=min_frequency)
            floor = max(floor, least * self.num_contributions)
        positions, counts = np.empty(0, np.int64), np.empty(0)
        for places, block in self._listable(progress):
            # Only estimates that could enter the list are sorted. Before k + 1 are known all could.
            hits = np.flatnonzero(block >= max(floor, counts.min() if len(counts) > k else -np.inf))
            positions, counts = (
                np.concatenate([positions, places[hits]]),
                np.concatenate([counts, block[hits]]),
            )
            # One more than k: it is the estimate that the others had to exceed, on which the limits
            # of a chosen list depend.
            kept = np.lexsort((positions, -counts))[: k + 1]
            positions, counts = positions[kept], counts[kept]
        reached = float(counts[k]) if len(counts) > k else floor
        positions, counts = positions[:k], counts[:k]
        if not len(positions):
            return []
        ids = self.domain.ids_at(positions)
        labels = [
            self.names.get(position, label)
            for position, label in zip(
                positions.tolist(), self.domain.labels(positions), strict=True
            )
        ]
        # The limits belong to the estimate before shrinkage, and the list was chosen after it. So
        # the value that the former had to reach is not known.
        threshold = reached / self.num_contributions if self.objective == "linf" else None
        limits = None if self.intervals is None else self.intervals.listed(ids, threshold)
        return self._estimates(labels, counts, limits)

    def _listable(self, progress: Progress | None) -> Iterator[tuple[I64, F64]]:
        """Yield positions and estimated counts of all that a list may hold.

        These are all candidates; of an open domain, those that stand out: the others have no name.
        """
        if self.plan.is_open:
            yield self.found, self.decoder.at(self.found.view(np.uint64))
            return
        for start, _, block in self.blocks(progress):
            yield np.arange(start, start + len(block)), block

    def estimates(self, items: Sequence[str | int] | str | int) -> list[Estimate]:
        """Return the estimates of named items, in the order given.

        In a domain of strings an item need not be a candidate. In an open domain the estimate is
        that of all strings of the same hash.

        Raises:
            OutsideDomainError: an item is not in the domain.
        """
        named = [items] if isinstance(items, str | int | np.integer) else list(items)
        if not named:
            return []
        try:
            ids = self.domain.encode(named)
        except OutsideDomainError:
            raise self._no_candidates(named) from None
        labels = (
            [int(item) for item in named] if self.domain.kind in ("range", "integers") else named
        )
        return self._estimates(
            labels, self.decoder.at(ids), None if self.intervals is None else self.intervals.at(ids)
        )

    def above_noise(self, estimates: Sequence[Estimate]) -> list[bool] | None:
        """Return whether each estimate of a list surely stands above noise.

        >>> import fedtally
        >>> result = fedtally.estimate(["tea"] * 900, domain=["tea", "milk"], seed=1)
        >>> result.above_noise(result.estimates(["tea", "milk"]))
        [True, False]
        """
        if self.plan.is_open or self.confidence == 0:
            return None
        if not estimates:
            return []
        ids = self.domain.encode([estimate.item for estimate in estimates])
        above: list[bool] = (self.intervals_of("simultaneous").at(ids).low > 0).tolist()
        return above

    def _no_candidates(self, named: Sequence[str | int]) -> OutsideDomainError:
        """Return the error on items that this result cannot have an estimate of."""
        there = self.domain.contains(named)
        lacking = [name for name, known in zip(named, there, strict=True) if not known]
        many = f" ({len(lacking):,} of {len(named):,} items)" if len(lacking) > 1 else ""
        hint = ""
        if self.domain.kind == "dictionary" and self.domain.size <= _MOST_COMPARED:
            labels = self.domain.labels(range(self.domain.size))
            hint = validate.did_you_mean(str(lacking[0]), labels)
        return OutsideDomainError(
            f"{str(lacking[0])!r} was no candidate of this result{many}, and it has estimates of"
            f" candidates alone ({self.domain}): leave it out{hint}"
        )

    def frequency(self, item: str | int) -> float:
        """Return the estimated share of the clients that contribute the item; it may be below 0."""
        return self.estimates([item])[0].frequency

    def true_frequencies(self, items: Sequence[str | int]) -> list[float] | None:
        """Return the true frequencies of named items; None if the truth is unknown.

        They are shares among the clients that took part. An item outside the domain has 0.
        """
        if self.truth is None:
            return None
        # An item outside the domain is nobody's: the domain cannot locate it, and its count is 0.
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
            memory: the bytes that the table may take; half of the machine's memory by default.

        Raises:
            MemoryLimitError: the table would not fit.
        """
        return self._all_counts(memory) / self.num_contributions

    def _all_counts(self, memory: int | None) -> F64:
        """Return the estimated count of every candidate, by position."""
        self.check_listed()
        self._check_table_fits(memory)
        return np.concatenate([block for _, _, block in self.blocks()])

    def _check_table_fits(self, memory: int | None) -> None:
        """Raise MemoryLimitError unless a table of all candidates fits, beside the decoder."""
        plan = self.plan
        batches = len(landed_batches(plan.spec, self.sketches))
        kind = kind_of(self.recovery)
        held = kind.held_bytes(self.domain.size, plan.rows, batches)
        check_table_fits(self.domain.size, memory, held, kind.rests_on)

    def check_listed(self) -> None:
        """Refuse what looks at every candidate, where nobody has the list of them.

        Raises:
            InvalidInputError: the domain is open.
        """
        if self.plan.is_open:
            raise InvalidInputError(
                "a table of all candidates is not for an open domain, whose strings nobody has"
                " listed: ask for the top items, or name strings"
            )

    def limits(self, memory: int | None = None, kind: str | None = None) -> Limits | None:
        """Return the limits of every candidate's frequency, by position; None where there are none.

        Each of the two arrays is float64 [domain.size]. The limits are those of items that were
        named before anybody saw an estimate.

        Args:
            memory: the bytes that the table may take; half of the machine's memory by default.
            kind: the kind of limits: "simultaneous" hold at once; None: as asked for.

        Raises:
            MemoryLimitError: the table would not fit.
        """
        self.check_listed()
        self._check_table_fits(memory)
        if self.confidence == 0:
            return None
        intervals = self.intervals_of(self.interval_kind if kind is None else kind)
        parts = [intervals.at(ids_between(self.domain, *block)) for block in self.block_bounds()]
        return clip_limits(Limits(*(np.concatenate(ends) for ends in zip(*parts, strict=True))))

    def to_arrow(self, memory: int | None = None) -> Any:
        """Return a `pyarrow.Table` of every candidate, largest estimate first.

        Its columns are the fields of `Estimate`. The limits are those of an item named beforehand,
        not of a list, which the schema's metadata say in `intervals`. If the run is marked not
        private, a further column `note` says so.

        Of an open domain the rows are the strings that stand out. A further column `hash` has their
        hashes, in hexadecimal digits, and `item` is null where the name could not be read.
        """
        import pyarrow as pa

        columns: dict[str, Any] = {}
        if self.plan.is_open:
            found = self.found
            counts = self.decoder.at(found.view(np.uint64))
            limits = None
            if self.intervals is not None:
                limits = clip_limits(self.intervals.at(found.view(np.uint64)))
        else:
            counts, limits = self._all_counts(memory), self.limits(memory)
        frequencies = counts / self.num_contributions
        order = np.argsort(-frequencies, kind="stable")
        if self.plan.is_open:
            hashes = found[order].tolist()
            labels = pa.array([self.names.get(h) for h in hashes], pa.string())
            columns["hash"] = pa.array([str(Unread.of(h))[1:] for h in hashes], pa.string())
        else:
            labels = pa.array(self.domain.labels(order))
        nothing = pa.nulls(len(order), pa.float64())
        sampled = dict.fromkeys(("sampling_error", "population_low", "population_high"), nothing)
        if limits is not None:
            limits = Limits(limits.low[order], limits.high[order])
            off = self._uncertainty(frequencies[order], limits)
            sampled = dict(zip(sampled, (off.sampling, *off.limits), strict=True))
        columns = {
            "item": labels,
            "frequency": frequencies[order],
            "low": nothing if limits is None else limits.low,
            "high": nothing if limits is None else limits.high,
            "count": counts[order],
            **sampled,
            **columns,
        }
        if self.not_private:
            columns["note"] = pa.array([self.not_private] * len(order))
        kind = None if limits is None else named_kind(self.interval_kind)
        return pa.table(columns, metadata={} if kind is None else {"intervals": kind})

    @property
    def evaluation_fields(self) -> dict[str, Any] | None:
        """The errors against the truth as the fields of documents; None where it is not known."""
        return None if self.evaluation is None else self.evaluation._asdict()

    @property
    def repeats_are_private(self) -> bool:
        """Whether people of silos may count several times, and nobody may know how many do."""
        terms = self.plan.privacy
        return self.plan.is_of_silos and terms is not None and terms.event.contributions > 1

    @property
    def unit(self) -> str:
        """The noun for the things that are counted: "clients", "people" or "contributions".

        They are people where clients are silos, and contributions where a client, or a person of
        silos, may be in several rounds, or a person in several silos.
        """
        if self.num_clients != self.num_contributions or self.repeats_are_private:
            return "contributions"
        return self.plan.nouns[1]

    @property
    def is_exact(self) -> bool:
        """Whether estimates are the counts themselves: those of a histogram without noise."""
        return not kind_of(self.recovery).has_collisions and self.plan.privacy is None

    @property
    def not_private(self) -> str:
        """The mark that every output of a run with `not_private` carries; "" for other runs."""
        return (
            NOT_PRIVATE if self.plan.privacy is not None and self.plan.privacy.not_private else ""
        )

    def _uncertainty(self, frequencies: F64, limits: Limits) -> Uncertainty:
        return uncertainty(frequencies, limits, self._sampling_error(frequencies))

    def _sampling_error(self, frequencies: F64) -> F64:
        # Clients, not contributions, are the sample. Clients that hold the same in many rounds tell
        # as much as fewer clients of one round each: (sum k)^2 / sum k^2 of them (Kish 1965).
        squares = sum(rounds**2 * number for rounds, number in enumerate(self.attendance, start=1))
        if self.repeats_are_private:  # at worst everybody comes as often as may be
            assert self.plan.privacy is not None
            squares *= self.plan.privacy.event.contributions
        return sampling_error(
            frequencies, max(1, self.num_contributions**2 // squares), self.confidence
        )

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        k: int = 20,
        estimates: Sequence[Estimate] | None = None,
        narrow: bool = False,
    ) -> Any:
        """Return a matplotlib figure of estimates; write it to `path` if given.

        Each bar has its limits: among the clients, and if they stand for more people. Where the
        truth is known, a second panel shows estimate minus truth.

        Args:
            path: ends in .png, .svg or .pdf.
            k: the number of items, most frequent first.
            estimates: the estimates to draw instead of the k largest.
            narrow: for a phone: short labels, and the bars alone.

        Raises:
            MissingExtraError: matplotlib is not installed.
            InvalidInputError: another suffix, or a folder that cannot be written.
        """
        from fedtally.answer import charts

        drawn = self.top(k) if estimates is None else estimates
        drawn = with_doubts(drawn, self.above_noise(drawn))
        return charts.top_items(
            drawn,
            self.num_contributions,
            truth=self.true_frequencies([estimate.item for estimate in drawn]),
            doubtful=[not is_told_from_zero(estimate) for estimate in drawn],
            confidence=self.confidence,
            note=self.not_private,
            unit=self.unit,
            narrow=narrow,
            path=path,
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write sums, plan and candidates to one file, whole or not at all.

        True counts are not written. Candidates are: in a domain `input` they are the clients' own
        items.
        """
        files.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a result that `save` wrote.

        Raises:
            UnreadableFileError: the file is missing, damaged, or of another kind.
        """
        return files.load(cls, path)

    def evaluate(self, k: int = 20) -> Evaluation | NameEvaluation:
        """Compare all estimates with the truth, and keep the figures as `evaluation`.

        Of an open domain the names are compared.

        Raises:
            InvalidInputError: the truth is not known: the result was loaded from a file, or
                evaluation was not asked for.
        """
        self.evaluation = evaluate(self, k)
        return self.evaluation

    def block_bounds(self) -> Iterator[tuple[int, int]]:
        """Yield the first position, and the one after the last, of each block of candidates."""
        check_enumerable(self.domain)
        for start in range(0, self.domain.size, BLOCK):
            yield start, min(start + BLOCK, self.domain.size)

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, Ids, F64]]:
        """Yield (first position, ids, estimated counts) of consecutive candidates.

        Args:
            progress: called as ("decode", candidates done, candidates).
        """
        for start, stop in self.block_bounds():
            ids = ids_between(self.domain, start, stop)
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
        limits = clip_limits(limits)
        off = self._uncertainty(frequencies, limits)
        columns = (frequencies, *limits, counts, off.sampling, *off.limits)
        return [
            Estimate(item, *row)
            for item, *row in zip(items, *(c.tolist() for c in columns), strict=True)
        ]


def _check_silos(plan: Plan, sketches: Sequence[CountSketch]) -> None:
    """Refuse sums that count clients where the plan counts people, or the other way round."""
    for sketch in sketches:
        if not plan.clients.fits(sketch.num_silos):
            counted = "people in silos" if plan.is_of_silos else "clients, none of them a silo"
            raise InvalidInputError(
                f"the plan counts {counted}, and the sum of round {sketch.round} says"
                f" {sketch.num_silos} silos: take the sums of this plan (FrequencyServer.release)"
            )


def _check_planned(plan: Plan, domain: Domain, sketches: Sequence[CountSketch]) -> None:
    """Refuse sums of another plan, whose items and symbols are in other counters."""
    check_compatible(check_landed(sketches), plan.spec, "the sums are not those of the plan")
    if plan.is_open and domain.describe() != plan.domain:
        raise IncompatibleError(
            f"the domain is not that of the plan: {domain.describe()}, and not {dict(plan.domain)}"
        )


def _check_noised(plan: Plan, sketches: Sequence[CountSketch]) -> None:
    """Refuse sums without the plan's noise: the answer would print a guarantee that it lacks."""
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
