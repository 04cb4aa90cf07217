"""The privacy terms of a plan: its guarantee and its noise, checked against each other.

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

POPULATION = "clients"  # the population of a plan that names none
# Below 0.001 noise drowns every item; above 100 a guarantee says nothing at all.
MIN_EPSILON, MAX_EPSILON = 1e-3, 100.0


@dataclass(frozen=True, kw_only=True)
class PrivacyConfig:
    """The guarantee of a plan: its campaign is (epsilon, delta)-private for every client.

    Args:
        epsilon: the guaranteed epsilon of the whole campaign, 0.001 to 100. Where the event has
            `per_rounds`, it is for any such number of rounds in a row.
        delta: the guaranteed delta, above 0 and below 1; or 0 where the noise is geometric, which
            needs no delta.
        event: what one client is exposed to, with the variance of the noise.
        population: the population whose budget is charged; populations that overlap are one.
        not_private: whether the run used something that no private run may use: private items as
            the domain, a chosen seed, or true counts (for a parameter, for names or for
            comparison). Then nothing is guaranteed.

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
        """The proven guarantee for the period that the plan's epsilon is for.

        The period is any `per_rounds` rounds in a row where the event has them, or else all rounds.
        """
        return _guarantee(self.event.in_a_row, self.delta)

    @property
    def guarantee(self) -> Guarantee:
        """The proven guarantee of the whole campaign."""
        return _guarantee(self.event, self.delta)

    @property
    def replace_one(self) -> Guarantee:
        """The proven guarantee where a client's items are replaced by any others, not by zeros."""
        if self.event.relation is Relation.REPLACE_ONE:
            return self.guarantee
        return _guarantee(replace(self.event, relation=Relation.REPLACE_ONE), self.delta)

    def proven(self, relation: Relation, delta: float, parts: int | None = None) -> Guarantee:
        """Return the proven guarantee for another neighbouring relation and delta.

        Args:
            relation: the neighbouring relation, as `Event.under` takes it.
            delta: the delta.
            parts: the number of a client's contributions that count; None: all that the plan
                allows.

        Raises:
            InvalidInputError: as `Event.under` and `accounting.epsilon`.
        """
        event = self.event if parts is None else self.event.of_parts(parts)
        return _guarantee(event.under(relation), delta)

    def certified(self, collisions: Collisions) -> Self:
        """Return terms with the same guarantee, and the least noise for certified collisions.

        Args:
            collisions: the worst collisions of two candidates under the hashes (`events.certify`).
        """
        event = replace(self.event, collisions=collisions, variance=None)
        return replace(
            self, event=replace(event, variance=_calibrated(event, self.epsilon, self.delta))
        )

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise in one counter, divided by the l2 sensitivity."""
        return self.stddev / self.event.l2_sensitivity

    @property
    def stddev(self) -> float:
        """The standard deviation of the noise in one counter of one release."""
        return math.sqrt(self.event.noise_variance)

    @property
    def by_clients(self) -> bool:
        """Whether the clients add the noise, in shares."""
        return self.noised_by is NoiseBy.CLIENTS

    @property
    def noised_by(self) -> NoiseBy:
        """The parties whose noise a sum of the plan must hold; the plan's sketches name them."""
        event = self.event
        trusted = (by for by in NoiseBy if by.trust is event.trust)
        return next(by for by in trusted if event.mechanism in by.mechanisms)

    @property
    def _law(self) -> Law:
        return LAWS[self.event.mechanism]

    def noise(self) -> Noise | Geometric:
        """Return the noise that an aggregator, or each of two servers, adds to every counter."""
        return self._law.at_once(self.event.noise_variance)

    def share(self, clients: int = 1) -> Noise:
        """Return the noise that `clients` clients together add to every counter.

        Proof: docs/privacy-proofs/shares.md.
        """
        # A share is sized for the fewest honest clients that may be in a sum. More clients add more
        # noise, never less. Noise that is drawn at once has no shares: `in_shares` then raises.
        shares = validate.integer(1, clients=clients) / (self.event.honest_survivors or 1)
        return self._law.in_shares(self.event.noise_variance * shares)

    def draws_of_all(self, clients: int, sums: int) -> tuple[float, int]:
        """Return the variance of one draw of noise, and the number of draws in all released sums.

        Args:
            clients: the number of clients (or silos) in all sums together.
            sums: the number of released sums.
        """
        if self.by_clients:
            return self.share().variance, clients
        return self.event.noise_variance, sums * self.event.draws_of_sum

    def largest_stddev(self, clients: int) -> float:
        """Return the standard deviation of the noise in a sum's counter if no client drops out.

        Args:
            clients: the number of clients that begin the round.
        """
        if self.by_clients:
            return math.sqrt(self.share(clients).variance)
        return self.stddev * math.sqrt(self.event.draws_of_sum)

    def to_dict(self) -> dict[str, Any]:
        """Return the terms as JSON-able values."""
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "population": self.population,
            "not_private": self.not_private,
            "event": self.event.to_dict(),
        }

    @classmethod
    def from_dict(cls, values: Any) -> Self:
        """Return the terms that `to_dict` described.

        Raises:
            InvalidInputError: an entry is missing, unknown or out of bounds.
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
    """Return privacy terms that guarantee epsilon at delta with the least noise.

    A client's vector is clipped where several of its items may add up in a counter.

    Args:
        epsilon: the epsilon of the guarantee.
        delta: the delta of the guarantee; geometric noise guarantees 0, whatever is given.
        population: the population whose budget is charged.
        not_private: see `PrivacyConfig`.
        exposed: the arguments of `exposure`.
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
    """Return the event of a campaign: what it exposes of one client.

    The event has no variance of noise yet. It has a clip where several items of one client may add
    up in a counter.

    Args:
        rows: the rows of the sketch; an item changes one counter in each row.
        width: the counters in a row; if rows differ in width, the harmonic mean.
        relation: the neighbouring relation, or its name.
        trust: central or distributed. Distributed noise comes in Skellam shares if
            `honest_survivors` is given, else from two servers.
        max_items: the most distinct items of a client in a round.
        participations: the most rounds that a client takes part in.
        per_release: the most rounds of a client that are added up before they are opened.
        per_rounds: the number of rounds in a row in which a client takes part at most
            `participations` times; None: the limit is for all rounds.
        num_rounds: the number of all rounds; only with `per_rounds`.
        silos_per_person: the most clients that one person is behind, where clients are silos.
        honest_survivors: the fewest clients whose shares count in a sum.
        most_clients: the most clients in a sum, and so the most draws of noise in a counter.
        collisions: the certified collisions of the hashes.
        counters: the counters of a client's vector; None: rows times width.
        encoding: how items become counters. A histogram needs no clip.
        mechanism: the noise, or its name; None: skellam if `honest_survivors` is given, else
            rounded-gaussian.

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
    """Return privacy terms that guarantee epsilon at delta with the least noise, for an event.

    Args:
        event: what one client is exposed to; its variance is ignored.
        epsilon: the epsilon of the guarantee.
        delta: the delta of the guarantee; geometric noise guarantees 0, whatever is given.
        population: the population whose budget is charged.
        not_private: see `PrivacyConfig`.

    Raises:
        InvalidInputError: epsilon or delta is out of bounds, or no noise keeps that guarantee.
    """
    delta = 0.0 if event.mechanism.is_pure else checked_delta(delta)
    least = _calibrated(event, checked_epsilon(epsilon), delta)
    variance = max(least, LAWS[event.mechanism].least_variance)
    # With very little noise, a variance may have no bound although a smaller variance has one.
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
    """What a plan publishes, in numbers: its vectors, rounds and releases.

    Attributes:
        rows: the counters that one item changes: one in each row.
        counters: the counters of a client's vector.
        max_items: the most items of a client.
        encoding: how items become counters.
        num_rounds: the rounds of the plan.
        clients: the most clients in a sum.
        releases: the range of rounds that each release adds up.
        is_two_server: whether two servers sum, and not one.
        people: the most people behind a client; above 1 the clients are silos.
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
    """Refuse an event that does not describe what a plan opens.

    A plan file may come from anybody: an event that says less than the plan opens would be charged
    too little.

    Args:
        event: the event of the plan's privacy.
        opened: what the plan opens.

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
    """Refuse an event that does not hide how many people a silo has, or has geometric noise."""
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
    """Refuse an event of silos where clients are persons."""
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
    """Refuse an event whose numbers of rounds do not fit the plan.

    An event with too few rounds would be charged too little.
    """
    if event.participations > opened.num_rounds:
        raise InvalidInputError(
            f"privacy.event.participations must be at most the rounds, {opened.num_rounds}, got"
            f" {event.participations}"
        )
    # with fewer rounds than the plan has, the whole campaign would be charged too little
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
    """Refuse an event whose noise, clip, total variation or collisions do not fit the plan."""
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
    """Return the default delta for a number of clients n: the smaller of 1e-6 and 1 / (10 n).

    >>> default_delta(1000), default_delta(10**8)
    (1e-06, 1e-09)
    """
    return min(1e-6, 1.0 / (10 * validate.integer(1, num_clients=num_clients)))


def checked_epsilon(epsilon: float) -> float:
    """Return an epsilon as a float, or raise InvalidInputError if it is out of its bounds.

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
    # geometric noise has one form of delta only: 0
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
    """Return an event of the same cost, with `honest_survivors` set to 1 if it is given."""
    # The cost does not depend on that number, and fewer different events make the caches hit.
    return event if event.honest_survivors is None else replace(event, honest_survivors=1)


@lru_cache(maxsize=64)
def _bound(event: Event, delta: float) -> Guarantee:
    return accounting.epsilon(event, delta)


@lru_cache(maxsize=64)
def _least(event: Event, epsilon: float, delta: float) -> float:
    return accounting.calibrate(event, epsilon, delta)
