"""Checks that the other parts of a plan keep the plan's privacy guarantee.

1. The list of candidates is public. A list made from the clients' items shows which items clients
   hold, and no noise can hide this.
2. If the guarantee hides the number of clients, the protocol does not show this number.
3. The guarantee relies only on the noise of honest clients that are sure to be in every sum.
4. Delta is so small that publishing a random person's item would break the guarantee.

Rules 1 and 4 do not apply to a plan that is marked `not_private`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from fedtally.plan.parts.candidates import Candidates
    from fedtally.plan.parts.clients import Clients
    from fedtally.plan.parts.protection import Protection
    from fedtally.plan.parts.summing import Summing
    from fedtally.privacy.config import PrivacyConfig


def check_candidates(terms: PrivacyConfig, candidates: Candidates) -> None:
    """Refuse a list of candidates that is not public, unless the plan is marked `not_private`.

    A list that is not public was made from the clients' own items. It shows which items clients
    hold, and no noise can hide this.

    Args:
        terms: the plan's terms of privacy.
        candidates: the plan's candidates.

    Raises:
        InvalidInputError: the list is not public, and the plan is not marked `not_private`.
    """
    if not candidates.description["public"] and not terms.not_private:
        raise InvalidInputError(
            "with privacy the domain must be public: candidates that are the clients' own items"
            " show who holds what, whatever the noise; declare a domain, or mark the plan as not"
            " private (not_private)"
        )


def check_collisions(terms: PrivacyConfig | None, candidates: Candidates) -> None:
    """Refuse a certificate of hashes if the domain is open.

    A certificate of hashes states how badly candidates collide under the actual hashes, so it needs
    a list of candidates.

    Args:
        terms: the plan's terms of privacy; None: the plan has no privacy.
        candidates: the plan's candidates.

    Raises:
        InvalidInputError: the plan has a certificate of hashes, and the domain is open.
    """
    if candidates.kind == "open" and terms is not None and terms.event.collisions is not None:
        raise InvalidInputError(
            "privacy.event.collisions certifies the hashes of listed candidates, and an open"
            " domain has no list: leave collisions (certify) out"
        )


def check_number(terms: PrivacyConfig, clients: Clients, summing: Summing) -> None:
    """Refuse a protocol of secure summation if the privacy guarantee hides the number of clients.

    Each protocol (secagg, two-server) shows this number to its servers. Only a trusted server, also
    called an ideal secure sum, can keep it secret.

    Args:
        terms: the plan's terms of privacy.
        clients: the kind of clients: persons or silos.
        summing: the way to sum the vectors of a round.

    Raises:
        InvalidInputError: the guarantee hides the number of clients, and a protocol sums.
    """
    if clients.are_hidden(terms.event.relation) and summing.terms is not None:
        raise InvalidInputError(
            f"add-remove hides the number of clients, which the secure sum {summing.kind} shows:"
            " use zero-out or replace-one, or an ideal secure sum"
        )


def check_delta(terms: PrivacyConfig, clients: Clients, num_clients: int, rounds: int = 1) -> None:
    """Refuse a delta that is at least 1 divided by the number of people.

    With such a delta, the guarantee would even hold if the item of a person drawn at random were
    published. For silos the number of people is the most that all silos together may have. A plan
    that is marked `not_private` is not refused.

    Args:
        terms: the plan's terms of privacy.
        clients: the kind of clients: persons or silos.
        num_clients: the number of clients of all rounds together.
        rounds: with a calendar, the most rounds of one client, in each of which `num_clients`
            counts it; else 1.

    Raises:
        InvalidInputError: delta is at least 1 divided by the number of people, and the plan is not
            marked `not_private`.
    """
    people = max(1, num_clients // rounds) * clients.people
    if terms.delta * people < 1 or terms.not_private:
        return
    each = "num_clients" if rounds == 1 else f"(num_clients / {rounds} rounds of a client)"
    number = each if clients.kind == "persons" else "(num_clients times people)"
    raise InvalidInputError(
        f"privacy.delta must be below 1 / {number}, {1 / people:g}, got {terms.delta:g}: publishing"
        f" the item of one {clients.counted[0]} drawn at random would be as private; guarantee a"
        " smaller delta, or mark the plan as not private (not_private)"
    )


def check_honest(
    terms: PrivacyConfig, clients: Clients, summing: Summing, protection: Protection
) -> None:
    """Refuse a guarantee that relies on the noise of too many honest clients.

    It may rely only on honest clients that are sure to be in every sum. If silos add the noise, the
    noise without one silo's share must be enough, too.

    Args:
        terms: the plan's terms of privacy, which state the number of honest clients.
        clients: the kind of clients: persons or silos.
        summing: the way to sum the vectors of a round.
        protection: the party that adds the noise, and what follows from it.

    Raises:
        InvalidInputError: the terms state more honest clients than are sure to be in every sum; or
            silos add the noise, and the noise without one silo's share would not be enough.
    """
    honest, least = terms.event.honest_survivors, summing.honest_clients
    if honest is not None and honest > least:
        raise InvalidInputError(
            f"privacy.event.honest_survivors must be at most {least}, the honest clients that"
            f" are sure to be in every sum, got {honest}: the noise of the others cannot be"
            " counted on"
        )
    if clients.kind == "silos" and protection.by == "clients":
        _check_own_share(honest or 0, summing)


def _check_own_share(honest: int, summing: Summing) -> None:
    """Refuse noise of silos that is not enough without the share of one silo.

    A silo that reads the result can subtract its own share of the noise. The shares of the other
    silos must then still protect their people. So a protocol must assume at least one corrupt silo,
    whose share is then not relied on. With a trusted server, `honest` must be below the number of
    silos in the largest round. Proof: docs/privacy-proofs/silos.md.

    Args:
        honest: the number of honest silos whose noise the guarantee relies on.
        summing: the way to sum the vectors of a round.

    Raises:
        InvalidInputError: the protocol assumes no corrupt silo; or a trusted server sums, and
            `honest` is not below the number of silos in the largest round.
    """
    if summing.terms is not None and summing.terms.corrupt == 0:
        raise InvalidInputError(
            "secure_sum.corrupt must be at least 1 where silos add the noise: a silo that reads"
            " the result takes its own share of the noise out of it, and the people of the"
            " others need the rest"
        )
    # with a trusted server the plan states no number of corrupt silos: assume one
    least = summing.honest_clients - 1
    if summing.terms is None and honest > least:
        raise InvalidInputError(
            f"privacy.event.honest_survivors must be at most {least}, one less than the silos of a"
            f" round, got {honest}: a silo that reads the result takes its own share of the noise"
            " out of it"
        )
