"""`fedtally dap`: a task of DAP, its two servers, its collector, and a client to try it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fedtally.cli import console
from fedtally.cli.campaign_nginx import front_options, give
from fedtally.cli.help import Command, Decorator, Group, option, options
from fedtally.cli.shared import json_option, origin_option, read_time, shared
from fedtally.errors import InvalidInputError, MissingExtraError

if TYPE_CHECKING:
    from fedtally.campaign.dap_folder import DapFolder
    from fedtally.campaign.dap_noise import DapNoise
    from fedtally.dap import Collected, Task
    from fedtally.dap.draft18 import Role
    from fedtally.domain import Domain

Side = Literal["leader", "helper"]
LEAST_BATCH = 10  # a copy of the value in `campaign.dap_folder`; a test compares them
_DAY = 86_400
_MOST_DAYS = 1_000_000  # the longest task, about 2,700 years
_NEEDS = "Crypto", "httpx", "prometheus_client", "starlette", "uvicorn", "uvloop"
_HELPS: dict[str, Any] = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}
TASK, SECRET, TOKEN = "task.toml", "servers.secret", "collector.token"

_folder = click.argument("name", metavar="NAME", type=click.Path(path_type=Path))
_task = click.argument("task", metavar="TASK", type=click.Path(path_type=Path))
_ca = option(
    "Server", "--ca", type=click.Path(path_type=Path), metavar="FILE",
    help="Trust these certificates alone [the system's]",
)  # fmt: skip
_candidates = option(
    "Task", "--candidates", type=click.Path(), metavar="FILE",
    help="Read the candidates in this list, one a bucket or entry [numbers]",
)  # fmt: skip


@click.group(cls=Group, short_help="Speak DAP, the standard.", context_settings=dict(_HELPS))
def dap() -> None:
    """DAP, the standard of sums by two servers (draft 18): counts, histograms and vectors of sums.

    Clients of any maker report, also web pages, and no client has an identity. Two operators who do
    not work together run one server each. The collector alone gets the sums.
    """


# ---- the task ----


@click.command(
    cls=Command,
    short_help="Make a task.",
    examples=[
        (
            "count which of your answers visitors give; collector.key.pub is the collector's",
            (
                "fedtally dap task visits --vdaf histogram --candidates answers.txt"
                " --leader https://leader.example/ --helper https://helper.example/"
                " --collector collector.key.pub"
            ),
        ),
        (
            "count which of your 20 features visitors use",
            (
                "fedtally dap task features --vdaf sumvec --size 20"
                " --leader https://leader.example/ --helper https://helper.example/"
                " --collector collector.key.pub"
            ),
        ),
    ],
)
@_folder
@option(
    "Task", "--vdaf", required=True, is_often=True,
    type=click.Choice(["count", "histogram", "sumvec"]),
    help="Count clients, their buckets, or add vectors of numbers up",
)  # fmt: skip
@option("Task", "--size", type=int, is_often=True, metavar="N", help="Count N buckets or entries")
@option(
    "Task", "--candidates", is_often=True, type=click.Path(), metavar="FILE",
    help="Count the candidates in this list in place of --size",
)  # fmt: skip
@option(
    "Task", "--maximum", type=int, metavar="M",
    help="Allow entries of a vector of up to M [1]",
)  # fmt: skip
@option(
    "Task", "--chunk", type=int, metavar="C",
    help="Check C words at once in a proof [about the square root of all]",
)  # fmt: skip
@option(
    "Task", "--draft", type=click.Choice(["18", "9"]), default="18", metavar="18|9",
    help="Take reports of this draft; npm's client speaks 9 [18]",
)  # fmt: skip
@option(
    "Task", "--min-batch", type=int, default=100, is_often=True, metavar="N",
    help="Sum no fewer reports than N at once [100]",
)  # fmt: skip
@option(
    "Task", "--precision", type=int, default=3600, metavar="S",
    help="Hide times within S seconds, which is the shortest batch [3600]",
)  # fmt: skip
@option(
    "Task", "--days", type=int, default=30, is_often=True, metavar="N",
    help="Take reports for N days from now on [30]",
)  # fmt: skip
@option(
    "Parties", "--leader", required=True, is_often=True, metavar="URL",
    help="Name the address of the leader",
)  # fmt: skip
@option(
    "Parties", "--helper", required=True, is_often=True, metavar="URL",
    help="Name the address of the helper",
)  # fmt: skip
@option(
    "Parties", "--collector", required=True, is_often=True, metavar="HEX|FILE",
    help="Name the public key of who gets the sums",
)  # fmt: skip
@json_option
def task(
    name: Path,
    vdaf: str,
    size: int | None,
    candidates: str | None,
    maximum: int | None,
    chunk: int | None,
    draft: str,
    min_batch: int,
    precision: int,
    days: int,
    leader: str,
    helper: str,
    collector: str,
    as_json: bool,
) -> None:
    """Make the files of a task in the new folder NAME, and print what clients need.

    task.toml is public. servers.secret is for both servers alone: whoever has it can make wrong
    reports that pass. collector.token is for the collector alone: not for the helper.
    """
    _check_extra()
    import secrets

    from fedtally.base import validate
    from fedtally.campaign.dap_files import key_number, write_task
    from fedtally.campaign.key_files import read_public_key
    from fedtally.crypto.keys import Secret
    from fedtally.dap import Task, TaskSecret
    from fedtally.dap.sealing import config
    from fedtally.dap.task import INFO_BYTES, token_digest

    validate.integer(2, min_batch=min_batch)  # the sum of a single report would be the report
    start, end = _days(days, precision)
    key = read_public_key(collector, "collector")
    made = Task.make(
        vdaf,
        _sizes(vdaf, size, candidates, maximum, chunk),
        info=secrets.token_bytes(INFO_BYTES),
        leader=leader,
        helper=helper,
        precision=precision,
        min_batch=min_batch,
        start=start,
        end=end,
        collector=config(key_number(key), key),
        draft=int(draft),
    )
    _check_served(made)
    token = secrets.token_urlsafe(32)
    secret = TaskSecret(made.id, Secret(secrets.token_bytes(32)), token_digest(token))
    write_task(name, {TASK: made.to_toml(), SECRET: secret.to_toml(), TOKEN: f"{token}\n"})
    console.note(
        f"made {name}: {TASK} is public; give {SECRET} to both servers alone, and {TOKEN} to the"
        " collector alone",
        as_json,
    )
    _show_task(made, as_json)


def _days(days: int, precision: int) -> tuple[int, int]:
    """Return the start and the end of a task that begins now, in Unix seconds.

    Both are multiples of `precision`: the start is rounded down, and the length is rounded up.

    Args:
        days: the length of the task in days.
        precision: the unit of the task's times, in seconds.

    Raises:
        InvalidInputError: `days` is not 1 to 1,000,000, or `precision` is less than 1.
    """
    import time

    from fedtally.base import validate

    validate.integer(1, precision=precision)
    start = int(time.time()) // precision * precision
    return start, start - (
        -validate.integer(1, _MOST_DAYS, days=days) * _DAY // precision
    ) * precision


def _sizes(
    vdaf: str, size: int | None, candidates: str | None, maximum: int | None, chunk: int | None
) -> dict[str, int]:
    """Return the sizes of a task's VDAF by name, in the form that `dap.Task.make` needs.

    The names are "buckets" and "chunk" for a histogram, and "entries", "maximum" and "chunk" for a
    sumvec. A count has no sizes.

    Args:
        vdaf: what a report adds to: "count", "sumvec" (a vector of sums) or "histogram".
        size: the number of buckets or entries; None: the number of candidates.
        candidates: the path of a list of candidates, one a bucket or entry; None: no list.
        maximum: for sumvec, the largest value of an entry; None: 1.
        chunk: how many values a proof checks at once; None: about the square root of all.

    Raises:
        InvalidInputError: an option is missing, out of range, or does not belong to this VDAF.
    """
    from math import isqrt

    from fedtally.base import validate

    if maximum is not None and vdaf != "sumvec":
        raise InvalidInputError("--maximum is of sumvec alone: leave it out")
    if vdaf == "count":
        if (size, candidates, chunk) != (None, None, None):
            raise InvalidInputError("a count has one size: leave --size and the like out")
        return {}
    if (size is None) == (candidates is None):
        raise InvalidInputError(f"{vdaf} needs --size N or --candidates FILE, one of them")
    if candidates is not None:
        size = _read(candidates).size
    assert size is not None
    validate.integer(1, size=size)
    most = 1 if maximum is None else validate.integer(1, 2**64 - 1, maximum=maximum)
    words = size * most.bit_length()
    chunk = isqrt(words) if chunk is None else chunk
    if vdaf == "histogram":
        return {"buckets": size, "chunk": chunk}
    return {"entries": size, "maximum": most, "chunk": chunk}


def _check_served(made: Task) -> None:
    """Refuse a task that fedtally's own servers could not serve.

    Raises:
        InvalidInputError: a server's URL is not safe (see `carry.safe_parts`), or a report is
            longer than an upload may be.
    """
    from fedtally.campaign.transports.https.dap_asking import check_address
    from fedtally.campaign.transports.https.resource import MOST_UPLOAD

    for url in (made.configuration.leader, made.configuration.helper):
        check_address(url.decode())
    size = made.prio3.share_bytes(0)  # the leader's share is by far the longest part of a report
    if size > MOST_UPLOAD:
        raise InvalidInputError(
            f"a report of this task would have {size:,} bytes, and a leader takes"
            f" {MOST_UPLOAD:,}: count fewer candidates, or smaller numbers"
        )


def _show_task(made: Task, as_json: bool) -> None:
    from fedtally.dap.task import to_text

    leader, id = made.configuration.leader.decode().rstrip("/"), to_text(made.id)
    upload = f"{leader}/tasks/{id}/reports"
    document = {
        "schema": "fedtally-dap-made/1",
        "id": id,
        "upload": upload,
        "leader": made.configuration.leader.decode(),
        "helper": made.configuration.helper.decode(),
        "vdaf": {"kind": made.vdaf} | made.sizes,
        "precision": made.configuration.precision,
        "min_batch": made.min_batch,
    }
    if as_json:
        console.show_json(document)
        return
    from fedtally.answer import tables
    from fedtally.dap.draft18 import DRAFT

    sizes = ", ".join(f"{name} {value:,}" for name, value in made.sizes.items())
    rows = [
        ("Task", id),
        ("Draft", "18" if made.draft == DRAFT else f"{made.draft:02} (reports)"),
        ("Measures", f"{made.vdaf}{sizes and f': {sizes}'}"),
        ("Reports go to", upload),
        ("Batches", f"at least {made.min_batch:,} reports, of {made.configuration.precision:,} s"),
    ]
    console.show(tables.facts(rows))


# ---- servers ----


def _init_options(side: Side) -> Decorator:
    return options(
        _folder,
        option(
            "Files", "--task", required=True, is_often=True,
            type=click.Path(path_type=Path), metavar="FILE",
            help="Copy the public file of the task",
        ),
        option(
            "Files", "--secret", required=True, is_often=True,
            type=click.Path(path_type=Path), metavar="FILE",
            help="Use the secret file that both servers have",
        ),
        option(
            "Files", "--key", "keys", required=True, is_often=True, multiple=True,
            type=click.Path(path_type=Path), metavar="FILE",
            help="Use this private key; older ones after the newest",
        ),
        option(
            "Files", "--mark", required=True, is_often=True,
            type=click.Path(path_type=Path), metavar="FILE",
            help="Keep a mark outside NAME and its backups: it reveals old copies",
        ),
        option(
            "Policy", "--min-batch", type=int, default=LEAST_BATCH, metavar="N",
            help=f"Refuse a task that sums fewer reports than N [{LEAST_BATCH}]",
        ),
        origin_option,
        shared(f"dap {side} init"),
        *([_ca] if side == "leader" else []),
        json_option,
    )  # fmt: skip


def _init_command(side: Side, text: str) -> click.Command:
    example = (
        "task.toml and servers.secret are of your task; make the key first",
        (
            f"fedtally keys new aggregator --output {side}.key && fedtally dap {side} init visits"
            f" --task task.toml --secret servers.secret --key {side}.key"
            " --mark /var/lib/marks/visits"
        ),
    )

    @click.command(
        name="init", cls=Command, short_help=f"Make the folder of a {side}.", examples=[example]
    )
    @_init_options(side)
    def init(name: Path, as_json: bool, **given: Any) -> None:
        _init(side, name, as_json, **given)

    init.help = text
    return init


def _init(
    side: Side,
    name: Path,
    as_json: bool,
    *,
    task: Path,
    min_batch: int,
    epsilon: float | None,
    delta: float,
    population: str,
    ledger: str | None,
    **given: Any,
) -> None:
    _check_extra()
    from fedtally.campaign.dap_folder import DapFolder, DapPolicy, DapSettings
    from fedtally.dap.task import to_text

    if (epsilon is None) != (ledger is None):
        raise InvalidInputError("--epsilon and --ledger go together: give both, or none")
    own = {"population": population} | ({} if ledger is None else {"ledger": ledger})
    noise = _noise_of(task, epsilon, delta, **own)
    settings = DapSettings(policy=DapPolicy(min_batch), noise=noise, **given)
    made = DapFolder.create(name, _role(side), task=task, settings=settings)
    key = made.task.collector.key.hex()  # the task's id does not cover the key: compare keys
    console.note(f"sums go to the key {key}: compare it with the collector's .pub file", as_json)
    console.note(f"made {name}: next: fedtally dap {side} run {name} --listen ...", as_json)
    if as_json:
        console.show_json(
            {
                "schema": "fedtally-dap-server-made/1",
                "folder": str(name),
                "role": side,
                "task": to_text(made.task.id),
            }
        )


def _noise_of(task: Path, epsilon: float | None, delta: float, **own: str) -> DapNoise | None:
    """Return the noise that a server must add so that a task has an (epsilon, delta) guarantee.

    Args:
        task: the path of the task.
        epsilon: the epsilon; None: no noise is wanted, and the result is None.
        delta: the delta.
        own: the fields of `DapNoise` that concern this operator: `population` and `ledger`.

    Raises:
        InvalidInputError: `epsilon` or `delta` is out of bounds, or the task sums vectors.
    """
    from fedtally.campaign.dap_files import load_task
    from fedtally.campaign.dap_noise import DapNoise

    if epsilon is None:
        return None
    return DapNoise.propose(load_task(task), epsilon=epsilon, delta=delta, **own)


def _run_command(side: Side, text: str) -> click.Command:
    example = (
        "behind your nginx, which reaches the socket",
        f"fedtally dap {side} run visits --listen unix:/run/fedtally/visits.sock",
    )

    @click.command(name="run", cls=Command, short_help=text, examples=[example])
    @_folder
    @option(
        "Run", "--listen", required=True, metavar="ADDRESS",
        help="Listen on unix:PATH behind nginx, or on 127.0.0.1:PORT",
    )  # fmt: skip
    @option(
        "Run", "--operate", metavar="ADDRESS",
        help="Show health and metrics on this address [nowhere]",
    )  # fmt: skip
    def run(name: Path, listen: str, operate: str | None) -> None:
        _check_extra()
        from fedtally.campaign.transports.https.dap_process import DapProcess
        from fedtally.campaign.transports.https.listen import Address

        shown = None if operate is None else Address.parse(operate)
        DapProcess(_opened(name, side), Address.parse(listen), shown, console.note).run()

    run.help = f"Run the {side} NAME until SIGTERM: begin, or go on after a stop or a crash."
    return run


def _nginx_command(side: Side) -> click.Command:
    @click.command(name="nginx", cls=Command, short_help="Print the conf of nginx.")
    @_folder
    @option(
        "Server", "--socket", required=True, type=click.Path(path_type=Path), metavar="PATH",
        help="Reach the process of NAME on this Unix socket",
    )  # fmt: skip
    @front_options
    def nginx(name: Path, socket: Path, **asked: Any) -> None:
        """Print a conf for nginx made from the task of NAME.

        With --output it goes into /etc/nginx/conf.d/.
        """
        _check_extra()
        from urllib.parse import urlsplit

        from fedtally.campaign.transports.https.proxy import DapBackend
        from fedtally.campaign.transports.https.resource import MOST_JOB, MOST_UPLOAD
        from fedtally.dap.task import to_text

        found = _opened(name, side).task
        of = found.configuration
        made = DapBackend(
            name.absolute().name,
            side,
            to_text(found.id),
            urlsplit((of.leader if side == "leader" else of.helper).decode()).path.rstrip("/"),
            socket.absolute(),
            MOST_UPLOAD if side == "leader" else MOST_JOB,
        )
        give(made.conf, **asked)

    return nginx


@click.group(cls=Group, short_help="Run the server that clients report to.",
             context_settings=dict(_HELPS))  # fmt: skip
def leader() -> None:
    """The server that takes reports, has them verified, and answers the collector."""


@click.group(cls=Group, short_help="Run the server that verifies with it.",
             context_settings=dict(_HELPS))  # fmt: skip
def helper() -> None:
    """The server that verifies reports with the leader, and gives its shares of the sums."""


leader.add_section(
    "Run",
    _init_command(
        "leader", "Make the folder NAME of a leader. Nothing is served yet: that is run."
    ),
    _run_command("leader", "Take reports, and answer the collector."),
)
leader.add_section("Clients over HTTPS", _nginx_command("leader"))
helper.add_section(
    "Run",
    _init_command(
        "helper", "Make the folder NAME of a helper. Nothing is served yet: that is run."
    ),
    _run_command("helper", "Verify reports, and answer the leader."),
)
helper.add_section("Clients over HTTPS", _nginx_command("helper"))


# ---- the collector, and a client ----


@click.command(
    cls=Command,
    short_help="Get the sums of an interval.",
    examples=[
        (
            "one day of your task, as a result that fedtally query reads",
            (
                "fedtally dap collect task.toml --key collector.key --token collector.token"
                " --from 2027-01-31T00:00Z --to 2027-02-01T00:00Z -o day.fed"
            ),
        )
    ],
)
@_task
@option(
    "Collector", "--key", required=True, is_often=True,
    type=click.Path(path_type=Path), metavar="FILE",
    help="Open the sums with this private key of the collector",
)  # fmt: skip
@option(
    "Collector", "--token", required=True, is_often=True,
    type=click.Path(path_type=Path), metavar="FILE",
    help="Show the leader the token in this file",
)  # fmt: skip
@option(
    "Collector", "--from", "start", required=True, is_often=True, metavar="TIME",
    help="Sum from this time on, with its zone, as 2027-01-31T18:00Z",
)  # fmt: skip
@option(
    "Collector", "--to", "end", required=True, is_often=True, metavar="TIME",
    help="Sum until before this time; its reports are closed afterwards",
)  # fmt: skip
@option(
    "Collector", "--wait", type=float, default=60.0, metavar="S",
    help="Wait S seconds for the answer [60]",
)  # fmt: skip
@shared("dap collect")
@_candidates
@option(
    "Files", "--output", "-o", type=click.Path(), metavar="FILE",
    help="Write a .csv or .parquet table, or save the sums",
)  # fmt: skip
@_ca
@json_option
def collect(
    task: Path,
    key: Path,
    token: Path,
    start: str,
    end: str,
    wait: float,
    epsilon: float | None,
    delta: float,
    candidates: str | None,
    output: str | None,
    ca: Path | None,
    as_json: bool,
) -> None:
    """Get the sums of TASK over an interval, which is a multiple of its precision.

    No time is summed twice: a later query must not overlap. The same query gets the same answer.
    """
    _check_extra()
    import asyncio

    from fedtally.base import validate
    from fedtally.campaign.dap_files import domain_of_task, load_task
    from fedtally.campaign.key_files import load_collector_key
    from fedtally.campaign.transports.https import dap_client
    from fedtally.campaign.transports.https.carry import client, read_token, tls

    console.check_files([output], [candidates, *map(str, filter(None, (task, key, token, ca)))])
    made, noise = load_task(task), _noise_of(task, epsilon, delta)
    given = None if candidates is None else _read(candidates)
    domain = None
    # A result that cannot be saved is an error here, before the query: a query closes the interval
    # for ever, so that its sums would be lost.
    if output or given is not None:
        domain = domain_of_task(made, given)
    shown, interval = read_token(token), (read_time(start), read_time(end))
    private, trusted = load_collector_key(key), tls(ca)
    validate.real(0.0, wait=wait)

    async def collected() -> Collected:
        async with client(trusted) as http:
            return await dap_client.collect(http, made, private, shown, interval, wait=wait)

    found = asyncio.run(collected())
    if output:
        from fedtally.campaign.dap_result import result_of
        from fedtally.cli.campaign_view import write_output

        assert domain is not None
        result = result_of(made, found, domain, console.command_line(), noise)
        write_output(result, result, output, as_json)
    _show_collected(found, domain, as_json)


def _show_collected(found: Collected, domain: Domain | None, as_json: bool) -> None:
    values = found.result if isinstance(found.result, list) else [found.result]
    if as_json:
        console.show_json(
            {
                "schema": "fedtally-dap-collected/1",
                "reports": found.count,
                "start": found.start,
                "end": found.end,
                "sums": values,
            }
        )
        return
    from fedtally.answer import tables
    from fedtally.base.text import in_number

    labels = range(len(values)) if domain is None else domain.labels(range(domain.size))
    heading = in_number(found.count, "The sums of 1 report", "The sums of {} reports")
    console.show(tables.heading(heading))
    console.show(
        tables.FittedTable(
            "item",
            names=[tables.printable(str(label)) for label in labels],
            after=[tables.Column("sum", [f"{value:,}" for value in values])],
        )
    )


@click.command(
    cls=Command,
    short_help="Report once, to try a task.",
    examples=[
        ("bucket 3 of your histogram", "fedtally dap report task.toml 3"),
        ("three entries of your vector of sums", "fedtally dap report task.toml 0,1,1"),
    ],
)
@_task
@click.argument("measurement", metavar="MEASUREMENT")
@_candidates
@_ca
@json_option
def report(
    task: Path, measurement: str, candidates: str | None, ca: Path | None, as_json: bool
) -> None:
    """Report MEASUREMENT to TASK: 0 or 1, a bucket, a candidate, or the entries of a vector.

    Each call is another report, and is counted.
    """
    _check_extra()
    import asyncio
    import secrets
    import time

    from fedtally.campaign.dap_files import load_task
    from fedtally.campaign.transports.https import dap_client
    from fedtally.campaign.transports.https.carry import client, tls

    made, trusted = load_task(task), tls(ca)
    value = _measurement(made, measurement, None if candidates is None else _read(candidates))

    async def reported() -> None:
        async with client(trusted) as http:
            await dap_client.report(http, made, value, now=time.time(), random=secrets.token_bytes)

    asyncio.run(reported())
    console.note("the leader has taken the report", as_json)
    if as_json:
        console.show_json({"schema": "fedtally-dap-reported/1", "taken": True})


def _measurement(made: Task, text: str, given: Domain | None) -> Any:
    """Return the measurement that a text means, in the form that `dap.make_report` needs.

    Args:
        made: the task.
        text: numbers or candidates, with commas between them for a sumvec.
        given: the list of candidates; None: the text has numbers.

    Returns:
        For a count an integer: the number of the text, or 1 with a list of candidates. For a
        histogram the number of the bucket. For a sumvec a list of integers: the numbers of the
        text, or with a list of candidates, 1 for each named candidate and 0 for each other
        candidate.

    Raises:
        InvalidInputError: with a list of candidates, a name is not in the list; without one, the
            text has something else than numbers of up to 30 digits.
    """
    from fedtally.campaign.dap_files import domain_of_task
    from fedtally.cli.shared import as_named

    names = text.split(",") if made.vdaf == "sumvec" else [text]
    if given is None:
        # Python reads no integer of more than 4,300 digits, and no task needs more than 20 digits.
        if not all(re.fullmatch("[0-9]{1,30}", name.strip()) for name in names):
            raise InvalidInputError(
                f"{text[:60]!r} is no number of up to 30 digits: give such numbers, or --candidates"
                " FILE to name items"
            )
        numbers = [int(name) for name in names]
        return numbers if made.vdaf == "sumvec" else numbers[0]
    domain = domain_of_task(made, given)
    found = domain.locate(as_named(domain, names)).tolist()
    if made.vdaf == "histogram":
        return found[0]
    if made.vdaf == "count":
        return 1
    return [int(place in found) for place in range(domain.size)]


dap.add_section("Task", task)
dap.add_section("Servers", leader, helper)
dap.add_section("Results", collect)
dap.add_section("Try", report)


def _opened(name: Path, side: Side) -> DapFolder:
    from fedtally.campaign.dap_folder import DapFolder

    return DapFolder.open(name, _role(side))


def _role(side: Side) -> Role:
    from fedtally.dap.draft18 import Role

    return Role[side.upper()]


def _read(candidates: str) -> Domain:
    from fedtally.sources.lists import read_candidates

    return read_candidates(candidates)


def _check_extra() -> None:
    from importlib.util import find_spec

    if any(find_spec(each) is None for each in _NEEDS):
        raise MissingExtraError(
            "fedtally dap needs two extras: pip install 'fedtally[https,prio3]'"
        )
