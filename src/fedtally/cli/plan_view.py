"""The answer of `fedtally plan`, printed and drawn: the plan, its bill, and other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fedtally.base.text import in_range
from fedtally.cli import console
from fedtally.cli.keys import lacking

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtally.plan import Plan
    from fedtally.plan.bill import Bill
    from fedtally.plan.costs import Host
    from fedtally.plan.proposal import Proposal

_DROPOUTS = (0.0, 0.1, 0.2)  # for which it is said how many silos fit
# what the plan of an open domain takes frequencies to be
_ASSUMED = "assumed to fall like i^-1.1 (--like says otherwise)"
_WORTH = 0.9  # of the bytes: from so many fewer on it is said what belief propagation would take
_HARDLY = 0.1  # relative: so much more error is worth a note where it saves bytes


def document(proposal: Proposal, host: Host | None) -> dict[str, Any]:
    """Return the JSON document of a proposal.

    Args:
        proposal: the plan and what it was chosen for.
        host: the measured speed of this machine; None: it was not measured.
    """
    from fedtally.answer import fields
    from fedtally.recovery.decoding import resting

    chosen, target = proposal.plan, proposal.target
    return {
        "schema": "fedtally-proposal/1",
        "plan": fields.plan_fields(chosen),
        "missing_keys": list(chosen.missing_keys),
        "validity": _validity_fields(chosen) if chosen.is_two_server else None,
        "target": target.to_dict(),
        "found": proposal.found,
        "predicted_linf": proposal.linf,
        "frequencies": target.frequencies or _ASSUMED,
        "shapes": _shape_fields(proposal),
        "usual": _plan_fields(proposal.usual()),
        **{f"by_{name}": _plan_fields(proposal.relying_on(name)) for name in resting()},
        "message": proposal.size.message,
        "privacy": fields.privacy_fields(chosen),
        "silos": _silo_fields(proposal) if chosen.is_of_silos else None,
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
        "names": _name_fields(proposal),
    }


def _validity_fields(plan: Plan) -> dict[str, Any]:
    """Return whether reports to two servers have proofs, and why they have none."""
    has_proofs = plan.report_proof is not None
    return {"proofs": has_proofs, "reason": "" if has_proofs else _why_no_proofs(plan)}


def _why_no_proofs(plan: Plan) -> str:
    return plan.why_no_proofs or "--validity proofs asks for them"


def _name_fields(proposal: Proposal) -> dict[str, Any] | None:
    """Return what is predicted of names, where nobody has the list of candidates."""
    if proposal.names is None:
        return None
    one = proposal.one_release
    alone = None if one is None else {"bytes_per_client": one[0], **one[1].to_dict()}
    return proposal.names.to_dict() | {"one_release": alone}


def _shape_fields(proposal: Proposal) -> dict[str, Any] | None:
    """Return what the same plan does with other frequencies; None where they do not matter."""
    found = proposal.shapes()
    if found is None:
        return None
    hardest = {"items": found.hardest.items, "predicted_linf": found.hardest.linf}
    return {"hardest": hardest} | {
        name: {"predicted_linf": linf} for name, linf in found.named.items()
    }


def _plan_fields(plan: Plan | None) -> dict[str, Any] | None:
    """Return the size of another plan: for `hardest.USUAL`, or of belief propagation; or None."""
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
    """Return a proposal in a few lines: bytes, error, privacy, cost, and what to type next.

    Args:
        proposal: as for `document`.
        host: as for `document`.
        hints: commands and options that may be next, each with its purpose.
    """
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import plan_words, screen, tables, wording

    plan, bill = proposal.plan, proposal.bill(host)
    is_marked = plan.privacy is not None and plan.privacy.not_private
    rows: list[tuple[str, RenderableType]] = [
        ("Bytes", wording.short_cost(plan)),
        ("Error", plan_words.error(proposal)),
        ("Privacy", Text(plan_words.privacy(plan), style="yellow" if is_marked else "")),
        *_names(proposal, bill)[:1],
        ("Cost", plan_words.effort(proposal, bill)),
    ]
    parts = [tables.heading(plan_words.title(plan)), Text()]
    return Group(
        *parts, tables.facts([*rows, *_noted(_cautions(proposal)), *screen.next_rows(hints)])
    )


def _noted(notes: Sequence[str]) -> list[tuple[str, RenderableType]]:
    from rich.text import Text

    return [("Note", Text(text, style="yellow")) for text in notes]


def view(proposal: Proposal, host: Host | None) -> RenderableType:
    """Return the whole account of a proposal; the arguments are those of `document`."""
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import plan_words, tables, wording

    chosen, bill = proposal.plan, proposal.bill(host)
    rows: list[tuple[str, RenderableType]] = [*_account(proposal, bill)]
    return Group(
        tables.heading(plan_words.title(chosen)),
        Text(),
        tables.facts([*rows, *_noted(_notes(proposal, host))]),
        Text(),
        tables.heading("What it costs"),
        Text(),
        _stages(bill, wording.who(chosen)),
        Text(),
        tables.heading("What other sizes cost"),
        Text(),
        _neighbours(proposal, host),
    )


def _account(proposal: Proposal, bill: Bill) -> list[tuple[str, str]]:
    """Return the rows of the whole account of a plan, without notes and tables."""
    from fedtally.answer import wording

    chosen, target = proposal.plan, proposal.target
    heading, sketch = wording.encoded(chosen)
    linf, expected = wording.points(target.linf), wording.points(proposal.linf)
    chance = f"{100 * target.failure_probability:.3g} %"
    asked = f"largest error of all frequencies {linf}, exceeded in at most {chance} of campaigns"
    if proposal.names is not None and proposal.names.least <= proposal.names.threshold:
        above = f"{100 * proposal.names.threshold:.3g} %"
        asked += f"; names of strings that more than {above} hold are read"
    # collisions cancel over rounds, which a plan does not choose by itself
    may_be_fewer = chosen.num_rounds == 1 and not (chosen.is_histogram or chosen.is_open)
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
        ("Upload", wording.cost(chosen)),
        *_names(proposal, bill),
        *_privacy(proposal, bill),
        *_secure_sum(proposal),
        *_clients(proposal),
        (heading, f"{sketch}, {target.recovery} recovery"),
        ("Plan", chosen.fingerprint[:16]),
    ]


def write_page(
    proposal: Proposal, host: Host | None, path: str, report: Callable[..., None]
) -> None:
    """Write the page of a plan; the first arguments are those of `document`.

    Args:
        proposal: as for `document`.
        host: as for `document`.
        path: the file, which ends in .html.
        report: called with a stage, the sizes that are done, and all.
    """
    from fedtally.answer import plan_page

    account = _account(proposal, proposal.bill(host))
    said = plan_page.Said(account, _cautions(proposal), console.command_line())
    plan_page.write_plan_page(proposal, host, said, path=path, report=report)


def _if(proposal: Proposal) -> str:
    """Return for which frequencies the error of a plan is predicted."""
    if proposal.plan.is_histogram:
        return ""
    if proposal.is_for_any:
        return " for the hardest frequencies"
    return ", if frequencies are as below"


def _frequencies(proposal: Proposal) -> list[tuple[str, str]]:
    """Return the rows on frequencies: what the target takes them to be, and what others do."""
    from fedtally.answer import wording
    from fedtally.plan.frequencies import hardest
    from fedtally.recovery.decoding import resting

    plan, found, usual = proposal.plan, proposal.shapes(), proposal.usual()
    if plan.is_histogram:
        return [("Frequencies", "any: the error of a histogram does not depend on them")]
    if found is None:
        like = proposal.target.frequencies
        said = f"{_ASSUMED}; if they do not" if like is None else f"like {like}; if they are not"
        return [("Frequencies", f"{said}, the target may be missed")]
    shapes = f"{wording.counted(found.hardest.items, 'item')} of equal frequency"
    listed = "; ".join(f"{name} {wording.points(linf)}" for name, linf in found.named.items())
    if not proposal.is_for_any:
        like = proposal.target.frequencies
        rows = [
            (
                "Frequencies",
                f"assumed to be like {like}; if they are not, the target may be missed",
            ),
            ("", f"predicted for the hardest, {shapes}: {wording.points(found.hardest.linf)}"),
            ("", f"predicted for others: {listed}"),
        ]
        for name in resting():
            smaller = proposal.relying_on(name)
            if smaller is not None and smaller.bytes_per_client <= _WORTH * plan.bytes_per_client:
                would = (
                    f"{wording.dimensions(smaller)} and {wording.size(smaller.bytes_per_client)}"
                )
                said = f"if they are sure, --recovery {name} would take {would}"
                rows.append(("", said))
        return rows
    rows = [
        ("Frequencies", f"any: the target holds for all; the hardest here are {shapes}"),
        ("", f"predicted for others: {listed}"),
    ]
    if usual is not None:
        cost = wording.size(usual.bytes_per_client)
        like = f"--like {hardest.USUAL},d={plan.domain_size}"
        saves = f"{like} would take {wording.dimensions(usual)} and {cost}"
        rows.append(("", f"if you know that they are easier, say so: {saves}"))
    return rows


def _names(proposal: Proposal, bill: Bill) -> list[tuple[str, str]]:
    """Return the rows on the names that are read, where nobody has the list of candidates."""
    from fedtally.answer import plan_words, wording

    found, plan = proposal.names, proposal.plan
    if found is None:
        return []
    whom = "people" if plan.is_of_silos else "clients"

    def holders(frequency: float) -> str:
        number = math.ceil(frequency * found.clients)
        return "no number of clients" if math.isinf(frequency) else f"about {number:,} {whom}"

    bytes_of = wording.counted(found.length, "byte")
    if math.isinf(found.theta_name):
        read = f"names of {bytes_of} cannot be read, whoever holds them"
    else:
        read = (
            f"names held by {holders(found.theta_name)} or more can be read, and by the server,"
            f" too, if they have at most {bytes_of}"
        )
    lengths = ", ".join(
        f"{size} from {holders(theta).removesuffix(f' {whom}')}"
        for size, theta in found.by_length
        if not math.isinf(theta)
    )
    others = [("", f"of other lengths, in bytes: {lengths}")] if lengths else []
    above = f"{100 * found.threshold:.3g} %"
    rows = [
        ("Names", read),
        *others,
        ("", f"strings held by {holders(found.theta_find)} or more stand out, named or not"),
        ("", f"expected: {found.named:.0%} of the strings above {above} are named"),
    ]
    if proposal.one_release is not None:
        size, alone = proposal.one_release
        releases = wording.counted(len(plan.releases), "release")
        cost = wording.size(size)
        said = (
            f"so with {releases}; one release would name {alone.named:.0%}, for {cost} of a client"
        )
        rows.append(("", said))
    seconds = plan_words.seconds(bill.decoding_seconds + found.seconds)
    rows.append(("", f"the server decodes hashes and names in about {seconds} of CPU"))
    return rows


def _clients(proposal: Proposal) -> list[tuple[str, str]]:
    """Return the rows on the clients, and on what is special of silos."""
    from fedtally.answer import wording

    plan = proposal.plan
    rounds = wording.counted(plan.num_rounds, "round")
    if not plan.is_of_silos:
        return [("Clients", f"{plan.num_clients:,} in {rounds}")]
    found = _silo_fields(proposal)
    rows = [
        (
            "Silos",
            (
                f"{plan.num_clients:,} in {rounds}, of at most {plan.people:,} people each;"
                f" {proposal.expected:,} people are expected"
            ),
        )
    ]
    if found["fitting"] is not None:
        from fedtally.plan.silos import in_ranges

        fitting = "; ".join(
            f"{in_ranges(each['silos'])} with up to {100 * each['max_dropout']:g} % dropouts"
            for each in found["fitting"]
        )
        rows.append(("", f"numbers of silos in a sum that fit, up to 12: {fitting}"))
    learns = _size_learnt(proposal)
    rows.append(("", f"who reads the result, as silos may, learns a silo's size {learns}"))
    return rows


def _size_learnt(proposal: Proposal) -> str:
    """Return how well a reader who knows all other silos learns the size of one, in words."""
    if proposal.plan.privacy is None:
        return "exactly, if it knows all others"
    found = _silo_fields(proposal)
    return (
        f"to ± {found['size_shown']:,.0f} people, if it knows all others, and to ±"
        f" {found['size_shown_by_two']:,.0f} of two such sums, in 95 of 100 campaigns"
    )


def _silo_fields(proposal: Proposal) -> dict[str, Any]:
    """Return what a proposal says of silos: which numbers fit, and what a sum shows of one."""
    from fedtally.plan.silos import fitting_numbers, size_shown
    from fedtally.secagg.config import SecAggConfig

    plan, fitting = proposal.plan, None
    if isinstance(plan.secure_sum, SecAggConfig):
        terms = plan.secure_sum.parameters
        fitting = [
            {"max_dropout": share, "silos": [*fitting_numbers(share, terms.adversary)]}
            for share in _DROPOUTS
        ]
    return {
        "people": plan.people,
        "expected_people": proposal.expected,
        "fitting": fitting,
        "size_shown": size_shown(plan),
        "size_shown_by_two": size_shown(plan, sums=2),
    }


def _privacy(proposal: Proposal, bill: Bill) -> list[tuple[str, str]]:
    """Return the rows on the plan's privacy; where clients add noise, on that of every cohort."""
    from fedtally.answer import wording

    if bill.method == "ideal":
        return wording.privacy_rows(proposal.plan)
    return wording.privacy_rows(proposal.plan, {"method": bill.method, "cohorts": bill.sums})


def _secure_sum(proposal: Proposal) -> list[tuple[str, str]]:
    from fedtally.answer import wording
    from fedtally.secagg.config import SecAggConfig

    agreed = proposal.plan.secure_sum
    if agreed is None:
        return [("Secure sum", "ideal: of a trusted server (--secure-sum names a protocol)")]
    if not isinstance(agreed, SecAggConfig):
        return [
            (
                "Secure sum",
                f"two servers that do not collude; at least {agreed.min_batch:,} clients in a sum",
            ),
            ("", wording.validity(agreed.validity)),
        ]
    p = agreed.parameters
    graph, whom = p.graph(p.n_max), wording.who(proposal.plan)
    sizes = in_range(p.n_min, p.n_max)
    text = (
        f"secagg, {p.adversary}: cohorts of {sizes} {whom}s,"
        f" {graph.neighbours} neighbours, up to {p.corrupt:,} corrupt, up to"
        f" {p.max_dropout_ppm / 1e4:g} % may drop out"
    )
    return [("Secure sum", text), ("", wording.honesty(p.honest_survivors))]


def _cautions(proposal: Proposal) -> list[str]:
    """Return what a reader must know before anything is done with a plan."""
    return [*_assumed(proposal), *_shown_of_silos(proposal), *_facts(proposal)]


def _assumed(proposal: Proposal) -> list[str]:
    """Return the note on frequencies that were assumed, if the error depends on them."""
    if proposal.is_for_any or proposal.plan.is_histogram:
        return []
    like = proposal.target.frequencies
    said = _ASSUMED if like is None else f"assumed to be like {like}"
    return [f"frequencies are {said}; if they are not, errors may be larger"]


def _shown_of_silos(proposal: Proposal) -> list[str]:
    """Return the note on what a result shows of a silo's size, if clients are silos."""
    if not proposal.plan.is_of_silos:
        return []
    return [f"who reads the result learns a silo's size {_size_learnt(proposal)}"]


def _notes(proposal: Proposal, host: Host | None) -> list[str]:
    """Return all notes on a plan."""
    notes = _facts(proposal)
    is_exact = proposal.plan.is_histogram
    notes += _on_histogram(proposal) if is_exact else []
    for other, error in proposal.neighbours:
        if (
            not is_exact
            and other.width < proposal.plan.width
            and error <= (1 + _HARDLY) * proposal.linf
        ):
            saved = 1 - other.bytes_per_client / proposal.plan.bytes_per_client
            notes.append(
                f"{other.rows} x {other.width:,} saves {saved:.0%} of the bytes: its error is"
                " hardly larger"
            )
    if host is None:
        notes.append("CPU is of a reference machine: --host FILE names another")
    return notes


def _facts(proposal: Proposal) -> list[str]:
    """Return the notes that limit what a plan is good for."""
    from fedtally.recovery.decoding import kind_of
    from fedtally.secagg.config import TwoServerConfig

    notes = [proposal.size.message] if proposal.size.message else []
    notes += [] if proposal.rare is None else proposal.rare.notes
    if proposal.plan.is_two_server and proposal.plan.report_proof is None:
        notes.append(f"reports have no proofs: {_why_no_proofs(proposal.plan)}")
    agreed = proposal.plan.secure_sum
    if isinstance(agreed, TwoServerConfig) and agreed.min_batch == agreed.n_max:
        notes.append(
            f"a sum needs all {agreed.n_max:,} clients: if one stays away, there is no sum"
            " (--max-dropout allows for more, and so do more clients)"
        )
    if agreed is None:
        notes.append("for simulations: devices run plans of --secure-sum secagg or two-server")
    if text := lacking(proposal.plan):
        notes.append(text)
    # nobody should send a sketch where the exact answer costs no more
    plan = proposal.plan
    if not plan.is_histogram and plan.bytes_per_client >= plan.one_hot_bytes_per_client:
        notes.append("a one-hot vector is no larger than this sketch, and has no collisions")
    least = min(kind_of(proposal.target.recovery).planned_rows)
    if plan.rows < least:
        notes.append(
            f"with fewer than {least} rows campaigns differ more than is predicted: check it"
            " against its target"
        )
    return notes


def _on_histogram(proposal: Proposal) -> list[str]:
    """Return the note that says why the plan has no sketch."""
    plan = proposal.plan
    exact = "counts are exact" if plan.privacy is None else "only the noise of privacy is wrong"
    text = (
        f"each of the {plan.domain_size:,} candidates has a counter of its own, so that {exact}; a"
        " sketch of as many bytes would be less accurate (--encoding sketch makes one)"
    )
    return [text]


def _stages(bill: Bill, unit: str) -> RenderableType:
    from fedtally.answer import plan_words, tables

    rows: list[tuple[str, Sequence[float]]] = [
        (
            stage.stage,
            (
                stage.upload_bytes,
                stage.download_bytes,
                stage.client_seconds,
                stage.received_bytes,
                stage.sent_bytes,
                stage.server_seconds,
            ),
        )
        for stage in bill.stages
    ]
    rows.append(("decoding", (0, 0, 0, 0, 0, bill.decoding_seconds)))
    rows.append(("together", [sum(column) for column in zip(*(f for _, f in rows), strict=True)]))
    a_client = f"a {unit}"
    columns = (  # with the order in which they go where there is no room for all
        (a_client, "sends", _bytes, 0),
        (a_client, "gets", _bytes, 3),
        (a_client, "CPU", plan_words.seconds, 2),
        ("the server", "gets", _bytes, 0),
        ("the server", "sends", _bytes, 1),
        ("the server", "CPU", plan_words.seconds, 0),
    )
    return tables.FittedTable(
        heading="stage",
        names=[tables.printable(name) for name, _ in rows],
        after=[
            tables.Column(name, [shown(figures[place]) for _, figures in rows], rank, True, group)
            for place, (group, name, shown, rank) in enumerate(columns)
        ],
        noun="stages",
        styles=[*("" for _ in rows[1:]), "bold"],
    )


def _neighbours(proposal: Proposal, host: Host | None) -> RenderableType:
    from fedtally.answer import plan_words, tables, wording

    unit = wording.who(proposal.plan)
    # by width, and not by error: a wider sketch may have the larger predicted error by chance
    listed = sorted(
        [(proposal.plan, proposal.linf), *proposal.neighbours], key=lambda pair: pair[0].width
    )
    digits = wording.decimals([error for _, error in listed])
    rows = []
    for other, error in listed:
        mark = " (the plan)" if other is proposal.plan else ""
        cost = proposal.bill(host, other)
        rows.append(
            (
                f"{wording.dimensions(other)}{mark}",
                wording.size(cost.upload_bytes),
                plan_words.seconds(cost.client_seconds),
                wording.size(cost.received_bytes),
                plan_words.seconds(cost.server_seconds + cost.decoding_seconds),
                wording.points(error, digits).removesuffix(" points"),
            )
        )
    if proposal.minimax is not None:  # no exact vector has names of strings that nobody lists
        worst, cost_of_worst = proposal.minimax
        name = f"{worst.rows} x {worst.width:,} (minimax)"
        rows.append((name, wording.size(cost_of_worst), "", "", "", ""))
        exact = "0.00" if proposal.plan.privacy is None else "noise"
        one_hot = wording.size(proposal.plan.one_hot_bytes_per_client)
    if proposal.minimax is not None and not proposal.plan.is_histogram:
        rows.append(("one-hot vector", one_hot, "", "", "", exact))
    columns = (  # with the order in which they go where there is no room for all
        (f"a {unit}", "sends", 0),
        (f"a {unit}", "CPU", 2),
        ("the server", "gets", 3),
        ("the server", "CPU", 1),
        ("", "largest\nerror in\npoints", 0),
    )
    is_mixed = proposal.plan.is_histogram  # beside it stand sketches
    return tables.FittedTable(
        heading="size" if is_mixed else "sketch",
        names=[tables.printable(row[0]) for row in rows],
        after=[
            tables.Column(name, [row[place] for row in rows], rank, True, group)
            for place, (group, name, rank) in enumerate(columns, 1)
        ],
        noun="sizes" if is_mixed else "sketches",
    )


def _bytes(number: float) -> str:
    from fedtally.answer import wording

    return wording.size(number) if number else ""


def plot(proposal: Proposal, path: str) -> None:
    """Draw the plan's error and bytes on the curves of other widths."""
    from fedtally.answer import charts, wording

    chosen, target = proposal.plan, proposal.target
    exact = "one-hot (exact)" if chosen.privacy is None else "one-hot"
    costs = {} if chosen.is_histogram else {exact: float(chosen.one_hot_bytes_per_client)}
    title = (
        f"{wording.counted(chosen.num_clients, wording.who(chosen))} in"
        f" {wording.counted(chosen.num_rounds, 'round')}, {target.recovery} recovery\npredicted,"
        f" exceeded in {100 * target.failure_probability:.3g} %"
    )
    mark = charts.Point(chosen.bytes_per_client, proposal.linf, proposal.linf, proposal.linf)
    name = f"the plan, {wording.dimensions(chosen)}"
    charts.error_against_bytes(
        {},
        costs,
        title=title,
        path=path,
        marked={name: mark},
        target=target.linf,
        predicted=proposal.curves(),
    )
