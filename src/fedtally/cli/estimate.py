"""`fedtally estimate` and `fedtally demo`: a campaign that is simulated in this process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console
from fedtally.cli.help import Command, Present
from fedtally.cli.shared import (
    as_named,
    asked,
    check_outputs,
    open_input,
    read_open_domain,
    shared,
    use_threads,
)
from fedtally.errors import FedtallyError, InvalidInputError
from fedtally.options import Door

if TYPE_CHECKING:
    from fedtally.answer.estimates import Estimate
    from fedtally.answer.result import Result
    from fedtally.simulation.simulation import Simulation
    from fedtally.sources import Source

# Options that need an open domain, besides those that `read_open_domain` always checks.
_OF_OPEN = ("allow_rare_names",)
# The bytes of a client in the demo, a seventh of a vector without collisions: few enough to show
# what a sketch saves, and that it has errors.
_DEMO_BYTES = 8_000
_DEMO_SEED = "demo"
_LIBRARY = "Python's standard library"
_NEXT_TO_THE_DEMO = (
    ("fedtally demo --max-bytes 32kB", "more bytes, smaller errors"),
    ("fedtally demo --epsilon 1", "the noise of differential privacy"),
    ("fedtally demo --report demo.html", "a page to share"),
)


@click.command(
    cls=Command,
    short_help="Run a whole campaign on a table, in this process.",
    examples=[
        ("words, one a line; 16 kB per client", "fedtally estimate words.txt --max-bytes 16kB"),
        (
            "a table, ten rounds, at most 3 items of each user",
            "fedtally estimate visits.csv --item url --client user --max-items 3 --rounds 10",
        ),
        (
            "differentially private, of public candidates",
            "fedtally estimate words.txt --domain dictionary.txt --epsilon 1",
        ),
        (
            "as few bytes as a largest error of 0.1 % needs",
            "fedtally estimate zipf: --tau 0.001 --evaluate",
        ),
        ("strings that nobody has listed", "fedtally estimate words.txt --domain open --epsilon 1"),
        (
            "pre-aggregated counts, against a public dictionary",
            "fedtally estimate counts.parquet --item word --count n --domain dictionary.txt",
        ),
        (
            "cells of a map",
            (
                "fedtally estimate checkins.tsv --item lat,lon --domain grid:25..50,-130..-60,0.1"
                " --outside drop"
            ),
        ),
        (
            "a synthetic population, and how wrong the answer is",
            "fedtally estimate zipf:a=1.1,d=100000,n=150000 --rounds 10 --evaluate",
        ),
        (
            "real secure aggregation, a tenth of the clients lost on the way",
            "fedtally estimate zipf:d=1000,n=2000 --secure-sum secagg --dropout 0.1",
        ),
        (
            "no trusted party, and a budget that cannot be overspent",
            "fedtally ledger grant --ledger ledger.db --population phones --epsilon 4 --delta 1e-4",
        ),
        (
            "",
            (
                "fedtally estimate zipf:n=2000 --secure-sum secagg --epsilon 2 --population phones"
                " --ledger ledger.db"
            ),
        ),
        (
            "your words: as few bytes as the names of those above 0.2 % need",
            "fedtally estimate words.txt --domain open --epsilon 1 --tau 0.001",
        ),
        (
            "the same, where many of them are in a public list",
            "fedtally estimate words.txt --domain open --epsilon 1 --dictionary dictionary.txt",
        ),
        ("from a pipe, as JSON", "zcat log.gz | fedtally estimate - --json"),
    ],
)
@click.argument("source", metavar="INPUT", type=Present())
@shared("estimate")
def estimate(source: str, **options: Any) -> None:
    """Run a whole campaign on a table, in this process: every client is simulated.

    INPUT is a CSV, TSV, Parquet, Feather, JSON lines or plain text file (one item a line), also
    compressed (gz, bz2, xz, zst); several files of one kind, by a folder or by a pattern in quotes
    such as 'parts/*.csv', where folders such as day=7 may name the rounds (--round day); `-` for
    standard input; or a synthetic population of n clients and d items:

    \b
      zipf:a=1.1,d=100000,n=150000    geometric:q=0.5    zipf-log:b=2
      profile:gowalla-us,n=150000     uniform:k=100
    """  # noqa: D301 - click reads the backspace
    _check_outputs(options, source)
    simulation = _simulation(options)
    data = open_input(source, options)
    _check_answerable(data, simulation, options)
    result = _run(data, simulation, options)
    charged = _spent(result, options) if options["ledger"] else ""
    result = _windowed(result, options, charged)
    _answer(result, {**options, "source": source}, _hints(result, options), charged)
    if charged:
        console.note(charged, options["quiet"] or options["as_json"])


@click.command(
    cls=Command,
    short_help="Estimate on Python's own standard library.",
    examples=[
        ("the demo", "fedtally demo"),
        ("four times the bytes: see the errors shrink", "fedtally demo --max-bytes 32kB"),
        ("what differential privacy costs", "fedtally demo --epsilon 1"),
    ],
)
@shared("demo")
def demo(**options: Any) -> None:
    """Estimate on data that is on every machine: Python's own standard library.

    Each line of code is a client that holds one of its words, drawn at random. The server sees only
    sums of sketches; the true frequencies, which only a simulation knows, are printed beside the
    estimates. By default a client sends 8 kB, in one of 10 rounds. With --epsilon the noise is that
    of a private campaign; but the candidates are the clients' own words, and the truth is printed,
    so the run is marked not private.
    """
    import numpy as np

    from fedtally.simulation.randomness import campaign_seed
    from fedtally.simulation.simulation import Simulation
    from fedtally.sources.stdlib import library_source

    _check_outputs(options)
    # The default seed is fixed. Otherwise the numbers would differ from those in the documentation.
    seed = campaign_seed(_DEMO_SEED if options["seed"] is None else options["seed"])
    source = library_source(np.random.default_rng(int.from_bytes(seed, "little")))
    wanted = asked("demo", options, Door.REQUEST, Door.SIMULATION)
    wanted |= {"num_rounds": options["num_rounds"] or 10, "seed": seed, "evaluate": True}
    wanted["not_private"] = wanted["epsilon"] is not None
    if wanted["width"] is None:
        wanted["max_bytes"] = wanted["max_bytes"] or _DEMO_BYTES
    simulation = Simulation.of(**wanted)
    result = _run(source, simulation, options)
    _answer(result, {**options, "source": _LIBRARY}, _NEXT_TO_THE_DEMO)


def _simulation(options: dict[str, Any]) -> Simulation:
    """Return the simulation that the options of the command describe."""
    from fedtally.plan import Plan
    from fedtally.simulation.simulation import Simulation

    plan = None if options["plan"] is None else Plan.load(options["plan"])
    # A plan for an open domain allows these options, too, without --domain open.
    is_planned = plan is not None and plan.is_open
    domain = read_open_domain(options, *([] if is_planned else _OF_OPEN))
    wanted = asked("estimate", options, Door.REQUEST, Door.MARK, Door.SIMULATION)
    wanted |= {"domain": domain, "plan": plan}
    return Simulation.of(of_silos=options["silo"] is not None, **wanted)


def _check_outputs(options: dict[str, Any], source: str | None = None) -> None:
    """Refuse options with which a long run could not write or publish its answer.

    Args:
        options: the options of the command.
        source: the input; None: the command makes its input.

    Raises:
        InvalidInputError: a file could not be written, or --top or --min-frequency is out of range.
            Or a campaign with privacy would take its candidates from its own input: such an answer
            may not be published.
        MissingExtraError: a package that writes a file is not installed.
    """
    from fedtally.base import validate
    from fedtally.sources import list_path

    lists = [options.get(name) for name in ("domain", "dictionary")]
    read = [list_path(each)[0] for each in lists if each is not None]
    inputs = [source, options.get("plan"), *read, options.get("ledger")]
    if source is not None and options["epsilon"] and not options["not_private"]:
        from fedtally.simulation.estimate import check_list, check_public

        check_public(source, options["domain"])
        check_list(source, options["dictionary"])
    console.check_files([options[name] for name in ("output", "save", "plot", "report")], inputs)
    validate.integer(0, top=options["top"])
    if options["min_frequency"] is not None:
        validate.share(min_frequency=options["min_frequency"])
    check_outputs(options, "output", "plot", "report")


def _check_answerable(source: Source, simulation: Simulation, options: dict[str, Any]) -> None:
    """Refuse an answer that the domain cannot give, before the campaign is charged to a ledger.

    Args:
        source: the input.
        simulation: the simulation, which has the domain.
        options: the options of the command, which say what the answer shows.

    Raises:
        InvalidInputError: an item of --query is not in the domain, or the domain is too large for
            --top or --output.
    """
    from fedtally.answer.exports import check_table_fits
    from fedtally.domain import OpenStrings
    from fedtally.recovery.decoding import MAX_ENUMERATED, check_enumerable
    from fedtally.simulation.census import declared

    domain = declared(simulation.spec.domain, source)
    if domain is None:
        return
    if isinstance(domain, OpenStrings):
        return  # any string may be queried, and the list of frequent strings is short
    if options["query"]:
        domain.encode(as_named(domain, options["query"]))
    if options["top"] and not (options["query"] and domain.size > MAX_ENUMERATED):
        check_enumerable(domain)
    if options["output"]:
        check_table_fits(domain.size, options["memory"])


def _run(source: Source, simulation: Simulation, options: dict[str, Any]) -> Result:
    from fedtally.simulation.run import run

    use_threads(options["threads"])
    if simulation.ledger and not options["quiet"]:
        from fedtally.cli.ledger import warn_of_look_alikes
        from fedtally.store import Ledger

        books = Ledger.open(simulation.ledger)
        population = simulation.spec.accounting.population
        if books.spent(population) is None:  # new in this ledger: its name may be misspelt
            warn_of_look_alikes(books, population)
    with console.Progress(options["quiet"]) as progress:
        return run(source, simulation, progress)


def _windowed(result: Result, options: dict[str, Any], charged: str) -> Result:
    """Return the result for the rounds that --window names.

    With --evaluate, this result is also compared with the true counts.

    If there are no such rounds, but the campaign was charged to a ledger, a note is printed and the
    result of all rounds is returned. Otherwise the budget would be used up without an answer.

    Args:
        result: the result of all rounds.
        options: the options of the command.
        charged: what the ledger says about the charge, in words; "": nothing was charged.

    Raises:
        InvalidInputError: there are no such rounds, and nothing was charged.
    """
    try:
        with console.Progress(options["quiet"]) as progress:
            part = result.window(options["window"], options["history"], progress)
    except InvalidInputError as error:
        if not charged:
            raise
        console.note(f"the answer is of all rounds: {error.in_shell}", quiet=False)
        return result
    if part is not result and options["evaluate"]:
        part.evaluate(options["top"])
    return part


def _hints(result: Result, options: dict[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of an option to try next and its purpose, for the end of an answer."""
    from fedtally.answer import amounts

    plan = result.plan
    is_public = plan.domain["public"]
    # Without a public domain, --epsilon alone would be refused. So the hint also names --domain.
    noised = "--epsilon 1" if is_public else "--epsilon 1 --domain FILE"
    hints = [] if plan.privacy else [(noised, "the noise of differential privacy")]
    if not (plan.is_histogram or is_public):
        exact = plan.one_hot_bytes_per_client
        if exact <= plan.bytes_per_client:  # a histogram of the listed items would be smaller
            hints.append(("--domain FILE", f"a shared list: a histogram, {amounts.size(exact)}"))
    hints += [] if options["save"] else [("--save FILE", "for fedtally query: other items, later")]
    return hints + ([] if options["report"] else [("--report FILE.html", "a page to share")])


def _answer(
    result: Result,
    options: dict[str, Any],
    hints: Sequence[tuple[str, str]],
    charged: str = "",
) -> None:
    """Write the output files, and print the answer.

    If the campaign was charged to a ledger, the answer is printed first: it must not be lost if a
    file cannot be written.

    Args:
        result: the result of the campaign.
        options: the options of the command.
        hints: pairs of an option to try next and its purpose.
        charged: what the ledger says about the charge, in words; "": nothing was charged.
    """
    from fedtally.answer import documents, screen

    # What is printed is computed first. Otherwise an error would leave half an answer.
    estimates = _top(result, options)
    queried = result.estimates(as_named(result.domain, options["query"]))
    if not charged:
        _write_files(result, options)
    if options["as_json"]:
        console.show_json(documents.of_result(result, estimates, queried))
    else:
        how = {"details": options["details"], "hints": hints, "charged": charged}
        console.show(screen.answer(result, estimates, queried, **how))
    if charged:  # after the answer: if a file fails, the budget is used up, but the answer is there
        _write_files(result, options, charged)


def _spent(result: Result, options: dict[str, Any]) -> str:
    """Return in words how much of its privacy budget the campaign's population has used.

    The campaign must have been charged to the ledger of the options. If this ledger cannot be read,
    the text says so, and no error is raised. Otherwise the answer would be lost, although the
    campaign was charged for it.
    """
    from fedtally.privacy.accounting import numbers
    from fedtally.store import Ledger
    from fedtally.store.database import name_of

    terms = result.plan.privacy
    assert terms is not None
    try:
        books = Ledger.open(options["ledger"])
        granted, spent = books.granted(terms.population), books.spent(terms.population)
    except FedtallyError as error:
        name = name_of(options["ledger"])
        return f"{name}: charged, and what is spent cannot be read: {error.in_shell}"
    assert granted is not None
    text = (
        f"population {terms.population} has spent {spent} of the epsilon {granted.epsilon:g} that"
        " was granted"
    )
    if terms.delta != granted.delta:  # the ledger's epsilon is for the granted delta
        own = numbers(terms.guarantee.epsilon, terms.guarantee.delta)
        text += f"; at its own delta this campaign has {own}"
    if options["plan"] is not None:
        text += f"; charged as the plan that was given, {options['plan']}"
    return f"{books.name}: {text}"


def _today() -> date:
    return date.today()


def _top(result: Result, options: dict[str, Any]) -> list[Estimate]:
    """Return the estimates of the most frequent items, the most frequent first.

    The list is empty with --top 0, or if --query is given and the domain is too large to look at
    every candidate.
    """
    from fedtally.recovery.decoding import MAX_ENUMERATED

    if options["top"] == 0 or (options["query"] and result.domain.size > MAX_ENUMERATED):
        return []
    with console.Progress(options["quiet"]) as progress:
        return result.top(options["top"], options["min_frequency"], progress)


def _write_files(result: Result, options: dict[str, Any], charged: str = "") -> None:
    quiet = options["quiet"] or options["as_json"]
    if options["output"]:
        changed = result.export(options["output"], options.get("memory"))
        console.note(f"wrote {options['output']}: {result.rows.what}", quiet)
        console.note_of_cells(changed, quiet)
    if options["save"]:
        result.whole.command = console.command_line(names_items=False)
        result.whole.save(options["save"])  # with all rounds: a user may want another window later
        console.note(f"wrote {options['save']}: try fedtally query {options['save']} ITEM", quiet)
    if options["plot"]:
        estimates = _top(result, options)
        with console.Progress(options["quiet"]) as progress:
            progress("draw")
            result.plot(options["plot"], estimates=estimates)
        console.note(f"wrote {options['plot']}: the top items", quiet)
    if options["report"]:
        from fedtally.answer import page

        estimates = _top(result, options)
        queried = result.estimates(as_named(result.domain, options["query"]))
        with console.Progress(options["quiet"]) as progress:
            progress("draw")
            page.write_page(
                result,
                estimates,
                queried,
                command=console.command_line(),
                path=options["report"],
                charged=charged,
                head=page.Head(options["title"] or "", [options["source"]], _today()),
            )
        console.note(f"wrote {options['report']}: the report", quiet)
