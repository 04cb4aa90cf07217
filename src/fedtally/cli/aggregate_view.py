"""Print the state of a leader or a helper (the two servers of a plan) for its operator."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from fedtally.base.text import in_number
from fedtally.cli import console
from fedtally.cli.campaign_view import about

if TYPE_CHECKING:
    from fedtally.campaign.aggregate_folder import AggregateFolder
    from fedtally.campaign.closings import Closing, Schedule

_MIB = 1 << 20


def status(folder: AggregateFolder) -> dict[str, Any]:
    """Return the state of a server and its releases as a dict for JSON.

    Most entries are from a file that the server's process writes if something has changed, at most
    about once a second. The entry `time` says when the process last wrote it, Unix seconds; None:
    never. A release that no process has run yet has the state "new".

    Raises:
        UnreadableFileError: this version of fedtally cannot read a database of the folder.
    """
    from fedtally.campaign.aggregate_folder import STATE
    from fedtally.campaign.closings import Closings
    from fedtally.campaign.runner import fields

    folder.check_databases()  # `state.json` alone would not say that `run` cannot read them
    try:
        written = json.loads((folder.path / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        written = {}
    known = {one["release"]: one for one in written.get("releases", ())}
    schedule = Closings(folder.path).read() if folder.side == "leader" else None
    process, landed, releases = folder.runner(), folder.landed(), []
    for number in range(len(folder.plan.releases)):
        found = {"release": number, "state": "new", **known.get(number, {})}
        if number in landed and found["state"] != "lost":
            found["state"] = "landed"
        if schedule is not None:
            found |= _closing(schedule, schedule.releases[number])
        releases.append(found)
    return {
        "schema": "fedtally-aggregate-status/1",
        "name": str(folder.path),
        "side": folder.side,
        **fields(process),
        "retired": folder.is_retired,
        "fingerprint": folder.plan.fingerprint,
        "min_batch": folder.plan.summing.least_clients,
        "time": written.get("time"),
        "releases": releases,
        "disk_bytes": written.get("disk_bytes"),
        "free_bytes": written.get("free_bytes"),
    }


def _closing(schedule: Schedule, one: Closing) -> dict[str, Any]:
    stops = None if one.since is None else one.since + schedule.grace
    lost = {} if one.lost is None else {"state": "lost"}
    return {
        "closes_at": one.at,
        "closes_size": schedule.size,
        "stops_at": stops,
        "lost": one.lost,
    } | lost


def show_status(found: dict[str, Any]) -> None:
    """Print the state of a server and its releases.

    Args:
        found: the dict that `status` returned.
    """
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import tables
    from fedtally.campaign.runner import words

    by, number = "no process runs it", found["process"]
    if number:
        by = f"process {words(number, found['in_another_container'])} runs it"
    gone = "; its key was destroyed" if found["retired"] else ""
    rows = [
        ("Server", f"{found['name']}: the {found['side']}; {by}{gone}"),
        ("Plan", found["fingerprint"]),
    ]
    if found["disk_bytes"] is not None:
        used, free = (found[name] / _MIB for name in ("disk_bytes", "free_bytes"))
        rows.append(("Disk", f"{used:,.1f} MiB used, {free:,.0f} MiB free"))
    if found["time"] is not None and not found["process"]:
        rows.append(("As of", f"{about(time.time() - found['time'])} ago"))
    lines = [Text(_line(one, found)) for one in found["releases"]]
    console.show(Group(tables.facts(rows), *lines))


def _line(one: dict[str, Any], found: dict[str, Any]) -> str:
    """Return the line about one release: its state, its reports and, on a leader, when it closes.

    Args:
        one: the entry of the release in the list `releases` of `found`.
        found: the dict that `status` returned.
    """
    parts = [f"release {one['release']}: {one['state']}"]
    if "reports" in one:
        parts.append(in_number(one["reports"], "1 report", "{} reports"))
    if one.get("refused"):
        parts.append(f"{one['refused']:,} refused")
    if one.get("waiting"):
        age = about(max(0.0, time.time() - one["oldest"]))
        parts.append(f"{one['waiting']:,} not judged, the oldest since at most {age}")
    if one["state"] in ("new", "open", "closing") and found["side"] == "leader":
        parts.append(_when(one, found["min_batch"]))
    if one.get("lost"):
        parts.append(one["lost"])
    return "; ".join(parts)


def _when(one: dict[str, Any], least: int) -> str:
    """Return in words when a release closes, or if it is closing, when it stops.

    A release that closes still accepts reports that clients have begun; one that stops accepts no
    report.

    Args:
        one: the entry of the release in the list `releases` of `status`.
        least: the least number of reports that a release needs for its sum.
    """
    if one["stops_at"] is not None:
        return f"stops in {about(max(0.0, one['stops_at'] - time.time()))}"
    size = "when it is full" if one["closes_size"] is None else f"at {one['closes_size']:,} reports"
    if one["closes_at"] is None:
        return f"closes {size}, or by fedtally aggregate leader close"
    if one["closes_at"] <= time.time():
        return f"closes once there are {least:,} reports"
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(one["closes_at"]))
    return f"closes on {at}, or {size}"
