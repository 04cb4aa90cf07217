"""The privacy accountant: proven upper bounds (epsilon, delta) on the cost of several events.

An event describes what one campaign exposes of one client (`events.Event`).

The accountant computes bounds by methods that are proven for the events, takes the smallest bound,
and names its method. The last column of the table says how far the epsilon of a method was
measured above the exact epsilon. An *adaptive* event is one that was chosen in view of what earlier
events showed.

| method                      | holds for                          | above the exact epsilon by    |
|-----------------------------|------------------------------------|-------------------------------|
| `analytic-gaussian`         | rounded Gaussian noise             | the epsilon that rounding     |
|                             |                                    | saves                         |
| `dominating-gaussian`       | all noise                          | 0.23 % at epsilon 1, 12 % at  |
|                             |                                    | epsilon 8 (a sketch of 5 rows,|
|                             |                                    | clients of 2 items)           |
| `privacy-loss-distribution` | events of which at least one has   | an absolute 1e-3 up to        |
|                             | integer pairs (see below)          | epsilon 20, a relative 1e-4   |
|                             |                                    | beyond it (for variances from |
|                             |                                    | 0.02)                         |
| `gaussian-composition`      | several events, also adaptive      | more than                     |
|                             |                                    | `dominating-gaussian`         |
| `renyi-filter`              | several events, also adaptive, if  | at most 7 % when a grant is   |
|                             | the ledger's first campaign has    | nearly used up                |
|                             | little integer noise               |                               |
| `basic-composition`         | geometric noise alone, also        | 0 with a delta of 0, if no    |
|                             | adaptive, also with a delta of 0   | event is adaptive             |

`tools/accountant_gap.py` measures `dominating-gaussian` and `renyi-filter`.

The method `privacy-loss-distribution` composes at most 2^18 pairs of distributions. An integer
pair is the noise in one counter, and this noise plus the client's change. There is such a pair for
each counter that a client changes, in each release. An event has a single pair instead if it is
clipped, or if its noise has a variance above `Law.normal_from`. This pair is the dominating
Gaussian and its shift.

Proofs: docs/privacy-proofs/. An input that the accountant does not know is an error. The accountant
never counts on amplification by sampling, by shuffling or by the choice of cohorts, since the
server sees which clients take part.

Results are computed in floating point and then enlarged by margins. Epsilon mostly grows by a
relative 1e-8. If loss distributions are composed, delta grows by 1e-15 for each pair, five times
the largest error that was measured. The margins are smaller with `light`, the replacement for
missing libraries (see `library`).

The parts: `bounds` (what all bounds share), `laws` (each mechanism of noise), `gaussian` (curves
that are known exactly) and `loss_distribution` (integer noise on a grid). Of these parts only
`gaussian` and `loss_distribution` use the library `dp_accounting`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, Context
from functools import cache, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.errors import InvalidInputError, arg
from fedtally.privacy.bounds import (
    F64,
    Bound,
    Method,
    check_relations,
    checked_delta,
    checked_events,
    demanded_delta,
    with_margin,
)
from fedtally.privacy.events import Event, Relation
from fedtally.privacy.gaussian import gaussian_curve, noise_multiplier
from fedtally.privacy.laws import LAWS, gaussian_bound
from fedtally.privacy.loss_distribution import loss_bound, renyi_divergence

__all__ = [
    "MOST_ADAPTIVE",
    "SECURE_SUM_DELTA",
    "Composition",
    "Concentrated",
    "Guarantee",
    "Method",
    "PrivacyLoss",
    "calibrate",
    "checked_delta",
    "concentrated",
    "delta",
    "demanded_delta",
    "epsilon",
    "filter_order",
    "gaussian_bound",
    "most_detected",
    "noise_multiplier",
    "numbers",
    "privacy_loss",
    "pure_epsilon",
    "realised",
    "rounded_up",
    "set_aside",
]

# With at most this probability a secure sum may show more than its sum: docs/protocol.md, "Claim of
# semi-honest". The delta of the noise does not cover this, so 2^-40 is added for each secure sum.
SECURE_SUM_DELTA = 2.0**-40
# The largest total epsilon that a grant or a cap allows several campaigns, each planned in view of
# earlier ones. A sampler of noise uses up a delta of (1 + e^epsilon) times its total variation. Up
# to epsilon 25, the part of delta that `set_aside` reserves can pay for the samplers:
# docs/privacy-proofs/releases.md, 5.
MOST_ADAPTIVE = 25.0
_TYPICAL = 1e-6  # `privacy_loss` compares the bounds at this delta
_LEAST_LISTED = 1e-12  # a table ends at the epsilon of this delta: larger losses count as infinite
_LISTED = 2001  # the number of losses from 0 up in a table: enough to plot or compose tables
_OVERFLOWS = 700.0  # a larger epsilon is taken as 700: beyond 709, e^epsilon is infinite
# The orders of Renyi divergence from which a ledger chooses one: above 1, to 101.
_ORDERS = tuple((1 + np.geomspace(0.1, 100.0, 61)).tolist())


@dataclass(frozen=True)
class Guarantee:
    """A proven statement: certain events together are (epsilon, delta)-differentially private.

    Attributes:
        epsilon: a proven upper bound on the epsilon of all events together; infinity if no method
            proves a finite one.
        delta: the delta at which `epsilon` holds. It includes the delta that secure sums and
            samplers of noise use up. 0: pure differential privacy.
        method: the method that computed the bound.
        relation: the neighbouring relation that the statement holds for.
        trust: who must be honest for the statement to hold (`events.Trust`): `central`,
            `distributed` or, if the events differ in trust, `central and distributed`.
    """

    epsilon: float
    delta: float
    method: Method
    relation: Relation
    trust: str

    def __str__(self) -> str:
        found = numbers(self.epsilon, self.delta).replace(", ", " at ")
        return f"{found} ({self.relation}, {self.trust} trust, {self.method})"


def rounded_up(bound: float) -> float:
    """Return a number rounded up to four significant digits, for people to read.

    >>> rounded_up(2.1167001)
    2.117
    """
    return float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(repr(float(bound))))


def numbers(epsilon: float, delta: float) -> str:
    """Return the text "epsilon ..., delta ..." of a guarantee, both rounded up to four digits.

    With a delta of 0 the text is "pure epsilon ...".

    >>> numbers(0.99999, 1e-6), numbers(0.5, 0.0)
    ('epsilon 1, delta 1e-06', 'pure epsilon 0.5')
    """
    if not delta:
        return f"pure epsilon {rounded_up(epsilon):g}"
    return f"epsilon {rounded_up(epsilon):g}, delta {rounded_up(delta):g}"


def epsilon(events: Event | Sequence[Event], delta: float, *, adaptive: bool = False) -> Guarantee:
    """Return the smallest proven epsilon of the events together at a given delta.

    Args:
        events: one event or several: all campaigns and pilots that one client may take part in.
        delta: the delta of all events together, in (0, 1); or 0 if all noise is geometric. Every
            secure sum uses up 2^-40 of it. A sampler of noise uses up a part, too, if it draws
            from a distribution that is only close to the ideal one.
        adaptive: whether later events may have been chosen in view of what earlier events showed.
            If so, several events are added up as in `Composition`, mostly with a larger epsilon:
            composing loss distributions is not proven for such events.

    Raises:
        InvalidInputError: `events` is refused (see `bounds.checked_events`), delta is out of
            bounds, or secure sums and samplers alone use up delta (see `Composition.guarantee` for
            adaptive events).

    >>> print(epsilon(Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2), 1e-6))
    epsilon 0.9999 at delta 1e-06 (zero-out, central trust, privacy-loss-distribution)
    """
    found = checked_events(events)
    delta = _delta_for(found, delta)
    return (
        Composition.of(found, delta).guarantee
        if adaptive and len(found) > 1
        else _guarantee(found, delta)
    )


def pure_epsilon(events: Event | Sequence[Event]) -> float:
    """Return the epsilon of all events together at delta 0; infinity if any noise needs a delta.

    Each counter that a client changes has a largest privacy loss. The epsilon is the sum of these
    losses over all such counters of all events (basic composition). So it also holds if later
    events are chosen in view of earlier events. Proof: docs/privacy-proofs/geometric.md.

    Raises:
        InvalidInputError: there are no events, an entry is no `Event`, the events differ in their
            neighbouring relation, or an event has no variance.

    >>> event = Event("geometric", 1, "zero-out", variance=1.8414, encoding="histogram")
    >>> round(pure_epsilon([event, event]), 3), pure_epsilon(Event("skellam", 5, "zero-out",
    ...                                                         variance=9, honest_survivors=9))
    (2.0, inf)
    """
    total = 0.0
    for event in checked_events(events):
        losses = LAWS[event.mechanism].pure_losses(event)
        if losses is None:
            return math.inf
        for loss, number in losses:
            total = _sum_above(total, math.nextafter(number * loss, math.inf))
    return total


def _delta_for(events: Sequence[Event], delta: float) -> float:
    """Return delta as a float; refuse one outside (0, 1), except 0 if all noise is geometric."""
    if delta == 0.0 and not isinstance(delta, bool):
        if all(event.mechanism.is_pure for event in events):
            return 0.0
        raise InvalidInputError(
            f"{arg.delta} must be above 0 but where all noise is geometric: give a delta, or take"
            " the mechanism geometric, which is for histograms under central trust"
        )
    return checked_delta(delta)


def _guarantee(events: Sequence[Event], delta: float) -> Guarantee:
    fixed, variation = _slack(events)
    if not delta:
        return Guarantee(
            pure_epsilon(events), 0.0, Method.BASIC, events[0].relation, _trust(events)
        )
    if delta <= fixed + 2 * variation:
        raise InvalidInputError(
            f"delta must exceed {fixed + 2 * variation:.3g}, which secure sums and the sampler of"
            f" the noise use up, got {delta:g}"
        )
    best = min((_solve(bound, delta - fixed, variation), bound.method) for bound in _bounds(events))
    return Guarantee(best[0], delta, best[1], events[0].relation, _trust(events))


@dataclass(frozen=True)
class Composition:
    """The total cost of a population's campaigns so far; one more campaign can be added.

    A population is a named group of clients whose campaigns share one budget (module `budget`).
    Each campaign may be planned in view of what earlier campaigns showed. `set_aside(delta)` is
    reserved for secure sums and samplers of noise, for any number of campaigns. At the rest of
    delta, the campaigns compose as Gaussians. If all of them have geometric noise, and the sum of
    their pure epsilons is smaller, this sum is the total.

    With an `order`, there are two bounds, and each has half of the rest of delta: one composes
    Gaussians, the other adds up Renyi divergences of this order. The smaller bound counts. A single
    campaign was not planned in view of other campaigns. So its total is the cost that `epsilon`
    proves, which is no larger.

    Make one with `of`. Adding a campaign takes the same time after a thousand campaigns as after
    one. Proof: docs/privacy-proofs/releases.md, 5, and renyi.md.

    Attributes:
        delta: the delta of all campaigns together, fixed before the first campaign; 0 if all noise
            must be geometric.
        relation: the neighbouring relation of all campaigns.
        trust: who must be honest, for all campaigns (see `Guarantee`).
        campaigns: the number of campaigns.
        square: the sum of mu^2 over the campaigns, where mu is a campaign's `gaussian_bound`.
        lost: the delta that the campaigns' secure sums use up.
        variation: the total variation distance between the noise that is drawn and the ideal noise,
            summed over all contributions of a client.
        pure: the sum of the campaigns' epsilons at delta 0 (`pure_epsilon`); infinity if one of
            them needs a delta.
        alone: the event, if the total holds a single campaign, else None. Also None if
            `budget.Cap.total` counts several rounds of one campaign as if each were a campaign.
        order: the order of the Renyi divergences, above 1, fixed before the first campaign. None:
            no Renyi divergences are added up.
        divergence: the sum of the campaigns' Renyi divergences of this order; infinity if there is
            no order, or if a campaign's divergence has no bound.

    >>> event = Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)
    >>> both = Composition.of([event, event], 1e-6)
    >>> print(both.guarantee)
    epsilon 1.456 at delta 1e-06 (zero-out, central trust, gaussian-composition)
    >>> Composition.from_dict(both.to_dict(), event, 1e-6) == both
    True
    """

    delta: float
    relation: Relation
    trust: str
    campaigns: int
    square: float
    lost: float
    variation: float
    pure: float
    alone: Event | None
    order: float | None = None
    divergence: float = math.inf

    @classmethod
    def of(cls, events: Sequence[Event], delta: float, granted: float | None = None) -> Self:
        """Return the total of one or more campaigns.

        Args:
            events: the events of the campaigns, the first campaign first.
            delta: the delta of all of them together.
            granted: the epsilon that was granted to the population when its first campaign began.
                It fixes the order of the Renyi divergences (`filter_order`). None: there is no
                order.

        Raises:
            InvalidInputError: `events` is refused (see `bounds.checked_events`), or delta is out of
                bounds.
        """
        found = checked_events(events)
        delta = _delta_for(found, delta)
        order = None if granted is None else filter_order(found[0], granted, delta)
        total = cls(
            delta=delta,
            relation=found[0].relation,
            trust=str(found[0].trust),
            campaigns=0,
            square=0.0,
            lost=0.0,
            variation=0.0,
            pure=0.0,
            alone=None,
            order=order,
            divergence=math.inf if order is None else 0.0,
        )
        for event in found:
            total = total.plus(event)
        return total

    def plus(self, event: Event) -> Self:
        """Return a new total, with one more campaign.

        Args:
            event: the event of the campaign.

        Raises:
            InvalidInputError: the event has another relation or no variance, or it needs a delta
                and this total has delta 0.
        """
        check_relations({str(self.relation), str(event.relation)})
        _delta_for([event], self.delta)  # a later campaign may need a delta although `delta` is 0
        lost, variation = _slack([event])
        return replace(
            self,
            trust=" and ".join(sorted({*self.trust.split(" and "), str(event.trust)})),
            campaigns=self.campaigns + 1,
            square=_sum_above(self.square, gaussian_bound(event) ** 2),
            lost=_sum_above(self.lost, lost),
            variation=_sum_above(self.variation, variation),
            pure=_sum_above(self.pure, pure_epsilon(event)),
            alone=None if self.campaigns else event,
            divergence=self.divergence
            if self.order is None
            else _sum_above(self.divergence, renyi_divergence(event, self.order)),
        )

    @property
    def guarantee(self) -> Guarantee:
        """The proven cost of all campaigns together.

        Raises:
            InvalidInputError: secure sums and samplers use more than the part of delta that is
                reserved for them. For a single campaign: they use up all of delta.
        """
        if self.alone is not None:
            return _guarantee_alone(self.alone, self.delta)
        pure = Guarantee(self.pure, self.delta, Method.BASIC, self.relation, self.trust)
        if not self.delta:
            return pure
        # How delta is split must not depend on the campaigns, since later campaigns may be chosen
        # in view of earlier ones. So `set_aside` depends on delta only.
        aside = set_aside(self.delta)
        found, method = self._adaptive(self.delta - aside)
        # Samplers use up a delta of (1 + e^epsilon) times their total variation. This factor, the
        # price, is taken at epsilon MOST_ADAPTIVE or, if `found` is larger, at `found`. At `found`
        # alone, each campaign would raise the price of earlier campaigns.
        price = 1 + math.exp(min(max(found, MOST_ADAPTIVE), _OVERFLOWS))
        lost = self.lost + price * self.variation
        if lost > aside:
            raise InvalidInputError(
                f"of delta {self.delta:g} {aside:.3g} is set aside for secure sums and samplers of"
                f" noise, and it is used up by what {self.campaigns} campaigns take off it:"
                f" {lost:.3g}"
            )
        if self.pure <= found:
            return pure
        return Guarantee(found, self.delta, method, self.relation, self.trust)

    def _adaptive(self, left: float) -> tuple[float, Method]:
        """Return the smaller of the Gaussian and the Renyi bound on epsilon, and its method.

        Without an order there is only the Gaussian bound.

        Args:
            left: the part of delta that `set_aside` leaves, for both bounds together.
        """
        gaussians = gaussian_curve(math.sqrt(self.square), Method.GAUSSIANS)
        if self.order is None:
            return gaussians.epsilon(left), Method.GAUSSIANS
        # Which bound is smaller in the end may depend on what was opened. So both bounds must hold,
        # and each is charged half of delta.
        half = left / 2
        renyi = _renyi_epsilon(self.divergence, self.order, half)
        return min((gaussians.epsilon(half), Method.GAUSSIANS), (renyi, Method.RENYI))

    def to_dict(self) -> dict[str, Any]:
        """Return the composition as a dict of JSON-able values, for `from_dict`.

        The dict lacks `delta`, `relation` and `alone`.
        """
        values = {
            name: getattr(self, name)
            for name in ("campaigns", "square", "lost", "variation", "trust")
        }
        # Most compositions have no order, and both `sums` infinite. Such entries are left out.
        if self.order is not None:
            values["order"] = self.order
        sums = {"pure": self.pure, "divergence": self.divergence}
        return values | {name: value for name, value in sums.items() if not math.isinf(value)}

    @classmethod
    def from_dict(cls, values: Any, event: Event, delta: float) -> Self:
        """Return the composition of a dict that `to_dict` made.

        Args:
            values: the dict that `to_dict` returned.
            event: the event of the last campaign. The composition has the relation of this event.
                If there is only one campaign, this event is also `alone`.
            delta: the delta of the composition.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds.
        """
        names = {"campaigns", "square", "lost", "variation", "trust"}
        if (
            not isinstance(values, Mapping)
            or set(values) - {"pure", "order", "divergence"} != names
            or not isinstance(values["trust"], str)
            or ("divergence" in values and "order" not in values)
        ):
            raise InvalidInputError(
                f"a composition is a table with {', '.join(sorted(names))}, got {values!r}"
            )
        number = validate.integer(1, campaigns=values["campaigns"])
        sums = {
            name: values[name]
            for name in ("square", "lost", "variation", "pure", "divergence")
            if name in values
        }
        if not all(isinstance(value, float) and 0 <= value < math.inf for value in sums.values()):
            raise InvalidInputError(
                f"the sums of a composition must be numbers of at least 0, got {values!r}"
            )
        order = values.get("order")
        if "order" in values and not (isinstance(order, float) and 1 < order < math.inf):
            raise InvalidInputError(f"the order of a composition is above 1, got {order!r}")
        return cls(
            delta=delta,
            relation=event.relation,
            trust=values["trust"],
            campaigns=number,
            alone=event if number == 1 else None,
            order=order,
            **({"pure": math.inf} | sums),
        )


def set_aside(delta: float) -> float:
    """Return the part of delta that is reserved for secure sums and samplers of noise.

    It is delta / 100 + 2^-28, but at most delta / 10. If clients add the noise, each participation
    of a client uses up 2^-40 of delta, so that 2^-28 is enough for 4,096 participations. If an
    aggregator or two servers add the noise, campaigns use up much less.

    >>> [float(f"{set_aside(delta):.3g}") for delta in (1e-6, 1e-9)]
    [1.37e-08, 1e-10]
    """
    return min(delta / 10, delta / 100 + 2.0**-28)


def _renyi_epsilon(divergence: float, order: float, delta: float) -> float:
    """Return an upper bound on epsilon at a given delta, from a bound on a Renyi divergence.

    This is Proposition 12 of Canonne, Kamath and Steinke (2020).

    Args:
        divergence: the bound on the Renyi divergence.
        order: the order of the divergence, above 1.
        delta: the delta, above 0.
    """
    left = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return with_margin(max(0.0, divergence + left))


@lru_cache(maxsize=64)
def filter_order(event: Event, granted: float, delta: float) -> float | None:
    """Return the order of the Renyi divergences that a ledger adds up for a population, or None.

    The ledger chooses the order with the first campaign, before anything is opened, and never
    changes it. It is the order with which the most campaigns like the first campaign fit into the
    grant. None means: without Renyi divergences, at least as many campaigns like the first fit.
    Such cases are:
    - Much noise, a clip, or Gaussian noise: composing Gaussians with all of delta is as good.
    - Geometric noise of a large epsilon: adding up pure epsilons is as good.
    - A small grant, or so little noise that no bound on its Renyi divergences is known.

    Proof: docs/privacy-proofs/renyi.md.

    Args:
        event: the event of the first campaign.
        granted: the epsilon of the population's grant. A larger value than `MOST_ADAPTIVE` is
            taken as `MOST_ADAPTIVE`.
        delta: the delta of the grant. With 0 the result is None.

    >>> little = Event("skellam", 1, "zero-out", variance=2.0, honest_survivors=90)
    >>> much = Event("skellam", 1, "zero-out", variance=80.0, honest_survivors=90)
    >>> round(filter_order(little, 12.0, 1e-6), 2), filter_order(much, 12.0, 1e-6)
    (4.55, None)
    """
    if not delta:
        return None
    left, most = delta - set_aside(delta), min(max(granted, 1e-6), MOST_ADAPTIVE)
    others = (
        1 / (noise_multiplier(most, left) * gaussian_bound(event)) ** 2,
        most / pure_epsilon(event),
    )
    fitting = [
        ((most - _renyi_epsilon(0.0, order, left / 2)) / renyi_divergence(event, order), order)
        for order in _ORDERS
    ]
    number, order = max(fitting)
    return order if number > max(others) else None


@lru_cache(maxsize=256)
def _guarantee_alone(event: Event, delta: float) -> Guarantee:
    # cached: a ledger computes the cost of the same event at every reservation
    return _guarantee([event], delta)


def _sum_above(a: float, b: float) -> float:
    """Return a + b, rounded up to the next double, so that no sum of many terms is too small."""
    return math.nextafter(a + b, math.inf)


class Concentrated(NamedTuple):
    """A proven statement of zero-concentrated differential privacy (Bun and Steinke 2016).

    The statement holds up to `delta`: for each data set, the distribution of what is seen is within
    total variation `delta` of another distribution. For these other distributions, the Renyi
    divergence of every order alpha > 1 between neighbours is at most alpha times rho. For several
    events, add up rho and add up delta, even if later events are chosen in view of earlier events.
    """

    rho: float
    delta: float


def concentrated(events: Event | Sequence[Event]) -> Concentrated:
    """Return the zero-concentrated differential privacy (rho, delta) of all events together.

    An event adds mu^2 / 2 to rho, where mu is the shift of the Gaussian that dominates the event
    (`gaussian_bound`). With geometric noise, each changed counter has a mu of its own, and adds the
    smaller of mu^2 / 2 and epsilon^2 / 2, where epsilon is the largest privacy loss of the counter.
    Proof: docs/privacy-proofs/skellam.md and geometric.md.

    Raises:
        InvalidInputError: `events` is refused, as in `epsilon`.

    >>> event = Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2)
    >>> round(concentrated(event).rho, 5)
    0.02801
    """
    found = checked_events(events)
    fixed, variation = _slack(found)
    return Concentrated(
        sum(LAWS[event.mechanism].rho(event) for event in found), min(1.0, fixed + variation)
    )


def delta(events: Event | Sequence[Event], epsilon: float) -> Guarantee:
    """Return the smallest proven delta of the events together at a given epsilon, as a guarantee.

    Args:
        events: one event or several: all campaigns and pilots that one client may take part in.
        epsilon: the epsilon, 0 to 1000.

    Raises:
        InvalidInputError: `events` is refused, as in `epsilon`, or epsilon is out of bounds.

    >>> print(delta(Event("skellam", 5, "zero-out", variance=89.24, honest_survivors=100), 1.0))
    epsilon 1 at delta 9.083e-07 (zero-out, distributed trust, privacy-loss-distribution)
    """
    events, epsilon = checked_events(events), validate.real(0.0, 1e3, epsilon=epsilon)
    fixed, variation = _slack(events)
    at = np.array([epsilon])
    value, method = min((float(bound.deltas(at)[0]), bound.method) for bound in _bounds(events))
    total = value + fixed + (1 + math.exp(min(epsilon, _OVERFLOWS))) * variation
    return Guarantee(epsilon, min(1.0, total), method, events[0].relation, _trust(events))


class PrivacyLoss(NamedTuple):
    """A distribution of the privacy loss on a grid: an upper bound on the true distribution.

    It dominates the true distribution, whichever of the two neighbours comes first.

    Attributes:
        loss: float64 [n], the losses: equally spaced, in rising order, and then infinity.
        probability: float64 [n], the probability of each loss; their sum is 1.
        delta: float64 [n], the delta that is proven at epsilon = `loss`, secure sums and samplers
            included. 0 for the infinite loss.
    """

    loss: F64
    probability: F64
    delta: F64


def privacy_loss(events: Event | Sequence[Event]) -> PrivacyLoss:
    """Return a distribution of the privacy loss that bounds the loss of all events together.

    Of the proven bounds, it uses the bound with the smallest epsilon at delta 1e-6. Between two
    points of the grid, delta is linear in e^epsilon (docs/privacy-proofs/skellam.md). To compose
    two such distributions with equal grids, convolve their probabilities.

    Args:
        events: one event or several, as in `epsilon`.

    Raises:
        InvalidInputError: `events` is refused, as in `epsilon`; or there is too much or too little
            noise for a table: the largest finite loss would be 0, or 300 or more.

    >>> found = privacy_loss(Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2))
    >>> float(np.interp(1.0, found.loss[:-1], found.delta[:-1])) < 1.1e-6
    True
    >>> round(float(found.probability.sum()), 9)
    1.0
    """
    found = checked_events(events)
    fixed, variation = _slack(found)
    bound = min(_bounds(found), key=lambda bound: (bound.epsilon(_TYPICAL), bound.method))
    # No loss exceeds the pure epsilon, so the table need not go beyond it.
    pure = pure_epsilon(found)
    end = min(bound.epsilon(_LEAST_LISTED), pure)
    # Beyond 300, products of e^loss would overflow. A table that ends at 0 would show nothing.
    if not 0 < end < 300:
        raise InvalidInputError(
            "the noise is too little, or too much, for a table of its privacy loss"
        )
    loss = np.linspace(0.0, end, _LISTED)
    above = np.minimum(1.0, bound.deltas(loss) + fixed + (1 + np.exp(loss)) * variation)
    if end == pure:
        above[-1] = 0.0
    below = 1 - np.exp(-loss) * (1 - above)  # delta at -loss: either neighbour may come first
    loss = np.concatenate([-loss[:0:-1], loss])
    delta = np.minimum.accumulate(np.concatenate([below[:0:-1], above]))
    # delta is the sum, over all losses above epsilon, of (1 - e^(epsilon - loss)) times the loss's
    # probability. So it is linear in e^epsilon between two losses, and its slope changes at each
    # loss by e^-loss times the probability of the loss.
    slope = np.append(np.diff(delta) / np.diff(np.exp(loss)), 0.0)
    probability = np.append(0.0, np.maximum(0.0, np.diff(slope) * np.exp(loss[1:])))
    probability[0] = max(0.0, 1 - probability.sum() - delta[-1])
    return PrivacyLoss(
        np.append(loss, math.inf), np.append(probability, delta[-1]), np.append(delta, 0.0)
    )


def most_detected(epsilons: npt.ArrayLike, deltas: npt.ArrayLike, false_alarms: float) -> float:
    """Return an upper bound, 0 .. 1, on the true positive rate of an attacker.

    The attacker sees a sum, and tests whether it holds a client's items. If the test says "yes" for
    a share `false_alarms` of the sums without them, then it says "yes" for at most the returned
    share of the sums with them. Each pair (epsilon, delta) gives two bounds, one for each order of
    the two neighbours (Kairouz, Oh and Viswanath 2015, theorem 2.1). The smallest bound is
    returned.

    Args:
        epsilons: one epsilon or an array of epsilons, such as `loss` of `privacy_loss`.
        deltas: the delta that is proven at each epsilon.
        false_alarms: the false positive rate of the test, 0 .. 1.

    >>> round(most_detected(1.0, 1e-6, 0.05), 4), round(most_detected(8.0, 1e-6, 0.05), 4)
    (0.1359, 0.9997)
    """
    alarms = validate.real(0.0, 1.0, false_alarms=false_alarms)
    factors, lost = np.exp(np.asarray(epsilons, np.float64)), np.asarray(deltas, np.float64)
    with np.errstate(invalid="ignore"):  # an infinite epsilon bounds nothing; times 0 it is NaN
        caught = np.where(np.isinf(factors), 1.0, factors * alarms)
    bounds = np.minimum(caught + lost, 1 - (1 - lost - alarms) / factors)
    return float(np.clip(bounds.min(), 0.0, 1.0))


def calibrate(event: Event, epsilon: float, delta: float, *, others: Sequence[Event] = ()) -> float:
    """Return a variance for an event with which all events are (epsilon, delta)-private together.

    All events are `event` and `others`. A search finds the smallest such variance, to a relative
    1e-6. The result may be larger if epsilon somewhere rises with the variance. This may happen
    below a variance of 1, or where a method reaches its limits. The returned variance meets the
    target in any case.

    Args:
        event: the event whose variance to find; its present variance is ignored.
        epsilon: the largest epsilon of all events together.
        delta: the delta of all events together; 0 is allowed if all noise is geometric.
        others: the other events that the same clients take part in, such as a pilot. No event may
            have been chosen in view of what another one showed (see `epsilon`).

    Raises:
        InvalidInputError: an argument is refused (see `epsilon`), the other events alone reach
            epsilon, or no variance up to about 1e18 is enough.

    >>> event = Event("skellam", 5, "zero-out", honest_survivors=100)
    >>> round(calibrate(event, 1.0, 1e-6) ** 0.5 / (5**0.5 * noise_multiplier(1.0, 1e-6)), 4)
    0.9954
    """
    target = validate.real(1e-6, 1e3, epsilon=epsilon)
    delta = _delta_for([event, *others], delta)
    if others and _guarantee(checked_events(others), delta).epsilon >= target:
        raise InvalidInputError(
            f"the other events alone reach epsilon {target:g} at delta {delta:g}: nothing is left"
        )

    @cache
    def found(variance: float) -> float:
        return _guarantee(
            checked_events([*others, replace(event, variance=variance)]), delta
        ).epsilon

    guess = min(max(LAWS[event.mechanism].guess(event, target, delta), 1e-8), 1e16)
    low, high = 0.9 * guess, 1.1 * guess
    while found(high) > target:
        low, high = high, 2 * high
        if high > 1e18:
            raise InvalidInputError(
                f"no noise reaches epsilon {target:g} at delta {delta:g}; raise either"
            )
    while low > 1e-8 and found(low) <= target:
        low, high = low / 2, low
    return _least_between(found, target, low, high)


def _least_between(
    found: Callable[[float], float], target: float, low: float, high: float
) -> float:
    """Return the smallest variance with an epsilon of at most the target, up to a relative 1e-6.

    Args:
        found: a function from a variance to the epsilon of the events with this variance.
        target: the largest epsilon.
        low: a variance with an epsilon above the target, or a variance near 0.
        high: a larger variance, with an epsilon of at most the target.
    """
    steps = 0
    # At every step, the epsilon of `high` is at most the target. So the result meets the target.
    while high > low * (1 + 1e-6):
        middle, steps = math.sqrt(low * high), steps + 1
        # Epsilon is about a power of the variance. Two steps of three try the variance at which
        # this power meets the target: one step a little above it and one a little below, so that
        # both ends move. Every third step halves the interval, in case epsilon is far from a power.
        if steps % 3 and found(high) < found(low) < math.inf and found(high) > 0:
            share = math.log(found(low) / target) / math.log(found(low) / found(high))
            meets = low * (high / low) ** share * (1 + (3e-7 if steps % 3 == 1 else -3e-7))
            middle = meets if low < meets < high else middle
        low, high = (low, middle) if found(middle) <= target else (middle, high)
    return high


def realised(event: Event, survivors: int, corrupt: int) -> Event:
    """Return the event with the noise that a round really had, for information only.

    A ledger must not charge this event. It charges the guaranteed noise of `honest_survivors`
    clients. If more clients stay until the round's sum, the sum has more noise:
    docs/privacy-proofs/shares.md.

    Args:
        event: an event with Skellam noise.
        survivors: the number of clients in the round's sum, at least `corrupt` + 1.
        corrupt: the number of clients that may be corrupt: their shares of noise do not count.

    Raises:
        InvalidInputError: the noise is not Skellam noise, or a number is out of bounds.

    >>> event = Event("skellam", 5, "zero-out", variance=90.0, honest_survivors=100)
    >>> realised(event, survivors=130, corrupt=10).variance
    108.0
    """
    if event.honest_survivors is None:
        raise InvalidInputError(
            f"only skellam noise comes in shares: {event.mechanism} noise is what it was planned"
            " to be"
        )
    corrupt = validate.integer(0, corrupt=corrupt)
    honest = validate.integer(corrupt + 1, survivors=survivors) - corrupt
    return replace(
        event,
        variance=event.noise_variance * honest / event.honest_survivors,
        honest_survivors=honest,
    )


def _trust(events: Sequence[Event]) -> str:
    return " and ".join(sorted({str(event.trust) for event in events}))


def _slack(events: Sequence[Event]) -> tuple[float, float]:
    """Return the delta that secure sums use up, and the total variation of all samplers.

    At an epsilon, delta grows by the first number plus (1 + e^epsilon) times the second number.
    """
    # Contributions are counted, not rounds: a person's silos may be in different sums of one round.
    sums = sum(event.contributions * LAWS[event.mechanism].sums_of_part for event in events)
    return sums * SECURE_SUM_DELTA, sum(
        event.contributions * event.total_variation for event in events
    )


def _solve(bound: Bound, delta: float, variation: float) -> float:
    """Return an epsilon at which a bound and the samplers of noise together use at most delta.

    Returns infinity if the search finds no such epsilon.

    Args:
        bound: the (epsilon, delta) curve for ideal noise.
        delta: the delta for the bound and the samplers together.
        variation: the total variation of the samplers. They use up a delta of (1 + e^epsilon)
            times this number.
    """
    least = 0.0
    # The larger epsilon is, the less of delta is left for the bound, which then has a larger
    # epsilon. A few turns usually reach an epsilon that no longer grows. If 100 turns do not, the
    # result is infinity.
    for _ in range(100):
        left = delta - (1 + math.exp(min(least, _OVERFLOWS))) * variation
        found = bound.epsilon(left) if left > 0 else math.inf
        if found <= least:
            return least
        least = found * (1 + 1e-12)  # a little more: with rounding, the loop might never end
    return math.inf


def _bounds(events: Sequence[Event]) -> list[Bound]:
    """Return one or more proven (epsilon, delta) curves for events that are not adaptive."""
    methods = {LAWS[event.mechanism].method for event in events}
    method = methods.pop() if len(methods) == 1 else Method.DOMINATING_GAUSSIAN
    bounds = [gaussian_curve(gaussian_bound(events), method)]
    if composed := loss_bound(events):
        bounds.append(composed)
    if math.isfinite(pure := pure_epsilon(events)):
        bounds.append(_pure_bound(pure))
    return bounds


def _pure_bound(pure: float) -> Bound:
    """Return the (epsilon, delta) curve of the worst mechanism that is purely epsilon-private.

    The curve's epsilon is `pure` at every delta, which is an upper bound.

    Args:
        pure: the mechanism's epsilon at delta 0.
    """
    # The worst mechanism is randomized response, which is right e^pure times as often as wrong. Its
    # delta at a smaller epsilon is (e^pure - e^epsilon) / (1 + e^pure). The form below does not
    # overflow.
    return Bound(
        Method.BASIC,
        lambda delta: pure,
        lambda epsilons: np.where(
            np.less(epsilons, pure),
            1e-15 - np.expm1(np.minimum(epsilons, pure) - pure) / (1 + math.exp(-pure)),
            0.0,  # 1e-15 is a margin: rounding errs by less
        ),
    )
