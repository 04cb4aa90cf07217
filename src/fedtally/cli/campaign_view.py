"""Print a campaign's progress, status and answer for its operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedtally.base.text import escaped, in_range
from fedtally.cli import console

if TYPE_CHECKING:
    from fedtally.answer.result import Result
    from fedtally.campaign.driver import Driver, RunningSession
    from fedtally.campaign.folder import CampaignFolder

_ASKED_FOR = {  # what the server asks clients for, by the phase of the session
    "advertise": "their keys",
    "share": "their shares",
    "collect": "their items, masked",
    "confirm": "whom they saw survive",
    "unmask": "the opening of the sum",
}
_TELL_SECONDS = 30  # the least time between two lines that say that the run waits for clients
_NOTE_SECONDS = 10  # the least time between two writes of the number of clients to a file


def planned(folder: CampaignFolder) -> str:
    """Return in words how many rounds a campaign has, and how many clients are in a session.

    A session is one run of the secure sum, with a group of clients.
    """
    from fedtally.answer import amounts, sections

    plan = folder.plan
    least, most = plan.summing.least_clients, plan.summing.most_clients
    of = in_range(least, most)
    rounds = amounts.counted(plan.num_rounds, "round")
    return f"{rounds}, in sessions of {of} {sections.counted.who(plan)}s"


def show_status(found: dict[str, Any], who: str) -> None:
    """Print the status of a campaign.

    Args:
        found: the dict that `fedtally campaign status --json` prints.
        who: the noun for a client, as "client" or "silo".
    """
    import time

    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import tables
    from fedtally.campaign.runner import words

    number = found["process"]
    by = f", by process {words(number, found['in_another_container'])}" if number else ""
    rows = [("Campaign", f"{found['name']}: {found['state']}{by}"), ("Plan", found["fingerprint"])]
    parts: list[Any] = [tables.facts(rows)]
    if found["present"] is not None:
        parts[0] = tables.facts([*rows, ("Present", f"{found['present']:,} {who}s came lately")])
    if found["rounds"]:
        table = tables.new_table()
        for column in ("round", f"{who}s asked", f"{who}s in the sum"):
            table.add_column(column, justify="right")
        for one in found["rounds"]:
            table.add_row(str(one["round"]), f"{one['asked']:,}", f"{one['landed']:,}")
        parts += [Text(), table]
    for one in found["open"]:
        left = max(0, one["not_after"] - int(time.time()))
        asked = f" ({_ASKED_FOR[one['phase']]})" if one["phase"] in _ASKED_FOR else ""
        line = (
            f"open: round {one['round']}, session {one['session'][:8]},"
            f" {one['num_clients']:,} {who}s, {one['phase']}{asked}, ends in {left:,} s"
        )
        parts.append(Text(line))
        parts += [Text("  " + escaped(str(client))) for client in one.get("clients", ())]
    for one in found["ended"]:
        if one["why"] is not None:
            line = f"failed: round {one['round']}, session {one['session'][:8]}: {one['why']}"
            parts.append(Text(escaped(line), style="yellow"))
    console.show(Group(*parts))


def show_list(found: list[dict[str, Any]]) -> None:
    """Print a table with one line for each campaign.

    Args:
        found: for each campaign, the dict that `fedtally campaign status --json` prints.
    """
    from fedtally.answer import tables

    # without its database, which owners delete at the end, nobody knows the rounds of a campaign
    landed = [
        f"{sum(bool(round['landed']) for round in one['rounds'])} of {one['num_rounds']}"
        if one["rounds"] or one["state"] == "new"
        else f"? of {one['num_rounds']}"
        for one in found
    ]
    table = tables.FittedTable(
        heading="campaign",
        names=[tables.printable(one["name"]) for one in found],
        after=[
            tables.Column("state", [one["state"] for one in found], justify="left"),
            tables.Column("rounds landed", landed),
            tables.Column("open sessions", [_open_sessions(one["open"]) for one in found], rank=1),
        ],
        noun="names",
    )
    console.show(table)


def _open_sessions(sessions: list[dict[str, Any]]) -> str:
    stuck = sum(not one["restorable"] for one in sessions)
    return f"{len(sessions)}" + f" ({stuck} cannot go on)" * bool(stuck)


def show_given_up(ended: int, as_json: bool, then: str) -> None:
    """Print how many open sessions were ended without a sum.

    Args:
        ended: the number of these sessions.
        as_json: whether to print a JSON document instead of a line.
        then: what happens next, in words, for the end of the line; the document does not have it.
    """
    from fedtally.answer import amounts

    console.note(f"gave up {amounts.counted(ended, 'open session')}; {then}", as_json)
    if as_json:
        console.show_json({"schema": "fedtally-given-up/1", "sessions": ended})


def windowed(found: Result, window: str, history: int) -> Result:
    """Compute a campaign's result for some of its rounds with a progress bar; return the result.

    See `Result.window` for the arguments.
    """
    with console.Progress() as progress:
        return found.window(window, history, progress)


def write_output(found: Result, shown: Result, output: str, as_json: bool) -> None:
    """Write a result to a file: a table if the file's name ends in .csv or .parquet, else the sums.

    Args:
        found: the result of all rounds, whose sums are saved.
        shown: the result that is shown, whose estimates are the rows of a table.
        output: the path of the file.
        as_json: whether a JSON document is printed, without notes.
    """
    from fedtally.options import TABLES

    if output.endswith(TABLES):
        changed = shown.export(output)
        console.note(f"wrote {output}: {shown.rows.what}", as_json)
        console.note_of_cells(changed, as_json)
    else:
        found.save(output)
        console.note(f"wrote {output}: try fedtally query {output} ITEM", as_json)


def show_result(
    found: Result, top: int, as_json: bool, details: bool = False, how: str = "--details"
) -> None:
    """Print the result of a campaign.

    Args:
        found: the result.
        top: how many items to print, the most frequent first.
        as_json: whether to print a JSON document.
        details: whether to print also how the result was made.
        how: the option or the command that prints the details, for a hint.
    """
    from fedtally.answer import documents, screen

    with console.Progress() as progress:
        found.prepare(progress)
        estimates = found.top(top, progress=progress)
    if as_json:
        console.show_json(documents.of_result(found, estimates))
    else:
        console.show(screen.answer(found, estimates, details=details, how=how))


def about(seconds: float) -> str:
    """Return a duration as a rounded text, in seconds, minutes or hours.

    >>> about(44.6), about(90), about(5400), about(180_000)
    ('about 45 s', 'about 2 min', 'about 90 min', 'about 50 h')
    """
    for unit, size, most in (("s", 1, 90), ("min", 60, 120 * 60)):
        if seconds < most:
            return f"about {max(1, round(seconds / size))} {unit}"
    return f"about {seconds / 3600:,.0f} h"


class Progress:
    """Print the progress of a campaign's run on stderr.

    There is a line for each phase of a session, and for its end. After a session has landed (its
    sum is saved), a line says how many clients are in sums, and the time left at the pace of this
    run. This line is left out if the time is unknown, or if the plan has a calendar. On a terminal
    there is also a bar for each session, and one for the whole campaign. Use it in a `with` block,
    and call `show` often.

    Args:
        folder: the folder of the campaign.
        driver: the driver of the campaign; None: another process runs it, and no bars are drawn.
        quiet: whether progress is hidden.
        warns: whether `warn` prints, whatever `quiet` is. False: it prints nothing, since stderr
            must have only JSON.
    """

    def __init__(
        self, folder: CampaignFolder, driver: Driver | None, quiet: bool, warns: bool = True
    ) -> None:
        import sys
        import time

        self._driver, self._folder, self._quiet, self._warns = driver, folder, quiet, warns
        self._is_live = not quiet and driver is not None and sys.stderr.isatty()
        self._phases: dict[bytes, str] = {}
        status = folder.status() if folder.has_begun else None
        # Sessions whose ends are printed, or were printed by an earlier run: otherwise a resumed
        # run would print them again.
        self._told = set() if status is None else {one.session for one in status.ended}
        # Clients in sums: now, and before this run. The pace is computed from the difference.
        self._landed = self._landed_before = 0 if status is None else sum(status.landed.values())
        self._begun = time.monotonic()
        self._tell_at, self._said = 0.0, ""
        # `_note_present`: when it may write the next time, and the number that it wrote last.
        self._note_at, self._noted = 0.0, -1
        # `_tell_missing`: the number of closed rounds at the last check, and of rounds without a
        # sum among them.
        self._num_closed = self._num_missing = 0
        self._bars: Any = None
        self._tasks: dict[bytes, Any] = {}

    def __enter__(self) -> Progress:
        if self._is_live:
            from rich import progress
            from rich.console import Console

            columns = (
                "{task.description}",
                progress.BarColumn(),
                progress.TextColumn(
                    "{task.completed:,.0f} of {task.total:,.0f} {task.fields[how]}"
                ),
            )
            self._bars = progress.Progress(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
            self._whole = self._bars.add_task("campaign", total=self._most(), how="")
            self._draw_whole()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def note(self, message: str) -> None:
        """Print a line above the bars, unless progress is hidden."""
        self._print(message, self._quiet)

    def warn(self, message: str) -> None:
        """Print a problem that does not end the run, above the bars, unless `warns` is False."""
        self._print(message, not self._warns)

    def _print(self, message: str, is_left_out: bool) -> None:
        if self._bars is None:
            console.note(message, is_left_out)
        else:
            from rich.text import Text

            self._bars.console.print(Text(escaped(message)))

    def show(self, present: int | None = None) -> None:
        """Print lines about what has changed since the last call, and redraw the bars.

        Args:
            present: the number of connected clients; None: unknown.
        """
        import time

        from fedtally.answer import amounts, sections

        if present is not None:
            self._note_present(present)
        unit = sections.counted.who(self._folder.plan)
        running = {one.session: one for one in self._running()}
        for name, one in running.items():
            if self._phases.get(name) != one.phase:
                # Without the driver it is not known how many of the clients are asked now.
                whom = (
                    f"its {unit}s" if self._driver is None else amounts.counted(one.clients, unit)
                )
                self.note(
                    f"round {one.round}, session {name.hex()[:8]}: asks {whom} for"
                    f" {_ASKED_FOR[one.phase]}"
                )
        if self._phases.keys() - running.keys():
            self._tell_ends()
        self._phases = {name: one.phase for name, one in running.items()}
        self._tell_missing()
        if running:
            self._said = ""
        elif time.time() >= self._tell_at and not self._is_complete():
            self._tell_at = time.time() + _TELL_SECONDS
            said = self._sleeps() or f"waits for {unit}s" + (
                "" if present is None else f": {present:,} are connected"
            )
            if said != self._said:  # otherwise the same line would come every `_TELL_SECONDS`
                self.note(said)
            self._said = said
        self._draw(running)

    def _note_present(self, present: int) -> None:
        """Write the number of connected clients to a file, for the command `status`.

        Nothing is written if the number has not changed, or if the last write was less than
        `_NOTE_SECONDS` ago.
        """
        import os
        import time

        from fedtally.campaign import presence

        if present != self._noted and time.monotonic() >= self._note_at:
            presence.note(self._folder.path, os.getpid(), present)
            self._noted, self._note_at = present, time.monotonic() + _NOTE_SECONDS

    def _is_complete(self) -> bool:
        """Tell whether no session runs, and no round can have another session, now or later.

        Without the driver, two things differ: the stopping rule of the plan, which may end a
        campaign early, is not considered; and the result is False before the campaign has begun.
        """
        import time

        from fedtally.campaign.so_far import is_full

        if self._driver is not None:
            return self._driver.is_complete
        return is_full(self._folder, time.time())

    def _sleeps(self) -> str:
        """Return in words until when no client may be asked, since no period is open.

        "": clients may be asked now, or the plan has no calendar.
        """
        import time

        from fedtally.campaign.so_far import next_round, periods_in
        from fedtally.plan.calendar import time_text

        calendar, now = self._folder.plan.calendar, time.time()
        if calendar is None:
            return ""
        periods = periods_in(self._folder)
        if self._driver is None:
            follows = next_round(self._folder, now)
            at = now if follows is None else periods.opens(follows)
        else:
            at = self._driver.wakes_at or now
        if at <= now:
            return ""
        round = periods.open_at(at).start
        return f"sleeps until {time_text(calendar.opens(round))} (UTC), when round {round} opens"

    def _tell_missing(self) -> None:
        """Print the rounds of the calendar that have closed without a sum, if some are new."""
        import time

        from fedtally.campaign.periods import missing_text
        from fedtally.campaign.so_far import missing_rounds, periods_in
        from fedtally.store import StoreError

        if self._folder.plan.calendar is None:
            return
        closed = periods_in(self._folder).num_closed(time.time())
        if closed == self._num_closed:
            return
        try:
            missing = missing_rounds(self._folder, time.time())
        except StoreError:
            return  # the next call tries again
        self._num_closed = closed
        if len(missing) > self._num_missing:
            self.note(f"{missing_text(missing)}: nothing landed while open")
        self._num_missing = len(missing)

    def _running(self) -> list[RunningSession]:
        """Return the running sessions.

        Without the driver they are read from the folder, and the number of answers is always 0.
        """
        from fedtally.campaign.driver import RunningSession

        if self._driver is not None:
            return self._driver.running()
        return [
            RunningSession(
                one.session, one.round, one.phase, one.num_clients, 0, one.closes, one.not_after
            )
            for one in (self._folder.status().open if self._folder.has_begun else ())
            if one.phase in _ASKED_FOR
        ]

    def _tell_ends(self) -> None:
        """Print a line for each session that has ended since the last call."""
        from fedtally.answer import amounts, sections
        from fedtally.store import StoreError

        try:
            found = self._folder.status()
        except StoreError:
            return  # the lines are printed when another session ends
        unit, self._landed = sections.counted.who(self._folder.plan), sum(found.landed.values())
        new = [one for one in found.ended if one.session not in self._told]
        for one in new:
            self._told.add(one.session)
            how = one.why or f"landed, the sum of {amounts.counted(one.num_clients, unit)}"
            self.note(f"round {one.round}, session {one.session.hex()[:8]}: {how}")
        if any(one.why is None for one in new) and (left := self._left()):
            self.note(f"{self._landed:,} of {self._most():,} {unit}s are in sums; {left}")
        self._draw_whole()

    def _most(self) -> int:
        """Return how many clients are in the sums of a campaign whose rounds are all full."""
        return self._folder.plan.num_rounds * self._folder.plan.max_round_clients

    def _left(self) -> str:
        """Return in words the time left at the pace of this run.

        "": unknown, or the campaign is complete or has a calendar, which says when it ends.
        """
        import time

        done, rest = self._landed - self._landed_before, self._most() - self._landed
        by_calendar = self._folder.plan.calendar is not None
        if by_calendar or done <= 0 or rest <= 0 or self._is_complete():
            return ""
        return f"{about((time.monotonic() - self._begun) / done * rest)} left"

    def _draw_whole(self) -> None:
        """Draw the bar of the whole campaign, if there are bars."""
        from fedtally.answer import sections

        if self._bars is not None:
            left = self._left()
            how = f"{sections.counted.who(self._folder.plan)}s in sums" + (
                f", {left}" if left else ""
            )
            self._bars.update(self._whole, completed=self._landed, how=how)

    def _draw(self, running: dict[bytes, RunningSession]) -> None:
        """Draw the bars of the running sessions, and remove the bars of sessions that have ended.

        Nothing is done if progress is shown without bars.
        """
        if self._bars is None:
            return
        import time

        for name in self._tasks.keys() - running.keys():
            self._bars.remove_task(self._tasks.pop(name))
        for name, one in running.items():
            left = max(0, int(one.closes[0] - time.time()))
            shown = {
                "description": f"round {one.round}: {one.phase}",
                "completed": one.answered,
                "total": one.clients,
                "how": "answered, "
                + (f"{left} s left" if left else "waits for those it cannot go on without"),
            }
            if name not in self._tasks:
                self._tasks[name] = self._bars.add_task(**shown)
            self._bars.update(self._tasks[name], **shown)
