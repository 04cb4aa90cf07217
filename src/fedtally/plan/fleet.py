"""A design for a fleet: a number of clients, over rounds that are drawn at random."""

from __future__ import annotations

from dataclasses import replace

from fedtally.domain import Domain, OpenStrings
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.plan import MAX_CLIENTS
from fedtally.plan.design import Design
from fedtally.plan.request import CampaignSpec
from fedtally.plan.rounds import round_size_bounds, sizes_with_extremes
from fedtally.plan.secure_sum import check_rounds, terms
from fedtally.plan.silos import fitting_numbers, in_ranges
from fedtally.secagg.params import Adversary, corrupt_clients

_TRIED_SILOS, _MOST_TRIED = 12, 40  # numbers of silos that are tried where theirs does not fit


def for_fleet(spec: CampaignSpec, domain: Domain, num_clients: int, seed: bytes) -> Design:
    """Return the design, without a size, for clients over rounds drawn at random.

    Args:
        spec: the resolved request.
        domain: the candidates.
        num_clients: the clients of all rounds together, each in one of them; or the silos. By a
            calendar each is in as many rounds as it may, and counts in each of them.
        seed: the 32 bytes that the hashes come from.

    Raises:
        InvalidInputError: there are too few clients, or too many, or no secure sum protects that
            number of silos.
    """
    rounds, participations = spec.size.num_rounds or 1, 1
    if spec.recurring is not None:
        participations = spec.recurring.participations
        num_clients *= spec.recurring.lifetime
    if num_clients < rounds:
        raise InvalidInputError(
            f"{arg.num_rounds} must be at most the number of clients, {num_clients:,}, got"
            f" {rounds:,}"
        )
    if num_clients > MAX_CLIENTS:
        raise InvalidInputError(f"num_clients must be at most {MAX_CLIENTS:,}, got {num_clients:,}")
    sizes = sizes_with_extremes(num_clients, rounds)
    if spec.silos is not None:
        spec.silos.check(num_clients)
    largest = num_clients
    if not spec.hides_clients:  # else how many there are in a round is hidden
        largest = min(num_clients, max(sizes[-1], round_size_bounds(num_clients / rounds)[1]))
    clients = (num_clients, largest)
    design = Design(spec, domain, sizes, seed, clients, participations, has_room=rounds > 1)
    if spec.silos is not None:
        _check_number_of_silos(design)
    return design


def check_even_rounds(design: Design) -> None:
    """Refuse cohorts that were asked for, where they do not fit the rounds.

    A driver fills its rounds evenly: rounds of the usual size count, not those drawn at random.
    """
    clients, rounds = design.clients[0], design.num_rounds
    check_rounds(design.spec.summation, [clients // rounds, -(-clients // rounds)])


def _check_number_of_silos(design: Design) -> None:
    """Refuse a number of silos that no secure sum protects, and say which numbers fit."""
    summation = design.spec.summation
    try:  # neither length nor bits decide
        terms(summation, design.sums(design.example), 1, 1, signed=True)
    except InvalidInputError as error:
        number, rounds = design.clients[0], design.num_rounds
        adversary, borne = summation.adversary, summation.borne
        corrupt = corrupt_clients(summation.max_corrupt, number)
        most = min(max(_TRIED_SILOS, number), _MOST_TRIED)
        ways = ["have another number of them", f"lower {opt.max_dropout}"]
        if adversary is Adversary.ACTIVE:
            ways.append("choose the adversary semi-honest")
        if rounds > 1:
            ways = ["use one round", *ways]
        if summation.min_cohort is not None:
            ways = [f"raise {opt.cohort_min}", *ways]
        fitting = in_ranges(fitting_numbers(borne, adversary, corrupt, most))
        raise InvalidInputError(
            f"{number:,} silos{f' in {rounds} rounds' * (rounds > 1)} cannot be summed safely"
            f" against the adversary {adversary} with {opt.max_dropout(format(borne, 'g'))} and"
            f" {corrupt} corrupt: of up to {most} silos in a sum, {fitting} can;"
            f" {', or '.join(ways)}"
        ) from error


# ---- one thing changed ----


def with_tau(design: Design, tau: float) -> Design:
    """Return the design with another target."""
    return replace(design, spec=replace(design.spec, tau=tau))


def with_epsilon(design: Design, epsilon: float) -> Design:
    """Return the design with another epsilon."""
    return replace(design, spec=design.spec.with_epsilon(epsilon))


def with_bytes(design: Design, max_bytes: int) -> Design:
    """Return the design with other bytes."""
    return replace(design, spec=design.spec.with_bytes(max_bytes))


def with_clients(design: Design, num_clients: int) -> Design:
    """Return the design for another number of clients, or of silos of as many people each."""
    spec = design.spec.for_clients(num_clients, design.clients[0])
    return for_fleet(spec, design.domain, num_clients, design.seed)


def with_rounds(design: Design, num_rounds: int) -> Design:
    """Return the design with another number of rounds."""
    spec = design.spec.with_rounds(num_rounds)
    return for_fleet(spec, design.domain, design.clients[0], design.seed)


def with_length(design: Design, max_length: int) -> Design:
    """Return the design of an open domain with another limit of the bytes of a string."""
    domain = OpenStrings.of(design.domain)
    shorter = OpenStrings(max_length, domain.bits, None, domain.normalise)
    return replace(design, domain=shorter)


def with_cohorts(design: Design, most: int) -> Design:
    """Return the design with cohorts of at most that number of clients."""
    spec = design.spec.with_cohorts(most)
    return for_fleet(spec, design.domain, design.clients[0], design.seed)
