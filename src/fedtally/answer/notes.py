"""The notes that a reader of an answer needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedtally.base.text import in_number, shortened
from fedtally.domain import Domain
from fedtally.errors import Note, opt
from fedtally.recovery.decoders.kind import CampaignDecoder
from fedtally.recovery.decoding import kind_of, notes_on_choice

if TYPE_CHECKING:
    from fedtally.answer.result import Result

RARE_ITEMS = (
    "this decoder finds rare items too: without differential privacy, secure summation does not"
    " protect them"
)


def on(result: Result, decoder: CampaignDecoder | None) -> Iterator[str]:
    """Yield the notes on a result.

    Args:
        result: the result.
        decoder: that was fitted, before shrinkage; None: none yet.
    """
    yield from result.cautions
    yield from _on_reports(result)
    if result.num_unread:
        yield (
            f"{result.num_unread:,} of the {result.num_found:,} strings that stand out could not be"
            " read: more bytes or more clients would name most"
        )
    yield from _on_draw(result)
    yield from _on_candidates(result.domain)
    if result.unit == "contributions":
        yield _on_repeats(result)
    yield from _on_sketch(result)
    yield from _on_decoder(result, decoder)


def _on_reports(result: Result) -> Iterator[str]:
    """Yield the notes on reports to two servers: how many lied, or that nobody would find out."""
    summed = result.secure_sum
    if refused := summed.get("refused", 0):
        yield (
            f"{refused:,} of {refused + summed['survivors']:,} reports were refused: their proofs"
            f" do not show one {'+1' if result.plan.is_histogram else '+1 or -1 in each row'}. The"
            " sums are of the others"
        )
    if summed.get("validity") == "none":
        why = result.plan.why_no_proofs
        yield (
            "reports have no proofs, so a client that lies can move the sums as it likes, unseen:"
            f" {why or 'validity proofs would refuse what it reports'}"
        )


def on_screening(result: Result) -> Iterator[str]:
    """Yield the notes on cohorts whose sums honest clients cannot have, or were not looked at."""
    told = result.secure_sum.get("screening")
    if told is None or told["screen"] == "off":
        return
    refuses, refuse = told["screen"] == "refuse", opt.screen("refuse")
    for found in told["rounds"]:
        where = f" of round {found['round'] + 1}" if result.plan.num_rounds > 1 else ""
        cohorts = f"the {found['cohorts']} cohorts{where}"
        if found["verdict"] == "not screened":
            # what an earlier run found is lost, which might have been a warning
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


def on_target(result: Result) -> Iterator[str]:
    """Yield a note where the errors of an open domain are larger than the plan was made for.

    It has no pilot that would look at the frequencies beforehand.
    """
    target, intervals = result.plan.target, result.__dict__.get("intervals")
    if target is None or intervals is None or not result.plan.is_open:
        return
    asked, expected = 100 * target.linf, 100 * intervals.predicted_linf
    if expected > asked:
        yield (
            f"the largest error may be {expected:.3g} points, where the plan was made for"
            f" {asked:.3g}, with assumed frequencies. A plan for yours (fedtally plan --like), or"
            " for a smaller tau, has more counters"
        )


def _on_draw(result: Result) -> Iterator[str]:
    """Yield the note on the items that the bound on a client's items left out, if it left out any.

    Of silos, the bound is on the items of each of their people.
    """
    draw = result.draw
    if draw is None or not draw["drawn_away"]:
        return
    one, many = result.plan.nouns
    where = " in a round" if "round" in result.columns else ""
    most = draw["max_items"]
    counted = in_number(most, f"one item of each {one} is", f"{{}} items of each {one} are")
    yield Note(
        f"{draw['share_with_several']:.1%} of the {many} hold more than one item{where}. At most"
        f" {counted} counted{where}, drawn at random: {draw['drawn_away']:,} of"
        f" {draw['pairs']:,} pairs of a {one} and an item are not counted. A frequency is the"
        f" share of {many} whose drawn items include it; "
        f"{opt.max_items(draw['max_items_for_all'])} counts all"
    )


def _on_repeats(result: Result) -> str:
    """Return the note on those who count several times."""
    one, many = result.plan.nouns
    who = f"{one} of several rounds{' or silos' * result.plan.is_of_silos}"
    said = f"a {who} counts in each: frequencies are shares of"
    if result.repeats_are_private:  # nor is the noised number said: no note depends on the data
        return f"{said} contributions, of how many {many} is private"
    return f"{said} {result.num_contributions:,} contributions of {result.num_clients:,} {many}"


def on_spaces(domain: Domain) -> Iterator[str]:
    """Yield the note on candidates that look like others, and differ from them in white space."""
    if number := domain.num_spaced:
        begin = in_number(number, "1 candidate begins or ends", "{} candidates begin or end")
        yield f"{begin} with white space, which counts: 'tea ' is another item than 'tea'"


def on_oddities(domain: Domain) -> Iterator[str]:
    """Yield notes on candidates that hold what nobody sees, or look like lines of a table."""
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
    if odd.delimiter and domain.public:
        yield (
            f"each candidate holds {odd.delimiter!r} as often as the others: if their list is a"
            " table, call it .csv and name its column (FILE:COLUMN)"
        )


def _on_candidates(domain: Domain) -> Iterator[str]:
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


def _on_sketch(result: Result) -> Iterator[str]:
    plan = result.plan
    if plan.is_histogram:
        return
    if plan.domain_size <= plan.rows * plan.width:
        histogram = "an exact histogram" if plan.privacy is None else "a histogram"
        yield f"{histogram} (one-hot vectors) is no larger than this sketch, and has no collisions"


def _on_decoder(result: Result, decoder: CampaignDecoder | None) -> Iterator[str]:
    if kind_of(result.recovery).finds_rare_items and result.plan.privacy is None:
        yield RARE_ITEMS
    yield from notes_on_choice(result.recovery, result.plan.rows, result.domain.size)
    if decoder is not None:
        yield from decoder.notes()
