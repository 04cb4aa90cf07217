"""`fedtally plan`: choose a plan for an error, for bytes or for an epsilon; show what it costs."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fedtally.cli import console, plan_view
from fedtally.cli.help import Command, option, options
from fedtally.cli.keys import note_longer, public_key_options, read_keys
from fedtally.cli.shared import (
    FILE,
    asked,
    check_outputs,
    positive,
    read_name_length,
    read_open_domain,
    shared,
)
from fedtally.errors import InvalidInputError, opt
from fedtally.options import Door

if TYPE_CHECKING:
    from fedtally.domain import Domain
    from fedtally.plan.calendar import Recurring
    from fedtally.plan.costs import Host
    from fedtally.plan.frequencies.distribution import Frequencies
    from fedtally.plan.proposal import Proposal
    from fedtally.plan.request import CampaignSpec
    from fedtally.plan.silos import Silos

_NO_PRIVACY = "none"
# The options that may be given with --after. All others are refused: the plan of --after decides
# their values, or they are about a new proposal.
_OF_SUCCESSORS = frozenset(
    ("after", "start", "seed", "population", "output", "as_json", "quiet", "threads")
)

_plan_options = options(
    option(
        "Fleet",
        "--clients",
        type=positive,
        metavar="N",
        is_often=True,
        help="Plan for this many clients, or silos, in all rounds",
    ),
    option(
        "Fleet",
        "--domain-size",
        type=positive,
        metavar="D",
        is_often=True,
        help="Take the integers 1 to D as candidates",
    ),
    option(
        "Fleet",
        "--like",
        metavar="WHAT",
        type=FILE,
        is_often=True,
        help="Plan for frequencies like zipf:, profile:gowalla-us or a RESULT [the hardest]",
    ),
    option(
        "Fleet",
        "--expected-people",
        type=positive,
        metavar="N",
        help="Predict errors for N people of all silos [--clients times --people]",
    ),
)


@click.command(
    cls=Command,
    short_help="From an error, bytes or epsilon to a plan, with its bill.",
    examples=[
        (
            "the fewest bytes for a largest error of 0.1 %",
            "fedtally plan --clients 1000000 --domain-size 100000 --tau 0.001",
        ),
        (
            "the smallest error for 8 kB at epsilon 1, ten rounds",
            (
                "fedtally plan --clients 1000000 --domain-size 100000 --max-bytes 8kB --epsilon 1"
                " --rounds 10"
            ),
        ),
        (
            "the least epsilon for both",
            "fedtally plan --clients 1000000 --domain-size 100000 --tau 0.005 --max-bytes 8kB",
        ),
        (
            "secure aggregation, frequencies like those of check-ins",
            (
                "fedtally plan --clients 500000 --like profile:gowalla-us --tau 0.001 --secure-sum"
                " secagg -o plan.toml"
            ),
        ),
        (
            "words that nobody has a list of: the names above 0.2 %",
            "fedtally plan --clients 100000 --domain open --tau 0.001 -o open.toml",
        ),
        (
            "ten hospitals of up to 5,000 patients each",
            (
                "fedtally plan --clients 10 --people 5000 --domain-size 1000 --tau 0.01 --epsilon 1"
                " --secure-sum secagg"
            ),
        ),
        ("does it meet its target?", "fedtally simulate --plan plan.toml profile:gowalla-us"),
        (
            "a page to look at: error against bytes, and what would halve the error",
            "fedtally plan --clients 5000 --domain-size 1000 --tau 0.02 --report plan.html",
        ),
        (
            "CPU of your machine, in host.toml",
            "fedtally plan --clients 5000 --domain-size 1000 --tau 0.02 --host host.toml",
        ),
    ],
)
@_plan_options
@shared("plan")
@public_key_options
@option(
    "Files",
    "--output",
    "-o",
    type=click.Path(),
    metavar="FILE",
    is_often=True,
    help="Write the plan, as .toml or .json",
)
@option(
    "Files",
    "--after",
    type=FILE,
    metavar="PLAN",
    help="Take all that this plan says, from its end on",
)
@option(
    "Run",
    "--host",
    type=click.Path(),
    metavar="FILE",
    help="Predict CPU of the machine in this .toml [the reference machine]",
)
def plan(**options: Any) -> None:
    """Make a plan before any client takes part: from a target to a sketch and its bill.

    Give two of --tau, --max-bytes and --epsilon: the third is found. With --tau alone, or
    --max-bytes alone, there is no differential privacy. If no plan meets the target, the error
    names the smallest changes that would.

    A plan with a secure sum is written without keys, for simulations, unless --server-key, or
    --leader-key and --helper-key, are given. `fedtally keys` makes keys, and adds them later too.
    """
    from fedtally.secagg.config import check_keys
    from fedtally.secagg.params import Adversary

    _check_outputs(options)
    from fedtally.plan.rules import check, given

    if options["after"] is not None:
        _succeed(options)
        return
    host = _host(options["host"])
    _check_clients(options)
    spec, find_epsilon = _spec(options)
    check(given(until_known=options["until_known"]), spec.cannot_end())
    keys = read_keys(options)
    check_keys(spec.summation.method, Adversary.parse(spec.summation.adversary), keys.by_name)
    distribution, about, size = _distribution(options, spec.is_private)
    domain = _domain(options, size)
    distribution = _over(distribution, domain, about)
    with console.Progress(options["quiet"]) as progress:
        progress("plan")
        proposal = _propose(options, spec, domain, distribution, about, find_epsilon)
    if options["until_known"]:
        known = proposal.plan.until_known(options["min_clients"])
        proposal = replace(proposal, plan=known)
    # Keys are added last: `_propose` does not need them, and they change the fingerprint.
    proposal = replace(proposal, plan=keys.add_to(proposal.plan))
    note_longer(proposal.plan, keys.allow_list, options["as_json"])
    _write_files(proposal, host, options)
    if options["as_json"]:
        console.show_json(plan_view.document(proposal, host))
    else:
        hints = _hints(proposal, options)
        console.show(
            plan_view.view(proposal, host)
            if options["details"]
            else plan_view.screen(proposal, host, hints)
        )


def _check_clients(options: dict[str, Any]) -> None:
    """Refuse a call without the number of clients; the error also says if candidates are missing.

    Raises:
        InvalidInputError: --clients is missing.
    """
    if options["clients"] is not None:
        return
    how_many = "how many clients are there, of all rounds together"
    if not any(options[name] for name in ("domain", "domain_size", "like")):
        raise InvalidInputError(
            f"--clients and --domain-size are missing: {how_many}, and how many candidate items"
            " (or name them: --domain)?"
        )
    raise InvalidInputError(f"--clients is missing: {how_many}?")


def _succeed(options: dict[str, Any]) -> None:
    """Make the plan that continues the plan of --after; save it and print it.

    The new calendar begins where the calendar of the plan of --after ends, or at --start.

    Args:
        options: the options of the command.

    Raises:
        InvalidInputError: an option does not go with --after, the plan has no calendar, or the new
            calendar would have begun already.
    """
    import time

    from fedtally.cli.saved import show_plan
    from fedtally.plan import Plan
    from fedtally.plan.calendar import check_ahead, read_time
    from fedtally.plan.successor import successor
    from fedtally.simulation.randomness import campaign_seed

    _check_said(click.get_current_context())
    asked, path = options["start"], options["output"]
    plan = successor(
        Plan.load(options["after"]),
        seed=campaign_seed(options["seed"]),
        start=None if asked is None else read_time(start=asked),
        population=options["population"],
    )
    assert plan.calendar is not None
    check_ahead(plan.calendar.start, time.time())
    if path is not None:
        plan.save(path)
        console.note(f"wrote {path}", options["quiet"] or options["as_json"])
    show_plan(plan, path or f"after {options['after']}", options["as_json"])


def _check_said(ctx: click.Context) -> None:
    """Refuse an option that is not in `_OF_SUCCESSORS`.

    Raises:
        InvalidInputError: the user typed such an option.
    """
    for one in ctx.params:
        is_typed = ctx.get_parameter_source(one) is click.core.ParameterSource.COMMANDLINE
        if is_typed and one not in _OF_SUCCESSORS:
            raise InvalidInputError(
                f"{opt[one]} does not go with --after, whose plan says all of it: leave {opt[one]}"
                " out"
            )


def _hints(proposal: Proposal, options: dict[str, Any]) -> list[tuple[str, str]]:
    """Return pairs of a command or option to try next and its purpose, for the end of an answer."""
    from fedtally.plan.frequencies import hardest

    plan, path = proposal.plan, options["output"]
    hints = [("--details", "privacy, sums, each stage, and other sizes")]
    if path is None:
        hints.append(("-o plan.toml", "write the plan"))
    elif plan.clients.can_be_drawn:
        tried = shlex.join(["fedtally", "simulate", "--plan", path])
        hints.append((f"{tried} SOURCE", "does it keep its error?"))
    if options["report"] is None:
        hints.append(("--report plan.html", "error against bytes, and what would halve it"))
    if proposal.found != "bytes" or not proposal.has_shapes:
        return hints
    if proposal.is_for_any and plan.max_items == 1:
        like = f"--like {hardest.USUAL},d={plan.domain_size}"
        hints.append((like, "fewer bytes, if you know that frequencies fall so"))
    # With more rounds, the errors by collisions average out.
    if plan.num_rounds == 1 and not plan.is_of_silos:
        hints.append(("--rounds 10", "may take fewer bytes"))
    return hints


def _propose(
    options: dict[str, Any],
    spec: CampaignSpec,
    domain: Domain,
    distribution: Frequencies | None,
    about: str | None,
    find_epsilon: bool,
) -> Proposal:
    """Let the planner choose a plan; return it with the predictions that are printed.

    Args:
        options: the options of the command.
        spec: the campaign that the options ask for.
        domain: the candidates.
        distribution: the frequencies of items that are expected; None: unknown.
        about: a text that describes these frequencies; the plan keeps this text. None: unknown.
        find_epsilon: whether the planner must find the smallest epsilon for the error and bytes.

    Raises:
        InvalidInputError: no plan meets the target; the error names changes that would help.
    """
    from fedtally.domain import OpenStrings
    from fedtally.plan import proposal
    from fedtally.plan.open_guesses import Wanted
    from fedtally.simulation.randomness import campaign_seed

    wanted = proposal.NAMES
    if isinstance(domain, OpenStrings):
        wanted = Wanted(read_name_length(options, domain), options["allow_rare_names"])
    return proposal.propose(
        spec,
        domain,
        options["clients"],
        distribution,
        seed=campaign_seed(options["seed"]),
        is_drawn=options["seed"] is None,
        find_epsilon=find_epsilon,
        like=about,
        wanted=wanted,
    )


def _host(path: str | None) -> Host | None:
    from fedtally import __version__
    from fedtally.plan.costs import Host

    return None if path is None else Host.load(path, __version__)


def _check_outputs(options: dict[str, Any]) -> None:
    from fedtally.plan.rules import check, given, unmet

    console.check_files(
        [options["output"], options["plot"], options["report"]],
        [
            *(options["domain"], options["like"], options["allow_list"], options["host"]),
            options["after"],
        ],
    )
    if options["output"] and not options["output"].endswith((".toml", ".json")):
        raise InvalidInputError(f"--output {options['output']} must end in .toml or .json")
    check(
        given(**{name: options[name] for name in ("plot", "until_known", "min_clients")}),
        unmet(
            list=options["domain"] == "open",
            tau=options["tau"] is None,
            until_known=not options["until_known"],
        ),
    )
    check_outputs(options, "plot", "report")


def _spec(options: dict[str, Any]) -> tuple[CampaignSpec, bool]:
    """Return the campaign that the options ask for, and whether the planner must find epsilon.

    The planner must find epsilon if --tau and --max-bytes are given, but --epsilon is not. The
    returned campaign then has epsilon 1, which the planner replaces.

    Raises:
        InvalidInputError: an option has a wrong value, or does not go with another one.
    """
    from fedtally.plan.request import Request
    from fedtally.privacy.config import checked_epsilon

    silos, recurring = _silos(options), _recurring(options)
    epsilon = options["epsilon"]
    number = None
    if epsilon not in (None, _NO_PRIVACY):
        try:
            number = float(epsilon)
        except ValueError:
            raise InvalidInputError(
                f"--epsilon must be a number or {_NO_PRIVACY}, got {epsilon!r}"
            ) from None
        checked_epsilon(number)
    find = epsilon is None and options["tau"] is not None and options["max_bytes"] is not None
    wanted = asked("plan", options, Door.REQUEST)
    if find:  # a private campaign needs some epsilon; the planner replaces it by the smallest one
        number = 1.0
    if options["neighbours"] == "add-remove" and silos is None:
        # Here the true number of clients is private. So the plan has --clients as a public bound.
        wanted["max_clients"] = options["clients"]
    # A request needs to know only whether the domain is open.
    domain = "open" if options["domain"] == "open" else None
    rounds = options["num_rounds"]
    if recurring is not None:
        rounds = recurring.calendar.num_rounds
    elif rounds is None and domain is None:
        rounds = 1  # without a list of candidates it stays None, and the planner chooses it
    wanted |= {"domain": domain, "num_rounds": rounds, "epsilon": number}
    request = Request(**wanted)
    marks = {"not_private": options["not_private"], "silos": silos, "recurring": recurring}
    return request.resolve(**marks), find


def _recurring(options: dict[str, Any]) -> Recurring | None:
    """Return the calendar that the options ask for, and how often a client takes part.

    The result is None without --start: then the plan has no calendar.

    Raises:
        InvalidInputError: --rounds is missing, a value is not valid, or the start is in the past.
    """
    if options["start"] is None:
        return None
    import time

    from fedtally.plan.calendar import Calendar, Recurring, check_ahead, read_period, read_time

    start = read_time(start=options["start"])
    check_ahead(start, time.time())
    if options["num_rounds"] is None:
        raise InvalidInputError("--start needs --rounds: how many periods does the plan have?")
    period = read_period("1d" if options["period"] is None else options["period"])
    calendar = Calendar(start, period, options["num_rounds"])
    kept = options["participations"] or 1
    return Recurring(calendar=calendar, participations=kept, per_rounds=options["per_rounds"])


def _silos(options: dict[str, Any]) -> Silos | None:
    """Return the sizes of silos (clients with many people) that the options give.

    The result is None if a client is one person: --people is 1 or is not given.

    Raises:
        InvalidInputError: another option about silos is given, and a client is one person.
    """
    from fedtally.plan.rules import check, given, unmet
    from fedtally.plan.silos import Silos

    most, each, expected = (
        options[name] for name in ("people", "silos_per_person", "expected_people")
    )
    if most is not None and most > 1:
        return Silos(most, silos_per_person=each or 1, expected=expected)
    check(given(silos_per_person=each, expected_people=expected), unmet(people=True))
    return None


def _domain(options: dict[str, Any], size: int | None) -> Domain:
    """Return the domain of the plan: the candidates.

    It is the domain that --domain names. Without --domain it is the integers from 1 to N, where N
    is --domain-size or, without that option, `size`.

    Args:
        options: the options of the command.
        size: the number of candidates of the frequencies that --like names; None: unknown.

    Raises:
        InvalidInputError: the options give no domain or two domains, or --domain is `input` or has
            no valid value.
    """
    from fedtally.domain import IntegerRange
    from fedtally.plan.rules import check, given, unmet

    read = read_open_domain(options, "allow_rare_names", "name_length")
    both = given(domain=options["domain"], domain_size=options["domain_size"])
    check(both, unmet(input=True, no_domain=read is not None))
    if read is not None:
        from fedtally.sources import domain_of

        declared = domain_of(read)
        assert not isinstance(declared, str)  # "input" is refused above
        return declared
    number = options["domain_size"] or size
    if number is None:
        raise InvalidInputError(
            "--domain-size is missing: how many candidate items are there? Or name --domain"
        )
    return IntegerRange(1, number)


def _over(
    distribution: Frequencies | None, domain: Domain, about: str | None
) -> Frequencies | None:
    """Return the frequencies of --like as frequencies of all candidates of a domain.

    Candidates beyond the items of --like have the frequency 0.

    Args:
        distribution: the frequencies; None: unknown, and the result is None.
        domain: the domain.
        about: a text that describes the frequencies, such as "zipf:a=1.1", for the message of the
            error; None: unknown.

    Raises:
        InvalidInputError: there are more frequencies than candidates.
    """
    if distribution is None:
        return None
    size = domain.size
    # `numbers` says how many items have each frequency, so their sum is the number of items.
    held = round(float(distribution.numbers.sum()))
    if held > size:
        way = "name more candidates, or a result with fewer items"
        if about is not None and ":" in about:  # a family of distributions, such as zipf:
            way = f"write d={size} in it, as {_with_size(about, size)}, or name more candidates"
        raise InvalidInputError(
            f"--like has {held:,} items, and there are {size:,} candidates: {way}"
        )
    return replace(distribution, domain_size=size)


def _with_size(like: str, size: int) -> str:
    """Return the text of a family of frequencies, changed so that it has `size` items.

    >>> _with_size("zipf:a=1.1,d=9", 4000), _with_size("zipf:", 4000)
    ('zipf:a=1.1,d=4000', 'zipf:d=4000')
    """
    family, _, given = like.partition(":")
    kept = [part for part in given.split(",") if part and not part.startswith("d=")]
    return f"{family}:{','.join([*kept, f'd={size}'])}"


def _distribution(
    options: dict[str, Any], is_private: bool
) -> tuple[Frequencies | None, str | None, int | None]:
    """Read the frequencies of items that --like names.

    Args:
        options: the options of the command.
        is_private: whether the campaign has differential privacy.

    Returns:
        The frequencies, a text that describes them, and the number of their candidates. The plan
        keeps the text, which never has the name of a file. Without --like all three are None.

    Raises:
        InvalidInputError: --like names no file and no family of frequencies; it names a family, and
            --max-items is above 1; or the saved result that it names may not be used for this plan.
    """
    like = options["like"]
    if like is None:
        return None, None, None
    from fedtally.plan.rules import check, given, unmet
    from fedtally.sources.synthetic import FAMILIES, Population

    if like.partition(":")[0] in FAMILIES:
        several = (options["max_items"] or 1) > 1
        check(given(max_items=options["max_items"]), unmet(result=several and like))
        population = Population.parse(like)
        return _of_population(population), like, population.size
    if not os.path.exists(like):
        quoted = shlex.quote(like)
        raise InvalidInputError(
            f"--like {quoted}: there is no such file; give a RESULT of --save,"
            f" or one of {', '.join(f'{name}:' for name in FAMILIES)}"
        )
    return _of_result(like, is_private and not options["not_private"])


def _of_population(population: Any) -> Frequencies:
    import numpy as np

    from fedtally.plan.frequencies.distribution import Frequencies

    weights = population.weight(np.arange(1.0, population.size + 1))
    return Frequencies.from_frequencies(weights / weights.sum(), population.size)


def _of_result(path: str, must_be_private: bool) -> tuple[Frequencies, str, int]:
    """Read the frequencies of items from a saved result.

    The effect of privacy noise in the result is removed. Otherwise noise would look like items.

    Args:
        path: the path of the result.
        must_be_private: whether to refuse a result that is not private.

    Returns:
        The frequencies, a text that describes them, and the number of their candidates.

    Raises:
        InvalidInputError: the result has an open domain; or `must_be_private` is True, and the
            result has no differential privacy or is marked as not private.
    """
    import numpy as np

    from fedtally.answer.result import Result
    from fedtally.plan.frequencies.distribution import Frequencies

    result = Result.load(path)
    if result.plan.is_open:
        raise InvalidInputError(
            f"--like {path}: this result has an open domain, whose frequencies cannot be planned"
            " for: take a result with a list of candidates"
        )
    terms = result.plan.privacy
    if must_be_private and (terms is None or terms.not_private):
        raise InvalidInputError(
            f"--like {path}: what chooses a private campaign must be public or noised, and this"
            " result is neither: take that of a private campaign, or mark the plan with"
            " --not-private"
        )
    about = f"a result of {result.num_clients:,} clients"
    # In a histogram each candidate has its own counter, so the decoded counts are the frequencies.
    # The objective l2 shrinks them, which removes the effect of the noise.
    if not result.plan.vector.shares_counters:
        shown = np.maximum(result.decoded(objective="l2").frequencies(), 0.0)
        shown /= max(1.0, float(shown.sum()) / result.plan.max_items)
        most, size = result.plan.max_items, result.domain.size
        return Frequencies.from_frequencies(shown, size, max_items=most), about, size
    variance = 0.0
    if terms is not None:
        variance = terms.largest_stddev(result.num_contributions // len(result.sketches)) ** 2
    distribution = Frequencies.from_pilot(
        result.sketches, result.domain, variance, max_items=result.plan.max_items
    )
    return distribution, about, result.domain.size


def _write_files(proposal: Proposal, host: Host | None, options: dict[str, Any]) -> None:
    quiet = options["quiet"] or options["as_json"]
    path = options["output"]
    if path:
        proposal.plan.save(path)
        console.note(f"wrote {path}", quiet)
    if options["plot"]:
        plan_view.plot(proposal, options["plot"])
        console.note(f"wrote {options['plot']}: predicted error against bytes", quiet)
    if options["report"]:
        with console.Progress(quiet) as progress:
            plan_view.write_page(proposal, host, options["report"], progress)
        console.note(f"wrote {options['report']}", quiet)
