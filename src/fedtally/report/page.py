"""The report to hand on: one HTML file that loads nothing, and is whole without JavaScript.

Items are data of strangers: the template escapes each text, and the page's policy lets a browser
run only the one script and style whose hashes it names. Jinja2 is imported inside functions.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedtally.domain import Domain, Grid
from fedtally.errors import InvalidInputError, MissingExtraError
from fedtally.plan import Plan
from fedtally.report import wording
from fedtally.report.fields import field_name, plan_fields, privacy_fields, told
from fedtally.report.tables import printable
from fedtally.report.terminal import certainty, digits_of, has_widths
from fedtally.result import Estimate, Result, is_told_from_zero

LIST, ASKED = "Most frequent items", "Items asked for"
_BOUNDS = ("epsilon", "delta", "rho")  # how the names of upper bounds begin


def check_report_path(path: str | os.PathLike[str]) -> None:
    """Raise an error unless a report can be written to `path`; call it before a long run.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        InvalidInputError: the name does not end in .html.

    >>> check_report_path("out.pdf")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: a report must end in .html, got 'out.pdf'
    """
    if Path(path).suffix.lower() != ".html":
        raise InvalidInputError(f"a report must end in .html, got {os.fspath(path)!r}")
    from fedtally import charts

    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "reports need Jinja2, which is not installed: pip install 'fedtally[report]'"
        ) from error
    charts.check("report.svg")


def write_page(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    command: str,
    path: str | os.PathLike[str],
    charged: str = "",
) -> None:
    """Write the report of a result to a file, whole or not at all.

    Args:
        result: the whole answer.
        estimates: the top items.
        queried: estimates of items that were asked for by name.
        command: the command that made it, without secrets.
        path: the file, which ends in .html.
        charged: what a ledger says after the campaign was charged; "": it was not.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        InvalidInputError: the name does not end in .html, or this is no one result.
    """
    if not isinstance(result, Result):
        raise InvalidInputError(
            f"a report is of one Result, got {type(result).__name__}: write_merged_page writes that"
            " of a merged answer"
        )
    check_report_path(path)
    write(_content(result, estimates, queried, command, charged), path)


def page(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    command: str,
    charged: str = "",
) -> str:
    """Return the report of a result as an HTML document; the arguments are `write_page`'s."""
    return _rendered(_content(result, estimates, queried, command, charged))


@dataclass(frozen=True)
class Listed:
    """What lists of estimates have in common.

    Attributes:
        unit: the noun for the things that are counted.
        confidence: that of the limits.
        shares_counters: whether items share counters; in a histogram none does.
        domain: the candidates.
        draw: draws the list as bars, for a phone if it is called with True.
        truth: returns the true frequencies of items, or None where they are not known.
        left_out: what the list leaves out, in words.
    """

    unit: str
    confidence: float
    shares_counters: bool
    domain: Domain
    draw: Callable[[bool], Any]
    truth: Callable[[Sequence[str | int]], Sequence[float] | None] = lambda _: None
    left_out: str = ""


@dataclass(frozen=True)
class Content:
    """What a page shows.

    Attributes:
        title: the question.
        banner: what stands above it; "": nothing.
        drawn: what stands below it; "": nothing.
        short: what an answer on one screen says below its list.
        tables: the lists, each of `table`.
        figures: those of `figures`.
        sections: each of `section`.
    """

    title: str
    banner: str
    short: Sequence[tuple[str, str]]
    tables: Sequence[Mapping[str, Any]]
    figures: Sequence[Mapping[str, str]]
    sections: Sequence[Mapping[str, Any]]
    drawn: str = ""


def write(content: Content, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, whole or not at all."""
    from fedtally._archive import replacing

    text = _rendered(content)
    with replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


def _rendered(content: Content) -> str:
    import jinja2
    from markupsafe import Markup

    folder = files("fedtally.report")
    template, style, script = (
        (folder / f"page.{kind}").read_text("utf-8") for kind in ("html.j2", "css", "js")
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(
        policy=policy(style, script),
        style=Markup(style),  # noqa: S704 - our own file, and so is the script
        script=Markup(script),  # noqa: S704
        title=content.title,
        banner=content.banner,
        drawn=content.drawn,
        short=section("In short", content.short),
        tables=content.tables,
        figures=content.figures,
        sections=content.sections,
        version=metadata.version("fedtally"),
    )


def policy(style: str, script: str) -> str:
    """Return what a browser may load and run on a page: its one style and its one script."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _content(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
    command: str,
    charged: str,
) -> Content:
    of = _listed(result, estimates)
    return Content(
        title=wording.question(result),
        banner=wording.banner(result.plan),
        drawn=wording.drawn_away(result.draw),
        short=[
            ("Error", wording.sure(result, [*estimates, *queried])),
            ("Privacy", wording.privacy_sentence(result.plan)),
            ("Upload", wording.short_cost(result.plan)),
        ],
        tables=[
            table(of, shown, caption)
            for shown, caption in ((estimates, LIST), (queried, ASKED))
            if shown
        ],
        figures=figures(of, estimates),
        sections=_sections(result, estimates, queried, command, charged),
    )


def _listed(result: Result, estimates: Sequence[Estimate]) -> Listed:
    return Listed(
        unit=result.unit,
        confidence=result.confidence,
        shares_counters=not result.plan.is_histogram,
        domain=result.domain,
        draw=lambda narrow: result.plot(estimates=estimates, narrow=narrow),
        truth=result.true_frequencies,
        left_out=wording.left_out(result, estimates),
    )


def table(of: Listed, estimates: Sequence[Estimate], caption: str) -> dict[str, Any]:
    """Return a list of estimates with its caption."""
    truth = of.truth([estimate.item for estimate in estimates])
    digits = digits_of(estimates)
    has_limits = has_widths(estimates)
    limits = (f"{wording.level(of.confidence)}: from", "to") if has_limits else ()
    columns = ["item", "share", *limits, *(["true"] if truth is not None else []), of.unit]
    rows = []
    for place, estimate in enumerate(estimates):
        shares = [estimate.frequency, *((estimate.low, estimate.high) if has_limits else ())]
        shares += [] if truth is None else [truth[place]]
        cells = [{"text": printable(estimate.item).plain, "key": printable(estimate.item).plain}]
        cells += [
            {"text": "", "key": ""}
            if share is None
            else {"text": wording.percent(share, digits), "key": repr(float(share))}
            for share in shares
        ]
        cells.append({"text": f"{estimate.count:,.0f}", "key": repr(float(estimate.count))})
        rows.append({"cells": cells, "is_doubtful": not is_told_from_zero(estimate)})
    grey = [not is_told_from_zero(estimate) for estimate in estimates]
    told = "may be 0 (in grey): they cannot be told from it."
    doubts = f"{sum(grey):,} of these {len(rows):,} {told}" * any(grey)
    if grey != sorted(grey) and of.shares_counters:
        # then a larger share is less certain than a smaller one
        doubts += " An item's margin depends on the items in its counters."
    if caption == LIST and of.left_out:
        doubts += f" {of.left_out}."
    return {"caption": caption, "columns": columns, "rows": rows, "doubts": doubts.strip()}


def figures(of: Listed, estimates: Sequence[Estimate]) -> list[dict[str, str]]:
    """Return each figure twice, for a screen and for a phone, with its caption."""
    from fedtally import charts

    if not estimates:
        return []
    number = wording.counted(len(estimates), "item")
    shares = [estimate.frequency for estimate in estimates]
    drawn: list[tuple[Callable[[bool], Any], str, str]] = [
        (of.draw, "Estimated frequencies, most frequent first.", f"Bars of {number}"),
        (
            lambda narrow: charts.rank_frequency(shares, narrow),
            "Frequency by rank, of the listed items.",
            f"Curve of {number} by rank",
        ),
    ]
    if isinstance(of.domain, Grid):
        places = of.domain.locate([estimate.item for estimate in estimates])
        centres = of.domain.centres(places).tolist()
        drawn.append(
            (
                lambda narrow: charts.cell_map(centres, shares, narrow),
                "The listed cells on the map.",
                f"Map of {number}",
            )
        )
    return [
        {
            "wide": base64.b64encode(charts.as_svg(draw(False))).decode(),
            "narrow": base64.b64encode(charts.as_svg(draw(True))).decode(),
            "caption": caption,
            "alt": f"{alt}; the table above has the same numbers",
        }
        for draw, caption, alt in drawn
    ]


def _sections(
    result: Result,
    listed: Sequence[Estimate],
    named: Sequence[Estimate],
    command: str,
    charged: str,
) -> list[dict[str, Any]]:
    plan, traffic = result.plan, result.secure_sum
    private = privacy_fields(plan, traffic) or {}
    return [
        section("How sure it is", certainty(result, listed, named)),
        section("Notes", [], sentences(result.warnings)),
        section("What it protects, in words", [], wording.protects(plan)),
        section(
            "What it protects, in numbers",
            [
                *wording.privacy_rows(plan, traffic),
                *([("Ledger", printable(charged, longest=len(charged)).plain)] if charged else []),
                *_named(private, plan),
            ],
        ),
        section(
            "Who could learn what",
            [
                *wording.learned(plan, traffic),
                *wording.secure_sum_rows(traffic, wording.part_of_sum(result), wording.who(plan)),
            ],
        ),
        section("What it cost", [("Upload", wording.cost(plan))]),
        section(
            "How it was made",
            [
                ("Command", command),
                ("Version", f"fedtally {metadata.version('fedtally')}"),
                ("Candidates", wording.candidates(result.domain)),
                ("Recovery", result.recovery),
                *wording.sizing_rows(result.sizing),
                *wording.target_rows(plan),
                *_named(plan_fields(plan) | {"num_clients": result.num_clients}, plan),
            ],
        ),
    ]


def section(
    title: str, rows: Sequence[tuple[str, str]], lines: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a section; a row without a name goes on with the row before it."""
    grouped: list[tuple[str, list[str]]] = []
    for name, text in rows:
        if name or not grouped:
            grouped.append((name, [text]))
        else:
            grouped[-1][1].append(text)
    return {
        "id": re.sub(r"\W+", "-", title.lower()),
        "title": title,
        "rows": grouped,
        "lines": list(lines),
    }


def sentences(notes: Iterable[str]) -> list[str]:
    """Return notes as sentences that a browser may show."""
    shown = [printable(note).plain for note in notes]
    return [text[:1].upper() + text[1:] for text in shown]


def _named(fields: dict[str, Any], plan: Plan) -> list[tuple[str, str]]:
    return [
        (field_name(name, plan.is_of_silos), _shown(name, value))
        for name, value in told(fields).items()
        if not isinstance(value, bool)
    ]


def _shown(name: str, value: Any) -> str:
    """Return a field as people read it: four digits of a real number, and bounds rounded up.

    >>> _shown("epsilon", 1.9999992), _shown("noise_variance", 136.0044), _shown("rows", 1200)
    ('2', '136', '1,200')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    from fedtally.privacy.accounting import rounded_up

    return f"{rounded_up(value) if name.startswith(_BOUNDS) else value:.4g}"
