"""The answer of `fedtally simulate --plan`: simulated and predicted errors, and the verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedtally.base.text import in_range
from fedtally.cli import console

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from fedtally.plan import Plan
    from fedtally.studies.schedules import StudyResult
    from fedtally.studies.validation import TrialResult, Verdict

# The table has a row for the error that is exceeded with each of these probabilities, and with the
# probability of the plan's target.
_TYPICAL = (0.5, 0.1)


def write_files(
    found: StudyResult | TrialResult,
    options: dict[str, Any],
    plot: Callable[[str], None],
    drawn: str,
) -> None:
    """Write the table (`output`) and the chart (`plot`) if the options name them.

    A note on each is printed, except with the options `quiet` and `as_json`.

    Args:
        found: the results of the repeats.
        options: the options of the command.
        plot: draws the chart into a file; its argument is the path of the file.
        drawn: what the chart shows, for the note.
    """
    quiet = options["quiet"] or options["as_json"]
    if options["output"]:
        found.export(options["output"])
        console.note(f"wrote {options['output']}: {len(found.measurements):,} rows", quiet)
    if options["plot"]:
        plot(options["plot"])
        console.note(f"wrote {options['plot']}: {drawn}", quiet)


def document(found: TrialResult) -> dict[str, Any]:
    """Return the results of a simulated plan as a dict for JSON."""
    from fedtally.answer import sections
    from fedtally.plan import Target

    trial, target, verdict = found.trial, found.trial.plan.target, found.verdict
    return {
        "schema": "fedtally-validation/1",
        "warnings": list(found.warnings),
        "plan": sections.cost.fields(trial.plan),
        "privacy": sections.privacy.fields(trial.study_plan),
        "domain": found.domain.describe(),
        "source_clients": found.num_clients,
        "drawn_with_replacement": found.is_drawn,
        "recovery": trial.decoder,
        "repeats": trial.repeats,
        "target": Target.fields_of(target),
        "linf": [
            {"exceeded_with": p, "simulated": found.quantile(p), "predicted": found.predicted(p)}
            for p in _levels(found)
        ],
        "worst_linf": float(found.errors.max()),
        "exceeded": found.exceeded,
        "predicted_failure": found.predicted_failure,
        "verdict": None if verdict is None else verdict._asdict(),
        "rounds": found.rounds,
        "names": _name_fields(found),
    }


def _name_fields(found: TrialResult) -> dict[str, Any] | None:
    """Return which share of names (strings of an open domain) was found, as a dict for JSON.

    The dict also has the promised share and the prediction. The result is None if the domain has a
    list of candidates.
    """
    recall = found.recall
    if recall is None:
        return None
    return {
        "recall": {"mean": recall.mean, "least": recall.least},
        "wrong": recall.wrong,
        "promised": recall.promised,
        "met": recall.met,
        "predicted": None if found.names is None else found.names.to_dict(),
    }


def view(found: TrialResult) -> RenderableType:
    """Return the results of a simulated plan for the terminal: a table, and rows of facts."""
    from rich.console import Group
    from rich.text import Text

    from fedtally.answer import amounts, sections, tables

    trial, plan = found.trial, found.trial.plan
    sizes = (
        (plan.num_clients, "client"),
        (found.domain.size, "candidate"),
        (plan.num_rounds, "round"),
    )
    counted = [
        amounts.counted(number, name) for number, name in (*sizes, (trial.repeats, "repeat"))
    ]
    rows: list[tuple[str, RenderableType]] = [
        *_promise(found),
        *_names(found),
        ("Clients", _clients(found)),
        *_rounds(found),
        *sections.cost.rows(plan),
        sections.cost.encoded(plan),
        *_private(trial.study_plan),
        sections.counted.candidates_row(found.domain),
        ("Plan", plan.fingerprint[:16]),
        *(("Note", Text(note, style="yellow")) for note in found.warnings),
    ]
    title = ", ".join([*counted, f"{trial.decoder} recovery"])
    return Group(tables.heading(title), _table(found), Text(), tables.facts(rows))


def _levels(found: TrialResult) -> list[float]:
    """Return the probabilities p of the table, largest first.

    A row of the table shows the error that campaigns exceed with probability p.
    """
    target = found.trial.plan.target
    asked = () if target is None else (target.failure_probability,)
    return sorted({*_TYPICAL, *asked}, reverse=True)


def _private(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows (name, text) on the privacy of a real campaign with this plan.

    If the plan has privacy, they also say that the simulation itself is not private.
    """
    from fedtally.answer import sections
    from fedtally.privacy import NOT_PRIVATE

    rows = sections.privacy.rows(plan)
    if plan.privacy is None:
        return rows
    name, said = rows[0]
    said = said.removeprefix(f"{NOT_PRIVATE}: ")
    return [(name, f"simulated, so {NOT_PRIVATE}; a real campaign: {said}"), *rows[1:]]


def _table(found: TrialResult) -> Table:
    from fedtally.answer import amounts, tables

    rows = [(_named(p), found.quantile(p), found.predicted(p)) for p in _levels(found)]
    rows.append((f"worst of {found.trial.repeats:,}", float(found.errors.max()), None))
    digits = amounts.decimals(error for _, *errors in rows for error in errors if error is not None)
    table = tables.new_table()
    table.add_column("largest error", style="bold", no_wrap=True)
    for name in ("simulated", "predicted"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, *errors in rows:
        table.add_row(
            name, *("" if error is None else amounts.points(error, digits) for error in errors)
        )
    return table


def _named(probability: float) -> str:
    """Return the name of a quantile of the error: this quantile is exceeded with `probability`.

    >>> _named(0.5), _named(0.1), _named(0.005)
    ('median', '90 %', '99.5 %')
    """
    return "median" if probability == 0.5 else f"{100 * (1 - probability):.6g} %"


def _promise(found: TrialResult) -> list[tuple[str, RenderableType]]:
    """Return the rows (name, text) on the target: the verdict, how sure it is, the prediction."""
    from rich.text import Text

    target, verdict = found.trial.plan.target, found.verdict
    if target is None:
        return [("Target", "none: the plan has no target")]
    text = (
        f"largest error above {100 * target.linf:.3g} points in {found.exceeded:,} of"
        f" {found.trial.repeats:,} repeats, allowed in at most {_share(target.failure_probability)}"
    )
    rows: list[tuple[str, RenderableType]] = [("Target", text)]
    if verdict is not None:
        is_within = verdict.exceeded <= target.failure_probability * verdict.repeats
        said = "met" if is_within else "met, within chance" if verdict.met else "missed"
        rows = [
            (
                "Target",
                Text.assemble((said, "bold green" if verdict.met else "bold red"), f": {text}"),
            )
        ]
        rows.append(("", _shown(verdict)))
    if found.predicted_failure is not None:
        above = f"above {100 * target.linf:.3g} points"
        predicted = f"{above} in {_share(found.predicted_failure)} of campaigns"
        rows.append(("", f"predicted for these clients: {predicted}"))
    return rows


def _names(found: TrialResult) -> list[tuple[str, RenderableType]]:
    """Return the rows (name, text) on names, the strings that an open domain finds.

    The list is empty if the domain has a list of candidates.
    """
    from rich.text import Text

    from fedtally.answer import amounts

    recall, repeats = found.recall, amounts.counted(found.trial.repeats, "repeat")
    if recall is None:
        return []
    target = found.trial.plan.target
    above = "in the list" if target is None else f"above {200 * target.linf:.3g} %"
    wrong = f"wrong names: {recall.wrong:,}"
    if recall.mean is None or recall.least is None:
        return [("Names", f"no string {above} in {repeats}; {wrong}")]
    text = (
        f"{recall.mean:.1%} of the strings {above} are named on average over {repeats}, and at"
        f" least {recall.least:.1%}; {wrong}"
    )
    if recall.promised is None:
        return [("Names", text)]
    promised = f"at least {recall.promised:.1%} are promised for these clients"
    if recall.met is None:
        return [("Names", text), ("", f"{promised}: take more repeats")]
    said, style = ("met", "bold green") if recall.met else ("missed", "bold red")
    if recall.met and recall.mean < recall.promised:
        said = "met, within chance"
    return [("Names", Text.assemble((said, style), f": {text}")), ("", promised)]


def _shown(verdict: Verdict) -> str:
    """Return in words how many repeats must fail for the verdict "missed", and how sure that is."""
    from fedtally.answer import amounts

    repeats = amounts.counted(verdict.repeats, "repeat")
    if verdict.detectable is None:
        return f"{repeats} cannot show that the target is missed: take more"
    return (
        f'the verdict is "missed" if more than {verdict.allowed:,} of {repeats} are above the'
        " target: a plan that meets its target gets it in at most 1 of 100 studies, and a plan that"
        f" fails in {100 * verdict.detectable:.2g} % of campaigns gets it in 9 of 10"
    )


def _share(share: float) -> str:
    """Return a probability in percent, with up to three digits.

    >>> _share(0.1), _share(0.00125), _share(1e-30)
    ('10 %', '0.125 %', 'less than 0.001 %')
    """
    return "less than 0.001 %" if 0 < share < 1e-5 else f"{100 * share:.3g} %"


def _rounds(found: TrialResult) -> list[tuple[str, str]]:
    """Return a list with the row (name, text) on how many rounds took place.

    The list is empty if the plan has no rule by which a campaign may end early.
    """
    held = found.rounds
    if held is None:
        return []
    mean, planned = sum(held) / len(held), found.trial.plan.num_rounds
    each = in_range(min(held), max(held))
    return [("Rounds", f"{mean:.3g} of {planned:,} on average, {each} in each repeat")]


def _clients(found: TrialResult) -> str:
    number = found.trial.plan.num_clients
    if found.is_drawn:
        return (
            f"{number:,} in each repeat, drawn with replacement from {found.num_clients:,} of the"
            " source"
        )
    return f"the {number:,} of the source, the same in each repeat; rounds are drawn anew"


def plot(found: TrialResult, path: str) -> None:
    """Draw the simulated errors of the plan, and curves of the errors predicted for other widths.

    A point shows the median of the simulated errors. A band goes from their 10 % quantile to their
    1 - p quantile, where p is the share of campaigns that may exceed the target; without a target,
    p is 10 %. A line shows the target.

    Args:
        found: the results of the repeats.
        path: the path of the file.
    """
    import numpy as np

    from fedtally.answer import charts, sections
    from fedtally.privacy import NOT_PRIVATE

    plan = found.trial.plan
    target = plan.target
    promised = _TYPICAL[1] if target is None else target.failure_probability
    low, middle, high = np.quantile(found.errors, [0.1, 0.5, 1 - promised]).tolist()
    point = charts.Point(plan.bytes_per_client, middle, min(low, middle), max(middle, high))
    curves = {
        f"predicted, {_named(p)}": found.curve(p) for p in sorted({0.5, promised}, reverse=True)
    }
    title = (
        f"{plan.num_clients:,} clients, {plan.schedule}, {sections.cost.dimensions(plan)},"
        f" {found.trial.decoder}"
    )
    charts.error_against_bytes(
        {},
        {},
        marked={f"plan, {found.trial.repeats:,} repeats, 10 % to {_named(promised)}": point},
        predicted={name: curve for name, curve in curves.items() if curve},
        target=None if target is None else target.linf,
        title=title if plan.privacy is None else f"{title}\n{NOT_PRIVATE}",
        path=path,
    )
