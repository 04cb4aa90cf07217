"""Does a plan keep the guarantee of its protection? Where protection meets the other parts.

1. Candidates are public: those of clients show who holds what, whatever the noise.
2. Nobody sees a number of clients that the guarantee hides.
3. The noise that is counted on comes from honest clients that are sure to be in every sum.
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
    """Refuse candidates that tell which client holds which item.

    Args:
        terms: the privacy of the plan.
        candidates: what may be counted.

    Raises:
        InvalidInputError: they are the clients' own items, and the plan is not marked.
    """
    if not candidates.description["public"] and not terms.not_private:
        raise InvalidInputError(
            "with privacy the domain must be public: candidates that are the clients' own items"
            " show who holds what, whatever the noise; declare a domain, or mark the plan as not"
            " private (not_private)"
        )


def check_collisions(terms: PrivacyConfig | None, candidates: Candidates) -> None:
    """Refuse certified hashes of candidates that nobody has listed.

    Args:
        terms: the privacy of the plan; None: there is none.
        candidates: what may be counted.

    Raises:
        InvalidInputError: the domain is open.
    """
    if candidates.kind == "open" and terms is not None and terms.event.collisions is not None:
        raise InvalidInputError(
            "privacy.event.collisions certifies the hashes of listed candidates, and an open"
            " domain has no list: leave collisions (certify) out"
        )


def check_number(terms: PrivacyConfig, clients: Clients, summing: Summing) -> None:
    """Refuse a protocol that shows a number of clients which the guarantee hides.

    Args:
        terms: the privacy of the plan.
        clients: who sends the vectors.
        summing: how the vectors are summed.

    Raises:
        InvalidInputError: it does.
    """
    if clients.are_hidden(terms.event.relation) and summing.terms is not None:
        raise InvalidInputError(
            f"add-remove hides the number of clients, which the secure sum {summing.kind} shows:"
            " use zero-out or replace-one, or an ideal secure sum"
        )


def check_delta(terms: PrivacyConfig, clients: Clients, num_clients: int) -> None:
    """Refuse a delta that allows to publish the item of somebody drawn at random.

    Args:
        terms: the privacy of the plan.
        clients: who sends the vectors.
        num_clients: the clients over all rounds.

    Raises:
        InvalidInputError: it is too large, and the plan is not marked.
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
    """Refuse noise of more honest clients than are sure to be in every sum.

    Args:
        terms: the privacy of the plan.
        clients: who sends the vectors.
        summing: how the vectors are summed.
        protection: who adds the noise.

    Raises:
        InvalidInputError: the guarantee counts on others.
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
    """Refuse silos' shares of noise of which not even one may be known to a reader.

    A silo that reads the result takes its own share out of the noise, and owes that privacy to the
    people of the others. Proof: docs/privacy-proofs/silos.md.
    """
    if summing.terms is not None and summing.terms.corrupt == 0:
        raise InvalidInputError(
            "secure_sum.corrupt must be at least 1 where silos add the noise: a silo that reads"
            " the result takes its own share of the noise out of it, and the people of the"
            " others need the rest"
        )
    # an ideal sum has no such number: one of its silos is left out of the count
    least = summing.honest_clients - 1
    if summing.terms is None and honest > least:
        raise InvalidInputError(
            f"privacy.event.honest_survivors must be at most {least}, one less than the silos of a"
            f" round, got {honest}: a silo that reads the result takes its own share of the noise"
            " out of it"
        )
