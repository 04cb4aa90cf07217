"""Checks that the other parts of a plan keep the privacy guarantee of its protection.

1. The list of candidates is public: a list made of clients' items shows who holds what, whatever
   the noise.
2. The protocol does not show the number of clients if the guarantee hides it.
3. The guarantee counts only the noise of honest clients that are sure to be in every sum.
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
    """Refuse a list of candidates that tells which client holds which item.

    Args:
        terms: the privacy of the plan.
        candidates: the candidates.

    Raises:
        InvalidInputError: the candidates are the clients' own items, and the plan is not marked
            `not_private`.
    """
    if not candidates.description["public"] and not terms.not_private:
        raise InvalidInputError(
            "with privacy the domain must be public: candidates that are the clients' own items"
            " show who holds what, whatever the noise; declare a domain, or mark the plan as not"
            " private (not_private)"
        )


def check_collisions(terms: PrivacyConfig | None, candidates: Candidates) -> None:
    """Refuse certified hashes if the domain is open: a certificate needs a list of candidates.

    Args:
        terms: the privacy of the plan; None: the plan has none.
        candidates: the candidates.

    Raises:
        InvalidInputError: the hashes are certified, and the domain is open.
    """
    if candidates.kind == "open" and terms is not None and terms.event.collisions is not None:
        raise InvalidInputError(
            "privacy.event.collisions certifies the hashes of listed candidates, and an open"
            " domain has no list: leave collisions (certify) out"
        )


def check_number(terms: PrivacyConfig, clients: Clients, summing: Summing) -> None:
    """Refuse a protocol that shows the number of clients, if the guarantee hides this number.

    Args:
        terms: the privacy of the plan.
        clients: the senders of the vectors.
        summing: the way to sum the vectors.

    Raises:
        InvalidInputError: the guarantee hides the number, and a protocol sums the vectors.
    """
    if clients.are_hidden(terms.event.relation) and summing.terms is not None:
        raise InvalidInputError(
            f"add-remove hides the number of clients, which the secure sum {summing.kind} shows:"
            " use zero-out or replace-one, or an ideal secure sum"
        )


def check_delta(terms: PrivacyConfig, clients: Clients, num_clients: int) -> None:
    """Refuse a delta so large that publishing the item of a random person would be allowed.

    Args:
        terms: the privacy of the plan.
        clients: the senders of the vectors.
        num_clients: the number of clients over all rounds.

    Raises:
        InvalidInputError: delta is at least 1 over the number of people, and the plan is not marked
            `not_private`.
    """
    people = num_clients * clients.people
    if terms.delta * people < 1 or terms.not_private:
        return
    number = "num_clients" if clients.kind == "persons" else "(num_clients times people)"
    raise InvalidInputError(
        f"privacy.delta must be below 1 / {number}, {1 / people:g}, got {terms.delta:g}: publishing"
        f" the item of one {clients.counted[0]} drawn at random would be as private; guarantee a"
        " smaller delta, or mark the plan as not private (not_private)"
    )


def check_honest(
    terms: PrivacyConfig, clients: Clients, summing: Summing, protection: Protection
) -> None:
    """Refuse a guarantee that counts the noise of more honest clients than every sum surely has.

    Args:
        terms: the privacy of the plan.
        clients: the senders of the vectors.
        summing: the way to sum the vectors.
        protection: the party that adds the noise, and what follows from it.

    Raises:
        InvalidInputError: the guarantee counts more honest clients; or silos add the noise, and it
            would not suffice without the share of one silo.
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
    """Refuse noise of silos that would not suffice without the share of one silo.

    A silo that reads the result can subtract its own share of the noise. The other shares must then
    protect the people of the other silos. Proof: docs/privacy-proofs/silos.md.
    """
    if summing.terms is not None and summing.terms.corrupt == 0:
        raise InvalidInputError(
            "secure_sum.corrupt must be at least 1 where silos add the noise: a silo that reads"
            " the result takes its own share of the noise out of it, and the people of the"
            " others need the rest"
        )
    # an ideal sum has no number of corrupt clients, so one of its silos is not counted
    least = summing.honest_clients - 1
    if summing.terms is None and honest > least:
        raise InvalidInputError(
            f"privacy.event.honest_survivors must be at most {least}, one less than the silos of a"
            f" round, got {honest}: a silo that reads the result takes its own share of the noise"
            " out of it"
        )
