"""The page of a plan: error against bytes, the plan's costs, and changes that halve the error.

It is one HTML file that loads nothing, and looks like the report of a result. Jinja2 and matplotlib
are imported inside functions.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fedtally.answer import amounts, page, sections

if TYPE_CHECKING:
    from fedtally.plan.bill import Bill
    from fedtally.plan.costs import Host
    from fedtally.plan.proposal import Proposal
    from fedtally.plan.tradeoff import Curve, Halved

_CHANGED = {  # what a plan can change to halve the error -> the change in words
    "epsilon": "a larger epsilon: less privacy",
    "clients": "more clients",
    "cohort": "larger cohorts",
}

# The page says that the errors with and without noise are about the same, if the error without
# noise is more than this share of the error with noise.
_ALIKE = 0.95
_ANOTHER = "CPU is of a reference machine: --host FILE names another."


class Table(NamedTuple):
    """A table of the page.

    Attributes:
        caption: the caption.
        columns: the heading of each column.
        rows: for each row, the text of each column.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Said:
    """Texts on a plan that the page shares with the terminal.

    Attributes:
        account: the rows with all costs and guarantees of the plan, as (name, text).
        cautions: sentences that a reader must know first.
        command: the command that made the plan, without secrets.
    """

    account: Sequence[tuple[str, str]]
    cautions: Sequence[str]
    command: str


def write_plan_page(
    proposal: Proposal,
    host: Host | None,
    said: Said,
    *,
    path: str | os.PathLike[str],
    report: Callable[..., None] = lambda *_: None,
) -> None:
    """Write the page of a plan to a file, whole or not at all.

    Args:
        proposal: the plan, and the error that it was chosen for.
        host: the measured speed of a machine, for the CPU times; None: a reference machine.
        said: the texts that the terminal shows, too.
        path: the path of the HTML file, which ends in .html.
        report: called with (name of the stage, sizes done, all sizes) while sizes of sketches are
            tried for the curves.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        InvalidInputError: the path does not end in .html, or the file cannot be written.
    """
    from fedtally.base.archive import replacing

    page.check_report_path(path)
    text = _rendered(_content(proposal, host, said, report))
    with replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


def _rendered(content: dict[str, Any]) -> str:
    import jinja2
    from markupsafe import Markup

    folder = files("fedtally.answer")
    template, style, script = (
        (folder / name).read_text("utf-8") for name in ("plan_page.html.j2", "page.css", "page.js")
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(
        policy=page.policy(style, script),
        style=Markup(style),  # noqa: S704 - our own file, and so is the script
        script=Markup(script),  # noqa: S704
        version=metadata.version("fedtally"),
        **content,
    )


def _content(
    proposal: Proposal, host: Host | None, said: Said, report: Callable[..., None]
) -> dict[str, Any]:
    plan, bill = proposal.plan, proposal.bill(host)
    drawn, why_none = _curves(proposal, report)
    changes, why_same = _halved(proposal)
    return {
        "title": sections.counted.plan_title(plan),
        "banner": sections.privacy.banner(plan),
        "verdict": _verdict(proposal),
        "calendar": "" if plan.calendar is None else sections.counted.by_calendar(plan),
        "privacy": sections.privacy.planned(plan),
        "figure": _figure(proposal, drawn) if drawn else None,
        "why_none": why_none,
        "costs": _costs(proposal, bill),
        "machine": "" if host else _ANOTHER,
        "halved": changes,
        "why_same": why_same,
        "cautions": page.sentences(said.cautions),
        "account": page.section("The plan", [*said.account, ("Command", said.command)]),
        "tables": [
            _stages(bill, sections.counted.who(plan)),
            *([_numbers(drawn)] if drawn else []),
        ],
    }


def _verdict(proposal: Proposal) -> str:
    """Return one sentence on the bytes that a client sends, and on the largest error to expect."""
    plan, one = proposal.plan, sections.counted.who(proposal.plan)
    sends = f"Each {one} sends {amounts.size(plan.bytes_per_client)}"
    if plan.protection.leaves_exact(plan.vector):
        return f"{sends}, and the counts are exact."
    return f"{sends}, and the largest error is {sections.error.planned(proposal)}."


def _curves(proposal: Proposal, report: Callable[..., None]) -> tuple[list[Curve], str]:
    """Return two values: the curves of error against bytes, and a text.

    If there are no curves, the list is empty and the text is the reason. Otherwise the text is "".

    Args:
        proposal: the plan, and the error that it was chosen for.
        report: called with (name of the stage, sizes done, all sizes).
    """
    from fedtally.plan import tradeoff

    plan = proposal.plan
    if plan.is_open:
        half = f"{proposal.target.linf / 2:.2g}"
        return [], (
            "There is no curve: the bytes follow from the names that are to be read, and nobody"
            f" lists them. To see what half the error takes, ask for --tau {half}."
        )
    if plan.protection.leaves_exact(plan.vector):
        return [], (
            "There is no curve: each candidate has a counter of its own, so that counts are exact."
        )
    if not plan.vector.shares_counters:
        return [], (
            "There is no curve: each candidate has a counter of its own, and all of the error is"
            " noise. More bytes would change nothing."
        )
    return tradeoff.curves(proposal, report), ""


def _named(epsilon: float | None) -> str:
    return "no epsilon" if epsilon is None else f"epsilon {epsilon:g}"


def _figure(proposal: Proposal, curves: Sequence[Curve]) -> dict[str, str]:
    """Return the chart of the curves for the template, with the plan as a star.

    Returns a dict of texts: "wide" and "narrow", the drawings for a screen and for a phone as
    base64 of SVG; "caption"; "alt", the text for readers who do not see the chart.

    Args:
        proposal: the plan, and the error that it was chosen for.
        curves: the curves of error against bytes, at least the one with the plan's own epsilon.
    """
    from fedtally.answer import charts, figures
    from fedtally.plan import tradeoff

    plan, own = proposal.plan, tradeoff.epsilon_of(proposal)
    lines = {
        _named(curve.epsilon): [(one.bytes_per_client, one.linf) for one in curve.sizes]
        for curve in curves
    }

    def draw(narrow: bool) -> str:
        mark = (plan.bytes_per_client, proposal.linf)
        figure = charts.tradeoff(
            lines, mark, _named(own), unit=sections.counted.who(plan), narrow=narrow
        )
        return base64.b64encode(figures.as_svg(figure)).decode()

    finding = _finding(proposal, {curve.epsilon: curve for curve in curves})
    how_often = sections.error.campaigns(proposal.target.failure_probability)
    about = (
        f"Predicted largest error, not exceeded in {how_often}, for sketches of {plan.rows} rows"
        f" and the schedule {plan.schedule}. The star is the plan."
    )
    return {
        "wide": draw(False),
        "narrow": draw(True),
        "caption": f"{finding} {about}",
        "alt": finding,
    }


def _finding(proposal: Proposal, curves: dict[float | None, Curve]) -> str:
    """Return one to three sentences on what the chart shows, for its caption.

    Args:
        proposal: the plan, and the error that it was chosen for.
        curves: the curves of the chart, by their epsilon (None: no noise).
    """
    from fedtally.plan import tradeoff

    own = tradeoff.epsilon_of(proposal)
    most, plan = curves[own].sizes[-1], proposal.plan
    before, after = amounts.size(plan.bytes_per_client), amounts.size(most.bytes_per_client)
    digits = amounts.decimals([proposal.linf, most.linf])
    shown, left = (amounts.points(error, digits) for error in (proposal.linf, most.linf))
    is_last = most.max_bytes == plan.bytes_per_client
    more = "" if is_last else f"; {after} would bring it to {left}"
    found = [f"At {before} the predicted error is {shown}{more}."]
    free = None if own is None else curves.get(None)
    if free is not None:
        rest = free.sizes[-1].linf
        is_alike = rest > _ALIKE * most.linf
        less = "about the same" if is_alike else f"{amounts.points(rest)} there"
        found.append(f"Without differential privacy it would be {less}.")
    return " ".join([*found, *_beyond(proposal)])


def _beyond(proposal: Proposal) -> Iterator[str]:
    """Yield a sentence on the bytes and the error of a histogram, if `histogram_within` finds one.

    A histogram has a counter for each candidate. The curves have only sketches with fewer bytes
    than the histogram, and the plan's own sketch.
    """
    from fedtally.plan import tradeoff

    better = tradeoff.histogram_within(proposal)
    if better is None:
        return
    cost = amounts.size(better.plan.bytes_per_client)
    error = f"an error of {amounts.points(better.linf)}" if better.linf else "no error"
    yield f"A histogram takes {cost}, and has {error}."


def _costs(proposal: Proposal, bill: Bill) -> Table:
    one = sections.counted.who(proposal.plan)
    server = amounts.seconds(sections.cost.server_seconds(proposal, bill))
    rows = [
        (
            f"a {one}, in its round",
            *map(amounts.size, (bill.upload_bytes, bill.download_bytes)),
            amounts.seconds(bill.client_seconds),
        ),
        (
            "the server, in all rounds",
            *map(amounts.size, (bill.sent_bytes, bill.received_bytes)),
            server,
        ),
    ]
    return Table("Bytes and CPU", ("who", "sends", "gets", "CPU"), rows)


def _halved(proposal: Proposal) -> tuple[Table | None, str]:
    """Return two values: a table of changes to the plan, and a text.

    Each change in the table, such as more bytes or more clients, halves the plan's error by itself.
    If there is a table, the text is "". If no change halves the error, the table is None and the
    text is the reason. In an open domain the table is None and the text is "".
    """
    from fedtally.plan import tradeoff

    plan, linf = proposal.plan, proposal.target.linf
    if plan.is_open:
        return None, ""
    if plan.protection.leaves_exact(plan.vector):
        return None, "There is no error to halve."
    found = list(tradeoff.halvings(proposal))
    if not found:
        return None, "The planner found no single change that halves the error."
    now, then = map(amounts.points, (linf, linf / 2))
    rows = [("this plan", amounts.size(plan.bytes_per_client), "")]
    rows += [_changed(proposal, one) for one in found]
    columns = ("what changes", f"bytes per {sections.counted.who(plan)}", "type instead")
    return Table(f"From {now} to {then}: one change each", columns, rows), ""


def _changed(proposal: Proposal, found: Halved) -> tuple[str, str, str]:
    """Return the table row of a plan with half the error, as three texts.

    They are: what changes, the new plan's bytes per client, and the options for the new plan, which
    replace those of this plan.

    Args:
        proposal: the plan, and the error that it was chosen for.
        found: the plan with half the error, and what was changed in it.
    """
    from fedtally.plan import tradeoff

    own, way = tradeoff.epsilon_of(proposal), found.way
    options = [f"--tau {proposal.target.linf / 2:.12g}"]
    epsilon = way.value if way is not None and way.what == "epsilon" else own
    options += [] if epsilon is None else [f"--epsilon {epsilon:.12g}"]
    if way is None:
        shared, still = proposal.plan.vector.shares_counters, found.plan.vector.shares_counters
        is_new = shared and not still
        name = "more bytes: a counter for each candidate" if is_new else "more bytes"
    else:
        name = _CHANGED[way.what]
        flag = {"clients": "--clients", "cohort": "--max-cohort"}.get(way.what)
        options += [] if flag is None else [f"{flag} {way.value:.0f}"]
    return name, amounts.size(found.plan.bytes_per_client), " ".join(options)


def _stages(bill: Bill, unit: str) -> Table:
    def texts(sizes: Iterable[float], cpu: float) -> list[str]:
        return [*(amounts.size(one) if one else "" for one in sizes), amounts.seconds(cpu)]

    rows = [
        [
            stage.stage,
            *texts((stage.upload_bytes, stage.download_bytes), stage.client_seconds),
            *texts((stage.received_bytes, stage.sent_bytes), stage.server_seconds),
        ]
        for stage in bill.stages
    ]
    rows.append(["decoding", "", "", "", "", "", amounts.seconds(bill.decoding_seconds)])
    columns = [f"{unit} sends", f"{unit} gets", f"{unit} CPU"]
    columns += ["server gets", "server sends", "server CPU"]
    return Table("What each stage costs", ("stage", *columns), rows)


def _numbers(curves: Sequence[Curve]) -> Table:
    """Return the numbers of the chart as a table: a row for each size, a column for each curve."""
    sizes = sorted({one.max_bytes for curve in curves for one in curve.sizes})
    digits = amounts.decimals([one.linf for curve in curves for one in curve.sizes])
    rows = []
    for budget in sizes:
        errors = [
            next((one.linf for one in curve.sizes if one.max_bytes == budget), None)
            for curve in curves
        ]
        shown = ["" if e is None else amounts.points(e, digits).split()[0] for e in errors]
        rows.append([f"{budget:,}", *shown])
    names = [_named(curve.epsilon) for curve in curves]
    return Table(
        "The chart in numbers: largest error in points, within bytes", ("bytes", *names), rows
    )
