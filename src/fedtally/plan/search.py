"""The four searches for the size of a sketch or histogram.

1. `smallest`: the fewest bytes that meet a target.
2. `best`: the smallest error within a budget of bytes.
3. `least_epsilon`: the least epsilon that meets a target within a budget of bytes.
4. `for_any`: a size whose target holds for any frequencies.

Each takes a `Design`, whose request has the target, the bytes and the epsilon.
`fedtally.plan.encodings` chooses between sketch and histogram, and `fedtally.plan.sketches` chooses
the schedule, the rows and the width of a sketch. If the domain is open, the searches are in
`fedtally.plan.open_domain` instead.
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

_WIDER = 1.1  # the factor by which a sketch is widened if its exact noise exceeds the estimate
_NOTHING = 0.5  # an error so large that frequencies tell nothing
_FIRST_TAU = 0.01  # the tau of the first guess of the hardest frequencies, if bytes are given
_STEPS = 8  # the most times that a sketch is widened by `_WIDER`
_TURNS = 3  # the most times that plan and hardest frequencies are found in turn
PRECISION = 1.02  # the relative precision of a value that a search finds


class OutOfReachError(UnreachableError):
    """No plan meets a design's target; `fedtally.plan.ways.unreachable` finds changes that help.

    Attributes:
        design: the design.
        frequencies: the frequencies for which no plan meets its target.
    """

    def __init__(self, design: Design, frequencies: Frequencies) -> None:
        super().__init__(f"tau {design.spec.tau:g} cannot be met")
        self.design = design
        self.frequencies = frequencies


@dataclass(frozen=True)
class Made:
    """A plan with its target.

    Attributes:
        design: the design of the plan, with its size.
        plan: the plan.
        linf: the predicted largest error of the plan.
        frequencies: the frequencies for which this error is predicted.
    """

    design: Design
    plan: Plan
    linf: float
    frequencies: Frequencies


def smallest(design: Design, frequencies: Frequencies, *, with_linf: bool = True) -> Design:
    """Return the design with the size that meets tau with the fewest bytes, at most max_bytes.

    If a pilot tells too little about the frequencies, the size meets tau for any frequencies.

    Args:
        design: the design, whose request has a tau.
        frequencies: the known frequencies.
        with_linf: whether to predict the largest error of the size, too.

    Raises:
        OutOfReachError: no size meets tau.
        InvalidInputError: the request names the encoding histogram, and no histogram is possible.
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
    """Return the design with the size of the smallest error within max_bytes or the default bytes.

    A histogram may exceed the default bytes, see `fedtally.plan.encodings`.

    Args:
        design: the design.
        frequencies: the known frequencies.
        compared: whether sketches of neighbouring schedules are compared (`Sketches.best`).

    Raises:
        InvalidInputError: no size fits the bytes.
    """
    return encodings.for_bytes(
        design,
        lambda: _best_sketch(
            Sketches.of(design, frequencies, design.spec.size.rows), compared=compared
        ),
        lambda: frequencies,
    )


def least_epsilon(design: Design, frequencies: Frequencies) -> Design:
    """Return the design with the least epsilon, to two digits, with which some size meets tau.

    The size, a sketch or a histogram, must fit max_bytes. The returned design has no size yet.

    Raises:
        OutOfReachError: no epsilon suffices.
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
    """Return the plan whose target holds for any frequencies: it is made for the hardest ones.

    The hardest frequencies depend on the plan, and the plan on them: both are found in turn.

    Args:
        design: the design.
        find_epsilon: whether to find the least epsilon, too.

    Raises:
        OutOfReachError: no plan meets the target.
        InvalidInputError: no size fits the given bytes, or its error would hide every frequency.
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

    If the request has a tau, the plan has the fewest bytes; otherwise it has the least error.

    Raises:
        OutOfReachError: no plan meets the target.
        InvalidInputError: no size fits the given bytes, or its error would hide every frequency.
    """
    if design.spec.tau is None:
        return _promising(best(design, frequencies), frequencies)
    # without linf here: the error is then predicted with the exact noise of the plan
    return _with_exact_noise(smallest(design, frequencies, with_linf=False), frequencies)


def _promising(design: Design, frequencies: Frequencies) -> Made:
    """Return the plan of a design with a size; its target follows from its predicted error.

    The target is the error that is exceeded with only `RISK` times the failure probability.
    """
    plan, p, recovery = design.plan(), design.spec.failure_probability, recovery_with(design)
    linf = predict_linf(plan, frequencies, recovery, p, expected=design.expected)
    careful = predict_linf(plan, frequencies, recovery, p * RISK, expected=design.expected)
    check_learns(careful)
    return Made(design, replace(plan, target=make_target(careful, p, recovery)), linf, frequencies)


def _with_exact_noise(design: Design, frequencies: Frequencies) -> Made:
    """Return the plan of a design with a size that was chosen for a target.

    The sketch is widened if exact accounting demands more noise than the size was chosen with.

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
    # only for sketches: a histogram was chosen with the exact noise of its plan
    while linf > tau and design.plan().vector.shares_counters:
        before, design = linf, wider(design, _WIDER)
        linf = linf_of(design)
        if linf > 0.999 * before or (budget is not None and design.bytes_per_client > budget):
            raise OutOfReachError(design, frequencies)
    return Made(design, design.plan(), linf, frequencies)


def wider(design: Design, factor: float) -> Design:
    """Return the design with a sketch whose width is multiplied by a factor, rounded up."""
    schedule, rows, width, *_ = design.chosen
    return design.with_size(schedule, rows, math.ceil(factor * width)).sized_by(design.sizing)


def recovery_with(design: Design) -> str:
    """Return the name of the decoder whose error is predicted for a design with a size."""
    _, rows, _, _, encoding = design.chosen
    return design.spec.recovery_of(design.domain.size, rows, encoding)


def _smallest_sketch(design: Design, frequencies: Frequencies, *, with_linf: bool) -> Design:
    """Return the design with the smallest sketch that meets tau; see `smallest`."""
    asked = design.spec.size
    budget, sketches = asked.max_bytes, Sketches.of(design, frequencies, asked.rows)
    try:
        sketch = sketches.smallest(design.tau_of_sketch(frequencies), with_linf=with_linf)
        if budget is None or sketch.bytes_per_client <= budget:
            return sketch
        sketch = _best_sketch(sketches, compared=True)  # without the margin of the width
    except UnreachableError:
        raise OutOfReachError(design, frequencies) from None
    assert design.spec.tau is not None
    if sketch.linf > design.spec.tau:
        raise OutOfReachError(design, frequencies)
    return sketch


def _best_sketch(sketches: Sketches, *, compared: bool) -> Design:
    """Return the design with the sketch of least error whose uploads have at most `max_bytes`.

    If the request has no `max_bytes`, the bound is `DEFAULT_MAX_BYTES`.
    """
    design = sketches.design
    budget = design.spec.size.max_bytes or DEFAULT_MAX_BYTES
    found = sketches.best(budget, compared=compared)
    widest = design.widest(found.chosen.schedule, found.chosen.rows, budget)
    return widest.sized_by(replace(found.sizing, width=widest.chosen.width))


def reaches(design: Design, frequencies: Frequencies) -> bool:
    """Return whether a sketch or a histogram meets the design's tau, within max_bytes if given.

    To be quick, only sketches with the requested or else the usual number of rows are tried.
    """
    return _sketch_reaches(design, frequencies) or encodings.meets_target(design) is not None


def _sketch_reaches(design: Design, frequencies: Frequencies) -> bool:
    """Return whether a sketch meets the design's tau within max_bytes, see `reaches`."""
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
    """Return the design with the given size, or with the largest size within a budget of bytes.

    The size is of a histogram or a sketch. Nothing is known of the frequencies. If a schedule, or
    the number of rows for the median decoder, must be chosen, this is done for
    `Frequencies.assumed`. For an open domain `fedtally.plan.open_domain` chooses the size.
    """
    return encodings.for_bytes(design, lambda: _sketch_for_bytes(design), lambda: _assumed(design))


def usual_schedule(design: Design) -> Schedule:
    """Return the schedule of a design if nothing is known of the frequencies, nor the width."""
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
    """Return the hardest frequencies for a plan, and the plan's largest error for them.

    Args:
        design: the design of the plan.
        plan: the plan.
        probability: the probability with which the error is exceeded, in (0, 1).
        near: the (nearly) hardest frequencies for a similar plan, where the search begins; None:
            the search tries all.
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
    """Return a plan that is wide enough for its own hardest frequencies, and these frequencies.

    With joint recovery the error is small once the items are fitted. Near the width where they
    start to be fitted the error is irregular, so that a single widening may not lower it. With the
    median decoder the error falls steadily as the width grows.

    Raises:
        OutOfReachError: the sketch exceeds the budget, or `_STEPS` widenings are not enough.
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
    """Return the largest error of a plan for its hardest frequencies, which are given.

    Trial campaigns may fit items that the error model takes for too rare to be fitted. Slightly
    more and rarer items would then be hard. So a trial of the given frequencies alone would predict
    too small an error.
    """
    asked = (plan, worst, recovery_with(design), design.spec.failure_probability)
    return max(
        predict_linf(*asked, 0, expected=design.expected),
        predict_linf(*asked, tau=design.spec.tau, expected=design.expected),
    )


def _smallest_for_any(design: Design) -> Design:
    """Return the design that meets tau for any frequencies; used if a pilot tells too little.

    The sketch for the median decoder's worst case would be much larger, since joint recovery finds
    frequent items.
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
    """A design that was tried, and the hardest frequencies for it."""

    design: Design
    worst: hardest.Hardest


def _best_for_any(design: Design, known: Frequencies) -> Made:
    """Return the plan within the given bytes whose error for its hardest frequencies is least."""
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
    # the target of the plan is predicted once the hardest frequencies are found
    plan, recovery, known = sized.plan(), recovery_with(sized), worst.distribution
    tries = predict_linf(plan, known, recovery, careful, expected=design.expected)
    linf = max(worst.linf, tries)
    check_learns(linf)
    plan = replace(plan, target=make_target(linf, p, recovery))
    return Made(sized, plan, _linf_for_any(sized, plan, known), known)


def _nearby_for_any(design: Design, found: _Tried) -> _Tried:
    """Return the design of least error that a descent over the schedules finds; see `descend`.

    Each schedule has other hardest frequencies. So a schedule that is best for the hardest
    frequencies of another schedule may have a large error for its own.
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
    """Return whether `make` makes a plan, and does not raise InvalidInputError."""
    with suppress(InvalidInputError):
        make()
        return True
    return False


def check_learns(linf: float) -> None:
    """Refuse a plan whose predicted largest error may hide every frequency."""
    if linf >= _NOTHING:
        raise InvalidInputError(
            f"with these bytes the error of a frequency may be {linf:.2g}: nothing could be"
            " learnt; give more bytes, more clients or a larger epsilon"
        )


def make_target(linf: float, probability: float, recovery: str) -> Target:
    """Return a target whose largest error is `linf`, rounded up to two digits, at least 1e-9."""
    digits = 10.0 ** (math.floor(math.log10(max(linf, 1e-9))) - 1)
    return Target(
        float(f"{digits * math.ceil(max(linf, 1e-9) / digits):.3g}"), probability, recovery
    )


# ---- numbers ----


def least(
    suffices: Callable[[float], bool], low: float, high: float, ratio: float = 1.01
) -> float | None:
    """Return the least value in [low, high] that suffices, up to a factor of `ratio`.

    Return None if not even `high` suffices.

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
    """Return the text of a number, rounded up to two digits.

    >>> rounded_up(0.00123), rounded_up(1100.0)
    ('0.0013', '1100')
    """
    digits = 10.0 ** (math.floor(math.log10(number)) - 1)
    return f"{digits * math.ceil(number / digits * (1 - 1e-12)):.12g}"
