"""`fedtally query`, `report` and `inspect`: commands on one file that fedtally wrote."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedtally.base import validate
from fedtally.base.text import escaped
from fedtally.cli import console
from fedtally.cli.help import Command, Present, option
from fedtally.cli.shared import as_named, json_option, shared
from fedtally.errors import InvalidInputError, UnreadableFileError
from fedtally.options import AS_TABLE

if TYPE_CHECKING:
    from fedtally.plan import Plan


@click.command(
    cls=Command,
    short_help="Estimate items named now, from a saved result.",
    examples=[
        ("keep a result, then ask it", "fedtally demo --save demo.fedtally"),
        ("", "fedtally query demo.fedtally self lambda async"),
        ("many items, one a line", "fedtally query demo.fedtally --items dictionary.txt --json"),
    ],
)
@click.argument("result", type=Present())
@click.argument("items", metavar="[ITEM]...", nargs=-1)
@option(
    "Data",
    "--items",
    "file",
    type=click.Path(),
    metavar="FILE",
    help="Read the items from FILE, FILE:COL, or - for standard input",
)
@shared("query")
@json_option
def query(
    result: str,
    items: tuple[str, ...],
    file: str | None,
    window: str,
    history: int,
    recovery: str | None,
    confidence: float | None,
    intervals: str | None,
    details: bool,
    as_json: bool,
) -> None:
    """Estimate items that are named now, from a saved result.

    RESULT is a file of --save. If the candidates were a list (--domain FILE), a range or a grid, an
    ITEM must be one of them. Otherwise it may be any string. Put -- before an ITEM that starts with
    a dash.
    """
    from fedtally.answer import screen, sections
    from fedtally.answer.result import Result

    saved = Result.load(result)
    whole = saved.decoded(recovery=recovery, confidence=confidence, intervals=intervals)
    named = _named(items, file)
    with console.Progress() as progress:
        loaded = whole.window(window, history, progress)
        loaded.prepare(progress, names=False)  # the user names the items, so no names need be found
    if recovery == "auto":  # only decoding shows which decoder this is
        _note_decoder(saved.recovery, loaded.recovery, as_json)
    estimates = loaded.estimates(as_named(loaded.domain, named))
    if as_json:
        answer = {
            "fingerprint": loaded.plan.fingerprint,
            "num_clients": loaded.num_clients,
            "num_contributions": loaded.num_contributions,
            "window": None if loaded.span is None else loaded.span.fields(),
            "recovery": loaded.recovery,
            "objective": loaded.objective,
            "intervals": sections.error.intervals_fields(loaded),
            "error": sections.error.fields(estimates),
            "privacy": sections.privacy.fields(loaded.plan, loaded.secure_sum),
            "warnings": list(loaded.warnings),
        }
        console.show_json(
            {
                "schema": "fedtally-query/2",
                **answer,
                "estimates": [sections.listed.estimate_fields(estimate) for estimate in estimates],
            }
        )
    else:
        console.show(screen.answer(loaded, (), estimates, details=details, again=True))


def _named(items: Sequence[str], file: str | None) -> list[str]:
    """Return the items to query: the items of the command line, then the lines of a file.

    Args:
        items: the items of the command line.
        file: a text that names a list of items: FILE, with one item a line; FILE:COL, a column of a
            table; or "-", standard input. None: only `items` are queried.

    Raises:
        InvalidInputError: there is no item, or the file cannot be read.
    """
    named = [*items, *(_lines(file) if file else ())]
    if not named:
        raise InvalidInputError("no item is named; write items after the result, or --items FILE")
    return named


def _note_decoder(before: str, now: str, quiet: bool) -> None:
    """Print which decoder "auto" chose now, and the decoder of the saved result if it differs.

    Args:
        before: the decoder of the saved result.
        now: the decoder that was chosen now.
        quiet: whether nothing is printed.
    """
    other = "" if now == before else f", not by {before} as before"
    console.note(f"auto: decoded by {now} recovery{other}", quiet=quiet)


@click.command(
    cls=Command,
    short_help="Write the report of a saved result, one HTML file.",
    examples=[
        ("a result, and its page to share", "fedtally demo --save demo.fedtally"),
        ("", "fedtally report demo.fedtally -o demo.html"),
    ],
)
@click.argument("result", type=Present())
@option(
    "Files",
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    help="Write to this file, .html [the result's name with .html]",
)
@shared("report")
def report(
    result: str, output: str | None, title: str | None, top: int, window: str, history: int
) -> None:
    """Write the report of a saved result: one HTML file that loads nothing (extra `report`).

    `fedtally merge --report` writes that of several results together.
    """
    from fedtally.answer.page import Head, check_report_path, write_page
    from fedtally.answer.result import Result

    path = str(Path(result).with_suffix(".html")) if output is None else output
    console.check_files([path], [result])
    check_report_path(path)
    validate.integer(0, top=top)
    saved = Result.load(result)
    with console.Progress() as progress:
        loaded = saved.window(window, history, progress)
        loaded.prepare(progress)
        estimates = loaded.top(top, progress=progress)
        progress("draw")
        # A result that Python code saved has no command, so this process's command is shown. The
        # command in a stranger's result may have any characters, so it is escaped.
        command = escaped(saved.command) or console.command_line()
        head = Head(title or "", [result], date.today())
        write_page(loaded, estimates, command=command, path=path, head=head)
    console.note(f"wrote {path}")


def _lines(path: str) -> list[str]:
    from fedtally.domain.columns import as_text
    from fedtally.sources import open_list, open_source

    console.check_standard_input(path)
    source = open_source(path, format="text") if path == "-" else open_list(path)
    batches = source.batches(may_be_empty=True)
    return [item for batch in batches for item in as_text(batch.items).to_pylist()]


@click.command(
    cls=Command,
    short_help="Show what is in a plan, sketch or result.",
    examples=[
        ("a saved result", "fedtally demo --save demo.fedtally"),
        ("", "fedtally inspect demo.fedtally"),
        (
            "the fingerprint of a plan, for a script",
            "fedtally plan --clients 9000 --domain-size 900 --tau 0.1 --epsilon 1 -o plan.toml",
        ),
        (
            "",
            "fedtally inspect plan.toml --json | jq -r .fingerprint",
        ),
        (
            "the distribution of its privacy loss, for another accountant",
            "fedtally inspect plan.toml --privacy-loss loss.csv",
        ),
    ],
)
@click.argument("file", type=Present())
@option(
    "Run",
    "--privacy-loss",
    "losses",
    type=click.Path(),
    metavar="FILE",
    help=f"Write the distribution of the privacy loss, as {AS_TABLE}",
)
@json_option
def inspect(file: str, losses: str | None, as_json: bool) -> None:
    """Show what is in a plan (.toml, .json), a sketch or a result, and its fingerprint."""
    console.check_files([losses], [file])
    kind, facts = _describe(file)
    if losses is not None:
        _write_losses(kind, file, losses)
    _show(kind, file, facts, as_json)


def show_plan(plan: Plan, name: str, as_json: bool) -> None:
    """Print a plan as `fedtally inspect` prints its file.

    Args:
        plan: the plan.
        name: the name of its file, or another description.
        as_json: whether one JSON document is printed.
    """
    _show("plan", name, _plan_fields(plan), as_json)


def _show(kind: str, name: str, facts: dict[str, Any], as_json: bool) -> None:
    """Print the fields of a file, as text or as one JSON document.

    Args:
        kind: the kind of the file: "plan", "result" or "sketch".
        name: the name of the file, for the heading.
        facts: the fields. If they are printed as text, this dict is changed.
        as_json: whether to print a JSON document instead of text.
    """
    from fedtally.answer import field_names, sections, tables
    from fedtally.plan.calendar import noun_of

    if as_json:
        console.show_json({"schema": "fedtally-inspect/1", "kind": kind, **facts})
        return
    fingerprint, warnings = facts.pop("fingerprint"), facts.pop("warnings", [])
    private = facts.get("privacy")
    if private is not None:
        calendar = facts.get("calendar")
        rounds = "rounds" if calendar is None else noun_of(calendar["period"])
        said = sections.privacy.guarantee(private, rounds)
        facts["privacy"] = f"{said}; population {private['population']}"
    of_silos = facts.get("people", 1) > 1
    rows = [
        (field_names.field_name(name, of_silos), tables.printable(_readable(name, value)))
        for name, value in field_names.told(facts).items()
    ]
    rows += [("warning", tables.printable(warning)) for warning in warnings]
    console.show(tables.heading(f"{kind.capitalize()} {name}"))
    console.show(tables.printable(f"fingerprint {fingerprint}"))
    console.show(tables.facts(rows))


def _write_losses(kind: str, file: str, path: str) -> None:
    """Write the distribution of a plan's privacy loss as a table; see `accounting.privacy_loss`.

    Args:
        kind: the kind of the file: "plan", "result" or "sketch".
        file: the path of a plan, or of a result, which contains its plan.
        path: the path of the table.

    Raises:
        InvalidInputError: the file is a sketch, its plan has no differential privacy, the noise is
            too little or too much for a table, or `path` is no name of a table.
    """
    import pyarrow as pa

    from fedtally.answer.exports import check_export_path, write_table
    from fedtally.answer.result import Result
    from fedtally.plan import Plan
    from fedtally.privacy.accounting import privacy_loss

    check_export_path(path)
    readers: dict[str, Callable[[], Plan | None]] = {
        "plan": lambda: Plan.load(file),
        "result": lambda: Result.load(file).plan,
        "sketch": lambda: None,
    }
    plan = readers[kind]()
    if plan is None or plan.privacy is None:
        raise InvalidInputError(
            f"{file} guarantees no differential privacy: --privacy-loss takes a plan, or a result,"
            " with it"
        )
    write_table(pa.table(privacy_loss(plan.privacy.event)._asdict()), path)


def _describe(file: str) -> tuple[str, dict[str, Any]]:
    """Read a file that fedtally wrote; return its kind ("plan", "result" or "sketch") and fields.

    Raises:
        UnreadableFileError: the file is missing or damaged, or is of another kind or version.
    """
    from fedtally.answer.provenance import SCHEMA as RESULT
    from fedtally.base import archive
    from fedtally.sketch.count_sketch import SCHEMA as SKETCH

    if Path(file).suffix.lower() in (".toml", ".json"):
        from fedtally.plan import Plan

        return "plan", _plan_fields(Plan.load(file))
    readers: dict[str, tuple[str, Callable[[], dict[str, Any]]]] = {
        SKETCH: ("sketch", lambda: _sketch_fields(file)),
        RESULT: ("result", lambda: _result_fields(file)),
    }
    schema = archive.schema_of(file)
    if schema not in readers:
        raise UnreadableFileError(
            f"{file} holds {schema}, which this version does not read: take the fedtally that"
            " wrote it, or make it anew"
        )
    kind, read = readers[schema]
    return kind, read()


def _plan_fields(plan: Plan) -> dict[str, Any]:
    from fedtally.answer import sections
    from fedtally.plan import Target

    return sections.cost.fields(plan) | {
        "max_round_clients": plan.max_round_clients,
        "max_items": plan.max_items,
        "secure_sum": "ideal" if plan.secure_sum is None else plan.secure_sum.method,
        "missing_keys": list(plan.missing_keys),
        "privacy": sections.privacy.fields(plan),
        "target": Target.fields_of(plan.target),
        "domain": dict(plan.domain),
    }


def _result_fields(file: str) -> dict[str, Any]:
    from fedtally.answer import sections
    from fedtally.answer.result import (
        Result,  # imported here: it loads all decoders and SciPy, which other files do not need
    )

    result = Result.load(file)
    return sections.cost.fields(result.plan, result.secure_sum) | {
        "max_items": result.plan.max_items,
        "recovery": result.recovery,
        "objective": result.objective,
        "confidence": result.confidence,
        "intervals": result.interval_kind,
        "num_clients_landed": result.num_clients,
        "num_contributions": result.num_contributions,
        "num_silos": result.num_silos if result.plan.is_of_silos else None,
        "secure_sum": sections.dap_sums.method(result.secure_sum),
        "rounds_landed": len(result.sketches),
        "privacy": sections.privacy.fields(result.plan, result.secure_sum),
        "missing": result.missing,
        "domain": dict(result.plan.domain),
        "evaluation": result.evaluation_fields,
        "command": result.command or None,
        "warnings": list(result.warnings),
    }


def _sketch_fields(file: str) -> dict[str, Any]:
    """Return the fields of a sketch's file.

    The field `fingerprint` is a SHA-256 of the sketch's parameters, round, number of clients and
    counters.
    """
    from fedtally.sketch.count_sketch import CountSketch, spec_to_dict

    sketch = CountSketch.load(file)
    fields = {**spec_to_dict(sketch.spec), "round": sketch.round, "num_clients": sketch.num_clients}
    digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode() + b"\n")
    # The byte order is fixed. Otherwise the fingerprint would depend on the machine.
    digest.update(sketch.counters.astype("<i8").tobytes())
    return fields | {
        "noised_by": None if sketch.noise is None else sketch.noise.by,
        "largest_cell": int(abs(sketch.counters).max()),
        "fingerprint": digest.hexdigest(),
    }


def _readable(name: str, value: Any) -> str:
    from fedtally.answer import amounts, field_names

    if name.endswith("bytes_per_client"):
        size = amounts.size(value)
        return size if size == f"{value} B" else f"{size} ({value:,} bytes)"
    if isinstance(value, dict):
        return "; ".join(
            f"{field_names.field_name(key)}: {_readable(key, part)}" for key, part in value.items()
        )
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:.3g}"
        if isinstance(value, float)
        else str(value)
    )
