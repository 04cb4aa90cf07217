"""`fedtally plan`: from an error, bytes or epsilon to a plan, with its bill."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console
from fedtally.cli.keys import lacking, public_key_options, read_keys
from fedtally.cli.layout import Command, option, options
from fedtally.cli.options import (
    budget_options,
    delta_option,
    neighbours_option,
    population_option,
    positive,
    read_domain,
    round_options,
    run_options,
    target_options,
    trust_option,
    trust_options,
)
from fedtally.errors import InvalidInputError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fedtally.domain import Domain
    from fedtally.planner import Frequencies
    from fedtally.planner.bill import Bill
    from fedtally.planner.costs import Host
    from fedtally.planner.proposal import Proposal
    from fedtally.planner.request import CampaignSpec

_NO_PRIVACY = "none"
_HARDLY = 0.1  # a larger error that is worth a note where it saves bytes
_SAME = (
    "rows",
    "max_bytes",
    "schedule",
    "max_items",
    "recovery",
    "tau",
    "failure_probability",
    "secure_sum",
    "adversary",
    "max_dropout",
    "max_corrupt",
    "max_cohort",
    "delta",
    "trust",
    "neighbours",
    "population",
)

_plan_options = options(
    option(
        "Fleet",
        "--clients",
        type=positive,
        metavar="N",
        help="Clients of all rounds; each is in one, drawn.",
    ),
    option(
        "Fleet",
        "--domain-size",
        type=positive,
        metavar="D",
        help="Candidate items: the integers 1 to D.",
    ),
    option(
        "Fleet",
        "--domain",
        metavar="DOMAIN",
        help=(
            "Candidate items: a FILE, one a line, `range:A..B` or `grid:S..N,W..E,STEP`, instead of"
            " --domain-size."
        ),
    ),
    option(
        "Fleet",
        "--max-items",
        type=positive,
        metavar="K",
        help="The most items of a client (1).",
    ),
    option(
        "Fleet",
        "--like",
        metavar="WHAT",
        help=(
            "What frequencies are like: a synthetic population such as profile:gowalla-us or"
            " zipf:a=1.3, or a RESULT of --save (zipf:a=1.1)."
        ),
    ),
)
_privacy_options = options(
    option(
        "Privacy",
        "--epsilon",
        metavar="E",
        help="Differential privacy; none: without. With --tau and --max-bytes, the least is found.",
    ),
    delta_option,
    trust_option,
    neighbours_option,
    population_option,
    option(
        "Privacy",
        "--not-private",
        is_flag=True,
        help="Allow --like RESULT of a campaign that was not private.",
    ),
)


@click.command(
    cls=Command,
    short_help="From an error, bytes or epsilon to a plan, with its bill.",
    examples=[
        (
            "the fewest bytes for a largest error of 0.1 %",
            "fedtally plan --clients 1000000 --domain-size 100000 --tau 0.001",
        ),
        (
            "the smallest error for 8 kB at epsilon 1, ten rounds",
            (
                "fedtally plan --clients 1000000 --domain-size 100000 --max-bytes 8kB --epsilon 1"
                " --rounds 10"
            ),
        ),
        (
            "the least epsilon for both",
            "fedtally plan --clients 1000000 --domain-size 100000 --tau 0.001 --max-bytes 8kB",
        ),
        (
            "secure aggregation, frequencies like those of check-ins",
            (
                "fedtally plan --clients 500000 --like profile:gowalla-us --tau 0.001 --secure-sum"
                " secagg -o plan.toml"
            ),
        ),
        ("does it meet its target?", "fedtally simulate --plan plan.toml profile:gowalla-us"),
        ("CPU of this very machine", "fedtally plan --calibrate"),
    ],
)
@_plan_options
@target_options
@budget_options
@round_options
@option(
    "Answer",
    "--recovery",
    type=click.Choice(["auto", "joint", "median"]),
    default="auto",
    help="How sums will be decoded (auto: joint from 3 rows on, up to 2^28 candidates).",
)
@trust_options
@_privacy_options
@public_key_options
@option(
    "Files",
    "--output",
    "-o",
    type=click.Path(),
    metavar="FILE",
    help="Write the plan: .toml or .json.",
)
@option(
    "Files",
    "--plot",
    type=click.Path(),
    metavar="FILE",
    help="Chart of error against bytes (extra `plot`).",
)
@option(
    "Run",
    "--calibrate",
    is_flag=True,
    help="Measure what CPU the protocol takes on this machine, and keep it.",
)
@run_options
def plan(**options: Any) -> None:
    """Make a plan before any client is touched: what is asked for, what it takes, and what it costs.

    Give two of --tau, --max-bytes and --epsilon: the third is found. With --tau alone, or
    --max-bytes alone, there is no differential privacy. What cannot be had ends in an error that
    names the smallest change with which it can.

    A plan with a secure sum is written without keys, to be simulated, unless --server-key or
    --helper-key is given: `fedtally keys` makes keys, and adds them later too.
    """
    from fedtally.engines.local.campaign import campaign_seed
    from fedtally.planner.proposal import propose
    from fedtally.secagg.config import check_keys
    from fedtally.secagg.params import Adversary
    from fedtally.studies import calibration

    _check_outputs(options)
    host: Host | None
    if options["calibrate"]:
        host = calibration.calibrate()
        calibration.save(host)
        console.note(f"wrote {calibration.default_path()}: {_compared(host)}", options["quiet"])
        if options["clients"] is None:
            return
    else:
        host = calibration.load()
    if options["clients"] is None:
        raise InvalidInputError(
            "--clients is missing: how many clients are there, of all rounds together?"
        )
    spec, find_epsilon = _spec(options)
    keys = read_keys(options)
    check_keys(spec.summation.method, Adversary.parse(spec.summation.adversary), keys)
    distribution, about, size = _distribution(options, spec.is_private)
    domain = _domain(options, size)
    distribution = _over(distribution, domain.size, spec.max_items)
    proposal = propose(
        spec,
        domain,
        options["clients"],
        distribution,
        seed=campaign_seed(options["seed"]),
        find_epsilon=find_epsilon,
    )
    proposal = replace(proposal, plan=proposal.plan.with_keys(**keys, may_lack=True))
    _write_files(proposal, options)
    if options["as_json"]:
        console.show_json(_document(proposal, host, about))
    else:
        console.show(_view(proposal, host, about))


def _compared(host: Host) -> str:
    """Say how fast a host is, beside the one that is taken where none was measured."""
    from statistics import median

    from fedtally.planner.costs import OPERATIONS, REFERENCE

    ratios = [host.seconds[name] / REFERENCE.seconds[name] for name in OPERATIONS]
    return (
        f"what CPU {len(ratios)} operations of the protocol take here, {median(ratios):.2g} times"
        f" that of the machine assumed so far ({min(ratios):.2g} to {max(ratios):.2g})"
    )


def _check_outputs(options: dict[str, Any]) -> None:
    console.check_files([options["output"], options["plot"]], [options["domain"], options["like"]])
    if options["output"] and not options["output"].endswith((".toml", ".json")):
        raise InvalidInputError(f"--output {options['output']} must end in .toml or .json")
    if options["plot"]:
        from fedtally import charts

        charts.check(options["plot"])


def _spec(options: dict[str, Any]) -> tuple[CampaignSpec, bool]:
    """Return what is asked, resolved, and whether epsilon is to be found."""
    from fedtally.planner.request import Request

    epsilon = options["epsilon"]
    number = None
    if epsilon not in (None, _NO_PRIVACY):
        try:
            number = float(epsilon)
        except ValueError:
            raise InvalidInputError(
                f"--epsilon must be a number or {_NO_PRIVACY}, got {epsilon!r}"
            ) from None
    find = epsilon is None and options["tau"] is not None and options["max_bytes"] is not None
    asked = {name: options[name] for name in _SAME}
    if find:  # with any epsilon, which is replaced by the least
        number = 1.0
    if options["neighbours"] == "add-remove":
        asked["max_clients"] = options["clients"]
    request = Request(**asked, num_rounds=options["rounds"] or 1, epsilon=number)
    return request.resolve(not_private=options["not_private"]), find


def _domain(options: dict[str, Any], size: int | None) -> Domain:
    """Return the candidates: declared, or as many as are like what is named."""
    from fedtally.domain import IntegerRange

    declared = read_domain(options["domain"])
    if declared is not None:
        if options["domain_size"] is not None or isinstance(declared, str):
            raise InvalidInputError(
                "give --domain (a FILE, range:A..B or grid:...) or --domain-size, one of them"
            )
        return declared
    number = options["domain_size"] or size
    if number is None:
        raise InvalidInputError(
            "--domain-size is missing: how many candidate items are there? Or name --domain"
        )
    return IntegerRange(1, number)


def _over(distribution: Frequencies | None, size: int, max_items: int) -> Frequencies:
    """Return the distribution for so many candidates; where nothing is known, the one that is assumed."""
    from fedtally.planner import Frequencies

    if distribution is None:
        return Frequencies.assumed(size, max_items=max_items)
    held = round(float(distribution.numbers.sum()))
    if held > size:
        raise InvalidInputError(
            f"--like has {held:,} items, and there are {size:,} candidates: name more, or others"
        )
    return replace(distribution, domain_size=size)


def _distribution(
    options: dict[str, Any], is_private: bool
) -> tuple[Frequencies | None, str, int | None]:
    """Return what is known of the frequencies, in words too, and how many candidates that has."""
    like = options["like"]
    if like is None:
        return None, "assumed to fall like i^-1.1 (--like says otherwise)", None
    from fedtally.sources.synthetic import FAMILIES, Population

    if like.partition(":")[0] in FAMILIES:
        if (options["max_items"] or 1) > 1:
            raise InvalidInputError(
                f"--like {like} is of clients of one item each: with --max-items leave it out, or"
                " name a RESULT of such clients"
            )
        population = Population.parse(like)
        return _of_population(population), f"like {like}", population.size
    if not os.path.exists(like):
        raise InvalidInputError(
            f"--like {like}: there is no such file; give a RESULT of --save, or one of "
            f"{', '.join(f'{name}:' for name in FAMILIES)}"
        )
    return _of_result(like, is_private and not options["not_private"])


def _of_population(population: Any) -> Frequencies:
    import numpy as np

    from fedtally.planner import Frequencies

    weights = population.weight(np.arange(1.0, population.size + 1))
    return Frequencies.from_frequencies(weights / weights.sum(), population.size)


def _of_result(path: str, must_be_private: bool) -> tuple[Frequencies, str, int]:
    from fedtally.planner import Frequencies
    from fedtally.result import Result

    result = Result.load(path)
    terms = result.plan.privacy
    if must_be_private and (terms is None or terms.not_private):
        raise InvalidInputError(
            f"--like {path}: what chooses a private campaign must be public or noised, and this"
            " result is neither: take that of a private campaign, or mark the plan with"
            " --not-private"
        )
    variance = 0.0
    if terms is not None:
        variance = terms.largest_stddev(result.num_contributions // len(result.sketches)) ** 2
    distribution = Frequencies.from_pilot(
        result.sketches, result.domain, variance, max_items=result.plan.max_items
    )
    return distribution, f"like those of {path}, {result.num_clients:,} clients", result.domain.size


def _write_files(proposal: Proposal, options: dict[str, Any]) -> None:
    quiet = options["quiet"] or options["as_json"]
    path = options["output"]
    if path:
        proposal.plan.save(path)
        console.note(f"wrote {path}: try fedtally simulate --plan {path} SOURCE", quiet)
    if options["plot"]:
        _plot(proposal, options["plot"])
        console.note(f"wrote {options['plot']}: predicted error against bytes", quiet)


def _plot(proposal: Proposal, path: str) -> None:
    from fedtally import charts, report

    chosen, target = proposal.plan, proposal.target
    exact = "one-hot (exact)" if chosen.privacy is None else "one-hot"
    costs = {exact: float(chosen.one_hot_bytes_per_client)}
    title = (
        f"{report.counted(chosen.num_clients, 'client')} in"
        f" {report.counted(chosen.num_rounds, 'round')}, {target.recovery} recovery\npredicted,"
        f" exceeded in {100 * target.failure_probability:.3g} %"
    )
    mark = charts.Point(chosen.bytes_per_client, proposal.linf, proposal.linf, proposal.linf)
    name = f"the plan, {chosen.rows} x {chosen.width:,}"
    charts.error_against_bytes(
        {},
        costs,
        title=title,
        path=path,
        marked={name: mark},
        target=target.linf,
        predicted=proposal.curves(),
    )


def _document(proposal: Proposal, host: Host | None, about: str) -> dict[str, Any]:
    from fedtally import report

    chosen, target = proposal.plan, proposal.target
    worst, cost = proposal.minimax
    return {
        "schema": "fedtally-proposal/1",
        "plan": report.plan_fields(chosen),
        "missing_keys": list(chosen.missing_keys),
        "target": target.to_dict(),
        "found": proposal.found,
        "predicted_linf": proposal.linf,
        "frequencies": about,
        "message": proposal.size.message,
        "privacy": report.privacy_fields(chosen),
        "bill": proposal.bill(host).to_dict() | {"calibrated": host is not None},
        "neighbours": [
            {
                "rows": other.rows,
                "width": other.width,
                "bytes_per_client": other.bytes_per_client,
                "predicted_linf": e,
            }
            for other, e in proposal.neighbours
        ],
        "minimax": {"rows": worst.rows, "width": worst.width, "bytes_per_client": cost},
    }


def _view(proposal: Proposal, host: Host | None, about: str) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from fedtally import report

    chosen, target = proposal.plan, proposal.target
    bill = proposal.bill(host)
    sketch = f"{chosen.rows} rows x {chosen.width:,} counters of {chosen.modulus_bits} bits"
    linf = report.percent(target.linf, report.decimals([target.linf]))
    expected = report.percent(proposal.linf, report.decimals([proposal.linf]))
    chance = f"{100 * target.failure_probability:.3g} %"
    how = "at the least epsilon"
    if proposal.found != "epsilon":
        how = (
            "the fewest bytes for that"
            if proposal.found == "bytes"
            else "the smallest for these bytes"
        )
    rows: list[tuple[str, RenderableType]] = [
        (
            "Target",
            f"largest error of all frequencies {linf}, exceeded in at most {chance} of campaigns",
        ),
        ("", f"{how}; predicted {expected}, if frequencies are as below"),
        ("Frequencies", about),
        ("Upload", report.cost(chosen)),
        *_privacy(proposal, bill),
        *_secure_sum(proposal),
        ("Clients", f"{chosen.num_clients:,} in {report.counted(chosen.num_rounds, 'round')}"),
        ("Sketch", f"{sketch}, {chosen.schedule} schedule, {target.recovery} recovery"),
        ("Plan", chosen.fingerprint[:16]),
    ]
    notes = [("Note", Text(text, style="yellow")) for text in _notes(proposal, host)]
    title = (
        f"Plan for {chosen.num_clients:,} clients and"
        f" {report.counted(chosen.domain_size, 'candidate')}"
    )
    return Group(
        report.heading(title),
        Text(),
        report.facts([*rows, *notes]),
        Text(),
        report.heading("What it costs"),
        Text(),
        _stages(bill),
        Text(),
        report.heading("What other sizes cost"),
        Text(),
        _neighbours(proposal, host),
    )


def _privacy(proposal: Proposal, bill: Bill) -> list[tuple[str, str]]:
    """Return what the plan is for; where clients add noise, in every cohort."""
    from fedtally import report

    if bill.method == "ideal":
        return report.privacy_rows(proposal.plan)
    return report.privacy_rows(proposal.plan, {"method": bill.method, "cohorts": bill.sums})


def _secure_sum(proposal: Proposal) -> list[tuple[str, str]]:
    from fedtally.secagg.config import SecAggConfig

    agreed = proposal.plan.secure_sum
    if agreed is None:
        return [("Secure sum", "ideal: of a trusted server (--secure-sum names a protocol)")]
    if not isinstance(agreed, SecAggConfig):
        return [
            (
                "Secure sum",
                f"two servers that do not collude; at least {agreed.min_batch:,} clients in a sum",
            )
        ]
    p = agreed.parameters
    graph = p.graph(p.n_max)
    text = (
        f"secagg, {p.adversary}: cohorts of {p.n_min:,} to {p.n_max:,} clients, {graph.neighbours}"
        f" neighbours, up to {p.corrupt:,} corrupt, up to {p.max_dropout_ppm / 1e4:g} % may"
        " drop out"
    )
    return [("Secure sum", text)]


def _notes(proposal: Proposal, host: Host | None) -> list[str]:
    from fedtally.recovery.decoding import kind_of

    notes = [proposal.size.message] if proposal.size.message else []
    if text := lacking(proposal.plan):
        notes.append(text)
    if proposal.plan.bytes_per_client >= proposal.plan.one_hot_bytes_per_client:
        notes.append("a one-hot vector is no larger than this sketch, and has no collisions")
    least = min(kind_of(proposal.target.recovery).planned_rows)
    if proposal.plan.rows < least:
        notes.append(
            f"with fewer than {least} rows campaigns differ more than is predicted: check it"
            " against its target"
        )
    for other, error in proposal.neighbours:
        if other.width < proposal.plan.width and error <= (1 + _HARDLY) * proposal.linf:
            saved = 1 - other.bytes_per_client / proposal.plan.bytes_per_client
            notes.append(
                f"{other.rows} x {other.width:,} saves {saved:.0%} of the bytes: its error is"
                " hardly larger"
            )
    if host is None:
        notes.append("CPU is that of another machine: fedtally plan --calibrate measures this one")
    return notes


def _stages(bill: Bill) -> Table:
    from fedtally import report

    table = report.new_table()
    table.add_column("stage", style="bold", no_wrap=True)
    for name in ("a client\nsends", "\ngets", "\nCPU", "the server\ngets", "\nsends", "\nCPU"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for stage in bill.stages:
        table.add_row(
            stage.stage,
            _bytes(stage.upload_bytes),
            _bytes(stage.download_bytes),
            _seconds(stage.client_seconds),
            _bytes(stage.received_bytes),
            _bytes(stage.sent_bytes),
            _seconds(stage.server_seconds),
        )
    table.add_row("decoding", "", "", "", "", "", _seconds(bill.decoding_seconds))
    table.add_row(
        "together",
        _bytes(bill.upload_bytes),
        _bytes(bill.download_bytes),
        _seconds(bill.client_seconds),
        _bytes(bill.received_bytes),
        _bytes(bill.sent_bytes),
        _seconds(bill.server_seconds + bill.decoding_seconds),
        style="bold",
    )
    return table


def _neighbours(proposal: Proposal, host: Host | None) -> Table:
    from fedtally import report

    table = report.new_table()
    table.add_column("sketch", style="bold", no_wrap=True)
    for name in ("a client\nsends", "\nCPU", "the server\ngets", "\nCPU", "largest\nerror"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    listed = sorted(
        [(proposal.plan, proposal.linf), *proposal.neighbours], key=lambda pair: pair[0].width
    )
    digits = report.decimals([error for _, error in listed])
    for other, error in listed:
        mark = " (the plan)" if other is proposal.plan else ""
        cost = proposal.bill(host, other)
        table.add_row(
            f"{other.rows} x {other.width:,}{mark}",
            report.size(cost.upload_bytes),
            _seconds(cost.client_seconds),
            report.size(cost.received_bytes),
            _seconds(cost.server_seconds + cost.decoding_seconds),
            report.percent(error, digits),
        )
    worst, cost_of_worst = proposal.minimax
    table.add_row(
        f"{worst.rows} x {worst.width:,} (minimax)", report.size(cost_of_worst), "", "", "", ""
    )
    exact = "0.00 %" if proposal.plan.privacy is None else "noise"
    table.add_row(
        "one-hot vector", report.size(proposal.plan.one_hot_bytes_per_client), "", "", "", exact
    )
    return table


def _bytes(number: int) -> str:
    from fedtally import report

    return report.size(number) if number else ""


def _seconds(seconds: float) -> str:
    """Return a time with two digits, in the unit that suits it.

    >>> _seconds(0.0), _seconds(2.34e-5), _seconds(0.0123), _seconds(4.56), _seconds(456.0)
    ('', '23 µs', '12 ms', '4.6 s', '7.6 min')
    """
    if seconds <= 0:
        return ""
    for limit, unit, factor in (
        (1e-3, "µs", 1e6),
        (1.0, "ms", 1e3),
        (120.0, "s", 1.0),
        (7200.0, "min", 1 / 60),
    ):
        if seconds < limit:
            return (
                f"{seconds * factor:.2g} {unit}"
                if seconds * factor < 100
                else f"{seconds * factor:.0f} {unit}"
            )
    return f"{seconds / 3600:.2g} h"
