"""A proposed plan in few words: its bytes, its error, its privacy, and what it costs.

The terminal opens with these lines, and the page of a plan has them, too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fedtally.answer import wording
from fedtally.plan import Plan

if TYPE_CHECKING:
    from fedtally.plan.bill import Bill
    from fedtally.plan.proposal import Proposal

_EXACT = 1e-9  # a share: the least target that a plan has
_UNITS = (  # up to how many seconds, the unit, and how many of it a second is
    (1e-3, "µs", 1e6),
    (1.0, "ms", 1e3),
    (120.0, "s", 1.0),
    (7200.0, "min", 1 / 60),
    (math.inf, "h", 1 / 3600),
)
_MOST_CAMPAIGNS = 1000  # that "9 of 10" is said with


def title(plan: Plan) -> str:
    """Return for whom a plan is, in words.

    >>> title(Plan(rows=7, width=8, schedule="shared", num_rounds=1, num_clients=50,
    ...            max_round_clients=50, domain={"kind": "range", "size": 900, "public": True},
    ...            max_items=1, seed=bytes(32)))
    'Plan for 50 clients and 900 candidates'
    """
    what = "all strings" if plan.is_open else wording.counted(plan.domain_size, "candidate")
    return f"Plan for {wording.counted(plan.num_clients, wording.who(plan))} and {what}"


def campaigns(failure_probability: float) -> str:
    """Return in how many campaigns a plan keeps its error, in words.

    >>> campaigns(0.1), campaigns(0.01), campaigns(0.15), campaigns(1e-6)
    ('9 of 10 campaigns', '99 of 100 campaigns', '85 % of campaigns', '99.9999 % of campaigns')
    """
    number = round(1 / failure_probability)
    if abs(number * failure_probability - 1) < 1e-9 and 2 <= number <= _MOST_CAMPAIGNS:
        return f"{number - 1:,} of {number:,} campaigns"
    return f"{wording.level(1 - failure_probability)} of campaigns"


def error(proposal: Proposal) -> str:
    """Return the largest error that a plan keeps, how often, and for which frequencies."""
    target, plan = proposal.target, proposal.plan
    if plan.is_histogram and plan.privacy is None:
        return "none: each candidate has a counter of its own, and counts are exact"
    often = campaigns(target.failure_probability)
    most = "next to none" if target.linf <= _EXACT else f"at most {wording.points(target.linf)}"
    whatever = ", whatever the frequencies" if proposal.is_for_any else ""
    return f"{most} in {often}{whatever}"


def privacy(plan: Plan) -> str:
    """Return the epsilon of a plan with its meaning, or that it has none."""
    if plan.privacy is None:
        return wording.NO_PRIVACY
    from fedtally.privacy.accounting import rounded_up
    from fedtally.privacy.guarantee_text import right_guesses

    found = plan.privacy.guarantee
    epsilon = f"epsilon {rounded_up(found.epsilon):g}"
    if plan.privacy.not_private:
        return f"not private: nothing is guaranteed; the noise is for {epsilon}"
    if right_guesses(found) == "100":
        return f"{epsilon} hides next to nothing: a guess may be right in nearly all cases"
    return f"{epsilon}: {wording.guesses(plan.privacy, plan.nouns[0])}"


def effort(proposal: Proposal, bill: Bill) -> str:
    """Return what a plan costs a client and the server beside the upload, in one line."""
    down = f"{wording.size(bill.download_bytes)} down, " if bill.download_bytes else ""
    cpu = seconds(server_seconds(proposal, bill))
    return (
        f"a {wording.who(proposal.plan)}: {down}{seconds(bill.client_seconds)} CPU;"
        f" the server: {wording.size(bill.received_bytes)}, {cpu} CPU"
    )


def server_seconds(proposal: Proposal, bill: Bill) -> float:
    """Return the CPU seconds of the servers, decoding and the names of strings included."""
    names = 0.0 if proposal.names is None else proposal.names.seconds
    return bill.server_seconds + bill.decoding_seconds + names


def seconds(number: float) -> str:
    """Return a time with two digits, in the unit that suits it.

    >>> seconds(0.0), seconds(2.34e-5), seconds(9.97e-5), seconds(456.0), seconds(4e7)
    ('', '23 µs', '100 µs', '7.6 min', '11,111 h')
    """
    if number <= 0:
        return ""
    unit, factor = next((unit, by) for limit, unit, by in _UNITS if number < limit)
    value = number * factor
    return f"{value:.2g} {unit}" if value < 99.5 else f"{value:,.0f} {unit}"
