"""`fedtally merge`: one answer from the results of several plans."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from fedtally._text import escaped
from fedtally.cli import console
from fedtally.cli.layout import Command, json_option, option
from fedtally.cli.options import as_named, details_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtally.merged import Merged
    from fedtally.result import Estimate

_NAMED = 3  # results that one screen names, each by itself


@click.command(
    cls=Command,
    short_help="Make one answer from the results of several plans.",
    examples=[
        (
            "two parts of one campaign, whose results were saved",
            "fedtally estimate words.txt --domain dictionary.txt --save first.fedtally",
        ),
        ("", "fedtally estimate words.txt.gz --domain dictionary.txt --save rest.fedtally"),
        ("", "fedtally merge first.fedtally rest.fedtally"),
        (
            "some items, and how the answer was made",
            "fedtally merge first.fedtally rest.fedtally --query baba --details",
        ),
        ("a table to hand on", "fedtally merge first.fedtally rest.fedtally --output all.csv"),
    ],
)
@click.argument("results", metavar="RESULT RESULT...", nargs=-1, type=click.Path())
@option(
    "Answer",
    "--top",
    type=click.INT,
    default=20,
    metavar="K",
    help="How many items are shown (20).",
)
@option(
    "Answer",
    "--query",
    multiple=True,
    metavar="ITEM",
    help="Also estimate this item; may be repeated.",
)
@option(
    "Files",
    "--output",
    type=click.Path(),
    metavar="FILE",
    help="All estimates, as .csv or .parquet.",
)
@details_option
@json_option
def merge(
    results: tuple[str, ...],
    top: int,
    query: tuple[str, ...],
    output: str | None,
    details: bool,
    as_json: bool,
) -> None:
    """Make one answer from the results of several plans over the same candidates.

    The RESULTs are files of --save, of parts of a campaign or of whole campaigns. A client, or a
    person of silos, that is in two of them counts in both. A plan for the next part may come from
    `fedtally plan --like RESULT`. Frequencies are shares of all of them together.
    """
    from fedtally import report
    from fedtally.merged import Merged
    from fedtally.result import Result, check_export_path, write_table

    console.check_files([output], results)
    if output is not None:
        check_export_path(output)
    merged = Merged([Result.load(path) for path in results])
    with console.Progress() as progress:
        for part in merged.results:
            part.prepare(progress)
    estimates = merged.top(top) if top else []
    queried = merged.estimates(as_named(merged.domain, query)) if query else []
    if output is not None:
        table = merged.to_arrow()
        write_table(table, output)
        console.note(f"wrote {output}: {report.counted(len(table), 'estimate')}", as_json)
    if as_json:
        console.show_json(_document(merged, results, estimates, queried))
    else:
        console.show(_view(merged, results, estimates, queried, details))


def _document(
    merged: Merged,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
) -> dict[str, Any]:
    from fedtally import report

    parts = [
        {
            "file": path,
            "fingerprint": part.plan.fingerprint,
            "num_clients": part.num_clients,
            "privacy": report.privacy_fields(part.plan, part.secure_sum),
            "warnings": list(part.warnings),
        }
        for path, part in zip(paths, merged.results, strict=True)
    ]
    about = merged.about
    fields = {
        "schema": "fedtally-merged/1",
        "num_clients": merged.num_clients,
        "warnings": list(merged.warnings),
        "intervals": (
            about and report.limits_fields(merged.confidence, merged.interval_kind, about)
        ),
        "results": parts,
        "together": merged.joint_guarantee.to_dict(),
    }
    named = {"queries": [asdict(estimate) for estimate in queried]} if queried else {}
    return fields | {"estimates": [asdict(estimate) for estimate in estimates]} | named


def _view(
    merged: Merged,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
    details: bool,
) -> RenderableType:
    """Return the answer as a terminal shows it: on one screen, or with all details."""
    from rich.console import Group
    from rich.text import Text

    from fedtally import report

    unit = merged.unit
    shares_counters = not all(part.plan.is_histogram for part in merged.results)
    of: dict[str, Any] = {"unit": unit, "shares_counters": shares_counters}
    is_open = merged.results[0].plan.is_open
    among = "all strings" if is_open else report.counted(merged.domain.size, "candidate")
    parts: list[RenderableType] = [
        report.heading(
            f"Share of each item among {merged.num_contributions:,} {unit} in {len(paths):,}"
            f" results; {among}"
        )
    ]
    if estimates or not queried:
        shown = report.estimates_table(estimates, **of) if estimates else report.none_listed()
        parts += [Text(), shown]
    if queried:
        asked = report.estimates_table(queried, ranked=False, **of)
        parts += [Text(), report.heading("Items asked for"), Text(), asked]
        strangers = report.no_candidates(merged.domain, queried)
        parts += [strangers] if strangers else []
    parts.append(Text())
    if details:
        rows = [*_details(merged, paths, estimates, queried), *report.noted(merged.warnings)]
        return Group(*parts, report.facts(rows))
    alarms = {note for part in merged.results for note in part.alarms}
    more = report.more_lines(estimates, queried)
    rows = _short(merged, paths, estimates, queried)
    return report.Screen(Group(*parts), rows, merged.cautions, (), more, alarms=len(alarms))


def _short(
    merged: Merged,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
) -> list[tuple[str, RenderableType]]:
    """Return the rows of an answer on one screen: certainty, privacy, bytes and results."""
    from fedtally import report

    results = merged.results
    is_exact = all(part.is_exact for part in results)
    kind, unit = merged.interval_kind, merged.unit
    sure = (
        report.holds(merged.confidence, kind, estimates, queried, unit, is_exact=is_exact)
        if merged.about
        else ["not estimated: the confidence is 0"]
    )
    said = {report.privacy_sentence(part.plan) for part in results}
    private = said.pop() if len(said) == 1 else "each result has its own: --details lists them"
    least, most = (
        report.size(end(part.plan.bytes_per_client for part in results)) for end in (min, max)
    )
    sizes = least if least == most else f"{least} to {most}"
    named = [
        f"{_name(path)} {part.num_contributions:,} {part.unit}"
        for path, part in zip(paths, results, strict=True)
    ]
    return [
        *([("Error", "; ".join(sure))] if sure else []),
        ("Privacy", private),
        *([_together(merged)] if any(part.plan.privacy for part in results) else []),
        ("Upload", f"{sizes} per {report.who(results[0].plan)} and round"),
        ("Results", "; ".join(named) if len(named) <= _NAMED else f"{len(named):,}"),
    ]


def _details(
    merged: Merged,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
) -> list[tuple[str, RenderableType]]:
    """Return all rows on how the answer was made, with a row for each result."""
    from fedtally import report

    about = merged.about
    rows = (
        report.covered(merged.confidence, merged.interval_kind, about, estimates, queried)
        if about
        else []
    )
    for path, part in zip(paths, merged.results, strict=True):
        size = (
            f"{report.contributions(part)}, {report.dimensions(part.plan)}, plan"
            f" {part.plan.fingerprint[:16]}"
        )
        private = report.privacy_fields(part.plan, part.secure_sum)
        guaranteed = report.NO_PRIVACY if private is None else report.guarantee(private)
        # The path is not the label: a long one would leave no room for the text.
        rows.append(("Result", f"{escaped(path)}: {size}; {guaranteed}"))
    return [*rows, _together(merged)]


def _together(merged: Merged) -> tuple[str, str]:
    nouns = {part.plan.nouns[0] for part in merged.results}
    return "Together", f"a {' or '.join(sorted(nouns))} in all of them: {merged.joint_guarantee}"


def _name(path: str) -> str:
    return escaped(os.path.basename(path))
