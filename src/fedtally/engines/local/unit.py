"""Notes for the reader of an answer on the unit that counts as one client."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedtally.engines.local.tally import Tally
from fedtally.plan import Plan
from fedtally.sources import Source

_PEOPLE = re.compile(
    "account|client|customer|device|email|employee|guid|household|id|imei|member|msisdn|participant|"
    "patient|person|phone|respondent|student|subject|subscriber|uid|user|userid|username|uuid|"
    "visitor"
)
_SHOWN = 3  # names of columns in a note


def looks_like_people(names: Sequence[str]) -> list[str]:
    """Return the names of columns that look as if they named people or their devices.

    Only the words of a name are looked at: looking at the values would tell what clients hold.

    >>> looks_like_people(["word", "user_id", "clientId", "Patients", "valid", "idea"])
    ['user_id', 'clientId', 'Patients']
    """
    return [
        name
        for name in names
        if any(_PEOPLE.fullmatch(word.removesuffix("s")) for word in _words(name))
    ]


def _words(name: str) -> list[str]:
    # user_id, userId and user-id are two words each
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word for word in re.split(r"[\W_0-9]+", parted.lower()) if word]


def notes(source: Source, tally: Tally, plan: Plan, *, has_ledger: bool) -> list[str]:
    """Return the notes on clients, rows and contributions.

    Under privacy they depend on options, on names of columns and on the plan, and on nothing that
    clients hold.

    Args:
        source: the source of the rows.
        tally: the counts of its rows.
        plan: the plan of the campaign.
        has_ledger: whether a ledger is charged.
    """
    if plan.privacy is None:
        return _drawn_away(tally, plan.max_items)
    found = []
    if tally.is_bounded_by_client:
        found.append(
            f"of a client with more than {_items(plan.max_items)}, {plan.max_items} drawn at random"
            f" {'is' if plan.max_items == 1 else 'are'} counted: a frequency is the share of"
            " clients whose drawn items include it (how many clients that concerns is private)"
        )
    elif not source.rows_are_clients:
        found.append(_rows_are_people(tally))
    if not has_ledger and not plan.privacy.not_private:
        population = plan.privacy.population
        found.append(
            "this run is in no ledger: nothing remembers what it spent, and a second run on the"
            " same clients spends again. To keep one: fedtally ledger grant --ledger books.db"
            f" --population {population} --epsilon E --delta D, then --ledger books.db --population"
            f" {population}"
        )
    return found


def _rows_are_people(tally: Tally) -> str:
    what, way = "row", "name the column of the clients (--client COL; in Python clients=)"
    if tally.has_counts:
        what, way = (
            "counted record",
            "give a table with a row for each record, and its client (--client COL)",
        )
    likely = looks_like_people(tally.others)
    if likely:
        listed = ", ".join(repr(name) for name in likely[:_SHOWN])
        way += f"; {listed} {'looks' if len(likely) == 1 else 'look'} like one"
    return (
        f"each {what} counts as a person of its own: epsilon protects one {what}, and somebody with"
        f" ten of them about ten times less. To protect people, {way}"
    )


def _drawn_away(tally: Tally, max_items: int) -> list[str]:
    drawn = tally.drawn
    if drawn is None or drawn.kept == drawn.pairs:
        return []
    where = " in a round" if tally.is_natural else ""
    note = (
        f"{drawn.several / drawn.clients:.1%} of the clients hold more than one item{where}. At"
        f" most {_items(max_items)} of each client {'is' if max_items == 1 else 'are'}"
        f" counted{where}, drawn at random: {drawn.pairs - drawn.kept:,} of {drawn.pairs:,} pairs"
        " of a client and an item are not counted. A frequency is the share of clients whose drawn"
        f" items include it; --max-items {drawn.most} counts all"
    )
    return [note]


def _items(number: int) -> str:
    return "one item" if number == 1 else f"{number:,} items"
