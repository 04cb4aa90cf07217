"""`fedtally campaign`: a campaign of real clients, from its folder to its result."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedtally.base.text import word
from fedtally.campaign.transports.engine import hold
from fedtally.campaign.transports.table import DEFAULT, ENGINES, RENAMED, chosen
from fedtally.cli import campaign_view as view
from fedtally.cli import console
from fedtally.cli.campaign_nginx import nginx
from fedtally.cli.campaign_tokens import tokens
from fedtally.cli.help import Command, Decorator, Group, option, options
from fedtally.cli.shared import check_ledger, json_option, shared
from fedtally.errors import InvalidInputError, flag

if TYPE_CHECKING:
    from fedtally.answer.result import Result
    from fedtally.campaign.driver import Driver
    from fedtally.campaign.folder import CampaignFolder
    from fedtally.campaign.screening import Screening
    from fedtally.campaign.transports.engine import Ran
    from fedtally.campaign.transports.pace import Ending
    from fedtally.plan import Plan
    from fedtally.sketch import CountSketch
    from fedtally.store.campaigns import SavedSession

_SOME_LANDED, _FAILED = 3, 1  # exit codes; 0: every round has landed (is summed)

_folder = click.argument("name", metavar="NAME", type=click.Path(path_type=Path))


def _seconds(name: str, default: int, text: str) -> Decorator:
    return option(
        "Deadlines (seconds)",
        f"--{name}",
        type=int,
        metavar="S",
        default=default,
        help=f"{text} [{default}]",
    )


@click.group(
    cls=Group,
    short_help="Run a campaign of real clients.",
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def campaign() -> None:
    """The server's side of a campaign whose clients are agents (fedtally agent).

    NAME is the folder of a campaign. The server may be killed at any time: resume goes on where it
    was. docs/operations.md says what a crash can lose.
    """


@click.command(
    cls=Command,
    short_help="Make the folder of a campaign.",
    examples=[
        (
            "your plan with privacy, against a server that may lie",
            (
                "fedtally campaign init survey --plan plan.toml --server-key server.key"
                " --allow-list clients.allow --ledger ledger.db --mark /var/lib/marks/survey"
            ),
        ),
    ],
)
@_folder
@shared("campaign init")
@option(
    "Files",
    "--server-key",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Use the server's private key, of fedtally keys new server",
)
@option(
    "Files",
    "--allow-list",
    type=click.Path(),
    metavar="FILE",
    help="Copy the list of registered clients, for an active adversary",
)
@option(
    "Files",
    "--candidates",
    type=click.Path(),
    metavar="FILE",
    help="Copy the candidates, where the plan holds only their digest",
)
@option(
    "Files",
    "--mark",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Keep a mark outside NAME and its backups: it reveals old copies",
)
@_seconds("gather", 60, "Wait this long for a full session, once n_min clients came")
@_seconds("phase", 60, "Wait this long for a phase's answers, 4 times if too few")
@_seconds("session", 3600, "Give a session up after this time")
@_seconds("presence", 300, "Count a client as present this long after its check-in")
@_seconds("bench", 3600, "Rest a client this long that aborted or left two questions unanswered")
@json_option
def init(name: Path, plan: str, as_json: bool, **given: Any) -> None:
    """Make the folder NAME of a campaign. Nothing is asked of anybody yet: that is run."""
    from fedtally.answer import sections
    from fedtally.campaign.driver import Deadlines
    from fedtally.campaign.folder import CampaignFolder
    from fedtally.campaign.places import cautions

    waits = ("gather", "phase", "session", "presence", "bench")
    deadlines = Deadlines(**{wait: given.pop(wait) for wait in waits})
    made = CampaignFolder.create(name, plan, deadlines=deadlines, **given)
    honest = made.plan.summing.honest_clients
    console.note(
        f"made {name}: {view.planned(made)}; {sections.trust.honesty(honest)}; next:"
        f" fedtally campaign run {word(made.path)}"
        f" {', or '.join(row.usage for row in ENGINES.values())}",
        as_json,
    )
    found = [*sections.trust.cautions(made.plan), *cautions(made.ledger, made.plan)]
    console.note_cautions(found, as_json)
    if as_json:
        console.show_json(
            {
                "schema": "fedtally-campaign-made/1",
                "folder": str(name),
                "fingerprint": made.plan.fingerprint,
                "min_honest": honest,
            }
        )
    else:
        console.show_hex(made.plan.fingerprint, "the fingerprint of the plan")


class _EngineName(click.Choice):  # type: ignore[type-arg]  # it takes a type since click 8.2
    """The type of the option --engine: the name of an engine.

    For a name that an engine had in an earlier version, the error says the present name.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in RENAMED:
            self.fail(f"{value} is called {RENAMED[value]}: --engine {RENAMED[value]}", param, ctx)
        return super().convert(value, param, ctx)


_OVER = "over", "cancelled"  # the stages in which a campaign asks no client any more
_WAIT = 600  # after so many seconds without enough clients, or without answers, a run ends
_engine_options = options(
    option(
        "Engine",
        "--engine",
        type=_EngineName(list(ENGINES)),
        default=DEFAULT,
        help=f"Carry bytes to agents here, Flower nodes, or devices over HTTPS [{DEFAULT}]",
    ),
    *(
        option(
            "Engine",
            flag(one.name),
            type=click.Path() if one.is_path else str,
            metavar=one.metavar,
            help=one.help,
        )
        for row in ENGINES.values()
        for one in row.options
    ),
    option(
        "Engine",
        "--wait",
        type=click.IntRange(min=1),
        metavar="S",
        help=(
            "End after S seconds without enough clients or answers"
            f" [{_WAIT}; calendar, https: never]"
        ),
    ),
    shared("campaign run"),
    json_option,
)


@click.command(
    cls=Command,
    short_help="Run a campaign from its beginning.",
    examples=[
        (
            "with the agents of this machine, in your folder /run/fedtally",
            "fedtally campaign run survey --agents /run/fedtally",
        ),
        (
            "on Flower: hospitals is your connection",
            "fedtally campaign run survey --engine flower --connection hospitals",
        ),
    ],
)
@_folder
@_engine_options
def run(name: Path, **given: Any) -> int:
    """Run the campaign NAME until every round is as full as its plan allows, and show its result.

    If nobody new comes for --wait seconds, or nobody answers, it ends: with the result if every
    round landed, and else so that resume goes on. A plan with a calendar ends with its last period,
    and the run sleeps between periods.
    SIGTERM, or fedtally campaign drain, ends it after the open sessions. Exit code 0: every round
    landed. 3: some did, or it was drained. 1: none did. 2: bad input.
    """
    from fedtally.campaign.folder import CampaignFolder

    folder = CampaignFolder.open(name)
    folder.check_open()
    if folder.has_begun:
        raise InvalidInputError(
            f"{name} has begun already: fedtally campaign resume {word(folder.path)}"
        )
    return _run(folder, **given)


@click.command(
    cls=Command,
    short_help="Go on with a campaign after a stop or a crash.",
    examples=[
        (
            "your campaign survey, after a crash or a reboot",
            "fedtally campaign resume survey --agents /run/fedtally",
        )
    ],
)
@_folder
@_engine_options
@option(
    "Run",
    "--take-over",
    is_flag=True,
    help="Take over from a process that runs it, which ends",
)
def resume(name: Path, take_over: bool, **given: Any) -> int:
    """Go on with the campaign NAME: open sessions continue in the phase that they were in.

    Nothing is lost if the server is back before the sessions end. Exit codes are those of run.
    Once the campaign is over, --engine https tells clients so for --linger seconds.
    """
    from fedtally.campaign.folder import CampaignFolder, check_begun

    folder = CampaignFolder.open(name)
    if ENGINES[given["engine"]].say_over is None or folder.stage() not in _OVER:
        check_begun(folder)
    return _run(folder, take_over=take_over, **given)


@click.command(cls=Command, short_help="Let the running server end its sessions, and stop.")
@_folder
def drain(name: Path) -> None:
    """Tell the process that runs NAME to open no session, to end those that are open, and to exit.

    Without systemd, do so before an upgrade; a systemd service stays stopped after it. fedtally
    campaign resume goes on.
    """
    import signal

    from fedtally.campaign.folder import CampaignFolder

    process = CampaignFolder.open(name).runner()
    if process is not None and not process.is_seen():
        raise InvalidInputError(
            f"process {process} runs {name}, and no signal from here reaches it: type this where it"
            " runs, in its container and as its user; or let its container end the open sessions:"
            " podman stop -t 3600"
        )
    try:
        if process is None:
            raise ProcessLookupError
        os.kill(process.number, signal.SIGTERM)
    except ProcessLookupError:  # raised above, or by `kill` if the process has just ended
        raise InvalidInputError(f"no process runs {name}: there is nothing to drain") from None
    console.note(f"process {process} ends its open sessions, and stops then")


@click.command(cls=Command, short_help="Go on after campaign.db was put back from a copy.")
@_folder
@json_option
def restore(name: Path, as_json: bool) -> None:
    """Give up all open sessions of NAME, whose campaign.db was put back from a copy.

    A copy does not know what clients were told since it was made, so that its sessions must not go
    on. What landed since the copy is lost. resume asks clients that were not asked yet.
    It is refused where the mark shows that nothing was put back. Without a copy of campaign.db, end
    the campaign (fedtally campaign cancel), and begin another one with a new plan.
    """
    from fedtally.campaign.folder import CampaignFolder

    folder = CampaignFolder.open(name)
    given_up = folder.restore(os.getpid())
    view.show_given_up(given_up, as_json, f"resume: fedtally campaign resume {word(folder.path)}")


@click.command(cls=Command, short_help="End a campaign without a result.")
@_folder
@json_option
def cancel(name: Path, as_json: bool) -> None:
    """Give up all open sessions of NAME, for good. What clients spent stays spent."""
    from fedtally.campaign.folder import CampaignFolder

    folder = CampaignFolder.open(name)
    view.show_given_up(folder.cancel(), as_json, "the campaign is over")


@click.command(
    cls=Command,
    short_help="Show the answer of a campaign, or save it.",
    examples=[
        ("look at your campaign survey", "fedtally campaign result survey"),
        (
            "ask it for more: tea is an item of yours",
            "fedtally campaign result survey -o r.fed && fedtally query r.fed tea",
        ),
        ("look at your days so far, while it runs", "fedtally campaign result survey --so-far"),
        ("end your campaign early, with what landed", "fedtally campaign result survey --end"),
    ],
)
@_folder
@option(
    "Files",
    "--output",
    "-o",
    type=click.Path(),
    metavar="FILE",
    help="Write a .csv or .parquet table, or save the sums",
)
@shared("campaign result")
@option(
    "Run",
    "--end",
    "ends",
    is_flag=True,
    help="End a campaign before all rounds have landed",
)
@option(
    "Run",
    "--so-far",
    is_flag=True,
    help="Show what landed so far; the campaign goes on",
)
@json_option
def result(
    name: Path,
    output: str | None,
    top: int,
    details: bool,
    window: str,
    history: int,
    ends: bool,
    so_far: bool,
    as_json: bool,
) -> None:
    """Show the most frequent items of the campaign NAME, once it is over.

    --so-far shows the rounds that have landed, at any time, also while a process runs it. Under a
    trusted aggregator the plan needs a calendar for this: it shows the closed periods, each with
    its noise drawn once.
    """
    from fedtally.answer.result import Result
    from fedtally.campaign.folder import RESULT, CampaignFolder, files_of

    folder = CampaignFolder.open(name)
    console.check_files([output], files_of(folder), folder.path)
    if ends and so_far:
        raise InvalidInputError("--end ends the campaign and --so-far does not: give one of them")
    is_over = (name / RESULT).exists()
    if not is_over:
        folder.check_open()
        if not ends and not so_far:
            raise InvalidInputError(
                f"{name} is not over: --so-far shows what landed, fedtally campaign status"
                f" {word(folder.path)} says what is missing, and --end ends it with what landed"
            )
        if ends:
            _end(folder, by_hand=True)
    found = _so_far(folder, as_json) if so_far and not is_over else Result.load(name / RESULT)
    shown = view.windowed(found, window, history)
    if output:
        view.write_output(found, shown, output, as_json)
    view.show_result(shown, top, as_json, details)


@click.command(cls=Command, short_help="Show how far a campaign is.")
@_folder
@option("Run", "--names", is_flag=True, help="Name the clients of open sessions")
@json_option
def status(name: Path, names: bool, as_json: bool) -> int:
    """Show the rounds and sessions of the campaign NAME. It disturbs no process that runs it.

    It also says so if resume would refuse the campaign, since campaign.db or its mark is lost, or
    an old copy was put back. The exit code is 0 all the same. It is 2 if this version cannot read
    campaign.db or the ledger, or cannot go on with an open session, and 1 if the ledger does not
    answer.
    """
    from fedtally.answer import sections
    from fedtally.campaign.folder import CampaignFolder

    folder = CampaignFolder.open(name)
    document = _status(folder)
    stuck = _unrestorable(folder, document)
    if names and folder.has_begun:
        state = folder.state()
        for one in document["open"]:
            one["clients"] = list(state.clients(bytes.fromhex(one["session"])))
    if as_json:
        console.show_json({"schema": "fedtally-campaign-status/1", **document})
    else:
        view.show_status(document, sections.counted.who(folder.plan))
        if why := folder.why_refused(document["state"]):
            console.note(why)
    # Once the campaign is over, nothing is restored, and the ledger is not needed any more.
    if document["state"] in _OVER:
        return 0
    return max(_say_stuck(folder, stuck), check_ledger(folder.ledger, "resume"))


@click.command(name="list", cls=Command, short_help="List the campaigns in a folder.")
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path), default=".")
@json_option
def list_(folder: Path, as_json: bool) -> int:
    """List the campaigns whose folders lie in DIR (default: the working directory).

    The exit code is 2 if one of them cannot be read, which a line says, or if this version cannot
    go on with an open session of one.
    """
    from fedtally.campaign.folder import SETTINGS, CampaignFolder

    if not folder.is_dir():
        raise InvalidInputError(f"there is no folder {folder}: name the one of the campaigns")
    folders, found, stuck, unread = [], [], [], []
    for place in sorted(folder.glob(f"*/{SETTINGS}")):
        try:
            each = CampaignFolder.open(place.parent)
            one = _status(each)
            stuck.append(_unrestorable(each, one))
        except InvalidInputError as error:  # the others are shown all the same
            unread.append(f"{place.parent} is not listed: {error}")
        else:
            folders.append(each)
            found.append(one)
    if as_json:
        console.show_json({"schema": "fedtally-campaigns/1", "campaigns": found})
    elif not found and not unread:
        console.note(f"{folder} holds no campaign: fedtally campaign init makes one")
    else:
        view.show_list(found)
    for why in unread:
        console.note(why)
    return max([*map(_say_stuck, folders, stuck), 2 if unread else 0])


campaign.add_section("Run", init, run, resume, drain)
campaign.add_section("Clients over HTTPS", tokens, nginx)
campaign.add_section("Look", status, list_, result)
campaign.add_section("Repair", restore, cancel)


# ---- the run ----


def _run(
    folder: CampaignFolder,
    *,
    engine: str,
    wait: int | None,
    quiet: bool,
    as_json: bool,
    take_over: bool = False,
    **places: str | None,
) -> int:
    """Run a campaign, and print how the run ended.

    Args:
        folder: the folder of the campaign.
        engine: the name of the engine that reaches the clients.
        wait: the seconds without enough clients, or without answers, after which the run ends;
            None: the default.
        quiet: whether progress is hidden.
        as_json: whether to print a JSON document.
        take_over: whether to take the campaign from a process that runs it.
        places: the values of the options of all engines, by name; None: the option is not given.

    Returns:
        The exit code: 0 if all rounds have landed (are summed), or if the campaign was over before.
        Otherwise 3 if some rounds have landed or the run was drained (asked to stop), else 1.
    """
    from fedtally.campaign.transports.pace import Ending

    row, where = chosen(engine, places)
    if wait is not None:
        _check_wait(engine, folder.plan, gives_up=row.gives_up)
    quiet = quiet or as_json
    if folder.stage() in _OVER and row.say_over is not None:
        # Some clients may not have heard that the campaign is over, so all are told again.
        row.say_over(folder, lambda text: console.note(text, quiet), **where)
        return 0
    ran = row.open(**where).run(
        folder,
        wait=_WAIT if wait is None else wait,
        take_over=take_over,
        watch=lambda driver: view.Progress(folder, driver, quiet, warns=not as_json),
    )
    if is_over := _is_over(folder, ran.ending):
        _end(folder, by_hand=False)
    landed, rounds, ending = len(folder.status().landed), folder.plan.num_rounds, ran.ending
    console.note(
        f"{folder.path} is over: {landed} of {rounds} rounds landed{_missing(folder)}"
        if is_over
        else _said(folder, ran, landed, row.typed(where)),
        quiet,
    )
    if as_json:
        _show_ran(ran, rounds, landed)
    elif is_over:
        _show_result(folder)
    if is_over:
        ran.say_over(lambda text: console.note(text, quiet))
    if landed == rounds:
        return 0
    # A run that was asked to stop has not failed.
    return _SOME_LANDED if landed or ending is Ending.DRAINED else _FAILED


def _check_wait(engine: str, plan: Plan, *, gives_up: bool) -> None:
    """Refuse the option --wait, which the user gave, if it would have no effect.

    Args:
        engine: the name of the engine.
        plan: the plan of the campaign.
        gives_up: whether the engine ends a run for lack of clients. False: the engine waits for
            clients for ever.

    Raises:
        InvalidInputError: `gives_up` is False, or the plan has a calendar, which ends the run.
    """
    if not gives_up:
        raise InvalidInputError(
            f"--engine {engine} waits for its clients for ever: leave --wait out; fedtally campaign"
            " drain ends the run"
        )
    if plan.calendar is not None:
        raise InvalidInputError(
            "the plan has a calendar, and the run ends with its last period: leave --wait out;"
            " fedtally campaign drain ends it before"
        )


def _show_ran(ran: Ran, rounds: int, landed: int) -> None:
    """Print as JSON how a run ended.

    Args:
        ran: how the run ended.
        rounds: the number of rounds of the campaign.
        landed: the number of rounds that have landed (are summed).
    """
    console.show_json(
        {
            "schema": "fedtally-campaign-run/1",
            "ending": ran.ending.value,
            "rounds": rounds,
            "rounds_landed": landed,
            "refusals": {code.name: n for code, n in ran.refusals.most_common()},
            "unanswered": ran.unanswered,
        }
    )


def _show_result(folder: CampaignFolder) -> None:
    """Print the result of a campaign that is over."""
    from fedtally.answer.result import Result
    from fedtally.campaign.folder import RESULT

    # The hint names the command `result`. This command, `run` or `resume`, has no --details, and
    # would ask the clients again.
    how = shlex.join(["fedtally", "campaign", "result", str(folder.path), "--details"])
    view.show_result(Result.load(folder.path / RESULT), 20, False, how=how)


def _is_over(folder: CampaignFolder, ending: Ending) -> bool:
    """Tell whether a campaign is over, and not only its run.

    It is over if no round can have another session, or if all rounds have landed (are summed) and
    the run waited in vain for more clients.

    Args:
        folder: the folder of the campaign.
        ending: why the run ended.
    """
    from fedtally.campaign.transports.pace import Ending

    # A round that has landed may have room for more clients. If the run waited for such clients in
    # vain (STALLED), the campaign ends without them.
    have_all_landed = len(folder.status().landed) == folder.plan.num_rounds
    return ending is Ending.COMPLETE or (ending is Ending.STALLED and have_all_landed)


def _end(folder: CampaignFolder, *, by_hand: bool) -> None:
    """End a campaign: publish the sums of all rounds that have landed, and save the result.

    Args:
        folder: the folder of the campaign.
        by_hand: True: an operator asked for the end, perhaps before all rounds have landed. False:
            a run has found that the campaign is over (`_is_over`).

    Raises:
        InvalidInputError: a process runs the campaign, a session is open, no round has landed, or
            the campaign has not begun.
    """
    import time

    from fedtally.campaign.folder import check_begun

    check_begun(folder)
    if by_hand and (process := folder.runner()) is not None:
        raise InvalidInputError(
            f"process {process} runs {folder.path}: fedtally campaign drain {word(folder.path)}"
            " ends it after its open sessions; once it has ended, type --end again"
        )
    with hold(folder) as driver:
        driver.drain()
        driver.tick(time.time())
        if not driver.is_idle:
            raise InvalidInputError(
                f"{folder.path} has open sessions, whose clients would be lost: fedtally campaign"
                " resume, then drain, ends them; type --end again then"
            )
        if not folder.status().landed:
            raise InvalidInputError(
                f"no round of {folder.path} has landed: fedtally campaign cancel ends it"
            )
        _save_result(folder, driver, by_hand)


def _save_result(folder: CampaignFolder, driver: Driver, by_hand: bool) -> None:
    """Publish the sums that have landed, and save their result: the last step of `_end`.

    Args:
        folder: the folder of the campaign.
        driver: the driver of the campaign.
        by_hand: whether an operator asked for the end of the campaign.
    """
    from fedtally.campaign import ending
    from fedtally.campaign.folder import RESULT

    ended, landed = None, len(folder.status().landed)
    if driver.has_enough():
        ended = ending.ended(folder.plan, landed, "rule")
    elif by_hand:  # otherwise the campaign is over by itself: this is no early end
        ended = ending.ended(folder.plan, landed, "operator")
    sums = driver.release()
    _result_of(folder, sums, driver.screening, [], ended).save(folder.path / RESULT)


def _so_far(folder: CampaignFolder, quiet: bool) -> Result:
    """Return the result of the rounds that have landed so far, without ending the campaign.

    Also print a line that says how many rounds these are. If a trusted aggregator adds the noise
    and no process runs the campaign, the noise of closed periods is first added here.

    Args:
        folder: the folder of the campaign.
        quiet: whether this line is left out.

    Raises:
        InvalidInputError: the campaign has not begun, has no sum that can be shown, or its noise is
            drawn only at the end.
    """
    import time

    from fedtally.campaign.folder import check_begun
    from fedtally.campaign.periods import last_day
    from fedtally.campaign.release import releases_by_round
    from fedtally.campaign.so_far import sums_so_far

    check_begun(folder)
    plan = folder.plan
    if plan.protection.is_secret:
        if plan.calendar is None:
            raise InvalidInputError(
                "a trusted aggregator draws the noise of this plan once, at the end: --so-far needs"
                " a plan with a calendar, and --end ends the campaign"
            )
        # Closed periods need noise. If no process runs the campaign, this process adds the noise.
        if folder.runner() is None:
            with hold(folder) as driver:
                driver.drain()
                driver.tick(time.time())
    sums, screening = sums_so_far(folder)
    if not sums:
        raise InvalidInputError(
            f"{folder.path} has no sum to show so far: fedtally campaign status {word(folder.path)}"
            " says how far its rounds are"
        )
    number_of = releases_by_round(plan)
    shown = {number_of[sketch.round] for sketch in sums}
    rounds = [round for round in folder.status().landed if number_of[round] in shown]
    said = f"so far: {len(rounds)} of {plan.num_rounds} rounds"
    if plan.calendar is not None:
        said += f", up to {last_day(plan.calendar, max(rounds))} (UTC)"
    # The line is also among the warnings of the result, but a short view does not print warnings.
    console.note(said, quiet)
    return _result_of(folder, sums, screening, [said])


def _missing(folder: CampaignFolder) -> str:
    """Return a text that names the rounds of an ended campaign's calendar that have no sum.

    Returns:
        A text that begins with "; " and continues a sentence; "": every round has a sum, or the
        plan has no calendar.
    """
    import time

    from fedtally.campaign.periods import missing_text
    from fedtally.campaign.so_far import missing_rounds

    # `missing_rounds` counts a round only after its last session must have ended. In this campaign
    # no session runs any more, so give it a later time.
    missing = missing_rounds(folder, time.time() + folder.deadlines.session + 1)
    return f"; {missing_text(missing)}" if missing else ""


def _result_of(
    folder: CampaignFolder,
    sums: list[CountSketch],
    screening: Screening,
    warnings: list[str],
    ended: dict[str, Any] | None = None,
) -> Result:
    """Return the result of sums that may be published.

    Args:
        folder: the folder of the campaign.
        sums: the sums, one sketch for each.
        screening: what was found out about cohorts whose sums look wrong.
        warnings: warnings for the readers of the result.
        ended: how the campaign ended early; None: it did not end early.
    """
    from fedtally.answer.result import Result

    return Result(
        folder.plan,
        folder.domain,
        sums,
        warnings=warnings,
        secure_sum=folder.secure_sum() | {"screening": screening.to_dict()},
        command=console.command_line(),
        ended=ended,
    )


def _said(folder: CampaignFolder, ran: Ran, landed: int, reached: str) -> str:
    """Return in words why a run ended although its campaign is not over, and what to do next.

    Args:
        folder: the folder of the campaign.
        ran: how the run ended.
        landed: the number of rounds that have landed (are summed).
        reached: the options of the engine as a user types them, for the command to run next.
    """
    from fedtally.answer import amounts, sections
    from fedtally.campaign.transports.pace import Ending

    name, rounds = folder.path, folder.plan.num_rounds
    least, who = folder.plan.summing.least_clients, sections.counted.who(folder.plan)
    refusals = ", ".join(
        f"{number:,} {code.name} ({code.meaning})" for code, number in ran.refusals.most_common()
    )
    connected = (
        f"a session needs {least:,} {who}s that were not asked before, and {ran.present:,} are"
        " connected in all"
    )
    silent = (
        f"nobody answered {amounts.counted(ran.unanswered, 'invitation')}: the owners of these"
        f" {who}s run fedtally agent check, which says whether they accepted the plan"
    )
    why = {
        Ending.DRAINED: "was drained",
        Ending.JUMPED: "stopped, since the clock jumped past the end of the calendar: set it right",
        Ending.STALLED: f"waits in vain: {silent if ran.unanswered else connected}",
    }[ran.ending]
    heard = f"; {who}s refused, or were refused: {refusals}" if refusals else ""
    ways = f"fedtally campaign resume {word(folder.path)} {reached} goes on" + (
        f", fedtally campaign result {word(folder.path)} --end ends it with what landed"
        if landed
        else ""
    )
    return f"{name} {why}; {landed} of {rounds} rounds landed{heard}; {ways}"


def _unrestorable(
    folder: CampaignFolder, document: dict[str, Any]
) -> list[tuple[SavedSession, str]]:
    """Return the open sessions that this version cannot restore, and mark them in the status.

    Once the campaign is over, nothing is restored, and the list is empty.

    Args:
        folder: the folder of the campaign.
        document: what `_status` returned. Each open session gets an entry `restorable`.
    """
    import secrets
    import time

    from fedtally.campaign.folder import unrestorable

    stuck = []
    if document["open"] and document["state"] not in _OVER:
        stuck = unrestorable(folder, int(time.time()), random=secrets.token_bytes)
    names = {saved.session.hex() for saved, _ in stuck}
    for one in document["open"]:
        one["restorable"] = one["session"] not in names
    return stuck


def _say_stuck(folder: CampaignFolder, stuck: list[tuple[SavedSession, str]]) -> int:
    """Print a note for each open session that this version cannot restore.

    Args:
        folder: the folder of the campaign.
        stuck: what `_unrestorable` returned.

    Returns:
        The exit code: 2 if there is such a session, else 0.
    """
    from fedtally.base.text import utc
    from fedtally.secagg.checkpoints import CheckpointError

    code = 0
    for saved, why in stuck:
        code = CheckpointError.exit_code
        console.note(
            f"resume would set aside round {saved.round}, session {saved.session.hex()[:8]}, which"
            f" would end without a sum: {why}; keep the version of fedtally that began it until the"
            f" session is over, at {utc(saved.not_after)} at the latest: its fedtally campaign"
            f" drain {folder.path} ends the process then"
        )
    return code


def _status(folder: CampaignFolder) -> dict[str, Any]:
    """Return the state of a campaign, its rounds and its sessions as a dict for JSON.

    Before the campaign has begun, the lists of rounds and of sessions are empty.
    """
    from dataclasses import asdict

    from fedtally.campaign import presence
    from fedtally.campaign.runner import fields

    process = folder.runner()
    found: dict[str, Any] = {
        "name": str(folder.path),
        "state": folder.stage(),
        **fields(process),
        "present": presence.read(folder.path, process and process.number),
        "fingerprint": folder.plan.fingerprint,
        "num_rounds": folder.plan.num_rounds,
        "rounds": [],
        "open": [],
        "ended": [],
    }
    if not folder.has_begun:
        return found
    status = folder.status()
    found["rounds"] = [
        {
            "round": round,
            "asked": status.asked.get(round, 0),
            "landed": status.landed.get(round, 0),
        }
        for round in range(folder.plan.num_rounds)
    ]
    for name in ("open", "ended"):
        found[name] = [
            asdict(one) | {"session": one.session.hex()} for one in getattr(status, name)
        ]
    return found
