"""The four searches for a size: for a target, for bytes, for epsilon, and for any frequencies.

1. `smallest`: the fewest bytes that meet a target.
2. `best`: the smallest error that bytes buy.
3. `least_epsilon`: the least epsilon that meets a target within its bytes.
4. `for_any`: a size whose target holds whatever the frequencies are.

Each takes a `Design`, whose request says target, bytes and epsilon, and returns one with a size.
Which of the two encodings it has is decided in `fedtally.plan.encodings`, and schedule, rows and
width of a sketch in `fedtally.plan.sketches`. Where the domain is open, `fedtally.plan.open_domain`
searches.
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

_WIDER = 1.1  # what is added where exact noise is larger than that of Gaussian accounting
_NOTHING = 0.5  # an error of a frequency that tells nothing
_FIRST_TAU = 0.01  # for which the hardest frequencies are first taken, where bytes are given
_STEPS = 8  # of `_WIDER`, at the most
_TURNS = 3  # plan and hardest frequencies, found in turn
PRECISION = 1.02  # of a value that is said to do


class OutOfReachError(UnreachableError):
    """No plan meets a design's target; `fedtally.plan.ways.unreachable` says what would.

    Attributes:
        design: the plan that was to be.
        frequencies: the frequencies for which it cannot be.
    """

    def __init__(self, design: Design, frequencies: Frequencies) -> None:
        super().__init__(f"tau {design.spec.tau:g} cannot be met")
        self.design = design
        self.frequencies = frequencies


@dataclass(frozen=True)
class Made:
    """A plan with its target.

    Attributes:
        design: the design that it is of, with its size.
        plan: the plan.
        linf: its predicted largest error.
        frequencies: the frequencies for which that is predicted.
    """

    design: Design
    plan: Plan
    linf: float
    frequencies: Frequencies


def smallest(design: Design, frequencies: Frequencies, *, with_linf: bool = True) -> Design:
    """Return what meets the design's tau with the fewest bytes, and within max_bytes if given.

    Args:
        design: the plan to be; it has a tau.
        frequencies: the known frequencies.
        with_linf: whether the size says its largest error.

    Raises:
        OutOfReachError: nothing does.
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
    """Return what has the smallest error within max_bytes, or the usual bytes.

    Args:
        design: the plan to be.
        frequencies: the known frequencies.
        compared: whether sketches of neighbouring schedules are compared (`Sketches.best`).

    Raises:
        InvalidInputError: the bytes buy nothing.
    """
    return encodings.for_bytes(
        design,
        lambda: _best_sketch(
            Sketches.of(design, frequencies, design.spec.size.rows), compared=compared
        ),
        lambda: frequencies,
    )


def least_epsilon(design: Design, frequencies: Frequencies) -> Design:
    """Return the design with the least epsilon, of two digits, that meets its tau.

    Its sketch keeps max_bytes. It has no size yet.

    Raises:
        OutOfReachError: no epsilon does.
        InvalidInputError: privacy is not asked for.
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
    """Return the plan whose target holds whatever the frequencies are: that for the hardest ones.

    The hardest frequencies depend on the plan, and the plan on them: both are found in turn.

    Args:
        design: the plan to be.
        find_epsilon: whether it has the least epsilon.

    Raises:
        OutOfReachError: no plan meets the target.
        InvalidInputError: nothing could be learnt with the bytes that are given.
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
    """Return the plan for some frequencies: of the fewest bytes, or of the smallest error.

    Raises:
        OutOfReachError: no plan meets the target.
        InvalidInputError: nothing could be learnt with the bytes that are given.
    """
    if design.spec.tau is None:
        return _promising(best(design, frequencies), frequencies)
    # the error of the plan is predicted with its own noise
    return _with_exact_noise(smallest(design, frequencies, with_linf=False), frequencies)


def _promising(design: Design, frequencies: Frequencies) -> Made:
    """Return the plan of a size for given bytes, with the target that it keeps."""
    plan, p, recovery = design.plan(), design.spec.failure_probability, recovery_with(design)
    linf = predict_linf(plan, frequencies, recovery, p, expected=design.expected)
    careful = predict_linf(plan, frequencies, recovery, p * RISK, expected=design.expected)
    check_learns(careful)
    return Made(design, replace(plan, target=make_target(careful, p, recovery)), linf, frequencies)


def _with_exact_noise(design: Design, frequencies: Frequencies) -> Made:
    """Return the plan of a size for a target.

    It is made wider where exact accounting asks for more noise than was planned with.
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
    # the noise of a histogram is that of its plan
    while linf > tau and design.plan().vector.shares_counters:
        before, design = linf, wider(design, _WIDER)
        linf = linf_of(design)
        if linf > 0.999 * before or (budget is not None and design.bytes_per_client > budget):
            raise OutOfReachError(design, frequencies)
    return Made(design, design.plan(), linf, frequencies)


def wider(design: Design, factor: float) -> Design:
    """Return a design of a sketch whose rows have a factor of the counters, rounded up."""
    schedule, rows, width, *_ = design.chosen
    return design.with_size(schedule, rows, math.ceil(factor * width)).sized_by(design.sizing)


def recovery_with(design: Design) -> str:
    """Return the decoder of the sums of a design with a size, whose error is planned with."""
    _, rows, _, _, encoding = design.chosen
    return design.spec.recovery_of(design.domain.size, rows, encoding)


def _smallest_sketch(design: Design, frequencies: Frequencies, *, with_linf: bool) -> Design:
    """Return the sketch that meets the design's tau, as `smallest` does."""
    asked = design.spec.size
    budget, sketches = asked.max_bytes, Sketches.of(design, frequencies, asked.rows)
    try:
        sketch = sketches.smallest(design.tau_of_sketch(frequencies), with_linf=with_linf)
        if budget is None or sketch.bytes_per_client <= budget:
            return sketch
        sketch = _best_sketch(sketches, compared=True)  # its margin is smaller
    except UnreachableError:
        raise OutOfReachError(design, frequencies) from None
    assert design.spec.tau is not None
    if sketch.linf > design.spec.tau:
        raise OutOfReachError(design, frequencies)
    return sketch


def _best_sketch(sketches: Sketches, *, compared: bool) -> Design:
    """Return the sketch with the smallest error within max_bytes, or the usual bytes."""
    design = sketches.design
    budget = design.spec.size.max_bytes or DEFAULT_MAX_BYTES
    found = sketches.best(budget, compared=compared)
    widest = design.widest(found.chosen.schedule, found.chosen.rows, budget)
    return widest.sized_by(replace(found.sizing, width=widest.chosen.width))


def reaches(design: Design, frequencies: Frequencies) -> bool:
    """Whether some sketch meets the design's tau, within max_bytes if there are.

    Only the usual rows are tried, to be quick. A histogram needs no such search.
    """
    return _sketch_reaches(design, frequencies) or encodings.meets_target(design) is not None


def _sketch_reaches(design: Design, frequencies: Frequencies) -> bool:
    """Whether some sketch does what `reaches` asks."""
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
    """Return the design with the size that was given, or that a budget of bytes buys.

    It is a histogram, or a sketch. Nothing is known of the frequencies: where a schedule, or the
    median's rows, are to be chosen, they are for `Frequencies.assumed`. Of an open domain
    `fedtally.plan.open_domain` says it.
    """
    return encodings.for_bytes(design, lambda: _sketch_for_bytes(design), lambda: _assumed(design))


def usual_schedule(design: Design) -> Schedule:
    """Return the schedule where nothing is known of the frequencies, and no width is given."""
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
    """Return the hardest frequencies for a plan, and its error for them with a probability.

    Args:
        design: the design of the plan.
        plan: the plan.
        probability: the probability with which the error is exceeded, in (0, 1).
        near: the hardest frequencies for a similar plan, or nearly: the search begins there.
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
    """Return a plan that is wide enough for its own hardest frequencies, and these.

    What is left is little where items are fitted. Near the place where that begins the error is
    rough, so that one step may not lower it. The median's error falls as the width grows.
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
    """Return the error of a plan whose hardest frequencies are known.

    Campaigns that are tried may fit the very items that the model takes for too rare to be seen. A
    few more of these are then hard, so that a trial of them alone would promise too much.
    """
    asked = (plan, worst, recovery_with(design), design.spec.failure_probability)
    return max(
        predict_linf(*asked, 0, expected=design.expected),
        predict_linf(*asked, tau=design.spec.tau, expected=design.expected),
    )


def _smallest_for_any(design: Design) -> Design:
    """Return what meets the design's tau whatever the frequencies, where a pilot tells too little.

    The worst case of the median decoder is much larger: joint recovery finds frequent items.
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
    """A design that was looked at, and the hardest frequencies for it."""

    design: Design
    worst: hardest.Hardest


def _best_for_any(design: Design, known: Frequencies) -> Made:
    """Return the plan of given bytes with the smallest error for its hardest frequencies."""
    p, careful = design.spec.failure_probability, design.spec.failure_probability * RISK
    tried: dict[Chosen, _Tried] = {}
    for _ in range(_TURNS):
        sized = best(design, known, compared=False)
        if sized.chosen in tried:  # the hardest for it are known
            break
        if not sized.plan().vector.shares_counters:
            return _promising(sized, known)
        tried[sized.chosen] = _Tried(sized, hardest_for(design, sized.plan(), careful, near=known))
        known = tried[sized.chosen].worst.distribution
    sized, worst = _nearby_for_any(design, min(tried.values(), key=lambda one: one.worst.linf))
    # what it promises is predicted once the hardest are found
    plan, recovery, known = sized.plan(), recovery_with(sized), worst.distribution
    tries = predict_linf(plan, known, recovery, careful, expected=design.expected)
    linf = max(worst.linf, tries)
    check_learns(linf)
    plan = replace(plan, target=make_target(linf, p, recovery))
    return Made(sized, plan, _linf_for_any(sized, plan, known), known)


def _nearby_for_any(design: Design, found: _Tried) -> _Tried:
    """Return the plan with the smallest error, of the schedules on the way down from one.

    The hardest frequencies for one schedule are not those for another. A schedule that is best for
    the former may be bad for its own.
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
        except InvalidInputError:  # the bytes buy none
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
    """Whether a plan can be made."""
    with suppress(InvalidInputError):
        make()
        return True
    return False


def check_learns(linf: float) -> None:
    """Refuse a plan whose error may hide every frequency."""
    if linf >= _NOTHING:
        raise InvalidInputError(
            f"with these bytes the error of a frequency may be {linf:.2g}: nothing could be"
            " learnt; give more bytes, more clients or a larger epsilon"
        )


def make_target(linf: float, probability: float, recovery: str) -> Target:
    """Return the target that a predicted error makes.

    It is rounded up to two digits, and at least 1e-9.
    """
    digits = 10.0 ** (math.floor(math.log10(max(linf, 1e-9))) - 1)
    return Target(
        float(f"{digits * math.ceil(max(linf, 1e-9) / digits):.3g}"), probability, recovery
    )


# ---- numbers ----


def least(
    suffices: Callable[[float], bool], low: float, high: float, ratio: float = 1.01
) -> float | None:
    """Return the least value in [low, high] that suffices, within a ratio.

    None, if not even `high` suffices.

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
    """Return a number rounded up to two digits.

    >>> rounded_up(0.00123), rounded_up(1100.0)
    ('0.0013', '1100')
    """
    digits = 10.0 ** (math.floor(math.log10(number)) - 1)
    return f"{digits * math.ceil(number / digits * (1 - 1e-12)):.12g}"
