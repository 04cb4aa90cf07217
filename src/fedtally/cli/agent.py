"""`fedtally agent`: the process that guards a client, and what its owner decides."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedtally.base.text import in_a_row, in_number
from fedtally.cli import console
from fedtally.cli.agent_view import DIGITS, document, show_asked, show_record
from fedtally.cli.help import Command, Group, option, options
from fedtally.cli.plan_facts import (
    check_fingerprint,
    confirm,
    default_day,
    fingerprint_option,
    is_attended,
    parse_day,
)
from fedtally.cli.shared import json_option, shared
from fedtally.errors import InvalidInputError, UnsentError

if TYPE_CHECKING:
    from fedtally.agent.accepted import Campaign, CampaignFiles
    from fedtally.agent.agent import Agent, Note
    from fedtally.agent.log import Log
    from fedtally.agent.reporter import Reporter
    from fedtally.agent.settings import Settings
    from fedtally.plan import Plan
    from fedtally.store import ClientRecord, Fate, Unsent

# The modules that are missing if only the agent is installed, without planning, recovery and
# tables: name of the module -> name of its package.
LIGHT_LACKS = {"dp_accounting": "dp-accounting", "pyarrow": "pyarrow", "scipy": "scipy"}

_agent_option = option(
    "Agent",
    "--agent",
    "folder",
    type=click.Path(),
    default=".",
    metavar="DIR",
    help="Use the agent in this folder [this one]",
)
_file_options = options(
    option(
        "Files",
        "--allow-list",
        type=click.Path(),
        metavar="FILE",
        help="Read who may take part, if the plan names a list",
    ),
    option(
        "Files",
        "--signature",
        type=click.Path(),
        metavar="FILE",
        help="Read the signature of the agent's registrar",
    ),
)


@click.group(
    cls=Group,
    short_help="Guard a client: its items, key and budget.",
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def agent() -> None:
    """The process that guards a client: it alone reads the items, and decides what they go into.

    The owner makes an agent (init), fills in its agent.toml, and accepts plans (accept). The agent
    (run) then answers the server of these plans alone, within the owner's policy, and records what
    it took part in. docs/agent.md explains it.
    """


@click.command(
    cls=Command,
    short_help="Make the folder of an agent.",
    examples=[("make one, then fill in its agent.toml", "fedtally agent init my-agent")],
)
@click.argument("folder", metavar="DIR", type=click.Path())
def init(folder: str) -> None:
    """Make DIR with a new key, an empty record and an agent.toml that explains its entries.

    DIR must be new or empty. Then fill in agent.toml: where the items are, and how much everything
    together may cost.
    """
    import secrets

    from fedtally.agent.home import create
    from fedtally.agent.settings import FILE

    public = create(Path(folder), secrets.token_bytes)
    console.note(f"wrote {folder}: a key, an empty record, and {FILE} with the policy")
    console.note(f"next: fill in the lines of {Path(folder) / FILE} that begin with '# >'")
    console.show_hex(public.hex(), "the public key of the client")


@click.command(
    cls=Command,
    short_help="Accept a plan, after a look at what it asks.",
    examples=[
        (
            "files of your registrar, against a server that may lie",
            (
                "fedtally agent accept plan.toml --allow-list people.list"
                " --signature plan.signature --agent my-agent"
            ),
        ),
        (
            "your registrar ended plans before their last day",
            "fedtally agent accept --revocation ended.revoked --agent my-agent",
        ),
    ],
)
@click.argument("plan", required=False, type=click.Path())
@_file_options
@option(
    "Files",
    "--revocation",
    type=click.Path(),
    metavar="FILE",
    help="Read the registrar's notice that plans have ended",
)
@fingerprint_option
@option(
    "Run",
    "--until",
    metavar="DATE",
    help="End the plan after this day, in UTC [the registrar's, or in 90 days]",
)
@option("Run", "--yes", is_flag=True, help="Accept without asking what the policy allows")
@option("Run", "--by-consent", is_flag=True, help="Accept only what the standing consent covers")
@_agent_option
def accept(plan: str | None, revocation: str | None, folder: str, **given: Any) -> None:
    """Show what PLAN asks of this client, and what changed since the plan before; then accept it.

    Take the files from the registrar, and never from the server that sums. A plan that the policy
    refuses is not accepted. What the registrar has replaced or revoked ends at once, also in an
    agent that runs. To leave a campaign, delete its folder below `campaigns`.
    """
    import time

    if given["yes"] and given["by_consent"]:
        raise InvalidInputError("--yes and --by-consent do not go together: leave one out")

    settings, now = _settings(folder), time.time()
    if plan is None and revocation is None:
        raise InvalidInputError("name a plan, or what the registrar revoked (--revocation)")
    settings.check_user()
    if revocation is not None:
        _end_revoked(settings, revocation, now)
    if plan is not None:
        _accept(settings, plan, now, **given)


@click.command(
    cls=Command,
    short_help="Check the settings, or whether a plan would be taken.",
    examples=[
        ("your settings, and what was accepted", "fedtally agent check --agent my-agent"),
        (
            "a plan of your registrar, before it is accepted",
            "fedtally agent check --plan plan.toml --allow-list people.list --signature plan.sig",
        ),
    ],
)
@shared("agent check")
@_file_options
@_agent_option
def check(plan: str | None, allow_list: str | None, signature: str | None, folder: str) -> None:
    """Check agent.toml, the key, the record and the items, and print every reason to refuse a plan.

    Nothing is recorded or accepted. The exit code is 2 if anything is refused.
    """
    import time

    if plan is None and (allow_list or signature):
        raise InvalidInputError("--allow-list and --signature go with a --plan: name it")
    settings, now = _settings(folder), time.time()
    settings.identity()
    record = settings.open_record()
    if plan is None:
        accepted = settings.accepted()
        campaigns = list(accepted.values())
        problems = list(accepted.problems())
        over = [_over(settings, campaign, record, now) for campaign in campaigns]
    else:
        campaigns, problems = _files(plan, allow_list, signature).load_or_problems(
            settings.registrar, settings.policy
        )
        over = [campaign.why_unacceptable(record, now) for campaign in campaigns]
    for campaign, why in zip(campaigns, over, strict=True):
        fingerprint = campaign.plan.fingerprint
        problems += [
            f"plan {fingerprint[:DIGITS]}: {reason.removeprefix(f'plan {fingerprint} ')}"
            for reason in ([why] if why else _refusals(settings, campaign, now))
        ]
    _raise_refusals(problems)
    if settings.registrar is None:
        _note_of_no_registrar()
    for campaign in campaigns:
        _note_of_rounds(campaign.plan)
    found = [campaign.plan.fingerprint[:DIGITS] for campaign in campaigns]
    console.note(f"the settings are right; plans that are taken: {', '.join(found) or 'none yet'}")


@click.command(
    cls=Command,
    short_help="Answer the servers of accepted plans.",
    examples=[
        ("your agent in a terminal, until Ctrl-C", "fedtally agent run --agent my-agent"),
        ("under systemd, as your unit", "systemctl start fedtally-agent"),
    ],
)
@_agent_option
@shared("agent run")
def run(folder: str, as_json: bool) -> None:
    """Answer on the agent's Unix socket until SIGTERM or Ctrl-C; needs no network.

    Each line on stderr says what happened, and why something was refused. Items are never shown.
    """
    import asyncio
    import secrets
    import time

    from fedtally.agent.dumps import forbid_dumps

    forbid_dumps()  # before a secret is read: a core dump would contain the secret
    settings = _settings(folder)
    log = _logger(as_json)
    settings.check_writable()
    guard = settings.agent(random=secrets.token_bytes, now=time.time(), log=log)
    for problem in settings.accepted().problems():
        console.note(f"warning: {problem}")
    asyncio.run(_serve(settings, guard, log))


@click.command(
    cls=Command,
    short_help="Show what the client took part in, and what is left.",
    examples=[("the record of your agent", "fedtally agent show --agent my-agent")],
)
@_agent_option
@json_option
def show(folder: str, as_json: bool) -> None:
    """Show the client's identity, its accepted plans, the rounds that it took part in, and what
    they cost together. Items and their labels are not shown.
    """
    import time

    settings, now = _settings(folder), time.time()
    if as_json:
        console.show_json(document(settings, now))
    else:
        show_record(settings, now)


@click.command(
    cls=Command,
    short_help="Take part in a campaign over HTTPS.",
    examples=[
        (
            "your token of the campaign is in my.token",
            (
                "fedtally agent join --url https://sums.example.org/v1/campaigns/FINGERPRINT"
                " --token-file my.token --socket my-agent/run/agent.sock"
            ),
        ),
    ],
)
@option(
    "Server",
    "--url",
    required=True,
    metavar="URL",
    help="Ask this address, https://HOST/v1/campaigns/FINGERPRINT",
)
@option(
    "Server",
    "--token-file",
    required=True,
    type=click.Path(),
    metavar="FILE",
    help="Read this client's token from this file",
)
@option(
    "Server",
    "--ca",
    type=click.Path(),
    metavar="FILE",
    help="Trust these certificates in PEM alone [those of browsers]",
)
@option(
    "Agent",
    "--socket",
    required=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="Reach the agent on this socket",
)
def join(url: str, token_file: str, ca: str | None, socket: Path) -> None:
    """Carry bytes between a server and an agent until the campaign is over, or until SIGTERM.

    This process holds the token, and no key and no item: the agent decides what it answers. It asks
    again whatever goes wrong, and ends only if the campaign is over or the token does not count.
    """
    import asyncio

    from fedtally.errors import MissingExtraError

    try:
        from fedtally.campaign.transports.https import carry
        from fedtally.campaign.transports.https.join import Over
    except ModuleNotFoundError:
        raise MissingExtraError("agent join needs httpx: pip install httpx") from None
    given = carry.checked_url(url), carry.read_token(token_file), socket, carry.tls(ca)
    over = asyncio.run(carry.carry(*given, tell=console.note))
    if over is Over.TOKEN:
        raise InvalidInputError(
            f"{over.value}: ask the server's operator which, or for another one for {url}, and"
            " start this again"
        )
    console.note("stopped" if over is None else over.value)


@click.command(
    cls=Command,
    short_help="Print the packages that an agent needs.",
    examples=[
        (
            "in your clone, a light agent: no SciPy, no PyArrow",
            (
                "pip install --no-deps . click"
                " && fedtally agent requirements > agent.txt && pip install -r agent.txt"
            ),
        ),
    ],
)
@option("Agent", "--join", is_flag=True, help="Add what `fedtally agent join` and `report` need")
def requirements(join: bool) -> None:
    """Print what an agent needs beside fedtally itself, one package a line, as pip reads it.

    An agent that has no more is a light one. It reads items from text, CSV and SQLite.
    """
    import re
    from importlib.metadata import requires

    for line in requires("fedtally") or ():
        needed, _, only = line.partition(";")
        name = re.split(r"[^\w.-]", needed, maxsplit=1)[0]
        if (join and name == "httpx") if only else name not in LIGHT_LACKS.values():
            console.show_script(needed.strip())


@click.command(
    "report",
    cls=Command,
    short_help="Send a report to two servers over HTTPS.",
    examples=[
        (
            "your accepted plan of two servers",
            (
                "fedtally agent report --leader https://leader.example.org"
                " --helper https://helper.example.net --agent my-agent"
            ),
        ),
        (
            "your report that could not be sent, from a timer",
            (
                "fedtally agent report --leader https://leader.example.org"
                " --helper https://helper.example.net --agent my-agent --once"
            ),
        ),
    ],
)
@option(
    "Servers", "--leader", required=True, metavar="URL", help="Reach the leader at https://HOST"
)
@option(
    "Servers", "--helper", required=True, metavar="URL", help="Reach the helper at https://HOST"
)
@option(
    "Servers",
    "--ca",
    type=click.Path(),
    metavar="FILE",
    help="Trust these certificates in PEM alone [those of browsers]",
)
@option(
    "Run",
    "--fingerprint",
    metavar="HEX",
    help="Use the plan with these 64 digits [the only one]",
)
@option(
    "Run",
    "--release",
    type=int,
    metavar="N",
    help="Use this release of the plan [the only one, or the calendar's]",
)
@option(
    "Run",
    "--once/--wait",
    help="End or wait where a server does not answer [wait]",
)
@_agent_option
def send_report(
    leader: str,
    helper: str,
    ca: str | None,
    fingerprint: str | None,
    release: int | None,
    once: bool,
    folder: str,
) -> None:
    """Make the report of a release, and send it to both servers of an accepted plan.

    The items are spent when the report is made: before that both servers say that they take
    reports. From then on the report is in the record, and the same command sends on what is left.
    It ends with 0 once both servers have the report, or where a signal ended it and it says what is
    left; with 1 where it is to be run again, and with 2 where nothing is sent any more.
    """
    import asyncio

    from fedtally.agent.dumps import forbid_dumps
    from fedtally.errors import MissingExtraError

    try:
        from fedtally.campaign.transports.https import carry
        from fedtally.campaign.transports.https.reporting import Never
        from fedtally.campaign.transports.https.resource import release_path
    except ModuleNotFoundError:
        raise MissingExtraError("agent report needs httpx: pip install httpx") from None
    forbid_dumps()  # before a secret is read: a core dump would contain the secret
    servers, verify = carry.checked_servers(leader, helper), carry.tls(ca)
    reporter = _reporter(folder, fingerprint, release)
    fate = reporter.fate
    if fate is None:
        unsent, path = (
            _prepared(reporter),
            release_path(reporter.plan.fingerprint, reporter.release),
        )
        urls = {side: f"{url}{path}" for side, url in servers.items()}
        say = console.note
        ended = asyncio.run(carry.report(urls, verify, unsent, reporter.make, say, waits=not once))
        if isinstance(ended, carry.Left):
            _show_left(reporter, ended is carry.Left.LATER)
            return
        if isinstance(ended, Never):
            raise InvalidInputError(ended.why)
        fate = ended
    _show_fate(reporter, fate)


agent.add_section("Commands", init, accept, check, run, join, send_report, show, requirements)


# ---- what the commands share ----


def _settings(folder: str) -> Settings:
    from fedtally.agent.settings import Settings

    return Settings.load(folder)


def _files(plan: str, allow_list: str | None, signature: str | None) -> CampaignFiles:
    from fedtally.agent.accepted import CampaignFiles

    return CampaignFiles(
        Path(plan),
        None if allow_list is None else Path(allow_list),
        None if signature is None else Path(signature),
    )


def _over(settings: Settings, campaign: Campaign, record: ClientRecord, now: float) -> str | None:
    """Return why an accepted plan is over, in words for the owner; None: it is not over.

    The text also names the plan's folder. If the owner deletes this folder, the plan is not shown
    any more.
    """
    why = campaign.why_over(record, now)
    place = settings.campaigns / campaign.plan.fingerprint
    return why and f"{why} (delete {place} to hear no more of it)"


def _refusals(settings: Settings, campaign: Campaign, now: float) -> list[str]:
    """Return every reason, in words, why the agent would not take part now; [] if it would."""
    from fedtally.agent.agent import refusals

    return refusals(
        campaign,
        settings.policy,
        settings.items,
        settings.identity(),
        settings.open_record(),
        settings.once,
        now,
    )


def _end_revoked(settings: Settings, file: str, now: float) -> None:
    """End all plans that a revocation names, so that the agent takes part in none of them.

    A revocation is a file by which the registrar, who signs plans, ends some of them.

    Args:
        settings: the settings of the agent.
        file: the path of the revocation.
        now: the time, Unix seconds.

    Raises:
        InvalidInputError: the file cannot be read or is not signed by the registrar, or agent.toml
            names no registrar.
    """
    from fedtally.campaign.enrolment import check_revocation, load_revocation

    if settings.registrar is None:
        raise InvalidInputError(
            "agent.toml names no registrar, so nobody but you ends a plan: delete its folder below"
            f" {settings.campaigns}"
        )
    revocation = load_revocation(file)
    check_revocation(revocation, settings.registrar)
    _end(settings, revocation.revoked, now)


def _end(settings: Settings, plans: Sequence[str], now: float) -> None:
    """Write into the client's record that the registrar ended plans, and print a line for each.

    Args:
        settings: the settings of the agent, which name a registrar.
        plans: the fingerprints of the plans, 64 hexadecimal digits each.
        now: the time, Unix seconds.
    """
    assert settings.registrar is not None
    settings.open_record().end(settings.registrar, plans, int(now))
    for plan in plans:
        console.note(f"ended by the registrar: plan {plan}")


def _accept(
    settings: Settings,
    plan: str,
    now: float,
    *,
    allow_list: str | None,
    signature: str | None,
    fingerprint: str | None,
    until: str | None,
    yes: bool,
    by_consent: bool,
) -> None:
    """Print what a plan asks of the client, and accept the plan if the owner confirms.

    Earlier plans that the registrar replaces by this one end in any case, also if the owner does
    not accept it.

    Args:
        settings: the settings of the agent.
        plan: the path of the plan.
        now: the time, Unix seconds.
        allow_list: the path of the list of clients; None: the plan comes without a list.
        signature: the path of the registrar's signature; None: the plan comes without a signature.
        fingerprint: the fingerprint that the plan must have, 64 digits; None: any fingerprint.
        until: the last day of the plan. None: the last day in the registrar's signature; if
            agent.toml names no registrar, 90 days from now.
        yes: True: the plan is accepted without asking the owner.
        by_consent: True: the plan is accepted only if the owner's standing consent ([consent] in
            agent.toml) covers it, and the owner is not asked.

    Raises:
        InvalidInputError: a file or `until` is not valid, the plan has another fingerprint, or the
            owner does not confirm. Or there are reasons to refuse the plan, which are printed: the
            agent would not take part, or the consent that `by_consent` demands does not cover it.
    """
    from fedtally.campaign.enrolment import day_of

    last_day = parse_day(until, now)
    if last_day is None and settings.registrar is None:
        last_day = default_day(now)
    files = _files(plan, allow_list, signature)
    campaign = dataclasses.replace(files, until=last_day).load(settings.registrar)
    check_fingerprint(fingerprint, campaign.plan)
    known = settings.accepted()
    show_asked(settings, campaign, known.latest())
    if campaign.signature is not None:
        # The registrar has ended the plans that this plan replaces. They end here even if the owner
        # does not accept this plan.
        _end(settings, campaign.signature.authority.replaces, now)
    record = settings.open_record()
    over = campaign.why_unacceptable(record, now)
    reasons = [over] if over else _refusals(settings, campaign, now)
    if by_consent:
        reasons += _outside_of_consent(settings, campaign, record)
    _raise_refusals(reasons)
    if by_consent:
        campaign = dataclasses.replace(campaign, by_consent=day_of(now))
    elif not yes:
        _confirm()
    known.accept(campaign, record, now)
    console.note(f"accepted {campaign.plan.fingerprint}, until {campaign.last_day} (UTC)")


def _outside_of_consent(settings: Settings, campaign: Campaign, record: ClientRecord) -> list[str]:
    """Return every reason, in words, why the standing consent does not cover a plan.

    The standing consent is what the owner accepts without being asked, [consent] in agent.toml. The
    list is empty if the consent covers the plan.
    """
    from fedtally.agent.consent import why_known

    if settings.consent is None:
        return ["agent.toml has no [consent], so every plan needs its owner"]
    known = why_known(campaign, settings.accepted(), record)
    return [*settings.consent.refusals(campaign, settings.policy), *([known] if known else [])]


def _raise_refusals(reasons: list[str]) -> None:
    """Print each reason to refuse a plan, and raise an error if there is one.

    Raises:
        InvalidInputError: `reasons` is not empty.
    """
    for reason in reasons:
        console.note(f"refused: {reason}")
    if reasons:
        number = in_number(len(reasons), "one reason", "{} reasons")
        raise InvalidInputError(
            f"refused for {number}, printed above: ask for another plan, or change agent.toml"
        )


def _confirm() -> None:
    if not is_attended():
        raise InvalidInputError(
            "nobody is there to be asked: read what is printed above, and accept with --yes"
        )
    confirm("Accept this plan?", "not accepted: nothing was changed")


def _note_of_rounds(plan: Plan) -> None:
    """Print the epsilon of any N rounds in a row and the epsilon of all rounds of a plan.

    Nothing is printed if the plan does not limit how often a client takes part in N rounds in a
    row.
    """
    from fedtally.privacy.accounting import rounded_up

    if (terms := plan.privacy) is None or terms.event.per_rounds is None:
        return
    console.note(
        f"plan {plan.fingerprint[:DIGITS]}: epsilon {rounded_up(terms.promised.epsilon):g} in"
        f" {in_a_row(terms.event.per_rounds, plan.rounds_noun)}, and epsilon"
        f" {rounded_up(terms.guarantee.epsilon):g} in all {plan.num_rounds:,}"
    )


def _note_of_no_registrar() -> None:
    from fedtally.agent.settings import NO_REGISTRAR

    console.note(f"note: {NO_REGISTRAR}")


# ---- report ----


def _reporter(folder: str, fingerprint: str | None, release: int | None) -> Reporter:
    """Return the object that makes this client's report for one release of a plan.

    Args:
        folder: the folder of the agent's settings.
        fingerprint: the fingerprint of an accepted plan. None: the only accepted plan that is not
            over; if all are over, the only accepted plan.
        release: the number of the release; None: the only release of the plan, or the one that its
            calendar has open now.

    A report of another release or plan that is still to be sent is named on stderr.

    Raises:
        InvalidInputError: the plan or the release does not exist; or `fingerprint` or `release` is
            None, and several plans or releases fit, or no release is open; or this user may not
            write the agent's record.
    """
    import secrets
    import time

    from fedtally.agent.reporter import (
        Reporter,
        campaign_to_report,
        left_over,
        release_to_report,
    )

    settings, now = _settings(folder), time.time()
    settings.check_user()
    settings.check_writable()
    record = settings.open_record()
    accepted = settings.accepted()
    campaign = campaign_to_report(accepted, record, fingerprint, now)
    number = release_to_report(campaign.plan, release, now)
    for note in left_over(accepted, record, campaign.plan, number):
        console.note(note)
    return Reporter(
        settings.policy,
        settings.items,
        campaign,
        number,
        record,
        settings.identity(),
        secrets.token_bytes,
        now,
        console.note,
        settings.once,
    )


def _prepared(reporter: Reporter) -> Unsent | None:
    """Return the report that is not sent yet; if there is no such report, read the items.

    Returns:
        The report, from the client's record; None: a new report must be made, from the items that
        the reporter has now read.

    Raises:
        InvalidInputError: a new report may not be made, and the reasons are printed; or an item
            cannot be read, and the plan has no privacy.
    """
    from fedtally.agent.reporter import in_servers

    if (unsent := reporter.unsent) is not None:
        console.note(f"goes on: the report is still to be sent to {in_servers(unsent)}")
        return unsent
    _raise_refusals(list(reporter.refusals(reporter.now)))
    reporter.read()
    return None


def _show_left(reporter: Reporter, is_later: bool) -> None:
    """Tell the user what is left to do for a report that is not yet known to be counted.

    Args:
        reporter: the object that makes the report.
        is_later: True: a server did not take the report yet, and an error says what is left. False:
            the user stopped the command, and a printed line says what is left.

    Raises:
        UnsentError: `is_later` is True.
    """
    from fedtally.agent.reporter import in_servers

    unsent = reporter.unsent
    left = (
        "nothing was spent"
        if unsent is None
        else f"the report is in the record, still to be sent to {in_servers(unsent)}"
    )
    if is_later:
        raise UnsentError(f"a server did not answer, and {left}: run the same command again")
    console.note(f"stopped: {left}")


def _show_fate(reporter: Reporter, fate: Fate) -> None:
    """Print that both servers accepted a report; if `fate` says something else, raise an error.

    Raises:
        InvalidInputError: `fate` is not `ACCEPTED`.
    """
    from fedtally.store import Fate

    said = f"release {reporter.release}: {fate.value}"
    if fate is not Fate.ACCEPTED:
        raise InvalidInputError(f"{said}; take part in the next release, if there is one")
    console.note(said)


# ---- run ----


async def _serve(settings: Settings, guard: Agent, log: Log) -> None:
    import asyncio
    import signal

    from fedtally.agent.agent import Note, in_words
    from fedtally.agent.serve import serve

    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    # For errors of the event loop itself, for example too many open files. Otherwise asyncio would
    # write a traceback each time, without a limit.
    def note(_: Any, found: dict[str, Any]) -> None:
        error = found.get("exception")
        log(Note(f"{found['message']}{f': {in_words(error)}' if error else ''}"))

    loop.set_exception_handler(note)
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, ended.set)
    served = await serve(guard, settings.socket, peers=settings.peers, log=log)
    try:
        log(Note(f"listening on {settings.socket}"))
        await ended.wait()
    finally:
        await served.stop()
        log.close()
        log(Note("stopped"))


def _logger(as_json: bool) -> Log:
    """Return a log that prints notes on stderr, at most 20 an hour with the same reason.

    Args:
        as_json: whether each note is a line of JSON.
    """
    import json

    from fedtally.agent.log import Log

    def write(note: Note, left_out: int) -> None:
        if as_json:
            console.note(json.dumps({**note._asdict(), "left_out": left_out}))
        else:
            more = f" (and {left_out:,} more like it, which were left out)" if left_out else ""
            console.note(f"{note}{more}")

    return Log(write)
