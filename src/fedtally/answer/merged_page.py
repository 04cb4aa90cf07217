"""The answer of several results that were merged: for a terminal, and as an HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import date
from importlib import metadata
from typing import TYPE_CHECKING, Any, TypeVar

from fedtally.answer import amounts, page, sections, summary
from fedtally.answer.estimates import is_told_from_zero
from fedtally.answer.noise_floor import doubted, standing
from fedtally.answer.screen import Screen, more_lines, noted
from fedtally.answer.tables import facts, heading
from fedtally.base.text import escaped, in_number

if TYPE_CHECKING:
    from rich.console import RenderableType

    from fedtally.answer.answer import Answer
    from fedtally.answer.estimates import Estimate
    from fedtally.answer.part import Part

T = TypeVar("T")
_NAMED = 3  # the first screen names the results if there are at most this many, else counts them


def merged_answer(
    merged: Answer,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
    *,
    details: bool = False,
) -> RenderableType:
    """Return the merged answer as a terminal shows it: on one screen, or with all details.

    Args:
        merged: the merged answer.
        paths: the path of each result's file.
        estimates: the estimates of the top items.
        queried: the estimates of items that were asked for by name.
        details: whether to add how the estimates were made, and what each result is.
    """
    from rich.console import Group
    from rich.text import Text

    estimates = doubted(merged, estimates)
    of: dict[str, Any] = {"unit": merged.unit, "shares_counters": _shares_counters(merged)}
    parts: list[RenderableType] = [heading(_question(merged))]
    if estimates or not queried:
        parts += [
            Text(),
            sections.listed.table(estimates, **of) if estimates else sections.listed.none_listed(),
        ]
    if queried:
        asked = sections.listed.table(queried, ranked=False, **of)
        parts += [Text(), heading("Items asked for"), Text(), asked]
        strangers = sections.listed.no_candidates(merged.domain, [e.item for e in queried])
        parts += [strangers] if strangers else []
    parts.append(Text())
    if details:
        rows = [
            *_certainty(merged, estimates, queried),
            # The label is not the path: a long path as label would leave no room for the text.
            *(("Result", f"{path}: {said}") for path, said in _each(merged, paths)),
            ("Together", _together(merged, _names(paths))),
        ]
        return Group(*parts, facts([*rows, *noted(merged.warnings)]))
    more = more_lines(estimates, queried)
    rows = _short(merged, paths, estimates, queried)
    return Screen(Group(*parts), rows, merged.cautions, (), more, alarms=len(merged.alarms))


def write_merged_page(
    merged: Answer,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate] = (),
    *,
    command: str,
    path: str | os.PathLike[str],
    title: str = "",
    day: date | None = None,
) -> None:
    """Write the HTML report of merged results to a file, whole or not at all.

    Args:
        merged: the merged answer.
        paths: the path of each result's file.
        estimates: the estimates of the top items.
        queried: the estimates of items that were asked for by name.
        command: the command that made the report, without secrets.
        path: the path of the HTML file, which ends in .html.
        title: the title; "": a title that is made of the names of the results.
        day: the day on which the page is written; None: the page shows no day.

    Raises:
        MissingExtraError: Jinja2 or matplotlib is not installed.
        InvalidInputError: the path does not end in .html, or the file cannot be written.
    """
    page.check_report_path(path)
    estimates, names = doubted(merged, estimates), _names(paths)
    of = _listed(merged, estimates)
    content = page.Content(
        **page.titled(page.Head(title, paths, day), "items"),
        question=_question(merged),
        banner=_banner(merged, names),
        verdict=summary.verdict(
            estimates or queried,
            merged.num_contributions,
            merged.unit,
            merged.confidence,
            holds=_holding(merged),
            is_exact=merged.is_exact,
        ),
        privacy=_privacy(merged, names),
        changes=None,
        tables=page.tables(of, estimates, queried),
        figures=page.figures(of, estimates),
        sections=_sections(merged, names, estimates, queried, command),
        experts=[
            page.section(
                "Plans",
                [
                    (f"Plan of {name}", part.plan.fingerprint)
                    for name, part in _parts(merged, names)
                ],
            )
        ],
    )
    page.write(content, path)


def _sections(
    merged: Answer,
    names: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
    command: str,
) -> list[dict[str, Any]]:
    """Return the sections of the page in their order, as `page.section` returns each.

    `names` are the names of the results, from `_names`. The other arguments are as in
    `write_merged_page`.
    """
    return [
        page.section("How sure it is", _certainty(merged, estimates, queried)),
        page.section("Notes", [], page.sentences(merged.warnings)),
        page.section("The results", _each(merged, names)),
        page.section("What it protects", _protected(merged, names)),
        *_learned(merged, names),
        page.section(
            "What it cost",
            [(name, sections.cost.upload(part.plan)) for name, part in _parts(merged, names)],
        ),
        page.section(
            "How it was made",
            [
                ("Command", command),
                ("Page by", f"fedtally {metadata.version('fedtally')}"),
                ("Candidates", sections.counted.candidates(merged.domain)),
            ],
        ),
    ]


def _listed(merged: Answer, estimates: Sequence[Estimate]) -> page.Listed:
    """Return the settings that the page's lists and pictures share.

    Args:
        merged: the merged answer.
        estimates: the estimates of the top items, which the picture of bars shows.
    """
    from fedtally.answer import charts

    return page.Listed(
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


def _parts(merged: Answer, names: Sequence[str]) -> Iterable[tuple[str, Part]]:
    """Yield pairs of a result's name (from `_names`) and the result."""
    return zip(names, merged.parts, strict=True)


def _banner(merged: Answer, names: Sequence[str]) -> str:
    """Return the warnings at the top of the page; "" if all results are private.

    A warning that does not hold for all results names the results that it holds for.

    Args:
        merged: the merged answer.
        names: the name of each result, from `_names`.
    """
    banners = [sections.privacy.banner(part.plan) for part in merged.parts]
    return "; ".join(
        f"{banner} ({', '.join(those)})" if len(those) < len(names) else banner
        for banner, those in _by_result(names, banners)
        if banner
    )


def _privacy(merged: Answer, names: Sequence[str]) -> str:
    """Return a sentence on what protects clients in each result, and in all results together.

    Returns "" if the protection differs from result to result, or if a result is not private: then
    other sections of the page say what protects clients.

    Args:
        merged: the merged answer.
        names: the name of each result, from `_names`.
    """
    private = {
        sections.privacy.line(part.plan, part.secure_sum)
        for part in merged.parts
        if part.plan.privacy
    }
    if len(private) != 1 or _banner(merged, names):
        return ""
    # A client that is in several results has a privacy cost in each. So the joint cost is shown.
    return f"{private.pop()} in each result; {_together(merged, names)}"


def _protected(merged: Answer, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return rows of (names of results, text) on what each result protects.

    Results with the same protection share a row. If any result has differential privacy, a last row
    has the joint privacy cost of all results.

    Args:
        merged: the merged answer.
        names: the name of each result, from `_names`.
    """
    protected = [
        tuple(sections.privacy.protects(part.plan, part.secure_sum)) for part in merged.parts
    ]
    rows = [
        (", ".join(those) if len(those) < len(names) else "Each result", " ".join(lines))
        for lines, those in _by_result(names, protected)
    ]
    if any(part.plan.privacy for part in merged.parts):
        rows.append(("Together", _together(merged, names)))
    return rows


def _learned(merged: Answer, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return sections for the template (`page.section`) on who could learn what.

    Results with the same rows share a section.

    Args:
        merged: the merged answer.
        names: the name of each result, from `_names`.
    """
    learned = [tuple(sections.trust.learned(p.plan, p.secure_sum)) for p in merged.parts]
    return [
        page.section(f"Who could learn what{_of(those, names)}", rows)
        for rows, those in _by_result(names, learned)
    ]


def _question(merged: Answer) -> str:
    among = sections.counted.num_candidates(merged.parts[0].plan)
    return (
        f"Share of each item among {merged.num_contributions:,} {merged.unit} in"
        f" {len(merged.parts):,} results; {among}"
    )


def _holding(merged: Answer) -> str:
    """Return the verb between an item and the share of clients that have it, such as "is held by".

    If some results may have drawn each client's items at random, the verb says so.
    """
    found = {summary.holding(part) for part in merged.parts}
    if len(found) == 1 and merged.unit != "contributions":
        return found.pop()
    is_drawn = any("drawn" in verb for verb in found)
    return "is among the drawn items of" if is_drawn else "is in"


def _names(paths: Sequence[str]) -> list[str]:
    """Return the base name of each file; equal names get their place in `paths`, from 1.

    Names of folders are left out, since they may name a person.

    >>> _names(["jan/r.fed", "feb/r.fed", "all.fed"])
    ['r.fed #1', 'r.fed #2', 'all.fed']
    """
    names = [escaped(os.path.basename(path)) for path in paths]
    return [
        f"{name} #{number}" if names.count(name) > 1 else name
        for number, name in enumerate(names, start=1)
    ]


def _shares_counters(merged: Answer) -> bool:
    return any(part.plan.vector.shares_counters for part in merged.parts)


def _short(
    merged: Answer,
    paths: Sequence[str],
    estimates: Sequence[Estimate],
    queried: Sequence[Estimate],
) -> list[tuple[str, str]]:
    """Return the facts below the list on one screen, as rows of (name, text).

    They are "Error", "Privacy", "Together" (the joint privacy cost, if any result has privacy),
    "Upload" and "Results".

    Args:
        merged: the merged answer.
        paths: the path of each result's file.
        estimates: the estimates of the top items.
        queried: the estimates of items that were asked for by name.
    """
    results = merged.parts
    sure = (
        sections.error.doubt(
            [*estimates, *queried],
            sections.counted.those(merged.num_contributions, merged.unit),
            confidence=merged.confidence,
        )
        if merged.about
        else sections.error.NOT_ESTIMATED
    )
    said = {sections.privacy.line(part.plan, part.secure_sum) for part in results}
    private = "each result has its own: --details lists them"
    if len(said) == 1:
        private = f"{'each alone: ' if results[0].plan.privacy else ''}{said.pop()}"
    least, most = (
        amounts.size(end(part.plan.bytes_per_client for part in results)) for end in (min, max)
    )
    sizes = least if least == most else f"{least} to {most}"
    together = _together(merged, _names(paths))
    named = [
        f"{name} {part.num_contributions:,} {part.unit}"
        for name, part in _parts(merged, _names(paths))
    ]
    return [
        ("Error", sure),
        ("Privacy", private),
        *([("Together", together)] if any(part.plan.privacy for part in results) else []),
        ("Upload", f"{sizes} per {sections.counted.who(results[0].plan)} and round"),
        ("Results", "; ".join(named) if len(named) <= _NAMED else f"{len(named):,}"),
    ]


def _certainty(
    merged: Answer, estimates: Sequence[Estimate], queried: Sequence[Estimate]
) -> list[tuple[str, str]]:
    if not merged.about:
        return []
    return sections.error.covered(
        merged.confidence, merged.interval_kind, merged.about, estimates, queried
    )


def _each(merged: Answer, names: Sequence[str]) -> list[tuple[str, str]]:
    """Return a row (name, text) for each result: its clients, sketch, plan and privacy guarantee.

    Args:
        merged: the merged answer.
        names: the name or the path of each result.
    """
    said = []
    for name, part in _parts(merged, names):
        private = sections.privacy.fields(part.plan, part.secure_sum)
        guaranteed = (
            sections.privacy.NO_PRIVACY
            if private is None
            else sections.privacy.guarantee(private, part.plan.rounds_noun)
        )
        size = (
            f"{sections.counted.contributions(part)}, {sections.cost.dimensions(part.plan)}, plan"
            f" {part.plan.fingerprint[:16]}"
        )
        said.append((escaped(name), f"{size}; {guaranteed}"))
    return said


def _by_result(names: Sequence[str], said: Sequence[T]) -> list[tuple[T, list[str]]]:
    """Return each different value once, with the names of the results that have it.

    Args:
        names: the name of each result.
        said: a value, such as a text, for each result.

    >>> _by_result(["a", "b", "c"], ["exact", "noised", "exact"])
    [('exact', ['a', 'c']), ('noised', ['b'])]
    """
    found: dict[T, list[str]] = {}
    for name, each in zip(names, said, strict=True):
        found.setdefault(each, []).append(name)
    return list(found.items())


def _of(those: Sequence[str], names: Sequence[str]) -> str:
    return f" of {', '.join(those)}" if len(those) < len(names) else ""


def _together(merged: Answer, names: Sequence[str]) -> str:
    """Return in words the joint privacy cost to a client or person that is in all results.

    The text has epsilon, and how often an attacker's guess about the client can be right. If some
    results have exact sums, it names these results, and says that all together are not private.
    If the user says that nobody is in two results, that comes first.

    Args:
        merged: the merged answer.
        names: the name of each result, from `_names`.
    """
    exact = [name for name, part in _parts(merged, names) if part.plan.privacy is None]
    if exact:
        have = in_number(len(exact), "has", "have")
        return f"Not private together: {', '.join(exact)} {have} exact sums."
    from fedtally.privacy.guarantee_text import right_guesses

    whom = " or ".join(sorted({part.plan.nouns[0] for part in merged.parts}))
    joint = merged.joint_guarantee
    said = f"a {whom} in all of them: {joint}"
    if merged.disjoint:  # the joint cost is still shown: it is what a mistake would cost
        said = f"as you say, nobody is in two, so each pays for one result; {said}"
    found = [right_guesses(each) for each in (joint.guarantee, joint.replace_one) if each]
    if joint.not_private or not found:
        return said
    right = " %, or for two sets of items ".join(dict.fromkeys(found))  # equal shares stand once
    return f"{said}; a guess is right in at most {right} % of cases"
