"""A whole campaign in one process, in which every client is simulated.

source -> batches -> ids -> rounds -> sums -> released sketches -> result
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedtally.answer.evaluation import Truth
from fedtally.answer.exports import physical_memory
from fedtally.answer.result import Progress, Result
from fedtally.base.text import in_number
from fedtally.campaign.books import LedgerBooks, MemoryBooks
from fedtally.campaign.screening import Screen
from fedtally.campaign.server import FrequencyServer
from fedtally.domain import Domain, IntegerRange, Names, OpenStrings, parse
from fedtally.domain.columns import as_text
from fedtally.errors import InvalidInputError, MemoryLimitError, opt
from fedtally.plan import Plan, rare_names
from fedtally.plan.design import Design, fit_existing
from fedtally.plan.request import CampaignSpec
from fedtally.plan.rules import check, given, unmet
from fedtally.plan.search import for_bytes
from fedtally.plan.secure_sum import Keys
from fedtally.plan.seeds import with_even_seed
from fedtally.plan.ways import smallest_or_ways
from fedtally.privacy.events import Relation
from fedtally.simulation import counted_unit, run_notes
from fedtally.simulation.clipping import clip_rounds
from fedtally.simulation.cohorts import joined, sum_rounds
from fedtally.simulation.item_ids import Declared, Encoder, FromInput, Spelled, add_items
from fedtally.simulation.open_size import size_open
from fedtally.simulation.partial import Rules, Tallied
from fedtally.simulation.prefetch import read_ahead
from fedtally.simulation.randomness import campaign_seed, key_bytes, simulation_rng
from fedtally.simulation.rows import (
    RoundTally,
    Tally,
    attendance,
    bound_silos,
    largest_silo,
    number_of_silos,
)
from fedtally.simulation.simulation import Simulation, Sizing
from fedtally.simulation.sizing import (
    MIN_CLIENTS,
    MOST_PILOT,
    Sized,
    check_enough,
    draw_pilot,
    frequencies_of,
    merge_rounds,
    paper_size,
    pilot_size,
    possible_events,
    usual_share,
    without_pilot,
)
from fedtally.sketch import CountSketch
from fedtally.sources import Columns, Source, open_list

# Measured: the landed sums take 8, and the intervals of fresh rounds at their peak 207 more.
_BYTES_PER_COUNTER = 220


def run(source: Source, simulation: Simulation, progress: Progress | None = None) -> Result:
    """Run a campaign on a source.

    Args:
        source: the source of the items.
        simulation: the campaign that is asked for.
        progress: called as (stage, done, total or None); stages are "read" (bytes), "encode"
            (rounds), "sum" (clients), "recover" (looks at candidates).

    Raises:
        InvalidInputError: data or options that cannot be used; nothing is written.
    """
    report, spec = progress or (lambda *_: None), simulation.spec
    # refused now, and not after the work: an option that no result of this campaign can answer
    spec.decoding.check_domain(declared(spec.domain, source))
    words = None if simulation.dictionary is None else _words(simulation.dictionary)
    seed = spec.plan.seed if spec.plan is not None else campaign_seed(simulation.seed)
    given = None if spec.plan is None else spec.plan.fingerprint
    books = _books(simulation.ledger, spec.population, given)
    timings: dict[str, float] = {}
    with _timed(timings, "read"):
        tally, encoder = read(source, simulation, seed, report)
        rounds = tally.finish(individuals=simulation.needs_clients)
        domain = encoder.domain()
    pilot: list[RoundTally] = []
    sized: Sized | None = None
    if spec.tau is not None:
        # A default delta depends on the number of clients. It is fixed before the pilot is taken
        # out, so that pilot and campaign have the same one.
        spec = spec.with_delta(sum(part.num_clients for part in rounds))
        if simulation.pilots and any(r.num_vectors for r in rounds):
            everybody = Design.fit(
                spec,
                domain,
                [r.num_vectors for r in rounds],
                seed=seed,
                by_client=tally.is_bounded_by_client,
            )
            sized = without_pilot(everybody, spec.max_bytes)
        pilot_site = _Site(
            simulation, domain, campaign_seed(b"pilot" + seed), b"pilot ", books, report
        )
        if simulation.pilots and sized is None:
            # A pilot is a sketch, whose noise needs a delta. Its clients are of the population, so
            # that the campaign beside it must not promise an epsilon without one.
            spec = spec.for_ledger()
            pilot, rounds = _draw_pilot(simulation, tally, rounds, pilot_site.rng)
    site = _Site(simulation, domain, seed, b"", books, report)
    if spec.silos is not None:
        spec = spec.with_people(largest_silo(rounds))
        # under privacy an error would tell that a silo has more people
        rng = site.rng.spawn(1)[0] if spec.is_private else None
        rounds = bound_silos(rounds, spec.people, rng)
    sizes = [r.num_vectors for r in rounds]
    if not sum(sizes) and not spec.hides_clients:
        raise InvalidInputError(
            "no client is left: every item is missing, outside the domain, or counted 0 times"
        )
    site.names = encoder.names() if isinstance(encoder, Spelled) else None
    with _timed(timings, "plan"):
        if simulation.sizes_open:
            draws = site.rng.spawn(1)[0]
            sized, spec, rounds = size_open(simulation, spec, seed, rounds, tally.is_natural, draws)
            sizes = [r.num_vectors for r in rounds]
        if spec.plan is not None:
            plan, keys = fit_existing(
                spec.plan, spec, domain, sizes, random=site.keys, report=report
            )
        else:
            draft = Design.fit(spec, domain, sizes, seed=seed, by_client=tally.is_bounded_by_client)
            if spec.tau is not None and sized is None:
                sized = _choose_size(draft, simulation, pilot_site, pilot, rounds)
            design = for_bytes(draft) if sized is None else draft.with_size(*sized.chosen)
            if simulation.seed is None:
                design = with_even_seed(design)
            plan, keys = design.finish(site.keys, report)
    # before the sums are made, and before a ledger is charged for an answer that cannot be decoded
    _check_memory(plan, len(rounds), tally.columns if tally.is_natural else None)
    rare = rare_names.of_plan(plan, sizes, [r.num_clients for r in rounds])
    if rare is not None and not simulation.allow_rare_names:
        rare.check()
    sketches, rounds, traffic = site.land(plan, keys, rounds, timings)
    truth = true_counts(domain, rounds) if simulation.evaluate else None
    # how many people silos have is private
    attended = None if spec.silos is not None and spec.is_private else attendance(rounds)
    result = Result(
        plan,
        domain,
        sketches,
        truth=truth,
        warnings=[
            *counted_unit.notes(source, tally, plan, has_ledger=simulation.ledger is not None),
            *run_notes.warnings(source, tally, plan, attended, simulation.outside == "drop"),
            *run_notes.of_cohorts(plan, traffic),
            *([] if rare is None else rare.notes),
        ],
        decoding=spec.decoding,
        missing=0 if spec.is_private else tally.missing,
        attendance=attended,
        num_silos=number_of_silos(rounds),
        draw=(
            None
            if spec.is_private or tally.drawn is None
            else run_notes.drawn_away(tally.drawn, plan.max_items)
        ),
        columns=tally.columns.parts(),
        secure_sum=traffic,
        sizing=None if sized is None or plan.target is None else sized.document(plan.target),
    )
    with _timed(timings, "recover"):
        if words is not None:
            result.recognise(batch.items for batch in words.batches())
        result.prepare(report)
    if simulation.evaluate:
        with _timed(timings, "evaluate"):
            result.evaluate(simulation.top)
    # the seconds of a private run could tell how much a client holds
    if spec.is_not_private or not spec.is_private:
        result.timings = timings
    return result


class _Landed(NamedTuple):
    """The sums of a campaign with their noise, the clients in them, and how they were made."""

    sketches: list[CountSketch]
    rounds: list[RoundTally]
    traffic: dict[str, Any] | None


class _Site:
    """The place where a campaign's rounds, or those of its pilot, are summed.

    Each has draws and keys of its own: the noise of the pilot must tell nothing of the campaign's.

    Args:
        simulation: the campaign that is asked for.
        domain: the candidates.
        seed: the seed of the hashes.
        purpose: the name of the draws; those of two names have nothing in common.
        books: the books that are charged.
        report: called as in `run`.

    Attributes:
        names: the strings of the items' ids, where the domain is open.
    """

    names: Names | None = None

    def __init__(
        self,
        simulation: Simulation,
        domain: Domain,
        seed: bytes,
        purpose: bytes,
        books: MemoryBooks,
        report: Callable[..., None],
    ) -> None:
        self.domain, self.seed, self.books, self.report = domain, seed, books, report
        spec, own = simulation.spec, simulation.seed
        self._summation = spec.summation
        # the sums of a pilot decide on sizes alone, and a pilot has few cohorts
        self._screen = Screen.OFF if purpose else simulation.screen
        self.keys = key_bytes(own, purpose + b"keys")
        self._random = key_bytes(own, purpose + b"run")
        self.rng = simulation_rng(
            seed, own, is_private=spec.is_private, has_plan=spec.plan is not None
        ).spawn(1)[0]

    def land(
        self, plan: Plan, keys: Keys | None, rounds: list[RoundTally], timings: dict[str, float]
    ) -> _Landed:
        """Sum the rounds by the protocol of the plan, and release the sums with their noise."""
        # before anything is drawn or charged: what cannot be screened is refused
        server = FrequencyServer(plan, self.books, screen=self._screen)
        traffic: dict[str, Any] | None = None
        contributed = clip_rounds(plan, rounds, self._random(32), self.names)
        if keys is None:
            with _timed(timings, "encode"):
                for sketch in encode(plan, self.domain, contributed, self.report, self.names):
                    # a round in which nobody takes part does not land
                    if sketch.num_vectors:
                        server.land_plain(sketch)
        else:
            with _timed(timings, "sum"):
                alive, traffic = sum_rounds(
                    server,
                    contributed,
                    self._summation,
                    keys,
                    self.rng,
                    self._random,
                    self.report,
                    self.names,
                )
        with _timed(timings, "noise"):
            sketches = server.release(self._random)
        if keys is not None:
            # the truth is that of the clients in the sums: not of those that dropped out, nor of
            # cohorts that screening left out
            rounds = [
                tally.of(joined(server.screening.used(number, places)))
                for number, (tally, places) in enumerate(zip(rounds, alive, strict=True))
            ]
            if traffic is not None and plan.summing.cohorts is not None:
                traffic["screening"] = server.screening.to_dict()
        return _Landed(sketches, rounds, traffic)


def _draw_pilot(
    simulation: Simulation, tally: Tally, rounds: list[RoundTally], rng: np.random.Generator
) -> tuple[list[RoundTally], list[RoundTally]]:
    """Return the rounds of the pilot, and those without its clients."""
    spec = simulation.spec
    if spec.relation is Relation.ADD_REMOVE:
        raise InvalidInputError(
            "a pilot's size would tell the number of clients, which add-remove hides: use"
            f" {opt.sizing('minimax')}, or a plan of fedtally plan"
        )
    are_natural = spec.num_rounds is None and len(rounds) > 1
    if spec.is_private and tally.is_bounded_by_client and are_natural:
        raise InvalidInputError(
            "a pilot's clients must not be in the campaign, and here a client may be in several"
            f" natural rounds: split the clients over {opt.num_rounds}, use"
            f" {opt.sizing('minimax')}, or a plan of fedtally plan"
        )
    # A generator of its own: the campaign's draws are the same with a pilot of another size.
    share = simulation.pilot_share
    if share is None and (are_natural or simulation.sizing_method is Sizing.TWO_PHASE):
        # A natural round needs clients of its own to show how rounds differ, and the paper's
        # sizes have a small sketch that needs many.
        share = MOST_PILOT
    elif share is None:
        assert spec.tau is not None
        everybody = sum(part.num_clients for part in rounds)
        epsilon = None if spec.privacy is None else spec.privacy.epsilon
        share = usual_share(everybody, spec.tau, epsilon)
    pilot, rest = draw_pilot(rounds, share, rng.spawn(1)[0])
    # Natural rounds may differ. The pilot shows by how much if each of its rounds has enough
    # clients. A private pilot is one release, because each release costs noise.
    if spec.is_private or not are_natural or min(part.num_clients for part in pilot) < MIN_CLIENTS:
        pilot = merge_rounds(pilot)
    if simulation.sizing_method is Sizing.TWO_PHASE:
        pilot = merge_rounds(pilot)
    return pilot, rest


def _choose_size(
    draft: Design,
    simulation: Simulation,
    site: _Site,
    pilot: list[RoundTally],
    rounds: Sequence[RoundTally],
) -> Sized:
    """Return schedule and size of the sketch for a target; run the pilot for it.

    Args:
        draft: the draft of the campaign's plan.
        simulation: the campaign that is asked for.
        site: the place where the pilot is summed.
        pilot: the rounds of the pilot; none where the sizing needs no pilot.
        rounds: the rounds of the campaign.

    Raises:
        InvalidInputError: no plan meets the target; the error names the smallest changes with which
            one would.
    """
    sizing = simulation.sizing_method
    plan: Plan | None = None
    sketches: list[CountSketch] = []
    if sizing.has_pilot:
        plan, sketches = _run_pilot(draft, simulation, site, pilot)
    if plan is not None and sizing is Sizing.MODEL:
        distribution = frequencies_of(plan, sketches, draft.domain)
        try:
            design = smallest_or_ways(draft, distribution)
        except InvalidInputError as error:
            # There is no campaign, and yet the budget is smaller than before: the reader must know.
            spent = (
                ""
                if simulation.ledger is None
                else "; the pilot is charged: what it released stays released"
            )
            raise InvalidInputError(f"{error.marked}{spent}") from None
    else:
        design = paper_size(draft, sizing, sketches, lambda: _frequencies(draft.domain, rounds))
    return Sized(design.chosen, design.sizing, plan, sketches)


def _run_pilot(
    draft: Design, simulation: Simulation, site: _Site, pilot: list[RoundTally]
) -> tuple[Plan, list[CountSketch]]:
    """Plan a pilot and run it; return its plan, and its sums with their noise."""
    check_enough(pilot)
    tau, clients = draft.spec.tau, [part.num_clients for part in pilot]
    assert tau is not None
    share = sum(clients) / (sum(clients) + draft.clients[0])

    def planned(protocol: int) -> Design:
        method, most = simulation.sizing_method, draft.spec.max_bytes
        size = pilot_size(method, most, tau, share, protocol)
        spec = draft.spec.for_pilot(**size, num_rounds=None if len(pilot) > 1 else 1)
        return Design.fit(spec, site.domain, clients, seed=site.seed)

    of_pilot = planned(0)
    if not draft.spec.summation.is_ideal:
        rows = of_pilot.spec.rows
        assert rows is not None
        # without counters: what the protocol sends beside them
        of_pilot = planned(of_pilot.bytes_of_counters(rows, 0, of_pilot.example))
    plan, keys = for_bytes(of_pilot).finish(site.keys, site.report)
    if simulation.ledger is not None:  # before anything of the pilot is released
        site.books.check_pilot(plan, possible_events(draft))
    return plan, site.land(plan, keys, pilot, {}).sketches


def _frequencies(domain: Domain, rounds: Sequence[RoundTally]) -> npt.NDArray[np.float64]:
    """Return the true frequencies of the items that somebody holds."""
    return true_counts(domain, rounds).counts / sum(tally.num_clients for tally in rounds)


def _books(
    ledger: str | os.PathLike[str] | None, population: str, given: str | None
) -> MemoryBooks:
    """Return the books of a run: those of a ledger, or books in memory.

    Args:
        ledger: the path or URL of the ledger that is charged; None: none is.
        population: the population that is charged.
        given: the fingerprint of the plan that was given, if any.
    """
    if ledger is None:
        return MemoryBooks()
    return LedgerBooks(
        ledger,
        population,
        owner=secrets.token_hex(32),  # a new owner: no other run may land releases of this one
        clock=lambda: int(time.time()),
        fingerprint=given,
    )


def read(
    source: Source, simulation: Simulation, seed: bytes, report: Callable[..., None]
) -> tuple[Tally, Encoder]:
    """Return the counted rows of the source, and the encoder of its items."""
    spec = simulation.spec
    domain = declared(spec.domain, source)
    if (domain is None or not domain.public) and spec.is_private and not spec.is_not_private:
        raise InvalidInputError(
            f"with epsilon the candidates must be public, and the input's own items ({source.name})"
            f" are not: declare a list ({opt.domain('FILE')}, range:A..B or grid:...), or take"
            f" {opt.domain('open')}, which finds strings nobody has listed ({opt.not_private(True)}"
            " allows it, and protects nobody)"
        )
    outside = simulation.outside or ("drop" if spec.is_private else "error")
    encoder = encoder_of(domain, seed, outside, spec.is_private)
    asked = spec.plan.num_rounds if spec.plan is not None else spec.num_rounds
    rng = simulation_rng(
        seed, simulation.seed, is_private=spec.is_private, has_plan=spec.plan is not None
    )

    def drawn(natural: bool) -> int | None:
        return None if natural else asked or 1

    def begun(natural: bool, by_client: bool) -> Tally:
        _check_columns(spec, natural, by_client)
        return Tally(
            encoder,
            drawn(natural),
            spec.max_items,
            rng,
            simulation.row_bytes,
            keep_itemless=spec.is_private,
            max_rounds=spec.max_rounds if natural else None,
            silos_per_person=(
                spec.silos.silos_per_person if spec.silos and spec.is_private else None
            ),
        )

    if isinstance(source, Tallied):
        natural, by_client = source.form
        tally = begun(natural, by_client)
        rules = Rules.of(
            simulation.seed,
            domain,
            hashes=seed,
            num_rounds=drawn(natural),
            max_items=spec.max_items,
            outside=outside,
            private=spec.is_private,
        )
        source.fill(tally, encoder, rules)
        return tally, encoder
    batches = source.batches(
        private=spec.is_private, may_be_empty=spec.hides_clients and domain is not None
    )
    first = next(batches, None)
    if first is None:  # no batch, not even one that says which columns there are
        raise InvalidInputError(f"{source.name} is empty: it has no rows")
    tally = begun(first.rounds is not None, first.clients is not None)
    batches = itertools.chain([first], batches)
    # standard input may block, and then Ctrl-C would have to wait for it
    is_ahead = source.repeatable
    prepared = read_ahead(batches, tally.prepare) if is_ahead else map(tally.prepare, batches)
    for each in prepared:
        tally.add_prepared(each)
        if not spec.is_private:  # the bytes that rows take tell what is in them
            report("read", each.batch.bytes_read, source.size_bytes)
    return tally, encoder


def encoder_of(domain: Domain | None, seed: bytes, outside: str, private: bool) -> Encoder:
    """Return the encoder of a declared domain, or (None) of the items of the input."""
    if domain is None:
        return FromInput(seed)
    if isinstance(domain, OpenStrings):
        return Spelled(domain, seed, private)
    return Declared(domain, outside, private)


def _check_columns(spec: CampaignSpec, natural: bool, by_client: bool) -> None:
    """Refuse columns that do not go with what is asked.

    Args:
        spec: what is asked.
        natural: whether rows name their rounds.
        by_client: whether they name their clients.
    """
    several = spec.max_items if spec.plan is None and spec.max_items > 1 else None
    bounded = None if spec.privacy is None else spec.max_rounds
    check(
        given(num_rounds=spec.num_rounds, max_items=several, max_rounds=bounded),
        unmet(no_round_column=natural, clients=not by_client, round_column=not natural),
    )
    if natural and spec.plan is not None and spec.plan.is_of_silos:
        _check_natural(spec.plan)
    if natural and spec.hides_clients:
        raise InvalidInputError(
            "add-remove hides who takes part, and a round column shows which rounds had anybody:"
            " leave the column out, or use zero-out or replace-one"
        )


def _check_natural(plan: Plan) -> None:
    """Refuse natural rounds of silos where a plan protects their people in fewer of them."""
    if plan.privacy is not None and plan.privacy.event.participations < plan.num_rounds:
        raise InvalidInputError(
            f"a silo takes part in every natural round, and the plan protects its people in"
            f" {plan.privacy.event.participations} of {plan.num_rounds}: leave the round column out"
        )


def declared(domain: Domain | str | None, source: Source) -> Domain | None:
    """Return the declared domain, or a synthetic source's own; None: the items of the input."""
    if domain is None:
        return None if source.synthetic_size is None else IntegerRange(1, source.synthetic_size)
    if isinstance(domain, Domain):
        return domain
    return None if domain == "input" else parse(domain)


def encode(
    plan: Plan,
    domain: Domain,
    rounds: Sequence[RoundTally],
    report: Callable[..., None],
    names: Names | None = None,
) -> Iterator[CountSketch]:
    """Yield the sketch that lands in each round, as an ideal secure sum would make it."""
    for number, tally in enumerate(rounds):
        sketch = CountSketch(plan.spec, number)
        # where many of a range's items are held, adding all in order is faster than some by id
        if names is None and domain.first_id is not None and len(tally.ids) * 4 > domain.size:
            dense = np.zeros(domain.size, np.int64)
            dense[(tally.ids - np.uint64(domain.first_id)).astype(np.int64)] = tally.counts
            sketch.add_range(domain.first_id, dense, tally.num_clients)
        else:
            add_items(sketch, tally.ids, tally.counts, tally.num_clients, names)
        sketch.num_silos = len(tally.silos)
        report("encode", number + 1, len(rounds))
        yield sketch


def _words(dictionary: Any) -> Source:
    """Return a public list of words that can be read: one that is refused must cost no budget."""
    words = open_list(dictionary)
    if words.repeatable:  # of a pipe, reading would take the words away
        for batch in words.batches():
            as_text(batch.items)
    return words


def _check_memory(plan: Plan, num_rounds: int, columns: Columns | None) -> None:
    """Refuse rounds whose sums together are more than half of the memory.

    Args:
        plan: of the campaign.
        num_rounds: that have clients.
        columns: the columns, where one of them says the rounds; None: the rounds were asked for.
    """
    needed, limit = num_rounds * plan.vector_length * _BYTES_PER_COUNTER, physical_memory() // 2
    if needed <= limit:
        return
    cost = (
        f"need about {needed / 1e9:,.1f} GB to decode, more than half of the memory,"
        f" {limit / 1e9:,.1f} GB"
    )
    if columns is None or columns.round is None:
        rounds = in_number(num_rounds, "one round", "{} rounds")
        raise MemoryLimitError(
            f"{rounds} of width {plan.width:,} {cost}; fewer rounds or a smaller width need less"
        )
    named = f"the round column {columns.round!r}" if columns.are_named else "the column of rounds"
    raise MemoryLimitError(
        f"{named} has {num_rounds:,} different values, each a round with a sum of its own, which"
        f" {cost}; name a column of fewer values, such as the day, or leave it out"
    )


def true_counts(domain: Domain, rounds: Sequence[RoundTally]) -> Truth:
    """Return the true counts by position in the domain."""
    ids = np.concatenate([r.ids for r in rounds])
    counts = np.concatenate([r.counts for r in rounds])
    if isinstance(domain, OpenStrings):
        hashes = domain.hashes(ids).astype(np.int64)
        return Truth(*_totals(hashes, counts), *_totals(ids, counts))
    if domain.first_id is not None:
        positions = (ids - np.uint64(domain.first_id)).astype(np.int64)
    else:
        # ids of text are fingerprints, in no order: they are sorted to be searched
        all_ids = domain.ids(0, domain.size)
        order = np.argsort(all_ids)
        found = np.minimum(np.searchsorted(all_ids, ids, sorter=order), domain.size - 1)
        positions = order[found]
        candidates = all_ids[positions] == ids  # an id that is no candidate's found a neighbour
        positions, counts = positions[candidates], counts[candidates]
    return Truth(*_totals(positions, counts))


def _totals(keys: npt.NDArray[Any], counts: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """Return the distinct keys, rising, and the sum of the counts of each."""
    distinct, inverse = np.unique(keys, return_inverse=True)
    totals = np.zeros(len(distinct), np.int64)
    np.add.at(totals, inverse, counts)
    return distinct, totals


@contextmanager
def _timed(timings: dict[str, float], stage: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    timings[stage] = time.perf_counter() - start
