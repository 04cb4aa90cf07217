"""Print for a client's owner what a plan asks of the client, and what the client took part in."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from fedtally.base.text import escaped, shortened
from fedtally.cli import console
from fedtally.cli.plan_facts import authority_rows, demand_rows, identity_rows
from fedtally.errors import InvalidInputError, UnreadableFileError

if TYPE_CHECKING:
    from fedtally.agent.accepted import Campaign
    from fedtally.agent.settings import Settings
    from fedtally.plan import Plan
    from fedtally.privacy.budget import Cap
    from fedtally.store import ClientRecord

DIGITS = 16  # how many digits of a fingerprint or a key are shown, in hexadecimal

_SHOWN_ITEMS, _ITEM_COLUMNS = 3, 20  # of a list of candidates; the most columns of one of them

# ---- what a plan asks ----


def show_asked(settings: Settings, campaign: Campaign, before: Campaign | None) -> None:
    """Print what a plan asks of the client, and how it differs from an earlier plan.

    Args:
        settings: the settings of the agent.
        campaign: the plan, with its files.
        before: the plan that the owner accepted last; None: the owner has accepted no plan yet, and
            nothing is compared.
    """
    from fedtally.answer import tables

    console.show(tables.heading(f"Plan {campaign.plan.fingerprint[:DIGITS]}"))
    console.show(tables.facts(_asked(settings, campaign)))
    if before is not None and before.plan != campaign.plan:
        changes = _changes(before, campaign)
        title = f"Changes since plan {before.plan.fingerprint[:DIGITS]}, accepted before"
        console.show(tables.heading(title))
        console.show(tables.facts(changes))


def _asked(settings: Settings, campaign: Campaign) -> list[tuple[str, Any]]:
    plan, registrar = campaign.plan, settings.registrar
    signed = (
        [("Signed", "by nobody: agent.toml names no registrar, so your own act is all it needs")]
        if registrar is None
        else [("Signed", "by the registrar, with the key"), ("", registrar.hex())]
    )
    rows: list[tuple[str, Any]] = [
        *identity_rows(plan),
        *signed,
        *([] if campaign.signature is None else authority_rows(campaign.signature.authority)),
        ("Last day", f"{campaign.last_day} (UTC)"),
        _server_row(campaign),
        *demand_rows(plan),
        *_candidates_rows(settings, plan),
    ]
    if campaign.allow_list is not None:
        listed = campaign.allow_list
        known = len(settings.policy.known_in(listed, settings.identity().public))
        rows.append(("Clients", f"{len(listed):,} are listed, {known:,} of them known to you"))
        rows += _strangers_rows(settings, plan)
    return rows


def _candidates_rows(settings: Settings, plan: Plan) -> list[tuple[str, str]]:
    """Return a list with the row (name, text) that says which items a plan asks about.

    A range or a grid is named whole, and of a list the first items are shown. A plan may hold only
    the digest of its list: if no list of the agent has it, the text says so. The list is empty if
    the plan asks for any text (an open domain).
    """
    if plan.is_open:
        return []
    digest, size = plan.domain.get("sha256"), plan.domain_size
    named = f"{plan.domain['kind']} of {size:,}"
    try:
        domain = settings.items.domain(plan)
    except InvalidInputError:  # the reasons to refuse the plan, which are printed later, have it
        which = "" if digest is None else f", digest {digest!s:.{DIGITS}}"
        return [("Candidates", f"{named}{which}: no list of this agent is it")]
    if digest is None:
        return [("Candidates", str(domain))]
    labels = domain.labels(range(min(size, _SHOWN_ITEMS)))
    shown = [f"'{shortened(escaped(str(label)), _ITEM_COLUMNS)}'" for label in labels]
    more = f", and {size - len(shown):,} more" if size > len(shown) else ""
    return [("Candidates", f"{named}: {', '.join(shown)}{more}")]


def _server_row(campaign: Campaign) -> tuple[str, str]:
    """Return the row (name, text) that says how many servers sum, and how far they are trusted."""
    from fedtally.answer.sections.trust import ClientList, corruptible

    summing = campaign.plan.summing
    listed = None if campaign.allow_list is None else ClientList(len(campaign.allow_list))
    if (servers := summing.servers) is not None:
        liars = corruptible(servers.corrupt, "client", listed)
        return "Servers", f"two, which must not work together; each may lie, with up to {liars}"
    p = summing.of_cohorts().parameters
    server = {
        "active": "may lie, with up to",
        "semi-honest": "is trusted to follow the protocol, and may read along with up to",
    }[str(p.adversary)]
    return "Server", f"{server} {corruptible(p.corrupt, 'client', listed)}"


def _strangers_rows(settings: Settings, plan: Plan) -> list[tuple[str, str]]:
    """Return a list with the row (name, text) that says how many strangers may be in a session.

    Strangers are clients that the owner does not know. The list is empty if the plan has no
    sessions (runs of the secure sum).
    """
    if (cohorts := plan.summing.cohorts) is None:
        return []
    p = cohorts.parameters
    strangers = p.n_max - 1 - settings.policy.sums.least_known
    bound = f"up to {strangers:,} of a session are strangers to you, and at most {p.corrupt:,}"
    return [("", f"{bound} of all listed clients may lie")]


def _changes(before: Campaign, after: Campaign) -> list[tuple[str, Any]]:
    old, new = _flat(before.plan.to_dict()), _flat(after.plan.to_dict())
    rows = [
        (name, f"{old.get(name, 'nothing')} -> {new.get(name, 'nothing')}")
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]
    if before.allow_list is not None and after.allow_list is not None:
        was, now = (
            {c.key(i) for i in range(len(c))} for c in (before.allow_list, after.allow_list)
        )
        if was != now:
            rows.append(("listed clients", f"{len(now - was)} new, {len(was - now)} gone"))
    return [(name, text) for name, text in rows]


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{path}{name}.")
        else:
            text = str(value)
            found[f"{path}{name}"] = text if len(text) <= 2 * DIGITS else f"{text[:DIGITS]}..."
    return found


# ---- what the agent took part in ----


def document(settings: Settings, now: float) -> dict[str, Any]:
    """Return the state of an agent as a dict for JSON: plans, privacy cost, and participation.

    Args:
        settings: the settings of the agent.
        now: the time, Unix seconds.
    """
    record, cap = settings.open_record(), settings.policy.cap
    campaigns = {plan.hex(): campaign for plan, campaign in settings.accepted().items()}
    return {
        "schema": "fedtally-agent/1",
        "identity": settings.identity().public.hex(),
        "accepted": list(campaigns),
        "plans": [
            {
                "plan": campaign.plan.fingerprint,
                "last_day": str(campaign.last_day),
                "over": campaign.why_over(record, now),
                **_consent_of(campaign),
                **_next_period(settings, campaign.plan, record, now),
            }
            for campaign in campaigns.values()
        ],
        **({"epsilon": None, "delta": None} if cap is None else _limits(cap)),
        "spent": _spent(record, cap, int(now)),
        **_renewal(record, cap, int(now)),
        "parts": [
            {
                "plan": part.plan,
                "round": part.round,
                "population": part.population,
                "private": part.event is not None,
                "time": part.time,
            }
            for part in record.parts()
        ],
    }


def _limits(cap: Cap) -> dict[str, Any]:
    return {"epsilon": cap.epsilon, "delta": cap.delta}


def _spent(record: ClientRecord, cap: Cap | None, time: int = 0) -> float | None:
    """Return the epsilon of the parts that count under a cap, at the cap's delta.

    Args:
        record: the client's record.
        cap: the cap; None: the record's cap.
        time: now, Unix seconds; 0: all parts count, as in `ClientRecord.spent`.

    Returns:
        The epsilon. None: nothing was charged, or no epsilon holds at this delta. For instance,
        each secure sum uses up a part of delta. A cap with `per_days` bounds the number of sums in
        its days, but not in the whole record.
    """
    try:
        spent = record.spent(cap, time)
    except UnreadableFileError:
        raise
    except InvalidInputError:
        return None
    return None if spent is None or math.isinf(spent.epsilon) else spent.epsilon


def _renewal(record: ClientRecord, cap: Cap | None, now: int) -> dict[str, Any]:
    """Return the fields for JSON about a cap that limits the privacy cost of any N days.

    Returns:
        A dict with three entries. `per_days`: N. `spent_in_all`: the epsilon of everything that the
        client ever took part in; None: nothing was charged, or no epsilon holds (see `_spent`).
        `renews`: when the oldest participation of the last N days stops counting, Unix seconds;
        None: the client took part in nothing in these days. The dict is empty if the cap limits the
        cost of all time, or if there is no cap.
    """
    from fedtally.privacy.budget import DAY

    if cap is None or cap.per_days is None:
        return {}
    counted = [part.time for part in record.parts() if part.time > cap.since(now)]
    return {
        "per_days": cap.per_days,
        "spent_in_all": _spent(record, dataclasses.replace(cap, per_days=None)),
        "renews": counted[0] + cap.per_days * DAY if counted else None,
    }


def _consent_of(campaign: Campaign) -> dict[str, str]:
    """Return a dict with `by_consent`, the day on which a standing consent accepted a plan.

    The dict is empty if the owner accepted the plan.
    """
    return {} if campaign.by_consent is None else {"by_consent": str(campaign.by_consent)}


def _next_period(
    settings: Settings, plan: Plan, record: ClientRecord, now: float
) -> dict[str, Any]:
    """Return the field `period` for JSON: the open period of a plan's calendar.

    A period is the time in which clients take part in one round. Before the calendar begins, the
    field is about the first period.

    Returns:
        A dict with the one entry `period`. Its value is a dict with `round`, `opens` and `closes`
        (Unix seconds), and `has_room`: whether the client may still take part. After the end of the
        calendar, the value is None. Without a calendar the returned dict is empty.
    """
    from datetime import UTC, datetime

    from fedtally.store import Journal

    if (calendar := plan.calendar) is None:
        return {}
    when = datetime.fromtimestamp(now, UTC)
    if when >= calendar.end:
        return {"period": None}
    round = calendar.round_at(when) or 0
    opens, closes = calendar.opens(round), calendar.closes(round)
    journal = Journal(record, plan, round, int(now), settings.once)
    return {
        "period": {
            "round": round,
            "opens": int(opens.timestamp()),
            "closes": int(closes.timestamp()),
            "has_room": journal.may_spend(settings.policy.cap),
        }
    }


def _day(time: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M}"


def _edge(time: int) -> str:
    """Return the text of a time (Unix seconds) in UTC, with seconds only if they are not 0."""
    from datetime import UTC, datetime

    from fedtally.plan.calendar import time_text

    return time_text(datetime.fromtimestamp(time, UTC))


def _state(plan: dict[str, Any]) -> str:
    """Return the state of an accepted plan in words.

    Args:
        plan: the entry of the plan in the list `plans` of `document`.
    """
    until = f"until {plan['last_day']}" if plan["over"] is None else f"over: {plan['over']}"
    period = ""
    if "period" in plan:
        found = plan["period"]
        period = (
            "; its calendar is over"
            if found is None
            else f"; round {found['round']} is open {_edge(found['opens'])} to"
            f" {_edge(found['closes'])} (UTC), and"
            f" {'a part of yours is left' if found['has_room'] else 'no part of yours is left now'}"
        )
    taken = f"; by consent on {plan['by_consent']}" if "by_consent" in plan else ""
    return f"{plan['plan'][:DIGITS]} {until}{taken}{period}"


def _allowed_rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows (name, text): the privacy cost that the owner allows, and what is used of it.

    Args:
        found: the dict of `document`.
    """
    from fedtally.privacy.accounting import rounded_up

    def cost(epsilon: float | None, has_parts: bool) -> str:
        none = "nothing", f"more than delta {found['delta']:g} can cover"
        return none[has_parts] if epsilon is None else f"epsilon {rounded_up(epsilon):g}"

    is_charged = any(part["private"] for part in found["parts"])
    if found["epsilon"] is None:
        allowed = "plans without differential privacy, each label of items once"
        return [
            ("Allowed", allowed),
            ("Spent", "not counted" if found["parts"] else "nothing"),
        ]
    limits = f"epsilon {found['epsilon']:g} at delta {found['delta']:g}"
    if (days := found.get("per_days")) is None:
        return [
            ("Allowed", f"{limits}, over everything"),
            ("Spent", cost(found["spent"], is_charged)),
        ]
    renews = "" if found["renews"] is None else f"; some renews at {_day(found['renews'])} (UTC)"
    return [
        ("Allowed", f"{limits}, in any {days} days; no bound on all of them together"),
        ("Spent", f"{cost(found['spent'], bool(renews))} in the last {days} days{renews}"),
        ("", f"{cost(found['spent_in_all'], is_charged)} in all"),
    ]


def show_record(settings: Settings, now: float) -> None:
    """Print the allowed privacy cost, the accepted plans, and the client's participation."""
    from fedtally.answer import tables

    found = document(settings, now)
    plans = [_state(one) for one in found["plans"]] or ["none yet"]
    console.show(tables.heading("Agent"))
    console.show(
        tables.facts(
            [
                ("Identity", found["identity"]),
                *_allowed_rows(found),
                ("Accepted", plans[0]),
                *(("", plan) for plan in plans[1:]),
            ]
        )
    )
    for problem in settings.accepted().problems():
        console.note(f"warning: {problem}")
    if not found["parts"]:
        return
    parts = found["parts"]
    days = [_day(each["time"]) for each in parts]
    console.show(
        tables.FittedTable(
            heading="population",
            names=[tables.printable(each["population"]) for each in parts],
            before=[
                tables.Column("took part", days, justify="left"),
                tables.Column("plan", [each["plan"][:DIGITS] for each in parts], 1, justify="left"),
                tables.Column("round", [str(each["round"]) for each in parts], 2),
            ],
            after=[],
            noun="populations",
        )
    )
