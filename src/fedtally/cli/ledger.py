"""`fedtally ledger`: the budgets of populations, and the campaigns that were charged to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console
from fedtally.cli.help import Command, Group, option
from fedtally.cli.shared import json_option, shared

if TYPE_CHECKING:
    from fedtally.store import Ledger

_SHOWN = 16  # how many hexadecimal digits of a fingerprint a table shows
_UNIT = (
    "one client of the population (a row, where no column names clients), all its items in every"
    " campaign listed"
)
_PERIOD = "from the first grant on, for good: nothing is ever given back"


@click.group(
    cls=Group,
    short_help="Show the privacy that populations spent; grant more.",
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def ledger() -> None:
    """The books of differential privacy: budgets of populations, and the campaigns charged to them.

    A campaign is charged when its first release is reserved, before anything is opened. A reserved
    release counts as spent. Rows are added and never changed. `fedtally estimate --epsilon E
    --population NAME --ledger PATH` charges a ledger.
    """


@click.command(
    cls=Command,
    short_help="Grant a population a budget.",
    examples=[
        (
            "make a ledger with a budget",
            "fedtally ledger grant --ledger ledger.db --population phones --epsilon 4 --delta 1e-8",
        ),
        (
            "in your PostgreSQL; the password is in ~/.pgpass",
            (
                "fedtally ledger grant --ledger postgresql://me@host/books --population phones"
                " --epsilon 4 --delta 1e-8"
            ),
        ),
    ],
)
@shared("ledger grant")
@json_option
def grant(ledger: str, population: str, epsilon: float, delta: float, as_json: bool) -> None:
    """Grant a population a total epsilon at its one total delta. A missing ledger is made.

    A later grant replaces the earlier. A smaller one stops new campaigns, and not the rounds of
    campaigns that run.
    """
    import time

    from fedtally.privacy import guarantees_little
    from fedtally.privacy.budget import Grant
    from fedtally.store import Ledger

    Grant(population, epsilon, delta)  # refuses bad values: otherwise an empty file would be made
    books = Ledger.open(ledger, create=True)
    if books.granted(population) is None:
        warn_of_look_alikes(books, population)
    books.grant(population, epsilon, delta, int(time.time()))
    if large := guarantees_little(epsilon):
        console.note(f"warning: {large}")
    spent = books.spent(population)
    if spent is not None and spent.epsilon >= epsilon:
        console.note(f"warning: {spent} is spent already: no new campaign will begin")
    if as_json:
        console.show_json(books.export(population))
    else:
        console.note(
            f"granted: population {population} may spend epsilon {epsilon:g} at delta {delta:g}"
            " in all"
        )


@click.command(
    cls=Command,
    short_help="Show what was granted and spent.",
    examples=[
        (
            "a budget, and all populations",
            "fedtally ledger grant --ledger ledger.db --population phones --epsilon 4 --delta 1e-8",
        ),
        ("", "fedtally ledger show --ledger ledger.db"),
        ("one, for a script", "fedtally ledger show --ledger ledger.db --population phones --json"),
    ],
)
@shared("ledger show")
@json_option
def show(ledger: str, population: str | None, as_json: bool) -> None:
    """Show the grants of populations, what their campaigns cost together, and their releases."""
    from fedtally.store.database import name_of

    document = _exported(ledger, population)
    if as_json:
        console.show_json(document)
        return
    if not document["populations"]:
        console.note(f"{name_of(ledger)} grants nothing yet: fedtally ledger grant")
    for entry in document["populations"]:
        _show_population(entry)


@click.command(
    cls=Command,
    short_help="Write the ledger as JSON.",
    examples=[
        (
            "a budget, and what an auditor gets",
            "fedtally ledger grant --ledger ledger.db --population phones --epsilon 4 --delta 1e-8",
        ),
        ("", "fedtally ledger export --ledger ledger.db --output ledger.json"),
        (
            "which plans were charged",
            "fedtally ledger export --ledger ledger.db | jq -r .populations[].campaigns[].plan",
        ),
    ],
)
@shared("ledger export")
@option(
    "Run",
    "--output",
    type=click.Path(),
    metavar="FILE",
    help="Write to FILE, and not to standard output",
)
@json_option
def export(ledger: str, population: str | None, output: str | None, as_json: bool) -> None:
    """Write grants, campaigns with their events, reservations and landings as one JSON document.

    Of each sketch the document holds only the SHA-256.
    """
    import json

    from fedtally.base import archive

    console.check_files([output], [ledger])
    document = _exported(ledger, population)
    if output is None:
        console.show_json(document)
        return
    with archive.replacing(output) as temporary:
        Path(temporary).write_text(
            json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


ledger.add_section("Commands", show, grant, export)


def warn_of_look_alikes(books: Ledger, population: str) -> None:
    """Print a warning for each population of a ledger whose name looks like the name of a new one.

    Args:
        books: the ledger.
        population: the name of the new population.
    """
    for name in books.look_alikes(population):
        console.note(
            f"warning: population {population!a} is new here and looks like {name!a}: two names are"
            " two budgets, and populations that may overlap are one"
        )


def _exported(location: str, population: str | None) -> dict[str, Any]:
    from fedtally.privacy.accounting import concentrated
    from fedtally.privacy.events import Event
    from fedtally.store import Ledger

    document = Ledger.open(location).export(population)
    for entry in document["populations"]:
        events = [Event.from_dict(campaign["event"]) for campaign in entry["campaigns"]]
        rho, rho_delta = concentrated(events) if events else (0.0, 0.0)
        entry |= {"unit": _UNIT, "period": _PERIOD, "rho": rho, "rho_delta": rho_delta}
    return document


def _show_population(entry: dict[str, Any]) -> None:
    from fedtally.answer import tables

    granted = f"epsilon {entry['epsilon_granted']:g} at delta {entry['delta']:g}"
    console.show(tables.heading(f"Population {entry['population']}"))
    facts = [
        ("granted", granted),
        ("spent", entry["statement"] or "nothing"),
        ("zCDP", _zcdp(entry)),
    ]
    if entry["campaigns"]:
        same = f"delta {entry['delta']:g}, at which the same noise may have another epsilon"
        facts.insert(2, ("", f"all campaigns at {same} than at the delta of a plan"))
    console.show(tables.facts([*facts, ("unit", entry["unit"]), ("period", entry["period"])]))
    if not entry["campaigns"]:
        return
    campaigns = entry["campaigns"]
    releases = [campaign["releases"] for campaign in campaigns]
    landed = [str(sum(one["landed"] is not None for one in each)) for each in releases]
    plans = [tables.printable(each["plan"][:_SHOWN]).plain for each in campaigns]
    console.show(
        tables.FittedTable(
            heading="one client is exposed to",
            names=[tables.printable(_in_words(campaign["event"])) for campaign in campaigns],
            before=[
                tables.Column("plan", plans, justify="left"),
                tables.Column("since", [_day(each["time"]) for each in campaigns], 1, wishes=True),
                tables.Column("reserved", [str(len(each)) for each in releases], 2, wishes=True),
                tables.Column("landed", landed),
            ],
            after=[],
            folds=True,
        )
    )


def _zcdp(entry: dict[str, Any]) -> str:
    """Return in words what a population has used of its budget, as zCDP: rho, rounded up.

    Args:
        entry: a dict with `rho`, and with `rho_delta`, the probability with which rho may not hold.

    >>> _zcdp({"rho": 0.0280101, "rho_delta": 2e-12})
    'rho 0.02802, except with probability 2e-12'
    """
    from fedtally.privacy.accounting import rounded_up

    rho, delta = (rounded_up(entry[name]) for name in ("rho", "rho_delta"))
    return f"rho {rho:g}" + (f", except with probability {delta:g}" if delta else "")


def _day(seconds: int) -> str:
    from datetime import UTC, datetime

    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"
    except (OverflowError, OSError, ValueError):  # a ledger may have any integer, also no real date
        return str(seconds)


def _in_words(event: dict[str, Any]) -> str:
    """Return in words the noise of a campaign, and the most rounds and items of a client in it.

    Args:
        event: an event as a ledger records it: the noise, and the bounds on a client.

    >>> _in_words({"mechanism": "skellam", "rows": 5, "variance": 500.0, "participations": 2,
    ...            "max_items": 1})
    'skellam, variance 500, 5 rows; 2 rounds, 1 item'
    """
    from fedtally.answer import amounts

    times, items = (event[name] for name in ("participations", "max_items"))
    silos = event.get("silos_per_person", 1)  # a ledger has the field only if it is above 1
    return (
        f"{event['mechanism']}, variance {event['variance']:.6g},"
        f" {amounts.counted(event['rows'], 'row')}; {amounts.counted(times, 'round')},"
        f" {amounts.counted(items, 'item')}{f', {silos:,} silos of a person' if silos > 1 else ''}"
    )
