"""Differential privacy in a campaign: the requested privacy, and the terms of privacy of a plan.

With privacy, only public information may choose a parameter of the plan or name an item. Some
options break this rule: only a run that is marked `not_private` may use them. Other modules refuse
these options.
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
    """The differential privacy that a user requests; `resolve_privacy` makes it.

    Args:
        epsilon: the most epsilon that the campaign may cost.
        delta: the most delta that the campaign may cost. None: 1e-6, or 0.1 divided by the most
            clients (for silos, people) if this is less. With geometric noise the delta is 0.
        noise_by: the parties that add the noise: an aggregator, the clients, or two servers.
        mechanism: the distribution of the noise, or its name. None: of the distributions that these
            parties can add, the one with the smallest error. Geometric noise is only for
            histograms.
        relation: the difference between two inputs that must look alike: "zero-out" (a client's
            items are taken away), "replace-one" (they are replaced) or "add-remove" (the client is
            not there).
        max_clients: a public bound on the number of clients. It is for add-remove, which hides the
            number itself; for other relations it must be None.
        certify: whether to compute how badly two candidates collide under the real hashes, which
            allows less noise than the worst case. Except for replace-one, it must be False.

    Raises:
        InvalidInputError: a name is unknown, `max_clients` is out of bounds, or values contradict
            each other. `make_terms` checks epsilon and delta.
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
        """Who sees exact sums: the aggregator ("central"), or nobody ("distributed")."""
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
        lifetime: int = 1,
        **guaranteed: Any,
    ) -> PrivacyConfig:
        """Return the terms of privacy for a plan, with the least noise that is private enough.

        If several distributions of noise are possible, the terms are computed for each. The one
        with the smallest error in a histogram is taken: the error is the largest noise in any of
        `width` counters.

        Args:
            rows: the number of rows of the sketch, including the rows that spell names.
            width: the number of counters in a row; the harmonic mean if rows differ in width.
            schedule: which rounds share their hashes.
            max_items: the most items of one client in a round.
            participations: the most rounds that one client may take part in.
            num_clients: the number of clients of each round.
            most_clients: the most clients in a sum.
            honest_survivors: the fewest honest clients that are sure to be in every sum and to add
                noise; None: clients add no noise.
            counters: the number of counters of a client's vector; None: rows times width.
            encoding: whether items are counted in a sketch or in a histogram.
            probability: the probability with which the largest noise may exceed the error by which
                the distributions are compared.
            silos: the options of silos; None: clients are persons.
            per_rounds: the length, in rounds, of each run of rounds that `participations` limits;
                None: the whole campaign.
            lifetime: with a calendar, the most rounds of one client, in each of which `num_clients`
                counts it; else 1.
            guaranteed: the arguments `population` and `not_private` of `PrivacyConfig`.

        Raises:
            InvalidInputError: epsilon or delta is out of bounds, or no noise gives this guarantee.
        """
        rounds = len(num_clients)
        together = max(map(len, releases_by(self.noise_by, schedule, rounds)))
        people, each = (1, 1) if silos is None else (silos.most, silos.silos_per_person)
        delta = self.delta
        if delta is None:
            # A client counts once, in however many rounds it is.
            clients = self.max_clients or max(1, sum(num_clients) // lifetime)
            delta = default_delta(clients * people)
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
            with suppress(InvalidInputError):  # this mechanism cannot draw so large noise
                possible.append(terms(mechanism))
        if not others:
            return possible[0]
        # Standard deviations would not do: the tails of these distributions differ. If one counter
        # exceeds a bound with probability `of_one`, some counter does with `probability`.
        of_one = -math.expm1(math.log1p(-probability) / width)
        return min(possible, key=lambda one: NoiseLaw.of_releases(one, 1).half(of_one))

    def _mechanisms(self, encoding: Encoding) -> Sequence[Mechanism]:
        """Return the distributions of noise that a plan may have, the usual one first.

        Args:
            encoding: whether the plan is for sketches or for histograms.
        """
        usual = self.noise_by.mechanisms
        asked = usual if self.mechanism is None else (Mechanism.parse(self.mechanism),)
        # A pilot is always a sketch. If the requested noise is for histograms only, the pilot gets
        # the usual noise.
        return [one for one in asked if encoding in one.encodings] or usual[:1]


def resolve_privacy(
    method: SecureSum,
    *,
    trust: str | None = None,
    neighbours: str | None = None,
    silos: Silos | None = None,
    **asked: Any,
) -> Privacy:
    """Return the requested privacy with all defaults, among them the party that adds the noise.

    This party follows from the trust and from the method of summing.

    Args:
        method: the method of summing: ideal (a trusted server), secagg or two-server.
        trust: who sees exact sums: an aggregator ("central") or nobody ("distributed"). None:
            central if a trusted server sums, otherwise distributed.
        neighbours: the relation between two inputs that must look alike, or its name; None:
            zero-out, but add-remove for silos.
        silos: the options of silos; None: clients are persons.
        asked: further arguments of `Privacy`.

    Raises:
        InvalidInputError: a value is out of bounds; the relation does not suit silos, the method of
            summing or the trust; or the noise does not suit silos, or the party that adds it.

    >>> resolve_privacy(SecureSum.SECAGG, epsilon=1.0).noise_by
    <NoiseBy.CLIENTS: 'clients'>
    """
    default_relation = Relation.ZERO_OUT if silos is None else Relation.ADD_REMOVE
    relation = default_relation if neighbours is None else Relation.parse(neighbours)
    default = Trust.CENTRAL if method is SecureSum.IDEAL else Trust.DISTRIBUTED
    trusted = default if trust is None else Trust.parse(trust)
    noise_by = NoiseBy.of(trusted, is_two_server=method is SecureSum.TWO_SERVER)
    # `_check_hidden` is not for silos: every method of summing can hide their number of people
    if silos is not None:
        usual = _mechanism_of_silos(noise_by, asked.pop("mechanism", None))
        _check_relation_of_silos(relation, asked)
        return Privacy(relation=relation, noise_by=noise_by, mechanism=usual, **asked)
    privacy = Privacy(relation=relation, noise_by=noise_by, **asked)
    if relation.hides_number:
        _check_hidden(privacy, method)
    return privacy


def _mechanism_of_silos(noise_by: NoiseBy, name: str | None) -> Mechanism:
    """Return the only distribution of noise that silos may have, and refuse any other name.

    The prediction of how closely a sum shows a silo's size (`plan.silos.size_shown`) assumes nearly
    normal noise.
    """
    usual = noise_by.mechanisms[0]
    if name is not None and (asked := Mechanism.parse(name)) is not usual:
        raise InvalidInputError(
            f"{arg.mechanism} must be {usual} where clients are silos, got {_named(asked)}: leave"
            " it out"
        )
    return usual


def _check_relation_of_silos(relation: Relation, asked: Mapping[str, Any]) -> None:
    """Refuse a relation other than add-remove for silos, and the option `max_clients`.

    A silo's number of people is not public, and only add-remove hides it.
    """
    if not relation.hides_number:
        raise InvalidInputError(
            f"{arg.neighbours} must be add-remove where clients are silos, since how many people a"
            f" silo has is not public, got {relation}: leave {opt.neighbours} out"
        )
    check(given(max_clients=asked.get("max_clients")), unmet(persons=True))


def _check_hidden(privacy: Privacy, method: SecureSum) -> None:
    """Refuse the relation add-remove if the number of clients cannot be hidden.

    Hiding it needs a public bound on the number, a trusted server that sums, and central trust.
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
    """Return about the standard deviation of the noise in a released sum's counter, in counts.

    Gaussian accounting approximates it quickly, while sizes are searched for. The noise of the
    finished plan comes from exact accounting.

    Args:
        event: what a client is exposed to, with the sensitivity of a sum; its noise variance is not
            used.
        epsilon: the epsilon of the whole campaign, 1e-6 .. 1e3.
        delta: the delta of the whole campaign, above 0 and below 1.
        provision: the noise variance in a sum divided by the variance that the guarantee relies on,
            at least 1. It is above 1 if clients add noise: all clients in the sum add noise, but
            the guarantee relies only on the clients that are surely honest.

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
    """Return how badly two candidates collide at worst (`Collisions`), under the real hashes.

    Args:
        spec: the parameters of the sketches, with the seed that determines the hashes.
        domain: the candidates.
        report: a function that is called with "certify", the number of batches (groups of rounds
            that share all hashes and signs) that are done, and the number of all batches.

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
    """Refuse a plan whose candidates collide worse than the certificate in the plan states.

    A plan without a certificate is accepted.

    Args:
        plan: the plan.
        domain: the candidates of the plan.
        report: a function that is called with the progress, as for `worst_pair`.

    Raises:
        InvalidInputError: two candidates collide worse, so that the plan's noise is too small; or
            there are more than `MAX_CERTIFIED` candidates.
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
