"""Sketch or histogram: which of the two a plan has.

A histogram has no collisions. Its counters are as noisy as the mean over a sketch's rows, so that
its error is that of the noise alone, whatever the frequencies. Where it costs no more than a sketch
may, it is taken. Where no bytes were asked for it may cost up to twice the usual ones, if it is
worth them: the error of a sketch falls with the root of its bytes, so that a histogram must gain
more than the root of what it costs. Under a target the cheaper of those that meet it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError, arg
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import check_histogram_domain
from fedtally.plan.design import DEFAULT_MAX_BYTES, Design
from fedtally.plan.paper import Size
from fedtally.plan.predictor import Predictor
from fedtally.plan.sizes import RISK
from fedtally.plan.sketches import Sketches
from fedtally.recovery.decoders import SIMPLEST
from fedtally.sketch import Schedule

if TYPE_CHECKING:
    from fedtally.plan.frequencies.distribution import Frequencies

# Where no bytes were asked for: how many times the usual ones a histogram may cost.
_MORE = 2
_ROUNDING = 1e-9  # an error of exactly the target keeps it


def histogram(design: Design, most: float = float("inf")) -> Design | None:
    """Return the histogram of a design; None where request, candidates or bytes rule it out.

    Its predicted error is exceeded with the share of the failure probability that is planned for.

    Args:
        design: the plan to be.
        most: the bytes of a client that it may cost; where a histogram is asked for by name, it
            may cost more.

    Raises:
        InvalidInputError: a histogram is asked for by name, and it cannot be.
    """
    if not design.spec.size.allows(Encoding.HISTOGRAM):
        return None
    size, is_named = design.domain.size, not design.spec.size.allows(Encoding.SKETCH)
    # no sum needs less than a bit a counter: most domains are too large at a glance
    if not is_named and size > min(MAX_WIDTH, 8 * most):
        return None
    try:
        check_histogram_domain(design.domain.describe())
        whole = design.with_size(Schedule.parse("shared"), 1, size, encoding=Encoding.HISTOGRAM)
        plan = whole.plan()
    except InvalidInputError:
        if is_named:
            raise
        return None
    if plan.bytes_per_client > most and not is_named:
        return None
    # what the noise does needs no frequencies
    predictor = Predictor.from_plan(plan, SIMPLEST[Encoding.HISTOGRAM])
    probability = design.spec.failure_probability * RISK
    linf = predictor.error_of_noise(size, probability, design.expected)
    return whole.sized_by(Size("histogram", 1, plan.width, linf))


def for_bytes(
    design: Design, sketch: Callable[[], Design], frequencies: Callable[[], Frequencies]
) -> Design:
    """Return what has the smaller error within the bytes that are asked for, or the usual ones.

    Args:
        design: the plan to be.
        sketch: returns the design with the sketch for the same bytes.
        frequencies: returns the known frequencies.

    Raises:
        InvalidInputError: a histogram is asked for by name, and takes more bytes than are given.
    """
    given, is_named = design.spec.size.max_bytes, not design.spec.size.allows(Encoding.SKETCH)
    budget = given or DEFAULT_MAX_BYTES
    whole = histogram(design, budget if given else _MORE * budget)
    if whole is None:
        return sketch()
    cost = whole.bytes_per_client
    if cost <= budget or (is_named and given is None):
        return whole
    if is_named:
        raise InvalidInputError(
            f"{arg.max_bytes} must be at least {cost:,} for a histogram of {design.domain.size:,}"
            f" candidates, got {given:,}: give more bytes, or take the encoding sketch"
        )
    other = sketch()
    schedule, rows, width, *_ = other.chosen
    error = Sketches.of(design, frequencies(), rows).linf(schedule, rows, width)
    return whole if whole.linf**2 * cost < error**2 * other.bytes_per_client else other


def meets_target(design: Design, most: float = float("inf")) -> Design | None:
    """Return the histogram, if it keeps the design's tau within its bytes; None: none does.

    Args:
        design: the plan to be; it has a tau.
        most: the bytes that it may cost, where no others are asked for.
    """
    asked = design.spec.size.max_bytes
    limit = most if asked is None else min(most, asked)
    whole = histogram(design, limit)
    if whole is None or whole.bytes_per_client > limit:
        return None
    assert design.spec.tau is not None
    return whole if whole.linf <= design.spec.tau * (1 + _ROUNDING) else None
