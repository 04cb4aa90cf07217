"""`fedtally simulate`: compare schedules and widths of sketches, or test a plan."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console, verdict
from fedtally.cli.help import Command, Present, option, options
from fedtally.cli.shared import (
    asked,
    check_outputs,
    open_input,
    positive,
    read_domain,
    read_open_domain,
    shared,
    use_threads,
)
from fedtally.errors import InvalidInputError
from fedtally.options import DECODERS, Door, read_list

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtally.plan.rules import Need
    from fedtally.studies.schedules import Comparison, StudyResult
    from fedtally.studies.validation import TrialResult

# The default numbers of repeats: for a comparison; for the test of a plan, where fewer repeats
# could not show whether at most 10 % fail; for an open domain, where each repeat takes seconds.
_REPEATS, _REPEATS_OF_PLAN, _REPEATS_OF_OPEN = 10, 50, 5
# Options that have no effect for an open domain, since the planner chooses their values.
_CHOSEN = ("methods", "width", "rows")
_NOT_HIDDEN = "exact; not compatible with secure summation: the server would see each item"


_study_options = options(
    option(
        "Study",
        "--methods",
        type=read_list,
        default="hybrid,fresh,shared,one-hot,binary",
        metavar="LIST",
        is_often=True,
        help="Compare schedules, batched:B or module:Class [hybrid,fresh,shared,one-hot,binary]",
    ),
    option(
        "Study",
        "--repeats",
        type=positive,
        metavar="R",
        is_often=True,
        help=f"Repeat the draws R times [{_REPEATS}; --plan {_REPEATS_OF_PLAN};"
        f" --domain open {_REPEATS_OF_OPEN}]",
    ),
    option(
        "Study",
        "--clients",
        type=click.Choice(["split"]),
        default="split",
        help="Give each client one round, drawn at random [split]",
    ),
)


@click.command(
    cls=Command,
    short_help="Compare schedules and widths, or test a plan.",
    examples=[
        (
            "three schedules at two widths",
            "fedtally simulate zipf: --methods hybrid,fresh,shared --width 200,1000",
        ),
        (
            "batches of rounds, 50 repeats, every error in a table",
            (
                "fedtally simulate zipf:a=1.3 --methods hybrid,batched:4 --repeats 50 --output"
                " study.csv"
            ),
        ),
        ("what privacy costs each of them", "fedtally simulate zipf: --epsilon 1 --recovery joint"),
        (
            "on a table, with a chart",
            "fedtally simulate words.txt --width 100,300,1000,3000 --plot study.png",
        ),
        (
            "a decoder of your own: the class Trimmed in trimmed.py (docs/library.md)",
            "fedtally simulate zipf: --recovery trimmed:Trimmed",
        ),
        (
            "a plan: does it meet its target?",
            "fedtally plan --clients 3000 --domain dictionary.txt --tau 0.02 -o plan.toml",
        ),
        (
            "",
            "fedtally simulate --plan plan.toml words.txt --domain dictionary.txt --repeats 200",
        ),
        (
            "strings that nobody has a list of: how many are named?",
            "fedtally simulate words.txt --domain open --epsilon 4 --repeats 5",
        ),
    ],
)
@click.argument("source", type=Present())
@_study_options
@shared("simulate")
def simulate(source: str, **options: Any) -> int:
    """Compare schedules and widths on one population, or test whether a plan meets its target.

    SOURCE is an INPUT of `fedtally estimate`. Each repeat draws new rounds and new hashes; within a
    repeat all methods see the same ones. A client holds one item, drawn from its own; with --plan,
    up to the plan's --max-items.

    With --plan every repeat is a campaign of the plan with exactly the plan's number of clients.
    They are drawn from SOURCE with replacement, unless SOURCE has just as many. The target counts
    as missed if so many repeats exceed its error that chance alone would bring about in at most one
    of a hundred studies; the exit code is then 1, else 0. Of a plan for an open domain the share of
    the frequent strings that are named counts in the same way.

    With --domain open and no plan, the plan is made first: the one of `fedtally plan` for as many
    clients as SOURCE has, for --tau, or for --max-bytes.
    """
    console.check_files(
        [options[name] for name in ("output", "plot")], [source, options["domain"], options["plan"]]
    )
    if options["recovery"] == "auto":  # None: chosen later, from the number of rows or the plan
        options["recovery"] = None
    if options["plan"] is not None:
        return _test_plan(source, options)
    if options["domain"] == "open":
        return _test_open(source, options)
    found = _compare(source, options)
    drawn = "largest error against bytes per client"
    verdict.write_files(found, options, partial(_plot, found), drawn)
    if options["as_json"]:
        console.show_json(_document(found))
    else:
        console.show(_view(found))
    return 0


def _compare(source: str, options: dict[str, Any]) -> StudyResult:
    from fedtally.plan.rules import unmet
    from fedtally.recovery.decoding import recovery_of
    from fedtally.studies import schedules as engine

    _check(options, _typed(options), unmet(open=True, open_test=True))
    if (here := os.getcwd()) not in sys.path:  # --recovery may name a module of the user there
        sys.path.insert(0, here)
    study = engine.Study(
        methods=options["methods"],
        widths=_widths(options["width"]),
        rows=options["rows"],
        num_rounds=options["num_rounds"],
        repeats=options["repeats"] or _REPEATS,
        # `planned` excludes belief propagation, which would be too slow: dozens of campaigns are
        # decoded here.
        recovery=options["recovery"] or str(recovery_of("auto", 1, options["rows"], planned=True)),
        epsilon=options["epsilon"],
        delta=options["delta"],
        trust=options["trust"],
        seed=options["seed"],
    )
    use_threads(options["threads"])
    domain, data = read_domain(options["domain"]), open_input(source, options)
    with console.Progress(options["quiet"]) as progress:
        return engine.run(data, study, domain, options["outside"], progress)


def _test_plan(source: str, options: dict[str, Any]) -> int:
    """Simulate campaigns of a plan, and print whether the plan meets its targets.

    Args:
        source: the argument INPUT: the items of the clients.
        options: the options of the command, which name the plan.

    Returns:
        The exit code: 1 if the plan misses a target, else 0.
    """
    from fedtally.plan import Plan
    from fedtally.plan.rules import check, unmet
    from fedtally.studies import validation as engine

    typed = _typed(options)
    check(typed, unmet(no_plan=True, no_tested_plan=True))
    _check_recovery(options, "--plan")
    plan, repeats = Plan.load(options["plan"]), options["repeats"] or _REPEATS_OF_PLAN
    is_open = plan.is_open
    _check(options, typed, unmet(list=is_open, open_plan=not is_open))
    use_threads(options["threads"])
    trial = engine.Trial(plan, repeats, options["recovery"], options["seed"])
    named = options["domain"]
    domain = named if is_open and named == "open" else read_domain(named)
    data = open_input(source, options)
    with console.Progress(options["quiet"]) as progress:
        found = engine.run(data, trial, domain, options["outside"], progress)
    return _judged(found, options)


def _test_open(source: str, options: dict[str, Any]) -> int:
    """Make a plan with an open domain for the clients of the input, and test it.

    Args:
        source: the argument INPUT: the items of the clients.
        options: the options of the command.

    Returns:
        The exit code: 1 if the plan misses a target, else 0.
    """
    from fedtally.plan.rules import unmet
    from fedtally.simulation.simulation import Simulation
    from fedtally.studies import validation as engine

    typed = _typed(options)
    _check(options, typed, unmet(no_open_test=True, list=True))
    _check_recovery(options, "--domain open")
    use_threads(options["threads"])
    wanted = asked("simulate", options, Door.REQUEST, Door.SIMULATION)
    wanted |= {
        "domain": read_open_domain(options),
        "num_rounds": typed.get("num_rounds"),
        "recovery": options["recovery"] or "auto",
        "not_private": options["epsilon"] is not None,  # a test also shows the true frequencies
    }
    for name in _CHOSEN:
        wanted.pop(name, None)
    simulation = Simulation.of(**wanted)
    repeats, data = options["repeats"] or _REPEATS_OF_OPEN, open_input(source, options)
    with console.Progress(options["quiet"]) as progress:
        found = engine.run_open(data, simulation, repeats, options["recovery"], progress)
    return _judged(found, options)


def _typed(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the user typed on the command line, by name."""
    source = click.get_current_context().get_parameter_source
    return {
        name: value
        for name, value in options.items()
        if source(name) is click.core.ParameterSource.COMMANDLINE
    }


def _check_recovery(options: dict[str, Any], beside: str) -> None:
    if ":" in (options["recovery"] or ""):
        raise InvalidInputError(
            f"{beside} tests what real campaigns do, with --recovery {' or '.join(DECODERS)}, got"
            f" {options['recovery']}"
        )


def _judged(found: TrialResult, options: dict[str, Any]) -> int:
    """Write and print the results of a test.

    Returns:
        The exit code: 1 if the target for the error, or for the names found, is missed, else 0.
    """
    drawn = "the plan among neighbouring widths"
    verdict.write_files(found, options, partial(verdict.plot, found), drawn)
    if options["as_json"]:
        console.show_json(verdict.document(found))
    else:
        console.show(verdict.view(found))
    is_named = found.recall is None or found.recall.met is not False
    return 0 if is_named and (found.verdict is None or found.verdict.met) else 1


def _widths(texts: tuple[str, ...]) -> tuple[int, ...]:
    try:
        return tuple(int(text) for text in texts)
    except ValueError:
        raise InvalidInputError(
            f"--width takes integers separated by commas such as 200,1000, got {','.join(texts)!r}"
        ) from None


def _check(options: dict[str, Any], typed: dict[str, Any], lacking: dict[Need, str]) -> None:
    """Check which options are given together, and then the names of the output files.

    If the names were checked first, users might install a package for charts and then learn that
    their options allow no chart.

    Args:
        options: all options of the command.
        typed: the options that the user typed.
        lacking: the needs that this call does not meet, as `plan.rules.unmet` returns them. An
            option that has one of these needs is refused.

    Raises:
        InvalidInputError: the options do not go together, or the name of an output file has a
            suffix that this output cannot have.
        MissingExtraError: a package that is needed to write a file is not installed.
    """
    from fedtally.plan.rules import check

    check(typed, lacking)
    check_outputs(options, "output", "plot")


def _plot(found: StudyResult, path: str) -> None:
    """Draw the errors of all methods against their bytes: medians, and bands of the repeats.

    A band goes from the 10 % quantile to the 90 % quantile of the repeats.

    Args:
        found: the results of the comparison.
        path: the path of the file.
    """
    import numpy as np

    from fedtally.answer import amounts, charts

    study = found.study
    curves: dict[str, list[charts.Point]] = {}
    costs: dict[str, float] = {}
    for comparison in found.comparisons():
        if comparison.width is None:
            # A method without a secure sum is not drawn: its few bytes would squeeze the curves.
            if comparison.secure_sum:
                name = comparison.method if study.privacy else f"{comparison.method} (exact)"
                costs[name] = comparison.bytes_per_client
            continue
        cell = (comparison.method, comparison.width)
        errors = [m.linf for m in found.measurements if (m.method, m.width) == cell]
        low, middle, high = np.quantile(errors, [0.1, 0.5, 0.9]).tolist()
        curves.setdefault(comparison.method, []).append(
            charts.Point(comparison.bytes_per_client, middle, low, high)
        )
    rounds = amounts.counted(study.num_rounds, "round")
    what = (
        f"{found.num_clients:,} clients in {rounds}, {study.rows} rows, {study.recovery} recovery"
    )
    title = f"{what}\nmedian, 10 % and 90 % of {study.repeats} repeats"
    charts.error_against_bytes(curves, costs, title=title, path=path)


def _document(found: StudyResult) -> dict[str, Any]:
    from fedtally.answer.notes import RARE_ITEMS
    from fedtally.studies.own import fits_items

    study = found.study
    return {
        "schema": "fedtally-study/1",
        "num_clients": found.num_clients,
        "domain": found.domain.describe(),
        "rows": study.rows,
        "num_rounds": study.num_rounds,
        "repeats": study.repeats,
        "recovery": study.recovery,
        "privacy": None if study.privacy is None else _target(found),
        "warnings": ([RARE_ITEMS] if fits_items(study.recovery) and study.privacy is None else []),
        "comparisons": [
            c._asdict() | {"linf": c.linf._asdict(), "l2": c.l2._asdict()}
            for c in found.comparisons()
        ],
    }


def _view(found: StudyResult) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import amounts, sections, tables

    study, domain = found.study, found.domain
    sizes = (
        (found.num_clients, "client"),
        (domain.size, "candidate"),
        (study.num_rounds, "round"),
        (study.repeats, "repeat"),
    )
    title = ", ".join(
        [*(amounts.counted(number, name) for number, name in sizes), f"{study.recovery} recovery"]
    )
    rows = [
        (
            "Errors",
            (
                "l_inf, the largest of all candidates' errors, and l_2, the root of the sum of"
                " their squares, in percentage points; mean, median and 90 % quantile of the"
                " repeats"
            ),
        ),
        ("Upload", "bytes per client and round"),
        ("Privacy", _privacy_in_words(found)),
        sections.counted.candidates_row(domain),
    ]
    noised = "exact" if study.privacy is None else "no collisions, the same privacy"
    exact = [
        (c.method, noised if c.secure_sum else _NOT_HIDDEN)
        for c in found.comparisons()
        if c.width is None
    ]
    return Group(
        tables.heading(title), _table(found.comparisons()), Text(), tables.facts([*rows, *exact])
    )


def _target(found: StudyResult) -> dict[str, Any]:
    """Return the privacy guarantee for which each method adds noise, as a dict for JSON."""
    from fedtally.privacy.config import default_delta

    asked = found.study.privacy
    assert asked is not None
    return {
        "epsilon": asked.epsilon,
        "delta": default_delta(found.num_clients) if asked.delta is None else asked.delta,
        "neighbours": str(asked.relation),
        "trust": str(asked.trust),
        "not_private": True,
    }


def _privacy_in_words(found: StudyResult) -> str:
    from fedtally.answer import sections
    from fedtally.answer.notes import RARE_ITEMS
    from fedtally.privacy import NOT_PRIVATE
    from fedtally.studies.own import fits_items

    if found.study.privacy is None:
        return sections.privacy.NO_PRIVACY + (
            f"; {RARE_ITEMS}" if fits_items(found.study.recovery) else ""
        )
    promised = _target(found)
    return (
        f"{NOT_PRIVATE}: the noise of epsilon {promised['epsilon']:g}, delta {promised['delta']:g} "
        f"({promised['neighbours']}, {promised['trust']} trust), also in the one-hot vectors"
    )


_ERRORS = ("l_inf", "l_2")
_FIGURES = ("mean", "median", "90 %")
# The order in which columns are left out on a narrow terminal, rank 1 first. Columns that are not
# listed always stay.
_RANKS = {
    **{("l_2", figure): 1 for figure in _FIGURES},
    ("l_inf", "mean"): 2,
    ("l_inf", "90 %"): 3,
    ("", "upload"): 4,
}


def _table(comparisons: Sequence[Comparison]) -> RenderableType:
    """Return the table of the errors of a comparison, one row for each method and width."""
    from fedtally.answer import tables

    heads = [("", "width"), ("", "upload"), *((e, f) for e in _ERRORS for f in _FIGURES)]
    cells = zip(*(_figures(one, comparisons) for one in comparisons), strict=True)
    return tables.FittedTable(
        heading="method",
        names=[tables.printable(one.method) for one in comparisons],
        after=[
            tables.Column(name, texts, rank=_RANKS.get((group, name), 0), group=group)
            for (group, name), texts in zip(heads, cells, strict=True)
        ],
        noun="methods",
    )


def _figures(comparison: Comparison, all_of_them: Sequence[Comparison]) -> list[str]:
    from fedtally.answer import amounts

    cells = [
        "" if comparison.width is None else f"{comparison.width:,}",
        amounts.size(comparison.bytes_per_client),
    ]
    if comparison.width is None and not any(comparison.linf):  # an exact method: 0 without digits
        return [*cells, *["0"] * 6]
    largest = amounts.decimals(share for c in all_of_them for share in c.linf)
    squared = amounts.decimals(share for c in all_of_them for share in c.l2)
    errors = [amounts.points(error, largest) for error in comparison.linf] + [
        amounts.points(error, squared) for error in comparison.l2
    ]
    # With a unit, the six columns of errors would be too wide. The unit is below the table.
    return [*cells, *(text.removesuffix(" points") for text in errors)]
