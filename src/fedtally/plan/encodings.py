"""The choice between a sketch and a histogram for a plan.

A histogram has no collisions. Its counters are as noisy as the mean over a sketch's rows. So the
noise alone decides its error, whatever the frequencies.

- With a budget of bytes, a histogram is taken if it fits the budget.
- Without a budget, it may cost up to twice the default bytes, if it is worth them. The error of a
  sketch falls with the square root of its bytes, so the histogram's error must be smaller by more
  than the square root of the ratio of the bytes.
- With a target error, the cheaper encoding that meets the target is taken.
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

# A histogram may cost this many times the default bytes, if no budget is given.
_MORE = 2
_ROUNDING = 1e-9  # relative: an error that equals the target but for rounding meets it


def histogram(design: Design, most: float = float("inf")) -> Design | None:
    """Return the design with a histogram; None if request, candidates or bytes rule it out.

    The histogram's predicted error is exceeded with probability `RISK * failure_probability`.

    Args:
        design: the design, with or without a size.
        most: the most bytes of a client in its round. If the request names the encoding histogram,
            there is no limit.

    Raises:
        InvalidInputError: the request names the encoding histogram, and no histogram is possible.
    """
    if not design.spec.size.allows(Encoding.HISTOGRAM):
        return None
    size, is_named = design.domain.size, not design.spec.size.allows(Encoding.SKETCH)
    # a counter takes at least one bit, so most domains can be ruled out at once as too large
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
    # the error by noise alone does not depend on frequencies
    predictor = Predictor.from_plan(plan, SIMPLEST[Encoding.HISTOGRAM])
    probability = design.spec.failure_probability * RISK
    linf = predictor.error_of_noise(size, probability, design.expected)
    return whole.sized_by(Size("histogram", 1, plan.width, linf))


def for_bytes(
    design: Design, sketch: Callable[[], Design], frequencies: Callable[[], Frequencies]
) -> Design:
    """Return the design with a histogram or a sketch, for the budget of bytes in the request.

    The head of this file says which of the two is taken. Without a budget, a sketch has the default
    bytes, and a histogram that the request names has no limit.

    Args:
        design: the design, with or without a size.
        sketch: a function that returns the design with the sketch for the same bytes.
        frequencies: a function that returns the known frequencies.

    Raises:
        InvalidInputError: the request names the encoding histogram, which exceeds the budget.
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
    """Return the design with a histogram if this meets tau within the bytes; None if it does not.

    Args:
        design: the design, whose request has a tau.
        most: the most bytes of a client in its round; the budget of the request applies, too.
    """
    asked = design.spec.size.max_bytes
    limit = most if asked is None else min(most, asked)
    whole = histogram(design, limit)
    if whole is None or whole.bytes_per_client > limit:
        return None
    assert design.spec.tau is not None
    return whole if whole.linf <= design.spec.tau * (1 + _ROUNDING) else None
