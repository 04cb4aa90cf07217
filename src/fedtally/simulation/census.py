"""Read a source: its rows become the clients of a simulated campaign, each in its round."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedtally.domain import Domain, IntegerRange, Names, OpenStrings, parse
from fedtally.errors import InvalidInputError, opt
from fedtally.plan import Plan
from fedtally.plan.design import Design
from fedtally.plan.request import CampaignSpec
from fedtally.plan.rules import check, given, unmet
from fedtally.simulation.item_ids import Declared, Encoder, FromInput, Spelled, fate_outside
from fedtally.simulation.partial import Rules, Tallied
from fedtally.simulation.prefetch import read_ahead
from fedtally.simulation.randomness import simulation_rng
from fedtally.simulation.round_tally import RoundTally
from fedtally.simulation.row_counts import Tally
from fedtally.simulation.simulation import Simulation
from fedtally.sources import Batch, Source


@dataclass(frozen=True, kw_only=True, eq=False)
class Census:
    """The clients of a source, by round, and the campaign that the caller asked for.

    Attributes:
        spec: the campaign that the caller asked for. Later steps of `run.run` make a new `Census`.
            Its `spec` has also the defaults that depend on the clients, such as the default delta.
            Its `rounds` may be other ones, for example without the clients of a pilot.
        rounds: the clients of each round.
        domain: the candidates.
        names: the strings of the items' ids if the domain is open (nobody has listed its
            candidates); else None.
        tally: the counted rows from which the clients were made.
    """

    spec: CampaignSpec
    rounds: list[RoundTally]
    domain: Domain
    names: Names | None
    tally: Tally

    @property
    def num_clients(self) -> int:
        """The number of clients in all rounds, including clients that hold no item.

        A client counts once for each round that it takes part in. If clients are silos
        (organisations), it is the number of people.
        """
        return sum(part.num_clients for part in self.rounds)

    @property
    def sizes(self) -> list[int]:
        """The number of vectors (encoded contributions) in each round.

        Each client sends one vector. If clients are silos, each silo sends one vector.
        """
        return [part.num_vectors for part in self.rounds]

    def design(self, seed: bytes) -> Design:
        """Return the design of the campaign for these clients; the sketch's size is not chosen yet.

        Args:
            seed: the seed of the hashes.
        """
        by_client = self.tally.is_bounded_by_client
        return Design.fit(self.spec, self.domain, self.sizes, seed=seed, by_client=by_client)


def take_census(
    source: Source, simulation: Simulation, seed: bytes, report: Callable[..., None]
) -> Census:
    """Read a source and return its clients, by round.

    Args:
        source: the source of the items.
        simulation: the campaign that the caller asked for.
        seed: the seed of the hashes.
        report: called with ("read", bytes read, all bytes or None) if the campaign is not private.

    Raises:
        InvalidInputError: see `read` and `Tally.finish`.
    """
    tally, encoder = read(source, simulation, seed, report)
    rounds = tally.finish(individuals=simulation.needs_clients)
    return Census(
        spec=simulation.spec,
        rounds=rounds,
        domain=encoder.domain(),
        names=encoder.names(),
        tally=tally,
    )


def read(
    source: Source, simulation: Simulation, seed: bytes, report: Callable[..., None]
) -> tuple[Tally, Encoder]:
    """Read a source; return its counted rows, and the encoder that made ids of its items.

    Args:
        source: the source of the items.
        simulation: the campaign that the caller asked for.
        seed: the seed of the hashes.
        report: called with ("read", bytes read, all bytes or None) if the campaign is not private.

    Raises:
        InvalidInputError: the source has no rows; its columns do not go with the options; an item
            is refused; or the campaign promises privacy, and the candidates are not public.
    """
    spec = simulation.spec
    domain = declared(spec.domain, source)
    _check_public(domain, spec, source)
    outside = fate_outside(simulation.outside, is_private=spec.is_private)
    encoder = encoder_of(domain, seed, outside, spec.is_private)
    if isinstance(source, Tallied):
        is_natural, by_client = source.form
        tally = _begun(simulation, encoder, seed, is_natural, by_client)
        rules = Rules.of(
            simulation.seed,
            domain,
            hashes=seed,
            num_rounds=_num_drawn(spec, is_natural),
            max_items=spec.max_items,
            outside=outside,
            private=spec.is_private,
        )
        source.fill(tally, encoder, rules)
        return tally, encoder
    may_be_empty = spec.hides_clients and domain is not None
    batches = source.batches(private=spec.is_private, may_be_empty=may_be_empty)
    first = next(batches, None)
    if first is None:  # not even a batch without rows, which would show the columns
        raise InvalidInputError(f"{source.name} is empty: it has no rows")
    tally = _begun(simulation, encoder, seed, first.rounds is not None, first.clients is not None)
    for batch in _counted(tally, itertools.chain([first], batches), is_ahead=source.repeatable):
        if not spec.is_private:  # under privacy, bytes read would tell about the rows
            report("read", batch.bytes_read, source.size_bytes)
    return tally, encoder


def _counted(tally: Tally, batches: Iterator[Batch], *, is_ahead: bool) -> Iterator[Batch]:
    """Count batches of rows, and yield each batch after it is counted.

    Args:
        tally: the tally that counts the rows.
        batches: the batches, in order.
        is_ahead: whether threads read and prepare the next batches while a batch is counted. It
            must be False for standard input, where reading may block: Ctrl-C would have to wait.
    """
    for prepared in read_ahead(batches, tally.prepare) if is_ahead else map(tally.prepare, batches):
        tally.add_prepared(prepared)
        yield prepared.batch


def _num_drawn(spec: CampaignSpec, is_natural: bool) -> int | None:
    """Return the number of rounds to split clients over at random; None if rows name their rounds.

    If a plan was given, it is the plan's number of rounds. Otherwise it is the number that the
    caller gave, or 1 by default.
    """
    if is_natural:
        return None
    return (spec.size.num_rounds if spec.plan is None else spec.plan.num_rounds) or 1


def _begun(
    simulation: Simulation, encoder: Encoder, seed: bytes, is_natural: bool, by_client: bool
) -> Tally:
    """Check that the columns go with the options, and return an empty tally for the campaign.

    Args:
        simulation: the campaign that the caller asked for.
        encoder: the encoder of items to ids.
        seed: the seed of the hashes.
        is_natural: whether rows name their rounds.
        by_client: whether rows name their clients.
    """
    spec = simulation.spec
    _check_columns(spec, is_natural, by_client)
    rng = simulation_rng(
        seed, simulation.seed, is_private=spec.is_private, has_plan=spec.plan is not None
    )
    return Tally(
        encoder,
        _num_drawn(spec, is_natural),
        spec.max_items,
        rng,
        simulation.row_bytes,
        keep_itemless=spec.is_private,
        max_rounds=spec.accounting.max_rounds if is_natural else None,
        per_rounds=spec.accounting.per_rounds,
        silos_per_person=spec.silos.silos_per_person if spec.silos and spec.is_private else None,
    )


def _check_public(domain: Domain | None, spec: CampaignSpec, source: Source) -> None:
    """Refuse candidates that are not public, if the campaign promises privacy.

    A private campaign promises privacy unless it is marked not private. If `domain` is None, the
    candidates are the input's own items, which are not public.

    Raises:
        InvalidInputError: the campaign promises privacy, and the candidates are not public.
    """
    if domain is not None and domain.public:
        return
    if spec.is_private and not spec.accounting.is_not_private:
        raise InvalidInputError(
            f"with epsilon the candidates must be public, and the input's own items ({source.name})"
            f" are not: declare a list ({opt.domain('FILE')}, range:A..B or grid:...), or take"
            f" {opt.domain('open')}, which finds strings nobody has listed ({opt.not_private(True)}"
            " allows it, and protects nobody)"
        )


def _check_columns(spec: CampaignSpec, is_natural: bool, by_client: bool) -> None:
    """Refuse options that the columns of rounds and clients do not allow.

    A column of rounds is refused if the campaign hides who takes part, or if a plan of silos
    protects people in fewer rounds than it has.

    Args:
        spec: the campaign that the caller asked for.
        is_natural: whether rows name their rounds.
        by_client: whether rows name their clients.
    """
    several = spec.max_items if spec.plan is None and spec.max_items > 1 else None
    bounded = None if spec.privacy is None else spec.accounting.max_rounds
    check(
        given(num_rounds=spec.size.num_rounds, max_items=several, max_rounds=bounded),
        unmet(no_round_column=is_natural, clients=not by_client, round_column=not is_natural),
    )
    if not is_natural:
        return
    if spec.silos is not None and spec.plan is not None:
        _check_natural(spec.plan)
    if spec.hides_clients:
        raise InvalidInputError(
            "add-remove hides who takes part, and a round column shows which rounds had anybody:"
            " leave the column out, or use zero-out or replace-one"
        )


def _check_natural(plan: Plan) -> None:
    """Refuse a plan of silos whose guarantee covers fewer rounds than the plan has.

    Called if rows name their rounds: each silo then takes part in every round.
    """
    if plan.privacy is not None and plan.privacy.event.participations < plan.num_rounds:
        raise InvalidInputError(
            f"a silo takes part in every natural round, and the plan protects its people in"
            f" {plan.privacy.event.participations} of {plan.num_rounds}: leave the round column out"
        )


def encoder_of(domain: Domain | None, seed: bytes, outside: str, is_private: bool) -> Encoder:
    """Return the encoder of items to ids that suits a domain.

    Args:
        domain: the declared candidates; None: the input's own items are the candidates.
        seed: the seed of the hashes, from which the ids of texts follow.
        outside: what to do with items outside the domain, "error" or "drop".
        is_private: whether the campaign is private. If so, items of an open domain that cannot be
            read are left out and raise no error; items of a declared list only if `outside` is
            "drop".
    """
    if domain is None:
        return FromInput(seed)
    if isinstance(domain, OpenStrings):
        return Spelled(domain, seed, is_private)
    return Declared(domain, outside, is_private)


def declared(domain: Domain | str | None, source: Source) -> Domain | None:
    """Return the declared domain; None if the input's own items are the candidates.

    If no domain is given and the source is synthetic, the domain is the range of its items.

    Args:
        domain: the domain as the caller gave it: a `Domain`, or a text for `domain.parse`. The text
            "input" declares nothing, so the input's own items are the candidates. None: no domain
            is given.
        source: the source of the items.

    Raises:
        InvalidInputError: the text names no domain.
    """
    if domain is None:
        return None if source.synthetic_size is None else IntegerRange(1, source.synthetic_size)
    if isinstance(domain, Domain):
        return domain
    return None if domain == "input" else parse(domain)
