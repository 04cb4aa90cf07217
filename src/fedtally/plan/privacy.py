"""Differential privacy in a campaign: the resolved request, and the terms of privacy of a plan.

With privacy, only public information may choose a parameter or name an item. Options that only a
run marked `not_private` may use are refused in other files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fedtally.base import validate
from fedtally.base.encoding import Encoding
from fedtally.domain import Domain
from fedtally.errors import InvalidInputError, arg, opt
from fedtally.plan import MAX_CLIENTS, Plan
from fedtally.plan.parts.protection import releases_by
from fedtally.plan.rules import check, given, unmet
from fedtally.plan.silos import Silos
from fedtally.privacy.accounting import noise_multiplier
from fedtally.privacy.config import PrivacyConfig, default_delta, exposure, least_noise
from fedtally.privacy.events import (
    Collisions,
    Event,
    Mechanism,
    NoiseBy,
    Relation,
    Trust,
    certify,
)
from fedtally.recovery.noise_law import NoiseLaw
from fedtally.secagg.config import SecureSum
from fedtally.sketch import Schedule, SketchSpec

MAX_CERTIFIED = 1 << 22  # the most candidates whose hashes can be certified
Random = Callable[[int], bytes]


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The requested differential privacy; `resolve_privacy` makes it.

    Args:
        epsilon: the epsilon that the campaign may cost.
        delta: the delta that the campaign may cost; None: 1e-6, or 0.1 over the number of clients
            if that is less.
        noise_by: the parties that add the noise.
        mechanism: the kind of noise, or its name; None: the kind with the smallest error among
            those that these parties can add. Geometric noise is only for histograms.
        relation: "zero-out", "replace-one" or "add-remove".
        max_clients: for add-remove, a public bound on the number of clients, because the number
            itself is private.
        certify: for replace-one, whether to search for the worst pair of candidates under the
            actual hashes of the campaign, which allows less noise.

    Raises:
        InvalidInputError: values do not go together.
    """

    epsilon: float
    delta: float | None = None
    noise_by: NoiseBy = NoiseBy.AGGREGATOR
    mechanism: Mechanism | str | None = None
    relation: Relation | str = Relation.ZERO_OUT
    max_clients: int | None = None
    certify: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "relation", Relation.parse(self.relation))
        if self.mechanism is not None:
            object.__setattr__(self, "mechanism", self._checked_mechanism(self.mechanism))
        if self.max_clients is not None:
            most = validate.integer(1, MAX_CLIENTS, max_clients=self.max_clients)
            object.__setattr__(self, "max_clients", most)
        check(
            given(max_clients=self.max_clients, certify=self.certify),
            unmet(
                add_remove=self.relation is not Relation.ADD_REMOVE and self.relation,
                replace_one=self.relation is not Relation.REPLACE_ONE and self.relation,
            ),
        )

    def _checked_mechanism(self, name: str) -> Mechanism:
        mechanism, possible = Mechanism.parse(name), self.noise_by.mechanisms
        if mechanism not in possible:
            who, way = {
                NoiseBy.AGGREGATOR: ("an aggregator adds", "distributed"),
                NoiseBy.CLIENTS: ("clients add", "central"),
                NoiseBy.SERVERS: ("two servers add", "central"),
            }[self.noise_by]
            raise InvalidInputError(
                f"{arg.mechanism} must be {' or '.join(possible)} where {who} the noise, got"
                f" {_named(mechanism)}: leave it out, or use {way} trust"
            )
        return mechanism

    @property
    def trust(self) -> Trust:
        """The trust: central (the aggregator sees exact sums), or distributed (nobody does)."""
        return self.noise_by.trust

    def make_terms(
        self,
        *,
        rows: int,
        width: int,
        schedule: Schedule,
        max_items: int,
        participations: int,
        num_clients: Sequence[int],
        most_clients: int,
        honest_survivors: int | None,
        counters: int | None = None,
        encoding: Encoding = Encoding.SKETCH,
        probability: float = 0.5,
        silos: Silos | None = None,
        per_rounds: int | None = None,
        **guaranteed: Any,
    ) -> PrivacyConfig:
        """Return the terms of privacy for a plan, with the least noise that keeps the guarantee.

        Args:
            rows: the number of rows of the sketch, including rows that spell names.
            width: the number of counters of a row; the harmonic mean if rows differ.
            schedule: the hashes of each round.
            max_items: the most items of one client in a round.
            participations: the most rounds of one client.
            num_clients: the number of clients of each round.
            most_clients: the most clients in a sum.
            honest_survivors: the fewest honest clients whose noise is surely in every sum; None:
                clients add no noise.
            counters: the number of counters of a client's vector; None: rows times width.
            encoding: the way in which items become counters.
            probability: if several kinds of noise are possible, the kind whose noise in the largest
                of `width` counters is smallest is taken. This noise is exceeded with `probability`.
            silos: the request for silos; None: clients are persons.
            per_rounds: the number of rounds in a row to which `participations` applies; None: all.
            guaranteed: the arguments `population` and `not_private` of the `PrivacyConfig`.

        Raises:
            InvalidInputError: no noise keeps this guarantee.
        """
        rounds = len(num_clients)
        together = max(map(len, releases_by(self.noise_by, schedule, rounds)))
        people, each = (1, 1) if silos is None else (silos.most, silos.silos_per_person)
        delta = self.delta
        if delta is None:
            delta = default_delta((self.max_clients or sum(num_clients)) * people)
        exposed = partial(
            exposure,
            rows=rows,
            width=width,
            relation=self.relation,
            trust=self.trust,
            max_items=max_items,
            participations=participations,
            per_release=min(participations, together),
            per_rounds=per_rounds,
            num_rounds=None if per_rounds is None else rounds,
            silos_per_person=each,
            honest_survivors=honest_survivors,
            most_clients=most_clients,
            counters=counters,
            encoding=encoding,
        )

        def terms(mechanism: Mechanism) -> PrivacyConfig:
            event = exposed(mechanism=mechanism)
            return least_noise(event, epsilon=self.epsilon, delta=delta, **guaranteed)

        usual, *others = self._mechanisms(encoding)
        possible = [terms(usual)]
        for mechanism in others:
            with suppress(InvalidInputError):  # the mechanism cannot draw that much noise
                possible.append(terms(mechanism))
        if not others:
            return possible[0]
        # a histogram's error is only its noise; the tails of the mechanisms' noise differ
        of_one = -math.expm1(math.log1p(-probability) / width)
        return min(possible, key=lambda one: NoiseLaw.of_releases(one, 1).half(of_one))

    def _mechanisms(self, encoding: Encoding) -> Sequence[Mechanism]:
        """Return the mechanisms that a plan with this encoding may have, the usual one first."""
        usual = self.noise_by.mechanisms
        asked = usual if self.mechanism is None else (Mechanism.parse(self.mechanism),)
        # a pilot is a sketch: if only noise for histograms was requested, it has the usual noise
        return [one for one in asked if encoding in one.encodings] or usual[:1]


def resolve_privacy(
    method: SecureSum,
    *,
    trust: str | None = None,
    neighbours: str | None = None,
    silos: Silos | None = None,
    **asked: Any,
) -> Privacy:
    """Return the requested privacy, with the party that adds the noise.

    The trust and the method of summing decide which party this is.

    Args:
        method: the method of summing rounds.
        trust: "central" or "distributed"; None: central if the secure sum is ideal, else
            distributed.
        neighbours: the neighbouring relation, or its name; None: zero-out, for silos add-remove.
        silos: the request for silos; None: clients are persons.
        asked: the other arguments of `Privacy`.

    Raises:
        InvalidInputError: a value is out of bounds, or the relation or trust does not go with the
            secure sum.

    >>> resolve_privacy(SecureSum.SECAGG, epsilon=1.0).noise_by
    <NoiseBy.CLIENTS: 'clients'>
    """
    default_relation = Relation.ZERO_OUT if silos is None else Relation.ADD_REMOVE
    relation = default_relation if neighbours is None else Relation.parse(neighbours)
    default = Trust.CENTRAL if method is SecureSum.IDEAL else Trust.DISTRIBUTED
    trusted = default if trust is None else Trust.parse(trust)
    noise_by = NoiseBy.of(trusted, is_two_server=method is SecureSum.TWO_SERVER)
    if silos is not None:  # silos noise the number of their people under each method of summing
        usual = _mechanism_of_silos(noise_by, asked.pop("mechanism", None))
        _check_relation_of_silos(relation, asked)
        return Privacy(relation=relation, noise_by=noise_by, mechanism=usual, **asked)
    privacy = Privacy(relation=relation, noise_by=noise_by, **asked)
    if relation.hides_number:
        _check_hidden(privacy, method)
    return privacy


def _mechanism_of_silos(noise_by: NoiseBy, name: str | None) -> Mechanism:
    """Return the only mechanism for silos, and refuse any other one.

    The prediction of how closely a sum shows a silo's size assumes noise with normal tails.
    """
    usual = noise_by.mechanisms[0]
    if name is not None and (asked := Mechanism.parse(name)) is not usual:
        raise InvalidInputError(
            f"{arg.mechanism} must be {usual} where clients are silos, got {_named(asked)}: leave"
            " it out"
        )
    return usual


def _check_relation_of_silos(relation: Relation, asked: Mapping[str, Any]) -> None:
    """Refuse a relation other than add-remove for silos, and options of the other relations."""
    if not relation.hides_number:
        raise InvalidInputError(
            f"{arg.neighbours} must be add-remove where clients are silos, since how many people a"
            f" silo has is not public, got {relation}: leave {opt.neighbours} out"
        )
    check(given(max_clients=asked.get("max_clients")), unmet(persons=True))


def _check_hidden(privacy: Privacy, method: SecureSum) -> None:
    """Refuse to hide the number of clients if this is not possible.

    It needs a public bound on the number, a sum by a trusted server, and central trust.
    """
    if privacy.max_clients is None:
        raise InvalidInputError(
            f"add-remove needs {opt.max_clients}, a public bound on the number of clients, which is"
            " private then"
        )
    if method is not SecureSum.IDEAL:
        raise InvalidInputError(
            f"add-remove hides the number of clients, which the secure sum {method} shows: "
            "use zero-out or replace-one, or an ideal secure sum"
        )
    if privacy.trust is not Trust.CENTRAL:
        raise InvalidInputError(
            "add-remove needs central trust: the number of clients must be noised too"
        )


def _named(mechanism: Mechanism) -> str:
    return f"{mechanism}{' (or delta 0)' * mechanism.is_pure}"


@lru_cache(maxsize=256)
def noise_of_release(event: Event, epsilon: float, delta: float, provision: float = 1.0) -> float:
    """Return the standard deviation of Gaussian noise in a counter of one released sum, in counts.

    It is an approximation by Gaussian accounting. The noise of the plan itself comes from exact
    accounting.

    Args:
        event: the exposure of a client; its variance is not used.
        epsilon: the epsilon of the whole campaign, 1e-6 .. 1e3.
        delta: the delta of the whole campaign, in (0, 1).
        provision: the ratio of the noise variance in a sum to the variance that the guarantee
            counts, at least 1. If clients add noise, all survivors do, and only some are counted.

    >>> event = {"mechanism": "rounded-gaussian", "rows": 16, "relation": "zero-out"}
    >>> # a client's 4 rounds are added up, or stand in 2 releases, or in 4
    >>> [round(noise_of_release(Event(**event, participations=4, per_release=rounds), 1.0, 1e-6), 1)
    ...  for rounds in (4, 2, 1)]
    [67.6, 47.8, 33.8]
    """
    sensitivity = event.l2_sensitivity
    return (
        noise_multiplier(epsilon, delta) * sensitivity * math.sqrt(event.draws_of_sum * provision)
    )


def worst_pair(spec: SketchSpec, domain: Domain, report: Callable[..., None]) -> Collisions:
    """Return the worst collisions of two candidates under the actual hashes of the campaign.

    Args:
        spec: the parameters of the sketches, with the seed of the hashes.
        domain: the candidates.
        report: a function that is called with ("certify", batches done, all batches).

    Raises:
        InvalidInputError: there are more than `MAX_CERTIFIED` candidates.
    """
    if domain.size > MAX_CERTIFIED:
        raise InvalidInputError(
            f"{opt.certify} looks at all pairs of candidates: at most {MAX_CERTIFIED:,}, got"
            f" {domain.size:,}; leave it out"
        )
    batches = spec.schedule.batches_of(spec.num_rounds)
    ids = domain.ids(0, domain.size)

    def hashes() -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.int64]]]:
        for number, batch in enumerate(batches):
            yield spec.hashes(batch.start).cells(ids, spec.width)
            report("certify", number + 1, len(batches))

    return certify(hashes())


def check_certificate(plan: Plan, domain: Domain, report: Callable[..., None]) -> None:
    """Refuse a plan whose candidates collide worse than its certificate states.

    A plan without a certificate is accepted.

    Raises:
        InvalidInputError: two candidates collide worse, so that the plan's noise is too small.
    """
    said = None if plan.privacy is None else plan.privacy.event.collisions
    if said is None:
        return
    found = worst_pair(plan.spec, domain, report)
    if found.opposite > said.opposite or found.excess > said.excess:
        raise InvalidInputError(
            f"the plan says that no two candidates collide worse than {said.opposite} opposite rows"
            f" (excess {said.excess}), and some do, in {found.opposite} (excess {found.excess}):"
            " its noise is too little; make a new plan with certify"
        )
