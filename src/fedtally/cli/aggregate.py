"""`fedtally aggregate`: the leader and the helper, the two servers that sum one plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console
from fedtally.cli.campaign_nginx import front_options, give
from fedtally.cli.help import Command, Decorator, Group, option, options
from fedtally.cli.shared import (
    check_ledger,
    json_option,
    origin_option,
    read_time,
    shared,
    would_run,
)
from fedtally.errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from fedtally.campaign.aggregate_folder import AggregateFolder
    from fedtally.campaign.closings import Schedule
    from fedtally.secagg.two_server import Side

_folder = click.argument("name", metavar="NAME", type=click.Path(path_type=Path))
_HELPS: dict[str, Any] = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
# The seconds in which a closing release still accepts reports that clients have begun. A copy of
# `campaign.closings.GRACE`; a test compares the two.
GRACE = 900
_OTHER = {"leader": "helper", "helper": "leader"}
_NEEDS = "httpx", "prometheus_client", "starlette", "uvicorn", "uvloop"


@click.group(
    cls=Group, short_help="Run one of two servers that sum.", context_settings=dict(_HELPS)
)
def aggregate() -> None:
    """One of the two servers that sum a plan of --secure-sum two-server.

    Two operators who do not collude run one server each: the leader gets the answer, and the
    helper lets it open nothing but sums. NAME is the folder of a server, which may be killed at any
    time: run goes on where it was.
    """


def _file(name: str, text: str) -> Decorator:
    return option(
        "Files",
        f"--{name}",
        required=True,
        is_often=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help=text,
    )


_validity = option(
    "Policy",
    "--validity",
    type=click.Choice(["none", "proofs"]),
    default="none",
    help="Refuse reports without proofs, by proofs [none]",
)


def _init_options(side: Side) -> Decorator:
    other = _OTHER[side]
    return options(
        _folder,
        shared(f"aggregate {side} init"),
        _file("key", f"Use the {side}'s private key, of fedtally keys new {side}"),
        _file("allow-list", "Copy the list of registered clients, which the plan names"),
        _file("mark", "Keep marks outside NAME and its backups: they reveal old copies"),
        _file("certificate", f"Show this certificate to the {other}"),
        _file("certificate-key", "Use this private key of the certificate"),
        _file("other-certificate", f"Trust this certificate of the {other}, and no other"),
        option(
            "Policy",
            "--min-honest",
            type=int,
            default=2,
            metavar="N",
            help="Refuse a plan whose sums have fewer honest clients [2]",
        ),
        option(
            "Policy",
            "--corrupt",
            type=int,
            default=0,
            metavar="C",
            help="Refuse a plan that allows for fewer corrupt clients [0]",
        ),
        _validity,
        origin_option,
        json_option,
    )


@click.command(
    name="init",
    cls=Command,
    short_help="Make the folder of a leader.",
    examples=[
        (
            "your plan with its keys; tls.* are yours, helper.crt is the other operator's",
            (
                "fedtally aggregate leader init survey --plan plan.toml --key leader.key"
                " --allow-list clients.allow --mark /var/lib/marks/survey --certificate tls.crt"
                " --certificate-key tls.key --other-certificate helper.crt"
                " --helper https://helper.example:8443"
            ),
        )
    ],
)
@_init_options("leader")
@option(
    "Files",
    "--helper",
    required=True,
    is_often=True,
    metavar="URL",
    help="Ask the helper at https://HOST:PORT, where it listens for you",
)
@option(
    "Files",
    "--candidates",
    type=click.Path(),
    metavar="FILE",
    help="Copy the candidates, where the plan holds only their digest",
)
@option(
    "Closing",
    "--closes",
    is_often=True,
    metavar="TIME",
    help="Close every release at this time, as 2027-01-31T18:00Z [its calendar or close says]",
)
@option(
    "Closing",
    "--size",
    type=int,
    metavar="N",
    help="Close a release at N reports [when it is full]",
)
@option(
    "Closing",
    "--grace",
    type=int,
    default=GRACE,
    metavar="S",
    help=f"Let reports on their way come for S seconds after that [{GRACE}]",
)
def init_leader(
    name: Path, as_json: bool, closes: str | None, size: int | None, grace: int, **given: Any
) -> None:
    """Make the folder NAME of a leader. Nothing is asked of anybody yet: that is run."""
    _check_extra()
    from fedtally.base import validate
    from fedtally.campaign.closings import Closing, Schedule, of_calendar
    from fedtally.campaign.transports.https.pinned import checked_helper
    from fedtally.plan import Plan

    given["helper"] = checked_helper(given["helper"])
    at = None if closes is None else _time(closes)
    plan = Plan.load(given["plan"])
    if size is not None:  # --size must be between the least and the most reports of a release
        plan.summing.of_servers()
        validate.integer(plan.summing.least_clients, plan.summing.most_clients, size=size)
    releases = of_calendar(plan) if at is None else (Closing(at),) * len(plan.releases)
    schedule = Schedule(releases, size, grace)
    _init("leader", name, as_json, schedule=schedule, **given)


def _time(text: str) -> int:
    """Read a time in the future from a text, and return it as Unix seconds.

    Raises:
        InvalidInputError: the text is no time, has no time zone, or the time is not in the future.
    """
    import time

    found = read_time(text)
    # A time in the past is a mistake: the release would close as soon as it has the least number of
    # reports.
    if found <= time.time():
        raise InvalidInputError(
            f"{text!r} is over: give a time that is to come; fedtally aggregate leader close"
            " closes now, without a time"
        )
    return found


@click.command(
    name="init",
    cls=Command,
    short_help="Make the folder of a helper.",
    examples=[
        (
            "your plan with its keys; tls.* are yours, leader.crt is the other operator's",
            (
                "fedtally aggregate helper init survey --plan plan.toml --key helper.key"
                " --allow-list clients.allow --mark /var/lib/marks/survey --certificate tls.crt"
                " --certificate-key tls.key --other-certificate leader.crt"
            ),
        )
    ],
)
@_init_options("helper")
def init_helper(name: Path, as_json: bool, **given: Any) -> None:
    """Make the folder NAME of a helper. Nothing is asked of anybody yet: that is run."""
    _check_extra()
    _init("helper", name, as_json, **given)


def _init(
    side: Side,
    name: Path,
    as_json: bool,
    *,
    plan: str,
    allow_list: Path,
    min_honest: int,
    corrupt: int,
    validity: str,
    candidates: str | None = None,
    schedule: Schedule | None = None,
    **files: Any,
) -> None:
    from fedtally.campaign.aggregate_folder import AggregateFolder, Settings
    from fedtally.campaign.places import cautions
    from fedtally.campaign.transports.https.pinned import Certificates
    from fedtally.secagg.two_server import BatchPolicy

    policy = BatchPolicy(min_honest=min_honest, corrupt=corrupt, validity=validity)
    settings = Settings(policy=policy, **files)
    Certificates(
        settings.certificate, settings.certificate_key, settings.other_certificate
    ).of_listener()
    made = AggregateFolder.create(
        name,
        side,
        plan=plan,
        allow_list=allow_list,
        settings=settings,
        candidates=candidates,
        schedule=schedule,
    )
    peer = " --leader-listen ..." if side == "helper" else ""
    console.note(
        f"made {name}: next: fedtally aggregate {side} run {name} --listen ...{peer}", as_json
    )
    console.note_cautions(cautions(made.settings.ledger, made.plan), as_json)
    if as_json:
        console.show_json(
            {
                "schema": "fedtally-aggregate-made/1",
                "folder": str(name),
                "side": side,
                "fingerprint": made.plan.fingerprint,
            }
        )
    else:
        console.show_hex(made.plan.fingerprint, "the fingerprint of the plan")


_listen = option(
    "Run",
    "--listen",
    required=True,
    metavar="ADDRESS",
    help="Listen for clients on unix:PATH behind nginx, or on 127.0.0.1:PORT",
)
_run_options = options(
    _folder,
    _listen,
    option(
        "Run",
        "--operate",
        metavar="ADDRESS",
        help="Show health and metrics on this address [nowhere]",
    ),
    option(
        "Run",
        "--log",
        type=click.Choice(["off", "info"]),
        default="off",
        help="Write JSON lines, which name nobody, on stderr, by info [off]",
    ),
    option(
        "Run",
        "--leave-out-lost",
        "leaves_out",
        is_flag=True,
        help="Leave reports out that the disk has lost or changed",
    ),
)


@click.command(
    name="run",
    cls=Command,
    short_help="Take reports, close releases, get the answer.",
    examples=[
        (
            "behind your nginx, which reaches the socket",
            (
                "fedtally aggregate leader run survey"
                " --listen unix:/run/fedtally/survey.aggregate.sock"
            ),
        )
    ],
)
@_run_options
def run_leader(name: Path, **given: Any) -> None:
    """Run the leader NAME until SIGTERM: begin, or go on after a stop or a crash."""
    _run("leader", name, **given)


@click.command(
    name="run",
    cls=Command,
    short_help="Take reports, and answer the leader.",
    examples=[
        (
            "behind your nginx, which reaches the socket",
            (
                "fedtally aggregate helper run survey"
                " --listen unix:/run/fedtally/survey.aggregate.sock --leader-listen 0.0.0.0:8443"
            ),
        )
    ],
)
@_run_options
@option(
    "Run",
    "--leader-listen",
    "leader",
    required=True,
    metavar="ADDRESS:PORT",
    help="Listen for the leader here, by TLS with both certificates pinned",
)
def run_helper(name: Path, **given: Any) -> None:
    """Run the helper NAME until SIGTERM: begin, or go on after a stop or a crash."""
    _run("helper", name, **given)


def _run(
    side: Side,
    name: Path,
    listen: str,
    operate: str | None,
    log: str,
    leaves_out: bool,
    leader: str | None = None,
) -> None:
    _check_extra()
    from fedtally.campaign.transports.https.aggregating import Places, Process
    from fedtally.campaign.transports.https.listen import Address
    from fedtally.campaign.transports.https.pinned import PeerAddress

    peer = None if leader is None else PeerAddress.parse(leader)
    shown = None if operate is None else Address.parse(operate)
    places = Places(Address.parse(listen), peer, shown, log)
    Process(_opened(name, side), places, console.note, console.command_line(), leaves_out).run()


def _release_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidInputError(
            f"--release must be the number of a release, or all, got {text!r}"
        ) from None


@click.command(
    cls=Command,
    short_help="Close releases.",
    examples=[
        ("your leader survey, now", "fedtally aggregate leader close survey"),
        (
            "your leader survey, at a time that can change until then",
            "fedtally aggregate leader close survey --at 2027-01-31T18:00Z",
        ),
    ],
)
@_folder
@option("Closing", "--at", metavar="TIME", help="Close at this time, with its zone [now]")
@option(
    "Closing",
    "--release",
    metavar="N|all",
    help="Close this release of the plan, or all [the only open one]",
)
@json_option
def close(name: Path, at: str | None, release: str | None, as_json: bool) -> None:
    """Close releases of NAME: nobody begins a report, and after a grace the sum is opened.

    The process that runs NAME does it. A release closes once it has the fewest reports of a sum.
    Once it is closing, its time cannot be changed.
    """
    import time

    from fedtally.campaign.closings import Closings
    from fedtally.plan.silos import in_ranges

    folder = _opened(name, "leader")
    closings, when = Closings(folder.path), int(time.time()) if at is None else _time(at)
    known = closings.read().releases
    chosen = range(len(known)) if release in (None, "all") else [_release_number(release)]
    changed = [
        number for number in chosen if not 0 <= number < len(known) or known[number].since is None
    ]
    if not changed:
        raise InvalidInputError(
            f"{name} is closing already, or is over: fedtally aggregate leader status {name}"
        )
    if release is None and len(changed) > 1:
        raise InvalidInputError(
            f"{name} has {len(changed)} open releases ({in_ranges(changed)}): name one with"
            " --release N, or close them all with --release all"
        )
    for number in changed:
        closings.change(number, at=when)
    if as_json:
        console.show_json({"schema": "fedtally-closing/1", "releases": changed, "at": when})
    runs = "" if folder.runner() else f"; next: fedtally aggregate leader run {name} --listen ..."
    what = "the release" if len(changed) == 1 else f"{len(changed)} releases"
    least = folder.plan.summing.least_clients
    now = f" now, or once there are {least:,} reports" * (at is None)
    console.note(f"{what} of {name} will close{now}{runs}", as_json)


@click.command(
    cls=Command,
    short_help="Show the answer, or save it.",
    examples=[
        ("look at the answer of your leader survey", "fedtally aggregate leader result survey"),
        (
            "ask it for more: tea is an item of yours",
            "fedtally aggregate leader result survey -o r.fed && fedtally query r.fed tea",
        ),
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
@shared("aggregate leader result")
@json_option
def result(
    name: Path,
    output: str | None,
    top: int,
    details: bool,
    window: str,
    history: int,
    as_json: bool,
) -> None:
    """Show the most frequent items of NAME, of all releases that have landed."""
    from fedtally.answer.result import Result
    from fedtally.campaign.aggregate_folder import RESULT
    from fedtally.cli import campaign_view

    folder = _opened(name, "leader")
    console.check_files([output], folder.settings.files(), folder.path)
    if not (name / RESULT).exists():
        raise InvalidInputError(
            f"{name} has no answer yet: fedtally aggregate leader status {name} says why"
        )
    found = Result.load(name / RESULT)
    shown = campaign_view.windowed(found, window, history)
    if output:
        campaign_view.write_output(found, shown, output, as_json)
    campaign_view.show_result(shown, top, as_json, details)


# ---- the commands that both servers have ----


def _status(side: Side) -> click.Command:
    @click.command(name="status", cls=Command, short_help="Show how far it is.")
    @_folder
    @json_option
    def status(name: Path, as_json: bool) -> int:
        """Show the releases of NAME, and what closes them. It disturbs no process that runs it.

        The exit code is 2 if run would be refused: a database is lost, or this version cannot read
        the databases or the ledger of NAME. It is 1 if the ledger does not answer.
        """
        from fedtally.cli import aggregate_view as view

        folder = _opened(name, side)
        document = view.status(folder)
        if as_json:
            console.show_json(document)
        else:
            view.show_status(document)
        # A retired folder takes no reports and is charged no more: it needs no database or ledger.
        if folder.is_retired:
            return 0
        kept = would_run(folder.check_kept, "run")
        return kept or check_ledger(folder.settings.ledger, "run")

    return status


def _nginx(side: Side) -> click.Command:
    @click.command(name="nginx", cls=Command, short_help="Print the conf of nginx.")
    @_folder
    @option(
        "Server",
        "--socket",
        required=True,
        type=click.Path(path_type=Path),
        metavar="PATH",
        help="Reach the process of NAME on this Unix socket",
    )
    @front_options
    def nginx(name: Path, socket: Path, **asked: Any) -> None:
        """Print a conf for nginx made from the plan of NAME.

        With --output it goes into /etc/nginx/conf.d/.
        """
        from fedtally.campaign.transports.https.proxy import Reports

        folder = _opened(name, side)
        made = Reports(
            name.absolute().name,
            side,
            folder.plan.fingerprint,
            socket.absolute(),
            folder.report_bytes,
        )
        give(made.conf, **asked)

    return nginx


def _retire(side: Side) -> click.Command:
    @click.command(name="retire", cls=Command, short_help="Destroy the key, at the end.")
    @_folder
    @option(
        "Run",
        "--give-up",
        is_flag=True,
        help="Give up the releases that are open: their reports are lost",
    )
    @json_option
    def retire(name: Path, give_up: bool, as_json: bool) -> None:
        """Destroy the key of NAME, once every release has landed: nobody reads a report then.

        A helper has heard from the leader that they have. End the process that runs NAME first.
        Afterwards run still tells clients that it is over.
        """
        import os

        folder = _opened(name, side)
        unread = folder.retire(os.getpid(), give_up=give_up)
        if as_json:
            document = {"schema": "fedtally-aggregate-retired/1", "folder": str(name)}
            console.show_json(document | {"unread": unread})
        console.note(f"destroyed {folder.settings.key}: backups of it must go, too", as_json)
        if unread:
            gone = " and ".join(unread)
            console.note(f"not looked at, being lost or damaged: {gone} of {name}", as_json)

    return retire


def _opened(name: Path, side: Side) -> AggregateFolder:
    from fedtally.campaign.aggregate_folder import AggregateFolder

    return AggregateFolder.open(name, side)


def _check_extra() -> None:
    from importlib.util import find_spec

    if any(find_spec(each) is None for each in _NEEDS):
        raise MissingExtraError("fedtally aggregate needs an extra: pip install 'fedtally[https]'")


@click.group(
    cls=Group, short_help="Run the server that gets the answer.", context_settings=dict(_HELPS)
)
def leader() -> None:
    """The server that gets clients' items, masked, and the answer."""


@click.group(
    cls=Group, short_help="Run the server that keeps the masks.", context_settings=dict(_HELPS)
)
def helper() -> None:
    """The server that gets the masks of clients, and answers one query a release."""


leader.add_section("Run", init_leader, run_leader, close)
leader.add_section("Clients over HTTPS", _nginx("leader"))
leader.add_section("Look", _status("leader"), result)
leader.add_section("End", _retire("leader"))
helper.add_section("Run", init_helper, run_helper)
helper.add_section("Clients over HTTPS", _nginx("helper"))
helper.add_section("Look", _status("helper"))
helper.add_section("End", _retire("helper"))
aggregate.add_section("Servers", leader, helper)
