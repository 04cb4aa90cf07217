"""One part of an answer: the sums of one plan, and the decoder that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from fedtally.answer import provenance
from fedtally.answer.exports import check_table_fits
from fedtally.answer.window import Window
from fedtally.base import validate
from fedtally.domain import Domain, OpenStrings
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan
from fedtally.plan.chosen_decoder import decoder_of
from fedtally.privacy import NOT_PRIVATE
from fedtally.recovery.decoders.kind import CampaignDecoder
from fedtally.recovery.decoding import AUTO, Decoding, check_enumerable, kind_of
from fedtally.recovery.found import FoundFit
from fedtally.recovery.intervals import (
    Intervals,
    NoisyNumberIntervals,
    make_intervals,
    sampling_error,
)
from fedtally.recovery.linear_system import (
    BLOCK,
    F64,
    I64,
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

LEAST = 0.5  # the smallest estimated count to list, in clients: smaller ones round to 0
AS_USUAL = Decoding()

Progress = Callable[[str, int, int | None], None]


@contextmanager
def reporting(part: Part, progress: Progress | None) -> Iterator[None]:
    """Let `part` call `progress` within the `with` block, for its fits and the names that it reads.

    The calls are as in `Part.prepare`. After the block, `part` calls nothing. So two blocks for one
    part must not be nested.
    """
    part.progress = progress
    try:
        yield
    finally:
        part.progress = None


def fit(
    part: Part, sketches: Sequence[CountSketch], recovery: str, known: FoundFit | None = None
) -> CampaignDecoder:
    """Return the decoder of some of a part's sums. This may take long: items are fitted now.

    If the part was made with recovery "auto", the decoder may be another than `recovery`: belief
    propagation that turns out not to fit the sums is replaced by joint recovery
    (`CampaignDecoder.instead`).

    Args:
        part: the part: it gives domain, plan and progress.
        sketches: the sums to decode.
        recovery: the name of the decoder, not "auto".
        known: a fit that was found in these sums before, and is used again; None: make a new one.

    Raises:
        MemoryLimitError: the decoder must enumerate the domain, which is too large.
    """
    kind, report = kind_of(recovery), part.progress
    if kind.fits_items:
        check_enumerable(part.domain)
    told = None if report is None else lambda done, total: report("recover", done, total)
    terms = part.plan.privacy
    found = kind.make(sketches, part.domain, progress=told, terms=terms, found=known)
    return found.instead if part.asked.recovery == AUTO else found


class Part:
    """The landed sums of one plan, and the decoder that reads them.

    A sum has landed if the server has it. An answer has one part or several. `Result` is a part
    that is an answer by itself.

    Args:
        plan: the campaign's plan.
        domain: the candidate items.
        sketches: the landed sums, at most one for each round. If the plan has privacy, each sum
            contains the plan's noise, and a mark that says so.
        decoding: how the sums are decoded.
        warnings: notes that a reader of the numbers needs.
        secure_sum: how the sums were made, JSON-able; None: as the plan says.
        attendance: at place k - 1, the number of clients that took part in exactly k rounds; None:
            unknown, so any client may have been in as many rounds as the plan allows.
        num_silos: the number of silos, each counted once; None: the numbers of the sums are added.
            A silo is a client with many people behind it, such as a hospital.
        draw: how many items the bound on a client's items (max_items) dropped, JSON-able; None:
            no items were dropped, or the number is private or unknown.
        ended: how the campaign ended before its last round, JSON-able; None: it did not end early.
        columns: the names of the input table's columns, by role ("item", "client", "round",
            "count").
        words: words of a public list whose hashes stand out, so that they may be names of these
            hashes (see `Result.recognise`).
        known_fit: a fit that a decoder found in these sums before; None: a new one is made when it
            is needed.
        known_names: the names that were read from these sums before; None: they are read when
            somebody asks for them.

    Raises:
        IncompatibleError: the sums, or an open domain, do not fit the plan.
        InvalidInputError: there is no sum; two sums are of one round; nobody took part; the numbers
            of clients or silos do not fit the sums; or the plan guarantees privacy, and a sum has
            no noise or another plan's noise.
    """

    def __init__(
        self,
        plan: Plan,
        domain: Domain,
        sketches: Sequence[CountSketch],
        *,
        decoding: Decoding = AS_USUAL,
        warnings: Sequence[str] = (),
        secure_sum: Mapping[str, Any] | None = None,
        attendance: Sequence[int] | None = None,
        num_silos: int | None = None,
        draw: Mapping[str, Any] | None = None,
        ended: Mapping[str, Any] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        words: Sequence[str] = (),
        known_fit: FoundFit | None = None,
        known_names: Sequence[str] | None = None,
    ) -> None:
        self.plan = plan
        self.domain = domain.with_seed(plan.seed)
        self.sketches = list(sketches)
        _check_planned(plan, self.domain, self.sketches)
        _check_noised(plan, self.sketches)
        _check_silos(plan, self.sketches)
        self.notes = tuple(warnings)
        self.secure_sum: dict[str, Any] = dict(secure_sum or provenance.planned_sum(plan))
        self.draw = None if draw is None else dict(draw)
        self.ended = ended
        self.columns = {part: [str(n) for n in names] for part, names in (columns or {}).items()}
        self.words, self._known_fit = tuple(words), known_fit
        self._known_names = None if known_names is None else tuple(known_names)
        self.asked = decoding
        batches = len(landed_batches(plan.spec, self.sketches))
        decoder = decoder_of(plan, decoding.recovery, batches)
        self.decoding = replace(decoding, recovery=str(decoder))
        self.objective = self.decoding.objective
        self.confidence, self.interval_kind = self.decoding.confidence, self.decoding.intervals
        self._made: dict[tuple[str, float], Intervals] = {}
        self._count(attendance, num_silos)

    def _count(self, attendance: Sequence[int] | None, num_silos: int | None) -> None:
        """Set `attendance` and the numbers of contributions, clients and silos.

        The arguments are as in `Part`. A contribution is what one client adds in one round.

        Raises:
            InvalidInputError: nobody took part, or the given numbers do not fit the sums.
        """
        silos = sum(sketch.num_silos for sketch in self.sketches)
        self.num_silos = silos  # without a given number, as if no silo were in two of the sums
        if num_silos is not None:
            self.num_silos = validate.integer(min(1, silos), silos, num_silos=num_silos)
        self.num_contributions = sum(sketch.num_clients for sketch in self.sketches)
        if self.num_contributions < 1:
            raise InvalidInputError(
                "no client took part in any landed round: there is no frequency to estimate"
            )
        # The server of a real campaign does not know whose vectors are in a sum, so it cannot count
        # the clients.
        self.repeats = self._allowed() if attendance is None else 1
        each_once = [self.num_contributions]
        self.attendance = each_once if attendance is None else [int(n) for n in attendance]
        # a client of k rounds makes k contributions
        counted = sum(rounds * number for rounds, number in enumerate(self.attendance, start=1))
        if counted != self.num_contributions or min(self.attendance) < 0:
            raise InvalidInputError(
                f"attendance must add up to the {self.num_contributions:,} contributions in the"
                f" sums, got {counted:,}"
            )
        self.num_clients = sum(self.attendance)

    def _allowed(self) -> int:
        """Return the most rounds of these sums that the plan allows one client to be in."""
        of_sum = {number: rounds for rounds in self.plan.releases for number in rounds}
        rounds = [of_sum[sketch.round] for sketch in self.sketches]
        first, last = min(each[0] for each in rounds), max(each[-1] for each in rounds)
        # rounds in between that did not land count for the bound, since it is for rounds in a row
        allowed = self.plan.protection.most_of(last - first + 1)
        return min(allowed, sum(map(len, rounds)))

    def prepare(self, progress: Progress | None = None, *, names: bool = True) -> None:
        """Fit the decoder and make the intervals now. Otherwise the first read would do this.

        Args:
            progress: called as ("recover", done, all) during the fit, and as ("names", done, all)
                while names are read. `done` and `all` count looks: the fit looks at each candidate
                several times, and the reading of names looks at each hash several times.
            names: whether to read names, too, if the domain is open.

        Raises:
            MemoryLimitError: the decoder or shrinkage must enumerate the domain, which is too
                large.
            InvalidInputError: the sketches have too few rows for the kind of interval.
        """
        with reporting(self, progress):
            _ = self.decoder, self.intervals
            if names:
                _ = self.names

    span: Window | None = None  # the window that the answer is about; None: all landed rounds
    # The decoder of a window's estimates, if the rounds around the window are used as a prior. It
    # is not used for limits. None: `recovered` gives both.
    expected: CampaignDecoder | None = None

    # What `recovered` calls while it fits. `recovered` is a cached property and takes no arguments,
    # so `reporting` sets this attribute instead.
    progress: Progress | None = None

    def ready(self, name: str) -> Any:
        """Return the value of the cached property `name` if it was computed before; else None.

        So a caller can use a fit that exists already, without starting one. An unknown name gives
        None, too.

        >>> import fedtally
        >>> fedtally.estimate(["tea"], seed=1).ready("no such property") is None
        True
        """
        return self.__dict__.get(name)

    @property
    def recovery(self) -> str:
        """The name of the decoder of the sums, such as "joint" or "median"; never "auto".

        If "auto" was asked for, the decoder may turn out not to fit the sums. From then on this is
        the name of the decoder that takes its place. Reading the name starts no fit.
        """
        decoder = self.fitted
        return self.decoding.recovery if decoder is None else str(decoder.recovery)

    @property
    def fitted(self) -> CampaignDecoder | None:
        """The decoder before shrinkage; None if it was not made yet. Reading this starts no fit.

        Shrinkage pulls noisy estimates together, to lower their squared error.
        """
        decoder: CampaignDecoder | None = self.ready("recovered")
        return decoder

    @cached_property
    def recovered(self) -> CampaignDecoder:
        """The decoder of the sums before shrinkage; the first read fits it, which may take long.

        Shrinkage pulls noisy estimates together, to lower their squared error. Intervals are made
        from this decoder, since shrinkage would bias them.
        """
        return fit(self, self.sketches, self.recovery, self._known_fit)

    @property
    def known_fit(self) -> FoundFit | None:
        """The fit of these sums, which makes a later decoder of the same sums faster.

        It is the fit that the decoder made, or else the fit that was given. None if there is no
        fit yet. Reading this starts no fit.
        """
        found = None if self.fitted is None else self.fitted.found
        return self._known_fit if found is None else found

    @cached_property
    def _found(self) -> dict[int, float]:
        """The estimated frequency of each hash that stands out from the noise, by hash.

        A hash stands out if joint recovery found it among all possible hashes, and its estimated
        count is at least half a client. The dict is empty if the domain is not open.
        """
        if not self.plan.is_open:
            return {}
        ids = self.recovered.heavy_ids
        counts = self.decoder.at(ids)
        listed = counts >= LEAST  # a fit may have items of negative counts, which nobody holds
        found = (counts[listed] / self.num_contributions).tolist()
        return dict(zip(ids[listed].tolist(), found, strict=True))

    @property
    def found(self) -> I64:
        """The hashes of strings that stand out from the noise, ascending, int64 [n].

        A hash stands out if joint recovery found it among all possible hashes, and its estimated
        count is at least half a client. The array is empty if the domain is not open.
        """
        return np.array(sorted(self._found), np.int64)

    @property
    def num_found(self) -> int:
        """The number of hashes in `found`: those that stand out; 0 if the domain is not open."""
        return len(self._found)

    @property
    def num_unread(self) -> int:
        """The number of hashes in `found` (they stand out) whose name could not be read.

        Before the names are read it is 0, since this property does not start the reading.
        """
        names = self.ready("names")  # a request for notes must not start to read names
        return 0 if names is None else self.num_found - len(names)

    @cached_property
    def names(self) -> dict[int, str]:
        """The names of strings that were read from the sums, by hash. The first access reads them.

        A hash of `found` that is missing here has a name that could not be read. The dict is empty
        if the domain is not open.
        """
        if not isinstance(self.domain, OpenStrings):
            return {}
        if self._known_names is not None:
            hashes = self.domain.encode(self._known_names).tolist()
            known = zip(hashes, self._known_names, strict=True)
            return {hash: name for hash, name in known if hash in self._found}
        report = self.progress
        words: dict[int, list[str]] = {}
        hashes = self.domain.encode(self.words).tolist() if self.words else []
        for word, found in zip(self.words, hashes, strict=True):
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
        """The names of an open domain, if they were read or given; else None. Nothing is read now.

        Names that were read are sorted. Given names are in their given order.
        """
        names = self.ready("names")  # saving a result must not start to read names
        return self._known_names if names is None else tuple(sorted(names.values()))

    @cached_property
    def decoder(self) -> Decoder:
        """The decoder that gives the estimated counts: after shrinkage if the objective is "l2".

        The first read fits the sums, which may take long. It raises `MemoryLimitError` if the
        decoder or shrinkage must enumerate the domain, which is too large.
        """
        base = self.recovered if self.expected is None else self.expected
        if self.objective == "linf":
            return base
        check_enumerable(self.domain)
        return ShrunkDecoder(base, self.domain)

    @cached_property
    def intervals(self) -> Intervals | None:
        """The object that gives items the limits of their frequencies; None if the confidence is 0.

        It has the kind and the confidence of this part. The first read fits the sums.
        """
        return None if self.confidence == 0 else self.intervals_of(self.interval_kind)

    def intervals_of(self, kind: str, confidence: float | None = None) -> Intervals:
        """Return the intervals of any kind and confidence for this part's frequencies.

        They are made from the estimates before shrinkage (`recovered`), and are cached.

        Args:
            kind: the kind, as `make_intervals` takes it.
            confidence: the confidence, above 0 and below 1; None: the confidence of this part.
        """
        level = self.confidence if confidence is None else confidence
        if (kind, level) not in self._made:
            self._made[kind, level] = _intervals(self, self.recovered, kind, level)
        return self._made[kind, level]

    def check_table_fits(self, memory: int | None) -> None:
        """Raise MemoryLimitError if a table of all candidates needs more than `memory` bytes.

        If the decoder is belief propagation, the table's bytes include its messages between
        candidates and counters. If `memory` is None, the bound is half of the machine's memory.
        """
        plan = self.plan
        batches = len(landed_batches(plan.spec, self.sketches))
        kind = kind_of(self.recovery)
        held = kind.held_bytes(self.domain.size, plan.rows, batches)
        check_table_fits(self.domain.size, memory, held, kind.rests_on)

    def sampling_error(self, frequencies: F64) -> F64:
        """Return how far shares in a wider population may be from `frequencies`: float64 [n].

        Each distance is a share, like `frequencies`, and is a bound in both directions. It holds
        with the part's confidence, which must exceed 0. The clients are taken as a uniform sample
        of the population.
        """
        # The sample consists of clients, not of contributions. A client that holds the same item in
        # k rounds is one draw that counts k times. If client i is in k_i rounds, the sample is
        # worth (sum k_i)^2 / sum k_i^2 independent draws (Kish 1965), not sum k_i draws.
        squares = sum(rounds**2 * number for rounds, number in enumerate(self.attendance, start=1))
        if self.repeats_are_private:  # at worst, each person counts as often as the plan allows
            assert self.plan.privacy is not None
            squares *= self.plan.privacy.event.contributions
        else:
            squares *= self._repeats
        return sampling_error(
            frequencies, max(1, self.num_contributions**2 // squares), self.confidence
        )

    @property
    def repeats_are_private(self) -> bool:
        """Whether people of silos may count several times. How many of them do is then private.

        A silo is a client with many people behind it. A person may be in several silos or rounds.
        """
        terms = self.plan.privacy
        return self.plan.is_of_silos and terms is not None and terms.event.contributions > 1

    @property
    def repeats_are_unknown(self) -> bool:
        """Whether it is private or unknown how many clients made the contributions.

        If clients are silos, this is about the number of people.
        """
        return self.repeats_are_private or self._repeats > 1

    @property
    def _repeats(self) -> int:
        """The most rounds that one client may be in, if this is unknown; 1: `attendance` is true.

        It is not recorded who was in which round. So in a window it is unknown even where the
        attendance of the whole campaign is known.
        """
        return self.repeats if self.span is None else self.span.repeats

    @property
    def unit(self) -> str:
        """The plural noun for what is counted: "clients", "people" or "contributions".

        It is "contributions" if some client is in several rounds, or may be, and nobody knows (in a
        window, and in the sums of a real campaign). It is also "contributions" if people of silos
        may be in several rounds or several silos. Otherwise it is "people" for silos (clients with
        many people behind them), and "clients" for persons.
        """
        if self.num_clients != self.num_contributions or self.repeats_are_unknown:
            return "contributions"
        return self.plan.nouns[1]

    @property
    def is_exact(self) -> bool:
        """Whether estimates are exact counts: the sums are histograms without noise."""
        return not kind_of(self.recovery).has_collisions and self.plan.privacy is None

    @property
    def not_private(self) -> str:
        """The warning in every output of a run that is marked `not_private`; "" for other runs.

        A marked run adds noise, but uses what a private run must not use, such as true counts. A
        run without any differential privacy has no mark, so this is "".
        """
        return (
            NOT_PRIVATE if self.plan.privacy is not None and self.plan.privacy.not_private else ""
        )

    def blocks(self, progress: Progress | None = None) -> Iterator[tuple[int, Ids, F64]]:
        """Yield (first position, ids, estimated counts) for blocks of candidates, in order.

        Positions are numbers of candidates in the domain, from 0. Ids are the integers that the
        sketches count. The counts are float64, one for each candidate of the block.

        Args:
            progress: called as ("decode", candidates done, all candidates).
        """
        for start, stop in block_bounds(self.domain):
            ids = ids_between(self.domain, start, stop)
            yield start, ids, ask(self.decoder, ids)
            if progress is not None:
                progress("decode", stop, self.domain.size)


def block_bounds(domain: Domain) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) for blocks of candidates that cover the domain in order.

    A block has the candidates at the positions start to stop - 1.

    Raises:
        MemoryLimitError: the domain is too large to enumerate.
    """
    check_enumerable(domain)
    for start in range(0, domain.size, BLOCK):
        yield start, min(start + BLOCK, domain.size)


def _intervals(part: Part, decoder: CampaignDecoder, kind: str, confidence: float) -> Intervals:
    made = make_intervals(decoder, part.sketches, part.domain, confidence, kind)
    terms = part.plan.privacy
    if terms is None or terms.event.relation != "add-remove":
        return made
    # With add-remove, the number of clients in each sum is noisy, too. Frequencies are shares of
    # this number, so its noise makes their limits wider. The noise has the standard deviation of
    # all sums together. If clients are silos, each silo adds a share of the noise.
    silos = sum(sketch.num_silos for sketch in part.sketches)
    stddev = part.plan.protection.stddev(silos, len(part.sketches))
    return NoisyNumberIntervals(made, stddev / part.num_contributions, confidence)


def _check_silos(plan: Plan, sketches: Sequence[CountSketch]) -> None:
    """Raise InvalidInputError if sums count clients where the plan counts people, or vice versa.

    A plan counts people if its clients are silos: clients with many people behind each.
    """
    for sketch in sketches:
        if not plan.clients.fits(sketch.num_silos):
            counted = "people in silos" if plan.is_of_silos else "clients, none of them a silo"
            raise InvalidInputError(
                f"the plan counts {counted}, and the sum of round {sketch.round} says"
                f" {sketch.num_silos} silos: take the sums of this plan (FrequencyServer.release)"
            )


def _check_planned(plan: Plan, domain: Domain, sketches: Sequence[CountSketch]) -> None:
    """Raise IncompatibleError if the sums, or an open domain, belong to another plan.

    Another plan puts items into other counters, so decoding would give wrong estimates.
    """
    check_compatible(check_landed(sketches), plan.spec, "the sums are not those of the plan")
    plan.candidates.check_domain(domain)


def _check_noised(plan: Plan, sketches: Sequence[CountSketch]) -> None:
    """Raise InvalidInputError if the plan has privacy and a sum has no noise of this plan.

    Otherwise the answer would print a guarantee that the sums do not keep.
    """
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
