"""Notes for the reader of an answer: does a person, a row or a silo count as one client?"""

from __future__ import annotations

import re
from collections.abc import Sequence

from fedtally.answer.sections.privacy import IN_NO_LEDGER
from fedtally.base.text import in_number
from fedtally.errors import Note, opt
from fedtally.plan import Plan
from fedtally.simulation.row_counts import Tally
from fedtally.sources import Source

_PEOPLE = re.compile(
    "account|client|customer|device|email|employee|guid|household|id|imei|member|msisdn|"
    "participant|patient|person|phone|respondent|student|subject|subscriber|uid|user|userid|username|"
    "uuid|visitor"
)
_SHOWN = 3  # the most names of columns in a note


def looks_like_people(names: Sequence[str]) -> list[str]:
    """Return those names of columns that seem to name people or their devices.

    Only the words of the names decide. The values in the columns are not used: a note that depends
    on them would tell what clients hold.

    >>> looks_like_people(["word", "user_id", "clientId", "Patients", "valid", "idea"])
    ['user_id', 'clientId', 'Patients']
    """
    return [
        name
        for name in names
        if any(_PEOPLE.fullmatch(word.removesuffix("s")) for word in _words(name))
    ]


def _words(name: str) -> list[str]:
    # user_id, userId and user-id each become "user" and "id"
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name)
    return [word for word in re.split(r"[\W_0-9]+", parted.lower()) if word]


def notes(source: Source, tally: Tally, plan: Plan, *, has_ledger: bool) -> list[str]:
    """Return notes on what counts as one client, and on a missing ledger; [] without privacy.

    The notes depend on options, names of columns and the plan, but not on what clients hold.

    Args:
        source: the source of the rows.
        tally: the counted rows of the source.
        plan: the plan of the campaign.
        has_ledger: whether the run is charged to a ledger. If not, and if the run promises privacy,
            a note says that a second run spends again.
    """
    if plan.privacy is None:
        return []
    found, (one, many) = [], plan.nouns
    if not tally.is_bounded_by_client and not source.rows_are_clients:
        found.append(_rows_are_people(tally))
    if not has_ledger and not plan.privacy.not_private:
        population = plan.privacy.population
        record = f"{opt.ledger('ledger.db')} {opt.population(population)}"
        found.append(
            Note(
                f"{IN_NO_LEDGER}, so a second one on the same {many} spends again: record"
                f" both ({record}, after fedtally ledger grant)"
            )
        )
    if tally.is_bounded_by_client:
        found.append(
            f"of a {one} with more than {_items(plan.max_items)}, {plan.max_items} drawn at random"
            f" {in_number(plan.max_items, 'is', 'are')} counted: a frequency is the share of"
            f" {many} whose drawn items include it (how many {many} that concerns is private)"
        )
        if plan.is_of_silos:
            found.append(_of_silos(plan))
    return found


def _rows_are_people(tally: Tally) -> str:
    what, way = "row", f"name the people ({opt.client('COL')})"
    if tally.has_counts:
        what, way = (
            "counted record",
            f"give a table with a row for each record, and its client ({opt.client('COL')})",
        )
    likely = looks_like_people(tally.columns.others)
    if likely:
        listed = ", ".join(repr(name) for name in likely[:_SHOWN])
        way += f"; {listed} {in_number(len(likely), 'looks', 'look')} like one"
    return Note(
        f"each {what} counts as a person of its own, and ten of one person as ten people: {way}"
    )


def _of_silos(plan: Plan) -> str:
    event = None if plan.privacy is None else plan.privacy.event
    assert event is not None
    most = in_number(event.silos_per_person, "1 silo", "{} silos")
    return (
        f"a person counts in at most {most}, and a silo at most {plan.people:,} people, drawn at"
        " random from more: in a silo that has more, epsilon is that of replace-one"
    )


def _items(number: int) -> str:
    return in_number(number, "one item", "{} items")
