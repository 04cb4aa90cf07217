"""The privacy terms of a plan: the guaranteed epsilon and delta, and noise that is enough for them.

>>> terms = propose(epsilon=1.0, delta=1e-6, rows=5, width=1000)
>>> str(terms.event.mechanism), round(terms.event.noise_variance, 2)
('rounded-gaussian', 89.16)
>>> round(terms.noise_multiplier, 3)
4.223
>>> print(terms.guarantee)
epsilon 1 at delta 1e-06 (zero-out, central trust, privacy-loss-distribution)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, Self

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.privacy import accounting
from fedtally.privacy.accounting import Guarantee, checked_delta
from fedtally.privacy.budget import checked_name
from fedtally.privacy.events import (
    Collisions,
    Event,
    Mechanism,
    NoiseBy,
    Relation,
    Trust,
    default_clip_norm,
)
from fedtally.privacy.geometric import Geometric
from fedtally.privacy.laws import LAWS, Law
from fedtally.privacy.mechanism import MAX_VARIANCE, Noise

POPULATION = "clients"  # used if a plan names no population
# Below 0.001 the noise hides nearly every item; above 100 the guarantee is worthless.
MIN_EPSILON, MAX_EPSILON = 1e-3, 100.0


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """The privacy terms of a plan: a guarantee for every client, and an event that meets it.

    Args:
        epsilon: the guaranteed epsilon, 0.001 to 100. If `event.per_rounds` is R, it holds for any
            R rounds in a row, else for the whole campaign.
        delta: the guaranteed delta: 0 if the noise is geometric, else above 0 and below 1.
        event: what the campaign exposes of one client, with the variance of the noise.
        population: the name of the population whose budget is charged. Populations that share
            clients must have one name.
        not_private: whether the run used something that no private run may use: private items as
            the domain, a chosen seed, or true counts. If so, nothing is guaranteed.

    Raises:
        InvalidInputError: a value is out of bounds, or the noise is too little for the guarantee.
    """

    epsilon: float
    delta: float
    event: Event
    population: str = POPULATION
    not_private: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", checked_epsilon(self.epsilon))
        checked_name(population=self.population)
        validate.flag(**{"privacy.not_private": self.not_private})
        if not isinstance(self.event, Event):
            raise InvalidInputError(
                f"privacy.event must be an Event, got {type(self.event).__name__}"
            )
        object.__setattr__(self, "delta", _checked_delta(self.delta, self.event.mechanism))
        if not self._law.least_variance <= self.event.noise_variance <= MAX_VARIANCE / 2:
            raise InvalidInputError(
                f"the variance of the noise must be {self._law.least_variance:g} to"
                f" {MAX_VARIANCE / 2:g}, got {self.event.noise_variance:g}; change epsilon, rows or"
                " participations"
            )
        found = self.promised
        if found.epsilon > self.epsilon:
            raise InvalidInputError(
                f"noise of variance {self.event.noise_variance:g} gives {found}, above the epsilon"
                f" {self.epsilon:g} of the plan; give it more noise, or guarantee less"
            )

    @property
    def promised(self) -> Guarantee:
        """The proven guarantee for the rounds that the plan's epsilon is for.

        These are any `event.per_rounds` rounds in a row or, without `per_rounds`, all rounds.
        """
        return _guarantee(self.event.in_a_row, self.delta)

    @property
    def guarantee(self) -> Guarantee:
        """The proven guarantee of the whole campaign."""
        return _guarantee(self.event, self.delta)

    @property
    def replace_one(self) -> Guarantee:
        """The proven guarantee of the whole campaign for the relation replace-one."""
        if self.event.relation is Relation.REPLACE_ONE:
            return self.guarantee
        return _guarantee(replace(self.event, relation=Relation.REPLACE_ONE), self.delta)

    def proven(self, relation: Relation, delta: float, parts: int | None = None) -> Guarantee:
        """Return the proven guarantee of the campaign for a given neighbouring relation and delta.

        Args:
            relation: the neighbouring relation. Add-remove is refused if the event has another
                relation.
            delta: the delta, above 0 and below 1; or 0 if the noise is geometric.
            parts: the number of rounds that the client takes part in; None: the most rounds that
                the plan allows.

        Raises:
            InvalidInputError: the relation is refused, an argument is out of bounds, or secure sums
                and samplers of noise alone use up delta.
        """
        event = self.event if parts is None else self.event.of_parts(parts)
        return _guarantee(event.under(relation), delta)

    def certified(self, collisions: Collisions) -> Self:
        """Return terms with the same epsilon and delta, and the least noise for these collisions.

        Args:
            collisions: how badly any two candidates collide under the plan's hashes
                (`events.certify`).
        """
        event = replace(self.event, collisions=collisions, variance=None)
        return replace(
            self, event=replace(event, variance=_calibrated(event, self.epsilon, self.delta))
        )

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation `stddev`, divided by the l2 sensitivity."""
        return self.stddev / self.event.l2_sensitivity

    @property
    def stddev(self) -> float:
        """The root of the event's variance, before a Gaussian is rounded."""
        return math.sqrt(self.event.noise_variance)

    @property
    def by_clients(self) -> bool:
        """Whether the clients add the noise: each client adds a share."""
        return self.noised_by is NoiseBy.CLIENTS

    @property
    def noised_by(self) -> NoiseBy:
        """The parties that add the noise: the aggregator, the clients or two servers."""
        event = self.event
        trusted = (by for by in NoiseBy if by.trust is event.trust)
        return next(by for by in trusted if event.mechanism in by.mechanisms)

    @property
    def _law(self) -> Law:
        return LAWS[self.event.mechanism]

    def noise(self) -> Noise | Geometric:
        """Return the noise that an aggregator, or each of two servers, adds to every counter.

        Raises:
            InvalidInputError: the clients add the noise.
        """
        return self._law.at_once(self.event.noise_variance)

    def share(self, clients: int = 1) -> Noise:
        """Return the noise that `clients` clients together add to every counter.

        Proof: docs/privacy-proofs/shares.md.

        Raises:
            InvalidInputError: the clients do not add the noise.
        """
        # `honest_survivors` shares have the planned variance. A sum has at least this number of
        # honest clients, and so at least the planned noise. `in_shares` refuses noise without
        # shares.
        shares = validate.integer(1, clients=clients) / (self.event.honest_survivors or 1)
        return self._law.in_shares(self.event.noise_variance * shares)

    def draws_of_all(self, clients: int, sums: int) -> tuple[float, int]:
        """Return the variance of one draw of noise, and the number of draws in one counter.

        The number counts the draws in this counter of all released sums together.

        If clients add the noise, one draw is a client's share. Otherwise one draw is the
        noise of the aggregator or of one server.

        Args:
            clients: the numbers of clients (or silos) in the released sums, added up.
            sums: the number of released sums.
        """
        if self.by_clients:
            return self.share().variance, clients
        return self.event.noise_variance, sums * self.event.draws_of_sum

    def largest_stddev(self, clients: int) -> float:
        """Return the standard deviation of the noise in a sum's counter, if no client drops out.

        Args:
            clients: the number of clients in the sum.
        """
        if self.by_clients:
            return math.sqrt(self.share(clients).variance)
        return self.stddev * math.sqrt(self.event.draws_of_sum)

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as a dict of JSON-able values, for `from_dict`."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "population": self.population,
            "not_private": self.not_private,
            "event": self.event.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the terms of a dict that `to_dict` made.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds, or the noise is too
                little.
        """
        found = validate.table("privacy", values, list(cls.__dataclass_fields__))
        return cls(**found | {"event": Event.from_dict(found["event"])})


def propose(
    *,
    epsilon: float,
    delta: float,
    population: str = POPULATION,
    not_private: bool = False,
    **exposed: Any,
) -> PrivacyConfig:
    """Return privacy terms with the least noise that guarantees epsilon at delta.

    The terms have a clip (a largest norm of a client's vector) if several items of a client may add
    up in one counter.

    Args:
        epsilon: the epsilon to guarantee.
        delta: the delta to guarantee. With geometric noise it is ignored, and the delta is 0.
        population: the name of the population whose budget is charged.
        not_private: see `PrivacyConfig`.
        exposed: the keyword arguments of `exposure`, which describe the campaign.
    """
    return least_noise(
        exposure(**exposed),
        epsilon=epsilon,
        delta=delta,
        population=population,
        not_private=not_private,
    )


def exposure(
    *,
    rows: int,
    width: int,
    relation: Relation | str = Relation.ZERO_OUT,
    trust: Trust | str = Trust.CENTRAL,
    max_items: int = 1,
    participations: int = 1,
    per_release: int = 1,
    per_rounds: int | None = None,
    num_rounds: int | None = None,
    silos_per_person: int = 1,
    honest_survivors: int | None = None,
    most_clients: int = 1,
    collisions: Collisions | None = None,
    counters: int | None = None,
    encoding: Encoding = Encoding.SKETCH,
    mechanism: Mechanism | str | None = None,
) -> Event:
    """Return the event of a campaign: what the campaign exposes of one client.

    The event has no variance yet. It has a clip (a largest norm of a client's vector) if several
    items of a client may add up in one counter.

    Args:
        rows: the number of rows of the sketch; an item changes one counter in each row.
        width: the number of counters in a row; if rows differ in width, the harmonic mean of their
            widths.
        relation: the neighbouring relation, or its name.
        trust: who must be honest, central or distributed (`events.Trust`). With distributed trust,
            clients add shares of the noise if `honest_survivors` is given; if not, two servers add
            the noise.
        max_items: the most distinct items of a client in a round.
        participations: the most rounds that a client takes part in.
        per_release: the most rounds of a client in one release, that is, in one opened sum.
        per_rounds: R, the number of rounds in a row in which a client takes part at most
            `participations` times. None: `participations` is the limit for all rounds.
        num_rounds: the number of rounds of the campaign, if `per_rounds` is given; else it must be
            None.
        silos_per_person: the most silos that hold data of one person; 1 if clients are not silos.
        honest_survivors: the fewest honest clients in a sum, if clients add the noise in shares.
        most_clients: the most clients in a sum. If clients add the noise, it is also the most draws
            of noise in one counter.
        collisions: how badly two candidates collide under the hashes (`events.certify`); None: the
            worst is assumed (see `Event`).
        counters: the number of counters of a client's vector; None: rows times width.
        encoding: how items become counters, in a sketch or a histogram. A histogram has no clip.
        mechanism: the mechanism of the noise, or its name; None: skellam if `honest_survivors` is
            given, else rounded-gaussian.

    >>> exposure(rows=5, width=9).clip_norm, exposure(rows=4, width=8, max_items=9).clip_norm
    (None, 8.48528137423857)
    """
    counters = rows * width if counters is None else counters
    usual = Mechanism.ROUNDED_GAUSSIAN if honest_survivors is None else Mechanism.SKELLAM
    mechanism, trust = Mechanism.parse(mechanism or usual), Trust.parse(trust)
    is_clipped = encoding.most_of_counter(max_items) > 1
    return Event(
        mechanism,
        rows=rows,
        relation=Relation.parse(relation),
        max_items=max_items,
        clip_norm=default_clip_norm(rows, width, max_items) if is_clipped else None,
        participations=participations,
        per_release=per_release,
        per_rounds=per_rounds,
        num_rounds=num_rounds,
        silos_per_person=silos_per_person,
        encoding=encoding,
        honest_survivors=honest_survivors,
        collisions=collisions,
        total_variation=LAWS[mechanism].total_variation(trust, counters, most_clients),
        trust=trust,
    )


def least_noise(
    event: Event,
    *,
    epsilon: float,
    delta: float,
    population: str = POPULATION,
    not_private: bool = False,
) -> PrivacyConfig:
    """Return privacy terms for an event, with the least noise that guarantees epsilon at delta.

    Near the least variance that is allowed, it may be somewhat more noise.

    Args:
        event: what the campaign exposes of one client; its variance is ignored.
        epsilon: the epsilon to guarantee.
        delta: the delta to guarantee. With geometric noise it is ignored, and the delta is 0.
        population: the name of the population whose budget is charged.
        not_private: see `PrivacyConfig`.

    Raises:
        InvalidInputError: epsilon or delta is out of bounds, or no allowed variance guarantees
            them.
    """
    delta = 0.0 if event.mechanism.is_pure else checked_delta(delta)
    least = _calibrated(event, checked_epsilon(epsilon), delta)
    variance = max(least, LAWS[event.mechanism].least_variance)
    # `least_variance` may be above `least`. With very little noise, a larger variance may have a
    # larger bound on epsilon, or no bound. So epsilon is checked, and the variance raised.
    while _guarantee(replace(event.in_a_row, variance=variance), delta).epsilon > epsilon:
        variance *= 1.125
    return PrivacyConfig(
        epsilon=epsilon,
        delta=delta,
        event=replace(event, variance=variance),
        population=population,
        not_private=not_private,
    )


class Opened(NamedTuple):
    """What a plan opens: the numbers that its event must agree with.

    Attributes:
        rows: the number of rows; an item changes one counter in each row.
        counters: the number of counters of a client's vector.
        max_items: the most items of a client in a round.
        encoding: how items become counters.
        num_rounds: the number of rounds of the plan.
        clients: the most clients in a sum.
        releases: for each release (opened sum), the range of rounds that are added up in it.
        is_two_server: whether two servers add up the clients' vectors. False: one server does.
        people: the most people in one client. It is above 1 if the clients are silos.
    """

    rows: int
    counters: int
    max_items: int
    encoding: Encoding
    num_rounds: int
    clients: int
    releases: list[range]
    is_two_server: bool
    people: int = 1


def check_event(event: Event, opened: Opened) -> None:
    """Refuse an event that does not fit the plan that holds it.

    Anybody may have written a plan file. If its event said less than the plan opens, clients and
    ledgers would charge too little.

    Args:
        event: the event in the plan's privacy terms.
        opened: what the plan really opens.

    Raises:
        InvalidInputError: the event does not fit the plan.
    """
    if opened.people > 1:
        _check_silos(event)
    else:
        _check_persons(event)
    for name in ("rows", "max_items", "encoding"):
        if getattr(event, name) != getattr(opened, name):
            raise InvalidInputError(
                f"privacy.event.{name} must be that of the plan, {getattr(opened, name)}, got"
                f" {getattr(event, name)}"
            )
    _check_rounds(event, opened)
    _check_noise(event, opened)


def _check_silos(event: Event) -> None:
    """Refuse an event of silos unless its relation is add-remove and its noise not geometric."""
    if not event.relation.hides_number:
        raise InvalidInputError(
            "privacy.event.relation must be add-remove where clients are silos (people above 1):"
            " which people a silo has is not public, so that one of them more or less must not"
            f" show; got {event.relation}"
        )
    if event.mechanism.is_pure:
        raise InvalidInputError(
            "privacy.event.mechanism must be rounded-gaussian where clients are silos (people above"
            " 1): what a sum shows of the size of a silo is planned for noise with such tails; got"
            f" {event.mechanism}"
        )


def _check_persons(event: Event) -> None:
    """Refuse, for a plan of persons, an event that only a plan of silos may have.

    Such an event counts several silos of a person, or has add-remove with distributed trust.
    """
    if event.relation.hides_number and event.trust is Trust.DISTRIBUTED:
        raise InvalidInputError(
            "add-remove hides the number of clients, which a secure sum shows, and shares of noise"
            " are summed securely: use zero-out or replace-one, or central trust"
        )
    if event.silos_per_person > 1:
        raise InvalidInputError(
            "privacy.event.silos_per_person goes with silos: set the plan's people, the most"
            f" people of a silo, or leave it out, got {event.silos_per_person}"
        )


def _check_rounds(event: Event, opened: Opened) -> None:
    """Refuse an event whose participations, rounds or rounds of a release do not fit the plan.

    A campaign with such an event could be charged too little.
    """
    if event.participations > opened.num_rounds:
        raise InvalidInputError(
            f"privacy.event.participations must be at most the rounds, {opened.num_rounds}, got"
            f" {event.participations}"
        )
    # Without this check, an event that states fewer rounds than the plan has would be charged too
    # little.
    if event.per_rounds is not None and event.num_rounds != opened.num_rounds:
        raise InvalidInputError(
            f"privacy.event.num_rounds must be that of the plan, {opened.num_rounds}, got"
            f" {event.num_rounds}"
        )
    together = min(event.participations, max(map(len, opened.releases)))
    if event.per_release != together:
        raise InvalidInputError(
            f"privacy.event.per_release must be {together}, the most rounds of one client that this"
            f" plan adds up before it opens them, got {event.per_release}"
        )
    if opened.is_two_server and event.per_release > 1:
        raise InvalidInputError(
            "two servers take one report of a client in all that they add up, and here a client"
            f" may be in {event.per_release} rounds of a release: use {opt.max_rounds(1)}, or the"
            " schedule hybrid or fresh"
        )


def _check_noise(event: Event, opened: Opened) -> None:
    """Refuse an event whose mechanism, clip, total variation or collisions do not fit the plan."""
    noise_by = NoiseBy.of(event.trust, is_two_server=opened.is_two_server)
    if event.mechanism not in noise_by.mechanisms:
        needed = (
            "skellam: with one server the clients add"
            if noise_by is NoiseBy.CLIENTS
            else "rounded-gaussian: who opens the sum adds"
        )
        raise InvalidInputError(
            f"privacy.event.mechanism must be {needed} the noise, got {event.mechanism}"
        )
    if event.clip_norm is not None and event.clip_norm**2 < opened.rows:
        raise InvalidInputError(
            "privacy.event.clip_norm must be at least the root of the rows,"
            f" {math.sqrt(opened.rows):.6g}, or no client could contribute any item, got"
            f" {event.clip_norm:g}"
        )
    trust = event.trust or Trust.CENTRAL
    least = LAWS[event.mechanism].total_variation(trust, opened.counters, opened.clients)
    if event.total_variation < least:
        raise InvalidInputError(
            f"privacy.event.total_variation must be at least {least:.3g}, which the sampler of the"
            f" noise may lack, got {event.total_variation:g}"
        )
    if event.collisions is not None and event.trust is Trust.DISTRIBUTED:
        raise InvalidInputError(
            "privacy.event.collisions goes with central trust: a client cannot be asked to look at"
            " all pairs of candidates before it believes them; leave collisions (certify) out"
        )


def default_delta(num_clients: int) -> float:
    """Return the default delta for n clients: the smaller of 1e-6 and 1 / (10 n).

    >>> default_delta(1000), default_delta(10**8)
    (1e-06, 1e-09)
    """
    return min(1e-6, 1.0 / (10 * validate.integer(1, num_clients=num_clients)))


def checked_epsilon(epsilon: float) -> float:
    """Return epsilon as a float, if it is from 0.001 to 100.

    Raises:
        InvalidInputError: epsilon is out of these bounds.

    >>> checked_epsilon(1)
    1.0
    """
    epsilon = validate.real(epsilon=epsilon)
    if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise InvalidInputError(
            f"{arg.epsilon} must be {MIN_EPSILON:g} to {MAX_EPSILON:g}, got {epsilon:g}"
        )
    return epsilon


def _checked_delta(delta: float, mechanism: Mechanism) -> float:
    if not mechanism.is_pure:
        return checked_delta(delta)
    # Geometric noise needs no delta. If other values than 0 were allowed, two different plans could
    # have the same guarantee.
    if isinstance(delta, bool) or delta != 0:
        raise InvalidInputError(
            f"{arg.delta} must be 0 with {mechanism} noise, which needs none, got {delta!r}"
        )
    return 0.0


def _guarantee(event: Event, delta: float) -> Guarantee:
    return _bound(_alike(event), delta)


def _calibrated(event: Event, epsilon: float, delta: float) -> float:
    return _least(_alike(event.in_a_row), epsilon, delta)


def _alike(event: Event) -> Event:
    """Return the event with `honest_survivors` set to 1, if it has one; its cost stays the same."""
    # The cost does not depend on `honest_survivors`. Without it, more events share a cache entry.
    return event if event.honest_survivors is None else replace(event, honest_survivors=1)


@lru_cache(maxsize=64)
def _bound(event: Event, delta: float) -> Guarantee:
    return accounting.epsilon(event, delta)


@lru_cache(maxsize=64)
def _least(event: Event, epsilon: float, delta: float) -> float:
    return accounting.calibrate(event, epsilon, delta)
