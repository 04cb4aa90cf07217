"""An answer of several results together: in a terminal, as a JSON document and as a page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from fedtally.answer import page, summary, wording
from fedtally.answer.estimates import is_told_from_zero
from fedtally.answer.fields import error_fields, limits_fields, listed_fields, privacy_fields
from fedtally.answer.screen import (
    Screen,
    estimates_table,
    more_lines,
    no_candidates,
    none_listed,
    noted,
)
from fedtally.answer.standing import doubted, standing
from fedtally.answer.tables import facts, heading
from fedtally.base.text import escaped, in_number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtally.answer.estimates import Estimate
    from fedtally.answer.merged import Merged

T = TypeVar("T")
_NAMED = 3  # results that one screen names, each by itself


def merged_document(
    merged: Merged,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
) -> dict[str, Any]:
    """Return everything as JSON-able values.

    Args:
        merged: the results together.
        paths: the file of each result.
        estimates: the top items.
        queried: estimates of items that were asked for by name.
    """
    parts = [
        {
            "file": path,
            "fingerprint": part.plan.fingerprint,
            "num_clients": part.num_clients,
            "privacy": privacy_fields(part.plan, part.secure_sum),
            "warnings": list(part.warnings),
        }
        for path, part in zip(paths, merged.results, strict=True)
    ]
    about = merged.about
    fields = {
        "schema": "fedtally-merged/2",
        "num_clients": merged.num_clients,
        "warnings": list(merged.warnings),
        "intervals": about and limits_fields(merged.confidence, merged.interval_kind, about),
        "error": error_fields([*doubted(merged, estimates), *queried]),
        "results": parts,
        "together": merged.joint_guarantee.to_dict(),
    }
    named = {"queries": [asdict(estimate) for estimate in queried]} if queried else {}
    return fields | {"estimates": listed_fields(merged, estimates)} | named


def merged_answer(
    merged: Merged,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
    *,
    details: bool = False,
) -> RenderableType:
    """Return the answer as a terminal shows it: on one screen, or with all details.

    The other arguments are `merged_document`'s.
    """
    from rich.console import Group
    from rich.text import Text

    estimates = doubted(merged, estimates)
    of: dict[str, Any] = {"unit": merged.unit, "shares_counters": _shares_counters(merged)}
    parts: list[RenderableType] = [heading(_question(merged))]
    if estimates or not queried:
        parts += [Text(), estimates_table(estimates, **of) if estimates else none_listed()]
    if queried:
        asked = estimates_table(queried, ranked=False, **of)
        parts += [Text(), heading("Items asked for"), Text(), asked]
        strangers = no_candidates(merged.domain, queried)
        parts += [strangers] if strangers else []
    parts.append(Text())
    if details:
        rows = [
            *_certainty(merged, estimates, queried),
            # The path is not the label: a long one would leave no room for the text.
            *(("Result", f"{path}: {said}") for path, said in _each(merged, paths)),
            ("Together", _together(merged, _names(paths))),
        ]
        return Group(*parts, facts([*rows, *noted(merged.warnings)]))
    alarms = {note for part in merged.results for note in part.alarms}
    more = more_lines(estimates, queried)
    rows = _short(merged, paths, estimates, queried)
    return Screen(Group(*parts), rows, merged.cautions, (), more, alarms=len(alarms))


def write_merged_page(
    merged: Merged,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    command: str,
    path: str | os.PathLike[str],
    title: str = "",
    day: date | None = None,
) -> None:
    """Write the report of results together to a file, whole or not at all.

    Args:
        merged: the results together.
        paths: the file of each result.
        estimates: the top items.
        queried: estimates of items that were asked for by name.
        command: the command that made it, without secrets.
        path: the file, which ends in .html.
        title: the title; "": one of the names of the results.
        day: the day of the report; None: it names none.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        InvalidInputError: the name does not end in .html.
    """
    from fedtally.answer import charts

    page.check_report_path(path)
    results, estimates = merged.results, doubted(merged, estimates)
    of = page.Listed(
        unit=merged.unit,
        confidence=merged.confidence,
        shares_counters=_shares_counters(merged),
        domain=merged.domain,
        draw=lambda narrow: charts.top_items(
            estimates,
            merged.num_contributions,
            doubtful=[not is_told_from_zero(estimate) for estimate in estimates],
            confidence=merged.confidence,
            note=merged.not_private,
            unit=merged.unit,
            narrow=narrow,
        ),
        standing=standing(merged) if estimates else None,
    )
    banners = [wording.banner(part.plan) for part in results]
    names = _names(paths)
    said = {wording.privacy_sentence(part.plan) for part in results if part.plan.privacy}
    content = page.Content(
        **page.titled(page.Head(title, paths, day), "items"),
        question=_question(merged),
        banner="; ".join(
            f"{banner} ({', '.join(those)})" if len(those) < len(names) else banner
            for banner, those in _by_result(names, banners)
            if banner
        ),
        verdict=summary.verdict(
            estimates or queried,
            merged.num_contributions,
            merged.unit,
            merged.confidence,
            holds=_holding(merged),
            is_exact=merged.is_exact,
        ),
        # who is in several results spends in each of them
        privacy=f"{said.pop()} in each result; {_together(merged, names)}"
        if len(said) == 1 and not any(banners)
        else "",
        tables=page.tables(of, estimates, queried),
        figures=page.figures(of, estimates),
        sections=[
            page.section("How sure it is", _certainty(merged, estimates, queried)),
            page.section("Notes", [], page.sentences(merged.warnings)),
            page.section("The results", _each(merged, names)),
            page.section(
                "What it protects",
                [
                    (
                        ", ".join(those) if len(those) < len(names) else "Each result",
                        " ".join(lines),
                    )
                    for lines, those in _by_result(
                        names, [tuple(wording.protects(part.plan)) for part in results]
                    )
                ]
                + [("Together", _together(merged, names))]
                * any(part.plan.privacy for part in results),
            ),
            *(
                page.section(f"Who could learn what{_of(those, names)}", rows)
                for rows, those in _by_result(
                    names,
                    [tuple(wording.learned(part.plan, part.secure_sum)) for part in results],
                )
            ),
            page.section(
                "What it cost",
                [
                    (name, wording.cost(part.plan))
                    for name, part in zip(names, results, strict=True)
                ],
            ),
            page.section(
                "How it was made",
                [
                    ("Command", command),
                    ("Version", f"fedtally {metadata.version('fedtally')}"),
                    ("Candidates", wording.candidates(merged.domain)),
                ],
            ),
        ],
        experts=[
            page.section(
                "Plans",
                [
                    (f"Plan of {name}", part.plan.fingerprint)
                    for name, part in zip(names, results, strict=True)
                ],
            )
        ],
    )
    page.write(content, path)


def _question(merged: Merged) -> str:
    is_open = merged.results[0].plan.is_open
    among = "all strings" if is_open else wording.counted(merged.domain.size, "candidate")
    return (
        f"Share of each item among {merged.num_contributions:,} {merged.unit} in"
        f" {len(merged.results):,} results; {among}"
    )


def _holding(merged: Merged) -> str:
    """Return the verb that joins an item and the share that has it: some results may be drawn."""
    found = {summary.holding(part) for part in merged.results}
    if len(found) == 1 and merged.unit != "contributions":
        return found.pop()
    is_drawn = any("drawn" in verb for verb in found)
    return "is among the drawn items of" if is_drawn else "is in"


def _names(paths: Sequence[str]) -> list[str]:
    """Return the base name of each file, since a folder may name a person; equal ones numbered.

    >>> _names(["jan/r.fed", "feb/r.fed", "all.fed"])
    ['r.fed #1', 'r.fed #2', 'all.fed']
    """
    names = [escaped(os.path.basename(path)) for path in paths]
    return [
        f"{name} #{number}" if names.count(name) > 1 else name
        for number, name in enumerate(names, start=1)
    ]


def _shares_counters(merged: Merged) -> bool:
    return any(part.plan.vector.shares_counters for part in merged.results)


def _short(
    merged: Merged,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
) -> list[tuple[str, str]]:
    """Return the rows of an answer on one screen: certainty, privacy, bytes and results."""
    results = merged.results
    sure = (
        wording.doubt([*estimates, *queried], wording.those(merged.num_contributions, merged.unit))
        if merged.about
        else wording.NOT_ESTIMATED
    )
    said = {wording.privacy_sentence(part.plan) for part in results}
    private = said.pop() if len(said) == 1 else "each result has its own: --details lists them"
    least, most = (
        wording.size(end(part.plan.bytes_per_client for part in results)) for end in (min, max)
    )
    sizes = least if least == most else f"{least} to {most}"
    together = _together(merged, _names(paths))
    named = [
        f"{name} {part.num_contributions:,} {part.unit}"
        for name, part in zip(_names(paths), results, strict=True)
    ]
    return [
        ("Error", sure),
        ("Privacy", private),
        *([("Together", together)] if any(part.plan.privacy for part in results) else []),
        ("Upload", f"{sizes} per {wording.who(results[0].plan)} and round"),
        ("Results", "; ".join(named) if len(named) <= _NAMED else f"{len(named):,}"),
    ]


def _certainty(
    merged: Merged, estimates: Sequence[Estimate], queried: Sequence[Estimate]
) -> list[tuple[str, str]]:
    about = merged.about
    if not about:
        return []
    return wording.covered(merged.confidence, merged.interval_kind, about, estimates, queried)


def _each(merged: Merged, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return what is said of each result, by its name."""
    said = []
    for name, part in zip(names, merged.results, strict=True):
        private = privacy_fields(part.plan, part.secure_sum)
        guaranteed = wording.NO_PRIVACY if private is None else wording.guarantee(private)
        size = (
            f"{wording.contributions(part)}, {wording.dimensions(part.plan)}, plan"
            f" {part.plan.fingerprint[:16]}"
        )
        said.append((escaped(name), f"{size}; {guaranteed}"))
    return said


def _by_result(names: Sequence[str], said: Sequence[T]) -> list[tuple[T, list[str]]]:
    """Return what is said of results, each once, with the names of its results.

    >>> _by_result(["a", "b", "c"], ["exact", "noised", "exact"])
    [('exact', ['a', 'c']), ('noised', ['b'])]
    """
    found: dict[T, list[str]] = {}
    for name, each in zip(names, said, strict=True):
        found.setdefault(each, []).append(name)
    return list(found.items())


def _of(those: Sequence[str], names: Sequence[str]) -> str:
    return f" of {', '.join(those)}" if len(those) < len(names) else ""


def _together(merged: Merged, names: Sequence[str]) -> str:
    """Return what the results cost somebody who is in all of them."""
    exact = [
        name for name, part in zip(names, merged.results, strict=True) if part.plan.privacy is None
    ]
    if exact:
        have = in_number(len(exact), "has", "have")
        return f"Not private together: {', '.join(exact)} {have} exact sums."
    nouns = {part.plan.nouns[0] for part in merged.results}
    return f"a {' or '.join(sorted(nouns))} in all of them: {merged.joint_guarantee}"
