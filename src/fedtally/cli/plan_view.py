"""The answer of `fedtally plan`, printed and drawn: the plan, what it costs, and other sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedtally.cli import console, plan_names, plan_silos, plan_tables
from fedtally.cli.keys import lacking

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtally.plan import Plan
    from fedtally.plan.bill import Bill
    from fedtally.plan.costs import Host
    from fedtally.plan.proposal import Proposal

# What the planner assumes about the frequencies of an open domain.
_ASSUMED = "assumed to fall like i^-1.1 (--like says otherwise)"
# Some decoders need fewer bytes, but only if the frequencies are as assumed. Such a decoder is
# mentioned if a plan made for it takes at most this share of the bytes of the proposed plan.
_WORTH = 0.9
# A sketch that is narrower than the proposed one is mentioned if its error is larger than the error
# of the proposed plan by at most this share.
_HARDLY = 0.1


def document(proposal: Proposal, host: Host | None) -> dict[str, Any]:
    """Return a proposed plan as a dict for JSON: its target, predictions, costs and alternatives.

    Args:
        proposal: the plan, its target and the predictions.
        host: the machine whose CPU times are predicted; None: the reference machine.
    """
    from fedtally.answer import sections
    from fedtally.recovery.decoding import resting

    chosen, target = proposal.plan, proposal.target
    return {
        "schema": "fedtally-proposal/1",
        "plan": sections.cost.fields(chosen),
        "missing_keys": list(chosen.missing_keys),
        "validity": sections.trust.proof_fields(chosen) if chosen.summing.servers else None,
        "target": target.to_dict(),
        "found": proposal.found,
        "predicted_linf": proposal.linf,
        "frequencies": target.frequencies or _ASSUMED,
        "shapes": _shape_fields(proposal),
        "usual": _plan_fields(proposal.usual()),
        **{f"by_{name}": _plan_fields(proposal.relying_on(name)) for name in resting()},
        "message": proposal.size.message,
        "privacy": sections.privacy.fields(chosen),
        "silos": plan_silos.fields(chosen, proposal.expected) if chosen.is_of_silos else None,
        "bill": proposal.bill(host).to_dict() | {"calibrated": host is not None},
        "neighbours": [
            {
                "encoding": str(other.encoding),
                "rows": other.rows,
                "width": other.width,
                "bytes_per_client": other.bytes_per_client,
                "predicted_linf": e,
            }
            for other, e in proposal.neighbours
        ],
        "minimax": _minimax_fields(proposal),
        "rare_names": None if proposal.rare is None else proposal.rare.to_dict(),
        "names": (
            None
            if proposal.names is None
            else plan_names.fields(proposal.names, proposal.one_release)
        ),
    }


def _shape_fields(proposal: Proposal) -> dict[str, Any] | None:
    """Return the errors that are predicted for other shapes of frequencies, as a dict for JSON.

    An error is the largest error of all frequencies, as a share of all clients. The result is None
    if the error does not depend on the frequencies, or if the domain is open.
    """
    found = proposal.shapes()
    if found is None:
        return None
    hardest = {"items": found.hardest.items, "predicted_linf": found.hardest.linf}
    return {"hardest": hardest} | {
        name: {"predicted_linf": linf} for name, linf in found.named.items()
    }


def _plan_fields(plan: Plan | None) -> dict[str, Any] | None:
    """Return the encoding and size of an alternative plan as a dict for JSON; None: no plan."""
    if plan is None:
        return None
    fields = {"rows": plan.rows, "width": plan.width, "bytes_per_client": plan.bytes_per_client}
    return {"encoding": str(plan.encoding)} | fields


def _minimax_fields(proposal: Proposal) -> dict[str, Any] | None:
    if proposal.minimax is None:
        return None
    worst, cost = proposal.minimax
    return {"rows": worst.rows, "width": worst.width, "bytes_per_client": cost}


def screen(
    proposal: Proposal, host: Host | None, hints: Sequence[tuple[str, str]]
) -> RenderableType:
    """Return the short view of a plan: bytes, error, privacy, trust, cost, and what to try next.

    Args:
        proposal: the plan, its target and the predictions.
        host: the machine whose CPU times are predicted; None: the reference machine.
        hints: pairs of a command or option to try next and its purpose.
    """
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import screen, sections, tables

    plan, bill = proposal.plan, proposal.bill(host)
    is_marked = plan.privacy is not None and plan.privacy.not_private
    rows: list[tuple[str, RenderableType]] = [
        ("Bytes", sections.cost.planned(proposal)),
        ("Error", sections.error.planned(proposal)),
        ("Privacy", Text(sections.privacy.planned(plan), style="yellow" if is_marked else "")),
        *_calendar(plan),
        *sections.trust.planned_rows(plan)[:1],
        *_names(proposal, bill)[:1],
        ("Cost", sections.cost.effort(proposal, bill)),
    ]
    parts = [tables.heading(sections.counted.plan_title(plan)), Text()]
    return Group(
        *parts, tables.facts([*rows, *_noted(_cautions(proposal)), *screen.next_rows(hints)])
    )


def _noted(notes: Sequence[str]) -> list[tuple[str, RenderableType]]:
    from rich.text import Text

    return [("Note", Text(text, style="yellow")) for text in notes]


def view(proposal: Proposal, host: Host | None) -> RenderableType:
    """Return the long view of a plan: facts and notes, costs by stage, and other sizes.

    Args:
        proposal: the plan, its target and the predictions.
        host: the machine whose CPU times are predicted; None: the reference machine.
    """
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import sections, tables

    chosen, bill = proposal.plan, proposal.bill(host)
    rows: list[tuple[str, RenderableType]] = [*_account(proposal, bill)]
    return Group(
        tables.heading(sections.counted.plan_title(chosen)),
        Text(),
        tables.facts([*rows, *_noted(_notes(proposal, host))]),
        Text(),
        tables.heading("What it costs"),
        Text(),
        plan_tables.stages(bill, sections.counted.who(chosen)),
        Text(),
        tables.heading("What other sizes cost"),
        Text(),
        _neighbours(proposal, host),
    )


def _account(proposal: Proposal, bill: Bill) -> list[tuple[str, str]]:
    """Return the rows (name, text) of the long view of a plan, without its notes and tables."""
    from fedtally.answer import amounts, sections

    chosen, target = proposal.plan, proposal.target
    heading, sketch = sections.cost.encoded(chosen)
    linf, expected = amounts.points(target.linf), amounts.points(proposal.linf)
    chance = f"{100 * target.failure_probability:.3g} %"
    asked = f"largest error of all frequencies {linf}, exceeded in at most {chance} of campaigns"
    if proposal.names is not None and proposal.names.least <= proposal.names.threshold:
        above = f"{100 * proposal.names.threshold:.3g} %"
        asked += f"; names of strings that more than {above} hold are read"
    # With more rounds errors by collisions average out, but the planner keeps the user's number.
    may_be_fewer = chosen.num_rounds == 1 and proposal.has_shapes
    how = {
        "bytes": "the fewest bytes for that"
        + " in one round (--rounds 10 may take fewer)" * may_be_fewer,
        "error": "the smallest for these bytes",
        "epsilon": "the least epsilon for that",
    }[proposal.found]
    return [
        ("Target", asked),
        ("", f"{how}; predicted {expected}{_if(proposal)}"),
        *_frequencies(proposal),
        *sections.cost.rows(chosen),
        *_names(proposal, bill),
        *_privacy(proposal, bill),
        *sections.trust.planned_rows(chosen),
        *_clients(proposal),
        (heading, f"{sketch}, {target.recovery} recovery"),
        ("Plan", chosen.fingerprint[:16]),
    ]


def write_page(
    proposal: Proposal, host: Host | None, path: str, report: Callable[..., None]
) -> None:
    """Write the HTML page about a plan.

    Args:
        proposal: the plan, its target and the predictions.
        host: the machine whose CPU times are predicted; None: the reference machine.
        path: the path of the file, which ends in .html.
        report: called to show progress: (stage, number of sizes done, number of all sizes).
    """
    from fedtally.answer import plan_page

    account = _account(proposal, proposal.bill(host))
    said = plan_page.Said(account, _cautions(proposal), console.command_line())
    plan_page.write_plan_page(proposal, host, said, path=path, report=report)


def _if(proposal: Proposal) -> str:
    """Return in words, to follow a predicted error, for which frequencies it holds; "" for all."""
    if not proposal.plan.vector.shares_counters:
        return ""
    if proposal.is_for_any:
        return " for the hardest frequencies"
    return ", if frequencies are as below"


def _frequencies(proposal: Proposal) -> list[tuple[str, str]]:
    """Return rows (name, text) on the assumed frequencies, and on errors for other frequencies."""
    from fedtally.answer import amounts

    plan, shapes, like = proposal.plan, proposal.shapes(), proposal.target.frequencies
    if not plan.vector.shares_counters:
        return [("Frequencies", "any: the error of a histogram does not depend on them")]
    if shapes is None:
        text = f"{_ASSUMED}; if they do not" if like is None else f"like {like}; if they are not"
        return [("Frequencies", f"{text}, the target may be missed")]
    hardest = f"{amounts.counted(shapes.hardest.items, 'item')} of equal frequency"
    listed = "; ".join(f"{name} {amounts.points(linf)}" for name, linf in shapes.named.items())
    others = ("", f"predicted for others: {listed}")
    if proposal.is_for_any:
        text = f"any: the target holds for all; the hardest here are {hardest}"
        return [("Frequencies", text), others, *_usual(proposal)]
    return [
        ("Frequencies", f"assumed to be like {like}; if they are not, the target may be missed"),
        ("", f"predicted for the hardest, {hardest}: {amounts.points(shapes.hardest.linf)}"),
        others,
        *_relied_on(proposal),
    ]


def _usual(proposal: Proposal) -> list[tuple[str, str]]:
    """Return a list with the row (name, text) on a smaller plan, enough for usual frequencies.

    The row is for users who know that their frequencies are not the worst case. The list is empty
    if there is no smaller plan.
    """
    from fedtally.answer import amounts, sections
    from fedtally.plan.frequencies import hardest

    usual = proposal.usual()
    if usual is None:
        return []
    like = f"--like {hardest.USUAL},d={proposal.plan.domain_size}"
    cost = amounts.size(usual.bytes_per_client)
    would = f"{like} would take {sections.cost.dimensions(usual)} and {cost}"
    return [("", f"if you know that they are easier, say so: {would}")]


def _relied_on(proposal: Proposal) -> list[tuple[str, str]]:
    """Return the rows (name, text) on decoders with which a plan needs clearly fewer bytes.

    The smaller plan is for the same target, but meets it only if the frequencies are as assumed.
    """
    from fedtally.answer import amounts, sections
    from fedtally.recovery.decoding import resting

    most, rows = _WORTH * proposal.plan.bytes_per_client, []
    for name in resting():
        smaller = proposal.relying_on(name)
        if smaller is not None and smaller.bytes_per_client <= most:
            size = sections.cost.dimensions(smaller)
            would = f"{size} and {amounts.size(smaller.bytes_per_client)}"
            rows.append(("", f"if they are sure, --recovery {name} would take {would}"))
    return rows


def _names(proposal: Proposal, bill: Bill) -> list[tuple[str, str]]:
    """Return the rows (name, text) about names, the strings that an open domain finds.

    The list is empty if the domain has a list of candidates.
    """
    if proposal.names is None:
        return []
    return plan_names.rows(
        proposal.names,
        proposal.plan,
        proposal.expected,
        proposal.one_release,
        bill.decoding_seconds,
    )


def _clients(proposal: Proposal) -> list[tuple[str, str]]:
    """Return the rows (name, text) about the clients: their number and rounds, or their silos."""
    from fedtally.answer import amounts

    plan = proposal.plan
    if plan.is_of_silos:
        return plan_silos.rows(plan, proposal.expected)
    return [
        ("Clients", f"{plan.num_clients:,} in {amounts.counted(plan.num_rounds, 'round')}"),
        *_calendar(plan),
    ]


def _calendar(plan: Plan) -> list[tuple[str, str]]:
    """Return a row (name, text) on the calendar and one on an early end, if the plan has them."""
    from fedtally.answer.sections import counted

    rows = [] if plan.calendar is None else [("Calendar", counted.by_calendar(plan))]
    return rows + [("Ends", said) for said in [counted.ends(plan)] if said]


def _privacy(proposal: Proposal, bill: Bill) -> list[tuple[str, str]]:
    """Return the rows (name, text) on a plan's privacy, and on who sees which sums.

    Args:
        proposal: the plan, its target and the predictions.
        bill: the costs of the plan, with the method and the number of its sums.
    """
    from fedtally.answer import sections

    if bill.method == "ideal":
        return sections.privacy.rows(proposal.plan)
    return sections.privacy.rows(proposal.plan, {"method": bill.method, "cohorts": bill.sums})


def _cautions(proposal: Proposal) -> list[str]:
    """Return the notes of the short view: what a user must know before using a plan."""
    return [*_assumed(proposal), *_shown_of_silos(proposal), *_facts(proposal)]


def _assumed(proposal: Proposal) -> list[str]:
    """Return the note on the assumed frequencies, in a list; [] if no frequencies are assumed."""
    if proposal.is_for_any or not proposal.plan.vector.shares_counters:
        return []
    like = proposal.target.frequencies
    said = _ASSUMED if like is None else f"assumed to be like {like}"
    return [f"frequencies are {said}; if they are not, errors may be larger"]


def _shown_of_silos(proposal: Proposal) -> list[str]:
    """Return the note on who learns a silo's size, in a list; [] if clients are not silos."""
    if not proposal.plan.is_of_silos:
        return []
    return [f"who reads the result learns a silo's size {plan_silos.size_learnt(proposal.plan)}"]


def _notes(proposal: Proposal, host: Host | None) -> list[str]:
    """Return the notes of the long view of a plan."""
    are_sketches = proposal.plan.vector.shares_counters
    notes = [*_facts(proposal), *(_narrower(proposal) if are_sketches else _on_histogram(proposal))]
    if host is None:
        notes.append("CPU is of a reference machine: --host FILE names another")
    return notes


def _narrower(proposal: Proposal) -> list[str]:
    """Return a note on each narrower sketch that exceeds the plan's error by at most `_HARDLY`."""
    notes = []
    for other, error in proposal.neighbours:
        if other.width < proposal.plan.width and error <= (1 + _HARDLY) * proposal.linf:
            saved = 1 - other.bytes_per_client / proposal.plan.bytes_per_client
            notes.append(
                f"{other.rows} x {other.width:,} saves {saved:.0%} of the bytes: its error is"
                " hardly larger"
            )
    return notes


def _facts(proposal: Proposal) -> list[str]:
    """Return the notes that the short and the long view of a plan share.

    They say what the plan lacks, what it does not protect, and which predictions are less sure.
    """
    from fedtally.answer import sections
    from fedtally.recovery.decoding import kind_of

    notes = [proposal.size.message] if proposal.size.message else []
    notes += [] if proposal.rare is None else proposal.rare.notes
    servers = proposal.plan.summing.servers
    if servers is not None and proposal.plan.report_proof is None:
        notes.append(f"reports have no proofs: {sections.trust.why_no_proofs(proposal.plan)}")
    asked = proposal.design.spec.summation.max_corrupt
    short_of = (sections.trust.short_of_list, sections.trust.short_of_all)
    notes += [text for warn in short_of if (text := warn(proposal.plan, asked))]
    notes += sections.trust.cautions(proposal.plan)
    if proposal.plan.secure_sum is None:
        notes.append("for simulations: devices run plans of --secure-sum secagg or two-server")
    if text := lacking(proposal.plan):
        notes.append(text)
    # If a vector without collisions is no larger, the sketch has no use. With a calendar there is
    # no other choice than a sketch.
    plan = proposal.plan
    is_large = plan.bytes_per_client >= plan.one_hot_bytes_per_client
    if plan.vector.shares_counters and is_large and plan.calendar is None:
        notes.append("a one-hot vector is no larger than this sketch, and has no collisions")
    least = min(kind_of(proposal.target.recovery).planned_rows)
    if plan.rows < least:
        notes.append(
            f"with fewer than {least} rows campaigns differ more than is predicted: check it"
            " against its target"
        )
    return notes


def _on_histogram(proposal: Proposal) -> list[str]:
    """Return a list with the note that says why the plan has a histogram and no sketch."""
    plan = proposal.plan
    exact = "counts are exact" if plan.privacy is None else "only the noise of privacy is wrong"
    text = (
        f"each of the {plan.domain_size:,} candidates has a counter of its own, so that {exact}; a"
        " sketch of as many bytes would be less accurate (--encoding sketch makes one)"
    )
    return [text]


def _neighbours(proposal: Proposal, host: Host | None) -> RenderableType:
    """Return the table that compares the plan with plans of other sizes, sorted by width."""
    from fedtally.answer import amounts, sections

    # Not sorted by error: predicted errors are random, so a wider sketch may have a larger error.
    listed = sorted(
        [(proposal.plan, proposal.linf), *proposal.neighbours], key=lambda pair: pair[0].width
    )
    digits = amounts.decimals([error for _, error in listed])
    rows = [
        plan_tables.Size.of(
            sections.cost.dimensions(other) + " (the plan)" * (other is proposal.plan),
            proposal.bill(host, other),
            amounts.points(error, digits).removesuffix(" points"),
        )
        for other, error in listed
    ]
    # If the plan is a histogram, the table has a histogram and sketches: both are "sizes".
    are_sketches = proposal.plan.vector.shares_counters
    nouns = ("sketch", "sketches") if are_sketches else ("size", "sizes")
    unit = sections.counted.who(proposal.plan)
    return plan_tables.sizes([*rows, *_other_ways(proposal)], unit, nouns)


def _other_ways(proposal: Proposal) -> list[plan_tables.Size]:
    """Return the last rows of the table of sizes: other ways to choose a size.

    They are the size that the minimax formula gives, for the worst frequencies (see `plan.paper`),
    and, if the plan is a sketch, a one-hot vector, which has a counter for each candidate. The
    list is empty if the domain is open.
    """
    from fedtally.answer import amounts

    if proposal.minimax is None:  # the domain is open
        return []
    worst, cost = proposal.minimax
    name = f"{worst.rows} x {worst.width:,} (minimax)"
    ways = [plan_tables.Size(name, amounts.size(cost))]
    if proposal.plan.vector.shares_counters:
        exact = "0.00" if proposal.plan.privacy is None else "noise"
        one_hot = amounts.size(proposal.plan.one_hot_bytes_per_client)
        ways.append(plan_tables.Size("one-hot vector", one_hot, error=exact))
    return ways


def plot(proposal: Proposal, path: str) -> None:
    """Draw the plan as a point, its error against its bytes, beside the curves of other widths.

    Args:
        proposal: the plan, its target and the predictions.
        path: the path of the file.
    """
    from fedtally.answer import amounts, charts, sections

    chosen, target = proposal.plan, proposal.target
    exact = "one-hot (exact)" if chosen.privacy is None else "one-hot"
    bytes_of_exact = float(chosen.one_hot_bytes_per_client)
    costs = {exact: bytes_of_exact} if chosen.vector.shares_counters else {}
    title = (
        f"{amounts.counted(chosen.num_clients, sections.counted.who(chosen))} in"
        f" {amounts.counted(chosen.num_rounds, 'round')}, {target.recovery} recovery\npredicted,"
        f" exceeded in {100 * target.failure_probability:.3g} %"
    )
    mark = charts.Point(chosen.bytes_per_client, proposal.linf, proposal.linf, proposal.linf)
    name = f"the plan, {sections.cost.dimensions(chosen)}"
    charts.error_against_bytes(
        {},
        costs,
        title=title,
        path=path,
        marked={name: mark},
        target=target.linf,
        predicted=proposal.curves(),
    )
