"""The privacy statement of a campaign, in words and as fields: guarantee, unit, noise and proof."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedtally.base.text import in_a_row, in_number
from fedtally.errors import InvalidInputError
from fedtally.privacy import NOT_PRIVATE
from fedtally.privacy.accounting import (
    Guarantee,
    Method,
    concentrated,
    epsilon,
    numbers,
    realised,
    rounded_up,
)
from fedtally.privacy.config import PrivacyConfig
from fedtally.privacy.events import Event, Relation, Trust
from fedtally.privacy.laws import LAWS

# The tables name every relation, and every method for a single campaign, so that a lookup fails for
# a new relation or method. Otherwise a new one could get the sentence of an old one.
CHANGED = {
    Relation.ZERO_OUT: "if one client's items are taken away and it still takes part",
    Relation.REPLACE_ONE: "if one client's items are replaced by any others",
    Relation.ADD_REMOVE: "if one client takes part or does not",
}
# The words of `CHANGED` if clients are silos: one person is protected, not one client.
CHANGED_OF_PEOPLE = {
    Relation.ZERO_OUT: "if one person's items are taken away and the person is still counted",
    Relation.REPLACE_ONE: "if one person's items are replaced by any others",
    Relation.ADD_REMOVE: "if one person is there or is not",
}


class Unit(NamedTuple):
    """The words of a privacy statement for whom it protects: one client, or one person in silos.

    Attributes:
        sender: the noun for whoever sends a vector.
        changed: for each relation, the words for how two neighbouring data sets differ.
        who: the words for whom the statement protects; `{silos}` stands for the number of a
            person's silos.
        held: the words for the protected items.
        there: the clause that says "it takes part".
        bound: the clause for how much one client or person may contribute. `_bound` fills its
            places `{rounds}`, `{silos}`, `{items}`, `{clip}` and `{worst}`.
        is_in_silos: whether clients are silos, so that one person may be in several.
    """

    sender: str
    changed: Mapping[Relation, str]
    who: str
    held: str
    there: str
    bound: str
    is_in_silos: bool


UNITS = {  # the key is `Clients.kind` of the plan
    "persons": Unit(
        "client",
        CHANGED,
        "one client of the population",
        "its items",
        "it takes part",
        "a client takes part in {rounds} with {items}{clip}{worst}",
        is_in_silos=False,
    ),
    "silos": Unit(
        "silo",
        CHANGED_OF_PEOPLE,
        "one person of the population, in {silos}",
        "that person's items",
        "that person is there",
        "a silo takes part in {rounds}, a person in {silos}, with {items} in each{clip}",
        is_in_silos=True,
    ),
}
PROVEN = {
    Method.ANALYTIC_GAUSSIAN: "exact for Gaussian noise (analytic Gaussian mechanism)",
    Method.LOSS_DISTRIBUTION: (
        "by composing privacy loss distributions; measured within 0.1 % of the exact value"
    ),
    Method.DOMINATING_GAUSSIAN: (
        "by the Gaussian noise that dominates it; measured, for a squared norm of 6 or more, less"
        " than 1 % above the exact value at epsilon 1, more at larger ones"
    ),
    Method.BASIC: "by adding up what each counter shows at most, without a delta",
}


def fields(
    terms: PrivacyConfig,
    fewest_survivors: int | None = None,
    corrupt: int = 0,
    *,
    clients: str = "persons",
) -> dict[str, Any]:
    """Return the privacy statement as a dict of JSON-able values.

    An entry that does not apply is None, and so is an epsilon for which nothing is proven. The
    entry `in_a_row` is there only if the plan has `per_rounds`.

    Args:
        terms: the privacy terms of the plan.
        fewest_survivors: the fewest clients in any sum of the run, for the epsilon of the noise
            that clients really added (`epsilon_realised`). None: unknown, and `epsilon_realised` is
            None. `epsilon_realised` is also None if the clients do not add the noise, or if at most
            `corrupt` clients remain.
        corrupt: the number of clients in a sum that may be corrupt, for `epsilon_realised`.
        clients: the kind of clients: "persons", or "silos", in which one person is protected.

    >>> from fedtally.privacy.config import propose
    >>> found = fields(propose(epsilon=1.0, delta=1e-6, rows=5, width=1000))
    >>> found["epsilon"] <= 1, round(found["epsilon_replace_one"], 2)
    (True, 2.12)
    >>> found["mechanism"], found["not_private"]
    ('rounded-gaussian', False)
    """
    event, found = terms.event, terms.guarantee
    rho, rho_delta = concentrated(event)
    return {
        "unit": unit(event, clients),
        "period": period(event, clients),
        "epsilon": _finite(found.epsilon),
        "delta": found.delta,
        "epsilon_replace_one": _finite(terms.replace_one.epsilon),
        "epsilon_realised": _realised(terms, fewest_survivors, corrupt),
        "rho": rho,
        "rho_delta": rho_delta,
        "neighbours": str(event.relation),
        "trust": str(event.trust),
        "mechanism": str(event.mechanism),
        "noise_multiplier": terms.noise_multiplier,
        "noise_variance": event.noise_variance,
        "l2_sensitivity": event.l2_sensitivity,
        "participations": event.lifetime,
        "max_items": event.max_items,
        "clip_norm": event.clip_norm,
        "honest_survivors": event.honest_survivors,
        "silos_per_person": event.silos_per_person if UNITS[clients].is_in_silos else None,
        "method": str(found.method),
        "population": terms.population,
        "not_private": terms.not_private,
        # added only with `per_rounds`, so that other documents do not change
        **({} if event.per_rounds is None else {"in_a_row": _in_a_row(terms)}),
    }


def _in_a_row(terms: PrivacyConfig) -> dict[str, Any]:
    event = terms.event
    return {
        "rounds": event.per_rounds,
        "num_rounds": event.num_rounds,
        "participations": event.participations,
        "epsilon": terms.promised.epsilon,
    }


def promises(terms: PrivacyConfig, rounds: str = "rounds") -> list[str]:
    """Return a sentence with epsilon and delta for each period that the terms guarantee.

    With `per_rounds` there are two sentences: first for any `per_rounds` rounds in a row, then for
    all rounds. Without `per_rounds` there is one sentence, for all rounds.

    Args:
        terms: the privacy terms of the plan.
        rounds: the plural noun for rounds, such as "days" (`Calendar.noun`).

    >>> from fedtally.privacy.config import propose
    >>> weekly = {"rows": 5, "width": 1000, "per_rounds": 7, "num_rounds": 28}
    >>> terms = propose(epsilon=1.0, delta=1e-6, **weekly)
    >>> for promise in promises(terms, "days"):
    ...     print(promise)
    any 7 days in a row: epsilon 1, delta 1e-06, with a part in one of them
    all 28 days: epsilon 2.123, delta 1e-06, with a part in at most 4 of them
    >>> promises(propose(epsilon=1.0, delta=1e-6, rows=5, width=1000, participations=2))
    ['all rounds: epsilon 1, delta 1e-06, with a part in at most 2 of them']
    """
    event = terms.event
    life = _promise(terms.guarantee, event.lifetime)
    if event.per_rounds is None:
        return [f"all {rounds}: {life}"]
    one = _promise(terms.promised, event.participations)
    return [
        f"{in_a_row(event.per_rounds, rounds)}: {one}",
        f"all {event.num_rounds:,} {rounds}: {life}",
    ]


def _promise(found: Guarantee, parts: int) -> str:
    most = in_number(parts, "one", "at most {}")
    return f"{numbers(found.epsilon, found.delta)}, with a part in {most} of them"


def both_epsilons(terms: PrivacyConfig, rounds: str = "rounds") -> str:
    """Return a short text with epsilon for all rounds and, with `per_rounds`, for rounds in a row.

    Args:
        terms: the privacy terms of the plan.
        rounds: the plural noun for rounds, such as "days".

    >>> from fedtally.privacy.config import propose
    >>> weekly = {"rows": 5, "width": 1000, "per_rounds": 7, "num_rounds": 28}
    >>> both_epsilons(propose(epsilon=1.0, delta=1e-6, **weekly), "days")
    'epsilon 1 in any 7 days in a row and 2.123 in all 28'
    """
    event, life = terms.event, f"{rounded_up(terms.guarantee.epsilon):g}"
    if event.per_rounds is None:
        return f"epsilon {life}"
    return (
        f"epsilon {rounded_up(terms.promised.epsilon):g} in {in_a_row(event.per_rounds, rounds)}"
        f" and {life} in all {event.num_rounds:,}"
    )


def _realised(terms: PrivacyConfig, fewest_survivors: int | None, corrupt: int) -> float | None:
    if fewest_survivors is None or not terms.by_clients or fewest_survivors <= corrupt:
        return None
    return _finite(epsilon(realised(terms.event, fewest_survivors, corrupt), terms.delta).epsilon)


def _finite(bound: float) -> float | None:
    """Return the number, or None if it is infinite, since JSON has no infinity."""
    return bound if math.isfinite(bound) else None


def sentences(
    terms: PrivacyConfig,
    *,
    num_releases: int,
    is_two_server: bool = False,
    clients: str = "persons",
    rounds: str = "rounds",
) -> list[str]:
    """Return the privacy statement as four sentences, in the terms of NIST SP 800-226.

    They are about, in this order: the guarantee; the noise; what a client may contribute, and how
    the guarantee is proven; the unit and period that are protected, and the cost as zCDP.

    Args:
        terms: the privacy terms of the plan.
        num_releases: the number of opened sums; each has its own noise.
        is_two_server: whether two servers add up the vectors, and not one.
        clients: the kind of clients, "persons" or "silos" (see `fields`).
        rounds: the plural noun for rounds, such as "days".

    >>> from fedtally.privacy.config import propose
    >>> terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=1000, relation="replace-one")
    >>> print(sentences(terms, num_releases=1)[0])
    epsilon 1, delta 1e-06 if one client's items are replaced by any others (replace-one)
    """
    found, event = terms.guarantee, terms.event
    said = numbers(found.epsilon, found.delta)
    guarantee = f"{said} {changed(event.relation, clients)} ({event.relation})"
    # Many readers think of replace-one. Under other relations epsilon is mostly smaller, and they
    # would take the smaller number for the epsilon of replace-one. So the epsilon for replace-one
    # is added.
    other = terms.replace_one
    if event.relation is not Relation.REPLACE_ONE:
        bound = (
            f"epsilon {rounded_up(other.epsilon):g}" if math.isfinite(other.epsilon) else "no bound"
        )
        guarantee += f"; {bound} {changed(Relation.REPLACE_ONE, clients)} (replace-one)"
    if event.per_rounds is not None:
        guarantee = f"{promises(terms, rounds)[0]}; all {event.num_rounds:,} {rounds}: {guarantee}"
    return [
        f"{NOT_PRIVATE}: {guarantee}" if terms.not_private else guarantee,
        _noise(terms, num_releases, is_two_server, f"{UNITS[clients].sender}s"),
        f"{_bound(event, clients)}; proven {PROVEN[found.method]}",
        "; ".join(
            [
                f"unit of privacy: {unit(event, clients)}",
                f"period: {period(event, clients)}",
                _concentrated(event),
            ]
        ),
    ]


def changed(relation: Relation, clients: str = "persons") -> str:
    """Return the words for how two neighbouring data sets differ, under a relation.

    Args:
        relation: the neighbouring relation.
        clients: the kind of clients, "persons" or "silos".

    >>> changed(Relation.ADD_REMOVE, "silos")
    'if one person is there or is not'
    """
    return UNITS[clients].changed[relation]


def unit(event: Event, clients: str = "persons") -> str:
    """Return the words for whom the guarantee protects: one client, or one person in silos.

    A plan does not know whether its clients are people or only rows of a table. If they are rows, a
    note of the run says so.

    >>> unit(Event("rounded-gaussian", 5, "zero-out"))
    'one client of the population, all its items'
    """
    own = UNITS[clients]
    who = own.who.format(silos=_silos(event))
    if event.relation.hides_number:
        return f"{who}: whether {own.there}, and all {own.held}"
    return f"{who}, all {own.held}"


def _silos(event: Event) -> str:
    return in_number(event.silos_per_person, "one silo", "at most {} silos")


def _rounds(event: Event) -> str:
    most = in_number(event.lifetime, "one round", "at most {} rounds")
    if event.per_rounds is None or event.per_rounds == 1:  # one of one round is no limit
        return most
    return f"{most}, {event.participations:,} of any {event.per_rounds:,} in a row,"


def period(event: Event, clients: str = "persons") -> str:
    """Return the words for what the guarantee covers: the campaign, and a client's rounds in it.

    >>> period(Event("rounded-gaussian", 5, "zero-out", participations=4))
    'the whole campaign, with at most 4 rounds for each client'
    """
    return f"the whole campaign, with {_rounds(event)} for each {UNITS[clients].sender}"


def right_guesses(found: Guarantee) -> str:
    """Return a bound on how often an attacker guesses right about a client, in percent, as text.

    The attacker guesses from all that is published which of two neighbouring data sets was used;
    both are equally likely. Under an (epsilon, delta) guarantee the guess is right in at most a
    share (1 + delta e^-epsilon) / (1 + e^-epsilon) of cases. By chance half of all guesses are
    right. The text is rounded up.

    >>> from fedtally.privacy.config import propose
    >>> right_guesses(propose(epsilon=1.0, delta=1e-6, rows=5, width=1000).guarantee)
    '73.2'
    >>> right_guesses(propose(epsilon=9.0, delta=1e-6, rows=5, width=1000).guarantee)
    '99.99'
    """
    weight = math.exp(-found.epsilon)
    right = (1 + found.delta * weight) / (1 + weight)
    # As few decimals as possible, 1 to 4, but so many, if possible, that the text is not 100: this
    # would say that nothing is protected.
    rounded = (math.ceil(100 * right * 10**decimals) / 10**decimals for decimals in (1, 2, 3, 4))
    return f"{next((most for most in rounded if most < 100), 100.0):g}"


class JointGuarantee(NamedTuple):
    """The privacy cost of several campaigns together, for a client that takes part in all of them.

    Attributes:
        guarantee: the proven cost of all campaigns together, even if plans were chosen in view of
            earlier answers. None: no cost is proven.
        not_private: whether one of the campaigns is marked as not private, and so guarantees
            nothing.
        why: the reason why `guarantee` is None, else "".
        replace_one: the proven cost of all campaigns for the relation replace-one. It is None if
            and only if `guarantee` is None.
    """

    guarantee: Guarantee | None
    not_private: bool = False
    why: str = ""
    replace_one: Guarantee | None = None

    def __str__(self) -> str:
        said = (
            f"nothing is guaranteed: {self.why}" if self.guarantee is None else str(self.guarantee)
        )
        return f"{NOT_PRIVATE}: {said}" if self.not_private else said

    def to_dict(self) -> dict[str, Any]:
        """Return the cost as a dict of JSON-able values.

        If `guarantee` is None, all entries but `not_private` and `why` are None.
        """
        found = self.guarantee
        return {
            **dict.fromkeys(("epsilon", "delta", "neighbours", "trust", "method")),
            **({} if found is None else _fields(found)),
            "not_private": self.not_private,
            "why": self.why,
        }


def _fields(found: Guarantee) -> dict[str, Any]:
    return {
        "epsilon": _finite(found.epsilon),
        "delta": found.delta,
        "neighbours": str(found.relation),
        "trust": found.trust,
        "method": str(found.method),
    }


def add_up_guarantees(campaigns: Sequence[PrivacyConfig | None]) -> JointGuarantee:
    """Return the privacy cost of several campaigns, for a client that takes part in all of them.

    The delta of the total is the largest delta of the campaigns. No cost is proven if a campaign is
    without privacy, or if the costs cannot be added: then `why` says so.

    Args:
        campaigns: the privacy terms of each campaign; None for a campaign without privacy.

    Raises:
        InvalidInputError: there is no campaign.

    >>> from fedtally.privacy.config import propose
    >>> print(add_up_guarantees([propose(epsilon=1.0, delta=1e-6, rows=5, width=1000)] * 2))
    epsilon 1.457 at delta 1e-06 (zero-out, central trust, gaussian-composition)
    """
    if not campaigns:
        raise InvalidInputError(
            "campaigns must be at least one, got none: give the privacy terms of each, or None for"
            " one without privacy"
        )
    private = [terms for terms in campaigns if terms is not None]
    not_private = any(terms.not_private for terms in private)
    # An exact sum may reveal what a client contributed. Noise in other sums does not change this.
    if exact := len(campaigns) - len(private):
        return JointGuarantee(
            None, not_private, f"the sums of {exact} of these {len(campaigns)} are exact"
        )
    delta = max(terms.delta for terms in private)
    try:
        events = [terms.event for terms in private]
        replaced = [event.under(Relation.REPLACE_ONE) for event in events]
        return JointGuarantee(
            epsilon(events, delta, adaptive=True),
            not_private,
            replace_one=epsilon(replaced, delta, adaptive=True),
        )
    except InvalidInputError as error:
        return JointGuarantee(None, not_private, str(error))


def _concentrated(event: Event) -> str:
    rho, delta = concentrated(event)
    return f"zCDP: rho {rounded_up(rho):g}" + (
        f", except with probability {rounded_up(delta):g}" if delta else ""
    )


def _noise(terms: PrivacyConfig, num_releases: int, is_two_server: bool, clients: str) -> str:
    event, law = terms.event, LAWS[terms.event.mechanism]
    noise, drawn = law.words, law.stddev(event.noise_variance)
    sums = in_number(num_releases, "the one sum", "each of {} sums")
    stddev = f"standard deviation {drawn:.4g} in every counter of {sums}"
    if event.trust is Trust.CENTRAL:
        return (
            "central trust: the party that opens the exact sums is trusted to add"
            f" {noise} of {stddev}"
        )
    if is_two_server:
        return (
            f"distributed trust: each of two servers adds {noise} of {stddev}; one"
            " of the two may be dishonest"
        )
    return (
        f"distributed trust: the {clients} add shares of {noise}; the shares of"
        f" {event.honest_survivors:,} honest {clients} together have {stddev}, and more {clients}"
        " add more"
    )


def _bound(event: Event, clients: str) -> str:
    rounds, items = _rounds(event), in_number(event.max_items, "one item", "at most {} items")
    clip = "" if event.clip_norm is None else f", a sketch of norm {event.clip_norm:.4g} at most"
    worst = (
        ", the worst pair of candidates under these hashes" if event.collisions is not None else ""
    )
    said = {"rounds": rounds, "silos": _silos(event), "items": items, "clip": clip, "worst": worst}
    return UNITS[clients].bound.format(**said)
