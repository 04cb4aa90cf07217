"""Sketch or histogram: which of the two a plan has.

A histogram has no collisions. Its counters are as noisy as the mean over a sketch's rows, so that
its error is that of the noise alone, whatever the frequencies. Where it costs no more than a sketch
may, it is taken. Where no bytes were asked for it may cost up to twice the usual ones, if it is
worth them: the error of a sketch falls with the root of its bytes, so that a histogram must gain
more than the root of what it costs. Under a target the cheaper of those that meet it is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError, arg
from fedtally.kernels import MAX_WIDTH
from fedtally.plan import Plan, check_histogram_domain
from fedtally.plan.campaign import Campaign
from fedtally.plan.paper import Size
from fedtally.plan.sizes import RISK
from fedtally.recovery.decoders import SIMPLEST
from fedtally.sketch import Schedule

if TYPE_CHECKING:
    from fedtally.plan.design import Design
    from fedtally.plan.frequencies.distribution import Frequencies

# Where no bytes were asked for: how many times the usual ones a histogram may cost.
_MORE = 2
_ROUNDING = 1e-9  # an error of exactly the target keeps it


class Histogram(NamedTuple):
    """A histogram that a request may get.

    Attributes:
        design: the design with its size.
        plan: the plan with it.
        linf: its largest error, exceeded with the share of the failure probability that is planned
            for.
    """

    design: Design
    plan: Plan
    linf: float

    @property
    def size(self) -> Size:
        """The size, with its prediction."""
        return Size("histogram", 1, self.plan.width, self.linf)


def histogram(draft: Design, most: float = float("inf")) -> Histogram | None:
    """Return the histogram of a draft; None where request, candidates or bytes rule it out.

    Args:
        draft: the plan to be.
        most: bytes of a client that it may cost; where a histogram is asked for by name, it
            may cost more.

    Raises:
        InvalidInputError: a histogram is asked for by name, and it cannot be.
    """
    asked = draft.spec.encoding
    if asked is Encoding.SKETCH:
        return None
    size, is_named = draft.domain.size, asked is Encoding.HISTOGRAM
    # no sum needs less than a bit a counter: most domains are too large at a glance
    if not is_named and size > min(MAX_WIDTH, 8 * most):
        return None
    try:
        check_histogram_domain(draft.domain.describe())
        design = draft.with_size(Schedule.parse("shared"), 1, size, encoding=Encoding.HISTOGRAM)
        plan = design.plan()
    except InvalidInputError:
        if is_named:
            raise
        return None
    if plan.bytes_per_client > most and not is_named:
        return None
    # what the noise does needs no frequencies
    campaign = Campaign.from_plan(plan, SIMPLEST[Encoding.HISTOGRAM])
    probability = draft.spec.failure_probability * RISK
    return Histogram(design, plan, campaign.error_of_noise(size, probability, draft.expected))


def for_bytes(
    draft: Design,
    usual: int,
    sketch: Callable[[], tuple[Design, Size]],
    distribution: Callable[[], Frequencies],
) -> tuple[Design, Size]:
    """Return what has the smaller error within the bytes that are asked for, or the usual ones.

    Args:
        draft: the plan to be.
        usual: bytes of a client where none are asked for.
        sketch: returns the sketch for the same bytes.
        distribution: returns what is known of the frequencies.

    Raises:
        InvalidInputError: a histogram is asked for by name, and takes more bytes than are given.
    """
    given = draft.spec.max_bytes
    budget = given or usual
    found = histogram(draft, budget if given else _MORE * budget)
    if found is None:
        return sketch()
    cost = found.plan.bytes_per_client
    if cost <= budget or (draft.spec.encoding is Encoding.HISTOGRAM and given is None):
        return found.design, found.size
    if draft.spec.encoding is Encoding.HISTOGRAM:
        raise InvalidInputError(
            f"{arg.max_bytes} must be at least {cost:,} for a histogram of {draft.domain.size:,}"
            f" candidates, got {given:,}: give more bytes, or take the encoding sketch"
        )
    design, size = sketch()
    schedule, rows, width, *_ = design.chosen
    error = draft.question(distribution(), rows).linf(schedule, rows, width)
    if found.linf**2 * cost < error**2 * design.bytes_per_client:
        return found.design, found.size
    return design, size


def meets_target(draft: Design, most: float = float("inf")) -> Histogram | None:
    """Return the histogram, if it keeps the draft's tau within its bytes; None: none does.

    Args:
        draft: the plan to be; it has a tau.
        most: bytes that it may cost, where no others are asked for.
    """
    limit = most if draft.spec.max_bytes is None else min(most, draft.spec.max_bytes)
    found = histogram(draft, limit)
    if found is None or found.plan.bytes_per_client > limit:
        return None
    assert draft.spec.tau is not None
    return found if found.linf <= draft.spec.tau * (1 + _ROUNDING) else None
