"""`fedtally merge`: one answer from the results of several plans."""

from __future__ import annotations

from datetime import date
from typing import Any

import click

from fedtally.cli import console
from fedtally.cli.help import Command, Present
from fedtally.cli.shared import as_named, json_option, shared


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
            "fedtally merge first.fedtally rest.fedtally --query lesi --details",
        ),
        ("a table to share", "fedtally merge first.fedtally rest.fedtally --output all.csv"),
        ("a page to share", "fedtally merge first.fedtally rest.fedtally --report all.html"),
    ],
)
@click.argument("results", metavar="RESULT RESULT...", nargs=-1, type=Present())
@shared("merge")
@json_option
def merge(results: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Make one answer from the results of several plans over the same candidates.

    The RESULTs are files of --save, of parts of a campaign or of whole campaigns. A client, or a
    person of silos, that is in two of them counts in both. A plan for the next part may come from
    `fedtally plan --like RESULT`. Frequencies are shares of all of them together.
    """
    from fedtally.answer import amounts, documents, merged_page, page
    from fedtally.answer.answer import Answer
    from fedtally.answer.exports import check_export_path, write_table
    from fedtally.answer.result import Result

    top, query = options["top"], options["query"]
    output, path = options["output"], options["report"]
    console.check_files([output, path], results)
    if output is not None:
        check_export_path(output)
    if path is not None:
        page.check_report_path(path)
    merged = Answer([Result.load(path) for path in results], disjoint=options["disjoint"])
    with console.Progress() as progress:
        for part in merged.parts:
            part.prepare(progress)
    estimates = merged.top(top) if top else []
    queried = merged.estimates(as_named(merged.domain, query)) if query else []
    if output is not None:
        table = merged.to_arrow()
        changed = write_table(table, output)
        console.note(f"wrote {output}: {amounts.counted(len(table), 'estimate')}", as_json)
        console.note_of_cells(changed, as_json)
    if path is not None:
        merged_page.write_merged_page(
            merged,
            results,
            estimates,
            queried,
            command=console.command_line(),
            path=path,
            title=options["title"] or "",
            day=date.today(),
        )
        console.note(f"wrote {path}: the report", as_json)
    if as_json:
        console.show_json(documents.of_merged(merged, results, estimates, queried))
    else:
        details = options["details"]
        console.show(
            merged_page.merged_answer(merged, results, estimates, queried, details=details)
        )
