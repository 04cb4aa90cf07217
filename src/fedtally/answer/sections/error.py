"""The section on errors: limits, what they cover, and the error that a plan promised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedtally.answer import amounts
from fedtally.answer.estimates import (
    Estimate,
    largest_uncertainty,
    uncertainty_of,
)
from fedtally.answer.evaluation import Evaluation, NameEvaluation
from fedtally.answer.sections import counted
from fedtally.base.text import in_number, one_of
from fedtally.plan import Plan

if TYPE_CHECKING:
    from fedtally.answer.result import Result
    from fedtally.plan.proposal import Proposal
    from fedtally.recovery.limits import Intervals


EXACT = "each count is exact"
_NO_ERROR = 1e-9  # a plan whose target is at most this share promises "next to none"
_MOST_CAMPAIGNS = 1000  # up to this N, a probability is written as "N - 1 of N campaigns"


NOT_ESTIMATED = "not estimated: the confidence is 0"


COVERS = "frequencies among those that took part"


_ROUNDING = 1e-9  # an error up to this share is only rounding, and is shown as no error
_USUAL = 0.95  # the usual confidence: a line does not name it


def covers(kind: str) -> str:
    """Return in words which frequencies intervals cover.

    Args:
        kind: the kind of the intervals: "pointwise" (for items named beforehand), "selective" (for
            items that are on a list because their estimates are large) or "simultaneous" (for all
            candidates at once).

    >>> covers("simultaneous").partition("; ")[2]
    'of all candidates at once, so also of a list chosen by its estimates'
    """
    which = {
        "selective": "of a list chosen by its estimates, on average over its items",
        "simultaneous": "of all candidates at once, so also of a list chosen by its estimates",
    }
    return (
        f"{COVERS};"
        f" {which.get(kind, 'of items named beforehand, not of a list chosen by its estimates')}"
    )


def sizing_rows(said: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return the rows on how the size of a sketch was chosen for a target; [] if `said` is None.

    Args:
        said: the field `sizing` of a result; None: the size was given, in numbers or by a plan, or
            follows from a number of bytes.

    >>> sizing_rows({"sizing": "minimax", "tau": 0.001, "failure_probability": 0.1,
    ...              "predicted_linf": None, "pilot": None, "message": ""})[0][1]
    'by the formula minimax for a largest error of 0.10 points, which guarantees nothing'
    """
    if said is None:
        return []
    chance = f"exceeded in at most {100 * said['failure_probability']:.3g} % of campaigns"
    tau = amounts.points(said["tau"])
    if said["sizing"] == "model":
        text = f"by the model for a largest error of {tau}, {chance}"
    else:  # only sizes from the error model have a probability of failure
        formula = f"by the formula {said['sizing']}"
        text = f"{formula} for a largest error of {tau}, which guarantees nothing"
    rows = [("Sized", text)]
    pilot = said["pilot"]
    if pilot is not None:
        sent = amounts.size(pilot["bytes_per_client"])
        sketch = f"{pilot['rows']} x {pilot['width']:,} counters, {sent} each"
        who = amounts.counted(pilot["num_clients"], "client")
        noised = ""
        if pilot.get("epsilon"):
            noised = (
                f" and noised for epsilon {pilot['epsilon']:g}; if many items are all a little"
                " above that error, more campaigns may exceed it"
            )
        rows.append(("", f"from a pilot of {who} ({sketch}), who are not in the estimates{noised}"))
    named = said.get("names")
    if named is not None:
        above = f"{100 * named['threshold']:.3g} %"
        length = amounts.counted(named["name_length"], "byte")
        assumed = f"if names have at most {length}, and frequencies fall like i^-1.1 (assumed)"
        rows.append(("", f"so that strings above {above} are named, {assumed}"))
    return [*rows, *([("", said["message"])] if said["message"] else [])]


def target_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the row "Target" on the error that a plan promises.

    The promise may be broken with the probability in the target. A plan for "any" frequencies keeps
    the promise whatever the frequencies are. Otherwise the row says that the promise rests on
    assumed frequencies. Returns [] if the plan has no target, or if the target does not say for
    which frequencies it holds.
    """
    target = plan.target
    if target is None or target.frequencies is None:
        return []
    chance = f"exceeded in at most {100 * target.failure_probability:.3g} % of campaigns"
    promised = f"largest error of all frequencies {amounts.points(target.linf)}, {chance}"
    if target.frequencies == "any":
        return [("Target", f"{promised}, whatever the frequencies")]
    assumed = f"if frequencies are like {target.frequencies}, which is an assumption"
    return [("Target", f"{promised}, {assumed}")]


def expected_error(intervals: Intervals) -> str:
    """Return the predicted largest error as text in percentage points: one number, or a range.

    >>> import fedtally
    >>> asked = {"domain": "range:1..900", "rows": 6, "seed": 1}
    >>> for width in (90, 300):
    ...     result = fedtally.estimate("zipf:a=1.1,d=900,n=20000", width=width, **asked)
    ...     print(expected_error(result.intervals))
    0.039 to 0.111 points
    0.066 points
    """
    between = intervals.predicted_range
    if between is None:
        return amounts.points(intervals.predicted_linf)
    low, high = (amounts.points(error, amounts.decimals(between)) for error in between)
    return f"{low.removesuffix(' points')} to {high}"


def line(result: Result, shown: Sequence[Estimate]) -> str:
    """Return in words how far off estimates may be: among these clients, and for more people.

    If the result was evaluated, the error among these clients is the largest error that was found.
    If it was not evaluated and there are no limits, the text is `NOT_ESTIMATED`.

    Args:
        result: the whole result.
        shown: the estimates that are shown: listed, or asked for by name.

    >>> import fedtally
    >>> result = fedtally.estimate(["tea", "milk"] * 500, seed=1)
    >>> line(result, result.top(2))
    '± 0.10 points among these 1,000 clients; ± 3.09 if they stand for more people'
    """
    if result.intervals is None and result.evaluation is None:
        return NOT_ESTIMATED
    found = None if result.evaluation is None else result.evaluation.linf
    among = counted.those(result.num_contributions, result.unit)
    return doubt(shown, among, found, result.confidence)


def doubt(
    shown: Sequence[Estimate], among: str, found: float | None = None, confidence: float = _USUAL
) -> str:
    """Return in words how far off estimates may be: among these clients, and for more people.

    The clients may be a sample of a wider population. The text is "no item is shown" if `found` is
    None and no estimate has limits.

    Args:
        shown: the estimates. If any estimate can be told from 0, estimates that cannot be told from
            0 are left out.
        among: a text on who took part, as `counted.those` returns it.
        found: the largest error of all candidates, compared with the truth; None: the truth is
            unknown.
        confidence: the confidence of the limits. The text names it beside an error for more people,
            unless it is 0.95.

    >>> tea, rare = (Estimate("tea", f, low, f + 0.03, 9.0, 0.04, 0.0, f + 0.05)
    ...              for f, low in ((0.5, 0.47), (0.01, 0.0)))
    >>> doubt([tea, rare], "these 900 clients")
    '± 3.00 points among these 900 clients; ± 5.00 if they stand for more people'
    >>> doubt([rare], "these 900 clients").partition("; ")[0]
    'each is at most 4.00 % among these 900 clients'
    >>> doubt([tea], "these 900 clients", found=0.0123).partition("; ")[0]
    'largest error found: 1.23 points among these 900 clients'
    >>> doubt([tea], "these 900 clients", confidence=0.9999).partition("; ")[2]
    '± 5.00 if they stand for more people; with 99.99 % confidence'
    """
    here, more = _readings(shown)
    if found is not None:
        here = (
            f"largest error found: {amounts.points(found)}"
            if found > _ROUNDING
            else "no error found"
        )
    said = [f"{here} among {among}"] * bool(here)
    said += [f"{more} if they stand for more people"] * bool(more)
    said += [f"with {amounts.level(confidence)} confidence"] * (bool(more) and confidence != _USUAL)
    return "; ".join(said) or "no item is shown"


def _readings(shown: Sequence[Estimate]) -> tuple[str, str]:
    """Return two texts: the error among the clients, and the error for a wider population.

    Both are "" if there are no limits. If no estimate can be told from 0, the texts say instead how
    large the shares are at most.
    """
    if (off := largest_uncertainty(shown)) is not None:
        clients, wider = off
        # With tiny noise the limits are narrower than rounding: show an error of 0.
        within = f"± {amounts.points(clients if clients > _ROUNDING else 0.0)}"
        return within if clients else "exact", f"± {_bare(wider)}"
    highest = [(e.high, e.population_high) for e in shown if e.high is not None]
    if not highest:
        return "", ""
    clients, wider = (max(filter(None, each), default=0.0) for each in zip(*highest, strict=True))
    return f"each is at most {amounts.percent(clients)}", f"at most {amounts.percent(wider)}"


def _bare(error: float) -> str:
    return amounts.points(error).removesuffix(" points")


def none_expected(result: Result, estimates: Sequence[Estimate]) -> str:
    """Return a text for an answer that looks exact: no error expected, and what limits allow.

    The limits may be wider than the expected error of 0. Without an explanation this would look
    like a contradiction.

    Args:
        result: the whole result, with intervals whose predicted error is 0.
        estimates: the estimates that are shown.

    >>> import fedtally
    >>> none_expected(fedtally.estimate(["tea"], seed=1), [])
    'none beyond rounding: recovery looks exact'
    """
    half = max(
        (
            max(e.frequency - e.low, e.high - e.frequency)
            for e in estimates
            if e.low is not None and e.high is not None
        ),
        default=0.0,
    )
    most = round(half * result.num_contributions)
    said = "none beyond rounding: recovery looks exact"
    if result.plan.privacy is not None:  # noise is unlikely to change a count, but it may
        said = "most likely none: the plan's noise is small"
    if not most:
        return said
    number = in_number(most, f"1 {one_of(result.unit)}", f"{{}} {result.unit}")
    return f"{said}, though the limits allow {number} more or less"


def evaluated_names(found: NameEvaluation) -> list[str]:
    """Return how the names of an open domain compare with the true strings, as a list of texts.

    >>> found = NameEvaluation(0.02, 3, 1.0, 1.0, 5, 0, 0.001, 0.002, 1.0)
    >>> evaluated_names(found)[1]
    'all 3 strings above 2 % are named'
    """
    above = f"above {100 * found.threshold:.3g} %"
    digits = amounts.decimals([found.linf, found.l2])
    said = [f"largest {amounts.points(found.linf, digits)} of all strings that somebody holds"]
    if found.recall is None:
        said.append(f"no string is {above}")
    elif found.strings == 1:
        said.append(f"the only string {above} is {'named' if found.recall else 'not named'}")
    elif found.recall == 1.0:
        said.append(f"all {found.strings:,} strings {above} are named")
    else:
        number = round(found.recall * found.strings)
        said.append(f"{number:,} of the {found.strings:,} strings {above} are named")
    wrong = f"{found.wrong:,} wrong" if found.wrong else "none of them wrong"
    said.append(f"{amounts.counted(found.named, 'name')}, {wrong}")
    if found.precision is not None:
        said.append(f"precision {found.precision:.0%}")
    rest = [f"l2 {amounts.points(found.l2, digits)}"]
    if found.coverage is not None:
        rest.append(f"{found.coverage:.1%} of the intervals of named strings hold the truth")
    return [*said, "; ".join(rest)]


def covered(
    confidence: float, asked: str, about: str, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, str]]:
    """Return rows of (name, text): what intervals cover, how they were made, and sampling error.

    Args:
        confidence: the confidence of the intervals.
        asked: the kind of intervals that was asked for.
        about: a description of how the intervals were made.
        listed: the estimates of a list, which are on it because they are large.
        named: the estimates of items that were named beforehand.
    """
    from fedtally.recovery.decoding import listed_kind, named_kind

    kinds = [listed_kind(asked)] * bool(listed) + [named_kind(asked)] * bool(named)
    said = []
    for kind in dict.fromkeys(kinds or [named_kind(asked)]):
        each = " each" if kind == "pointwise" else ""
        said.append(f"{amounts.level(confidence)}{each}, for {covers(kind)}")
    rows = [("Intervals", said[0]), *(("", more) for more in [*said[1:], about] if more)]
    if off := uncertainty_of([*listed, *named]):
        text = (
            "not in the intervals: those that took part as a sample of a wider population, up"
            f" to ± {amounts.points(off.sampling.max())} here"
        )
        rows.append(("Sampling", text))
    return rows


def fields(estimates: Sequence[Estimate]) -> dict[str, float] | None:
    """Return the largest errors of estimates, among clients and for a population.

    Returns None if there are no limits, or no estimate can be told from 0. As in the line on a
    screen (`doubt`), only estimates that can be told from 0 count.

    >>> fields([Estimate("tea", 0.5, 0.25, 0.75, 9.0, 0.0)])
    {'clients': 0.25, 'population': 0.25}
    """
    off = largest_uncertainty(estimates)
    return None if off is None else dict(zip(("clients", "population"), off, strict=True))


def intervals_fields(result: Result) -> dict[str, Any] | None:
    """Return the JSON fields of a result's intervals; None if the confidence is 0.

    >>> import fedtally
    >>> fields = intervals_fields(fedtally.estimate(["tea", "milk"], seed=1))
    >>> fields["kind"], fields["list"]["kind"], fields["named"]["kind"]
    ('auto', 'selective', 'pointwise')
    """
    intervals = result.intervals
    if intervals is None:
        return None
    said = limits_fields(result.confidence, result.interval_kind, intervals.about)
    between = intervals.predicted_range
    return said | {
        "predicted_linf": intervals.predicted_linf,
        "predicted_linf_range": None if between is None else list(between),
    }


def limits_fields(confidence: float, kind: str, about: str) -> dict[str, Any]:
    """Return the JSON fields of limits, for one result or for several merged results.

    Args:
        confidence: the confidence of the limits.
        kind: the kind of intervals that was asked for.
        about: a description of how the limits were made.
    """
    from fedtally.recovery.decoding import listed_kind, named_kind

    return {
        "confidence": confidence,
        "kind": kind,
        "list": {"kind": (listed := listed_kind(kind)), "covers": covers(listed)},
        "named": {"kind": (named := named_kind(kind)), "covers": covers(named)},
        "about": about,
    }


def rows(
    result: Result, listed: Sequence[Estimate], named: Sequence[Estimate]
) -> list[tuple[str, str]]:
    """Return rows of (name, text): what the intervals cover, and the largest error to expect.

    Returns [] if the confidence is 0. For exact counts there is no row on the error to expect.

    Args:
        result: the whole result.
        listed: the estimates of the list.
        named: the estimates of items that were named beforehand.
    """
    intervals = result.intervals
    if intervals is None:
        return []
    rows = covered(result.confidence, result.interval_kind, intervals.about, listed, named)
    if result.is_exact:
        return [("Intervals", EXACT), *(row for row in rows if row[0] == "Sampling")]
    if not intervals.predicted_linf:
        return [*rows, ("Expected", none_expected(result, [*listed, *named]))]
    before = " before shrinkage" if result.objective == "l2" else ""
    expected = f"largest error of all candidates{before} about ± {expected_error(intervals)}"
    # In a histogram no items share a counter, so the plan's noise is the only error.
    source = "the sums" if result.plan.vector.shares_counters else "the plan's noise"
    return [*rows, ("Expected", f"{expected}, predicted from {source}")]


def evaluated(found: Evaluation | NameEvaluation) -> str:
    """Return in words how far the estimates of a result are from the truth.

    For an open domain (`NameEvaluation`) the text also judges the names.
    """
    if isinstance(found, NameEvaluation):
        return "; ".join(evaluated_names(found))
    digits = amounts.decimals([found.linf, found.l2])
    largest, l2 = (amounts.points(error, digits) for error in (found.linf, found.l2))
    figures = f"largest {largest}, l2 {l2} over all candidates"
    covered = (
        "" if found.coverage is None else f"; {found.coverage:.1%} of the intervals hold the truth"
    )
    return (
        f"{figures}; top {found.k}: precision {found.precision_at_k:.0%}, recall"
        f" {found.recall_at_k:.0%}{covered}"
    )


def campaigns(failure_probability: float) -> str:
    """Return in words in how many campaigns the error stays within a bound: "9 of 10 campaigns".

    Args:
        failure_probability: the probability that the error exceeds the bound, above 0.

    >>> campaigns(0.1), campaigns(0.01), campaigns(0.15), campaigns(1e-6)
    ('9 of 10 campaigns', '99 of 100 campaigns', '85 % of campaigns', '99.9999 % of campaigns')
    """
    number = round(1 / failure_probability)
    if abs(number * failure_probability - 1) < 1e-9 and 2 <= number <= _MOST_CAMPAIGNS:
        return f"{number - 1:,} of {number:,} campaigns"
    return f"{amounts.level(1 - failure_probability)} of campaigns"


def planned(proposal: Proposal) -> str:
    """Return in words the largest error that a plan promises, and in how many campaigns.

    If the promise holds for any frequencies, the text says so.
    """
    target, plan = proposal.target, proposal.plan
    if plan.protection.leaves_exact(plan.vector):
        return "none: each candidate has a counter of its own, and counts are exact"
    often = campaigns(target.failure_probability)
    most = "next to none" if target.linf <= _NO_ERROR else f"at most {amounts.points(target.linf)}"
    whatever = ", whatever the frequencies" if proposal.is_for_any else ""
    return f"{most} in {often}{whatever}"
