"""`fedtally audit`: simulate campaigns of a plan, and test whether their sums have enough noise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console
from fedtally.cli.help import Command, Present, option
from fedtally.cli.shared import json_option, positive, shared

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtally.studies.audit import AuditResult


@click.command(
    cls=Command,
    short_help="Test the noise of a private plan.",
    examples=[
        (
            "a plan: is its noise what it says?",
            "fedtally plan --clients 9000 --domain-size 900 --tau 0.1 --epsilon 1 -o plan.toml",
        ),
        ("", "fedtally audit plan.toml"),
        (
            "look closer: more campaigns see smaller deviations",
            "fedtally audit plan.toml --campaigns 2000",
        ),
        ("for a script: exit code 1 if the audit fails", "fedtally audit plan.toml --json"),
    ],
)
@click.argument("plan", type=Present())
@option(
    "Audit",
    "--campaigns",
    type=positive,
    metavar="N",
    help="Run this many campaigns [what 12,000 counters of a release need, at most 1000]",
)
@shared("audit")
@json_option
def audit(plan: str, campaigns: int | None, as_json: bool, quiet: bool) -> int:
    """Run campaigns of a PLAN with differential privacy, and test the noise that they release.

    The clients, or the people of silos, are made up, so the exact sums are known; released sums
    minus exact sums are the noise. Its size, signs, distribution and independence between counters,
    releases and campaigns are compared with the plan. Some of them hold items or not by the toss of
    a coin: how well the releases tell which bounds epsilon from below.

    No data is read and no ledger is charged. The exit code is 1 if the audit fails, which a sound
    program does once in a million audits, else 0. The noise comes from the operating system, so
    no two audits are the same.
    """
    from fedtally.plan import Plan
    from fedtally.studies import audit as engine

    asked = engine.Audit(Plan.load(plan), campaigns)
    with console.Progress(quiet) as progress:
        found = engine.run(asked, progress)
    if as_json:
        console.show_json(document(found))
    else:
        console.show(view(found))
    return 0 if found.passed else 1  # no error is raised: a failed audit is a result


def document(found: AuditResult) -> dict[str, Any]:
    """Return the result of an audit as a dict for JSON."""
    from fedtally.answer import sections

    return {
        "schema": "fedtally-audit/1",
        "plan": sections.cost.fields(found.audit.plan),
        "privacy": sections.privacy.fields(found.audit.plan),
        "campaigns": found.audit.runs,
        "clients_per_round": found.clients,
        "releases": [
            release._asdict() | {"rounds": [release.rounds.start, release.rounds.stop]}
            for release in found.releases
        ],
        "epsilon": None if found.detection is None else found.detection._asdict(),
        "bounds": dict(found.bounds),
        "checks": len(found.checks),
        "false_alarm": found.false_alarm,
        "detectable": found.detectable,
        "failures": found.failures,
        "passed": found.passed,
    }


def view(found: AuditResult) -> RenderableType:
    """Return the result of an audit for the terminal: a table, and rows of facts below it."""
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import amounts, sections, tables

    plan = found.audit.plan
    one, many = plan.nouns
    rows: list[tuple[str, RenderableType]] = [("Verdict", _verdict(found))]
    rows += [("", Text(failure, style="red")) for failure in found.failures]
    if found.detection is not None:
        seen = found.detection
        what = (
            f"at least {seen.bound:.3g}, as {seen.clients:,} single {many} show; guaranteed: at"
            f" most {seen.guaranteed:.4g}"
        )
        rows.append(("Epsilon", what))
        moved = f"one {one} moved all releases together by at most {seen.distance:.4g} (l2 norm)"
        rows.append(("", f"{moved}; the noise allows for {seen.sensitivity:.4g}"))
    rows += [("Made up", _clients(found)), *_noise(found), ("Bounds", _bounds(found))]
    rows += [
        ("Power", _power(found)),
        *sections.privacy.rows(plan),
        ("Plan", plan.fingerprint[:16]),
    ]
    number = amounts.counted(found.audit.runs, "campaign")
    title = f"Audit of {number}, {amounts.counted(len(found.releases), 'release')} each"
    return Group(tables.heading(title), _table(found), Text(), tables.facts(rows))


def _clients(found: AuditResult) -> str:
    """Return in words how many clients (or silos) the campaigns had, and how many a plan may have.

    By default, an audit with a secure sum has the fewest clients that the plan allows: one cohort
    (the clients of one secure sum), even if the plan has many cohorts.
    """
    from fedtally.answer import amounts, sections

    plan = found.audit.plan
    most, where = plan.max_round_clients, "in each round"
    if found.is_hidden:
        most, where = plan.num_clients, "in all rounds together"
    made = f"{amounts.counted(found.clients, sections.counted.who(plan))} {where}"
    if found.clients >= most:
        return f"{made}: as many as the plan may have"
    if (cohorts := plan.summing.cohorts) is None:
        return f"{made}, of up to {most:,} of the plan"
    run, planned = (-(-number // cohorts.parameters.n_max) for number in (found.clients, most))
    return (
        f"{made}, of up to {most:,} of the plan: {amounts.counted(run, 'cohort')} of up to"
        f" {planned:,}"
    )


def _noise(found: AuditResult) -> list[tuple[str, str]]:
    """Return a list with the row (name, text) that says whose noise was tested.

    The list is empty if the guarantee counts on all of this noise.
    """
    from fedtally.answer import sections

    plan, terms = found.audit.plan, found.audit.plan.privacy
    assert terms is not None
    who, sure = sections.counted.who(plan), terms.event.honest_survivors
    if plan.protection.of_server() is not None:
        return [("Noise", "planned is that of both servers; the guarantee counts on one of them")]
    if plan.protection.of_client() is None or sure is None or found.clients <= sure:
        return []
    planned = f"planned is that of all {found.clients:,} {who}s"
    return [("Noise", f"{planned}; the guarantee counts on {sure:,} honest ones that stay")]


def _bounds(found: AuditResult) -> str:
    """Return in words which bounds on a client were tested, and which were not.

    The bounds limit how many items a client has, how large its clipped sketch is, how often an item
    of a client counts, and in how many silos a person is. A bound is tested by clients that exceed
    it.
    """
    from fedtally.answer import amounts

    plan = found.audit.plan
    clipped = plan.privacy is not None and plan.privacy.event.is_clipped
    planned = ["items", *["clip"] * clipped, "repeats", *["silos"] * plan.is_of_silos]
    _, many = plan.nouns
    tested = [
        f"{name} (in {amounts.counted(found.bounds[name], 'campaign')})"
        for name in planned
        if name in found.bounds
    ]
    parts = [f"tested with {many} that hold too much: {', '.join(tested)}"] if tested else []
    if left := [name for name in planned if name not in found.bounds]:
        parts.append(f"taken as planned, not tested: {', '.join(left)}")
    return "; ".join(parts)


def _verdict(found: AuditResult) -> Any:
    from rich.text import Text

    if found.passed:
        told = f": {len(found.checks)} checks found nothing wrong"
        return Text.assemble(("passed", "bold green"), told)
    return Text.assemble(
        ("failed", "bold red"), ": the releases do not keep what the plan guarantees"
    )


def _power(found: AuditResult) -> str:
    false_alarm = f"a sound program fails at most once in {1 / found.false_alarm:,.0f} audits"
    if found.detectable is None:
        return (
            f"too few counters to see noise that is too small: take more campaigns; {false_alarm}"
        )
    seen = f"{100 * found.detectable:.2g} % too small in one release"
    return f"noise that is {seen} is found 99 times in 100; {false_alarm}"


def _table(found: AuditResult) -> RenderableType:
    from fedtally.answer import tables

    releases = found.releases
    names = [f"{number} ({_rounds(one.rounds)})" for number, one in enumerate(releases, 1)]
    return tables.FittedTable(
        heading="release",
        names=[tables.printable(name) for name in names],
        after=[
            tables.Column("counters", [f"{one.counters:,}" for one in releases], 1, wishes=True),
            *(
                tables.Column(name, [f"{getattr(one, name):.4g}" for one in releases], group=group)
                for group, name in (("noise std", "planned"), ("noise std", "measured"))
            ),
            tables.Column(
                "positive", [f"{100 * one.positive:.1f} %" for one in releases], 2, wishes=True
            ),
            tables.Column(
                "largest\ncorrelation",
                [f"{one.correlation:+.3f}" for one in releases],
                3,
                wishes=True,
            ),
        ],
        noun="releases",
    )


def _rounds(rounds: range) -> str:
    """Return the text of a range of rounds. In the range the first round is 0, in the text it is 1.

    >>> _rounds(range(0, 4)), _rounds(range(2, 3))
    ('rounds 1 to 4', 'round 3')
    """
    first, last = rounds.start + 1, rounds.stop
    return f"round {first}" if first == last else f"rounds {first} to {last}"
