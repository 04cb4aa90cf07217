"""Four searches for the size of a sketch or histogram.

1. `smallest` finds the fewest bytes that meet a target error.
2. `best` finds the smallest error within a budget of bytes.
3. `least_epsilon` finds the smallest epsilon that meets a target error. If there is a budget of
   bytes, the bytes must be within it.
4. `for_any` finds a size that meets a target error for any frequencies. Without a target, it finds
   a size within a budget of bytes. The largest error of this size for any frequencies is then about
   the smallest that is possible.

Each function gets a `Design`. The request in it states the target, the bytes and the epsilon. Other
modules do parts of the work: `fedtally.plan.encodings` chooses between sketch and histogram,
`fedtally.plan.sketches` chooses schedule, rows and width of a sketch, and
`fedtally.plan.open_domain` has other searches for an open domain.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError
from fedtally.plan import Plan, Target, encodings
from fedtally.plan.design import DEFAULT_MAX_BYTES, DEFAULT_ROWS, Chosen, Design
from fedtally.plan.frequencies import hardest
from fedtally.plan.frequencies.distribution import Frequencies
from fedtally.plan.paper import Size
from fedtally.plan.predictor import predict_linf
from fedtally.plan.sizes import RISK, TOO_UNCERTAIN, UnreachableError
from fedtally.plan.sketches import Sketches, descend
from fedtally.privacy.config import MAX_EPSILON, MIN_EPSILON
from fedtally.recovery.decoding import kind_of
from fedtally.sketch import Schedule

_WIDER = 1.1  # the factor by which a sketch is widened if its error is still above tau
_NOTHING = 0.5  # without a tau, a plan whose predicted error is at least this is refused as useless
_FIRST_TAU = 0.01  # without a tau, the first guess of the hardest frequencies is for this tau
_STEPS = 8  # the most times that a sketch is widened for its hardest frequencies
_TURNS = 3  # the most times that a plan and its hardest frequencies are found, one after the other
PRECISION = 1.02  # a search finds at most this factor times the least value that suffices


class OutOfReachError(UnreachableError):
    """No plan meets a design's target; the message suggests no changes.

    `fedtally.plan.ways.unreachable` finds changes with which the target can be met.

    Attributes:
        design: the design whose target cannot be met.
        frequencies: the frequencies for which the target cannot be met.
    """

    def __init__(self, design: Design, frequencies: Frequencies) -> None:
        super().__init__(f"tau {design.spec.tau:g} cannot be met")
        self.design = design
        self.frequencies = frequencies


@dataclass(frozen=True)
class Made:
    """A plan, with the design it was made from and the predicted error.

    Attributes:
        design: the design of the plan, with its size.
        plan: the plan.
        linf: the largest error of any frequency, as predicted for the plan.
        frequencies: the frequencies for which this error is predicted.
    """

    design: Design
    plan: Plan
    linf: float
    frequencies: Frequencies


def smallest(design: Design, frequencies: Frequencies, *, with_linf: bool = True) -> Design:
    """Return the design with the size that meets `tau` with the fewest bytes.

    The size is a sketch or a histogram, within the requested `max_bytes`. If the frequencies come
    from a pilot that is too uncertain, the size meets tau for any frequencies. If no such size is
    found, or if the decoder is the median decoder, a sketch gets the paper's size for the worst
    frequencies (`size_by_model`); this size must be within the bytes, too.

    Args:
        design: the design, whose request has a tau; its size, if any, is replaced.
        frequencies: the known frequencies.
        with_linf: whether to predict the largest error of the size, too; this takes additional
            time.

    Raises:
        OutOfReachError: no size meets tau within the bytes.
        InvalidInputError: the request allows only histograms, and no histogram is possible.
    """
    spec = design.spec
    assert spec.tau is not None
    if kind_of(design.recovery).fits_items and frequencies.uncertainty(spec.tau) > TOO_UNCERTAIN:
        with suppress(InvalidInputError):
            return _smallest_for_any(design)
    whole = encodings.meets_target(design)
    if not spec.size.allows(Encoding.SKETCH):
        if whole is None:
            raise OutOfReachError(design, frequencies)
        return whole
    if whole is None:
        return _smallest_sketch(design, frequencies, with_linf=with_linf)
    try:
        sketch = _smallest_sketch(design, frequencies, with_linf=with_linf)
    except InvalidInputError:
        return whole
    return whole if whole.bytes_per_client <= sketch.bytes_per_client else sketch


def best(design: Design, frequencies: Frequencies, *, compared: bool = True) -> Design:
    """Return the design with the size of the smallest predicted error within a budget of bytes.

    The budget is the requested `max_bytes`, or else the default. If no `max_bytes` is requested, a
    histogram may exceed the default, see `fedtally.plan.encodings`.

    Args:
        design: the design; its size, if any, is replaced.
        frequencies: the known frequencies.
        compared: whether sketches of similar schedules are compared, which takes longer
            (`Sketches.best`).

    Raises:
        InvalidInputError: no size fits the bytes; or the request allows only histograms, and no
            histogram is possible.
    """
    return encodings.for_bytes(
        design,
        lambda: _best_sketch(
            Sketches.of(design, frequencies, design.spec.size.rows), compared=compared
        ),
        lambda: frequencies,
    )


def least_epsilon(design: Design, frequencies: Frequencies) -> Design:
    """Return the design with about the smallest epsilon with which some size meets `tau`.

    The epsilon is at most 2 % above the smallest one, then rounded up to two digits. The size is a
    sketch or a histogram, within the requested `max_bytes` if there is one. Whether such a size
    exists is only estimated (`reaches`). The returned design has no new size.

    Args:
        design: the design, whose request has a tau and any epsilon.
        frequencies: the known frequencies.

    Raises:
        OutOfReachError: not even the largest epsilon is enough.
        InvalidInputError: the request has no privacy.
    """
    if design.spec.privacy is None:
        raise InvalidInputError(
            "where epsilon is to be found, ask for privacy with any epsilon: it is replaced"
        )
    epsilon = least(
        lambda value: reaches(design.with_epsilon(value), frequencies),
        MIN_EPSILON,
        MAX_EPSILON,
        PRECISION,
    )
    if epsilon is None:
        raise OutOfReachError(design.with_epsilon(MAX_EPSILON), frequencies)
    return design.with_epsilon(float(rounded_up(epsilon)))


def for_any(design: Design, *, find_epsilon: bool = False) -> Made:
    """Return a plan whose target holds for any frequencies.

    The plan is made for its hardest frequencies: those for which its error is largest. The hardest
    frequencies depend on the plan, and the plan depends on these frequencies. So plan and hardest
    frequencies are found one after the other, a few times.

    Args:
        design: the design; its size, if any, is replaced.
        find_epsilon: whether to find the smallest epsilon, too; the request must then have a tau.

    Raises:
        OutOfReachError: no plan meets the target.
        InvalidInputError: no size fits the requested bytes; no histogram is possible, and the
            request allows only histograms; without a tau, the predicted error is 0.5 or more; or
            `find_epsilon` is set, and the request has no privacy.
    """
    spec = design.spec
    careful = spec.failure_probability * RISK
    known = hardest.usual_plateau(
        spec.tau or _FIRST_TAU, design.domain.size, max_items=spec.max_items
    )
    if spec.tau is None:
        return _best_for_any(design, known)
    for _ in range(_TURNS):
        if find_epsilon:
            design = least_epsilon(design, known)
        made = for_frequencies(design, known)
        if not made.plan.vector.shares_counters:
            return made
        worst = hardest_for(design, made.plan, careful, near=known)
        if worst.linf <= spec.tau:
            break
        known = worst.distribution
    made, worst = _widened(made, worst)
    linf = _linf_for_any(made.design, made.plan, worst.distribution)
    return replace(made, linf=linf, frequencies=worst.distribution)


# ---- a plan for known frequencies ----


def for_frequencies(design: Design, frequencies: Frequencies) -> Made:
    """Return the plan for given frequencies.

    If `design.spec` has a tau, it is the plan with the fewest bytes that meets tau. Otherwise it is
    the plan with the smallest predicted error within the budget of bytes.

    Args:
        design: the design; its size, if any, is replaced.
        frequencies: the frequencies.

    Raises:
        OutOfReachError: no plan meets the target.
        InvalidInputError: no size fits the requested bytes; no histogram is possible, and the
            request allows only histograms; or, without a tau, the predicted error is 0.5 or more.
    """
    if design.spec.tau is None:
        return _promising(best(design, frequencies), frequencies)
    # `with_linf` is False, because `_with_exact_noise` predicts the error anyway
    return _with_exact_noise(smallest(design, frequencies, with_linf=False), frequencies)


def _promising(design: Design, frequencies: Frequencies) -> Made:
    """Return the plan of a design that has a size; the target comes from the predicted error.

    The target is an error that is exceeded with only `RISK` times the failure probability, where
    `RISK` is below 1. This leaves room for real frequencies that differ from the given ones.
    `Made.linf` is not larger: it is exceeded with the failure probability itself.

    Raises:
        InvalidInputError: the error in the target would be 0.5 or more.
    """
    plan, p, recovery = design.plan(), design.spec.failure_probability, recovery_with(design)
    linf = predict_linf(plan, frequencies, recovery, p, expected=design.expected)
    careful = predict_linf(plan, frequencies, recovery, p * RISK, expected=design.expected)
    check_learns(careful)
    return Made(design, replace(plan, target=make_target(careful, p, recovery)), linf, frequencies)


def _with_exact_noise(design: Design, frequencies: Frequencies) -> Made:
    """Return the plan of a design whose size was chosen for a target.

    The size was chosen with approximate noise. If the exact noise of the plan is larger, the sketch
    is widened until it meets tau again.

    Raises:
        OutOfReachError: widening the sketch does not help, or exceeds the budget of bytes.
    """
    tau, budget = design.spec.tau, design.spec.size.max_bytes
    assert tau is not None

    def linf_of(design: Design) -> float:
        return predict_linf(
            design.plan(),
            frequencies,
            recovery_with(design),
            design.spec.failure_probability,
            tau=tau,
            expected=design.expected,
        )

    linf = linf_of(design)
    # A histogram cannot be widened. It was chosen with the exact noise in the counters of its plan.
    while linf > tau and design.plan().vector.shares_counters:
        before, design = linf, wider(design, _WIDER)
        linf = linf_of(design)
        if linf > 0.999 * before or (budget is not None and design.bytes_per_client > budget):
            raise OutOfReachError(design, frequencies)
    return Made(design, design.plan(), linf, frequencies)


def wider(design: Design, factor: float) -> Design:
    """Return the design with its sketch's width multiplied by `factor`, rounded up.

    Rows and schedule stay. So does `origin`, but for the width and for the predicted error, which
    is not known of the new width. Only a design with a sketch of a list of candidates may be given:
    a `spelling` would be dropped, and a histogram would become a sketch.
    """
    schedule, rows, width, *_ = design.chosen
    width = math.ceil(factor * width)
    origin = replace(design.sizing, width=width, linf=None)
    return design.with_size(schedule, rows, width).sized_by(origin)


def recovery_with(design: Design) -> str:
    """Return the name of the decoder whose error is predicted for a design that has a size."""
    _, rows, _, _, encoding = design.chosen
    return design.spec.recovery_of(design.domain.size, rows, encoding)


def _smallest_sketch(design: Design, frequencies: Frequencies, *, with_linf: bool) -> Design:
    """Return the design with the smallest sketch that meets tau within the bytes.

    The arguments are those of `smallest`. An `OutOfReachError` says that no sketch meets tau within
    the bytes.
    """
    asked = design.spec.size
    budget, sketches = asked.max_bytes, Sketches.of(design, frequencies, asked.rows)
    try:
        sketch = sketches.smallest(design.tau_of_sketch(frequencies), with_linf=with_linf)
        if budget is None or sketch.bytes_per_client <= budget:
            return sketch
        # the smallest width has a margin; a sketch that just fits the bytes may do without it
        sketch = _best_sketch(sketches, compared=True)
    except UnreachableError:
        raise OutOfReachError(design, frequencies) from None
    assert design.spec.tau is not None
    if sketch.linf > design.spec.tau:
        raise OutOfReachError(design, frequencies)
    return sketch


def _best_sketch(sketches: Sketches, *, compared: bool) -> Design:
    """Return the design with the sketch of the smallest error within the budget of bytes.

    The budget is the requested `max_bytes`, or else `DEFAULT_MAX_BYTES`.
    """
    design = sketches.design
    budget = design.spec.size.max_bytes or DEFAULT_MAX_BYTES
    found = sketches.best(budget, compared=compared)
    widest = design.widest(found.chosen.schedule, found.chosen.rows, budget)
    return widest.sized_by(replace(found.sizing, width=widest.chosen.width))


def reaches(design: Design, frequencies: Frequencies) -> bool:
    """Return whether some size meets the design's tau, within the requested `max_bytes`.

    The size is a sketch or a histogram. To be quick, sketches are tried with only one number of
    rows: the requested number, or else the decoder's usual number.
    """
    return _sketch_reaches(design, frequencies) or encodings.meets_target(design) is not None


def _sketch_reaches(design: Design, frequencies: Frequencies) -> bool:
    """Return whether a sketch meets the design's tau within `max_bytes`, as `reaches` says."""
    if not design.spec.size.allows(Encoding.SKETCH):
        return False
    rows = design.spec.size.rows or kind_of(design.recovery).usual_rows
    try:
        tau = design.tau_of_sketch(frequencies)
    except UnreachableError:
        return False
    return Sketches.of(design, frequencies, rows).reach(rows, design.spec.size.max_bytes) <= tau


# ---- nothing is known ----


def for_bytes(design: Design) -> Design:
    """Return the design with a size, if nothing is known of the frequencies.

    The requested width is taken if there is one. Otherwise the size is a histogram or the widest
    sketch within the budget of bytes (`fedtally.plan.encodings.for_bytes`). If the request leaves
    the schedule open, the best schedule for `Frequencies.assumed` is taken. If it leaves both width
    and rows open, the median decoder gets the best number of rows for `Frequencies.assumed`, too.
    For an open domain `fedtally.plan.open_domain` chooses the size instead.
    """
    return encodings.for_bytes(design, lambda: _sketch_for_bytes(design), lambda: _assumed(design))


def usual_schedule(design: Design) -> Schedule:
    """Return the schedule of a design, if neither the frequencies nor the width are known."""
    return design.only_schedule or _sketch_for_bytes(design).chosen.schedule


def _assumed(design: Design) -> Frequencies:
    return Frequencies.assumed(design.domain.size, max_items=design.spec.max_items)


def _sketch_for_bytes(design: Design) -> Design:
    asked = design.spec.size
    usual = DEFAULT_ROWS if asked.width or kind_of(design.recovery).fits_items else None
    rows, schedule = asked.rows or usual, design.only_schedule
    budget = asked.max_bytes or DEFAULT_MAX_BYTES
    if rows is None or schedule is None:
        sketches = Sketches.of(design, _assumed(design), rows)
        if asked.width and rows is not None:
            schedule = sketches.best_schedule(rows, asked.width)
        else:
            schedule, rows, *_ = sketches.best(budget).chosen
    if asked.width:
        sketch = design.with_size(schedule, rows, asked.width)
    else:
        sketch = design.widest(schedule, rows, budget)
    return sketch.sized_by(Size("budget", rows, sketch.chosen.width))


# ---- the hardest frequencies ----


def hardest_for(
    design: Design, plan: Plan, probability: float, *, near: Frequencies | None = None
) -> hardest.Hardest:
    """Return the hardest frequencies for a plan, with the largest error of the plan for them.

    The error is predicted by the error model alone; no campaigns are simulated.

    Args:
        design: the design of the plan.
        plan: the plan.
        probability: the probability with which the returned error may be exceeded, above 0 and
            below 1.
        near: the frequencies where the search begins, for example the hardest frequencies for a
            similar plan; None: the search goes from many items to few.
    """
    recovery = design.spec.recovery_of(design.domain.size, plan.rows, plan.encoding)

    def linf(frequencies: Frequencies) -> float:
        return predict_linf(plan, frequencies, recovery, probability, 0, expected=design.expected)

    return hardest.find_hardest(
        linf,
        plan.domain_size,
        design.expected,
        max_items=plan.max_items,
        near=None if near is None else round(float(near.numbers[0])),
    )


def _widened(made: Made, worst: hardest.Hardest) -> tuple[Made, hardest.Hardest]:
    """Return a plan that is wide enough for its own hardest frequencies, with these frequencies.

    The plan is widened step by step, and the hardest frequencies are found again after each step.
    With joint recovery the error is small once the sketch is wide enough to fit the items. Near
    this width the error goes up and down, so that one step may not lower it. With the median
    decoder the error falls steadily as the width grows, so that larger steps are taken.

    Args:
        made: the plan, with a target tau.
        worst: the hardest frequencies for the plan, with its error.

    Raises:
        OutOfReachError: the sketch exceeds the budget of bytes, or `_STEPS` steps are not enough.
    """
    design, spec, steps = made.design, made.design.spec, 0
    assert spec.tau is not None
    is_smooth = not kind_of(design.recovery).fits_items
    while worst.linf > spec.tau:
        design = wider(design, max(_WIDER, worst.linf / spec.tau) if is_smooth else _WIDER)
        steps += 1
        is_dear = spec.size.max_bytes is not None and design.bytes_per_client > spec.size.max_bytes
        if is_dear or steps > _STEPS:
            raise OutOfReachError(design, worst.distribution)
        careful = spec.failure_probability * RISK
        worst = hardest_for(design, design.plan(), careful, near=worst.distribution)
    return replace(made, design=design, plan=design.plan()), worst


def _linf_for_any(design: Design, plan: Plan, worst: Frequencies) -> float:
    """Return the predicted error of a plan for its hardest frequencies `worst`.

    It is the larger of two predictions: by the error model, and by simulated campaigns for a small
    sketch. The simulated campaigns alone would predict too small an error. They may fit the items
    of `worst`, although the error model takes these items for too rare to be fitted. Slightly rarer
    items would then be harder.
    """
    asked = (plan, worst, recovery_with(design), design.spec.failure_probability)
    return max(
        predict_linf(*asked, 0, expected=design.expected),
        predict_linf(*asked, tau=design.spec.tau, expected=design.expected),
    )


def _smallest_for_any(design: Design) -> Design:
    """Return the design that meets tau for any frequencies, if a pilot tells too little about them.

    The paper's size is for the median decoder at its worst frequencies, and would be much larger.
    Joint recovery needs a smaller size, because it fits frequent items.
    """
    made = for_any(design)
    plan, size = made.plan, made.design.sizing
    if not plan.vector.shares_counters:
        return made.design
    message = (
        f"the pilot does not tell the width for tau {design.spec.tau:g}: the hardest frequencies"
        " are assumed, as without a pilot; take more clients"
    )
    return made.design.sized_by(Size(size.method, plan.rows, plan.width, made.linf, message))


class _Tried(NamedTuple):
    """A design with a size, and the hardest frequencies for its plan."""

    design: Design
    worst: hardest.Hardest


def _best_for_any(design: Design, known: Frequencies) -> Made:
    """Return the plan within the bytes whose error is least for its own hardest frequencies.

    Only a few plans are compared. If `best` chooses a histogram, the plan with this histogram is
    returned without a comparison.

    Args:
        design: the design, whose request has no tau.
        known: the frequencies for which the first plan is made.
    """
    p, careful = design.spec.failure_probability, design.spec.failure_probability * RISK
    tried: dict[Chosen, _Tried] = {}
    for _ in range(_TURNS):
        sized = best(design, known, compared=False)
        if sized.chosen in tried:  # the hardest frequencies for this size are known already
            break
        if not sized.plan().vector.shares_counters:
            return _promising(sized, known)
        tried[sized.chosen] = _Tried(sized, hardest_for(design, sized.plan(), careful, near=known))
        known = tried[sized.chosen].worst.distribution
    sized, worst = _nearby_for_any(design, min(tried.values(), key=lambda one: one.worst.linf))
    # only the chosen size is simulated: the search used the error model alone
    plan, recovery, known = sized.plan(), recovery_with(sized), worst.distribution
    tries = predict_linf(plan, known, recovery, careful, expected=design.expected)
    linf = max(worst.linf, tries)
    check_learns(linf)
    plan = replace(plan, target=make_target(linf, p, recovery))
    return Made(sized, plan, _linf_for_any(sized, plan, known), known)


def _nearby_for_any(design: Design, found: _Tried) -> _Tried:
    """Return the design with the schedule whose error for its own hardest frequencies is small.

    The search begins with the schedule of `found` or the first one, whichever has the smaller
    error. It goes to neighbouring schedules as long as the error falls (`descend`). The hardest
    frequencies differ between schedules. So the schedule that is best for the hardest frequencies
    of `found` may have a large error for its own hardest frequencies.
    """
    sketches = Sketches.of(design, found.worst.distribution, design.spec.size.rows)
    careful = design.spec.failure_probability * RISK
    listed, schedule = sketches.schedules, found.design.chosen.schedule

    @cache
    def tried(place: int) -> _Tried | None:
        if listed[place] == schedule:
            return found
        only = replace(sketches, schedules=listed[place : place + 1])
        try:
            sized = _best_sketch(only, compared=False)
        except InvalidInputError:  # no sketch fits the bytes
            return None
        return _Tried(
            sized, hardest_for(design, sized.plan(), careful, near=found.worst.distribution)
        )

    def price(place: int) -> float:
        sketch = tried(place)
        return math.inf if sketch is None else sketch.worst.linf

    return tried(descend(price, listed.index(schedule), len(listed))) or found


# ---- targets ----


def is_made(make: Callable[[], object]) -> bool:
    """Return whether `make` returns, and does not raise InvalidInputError."""
    with suppress(InvalidInputError):
        make()
        return True
    return False


def check_learns(linf: float) -> None:
    """Refuse a plan whose predicted largest error is 0.5 or more, since it would show nothing.

    Args:
        linf: the predicted largest error of any frequency.

    Raises:
        InvalidInputError: `linf` is 0.5 or more.
    """
    if linf >= _NOTHING:
        raise InvalidInputError(
            f"with these bytes the error of a frequency may be {linf:.2g}: nothing could be"
            " learnt; give more bytes, more clients or a larger epsilon"
        )


def make_target(linf: float, probability: float, recovery: str) -> Target:
    """Return a target whose largest error is `linf`, rounded up to two digits, at least 1e-9.

    Args:
        linf: the largest error of any frequency.
        probability: the probability with which this error may be exceeded.
        recovery: the name of the decoder.
    """
    return Target(float(rounded_up(max(linf, 1e-9))), probability, recovery)


# ---- numbers ----


def least(
    suffices: Callable[[float], bool], low: float, high: float, ratio: float = 1.01
) -> float | None:
    """Return the least value in [low, high] that suffices, or a value up to `ratio` times larger.

    Returns None if not even `high` suffices. If a value suffices, all larger values are assumed to
    suffice.

    Args:
        suffices: a function that returns whether a value suffices.
        low: the smallest value to try, above 0.
        high: the largest value to try.
        ratio: the relative precision, above 1.

    >>> least(lambda x: x >= 3, 1.0, 100.0, 1.001) <= 3.003
    True
    """
    if not suffices(high):
        return None
    if suffices(low):
        return low
    while high > low * ratio:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if suffices(middle) else (middle, high)
    return high


def rounded_up(number: float) -> str:
    """Return the text of a number above 0, rounded up to two digits.

    >>> rounded_up(0.00123), rounded_up(1100.0)
    ('0.0013', '1100')
    """
    digits = 10.0 ** (math.floor(math.log10(number)) - 1)
    return f"{digits * math.ceil(number / digits * (1 - 1e-12)):.12g}"
