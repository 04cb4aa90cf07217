"""The HTML report of a result: one file that loads nothing, and is complete without JavaScript.

Items may be written by strangers, so the template escapes each text. The page has a content
security policy: a browser uses only the script and the style whose hashes the policy lists, and
these are the page's own. Jinja2 is imported inside functions.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib import metadata
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from fedtally.answer import amounts, field_names, sections, summary
from fedtally.answer.estimates import Estimate, is_told_from_zero
from fedtally.answer.noise_floor import Standing, doubted, standing
from fedtally.answer.result import Result
from fedtally.answer.tables import printable
from fedtally.answer.trending import MOST_LINES, Change, Trends
from fedtally.base.text import escaped, in_number
from fedtally.domain import Domain, Grid, Unread
from fedtally.errors import InvalidInputError, MissingExtraError
from fedtally.plan import Plan

LIST, ASKED, CHANGED = "Most frequent items", "Items asked for", "Items that changed"
_MOST_CHANGES = 20  # the most changed items that a page lists
# The fewest items above noise for which a page draws a curve by rank. With fewer such items, the
# curve says no more than the list.
_FEWEST_OF_CURVE = 10
_BOUNDS = ("epsilon", "delta", "rho")  # fields that begin so are upper bounds: rounded up only


def check_report_path(path: str | os.PathLike[str]) -> None:
    """Raise an error unless `path` ends in .html, and the libraries for reports are installed.

    Call it before a long run. Otherwise the error would come after the run.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        InvalidInputError: the path does not end in .html.

    >>> check_report_path("out.pdf")
    Traceback (most recent call last):
    ...
    fedtally.errors.InvalidInputError: a report must end in .html, got 'out.pdf'
    """
    if Path(path).suffix.lower() != ".html":
        raise InvalidInputError(f"a report must end in .html, got {os.fspath(path)!r}")
    from fedtally.answer import figures

    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "reports need Jinja2, which is not installed: pip install 'fedtally[report]'"
        ) from error
    figures.check("report.svg")


@dataclass(frozen=True)
class Head:
    """What stands at the top of a page: its title, the sources that were read, and the day.

    Attributes:
        title: the title; "": a title that is made of the names of the items and sources.
        sources: the names of the files or populations that were read; the page shows base names
            only.
        day: the day on which the page is written; None: the page shows no day.
    """

    title: str = ""
    sources: Sequence[str] = ()
    day: date | None = None


_NO_HEAD = Head()


def write_page(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    command: str,
    path: str | os.PathLike[str],
    charged: str = "",
    head: Head = _NO_HEAD,
) -> None:
    """Write the HTML report of a result to a file, whole or not at all.

    Args:
        result: the result to report.
        estimates: the estimates of the top items.
        queried: the estimates of items that were asked for by name.
        command: the command that made the result, without secrets.
        path: the path of the HTML file, which ends in .html.
        charged: the sentence with which a ledger confirmed the campaign's privacy cost; "": no
            ledger was charged, or it was not read.
        head: the title, the sources and the day.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        InvalidInputError: the path does not end in .html, the file cannot be written, or `result`
            is not a single `Result`.
    """
    if not isinstance(result, Result):
        raise InvalidInputError(
            f"a report is of one Result, got {type(result).__name__}: write_merged_page writes that"
            " of a merged answer"
        )
    check_report_path(path)
    write(_content(result, estimates, queried, command, charged, head), path)


def page(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    command: str,
    charged: str = "",
    head: Head = _NO_HEAD,
) -> str:
    """Return the report of a result as an HTML document. The arguments are as in `write_page`."""
    return _rendered(_content(result, estimates, queried, command, charged, head))


@dataclass(frozen=True)
class Listed:
    """The settings that all lists of estimates on a page share.

    Attributes:
        unit: the plural noun for what is counted.
        confidence: the confidence level of the limits, 0 to 1.
        shares_counters: whether items share counters: True for a sketch, False for a histogram.
        domain: the candidates.
        draw: a function that draws the top items as bars. Its argument says whether it is for a
            phone.
        truth: a function that returns the true frequencies of items, or None if they are unknown.
        left_out: a text on the candidates that the list of top items leaves out; "": no text.
        standing: the estimates of all candidates, and the candidates above noise; None: unknown.
    """

    unit: str
    confidence: float
    shares_counters: bool
    domain: Domain
    draw: Callable[[bool], Any]
    truth: Callable[[Sequence[str | int]], Sequence[float] | None] = lambda _: None
    left_out: str = ""
    standing: Standing | None = None


@dataclass(frozen=True)
class Content:
    """All that the template of a page shows: texts, tables and figures.

    Attributes:
        title: the title.
        origin: the line below the title: sources and day.
        question: a sentence on what is counted.
        banner: the warning at the top of the page; "": the result is private, and has no warning.
        verdict: sentences on what was found, and how sure it is.
        privacy: one sentence on what protects clients; "": the banner or the sections say it.
        tables: the lists of estimates; `table` returns each.
        figures: the charts, which the function `figures` returns.
        sections: the sections; `section` returns each.
        experts: the sections that are folded at first; `section` returns each.
        drawn: a sentence on the items that the bound on a client's items (max_items) left out; "":
            no sentence.
        changes: the changes over the rounds, which `changed` returns; None: they are unknown.
    """

    title: str
    origin: str
    question: str
    banner: str
    verdict: Sequence[str]
    privacy: str
    tables: Sequence[Mapping[str, Any]]
    figures: Sequence[Mapping[str, str]]
    sections: Sequence[Mapping[str, Any]]
    experts: Sequence[Mapping[str, Any]]
    drawn: str = ""
    changes: Mapping[str, Any] | None = None


def write(content: Content, path: str | os.PathLike[str]) -> None:
    """Write a page to a file, whole or not at all."""
    from fedtally.base.archive import replacing

    text = _rendered(content)
    with replacing(path) as temporary:
        Path(temporary).write_text(text, encoding="utf-8")


def _rendered(content: Content) -> str:
    import jinja2
    from markupsafe import Markup

    folder = files("fedtally.answer")
    template, style, script = (
        (folder / f"page.{kind}").read_text("utf-8") for kind in ("html.j2", "css", "js")
    )
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(template).render(
        policy=policy(style, script),
        style=Markup(style),  # noqa: S704 - our own file, and so is the script
        script=Markup(script),  # noqa: S704
        content=content,
        version=metadata.version("fedtally"),
    )


def policy(style: str, script: str) -> str:
    """Return the content security policy of a page.

    It allows this style, this script, and images in `data:` URLs, and nothing else.
    """
    return (
        f"default-src 'none'; style-src '{content_hash(style)}';"
        f" script-src '{content_hash(script)}'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def content_hash(text: str) -> str:
    """Return the SHA-256 of a style or a script, written as a content security policy takes it.

    >>> content_hash("")
    'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='
    """
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _content(
    result: Result,
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
    command: str,
    charged: str,
    head: Head,
) -> Content:
    estimates = doubted(result, estimates)
    # Leave out hashes without a name that may be noise: they tell a reader nothing.
    shown = [e for e in estimates if is_told_from_zero(e) or not isinstance(e.item, Unread)]
    of, plan = _listed(result, shown, len(estimates) - len(shown)), result.plan
    named = [escaped(name) for name in result.columns.get("item", [])]
    # A file without column names, such as a text file, reports the name "item".
    items = named[0] if len(named) == 1 and named != ["item"] else "items"
    return Content(
        **titled(head, "places" if isinstance(result.domain, Grid) else items),
        question=sections.counted.line(result),
        banner=sections.privacy.banner(plan),
        drawn=sections.counted.drawn_away(result.draw),
        verdict=summary.verdict(
            shown or queried,
            result.num_contributions,
            result.unit,
            result.confidence,
            holds=summary.holding(result),
            is_exact=result.is_exact,
        ),
        privacy=sections.privacy.line(plan, result.secure_sum) if plan.privacy else "",
        tables=tables(of, shown, queried),
        figures=figures(of, shown),
        sections=_sections(result, estimates, queried, command, charged),
        experts=_experts(result),
        changes=changed(result),
    )


def changed(result: Result) -> dict[str, Any] | None:
    """Return what changed over a result's rounds, for the template: a dict of three entries.

    "lines" has sentences; "table" and "figure" are None if no item changed. If the result is about
    a window, the changes are still those over all landed rounds. Returns None if it is unknown what
    changed, in each of these cases:

    - the input has no column of rounds (rounds were then drawn at random),
    - all rounds have the same hashes,
    - the domain is open,
    - the answer has no limits,
    - the decoder has no values for single rounds.
    """
    if result.columns and "round" not in result.columns:
        return None
    try:
        found = result.whole.trends()
    except InvalidInputError:  # one round, no fit or an open domain: the page leaves changes out
        return None
    said = [sections.changed.line(found), *map(_capital, sections.changed.no_clients(found))]
    said = [f"{text}." for text in said]
    if not found.changed:
        return {"lines": said, "table": None, "figure": None}
    said.append(f"Now is {found.window.told}, and before is {found.against.told}.")
    if below := sections.changed.shown_as_0(found):
        said.append(f"{_capital(below)}.")
    said.append(f"{_capital(sections.changed.rate(found))}.")
    listed = found.changed[:_MOST_CHANGES]
    if len(listed) < len(found):
        more = len(found) - len(listed)
        said.append(f"{amounts.counted(more, 'earlier change')}: fedtally trends lists all.")
    names = ", ".join(printable(change.item).plain for change in listed[:MOST_LINES])
    lines = Figure(lambda narrow: found.plot(narrow=narrow), "", f"Shares by round of {names}")
    return {"lines": said, "table": _changes_table(found, listed), "figure": drawn_twice(lines)}


def _changes_table(found: Trends, listed: Sequence[Change]) -> dict[str, Any]:
    digits = sections.changed.digits_of(listed)
    share = partial(sections.changed.share, digits=digits)
    points = partial(sections.changed.points, digits=digits, signed=True)
    level = amounts.level(found.confidence)
    ends = f"limits of the change, in points ({level})"
    columns = [
        Numbers("before", [one.before for one in listed], share),
        Numbers("now", [one.frequency for one in listed], share),
        Numbers("change", [one.change for one in listed], points),
        Numbers("lowest", [one.change_low for one in listed], points, ends, "change: lowest"),
        Numbers("highest", [one.change_high for one in listed], points, ends, "change: highest"),
    ]
    rows = []
    for place, one in enumerate(listed):
        name, since = printable(one.item).plain, sections.changed.since(one)
        cells = [{"text": name, "key": name}]
        cells += [{"text": one.kind, "key": one.kind}, {"text": since, "key": since}]
        rows.append(
            {
                "cells": [*cells, *(_cell(column, place) for column in columns)],
                "is_doubtful": False,
            }
        )
    words = [Numbers("kind", [], str), Numbers("since", [], str)]
    return _tabled(CHANGED, [*words, *columns], rows)


def _tabled(
    caption: str, columns: Sequence[Numbers], rows: Sequence[Mapping[str, Any]], doubts: str = ""
) -> dict[str, Any]:
    """Return a table for the template; a column of items is put before `columns`.

    Args:
        caption: the caption; `LIST` makes a table with ranks.
        columns: the headings of all further columns. Their `values` are not read.
        rows: the rows. A row has "cells", one for each column, of which the item is the first. It
            also has "is_doubtful": whether its item cannot be told from 0.
        doubts: a text on rows that cannot be told from 0; "": no text.
    """
    return {
        "caption": caption,
        "columns": [Numbers("item", [], str), *columns],
        "groups": [
            (group, list(members)) for group, members in groupby(columns, lambda one: one.group)
        ],
        "is_ranked": caption == LIST,
        "is_even": True,
        "rows": rows,
        "doubts": doubts,
    }


def titled(head: Head, items: str) -> dict[str, str]:
    """Return the fields "title" and "origin" of `Content`: the title, and the line below it.

    Args:
        head: the title, the sources and the day.
        items: the plural noun for the items, for a title that nobody gave.
    """
    sources = summary.source_names(head.sources)
    title = escaped(head.title) or summary.title(items, sources)
    return {"title": title, "origin": summary.origin(sources, head.day)}


def _listed(result: Result, estimates: Sequence[Estimate], num_unread: int = 0) -> Listed:
    unread = f"{amounts.counted(num_unread, 'more string')} could not be read, and may be noise"
    return Listed(
        unit=result.unit,
        confidence=result.confidence,
        shares_counters=result.plan.vector.shares_counters,
        domain=result.domain,
        draw=lambda narrow: result.plot(estimates=estimates, narrow=narrow),
        truth=result.true_frequencies,
        left_out=unread if num_unread else sections.counted.left_out(result, estimates),
        standing=standing(result) if estimates else None,
    )


def tables(
    of: Listed, estimates: Sequence[Estimate], queried: Sequence[Estimate]
) -> list[dict[str, Any]]:
    """Return the lists of a page as tables for the template: top items, then items asked for.

    A list without rows is left out.

    Args:
        of: the settings of the page's lists.
        estimates: the estimates of the top items.
        queried: the estimates of items that were asked for by name.
    """
    both = ((estimates, LIST), (queried, ASKED))
    return [table(of, shown, caption) for shown, caption in both if shown]


@dataclass(frozen=True)
class Numbers:
    """A column of numbers in a table.

    Attributes:
        head: the heading of the column.
        values: the number of each row, or None for an empty cell.
        show: a function that writes a number as text.
        group: a heading above this column and neighbouring columns with the same `group`; "": no
            such heading.
        alone: the heading to use if the group's heading is not shown, as on a phone; "": `head`.
    """

    head: str
    values: Sequence[float | None]
    show: Callable[[float], str]
    group: str = ""
    alone: str = ""


def table(of: Listed, estimates: Sequence[Estimate], caption: str) -> dict[str, Any]:
    """Return the table of a list of estimates, as the template takes it (see `_tabled`).

    Args:
        of: the settings of the page's lists.
        estimates: the estimates, one for each row.
        caption: the caption: `LIST` or `ASKED`.
    """
    truth = of.truth([estimate.item for estimate in estimates])
    columns = _columns(of, estimates, truth)
    rows = []
    for place, estimate in enumerate(estimates):
        name = printable(estimate.item).plain
        cells = [{"text": name, "key": name}, *(_cell(column, place) for column in columns)]
        rows.append({"cells": cells, "is_doubtful": not is_told_from_zero(estimate)})
    grey = [not is_told_from_zero(estimate) for estimate in estimates]
    told = "cannot be told from 0 (in grey)."
    doubts = f"{sum(grey):,} of these {len(rows):,} {told}" * any(grey)
    if caption == LIST and grey != sorted(grey) and of.shares_counters:
        # Explain why an item may be in grey although an item with a smaller share is not. Items
        # asked for are in the order asked, so that their order says nothing.
        doubts += " An item's margin depends on the items in its counters."
    if caption == LIST and of.left_out:
        doubts += f" {of.left_out}."
    return _tabled(caption, columns, rows, doubts.strip()) | {"is_even": truth is None}


def _columns(
    of: Listed, estimates: Sequence[Estimate], truth: Sequence[float] | None
) -> list[Numbers]:
    """Return the columns of numbers: shares, true shares if known, counts, and limits if any.

    Args:
        of: the settings of the page's lists.
        estimates: the estimates, one for each row.
        truth: the true frequency of each item; None: unknown.
    """
    digits = sections.listed.digits_of(estimates)

    def share(value: float) -> str:
        return amounts.percent(value, digits)

    columns = [Numbers("share", [estimate.frequency for estimate in estimates], share)]
    columns += [] if truth is None else [Numbers("true", truth, share)]
    counts = [estimate.count for estimate in estimates]
    columns.append(Numbers(of.unit, counts, lambda count: f"{count:,.0f}"))
    if sections.listed.has_widths(estimates):
        ends = [e.low for e in estimates], [e.high for e in estimates]
        columns += _limits(of, "among those who took part", "took part", ends, share)
    lows = [estimate.population_low for estimate in estimates]
    highs = [estimate.population_high for estimate in estimates]
    widths = [high - low for low, high in zip(lows, highs, strict=True) if low is not None and high]
    if widths:
        few = amounts.decimals(widths)  # further decimals are far below the width of the limits
        columns += _limits(
            of,
            "in the population they stand for",
            "population",
            (lows, highs),
            lambda value: amounts.percent(value, few),
        )
    return columns


def _limits(
    of: Listed,
    group: str,
    alone: str,
    ends: tuple[Sequence[float | None], Sequence[float | None]],
    show: Callable[[float], str],
) -> list[Numbers]:
    """Return the two columns of lower and upper limits, for these clients or for a population.

    Args:
        of: the settings of the page's lists.
        group: the heading above both columns.
        alone: the short heading, where the group's heading is not shown.
        ends: the lower limits and the upper limits of the rows; None: an empty cell.
        show: a function that writes a limit as text.
    """
    of_both = f"{group} ({amounts.level(of.confidence)})"
    return [
        Numbers(head, values, show, of_both, f"{alone}: {head}")
        for head, values in zip(("lowest", "highest"), ends, strict=True)
    ]


def _cell(column: Numbers, place: int) -> dict[str, str]:
    value = column.values[place]
    if value is None:
        return {"text": "", "key": ""}
    return {"text": column.show(value), "key": repr(float(value))}


def figures(of: Listed, estimates: Sequence[Estimate]) -> list[dict[str, str]]:
    """Return the figures of a page, as `drawn_twice` returns each; [] if there are no estimates.

    They are a map (`_map`), the bars of the top items, and a curve of all estimates (`_curve`). The
    map and the curve may be left out.

    Args:
        of: the settings of the page's lists.
        estimates: the estimates of the top items.
    """
    if not estimates:
        return []
    bars = Figure(of.draw, "", summary.bars_said(estimates))  # no caption: the chart has a title
    return [drawn_twice(figure) for figure in (*_map(of, estimates), bars, *_curve(of))]


def drawn_twice(figure: Figure) -> dict[str, str]:
    """Draw a figure for a screen and for a phone, and return it for the template.

    Returns a dict of texts: "wide" and "narrow", the drawings as base64 of SVG; "caption"; "alt",
    the text for readers who do not see the figure.
    """
    from fedtally.answer import figures

    return {
        "wide": base64.b64encode(figures.as_svg(figure.draw(False))).decode(),
        "narrow": base64.b64encode(figures.as_svg(figure.draw(True))).decode(),
        "caption": figure.caption,
        "alt": figure.alt,
    }


class Figure(NamedTuple):
    """A figure of the page.

    Attributes:
        draw: a function that draws it and returns a matplotlib figure. Its argument says whether it
            is for a phone.
        caption: the caption; "": no caption.
        alt: the text for readers who do not see the figure.
    """

    draw: Callable[[bool], Any]
    caption: str
    alt: str


def _map(of: Listed, estimates: Sequence[Estimate]) -> list[Figure]:
    """Return a list with the map of a grid's cells; [] if there is no map.

    The map shows all cells above noise. If these are unknown, it shows the listed cells that can be
    told from 0. There is no map if the domain is no grid, or no cell is to be shown.
    """
    from fedtally.answer import maps

    grid = of.domain
    if not isinstance(grid, Grid):
        return []
    if of.standing is not None:
        places, shares = of.standing.above, of.standing.shares.tolist()
        those = in_number(len(places), "The one cell", "All {} cells")
        which = f"{those} whose share stands above noise"
    else:
        sure = [estimate for estimate in estimates if is_told_from_zero(estimate)]
        places = grid.locate([estimate.item for estimate in sure])
        shares = [estimate.frequency for estimate in sure]
        which = f"The {amounts.counted(len(sure), 'listed cell')}"
    if not len(places):
        return []
    centres = grid.centres(places).tolist()
    closer = " Letters mark where cells crowd; these places are drawn closer below."
    caption = (
        f"{which}. A cell is {sections.counted.degrees(grid.step)} wide."
        f"{closer * maps.has_closer_views(centres, shares, grid.step)}"
        " No outline of land is drawn, since fedtally has none."
    )
    alt = summary.map_said(centres[0], shares[0], len(shares))
    return [
        Figure(
            lambda narrow: maps.cell_map(centres, shares, grid.step, of.unit, narrow),
            caption,
            alt,
        )
    ]


def _curve(of: Listed) -> list[Figure]:
    """Return a list with the curve of all estimates by rank; [] if there is no curve.

    There is no curve if the noise floor is unknown or 0, or if fewer than 10 candidates stand above
    noise: the list then says as much as a curve.
    """
    from fedtally.answer import charts

    found = of.standing
    if found is None or not found.floor or len(found.above) < _FEWEST_OF_CURVE:
        return []
    number, floor = len(found.above), found.floor
    said = (
        f"About {summary.rounded(number)} of {len(found.frequencies):,} candidates stand above"
        f" noise, which hides shares below {amounts.percent(floor, amounts.decimals([floor]))}."
    )
    shares = found.frequencies.tolist()
    return [
        Figure(
            lambda narrow: charts.rank_frequency(shares, number, floor, of.unit, narrow),
            f"How far down the list one can trust. {said} With"
            f" {amounts.level(found.confidence)} confidence somebody holds each of them.",
            f"Estimates by rank, with the noise floor. {said}",
        )
    ]


def _sections(
    result: Result,
    listed: Sequence[Estimate],
    named: Sequence[Estimate],
    command: str,
    charged: str,
) -> list[dict[str, Any]]:
    plan, traffic = result.plan, result.secure_sum
    # Without a known truth, the verdict at the top of the page has the error already.
    errors = [("Error", sections.error.line(result, [*listed, *named]))] * bool(result.evaluation)
    ledger = [
        (name, printable(said, longest=len(said)).plain)
        for name, said in sections.privacy.ledger_rows(result, charged)
    ]
    return [
        section("How sure it is", [*errors, *sections.error.rows(result, listed, named)]),
        section("Notes", [], sentences(result.warnings)),
        section("What it protects", ledger, sections.privacy.protects(plan, traffic)),
        section(
            "Who could learn what",
            [
                *sections.trust.learned(plan, traffic),
                *sections.trust.rows(plan, traffic, sections.counted.part_of_sum(result)),
            ],
        ),
        section(
            "How it was made",
            [
                ("Command", command),
                ("Page by", f"fedtally {metadata.version('fedtally')}"),
                ("Candidates", sections.counted.candidates(result.domain)),
                *sections.cost.rows(plan, traffic),
            ],
        ),
    ]


def _experts(result: Result) -> list[dict[str, Any]]:
    """Return the sections with numbers for experts, which are folded at first."""
    plan, traffic = result.plan, result.secure_sum
    private = sections.privacy.fields(plan, traffic) or {}
    planned = sections.cost.fields(plan, traffic)
    del planned["spelling"]  # the row "Upload" in another section says it in words
    if plan.calendar is not None:
        planned["calendar"] = str(plan.calendar)
    if not private.get("rho_delta"):  # rho holds with probability 1: no exception to show
        private.pop("rho_delta", None)
    private.pop("in_a_row", None)  # `sections.privacy.rows` says it in words
    return [
        section(
            "Plan and decoder",
            [
                ("Recovery", result.recovery),
                *sections.error.sizing_rows(result.sizing),
                *sections.error.target_rows(plan),
                *_named(planned | {"num_clients": result.num_clients}, plan),
            ],
        ),
        *(
            [section("Privacy", [*sections.privacy.rows(plan, traffic), *_named(private, plan)])]
            if private
            else []
        ),
    ]


def section(
    title: str, rows: Sequence[tuple[str, str]], lines: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a section for the template: a dict with heading, rows of (name, texts), and lines.

    Args:
        title: the heading.
        rows: pairs of a name and a text. A pair with the name "" adds its text to the row before.
        lines: the lines of text below the rows.
    """
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
    """Return notes as sentences: the first letter is a capital, control characters are escaped."""
    shown = [printable(note, longest=len(note)).plain for note in notes]
    return [_capital(text) for text in shown]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _named(fields: dict[str, Any], plan: Plan) -> list[tuple[str, str]]:
    return [
        (_capital(field_names.field_name(name, plan.is_of_silos)), _shown(name, value))
        for name, value in field_names.told(fields).items()
        if not isinstance(value, bool)
    ]


def _shown(name: str, value: Any) -> str:
    """Return the value of a field as text: floats with four significant digits.

    Values of fields whose names begin with epsilon, delta or rho are upper bounds, so they are
    rounded up.

    >>> _shown("epsilon", 1.9999992), _shown("noise_variance", 136.0044), _shown("rows", 1200)
    ('2', '136', '1,200')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    from fedtally.privacy.accounting import rounded_up

    return f"{rounded_up(value) if name.startswith(_BOUNDS) else value:.4g}"
