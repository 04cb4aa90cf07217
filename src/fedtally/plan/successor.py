"""The successor of a plan with a calendar: the same plan with a later start and a new seed.

A plan with a calendar has an end. So whoever accepts the plan knows its whole privacy cost. A
campaign that shall go on afterwards needs a successor. The successor is another plan: the ledger
and the clients' records charge it in addition.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from fedtally.errors import InvalidInputError, arg, opt
from fedtally.plan.calendar import checked_time, time_text
from fedtally.plan.plan import Plan


def successor(
    plan: Plan, *, seed: bytes, start: datetime | None = None, population: str | None = None
) -> Plan:
    """Return the plan with which a campaign continues after the end of `plan`.

    The successor differs from `plan` only in its seed and its start. It has the same public keys,
    because the same server asks the same clients.

    Args:
        plan: the plan to continue, which must have a calendar.
        seed: the successor's seed, from which its hashes are derived: 32 bytes, which differ from
            the seed of `plan`.
        start: the time when the successor's first round opens, a datetime with a time zone; None:
            the time when the last round of `plan` closes.
        population: the name of the population whose privacy budget is charged. It must be the name
            in `plan`, or "" if `plan` has no privacy. None: the name is not checked.

    Raises:
        InvalidInputError: `plan` has no calendar; `start` is not a datetime with a time zone, has
            fractions of a second, or is before the end of `plan`; `population` differs from the
            name in `plan`; `seed` is the seed of `plan`; or `plan` has a certificate of its hashes,
            which holds only for its own seed.

    >>> from datetime import UTC
    >>> from fedtally.plan.calendar import DAY, Calendar
    >>> days = Calendar(datetime(2026, 12, 1, tzinfo=UTC), DAY, 28)
    >>> domain = {"kind": "range", "size": 900, "public": True, "first": 1, "last": 900}
    >>> plan = Plan(7, 80, "hybrid", 28, 5000, 300, domain, 1, bytes(32), calendar=days)
    >>> print(successor(plan, seed=bytes([1]) * 32).calendar)
    28 days, from 2026-12-29T00:00Z to 2027-01-26T00:00Z, UTC
    """
    calendar, terms = plan.calendar, plan.privacy
    if calendar is None:
        raise InvalidInputError(
            f"{opt.after} needs a plan with a calendar, and this one has none: make one"
            f" ({opt.start})"
        )
    begins = calendar.end if start is None else checked_time(start=start)
    if begins < calendar.end:
        raise InvalidInputError(
            f"{arg.start} must not be before the plan in {opt.after} ends,"
            f" {time_text(calendar.end)}, got {time_text(begins)}: leave {opt.start} out"
        )
    own = "" if terms is None else terms.population
    if population not in (None, own):
        said = "charges no population" if terms is None else f"charges {own!a}"
        raise InvalidInputError(
            f"{arg.population} must be that of the plan in {opt.after}, which {said}, got"
            f" {population!a}: leave {opt.population} out"
        )
    if seed == plan.seed:
        raise InvalidInputError(
            f"{arg.seed} must be another than in {opt.after}: with one seed two plans have the"
            f" same hashes; leave {opt.seed} out"
        )
    if terms is not None and terms.event.collisions is not None:
        raise InvalidInputError(
            f"the plan in {opt.after} has collisions certified for its own seed, and a successor"
            " has a new one: make it anew (fedtally plan)"
        )
    return replace(plan, seed=seed, calendar=replace(calendar, start=begins))
