"""The report to hand on: one HTML file that loads nothing, and is whole without JavaScript.

Items are data of strangers: the template escapes each text, and the page's policy lets a browser
run only the one script and style whose hashes it names. Jinja2 is imported inside functions.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Callable, Sequence
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedtally.domain import Grid
from fedtally.errors import InvalidInputError, MissingExtraError
from fedtally.plan import Plan
from fedtally.report import wording
from fedtally.report.fields import field_name, plan_fields, privacy_fields, told
from fedtally.report.tables import printable
from fedtally.report.terminal import certainty, digits_of, has_widths, is_told_from_zero
from fedtally.result import Estimate, Result

_LIST = "Most frequent items"
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
    from fedtally._archive import replacing

    if not isinstance(result, Result):
        raise InvalidInputError(
            f"a report is of one Result, got {type(result).__name__}: write a report of each result"
            " that was merged, and the merged answer as a table (export)"
        )
    check_report_path(path)
    text = page(result, estimates, queried, command=command, charged=charged)
    with replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


def page(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    command: str,
    charged: str = "",
) -> str:
    """Return the report of a result as an HTML document; the arguments are `write_page`'s."""
    import jinja2
    from markupsafe import Markup

    folder = files("fedtally.report")
    template, style, script = (
        (folder / f"page.{kind}").read_text("utf-8") for kind in ("html.j2", "css", "js")
    )
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}';"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(
        policy=policy,
        style=Markup(style),  # noqa: S704 - our own file, and so is the script
        script=Markup(script),  # noqa: S704
        title=wording.question(result),
        banner=wording.banner(result.plan),
        drawn=wording.drawn_away(result.draw),
        short=_section("In short", _short(result, estimates, queried)),
        tables=[
            _table(result, shown, caption)
            for shown, caption in (
                (estimates, _LIST),
                (queried, "Items asked for"),
            )
            if shown
        ],
        figures=_figures(result, estimates),
        sections=_sections(result, estimates, queried, command, charged),
        version=metadata.version("fedtally"),
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _table(result: Result, estimates: Sequence[Estimate], caption: str) -> dict[str, Any]:
    truth = result.true_frequencies([estimate.item for estimate in estimates])
    digits = digits_of(estimates)
    has_limits = has_widths(estimates)
    limits = (f"{wording.level(result.confidence)}: from", "to") if has_limits else ()
    columns = ["item", "share", *limits, *(["true"] if truth is not None else []), result.unit]
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
    if (
        grey != sorted(grey) and not result.plan.is_histogram
    ):  # then a larger share is less certain than a smaller one
        doubts += " An item's margin depends on the items in its counters."
    if caption == _LIST and (rest := wording.left_out(result, estimates)):
        doubts += f" {rest}."
    return {"caption": caption, "columns": columns, "rows": rows, "doubts": doubts.strip()}


def _short(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, str]]:
    """Return what an answer on one screen says below its list."""
    return [
        ("Error", wording.sure(result, listed, named, limits="the limits cover")),
        ("Privacy", wording.privacy_sentence(result.plan)),
        ("Upload", wording.short_cost(result.plan)),
    ]


def _figures(result: Result, estimates: Sequence[Estimate]) -> list[dict[str, str]]:
    """Return each figure twice, for a screen and for a phone, with its caption."""
    from fedtally import charts

    if not estimates:
        return []
    number = wording.counted(len(estimates), "item")
    shares = [estimate.frequency for estimate in estimates]
    drawn: list[tuple[Callable[[bool], Any], str, str]] = [
        (
            lambda narrow: result.plot(estimates=estimates, narrow=narrow),
            "Estimated frequencies, most frequent first.",
            f"Bars of {number}",
        ),
        (
            lambda narrow: charts.rank_frequency(shares, narrow),
            "Frequency by rank, of the listed items.",
            f"Curve of {number} by rank",
        ),
    ]
    if isinstance(result.domain, Grid):
        places = result.domain.locate([estimate.item for estimate in estimates])
        centres = result.domain.centres(places).tolist()
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
        _section("How sure it is", certainty(result, listed, named)),
        _section("Notes", [], [_sentence(printable(text).plain) for text in result.warnings]),
        _section("What it protects, in words", [], wording.protects(plan)),
        _section(
            "What it protects, in numbers",
            [
                *wording.privacy_rows(plan, traffic),
                *([("Ledger", printable(charged, longest=len(charged)).plain)] if charged else []),
                *_named(private, plan),
            ],
        ),
        _section(
            "Who could learn what",
            [
                *wording.learned(plan, traffic),
                *wording.secure_sum_rows(traffic, wording.part_of_sum(result), wording.who(plan)),
            ],
        ),
        _section("What it cost", [("Upload", wording.cost(plan))]),
        _section(
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


def _section(
    title: str, rows: Sequence[tuple[str, str]], lines: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a section; a row without a name goes on with the row before it."""
    grouped: list[tuple[str, list[str]]] = []
    for name, text in rows:
        if name or not grouped:
            grouped.append((name, [text]))
        else:
            grouped[-1][1].append(text)
    name = title.lower().replace(",", "").replace(" ", "-")
    return {"id": name, "title": title, "rows": grouped, "lines": list(lines)}


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


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
