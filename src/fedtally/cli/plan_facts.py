"""What is printed of a plan before it is accepted or signed, and checks of options about plans."""

from __future__ import annotations

import re
import sys
from datetime import date, timedelta
from typing import TYPE_CHECKING

import click

from fedtally.base.text import in_a_row
from fedtally.cli.help import option
from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from fedtally.campaign.enrolment import Authority
    from fedtally.plan import Plan

fingerprint_option = option(
    "Run",
    "--fingerprint",
    metavar="HEX",
    help="Refuse any other plan than the one with these 64 digits",
)


def check_fingerprint(given: str | None, plan: Plan) -> None:
    """Refuse a plan whose fingerprint is not the one that the user named.

    Args:
        given: the value of --fingerprint; None: any plan is accepted.
        plan: the plan.

    Raises:
        InvalidInputError: the fingerprints differ, or `given` is not 64 hexadecimal digits.
    """
    if given is None:
        return
    if not re.fullmatch("[0-9a-f]{64}", given := given.lower()):
        raise InvalidInputError(
            f"--fingerprint must be all 64 hexadecimal digits, got {given!a:.80}: whoever makes two"
            " plans can give both the same first digits"
        )
    if given != plan.fingerprint:
        raise InvalidInputError(
            f"the plan is {plan.fingerprint}, and --fingerprint names {given}: get the plan that"
            " you want from who made it"
        )


def parse_day(text: str | None, now: float) -> date | None:
    """Read the day of an option --until.

    Args:
        text: the value of the option, as YYYY-MM-DD; None: the option is not given.
        now: the time, Unix seconds.

    Returns:
        The day; None: the option is not given.

    Raises:
        InvalidInputError: the text is no day, or the day is before today (UTC).
    """
    from fedtally.campaign.enrolment import day_of

    if text is None:
        return None
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(f"--until must be a day such as 2027-01-31, got {text!a}") from None
    if day < day_of(now):
        raise InvalidInputError(f"--until must be today ({day_of(now)}, UTC) or later, got {day}")
    return day


def default_day(now: float) -> date:
    """Return the last day (UTC) of a plan if --until is not given: `DAYS_OPEN` days after `now`."""
    from fedtally.campaign.enrolment import DAYS_OPEN, day_of

    return day_of(now) + timedelta(days=DAYS_OPEN)


def authority_rows(authority: Authority) -> list[tuple[str, str]]:
    """Return the rows (name, text) with what a registrar stated when signing a plan.

    They are the plan's purpose, the signature's number, and the fingerprints of the replaced plans.
    """
    return [
        ("Purpose", f"{authority.purpose}, number {authority.number}"),
        *(("Replaces", plan) for plan in authority.replaces),
    ]


def is_attended() -> bool:
    """Tell whether standard input is a terminal, so that a person can answer a question."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, otherwise: str) -> None:
    """Ask a yes-or-no question on the terminal.

    Args:
        question: the question.
        otherwise: the message of the error if the answer is no.

    Raises:
        InvalidInputError: the answer is no.
    """
    if not click.confirm(question, err=True):
        raise InvalidInputError(otherwise)


def identity_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows (name, text) with the fingerprint and the keys of a plan, all digits."""
    agreed = plan.secure_sum
    return [
        ("Fingerprint", plan.fingerprint),
        *(
            (name.replace("_", " ").capitalize(), getattr(agreed, name).hex())
            for name in (() if agreed is None else agreed.needed_keys)
        ),
    ]


def demand_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows (name, text) on what a plan asks of a client, and on its guarantees."""
    from fedtally.answer import amounts, sections

    times = plan.protection.participations
    items, candidates, rounds = (
        amounts.counted(number, noun)
        for number, noun in (
            (plan.max_items, "item"),
            (plan.domain_size, "candidate"),
            (plan.num_rounds, "round"),
        )
    )
    which = f"{items} out of {candidates} ({plan.domain['kind']})"
    if plan.is_open:
        which = f"{items}, whatever text it is (an open domain)"
    event = None if plan.privacy is None else plan.privacy.event
    when = f"{times} of {rounds}"
    if event is not None and event.per_rounds is not None:
        when = f"{event.lifetime:,} of {rounds}"
        if event.per_rounds > 1:
            when = f"{times} of {in_a_row(event.per_rounds, plan.rounds_noun)}, {when} in all"
    return [
        ("Asks for", f"up to {which}, in {when}"),
        *([] if plan.calendar is None else [("Calendar", str(plan.calendar))]),
        ("Upload", f"{amounts.size(plan.bytes_per_client)} a round"),
        ("Sums", _sums(plan)),
        *sections.privacy.rows(plan),
    ]


def _sums(plan: Plan) -> str:
    if (cohorts := plan.summing.cohorts) is not None:
        p = cohorts.parameters
        crowd = f"over {p.min_survivors:,} to {p.n_max:,} clients"
        return f"{crowd}, {p.honest_survivors:,} honest ones at least"
    if (servers := plan.summing.servers) is not None:
        return f"by two servers, over {servers.min_batch:,} to {servers.n_max:,} clients"
    return "by a server that is trusted"
