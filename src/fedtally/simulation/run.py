"""Simulate a whole campaign in one process: every client is simulated.

It follows the algorithm of Wu and others (2023):

1. Rows become clients, each in its round (`census`).
2. The size of the sketch is chosen (`sizing`). For a target error it usually follows from a pilot:
   a small first campaign, whose clients do not take part in the campaign itself.
3. Each client limits its items and encodes them with the hashes of its round (`round_sums`).
4. A secure sum adds up the sketches of each round.
5. Under privacy, each sum gets its noise, and only then is it released.
6. The released sums are decoded (`answer.result`).
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fedtally.answer.evaluation import Truth
from fedtally.answer.exports import physical_memory
from fedtally.answer.part import Progress
from fedtally.answer.result import Result
from fedtally.base.text import in_number
from fedtally.campaign import ending
from fedtally.campaign.books import LedgerBooks, MemoryBooks
from fedtally.domain.columns import as_text
from fedtally.errors import InvalidInputError, MemoryLimitError
from fedtally.plan import Plan, rare_names
from fedtally.simulation import counted_unit, run_notes
from fedtally.simulation.census import Census, declared, take_census
from fedtally.simulation.randomness import campaign_seed
from fedtally.simulation.round_sums import Landed, Site, timed
from fedtally.simulation.round_tally import attendance, bound_silos, largest_silo, number_of_silos
from fedtally.simulation.row_counts import round_labels
from fedtally.simulation.simulation import Simulation
from fedtally.simulation.sizing import SizeChoice
from fedtally.simulation.truth import true_counts
from fedtally.sources import Columns, Source, open_list

# Measured bytes of memory for each counter of each round, rounded up: 8 for the sums, and up to 207
# for confidence intervals if each round has its own hashes (schedules hybrid and fresh).
_BYTES_PER_COUNTER = 220


def run(source: Source, simulation: Simulation, progress: Progress | None = None) -> Result:
    """Simulate a campaign whose clients hold the items of a source, and return its answer.

    Args:
        source: the source of the items.
        simulation: the campaign that the caller asked for.
        progress: a function, called with (stage, done, total or None). The stages, and what is
            counted in them, are "read" (bytes), "encode" (rounds), "sum" (clients) and "recover"
            (candidates, each counted once for each pass over them). Some campaigns have other
            stages, too.

    Raises:
        InvalidInputError: data or options cannot be used.
        MemoryLimitError: the candidates are too many, or the sums need more than half of the
            machine's memory.
        AbortedRoundError: a secure sum was aborted.
        PoisonedError: screening refused every round that has a sum.
    """
    report, asked = progress or (lambda *_: None), simulation.spec
    # Checked first: otherwise all work is done before the decoder refuses this domain.
    asked.decoding.check_domain(declared(asked.domain, source))
    lists = _lists(simulation.dictionary)
    seed = campaign_seed(simulation.seed) if asked.plan is None else asked.plan.seed
    books = _books(simulation)
    timings: dict[str, float] = {}
    with timed(timings, "read"):
        census = take_census(source, simulation, seed, report)

    size = SizeChoice(simulation, seed, _pilot_site(simulation, census, seed, books, report))
    census = size.set_pilot_apart(census)
    site = Site(simulation, census.domain, seed, b"", books, report, census.names)
    census = _bounded(census, site)
    with timed(timings, "plan"):
        if simulation.sizes_open:
            census = size.split_for_open(census, site.rng.spawn(1)[0])
        plan, keys = size.plan(census, site)
        plan = simulation.ending(plan)
    # Checked before the sums are made: otherwise a ledger could be charged for an answer that does
    # not fit into memory.
    _check_memory(plan, len(census.rounds), census.tally.columns, census.tally.is_natural)
    notes = [*_rare_names(simulation, census, plan), *books.cautions(plan)]

    landed = site.land(plan, keys, census.rounds, timings)
    result = _result(source, simulation, census, plan, landed, size, notes)
    with timed(timings, "recover"):
        for words in lists:
            result.recognise(batch.items for batch in words.batches())
        result.prepare(report)
    if simulation.evaluate:
        with timed(timings, "evaluate"):
            result.evaluate(simulation.top)
    # seconds could tell how much a client holds, so a private run does not show them
    if asked.accounting.is_not_private or not asked.is_private:
        result.timings = timings
    return result


def _pilot_site(
    simulation: Simulation,
    census: Census,
    seed: bytes,
    books: MemoryBooks,
    report: Callable[..., None],
) -> Site:
    """Return the place where a pilot is summed; the hashes of a pilot have their own seed."""
    own_seed = campaign_seed(b"pilot" + seed)
    return Site(simulation, census.domain, own_seed, b"pilot ", books, report)


def _bounded(census: Census, site: Site) -> Census:
    """Return the census, in which each silo has at most the number of people that was asked for.

    If the caller gave no number, it is the number of people in the largest silo. If clients are not
    silos, the census is returned unchanged.

    Raises:
        InvalidInputError: without privacy, a silo has more people. Or no client is left, and the
            campaign does not hide who takes part.
    """
    if census.spec.silos is not None:
        spec = census.spec.with_people(largest_silo(census.rounds))
        # Under privacy the people who stay are drawn: an error would tell that a silo has more.
        rng = site.rng.spawn(1)[0] if spec.is_private else None
        census = replace(census, spec=spec, rounds=bound_silos(census.rounds, spec.people, rng))
    if not any(census.sizes) and not census.spec.hides_clients:
        raise InvalidInputError(
            "no client is left: every item is missing, outside the domain, or counted 0 times"
        )
    return census


def _rare_names(simulation: Simulation, census: Census, plan: Plan) -> list[str]:
    """Return notes on what sums without noise show about rare names.

    Raises:
        InvalidInputError: the sums show what single clients hold, and `allow_rare_names` is not
            given.
    """
    clients = [part.num_clients for part in census.rounds]
    rare = rare_names.of_plan(plan, census.sizes, clients)
    if rare is None:
        return []
    if not simulation.allow_rare_names:
        rare.check()
    return list(rare.notes)


def _result(
    source: Source,
    simulation: Simulation,
    census: Census,
    plan: Plan,
    landed: Landed,
    size: SizeChoice,
    notes: list[str],
) -> Result:
    """Return the answer; its sums are not decoded yet."""
    spec = census.spec
    tally = census.tally
    rounds = landed.rounds
    dropped = tally.dropped.told(is_private=spec.is_private)
    # Under privacy the number of people in silos is private.
    attended = None if spec.silos is not None and spec.is_private else attendance(rounds)
    sized = None if size.sized is None or plan.target is None else size.sized.document(plan.target)
    drops = simulation.outside == "drop"

    def true_of(numbers: Sequence[int]) -> Truth:
        return true_counts(census.domain, [rounds[number] for number in numbers])

    return Result(
        plan,
        census.domain,
        landed.sketches,
        truth=true_counts(census.domain, rounds) if simulation.evaluate else None,
        true_of=true_of if simulation.evaluate else None,
        warnings=[
            *counted_unit.notes(source, tally, plan, has_ledger=simulation.ledger is not None),
            *run_notes.warnings(source, tally, dropped, plan, attended, drops),
            *run_notes.of_cohorts(plan, landed.traffic),
            *notes,
        ],
        decoding=spec.decoding,
        missing=dropped.incomplete,
        attendance=attended,
        num_silos=number_of_silos(rounds),
        draw=dropped.document(plan.max_items),
        ended=ending.ended(plan, len(landed.rounds), "rule"),
        columns=tally.columns.parts(),
        # These labels are texts of rows, which a private campaign does not show.
        round_labels=None if spec.is_private else round_labels(tally),
        secure_sum=landed.traffic,
        sizing=sized,
    )


def _books(simulation: Simulation) -> MemoryBooks:
    """Return the books: the record of releases, which charges the ledger if there is one."""
    if simulation.ledger is None:
        return MemoryBooks()
    spec = simulation.spec
    return LedgerBooks(
        simulation.ledger,
        spec.accounting.population,
        owner=secrets.token_hex(32),  # so that no other run can land releases of this run
        clock=lambda: int(time.time()),
        fingerprint=None if spec.plan is None else spec.plan.fingerprint,
    )


def _lists(dictionary: Any) -> list[Source]:
    """Return a list of one source, the public list of known words; [] if no list was given.

    The list is read once here as a test, unless it is a pipe, which can be read only once. If the
    list were refused later, budget would already be spent.
    """
    if dictionary is None:
        return []
    words = open_list(dictionary)
    if words.repeatable:  # a pipe can be read only once
        for batch in words.batches():
            as_text(batch.items)
    return [words]


def _check_memory(plan: Plan, num_rounds: int, columns: Columns, is_natural: bool) -> None:
    """Refuse a campaign whose sums need more than half of the machine's memory.

    Args:
        plan: the plan of the campaign.
        num_rounds: the number of rounds.
        columns: the columns of the rows.
        is_natural: whether the rows name their rounds; if not, clients are split over the rounds.

    Raises:
        MemoryLimitError: the sums need more than half of the machine's memory.
    """
    needed, limit = num_rounds * plan.vector_length * _BYTES_PER_COUNTER, physical_memory() // 2
    if needed <= limit:
        return
    cost = (
        f"need about {needed / 1e9:,.1f} GB to decode, more than half of the memory,"
        f" {limit / 1e9:,.1f} GB"
    )
    if not is_natural or columns.round is None:
        rounds = in_number(num_rounds, "one round", "{} rounds")
        raise MemoryLimitError(
            f"{rounds} of width {plan.width:,} {cost}; fewer rounds or a smaller width need less"
        )
    named = f"the round column {columns.round!r}" if columns.are_named else "the column of rounds"
    raise MemoryLimitError(
        f"{named} has {num_rounds:,} different values, each a round with a sum of its own, which"
        f" {cost}; name a column of fewer values, such as the day, or leave it out"
    )
