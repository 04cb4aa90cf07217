"""The privacy accountant: proven upper bounds (epsilon, delta) on the cost of several events.

An event is the exposure of one client to one campaign (`events.Event`).

Of the methods that apply, the accountant takes the one with the smallest bound, and names it:

| method                      | holds for                          | above the exact value by      |
|-----------------------------|------------------------------------|-------------------------------|
| `analytic-gaussian`         | rounded Gaussian noise             | what rounding gains           |
| `dominating-gaussian`       | all noise; the only method for     | `tools/accountant_gap.py`: 5  |
|                             | Skellam noise with a clip          | rows and 2 items 0.23 % at    |
|                             |                                    | epsilon 1, 12 % at 8          |
| `privacy-loss-distribution` | integer noise, no clip that        | 1e-4 of it, and 1e-3 up to 20 |
|                             | matters                            |                               |
| `gaussian-composition`      | several events, each chosen in     | as `dominating-gaussian`      |
|                             | view of what earlier ones showed   |                               |
| `renyi-filter`              | as above, in a ledger whose first  | `tools/accountant_gap.py`: at |
|                             | campaign has little integer noise  | most 7 % at the grant's limit |
| `basic-composition`         | geometric noise alone, also with a | nothing for one release of    |
|                             | delta of 0, and for events chosen  | clients of one item           |
|                             | in view of earlier ones            |                               |

The method `privacy-loss-distribution` takes at most 2^18 pairs of distributions (rows times
releases). It replaces Skellam noise of a variance above 1e7, and all noise with a clip, by the
Gaussian that dominates it.

Proofs: docs/privacy-proofs/. An input that the accountant does not know is an error. It never
credits amplification by sampling, by shuffling or by the choice of cohorts, since the server sees
which clients take part.

Arithmetic is in floating point, with margins: 1e-8 of epsilon, and 1e-15 of delta for every
convolution, five times what was measured.

The parts: `bounds` (what all bounds share), `laws` (each mechanism of noise), `gaussian` (curves
that are known exactly) and `loss_distribution` (integer noise on a grid). Only `gaussian` and
`loss_distribution` need the library `dp_accounting`.
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

# The probability with which one secure sum may show more than its sum: docs/protocol.md, "Claim of
# semi-honest". The delta of the noise does not cover this case, so 2^-40 is charged in addition.
SECURE_SUM_DELTA = 2.0**-40
# The largest total epsilon of campaigns that are planned in view of earlier ones. A sampler of
# noise costs (1 + e^epsilon) times its total variation. Up to this epsilon, the part of delta that
# `set_aside` keeps covers these costs: docs/privacy-proofs/releases.md, 5.
MOST_ADAPTIVE = 25.0
_TYPICAL = 1e-6  # `privacy_loss` takes the bound that is tightest at this delta
_LEAST_LISTED = 1e-12  # a table's losses end at the epsilon of this delta; beyond is infinite
_LISTED = 2001  # losses from 0 on in a table: enough for plots and for composition elsewhere
_OVERFLOWS = 700.0  # e^epsilon is a finite double up to about 709
# The orders of Renyi divergence from which a ledger chooses one: above 1, to 101.
_ORDERS = tuple((1 + np.geomspace(0.1, 100.0, 61)).tolist())


@dataclass(frozen=True)
class Guarantee:
    """A proven statement: one or more events together are (epsilon, delta)-differentially private.

    Attributes:
        epsilon: an upper bound on the epsilon of all these events together.
        delta: the delta at which `epsilon` holds. It includes what secure sums and samplers of
            noise cost. 0: pure differential privacy.
        method: the method that computed the bound.
        relation: the neighbouring relation that the statement holds for.
        trust: `central`, `distributed`, or `central and distributed`: every party named must be
            trusted.
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
    """Return an upper bound rounded upwards to four digits, for people to read.

    >>> rounded_up(2.1167001)
    2.117
    """
    return float(Context(prec=4, rounding=ROUND_CEILING).create_decimal(repr(float(bound))))


def numbers(epsilon: float, delta: float) -> str:
    """Return the numbers of a guarantee, rounded up, for people to read.

    >>> numbers(0.99999, 1e-6), numbers(0.5, 0.0)
    ('epsilon 1, delta 1e-06', 'pure epsilon 0.5')
    """
    if not delta:
        return f"pure epsilon {rounded_up(epsilon):g}"
    return f"epsilon {rounded_up(epsilon):g}, delta {rounded_up(delta):g}"


def epsilon(events: Event | Sequence[Event], delta: float, *, adaptive: bool = False) -> Guarantee:
    """Return the least proven epsilon at which the events together are (epsilon, delta)-private.

    Proof: docs/privacy-proofs/releases.md.

    Args:
        events: all that one client may be exposed to, pilots included.
        delta: the delta of all events together, in (0, 1); or 0 where all noise is geometric. Every
            secure sum uses 2^-40 of it. The sampler of the noise uses some too, since it draws
            from a distribution that is close to the ideal one.
        adaptive: whether later events may have been chosen in view of what earlier ones showed.
            Several such events compose as the Gaussians that dominate them (`gaussian_bound`).
            Composing loss distributions is not proven for such events.

    Raises:
        InvalidInputError: no events, an event without variance, several relations, or a delta
            that secure sums and samplers use up.

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
    """Return the epsilon of all events together at delta 0; infinity if there is no such epsilon.

    It is the sum of the largest privacy losses (basic composition). It also holds for events that
    are chosen in view of earlier ones. Proof: docs/privacy-proofs/geometric.md.

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
    """Return a delta after checking it: above 0 and below 1, or 0 if all noise is geometric."""
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
    """The running total of campaigns, each of which may be planned in view of earlier ones.

    A part of delta is set aside once, for any number of campaigns (`set_aside`). It covers secure
    sums and samplers of noise, so that delta is never exceeded. The campaigns compose as Gaussians
    at the rest of delta. If all of them have geometric noise, the sum of their pure epsilons counts
    instead, where it is smaller.

    With an `order`, there are two bounds, and each has half of the rest of delta. One composes
    Gaussians. The other adds up the Renyi divergences of that order. The smaller bound counts.

    Adding a campaign takes the same time after a thousand as after one. `of` makes a composition.
    Proof: docs/privacy-proofs/releases.md, 5, and renyi.md.

    Attributes:
        delta: the delta of all campaigns together, fixed before the first; 0 for geometric noise
            alone.
        relation: the neighbouring relation of all campaigns.
        trust: every party that must be trusted.
        campaigns: the number of campaigns.
        square: the sum of mu^2 over the campaigns; mu is their `gaussian_bound`.
        lost: the delta that secure sums use up.
        variation: the total variation between what samplers draw and the ideal distributions,
            summed over the campaigns.
        pure: the sum of the campaigns' epsilons at delta 0 (`pure_epsilon`); infinity where one of
            them needs a delta.
        alone: the only event, or None if there are several. A single event was not chosen in view
            of earlier ones, so the tighter bounds of `epsilon` hold for it.
        order: the order of the Renyi divergences, above 1, fixed before the first campaign; None:
            Gaussians alone.
        divergence: the sum of the campaigns' Renyi divergences at `order`; infinity where there is
            no order, or no bound.

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
        """Return the composition of one or more campaigns.

        Args:
            events: the events of the campaigns, in their order.
            delta: the delta of all of them together.
            granted: the epsilon that was granted when the first campaign began. It fixes the order
                of the Renyi divergences (`filter_order`). None: compose Gaussians alone.

        Raises:
            InvalidInputError: as `epsilon`.
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
        """Return the composition with one more campaign.

        Raises:
            InvalidInputError: the event is of another relation, or without variance.
        """
        check_relations({str(self.relation), str(event.relation)})
        _delta_for([event], self.delta)  # a later campaign may need a delta that there is not
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
            InvalidInputError: secure sums and samplers use more than the part of delta that is set
                aside for them.
        """
        if self.alone is not None:
            return _guarantee_alone(self.alone, self.delta)
        pure = Guarantee(self.pure, self.delta, Method.BASIC, self.relation, self.trust)
        if not self.delta:
            return pure
        # The split of delta must not depend on what the campaigns used, since later campaigns may
        # be chosen in view of earlier ones: it follows from delta alone.
        aside = set_aside(self.delta)
        found, method = self._adaptive(self.delta - aside)
        # The price of a total variation is 1 + e^epsilon, for an epsilon of at least MOST_ADAPTIVE.
        # At the current epsilon, the price of earlier campaigns would rise with each later one.
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
        """Return the smaller of the Gaussian and the Renyi bound, and its method.

        Args:
            left: the delta for both bounds together.
        """
        gaussians = gaussian_curve(math.sqrt(self.square), Method.GAUSSIANS)
        if self.order is None:
            return gaussians.epsilon(left), Method.GAUSSIANS
        # Which bound is smaller at the end may depend on what was opened. So each has a delta of
        # its own, and both deltas are charged.
        half = left / 2
        renyi = _renyi_epsilon(self.divergence, self.order, half)
        return min((gaussians.epsilon(half), Method.GAUSSIANS), (renyi, Method.RENYI))

    def to_dict(self) -> dict[str, Any]:
        """Return the sums of the composition as JSON-able values, without its event and delta."""
        values = {
            name: getattr(self, name)
            for name in ("campaigns", "square", "lost", "variation", "trust")
        }
        # entries that say nothing are left out: most compositions have no order and no pure epsilon
        if self.order is not None:
            values["order"] = self.order
        sums = {"pure": self.pure, "divergence": self.divergence}
        return values | {name: value for name, value in sums.items() if not math.isinf(value)}

    @classmethod
    def from_dict(cls, values: Any, event: Event, delta: float) -> Self:
        """Return the composition that `to_dict` described.

        Args:
            values: the table that `to_dict` returned.
            event: the event of the last campaign.
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
    """Return the part of delta that is kept for secure sums and samplers.

    It is delta / 100 + 2^-28, and at most delta / 10. Where clients add the noise, a campaign uses
    2^-40 of delta for every participation, so that 2^-28 is enough for 4,096 participations. Other
    campaigns use next to nothing.

    >>> [float(f"{set_aside(delta):.3g}") for delta in (1e-6, 1e-9)]
    [1.37e-08, 1e-10]
    """
    return min(delta / 10, delta / 100 + 2.0**-28)


def _renyi_epsilon(divergence: float, order: float, delta: float) -> float:
    """Return an upper bound on epsilon at a delta, from a Renyi divergence of an order above 1.

    This is Proposition 12 of Canonne, Kamath and Steinke (2020).
    """
    left = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
    return with_margin(max(0.0, divergence + left))


@lru_cache(maxsize=64)
def filter_order(event: Event, granted: float, delta: float) -> float | None:
    """Return the order of the Renyi divergences by which a ledger adds up a population's campaigns.

    The order is chosen with the first campaign, before anything is opened, and never changes. It is
    the order at which the most campaigns like the first one fit into the grant.

    None: as many or more of them fit without Renyi divergences. Much noise, a clip or Gaussian
    noise composes as well by Gaussians that have all of delta. Geometric noise of a large epsilon
    composes as well by pure epsilons. Proof: docs/privacy-proofs/renyi.md.

    Args:
        event: the first campaign.
        granted: the epsilon of the population's grant.
        delta: the delta of the grant; 0 has no order.

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
    # cached: a ledger needs the cost of the same event at every reservation
    return _guarantee([event], delta)


def _sum_above(a: float, b: float) -> float:
    """Return a + b rounded up, so that a sum of many terms is never below the exact sum."""
    return math.nextafter(a + b, math.inf)


class Concentrated(NamedTuple):
    """A proven statement of zero-concentrated differential privacy (Bun and Steinke 2016).

    It holds except with probability `delta`: some distributions are within total variation `delta`
    of what is seen, and between neighbours their Renyi divergence of every order alpha > 1 is at
    most alpha rho. For several events, both numbers add up, also if later events are chosen
    adaptively.
    """

    rho: float
    delta: float


def concentrated(events: Event | Sequence[Event]) -> Concentrated:
    """Return the zero-concentrated privacy (rho, delta) of all events together.

    The rho of an event is mu^2 / 2, for the mu of the Gaussian that dominates the event
    (`gaussian_bound`). With geometric noise, a counter has epsilon^2 / 2 instead where that is
    less. Proof: docs/privacy-proofs/skellam.md and geometric.md.

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
    """Return the least proven delta at which the events together are (epsilon, delta)-private.

    See `epsilon` for what `events` may be.

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
    """A distribution of the privacy loss on a grid, which dominates the true distribution.

    It dominates for both orders of the two neighbours.

    Attributes:
        loss: float64 [n], the losses, rising, equally far apart; the last is infinite.
        probability: float64 [n], the probability of each loss; their sum is 1.
        delta: float64 [n], the delta where epsilon equals the loss. It includes what secure sums
            and samplers cost. 0 for the infinite loss.
    """

    loss: F64
    probability: F64
    delta: F64


def privacy_loss(events: Event | Sequence[Event]) -> PrivacyLoss:
    """Return a distribution of the privacy loss that dominates that of all events together.

    Of the bounds that hold, it takes the one whose epsilon at delta 1e-6 is least. Secure sums and
    the sampler of the noise add to its delta. Between the points of the grid, delta is linear in
    e^epsilon (docs/privacy-proofs/skellam.md). To compose it with other distributions, convolve the
    probabilities of equal grids.

    Raises:
        InvalidInputError: the noise is too little, or too much, for a table: its largest finite
            loss is 0, or 300 or more.

    >>> found = privacy_loss(Event("rounded-gaussian", 16, "zero-out", variance=16 * 4.2247**2))
    >>> float(np.interp(1.0, found.loss[:-1], found.delta[:-1])) < 1.1e-6
    True
    >>> round(float(found.probability.sum()), 9)
    1.0
    """
    found = checked_events(events)
    fixed, variation = _slack(found)
    bound = min(_bounds(found), key=lambda bound: (bound.epsilon(_TYPICAL), bound.method))
    # With pure privacy no loss is above the sum of epsilons, so the table ends there.
    pure = pure_epsilon(found)
    end = min(bound.epsilon(_LEAST_LISTED), pure)
    # Beyond 300, products of e^loss would overflow. A table that ends at 0 says nothing.
    if not 0 < end < 300:
        raise InvalidInputError(
            "the noise is too little, or too much, for a table of its privacy loss"
        )
    loss = np.linspace(0.0, end, _LISTED)
    above = np.minimum(1.0, bound.deltas(loss) + fixed + (1 + np.exp(loss)) * variation)
    if end == pure:
        above[-1] = 0.0
    below = 1 - np.exp(-loss) * (1 - above)  # both directions are alike, so this is delta at -loss
    loss = np.concatenate([-loss[:0:-1], loss])
    delta = np.minimum.accumulate(np.concatenate([below[:0:-1], above]))
    # delta is the sum of (1 - e^(epsilon - loss)) probability over larger losses: linear in
    # e^epsilon between losses that occur, and a probability is how much its slope there falls.
    slope = np.append(np.diff(delta) / np.diff(np.exp(loss)), 0.0)
    probability = np.append(0.0, np.maximum(0.0, np.diff(slope) * np.exp(loss[1:])))
    probability[0] = max(0.0, 1 - probability.sum() - delta[-1])
    return PrivacyLoss(
        np.append(loss, math.inf), np.append(probability, delta[-1]), np.append(delta, 0.0)
    )


def most_detected(epsilons: npt.ArrayLike, deltas: npt.ArrayLike, false_alarms: float) -> float:
    """Return an upper bound on an attacker's true positive rate, 0 .. 1.

    The attacker sees a sum, and tests whether it is with or without a client's items. If its test
    says "with" for a share `false_alarms` of the sums without them, then it says "with" for at most
    the returned share of the sums with them. Each pair (epsilon, delta) bounds this share twice,
    once for each order of the two neighbours (Kairouz, Oh and Viswanath 2015, theorem 2.1). The
    least bound counts.

    Args:
        epsilons: one epsilon, or several, such as the losses of `privacy_loss`.
        deltas: the delta at each epsilon.
        false_alarms: the false positive rate of the test, 0 .. 1.

    >>> round(most_detected(1.0, 1e-6, 0.05), 4), round(most_detected(8.0, 1e-6, 0.05), 4)
    (0.1359, 0.9997)
    """
    alarms = validate.real(0.0, 1.0, false_alarms=false_alarms)
    factors, lost = np.exp(np.asarray(epsilons, np.float64)), np.asarray(deltas, np.float64)
    bounds = np.minimum(factors * alarms + lost, 1 - (1 - lost - alarms) / factors)
    return float(np.clip(bounds.min(), 0.0, 1.0))


def calibrate(event: Event, epsilon: float, delta: float, *, others: Sequence[Event] = ()) -> float:
    """Return a variance at which the event and the others are (epsilon, delta)-private.

    A search finds it, with a relative error of 1e-6. It is the least such variance wherever epsilon
    falls as the variance grows. Epsilon may rise instead where a variance is below 1, or where a
    method reaches its limits. The returned variance meets the target in these cases too.

    Args:
        event: the event whose variance is to be found; a variance that it has is ignored.
        epsilon: the largest epsilon of all events together.
        delta: the delta of all events together; 0 for geometric noise.
        others: other events that the client was or will be exposed to, such as a pilot.

    Raises:
        InvalidInputError: as `epsilon`; or the other events alone use up epsilon.

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
    """Return a variance whose epsilon is at most a target, close to the least such variance.

    Args:
        found: a function from a variance to its epsilon.
        target: the largest epsilon.
        low: a variance whose epsilon is above the target, or a variance near 0.
        high: a larger variance, whose epsilon is at most the target.
    """
    steps = 0
    # the epsilon of `high` is at most the target at every step, so that the result meets it
    while high > low * (1 + 1e-6):
        middle, steps = math.sqrt(low * high), steps + 1
        # Epsilon is about a power of the variance. Two steps of three try the variance at which
        # that power meets the target: once a little above it, once a little below, so that both
        # ends close in. Each third step halves the interval, in case epsilon is no power.
        if steps % 3 and found(high) < found(low) < math.inf and found(high) > 0:
            share = math.log(found(low) / target) / math.log(found(low) / found(high))
            meets = low * (high / low) ** share * (1 + (3e-7 if steps % 3 == 1 else -3e-7))
            middle = meets if low < meets < high else middle
        low, high = (low, middle) if found(middle) <= target else (middle, high)
    return high


def realised(event: Event, survivors: int, corrupt: int) -> Event:
    """Return the event with the noise of the round's actual survivors, for information only.

    Never charge this event to a ledger: a ledger charges the guaranteed noise, which is that of
    `honest_survivors` clients. More survivors add more noise: docs/privacy-proofs/shares.md.

    Args:
        event: an event with Skellam noise.
        survivors: the number of clients in the round's sum, at least `corrupt` + 1.
        corrupt: the number of clients that may be corrupt, whose shares of noise do not count.

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
    """Return the delta of all secure sums, and the total variation of all samplers of noise.

    The total delta grows by the first number, and by 1 + e^epsilon times the second.
    """
    # Contributions, not rounds: each silo of a person may be in sums of its own.
    sums = sum(event.contributions * LAWS[event.mechanism].sums_of_part for event in events)
    return sums * SECURE_SUM_DELTA, sum(
        event.contributions * event.total_variation for event in events
    )


def _solve(bound: Bound, delta: float, variation: float) -> float:
    """Return an epsilon at which a bound and a sampler of noise together use at most delta.

    Args:
        bound: the curve of (epsilon, delta) for ideal noise.
        delta: the delta for both.
        variation: the total variation of the sampler, which uses (1 + e^epsilon) times this.
    """
    least = 0.0
    # A larger epsilon leaves less of delta for the bound, which then needs a larger epsilon. This
    # is repeated until it holds: a few rounds are enough. After 100 rounds the answer is infinity.
    for _ in range(100):
        left = delta - (1 + math.exp(min(least, _OVERFLOWS))) * variation
        found = bound.epsilon(left) if left > 0 else math.inf
        if found <= least:
            return least
        least = found * (1 + 1e-12)  # a little more, so that the loop ends in spite of rounding
    return math.inf


def _bounds(events: Sequence[Event]) -> list[Bound]:
    """Return all bounds on (epsilon, delta) that are proven for these events: at least one."""
    methods = {LAWS[event.mechanism].method for event in events}
    method = methods.pop() if len(methods) == 1 else Method.DOMINATING_GAUSSIAN
    bounds = [gaussian_curve(gaussian_bound(events), method)]
    if composed := loss_bound(events):
        bounds.append(composed)
    if math.isfinite(pure := pure_epsilon(events)):
        bounds.append(_pure_bound(pure))
    return bounds


def _pure_bound(pure: float) -> Bound:
    """Return the (epsilon, delta) curve of the worst mechanism of a pure epsilon.

    Args:
        pure: the epsilon that the mechanism has at delta 0.
    """
    # The worst mechanism is randomized response: it tells the truth e^pure times as often as not.
    # Its delta at a smaller epsilon is (e^pure - e^epsilon) / (1 + e^pure). The form below does not
    # overflow.
    return Bound(
        Method.BASIC,
        lambda delta: pure,
        lambda epsilons: np.where(
            np.less(epsilons, pure),
            1e-15 - np.expm1(np.minimum(epsilons, pure) - pure) / (1 + math.exp(-pure)),
            0.0,  # 1e-15 is more than rounding takes away
        ),
    )
