"""The choice between a sketch and a histogram for a plan.

A histogram has a counter for each candidate, so that candidates do not collide. So only the noise
causes errors, and noise in the counters causes the same error for all frequencies. With zero-out,
Gaussian noise and one item per client, the noise in a counter of a histogram is as large as the
noise in the mean over the rows of a sketch.

- With a budget of bytes, a histogram is chosen whenever it fits the budget.
- Without a budget, a histogram may have up to twice the default bytes. If it has more bytes than
  the default, its error must be small enough to justify these bytes. The error of a sketch falls
  with the square root of its bytes. So the error multiplied by the square root of the bytes must be
  smaller for the histogram than for the sketch.
- With a target error, the encoding that meets the target with fewer bytes is chosen.
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

# without a budget, a histogram may have this many times the default bytes
_MORE = 2
# An error that is above the target by at most this share still meets the target, because rounding
# may have raised the error.
_ROUNDING = 1e-9


def histogram(design: Design, most: float = float("inf")) -> Design | None:
    """Return the design with a histogram as its size, and with the predicted error.

    Returns None if the request excludes histograms, if no histogram is possible, or if the
    histogram needs more than `most` bytes. The predicted error comes from noise in the counters
    alone. With a probability of at most `sizes.RISK * failure_probability`, the largest error of
    all frequencies exceeds the predicted error. For silos, noise on the number of people adds to
    it.

    Args:
        design: the design, with or without a size; the size is replaced.
        most: the most bytes that a client may upload in its round. It is ignored if the request
            allows only histograms.

    Raises:
        InvalidInputError: the request allows only histograms, and no histogram is possible.
    """
    if not design.spec.size.allows(Encoding.HISTOGRAM):
        return None
    size, is_named = design.domain.size, not design.spec.size.allows(Encoding.SKETCH)
    # A counter has at least one bit. This rules out large domains without making their plans.
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
    # noise in the counters causes this error, so no frequencies are needed here
    predictor = Predictor.from_plan(plan, SIMPLEST[Encoding.HISTOGRAM])
    probability = design.spec.failure_probability * RISK
    linf = predictor.error_of_noise(size, probability, design.expected)
    return whole.sized_by(Size("histogram", 1, plan.width, linf))


def for_bytes(
    design: Design, sketch: Callable[[], Design], frequencies: Callable[[], Frequencies]
) -> Design:
    """Return the design with a histogram or a sketch, for the budget of bytes in the request.

    The docstring of this module states which of the two is chosen. Without a budget, a sketch has
    the default bytes. If the request allows only histograms, a histogram without a budget may have
    any number of bytes.

    Args:
        design: the design, with or without a size; the size is replaced.
        sketch: a function that returns the design with the best sketch for these bytes.
        frequencies: a function that returns the known frequencies; it is called only if a sketch
            and a histogram must be compared.

    Raises:
        InvalidInputError: the request allows only histograms, and no histogram is possible within
            the budget.
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
    """Return the design with a histogram, if the histogram's error is at most the requested `tau`.

    Returns None if the request excludes histograms, if no histogram is possible, if the histogram's
    error exceeds tau, or if the histogram needs too many bytes.

    Args:
        design: the design, whose request has a tau.
        most: the most bytes that a client may upload in its round; the budget in the request
            applies, too.

    Raises:
        InvalidInputError: the request allows only histograms, and no histogram is possible.
    """
    asked = design.spec.size.max_bytes
    limit = most if asked is None else min(most, asked)
    whole = histogram(design, limit)
    if whole is None or whole.bytes_per_client > limit:
        return None
    assert design.spec.tau is not None
    return whole if whole.linf <= design.spec.tau * (1 + _ROUNDING) else None
