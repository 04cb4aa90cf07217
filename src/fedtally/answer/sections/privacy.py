"""The section on what differential privacy guarantees, and what this protects."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fedtally.answer.sections import dap_sums, trust
from fedtally.base.text import in_a_row
from fedtally.errors import Note, opt
from fedtally.plan import Plan
from fedtally.privacy.config import PrivacyConfig

if TYPE_CHECKING:
    from fedtally.answer.part import Part

NO_PRIVACY = "no differential privacy: the sums of each round are exact"
IN_NO_LEDGER = "this run is in no ledger"  # so begins the note on a private run without a ledger


def guarantee(fields: Mapping[str, Any], rounds: str = "rounds") -> str:
    """Return the privacy guarantee in one line: numbers, neighbours, trust, mechanism.

    Args:
        fields: the JSON fields of a plan's privacy, as the function `fields` returns them.
        rounds: the plural noun for rounds, such as `Plan.rounds_noun`.

    >>> guarantee({"epsilon": 1.00491, "delta": 1e-6, "neighbours": "zero-out", "trust": "central",
    ...            "not_private": True, "mechanism": "rounded-gaussian"})
    'not private: epsilon 1.005, delta 1e-06 (zero-out, central trust, rounded-gaussian noise)'
    """
    from fedtally.privacy import NOT_PRIVATE
    from fedtally.privacy.accounting import numbers, rounded_up

    how = f"{fields['neighbours']}, {fields['trust']} trust, {fields['mechanism']} noise"
    epsilon = math.inf if fields["epsilon"] is None else fields["epsilon"]
    said = numbers(epsilon, fields["delta"])
    if (row := fields.get("in_a_row")) is not None:
        week = f"epsilon {rounded_up(row['epsilon']):g} in {in_a_row(row['rounds'], rounds)}"
        said = f"{week}; in all {row['num_rounds']:,} {said}"
    return f"{f'{NOT_PRIVATE}: ' if fields['not_private'] else ''}{said} ({how})"


def line(plan: Plan, traffic: Mapping[str, Any] | None = None) -> str:
    """Return in one sentence what a plan protects: how often a guess can be right, and epsilon.

    If the plan has no privacy, or is marked not private, the sentence says this.

    Args:
        plan: the plan.
        traffic: the field `secure_sum` of a result, which says how the sums were made; None: there
            are no sums yet.

    >>> domain = {"kind": "range", "size": 900, "public": True}
    >>> line(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...                       max_round_clients=50, domain=domain, max_items=1, seed=bytes(32)))
    'no differential privacy: the sums of each round are exact, and may show rare items'
    """
    if plan.privacy is None:
        return f"{NO_PRIVACY}, and may show rare items"
    from fedtally.privacy import NOT_PRIVATE, guarantee_text
    from fedtally.privacy.accounting import numbers

    terms = plan.privacy
    said_numbers = numbers(terms.guarantee.epsilon, terms.guarantee.delta)
    if terms.event.per_rounds is not None:
        said_numbers = "; ".join(guarantee_text.promises(terms, plan.rounds_noun))
    if terms.not_private:
        return f"{NOT_PRIVATE}: nothing is guaranteed; the noise is that of {said_numbers}"
    return dap_sums.of_reports(f"{guesses(terms, plan.nouns[0])} ({said_numbers})", traffic)


def guesses(terms: PrivacyConfig, whom: str) -> str:
    """Return in words how often a guess about one person can be right, for each kind of guess.

    Args:
        terms: the privacy terms of the plan.
        whom: the noun for the person about whom somebody guesses.

    >>> from fedtally.privacy.config import propose
    >>> terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=1000, relation="replace-one")
    >>> print(guesses(terms, "client").partition(" (")[2])
    which of two sets of items does a client have?); 50 % is chance
    """
    from fedtally.privacy.events import Relation
    from fedtally.privacy.guarantee_text import right_guesses

    question = {
        Relation.ZERO_OUT: f"does a {whom} have its items or none?",
        Relation.REPLACE_ONE: f"which of two sets of items does a {whom} have?",
        Relation.ADD_REMOVE: f"does a {whom} take part?",
    }[terms.event.relation]
    right = right_guesses(terms.guarantee)
    said = f"a guess is right in at most {right} % of cases ({question})"
    if terms.event.relation is not Relation.REPLACE_ONE:
        replaced = right_guesses(terms.replace_one)
        said += f", or {replaced} % (which of two sets of items does it have?)"
    return f"{said}; 50 % is chance"


def rows(plan: Plan, traffic: Mapping[str, Any] | None = None) -> list[tuple[str, str]]:
    """Return rows of (name, text) on a plan's privacy guarantee, and on who sees the sums.

    The first row is named "Privacy", and rows named "" continue it.

    Args:
        plan: the plan.
        traffic: the field `secure_sum` of a result, which says how the sums were made; None: there
            are no sums yet.

    >>> domain = {"kind": "range", "size": 900, "public": True}
    >>> rows(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...                   max_round_clients=50, domain=domain, max_items=1, seed=bytes(32)))
    [('Privacy', 'no differential privacy: the sums of each round are exact')]
    """
    seen = "" if traffic is None else f" ({trust.seen(traffic)})"
    if plan.privacy is None:
        return [("Privacy", f"{NO_PRIVACY}{seen}")]
    from fedtally.privacy import guarantee_text

    # If clients add the noise, each cohort's sum has noise of its own, and counts as a release.
    split = 0 if plan.protection.of_client() is None else (traffic or {}).get("cohorts", 0)
    of_clients = guarantee_text.sentences(
        plan.privacy,
        num_releases=split or len(plan.releases),
        is_two_server=plan.is_two_server,
        clients=plan.clients.kind,
        rounds=plan.rounds_noun,
    )
    said = [dap_sums.of_reports(each, traffic) for each in of_clients]
    rows = [("Privacy", said[0]), *(("", line) for line in said[1:])]
    # If a server adds the noise, it sees sums without noise, and the sentences say so already.
    is_seen = traffic is not None and plan.protection.of_release() is None
    return [*rows, ("", trust.seen(traffic or {}))] if is_seen else rows


def ledger_rows(part: Part, charged: str) -> list[tuple[str, str]]:
    """Return a list with the row "Ledger", on the privacy cost that a ledger has for a population.

    If `charged` is not "", it is the text of the row. Otherwise the text names the command that
    reads the ledger, since a result does not contain the ledger. If `charged` is "", the list is
    empty in three cases: the plan has no privacy, the plan is marked not private, or the run was in
    no ledger.

    Args:
        part: the result.
        charged: what the ledger says about the charge, in words; "": no ledger was charged, or it
            was not read.
    """
    if charged:
        return [("Ledger", charged)]
    terms = part.plan.privacy
    if terms is None or terms.not_private:
        return []
    if any(note.startswith(IN_NO_LEDGER) for note in part.notes):
        return []
    asked = f"{opt.ledger('LEDGER')} {opt.population(terms.population)}"
    return [("Ledger", Note(f"not read here: fedtally ledger show {asked} says what is spent"))]


def banner(plan: Plan) -> str:
    """Return the warning at the top of a report that is not private; "" if the plan is private.

    A plan is not private if it has no privacy, or if it is marked not private.

    >>> plan = Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...             max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...             max_items=1, seed=bytes(32))
    >>> banner(plan)
    'No differential privacy: the sums of each round are exact'
    """
    if plan.privacy is None:
        return f"{NO_PRIVACY[0].upper()}{NO_PRIVACY[1:]}"
    return "Not private: nothing is guaranteed" if plan.privacy.not_private else ""


def protects(plan: Plan, traffic: Mapping[str, Any] | None = None) -> list[str]:
    """Return what a plan protects, as a list of sentences without formulas.

    Args:
        plan: the plan.
        traffic: the field `secure_sum` of a result, which says how the sums were made; None: there
            are no sums yet.
    """
    one, _ = plan.nouns
    if plan.privacy is None:
        nothing = (
            f"Nothing hides what one {one} contributed from somebody who sees exact sums and knows"
            " what the others contributed."
        )
        return [dap_sums.of_reports(nothing, traffic)]
    from fedtally.privacy.guarantee_text import changed, period, right_guesses, unit

    terms, clients = plan.privacy, plan.clients.kind
    if terms.not_private:
        return ["This run is marked not private: nobody may rely on any protection."]
    said = [
        f"What is published changes little {changed(terms.event.relation, clients)}.",
        (
            "Somebody who holds the two cases equally likely, and guesses from all that was"
            f" published, is right in at most {right_guesses(terms.guarantee)} % of cases, whatever"
            " else that person knows; 50 % is chance."
        ),
        f"This protects {unit(terms.event, clients)}, over {period(terms.event, clients)}.",
    ]
    if (most := terms.event.per_rounds) is not None:
        week = (
            f"A guess about {in_a_row(most, plan.rounds_noun)} is right in at most"
            f" {right_guesses(terms.promised)} % of cases."
        )
        said.insert(2, week)
    return [dap_sums.of_reports(each, traffic) for each in said]


def fields(plan: Plan, traffic: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Return the JSON fields of a plan's privacy; None if the plan has no privacy.

    Args:
        plan: the plan.
        traffic: the field `secure_sum` of a result, which says how the sums were made; None: there
            are no sums yet.
    """
    if plan.privacy is None:
        return None
    from fedtally.privacy import guarantee_text

    seen = traffic or {}
    found = guarantee_text.fields(
        plan.privacy,
        seen.get("fewest_survivors"),
        seen.get("corrupt", 0),
        clients=plan.clients.kind,
    )
    return found | {name: dap_sums.of_reports(found[name], traffic) for name in ("unit", "period")}


def planned(plan: Plan) -> str:
    """Return in words a plan's epsilon and what this means, or that the plan has no privacy."""
    if plan.privacy is None:
        return NO_PRIVACY
    from fedtally.privacy.guarantee_text import both_epsilons, right_guesses

    found = plan.privacy.guarantee
    epsilon = both_epsilons(plan.privacy, plan.rounds_noun)
    if plan.privacy.not_private:
        return f"not private: nothing is guaranteed; the noise is for {epsilon}"
    if right_guesses(found) == "100":
        return f"{epsilon} hides next to nothing: a guess may be right in nearly all cases"
    return f"{epsilon}: {guesses(plan.privacy, plan.nouns[0])}"
