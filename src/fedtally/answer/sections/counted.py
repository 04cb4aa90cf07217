"""The section on what was counted, among whom, and what was left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedtally.answer import amounts
from fedtally.answer.estimates import Estimate
from fedtally.base.text import escaped, in_number, one_of
from fedtally.domain import Domain, Grid, OpenStrings
from fedtally.plan import Plan

if TYPE_CHECKING:
    from fedtally.answer.part import Part
    from fedtally.answer.result import Result


# A list says how many candidates it leaves out only if they are fewer than this, since the
# candidates are decoded again for this text.
_MOST_LOOKED = 1 << 16


def contributions(part: Part) -> str:
    """Return in words how many clients or contributions frequencies are shares of.

    A contribution is what one client adds in one round. If the answer is about a window of rounds,
    the text names the rounds.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea", "milk"], rounds=["Mon", "Tue"], seed=1)
    >>> contributions(result), contributions(result.window("last:1"))
    ('2 clients', '1 client in Tue (round 1)')
    """
    where = "" if part.span is None else f" in {part.span.told}"
    return f"{_contributions(part)}{where}"


def _contributions(part: Part) -> str:
    if part.repeats_are_unknown and (part.span is not None or not part.num_silos):
        return amounts.counted(part.num_contributions, "contribution")
    by = part.columns.get("round")
    rounds = f" by {escaped(by[0])}" if by else ""
    if part.num_silos:
        people = f"people in {amounts.counted(part.num_silos, 'silo')}"
        if part.unit == "people":
            return f"{part.num_clients:,} {people}"
        number = "" if part.repeats_are_private else f"{part.num_clients:,} "
        return f"{part.num_contributions:,} contributions of {number}{people}{rounds}"
    named = part.columns.get("client")
    clients = amounts.counted(part.num_clients, "client") + (
        f" ({escaped(named[0])})" if named else ""
    )
    if part.unit == "clients":
        return clients
    return f"{part.num_contributions:,} contributions of {clients}{rounds}"


def may_be_drawn(part: Part) -> bool:
    """Return whether some clients' items may have been drawn at random.

    A client with more than max_items items, the plan's bound, counts a random draw of them. The
    result is also True if privacy hides whether a client drew items.
    """
    return bool(drawn_away(part.draw)) or (
        part.plan.privacy is not None and "client" in part.columns
    )


def line(result: Result) -> str:
    """Return what was counted, in words, with the name of the item column if it is known.

    >>> import fedtally
    >>> line(fedtally.estimate(["tea", "milk"], seed=1))
    'Share of each item among 2 clients; 2 candidates'
    """
    named = result.columns.get("item", [])
    item = escaped(named[0]) if len(named) == 1 else "item"
    most, drawn = result.plan.max_items, "drawn " * may_be_drawn(result)
    listed = result.plan.candidates.num_listed
    number = amounts.counted(listed, "candidate") if listed else "no list of candidates"
    if most == 1:
        return f"Share of each {drawn}{item} among {contributions(result)}; {number}"
    held = f"hold each {item} among at most {most:,} {drawn}items"
    return f"Share of {contributions(result)} that {held}; {number}"


def left_out(result: Result, listed: Sequence[Estimate]) -> str:
    """Return in words how many candidates a list leaves out, if all are below half a client.

    The text is "" in each of these cases:

    - the list leaves out no candidate,
    - the list is empty,
    - the list also leaves out an estimate of half a client or more,
    - the list leaves out 65,536 candidates or more, which would take long to decode again.

    Args:
        result: the whole result.
        listed: the estimates of the top items.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea"] * 3, domain=["tea", "milk", "rice"], seed=1)
    >>> left_out(result, result.top(20)), left_out(result, [])
    ('2 more candidates have an estimate below half a client', '')
    """
    rest = result.plan.candidates.num_listed - len(listed)
    if not listed or not 0 < rest < _MOST_LOOKED:
        return ""
    if len(result.top(len(listed) + 1)) > len(listed):  # the list leaves out larger ones, too
        return ""
    have = in_number(rest, "has", "have")
    unit = one_of(result.unit)
    return f"{amounts.counted(rest, 'more candidate')} {have} an estimate below half a {unit}"


def drawn_away(draw: Mapping[str, Any] | None) -> str:
    """Return a sentence on the share of clients' items that the bound (max_items) left out.

    Args:
        draw: the field `draw` of a result: how many items were left out; None: no item was left
            out, or the number is private or unknown.

    Returns:
        the sentence; "" if no items were left out.

    >>> drawn_away({"max_items": 1, "pairs": 100, "drawn_away": 73, "share_with_several": 0.5,
    ...             "max_items_for_all": 15})
    "The draw left out 73 % of the clients' items: --max-items 15 counts all"
    """
    if draw is None or not draw["drawn_away"]:
        return ""
    # Round down: rounding to the nearest could give 100 %, but some items were always kept. A share
    # below 1 % is written as "under 1".
    share = math.floor(100 * draw["drawn_away"] / draw["pairs"])
    return (
        f"The draw left out {share or 'under 1'} % of the clients' items: --max-items"
        f" {draw['max_items_for_all']} counts all"
    )


def who(plan: Plan) -> str:
    """Return the singular noun for who sends messages under a plan: client, or silo (of people)."""
    return plan.clients.senders[0]


def plan_title(plan: Plan) -> str:
    """Return a title for a plan, with its numbers of clients and candidates.

    >>> plan_title(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...                 max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...                 max_items=1, seed=bytes(32)))
    'Plan for 50 clients and 900 candidates'
    """
    return f"Plan for {amounts.counted(plan.fleet, who(plan))} and {num_candidates(plan)}"


def by_calendar(plan: Plan) -> str:
    """Return in words a plan's calendar, its clients, and how many rounds each client is in.

    The plan must have a calendar.
    """
    most = plan.protection.lifetime
    each = in_number(most, "one of them", "at most {} of them")
    return f"{plan.calendar}; {plan.fewest_clients:,} clients, each in {each}"


def ends(plan: Plan) -> str:
    """Return in words when the plan's rule ends a campaign early; "" if there is no such rule."""
    rule = plan.stopping
    if rule is None:
        return ""
    least = f" and {rule.least_clients:,} clients" if rule.least_clients > 1 else ""
    return (
        f"once the largest error is known to be at most {100 * rule.linf:.3g} points, after"
        f" {rule.least_rounds} rounds{least} at least"
    )


def num_candidates(plan: Plan) -> str:
    """Return in words how many candidates a plan has; "all strings" if nobody listed them."""
    listed = plan.candidates.num_listed
    return amounts.counted(listed, "candidate") if listed else "all strings"


def candidates(domain: Domain) -> str:
    """Return in words the kind and number of candidates, and whether they are public.

    >>> from fedtally.domain import Grid, IntegerRange, Strings
    >>> candidates(IntegerRange(1, 9)), candidates(Strings(["tea"], bytes(32)))
    ('9 integers, public', '1 string, not public: taken from the input itself')
    >>> candidates(Grid(25, 50, -130, -60, 0.1))
    '175,000 cells, public; each is 0.1 degrees wide, and named by its centre'
    """
    if isinstance(domain, OpenStrings):
        return f"any string, by a hash of {domain.bits} bits: nobody has the list"
    known = "public" if domain.public else "not public: taken from the input itself"
    if isinstance(domain, Grid):
        known = f"{known}; each is {degrees(domain.step)} wide, and named by its centre"
    return f"{amounts.counted(domain.size, domain.noun)}, {known}"


def degrees(step: float) -> str:
    """Return the width of a grid's cell in words.

    Args:
        step: the width in degrees.

    >>> degrees(0.1), degrees(1.0)
    ('0.1 degrees', '1 degree')
    """
    return f"{step:g} degree{'s' * (step != 1)}"


def collisions(domain: Domain) -> str:
    """Return in words the probability that two candidates share an id.

    It is "" if that cannot happen, since the ids are the items themselves.

    >>> from fedtally.domain import IntegerRange, Strings
    >>> collisions(IntegerRange(1, 9)), collisions(Strings(["tea", "milk"], bytes(32)))
    ('', 'two candidates share a 61-bit id with probability at most 1e-18')
    """
    if not domain.collision_probability:
        return ""
    return (
        "two candidates share a 61-bit id with probability at most"
        f" {domain.collision_probability:.1g}"
    )


def candidates_row(domain: Domain) -> tuple[str, str]:
    """Return the row ("Candidates", text): kind and number, and how likely two share an id."""
    return "Candidates", "; ".join(filter(None, [candidates(domain), collisions(domain)]))


def part_of_sum(result: Result) -> str:
    """Return the singular noun for what a result's sums add up, such as client or silo.

    It is "contribution" if a client may be in several of the sums, or a silo is known to be.
    """
    if not result.num_silos:
        return result.unit.removesuffix("s")
    parts = sum(sketch.num_silos for sketch in result.sketches)
    return "silo" if parts == result.num_silos else "contribution"


def those(number: int, unit: str) -> str:
    """Return in words who took part, with "these" before the number.

    >>> those(3000, "clients"), those(1, "people")
    ('these 3,000 clients', 'this one person')
    """
    return in_number(number, f"this one {one_of(unit)}", f"these {{}} {unit}")


def open_fields(result: Result) -> dict[str, Any] | None:
    """Return the JSON fields of an open domain; None if the domain lists its candidates.

    "found" is the number of hashes that stand out, and "named" how many of them have a name. To
    count them, the sums are decoded and names are read, if this was not done before.
    """
    domain = result.domain
    if not isinstance(domain, OpenStrings):
        return None
    return {
        "bits": domain.bits,
        "max_length": domain.max_length,
        "normalise": domain.normalise,
        "found": result.num_found,
        "named": len(result.names),
        "collision_probability": domain.collides(result.num_found),
    }


def fields(result: Result) -> dict[str, Any]:
    """Return the JSON fields of what was counted: contributions, window, columns, early end.

    The field `draw` says how many items the bound on a client's items (max_items) left out.
    """
    return {
        "num_contributions": result.num_contributions,
        "num_silos": result.num_silos or None,
        "window": None if result.span is None else result.span.fields(),
        "columns": result.columns,
        "draw": result.draw,
        "ended": result.ended,
    }


def rows(result: Result) -> list[tuple[str, str]]:
    """Return rows of (name, text) on the candidates, on who took part, and on an early end."""
    took_part = (result.plan.nouns[1].capitalize(), _attended(result))
    return [("Candidates", candidates(result.domain)), took_part, *_ended(result)]


def _ended(result: Result) -> list[tuple[str, str]]:
    """Return the row "Rounds" on how many rounds took place; [] without an early end."""
    if result.ended is None:
        return []
    by = {"rule": "the error was known", "operator": "an operator ended it"}[result.ended["by"]]
    return [("Rounds", f"{result.ended['rounds']:,} of {result.ended['num_rounds']:,}: {by}")]


def _attended(result: Result) -> str:
    """Return in words how many clients took part, in how many rounds, with how many items each."""
    most = in_number(result.plan.max_items, "one item each", "at most {} items each")
    held = result.plan.num_rounds if result.ended is None else result.ended["rounds"]
    rounds = amounts.counted(held, "round")
    if result.span is not None:
        return f"{contributions(result)}, {most}"
    if result.num_silos:
        silos = f"{amounts.counted(result.num_silos, 'silo')} of at most {result.plan.people:,}"
        return f"{result.num_clients:,} in {silos}{_each(result)}, {rounds}, {most}"
    if result.unit == "clients":
        return f"{result.num_clients:,} in {rounds}, {most}"
    if result.repeats_are_unknown:
        return f"{contributions(result)} in {rounds}, {most}"
    mean = result.num_contributions / result.num_clients
    return f"{result.num_clients:,}, each in {mean:.3g} of {rounds} on average, {most} in a round"


def _each(result: Result) -> str:
    """Return in words how often a person of silos counts; "" if everybody counts once.

    A person in several rounds or in several silos counts several times.
    """
    if result.unit == "people":
        return ""
    if result.repeats_are_private:
        return ", with those counted who come again"
    return f", each counted {result.num_contributions / result.num_clients:.3g} times on average"
