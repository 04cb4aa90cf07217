"""The notes that a reader of an answer needs: what may be wrong, and what the numbers mean."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedtally.answer.window import Window
from fedtally.base.text import in_number, shortened
from fedtally.domain import Domain
from fedtally.errors import Note, opt
from fedtally.plan import Plan
from fedtally.recovery.decoders import ENDS_BY
from fedtally.recovery.decoders.kind import CampaignDecoder
from fedtally.recovery.decoding import kind_of, notes_on_choice
from fedtally.recovery.limits import Intervals

if TYPE_CHECKING:
    from fedtally.answer.part import Part
    from fedtally.domain.look_alikes import Oddities

RARE_ITEMS = (
    "this decoder finds rare items too: without differential privacy, secure summation does not"
    " protect them"
)


def alarms(part: Part) -> Iterator[str]:
    """Yield the notes on a part which say that clients may have lied (docs/threat-model.md).

    A note is a text of one or more sentences. A part is the sums of one plan, with their decoder.
    These notes are the first that `cautions` yields.
    """
    return on_screening(part.plan, part.secure_sum)


def cautions(part: Part) -> Iterator[str]:
    """Yield the notes on a part that can change what the numbers mean: on data, privacy, targets.

    `alarms` come first. These notes are the first that `warnings` yields. No fit is started.
    """
    yield from alarms(part)
    yield from on_spaces(part.domain)
    yield from on_oddities(part.domain)
    yield from part.notes
    # Use the intervals only if they exist already. Otherwise a request for notes would start a fit.
    yield from on_target(part.plan, part.ready("intervals"))


def warnings(part: Part) -> Iterator[str]:
    """Yield all notes on a part that a reader of the numbers needs: `cautions` first."""
    plan, domain = part.plan, part.domain
    yield from cautions(part)
    yield from on_reports(plan, part.secure_sum)
    yield from on_names(part)
    yield from on_draw(plan, part.draw, "round" in part.columns)
    yield from on_candidates(domain)
    yield from on_window(part.span, has_left_out=part.draw is not None)
    if part.unit == "contributions":
        clients = None if part.repeats_are_unknown else part.num_clients
        private = part.repeats_are_private
        yield on_repeats(plan, part.num_contributions, clients, is_private=private)
    yield from on_sketch(plan)
    yield from on_decoder(plan, domain.size, part.recovery, part.fitted)


def on_parts(parts: Sequence[Part], num_contributions: int, disjoint: bool) -> Iterator[str]:
    """Yield the notes on all parts together: early ends, draws that differ, and repeated clients.

    An answer of one part has only notes on an early end.

    Args:
        parts: the parts of an answer.
        num_contributions: the number of contributions in the sums of all parts. A contribution is
            what one client adds in one round.
        disjoint: whether the user says that no client is in two parts.
    """
    yield from on_ends(parts)
    if len(parts) == 1:
        return
    kept = sorted({part.plan.max_items for part in parts})
    if len(kept) > 1:
        yield Note(
            f"the results count up to {' and '.join(map(str, kept))} items of each client"
            f" ({opt.max_items}): their sum is of all who hold an item only if nobody has"
            " more than were counted"
        )
    ones, many = zip(*(part.plan.nouns for part in parts), strict=True)
    one = ones[0] if len(set(ones)) == 1 else "client or person"
    which = "both" if len(parts) == 2 else "several"
    counts = f"a {one} in {which} results counts in each, and no result shows who is in it"
    if disjoint:
        yield Note(f"{counts}; by {opt.disjoint(True)} nobody is, or ± more people is too small")
        return
    yield Note(
        f"{counts}: these are {num_contributions:,} contributions, of so many {many[0]} or fewer."
        f" ± more people allows for that; if nobody is, {opt.disjoint(True)} makes it smaller"
    )


def on_reports(plan: Plan, traffic: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on reports to two servers: how many were refused, or that reports have no proofs.

    Nothing is yielded if clients did not report to two servers.

    Args:
        plan: the plan of the campaign.
        traffic: the field `secure_sum` of a result: how the sums were made, and counts of reports.
    """
    if refused := traffic.get("refused", 0):
        yield (
            f"{refused:,} of {refused + traffic['survivors']:,} reports were refused: their proofs"
            f" do not show one {'+1 or -1 in each row' if plan.encoding.is_signed else '+1'}. The"
            " sums are of the others"
        )
    if traffic.get("validity") == "none":
        yield (
            "reports have no proofs, so a client that lies can move the sums as it likes, unseen:"
            f" {plan.why_no_proofs or 'validity proofs would refuse what it reports'}"
        )


def on_ends(parts: Sequence[Part]) -> Iterator[str]:
    """Yield the notes on campaigns that ended early; ends of one kind share a note.

    Args:
        parts: the parts of an answer; `Part.ended` says how a part's campaign ended.
    """
    ends: dict[tuple[str, str], list[str]] = {}
    for part in parts:
        ended, rule = part.ended, part.plan.stopping
        if ended is None:
            continue
        if ended["by"] == "operator":
            why = "the plan is about all rounds, and the errors are those of fewer clients"
            way = ("an operator ended {}", why)
        else:
            assert rule is not None  # `provenance.ended` refuses an end by the rule without one
            most = f"in at most {100 * rule.probability:.3g} % of campaigns"
            why = f"the largest error of {ENDS_BY} recovery is above {100 * rule.linf:.3g} points"
            way = ("{} ended", f"{why} {most}")
        rounds = in_number(ended["rounds"], "one round", "{} rounds")
        ends.setdefault(way, []).append(f"{rounds} of {ended['num_rounds']:,}")
    for (how, why), each in ends.items():
        some = in_number(len(each), "1 campaign", "{} campaigns")
        which = in_number(len(parts), "the campaign", some)
        yield f"{how.format(which)} after {' and '.join(dict.fromkeys(each))}: {why}"


def on_names(part: Part) -> Iterator[str]:
    """Yield a note if some strings stand out from the noise, but their names could not be read.

    Before the names are read, there is no note.
    """
    if part.num_unread:
        yield (
            f"{part.num_unread:,} of the {part.num_found:,} strings that stand out could not be"
            " read: more bytes or more clients would name most"
        )


def on_screening(plan: Plan, traffic: Mapping[str, Any]) -> Iterator[str]:
    """Yield the alarms of screening: sums that are unlikely, or could not be checked.

    A cohort is a group of clients that are summed together. Screening compares the sums of the
    cohorts of a round. Clients are dealt to cohorts at random, so cohorts of honest clients have
    similar sums. Nothing is yielded if there was no screening, or if it was "off". Sums that could
    not be checked give an alarm in two cases: screening was set to "refuse", or the findings of an
    earlier run are lost.

    Args:
        plan: the plan of the campaign.
        traffic: the field `secure_sum` of a result, with the findings of screening.
    """
    screening = traffic.get("screening")
    if screening is None or screening["screen"] == "off":
        return
    refuses, refuse = screening["screen"] == "refuse", opt.screen("refuse")
    for found in screening["rounds"]:
        where = f" of round {found['round'] + 1}" if plan.num_rounds > 1 else ""
        cohorts = f"the {found['cohorts']} cohorts{where}"
        if found["verdict"] == "not screened":
            # "cohorts" is 0 if an earlier run's findings are lost. There may have been an alarm.
            is_lost = not found["cohorts"]
            if refuses or is_lost:
                what = "the sum" if is_lost else "the sums of the cohorts"
                yield f"{what}{where} could not be screened: {found['why']}"
        elif found["verdict"] == "poisoned":
            after = (
                "the round is left out"
                if refuses
                else f"the estimates may be wrong by any amount ({refuse} leaves it out)"
            )
            figures = found.get("why") or (
                f"votes {found['votes']:.3g}, limit {found['votes_limit']:.3g}; mean square"
                f" {found['mean_square']:.3g}, limit {found['mean_square_limit']:.3g}"
            )
            yield Note(
                f"the sums of {cohorts} do not fit honest clients who were dealt to them at random"
                f" ({figures}): clients lied, or the cohorts have different people; {after}"
            )
        elif found["verdict"] == "cohorts stand out":
            number = found["stand_out"]
            stand = in_number(number, "stands", "stand")
            after = "left out" if refuses else f"in the answer ({refuse} leaves them out)"
            yield Note(
                f"{number} of {cohorts} {stand} out, as where a client adds many votes, and"
                f" {in_number(number, 'is', 'are')} {after}"
            )


def on_target(plan: Plan, intervals: Intervals | None) -> Iterator[str]:
    """Yield a note if the errors in an open domain may be larger than the plan promised.

    The plan of an open domain assumes frequencies, since no pilot run measures them.

    Args:
        plan: the plan of the campaign.
        intervals: the intervals of the answer; None: they were not made yet, and there is no note.
    """
    if plan.target is None or intervals is None or not plan.is_open:
        return
    asked, expected = 100 * plan.target.linf, 100 * intervals.predicted_linf
    if expected > asked:
        yield (
            f"the largest error may be {expected:.3g} points, where the plan was made for"
            f" {asked:.3g}, with assumed frequencies. A plan for yours (fedtally plan --like), or"
            " for a smaller tau, has more counters"
        )


def on_draw(plan: Plan, draw: Mapping[str, Any] | None, has_rounds: bool) -> Iterator[str]:
    """Yield a note if the bound on a client's items (max_items) left out items.

    If clients are silos, the bound applies to the items of each person.

    Args:
        plan: the plan of the campaign.
        draw: the field `draw` of a result: how many items were left out; None: no item was left
            out, or the number is private or unknown.
        has_rounds: whether the input table has a column of rounds. Then the bound applies to the
            items of a client in each round.
    """
    if draw is None or not draw["drawn_away"]:
        return
    one, many = plan.nouns
    where = " in a round" if has_rounds else ""
    most = draw["max_items"]
    counted = in_number(most, f"one item of each {one} is", f"{{}} items of each {one} are")
    yield Note(
        f"{draw['share_with_several']:.1%} of the {many} hold more than one item{where}. At most"
        f" {counted} counted{where}, drawn at random: {draw['drawn_away']:,} of"
        f" {draw['pairs']:,} pairs of a {one} and an item are not counted. A frequency is the"
        f" share of {many} whose drawn items include it; "
        f"{opt.max_items(draw['max_items_for_all'])} counts all"
    )


def on_repeats(
    plan: Plan, num_contributions: int, num_clients: int | None, *, is_private: bool = True
) -> str:
    """Return the note which says that a client counts once in each of its rounds.

    Args:
        plan: the plan of the campaign.
        num_contributions: the number of contributions in the sums.
        num_clients: the number of different clients that made them; None: unknown or private.
        is_private: read only if `num_clients` is None. True: the number of clients is private, and
            the note has no number at all, since notes must not depend on private data. False: the
            number is unknown.
    """
    one, many = plan.nouns
    who = f"{one} of several rounds{' or silos' * plan.is_of_silos}"
    shares = f"a {who} counts in each: frequencies are shares of"
    if num_clients is None and not is_private:
        return f"{shares} {num_contributions:,} contributions; of how many {many}, no sum shows"
    if num_clients is None:
        return f"{shares} contributions, of how many {many} is private"
    return f"{shares} {num_contributions:,} contributions of {num_clients:,} {many}"


def on_window(window: Window | None, has_left_out: bool) -> Iterator[str]:
    """Yield the notes on a window: missing rounds, other rounds in the estimates, and counts.

    Args:
        window: the window; None: the answer is about all landed rounds, and there are no notes.
        has_left_out: whether the answer says how many rows or items were left out. Then a note says
            that these numbers are of all rounds.
    """
    if window is None:
        return
    if window.missing:
        number = len(window.missing)
        rounds = in_number(number, "one round", "{} rounds")
        yield f"{rounds} of the window did not land, and {in_number(number, 'is', 'are')} not in it"
    if window.prior:
        others = in_number(window.prior, "one other round", "{} other rounds")
        yield (
            f"estimates also rest on {others}, and may lie outside their limits, which rest on the"
            " window alone"
        )
    if has_left_out:
        yield "rows and items that were left out are counted over all rounds"


def on_spaces(domain: Domain) -> Iterator[str]:
    """Yield a note if some candidates begin or end with white space, with their number."""
    if number := domain.num_spaced:
        begin = in_number(number, "1 candidate begins or ends", "{} candidates begin or end")
        yield f"{begin} with white space, which counts: 'tea ' is another item than 'tea'"


def on_oddities(domain: Domain) -> Iterator[str]:
    """Yield notes on candidates that may be mistakes in the list of candidates.

    Mistakes are invisible characters, another Unicode form, an apostrophe that a CSV file put in
    front, and rows of a table that were read as items.
    """
    odd = domain.oddities

    def shown(text: str) -> str:
        return shortened(ascii(text), 60)

    if odd.alike is not None:
        number, (one, other) = odd.alike
        look = in_number(number, "1 candidate looks like another", "{} look like others")
        yield (
            f"{look}: {shown(one)} and {shown(other)} differ by an invisible sign, such as a byte"
            " order mark, or in Unicode form, and are two items"
        )
    elif odd.hidden is not None:
        number, one = odd.hidden
        hold = in_number(number, "1 candidate holds", "{} candidates hold")
        yield f"{hold} an invisible sign, such as a byte order mark, which counts: {shown(one)}"
    elif odd.decomposed is not None and domain.public:
        number, one = odd.decomposed
        are = in_number(number, "1 candidate is", "{} candidates are")
        yield (
            f"{are} not in the composed form of Unicode (NFC), and other items than those in it:"
            f" {shown(one)}"
        )
    if domain.public:
        yield from _on_lists(odd, shown)


def _on_lists(odd: Oddities, shown: Callable[[str], str]) -> Iterator[str]:
    if odd.quoted is not None:
        number, one = odd.quoted
        begin = in_number(number, "1 candidate begins", "{} candidates begin")
        yield (
            f"{begin} with an apostrophe, which the CSV file of an answer has before signs of"
            f" formulas: {shown(one)} is another item than {shown(one[1:])}; take the words from a"
            " Parquet file of the answer"
        )
    if odd.delimiter:
        yield (
            f"each candidate holds {odd.delimiter!r} as often as the others: if their list is a"
            " table, call it .csv and name its column (FILE:COLUMN)"
        )


def on_candidates(domain: Domain) -> Iterator[str]:
    """Yield a note if the candidates are not public, and one if two of them may share an id.

    An id is the integer that sketches count. Two candidates may have one id if ids are hashes.
    """
    if not domain.public:
        yield (
            "the candidate items are the distinct items of the input itself: in a real campaign"
            " they must be public, declared beforehand"
        )
    if domain.collision_probability:
        yield (
            "items are hashed to 61 bits: two candidates share an id with probability at most"
            f" {domain.collision_probability:.1g}"
        )


def on_sketch(plan: Plan) -> Iterator[str]:
    """Yield a note if a histogram, a counter for each candidate, is no larger than the sketch.

    There is no note if the plan has a histogram already.
    """
    if plan.is_histogram:
        return
    if plan.domain_size <= plan.rows * plan.width:
        histogram = "an exact histogram" if plan.privacy is None else "a histogram"
        yield f"{histogram} (one-hot vectors) is no larger than this sketch, and has no collisions"


def on_decoder(
    plan: Plan, num_candidates: int, recovery: str, decoder: CampaignDecoder | None
) -> Iterator[str]:
    """Yield the notes on how the sums are decoded.

    Args:
        plan: the plan of the campaign.
        num_candidates: the number of candidates.
        recovery: the name of the decoder.
        decoder: the decoder after its fit and before shrinkage; None: it was not made yet.
    """
    if kind_of(recovery).finds_rare_items and plan.privacy is None:
        yield RARE_ITEMS
    yield from notes_on_choice(recovery, plan.rows, num_candidates)
    if decoder is not None:
        yield from decoder.notes()
